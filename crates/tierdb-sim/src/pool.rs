//! A simulated byte-addressable pool: what the program sees, what is certain, and what lies between.
//!
//! For each 64-byte line with stores that are not certain to be on media, the stores are kept in program
//! order. A flush marks those made so far; a fence makes certain what its own thread has marked, as
//! `clwb` and `sfence` do: one thread's fence says nothing of another's flushes.

use crate::lines::{LINE, Lines, Store};
use crate::live::Live;
use crate::space::{PAGE, Space};
use crate::world::{EventKind, World};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tierdb_base::{Error, Location, Result, TierRole, mutant};
use tierdb_pmem::{Admitted, Lsn, PersistenceDomain, Pool};

/// A pool's medium and what is on its way there.
pub(crate) struct PoolState {
    pub name: Arc<str>,
    pub len: u64,
    pub live: Arc<Live>,
    pub persisted: Space,
    pub lines: Lines,
    /// Flushes without a fence: the thread, the line, and the last store flushed.
    flushes: Vec<(u64, u32, u64)>,
    seq: u64,
    pub poison: Arc<Poison>,
}

/// Ranges that the medium reports as damaged.
#[derive(Default)]
pub(crate) struct Poison {
    any: AtomicBool,
    ranges: parking_lot::Mutex<Vec<Range<u64>>>,
}

impl Poison {
    pub fn copy(&self) -> Arc<Poison> {
        let ranges = self.ranges.lock().clone();
        Arc::new(Poison { any: AtomicBool::new(!ranges.is_empty()), ranges: ranges.into() })
    }

    fn hit(&self, range: Range<u64>) -> Option<u64> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let ranges = self.ranges.lock();
        ranges.iter().find(|p| p.start < range.end && range.start < p.end).map(|p| p.start.max(range.start))
    }
}

impl PoolState {
    pub fn new(name: &str, len: u64) -> Self {
        Self::with_content(name.into(), len, Space::default(), Arc::default())
    }

    /// A pool that has just been opened after a crash: all that is there is certain.
    pub fn with_content(name: Arc<str>, len: u64, content: Space, poison: Arc<Poison>) -> Self {
        assert!(len.is_multiple_of(PAGE as u64), "a pool is made of pages of {PAGE} bytes");
        PoolState {
            name,
            len,
            live: Arc::new(Live::new(content.clone(), len)),
            persisted: content,
            lines: Lines::default(),
            flushes: Vec::new(),
            seq: 0,
            poison,
        }
    }

    /// The pool after the death of a process: what it had stored and not fenced is as uncertain as before, and nobody's fence
    /// says anything of it.
    pub fn killed(&self) -> Self {
        let mut killed =
            Self::with_content(self.name.clone(), self.len, self.persisted.clone(), self.poison.copy());
        killed.seq = self.seq;
        for (number, line) in self.lines.share() {
            for store in &line.stores {
                killed.live.swap(u64::from(number) * LINE + u64::from(store.word) * 8, store.value);
            }
            killed.lines.entry(number).stores.clone_from(&line.stores);
        }
        killed
    }

    fn store(&mut self, at: u64, value: u64) {
        // The same value again adds no state that media can be in.
        if self.live.swap(at, value) != value {
            self.seq += 1;
            let store = Store { seq: self.seq, word: (at % LINE / 8) as u8, value };
            self.lines.entry((at / LINE) as u32).push(store);
        }
    }

    fn flush(&mut self, thread: u64, at: u64, len: u64) {
        let PoolState { lines, flushes, seq, .. } = self;
        lines.change((at / LINE) as u32..=((at + len - 1) / LINE) as u32, |number, line| {
            line.flushed = *seq;
            flushes.push((thread, number, *seq));
        });
    }

    fn fence(&mut self, thread: u64) {
        let PoolState { flushes, lines, persisted, .. } = self;
        flushes.retain(|&(by, number, seq)| {
            if by == thread {
                lines.change(number..=number, |number, line| {
                    let certain = line.stores.partition_point(|store| store.seq <= seq);
                    for store in line.stores.drain(..certain) {
                        persisted.set_word(u64::from(number) * LINE + u64::from(store.word) * 8, store.value);
                    }
                });
            }
            by != thread
        });
    }

    fn settle(&mut self) {
        let PoolState { flushes, lines, persisted, len, .. } = self;
        flushes.clear();
        lines.change(0..=(*len / LINE) as u32, |number, line| {
            for store in line.stores.drain(..) {
                persisted.set_word(u64::from(number) * LINE + u64::from(store.word) * 8, store.value);
            }
        });
    }

    /// Puts `bytes` on the medium and in the program's view, whatever was there or on its way. The words
    /// they touch become certain.
    pub fn overwrite(&mut self, at: u64, bytes: &[u8]) {
        assert!(at + bytes.len() as u64 <= self.len, "the range lies inside the pool");
        let (first, end) = (at & !7, (at + bytes.len() as u64).next_multiple_of(8));
        for word_at in (first..end).step_by(8) {
            let mut word = self.live.load(word_at).to_le_bytes();
            for (i, byte) in word.iter_mut().enumerate() {
                if let Some(new) = (word_at + i as u64).checked_sub(at).and_then(|i| bytes.get(i as usize)) {
                    *byte = *new;
                }
            }
            self.live.swap(word_at, u64::from_le_bytes(word));
            self.persisted.set_word(word_at, u64::from_le_bytes(word));
        }
        self.lines.change((first / LINE) as u32..=(end / LINE) as u32, |number, line| {
            let line_at = u64::from(number) * LINE;
            let inside = |store: &Store| (first..end).contains(&(line_at + u64::from(store.word) * 8));
            line.stores.retain(|store| !inside(store));
        });
    }
}

thread_local! {
    static THREAD: Cell<u64> = {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Cell::new(NEXT.fetch_add(1, Ordering::Relaxed))
    };
}

fn thread() -> u64 {
    THREAD.get()
}

/// Runs `work` as if it ran on thread `number` of threads that take turns: its fences make certain what was
/// flushed under that number, and nothing else. So a crash test, which runs on one thread, meets a missing
/// fence that a thread's next operation would hide.
pub fn as_thread<T>(number: u32, work: impl FnOnce() -> T) -> T {
    struct Back(u64);
    impl Drop for Back {
        fn drop(&mut self) {
            THREAD.set(self.0);
        }
    }
    let _back = Back(THREAD.replace(u64::MAX - u64::from(number)));
    work()
}

/// A simulated pool. Clones are the same pool.
#[derive(Clone)]
pub struct SimPool {
    world: World,
    index: usize,
    name: Arc<str>,
    len: u64,
    live: Arc<Live>,
    poison: Arc<Poison>,
}

impl SimPool {
    pub(crate) fn new(world: World, index: usize, state: &PoolState) -> Self {
        SimPool {
            world,
            index,
            name: state.name.clone(),
            len: state.len,
            live: state.live.clone(),
            poison: state.poison.clone(),
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut PoolState) -> T) -> T {
        change(&mut self.world.state().pools[self.index])
    }

    /// The pool as a new process opens it: what a process that was killed had stored and not written back is
    /// made certain, as by the sync of the file when a mapped pool is opened.
    #[must_use]
    pub fn opened(self) -> Self {
        self.world.event(EventKind::Fence);
        self.change(PoolState::settle);
        self
    }

    /// Makes [`Pool::read`] of any byte in `range` fail with `Corrupt`, as a poisoned line does.
    pub fn poison(&self, range: Range<u64>) {
        self.poison.ranges.lock().push(range);
        self.poison.any.store(true, Ordering::Release);
    }

    /// Takes all poison away.
    pub fn heal(&self) {
        self.poison.ranges.lock().clear();
        self.poison.any.store(false, Ordering::Release);
    }

    fn check(&self, at: u64, len: u64) {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= self.len),
            "{len} bytes at {at} lie outside {}, which has {}",
            self.name,
            self.len
        );
    }
}

impl Pool for SimPool {
    fn len(&self) -> u64 {
        self.len
    }

    fn domain(&self) -> PersistenceDomain {
        PersistenceDomain::Simulated
    }

    fn place(&self, at: u64) -> Location {
        Location::new(self.name.clone(), at)
    }

    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.live.load(at)
    }

    fn store(&self, at: u64, word: u64) {
        self.check(at, 8);
        self.change(|pool| pool.store(at, word));
    }

    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.check(at, 8);
        self.change(|pool| {
            let found = pool.live.load(at);
            if found != current {
                return Err(found);
            }
            pool.store(at, new);
            Ok(found)
        })
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.check(at, out.len() as u64);
        if let Some(bad) = self.poison.hit(at..at + out.len() as u64) {
            return Err(Error::corrupt(TierRole::Fast, "the medium reports a bad line", self.place(bad)));
        }
        self.live.read(at, out);
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.check(at, bytes.len() as u64);
        self.change(|pool| {
            let mut at = at;
            let mut rest = bytes;
            while !rest.is_empty() {
                let skip = (at % 8) as usize;
                let n = rest.len().min(8 - skip);
                let mut word = pool.live.load(at - skip as u64).to_le_bytes();
                word[skip..skip + n].copy_from_slice(&rest[..n]);
                pool.store(at - skip as u64, u64::from_le_bytes(word));
                at += n as u64;
                rest = &rest[n..];
            }
        });
    }

    #[track_caller]
    fn flush(&self, at: u64, len: u64) {
        self.check(at, len);
        if len == 0 {
            return;
        }
        self.world.event(EventKind::Flush);
        if mutant::keep("flush") {
            self.change(|pool| pool.flush(thread(), at, len));
        }
    }

    #[track_caller]
    fn fence(&self) {
        self.world.event(EventKind::Fence);
        if mutant::keep("fence") {
            self.change(|pool| pool.fence(thread()));
        }
    }

    #[track_caller]
    fn publish(&self, at: u64, word: u64) {
        self.check(at, 8);
        self.world.event(EventKind::Publish);
        let flush = mutant::keep("publish");
        self.change(|pool| {
            pool.store(at, word);
            if flush {
                pool.flush(thread(), at, 8);
            }
        });
    }

    fn lsn(&self) -> Lsn {
        0
    }

    fn wait(&self, _lsn: Lsn) -> Result<()> {
        Ok(())
    }

    #[track_caller]
    fn persist_word(&self, at: u64) -> Result<()> {
        self.check(at, 8);
        self.world.event(EventKind::PersistWord);
        if mutant::keep("persist_word") {
            self.change(|pool| {
                pool.flush(thread(), at, 8);
                pool.fence(thread());
            });
        }
        Ok(())
    }

    fn admit(&self, _bytes: u64) -> Result<Admitted<'_>> {
        Ok(Admitted::always())
    }
}
