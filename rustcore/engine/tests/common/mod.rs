//! What the tests of samplings share.
#![allow(dead_code, unreachable_pub, reason = "no test uses all of it")]
#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

use std::sync::Arc;

use tundish_engine::{Cancel, Order, OrderSpec, Permutation, Sampling};

/// `Sampling::random`, to share.
pub fn random(samples: u64, num_samples: u64, replacement: bool) -> Arc<Sampling> {
    Sampling::random(samples, num_samples, replacement).unwrap().into()
}

/// `Sampling::weighted`, to share.
pub fn weighted(weights: &[f64], num_samples: u64, replacement: bool) -> Arc<Sampling> {
    Sampling::weighted(weights.to_vec(), num_samples, replacement, &Cancel::new()).unwrap().into()
}

/// `Sampling::subset`, to share.
pub fn subset(indices: &[u64]) -> Arc<Sampling> {
    Sampling::subset(indices.to_vec(), &Cancel::new()).unwrap().into()
}

/// `Sampling::fixed`, to share.
pub fn fixed(indices: &[u64]) -> Arc<Sampling> {
    Sampling::fixed(indices.to_vec(), &Cancel::new()).unwrap().into()
}

/// One epoch of a sampling.
pub fn spec(sampling: &Arc<Sampling>, order: Order, seed: u64, epoch: u64) -> OrderSpec {
    OrderSpec { sampling: Some(Arc::clone(sampling)), ..OrderSpec::new(order, 0, seed, epoch) }
}

/// The order of that epoch.
pub fn build(sampling: &Arc<Sampling>, order: Order, seed: u64, epoch: u64) -> Permutation {
    Permutation::build(&spec(sampling, order, seed, epoch), &Cancel::new()).unwrap()
}

/// The indices of that epoch, in order.
pub fn drawn(sampling: &Arc<Sampling>, order: Order, seed: u64, epoch: u64) -> Vec<u64> {
    let permutation = build(sampling, order, seed, epoch);
    assert_eq!(permutation.len(), sampling.len());
    assert_eq!(permutation.get(sampling.len()), None);
    (0..permutation.len()).map(|position| permutation.get(position).unwrap()).collect()
}
