//! A batch's samples loaded side by side.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use tundish_engine::Fan;

use crate::run::{PyPool, SLICE};
use crate::source::{Object, PyTask};
use crate::thread::call_user_code;

/// See the stub.
#[pyclass(frozen, name = "Lanes", module = "tundish._core")]
pub(crate) struct PyLanes(Py<PyPool>);

/// What the calls answered, by place: a value or an exception.
type Answers = Mutex<Vec<Option<Result<Object, PyErr>>>>;

#[pymethods]
impl PyLanes {
    #[new]
    fn new(pool: Py<PyPool>) -> Self {
        Self(pool)
    }

    fn map<'py>(
        &self,
        py: Python<'py>,
        call: Py<PyAny>,
        count: usize,
        lanes: usize,
        task: Bound<'py, PyTask>,
        stop: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let task = task.get();
        let answers: Arc<Answers> = Arc::new(Mutex::new((0..count).map(|_| None).collect()));
        let calls = Calls { call: Object::new(call), answers: Arc::downgrade(&answers), stop };
        let pool = &self.0.get().0;
        let fan = py.detach(|| Fan::start(pool, count, lanes, move |place| calls.make(place)));
        let waited = wait(py, &fan, task);
        // Given up: whoever is still at it goes on alone, and somebody else takes its place.
        let timed_out = task.gave_up();
        py.detach(|| fan.stop(timed_out));
        drop(fan);
        waited?;
        let answers = std::mem::take(&mut *answers.lock().unwrap_or_else(PoisonError::into_inner));
        PyList::new(py, answers.into_iter().map(|answer| told(py, answer)).collect::<PyResult<Vec<_>>>()?)
    }
}

/// Waits until all calls have come back or nobody wants them any more.
fn wait(py: Python<'_>, fan: &Fan, task: &PyTask) -> PyResult<()> {
    while !py.detach(|| fan.wait(SLICE)) {
        py.check_signals()?;
        if let Some(place) = fan.first_running() {
            task.note(place);
        }
        if task.is_cancelled() {
            break;
        }
    }
    Ok(())
}

fn told(py: Python<'_>, answer: Option<Result<Object, PyErr>>) -> PyResult<Option<Bound<'_, PyTuple>>> {
    match answer {
        None => Ok(None),
        Some(Ok(value)) => (value.into_inner(), py.None()).into_pyobject(py).map(Some),
        Some(Err(error)) => (py.None(), error.into_value(py)).into_pyobject(py).map(Some),
    }
}

/// The calls of one batch.
struct Calls {
    call: Object,
    /// Gone when nobody waits for them any more.
    answers: Weak<Answers>,
    stop: bool,
}

impl Calls {
    /// Makes one call. Answers whether the others may go on.
    fn make(&self, place: usize) -> bool {
        let answer = Python::try_attach(|py| {
            let args = (place,).into_pyobject(py)?;
            call_user_code(self.call.bind(py), &args).map(|value| Object::new(value.unbind()))
        });
        let (Some(answer), Some(answers)) = (answer, self.answers.upgrade()) else { return false };
        let go_on = answer.is_ok() || !self.stop;
        // Never dropped under the lock: that may run user code.
        let mut places = answers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = places.get_mut(place) {
            *free = Some(answer);
        }
        go_on
    }
}
