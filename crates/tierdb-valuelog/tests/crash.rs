//! Goal: whatever the media make of a crash, the store opens, holds every acknowledged write and no torn
//! one, and does so again when recovery itself is cut short.
//! Method: scripts of random operations on simulated media; a crash before every flush, fence, publish and
//! file operation; for each, images with nothing, everything, one in, one out, torn and random pieces of
//! what was on its way, in the x86 and the weak model; and a crash at the events of sampled recoveries.

mod rig;

use rig::script::{self, Known, Script};
use rig::{LogPlace, Sizes};
use tierdb_base::Result;
use tierdb_engine::Engine;
use tierdb_engine::conformance::Oracle;
use tierdb_sim::World;
use tierdb_sim::crashtest::{CrashRun, Options, explore};

/// The hardware modes: where the pool is.
const MODES: [Option<LogPlace>; 3] = [None, Some(LogPlace::FastTier), Some(LogPlace::WithValues)];

fn open(image: &World, sizes: &Sizes, mode: Option<LogPlace>) -> Result<Box<dyn Engine>> {
    Ok(match mode {
        None => Box::new(rig::open(image, sizes)?),
        Some(place) => Box::new(rig::open_logged(image, sizes, place)?),
    })
}

fn explore_script(script: &Script, sizes: &Sizes, mode: Option<LogPlace>, options: &Options) -> CrashRun {
    let known = Known::new(Oracle::new());
    let world = match mode {
        None => rig::world(sizes),
        Some(place) => rig::logged_world(sizes, place),
    };
    let open_image = |image: &World| open(image, sizes, mode).map_err(|error| format!("open: {error}"));
    let run = explore(
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
    );
    match run {
        Ok(run) => run,
        Err(failure) => panic!("script {}, mode {mode:?}, {sizes:?}: {failure}", script.name),
    }
}

#[test]
fn scripts_survive_crashes_at_every_event() {
    let mut total = CrashRun::default();
    for mode in MODES {
        for script in [Script::OVERWRITE, Script::CHURN, Script::LONG, Script::GROUPED] {
            for seed in 0..1 {
                let options = Options::default().seed(seed).depth(2);
                let run = explore_script(&script, &Sizes::tiny(), mode, &options);
                println!("{} {mode:?} seed {seed}: {run}", script.name);
                total.add(&run);
            }
        }
    }
    println!("all: {total}");
}
