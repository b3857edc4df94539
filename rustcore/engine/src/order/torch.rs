//! The orders of `PyTorch`'s `DataLoader` and `DistributedSampler`, bit for bit.
//!
//! Checked against vectors that torch 2.13 itself produced.

use super::stream::Stream;
use super::table::Table;
use super::{Order, POLL_EVERY, PlanError, check};
use crate::cancel::Cancel;

/// From this many samples on, `torch.randperm` draws 64 bits a step and shuffles
/// inside out: (2^32 - 1) / 20.
pub(super) const WIDE_FROM: u32 = 214_748_364;

/// Draws of one `base_seed`, or of a private generator's seed: one 64-bit number.
const SEED_DRAWS: u64 = 2;

/// The permutation of `order`, one of the torch orders, for one epoch.
pub(super) fn table(
    order: Order,
    samples: u32,
    seed: u64,
    epoch: u64,
    cancel: &Cancel,
) -> Result<Table, PlanError> {
    match order {
        Order::TorchDistributed => randperm(samples, &mut Stream::new(seed.wrapping_add(epoch)), cancel),
        Order::TorchDefault => {
            // An epoch draws base_seed and the sampler's seed from the default
            // generator, then shuffles with a private one.
            let start = position(epoch, 2 * SEED_DRAWS, SEED_DRAWS)?;
            let private = Stream::at(seed, start, cancel)?.next_u64();
            randperm(samples, &mut Stream::new(private), cancel)
        }
        _ => {
            // A pass shuffles twice: the sampler throws the second one away.
            let shuffles = 2 * randperm_draws(samples);
            let every_epoch = match order {
                Order::TorchPersistent => shuffles,
                _ => SEED_DRAWS + shuffles,
            };
            let start = position(epoch, every_epoch, SEED_DRAWS)?;
            let mut stream = Stream::at(seed, start, cancel)?;
            let table = randperm(samples, &mut stream, cancel)?;
            stream.remember();
            Ok(table)
        }
    }
}

/// `torch.randperm(samples, generator=stream)`.
fn randperm(samples: u32, stream: &mut Stream, cancel: &Cancel) -> Result<Table, PlanError> {
    if samples < WIDE_FROM { forward(samples, stream, cancel) } else { inside_out(samples, stream, cancel) }
}

/// The number of 32-bit draws that [`randperm`] takes.
fn randperm_draws(samples: u32) -> u64 {
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

/// Forward Fisher–Yates, one 32-bit draw a step, biased by `%` as torch's is.
fn forward(samples: u32, stream: &mut Stream, cancel: &Cancel) -> Result<Table, PlanError> {
    Table::identity(samples, cancel)?.shuffle(|range| stream.next_u32() % range, cancel)
}

/// Inside-out Fisher–Yates, one 64-bit draw a step.
fn inside_out(samples: u32, stream: &mut Stream, cancel: &Cancel) -> Result<Table, PlanError> {
    let mut table = Table::with_room(samples)?;
    for i in 0..samples {
        if i % POLL_EVERY == 0 {
            check(cancel)?;
        }
        let place = stream.next_u64() % (u64::from(i) + 1);
        table.insert_inside_out(place as usize);
    }
    Ok(table)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]
mod tests {
    use super::*;

    #[test]
    fn the_wide_shuffle_equals_the_reference() {
        let row = |samples| inside_out(samples, &mut Stream::new(7), &Cancel::new()).unwrap();
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
            forward(samples, &mut stream, &Cancel::new()).unwrap();
            assert_eq!(stream.position(), randperm_draws(samples));
        }
        let mut stream = Stream::new(7);
        inside_out(1000, &mut stream, &Cancel::new()).unwrap();
        assert_eq!(stream.position(), 2000);
        assert_eq!(randperm_draws(WIDE_FROM - 1), 214_748_362);
        assert_eq!(randperm_draws(WIDE_FROM), 429_496_728);
    }
}
