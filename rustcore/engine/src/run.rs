//! One production of an epoch: what it consists of, a source and a window, worked on by a
//! pool.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::arena::{Need, Part, Reservation};
use crate::cancel::Cancel;
use crate::cell::{Batch, Cell, Failure, Options, Supply};
use crate::deadlines::{Deadlines, Entry};
use crate::error::{Error, NoSuchSample};
use crate::plan::Plan;
use crate::pool::{Bell, Job, Pool, Work, Worker};
use crate::reader::Portion;
use crate::source::{Loaded, Source, Task};
use crate::sync::{Mutex, lock};
use crate::window::{Counts, Take, UNKNOWN, Window};

/// What a run has handed out so far.
#[derive(Debug, Default)]
struct Totals {
    errors: AtomicU64,
    samples: AtomicU64,
    skipped: AtomicU64,
}

/// See the module's text.
pub struct Run {
    supply: Supply,
    source: Arc<dyn Source>,
    window: Window<Cell>,
    cancel: Cancel,
    options: Options,
    bell: OnceLock<Bell>,
    deadlines: Option<Deadlines>,
    /// Whether somebody is finding out what the next batch consists of.
    reading: AtomicBool,
    /// Whether somebody has asked for a cell that isn't there yet.
    asked: AtomicBool,
    /// Whether a claim was refused for want of memory.
    refused: AtomicBool,
    /// Its part of the memory, until it is cancelled.
    part: Mutex<Option<Part>>,
    totals: Totals,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("supply", &self.supply)
            .field("counts", &self.window.counts())
            .finish_non_exhaustive()
    }
}

/// A batch to be worked on, with the memory it may take.
type Claim = (u64, Option<Reservation>);

impl Run {
    /// A run of `supply` over `source`. Nothing is produced before [`Run::start_on`] or
    /// [`Run::produce_here`].
    pub fn new(supply: impl Into<Supply>, source: Arc<dyn Source>, options: Options) -> Arc<Self> {
        let supply = supply.into();
        let end = match &supply {
            Supply::Plan(plan) => {
                let size = source.size(plan.spec().batch_size).unwrap_or(0);
                options.largest.fetch_max(size, Ordering::Relaxed);
                plan.batches()
            }
            Supply::Reader(..) => UNKNOWN,
        };
        let window = Window::new(options.start, end, options.window, options.in_order);
        Arc::new(Self {
            supply,
            source,
            window,
            cancel: Cancel::new(),
            bell: OnceLock::new(),
            deadlines: options.timeout.map(Deadlines::new),
            reading: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            part: Mutex::new(options.encode.then(|| options.arena.enter())),
            totals: Totals::default(),
            options,
        })
    }

    /// Gives the run to a pool's workers.
    pub fn start_on(self: &Arc<Self>, pool: &Pool) {
        let _ = self.bell.set(pool.bell());
        self.options.arena.listen(pool.memory_listener());
        let job = Arc::clone(self) as Arc<dyn Job>;
        if self.deadlines.is_some() {
            pool.watch(&job);
        }
        pool.add(job);
    }

    /// Takes the next cell, if there is one. Never blocks.
    pub fn take(&self) -> Take<Cell> {
        let taken = self.window.take();
        if matches!(taken, Take::Pending) {
            self.asked.store(true, Ordering::SeqCst);
            if self.refused.swap(false, Ordering::SeqCst) {
                self.ring(); // what was refused is needed now
            }
        }
        if let Take::Ready(_, cell) = &taken {
            self.asked.store(false, Ordering::Relaxed);
            if let Ok(batch) = cell {
                self.totals.samples.fetch_add(batch.samples.len() as u64, Ordering::Relaxed);
                self.totals.skipped.fetch_add(batch.skipped.len() as u64, Ordering::Relaxed);
            }
            if !is_cheap(cell) || self.window.hungry() {
                self.ring();
            }
        }
        taken
    }

    /// Blocks until there is something to take, for `at_most` at the longest.
    pub fn wait(&self, at_most: Duration) -> bool {
        self.window.wait(at_most)
    }

    /// Produces the next cell in the calling thread and puts it into the window; for
    /// runs without a pool. `abandon` looks at a failure and says that the work was
    /// interrupted: then the failure comes back here, and the batch's turn is still to come.
    ///
    /// # Errors
    /// The failure that `abandon` recognised.
    pub fn produce_here(&self, abandon: impl Fn(&Error) -> bool) -> Result<(), Box<Failure>> {
        let Some(claim) = self.claim_batch() else { return Ok(()) };
        let batch = claim.0;
        match self.produce(claim, &self.cancel, None) {
            Some(Err(failure)) if abandon(&failure.error) => {
                self.window.unclaim(batch);
                Err(failure)
            }
            cell => {
                let _ = cell.and_then(|cell| self.put(batch, cell));
                Ok(())
            }
        }
    }

    /// Stops the run: workers stop before the next sample, nothing more is handed out.
    /// The cells nobody took come back, so that the caller drops them where that is right.
    pub fn cancel(&self) -> Vec<Cell> {
        self.cancel.cancel();
        let left = self.window.close();
        drop(lock(&self.part).take());
        // So that a worker notices, and the pool lets go of this run and of what it holds.
        self.ring();
        left
    }

    /// Counters of the window.
    pub fn counts(&self) -> Counts {
        self.window.counts()
    }

    /// How many cells were failures, handed out or not.
    pub fn errors(&self) -> u64 {
        self.totals.errors.load(Ordering::Relaxed)
    }

    /// Samples in the batches handed out, and those left out of them.
    pub fn samples(&self) -> (u64, u64) {
        (self.totals.samples.load(Ordering::Relaxed), self.totals.skipped.load(Ordering::Relaxed))
    }

    /// The plan, unless the epoch is read from something.
    pub fn plan(&self) -> Option<&Arc<Plan>> {
        match &self.supply {
            Supply::Plan(plan) => Some(plan),
            Supply::Reader(..) => None,
        }
    }

    /// The cancellation that the run's tasks look at.
    pub fn cancellation(&self) -> &Cancel {
        &self.cancel
    }

    fn ring(&self) {
        if let Some(bell) = self.bell.get() {
            bell.ring();
        }
    }

    fn wake(&self) {
        if let Some((waker, token)) = &self.options.waker {
            waker.wake(*token);
        }
    }

    /// The next batch to work on. What is read from something is claimed one at a time: the
    /// next claim waits until it is known what this one consists of.
    fn claim_batch(&self) -> Option<Claim> {
        let reads = matches!(self.supply, Supply::Reader(..));
        if reads && self.reading.swap(true, Ordering::Acquire) {
            return None;
        }
        let claim = self.window.claim(|ahead| {
            if !self.options.encode {
                return Some(None);
            }
            self.reserve(ahead).map(Some)
        });
        if reads && claim.is_none() {
            self.reading.store(false, Ordering::Release);
        }
        claim
    }

    /// Memory for the next batch; so many others are under way or wait to be taken.
    fn reserve(&self, ahead: u64) -> Option<Reservation> {
        let next = ahead == 0;
        let largest = self.options.largest.load(Ordering::Relaxed);
        let bytes = (largest > 0).then_some(largest);
        let reserve = || {
            let needed = next && self.asked.load(Ordering::SeqCst);
            let need = if needed { Need::Next } else { Need::Ahead(ahead.saturating_mul(largest)) };
            self.options.arena.reserve(bytes, need)
        };
        let reservation = reserve();
        if reservation.is_some() || !next {
            return reservation;
        }
        // Said before the second look: whoever asks after it finds the word.
        self.refused.store(true, Ordering::SeqCst);
        reserve()
    }

    /// Stores a cell. A closed window gives it back.
    fn put(&self, batch: u64, cell: Cell) -> Option<Cell> {
        if cell.is_err() {
            self.totals.errors.fetch_add(1, Ordering::Relaxed);
        }
        match self.window.put(batch, cell) {
            Ok(true) => {
                self.wake();
                None
            }
            Ok(false) => None,
            Err(cell) => Some(cell),
        }
    }

    /// A worker's whole work on a batch.
    fn work_on(&self, claim: Claim, worker: Option<Arc<Worker>>) {
        let batch = claim.0;
        let cancel = match &self.deadlines {
            Some(_) => self.cancel.child(),
            None => self.cancel.clone(),
        };
        let number = worker.as_ref().map(|worker| worker.number);
        if let Some(deadlines) = &self.deadlines {
            deadlines.open(batch, &cancel, worker);
        }
        let cell = self.produce(claim, &cancel, number);
        if let Some(cell) = cell
            && self.settle(batch)
        {
            drop(self.put(batch, cell));
        }
    }

    /// Whether a batch is still wanted: it has not been given up because of its timeout.
    fn settle(&self, batch: u64) -> bool {
        self.deadlines.as_ref().is_none_or(|deadlines| deadlines.close(batch))
    }

    /// Makes the cell of a batch; `None` if it turns out that the epoch ends before it.
    fn produce(&self, claim: Claim, cancel: &Cancel, worker: Option<usize>) -> Option<Cell> {
        let (batch, reserved) = claim;
        let claimed = now();
        let portion = match self.portion(batch, cancel).transpose()? {
            Ok(portion) => portion,
            Err(error) => return Some(Err(Box::new(Failure { batch, samples: Vec::new(), error }))),
        };
        if let Some(error) = self.beyond(&portion.indices) {
            return Some(Err(Box::new(Failure { batch, samples: portion.indices, error })));
        }
        let epoch = match &self.supply {
            Supply::Plan(plan) => plan.spec().epoch,
            Supply::Reader(_, epoch) => *epoch,
        };
        let mut task = Task::new((epoch, batch), portion, self.options.encode, &self.options.arena);
        task.cancel = cancel.clone();
        task.worker = worker;
        task.reserved = Mutex::new(reserved);
        let task = Arc::new(task);
        if let Some(deadlines) = &self.deadlines {
            deadlines.loading(batch, &task);
        }
        let loaded = self.load(&task);
        drop(lock(&task.reserved).take()); // of a batch that failed
        Some(match loaded {
            Ok(loaded) => Ok(Box::new(self.finish(&task, loaded, claimed))),
            Err(error) => Err(Box::new(Failure { batch, samples: task.indices.clone(), error })),
        })
    }

    /// The error of a batch with an index that the dataset doesn't have.
    fn beyond(&self, indices: &[u64]) -> Option<Error> {
        let samples = self.options.samples?;
        let index = *indices.iter().find(|&&index| index >= samples)?;
        Some(Error::Source(Box::new(NoSuchSample { index, samples })))
    }

    /// What the batch consists of; `None` if the epoch ends before it.
    fn portion(&self, batch: u64, cancel: &Cancel) -> Result<Option<Portion>, Error> {
        match &self.supply {
            Supply::Plan(plan) => {
                let mut indices = Vec::new();
                plan.indices(batch, cancel, &mut indices)?;
                Ok(Some(Portion { indices, items: None, places: places(plan, batch) }))
            }
            Supply::Reader(reader, _) => {
                let portion = guarded(|| reader.read(batch, cancel));
                if matches!(portion, Ok(None)) && self.settle(batch) {
                    self.window.finish(batch);
                    self.wake();
                }
                self.reading.store(false, Ordering::Release);
                self.ring();
                portion
            }
        }
    }

    /// Calls the source.
    fn load(&self, task: &Arc<Task>) -> Result<Loaded, Error> {
        let loaded = guarded(|| self.source.load(task))?;
        if matches!(loaded, Loaded::Encoded(_)) && task.body().is_none() {
            // A value without arrays: the sample indices still need their place.
            task.allocate(0)?;
        }
        Ok(loaded)
    }

    fn finish(&self, task: &Task, loaded: Loaded, claimed: u64) -> Batch {
        let body = task.body().cloned();
        let bytes = body.as_ref().map_or(0, |body| body.len());
        let samples = task.samples().to_vec();
        if let (Some(body), Loaded::Encoded(packed)) = (&body, &loaded) {
            body.count_besides((packed.len() + samples.len() * size_of::<u64>()) as u64);
            if self.options.largest.fetch_max(bytes as u64, Ordering::Relaxed) == 0 {
                self.ring(); // now others know what they need
            }
        }
        Batch {
            batch: task.batch,
            samples_offset: bytes.saturating_sub(samples.len() * 8) as u64,
            samples,
            skipped: task.skipped(),
            loaded,
            body,
            times: [claimed, now()],
        }
    }

    /// Gives up a batch that takes too long, and the worker that is at it.
    fn give_up(&self, entry: &Entry, limit: Duration) {
        entry.cancel.cancel();
        let text = timeout_text(&self.supply, entry, limit);
        let samples = entry.task.as_ref().map(|task| task.indices.clone()).unwrap_or_default();
        let failure = Failure { batch: entry.batch, samples, error: Error::Timeout(text) };
        drop(self.put(entry.batch, Err(Box::new(failure))));
        if entry.task.is_none() && matches!(self.supply, Supply::Reader(..)) {
            // What the next batch consists of is known only when this is read, which hangs.
            self.window.stop_claiming();
            self.wake();
        }
        if let (Some(worker), Some(bell)) = (&entry.worker, self.bell.get()) {
            bell.replace(worker);
        }
    }
}

impl Job for Run {
    fn claim(self: Arc<Self>) -> Option<Work> {
        let claim = self.claim_batch()?;
        Some(Box::new(move |worker| self.work_on(claim, Some(Arc::clone(worker)))))
    }

    fn exhausted(&self) -> bool {
        self.window.exhausted()
    }

    fn in_background(&self) -> bool {
        self.options.background
    }

    fn abandon(&self) {
        drop(self.cancel());
        self.wake();
    }

    fn expire(&self, now: Instant) {
        let Some(deadlines) = &self.deadlines else { return };
        for entry in deadlines.due(now) {
            self.give_up(&entry, deadlines.limit);
        }
    }
}

/// The position of a batch's first sample in the epoch, and the step to the next.
fn places(plan: &Plan, batch: u64) -> [u64; 2] {
    let spec = plan.spec();
    [
        spec.rank.wrapping_add(batch.wrapping_mul(spec.batch_size).wrapping_mul(spec.world_size)),
        spec.world_size,
    ]
}

/// Calls foreign code; a panic is the error of this batch, not of the thread.
fn guarded<T>(call: impl FnOnce() -> Result<T, crate::error::Foreign>) -> Result<T, Error> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(answer) => answer.map_err(Error::Source),
        Err(panic) => Err(Error::Panic(panic_text(&*panic))),
    }
}

fn timeout_text(supply: &Supply, entry: &Entry, limit: Duration) -> String {
    let doing = match &entry.task {
        None if matches!(supply, Supply::Reader(..)) => format!(
            "it was still being read which samples are in it, and nothing can be read behind that: the \
             epoch ends here; ask for it again from batch {} on",
            entry.batch
        ),
        None => "its order was still being built".to_owned(),
        Some(task) => match task.loading() {
            Some(index) => format!("sample {index} was being loaded"),
            None => format!("it was being made of the samples {:?}", task.indices),
        },
    };
    format!("batch {} took longer than timeout={} s: {doing}", entry.batch, limit.as_secs_f64())
}

/// Whether waking a worker costs about as much as the batch did. Then workers are woken
/// for several at a time; for any other batch at once, so that the window stays full.
fn is_cheap(cell: &Cell) -> bool {
    const NANOSECONDS: u64 = 200_000;
    cell.as_ref().is_ok_and(|batch| batch.times[1].saturating_sub(batch.times[0]) < NANOSECONDS)
}

/// Nanoseconds of a clock that all processes of the machine share and nobody sets back.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
