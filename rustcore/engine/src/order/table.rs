//! A materialized order under construction: one entry per position.

use std::hint::black_box;
use std::ops::{Deref, Range};
use std::thread;

use super::{POLL_EVERY, PlanError, check};
use crate::cancel::Cancel;

/// Swaps that are decided before the first of them is made.
const BLOCK: u32 = 128;

/// Entries that are computed without a look at the cancellation flag: one may take a
/// microsecond.
const FILLED_AT_ONCE: u64 = 1 << 14;

/// Bytes from which giving the memory back takes long enough to be noticed
/// (about 90 µs per MB): 64 MiB.
const LARGE: usize = 1 << 26;

/// The entries of an order: `u32` where sample indices fit.
///
/// Dropping a large one gives the memory back on a thread of its own, so that
/// neither a cancelled build nor the end of an epoch stalls whoever drops it.
#[derive(Debug)]
pub(super) struct Table<T: Send + 'static = u32>(Vec<T>);

impl<T: Send + 'static> Table<T> {
    /// An empty table with room for `entries`; `argument` says how many there are.
    pub(super) fn with_room(argument: &'static str, entries: u64) -> Result<Self, PlanError> {
        let mut table = Vec::new();
        if table.try_reserve_exact(entries as usize).is_err() {
            let reason = format!(
                "no memory for the order's table of {} bytes; use fewer samples, or order=\"stable\", \
                 which keeps no table of many samples",
                entries.saturating_mul(size_of::<T>() as u64)
            );
            return Err(PlanError::invalid(argument, &entries, reason));
        }
        Ok(Self(table))
    }

    /// Appends `entries` of what `next` gives; there must be room for them.
    pub(super) fn fill(
        &mut self,
        entries: u64,
        mut next: impl FnMut() -> T,
        cancel: &Cancel,
    ) -> Result<(), PlanError> {
        let stop = self.0.len() as u64 + entries;
        while (self.0.len() as u64) < stop {
            check(cancel)?;
            let count = (stop - self.0.len() as u64).min(FILLED_AT_ONCE);
            self.0.extend((0..count).map(|_| next()));
        }
        Ok(())
    }

    /// Keeps the first `entries` and gives the memory of the others back.
    pub(super) fn cut(mut self, entries: u64) -> Self {
        self.0.truncate(entries as usize);
        self.0.shrink_to_fit();
        self
    }

    /// The entries there are, to be rearranged.
    pub(super) fn entries(&mut self) -> &mut [T] {
        &mut self.0
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<T>()
    }
}

impl Table {
    /// The table 0, 1, … `samples` - 1.
    pub(super) fn identity(samples: u32, cancel: &Cancel) -> Result<Self, PlanError> {
        let mut table = Self::with_room("samples", u64::from(samples))?;
        table.append_identity(samples, cancel)?;
        Ok(table)
    }

    /// Appends 0, 1, … `samples` - 1; there must be room for them.
    fn append_identity(&mut self, samples: u32, cancel: &Cancel) -> Result<(), PlanError> {
        let mut next = 0;
        let count = || {
            next += 1;
            next - 1
        };
        self.fill(u64::from(samples), count, cancel)
    }

    /// Permutation after permutation of `samples` (at least 1), until there are
    /// `num_samples` entries; the last one is made whole and cut.
    ///
    /// `shuffle` is given the table, the number of the permutation and its entries.
    pub(super) fn of_passes(
        samples: u32,
        num_samples: u64,
        mut shuffle: impl FnMut(Self, u64, Range<u32>) -> Result<Self, PlanError>,
        cancel: &Cancel,
    ) -> Result<Self, PlanError> {
        let each = u64::from(samples);
        if num_samples <= each {
            let table = shuffle(Self::identity(samples, cancel)?, 0, 0..samples)?;
            return Ok(table.cut(num_samples));
        }
        let mut table = Self::with_room("num_samples", num_samples)?;
        let whole = num_samples / each;
        for pass in 0..whole {
            let start = table.len() as u32;
            table.append_identity(samples, cancel)?;
            table = shuffle(table, pass, start..start + samples)?;
        }
        let rest = num_samples % each;
        if rest > 0 {
            let last = shuffle(Self::identity(samples, cancel)?, whole, 0..samples)?;
            let mut entries = last.iter().copied();
            table.fill(rest, || entries.next().unwrap_or_default(), cancel)?;
        }
        Ok(table)
    }

    /// Swaps every entry of `entries`, in turn, with the entry that `target` names.
    ///
    /// Targets are taken in blocks and the entries they name are read together
    /// before the swaps: the reads overlap in memory, where one at a time each
    /// would wait for the one before it.
    pub(super) fn swap_each(
        mut self,
        entries: Range<u32>,
        mut target: impl FnMut(u32) -> u32,
        cancel: &Cancel,
    ) -> Result<Self, PlanError> {
        let mut targets = [0; BLOCK as usize];
        let mut start = entries.start;
        while start < entries.end {
            if (start - entries.start).is_multiple_of(POLL_EVERY) {
                check(cancel)?;
            }
            let stop = entries.end.min(start.saturating_add(BLOCK));
            let targets = &mut targets[..(stop - start) as usize];
            for (i, j) in (start..stop).zip(targets.iter_mut()) {
                *j = target(i);
            }
            let seen = targets.iter().fold(0, |seen, &j| seen ^ self.0[j as usize]);
            black_box(seen);
            for (i, &j) in (start..stop).zip(targets.iter()) {
                self.0.swap(i as usize, j as usize);
            }
            start = stop;
        }
        Ok(self)
    }
}

impl<T: Send + 'static> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Send + 'static> Drop for Table<T> {
    fn drop(&mut self) {
        if self.bytes() < LARGE {
            return;
        }
        let entries = std::mem::take(&mut self.0);
        // Without a thread to spare the closure, and the memory, go right here.
        let freeing = thread::Builder::new().name("tundish-free".into());
        drop(freeing.spawn(move || drop(entries)));
    }
}
