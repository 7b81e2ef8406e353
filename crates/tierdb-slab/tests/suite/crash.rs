//! Goal: whatever the media make of a crash, the store opens, holds every acknowledged write and no torn
//! one, and does so again when recovery itself is cut short.
//! Method: that of the suite that engines share.

use crate::rig::Sizes;
use std::cell::Cell;
use tierdb_base::mutant::{self, Site};
use tierdb_engine::Durability;
use tierdb_engine::conformance::Oracle;
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::conformance::harm::crash::{crash_scripts, creation_lasts, cut_off_the_log};
use tierdb_engine::conformance::harm::readers::what_is_seen_lasts;
use tierdb_engine::conformance::harm::script::{Known, Script, run_on};
use tierdb_sim::World;
use tierdb_sim::crashtest::{CrashFailure, CrashRun, Options, explore};

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
        fastrand::seed(seed);
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

/// Reads keys on flash, and writes others until migrations have copied some of these, with a crash at every third event. Says what was looked
/// at, and how many keys came up.
fn crash_while_migrations_bring_keys_up() -> Result<(CrashRun, u64), Box<CrashFailure>> {
    // Without an object cache, which would answer the reads.
    let rig = Rig::new(Sizes { memory: 1 << 10, ..Sizes::migrating() }, None);
    let (world, known) = (rig.empty_world(), Known::new(Oracle::new()));
    let promoted = Cell::new(0);
    let script = |world: &World, known: &Known| {
        fastrand::seed(1);
        let engine = rig.open(world).expect("a whole store opens");
        let put = |key: String, len| {
            let value = vec![len as u8; len];
            let ticket = known.update(|oracle| oracle.put(key.as_bytes(), &value, Durability::Durable));
            engine.put(key.as_bytes(), &value, Durability::Durable).expect("room");
            known.update(|oracle| oracle.returned(ticket));
        };
        (0..60).for_each(|number| put(format!("key{number:02}"), 100));
        engine.flush().expect("room on flash");
        for number in 0..300 {
            for popular in (0..60).step_by(4) {
                engine.get(format!("key{popular:02}").as_bytes()).expect("whole").expect("it was put");
            }
            put(format!("key{:02}-{number}", number % 60), 300 + number);
            promoted.set(engine.stats().figure("promoted_keys").expect("a counter"));
            if promoted.get() >= 10 {
                break;
            }
        }
    };
    let options = Options { every: 3, max_images: Some(20_000), ..Options::default() };
    let explored = explore(
        &world,
        &options.depth(2),
        &known,
        script,
        |image| rig.open(image).map(drop).map_err(|error| error.to_string()),
        |oracle, image| {
            let engine = rig.open(image).map_err(|error| error.to_string())?;
            oracle.check(&*engine).map_err(|failure| failure.to_string())?;
            let found = engine.verify().map_err(|error| error.to_string())?;
            if found.is_clean() { Ok(()) } else { Err(format!("{:?}", found.damage)) }
        },
    );
    explored.map(|explored| (explored, promoted.get()))
}

/// Nothing is lost where migrations bring keys up, as in the paper, for which scripts read too little; and it is noticed if what installs their
/// records is left out.
#[test]
fn migrations_that_bring_keys_up_lose_nothing() {
    let mut passed = None;
    let sites = mutant::record(|| passed = Some(crash_while_migrations_bring_keys_up()));
    let (explored, promoted) = passed.expect("it ran").unwrap_or_else(|failure| panic!("{failure}"));
    println!("{explored}, {promoted} keys brought up");
    assert!(promoted >= 10 && explored.images >= 5_000, "{explored}, {promoted} keys");
    // What installs the records of a migration, all or none.
    let publishes = |site: &Site| site.what == "publish" && site.file.ends_with("slab/src/commit.rs");
    let is_noticed = |site: &Site| mutant::without(*site, crash_while_migrations_bring_keys_up).is_err();
    let noticed = sites.into_keys().filter(publishes).filter(is_noticed).count();
    assert!(noticed >= 5, "{noticed} calls that are left out");
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
