//! Group commit, under every interleaving of a few threads with up to two or three preemptions: nobody is told too early, nobody sleeps for ever, one block is
//! written at a time.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tierdb-sync --test loom_group_commit`
#![cfg(loom)]

use loom::thread;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tierdb_sync::group_commit::Part;
use tierdb_sync::switch::{AtomicU64, AtomicUsize, Memory, explore, explore_in};
use tierdb_sync::{GroupCommit, Turn, Waited};

/// Set where the store fails.
const FAILED: u64 = 1;

/// A log of which positions are counts of what was appended.
struct Log {
    commit: GroupCommit,
    appended: AtomicU64,
    /// What a crash would leave.
    medium: AtomicU64,
    in_flight: AtomicUsize,
    latch: AtomicU64,
    /// How often there is no room for a block.
    full: AtomicUsize,
}

/// There was no room for the block.
struct Full;

impl Log {
    fn new(commit: GroupCommit) -> Arc<Log> {
        let [appended, medium, latch] = [0; 3].map(AtomicU64::new);
        let [in_flight, full] = [0; 2].map(AtomicUsize::new);
        Arc::new(Log { commit, appended, medium, in_flight, latch, full })
    }

    fn append(&self) -> u64 {
        self.appended.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn refuse(&self) -> Result<(), &'static str> {
        if self.latch.load(Ordering::Acquire) == FAILED { Err("refused") } else { Ok(()) }
    }

    /// Writes what was appended as one block; `fails` where that does not succeed.
    fn write(&self, turn: &Turn<'_>, fails: bool) -> Result<Option<Full>, &'static str> {
        self.refuse()?;
        let end = self.appended.load(Ordering::Acquire);
        if end == self.commit.durable() {
            return Err("nothing was appended");
        }
        // Whoever has the turn alone looks.
        let full = self.full.load(Ordering::Relaxed);
        if full > 0 {
            self.full.store(full - 1, Ordering::Relaxed);
            return Ok(Some(Full));
        }
        turn.take(end);
        assert_eq!(self.in_flight.fetch_add(1, Ordering::AcqRel), 0, "one block at a time");
        if fails {
            self.latch.store(FAILED, Ordering::Release);
        } else {
            self.medium.store(end, Ordering::Release);
        }
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        if fails {
            return Err("failed");
        }
        turn.written(Duration::ZERO);
        Ok(None)
    }

    /// Appends and waits; whether it is durable then.
    fn put(&self, fails: bool) -> bool {
        let position = self.append();
        loop {
            match self.commit.wait(position, || self.refuse(), |turn| self.write(turn, fails)) {
                Ok(Waited::Durable) => {
                    let found = self.medium.load(Ordering::Acquire);
                    assert!(found >= position, "told of {position}, and a crash would leave {found}");
                    return true;
                }
                Ok(Waited::Unwritten(Full)) => {}
                Err(_) => return false,
            }
        }
    }
}

/// So many threads with so many writes each; the first blocks find no room so often.
fn writers(commit: GroupCommit, threads: usize, writes: usize, full: usize) {
    let log = Log::new(commit);
    log.full.store(full, Ordering::Relaxed);
    let others: Vec<_> = (1..threads)
        .map(|_| {
            let log = log.clone();
            thread::spawn(move || (0..writes).for_each(|_| assert!(log.put(false))))
        })
        .collect();
    (0..writes).for_each(|_| assert!(log.put(false)));
    others.into_iter().for_each(|other| other.join().expect("no thread fails"));
    assert_eq!(log.commit.durable(), (threads * writes) as u64);
}

/// Two threads write while `first` does something: they are told, or refused, and not asleep.
fn beside_two(commit: GroupCommit, first: impl Fn(&Log)) {
    let log = Log::new(commit);
    let others: Vec<_> = (0..2)
        .map(|_| {
            let log = log.clone();
            thread::spawn(move || log.put(false))
        })
        .collect();
    first(&log);
    for other in others {
        let _ = other.join().expect("no thread fails");
    }
}

/// The block of the first thread fails.
fn failing(commit: GroupCommit) {
    beside_two(commit, |log| {
        log.put(true);
    });
}

/// Something else in the store fails when the block of the first thread is written.
fn poisoned(commit: GroupCommit) {
    beside_two(commit, |log| {
        log.put(false);
        log.latch.store(FAILED, Ordering::Release);
    });
}

/// As `explore`, with up to two preemptions: with three it takes minutes.
fn explore_less(model: impl Fn() + Copy + Send + Sync + 'static) {
    explore_in(Memory::Interleaved, 2, model);
    explore_in(Memory::Weak, 2, model);
}

#[test]
fn two_writers_that_come_back_are_all_told_and_none_too_early() {
    explore(|| writers(GroupCommit::new(0), 2, 2, 0));
}

#[test]
fn three_writers_are_all_told_and_none_too_early() {
    explore(|| writers(GroupCommit::new(0), 3, 1, 0));
}

#[test]
fn three_writers_that_come_back_are_all_told() {
    explore_in(Memory::Interleaved, 2, || writers(GroupCommit::new(0), 3, 2, 0));
}

#[test]
fn a_block_that_finds_no_room_leaves_nobody_asleep() {
    explore_less(|| writers(GroupCommit::new(0), 3, 1, 2));
}

#[test]
fn a_block_that_fails_leaves_nobody_asleep() {
    explore(|| failing(GroupCommit::new(0)));
}

#[test]
fn a_store_that_fails_leaves_nobody_asleep() {
    explore_less(|| poisoned(GroupCommit::new(0)));
}

/// It may sleep for ever, or have the turn with nothing left to write.
#[test]
#[should_panic]
fn who_sleeps_without_a_look_whether_it_is_durable_is_noticed() {
    explore_in(Memory::Interleaved, 2, || {
        writers(GroupCommit::new(0).without(Part::LookBeforeSleep), 3, 2, 0);
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_is_refused_and_wakes_nobody_is_noticed() {
    explore_in(Memory::Interleaved, 2, || poisoned(GroupCommit::new(0).without(Part::RefusedWakes)));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_block_that_fails_and_wakes_one_is_noticed() {
    explore_in(Memory::Interleaved, 3, || failing(GroupCommit::new(0).without(Part::RefusedWakes)));
}
