//! Looking numbers up among ascending ones, many times.

use super::super::PlanError;
use super::super::table::Table;
use crate::cancel::Cancel;

/// Ascending sums with a guide to the place where a number's search begins.
///
/// A binary search of millions of sums misses the cache at nearly every step. The guide
/// cuts the range of the sums into as many equal parts as there are sums and says where
/// each begins, so that some two steps are left. What is found is the same.
#[derive(Debug)]
pub(super) struct Lookup {
    sums: Table<f64>,
    guide: Table,
}

impl Lookup {
    /// Makes the guide of sums that ascend, are 0 or more and end above 0; fewer than 2^32.
    pub(super) fn new(sums: Table<f64>, cancel: &Cancel) -> Result<Self, PlanError> {
        let entries = sums.len() as u64 + 2;
        let mut guide = Table::with_room("weights", entries)?;
        let (mut next, mut begin) = (0, 0);
        let begins = || {
            while begin < sums.len() && part(&sums, sums[begin]) < next {
                begin += 1;
            }
            next += 1;
            begin as u32
        };
        guide.fill(entries, begins, cancel)?;
        Ok(Self { sums, guide })
    }

    /// The last of the sums.
    pub(super) fn total(&self) -> f64 {
        self.sums.last().copied().unwrap_or_default()
    }

    /// The number of leading sums for which `before` holds, as it must for none but leading
    /// ones: all that are below `number`, and perhaps those that equal it.
    pub(super) fn leading(&self, number: f64, before: impl Fn(f64) -> bool) -> usize {
        let part = part(&self.sums, number);
        // Sums of an earlier part are below `number`, those of a later one above it.
        let (start, stop) = (self.guide[part] as usize, self.guide[part + 1] as usize);
        start + self.sums[start..stop].partition_point(|&sum| before(sum))
    }

    /// Bytes of memory held.
    pub(super) fn bytes(&self) -> usize {
        self.sums.bytes() + self.guide.bytes()
    }
}

/// The part that a number from 0 to the last sum is in: it never falls as the number grows.
fn part(sums: &[f64], number: f64) -> usize {
    let total = sums.last().copied().unwrap_or_default();
    let share = number / total * sums.len() as f64;
    // A number of 0 or more; rounding must not lead past the last part.
    #[allow(clippy::cast_sign_loss, reason = "sums and numbers are 0 or more")]
    let part = share as usize;
    part.min(sums.len())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]
mod tests {
    use super::*;

    fn table(sums: &[f64]) -> Table<f64> {
        let mut table = Table::with_room("weights", sums.len() as u64).unwrap();
        let mut sums = sums.iter().copied();
        table.fill(sums.len() as u64, || sums.next().unwrap(), &Cancel::new()).unwrap();
        table
    }

    #[test]
    fn what_is_found_equals_a_binary_search() {
        let weights = |k: u64, zeros: u64| {
            let weight = (k.wrapping_mul(2_654_435_761) >> 7) % 1000;
            if k.is_multiple_of(zeros) { 0 } else { weight * weight * weight }
        };
        for (count, zeros) in [(1_u64, 2_u64), (2, 3), (7, 2), (100, 9), (1000, 2), (1000, 999)] {
            let mut sum = 0.0;
            let add = |k| {
                sum += weights(k, zeros) as f64;
                sum
            };
            let sums: Vec<f64> = (1..=count).map(add).collect();
            let lookup = Lookup::new(table(&sums), &Cancel::new()).unwrap();
            let total = lookup.total();
            let between = (0..5000).map(|k| f64::from(k) / 5000.0 * total);
            for number in between.chain(sums.iter().copied()).chain([total.next_down()]) {
                let below = lookup.leading(number, |sum| sum < number);
                assert_eq!(below, sums.partition_point(|&sum| sum < number), "{number} of {sums:?}");
                let up_to = lookup.leading(number, |sum| sum <= number);
                assert_eq!(up_to, sums.partition_point(|&sum| sum <= number), "{number} of {sums:?}");
            }
        }
    }

    #[test]
    fn a_large_guide_is_cancelled() {
        let cancel = Cancel::new();
        cancel.cancel();
        assert_eq!(Lookup::new(table(&[1.0]), &cancel).err(), Some(PlanError::Cancelled));
    }
}
