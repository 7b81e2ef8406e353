//! Goal: whatever bytes media give back, a store says so or gives the right answer: never another value,
//! never *not there* for a key that is there, never a panic, a hang or a huge allocation; and what one
//! damaged place costs is its own keys.
//! Method: one small store with something of everything, on memory and with a logged pool; copies of it
//! damaged in every way that `harm` has; each opened, read in three ways, verified, and a part of them
//! written to, emptied into flash, collected and opened again.
//! What no store can notice is left out: damage to the last block of a log, which looks like a block that was
//! being written, and a whole fast tier as it was before, which is a store.

use crate::base::base;
use fastrand::Rng;
use tierdb_base::{Error, ErrorKind};
use tierdb_engine::conformance::harm::damage::{Look, Seen, survey};
use tierdb_engine::conformance::harm::harms::{Harm, Places};

/// Damaged stores that each test opens at least: 106,500 in all.
const METADATA: u64 = 18_500;
const DATA: u64 = 45_000;
const LOGGED: u64 = 42_000;
const STRANGE: u64 = 1_000;
const _: () = assert!(METADATA + DATA + LOGGED + STRANGE >= 106_500);

#[test]
fn a_whole_store_is_whole() {
    for logged in [false, true] {
        let base = base(logged);
        assert_eq!(base.examine(&base.world.copy(), Look::Write), Ok(Seen::Whole));
    }
}

#[test]
fn flipped_metadata() {
    let base = base(false);
    let places = Places::of(&base);
    let mut rng = Rng::with_seed(2);
    let flips = |round: u64| {
        let mut rng = Rng::with_seed(round);
        let places = &places;
        (0..places.metadata.len()).map(move |n| places.metadata_flip(n, &mut rng))
    };
    let mut tally = survey("every byte of metadata", &base, flips(1), 7);
    assert!(tally.with_lost_keys > 1000, "{tally}");
    let header = (0..2000).map(|_| places.word(&mut rng));
    tally += survey("words of the header", &base, header, 3);
    assert!(tally.stores >= METADATA, "{tally}");
}

#[test]
fn damaged_data() {
    let base = base(false);
    let places = Places::of(&base);
    let mut rng = Rng::with_seed(3);
    let flips = (0..15_000).map(|_| places.data_flip(&mut rng));
    let mut tally = survey("flips of the fast tier and of flash", &base, flips, 11);
    assert!(tally.harmless > 300 && tally.with_lost_keys > 1000, "{tally}");
    let mut rng = Rng::with_seed(4);
    let scribbles = (0..30_000).map(|_| places.scribble(&mut rng));
    tally += survey("words, bytes and stretches overwritten", &base, scribbles, 9);
    let coarse = places.coarse(&mut rng);
    tally += survey("pages lost, files cut, places and files exchanged", &base, coarse, 2);
    assert!(tally.stores >= DATA, "{tally}");
}

#[test]
fn damaged_logged_pool() {
    let base = base(true);
    let places = Places::of(&base);
    let flips = places.fast_flips(18, Rng::with_seed(5)).filter(|harm| places.can_be_told(harm));
    let mut tally = survey("flips of the log, the image and the table", &base, flips, 13);
    assert!(tally.refused > 1000, "{tally}");
    let mut rng = Rng::with_seed(6);
    let flips = (0..7_500).map(|_| places.data_flip(&mut rng)).filter(|harm| places.can_be_told(harm));
    tally += survey("flips of any file", &base, flips, 13);
    assert!(tally.harmless > 300 && tally.with_lost_keys > 1000, "{tally}");
    let mut rng = Rng::with_seed(7);
    let scribbles = (0..7_500).map(|_| places.scribble(&mut rng)).filter(|harm| places.can_be_told(harm));
    tally += survey("words, bytes and stretches of any file", &base, scribbles, 13);
    let coarse = places.coarse(&mut rng).into_iter().filter(|harm| places.can_be_told(harm));
    tally += survey("pages lost, files cut, places and files exchanged", &base, coarse, 5);
    assert!(tally.stores >= LOGGED, "{tally}");
}

#[test]
fn strange_media() {
    let base = base(false);
    let noise = (0..1000).map(|seed| Harm::Noise { seed });
    let mut tally = survey("a pool of random bytes", &base, noise, 1);
    assert_eq!(tally.refused, tally.stores);
    for base in [base, crate::base::base(true)] {
        let older = (0..base.older.len()).map(|copy| Harm::Older { device: "flash0", copy });
        let seen = survey("flash as it was earlier", &base, older, 1);
        // Since the last copy nothing has gone to flash.
        assert_eq!((seen.refused, seen.harmless), (2, 1));
        tally += seen;
        let fast = if base.rig.log.is_none() { "pool" } else { "fast" };
        for device in ["flash0", fast] {
            let emptied = Harm::Emptied { device }.apply(&base);
            assert!(base.rig.open(&emptied).is_err(), "{:?}, {device} is empty", base.rig.log);
        }
    }
    assert!(tally.stores >= STRANGE, "{tally}");
}

#[test]
fn a_newer_format_is_refused_as_such() {
    let newer = |logged: bool, area: &str, at: u64| {
        let base = base(logged);
        let world = base.world.copy();
        world.overwrite(area, at, &2u32.to_le_bytes());
        match base.rig.open(&world) {
            Err(Error::NewerFormat { found: 2, newest: 1, place }) => assert_eq!(&*place.file, area),
            Err(error) => panic!("{area}: {error}"),
            Ok(_) => panic!("{area} was opened"),
        }
    };
    newer(false, "pool", 8);
    newer(true, "fast/pool.table", 8);
}

/// The fast tier as it was before, with the flash that went on: an old store, which nothing in it tells from a
/// new one. What it says is then old, or an error, but never what no key ever had.
#[test]
fn an_older_fast_tier_gives_nothing_that_never_was() {
    for logged in [false, true] {
        let base = base(logged);
        let device = if !logged { "pool" } else { "fast" };
        for copy in 0..base.older.len() {
            let world = Harm::Older { device, copy }.apply(&base);
            // The tables that it names may have been replaced since.
            let engine = match base.rig.open(&world) {
                Ok(engine) => engine,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    continue;
                }
            };
            for (key, history) in &base.content.history {
                match engine.get(key) {
                    Ok(Some(value)) => {
                        assert!(history.iter().any(|had| *value == had[..]), "an invented value")
                    }
                    Ok(None) => {}
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
                }
            }
        }
    }
}
