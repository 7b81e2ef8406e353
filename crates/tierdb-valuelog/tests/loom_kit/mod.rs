//! A pool for models: some of its words are loom's, and it knows what a crash would leave of them.
//!
//! A word may be on media with any value that it had since the last one that is certain to be there. What a
//! flush writes back is what the flushing thread has seen of the word, and no more. Bytes outside the
//! modelled words are plain memory, but threads that are at the same line of the guarded range at once,
//! one of them writing, fail the model.
//!
//! The locks inside are never held while another thread runs, so they are no part of a model.

#![allow(dead_code, reason = "each test uses its own part of it")]

use loom::cell::UnsafeCell;
use loom::thread::{ThreadId, current};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};
use tierdb_base::{Location, Result};
use tierdb_pmem::{Admitted, Arena, Lsn, PersistenceDomain, Pool};
use tierdb_sync::switch::AtomicU64;

/// What makes stores durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Flush and fence.
    Memory,
    /// A log of flushes, and `wait`.
    Log,
}

/// What a model that must fail leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Nothing.
    No,
    /// Flushes do nothing, those of publishes neither.
    Flush,
    /// Fences and waits do nothing.
    Fence,
    /// A compare-and-exchange does not compare.
    Compare,
}

/// The pool.
pub struct LoomPool {
    memory: Arena,
    medium: Medium,
    broken: Broken,
    /// Hold numbers of values, so that equal values of different stores are told apart.
    words: BTreeMap<u64, AtomicU64>,
    guarded: Range<u64>,
    /// Changed whenever something becomes certain, and whenever it is asked what is: so that loom tries both
    /// orders of the two.
    certain: AtomicU64,
    state: Mutex<State>,
}

const LINE: u64 = 64;

#[derive(Default)]
struct State {
    next: u64,
    words: HashMap<u64, History>,
    /// By thread and word: how much of its history the thread has seen, and how much it has flushed.
    seen: HashMap<(ThreadId, u64), usize>,
    staged: HashMap<(ThreadId, u64), usize>,
    lines: HashMap<u64, Line>,
    staged_lines: HashMap<(ThreadId, u64), u64>,
    /// Word or line, and how much of its history.
    log: Vec<(u64, usize)>,
    durable_lsn: usize,
    kept_from: Lsn,
}

/// All values of a word in the order of their stores, each with its number.
struct History {
    values: Vec<(u64, u64)>,
    /// The first that may be on media.
    durable: usize,
}

/// A line of the guarded range.
struct Line {
    race: UnsafeCell<()>,
    written: u64,
    durable: u64,
}

// SAFETY: one thread of a model runs at a time, and the cells are there for loom to check.
unsafe impl Send for LoomPool {}
// SAFETY: as above.
unsafe impl Sync for LoomPool {}

impl LoomPool {
    /// A pool of zeros of `len` bytes. The words at `modelled` are loom's, and none of `guarded` may be
    /// used by two threads at once.
    pub fn new(len: u64, medium: Medium, broken: Broken, modelled: &[u64], guarded: Range<u64>) -> Self {
        let mut state = State::default();
        for at in modelled {
            state.words.insert(*at, History { values: vec![(0, 0)], durable: 0 });
        }
        state.next = 1;
        LoomPool {
            memory: Arena::zeroed(len),
            medium,
            broken,
            words: modelled.iter().map(|at| (*at, AtomicU64::new(0))).collect(),
            guarded,
            certain: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// What the word at `at` may be after a crash now.
    pub fn after_crash(&self, at: u64) -> Vec<u64> {
        self.certain.fetch_add(1, Ordering::Relaxed);
        let state = self.state();
        let history = &state.words[&at];
        let positions: Vec<usize> = match self.medium {
            Medium::Memory => (history.durable..history.values.len()).collect(),
            Medium::Log => (state.durable_lsn..=state.log.len())
                .map(|end| {
                    let last = state.log[..end].iter().rev().find(|(word, _)| *word == at);
                    last.map_or(0, |(_, position)| *position)
                })
                .collect(),
        };
        positions.into_iter().map(|position| history.values[position].1).collect()
    }

    /// All values the word at `at` had.
    pub fn history(&self, at: u64) -> Vec<u64> {
        self.state().words[&at].values.iter().map(|(_, value)| *value).collect()
    }

    /// Whether a crash that leaves everything published leaves `len` bytes at `at` as they are.
    pub fn is_safe(&self, at: u64, len: u64) -> bool {
        let state = self.state();
        lines(at, len).all(|line| match (state.lines.get(&line), self.medium) {
            (None, _) => true,
            (Some(line), Medium::Memory) => line.durable == line.written,
            (Some(found), Medium::Log) => {
                state.log.iter().rposition(|(what, _)| *what == line).is_some_and(|entry| {
                    state.log[entry].1 as u64 == found.written && entry as u64 >= state.kept_from
                })
            }
        })
    }

    fn record(&self, at: u64, number: u64, value: u64) {
        let mut state = self.state();
        let history = state.words.get_mut(&at).expect("a modelled word");
        history.values.push((number, value));
        let position = history.values.len() - 1;
        state.seen.insert((current().id(), at), position);
    }

    /// The value that has `number`, which this thread has seen now.
    fn value(&self, at: u64, number: u64) -> u64 {
        let mut state = self.state();
        let history = &state.words[&at];
        let found = history.values.iter().position(|(n, _)| *n == number).expect("a stored value");
        let value = history.values[found].1;
        let seen = state.seen.entry((current().id(), at)).or_insert(0);
        *seen = found.max(*seen);
        value
    }

    fn number(&self) -> u64 {
        let mut state = self.state();
        state.next += 1;
        state.next - 1
    }
}

fn lines(at: u64, len: u64) -> impl Iterator<Item = u64> {
    // Apart from words in the log: lines have odd names.
    (at / LINE..=(at + len - 1) / LINE).map(|line| line * LINE + 1)
}

impl Pool for LoomPool {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn domain(&self) -> PersistenceDomain {
        match self.medium {
            Medium::Memory => PersistenceDomain::Simulated,
            Medium::Log => PersistenceDomain::Logged,
        }
    }

    fn place(&self, at: u64) -> Location {
        Location::new("modelled pool", at)
    }

    fn load(&self, at: u64) -> u64 {
        match self.words.get(&at) {
            Some(word) => self.value(at, word.load(Ordering::Acquire)),
            None => self.memory.word(at).load(Ordering::Acquire),
        }
    }

    fn store(&self, at: u64, value: u64) {
        let Some(word) = self.words.get(&at) else {
            return self.memory.word(at).store(value, Ordering::Release);
        };
        let number = self.number();
        // A swap, since loom takes a store and a compare-and-exchange of another thread that it has not seen
        // for two that may be in either order, although the latter has read what the store replaced.
        word.swap(number, Ordering::Release);
        self.record(at, number, value);
    }

    fn compare_exchange(&self, at: u64, old: u64, new: u64) -> Result<u64, u64> {
        let word = &self.words[&at];
        loop {
            let seen = word.load(Ordering::Acquire);
            let value = self.value(at, seen);
            if self.broken == Broken::Compare {
                self.store(at, new);
                return Ok(value);
            }
            if value != old {
                return Err(value);
            }
            let number = self.number();
            if word.compare_exchange(seen, number, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                self.record(at, number, new);
                return Ok(value);
            }
        }
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        if self.guarded.contains(&at) {
            let state = self.state();
            for line in lines(at, out.len() as u64).filter_map(|line| state.lines.get(&line)) {
                line.race.with(|_| {});
            }
        }
        self.memory.read(at, out);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        if self.guarded.contains(&at) {
            let mut state = self.state();
            for line in lines(at, bytes.len() as u64) {
                let line = state.lines.entry(line).or_insert_with(|| Line {
                    race: UnsafeCell::new(()),
                    written: 0,
                    durable: 0,
                });
                line.race.with_mut(|_| {});
                line.written += 1;
            }
        }
        self.memory.write(at, bytes);
    }

    fn flush(&self, at: u64, len: u64) {
        if self.broken == Broken::Flush {
            return;
        }
        let me = current().id();
        let state = &mut *self.state();
        for at in self.words.range(at..at + len).map(|(at, _)| *at) {
            let seen = state.seen.get(&(me, at)).copied().unwrap_or(0);
            state.staged.insert((me, at), seen);
            if self.medium == Medium::Log {
                // The log's latch is held: it is the newest value that is logged.
                state.log.push((at, state.words[&at].values.len() - 1));
            }
        }
        for line in lines(at, len) {
            let Some(found) = state.lines.get(&line) else { continue };
            state.staged_lines.insert((me, line), found.written);
            state.log.push((line, found.written as usize));
        }
    }

    fn fence(&self) {
        if self.broken == Broken::Fence {
            return;
        }
        self.certain.fetch_add(1, Ordering::Relaxed);
        let me = current().id();
        let state = &mut *self.state();
        for ((thread, at), staged) in &state.staged {
            if *thread == me {
                let history = state.words.get_mut(at).expect("a modelled word");
                history.durable = history.durable.max(*staged);
            }
        }
        for ((thread, line), staged) in &state.staged_lines {
            if *thread == me {
                let line = state.lines.get_mut(line).expect("a written line");
                line.durable = line.durable.max(*staged);
            }
        }
    }

    fn publish(&self, at: u64, value: u64) {
        self.store(at, value);
        self.flush(at, 8);
    }

    fn lsn(&self) -> Lsn {
        match self.medium {
            Medium::Memory => 0,
            Medium::Log => self.state().log.len() as Lsn,
        }
    }

    fn wait(&self, lsn: Lsn) -> Result<()> {
        if self.broken != Broken::Fence && self.medium == Medium::Log {
            self.certain.fetch_add(1, Ordering::Relaxed);
            let mut state = self.state();
            state.durable_lsn = state.durable_lsn.max(lsn as usize);
        }
        Ok(())
    }

    fn persist_word(&self, at: u64) -> Result<()> {
        match self.medium {
            Medium::Memory => {
                self.flush(at, 8);
                self.fence();
                Ok(())
            }
            Medium::Log => self.wait(self.lsn()),
        }
    }

    fn admit(&self, _bytes: u64) -> Result<Admitted<'_>> {
        Ok(Admitted::always())
    }

    fn keep_log_from(&self, lsn: Lsn) {
        let mut state = self.state();
        state.kept_from = state.kept_from.max(lsn);
    }
}
