//! What a run is made of, and what comes out of it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::arena::Arena;
use crate::body::Body;
use crate::error::Error;
use crate::plan::Plan;
use crate::reader::Reader;
use crate::source::Loaded;
use crate::waker::Waker;

/// What says which samples are in which batch.
#[derive(Clone)]
pub enum Supply {
    /// A plan: any batch by its number.
    Plan(Arc<Plan>),
    /// Something that is read batch after batch, of this epoch.
    Reader(Arc<dyn Reader>, u64),
}

impl std::fmt::Debug for Supply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plan(plan) => plan.fmt(f),
            Self::Reader(_, epoch) => write!(f, "Reader of epoch {epoch}"),
        }
    }
}

impl From<Arc<Plan>> for Supply {
    fn from(plan: Arc<Plan>) -> Self {
        Self::Plan(plan)
    }
}

/// A finished batch.
#[derive(Debug)]
pub struct Batch {
    /// Its number in the epoch.
    pub batch: u64,
    /// The samples in it.
    pub samples: Vec<u64>,
    /// The samples that were left out of it.
    pub skipped: Vec<u64>,
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
    /// The samples that should have been in it; empty when not even those are known.
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
    /// Bytes of the largest batch so far, 0 while nobody knows; for runs with batches alike.
    pub largest: Arc<AtomicU64>,
    /// Whom to wake, and with which token.
    pub waker: Option<(Arc<Waker>, u64)>,
    /// How long a batch may take, on a pool; `None` for as long as it likes.
    pub timeout: Option<Duration>,
    /// How many samples there are; a batch with an index beyond them fails. `None` where
    /// that can't be, or whoever reads the samples looks.
    pub samples: Option<u64>,
    /// Whether the run is for capacity that other runs of the pool leave idle.
    pub background: bool,
}
