//! Goal: whatever the media make of a crash, the store opens, holds every acknowledged write and no torn
//! one, and does so again when recovery itself is cut short.
//! Method: scripts of random operations on simulated media; a crash before every flush, fence, publish and
//! file operation; for each, images with nothing, everything, one in, one out, torn and random pieces of
//! what was on its way, in the x86 and the weak model; and a crash at the events of sampled recoveries.

use crate::rig::script::{self, Known, Script};
use crate::rig::{LogPlace, Sizes};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_engine::Engine;
use tierdb_engine::conformance::Oracle;
use tierdb_sim::World;
use tierdb_sim::crashtest::{CrashFailure, CrashRun, Options, explore};

/// The hardware modes: where the pool is.
pub const MODES: [Option<LogPlace>; 3] = [None, Some(LogPlace::FastTier), Some(LogPlace::WithValues)];

pub fn open(image: &World, sizes: &Sizes, mode: Option<LogPlace>) -> tierdb_base::Result<Box<dyn Engine>> {
    Ok(match mode {
        None => Box::new(crate::rig::open(image, sizes)?),
        Some(place) => Box::new(crate::rig::open_logged(image, sizes, place)?),
    })
}

/// Crashes `script` at its events.
pub fn explore_script(
    script: &Script,
    sizes: &Sizes,
    mode: Option<LogPlace>,
    options: &Options,
) -> Result<CrashRun, Box<CrashFailure>> {
    let known = Known::new(Oracle::new());
    let world = match mode {
        None => crate::rig::world(sizes),
        Some(place) => crate::rig::logged_world(sizes, place),
    };
    let open_image = |image: &World| open(image, sizes, mode).map_err(|error| format!("open: {error}"));
    explore(
        &world,
        options,
        &known,
        |world, known| {
            fastrand::seed(options.seed);
            let engine = open(world, sizes, mode).expect("a whole store opens");
            script::run_on(script, options.seed, &*engine, known);
        },
        |image| open_image(image).map(|_| ()),
        |oracle, image| {
            let engine = open_image(image)?;
            oracle.check(&*engine).map(|_| ()).map_err(|failure| failure.to_string())
        },
    )
}

/// Images that are checked at least, in all modes together.
const LEAST_IMAGES: u64 = 30_000;
/// Of them, images of crashes inside recovery.
const LEAST_IN_RECOVERY: u64 = 6_000;

/// Images of one script at the most.
const IMAGES_OF_A_SCRIPT: u64 = 2_500;

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
                    let script = &Script::ALL[number as usize % Script::ALL.len()];
                    // Most of them on byte-addressable media, where a crash has the most outcomes.
                    let mode = if number % 8 < 6 { MODES[0] } else { MODES[1 + (number as usize / 8) % 2] };
                    let depth = if number.is_multiple_of(4) { 3 } else { 2 };
                    // A part of each, so that there are many scripts in all modes.
                    let most = Some(IMAGES_OF_A_SCRIPT);
                    let options =
                        Options { max_images: most, ..Options::default().seed(number).depth(depth) };
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
