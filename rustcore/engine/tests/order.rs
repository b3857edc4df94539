//! Orders: golden vectors, bijections, statistics, limits, cancellation.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tundish_engine::{Cancel, Order, Permutation, PlanError};

/// Sample numbers on both sides of every border of an order.
const BORDERS: [u64; 11] = [0, 1, 2, 3, 10, 623, 625, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1];

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
    Permutation::build(order, samples, seed, epoch, &Cancel::new()).unwrap()
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
