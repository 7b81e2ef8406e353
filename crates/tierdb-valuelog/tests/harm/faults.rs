//! Goal: whichever operation of a device fails, and however, the store gives no wrong answer and loses nothing it
//! has acknowledged; it neither panics nor hangs; after a failure that leaves open what is on media it reads on
//! and refuses to write until it is opened again, and after any other it goes on by itself.
//! Method: that of the suite that engines share.

use crate::base::sizes_with;
use crate::rig::Sizes;
use tierdb_engine::conformance::harm::faults::{Script, do_what_they_are_for, ignore_each, sweep};
use tierdb_valuelog::Background;

/// Runs of scripts that meet a fault.
const LEAST_RUNS: u64 = 6000;

#[test]
fn a_failure_of_any_operation_loses_nothing() {
    let scripts = Script::all(sizes_with);
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
    let scripts: Vec<_> = Script::all(sizes_with).into_iter().map(|script| script.with(threads)).collect();
    let runs = sweep(&scripts, 11);
    assert!(runs >= LEAST_RUNS / 20, "{runs} runs");
}

#[test]
fn a_failure_that_is_ignored_is_noticed() {
    let in_log = |site: &tierdb_base::mutant::Site| site.file.contains("tierdb-log/src");
    let sites = ignore_each(
        &Script::all(sizes_with),
        |site| site.file.contains("valuelog/src") || in_log(site),
        in_log,
    );
    assert!(sites >= 12, "only {sites}");
}
