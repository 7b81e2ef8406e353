//! Writing tables.

use crate::flash::{Flash, FlashDir, Limit, Limits, TableFile, TableRecord};
use crate::levels::Level;
use crate::live::{LiveTable, Manifest};
use crate::tune;
use std::sync::Arc;
use tierdb_base::{Result, Seqno};
use tierdb_device::{Cause, Dir};
use tierdb_table::{EMPTY_LEN, EntryRef, Parts, Table, Writer, WriterOptions};

/// A table that was written, and is not live yet.
pub struct NewTable<D: Dir> {
    pub record: TableRecord,
    table: Option<Table<D::File>>,
    flash: Arc<Flash<D>>,
}

impl<D: Dir> NewTable<D> {
    /// Its footer, index and filter.
    pub fn parts(&self) -> Option<Parts> {
        self.table.as_ref().map(Table::parts)
    }

    /// Its record is durable. What ranges removed up to write `cleaned` was left out of it.
    pub fn into_live(mut self, manifest: Manifest, cleaned: Seqno) -> Option<LiveTable<D>> {
        let table = self.table.take()?;
        let footer = table.footer().clone();
        Some(LiveTable::new(self.flash.clone(), self.record, footer, Some(table), manifest, cleaned))
    }
}

impl<D: Dir> Drop for NewTable<D> {
    /// It never became live.
    fn drop(&mut self) {
        if let (Some(table), Some(dir)) = (self.table.take(), self.flash.dir(self.record.file.dir)) {
            let len = table.footer().file_len;
            drop(table);
            let _ = dir.tables.remove(self.record.file.number);
            dir.give(len);
        }
    }
}

/// Writes entries as tables of about the size asked for; no key's versions are in two tables.
pub struct TableBuilder<'b, D: Dir> {
    flash: &'b Arc<Flash<D>>,
    dirs: &'b [FlashDir<D>],
    level: Level,
    /// Where tables of the next level begin, in descending order, as far as they have not been passed.
    borders: Vec<Box<[u8]>>,
    /// Bytes of a table.
    full: u64,
    limits: Limits,
    cause: Cause,
    number: &'b dyn Fn() -> Result<u64>,
    open: Option<OpenTable<'b, D>>,
    done: Vec<NewTable<D>>,
    written: Written,
}

/// Bytes of tables, and of those that are on flash.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    pub all: u64,
    pub flash: u64,
}

impl Written {
    /// Of two levels.
    pub fn and(self, other: Written) -> Written {
        Written { all: self.all + other.all, flash: self.flash + other.flash }
    }
}

struct OpenTable<'b, D: Dir> {
    writer: Writer<D>,
    dir: &'b FlashDir<D>,
    /// Bytes taken of the directory for it.
    taken: u64,
}

impl<'b, D: Dir> TableBuilder<'b, D> {
    /// Nothing written yet, for `level`, in some of `dirs`, of about `bytes` bytes in entries, which make tables of one size if that is known.
    /// `number` gives a number that no table ever had. Tables end, where that makes them not much smaller, at one of `borders`, the keys
    /// with which those of the next level begin: so that fewer of these are merged with each, and there are keys that no table lies across.
    pub fn new(
        flash: &'b Arc<Flash<D>>,
        dirs: &'b [FlashDir<D>],
        (level, mut borders): (Level, Vec<Box<[u8]>>),
        bytes: u64,
        (limits, cause): (Limits, Cause),
        number: &'b dyn Fn() -> Result<u64>,
    ) -> Self {
        borders.sort_unstable_by(|one, other| other.cmp(one));
        let tables = bytes.div_ceil(flash.table_bytes.saturating_sub(EMPTY_LEN).max(1)).max(1);
        // Not a full one and what is left over.
        let full = if tables > 1 { EMPTY_LEN + bytes.div_ceil(tables) } else { flash.table_bytes };
        let (open, done, written) = Default::default();
        TableBuilder { flash, dirs, level, borders, full, limits, cause, number, open, done, written }
    }

    /// Adds an entry; they come in the order of a table.
    ///
    /// # Errors
    /// `NoSpace`; `Io`. The builder is then good for nothing but to be dropped.
    pub fn add(&mut self, entry: &EntryRef<'_>) -> Result<()> {
        let entry_len = (entry.key.len() + entry.value.map_or(0, <[u8]>::len)) as u64;
        let mut at_border = false;
        while self.borders.pop_if(|border| **border <= *entry.key).is_some() {
            at_border = true;
        }
        if self.open.as_ref().is_some_and(|open| {
            let (len, full) = (open.writer.file_len(), self.full);
            let quarter = full.saturating_sub(EMPTY_LEN) / 4;
            let is_too_long = open.dir.is_fast() && entry_len > self.flash.table_bytes;
            open.writer.last_key() != entry.key
                && (len + entry_len / 2 >= full || at_border && len + quarter >= full || is_too_long)
        }) {
            self.end_table()?;
        }
        // What it may take in the file, with the keys that separate its blocks.
        let most = entry_len + 3 * entry.key.len() as u64 + (16 << 10);
        if self.open.is_none() {
            self.begin_table(entry_len, most)?;
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        let wanted = open.writer.file_len() + most;
        if wanted > open.taken {
            if !open.dir.take(wanted - open.taken, open.dir.limit_of(self.limits, self.flash.table_bytes)) {
                open.dir.note_short();
                return Err(self.flash.full());
            }
            open.taken = wanted;
        }
        self.flash.written(open.writer.add(entry), open.dir)
    }

    /// Begins a table whose first entry has so many bytes, and takes `most` at the most.
    fn begin_table(&mut self, entry_len: u64, most: u64) -> Result<()> {
        // Its last entry may be as long as that, and begin just before the table is full.
        let least = 2 * self.flash.table_bytes + entry_len;
        // Of the reserve of a fast device, which is small, not more than is needed.
        let least_fast = if self.limits.fast == Limit::Growth { least } else { most };
        let limit = |dir: &FlashDir<D>| dir.limit_of(self.limits, self.flash.table_bytes);
        let room = |dir: &FlashDir<D>| limit(dir).saturating_sub(dir.used());
        // All of it is taken at once of a fast device, which is nearly full most of the time, where others look for room, too. And it has
        // no reserve for tables of any length.
        let fast = self.dirs.iter().filter(|dir| dir.is_fast() && room(dir) >= least_fast);
        let fast = fast.filter(|_| entry_len <= self.flash.table_bytes).max_by_key(|dir| room(dir));
        let fast = fast.filter(|dir| dir.take(least_fast, limit(dir)));
        let flash = self.dirs.iter().filter(|dir| !dir.is_fast());
        let best = |dir: &&FlashDir<D>| {
            (room(dir) >= least && !dir.budget.is_spent(), room(dir), u32::MAX - dir.number)
        };
        let dir = fast.or_else(|| flash.max_by_key(best)).ok_or_else(|| self.flash.full())?;
        let taken = if dir.is_fast() { least_fast } else { 0 };
        let options =
            WriterOptions { allocate: self.flash.table_bytes.min(1 << 20), ..WriterOptions::default() };
        let number = (self.number)().inspect_err(|_| dir.give(taken))?;
        let created = dir.tables.create(number, self.cause, &options);
        let writer = self.flash.created(created, dir).inspect_err(|_| dir.give(taken))?;
        self.open = Some(OpenTable { writer, dir, taken });
        Ok(())
    }

    /// Ends the table that is being written, if any.
    ///
    /// # Errors
    /// `NoSpace`; `Io`, as [`TableBuilder::add`].
    pub fn end_table(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let (dir, written) = (open.dir, open.writer.file_len());
        let file = TableFile { dir: dir.number, number: open.writer.number() };
        let record = TableRecord { file, level: self.level };
        let table = self.flash.written(open.writer.finish(), dir).inspect_err(|_| {
            dir.budget.spend(written, tune::now());
            dir.give(open.taken);
            let _ = dir.tables.remove(file.number);
        })?;
        let len = table.footer().file_len;
        if len > open.taken {
            dir.add(len - open.taken);
        } else {
            dir.give(open.taken - len);
        }
        self.written.all += len;
        self.written.flash += if dir.is_fast() { 0 } else { len };
        dir.budget.spend(len, tune::now());
        self.done.push(NewTable { record, table: Some(table), flash: self.flash.clone() });
        Ok(())
    }

    /// The tables, whole and durable, and their bytes.
    ///
    /// # Errors
    /// `Io`.
    pub fn finish(mut self) -> Result<(Vec<NewTable<D>>, Written)> {
        self.end_table()?;
        Ok((std::mem::take(&mut self.done), self.written))
    }
}

impl<D: Dir> Drop for TableBuilder<'_, D> {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            let (dir, number) = (open.dir, open.writer.number());
            // Of no use, but written.
            dir.budget.spend(open.writer.file_len(), tune::now());
            drop(open.writer);
            let _ = dir.tables.remove(number);
            dir.give(open.taken);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::levels::FIRST;
    use crate::rig;
    use std::cell::Cell;
    use tierdb_base::FailureLatch;
    use tierdb_device::Meter;
    use tierdb_engine::TierDir;
    use tierdb_sim::{SimDir, World};

    /// Two directories of 1 MiB: one of which all but `room` bytes are used, and one that has spent its budget.
    fn short_and_spent(room: u64) -> Arc<Flash<SimDir>> {
        let world = World::new();
        let tiers = ["short", "spent"].map(|name| TierDir {
            dir: world.add_dir(name),
            capacity: 1 << 20,
            meter: Meter::new(),
            emulation: None,
        });
        let options = Options { flash_bytes_per_day: vec![None, Some(1)], ..rig::options(132 << 10) };
        let flash = Arc::new(Flash::new(tiers.into(), Vec::new(), 7, &options, FailureLatch::new()));
        let [short, spent] = flash.dirs() else { panic!("two directories") };
        short.add(short.limit(Limit::Growth, options.table_bytes) - room);
        spent.budget.spend(1 << 20, tune::now());
        flash
    }

    /// Of tables of the first level that add to flash.
    fn builder(flash: &Arc<Flash<SimDir>>) -> TableBuilder<'_, SimDir> {
        let how = (Limits::both(Limit::Growth), Cause::Migration);
        TableBuilder::new(flash, flash.dirs(), (FIRST, Vec::new()), 0, how, &|| Ok(1))
    }

    #[test]
    fn a_budget_holds_though_another_directory_has_one_that_is_full() {
        let table = rig::options(132 << 10).table_bytes;
        assert!(!short_and_spent(3 * table).is_spent(FIRST), "there is room for a table elsewhere");
        assert!(short_and_spent(3 * table - 1).is_spent(FIRST));
    }

    /// What was written for nothing has worn flash all the same.
    #[test]
    fn a_table_that_is_given_up_counts() {
        let flash = short_and_spent(1 << 19);
        let mut builder = builder(&flash);
        builder.add(&EntryRef { key: b"key", seqno: 1, value: Some(&[7; 9000]) }).expect("there is room");
        drop(builder);
        let spent: u64 = flash.dirs().iter().map(|dir| dir.budget.written()).sum();
        assert!(spent >= (1 << 20) + 9000, "{spent}");
    }

    /// A fast device has no reserve for tables of any length.
    #[test]
    fn a_long_entry_is_not_written_to_a_fast_device() {
        let world = World::new();
        let [flash, fast] = ["flash", "fast"].map(|name| TierDir {
            dir: world.add_dir(name),
            capacity: 4 << 20,
            meter: Meter::new(),
            emulation: None,
        });
        let options = Options { levels: None, table_bytes: 96 << 10, ..rig::options(132 << 10) };
        let flash = Arc::new(Flash::new(vec![flash], vec![fast], 7, &options, FailureLatch::new()));
        let how = (Limits::both(Limit::Growth), Cause::Migration);
        let next = Cell::new(0);
        let number = || Ok(next.replace(next.get() + 1));
        let mut builder =
            TableBuilder::new(&flash, flash.dirs_for(FIRST), (FIRST, Vec::new()), 0, how, &number);
        let long = vec![7; options.table_bytes as usize];
        for (key, value) in [(b"a", &long[..100]), (b"b", &long[..]), (b"c", &long[..100])] {
            builder.add(&EntryRef { key, seqno: 1, value: Some(value) }).expect("there is room");
        }
        let (tables, _) = builder.finish().expect("it is written");
        let is_fast: Vec<bool> = tables.iter().map(|table| table.record.file.is_fast()).collect();
        assert_eq!(is_fast, [true, false, true]);
    }

    /// A directory that may be written to has room for a table, but not for one with this entry.
    #[test]
    fn a_long_entry_goes_where_it_fits_though_that_has_spent_its_budget() {
        let table = rig::options(132 << 10).table_bytes;
        let flash = short_and_spent(table + (20 << 10));
        let mut builder = builder(&flash);
        builder.add(&EntryRef { key: b"key", seqno: 1, value: Some(&[7; 60_000]) }).expect("there is room");
        let (tables, _) = builder.finish().expect("it is written");
        assert_eq!(tables[0].record.file.dir, 1);
    }
}
