//! Epochs that are read from something: one batch at a time, to an end nobody knew.
#![cfg(not(loom))]
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tundish_engine::{
    Arena, Cancel, Cell, Error, Foreign, Loaded, Pool, Portion, Reader, Run, RunOptions, Source, Supply,
    Take, Task, ThreadMain,
};

/// Samples `0..count` in batches of two; batch `bad` can't be read.
struct Counting {
    count: u64,
    bad: Option<u64>,
    busy: AtomicBool,
    asked: Mutex<Vec<u64>>,
}

impl Counting {
    fn new(count: u64, bad: Option<u64>) -> Arc<Self> {
        Arc::new(Self { count, bad, busy: AtomicBool::new(false), asked: Mutex::default() })
    }
}

impl Reader for Counting {
    fn read(&self, batch: u64, _cancel: &Cancel) -> Result<Option<Portion>, Foreign> {
        assert!(!self.busy.swap(true, Ordering::SeqCst), "one batch is read at a time");
        self.asked.lock().unwrap().push(batch);
        std::thread::sleep(Duration::from_micros(200));
        self.busy.store(false, Ordering::SeqCst);
        if self.bad == Some(batch) {
            return Err("unreadable".into());
        }
        let indices: Vec<u64> = (batch * 2..self.count.min(batch * 2 + 2)).collect();
        let items: Vec<String> = indices.iter().map(|index| format!("item {index}")).collect();
        let portion = Portion { places: [10 * batch, 5], indices, items: Some(Box::new(items)) };
        Ok(Some(portion).filter(|portion| !portion.indices.is_empty()))
    }
}

/// Hands over the items, and where they stand.
struct Items;

impl Source for Items {
    fn load(&self, task: &Arc<Task>) -> Result<Loaded, Foreign> {
        let items = task.items().unwrap().downcast::<Vec<String>>().unwrap();
        assert!(task.items().is_none(), "items are handed out once");
        assert_eq!(task.position(1), task.batch * 10 + 5);
        Ok(Loaded::Object(items))
    }
}

fn options(window: u64) -> RunOptions {
    let arena = Arena::new(1 << 20);
    RunOptions {
        start: 0,
        window,
        in_order: true,
        encode: false,
        arena,
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
            Take::Pending => drop(run.wait(Duration::from_millis(50))),
        }
        assert!(Instant::now() < deadline, "the run hangs");
    }
}

fn all(run: &Run) -> Vec<Result<Vec<u64>, String>> {
    std::iter::from_fn(|| next(run))
        .map(|cell| cell.map(|batch| batch.samples).map_err(|failure| failure.error.to_string()))
        .collect()
}

#[test]
fn an_epoch_is_read_in_order_to_the_end_that_shows() {
    for (workers, in_order) in [(1, true), (4, true), (4, false)] {
        let reader = Counting::new(5, Some(1));
        let supply = Supply::Reader(Arc::clone(&reader) as Arc<dyn Reader>, 3);
        let run = Run::new(supply, Arc::new(Items), RunOptions { in_order, ..options(6) });
        assert_eq!(run.counts().total, None);
        let pool = pool(workers);
        run.start_on(&pool);
        let mut got = all(&run);
        got.sort();
        assert_eq!(got, [Ok(vec![0, 1]), Ok(vec![4]), Err("unreadable".to_owned())]);
        assert_eq!(run.counts().total, Some(3));
        assert_eq!((run.errors(), run.samples()), (1, (3, 0)));
        assert_eq!(*reader.asked.lock().unwrap(), [0, 1, 2, 3], "each batch once, and the end once");
        assert_eq!(all(&run), [], "the end is said again");
    }
}

#[test]
fn reading_in_the_callers_thread_ends_as_well_and_may_be_given_up() {
    let reader = Counting::new(3, None);
    let run = Run::new(Supply::Reader(reader, 0), Arc::new(Items), options(1));
    let mut got = Vec::new();
    loop {
        match run.take() {
            Take::Ready(_, cell) => got.push(cell.unwrap().samples),
            Take::Pending => run.produce_here(|_| false).unwrap(),
            Take::End => break,
            Take::Closed => unreachable!(),
        }
    }
    assert_eq!(got, [vec![0, 1], vec![2]]);

    let run = Run::new(Supply::Reader(Counting::new(3, Some(0)), 0), Arc::new(Items), options(1));
    for _ in 0..2 {
        let failure = run.produce_here(|error| matches!(error, Error::Source(_))).unwrap_err();
        assert_eq!(failure.batch, 0, "the batch that was given up is claimed again");
    }
}

#[test]
fn an_empty_epoch_wakes_whoever_waits_for_its_first_batch() {
    let run = Run::new(Supply::Reader(Counting::new(0, None), 0), Arc::new(Items), options(2));
    let waiting = {
        let run = Arc::clone(&run);
        std::thread::spawn(move || {
            let begun = Instant::now();
            while matches!(run.take(), Take::Pending) {
                run.wait(Duration::from_secs(5));
            }
            (run.take(), begun.elapsed())
        })
    };
    std::thread::sleep(Duration::from_millis(20));
    let pool = pool(2);
    run.start_on(&pool);
    let (taken, after) = waiting.join().unwrap();
    assert!(matches!(taken, Take::End));
    assert!(after < Duration::from_secs(2), "woken after {after:?}");
}

/// Sleeps in batch 1, for ever as it were; fails in none.
struct Stuck(AtomicU64);

impl Source for Stuck {
    fn load(&self, task: &Arc<Task>) -> Result<Loaded, Foreign> {
        task.step(0);
        if task.indices.contains(&3) {
            task.step(task.indices.iter().position(|&index| index == 3).unwrap() as u64);
            while !task.cancel.is_cancelled() || self.0.load(Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(Loaded::Object(Box::new(())))
    }
}

fn numbers(count: u64) -> Supply {
    struct Numbers(u64);
    impl Reader for Numbers {
        fn read(&self, batch: u64, _cancel: &Cancel) -> Result<Option<Portion>, Foreign> {
            let indices: Vec<u64> = (batch * 2..self.0.min(batch * 2 + 2)).collect();
            Ok((!indices.is_empty()).then(|| Portion { indices, items: None, places: [0, 1] }))
        }
    }
    Supply::Reader(Arc::new(Numbers(count)), 0)
}

#[test]
fn a_batch_that_takes_too_long_is_given_up_and_its_worker_replaced() {
    for workers in [1, 3] {
        let source = Arc::new(Stuck(AtomicU64::new(0)));
        let timeout = Some(Duration::from_millis(60));
        let run = Run::new(
            numbers(8),
            Arc::clone(&source) as Arc<dyn Source>,
            RunOptions { timeout, ..options(4) },
        );
        let pool = pool(workers);
        run.start_on(&pool);
        let begun = Instant::now();
        let got = all(&run);
        assert!(begun.elapsed() < Duration::from_secs(2));
        let text = "batch 1 took longer than timeout=0.06 s: sample 3 was being loaded";
        assert_eq!(got, [Ok(vec![0, 1]), Err(text.to_owned()), Ok(vec![4, 5]), Ok(vec![6, 7])]);
        assert!(!pool.close(Duration::from_millis(30)), "the stuck thread is still there");
        source.0.store(1, Ordering::Relaxed);
        assert!(pool.close(Duration::from_secs(2)), "and leaves when its work comes back");
    }
}

#[test]
fn a_reader_that_hangs_ends_the_epoch_with_an_error() {
    struct Hangs;
    impl Reader for Hangs {
        fn read(&self, batch: u64, cancel: &Cancel) -> Result<Option<Portion>, Foreign> {
            while batch == 1 && !cancel.is_cancelled() {
                std::thread::sleep(Duration::from_millis(5));
            }
            Ok((batch == 0).then(|| Portion { indices: vec![7], items: None, places: [0, 1] }))
        }
    }
    let timeout = Some(Duration::from_millis(60));
    let source = Arc::new(Stuck(AtomicU64::new(1)));
    let run = Run::new(Supply::Reader(Arc::new(Hangs), 0), source, RunOptions { timeout, ..options(4) });
    let pool = pool(2);
    run.start_on(&pool);
    let got = all(&run);
    let text = "batch 1 took longer than timeout=0.06 s: it was still being read which samples are in it, \
                and nothing can be read behind that: the epoch ends here; ask for it again from batch 1 on";
    assert_eq!(got, [Ok(vec![7]), Err(text.to_owned())]);
}

#[test]
fn when_every_worker_is_lost_the_run_ends_instead_of_waiting() {
    struct Asleep;
    impl Source for Asleep {
        fn load(&self, _task: &Arc<Task>) -> Result<Loaded, Foreign> {
            std::thread::sleep(Duration::from_secs(3));
            Err("late".into())
        }
    }
    let timeout = Some(Duration::from_millis(1));
    let run = Run::new(numbers(1 << 20), Arc::new(Asleep), RunOptions { timeout, ..options(64) });
    let pool = pool(16);
    assert!(!pool.is_own_thread());
    run.start_on(&pool);
    let mut failures = 0;
    while let Some(cell) = next(&run) {
        assert!(matches!(cell.unwrap_err().error, Error::Timeout(_)));
        failures += 1;
    }
    assert!(failures <= tundish_engine::MOST_LOST + 16, "{failures}");
    assert!(matches!(run.take(), Take::Closed));
    // For the time being there is nobody to work for another run either.
    let next_run = Run::new(numbers(2), Arc::new(Stuck(AtomicU64::new(1))), options(2));
    next_run.start_on(&pool);
    assert!(matches!(next_run.take(), Take::Closed));
    // They come back from their sleep, and take up work again.
    std::thread::sleep(Duration::from_millis(3200));
    let last = Run::new(numbers(2), Arc::new(Stuck(AtomicU64::new(1))), options(4));
    last.start_on(&pool);
    assert_eq!(all(&last), [Ok(vec![0, 1])]);
    assert!(pool.close(Duration::from_secs(2)));
}

#[test]
fn what_a_batch_leaves_out_is_counted_and_its_memory_fits_what_stays() {
    struct Skips;
    impl Source for Skips {
        fn load(&self, task: &Arc<Task>) -> Result<Loaded, Foreign> {
            task.keep(&[1])?;
            assert!(task.keep(&[0]).is_err());
            task.allocate(0)?;
            Ok(Loaded::Encoded(Vec::new()))
        }
    }
    let run = Run::new(numbers(4), Arc::new(Skips), RunOptions { encode: true, ..options(2) });
    let pool = pool(1);
    run.start_on(&pool);
    let batch = next(&run).unwrap().unwrap();
    assert_eq!((batch.samples, batch.skipped), (vec![1], vec![0]));
    assert_eq!(batch.body.unwrap().len(), 8);
    next(&run).unwrap().unwrap();
    assert_eq!(run.samples(), (2, 2));
}
