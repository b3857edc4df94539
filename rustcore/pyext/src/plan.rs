//! Plans and samplings as Python sees them.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tundish_engine::{Cancel, Plan, PlanError, PlanSpec, Sampling, Uneven};

use crate::errors::to_py;
use crate::run::SLICE;

/// Elements of a buffer that are copied between two looks at the signals.
const COPIED_AT_ONCE: usize = 1 << 20;

fn invalid(error: PlanError) -> PyErr {
    to_py(error.into())
}

/// Does `work` on a thread of its own, while this one looks at its signals.
fn beside<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Cancel) -> Result<T, PlanError> + Send + 'static,
) -> PyResult<T> {
    let cancel = Cancel::new();
    let (send, receive) = channel();
    let cancelled = cancel.clone();
    std::thread::spawn(move || {
        // Nobody listens any more after an interrupt.
        let _ = send.send(work(&cancelled));
    });
    // The receiver is not `Sync`; it stays on this thread all the same.
    let receive = Mutex::new(receive);
    loop {
        match py.detach(|| receive.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SLICE)) {
            Ok(answer) => return answer.map_err(invalid),
            Err(RecvTimeoutError::Timeout) => {
                py.check_signals().inspect_err(|_| cancel.cancel())?;
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the thread that builds the order panicked"));
            }
        }
    }
}

/// See the stub.
#[pyclass(frozen, name = "Plan", module = "tundish._core")]
pub(crate) struct PyPlan(pub(crate) Arc<Plan>);

#[pymethods]
impl PyPlan {
    #[new]
    #[pyo3(signature = (samples, order, seed, epoch, batch_size, drop_last, rank=0, world_size=1, uneven="pad", sampling=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        samples: u64,
        order: &str,
        seed: u64,
        epoch: u64,
        batch_size: u64,
        drop_last: bool,
        rank: u64,
        world_size: u64,
        uneven: &str,
        sampling: Option<Bound<'_, PySampling>>,
    ) -> PyResult<Self> {
        let order = order.parse().map_err(invalid)?;
        let uneven: Uneven = uneven.parse().map_err(invalid)?;
        let sampling = sampling.map(|sampling| Arc::clone(&sampling.get().0));
        let spec = PlanSpec {
            samples,
            order,
            seed,
            epoch,
            batch_size,
            drop_last,
            rank,
            world_size,
            uneven,
            sampling,
        };
        Plan::new(spec).map(|plan| Self(Arc::new(plan))).map_err(invalid)
    }

    #[getter]
    fn batches(&self) -> u64 {
        self.0.batches()
    }

    #[getter]
    fn samples(&self) -> u64 {
        self.0.samples()
    }

    #[getter]
    fn padded(&self) -> u64 {
        self.0.padded()
    }

    #[getter]
    fn dropped(&self) -> u64 {
        self.0.dropped()
    }

    #[getter]
    fn order(&self) -> String {
        self.0.spec().order.fingerprint()
    }

    fn indices(&self, py: Python<'_>, batch: u64) -> PyResult<Vec<u64>> {
        let plan = Arc::clone(&self.0);
        beside(py, move |cancel| {
            let mut indices = Vec::new();
            plan.indices(batch, cancel, &mut indices).map(|()| indices)
        })
    }
}

/// See the stub.
#[pyclass(frozen, eq, name = "Sampling", module = "tundish._core")]
#[derive(PartialEq)]
pub(crate) struct PySampling(Arc<Sampling>);

#[pymethods]
impl PySampling {
    #[staticmethod]
    fn random(samples: u64, num_samples: u64, replacement: bool) -> PyResult<Self> {
        Sampling::random(samples, num_samples, replacement).map(Self::from).map_err(invalid)
    }

    #[staticmethod]
    fn weighted(
        py: Python<'_>,
        weights: PyBuffer<f64>,
        num_samples: u64,
        replacement: bool,
    ) -> PyResult<Self> {
        let weights = copied(py, "weights", &weights, Ok)?;
        beside(py, move |cancel| Sampling::weighted(weights, num_samples, replacement, cancel))
            .map(Self::from)
    }

    #[staticmethod]
    fn subset(py: Python<'_>, indices: PyBuffer<i64>) -> PyResult<Self> {
        let indices = copied(py, "indices", &indices, not_negative)?;
        beside(py, move |cancel| Sampling::subset(indices, cancel)).map(Self::from)
    }

    #[staticmethod]
    fn fixed(py: Python<'_>, indices: PyBuffer<i64>) -> PyResult<Self> {
        let indices = copied(py, "indices", &indices, not_negative)?;
        beside(py, move |cancel| Sampling::fixed(indices, cancel)).map(Self::from)
    }

    #[getter]
    fn digest(&self) -> String {
        format!("{:016x}", self.0.digest())
    }

    fn __len__(&self) -> usize {
        self.0.len() as usize
    }

    fn __hash__(&self) -> u64 {
        self.0.digest()
    }
}

impl From<Sampling> for PySampling {
    fn from(sampling: Sampling) -> Self {
        Self(Arc::new(sampling))
    }
}

/// The elements of a one-dimensional buffer, each as `read` gives it.
fn copied<T: Element + Copy, U>(
    py: Python<'_>,
    argument: &str,
    buffer: &PyBuffer<T>,
    read: impl Fn(T) -> Result<U, String>,
) -> PyResult<Vec<U>> {
    let refused = |reason: String| PyValueError::new_err(format!("{argument}: {reason}"));
    if buffer.dimensions() != 1 {
        return Err(refused(format!("{} dimensions; it must be one row of numbers", buffer.dimensions())));
    }
    let (count, stride, first) = (buffer.item_count(), buffer.strides()[0], buffer.buf_ptr().cast_const());
    let mut list = Vec::new();
    if list.try_reserve_exact(count).is_err() {
        return Err(refused(format!("no memory for {count} of them")));
    }
    for place in 0..count {
        if place % COPIED_AT_ONCE == 0 {
            py.check_signals()?;
        }
        // SAFETY: the buffer is held, and has `count` elements of this type at that distance.
        let element = unsafe { first.byte_offset(place.cast_signed() * stride).cast::<T>().read_unaligned() };
        list.push(read(element).map_err(|reason| refused(format!("{reason} at place {place}")))?);
    }
    Ok(list)
}

/// An index as an unsigned number.
fn not_negative(index: i64) -> Result<u64, String> {
    u64::try_from(index).map_err(|_| format!("an index must be 0 or more, not {index}"))
}
