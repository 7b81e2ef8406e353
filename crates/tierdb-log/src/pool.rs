//! The pool: DRAM, with a log before it is lost and pages behind it.
//!
//! What is promised is the contract of [`Pool`], with the order of the log as the order of fences:
//!
//! * [`flush`](Pool::flush) appends the range's bytes as they are now; [`publish`](Pool::publish) appends and
//!   stores as one step; both under the log latch. [`fence`](Pool::fence) has nothing to do.
//! * [`wait`](Pool::wait) makes a prefix of the log durable. After a crash the pool is what some prefix of the
//!   log says, one that holds all that was waited for; ranges that were written and never flushed are
//!   anything, as the contract has it.
//!
//! Why replay over pages gives that state. A table names pages and a log position P. Every entry
//! before P was in DRAM when its page was copied, and the page was copied by this table's checkpoint or
//! an earlier one, unless a later entry made it dirty again. So for every range: if it has an entry at or
//! after P, replay ends with the last one, whatever the page held, be it older, newer or half of each (a
//! copy is not made in one step). If it has none, the copy holds its last flushed content, or a later store that was
//! never flushed, which may persist at any time. Replay sets absolute bytes in log order, so it may begin at any
//! position before P, as often as it likes: the last entry of every range wins. That is why a table may name
//! pages newer than its position, and why a crash inside recovery is only another recovery.
//!
//! Transient pages. An engine whose write buffer lives in the pool would see each of its pages checkpointed
//! although it is soon dead. With [`Pool::set_transient`] a checkpoint leaves these pages out (they stay dirty)
//! as long as the ring has room for the log since [`Pool::keep_log_from`], and the table names that older
//! position. What was logged there before it is dead by the engine's word; what was logged since is replayed. Under
//! pressure they are checkpointed like all others.
//!
//! Latches, in the order in which they are taken: an engine's own; the checkpoint latch; the turn to write
//! the log; the log latch; the log's state, or that of its group commit. No I/O is done under the last three.

use crate::checkpoint::Purpose;
use crate::dirty::DirtyPages;
use crate::layout::PAGE;
use crate::log::{Log, RingFull, Room};
use crate::memory::Memory;
use crate::options::{LoggedOptions, LoggedStats, Salvage};
use crate::store::PageStore;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use tierdb_base::{FailureLatch, Location, Result, mutant};
use tierdb_device::{BLOCK, Dir, Emulation, Meter};
use tierdb_pmem::{Admitted, Lsn, PersistenceDomain, Pool};
use tierdb_sync::Waited;

/// Bytes that are admitted for every page that was not dirty and is in no slot yet, at the least: what is not a record of
/// its own goes to pages that have been written.
const LEAST_A_PAGE: u64 = 256;

/// A pool in DRAM that a redo log and page checkpoints in a directory make durable.
pub struct LoggedPool<D: Dir> {
    pub(crate) memory: Memory<D::File>,
    pub(crate) name: Arc<str>,
    pub(crate) latch: FailureLatch,
    pub(crate) log: Log<D::File>,
    pub(crate) dirty: DirtyPages,
    pub(crate) store: Mutex<PageStore<D::File>>,
    pub(crate) transient: Mutex<Range<u64>>,
    pub(crate) keep_from: AtomicU64,
    /// Bytes that are admitted and may still be appended, and a block for each who is to append them.
    pub(crate) admitted: AtomicU64,
    pub(crate) closed_clean: AtomicBool,
    pub(crate) salvage: Salvage,
    pub(crate) image_bytes: AtomicU64,
    pub(crate) store_bytes: AtomicU64,
    pub(crate) table_bytes: u64,
    /// Bytes of pages that may leave DRAM from which on a checkpoint is due.
    pub(crate) most_dirty: u64,
    pub(crate) first_lsn: Lsn,
    pub(crate) used_after: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) checkpoint_pages: AtomicU64,
    pub(crate) stall_ns: AtomicU64,
}

impl<D: Dir> LoggedPool<D> {
    /// Creates the files of a pool of zeros in `dir`; on return they and their names are durable.
    ///
    /// `seed` is the store's identity, without which the files cannot be opened. All I/O is counted in
    /// `meter` and, where asked for, slowed to the pace of an emulated device. The first failed write sets `latch`,
    /// and once it is set, by whomever, nothing more is written.
    ///
    /// # Errors
    /// `Invalid` for lengths that do not fit each other; those of the directory if a file is there already.
    pub fn create(
        dir: D,
        options: LoggedOptions,
        seed: u64,
        latch: FailureLatch,
        meter: Meter,
        emulation: Option<Emulation>,
    ) -> Result<Self> {
        crate::recover::create(&dir, &options, seed, latch, meter, emulation)
    }

    /// Opens the pool in `dir` after a close or a crash: the newest table's pages, and the log on top.
    ///
    /// # Errors
    /// `Corrupt` for a page or a table that is damaged, `AcknowledgedDataMissing` for a log with a hole: with
    /// [`LoggedOptions::salvage`] it opens with what is left, also where a read fails, except where no table is whole. `NewerFormat` and
    /// `ForeignTier` for files that are not this build's or not this store's.
    pub fn open(
        dir: D,
        options: LoggedOptions,
        seed: u64,
        latch: FailureLatch,
        meter: Meter,
        emulation: Option<Emulation>,
    ) -> Result<Self> {
        crate::recover::open(&dir, &options, seed, latch, meter, emulation)
    }

    /// Makes all that was flushed durable: one group commit, or none.
    ///
    /// # Errors
    /// As [`Pool::wait`].
    pub fn commit(&self) -> Result<()> {
        self.wait_durable(self.log.appended())
    }

    /// Writes the dirty pages to the image and frees the log before them. Other threads go on.
    ///
    /// # Errors
    /// `NoSpace` if the image may not grow; nothing is lost, and the pool goes on as long as the ring has room.
    /// `Poisoned` after a write failure, and the failure itself for the one it hits.
    pub fn checkpoint(&self) -> Result<()> {
        self.checkpoint_with(&mut self.store.lock(), Purpose::Trim { room: 0 })
    }

    /// Whether the ring, or what DRAM has of a paged pool, is so full that a background thread should make a checkpoint.
    pub fn needs_checkpoint(&self) -> bool {
        let len = self.log.ring().len;
        if self.memory.passing_bytes() >= self.most_dirty {
            return true;
        }
        // What the last one could not free does not call for the next one.
        let since_last = self.used_after.load(Ordering::Relaxed) + len / 8;
        self.log.used() >= (len / 2).max(since_last).min(len / 4 * 3)
    }

    /// Bytes of the ring that recovery would need.
    pub fn log_used(&self) -> u64 {
        self.log.used()
    }

    /// Length of the ring in bytes.
    pub fn log_capacity(&self) -> u64 {
        self.log.ring().len
    }

    /// What was lost, if it was opened with [`LoggedOptions::salvage`].
    pub fn salvage(&self) -> &Salvage {
        &self.salvage
    }

    /// What it has done since it was opened, and the space it takes.
    pub fn stats(&self) -> LoggedStats {
        LoggedStats {
            log_used: self.log_used(),
            log_capacity: self.log_capacity(),
            log_blocks: self.log.blocks(),
            log_bytes: self.log.appended() - self.first_lsn,
            image_bytes: self.image_bytes.load(Ordering::Relaxed),
            table_bytes: self.table_bytes,
            checkpoints: self.checkpoints.load(Ordering::Relaxed),
            checkpoint_pages: self.checkpoint_pages.load(Ordering::Relaxed),
            stall_ns: self.stall_ns.load(Ordering::Relaxed),
            memory_bytes: self.log.memory_bytes()
                + self.dirty.memory_bytes()
                + self.store_bytes.load(Ordering::Relaxed),
        }
    }

    /// Waits for `lsn`, freeing the ring if it is full.
    fn wait_durable(&self, lsn: Lsn) -> Result<()> {
        while let Waited::Unwritten(RingFull) = self.log.wait(lsn, Room::Ordinary)? {
            self.stalled(|| self.free_ring(&mut self.store.lock(), 0))?;
        }
        Ok(())
    }

    /// Makes a checkpoint if the ring does not let `bytes` in, unless another thread did while this one waited for the latch, which it
    /// holds through `store`.
    fn free_ring(&self, store: &mut PageStore<D::File>, bytes: u64) -> Result<()> {
        let fits = self.log.lets_in(0, bytes);
        if !fits {
            // Checkpoints will be made while the caller holds its latches, where none may be refused.
            let pages = self.dirty.count() + bytes / LEAST_A_PAGE;
            store.reserve(pages).map_err(|e| self.failed(e))?;
            self.image_bytes.store(store.image_bytes(), Ordering::Relaxed);
        }
        let room = if fits { bytes } else { 0 };
        if !self.log.is_tight(room) {
            return Ok(());
        }
        self.checkpoint_with(store, Purpose::Trim { room })
    }

    /// Admits `bytes` where the ring is freed for them first. They count under the latch alone: who waits for it is not admitted yet,
    /// and who is refused is not any more when the next one looks.
    fn admit_into_freed(&self, bytes: u64) -> Result<Admitted<'_>> {
        let mut store = self.store.lock();
        let admitted = self.count_admitted(bytes);
        self.free_ring(&mut store, self.all_admitted())?;
        Ok(admitted)
    }

    /// Makes a checkpoint where writers are so far ahead of the last one that what they wrote takes twice the memory it should, unless
    /// another thread did meanwhile.
    #[cold]
    fn bound_memory(&self) -> Result<()> {
        let mut store = self.store.lock();
        if self.memory.passing_bytes() / 2 < self.most_dirty {
            return Ok(());
        }
        self.checkpoint_with(&mut store, Purpose::Trim { room: 0 })
    }

    /// Counts `bytes` as admitted, and a block: of what each appends the last one may be no fuller than that.
    fn count_admitted(&self, bytes: u64) -> Admitted<'_> {
        Admitted::counted(&self.admitted, bytes + BLOCK)
    }

    /// What is admitted to all, where the caller is one of them: its own last block is not counted.
    fn all_admitted(&self) -> u64 {
        self.admitted.load(Ordering::Acquire) - BLOCK
    }

    /// Makes room in the buffer for an append that found none.
    #[cold]
    fn make_room(&self) {
        if let Err(e) = self.stalled(|| self.commit()) {
            // The append has nowhere to go and cannot be refused, so what follows it must not become
            // durable either.
            self.latch.set(e);
        }
    }

    fn stalled<T>(&self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.stall_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    fn check_range(&self, at: u64, len: u64) {
        let inside = at.checked_add(len).is_some_and(|end| end <= self.len());
        assert!(inside, "{len} bytes at {at} are not inside {}", self.name);
    }
}

impl<D: Dir> Pool for LoggedPool<D> {
    #[inline]
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn domain(&self) -> PersistenceDomain {
        PersistenceDomain::Logged
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let LoggedStats { log_blocks, log_bytes, checkpoints, checkpoint_pages, stall_ns, .. } = self.stats();
        vec![
            ("log_blocks", log_blocks),
            ("log_bytes", log_bytes),
            ("checkpoints", checkpoints),
            ("checkpoint_pages", checkpoint_pages),
            ("log_stall_ns", stall_ns),
        ]
    }

    fn dram_bytes(&self) -> Option<u64> {
        Some(self.memory.resident_bytes().unwrap_or(self.len()))
    }

    fn is_in_memory(&self) -> bool {
        !self.memory.is_paged()
    }

    fn place(&self, at: u64) -> Location {
        Location::new(self.name.clone(), at)
    }

    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.memory.word(at).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, at: u64, word: u64) {
        self.memory.word(at).store(word, Ordering::Release);
    }

    #[inline]
    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.memory.word(at).compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }

    #[inline]
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.memory.read(at, out)
    }

    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Vec<Result<()>> {
        self.memory.read_many(reads)
    }

    fn fetch(&self, at: u64, len: u64) -> Result<()> {
        self.check_range(at, len);
        self.memory.fetch(at, len)
    }

    fn release(&self, at: u64, len: u64) {
        self.check_range(at, len);
        // What a checkpoint is at work with is only in DRAM.
        let _store = self.store.lock();
        self.memory.release(at, len, &self.dirty);
    }

    #[inline]
    fn write(&self, at: u64, bytes: &[u8]) {
        // Whoever writes cannot be refused.
        if let Err(error) = self.memory.write(at, bytes) {
            self.latch.set(error);
        }
    }

    #[track_caller]
    fn flush(&self, at: u64, len: u64) {
        if !mutant::keep("flush") {
            return;
        }
        self.check_range(at, len);
        self.log.append_range(&self.memory, &self.dirty, at, len, || self.make_room());
    }

    /// Nothing: what is flushed later is later in the log.
    #[inline]
    fn fence(&self) {}

    #[track_caller]
    fn publish(&self, at: u64, word: u64) {
        if !mutant::keep("publish") {
            self.store(at, word);
            return;
        }
        self.check_range(at, 8);
        // Its page is there before the latch is held.
        self.memory.word(at);
        self.log.append_publish(&self.memory, &self.dirty, at, word, || self.make_room());
    }

    #[inline]
    fn lsn(&self) -> Lsn {
        self.log.appended()
    }

    #[inline]
    #[track_caller]
    fn wait(&self, lsn: Lsn) -> Result<()> {
        if !mutant::keep("wait") || self.log.is_durable(lsn) {
            return Ok(());
        }
        self.wait_durable(lsn)
    }

    /// Who has seen a published word comes after it in the log, so this is a wait for all that was appended.
    #[inline]
    #[track_caller]
    fn persist_word(&self, _at: u64) -> Result<()> {
        self.wait(self.lsn())
    }

    #[inline]
    fn admit(&self, bytes: u64) -> Result<Admitted<'_>> {
        self.latch.check()?;
        if self.memory.passing_bytes() / 2 >= self.most_dirty {
            self.stalled(|| self.bound_memory())?;
        }
        let mut admitted = self.count_admitted(bytes);
        if self.log.is_tight(self.all_admitted()) {
            drop(admitted);
            admitted = self.stalled(|| self.admit_into_freed(bytes))?;
        }
        if !self.log.has_room(bytes) {
            self.stalled(|| self.commit())?;
        }
        Ok(admitted)
    }

    /// Makes a checkpoint when one is due.
    fn upkeep(&self) -> Result<()> {
        if self.needs_checkpoint() { self.checkpoint() } else { Ok(()) }
    }

    /// The range is rounded inwards to pages, and not stored: to be called again after an open.
    fn set_transient(&self, range: Range<u64>) {
        *self.transient.lock() = range.start.div_ceil(PAGE)..range.end.min(self.len()) / PAGE;
    }

    /// Never goes back.
    fn keep_log_from(&self, lsn: Lsn) {
        self.keep_from.fetch_max(lsn, Ordering::AcqRel);
    }

    /// Makes all that was flushed durable and leaves no log behind, so that the next open reads only pages. The
    /// pool can be read afterwards, but no flush is durable any more, and waiting for one fails. Calling it again
    /// does nothing.
    ///
    /// # Errors
    /// As [`LoggedPool::checkpoint`]. What was acknowledged is durable all the same; the next open replays the log.
    fn close(&self) -> Result<()> {
        let mut store = self.store.lock();
        if self.closed_clean.load(Ordering::Acquire) {
            return Ok(());
        }
        self.log.close();
        self.write_log_for_checkpoint()?;
        self.checkpoint_with(&mut store, Purpose::Close)?;
        self.closed_clean.store(true, Ordering::Release);
        Ok(())
    }
}
