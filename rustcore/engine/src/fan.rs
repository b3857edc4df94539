//! One batch's samples loaded side by side, on the threads of a pool of lanes.

use std::sync::Arc;
use std::time::Duration;

use crate::pool::{Bell, Job, Pool, Work, Worker};
use crate::sync::{Condvar, Mutex, lock};

/// What is called for each place; answers whether the others may go on.
type Call = Box<dyn Fn(usize) -> bool + Send + Sync>;

#[derive(Debug, Default)]
struct State {
    next: usize,
    /// How many calls have been handed out and not come back.
    busy: usize,
    /// Those of them that have begun, and on which thread.
    running: Vec<(usize, Arc<Worker>)>,
    /// Nothing new is handed out.
    stopped: bool,
    /// Nobody wants the answers any more; not even what was handed out is begun.
    given_up: bool,
}

/// Calls for the places `0..count`, at most `lanes` of them at a time. Several of these
/// share a pool in turn.
pub struct Fan {
    call: Call,
    count: usize,
    lanes: usize,
    bell: Bell,
    state: Mutex<State>,
    changed: Condvar,
}

impl std::fmt::Debug for Fan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fan").field("count", &self.count).field("lanes", &self.lanes).finish_non_exhaustive()
    }
}

impl Fan {
    /// Begins the calls on the threads of `pool`. A call that answers false is the last to
    /// be begun.
    pub fn start(
        pool: &Pool,
        count: usize,
        lanes: usize,
        call: impl Fn(usize) -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        let fan = Arc::new(Self {
            call: Box::new(call),
            count,
            lanes: lanes.max(1),
            bell: pool.bell(),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        });
        pool.add(Arc::clone(&fan) as Arc<dyn Job>);
        fan
    }

    /// Blocks until all calls have come back, for `at_most` at the longest. Answers whether
    /// they have.
    pub fn wait(&self, at_most: Duration) -> bool {
        let state = lock(&self.state);
        if self.is_over(&state) {
            return true;
        }
        let state = match self.changed.wait_timeout(state, at_most) {
            Ok((state, _)) => state,
            Err(poisoned) => poisoned.into_inner().0,
        };
        self.is_over(&state)
    }

    /// The first of the places being worked on.
    pub fn first_running(&self) -> Option<usize> {
        lock(&self.state).running.iter().map(|(place, _)| *place).min()
    }

    /// Begins nothing more. With `replace`, somebody else takes the place of the threads
    /// that are still at it.
    pub fn stop(&self, replace: bool) {
        let mut state = lock(&self.state);
        (state.stopped, state.given_up) = (true, true);
        let running = if replace { std::mem::take(&mut state.running) } else { Vec::new() };
        state.busy -= running.len();
        drop(state);
        for (_, worker) in running {
            self.bell.replace(&worker);
        }
    }

    fn is_over(&self, state: &State) -> bool {
        (state.stopped || state.next == self.count) && state.busy == 0
    }

    /// Answers whether the call is still wanted.
    fn begin(&self, place: usize, worker: &Arc<Worker>) -> bool {
        let mut state = lock(&self.state);
        state.running.push((place, Arc::clone(worker)));
        !state.given_up
    }

    fn end(&self, place: usize, go_on: bool) {
        let mut state = lock(&self.state);
        let known = state.running.iter().position(|(running, _)| *running == place);
        if let Some(known) = known {
            // Else somebody has taken this thread's place and counted it out.
            state.running.swap_remove(known);
            state.busy -= 1;
        }
        state.stopped |= !go_on;
        drop(state);
        self.changed.notify_all();
    }
}

impl Job for Fan {
    fn claim(self: Arc<Self>) -> Option<Work> {
        let mut state = lock(&self.state);
        if state.stopped || state.next == self.count || state.busy >= self.lanes {
            return None;
        }
        let place = state.next;
        state.next += 1;
        state.busy += 1;
        drop(state);
        Some(Box::new(move |worker| {
            let go_on = self.begin(place, worker) && (self.call)(place);
            self.end(place, go_on);
        }))
    }

    fn exhausted(&self) -> bool {
        let state = lock(&self.state);
        state.stopped || state.next == self.count
    }

    fn abandon(&self) {
        self.stop(false);
        self.changed.notify_all();
    }
}
