//! The crash suite would notice if any flush, fence, publish, sync or wait of the engine's were left out.
//!
//! The call sites that scripts pass are listed, and those of the recoveries from a crash at each of their events. One at a time is left
//! out, and the runs that pass it are explored until a violation is found.

use super::crash::{Case, Start, deal};
use super::rig::{Rig, Sizes};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tierdb_base::mutant::{self, Site};
use tierdb_sim::crashtest::Options;

/// Packs of runs of the crash suite.
const PACKS: u64 = 2;
/// Runs that begin with a recovery, for each site that a recovery passes.
const RECOVERIES: usize = 12;
/// Runs in which a call is left out that need not be noticed.
const FEW: usize = 8;
/// Images of each run that are looked at with nothing left out.
const CONTROL: u64 = 40;
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

/// Calls that no script notices, or none soon: the end of their file's name, what they are, how many there are at most, and why, or
/// which other test does.
pub type Beside = (&'static str, &'static str, usize, &'static str);

fn is_of(site: &Site, beside: &Beside) -> bool {
    site.file.ends_with(beside.0) && site.what == beside.1
}

/// The sites that are passed, with the runs that pass them.
fn sites<S: Sizes>(sizes: &[S], ours: impl Fn(&Site) -> bool) -> BTreeMap<Site, Vec<Passed<S>>> {
    let mut found: BTreeMap<Site, Vec<Passed<S>>> = BTreeMap::new();
    // What a logged pool does between the engine and its files is tested with it. Of the engine's calls only
    // waiting means something there that it does not mean on memory.
    let is_ours = |case: &Case<S>, site: &Site| {
        let of_mode = if case.rig.log.is_none() { site.is_persist() } else { site.what == "wait" };
        of_mode && ours(site)
    };
    let cases = (0..PACKS).flat_map(|pack| deal(pack, sizes)).filter(|case| case.script.threads == 1);
    let cases: Vec<_> = cases.collect();
    for case in &cases {
        let passed = mutant::record(|| case.pass()).into_iter().filter(|(site, _)| is_ours(case, site));
        for (site, times) in passed {
            found.entry(site).or_default().push(Passed { times, case: case.clone() });
        }
    }
    // Many recoveries pass the same calls: of a site those are taken that come first, and then every so many.
    let mut met: BTreeMap<Site, Vec<Passed<S>>> = BTreeMap::new();
    for case in cases.iter().filter(|case| case.start == Start::Fresh).take(6 * sizes.len()) {
        for (case, sites) in case.recoveries() {
            for (site, times) in sites.into_iter().filter(|(site, _)| is_ours(&case, site)) {
                met.entry(site).or_default().push(Passed { times, case: case.clone() });
            }
        }
    }
    for (site, passed) in met {
        let every = passed.len().div_ceil(RECOVERIES);
        found.entry(site).or_default().extend(passed.into_iter().step_by(every));
    }
    found
}

/// The first script that notices, if one does. Crashes soon after a call that was left out come first: a sample
/// of them in all scripts that pass the site, then those of threads at once, for what no order of operations
/// shows, then more of them; then crashes anywhere.
///
/// What is `expected` to be missed is looked for in a few of them only.
fn noticed<S: Sizes>(
    site: Site,
    passed: &[Passed<S>],
    first: &Rig<S>,
    expected: bool,
) -> Option<(&'static str, u64)> {
    let mut passed = passed.to_vec();
    // Those that pass it most often first.
    passed.sort_by_key(|passed| std::cmp::Reverse(passed.times));
    let tried = |images: u64, soon: Option<u64>| passed.iter().map(move |one| (images, soon, one.clone()));
    let together = (0..TOGETHER)
        .map(|seed| Passed { times: 0, case: Case::together(seed, first.clone()) })
        .map(|one| (SAMPLE, Some(SOON), one));
    let further_tries = together.chain(tried(IMAGES, Some(SOON))).chain(tried(IMAGES, None).take(6));
    let (few, further) = if expected { (FEW, 0) } else { (usize::MAX, usize::MAX) };
    let mut tries = tried(SAMPLE, Some(SOON)).take(few).chain(further_tries.take(further));
    tries.find_map(|(images, after_left_out, one)| {
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

/// Leaves out each persist call that is `ours` in scripts on stores of these `sizes`. Those of `beside` need not be noticed.
///
/// # Panics
/// If another one is not noticed, with all that are not; if more of `beside` are not noticed than it says, or none is there; or if
/// something is noticed with nothing left out.
pub fn leave_out_each<S: Sizes>(sizes: &[S], ours: impl Fn(&Site) -> bool, beside: &[Beside]) {
    let sites = self::sites(sizes, ours);
    for one in beside {
        assert!(sites.keys().any(|site| is_of(site, one)), "{} in {}", one.1, one.0);
    }
    let total = sites.len();
    // With nothing left out nothing is noticed.
    let cases = sites.values().flatten().map(|passed| &passed.case);
    let cases: BTreeMap<_, _> = cases.map(|case| ((case.seed, case.start, case.ends_at), case)).collect();
    for case in cases.into_values() {
        let options = Options { max_images: Some(CONTROL), ..Options::default().depth(2) };
        case.explore(&options).unwrap_or_else(|failure| panic!("with nothing left out, {case:?}: {failure}"));
    }
    let work = Mutex::new(sites);
    let missed = Mutex::new(Vec::new());
    let first = Rig::new(sizes[0].clone(), None);
    let try_all = || loop {
        let Some((site, passed)) = work.lock().expect("sites").pop_first() else { return };
        let start = Instant::now();
        let expected = beside.iter().any(|one| is_of(&site, one));
        match noticed(site, &passed, &first, expected) {
            Some((script, seed)) => {
                println!("noticed: {site}, by {script} seed {seed} in {:.1?}", start.elapsed());
            }
            None => {
                println!("missed: {site}, passed by {} runs, in {:.1?}", passed.len(), start.elapsed());
                missed.lock().expect("missed").push(site);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(try_all);
        try_all();
    });
    let mut missed = missed.into_inner().expect("missed");
    println!("{} of {total} sites noticed when left out", total - missed.len());
    for one in beside {
        let mut excused = one.2;
        missed.retain(|site| {
            let is_excused = is_of(site, one) && excused > 0;
            excused -= usize::from(is_excused);
            !is_excused
        });
    }
    assert!(missed.is_empty(), "not noticed when left out: {missed:#?}");
}
