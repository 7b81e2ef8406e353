//! The model passes the whole suite, and the suite catches every model that is broken on purpose.

mod broken;

use broken::{BrokenHarness, Fault};
use tierdb_engine::ModelStore;
use tierdb_engine::conformance::{
    Checked, Harness, argument_limits, closed_engine_refuses, full_store_recovers, linearizable, random_ops,
    snapshots_and_batches_are_atomic_under_threads, threads_come_and_go,
};

fn model(fault: Fault) -> BrokenHarness {
    BrokenHarness { store: ModelStore::new(), fault, capacity: None }
}

fn small_model(fault: Fault) -> BrokenHarness {
    BrokenHarness { capacity: Some(60_000), ..model(fault) }
}

mod the_model {
    use super::*;
    tierdb_engine::conformance!(model(Fault::Nothing));
}

mod a_small_model {
    use super::*;
    tierdb_engine::conformance!(small_model(Fault::Nothing));
}

#[test]
fn a_dropped_engine_may_lose_what_was_grouped_last() {
    for seed in 0..8 {
        random_ops(&mut model(Fault::LosesTheLastGroupedWrite), seed, 2000).expect("allowed");
    }
}

/// Runs a suite with one seed after the other until it fails.
fn caught(mut harness: BrokenHarness, suite: impl Fn(&mut dyn Harness, u64) -> Checked) -> String {
    let fault = harness.fault;
    let failure = (0..30).find_map(|seed| suite(&mut harness, seed).err());
    failure.unwrap_or_else(|| panic!("{fault:?} is not caught")).to_string()
}

fn random(harness: &mut dyn Harness, seed: u64) -> Checked {
    random_ops(harness, seed, 1000)
}

#[test]
fn random_operations_catch() {
    for fault in [
        Fault::LosesAnEarlierGroupedWrite,
        Fault::LosesADurableWrite,
        Fault::LosesTheLastWriteOnClose,
        Fault::DropsADelete,
        Fault::LosesAKeyOfABatch,
        Fault::FirstPutOfABatchWins,
        Fault::SnapshotSeesLaterWrites,
        Fault::SnapshotLosesDeletedKeys,
        Fault::ScanOfASnapshotSeesLaterWrites,
        Fault::CursorSeesLaterWrites,
        Fault::CursorSkipsAnEntry,
        Fault::CursorTurnsOverAnEntry,
        Fault::CursorStaysPastTheEnd,
        Fault::SeekSkipsTheKey,
        Fault::PrevIgnoresTheBound,
        Fault::ExcludedStartIsIncluded,
        Fault::ReversedRangeIsTurned,
        Fault::MultiGetAnswersInKeyOrder,
        Fault::RangeDeleteMissesTheLastKey,
        Fault::RangeDeleteMiscounts,
        Fault::StaleReadSometimes,
        Fault::CutsLongValues,
        Fault::ConfusesLongKeys,
        Fault::EmptyValueIsAbsent,
        Fault::MiscountsKeys,
        Fault::ReportsDamage,
        Fault::Panics,
    ] {
        let failure = caught(model(fault), random);
        assert!(failure.contains("reduced to"), "{failure}");
    }
}

#[test]
fn a_failure_is_reduced_to_what_it_needs() {
    let failure = caught(model(Fault::SnapshotSeesLaterWrites), random);
    assert!(failure.contains("reduced to 3 operations"), "a snapshot, a write, a read: {failure}");
    let failure = caught(model(Fault::MiscountsKeys), random);
    assert!(!failure.contains("  8: "), "more than ten keys take a few batches: {failure}");
}

#[test]
fn random_operations_on_small_tiers_catch() {
    for fault in [Fault::StoresWhatItRefuses, Fault::RefusesDeletesWhenFull, Fault::DropsADelete] {
        caught(small_model(fault), random);
    }
}

#[test]
fn the_argument_suite_catches() {
    for fault in [
        Fault::AcceptsAnEmptyKey,
        Fault::AcceptsALongKeyInGetAt,
        Fault::MultiGetFailsAsAWhole,
        Fault::RefusesTheLongestKey,
        Fault::LongValueChangesTheStore,
    ] {
        caught(model(fault), |harness, _| argument_limits(harness));
    }
}

#[test]
fn the_close_suite_catches() {
    caught(model(Fault::ReadsAfterClose), |harness, _| closed_engine_refuses(harness));
    caught(model(Fault::LosesTheLastWriteOnClose), |harness, _| closed_engine_refuses(harness));
    caught(model(Fault::TakesAnySnapshot), |harness, _| closed_engine_refuses(harness));
}

#[test]
fn the_atomicity_suite_catches() {
    for fault in [
        Fault::ShowsABatchInParts,
        Fault::ScansInParts,
        Fault::SnapshotSeesLaterWrites,
        Fault::LosesAKeyOfABatch,
        Fault::CachesForEachThread,
    ] {
        caught(model(fault), |harness, seed| {
            snapshots_and_batches_are_atomic_under_threads(harness, seed, 300)
        });
    }
}

/// These faults show only between threads: the random operations of one thread must not notice them, or
/// this would prove nothing about the histories.
#[test]
fn histories_catch_what_one_thread_does_not_see() {
    for fault in
        [Fault::CachesForEachThread, Fault::ShowsWritesLate, Fault::ShowsABatchInParts, Fault::ScansInParts]
    {
        random_ops(&mut model(fault), 1, 1000).expect("not visible to one thread");
        caught(model(fault), |harness, seed| linearizable(harness, 4, 500, seed..seed + 1));
    }
    for fault in [
        Fault::StaleReadSometimes,
        Fault::DropsADelete,
        Fault::SnapshotSeesLaterWrites,
        Fault::LosesAKeyOfABatch,
    ] {
        caught(model(fault), |harness, seed| linearizable(harness, 4, 500, seed..seed + 1));
    }
}

#[test]
fn the_thread_suite_catches() {
    caught(model(Fault::ForgetsLateThreads), |harness, _| threads_come_and_go(harness, 200));
}

#[test]
fn the_full_store_suite_catches() {
    for fault in [Fault::RefusesDeletesWhenFull, Fault::StaysFull, Fault::StoresWhatItRefuses] {
        caught(small_model(fault), |harness, _| full_store_recovers(harness));
    }
}
