//! Samplings: what every drawing keeps to, whatever is drawn.
#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

use proptest::prelude::*;
use tundish_engine::Order;

mod common;
use common::{build, drawn, random, subset, weighted};

proptest! {
    #[test]
    fn without_replacement_every_pass_is_a_permutation(
        which in 0..Order::OF_SAMPLINGS.len(),
        samples in 1_u64..300,
        num_samples in 1_u64..1500,
        seed: u64,
        epoch in 0_u64..10,
    ) {
        let order = drawn(&random(samples, num_samples, false), Order::OF_SAMPLINGS[which], seed, epoch);
        prop_assert_eq!(order.len() as u64, num_samples);
        for pass in order.chunks(samples as usize) {
            let mut pass = pass.to_vec();
            pass.sort_unstable();
            prop_assert!(pass.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(pass.last() < Some(&samples));
        }
    }

    #[test]
    fn with_replacement_every_sample_exists(
        which in 0..Order::OF_SAMPLINGS.len(),
        samples in 1_u64..(1 << 63),
        shift in 0_u32..63,
        num_samples in 1_u64..200,
        seed: u64,
        epoch in 0_u64..10,
    ) {
        let samples = (samples >> shift).max(1);
        let sampling = random(samples, num_samples, true);
        let order = drawn(&sampling, Order::OF_SAMPLINGS[which], seed, epoch);
        prop_assert!(order.iter().all(|&index| index < samples));
    }

    #[test]
    fn weighted_samples_have_a_weight(
        which in 0..Order::OF_SAMPLINGS.len(),
        weights in prop::collection::vec(prop_oneof![Just(0.0), 0.0..1e9, 0.0..1e-300], 1..60),
        share in 0_u64..100,
        seed: u64,
        epoch in 0_u64..10,
    ) {
        let positive = weights.iter().filter(|&&weight| weight > 0.0).count();
        prop_assume!(positive > 0);
        let number = 1 + positive as u64 * share / 100;
        let order = Order::OF_SAMPLINGS[which];
        let once = drawn(&weighted(&weights, number.min(positive as u64), false), order, seed, epoch);
        let mut sorted = once.clone();
        sorted.sort_unstable();
        prop_assert!(sorted.windows(2).all(|pair| pair[0] < pair[1]));
        let again = drawn(&weighted(&weights, 50, true), order, seed, epoch);
        if order == Order::Stable {
            prop_assert!(once.iter().chain(&again).all(|&index| weights[index as usize] > 0.0));
        } else {
            // torch may underflow tiny weights, and draws the first one for the number 0.
            prop_assert!(once.iter().chain(&again).all(|&index| index < weights.len() as u64));
        }
    }

    #[test]
    fn a_subset_is_shuffled_and_nothing_else(
        which in 0..Order::OF_SAMPLINGS.len(),
        indices in prop::collection::vec(0_u64..(1 << 63) - 1, 0..300),
        seed: u64,
        epoch in 0_u64..10,
    ) {
        let mut got = drawn(&subset(&indices), Order::OF_SAMPLINGS[which], seed, epoch);
        let mut given = indices;
        got.sort_unstable();
        given.sort_unstable();
        prop_assert_eq!(got, given);
    }

    #[test]
    fn positions_can_be_read_in_any_order(
        kind in 0..3,
        positions in prop::collection::vec(0_u64..100_000, 1..50),
        seed: u64,
        epoch: u64,
    ) {
        let sampling = match kind {
            0 => random(1 << 40, 100_000, true),
            1 => weighted(&[0.5, 0.0, 2.0, 1.0], 100_000, true),
            _ => random(1 << 20, 1 << 22, false),
        };
        let order = build(&sampling, Order::Stable, seed, epoch);
        let last = *positions.iter().max().unwrap();
        let whole: Vec<_> = (last - last.min(300)..=last).map(|position| order.get(position)).collect();
        for position in positions.into_iter().filter(|position| last - position < 300) {
            let place = whole.len() - 1 - (last - position) as usize;
            prop_assert_eq!(order.get(position), whole[place]);
        }
    }
}
