//! Epochs that are read from something: a user's sampler, an iterable dataset.

use std::any::Any;

use crate::cancel::Cancel;
use crate::error::Foreign;

/// What one batch of such an epoch is made of.
pub struct Portion {
    /// The samples' indices, or their numbers in a stream.
    pub indices: Vec<u64>,
    /// The samples themselves, if reading produced them.
    pub items: Option<Box<dyn Any + Send + Sync>>,
    /// The position in the epoch of the batch's first sample, and the step to the next.
    pub places: [u64; 2],
}

impl std::fmt::Debug for Portion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Portion").field("indices", &self.indices).finish_non_exhaustive()
    }
}

/// Says, batch after batch, what an epoch is made of.
///
/// A run reads one batch at a time, in order; the batches are then produced by several
/// workers at once.
pub trait Reader: Send + Sync {
    /// Reads batch `batch`, or finds that the epoch ends before it.
    ///
    /// # Errors
    /// Any error of its own: it is the failure of this batch, and the next one is read.
    fn read(&self, batch: u64, cancel: &Cancel) -> Result<Option<Portion>, Foreign>;
}
