//! The arena: reuse, growth, seals, limits.
#![cfg(not(loom))]
#![allow(missing_docs, clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tundish_engine::{ALIGNMENT, Arena, MemoryListener, Need};

/// Of a run that has had its part.
const AHEAD: Need = Need::Ahead(u64::MAX);

#[test]
fn a_slot_that_comes_back_is_the_next_to_go_out() {
    let arena = Arena::new(1 << 20);
    let first = arena.allocate(5000, None).unwrap();
    let id = first.slot().unwrap();
    drop(first);
    let again = arena.allocate(5000, None).unwrap().slot().unwrap();
    assert_eq!((again.segment, again.slot), (id.segment, id.slot));
    assert_eq!(again.generation, id.generation + 1);
}

#[test]
fn memory_is_aligned_distinct_and_ours() {
    let arena = Arena::new(1 << 22);
    let bodies: Vec<_> = (0..40).map(|_| arena.allocate(10_000, None).unwrap()).collect();
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
fn what_is_mapped_and_what_is_of_the_heap_counts_against_one_limit() {
    let arena = Arena::new(100_000);
    let bodies: Vec<_> = (0..5).map(|_| arena.allocate(30_000, None).unwrap()).collect();
    // Two slots of 36,864 bytes; there is no room for a third one.
    let slots: Vec<_> = bodies.iter().map(|body| body.slot().is_some()).collect();
    assert_eq!(slots, [true, true, false, false, false]);
    let usage = arena.usage();
    assert_eq!((usage.capacity, usage.lent, usage.heap), (73_728, 73_728, 90_000));
    assert_eq!((usage.used, usage.peak), (163_728, 163_728));
    assert_eq!((usage.slots_total, usage.slots_lent), (2, 2));
    drop(bodies);
    let usage = arena.usage();
    assert_eq!((usage.used, usage.lent, usage.heap, usage.slots_lent), (73_728, 0, 0, 0));
    assert_eq!(usage.peak, 163_728);
}

#[test]
fn slots_lose_their_slack_before_there_are_none() {
    let arena = Arena::new(88_000);
    let sizes: Vec<_> = [40_000, 40_000, 40_000]
        .map(|bytes| arena.allocate(bytes, None).unwrap())
        .iter()
        .map(|body| body.slot().map(|slot| arena.segment(slot.segment).unwrap().1))
        .collect();
    assert_eq!(sizes, [Some(45_056), Some(40_960), None]);
}

#[test]
fn segments_are_an_eighth_of_the_limit_or_one_slot() {
    let arena = Arena::new(80 << 20);
    let small = arena.allocate(800_000, None).unwrap();
    assert_eq!(arena.usage().slots_total, 11);
    let large = arena.allocate(16 << 20, None).unwrap();
    assert_eq!(arena.usage().slots_total, 12);
    drop((small, large));
}

#[test]
fn free_memory_is_used_before_any_is_added() {
    let arena = Arena::new(1 << 20);
    for _ in 0..100 {
        let two = (arena.allocate(30_000, None).unwrap(), arena.allocate(30_000, None).unwrap());
        assert!(two.0.slot().is_some() && two.1.slot().is_some());
    }
    let usage = arena.usage();
    assert_eq!((usage.used, usage.peak), (usage.capacity, usage.capacity));
    assert!(usage.capacity <= 3 * 36_864, "{usage:?}");
}

#[test]
fn a_free_segment_of_the_wrong_size_goes_at_once_if_nobody_has_it() {
    let arena = Arena::new(92_000);
    drop(arena.allocate(90_000, None).unwrap());
    assert_eq!(arena.usage().capacity, 90_112);
    assert!(arena.allocate(4000, None).unwrap().slot().is_some());
    assert!(arena.usage().capacity < 20_000);
    assert!(arena.allocate(90_000, None).unwrap().slot().is_some(), "and the small one as well");
}

#[test]
fn a_segment_that_others_have_goes_when_they_have_unmapped_it() {
    let arena = Arena::new(92_000);
    let large = arena.allocate(90_000, None).unwrap();
    let segment = large.slot().unwrap().segment;
    assert!(arena.segment(segment).is_some());
    drop(large);
    assert!(arena.allocate(4000, None).unwrap().slot().is_none());
    assert!(arena.allocate(4000, None).unwrap().slot().is_none());
    assert!(arena.retiring());
    assert_eq!(arena.retired(), [segment]);
    assert_eq!(arena.usage().capacity, 90_112);
    assert!(arena.drop_segment(segment));
    assert!(!arena.drop_segment(segment));
    assert!(!arena.retiring());
    assert_eq!(arena.usage().capacity, 0);
    assert!(arena.allocate(4000, None).unwrap().slot().is_some());
}

#[test]
fn no_more_segments_go_than_are_in_the_way() {
    let arena = Arena::new(361_000);
    drop((0..4).map(|_| arena.allocate(80_000, None).unwrap()).collect::<Vec<_>>());
    assert_eq!(arena.usage().capacity, 4 * 90_112);
    drop(arena.allocate(4000, None).unwrap());
    let usage = arena.usage();
    assert_eq!(usage.capacity, 3 * 90_112 + (usage.slots_total - 3) * 8192);
}

#[test]
fn a_size_that_has_all_the_memory_yields_some_to_another() {
    let arena = Arena::new(920_000);
    let mut held: Vec<_> = (0..8).map(|_| arena.allocate(100_000, None).unwrap()).collect();
    let filled = arena.usage().capacity;
    assert_eq!(filled, 8 * 114_688);
    // Nothing is free, and what comes back is taken again at once, but for one slot.
    assert!(arena.allocate(20_000, None).unwrap().slot().is_none());
    for _ in 0..8 {
        drop(held.remove(0));
        held.push(arena.allocate(100_000, None).unwrap());
    }
    held.retain(|body| body.slot().is_some());
    assert_eq!(held.len(), 7);
    assert!(arena.allocate(20_000, None).unwrap().slot().is_some());
    assert_eq!(arena.usage().used, 7 * 114_688 + arena.usage().slots_total * 24_576 - 7 * 24_576);
}

#[test]
fn the_heap_that_a_batch_takes_besides_counts_as_long_as_the_batch() {
    let arena = Arena::new(1 << 20);
    let heap = arena.allocate(2 << 20, None).unwrap();
    assert_eq!(arena.usage().heap, 2 << 20);
    drop(heap);
    assert_eq!(arena.usage().used, 0);
}

#[test]
fn a_free_slot_is_set_aside_and_comes_back() {
    let arena = Arena::new(200_000);
    drop(arena.allocate(80_000, None).unwrap());
    let held = arena.reserve(Some(80_000), AHEAD).unwrap();
    assert_eq!((arena.usage().slots_lent, arena.usage().reserved), (1, 0));
    drop(held);
    assert_eq!(arena.usage().slots_lent, 0);
    let held = arena.reserve(Some(80_000), AHEAD).unwrap();
    let body = arena.allocate(70_000, Some(held)).unwrap();
    assert_eq!((body.len(), body.slot().is_some()), (70_000, true));
    assert_eq!(arena.usage().used, arena.usage().capacity);
}

#[test]
fn bytes_are_set_aside_until_they_are_mapped() {
    let arena = Arena::new(200_000);
    let held = arena.reserve(Some(40_000), AHEAD).unwrap();
    assert_eq!((arena.usage().reserved, arena.usage().used), (45_056, 0));
    let other = arena.reserve(Some(40_000), AHEAD).unwrap();
    let body = arena.allocate(40_000, Some(held)).unwrap();
    assert!(body.slot().is_some());
    assert_eq!((arena.usage().reserved, arena.usage().used), (45_056, 45_056));
    assert!(arena.allocate(40_000, Some(other)).unwrap().slot().is_some());
    assert_eq!((arena.usage().reserved, arena.usage().used), (0, 90_112));
}

#[test]
fn what_nobody_needs_yet_fills_half_of_the_limit() {
    let arena = Arena::new(1_000_000);
    drop((0..9).map(|_| arena.allocate(100_000, None).unwrap()).collect::<Vec<_>>());
    let ahead: Vec<_> = std::iter::from_fn(|| arena.reserve(Some(100_000), AHEAD)).collect();
    // Slots are 114,688 bytes.
    assert_eq!((ahead.len(), arena.usage().lent), (4, 4 * 114_688));
    let needed: Vec<_> = (0..4).map(|_| arena.reserve(Some(100_000), Need::Next).unwrap()).collect();
    let bodies: Vec<_> =
        needed.into_iter().map(|held| arena.allocate(100_000, Some(held)).unwrap()).collect();
    assert!(bodies.iter().all(|body| body.slot().is_some()));
    assert!(arena.usage().used <= 1_000_000);
}

#[test]
fn each_run_has_its_part_whatever_others_hold() {
    let arena = Arena::new(1_600_000);
    let one = arena.enter();
    let held: Vec<_> = (0..8).map(|_| arena.allocate(100_000, None).unwrap()).collect();
    assert!(arena.reserve(Some(100_000), AHEAD).is_none(), "half of the limit is in use");
    // An eighth of it is 200,000.
    assert!(arena.reserve(Some(100_000), Need::Ahead(0)).is_some());
    assert!(arena.reserve(Some(100_000), Need::Ahead(100_000)).is_some());
    assert!(arena.reserve(Some(100_000), Need::Ahead(100_001)).is_none());
    let other = arena.enter();
    assert!(arena.reserve(Some(100_000), Need::Ahead(0)).is_some());
    assert!(arena.reserve(Some(100_000), Need::Ahead(1)).is_none(), "there are two runs");
    drop(other);
    assert!(arena.reserve(Some(100_000), Need::Ahead(100_000)).is_some());
    assert!(arena.reserve(None, Need::Ahead(0)).is_none(), "it may be of any size");
    drop((one, held));
}

#[test]
fn a_part_is_nothing_where_the_limit_is_reached() {
    let arena = Arena::new(1_600_000);
    let held: Vec<_> = (0..13).map(|_| arena.allocate(100_000, None).unwrap()).collect();
    let rest: Vec<_> = std::iter::from_fn(|| arena.reserve(Some(100_000), Need::Ahead(0))).take(20).collect();
    assert!(rest.len() < 3, "{}", rest.len());
    assert!(arena.usage().used + arena.usage().reserved <= 1_600_000);
    drop((held, rest));
}

#[test]
fn a_lenient_arena_refuses_nothing() {
    let arena = Arena::lenient(100_000);
    let held: Vec<_> = (0..5).map(|_| arena.reserve(Some(60_000), AHEAD).unwrap()).collect();
    let bodies = held.into_iter().map(|held| arena.allocate(60_000, Some(held)).unwrap());
    assert_eq!(bodies.collect::<Vec<_>>().iter().filter(|body| body.slot().is_some()).count(), 1);
    assert!(arena.usage().capacity <= 100_000);
}

#[test]
fn what_is_needed_next_is_never_refused() {
    let arena = Arena::new(100_000);
    let first = arena.allocate(90_000, None).unwrap();
    let needed = arena.reserve(Some(90_000), Need::Next).unwrap();
    let second = arena.allocate(90_000, Some(needed)).unwrap();
    assert!(second.slot().is_none());
    drop(first);
    assert!(arena.reserve(Some(1000), AHEAD).is_none(), "the limit is passed");
    drop(second);
    assert!(arena.reserve(Some(1000), AHEAD).is_some());
}

#[test]
fn batches_of_unknown_size_have_half_of_the_limit() {
    let arena = Arena::new(1 << 20);
    let held: Vec<_> = std::iter::from_fn(|| arena.reserve(None, AHEAD)).collect();
    assert_eq!(held.len(), 8);
    assert!(arena.reserve(None, Need::Next).is_some());
    let bodies: Vec<_> = held.into_iter().map(|held| arena.allocate(100_000, Some(held)).unwrap()).collect();
    assert!(bodies.iter().all(|body| body.slot().is_some()));
    assert!(arena.usage().used <= 1 << 20);
}

#[test]
fn a_batch_larger_than_what_was_set_aside_is_made_all_the_same() {
    let arena = Arena::new(1 << 20);
    drop(arena.allocate(10_000, None).unwrap());
    let held = arena.reserve(Some(10_000), AHEAD).unwrap();
    let body = arena.allocate(500_000, Some(held)).unwrap();
    assert_eq!(body.len(), 500_000);
    assert_eq!(arena.usage().lent, 565_248);
    // And one that is far smaller does not keep a slot that large, if there are others.
    drop((body, arena.allocate(1000, None).unwrap()));
    let held = arena.reserve(Some(500_000), AHEAD).unwrap();
    let body = arena.allocate(1000, Some(held)).unwrap();
    assert!(arena.usage().lent < 100_000, "{:?}", arena.usage());
    drop(body);
}

#[test]
fn whoever_was_refused_is_told_when_memory_comes_back() {
    #[derive(Default)]
    struct Told(AtomicUsize);
    impl MemoryListener for Told {
        fn memory_freed(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let told = Arc::new(Told::default());
    let arena = Arena::new(100_000);
    let listener: Arc<dyn MemoryListener> = Arc::clone(&told) as _;
    arena.listen(Arc::downgrade(&listener));
    let body = arena.allocate(90_000, None).unwrap();
    drop(arena.allocate(90_000, None).unwrap());
    assert_eq!(told.0.load(Ordering::Relaxed), 0, "nobody was refused");
    assert!(arena.reserve(Some(40_000), AHEAD).is_none());
    drop(body);
    assert_eq!(told.0.load(Ordering::Relaxed), 1);
    let held = arena.reserve(Some(40_000), AHEAD).unwrap();
    assert!(arena.reserve(Some(40_000), AHEAD).is_none());
    drop(held);
    assert_eq!(told.0.load(Ordering::Relaxed), 2);
}

#[test]
fn a_trimmed_arena_holds_nothing_that_nobody_uses() {
    let arena = Arena::new(1 << 20);
    let body = arena.allocate(10_000, None).unwrap();
    drop(arena.allocate(100_000, None).unwrap());
    arena.trim();
    assert_eq!(arena.usage().capacity, arena.usage().slots_total * arena.usage().lent);
    drop(body);
    arena.trim();
    assert_eq!(arena.usage().used, 0);
    assert!(arena.allocate(10_000, None).unwrap().slot().is_some());
}

#[test]
fn another_process_cannot_write_resize_or_unseal_a_segment() {
    use rustix::fs::{SealFlags, fcntl_add_seals, ftruncate};
    use rustix::io::{Errno, pwrite};
    use std::os::fd::BorrowedFd;

    let arena = Arena::new(1 << 20);
    let body = arena.allocate(100, None).unwrap();
    let (fd, bytes) = arena.segment(body.slot().unwrap().segment).unwrap();
    // SAFETY: the arena keeps the descriptor open for this whole test.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    assert_eq!(pwrite(fd, b"x", 0), Err(Errno::PERM));
    assert_eq!(ftruncate(fd, 0), Err(Errno::PERM));
    assert_eq!(ftruncate(fd, bytes + 4096), Err(Errno::PERM));
    assert_eq!(fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM));
    let again = Arc::clone(&arena);
    drop(body);
    assert_eq!(again.usage().lent, 0);
}
