//! The admission window: which batch may be begun, and which is handed out next.
//!
//! There is no bounded output queue for workers to park in. [`Window::claim`] hands out
//! batch `i` only while it is inside the window behind the consumer; [`Window::put`]
//! never blocks; [`Window::take`] gives the next batch in order (or any that is ready).
//! A slow consumer therefore costs its window and never a worker, an error takes its own
//! place in the sequence, and the end is counted rather than inferred from silence.

use std::collections::VecDeque;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, lock};

/// What [`Window::take`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Take<T> {
    /// The cell of this batch number.
    Ready(u64, T),
    /// Nothing is ready yet; a later [`Window::put`] will change that.
    Pending,
    /// Every cell up to the total was handed out. Said again at every further call.
    End,
    /// The window was closed. Said again at every further call.
    Closed,
}

/// Counters of a window at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Batches handed to workers.
    pub claimed: u64,
    /// Cells handed to the consumer.
    pub delivered: u64,
    /// Cells that are ready and not yet handed out.
    pub ready: u64,
    /// Cells this window will deliver in all; `None` while nobody knows.
    pub total: Option<u64>,
}

/// An end that nobody knows yet; see [`Window::finish`].
pub const UNKNOWN: u64 = u64::MAX;

#[derive(Debug)]
struct State<T> {
    /// The next batch to claim, counted from `start`.
    next_claim: u64,
    /// In order: the batch whose cell is at the front of `ring`.
    next_out: u64,
    delivered: u64,
    /// In order: cells of `next_out`, `next_out + 1`, …; `None` while being worked on.
    ring: VecDeque<Option<T>>,
    /// Out of order: cells in the order of their arrival.
    arrived: VecDeque<(u64, T)>,
    /// One past the last batch, [`UNKNOWN`] until it is known.
    end: u64,
    closed: bool,
}

impl<T> State<T> {
    /// Whether every cell up to the end was handed out, of a window that began at `start`.
    fn ended(&self, start: u64) -> bool {
        self.delivered == self.end - start
    }
}

/// The window of one run. See the module's text.
#[derive(Debug)]
pub struct Window<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    start: u64,
    width: u64,
    in_order: bool,
}

impl<T> Window<T> {
    /// A window over the batches `start..end`, `width` (at least 1) of them at a time. An
    /// `end` that is [`UNKNOWN`] is told later, by [`Window::finish`].
    pub fn new(start: u64, end: u64, width: u64, in_order: bool) -> Self {
        let state = State {
            next_claim: start,
            next_out: start,
            delivered: 0,
            ring: VecDeque::new(),
            arrived: VecDeque::new(),
            end: end.max(start),
            closed: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new(), start, width: width.max(1), in_order }
    }

    /// Hands out the next batch to work on, if one is inside the window.
    ///
    /// `admit` is asked last and may refuse (a byte budget); it is told how many batches were
    /// claimed and not handed out yet. If there are none, this is the batch that the consumer
    /// needs next, which no budget may refuse.
    pub fn claim<A>(&self, admit: impl FnOnce(u64) -> Option<A>) -> Option<(u64, A)> {
        let mut state = lock(&self.state);
        let outstanding = (state.next_claim - self.start) - state.delivered;
        if state.closed || state.next_claim >= state.end || outstanding >= self.width {
            return None;
        }
        let admitted = admit(outstanding)?;
        let batch = state.next_claim;
        state.next_claim += 1;
        if self.in_order {
            state.ring.push_back(None);
        }
        Some((batch, admitted))
    }

    /// Whether every batch has been claimed or the window is closed: no claim will ever
    /// succeed again.
    pub fn exhausted(&self) -> bool {
        let state = lock(&self.state);
        state.closed || state.next_claim >= state.end
    }

    /// Takes back the newest claim, so that the same batch is claimed again.
    ///
    /// For work that its own thread gave up (an interrupt); only the newest claim can
    /// be taken back. Answers whether it was.
    pub fn unclaim(&self, batch: u64) -> bool {
        let mut state = lock(&self.state);
        if state.next_claim != batch + 1 {
            return false;
        }
        state.next_claim = batch;
        if self.in_order {
            state.ring.pop_back();
        }
        true
    }

    /// Says that the newest claim does not exist: the epoch ends before it. For epochs
    /// whose length shows only when they are read to the end, one batch at a time.
    pub fn finish(&self, batch: u64) {
        if self.unclaim(batch) {
            self.stop_claiming();
        }
    }

    /// Hands out no more batches: the epoch ends behind those that were claimed.
    pub fn stop_claiming(&self) {
        let mut state = lock(&self.state);
        state.end = state.end.min(state.next_claim);
        drop(state);
        // The consumer may be waiting for a cell that will never come.
        self.changed.notify_all();
    }

    /// Stores the cell of a claimed batch. Never blocks. Answers whether the consumer
    /// has something to take now that it had not before.
    ///
    /// # Errors
    /// A closed window gives the cell back, so that its owner drops it where that is allowed.
    pub fn put(&self, batch: u64, cell: T) -> Result<bool, T> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(cell);
        }
        let news = if self.in_order {
            let place = (batch - state.next_out) as usize;
            state.ring[place] = Some(cell);
            place == 0
        } else {
            state.arrived.push_back((batch, cell));
            true
        };
        drop(state);
        if news {
            self.changed.notify_all();
        }
        Ok(news)
    }

    /// Takes the next cell, if there is one. Never blocks.
    pub fn take(&self) -> Take<T> {
        let mut state = lock(&self.state);
        if state.closed {
            return Take::Closed;
        }
        if state.ended(self.start) {
            return Take::End;
        }
        let found = if self.in_order {
            match state.ring.front_mut().and_then(Option::take) {
                Some(cell) => {
                    state.ring.pop_front();
                    state.next_out += 1;
                    Some((state.next_out - 1, cell))
                }
                None => None,
            }
        } else {
            state.arrived.pop_front()
        };
        match found {
            Some((batch, cell)) => {
                state.delivered += 1;
                Take::Ready(batch, cell)
            }
            None => Take::Pending,
        }
    }

    /// Whether it is time to wake workers: half of the window is free, or the consumer has
    /// nothing left to take. Waking one for every batch would make the consumer and the
    /// workers take turns on a busy machine.
    pub fn hungry(&self) -> bool {
        let state = lock(&self.state);
        let outstanding = (state.next_claim - self.start) - state.delivered;
        (self.width - outstanding.min(self.width)) * 2 >= self.width || !self.is_takeable(&state)
    }

    /// Whether [`Window::take`] would answer something other than [`Take::Pending`].
    pub fn takeable(&self) -> bool {
        self.is_takeable(&lock(&self.state))
    }

    fn is_takeable(&self, state: &State<T>) -> bool {
        state.closed
            || state.ended(self.start)
            || matches!(state.ring.front(), Some(Some(_)))
            || !state.arrived.is_empty()
    }

    /// Blocks until there is something to take, for `at_most` at the longest. Answers
    /// whether there is.
    pub fn wait(&self, at_most: Duration) -> bool {
        let state = lock(&self.state);
        if self.is_takeable(&state) {
            return true;
        }
        // One wait is enough: callers loop, with a look at their signals in between.
        let state = match self.changed.wait_timeout(state, at_most) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
        self.is_takeable(&state)
    }

    /// Closes the window and gives back every cell nobody took, so that the caller
    /// drops them where that is allowed. Later puts and takes are refused.
    pub fn close(&self) -> Vec<T> {
        let mut state = lock(&self.state);
        state.closed = true;
        let ring = std::mem::take(&mut state.ring);
        let arrived = std::mem::take(&mut state.arrived);
        drop(state);
        self.changed.notify_all();
        ring.into_iter().flatten().chain(arrived.into_iter().map(|(_, cell)| cell)).collect()
    }

    /// The counters at this moment.
    pub fn counts(&self) -> Counts {
        let state = lock(&self.state);
        let ready = state.ring.iter().filter(|cell| cell.is_some()).count() + state.arrived.len();
        Counts {
            claimed: state.next_claim - self.start,
            delivered: state.delivered,
            ready: ready as u64,
            total: (state.end != UNKNOWN).then(|| state.end - self.start),
        }
    }
}
