//! The Heterogeneous Storage Index Table: where each key's value is (PRISM §4.5).
//!
//! An array of 16-byte entries in pages of the pool; see [`crate::word`] for the two words. A key's
//! entry never changes while the key is in the index.
//!
//! Invariants
//! 1. Word 0 is changed only under the entry's latch, but for the dirty bit, which anyone who has made
//!    the word durable may clear.
//! 2. An entry is given to a new key only when its word 0 is *none* on media, and when every operation
//!    that may still hold its number has ended, but for cursors: their snapshots see *none* there, before and after.
//! 3. No two writes publish the same word 0 for an entry while an operation that has seen the first is running: a dirty bit is
//!    cleared by comparing words. But a writer that waits for its device holds a word for longer, and once in 4,096 times another
//!    write has its tag: of two puts to the same place in that time, a lap of the ring apart, the second could then pass for durable
//!    before it is.
//! 4. Word 1 says nothing after a crash; it is zeroed when the store is opened.
//!
//! A word that points at a record is checked against the record. One that says *none* or *free* has nothing
//! to be checked against, and would delete its key silently if damage could make it. So it carries a check
//! of its own, seeded with the entry's number; this file alone knows of that.

use crate::pages::{KIND_HSIT, PAGE, Pages, Purpose};
use crate::word::{Aux, Place, Word};
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_base::{Result, checksum, checksum_parts, matches};
use tierdb_pmem::{Pool, Stage};
use tierdb_sync::switch::{Mutex, MutexGuard};

/// Bytes of an entry.
pub const ENTRY: u64 = 16;
/// Entries in a page.
pub const PER_PAGE: u64 = PAGE / ENTRY;
/// Latches; entries share one when their numbers agree modulo this. Few in a model, where each costs time.
const STRIPES: usize = if cfg!(loom) { 4 } else { 1024 };
/// Entries that wait for an epoch together.
const GATHERED: usize = 32;

/// The table.
pub struct Hsit<P: Pool> {
    pool: Arc<P>,
    pages: Arc<Pages<P>>,
    /// Byte of each segment's page in the pool; 0 where there is none.
    segments: Box<[AtomicU64]>,
    free: Arc<Mutex<FreeEntries>>,
    stripes: Box<[CachePadded<Mutex<()>>]>,
}

#[derive(Default)]
struct FreeEntries {
    entries: Vec<u64>,
    segments: u64,
    /// Entries whose keys have left the index since an epoch was last asked for.
    gathered: Vec<u64>,
    /// Entries that wait for an epoch.
    waiting: u64,
}

/// The latches of one or more entries, held.
pub struct Latched<'h> {
    _guards: Vec<MutexGuard<'h, ()>>,
}

impl<P: Pool> Hsit<P> {
    /// A table over the segments that the page table names; no entry is free until [`Hsit::set_free`].
    pub fn open(pool: Arc<P>, pages: Arc<Pages<P>>, found: &[(u64, u64)]) -> Self {
        let most = pool.len() / PAGE;
        let segments: Box<[AtomicU64]> = (0..most).map(|_| AtomicU64::new(0)).collect();
        let mut count = 0;
        for (segment, page) in found {
            segments[*segment as usize].store(page * PAGE, Ordering::Relaxed);
            count = count.max(segment + 1);
        }
        let stripes = (0..STRIPES).map(|_| CachePadded::new(Mutex::new(()))).collect();
        let free = Arc::new(Mutex::new(FreeEntries { segments: count, ..FreeEntries::default() }));
        Hsit { pool, pages, segments, free, stripes }
    }

    /// Number of entries that segments exist for, counting those of missing segments below the last.
    pub fn len(&self) -> u64 {
        self.free.lock().segments * PER_PAGE
    }

    /// Bytes of the pool it takes.
    pub fn pool_bytes(&self) -> u64 {
        self.segments.iter().filter(|s| s.load(Ordering::Relaxed) != 0).count() as u64 * PAGE
    }

    /// Bytes of DRAM it takes.
    pub fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.segments) as u64
            + size_of_val(&*self.stripes) as u64
            + self.free.lock().entries.capacity() as u64 * 8
    }

    /// Byte of the entry's word 0, or `None` for a number that no segment holds.
    #[inline]
    pub fn at(&self, entry: u64) -> Option<u64> {
        let page = self.segments.get((entry / PER_PAGE) as usize)?.load(Ordering::Acquire);
        (page != 0).then(|| page + entry % PER_PAGE * ENTRY)
    }

    fn must_at(&self, entry: u64) -> u64 {
        // Numbers come from the index, which was checked against the segments when it was opened, and
        // from `allocate`; segments never go away.
        self.at(entry).unwrap_or_else(|| panic!("HSIT entry {entry} has no segment"))
    }

    /// Word 0, or [`Word::DAMAGED`].
    #[inline]
    pub fn word(&self, entry: u64) -> Word {
        let word = Word(self.pool.load(self.must_at(entry)));
        match word.place() {
            Place::Ring(_) | Place::Flash(..) => word,
            _ => self.absent(entry, word),
        }
    }

    /// The word of an entry without a record, as it is in DRAM.
    fn absent(&self, entry: u64, stored: Word) -> Word {
        let word = Word(stored.0 & !Word::CHECK);
        let check = self.check(entry, word);
        if matches(stored.0 & Word::CHECK, check) { word } else { Word::DAMAGED }
    }

    /// The word as it is in the pool.
    #[inline]
    fn stored(&self, entry: u64, word: Word) -> u64 {
        match word.place() {
            Place::Ring(_) | Place::Flash(..) => word.0,
            Place::None | Place::Free => word.0 | self.check(entry, word),
            Place::Damaged => panic!("a damaged word is not written"),
        }
    }

    /// The check of a word without a record; never 0. Who has made it durable may change the dirty bit alone.
    fn check(&self, entry: u64, word: Word) -> u64 {
        let parts = [entry, word.clean().0].map(u64::to_le_bytes);
        let sum = checksum(self.pages.seed(), parts.as_flattened()) & Word::CHECK;
        if sum == 0 { Word::CHECK } else { sum }
    }

    /// Word 1.
    #[inline]
    pub fn aux(&self, entry: u64) -> Aux {
        Aux(self.pool.load(self.must_at(entry) + 8))
    }

    /// Stores `word` in word 0 and starts its write-back. Under the latch.
    #[track_caller]
    pub fn publish(&self, entry: u64, word: Word) {
        self.pool.publish(self.must_at(entry), self.stored(entry, word));
    }

    /// Stores word 0 without a write-back: only for *free* and *none*, which mean the same on media.
    pub fn mark(&self, entry: u64, word: Word) {
        assert!(matches!(word.place(), Place::None | Place::Free));
        self.pool.store(self.must_at(entry), self.stored(entry, word));
    }

    /// Word 0, durable, and of no batch that is still being installed.
    pub fn settled(&self, entry: u64) -> Result<Word> {
        loop {
            let word = self.word(entry);
            if word.is_dirty() {
                self.persist(entry, word)?;
            }
            // A batch marks all its entries before it changes the first, so a word that it installed is
            // seen with the mark, or after the whole batch.
            if !self.aux(entry).is_pending() {
                return Ok(word.clean());
            }
            let _latched = self.latch(entry);
            // A batch holds the latch for as long as its mark is there: this one is none's, but damage.
            self.update_aux(entry, |aux| aux.pending(false));
        }
    }

    /// Publishes `to` in place of the word that points at `from`, if that is the word of the same write.
    /// Returns the replaced word. Under the latch.
    #[track_caller]
    pub fn swing(&self, entry: u64, from: Place, to: Word) -> Option<Word> {
        let now = self.word(entry);
        if now.place() != from || now.tag() != to.tag() {
            return None;
        }
        // A word that is not durable yet stays marked until it is: whoever moves, reads or wrote it sees to that.
        self.publish(entry, if now.is_dirty() { to.dirty() } else { to });
        Some(now)
    }

    /// Runs `publish`, which publishes and drains words of `entries`: whoever sees one of them sees all.
    /// Under the latches of all.
    pub fn together<T>(&self, entries: &[u64], publish: impl FnOnce() -> T) -> T {
        for entry in entries {
            self.update_aux(*entry, |aux| aux.pending(true));
        }
        let done = publish();
        for entry in entries {
            self.update_aux(*entry, |aux| aux.pending(false));
        }
        done
    }

    /// Makes the dirty `word` that was read durable on behalf of its writer, and clears the bit.
    #[track_caller]
    pub fn persist(&self, entry: u64, word: Word) -> Result<()> {
        let at = self.must_at(entry);
        self.pool.persist_word(at)?;
        self.clear_dirty(entry, word);
        Ok(())
    }

    /// Clears the dirty bit of `word`, which is durable, unless it was replaced meanwhile.
    pub fn clear_dirty(&self, entry: u64, word: Word) {
        // A failure means that another thread has cleared it or that a newer word is there.
        let (dirty, clean) = (self.stored(entry, word.dirty()), self.stored(entry, word.clean()));
        let _ = self.pool.compare_exchange(self.must_at(entry), dirty, clean);
    }

    /// Replaces word 1 by what `f` makes of it.
    pub fn update_aux(&self, entry: u64, f: impl Fn(Aux) -> Aux) -> Aux {
        let at = self.must_at(entry) + 8;
        let mut old = self.pool.load(at);
        loop {
            let new = f(Aux(old)).0;
            if new == old {
                return Aux(old);
            }
            match self.pool.compare_exchange(at, old, new) {
                Ok(_) => return Aux(old),
                Err(now) => old = now,
            }
        }
    }

    /// A sum of all words 0, and the entries without a record, from the last to the first. Two tables with the
    /// same sum say the same: what a crash may change in words without a loss is not in it. `None` if a
    /// segment or a word is damaged. Called while nobody else uses the table.
    pub fn survey(&self) -> Option<(u64, Vec<u64>)> {
        let segments = self.free.lock().segments;
        let (mut sum, mut absent) = (0u64, Vec::new());
        for segment in (0..segments).rev() {
            self.at(segment * PER_PAGE)?;
            let mut words = [0; (PER_PAGE * 8) as usize];
            for (number, bytes) in words.as_chunks_mut::<8>().0.iter_mut().enumerate().rev() {
                let entry = segment * PER_PAGE + number as u64;
                let word = self.word(entry);
                match word.place() {
                    Place::None | Place::Free => absent.push(entry),
                    Place::Ring(_) | Place::Flash(..) => *bytes = word.clean().0.to_le_bytes(),
                    Place::Damaged => return None,
                }
            }
            let of_segment = checksum_parts(self.pages.seed(), &[&segment.to_le_bytes(), &words]);
            sum = sum.wrapping_add(of_segment);
        }
        Some((sum, absent))
    }

    /// Zeroes word 1 of every entry. When the store is opened.
    pub fn reset_all_aux(&self) {
        for page in self.segments.iter().map(|page| page.load(Ordering::Relaxed)).filter(|page| *page != 0) {
            for at in (page + 8..page + PAGE).step_by(ENTRY as usize) {
                if self.pool.load(at) != 0 {
                    self.pool.store(at, 0);
                }
            }
        }
    }

    /// Zeroes word 1 of an entry. When the store is opened.
    pub fn reset_aux(&self, entry: u64) {
        self.pool.store(self.must_at(entry) + 8, 0);
    }

    fn stripe(entry: u64) -> usize {
        (entry % STRIPES as u64) as usize
    }

    /// Latches one entry.
    pub fn latch(&self, entry: u64) -> MutexGuard<'_, ()> {
        self.stripes[Self::stripe(entry)].lock()
    }

    /// Latches several entries, in an order that cannot deadlock.
    pub fn latch_all(&self, entries: &[u64]) -> Latched<'_> {
        let mut stripes: Vec<usize> = entries.iter().map(|e| Self::stripe(*e)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        Latched { _guards: stripes.into_iter().map(|s| self.stripes[s].lock()).collect() }
    }

    /// An entry for a new key, its word 0 *none*, on media too.
    ///
    /// # Errors
    /// `NoSpace` if the pool has no page for more entries.
    pub fn allocate(&self) -> Result<u64> {
        let mut free = self.free.lock();
        if let Some(entry) = free.entries.pop() {
            drop(free);
            self.mark(entry, Word::NONE);
            self.pool.store(self.must_at(entry) + 8, 0);
            return Ok(entry);
        }
        let segment = free.segments;
        let page = self.pages.allocate(Purpose::Grow)?;
        let mut stage = Stage::new(&*self.pool);
        let mut entries = [0; PAGE as usize];
        for (entry, bytes) in (segment * PER_PAGE..).zip(entries.chunks_exact_mut(ENTRY as usize)) {
            bytes[..8].copy_from_slice(&self.stored(entry, Word::NONE).to_le_bytes());
        }
        stage.write(page * PAGE, &entries);
        // In any order: no key names an entry of the segment yet. But another thread may, once it is given one.
        self.pages.stage_kind(&mut stage, page, KIND_HSIT, segment);
        let _drained = stage.drain();
        self.segments[segment as usize].store(page * PAGE, Ordering::Release);
        free.segments = segment + 1;
        let first = segment * PER_PAGE;
        free.entries.extend((first + 1..first + PER_PAGE).rev());
        Ok(first)
    }

    /// The entry's key has left the index, durably. It is given out again when every operation that is
    /// running now has ended, once some more have come, or [`Hsit::free_gathered`] is called.
    pub fn free_later(&self, entry: u64) {
        let mut free = self.free.lock();
        free.gathered.push(entry);
        let is_enough = free.gathered.len() >= GATHERED;
        drop(free);
        if is_enough {
            self.free_gathered();
        }
    }

    /// Lets the entries whose keys have left the index wait for the operations that are running now. They do not wait on the threads that
    /// have removed the keys, each of which may do nothing else for long.
    pub fn free_gathered(&self) {
        let gathered = {
            let mut free = self.free.lock();
            free.waiting += free.gathered.len() as u64;
            std::mem::take(&mut free.gathered)
        };
        if gathered.is_empty() {
            return;
        }
        let (guard, free) = (crossbeam_epoch::pin(), self.free.clone());
        guard.defer(move || {
            let mut free = free.lock();
            free.waiting -= gathered.len() as u64;
            free.entries.extend(gathered);
        });
        guard.flush();
    }

    /// Number of entries that wait for operations to end.
    pub fn waiting(&self) -> u64 {
        let free = self.free.lock();
        free.waiting + free.gathered.len() as u64
    }

    /// On open: the entries that no key names.
    pub fn set_free(&self, entries: Vec<u64>) {
        self.free.lock().entries = entries;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::{each_is_noticed, leaving_out, store};
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};
    use tierdb_sim::{Budget, CrashModel, SimPool, World};

    /// Who adds a page of entries waits for its own writes soon after; another thread that is given one of them does not.
    #[test]
    fn entries_are_on_media_before_they_are_given_out() {
        each_is_noticed("src/hsit.rs", 3, |site| {
            let world = World::new();
            let core = store(&world);
            let found = core.hsit.pool_bytes();
            leaving_out(site, || core.hsit.allocate().expect("a new store has free pages"));
            assert_eq!(core.hsit.pool_bytes(), found + PAGE, "it needs a page");
            let all = |pool: &SimPool| {
                let mut bytes = vec![0; pool.len() as usize];
                pool.read(0, &mut bytes).expect("no faults");
                bytes
            };
            let (now, point) = (all(&core.pool), world.capture());
            let mut images = point.images(&CrashModel::BOTH, 1, &Budget::default());
            images.all(|image| all(&image.world.pool("pool")) == now)
        });
    }
    /// An entry whose key a thread has removed comes back while that thread does nothing.
    #[test]
    fn entries_do_not_wait_for_who_has_freed_them() {
        let core = store(&World::new());
        let entry = core.hsit.allocate().expect("a new store has free pages");
        let (freed, is_freed) = channel();
        let (end, may_end) = channel::<()>();
        std::thread::scope(|scope| {
            let core = &core;
            scope.spawn(move || {
                core.hsit.free_later(entry);
                freed.send(()).expect("somebody waits");
                // Until the other end is dropped.
                let _ = may_end.recv();
            });
            is_freed.recv().expect("it is freed");
            assert_eq!(core.hsit.waiting(), 1);
            let given_up = Instant::now() + Duration::from_secs(60);
            while core.hsit.waiting() > 0 {
                assert!(Instant::now() < given_up, "it waits for a thread that does nothing");
                core.hsit.free_gathered();
                core.work.settle_epochs();
            }
            drop(end);
        });
    }
}
