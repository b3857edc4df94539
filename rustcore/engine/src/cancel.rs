//! A cancellation flag shared by everything that may take long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that is raised once and never lowered.
///
/// Clones share the flag. Raising it wakes nobody by itself: whoever works for
/// long looks at it at least every few milliseconds, whoever waits does so in
/// slices of at most 50 ms.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    own: Arc<AtomicBool>,
    /// Raised as well when this one is.
    above: Option<Arc<AtomicBool>>,
}

impl Cancel {
    /// Makes a flag that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag of its own that also counts as raised when this one is (one level deep).
    #[must_use]
    pub fn child(&self) -> Self {
        Self { own: Arc::default(), above: Some(Arc::clone(&self.own)) }
    }

    /// Raises the flag. May be called from any thread, any number of times.
    pub fn cancel(&self) {
        self.own.store(true, Ordering::Release);
    }

    /// Tells whether this very flag has been raised, and not the one above it.
    pub fn is_own(&self) -> bool {
        self.above.is_some() && self.own.load(Ordering::Acquire)
    }

    /// Tells whether the flag has been raised.
    pub fn is_cancelled(&self) -> bool {
        self.own.load(Ordering::Acquire)
            || self.above.as_ref().is_some_and(|above| above.load(Ordering::Acquire))
    }
}
