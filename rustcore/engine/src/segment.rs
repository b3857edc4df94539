//! One segment of the arena: a sealed memfd cut into equal slots.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::arena::SlotId;
use crate::error::Error;

/// A slot that was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) id: SlotId,
    pub(crate) address: NonNull<u8>,
    pub(crate) bytes: usize,
    /// How many of its bytes have pages.
    pub(crate) touched: usize,
}

/// Memory that other processes can map and only this one can change.
///
/// The memfd is sealed against shrinking, growing, new writable mappings and further
/// seals once our own writable mapping stands; nothing of it has a name in a file system.
#[derive(Debug)]
pub(crate) struct Segment {
    fd: OwnedFd,
    address: NonNull<u8>,
    bytes: usize,
    pub(crate) slot_bytes: usize,
    /// Free slots, the most recently used one last: its pages are the warmest.
    pub(crate) free: Vec<u32>,
    generations: Vec<u32>,
    /// How many bytes of each slot have pages already.
    touched: Vec<usize>,
    /// Whether somebody else may have mapped it.
    pub(crate) shown: bool,
    /// No slot of a retired segment is handed out any more.
    pub(crate) retired: bool,
}

// SAFETY: the mapping is valid from any thread until it is dropped.
unsafe impl Send for Segment {}

impl Segment {
    pub(crate) fn new(slot_bytes: usize, slots: usize) -> Result<Self, Error> {
        let bytes = slot_bytes * slots;
        let fd = memfd_create("tundish", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(Error::system("cannot make a memfd"))?;
        ftruncate(&fd, bytes as u64).map_err(Error::system("cannot size a memfd"))?;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let address = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)
        }
        .map_err(Error::system("cannot map a memfd"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        let segment = Self {
            fd,
            address: NonNull::new(address.cast()).unwrap_or(NonNull::dangling()),
            bytes,
            slot_bytes,
            free: (0..slots as u32).rev().collect(),
            generations: vec![0; slots],
            touched: vec![0; slots],
            shown: false,
            retired: false,
        };
        fcntl_add_seals(&segment.fd, seals).map_err(Error::system("cannot seal a memfd"))?;
        Ok(segment)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn slots(&self) -> usize {
        self.generations.len()
    }

    pub(crate) fn all_free(&self) -> bool {
        self.free.len() == self.generations.len()
    }

    fn slot_offset(&self, slot: u32) -> usize {
        slot as usize * self.slot_bytes
    }

    /// Whether it can go: no slot is out, and none will be.
    pub(crate) fn is_over(&self) -> bool {
        self.retired && self.all_free()
    }

    /// Takes a free slot of this segment, whose number is `segment`.
    pub(crate) fn take(&mut self, segment: u32) -> Option<Slot> {
        let slot = self.free.pop()?;
        let index = slot as usize;
        self.generations[index] = self.generations[index].wrapping_add(1);
        let offset = self.slot_offset(slot);
        let generation = self.generations[index];
        let id = SlotId { segment, slot, generation, offset: offset as u64 };
        // SAFETY: the slot lies inside our mapping.
        let address = unsafe { self.address.add(offset) };
        Some(Slot { id, address, bytes: self.slot_bytes, touched: self.touched[index] })
    }

    /// Takes back a slot, of which `touched` bytes have pages.
    pub(crate) fn put_back(&mut self, slot: u32, touched: usize) {
        self.touched[slot as usize] = touched;
        self.free.push(slot);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; slots out of it keep the arena alive,
        // and a segment is dropped only when none is out.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}
