//! Goal: a table whose `finish` returned is whole after any crash from then on; one that was removed durably is gone; and
//! a failed write or sync is never taken for success.
//! Method: tables written and removed on simulated media, every persist event crashed; every operation failed in
//! turn; then each write and sync left out in turn, which must be noticed.

mod kit;

use kit::{Kind, Model, all, entries, entry_of, new_world, open, random_model, tables, write};
use std::collections::BTreeMap;
use tierdb_base::mutant::{self, Site};
use tierdb_base::{Error, ErrorKind};
use tierdb_device::{Cause, Meter};
use tierdb_sim::crashtest::{CrashFailure, CrashRun, Options, Oracle, explore};
use tierdb_sim::{FaultKind, FaultPlan, Ops, World};
use tierdb_table::{Direction, TableDir, WriterOptions};

const KIND: Kind = Kind { keys: 150, key_len: 20, value_len: 9000, versions: 4 };

/// What was acknowledged.
#[derive(Clone, Default)]
struct Known {
    finished: BTreeMap<u64, Model>,
    removed: Vec<u64>,
    /// The table that is being removed, if any.
    leaving: Option<u64>,
}

fn script(world: &World, known: &Oracle<Known>, seed: u64) {
    let tables = tables(world);
    let mut rng = fastrand::Rng::with_seed(seed);
    for number in 1..=5 {
        let model = random_model(&mut rng, &KIND);
        if number == 3 {
            // Given up half-way: its file may stay, and is not a table.
            let mut writer = tables.create(number, Cause::Gc, &WriterOptions::default()).expect("create");
            for entry in model.iter().map(entry_of) {
                writer.add(&entry).expect("add");
            }
            writer.abandon().expect("abandon");
            continue;
        }
        write(&tables, number, &model).expect("no faults");
        known.update(|known| known.finished.insert(number, model));
    }
    known.update(|known| known.leaving = Some(2));
    tables.remove(2).expect("no faults");
    tables.sync().expect("no faults");
    known.update(|known| {
        known.finished.remove(&2);
        known.leaving = None;
        known.removed.push(2);
    });
}

fn check(known: &Known, image: &World) -> Result<(), String> {
    let listed = tables(image).list().map_err(|e| e.to_string())?;
    if let Some(number) = known.removed.iter().find(|number| listed.contains(number)) {
        return Err(format!("table {number} is there again"));
    }
    for number in &listed {
        // Those in the making are refused or not, and never more than that.
        if !known.finished.contains_key(number) {
            let _ = open(image, *number)
                .map(|table| (all(&table, Direction::Forward), table.verify(Cause::Verify)));
        }
    }
    for (number, model) in &known.finished {
        if known.leaving == Some(*number) && !listed.contains(number) {
            continue;
        }
        let table = open(image, *number).map_err(|e| format!("table {number}: {e}"))?;
        let (found, error) = all(&table, Direction::Forward);
        if error.is_some() || found != entries(model) {
            return Err(format!("table {number}: {} of {} entries, {error:?}", found.len(), model.len()));
        }
        let report = table.verify(Cause::Verify).map_err(|e| e.to_string())?;
        if !report.damage.is_empty() {
            return Err(format!("table {number}: {:?}", report.damage));
        }
    }
    Ok(())
}

fn run(seed: u64) -> Result<CrashRun, Box<CrashFailure>> {
    let world = new_world();
    tierdb_device::Dir::sync(&world.dir("flash")).expect("no faults");
    explore(
        &world,
        &Options::default().seed(seed),
        &Oracle::new(Known::default()),
        |world, known| script(world, known, seed),
        |_| Ok(()),
        check,
    )
}

#[test]
fn a_finished_table_is_whole_after_any_crash() {
    let mut all = CrashRun::default();
    for seed in 1..10 {
        all.add(&run(seed).unwrap_or_else(|failure| panic!("{failure}")));
    }
    println!("{all}");
    assert!(all.images > 1000, "{all}");
}

/// The system may say only once that names are lost, of which another table's may be one.
#[test]
fn all_are_told_what_one_sync_of_the_directory_failed_with() {
    let world = World::new();
    let dir = TableDir::new(world.add_dir("flash"), 7, Meter::new(), None);
    world.inject(FaultPlan::nth(1, FaultKind::SyncError).on(Ops::SYNC).in_dir("flash"));
    let failed = dir.sync().expect_err("it fails");
    let other = dir.clone().sync().expect_err("it has failed");
    assert_eq!((failed.to_string(), world.heal().hit), (other.to_string(), 1));
}

#[test]
fn a_missing_write_or_sync_is_noticed() {
    let sites = mutant::record(|| {
        let world = new_world();
        script(&world, &Oracle::new(Known::default()), 1);
    });
    let sites: Vec<Site> = sites
        .into_keys()
        .filter(|site| ["write", "write_durable", "sync", "dir_sync"].contains(&site.what))
        .collect();
    // The writer's own three, and the script's sync of the removal.
    assert_eq!(sites.len(), 4, "{sites:?}");
    for site in sites {
        assert!(mutant::without(site, || run(1).is_err()), "{site} can be left out unnoticed");
    }
}

#[test]
fn every_failed_operation_fails_the_table() {
    let model = random_model(&mut fastrand::Rng::with_seed(2), &KIND);
    let mut failures = 0;
    for kind in [FaultKind::Eio, FaultKind::Enospc, FaultKind::Short, FaultKind::SyncError] {
        for nth in 1.. {
            let world = new_world();
            world.inject(FaultPlan::nth(nth, kind).on(Ops::WRITE | Ops::SYNC | Ops::RESIZE | Ops::NAMES));
            let written = write(&tables(&world), 1, &model);
            if world.heal().hit == 0 {
                let table = std::sync::Arc::new(written.expect("nothing failed"));
                assert!(all(&table, Direction::Forward).0 == entries(&model));
                break;
            }
            assert_eq!(written.err().map(|error| error.kind()), Some(ErrorKind::Io), "{kind:?} {nth}");
            failures += 1;
            // Another number works at once.
            write(&tables(&world), 2, &model).expect("healed");
        }
    }
    assert!(failures >= 20, "{failures}");
}

#[test]
fn a_writer_that_failed_goes_on_failing() {
    let model = random_model(&mut fastrand::Rng::with_seed(2), &Kind { keys: 600, ..KIND });
    let world = new_world();
    world.inject(FaultPlan::nth(1, FaultKind::Eio).on(Ops::WRITE));
    let tables = tables(&world);
    let mut writer = tables.create(1, Cause::Gc, &WriterOptions::default()).expect("create");
    let failures: Vec<Error> =
        model.iter().map(entry_of).filter_map(|entry| writer.add(&entry).err()).collect();
    assert_eq!(world.heal().hit, 1);
    let first = failures.first().expect("a write fails before the end").to_string();
    assert!(failures.len() > 10 && failures.iter().all(|error| error.to_string() == first));
    assert_eq!(writer.finish().err().map(|error| error.to_string()), Some(first));
}
