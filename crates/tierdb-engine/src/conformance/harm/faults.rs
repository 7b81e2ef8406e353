//! Whichever operation of a device fails, and however, a store gives no wrong answer and loses nothing it has
//! acknowledged; it neither panics nor hangs; after a failure that leaves open what is on media it reads on
//! and refuses to write until it is opened again, and after any other it goes on by itself.
//!
//! Three scripts, on memory and with a logged pool, are done once for every operation of every class and every kind of
//! fault, which fails once or from then on, while the store works, closes or opens. What it then holds, and what it
//! holds after a power loss and after another open, is compared with what was acknowledged. Then each place that
//! heeds a failure is made to ignore it, and the suite must fail.

use super::rig::{LogPlace, Rig, Sizes};
use super::steps::{Known, Runner, Step};
use super::watch::Watch;
use crate::Durability::{Durable, Grouped};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use tierdb_base::mutant::{self, Site};
use tierdb_sim::{Budget, CrashModel, FaultKind, FaultPlan, Ops, World};

/// Every kind; a stall that goes on takes less each time.
const KINDS: [[FaultKind; 2]; 6] = [
    [FaultKind::Eio; 2],
    [FaultKind::Enospc; 2],
    [FaultKind::Short; 2],
    [FaultKind::Interrupted; 2],
    [FaultKind::SyncError; 2],
    [FaultKind::Stall(Duration::from_millis(2)), FaultKind::Stall(Duration::from_micros(10))],
];

/// Operations that fail each for itself: what a failure means depends on what failed.
const CLASSES: [(&str, Ops); 6] = [
    ("read", Ops::READ),
    ("write", Ops::WRITE),
    ("sync", Ops::SYNC),
    ("resize", Ops::RESIZE),
    ("names", Ops::NAMES),
    ("lookup", Ops::LOOKUP),
];

/// Steps with the store that they start from.
pub struct Script<S> {
    name: &'static str,
    rig: Rig<S>,
    world: World,
    known: Known,
    steps: Vec<Step>,
}

impl<S: Sizes> Script<S> {
    fn new(name: &'static str, rig: Rig<S>, first: &[Step], steps: Vec<Step>) -> Self {
        fastrand::seed(1);
        let world = rig.empty_world();
        let mut runner = Runner::new(&world, &rig, Known::new());
        runner.run(first).expect("no faults yet");
        let known = runner.into_known();
        Script { name, rig, world, known, steps }
    }

    /// Few keys, overwritten and deleted: the ring goes around, chunks are filled and collected.
    fn overwrite(rig: Rig<S>) -> Self {
        let put = |n: usize, key: usize| Step::Put(key, 200 + n * 331 % 1700, Durable);
        // A log that is nearly full makes room while the script runs.
        let before = if rig.log.is_some() { 156 } else { 40 };
        let first: Vec<Step> = (0..before).map(|n| put(n, n % 14)).chain([Step::Flush]).collect();
        let mut steps = Vec::new();
        for n in 0..54 {
            steps.push(put(n, n * 5 % 14));
            match n % 9 {
                2 => steps.push(Step::Delete(n % 14)),
                4 => steps.push(Step::Get(n * 3 % 14)),
                6 => steps.push(Step::Put(n % 14, 60, Grouped)),
                _ => {}
            }
            match n {
                20 => steps.push(Step::Flush),
                33 => steps.push(Step::Compact),
                40 => steps.push(Step::Sync),
                _ => {}
            }
        }
        steps.extend([Step::Flush, Step::Compact, Step::Scan]);
        Script::new("overwrite", rig, &first, steps)
    }

    /// Values longer than a chunk, batches that fit the ring and that do not, ranges deleted.
    fn long(rig: Rig<S>) -> Self {
        let first: Vec<Step> = (0..24)
            .map(|n| Step::Put(n, if n % 6 == 0 { 20_000 } else { 300 }, Durable))
            .chain([Step::Flush])
            .collect();
        let mut steps = Vec::new();
        for n in 0..6 {
            let at = n * 4;
            steps.push(Step::Put(at, 17_000 + n * 4000, Durable));
            steps.push(Step::Batch(vec![(at + 1, Some(500)), (at + 2, None), (40 + n, Some(90))], Durable));
            steps.push(Step::Get(at));
            steps.push(Step::Batch(
                vec![(at, Some(9000)), (at + 3, Some(6000)), (50, Some(5000)), (51, Some(20_000 * (n % 2)))],
                if n % 2 == 0 { Grouped } else { Durable },
            ));
            steps.push(Step::Put(at + 3, 40, Grouped));
            steps.push(Step::MultiGet(vec![at, 51, at + 1, at + 2, 12, 50, 18]));
            if n % 2 == 1 {
                steps.push(Step::DeleteRange(at - 4, at + 2));
            }
        }
        steps.extend([
            Step::Flush,
            Step::DeleteRange(0, 61),
            Step::Scan,
            Step::Compact,
            Step::Put(7, 17_000, Durable),
        ]);
        Script::new("long", rig, &first, steps)
    }

    /// Readers of the past while the present is written, moved, closed and opened again.
    fn readers(rig: Rig<S>) -> Self {
        let first: Vec<Step> = (0..20).map(|n| Step::Put(n, 100 + n * 97 % 900, Durable)).collect();
        let write = |n: usize| Step::Put(n * 3 % 20, 150 + n * 211 % 1200, Durable);
        let mut steps = vec![Step::Snapshot];
        steps.extend((0..8).map(write));
        steps.extend([Step::Delete(4), Step::Flush, Step::Get(2), Step::LookBack, Step::Scan]);
        steps.push(Step::Reopen { close: true });
        steps.extend((8..14).map(write));
        steps.extend([Step::Snapshot, Step::Batch(vec![(1, None), (30, Some(800))], Durable), Step::Flush]);
        steps.extend((14..18).map(write));
        steps.extend([
            Step::Compact,
            Step::LookBack,
            Step::Put(31, 50, Grouped),
            Step::Put(32, 18_000, Durable),
        ]);
        steps.push(Step::Reopen { close: false });
        // Before anything else has read them.
        steps.extend([
            Step::MultiGet((0..10).chain(28..34).collect()),
            Step::MultiGet((6..20).rev().collect()),
        ]);
        steps.extend((18..24).map(write));
        steps.extend([Step::Scan, Step::Get(32), Step::Flush]);
        // One by one, what a scan reads together.
        steps.extend((0..70).map(|n| Step::Get(n * 7 % 20)));
        Script::new("readers", rig, &first, steps)
    }

    /// The scripts, in both modes. `sizes` are those of a store that has so many bytes of flash.
    pub fn all(sizes: impl Fn(u64) -> S) -> Vec<Self> {
        let of = |log| {
            let rig = |flash: u64| Rig::new(sizes(flash), log);
            [Script::overwrite(rig(160 << 10)), Script::long(rig(512 << 10)), Script::readers(rig(256 << 10))]
        };
        [None, Some(LogPlace::FastTier)].into_iter().flat_map(of).collect()
    }

    /// The same, for stores of other sizes that can be opened in place of these.
    #[must_use]
    pub fn with(self, change: impl FnOnce(S) -> S) -> Self {
        Script { rig: Rig::new(change(self.rig.sizes), self.rig.log), ..self }
    }

    /// What it makes a store count, without a fault.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let world = self.world.copy();
        let mut runner = Runner::new(&world, &self.rig, self.known.clone());
        runner.run(&self.steps).expect("no faults");
        runner.counters()
    }

    /// Its name, and where its log is.
    pub fn name(&self) -> (&'static str, Option<LogPlace>) {
        (self.name, self.rig.log)
    }
}

/// Without a fault, the scripts that overwrite keys make a store count something for each of `counters`.
pub fn do_what_they_are_for<S: Sizes>(scripts: &[Script<S>], counters: &[&str]) {
    for script in scripts.iter().filter(|script| script.name == "overwrite") {
        let counted = script.counters();
        for counter in counters {
            let count = counted.iter().find(|(name, _)| name == counter).map(|(_, count)| *count);
            assert!(count.is_some_and(|count| count > 0), "{counter} of {:?}: {count:?}", script.name());
        }
    }
}

/// Whether a failure of this kind leaves open what is on media.
fn leaves_open(kind: FaultKind, class: &str) -> bool {
    match kind {
        FaultKind::Stall(_) => false,
        FaultKind::Enospc => class == "sync",
        _ => class == "write" || class == "sync",
    }
}

impl<S: Sizes> Script<S> {
    /// Runs it with a plan. How many faults it met.
    fn fail(&self, class: &str, plan: FaultPlan) -> Result<u64, String> {
        fastrand::seed(plan.nth);
        let world = self.world.copy();
        let mut runner = Runner::new(&world, &self.rig, self.known.clone());
        world.inject(plan.clone());
        let ended = runner.run(&self.steps);
        let hit = world.heal().hit;
        ended?;
        let must_latch = runner.hit() > 0 && leaves_open(plan.kind, class);
        let latched = runner.is_latched_soon(must_latch);
        if must_latch && !latched {
            return Err("a write or sync failed, and the store takes more".into());
        }
        let passes = matches!(plan.kind, FaultKind::Stall(_)) || class == "read";
        if latched && (passes || plan.kind == FaultKind::Enospc && class == "write" && !plan.persistent) {
            return Err("the store refuses to write after a failure that passes".into());
        }
        if hit == 0 && plan.nth > 1 {
            return Ok(0);
        }
        runner.check_healed().map_err(|wrong| format!("healed: {wrong}"))?;
        let budget = Budget { none: true, all: false, one_in: 0, one_out: 0, torn: 1, random: 1 };
        let models = [if plan.nth.is_multiple_of(2) { CrashModel::X86 } else { CrashModel::WEAK }];
        for image in world.capture().images(&models, plan.nth, &budget) {
            let held = runner.known.check(&image.world, &self.rig);
            held.map_err(|wrong| format!("after a power loss, {image:?}: {wrong}"))?;
        }
        runner.check_reopened().map_err(|wrong| format!("opened again: {wrong}"))?;
        Ok(hit)
    }

    /// Fails every operation in turn. How many runs met a fault; or the first that went wrong.
    fn fail_all(
        &self,
        watch: &Watch<String>,
        kinds: &[[FaultKind; 2]],
        classes: &[(&str, Ops)],
        stride: usize,
    ) -> Result<u64, String> {
        let mut runs = 0;
        for kind in kinds {
            for (class, ops) in classes.iter().copied() {
                for persistent in [false, true] {
                    for nth in (1..).step_by(stride) {
                        let kind = kind[usize::from(persistent)];
                        let plan = FaultPlan { nth, kind, persistent, ops, device: None };
                        let case = format!("{}, {:?}, {class}, {plan:?}", self.name, self.rig.log);
                        watch.begin(case.clone());
                        match self.fail(class, plan) {
                            Ok(0) => break,
                            Ok(_) => runs += 1,
                            Err(wrong) => return Err(format!("{case}: {wrong}")),
                        }
                    }
                }
            }
        }
        Ok(runs)
    }
}

/// Fails every `stride`-th operation of `scripts`, those of each mode on a thread. How many runs met a fault.
///
/// # Panics
/// With the first of each script that went wrong.
pub fn sweep<S: Sizes>(scripts: &[Script<S>], stride: usize) -> u64 {
    let start = Instant::now();
    let of = |logged: bool| {
        let watch = Watch::new();
        let (mut runs, mut wrong) = (0, Vec::new());
        for script in scripts.iter().filter(|script| script.rig.log.is_some() == logged) {
            for kind in KINDS {
                let begun = Instant::now();
                match script.fail_all(&watch, &[kind], &CLASSES, stride) {
                    Ok(met) => {
                        println!(
                            "{} {:?} {:?}: {met} runs, {:.1?}",
                            script.name,
                            script.rig.log,
                            kind[0],
                            begun.elapsed()
                        );
                        runs += met;
                    }
                    Err(what) => wrong.push(what),
                }
            }
        }
        (runs, wrong)
    };
    let ((memory, mut wrong), (logged, more)) = std::thread::scope(|scope| {
        let logged = scope.spawn(|| of(true));
        (of(false), logged.join().expect("no panic"))
    });
    wrong.extend(more);
    println!("{} runs that met a fault, in {:.1?}", memory + logged, start.elapsed());
    assert!(wrong.is_empty(), "{wrong:#?}");
    memory + logged
}

/// The suite notices wherever a failure is ignored, or does not make the store read-only: places that heed a failure
/// or latch after it, and are `ours`, are left out one at a time, and operations fail until something is found wrong.
/// Those in `logged`, which only a logged pool passes, are looked for there. How many there are.
///
/// # Panics
/// If one is not noticed.
pub fn ignore_each<S: Sizes>(
    scripts: &[Script<S>],
    ours: impl Fn(&Site) -> bool,
    logged: impl Fn(&Site) -> bool + Sync,
) -> usize {
    // What leaves open what is on media.
    let (kinds, classes) = ([KINDS[0], KINDS[2], KINDS[4]], [CLASSES[1], CLASSES[2]]);
    let mut sites = BTreeSet::new();
    for script in scripts {
        let world = script.world.copy();
        let mut runner = Runner::new(&world, &script.rig, script.known.clone());
        let working = script.steps.iter().filter(|step| !matches!(step, Step::Reopen { .. }));
        let working: Vec<Step> = working.cloned().collect();
        // Those of opening a logged pool are ignored in its own suite.
        let heeding = mutant::record(|| assert!(runner.run(&working).is_ok()));
        sites.extend(heeding.into_keys().filter(|site| site.what == "failure"));
        let watch = Watch::new();
        let failing = || assert_eq!(script.fail_all(&watch, &kinds[..1], &classes, 1).err(), None);
        sites.extend(mutant::record(failing).into_keys().filter(|site| site.what == "latch"));
    }
    let sites: Vec<Site> = sites.into_iter().filter(ours).collect();
    let (queue, missed) = (Mutex::new(sites.clone()), Mutex::new(Vec::new()));
    let try_all = || {
        let watch = Watch::new();
        while let Some(site) = { queue.lock().pop() } {
            let start = Instant::now();
            let notices = |script: &&Script<S>, stride: usize| {
                let failed = || script.fail_all(&watch, &kinds, &classes, stride).is_err();
                // A panic is noticed too.
                mutant::without(site, || catch_unwind(AssertUnwindSafe(failed)).unwrap_or(true))
            };
            let passing = |script: &&Script<S>| script.rig.log.is_some() || !logged(&site);
            // Few operations first: most of them tell.
            let found = [7, 1]
                .into_iter()
                .find_map(|stride| scripts.iter().filter(passing).find(|script| notices(script, stride)));
            match found {
                Some(script) => {
                    println!("{site}: {} {:?}, {:.1?}", script.name, script.rig.log, start.elapsed())
                }
                None => missed.lock().push(site),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(try_all);
        try_all();
    });
    let missed = missed.into_inner();
    assert!(missed.is_empty(), "{} of {} are not noticed: {missed:#?}", missed.len(), sites.len());
    sites.len()
}
