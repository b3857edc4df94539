//! Samplings: what a sampler draws from a dataset in an epoch.

mod lookup;
mod race;
pub(super) mod stable;
pub(super) mod torch;

use super::names::listed;
use super::table::Table;
use super::{MAX_SAMPLES, Order, POLL_EVERY, PlanError, check};
use crate::cancel::Cancel;

/// Most weights that a weighted sampling takes, as in torch.
const MOST_WEIGHTS: usize = 1 << 24;

/// What a sampler draws in an epoch: a frozen description, independent of any order,
/// seed or epoch.
///
/// May be shared by any number of plans and threads.
///
/// # Examples
///
/// ```
/// use tundish_engine::{Cancel, Order, OrderSpec, Permutation, Sampling};
///
/// let cancel = Cancel::new();
/// let sampling = Sampling::weighted(vec![0.5, 0.0, 2.0], 4, true, &cancel)?;
/// let spec = OrderSpec { sampling: Some(sampling.into()), ..OrderSpec::new(Order::Stable, 0, 7, 0) };
/// let drawn = Permutation::build(&spec, &cancel)?;
/// let indices: Vec<_> = (0..drawn.len()).filter_map(|position| drawn.get(position)).collect();
/// assert_eq!(indices.len(), 4);
/// assert!(!indices.contains(&1));
/// # Ok::<(), tundish_engine::PlanError>(())
/// ```
#[derive(Debug, PartialEq)]
pub struct Sampling {
    digest: u64,
    kind: Kind,
}

/// No weight is NaN.
impl Eq for Sampling {}

#[derive(Debug, PartialEq)]
pub(super) enum Kind {
    Random { samples: u64, num_samples: u64, replacement: bool },
    Weighted { weights: Vec<f64>, num_samples: u64, replacement: bool },
    Subset(Vec<u64>),
    Fixed(Vec<u64>),
}

impl Sampling {
    /// `num_samples` of `samples`, each as likely as the others. Without replacement no
    /// sample comes again before all have come.
    ///
    /// # Errors
    ///
    /// [`PlanError::Invalid`] if either number is 0 or above 2^63 - 1.
    pub fn random(samples: u64, num_samples: u64, replacement: bool) -> Result<Self, PlanError> {
        check_count("samples", samples)?;
        check_count("num_samples", num_samples)?;
        let mut digest = Digest::new(1, samples);
        digest.add(num_samples);
        digest.add(u64::from(replacement));
        Ok(Self { digest: digest.0, kind: Kind::Random { samples, num_samples, replacement } })
    }

    /// `num_samples` samples, each as likely as its weight says; without replacement no
    /// sample comes twice.
    ///
    /// Blocks for about 3 ns a weight.
    ///
    /// # Errors
    ///
    /// [`PlanError::Invalid`] for no weights or more than 2^24, for a weight that is
    /// negative, infinite or not a number, for a sum that is 0 or infinite, for
    /// `num_samples` of 0, and without replacement for more than there are weights above
    /// 0; [`PlanError::Cancelled`] soon after `cancel` was raised.
    pub fn weighted(
        mut weights: Vec<f64>,
        num_samples: u64,
        replacement: bool,
        cancel: &Cancel,
    ) -> Result<Self, PlanError> {
        check_count("num_samples", num_samples)?;
        let mut digest = Digest::new(2, weights.len() as u64);
        digest.add(num_samples);
        digest.add(u64::from(replacement));
        let positive = check_weights(&mut weights, &mut digest, cancel)?;
        if !replacement && num_samples > positive {
            let reason = format!(
                "without replacement at most as many as there are weights above 0 ({positive}) can be drawn; \
                 draw fewer, or with replacement=True"
            );
            return Err(PlanError::invalid("num_samples", &num_samples, reason));
        }
        Ok(Self { digest: digest.0, kind: Kind::Weighted { weights, num_samples, replacement } })
    }

    /// These indices, shuffled anew in each epoch. An index may stand there twice.
    ///
    /// Blocks for about 3 ns an index.
    ///
    /// # Errors
    ///
    /// [`PlanError::Invalid`] for an index above 2^63 - 1, [`PlanError::Cancelled`] soon
    /// after `cancel` was raised.
    pub fn subset(indices: Vec<u64>, cancel: &Cancel) -> Result<Self, PlanError> {
        let digest = check_indices(3, &indices, cancel)?;
        Ok(Self { digest, kind: Kind::Subset(indices) })
    }

    /// These indices in this order, in each epoch.
    ///
    /// Blocks for about 3 ns an index.
    ///
    /// # Errors
    ///
    /// As [`Sampling::subset`].
    pub fn fixed(indices: Vec<u64>, cancel: &Cancel) -> Result<Self, PlanError> {
        let digest = check_indices(4, &indices, cancel)?;
        Ok(Self { digest, kind: Kind::Fixed(indices) })
    }

    /// The number of positions of one epoch.
    pub fn len(&self) -> u64 {
        match &self.kind {
            Kind::Random { num_samples, .. } | Kind::Weighted { num_samples, .. } => *num_samples,
            Kind::Subset(indices) | Kind::Fixed(indices) => indices.len() as u64,
        }
    }

    /// Tells whether an epoch has no positions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A number of everything in this description, for fingerprints; the same in all
    /// builds.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// The indices that stand for the numbers below [`Sampling::len`], if any do.
    pub(super) fn indices(&self) -> Option<&[u64]> {
        match &self.kind {
            Kind::Subset(indices) | Kind::Fixed(indices) => Some(indices),
            Kind::Random { .. } | Kind::Weighted { .. } => None,
        }
    }

    pub(super) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The number of entries of the table that an epoch in this order keeps: of the
    /// argument that is named, which decides it.
    pub(super) fn entries(&self, order: Order) -> (&'static str, u64) {
        match &self.kind {
            Kind::Fixed(_) => ("indices", 0),
            Kind::Subset(indices) => ("indices", permuted(order, indices.len() as u64)),
            Kind::Random { samples, num_samples, replacement: false } => match permuted(order, *samples) {
                of_samples if of_samples >= *num_samples => ("samples", of_samples),
                0 => ("samples", 0),
                _ => ("num_samples", *num_samples),
            },
            Kind::Weighted { weights, num_samples, replacement: false } => {
                ("num_samples", (*num_samples).max(weights.len() as u64))
            }
            Kind::Weighted { weights, .. } if order == Order::Stable => ("weights", weights.len() as u64),
            Kind::Random { .. } if order == Order::Stable => ("num_samples", 0),
            Kind::Random { num_samples, .. } | Kind::Weighted { num_samples, .. } => {
                ("num_samples", *num_samples)
            }
        }
    }

    /// Refuses an order that this sampling cannot have, or not with so many samples.
    pub(super) fn check(&self, order: Order) -> Result<(), PlanError> {
        if matches!(self.kind, Kind::Fixed(_)) {
            return Ok(());
        }
        if !Order::OF_SAMPLINGS.contains(&order) {
            let reason = format!("a sampler's order is one of {}", listed(&Order::OF_SAMPLINGS));
            return Err(PlanError::invalid("order", &format!("\"{order}\""), reason));
        }
        let (argument, entries) = self.entries(order);
        if entries > order.most_in_table() {
            let reason = format!(
                "order \"{order}\" holds at most 2**32 - 1 entries; order=\"stable\" holds more, \
                 from 2**20 samples on without replacement"
            );
            return Err(PlanError::invalid(argument, &entries, reason));
        }
        Ok(())
    }
}

/// Entries of the table of a permutation; 0 if it is computed.
fn permuted(order: Order, samples: u64) -> u64 {
    if order.is_materialized(samples) { samples } else { 0 }
}

fn check_count(argument: &'static str, count: u64) -> Result<(), PlanError> {
    if count == 0 || count > MAX_SAMPLES {
        return Err(PlanError::invalid(argument, &count, "must be at least 1 and at most 2**63 - 1"));
    }
    Ok(())
}

/// Refuses weights that cannot be used; answers how many are above 0.
fn check_weights(weights: &mut [f64], digest: &mut Digest, cancel: &Cancel) -> Result<u64, PlanError> {
    if weights.is_empty() || weights.len() > MOST_WEIGHTS {
        let given = format!("{} of them", weights.len());
        return Err(PlanError::invalid(
            "weights",
            &given,
            "there must be at least 1 and at most 2**24 weights",
        ));
    }
    let (mut sum, mut positive) = (0.0, 0);
    for (place, weight) in weights.iter_mut().enumerate() {
        if place % POLL_EVERY as usize == 0 {
            check(cancel)?;
        }
        if !(weight.is_finite() && *weight >= 0.0) {
            let given = format!("{weight} at place {place}");
            return Err(PlanError::invalid(
                "weights",
                &given,
                "a weight must be a finite number of 0 or more",
            ));
        }
        // A zero loses its sign.
        *weight += 0.0;
        sum += *weight;
        positive += u64::from(*weight > 0.0);
        digest.add(weight.to_bits());
    }
    if sum == 0.0 || sum == f64::INFINITY {
        let given = format!("a sum of {sum}");
        return Err(PlanError::invalid("weights", &given, "the sum must be above 0 and finite"));
    }
    Ok(positive)
}

/// One number for each weight, in turn.
fn for_each_weight(
    weights: &[f64],
    mut number: impl FnMut(f64) -> f64,
    cancel: &Cancel,
) -> Result<Table<f64>, PlanError> {
    let mut numbers = Table::with_room("weights", weights.len() as u64)?;
    let mut weights = weights.iter();
    numbers.fill(weights.len() as u64, || number(weights.next().copied().unwrap_or_default()), cancel)?;
    Ok(numbers)
}

/// Refuses indices that do not fit a signed 64-bit number; answers their digest.
fn check_indices(kind: u64, indices: &[u64], cancel: &Cancel) -> Result<u64, PlanError> {
    let mut digest = Digest::new(kind, indices.len() as u64);
    for (place, &index) in indices.iter().enumerate() {
        if place % POLL_EVERY as usize == 0 {
            check(cancel)?;
        }
        if index >= MAX_SAMPLES {
            let given = format!("{index} at place {place}");
            return Err(PlanError::invalid("indices", &given, "an index must be below 2**63 - 1"));
        }
        digest.add(index);
    }
    Ok(digest.0)
}

/// A chain of `SplitMix64`'s mixing function over 64-bit words.
struct Digest(u64);

impl Digest {
    fn new(kind: u64, len: u64) -> Self {
        let mut digest = Self(0);
        digest.add(kind);
        digest.add(len);
        digest
    }

    fn add(&mut self, word: u64) {
        let mut z = (self.0 ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = z ^ (z >> 31);
    }
}
