//! What can go wrong between a plan's description and its indices.

use thiserror::Error;

use crate::cancel::Cancel;

/// Why a plan or an order could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanError {
    /// An argument has a value that cannot be used.
    #[error("{argument}={value}: {reason}")]
    Invalid {
        /// The argument's name as the user writes it.
        argument: &'static str,
        /// The value that was given.
        value: String,
        /// What is wrong with it, and the way out.
        reason: String,
    },
    /// The caller's [`Cancel`] was raised before the work was done.
    #[error("cancelled while the order of the epoch was being computed")]
    Cancelled,
}

impl PlanError {
    /// Builds [`PlanError::Invalid`] from anything that can be displayed.
    pub(crate) fn invalid(argument: &'static str, value: &impl ToString, reason: impl Into<String>) -> Self {
        Self::Invalid { argument, value: value.to_string(), reason: reason.into() }
    }
}

/// Turns a raised flag into the error, for use with `?` inside long loops.
pub(crate) fn check(cancel: &Cancel) -> Result<(), PlanError> {
    if cancel.is_cancelled() {
        return Err(PlanError::Cancelled);
    }
    Ok(())
}
