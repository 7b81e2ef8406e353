//! A crash at every persist event: of work, of checkpoints, of creation, of recovery.

use crate::support::{
    self, Known, TestDir, acknowledge, create, dir, dirs, open, paged, publish, reopen, reopen_in, small,
    wide, work,
};
use std::sync::Arc;
use tierdb_base::mutant::{self, Site};
use tierdb_log::LoggedOptions;
use tierdb_pmem::Pool;
use tierdb_sim::crashtest::{CrashFailure, CrashRun, Options, Oracle, explore};
use tierdb_sim::{Budget, World};

fn script(dir: TestDir, known: &Oracle<Known>, options: &LoggedOptions, steps: u64, seed: u64) {
    let pool = create(dir, options).expect("create");
    known.update(|known| known.created = true);
    work(&pool, known, steps, seed).expect("no faults");
    let wraps = pool.stats().log_blocks * 4096 > options.log_len;
    assert!(wraps || steps < 100, "the ring wraps around in a long script");
    if seed.is_multiple_of(2) {
        pool.close().expect("no faults");
    }
}

/// What recovers must be a prefix with all that was acknowledged, and stay so when work goes on and power fails
/// again.
fn check(known: &Known, image: &World, tiers: usize, options: &LoggedOptions) -> Result<(), String> {
    if !known.created {
        // The creation was cut short: refused, or empty, but never a panic.
        return match open(dirs(image, tiers), options) {
            Ok(pool) => known.check(&pool).map(|_| ()),
            Err(_) => Ok(()),
        };
    }
    let (pool, known) = reopen_in(dirs(image, tiers), options, known)?;
    publish(&pool, &known);
    acknowledge(&pool, &known).map_err(|e| e.to_string())?;
    publish(&pool, &known);
    drop(pool);
    let after = image.capture().nothing();
    reopen_in(dirs(&after, tiers), options, &known.get()).map_err(|e| format!("second crash: {e}"))?;
    Ok(())
}

/// Crashes of a pool striped over `tiers` devices.
fn run(
    tiers: usize,
    options: &LoggedOptions,
    steps: u64,
    seed: u64,
    how: &Options,
) -> Result<CrashRun, Box<CrashFailure>> {
    let world = World::new();
    support::new_dirs(&world, tiers);
    explore(
        &world,
        how,
        &Oracle::new(Known::default()),
        |world, known| script(dirs(world, tiers), known, options, steps, seed),
        |image| match open(dirs(image, tiers), options) {
            Ok(_) => Ok(()),
            // A creation that was cut short; the check decides.
            Err(_) => Ok(()),
        },
        |known, image| check(known, image, tiers, options),
    )
}

#[test]
fn every_crash_recovers_to_a_prefix_with_all_that_was_acknowledged() {
    let budget = Budget { torn: 6, random: 6, ..Budget::default() };
    let how = Options { depth: 3, recover_every: 40, budget, ..Options::default() };
    let mut all = CrashRun::default();
    let whole = [(small(), 130, 1), (small(), 25, 2), (wide(), 200, 3), (wide(), 60, 4)];
    let paged = [(paged(small()), 130, 5), (paged(small()), 25, 6), (paged(wide()), 200, 7)];
    for (options, steps, seed) in whole.into_iter().chain(paged) {
        let run = run(1, &options, steps, seed, &how).unwrap_or_else(|failure| panic!("{failure}"));
        all.add(&run);
    }
    println!("{all}");
    assert!(all.images > 2_000 && all.in_recovery > 300, "{all}");
}

/// Every block of more than one page is cut, and its parts are durable one after another, each on its device.
#[test]
fn a_pool_striped_over_several_devices_recovers_as_one_on_one() {
    let budget = Budget { torn: 6, random: 6, ..Budget::default() };
    let how = Options { depth: 3, recover_every: 40, budget, ..Options::default() };
    let mut all = CrashRun::default();
    for (tiers, options, steps, seed) in [(2, wide(), 200, 5), (3, wide(), 60, 6), (2, small(), 40, 7)] {
        let run = run(tiers, &options, steps, seed, &how).unwrap_or_else(|failure| panic!("{failure}"));
        all.add(&run);
    }
    println!("{all}");
    assert!(all.images > 2_000 && all.in_recovery > 300, "{all}");
}

/// Publishes between the copies of pages of a checkpoint: the image must never be ahead of the log.
#[test]
fn publishes_during_a_checkpoint_keep_their_order() {
    let mut all = CrashRun::default();
    for (options, seed) in [(small(), 1), (wide(), 2), (wide(), 3), (paged(wide()), 4)] {
        let world = World::new();
        let dir = support::new_dir(&world);
        let run = explore(
            &world,
            &Options::default(),
            &Oracle::new(Known { created: true, ..Known::default() }),
            |_, known| {
                let pool = Arc::new(create(dir.clone(), &options).expect("create"));
                let (inner, oracle) = (pool.clone(), known.clone());
                *dir.dirs()[0].during.lock().expect("no panic") = Some(Box::new(move || {
                    let known = oracle.get();
                    if known.published.len() - known.acked < 12 {
                        publish(&*inner, &oracle);
                    }
                }));
                work(&pool, known, 150, seed).expect("no faults");
                *dir.dirs()[0].during.lock().expect("no panic") = None;
            },
            |_| Ok(()),
            |known, image| if known.published.is_empty() { Ok(()) } else { check(known, image, 1, &options) },
        );
        all.add(&run.unwrap_or_else(|failure| panic!("{failure}")));
    }
    assert!(all.images > 1_000, "{all}");
}

/// A range that is longer than the buffer is cut between words, so a crash leaves every word old or new.
#[test]
fn a_long_flush_never_tears_a_word() {
    let world = World::new();
    let pool = create(support::new_dir(&world), &small()).expect("create");
    const LEN: usize = 3 * 4096;
    let run = explore(
        &world,
        &Options::default(),
        &Oracle::new(()),
        |_, _| {
            for (odd, byte) in [(3, 1), (4, 2), (9, 3)] {
                pool.flush(1, odd);
                pool.write(4096, &[byte; LEN]);
                pool.flush(4096, LEN as u64);
                pool.commit().expect("no faults");
            }
        },
        |_| Ok(()),
        |(), image| {
            let pool = open(dir(image), &small()).map_err(|e| e.to_string())?;
            let torn = (4096..4096 + LEN as u64).step_by(8).find(|at| {
                let bytes = pool.load(*at).to_le_bytes();
                bytes != [bytes[0]; 8]
            });
            torn.map_or(Ok(()), |at| Err(format!("the word at {at} is torn")))
        },
    );
    let run = run.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(run.images > 20, "{run}");
}

/// The sites of `what` that a clean run and its recovery pass.
fn sites(what: &[&str]) -> Vec<Site> {
    let seen = mutant::record(|| {
        let (world, known) = (World::new(), Oracle::new(Known::default()));
        support::new_dir(&world);
        script(dir(&world), &known, &wide(), 60, 1);
        reopen(&world.copy(), &wide(), &known.get()).expect("clean");
    });
    seen.into_keys().filter(|site| what.contains(&site.what)).collect()
}

#[test]
fn a_missing_write_sync_flush_publish_or_wait_is_noticed() {
    let sites = sites(&["sync", "dir_sync", "write_durable", "flush", "publish", "wait"]);
    // The log's and the table's zeros, the image; the directory; a log block, a spare, nothing in its place, a table;
    // the script's own.
    let count = |what| sites.iter().filter(|site| site.what == what).count();
    assert_eq!((count("sync"), count("dir_sync"), count("write_durable")), (2, 1, 4), "{sites:?}");
    assert!(count("flush") == 1 && count("publish") == 1 && count("wait") == 1, "{sites:?}");
    // The spare, and nothing in its place, are of use only after a failed write: see the tests of faults.
    let in_store = |site: &&Site| site.what == "write_durable" && site.file.ends_with("src/store.rs");
    let spares: Vec<Site> = sites.iter().filter(in_store).take(2).copied().collect();
    for site in sites.into_iter().filter(|site| !spares.contains(site)) {
        let caught = mutant::without(site, || {
            run(1, &wide(), 60, 1, &Options::default()).is_err()
                || run(1, &small(), 60, 1, &Options::default()).is_err()
        });
        assert!(caught, "{site} can be left out unnoticed");
    }
}

#[test]
fn a_clean_close_leaves_nothing_to_replay_and_a_crash_after_it_loses_nothing() {
    let (world, pool, known) = support::world(&small());
    work(&pool, &known, 40, 7).expect("no faults");
    pool.close().expect("no faults");
    pool.close().expect("closing again does nothing");
    assert_eq!(pool.log_used(), 0);
    let before = known.get().published.len();
    publish(&pool, &known);
    assert!(pool.wait(pool.lsn()).is_err(), "nothing is acknowledged after the close");
    assert!(pool.commit().is_err() && known.check_now(&pool));
    known.update(|known| known.published.truncate(before));
    for image in [world.capture().nothing(), world.capture().everything()] {
        let (pool, known) = reopen(&image, &small(), &known.get()).expect("clean");
        assert_eq!(known.get().published.len(), before);
        assert_eq!(pool.log_used(), 0);
    }
}

trait CheckNow {
    fn check_now<P: Pool>(&self, pool: &P) -> bool;
}

impl CheckNow for Oracle<Known> {
    /// The pool in DRAM is as the publishes left it, durable or not.
    fn check_now<P: Pool>(&self, pool: &P) -> bool {
        let known = self.get();
        known.check(pool) == Ok(known.published.len())
    }
}
