//! The bytes of one batch: a slot of the arena, or the heap when no slot is to be had.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc, dealloc};

use crate::arena::{Arena, SlotId};
use crate::room::PAGE;
use crate::segment::Slot;

/// Every array of a batch starts at a multiple of this many bytes.
pub const ALIGNMENT: usize = 64;

/// From here on memory is asked of the system itself: an allocator may keep what is freed.
const LARGE: usize = 256 << 10;

#[derive(Debug)]
enum Memory {
    /// A slot, and how many bytes of it have pages.
    Slot(SlotId, usize),
    Heap(Layout),
    Mapped,
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
    /// Bytes of the heap that belong to the same batch.
    besides: AtomicU64,
    arena: Arc<Arena>,
}

// SAFETY: the memory belongs to this value alone and does not depend on the thread; all
// access goes through the raw address, under the rule stated at `Body::bytes_mut`.
unsafe impl Send for Body {}
// SAFETY: as above; shared access hands out only an address and a length.
unsafe impl Sync for Body {}

impl Body {
    /// A whole slot; see [`Body::fit`].
    pub(crate) fn of_slot(arena: Arc<Arena>, slot: Slot) -> Self {
        let memory = Memory::Slot(slot.id, slot.touched);
        Self { address: slot.address, length: slot.bytes, memory, besides: AtomicU64::new(0), arena }
    }

    /// Memory of the heap, counted by the arena; `None` when the system has none left.
    pub(crate) fn of_heap(arena: Arc<Arena>, length: usize) -> Option<Self> {
        let (address, memory) = if length >= LARGE {
            let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
            let address = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags) };
            (NonNull::new(address.ok()?.cast())?, Memory::Mapped)
        } else {
            let layout = Layout::from_size_align(length.max(1), ALIGNMENT).ok()?;
            // SAFETY: the layout's size is at least 1.
            (NonNull::new(unsafe { alloc(layout) })?, Memory::Heap(layout))
        };
        Some(Self { address, length, memory, besides: AtomicU64::new(0), arena })
    }

    /// Takes the first `length` bytes of a slot for a batch.
    pub(crate) fn fit(&mut self, length: usize) {
        self.length = length;
        let Memory::Slot(_, touched) = &mut self.memory else { return };
        if *touched < length {
            // One call asks for all pages; writing into them would fault for each of them. A
            // kernel that doesn't know the advice leaves that to the write.
            let begin = *touched - *touched % PAGE;
            // SAFETY: the range is ours and begins at a page.
            let _ = unsafe {
                let address = self.address.as_ptr().add(begin).cast();
                madvise(address, length - begin, Advice::LinuxPopulateWrite)
            };
            *touched = length;
        }
    }

    /// Counts bytes of the heap that belong to the same batch.
    pub(crate) fn count_besides(&self, bytes: u64) {
        self.arena.count_heap(bytes);
        self.besides.fetch_add(bytes, Ordering::Relaxed);
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
            Memory::Slot(slot, _) => Some(slot),
            Memory::Heap(_) | Memory::Mapped => None,
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
        let besides = *self.besides.get_mut();
        match self.memory {
            Memory::Slot(slot, touched) => return self.arena.give_back(slot, touched, besides),
            // SAFETY: allocated by `of_heap` with exactly this layout.
            Memory::Heap(layout) => unsafe { dealloc(self.address.as_ptr(), layout) },
            // SAFETY: mapped by `of_heap` with exactly this length, which never changes.
            Memory::Mapped => drop(unsafe { munmap(self.address.as_ptr().cast(), self.length) }),
        }
        self.arena.forget_heap(self.length as u64 + besides);
    }
}
