//! Goal: whatever the media make of a crash, the store opens, holds every acknowledged write and no torn
//! one, and does so again when recovery itself is cut short.
//! Method: that of the suite that engines share.

use crate::rig::Sizes;
use std::time::{Duration, Instant};
use tierdb_base::TierRole;
use tierdb_base::mutant::{self, Site};
use tierdb_engine::Durability;
use tierdb_engine::conformance::harm::crash::{crash_scripts, creation_lasts, cut_off_the_log};
use tierdb_engine::conformance::harm::readers::what_is_seen_lasts;
use tierdb_engine::conformance::harm::rig::{LogPlace, Rig};
use tierdb_engine::conformance::harm::script::Script;
use tierdb_sim::{Budget, CrashModel, FaultKind, FaultPlan, Ops};

/// Images that are checked at least, in all modes together.
const LEAST_IMAGES: u64 = 1_000_000;
/// Of them, images of crashes inside recovery.
const LEAST_IN_RECOVERY: u64 = 100_000;

#[test]
fn crashes_at_every_event_lose_nothing() {
    crash_scripts(&[Sizes::tiny(), Sizes::late(), Sizes::wasteful()], LEAST_IMAGES, LEAST_IN_RECOVERY);
}

#[test]
fn scripts_cut_off_the_log() {
    assert_eq!(cut_off_the_log(&Sizes::late()), Script::ALL.map(|script| script.name));
}

#[test]
fn what_a_reader_has_seen_lasts() {
    // Its writers are held up while they are pinned.
    let _alone = crate::full::alone();
    what_is_seen_lasts(
        &Sizes::tiny(),
        &[("valuelog/src/hsit.rs", "persist_word"), ("valuelog/src/hsit.rs", "wait")],
    );
}

#[test]
fn a_store_that_is_created_lasts() {
    let lasts = || creation_lasts(&Sizes::tiny());
    let sites = mutant::record(|| assert!(lasts()));
    let wait = |site: &Site| site.what == "wait" && site.file.ends_with("valuelog/src/layout.rs");
    let site = sites.into_keys().find(wait).expect("it waits");
    assert!(!mutant::without(site, lasts), "a missing wait is noticed");
}

/// Whether what is written to a file whose growth could not be synced in an earlier run is there after any crash.
fn growth_lasts() -> bool {
    // One growth gives more chunks than are used.
    let rig = Rig::new(Sizes { flash: vec![1 << 20], ..Sizes::tiny() }, None);
    let world = rig.world();
    let engine = rig.open_or_create(&world).expect("a store is created");
    world.inject(FaultPlan::nth(1, FaultKind::SyncError).on(Ops::SYNC));
    engine.put(b"key", &[7; 5000], Durability::Durable).and_then(|()| engine.flush()).expect_err("no sync");
    drop(engine);
    assert_eq!(world.heal().hit, 1);
    let engine = rig.open_or_create(&world).expect("a store opens");
    engine.put(b"key", &[8; 5000], Durability::Durable).and_then(|()| engine.flush()).expect("room");
    let point = world.capture();
    let mut images = point.images(&CrashModel::BOTH, 1, &Budget::default());
    images.all(|image| {
        let engine = rig.open_or_create(&image.world).expect("a store opens");
        matches!(engine.get(b"key"), Ok(Some(value)) if *value == [8; 5000])
    })
}

#[test]
fn what_is_written_behind_a_growth_that_was_not_synced_lasts() {
    let sites = mutant::record(|| assert!(growth_lasts()));
    let sync = |site: &Site| site.what == "sync" && site.file.ends_with("valuelog/src/storage/mod.rs");
    let site = sites.into_keys().find(sync).expect("it syncs");
    assert!(!mutant::without(site, growth_lasts), "a missing sync is noticed");
}

/// Whether values whose replacements were not durable are there after any crash: a compaction would discard their chunks, while
/// nothing can be written to the log.
fn replaced_values_last() -> bool {
    let rig = Rig::new(Sizes { flash: vec![512 << 10], ..Sizes::tiny() }, Some(LogPlace::FastTier));
    let world = rig.world();
    let engine = rig.open_or_create(&world).expect("a store opens");
    let value = |key: u8| vec![key; 5000];
    for key in 0..30 {
        engine.put(&[key], &value(key), Durability::Durable).expect("room");
    }
    engine.flush().expect("room");
    // All of them: collection has nothing to move, and does not fail first.
    for key in 0..30 {
        engine.put(&[key], b"new", Durability::Grouped).expect("room");
    }
    // Tests beside this one are readers, too, whom chunks wait for.
    let used = || {
        engine.stats().tiers.iter().filter(|tier| tier.role == TierRole::Flash).map(|t| t.used).sum::<u64>()
    };
    let begun = Instant::now();
    while used() > 64 << 10 && begun.elapsed() < Duration::from_secs(60) {
        crossbeam_epoch::pin().flush();
        std::thread::yield_now();
    }
    world.inject(FaultPlan::from_nth(1, FaultKind::Eio).on(Ops::WRITE));
    engine.compact().expect_err("the log cannot be written");
    drop(engine);
    assert!(world.heal().hit > 0);
    let point = world.capture();
    let mut images = point.images(&CrashModel::BOTH, 1, &Budget::default());
    images.all(|image| {
        let engine = rig.open_or_create(&image.world).expect("a store opens");
        (0..30).all(
            |key| matches!(engine.get(&[key]), Ok(Some(found)) if *found == value(key) || *found == *b"new"),
        )
    })
}

#[test]
fn what_is_discarded_is_not_needed_after_a_crash() {
    let sites = mutant::record(|| assert!(replaced_values_last()));
    let wait = |site: &Site| site.what == "wait" && site.file.ends_with("storage/device/discard.rs");
    let site = sites.into_keys().find(wait).expect("it waits");
    assert!(!mutant::without(site, replaced_values_last), "a missing wait is noticed");
}
