//! Races: the largest of many values, in order.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::super::table::Table;
use super::super::{PlanError, check};
use crate::cancel::Cancel;

/// Entries that are sorted without a look at the cancellation flag.
const CHUNK: usize = 1 << 16;

/// The places of the `count` largest of `values`, the largest first; of equal ones the
/// first.
///
/// Negative values take no part; of the others there must be as many. Fewer than 2^32.
pub(super) fn largest(values: &[f64], count: u64, cancel: &Cancel) -> Result<Table, PlanError> {
    let mut places = Table::identity(values.len() as u32, cancel)?;
    for chunk in places.entries().chunks_mut(CHUNK) {
        check(cancel)?;
        sort_best(chunk, values, count as usize);
    }
    // The best of each chunk stand in the heap, the best of all on its top.
    let begins = (0..values.len()).step_by(CHUNK);
    let mut heap: BinaryHeap<_> = begins.filter_map(|at| Runner::new(values, &places, at)).collect();
    let mut table = Table::with_room("num_samples", count)?;
    let next = || {
        let Some(mut top) = heap.peek_mut() else { return 0 };
        let Runner { place: Reverse(place), at, .. } = *top;
        let following = at + 1;
        match Runner::new(values, &places, following).filter(|_| following % CHUNK != 0) {
            Some(runner) => *top = runner,
            None => drop(PeekMut::pop(top)),
        }
        place
    };
    table.fill(count, next, cancel)?;
    Ok(table)
}

/// Brings the best `count` of a chunk to its front, in order; the others stay behind them
/// in any.
fn sort_best(chunk: &mut [u32], values: &[f64], count: usize) {
    let before =
        |a: &u32, b: &u32| -> Ordering { values[*b as usize].total_cmp(&values[*a as usize]).then(a.cmp(b)) };
    if count < chunk.len() {
        chunk.select_nth_unstable_by(count, before);
        chunk[..count].sort_unstable_by(before);
    } else {
        chunk.sort_unstable_by(before);
    }
}

/// The best of a chunk that is still running.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Runner {
    /// The bits of a value of 0 or more sort as the value does.
    bits: u64,
    place: Reverse<u32>,
    /// Where it stands among the sorted places.
    at: usize,
}

impl Runner {
    /// The runner at `at`, if there is one and it takes part.
    fn new(values: &[f64], places: &[u32], at: usize) -> Option<Self> {
        let place = *places.get(at)?;
        let value = values[place as usize];
        (value >= 0.0).then(|| Self { bits: value.to_bits(), place: Reverse(place), at })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_several_chunks_come_in_order() {
        let runners = 3 * CHUNK + 7;
        // Many equal values, some infinite, every eleventh out of the race.
        let value = |place: usize| match place.wrapping_mul(2_654_435_761) >> 5 {
            mixed if mixed % 11 == 0 => -1.0,
            mixed if mixed % 1009 == 0 => f64::INFINITY,
            mixed => (mixed % 5000) as f64,
        };
        let values: Vec<f64> = (0..runners).map(value).collect();
        let mut expected: Vec<u32> =
            (0..runners as u32).filter(|&place| values[place as usize] >= 0.0).collect();
        expected.sort_by(|&a, &b| values[b as usize].total_cmp(&values[a as usize]));
        for count in [0, 1, 2, 1000, CHUNK, CHUNK + 1, 2 * CHUNK, expected.len()] {
            let best = largest(&values, count as u64, &Cancel::new()).unwrap();
            assert_eq!(best[..], expected[..count]);
        }
    }
}
