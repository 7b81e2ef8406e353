//! What a store says about itself.

use crate::bucket::Bucket;
use crate::core::Core;
use crate::levels::FIRST;
use crate::tune::{self, WearBudget};
use tierdb_base::TierRole;
use tierdb_device::Dir;
use tierdb_engine::{IoStats, Stats, TierStats};
use tierdb_pmem::Pool;

/// Bytes of DRAM that a version takes which is kept for snapshots: its places in two trees, and a list with room for four of its key.
const KEPT_BYTES: u64 = 370;

impl<P: Pool, D: Dir> Core<P, D> {
    /// Bytes of DRAM by part.
    pub fn memory_parts(&self) -> Vec<(&'static str, u64)> {
        let (mut index, mut tables, mut kept) = (0, self.flash.loaded_bytes(), 0);
        for part in &self.router.read().parts {
            let state = part.read();
            index += state.index.memory_bytes();
            tables += state.tables.memory_bytes();
            kept += state.old.len() as u64 * KEPT_BYTES;
        }
        // A logged pool is DRAM, all of it or a part; of one that is memory itself, nothing is.
        let (pool, used) = (&self.heap.pool, self.heap.slabs.used_bytes());
        let pool = pool.dram_bytes().map_or(0, |bytes| if pool.is_in_memory() { used } else { bytes });
        vec![
            ("pool image", pool),
            ("index", index),
            ("versions kept for snapshots", kept),
            ("table indexes and filters", tables),
            ("slot maps", self.heap.slabs.memory_bytes()),
            ("tracker", self.tracker.memory_bytes()),
            ("object cache", self.cache.stats().bytes),
        ]
    }

    /// The store's statistics. The number of keys is an estimate where there are tables: a key that was written again may be on both tiers,
    /// and in several levels, and what was removed with a range may be in a table still.
    pub fn stats(&self) -> Stats {
        let c = &self.counters;
        let slabs = &self.heap.slabs;
        let (mut fast_keys, mut flash_keys, mut tombstones, mut tables) = (0_u64, 0_u64, 0_u64, 0_u64);
        let mut keys_left = 0_u64;
        let (mut partitions, mut copies, mut table_parts) = (0_u64, 0_u64, 0_u64);
        let (mut tables_below, mut tables_unmerged) = (0_u64, 0_u64);
        for part in &self.router.read().parts {
            let state = part.read();
            partitions += 1;
            fast_keys += state.index.len() as u64 - state.tombstones;
            tombstones += state.tombstones;
            copies += state.copies;
            for table in state.tables.tables() {
                if !state.ranges.iter().any(|range| range.removes_all_of(table)) {
                    let keys = table.footer().keys.saturating_sub(table.footer().tombstones);
                    // Of what is not merged the first level has the same share as of what was on the fast tier.
                    let is_unmerged = table.level() < FIRST;
                    let bucket = is_unmerged.then(|| state.tables.first().bucket_of(table.smallest()));
                    let twice = bucket.flatten().map_or(0.0, Bucket::overlap);
                    keys_left += keys - (keys as f64 * twice) as u64;
                }
                tables_below += u64::from(table.level() > FIRST);
                tables_unmerged += u64::from(table.level() < FIRST);
                flash_keys += table.footer().keys;
                table_parts += table.bytes_on_fast_tier();
                tables += 1;
            }
        }
        let mut tiers = vec![TierStats {
            role: TierRole::Fast,
            path: self.heap.pool.name(),
            medium: self.heap.pool.domain().to_string(),
            capacity: self.heap.pool.len(),
            used: slabs.used_bytes(),
            parts: vec![
                ("records and room in their slots", slabs.used_bytes().saturating_sub(table_parts)),
                ("table indexes and filters", table_parts),
                ("free for records", slabs.free_bytes()),
            ],
            io: IoStats::of_fast(&self.fast_meter, &*self.heap.pool),
        }];
        let dirs = self.flash.fast_dirs().iter().chain(self.flash.dirs());
        tiers.extend(dirs.map(|dir| TierStats {
            role: if dir.is_fast() { TierRole::Fast } else { TierRole::Flash },
            path: dir.name.to_string(),
            medium: dir.medium.clone(),
            capacity: dir.capacity,
            used: dir.used(),
            parts: vec![("tables", dir.used())],
            io: IoStats::by_cause(&dir.meter),
        }));
        let clocks = self.tracker.distribution();
        let mut stats = Stats {
            engine: "slab",
            mode: self.mode.clone(),
            // Tables have what copies are of, and what tombstones hide.
            keys: (fast_keys + keys_left).saturating_sub(copies + tombstones),
            keys_estimated: tables > 0,
            memory: self.memory_parts(),
            memory_budget: self.options.memory,
            tiers,
            cache: self.cache.stats(),
            write_buffer_hits: c.fast_hits.get(),
            user_bytes_written: c.user_bytes.get(),
            operations: vec![
                ("get", c.gets.get()),
                ("put", c.puts.get()),
                ("delete", c.deletes.get()),
                ("batch", c.batches.get()),
                ("cursor", c.cursors.get()),
            ],
            latencies: self.latencies.stats(),
            stall_ns: c.stall_ns.get(),
            counters: vec![
                ("reads_fast", c.fast_hits.get()),
                ("reads_fast_cached", c.fast_cached.get()),
                ("reads_cached", c.cache_hits.get()),
                ("reads_fast_tables", c.fast_table_hits.get()),
                ("reads_flash", c.flash_hits.get()),
                ("reads_missing", c.misses.get()),
                ("stalls", c.stalls.get()),
                ("migrations", c.migrations.get()),
                ("migrations_held_back", c.held_back.get()),
                ("migrations_left_apart", c.left_apart.get()),
                ("migrations_left_above_another", c.left_above.get()),
                ("migration_paced_ns", c.paced_ns.get()),
                ("migration_cpu_ns", c.migration_cpu_ns.get()),
                ("demoted_keys", c.demoted.get()),
                ("promoted_keys", c.promoted.get()),
                ("cleaned_keys", c.cleaned.get()),
                ("dropped_copies", c.dropped_copies.get()),
                ("tables_written", c.tables_written.get()),
                ("tables_replaced", c.tables_replaced.get()),
                ("tables_merged_down", c.merged_down.get()),
                ("tables_moved_down", c.moved_down.get()),
                ("bytes_that_stayed_in_the_first_level", c.stayed_bytes.get()),
                ("table_entries_written", c.entries_written.get()),
                ("table_bytes_written", c.table_bytes.get()),
                ("table_indexes_loaded", self.flash.loads.get()),
                ("table_indexes_loaded_from_flash", self.flash.loads_from_flash.get()),
                ("moved_records", c.moved_records.get()),
            ],
            gauges: vec![
                ("keys_fast", fast_keys),
                ("copies_fast", copies),
                ("tombstones_fast", tombstones),
                ("keys_flash", flash_keys),
                ("tables", tables),
                ("levels", self.levels.unsigned_abs().into()),
                ("tables_below_the_first_level", tables_below),
                ("tables_not_merged_with_the_first_level", tables_unmerged),
                ("tracked_clock_0", clocks[0]),
                ("tracked_clock_1", clocks[1]),
                ("tracked_clock_2", clocks[2]),
                ("tracked_clock_3", clocks[3]),
                ("tracked_clock_4", clocks[4]),
                ("tracked_clock_5", clocks[5]),
                ("tracked_clock_6", clocks[6]),
                ("tracked_clock_7", clocks[7]),
                ("tracked_on_flash", self.tracker.on_flash()),
                ("tracker_capacity", self.tracker.capacity()),
                ("pinned_pct", u64::from(self.pinned.pct())),
                ("copied_pct", u64::from(self.copied_pct())),
                ("partitions", partitions),
                ("first_level_pct_of_tracked", self.stay_share.pct() as u64),
                ("lost_records", self.lost.slots().len() as u64),
            ],
            poisoned: self.gate.latch().check().err().map(|error| error.to_string()),
        };
        stats.counters.extend(self.heap.pool.counters());
        let now = tune::now();
        let budgets = || self.flash.dirs().iter().map(|dir| &dir.budget);
        let (per_day, spent): (Vec<u64>, Vec<u64>) = budgets().filter_map(WearBudget::per_day).unzip();
        if !per_day.is_empty() {
            let left: i64 = budgets().filter_map(|budget| budget.left(now)).map(|left| left.max(0)).sum();
            stats.gauges.extend([
                ("flash_budget_bytes_per_day", per_day.iter().sum()),
                ("flash_budget_spent_bytes", spent.iter().sum()),
                ("flash_budget_left_bytes", left as u64),
                ("flash_budget_holds_back_migration", u64::from(self.is_held_back())),
            ]);
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Options;
    use crate::engine::SlabStore;
    use crate::rig::{self, Store};
    use tierdb_engine::{Durability, Engine, KeyRange};

    const POOL: u64 = 132 << 10;

    /// A store of short values tracks more keys, as soon as it is known how short they are.
    #[test]
    fn as_many_keys_are_tracked_as_their_length_leaves_room_for() {
        let options = Options { pinned_pct: Some(100), ..rig::options(POOL) };
        let store = Store::new(POOL, options.clone());
        (0..1100_u16).for_each(|number| store.put(&number.to_be_bytes(), 8));
        let tracked = |engine: &dyn Engine| engine.stats().figure("tracker_capacity").expect("a gauge");
        let before = tracked(&store.engine);
        let Store { world, engine } = store;
        drop(engine);
        let engine = SlabStore::open(rig::media(&world, 1 << 20), options).expect("whole");
        assert!(tracked(&engine) > 2 * before, "{} and {before}", tracked(&engine));
    }

    #[test]
    fn what_is_known_to_be_on_both_tiers_is_counted_once() {
        // Without an object cache, which would answer.
        let options = Options { memory: 1 << 10, pinned_pct: Some(100), ..rig::options(POOL) };
        let store = Store::new(POOL, options);
        let keys = || (store.engine.stats().keys, store.engine.stats().keys_estimated);
        (0..20).for_each(|number| store.put(&[b'k', number], 700));
        store.engine.delete(&[b'k', 0], Durability::Durable).expect("room");
        assert_eq!(keys(), (19, false));
        store.engine.flush().expect("room");
        for _ in 0..20 {
            store.engine.get(&[b'k', 3]).expect("whole").expect("there");
        }
        assert_eq!((keys(), store.part().read().copies), ((19, true), 1));
        (1..3).for_each(|number| store.engine.delete(&[b'k', number], Durability::Durable).expect("room"));
        assert_eq!(keys(), (17, true));
        store.engine.delete_range(&KeyRange::all(), Durability::Durable).expect("room");
        assert!(store.part().read().tables.tables().next().is_some());
        assert_eq!(keys(), (0, true));
    }
}
