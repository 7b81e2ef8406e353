//! The crash suite would notice if any flush, fence, publish, sync or wait of the engine's were left out.
//!
//! The call sites that scripts and their recoveries pass are listed, one at a time is left out, and the scripts that pass it
//! are explored until a violation is found.

use super::crash::{explore_script, run};
use super::rig::{LogPlace, Rig, Sizes};
use super::script::{Known, Script};
use crate::conformance::Oracle;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tierdb_base::mutant::{self, Site};
use tierdb_sim::crashtest::Options;

/// Seeds of each script.
const SEEDS: u64 = 6;
/// Images of one script that are looked at before the next is tried.
const IMAGES: u64 = 6_000;
/// Those that are looked at first.
const SAMPLE: u64 = 500;
/// Runs of two threads at once.
const TOGETHER: u64 = 12;
/// How long a thread that has left out a call lets the other run ahead.
const PAUSE: Duration = Duration::from_millis(2);
/// Persist events in which a missing call is most likely to show.
const SOON: u64 = 24;

/// A script that passes a site, and how often it does.
#[derive(Clone)]
struct Passed<S> {
    times: u64,
    script: &'static Script,
    seed: u64,
    rig: Rig<S>,
}

/// Calls that no script notices: the end of its file's name, what it is, and why another test does.
pub type Beside = (&'static str, &'static str, &'static str);

/// The sites that are passed, with the scripts that pass them.
fn sites<S: Sizes>(sizes: &[S], ours: impl Fn(&Site) -> bool) -> BTreeMap<Site, Vec<Passed<S>>> {
    let mut found: BTreeMap<Site, Vec<Passed<S>>> = BTreeMap::new();
    // What a logged pool does between the engine and its files is tested with it. Of the engine's calls only
    // waiting means something there that it does not mean on memory.
    for log in [None, Some(LogPlace::FastTier)] {
        for sizes in sizes {
            let rig = Rig::new(sizes.clone(), log);
            for (script, seed) in
                Script::ALL.iter().flat_map(|script| (0..SEEDS).map(move |seed| (script, seed)))
            {
                let seen = mutant::record(|| {
                    let world = rig.world();
                    run(script, &rig, seed, &world, &Known::new(Oracle::new()));
                    drop(rig.open_or_create(&world.copy()).expect("a whole store opens"));
                });
                for (site, times) in seen {
                    let of_mode = if log.is_none() { site.is_persist() } else { site.what == "wait" };
                    if of_mode && ours(&site) {
                        let passed = Passed { times, script, seed, rig: rig.clone() };
                        found.entry(site).or_default().push(passed);
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
fn noticed<S: Sizes>(site: Site, passed: &[Passed<S>], first: &Rig<S>) -> Option<(&'static str, u64)> {
    let mut passed = passed.to_vec();
    // Those that pass it most often first.
    passed.sort_by_key(|passed| std::cmp::Reverse(passed.times));
    let tried = |images: u64, soon: Option<u64>| passed.iter().map(move |one| (images, soon, one.clone()));
    let together = (0..TOGETHER)
        .map(|seed| Passed { times: 0, script: &Script::TOGETHER, seed, rig: first.clone() })
        .map(|one| (SAMPLE, Some(SOON), one));
    let tries = tried(SAMPLE, Some(SOON)).chain(together).chain(tried(IMAGES, Some(SOON)));
    tries.chain(tried(IMAGES, None).take(6)).find_map(|(images, after_left_out, one)| {
        let Passed { script, seed, rig, .. } = one;
        let pause = if script.threads > 1 { PAUSE } else { Duration::ZERO };
        let options = Options { max_images: Some(images), after_left_out, pause, ..Options::default() };
        let options = options.seed(seed).depth(2);
        let explored = mutant::without(site, || {
            // A script that fails outright has noticed too.
            catch_unwind(AssertUnwindSafe(|| explore_script(script, &rig, &options).is_err())).unwrap_or(true)
        });
        explored.then_some((script.name, seed))
    })
}

/// Leaves out each persist call that is `ours`, but for those that have a test `beside`, in scripts on stores of these
/// `sizes`.
///
/// # Panics
/// If one of them is not noticed, with all that are not; or if one of `beside` is not there.
pub fn leave_out_each<S: Sizes>(sizes: &[S], ours: impl Fn(&Site) -> bool, beside: &[Beside]) {
    let mut sites = self::sites(sizes, ours);
    for (file, what, _why) in beside {
        let before = sites.len();
        sites.retain(|site, _| !(site.file.ends_with(file) && site.what == *what));
        assert!(sites.len() < before, "{what} in {file}");
    }
    let total = sites.len();
    let work = Mutex::new(sites);
    let missed = Mutex::new(Vec::new());
    let first = Rig::new(sizes[0].clone(), None);
    let try_all = || loop {
        let Some((site, passed)) = work.lock().expect("sites").pop_first() else { return };
        let start = Instant::now();
        match noticed(site, &passed, &first) {
            Some((script, seed)) => {
                println!("noticed: {site}, by {script} seed {seed} in {:.1?}", start.elapsed());
            }
            None => {
                println!("MISSED: {site}, passed by {} scripts, in {:.1?}", passed.len(), start.elapsed());
                missed.lock().expect("missed").push(site);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(try_all);
        try_all();
    });
    let missed = missed.into_inner().expect("missed");
    println!("{} of {total} sites noticed when left out", total - missed.len());
    assert!(missed.is_empty(), "not noticed when left out: {missed:#?}");
}
