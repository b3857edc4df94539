//! The `stable` order: Tundish's own shuffle, frozen for ever.
//!
//! Nothing here may change: checkpoints name this order as `stable/1`. A better
//! shuffle would be a new order with a new name and a new tag.

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

/// The `ChaCha8` keystream of one epoch: block counter and nonce start at zero.
fn keystream(seed: u64, epoch: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&epoch.to_le_bytes());
    key[16..].copy_from_slice(&TAG);
    ChaCha8Rng::from_seed(key)
}

/// The permutation for [`FEISTEL_FROM`] samples or more.
pub(super) fn feistel(samples: u64, seed: u64, epoch: u64) -> Feistel {
    let mut words = keystream(seed, epoch);
    let keys: [u64; KEYS] = std::array::from_fn(|_| {
        let low = u64::from(words.next_u32());
        low | (u64::from(words.next_u32()) << 32)
    });
    Feistel::new(samples, keys)
}

/// The permutation for fewer samples: a forward Fisher–Yates shuffle.
pub(super) fn table(samples: u32, seed: u64, epoch: u64, cancel: &Cancel) -> Result<Table, PlanError> {
    let mut words = keystream(seed, epoch);
    Table::identity(samples, cancel)?.shuffle(|range| below(range, &mut words), cancel)
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
