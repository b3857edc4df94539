//! One permutation for all plans that need the same one, built once.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::{Order, Permutation, PlanError, check};
use crate::cancel::Cancel;

/// The longest a caller waits for another one before it looks at its own flag.
const SLICE: Duration = Duration::from_millis(20);

/// What a permutation is a function of: order, samples, seed, epoch.
type Key = (Order, u64, u64, u64);

/// Materialized permutations in use: the ranks of an epoch share one table.
static IN_USE: Mutex<Vec<(Key, Weak<SharedPermutation>)>> = Mutex::new(Vec::new());

/// A permutation that the first caller builds while others wait for it.
#[derive(Debug)]
pub(crate) struct SharedPermutation {
    key: Key,
    built: OnceLock<Permutation>,
    building: Mutex<bool>,
    changed: Condvar,
}

impl SharedPermutation {
    /// The permutation for these values, shared if another plan holds it.
    pub(crate) fn of(order: Order, samples: u64, seed: u64, epoch: u64) -> Arc<Self> {
        let key = (order, samples, seed, epoch);
        if !order.is_materialized(samples) {
            return Arc::new(Self::new(key));
        }
        let mut in_use = lock(&IN_USE);
        in_use.retain(|(_, weak)| weak.strong_count() > 0);
        let known = in_use.iter().find(|(known, _)| *known == key);
        if let Some(shared) = known.and_then(|(_, weak)| weak.upgrade()) {
            return shared;
        }
        let shared = Arc::new(Self::new(key));
        in_use.push((key, Arc::downgrade(&shared)));
        shared
    }

    fn new(key: Key) -> Self {
        Self { key, built: OnceLock::new(), building: Mutex::new(false), changed: Condvar::new() }
    }

    /// The permutation, built by this call if nobody has.
    ///
    /// If another caller is building, this one waits; if that caller is
    /// cancelled, one of those waiting takes over.
    pub(crate) fn get(&self, cancel: &Cancel) -> Result<&Permutation, PlanError> {
        while self.built.get().is_none() {
            if let Some(_turn) = self.take_turn(cancel)? {
                let (order, samples, seed, epoch) = self.key;
                let permutation = Permutation::build(order, samples, seed, epoch, cancel)?;
                return Ok(self.built.get_or_init(|| permutation));
            }
        }
        self.built.get().ok_or(PlanError::Cancelled)
    }

    /// Waits until the permutation is there (`None`) or until this caller is to
    /// build it.
    fn take_turn(&self, cancel: &Cancel) -> Result<Option<Turn<'_>>, PlanError> {
        let mut building = lock(&self.building);
        loop {
            if self.built.get().is_some() {
                return Ok(None);
            }
            check(cancel)?;
            if !*building {
                *building = true;
                return Ok(Some(Turn(self)));
            }
            let waited = self.changed.wait_timeout(building, SLICE);
            building = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The right to build; handed on when dropped, after a success or not.
struct Turn<'a>(&'a SharedPermutation);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.building) = false;
        self.0.changed.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
