//! What an arena holds, and what it has room for: the accounting, under the arena's lock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::memory;
use crate::segment::{Segment, Slot};

pub(crate) const PAGE: usize = 4096;
/// Segments aim at this size, and at an eighth of the limit, so that memory can go from one
/// size of batches to another.
const SEGMENT_BYTES: u64 = 64 << 20;
const SEGMENTS: u64 = 8;
const MOST_SLOTS: u64 = 256;
/// Slots may be so many times larger than the batch in them.
const WASTE: u64 = 4;
/// How long a machine that had nothing left is not asked again, and for how long room is kept
/// for batches of a size that found none.
const SHORT: Duration = Duration::from_secs(1);
/// Of the limit, what all runs together may have ahead whatever others hold.
const PARTS: u64 = 8;
/// Of batches whose size nobody knows, so many would fill the limit; half of it is for them.
const UNKNOWN: u64 = 16;

/// The memory of an arena, in bytes.
#[derive(Debug, Default)]
pub(crate) struct Room {
    limit: u64,
    pub(crate) segments: BTreeMap<u32, Segment>,
    next_segment: u32,
    pub(crate) mapped: u64,
    pub(crate) lent: u64,
    pub(crate) heap: u64,
    pub(crate) reserved: u64,
    pub(crate) peak: u64,
    /// Segments that nobody has any more, to be unmapped when the lock is free.
    pub(crate) gone: Vec<Segment>,
    /// The size of batches for which another size has to make room, and since when.
    wish: Option<(u64, Instant)>,
    /// When the machine had nothing left for a segment that was to be added.
    short: Option<Instant>,
    /// Runs that have a part.
    pub(crate) runs: u64,
    /// Whether a claim was refused since memory was last given back.
    pub(crate) refused: bool,
}

/// Whether a slot is large enough for a batch, and not by far too large.
pub(crate) fn fits(slot: u64, bytes: u64) -> bool {
    (bytes..=(bytes * WASTE).max(PAGE as u64)).contains(&slot)
}

/// Whether slots for the one may do for the other.
fn are_alike(one: u64, other: u64) -> bool {
    one <= other * WASTE && other <= one * WASTE
}

/// So many bytes in whole pages, of which there is at least one.
fn pages(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(PAGE as u64)
}

/// The size of slots for batches of `bytes`: somewhat larger, so that a larger batch fits as
/// well, if there is room for that. `None` if there is no room.
fn slot_bytes(bytes: u64, room: u64) -> Option<u64> {
    let sizes = [bytes + bytes / 8, bytes].into_iter().map(pages);
    sizes.into_iter().find(|&bytes| bytes <= room)
}

impl Room {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Bytes that batches take.
    pub(crate) fn busy(&self) -> u64 {
        self.lent + self.heap + self.reserved
    }

    /// Whether a batch that nobody needs next may be begun, of a run that has `ahead` bytes of
    /// such batches: within half of the limit, or within the run's own part.
    pub(crate) fn may_run_ahead(&self, bytes: Option<u64>, ahead: u64) -> bool {
        let part = self.limit / PARTS / self.runs.max(1);
        self.busy() + bytes.unwrap_or(0) <= self.limit / 2
            || bytes.is_some_and(|bytes| ahead.saturating_add(bytes) <= part)
    }

    /// Bytes that may still be added.
    fn room(&self) -> u64 {
        self.limit.saturating_sub(self.mapped + self.heap + self.reserved)
    }

    /// Bytes that may be added for batches of this size.
    fn room_for(&self, bytes: u64) -> u64 {
        match self.wish {
            Some((wish, since)) if !are_alike(wish, bytes) && since.elapsed() < SHORT => {
                self.room().saturating_sub(pages(wish))
            }
            _ => self.room(),
        }
    }

    /// What is to be set aside for a batch that has no slot yet; `None` if that is not to be
    /// had.
    pub(crate) fn cost(&mut self, bytes: Option<u64>) -> Option<u64> {
        let Some(bytes) = bytes else {
            let cost = self.limit / UNKNOWN;
            return (self.room() >= cost + self.limit / 2).then_some(cost);
        };
        if self.short.is_some_and(|since| since.elapsed() < SHORT) {
            return None;
        }
        if slot_bytes(bytes, self.room_for(bytes)).is_none() {
            self.make_room(bytes);
        }
        slot_bytes(bytes, self.room_for(bytes))
    }

    /// To be called when something was added.
    pub(crate) fn note_peak(&mut self) {
        self.peak = self.peak.max(self.mapped + self.heap);
    }

    /// Takes a segment out.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(segment) = self.segments.remove(&number) {
            self.mapped -= segment.bytes() as u64;
            self.gone.push(segment);
        }
    }

    /// Takes out the retired segments that nobody else has ever seen.
    pub(crate) fn sweep(&mut self) {
        let over = self.segments.iter().filter(|(_, segment)| segment.is_over() && !segment.shown);
        for number in over.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.remove(number);
        }
    }

    /// Takes the free slot that wastes least.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<Slot> {
        let segments = self.segments.iter_mut();
        let (number, segment) = segments
            .filter(|(_, s)| !s.retired && !s.free.is_empty() && fits(s.slot_bytes as u64, bytes))
            .min_by_key(|(_, segment)| segment.slot_bytes)?;
        let slot = segment.take(*number)?;
        self.lent += segment.slot_bytes as u64;
        Some(slot)
    }

    /// Adds a segment for batches of `bytes` and takes a slot of it.
    pub(crate) fn grow(&mut self, bytes: u64) -> Option<Slot> {
        if slot_bytes(bytes, self.room_for(bytes)).is_none() {
            self.make_room(bytes);
        }
        let size = slot_bytes(bytes, self.room_for(bytes))?;
        let room = self.room_for(bytes).min(memory::available() as u64);
        self.short = (room < size).then(Instant::now);
        if self.short.is_some() {
            return None;
        }
        let aim = (self.limit / SEGMENTS).min(SEGMENT_BYTES);
        let slots = (aim / size).clamp(1, MOST_SLOTS).min(room / size);
        // A refusal here (no file descriptor, say) means the heap, not an error.
        let segment = Segment::new(size as usize, slots as usize).ok()?;
        self.mapped += segment.bytes() as u64;
        self.note_peak();
        self.wish = self.wish.filter(|(wish, _)| !are_alike(*wish, bytes));
        self.segments.insert(self.next_segment, segment);
        self.next_segment += 1;
        self.take(bytes)
    }

    /// Retires a segment whose slots are of no use for batches of `bytes`: a free one, or
    /// where those that are of use have less than a quarter of the limit, one of the size
    /// that has the most.
    fn make_room(&mut self, bytes: u64) {
        let wanted = pages(bytes);
        let leaving: u64 = self.segments.values().filter(|s| s.retired).map(|s| s.bytes() as u64).sum();
        if self.room() + leaving >= wanted {
            return;
        }
        let is_misfit = |segment: &Segment| !segment.retired && !fits(segment.slot_bytes as u64, bytes);
        let mut missing = wanted - self.room() - leaving;
        for segment in self.segments.values_mut().rev() {
            if is_misfit(segment) && segment.all_free() {
                segment.retired = true;
                missing = missing.saturating_sub(segment.bytes() as u64);
                if missing == 0 {
                    break;
                }
            }
        }
        self.sweep();
        if missing > 0 {
            self.take_from_the_largest(bytes, wanted);
        }
    }

    fn take_from_the_largest(&mut self, bytes: u64, wanted: u64) {
        let mut sizes: BTreeMap<usize, u64> = BTreeMap::new();
        let mut own = 0;
        for segment in self.segments.values().filter(|segment| !segment.retired) {
            if fits(segment.slot_bytes as u64, bytes) {
                own += segment.bytes() as u64;
            } else {
                *sizes.entry(segment.slot_bytes).or_default() += segment.bytes() as u64;
            }
        }
        let Some((size, most)) = sizes.into_iter().max_by_key(|(_, bytes)| *bytes) else { return };
        if (own > 0 && own + wanted > self.limit / 4) || most < own + 2 * wanted {
            return;
        }
        let segments = self.segments.values_mut();
        let same = segments.filter(|segment| !segment.retired && segment.slot_bytes == size);
        if let Some(segment) = same.max_by_key(|segment| segment.free.len()) {
            segment.retired = true;
            self.wish = Some((bytes, Instant::now()));
        }
    }
}
