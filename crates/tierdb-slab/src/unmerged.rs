//! Levels 0 and -1: what migrations brought to flash without rewriting the tables that it lies among, to be merged with them by the third
//! migration of the range.
//!
//! With one level a range of `F` bytes is rewritten for each `B` bytes that leave the fast tier: `1 + F / B` bytes are written for each.
//! Three times as many can be merged with it at once if the first and the second wait beside it, in tables of their own: that is
//! `(2 B + F + 3 B) / 3 B`, or `1.67 + F / 3 B`. Where the fast tier has a fifth of the keys that is two fifths less, for room of up to `2 B` on
//! flash, and one filter more to ask on average.
//!
//! Tables of each of these levels are disjoint, and what one has is newer than what the levels below have (the invariant of
//! [`crate::levels`]): the first comes to level 0, the second to level -1. Whatever comes from the fast tier into the first level takes what
//! both have of its range with it ([`Plan::with_unmerged`]). Tables of any level may be rewritten by themselves.

use crate::core::Core;
use crate::descend::Down;
use crate::levels::{FIRST, Level, Levels, TOP};
use crate::partition::Partition;
use crate::plan::{Plan, Victim};
use tierdb_base::{Result, mutant};
use tierdb_device::Dir;
use tierdb_pmem::Pool;

impl<D: Dir> Plan<D> {
    /// With what waits in the range, so that victims may come to the first level.
    pub fn with_unmerged(mut self, levels: &Levels<D>) -> Self {
        if mutant::keep("level") {
            self.tables.splice(..0, levels.unmerged(&self.range).cloned());
        }
        self
    }

    /// To make room on the fast tier: with what waits in the range, or else what comes may wait there, too.
    pub fn for_room(self, levels: &Levels<D>) -> Self {
        Plan { may_wait: true, ..self.with_unmerged(levels) }
    }

    /// Its range alone, into `level`.
    pub fn apart(&self, level: Level) -> Self {
        Plan { range: self.range.clone(), into: level, tables: Vec::new(), sweep: false, may_wait: false }
    }
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// The level in which the `victims` of `plan` are to wait, above all that waits in its range: if there is one, they are shorter than the tables
    /// of the first level there and long enough for tables of their own, and flash has room. Above a damaged table they could never be
    /// merged. What is removed is merged at once, since that gives room back; and on a fast device level 1 is what they would wait in.
    pub fn waits_in(&self, plan: &Plan<D>, victims: &[Victim]) -> Option<Level> {
        let highest = plan.tables.iter().map(|table| table.level()).min()?;
        let may = plan.may_wait && self.options.unmerged_pct > 0 && !plan.is_damaged();
        if !may || highest == TOP || self.goes_up(FIRST + 1) {
            return None;
        }
        let first = plan.tables.iter().filter(|table| table.level() == FIRST);
        let there: u64 = first.map(|table| table.file_len()).sum();
        let values = victims.iter().filter(|victim| !victim.entry.is_tombstone());
        let bytes: u64 = values.map(|victim| victim.bytes).sum();
        let least = u128::from(there) * u128::from(self.options.unmerged_pct);
        let is_worth_it = bytes < there && u128::from(bytes) * 100 >= least;
        (is_worth_it && self.flash.has_room_apart(bytes)).then_some(highest - 1)
    }

    /// Merges with the first level what waits now, and no more than that if others come meanwhile.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn merge_unmerged(&self) -> Result<()> {
        let parts = self.router.read().parts.clone();
        let tables_of =
            |part: &Partition<D>| part.read().tables.tables().filter(|table| table.level() <= FIRST).count();
        // As many as overlap, at the most, where each takes several merges for want of room, from one level to the next.
        for _ in 0..2 * parts.iter().map(|part| tables_of(part)).sum::<usize>() {
            if self.descend(Down::Unmerged)?.is_none() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::engine::SlabStore;
    use crate::flash::FlashDir;
    use crate::live::LiveTable;
    use crate::plan::Victims;
    use crate::rig::{self, Store};
    use std::sync::Arc;
    use tierdb_base::{Error, Location, TierRole};
    use tierdb_engine::{Durability, Engine, KeyRange};
    use tierdb_sim::SimDir;

    const POOL: u64 = 260 << 10;

    /// A hundred keys in several tables of the first level.
    fn on_flash(options: Options) -> Store {
        let store = Store::new(POOL, options);
        (0..100).for_each(|key| put(&store, key, 1));
        store.engine.flush().expect("room");
        assert!(waiting(&store).is_empty() && tables(&store, FIRST).len() > 2);
        store
    }

    fn put(store: &Store, key: u8, version: u8) {
        store.engine.put(&[key], &vec![version; 700], Durability::Grouped).expect("room");
    }

    fn tables(store: &Store, level: Level) -> Vec<Arc<LiveTable<SimDir>>> {
        store.part().read().tables.level(level).tables().to_vec()
    }

    /// What is not merged with the first level, from the uppermost level on.
    fn waiting(store: &Store) -> Vec<Arc<LiveTable<SimDir>>> {
        store.part().read().tables.unmerged(&KeyRange::all()).cloned().collect()
    }

    /// Version of each of the hundred keys, as gets, cursors, and the check of the whole store find it.
    fn versions(store: &Store) -> Vec<Option<u8>> {
        let got: Vec<_> = (0..100)
            .map(|key| store.engine.get(&[key]).expect("whole").map(|value| value.as_ref()[0]))
            .collect();
        let mut cursor = store.engine.cursor(KeyRange::all(), None).expect("open");
        let mut walked = vec![None; 100];
        while let Some((key, value)) = cursor.next().expect("whole") {
            walked[usize::from(key[0])] = Some(value.as_ref()[0]);
        }
        assert_eq!(got, walked);
        assert!(store.engine.verify().expect("it runs").is_clean());
        got
    }

    #[test]
    fn what_is_left_apart_is_newer_and_the_third_migration_merges_it() {
        let store = on_flash(rig::options(POOL));
        let before = tables(&store, FIRST);
        let same = |now: &[Arc<LiveTable<SimDir>>]| {
            now.len() == before.len() && now.iter().zip(&before).all(|(now, then)| Arc::ptr_eq(now, then))
        };
        let written = || store.core().counters.entries_written.get();
        let snapshot = store.engine.snapshot().expect("open");
        let (first, tombstone) = (written(), 40);
        (0..100).step_by(4).filter(|key| *key != tombstone).for_each(|key| put(&store, key, 2));
        store.engine.delete(&[tombstone], Durability::Durable).expect("room");
        store.engine.flush().expect("room");
        assert!(!waiting(&store).is_empty() && same(&tables(&store, FIRST)));
        assert_eq!(written() - first, 25, "nothing else is rewritten");
        assert_eq!(
            store.engine.stats().keys,
            100,
            "what both levels have is counted once, what was removed as well"
        );
        let wanted = |version: u8| -> Vec<Option<u8>> {
            let of = |key: u8| match key {
                40 => None,
                _ if key.is_multiple_of(4) => Some(version),
                _ => Some(1),
            };
            (0..100).map(of).collect()
        };
        assert_eq!(versions(&store), wanted(2));
        let seen = store.engine.get_at(&[tombstone], &snapshot).expect("whole").expect("there");
        assert_eq!(seen.as_ref()[0], 1);
        drop(snapshot);
        let Store { world, engine } = store;
        drop(engine);
        let engine = SlabStore::open(rig::media(&world, 1 << 20), rig::options(POOL)).expect("whole");
        let store = Store { world, engine };
        assert!(!waiting(&store).is_empty());
        assert_eq!(versions(&store), wanted(2));
        let below = waiting(&store);
        for version in [3, 4] {
            (0..100).step_by(4).filter(|key| *key != tombstone).for_each(|key| put(&store, key, version));
            store.engine.flush().expect("room");
            assert_eq!(versions(&store), wanted(version));
            if version == 3 {
                let levels = (tables(&store, TOP), tables(&store, FIRST - 1));
                assert!(
                    !levels.0.is_empty()
                        && levels.1.iter().zip(&below).all(|(now, then)| Arc::ptr_eq(now, then))
                );
            }
        }
        assert!(waiting(&store).is_empty());
        let tombstones = tables(&store, FIRST).iter().map(|table| table.footer().tombstones).sum::<u64>();
        assert_eq!(tombstones, 0, "it has nothing left to hide");
    }

    /// Tables that wait on both sides of what is merged do not become one that lies across it.
    #[test]
    fn what_is_left_on_both_sides_of_a_range_stays_apart() {
        let store = on_flash(rig::options(POOL));
        let part = store.part();
        let three = |store: &Store| {
            let levels = store.part().read().tables.clone();
            (Plan::of_tables(&levels, FIRST, 0..3), levels)
        };
        let (plan, levels) = three(&store);
        let middle = levels.first().range_of(1);
        let (start, end) =
            (levels.first().tables()[1].smallest()[0], levels.first().tables()[2].smallest()[0]);
        [start - 1, start, end - 1, end].into_iter().for_each(|key| put(&store, key, 2));
        let edges = [start - 1, start, end - 1, end];
        let mut snapshot = None;
        for (level, version) in [(FIRST - 1, 2), (TOP, 3)] {
            edges.into_iter().for_each(|key| put(&store, key, version));
            let _migration = part.migration.lock();
            // As if four keys were many.
            store.core().migrate(&part, &plan.apart(level), Victims::All, false).expect("room");
            assert_eq!(tables(&store, level).len(), 1, "across the ranges of three tables");
            snapshot = snapshot.or_else(|| Some(store.engine.snapshot().expect("open")));
        }
        let (plan, levels) = three(&store);
        let plan = Plan { range: middle, tables: vec![plan.tables[1].clone()], ..plan };
        put(&store, start, 4);
        let migration = part.migration.lock();
        store.core().migrate(&part, &plan.with_unmerged(&levels), Victims::All, false).expect("room");
        drop(migration);
        for level in [TOP, FIRST - 1] {
            let left: Vec<u8> = tables(&store, level).iter().map(|table| table.smallest()[0]).collect();
            assert_eq!(left, [start - 1, end], "of level {level}");
        }
        let versions = versions(&store);
        assert_eq!(edges.map(|key| versions[usize::from(key)]), [3, 4, 3, 3].map(Some));
        let snapshot = snapshot.expect("taken");
        let seen = edges.map(|key| store.engine.get_at(&[key], &snapshot).expect("whole").expect("there"));
        assert!(seen.iter().all(|value| value.as_ref()[0] == 2));
    }

    /// What a merge meets outside of its range may have been replaced in a level of which it meets nothing there.
    #[test]
    fn what_lies_across_the_end_of_a_range_is_not_promoted_from_there() {
        let store = on_flash(Options { pinned_pct: Some(100), memory: 1 << 10, ..rig::options(POOL) });
        let part = store.part();
        let levels = || part.read().tables.clone();
        let all = levels();
        let below = |number: usize| Plan::of_tables(&all, FIRST, number..number + 1);
        let [within, beyond] = [1, 2].map(|number| all.first().tables()[number].smallest()[0]);
        let apart = |plan: &Plan<SimDir>, level, keys: &[u8], version| {
            keys.iter().for_each(|key| put(&store, *key, version));
            let _migration = part.migration.lock();
            store.core().migrate(&part, &plan.apart(level), Victims::All, false).expect("room");
        };
        // Below, one table across the end of the range; above, one on each side.
        apart(&Plan::of_tables(&all, FIRST, 1..3), FIRST - 1, &[within, beyond], 2);
        apart(&below(1), TOP, &[within], 3);
        apart(&below(2), TOP, &[beyond], 3);
        assert_eq!([TOP, FIRST - 1].map(|level| self::tables(&store, level).len()), [2, 1]);
        for _ in 0..4 {
            store.engine.get(&[beyond]).expect("whole").expect("there");
        }
        put(&store, within + 1, 3);
        let plan = below(1).with_unmerged(&levels());
        let migration = part.migration.lock();
        store.core().migrate(&part, &plan, Victims::All, true).expect("room");
        drop(migration);
        let versions = versions(&store);
        assert_eq!([within, beyond].map(|key| versions[usize::from(key)]), [Some(3); 2]);
    }

    #[test]
    fn a_compaction_leaves_nothing_apart() {
        let store = on_flash(rig::options(POOL));
        (0..100).step_by(4).for_each(|key| put(&store, key, 2));
        store.engine.flush().expect("room");
        assert!(!waiting(&store).is_empty());
        store.engine.compact().expect("room");
        assert!(waiting(&store).is_empty());
        let keys: u64 = tables(&store, FIRST).iter().map(|table| table.footer().keys).sum();
        assert_eq!(keys, 100);
        assert_eq!(versions(&store)[..5], [Some(2), Some(1), Some(1), Some(1), Some(2)]);
    }

    #[test]
    fn what_is_short_or_removes_or_has_no_room_is_merged_at_once() {
        let stays = |store: &Store| !waiting(store).is_empty();
        let overwritten = |options: Options, before: &dyn Fn(&FlashDir<SimDir>)| {
            let store = on_flash(options);
            before(&store.core().flash.dirs()[0]);
            (0..100).step_by(4).for_each(|key| put(&store, key, 2));
            store.engine.flush().expect("room");
            stays(&store)
        };
        assert!(overwritten(rig::options(POOL), &|_| ()));
        assert!(!overwritten(rig::options(POOL), &|dir| dir.add(500 << 10)), "less than a quarter is left");
        assert!(
            !overwritten(rig::options(POOL), &|dir| dir.note_full()),
            "or others have filled the file system"
        );
        assert!(!overwritten(Options { unmerged_pct: 0, ..rig::options(POOL) }, &|_| ()));
        assert!(!overwritten(Options { unmerged_pct: 40, ..rig::options(POOL) }, &|_| ()), "too short");
        let store = on_flash(rig::options(POOL));
        (0..100).for_each(|key| store.put(&[key], 1400));
        store.engine.flush().expect("room");
        assert!(!stays(&store), "more than there is");
        let store = on_flash(rig::options(POOL));
        let delete = |key| store.engine.delete(&[key], Durability::Grouped).expect("room");
        (0..100).step_by(2).for_each(delete);
        store.engine.flush().expect("room");
        assert!(!stays(&store), "what removes gives room back");
        assert_eq!(versions(&store)[..3], [None, Some(1), None]);
    }

    /// Where flash has less than a quarter left, each round of migrations merges a table that waits, unless the write budget is spent.
    #[test]
    fn what_waits_is_merged_as_flash_fills_up_within_the_budget() {
        for spent in [false, true] {
            let options = Options { flash_bytes_per_day: vec![Some(1 << 30)], ..rig::options(POOL) };
            let store = on_flash(options);
            (0..100).step_by(4).for_each(|key| put(&store, key, 2));
            store.engine.flush().expect("room");
            let before = waiting(&store).len();
            assert!(before > 2);
            let dir = &store.core().flash.dirs()[0];
            dir.add(500 << 10);
            if spent {
                dir.budget.spend(2 << 30, crate::tune::now());
            }
            (0..3).for_each(|key| put(&store, key, 3));
            assert!(store.core().migrate_round(Victims::All, 0.0).expect("room").keys > 0);
            // One with what comes, and another one for the room.
            assert_eq!(before - waiting(&store).len(), if spent { 1 } else { 2 });
            assert_eq!(versions(&store)[..5], [Some(3), Some(3), Some(3), Some(1), Some(2)]);
        }
    }

    #[test]
    fn beside_a_damaged_table_that_is_left_apart_nothing_is_merged() {
        let store = on_flash(rig::options(POOL));
        (0..100).step_by(4).for_each(|key| put(&store, key, 2));
        store.engine.flush().expect("room");
        // Nothing else is to wait.
        store.core().flash.dirs()[0].add(500 << 10);
        let apart = waiting(&store)[0].clone();
        let error = Error::corrupt(TierRole::Flash, "a block", Location::new("a table", 0));
        store.core().leave_out(&apart, &error, true);
        (0..100).step_by(4).for_each(|key| put(&store, key, 3));
        while store.core().migrate_best(Victims::All, 0.0).expect("room").progress() > 0 {}
        let left = waiting(&store);
        assert!(left.len() == 1 && Arc::ptr_eq(&left[0], &apart));
        let dirty = store.part().read().dirty();
        assert!((1..25).contains(&dirty), "{dirty} stay where they are");
        let written = store.core().counters.tables_written.get();
        store.engine.flush().expect("what can be moved is");
        assert_eq!(
            store.core().counters.tables_written.get(),
            written,
            "a flush does not try what is known to fail"
        );
        // Tables of the first level are rewritten beside it: all comes to an end.
        let range = KeyRange::half_open([0], [3]);
        store.engine.delete_range(&range, Durability::Durable).expect("room");
        store.engine.compact().expect("room");
        assert!(store.core().squeeze().is_ok());
        assert_eq!(versions(&store)[..5], [None, None, None, Some(1), Some(3)]);
    }
}
