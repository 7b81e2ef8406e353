//! The crash suite would notice if any flush, fence, publish, sync or wait of the engine's were left out.
//!
//! The call sites that scripts and their recoveries pass are listed, one at a time is left out, and the scripts that pass it
//! are explored until a violation is found.

use super::crash::{Case, deal};
use super::rig::{Rig, Sizes};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tierdb_base::mutant::{self, Site};
use tierdb_sim::crashtest::Options;

/// Packs of runs of the crash suite.
const PACKS: u64 = 2;
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

/// A run that passes a site, and how often it does.
#[derive(Clone)]
struct Passed<S> {
    times: u64,
    case: Case<S>,
}

/// Calls that no script notices: the end of its file's name, what it is, and why another test does.
pub type Beside = (&'static str, &'static str, &'static str);

/// The sites that are passed, with the runs that pass them.
fn sites<S: Sizes>(sizes: &[S], ours: impl Fn(&Site) -> bool) -> BTreeMap<Site, Vec<Passed<S>>> {
    let mut found: BTreeMap<Site, Vec<Passed<S>>> = BTreeMap::new();
    for case in (0..PACKS).flat_map(|pack| deal(pack, sizes)).filter(|case| case.script.threads == 1) {
        for (site, times) in mutant::record(|| case.pass()) {
            // What a logged pool does between the engine and its files is tested with it. Of the engine's calls only
            // waiting means something there that it does not mean on memory.
            let of_mode = if case.rig.log.is_none() { site.is_persist() } else { site.what == "wait" };
            if of_mode && ours(&site) {
                found.entry(site).or_default().push(Passed { times, case: case.clone() });
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
        .map(|seed| Passed { times: 0, case: Case::together(seed, first.clone()) })
        .map(|one| (SAMPLE, Some(SOON), one));
    let tries = tried(SAMPLE, Some(SOON)).chain(together).chain(tried(IMAGES, Some(SOON)));
    tries.chain(tried(IMAGES, None).take(6)).find_map(|(images, after_left_out, one)| {
        let case = one.case;
        let pause = if case.script.threads > 1 { PAUSE } else { Duration::ZERO };
        let options = Options { max_images: Some(images), after_left_out, pause, ..Options::default() };
        let explored = mutant::without(site, || {
            // A script that fails outright has noticed too.
            let explored = AssertUnwindSafe(|| case.explore(&options.depth(2)).is_err());
            catch_unwind(explored).unwrap_or(true)
        });
        explored.then_some((case.script.name, case.seed))
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
