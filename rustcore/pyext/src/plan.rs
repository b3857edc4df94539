//! The plan as Python sees it.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tundish_engine::{Cancel, Plan, PlanError, PlanSpec, Uneven};

use crate::errors::to_py;
use crate::run::SLICE;

/// See the stub.
#[pyclass(frozen, name = "Plan", module = "tundish._core")]
pub(crate) struct PyPlan(pub(crate) Arc<Plan>);

fn invalid(error: PlanError) -> PyErr {
    to_py(error.into())
}

#[pymethods]
impl PyPlan {
    #[new]
    #[pyo3(signature = (samples, order, seed, epoch, batch_size, drop_last, rank=0, world_size=1, uneven="pad"))]
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
    ) -> PyResult<Self> {
        let order = order.parse().map_err(invalid)?;
        let uneven: Uneven = uneven.parse().map_err(invalid)?;
        let spec = PlanSpec { samples, order, seed, epoch, batch_size, drop_last, rank, world_size, uneven };
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

    /// The order may take seconds to build: that happens on a thread of its own, while
    /// this one looks at its signals.
    fn indices(&self, py: Python<'_>, batch: u64) -> PyResult<Vec<u64>> {
        let (plan, cancel) = (Arc::clone(&self.0), Cancel::new());
        let (send, receive) = channel();
        let cancelled = cancel.clone();
        std::thread::spawn(move || {
            let mut indices = Vec::new();
            let answer = plan.indices(batch, &cancelled, &mut indices).map(|()| indices);
            // Nobody listens any more after an interrupt.
            let _ = send.send(answer);
        });
        // The receiver is not `Sync`; it stays on this thread all the same.
        let receive = Mutex::new(receive);
        loop {
            match py.detach(|| receive.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SLICE)) {
                Ok(indices) => return indices.map_err(invalid),
                Err(RecvTimeoutError::Timeout) => {
                    py.check_signals().inspect_err(|_| cancel.cancel())?;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(PyRuntimeError::new_err("the thread that builds the order panicked"));
                }
            }
        }
    }
}
