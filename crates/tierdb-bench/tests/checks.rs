//! The benchmark itself: wrong answers fail a run, and time that a store spends is counted.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};
use tierdb_bench::case::{self, Case};
use tierdb_bench::failure::Failure;
use tierdb_bench::keys::{Distribution, Naming};
use tierdb_bench::knobs::Knobs;
use tierdb_bench::ledger::Ledger;
use tierdb_bench::phase::{self, Bed, Limit, Measured, Phase, Warmup};
use tierdb_bench::store::{Counts, Durability, Fast, Setup, Store, StoreError, System, Systems};
use tierdb_bench::values::{Sizes, Wrong};
use tierdb_bench::workload::{Mix, Op, Scans, Workload};

const KEYS: u64 = 500;
/// Reads before the one that [`Fault::Stall`] stalls.
const STALLED: u64 = 100;

/// What the store does wrong, from the given operation on.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// A byte of what is read is another.
    Byte,
    /// What is read is cut.
    Cut,
    /// What is read is the value of another key.
    OtherKey,
    /// Writes have no effect.
    LostWrites,
    /// Nothing is found.
    Missing,
    /// Scans leave the first entry out.
    Hole,
    /// Scans leave the third entry out.
    InnerHole,
    /// Scans end too soon.
    Short,
    /// Scans find what was there before the last write.
    Stale,
    /// Reads take this long, once.
    Stall(Duration),
}

struct Map {
    entries: RwLock<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// What [`Fault::Stale`] finds.
    before: RwLock<BTreeMap<Vec<u8>, Vec<u8>>>,
    fault: RwLock<Fault>,
    reads: AtomicU64,
}

impl Map {
    fn new() -> Self {
        Map {
            entries: RwLock::default(),
            before: RwLock::default(),
            fault: RwLock::new(Fault::None),
            reads: AtomicU64::new(0),
        }
    }

    fn fault(&self) -> Fault {
        *self.fault.read().expect("fault")
    }
}

impl Store for Map {
    fn get(&self, key: &[u8], see: &mut dyn FnMut(Option<&[u8]>)) -> Result<(), StoreError> {
        let entries = self.entries.read().map_err(|e| e.to_string())?;
        let mut found = entries.get(key).cloned();
        match self.fault() {
            Fault::Byte => found.iter_mut().for_each(|value| value[70] ^= 1),
            Fault::Cut => found.iter_mut().for_each(|value| value.truncate(99)),
            Fault::OtherKey => {
                let other = entries.range::<[u8], _>((Bound::Excluded(key), Bound::Unbounded)).next();
                found = other.map(|(_, value)| value.clone());
            }
            Fault::Missing => found = None,
            Fault::Stall(stall) if self.reads.fetch_add(1, Ordering::Relaxed) == STALLED => {
                std::thread::sleep(stall);
            }
            _ => {}
        }
        see(found.as_deref());
        Ok(())
    }

    fn put(&self, key: &[u8], value: &[u8], _: Durability) -> Result<(), StoreError> {
        if self.fault() != Fault::LostWrites {
            self.entries.write().map_err(|e| e.to_string())?.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }

    fn scan(&self, from: &[u8], count: usize, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        let skip = usize::from(self.fault() == Fault::Hole);
        let count = if self.fault() == Fault::Short { count.div_ceil(2) } else { count };
        let before = self.before.read().map_err(|e| e.to_string())?;
        let entries = self.entries.read().map_err(|e| e.to_string())?;
        let entries = if self.fault() == Fault::Stale { &before } else { &entries };
        let range = entries.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
        let left_out = (self.fault() == Fault::InnerHole).then_some(2);
        let range = range.enumerate().filter(|(at, _)| Some(*at) != left_out).map(|(_, entry)| entry);
        range.skip(skip).take(count).for_each(|(key, value)| see(key, value));
        Ok(())
    }

    fn counts(&self) -> Counts {
        Counts::default()
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        Ok(())
    }
}

fn phase(mix: Mix, keys: Distribution, limit: Limit) -> Phase {
    Phase {
        name: "test".to_owned(),
        mix,
        keys,
        threads: 2,
        durability: Durability::Durable,
        warmup: None,
        limit,
        rate: None,
        scans: Scans::Uniform(20),
        seed: 4,
    }
}

fn loaded(store: &Map, ledger: &Ledger) {
    let load = phase(Mix::only(Op::Insert), Distribution::Uniform, Limit::Ops(KEYS));
    run(store, ledger, &load).expect("load");
    assert_eq!(ledger.acknowledged(), KEYS);
}

fn run(store: &Map, ledger: &Ledger, phase: &Phase) -> Result<Measured, Failure> {
    let naming = Naming::placed(16, KEYS);
    let bed = Bed { system: "map", store, ledger, sizes: Sizes::Fixed(100), naming };
    phase::run(&bed, phase, &|_, _| ())
}

fn with_fault(fault: Fault, mix: Mix) -> Result<Measured, Failure> {
    let (store, ledger) = (Map::new(), Ledger::new());
    loaded(&store, &ledger);
    *store.fault.write().expect("fault") = fault;
    run(&store, &ledger, &phase(mix, Distribution::Uniform, Limit::Ops(3_000)))
}

fn wrong(fault: Fault, mix: Mix) -> Wrong {
    match with_fault(fault, mix) {
        Err(Failure::WrongValue { wrong, .. }) => wrong,
        other => panic!("the run did not fail for a wrong value: {other:?}"),
    }
}

#[test]
fn every_workload_runs_on_a_right_store_and_does_what_it_says() {
    for workload in Workload::ALL {
        let (store, ledger) = (Map::new(), Ledger::new());
        loaded(&store, &ledger);
        let keys = workload.distribution(Distribution::Scrambled(0.99));
        let measured =
            run(&store, &ledger, &phase(workload.mix(), keys, Limit::Ops(4_000))).expect(workload.name);
        assert_eq!(measured.ops, 4_000, "{}", workload.name);
        let inserted: u64 =
            measured.latencies.iter().filter(|latency| latency.op == Op::Insert).map(|l| l.count).sum();
        assert_eq!(ledger.acknowledged(), KEYS + inserted, "{}", workload.name);
    }
}

/// Does `work` again until it says that it went as it does while the machine runs its threads: it need not, but
/// not each time.
fn sooner_or_later(what: &str, mut work: impl FnMut() -> Result<(), String>) {
    let given_up = Instant::now() + Duration::from_secs(60);
    while let Err(why) = work() {
        assert!(Instant::now() < given_up, "{what}: {why}");
    }
}

#[test]
fn a_phase_ends_with_its_threads_and_not_when_progress_is_looked_at() {
    let (store, ledger) = (Map::new(), Ledger::new());
    loaded(&store, &ledger);
    // In memory this takes some milliseconds, less than the tenth of a second at which progress is looked at.
    sooner_or_later("a short phase", || {
        let phase = phase(Mix::only(Op::Read), Distribution::Uniform, Limit::Ops(4_000));
        let seconds = run(&store, &ledger, &phase).expect("run").seconds;
        if seconds < 0.095 { Ok(()) } else { Err(format!("{seconds} s")) }
    });
}

#[test]
fn a_wrong_value_fails_the_run() {
    let mixed = || Mix { shares: vec![(Op::Read, 50), (Op::Update, 50)] };
    assert!(matches!(wrong(Fault::Byte, mixed()), Wrong::Byte { at: 70, .. }));
    assert!(matches!(wrong(Fault::Cut, mixed()), Wrong::Length { found: 99, expected: 100, .. }));
    assert!(matches!(wrong(Fault::OtherKey, mixed()), Wrong::OtherKey(_) | Wrong::Missing(_)));
    assert!(matches!(wrong(Fault::Missing, mixed()), Wrong::Missing(1..)));
    assert!(
        matches!(wrong(Fault::LostWrites, mixed()), Wrong::Version { .. }),
        "an old version is no answer"
    );
    assert!(matches!(wrong(Fault::Hole, Mix::only(Op::Scan)), Wrong::Missing(1)));
    assert!(matches!(wrong(Fault::InnerHole, Mix::only(Op::Scan)), Wrong::LeftOut));
    assert!(matches!(wrong(Fault::Short, Mix::only(Op::Scan)), Wrong::Missing(1)));
    assert!(with_fault(Fault::None, mixed()).is_ok());
}

#[test]
fn a_scan_of_what_is_not_written_meanwhile_finds_the_last_versions() {
    let (store, ledger) = (Map::new(), Ledger::new());
    loaded(&store, &ledger);
    *store.before.write().expect("before") = store.entries.read().expect("entries").clone();
    run(&store, &ledger, &phase(Mix::only(Op::Update), Distribution::Uniform, Limit::Ops(3_000)))
        .expect("updates");
    let scans = phase(Mix::only(Op::Scan), Distribution::Uniform, Limit::Ops(3_000));
    assert!(run(&store, &ledger, &scans).is_ok());
    *store.fault.write().expect("fault") = Fault::Stale;
    let failed = run(&store, &ledger, &scans);
    assert!(
        matches!(failed, Err(Failure::WrongValue { wrong: Wrong::Version { found: 1, .. }, .. })),
        "{failed:?}"
    );
}

/// Operations that took longer than `us`.
fn longer(measured: &Measured, us: f64) -> f64 {
    let read = &measured.latencies[0];
    let below = read.cdf.iter().filter(|(own, _)| *own < us).map(|(_, share)| *share).fold(0.0, f64::max);
    (1.0 - below) * read.count as f64
}

#[test]
fn what_was_due_before_the_end_counts_though_the_store_stalls_beyond_it() {
    let stalled = |rate: f64, seconds: f64, stall_ms: u64| {
        let (store, ledger) = (Map::new(), Ledger::new());
        loaded(&store, &ledger);
        *store.fault.write().expect("fault") = Fault::Stall(Duration::from_millis(stall_ms));
        let reads = phase(Mix::only(Op::Read), Distribution::Uniform, Limit::Seconds(seconds));
        run(&store, &ledger, &Phase { threads: 1, rate: Some(rate), ..reads }).expect("run")
    };
    sooner_or_later("a stall up to the end", || {
        // About 50 are due between the one that stalls, at 0.2 s, and the end; the stall ends 50 ms after that or later.
        let late = stalled(500.0, 0.3, 150);
        let counted = longer(&late, 45_000.0);
        if (30.0..90.0).contains(&counted) { Ok(()) } else { Err(format!("{counted} of {}", late.ops)) }
    });
    // About 100 are due behind the one that stalls, which ends when no more are begun.
    let lost = stalled(2_000.0, 0.1, 300);
    assert!(lost.ops <= STALLED + 1, "{}", lost.ops);
    assert_eq!(lost.latencies[0].never_begun, lost.never_begun);
    assert!(lost.never_begun > 60 && longer(&lost, 100_000.0) > 60.0, "{}", lost.never_begun);
}

#[test]
fn a_stall_counts_for_all_that_was_due_in_an_open_loop_and_once_in_a_closed_one() {
    let stall = Duration::from_millis(200);
    let slow = |rate: Option<f64>| {
        let (store, ledger) = (Map::new(), Ledger::new());
        loaded(&store, &ledger);
        *store.fault.write().expect("fault") = Fault::Stall(stall);
        let phase = Phase {
            threads: 1,
            rate,
            ..phase(Mix::only(Op::Read), Distribution::Uniform, Limit::Seconds(0.8))
        };
        let measured = run(&store, &ledger, &phase).expect("run");
        // Operations that took more than half the stall.
        (longer(&measured, 100_000.0), measured.latencies[0].max_us, measured.ops)
    };
    sooner_or_later("an open loop", || {
        let (late, longest, ops) = slow(Some(2_000.0));
        assert!(ops < 2_000, "{ops} operations at 2,000/s in 0.8 s");
        assert!(ops <= STALLED || longest >= 199_000.0, "{longest}");
        match ops >= 1_200 && late > 100.0 {
            true => Ok(()),
            false => Err(format!(
                "{ops} operations at 2,000/s in 0.8 s, of which {late} waited for half the stall"
            )),
        }
    });
    sooner_or_later("a closed loop", || {
        let (late, longest, ops) = slow(None);
        assert!(ops <= STALLED || longest >= 199_000.0, "{longest}");
        if ops > STALLED && late < 50.0 {
            Ok(())
        } else {
            Err(format!("{late} of {ops} operations waited for half the stall"))
        }
    });
}

/// The keys that were read, in their order.
type Reads = Arc<Mutex<Vec<Vec<u8>>>>;

/// A store that tells which keys are read.
struct Told(Map, Reads);

impl Store for Told {
    fn get(&self, key: &[u8], see: &mut dyn FnMut(Option<&[u8]>)) -> Result<(), StoreError> {
        self.1.lock().map_err(|e| e.to_string())?.push(key.to_vec());
        self.0.get(key, see)
    }

    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<(), StoreError> {
        self.0.put(key, value, durability)
    }

    fn scan(&self, from: &[u8], count: usize, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        self.0.scan(from, count, see)
    }

    fn counts(&self) -> Counts {
        self.0.counts()
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        Ok(())
    }
}

struct Telling(Reads);

impl System for Telling {
    fn name(&self) -> &'static str {
        "telling"
    }

    fn about(&self) -> &'static str {
        "a map that tells which keys are read"
    }

    fn fast(&self) -> Fast {
        Fast::None
    }

    fn open(&self, _: &Setup) -> Result<Box<dyn Store>, StoreError> {
        Ok(Box::new(Told(Map::new(), self.0.clone())))
    }
}

#[test]
fn no_phase_reads_what_another_read_in_the_same_order_but_every_system_does() {
    const READS: usize = 2_000;
    let reads = |between: bool| {
        let limit = Limit::Ops(READS as u64);
        let c = Phase {
            threads: 1,
            warmup: Some(Warmup::For(limit)),
            ..phase(Mix::only(Op::Read), Distribution::Scrambled(0.99), limit)
        };
        let setup = Setup {
            fast_dir: PathBuf::new(),
            fast_bytes: 0,
            flash_dir: PathBuf::new(),
            memory: 0,
            durability: Durability::Durable,
            emulate_fast: None,
            emulate_flash: None,
            keys: KEYS,
            data_bytes: 0,
            knobs: Knobs::default(),
        };
        let mut phases = vec![c.clone(), c.clone()];
        if between {
            phases.insert(1, Phase { name: "between".to_owned(), ..c });
        }
        let case = Case {
            system: "telling".to_owned(),
            setup,
            key_bytes: 16,
            sizes: Sizes::Fixed(100),
            threads: 1,
            load_durability: Durability::Durable,
            phases,
            seed: 4,
            recovery: false,
            idle: 0.0,
            group_bytes: None,
            unchecked: false,
            reference: None,
        };
        let reads = Reads::default();
        let systems = Systems(vec![Box::new(Telling(reads.clone()))]);
        case::run(&systems, &case, &|_, _, _| (), &mut |_| Ok(())).expect("run");
        reads.lock().expect("reads").clone()
    };
    let all = reads(false);
    let runs: Vec<&[Vec<u8>]> = all.chunks(READS).collect();
    assert_eq!(runs.len(), 4, "two phases with their warm-ups");
    for (number, one) in runs.iter().enumerate() {
        let seen: HashSet<&[Vec<u8>]> = one.windows(8).collect();
        for (other, run) in runs.iter().enumerate().skip(number + 1) {
            assert!(run.windows(8).all(|keys| !seen.contains(keys)), "{number} and {other}");
        }
    }
    let with_more = reads(true);
    assert_eq!(with_more.len(), 6 * READS);
    let same = with_more[..2 * READS].iter().chain(&with_more[4 * READS..]);
    assert!(same.eq(&all), "systems are asked for the same, though one has another phase in between");
}
