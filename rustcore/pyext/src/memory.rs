//! The arena, its slots as Python buffers, and the waker.

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyBufferError, PyKeyError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tundish_engine::{Arena, Body, Waker};

use crate::errors::to_py;

/// See the stub.
#[pyclass(frozen, name = "Arena", module = "tundish._core")]
pub(crate) struct PyArena(pub(crate) Arc<Arena>);

#[pymethods]
impl PyArena {
    #[new]
    #[pyo3(signature = (limit, lenient=false))]
    fn new(limit: u64, lenient: bool) -> Self {
        Self(if lenient { Arena::lenient(limit) } else { Arena::new(limit) })
    }

    #[getter]
    fn limit(&self) -> u64 {
        self.0.limit()
    }

    #[getter]
    fn used(&self) -> u64 {
        self.0.usage().used
    }

    #[getter]
    fn capacity(&self) -> u64 {
        self.0.usage().capacity
    }

    #[getter]
    fn busy(&self) -> u64 {
        self.0.busy()
    }

    #[getter]
    fn lent(&self) -> u64 {
        self.0.usage().lent
    }

    #[getter]
    fn slots_total(&self) -> u64 {
        self.0.usage().slots_total
    }

    #[getter]
    fn slots_lent(&self) -> u64 {
        self.0.usage().slots_lent
    }

    #[getter]
    fn retiring(&self) -> bool {
        self.0.retiring()
    }

    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let usage = self.0.usage();
        let dict = PyDict::new(py);
        for (name, value) in [
            ("used", usage.used),
            ("peak", usage.peak),
            ("capacity", usage.capacity),
            ("heap", usage.heap),
            ("lent", usage.lent),
            ("reserved", usage.reserved),
            ("slots_total", usage.slots_total),
            ("slots_lent", usage.slots_lent),
        ] {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    fn trim(&self) {
        self.0.trim();
    }

    fn segment_fd(&self, segment: u32) -> PyResult<c_int> {
        self.segment(segment).map(|(fd, _)| fd)
    }

    fn segment_bytes(&self, segment: u32) -> PyResult<u64> {
        self.segment(segment).map(|(_, bytes)| bytes)
    }

    fn retired(&self) -> Vec<u32> {
        self.0.retired()
    }

    fn drop_segment(&self, segment: u32) -> bool {
        self.0.drop_segment(segment)
    }
}

impl PyArena {
    fn segment(&self, number: u32) -> PyResult<(c_int, u64)> {
        self.0
            .segment(number)
            .ok_or_else(|| PyKeyError::new_err(format!("the arena has no segment {number}")))
    }
}

/// Fills `view` with the writable bytes of `body`; `owner` keeps them alive.
///
/// # Safety
/// To be called from `__getbuffer__` with the view it was given.
pub(crate) unsafe fn export<T>(
    owner: Bound<'_, T>,
    body: Option<&Body>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let Some(body) = body else {
        return Err(PyBufferError::new_err("this batch has no memory of its own: it is a Python object"));
    };
    // SAFETY: the view is the interpreter's; the memory lives as long as `owner` does, of
    // which the view holds a reference.
    let answer = unsafe {
        let address = body.address().as_ptr().cast();
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), address, body.len().cast_signed(), 0, flags)
    };
    if answer == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

/// See the stub.
#[pyclass(frozen, name = "Sizes", module = "tundish._core")]
#[derive(Default)]
pub(crate) struct PySizes(Mutex<HashMap<u64, Arc<AtomicU64>>>);

#[pymethods]
impl PySizes {
    #[new]
    fn new() -> Self {
        Self::default()
    }
}

impl PySizes {
    /// The largest of the batches of so many samples.
    pub(crate) fn largest(&self, batch_size: u64) -> Arc<AtomicU64> {
        let mut sizes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(sizes.entry(batch_size).or_default())
    }
}

/// The memory of a batch in the making.
#[pyclass(frozen, name = "_Body", module = "tundish._core")]
pub(crate) struct PyBody(pub(crate) Arc<Body>);

#[pymethods]
impl PyBody {
    /// # Safety
    /// Called by the interpreter alone.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let body = Arc::clone(&slf.get().0);
        // SAFETY: this is `__getbuffer__`; the pyclass holds the body.
        unsafe { export(slf, Some(&body), view, flags) }
    }
}

/// See the stub.
#[pyclass(frozen, name = "Waker", module = "tundish._core")]
pub(crate) struct PyWaker(pub(crate) Arc<Waker>);

#[pymethods]
impl PyWaker {
    #[new]
    fn new() -> PyResult<Self> {
        Waker::new().map(|waker| Self(Arc::new(waker))).map_err(to_py)
    }

    fn fileno(&self) -> c_int {
        self.0.fd().as_raw_fd()
    }

    fn drain(&self) -> Vec<u64> {
        self.0.drain()
    }
}
