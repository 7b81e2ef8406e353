//! Goal: whichever operation of a device fails, and however, the store gives no wrong answer and loses nothing it
//! has acknowledged; it neither panics nor hangs; after a failure that leaves open what is on media it reads on
//! and refuses to write until it is opened again, and after any other it goes on by itself.
//! Method: that of the suite that engines share.

use crate::base::sizes_with;
use crate::rig::Sizes;
use tierdb_base::ErrorKind;
use tierdb_engine::Durability;
use tierdb_engine::conformance::harm::faults::{Script, do_what_they_are_for, ignore_each, sweep};
use tierdb_engine::conformance::harm::{LogPlace, Rig};
use tierdb_sim::{FaultKind, FaultPlan, Ops};
use tierdb_valuelog::Background;

/// Stores with so much flash, whose log is so short that scripts cut it off.
fn sizes(flash: u64) -> Sizes {
    Sizes { log_buffer: 16 << 10, ..sizes_with(flash) }
}

/// Runs of scripts that meet a fault.
const LEAST_RUNS: u64 = 6000;

#[test]
fn a_failure_of_any_operation_loses_nothing() {
    let scripts = Script::all(sizes);
    do_what_they_are_for(
        &scripts,
        &["reclaimed_records", "absorbed_records", "collected_chunks", "flash_reads"],
    );
    let runs = sweep(&scripts, 1);
    assert!(runs >= LEAST_RUNS, "{runs} runs");
}

#[test]
fn background_threads_meet_failures_too() {
    let threads = |sizes: Sizes| Sizes { background: Background::Threads, ..sizes };
    let scripts: Vec<_> = Script::all(sizes).into_iter().map(|script| script.with(threads)).collect();
    let runs = sweep(&scripts, 11);
    assert!(runs >= LEAST_RUNS / 20, "{runs} runs");
}

#[test]
fn a_failure_that_is_ignored_is_noticed() {
    let in_log = |site: &tierdb_base::mutant::Site| site.file.contains("tierdb-log/src");
    let sites =
        ignore_each(&Script::all(sizes), |site| site.file.contains("valuelog/src") || in_log(site), in_log);
    assert!(sites >= 12, "only {sites}");
}

#[test]
fn a_write_that_failed_is_not_damage_and_what_cannot_be_read_is() {
    let rig = Rig::new(Sizes::tiny(), Some(LogPlace::WithValues));
    let (world, engine) = rig.create();
    engine.put(b"moved", &[1; 5000], Durability::Durable).and_then(|()| engine.flush()).expect("put");
    world.inject(FaultPlan::from_nth(1, FaultKind::Eio).on(Ops::READ));
    let unreadable = engine.verify().expect("a report").damage;
    world.heal();
    assert_eq!(unreadable.len(), 1, "{unreadable:?}");
    assert_eq!(unreadable[0].keys.as_ref().and_then(|keys| keys.only_key()), Some(&b"moved"[..]));
    world.inject(FaultPlan::from_nth(1, FaultKind::Eio).on(Ops::WRITE));
    let failed = engine.put(b"key", b"value", Durability::Durable).expect_err("no write works");
    world.heal();
    assert_eq!(failed.kind(), ErrorKind::Io);
    let refused = engine.verify().expect_err("whether the last write is there is not known");
    assert_eq!(refused.kind(), ErrorKind::Poisoned, "{refused}");
}
