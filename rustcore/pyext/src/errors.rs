//! The one place where the engine's errors become Python's.

use pyo3::exceptions::{PyIndexError, PyOSError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use tundish_engine::{Error, NoSuchSample, PlanError};

/// The Python exception for an engine error. An exception that user code raised comes
/// out as itself: same object, traceback and all.
pub(crate) fn to_py(error: Error) -> PyErr {
    match error {
        Error::Source(foreign) => match foreign.downcast::<PyErr>() {
            Ok(own) => *own,
            Err(other) => match other.downcast::<Error>() {
                Ok(inner) => to_py(*inner),
                Err(other) if other.is::<NoSuchSample>() => PyIndexError::new_err(other.to_string()),
                Err(other) => PyRuntimeError::new_err(other.to_string()),
            },
        },
        Error::Plan(PlanError::Cancelled) => PyRuntimeError::new_err("the epoch was cancelled"),
        Error::Plan(invalid) => PyValueError::new_err(invalid.to_string()),
        Error::Timeout(text) => PyTimeoutError::new_err(text),
        Error::System { errno, .. } => PyOSError::new_err((errno.raw_os_error(), error.to_string())),
        other => PyRuntimeError::new_err(other.to_string()),
    }
}
