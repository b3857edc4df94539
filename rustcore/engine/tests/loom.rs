//! The window under every interleaving loom can think of.
#![cfg(loom)]
#![allow(missing_docs, clippy::unwrap_used)]

use loom::sync::Arc;
use loom::thread;
use std::time::Duration;
use tundish_engine::window::{Take, Window};

fn drain(window: &Window<u64>) -> Vec<u64> {
    let mut got = Vec::new();
    loop {
        match window.take() {
            Take::Ready(number, cell) => {
                assert_eq!(number, cell);
                got.push(cell);
            }
            Take::Pending => {
                window.wait(Duration::from_secs(1));
            }
            Take::End | Take::Closed => return got,
        }
    }
}

/// Claims and puts whatever is inside the window, `n` batches at most.
fn work(window: &Window<u64>, n: usize) {
    for _ in 0..n {
        let Some((batch, ())) = window.claim(|_| Some(())) else { return };
        let _ = window.put(batch, batch);
    }
}

#[test]
fn two_workers_deliver_in_order_and_no_wake_is_lost() {
    loom::model(|| {
        let window = Arc::new(Window::new(0, 2, 2, true));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let window = Arc::clone(&window);
                thread::spawn(move || work(&window, 1))
            })
            .collect();
        assert_eq!(drain(&window), [0, 1]);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn out_of_order_delivers_each_once() {
    loom::model(|| {
        let window = Arc::new(Window::new(0, 2, 2, false));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let window = Arc::clone(&window);
                thread::spawn(move || work(&window, 1))
            })
            .collect();
        let mut got = drain(&window);
        got.sort_unstable();
        assert_eq!(got, [0, 1]);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn closing_wakes_the_consumer_and_keeps_no_cell() {
    loom::model(|| {
        let window = Arc::new(Window::new(0, 3, 2, true));
        let worker = {
            let window = Arc::clone(&window);
            thread::spawn(move || {
                let claimed = window.claim(|_| Some(()));
                claimed.map(|(batch, ())| window.put(batch, batch).is_ok())
            })
        };
        let closer = {
            let window = Arc::clone(&window);
            thread::spawn(move || window.close().len())
        };
        let got = drain(&window).len();
        let left = closer.join().unwrap();
        let stored = worker.join().unwrap() == Some(true);
        assert_eq!(got + left, usize::from(stored), "a stored cell is taken or given back, exactly once");
        assert_eq!(window.take(), Take::Closed);
    });
}
