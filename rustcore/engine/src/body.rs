//! The bytes of one batch: a slot of the arena, or the heap when no slot is to be had.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::arena::{Arena, SlotId};

/// Every array of a batch starts at a multiple of this many bytes.
pub const ALIGNMENT: usize = 64;

#[derive(Debug)]
enum Memory {
    Slot(SlotId),
    Heap(Layout),
}

/// Owned, writable memory of one batch. Dropping it gives the slot back.
///
/// The engine writes it once, before anybody else has it; afterwards whoever holds it
/// decides. It is a raw piece of memory on purpose: the readers are other processes and
/// numpy arrays, about which the compiler knows nothing.
#[derive(Debug)]
pub struct Body {
    address: NonNull<u8>,
    length: usize,
    memory: Memory,
    arena: Arc<Arena>,
}

// SAFETY: the memory belongs to this value alone and does not depend on the thread; all
// access goes through the raw address, under the rule stated at `Body::bytes_mut`.
unsafe impl Send for Body {}
// SAFETY: as above; shared access hands out only an address and a length.
unsafe impl Sync for Body {}

impl Body {
    pub(crate) fn of_slot(arena: Arc<Arena>, slot: SlotId, address: NonNull<u8>, length: usize) -> Self {
        Self { address, length, memory: Memory::Slot(slot), arena }
    }

    /// Memory of the heap, counted by the arena; `None` when the system has none left.
    pub(crate) fn of_heap(arena: Arc<Arena>, length: usize) -> Option<Self> {
        let layout = Layout::from_size_align(length.max(1), ALIGNMENT).ok()?;
        // SAFETY: the layout's size is at least 1.
        let address = NonNull::new(unsafe { alloc(layout) })?;
        Some(Self { address, length, memory: Memory::Heap(layout), arena })
    }

    /// Where the bytes are.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The slot, or `None` for memory of the heap.
    pub fn slot(&self) -> Option<SlotId> {
        match self.memory {
            Memory::Slot(slot) => Some(slot),
            Memory::Heap(_) => None,
        }
    }

    /// The bytes, to be written.
    ///
    /// # Safety
    /// Nobody else may read or write them meanwhile, in this process or (for a slot that
    /// was lent) in another one.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: the memory is ours for `length` bytes; the caller answers for the rest.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.length) }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        match self.memory {
            Memory::Slot(slot) => self.arena.give_back(slot),
            Memory::Heap(layout) => {
                // SAFETY: allocated by `of_heap` with exactly this layout.
                unsafe { dealloc(self.address.as_ptr(), layout) };
                self.arena.forget_heap(self.length as u64);
            }
        }
    }
}
