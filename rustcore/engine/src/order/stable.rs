//! The `stable` order: Tundish's own shuffle, frozen for ever.
//!
//! Nothing here may change: checkpoints name this order as `stable/1`. A better
//! shuffle would be a new order with a new name and a new tag.

use std::ops::Range;

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

use super::PlanError;
use super::feistel::{Feistel, KEYS};
use super::table::Table;
use crate::cancel::Cancel;

/// From this many samples on, positions are computed instead of stored.
pub(super) const FEISTEL_FROM: u64 = 1 << 20;

/// The last 16 bytes of the key, after seed and epoch.
const TAG: [u8; 16] = *b"tundish order 1\0";

/// The `ChaCha8` keystream for one epoch and purpose: block counter and nonce start at zero.
pub(super) fn keystream(seed: u64, epoch: u64, tag: [u8; 16]) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&epoch.to_le_bytes());
    key[16..].copy_from_slice(&tag);
    ChaCha8Rng::from_seed(key)
}

/// The keystream of one of an epoch's permutations; pass 0 is the plain order.
fn words_of(seed: u64, epoch: u64, pass: u64) -> ChaCha8Rng {
    let mut words = keystream(seed, epoch, TAG);
    if pass > 0 {
        words.set_stream(pass);
    }
    words
}

/// The next two words of a keystream, the low half first.
pub(super) fn next_u64(words: &mut ChaCha8Rng) -> u64 {
    let low = u64::from(words.next_u32());
    low | (u64::from(words.next_u32()) << 32)
}

/// The permutation for [`FEISTEL_FROM`] samples or more.
pub(super) fn feistel(samples: u64, seed: u64, epoch: u64, pass: u64) -> Feistel {
    let mut words = words_of(seed, epoch, pass);
    let keys: [u64; KEYS] = std::array::from_fn(|_| next_u64(&mut words));
    Feistel::new(samples, keys)
}

/// The permutation for fewer samples; if `num_samples` is not `samples`, the first
/// entries of it, or one permutation after the other.
pub(super) fn table(
    samples: u32,
    num_samples: u64,
    seed: u64,
    epoch: u64,
    cancel: &Cancel,
) -> Result<Table, PlanError> {
    let shuffle = |table, pass, entries| shuffle(table, entries, words_of(seed, epoch, pass), cancel);
    Table::of_passes(samples, num_samples, shuffle, cancel)
}

/// A forward Fisher–Yates shuffle of some of the entries.
fn shuffle(
    table: Table,
    entries: Range<u32>,
    mut words: ChaCha8Rng,
    cancel: &Cancel,
) -> Result<Table, PlanError> {
    let stop = entries.end;
    let but_one = entries.start..stop.saturating_sub(1);
    table.swap_each(but_one, |i| i + below(stop - i, &mut words), cancel)
}

/// An unbiased number below `range` (at least 1) by Lemire's method.
fn below(range: u32, words: &mut ChaCha8Rng) -> u32 {
    let mut product = u64::from(words.next_u32()) * u64::from(range);
    if (product as u32) < range {
        let threshold = range.wrapping_neg() % range;
        while (product as u32) < threshold {
            product = u64::from(words.next_u32()) * u64::from(range);
        }
    }
    (product >> 32) as u32
}
