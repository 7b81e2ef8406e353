//! Whatever media make of a crash, a store opens, holds every acknowledged write and no torn one, and does so again when
//! recovery itself is cut short.
//!
//! Scripts of random operations run on simulated media; they crash before every flush, fence, publish and file operation;
//! for each, images with nothing, everything, one in, one out, torn and random pieces of what was on its way, in the
//! x86 and the weak model; and sampled recoveries crash at their events.

use super::rig::{LogPlace, Rig, Sizes};
use super::script::{self, Known, Script};
use crate::conformance::Oracle;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tierdb_sim::crashtest::{CrashFailure, CrashRun, Options, explore};
use tierdb_sim::{Budget, CrashModel, World};

/// Media to run a script on, and what is known of them: nothing; or what a crash within an earlier run of it has
/// left; or what that run has left when its process was killed, or had ended without a close.
fn start<S: Sizes>(script: &Script, rig: &Rig<S>, seed: u64) -> (World, Known) {
    let (world, known) = (rig.world(), Known::new(Oracle::new()));
    if seed.is_multiple_of(2) {
        return (world, known);
    }
    // The earlier run ends where it meets this event, and it unwinds from there as if it were killed.
    let (last, seen, ended) = (50 + seed * 37 % 400, known.clone(), Arc::new(Mutex::new(None)));
    let (sink, first) = (ended.clone(), AtomicU64::new(u64::MAX));
    world.on_event(Some(Arc::new(move |world, event| {
        first.fetch_min(event.number, Ordering::Relaxed);
        if event.number - first.load(Ordering::Relaxed) == last {
            *sink.lock().expect("not killed twice") = Some((seen.get(), world.capture(), world.killed()));
            resume_unwind(Box::new("killed"));
        }
    })));
    let run = catch_unwind(AssertUnwindSafe(|| {
        let engine = rig.open_or_create(&world).expect("a whole store opens");
        script::run_on(&Script { threads: 1, ..script.clone() }, seed, &*engine, &known);
        // If it comes so far: what is only buffered goes with the process.
        let ticket = known.update(Oracle::sync);
        engine.sync().expect("no fault was injected");
        known.update(|oracle| oracle.returned(ticket));
    }));
    world.on_event(None);
    let ended = ended.lock().expect("not killed twice").take();
    let Some((oracle, point, killed)) = ended else {
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
    (world, Known::new(oracle))
}

/// Runs `script`; where it closes the store, opens that again and goes on.
pub fn run<S: Sizes>(script: &Script, rig: &Rig<S>, seed: u64, world: &World, known: &Known) {
    fastrand::seed(seed);
    let engine = rig.open_or_create(world).expect("a whole store opens");
    // From now on what was under way in an earlier run is done or undone for good.
    known.update(|oracle| {
        let content = oracle.check(&*engine).expect("holds what it may");
        oracle.adopt(&content);
    });
    if script::run_on(script, seed, &*engine, known) {
        drop(engine);
        let engine = rig.open_or_create(world).expect("a closed store opens");
        script::run_on(&Script { ops: script.ops / 2, ..script.clone() }, seed + 1, &*engine, known);
    }
}

/// Crashes `script` at its events.
///
/// # Errors
/// The first image that does not open, does not hold what it must, or is found damaged.
pub fn explore_script<S: Sizes>(
    script: &Script,
    rig: &Rig<S>,
    options: &Options,
) -> Result<CrashRun, Box<CrashFailure>> {
    let (world, known) = start(script, rig, options.seed);
    let open_image = |image: &World| rig.open_or_create(image).map_err(|error| format!("open: {error}"));
    explore(
        &world,
        options,
        &known,
        |world, known| run(script, rig, options.seed, world, known),
        |image| open_image(image).map(|_| ()),
        |oracle, image| {
            let engine = open_image(image)?;
            oracle.check(&*engine).map_err(|failure| failure.to_string())?;
            let found = engine.verify().map_err(|error| format!("verify: {error}"))?;
            if found.is_clean() { Ok(()) } else { Err(format!("damaged: {:?}", found.damage)) }
        },
    )
}

/// Crashes scripts until so many images were checked, and so many of them of crashes in recovery, on two threads. Stores
/// of each of `sizes`, most of them on byte-addressable media, where a crash has the most outcomes.
///
/// # Panics
/// At the first image that is not as it must be.
pub fn crash_scripts<S: Sizes>(sizes: &[S], images: u64, in_recovery: u64) {
    let total = Mutex::new(CrashRun::default());
    let next = AtomicU64::new(0);
    let enough = || {
        let total = total.lock().expect("total");
        total.images >= images && total.in_recovery >= in_recovery
    };
    let work = || {
        while !enough() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            // Threads that end leave something behind that every later store looks through: a few do.
            let script = match number % 32 {
                29 => &Script::TOGETHER,
                _ => &Script::ALL[number as usize % Script::ALL.len()],
            };
            let log = (number % 8 >= 6).then(|| LogPlace::ALL[(number as usize / 8) % LogPlace::ALL.len()]);
            let round = number as usize / Script::ALL.len();
            let rig = Rig::new(sizes[round % sizes.len()].clone(), log);
            let options = Options::default().seed(number).depth(if number.is_multiple_of(4) { 3 } else { 2 });
            match explore_script(script, &rig, &options) {
                Ok(run) => total.lock().expect("total").add(&run),
                Err(failure) => {
                    panic!("{}, {:?}, script {}: {failure}", rig.sizes.name(), rig.log, script.name)
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    println!("{}", total.into_inner().expect("total"));
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
