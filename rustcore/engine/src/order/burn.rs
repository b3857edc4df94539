//! burn's order: rand's `StdRng`, forked for each epoch, and rand's shuffle.
//!
//! The algorithms are pinned here, as of rand 0.10; the crate itself promises no
//! order across its versions. Tests compare with it.

use chacha20::ChaCha12Rng;
use chacha20::rand_core::{Rng, SeedableRng};

use super::table::Table;
use super::{OrderSpec, PlanError};
use crate::cancel::Cancel;

/// 32-bit words of a generator's key, and what a fork takes from its parent.
const KEY_WORDS: u64 = 8;

/// The order of a loader without workers: each epoch shuffles by a fork of its own.
pub(super) fn table(spec: &OrderSpec, cancel: &Cancel) -> Result<Table, PlanError> {
    let table = Table::identity(spec.samples as u32, cancel)?;
    shuffle(table, 0, spec.samples as u32, fork(seeded(spec.seed), spec.epoch), cancel)
}

/// The order of a loader with workers: one shuffle for ever, cut into a stretch for
/// each worker, and in each epoch a shuffle of every stretch.
///
/// The stretches follow one another as the workers do; burn itself delivers the
/// batches of all workers as they come.
pub(super) fn table_of_workers(workers: u16, spec: &OrderSpec, cancel: &Cancel) -> Result<Table, PlanError> {
    let samples = spec.samples as u32;
    let key = next_key(&mut seeded(spec.seed));
    let whole = fork(ChaCha12Rng::from_seed(key), 0);
    let mut table = shuffle(Table::identity(samples, cancel)?, 0, samples, whole, cancel)?;
    let mut seeds = ChaCha12Rng::from_seed(key);
    for (start, stop) in stretches(spec.samples, u64::from(workers), spec.global_batch) {
        let own = fork(seeded(seeds.next_u64()), spec.epoch);
        table = shuffle(table, start as u32, stop as u32, own, cancel)?;
    }
    Ok(table)
}

/// Where each worker's samples begin and end: whole batches, the first workers get
/// those that are left over, and workers without a batch do not appear.
fn stretches(samples: u64, workers: u64, batch: u64) -> impl Iterator<Item = (u64, u64)> {
    let batches = samples.div_ceil(batch);
    let first = move |worker: u64| (worker * (batches / workers) + worker.min(batches % workers)) * batch;
    (0..workers)
        .map(move |worker| (first(worker), samples.min(first(worker + 1))))
        .filter(|(start, stop)| start < stop)
}

/// rand's `seed_from_u64`: PCG-32 stretches the seed to a key.
fn seeded(mut state: u64) -> ChaCha12Rng {
    let mut key = [0; 32];
    for word in key.as_chunks_mut::<4>().0 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(11_634_580_027_462_260_723);
        let mixed = (((state >> 18) ^ state) >> 27) as u32;
        *word = mixed.rotate_right((state >> 59) as u32).to_le_bytes();
    }
    ChaCha12Rng::from_seed(key)
}

/// The generator that `parent`, which has drawn nothing, gives at its fork number `fork`.
fn fork(mut parent: ChaCha12Rng, fork: u64) -> ChaCha12Rng {
    parent.set_word_pos(u128::from(fork) * u128::from(KEY_WORDS));
    ChaCha12Rng::from_seed(next_key(&mut parent))
}

/// The next words of a generator as the key of another.
fn next_key(parent: &mut ChaCha12Rng) -> [u8; 32] {
    let mut key = [0; 32];
    key.as_chunks_mut::<4>().0.iter_mut().for_each(|word| *word = parent.next_u32().to_le_bytes());
    key
}

/// Shuffles the entries `start..stop` as rand's `SliceRandom::shuffle` does.
fn shuffle(
    table: Table,
    start: u32,
    stop: u32,
    words: ChaCha12Rng,
    cancel: &Cancel,
) -> Result<Table, PlanError> {
    let mut places = Increasing { words, chunk: 0, left: 1 };
    table.swap_each(start..stop, |entry| start + places.up_to(entry - start), cancel)
}

/// Numbers from `0..=i` for i = 0, 1, …: several of them share one bounded draw.
struct Increasing {
    words: ChaCha12Rng,
    chunk: u32,
    /// Numbers still in the chunk. The one for i = 0 costs no draw.
    left: u32,
}

impl Increasing {
    /// A number from `0..=last`; to be asked with 0, 1, 2, … in turn.
    fn up_to(&mut self, last: u32) -> u32 {
        let range = last + 1;
        if self.left == 0 {
            let (bound, count) = chunk_of(range);
            (self.chunk, self.left) = (below(bound, &mut self.words), count);
        }
        self.left -= 1;
        if self.left == 0 {
            return self.chunk;
        }
        let place = self.chunk % range;
        self.chunk /= range;
        place
    }
}

/// The largest product `first · (first + 1) · …` below 2^32, and of how many factors.
fn chunk_of(first: u32) -> (u32, u32) {
    let (mut bound, mut count) = (first, 1);
    while let Some(product) = first.checked_add(count).and_then(|next| bound.checked_mul(next)) {
        (bound, count) = (product, count + 1);
    }
    (bound, count)
}

/// rand's bounded draw: a wide product, refined once where it would be too biased.
fn below(bound: u32, words: &mut ChaCha12Rng) -> u32 {
    let wide = u64::from(words.next_u32()) * u64::from(bound);
    let (high, low) = ((wide >> 32) as u32, wide as u32);
    if low <= bound.wrapping_neg() {
        return high;
    }
    let next = (u64::from(words.next_u32()) * u64::from(bound)) >> 32;
    high + u32::from(low.checked_add(next as u32).is_none())
}
