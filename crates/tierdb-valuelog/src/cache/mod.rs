//! Scan-aware Value Cache: copies of values on flash, in DRAM (PRISM §4.4).
//!
//! The cache has no index. Whoever reads a value from flash inserts the record and publishes the slot it is
//! given beside the value's location; whoever finds a slot there asks for exactly that entry at exactly that
//! location, and gets its value or nothing. So a slot that was given to another entry meanwhile answers
//! nothing, and evicting does not write to the index: the next reader of an evicted entry replaces the slot
//! that leads nowhere.
//!
//! Reads take no latch: protected by an epoch, they check the copy, take a share of it, and count. The lists of the replacement
//! policy are kept by [`Cache::maintain`], under a latch that only it, and readers who found the cache full,
//! take.
//!
//! What the caller owes, so that no read is answered with an older value
//! 1. After publishing it reads the location again, and the filling of the chunk: if one of them is another than before the
//!    record was read, it takes the slot back and calls [`Cache::remove`].
//! 2. Whoever changes a location looks for a slot afterwards, and calls [`Cache::relocate`] if the record
//!    only moved, else [`Cache::remove`].
//! 3. Whoever replaces a published slot by another, or fails to publish one, removes it.
//!
//! Of 1 and 2, at least one sees the other's write, since both have a sequentially consistent fence in between.
//!
//! Memory: [`Cache::memory_bytes`] counts copies, slots, lists and all else the cache allocated, with the
//! allocator's overhead, and never exceeds the capacity by what is inserted: room is reserved before it is
//! used. The memory of what is evicted is kept for what comes next (`spare`), as far as the capacity has room for it, and counted. What is given back
//! is no longer counted, though callers that it was lent to ([`Value`], [`Member`]) or running reads may have it for some time: some hundreds of
//! copies at the most, as long as no read takes long.
//!
//! What is evicted in the background is handed out, for the second level ([`crate::second_level`]).
//!
//! Read in this order: `table` (slots), `policy`, `lists`, `spare`, then `upkeep`.

mod lists;
mod policy;
mod regions;
mod spare;
mod table;
#[cfg(test)]
mod tests;
mod upkeep;

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU64, AtomicUsize};

use crossbeam_epoch::{self as epoch, Guard};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use tierdb_engine::{CacheStats, Value};
use tierdb_sync::Counter;

use lists::{Lists, MAX_CHAIN};
use policy::Policy;
pub use regions::Reader;
use regions::Regions;
pub use spare::Copied;
use spare::{Spare, kept_bytes, memory_for};
pub use table::Slot;
use table::{Cell, Table};
pub use upkeep::{Gone, Member};

/// A copy of a record on flash.
struct Cached {
    record: Copied,
    entry: u64,
    word: AtomicU64,
    /// The word that it was read by.
    origin: u64,
    /// The filling of its chunk then.
    filling: u32,
    /// See [`Cache::insert`].
    known: bool,
}

impl Cached {
    fn cost(&self) -> u64 {
        cost(self.record.memory_len())
    }
}

/// Bytes that an allocation of `len` takes: a header of eight, in steps of sixteen, as allocators commonly
/// do.
fn heap_bytes(len: usize) -> u64 {
    (len as u64 + 8).next_multiple_of(16).max(32)
}

/// Bytes that an allocation of `len` takes that is shared, with its two counts of references.
fn shared_bytes(len: usize) -> u64 {
    heap_bytes(2 * size_of::<usize>() + len)
}

/// Bytes that a copy takes in so much memory.
fn cost(memory: usize) -> u64 {
    shared_bytes(memory) + heap_bytes(size_of::<Cached>())
}

/// The cached part of a scan.
struct ScanRange {
    /// Slots and their entries, in the order of keys.
    members: Box<[(Slot, u64)]>,
    /// Reading it took many reads.
    scattered: bool,
}

/// Bytes that a queued range of so many slots takes.
fn range_bytes(len: usize) -> u64 {
    heap_bytes(len * size_of::<(Slot, u64)>())
}

/// Copies of so many bytes are freed as soon as no read is running that may have them; of shorter ones some hundred wait
/// for each other.
const SOON_FREED: u64 = 16 << 10;

/// Bytes that memory brings at once, and how many times that of a value: the processor sees by itself that the rest follows.
const CACHE_LINE: usize = 64;
const FIRST_LINES: usize = 4;

/// Most ranges that wait to be chained; more are forgotten, which costs a scan some locality and nothing
/// else.
const MAX_RANGES: usize = 64;

/// The cache. See the module's description.
pub struct Cache {
    policy: Policy,
    table: Table,
    lists: Mutex<Lists>,
    regions: Regions,
    /// Scan ranges that wait to be chained.
    ranges: Mutex<Vec<ScanRange>>,
    /// Memory of copies that were evicted.
    spare: Spare,
    hits: Counter,
    misses: Counter,
    capacity: AtomicU64,
    /// All bytes the cache takes, or is about to.
    used: CachePadded<AtomicU64>,
    entries: AtomicUsize,
    evictions: AtomicU64,
}

impl Cache {
    /// An empty cache of at most `capacity` bytes, its own structures included.
    pub fn new(capacity: u64) -> Self {
        Self::with_policy(capacity, Policy::TWO_Q)
    }

    fn with_policy(capacity: u64, policy: Policy) -> Self {
        let regions = Regions::new(capacity);
        let ranges = heap_bytes(MAX_RANGES * size_of::<ScanRange>());
        let fixed = size_of::<Self>() as u64 + Lists::heap_bytes() + regions.heap_bytes() + ranges;
        Cache {
            policy,
            table: Table::new(),
            lists: Mutex::new(Lists::new()),
            regions,
            ranges: Mutex::new(Vec::with_capacity(MAX_RANGES)),
            spare: Spare::default(),
            hits: Counter::default(),
            misses: Counter::default(),
            capacity: AtomicU64::new(capacity),
            used: CachePadded::new(AtomicU64::new(fixed)),
            entries: AtomicUsize::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// Changes the capacity. A lower one is reached by [`Cache::maintain`]; until then who inserts has to make room for it.
    ///
    /// Slots are not given back: a cache keeps 40 bytes for each copy it ever held at once. To shrink to a
    /// small part, start a new cache; published slots of the old one answer nothing there.
    pub fn set_capacity(&self, bytes: u64) {
        self.capacity.store(bytes, Relaxed);
    }

    /// The value of `entry`, if `slot` holds a copy of the record at exactly `word`. Counts a hit or a miss.
    ///
    /// Takes no latch and allocates nothing.
    #[inline]
    pub fn get(&self, slot: Option<Slot>, entry: u64, word: u64) -> Option<Value> {
        let value = slot.and_then(|slot| {
            self.lookup(slot, entry, word, |cell, cached| {
                cell.touch(self.policy.max_heat);
                cached.value()
            })
        });
        if value.is_some() {
            self.hits.add(1)
        } else {
            self.misses.add(1)
        }
        value
    }

    /// As [`Cache::get`] for each of `wanted`, in their order. Memory is asked for all at once, so it takes less time than
    /// one by one.
    pub fn get_many(&self, wanted: &[(Option<Slot>, u64, u64)], guard: &Guard) -> Vec<Option<Value>> {
        let copy = |slot: Option<Slot>| {
            let cell = self.table.get(slot?.index())?;
            Some((cell, cell.cached.get(guard)?))
        };
        // Three rounds, so that no look into memory waits for the one before it.
        let mut copies: Vec<_> = wanted.iter().map(|(slot, ..)| copy(*slot)).collect();
        for (copy, (_, entry, word)) in copies.iter_mut().zip(wanted) {
            *copy = copy.filter(|(_, cached)| cached.is(*entry, *word));
        }
        let hits = copies.iter().flatten().count() as u64;
        self.hits.add(hits);
        self.misses.add(wanted.len() as u64 - hits);
        let value = |(cell, cached): (&Cell, &Cached)| {
            cell.touch(self.policy.max_heat);
            cached.value()
        };
        let values: Vec<_> = copies.into_iter().map(|copy| copy.map(value)).collect();
        // And one for the first bytes of each, which whoever asked reads next.
        let first = |value: &Value| {
            value.iter().step_by(CACHE_LINE).take(FIRST_LINES).fold(0, |sum, byte| sum ^ byte)
        };
        std::hint::black_box(values.iter().flatten().fold(0, |sum, value| sum ^ first(value)));
        values
    }

    /// Caches a copy of the record of `entry` just read at `word` in a `filling` of its chunk. What readers want is its last part, the
    /// value, which begins at byte `value`. It is `known` if it, or its part of flash, was read before. Returns the slot to publish.
    ///
    /// `None` if it is not to be cached: it is larger than an eighth of the capacity, or the cache is full
    /// and there is not soon room. A reader that finds the cache full makes room itself, in bounded time;
    /// [`Cache::maintain`] is there to spare it that.
    ///
    /// # Panics
    /// If `value` lies behind the record.
    pub fn insert(
        &self,
        entry: u64,
        (origin, filling): (u64, u32),
        record: &[u8],
        value: usize,
        known: bool,
    ) -> Option<Slot> {
        assert!(value <= record.len(), "the value begins inside the record");
        let memory_len = memory_for(record.len());
        let cost = cost(memory_len);
        if cost > self.capacity() / 8 || cost > u64::from(u32::MAX) {
            return None;
        }
        // It is counted already.
        let spare = self.spare.take(memory_len);
        let counted = if spare.is_some() { kept_bytes(memory_len) } else { 0 };
        if !self.reserve(cost - counted) && !self.make_room(cost - counted) {
            self.release(counted);
            return None;
        }
        self.entries.fetch_add(1, Relaxed);
        let (record, word) = (Copied::new(record, value, spare), AtomicU64::new(origin));
        let cached = Box::new(Cached { record, entry, word, origin, filling, known });
        let slot = self.place(cached);
        if slot.is_none() {
            self.entries.fetch_sub(1, Relaxed);
            self.release(cost);
        }
        slot
    }

    /// Keeps the copy of `entry` valid after its record moved from `old` to `new`.
    pub fn relocate(&self, slot: Slot, entry: u64, old: u64, new: u64) {
        self.lookup(slot, entry, old, |_, cached| {
            // Fails only if another moved it first.
            let _ = cached.word.compare_exchange(old, new, AcqRel, Relaxed);
        });
    }

    /// Drops the copy of `entry`, if `slot` holds one, and says whether that was read since the policy last looked.
    pub fn remove(&self, slot: Slot, entry: u64) -> Option<bool> {
        let cell = self.table.get(slot.index())?;
        let was_read = cell.heat.load(Relaxed) > 0;
        let held = self.empty(cell, |cached| cached.entry == entry, &epoch::pin()).is_some();
        if held {
            self.table.queue(slot.index());
        }
        held.then_some(was_read)
    }

    /// For a cursor, to ask whether what it reads together from flash is to be cached.
    pub fn reader(&self) -> Reader<'_> {
        self.regions.reader()
    }

    /// Says that a scan found these slots, of these entries, in this order of keys. When one of them is
    /// evicted, [`Cache::maintain`] hands out all, to be written together (PRISM §4.4, figure 3). It hands out at once
    /// those that are `scattered`.
    pub fn chain(&self, slots: &[(Slot, u64)], scattered: bool) {
        for range in slots.chunks(MAX_CHAIN) {
            let bytes = range_bytes(range.len());
            if range.len() < 2 || !self.reserve(bytes) {
                continue;
            }
            let mut ranges = self.ranges.lock();
            if ranges.len() < MAX_RANGES {
                ranges.push(ScanRange { members: range.into(), scattered });
            } else {
                self.release(bytes);
            }
        }
    }

    /// Whether [`Cache::maintain`] is wanted now, for readers not to have to make room themselves: less than
    /// a 64th of the capacity is left beside memory that is kept for copies to come.
    pub fn pressure(&self) -> bool {
        let capacity = self.capacity();
        self.used_beside_spare() > capacity - capacity / 64
    }

    /// Whether there is room for copies that nobody asked for: an eighth of the capacity, as mostly after an open.
    pub fn is_roomy(&self) -> bool {
        let capacity = self.capacity();
        self.used_beside_spare() < capacity - capacity / 8
    }

    /// Hits, misses, and what is cached.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.get(),
            misses: self.misses.get(),
            entries: self.entries.load(Relaxed) as u64,
            bytes: self.memory_bytes(),
            capacity: self.capacity(),
            evictions: self.evictions.load(Relaxed),
        }
    }

    /// Bytes that the cache takes, itself included.
    pub fn memory_bytes(&self) -> u64 {
        self.used.load(Relaxed)
    }

    fn capacity(&self) -> u64 {
        self.capacity.load(Relaxed)
    }

    /// All bytes but those of memory that is kept for copies to come.
    fn used_beside_spare(&self) -> u64 {
        self.used.load(Relaxed).saturating_sub(self.spare.bytes())
    }

    #[inline]
    fn lookup<T>(
        &self,
        slot: Slot,
        entry: u64,
        word: u64,
        then: impl FnOnce(&Cell, &Cached) -> T,
    ) -> Option<T> {
        let cell = self.table.get(slot.index())?;
        let guard = epoch::pin();
        let cached = cell.cached.get(&guard)?;
        cached.is(entry, word).then(|| then(cell, cached))
    }

    /// Empties a cell if it holds a copy that is `meant`, and gives its bytes back, or keeps its memory for copies to come. Returns the copy.
    fn empty<'g>(
        &self,
        cell: &'g Cell,
        meant: impl FnOnce(&Cached) -> bool,
        guard: &'g Guard,
    ) -> Option<&'g Cached> {
        let cached = cell.cached.take_if(meant, guard)?;
        self.entries.fetch_sub(1, Relaxed);
        let (cost, memory) = (cached.cost(), kept_bytes(cached.record.memory_len()));
        let others = self.used_beside_spare().saturating_sub(cost);
        let given_back = self.spare.keep(&cached.record, self.capacity().saturating_sub(others));
        self.release(cost - memory + given_back);
        if cached.cost() >= SOON_FREED {
            guard.flush();
        }
        Some(cached)
    }

    /// Takes bytes of the capacity, if there are so many left beside memory that is kept for copies to come, which is given back for them.
    fn reserve(&self, bytes: u64) -> bool {
        let capacity = self.capacity();
        let more = |used: u64| used.checked_add(bytes).filter(|&after| after <= capacity);
        let take = || self.used.fetch_update(Relaxed, Relaxed, more).is_ok();
        take() || {
            let lacking = self.memory_bytes().saturating_add(bytes).saturating_sub(capacity);
            (lacking == 0 || self.give_spare_back(lacking)) && take()
        }
    }

    /// Gives back so many bytes of the memory that is kept for copies to come, or all there is. Says whether there was any.
    fn give_spare_back(&self, bytes: u64) -> bool {
        let given_back = self.spare.shrink(self.spare.bytes().saturating_sub(bytes));
        self.release(given_back);
        given_back > 0
    }

    fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }
}

impl Cached {
    /// Whether it is of the record of `entry` at `word`.
    #[inline]
    fn is(&self, entry: u64, word: u64) -> bool {
        self.entry == entry && self.word.load(Acquire) == word
    }

    #[inline]
    fn value(&self) -> Value {
        self.record.value()
    }
}
