//! Named worker threads, shared fairly by any number of runs.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::arena::MemoryListener;
use crate::error::Error;

/// Something a pool can work for: a run.
pub trait Job: Send + Sync {
    /// A piece of work to be done now, if there is one. Called under the pool's lock:
    /// must not block, nor call into user code.
    fn claim(self: Arc<Self>) -> Option<Work>;
    /// Whether [`Job::claim`] will never again give work.
    fn exhausted(&self) -> bool;
    /// The pool closes: no work will be asked for again, and whoever waits must be told.
    fn abandon(&self);
}

/// One piece of work.
pub type Work = Box<dyn FnOnce() + Send>;

/// What each thread runs around its loop for its whole life: an interpreter's thread
/// state is made there once.
pub type ThreadMain = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

#[derive(Default)]
struct Queue {
    jobs: Vec<Arc<dyn Job>>,
    /// Where the next look begins, so that every job gets its turn.
    turn: usize,
    closed: bool,
    threads: usize,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    ended: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_worker(&self) {
        while let Some(work) = self.next_work() {
            work();
        }
    }

    /// Waits for work; `None` when the pool closes.
    fn next_work(&self) -> Option<Work> {
        let mut queue = self.lock();
        loop {
            if queue.closed {
                return None;
            }
            let gone = queue.sweep();
            if !gone.is_empty() {
                // A run's end may drop foreign objects: never under a lock of ours.
                drop(queue);
                drop(gone);
                queue = self.lock();
                continue;
            }
            if let Some(work) = queue.pick() {
                return Some(work);
            }
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Queue {
    /// Takes out the jobs that have nothing left to do.
    fn sweep(&mut self) -> Vec<Arc<dyn Job>> {
        self.jobs.extract_if(.., |job| job.exhausted()).collect()
    }

    /// Asks the jobs for work, beginning behind the one that was served last.
    fn pick(&mut self) -> Option<Work> {
        let n = self.jobs.len();
        for step in 0..n {
            let place = (self.turn + step) % n;
            if let Some(work) = Arc::clone(&self.jobs[place]).claim() {
                self.turn = place + 1;
                return Some(work);
            }
        }
        None
    }
}

impl MemoryListener for Shared {
    fn memory_freed(&self) {
        // The lock orders this after the look of a worker that is about to wait.
        drop(self.lock());
        self.work.notify_all();
    }
}

/// The worker threads of one loader. Dropping it closes it without waiting.
pub struct Pool {
    shared: Arc<Shared>,
    workers: usize,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("workers", &self.workers).finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts `workers` threads named `name-0`, `name-1`, ….
    ///
    /// # Errors
    /// When the system refuses a thread; those already started end again.
    pub fn new(workers: usize, name: &str, main: &ThreadMain) -> Result<Self, Error> {
        let queue = Mutex::new(Queue::default());
        let shared = Arc::new(Shared { queue, work: Condvar::new(), ended: Condvar::new() });
        let pool = Self { shared, workers };
        for number in 0..workers {
            pool.start(format!("{name}-{number}"), Arc::clone(main))?;
        }
        Ok(pool)
    }

    fn start(&self, name: String, main: ThreadMain) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let body = move || {
            let gone = Gone(shared);
            main(&mut || gone.0.run_worker());
        };
        self.shared.lock().threads += 1;
        std::thread::Builder::new().name(name).stack_size(8 << 20).spawn(body).map(drop).map_err(|error| {
            self.shared.lock().threads -= 1;
            let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
            Error::System { what: "cannot start a worker thread", errno }
        })
    }

    /// How many threads were started.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Adds a job. It leaves by itself when it is exhausted.
    pub fn add(&self, job: Arc<dyn Job>) {
        let mut queue = self.shared.lock();
        if queue.closed {
            drop(queue);
            job.abandon();
            return;
        }
        queue.jobs.push(job);
        drop(queue);
        self.shared.work.notify_all();
    }

    /// A handle that wakes idle workers without keeping the pool open.
    pub fn bell(&self) -> Bell {
        Bell(Arc::downgrade(&self.shared))
    }

    /// Somebody for [`crate::Arena::listen`]: wakes workers when memory is free again.
    pub fn memory_listener(&self) -> Weak<dyn MemoryListener> {
        let listener: Arc<dyn MemoryListener> = Arc::clone(&self.shared) as _;
        Arc::downgrade(&listener)
    }

    /// Tells the threads to end after the work in hand and waits for that, `at_most` so
    /// long. Answers whether all have ended.
    pub fn close(&self, at_most: Duration) -> bool {
        let deadline = Instant::now() + at_most;
        let mut queue = self.shared.lock();
        queue.closed = true;
        let jobs = std::mem::take(&mut queue.jobs);
        drop(queue);
        self.shared.work.notify_all();
        for job in &jobs {
            job.abandon();
        }
        drop(jobs);
        let mut queue = self.shared.lock();
        while queue.threads > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            queue = self.shared.ended.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close(Duration::ZERO);
    }
}

/// Counts a thread out, also when it ends by a panic.
struct Gone(Arc<Shared>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.lock().threads -= 1;
        self.0.ended.notify_all();
    }
}

/// Wakes the idle workers of a pool.
#[derive(Clone)]
pub struct Bell(Weak<Shared>);

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bell")
    }
}

impl Bell {
    /// Says that a job may have work again.
    pub fn ring(&self) {
        if let Some(shared) = self.0.upgrade() {
            drop(shared.lock());
            shared.work.notify_all();
        }
    }
}
