//! The memory that batches live in, and the limit it stays under.
//!
//! An arena is a list of [segments](crate::segment), and of what batches take of the heap.
//! Both count against one limit: a segment with all its bytes, whether its slots are lent or
//! free. So a free slot is used before anything is added, most recently used first, because a
//! reused slot costs no page faults (that is the difference between 1.5 and 25 GB/s); and
//! where all is mapped in another size, segments of that size are retired to make room.
//!
//! Memory is set aside when a batch is claimed, by the size of the largest one so far. Only
//! what a stream needs next is claimed without it; when no slot is to be had then, it gets
//! memory of the heap: progress never depends on somebody giving a slot back, and the limit is
//! passed by one batch for each run at most.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::body::Body;
use crate::error::Error;
use crate::room::{Room, fits};
use crate::segment::Segment;

/// Which slot, and its how-manieth use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId {
    /// Number of the segment, never reused.
    pub segment: u32,
    /// Number of the slot in its segment.
    pub slot: u32,
    /// Counts the uses of this slot, so that a late release is recognised.
    pub generation: u32,
    /// Where the slot begins in its segment, in bytes.
    pub offset: u64,
}

/// The memory of an arena at one moment, in bytes and slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that count against the limit: `capacity` and `heap`.
    pub used: u64,
    /// The most that `used` has been.
    pub peak: u64,
    /// Bytes of all mapped segments, their slots lent or free.
    pub capacity: u64,
    /// Bytes of the heap that batches occupy.
    pub heap: u64,
    /// Bytes of the slots that somebody holds.
    pub lent: u64,
    /// Bytes set aside for batches that are being made, besides their slots.
    pub reserved: u64,
    /// Slots in all segments.
    pub slots_total: u64,
    /// Slots that somebody holds.
    pub slots_lent: u64,
    /// Segments that are on their way out.
    pub retired: u64,
}

/// Somebody to call when memory is given back after a claim was refused for want of it.
pub trait MemoryListener: Send + Sync {
    /// Memory was given back.
    fn memory_freed(&self);
}

/// See the module's text.
pub struct Arena {
    limit: u64,
    /// Whether batches may be begun whatever the limit says.
    lenient: bool,
    room: Mutex<Room>,
    listeners: Mutex<Vec<Weak<dyn MemoryListener>>>,
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena")
            .field("limit", &self.limit)
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}

/// Why memory is wanted for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A stream needs this batch next.
    Next,
    /// Nobody has asked for it yet. Its run has so many bytes of such batches already.
    Ahead(u64),
}

/// A run's part of what runs may have ahead, whatever others hold; given up on drop.
#[derive(Debug)]
pub struct Part(Arc<Arena>);

impl Drop for Part {
    fn drop(&mut self) {
        self.0.room().runs -= 1;
    }
}

/// Memory set aside for a batch that is being worked on: a slot that is free already, or the
/// right to so many bytes more. What isn't used is given back on drop.
#[derive(Debug)]
pub struct Reservation {
    arena: Arc<Arena>,
    slot: Option<Body>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let mut room = self.arena.room();
            room.reserved -= self.bytes;
            self.arena.freed(room);
        }
    }
}

impl Arena {
    /// An empty arena that holds at most `limit` bytes (a batch that a stream needs next
    /// may exceed it, since nothing else would ever make room).
    pub fn new(limit: u64) -> Arc<Self> {
        Self::make(limit, false)
    }

    /// An arena that refuses nothing: beyond `limit` bytes batches get memory of the heap. For
    /// a process that keeps its own batches, where this would only take the workers away.
    pub fn lenient(limit: u64) -> Arc<Self> {
        Self::make(limit, true)
    }

    fn make(limit: u64, lenient: bool) -> Arc<Self> {
        let room = Room::new(limit);
        Arc::new(Self { limit, lenient, room: Mutex::new(room), listeners: Mutex::default() })
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Adds somebody to call when refused memory becomes free.
    pub fn listen(&self, listener: Weak<dyn MemoryListener>) {
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|known| known.strong_count() > 0);
        if !listeners.iter().any(|known| known.ptr_eq(&listener)) {
            listeners.push(listener);
        }
    }

    /// Gives a run its part: all have an even one.
    pub fn enter(self: &Arc<Self>) -> Part {
        self.room().runs += 1;
        Part(Arc::clone(self))
    }

    /// Sets memory aside for a batch to come of `bytes`, or of a size that nobody knows.
    /// Batches that are needed next are never refused; others may fill half of the limit, so
    /// that there is memory for the needed ones, and each run its part of an eighth, so that
    /// what others hold doesn't have it make one batch at a time. Makes no system call.
    pub fn reserve(self: &Arc<Self>, bytes: Option<u64>, need: Need) -> Option<Reservation> {
        let mut room = self.room();
        let needed = need == Need::Next || self.lenient;
        let ahead = match need {
            Need::Ahead(own) if !needed => room.may_run_ahead(bytes, own),
            _ => true,
        };
        if ahead && let Some(place) = bytes.and_then(|bytes| room.take(bytes)) {
            drop(room);
            let slot = Some(Body::of_slot(Arc::clone(self), place));
            return Some(Reservation { arena: Arc::clone(self), slot, bytes: 0 });
        }
        let cost = if ahead { room.cost(bytes) } else { None };
        if cost.is_none() && !needed {
            room.refused = true;
            return None;
        }
        let bytes = cost.unwrap_or(0);
        room.reserved += bytes;
        drop(room);
        Some(Reservation { arena: Arc::clone(self), slot: None, bytes })
    }

    /// Memory for a batch of `bytes`: a slot where one is to be had, else the heap.
    ///
    /// # Errors
    /// When the system has no memory left.
    pub fn allocate(self: &Arc<Self>, bytes: usize, reserved: Option<Reservation>) -> Result<Body, Error> {
        let mut reserved = reserved;
        let kept = reserved.as_mut().and_then(|reserved| reserved.slot.take());
        let size = bytes as u64;
        let body = match kept {
            Some(slot) if fits(slot.len() as u64, size) => Some(slot),
            // By far too large is better than none.
            Some(slot) if slot.len() >= bytes => Some(self.free_slot(size).unwrap_or(slot)),
            too_small => {
                drop(too_small);
                self.free_slot(size).or_else(|| self.new_slot(size, reserved))
            }
        };
        match body {
            Some(mut body) => {
                body.fit(bytes);
                Ok(body)
            }
            None => self.heap(bytes),
        }
    }

    fn free_slot(self: &Arc<Self>, bytes: u64) -> Option<Body> {
        let place = self.room().take(bytes)?;
        Some(Body::of_slot(Arc::clone(self), place))
    }

    /// A slot of a segment that is added now, if the limit and the machine allow it. The
    /// reservation's bytes are there for it.
    fn new_slot(self: &Arc<Self>, bytes: u64, reserved: Option<Reservation>) -> Option<Body> {
        let mut room = self.room();
        let mut reserved = reserved;
        if let Some(reserved) = &mut reserved {
            room.reserved -= std::mem::take(&mut reserved.bytes);
        }
        let place = room.grow(bytes);
        self.freed(room);
        Some(Body::of_slot(Arc::clone(self), place?))
    }

    fn heap(self: &Arc<Self>, bytes: usize) -> Result<Body, Error> {
        let mut room = self.room();
        room.heap += bytes as u64;
        room.note_peak();
        drop(room);
        Body::of_heap(Arc::clone(self), bytes).ok_or_else(|| {
            self.forget_heap(bytes as u64);
            Error::System { what: "no memory for a batch", errno: rustix::io::Errno::NOMEM }
        })
    }

    /// Counts `bytes` of the heap that belong to a batch besides its body.
    pub(crate) fn count_heap(&self, bytes: u64) {
        let mut room = self.room();
        room.heap += bytes;
        room.note_peak();
    }

    /// A slot comes back, of which `touched` bytes have pages; with it goes what was counted
    /// by [`Arena::count_heap`].
    pub(crate) fn give_back(&self, id: SlotId, touched: usize, heap: u64) {
        let mut room = self.room();
        room.heap -= heap;
        let Room { segments, lent, .. } = &mut *room;
        if let Some(segment) = segments.get_mut(&id.segment) {
            segment.put_back(id.slot, touched);
            *lent -= segment.slot_bytes as u64;
            if segment.is_over() {
                room.sweep();
            }
        }
        self.freed(room);
    }

    pub(crate) fn forget_heap(&self, bytes: u64) {
        let mut room = self.room();
        room.heap -= bytes;
        self.freed(room);
    }

    /// Tells those whose claims were refused; takes the lock, so that it is free by then.
    fn freed(&self, mut room: MutexGuard<'_, Room>) {
        let refused = std::mem::take(&mut room.refused);
        let gone = std::mem::take(&mut room.gone);
        drop(room);
        drop(gone); // unmapping takes its time
        if !refused {
            return;
        }
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            listener.memory_freed();
        }
    }

    /// Bytes that batches take, those in the making among them; free slots are not.
    pub fn busy(&self) -> u64 {
        self.room().busy()
    }

    /// The usage at this moment.
    pub fn usage(&self) -> Usage {
        let room = self.room();
        let slots_total: usize = room.segments.values().map(Segment::slots).sum();
        let slots_free: usize = room.segments.values().map(|segment| segment.free.len()).sum();
        Usage {
            used: room.mapped + room.heap,
            peak: room.peak,
            capacity: room.mapped,
            heap: room.heap,
            lent: room.lent,
            reserved: room.reserved,
            slots_total: slots_total as u64,
            slots_lent: (slots_total - slots_free) as u64,
            retired: room.segments.values().filter(|segment| segment.is_over()).count() as u64,
        }
    }

    /// A segment's file descriptor (which stays the arena's) and its length in bytes. From
    /// now on it goes only by [`Arena::drop_segment`].
    pub fn segment(&self, number: u32) -> Option<(RawFd, u64)> {
        let mut room = self.room();
        let segment = room.segments.get_mut(&number)?;
        segment.shown = true;
        Some((segment.fd().as_raw_fd(), segment.bytes() as u64))
    }

    /// Segments that are to go: no slot of theirs is out, and none will be again.
    pub fn retired(&self) -> Vec<u32> {
        let room = self.room();
        room.segments.iter().filter(|(_, segment)| segment.is_over()).map(|(number, _)| *number).collect()
    }

    /// Unmaps a retired segment. To be called when every client has unmapped it: until
    /// then its memory is not free, whatever we do here. Answers whether there was one.
    pub fn drop_segment(&self, number: u32) -> bool {
        let mut room = self.room();
        if !room.segments.get(&number).is_some_and(Segment::is_over) {
            return false;
        }
        room.remove(number);
        self.freed(room);
        true
    }

    /// Retires every segment that nobody uses: for a time when nothing is going on.
    pub fn trim(&self) {
        let mut room = self.room();
        for segment in room.segments.values_mut().filter(|segment| segment.all_free()) {
            segment.retired = true;
        }
        room.sweep();
        self.freed(room);
    }

    /// Whether there are segments that are to go, or will be when their slots come back.
    pub fn retiring(&self) -> bool {
        self.room().segments.values().any(|segment| segment.retired)
    }
}
