//! The gate of the `stable` order: 200 epochs look like independent shuffles.
//!
//! Everything is deterministic. A figure is a z-score: how many standard
//! deviations it lies from what independent uniform permutations would give.
#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

use std::collections::HashMap;
use std::sync::Arc;

use tundish_engine::{Cancel, Order, OrderSpec, Permutation, Sampling};

mod common;
use common::{build, random, weighted};

const EPOCHS: u64 = 200;

/// About one in a million for a single fair figure; some forty are looked at.
const LIMIT: f64 = 5.0;

/// Both branches: a shuffled table, and positions computed one by one.
const SIZES: [u64; 4] = [1000, (1 << 20) - 1, 1 << 20, 10_000_019];

fn stable(samples: u64, seed: u64, epoch: u64) -> Permutation {
    Permutation::build(&OrderSpec::new(Order::Stable, samples, seed, epoch), &Cancel::new()).unwrap()
}

/// Epochs used at a size: building 200 large tables would only take time.
fn epochs(samples: u64) -> u64 {
    if Order::Stable.is_materialized(samples) && samples > 100_000 { 10 } else { EPOCHS }
}

/// Positions to look at: 1000 of them, spread evenly, moving with the epoch.
fn spread(samples: u64, epoch: u64) -> impl Iterator<Item = u64> {
    let step = samples / 1000;
    (0..1000).map(move |k| k * step + epoch % step)
}

/// Chi-squared of equally likely cells as a z-score.
fn z_of_cells(cells: &[u64], freedom: f64) -> f64 {
    let expected = cells.iter().sum::<u64>() as f64 / cells.len() as f64;
    let squares = cells.iter().map(|&seen| (seen as f64 - expected).powi(2));
    (squares.sum::<f64>() / expected - freedom) / (2.0 * freedom).sqrt()
}

/// Correlation of pairs of indices as a z-score.
fn z_of_pairs(samples: u64, pairs: impl Iterator<Item = (u64, u64)>) -> f64 {
    let centred = |index: u64| (index as f64 + 0.5) / samples as f64 - 0.5;
    let (sum, count) =
        pairs.fold((0.0, 0.0), |(sum, count), (a, b)| (sum + 12.0 * centred(a) * centred(b), count + 1.0));
    sum / f64::sqrt(count)
}

#[test]
fn every_part_of_the_data_comes_at_every_part_of_the_epoch() {
    for samples in SIZES {
        let mut cells = vec![0; 100];
        let mut low_bits = vec![0; 256];
        for epoch in 0..epochs(samples) {
            let order = stable(samples, 7, epoch);
            for position in spread(samples, epoch) {
                let index = order.get(position).unwrap();
                cells[(10 * position / samples * 10 + 10 * index / samples) as usize] += 1;
                low_bits[(position % 16 * 16 + index % 16) as usize] += 1;
            }
        }
        let z = z_of_cells(&cells, 90.0);
        assert!(z.abs() < LIMIT, "{samples} samples: tenths z={z}");
        if samples > 1000 {
            // Given how often each position % 16 was looked at, 15 of 16 are free.
            let rows = low_bits.chunks(16).filter(|row| row.iter().sum::<u64>() > 0);
            for row in rows {
                let z = z_of_cells(row, 15.0);
                assert!(z.abs() < LIMIT + 2.0, "{samples} samples: low bits z={z}");
            }
        }
    }
}

#[test]
fn neighbours_in_the_epoch_are_no_neighbours_in_the_data() {
    for samples in SIZES {
        // 1024 and 3163 are the heights of the Feistel grids, so these lags stay
        // in one column of it.
        for lag in [1, 2, 3, 7, 512, 1024, 3163] {
            let mut differences = vec![0; 16];
            let mut pairs = Vec::new();
            for epoch in 0..epochs(samples) {
                let order = stable(samples, 7, epoch);
                for position in spread(samples, epoch).filter(|p| p + lag < samples) {
                    let a = order.get(position).unwrap();
                    let b = order.get(position + lag).unwrap();
                    pairs.push((a, b));
                    differences[(((b + samples - a) % samples) * 16 / samples) as usize] += 1;
                }
            }
            if pairs.is_empty() {
                continue;
            }
            let count = pairs.len() as f64;
            // Two entries of one permutation differ: that alone gives -1/(n-1).
            let shift = count.sqrt() / (samples - 1) as f64;
            let z = z_of_pairs(samples, pairs.into_iter()) + shift;
            assert!(z.abs() < LIMIT, "{samples} samples, lag {lag}: correlation z={z}");
            let z = z_of_cells(&differences, 15.0);
            assert!(z.abs() < LIMIT, "{samples} samples, lag {lag}: differences z={z}");
        }
    }
}

#[test]
fn epochs_and_seeds_next_to_each_other_are_independent() {
    for samples in [1000, 1 << 20] {
        for (seed_step, epoch_step) in [(0, 1), (1, 0), (1, 1), (1 << 32, 0)] {
            let pairs = (0..EPOCHS).flat_map(|epoch| {
                let here = stable(samples, 7, epoch);
                let there = stable(samples, 7 + seed_step, epoch + epoch_step);
                let values =
                    spread(samples, epoch).map(move |p| (here.get(p).unwrap(), there.get(p).unwrap()));
                values.collect::<Vec<_>>()
            });
            let z = z_of_pairs(samples, pairs);
            assert!(z.abs() < LIMIT, "{samples} samples, +{seed_step} +{epoch_step}: z={z}");
        }
    }
}

#[test]
fn successors_are_as_rare_as_chance_makes_them() {
    // |difference| = 1 at 2 (n - 1) / n places on average, with that variance.
    let samples = 1000;
    let mut found = 0_u64;
    for epoch in 0..EPOCHS {
        let order = stable(samples, 7, epoch);
        let values: Vec<u64> = (0..samples).map(|p| order.get(p).unwrap()).collect();
        found += values.windows(2).filter(|w| w[0].abs_diff(w[1]) == 1).count() as u64;
    }
    let expected = (EPOCHS * 2 * (samples - 1)) as f64 / samples as f64;
    let z = (found as f64 - expected) / expected.sqrt();
    assert!(z.abs() < LIMIT, "z={z}");
}

#[test]
fn the_permutations_of_four_and_five_are_equally_frequent() {
    for (samples, permutations) in [(4, 24_u64), (5, 120)] {
        let mut counts = HashMap::<Vec<Option<u64>>, u64>::new();
        for epoch in 0..100 * permutations {
            let order = stable(samples, 7, epoch);
            *counts.entry((0..samples).map(|p| order.get(p)).collect()).or_default() += 1;
        }
        assert_eq!(counts.len() as u64, permutations);
        let cells: Vec<u64> = counts.into_values().collect();
        let z = z_of_cells(&cells, (permutations - 1) as f64);
        assert!(z.abs() < LIMIT, "{samples} samples: z={z}");
    }
}

#[test]
fn every_pair_shares_a_batch_about_as_often_as_chance_makes_it() {
    // Ten samples in batches of 4, 4 and 2: 13 of 45 pairs share one.
    let mut shared = HashMap::<(u64, u64), u64>::new();
    for epoch in 0..EPOCHS {
        let order = stable(10, 7, epoch);
        let values: Vec<u64> = (0..10).map(|p| order.get(p).unwrap()).collect();
        for batch in values.chunks(4) {
            for (k, &a) in batch.iter().enumerate() {
                for &b in &batch[k + 1..] {
                    *shared.entry((a.min(b), a.max(b))).or_default() += 1;
                }
            }
        }
    }
    assert_eq!(shared.len(), 45);
    for (pair, count) in shared {
        let fraction = count as f64 / EPOCHS as f64;
        assert!((0.15..=0.45).contains(&fraction), "{pair:?}: {fraction}");
    }
}

fn drawn(sampling: &Arc<Sampling>, epoch: u64) -> Vec<u64> {
    common::drawn(sampling, Order::Stable, 7, epoch)
}

/// Chi-squared of cells of any likelihood as a z-score.
fn z_of_likely(seen: &[u64], likely: &[f64]) -> f64 {
    let total = seen.iter().sum::<u64>() as f64;
    let parts = seen.iter().zip(likely).filter(|(_, likely)| **likely > 0.0);
    let terms: Vec<f64> =
        parts.map(|(&seen, likely)| (seen as f64 - total * likely).powi(2) / (total * likely)).collect();
    let freedom = terms.len() as f64 - 1.0;
    (terms.iter().sum::<f64>() - freedom) / (2.0 * freedom).sqrt()
}

#[test]
fn with_replacement_every_sample_is_as_likely_at_every_position() {
    for samples in [3, 100, (1 << 33) + 1] {
        let sampling = random(samples, 1000, true);
        let (mut cells, mut steps) = (vec![0; 100], vec![0; 100]);
        let mut pairs = Vec::new();
        let count = samples.min(10);
        let cell = |index: u64| (u128::from(count) * u128::from(index) / u128::from(samples)) as usize;
        for epoch in 0..EPOCHS {
            let order = drawn(&sampling, epoch);
            let next = drawn(&sampling, epoch + 1);
            for position in 0..999 {
                let index = order[position];
                cells[position / 100 * 10 + cell(index)] += 1;
                steps[cell(index) * 10 + cell(order[position + 1])] += 1;
                pairs.push((index, next[position]));
            }
        }
        for cells in [cells, steps] {
            let rows: Vec<u64> = cells.into_iter().filter(|&seen| seen > 0).collect();
            let expected = if samples == 3 { vec![30, 9] } else { vec![100] };
            assert!(expected.contains(&rows.len()), "{samples}: {} kinds", rows.len());
            // The last row of positions is one short: far below what is looked for.
            let z = z_of_cells(&rows, rows.len() as f64 - 1.0);
            assert!(z.abs() < LIMIT, "{samples} samples: z={z}");
        }
        let z = z_of_pairs(samples, pairs.into_iter());
        // The variance of few samples is below that of a continuum.
        assert!(z.abs() < LIMIT, "{samples} samples, next epoch: z={z}");
    }
}

#[test]
fn weighted_samples_come_as_often_as_their_weights_say() {
    let weights = [0.5, 0.0, 1.0, 2.5, 0.25, 0.0];
    let total = weights.iter().sum::<f64>();
    let sampling = weighted(&weights, 1000, true);
    let (mut seen, mut steps) = ([0; 6], [0; 36]);
    for epoch in 0..EPOCHS {
        let order = drawn(&sampling, epoch);
        for pair in order.windows(2) {
            seen[pair[0] as usize] += 1;
            steps[(pair[0] * 6 + pair[1]) as usize] += 1;
        }
    }
    assert_eq!((seen[1], seen[5]), (0, 0));
    let z = z_of_likely(&seen, &weights.map(|weight| weight / total));
    assert!(z.abs() < LIMIT, "z={z}");
    let likely: Vec<f64> =
        (0..36).map(|cell| weights[cell / 6] * weights[cell % 6] / total / total).collect();
    let z = z_of_likely(&steps, &likely);
    assert!(z.abs() < LIMIT, "neighbours: z={z}");
}

#[test]
fn without_replacement_each_draw_is_by_the_weights_that_are_left() {
    let weights = [0.5, 0.0, 1.0, 2.5, 0.25, 1.0];
    let total = weights.iter().sum::<f64>();
    let sampling = weighted(&weights, 3, false);
    let mut seen = vec![0; 216];
    for epoch in 0..100 * EPOCHS {
        let order = drawn(&sampling, epoch);
        seen[(order[0] * 36 + order[1] * 6 + order[2]) as usize] += 1;
    }
    let likely = |cell: usize| {
        let [a, b, c] = [cell / 36, cell / 6 % 6, cell % 6];
        if a == b || b == c || a == c {
            return 0.0;
        }
        let [first, second, third] = [weights[a], weights[b], weights[c]];
        first / total * second / (total - first) * third / (total - first - second)
    };
    let likely: Vec<f64> = (0..216).map(likely).collect();
    let z = z_of_likely(&seen, &likely);
    assert!(z.abs() < LIMIT, "z={z}");
    let impossible = seen.iter().zip(&likely).filter(|(_, likely)| **likely == 0.0);
    assert!(impossible.into_iter().all(|(&seen, _)| seen == 0));
}

#[test]
fn permutations_after_one_another_are_independent() {
    for samples in [1000, 1 << 20] {
        let sampling = random(samples, 3 * samples, false);
        let pairs = (0..EPOCHS / 10).flat_map(|epoch| {
            let order = build(&sampling, Order::Stable, 7, epoch);
            let at = move |position| order.get(position).unwrap();
            spread(samples, epoch)
                .flat_map(move |p| [(at(p), at(p + samples)), (at(p + samples), at(p + 2 * samples))])
                .collect::<Vec<_>>()
        });
        let z = z_of_pairs(samples, pairs);
        assert!(z.abs() < LIMIT, "{samples} samples: z={z}");
    }
}
