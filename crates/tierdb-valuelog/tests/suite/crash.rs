//! Goal: whatever the media make of a crash, the store opens, holds every acknowledged write and no torn
//! one, and does so again when recovery itself is cut short.
//! Method: scripts of random operations on simulated media; a crash before every flush, fence, publish and
//! file operation; for each, images with nothing, everything, one in, one out, torn and random pieces of
//! what was on its way, in the x86 and the weak model; and a crash at the events of sampled recoveries.

use crate::rig::script::{self, Known, Script};
use crate::rig::{LogPlace, Sizes};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tierdb_base::mutant::{self, Site};
use tierdb_engine::Engine;
use tierdb_engine::conformance::Oracle;
use tierdb_sim::crashtest::{CrashFailure, CrashRun, Options, explore};
use tierdb_sim::{Budget, CrashModel, World};

/// The hardware modes: where the pool is.
pub const MODES: [Option<LogPlace>; 4] =
    [None, Some(LogPlace::FastTier), Some(LogPlace::WithValues), Some(LogPlace::TwoFastTiers)];

pub fn open(image: &World, sizes: &Sizes, mode: Option<LogPlace>) -> tierdb_base::Result<Box<dyn Engine>> {
    Ok(match mode {
        None => Box::new(crate::rig::open(image, sizes)?),
        Some(place) => Box::new(crate::rig::open_logged(image, sizes, place)?),
    })
}

/// Media to run a script on, and what is known of them: nothing; or what a crash within an earlier run of it has
/// left; or what that run has left when its process was killed.
fn start(script: &Script, sizes: &Sizes, mode: Option<LogPlace>, seed: u64) -> (World, Known) {
    let world = match mode {
        None => crate::rig::world(sizes),
        Some(place) => crate::rig::logged_world(sizes, place),
    };
    let known = Known::new(Oracle::new());
    if seed.is_multiple_of(2) {
        return (world, known);
    }
    // The earlier run ends where it meets this event, and it unwinds from there as if it were killed.
    let (last, seen, ended) = (50 + seed * 37 % 400, known.clone(), Arc::new(Mutex::new(None)));
    let (sink, first) = (ended.clone(), AtomicU64::new(u64::MAX));
    world.on_event(Some(Arc::new(move |world, event| {
        first.fetch_min(event.number, Ordering::Relaxed);
        if event.number - first.load(Ordering::Relaxed) == last {
            *sink.lock().expect("not killed twice") = Some((seen.get(), world.capture(), world.copy()));
            resume_unwind(Box::new("killed"));
        }
    })));
    let run = catch_unwind(AssertUnwindSafe(|| {
        let engine = open(&world, sizes, mode).expect("a whole store opens");
        script::run_on(&Script { threads: 1, ..script.clone() }, seed, &*engine, &known);
    }));
    world.on_event(None);
    let ended = ended.lock().expect("not killed twice").take();
    let Some((mut oracle, point, killed)) = ended else {
        run.expect("it was not killed");
        return (world, known);
    };
    let world = if seed % 4 == 1 {
        let budget = Budget::default();
        let images = point.images(&CrashModel::BOTH, seed, &budget).take(1 + seed as usize % 8);
        images.last().expect("an image").world
    } else {
        killed
    };
    let content =
        oracle.check(&*open(&world.copy(), sizes, mode).expect("opens")).expect("holds what it may");
    oracle.adopt(&content);
    (world, Known::new(oracle))
}

/// Runs `script`; where it closes the store, opens that again and goes on.
pub fn run(script: &Script, sizes: &Sizes, mode: Option<LogPlace>, seed: u64, world: &World, known: &Known) {
    fastrand::seed(seed);
    let engine = open(world, sizes, mode).expect("a whole store opens");
    if script::run_on(script, seed, &*engine, known) {
        drop(engine);
        let engine = open(world, sizes, mode).expect("a closed store opens");
        script::run_on(&Script { ops: script.ops / 2, ..script.clone() }, seed + 1, &*engine, known);
    }
}

/// Crashes `script` at its events.
pub fn explore_script(
    script: &Script,
    sizes: &Sizes,
    mode: Option<LogPlace>,
    options: &Options,
) -> Result<CrashRun, Box<CrashFailure>> {
    let (world, known) = start(script, sizes, mode, options.seed);
    let open_image = |image: &World| open(image, sizes, mode).map_err(|error| format!("open: {error}"));
    explore(
        &world,
        options,
        &known,
        |world, known| run(script, sizes, mode, options.seed, world, known),
        |image| open_image(image).map(|_| ()),
        |oracle, image| {
            let engine = open_image(image)?;
            oracle.check(&*engine).map_err(|failure| failure.to_string())?;
            let found = engine.verify().map_err(|error| format!("verify: {error}"))?;
            if found.is_clean() { Ok(()) } else { Err(format!("damaged: {:?}", found.damage)) }
        },
    )
}

/// Images that are checked at least, in all modes together.
const LEAST_IMAGES: u64 = 1_000_000;
/// Of them, images of crashes inside recovery.
const LEAST_IN_RECOVERY: u64 = 100_000;

#[test]
fn crashes_at_every_event_lose_nothing() {
    let total = Mutex::new(CrashRun::default());
    let next = AtomicU64::new(0);
    let enough = || {
        let total = total.lock().expect("total");
        total.images >= LEAST_IMAGES && total.in_recovery >= LEAST_IN_RECOVERY
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !enough() {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    // Threads that end leave something behind that every later store looks through: a few do.
                    let script = match number % 32 {
                        29 => &Script::TOGETHER,
                        _ => &Script::ALL[number as usize % Script::ALL.len()],
                    };
                    // Most of them on byte-addressable media, where a crash has the most outcomes.
                    let mode = if number % 8 < 6 {
                        MODES[0]
                    } else {
                        MODES[1 + (number as usize / 8) % (MODES.len() - 1)]
                    };
                    let options =
                        Options::default().seed(number).depth(if number.is_multiple_of(4) { 3 } else { 2 });
                    match explore_script(script, &Sizes::tiny(), mode, &options) {
                        Ok(run) => total.lock().expect("total").add(&run),
                        Err(failure) => panic!("script {}, mode {mode:?}: {failure}", script.name),
                    }
                }
            });
        }
    });
    println!("{}", total.into_inner().expect("total"));
}

/// Whether a store on a log is there after any crash once its creation has returned.
fn creation_lasts() -> bool {
    [LogPlace::FastTier, LogPlace::WithValues, LogPlace::TwoFastTiers].into_iter().all(|place| {
        let sizes = Sizes::tiny();
        let (world, store) = crate::rig::create_logged(&sizes, place);
        let point = world.capture();
        drop(store);
        let mut images = point.images(&CrashModel::BOTH, 1, &Budget::default());
        images.all(|image| open(&image.world, &sizes, Some(place)).is_ok())
    })
}

#[test]
fn a_store_that_is_created_lasts() {
    let sites = mutant::record(|| assert!(creation_lasts()));
    let wait = |site: &Site| site.what == "wait" && site.file.ends_with("valuelog/src/layout.rs");
    let site = sites.into_keys().find(wait).expect("it waits");
    assert!(!mutant::without(site, creation_lasts), "a missing wait is noticed");
}
