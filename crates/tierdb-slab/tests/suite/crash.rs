//! Goal: whatever the media make of a crash, the store opens, holds every acknowledged write and no torn
//! one, and does so again when recovery itself is cut short.
//! Method: that of the suite that engines share.

use crate::rig::Sizes;
use tierdb_base::mutant::{self, Site};
use tierdb_engine::conformance::harm::crash::{crash_scripts, creation_lasts};

/// Images that are checked at least, in all modes together.
const LEAST_IMAGES: u64 = 300_000;
/// Of them, images of crashes inside recovery.
const LEAST_IN_RECOVERY: u64 = 50_000;

#[test]
fn crashes_at_every_event_lose_nothing() {
    crash_scripts(&Sizes::small(), LEAST_IMAGES, LEAST_IN_RECOVERY);
}

#[test]
fn a_store_that_is_created_lasts() {
    let lasts = || creation_lasts(&Sizes::tiny());
    let sites = mutant::record(|| assert!(lasts()));
    let wait = |site: &Site| site.what == "wait" && site.file.ends_with("slab/src/layout.rs");
    let site = sites.into_keys().find(wait).expect("it waits");
    assert!(!mutant::without(site, lasts), "a missing wait is noticed");
}
