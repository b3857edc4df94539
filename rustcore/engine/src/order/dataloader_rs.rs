//! The order of dataloader-rs: `WyRand`, one generator for the loader's life.
//!
//! As of dataloader-rs 0.2.0 with fastrand 2. Bounded draws may reject, so where an
//! epoch begins is known only after all before it were drawn.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::table::Table;
use super::{OrderSpec, POLL_EVERY, PlanError, check};
use crate::cancel::Cancel;

/// Beginnings of epochs kept in the process, 32 bytes each.
const REMEMBERED: usize = 256;

/// Beginnings of epochs that later ones are likely to be reached from, the latest at
/// the back.
static BEGINNINGS: Mutex<VecDeque<Beginning>> = Mutex::new(VecDeque::new());

/// The generator's state where an epoch of a loader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Beginning {
    seed: u64,
    samples: u32,
    epoch: u64,
    state: u64,
}

/// The order of one epoch.
pub(super) fn table(spec: &OrderSpec, cancel: &Cancel) -> Result<Table, PlanError> {
    let mut beginning = Beginning::recall(spec.seed, spec.samples as u32, spec.epoch);
    let walked = beginning.walk_to(spec.epoch, cancel);
    beginning.remember();
    walked?;
    let mut words = WyRand(beginning.state);
    let table = Table::identity(beginning.samples, cancel)?;
    let table = table.swap_each(0..beginning.samples, |entry| words.up_to(entry), cancel)?;
    if let Some(epoch) = spec.epoch.checked_add(1) {
        Beginning { epoch, state: words.0, ..beginning }.remember();
    }
    Ok(table)
}

impl Beginning {
    /// The last known beginning that is not past `epoch`.
    fn recall(seed: u64, samples: u32, epoch: u64) -> Self {
        let known = BEGINNINGS.lock().unwrap_or_else(PoisonError::into_inner);
        let usable = known.iter().filter(|k| (k.seed, k.samples) == (seed, samples) && k.epoch <= epoch);
        usable.max_by_key(|known| known.epoch).copied().unwrap_or(Self {
            seed,
            samples,
            epoch: 0,
            state: seed,
        })
    }

    /// Keeps a copy for [`Beginning::recall`].
    fn remember(self) {
        let mut known = BEGINNINGS.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|known| *known != self);
        if known.len() >= REMEMBERED {
            known.pop_front();
        }
        known.push_back(self);
    }

    /// Draws the epochs before `epoch`; when cancelled, as many of them as were finished.
    fn walk_to(&mut self, epoch: u64, cancel: &Cancel) -> Result<(), PlanError> {
        let mut until_poll = 0;
        // Without samples nothing is drawn.
        while self.epoch < epoch && self.samples > 0 {
            let mut words = WyRand(self.state);
            for entry in 0..self.samples {
                if until_poll == 0 {
                    check(cancel)?;
                    until_poll = POLL_EVERY;
                }
                until_poll -= 1;
                words.up_to(entry);
            }
            (self.epoch, self.state) = (self.epoch + 1, words.0);
        }
        Ok(())
    }
}

/// fastrand's generator.
struct WyRand(u64);

impl WyRand {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x2d35_8dcc_aa6c_78a5);
        let product = u128::from(self.0) * u128::from(self.0 ^ 0x8bb8_4b93_962e_acc9);
        (product as u64) ^ ((product >> 64) as u64)
    }

    /// An unbiased number from `0..=last` by Lemire's method on 64 bits.
    fn up_to(&mut self, last: u32) -> u32 {
        let range = u64::from(last) + 1;
        let mut product = u128::from(self.next_u64()) * u128::from(range);
        if (product as u64) < range {
            let threshold = range.wrapping_neg() % range;
            while (product as u64) < threshold {
                product = u128::from(self.next_u64()) * u128::from(range);
            }
        }
        (product >> 64) as u32
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]
mod tests {
    use super::*;

    #[test]
    fn draws_that_would_be_biased_are_made_again() {
        // 2^64 mod (2^32 - 1) is 1: the draw 0 is rejected, and no other. The state before
        // it is one step of WyRand's counter below 0.
        let zero = 0_u64.wrapping_sub(0x2d35_8dcc_aa6c_78a5);
        let mut words = WyRand(zero);
        assert_eq!(words.next_u64(), 0);
        let mut rejecting = WyRand(zero);
        let mut accepting = WyRand(zero);
        // 2^64 mod 2^k is 0: nothing is rejected.
        assert_eq!(accepting.up_to((1 << 20) - 1), 0);
        assert_eq!(accepting.0, words.0);
        let number = rejecting.up_to(u32::MAX - 1);
        assert_eq!(rejecting.0, words.0.wrapping_add(0x2d35_8dcc_aa6c_78a5));
        let expected = (u128::from(words.next_u64()) * u128::from(u32::MAX)) >> 64;
        assert_eq!(u128::from(number), expected);
    }

    #[test]
    fn a_cancelled_walk_goes_on_where_it_was() {
        let spec =
            OrderSpec { epoch: 1 << 40, ..OrderSpec::new(super::super::Order::DataloaderRs, 1000, 77, 0) };
        let cancel = Cancel::new();
        let flag = cancel.clone();
        let cancelled = std::thread::spawn(move || table(&spec, &flag).err());
        std::thread::sleep(std::time::Duration::from_millis(100));
        cancel.cancel();
        assert_eq!(cancelled.join().unwrap(), Some(PlanError::Cancelled));
        let reached = Beginning::recall(77, 1000, u64::MAX);
        assert!(reached.epoch > 100, "{reached:?}");
        let mut walked = Beginning { seed: 77, samples: 1000, epoch: 0, state: 77 };
        walked.walk_to(reached.epoch, &Cancel::new()).unwrap();
        assert_eq!(walked, reached);
    }
}
