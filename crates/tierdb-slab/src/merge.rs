//! The merge of a migration: what leaves the fast tier, and the tables of the range, into new tables.

use crate::build::{NewTable, TableBuilder, Written};
use crate::core::{Core, hash_of};
use crate::descend::MOST_STAYS;
use crate::flash::Limit;
use crate::heap::Record;
use crate::key::Key;
use crate::levels::{FIRST, Level, Levels};
use crate::live::LiveTable;
use crate::partition::{Bounds, RangeTombstone};
use crate::plan::{Plan, Victim};
use crate::promote::Promotion;
use crate::rate::Moved;
use crate::tracker::{Popularity, Threshold};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tierdb_base::{Result, Seqno, mutant};
use tierdb_device::{Cause, Dir};
use tierdb_pmem::Pool;
use tierdb_table::{Direction, EntryRef, Merge, ReadAhead, Retain, Retention, Source};

/// How a merge reads a table.
const ALL: Bounds<'_> = (Bound::Unbounded, Bound::Unbounded);
/// Bytes that a merge reads of a table at once. What others read meanwhile waits for them.
const AHEAD: u64 = 128 << 10;
/// The same, where writers wait for what it frees.
const AHEAD_HURRIED: u64 = 256 << 10;
/// Victims whose records are read at once.
const RECORDS_AHEAD: usize = 32;

/// What an entry takes in a table beside key and value, in bytes, about.
const ENTRY_BYTES: u64 = 16;

/// A migration's plan, and what there was when it began.
pub struct Begun<'m, D: Dir> {
    pub plan: &'m Plan<D>,
    pub victims: Vec<Victim>,
    /// While it goes on, no other one changes them.
    pub levels: Arc<Levels<D>>,
    pub ranges: Arc<Vec<Arc<RangeTombstone>>>,
    /// The last write.
    pub last: Seqno,
}

impl<D: Dir> Begun<'_, D> {
    /// The level above the plan's in which an entry of source `number` (the fast tier, then the plan's tables) stays, if it does.
    fn stays_above(&self, number: Option<usize>, key: &[u8]) -> Option<Level> {
        let table = self.plan.tables.get(number?.checked_sub(1)?)?;
        let stays = table.level() < self.plan.into && !self.plan.range.contains(key) && mutant::keep("level");
        stays.then(|| table.level())
    }

    /// Whether a tombstone of `key` that every snapshot sees may go: no older version is anywhere else on flash.
    fn may_forget(&self, key: &[u8]) -> bool {
        (self.plan.range.contains(key) || !mutant::keep("tombstone"))
            && !(self.levels.may_hold_below(self.plan.into, key, Cause::Migration) && mutant::keep("level"))
    }

    /// Whether a version that a table of the plan has may be replaced in a level above all of these. Only of a key of the plan's range: outside
    /// of that, tables of levels between may be missing.
    fn may_be_replaced_above(&self, key: &[u8]) -> bool {
        self.levels.may_hold_above(self.highest(), key, Cause::Migration) && mutant::keep("level")
    }

    /// The highest level of the plan's tables.
    fn highest(&self) -> Level {
        self.plan.tables.iter().map(|table| table.level()).min().unwrap_or(self.plan.into)
    }

    /// Where tables of the level below `level` begin that the plan's tables may overlap.
    fn borders_below(&self, level: Level) -> Vec<Box<[u8]>> {
        let below = self.levels.all().filter(|(number, _)| *number == level + 1);
        let tables = below.flat_map(|(_, set)| set.overlapping(&self.plan.range));
        tables.map(|(_, table)| table.smallest().into()).collect()
    }
}

/// What of a merge comes to the first level, which is on a faster device, or stays there.
enum Staying<'m, D: Dir> {
    /// Into the second level: what is popular.
    Popular(Popular<'m, D>),
    /// Of a table that is swept: all that it has, but for tombstones up to this write, which every snapshot sees.
    Swept(Seqno),
}

/// What is popular of the keys of the upper table, also what has a newer version on the fast tier, which will come to its place, as long as
/// that leaves it by a quarter smaller, in keys and in bytes.
struct Popular<'m, D: Dir> {
    upper: &'m LiveTable<D>,
    threshold: Threshold,
    keys: u64,
    bytes: u64,
}

impl<D: Dir> Popular<'_, D> {
    /// Whether `entry`, the newest of its key, is.
    fn takes(&mut self, entry: &EntryRef<'_>, popularity: impl FnOnce(u64) -> Popularity) -> bool {
        let Some(value) = entry.value else { return false };
        let len = (entry.key.len() + value.len()) as u64;
        // Between other keys there may be other tables of the first level.
        let is_its = self.upper.footer().covers(entry.key) || !mutant::keep("level");
        let most = |of: u64| (of as f64 * MOST_STAYS) as u64;
        let fits =
            self.bytes + len <= most(self.upper.file_len()) && self.keys < most(self.upper.footer().keys);
        let hash = hash_of(entry.key);
        if !is_its || !fits || !self.threshold.pins_same(popularity(hash), hash) {
            return false;
        }
        (self.keys, self.bytes) = (self.keys + 1, self.bytes + len);
        true
    }
}

/// Key, seqno, and the value if it is not a tombstone.
type Version<'m> = (&'m [u8], Seqno, Option<Vec<u8>>);

/// Versions on the fast tier, read as they are merged.
struct FastSource<'m, P: Pool> {
    heap: &'m crate::heap::Heap<P>,
    victims: std::slice::Iter<'m, Victim>,
    /// The next victims, with what was read of each.
    ahead: VecDeque<(&'m Victim, Option<Result<Record>>)>,
    current: Option<Version<'m>>,
    /// Keys whose record is damaged: they stay where they are.
    damaged: &'m RefCell<HashSet<Key>>,
}

impl<P: Pool> Source for FastSource<'_, P> {
    fn entry(&self) -> Option<EntryRef<'_>> {
        let (key, seqno, value) = self.current.as_ref()?;
        Some(EntryRef { key, seqno: *seqno, value: value.as_deref() })
    }

    fn advance(&mut self) -> Result<()> {
        self.current = None;
        while let Some((Victim { key, entry, .. }, record)) = self.next_victim() {
            if entry.is_tombstone() {
                if !mutant::keep("tombstone") {
                    continue;
                }
                self.current = Some((key, entry.seqno, None));
                return Ok(());
            }
            match record {
                Some(Ok((head, value))) if entry.is_in(&head, key) => {
                    self.current = Some((key, entry.seqno, Some(value)));
                    return Ok(());
                }
                _ => {
                    self.damaged.borrow_mut().insert(key.clone());
                }
            }
        }
        Ok(())
    }
}

impl<'m, P: Pool> FastSource<'m, P> {
    /// The next victim with its record, unless it is a tombstone.
    fn next_victim(&mut self) -> Option<(&'m Victim, Option<Result<Record>>)> {
        if self.ahead.is_empty() {
            let count = self.heap.first_of(self.victims.clone().map(|victim| victim.entry), RECORDS_AHEAD);
            let (now, later) = self.victims.as_slice().split_at(count);
            self.victims = later.iter();
            let records = now.iter().filter(|victim| !victim.entry.is_tombstone());
            let places: Vec<u64> = records.map(|victim| victim.entry.at()).collect();
            let mut read = self.heap.read_many(&places).into_iter();
            let mut record = |victim: &Victim| if victim.entry.is_tombstone() { None } else { read.next() };
            self.ahead.extend(now.iter().map(|victim| (victim, record(victim))));
        }
        self.ahead.pop_front()
    }
}

/// Leaves out what was removed with a range, where no snapshot sees it.
struct WithoutRemoved<S> {
    source: S,
    ranges: Arc<Vec<Arc<RangeTombstone>>>,
    oldest: Seqno,
}

impl<S: Source> Source for WithoutRemoved<S> {
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.source.entry()
    }

    fn advance(&mut self) -> Result<()> {
        loop {
            self.source.advance()?;
            let Some(entry) = self.source.entry() else { return Ok(()) };
            let removed = self.ranges.iter().any(|range| range.removes(entry.key, entry.seqno, self.oldest));
            if !(removed && mutant::keep("tombstone")) {
                return Ok(());
            }
        }
    }
}

/// What the merge of a range made.
pub struct Merged<D: Dir> {
    pub tables: Vec<NewTable<D>>,
    pub written: Written,
    pub entries: u64,
    pub promotions: Vec<Promotion>,
    /// Of the keys of those tables that are of the plan's level, the share that stayed there before, for being popular.
    pub stayed_share: f64,
    /// Bytes of what stays now for being popular, in a table above; `None` where nothing is to.
    pub stayed: Option<u64>,
    /// What ranges removed up to this write was left out.
    pub cleaned: Seqno,
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Merges what `begun` names into new tables, which are durable, and of the first level on a fast device only if that is `on_device`.
    /// Keys of which the fast tier's record does not check go to `damaged`, and stay there. With `promote`, popular values that only tables have come back with them, as many as there is room for.
    ///
    /// # Errors
    /// Those of [`Core::migrate`].
    pub fn merge_range(
        &self,
        begun: &Begun<'_, D>,
        damaged: &RefCell<HashSet<Key>>,
        promote: bool,
        on_device: bool,
    ) -> Result<Merged<D>> {
        let Begun { plan, victims, ranges, last, .. } = begun;
        let last = *last;
        let mut snapshots = self.snapshots.list();
        snapshots.push(last);
        let oldest = snapshots.iter().copied().min().unwrap_or(last);
        let fast = FastSource {
            heap: &self.heap,
            victims: victims.iter(),
            ahead: VecDeque::new(),
            current: None,
            damaged,
        };
        let mut sources: Vec<Box<dyn Source + '_>> = vec![Box::new(fast)];
        let ahead = read_ahead(self.work.is_hurried.load(Ordering::Relaxed));
        for table in &plan.tables {
            let whole = table.table(Cause::Migration)?;
            sources.push(Box::new(whole.iter(ALL, Direction::Forward, ahead, Cause::Migration)));
        }
        let source = Merge::new(sources, Direction::Forward);
        let merged = WithoutRemoved { source, ranges: ranges.clone(), oldest };
        // All tables of the plan's level that have the range take part, so there is no older version elsewhere on flash but in deeper
        // levels. And a record that cannot be read may be one.
        let hides = |key: &[u8]| self.lost.hides(key, None).is_some() && mutant::keep("tombstone");
        let forgets = |key: &[u8]| !hides(key) && begun.may_forget(key);
        let mut kept = Retain::new(merged, Retention::new(snapshots), forgets);
        let victim_bytes: u64 = victims.iter().map(|victim| victim.bytes).sum();
        let (adds, added) = match &victims[..] {
            [] => (Limit::Shrink, 0),
            victims if victims.iter().all(|victim| victim.entry.is_tombstone()) => (Limit::Tombstones, 0),
            _ => (Limit::Growth, victim_bytes),
        };
        if !self.has_room_for(plan, adds, added) {
            return Err(self.flash.full());
        }
        let number = || self.table_number();
        // Where all tables are merged again and again, small ones would be left of many.
        let old_bytes =
            |table: &Arc<LiveTable<D>>| table.footer().data_bytes + ENTRY_BYTES * table.footer().entries;
        let builder = |level: Level| {
            let own =
                |table: &&Arc<LiveTable<D>>| table.level() == level || level == plan.into && !plan.sweep;
            let old_bytes: u64 = plan.tables.iter().filter(own).map(old_bytes).sum();
            let in_equal_tables = if self.goes_up(FIRST + 1) { old_bytes + victim_bytes } else { 0 };
            let of_level = (level, begun.borders_below(level));
            let dirs = if on_device { self.flash.dirs_for(level) } else { self.flash.dirs() };
            let how = (plan.limits(level, adds), Cause::Migration);
            TableBuilder::new(&self.flash, dirs, of_level, in_equal_tables, how, &number)
        };
        let mut new = builder(plan.into);
        // Of each level above: the tables there, and whether what lies behind the range has come.
        let levels: BTreeSet<Level> = plan.tables.iter().map(|table| table.level()).collect();
        let mut above: BTreeMap<Level, _> =
            levels.range(..plan.into).map(|level| (*level, (builder(*level), false))).collect();
        let (mut promotions, mut last_key, mut entries) = (Vec::new(), Vec::new(), 0);
        let mut moved = Moved::new();
        // What is read of tables, whatever becomes of it, in equal parts for all entries that there are.
        let old_entries: u64 = plan.tables.iter().map(|table| table.footer().entries).sum();
        let on_flash = plan.tables.iter().filter(|table| !table.is_fast());
        let from_flash: u64 = on_flash.map(|table| table.file_len()).sum();
        let read_each = from_flash as f64 / (old_entries + victims.len() as u64).max(1) as f64;
        let is_flash_written = !self.goes_up(FIRST + 1) || plan.into > FIRST;
        let threshold = self.threshold(self.pinned_pct());
        let (mut staying, mut stays) = (self.staying(begun, oldest), false);
        let leaving = victims.iter().filter(|victim| !victim.stays);
        let leaving_bytes = || leaving.map(|victim| victim.bytes).sum();
        let mut promotion_room = if promote { self.promotion_room(leaving_bytes()) } else { 0 };
        loop {
            kept.advance()?;
            let Some(entry) = kept.entry() else { break };
            self.reserve_seqnos();
            let source = kept.source().source.current();
            let is_uppers = source == Some(1);
            // Of a key, the first is the newest; the others are for snapshots.
            let newest = last_key != entry.key;
            if newest {
                last_key.clear();
                last_key.extend_from_slice(entry.key);
                stays = match &mut staying {
                    Some(Staying::Popular(popular)) => {
                        popular.takes(&entry, |hash| self.tracker.popularity(hash))
                    }
                    Some(Staying::Swept(oldest)) => {
                        is_uppers && (entry.value.is_some() || entry.seqno > *oldest && mutant::keep("sweep"))
                    }
                    None => false,
                };
            }
            // What is swept is for snapshots to find where it is.
            let stays = stays && (is_uppers || !(plan.sweep && mutant::keep("sweep")));
            let level = if stays { Some(begun.highest()) } else { begun.stays_above(source, entry.key) };
            match level.and_then(|level| Some((level, above.get_mut(&level)?))) {
                Some((level, (above, has_ended))) => {
                    // What is on both sides of the range would lie across it, and be merged with whatever comes there.
                    if level < FIRST && plan.range.is_after(entry.key) && !*has_ended {
                        above.end_table()?;
                        *has_ended = true;
                    }
                    above.add(&entry)?
                }
                None => new.add(&entry)?,
            }
            entries += 1;
            let len = (entry.key.len() + entry.value.map_or(0, <[u8]>::len)) as f64;
            let written = if is_flash_written && !stays { len } else { 0.0 };
            self.keep_rate(&mut moved, written + read_each);
            let len = entry.value.map_or(u64::MAX, |value| (value.len() + entry.key.len()) as u64);
            if newest
                && len <= promotion_room
                && source != Some(0)
                && threshold.pins(self.tracker.popularity(hash_of(entry.key)))
                && plan.range.contains(entry.key)
                && !begun.may_be_replaced_above(entry.key)
            {
                promotion_room -= len;
                let value = entry.value.unwrap_or_default().to_vec();
                let (key, seqno, level) = (entry.key.to_vec(), entry.seqno, plan.into);
                promotions.push(Promotion { key, seqno, value, level });
            }
        }
        // With what was left out.
        let left_out = (old_entries + victims.len() as u64).saturating_sub(entries);
        self.keep_rate(&mut moved, left_out as f64 * read_each);
        let (mut tables, mut written) = new.finish()?;
        for (above, _) in above.into_values() {
            let (mut more, of_them) = above.finish()?;
            tables.append(&mut more);
            written = written.and(of_them);
        }
        self.counters.entries_written.add(entries);
        let stayed_before = |table: &Arc<LiveTable<D>>| table.footer().keys as f64 * table.stayed_share;
        let stayed_before: f64 =
            plan.tables.iter().filter(|table| table.level() == plan.into).map(stayed_before).sum();
        let stayed_share = (stayed_before / entries.max(1) as f64).min(1.0);
        let stayed = match staying {
            Some(Staying::Popular(popular)) => Some(popular.bytes),
            Some(Staying::Swept(_)) | None => None,
        };
        // What a snapshot sees is still there, though it was removed.
        let cleaned = if mutant::keep("tombstone") { oldest } else { last };
        Ok(Merged { tables, written, entries, promotions, stayed_share, stayed, cleaned })
    }

    /// Whether there is room for what the merge of `plan` writes, before anything goes: with `added` bytes of victims, which add what `adds`
    /// says.
    pub fn has_room_for(&self, plan: &Plan<D>, adds: Limit, added: u64) -> bool {
        let has = |level, bytes| self.flash.has_room(level, bytes, plan.limits(level, adds));
        // What stays of a table that is swept is as long as that.
        let stays = |upper: &Arc<LiveTable<D>>| has(upper.level(), upper.file_len());
        has(plan.into, plan.bytes_there() + added) && (!plan.sweep || plan.tables.first().is_none_or(stays))
    }

    /// What stays of a merge into the second level, if that is on a slower device than the first, and all of the upper table is merged; or
    /// of a table that is swept, where the oldest snapshot is one at `oldest`.
    fn staying<'m>(&self, begun: &Begun<'m, D>, oldest: Seqno) -> Option<Staying<'m, D>> {
        let plan = begun.plan;
        if plan.sweep {
            return Some(Staying::Swept(oldest));
        }
        let upper = plan.tables.first().filter(|table| table.level() == FIRST)?;
        (plan.into == FIRST + 1 && self.goes_up(plan.into) && plan.is_all_of(upper)).then(|| {
            let threshold = self.tracker.threshold(self.stay_share.pct());
            Staying::Popular(Popular { upper, threshold, keys: 0, bytes: 0 })
        })
    }

    /// Bytes of records that a migration may copy to the fast tier, if `leaving_bytes` leave it: half of these, and what
    /// is free above the low watermark.
    fn promotion_room(&self, leaving_bytes: u64) -> u64 {
        let slabs = &self.heap.slabs;
        let low = slabs.capacity() / 100 * u64::from(100 - self.options.low_pct);
        leaving_bytes / 2 + slabs.free_bytes().saturating_sub(low)
    }
}

/// How far a merge reads ahead.
fn read_ahead(is_hurried: bool) -> ReadAhead {
    let bytes = if is_hurried { AHEAD_HURRIED } else { AHEAD };
    ReadAhead { first: bytes, most: bytes }
}

/// Reads what a merge reads of `table`, up to an entry that `is_wanted`: its key. All of it if none is.
pub fn read_through<D: Dir>(
    table: &LiveTable<D>,
    mut is_wanted: impl FnMut(&EntryRef<'_>) -> bool,
) -> Result<Option<Vec<u8>>> {
    let whole = table.table(Cause::Migration)?;
    let mut entries = whole.iter(ALL, Direction::Forward, read_ahead(false), Cause::Migration);
    loop {
        entries.advance()?;
        let Some(entry) = entries.entry() else { return Ok(None) };
        if is_wanted(&entry) {
            return Ok(Some(entry.key.to_vec()));
        }
    }
}
