//! A partition: the keys between two bounds, with what is on the fast tier, and the tables on flash.
//!
//! Invariants, under the partition's lock
//! 1. `index` names the newest version of every key that has one on the fast tier. A key that is not in it has
//!    its newest version in `tables`, if any.
//! 2. Versions that only snapshots see are in `old`, or in tables. Their commit words are free, or are in
//!    `retired`: after a crash nobody sees them.
//! 3. All words of `retired` are free on media before any other word of the partition is published. So a crash
//!    never leaves an older version of a key on the fast tier without the newer one, wherever that went.

use crate::core::hash_of;
use crate::heap::{Heap, Slots};
use crate::index::Index;
use crate::kept::Kept;
use crate::key::Key;
use crate::levels::Levels;
use crate::live::LiveTable;
use crate::promote::Hand;
use crate::record::Head;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tierdb_base::{Seqno, mutant};
use tierdb_device::{Cause, Dir};
use tierdb_engine::KeyRange;
use tierdb_pmem::{Lsn, Pool, Stage};

/// Where the newest version of a key is on the fast tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Byte of its head slot, with flags above.
    place: u64,
    /// The write that made it.
    pub seqno: Seqno,
}

const TOMBSTONE: u64 = 1 << 63;
const LONG: u64 = 1 << 62;
const CLEAN: u64 = 1 << 61;
const DOUBTFUL: u64 = 1 << 60;
const UNREADABLE: u64 = 1 << 59;
const PLACE: u64 = UNREADABLE - 1;

impl Entry {
    /// A version in the slot at byte `at`.
    pub fn new(at: u64, seqno: Seqno, tombstone: bool, long: bool) -> Self {
        let flag = |on: bool, flag: u64| if on { flag } else { 0 };
        Entry { place: at | flag(tombstone, TOMBSTONE) | flag(long, LONG), seqno }
    }

    /// Byte of its head slot.
    pub fn at(self) -> u64 {
        self.place & PLACE
    }

    /// Whether it says that the key was removed.
    pub fn is_tombstone(self) -> bool {
        self.place & TOMBSTONE != 0
    }

    /// Whether its value is kept in parts.
    pub fn is_long(self) -> bool {
        self.place & LONG != 0
    }

    /// The same, copied from flash, where it still is.
    #[must_use]
    pub fn clean(self) -> Self {
        Entry { place: self.place | CLEAN, ..self }
    }

    /// The same, of which damage leaves open what it is, or whether it is live.
    #[must_use]
    pub fn doubtful(self) -> Self {
        Entry { place: self.place | DOUBTFUL, ..self }
    }

    /// Whether it cannot be read because of damage that was found when the store was opened.
    pub fn is_doubtful(self) -> bool {
        self.place & DOUBTFUL != 0
    }

    /// Whether it stays where it is, whatever is migrated: it is doubtful, or a migration could not read it.
    pub fn is_stuck(self) -> bool {
        self.place & (DOUBTFUL | UNREADABLE) != 0
    }

    /// Whether it has a bit in its bucket if it is read: only the fast tier has it, and it is to be read again.
    pub fn is_counted(self) -> bool {
        !self.is_clean() && !self.is_tombstone()
    }

    /// Whether a record with this head is the version of `key` that it says.
    pub fn is_in(self, head: &Head, key: &[u8]) -> bool {
        head.key == key && head.seqno == self.seqno && !self.is_doubtful()
    }

    /// Whether flash has the same version.
    pub fn is_clean(self) -> bool {
        self.place & CLEAN != 0
    }
}

/// A version that was replaced, whose word may still say *live* on media.
struct Retired {
    slots: Slots,
    /// Whether its slots stay in use, for a snapshot.
    hold: bool,
}

/// A range of keys that was removed as one, for what lies in tables.
pub struct RangeTombstone {
    /// Removed are versions below this.
    pub seqno: Seqno,
    /// The keys.
    pub range: KeyRange,
    /// Its record.
    pub slots: Slots,
}

impl RangeTombstone {
    /// Whether it removes the version of `key` that was written with `version`, for who sees writes up to `seqno`.
    pub fn removes(&self, key: &[u8], version: Seqno, seqno: Seqno) -> bool {
        (version < self.seqno || !mutant::keep("tombstone"))
            && (self.seqno <= seqno || !mutant::keep("tombstone"))
            && self.range.contains(key)
    }

    /// Whether it removes all that `table` has, for who sees all writes.
    pub fn removes_all_of<D: Dir>(&self, table: &LiveTable<D>) -> bool {
        table.footer().highest_seqno < self.seqno
            && [table.smallest(), table.largest()].iter().all(|key| self.range.contains(key))
    }
}

/// What of a partition its lock guards.
pub struct State<D: Dir> {
    /// The newest version of each key that has one on the fast tier.
    pub index: Index,
    /// Tombstones in `index`.
    pub tombstones: u64,
    /// Versions for snapshots.
    pub old: Kept,
    retired: Vec<Retired>,
    /// Slots that are free once the migration at work is done: it may still read them.
    limbo: Vec<Slots>,
    /// The keys that are being migrated, and may soon be on flash.
    pub migrating: Option<KeyRange>,
    /// Clean copies in `index`.
    pub copies: u64,
    /// What is on flash.
    pub tables: Arc<Levels<D>>,
    /// Ranges that were removed; some version below may be left in `tables`. Readers of tables have a share of the list.
    pub ranges: Arc<Vec<Arc<RangeTombstone>>>,
    /// Partitions that there are, this one among them.
    pub partitions: usize,
}

/// Writes that have not been waited for. Some may be durable all the same.
#[derive(Clone, Default)]
pub struct Unsettled {
    /// By hash of the key.
    keys: HashMap<u64, Lsn>,
    /// Ranges that were removed.
    ranges: Vec<(Arc<RangeTombstone>, Lsn)>,
}

/// A partition of the key space.
pub struct Partition<D: Dir> {
    state: RwLock<State<D>>,
    /// Held by whoever migrates.
    pub migration: Mutex<()>,
    /// Where copies are looked at next, when some are to be dropped.
    pub hand: Mutex<Hand>,
    /// Durable writes that have not been waited for, where that can be seen.
    unsettled: Mutex<Unsettled>,
    unsettled_count: AtomicUsize,
    /// Whether its keys have gone to other partitions, with what was unsettled.
    is_divided: AtomicBool,
}

impl<D: Dir> Partition<D> {
    /// A partition that holds nothing on the fast tier.
    pub fn new(tables: Levels<D>, ranges: Arc<Vec<Arc<RangeTombstone>>>, partitions: usize) -> Self {
        Partition {
            state: RwLock::new(State {
                index: Index::default(),
                tombstones: 0,
                old: Kept::default(),
                retired: Vec::new(),
                limbo: Vec::new(),
                copies: 0,
                migrating: None,
                tables: Arc::new(tables),
                ranges,
                partitions,
            }),
            migration: Mutex::new(()),
            hand: Mutex::default(),
            unsettled: Mutex::default(),
            unsettled_count: AtomicUsize::new(0),
            is_divided: AtomicBool::new(false),
        }
    }

    /// For reading.
    pub fn read(&self) -> parking_lot::RwLockReadGuard<'_, State<D>> {
        self.state.read()
    }

    /// For changing.
    pub fn write(&self) -> parking_lot::RwLockWriteGuard<'_, State<D>> {
        self.state.write()
    }

    /// A durable write of the key with this hash was published, and is on media after `lsn`.
    pub fn note_unsettled(&self, hash: u64, lsn: Lsn) {
        self.change_unsettled(|unsettled| _ = unsettled.keys.insert(hash, lsn));
    }

    /// The same, of the removal of a range.
    pub fn note_unsettled_range(&self, range: Arc<RangeTombstone>, lsn: Lsn) {
        self.change_unsettled(|unsettled| unsettled.ranges.push((range, lsn)));
    }

    /// All writes up to this one, which this thread has waited for, are on media. Says whether its keys had gone to other partitions
    /// by then, which have to be told as well.
    #[must_use]
    pub fn settle(&self, lsn: Lsn) -> bool {
        self.change_unsettled(|unsettled| {
            unsettled.keys.retain(|_, last| *last > lsn);
            unsettled.ranges.retain(|(_, last)| *last > lsn);
        });
        self.is_divided.load(Ordering::Relaxed)
    }

    /// Its keys go to other partitions: adds what has not been waited for to `all`.
    pub fn hand_over(&self, all: &mut Unsettled) {
        // Before the lock is taken: who settles something behind this, under the lock, sees it.
        self.is_divided.store(true, Ordering::Relaxed);
        let unsettled = self.unsettled.lock();
        for (hash, lsn) in &unsettled.keys {
            let last = all.keys.entry(*hash).or_insert(*lsn);
            *last = (*last).max(*lsn);
        }
        let is_new = |(range, _): &&(Arc<RangeTombstone>, Lsn)| {
            !all.ranges.iter().any(|(known, _)| Arc::ptr_eq(known, range))
        };
        let new: Vec<_> = unsettled.ranges.iter().filter(is_new).cloned().collect();
        all.ranges.extend(new);
    }

    /// Takes over what partitions before this one had not waited for.
    pub fn take_over(&self, unsettled: &Unsettled) {
        self.change_unsettled(|own| *own = unsettled.clone());
    }

    fn change_unsettled(&self, change: impl FnOnce(&mut Unsettled)) {
        let mut unsettled = self.unsettled.lock();
        change(&mut unsettled);
        self.unsettled_count.store(unsettled.keys.len() + unsettled.ranges.len(), Ordering::Release);
    }

    /// Whether there is anything to wait for, before what was seen of many keys is told.
    pub fn any_unsettled(&self) -> bool {
        self.unsettled_count.load(Ordering::Acquire) > 0
    }

    /// What a reader of `key`, which has this hash, has to wait for, before it tells what it saw.
    pub fn unsettled(&self, key: &[u8], hash: impl FnOnce() -> u64) -> Option<Lsn> {
        if self.unsettled_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let unsettled = self.unsettled.lock();
        let ranges = unsettled.ranges.iter().filter(|(range, _)| range.range.contains(key));
        unsettled.keys.get(&hash()).copied().max(ranges.map(|(_, lsn)| *lsn).max())
    }
}

impl<D: Dir> State<D> {
    /// Begins a change: stages that retired slots are free. Follow, once that is drained, with
    /// [`State::release_retired`].
    pub fn stage_retired<P: Pool>(&self, heap: &Heap<P>, stage: &mut Stage<'_, P>) {
        for retired in &self.retired {
            heap.stage_free(stage, retired.slots.at);
        }
    }

    /// The words of retired slots are free on media.
    pub fn release_retired<P: Pool>(&mut self, heap: &Heap<P>) {
        heap.retired.fetch_sub(self.retired.len() as u64, Ordering::Relaxed);
        for retired in std::mem::take(&mut self.retired) {
            if !retired.hold {
                self.release(heap, retired.slots);
            }
        }
    }

    /// Gives up slots whose word is free on media.
    pub fn release<P: Pool>(&mut self, heap: &Heap<P>, slots: Slots) {
        if self.migrating.is_some() {
            self.limbo.push(slots);
        } else {
            heap.give(&slots);
        }
    }

    /// Puts `tables` in place, and counts what is dirty in the ranges of those of the first level that are new or have another range
    /// than before.
    pub fn set_tables(&mut self, tables: Levels<D>) {
        let before = std::mem::replace(&mut self.tables, Arc::new(tables));
        let (before, now) = (before.first(), self.tables.first());
        for (number, table) in now.tables().iter().enumerate() {
            let range = now.range_of(number);
            let was = before.number_of(table.smallest());
            let same = before.tables().get(was).is_some_and(|old| Arc::ptr_eq(old, table));
            if !same || before.range_of(was) != range {
                let dirty = |bounds| self.index.range(bounds).filter(|(_, entry)| !entry.is_clean()).count();
                let keys = bounds(&range).map_or(0, dirty);
                table.dirty_keys.store(keys as u64, Ordering::Relaxed);
            }
        }
    }

    /// The index was taken away.
    pub fn forget_counts(&mut self) {
        (self.tombstones, self.copies) = (0, 0);
    }

    /// Keys of which only the fast tier has the newest version.
    pub fn dirty(&self) -> usize {
        self.index.len() - self.copies as usize
    }

    /// The migration is over.
    pub fn end_migration<P: Pool>(&mut self, heap: &Heap<P>) {
        self.migrating = None;
        for slots in std::mem::take(&mut self.limbo) {
            heap.give(&slots);
        }
    }

    /// The slots of `entry`, a version of `key`. If its list of parts is damaged, or one of an earlier record, they stay in use until the store is
    /// opened again.
    pub fn slots_of<P: Pool>(heap: &Heap<P>, key: &[u8], entry: Entry) -> Slots {
        let is_its = |head: &Head| head.key == key && (entry.is_doubtful() || head.seqno == entry.seqno);
        let head = if entry.is_long() { heap.head(entry.at()).ok() } else { None };
        let parts = head.filter(is_its).map_or(Vec::new(), |head| head.parts);
        Slots { at: entry.at(), parts: parts.into() }
    }

    /// Makes `entry` the newest version of `key`. Returns the one before.
    pub fn insert(&mut self, key: &[u8], entry: Entry) -> Option<Entry> {
        let before = self.index.insert(key, entry);
        self.count(key, before, Some(entry));
        before
    }

    /// Makes `newest`, in the order of keys, all that the index has, where it has nothing: without a search for each.
    pub fn fill(&mut self, newest: Vec<(Key, Entry)>) {
        assert!(self.index.is_empty(), "there is nothing that these could be before");
        for (key, entry) in &newest {
            self.index.push(key, *entry);
            self.count(key, None, Some(*entry));
        }
    }

    /// Counts that `entry` is the newest version of `key` on the fast tier, in place of `before`.
    fn count(&mut self, key: &[u8], before: Option<Entry>, entry: Option<Entry>) {
        let is = |entry: Option<Entry>, what: fn(Entry) -> bool| u64::from(entry.is_some_and(what));
        self.tombstones += is(entry, Entry::is_tombstone);
        self.tombstones -= is(before, Entry::is_tombstone);
        self.copies += is(entry, Entry::is_clean);
        self.copies -= is(before, Entry::is_clean);
        let (was, now) = (is(before, |entry| !entry.is_clean()), is(entry, |entry| !entry.is_clean()));
        if was != now
            && let Some(table) = self.tables.first().range_holder(key)
        {
            table.dirty_keys.fetch_add(now.wrapping_sub(was), Ordering::Relaxed);
        }
        if before.is_some_and(Entry::is_counted)
            && !entry.is_some_and(Entry::is_counted)
            && let Some(bucket) = self.tables.first().bucket_of(key)
        {
            bucket.clear(hash_of(key));
        }
    }

    /// Flash has the version `entry` of `key` too: if it still is the newest, it is a clean copy from now on.
    pub fn mark_clean(&mut self, key: &[u8], entry: Entry) -> bool {
        match self.index.get_mut(key) {
            Some(current) if *current == entry => {
                *current = entry.clean();
                self.count(key, Some(entry), Some(entry.clean()));
                true
            }
            _ => false,
        }
    }

    /// A migration could not read the version `entry` of `key`, which is still the newest: none tries it again.
    pub fn mark_unreadable(&mut self, key: &[u8], entry: Entry) {
        if let Some(current) = self.index.get_mut(key).filter(|current| **current == entry) {
            current.place |= UNREADABLE;
        }
    }

    /// `key` has no version on the fast tier any more.
    pub fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let before = self.index.remove(key)?;
        self.count(key, Some(before), None);
        Some(before)
    }

    /// The version `entry` of `key` was replaced by write `by`, and its word still says *live*. It is kept if the `newest` snapshot that is
    /// open sees it: if that does not, none does.
    pub fn retire<P: Pool>(
        &mut self,
        heap: &Heap<P>,
        key: &[u8],
        entry: Entry,
        by: Seqno,
        newest: Option<Seqno>,
    ) {
        let slots = Self::slots_of(heap, key, entry);
        let keep = newest.is_some_and(|newest| entry.seqno <= newest);
        if keep {
            self.old.add(key, entry, by, slots.clone());
        }
        self.retired.push(Retired { slots, hold: keep });
        heap.retired.fetch_add(1, Ordering::Relaxed);
    }

    /// As [`State::retire`], for a version whose word is free on media already.
    pub fn retire_freed<P: Pool>(
        &mut self,
        heap: &Heap<P>,
        key: &[u8],
        entry: Entry,
        by: Seqno,
        newest: Option<Seqno>,
    ) {
        let slots = Self::slots_of(heap, key, entry);
        if newest.is_some_and(|newest| entry.seqno <= newest) {
            self.old.add(key, entry, by, slots);
        } else {
            self.release(heap, slots);
        }
    }

    /// The snapshot at `closed` has gone, and those at `open` are left: gives up the versions that nobody needs any more.
    pub fn prune_old<P: Pool>(&mut self, heap: &Heap<P>, closed: Seqno, open: &[Seqno]) {
        let released = self.old.release(closed, open).into_iter();
        heap.retired.fetch_add(released.len() as u64, Ordering::Relaxed);
        // The words are staged once more: these slots' first turn may not have come yet.
        self.retired.extend(released.map(|slots| Retired { slots, hold: false }));
    }

    /// Whether slots wait for their words to be free on media.
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// The version of `key` on the fast tier that a snapshot at `seqno` sees.
    pub fn version_at(&self, key: &[u8], seqno: Seqno) -> Option<Entry> {
        if let Some(entry) = self.index.get(key).filter(|entry| entry.seqno <= seqno) {
            return Some(entry);
        }
        self.old.version_at(key, seqno)
    }

    /// Whether the tables that may hold the version of a clean copy of `key` can be read, as far as is known. One that the device once did
    /// not read may take part in migrations again, but does not replace a copy.
    pub fn is_whole_on_flash(&self, key: &[u8]) -> bool {
        let mut tables = self.tables.find(key).peekable();
        tables.peek().is_some() && tables.all(|table| table.is_trusted())
    }

    /// Whether flash may hold a version of `key`, or soon will.
    pub fn flash_may_hold(&self, key: &[u8]) -> bool {
        self.migrating.as_ref().is_some_and(|range| range.contains(key)) && mutant::keep("tombstone")
            || self.tables.may_hold(key, Cause::Foreground) && mutant::keep("tombstone")
    }
}

/// A lower and an upper bound.
pub type Bounds<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

/// `range` as bounds for a map; `None` if it is reversed, and so empty.
pub fn bounds(range: &KeyRange) -> Option<Bounds<'_>> {
    let (start, end) = (range.start.as_ref().map(Vec::as_slice), range.end.as_ref().map(Vec::as_slice));
    let empty = match (start, end) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => {
            from >= to
        }
        _ => false,
    };
    (!empty).then_some((start, end))
}
