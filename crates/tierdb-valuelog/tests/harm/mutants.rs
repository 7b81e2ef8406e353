//! Goal: the damage suite would notice if a comparison of a checksum were left out that stands alone before an answer.
//! Method: damage stores in all ways, and list the comparisons that they pass, and for each those damaged stores
//! in which it tells. Leave out one comparison at a time, and look at those stores again until something is
//! found wrong. More stores are damaged until every comparison was found to be needed.

use crate::base::{Base, Look, Mode, base};
use fastrand::Rng;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tierdb_base::mutant::{self, Site};
use tierdb_engine::conformance::harm::harms::{Harm, Places};

/// Damaged stores of a round, and most rounds.
const ROUND: usize = 1500;
const ROUNDS: usize = 20;
/// How many comparisons of each file are noticed when left out. What the others keep off, damage at random hardly
/// ever brings about: `sums` has damage made for each of them. Those of the index have a suite of their own, too; where one of them alone
/// is left out, an open finds that a value has no key.
const NOTICED: [(&str, usize); 5] = [
    ("src/read.rs", 3),
    ("src/hsit.rs", 1),
    ("src/index/leaf.rs", 2),
    ("src/layout.rs", 1),
    ("src/long.rs", 1),
];

/// Damaged stores of all kinds, mixed.
fn harms(base: &Base, seed: u64) -> impl Iterator<Item = Harm> {
    let places = Places::of(base);
    let mut rng = Rng::with_seed(seed);
    let mut coarse = places.coarse(&mut rng);
    rng.shuffle(&mut coarse);
    std::iter::from_fn(move || {
        Some(match rng.u8(..8) {
            0..3 => places.metadata_flip(rng.usize(..places.metadata.len()), &mut rng),
            3 => places.data_flip(&mut rng),
            4 | 5 => places.scribble(&mut rng),
            6 => places.word(&mut rng),
            _ => coarse.pop().unwrap_or_else(|| places.data_flip(&mut rng)),
        })
    })
}

/// Runs `work` on two threads, which share what it takes.
fn on_two_threads(work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(&work);
        work();
    });
}

/// The comparisons that damaged stores pass, with the stores in which they tell.
fn telling<'h>(base: &Base, harms: &'h [Harm]) -> BTreeMap<Site, Vec<&'h Harm>> {
    let (queue, found) = (Mutex::new(harms.iter()), Mutex::new(BTreeMap::<Site, Vec<&Harm>>::new()));
    on_two_threads(|| {
        while let Some(harm) = { queue.lock().next() } {
            let seen = mutant::record(|| {
                base.harmed(harm, Look::Write).expect("nothing is left out");
            });
            let mut found = found.lock();
            for site in seen.into_keys().filter(|site| site.file.contains("valuelog/src")) {
                let comparison = Site { what: "checksum", ..site };
                match site.what {
                    "checksum" => _ = found.entry(comparison).or_default(),
                    "mismatch" => found.entry(comparison).or_default().push(harm),
                    _ => {}
                }
            }
        }
    });
    found.into_inner()
}

/// What is found wrong in a damaged store without the comparison at `site`.
fn wrong(base: &Base, harm: &Harm, site: Site) -> Option<String> {
    let look = || mutant::without(site, || base.harmed(harm, Look::Write));
    match catch_unwind(AssertUnwindSafe(look)) {
        Ok(Ok(_)) => None,
        Ok(Err(wrong)) => Some(wrong),
        Err(_) => Some("panic".into()),
    }
}

/// The files of which fewer comparisons are noticed than [`NOTICED`] says: how many should be, and are.
fn lacking(noticed: &BTreeSet<Site>) -> Vec<(&'static str, usize, usize)> {
    let of_file = |file: &str| noticed.iter().filter(|site| site.file.ends_with(file)).count();
    let counts = NOTICED.into_iter().map(|(file, least)| (file, least, of_file(file)));
    counts.filter(|(_, least, has)| has < least).collect()
}

#[test]
fn a_comparison_of_a_checksum_that_is_left_out_is_noticed() {
    let base = base(Mode::Memory);
    let mut stream = harms(&base, 7);
    let (mut sites, noticed) = (BTreeSet::new(), Mutex::new(BTreeSet::new()));
    for round in 0..ROUNDS {
        let harms: Vec<Harm> = stream.by_ref().take(ROUND).collect();
        let telling = telling(&base, &harms);
        sites.extend(telling.keys().copied());
        let unknown = |site: &Site| !noticed.lock().contains(site);
        let queue = Mutex::new(telling.into_iter().filter(|(site, _)| unknown(site)));
        on_two_threads(|| {
            while let Some((site, harms)) = { queue.lock().next() } {
                let found =
                    harms.iter().zip(1..).find_map(|(harm, n)| Some((n, harm, wrong(&base, harm, site)?)));
                if let Some((number, harm, wrong)) = found {
                    println!("{site}: round {round}, store {number}, {harm:?}: {wrong}");
                    noticed.lock().insert(site);
                }
            }
        });
        if lacking(&noticed.lock()).is_empty() {
            break;
        }
    }
    let noticed = noticed.into_inner();
    println!("{} of {} comparisons noticed when left out", noticed.len(), sites.len());
    let lacking = lacking(&noticed);
    assert!(lacking.is_empty(), "fewer comparisons are noticed than there should be: {lacking:?}");
}
