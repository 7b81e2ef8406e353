//! What a store says about itself.

use tierdb_base::TierRole;
use tierdb_device::{Cause, Meter};
use tierdb_pmem::Pool;

/// The cause under which stands what goes to a fast tier in memory: cache lines.
const WRITE_BACKS: &str = "write_backs";

/// One tier: what it is, how full it is and with what.
#[derive(Clone, Debug, PartialEq)]
pub struct TierStats {
    /// Fast or flash.
    pub role: TierRole,
    /// Its path.
    pub path: String,
    /// What it is, in words: of the pool how its writes become durable; and what is imitated.
    pub medium: String,
    /// Most bytes the store may use on it.
    pub capacity: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes in use by each part: name and bytes.
    pub parts: Vec<(&'static str, u64)>,
    /// Its I/O by cause since open. Of one in memory that is what was written back: ranges, bytes of their cache lines, and fences; what
    /// is loaded from it is not counted.
    pub io: Vec<(&'static str, IoStats)>,
}

/// Counted I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStats {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read from the device.
    pub read_bytes: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written to the device.
    pub written_bytes: u64,
    /// Syncs and durable writes.
    pub syncs: u64,
}

impl IoStats {
    /// What `meter` has counted, by the names of causes; those without any I/O are left out.
    pub fn by_cause(meter: &Meter) -> Vec<(&'static str, IoStats)> {
        let of = |cause: &Cause| {
            let counted = meter.get(*cause);
            let io = IoStats {
                reads: counted.reads,
                read_bytes: counted.read_bytes,
                writes: counted.writes,
                written_bytes: counted.written_bytes,
                syncs: counted.syncs,
            };
            (cause.name(), io)
        };
        Cause::ALL.iter().map(of).filter(|(_, io)| *io != IoStats::default()).collect()
    }

    /// The same of a fast tier, which is `pool` and has its block I/O counted by `meter`.
    pub fn of_fast(meter: &Meter, pool: &impl Pool) -> Vec<(&'static str, IoStats)> {
        let backs = pool.write_backs();
        let writes = IoStats {
            writes: backs.ranges,
            written_bytes: backs.bytes,
            syncs: backs.fences,
            ..IoStats::default()
        };
        let mut all = Self::by_cause(meter);
        if writes != IoStats::default() {
            all.push((WRITE_BACKS, writes));
        }
        all
    }
}

/// A cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Reads it served, but for those of records that the fast tier has, too.
    pub hits: u64,
    /// Reads that went on to the tier below.
    pub misses: u64,
    /// Entries in it.
    pub entries: u64,
    /// Bytes it holds in DRAM, its own structures included.
    pub bytes: u64,
    /// Most bytes it may hold.
    pub capacity: u64,
    /// Entries it evicted since open.
    pub evictions: u64,
}

/// Latencies of one operation since open, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyStats {
    /// Operations measured (a sample of all).
    pub count: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

/// A store's statistics. What is counted starts at zero when the store is opened.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// The engine's name.
    pub engine: &'static str,
    /// The hardware mode, in words.
    pub mode: String,
    /// Keys stored, as far as is known without looking at all of them.
    pub keys: u64,
    /// Whether that is an estimate: of an engine with sorted tables, which do not say how many of their keys were written again.
    pub keys_estimated: bool,
    /// Bytes in DRAM, by part.
    pub memory: Vec<(&'static str, u64)>,
    /// The memory budget in bytes.
    pub memory_budget: u64,
    /// Its tiers.
    pub tiers: Vec<TierStats>,
    /// The value cache.
    pub cache: CacheStats,
    /// Gets answered from the write buffer.
    pub write_buffer_hits: u64,
    /// Bytes of keys and values that callers have written.
    pub user_bytes_written: u64,
    /// Operations by name.
    pub operations: Vec<(&'static str, u64)>,
    /// Latencies by operation.
    pub latencies: Vec<(&'static str, LatencyStats)>,
    /// Time writers were held back because a tier was full, in nanoseconds.
    pub stall_ns: u64,
    /// Other counters of the engine, and of its log, by name.
    pub counters: Vec<(&'static str, u64)>,
    /// What the engine has and does now, by name.
    pub gauges: Vec<(&'static str, u64)>,
    /// Why the store is read-only, if it is.
    pub poisoned: Option<String>,
}

impl Stats {
    /// The one of [`counters`](Stats::counters) and [`gauges`](Stats::gauges) that is named `name`, if there is one.
    pub fn figure(&self, name: &str) -> Option<u64> {
        let all = self.counters.iter().chain(&self.gauges);
        all.copied().find_map(|(own, figure)| (own == name).then_some(figure))
    }

    /// Bytes written to flash for each byte that callers wrote, or `None` before the first write.
    pub fn write_amplification(&self) -> Option<f64> {
        let written: u64 = self
            .tiers
            .iter()
            .filter(|tier| tier.role == TierRole::Flash)
            .flat_map(|tier| &tier.io)
            .map(|(_, io)| io.written_bytes)
            .sum();
        (self.user_bytes_written > 0).then(|| written as f64 / self.user_bytes_written as f64)
    }
}
