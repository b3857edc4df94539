//! Runs on a pool: order, failures, fairness, cancellation, memory.
#![cfg(not(loom))]
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use tundish_engine::{
    Arena, Cell, Error, Foreign, Loaded, Order, Plan, PlanSpec, Pool, Run, RunOptions, Source, Take, Task,
    ThreadMain, Uneven, Waker,
};

type Behaviour = Box<dyn Fn(&Arc<Task>) -> Result<Loaded, Foreign> + Send + Sync>;
struct Scripted(Behaviour);

impl Source for Scripted {
    fn load(&self, task: &Arc<Task>) -> Result<Loaded, Foreign> {
        (self.0)(task)
    }
}

fn source(
    behaviour: impl Fn(&Arc<Task>) -> Result<Loaded, Foreign> + Send + Sync + 'static,
) -> Arc<dyn Source> {
    Arc::new(Scripted(Box::new(behaviour)))
}

#[allow(clippy::unnecessary_wraps)] // it stands where sources that fail stand
fn echo(task: &Arc<Task>) -> Result<Loaded, Foreign> {
    Ok(Loaded::Object(Box::new(task.indices.clone())))
}

fn plan(samples: u64, batch_size: u64) -> Arc<Plan> {
    let spec = PlanSpec {
        samples,
        order: Order::Sequential,
        seed: 0,
        epoch: 0,
        batch_size,
        drop_last: false,
        rank: 0,
        world_size: 1,
        uneven: Uneven::Pad,
        sampling: None,
    };
    Arc::new(Plan::new(spec).unwrap())
}

fn options(window: u64) -> RunOptions {
    RunOptions {
        start: 0,
        window,
        in_order: true,
        encode: false,
        arena: Arena::new(1 << 20),
        waker: None,
        timeout: None,
        samples: None,
        background: false,
        largest: Arc::default(),
    }
}

fn pool(workers: usize) -> Pool {
    let main: ThreadMain = Arc::new(|work| work());
    Pool::new(workers, "test", &main).unwrap()
}

fn next(run: &Run) -> Option<Cell> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match run.take() {
            Take::Ready(_, cell) => return Some(cell),
            Take::End | Take::Closed => return None,
            Take::Pending => {
                run.wait(Duration::from_millis(50));
            }
        }
        assert!(Instant::now() < deadline, "the run hangs");
    }
}

#[test]
fn batches_come_in_order_from_any_number_of_workers() {
    for workers in [1, 2, 3, 4, 7] {
        let run = Run::new(plan(34, 16), source(echo), options(workers as u64 + 2));
        let pool = pool(workers);
        run.start_on(&pool);
        let samples: Vec<Vec<u64>> =
            std::iter::from_fn(|| next(&run)).map(|cell| cell.unwrap().samples).collect();
        assert_eq!(samples.iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 2]);
        assert_eq!(samples.concat(), (0..34).collect::<Vec<_>>());
        assert!(next(&run).is_none(), "an ended run keeps saying so");
    }
}

#[test]
fn errors_and_panics_take_their_own_place() {
    let behaviour = |task: &Arc<Task>| match task.batch {
        1 => Err("bad sample".into()),
        2 => panic!("broken source"),
        _ => echo(task),
    };
    let run = Run::new(plan(10, 2), source(behaviour), options(4));
    let pool = pool(3);
    run.start_on(&pool);
    let said: Vec<String> = std::iter::from_fn(|| next(&run))
        .map(|cell| match cell {
            Ok(batch) => batch.batch.to_string(),
            Err(failure) => format!("{}: {} {:?}", failure.batch, failure.error, failure.samples),
        })
        .collect();
    assert_eq!(said, ["0", "1: bad sample [2, 3]", "2: the source panicked: broken source [4, 5]", "3", "4"]);
    assert_eq!(run.errors(), 2);
}

#[test]
fn a_slow_consumer_costs_its_window_and_no_more() {
    let begun = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&begun);
    let counting = move |task: &Arc<Task>| {
        counter.fetch_add(1, Ordering::SeqCst);
        echo(task)
    };
    let run = Run::new(plan(100, 1), source(counting), options(5));
    let pool = pool(4);
    run.start_on(&pool);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(begun.load(Ordering::SeqCst), 5);
    assert_eq!(std::iter::from_fn(|| next(&run)).count(), 100);
}

#[test]
fn two_runs_share_one_worker_in_turn() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let gate = Arc::new(Barrier::new(2));
    let pool = pool(1);
    // Holds the only worker until both runs stand in line.
    let held = Arc::clone(&gate);
    let blocker = Run::new(
        plan(1, 1),
        source(move |task| {
            held.wait();
            echo(task)
        }),
        options(1),
    );
    blocker.start_on(&pool);
    let runs: Vec<_> = ["a", "b"]
        .into_iter()
        .map(|name| {
            let log = Arc::clone(&log);
            let logging = move |task: &Arc<Task>| {
                log.lock().unwrap().push(name);
                echo(task)
            };
            let run = Run::new(plan(4, 1), source(logging), options(4));
            run.start_on(&pool);
            run
        })
        .collect();
    gate.wait();
    for run in &runs {
        assert_eq!(std::iter::from_fn(|| next(run)).count(), 4);
    }
    let log = log.lock().unwrap().concat();
    assert!(["abababab", "babababa"].contains(&log.as_str()), "{log}");
}

#[test]
fn cancelling_stops_workers_and_returns_what_was_ready() {
    let run = Run::new(plan(1000, 1), source(echo), options(8));
    let pool = pool(2);
    run.start_on(&pool);
    let deadline = Instant::now() + Duration::from_secs(10);
    while run.counts().ready < 8 {
        assert!(Instant::now() < deadline, "the window does not fill");
        std::thread::yield_now();
    }
    assert_eq!(run.cancel().len(), 8);
    assert!(matches!(run.take(), Take::Closed));
    assert!(pool.close(Duration::from_secs(5)));
}

#[test]
fn closing_a_pool_ends_its_runs_instead_of_leaving_them_waiting() {
    let run = Run::new(plan(1000, 1), source(echo), options(2));
    let pool = pool(1);
    run.start_on(&pool);
    drop(pool);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !matches!(run.take(), Take::Closed) {
        assert!(Instant::now() < deadline, "the run does not end");
        run.wait(Duration::from_millis(1));
    }
    let late = Run::new(plan(4, 1), source(echo), options(2));
    let closed = self::pool(1);
    closed.close(Duration::from_secs(5));
    late.start_on(&closed);
    assert!(matches!(late.take(), Take::Closed));
}

#[test]
fn work_in_the_callers_thread_can_be_given_up_and_comes_again() {
    let tries = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&tries);
    let flaky = move |task: &Arc<Task>| match counter.fetch_add(1, Ordering::SeqCst) {
        1 => Err("interrupted".into()),
        _ => echo(task),
    };
    let run = Run::new(plan(3, 1), source(flaky), options(1));
    let interrupted = |error: &Error| error.to_string() == "interrupted";
    let mut seen = Vec::new();
    for _ in 0..4 {
        if run.produce_here(interrupted).is_err() {
            assert!(matches!(run.take(), Take::Pending));
            continue;
        }
        seen.push(next(&run).unwrap().unwrap().batch);
    }
    assert_eq!(seen, [0, 1, 2]);
    assert_eq!(run.errors(), 0);
}

#[test]
fn encoded_batches_keep_to_the_memory_limit_and_the_next_one_always_fits() {
    const BATCH: usize = 100_000;
    let encode = |task: &Arc<Task>| {
        task.allocate(BATCH)?;
        Ok(Loaded::Encoded(vec![0xc0]))
    };
    // A batch has its sample's index too, and on the heap that and its packed value: 9 bytes.
    let whole = BATCH as u64 + 32 + 8 + 9;
    for (limit, claimed, most) in [(4 * whole, 3, 4 * whole), (1000, 1, 3 * whole)] {
        let arena = Arena::new(limit);
        let options = RunOptions { encode: true, arena: Arc::clone(&arena), ..options(8) };
        let run = Run::new(plan(20, 1), source(encode), options);
        let pool = pool(2);
        run.start_on(&pool);
        let mut held = Vec::new();
        for number in 0..20 {
            let batch = next(&run).unwrap().unwrap();
            assert_eq!(batch.batch, number);
            if number > 0 {
                assert!(run.counts().claimed - number <= claimed + 1, "{:?}", run.counts());
            }
            held.push(batch);
            held.drain(..held.len() - 1);
        }
        assert!(next(&run).is_none());
        let usage = arena.usage();
        assert!(usage.peak <= most, "{usage:?}");
        assert_eq!(usage.heap, if limit == 1000 { whole } else { 9 });
        drop(held);
        assert_eq!((arena.usage().lent, arena.usage().heap, arena.usage().reserved), (0, 0, 0));
    }
}

#[test]
fn beyond_the_limit_nothing_is_made_before_somebody_asks() {
    let encode = |task: &Arc<Task>| {
        task.allocate(100_000)?;
        Ok(Loaded::Encoded(vec![0xc0]))
    };
    let options = RunOptions { encode: true, arena: Arena::new(1000), ..options(8) };
    let run = Run::new(plan(3, 1), source(encode), options);
    // A second worker might begin the second batch before the first one's size is known.
    let pool = pool(1);
    run.start_on(&pool);
    for number in 0..3 {
        std::thread::sleep(Duration::from_millis(30));
        // Of the first one nobody knows that it is too large.
        assert_eq!(run.counts().claimed, number.max(1));
        assert_eq!(next(&run).unwrap().unwrap().batch, number);
    }
    assert!(next(&run).is_none());
}

#[test]
fn the_size_of_batches_is_known_from_runs_before_and_from_the_source() {
    struct Sized;
    impl Source for Sized {
        fn load(&self, task: &Arc<Task>) -> Result<Loaded, Foreign> {
            task.allocate(300_000)?;
            Ok(Loaded::Encoded(vec![0xc0]))
        }
        fn size(&self, samples: u64) -> Option<u64> {
            Some(samples * 100_000)
        }
    }
    let options = RunOptions { encode: true, ..options(8) };
    let largest = Arc::clone(&options.largest);
    let run = Run::new(plan(9, 3), Arc::new(Sized), options);
    assert_eq!(largest.load(Ordering::Relaxed), 300_000);
    run.produce_here(|_| false).unwrap();
    assert_eq!(largest.load(Ordering::Relaxed), 300_000 + 32 + 24);
}

#[test]
fn a_batch_that_fails_gives_back_what_was_set_aside_for_it() {
    let arena = Arena::new(1 << 20);
    let options = RunOptions { encode: true, arena: Arc::clone(&arena), ..options(4) };
    options.largest.store(100_000, Ordering::Relaxed);
    let run = Run::new(plan(3, 1), source(|_| Err("no".into())), options);
    for _ in 0..3 {
        run.produce_here(|_| false).unwrap();
        assert_eq!(arena.usage().reserved, 0);
        assert!(next(&run).unwrap().is_err());
    }
    assert_eq!(arena.usage().used, 0);
}

#[test]
fn a_waker_is_written_once_per_look_and_names_its_runs() {
    let waker = Arc::new(Waker::new().unwrap());
    let runs: Vec<_> = [7u64, 9]
        .into_iter()
        .map(|token| {
            let options = RunOptions { waker: Some((Arc::clone(&waker), token)), ..options(2) };
            Run::new(plan(2, 1), source(echo), options)
        })
        .collect();
    assert!(waker.drain().is_empty());
    for run in &runs {
        run.produce_here(|_| false).unwrap();
        run.produce_here(|_| false).unwrap();
    }
    assert_eq!(waker.drain(), [7, 9]);
    assert!(waker.drain().is_empty());
}

#[test]
fn an_index_beyond_the_samples_fails_its_batch_and_no_other() {
    let run = Run::new(plan(6, 2), source(echo), RunOptions { samples: Some(3), ..options(3) });
    let pool = pool(2);
    run.start_on(&pool);
    assert_eq!(next(&run).unwrap().unwrap().samples, [0, 1]);
    let failure = next(&run).unwrap().unwrap_err();
    assert_eq!(failure.error.to_string(), "index 3 is out of range for a dataset of 3 samples");
    assert_eq!((failure.batch, failure.samples), (1, vec![2, 3]));
}

#[test]
fn a_run_in_the_background_gets_what_is_left_and_a_little_in_any_case() {
    let (busy, behind) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counting = |count: &Arc<AtomicU64>| {
        let count = Arc::clone(count);
        source(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
            Ok(Loaded::Object(Box::new(())))
        })
    };
    let front = Run::new(plan(400, 1), counting(&busy), options(400));
    let back = Run::new(plan(400, 1), counting(&behind), RunOptions { background: true, ..options(400) });
    let pool = pool(1);
    back.start_on(&pool);
    front.start_on(&pool);
    while next(&front).is_some() {}
    let meanwhile = behind.load(Ordering::SeqCst);
    assert!((40..80).contains(&meanwhile), "{meanwhile} beside 400");
    while next(&back).is_some() {}
    assert_eq!(behind.load(Ordering::SeqCst), 400);
}
