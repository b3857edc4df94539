//! The orders by name.

use std::fmt;
use std::str::FromStr;

use super::{PlanError, stable};

/// What stands before the number of workers in the name of that order.
const BURN_WORKERS: &str = "burn:workers=";

/// Most workers that `burn:workers=N` takes.
const MOST_WORKERS: u16 = 1024;

/// How an epoch's order is derived from the seed and the epoch's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// 0, 1, 2, … in every epoch.
    Sequential,
    /// Tundish's own shuffle, frozen for ever.
    Stable,
    /// A `PyTorch` `DataLoader` with `generator=Generator().manual_seed(seed)`
    /// whose earlier passes were read to their end. With a [`Sampling`](super::Sampling):
    /// only the sampler has that generator.
    Torch,
    /// As [`Order::Torch`] without a sampling: the sampler and the `DataLoader` were
    /// given the same generator. For samplings only.
    TorchShared,
    /// As [`Order::TorchShared`], with `persistent_workers=True`.
    TorchPersistent,
    /// A `PyTorch` `DataLoader` without a generator, after `torch.manual_seed(seed)`.
    TorchDefault,
    /// As [`Order::TorchDefault`], with `persistent_workers=True`.
    TorchDefaultPersistent,
    /// A `PyTorch` `DistributedSampler` with `set_epoch(epoch)`.
    TorchDistributed,
    /// A burn `DataLoader` with `shuffle(seed)` and no workers.
    Burn,
    /// A burn `DataLoader` with `shuffle(seed)` and 1 to 1024 workers, the batches of
    /// the first worker before those of the second, and so on.
    BurnWorkers(u16),
    /// The `PyDataloader` of dataloader-rs with `shuffle=True, seed=seed`.
    DataloaderRs,
}

impl Order {
    /// Every order that needs no sampling, in the sequence error messages list them;
    /// burn's with two workers stands for any number of them.
    pub const ALL: [Self; 10] = [
        Self::Sequential,
        Self::Stable,
        Self::Torch,
        Self::TorchPersistent,
        Self::TorchDefault,
        Self::TorchDefaultPersistent,
        Self::TorchDistributed,
        Self::Burn,
        Self::BurnWorkers(2),
        Self::DataloaderRs,
    ];

    /// Every order that a [`Sampling`](super::Sampling) may have.
    pub const OF_SAMPLINGS: [Self; 6] = [
        Self::Stable,
        Self::Torch,
        Self::TorchShared,
        Self::TorchPersistent,
        Self::TorchDefault,
        Self::TorchDefaultPersistent,
    ];

    /// Name and version, e.g. `"stable/1"`: part of a checkpoint's fingerprint.
    ///
    /// Two builds that print the same text visit the samples in the same order.
    pub fn fingerprint(self) -> String {
        format!("{self}/1")
    }

    /// Tells whether this order keeps one `u32` per sample for `samples` samples.
    pub fn is_materialized(self, samples: u64) -> bool {
        match self {
            Self::Sequential => false,
            Self::Stable => samples < stable::FEISTEL_FROM,
            _ => true,
        }
    }

    /// The most samples that a table of this order holds.
    pub(crate) fn most_in_table(self) -> u64 {
        match self {
            // From here on rand shuffles in another way.
            Self::Burn | Self::BurnWorkers(_) => u64::from(u32::MAX) - 1,
            _ => u64::from(u32::MAX),
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sequential => "sequential",
            Self::Stable => "stable",
            Self::Torch => "torch",
            Self::TorchShared => "torch:shared",
            Self::TorchPersistent => "torch:persistent",
            Self::TorchDefault => "torch:default",
            Self::TorchDefaultPersistent => "torch:default:persistent",
            Self::TorchDistributed => "torch:distributed",
            Self::Burn => "burn",
            Self::BurnWorkers(workers) => return write!(f, "{BURN_WORKERS}{workers}"),
            Self::DataloaderRs => "dataloader-rs",
        })
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
        if let Some(workers) = text.strip_prefix(BURN_WORKERS) {
            return read_workers(workers).map(Self::BurnWorkers).ok_or_else(|| {
                let reason = format!("burn's workers are a number from 1 to {MOST_WORKERS}");
                PlanError::invalid("order", &format!("{text:?}"), reason)
            });
        }
        let known = Self::ALL.into_iter().chain(Self::OF_SAMPLINGS).find(|order| order.to_string() == text);
        known.ok_or_else(|| {
            let reason = format!("unknown order; use one of {}", listed(&Self::ALL));
            PlanError::invalid("order", &format!("{text:?}"), reason)
        })
    }
}

/// The number of workers, if written as it is printed.
fn read_workers(text: &str) -> Option<u16> {
    let workers = text.parse().ok()?;
    ((1..=MOST_WORKERS).contains(&workers) && workers.to_string() == text).then_some(workers)
}

/// The names of orders as an error message lists them.
pub(super) fn listed(orders: &[Order]) -> String {
    let name = |order: &Order| match order {
        Order::BurnWorkers(_) => format!("\"{BURN_WORKERS}N\""),
        other => format!("\"{other}\""),
    };
    orders.iter().map(name).collect::<Vec<_>>().join(", ")
}
