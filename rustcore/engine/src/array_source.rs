//! The native dataset: rows gathered from arrays straight into the batch's memory.

use std::sync::Arc;

use crate::body::ALIGNMENT;
use crate::encode::{ArrayRef, pack_list, pack_map, pack_str};
use crate::error::{Foreign, NoSuchSample};
use crate::source::{Loaded, Source, Task};

/// Rows are copied in pieces of this many, with a look at the task's cancellation between.
const ROWS_PER_LOOK: usize = 1024;

/// The shape of a batch's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// A map from field names to arrays.
    Dict,
    /// A list of arrays.
    List,
}

/// One array whose first axis counts samples.
#[derive(Debug)]
pub struct Field {
    /// Its name; empty in a list.
    pub name: String,
    /// The element type in the protocol's spelling, such as `<f4`.
    pub dtype: String,
    /// Bytes of one element.
    pub itemsize: usize,
    /// Its shape, samples first.
    pub shape: Vec<u64>,
    /// Bytes from one entry to the next along each axis; may be negative or 0.
    pub strides: Vec<isize>,
    /// Address of the first element.
    pub address: usize,
}

impl Field {
    fn row_bytes(&self) -> usize {
        self.shape[1..].iter().map(|&extent| extent as usize).product::<usize>() * self.itemsize
    }

    /// How many bytes at the end of a row lie together, and how many axes they cover.
    fn contiguous_tail(&self) -> (usize, usize) {
        let mut bytes = self.itemsize;
        let mut axes = 0;
        for (&extent, &stride) in self.shape[1..].iter().zip(&self.strides[1..]).rev() {
            if extent != 1 && stride != bytes.cast_signed() {
                break;
            }
            bytes *= extent as usize;
            axes += 1;
        }
        (bytes, axes)
    }
}

/// See the module's text. The arrays' owner must outlive the source.
#[derive(Debug)]
pub struct ArraySource {
    fields: Vec<Field>,
    container: Container,
    /// The row of each sample; `None` where they are the same.
    selection: Option<Vec<u64>>,
}

impl ArraySource {
    /// A source over `fields`.
    ///
    /// # Safety
    /// Each field must describe memory that stays readable for the life of the source,
    /// from any thread. Writers elsewhere may tear values, as with any shared array.
    ///
    /// # Errors
    /// When a field has no axis, or shapes and strides or two fields' lengths differ.
    pub unsafe fn new(fields: Vec<Field>, container: Container) -> Result<Self, String> {
        let mut samples = None;
        for field in &fields {
            if field.shape.is_empty() || field.shape.len() != field.strides.len() {
                return Err(format!("field '{}' needs a first axis that counts samples", field.name));
            }
            if *samples.get_or_insert(field.shape[0]) != field.shape[0] {
                return Err(format!(
                    "field '{}' has {} samples, the others differ",
                    field.name, field.shape[0]
                ));
            }
        }
        Ok(Self { fields, container, selection: None })
    }

    /// The same source with row `rows[i]` as its sample `i`.
    ///
    /// # Errors
    /// When there is no such row.
    pub fn select(mut self, rows: Vec<u64>) -> Result<Self, String> {
        let length = self.rows();
        if let Some(bad) = rows.iter().find(|&&row| row >= length) {
            return Err(format!("row {bad} is selected from arrays of {length} rows"));
        }
        self.selection = Some(rows);
        Ok(self)
    }

    /// How many samples there are.
    pub fn samples(&self) -> u64 {
        self.selection.as_ref().map_or_else(|| self.rows(), |rows| rows.len() as u64)
    }

    fn rows(&self) -> u64 {
        self.fields.first().map_or(0, |field| field.shape[0])
    }

    /// The row of a sample that exists.
    fn row(&self, index: u64) -> u64 {
        self.selection.as_ref().map_or(index, |rows| rows[index as usize])
    }

    /// Offsets of the fields in the batch's memory, and its length.
    fn layout(&self, rows: usize) -> (Vec<usize>, usize) {
        let mut end = 0;
        let offsets = self.fields.iter().map(|field| {
            let offset = usize::next_multiple_of(end, ALIGNMENT);
            end = offset + field.row_bytes() * rows;
            offset
        });
        (offsets.collect(), end.next_multiple_of(ALIGNMENT))
    }

    /// Copies the rows of `task` from `field` into `target`; stops early when cancelled.
    fn gather(&self, field: &Field, task: &Task, target: &mut [u8]) {
        let row_bytes = field.row_bytes();
        if row_bytes == 0 {
            return;
        }
        let (run, covered) = field.contiguous_tail();
        let outer = field.shape.len() - 1 - covered;
        let pieces = task.indices.chunks(ROWS_PER_LOOK).zip(target.chunks_mut(row_bytes * ROWS_PER_LOOK));
        for (indices, target) in pieces {
            if task.cancel.is_cancelled() {
                return;
            }
            for (&index, row) in indices.iter().zip(target.chunks_exact_mut(row_bytes)) {
                let start = field.address.wrapping_add_signed(
                    field.strides[0].wrapping_mul(self.row(index).cast_signed() as isize),
                );
                copy_row(start, &field.shape[1..=outer], &field.strides[1..=outer], run, row);
            }
        }
    }

    fn pack(&self, rows: usize, offsets: &[usize]) -> Vec<u8> {
        let mut packed = Vec::with_capacity(64 * self.fields.len() + 8);
        match self.container {
            Container::Dict => pack_map(&mut packed, self.fields.len()),
            Container::List => pack_list(&mut packed, self.fields.len()),
        }
        for (field, &offset) in self.fields.iter().zip(offsets) {
            if self.container == Container::Dict {
                pack_str(&mut packed, &field.name);
            }
            let mut shape = field.shape.clone();
            shape[0] = rows as u64;
            let nbytes = (field.row_bytes() * rows) as u64;
            ArrayRef { dtype: &field.dtype, shape: &shape, offset: offset as u64, nbytes }.pack(&mut packed);
        }
        packed
    }
}

impl Source for ArraySource {
    fn load(&self, task: &Arc<Task>) -> Result<Loaded, Foreign> {
        let rows = task.indices.len();
        if let Some(&bad) = task.indices.iter().find(|&&index| index >= self.samples()) {
            return Err(Box::new(NoSuchSample { index: bad, samples: self.samples() }));
        }
        let (offsets, bytes) = self.layout(rows);
        let body = task.allocate(bytes)?;
        // SAFETY: the task's memory was made a moment ago and nobody else has it.
        let memory = unsafe { body.bytes_mut() };
        for (field, &offset) in self.fields.iter().zip(&offsets) {
            let target = &mut memory[offset..offset + field.row_bytes() * rows];
            self.gather(field, task, target);
        }
        Ok(Loaded::Encoded(self.pack(rows, &offsets)))
    }

    fn size(&self, samples: u64) -> Option<u64> {
        let rows = samples.min(self.samples()) as usize;
        Some(Task::size(self.layout(rows).1, rows) as u64)
    }
}

/// Copies one row: `run` bytes at a time where they lie together, axis by axis elsewhere.
fn copy_row(start: usize, shape: &[u64], strides: &[isize], run: usize, row: &mut [u8]) {
    let Some((&extent, inner_shape)) = shape.split_first() else {
        // SAFETY: the index was checked against the field's length, so these `run` bytes
        // lie inside the memory that `ArraySource::new`'s caller vouched for.
        let source = unsafe { std::slice::from_raw_parts(start as *const u8, run) };
        row.copy_from_slice(source);
        return;
    };
    let bytes = row.len() / extent as usize;
    for (place, part) in row.chunks_exact_mut(bytes).enumerate() {
        let begin = start.wrapping_add_signed(strides[0].wrapping_mul(place.cast_signed()));
        copy_row(begin, inner_shape, &strides[1..], run, part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::reader::Portion;

    fn task(indices: Vec<u64>) -> Arc<Task> {
        let portion = Portion { indices, items: None, places: [0, 1] };
        Arc::new(Task::new((0, 0), portion, true, &Arena::new(1 << 24)))
    }

    fn field(data: &[u16], shape: &[u64], strides: &[isize], first: usize) -> Field {
        Field {
            name: "x".into(),
            dtype: "<u2".into(),
            itemsize: 2,
            shape: shape.into(),
            strides: strides.into(),
            address: data.as_ptr() as usize + first * 2,
        }
    }

    fn gathered(field: Field, indices: Vec<u64>) -> Vec<u16> {
        let task = task(indices);
        // SAFETY: the tests keep their data alive across this call.
        let source = unsafe { ArraySource::new(vec![field], Container::List) }.expect("a source");
        let bytes = source.fields[0].row_bytes() * task.indices.len();
        source.load(&task).expect("a batch");
        let body = task.body().expect("memory");
        // SAFETY: the source is done with it.
        let memory = unsafe { body.bytes_mut() };
        memory[..bytes].chunks_exact(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect()
    }

    #[test]
    fn rows_come_in_the_order_asked_for() {
        let data: Vec<u16> = (0..12).collect();
        let rows = gathered(field(&data, &[4, 3], &[6, 2], 0), vec![2, 0, 2]);
        assert_eq!(rows, [6, 7, 8, 0, 1, 2, 6, 7, 8]);
    }

    #[test]
    fn any_strides_arrive_contiguous() {
        let data: Vec<u16> = (0..24).collect();
        // Fortran order (4, 3): element (i, j) at i + 4j.
        assert_eq!(gathered(field(&data, &[4, 3], &[2, 8], 0), vec![1, 3]), [1, 5, 9, 3, 7, 11]);
        // Reversed along both axes of (4, 3) in C order.
        assert_eq!(gathered(field(&data, &[4, 3], &[-6, -2], 11), vec![0, 1]), [11, 10, 9, 8, 7, 6]);
        // Broadcast along the second axis.
        assert_eq!(gathered(field(&data, &[4, 3], &[2, 0], 0), vec![2]), [2, 2, 2]);
        // Every second column of (2, 2, 6).
        assert_eq!(gathered(field(&data, &[2, 2, 3], &[24, 12, 4], 0), vec![1]), [12, 14, 16, 18, 20, 22]);
        // An axis of extent 1 with an odd stride, and one dimension only.
        assert_eq!(gathered(field(&data, &[4, 1, 3], &[6, 777, 2], 0), vec![3]), [9, 10, 11]);
        assert_eq!(gathered(field(&data, &[24], &[2], 0), vec![23, 1]), [23, 1]);
    }

    #[test]
    fn a_selection_renames_the_rows() {
        let data: Vec<u16> = (0..12).collect();
        let task = task(vec![1, 0]);
        // SAFETY: `data` outlives the source.
        let source = unsafe { ArraySource::new(vec![field(&data, &[4, 3], &[6, 2], 0)], Container::List) };
        let source = source.and_then(|source| source.select(vec![3, 1, 3])).expect("a source");
        assert_eq!(source.samples(), 3);
        source.load(&task).expect("a batch");
        // SAFETY: the source is done with it.
        let memory = unsafe { task.body().expect("memory").bytes_mut() };
        let values: Vec<u16> =
            memory[..12].chunks_exact(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect();
        assert_eq!(values, [3, 4, 5, 9, 10, 11]);
        let error = source.select(vec![4]).expect_err("must fail");
        assert_eq!(error, "row 4 is selected from arrays of 4 rows");
    }

    #[test]
    fn an_index_outside_is_an_error_that_names_it() {
        let data = [0u16; 4];
        // SAFETY: `data` outlives the source.
        let source = unsafe { ArraySource::new(vec![field(&data, &[4], &[2], 0)], Container::List) };
        let error = source.expect("a source").load(&task(vec![0, 4])).expect_err("must fail");
        assert_eq!(error.to_string(), "index 4 is out of range for a dataset of 4 samples");
    }
}
