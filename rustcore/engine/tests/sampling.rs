//! Samplings: golden vectors of torch, limits, what every drawing keeps to.
#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tundish_engine::{Cancel, Order, OrderSpec, Permutation, PlanError, Sampling};

fn vectors(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let text = std::fs::read_to_string(path.join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

fn random(samples: u64, num_samples: u64, replacement: bool) -> Arc<Sampling> {
    Sampling::random(samples, num_samples, replacement).unwrap().into()
}

fn weighted(weights: &[f64], num_samples: u64, replacement: bool) -> Arc<Sampling> {
    Sampling::weighted(weights.to_vec(), num_samples, replacement, &Cancel::new()).unwrap().into()
}

fn subset(indices: &[u64]) -> Arc<Sampling> {
    Sampling::subset(indices.to_vec(), &Cancel::new()).unwrap().into()
}

fn fixed(indices: &[u64]) -> Arc<Sampling> {
    Sampling::fixed(indices.to_vec(), &Cancel::new()).unwrap().into()
}

fn spec(sampling: &Arc<Sampling>, order: Order, seed: u64, epoch: u64) -> OrderSpec {
    OrderSpec { sampling: Some(Arc::clone(sampling)), ..OrderSpec::new(order, 0, seed, epoch) }
}

fn build(sampling: &Arc<Sampling>, order: Order, seed: u64, epoch: u64) -> Permutation {
    Permutation::build(&spec(sampling, order, seed, epoch), &Cancel::new()).unwrap()
}

fn drawn(sampling: &Arc<Sampling>, order: Order, seed: u64, epoch: u64) -> Vec<u64> {
    let permutation = build(sampling, order, seed, epoch);
    assert_eq!(permutation.len(), sampling.len());
    assert_eq!(permutation.get(sampling.len()), None);
    (0..permutation.len()).map(|position| permutation.get(position).unwrap()).collect()
}

/// Compares a whole epoch, or its ends and a digest.
fn check_row(got: &[u64], expected: &Value, context: &Value) {
    if expected.is_array() {
        assert_eq!(got, numbers(expected), "{context}");
        return;
    }
    assert_eq!(got[..8], numbers(&expected["first"]), "{context}");
    assert_eq!(got[got.len() - 4..], numbers(&expected["last"]), "{context}");
    let bytes: Vec<u8> = got.iter().flat_map(|index| index.to_le_bytes()).collect();
    let digest = Sha256::digest(&bytes);
    let digest = digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    assert_eq!(digest, expected["sha256_u64le"], "{context}");
}

/// The sampling of a golden case; lists of numbers stand by name in the file's head.
fn sampling_of(golden: &Value, case: &Value) -> Arc<Sampling> {
    let replacement = || case["replacement"].as_bool().unwrap();
    let number = |key: &str| case[key].as_u64().unwrap();
    let indices = || numbers(&golden["indices"][case["indices"].as_str().unwrap()]);
    match case["kind"].as_str().unwrap() {
        "random" => random(
            case["samples"].as_u64().unwrap_or_else(|| number("n")),
            number("num_samples"),
            replacement(),
        ),
        "weighted" => {
            let bits = numbers(&golden["weights_as_bits"][case["weights"].as_str().unwrap()]);
            let weights: Vec<f64> = bits.into_iter().map(f64::from_bits).collect();
            weighted(&weights, number("num_samples"), replacement())
        }
        "subset" => subset(&indices()),
        other => panic!("{other}"),
    }
}

#[test]
fn torchs_samplers_are_equalled_in_every_mode() {
    let golden = vectors("torch_sampling_vectors.json");
    let cases = golden["samplings"].as_array().unwrap();
    assert!(cases.len() > 300);
    for case in cases {
        let sampling = sampling_of(&golden, case);
        let order = case["order"].as_str().unwrap().parse().unwrap();
        for (epoch, expected) in case["epochs"].as_object().unwrap() {
            let seed = case["seed"].as_u64().unwrap();
            check_row(&drawn(&sampling, order, seed, epoch.parse().unwrap()), expected, case);
        }
    }
}

#[test]
fn stable_samplings_equal_their_reference() {
    let golden = vectors("stable_vectors.json");
    let cases = golden["samplings"].as_array().unwrap();
    assert!(cases.len() > 100);
    for case in cases {
        let sampling = sampling_of(&golden, case);
        assert_eq!(format!("{:016x}", sampling.digest()), case["digest"], "{case}");
        let number = |key: &str| case[key].as_u64().unwrap();
        let (seed, epoch) = (number("seed"), number("epoch"));
        if let Some(places) = case["at"].as_object() {
            let permutation = build(&sampling, Order::Stable, seed, epoch);
            for (position, expected) in places {
                assert_eq!(permutation.get(position.parse().unwrap()), expected.as_u64(), "{case}");
            }
        } else {
            let whole = if case["order"].is_array() { &case["order"] } else { case };
            check_row(&drawn(&sampling, Order::Stable, seed, epoch), whole, case);
        }
    }
}

#[test]
fn a_fixed_sampling_is_the_same_in_any_order() {
    let indices = [5, 5, 0, 1 << 62, 3];
    for order in Order::ALL.into_iter().chain(Order::OF_SAMPLINGS) {
        assert_eq!(drawn(&fixed(&indices), order, 7, 9), indices, "{order}");
    }
    assert!(drawn(&fixed(&[]), Order::Stable, 7, 9).is_empty());
}

#[test]
fn a_random_sampling_of_all_is_the_plain_order() {
    let samples = 1003;
    let all = random(samples, samples, false);
    for (plain, sampled) in [
        (Order::Stable, Order::Stable),
        (Order::Torch, Order::TorchShared),
        (Order::TorchPersistent, Order::TorchPersistent),
        (Order::TorchDefault, Order::TorchDefault),
        (Order::TorchDefaultPersistent, Order::TorchDefaultPersistent),
    ] {
        for epoch in [0, 1, 5] {
            let order =
                Permutation::build(&OrderSpec::new(plain, samples, 7, epoch), &Cancel::new()).unwrap();
            let order: Vec<_> = (0..samples).map(|position| order.get(position).unwrap()).collect();
            assert_eq!(drawn(&all, sampled, 7, epoch), order, "{plain}");
        }
    }
}

#[test]
fn what_cannot_be_drawn_is_refused_by_name_and_value() {
    let cancel = Cancel::new();
    let weighted =
        |weights: &[f64], count, again| Sampling::weighted(weights.to_vec(), count, again, &cancel);
    let cases = [
        (Sampling::random(0, 5, true), "samples=0: "),
        (Sampling::random(5, 0, true), "num_samples=0: "),
        (Sampling::random(1 << 63, 5, true), "samples=9223372036854775808: "),
        (Sampling::random(5, 1 << 63, true), "num_samples=9223372036854775808: "),
        (weighted(&[], 1, true), "weights=0 of them: "),
        (weighted(&[1.0], 0, true), "num_samples=0: "),
        (weighted(&[1.0, -0.5], 1, true), "weights=-0.5 at place 1: "),
        (weighted(&[f64::NAN], 1, true), "weights=NaN at place 0: "),
        (weighted(&[1.0, f64::INFINITY], 1, true), "weights=inf at place 1: "),
        (weighted(&[0.0, -0.0], 1, true), "weights=a sum of 0: "),
        (weighted(&[1e308; 2], 1, true), "weights=a sum of inf: "),
        (weighted(&[1.0, 0.0, 2.0], 3, false), "num_samples=3: without replacement at most"),
        (weighted(&vec![1.0; (1 << 24) + 1], 3, false), "weights=16777217 of them: "),
        (Sampling::subset(vec![0, (1 << 63) - 1], &cancel), "indices=9223372036854775807 at place 1: "),
        (Sampling::fixed(vec![u64::MAX], &cancel), "indices=18446744073709551615 at place 0: "),
    ];
    for (result, expected) in cases {
        let error = result.unwrap_err();
        assert!(matches!(error, PlanError::Invalid { .. }));
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    assert!(weighted(&vec![1.0; 1 << 24], 3, false).is_ok());
}

#[test]
fn a_raised_flag_stops_a_description() {
    let cancel = Cancel::new();
    cancel.cancel();
    assert_eq!(Sampling::weighted(vec![1.0], 1, true, &cancel), Err(PlanError::Cancelled));
    assert_eq!(Sampling::subset(vec![1], &cancel), Err(PlanError::Cancelled));
    assert_eq!(Sampling::fixed(vec![1], &cancel), Err(PlanError::Cancelled));
}

#[test]
fn orders_that_a_sampling_cannot_have_are_refused_by_name() {
    let refused = |sampling: &Arc<Sampling>, order| {
        Permutation::build(&spec(sampling, order, 7, 0), &Cancel::new()).unwrap_err().to_string()
    };
    let some = random(10, 10, false);
    for order in Order::ALL.into_iter().filter(|order| !Order::OF_SAMPLINGS.contains(order)) {
        let error = refused(&some, order);
        assert!(
            error.starts_with(&format!("order=\"{order}\": a sampler's order is one of \"stable\", ")),
            "{error}"
        );
    }
    let error = refused(&random(1 << 32, 5, false), Order::Torch);
    assert!(error.starts_with("samples=4294967296: order \"torch\" holds at most"), "{error}");
    let error = refused(&random(10, 1 << 32, false), Order::Stable);
    assert!(error.starts_with("num_samples=4294967296: order \"stable\" holds at most"), "{error}");
    let error = refused(&random(10, 1 << 32, true), Order::TorchDefault);
    assert!(error.starts_with("num_samples=4294967296: "), "{error}");
    let plain = Permutation::build(&OrderSpec::new(Order::TorchShared, 10, 7, 0), &Cancel::new());
    let error = plain.unwrap_err().to_string();
    assert_eq!(error, "order=\"torch:shared\": that is for samplers; without one it is called \"torch\"");
}
