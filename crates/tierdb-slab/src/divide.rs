//! Dividing the key space among partitions, again when it has grown.
//!
//! Which partition has a key is known in DRAM only, so nothing on media changes. All operations wait while it is
//! done; it is done when the store has twice as many keys as the last time, and is out of balance; or is far out of it, and as many keys
//! were written since then as there are: keys that come in order, and leave in order, end up in one partition.

use crate::core::{Core, Router};
use crate::key::Key;
use crate::levels::Levels;
use crate::live::LiveTable;
use crate::partition::{Entry, Partition, RangeTombstone, Unsettled};
use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tierdb_base::mutant;
use tierdb_device::Dir;
use tierdb_pmem::Pool;

/// Fewer keys than this for each partition are not worth dividing.
const LEAST_KEYS: u64 = 16;
/// A store is far out of balance where a partition has so many times as many keys as there would be in each.
const SKEWED: u64 = 8;

/// Smallest and largest keys of stretches that nothing can be cut in: of a table, or of several of different levels that overlap.
fn stretches<D: Dir>(tables: &[Arc<LiveTable<D>>]) -> Vec<(&[u8], &[u8])> {
    let mut ends: Vec<(&[u8], &[u8])> =
        tables.iter().map(|table| (table.smallest(), table.largest())).collect();
    ends.sort_unstable();
    ends.dedup_by(|next, before| {
        let overlap = next.0 <= before.1;
        if overlap {
            before.1 = before.1.max(next.1);
        }
        overlap
    });
    ends
}

/// Divides the key space so that each of at most `wanted` partitions has about as many keys, and none cuts a table. `newest` is in the order of
/// keys.
pub fn divide<D: Dir>(
    newest: Vec<(Key, Entry)>,
    tables: Vec<Arc<LiveTable<D>>>,
    ranges: Vec<Arc<RangeTombstone>>,
    wanted: u32,
) -> Router<D> {
    // Places to cut: keys of the fast tier, and tables, each as heavy as the keys it has.
    let mut weights: Vec<(&[u8], u64)> = newest.iter().map(|(key, _)| (&**key, 1)).collect();
    weights.extend(tables.iter().map(|table| (table.smallest(), table.footer().keys)));
    weights.sort();
    let total: u64 = weights.iter().map(|(_, weight)| weight).sum();
    let stretches = stretches(&tables);
    let mut bounds: Vec<Box<[u8]>> = Vec::new();
    let mut passed = 0;
    for (key, weight) in weights {
        let due = total * (bounds.len() as u64 + 1) / u64::from(wanted);
        if passed >= due.max(1) && bounds.len() + 1 < wanted as usize {
            let inside = stretches.partition_point(|(smallest, _)| *smallest < key).checked_sub(1);
            let inside = inside.map(|number| stretches[number]).filter(|(_, largest)| key <= *largest);
            let bound: Box<[u8]> = inside.map_or(key, |(smallest, _)| smallest).into();
            if bounds.last().is_none_or(|last| *last < bound) {
                bounds.push(bound);
            }
        }
        passed += weight;
    }
    let part_of = |key: &[u8]| bounds.partition_point(|bound| **bound <= *key);
    let mut part_tables: Vec<Vec<Arc<LiveTable<D>>>> = (0..=bounds.len()).map(|_| Vec::new()).collect();
    for table in tables {
        table.dirty_keys.store(0, Ordering::Relaxed);
        part_tables[part_of(table.smallest())].push(table);
    }
    let (count, ranges) = (part_tables.len(), Arc::new(ranges));
    let parts: Vec<Arc<Partition<D>>> = part_tables
        .into_iter()
        .map(|tables| Arc::new(Partition::new(Levels::new(tables), ranges.clone(), count)))
        .collect();
    let mut newest = newest.into_iter().peekable();
    for (number, part) in parts.iter().enumerate() {
        let is_its = |(key, _): &(Key, Entry)| bounds.get(number).is_none_or(|bound| **key < **bound);
        part.write().fill(iter::from_fn(|| newest.next_if(is_its)).collect());
    }
    Router { bounds, parts }
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Divides the key space again if that is due.
    pub fn divide_if_due(&self) {
        let wanted = u64::from(self.options.partitions);
        let (parts, largest, total) = self.key_counts();
        let unbalanced = parts < wanted || largest > total / parts * 2;
        let work = &self.work;
        let divided_at = work.divided_at.load(Ordering::Relaxed);
        // Where tables that overlap keep partitions from being cut, what it came to the last time is not to be done again.
        let was_largest = work.largest_pct.load(Ordering::Relaxed);
        let is_skewed = largest * 100 > (total / wanted * SKEWED * 100).max(total * 2 * was_largest);
        let written = self.counters.puts.get() + self.counters.batch_keys.get();
        let since = written.saturating_sub(work.divided_after.load(Ordering::Relaxed));
        let is_other = unbalanced && total >= 2 * divided_at || is_skewed && since >= total;
        if wanted > 1 && total >= LEAST_KEYS * wanted && is_other && self.divide_again() {
            let (_, largest, now) = self.key_counts();
            work.largest_pct.store(largest * 100 / now.max(1), Ordering::Relaxed);
            work.divided_at.store(total, Ordering::Relaxed);
            work.divided_after.store(written, Ordering::Relaxed);
        }
    }

    /// How many partitions there are, how many keys the largest one has, and all of them.
    fn key_counts(&self) -> (u64, u64, u64) {
        let router = self.router.read();
        let keys = |part: &Arc<Partition<D>>| {
            let state = part.read();
            state.index.len() as u64 + state.tables.keys()
        };
        let keys: Vec<u64> = router.parts.iter().map(keys).collect();
        (keys.len() as u64, keys.iter().copied().max().unwrap_or(0), keys.iter().sum::<u64>())
    }

    /// `false` if somebody works on whole partitions without the router's lock, or the pool has no room: it is to be done another
    /// time then.
    fn divide_again(&self) -> bool {
        let Some(_nobody) = self.work.dividing.try_write() else { return false };
        let Ok(_admitted) = self.heap.admit(0) else { return false };
        let mut router = self.router.write();
        self.drain_parts(&router.parts);
        let mut unsettled = Unsettled::default();
        router.parts.iter().for_each(|part| part.hand_over(&mut unsettled));
        let mut newest = Vec::new();
        let mut tables: Vec<Arc<LiveTable<D>>> = Vec::new();
        let mut ranges: BTreeMap<u64, Arc<RangeTombstone>> = BTreeMap::new();
        let mut old = Vec::new();
        for part in &router.parts {
            let mut state = part.write();
            let index = std::mem::take(&mut state.index);
            newest.reserve(index.len());
            newest.extend(index.iter().map(|(key, entry)| (Key::from_slice(key), entry)));
            tables.extend(state.tables.tables().cloned());
            let kept = std::mem::take(&mut state.ranges);
            let kept = kept.iter().filter(|_| mutant::keep("tombstone"));
            ranges.extend(kept.map(|range| (range.seqno, range.clone())));
            old.extend(std::mem::take(&mut state.old).into_versions());
            state.tables = Arc::new(Levels::new(Vec::new()));
            state.forget_counts();
        }
        let divided = divide(newest, tables, ranges.into_values().collect(), self.options.partitions);
        for (key, version) in old {
            divided.part_of(&key).write().old.insert(key, version);
        }
        divided.parts.iter().for_each(|part| part.take_over(&unsettled));
        *router = divided;
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Options;
    use crate::levels::Levels;
    use crate::partition::{Partition, Unsettled};
    use crate::rig::{self, Store};
    use tierdb_engine::{Durability, Engine};
    use tierdb_sim::SimDir;

    #[test]
    fn a_division_that_came_at_the_wrong_moment_is_still_due() {
        const POOL: u64 = 132 << 10;
        let store = Store::new(POOL, Options { partitions: 2, ..rig::options(POOL) });
        let core = store.core();
        {
            let _somebody = core.work.dividing.read();
            (0..64).for_each(|number| store.put(&[b'k', number], 10));
            core.divide_if_due();
            assert_eq!(core.router.read().parts.len(), 1);
        }
        core.divide_if_due();
        assert_eq!(core.router.read().parts.len(), 2);
    }

    /// Keys that come in order, of which the oldest leave: there are as many at any time, and soon all are in the last partition.
    #[test]
    fn a_store_whose_keys_have_moved_on_is_divided_again() {
        const POOL: u64 = 132 << 10;
        const WINDOW: u16 = 256;
        const PARTITIONS: u32 = 16;
        let store = Store::new(POOL, Options { partitions: PARTITIONS, ..rig::options(POOL) });
        let core = store.core();
        let sizes = || {
            let parts = core.router.read().parts.clone();
            parts.iter().map(|part| part.read().index.len()).collect::<Vec<_>>()
        };
        for number in 0..4 * WINDOW {
            store.put(&number.to_be_bytes(), 10);
            if let Some(oldest) = number.checked_sub(WINDOW) {
                store.engine.delete(&oldest.to_be_bytes(), Durability::Durable).expect("room");
            }
            core.divide_if_due();
        }
        let sizes = sizes();
        let (largest, all) = (sizes.iter().max().expect("some"), sizes.iter().sum::<usize>());
        assert_eq!((sizes.len(), all), (PARTITIONS as usize, usize::from(WINDOW)));
        assert!(*largest < all * 3 / 4, "{sizes:?}");
    }

    /// Readers wait for what a writer has not been told of yet, wherever the key has gone, and no longer than it has not.
    #[test]
    fn writes_on_their_way_are_settled_where_their_keys_have_gone() {
        const POOL: u64 = 132 << 10;
        let store = Store::new(POOL, Options { partitions: 2, ..rig::options(POOL) });
        let core = store.core();
        (0..64).for_each(|number| store.put(&[b'k', number], 10));
        let before = core.router.read().parts[0].clone();
        before.note_unsettled(1, 100);
        core.divide_if_due();
        let parts = || core.router.read().parts.clone();
        assert_eq!(parts().len(), 2);
        assert!(parts().iter().all(|part| part.any_unsettled()));
        core.settle(&[before], 100);
        assert!(!parts().iter().any(|part| part.any_unsettled()));

        // The newest write of a key counts, whichever partition knows of it.
        for (first, second) in [(100, 200), (200, 100)] {
            let mut all = Unsettled::default();
            for (part, lsn) in parts().iter().zip([first, second]) {
                part.note_unsettled(1, lsn);
                part.hand_over(&mut all);
            }
            let next = Partition::new(Levels::<SimDir>::new(Vec::new()), Default::default(), 1);
            next.take_over(&all);
            assert_eq!(next.unsettled(b"key", || 1), Some(200));
        }
    }
}
