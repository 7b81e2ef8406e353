//! How long operations take: one in 16 of each thread's is measured.

use crate::stats::LatencyStats;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::cell::Cell;
use std::time::Instant;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Timed {
    /// One value is read.
    Get,
    /// One value is written.
    Put,
    /// One key is removed.
    Delete,
    /// A batch is written.
    Batch,
}

const NAMES: [&str; 4] = ["get", "put", "delete", "batch"];
/// Longest time that is told apart: a minute.
const LONGEST_NS: u64 = 60_000_000_000;
const SAMPLE: u32 = 16;

thread_local! {
    static TURN: Cell<u32> = const { Cell::new(0) };
}

/// Histograms of all measured operations, to two digits.
pub struct Latencies(Vec<Mutex<Histogram<u64>>>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// Nothing measured yet.
    pub fn new() -> Self {
        // The bounds are constants that the histogram accepts, so none is missing.
        let histograms = NAMES.iter().filter_map(|_| Histogram::new_with_max(LONGEST_NS, 2).ok());
        Latencies(histograms.map(Mutex::new).collect())
    }

    /// Does `work`, and measures it if it is its turn.
    #[inline]
    pub fn measure<T>(&self, which: Timed, work: impl FnOnce() -> T) -> T {
        let turn = TURN.with(|turn| {
            let now = turn.get().wrapping_add(1);
            turn.set(now);
            now
        });
        if !turn.is_multiple_of(SAMPLE) {
            return work();
        }
        let start = Instant::now();
        let result = work();
        let ns = start.elapsed().as_nanos() as u64;
        self.0[which as usize].lock().saturating_record(ns);
        result
    }

    /// What was measured, by operation.
    pub fn stats(&self) -> Vec<(&'static str, LatencyStats)> {
        let one = |histogram: &Mutex<Histogram<u64>>| {
            let h = histogram.lock();
            LatencyStats {
                count: h.len(),
                mean_ns: h.mean() as u64,
                p50_ns: h.value_at_quantile(0.5),
                p99_ns: h.value_at_quantile(0.99),
                max_ns: h.max(),
            }
        };
        NAMES.iter().zip(&self.0).map(|(name, histogram)| (*name, one(histogram))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_sixteen_is_measured() {
        let latencies = Latencies::new();
        (0..160).for_each(|_| latencies.measure(Timed::Put, || std::hint::black_box(())));
        let stats = latencies.stats();
        assert_eq!((stats[1].0, stats[1].1.count), ("put", 10));
        assert!(stats[1].1.p50_ns <= stats[1].1.p99_ns && stats[1].1.p99_ns <= stats[1].1.max_ns);
    }
}
