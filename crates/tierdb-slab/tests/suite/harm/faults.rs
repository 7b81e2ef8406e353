//! Goal: whichever operation of a device fails, and however, the store gives no wrong answer and loses nothing it
//! has acknowledged; it neither panics nor hangs; after a failure that leaves open what is on media it reads on
//! and refuses to write until it is opened again, and after any other it goes on by itself.
//! Method: that of the suite that engines share.

use super::base;
use crate::rig::Sizes;
use tierdb_base::mutant::Site;
use tierdb_engine::Background;
use tierdb_engine::conformance::harm::faults::{Script, do_what_they_are_for, ignore_each, sweep};

/// Runs of scripts that meet a fault.
const LEAST_RUNS: u64 = 6000;

/// Those of stores of these sizes for so much flash, with a log or without. A quarter of flash is kept for migrations that free space.
fn scripts_of(logged: bool, sizes: impl Fn(u64) -> Sizes) -> impl Iterator<Item = Script<Sizes>> {
    let scripts = Script::all(|flash| sizes(2 * flash));
    scripts.into_iter().filter(move |one| one.name().1.is_some() == logged)
}

/// Where there is a log, tables have two levels.
fn scripts() -> Vec<Script<Sizes>> {
    scripts_of(false, base::sizes).chain(scripts_of(true, |flash| base::deep(flash, 12))).collect()
}

#[test]
fn a_failure_of_any_operation_loses_nothing() {
    let scripts = scripts();
    do_what_they_are_for(&scripts, &["demoted_keys", "tables_replaced", "reads_flash"]);
    do_what_they_are_for(&scripts[3..], &["tables_merged_down"]);
    let runs = sweep(&scripts, 1);
    assert!(runs >= LEAST_RUNS, "{runs} runs");
}

/// With tables on the fast device, or records that are read from it.
#[test]
fn a_failure_of_any_operation_on_a_fast_device_loses_nothing() {
    let scripts: Vec<_> = scripts_of(true, base::beside).chain(scripts_of(true, base::paged)).collect();
    do_what_they_are_for(&scripts, &["demoted_keys", "tables_replaced"]);
    do_what_they_are_for(&scripts[..3], &["reads_fast_tables"]);
    let counted = scripts[..3].iter().flat_map(Script::counters);
    let merged: u64 = counted.filter(|(name, _)| *name == "tables_merged_down").map(|(_, count)| count).sum();
    assert!(merged > 0, "what the device has no room for comes down");
    let runs = sweep(&scripts, 4);
    assert!(runs >= LEAST_RUNS / 2, "{runs} runs");
}

#[test]
fn background_threads_meet_failures_too() {
    let threads = |sizes: Sizes| Sizes { background: Background::Threads, ..sizes };
    let scripts: Vec<_> = scripts().into_iter().map(|script| script.with(threads)).collect();
    let runs = sweep(&scripts, 11);
    assert!(runs >= LEAST_RUNS / 20, "{runs} runs");
}

/// Those of the logged pool are noticed in the suite of the other engine.
#[test]
fn a_failure_that_is_ignored_is_noticed() {
    let ours = |site: &Site| ["slab/src", "tierdb-table/src"].iter().any(|of| site.file.contains(of));
    let sites = ignore_each(&scripts(), ours, |_| false);
    assert!(sites >= 3, "only {sites}");
}
