//! Which range is migrated (PrismDB §4.4.1, §4.4.2, §5.3): candidates are the key ranges of consecutive tables, scored by how
//! many keys would leave the fast tier for each that is rewritten on flash.
//!
//! Of a range with `tn` keys on the fast tier, a share `p` of them popular, and tables of `tf` keys of which a share
//! `o` is also on the fast tier, the metric is `M = (1 - p) tn / (1 - o) tf` (Equation 1, with `F = tf / tn`). So of several tables
//! numerators and denominators are added up: that is the average of their `p`, `o` and `F`, each weighted by the keys it is a share of.

use crate::config::Metric;
use crate::core::Core;
use crate::levels::FIRST;
use crate::partition::{Bounds, Partition, State, bounds};
use crate::plan::{Fate, Plan, Victims};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};
use std::sync::atomic::Ordering;
use tierdb_base::Seqno;
use tierdb_device::{Cause, Dir};
use tierdb_pmem::Pool;

/// Keys of a table's range that are looked at for the sampled metric, in runs of neighbours. How many there are is known
/// exactly, by a count that each table keeps.
const SAMPLE: u64 = 256;
const RUN: usize = 16;
/// Ranges whose samples are compared where buckets have found nothing: a sample takes far longer than a bucket.
const SAMPLED: usize = 8;

/// What a migration of the range of a table would do, in keys.
#[derive(Clone, Copy, Debug)]
struct Count {
    /// Those that leave the fast tier: `(1 - p) tn`.
    leaving: f64,
    /// Those of the table that are rewritten as they are: `(1 - o) tf`, or one.
    rewritten: f64,
}

/// The runs of consecutive numbers of `window` for which there is a count.
fn runs(window: Range<usize>, counts: &BTreeMap<usize, Count>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for number in window.filter(|number| counts.contains_key(number)) {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

fn score<'c>(metric: Metric, counts: impl Iterator<Item = &'c Count>) -> f64 {
    let (mut leaving, mut rewritten) = (0.0, 0.0);
    for count in counts {
        leaving += count.leaving;
        rewritten += count.rewritten;
    }
    match metric {
        Metric::MaxUnpopular => leaving,
        Metric::SampledM | Metric::ApproxM | Metric::PreciseM => leaving / rewritten,
    }
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// The best range of `part` for such victims, with its score; `None` if no range has any. A range is that of `width` tables: of fewer
    /// only where there are not so many, or damaged ones between them.
    pub fn choose(
        &self,
        part: &Partition<D>,
        victims: Victims,
        width: usize,
        metric: Metric,
    ) -> Option<(f64, Plan<D>)> {
        let state = part.read();
        let tables = state.tables.first().tables();
        if state.index.is_empty() {
            return None;
        }
        if tables.is_empty() {
            let all = Plan::of_table(&state.tables, FIRST, 0).with_unmerged(&state.tables);
            return (!all.is_damaged()).then_some((f64::MAX, all));
        }
        let width = width.min(tables.len());
        let windows = tables.len() - width + 1;
        let choices = match self.options.choices as usize {
            0 => windows,
            choices if metric != self.options.metric => choices.min(SAMPLED).min(windows),
            choices => choices.min(windows),
        };
        // All of them where that is no more work; at random, with repetition, otherwise.
        let exhaustive = choices == windows || victims != Victims::Unpopular;
        let candidates: Vec<usize> = if exhaustive {
            (0..windows).collect()
        } else {
            (0..choices).map(|_| fastrand::usize(..windows)).collect()
        };
        let wanted: BTreeSet<usize> = candidates.iter().flat_map(|first| *first..first + width).collect();
        let counts: BTreeMap<usize, Count> = wanted
            .into_iter()
            .filter_map(|number| Some((number, self.count(&state, number, victims, metric)?)))
            .collect();
        let scored = candidates
            .into_iter()
            .flat_map(|first| runs(first..first + width, &counts))
            .map(|window| (score(metric, counts.range(window.clone()).map(|(_, count)| count)), window))
            .filter(|(score, _)| *score > 0.0);
        let (score, window) = scored.max_by(|one, other| one.0.total_cmp(&other.0))?;
        Some((score, Plan::of_tables(&state.tables, FIRST, window).for_room(&state.tables)))
    }

    /// `None` if the table, or what is not merged with it, was found not to be readable, or is now: it is left out from now on.
    fn count(&self, state: &State<D>, number: usize, victims: Victims, metric: Metric) -> Option<Count> {
        let range = state.tables.first().range_of(number);
        let table = &state.tables.first().tables()[number];
        if table.is_damaged() || state.tables.unmerged(&range).any(|table| table.is_damaged()) {
            return None;
        }
        let table_keys = table.footer().keys as f64;
        let dirty_keys = table.dirty_keys.load(Ordering::Relaxed);
        let none = Count { leaving: 0.0, rewritten: table_keys.max(1.0) };
        let Some(all) = bounds(&range).filter(|_| dirty_keys > 0) else { return Some(none) };
        if let Some(bucket) =
            table.bucket().filter(|_| metric == Metric::ApproxM && victims != Victims::Tombstones)
        {
            let keys = dirty_keys as f64;
            let popular = if victims == Victims::Unpopular { bucket.popular() } else { 0.0 };
            return Some(Count {
                // What was read once may still not be pinned, so no range is out of the question.
                leaving: (keys - popular).max(1.0),
                rewritten: (table_keys - bucket.overlap() * keys).max(1.0),
            });
        }
        let whole = match table.table(Cause::Migration) {
            Ok(whole) => whole,
            Err(error) => {
                self.leave_out_unread(table, &error);
                return None;
            }
        };
        let fate = self.fates(state, victims);
        let (mut looked_at, mut leaving, mut overlap) = (0_u64, 0_u64, 0_u64);
        let mut look = |bounds: Bounds<'_>, most: usize| {
            // Copies are passed over, but not without end.
            let ahead = state.index.range(bounds).take(most.saturating_mul(4));
            for (key, entry) in ahead.filter(|(_, entry)| !entry.is_clean()).take(most) {
                looked_at += 1;
                leaving += u64::from(fate(key, entry) == Fate::Leaves);
                if metric != Metric::MaxUnpopular {
                    overlap += u64::from(whole.locate(key, Seqno::MAX).is_some());
                }
            }
        };
        if metric != Metric::SampledM || dirty_keys <= SAMPLE || victims == Victims::Tombstones {
            look(all, usize::MAX);
        } else {
            // Some keys behind each of some places in the table; some from the range's start, lest there be none.
            let index = whole.index();
            look(all, RUN);
            for _ in 1..SAMPLE as usize / RUN {
                let from = index.separator(fastrand::usize(..index.blocks()));
                if range.contains(&from) {
                    look((Bound::Included(&from), all.1), RUN);
                }
            }
        }
        if looked_at == 0 {
            return Some(none);
        }
        let of_all = |sampled: u64| sampled as f64 / looked_at as f64 * dirty_keys as f64;
        Some(Count { leaving: of_all(leaving), rewritten: (table_keys - of_all(overlap)).max(1.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::core::hash_of;
    use crate::rig::{self, Store};
    use std::sync::Arc;
    use tierdb_base::Error;
    use tierdb_engine::{Durability, Engine};

    const POOL: u64 = 260 << 10;
    const METRICS: [Metric; 4] = [Metric::SampledM, Metric::ApproxM, Metric::PreciseM, Metric::MaxUnpopular];

    /// A store that compares all ranges, and merges them at once, with keys of which flash has the newest version, in several tables.
    fn on_flash(metric: Metric, keys: u8) -> Store {
        let options =
            Options { metric, choices: 0, pinned_pct: Some(100), unmerged_pct: 0, ..rig::options(POOL) };
        let store = Store::new(POOL, options);
        (0..keys).for_each(|key| store.put(&[key], 700));
        store.engine.flush().expect("room");
        store
    }

    fn read(store: &Store, key: u8) {
        store.engine.get(&[key]).expect("whole").expect("there");
    }

    /// The keys of the range of table `number`.
    fn keys_of(store: &Store, number: usize) -> Vec<u8> {
        let range = store.part().read().tables.first().range_of(number);
        (0..=u8::MAX).filter(|key| range.contains(&[*key])).collect()
    }

    #[test]
    fn buckets_tell_the_range_with_the_most_unpopular_keys() {
        let store = on_flash(Metric::ApproxM, 100);
        let (core, part) = (store.core(), store.part());
        let keys: Vec<u8> = keys_of(&store, 1);
        (0..100).for_each(|key| store.put(&[key], 700));
        assert!(core.choose(&part, Victims::Tombstones, 1, core.options.metric).is_none(), "there are none");
        (0..100).filter(|key| !keys[4..].contains(key)).for_each(|key| read(&store, key));
        let (score, plan) =
            core.choose(&part, Victims::Unpopular, 1, core.options.metric).expect("unpopular keys");
        let levels = part.read().tables.clone();
        let table = &levels.first().tables()[1];
        assert!(Arc::ptr_eq(&plan.tables[0], table));
        // Nobody has measured how many of them flash has.
        let (all, leaving) = (keys.len() as f64, keys.len() as f64 - 4.0);
        assert!((score - leaving / all).abs() < 0.05, "{score}");
        core.migrate(&part, &plan, Victims::Unpopular, false).expect("room");
        let levels = part.read().tables.clone();
        let heir = levels.first().bucket_of(&keys[..1]).expect("each table has one");
        assert_eq!(heir.overlap(), 1.0);
    }

    #[test]
    fn a_migration_leaves_the_bits_of_what_stays() {
        let store = on_flash(Metric::ApproxM, 100);
        let (core, part) = (store.core(), store.part());
        let keys: Vec<u8> = keys_of(&store, 1);
        (0..100).for_each(|key| store.put(&[key], 700));
        let (popular, deleted) = (&keys[..5], &keys[5..7]);
        keys[..7].iter().for_each(|key| read(&store, *key));
        // They were written lately, and so are not copied.
        popular.iter().for_each(|key| store.put(&[*key], 700));
        let bits = || -> Vec<u8> {
            let levels = part.read().tables.clone();
            let has = |key: &u8| {
                levels.first().bucket_of(&[*key]).is_some_and(|bucket| bucket.has(hash_of(&[*key])))
            };
            keys.iter().copied().filter(has).collect()
        };
        assert_eq!(bits(), keys[..7]);
        deleted.iter().for_each(|key| store.engine.delete(&[*key], Durability::Grouped).expect("room"));
        assert_eq!(bits(), popular);
        let plan = Plan::of_table(&part.read().tables, FIRST, 1);
        let migrated = core.migrate(&part, &plan, Victims::Unpopular, false).expect("room");
        assert_eq!(migrated.keys, keys.len() as u64 - 5);
        assert_eq!(bits(), popular);
        let plan = Plan::of_table(&part.read().tables, FIRST, 1);
        core.migrate(&part, &plan, Victims::All, false).expect("room");
        assert_eq!(bits(), []);
    }

    #[test]
    fn where_buckets_know_of_nothing_that_leaves_samples_do() {
        let store = on_flash(Metric::ApproxM, 100);
        let read_then_written = keys_of(&store, 1);
        read_then_written.iter().for_each(|key| read(&store, *key));
        read_then_written.iter().for_each(|key| store.put(&[*key], 700));
        let never_read = &keys_of(&store, 3)[..2];
        never_read.iter().for_each(|key| store.put(&[*key], 700));
        let migrated = store.core().migrate_best(Victims::Unpopular, 0.0).expect("room");
        assert_eq!(migrated.keys, 2);
    }

    #[test]
    fn only_the_papers_metric_keeps_buckets() {
        for metric in METRICS {
            let store = on_flash(metric, 20);
            let levels = store.part().read().tables.clone();
            let buckets = levels.tables().filter(|table| table.bucket().is_some()).count();
            assert_eq!(buckets > 0, metric == Metric::ApproxM, "{metric:?}");
        }
    }

    #[test]
    fn ranges_of_several_tables_are_scored_and_migrated_as_one() {
        for metric in METRICS {
            let store = on_flash(metric, 150);
            let (core, part) = (store.core(), store.part());
            let levels = part.read().tables.clone();
            let tables = levels.first().tables();
            let plan_of = |width| {
                core.choose(&part, Victims::Unpopular, width, core.options.metric).expect("unpopular keys").1
            };
            let numbers = |plan: &Plan<_>| -> Vec<usize> {
                plan.tables.iter().filter_map(|table| levels.first().position(table)).collect()
            };
            // The most has to go from table 1. With a neighbour, the most has to go from there and table 2.
            let dirty = [(1, 10), (2, 8), (4, 9)];
            for (number, keys) in dirty {
                keys_of(&store, number).iter().take(keys).for_each(|key| store.put(&[*key], 700));
            }
            assert_eq!(numbers(&plan_of(1)), [1], "{metric:?}");
            let plan = plan_of(2);
            assert_eq!(numbers(&plan), [1, 2], "{metric:?}");
            let (first, last) = (levels.first().range_of(1), levels.first().range_of(2));
            assert_eq!((&plan.range.start, &plan.range.end), (&first.start, &last.end));
            assert_eq!(numbers(&plan_of(99)).len(), tables.len(), "{metric:?}: there are no more");
            // What is damaged is in no range, and its neighbours are in ranges without it.
            tables[2].mark_unreadable(false);
            let beside = numbers(&plan_of(2));
            assert!(beside.contains(&1) && !beside.contains(&2), "{metric:?}: {beside:?}");
            tables[1].mark_unreadable(false);
            tables[3].mark_unreadable(false);
            assert!(numbers(&plan_of(2)).contains(&4), "{metric:?}");
            core.work.unreadable.lock().replace(Error::invalid("not read"));
            assert!(core.forget_unreadable());
            let migrated = core.migrate(&part, &plan, Victims::Unpopular, false).expect("room");
            assert_eq!((migrated.keys, migrated.tables), (18, 2), "{metric:?}");
        }
    }

    #[test]
    fn the_victims_of_a_range_are_as_many_as_its_tables_take() {
        let store = on_flash(Metric::SampledM, 24);
        let part = store.part();
        let tables = part.read().tables.first().tables().len();
        let plan = Plan::of_tables(&part.read().tables, FIRST, 0..tables);
        (0..150).for_each(|key| store.put(&[key], 700));
        let migrated = store.core().migrate(&part, &plan, Victims::All, false).expect("room");
        // One table takes 96 KiB, so fewer of them.
        assert!(migrated.keys == 150 && tables > 1, "{} keys, {tables} tables", migrated.keys);
    }
}
