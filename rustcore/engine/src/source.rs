//! Where batches come from: the trait that datasets implement, and the task they get.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::arena::{Arena, Reservation};
use crate::body::{ALIGNMENT, Body};
use crate::cancel::Cancel;
use crate::error::{Error, Foreign};
use crate::reader::Portion;
use crate::sync::{Mutex, lock};

/// Something that can produce a batch from sample indices.
///
/// Called from several worker threads at once.
pub trait Source: Send + Sync {
    /// Produces the batch that `task` describes.
    ///
    /// # Errors
    /// Any error of its own. It becomes the error of this batch alone.
    fn load(&self, task: &Arc<Task>) -> Result<Loaded, Foreign>;

    /// How many bytes a batch of so many samples takes; `None` if only making one can tell.
    fn size(&self, _samples: u64) -> Option<u64> {
        None
    }
}

/// What a source made of a task.
pub enum Loaded {
    /// The batch's value, packed; its arrays lie in the memory of [`Task::allocate`].
    Encoded(Vec<u8>),
    /// Any object, for a consumer in the same process.
    Object(Box<dyn Any + Send + Sync>),
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Encoded(packed) => f.debug_tuple("Encoded").field(&packed.len()).finish(),
            Self::Object(_) => f.write_str("Object"),
        }
    }
}

/// Nothing is being loaded yet; see [`Task::step`].
const NOWHERE: u64 = u64::MAX;

/// One batch to be produced.
pub struct Task {
    /// The epoch.
    pub epoch: u64,
    /// The number of the batch in its epoch.
    pub batch: u64,
    /// The samples of the batch.
    pub indices: Vec<u64>,
    /// Whether the batch must be encoded into memory of [`Task::allocate`].
    pub encode: bool,
    /// Set when nobody wants the batch any more.
    pub cancel: Cancel,
    /// The number of the worker that produces it; `None` in the consumer's own thread.
    pub worker: Option<usize>,
    items: Mutex<Option<Box<dyn Any + Send + Sync>>>,
    places: [u64; 2],
    at: AtomicU64,
    kept: OnceLock<Vec<u64>>,
    arena: Arc<Arena>,
    /// The memory that was set aside for it.
    pub(crate) reserved: Mutex<Option<Reservation>>,
    body: OnceLock<Arc<Body>>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task")
            .field("epoch", &self.epoch)
            .field("batch", &self.batch)
            .field("indices", &self.indices)
            .finish_non_exhaustive()
    }
}

impl Task {
    pub(crate) fn new(batch: (u64, u64), portion: Portion, encode: bool, arena: &Arc<Arena>) -> Self {
        Self {
            epoch: batch.0,
            batch: batch.1,
            indices: portion.indices,
            encode,
            cancel: Cancel::new(),
            worker: None,
            items: Mutex::new(portion.items),
            places: portion.places,
            at: AtomicU64::new(NOWHERE),
            kept: OnceLock::new(),
            arena: Arc::clone(arena),
            reserved: Mutex::new(None),
            body: OnceLock::new(),
        }
    }

    /// The samples, if they were read already. They are handed out once.
    pub fn items(&self) -> Option<Box<dyn Any + Send + Sync>> {
        lock(&self.items).take()
    }

    /// The position in the epoch of the batch's sample number `place`. A sample that
    /// stands twice in an epoch has two positions, also when the second one is padding.
    pub fn position(&self, place: u64) -> u64 {
        self.places[0].wrapping_add(place.wrapping_mul(self.places[1]))
    }

    /// Takes note that sample number `place` of the batch is being loaded now.
    pub fn step(&self, place: u64) {
        self.at.store(place, Ordering::Relaxed);
    }

    /// The index of the sample that is being loaded, if that is known.
    pub(crate) fn loading(&self) -> Option<u64> {
        let at = self.at.load(Ordering::Relaxed);
        self.indices.get(usize::try_from(at).ok()?).copied()
    }

    /// Says which places of the batch stay in it; the others are left out. To be called
    /// once, before [`Task::allocate`].
    ///
    /// # Errors
    /// For a place that does not exist, and at a second call.
    pub fn keep(&self, places: &[usize]) -> Result<(), Error> {
        let kept: Option<Vec<u64>> = places.iter().map(|&place| self.indices.get(place).copied()).collect();
        let kept = kept.ok_or_else(|| Error::Source("a batch has no such place".into()))?;
        self.kept.set(kept).map_err(|_| Error::Source("what a batch keeps can be said once".into()))
    }

    /// The samples that are in the batch.
    pub fn samples(&self) -> &[u64] {
        self.kept.get().unwrap_or(&self.indices)
    }

    /// The samples that were left out of the batch.
    pub fn skipped(&self) -> Vec<u64> {
        let Some(kept) = self.kept.get() else { return Vec::new() };
        // Both lists have the batch's order, and a sample may stand in it twice.
        let mut rest = kept.iter().peekable();
        let left_out = |index: &&u64| rest.next_if(|kept| kept == index).is_none();
        self.indices.iter().filter(left_out).copied().collect()
    }

    /// Where the sample indices are written: behind `bytes` of arrays.
    fn samples_offset(bytes: usize) -> usize {
        bytes.next_multiple_of(ALIGNMENT)
    }

    /// The bytes of a batch's memory, with `bytes` of arrays and so many samples.
    pub(crate) fn size(bytes: usize, samples: usize) -> usize {
        Self::samples_offset(bytes) + samples * 8
    }

    /// The memory, once it was asked for.
    pub(crate) fn body(&self) -> Option<&Arc<Body>> {
        self.body.get()
    }

    /// Memory for the batch's arrays: `bytes` at a 64-byte boundary. Behind them the
    /// sample indices are written by this call. It may be called once per task.
    ///
    /// # Errors
    /// When the system has no memory left, or at a second call.
    pub fn allocate(&self, bytes: usize) -> Result<Arc<Body>, Error> {
        let offset = Self::samples_offset(bytes);
        let samples = self.samples();
        let reserved = lock(&self.reserved).take();
        let body = Arc::new(self.arena.allocate(Self::size(bytes, samples.len()), reserved)?);
        // SAFETY: nobody else has this memory yet.
        let target = unsafe { &mut body.bytes_mut()[offset..] };
        for (place, index) in target.chunks_exact_mut(8).zip(samples) {
            place.copy_from_slice(&index.cast_signed().to_ne_bytes());
        }
        match self.body.set(Arc::clone(&body)) {
            Ok(()) => Ok(body),
            Err(_) => Err(Error::Source("a task's memory can be asked for once".into())),
        }
    }
}
