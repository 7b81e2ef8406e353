//! Removing what range tombstones hide, and then the tombstones.

use crate::core::Core;
use crate::levels::{FIRST, Level, Levels};
use crate::live::LiveTable;
use crate::migrate::{Plan, Victims};
use crate::partition::{Partition, RangeTombstone};
use std::collections::HashSet;
use std::sync::Arc;
use tierdb_base::{Result, Seqno, mutant};
use tierdb_device::Dir;
use tierdb_pmem::{Pool, Stage};

/// The tables, each with its level and number there, that may hold what `range` removed.
fn holding_removed<'l, D: Dir>(
    levels: &'l Levels<D>,
    range: &'l RangeTombstone,
) -> impl Iterator<Item = (Level, usize, &'l Arc<LiveTable<D>>)> {
    let levels = levels.all().filter(|(level, _)| *level == FIRST || mutant::keep("level"));
    let tables = levels.flat_map(move |(level, set)| {
        set.overlapping(&range.range).map(move |(number, table)| (level, number, table))
    });
    tables.filter(|(.., table)| table.may_hold_removed(&range.range, range.seqno))
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Rewrites tables that hold what a range tombstone removed, and forgets the tombstones that nothing needs. Looks after each
    /// table whether to go on, and says whether it came to the end.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn clean_ranges(&self, goes_on: &dyn Fn() -> bool) -> Result<bool> {
        let _cleaning = self.work.cleaning.lock();
        let _parts = self.work.dividing.read();
        let parts = self.router.read().parts.clone();
        // What is removed later waits for the next cleaning: a snapshot may be older than that, and then a table would be rewritten
        // and still hold it.
        let oldest = self.oldest_snapshot();
        let mut wanted: Vec<Arc<RangeTombstone>> = Vec::new();
        let mut done = Ok(true);
        for part in &parts {
            done = self.clean_part(part, oldest, &mut wanted, goes_on);
            if !matches!(done, Ok(true)) {
                break;
            }
        }
        // Of those before one that failed, too: the next cleaning does not find what they have forgotten.
        self.forget_ranges(&parts, wanted);
        done
    }

    /// The same in one partition, of what was removed up to `oldest`; lists the range tombstones that it has, or had.
    fn clean_part(
        &self,
        part: &Partition<D>,
        oldest: Seqno,
        wanted: &mut Vec<Arc<RangeTombstone>>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let _migration = loop {
            // Between two tables others may migrate.
            let migration = part.migration.lock();
            let plan = {
                let state = part.read();
                let due: Vec<&Arc<RangeTombstone>> =
                    state.ranges.iter().filter(|range| range.seqno <= oldest).collect();
                let mut touched = due.iter().flat_map(|range| holding_removed(&state.tables, range));
                let found = touched.find(|(.., table)| !table.is_damaged());
                found.map(|(level, number, _)| Plan::of_table(&state.tables, level, number))
            };
            let Some(plan) = plan else { break migration };
            self.migrate_or_mark(part, &plan, Victims::None, false)?;
            drop(migration);
            if !goes_on() {
                return Ok(false);
            }
        };
        let state = &mut *part.write();
        let mut stage = Stage::new(&*self.heap.pool);
        state.stage_retired(&self.heap, &mut stage);
        let _drained = stage.drain();
        state.release_retired(&self.heap);
        wanted.extend(state.ranges.iter().cloned());
        let tables = &state.tables;
        state.ranges.retain(|range| range.seqno > oldest || holding_removed(tables, range).next().is_some());
        Ok(true)
    }

    /// Frees the records of those `ranges` that no partition has any more.
    fn forget_ranges(&self, parts: &[Arc<Partition<D>>], ranges: Vec<Arc<RangeTombstone>>) {
        let mut seen = HashSet::new();
        for range in ranges.into_iter().filter(|range| seen.insert(range.slots.at)) {
            let used =
                |part: &Arc<Partition<D>>| part.read().ranges.iter().any(|other| Arc::ptr_eq(other, &range));
            if parts.iter().any(used) {
                continue;
            }
            let mut stage = Stage::new(&*self.heap.pool);
            self.heap.stage_free(&mut stage, range.slots.at);
            let _drained = stage.drain();
            self.heap.give(&range.slots);
        }
    }
}
