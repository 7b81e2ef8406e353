//! Migration between the tiers (PrismDB §4.4, §5.3): one range of a partition, unpopular keys down, popular ones up. And what else
//! rewrites tables: merges to the next level ([`crate::descend`]) are migrations without victims.
//!
//! 1. Under the partition's lock: the range is noted as *migrating*, and the victims are listed. From now on
//!    slots that are given up are not reused, and deletes in the range leave tombstones.
//! 2. Without it: victims and tables of the range are merged into new tables, which are durable when they end; or victims alone
//!    ([`crate::unmerged`]).
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

use crate::commit::Change;
use crate::core::{Core, hash_of};
use crate::heap::{FREE_BYTES, Slots};
use crate::key::Key;
use crate::levels::{Levels, TOP};
use crate::live::{LiveTable, Manifest};
use crate::merge::{Begun, Merged, read_through};
use crate::partition::{Partition, State};
use crate::parts::Places;
use crate::plan::{MOST_TABLES, Plan, Victim, Victims};
use crate::promote::Promotion;
use crate::tracker::Tier;
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tierdb_base::{Error, ErrorKind, Result, mutant};
use tierdb_device::Dir;
use tierdb_pmem::{Pool, Stage};

/// Victims whose slots are freed under the lock at once.
const FREE_AT_ONCE: usize = 256;

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
    /// Bytes by which the new tables are shorter than the old ones.
    pub gained: u64,
    /// Whether tombstones came from a fast device to flash.
    pub brought_down: bool,
}

impl Migrated {
    /// Keys that take no room any more, or that can be dropped now: without any, the next try finds what this one has found.
    pub fn progress(&self) -> u64 {
        self.keys + self.cleaned
    }

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
            brought_down: self.brought_down || other.brought_down,
        }
    }
}

/// Whether it says that `table` is damaged, or was not read.
fn is_of<D: Dir>(error: &Error, table: &LiveTable<D>) -> bool {
    let (Error::Corrupt { place, .. } | Error::Io { op: "read", place, .. }) = error else { return false };
    place.file.ends_with(&tierdb_table::file_name(table.file().number))
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
        // What has failed for good stays as it is until the store is opened again.
        self.gate.latch().check()?;
        let wanted = plan;
        let apart;
        let begun = {
            let mut state = part.write();
            let listed =
                if victims == Victims::None { Vec::new() } else { self.victims(&state, plan, victims) };
            if listed.is_empty() && (victims != Victims::None || plan.tables.is_empty()) {
                return Ok(Migrated::default());
            }
            let plan = match self.waits_in(wanted, &listed) {
                Some(level) => {
                    let counter =
                        if level == TOP { &self.counters.left_above } else { &self.counters.left_apart };
                    counter.add(1);
                    apart = wanted.apart(level);
                    &apart
                }
                None => wanted,
            };
            state.migrating = Some(plan.range.clone());
            // Under the lock: ranges that writes up to this one removed are in the list. And before the list of
            // snapshots: one that is not in it sees this write, or a later one.
            let (levels, ranges) = (state.tables.clone(), state.ranges.clone());
            Begun { plan, victims: listed, levels, ranges, last: self.clock.last() }
        };
        let (plan, damaged) = (begun.plan, RefCell::default());
        // Before tables are written that could not take the place of others. What is written in the end is asked for again.
        let most = if begun.victims.is_empty() { MOST_TABLES } else { plan.most_victims() };
        let admitted = self.heap.admit(self.admit_migration(most, &begun)).map(drop);
        self.measure_overlap(begun.levels.first(), &wanted.tables, &begun.victims);
        let merge = || admitted.and_then(|()| self.merge_where_there_is_room(&begun, &damaged, promote));
        let done = self.timed_cpu(merge).and_then(|merged| {
            let _admitted = self.heap.admit(self.admit_migration(merged.tables.len() as u64, &begun))?;
            let (entries, bytes) = (merged.entries, merged.written.all);
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
                for promotion in promotions {
                    self.promote(part, promotion, None);
                }
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

    /// The merge; once more, without the fast device, where that had no room for it: what it does not take goes to flash.
    fn merge_where_there_is_room(
        &self,
        begun: &Begun<'_, D>,
        damaged: &RefCell<HashSet<Key>>,
        promote: bool,
    ) -> Result<Merged<D>> {
        let times_short = self.flash.times_fast_short();
        match self.merge_range(begun, damaged, promote, true) {
            Err(error)
                if error.kind() == ErrorKind::NoSpace && self.flash.times_fast_short() > times_short =>
            {
                self.merge_range(begun, damaged, promote, false)
            }
            done => done,
        }
    }

    /// Bytes that a migration flushes which writes so many tables.
    fn admit_migration(&self, tables: u64, begun: &Begun<'_, D>) -> u64 {
        (tables + 1) * self.admit_table() + 4096 + begun.victims.len() as u64 * FREE_BYTES
    }

    /// Bytes that naming a table flushes.
    pub fn admit_table(&self) -> u64 {
        self.heap.admit_bytes(0, 64)
    }

    /// Steps 3 and the first half of 4, which are admitted. Returns what is to be promoted.
    fn replace_tables(
        &self,
        part: &Partition<D>,
        begun: &Begun<'_, D>,
        merged: Merged<D>,
    ) -> Result<Vec<Promotion>> {
        let (heap, plan, old) = (&self.heap, begun.plan, &begun.plan.tables);
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
        self.counters.table_bytes.add(merged.written.flash);
        self.counters.stayed_bytes.add(merged.stayed.unwrap_or(0));
        let live: Vec<Arc<LiveTable<D>>> = merged
            .tables
            .into_iter()
            .zip(records)
            .filter_map(|(table, (slots, places))| {
                let manifest = Manifest { slots, home: heap.home_of(&places) };
                let upper = old.first().filter(|_| table.record.level < plan.into);
                let mut live = table.into_live(manifest, merged.cleaned)?;
                live.stayed_share = match upper {
                    Some(_) if merged.stayed.is_some() => 1.0,
                    Some(upper) => upper.stayed_share,
                    None => merged.stayed_share,
                };
                if upper.is_some_and(|upper| plan.is_all_of(upper)) {
                    live.mark_swept(merged.cleaned);
                }
                Some(Arc::new(live))
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
            for Victim { key, entry, bytes, stays } in victims {
                if state.index.get(key) != Some(*entry) && mutant::keep("tombstone") {
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
                migrated.bytes += bytes;
                freed.push(State::<D>::slots_of(heap, key, *entry));
                heap.stage_free(&mut stage, entry.at());
                state.remove(key);
                self.tracker.moved(hash_of(key), Tier::Flash);
            }
            let _drained = stage.drain();
            freed.into_iter().for_each(|slots| state.release(heap, slots));
        }
        migrated
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
            // Not what the pool could not read for its log.
            Err(error) if plan.tables.iter().any(|table| is_of(error, table)) => {
                if let [table] = &*plan.tables {
                    self.leave_out(table, error, true);
                    return Ok(Migrated::default());
                }
                // Of several, which one it is, each by its own error: what is above a damaged table is to be merged with the fast tier as ever.
                let failed: Vec<Option<Error>> =
                    plan.tables.iter().map(|table| read_through(table, |_| false).err()).collect();
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

    /// As [`Core::leave_out`]; that there are too many open files, say, is not the table's fault.
    pub fn leave_out_unread(&self, table: &LiveTable<D>, error: &Error) {
        self.leave_out(table, error, matches!(error, Error::Io { op: "read", .. }));
    }

    fn leave_out_for_now(&self, table: &LiveTable<D>, error: &Error, suspect: bool) {
        table.mark_unreadable(suspect);
        *self.work.unreadable.lock() = Some(error.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{self, Store};
    use tierdb_base::{Location, TierRole};
    use tierdb_engine::{Durability, Engine, KeyRange};

    const POOL: u64 = 132 << 10;

    /// A store whose keys are in one table, with a range that is to be removed from it.
    fn with_removed_range() -> Store {
        let store = Store::new(POOL, rig::options(POOL));
        (0..20).for_each(|number| store.put(&[number], 300));
        store.engine.flush().expect("room");
        let range = KeyRange::half_open([3], [9]);
        store.engine.delete_range(&range, Durability::Durable).expect("room");
        store
    }

    #[test]
    fn what_the_pool_could_not_read_is_no_tables_fault() {
        let store = with_removed_range();
        let levels = store.part().read().tables.clone();
        let table = levels.tables().next().expect("it is on flash");
        let own = format!("flash0/{}", tierdb_table::file_name(table.file().number));
        let pool = store.core().heap.pool.place(0);
        for (place, expected) in [(Location::new(own, 4096), true), (pool, false)] {
            let damage = Error::corrupt(TierRole::Flash, "a block is damaged", place.clone());
            let unread = Error::io("read", place.file.clone(), 0, std::io::ErrorKind::Other.into());
            assert_eq!([is_of(&damage, table), is_of(&unread, table)], [expected; 2], "{place}");
            assert!(!is_of(&Error::io("sync", place.file, 0, std::io::ErrorKind::Other.into()), table));
        }
    }

    #[test]
    fn nothing_is_migrated_after_a_failure_that_lasts() {
        let store = with_removed_range();
        let tables = store.part().read().tables.clone();
        let failed = Error::io("sync", "flash0/other", 0, std::io::ErrorKind::Other.into());
        let _ = store.core().gate.latch().set(failed);
        assert!(store.core().clean_ranges(&|| true).is_err());
        assert!(Arc::ptr_eq(&tables, &store.part().read().tables));
    }
}
