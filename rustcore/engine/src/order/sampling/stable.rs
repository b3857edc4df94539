//! The samplers of the `stable` order, frozen as that is.
//!
//! Nothing here may change. There are only the four operations of IEEE 754 on
//! floating-point numbers in here, which give the same bits on every machine; the
//! logarithm of a standard library does not.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::Rng;

use super::super::feistel::Feistel;
use super::super::stable::{FEISTEL_FROM, feistel, keystream, next_u64, table};
use super::super::table::Table;
use super::super::{Kind as Built, OrderSpec, PlanError};
use super::lookup::Lookup;
use super::race::largest;
use super::{Kind, Sampling, for_each_weight};
use crate::cancel::Cancel;

/// The last 16 bytes of the key for samples drawn with replacement.
const REPEAT: [u8; 16] = *b"tundish repeat 1";

/// The same for weighted samples with replacement.
const WEIGHT: [u8; 16] = *b"tundish weight 1";

/// The same for weighted samples without.
const RACE: [u8; 16] = *b"tundish race 1\0\0";

/// Builds what an epoch needs: a table, or what computes positions.
pub(in super::super) fn build(
    sampling: &Sampling,
    spec: &OrderSpec,
    cancel: &Cancel,
) -> Result<Built, PlanError> {
    let OrderSpec { seed, epoch, .. } = *spec;
    match sampling.kind() {
        Kind::Fixed(_) => Ok(Built::Identity),
        Kind::Subset(indices) => permuted(indices.len() as u64, indices.len() as u64, spec, cancel),
        Kind::Random { samples, num_samples, replacement: false } => {
            permuted(*samples, *num_samples, spec, cancel)
        }
        Kind::Random { samples, .. } => {
            Ok(Built::Drawn(Drawn { seed, epoch, chooser: Chooser::Any(*samples) }))
        }
        Kind::Weighted { weights, replacement: true, .. } => {
            Ok(Built::Drawn(Drawn { seed, epoch, chooser: Chooser::Weighted(sums(weights, cancel)?) }))
        }
        Kind::Weighted { weights, num_samples, .. } => {
            let values = ratios(weights, keystream(seed, epoch, RACE), cancel)?;
            largest(&values, *num_samples, cancel).map(Built::Table)
        }
    }
}

/// One permutation after the other, the first being the plain `stable` order.
fn permuted(samples: u64, num_samples: u64, spec: &OrderSpec, cancel: &Cancel) -> Result<Built, PlanError> {
    let OrderSpec { seed, epoch, .. } = *spec;
    if samples < FEISTEL_FROM {
        return table(samples as u32, num_samples, seed, epoch, cancel).map(Built::Table);
    }
    let first = feistel(samples, seed, epoch, 0);
    Ok(if num_samples <= samples {
        Built::Feistel(first)
    } else {
        Built::Passes(Passes { first, samples, seed, epoch })
    })
}

/// Permutation after permutation of many samples, each computed when asked for.
#[derive(Debug)]
pub(in super::super) struct Passes {
    first: Feistel,
    samples: u64,
    seed: u64,
    epoch: u64,
}

impl Passes {
    /// The sample at any position.
    pub(in super::super) fn get(&self, position: u64) -> u64 {
        let (pass, place) = (position / self.samples, position % self.samples);
        if pass == 0 {
            return self.first.get(place);
        }
        feistel(self.samples, self.seed, self.epoch, pass).get(place)
    }
}

/// Draws with replacement: every position has words of its own.
#[derive(Debug)]
pub(in super::super) struct Drawn {
    seed: u64,
    epoch: u64,
    chooser: Chooser,
}

#[derive(Debug)]
enum Chooser {
    /// One of so many samples.
    Any(u64),
    /// One by the running sums of the weights.
    Weighted(Lookup),
}

impl Drawn {
    /// A reader of positions, which is fastest in sequence.
    pub(in super::super) fn words(&self) -> Words {
        let tag = match self.chooser {
            Chooser::Any(_) => REPEAT,
            Chooser::Weighted(_) => WEIGHT,
        };
        Words { generator: keystream(self.seed, self.epoch, tag), next: 0 }
    }

    /// The sample at any position, by a reader of this.
    pub(in super::super) fn get(&self, position: u64, words: &mut Words) -> u64 {
        match &self.chooser {
            Chooser::Any(samples) => {
                words.seek(4 * u128::from(position));
                scaled(words.next_u64(), words.next_u64(), *samples)
            }
            Chooser::Weighted(sums) => {
                words.seek(2 * u128::from(position));
                let drawn = (words.next_u64() >> 11) as f64 * STEP;
                chosen(sums, drawn)
            }
        }
    }

    /// Bytes of memory that grow with the number of samples.
    pub(in super::super) fn bytes(&self) -> usize {
        match &self.chooser {
            Chooser::Any(_) => 0,
            Chooser::Weighted(sums) => sums.bytes(),
        }
    }
}

/// 2^-53, the distance of neighbouring uniform numbers.
const STEP: f64 = 1.0 / (1_u64 << 53) as f64;

/// A 128-bit number, given by its halves, scaled to `0..samples`.
fn scaled(low: u64, high: u64, samples: u64) -> u64 {
    let carry = (u128::from(low) * u128::from(samples)) >> 64;
    ((u128::from(high) * u128::from(samples) + carry) >> 64) as u64
}

/// The first place whose sum is above `drawn` of the last sum.
///
/// Rounding may leave none: then the last place that adds to the sum is meant.
fn chosen(sums: &Lookup, drawn: f64) -> u64 {
    let (total, number) = (sums.total(), drawn * sums.total());
    let place = if number < total {
        sums.leading(number, |sum| sum <= number)
    } else {
        sums.leading(total, |sum| sum < total)
    };
    place as u64
}

/// Running sums of the weights, each divided by the largest.
fn sums(weights: &[f64], cancel: &Cancel) -> Result<Lookup, PlanError> {
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let mut sum = 0.0;
    let add = |weight| {
        sum += weight / largest;
        sum
    };
    Lookup::new(for_each_weight(weights, add, cancel)?, cancel)
}

/// Each weight, divided by the largest and by a waiting time of its own; -1 for a weight of 0.
fn ratios(weights: &[f64], mut words: ChaCha8Rng, cancel: &Cancel) -> Result<Table<f64>, PlanError> {
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let ratio = |weight| {
        let waiting = waiting(next_u64(&mut words) >> 11);
        if weight > 0.0 { (weight / largest) / waiting } else { -1.0 }
    };
    for_each_weight(weights, ratio, cancel)
}

/// ln 2, as near as a double comes to it.
const LN_2: f64 = std::f64::consts::LN_2;

/// Terms of the series below: the first that is left out is below 2^-56.
const TERMS: u32 = 12;

/// An exponentially distributed waiting time: -ln((drawn + 1) / 2^53) for a number of
/// 53 bits.
///
/// drawn + 1 = y · 2^k with y in (0.75, 1.5], and ln y = 2 artanh(s), s = (y - 1) / (y + 1).
fn waiting(drawn: u64) -> f64 {
    let number = drawn + 1;
    let mut k = number.ilog2();
    let mut y = number as f64 / (1_u64 << k) as f64;
    if y > 1.5 {
        (y, k) = (y / 2.0, k + 1);
    }
    let s = (y - 1.0) / (y + 1.0);
    let square = s * s;
    let mut series = 0.0;
    for term in (0..TERMS).rev() {
        series = series * square + 1.0 / f64::from(2 * term + 1);
    }
    f64::from(53 - k) * LN_2 - (2.0 * s) * series
}

/// A keystream that is read at increasing places.
#[derive(Debug)]
pub(in super::super) struct Words {
    generator: ChaCha8Rng,
    next: u128,
}

impl Words {
    /// Goes to word number `word`.
    fn seek(&mut self, word: u128) {
        // The generator makes 64 words at a time.
        match word.checked_sub(self.next) {
            Some(ahead) if ahead < 64 => {
                for _ in 0..ahead {
                    self.generator.next_u32();
                }
            }
            _ => self.generator.set_word_pos(word),
        }
        self.next = word;
    }

    /// The next two words, the low half first.
    fn next_u64(&mut self) -> u64 {
        self.next += 2;
        next_u64(&mut self.generator)
    }
}
