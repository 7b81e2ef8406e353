//! Removing what range tombstones hide, and then the tombstones.

use crate::core::Core;
use crate::levels::{FIRST, Level, Levels};
use crate::live::LiveTable;
use crate::partition::{Partition, RangeTombstone, State};
use crate::plan::{Plan, Victims};
use crate::snapshots::sees;
use parking_lot::MutexGuard;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tierdb_base::{Result, Seqno, mutant};
use tierdb_device::Dir;
use tierdb_pmem::{Pool, Stage};

/// The last ranges that were removed, which may remove what an earlier one did.
const COVERING: usize = 16;

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

/// The tables of `state` that may hold what was removed up to `oldest`; one of several ranges several times.
fn touched<D: Dir>(
    state: &State<D>,
    oldest: Seqno,
) -> impl Iterator<Item = (Level, usize, &Arc<LiveTable<D>>)> {
    let due = state.ranges.iter().filter(move |range| range.seqno <= oldest);
    due.flat_map(|range| holding_removed(&state.tables, range))
}

/// Whether one of the last `ranges` removes all that `range` does, for all who may still read: none of the snapshots that are `open` is
/// older than that one and sees this one. Who removes what is older than a moment, again and again while a snapshot is open, leaves one.
fn is_covered(range: &RangeTombstone, ranges: &[Arc<RangeTombstone>], open: &[Seqno]) -> bool {
    let covers = |later: &Arc<RangeTombstone>| {
        later.seqno > range.seqno
            && later.range.covers(&range.range)
            && !(sees(open, range.seqno, later.seqno) && mutant::keep("tombstone"))
    };
    ranges.iter().rev().take(COVERING).any(covers)
}

/// How far a cleaning came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaned {
    /// To the end.
    All,
    /// Not to the end: something else came first.
    Some,
    /// To the end, but for tables that the device did not read.
    Readable,
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Rewrites tables that hold what a range tombstone removed, and forgets the tombstones that nothing needs. Looks after each
    /// table whether to go on. A table that the device did not read before is tried again.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn clean_ranges(&self, goes_on: &dyn Fn() -> bool) -> Result<Cleaned> {
        self.clean_alone(&self.work.cleaning.lock(), goes_on)
    }

    /// The same, by who keeps others from cleaning.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn clean_alone(&self, _cleaning: &MutexGuard<'_, ()>, goes_on: &dyn Fn() -> bool) -> Result<Cleaned> {
        let _parts = self.work.dividing.read();
        let parts = self.router.read().parts.clone();
        // What is removed later waits for the next cleaning: a snapshot may be older than that, and then a table would be rewritten
        // and still hold it.
        let oldest = self.oldest_snapshot();
        let mut wanted: Vec<Arc<RangeTombstone>> = Vec::new();
        let mut done = Ok(Cleaned::All);
        for part in &parts {
            match self.clean_part(part, oldest, &mut wanted, goes_on) {
                Ok(Cleaned::All) => {}
                Ok(Cleaned::Readable) => done = Ok(Cleaned::Readable),
                cut_short => {
                    done = cut_short;
                    break;
                }
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
    ) -> Result<Cleaned> {
        touched(&part.read(), oldest)
            .for_each(|(.., table)| table.unreadable.store(false, Ordering::Release));
        let _migration = loop {
            // Between two tables others may migrate.
            let migration = part.migration.lock();
            let plan = {
                let state = part.read();
                let left = || touched(&state, oldest).filter(|(.., table)| !table.is_damaged());
                // What was not read before comes last: others need not wait for it. And what is on a fast device, which may be full.
                let trusted = || left().filter(|(.., table)| table.is_trusted());
                let found = trusted().find(|(.., table)| !table.is_fast());
                let found = found.or_else(|| trusted().next()).or_else(|| left().next());
                found.map(|(level, number, _)| Plan::of_table(&state.tables, level, number))
            };
            let Some(plan) = plan else { break migration };
            self.migrate_or_mark(part, &plan, Victims::None, false)?;
            drop(migration);
            if !goes_on() {
                return Ok(Cleaned::Some);
            }
        };
        let _admitted = self.heap.admit(0)?;
        let state = &mut *part.write();
        // What it removed of the fast tier must not come back when its record is gone.
        if mutant::keep("tombstone") {
            let mut stage = Stage::new(&*self.heap.pool);
            state.stage_retired(&self.heap, &mut stage);
            let _drained = stage.drain();
            state.release_retired(&self.heap);
        }
        wanted.extend(state.ranges.iter().cloned());
        let left_out = touched(state, oldest).any(|(.., table)| table.unreadable.load(Ordering::Acquire));
        let tables = &state.tables;
        let is_held = |range: &RangeTombstone| {
            holding_removed(tables, range).next().is_some() && mutant::keep("tombstone")
        };
        let (open, ranges) = (self.snapshots.list(), state.ranges.clone());
        let is_needed = |range: &RangeTombstone| {
            (range.seqno > oldest || is_held(range)) && !is_covered(range, &ranges, &open)
        };
        Arc::make_mut(&mut state.ranges).retain(|range| is_needed(range));
        Ok(if left_out { Cleaned::Readable } else { Cleaned::All })
    }

    /// Frees the records of those `ranges` that no partition has any more.
    fn forget_ranges(&self, parts: &[Arc<Partition<D>>], ranges: Vec<Arc<RangeTombstone>>) {
        let mut seen = HashSet::new();
        for range in ranges.into_iter().filter(|range| seen.insert(range.slots.at)) {
            let used =
                |part: &Arc<Partition<D>>| part.read().ranges.iter().any(|other| Arc::ptr_eq(other, &range));
            if parts.iter().any(used) && mutant::keep("tombstone") {
                continue;
            }
            let mut stage = Stage::new(&*self.heap.pool);
            self.heap.stage_free(&mut stage, range.slots.at);
            let _drained = stage.drain();
            self.heap.give(&range.slots);
        }
    }
}
