//! Goal: whatever the media make of a crash, the store opens, holds every acknowledged write and no torn
//! one, and does so again when recovery itself is cut short.
//! Method: scripts of random operations on simulated media; a crash before every flush, fence, publish and
//! file operation; for each, images with nothing, everything, one in, one out, torn and random pieces of
//! what was on its way, in the x86 and the weak model; and a crash at the events of sampled recoveries.

mod rig;

use rig::script::{self, Known, Script};
use rig::{Sizes, open, world};
use tierdb_engine::conformance::Oracle;
use tierdb_sim::World;
use tierdb_sim::crashtest::{CrashRun, Options, explore};

fn check(sizes: &Sizes) -> impl Fn(&Oracle, &World) -> Result<(), String> {
    let sizes = sizes.clone();
    move |oracle, image| {
        let engine = open(image, &sizes).map_err(|error| format!("open: {error}"))?;
        oracle.check(&engine).map(|_| ()).map_err(|failure| failure.to_string())
    }
}

fn explore_script(script: &Script, sizes: &Sizes, options: &Options) -> CrashRun {
    let known = Known::new(Oracle::new());
    let world = world(sizes);
    let recover = |image: &World| open(image, sizes).map(|_| ()).map_err(|error| format!("open: {error}"));
    let run = explore(
        &world,
        options,
        &known,
        |world, known| script::run(script, sizes, options.seed, world, known),
        recover,
        check(sizes),
    );
    match run {
        Ok(run) => run,
        Err(failure) => panic!("script {}, {sizes:?}: {failure}", script.name),
    }
}

#[test]
fn scripts_survive_crashes_at_every_event() {
    let mut total = CrashRun::default();
    for script in [Script::OVERWRITE, Script::CHURN, Script::LONG, Script::GROUPED] {
        for seed in 0..1 {
            let run = explore_script(&script, &Sizes::tiny(), &Options::default().seed(seed).depth(2));
            println!("{} seed {seed}: {run}", script.name);
            total.add(&run);
        }
    }
    println!("all: {total}");
}
