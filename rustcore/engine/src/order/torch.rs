//! The orders of `PyTorch`'s `DataLoader` and `DistributedSampler`, bit for bit.
//!
//! Checked against vectors that torch 2.13 itself produced.

use std::ops::Range;

use super::stream::Stream;
use super::table::Table;
use super::{Order, OrderSpec, PlanError};
use crate::cancel::Cancel;

/// From this many samples on, `torch.randperm` draws 64 bits a step and shuffles
/// inside out: (2^32 - 1) / 20.
pub(super) const WIDE_FROM: u32 = 214_748_364;

/// Draws of one `base_seed`, or of a private generator's seed: one 64-bit number.
const SEED_DRAWS: u64 = 2;

/// The permutation of one of the torch orders without a sampling.
pub(super) fn table(spec: &OrderSpec, cancel: &Cancel) -> Result<Table, PlanError> {
    let samples = spec.samples as u32;
    if spec.order == Order::TorchDistributed {
        return randperm(samples, &mut Stream::new(spec.seed.wrapping_add(spec.epoch)), cancel);
    }
    permutations(spec, samples, spec.samples, cancel)
}

/// `RandomSampler(replacement=False)`: the first `num_samples` of a permutation, or
/// one permutation after the other.
///
/// A pass that is read to its end makes one permutation more than it needs whole:
/// what is left over of the last one, often all of it, is thrown away.
pub(super) fn permutations(
    spec: &OrderSpec,
    samples: u32,
    num_samples: u64,
    cancel: &Cancel,
) -> Result<Table, PlanError> {
    let made = num_samples.checked_div(u64::from(samples)).unwrap_or(0) + 1;
    let mut stream = of_random_sampler(spec, made.saturating_mul(randperm_draws(samples)), cancel)?;
    let shuffle = |table, _, entries| shuffle(table, entries, &mut stream, cancel);
    let table = Table::of_passes(samples, num_samples, shuffle, cancel)?;
    stream.remember();
    Ok(table)
}

/// The generator of a `RandomSampler` that takes `draws` outputs a pass, at its epoch.
///
/// Without any generator such a sampler seeds a private one in every pass.
pub(super) fn of_random_sampler(spec: &OrderSpec, draws: u64, cancel: &Cancel) -> Result<Stream, PlanError> {
    match spec.order {
        Order::TorchDefault | Order::TorchDefaultPersistent => {
            let private = of_sampler(spec, SEED_DRAWS, cancel)?.next_u64();
            Ok(Stream::new(private))
        }
        _ => of_sampler(spec, draws, cancel),
    }
}

/// The generator that a sampler draws from, at its epoch; `draws` are the sampler's own
/// outputs in a pass.
pub(super) fn of_sampler(spec: &OrderSpec, draws: u64, cancel: &Cancel) -> Result<Stream, PlanError> {
    let (first, every) = base_seeds(spec);
    Stream::at(spec.seed, position(spec.epoch, draws.saturating_add(every), first)?, cancel)
}

/// How much the `DataLoader` draws before the sampler does: before the first pass, and
/// for each pass after it.
fn base_seeds(spec: &OrderSpec) -> (u64, u64) {
    match spec.order {
        Order::Torch if spec.sampling.is_some() => (0, 0),
        Order::TorchPersistent | Order::TorchDefaultPersistent => (SEED_DRAWS, 0),
        _ => (SEED_DRAWS, SEED_DRAWS),
    }
}

/// `torch.randperm(samples, generator=stream)`.
pub(super) fn randperm(samples: u32, stream: &mut Stream, cancel: &Cancel) -> Result<Table, PlanError> {
    shuffle(Table::identity(samples, cancel)?, 0..samples, stream, cancel)
}

/// The number of 32-bit draws that [`randperm`] takes.
pub(super) fn randperm_draws(samples: u32) -> u64 {
    if samples < WIDE_FROM { u64::from(samples.saturating_sub(1)) } else { 2 * u64::from(samples) }
}

/// The generator's position `offset` draws into an epoch.
fn position(epoch: u64, every_epoch: u64, offset: u64) -> Result<u64, PlanError> {
    let start = epoch.checked_mul(every_epoch);
    let start = start.and_then(|draws| draws.checked_add(offset));
    start.ok_or_else(|| {
        let reason = format!(
            "the generator would have to make more than 2**64 draws ({every_epoch} an epoch); use order=\"stable\""
        );
        PlanError::invalid("epoch", &epoch, reason)
    })
}

/// Shuffles some of the entries, which are 0, 1, … still, as `torch.randperm` does.
fn shuffle(
    table: Table,
    entries: Range<u32>,
    stream: &mut Stream,
    cancel: &Cancel,
) -> Result<Table, PlanError> {
    if entries.end - entries.start < WIDE_FROM {
        forward(table, entries, stream, cancel)
    } else {
        inside_out(table, entries, stream, cancel)
    }
}

/// Forward Fisher–Yates, one 32-bit draw a step, biased by `%` as torch's is.
fn forward(
    table: Table,
    entries: Range<u32>,
    stream: &mut Stream,
    cancel: &Cancel,
) -> Result<Table, PlanError> {
    let stop = entries.end;
    let but_one = entries.start..stop.saturating_sub(1);
    table.swap_each(but_one, |i| i + stream.next_u32() % (stop - i), cancel)
}

/// Inside-out Fisher–Yates, one 64-bit draw a step.
fn inside_out(
    table: Table,
    entries: Range<u32>,
    stream: &mut Stream,
    cancel: &Cancel,
) -> Result<Table, PlanError> {
    let start = entries.start;
    let place = |i| start + (stream.next_u64() % (u64::from(i - start) + 1)) as u32;
    table.swap_each(entries, place, cancel)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]
mod tests {
    use super::*;

    fn identity(samples: u32) -> Table {
        Table::identity(samples, &Cancel::new()).unwrap()
    }

    #[test]
    fn the_wide_shuffle_equals_the_reference() {
        let row =
            |samples| inside_out(identity(samples), 0..samples, &mut Stream::new(7), &Cancel::new()).unwrap();
        assert_eq!(row(0)[..], []);
        assert_eq!(row(1)[..], [0]);
        assert_eq!(row(10)[..], [1, 8, 7, 3, 4, 5, 9, 6, 2, 0]);
        // The checksum that docs/order.md gives for the border of the two shuffles.
        let sum = row(1000).iter().zip(0_u64..).fold(0_u64, |sum, (&index, place)| {
            let weight = place.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            sum.wrapping_add((u64::from(index) + 1).wrapping_mul(weight))
        });
        assert_eq!(sum, 6_764_939_533_150_096_728);
    }

    #[test]
    fn draws_are_counted_as_they_are_made() {
        for samples in [0, 1, 2, 1000] {
            let mut stream = Stream::new(7);
            forward(identity(samples), 0..samples, &mut stream, &Cancel::new()).unwrap();
            assert_eq!(stream.position(), randperm_draws(samples));
        }
        let mut stream = Stream::new(7);
        inside_out(identity(1000), 0..1000, &mut stream, &Cancel::new()).unwrap();
        assert_eq!(stream.position(), 2000);
        assert_eq!(randperm_draws(WIDE_FROM - 1), 214_748_362);
        assert_eq!(randperm_draws(WIDE_FROM), 429_496_728);
    }
}
