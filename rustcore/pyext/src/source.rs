//! Datasets: native arrays, and any Python callable.

use std::sync::{Arc, OnceLock};

use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView};
use tundish_engine::{ArraySource, Body, Container, Field, Foreign, Loaded, Source, Task};

use crate::errors::to_py;
use crate::memory::PyBody;
use crate::thread::call_user_code;

/// Anything a run can be made of.
#[derive(FromPyObject)]
pub(crate) enum AnySource<'py> {
    Array(Bound<'py, PyArraySource>),
    Call(Bound<'py, PyCallSource>),
}

impl AnySource<'_> {
    pub(crate) fn engine(&self) -> Arc<dyn Source> {
        match self {
            Self::Array(source) => Arc::clone(&source.get().0) as Arc<dyn Source>,
            Self::Call(source) => Arc::clone(&source.get().0) as Arc<dyn Source>,
        }
    }
}

/// An [`ArraySource`] together with the buffers it reads.
struct Arrays {
    source: ArraySource,
    buffers: Vec<PyUntypedBuffer>,
}

impl Drop for Arrays {
    fn drop(&mut self) {
        let buffers = std::mem::take(&mut self.buffers);
        // Releasing a buffer needs the interpreter; without one the memory goes with the process.
        let mut buffers = Some(buffers);
        if Python::try_attach(|_| drop(buffers.take())).is_none() {
            std::mem::forget(buffers);
        }
    }
}

impl Source for Arrays {
    fn load(&self, task: &Arc<Task>) -> Result<Loaded, Foreign> {
        self.source.load(task)
    }
}

/// See the stub.
#[pyclass(frozen, name = "ArraySource", module = "tundish._core")]
pub(crate) struct PyArraySource(Arc<Arrays>);

#[pymethods]
impl PyArraySource {
    #[new]
    #[pyo3(signature = (fields, container, selection=None))]
    fn new(
        py: Python<'_>,
        fields: Vec<(Option<String>, String, Bound<'_, PyAny>)>,
        container: &str,
        selection: Option<PyBuffer<i64>>,
    ) -> PyResult<Self> {
        let container = match container {
            "dict" => Container::Dict,
            "list" => Container::List,
            other => {
                return Err(PyValueError::new_err(format!(
                    "container must be 'dict' or 'list', not '{other}'"
                )));
            }
        };
        let mut described = Vec::new();
        let mut buffers = Vec::new();
        for (name, dtype, array) in fields {
            let buffer = PyUntypedBuffer::get(&array)?;
            described.push(Field {
                name: name.unwrap_or_default(),
                dtype,
                itemsize: buffer.item_size(),
                shape: buffer.shape().iter().map(|&extent| extent as u64).collect(),
                strides: buffer.strides().to_vec(),
                address: buffer.buf_ptr() as usize,
            });
            buffers.push(buffer);
        }
        // SAFETY: the buffers, held beside the source, keep the memory readable.
        let mut source = unsafe { ArraySource::new(described, container) }.map_err(PyValueError::new_err)?;
        if let Some(rows) = selection {
            // A negative row is beyond the arrays' end as an unsigned number.
            let rows = rows.to_vec(py)?.into_iter().map(i64::cast_unsigned).collect();
            source = source.select(rows).map_err(PyValueError::new_err)?;
        }
        Ok(Self(Arc::new(Arrays { source, buffers })))
    }
}

/// A Python object that may be dropped on any thread, attached or not.
pub(crate) struct Object(Option<Py<PyAny>>);

impl Object {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        Self(Some(object))
    }

    pub(crate) fn bind<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.0.as_ref().map(|object| object.bind(py)).expect("an object is taken out by value only")
    }

    pub(crate) fn into_inner(mut self) -> Option<Py<PyAny>> {
        self.0.take()
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let mut object = self.0.take();
        // Dropped while detached, it would wait for the next attach of somebody else.
        if object.is_some() && Python::try_attach(|_| drop(object.take())).is_none() {
            std::mem::forget(object);
        }
    }
}

/// A Python callable that produces batches.
struct Call {
    produce: Py<PyAny>,
}

impl Source for Call {
    fn load(&self, task: &Arc<Task>) -> Result<Loaded, Foreign> {
        match Python::try_attach(|py| self.call(py, task)) {
            Some(loaded) => loaded.map_err(Into::into),
            None => Err("the interpreter is shutting down".into()),
        }
    }
}

impl Call {
    fn call(&self, py: Python<'_>, task: &Arc<Task>) -> PyResult<Loaded> {
        let indices = PyList::new(py, &task.indices)?;
        let handle = PyTask { task: Arc::clone(task), memory: OnceLock::new() };
        let args = (indices, handle).into_pyobject(py)?;
        let answer = call_user_code(self.produce.bind(py), &args)?;
        if task.encode {
            Ok(Loaded::Encoded(answer.cast::<PyBytes>()?.as_bytes().to_vec()))
        } else {
            Ok(Loaded::Object(Box::new(Object(Some(answer.unbind())))))
        }
    }
}

/// See the stub.
#[pyclass(frozen, name = "CallSource", module = "tundish._core")]
pub(crate) struct PyCallSource(Arc<Call>);

#[pymethods]
impl PyCallSource {
    #[new]
    fn new(produce: Py<PyAny>) -> Self {
        Self(Arc::new(Call { produce }))
    }
}

/// See the stub.
#[pyclass(frozen, name = "Task", module = "tundish._core")]
pub(crate) struct PyTask {
    task: Arc<Task>,
    memory: OnceLock<Arc<Body>>,
}

#[pymethods]
impl PyTask {
    #[getter]
    fn epoch(&self) -> u64 {
        self.task.epoch
    }

    #[getter]
    fn batch(&self) -> u64 {
        self.task.batch
    }

    #[getter]
    fn encode(&self) -> bool {
        self.task.encode
    }

    #[getter]
    fn worker(&self) -> Option<usize> {
        self.task.worker
    }

    /// The samples, if they were read already; they are the caller's from then on.
    #[getter]
    fn items(&self) -> Option<Py<PyAny>> {
        let items = self.task.items()?.downcast::<Object>().ok()?;
        items.into_inner()
    }

    fn position(&self, place: u64) -> u64 {
        self.task.position(place)
    }

    fn cancelled(&self) -> bool {
        self.task.cancel.is_cancelled()
    }

    fn step(&self, place: u64) -> bool {
        self.task.step(place);
        self.task.cancel.is_cancelled()
    }

    fn keep(&self, places: Vec<usize>) -> PyResult<()> {
        self.task.keep(&places).map_err(to_py)
    }

    fn alloc<'py>(&self, py: Python<'py>, nbytes: usize) -> PyResult<Bound<'py, PyAny>> {
        let body = py.detach(|| self.task.allocate(nbytes)).map_err(to_py)?;
        let _ = self.memory.set(Arc::clone(&body));
        let view = PyMemoryView::from(Bound::new(py, PyBody(body))?.as_any())?;
        view.get_item(pyo3::types::PySlice::new(py, 0, nbytes.cast_signed(), 1))
    }
}

impl PyTask {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.task.cancel.is_cancelled()
    }

    /// Whether this batch alone was given up, and not its whole run.
    pub(crate) fn gave_up(&self) -> bool {
        self.task.cancel.is_own()
    }

    pub(crate) fn note(&self, place: usize) {
        self.task.step(place as u64);
    }
}
