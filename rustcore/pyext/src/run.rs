//! Runs and what comes out of them.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tundish_engine::{Arena, Batch, Cell, Error, Failure, Loaded, Plan, Pool, Run, RunOptions, Take};

use crate::errors::to_py;
use crate::memory::{PyArena, PySizes, PyWaker, export};
use crate::reader::AnySupply;
use crate::source::{AnySource, Object};
use crate::thread::thread_main;

/// How long a blocking wait goes on before it looks at the process's signals.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// See the stub.
#[pyclass(frozen, name = "Pool", module = "tundish._core")]
pub(crate) struct PyPool(pub(crate) Pool);

#[pymethods]
impl PyPool {
    #[new]
    fn new(py: Python<'_>, workers: usize, name: &str) -> PyResult<Self> {
        py.detach(|| Pool::new(workers, name, &thread_main())).map(Self).map_err(to_py)
    }

    #[getter]
    fn workers(&self) -> usize {
        self.0.workers()
    }

    fn close(&self, py: Python<'_>, timeout: f64) -> bool {
        py.detach(|| self.0.close(Duration::try_from_secs_f64(timeout).unwrap_or_default()))
    }
}

/// See the stub.
#[pyclass(frozen, name = "Run", module = "tundish._core")]
pub(crate) struct PyRun {
    run: Arc<Run>,
    /// Kept open by its runs.
    pool: Option<Py<PyPool>>,
}

#[pymethods]
impl PyRun {
    #[new]
    #[pyo3(signature = (source, plan, *, start=0, pool=None, arena=None, encode=false, window=1, in_order=true, waker=None, token=0, epoch=0, timeout=None, samples=None, background=false, sizes=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        source: AnySource<'_>,
        plan: AnySupply<'_>,
        start: u64,
        pool: Option<Bound<'_, PyPool>>,
        arena: Option<Bound<'_, PyArena>>,
        encode: bool,
        window: u64,
        in_order: bool,
        waker: Option<Bound<'_, PyWaker>>,
        token: u64,
        epoch: u64,
        timeout: Option<f64>,
        samples: Option<u64>,
        background: bool,
        sizes: Option<Bound<'_, PySizes>>,
    ) -> PyResult<Self> {
        if let Some(plan) = plan.plan()
            && start > plan.batches()
        {
            let message =
                format!("start={start} is behind the epoch's end: it has {} batches", plan.batches());
            return Err(PyValueError::new_err(message));
        }
        let arena = match arena {
            Some(arena) => Arc::clone(&arena.get().0),
            None if encode => return Err(PyValueError::new_err("encode=True needs an arena")),
            None => Arena::new(0),
        };
        let waker = waker.map(|waker| (Arc::clone(&waker.get().0), token));
        let timeout = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let batch_size = plan.plan().map_or(0, |plan| plan.spec().batch_size);
        let largest = sizes.map(|sizes| sizes.get().largest(batch_size)).unwrap_or_default();
        let options = RunOptions {
            start,
            window,
            in_order,
            encode,
            arena,
            largest,
            waker,
            timeout,
            samples,
            background,
        };
        let run = Run::new(plan.engine(epoch), source.engine(), options);
        if let Some(pool) = &pool {
            run.start_on(&pool.get().0);
        }
        Ok(Self { run, pool: pool.map(Bound::unbind) })
    }

    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.run.take() {
            Take::Ready(_, cell) => wrap(py, cell).map(Some),
            Take::Pending => Ok(None),
            Take::End => self.end(py).map(Some),
            Take::Closed => Err(PyRuntimeError::new_err(
                "this epoch was cancelled, its loader was closed, or all its workers are stuck",
            )),
        }
    }

    fn next<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        loop {
            if let Some(found) = self.take(py)? {
                return Ok(found);
            }
            if let Some(pool) = &self.pool {
                if pool.get().0.is_own_thread() {
                    return Err(PyRuntimeError::new_err(
                        "a sample asks its own loader for a batch: the workers would wait for each other; \
                         use a loader of its own there",
                    ));
                }
                self.wait_slice(py)?;
            } else {
                self.produce_here(py)?;
            }
        }
    }

    fn cancel(&self, py: Python<'_>) {
        let left = py.detach(|| self.run.cancel());
        drop(left);
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.run.counts();
        let stats = PyDict::new(py);
        stats.set_item("claimed", counts.claimed)?;
        stats.set_item("produced", counts.delivered + counts.ready)?;
        stats.set_item("delivered", counts.delivered)?;
        stats.set_item("ready", counts.ready)?;
        stats.set_item("total", counts.total)?;
        stats.set_item("errors", self.run.errors())?;
        stats.set_item("skipped", self.run.samples().1)?;
        Ok(stats)
    }
}

impl PyRun {
    fn end<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (samples, skipped) = self.run.samples();
        let batches = self.run.counts().delivered;
        let end = PyEnd { batches, errors: self.run.errors(), samples, skipped };
        Ok(Bound::new(py, end)?.into_any())
    }

    fn wait_slice(&self, py: Python<'_>) -> PyResult<()> {
        if !py.detach(|| self.run.wait(SLICE)) {
            py.check_signals()?;
        }
        Ok(())
    }

    /// Produces in this thread. A `KeyboardInterrupt` here is the user's own Ctrl-C and not
    /// the batch's error: it passes through, and the batch is produced at the next call.
    fn produce_here(&self, py: Python<'_>) -> PyResult<()> {
        let interrupted = |error: &Error| {
            let Error::Source(foreign) = error else { return false };
            let Some(error) = foreign.downcast_ref::<PyErr>() else { return false };
            Python::attach(|py| error.is_instance_of::<PyKeyboardInterrupt>(py))
        };
        self.prepare(py)?;
        py.detach(|| self.run.produce_here(interrupted)).map_err(|failure| to_py(failure.error))
    }

    /// Builds a long order on a thread of its own while this one looks at its signals.
    fn prepare(&self, py: Python<'_>) -> PyResult<()> {
        // Below that it is a matter of a millisecond or two.
        let long = |plan: &&Arc<Plan>| plan.work() >= 1 << 18;
        let Some(plan) = self.run.plan().filter(long) else { return Ok(()) };
        if self.run.counts().claimed > 0 {
            return Ok(());
        }
        let (plan, cancel) = (Arc::clone(plan), self.run.cancellation().clone());
        // A failure shows again, and is reported, when the first batch asks for its indices.
        let thread = std::thread::spawn(move || drop(plan.prepare(&cancel)));
        while !thread.is_finished() {
            py.detach(|| std::thread::sleep(Duration::from_millis(1)));
            py.check_signals()?;
        }
        Ok(())
    }
}

impl Drop for PyRun {
    fn drop(&mut self) {
        drop(self.run.cancel());
    }
}

fn wrap(py: Python<'_>, cell: Cell) -> PyResult<Bound<'_, PyAny>> {
    match cell {
        Ok(batch) => Ok(Bound::new(py, PyBatch::new(*batch))?.into_any()),
        Err(failure) => Ok(Bound::new(py, PyFailure::new(py, *failure))?.into_any()),
    }
}

/// See the stub.
#[pyclass(frozen, name = "Batch", module = "tundish._core")]
pub(crate) struct PyBatch {
    batch: Batch,
    object: Mutex<Option<Object>>,
}

impl PyBatch {
    fn new(mut batch: Batch) -> Self {
        let loaded = std::mem::replace(&mut batch.loaded, Loaded::Encoded(Vec::new()));
        let object = match loaded {
            Loaded::Encoded(packed) => {
                batch.loaded = Loaded::Encoded(packed);
                None
            }
            Loaded::Object(object) => object.downcast::<Object>().ok().map(|object| *object),
        };
        Self { batch, object: Mutex::new(object) }
    }
}

#[pymethods]
impl PyBatch {
    #[getter]
    fn batch(&self) -> u64 {
        self.batch.batch
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.batch.body.as_ref().map_or(0, |body| body.len())
    }

    #[getter]
    fn packed<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        match &self.batch.loaded {
            Loaded::Encoded(packed) if self.batch.body.is_some() => Some(PyBytes::new(py, packed)),
            _ => None,
        }
    }

    #[getter]
    fn samples(&self) -> Vec<u64> {
        self.batch.samples.clone()
    }

    #[getter]
    fn count(&self) -> usize {
        self.batch.samples.len()
    }

    #[getter]
    fn skipped(&self) -> Vec<u64> {
        self.batch.skipped.clone()
    }

    #[getter]
    fn samples_offset(&self) -> u64 {
        self.batch.samples_offset
    }

    #[getter]
    fn segment(&self) -> Option<u32> {
        self.batch.body.as_ref()?.slot().map(|slot| slot.segment)
    }

    #[getter]
    fn slot(&self) -> Option<u32> {
        self.batch.body.as_ref()?.slot().map(|slot| slot.slot)
    }

    #[getter]
    fn generation(&self) -> Option<u32> {
        self.batch.body.as_ref()?.slot().map(|slot| slot.generation)
    }

    #[getter]
    fn offset(&self) -> Option<u64> {
        self.batch.body.as_ref()?.slot().map(|slot| slot.offset)
    }

    #[getter]
    fn times(&self) -> (u64, u64) {
        (self.batch.times[0], self.batch.times[1])
    }

    /// The Python object, once: it is the consumer's from then on.
    #[getter]
    fn object(&self) -> Option<Py<PyAny>> {
        self.object.lock().ok()?.take()?.into_inner()
    }

    /// # Safety
    /// Called by the interpreter alone.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let body = slf.get().batch.body.clone();
        // SAFETY: this is `__getbuffer__`; the pyclass holds the body.
        unsafe { export(slf, body.as_deref(), view, flags) }
    }
}

/// See the stub.
#[pyclass(frozen, name = "Failure", module = "tundish._core")]
pub(crate) struct PyFailure {
    #[pyo3(get)]
    batch: u64,
    #[pyo3(get)]
    samples: Vec<u64>,
    #[pyo3(get)]
    error: Py<PyAny>,
}

impl PyFailure {
    fn new(py: Python<'_>, failure: Failure) -> Self {
        let error = to_py(failure.error).into_value(py).into_any();
        Self { batch: failure.batch, samples: failure.samples, error }
    }
}

/// See the stub.
#[pyclass(frozen, get_all, name = "End", module = "tundish._core")]
pub(crate) struct PyEnd {
    batches: u64,
    errors: u64,
    samples: u64,
    skipped: u64,
}
