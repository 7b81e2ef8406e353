//! Goal: whatever bytes media give back, a store says so or gives the right answer: never another value,
//! never *not there* for a key that is there, never a panic, a hang or a huge allocation; and what one
//! damaged place costs is its own keys.
//! Method: one small store with something of everything; copies of it damaged in every way that `harm` has;
//! each opened, read in three ways, verified, and a part of them written to, emptied into flash, collected
//! and opened again. Then every comparison of a checksum in the engine is left out in turn, and the same
//! suite must fail.

use crate::base::{Base, Look, Mode, Seen, base};
use crate::harms::{Harm, Places};
use crate::watch::Watch;
use fastrand::Rng;
use std::fmt;
use std::time::{Duration, Instant};

/// Counts of damaged stores.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    stores: u64,
    refused: u64,
    with_lost_keys: u64,
    lost_keys: u64,
    only_verify: u64,
    harmless: u64,
}

impl Tally {
    fn count(&mut self, seen: Seen) {
        self.stores += 1;
        match seen {
            Seen::Refused => self.refused += 1,
            Seen::Noticed { lost: 0 } => self.only_verify += 1,
            Seen::Noticed { lost } => {
                self.with_lost_keys += 1;
                self.lost_keys += lost as u64;
            }
            Seen::Whole => self.harmless += 1,
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { stores, refused, with_lost_keys, lost_keys, only_verify, harmless } = self;
        write!(
            f,
            "{stores} damaged stores: {refused} refused, {with_lost_keys} with {lost_keys} keys lost, {only_verify} \
             known to verify only, {harmless} as before"
        )
    }
}

/// Looks at a store for each of `harms`, and closely at every `closely`-th.
fn survey(name: &str, base: &Base, harms: impl IntoIterator<Item = Harm>, closely: u64) -> Tally {
    let (watch, start) = (Watch::new(), Instant::now());
    let (mut tally, mut wrong, mut slowest) = (Tally::default(), Vec::new(), (Duration::ZERO, None));
    for harm in harms {
        watch.begin(harm.clone());
        let begun = Instant::now();
        let look = if tally.stores % closely == 0 { Look::Write } else { Look::Read };
        match base.harmed(&harm, look) {
            Ok(seen) => tally.count(seen),
            Err(what) => {
                tally.stores += 1;
                wrong.push(format!("{harm:?}: {what}"));
            }
        }
        if begun.elapsed() > slowest.0 {
            slowest = (begun.elapsed(), Some(harm));
        }
    }
    println!("{name}: {tally}, in {:.1?}; slowest {slowest:?}", start.elapsed());
    assert!(wrong.is_empty(), "{} of {}: {:#?}", wrong.len(), tally.stores, &wrong[..wrong.len().min(20)]);
    tally
}

#[test]
fn a_whole_store_is_whole() {
    for mode in [Mode::Memory, Mode::Logged] {
        let base = base(mode);
        let leaves = Places::of(&base).pages.len();
        assert!(mode == Mode::Logged || leaves >= 6, "{leaves} pages in use");
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
    let tally = survey("every byte of metadata", &base, flips(1).chain(flips(2)), 7);
    assert!(tally.with_lost_keys > 1000, "{tally}");
    let header = (0..3000).map(|_| places.header_word(&mut rng));
    survey("words of the header", &base, header, 3);
}

#[test]
fn damaged_data() {
    let base = base(Mode::Memory);
    let places = Places::of(&base);
    let mut rng = Rng::with_seed(3);
    let flips = (0..30_000).map(|_| places.data_flip(&mut rng));
    let tally = survey("flips of the write buffer and of flash", &base, flips, 11);
    assert!(tally.harmless > 1000 && tally.with_lost_keys > 1000, "{tally}");
    let mut rng = Rng::with_seed(4);
    let scribbles = (0..60_000).map(|_| places.scribble(&mut rng));
    survey("words, bytes and stretches overwritten", &base, scribbles, 9);
    let coarse = places.coarse(&mut rng);
    survey("pages lost, files cut, places exchanged", &base, coarse, 2);
}

#[test]
fn strange_media() {
    let base = base(Mode::Memory);
    let noise = (0..3000).map(|seed| Harm::Noise { seed });
    let tally = survey("a pool of random bytes", &base, noise, 1);
    assert_eq!(tally.refused, tally.stores);
    let older = (0..base.older.len()).map(|copy| Harm::Older { device: "flash0", copy });
    let tally = survey("flash as it was earlier", &base, older, 1);
    assert_eq!(tally.with_lost_keys, tally.stores);
}

#[test]
#[ignore = "one case again"]
fn one() {
    let base = base(Mode::Memory);
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let (area, at, len) = ("pool".to_string(), number("AT"), number("LEN"));
    let harm = match len {
        0 => Harm::Flip { area, at, bit: number("BIT") as u32 },
        len => Harm::Zeros { area, at, len },
    };
    for look in [Look::Read, Look::Write] {
        println!("{look:?} {:?}", base.harmed(&harm, look));
    }
    let table = base.world.peek("pool", 4096, 256);
    println!("{:?}", table.chunks(8).map(|word| (word[0], word[1])).collect::<Vec<_>>());
    let page = base.world.peek("pool", at / 4096 * 4096, 4096);
    println!("{:?}", &page[..256]);
    let engine = crate::base::open(&harm.apply(&base), &base.sizes, base.mode).expect("opens");
    println!("{:#?}", engine.verify().expect("verify").damage);
}
