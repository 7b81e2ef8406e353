//! The flash log (PrismDB §4.1): tables with disjoint key ranges, which are live, and how much space is left.
//!
//! A table is live if a record on the fast tier names it ([`TableRecord`]); these records are the manifest. A
//! table that a migration replaced is kept until the last reader lets it go, then its file is removed. A file that
//! no record names is what a crash left of a migration: it is removed on open.
//!
//! Where the fast tier is a block device with room beside the pool, tables of the first level lie there, those of all others on flash.

use crate::config::{Metric, Options};
use crate::heap::Slots;
use crate::layout::Layout;
use crate::levels::{FIRST, Level, MOST, TOP};
use crate::live::{LiveTable, Manifest};
use crate::parts::{Home, Places};
use crate::tune::{self, WearBudget};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::io::ErrorKind::StorageFull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tierdb_base::{Error, FailureLatch, Location, Result, TierRole};
use tierdb_device::{Cause, Dir, Meter};
use tierdb_engine::TierDir;
use tierdb_pmem::{Pool, Stage, seal, unseal};
use tierdb_sync::Counter;
use tierdb_table::{Footer, TableDir, file_name};

/// Kept free for migrations that free space: this, or a quarter of a directory.
const RESERVE: u64 = 160 << 20;
/// So long a file system that was full is taken for full.
const FULL_FOR: Duration = Duration::from_secs(300);
/// Directories of the fast tier have numbers from here on. A table's record has three bytes for it.
const FAST: u32 = 1 << 23;
/// Tables for which the fast tier has room above what the first level may take: what one migration writes before the old ones go.
const SPARE_TABLES: u64 = 3;
/// Of a directory of the fast tier, this share is kept free for rewriting its own tables, or [`RESERVE`], or room for as many tables: so that
/// what removes something gets through it where flash is full. Half of it is for what leaves it with less.
const FAST_RESERVE_SHARE: u64 = 16;
const FAST_RESERVE_TABLES: u64 = 6;
/// Tables for which a directory of the fast tier has room at least, or none are written there: a level of a few would only be in the way.
const LEAST_TABLES: u64 = 2 * FAST_RESERVE_TABLES;

/// A directory for tables: of flash, or of a fast block device.
pub struct FlashDir<D: Dir> {
    pub number: u32,
    pub tables: TableDir<D>,
    pub name: Arc<str>,
    pub medium: String,
    pub capacity: u64,
    pub meter: Meter,
    pub budget: WearBudget,
    used: AtomicU64,
    /// Bytes at which its file system turned out to be full, and when.
    full: Mutex<Option<(u64, Instant)>>,
    /// How often a table was begun for which it had no room in the end.
    times_short: AtomicU64,
}

/// What a migration may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// It adds to it: the reserve stays free.
    Growth,
    /// It brings tombstones, which free space sooner or later. Of a fast device, half of the reserve stays free for what brings these
    /// to flash.
    Tombstones,
    /// It frees space in the end: all of it.
    Shrink,
}

/// What a merge may fill of flash, and of a fast device.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub flash: Limit,
    pub fast: Limit,
}

impl Limits {
    /// Of both the same.
    pub fn both(limit: Limit) -> Self {
        Limits { flash: limit, fast: limit }
    }
}

impl<D: Dir> FlashDir<D> {
    fn new(tier: TierDir<D>, number: u32, store: u64, bytes_per_day: Option<u64>) -> Self {
        let pace = tier.emulation.map(tierdb_device::Pace::new);
        FlashDir {
            number,
            name: tier.dir.name(),
            medium: tier.medium(if is_fast(number) { "block device" } else { "flash" }),
            tables: TableDir::new(tier.dir, store, tier.meter.clone(), pace),
            capacity: tier.capacity,
            meter: tier.meter,
            budget: WearBudget::new(bytes_per_day, tune::now()),
            used: AtomicU64::new(0),
            full: Mutex::default(),
            times_short: AtomicU64::new(0),
        }
    }

    /// Whether it is on a fast block device.
    pub fn is_fast(&self) -> bool {
        is_fast(self.number)
    }

    /// Bytes up to which it is filled.
    pub fn limit(&self, limit: Limit, table_bytes: u64) -> u64 {
        if !self.is_fast() {
            let reserve = (self.capacity / 4).min(RESERVE.max(2 * table_bytes));
            return self.capacity - if limit == Limit::Growth { reserve } else { 0 };
        }
        let all = self.capacity.min(self.full_at(Instant::now()));
        let reserve = (all / FAST_RESERVE_SHARE).min(RESERVE).max(FAST_RESERVE_TABLES * table_bytes);
        all.saturating_sub(match limit {
            Limit::Growth => reserve,
            Limit::Tombstones => reserve / 2,
            Limit::Shrink => 0,
        })
    }

    /// The one of `limits` that is for it.
    pub fn limit_of(&self, limits: Limits, table_bytes: u64) -> u64 {
        self.limit(if self.is_fast() { limits.fast } else { limits.flash }, table_bytes)
    }

    /// Bytes that are left up to that.
    pub fn room(&self, limit: Limit, table_bytes: u64) -> u64 {
        self.limit(limit, table_bytes).saturating_sub(self.used())
    }

    /// Takes `bytes` more, if they fit.
    pub fn take(&self, bytes: u64, limit: u64) -> bool {
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= limit)
            })
            .is_ok()
    }

    /// Takes `bytes` more, which are there.
    pub fn add(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Gives back `bytes`.
    pub fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Its file system has no room for what was just tried: a fast device is filled no further for a while, and on flash nothing waits to be
    /// merged.
    pub fn note_full(&self) {
        let now = Instant::now();
        let at = self.used().min(self.full_at(now));
        *self.full.lock() = Some((at, now));
        self.note_short();
    }

    /// Bytes at which its file system turned out to be full, as far as that is known at `now`: who filled it up may have left since.
    fn full_at(&self, now: Instant) -> u64 {
        let lately = |(_, since): &(u64, Instant)| now.saturating_duration_since(*since) < FULL_FOR;
        self.full.lock().filter(lately).map_or(u64::MAX, |(at, _)| at)
    }

    /// It had no room for a table that was begun there.
    pub fn note_short(&self) {
        self.times_short.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes of its tables.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }
}

/// Whether the directory with this number is on a fast block device.
fn is_fast(number: u32) -> bool {
    number >= FAST
}

/// All directories for tables.
pub struct Flash<D: Dir> {
    /// Those of flash, then those of the fast tier.
    all: Vec<FlashDir<D>>,
    /// How many of them are on flash.
    flash: usize,
    /// Bytes of a table, about.
    pub table_bytes: u64,
    /// Whether tables of the first level have buckets.
    pub buckets: bool,
    latch: FailureLatch,
    /// Times that index and filter of a table were read, and of these, from the table's file.
    pub loads: Counter,
    pub loads_from_flash: Counter,
    /// Bytes of memory that indexes and filters take, and are to take at the most.
    loaded: AtomicU64,
    pub most_loaded: AtomicU64,
    /// Tables with them, whose files are open, and the most that are to be.
    open: AtomicU64,
    most_open: u64,
    /// Bytes of them on the fast tier.
    parts: AtomicU64,
    /// Held while budgets are staged, lest an earlier one overwrites a later one.
    staging: Mutex<()>,
}

impl<D: Dir> Flash<D> {
    /// The directories of a store whose checksums `store` seeds.
    pub fn new(
        flash: Vec<TierDir<D>>,
        fast: Vec<TierDir<D>>,
        store: u64,
        options: &Options,
        latch: FailureLatch,
    ) -> Self {
        let count = flash.len();
        let per_day = options.flash_bytes_per_day.iter().copied().chain(std::iter::repeat(None));
        let flash = (0..).zip(flash).zip(per_day);
        let flash = flash.map(|((number, tier), per_day)| FlashDir::new(tier, number, store, per_day));
        let fast = (FAST..).zip(fast).map(|(number, tier)| {
            // Tables that are all of one level would lie anywhere, the cold ones too.
            let is_used = options.levels != Some(1) && tier.capacity >= LEAST_TABLES * options.table_bytes;
            let capacity = if is_used { tier.capacity } else { 0 };
            FlashDir::new(TierDir { capacity, ..tier }, number, store, None)
        });
        let all = flash.chain(fast).collect();
        let (loads, loads_from_flash, loaded, open, parts) = Default::default();
        let most_open = u64::from(options.open_tables);
        let most_loaded = AtomicU64::new(u64::MAX);
        Flash {
            all,
            flash: count,
            table_bytes: options.table_bytes,
            buckets: options.metric == Metric::ApproxM,
            latch,
            loads,
            loads_from_flash,
            loaded,
            most_loaded,
            open,
            most_open,
            parts,
            staging: Mutex::new(()),
        }
    }

    /// The directories of flash.
    pub fn dirs(&self) -> &[FlashDir<D>] {
        &self.all[..self.flash]
    }

    /// Those of fast block devices.
    pub fn fast_dirs(&self) -> &[FlashDir<D>] {
        &self.all[self.flash..]
    }

    /// The directory with this number.
    pub fn dir(&self, number: u32) -> Option<&FlashDir<D>> {
        let dirs = if is_fast(number) { self.fast_dirs() } else { self.dirs() };
        dirs.get((number & !FAST) as usize)
    }

    /// Those in which tables of `level` may lie.
    pub fn dirs_for(&self, level: Level) -> &[FlashDir<D>] {
        if level == FIRST { &self.all } else { self.dirs() }
    }

    /// How often fast devices had no room for a table that was begun there.
    pub fn times_fast_short(&self) -> u64 {
        self.fast_dirs().iter().map(|dir| dir.times_short.load(Ordering::Relaxed)).sum()
    }

    /// Bytes that tables of the first level are to take of the fast tier; 0 where it has no room for tables.
    pub fn fast_bytes(&self) -> u64 {
        let room = |dir: &FlashDir<D>| dir.limit(Limit::Growth, self.table_bytes);
        let whole = self.fast_dirs().iter().map(room).fold(0, u64::saturating_add);
        whole.saturating_sub(SPARE_TABLES * self.table_bytes).max(whole / 2)
    }

    /// Opens the live table that `record` names. Of one whose parts the fast tier has at `home`, its footer is read from there,
    /// and nothing of its file.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: a live table that cannot be opened.
    pub fn open(
        self: &Arc<Self>,
        record: &TableRecord,
        slots: Slots,
        home: Option<Box<dyn Home>>,
    ) -> Result<LiveTable<D>> {
        let file = record.file;
        let dir = self.dir(file.dir).ok_or_else(|| {
            let (tier, count) = if is_fast(file.dir) {
                ("fast", self.fast_dirs().len())
            } else {
                ("flash", self.flash)
            };
            let number = (file.dir & !FAST) + 1;
            Error::invalid(format!(
                "the store has tables in {tier} directory {number}, and {count} such directories are configured"
            ))
        })?;
        let footer = home.as_ref().and_then(|home| {
            Footer::decode(&home.footer().ok()?, &dir.tables.id(file.number), &home.place()).ok()
        });
        let (footer, table) = match footer {
            Some(footer) => (footer, None),
            None => {
                let table = dir.tables.open(file.number, Cause::Recovery)?;
                (table.footer().clone(), Some(table))
            }
        };
        dir.add(footer.file_len);
        Ok(LiveTable::new(self.clone(), *record, footer, table, Manifest { slots, home }, 0))
    }

    /// Goes on with the budgets as the pool's header has them. One that cannot be read begins anew.
    pub fn restore_budgets<P: Pool>(&self, pool: &P, seed: u64) {
        for (number, dir) in (0..).zip(self.dirs()) {
            let at = Layout::budget(number);
            if let Ok(stored) = unseal(pool, seed, at)
                && !dir.budget.restore(stored, tune::now())
                && let Some(stored) = dir.budget.to_store()
            {
                pool.publish(at, seal(seed, at, stored));
                pool.fence();
            }
        }
    }

    /// Stages the budgets as they are now.
    pub fn stage_budgets<P: Pool>(&self, stage: &mut Stage<'_, P>, seed: u64) {
        let _one = self.staging.lock();
        for (number, dir) in (0..).zip(self.dirs()) {
            if let Some(stored) = dir.budget.to_store() {
                stage.word(Layout::budget(number), seal(seed, Layout::budget(number), stored));
            }
        }
    }

    /// The tables whose files are there.
    ///
    /// # Errors
    /// `Io`.
    pub fn files(&self) -> Result<HashSet<TableFile>> {
        let mut files = HashSet::new();
        for FlashDir { number: dir, tables, .. } in &self.all {
            files.extend(tables.list()?.into_iter().map(|number| TableFile { dir: *dir, number }));
        }
        Ok(files)
    }

    /// That a live table's file is gone.
    pub fn missing(&self, file: TableFile) -> Error {
        Error::corrupt(TierRole::Flash, "the file of a table is not there", self.place(file))
    }

    /// Where a table is.
    pub fn place(&self, file: TableFile) -> Location {
        let dir = self.dir(file.dir).map_or("flash", |dir| &dir.name);
        Location::new(format!("{dir}/{}", file_name(file.number)), 0)
    }

    /// Removes those of `files` that `live` does not know.
    ///
    /// # Errors
    /// `Io`.
    pub fn remove_orphans(
        &self,
        files: &HashSet<TableFile>,
        live: impl Fn(&TableFile) -> bool,
    ) -> Result<()> {
        for dir in &self.all {
            let mut orphans: Vec<u64> = files
                .iter()
                .filter(|file| file.dir == dir.number && !live(file))
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
        let dir = self.dirs().iter().max_by_key(|dir| dir.capacity.saturating_sub(dir.used()));
        Error::NoSpace {
            tier: TierRole::Flash,
            place: dir.map_or_else(String::new, |dir| dir.name.to_string()),
            used: self.dirs().iter().map(FlashDir::used).sum(),
            capacity: self.dirs().iter().map(|dir| dir.capacity).sum(),
        }
    }

    /// The result of a write or a sync in `dir`: after one that failed, every write is refused until the store is opened again.
    /// A file system that is full has not failed.
    pub fn written<T>(&self, result: Result<T>, dir: &FlashDir<D>) -> Result<T> {
        self.created(result, dir).map_err(|error| match error {
            Error::Io { .. } => self.latch.set(error),
            _ => error,
        })
    }

    /// The result of making a file in `dir`, in which nothing is yet: if it failed, nothing is lost.
    pub fn created<T>(&self, result: Result<T>, dir: &FlashDir<D>) -> Result<T> {
        result.map_err(|error| match &error {
            Error::Io { op, source, .. } if source.kind() == StorageFull && *op != "sync" => {
                dir.note_full();
                self.full()
            }
            _ => error,
        })
    }

    /// Index and filter of a table are in memory now.
    pub fn note_loaded(&self, bytes: usize) {
        self.loaded.fetch_add(bytes as u64, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes of all indexes and filters that are in memory.
    pub fn loaded_bytes(&self) -> u64 {
        self.loaded.load(Ordering::Relaxed)
    }

    /// They are not any more.
    pub fn note_unloaded(&self, bytes: usize) {
        self.loaded.fetch_sub(bytes as u64, Ordering::Relaxed);
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether one more table may stay open.
    pub fn may_keep_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) < self.most_open
    }

    /// The fast tier has so many bytes more of tables.
    pub fn note_parts(&self, bytes: u64) {
        self.parts.fetch_add(bytes, Ordering::Relaxed);
    }

    /// It has so many less.
    pub fn note_parts_gone(&self, bytes: u64) {
        self.parts.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes that the fast tier has of tables.
    pub fn parts_bytes(&self) -> u64 {
        self.parts.load(Ordering::Relaxed)
    }

    /// Whether indexes and filters take more memory than they are to, or so many files are open that there will soon be no room for another.
    pub fn is_over_loaded(&self) -> bool {
        self.loaded.load(Ordering::Relaxed) > self.most_loaded.load(Ordering::Relaxed)
            || self.open.load(Ordering::Relaxed) > self.most_open / 4 * 3
    }

    /// Bytes of all directories of flash.
    pub fn capacity(&self) -> u64 {
        self.dirs().iter().fold(0, |sum, dir| dir.capacity.saturating_add(sum))
    }

    /// Bytes of all tables.
    pub fn used(&self) -> u64 {
        self.all.iter().map(FlashDir::used).sum()
    }

    /// Whether no table of `level` can be written but to a directory whose budget is spent. One counts as full that may not take the next
    /// table, with an entry as long as a table.
    pub fn is_spent(&self, level: Level) -> bool {
        let dirs = self.dirs_for(level);
        let is_full = |dir: &FlashDir<D>| dir.room(Limit::Growth, self.table_bytes) < 3 * self.table_bytes;
        dirs.iter().any(|dir| dir.budget.is_spent())
            && dirs.iter().all(|dir| dir.budget.is_spent() || is_full(dir))
    }

    /// Whether tables of `level` of `bytes` together can be written now.
    pub fn has_room(&self, level: Level, bytes: u64, limits: Limits) -> bool {
        self.dirs_for(level).iter().any(|dir| dir.used() + bytes <= dir.limit_of(limits, self.table_bytes))
    }

    /// Whether a directory has so much room for `bytes` more that what they replace may stay for a while: a quarter of what it holds without
    /// its reserve is left then.
    pub fn has_room_apart(&self, bytes: u64) -> bool {
        // Of a file system that others fill, too, that is what it could hold when it was full.
        let most =
            |dir: &FlashDir<D>| dir.limit(Limit::Growth, self.table_bytes).min(dir.full_at(Instant::now()));
        self.dirs().iter().any(|dir| dir.used() + bytes <= most(dir) / 4 * 3)
    }
}

/// A table's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableFile {
    /// Number of its flash directory.
    pub dir: u32,
    /// Its number.
    pub number: u64,
}

impl TableFile {
    /// Whether it is on a fast block device.
    pub fn is_fast(self) -> bool {
        is_fast(self.dir)
    }
}

/// What the record of a live table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRecord {
    /// Its file.
    pub file: TableFile,
    /// Its level.
    pub level: Level,
}

impl TableRecord {
    /// As stored: number of the directory (three bytes), the level less one (a byte; 255 for level 0, 254 for level -1), number of the file.
    pub fn encode(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.file.dir.to_le_bytes());
        bytes[3] = (self.level - FIRST).cast_unsigned();
        bytes[4..].copy_from_slice(&self.file.number.to_le_bytes());
        bytes
    }

    /// From what is stored, with where the fast tier has parts of the table.
    pub fn decode(bytes: &[u8]) -> Option<(Self, Places)> {
        let (first, rest) = bytes.split_first_chunk::<4>()?;
        let (number, places) = rest.split_first_chunk::<8>()?;
        let [dir @ .., above] = *first;
        let level = above.cast_signed().checked_add(FIRST).filter(|level| (TOP..=MOST).contains(level))?;
        let dir = u32::from_le_bytes([dir[0], dir[1], dir[2], 0]);
        let file = TableFile { dir, number: u64::from_le_bytes(*number) };
        Some((TableRecord { file, level }, Places::decode(places)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_was_full_is_tried_again() {
        let store = crate::rig::Store::new(132 << 10, crate::rig::options(132 << 10));
        let dir = &store.core().flash.dirs()[0];
        let (now, before) = (Instant::now(), dir.used());
        assert_eq!(dir.full_at(now), u64::MAX);
        dir.add(1000);
        dir.note_full();
        dir.add(1000);
        dir.note_full();
        assert_eq!(dir.full_at(now), before + 1000, "the least counts");
        assert_eq!(dir.full_at(now + FULL_FOR * 2), u64::MAX);
    }

    #[test]
    fn records_of_tables_read_back() {
        for level in TOP..=MOST {
            let record = TableRecord { file: TableFile { dir: 15, number: 1 << 40 }, level };
            assert_eq!(TableRecord::decode(&record.encode()), Some((record, Places::default())));
        }
        let record = TableRecord { file: TableFile { dir: 0, number: 7 }, level: MOST };
        let mut deep = record.encode();
        deep[3] += 1;
        assert_eq!(TableRecord::decode(&deep), None, "a level that there is not");
        let mut above = TableRecord { level: TOP, ..record }.encode();
        above[3] -= 1;
        assert_eq!(TableRecord::decode(&above), None, "nor above all");
    }
}
