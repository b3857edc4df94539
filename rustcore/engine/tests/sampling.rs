//! Samplings: golden vectors of torch, limits, what every drawing keeps to.
#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tundish_engine::{Cancel, Order, OrderSpec, Permutation, PlanError, Sampling};

mod common;
use common::{build, drawn, fixed, random, spec, subset, weighted};

/// The longest a cancelled call may go on.
const PROMPT: Duration = Duration::from_millis(100);

fn vectors(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let text = std::fs::read_to_string(path.join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
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
fn the_rows_of_the_specification_hold() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/order.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = page.split("```golden-samplings\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(block.lines().count() > 20);
    for line in block.lines() {
        let (place, expected) = line.split_once(": ").unwrap();
        let (kind, words) = place.split_once(' ').unwrap();
        let given: HashMap<&str, &str> = words.split(' ').map(|word| word.split_once('=').unwrap()).collect();
        let number = |name: &str| given[name].parse::<u64>().unwrap();
        let weights = || given["weights"].split(',').map(|item| item.parse().unwrap()).collect::<Vec<_>>();
        let indices = || given["indices"].split(',').map(|item| item.parse().unwrap()).collect::<Vec<_>>();
        let replacement = || given["replacement"] == "True";
        let sampling = match kind {
            "random" => random(number("samples"), number("num_samples"), replacement()),
            "weighted" => weighted(&weights(), number("num_samples"), replacement()),
            "subset" => subset(&indices()),
            "fixed" => fixed(&indices()),
            other => panic!("{other}"),
        };
        let order = given["order"].parse().unwrap();
        let got = drawn(&sampling, order, number("seed"), number("epoch"));
        let got: Vec<String> = got.iter().map(u64::to_string).collect();
        assert_eq!(got.join(" "), expected, "{line}");
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

#[test]
fn the_digest_is_of_everything_and_of_nothing_else() {
    let all = [
        random(10, 10, false),
        random(10, 10, true),
        random(10, 11, true),
        random(11, 10, true),
        weighted(&[1.0, 2.0], 1, true),
        weighted(&[1.0, 2.0], 1, false),
        weighted(&[1.0, 2.0], 2, false),
        weighted(&[2.0, 1.0], 1, true),
        weighted(&[1.0, 2.0, 0.0], 1, true),
        subset(&[]),
        subset(&[0]),
        subset(&[1, 2]),
        subset(&[2, 1]),
        fixed(&[]),
        fixed(&[1, 2]),
        fixed(&[1, 2, 0]),
    ];
    for (place, one) in all.iter().enumerate() {
        for (other_place, other) in all.iter().enumerate() {
            assert_eq!(place == other_place, one.digest() == other.digest(), "{one:?} {other:?}");
            assert_eq!(place == other_place, one == other);
        }
    }
    assert_eq!(weighted(&[1.0, -0.0], 1, true), weighted(&[1.0, 0.0], 1, true));
    assert_eq!(format!("{:016x}", fixed(&[5, 0, 1]).digest()), "316fcd1dbe42adab");
    assert_eq!(format!("{:016x}", weighted(&[1.0, -0.0], 1, true).digest()), "d2dad11c0af75643");
}

#[test]
fn computed_samplings_keep_no_table() {
    let bytes = |sampling: Arc<Sampling>, order| build(&sampling, order, 7, 0).table_bytes();
    assert_eq!(bytes(random(1 << 20, 1 << 40, false), Order::Stable), 0);
    assert_eq!(bytes(random(10, 1 << 40, true), Order::Stable), 0);
    assert_eq!(bytes(random(1000, 100, false), Order::Stable), 400);
    assert_eq!(bytes(random(10, 100, false), Order::Torch), 400);
    assert_eq!(bytes(random(1 << 33, 100, true), Order::Torch), 800);
    assert_eq!(bytes(fixed(&[1; 100]), Order::Stable), 0);
    assert_eq!(bytes(subset(&[1; 100]), Order::Stable), 400);
    assert_eq!(bytes(weighted(&[1.0; 100], 10, false), Order::Stable), 40);
    assert_eq!(bytes(weighted(&[1.0; 100], 10, true), Order::TorchDefault), 40);
}

#[test]
fn a_far_epoch_of_a_sampler_is_reached_directly() {
    // Epoch 2^40 of a sampler that seeds a private generator, and of stable ones.
    for (sampling, order) in [
        (random(10, 40, true), Order::Stable),
        (weighted(&[1.0, 2.0], 5, true), Order::Stable),
        (subset(&[4, 5, 6]), Order::Stable),
    ] {
        assert_eq!(drawn(&sampling, order, 7, 1 << 40).len() as u64, sampling.len());
    }
    let sampling = random(10, 40, true);
    let error = Permutation::build(&spec(&sampling, Order::Torch, 7, u64::MAX), &Cancel::new()).unwrap_err();
    assert!(error.to_string().starts_with("epoch=18446744073709551615: "), "{error}");
}

#[test]
fn large_samplings_are_cancelled_promptly() {
    let many: Vec<f64> = (1..1 << 24).map(f64::from).collect();
    let race = weighted(&many, 1 << 23, false);
    let looked_up = weighted(&many, 1 << 29, true);
    let far = 1_000_000_000;
    for (sampling, order, epoch, wait) in [
        (random(1000, 1 << 29, false), Order::Stable, 0, 100),
        (random(1000, 1 << 29, false), Order::TorchDefault, 0, 100),
        (random(1000, 1 << 29, true), Order::Torch, 0, 100),
        (random(1 << 33, 1 << 29, true), Order::Torch, 0, 100),
        (random(1000, 1000, true), Order::Torch, far, 50),
        (weighted(&[1.0; 500], 500, false), Order::TorchPersistent, far, 50),
        (Arc::clone(&race), Order::Stable, 0, 50),
        (race, Order::Torch, 0, 50),
        (Arc::clone(&looked_up), Order::Torch, 0, 50),
        (looked_up, Order::Torch, 0, 1000),
    ] {
        let (error, took) = cancelled_after(&sampling, order, epoch, wait);
        assert_eq!(error, Some(PlanError::Cancelled), "{order} {wait}");
        assert!(took < PROMPT, "{order} {wait} took {took:?}");
    }
}

#[test]
fn a_race_is_cancelled_promptly_whatever_it_is_at() {
    let many: Vec<f64> = (1..1 << 24).map(f64::from).collect();
    let race = weighted(&many, 1 << 23, false);
    for wait in (100..2500).step_by(600) {
        let (_, took) = cancelled_after(&race, Order::Stable, 0, wait);
        assert!(took < PROMPT, "{wait} took {took:?}");
    }
}

/// How a build ends that is cancelled some milliseconds after it began, and how long
/// after that.
fn cancelled_after(
    sampling: &Arc<Sampling>,
    order: Order,
    epoch: u64,
    wait: u64,
) -> (Option<PlanError>, Duration) {
    let cancel = Cancel::new();
    let (flag, wanted) = (cancel.clone(), spec(sampling, order, 99, epoch));
    let worker = std::thread::spawn(move || {
        let result = Permutation::build(&wanted, &flag);
        (result.err(), Instant::now())
    });
    std::thread::sleep(Duration::from_millis(wait));
    let raised = Instant::now();
    cancel.cancel();
    let (error, ended) = worker.join().unwrap();
    (error, ended.saturating_duration_since(raised))
}
