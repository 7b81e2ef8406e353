//! What moves tables to the next level, joins small ones, and takes out of them what was replaced.
//!
//! A level that is larger than it may be gives a table to the next one: the table for which the least has to be rewritten there. The
//! merge is a migration without victims, so what a crash leaves of it is what [`crate::migrate`] says: one group makes the new tables
//! live and the old ones of both levels free. Where the next level has nothing between the table's keys, its record says
//! from then on that it belongs there: a group of two words, as when a record lists other places ([`crate::parts`]).

use crate::core::Core;
use crate::flash::Limit;
use crate::levels::{FIRST, Level, Levels, TOP};
use crate::live::LiveTable;
use crate::merge::read_through;
use crate::migrate::Migrated;
use crate::partition::Partition;
use crate::plan::{Plan, Victims};
use std::sync::Arc;
use tierdb_base::{ErrorKind, Result, Seqno, mutant};
use tierdb_device::Dir;
use tierdb_engine::KeyRange;
use tierdb_pmem::{Pool, Stage};
use tierdb_table::EntryRef;

/// What stays of a table at the most, where the level above is on a faster device.
pub const MOST_STAYS: f64 = 0.75;
/// Merges that gain nothing, one after another, after which no more is looked for.
const FRUITLESS: u32 = 8;

/// Which levels give a table to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// Those that are larger than they may be.
    TooLarge,
    /// What is not merged with the first level.
    Unmerged,
    /// Any: flash is full, and older versions take room there. Tables of a fast device are swept, those without tombstones.
    Any,
    /// The first, if it is on a fast device and has tombstones, which are swept.
    Removed,
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Moves one table to the next level, from the level that is larger than it may be by most. `None` if there is none to be
    /// moved.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn descend(&self, which: Down) -> Result<Option<Migrated>> {
        if which == Down::TooLarge && (self.levels == FIRST || self.flash.is_spent(self.levels)) {
            return Ok(None);
        }
        let _parts = self.work.dividing.read();
        let parts = self.router.read().parts.clone();
        let bytes_of = |part: &Partition<D>, level| part.read().tables.level(level).file_bytes();
        let mut levels: Vec<(f64, Level)> = (TOP..self.levels)
            .map(|level| {
                let bytes: u64 = parts.iter().map(|part| bytes_of(part, level)).sum();
                (bytes as f64 / self.level_size(level).max(1) as f64, level)
            })
            .filter(|(fill, level)| match which {
                Down::TooLarge => *fill > 1.0 && *level >= FIRST,
                Down::Unmerged => *fill > 0.0 && *level < FIRST,
                Down::Any => *fill > 0.0,
                Down::Removed => *level == FIRST,
            })
            .collect();
        levels.sort_by(|one, other| other.0.total_cmp(&one.0));
        // What waits comes first, and of that what is above last: it comes down for nothing once there is nothing below.
        levels.sort_by_key(|(_, level)| if *level < FIRST { -*level } else { FIRST - TOP });
        if which == Down::Any && self.goes_up(FIRST + 1) {
            // What may gain nothing comes last.
            levels.sort_by_key(|(_, level)| *level == FIRST);
        }
        let mut full = None;
        for (_, level) in levels {
            let mut fullest: Vec<(u64, &Arc<Partition<D>>)> =
                parts.iter().map(|part| (bytes_of(part, level), part)).collect();
            fullest.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
            for (_, part) in fullest {
                match self.descend_in(part, level, which) {
                    // Another one may take less.
                    Err(error) if error.kind() == ErrorKind::NoSpace => full = full.or(Some(error)),
                    Ok(None) => {}
                    done => return done,
                }
            }
        }
        full.map_or(Ok(None), Err)
    }

    /// Moves one table of `level` to the next one in `part`. `None` if there is none to be moved there.
    fn descend_in(&self, part: &Partition<D>, level: Level, which: Down) -> Result<Option<Migrated>> {
        let _migration = part.migration.lock();
        loop {
            let tables = part.read().tables.clone();
            let Some(plan) = self.plan_down(&tables, level, which) else { return Ok(None) };
            // One on a faster device is written to a slower one, and one of the first level has a bucket.
            if let [one] = &*plan.tables
                && !one.is_fast()
                && level + 1 != FIRST
                && self.move_down(part, one.level() + 1, &plan)
            {
                self.counters.moved_down.add(1);
                return Ok(Some(Migrated { tables: 1, ..Migrated::default() }));
            }
            let mut done = self.migrate_or_mark(part, &plan, Victims::None, false)?;
            if done.tables > 0 {
                self.counters.merged_down.add(1);
                let now = part.read().tables.clone();
                done.brought_down = plan.sweep && tombstones(&now, level) < tombstones(&tables, level);
                return Ok(Some(done));
            }
            // Those that could not be read are in no plan from now on, so another one comes.
            if !plan.is_damaged() {
                return Ok(None);
            }
        }
    }

    /// Moves tables down until no level is larger than it may be.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn descend_all(&self) -> Result<()> {
        while self.descend(Down::TooLarge)?.is_some() {}
        Ok(())
    }

    /// Rewrites the table of which the largest share are versions that were replaced, of those that may have some which nobody needs, since
    /// the oldest snapshot is one at `oldest`, and that there is room to rewrite. `None` if there is none.
    fn rewrite_replaced(&self, oldest: Seqno) -> Result<Option<Migrated>> {
        let _parts = self.work.dividing.read();
        let parts = self.router.read().parts.clone();
        let mut found = Vec::new();
        for part in &parts {
            let tables = part.read().tables.clone();
            let with_replaced =
                tables.tables().filter(|table| !table.is_damaged() && table.may_hold_replaced(oldest));
            let newest = |table: &LiveTable<D>| table.footer().keys as f64 / table.footer().entries as f64;
            found.extend(with_replaced.map(|table| (newest(table), part, table.clone())));
        }
        found.sort_by(|one: &(f64, _, _), other| one.0.total_cmp(&other.0));
        let mut full = None;
        for (_, part, table) in found {
            let _migration = part.migration.lock();
            let plan = Plan::of_live(&part.read().tables, &table);
            // Where it is gone, another migration has rewritten it.
            let Some(plan) = plan else { return Ok(Some(Migrated::default())) };
            match self.migrate_or_mark(part, &plan, Victims::None, false) {
                Err(error) if error.kind() == ErrorKind::NoSpace => full = full.or(Some(error)),
                done => return done.map(Some),
            }
        }
        full.map_or(Ok(None), Err)
    }

    /// Takes out of all tables what was replaced, and no snapshot needs, and what replaces it waits above, by merging that.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn drop_replaced(&self) -> Result<()> {
        let merged = self.merge_unmerged();
        let oldest = self.oldest_snapshot();
        while self.rewrite_replaced(oldest)?.is_some() {}
        match merged {
            // Now there may be some.
            Err(error) if error.kind() == ErrorKind::NoSpace => self.merge_unmerged(),
            merged => merged,
        }
    }

    /// Flash is full: sweeps tables of fast devices that hold what was removed, rewrites those that hold what was replaced, or moves some
    /// down, until some room was gained. `false` if none was.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn squeeze(&self) -> Result<bool> {
        let mut fruitless = 0;
        while fruitless < FRUITLESS {
            let where_there_is_room = |done: Result<Option<Migrated>>| match done {
                // The next one may take less.
                Err(error) if error.kind() == ErrorKind::NoSpace => Ok(None),
                done => done,
            };
            let mut done = where_there_is_room(self.descend(Down::Removed))?;
            if done.is_none() {
                done = where_there_is_room(self.rewrite_replaced(self.oldest_snapshot()))?;
            }
            match done.map_or_else(|| self.descend(Down::Any), |done| Ok(Some(done)))? {
                Some(done) if done.gained > 0 => return Ok(true),
                // A table that moved as it is cost nothing, and what was removed gains room where it comes to in the end.
                Some(done) => fruitless += u32::from(done.entries > 0 && !done.brought_down),
                None => break,
            }
        }
        Ok(false)
    }

    /// The table of `level` for which the least of the next one is rewritten, in bytes for each that leaves it, with what it is merged
    /// with. Those that remove something come first where flash has no room for what a fast device has.
    fn plan_down(&self, levels: &Levels<D>, level: Level, which: Down) -> Option<Plan<D>> {
        let oldest = self.oldest_snapshot();
        let mut best: Option<((bool, f64), Plan<D>)> = None;
        for table in levels.level(level).tables() {
            let removes = table.footer().tombstones > 0;
            let sweep = || self.plan_sweep(levels, table, oldest);
            let plan = match which {
                Down::Removed => removes.then(sweep).flatten(),
                Down::Any if table.is_on_device() => (!removes).then(sweep).flatten(),
                Down::Any | Down::Unmerged | Down::TooLarge => self.plan_merge(levels, table).or_else(sweep),
            };
            let Some(plan) = plan.filter(|plan| !plan.is_damaged()) else {
                continue;
            };
            let overlap: u64 = plan.tables[1..].iter().map(|table| table.file_len()).sum();
            // What stayed once stays again, for the most part.
            let leaving = table.file_len() as f64 * (1.0 - MOST_STAYS * table.stayed_share);
            let cost = (plan.sweep && !removes, overlap as f64 / leaving);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, plan));
            }
        }
        best.map(|(_, plan)| plan)
    }

    /// To merge `upper` into the next level. Where the reserve of flash does not hold all that, its first keys only. `None` if it is on a fast
    /// device and flash has no room for it.
    fn plan_merge(&self, levels: &Levels<D>, upper: &Arc<LiveTable<D>>) -> Option<Plan<D>> {
        let whole = Plan::down(levels, upper, upper.level() + 1, false);
        if self.has_room_for(&whole, Limit::Shrink, 0) || !upper.is_on_device() && whole.tables.len() <= 2 {
            return Some(whole);
        }
        let first = whole.part(levels, upper.smallest());
        (!upper.is_on_device() || self.has_room_for(&first, Limit::Shrink, 0)).then_some(first)
    }

    /// To sweep `upper`, if it is on a fast device, and what that gains was not gained yet. Where the reserve of flash does not hold all that, keys
    /// about its first tombstone, if it has any.
    fn plan_sweep(&self, levels: &Levels<D>, upper: &Arc<LiveTable<D>>, oldest: Seqno) -> Option<Plan<D>> {
        if !upper.is_on_device() || upper.is_swept(oldest) && mutant::keep("sweep") {
            return None;
        }
        let removes = upper.footer().tombstones > 0;
        // Where all of it is older than any snapshot, every tombstone is one that all see.
        let is_unsure = removes && upper.footer().highest_seqno > oldest;
        let seen = if is_unsure { Some(self.first_removed(upper, oldest)?) } else { None };
        // Where there is nothing to be removed, tombstones would only be another table.
        let mut below = (upper.level() + 1..=self.levels).map(|into| Plan::down(levels, upper, into, true));
        let whole = below.find(|plan| plan.tables.len() > 1 || !mutant::keep("sweep"));
        let whole = whole.or_else(|| removes.then(|| Plan::down(levels, upper, upper.level() + 1, true)))?;
        if self.has_room_for(&whole, Limit::Shrink, 0) {
            return Some(whole);
        }
        if !removes {
            return None;
        }
        let first = seen.or_else(|| self.first_removed(upper, oldest))?;
        let part = whole.part(levels, &first);
        self.has_room_for(&part, Limit::Shrink, 0).then_some(part)
    }

    /// The first key of which the newest version in `table` is a tombstone that every snapshot sees, if none is older than one at `oldest`.
    /// Reads it as far as that.
    fn first_removed(&self, table: &LiveTable<D>, oldest: Seqno) -> Option<Vec<u8>> {
        let mut last_key = Vec::new();
        let is_removed = |entry: &EntryRef<'_>| {
            let is_newest = entry.key != last_key;
            last_key.clear();
            last_key.extend_from_slice(entry.key);
            is_newest && entry.value.is_none() && entry.seqno <= oldest
        };
        match read_through(table, is_removed) {
            Ok(None) => table.mark_swept(oldest),
            Ok(first) => return first,
            Err(error) => self.leave_out_unread(table, &error),
        }
        None
    }

    /// Makes the one table of `plan` one of `level`, where nothing lies between its keys. `false` if it has to be rewritten, for tombstones that
    /// have nothing left to hide or for want of room for another record, on the fast tier or in its log.
    fn move_down(&self, part: &Partition<D>, level: Level, plan: &Plan<D>) -> bool {
        let [table] = &*plan.tables else { return false };
        if table.footer().tombstones > 0 && mutant::keep("tombstone") {
            return false;
        }
        let Ok(_admitted) = self.heap.admit(self.admit_table()) else { return false };
        let mut stage = Stage::new(&*self.heap.pool);
        let places = self.write_parts(&mut stage, table.loaded_parts());
        if !self.replace_record(table, level, stage, &places) {
            return false;
        }
        let state = &mut *part.write();
        table.move_to(level);
        let before = state.tables.clone();
        state.set_tables(Levels::new(before.tables().cloned().collect()));
        self.hand_over(state, before.first(), &plan.tables);
        true
    }

    /// Merges neighbouring tables that together are one.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn join_tables(&self) -> Result<()> {
        let _parts = self.work.dividing.read();
        let parts = self.router.read().parts.clone();
        for (part, level) in
            parts.iter().flat_map(|part| (FIRST..=self.levels).map(move |level| (part, level)))
        {
            let count = || part.read().tables.level(level).tables().len();
            let mut from = 0;
            loop {
                // Between two tables others may migrate.
                let _migration = part.migration.lock();
                let plan = {
                    let state = part.read();
                    let set = state.tables.level(level);
                    let tables = set.tables();
                    let fits = |number: &usize| {
                        let pair = &tables[*number..*number + 2];
                        pair.iter().all(|table| !table.is_damaged())
                            && pair[0].is_on_device() == pair[1].is_on_device()
                            && pair.iter().map(|table| table.file_len()).sum::<u64>()
                                <= self.options.table_bytes
                    };
                    let Some(number) = (from..tables.len().saturating_sub(1)).find(fits) else { break };
                    from = number;
                    let (low, high) = (set.range_of(number), set.range_of(number + 1));
                    let range = KeyRange { start: low.start, end: high.end };
                    Plan { range, ..Plan::of_tables(&state.tables, level, number..number + 2) }
                };
                let before = count();
                self.migrate_or_mark(part, &plan, Victims::None, false)?;
                if count() >= before {
                    from += 1;
                }
            }
        }
        Ok(())
    }
}

/// Tombstones of the tables of `level`.
fn tombstones<D: Dir>(levels: &Levels<D>, level: Level) -> u64 {
    levels.level(level).tables().iter().map(|table| table.footer().tombstones).sum()
}

#[cfg(test)]
mod tests;
