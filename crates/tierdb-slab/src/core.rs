//! What the parts of an engine share.

use crate::cache::Cache;
use crate::commit::CommitSlots;
use crate::config::Options;
use crate::counters::Counters;
use crate::flash::Flash;
use crate::heap::Heap;
use crate::layout::SEQNO_LIMIT;
use crate::levels::{FIRST, Level};
use crate::lost::Lost;
use crate::partition::Partition;
use crate::read_trigger::ReadTrigger;
use crate::snapshots::Snapshots;
use crate::tracker::{Threshold, Tracker};
use crate::tune::{CopiedShare, PinnedShare, StayShare};
use crate::work::Work;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use tierdb_base::{Result, Seqno, checksum};
use tierdb_device::{Dir, Meter};
use tierdb_engine::{Gate, Latencies};
use tierdb_pmem::{PersistenceDomain, Pool, seal};
use tierdb_sync::CommitClock;

/// Seqnos by which the persistent limit is raised.
const SEQNO_STEP: u64 = 1 << STEP_BITS;
/// Memory is looked at once in so many stretches of cursors.
const LOOK_AT_STRETCHES: u32 = 64;
/// Of the limit on media, in units of 2 to this.
pub const STEP_BITS: u32 = 20;

/// Which partition has which keys.
pub struct Router<D: Dir> {
    /// Partition `n` has the keys from bound `n - 1` to before bound `n`.
    pub bounds: Vec<Box<[u8]>>,
    /// The partitions, in the order of their keys.
    pub parts: Vec<Arc<Partition<D>>>,
}

impl<D: Dir> Router<D> {
    /// The number of the partition of `key`.
    pub fn number_of(&self, key: &[u8]) -> usize {
        self.bounds.partition_point(|bound| **bound <= *key)
    }

    /// The partition of `key`.
    pub fn part_of(&self, key: &[u8]) -> &Arc<Partition<D>> {
        &self.parts[self.number_of(key)]
    }
}

/// Everything of an open store.
pub struct Core<P: Pool, D: Dir> {
    pub heap: Heap<P>,
    pub flash: Arc<Flash<D>>,
    pub commits: CommitSlots,
    pub router: RwLock<Router<D>>,
    pub options: Options,
    /// How many levels of tables there may be.
    pub levels: Level,
    pub mode: String,
    pub gate: Gate,
    pub fast_meter: Meter,
    pub clock: CommitClock,
    pub snapshots: Snapshots,
    pub tracker: Tracker,
    pub cache: Cache,
    /// As the life of a table, for what the cache has of the pool.
    pub pool_life: Arc<()>,
    pub read_trigger: ReadTrigger,
    pub pinned: PinnedShare,
    pub copied: CopiedShare,
    pub stay_share: StayShare,
    /// Of what the fast tier may hold, records and tables, the share that is records.
    pub record_share: f64,
    pub lost: Lost,
    /// Whether versions on the fast tier are known that damage has made unreadable: since the store was opened, or a migration met one.
    pub doubtful: AtomicBool,
    /// Apart, since they are tens of KiB, and the rest moves as a store opens.
    pub counters: Box<Counters>,
    pub latencies: Latencies,
    pub work: Work,
    pub seqno_limit: AtomicU64,
    /// What it is at least on media.
    pub durable_limit: AtomicU64,
    /// Stretches that cursors took.
    pub stretches: AtomicU32,
    pub raising: Mutex<()>,
    /// Whether flushes reach media in the order they were made.
    pub ordered: bool,
}

/// Where the clock of a store starts whose seqnos so far are not above `last`. Commit words know the low bits of a seqno only: if each
/// time began with the same ones, the n-th writes of two times would have the same mark, and a damaged record would pass for the older
/// version of its key. Below half a step, so that the first raise of the limit leaves as many as every other one.
pub fn clock_start(last: Seqno) -> Seqno {
    last + checksum(0, &last.to_le_bytes()) % (SEQNO_STEP / 2)
}

/// The hash by which a key is tracked.
pub fn hash_of(key: &[u8]) -> u64 {
    checksum(0x5bd1, key)
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Whether the pool's flushes reach media in their order.
    pub fn is_ordered(pool: &P) -> bool {
        pool.domain() == PersistenceDomain::Logged
    }

    /// What has to be pinned so that `pct` percent of as many of the tracked keys are as the fast tier has records for.
    pub fn threshold(&self, pct: u8) -> Threshold {
        self.tracker.threshold(f64::from(pct) * self.record_share)
    }

    /// Whether what is popular of `level` is to come to the first one, which is on a faster device.
    pub fn goes_up(&self, level: Level) -> bool {
        level > FIRST && self.flash.fast_bytes() > 0
    }

    /// Bytes that the tables of `level` may take, if it is not the last.
    pub fn level_size(&self, level: Level) -> u64 {
        self.options.level_size(level, self.heap.slabs.capacity(), self.flash.fast_bytes())
    }

    /// The oldest snapshot that is open, or that may be opened from now on.
    pub fn oldest_snapshot(&self) -> Seqno {
        // In this order: a snapshot that opens meanwhile sees this write.
        let last = self.clock.last();
        self.snapshots.list().first().copied().unwrap_or(last)
    }

    /// Makes sure that the next seqnos lie below the persistent limit.
    pub fn reserve_seqnos(&self) {
        if self.clock.last() + SEQNO_STEP / 2 < self.seqno_limit.load(Ordering::Acquire) {
            return;
        }
        let _raising = self.raising.lock();
        let limit = self.seqno_limit.load(Ordering::Acquire);
        if self.clock.last() + SEQNO_STEP / 2 >= limit {
            let raised = limit + SEQNO_STEP;
            let pool = &self.heap.pool;
            pool.publish(SEQNO_LIMIT, seal(self.heap.seed, SEQNO_LIMIT, raised >> STEP_BITS));
            pool.fence();
            self.seqno_limit.store(raised, Ordering::Release);
        }
    }

    /// A number for a table, below a limit that is durable: so a table beyond the limit is known to be of a later moment.
    ///
    /// # Errors
    /// Where the limit cannot be made durable.
    pub fn table_number(&self) -> Result<u64> {
        let number = self.clock.begin().seqno();
        if number >= self.durable_limit.load(Ordering::Acquire) {
            let limit = self.seqno_limit.load(Ordering::Acquire);
            self.heap.pool.wait(self.heap.pool.lsn())?;
            self.durable_limit.fetch_max(limit, Ordering::AcqRel);
        }
        Ok(number)
    }

    /// Gives indexes and filters of tables half of what the fixed parts of the memory budget leave at the most, and the object
    /// cache the rest; notes how much of it the index of keys takes.
    pub fn settle_memory(&self) {
        let parts = self.memory_parts();
        let others = |but: &[&str]| -> u64 {
            parts.iter().filter(|(name, _)| !but.contains(name)).map(|(_, bytes)| bytes).sum()
        };
        let fixed = others(&["object cache", "table indexes and filters"]);
        let most = self.options.memory.saturating_sub(fixed) / 2;
        let shed = self.shed_tables(most);
        let rest = others(&["object cache"]).saturating_sub(shed);
        self.cache.set_capacity(self.options.memory.saturating_sub(rest));
        // Of these, less is left when keys go to flash.
        let index: u64 = parts
            .iter()
            .filter(|(name, _)| ["pool image", "index"].contains(name))
            .map(|(_, bytes)| bytes)
            .sum();
        // Rounded up: more than a share is not as much as that.
        let pct = (index * 100).div_ceil(self.options.memory.max(1));
        self.work.memory_pct.store(pct, Ordering::Relaxed);
    }

    /// Called for each stretch of a cursor: once in some, makes room for what the next ones read of tables.
    pub fn look_at_stretches(&self) {
        let number = self.stretches.fetch_add(1, Ordering::Relaxed);
        if number.is_multiple_of(LOOK_AT_STRETCHES) && self.flash.is_over_loaded() {
            self.settle_memory();
        }
    }

    /// Drops indexes and filters that were not asked for lately, or if need be any, until they take `most` bytes of memory.
    /// Returns how many bytes were dropped.
    fn shed_tables(&self, most: u64) -> u64 {
        self.flash.most_loaded.store(most, Ordering::Relaxed);
        let mut shed = 0;
        // The first time around, those that were asked for are passed over.
        for _ in 0..2 {
            if !self.flash.is_over_loaded() {
                break;
            }
            // From anywhere on: of the first tables all may be gone.
            let parts = self.router.read().parts.clone();
            let first = fastrand::usize(..parts.len().max(1));
            for part in parts[first..].iter().chain(&parts[..first]) {
                let tables = part.read().tables.clone();
                for table in tables.tables().take_while(|_| self.flash.is_over_loaded()) {
                    shed += table.shed();
                }
            }
        }
        shed
    }
}
