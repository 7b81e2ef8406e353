//! One phase of a run: threads that perform a mix of operations, and what was measured meanwhile.

use crate::failure::Failure;
use crate::keys::{Distribution, Naming};
use crate::ledger::Ledger;
use crate::measure::{ProcessIo, Resident, process_seconds, resident, thread_seconds_by_name};
use crate::order::Order;
use crate::pace::Pace;
use crate::reference::Depth;
use crate::settling::Settling;
use crate::store::{Counts, Durability, FAST, FLASH, Store, TierIo};
use crate::tally::{Latency, Tally};
use crate::values::{Sizes, part_seed};
use crate::worker::Worker;
use crate::workload::{Mix, Op, Scans};
use crossbeam_utils::CachePadded;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often progress and throughput are looked at.
const TICK: Duration = Duration::from_millis(100);
/// Operations that a thread takes at once from what is left of a phase.
const TAKE: u64 = 32;
/// How the names of threads begin that are a store's own.
const STORE_THREADS: &str = "tierdb-";
/// The cause under which stands what the kernel counts.
const KERNEL_COUNTS: &str = "all causes, as the kernel counts them";

/// How long a phase lasts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// As many operations, all threads together.
    Ops(u64),
    /// As many seconds.
    Seconds(f64),
}

/// How long the operations of a phase go on before anything is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Warmup {
    /// As long as this.
    For(Limit),
    /// Until caches have settled: see [`settling`](crate::settling).
    Settled {
        /// Seconds that it takes at least.
        least: f64,
        /// Operations that it has at least.
        ops: u64,
        /// Seconds after which it ends in any case.
        most: f64,
    },
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Its name in reports.
    pub name: String,
    /// Which operations.
    pub mix: Mix,
    /// On which keys.
    pub keys: Distribution,
    /// By how many threads.
    pub threads: usize,
    /// What its writes survive.
    pub durability: Durability,
    /// The same, before anything is measured.
    pub warmup: Option<Warmup>,
    /// For how long.
    pub limit: Limit,
    /// Operations a second, all threads together, begun at random times whether or not earlier ones have ended.
    /// Without it each thread begins an operation when its last one has ended.
    pub rate: Option<f64>,
    /// How many entries scans ask for.
    pub scans: Scans,
    /// Seeds every choice. Phases of a case make seeds of their own of it.
    pub seed: u64,
}

impl Phase {
    /// Whether it is a closed loop that reads single keys, one at a time, and at most writes beside that.
    pub fn reads_single_keys(&self) -> bool {
        let share = |op| self.mix.share(op);
        self.rate.is_none() && share(Op::Read) > 0.0 && share(Op::Scan) + share(Op::MultiRead) == 0.0
    }
}

/// The store of a run, and what is known about its contents.
pub struct Bed<'a> {
    /// The system's name.
    pub system: &'a str,
    /// The store.
    pub store: &'a dyn Store,
    /// What was written.
    pub ledger: &'a Ledger,
    /// Sizes of values.
    pub sizes: Sizes,
    /// How keys are called.
    pub naming: Naming,
}

/// What was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// The phase's name.
    pub name: String,
    /// By how many threads.
    #[serde(default)]
    pub threads: usize,
    /// How keys were chosen.
    pub distribution: String,
    /// What its writes survived.
    pub durability: String,
    /// Operations a second that were asked for, in an open loop.
    pub offered_rate: Option<f64>,
    /// How long its warm-up took, in seconds.
    #[serde(default)]
    pub warmup_seconds: f64,
    /// Whether caches had settled then, if it was to go on until they have.
    #[serde(default)]
    pub settling: Option<bool>,
    /// How long it took.
    pub seconds: f64,
    /// Operations that ended in it.
    pub ops: u64,
    /// Operations a second.
    pub rate: f64,
    /// Operations of an open loop that were due and never begun. Latencies have the time that they waited.
    #[serde(default)]
    pub never_begun: u64,
    /// Latencies by operation.
    pub latencies: Vec<Latency>,
    /// Operations a second in each interval: its end, in seconds since the start, and the rate.
    pub timeline: Vec<(f64, f64)>,
    /// Microseconds of processor time for each operation, the store's background work and the benchmark's own
    /// choice and check of values included.
    pub cpu_us_per_op: f64,
    /// The share of them that was spent on the threads that perform operations.
    pub worker_cpu_us_per_op: f64,
    /// Resident memory at the end.
    pub resident: Resident,
    /// Memory of the benchmark's own that is in it.
    pub harness_bytes: u64,
    /// I/O by tier and cause, as the store counts it. Where it does not count that of flash by itself, what the kernel
    /// counts of the process stands for it, under one cause.
    pub io: Vec<TierIo>,
    /// I/O of the process, as the kernel counts it.
    pub process_io: ProcessIo,
    /// Bytes of keys and values that were written.
    pub user_bytes_written: u64,
    /// Entries that scans gave.
    pub scanned: u64,
    /// Bytes written to flash for each byte of keys and values written: by the store's counts of flash, or where it has
    /// none by the kernel's. A warm-up that ends when reads have settled counts too: what stores write behind comes in bursts, of which
    /// a phase may have none.
    pub write_amplification: Option<f64>,
    /// The share of reads that did not go to flash, where the store counts it.
    pub hit_ratio: Option<f64>,
    /// Seconds that the store held writers back.
    pub stall_seconds: f64,
    /// Seconds of processor time of the store's own threads, by their names.
    #[serde(default)]
    pub background: Vec<(String, f64)>,
    /// By how much other counters of the store have grown.
    #[serde(default)]
    pub counters: Vec<(String, u64)>,
    /// What flash did by itself right after a phase that only reads, where that was asked for.
    #[serde(default)]
    pub reference: Vec<Depth>,
}

impl Measured {
    /// Bytes written to flash, without those of the warm-up.
    pub fn flash_written_bytes(&self) -> u64 {
        on_flash(&self.io).map(|io| io.written_bytes).sum()
    }
}

/// What the threads of a phase share.
pub(crate) struct Shared {
    taken: AtomicU64,
    limit: u64,
    stop: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl Shared {
    /// How many operations the caller may perform next; 0 at the end of the phase.
    pub(crate) fn take(&self) -> u64 {
        if self.stop.load(Ordering::Relaxed) {
            return 0;
        }
        let taken = self.taken.fetch_add(TAKE, Ordering::Relaxed);
        self.limit.saturating_sub(taken).min(TAKE)
    }

    fn fail(&self, failure: Failure) {
        self.stop.store(true, Ordering::Relaxed);
        if let Ok(mut first) = self.failure.lock() {
            first.get_or_insert(failure);
        }
    }
}

/// Called every tenth of a second with the share of the phase that is done and the operations so far.
pub type Progress<'a> = dyn Fn(f64, u64) + 'a;

/// Runs `phase`, its warm-up first.
///
/// # Errors
/// The first failure of any thread: of the store, or a value that is wrong.
pub fn run(bed: &Bed<'_>, phase: &Phase, progress: &Progress<'_>) -> Result<Measured, Failure> {
    let scans = phase.mix.share(Op::Scan) > 0.0;
    let order = scans.then(|| Order::new(&bed.naming, bed.ledger.acknowledged()));
    let warm_up = |limit: Limit, settling: Option<Settling>| {
        // No thread has this number.
        let seed = part_seed(phase.seed, u64::MAX);
        once(bed, &Phase { limit, seed, ..phase.clone() }, order.as_ref(), settling, progress)
    };
    let warmed = match phase.warmup {
        None => None,
        Some(Warmup::For(limit)) => Some(warm_up(limit, None)?),
        Some(Warmup::Settled { least, ops, most }) => {
            let settling = Settling::new(least, ops, flash_read_bytes(bed.store));
            Some(warm_up(Limit::Seconds(most), Some(settling))?)
        }
    };
    let mut measured = once(bed, phase, order.as_ref(), None, progress)?;
    measured.harness_bytes += order.as_ref().map_or(0, Order::memory_bytes);
    if let Some(warmed) = warmed {
        measured.warmup_seconds = warmed.seconds;
        measured.settling = warmed.settling;
        if warmed.settling.is_some() {
            measured.write_amplification = write_amplification(&[&warmed, &measured]);
        }
    }
    Ok(measured)
}

/// Bytes written to flash in `runs` for each byte of keys and values that was written in them.
fn write_amplification(runs: &[&Measured]) -> Option<f64> {
    let flash: u64 = runs.iter().map(|run| run.flash_written_bytes()).sum();
    let user: u64 = runs.iter().map(|run| run.user_bytes_written).sum();
    (user > 0).then(|| flash as f64 / user as f64)
}

fn on_flash(io: &[TierIo]) -> impl Iterator<Item = &TierIo> {
    io.iter().filter(|io| io.tier == FLASH)
}

/// Runs `phase` once, until its limit or until what `settling` looks at has settled.
fn once(
    bed: &Bed<'_>,
    phase: &Phase,
    order: Option<&Order>,
    mut settling: Option<Settling>,
    progress: &Progress<'_>,
) -> Result<Measured, Failure> {
    let limit = match phase.limit {
        Limit::Ops(ops) => ops,
        Limit::Seconds(_) => u64::MAX,
    };
    let shared =
        Shared { taken: AtomicU64::new(0), limit, stop: AtomicBool::new(false), failure: Mutex::new(None) };
    let expected_inserts = match phase.limit {
        // Twice what will be inserted, as YCSB does, so that new keys have their share from the start.
        Limit::Ops(ops) => (ops as f64 * phase.mix.share(Op::Insert) * 2.0) as u64,
        Limit::Seconds(_) => 0,
    };
    let done: Vec<_> = (0..phase.threads).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
    let before = Before::now(bed.store);
    let deadline = match phase.limit {
        Limit::Seconds(seconds) => Some(before.begun + Duration::from_secs_f64(seconds)),
        Limit::Ops(_) => None,
    };
    let mut timeline = Vec::new();
    let mut settled = settling.as_ref().map(|_| false);
    let tallies = std::thread::scope(|threads| {
        let mut running = Vec::new();
        for (index, done) in done.iter().enumerate() {
            let pace = Pace::new(phase.rate.map(|rate| rate / phase.threads as f64), before.begun);
            let shared = &shared;
            running.push(threads.spawn(move || {
                let mut worker = Worker::new(bed, phase, order, index as u64, expected_inserts);
                if let Err(failure) = worker.work(shared, pace, deadline, done) {
                    shared.fail(failure);
                }
                worker.into_tally()
            }));
        }
        let mut watch = Watch { begun: before.begun, last: (0.0, 0) };
        while running.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(TICK.min(watch.until_end(deadline)));
            let ops = total(&done);
            timeline.extend(watch.interval(ops));
            if settling.as_mut().is_some_and(|settling| {
                settling.look(watch.begun.elapsed().as_secs_f64(), ops, || flash_read_bytes(bed.store))
            }) {
                settled = Some(true);
                shared.stop.store(true, Ordering::Relaxed);
            }
            let share = match phase.limit {
                Limit::Ops(all) => ops as f64 / all.max(1) as f64,
                Limit::Seconds(all) => watch.begun.elapsed().as_secs_f64() / all,
            };
            progress(share.min(1.0), ops);
        }
        running.into_iter().map(|thread| thread.join()).collect::<Result<Vec<_>, _>>()
    });
    if let Some(failure) = shared.failure.into_inner().unwrap_or(None) {
        return Err(failure);
    }
    let Ok(tallies) = tallies else {
        return Err(Failure::Child(format!("a thread of {} panicked", bed.system)));
    };
    let mut tally = Tally::new();
    tallies.iter().for_each(|other| tally.add(other));
    // The threads' own end: this one looks only every tenth of a second.
    let ended = tally.ended.unwrap_or_else(Instant::now);
    let seconds = ended.duration_since(before.begun).as_secs_f64().max(1e-9);
    let measured = before.measured(bed, phase, seconds, &tally, timeline);
    Ok(Measured { settling: settled, ..measured })
}

/// Bytes that were read from flash so far: as the store counts them, or else the kernel.
fn flash_read_bytes(store: &dyn Store) -> u64 {
    let counts = store.counts();
    if !counts.tells_of_flash {
        return ProcessIo::now().read_bytes;
    }
    on_flash(&counts.io).map(|io| io.read_bytes).sum()
}

fn total(done: &[CachePadded<AtomicU64>]) -> u64 {
    done.iter().map(|ops| ops.load(Ordering::Relaxed)).sum()
}

/// Cuts the operations of a phase into intervals.
struct Watch {
    begun: Instant,
    last: (f64, u64),
}

impl Watch {
    fn until_end(&self, deadline: Option<Instant>) -> Duration {
        // Once the time is over, threads end within an operation, unless an open loop is behind.
        deadline
            .map_or(TICK, |end| end.saturating_duration_since(Instant::now()))
            .max(Duration::from_millis(1))
    }

    /// The interval that ends now, if it is long enough to say something.
    fn interval(&mut self, ops: u64) -> Option<(f64, f64)> {
        let now = self.begun.elapsed().as_secs_f64();
        let (then, before) = self.last;
        if now - then < TICK.as_secs_f64() * 0.9 {
            return None;
        }
        self.last = (now, ops);
        Some((now, (ops - before) as f64 / (now - then)))
    }
}

/// What was counted when a phase began.
struct Before {
    counts: Counts,
    io: ProcessIo,
    background: BTreeMap<String, f64>,
    cpu: f64,
    begun: Instant,
}

impl Before {
    fn now(store: &dyn Store) -> Self {
        Before {
            counts: store.counts(),
            io: ProcessIo::now(),
            background: thread_seconds_by_name(STORE_THREADS),
            cpu: process_seconds(),
            begun: Instant::now(),
        }
    }

    fn measured(
        self,
        bed: &Bed<'_>,
        phase: &Phase,
        seconds: f64,
        tally: &Tally,
        timeline: Vec<(f64, f64)>,
    ) -> Measured {
        let cpu = process_seconds() - self.cpu;
        let background = thread_seconds_by_name(STORE_THREADS).into_iter().map(|(name, seconds)| {
            let before = self.background.get(&name).copied().unwrap_or(0.0);
            (name, (seconds - before).max(0.0))
        });
        let background = background.collect();
        let counts = bed.store.counts();
        let process_io = ProcessIo::now().since(self.io);
        let mut io = io_since(&counts.io, &self.counts.io);
        if !counts.tells_of_flash {
            io.push(as_kernel_counts(process_io));
        }
        if counts.has_fast_files {
            io.push(beyond_flash(&io, process_io));
        }
        let ops = tally.ops();
        let per_op = |seconds: f64| if ops == 0 { 0.0 } else { seconds * 1e6 / ops as f64 };
        let (hits, misses) = (counts.hits - self.counts.hits, counts.misses - self.counts.misses);
        let measured = Measured {
            name: phase.name.clone(),
            threads: phase.threads,
            distribution: phase.keys.name(),
            durability: phase.durability.name().to_owned(),
            offered_rate: phase.rate,
            warmup_seconds: 0.0,
            settling: None,
            seconds,
            ops,
            rate: ops as f64 / seconds,
            never_begun: tally.never_begun(),
            latencies: tally.latencies(),
            timeline,
            cpu_us_per_op: per_op(cpu),
            worker_cpu_us_per_op: per_op(tally.cpu_seconds),
            resident: resident(),
            harness_bytes: bed.ledger.memory_bytes() + tally.memory_bytes() * (phase.threads as u64 + 1),
            io,
            process_io,
            user_bytes_written: tally.user_bytes_written,
            scanned: tally.scanned,
            write_amplification: None,
            hit_ratio: (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64),
            stall_seconds: (counts.stall_ns - self.counts.stall_ns) as f64 / 1e9,
            background,
            counters: growth(&counts.counters, &self.counts.counters),
            reference: Vec::new(),
        };
        Measured { write_amplification: write_amplification(&[&measured]), ..measured }
    }
}

/// By how much counters have grown; what has not is left out, as is what a peer counts that has fallen.
fn growth(now: &[(String, u64)], before: &[(String, u64)]) -> Vec<(String, u64)> {
    let since = now.iter().map(|(name, count)| {
        let old = before.iter().find(|(own, _)| own == name).map_or(0, |(_, old)| *old);
        (name.clone(), count.saturating_sub(old))
    });
    since.filter(|(_, grown)| *grown > 0).collect()
}

/// What was counted between two looks at the same counters.
fn io_since(now: &[TierIo], before: &[TierIo]) -> Vec<TierIo> {
    let mut since: Vec<TierIo> = now.to_vec();
    for io in &mut since {
        if let Some(old) = before.iter().find(|old| old.tier == io.tier && old.cause == io.cause) {
            // A difference of two counters that grow at different times may have fallen.
            io.reads = io.reads.saturating_sub(old.reads);
            io.read_bytes = io.read_bytes.saturating_sub(old.read_bytes);
            io.writes = io.writes.saturating_sub(old.writes);
            io.written_bytes = io.written_bytes.saturating_sub(old.written_bytes);
            io.syncs = io.syncs.saturating_sub(old.syncs);
        }
    }
    since.retain(|io| io.is_any() || !before.is_empty());
    since
}

/// What the process has read and written, for flash.
fn as_kernel_counts(process_io: ProcessIo) -> TierIo {
    TierIo {
        tier: FLASH.to_owned(),
        cause: KERNEL_COUNTS.to_owned(),
        read_bytes: process_io.read_bytes,
        written_bytes: process_io.written_bytes,
        ..TierIo::default()
    }
}

/// What the calls of the process have read and written beyond `io` on flash, for the fast tier.
fn beyond_flash(io: &[TierIo], process_io: ProcessIo) -> TierIo {
    let (mut read_bytes, mut written_bytes) = (process_io.called_read_bytes, process_io.called_written_bytes);
    for io in on_flash(io) {
        read_bytes = read_bytes.saturating_sub(io.read_bytes);
        written_bytes = written_bytes.saturating_sub(io.written_bytes);
    }
    TierIo {
        tier: FAST.to_owned(),
        cause: KERNEL_COUNTS.to_owned(),
        read_bytes,
        written_bytes,
        ..TierIo::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_flash_is_the_fast_tier() {
        let io = |tier: &str, read_bytes, written_bytes| TierIo {
            tier: tier.to_owned(),
            read_bytes,
            written_bytes,
            ..TierIo::default()
        };
        let process_io =
            ProcessIo { called_read_bytes: 100, called_written_bytes: 50, ..ProcessIo::default() };
        let fast = beyond_flash(&[io(FLASH, 30, 5), io("any tier", 7, 7), io(FLASH, 0, 60)], process_io);
        assert_eq!((&*fast.tier, fast.read_bytes, fast.written_bytes), (FAST, 70, 0));
    }

    #[test]
    fn bytes_to_flash_are_those_of_all_runs_for_each_byte_of_all() {
        let run = |user_bytes_written: u64, tiers: &[(&str, u64)]| {
            let io = |(tier, written_bytes): &(&str, u64)| TierIo {
                tier: (*tier).to_owned(),
                written_bytes: *written_bytes,
                ..TierIo::default()
            };
            Measured { user_bytes_written, io: tiers.iter().map(io).collect(), ..Measured::default() }
        };
        let (warm_up, rest) = (run(10, &[(FLASH, 10), ("fast", 500), (FLASH, 20)]), run(10, &[(FLASH, 0)]));
        assert_eq!(write_amplification(&[&rest]), Some(0.0));
        assert_eq!(write_amplification(&[&warm_up, &rest]), Some(1.5));
        assert_eq!(write_amplification(&[&run(0, &[(FLASH, 10)])]), None);
    }

    #[test]
    fn counts_are_of_what_was_done_since() {
        let io = |tier: &str, cause: &str, read_bytes, written_bytes| TierIo {
            tier: tier.to_owned(),
            cause: cause.to_owned(),
            read_bytes,
            written_bytes,
            ..TierIo::default()
        };
        let before = [io("any tier", "log", 0, 10), io("any tier", "reads", 9, 0)];
        let now = [io("any tier", "log", 0, 15), io("any tier", "reads", 8, 0)];
        assert_eq!(io_since(&now, &before), [io("any tier", "log", 0, 5), io("any tier", "reads", 0, 0)]);
        let own = [io("flash", "flush", 0, 3)];
        assert_eq!(io_since(&own, &[]), own);
    }
}
