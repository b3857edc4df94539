//! Endings that do not need the interpreter: watching the parent, enforcing the exit.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use signal_hook::consts::{SIGINT, SIGTERM};

/// Waits until `fd` is readable, for ever or for `at_most`; answers whether it is.
fn readable(fd: c_int, at_most: Option<Duration>) -> bool {
    let timeout = at_most.map_or(-1, |wait| c_int::try_from(wait.as_millis()).unwrap_or(c_int::MAX));
    loop {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd of our own.
        let answer = unsafe { libc::poll(&raw mut poll, 1, timeout) };
        if answer >= 0 {
            return answer > 0;
        }
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return false;
        }
    }
}

fn exit_now(code: c_int) -> ! {
    // SAFETY: ends the process without running anything of it, which is the point.
    unsafe { libc::_exit(code) }
}

fn grace_of(grace: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(grace)
        .map_err(|_| PyValueError::new_err(format!("grace={grace} must be a number of seconds, 0 or more")))
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> PyResult<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop).map_err(PyErr::from)
}

/// Ends this process when the process behind `pidfd` is gone: SIGTERM to ourselves, and
/// after `grace` seconds the end without further asking. The fd becomes ours.
#[pyfunction]
pub(crate) fn watch_parent(pidfd: c_int, grace: f64) -> PyResult<()> {
    let grace = grace_of(grace)?;
    // SAFETY: the caller gives the descriptor away.
    let fd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    spawn("tundish-parent", move || {
        if readable(fd.as_raw_fd(), None) {
            // SAFETY: a signal to our own process.
            unsafe { libc::kill(libc::getpid(), SIGTERM) };
            std::thread::sleep(grace);
            exit_now(0);
        }
    })
}

/// Enforces the exit after a first SIGINT or SIGTERM (within `grace` seconds) and at a
/// second one (at once), whatever the interpreter is doing. The handlers that are already
/// installed are called too.
#[pyfunction]
pub(crate) fn watch_signals(grace: f64) -> PyResult<()> {
    let grace = grace_of(grace)?;
    let (int_read, int_write) = UnixStream::pair()?;
    let (term_read, term_write) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(SIGINT, int_write).map_err(PyOSError::new_err)?;
    signal_hook::low_level::pipe::register(SIGTERM, term_write).map_err(PyOSError::new_err)?;
    spawn("tundish-signals", move || {
        let code = first_signal(&int_read, &term_read);
        let _ = wait_either(&int_read, &term_read, Some(grace));
        exit_now(code);
    })
}

/// Waits for the first signal and answers with the exit code that belongs to it.
fn first_signal(int: &UnixStream, term: &UnixStream) -> c_int {
    loop {
        match wait_either(int, term, None) {
            Some(true) => return 128 + SIGINT,
            Some(false) => return 0,
            None => {}
        }
    }
}

/// Waits for a byte on either stream and takes it: `Some(true)` for `int`.
fn wait_either(int: &UnixStream, term: &UnixStream, at_most: Option<Duration>) -> Option<bool> {
    let timeout = at_most.map_or(-1, |wait| c_int::try_from(wait.as_millis()).unwrap_or(c_int::MAX));
    let entry =
        |stream: &UnixStream| libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polls = [entry(int), entry(term)];
    // SAFETY: two valid pollfds of our own.
    if unsafe { libc::poll(polls.as_mut_ptr(), 2, timeout) } <= 0 {
        return None;
    }
    let mut byte = [0u8];
    let took_int = polls[0].revents != 0;
    let stream = if took_int { int } else { term };
    let _ = std::io::Read::read(&mut &*stream, &mut byte);
    Some(took_int)
}
