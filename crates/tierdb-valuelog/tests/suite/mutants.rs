//! Goal: the crash suite would notice if any flush, fence, publish, sync or durable write were left out.
//! Method: list the call sites that scripts and their recoveries pass, leave out one at a time, and
//! explore the scripts that pass it until a violation is found.

use crate::crash::{MODES, explore_script, open, run};
use crate::rig::script::{Known, Script};
use crate::rig::{LogPlace, Sizes, logged_world, world};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tierdb_base::mutant::{self, Site};
use tierdb_engine::conformance::Oracle;
use tierdb_sim::crashtest::Options;

/// A script that passes a site, and how often it does.
type Passed = (u64, &'static Script, u64, Option<LogPlace>);

const SEEDS: u64 = 6;
/// Images of one script that are looked at before the next is tried.
const IMAGES: u64 = 6_000;
/// Those that are looked at first.
const SAMPLE: u64 = 500;
/// Runs of two threads at once.
const TOGETHER: u64 = 12;
/// How long a thread that has left out a call lets the other run ahead.
const PAUSE: Duration = Duration::from_millis(2);
/// What a test beside it notices, and why no script does.
const BESIDE: [(&str, &str, &str); 3] = [
    (
        "valuelog/src/core.rs",
        "fence",
        "the limit of seqnos is raised half a million writes before it is reached",
    ),
    ("valuelog/src/core.rs", "publish", "as above"),
    ("valuelog/src/layout.rs", "wait", "scripts on a log start with a store that was created and closed"),
];
/// Here too: nothing of an image is needed for a right answer, only for a quick one.
const IMAGE: &str = "valuelog/src/image.rs";
/// Persist events in which a missing call is most likely to show.
const SOON: u64 = 24;

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
                    run(script, &sizes, mode, seed, &world, &Known::new(Oracle::new()));
                    drop(open(&world.copy(), &sizes, mode).expect("a whole store opens"));
                });
                for (site, times) in seen {
                    let of_mode = if mode.is_none() { site.is_persist() } else { site.what == "wait" };
                    // The index has a suite of its own.
                    let ours = site.file.contains("valuelog/src") && !site.file.contains("src/index");
                    if of_mode && ours {
                        found.entry(site).or_default().push((times, script, seed, mode));
                    }
                }
            }
        }
    }
    found
}

/// The first script that notices, if one does. Crashes soon after a call that was left out come first: a sample
/// of them in all scripts that pass the site, then those of threads at once, for what no order of operations
/// shows, then more of them; then crashes anywhere.
fn noticed(site: Site, passed: &[Passed]) -> Option<(&'static str, u64)> {
    let mut passed = passed.to_vec();
    // Those that pass it most often first.
    passed.sort_by_key(|(times, ..)| std::cmp::Reverse(*times));
    let tried = |images, soon| {
        passed.iter().map(move |(_, script, seed, mode)| (images, soon, *script, *seed, *mode))
    };
    let together = (0..TOGETHER).map(|seed| (SAMPLE, Some(SOON), &Script::TOGETHER, seed, None));
    let tries = tried(SAMPLE, Some(SOON)).chain(together).chain(tried(IMAGES, Some(SOON)));
    tries.chain(tried(IMAGES, None).take(6)).find_map(|(images, after_left_out, script, seed, mode)| {
        let pause = if script.threads > 1 { PAUSE } else { Duration::ZERO };
        let options = Options { max_images: Some(images), after_left_out, pause, ..Options::default() };
        let options = options.seed(seed).depth(2);
        let explored = mutant::without(site, || {
            // A script that fails outright has noticed too.
            catch_unwind(AssertUnwindSafe(|| explore_script(script, &Sizes::tiny(), mode, &options).is_err()))
                .unwrap_or(true)
        });
        explored.then_some((script.name, seed))
    })
}

#[test]
fn every_persist_call_that_is_left_out_is_noticed() {
    let mut sites = sites();
    for (file, what, _why) in BESIDE {
        let before = sites.len();
        sites.retain(|site, _| !(site.file.ends_with(file) && site.what == what));
        assert_eq!(before - sites.len(), 1, "{what} in {file}");
    }
    sites.retain(|site, _| !site.file.ends_with(IMAGE));
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
