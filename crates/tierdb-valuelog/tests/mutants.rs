//! Goal: the crash suite would notice if any flush, fence, publish, sync or durable write were left out.
//! Method: list the call sites that the scripts and their recoveries pass, leave out one at a time, and
//! explore until a violation is found.

mod rig;

use rig::script::{self, Known, Script};
use rig::{Sizes, open, world};
use std::collections::BTreeSet;
use std::sync::Mutex;
use tierdb_base::mutant::{self, Site};
use tierdb_engine::conformance::Oracle;
use tierdb_sim::World;
use tierdb_sim::crashtest::{Options, explore};

const SCRIPTS: [Script; 4] = [Script::OVERWRITE, Script::CHURN, Script::LONG, Script::GROUPED];

/// Whether a violation is found.
fn is_caught(script: &Script, seed: u64) -> bool {
    let sizes = Sizes::tiny();
    let known = Known::new(Oracle::new());
    let world = world(&sizes);
    let recover = |image: &World| open(image, &sizes).map(|_| ()).map_err(|error| error.to_string());
    let check = |oracle: &Oracle, image: &World| {
        let engine = open(image, &sizes).map_err(|error| error.to_string())?;
        oracle.check(&engine).map(|_| ()).map_err(|failure| failure.to_string())
    };
    let options = Options { max_images: Some(40_000), ..Options::default().seed(seed).depth(2) };
    let explored = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        explore(
            &world,
            &options,
            &known,
            |world, known| {
                fastrand::seed(seed);
                let engine = open(world, &sizes).expect("a whole store opens");
                script::run_on(script, seed, &engine, known);
            },
            recover,
            check,
        )
        .is_err()
    }));
    // A script that fails outright has noticed too.
    explored.unwrap_or(true)
}

fn sites() -> Vec<Site> {
    let mut found = BTreeSet::new();
    for script in &SCRIPTS {
        for seed in 0..2 {
            let seen = mutant::record(|| {
                let sizes = Sizes::tiny();
                let (world, known) = (world(&sizes), Known::new(Oracle::new()));
                fastrand::seed(seed);
                let engine = open(&world, &sizes).expect("a whole store opens");
                script::run_on(script, seed, &engine, &known);
                drop(engine);
                drop(open(&world.copy(), &sizes).expect("a whole store opens"));
            });
            found.extend(seen.into_keys().filter(|site| site.what != "checksum"));
        }
    }
    found.into_iter().filter(|site| site.file.contains("valuelog/src")).collect()
}

#[test]
fn every_persist_call_that_is_left_out_is_noticed() {
    std::panic::set_hook(Box::new(|_| {}));
    let sites = Mutex::new(sites());
    let total = sites.lock().expect("sites").len();
    let missed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(site) = sites.lock().expect("sites").pop() else { return };
                    let start = std::time::Instant::now();
                    let caught = mutant::without(site, || {
                        (0..4).find_map(|seed| {
                            SCRIPTS
                                .iter()
                                .find(|script| is_caught(script, seed))
                                .map(|script| (script.name, seed))
                        })
                    });
                    match caught {
                        Some((script, seed)) => {
                            println!("caught: {site}, by {script} seed {seed} in {:.1?}", start.elapsed());
                        }
                        None => {
                            println!("MISSED: {site} in {:.1?}", start.elapsed());
                            missed.lock().expect("missed").push(site);
                        }
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().expect("missed");
    assert!(
        missed.is_empty(),
        "{} of {total} sites are not noticed when left out: {missed:#?}",
        missed.len()
    );
}
