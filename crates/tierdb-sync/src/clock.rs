//! The commit clock: seqnos for writers, and moments at which no writer is publishing.
//!
//! A writer announces in a slot that it is at work, takes a seqno, publishes its write, and clears the
//! slot. A snapshot closes the gate for a moment: new writers wait before they take a seqno, and when those
//! at work have published, the last seqno names exactly what everybody sees. Were writers not held, a
//! write could be seen before one with a lower seqno, and a snapshot between the two would contradict what
//! readers of single keys have seen.
//!
//! Invariants
//! 1. A slot holds 0, or a bound that is at most the seqno of the writer that owns it, stored before that
//!    seqno is taken.
//! 2. A writer looks at the gate after it has claimed its slot, and a snapshot looks at the slots after it
//!    has closed the gate (all `SeqCst`): one of the two sees the other.

use crate::counter::thread_shard;
use crate::switch::{AtomicU64, AtomicUsize, Backoff};
use crossbeam_utils::CachePadded;
use std::sync::atomic::Ordering::SeqCst;

/// Fewer in a model, so that writers meet in them.
const SLOTS: usize = if cfg!(loom) { 2 } else { 64 };

/// Gives out seqnos and knows which of them are still being published.
pub struct CommitClock {
    last: CachePadded<AtomicU64>,
    slots: Box<[CachePadded<AtomicU64>]>,
    snapshots: CachePadded<AtomicUsize>,
    /// Snapshots that are being taken.
    gate: CachePadded<AtomicUsize>,
}

/// A seqno whose write is not published yet. Dropped when it is.
pub struct InFlight<'c> {
    seqno: u64,
    slot: &'c AtomicU64,
}

impl InFlight<'_> {
    /// The writer's seqno.
    pub fn seqno(&self) -> u64 {
        self.seqno
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.slot.store(0, SeqCst);
    }
}

impl CommitClock {
    /// A clock whose next seqno is `last + 1`.
    pub fn new(last: u64) -> Self {
        CommitClock {
            last: CachePadded::new(AtomicU64::new(last)),
            slots: (0..SLOTS).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            snapshots: CachePadded::new(AtomicUsize::new(0)),
            gate: CachePadded::new(AtomicUsize::new(0)),
        }
    }

    /// Takes the next seqno. Waits, yielding, only while a snapshot is being taken or more than 64 writers
    /// publish at once.
    pub fn begin(&self) -> InFlight<'_> {
        let backoff = Backoff::new();
        let start = thread_shard();
        loop {
            if let Some(slot) = self.claim(start) {
                if self.gate.load(SeqCst) == 0 {
                    let seqno = self.last.fetch_add(1, SeqCst) + 1;
                    return InFlight { seqno, slot };
                }
                slot.store(0, SeqCst);
            }
            backoff.snooze();
            // Without a slot: a snapshot waits for those that write, not for those that only look.
            while self.gate.load(SeqCst) != 0 {
                backoff.snooze();
            }
        }
    }

    /// Claims a free slot, the thread's own if that is free.
    fn claim(&self, start: usize) -> Option<&AtomicU64> {
        let bound = self.last.load(SeqCst) + 1;
        let mut in_turn = (0..SLOTS).map(|i| &*self.slots[(start + i) % SLOTS]);
        in_turn.find(|slot| slot.load(SeqCst) == 0 && slot.compare_exchange(0, bound, SeqCst, SeqCst).is_ok())
    }

    /// The last seqno given out.
    pub fn last(&self) -> u64 {
        self.last.load(SeqCst)
    }

    /// Whether a snapshot may be open that needs what a writer is about to replace. Asked after the
    /// writer took its seqno: a snapshot that is not seen here has that seqno or a later one.
    pub fn has_snapshots(&self) -> bool {
        self.snapshots.load(SeqCst) > 0
    }

    /// Opens a snapshot: counts it, and returns its seqno. Every write up to it is published, and none
    /// after it was when it was taken. Each call is matched by one of [`CommitClock::release_snapshot`].
    pub fn take_snapshot(&self) -> u64 {
        self.take_snapshot_and(|_| {})
    }

    /// As [`CommitClock::take_snapshot`], and gives the seqno to `note` before any writer can take a later one: such a
    /// writer sees what `note` has stored. No other writer is between its seqno and the end of its write then.
    pub fn take_snapshot_and(&self, note: impl FnOnce(u64)) -> u64 {
        self.snapshots.fetch_add(1, SeqCst);
        self.gate.fetch_add(1, SeqCst);
        for slot in &self.slots {
            let backoff = Backoff::new();
            while slot.load(SeqCst) != 0 {
                backoff.snooze();
            }
        }
        let seqno = self.last.load(SeqCst);
        note(seqno);
        self.gate.fetch_sub(1, SeqCst);
        seqno
    }

    /// The last seqno given out, once every write up to it is published.
    pub fn settled(&self) -> u64 {
        let seqno = self.last.load(SeqCst);
        for slot in &self.slots {
            let backoff = Backoff::new();
            loop {
                let bound = slot.load(SeqCst);
                if bound == 0 || bound > seqno {
                    break;
                }
                backoff.snooze();
            }
        }
        seqno
    }

    /// Forgets one snapshot.
    pub fn release_snapshot(&self) {
        self.snapshots.fetch_sub(1, SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_snapshot_waits_for_writers_and_holds_new_ones() {
        let clock = Arc::new(CommitClock::new(10));
        let first = clock.begin();
        assert_eq!(first.seqno(), 11);
        let taking = {
            let clock = clock.clone();
            std::thread::spawn(move || clock.take_snapshot())
        };
        while clock.gate.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        let held = {
            let clock = clock.clone();
            std::thread::spawn(move || clock.begin().seqno())
        };
        drop(first);
        assert_eq!(taking.join().expect("snapshot"), 11);
        assert_eq!(held.join().expect("writer"), 12);
        clock.release_snapshot();
        assert!(!clock.has_snapshots());
    }
}
