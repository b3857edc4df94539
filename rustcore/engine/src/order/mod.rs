//! Orders: which sample stands at which position of an epoch.
//!
//! Every order is a pure function of (order, number of samples, seed, epoch);
//! `docs/order.md` specifies each of them down to the bit. Two kinds exist:
//! *computed* orders answer any position in O(1) memory (sequential, and stable
//! from 2^20 samples on), *materialized* ones keep one `u32` per sample.

mod error;
mod feistel;
mod shared;
mod stable;
mod stream;
mod table;
mod torch;

use std::fmt;
use std::str::FromStr;

use crate::cancel::Cancel;
use feistel::Feistel;
use table::Table;

pub use error::PlanError;
pub(crate) use error::check;
pub(crate) use shared::SharedPermutation;

/// Steps between two looks at the cancellation flag: below 5 ms of work.
pub(crate) const POLL_EVERY: u32 = 65_536;

/// Largest number of samples: indices travel as signed 64-bit integers.
const MAX_SAMPLES: u64 = i64::MAX as u64;

/// How an epoch's order is derived from the seed and the epoch's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// 0, 1, 2, … in every epoch.
    Sequential,
    /// Tundish's own shuffle, frozen for ever.
    Stable,
    /// A `PyTorch` `DataLoader` with `generator=Generator().manual_seed(seed)`
    /// whose earlier passes were read to their end.
    Torch,
    /// A `PyTorch` `DataLoader` without a generator, after `torch.manual_seed(seed)`.
    TorchDefault,
    /// As [`Order::Torch`], with `persistent_workers=True`.
    TorchPersistent,
    /// A `PyTorch` `DistributedSampler` with `set_epoch(epoch)`.
    TorchDistributed,
}

impl Order {
    /// Every order, in the sequence error messages list them.
    pub const ALL: [Self; 6] = [
        Self::Sequential,
        Self::Stable,
        Self::Torch,
        Self::TorchDefault,
        Self::TorchPersistent,
        Self::TorchDistributed,
    ];

    /// The name that users write, e.g. `"torch:default"`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Stable => "stable",
            Self::Torch => "torch",
            Self::TorchDefault => "torch:default",
            Self::TorchPersistent => "torch:persistent",
            Self::TorchDistributed => "torch:distributed",
        }
    }

    /// Name and version, e.g. `"stable/1"`: part of a checkpoint's fingerprint.
    ///
    /// Two builds that print the same text visit the samples in the same order.
    pub fn fingerprint(self) -> String {
        format!("{}/1", self.name())
    }

    /// Tells whether this order keeps one `u32` per sample for `samples` samples.
    pub fn is_materialized(self, samples: u64) -> bool {
        match self {
            Self::Sequential => false,
            Self::Stable => samples < stable::FEISTEL_FROM,
            _ => true,
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Order {
    type Err = PlanError;

    /// Reads an order's name.
    ///
    /// # Errors
    ///
    /// [`PlanError::Invalid`] naming the text and the known orders.
    fn from_str(text: &str) -> Result<Self, PlanError> {
        let known = Self::ALL.iter().find(|order| order.name() == text);
        known.copied().ok_or_else(|| {
            let names = Self::ALL.map(|order| format!("\"{order}\"")).join(", ");
            PlanError::invalid("order", &format!("{text:?}"), format!("unknown order; use one of {names}"))
        })
    }
}

/// One epoch's order: a bijection from positions to sample indices.
///
/// Immutable once built; may be read from any number of threads.
#[derive(Debug)]
pub struct Permutation {
    samples: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Identity,
    Table(Table),
    Feistel(Feistel),
}

impl Permutation {
    /// Computes the order of one epoch.
    ///
    /// Costs O(1) time and memory for computed orders. Materialized ones take
    /// 4 bytes per sample and O(samples) time; the torch orders also walk over
    /// the draws of earlier epochs (about 1 ns each), unless an epoch of the
    /// same seed was built shortly before. Blocks the calling thread.
    ///
    /// # Errors
    ///
    /// [`PlanError::Invalid`] if `samples` exceeds what the order can hold, if
    /// `epoch` is beyond the generator's 64-bit position, or if the table's
    /// memory is refused; [`PlanError::Cancelled`] within a few milliseconds of
    /// `cancel` being raised.
    pub fn build(
        order: Order,
        samples: u64,
        seed: u64,
        epoch: u64,
        cancel: &Cancel,
    ) -> Result<Self, PlanError> {
        check(cancel)?;
        check_samples(order, samples)?;
        let kind = match order {
            Order::Sequential => Kind::Identity,
            Order::Stable if !order.is_materialized(samples) => {
                Kind::Feistel(stable::feistel(samples, seed, epoch))
            }
            Order::Stable => Kind::Table(stable::table(samples as u32, seed, epoch, cancel)?),
            _ => Kind::Table(torch::table(order, samples as u32, seed, epoch, cancel)?),
        };
        Ok(Self { samples, kind })
    }

    /// The number of samples, and of positions.
    pub fn len(&self) -> u64 {
        self.samples
    }

    /// Tells whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// The index of the sample at `position`, or `None` past the end.
    pub fn get(&self, position: u64) -> Option<u64> {
        if position >= self.samples {
            return None;
        }
        Some(match &self.kind {
            Kind::Identity => position,
            Kind::Table(table) => u64::from(table[position as usize]),
            Kind::Feistel(feistel) => feistel.get(position),
        })
    }

    /// Bytes of memory that grow with the number of samples.
    pub fn table_bytes(&self) -> usize {
        match &self.kind {
            Kind::Table(table) => table.bytes(),
            Kind::Identity | Kind::Feistel(_) => 0,
        }
    }
}

/// Refuses a number of samples that `order` cannot hold.
pub(crate) fn check_samples(order: Order, samples: u64) -> Result<(), PlanError> {
    if samples > MAX_SAMPLES {
        return Err(PlanError::invalid("samples", &samples, "a dataset holds at most 2**63 - 1 samples"));
    }
    if order.is_materialized(samples) && samples > u64::from(u32::MAX) {
        return Err(PlanError::invalid(
            "samples",
            &samples,
            format!("order \"{order}\" holds at most 2**32 - 1 samples; use order=\"stable\""),
        ));
    }
    Ok(())
}
