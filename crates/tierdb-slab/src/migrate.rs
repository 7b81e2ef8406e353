//! Migration between the tiers (PrismDB §4.4, §5.3): one range of a partition, unpopular keys down, popular ones up. And what else
//! rewrites tables: merges to the next level ([`crate::descend`]) are migrations without victims.
//!
//! 1. Under the partition's lock: the range is noted as *migrating*, and the victims are listed. From now on
//!    slots that are given up are not reused, and deletes in the range leave tombstones.
//! 2. Without it: victims and tables of the range are merged into new tables, which are durable when they end.
//! 3. The records of the new tables become live, and those of the old ones free, as one group.
//! 4. Under the lock: the new tables take the place of the old ones; each victim whose version is still the newest
//!    leaves the index, and its slot is freed; popular keys that only flash has are copied to slots.
//!
//! | crash after | on open |
//! |---|---|
//! | tables written | no record names them: they are removed; all victims are on the fast tier |
//! | the group | victims are on both tiers, with one seqno: the fast tier's copy is as good |
//! | some slots freed | some are on flash only |
//! | copies of indexes staged | nothing |
//! | the group that makes a table's record list its copy | either record names the table |
//! | copies staged | nothing |
//! | some copies live | they are on both tiers |
//!
//! A version that a writer has replaced meanwhile is on flash for nothing, with a lower seqno than the newest one.

use crate::build::{NewTable, TableBuilder};
use crate::commit::Change;
use crate::core::{Core, hash_of};
use crate::flash::Limit;
use crate::heap::{FREE_BYTES, Slots};
use crate::key::Key;
use crate::levels::{FIRST, Level, Levels};
use crate::live::{LiveTable, Manifest};
use crate::partition::{Bounds, Entry, Partition, RangeTombstone, State, bounds};
use crate::parts::Places;
use crate::promote::Promotion;
use crate::tracker::Tier;
use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tierdb_base::{Error, ErrorKind, Result, Seqno, mutant};
use tierdb_device::{Cause, Dir};
use tierdb_engine::KeyRange;
use tierdb_pmem::{Pool, Stage};
use tierdb_table::{Direction, EntryRef, Merge, ReadAhead, Retain, Retention, Source};

/// Victims of one migration for each table of its range, in bytes, as a multiple of a table's.
const MOST_TABLES: u64 = 4;
/// Victims whose slots are freed under the lock at once.
const FREE_AT_ONCE: usize = 256;
/// What was not written during this part of as many writes as the fast tier has keys is written to flash with its neighbours.
const LATELY: u64 = 4;
/// How a merge reads a table.
const ALL: Bounds<'_> = (Bound::Unbounded, Bound::Unbounded);
const AHEAD: ReadAhead = ReadAhead { first: 256 << 10, most: 256 << 10 };

/// Which keys leave the fast tier, of those of which flash has not the newest version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    /// Those that are not pinned. Pinned ones that were not written lately go to flash too, but stay as clean copies.
    Unpopular,
    /// All.
    All,
    /// Only tombstones: flash must not grow.
    Tombstones,
    /// None: tables are rewritten.
    None,
}

/// What is merged: keys of a range, and the tables in it.
pub struct Plan<D: Dir> {
    /// The keys that come into `into`, from the fast tier or the level above. No table of that level but those below has any of them, nor
    /// one between them and the keys of these.
    pub range: KeyRange,
    /// The level that the new tables belong to.
    pub into: Level,
    /// Tables of that level, and of the one above; what of these is outside the range stays in their level.
    pub tables: Vec<Arc<LiveTable<D>>>,
}

impl<D: Dir> Plan<D> {
    /// Table `number` of `level` alone, if there is one, with its range.
    pub fn of_table(levels: &Levels<D>, level: Level, number: usize) -> Self {
        Self::of_tables(levels, level, number..number + 1)
    }

    /// Tables `numbers` of `level`, if there are so many, with their range.
    pub fn of_tables(levels: &Levels<D>, level: Level, numbers: Range<usize>) -> Self {
        let set = levels.level(level);
        let (first, last) = (set.range_of(numbers.start), set.range_of(numbers.end - 1));
        let tables = set.tables().get(numbers).unwrap_or_default().to_vec();
        Plan { range: KeyRange { start: first.start, end: last.end }, into: level, tables }
    }

    /// Victims of the migration, in bytes, as a multiple of a table's.
    fn most_victims(&self) -> u64 {
        MOST_TABLES * self.tables.len().max(1) as u64
    }

    /// `table` alone, with its range, if it still is one of `levels`.
    pub fn of_live(levels: &Levels<D>, table: &Arc<LiveTable<D>>) -> Option<Self> {
        let level = table.level();
        let number = levels.level(level).tables().iter().position(|now| Arc::ptr_eq(now, table))?;
        Some(Self::of_table(levels, level, number))
    }
}

/// A migration's plan, and what there was when it began.
struct Begun<'m, D: Dir> {
    plan: &'m Plan<D>,
    victims: Vec<Victim>,
    /// While it goes on, no other one changes them.
    levels: Arc<Levels<D>>,
    ranges: Vec<Arc<RangeTombstone>>,
    /// The last write.
    last: Seqno,
}

impl<D: Dir> Begun<'_, D> {
    /// Whether an entry of source `number` (the fast tier, then the plan's tables) stays in the level above.
    fn stays_above(&self, number: Option<usize>, key: &[u8]) -> bool {
        let table = number.and_then(|number| self.plan.tables.get(number.checked_sub(1)?));
        table.is_some_and(|table| table.level() < self.plan.into)
            && !self.plan.range.contains(key)
            && mutant::keep("level")
    }

    /// Whether a tombstone of `key` that every snapshot sees may go: no older version is anywhere else on flash.
    fn may_forget(&self, key: &[u8]) -> bool {
        self.plan.range.contains(key)
            && !(self.levels.may_hold_below(self.plan.into, key, Cause::Migration) && mutant::keep("level"))
    }

    /// Whether a version that a table of the plan has may be replaced in a level above all of these.
    fn may_be_replaced_above(&self, key: &[u8]) -> bool {
        let highest = self.plan.tables.iter().map(|table| table.level()).min().unwrap_or(self.plan.into);
        self.levels.may_hold_above(highest, key, Cause::Migration) && mutant::keep("level")
    }

    /// Where tables of the level below `level` begin that the plan's tables may overlap.
    fn borders_below(&self, level: Level) -> Vec<Box<[u8]>> {
        let below = self.levels.all().filter(|(number, _)| *number == level + 1);
        let tables = below.flat_map(|(_, set)| set.overlapping(&self.plan.range));
        tables.map(|(_, table)| table.smallest().into()).collect()
    }
}

/// What becomes of a key in a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes to flash.
    Leaves,
    /// It is written to flash, and stays on the fast tier as a clean copy.
    IsCopied,
    /// Nothing.
    Stays,
}

/// A key that is written to flash.
pub struct Victim {
    pub key: Key,
    pub entry: Entry,
    /// Whether it stays on the fast tier too.
    pub stays: bool,
}

/// What a migration did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Migrated {
    /// Migrations that this is of.
    pub migrations: u64,
    /// Keys that left the fast tier.
    pub keys: u64,
    /// Bytes of their slots.
    pub bytes: u64,
    /// Keys that stayed as clean copies of what was written to flash.
    pub cleaned: u64,
    /// Tables that were replaced or dropped.
    pub tables: u64,
    /// Entries of the new tables.
    pub entries: u64,
    /// Bytes of flash by which the new tables are shorter than the old ones.
    pub gained: u64,
}

impl Migrated {
    /// What two did together.
    pub fn and(self, other: Migrated) -> Migrated {
        Migrated {
            migrations: self.migrations + other.migrations,
            keys: self.keys + other.keys,
            bytes: self.bytes + other.bytes,
            cleaned: self.cleaned + other.cleaned,
            tables: self.tables + other.tables,
            entries: self.entries + other.entries,
            gained: self.gained + other.gained,
        }
    }
}

/// Key, seqno, and the value if it is not a tombstone.
type Version<'m> = (&'m [u8], Seqno, Option<Vec<u8>>);

/// Versions on the fast tier, read as they are merged.
struct FastSource<'m, P: Pool> {
    heap: &'m crate::heap::Heap<P>,
    victims: std::slice::Iter<'m, Victim>,
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
        for Victim { key, entry, .. } in self.victims.by_ref() {
            if entry.is_tombstone() {
                self.current = Some((key, entry.seqno, None));
                return Ok(());
            }
            match self.heap.read(entry.at()) {
                Ok((head, value))
                    if head.key == **key && head.seqno == entry.seqno && !entry.is_doubtful() =>
                {
                    self.current = Some((key, entry.seqno, Some(value)));
                    return Ok(());
                }
                Ok(_) | Err(_) => {
                    self.damaged.borrow_mut().insert(key.clone());
                }
            }
        }
        Ok(())
    }
}

/// Leaves out what was removed with a range, where no snapshot sees it.
struct WithoutRemoved<S> {
    source: S,
    ranges: Vec<Arc<RangeTombstone>>,
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
            if !self.ranges.iter().any(|range| range.removes(entry.key, entry.seqno, self.oldest)) {
                return Ok(());
            }
        }
    }
}

/// What the merge of a range made.
struct Merged<D: Dir> {
    tables: Vec<NewTable<D>>,
    bytes: u64,
    entries: u64,
    promotions: Vec<Promotion>,
    /// What ranges removed up to this write was left out.
    cleaned: Seqno,
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Migrates `plan` of `part`, whose `migration` the caller holds.
    ///
    /// # Errors
    /// `NoSpace` if flash has no room for the new tables; `Corrupt` if a table of the range is damaged; `Io`. Then
    /// nothing is changed.
    pub fn migrate(
        &self,
        part: &Partition<D>,
        plan: &Plan<D>,
        victims: Victims,
        promote: bool,
    ) -> Result<Migrated> {
        let begun = {
            let mut state = part.write();
            let listed =
                if victims == Victims::None { Vec::new() } else { self.victims(&state, plan, victims) };
            if listed.is_empty() && (victims != Victims::None || plan.tables.is_empty()) {
                return Ok(Migrated::default());
            }
            state.migrating = Some(plan.range.clone());
            // Under the lock: ranges that writes up to this one removed are in the list. And before the list of
            // snapshots: one that is not in it sees this write, or a later one.
            let (levels, ranges) = (state.tables.clone(), state.ranges.clone());
            Begun { plan, victims: listed, levels, ranges, last: self.clock.last() }
        };
        let damaged = RefCell::default();
        // Before tables are written that could not take the place of others.
        let most = if begun.victims.is_empty() { MOST_TABLES } else { plan.most_victims() };
        let admitted = self.heap.admit(self.admit_migration(most, &begun));
        self.measure_overlap(begun.levels.first(), &plan.tables, &begun.victims);
        let done = admitted.and_then(|()| self.merge_range(&begun, &damaged, promote)).and_then(|merged| {
            let (entries, bytes) = (merged.entries, merged.bytes);
            self.replace_tables(part, &begun, merged).map(|promotions| {
                let mut migrated = self.free_victims(part, &begun.victims, &damaged.borrow());
                migrated.migrations = 1;
                (migrated.tables, migrated.entries) = (plan.tables.len() as u64, entries);
                let old: u64 = plan.tables.iter().map(|table| table.file_len()).sum();
                migrated.gained = old.saturating_sub(bytes);
                let tables = {
                    let state = part.read();
                    self.hand_over(&state, begun.levels.first(), &plan.tables);
                    state.tables.clone()
                };
                self.add_parts(&tables);
                promotions.into_iter().for_each(|promotion| self.promote(part, promotion, None));
                migrated
            })
        });
        part.write().end_migration(&self.heap);
        if let Ok(migrated) = &done {
            self.counters.migrations.add(1);
            self.counters.demoted.add(migrated.keys);
            self.counters.cleaned.add(migrated.cleaned);
        }
        done
    }

    /// The keys of the range of `plan` that are to be written to flash, as many as one migration takes.
    fn victims(&self, state: &State<D>, plan: &Plan<D>, which: Victims) -> Vec<Victim> {
        let Some(bounds) = bounds(&plan.range) else { return Vec::new() };
        let fate = self.fates(state, which);
        let mut left = plan.most_victims() * self.options.table_bytes;
        let mut found = Vec::new();
        for (key, entry) in state.index.range::<[u8], _>(bounds) {
            let stays = match fate(key, *entry) {
                Fate::Leaves => false,
                Fate::IsCopied => true,
                Fate::Stays => continue,
            };
            found.push(Victim { key: key.clone(), entry: *entry, stays });
            left = left.saturating_sub(self.bytes_of(*entry));
            if left == 0 {
                break;
            }
        }
        found
    }

    /// What becomes of keys of the partition in a migration.
    pub fn fates(&self, state: &State<D>, which: Victims) -> impl Fn(&[u8], Entry) -> Fate {
        let threshold = self.tracker.threshold(self.pinned_pct());
        // As many writes ago as a share of what the fast tier holds: what was not written since, is not written soon.
        let parts = u64::from(self.options.partitions);
        let lately = self.clock.last().saturating_sub(state.index.len() as u64 * parts / LATELY);
        move |key, entry| {
            let leaves = match which {
                Victims::All => true,
                Victims::Tombstones => entry.is_tombstone(),
                Victims::Unpopular => {
                    entry.is_tombstone() || !threshold.pins(self.tracker.popularity(hash_of(key)))
                }
                Victims::None => false,
            };
            if entry.is_clean() || entry.is_stuck() {
                Fate::Stays
            } else if leaves {
                Fate::Leaves
            } else if which == Victims::Unpopular && entry.seqno < lately {
                Fate::IsCopied
            } else {
                Fate::Stays
            }
        }
    }

    /// Bytes of the slots of `entry`.
    pub fn bytes_of(&self, entry: Entry) -> u64 {
        let head = self.heap.slabs.slot_bytes(entry.at()).unwrap_or(0);
        let parts =
            if entry.is_long() { self.heap.head(entry.at()).map_or(0, |head| head.value_len) } else { 0 };
        head + parts as u64
    }

    fn merge_range(
        &self,
        begun: &Begun<'_, D>,
        damaged: &RefCell<HashSet<Key>>,
        promote: bool,
    ) -> Result<Merged<D>> {
        let Begun { plan, victims, ranges, last, .. } = begun;
        let last = *last;
        let mut snapshots = self.snapshots.list();
        snapshots.push(last);
        let oldest = snapshots.iter().copied().min().unwrap_or(last);
        let fast = FastSource { heap: &self.heap, victims: victims.iter(), current: None, damaged };
        let mut sources: Vec<Box<dyn Source + '_>> = vec![Box::new(fast)];
        for table in &plan.tables {
            let whole = table.table(Cause::Migration)?;
            sources.push(Box::new(whole.iter(ALL, Direction::Forward, AHEAD, Cause::Migration)));
        }
        let source = Merge::new(sources, Direction::Forward);
        let merged = WithoutRemoved { source, ranges: ranges.clone(), oldest };
        // All tables of the range take part, so there is no older version elsewhere on flash but in deeper levels. And a record that
        // cannot be read may be one.
        let forgets = |key: &[u8]| self.lost.hides(key, None).is_none() && begun.may_forget(key);
        let mut kept = Retain::new(merged, Retention::new(snapshots), forgets);
        let old_bytes: u64 = plan.tables.iter().map(|table| table.file_len()).sum();
        let limit = if victims.iter().all(|victim| victim.entry.is_tombstone()) {
            Limit::Shrink
        } else {
            Limit::Growth
        };
        let victim_bytes: u64 = victims.iter().map(|victim| self.bytes_of(victim.entry)).sum();
        let most = if limit == Limit::Shrink { old_bytes } else { old_bytes + victim_bytes };
        if !self.flash.has_room(most, limit) {
            return Err(self.flash.full());
        }
        let number = || self.clock.begin().seqno();
        let builder = |level: Level| {
            let of_level = (level, begun.borders_below(level));
            TableBuilder::new(&self.flash, of_level, (limit, Cause::Migration), &number)
        };
        let (mut new, mut above) = (builder(plan.into), builder(plan.into.max(FIRST + 1) - 1));
        let (mut promotions, mut last_key, mut entries) = (Vec::new(), Vec::new(), 0);
        let threshold = self.tracker.threshold(self.pinned_pct());
        let mut promotion_room = if promote { self.promotion_room(victim_bytes) } else { 0 };
        loop {
            kept.advance()?;
            let Some(entry) = kept.entry() else { break };
            self.reserve_seqnos();
            let source = kept.source().source.current();
            let stays_above = begun.stays_above(source, entry.key);
            if stays_above {
                above.add(&entry)?
            } else {
                new.add(&entry)?
            }
            entries += 1;
            // Of a key, the first is the newest; the others are for snapshots.
            let newest = last_key != entry.key;
            if newest {
                last_key.clear();
                last_key.extend_from_slice(entry.key);
            }
            let len = entry.value.map_or(u64::MAX, |value| (value.len() + entry.key.len()) as u64);
            if newest
                && len <= promotion_room
                && source != Some(0)
                && threshold.pins(self.tracker.popularity(hash_of(entry.key)))
                && !begun.may_be_replaced_above(entry.key)
            {
                promotion_room -= len;
                let value = entry.value.unwrap_or_default().to_vec();
                promotions.push(Promotion { key: entry.key.to_vec(), seqno: entry.seqno, value });
            }
        }
        let ((mut tables, bytes), (mut rest, more)) = (new.finish()?, above.finish()?);
        tables.append(&mut rest);
        self.counters.entries_written.add(entries);
        Ok(Merged { tables, bytes: bytes + more, entries, promotions, cleaned: oldest })
    }

    /// Bytes that a migration flushes which writes so many tables.
    fn admit_migration(&self, tables: u64, begun: &Begun<'_, D>) -> u64 {
        (tables + 1) * self.heap.admit_bytes(0, 64) + 4096 + begun.victims.len() as u64 * FREE_BYTES
    }

    /// Steps 3 and the first half of 4. Returns what is to be promoted.
    fn replace_tables(
        &self,
        part: &Partition<D>,
        begun: &Begun<'_, D>,
        merged: Merged<D>,
    ) -> Result<Vec<Promotion>> {
        let (heap, plan, old) = (&self.heap, begun.plan, &begun.plan.tables);
        heap.admit(self.admit_migration(merged.tables.len() as u64, begun))?;
        let mut stage = Stage::new(&*heap.pool);
        let mut changes: Vec<Change> = Vec::new();
        let mut records: Vec<(Slots, Places)> = Vec::new();
        let mut room = true;
        for table in &merged.tables {
            let places = self.write_parts(&mut stage, table.parts());
            let Some(written) = heap.write_table(&mut stage, table.record, &places) else {
                heap.give_parts(&places);
                room = false;
                break;
            };
            changes.push(written.commit);
            records.push((written.slots, places));
        }
        for table in old {
            let word_at = heap.slabs.word_at(table.record_at())?;
            if table.level() == plan.into || mutant::keep("level") {
                changes.push((word_at, heap.slabs.free_word(word_at)));
            }
        }
        self.flash.stage_budgets(&mut stage, heap.seed);
        let redo = if room { heap.stage_redo(&mut stage, &changes) } else { None };
        let Some(redo) = redo else {
            records.iter().for_each(|(slots, _)| heap.give(slots));
            return Err(self.fast_full());
        };
        heap.install(stage, redo, &changes, &self.commits);
        self.counters.tables_written.add(merged.tables.len() as u64);
        self.counters.tables_replaced.add(old.len() as u64);
        self.counters.table_bytes.add(merged.bytes);
        let live: Vec<Arc<LiveTable<D>>> = merged
            .tables
            .into_iter()
            .zip(records)
            .filter_map(|(table, (slots, places))| {
                let manifest = Manifest { slots, home: heap.home_of(&places) };
                table.into_live(manifest, merged.cleaned).map(Arc::new)
            })
            .collect();
        {
            let mut state = part.write();
            let replaced = |table: &Arc<LiveTable<D>>| old.iter().any(|old| Arc::ptr_eq(old, table));
            let tables = state.tables.tables().filter(|table| !replaced(table)).cloned().chain(live);
            let tables = Levels::new(tables.collect());
            state.set_tables(tables);
        }
        // The old tables' files go only when nothing can bring their records back.
        heap.pool.wait(heap.pool.lsn())?;
        for table in old {
            heap.give(&table.retire());
        }
        Ok(merged.promotions)
    }

    /// Frees the slots of those victims whose version is still the newest, or marks them as clean copies. Those that are `damaged` are
    /// left out from now on: a table that is rewritten for them gains nothing. Their words are admitted.
    pub fn free_victims(&self, part: &Partition<D>, victims: &[Victim], damaged: &HashSet<Key>) -> Migrated {
        let heap = &self.heap;
        let mut migrated = Migrated::default();
        for victims in victims.chunks(FREE_AT_ONCE) {
            let state = &mut *part.write();
            let mut stage = Stage::new(&*heap.pool);
            state.stage_retired(heap, &mut stage);
            let _drained = stage.drain();
            state.release_retired(heap);
            let mut stage = Stage::new(&*heap.pool);
            let mut freed = Vec::new();
            for Victim { key, entry, stays } in victims {
                if state.index.get(key) != Some(entry) {
                    continue;
                }
                if damaged.contains(key) {
                    state.mark_unreadable(key, *entry);
                    self.doubtful.store(true, Ordering::Relaxed);
                    continue;
                }
                if *stays {
                    migrated.cleaned += u64::from(state.mark_clean(key, *entry));
                    continue;
                }
                migrated.keys += 1;
                migrated.bytes += self.bytes_of(*entry);
                freed.push(State::<D>::slots_of(heap, *entry));
                heap.stage_free(&mut stage, entry.at());
                state.remove(key);
                self.tracker.moved(hash_of(key), Tier::Flash);
            }
            let _drained = stage.drain();
            freed.into_iter().for_each(|slots| state.release(heap, slots));
        }
        migrated
    }

    /// Bytes of records that a migration may copy to the fast tier, if `victim_bytes` leave it: half of these, and what
    /// is free above the low watermark.
    fn promotion_room(&self, victim_bytes: u64) -> u64 {
        let slabs = &self.heap.slabs;
        let low = slabs.capacity() / 100 * u64::from(100 - self.options.low_pct);
        victim_bytes / 2 + slabs.free_bytes().saturating_sub(low)
    }

    /// The share of the tracked keys that stay, in percent.
    pub fn pinned_pct(&self) -> u8 {
        self.pinned.pct()
    }

    /// The share of the tracked keys of which the fast tier has copies, in percent.
    pub fn copied_pct(&self) -> u8 {
        self.copied.pct(self.pinned_pct())
    }

    /// That the fast tier is full.
    pub fn fast_full(&self) -> Error {
        let slabs = &self.heap.slabs;
        Error::NoSpace {
            tier: tierdb_base::TierRole::Fast,
            place: self.heap.pool.place(0).file.to_string(),
            used: slabs.used_bytes(),
            capacity: slabs.capacity(),
        }
    }

    /// As [`Core::migrate`]; tables that turn out to be damaged are left out from now on, and those that the device does not read
    /// until nothing else is left.
    pub fn migrate_or_mark(
        &self,
        part: &Partition<D>,
        plan: &Plan<D>,
        victims: Victims,
        promote: bool,
    ) -> Result<Migrated> {
        let done = self.migrate(part, plan, victims, promote);
        match &done {
            Err(error @ (Error::Corrupt { .. } | Error::Io { op: "read", .. })) => {
                if let [table] = &*plan.tables {
                    self.leave_out(table, error, true);
                    return Ok(Migrated::default());
                }
                // Of several, which one it is, each by its own error: what is above a damaged table is to be merged with the fast tier as ever.
                let failed: Vec<Option<Error>> =
                    plan.tables.iter().map(|table| read_through(table).err()).collect();
                let all_whole = failed.iter().all(Option::is_none);
                for (table, own) in plan.tables.iter().zip(failed) {
                    match own {
                        Some(own) => self.leave_out(table, &own, true),
                        // What was read at the second try is not to be trusted less from now on.
                        None if all_whole => self.leave_out_for_now(table, error, false),
                        None => {}
                    }
                }
                Ok(Migrated::default())
            }
            _ => done,
        }
    }

    /// Leaves `table`, which could not be read, out of migrations: for good if it is damaged, else until nothing else is left, and then
    /// `error` is the reason why there is no room. One that is `suspect` replaces no copy from now on.
    pub fn leave_out(&self, table: &LiveTable<D>, error: &Error, suspect: bool) {
        if error.kind() == ErrorKind::Corrupt {
            table.damaged.store(true, Ordering::Release);
        } else {
            self.leave_out_for_now(table, error, suspect);
        }
    }

    fn leave_out_for_now(&self, table: &LiveTable<D>, error: &Error, suspect: bool) {
        table.mark_unreadable(suspect);
        *self.work.unreadable.lock() = Some(error.clone());
    }
}

/// Reads what a merge reads of `table`.
fn read_through<D: Dir>(table: &LiveTable<D>) -> Result<()> {
    let whole = table.table(Cause::Migration)?;
    let mut entries = whole.iter(ALL, Direction::Forward, AHEAD, Cause::Migration);
    loop {
        entries.advance()?;
        if entries.entry().is_none() {
            return Ok(());
        }
    }
}
