//! What can go wrong with one batch.

use crate::order::PlanError;

/// An error of somebody else's code (a dataset, a collate function), carried whole.
pub type Foreign = Box<dyn std::error::Error + Send + Sync>;

/// An index that a native dataset does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("index {index} is out of range for a dataset of {samples} samples")]
pub struct NoSuchSample {
    /// The index.
    pub index: u64,
    /// How many samples there are.
    pub samples: u64,
}

/// Why a batch could not be produced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plan refused its arguments, or its preparation was cancelled.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The source failed; the boxed error is the source's own.
    #[error("{0}")]
    Source(Foreign),
    /// The source panicked; the text is the panic's message.
    #[error("the source panicked: {0}")]
    Panic(String),
    /// The batch took longer than it may; the text says what was being done.
    #[error("{0}")]
    Timeout(String),
    /// The operating system refused memory, a file descriptor or an eventfd.
    #[error("{what}: {errno}")]
    System {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        errno: rustix::io::Errno,
    },
}

impl Error {
    /// Names what was being done when the system said no.
    pub(crate) fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::System { what, errno }
    }
}
