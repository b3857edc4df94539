//! One epoch's order, built.

use std::sync::Arc;

use super::feistel::Feistel;
use super::sampling::stable::{Drawn, Passes, Words};
use super::table::Table;
use super::{MAX_SAMPLES, Order, PlanError, Sampling, burn, check, dataloader_rs, sampling, stable, torch};
use crate::cancel::Cancel;

/// What an epoch's order is a function of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderSpec {
    /// The order.
    pub order: Order,
    /// Number of samples of the dataset; ignored with a sampling, which knows its own.
    pub samples: u64,
    /// The seed; the torch orders use its low 32 bits.
    pub seed: u64,
    /// The epoch's number.
    pub epoch: u64,
    /// Samples in one batch of all ranks together, at least 1. Only `burn:workers=N`
    /// depends on it.
    pub global_batch: u64,
    /// What a sampler draws, if there is one.
    pub sampling: Option<Arc<Sampling>>,
}

impl OrderSpec {
    /// An order without a sampling; `global_batch` is 1.
    pub fn new(order: Order, samples: u64, seed: u64, epoch: u64) -> Self {
        Self { order, samples, seed, epoch, global_batch: 1, sampling: None }
    }

    /// The number of positions of the epoch.
    pub fn positions(&self) -> u64 {
        self.sampling.as_ref().map_or(self.samples, |sampling| sampling.len())
    }

    /// The number of entries that the first use builds; 0 where every position is
    /// computed by itself.
    pub fn entries(&self) -> u64 {
        match &self.sampling {
            Some(sampling) => sampling.entries(self.order).1,
            None if self.order.is_materialized(self.samples) => self.samples,
            None => 0,
        }
    }

    /// Entries built and draws walked over at the first use, at most: see
    /// [`Plan::work`](crate::Plan::work).
    pub(crate) fn work(&self) -> u64 {
        let entries = self.entries();
        let walks = !matches!(
            self.order,
            Order::Sequential | Order::Stable | Order::TorchDistributed | Order::Burn | Order::BurnWorkers(_)
        );
        if walks && entries > 0 { entries.saturating_mul(self.epoch.saturating_add(1)) } else { entries }
    }

    /// Refuses what the order cannot hold.
    pub(crate) fn check(&self) -> Result<(), PlanError> {
        if self.global_batch == 0 {
            return Err(PlanError::invalid("global_batch", &0, "must be at least 1"));
        }
        if let Some(sampling) = &self.sampling {
            return sampling.check(self.order);
        }
        if self.order == Order::TorchShared {
            let reason = "that is for samplers; without one it is called \"torch\"";
            return Err(PlanError::invalid("order", &format!("\"{}\"", self.order), reason));
        }
        check_samples(self.order, self.samples)
    }

    /// The same without what the order does not depend on, for comparison.
    pub(super) fn reduced(mut self) -> Self {
        if let Some(sampling) = &self.sampling {
            self.samples = sampling.len();
        }
        if !matches!(self.order, Order::BurnWorkers(_)) {
            self.global_batch = 1;
        }
        self
    }
}

/// Refuses a number of samples that `order` cannot hold.
fn check_samples(order: Order, samples: u64) -> Result<(), PlanError> {
    if samples > MAX_SAMPLES {
        return Err(PlanError::invalid("samples", &samples, "a dataset holds at most 2**63 - 1 samples"));
    }
    let most = order.most_in_table();
    if order.is_materialized(samples) && samples > most {
        let reason = format!(
            "order \"{order}\" holds at most 2**32 - {} samples; use order=\"stable\"",
            (1 << 32) - most
        );
        return Err(PlanError::invalid("samples", &samples, reason));
    }
    Ok(())
}

/// One epoch's order: from positions to sample indices, a bijection unless a sampling
/// repeats samples or leaves some out.
///
/// Immutable once built; may be read from any number of threads.
#[derive(Debug)]
pub struct Permutation {
    positions: u64,
    kind: Kind,
    /// Its indices stand for the numbers that `kind` gives.
    through: Option<Arc<Sampling>>,
}

/// How a position's number is found.
#[derive(Debug)]
pub(super) enum Kind {
    Identity,
    Table(Table),
    Wide(Table<u64>),
    Feistel(Feistel),
    Passes(Passes),
    Drawn(Drawn),
}

impl Permutation {
    /// Computes the order of one epoch.
    ///
    /// Costs O(1) time and memory for computed orders. Materialized ones take
    /// 4 bytes per sample and O(samples) time; the torch orders and `dataloader-rs` also
    /// walk over the draws of earlier epochs (about 1 ns each), unless an epoch of the
    /// same seed was built shortly before. Blocks the calling thread.
    ///
    /// # Errors
    ///
    /// [`PlanError::Invalid`] if there are more samples than the order can hold, if the
    /// sampling cannot have it, if `epoch` is beyond the generator's 64-bit position, or
    /// if the table's memory is refused; [`PlanError::Cancelled`] within a few
    /// milliseconds of `cancel` being raised.
    pub fn build(spec: &OrderSpec, cancel: &Cancel) -> Result<Self, PlanError> {
        check(cancel)?;
        spec.check()?;
        let kind = match &spec.sampling {
            None => plain(spec, cancel)?,
            Some(sampling) if spec.order == Order::Stable => sampling::stable::build(sampling, spec, cancel)?,
            Some(sampling) => sampling::torch::build(sampling, spec, cancel)?,
        };
        let through = spec.sampling.as_ref().filter(|sampling| sampling.indices().is_some()).cloned();
        Ok(Self { positions: spec.positions(), kind, through })
    }

    /// The number of positions; without a sampling, of samples.
    pub fn len(&self) -> u64 {
        self.positions
    }

    /// Tells whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.positions == 0
    }

    /// The index of the sample at `position`, or `None` past the end.
    pub fn get(&self, position: u64) -> Option<u64> {
        self.reader().get(position)
    }

    /// A reader of many positions, for one thread; fastest if they ascend.
    pub(crate) fn reader(&self) -> Reader<'_> {
        let words = match &self.kind {
            Kind::Drawn(drawn) => Some(drawn.words()),
            _ => None,
        };
        Reader { permutation: self, words }
    }

    /// Bytes of memory that grow with the number of samples; a sampling's own indices are
    /// not counted.
    pub fn table_bytes(&self) -> usize {
        match &self.kind {
            Kind::Table(table) => table.bytes(),
            Kind::Wide(table) => table.bytes(),
            Kind::Drawn(drawn) => drawn.bytes(),
            Kind::Identity | Kind::Feistel(_) | Kind::Passes(_) => 0,
        }
    }
}

/// The order of a dataset without a sampling.
fn plain(spec: &OrderSpec, cancel: &Cancel) -> Result<Kind, PlanError> {
    let OrderSpec { order, samples, seed, epoch, .. } = *spec;
    let table = match order {
        Order::Sequential => return Ok(Kind::Identity),
        Order::Stable if !order.is_materialized(samples) => {
            return Ok(Kind::Feistel(stable::feistel(samples, seed, epoch, 0)));
        }
        Order::Stable => stable::table(samples as u32, samples, seed, epoch, cancel),
        Order::Burn => burn::table(spec, cancel),
        Order::BurnWorkers(workers) => burn::table_of_workers(workers, spec, cancel),
        Order::DataloaderRs => dataloader_rs::table(spec, cancel),
        _ => torch::table(spec, cancel),
    };
    table.map(Kind::Table)
}

/// Reads positions of a [`Permutation`].
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    permutation: &'a Permutation,
    words: Option<Words>,
}

impl Reader<'_> {
    /// As [`Permutation::get`].
    pub(crate) fn get(&mut self, position: u64) -> Option<u64> {
        if position >= self.permutation.positions {
            return None;
        }
        let number = match (&self.permutation.kind, &mut self.words) {
            (Kind::Table(table), _) => u64::from(table[position as usize]),
            (Kind::Wide(table), _) => table[position as usize],
            (Kind::Feistel(feistel), _) => feistel.get(position),
            (Kind::Passes(passes), _) => passes.get(position),
            (Kind::Drawn(drawn), Some(words)) => drawn.get(position, words),
            (Kind::Identity | Kind::Drawn(_), _) => position,
        };
        match self.permutation.through.as_ref().and_then(|sampling| sampling.indices()) {
            Some(indices) => indices.get(number as usize).copied(),
            None => Some(number),
        }
    }
}
