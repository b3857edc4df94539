//! The packed form of a batch's value, as `docs/protocol.md` describes it.

use rmp::encode as mp;

/// Extension type of an array reference.
const ARRAY: i8 = 1;

/// One array of a batch, by its place in the batch's memory.
#[derive(Debug, Clone)]
pub(crate) struct ArrayRef<'a> {
    /// Its type in the protocol's spelling, such as `<f4`.
    pub(crate) dtype: &'a str,
    /// Its shape.
    pub(crate) shape: &'a [u64],
    /// Where it begins, in bytes.
    pub(crate) offset: u64,
    /// Its length in bytes.
    pub(crate) nbytes: u64,
}

/// Writing into a `Vec` cannot fail; the library's signature says it might.
const INFALLIBLE: &str = "writing into a Vec";

impl ArrayRef<'_> {
    /// Appends the reference to `out`.
    pub(crate) fn pack(&self, out: &mut Vec<u8>) {
        let mut inner = Vec::with_capacity(32);
        mp::write_array_len(&mut inner, 4).expect(INFALLIBLE);
        mp::write_str(&mut inner, self.dtype).expect(INFALLIBLE);
        mp::write_array_len(&mut inner, self.shape.len() as u32).expect(INFALLIBLE);
        for &extent in self.shape {
            mp::write_uint(&mut inner, extent).expect(INFALLIBLE);
        }
        mp::write_uint(&mut inner, self.offset).expect(INFALLIBLE);
        mp::write_uint(&mut inner, self.nbytes).expect(INFALLIBLE);
        mp::write_ext_meta(out, inner.len() as u32, ARRAY).expect(INFALLIBLE);
        out.extend_from_slice(&inner);
    }
}

/// Appends the head of a map of `n` entries.
pub(crate) fn pack_map(out: &mut Vec<u8>, n: usize) {
    mp::write_map_len(out, n as u32).expect(INFALLIBLE);
}

/// Appends the head of a list of `n` entries.
pub(crate) fn pack_list(out: &mut Vec<u8>, n: usize) {
    mp::write_array_len(out, n as u32).expect(INFALLIBLE);
}

/// Appends a string.
pub(crate) fn pack_str(out: &mut Vec<u8>, text: &str) {
    mp::write_str(out, text).expect(INFALLIBLE);
}
