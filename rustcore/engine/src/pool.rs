//! Named worker threads, shared fairly by any number of runs.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Whether this job is for capacity that others leave idle.
    fn in_background(&self) -> bool {
        false
    }
    /// The pool closes: no work will be asked for again, and whoever waits must be told.
    fn abandon(&self);
    /// Gives up what takes too long; asked of jobs that were given to [`Pool::watch`].
    fn expire(&self, _now: Instant) {}
}

/// One piece of work. It is told who does it.
pub type Work = Box<dyn FnOnce(&Arc<Worker>) + Send>;

/// How many threads of a pool may be stuck in work that was given up. With more of them it
/// gets no further replacements until some come back.
pub const MOST_LOST: usize = 64;

/// After so many pieces of work for others comes one of a job in the background, if there is any.
const BACKGROUND_EVERY: u32 = 7;

/// How often watched jobs are looked at.
const TICK: Duration = Duration::from_millis(20);

/// One worker thread.
#[derive(Debug)]
pub struct Worker {
    /// Its place in the pool, from 0. A replacement has the number of the one it replaces.
    pub number: usize,
    /// Somebody else has taken its place: it ends when its work comes back.
    lost: AtomicBool,
}

/// What each thread runs around its loop for its whole life: an interpreter's thread
/// state is made there once.
pub type ThreadMain = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

#[derive(Default)]
struct Queue {
    jobs: Vec<Arc<dyn Job>>,
    /// Where the next look begins, so that every job gets its turn.
    turn: usize,
    /// Pieces of work since one in the background came first.
    since_background: u32,
    closed: bool,
    threads: usize,
    /// Threads whose place somebody else has taken.
    lost: usize,
    watched: Vec<Weak<dyn Job>>,
    watching: bool,
}

thread_local! {
    /// The pool that this thread works for, by its address; 0 for none.
    static OWN_POOL: Cell<usize> = const { Cell::new(0) };
}

struct Shared {
    workers: usize,
    name: String,
    main: ThreadMain,
    queue: Mutex<Queue>,
    work: Condvar,
    ended: Condvar,
    watch: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_worker(self: &Arc<Self>, worker: &Arc<Worker>) {
        OWN_POOL.set(Arc::as_ptr(self) as usize);
        while let Some(work) = self.next_work() {
            work(worker);
            if worker.lost.load(Ordering::Acquire) && !self.take_back(worker) {
                return;
            }
        }
    }

    /// A worker that was lost is back. Answers whether it is needed: nobody has taken its place.
    fn take_back(&self, worker: &Worker) -> bool {
        let mut queue = self.lock();
        if queue.threads - queue.lost >= self.workers {
            return false;
        }
        worker.lost.store(false, Ordering::Release);
        queue.lost -= 1;
        true
    }

    fn start(self: &Arc<Self>, number: usize) -> Result<(), Error> {
        let worker = Arc::new(Worker { number, lost: AtomicBool::new(false) });
        let gone = Gone(Arc::clone(self), worker);
        self.lock().threads += 1;
        let main = Arc::clone(&self.main);
        let body = move || main(&mut || gone.0.run_worker(&gone.1));
        // When the system refuses, the closure is dropped and with it the count of the thread.
        spawn(format!("{}-{number}", self.name), body)
    }

    /// Has somebody else take the place of a worker that is stuck.
    fn replace(self: &Arc<Self>, worker: &Worker) -> bool {
        if worker.lost.swap(true, Ordering::AcqRel) {
            return true;
        }
        let mut queue = self.lock();
        queue.lost += 1;
        let room = queue.lost <= MOST_LOST && !queue.closed;
        drop(queue);
        if room && self.start(worker.number).is_ok() {
            return true;
        }
        let mut queue = self.lock();
        // Nobody is left to do any work for now: whoever waits for it must be told.
        let jobs = if queue.is_deserted() { std::mem::take(&mut queue.jobs) } else { Vec::new() };
        drop(queue);
        for job in &jobs {
            job.abandon();
        }
        false
    }

    /// Has watched jobs give up what takes too long, until the pool closes.
    fn run_watch(&self) {
        let mut queue = self.lock();
        while !queue.closed {
            queue.watched.retain(|job| job.strong_count() > 0);
            queue = if queue.watched.is_empty() {
                self.watch.wait(queue).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.watch.wait_timeout(queue, TICK).unwrap_or_else(PoisonError::into_inner).0
            };
            let jobs: Vec<_> = queue.watched.iter().filter_map(Weak::upgrade).collect();
            drop(queue);
            let now = Instant::now();
            for job in &jobs {
                job.expire(now);
            }
            drop(jobs);
            queue = self.lock();
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

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    std::thread::Builder::new().name(name).stack_size(8 << 20).spawn(body).map(drop).map_err(|error| {
        let errno = rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::AGAIN);
        Error::System { what: "cannot start a worker thread", errno }
    })
}

impl Queue {
    /// Whether all threads are stuck in work that was given up.
    fn is_deserted(&self) -> bool {
        self.threads > 0 && self.threads == self.lost
    }

    /// Takes no more work; the jobs are to be abandoned, without the lock.
    fn close(&mut self) -> Vec<Arc<dyn Job>> {
        self.closed = true;
        std::mem::take(&mut self.jobs)
    }

    /// Takes out the jobs that have nothing left to do.
    fn sweep(&mut self) -> Vec<Arc<dyn Job>> {
        self.jobs.extract_if(.., |job| job.exhausted()).collect()
    }

    /// Asks the jobs for work, beginning behind the one that was served last. Those in the
    /// background come last, but first every so often: they may be slow, never stuck.
    fn pick(&mut self) -> Option<Work> {
        let first = self.since_background >= BACKGROUND_EVERY;
        self.pick_from(first).or_else(|| self.pick_from(!first))
    }

    fn pick_from(&mut self, background: bool) -> Option<Work> {
        let n = self.jobs.len();
        for step in 0..n {
            let place = (self.turn + step) % n;
            let job = &self.jobs[place];
            if job.in_background() != background {
                continue;
            }
            if let Some(work) = Arc::clone(job).claim() {
                self.turn = place + 1;
                self.since_background = if background { 0 } else { self.since_background + 1 };
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
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("workers", &self.shared.workers).finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts `workers` threads named `name-0`, `name-1`, ….
    ///
    /// # Errors
    /// When the system refuses a thread; those already started end again.
    pub fn new(workers: usize, name: &str, main: &ThreadMain) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            workers,
            name: name.to_owned(),
            main: Arc::clone(main),
            queue: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
            watch: Condvar::new(),
        });
        let pool = Self { shared };
        for number in 0..workers {
            pool.shared.start(number)?;
        }
        Ok(pool)
    }

    /// How many threads were started.
    pub fn workers(&self) -> usize {
        self.shared.workers
    }

    /// Whether the calling thread works for this pool, so that it can't wait for its work.
    pub fn is_own_thread(&self) -> bool {
        OWN_POOL.get() == Arc::as_ptr(&self.shared) as usize
    }

    /// Adds a job. It leaves by itself when it is exhausted.
    pub fn add(&self, job: Arc<dyn Job>) {
        let mut queue = self.shared.lock();
        if queue.closed || queue.is_deserted() {
            drop(queue);
            job.abandon();
            return;
        }
        queue.jobs.push(job);
        drop(queue);
        self.shared.work.notify_all();
    }

    /// Asks a job from time to time to give up what takes too long, on a thread of its own,
    /// for as long as the job exists.
    pub fn watch(&self, job: &Arc<dyn Job>) {
        let mut queue = self.shared.lock();
        queue.watched.push(Arc::downgrade(job));
        let begun = std::mem::replace(&mut queue.watching, true);
        drop(queue);
        self.shared.watch.notify_all();
        if !begun {
            let shared = Arc::clone(&self.shared);
            // Without a thread to spare nothing is given up: timeouts don't apply.
            let _ = spawn(format!("{}-watch", self.shared.name), move || shared.run_watch());
        }
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
        let jobs = self.shared.lock().close();
        self.shared.work.notify_all();
        self.shared.watch.notify_all();
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

/// Counts a thread out, also when it ends by a panic or was never started.
struct Gone(Arc<Shared>, Arc<Worker>);

impl Drop for Gone {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.threads -= 1;
        queue.lost -= usize::from(self.1.lost.load(Ordering::Acquire));
        drop(queue);
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
    /// Has somebody else take the place of a worker that is stuck. Answers whether that was
    /// possible; if not, and no other is left, the pool closes.
    pub fn replace(&self, worker: &Worker) -> bool {
        self.0.upgrade().is_some_and(|shared| shared.replace(worker))
    }

    /// Says that a job may have work again.
    pub fn ring(&self) {
        if let Some(shared) = self.0.upgrade() {
            drop(shared.lock());
            shared.work.notify_all();
        }
    }
}
