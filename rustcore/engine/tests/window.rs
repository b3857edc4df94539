//! The admission window, one thread: bounds, order, budget, end.
#![cfg(not(loom))]
#![allow(missing_docs, clippy::unwrap_used)]

use proptest::prelude::*;
use tundish_engine::window::{Take, Window};

fn claim(window: &Window<u64>) -> Option<u64> {
    window.claim(|_| Some(())).map(|(batch, ())| batch)
}

#[test]
fn no_more_than_the_window_is_claimed() {
    let window = Window::new(0, 10, 3, true);
    assert_eq!([claim(&window), claim(&window), claim(&window)], [Some(0), Some(1), Some(2)]);
    assert_eq!(claim(&window), None);
    assert_eq!(window.put(2, 2), Ok(false));
    assert_eq!(claim(&window), None, "a finished batch that cannot be delivered makes no room");
    assert_eq!(window.put(0, 0), Ok(true));
    assert_eq!(claim(&window), None);
    assert_eq!(window.take(), Take::Ready(0, 0));
    assert_eq!(claim(&window), Some(3));
    assert_eq!(window.take(), Take::Pending);
}

#[test]
fn a_stuck_batch_costs_one_place_when_order_does_not_matter() {
    let window = Window::new(0, 10, 2, false);
    assert_eq!(claim(&window), Some(0));
    for batch in 1..10 {
        assert_eq!(claim(&window), Some(batch));
        assert_eq!(claim(&window), None);
        assert_eq!(window.put(batch, batch), Ok(true));
        assert_eq!(window.take(), Take::Ready(batch, batch));
    }
    assert_eq!(window.take(), Take::Pending);
    assert_eq!(window.put(0, 0), Ok(true));
    assert_eq!(window.take(), Take::Ready(0, 0));
    assert_eq!(window.take(), Take::End);
    assert_eq!(window.take(), Take::End);
}

#[test]
fn a_budget_may_refuse_any_batch_but_the_next_one() {
    let window: Window<u64> = Window::new(5, 9, 3, true);
    assert_eq!(window.claim(|ahead| (ahead == 0).then_some("first")), Some((5, "first")));
    assert_eq!(window.claim(|ahead| (ahead == 0).then_some("second")), None);
    assert_eq!(window.put(5, 5), Ok(true));
    assert_eq!(window.claim(|ahead| (ahead == 0).then_some("second")), None, "not yet taken");
    assert_eq!(window.take(), Take::Ready(5, 5));
    assert_eq!(window.claim(|ahead| (ahead == 0).then_some("second")), Some((6, "second")));
}

#[test]
fn workers_are_wanted_when_half_is_free_or_nothing_is_left_to_take() {
    let window = Window::new(0, 20, 6, true);
    assert!(window.hungry());
    for batch in 0..6 {
        assert_eq!(claim(&window), Some(batch));
        assert!(window.put(batch, batch).is_ok());
    }
    let mut wanted = Vec::new();
    for batch in 0..6 {
        assert_eq!(window.take(), Take::Ready(batch, batch));
        wanted.push(window.hungry());
    }
    assert_eq!(wanted, [false, false, true, true, true, true]);
    assert_eq!(claim(&window), Some(6));
    assert!(window.hungry(), "nothing is ready");
}

#[test]
fn only_the_newest_claim_can_be_taken_back() {
    let window = Window::new(0, 3, 3, true);
    assert_eq!((claim(&window), claim(&window)), (Some(0), Some(1)));
    assert!(!window.unclaim(0));
    assert!(window.unclaim(1));
    assert_eq!(claim(&window), Some(1));
}

#[test]
fn a_closed_window_gives_everything_back_and_says_so() {
    let window = Window::new(0, 4, 4, true);
    (0..3).for_each(|batch| assert_eq!(claim(&window), Some(batch)));
    assert_eq!(window.put(1, 1), Ok(false));
    assert_eq!(window.close(), [1]);
    assert_eq!(window.put(0, 0), Err(0));
    assert_eq!((claim(&window), window.take()), (None, Take::Closed));
    assert!(window.exhausted());
}

proptest! {
    #[test]
    fn every_batch_exactly_once_whatever_the_schedule(
        total in 0u64..40, start in 0u64..5, width in 1u64..6, in_order: bool, steps in prop::collection::vec(0u8..3, 0..400)
    ) {
        let end = start + total;
        let window = Window::new(start, end, width, in_order);
        let (mut working, mut got) = (Vec::new(), Vec::new());
        // A random schedule, then one that finishes.
        for step in steps.into_iter().chain((0..400).map(|step: u16| (step % 3) as u8)) {
            match step {
                0 => working.extend(claim(&window)),
                1 => if let Some(batch) = working.pop() { prop_assert!(window.put(batch, batch).is_ok()) },
                _ => if let Take::Ready(number, cell) = window.take() { prop_assert_eq!(number, cell); got.push(cell) },
            }
            let counts = window.counts();
            prop_assert!(counts.claimed - counts.delivered <= width);
        }
        prop_assert_eq!(window.take(), Take::End);
        if !in_order { got.sort_unstable(); }
        prop_assert_eq!(got, (start..end).collect::<Vec<_>>());
    }
}
