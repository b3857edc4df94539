//! Samples side by side: every place once, never more lanes than asked for.
#![cfg(not(loom))]
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tundish_engine::{Fan, Pool, ThreadMain};

fn pool(workers: usize) -> Pool {
    let main: ThreadMain = Arc::new(|work| work());
    Pool::new(workers, "lane", &main).unwrap()
}

fn wait(fan: &Fan) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !fan.wait(Duration::from_millis(50)) {
        assert!(Instant::now() < deadline, "the lanes hang");
    }
}

#[test]
fn every_place_is_called_once_by_no_more_lanes_than_asked_for() {
    let pool = pool(6);
    for (count, lanes) in [(0, 3), (1, 3), (40, 1), (40, 3), (40, 6), (40, 99)] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (busy, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let call = {
            let (seen, busy, most) = (Arc::clone(&seen), Arc::clone(&busy), Arc::clone(&most));
            move |place| {
                most.fetch_max(busy.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_micros(300));
                seen.lock().unwrap().push(place);
                busy.fetch_sub(1, Ordering::SeqCst);
                true
            }
        };
        wait(&Fan::start(&pool, count, lanes, call));
        let mut seen = seen.lock().unwrap().clone();
        seen.sort_unstable();
        assert_eq!(seen, (0..count).collect::<Vec<_>>());
        assert!(most.load(Ordering::SeqCst) <= lanes.min(6));
        assert!(count < 40 || lanes == 1 || most.load(Ordering::SeqCst) > 1, "lanes work side by side");
    }
}

#[test]
fn after_a_call_that_says_no_nothing_is_begun() {
    let pool = pool(2);
    let calls = Arc::new(AtomicUsize::new(0));
    let fan = {
        let calls = Arc::clone(&calls);
        Fan::start(&pool, 1000, 2, move |place| {
            calls.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
            place != 3
        })
    };
    wait(&fan);
    let calls = calls.load(Ordering::SeqCst);
    // A busy machine may let the other lane make a few more before the answer is known.
    assert!((4..500).contains(&calls), "{calls}");
}

#[test]
fn stuck_lanes_are_replaced_and_later_batches_have_theirs() {
    let pool = pool(2);
    let (released, entered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let fan = {
        let (released, entered) = (Arc::clone(&released), Arc::clone(&entered));
        Fan::start(&pool, 9, 2, move |_| {
            entered.fetch_add(1, Ordering::SeqCst);
            while !released.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(2));
            }
            true
        })
    };
    while entered.load(Ordering::SeqCst) < 2 {
        assert!(!fan.wait(Duration::from_millis(5)));
    }
    assert_eq!(fan.first_running(), Some(0));
    fan.stop(true);
    assert!(fan.wait(Duration::ZERO), "whoever waits is free");
    wait(&Fan::start(&pool, 5, 2, |_| true));
    released.store(true, Ordering::SeqCst);
    assert!(pool.close(Duration::from_secs(2)));
    assert_eq!(entered.load(Ordering::SeqCst), 2);
}
