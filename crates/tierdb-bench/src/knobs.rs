//! What an experiment changes about a store beside its sizes. An experiment on a system that has no such knob is refused.

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
    /// Keys that would leave for each that is written, from exact counts and a sample of up to 256 keys: not the paper's.
    SampledM,
    /// The same from the paper's buckets.
    ApproxM,
    /// The same from every key.
    PreciseM,
    /// The number of unpopular keys.
    MaxUnpop,
}

impl Metric {
    /// Its name, in the paper where that has it.
    pub fn name(self) -> &'static str {
        match self {
            Metric::SampledM => "sampled-M",
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
    /// Percent of flash that may be garbage.
    pub garbage_pct: Option<u8>,
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
    /// Popular keys come to the fast tier by migrations alone, as in the paper (PrismDB §4.4.4).
    pub promotes_by_migration: bool,
    /// Keys that are tracked, in percent of those that the fast tier would hold at their average length (in a new store 1 KiB).
    pub tracked_pct: Option<u16>,
    /// Partitions of the key space.
    pub partitions: Option<u32>,
    /// Most levels of tables on flash.
    pub levels: Option<u8>,
    /// How long what a migration brings to flash has to be for the tables of its range to stay as they are, in percent of these; never with 0,
    /// as in the paper.
    pub unmerged_pct: Option<u8>,
    /// Bytes of a table on flash.
    pub table_bytes: Option<u64>,
    /// The store is smaller than a configuration allows.
    pub below_least: bool,
}

impl Knobs {
    /// Whether some of them are an engine's own, which no configuration file sets: the store is then opened below it.
    pub fn are_internal(&self) -> bool {
        self.batching.is_some() || self.of_slab().is_some()
    }

    /// One that is set and that every engine has.
    pub fn of_any_engine(&self) -> Option<&'static str> {
        first(&[
            (self.flash_dirs.is_some(), "flash directories"),
            (self.flash_bytes.is_some(), "space on flash"),
            (self.batching.is_some(), "how reads go together"),
        ])
    }

    /// One that is set and that the valuelog engine alone has.
    pub fn of_valuelog(&self) -> Option<&'static str> {
        first(&[
            (self.write_buffer.is_some(), "the write buffer"),
            (self.garbage_pct.is_some(), "how much of flash may be garbage"),
        ])
    }

    /// One that is set and that the slab engine alone has.
    pub fn of_slab(&self) -> Option<&'static str> {
        first(&[
            (self.metric.is_some(), "the metric of migration"),
            (self.choices.is_some(), "how many ranges are compared"),
            (self.pinned.is_some(), "the pinning threshold"),
            (self.copied_pct.is_some(), "the share of copies"),
            (self.promotes_by_migration, "what brings popular keys to the fast tier"),
            (self.tracked_pct.is_some(), "how many keys are tracked"),
            (self.partitions.is_some(), "partitions"),
            (self.levels.is_some(), "levels of tables"),
            (self.unmerged_pct.is_some(), "what is merged later"),
            (self.table_bytes.is_some(), "the size of tables"),
            (self.below_least, "a size below the least"),
        ])
    }

    /// The directories on flash of a store in `dir`.
    pub fn flash_dirs(&self, dir: &std::path::Path) -> Vec<PathBuf> {
        match self.flash_dirs {
            None | Some(0 | 1) => vec![dir.to_owned()],
            Some(several) => (1..=several).map(|number| dir.join(number.to_string())).collect(),
        }
    }
}

/// The first that is set.
fn first(knobs: &[(bool, &'static str)]) -> Option<&'static str> {
    knobs.iter().find(|(set, _)| *set).map(|(_, name)| *name)
}
