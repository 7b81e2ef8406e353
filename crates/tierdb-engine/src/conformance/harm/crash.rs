//! Whatever media make of a crash, a store opens, holds every acknowledged write and no torn one, and does so again when
//! recovery itself is cut short.
//!
//! Scripts of random operations run on simulated media; they crash before every flush, fence, publish and file operation;
//! for each, images with nothing, everything, one in, one out, torn and random pieces of what was on its way, in the
//! x86 and the weak model; and sampled recoveries crash at their events. Sampled stores are written to once they are found whole.

use super::rig::{LogPlace, Rig, Sizes};
use super::script::{self, Known, Script};
use crate::Engine;
use crate::conformance::{Oracle, asked};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tierdb_base::mutant::{self, Site};
use tierdb_sim::crashtest::{CrashFailure, CrashRun, Options, explore};
use tierdb_sim::{Budget, CrashModel, CrashPoint, World};

/// What a run begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Start {
    /// An empty store.
    Fresh,
    /// What a crash within an earlier run of the script has left.
    Crashed,
    /// What that run has left when its process was killed, or had ended.
    Killed,
}

/// A run of the suite. Scripts, logs, sizes, begin, end and depth are dealt from packs of their own, so that none of them tells
/// another; the seed draws the steps and the images.
#[derive(Clone, Debug)]
pub(super) struct Case<S> {
    pub seed: u64,
    pub script: &'static Script,
    pub rig: Rig<S>,
    pub start: Start,
    /// The event at which the earlier run ends, if it comes so far.
    pub ends_at: u64,
    /// Of the images that its crash may leave, the number of the one to begin with.
    pub image: usize,
    /// Whether the earlier run goes on in a store that one before it has closed, as it does on every log: what that left on media is
    /// then of a time of which the log tells nothing.
    aged: bool,
    /// Whether the earlier run closes the store at its end.
    earlier_closes: bool,
    /// Whether the run closes the store, opens it again and goes on.
    closes: bool,
    depth: u32,
}

/// Runs of each script of one thread in a pack.
const OF_EACH: usize = 12;
/// Those of two threads. Threads that end leave something behind that every later store looks through: a few do.
const OF_TOGETHER: usize = 4;
/// Of so many images that are as they must be, one is written to and looked at again.
const GO_ON_EVERY: u64 = 128;
/// What the seeds of the runs before and behind a run are greater by: no two of them write the same values.
const EARLIER: u64 = 1 << 14;
const BEFORE_EARLIER: u64 = 2 << 14;
const BEHIND: u64 = 3 << 14;
/// Runs in a pack.
pub(super) const PACK: u64 = (Script::ALL.len() * OF_EACH + OF_TOGETHER) as u64;

/// `count` of `of`, each as often as it stands there, in a random order.
fn shuffled<T: Clone>(rng: &mut Rng, count: usize, of: &[T]) -> Vec<T> {
    let mut dealt: Vec<T> = of.iter().cloned().cycle().take(count).collect();
    rng.shuffle(&mut dealt);
    dealt
}

/// The runs of a pack, on stores of each of `sizes`, a quarter of them on a log.
pub(super) fn deal<S: Sizes>(pack: u64, sizes: &[S]) -> Vec<Case<S>> {
    let mut rng = Rng::with_seed(pack);
    // Drawn apart, so that it does not decide what else the first pack meets.
    let mut ages = Rng::with_seed(!pack);
    let mut cases = Vec::new();
    for script in Script::ALL.iter().chain([&Script::TOGETHER]) {
        let count = if script.threads > 1 { OF_TOGETHER } else { OF_EACH };
        let places = shuffled(&mut rng, LogPlace::ALL.len(), &LogPlace::ALL);
        let logs: Vec<_> = places.into_iter().flat_map(|place| [None, None, None, Some(place)]).collect();
        let mut logs = shuffled(&mut rng, count, &logs);
        // Where there are more of them than runs of the script, each pack leaves out others.
        let first = if sizes.len() > count { sizes.len() - count + pack as usize } else { 0 };
        let in_turn: Vec<S> = sizes.iter().cycle().skip(first).take(sizes.len()).cloned().collect();
        let mut sizes = shuffled(&mut rng, count, &in_turn);
        let mut starts =
            shuffled(&mut rng, count, &[Start::Fresh, Start::Crashed, Start::Fresh, Start::Killed]);
        let mut closes = shuffled(&mut rng, count, &[true, false]);
        let mut depths = shuffled(&mut rng, count, &[2, 2, 2, 3]);
        cases.extend((0..count).map_while(|_| {
            let rig = Rig::new(sizes.pop()?, logs.pop()?);
            let (start, closes, depth) = (starts.pop()?, closes.pop()?, depths.pop()?);
            let (ends_at, image, earlier_closes) = (rng.u64(50..450), rng.usize(..8), rng.bool());
            let aged = rig.log.is_some() || ages.bool();
            Some(Case { seed: 0, script, rig, start, ends_at, image, aged, earlier_closes, closes, depth })
        }));
    }
    rng.shuffle(&mut cases);
    for (seed, case) in (pack * PACK..).zip(&mut cases) {
        case.seed = seed;
    }
    cases
}

impl<S: Sizes> Case<S> {
    /// Two threads at once, on an empty store.
    pub fn together(seed: u64, rig: Rig<S>) -> Self {
        Case {
            seed,
            script: &Script::TOGETHER,
            rig,
            start: Start::Fresh,
            ends_at: 0,
            image: 0,
            aged: false,
            earlier_closes: false,
            closes: false,
            depth: 2,
        }
    }

    /// Runs it, and opens what it leaves once more.
    pub fn pass(&self) {
        let (world, known) = self.start();
        self.run(&world, &known);
        drop(self.rig.open_or_create(&world.copy()).expect("a whole store opens"));
    }

    /// The run that begins with what a crash at each event of this one's earlier run has left, with the calls that the
    /// recovery passes.
    pub fn recoveries(&self) -> Vec<(Self, BTreeMap<Site, u64>)> {
        let (world, points) = (self.rig.world(), Arc::new(Mutex::new(Vec::new())));
        let sink = points.clone();
        world.on_event(Some(Arc::new(move |world, _| sink.lock().expect("points").push(world.capture()))));
        self.run_earlier(self.seed + EARLIER, self.earlier_closes, &world, &Known::new(Oracle::new()));
        world.on_event(None);
        let points = std::mem::take(&mut *points.lock().expect("points"));
        let opened = (0..).zip(points).map(|(ends_at, point)| {
            // Not of the same kind each time: scripts have many events in common.
            let image = (ends_at + self.seed) as usize % 32;
            let case = Case { start: Start::Crashed, aged: false, ends_at, image, ..self.clone() };
            let image = case.image_of(&point);
            let sites = mutant::record(|| drop(self.rig.open_or_create(&image).expect("an image opens")));
            (case, sites)
        });
        opened.collect()
    }

    /// Crashes the script at its events.
    ///
    /// # Errors
    /// The first image that does not open, does not hold what it must, or is found damaged.
    pub fn explore(&self, options: &Options) -> Result<CrashRun, Box<CrashFailure>> {
        let options = options.clone().seed(self.seed);
        let (world, known) = self.start();
        let checked = AtomicU64::new(0);
        let open_image =
            |image: &World| self.rig.open_or_create(image).map_err(|error| format!("open: {error}"));
        let verify = |engine: &dyn Engine| {
            let found = engine.verify().map_err(|error| format!("verify: {error}"))?;
            if found.is_clean() { Ok(()) } else { Err(format!("damaged: {:?}", found.damage)) }
        };
        explore(
            &world,
            &options,
            &known,
            |world, known| self.run(world, known),
            |image| open_image(image).map(|_| ()),
            |oracle, image| {
                let engine = open_image(image)?;
                let content = oracle.check(&*engine).map_err(|failure| failure.to_string())?;
                verify(&*engine)?;
                if !checked.fetch_add(1, Ordering::Relaxed).is_multiple_of(GO_ON_EVERY) {
                    return Ok(());
                }
                let mut oracle = oracle.clone();
                oracle.adopt(&content);
                let known = Known::new(oracle);
                self.go_on(self.seed + BEHIND, 1, &*engine, &known);
                script::sync(&*engine, &known);
                known.get().check(&*engine).map_err(|failure| format!("after more writes: {failure}"))?;
                verify(&*engine).map_err(|found| format!("after more writes: {found}"))
            },
        )
    }

    /// Media to run the script on, and what is known of them.
    fn start(&self) -> (World, Known) {
        let (world, known) = (self.rig.world(), Known::new(Oracle::new()));
        if self.start == Start::Fresh {
            return (world, known);
        }
        if self.aged {
            self.run_earlier(self.seed + BEFORE_EARLIER, true, &world, &known);
        }
        let ends_at = self.ends_at;
        // The earlier run ends where it meets this event, and it unwinds from there as if it were killed.
        let (seen, ended) = (known.clone(), Arc::new(Mutex::new(None)));
        let (sink, first) = (ended.clone(), AtomicU64::new(u64::MAX));
        world.on_event(Some(Arc::new(move |world, event| {
            first.fetch_min(event.number, Ordering::Relaxed);
            if event.number - first.load(Ordering::Relaxed) == ends_at {
                *sink.lock().expect("not killed twice") = Some((seen.get(), world.capture(), world.killed()));
                resume_unwind(Box::new("killed"));
            }
        })));
        let run = catch_unwind(AssertUnwindSafe(|| {
            self.run_earlier(self.seed + EARLIER, self.earlier_closes, &world, &known)
        }));
        world.on_event(None);
        let ended = ended.lock().expect("not killed twice").take();
        let Some((oracle, point, killed)) = ended else {
            run.expect("it was not killed");
            return (world, known);
        };
        let world = if self.start == Start::Crashed { self.image_of(&point) } else { killed };
        (world, Known::new(oracle))
    }

    /// Goes on for half as long in a store that was opened again.
    fn go_on(&self, seed: u64, threads: u32, engine: &dyn Engine, known: &Known) {
        let script = Script { ops: self.script.ops / 2, threads, ..self.script.clone() };
        script::run_on(&script, seed, engine, known);
    }

    fn run_earlier(&self, seed: u64, closes: bool, world: &World, known: &Known) {
        fastrand::seed(seed);
        let engine = self.rig.open_or_create(world).expect("a whole store opens");
        script::run_on(&Script { threads: 1, ..self.script.clone() }, seed, &*engine, known);
        // If it comes so far: what is only buffered goes with the process.
        if closes {
            script::close(&*engine, known);
        } else {
            script::sync(&*engine, known);
        }
    }

    fn image_of(&self, point: &CrashPoint) -> World {
        let images = point.images(&CrashModel::BOTH, self.seed, &Budget::default());
        images.take(1 + self.image).last().expect("an image").world
    }

    /// Runs the script; where it closes the store, opens that again and goes on.
    fn run(&self, world: &World, known: &Known) {
        let Case { seed, script, ref rig, .. } = *self;
        fastrand::seed(seed);
        let engine = rig.open_or_create(world).expect("a whole store opens");
        // From now on what was under way in an earlier run is done or undone for good.
        // Not inside of the update: a read makes a word durable that is marked on media, as all are that a close has left.
        let content = known.get().check(&*engine).expect("holds what it may");
        known.update(|oracle| oracle.adopt(&content));
        script::run_on(script, seed, &*engine, known);
        if self.closes {
            script::close(&*engine, known);
            drop(engine);
            let engine = rig.open_or_create(world).expect("a closed store opens");
            self.go_on(seed + 1, script.threads, &*engine, known);
        }
    }
}

/// The combinations that none of `cases` is, of those that may matter.
fn not_met<S: Sizes>(cases: &[Case<S>], sizes: &[S]) -> Vec<String> {
    let mut missing = Vec::new();
    let mut want = |what: String, is: &dyn Fn(&Case<S>) -> bool| {
        if !cases.iter().any(is) {
            missing.push(what);
        }
    };
    let logs: Vec<_> = [None].into_iter().chain(LogPlace::ALL.map(Some)).collect();
    let starts = [Start::Fresh, Start::Crashed, Start::Killed];
    let ends = [true, false];
    for script in Script::ALL.iter().chain([&Script::TOGETHER]) {
        let name = script.name;
        let mut with = |what: String, is: &dyn Fn(&Case<S>) -> bool| {
            want(format!("{name}, {what}"), &|case| case.script.name == name && is(case));
        };
        starts.iter().for_each(|start| with(format!("{start:?}"), &|case| case.start == *start));
        ends.iter().for_each(|closes| with(format!("closes: {closes}"), &|case| case.closes == *closes));
        with("on a log".into(), &|case| case.rig.log.is_some());
        if script.threads > 1 {
            continue;
        }
        logs.iter().for_each(|log| with(format!("{log:?}"), &|case| case.rig.log == *log));
        for sizes in sizes.iter().map(Sizes::name) {
            with(sizes.clone(), &|case| case.rig.sizes.name() == sizes);
        }
        for turns in script::TURNS {
            with(format!("turns of {turns}"), &|case| script::turns(case.seed) == turns);
        }
    }
    for log in logs {
        let mut with = |what: String, is: &dyn Fn(&Case<S>) -> bool| {
            want(format!("{log:?}, {what}"), &|case| case.rig.log == log && is(case));
        };
        starts.iter().for_each(|start| with(format!("{start:?}"), &|case| case.start == *start));
        ends.iter().for_each(|closes| with(format!("closes: {closes}"), &|case| case.closes == *closes));
        [2, 3].iter().for_each(|depth| with(format!("depth {depth}"), &|case| case.depth == *depth));
    }
    missing
}

/// Crashes scripts on two threads: the runs of a pack, and then more until so many images were checked, and so many of them of
/// crashes in recovery. Stores of each of `sizes`, most of them on byte-addressable media, where a crash has the most outcomes.
/// Of the runs with the most images, a part of these is looked at, of crashes at events that are drawn: on a log a smaller one.
///
/// With numbers `FIRST..END` in the environment variable `TIERDB_CRASH_RUN`, the runs from the first one on up to the last before the
/// end, however many images they have; with one number, only that run.
///
/// # Panics
/// At the first image that is not as it must be, with the number of its run; or if a pack does not meet every combination that
/// may matter.
pub fn crash_scripts<S: Sizes>(sizes: &[S], images: u64, in_recovery: u64) {
    let most = 5 * images / (4 * PACK);
    let on_logs = AtomicU64::new(0);
    let run = |number: u64| {
        let case = deal(number / PACK, sizes).swap_remove((number % PACK) as usize);
        // An image with a log takes as long as five without.
        let most = if case.rig.log.is_some() { most / 2 } else { most };
        let options = Options { max_images: Some(most), ..Options::default() };
        let explored = case.explore(&options.depth(case.depth));
        let explored = explored.unwrap_or_else(|failure| panic!("run {number}, {case:?}: {failure}"));
        if case.rig.log.is_some() {
            on_logs.fetch_add(explored.images, Ordering::Relaxed);
        }
        explored
    };
    let asked = asked("TIERDB_CRASH_RUN");
    let missing = not_met(&deal(0, sizes), sizes);
    assert!(missing.is_empty(), "no run meets {missing:?}");
    let total = Mutex::new(CrashRun::default());
    let (next, runs) = (AtomicU64::new(asked.as_ref().map_or(0, |asked| asked.start)), AtomicU64::new(0));
    let is_over = |number: u64| {
        let enough = || {
            let total = total.lock().expect("total");
            number >= PACK && total.images >= images && total.in_recovery >= in_recovery
        };
        asked.as_ref().map_or_else(enough, |asked| number >= asked.end)
    };
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if is_over(number) {
                break;
            }
            let done = run(number);
            total.lock().expect("total").add(&done);
            runs.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    let (runs, total, on_logs) =
        (runs.into_inner(), total.into_inner().expect("total"), on_logs.into_inner());
    println!("{runs} runs, {total}, {on_logs} images of stores on a log");
}

/// The scripts in which the log of a store of these sizes is cut off: pages are written to the image.
pub fn cut_off_the_log<S: Sizes>(sizes: &S) -> Vec<&'static str> {
    let cuts = |script: &&Script| {
        let rig = Rig::new(sizes.clone(), Some(LogPlace::FastTier));
        let world = rig.world();
        let engine = rig.open(&world).expect("an empty store opens");
        let image = || {
            let areas = world.areas().into_iter().filter(|area| area.name.ends_with("pool.image"));
            areas.map(|area| world.peek(&area.name, 0, area.len as usize)).collect::<Vec<_>>()
        };
        let before = image();
        script::run_on(script, 1, &*engine, &Known::new(Oracle::new()));
        image() != before
    };
    Script::ALL.iter().filter(cuts).map(|script| script.name).collect()
}

/// Whether a store on a log is there after any crash once its creation has returned.
pub fn creation_lasts<S: Sizes>(sizes: &S) -> bool {
    LogPlace::ALL.into_iter().all(|place| {
        let rig = Rig::new(sizes.clone(), Some(place));
        let (world, store) = rig.create();
        let point = world.capture();
        drop(store);
        let mut images = point.images(&CrashModel::BOTH, 1, &Budget::default());
        images.all(|image| rig.open(&image.world).is_ok())
    })
}
