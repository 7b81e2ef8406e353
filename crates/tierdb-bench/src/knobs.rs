//! What an experiment changes about a store beside its sizes. A system that has no such knob is as it always is.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// How reads of several threads go to flash (PRISM §5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batching {
    /// Most reads that go together.
    pub depth: usize,
    /// Microseconds that a batch waits to fill; without it reads are combined that are there anyway.
    pub window_us: Option<u64>,
}

/// What scores the key ranges that may be migrated (PrismDB §5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Keys that would leave for each that is written, from counts and a sample.
    ApproxM,
    /// The same from every key.
    PreciseM,
    /// The number of unpopular keys.
    MaxUnpop,
}

impl Metric {
    /// Its name in the paper.
    pub fn name(self) -> &'static str {
        match self {
            Metric::ApproxM => "approx-M",
            Metric::PreciseM => "precise-M",
            Metric::MaxUnpop => "max-unpop",
        }
    }
}

/// Which share of the tracked keys stays on the fast tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pinned {
    /// This many percent.
    Percent(u8),
    /// What the store finds to be best.
    Sought,
}

/// What an experiment changes. Nothing, by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Knobs {
    /// Directories on flash, if it is to be more than the one.
    pub flash_dirs: Option<usize>,
    /// Most bytes in each.
    pub flash_bytes: Option<u64>,
    /// Bytes of the write buffer.
    pub write_buffer: Option<u64>,
    /// How reads go to flash.
    pub batching: Option<Batching>,
    /// What scores ranges for migration.
    pub metric: Option<Metric>,
    /// Ranges that are compared for a migration; 0 compares all.
    pub choices: Option<u32>,
    /// What stays on the fast tier.
    pub pinned: Option<Pinned>,
    /// The share of the tracked keys, in percent, of which the fast tier keeps clean copies.
    pub copied_pct: Option<u8>,
    /// Keys that are tracked, in percent of those that the fast tier would hold if each took 1 KiB.
    pub tracked_pct: Option<u16>,
    /// Partitions of the key space.
    pub partitions: Option<u32>,
    /// Most levels of tables on flash.
    pub levels: Option<u8>,
    /// Bytes of a table on flash.
    pub table_bytes: Option<u64>,
    /// The store is smaller than a configuration allows.
    pub below_least: bool,
}

impl Knobs {
    /// Whether some of them are an engine's own, which no configuration file sets: the store is then opened below it.
    pub fn are_internal(&self) -> bool {
        self.batching.is_some()
            || self.metric.is_some()
            || self.choices.is_some()
            || self.pinned.is_some()
            || self.copied_pct.is_some()
            || self.tracked_pct.is_some()
            || self.partitions.is_some()
            || self.levels.is_some()
            || self.table_bytes.is_some()
            || self.below_least
    }

    /// The directories on flash of a store in `dir`.
    pub fn flash_dirs(&self, dir: &std::path::Path) -> Vec<PathBuf> {
        match self.flash_dirs {
            None | Some(0 | 1) => vec![dir.to_owned()],
            Some(several) => (1..=several).map(|number| dir.join(number.to_string())).collect(),
        }
    }
}
