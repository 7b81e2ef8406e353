//! What was written under each key, and so what a read may return.
//!
//! One word for each key, changed before and after each write, so that a store which answers with an old
//! version fails the run instead of winning it. Writers of one key are not held apart for this: while their
//! writes overlap they form a *burst*, whose order only the store knows.
//!
//! Invariants
//! 1. A version is given out once for each write of a key, from 1 up.
//! 2. The *floor* of a key is a version that no read may fall behind: all versions below it were written before
//!    a write began that has since been acknowledged. It rises when a burst ends, to the burst's first version.
//! 3. `acknowledged` counts keys whose insertion has returned, without a hole: every number below it is stored.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Keys in one segment.
const SEGMENT: u64 = 1 << 16;
const SEGMENTS: usize = 1 << 16;
/// Keys that there can be.
pub const MOST_KEYS: u64 = SEGMENT * SEGMENTS as u64;
/// Bits of a version.
pub const VERSION_BITS: u32 = 28;
const DISTANCE_BITS: u32 = 14;
/// A distance that is not known any more: the key is then not held to a floor.
const UNKNOWN: u64 = (1 << DISTANCE_BITS) - 1;
/// Most writers at once.
pub const MAX_WRITERS: usize = 255;

/// One key: the versions given out, the writes under way, and how far behind lie the floor and the first
/// version of the burst.
#[derive(Clone, Copy)]
struct Slot {
    issued: u64,
    writing: u64,
    behind: u64,
    burst: u64,
}

impl Slot {
    fn unpack(word: u64) -> Self {
        Slot {
            issued: word & ((1 << VERSION_BITS) - 1),
            writing: word >> 28 & 0xff,
            behind: word >> 36 & UNKNOWN,
            burst: word >> 50,
        }
    }

    fn pack(self) -> u64 {
        self.issued | self.writing << 28 | self.behind << 36 | self.burst << 50
    }

    fn floor(self) -> u64 {
        if self.behind == UNKNOWN { 0 } else { self.issued - self.behind }
    }
}

/// The versions of all keys of a run.
pub struct Ledger {
    segments: Box<[OnceLock<Box<[AtomicU64]>>]>,
    next: AtomicU64,
    acknowledged: AtomicU64,
    greatest: AtomicU64,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

impl Ledger {
    /// No keys yet.
    pub fn new() -> Self {
        Ledger {
            segments: (0..SEGMENTS).map(|_| OnceLock::new()).collect(),
            next: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            greatest: AtomicU64::new(0),
        }
    }

    fn word(&self, number: u64) -> &AtomicU64 {
        let segment = &self.segments[(number / SEGMENT) as usize];
        let words = segment.get_or_init(|| (0..SEGMENT).map(|_| AtomicU64::new(0)).collect());
        &words[(number % SEGMENT) as usize]
    }

    /// The number of a key that was never written.
    pub fn next_insert(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Keys that have been given a number.
    pub fn numbered(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Keys `0..n` are stored.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    /// The greatest [name](crate::keys::Naming::name) of a key that is stored; 0 before there is one.
    pub fn greatest(&self) -> u64 {
        self.greatest.load(Ordering::Acquire)
    }

    /// The insertion of a key of this name has ended. Counts such insertions, up to the first that has not.
    pub fn inserted(&self, name: u64) {
        if self.greatest() < name {
            self.greatest.fetch_max(name, Ordering::AcqRel);
        }
        loop {
            let up_to = self.acknowledged.load(Ordering::Acquire);
            if up_to >= self.numbered() || self.floor(up_to) == 0 {
                return;
            }
            let _ = self.acknowledged.compare_exchange(up_to, up_to + 1, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The version that the write of `number` which begins now is to store.
    pub fn begin_write(&self, number: u64) -> u32 {
        let before = self.word(number).fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let mut slot = Slot::unpack(word);
            slot.burst = if slot.writing == 0 { 1 } else { (slot.burst + 1).min(UNKNOWN) };
            slot.behind = (slot.behind + 1).min(UNKNOWN);
            slot.issued += 1;
            slot.writing += 1;
            Some(slot.pack())
        });
        before.map_or(0, |word| Slot::unpack(word).issued as u32 + 1)
    }

    /// The write of `number` has returned.
    pub fn end_write(&self, number: u64) {
        let _ = self.word(number).fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let mut slot = Slot::unpack(word);
            slot.writing -= 1;
            if slot.writing == 0 {
                slot.behind = if slot.burst == UNKNOWN { UNKNOWN } else { slot.burst - 1 };
            }
            Some(slot.pack())
        });
    }

    /// The oldest version that a read of `number` which begins now may return; 0 if it may find nothing.
    pub fn floor(&self, number: u64) -> u32 {
        Slot::unpack(self.word(number).load(Ordering::Acquire)).floor() as u32
    }

    /// The newest version that a read of `number` which has ended may have returned.
    pub fn issued(&self, number: u64) -> u32 {
        Slot::unpack(self.word(number).load(Ordering::Acquire)).issued as u32
    }

    /// The floors of keys `0..keys`.
    pub fn floors(&self, keys: u64) -> Vec<u32> {
        (0..keys).map(|number| self.floor(number)).collect()
    }

    /// Bytes of memory it holds, which are no store's.
    pub fn memory_bytes(&self) -> u64 {
        let used = self.segments.iter().filter(|segment| segment.get().is_some()).count() as u64;
        used * SEGMENT * 8 + SEGMENTS as u64 * 24
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_follows_writes_that_do_not_overlap() {
        let ledger = Ledger::new();
        assert_eq!(ledger.floor(5), 0);
        for version in 1..=20_000 {
            assert_eq!(ledger.begin_write(5), version);
            assert_eq!(ledger.floor(5), version - 1);
            ledger.end_write(5);
            assert_eq!(ledger.floor(5), version);
        }
    }

    #[test]
    fn the_floor_of_overlapping_writes_is_the_first_of_them() {
        let ledger = Ledger::new();
        ledger.begin_write(0);
        ledger.end_write(0);
        assert_eq!((ledger.begin_write(0), ledger.begin_write(0)), (2, 3));
        ledger.end_write(0);
        assert_eq!(ledger.begin_write(0), 4, "a third write joins the burst");
        ledger.end_write(0);
        assert_eq!(ledger.floor(0), 1, "the burst goes on: any of its versions may come last");
        ledger.end_write(0);
        assert_eq!((ledger.floor(0), ledger.issued(0)), (2, 4));
    }

    #[test]
    fn a_burst_too_long_to_count_gives_the_floor_up_and_the_next_write_restores_it() {
        let ledger = Ledger::new();
        ledger.begin_write(0);
        for _ in 0..20_000 {
            ledger.begin_write(0);
            ledger.end_write(0);
        }
        ledger.end_write(0);
        assert_eq!(ledger.floor(0), 0);
        let version = ledger.begin_write(0);
        ledger.end_write(0);
        assert_eq!(ledger.floor(0), version);
    }

    #[test]
    fn keys_are_acknowledged_without_holes() {
        let ledger = Ledger::new();
        let (first, second) = (ledger.next_insert(), ledger.next_insert());
        ledger.begin_write(first);
        ledger.begin_write(second);
        ledger.end_write(second);
        ledger.inserted(9);
        assert_eq!((ledger.acknowledged(), ledger.greatest()), (0, 9));
        ledger.end_write(first);
        ledger.inserted(4);
        assert_eq!((ledger.acknowledged(), ledger.greatest()), (2, 9));
    }
}
