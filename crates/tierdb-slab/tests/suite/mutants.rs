//! Goal: the crash suite would notice if any flush, fence, publish, sync or durable write were left out.
//! Method: list the call sites that scripts and their recoveries pass, leave out one at a time, and
//! explore the scripts that pass it until a violation is found.

use crate::crash::{MODES, explore_script, open};
use crate::rig::script::{self, Known, Script};
use crate::rig::{LogPlace, Sizes, logged_world, world};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Instant;
use tierdb_base::mutant::{self, Site};
use tierdb_engine::conformance::Oracle;
use tierdb_sim::crashtest::Options;

/// A script that passes a site, and how often it does.
type Passed = (u64, &'static Script, u64, Option<LogPlace>);

const SEEDS: u64 = 6;
/// Images of one script that are looked at before the next is tried.
const IMAGES: u64 = 6_000;

/// The sites of the engine that are passed, with the scripts that pass them.
fn sites() -> BTreeMap<Site, Vec<Passed>> {
    let mut found: BTreeMap<Site, Vec<Passed>> = BTreeMap::new();
    // What a logged pool does between the engine and its files is tested with it. Of the engine's calls only
    // waiting means something there that it does not mean on memory.
    for mode in [MODES[0], MODES[1]] {
        for script in &Script::ALL {
            for seed in 0..SEEDS {
                let seen = mutant::record(|| {
                    let sizes = Sizes::tiny();
                    let world = mode.map_or_else(|| world(&sizes), |place| logged_world(&sizes, place));
                    fastrand::seed(seed);
                    let engine = open(&world, &sizes, mode).expect("a whole store opens");
                    script::run_on(script, seed, &*engine, &Known::new(Oracle::new()));
                    drop(engine);
                    drop(open(&world.copy(), &sizes, mode).expect("a whole store opens"));
                });
                for (site, times) in seen {
                    let of_mode = if mode.is_none() { site.is_persist() } else { site.what == "wait" };
                    if of_mode && site.file.contains("slab/src") {
                        found.entry(site).or_default().push((times, script, seed, mode));
                    }
                }
            }
        }
    }
    found
}

/// The first script that notices, if one does.
fn noticed(site: Site, passed: &[Passed]) -> Option<(&'static str, u64)> {
    let mut passed = passed.to_vec();
    // Those that pass it most often first.
    passed.sort_by_key(|(times, ..)| std::cmp::Reverse(*times));
    passed.into_iter().find_map(|(_, script, seed, mode)| {
        let options = Options { max_images: Some(IMAGES), ..Options::default().seed(seed).depth(2) };
        let explored = mutant::without(site, || {
            // A script that fails outright has noticed too.
            catch_unwind(AssertUnwindSafe(|| explore_script(script, &Sizes::tiny(), mode, &options).is_err()))
                .unwrap_or(true)
        });
        explored.then_some((script.name, seed))
    })
}

#[test]
#[ignore = "takes an hour: run with --ignored"]
fn every_persist_call_that_is_left_out_is_noticed() {
    let sites = sites();
    let total = sites.len();
    let work = Mutex::new(sites);
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((site, passed)) = work.lock().expect("sites").pop_first() else { return };
                    let start = Instant::now();
                    match noticed(site, &passed) {
                        Some((script, seed)) => {
                            println!("noticed: {site}, by {script} seed {seed} in {:.1?}", start.elapsed());
                        }
                        None => {
                            println!(
                                "MISSED: {site}, passed by {} scripts, in {:.1?}",
                                passed.len(),
                                start.elapsed()
                            );
                            missed.lock().expect("missed").push(site);
                        }
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().expect("missed");
    println!("{} of {total} sites noticed when left out", total - missed.len());
    assert!(missed.is_empty(), "not noticed when left out: {missed:#?}");
}
