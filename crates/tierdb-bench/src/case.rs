//! A case: one system, loaded and driven through its phases, measured, closed and opened again.
//!
//! Each case runs in a process of its own, so that memory, processor time and I/O are its own, and so that a
//! store can be killed while it writes.

use crate::failure::Failure;
use crate::keys::{Distribution, Naming};
use crate::ledger::{Ledger, MAX_WRITERS, MOST_KEYS, VERSION_BITS};
use crate::measure::{allocated, process_seconds};
use crate::phase::{self, Bed, Limit, Measured, Phase};
use crate::reference::Beside;
use crate::store::{Durability, Setup, Store, System, Systems};
use crate::table::grouped;
use crate::values::{self, Sizes, Wrong};
use crate::workload::{Mix, Op, Scans};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tierdb_base::checksum;

/// What to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Case {
    /// The system's name.
    pub system: String,
    /// Where it lives and what it may use.
    pub setup: Setup,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Sizes of values.
    pub sizes: Sizes,
    /// Threads, for the load.
    pub threads: usize,
    /// What the writes of the load survive; those of the phases say so themselves.
    pub load_durability: Durability,
    /// What follows the load, in this order.
    pub phases: Vec<Phase>,
    /// Seeds every choice.
    pub seed: u64,
    /// Whether to close the store and open it again, and to kill it and open it again.
    pub recovery: bool,
    /// For how many seconds to watch the store idle after the last phase; 0 does not.
    pub idle: f64,
    /// Bytes of memory, page cache included, that its process is held to by a control group.
    #[serde(default)]
    pub group_bytes: Option<u64>,
    /// Whether TierDB leaves out checksums of 256 bytes and more, to see what they cost.
    #[serde(default)]
    pub unchecked: bool,
    /// What to read behind each phase that only reads.
    #[serde(default)]
    pub reference: Option<Beside>,
}

impl Case {
    /// How keys are called: by their places where a phase must know which keys are neighbours.
    pub fn naming(&self) -> Naming {
        if self.phases.iter().any(|phase| phase.keys == Distribution::Mixgraph) {
            Naming::placed(self.key_bytes, self.setup.keys)
        } else {
            Naming::hashed(self.key_bytes)
        }
    }
}

/// What was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The system's name.
    pub system: String,
    /// The store's mode in its own words, emulation included.
    pub mode: String,
    /// What writes survived.
    pub durability: String,
    /// Threads.
    pub threads: usize,
    /// The load, then each phase.
    pub phases: Vec<Measured>,
    /// Space on the tiers at the end.
    pub space: Space,
    /// Seconds to close the store.
    pub close_seconds: f64,
    /// Seconds to open it again after that.
    pub open_seconds: Option<f64>,
    /// Seconds to open it after it was killed while writing.
    pub recover_seconds: Option<f64>,
    /// Processor time of the open store while nobody asks it anything, as a share of one core.
    #[serde(default)]
    pub idle_cores: Option<f64>,
}

/// Space that a store takes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Space {
    /// Keys stored.
    pub keys: u64,
    /// Bytes of keys and newest values.
    pub user_bytes: u64,
    /// Bytes that the file system has allocated on the fast tier.
    pub fast_bytes: u64,
    /// Bytes that the file system has allocated on flash.
    pub flash_bytes: u64,
    /// Allocated bytes on both for each byte of keys and values.
    pub amplification: f64,
    /// Bytes by part of the store, as it says itself.
    pub parts: Vec<(String, u64)>,
}

impl Space {
    /// Bytes of the fast tier that index and HSIT take for each key, of a store that has them.
    pub fn index_bytes_per_key(&self) -> Option<f64> {
        let part = |name: &str| self.parts.iter().find(|(own, _)| own == name).map(|(_, bytes)| *bytes);
        let bytes = part("fast: key index")? + part("fast: hsit")?;
        Some(bytes as f64 / self.keys.max(1) as f64)
    }
}

/// What a process that runs a case is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// The whole case. With `recovery` the process goes on writing after its answer, until it is killed.
    Measure(Case),
    /// To open the store that a killed process has left, and check it: all keys must be there that were before it went on writing,
    /// none at an older version than then.
    Recover(Case),
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// To [`Request::Measure`].
    Outcome(Box<Outcome>),
    /// To [`Request::Recover`]: seconds to open the store.
    Recovered(f64),
    /// The case failed.
    Failed(String),
}

fn failed(case: &Case, doing: &str, source: crate::store::StoreError) -> Failure {
    Failure::Store { system: case.system.clone(), doing: doing.to_owned(), source }
}

fn system<'a>(systems: &'a Systems, case: &Case) -> Result<&'a dyn System, Failure> {
    systems.named(&case.system).ok_or_else(|| {
        Failure::Invalid(format!(
            "there is no system {}; there are {}",
            case.system,
            systems.names().join(", ")
        ))
    })
}

fn open(system: &dyn System, case: &Case) -> Result<(Box<dyn Store>, f64), Failure> {
    let begun = Instant::now();
    let store = system.open(&case.setup).map_err(|source| failed(case, "open", source))?;
    Ok((store, begun.elapsed().as_secs_f64()))
}

/// Refuses a case that cannot be run.
///
/// # Errors
/// `Invalid`, naming what is wrong.
pub fn check(case: &Case) -> Result<(), Failure> {
    let threads = case.phases.iter().map(|phase| phase.threads).chain([case.threads]);
    if threads.clone().any(|threads| threads == 0 || threads > MAX_WRITERS) {
        return Err(Failure::Invalid(format!("1 to {MAX_WRITERS} threads are possible")));
    }
    if case.setup.keys == 0 {
        return Err(Failure::Invalid("at least one key is needed".to_owned()));
    }
    if case.setup.keys > MOST_KEYS {
        return Err(Failure::Invalid(format!("at most {} keys can be checked", grouped(MOST_KEYS))));
    }
    Ok(())
}

/// The phase that stores every key for the first time.
fn load_phase(case: &Case) -> Phase {
    Phase {
        name: "load".to_owned(),
        mix: Mix::only(Op::Insert),
        keys: Distribution::Uniform,
        threads: case.threads,
        durability: case.load_durability,
        warmup: None,
        limit: Limit::Ops(case.setup.keys),
        rate: None,
        scans: Scans::Uniform(1),
        seed: case.seed,
    }
}

/// Called with the name of what is going on, and its progress.
pub type CaseProgress<'a> = dyn Fn(&str, f64, u64) + 'a;

/// Runs `case` but for what must be killed: `then_write` says to go on writing after `answer`, for ever.
///
/// # Errors
/// The first failure.
pub fn run(
    systems: &Systems,
    case: &Case,
    progress: &CaseProgress<'_>,
    answer: &mut dyn FnMut(&Outcome) -> Result<(), Failure>,
) -> Result<(), Failure> {
    check(case)?;
    let system = system(systems, case)?;
    let ledger = Ledger::new();
    let (mut store, _) = open(system, case)?;
    let mut outcome = Outcome {
        system: case.system.clone(),
        mode: store.counts().mode,
        durability: case.setup.durability.name().to_owned(),
        threads: case.threads,
        ..Outcome::default()
    };
    // Each phase has choices of its own, or it would ask for what the last one has brought into caches, in the order in
    // which that was written; those of the n-th phase of a name are the same for every system.
    let mut of_name = HashMap::new();
    let mut own = |phase: &Phase| {
        let number = of_name.entry(phase.name.clone()).or_insert(0);
        *number += 1;
        Phase {
            seed: values::part_seed(checksum(phase.seed, phase.name.as_bytes()), *number),
            ..phase.clone()
        }
    };
    for phase in std::iter::once(&load_phase(case)).chain(&case.phases) {
        let report = |share: f64, ops: u64| progress(&phase.name, share, ops);
        let mut measured = phase::run(&bed(case, &*store, &ledger), &own(phase), &report)?;
        if let Some(reference) = case.reference.as_ref().filter(|_| phase.reads_single_keys()) {
            measured.reference = reference.measure(phase.threads);
        }
        outcome.phases.push(measured);
    }
    outcome.idle_cores = idle(case.idle);
    outcome.space = space(case, &*store, &ledger);
    let closing = Instant::now();
    store.close().map_err(|source| failed(case, "close", source))?;
    outcome.close_seconds = closing.elapsed().as_secs_f64();
    if !case.recovery {
        return answer(&outcome);
    }
    let (reopened, seconds) = open(system, case)?;
    outcome.open_seconds = Some(seconds);
    store = reopened;
    // Everything is there, at the version it had: a sample of all keys is read.
    let sample = Phase {
        name: "reopened".to_owned(),
        mix: Mix::only(Op::Read),
        keys: Distribution::Uniform,
        limit: Limit::Ops(10_000.min(case.setup.keys)),
        ..load_phase(case)
    };
    phase::run(&bed(case, &*store, &ledger), &own(&sample), &|_, _| ())?;
    let floors: Vec<u8> = ledger.floors(outcome.space.keys).into_iter().flat_map(u32::to_le_bytes).collect();
    let file = floors_file(case);
    std::fs::write(&file, floors).map_err(|e| Failure::io("cannot write", &file, e))?;
    answer(&outcome)?;
    let endless = Phase {
        name: "written until killed".to_owned(),
        mix: Mix::only(Op::Update),
        keys: Distribution::Scrambled(0.99),
        limit: Limit::Seconds(1e6),
        ..load_phase(case)
    };
    phase::run(&bed(case, &*store, &ledger), &own(&endless), &|_, _| ())?;
    Ok(())
}

/// Processor time of this process while nothing is asked of the store, after it had as long to come to rest.
fn idle(seconds: f64) -> Option<f64> {
    if seconds <= 0.0 {
        return None;
    }
    std::thread::sleep(Duration::from_secs_f64(seconds));
    let (begun, cpu) = (Instant::now(), process_seconds());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    Some((process_seconds() - cpu) / begun.elapsed().as_secs_f64())
}

fn bed<'a>(case: &'a Case, store: &'a dyn Store, ledger: &'a Ledger) -> Bed<'a> {
    Bed { system: &case.system, store, ledger, sizes: case.sizes, naming: case.naming() }
}

fn space(case: &Case, store: &dyn Store, ledger: &Ledger) -> Space {
    let keys = ledger.acknowledged();
    let user_bytes = (keys as f64 * (case.key_bytes as f64 + case.sizes.mean())) as u64;
    let (fast_bytes, flash_bytes) = (allocated(&case.setup.fast_dir), allocated(&case.setup.flash_dir));
    Space {
        keys,
        user_bytes,
        fast_bytes,
        flash_bytes,
        amplification: (fast_bytes + flash_bytes) as f64 / user_bytes.max(1) as f64,
        parts: store.counts().parts,
    }
}

/// Where the process that is to be killed leaves the versions that are acknowledged, for [`recover`].
fn floors_file(case: &Case) -> PathBuf {
    case.setup.flash_dir.with_extension("floors")
}

/// Opens the store that a killed process has left and reads all of it: every key must be there that was acknowledged before it
/// began what it was killed in, in order, each with a value that was once written under it and is no older than the one of then.
/// Returns the seconds that opening took.
///
/// # Errors
/// A failure of the store, a wrong value, or a key that is missing.
pub fn recover(systems: &Systems, case: &Case) -> Result<f64, Failure> {
    let file = floors_file(case);
    let floors = std::fs::read(&file).map_err(|e| Failure::io("cannot read", &file, e))?;
    let floors: Vec<u32> = floors.as_chunks().0.iter().copied().map(u32::from_le_bytes).collect();
    let (store, seconds) = open(system(systems, case)?, case)?;
    let (mut key, mut last, mut wrong, mut found) = (Vec::new(), Vec::new(), None, 0u64);
    store
        .scan(b"0", usize::MAX, &mut |own, value| {
            found += 1;
            let (number, why) = match values::read(value, &case.sizes) {
                Err(why) => (u64::MAX, Some(why)),
                Ok((number, version)) => {
                    case.naming().write(number, &mut key);
                    let oldest = floors.get(number as usize).copied().unwrap_or(0);
                    let why = if key != own || *own <= *last {
                        Some(Wrong::Misplaced)
                    } else {
                        let newest = 1 << VERSION_BITS;
                        (version < oldest).then_some(Wrong::Version { found: version, oldest, newest })
                    };
                    (number, why)
                }
            };
            last.clear();
            last.extend_from_slice(own);
            wrong = wrong.take().or(why.map(|why| (number, why)));
        })
        .map_err(|source| failed(case, "scan after recovery", source))?;
    let keys = floors.len() as u64;
    if found < keys {
        let lost = format!("{} of {keys} acknowledged keys are missing after recovery", keys - found);
        return Err(failed(case, "recovery", lost.into()));
    }
    if let Some((number, wrong)) = wrong {
        return Err(Failure::WrongValue { op: Op::Scan, number, wrong });
    }
    store.close().map_err(|source| failed(case, "close", source))?;
    Ok(seconds)
}

/// Makes the directories of `case`, empty.
///
/// # Errors
/// `Io`, also where they are there already.
pub fn prepare(case: &Case) -> Result<(), Failure> {
    for dir in [&case.setup.fast_dir, &case.setup.flash_dir] {
        std::fs::create_dir_all(dir).map_err(|e| Failure::io("cannot make the directory", dir, e))?;
        let mut entries =
            std::fs::read_dir(dir).map_err(|e| Failure::io("cannot read the directory", dir, e))?;
        if entries.next().is_some() {
            return Err(Failure::Invalid(format!("{} is not empty", dir.display())));
        }
    }
    Ok(())
}

/// Removes the directories of `case` and what is in them.
pub fn clean(case: &Case) {
    let remove = |dir: &Path| {
        // What cannot be removed is in the way of the next case, which says so.
        let _ = std::fs::remove_dir_all(dir);
    };
    remove(&case.setup.fast_dir);
    remove(&case.setup.flash_dir);
    let _ = std::fs::remove_file(floors_file(case));
}
