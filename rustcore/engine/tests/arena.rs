//! The arena: reuse, growth, seals, limits.
#![cfg(not(loom))]
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;

use tundish_engine::{ALIGNMENT, Arena};

#[test]
fn a_slot_that_comes_back_is_the_next_to_go_out() {
    let arena = Arena::new(1 << 20);
    let first = arena.allocate(5000).unwrap();
    let id = first.slot().unwrap();
    drop(first);
    let again = arena.allocate(5000).unwrap().slot().unwrap();
    assert_eq!((again.segment, again.slot), (id.segment, id.slot));
    assert_eq!(again.generation, id.generation + 1);
}

#[test]
fn memory_is_aligned_distinct_and_ours() {
    let arena = Arena::new(1 << 22);
    let bodies: Vec<_> = (0..40).map(|_| arena.allocate(10_000).unwrap()).collect();
    for (number, body) in bodies.iter().enumerate() {
        assert_eq!(body.address().as_ptr() as usize % ALIGNMENT, 0);
        // SAFETY: nobody else has the memory.
        unsafe { body.bytes_mut() }.fill(number as u8);
    }
    for (number, body) in bodies.iter().enumerate() {
        // SAFETY: as above.
        assert!(unsafe { body.bytes_mut() }.iter().all(|&byte| byte == number as u8));
    }
}

#[test]
fn beyond_the_limit_batches_get_memory_of_the_heap() {
    let arena = Arena::new(100_000);
    let bodies: Vec<_> = (0..5).map(|_| arena.allocate(30_000).unwrap()).collect();
    assert!(arena.usage().capacity <= 100_000);
    assert!(bodies[0].slot().is_some());
    assert!(bodies[4].slot().is_none());
    assert_eq!(arena.usage().slots_lent, bodies.iter().filter(|body| body.slot().is_some()).count() as u64);
    drop(bodies);
    let usage = arena.usage();
    assert_eq!((usage.used, usage.slots_lent), (0, 0));
}

#[test]
fn a_free_segment_of_the_wrong_size_makes_room() {
    let arena = Arena::new(100_000);
    drop(arena.allocate(4000).unwrap());
    let large = arena.allocate(60_000).unwrap();
    assert!(large.slot().is_none(), "the small segment still has the room");
    let retired = arena.retired();
    assert_eq!(retired.len(), 1);
    assert!(arena.drop_segment(retired[0]));
    assert!(!arena.drop_segment(retired[0]));
    assert!(arena.allocate(60_000).unwrap().slot().is_some());
}

#[test]
fn a_reservation_counts_until_it_is_dropped() {
    let arena = Arena::new(100);
    let held = arena.reserve(60, false).unwrap();
    assert!(arena.reserve(60, false).is_none());
    assert!(arena.reserve(60, true).is_some(), "a needed batch is never refused");
    drop(held);
    assert!(arena.reserve(60, false).is_some());
}

#[test]
fn another_process_cannot_write_resize_or_unseal_a_segment() {
    use rustix::fs::{SealFlags, fcntl_add_seals, ftruncate};
    use rustix::io::{Errno, pwrite};
    use std::os::fd::BorrowedFd;

    let arena = Arena::new(1 << 20);
    let body = arena.allocate(100).unwrap();
    let (fd, bytes) = arena.segment(body.slot().unwrap().segment).unwrap();
    // SAFETY: the arena keeps the descriptor open for this whole test.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    assert_eq!(pwrite(fd, b"x", 0), Err(Errno::PERM));
    assert_eq!(ftruncate(fd, 0), Err(Errno::PERM));
    assert_eq!(ftruncate(fd, bytes + 4096), Err(Errno::PERM));
    assert_eq!(fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM));
    let again = Arc::clone(&arena);
    drop(body);
    assert_eq!(again.usage().used, 0);
}
