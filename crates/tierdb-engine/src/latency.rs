//! How long operations take: one in 16 of each thread's of each kind is measured, beginning with any of the first 16.

use crate::stats::LatencyStats;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
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
    /// By operation. They begin anywhere, so that of many threads which do little each some is measured.
    static TURNS: [Cell<u32>; NAMES.len()] = {
        let random = RandomState::new();
        std::array::from_fn(|which| Cell::new(random.hash_one(which) as u32))
    };
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
        let turn = TURNS.with(|turns| {
            let turn = &turns[which as usize];
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
    fn all_kinds_are_measured_that_take_turns_and_those_of_short_threads() {
        let latencies = Latencies::new();
        let nothing = |which| latencies.measure(which, || std::hint::black_box(()));
        (0..800).for_each(|_| [Timed::Get, Timed::Put].into_iter().for_each(nothing));
        std::thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| (0..4).for_each(|_| nothing(Timed::Delete)));
            }
        });
        let counts: Vec<u64> = latencies.stats().iter().map(|(_, stats)| stats.count).collect();
        assert_eq!(counts[..2], [50, 50]);
        // 16 on average; none once in a hundred million times.
        assert!(counts[2] > 0);
    }

    #[test]
    fn one_in_sixteen_is_measured() {
        let latencies = Latencies::new();
        (0..160).for_each(|_| latencies.measure(Timed::Put, || std::hint::black_box(())));
        let stats = latencies.stats();
        assert_eq!((stats[1].0, stats[1].1.count), ("put", 10));
        assert!(stats[1].1.p50_ns <= stats[1].1.p99_ns && stats[1].1.p99_ns <= stats[1].1.max_ns);
    }
}
