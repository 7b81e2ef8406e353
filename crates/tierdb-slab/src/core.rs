//! What the parts of an engine share, and how a key becomes a value.

use crate::cache::Cache;
use crate::commit::CommitSlots;
use crate::config::Options;
use crate::counters::Counters;
use crate::flash::Flash;
use crate::heap::Heap;
use crate::layout::SEQNO_LIMIT;
use crate::levels::{Level, Levels};
use crate::live::LiveTable;
use crate::lost::Lost;
use crate::partition::{Entry, Partition, RangeTombstone, State};
use crate::read_trigger::ReadTrigger;
use crate::snapshots::Snapshots;
use crate::tracker::{Tier, Tracker};
use crate::tune::PinnedShare;
use crate::work::Work;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_base::{Result, Seqno, checksum};
use tierdb_device::{Cause, Dir, Meter};
use tierdb_engine::{Gate, Latencies, Value};
use tierdb_pmem::{Lsn, PersistenceDomain, Pool, seal};
use tierdb_sync::CommitClock;
use tierdb_table::Found;

/// The workload is looked at once in so many reads.
const LOOK_AT_READS: u32 = 1024;
/// Seqnos by which the persistent limit is raised.
const SEQNO_STEP: u64 = 1 << STEP_BITS;
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
    pub read_trigger: ReadTrigger,
    pub pinned: PinnedShare,
    pub lost: Lost,
    pub counters: Counters,
    pub latencies: Latencies,
    pub work: Work,
    pub seqno_limit: AtomicU64,
    pub raising: Mutex<()>,
    /// Whether flushes reach media in the order they were made.
    pub ordered: bool,
}

/// What tables have to be searched for a key, as of one moment.
pub struct OnFlash<D: Dir> {
    pub tables: Arc<Levels<D>>,
    pub ranges: Vec<Arc<RangeTombstone>>,
}

impl<D: Dir> OnFlash<D> {
    /// The tables of a partition.
    pub fn of(state: &State<D>) -> Self {
        OnFlash { tables: state.tables.clone(), ranges: state.ranges.clone() }
    }

    /// Whether a version of `key` written with `version` was removed with a range before `seqno`.
    pub fn is_removed(&self, key: &[u8], version: Seqno, seqno: Seqno) -> bool {
        self.ranges.iter().any(|range| range.removes(key, version, seqno))
    }
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

    /// Waits for what a reader has seen and its writer has not been told of yet.
    fn settle(&self, lsn: Option<Lsn>) -> Result<()> {
        lsn.map_or(Ok(()), |lsn| self.heap.pool.wait(lsn))
    }

    /// The value of `key` as of now.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        if fastrand::u32(..LOOK_AT_READS) == 0 {
            self.look_at_reads();
        }
        self.get_as_of(key, Seqno::MAX)
    }

    /// The value of `key` as a snapshot at `seqno` sees it.
    pub fn get_as_of(&self, key: &[u8], seqno: Seqno) -> Result<Option<Value>> {
        let router = self.router.read();
        let part = router.part_of(key);
        let state = part.read();
        let unsettled = part.unsettled(key, || hash_of(key));
        if let Some(entry) = state.version_at(key, seqno) {
            let value = if entry.is_tombstone() { None } else { Some(self.value_of(&state, key, entry)?) };
            drop(state);
            drop(router);
            self.settle(unsettled)?;
            self.counters.fast_hits.add(1);
            self.tracker.touch(hash_of(key), Tier::Fast);
            return Ok(value);
        }
        let on_flash = OnFlash::of(&state);
        drop(state);
        drop(router);
        self.settle(unsettled)?;
        self.get_on_flash(&on_flash, key, seqno)
    }

    /// The value of `entry`, the version of `key` that is on the fast tier. Under the partition's lock.
    /// Of a clean copy that is damaged, flash has the value.
    pub fn value_of(&self, state: &State<D>, key: &[u8], entry: Entry) -> Result<Value> {
        let error = match self.heap.read(entry.at()) {
            Ok((head, value)) if head.key == key && head.seqno == entry.seqno && !entry.is_doubtful() => {
                return Ok(Value::from(value));
            }
            Ok(_) => self.heap.damaged(entry.at()),
            Err(error) => error,
        };
        let copied = entry.is_clean().then(|| state.tables.version(key, entry.seqno)).flatten();
        copied.map(Value::from).ok_or_else(|| error.with_key(key))
    }

    fn get_on_flash(&self, on_flash: &OnFlash<D>, key: &[u8], seqno: Seqno) -> Result<Option<Value>> {
        let hash = hash_of(key);
        let note = |live: &LiveTable<D>| {
            let popularity = self.tracker.touch(hash, Tier::Flash);
            live.hot_reads.fetch_add(u64::from(popularity.is_some()), Ordering::Relaxed);
            popularity
        };
        // A value is cached only if it is the newest in its table, and was not removed with a range: what no
        // range tombstone, no damage and no snapshot can make another one. It counts if no level above has the key.
        let plain = seqno == Seqno::MAX && on_flash.ranges.is_empty() && self.lost.is_empty();
        let mut newest = None;
        for live in on_flash.tables.find(key) {
            if let Some(value) = plain.then(|| self.cache.get(live.number(), key, hash)).flatten() {
                self.counters.cache_hits.add(1);
                note(live);
                return Ok(Some(value));
            }
            let table = live.table(Cause::Foreground);
            let found = table.and_then(|table| table.get(key, seqno, Cause::Foreground));
            if let Some(found) = found.map_err(|error| error.with_key(key))? {
                newest = Some((live, found));
                break;
            }
        }
        let version = newest.as_ref().map(|(_, found)| found.seqno);
        self.lost.check(&self.heap, key, version)?;
        let Some((live, Found { seqno: version, value: Some(value) })) = newest else {
            self.counters.misses.add(1);
            return Ok(None);
        };
        self.counters.flash_hits.add(1);
        if on_flash.is_removed(key, version, seqno) {
            return Ok(None);
        }
        let popularity = note(live);
        if !plain {
            return Ok(Some(Value::from(value)));
        }
        self.promote_read((&on_flash.tables, live), key, version, &value, popularity);
        Ok(Some(self.cache.insert(live.number(), key, hash, value)))
    }

    /// Gives indexes and filters of tables half of what the fixed parts of the memory budget leave at the most, and the object
    /// cache the rest; says whether the index of keys takes too much.
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
        self.work.over_memory.store(index > self.options.memory / 4 * 3, Ordering::Relaxed);
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
            for part in &self.router.read().parts {
                let tables = part.read().tables.clone();
                for table in tables.tables().take_while(|_| self.flash.is_over_loaded()) {
                    shed += table.shed();
                }
            }
        }
        shed
    }
}
