//! What moves tables to the next level, joins small ones, and takes out of them what was replaced.
//!
//! A level that is larger than it may be gives a table to the next one: the table for which the least has to be rewritten there. The
//! merge is a migration without victims, so what a crash leaves of it is what [`crate::migrate`] says: one group makes the new tables
//! live and the old ones of both levels free. Where the next level has nothing between the table's keys, its record says
//! from then on that it belongs there: a group of two words, as when a record lists other places ([`crate::parts`]).

use crate::core::Core;
use crate::flash::Limit;
use crate::levels::{FIRST, Level, Levels};
use crate::live::LiveTable;
use crate::migrate::Migrated;
use crate::partition::{Partition, State};
use crate::plan::{Plan, Victims};
use std::ops::Bound;
use std::sync::Arc;
use tierdb_base::{ErrorKind, Result, Seqno};
use tierdb_device::Dir;
use tierdb_engine::KeyRange;
use tierdb_pmem::{Pool, Stage};

/// What stays of a table at the most, where the level above is on a faster device.
pub const MOST_STAYS: f64 = 0.75;
/// Merges that gain nothing, one after another, after which no more is looked for.
const FRUITLESS: u32 = 8;

/// Which levels give a table to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// Those that are larger than they may be.
    TooLarge,
    /// Any: flash is full, and older versions take room there.
    Any,
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Moves one table to the next level, from the level that is larger than it may be by most. `None` if there is none to be
    /// moved.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn descend(&self, which: Down) -> Result<Option<Migrated>> {
        if self.levels == FIRST || which == Down::TooLarge && self.flash.is_spent(self.levels) {
            return Ok(None);
        }
        let _parts = self.work.dividing.read();
        let parts = self.router.read().parts.clone();
        let bytes_of = |part: &Partition<D>, level| part.read().tables.level(level).file_bytes();
        let mut levels: Vec<(f64, Level)> = (FIRST..self.levels)
            .map(|level| {
                let bytes: u64 = parts.iter().map(|part| bytes_of(part, level)).sum();
                (bytes as f64 / self.level_size(level).max(1) as f64, level)
            })
            .filter(|(fill, _)| *fill > if which == Down::Any { 0.0 } else { 1.0 })
            .collect();
        levels.sort_by(|one, other| other.0.total_cmp(&one.0));
        for (_, level) in levels {
            let mut fullest: Vec<(u64, &Arc<Partition<D>>)> =
                parts.iter().map(|part| (bytes_of(part, level), part)).collect();
            fullest.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
            for (_, part) in fullest {
                let _migration = part.migration.lock();
                let Some(plan) = self.plan_down(&part.read(), level, which) else { continue };
                let done = match &*plan.tables {
                    // One on a faster device is written to a slower one.
                    [one] if !one.is_fast() && self.move_down(part, one.level() + 1, &plan) => {
                        self.counters.moved_down.add(1);
                        Migrated { tables: 1, ..Migrated::default() }
                    }
                    _ => {
                        let done = self.migrate_or_mark(part, &plan, Victims::None, false)?;
                        self.counters.merged_down.add(u64::from(done.tables > 0));
                        done
                    }
                };
                if done.tables > 0 {
                    return Ok(Some(done));
                }
            }
        }
        Ok(None)
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
    /// the oldest snapshot is one at `oldest`. `None` if there is none.
    fn rewrite_replaced(&self, oldest: Seqno) -> Result<Option<Migrated>> {
        let _parts = self.work.dividing.read();
        let parts = self.router.read().parts.clone();
        let mut best: Option<(f64, _, Arc<LiveTable<D>>)> = None;
        for part in &parts {
            let tables = part.read().tables.clone();
            for table in
                tables.tables().filter(|table| !table.is_damaged() && table.may_hold_replaced(oldest))
            {
                let newest = table.footer().keys as f64 / table.footer().entries as f64;
                if best.as_ref().is_none_or(|(least, ..)| newest < *least) {
                    best = Some((newest, part, table.clone()));
                }
            }
        }
        let Some((_, part, table)) = best else { return Ok(None) };
        let _migration = part.migration.lock();
        let plan = Plan::of_live(&part.read().tables, &table);
        // Where it is gone, another migration has rewritten it.
        plan.map_or(Ok(Migrated::default()), |plan| self.migrate_or_mark(part, &plan, Victims::None, false))
            .map(Some)
    }

    /// Takes out of all tables what was replaced, and no snapshot needs.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn drop_replaced(&self) -> Result<()> {
        let oldest = self.oldest_snapshot();
        while self.rewrite_replaced(oldest)?.is_some() {}
        Ok(())
    }

    /// Flash is full: rewrites tables that hold what was replaced, or moves some down, until some room was gained. `false` if none was.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn squeeze(&self) -> Result<bool> {
        let mut fruitless = 0;
        while fruitless < FRUITLESS {
            let rewritten = match self.rewrite_replaced(self.oldest_snapshot()) {
                // To move one down may take less.
                Err(error) if error.kind() == ErrorKind::NoSpace => None,
                done => done?,
            };
            let done = rewritten.map_or_else(|| self.descend(Down::Any), |done| Ok(Some(done)));
            match done? {
                Some(done) if done.gained > 0 => return Ok(true),
                // A table that moved as it is cost nothing.
                Some(done) => fruitless += u32::from(done.entries > 0),
                None => break,
            }
        }
        Ok(false)
    }

    /// The table of `level` for which the least of the next one is rewritten, in bytes for each that leaves it, with what it is merged
    /// with. Where the reserve of flash does not hold all that, its first keys only.
    fn plan_down(&self, state: &State<D>, level: Level, which: Down) -> Option<Plan<D>> {
        let below = state.tables.level(level + 1);
        let mut best: Option<(f64, Plan<D>)> = None;
        // Where flash is full, nothing comes on top but what was removed.
        let is_wanted = |table: &Arc<LiveTable<D>>| {
            !table.is_damaged()
                && (which == Down::TooLarge || !table.is_fast() || table.footer().tombstones > 0)
        };
        for table in state.tables.level(level).tables().iter().filter(|table| is_wanted(table)) {
            let range = KeyRange {
                start: Bound::Included(table.smallest().to_vec()),
                end: Bound::Included(table.largest().to_vec()),
            };
            let overlap: u64 = below.overlapping(&range).map(|(_, table)| table.file_len()).sum();
            // What stayed once stays again, for the most part.
            let leaving = table.file_len() as f64 * (1.0 - MOST_STAYS * table.stayed_share);
            let cost = overlap as f64 / leaving;
            if best.as_ref().is_some_and(|(least, _)| *least <= cost)
                || below.overlapping(&range).any(|(_, table)| table.is_damaged())
            {
                continue;
            }
            let overlapping = below.overlapping(&range).map(|(_, table)| table.clone());
            let tables = std::iter::once(table.clone()).chain(overlapping).collect();
            best = Some((cost, Plan { range, into: level + 1, tables }));
        }
        let (_, plan) = best?;
        let bytes = plan.tables.iter().map(|table| table.file_len()).sum();
        let limit = if plan.ends_with_less() { Limit::Shrink } else { Limit::Growth };
        if plan.tables.len() <= 2 || self.flash.has_room(level + 1, bytes, limit) {
            return Some(plan);
        }
        let first = &plan.tables[0];
        let number = below.number_of(first.smallest());
        let tables = vec![first.clone(), below.tables()[number].clone()];
        let whole = tables.iter().all(|table| !table.is_damaged());
        whole.then(|| Plan { range: below.range_of(number), tables, ..plan })
    }

    /// Makes the one table of `plan` one of `level`, where nothing lies between its keys. `false` if it has to be rewritten, for tombstones that
    /// have nothing left to hide or for want of room for another record, on the fast tier or in its log.
    fn move_down(&self, part: &Partition<D>, level: Level, plan: &Plan<D>) -> bool {
        let [table] = &*plan.tables else { return false };
        if table.footer().tombstones > 0 {
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
                            && pair.iter().map(|table| table.file_len()).sum::<u64>()
                                <= self.options.table_bytes
                    };
                    let Some(number) = (from..tables.len().saturating_sub(1)).find(fits) else { break };
                    from = number;
                    let (low, high) = (set.range_of(number), set.range_of(number + 1));
                    let range = KeyRange { start: low.start, end: high.end };
                    Plan { range, into: level, tables: tables[number..number + 2].to_vec() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{self, Store};
    use tierdb_engine::{Durability, Engine};

    const POOL: u64 = 132 << 10;

    fn put_all(store: &Store, version: u8) {
        for key in 0..40 {
            store.engine.put(&[key], &[version; 600], Durability::Grouped).expect("room on the fast tier");
        }
    }

    /// A store with one level of tables that have eight versions of each key, of which seven nobody needs any more.
    fn with_replaced() -> Store {
        let store = Store::new(POOL, rig::options(POOL));
        let mut snapshots = Vec::new();
        for version in 1..=8 {
            put_all(&store, version);
            store.engine.flush().expect("room");
            snapshots.push(store.engine.snapshot().expect("open"));
        }
        store
    }

    fn check(store: &Store, version: u8) {
        for key in 0..40 {
            let value = store.engine.get(&[key]).expect("whole").expect("there");
            assert_eq!(&value[..], &[version; 600][..], "key {key}");
        }
        assert!(store.engine.verify().expect("open").is_clean());
    }

    #[test]
    fn what_was_replaced_makes_room_when_flash_is_full() {
        let store = with_replaced();
        let dir = &store.core().flash.dirs()[0];
        put_all(&store, 9);
        // But for the reserve, something else has what is left.
        dir.add(dir.limit(Limit::Growth, store.core().flash.table_bytes) - dir.used());
        store.engine.flush().expect("most of what is there is not needed");
        check(&store, 9);
    }

    #[test]
    fn a_compaction_takes_out_what_was_replaced() {
        let store = with_replaced();
        let dir = &store.core().flash.dirs()[0];
        let before = dir.used();
        store.engine.compact().expect("room");
        assert!(dir.used() < before / 2, "{} of {before} bytes", dir.used());
        check(&store, 8);
    }
}
