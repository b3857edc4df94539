//! One production of an epoch: a plan, a source and a window, worked on by a pool.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::arena::{Arena, Reservation};
use crate::body::Body;
use crate::cancel::Cancel;
use crate::error::Error;
use crate::plan::Plan;
use crate::pool::{Bell, Job, Pool, Work};
use crate::source::{Loaded, Source, Task};
use crate::waker::Waker;
use crate::window::{Counts, Take, Window};

/// A finished batch.
#[derive(Debug)]
pub struct Batch {
    /// Its number in the epoch.
    pub batch: u64,
    /// The samples in it.
    pub samples: Vec<u64>,
    /// Where the samples stand in `body` as 64-bit integers.
    pub samples_offset: u64,
    /// What the source made.
    pub loaded: Loaded,
    /// The memory of an encoded batch.
    pub body: Option<Arc<Body>>,
    /// When it was claimed and when it was ready, in nanoseconds of `CLOCK_MONOTONIC`.
    pub times: [u64; 2],
}

/// A batch that failed.
#[derive(Debug)]
pub struct Failure {
    /// Its number in the epoch.
    pub batch: u64,
    /// The samples that should have been in it; empty when the plan itself failed.
    pub samples: Vec<u64>,
    /// Why.
    pub error: Error,
}

/// What takes one place in the sequence.
pub type Cell = Result<Box<Batch>, Box<Failure>>;

/// How a run is to be made. `arena` is needed in any case; `encode` says whether batches
/// are encoded into it.
#[derive(Debug)]
pub struct Options {
    /// First batch.
    pub start: u64,
    /// How many batches may be claimed and not yet taken.
    pub window: u64,
    /// Whether batches are handed out in order, or as they become ready.
    pub in_order: bool,
    /// Whether batches are encoded into the arena's memory.
    pub encode: bool,
    /// Where the memory comes from.
    pub arena: Arc<Arena>,
    /// Whom to wake, and with which token.
    pub waker: Option<(Arc<Waker>, u64)>,
}

/// See the module's text.
pub struct Run {
    plan: Arc<Plan>,
    source: Arc<dyn Source>,
    window: Window<Cell>,
    cancel: Cancel,
    options: Options,
    bell: OnceLock<Bell>,
    /// Bytes of the largest batch so far: the estimate for those to come.
    largest: AtomicU64,
    errors: AtomicU64,
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("plan", &self.plan)
            .field("counts", &self.window.counts())
            .finish_non_exhaustive()
    }
}

impl Run {
    /// A run of `plan` over `source`. Nothing is produced before [`Run::start_on`] or
    /// [`Run::produce_here`].
    pub fn new(plan: Arc<Plan>, source: Arc<dyn Source>, options: Options) -> Arc<Self> {
        let window = Window::new(options.start, plan.batches(), options.window, options.in_order);
        Arc::new(Self {
            plan,
            source,
            window,
            cancel: Cancel::new(),
            options,
            bell: OnceLock::new(),
            largest: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        })
    }

    /// Gives the run to a pool's workers.
    pub fn start_on(self: &Arc<Self>, pool: &Pool) {
        let _ = self.bell.set(pool.bell());
        self.options.arena.listen(pool.memory_listener());
        pool.add(Arc::clone(self) as Arc<dyn Job>);
    }

    /// Takes the next cell, if there is one. Never blocks.
    pub fn take(&self) -> Take<Cell> {
        let taken = self.window.take();
        if let (Take::Ready(_, cell), Some(bell)) = (&taken, self.bell.get())
            && (!is_cheap(cell) || self.window.hungry())
        {
            bell.ring();
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
        let Some((batch, reservation)) = self.claim_batch() else { return Ok(()) };
        match self.produce(batch) {
            Err(failure) if abandon(&failure.error) => {
                self.window.unclaim(batch);
                Err(failure)
            }
            cell => {
                drop(reservation);
                let _ = self.put(batch, cell);
                Ok(())
            }
        }
    }

    /// Stops the run: workers stop before the next sample, nothing more is handed out.
    /// The cells nobody took come back, so that the caller drops them where that is right.
    pub fn cancel(&self) -> Vec<Cell> {
        self.cancel.cancel();
        self.window.close()
    }

    /// Counters of the window.
    pub fn counts(&self) -> Counts {
        self.window.counts()
    }

    /// How many cells were failures, handed out or not.
    pub fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The cancellation that the run's tasks look at.
    pub fn cancellation(&self) -> &Cancel {
        &self.cancel
    }

    fn claim_batch(&self) -> Option<(u64, Option<Reservation>)> {
        self.window.claim(|needed| {
            if !self.options.encode {
                return Some(None);
            }
            self.options.arena.reserve(self.largest.load(Ordering::Relaxed), needed).map(Some)
        })
    }

    fn put(&self, batch: u64, cell: Cell) -> Option<Cell> {
        if cell.is_err() {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        match self.window.put(batch, cell) {
            Ok(true) => {
                if let Some((waker, token)) = &self.options.waker {
                    waker.wake(*token);
                }
                None
            }
            Ok(false) => None,
            Err(cell) => Some(cell),
        }
    }

    fn produce(&self, batch: u64) -> Cell {
        let claimed = now();
        let mut indices = Vec::new();
        if let Err(error) = self.plan.indices(batch, &self.cancel, &mut indices) {
            return Err(Box::new(Failure { batch, samples: Vec::new(), error: error.into() }));
        }
        let task = Arc::new(Task {
            epoch: self.plan.spec().epoch,
            batch,
            indices,
            encode: self.options.encode,
            cancel: self.cancel.clone(),
            arena: Arc::clone(&self.options.arena),
            body: OnceLock::new(),
        });
        match self.load(&task) {
            Ok(loaded) => Ok(Box::new(self.finish(&task, loaded, claimed))),
            Err(error) => Err(Box::new(Failure { batch, samples: task.indices.clone(), error })),
        }
    }

    /// Calls the source; a panic is the error of this batch, not of the thread.
    fn load(&self, task: &Arc<Task>) -> Result<Loaded, Error> {
        let loaded = match catch_unwind(AssertUnwindSafe(|| self.source.load(task))) {
            Ok(loaded) => loaded.map_err(Error::Source)?,
            Err(panic) => return Err(Error::Panic(panic_text(&*panic))),
        };
        if matches!(loaded, Loaded::Encoded(_)) && task.body.get().is_none() {
            // A value without arrays: the sample indices still need their place.
            task.allocate(0)?;
        }
        Ok(loaded)
    }

    fn finish(&self, task: &Task, loaded: Loaded, claimed: u64) -> Batch {
        let body = task.body.get().cloned();
        let bytes = body.as_ref().map_or(0, |body| body.len());
        self.largest.fetch_max(bytes as u64, Ordering::Relaxed);
        Batch {
            batch: task.batch,
            samples: task.indices.clone(),
            samples_offset: bytes.saturating_sub(task.indices.len() * 8) as u64,
            loaded,
            body,
            times: [claimed, now()],
        }
    }
}

impl Job for Run {
    fn claim(self: Arc<Self>) -> Option<Work> {
        let (batch, reservation) = self.claim_batch()?;
        Some(Box::new(move || {
            let cell = self.produce(batch);
            drop(reservation);
            drop(self.put(batch, cell));
        }))
    }

    fn exhausted(&self) -> bool {
        self.window.exhausted()
    }

    fn abandon(&self) {
        drop(self.cancel());
        if let Some((waker, token)) = &self.options.waker {
            waker.wake(*token);
        }
    }
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
