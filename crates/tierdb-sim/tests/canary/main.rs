//! The canaries: two miniature stores whose every flush, fence and sync is left out in turn.
//!
//! A simulator proves something only if what breaks the protocol is noticed, and what keeps it is not.
//! Dropping any site of either store must be caught; the whole protocol must pass; and images in which
//! everything survives, as after `kill -9`, must catch nothing, because they cannot.

// Many thousands of images, which Miri takes hours for; `rules.rs` runs the same code under it.
#![cfg(not(miri))]

mod files;
mod pool;

use tierdb_base::mutant::{self, Site};
use tierdb_sim::crashtest::{CrashFailure, CrashRun, Options};
use tierdb_sim::{Budget, CrashModel};

type Explored = Result<CrashRun, Box<CrashFailure>>;

/// What the store holds for certain, and the one operation in flight.
#[derive(Clone, Default)]
struct Known {
    created: bool,
    values: [u64; 4],
    in_flight: Vec<(usize, u64)>,
}

impl Known {
    fn acknowledge(&mut self) {
        for (slot, value) in std::mem::take(&mut self.in_flight) {
            self.values[slot] = value;
        }
    }

    /// Whether `found` is all that was acknowledged, with the operation in flight whole or absent.
    fn check(&self, found: [u64; 4]) -> Result<(), String> {
        let mut after = self.clone();
        after.acknowledge();
        if found == self.values || found == after.values {
            return Ok(());
        }
        Err(format!("found {found:?}, acknowledged {:?}, in flight {:?}", self.values, self.in_flight))
    }
}

fn options(models: &[CrashModel], budget: Budget) -> Options {
    let all_recoveries = Options { recover_every: 1, recovery_budget: budget, ..Options::default() };
    Options { models: models.to_vec(), budget, depth: 2, ..all_recoveries }
}

/// Every site of those kinds that a store passes, in scripts, recoveries and checks.
fn sites(of: &[&str], run: impl Fn(&Options) -> Explored) -> Vec<Site> {
    let seen = mutant::record(|| {
        run(&options(&CrashModel::BOTH, Budget::default())).unwrap_or_else(|failure| panic!("{failure}"));
    });
    let sites: Vec<Site> = seen.into_keys().filter(|site| of.contains(&site.what)).collect();
    for what in of {
        assert!(sites.iter().any(|site| site.what == *what), "no {what} among {sites:?}");
    }
    assert!(sites.iter().all(|site| site.file.contains("canary")), "a site is the caller's line: {sites:?}");
    sites
}

fn every_site_counts(sites: &[Site], models: &[CrashModel], run: impl Fn(&Options) -> Explored) {
    for site in sites {
        let caught = mutant::without(*site, || run(&options(models, Budget::default())));
        assert!(caught.is_err(), "without {site}: not noticed in {models:?}");
        let killed = mutant::without(*site, || run(&options(models, Budget::KILL)));
        assert!(killed.is_ok(), "without {site}: noticed although everything survived");
    }
}

#[test]
fn every_site_of_the_pool_store_counts_in_both_models() {
    let sites = sites(&["flush", "fence", "publish", "persist_word"], pool::run);
    assert_eq!(sites.len(), 21, "{sites:?}");
    for model in CrashModel::BOTH {
        every_site_counts(&sites, &[model], pool::run);
    }
}

#[test]
fn every_site_of_the_file_store_counts() {
    let sites = sites(&["sync", "write_durable", "dir_sync"], files::run);
    every_site_counts(&sites, &CrashModel::BOTH, files::run);
}

#[test]
fn every_flipped_bit_is_noticed_by_the_comparison_of_checksums() {
    assert_eq!(pool::bits_noticed(), (pool::RECORD as u64 * 8, 0));
    let site = sites(&["checksum"], pool::run)[0];
    let (noticed, wrong) = mutant::without(site, pool::bits_noticed);
    assert!(wrong >= 64 && noticed < 200, "without the comparison, {noticed} noticed and {wrong} wrong");
}

#[test]
fn every_operation_may_fail_and_the_crash_after_it_loses_nothing() {
    let images = files::run_with_faults().unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(images > 500, "{images}");
}

#[test]
fn a_failure_is_met_again_by_its_replay() {
    let mut deepest = 0;
    for site in &sites(&["fence"], pool::run) {
        let first = mutant::without(*site, || pool::run(&options(&CrashModel::BOTH, Budget::default())));
        let first = first.expect_err("each fence counts");
        let text = first.replay.to_string();
        let replay = Some(text.parse().expect("as printed"));
        let again = mutant::without(*site, || {
            pool::run(&Options { replay, ..options(&CrashModel::BOTH, Budget::default()) })
        });
        let again = again.expect_err("the same failure");
        assert_eq!((&again.replay, &again.message), (&first.replay, &first.message), "{site}");
        assert!(first.to_string().contains(&text));
        deepest = deepest.max(first.replay.0.len());
    }
    assert_eq!(deepest, 2, "some are met in a crash of recovery");
}

#[test]
fn a_replay_of_a_crash_that_is_not_there_is_no_success() {
    let replay = Some("999999.0".parse().expect("a replay"));
    let nothing = pool::run(&Options { replay, ..options(&CrashModel::BOTH, Budget::default()) });
    let failure = nothing.expect_err("nothing was looked at");
    assert!(failure.to_string().contains("no crash is the one to replay"), "{failure}");
}

#[test]
fn the_recovery_of_one_image_can_be_explored_by_itself() {
    let options =
        Options { models: CrashModel::BOTH.to_vec(), depth: 3, recover_every: 1, ..Options::default() };
    let run = pool::run_recovery(&options).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(run.in_recovery == run.images && run.images > 10, "{run}");
    let fence = mutant::record(|| drop(pool::run_recovery(&options)));
    let fence = *fence.keys().find(|site| site.what == "fence").expect("recovery has one fence");
    let first = mutant::without(fence, || pool::run_recovery(&options)).expect_err("it counts");
    let replay = Options { replay: Some(first.replay.clone()), ..options };
    let again = mutant::without(fence, || pool::run_recovery(&replay)).expect_err("it still does");
    assert_eq!((&again.replay, &again.message), (&first.replay, &first.message));
}

#[test]
fn limits_cut_an_exploration_short() {
    let all = pool::run(&Options::default()).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(!all.truncated && all.in_recovery == 0 && all.images > 300, "{all}");
    let some = pool::run(&Options { max_images: Some(50), ..Options::default() });
    let some = some.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(some.truncated && some.images <= 100, "{some}");
    let thin = pool::run(&Options { every: 5, ..Options::default() });
    assert!(thin.unwrap_or_else(|failure| panic!("{failure}")).images < all.images / 3);
}
