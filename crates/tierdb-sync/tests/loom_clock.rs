//! The commit clock, under every interleaving of a few threads: which writes a snapshot names.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tierdb-sync --test loom_clock`
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;
use tierdb_sync::CommitClock;
use tierdb_sync::switch::{AtomicU64, Memory, explore, explore_in};

/// A clock, and two keys, each written once: its word is then the write's seqno.
struct Store {
    clock: CommitClock,
    keys: [AtomicU64; 2],
}

impl Store {
    fn new() -> Arc<Store> {
        Arc::new(Store { clock: CommitClock::new(0), keys: [AtomicU64::new(0), AtomicU64::new(0)] })
    }

    fn get(&self, key: usize) -> u64 {
        self.keys[key].load(Ordering::Acquire)
    }

    fn both(&self) -> [u64; 2] {
        [self.get(0), self.get(1)]
    }

    fn put(&self, key: usize) -> u64 {
        let in_flight = self.clock.begin();
        self.keys[key].store(in_flight.seqno(), Ordering::Release);
        in_flight.seqno()
    }

    /// Every write up to `seqno` is seen now.
    fn assert_published_up_to(&self, seqno: u64) {
        let seen = self.both();
        for expected in 1..=seqno {
            assert!(seen.contains(&expected), "snapshot at {seqno}, and write {expected} is not seen");
        }
    }
}

type Writer = fn(&Store, usize) -> u64;
type Snapshot = fn(&CommitClock) -> u64;

/// Two writers and a snapshot: it names the writes that were seen before, and all it names is seen after.
fn snapshot_names_what_is_published(write: Writer, snapshot: Snapshot) {
    explore(move || two_writers_and_a_snapshot(write, snapshot));
}

fn two_writers_and_a_snapshot(write: Writer, snapshot: Snapshot) {
    let store = Store::new();
    let writers: Vec<_> = (0..2)
        .map(|key| {
            let store = store.clone();
            thread::spawn(move || write(&store, key))
        })
        .collect();
    let before = store.both();
    let seqno = snapshot(&store.clock);
    assert!(before.iter().all(|seen| *seen <= seqno), "{before:?} seen before snapshot {seqno}");
    store.assert_published_up_to(seqno);
    let mut seqnos: Vec<u64> = writers.into_iter().map(|w| w.join().expect("a writer")).collect();
    seqnos.sort_unstable();
    assert_eq!(seqnos, [1, 2], "each seqno is given out once");
}

/// Readers of single keys and a snapshot agree on the order of two writes. The reader is the writer of the
/// second key: it does not see the first after its own.
fn readers_and_snapshots_agree(snapshot: Snapshot) {
    explore(move || {
        let store = Store::new();
        let first_writer = {
            let store = store.clone();
            thread::spawn(move || store.put(0))
        };
        let second_writer = {
            let store = store.clone();
            thread::spawn(move || (store.put(1), store.get(0) != 0))
        };
        let seqno = snapshot(&store.clock);
        let first = first_writer.join().expect("a writer");
        let (second, first_seen) = second_writer.join().expect("a writer");
        let first_alone = first <= seqno && second > seqno;
        assert!(
            first_seen || !first_alone,
            "snapshot {seqno} has write {first} and not {second}; a reader saw the second before the first"
        );
    });
}

/// A writer that replaces a word keeps the old one if a snapshot may need it.
fn what_a_snapshot_needs_is_kept(keep: fn(&CommitClock) -> bool) {
    explore(move || {
        let store = Store::new();
        let writer = {
            let store = store.clone();
            thread::spawn(move || {
                let in_flight = store.clock.begin();
                let kept = keep(&store.clock);
                store.keys[0].store(in_flight.seqno(), Ordering::Release);
                kept
            })
        };
        let seqno = store.clock.take_snapshot();
        let kept = writer.join().expect("the writer");
        assert!(kept || seqno >= 1, "snapshot {seqno} needs what write 1 replaced");
        store.clock.release_snapshot();
        assert!(!store.clock.has_snapshots());
    });
}

/// A writer whose write a snapshot does not see knows what was noted of the snapshot.
fn what_is_noted_of_a_snapshot_is_seen(snapshot: fn(&Store, &AtomicU64) -> u64) {
    explore(move || {
        let (store, noted) = (Store::new(), Arc::new(AtomicU64::new(u64::MAX)));
        let writer = {
            let (store, noted) = (store.clone(), noted.clone());
            thread::spawn(move || {
                let in_flight = store.clock.begin();
                (in_flight.seqno(), noted.load(Ordering::Acquire))
            })
        };
        let seqno = snapshot(&store, &noted);
        let (write, noted) = writer.join().expect("the writer");
        assert!(write <= seqno || noted == seqno, "write {write} does not know of snapshot {seqno}");
    });
}

#[test]
fn a_later_writer_knows_of_a_snapshot() {
    what_is_noted_of_a_snapshot_is_seen(|store, noted| {
        store.clock.take_snapshot_and(|seqno| noted.store(seqno, Ordering::Release))
    });
}

#[test]
fn a_snapshot_names_exactly_what_is_published() {
    snapshot_names_what_is_published(Store::put, CommitClock::take_snapshot);
}

#[test]
fn a_settled_seqno_is_published() {
    snapshot_names_what_is_published(Store::put, CommitClock::settled);
}

#[test]
fn a_snapshot_does_not_contradict_readers_of_single_keys() {
    readers_and_snapshots_agree(CommitClock::take_snapshot);
}

#[test]
fn a_writer_keeps_what_an_open_snapshot_needs() {
    what_a_snapshot_needs_is_kept(CommitClock::has_snapshots);
}

#[test]
fn two_snapshots_and_a_writer_let_each_other_go_on() {
    explore(|| {
        let store = Store::new();
        let others: Vec<_> = (0..2)
            .map(|_| {
                let store = store.clone();
                thread::spawn(move || {
                    let seqno = store.clock.take_snapshot();
                    store.assert_published_up_to(seqno);
                    store.clock.release_snapshot();
                })
            })
            .collect();
        store.put(0);
        for other in others {
            other.join().expect("a snapshot");
        }
        assert!(!store.clock.has_snapshots());
        assert_eq!(store.clock.settled(), 1);
    });
}

#[test]
fn three_writers_share_two_slots() {
    explore(|| {
        let store = Store::new();
        let others: Vec<_> = (0..2)
            .map(|key| {
                let store = store.clone();
                thread::spawn(move || store.put(key))
            })
            .collect();
        store.clock.begin();
        let seqno = store.clock.settled();
        let mut seqnos: Vec<u64> = others.into_iter().map(|w| w.join().expect("a writer")).collect();
        seqnos.sort_unstable();
        seqnos.dedup();
        assert!(seqnos.len() == 2 && seqno >= 1);
        assert_eq!(store.clock.last(), 3);
    });
}

// Canaries: the same models fail when the protocol is broken.

#[test]
#[should_panic(expected = "is not seen")]
fn a_writer_that_gives_up_its_slot_too_early_is_noticed() {
    fn early(store: &Store, key: usize) -> u64 {
        let seqno = store.clock.begin().seqno();
        store.keys[key].store(seqno, Ordering::Release);
        seqno
    }
    snapshot_names_what_is_published(early, CommitClock::take_snapshot);
}

#[test]
#[should_panic(expected = "is not seen")]
fn a_snapshot_that_waits_for_nobody_is_noticed() {
    snapshot_names_what_is_published(Store::put, CommitClock::last);
}

#[test]
#[should_panic(expected = "a reader saw the second before the first")]
fn a_snapshot_without_the_gate_is_noticed() {
    readers_and_snapshots_agree(CommitClock::settled);
}

#[test]
#[should_panic(expected = "is not seen")]
fn acquire_and_release_alone_would_not_do() {
    explore_in(Memory::NoSeqCst, 3, || two_writers_and_a_snapshot(Store::put, CommitClock::take_snapshot));
}

#[test]
#[should_panic(expected = "needs what write 1 replaced")]
fn a_writer_that_keeps_nothing_is_noticed() {
    what_a_snapshot_needs_is_kept(|_| false);
}

#[test]
#[should_panic(expected = "does not know of snapshot")]
fn a_snapshot_that_is_noted_too_late_is_noticed() {
    what_is_noted_of_a_snapshot_is_seen(|store, noted| {
        let seqno = store.clock.take_snapshot();
        noted.store(seqno, Ordering::Release);
        seqno
    });
}
