//! Goal: whatever bytes media give back, a store says so or gives the right answer: never another value,
//! never *not there* for a key that is there, never a panic, a hang or a huge allocation; and what one
//! damaged place costs is its own keys.
//! Method: one small store with something of everything, on memory and with a logged pool; copies of it
//! damaged in every way that `harm` has; each opened, read in three ways, verified, and a part of them
//! written to, emptied into flash, collected and opened again. Then comparisons of checksums are left out in turn
//! (`mutants`), and the same suite must fail.
//! What no store can notice is left out: damage to the last block of a log, which looks like a block that was
//! being written, and a whole fast tier as it was before, which is a store.

use crate::base::{Look, Mode, base};
use fastrand::Rng;
use tierdb_base::{Error, ErrorKind};
use tierdb_engine::conformance::harm::damage::{Seen, survey};
use tierdb_engine::conformance::harm::harms::{Harm, Places};

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
        assert_eq!(base.examine(&base.world.copy(), Look::Write), Ok(Seen::Whole));
    }
}

#[test]
fn flipped_metadata() {
    let base = base(Mode::Memory);
    let places = Places::of(&base);
    let mut rng = Rng::with_seed(2);
    let flips = |round: u64| {
        let mut rng = Rng::with_seed(round);
        let places = &places;
        (0..places.metadata.len()).map(move |n| places.metadata_flip(n, &mut rng))
    };
    let mut tally = survey("every byte of metadata, twice", &base, flips(1).chain(flips(2)), 7);
    assert!(tally.with_lost_keys > 1000, "{tally}");
    let header = (0..3000).map(|_| places.word(&mut rng));
    tally += survey("words of the header", &base, header, 3);
    assert!(tally.stores >= METADATA, "{tally}");
}

#[test]
fn damaged_data() {
    let base = base(Mode::Memory);
    let places = Places::of(&base);
    let mut rng = Rng::with_seed(3);
    let flips = (0..30_000).map(|_| places.data_flip(&mut rng));
    let mut tally = survey("flips of the write buffer and of flash", &base, flips, 11);
    assert!(tally.harmless > 1000 && tally.with_lost_keys > 1000, "{tally}");
    let mut rng = Rng::with_seed(4);
    let scribbles = (0..60_000).map(|_| places.scribble(&mut rng));
    tally += survey("words, bytes and stretches overwritten", &base, scribbles, 9);
    let coarse = places.coarse(&mut rng);
    tally += survey("pages lost, files cut, places and files exchanged", &base, coarse, 2);
    assert!(tally.stores >= DATA, "{tally}");
}

#[test]
fn damaged_logged_pool() {
    let base = base(Mode::Logged);
    let places = Places::of(&base);
    let flips = places.fast_flips(9, Rng::with_seed(5)).filter(|harm| places.can_be_told(harm));
    let mut tally = survey("flips of the log, the image and the table", &base, flips, 13);
    assert!(tally.refused > 1000, "{tally}");
    let mut rng = Rng::with_seed(6);
    let flips = (0..15_000).map(|_| places.data_flip(&mut rng)).filter(|harm| places.can_be_told(harm));
    tally += survey("flips of any file", &base, flips, 13);
    assert!(tally.harmless > 1000 && tally.with_lost_keys > 1000, "{tally}");
    let mut rng = Rng::with_seed(7);
    let scribbles = (0..15_000).map(|_| places.scribble(&mut rng)).filter(|harm| places.can_be_told(harm));
    tally += survey("words, bytes and stretches of any file", &base, scribbles, 13);
    let coarse = places.coarse(&mut rng).into_iter().filter(|harm| places.can_be_told(harm));
    tally += survey("pages lost, files cut, places and files exchanged", &base, coarse, 5);
    assert!(tally.stores >= LOGGED, "{tally}");
}

#[test]
fn strange_media() {
    let base = base(Mode::Memory);
    let noise = (0..3000).map(|seed| Harm::Noise { seed });
    let mut tally = survey("a pool of random bytes", &base, noise, 1);
    assert_eq!(tally.refused, tally.stores);
    for base in [base, crate::base::base(Mode::Logged)] {
        let older = (0..base.older.len()).map(|copy| Harm::Older { device: "flash0", copy });
        let seen = survey("flash as it was earlier", &base, older, 1);
        assert_eq!(seen.with_lost_keys, seen.stores);
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
    let newer = |mode: Mode, area: &str, at: u64| {
        let base = base(mode);
        let world = base.world.copy();
        world.overwrite(area, at, &2u32.to_le_bytes());
        match base.rig.open(&world) {
            Err(Error::NewerFormat { found: 2, newest: 1, place }) => assert_eq!(&*place.file, area),
            Err(error) => panic!("{area}: {error}"),
            Ok(_) => panic!("{area} was opened"),
        }
    };
    newer(Mode::Memory, "pool", 8);
    newer(Mode::Logged, "fast/pool.table", 8);
}

/// The fast tier as it was before, with the flash that went on: an old store, which nothing in it tells from a
/// new one. What it says is then old, or an error, but never what no key ever had.
#[test]
fn an_older_fast_tier_gives_nothing_that_never_was() {
    for mode in [Mode::Memory, Mode::Logged] {
        let base = base(mode);
        let device = if mode == Mode::Memory { "pool" } else { "fast" };
        for copy in 0..base.older.len() {
            let world = Harm::Older { device, copy }.apply(&base);
            let engine = base.rig.open(&world).expect("it was whole");
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
