//! The flash log (PrismDB §4.1): tables with disjoint key ranges, which are live, and how much space is left.
//!
//! A table is live if a record on the fast tier names it ([`TableRecord`]); these records are the manifest. A
//! table that a migration replaced is kept until the last reader lets it go, then its file is removed. A file that
//! no record names is what a crash left of a migration: it is removed on open.

use crate::config::Options;
use crate::heap::Slots;
use crate::tune::WearBudget;
use std::collections::HashSet;
use std::io::ErrorKind::StorageFull;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tierdb_base::{Error, FailureLatch, Location, Result, Seqno, TierRole};
use tierdb_device::{Cause, Dir, Meter};
use tierdb_engine::{FlashTier, KeyRange};
use tierdb_table::{
    Chain, Direction, EntryRef, ReadAhead, Table, TableDir, TableIter, Writer, WriterOptions,
};

/// Kept free for migrations that free space: this, or a quarter of a directory.
const RESERVE: u64 = 160 << 20;

/// One flash directory.
pub struct FlashDir<D: Dir> {
    pub tables: TableDir<D>,
    pub name: Arc<str>,
    pub medium: &'static str,
    pub capacity: u64,
    pub meter: Meter,
    pub budget: WearBudget,
    used: AtomicU64,
}

/// What a migration may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// It adds to flash: the reserve stays free.
    Growth,
    /// It frees space in the end: all of it.
    Shrink,
}

impl<D: Dir> FlashDir<D> {
    fn limit(&self, limit: Limit, table_bytes: u64) -> u64 {
        match limit {
            Limit::Growth => self.capacity - (self.capacity / 4).min(RESERVE.max(2 * table_bytes)),
            Limit::Shrink => self.capacity,
        }
    }

    /// Takes `bytes` more, if they fit.
    fn take(&self, bytes: u64, limit: u64) -> bool {
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= limit)
            })
            .is_ok()
    }

    fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Bytes of its tables.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }
}

/// All flash directories.
pub struct Flash<D: Dir> {
    pub dirs: Vec<FlashDir<D>>,
    table_bytes: u64,
    latch: FailureLatch,
}

impl<D: Dir> Flash<D> {
    /// The directories of a store whose checksums `store` seeds.
    pub fn new(tiers: Vec<FlashTier<D>>, store: u64, options: &Options, latch: FailureLatch) -> Self {
        let dir = |(number, tier): (usize, FlashTier<D>)| FlashDir {
            name: tier.dir.name(),
            medium: tier.emulation.map_or("flash", |emulation| emulation.name),
            tables: TableDir::new(
                tier.dir,
                store,
                tier.meter.clone(),
                tier.emulation.map(tierdb_device::Pace::new),
            ),
            capacity: tier.capacity,
            meter: tier.meter,
            budget: WearBudget::new(options.flash_bytes_per_day.get(number).copied().flatten()),
            used: AtomicU64::new(0),
        };
        let dirs = tiers.into_iter().enumerate().map(dir).collect();
        Flash { dirs, table_bytes: options.table_bytes, latch }
    }

    /// Opens the live table that `record` names.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: a live table that cannot be opened.
    pub fn open(self: &Arc<Self>, record: &TableRecord, slots: Slots) -> Result<LiveTable<D>> {
        let dir = self.dirs.get(record.dir as usize).ok_or_else(|| {
            Error::invalid(format!(
                "the store has tables in flash directory {}, and {} directories are configured",
                record.dir + 1,
                self.dirs.len()
            ))
        })?;
        let table = dir.tables.open(record.number, Cause::Recovery)?;
        dir.used.fetch_add(table.footer().file_len, Ordering::AcqRel);
        Ok(LiveTable::new(self.clone(), record.dir, table, slots, 0))
    }

    /// The tables whose files are there.
    ///
    /// # Errors
    /// `Io`.
    pub fn files(&self) -> Result<HashSet<TableRecord>> {
        let mut files = HashSet::new();
        for (dir, tables) in (0..).zip(&self.dirs) {
            files.extend(tables.tables.list()?.into_iter().map(|number| TableRecord { dir, number }));
        }
        Ok(files)
    }

    /// That a live table's file is gone.
    pub fn missing(&self, record: TableRecord) -> Error {
        let file = self.dirs.get(record.dir as usize).map_or_else(|| "flash".into(), |dir| dir.name.clone());
        let place = Location { file, offset: 0 };
        Error::corrupt(TierRole::Flash, "the file of a table is not there", place)
    }

    /// Removes those of `files` that `live` does not know.
    ///
    /// # Errors
    /// `Io`.
    pub fn remove_orphans(
        &self,
        files: &HashSet<TableRecord>,
        live: impl Fn(&TableRecord) -> bool,
    ) -> Result<()> {
        for (number, dir) in (0..).zip(&self.dirs) {
            let mut orphans: Vec<u64> = files
                .iter()
                .filter(|file| file.dir == number && !live(file))
                .map(|file| file.number)
                .collect();
            orphans.sort_unstable();
            for table in &orphans {
                dir.tables.remove(*table)?;
            }
            if !orphans.is_empty() {
                dir.tables.sync()?;
            }
        }
        Ok(())
    }

    /// That flash is full.
    pub fn full(&self) -> Error {
        let dir = self.dirs.iter().max_by_key(|dir| dir.capacity.saturating_sub(dir.used()));
        Error::NoSpace {
            tier: TierRole::Flash,
            place: dir.map_or_else(String::new, |dir| dir.name.to_string()),
            used: self.dirs.iter().map(FlashDir::used).sum(),
            capacity: self.dirs.iter().map(|dir| dir.capacity).sum(),
        }
    }

    /// The result of a write or a sync: after one that failed, every write is refused until the store is opened again.
    /// A file system that is full has not failed.
    fn written<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match &error {
            Error::Io { op, source, .. } if source.kind() == StorageFull && *op != "sync" => self.full(),
            Error::Io { .. } => self.latch.set(error),
            _ => error,
        })
    }

    /// Whether every directory has a budget, and has spent it.
    pub fn is_spent(&self) -> bool {
        self.dirs.iter().all(|dir| dir.budget.is_spent())
    }

    /// Whether tables of `bytes` together can be written now.
    pub fn has_room(&self, bytes: u64, limit: Limit) -> bool {
        self.dirs.iter().any(|dir| dir.used() + bytes <= dir.limit(limit, self.table_bytes))
    }
}

/// What the record of a live table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableRecord {
    /// Number of its flash directory.
    pub dir: u32,
    /// Its number.
    pub number: u64,
}

impl TableRecord {
    /// As stored.
    pub fn encode(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.dir.to_le_bytes());
        bytes[4..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// From what is stored.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (dir, number) = bytes.split_first_chunk::<4>()?;
        let number = u64::from_le_bytes(number.try_into().ok()?);
        Some(TableRecord { dir: u32::from_le_bytes(*dir), number })
    }
}

/// A table that is, or was, live.
pub struct LiveTable<D: Dir> {
    flash: Arc<Flash<D>>,
    dir: u32,
    pub table: Arc<Table<D::File>>,
    /// Its record on the fast tier.
    pub slots: Slots,
    /// Whether it could not be read whole: it is not merged any more.
    pub damaged: AtomicBool,
    obsolete: AtomicBool,
    /// Ranges removed by writes up to this one have nothing left in it. Not stored.
    cleaned: Seqno,
    /// Keys of its range that are on the fast tier; under the partition's lock.
    pub fast_keys: AtomicU64,
    /// Reads of popular keys that it answered since it was written.
    pub hot_reads: AtomicU64,
}

impl<D: Dir> LiveTable<D> {
    fn new(flash: Arc<Flash<D>>, dir: u32, table: Table<D::File>, slots: Slots, cleaned: Seqno) -> Self {
        let (damaged, obsolete, fast_keys, hot_reads) = Default::default();
        let table = Arc::new(table);
        LiveTable { flash, dir, table, slots, damaged, obsolete, cleaned, fast_keys, hot_reads }
    }

    /// Whether it may hold versions of keys of `range` that were removed by write `seqno`.
    pub fn may_hold_removed(&self, range: &KeyRange, seqno: Seqno) -> bool {
        self.cleaned < seqno
            && self.table.footer().lowest_seqno < seqno
            && !range.is_after(self.smallest())
            && !range.is_before(self.largest())
    }

    /// Whether it could not be read whole.
    pub fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Acquire)
    }

    /// Its smallest key.
    pub fn smallest(&self) -> &[u8] {
        &self.table.footer().smallest
    }

    /// Its largest key.
    pub fn largest(&self) -> &[u8] {
        &self.table.footer().largest
    }

    /// Bytes of its file.
    pub fn file_len(&self) -> u64 {
        self.table.footer().file_len
    }

    /// What its record says.
    pub fn record(&self) -> TableRecord {
        TableRecord { dir: self.dir, number: self.table.number() }
    }

    /// Its file goes when the last reader has let it go: no record names it any more, durably.
    pub fn retire(&self) {
        self.obsolete.store(true, Ordering::Release);
    }
}

impl<D: Dir> Drop for LiveTable<D> {
    fn drop(&mut self) {
        if self.obsolete.load(Ordering::Acquire)
            && let Some(dir) = self.flash.dirs.get(self.dir as usize)
        {
            // If it fails, the next open removes the file.
            let _ = dir.tables.remove(self.table.number());
            dir.give(self.table.footer().file_len);
        }
    }
}

/// The live tables of a partition, by key.
pub struct TableSet<D: Dir>(Vec<Arc<LiveTable<D>>>);

impl<D: Dir> TableSet<D> {
    /// Of these tables, whose key ranges are disjoint.
    pub fn new(mut tables: Vec<Arc<LiveTable<D>>>) -> Self {
        tables.sort_by(|a, b| a.smallest().cmp(b.smallest()));
        TableSet(tables)
    }

    /// The tables, in the order of their keys.
    pub fn tables(&self) -> &[Arc<LiveTable<D>>] {
        &self.0
    }

    /// The table whose key range holds `key`.
    pub fn find(&self, key: &[u8]) -> Option<&Arc<LiveTable<D>>> {
        let after = self.0.partition_point(|table| table.smallest() <= key);
        self.0[..after].last().filter(|table| key <= table.largest())
    }

    /// Whether a table may hold a version of `key`. Reads nothing.
    pub fn may_hold(&self, key: &[u8]) -> bool {
        self.find(key).is_some_and(|table| table.table.locate(key, Seqno::MAX).is_some())
    }

    /// The keys for which table `number` is merged: from its smallest up to the smallest of the next; the first one's
    /// range begins, and the last one's ends, with the partition's.
    pub fn range_of(&self, number: usize) -> KeyRange {
        let bound = |number: usize| self.0.get(number).map(|table| table.smallest().to_vec());
        let start = if number == 0 { None } else { bound(number) };
        KeyRange {
            start: start.map_or(Bound::Unbounded, Bound::Included),
            end: bound(number + 1).map_or(Bound::Unbounded, Bound::Excluded),
        }
    }

    /// The number of the table in whose range `key` is ([`TableSet::range_of`]). There is a table.
    pub fn number_of(&self, key: &[u8]) -> usize {
        self.0.partition_point(|table| table.smallest() <= key).saturating_sub(1)
    }

    /// The table in whose range `key` is, if there is any.
    pub fn range_holder(&self, key: &[u8]) -> Option<&Arc<LiveTable<D>>> {
        self.0.get(self.number_of(key))
    }

    /// The tables that have keys in `range`.
    pub fn overlapping(&self, range: &KeyRange) -> impl Iterator<Item = (usize, &Arc<LiveTable<D>>)> {
        self.0
            .iter()
            .enumerate()
            .filter(|(_, table)| !range.is_after(table.smallest()) && !range.is_before(table.largest()))
    }

    /// The entries of the tables that have keys in `range`, in this direction; each table is read when it is reached.
    pub fn entries(
        &self,
        range: &KeyRange,
        direction: Direction,
        ahead: ReadAhead,
        cause: Cause,
    ) -> Chain<TableIter<D::File>, impl Iterator<Item = TableIter<D::File>>> {
        let mut tables: Vec<_> = self.overlapping(range).map(|(_, table)| table.table.clone()).collect();
        if direction == Direction::Backward {
            tables.reverse();
        }
        let range = range.clone();
        Chain::new(tables.into_iter().map(move |table| {
            let bounds = (range.start.as_ref().map(Vec::as_slice), range.end.as_ref().map(Vec::as_slice));
            table.iter(bounds, direction, ahead, cause)
        }))
    }

    /// Bytes of DRAM that indexes and filters take.
    pub fn memory_bytes(&self) -> u64 {
        self.0.iter().map(|table| table.table.memory() as u64 + 512).sum()
    }
}

/// A table that was written, and is not live yet.
pub struct NewTable<D: Dir> {
    pub record: TableRecord,
    table: Option<Table<D::File>>,
    flash: Arc<Flash<D>>,
}

impl<D: Dir> NewTable<D> {
    /// Its record, at `slots`, is durable. What ranges removed up to write `cleaned` was left out of it.
    pub fn into_live(mut self, slots: Slots, cleaned: Seqno) -> Option<LiveTable<D>> {
        let table = self.table.take()?;
        Some(LiveTable::new(self.flash.clone(), self.record.dir, table, slots, cleaned))
    }
}

impl<D: Dir> Drop for NewTable<D> {
    /// It never became live.
    fn drop(&mut self) {
        if let (Some(table), Some(dir)) = (self.table.take(), self.flash.dirs.get(self.record.dir as usize)) {
            let len = table.footer().file_len;
            drop(table);
            let _ = dir.tables.remove(self.record.number);
            dir.give(len);
        }
    }
}

/// Writes entries as tables of about the size asked for; no key's versions are in two tables.
pub struct TableBuilder<'b, D: Dir> {
    flash: &'b Arc<Flash<D>>,
    limit: Limit,
    cause: Cause,
    number: &'b dyn Fn() -> u64,
    open: Option<OpenTable<D>>,
    done: Vec<NewTable<D>>,
    written: u64,
}

struct OpenTable<D: Dir> {
    writer: Writer<D>,
    dir: u32,
    /// Bytes taken of the directory for it.
    taken: u64,
}

impl<'b, D: Dir> TableBuilder<'b, D> {
    /// Nothing written yet. `number` gives a number that no table ever had.
    pub fn new(flash: &'b Arc<Flash<D>>, limit: Limit, cause: Cause, number: &'b dyn Fn() -> u64) -> Self {
        TableBuilder { flash, limit, cause, number, open: None, done: Vec::new(), written: 0 }
    }

    fn dir(&self, number: u32) -> &'b FlashDir<D> {
        &self.flash.dirs[number as usize]
    }

    /// Adds an entry; they come in the order of a table.
    ///
    /// # Errors
    /// `NoSpace`; `Io`. The builder is then good for nothing but to be dropped.
    pub fn add(&mut self, entry: &EntryRef<'_>) -> Result<()> {
        let entry_len = (entry.key.len() + entry.value.map_or(0, <[u8]>::len)) as u64;
        if self.open.as_ref().is_some_and(|open| {
            open.writer.last_key() != entry.key
                && (open.writer.file_len() + entry_len / 2 >= self.flash.table_bytes)
        }) {
            self.end_table()?;
        }
        if self.open.is_none() {
            self.begin_table()?;
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        // What it may take in the file, with the keys that separate its blocks.
        let wanted = open.writer.file_len() + entry_len + 3 * entry.key.len() as u64 + (16 << 10);
        let dir = &self.flash.dirs[open.dir as usize];
        if wanted > open.taken {
            if !dir.take(wanted - open.taken, dir.limit(self.limit, self.flash.table_bytes)) {
                return Err(self.flash.full());
            }
            open.taken = wanted;
        }
        self.flash.written(open.writer.add(entry))
    }

    fn begin_table(&mut self) -> Result<()> {
        let room =
            |dir: &FlashDir<D>| dir.limit(self.limit, self.flash.table_bytes).saturating_sub(dir.used());
        let least = self.flash.table_bytes;
        let number = (0..self.flash.dirs.len() as u32).max_by_key(|number| {
            let (dir, room) = (self.dir(*number), room(self.dir(*number)));
            (room >= least && !dir.budget.is_spent(), room, u32::MAX - number)
        });
        let number = number.ok_or_else(|| self.flash.full())?;
        let options =
            WriterOptions { allocate: self.flash.table_bytes.min(1 << 20), ..WriterOptions::default() };
        let created = self.dir(number).tables.create((self.number)(), self.cause, &options);
        let writer = self.flash.written(created)?;
        self.open = Some(OpenTable { writer, dir: number, taken: 0 });
        Ok(())
    }

    fn end_table(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let record = TableRecord { dir: open.dir, number: open.writer.number() };
        let dir = self.dir(open.dir);
        let table = self.flash.written(open.writer.finish()).inspect_err(|_| {
            dir.give(open.taken);
            let _ = dir.tables.remove(record.number);
        })?;
        let len = table.footer().file_len;
        if len > open.taken {
            dir.used.fetch_add(len - open.taken, Ordering::AcqRel);
        } else {
            dir.give(open.taken - len);
        }
        self.written += len;
        dir.budget.spend(len);
        self.done.push(NewTable { record, table: Some(table), flash: self.flash.clone() });
        Ok(())
    }

    /// The tables, whole and durable.
    ///
    /// # Errors
    /// `Io`.
    pub fn finish(mut self) -> Result<(Vec<NewTable<D>>, u64)> {
        self.end_table()?;
        Ok((std::mem::take(&mut self.done), self.written))
    }
}

impl<D: Dir> Drop for TableBuilder<'_, D> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            let (dir, number) = (self.dir(open.dir), open.writer.number());
            drop(open.writer);
            let _ = dir.tables.remove(number);
            dir.give(open.taken);
        }
    }
}
