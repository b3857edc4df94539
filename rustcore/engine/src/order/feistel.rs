//! A permutation of any size that answers one position at a time.

/// Rounds of the network: four suffice for large sizes, eight leave a margin.
pub(super) const ROUNDS: usize = 8;

/// Two 64-bit keys per round.
pub(super) const KEYS: usize = 2 * ROUNDS;

/// A keyed bijection of `0..samples` in O(1) memory.
///
/// A generalised Feistel network on the grid `left * right >= samples`, with
/// `left = ceil(sqrt(samples))` and `right = ceil(samples / left)`: a position x
/// is the pair (x / right, x % right), and rounds add a keyed hash of one half
/// to the other, in turn. Values past the end are encrypted again ("cycle
/// walking"); fewer than `left` exist, so that is rare.
#[derive(Debug)]
pub(super) struct Feistel {
    samples: u64,
    left: u64,
    right: u64,
    keys: [u64; KEYS],
}

impl Feistel {
    /// Makes the permutation of `0..samples`, for 1 to 2^63 - 1 samples.
    pub(super) fn new(samples: u64, keys: [u64; KEYS]) -> Self {
        let root = samples.isqrt();
        let left = root + u64::from(root * root < samples);
        Self { samples, left, right: samples.div_ceil(left), keys }
    }

    /// The value at `position`, which must be below the number of samples.
    pub(super) fn get(&self, position: u64) -> u64 {
        let mut value = self.encrypt(position);
        while value >= self.samples {
            value = self.encrypt(value);
        }
        value
    }

    /// One pass through all rounds: a bijection of `0..left * right`.
    fn encrypt(&self, value: u64) -> u64 {
        let mut l = value / self.right;
        let mut r = value % self.right;
        for keys in self.keys.as_chunks::<4>().0 {
            l = add(l, hash(r, keys[0], keys[1], self.left), self.left);
            r = add(r, hash(l, keys[2], keys[3], self.right), self.right);
        }
        l * self.right + r
    }
}

/// `a + b` modulo `modulus`, for two numbers below it.
fn add(a: u64, b: u64, modulus: u64) -> u64 {
    let sum = a + b;
    if sum >= modulus { sum - modulus } else { sum }
}

/// The round function: a keyed 64-bit mix scaled to `0..range`.
///
/// The mix is `SplitMix64`'s finalizer with a second key between its halves.
fn hash(half: u64, key: u64, inner: u64, range: u64) -> u64 {
    let mut z = half.wrapping_add(key);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ inner;
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    ((u128::from(z) * u128::from(range)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_size_is_permuted() {
        for samples in (1_u64..400).chain([1023, 1024, 1025, 65_535, 65_536]) {
            let keys = std::array::from_fn(|k| samples.wrapping_mul(k as u64 + 1) << 32);
            let feistel = Feistel::new(samples, keys);
            let mut seen = vec![false; samples as usize];
            for position in 0..samples {
                let index = feistel.get(position) as usize;
                assert!(!std::mem::replace(&mut seen[index], true), "{samples}: {index} twice");
            }
        }
    }

    #[test]
    fn the_grid_is_as_near_to_a_square_as_it_can_be() {
        let largest = i64::MAX as u64;
        for samples in [1, 2, 3, 4, 5, 1 << 20, (1 << 20) + 1, 10_000_000, largest] {
            let Feistel { left, right, .. } = Feistel::new(samples, [0; KEYS]);
            assert!(left * right >= samples);
            assert!(left * right - samples < left, "{samples} on {left} x {right}");
            assert!(left >= right);
        }
    }
}
