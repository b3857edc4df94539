//! A materialized permutation under construction: one `u32` per sample.

use std::hint::black_box;
use std::ops::Deref;
use std::thread;

use super::{POLL_EVERY, PlanError, check};
use crate::cancel::Cancel;

/// Swaps that are decided before the first of them is made.
const BLOCK: u32 = 128;

/// Entries from which giving the memory back takes long enough to be noticed
/// (about 90 µs per MB): 64 MB.
const LARGE: usize = 1 << 24;

/// The entries of a permutation.
///
/// Dropping a large one gives the memory back on a thread of its own, so that
/// neither a cancelled build nor the end of an epoch stalls whoever drops it.
#[derive(Debug, Default)]
pub(super) struct Table(Vec<u32>);

impl Table {
    /// An empty table with room for `samples` entries.
    pub(super) fn with_room(samples: u32) -> Result<Self, PlanError> {
        let mut entries = Vec::new();
        if entries.try_reserve_exact(samples as usize).is_err() {
            let reason = format!(
                "no memory for the order's table of {} bytes; use order=\"stable\", which needs none",
                u64::from(samples) * 4
            );
            return Err(PlanError::invalid("samples", &samples, reason));
        }
        Ok(Self(entries))
    }

    /// The table 0, 1, … `samples` - 1.
    pub(super) fn identity(samples: u32, cancel: &Cancel) -> Result<Self, PlanError> {
        let mut table = Self::with_room(samples)?;
        let mut start = 0;
        while start < samples {
            check(cancel)?;
            let stop = samples.min(start.saturating_add(POLL_EVERY));
            table.0.extend(start..stop);
            start = stop;
        }
        Ok(table)
    }

    /// Shuffles forward: entry i, from the first to the last but one, is swapped
    /// with entry i + `draw(entries - i)`; `draw(range)` must be below `range`.
    ///
    /// Draws are taken in blocks and the entries they name are read together
    /// before the swaps: the reads overlap in memory, where one at a time each
    /// would wait for the one before it.
    pub(super) fn shuffle(
        mut self,
        mut draw: impl FnMut(u32) -> u32,
        cancel: &Cancel,
    ) -> Result<Self, PlanError> {
        let samples = self.0.len() as u32;
        let steps = samples.saturating_sub(1);
        let mut targets = [0; BLOCK as usize];
        let mut start = 0;
        while start < steps {
            if start % POLL_EVERY == 0 {
                check(cancel)?;
            }
            let stop = steps.min(start.saturating_add(BLOCK));
            let targets = &mut targets[..(stop - start) as usize];
            for (i, target) in (start..stop).zip(targets.iter_mut()) {
                *target = i + draw(samples - i);
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

    /// Puts the next sample number at `place` and the entry found there last.
    ///
    /// `place` must not exceed the present length.
    pub(super) fn insert_inside_out(&mut self, place: usize) {
        let next = self.0.len() as u32;
        self.0.push(next);
        let last = next as usize;
        self.0[last] = self.0[place];
        self.0[place] = next;
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<u32>()
    }
}

impl Deref for Table {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.0
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if self.0.capacity() < LARGE {
            return;
        }
        let entries = std::mem::take(&mut self.0);
        // Without a thread to spare the closure, and the memory, go right here.
        let freeing = thread::Builder::new().name("tundish-free".into());
        drop(freeing.spawn(move || drop(entries)));
    }
}
