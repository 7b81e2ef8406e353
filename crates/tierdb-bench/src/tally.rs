//! What one thread has counted: latencies by operation, bytes, processor time.

use crate::workload::Op;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The longest latency that is told apart from longer ones.
const MOST_NS: u64 = 600_000_000_000;
/// Points of a distribution in each half of what is left of it. A power of two, so that the median is one of them.
const TICKS: u32 = 16;

/// Latencies of one operation, in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// Which operation.
    pub op: Op,
    /// How many.
    pub count: u64,
    /// Those of them that were due in an open loop and never begun.
    #[serde(default)]
    pub never_begun: u64,
    /// Average.
    pub average_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Longest.
    pub max_us: f64,
    /// The distribution: latencies, and the share of operations that took at most as long.
    pub cdf: Vec<(f64, f64)>,
}

/// The latency within which `share` of the operations of all kinds ended, in microseconds, up to the next point of a distribution.
pub fn within(latencies: &[Latency], share: f64) -> Option<f64> {
    let ended = |us: f64| {
        let of = |latency: &Latency| {
            let points = latency.cdf.partition_point(|(own, _)| *own <= us);
            latency.count as f64 * points.checked_sub(1).map_or(0.0, |last| latency.cdf[last].1)
        };
        latencies.iter().map(of).sum::<f64>()
    };
    let all: u64 = latencies.iter().map(|latency| latency.count).sum();
    let mut points: Vec<f64> = latencies.iter().flat_map(|latency| &latency.cdf).map(|(us, _)| *us).collect();
    points.sort_by(f64::total_cmp);
    points.into_iter().find(|us| ended(*us) >= share * all as f64)
}

/// What one thread, or all of them together, has counted.
pub struct Tally {
    histograms: [Option<Histogram<u64>>; Op::ALL.len()],
    /// Those of the latencies that are of operations which were due and never begun, by operation.
    never_begun: [u64; Op::ALL.len()],
    /// Bytes of keys and values written.
    pub user_bytes_written: u64,
    /// Entries that scans gave.
    pub scanned: u64,
    /// Processor time of the thread, in seconds.
    pub cpu_seconds: f64,
    /// When the last operation had ended.
    pub ended: Option<Instant>,
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

impl Tally {
    /// Nothing yet.
    pub fn new() -> Self {
        Tally {
            histograms: [const { None }; Op::ALL.len()],
            never_begun: [0; Op::ALL.len()],
            user_bytes_written: 0,
            scanned: 0,
            cpu_seconds: 0.0,
            ended: None,
        }
    }

    fn of(&mut self, op: Op) -> &mut Histogram<u64> {
        // The bounds are constants that hdrhistogram accepts; without them it would grow as it needs to.
        self.histograms[op as usize].get_or_insert_with(|| {
            Histogram::new_with_max(MOST_NS, 3).unwrap_or_else(|_| unreachable!("three digits are possible"))
        })
    }

    /// Counts an operation that took `took`.
    pub fn record(&mut self, op: Op, took: Duration) {
        self.of(op).saturating_record(took.as_nanos().min(u128::from(MOST_NS)) as u64);
    }

    /// Counts an operation that has waited for so long and is never begun.
    pub fn record_never_begun(&mut self, op: Op, waited: Duration) {
        self.record(op, waited);
        self.never_begun[op as usize] += 1;
    }

    /// Operations that were due and never begun.
    pub fn never_begun(&self) -> u64 {
        self.never_begun.iter().sum()
    }

    /// Adds what another thread has counted.
    pub fn add(&mut self, other: &Tally) {
        for op in Op::ALL {
            if let Some(theirs) = &other.histograms[op as usize] {
                // Both have the same bounds, so nothing is out of range.
                let _ = self.of(op).add(theirs);
            }
            self.never_begun[op as usize] += other.never_begun[op as usize];
        }
        self.user_bytes_written += other.user_bytes_written;
        self.scanned += other.scanned;
        self.cpu_seconds += other.cpu_seconds;
        self.ended = self.ended.max(other.ended);
    }

    /// Operations performed.
    pub fn ops(&self) -> u64 {
        self.histograms.iter().flatten().map(Histogram::len).sum::<u64>() - self.never_begun()
    }

    /// Bytes of memory that the histograms take.
    pub fn memory_bytes(&self) -> u64 {
        self.histograms.iter().flatten().map(|histogram| histogram.distinct_values() as u64 * 8).sum()
    }

    /// Latencies of the operations that there were.
    pub fn latencies(&self) -> Vec<Latency> {
        let us = |ns: u64| ns as f64 / 1e3;
        let mut latencies = Vec::new();
        for op in Op::ALL {
            let Some(histogram) = &self.histograms[op as usize] else { continue };
            let cdf = histogram
                .iter_quantiles(TICKS)
                .map(|step| (us(step.value_iterated_to()), step.quantile()))
                .collect();
            latencies.push(Latency {
                op,
                count: histogram.len(),
                never_begun: self.never_begun[op as usize],
                average_us: histogram.mean() / 1e3,
                p50_us: us(histogram.value_at_quantile(0.5)),
                p99_us: us(histogram.value_at_quantile(0.99)),
                p999_us: us(histogram.value_at_quantile(0.999)),
                max_us: us(histogram.max()),
                cdf,
            });
        }
        latencies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_all_threads_together() {
        let (mut one, mut other) = (Tally::new(), Tally::new());
        (1..=500).for_each(|us| one.record(Op::Read, Duration::from_micros(us)));
        (501..=1000).for_each(|us| other.record(Op::Read, Duration::from_micros(us)));
        other.record(Op::Update, Duration::from_secs(10_000));
        one.add(&other);
        assert_eq!(one.ops(), 1001);
        other.record_never_begun(Op::Scan, Duration::from_secs(1));
        let mut all = Tally::new();
        all.add(&other);
        assert_eq!((all.ops(), all.never_begun()), (501, 1));
        let of =
            |op: Op| all.latencies().into_iter().find(|latency| latency.op == op).map(|own| own.never_begun);
        assert_eq!((of(Op::Scan), of(Op::Read)), (Some(1), Some(0)));
        let latencies = one.latencies();
        let read = &latencies[0];
        let near = |found: f64, expected: f64| (found - expected).abs() <= expected * 0.002;
        assert!(
            near(read.p50_us, 500.0) && near(read.p99_us, 990.0) && near(read.p999_us, 999.0),
            "{read:?}"
        );
        assert!(near(read.average_us, 500.5) && near(read.max_us, 1000.0), "{read:?}");
        assert!(near(latencies[1].max_us, 600e6), "too long to tell is still counted");
        assert!(read.cdf.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1));
    }

    #[test]
    fn operations_of_all_kinds_together_have_one_distribution() {
        let mut tally = Tally::new();
        (1..=60).for_each(|us| tally.record(Op::Read, Duration::from_micros(us)));
        (61..=100).for_each(|us| tally.record(Op::Update, Duration::from_micros(us)));
        let latencies = tally.latencies();
        for share in [0.1, 0.5, 0.6, 0.61, 0.99, 1.0] {
            let us = within(&latencies, share).expect("there are operations");
            // As fine as the points of the two distributions are.
            assert!((share * 100.0 - 1.0..share * 100.0 + 6.0).contains(&us), "{share}: {us}");
        }
        let reads = &latencies[..1];
        assert_eq!(within(reads, 0.5), Some(reads[0].p50_us));
        assert_eq!(within(&[], 0.5), None);
    }
}
