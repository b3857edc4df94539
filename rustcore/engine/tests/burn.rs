//! burn's order against rand, which burn is made of.
#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tundish_engine::{Cancel, Order, OrderSpec, Permutation};

const SEEDS: [u64; 5] = [0, 7, (1 << 32) + 7, 1 << 63, u64::MAX];

fn order(spec: &OrderSpec) -> Vec<u64> {
    let permutation = Permutation::build(spec, &Cancel::new()).unwrap();
    (0..permutation.len()).map(|position| permutation.get(position).unwrap()).collect()
}

fn burn(samples: u64, seed: u64, epoch: u64) -> Vec<u64> {
    order(&OrderSpec::new(Order::Burn, samples, seed, epoch))
}

fn shuffled(samples: u64, words: &mut StdRng) -> Vec<u64> {
    let mut indices: Vec<u64> = (0..samples).collect();
    indices.shuffle(words);
    indices
}

/// burn's loader with workers, as its source does it.
fn of_workers(samples: u64, batch: u64, workers: u64, seed: u64, epochs: usize) -> Vec<Vec<u64>> {
    let mut key = [0; 32];
    StdRng::seed_from_u64(seed).fill_bytes(&mut key);
    let whole = shuffled(samples, &mut StdRng::from_seed(key).fork());
    let mut seeds = StdRng::from_seed(key);
    let batches = samples.div_ceil(batch);
    let mut epochs = vec![Vec::new(); epochs];
    let mut begin = 0;
    for worker in 0..workers {
        let count = batches / workers + u64::from(worker < batches % workers);
        let end = samples.min(begin + count * batch);
        let mut own = StdRng::seed_from_u64(seeds.next_u64());
        for epoch in &mut epochs {
            let stretch = shuffled(end - begin, &mut own.fork());
            epoch.extend(stretch.into_iter().map(|index| whole[(begin + index) as usize]));
        }
        begin = end;
    }
    epochs
}

#[test]
fn every_epoch_is_rands_shuffle_by_a_fork() {
    for samples in (0..150).chain([479, 480, 1627, 1628, 65_535, 65_536, 70_000, 1 << 20]) {
        for seed in SEEDS {
            let mut parent = StdRng::seed_from_u64(seed);
            for epoch in 0..3 {
                let expected = shuffled(samples, &mut parent.fork());
                assert_eq!(burn(samples, seed, epoch), expected, "n={samples} seed={seed} epoch={epoch}");
            }
        }
    }
}

#[test]
fn a_far_epoch_is_the_fork_of_that_number() {
    let mut parent = StdRng::seed_from_u64(7);
    for _ in 0..100_000 {
        parent.fork();
    }
    assert_eq!(burn(50, 7, 100_000), shuffled(50, &mut parent.fork()));
    // Forks are counted in 68 bits of words, so that the last epoch is none of the first.
    assert_ne!(burn(50, 7, u64::MAX), burn(50, 7, 0));
}

#[test]
fn the_stretches_of_the_workers_are_whole_global_batches() {
    for (samples, batch, workers) in [(10, 4, 2), (10, 4, 7), (1000, 32, 5), (9999, 1, 1024), (70_000, 64, 3)]
    {
        for seed in SEEDS {
            for (epoch, expected) in (0..).zip(of_workers(samples, batch, workers, seed, 4)) {
                let spec = OrderSpec::new(Order::BurnWorkers(workers as u16), samples, seed, epoch);
                assert_eq!(order(&OrderSpec { global_batch: batch, ..spec }), expected);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_order_of_workers_is_burns(
        samples in 0_u64..3000,
        batch in 1_u64..200,
        workers in 1_u64..40,
        seed: u64,
    ) {
        for (epoch, expected) in (0..).zip(of_workers(samples, batch, workers, seed, 3)) {
            let spec = OrderSpec::new(Order::BurnWorkers(workers as u16), samples, seed, epoch);
            prop_assert_eq!(order(&OrderSpec { global_batch: batch, ..spec }), expected);
        }
    }
}
