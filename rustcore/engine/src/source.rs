//! Where batches come from: the trait that datasets implement, and the task they get.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use crate::arena::Arena;
use crate::body::{ALIGNMENT, Body};
use crate::cancel::Cancel;
use crate::error::{Error, Foreign};

/// Something that can produce a batch from sample indices.
///
/// Called from several worker threads at once.
pub trait Source: Send + Sync {
    /// Produces the batch that `task` describes.
    ///
    /// # Errors
    /// Any error of its own. It becomes the error of this batch alone.
    fn load(&self, task: &Arc<Task>) -> Result<Loaded, Foreign>;
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

/// One batch to be produced.
#[derive(Debug)]
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
    pub(crate) arena: Arc<Arena>,
    pub(crate) body: OnceLock<Arc<Body>>,
}

impl Task {
    /// Where the sample indices are written: behind `bytes` of arrays.
    pub(crate) fn samples_offset(bytes: usize) -> usize {
        bytes.next_multiple_of(ALIGNMENT)
    }

    /// Memory for the batch's arrays: `bytes` at a 64-byte boundary. Behind them the
    /// sample indices are written by this call. It may be called once per task.
    ///
    /// # Errors
    /// When the system has no memory left, or at a second call.
    pub fn allocate(&self, bytes: usize) -> Result<Arc<Body>, Error> {
        let offset = Self::samples_offset(bytes);
        let body = Arc::new(self.arena.allocate(offset + self.indices.len() * 8)?);
        // SAFETY: nobody else has this memory yet.
        let target = unsafe { &mut body.bytes_mut()[offset..] };
        for (place, index) in target.chunks_exact_mut(8).zip(&self.indices) {
            place.copy_from_slice(&index.cast_signed().to_ne_bytes());
        }
        match self.body.set(Arc::clone(&body)) {
            Ok(()) => Ok(body),
            Err(_) => Err(Error::Source("a task's memory can be asked for once".into())),
        }
    }
}
