//! One eventfd that wakes an event loop for any number of runs.
//!
//! Signalling needs neither the interpreter nor the loop's lock. The eventfd is written
//! once per wake-up of the loop, however many batches became ready meanwhile.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::Error;

/// A wake-up line from worker threads to one event loop.
#[derive(Debug)]
pub struct Waker {
    fd: OwnedFd,
    /// Tokens with news. Non-empty means: the eventfd has been written.
    pending: Mutex<Vec<u64>>,
}

impl Waker {
    /// Makes the eventfd (close-on-exec, non-blocking).
    ///
    /// # Errors
    /// When the process has no file descriptor left.
    pub fn new() -> Result<Self, Error> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("cannot make an eventfd"))?;
        Ok(Self { fd, pending: Mutex::new(Vec::new()) })
    }

    /// The eventfd, for the loop to watch for reading.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Says that the run of this token has something to take.
    pub fn wake(&self, token: u64) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = pending.is_empty();
        if !pending.contains(&token) {
            pending.push(token);
        }
        drop(pending);
        if silent {
            // Only a counter of 2^64 - 2 could refuse this, and `drain` resets it.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Resets the eventfd and gives the tokens with news since the last call.
    pub fn drain(&self) -> Vec<u64> {
        // Read first: a wake between the two steps then leaves the eventfd readable and
        // costs an empty drain, where the other order would lose the wake.
        let mut counter = [0u8; 8];
        let _ = rustix::io::read(&self.fd, &mut counter);
        std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
