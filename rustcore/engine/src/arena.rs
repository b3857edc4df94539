//! The memory that batches live in, and the limit it stays under.
//!
//! An arena is a list of [segments](crate::segment). Slots are reused, most recently used
//! first, because a reused slot costs no page faults: that is the difference between 1.5
//! and 25 GB/s. When no slot fits and the limit allows no new segment, a batch gets memory
//! of the heap instead: progress never depends on somebody giving a slot back.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::body::Body;
use crate::error::Error;
use crate::segment::Segment;

const PAGE: usize = 4096;
/// Segments aim at this size, between the two numbers of slots below.
const SEGMENT_BYTES: usize = 64 << 20;
const SLOTS: std::ops::RangeInclusive<usize> = 4..=256;

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
    /// Bytes that batches occupy: lent slots, and memory of the heap.
    pub used: u64,
    /// Bytes of all mapped segments.
    pub capacity: u64,
    /// Slots in all segments.
    pub slots_total: u64,
    /// Slots that somebody holds.
    pub slots_lent: u64,
}

/// Somebody to call when memory is given back after a claim was refused for want of it.
pub trait MemoryListener: Send + Sync {
    /// Memory was given back.
    fn memory_freed(&self);
}

#[derive(Default)]
struct State {
    segments: BTreeMap<u32, Segment>,
    next_segment: u32,
}

/// See the module's text.
pub struct Arena {
    limit: u64,
    state: Mutex<State>,
    lent_bytes: AtomicU64,
    heap_bytes: AtomicU64,
    reserved: AtomicU64,
    /// Whether a claim was refused since memory was last given back.
    refused: AtomicBool,
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

/// Bytes set aside for a batch that is being worked on; given back on drop.
#[derive(Debug)]
pub struct Reservation {
    arena: Arc<Arena>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.arena.reserved.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl Arena {
    /// An empty arena that holds at most `limit` bytes (a batch that a stream needs next
    /// may exceed it, since nothing else would ever make room).
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            state: Mutex::default(),
            lent_bytes: AtomicU64::new(0),
            heap_bytes: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            listeners: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Sets `bytes` aside for a batch to come, unless that would pass the limit.
    /// `needed` batches are never refused.
    pub fn reserve(self: &Arc<Self>, bytes: u64, needed: bool) -> Option<Reservation> {
        self.reserved.fetch_add(bytes, Ordering::SeqCst);
        let reservation = Reservation { arena: Arc::clone(self), bytes };
        if needed || self.fits() {
            return Some(reservation);
        }
        // Said before the second look: memory given back after it finds the word.
        self.refused.store(true, Ordering::SeqCst);
        self.fits().then_some(reservation)
    }

    /// Whether all that is lent, on the heap or reserved keeps to the limit.
    fn fits(&self) -> bool {
        let parts = [&self.reserved, &self.lent_bytes, &self.heap_bytes];
        parts.iter().map(|part| part.load(Ordering::SeqCst)).sum::<u64>() <= self.limit
    }

    /// Memory for a batch of `bytes`: a slot where one is to be had, else the heap.
    ///
    /// # Errors
    /// When the system has no memory left.
    pub fn allocate(self: &Arc<Self>, bytes: usize) -> Result<Body, Error> {
        if let Some(body) = self.allocate_slot(bytes) {
            return Ok(body);
        }
        self.heap_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(body) = Body::of_heap(Arc::clone(self), bytes) {
            return Ok(body);
        }
        self.heap_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        Err(Error::System { what: "no memory for a batch", errno: rustix::io::Errno::NOMEM })
    }

    fn allocate_slot(self: &Arc<Self>, bytes: usize) -> Option<Body> {
        let mut state = self.state();
        let segment = state.fitting(bytes).or_else(|| self.grow(&mut state, bytes))?;
        let place = state.segments.get_mut(&segment)?;
        let slot_bytes = place.slot_bytes as u64;
        let (slot, generation, address) = place.take()?;
        let offset = place.slot_offset(slot) as u64;
        drop(state);
        self.lent_bytes.fetch_add(slot_bytes, Ordering::Relaxed);
        let id = SlotId { segment, slot, generation, offset };
        Some(Body::of_slot(Arc::clone(self), id, address, bytes))
    }

    /// Adds a segment for batches of `bytes`, if the limit and the machine allow it;
    /// otherwise retires free segments of other sizes, so that there is room later.
    fn grow(&self, state: &mut State, bytes: usize) -> Option<u32> {
        let slot_bytes = (bytes + bytes / 4).max(PAGE).next_multiple_of(PAGE);
        let mapped: usize = state.segments.values().map(Segment::bytes).sum();
        let room = (self.limit as usize).saturating_sub(mapped).min(memory::available());
        let slots = (SEGMENT_BYTES / slot_bytes).clamp(*SLOTS.start(), *SLOTS.end()).min(room / slot_bytes);
        if slots == 0 {
            state.retire_misfits(bytes);
            return None;
        }
        // A refusal here (no file descriptor, say) means the heap, not an error.
        let segment = Segment::new(slot_bytes, slots).ok()?;
        let number = state.next_segment;
        state.next_segment += 1;
        state.segments.insert(number, segment);
        Some(number)
    }

    pub(crate) fn give_back(&self, id: SlotId) {
        let mut state = self.state();
        if let Some(segment) = state.segments.get_mut(&id.segment) {
            segment.free.push(id.slot);
            self.lent_bytes.fetch_sub(segment.slot_bytes as u64, Ordering::SeqCst);
        }
        drop(state);
        self.freed();
    }

    pub(crate) fn forget_heap(&self, bytes: u64) {
        self.heap_bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.freed();
    }

    fn freed(&self) {
        if !self.refused.swap(false, Ordering::SeqCst) {
            return;
        }
        let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            listener.memory_freed();
        }
    }

    /// The usage at this moment.
    pub fn usage(&self) -> Usage {
        let state = self.state();
        let slots_total: usize = state.segments.values().map(Segment::slots).sum();
        let slots_free: usize = state.segments.values().map(|segment| segment.free.len()).sum();
        let capacity: usize = state.segments.values().map(Segment::bytes).sum();
        drop(state);
        Usage {
            used: self.lent_bytes.load(Ordering::Relaxed) + self.heap_bytes.load(Ordering::Relaxed),
            capacity: capacity as u64,
            slots_total: slots_total as u64,
            slots_lent: (slots_total - slots_free) as u64,
        }
    }

    /// A segment's file descriptor (which stays the arena's) and its length in bytes.
    pub fn segment(&self, number: u32) -> Option<(RawFd, u64)> {
        let state = self.state();
        state.segments.get(&number).map(|segment| (segment.fd().as_raw_fd(), segment.bytes() as u64))
    }

    /// Segments that are to go: no slot of theirs is out, and none will be again.
    pub fn retired(&self) -> Vec<u32> {
        let state = self.state();
        state.segments.iter().filter(|(_, segment)| segment.retired).map(|(number, _)| *number).collect()
    }

    /// Unmaps a retired segment. To be called when every client has unmapped it: until
    /// then its memory is not free, whatever we do here. Answers whether there was one.
    pub fn drop_segment(&self, number: u32) -> bool {
        let mut state = self.state();
        let gone = state.segments.get(&number).is_some_and(|segment| segment.retired && segment.all_free());
        if gone {
            state.segments.remove(&number);
        }
        drop(state);
        self.freed();
        gone
    }
}

impl State {
    /// The segment with a free slot that wastes least, and not more than three quarters.
    fn fitting(&self, bytes: usize) -> Option<u32> {
        let most = (bytes * 4).max(PAGE);
        self.segments
            .iter()
            .filter(|(_, s)| !s.retired && !s.free.is_empty() && (bytes..=most).contains(&s.slot_bytes))
            .min_by_key(|(_, segment)| segment.slot_bytes)
            .map(|(number, _)| *number)
    }

    fn retire_misfits(&mut self, bytes: usize) {
        let most = (bytes * 4).max(PAGE);
        for segment in self.segments.values_mut() {
            if segment.all_free() && !(bytes..=most).contains(&segment.slot_bytes) {
                segment.retired = true;
            }
        }
    }
}

/// What the machine can still give.
mod memory {
    use std::fs::read_to_string;

    /// Bytes that may be mapped before the machine, or our control group, runs short. An
    /// over-large memfd is not refused by the kernel: it ends in an out-of-memory kill.
    pub(super) fn available() -> usize {
        let machine = meminfo().unwrap_or(usize::MAX);
        machine.min(control_group().unwrap_or(usize::MAX))
    }

    fn meminfo() -> Option<usize> {
        let text = read_to_string("/proc/meminfo").ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok().map(|kib| kib << 10)
    }

    fn control_group() -> Option<usize> {
        let own = read_to_string("/proc/self/cgroup").ok()?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        let folder = format!("/sys/fs/cgroup{path}");
        let limit: usize = read_to_string(format!("{folder}/memory.max")).ok()?.trim().parse().ok()?;
        let now: usize = read_to_string(format!("{folder}/memory.current")).ok()?.trim().parse().ok()?;
        Some(limit.saturating_sub(now))
    }
}
