//! What worker threads run around the interpreter.

use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tundish_engine::ThreadMain;

unsafe extern "C-unwind" {
    /// The interpreter's own function under an ABI that lets a forced unwind pass, which
    /// `pyo3::ffi`'s declaration does not.
    fn PyObject_Call(
        callable: *mut ffi::PyObject,
        args: *mut ffi::PyObject,
        kwargs: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// Calls user code from a worker thread. The thread parks for ever if the interpreter
/// ends it meanwhile.
pub(crate) fn call_user_code<'py>(
    callable: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let parked = ParkOnForcedUnwind;
    // SAFETY: attached, as `callable` shows; the arguments are alive and a tuple.
    let answer = unsafe { PyObject_Call(callable.as_ptr(), args.as_ptr(), std::ptr::null_mut()) };
    std::mem::forget(parked);
    // SAFETY: a new reference, or null with the error set.
    unsafe { Bound::from_owned_ptr_or_err(callable.py(), answer) }
}

/// Keeps one interpreter thread state for the thread's whole life (making one costs
/// several times what keeping it does) and detaches while the thread looks for work.
pub(crate) fn thread_main() -> ThreadMain {
    Arc::new(|work| {
        // `None`: no interpreter to attach to any more, the process is ending.
        let _ = Python::try_attach(|py| {
            let parked = ParkOnForcedUnwind;
            let work = AssertSend(work);
            py.detach(|| work.call());
            std::mem::forget(parked);
        });
    })
}

struct AssertSend<'a>(&'a mut dyn FnMut());
// SAFETY: `detach` runs its closure on the calling thread; nothing is sent anywhere.
unsafe impl Send for AssertSend<'_> {}
impl AssertSend<'_> {
    fn call(self) {
        (self.0)();
    }
}

/// Parks the thread for ever when it is unwound without a Rust panic.
///
/// Up to `CPython` 3.13 the interpreter ends a thread that re-attaches while it finalizes
/// by `pthread_exit`, which unwinds through Rust frames and would abort the process. A
/// thread that stays parked instead is gone with the process a moment later. Forget the
/// guard on the normal way out.
pub(crate) struct ParkOnForcedUnwind;

impl Drop for ParkOnForcedUnwind {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            loop {
                std::thread::park();
            }
        }
    }
}
