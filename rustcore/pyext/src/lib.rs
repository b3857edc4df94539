//! `tundish._core`: the engine for Python. Conversions only; every decision is the
//! engine's or the Python side's.

// PyO3 hands arguments over by value.
#![allow(clippy::needless_pass_by_value)]

mod errors;
mod guard;
mod lanes;
mod memory;
mod plan;
mod reader;
mod run;
mod source;
mod thread;

use pyo3::prelude::*;

/// The extension module.
#[pymodule(gil_used = false)]
mod _core {
    #[pymodule_export]
    use crate::guard::{watch_parent, watch_signals};
    #[pymodule_export]
    use crate::lanes::PyLanes;
    #[pymodule_export]
    use crate::memory::{PyArena, PySizes, PyWaker};
    #[pymodule_export]
    use crate::plan::{PyPlan, PySampling};
    #[pymodule_export]
    use crate::reader::PyReader;
    #[pymodule_export]
    use crate::run::{PyBatch, PyEnd, PyFailure, PyPool, PyRun};
    #[pymodule_export]
    use crate::source::{PyArraySource, PyCallSource, PyTask};
}
