//! The result of a run: what was measured, on what, and how much it varied.

use crate::case::Outcome;
use crate::machine::Machine;
use crate::phase::Measured;
use crate::reference::Reference;
use crate::table::grouped;
use crate::tally::Latency;
use crate::workload::Op;
use serde::{Deserialize, Serialize};
use tierdb::ByteSize;

/// What was the same for all cases of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Settings {
    /// Keys loaded.
    pub keys: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Sizes of values, in words.
    pub values: String,
    /// Bytes of keys and values loaded.
    pub data_bytes: u64,
    /// Memory that each store may use.
    pub memory: u64,
    /// Bytes that each store may use on the fast tier.
    pub fast_bytes: u64,
    /// The same of cases that have others, in words.
    #[serde(default)]
    pub others: Vec<String>,
    /// The file systems and devices that stores lived on, by tier and system.
    pub places: Vec<(String, String)>,
    /// What was imitated, in words.
    pub emulation: String,
    /// Whether a control group held the memory of each case, in words.
    #[serde(default)]
    pub group: String,
    /// Warm-up and length of each phase, in words.
    pub length: String,
    /// How often each case was run; systems take turns.
    pub repeats: usize,
    /// How each system is set up.
    pub systems: Vec<(String, String)>,
    /// What flash does by itself, where that was asked for.
    #[serde(default)]
    pub reference: Option<Reference>,
}

impl Settings {
    /// How much is stored, and what a store may use for it, in words.
    pub fn sizes(&self) -> String {
        format!(
            "{} keys of {} B, values {}: {}; memory {}, fast tier {}",
            grouped(self.keys),
            self.key_bytes,
            self.values,
            ByteSize(self.data_bytes),
            ByteSize(self.memory),
            ByteSize(self.fast_bytes),
        )
    }
}

/// A run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// What was run, in a line.
    pub title: String,
    /// Where.
    pub machine: Machine,
    /// How.
    pub settings: Settings,
    /// Every case.
    pub cases: Vec<Repeated>,
    /// Cases that failed, and why.
    pub failures: Vec<String>,
}

/// A case, once for each repetition.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Repeated {
    /// What sets it apart from other cases of the same system, durability and threads, or nothing.
    pub label: String,
    /// Its outcomes.
    pub runs: Vec<Outcome>,
}

/// The middle of several figures, and how far they lie apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Spread {
    /// Of `figures`; `None` if there are none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut figures: Vec<f64> = figures.into_iter().filter(|figure| figure.is_finite()).collect();
        figures.sort_by(f64::total_cmp);
        let (low, high) = (*figures.first()?, *figures.last()?);
        let half = figures.len() / 2;
        let median = if figures.len().is_multiple_of(2) {
            (figures[half - 1] + figures[half]) / 2.0
        } else {
            figures[half]
        };
        Some(Spread { median, low, high })
    }

    /// Half the distance of the extremes, as a share of the median: what `±` stands for.
    pub fn relative(self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.high - self.low) / 2.0 / self.median }
    }
}

/// So many threads, for people.
pub fn threads_text(threads: usize) -> String {
    if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") }
}

impl Repeated {
    /// The first run, which says what the case was.
    pub fn first(&self) -> &Outcome {
        const NONE: &Outcome = &Outcome {
            system: String::new(),
            mode: String::new(),
            durability: String::new(),
            threads: 0,
            phases: Vec::new(),
            space: crate::case::Space {
                keys: 0,
                user_bytes: 0,
                fast_bytes: 0,
                flash_bytes: 0,
                amplification: 0.0,
                parts: Vec::new(),
            },
            close_seconds: 0.0,
            open_seconds: None,
            recover_seconds: None,
            idle_cores: None,
        };
        self.runs.first().unwrap_or(NONE)
    }

    /// The system, durability and threads in a line.
    pub fn name(&self) -> String {
        let first = self.first();
        let threads = threads_text(first.threads);
        let label = if self.label.is_empty() { String::new() } else { format!(", {}", self.label) };
        format!("{}, {}, {threads}{label}", first.system, first.durability)
    }

    /// A figure of the case over all repetitions.
    pub fn figure(&self, of: impl Fn(&Outcome) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.runs.iter().filter_map(of))
    }

    /// A figure of phase number `index` over all repetitions.
    pub fn phase(&self, index: usize, of: impl Fn(&Measured) -> Option<f64>) -> Option<Spread> {
        self.figure(|run| of(run.phases.get(index)?))
    }

    /// A latency of `op` in phase number `index` over all repetitions.
    pub fn latency(&self, index: usize, op: Op, of: impl Fn(&Latency) -> f64) -> Option<Spread> {
        self.phase(index, |phase| phase.latencies.iter().find(|latency| latency.op == op).map(&of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_the_spread_its_distance() {
        let odd = Spread::of([3.0, 1.0, 2.0]).expect("figures");
        assert_eq!((odd.median, odd.low, odd.high, odd.relative()), (2.0, 1.0, 3.0, 0.5));
        assert_eq!(Spread::of([1.0, 2.0]).map(|spread| spread.median), Some(1.5));
        assert_eq!(Spread::of([]), None);
    }
}
