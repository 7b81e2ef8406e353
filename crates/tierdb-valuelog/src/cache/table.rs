//! The slots: cells that readers load without a lock, in segments that never move.
//!
//! A slot's number is all that an index outside needs to store. A cell may be reused for another entry at any
//! time, so whoever follows a slot checks that what it finds is what it looks for.
//!
//! Invariants
//! 1. A cell goes from empty to full only in [`Table::place`], under its shard's latch, and only from
//!    [`State::Free`].
//! 2. A slot is freed only by the holder of the lists' latch, and only when its cell is empty. So while a
//!    slot is linked into a list, what its cell holds can change only to nothing.
//! 3. A slot is in its shard's free list, in its shard's queue, or in neither; `next` links it in both.

use std::mem::size_of;
use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use crossbeam_epoch::Guard;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use tierdb_sync::EpochSlot;

use super::{Cached, heap_bytes};

/// Names a place in the cache. It fits 32 bits, of which zero stands for "no slot".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(NonZeroU32);

impl Slot {
    /// The slot that [`Slot::bits`] gave, or `None` for zero. Any number is safe to look up.
    #[inline]
    pub fn from_bits(bits: u32) -> Option<Self> {
        NonZeroU32::new(bits).map(Slot)
    }

    /// The slot as a number that is not zero.
    #[inline]
    pub fn bits(self) -> u32 {
        self.0.get()
    }

    pub(super) fn new(index: u32) -> Self {
        Slot(NonZeroU32::MIN.saturating_add(index))
    }

    #[inline]
    pub(super) fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// No slot, as an index in links.
pub(super) const NONE: u32 = u32::MAX;

const SHARDS: usize = 8;
const FIRST_BITS: u32 = 8;
const PART_BITS: u32 = 4;
/// The first segment has 256 slots; then each doubling comes in sixteen segments, so that one takes less than
/// the headroom that upkeep maintains.
pub(super) const SEGMENTS: usize = 1 + ((32 - FIRST_BITS as usize) << PART_BITS);

/// Which segment a slot is in, and where in it.
#[inline]
pub(super) fn locate(index: u32) -> (usize, usize) {
    if index < 1 << FIRST_BITS {
        return (0, index as usize);
    }
    let top = index.ilog2();
    let bits = top - PART_BITS;
    let part = (index >> bits) & ((1 << PART_BITS) - 1);
    let segment = 1 + ((top - FIRST_BITS) << PART_BITS) + part;
    (segment as usize, (index & ((1 << bits) - 1)) as usize)
}

/// How many slots a segment has.
pub(super) fn segment_len(segment: usize) -> usize {
    match segment {
        0 => 1 << FIRST_BITS,
        later => 1 << (FIRST_BITS - PART_BITS + ((later as u32 - 1) >> PART_BITS)),
    }
}

/// What the shard's latch guards about a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum State {
    /// In the free list; its cell is empty.
    Free,
    /// In use, and the lists know it as it is, or soon hear of it.
    Clean,
    /// In the queue of slots whose lists must be brought up to date.
    Queued,
}

/// One slot.
pub(super) struct Cell {
    /// The copy, or nothing.
    pub cached: EpochSlot<Cached>,
    next: AtomicU32,
    /// How often it was read since the policy last looked, up to the policy's limit.
    pub heat: AtomicU8,
    state: AtomicU8,
}

impl Cell {
    fn new() -> Self {
        Cell {
            cached: EpochSlot::empty(),
            next: AtomicU32::new(NONE),
            heat: AtomicU8::new(0),
            state: AtomicU8::new(State::Free as u8),
        }
    }

    /// Counts a read. Stores nothing once the limit is reached, so that hot cells stay shared among CPU
    /// caches.
    #[inline]
    pub fn touch(&self, limit: u8) {
        let heat = self.heat.load(Relaxed);
        if heat < limit {
            self.heat.store(heat + 1, Relaxed);
        }
    }

    /// REQUIRES for both: the shard's latch is held.
    fn is(&self, state: State) -> bool {
        self.state.load(Relaxed) == state as u8
    }

    fn set(&self, state: State) {
        self.state.store(state as u8, Relaxed);
    }
}

/// A list of slots linked by their cells' `next`.
struct Chain {
    head: u32,
    tail: u32,
}

/// The slots whose index leaves the same remainder.
struct Shard {
    free: Chain,
    queue: Chain,
    /// How many of its slots were ever used.
    fresh: u32,
}

/// All slots.
pub(super) struct Table {
    segments: [OnceLock<Box<[Cell]>>; SEGMENTS],
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
    /// How many segments exist; held while one is added.
    grown: Mutex<usize>,
}

impl Table {
    pub fn new() -> Self {
        Table {
            segments: std::array::from_fn(|_| OnceLock::new()),
            shards: std::array::from_fn(|_| {
                let empty = || Chain { head: NONE, tail: NONE };
                CachePadded::new(Mutex::new(Shard { free: empty(), queue: empty(), fresh: 0 }))
            }),
            grown: Mutex::new(0),
        }
    }

    /// The cell of a slot, or `None` if there never was such a slot.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&Cell> {
        let (segment, at) = locate(index);
        self.segments[segment].get().map(|cells| &cells[at])
    }

    /// The cell of a slot that was in use.
    pub fn cell(&self, index: u32) -> &Cell {
        self.get(index).expect("a slot that was in use has a cell")
    }

    /// Puts a copy into a free slot and queues the slot, so that the lists hear of it; or gives the copy back
    /// if no slot is free. Tries the shard `first` before others.
    pub fn place(&self, first: usize, cached: Box<Cached>, guard: &Guard) -> Result<Slot, Box<Cached>> {
        for step in 0..SHARDS {
            let shard_no = (first + step) % SHARDS;
            let mut shard = self.shards[shard_no].lock();
            let Some(index) = self.take(&mut shard, shard_no) else { continue };
            let cell = self.cell(index);
            cell.heat.store(0, Relaxed);
            cell.cached.put(cached, guard);
            cell.set(State::Queued);
            self.push(&mut shard.queue, index);
            return Ok(Slot::new(index));
        }
        Err(cached)
    }

    /// Queues a slot whose cell was just emptied. It may have been freed, and even used again, since: then
    /// this is harmless.
    pub fn queue(&self, index: u32) {
        let mut shard = self.shard(index).lock();
        let cell = self.cell(index);
        if cell.is(State::Clean) {
            cell.set(State::Queued);
            self.push(&mut shard.queue, index);
        }
    }

    /// Takes queued slots of one shard, oldest first, and returns how many.
    pub fn dequeue(&self, shard: usize, into: &mut [u32]) -> usize {
        let mut shard = self.shards[shard % SHARDS].lock();
        let mut count = 0;
        while count < into.len() {
            let Some(index) = self.pop(&mut shard.queue) else { break };
            self.cell(index).set(State::Clean);
            into[count] = index;
            count += 1;
        }
        count
    }

    /// Frees a slot whose cell is empty, unless it is queued: then it is freed when its turn comes.
    ///
    /// REQUIRES: the lists' latch is held, and the slot is in no list.
    pub fn free(&self, index: u32) {
        let mut shard = self.shard(index).lock();
        let cell = self.cell(index);
        if cell.is(State::Clean) {
            cell.set(State::Free);
            self.push(&mut shard.free, index);
        }
    }

    /// Adds a segment if `reserve` grants its bytes, which include those of the lists' part of it.
    pub fn grow(&self, list_bytes: usize, reserve: impl FnOnce(u64) -> bool) -> bool {
        let mut grown = self.grown.lock();
        if *grown == SEGMENTS {
            return false;
        }
        let len = segment_len(*grown);
        if !reserve(heap_bytes(len * size_of::<Cell>()) + heap_bytes(len * list_bytes)) {
            return false;
        }
        self.segments[*grown].get_or_init(|| (0..len).map(|_| Cell::new()).collect());
        *grown += 1;
        true
    }

    /// How many shards there are.
    pub const fn shards() -> usize {
        SHARDS
    }

    fn shard(&self, index: u32) -> &Mutex<Shard> {
        &self.shards[index as usize % SHARDS]
    }

    fn take(&self, shard: &mut Shard, shard_no: usize) -> Option<u32> {
        self.pop(&mut shard.free).or_else(|| {
            let index = shard.fresh.checked_mul(SHARDS as u32)?.checked_add(shard_no as u32)?;
            (index < NONE && self.get(index).is_some()).then(|| {
                shard.fresh += 1;
                index
            })
        })
    }

    fn push(&self, chain: &mut Chain, index: u32) {
        self.cell(index).next.store(NONE, Relaxed);
        match chain.tail {
            NONE => chain.head = index,
            tail => self.cell(tail).next.store(index, Relaxed),
        }
        chain.tail = index;
    }

    fn pop(&self, chain: &mut Chain) -> Option<u32> {
        let index = chain.head;
        if index == NONE {
            return None;
        }
        chain.head = self.cell(index).next.load(Relaxed);
        if chain.head == NONE {
            chain.tail = NONE;
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Copied;
    use super::*;

    #[test]
    fn every_index_has_a_place_of_its_own() {
        let (mut segment, mut at) = (0, 0);
        for index in 0..100_000 {
            assert_eq!(locate(index), (segment, at), "index {index}");
            at += 1;
            if at == segment_len(segment) {
                (segment, at) = (segment + 1, 0);
            }
        }
        let (last, at) = locate(u32::MAX);
        assert_eq!((last, at + 1), (SEGMENTS - 1, segment_len(SEGMENTS - 1)));
    }

    fn copy() -> Box<Cached> {
        Box::new(Cached {
            record: Copied::new(&[], 0, None),
            entry: 0,
            word: Default::default(),
            origin: 0,
            filling: 0,
            known: false,
        })
    }

    /// Goal: a slot is in the free list or in the queue, never in both, however late its remover queues it.
    #[test]
    fn a_queued_slot_is_not_freed_and_a_free_one_not_queued() {
        let (table, guard) = (Table::new(), crossbeam_epoch::pin());
        assert!(table.place(0, copy(), &guard).is_err());
        assert!(!table.grow(0, |_| false));
        assert!(table.grow(0, |_| true));
        let slot = table.place(0, copy(), &guard).ok().unwrap().index();
        let mut queued = [NONE; 4];
        assert_eq!((table.dequeue(0, &mut queued), queued[0]), (1, slot));

        assert!(table.cell(slot).cached.take_if(|_| true, &guard).is_some());
        table.queue(slot);
        table.queue(slot);
        table.free(slot);
        let other = table.place(0, copy(), &guard).ok().unwrap().index();
        assert_ne!(other, slot, "the slot is still queued");
        assert_eq!((table.dequeue(0, &mut queued), queued[..2].to_vec()), (2, vec![slot, other]));

        table.free(slot);
        table.queue(slot);
        assert_eq!(table.dequeue(0, &mut queued), 0, "a free slot is not queued");
        assert_eq!(table.place(0, copy(), &guard).ok().unwrap().index(), slot);
        let slots: Vec<_> = std::iter::from_fn(|| table.place(3, copy(), &guard).ok()).collect();
        assert_eq!(slots.len(), segment_len(0) - 2, "a shard that is out of slots takes those of others");
    }
}
