//! Surveys of [damaged](super::damage) stores, of a kind of damage each.
//!
//! What no store can notice is left out: damage to the last block of a log, which looks like a block that was
//! being written, and a whole fast tier as it was before, which is a store.

use super::damage::{Base, Look, Seen, Tally, survey};
use super::harms::{Harm, Harmed, Places};
use fastrand::Rng;
use tierdb_base::{Error, ErrorKind, checksum};

/// The store is whole before it is damaged.
pub fn whole<S: Harmed>(base: &Base<S>) {
    assert_eq!(base.examine(&base.world.copy(), Look::Write), Ok(Seen::Whole));
}

/// A flipped bit in every byte of metadata, `rounds` times, and `words` words of the header overwritten.
pub fn metadata<S: Harmed>(base: &Base<S>, rounds: u64, words: usize) -> Tally {
    let places = Places::of(base);
    let mut rng = Rng::with_seed(2);
    let flips = (1..=rounds).flat_map(|round| {
        let mut rng = Rng::with_seed(round);
        let places = &places;
        (0..places.metadata.len()).map(move |n| places.metadata_flip(n, &mut rng))
    });
    let mut tally = survey(&format!("every byte of metadata, {rounds} times"), base, flips, 7);
    assert!(tally.with_lost_keys > 1000, "{tally}");
    let header = (0..words).map(|_| places.word(&mut rng));
    tally += survey("words of the header", base, header, 3);
    tally
}

/// `flips` flipped bits in data on both tiers, of which more than `least_harmless` change nothing; `scribbles` stretches
/// overwritten; and coarser damage.
pub fn data<S: Harmed>(base: &Base<S>, flips: usize, scribbles: usize, least_harmless: u64) -> Tally {
    let places = Places::of(base);
    let mut rng = Rng::with_seed(3);
    let flips = (0..flips).map(|_| places.data_flip(&mut rng));
    let mut tally = survey("flips of data on the fast tier and on flash", base, flips, 11);
    assert!(tally.harmless > least_harmless && tally.with_lost_keys > 1000, "{tally}");
    let mut rng = Rng::with_seed(4);
    let scribbles = (0..scribbles).map(|_| places.scribble(&mut rng));
    tally += survey("words, bytes and stretches overwritten", base, scribbles, 9);
    let coarse = places.coarse(&mut rng);
    tally += survey("pages lost, files cut, places and files exchanged", base, coarse, 2);
    tally
}

/// The same for a logged pool: flipped bits in every `stride`-th byte of its files, `count` flips of any file and as many
/// stretches.
pub fn logged<S: Harmed>(base: &Base<S>, stride: usize, count: usize, least_harmless: u64) -> Tally {
    let places = Places::of(base);
    let flips = places.fast_flips(stride, Rng::with_seed(5)).filter(|harm| places.can_be_told(harm));
    let mut tally = survey("flips of the log, the image and the table", base, flips, 13);
    assert!(tally.refused > 1000, "{tally}");
    let mut rng = Rng::with_seed(6);
    let flips = (0..count).map(|_| places.data_flip(&mut rng)).filter(|harm| places.can_be_told(harm));
    tally += survey("flips of any file", base, flips, 13);
    assert!(tally.harmless > least_harmless && tally.with_lost_keys > 1000, "{tally}");
    let mut rng = Rng::with_seed(7);
    let scribbles = (0..count).map(|_| places.scribble(&mut rng)).filter(|harm| places.can_be_told(harm));
    tally += survey("words, bytes and stretches of any file", base, scribbles, 13);
    let coarse = places.coarse(&mut rng).into_iter().filter(|harm| places.can_be_told(harm));
    tally += survey("pages lost, files cut, places and files exchanged", base, coarse, 5);
    tally
}

/// A pool of random bytes is refused, `count` times.
pub fn noise<S: Harmed>(base: &Base<S>, count: u64) -> Tally {
    let noise = (0..count).map(|seed| Harm::Noise { seed });
    let tally = survey("a pool of random bytes", base, noise, 1);
    assert_eq!(tally.refused, tally.stores);
    tally
}

/// Flash as it was earlier; and a device that is empty, which is refused.
pub fn older_flash<S: Harmed>(base: &Base<S>) -> Tally {
    let older = (0..base.older.len()).map(|copy| Harm::Older { device: "flash0", copy });
    let tally = survey("flash as it was earlier", base, older, 1);
    for device in ["flash0", fast_device(base)] {
        let emptied = Harm::Emptied { device }.apply(base);
        assert!(base.rig.open(&emptied).is_err(), "{:?}, {device} is empty", base.rig.log);
    }
    tally
}

/// A format that is newer than this build's is refused as such, if what says it is intact: the first `checked` bytes of
/// `area`, with the number in byte 8, the seed of their checksum in byte 16, and the checksum behind them.
pub fn newer_format<S: Harmed>(base: &Base<S>, area: &str, checked: usize) {
    let world = base.world.copy();
    world.overwrite(area, 8, &2u32.to_le_bytes());
    if let Err(error) = base.rig.open(&world.copy()) {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{area}: {error}");
    }
    let header = world.peek(area, 0, checked);
    let seed = u64::from_le_bytes(header[16..24].try_into().expect("eight bytes"));
    world.overwrite(area, checked as u64, &checksum(seed, &header).to_le_bytes());
    match base.rig.open(&world) {
        Err(Error::NewerFormat { found: 2, newest: 1, place }) => assert_eq!(&*place.file, area),
        Err(error) => panic!("{area}: {error}"),
        Ok(_) => panic!("{area} was opened"),
    }
}

/// The fast tier as it was before, with the flash that went on: an old store, which nothing in it tells from a
/// new one. What it says is then old, or an error, but never what no key ever had. It is refused only if `may_refuse`.
pub fn older_fast_tier<S: Harmed>(base: &Base<S>, may_refuse: bool) {
    for copy in 0..base.older.len() {
        let world = Harm::Older { device: fast_device(base), copy }.apply(base);
        let engine = match base.rig.open(&world) {
            Ok(engine) => engine,
            Err(error) => {
                assert!(may_refuse && error.kind() == ErrorKind::Corrupt, "{error}");
                continue;
            }
        };
        for (key, history) in &base.content.history {
            match engine.get(key) {
                Ok(Some(value)) => assert!(history.iter().any(|had| *value == had[..]), "an invented value"),
                Ok(None) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            }
        }
    }
}

fn fast_device<S: Harmed>(base: &Base<S>) -> &'static str {
    if base.rig.log.is_none() { "pool" } else { "fast" }
}
