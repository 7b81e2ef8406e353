//! Goal: merging, retention and visibility are those of a sorted map of versions.
//! Method: random versions spread over tables and memory, every answer compared with a plain computation.

mod kit;

use kit::{At, Kind, Model, drain, entry_of, new_world, random_model, tables, write};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use tierdb_base::{Error, Result, Seqno};
use tierdb_device::{Cause, MeterSnapshot};
use tierdb_sim::{FaultKind, FaultPlan, Ops, SimFile};
use tierdb_table::{
    Chain, Direction, Entry, EntryRef, Merge, ReadAhead, Retain, Retention, Source, Table, TableIter, Visible,
};

/// Entries in memory, as an engine's own side would give them.
struct Memory {
    entries: Vec<Entry>,
    next: usize,
    /// Fails instead of giving this entry.
    fails_at: Option<usize>,
}

impl Memory {
    fn new(entries: Vec<Entry>) -> Self {
        Memory { entries, next: 0, fails_at: None }
    }
}

impl Source for Memory {
    fn entry(&self) -> Option<EntryRef<'_>> {
        if self.fails_at.is_some_and(|at| self.next > at) {
            return None;
        }
        self.entries.get(self.next.checked_sub(1)?).map(Entry::as_ref)
    }

    fn advance(&mut self) -> Result<()> {
        self.next = (self.next + 1).min(self.entries.len() + 1);
        if self.fails_at.is_some_and(|at| self.next > at) { Err(Error::invalid("it fails")) } else { Ok(()) }
    }
}

const KIND: Kind = Kind { keys: 80, key_len: 6, value_len: 400, versions: 8 };

/// Spreads `model` over `parts` sources, two of them tables, the others in memory.
fn spread(
    model: &Model,
    parts: usize,
    direction: Direction,
    rng: &mut fastrand::Rng,
) -> Vec<Box<dyn Source>> {
    let mut split = vec![Model::new(); parts];
    for (at, value) in model {
        split[rng.usize(..parts)].insert(at.clone(), value.clone());
    }
    let world = new_world();
    let tables = tables(&world);
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    for (number, part) in split.iter().enumerate() {
        if number < 2 && !part.is_empty() {
            let table = Arc::new(write(&tables, number as u64, part).expect("write"));
            let ahead = ReadAhead { first: 4096, most: 16 << 10 };
            let range = (Bound::Unbounded, Bound::Unbounded);
            sources.push(Box::new(table.iter(range, direction, ahead, Cause::Gc)));
        } else {
            let mut entries = kit::entries(part);
            if direction == Direction::Backward {
                entries.reverse();
            }
            sources.push(Box::new(Memory::new(entries)));
        }
    }
    sources
}

#[test]
fn a_merge_gives_all_entries_in_order() {
    for seed in 0..100 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let model = random_model(&mut rng, &KIND);
        let parts = rng.usize(1..7);
        let mut wanted = kit::entries(&model);
        for direction in [Direction::Forward, Direction::Backward] {
            let mut merge = Merge::new(spread(&model, parts, direction, &mut rng), direction);
            assert_eq!((merge.current(), merge.sources().len()), (None, parts));
            let (found, error) = drain(&mut merge, usize::MAX);
            assert!(error.is_none() && found == wanted, "seed {seed}, {direction:?}");
            wanted.reverse();
        }
    }
}

#[test]
fn a_chain_gives_one_table_after_another_and_reads_no_further() {
    let mut rng = fastrand::Rng::with_seed(3);
    let model = random_model(&mut rng, &KIND);
    let all = kit::entries(&model);
    let (world, mut runs, mut part) = (new_world(), Vec::new(), Model::new());
    let tables = tables(&world);
    for (at, value) in &model {
        let full = part.len() > 25 && part.keys().next_back().is_some_and(|last| last.0 != at.0);
        if full {
            let part = std::mem::take(&mut part);
            runs.push(Arc::new(write(&tables, runs.len() as u64, &part).expect("write")));
        }
        part.insert(at.clone(), value.clone());
    }
    assert!(runs.len() > 3);
    let last =
        all.iter().rposition(|entry| entry.key == runs[runs.len() - 1].footer().largest).expect("some");
    let mut wanted = all[..=last].to_vec();
    let range = (Bound::Unbounded, Bound::Unbounded);
    for direction in [Direction::Forward, Direction::Backward] {
        let chain = || {
            let tables: Vec<_> = match direction {
                Direction::Forward => runs.iter().collect(),
                Direction::Backward => runs.iter().rev().collect(),
            };
            let open = |table: &Arc<Table<SimFile>>| {
                table.iter(range, direction, ReadAhead::default(), Cause::Foreground)
            };
            Chain::new(tables.into_iter().map(open))
        };
        let before = tables.meter().get(Cause::Foreground).reads;
        let few = drain(&mut chain(), 3).0;
        assert!(few == wanted[..3] && tables.meter().get(Cause::Foreground).reads - before <= 2);
        let (found, error) = drain(&mut chain(), usize::MAX);
        assert!(error.is_none() && found == wanted, "{direction:?}");
        world.inject(FaultPlan::nth(4, FaultKind::Eio).on(Ops::READ));
        let (found, error) = drain(&mut chain(), usize::MAX);
        assert_eq!(world.heal().hit, 1);
        assert!(error.is_some() && !found.is_empty() && wanted.starts_with(&found));
        wanted.reverse();
    }
}

#[test]
fn of_equal_entries_the_first_source_is_first() {
    let entry = |value: &[u8]| Entry { key: b"k".to_vec(), seqno: 3, value: Some(value.to_vec()) };
    let sources = || (b'a'..b'f').map(|value| Memory::new(vec![entry(&[value])])).collect();
    for direction in [Direction::Forward, Direction::Backward] {
        let values: Vec<_> = drain(&mut Merge::new(sources(), direction), 9).0;
        assert_eq!(values, (b'a'..b'f').map(|value| entry(&[value])).collect::<Vec<_>>());
        let seen = drain(&mut Visible::new(Merge::new(sources(), direction), direction, 3), 9).0;
        assert_eq!(seen, [entry(b"a")]);
    }
    let mut kept =
        Retain::new(Merge::new(sources(), Direction::Forward), Retention::new(vec![]), |_: &[u8]| false);
    assert_eq!(drain(&mut kept, 9).0, [entry(b"a")]);
    assert_eq!((kept.shadowed(), kept.tombstones(), kept.source().sources().len()), (4, 0, 5));
}

/// What `snapshot` reads in `model`.
fn read(model: &BTreeMap<At, Option<Vec<u8>>>, snapshot: Seqno) -> BTreeMap<Vec<u8>, (Seqno, Vec<u8>)> {
    let mut seen: BTreeMap<Vec<u8>, (Seqno, Option<Vec<u8>>)> = BTreeMap::new();
    for ((key, Reverse(seqno)), value) in model.iter().filter(|(at, _)| at.1.0 <= snapshot) {
        seen.entry(key.clone()).or_insert((*seqno, value.clone()));
    }
    seen.into_iter().filter_map(|(key, (seqno, value))| Some((key, (seqno, value?)))).collect()
}

#[test]
fn a_snapshot_sees_what_the_model_does() {
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let model = random_model(&mut rng, &KIND);
        for direction in [Direction::Forward, Direction::Backward] {
            let snapshot = if rng.bool() { rng.u64(..2000) } else { rng.u64(..) };
            let merge = Merge::new(spread(&model, 4, direction, &mut rng), direction);
            let mut visible = Visible::new(merge, direction, snapshot);
            let (found, error) = drain(&mut visible, usize::MAX);
            let mut wanted: Vec<_> = read(&model, snapshot)
                .into_iter()
                .map(|(key, (seqno, value))| Entry { key, seqno, value: Some(value) })
                .collect();
            if direction == Direction::Backward {
                wanted.reverse();
            }
            assert!(error.is_none() && found == wanted, "seed {seed}, {direction:?}");
            assert_eq!(visible.source().sources().len(), 4);
        }
    }
}

/// Goal: no snapshot that is open, and none taken later, reads anything else after the rewrite; at the bottom
/// no tombstone is left that all see; and nothing is kept that no snapshot sees.
#[test]
fn a_rewrite_changes_no_snapshot_and_keeps_nothing_for_none() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let model = random_model(&mut rng, &KIND);
        let mut seqnos: Vec<_> = model.keys().map(|at| at.1.0).collect();
        seqnos.sort_unstable();
        let snapshots: Vec<_> = (0..rng.usize(..5)).map(|_| seqnos[rng.usize(..seqnos.len())]).collect();
        let bottom = rng.bool();
        // Where the rewrite is not at the bottom, an older value of every key may lie below.
        let merge = Merge::new(spread(&model, 3, Direction::Forward, &mut rng), Direction::Forward);
        let mut kept = Retain::new(merge, Retention::new(snapshots.clone()), |_: &[u8]| bottom);
        let (found, error) = drain(&mut kept, usize::MAX);
        assert!(error.is_none());
        let dropped = (kept.shadowed() + kept.tombstones()) as usize;
        assert_eq!(found.len() + dropped, model.len(), "seed {seed}");
        let mut after: Model =
            found.iter().map(|e| ((e.key.clone(), Reverse(e.seqno)), e.value.clone())).collect();
        let mut before = model.clone();
        if !bottom {
            for at in model.keys() {
                before.insert((at.0.clone(), Reverse(0)), Some(b"below".to_vec()));
                after.insert((at.0.clone(), Reverse(0)), Some(b"below".to_vec()));
            }
        }
        let highest = snapshots.iter().max().copied();
        let later = highest.map_or(0, |highest| seqnos.partition_point(|seqno| *seqno < highest));
        for snapshot in snapshots.iter().chain(&seqnos[later..]).chain([&u64::MAX]) {
            assert_eq!(read(&before, *snapshot), read(&after, *snapshot), "seed {seed}, snapshot {snapshot}");
        }
        let Some(highest) = highest else {
            assert_eq!((dropped, found.len()), (0, model.len()), "without snapshots all is kept");
            continue;
        };
        let oldest = *snapshots.iter().min().expect("some");
        for pair in found.windows(2).filter(|pair| pair[0].key == pair[1].key) {
            let seen = |snapshot: &Seqno| (pair[1].seqno..pair[0].seqno).contains(snapshot);
            assert!(pair[0].seqno > highest || snapshots.iter().any(seen), "seed {seed}: {:?}", pair[1]);
        }
        let tombstones = found.iter().filter(|entry| entry.value.is_none() && entry.seqno <= oldest).count();
        assert!(!bottom || tombstones == 0, "seed {seed}: {tombstones} tombstones are left");
    }
}

#[test]
fn an_error_of_one_source_is_that_of_all_and_stays() {
    let mut rng = fastrand::Rng::with_seed(4);
    let model = random_model(&mut rng, &KIND);
    let all = kit::entries(&model);
    for fails_at in [0, 1, 7, all.len() / 2] {
        let sources = || {
            let half = |odd| {
                let entries =
                    all.iter().enumerate().filter(|(n, _)| n % 2 == odd).map(|(_, e)| e.clone()).collect();
                Memory::new(entries)
            };
            vec![half(0), Memory { fails_at: Some(fails_at), ..half(1) }]
        };
        // `drain` checks that the error is given again, and no entry after it.
        let (found, error) = drain(&mut Merge::new(sources(), Direction::Forward), usize::MAX);
        assert!(error.is_some() && all.starts_with(&found), "{fails_at}");
        let merge = Merge::new(sources(), Direction::Forward);
        let (found, error) = drain(&mut Visible::new(merge, Direction::Forward, Seqno::MAX), usize::MAX);
        assert!(error.is_some() && found.len() <= all.len(), "{fails_at}");
        let merge = Merge::new(sources(), Direction::Forward);
        let (_, error) = drain(&mut Retain::new(merge, Retention::new(vec![]), |_: &[u8]| true), usize::MAX);
        assert!(error.is_some(), "{fails_at}");
    }
}

/// Goal: what is read of several tables at once is what each would read by itself, with nothing read twice, and a table
/// that cannot be read then is read once more.
#[test]
fn what_several_tables_begin_with_is_read_at_once() {
    let (mut begun, mut read_more) = (0, 0);
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let world = new_world();
        let tables = tables(&world);
        let written: Vec<_> = (0..3)
            .map(|number| Arc::new(write(&tables, number, &random_model(&mut rng, &KIND)).expect("write")))
            .collect();
        let bound = |rng: &mut fastrand::Rng| match rng.u8(..3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(kit::key_of(rng, &KIND)),
            _ => Bound::Excluded(kit::key_of(rng, &KIND)),
        };
        let bounds = (bound(&mut rng), bound(&mut rng));
        let range = (bounds.0.as_ref().map(Vec::as_slice), bounds.1.as_ref().map(Vec::as_slice));
        let ahead = ReadAhead { first: 4096, most: 16 << 10 };
        let reads = || tables.meter().get(Cause::Foreground);
        for direction in [Direction::Forward, Direction::Backward] {
            let iters = || -> Vec<_> {
                written.iter().map(|table| table.iter(range, direction, ahead, Cause::Foreground)).collect()
            };
            let read_first = |iters: &mut Vec<TableIter<SimFile>>| {
                TableIter::read_first(&mut iters.iter_mut().collect::<Vec<_>>());
            };
            let before = reads();
            let wanted: Vec<_> = iters().iter_mut().map(|iter| drain(iter, usize::MAX).0).collect();
            let between = reads();
            let mut together = iters();
            read_first(&mut together);
            for (iter, wanted) in together.iter_mut().zip(&wanted) {
                let first_reads = reads().reads;
                let first = drain(iter, 1).0;
                begun += first.len() as u64;
                read_more += reads().reads - first_reads;
                assert_eq!(first.first(), wanted.first(), "seed {seed}, {direction:?}");
            }
            // It was advanced: what it has is not read again.
            read_first(&mut together);
            for (iter, wanted) in together.iter_mut().zip(&wanted) {
                let rest = drain(iter, usize::MAX).0;
                assert!(rest == wanted[wanted.len().min(1)..], "seed {seed}, {direction:?}");
            }
            let of = |from: &MeterSnapshot, to: &MeterSnapshot| {
                (to.reads - from.reads, to.read_bytes - from.read_bytes)
            };
            let (alone, at_once) = (of(&before, &between), of(&between, &reads()));
            assert_eq!(at_once, alone, "seed {seed}, {direction:?}");
            let mut failing = iters();
            world.inject(FaultPlan::nth(1, FaultKind::Eio).on(Ops::READ));
            read_first(&mut failing);
            world.heal();
            for (iter, wanted) in failing.iter_mut().zip(&wanted) {
                assert!(drain(iter, usize::MAX).0 == *wanted, "seed {seed}, {direction:?}");
            }
        }
    }
    assert!(read_more * 4 < begun, "{read_more} of {begun} had to read for their first entry");
}

#[test]
fn every_failed_read_is_an_error_that_stays() {
    let mut rng = fastrand::Rng::with_seed(6);
    let world = new_world();
    let kind = Kind { keys: 400, key_len: 30, value_len: 9000, versions: 5 };
    let model = random_model(&mut rng, &kind);
    let table = Arc::new(write(&tables(&world), 1, &model).expect("write"));
    for direction in [Direction::Forward, Direction::Backward] {
        let mut wanted = kit::entries(&model);
        if direction == Direction::Backward {
            wanted.reverse();
        }
        let mut failures = 0;
        for nth in 1.. {
            world.inject(FaultPlan::nth(nth, FaultKind::Eio).on(Ops::READ));
            let (found, error) = kit::all(&table, direction);
            if world.heal().hit == 0 {
                assert!(error.is_none() && found == wanted);
                break;
            }
            assert!(error.is_some() && wanted.starts_with(&found) && found.len() < wanted.len());
            failures += 1;
        }
        assert!(failures > 5, "{failures}");
    }
    let entry = model.iter().next().map(entry_of).expect("some");
    world.inject(FaultPlan::nth(1, FaultKind::Eio).on(Ops::READ));
    assert!(table.get(entry.key, Seqno::MAX, Cause::Foreground).is_err());
    world.heal();
    assert!(table.get(entry.key, Seqno::MAX, Cause::Foreground).is_ok());
}
