//! Plans of samplings: batches and shards are slices of what is drawn.
#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tundish_engine::{Cancel, Order, Plan, PlanSpec, Sampling, Uneven};

mod common;
use common::{drawn, fixed, random, subset, weighted};

fn spec(sampling: &Arc<Sampling>, order: Order, batch_size: u64) -> PlanSpec {
    PlanSpec {
        // Another length than the sampling's: it must not matter.
        samples: 3,
        order,
        seed: 7,
        epoch: 2,
        batch_size,
        drop_last: false,
        rank: 0,
        world_size: 1,
        uneven: Uneven::Pad,
        sampling: Some(Arc::clone(sampling)),
    }
}

fn batch(plan: &Plan, number: u64) -> Vec<u64> {
    let mut indices = Vec::new();
    plan.indices(number, &Cancel::new(), &mut indices).unwrap();
    indices
}

fn samplings() -> Vec<Arc<Sampling>> {
    vec![
        random(100, 40, false),
        random(10, 43, false),
        random(1 << 20, 77, false),
        random(10, 43, true),
        weighted(&[0.5, 1.5, 3.0, 0.0], 43, true),
        weighted(&[1.0; 100], 43, false),
        subset(&(100..143).collect::<Vec<_>>()),
        fixed(&(100..143).rev().collect::<Vec<_>>()),
    ]
}

#[test]
fn lengths_are_those_of_what_is_drawn() {
    for sampling in samplings() {
        for order in Order::OF_SAMPLINGS {
            let plan = Plan::new(spec(&sampling, order, 4)).unwrap();
            let counts = [plan.positions(), plan.samples(), plan.batches()];
            assert_eq!(counts, [sampling.len(), sampling.len(), sampling.len().div_ceil(4)]);
        }
    }
    let plan = Plan::new(spec(&subset(&[]), Order::Torch, 4)).unwrap();
    assert_eq!([plan.positions(), plan.samples(), plan.batches(), plan.work()], [0; 4]);
}

#[test]
fn full_global_batches_are_the_same_for_any_world_size() {
    for sampling in samplings() {
        for order in Order::OF_SAMPLINGS {
            let global = |world: u64| -> Vec<Vec<u64>> {
                let ranks = (0..world).map(|rank| {
                    let one = PlanSpec { rank, world_size: world, ..spec(&sampling, order, 8 / world) };
                    Plan::new(one).unwrap()
                });
                let ranks: Vec<_> = ranks.collect();
                let of_all = |number| {
                    let mut all: Vec<u64> = ranks.iter().flat_map(|plan| batch(plan, number)).collect();
                    all.sort_unstable();
                    all
                };
                (0..sampling.len() / 8).map(of_all).collect()
            };
            assert!(global(1).len() > 4);
            assert_eq!(global(1), global(2), "{order} {sampling:?}");
            assert_eq!(global(1), global(8), "{order} {sampling:?}");
        }
    }
}

#[test]
fn what_a_sampling_cannot_have_is_refused_when_the_plan_is_made() {
    let refused =
        |sampling: &Arc<Sampling>, order| Plan::new(spec(sampling, order, 4)).unwrap_err().to_string();
    let error = refused(&random(10, 40, true), Order::Burn);
    assert!(
        error.starts_with("order=\"burn\": a sampler's order is one of \"stable\", \"torch\","),
        "{error}"
    );
    let error = refused(&random(10, 1 << 40, true), Order::Torch);
    assert!(error.starts_with("num_samples=1099511627776: "), "{error}");
    let plain = PlanSpec { sampling: None, ..spec(&fixed(&[1]), Order::TorchShared, 4) };
    assert!(Plan::new(plain).unwrap_err().to_string().starts_with("order=\"torch:shared\": "));
}

#[test]
fn the_first_batch_of_a_large_drawing_comes_at_once() {
    let many = 200_000_000;
    for sampling in [random(many, many, true), random(many, many, false), random(many, 3 * many, false)] {
        let begun = Instant::now();
        let plan = Plan::new(spec(&sampling, Order::Stable, 256)).unwrap();
        assert_eq!(plan.work(), 0);
        let ends = [batch(&plan, 0).len(), batch(&plan, plan.batches() - 1).len()];
        assert_eq!(ends, [256, 256]);
        assert!(begun.elapsed() < Duration::from_millis(50), "{:?}", begun.elapsed());
    }
}

#[test]
fn equal_samplings_share_what_was_built() {
    let weights: Vec<f64> = (1..2_000_000).map(f64::from).collect();
    let made = || Plan::new(spec(&weighted(&weights, 1_000_000, false), Order::Stable, 4)).unwrap();
    let first = made();
    first.prepare(&Cancel::new()).unwrap();
    let again = made();
    let begun = Instant::now();
    assert_eq!(batch(&again, 0), batch(&first, 0));
    assert!(begun.elapsed() < Duration::from_millis(20), "{:?}", begun.elapsed());
    let other = Plan::new(PlanSpec { epoch: 3, ..first.spec().clone() }).unwrap();
    assert_ne!(batch(&other, 0), batch(&first, 0));
}

#[test]
fn work_tells_how_long_the_first_use_may_take() {
    let work = |spec: PlanSpec| Plan::new(spec).unwrap().work();
    let some = random(1000, 500, false);
    assert_eq!(work(spec(&some, Order::Stable, 4)), 1000);
    assert_eq!(work(PlanSpec { epoch: 1 << 30, ..spec(&some, Order::Stable, 4) }), 1000);
    assert_eq!(work(PlanSpec { epoch: 1 << 30, ..spec(&some, Order::Torch, 4) }), 1000 * ((1 << 30) + 1));
    assert_eq!(work(PlanSpec { epoch: u64::MAX, ..spec(&some, Order::Torch, 4) }), u64::MAX);
    assert_eq!(work(spec(&fixed(&[1, 2]), Order::Torch, 4)), 0);
    let plain = |order, samples| PlanSpec { sampling: None, samples, ..spec(&some, order, 4) };
    assert_eq!(work(plain(Order::Sequential, 1 << 40)), 0);
    assert_eq!(work(plain(Order::Stable, 1 << 40)), 0);
    assert_eq!(work(plain(Order::DataloaderRs, 1000)), 3000);
    assert_eq!(work(plain(Order::Burn, 1000)), 1000);
}

proptest! {
    #[test]
    fn ranks_cut_what_is_drawn_into_strides(
        kind in 0..8_usize,
        which in 0..Order::OF_SAMPLINGS.len(),
        batch_size in 1_u64..20,
        world_size in 1_u64..9,
        drop_last: bool,
    ) {
        let (sampling, order) = (&samplings()[kind], Order::OF_SAMPLINGS[which]);
        let whole = drawn(sampling, order, 7, 2);
        let mut total = 0;
        for rank in 0..world_size {
            let uneven = Uneven::Keep;
            let own = PlanSpec { rank, world_size, uneven, drop_last, ..spec(sampling, order, batch_size) };
            let plan = Plan::new(own).unwrap();
            let shard: Vec<u64> =
                whole.iter().copied().skip(rank as usize).step_by(world_size as usize).collect();
            // From the last batch to the first: no batch needs the one before it.
            for number in (0..plan.batches()).rev() {
                let start = (number * batch_size) as usize;
                let stop = shard.len().min(start + batch_size as usize);
                prop_assert_eq!(batch(&plan, number), &shard[start..stop]);
            }
            total += plan.samples() + plan.dropped();
        }
        prop_assert_eq!(total, sampling.len());
    }
}
