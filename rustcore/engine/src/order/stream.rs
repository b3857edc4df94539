//! torch's CPU generator: an MT19937 stream that remembers where it has been.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use rand_mt::Mt;

use super::{POLL_EVERY, PlanError, check};
use crate::cancel::Cancel;

/// States kept in the process, 2.5 KB each.
const REMEMBERED: usize = 32;

/// States of streams at positions that later epochs are likely to start from;
/// the one used last stands at the back.
static STATES: Mutex<VecDeque<Stream>> = Mutex::new(VecDeque::new());

/// The outputs of one generator, from some position on.
///
/// The state depends on the low 32 bits of the seed and on the number of draws
/// and on nothing else, so states are shared by all orders and dataset sizes.
#[derive(Clone)]
pub(super) struct Stream {
    seed: u32,
    position: u64,
    generator: Mt,
}

impl Stream {
    /// A freshly seeded generator. As in torch, the seed's high half is ignored.
    pub(super) fn new(seed: u64) -> Self {
        let seed = seed as u32;
        Self { seed, position: 0, generator: Mt::new(seed) }
    }

    /// The stream after `position` draws, from the nearest state that is known.
    ///
    /// Costs about 1 ns per draw between that state and `position`.
    pub(super) fn at(seed: u64, position: u64, cancel: &Cancel) -> Result<Self, PlanError> {
        let mut stream = Self::recall(seed as u32, position).unwrap_or_else(|| Self::new(seed));
        let result = stream.skip_to(position, cancel);
        stream.remember();
        result.map(|()| stream)
    }

    /// How many draws have been made.
    #[cfg(test)]
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The next 32-bit output.
    pub(super) fn next_u32(&mut self) -> u32 {
        self.position += 1;
        self.generator.next_u32()
    }

    /// Two outputs, the first one in the high half, as torch's `random64`.
    pub(super) fn next_u64(&mut self) -> u64 {
        let high = u64::from(self.next_u32());
        (high << 32) | u64::from(self.next_u32())
    }

    /// Keeps a copy of the present state for [`Stream::at`].
    pub(super) fn remember(&self) {
        let mut states = STATES.lock().unwrap_or_else(PoisonError::into_inner);
        states.retain(|known| (known.seed, known.position) != (self.seed, self.position));
        if states.len() >= REMEMBERED {
            states.pop_front();
        }
        states.push_back(self.clone());
    }

    /// The furthest state of `seed`'s stream that is known and not past `position`.
    fn recall(seed: u32, position: u64) -> Option<Self> {
        let states = STATES.lock().unwrap_or_else(PoisonError::into_inner);
        let usable = states.iter().filter(|known| known.seed == seed && known.position <= position);
        usable.max_by_key(|known| known.position).cloned()
    }

    fn skip_to(&mut self, position: u64, cancel: &Cancel) -> Result<(), PlanError> {
        while self.position < position {
            check(cancel)?;
            let count = (position - self.position).min(u64::from(POLL_EVERY));
            for _ in 0..count {
                self.generator.next_u32();
            }
            self.position += count;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_the_same_from_any_state() {
        let cancel = Cancel::new();
        let expected: Vec<u32> = {
            let mut stream = Stream::new(5);
            (0..5000).map(|_| stream.next_u32()).collect()
        };
        for position in [4999, 0, 624, 3000, 623, 1, 4998, 3000] {
            let mut stream = Stream::at(5, position, &cancel).unwrap();
            assert_eq!(stream.next_u32(), expected[position as usize]);
        }
    }

    #[test]
    fn few_states_are_kept_and_those_of_cancelled_walks_among_them() {
        for seed in 0..2 * REMEMBERED as u64 {
            Stream::at(1000 + seed, 10, &Cancel::new()).unwrap();
        }
        assert!(STATES.lock().unwrap().len() <= REMEMBERED);
        let cancel = Cancel::new();
        cancel.cancel();
        assert_eq!(Stream::at(77, 1 << 40, &cancel).err(), Some(PlanError::Cancelled));
        assert_eq!(Stream::recall(77, 1 << 40).map(|stream| stream.position), Some(0));
    }
}
