//! Goal: the damage suite would notice if any comparison of a checksum were left out, and so each is needed.
//! Method: list the comparisons that stores, whole and damaged, pass; leave out one at a time, and damage
//! stores until the suite finds something wrong.

use crate::base::{Base, Look, Mode, base};
use crate::harms::{Harm, Places};
use fastrand::Rng;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Instant;
use tierdb_base::mutant::{self, Site};

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
            6 => places.header_word(&mut rng),
            _ => coarse.pop().unwrap_or_else(|| places.data_flip(&mut rng)),
        })
    })
}

/// The first thing that is found wrong, and after how many stores.
fn first_wrong(base: &Base, most: usize) -> Option<(usize, String)> {
    harms(base, 7).take(most).enumerate().find_map(|(number, harm)| {
        let look = if number % 2 == 0 { Look::Write } else { Look::Read };
        let seen = catch_unwind(AssertUnwindSafe(|| base.harmed(&harm, look)));
        match seen {
            Ok(Ok(_)) => None,
            Ok(Err(wrong)) => Some((number, format!("{harm:?}: {wrong}"))),
            Err(_) => Some((number, format!("{harm:?}: panic"))),
        }
    })
}

fn sites(base: &Base) -> Vec<Site> {
    let seen = mutant::record(|| {
        for (number, harm) in harms(base, 1).take(2000).enumerate() {
            let look = if number % 2 == 0 { Look::Write } else { Look::Read };
            base.harmed(&harm, look).expect("nothing is left out");
        }
    });
    let found: BTreeSet<Site> = seen.into_keys().collect();
    found.into_iter().filter(|site| site.what == "checksum" && site.file.contains("valuelog/src")).collect()
}

#[test]
fn every_comparison_of_a_checksum_that_is_left_out_is_noticed() {
    std::panic::set_hook(Box::new(|_| {}));
    let base = base(Mode::Memory);
    assert_eq!(first_wrong(&base, 20_000), None, "nothing is left out");
    let sites = sites(&base);
    let (queue, missed) = (Mutex::new(sites.clone()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(site) = queue.lock().expect("no panic").pop() else { return };
                    let start = Instant::now();
                    match mutant::without(site, || first_wrong(&base, 40_000)) {
                        Some((number, wrong)) => println!("caught: {site}, by store {number}: {wrong}"),
                        None => {
                            println!("MISSED: {site}, in {:.1?}", start.elapsed());
                            missed.lock().expect("no panic").push(site);
                        }
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().expect("no panic");
    assert!(
        missed.is_empty(),
        "{} of {} are not noticed when left out: {missed:#?}",
        missed.len(),
        sites.len()
    );
}
