//! Plans: batches, shards, counts, sharing of the work, cancellation.
#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value;
use tundish_engine::{Cancel, Order, OrderSpec, Permutation, Plan, PlanError, PlanSpec, Uneven};

const UNEVEN: [Uneven; 3] = [Uneven::Pad, Uneven::Drop, Uneven::Keep];

/// The longest a cancelled call may go on.
const PROMPT: Duration = Duration::from_millis(100);

fn spec(order: Order, samples: u64, batch_size: u64) -> PlanSpec {
    PlanSpec {
        samples,
        order,
        seed: 7,
        epoch: 0,
        batch_size,
        drop_last: false,
        rank: 0,
        world_size: 1,
        uneven: Uneven::Pad,
        sampling: None,
    }
}

fn batch(plan: &Plan, number: u64) -> Vec<u64> {
    let mut indices = vec![99; 3];
    plan.indices(number, &Cancel::new(), &mut indices).unwrap();
    indices
}

fn batches(spec: PlanSpec) -> Vec<Vec<u64>> {
    let plan = Plan::new(spec).unwrap();
    (0..plan.batches()).map(|number| batch(&plan, number)).collect()
}

/// One rank's batches from the whole order, the long way round.
fn naive(order: &[u64], spec: &PlanSpec) -> Vec<Vec<u64>> {
    let (world, rank) = (spec.world_size as usize, spec.rank as usize);
    let whole = match spec.uneven {
        Uneven::Pad => order.len().div_ceil(world) * world,
        Uneven::Drop => order.len() / world * world,
        Uneven::Keep => order.len(),
    };
    let epoch: Vec<u64> = order.iter().copied().cycle().take(whole).collect();
    let shard: Vec<u64> = epoch.into_iter().skip(rank).step_by(world).collect();
    let size = spec.batch_size as usize;
    let keeps = |batch: &&[u64]| !spec.drop_last || batch.len() == size;
    shard.chunks(size).filter(keeps).map(<[u64]>::to_vec).collect()
}

#[test]
fn the_seed_documents_batches_come_out() {
    let epochs = [
        [vec![1, 3, 5, 7], vec![9, 4, 6, 2], vec![8, 0]],
        [vec![5, 1, 6, 0], vec![9, 7, 8, 4], vec![3, 2]],
        [vec![4, 3, 2, 8], vec![1, 0, 6, 5], vec![9, 7]],
    ];
    for (epoch, expected) in epochs.into_iter().enumerate() {
        let mut spec = PlanSpec { epoch: epoch as u64, ..spec(Order::Torch, 10, 4) };
        assert_eq!(batches(spec.clone()), expected);
        spec.drop_last = true;
        assert_eq!(batches(spec), expected[..2]);
    }
    let sequential = [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]];
    assert_eq!(batches(spec(Order::Sequential, 10, 4)), sequential);
}

#[test]
fn shards_equal_torchs_distributed_sampler() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/torch_vectors.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for case in golden["torch_distributed"].as_array().unwrap() {
        let number = |key: &str| case[key].as_u64().unwrap();
        for (rank, epochs) in case["rank_epochs"].as_array().unwrap().iter().enumerate() {
            for (epoch, expected) in epochs.as_array().unwrap().iter().enumerate() {
                let drop = case["drop_last"].as_bool().unwrap();
                let plan = Plan::new(PlanSpec {
                    seed: number("seed"),
                    epoch: epoch as u64,
                    rank: rank as u64,
                    world_size: number("world"),
                    uneven: if drop { Uneven::Drop } else { Uneven::Pad },
                    ..spec(Order::TorchDistributed, number("n"), 1000)
                });
                let plan = plan.unwrap();
                let got = if plan.batches() == 0 { vec![] } else { batch(&plan, 0) };
                assert_eq!(serde_json::json!(got), *expected, "{case} rank {rank} epoch {epoch}");
            }
        }
    }
}

#[test]
fn full_global_batches_are_the_same_for_any_world_size() {
    for order in Order::ALL {
        let global = |world: u64| -> Vec<BTreeSet<u64>> {
            let ranks =
                (0..world).map(|rank| PlanSpec { rank, world_size: world, ..spec(order, 1003, 16 / world) });
            let ranks: Vec<_> = ranks.map(batches).collect();
            let full = 0..1003 / 16;
            full.map(|i| ranks.iter().flat_map(|rank| rank[i].iter().copied()).collect()).collect()
        };
        assert_eq!(global(1).len(), 62);
        assert_eq!(global(1), global(2), "{order}");
        assert_eq!(global(1), global(4), "{order}");
    }
}

#[test]
fn padding_starts_over_as_often_as_needed() {
    let of = |rank| PlanSpec { rank, world_size: 7, ..spec(Order::Sequential, 3, 4) };
    let got: Vec<_> = (0..7).map(|rank| batches(of(rank))).collect();
    let expected: Vec<_> = [0, 1, 2, 0, 1, 2, 0].map(|index| vec![vec![index]]).into();
    assert_eq!(got, expected);
    let padded = (0..7).map(|rank| Plan::new(of(rank)).unwrap().padded());
    assert_eq!(padded.sum::<u64>(), 4);
}

#[test]
fn an_empty_dataset_has_no_batches() {
    for order in Order::ALL {
        for uneven in UNEVEN {
            let plan = Plan::new(PlanSpec { uneven, world_size: 3, ..spec(order, 0, 4) }).unwrap();
            assert_eq!([plan.batches(), plan.samples(), plan.padded(), plan.dropped()], [0; 4]);
        }
    }
}

#[test]
fn the_largest_dataset_works_to_its_last_batch() {
    for order in [Order::Sequential, Order::Stable] {
        let samples = i64::MAX as u64;
        let world_size = u64::from(u32::MAX);
        for rank in [0, world_size - 1] {
            let spec = PlanSpec { rank, world_size, ..spec(order, samples, 5) };
            let plan = Plan::new(spec).unwrap();
            let last = batch(&plan, plan.batches() - 1);
            assert_eq!(last.len() as u64, plan.batch_len(plan.batches() - 1));
            assert!(last.iter().all(|&index| index < samples));
        }
    }
}

#[test]
fn the_first_batch_of_a_large_epoch_comes_at_once() {
    for order in [Order::Sequential, Order::Stable] {
        let begun = Instant::now();
        let plan = Plan::new(spec(order, 200_000_000, 256)).unwrap();
        let first = batch(&plan, 0);
        let last = batch(&plan, plan.batches() - 1);
        assert!(begun.elapsed() < Duration::from_millis(50), "{:?}", begun.elapsed());
        assert_eq!((first.len(), last.len()), (256, 256));
    }
}

#[test]
fn a_batch_past_the_end_is_refused() {
    let plan = Plan::new(spec(Order::Stable, 10, 4)).unwrap();
    assert_eq!(plan.batch_len(3), 0);
    let error = plan.indices(3, &Cancel::new(), &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "batch=3: the epoch has 3 batches on this rank");
}

#[test]
fn bad_arguments_are_refused_by_name_and_value() {
    let good = || spec(Order::Torch, 10, 4);
    let cases = [
        (PlanSpec { batch_size: 0, ..good() }, "batch_size=0: must be at least 1"),
        (PlanSpec { world_size: 0, ..good() }, "world_size=0: must be at least 1"),
        (PlanSpec { world_size: 1 << 32, ..good() }, "world_size=4294967296: "),
        (PlanSpec { rank: 2, world_size: 2, ..good() }, "rank=2: must be below world_size=2"),
        (PlanSpec { samples: 1 << 32, ..good() }, "samples=4294967296: "),
    ];
    for (spec, expected) in cases {
        let error = Plan::new(spec).unwrap_err();
        assert!(matches!(error, PlanError::Invalid { .. }));
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    assert_eq!("drop".parse(), Ok(Uneven::Drop));
    let error = "dorp".parse::<Uneven>().unwrap_err().to_string();
    assert!(error.starts_with("uneven=\"dorp\": "), "{error}");
}

#[test]
fn plans_are_shared_between_threads() {
    fn shareable<T: Send + Sync>() {}
    shareable::<Plan>();
    let plan = Arc::new(Plan::new(spec(Order::Torch, 300_000, 100)).unwrap());
    let workers: Vec<_> = (0..4)
        .map(|worker| {
            let plan = Arc::clone(&plan);
            thread::spawn(move || batch(&plan, worker))
        })
        .collect();
    for (worker, handle) in workers.into_iter().enumerate() {
        assert_eq!(handle.join().unwrap(), batch(&plan, worker as u64));
    }
}

#[test]
fn a_caller_takes_over_from_a_cancelled_one() {
    let plan = Arc::new(Plan::new(spec(Order::Torch, 20_000_000, 100)).unwrap());
    let start = |cancel: &Cancel| {
        let (plan, cancel) = (Arc::clone(&plan), cancel.clone());
        thread::spawn(move || (plan.prepare(&cancel), Instant::now()))
    };
    let [building, waiting, heir] = [Cancel::new(), Cancel::new(), Cancel::new()];
    let builder = start(&building);
    thread::sleep(Duration::from_millis(20));
    let (waiter, heir) = (start(&waiting), start(&heir));
    thread::sleep(Duration::from_millis(20));
    for (cancel, worker) in [(waiting, waiter), (building, builder)] {
        let raised = Instant::now();
        cancel.cancel();
        let (result, ended) = worker.join().unwrap();
        assert_eq!(result, Err(PlanError::Cancelled));
        assert!(ended - raised < PROMPT, "took {:?}", ended - raised);
    }
    assert_eq!(heir.join().unwrap().0, Ok(()));
    assert_eq!(batch(&plan, 0).len(), 100);
}

#[test]
fn a_large_batch_is_cancelled_promptly() {
    let plan = Plan::new(spec(Order::Stable, 1 << 30, 1 << 30)).unwrap();
    let cancel = Cancel::new();
    let flag = cancel.clone();
    let worker = thread::spawn(move || {
        let mut indices = Vec::new();
        let result = plan.indices(0, &flag, &mut indices);
        (result, Instant::now(), indices.len())
    });
    thread::sleep(Duration::from_millis(50));
    let raised = Instant::now();
    cancel.cancel();
    let (result, ended, _) = worker.join().unwrap();
    assert_eq!(result, Err(PlanError::Cancelled));
    assert!(ended - raised < PROMPT, "took {:?}", ended - raised);
}

proptest! {
    #[test]
    fn batches_and_counts_equal_the_naive_ones(
        which in 0..Order::ALL.len(),
        samples in 0_u64..200,
        batch_size in 1_u64..20,
        world_size in 1_u64..9,
        uneven in 0..UNEVEN.len(),
        drop_last: bool,
        seed: u64,
        epoch in 0_u64..4,
    ) {
        let order = Order::ALL[which];
        let whole = PlanSpec { seed, epoch, ..spec(order, samples, samples.max(1)) };
        let global_batch = batch_size * world_size;
        let order = OrderSpec { global_batch, ..OrderSpec::new(order, samples, seed, epoch) };
        let order = Permutation::build(&order, &Cancel::new()).unwrap();
        let flat: Vec<u64> = (0..samples).filter_map(|position| order.get(position)).collect();
        let mut total = 0;
        for rank in 0..world_size {
            let uneven = UNEVEN[uneven];
            let spec = PlanSpec { batch_size, drop_last, rank, world_size, uneven, ..whole.clone() };
            let plan = Plan::new(spec.clone()).unwrap();
            let expected = naive(&flat, &spec);
            let lengths: Vec<u64> = (0..plan.batches()).map(|i| plan.batch_len(i)).collect();
            let naive_lengths: Vec<u64> = expected.iter().map(|b| b.len() as u64).collect();
            prop_assert_eq!(lengths, naive_lengths);
            prop_assert_eq!(plan.samples(), expected.concat().len() as u64);
            prop_assert_eq!(batches(spec), expected);
            prop_assert!(plan.padded() == 0 || uneven == Uneven::Pad);
            total += plan.samples() + plan.dropped() - plan.padded();
        }
        prop_assert_eq!(total, samples);
    }
}
