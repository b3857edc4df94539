//! One permutation for all plans that need the same one, built once.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::{OrderSpec, Permutation, PlanError, check};
use crate::cancel::Cancel;

/// The longest a caller waits for another one before it looks at its own flag.
const SLICE: Duration = Duration::from_millis(20);

/// Materialized permutations in use: the ranks of an epoch share one table.
static IN_USE: Mutex<Vec<Weak<SharedPermutation>>> = Mutex::new(Vec::new());

/// A permutation that the first caller builds while others wait for it.
#[derive(Debug)]
pub(crate) struct SharedPermutation {
    spec: OrderSpec,
    built: OnceLock<Permutation>,
    building: Mutex<bool>,
    changed: Condvar,
}

impl SharedPermutation {
    /// The permutation for these values, shared if another plan holds it.
    pub(crate) fn of(spec: OrderSpec) -> Arc<Self> {
        let spec = spec.reduced();
        if spec.entries() == 0 {
            return Arc::new(Self::new(spec));
        }
        let mut in_use = lock(&IN_USE);
        in_use.retain(|weak| weak.strong_count() > 0);
        let known = in_use.iter().filter_map(Weak::upgrade).find(|known| known.spec == spec);
        known.unwrap_or_else(|| {
            let shared = Arc::new(Self::new(spec));
            in_use.push(Arc::downgrade(&shared));
            shared
        })
    }

    fn new(spec: OrderSpec) -> Self {
        Self { spec, built: OnceLock::new(), building: Mutex::new(false), changed: Condvar::new() }
    }

    /// About how many steps building takes; see [`OrderSpec::work`].
    pub(crate) fn work(&self) -> u64 {
        self.spec.work()
    }

    /// The permutation, built by this call if nobody has.
    ///
    /// If another caller is building, this one waits; if that caller is
    /// cancelled, one of those waiting takes over.
    pub(crate) fn get(&self, cancel: &Cancel) -> Result<&Permutation, PlanError> {
        while self.built.get().is_none() {
            if let Some(_turn) = self.take_turn(cancel)? {
                let permutation = Permutation::build(&self.spec, cancel)?;
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
