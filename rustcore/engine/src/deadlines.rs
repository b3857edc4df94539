//! Batches that must be ready by some time, and what became of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cancel::Cancel;
use crate::pool::Worker;
use crate::source::Task;
use crate::sync::{Mutex, lock};

/// A batch being worked on.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) batch: u64,
    due: Instant,
    /// Raised when the batch is given up; its run goes on.
    pub(crate) cancel: Cancel,
    /// Who works on it.
    pub(crate) worker: Option<Arc<Worker>>,
    /// What is being loaded; `None` while it is being read what that is.
    pub(crate) task: Option<Arc<Task>>,
}

/// The batches of one run that are being worked on.
///
/// A batch leaves either by [`Deadlines::close`], and then its worker owns what follows, or
/// by [`Deadlines::due`], and then it has been given up: never by both.
#[derive(Debug)]
pub(crate) struct Deadlines {
    pub(crate) limit: Duration,
    open: Mutex<Vec<Entry>>,
}

impl Deadlines {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, open: Mutex::new(Vec::new()) }
    }

    pub(crate) fn open(&self, batch: u64, cancel: &Cancel, worker: Option<Arc<Worker>>) {
        let due = Instant::now() + self.limit;
        lock(&self.open).push(Entry { batch, due, cancel: cancel.clone(), worker, task: None });
    }

    pub(crate) fn loading(&self, batch: u64, task: &Arc<Task>) {
        if let Some(entry) = lock(&self.open).iter_mut().find(|entry| entry.batch == batch) {
            entry.task = Some(Arc::clone(task));
        }
    }

    /// Answers whether the batch was still wanted.
    pub(crate) fn close(&self, batch: u64) -> bool {
        let mut open = lock(&self.open);
        let place = open.iter().position(|entry| entry.batch == batch);
        let closed = place.map(|place| open.swap_remove(place));
        drop(open);
        closed.is_some()
    }

    /// Takes out the batches whose time is over.
    pub(crate) fn due(&self, now: Instant) -> Vec<Entry> {
        lock(&self.open).extract_if(.., |entry| entry.due <= now).collect()
    }
}
