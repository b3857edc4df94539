//! Orders: golden vectors, bijections, limits, cancellation.
#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tundish_engine::{Cancel, Order, OrderSpec, Permutation, PlanError};

/// Sample numbers on both sides of every border that an order has.
const BORDERS: [u64; 9] = [0, 1, 2, 623, 625, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1];

/// The longest a cancelled call may go on.
const PROMPT: Duration = Duration::from_millis(100);

fn vectors(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let text = std::fs::read_to_string(path.join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn numbers(value: &Value) -> Vec<u64> {
    let flat = value.as_array().unwrap().iter();
    flat.flat_map(|item| item.as_u64().map_or_else(|| numbers(item), |n| vec![n])).collect()
}

fn build(order: Order, samples: u64, seed: u64, epoch: u64) -> Permutation {
    Permutation::build(&OrderSpec::new(order, samples, seed, epoch), &Cancel::new()).unwrap()
}

fn all(permutation: &Permutation) -> Vec<u64> {
    let positions = 0..permutation.len();
    positions.map(|p| permutation.get(p).unwrap()).collect()
}

fn flat(order: Order, samples: u64, seed: u64, epoch: u64) -> Vec<u64> {
    all(&build(order, samples, seed, epoch))
}

fn sha256(indices: &[u64]) -> String {
    let bytes: Vec<u8> = indices.iter().flat_map(|i| i.to_le_bytes()).collect();
    let digest = Sha256::digest(&bytes);
    digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Compares epochs with a golden case: whole lists, or ends and a digest.
fn check_case(order: Order, case: &Value) {
    let samples = case["n"].as_u64().unwrap();
    let seed = case["seed"].as_u64().unwrap();
    let epochs = case.get("epoch").map_or(0..3, |e| {
        let epoch = e.as_u64().unwrap();
        epoch..epoch + 1
    });
    for (row, epoch) in epochs.enumerate() {
        let got = flat(order, samples, seed, epoch);
        let expected = &case["epochs"];
        let context = format!("{order} n={samples} seed={seed} epoch={epoch}");
        if expected.is_array() {
            assert_eq!(got, numbers(&expected[row]), "{context}");
        } else {
            assert_eq!(got[..8], numbers(&expected["first"][row]), "{context}");
            assert_eq!(got[got.len() - 4..], numbers(&expected["last"][row]), "{context}");
            assert_eq!(sha256(&got), expected["sha256_u64le"][row], "{context}");
        }
    }
}

#[test]
fn torch_orders_equal_torch() {
    let golden = vectors("torch_vectors.json");
    for case in golden["torch"].as_array().unwrap() {
        check_case(Order::Torch, case);
    }
    for case in golden["torch_persistent_workers"].as_array().unwrap() {
        check_case(Order::TorchPersistent, case);
    }
    for case in golden["torch_default_generator"].as_array().unwrap() {
        let mut case = case.clone();
        case["seed"] = case["manual_seed"].clone();
        check_case(Order::TorchDefault, &case);
    }
}

/// Compares single epochs, by number, with a golden case.
fn check_epochs(spec: &OrderSpec, case: &Value) {
    for (epoch, expected) in case["epochs"].as_object().unwrap() {
        let spec = OrderSpec { epoch: epoch.parse().unwrap(), ..spec.clone() };
        let got = all(&Permutation::build(&spec, &Cancel::new()).unwrap());
        if expected.is_array() {
            assert_eq!(got, numbers(expected), "{spec:?}");
        } else {
            assert_eq!(got[..8], numbers(&expected["first"]), "{spec:?}");
            assert_eq!(got[got.len() - 4..], numbers(&expected["last"]), "{spec:?}");
            assert_eq!(sha256(&got), expected["sha256_u64le"], "{spec:?}");
        }
    }
}

#[test]
fn burn_and_dataloader_rs_equal_their_references() {
    let golden = vectors("burn_and_dataloader_rs_vectors.json");
    for (name, order) in [("burn", Order::Burn), ("dataloader_rs", Order::DataloaderRs)] {
        for case in golden[name].as_array().unwrap() {
            check_case(order, case);
        }
        for case in golden[format!("{name}_far")].as_array().unwrap() {
            let number = |key: &str| case[key].as_u64().unwrap();
            check_epochs(&OrderSpec::new(order, number("n"), number("seed"), 0), case);
        }
    }
    for case in golden["burn_workers"].as_array().unwrap() {
        let number = |key: &str| case[key].as_u64().unwrap();
        let order = Order::BurnWorkers(number("workers") as u16);
        let spec = OrderSpec::new(order, number("n"), number("seed"), 0);
        check_epochs(&OrderSpec { global_batch: number("global_batch"), ..spec }, case);
    }
}

#[test]
fn stable_equals_its_reference() {
    let golden = vectors("stable_vectors.json");
    for case in golden["stable"].as_array().unwrap() {
        let number = |key: &str| case[key].as_u64().unwrap();
        let order = build(Order::Stable, number("n"), number("seed"), number("epoch"));
        if let Some(places) = case["at"].as_object() {
            for (position, expected) in places {
                let got = order.get(position.parse().unwrap());
                assert_eq!(got, expected.as_u64(), "{case}");
            }
            continue;
        }
        let got = all(&order);
        if case["order"].is_array() {
            assert_eq!(got, numbers(&case["order"]), "{case}");
        } else {
            assert_eq!(got[..8], numbers(&case["first"]), "{case}");
            assert_eq!(got[got.len() - 4..], numbers(&case["last"]), "{case}");
            assert_eq!(sha256(&got), case["sha256_u64le"], "{case}");
        }
    }
}

#[test]
fn the_rows_of_the_specification_hold() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/order.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = page.split("```golden\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(block.lines().count() > 10);
    for line in block.lines() {
        let (place, expected) = line.split_once(": ").unwrap();
        let mut words = place.split(' ');
        let order = words.next().unwrap().parse().unwrap();
        let mut spec = OrderSpec::new(order, 0, 0, 0);
        for (name, value) in words.map(|word| word.split_once('=').unwrap()) {
            *(match name {
                "n" => &mut spec.samples,
                "seed" => &mut spec.seed,
                "epoch" => &mut spec.epoch,
                "global_batch" => &mut spec.global_batch,
                other => panic!("{other}"),
            }) = value.parse().unwrap();
        }
        let order = Permutation::build(&spec, &Cancel::new()).unwrap();
        for (position, index) in expected.split(' ').enumerate() {
            assert_eq!(order.get(position as u64), index.parse().ok(), "{line}");
        }
    }
}

#[test]
fn torch_orders_use_the_low_half_of_the_seed_only() {
    for order in Order::ALL.into_iter().filter(|order| order.to_string().starts_with("torch")) {
        assert_eq!(flat(order, 50, 7, 1), flat(order, 50, (5 << 32) + 7, 1), "{order}");
    }
    assert_ne!(flat(Order::Stable, 50, 7, 1), flat(Order::Stable, 50, (5 << 32) + 7, 1));
}

#[test]
fn epochs_do_not_depend_on_what_was_asked_for_before() {
    for order in Order::ALL {
        let epochs = |numbers: &[u64]| {
            let orders = numbers.iter().map(|&epoch| flat(order, 999, 123, epoch));
            orders.collect::<Vec<_>>()
        };
        let far = epochs(&[40]);
        let ascending = epochs(&[0, 1, 2, 3]);
        let mut mixed = epochs(&[2, 0, 3, 1]);
        mixed.sort_by_key(|found| ascending.iter().position(|known| known == found));
        assert_eq!(mixed, ascending, "{order}");
        assert_eq!(epochs(&[40]), far, "{order}");
    }
}

#[test]
fn every_order_is_a_bijection_at_the_borders() {
    for samples in BORDERS {
        for order in Order::ALL {
            assert_bijection(&build(order, samples, 7, 1));
        }
    }
}

#[test]
fn sequential_is_the_identity() {
    let order = build(Order::Sequential, i64::MAX as u64, 7, 3);
    assert_eq!(order.get(1 << 62), Some(1 << 62));
    assert_eq!(order.get(i64::MAX as u64), None);
}

#[test]
fn memory_is_four_bytes_a_sample_or_none() {
    for order in Order::ALL {
        for samples in [1000, (1 << 20) - 1, 1 << 20] {
            let bytes = build(order, samples, 7, 0).table_bytes() as u64;
            let expected = if order.is_materialized(samples) { 4 * samples } else { 0 };
            assert_eq!(bytes, expected, "{order} {samples}");
        }
    }
    assert!(!Order::Sequential.is_materialized(10));
    assert!(!Order::Stable.is_materialized(1 << 20));
    assert!(Order::Torch.is_materialized(1 << 20));
}

#[test]
fn names_are_read_and_written() {
    for order in Order::ALL {
        assert_eq!(order.to_string().parse(), Ok(order));
        assert_eq!(order.fingerprint(), format!("{order}/1"));
    }
    let error = "torch:defautl".parse::<Order>().unwrap_err().to_string();
    assert!(error.starts_with("order=\"torch:defautl\": unknown order"), "{error}");
    assert!(error.contains("\"torch:default\""), "{error}");
}

#[test]
fn burns_workers_are_a_number_in_the_name() {
    for workers in [1, 2, 16, 1024] {
        let order = Order::BurnWorkers(workers);
        assert_eq!(format!("burn:workers={workers}").parse(), Ok(order));
        assert_eq!(order.fingerprint(), format!("burn:workers={workers}/1"));
    }
    for text in ["0", "1025", "65536", "-1", "+2", "02", " 2", "N", ""] {
        let name = format!("burn:workers={text}");
        let error = name.parse::<Order>().unwrap_err().to_string();
        assert_eq!(error, format!("order=\"{name}\": burn's workers are a number from 1 to 1024"));
    }
    let error = "burn:worker=2".parse::<Order>().unwrap_err().to_string();
    assert!(error.contains("\"burn\", \"burn:workers=N\", \"dataloader-rs\""), "{error}");
}

#[test]
fn what_an_order_cannot_hold_is_refused_by_name() {
    let refused = |order, samples, epoch| {
        Permutation::build(&OrderSpec::new(order, samples, 7, epoch), &Cancel::new()).unwrap_err().to_string()
    };
    let error = refused(Order::Torch, 1 << 32, 0);
    assert!(error.starts_with("samples=4294967296: "), "{error}");
    assert!(error.contains("order=\"stable\""), "{error}");
    let error = refused(Order::Burn, (1 << 32) - 1, 0);
    assert!(error.contains("order \"burn\" holds at most 2**32 - 2 samples"), "{error}");
    let error = refused(Order::Stable, 1 << 63, 0);
    assert!(error.starts_with("samples=9223372036854775808: "), "{error}");
    let spec = OrderSpec { global_batch: 0, ..OrderSpec::new(Order::BurnWorkers(2), 10, 7, 0) };
    let error = Permutation::build(&spec, &Cancel::new()).unwrap_err().to_string();
    assert!(error.starts_with("global_batch=0: "), "{error}");
    let error = refused(Order::TorchDefault, 10, u64::MAX);
    assert!(error.starts_with("epoch=18446744073709551615: "), "{error}");
}

#[test]
fn a_raised_flag_stops_a_build_before_it_starts() {
    let cancel = Cancel::new();
    cancel.clone().cancel();
    let result = Permutation::build(&OrderSpec::new(Order::Torch, 10, 7, 0), &cancel);
    assert_eq!(result.err(), Some(PlanError::Cancelled));
}

#[test]
fn a_large_torch_order_is_cancelled_promptly() {
    // Early, the table is being filled; later, it is being shuffled.
    for wait in [30, 700] {
        assert_cancels_promptly(Order::Torch, 200_000_000, 0, Duration::from_millis(wait));
    }
}

#[test]
fn walking_to_a_far_epoch_is_cancelled_promptly() {
    for order in [Order::Torch, Order::DataloaderRs] {
        assert_cancels_promptly(order, 1_000_000, 1_000_000_000, Duration::from_millis(50));
    }
}

#[test]
fn other_large_orders_are_cancelled_promptly() {
    for order in [Order::Burn, Order::BurnWorkers(3), Order::DataloaderRs] {
        assert_cancels_promptly(order, 200_000_000, 0, Duration::from_millis(500));
    }
}

fn assert_cancels_promptly(order: Order, samples: u64, epoch: u64, wait: Duration) {
    let cancel = Cancel::new();
    let flag = cancel.clone();
    let worker = std::thread::spawn(move || {
        let result = Permutation::build(&OrderSpec::new(order, samples, 99, epoch), &flag);
        (result.err(), Instant::now())
    });
    std::thread::sleep(wait);
    let raised = Instant::now();
    cancel.cancel();
    let (error, ended) = worker.join().unwrap();
    assert_eq!(error, Some(PlanError::Cancelled));
    assert!(ended - raised < PROMPT, "took {:?}", ended - raised);
}

fn assert_bijection(order: &Permutation) {
    let mut seen = vec![false; order.len() as usize];
    for position in 0..order.len() {
        let index = order.get(position).unwrap() as usize;
        assert!(!std::mem::replace(&mut seen[index], true), "{index} twice");
    }
    assert_eq!(order.get(order.len()), None);
}

proptest! {
    #[test]
    fn any_order_is_a_bijection(
        which in 0..Order::ALL.len(),
        samples in 0_u64..3000,
        seed: u64,
        epoch in 0_u64..20,
    ) {
        assert_bijection(&build(Order::ALL[which], samples, seed, epoch));
    }

    #[test]
    fn stable_takes_any_seed_and_epoch(samples in 0_u64..300, seed: u64, epoch: u64) {
        assert_bijection(&build(Order::Stable, samples, seed, epoch));
    }

    #[test]
    fn computed_stable_orders_never_repeat_an_index(
        samples in (1_u64 << 20)..(1 << 63),
        shift in 0_u32..43,
        seed: u64,
        epoch: u64,
    ) {
        let samples = (samples >> shift).max(1 << 20);
        let order = build(Order::Stable, samples, seed, epoch);
        let mut seen: Vec<u64> = (0..1000).chain(samples - 1000..samples)
            .map(|position| order.get(position).unwrap())
            .collect();
        seen.sort_unstable();
        prop_assert!(seen.windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert!(seen[1999] < samples);
    }
}
