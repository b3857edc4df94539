//! Epochs that are read by a Python callable.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyList;
use tundish_engine::{Cancel, Foreign, Plan, Portion, Reader, Supply};

use crate::plan::PyPlan;
use crate::source::Object;
use crate::thread::call_user_code;

/// What can say which samples an epoch consists of.
#[derive(FromPyObject)]
pub(crate) enum AnySupply<'py> {
    Plan(Bound<'py, PyPlan>),
    Reader(Bound<'py, PyReader>),
}

impl AnySupply<'_> {
    pub(crate) fn engine(&self, epoch: u64) -> Supply {
        match self {
            Self::Plan(plan) => Supply::Plan(Arc::clone(&plan.get().0)),
            Self::Reader(reader) => Supply::Reader(Arc::clone(&reader.get().0) as _, epoch),
        }
    }

    pub(crate) fn plan(&self) -> Option<&Plan> {
        match self {
            Self::Plan(plan) => Some(&plan.get().0),
            Self::Reader(_) => None,
        }
    }
}

/// A Python callable that says what the next batch consists of.
struct Read {
    read: Object,
}

/// Indices, samples, the first one's position in the epoch, the step to the next.
type Answer<'py> = (Vec<u64>, Option<Bound<'py, PyList>>, u64, u64);

impl Reader for Read {
    fn read(&self, batch: u64, cancel: &Cancel) -> Result<Option<Portion>, Foreign> {
        match Python::try_attach(|py| self.call(py, batch, cancel)) {
            Some(portion) => portion.map_err(Into::into),
            None => Err("the interpreter is shutting down".into()),
        }
    }
}

impl Read {
    fn call(&self, py: Python<'_>, batch: u64, cancel: &Cancel) -> PyResult<Option<Portion>> {
        let cancelled = Bound::new(py, PyCancelled(cancel.clone()))?;
        let args = (batch, cancelled).into_pyobject(py)?;
        let answer = call_user_code(self.read.bind(py), &args)?;
        let Some((indices, items, first, step)) = answer.extract::<Option<Answer<'_>>>()? else {
            return Ok(None);
        };
        let items = items.map(|items| Box::new(Object::new(items.into_any().unbind())) as _);
        Ok(Some(Portion { indices, items, places: [first, step] }))
    }
}

/// See the stub.
#[pyclass(frozen, name = "Reader", module = "tundish._core")]
pub(crate) struct PyReader(Arc<Read>);

#[pymethods]
impl PyReader {
    #[new]
    fn new(read: Py<PyAny>) -> Self {
        Self(Arc::new(Read { read: Object::new(read) }))
    }
}

/// A callable that tells whether the run was cancelled.
#[pyclass(frozen, name = "Cancelled", module = "tundish._core")]
struct PyCancelled(Cancel);

#[pymethods]
impl PyCancelled {
    fn __call__(&self) -> bool {
        self.0.is_cancelled()
    }
}
