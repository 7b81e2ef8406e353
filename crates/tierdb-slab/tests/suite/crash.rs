//! Goal: whatever the media make of a crash, the store opens, holds every acknowledged write and no torn
//! one, and does so again when recovery itself is cut short.
//! Method: that of the suite that engines share.

use crate::rig::Sizes;
use tierdb_base::mutant::{self, Site};
use tierdb_engine::conformance::Oracle;
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::conformance::harm::crash::{crash_scripts, creation_lasts, cut_off_the_log};
use tierdb_engine::conformance::harm::readers::what_is_seen_lasts;
use tierdb_engine::conformance::harm::script::{Known, Script, run_on};

/// Images that are checked at least, in all modes together.
const LEAST_IMAGES: u64 = 1_000_000;
/// Of them, images of crashes inside recovery.
const LEAST_IN_RECOVERY: u64 = 100_000;

#[test]
fn crashes_at_every_event_lose_nothing() {
    crash_scripts(&Sizes::small(), LEAST_IMAGES, LEAST_IN_RECOVERY);
}

/// What all scripts together count on such a store.
fn counted<const N: usize>(sizes: &Sizes, counters: [&str; N]) -> [u64; N] {
    let mut counted = [0; N];
    for (script, seed) in Script::ALL.iter().flat_map(|script| [(script, 1), (script, 2)]) {
        let rig = Rig::new(sizes.clone(), None);
        let engine = rig.open_or_create(&rig.world()).expect("an empty store opens");
        run_on(script, seed, &*engine, &Known::new(Oracle::new()));
        for (counted, counter) in counted.iter_mut().zip(counters) {
            *counted += engine.stats().figure(counter).expect("a counter");
        }
    }
    counted
}

#[test]
fn scripts_move_tables_down() {
    let counters = ["tables_merged_down", "tables_moved_down"];
    let moved = counted(&Sizes::stacked(), counters);
    assert!(moved[0] >= 20 && moved[1] >= 20, "{counters:?}: {moved:?}");
}

/// Where the first level is larger than what comes to it, and not on a fast device.
#[test]
fn scripts_leave_tables_apart() {
    for sizes in [Sizes::cramped(), Sizes::tiny()] {
        let left = counted(&sizes, ["migrations_left_apart", "migrations_left_above_another"]);
        assert!(left[0] >= 20 && left[1] >= 4, "{}: {left:?}", sizes.name);
    }
}

#[test]
fn scripts_cut_off_the_log() {
    assert_eq!(cut_off_the_log(&Sizes::cramped()), Script::ALL.map(|script| script.name));
}

#[test]
fn what_a_reader_has_seen_lasts() {
    what_is_seen_lasts(&Sizes::tiny(), &[("slab/src/read.rs", "wait"), ("slab/src/cursor.rs", "wait")]);
}

#[test]
fn a_store_that_is_created_lasts() {
    let lasts = || creation_lasts(&Sizes::tiny());
    let sites = mutant::record(|| assert!(lasts()));
    let wait = |site: &Site| site.what == "wait" && site.file.ends_with("slab/src/layout.rs");
    let site = sites.into_keys().find(wait).expect("it waits");
    assert!(!mutant::without(site, lasts), "a missing wait is noticed");
}
