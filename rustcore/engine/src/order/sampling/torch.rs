//! torch's samplers, bit for bit.

use super::super::stream::Stream;
use super::super::table::Table;
use super::super::torch::{of_random_sampler, of_sampler, permutations, randperm, randperm_draws};
use super::super::{Kind as Built, OrderSpec, PlanError};
use super::lookup::Lookup;
use super::race::largest;
use super::{Kind, Sampling, for_each_weight};
use crate::cancel::Cancel;

/// From this range on, `torch.randint` takes 64 bits a number.
const WIDE_FROM: u64 = 1 << 28;

/// Builds the table of one pass of a sampler.
pub(in super::super) fn build(
    sampling: &Sampling,
    spec: &OrderSpec,
    cancel: &Cancel,
) -> Result<Built, PlanError> {
    match sampling.kind() {
        Kind::Fixed(_) => Ok(Built::Identity),
        Kind::Subset(indices) => {
            let samples = indices.len() as u32;
            let mut stream = of_sampler(spec, randperm_draws(samples), cancel)?;
            let table = randperm(samples, &mut stream, cancel)?;
            stream.remember();
            Ok(Built::Table(table))
        }
        Kind::Random { samples, num_samples, replacement: false } => {
            permutations(spec, *samples as u32, *num_samples, cancel).map(Built::Table)
        }
        Kind::Random { samples, num_samples, .. } => redrawn(*samples, *num_samples, spec, cancel),
        Kind::Weighted { weights, num_samples, replacement } => {
            // A single sample is drawn without replacement, so to say.
            let table = if *replacement && *num_samples > 1 {
                looked_up(weights, *num_samples, spec, cancel)
            } else {
                raced(weights, *num_samples, spec, cancel)
            };
            table.map(Built::Table)
        }
    }
}

/// `RandomSampler(replacement=True)`: `torch.randint`, in blocks that do not matter here.
fn redrawn(samples: u64, num_samples: u64, spec: &OrderSpec, cancel: &Cancel) -> Result<Built, PlanError> {
    let wide = samples >= WIDE_FROM;
    let mut stream = of_random_sampler(spec, num_samples << u32::from(wide), cancel)?;
    let mut draw = || if wide { stream.next_u64() % samples } else { u64::from(stream.next_u32()) % samples };
    let built = if samples <= 1 << 32 {
        let mut table = Table::with_room("num_samples", num_samples)?;
        table.fill(num_samples, || draw() as u32, cancel)?;
        Built::Table(table)
    } else {
        let mut table = Table::with_room("num_samples", num_samples)?;
        table.fill(num_samples, draw, cancel)?;
        Built::Wide(table)
    };
    stream.remember();
    Ok(built)
}

/// `torch.multinomial` with replacement: uniform numbers looked up in running sums.
fn looked_up(
    weights: &[f64],
    num_samples: u64,
    spec: &OrderSpec,
    cancel: &Cancel,
) -> Result<Table, PlanError> {
    let total = weights.iter().fold(0.0, |sum, weight| sum + weight);
    let (mut sum, mut left) = (0.0, weights.len());
    let add = |weight| {
        (sum, left) = (sum + weight, left - 1);
        if left > 0 { sum / total } else { 1.0 }
    };
    let sums = Lookup::new(for_each_weight(weights, add, cancel)?, cancel)?;
    let mut stream = of_sampler(spec, num_samples * 2, cancel)?;
    let mut table = Table::with_room("num_samples", num_samples)?;
    let draw = || {
        let drawn = uniform(&mut stream);
        sums.leading(drawn, |sum| sum < drawn) as u32
    };
    table.fill(num_samples, draw, cancel)?;
    stream.remember();
    Ok(table)
}

/// `torch.multinomial` without replacement: a race of weights over waiting times.
fn raced(weights: &[f64], num_samples: u64, spec: &OrderSpec, cancel: &Cancel) -> Result<Table, PlanError> {
    let mut stream = of_sampler(spec, weights.len() as u64 * 2, cancel)?;
    let ratio = |weight| {
        let waiting = -(-uniform(&mut stream)).ln_1p();
        if waiting > 0.0 { weight / waiting } else { f64::INFINITY }
    };
    let values = for_each_weight(weights, ratio, cancel)?;
    stream.remember();
    largest(&values, num_samples, cancel)
}

/// torch's uniform number in [0, 1) of 53 bits.
fn uniform(stream: &mut Stream) -> f64 {
    (stream.next_u64() & ((1 << 53) - 1)) as f64 * (1.0 / (1_u64 << 53) as f64)
}
