//! Races: the largest of many values, in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

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
    let mut chunks = Vec::new();
    for (number, chunk) in values.chunks(CHUNK).enumerate() {
        check(cancel)?;
        let first = number * CHUNK;
        let places = (0..chunk.len()).filter(|&place| chunk[place] >= 0.0);
        let mut runners: Vec<_> = places.map(|place| runner(chunk[place], first + place)).collect();
        runners.sort_unstable();
        chunks.push(runners);
    }
    // The best of each chunk stand in the heap, the best of all on its top.
    let mut heap: BinaryHeap<_> =
        chunks.iter_mut().enumerate().filter_map(|(number, chunk)| Some((chunk.pop()?, number))).collect();
    let mut table = Table::with_room("num_samples", count)?;
    let next = || {
        let best = heap.peek_mut().map(|mut top| {
            let best = top.0;
            match chunks[top.1].pop() {
                Some(next) => top.0 = next,
                None => drop(std::collections::binary_heap::PeekMut::pop(top)),
            }
            best
        });
        best.map_or(0, |(_, Reverse(place))| place)
    };
    table.fill(count, next, cancel)?;
    Ok(table)
}

/// What is compared: the bits of a value of 0 or more sort as the value does.
fn runner(value: f64, place: usize) -> (u64, Reverse<u32>) {
    (value.to_bits(), Reverse(place as u32))
}
