//! Removing what range tombstones hide, and then the tombstones.

use crate::core::Core;
use crate::live::LiveTable;
use crate::migrate::{Plan, Victims};
use crate::partition::{Partition, RangeTombstone};
use std::collections::HashSet;
use std::sync::Arc;
use tierdb_base::{Result, Seqno};
use tierdb_device::Dir;
use tierdb_pmem::{Pool, Stage};

impl<P: Pool, D: Dir> Core<P, D> {
    /// Rewrites tables that hold what a range tombstone removed, and forgets the tombstones that nothing needs.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn clean_ranges(&self) -> Result<()> {
        let _cleaning = self.work.cleaning.lock();
        let _parts = self.work.dividing.read();
        let parts = self.router.read().parts.clone();
        let oldest = self.snapshots.list().first().copied().unwrap_or(Seqno::MAX);
        let mut wanted: Vec<Arc<RangeTombstone>> = Vec::new();
        for part in &parts {
            let _migration = part.migration.lock();
            loop {
                let plan = {
                    let state = part.read();
                    let due: Vec<&Arc<RangeTombstone>> =
                        state.ranges.iter().filter(|range| range.seqno <= oldest).collect();
                    let touched = |table: &LiveTable<D>| {
                        let holds =
                            |range: &&Arc<RangeTombstone>| table.may_hold_removed(&range.range, range.seqno);
                        !table.is_damaged() && due.iter().any(holds)
                    };
                    let tables = state.tables.tables();
                    let number = tables.iter().position(|table| touched(table));
                    number.map(|number| Plan {
                        range: state.tables.range_of(number),
                        tables: number..number + 1,
                    })
                };
                let Some(plan) = plan else { break };
                self.migrate_or_mark(part, &plan, Victims::None, false)?;
            }
            let state = &mut *part.write();
            let mut stage = Stage::new(&*self.heap.pool);
            state.stage_retired(&self.heap, &mut stage);
            let _drained = stage.drain();
            state.release_retired(&self.heap);
            let needed = |range: &RangeTombstone| {
                let holds = |table: &Arc<LiveTable<D>>| table.may_hold_removed(&range.range, range.seqno);
                range.seqno > oldest || state.tables.tables().iter().any(holds)
            };
            let gone: Vec<Arc<RangeTombstone>> =
                state.ranges.iter().filter(|range| !needed(range)).cloned().collect();
            wanted.extend(state.ranges.iter().filter(|range| needed(range)).cloned());
            state.ranges.retain(|range| !gone.iter().any(|gone| Arc::ptr_eq(gone, range)));
            wanted.extend(gone);
        }
        self.forget_ranges(&parts, wanted);
        Ok(())
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
