//! Goal: whatever bytes media give back, a store says so or gives the right answer: never another value,
//! never *not there* for a key that is there, never a panic, a hang or a huge allocation; and what one
//! damaged place costs is its own keys.
//! Method: one small store with something of everything, on memory and with a logged pool; copies of it
//! damaged in every way that `harm` has; each opened, read in three ways, verified, and a part of them
//! written to, emptied into flash, collected and opened again.

use crate::base::{Mode, base};
use tierdb_engine::conformance::harm::harms::Places;
use tierdb_engine::conformance::harm::surveys;

/// Damaged stores that each test opens at least: 200,000 in all.
const METADATA: u64 = 52_000;
const DATA: u64 = 91_500;
const LOGGED: u64 = 54_000;
const STRANGE: u64 = 3_000;
const _: () = assert!(METADATA + DATA + LOGGED + STRANGE >= 200_000);

#[test]
fn a_whole_store_is_whole() {
    for mode in [Mode::Memory, Mode::Logged] {
        let base = base(mode);
        let pages = Places::of(&base).metadata.len() / 4096;
        assert!(mode == Mode::Logged || pages >= 6, "{pages} pages in use");
        surveys::whole(&base);
    }
}

#[test]
fn flipped_metadata() {
    let tally = surveys::metadata(&base(Mode::Memory), 2, 3000);
    assert!(tally.stores >= METADATA, "{tally}");
}

#[test]
fn damaged_data() {
    let tally = surveys::data(&base(Mode::Memory), 30_000, 60_000, 1000);
    assert!(tally.stores >= DATA, "{tally}");
}

#[test]
fn damaged_logged_pool() {
    let tally = surveys::logged(&base(Mode::Logged), 9, 15_000, 1000);
    assert!(tally.stores >= LOGGED, "{tally}");
}

#[test]
fn strange_media() {
    let mut tally = surveys::noise(&base(Mode::Memory), 3000);
    for mode in [Mode::Memory, Mode::Logged] {
        let seen = surveys::older_flash(&base(mode));
        assert_eq!(seen.with_lost_keys, seen.stores);
        tally += seen;
    }
    assert!(tally.stores >= STRANGE, "{tally}");
}

#[test]
fn a_newer_format_is_refused_as_such() {
    surveys::newer_format(&base(Mode::Memory), "pool", 56);
    surveys::newer_format(&base(Mode::Logged), "fast/pool.table", 104);
}

#[test]
fn an_older_fast_tier_gives_nothing_that_never_was() {
    for mode in [Mode::Memory, Mode::Logged] {
        surveys::older_fast_tier(&base(mode), false);
    }
}
