//! Settings of the slab engine.

use super::text::size;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use tierdb_base::{ByteSize, Error, Result};

/// Settings of the slab engine. The defaults are what was measured to be best here; several are not PrismDB's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Slab {
    /// How many of the keys that are tracked stay on the fast tier, in percent: 0 to 100, or `"auto"`. Default 7.
    ///
    /// With `"auto"` it is looked for while the store runs: a step up or down at a time, as long as the throughput that reads
    /// from flash and writes of tables leave, divided by one plus the bytes of tables for each byte that callers write, gets
    /// more. Copies of what flash has are kept of more keys where less is written. Lower it where flash is written too much for
    /// too few keys (`tierdb stat`: flash bytes a key), raise it where flash serves too many reads.
    /// *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinning_threshold: Option<PinningThreshold>,
    /// Keys that are tracked, in percent of those that the fast tier holds, each as long as they are on average when the store is opened,
    /// and 1 KiB with its value where there are fewer than 1,024. Default 300, 1..=4000.
    ///
    /// Raise it in a new store whose entries will be much smaller than 1 KiB, or open it again once there are some. A tracked key takes 4.1
    /// bytes of `memory`, all of them a tenth of it at the most. *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracked_pct: Option<u16>,
    /// What brings keys that are popular to the fast tier. Default [`Promotion::OnRead`].
    ///
    /// *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promotion: Option<Promotion>,
    /// Fill of the fast tier, in percent, at which keys start to move to flash. Default 98, 50..=99.
    ///
    /// Lower it if writers stall (`Stats::stall_ns`). *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrate_at_pct: Option<u8>,
    /// Fill at which that ends. Default 3 less than where it starts; at least 1, and below it.
    ///
    /// *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrate_to_pct: Option<u8>,
    /// Partitions that are migrated at once where writers are held back for room, each by a thread of its own; half as many, rounded up,
    /// otherwise, which writes less to flash. Default half of the processors, 2 to 8; 1..=64.
    ///
    /// Raise it if writers stall (`Stats::stall_ns`) while flash and processors are idle. *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration_threads: Option<u8>,
    /// Bytes that migrations read from flash and write to it in a second, all of them together (`"64 MiB"`). Default: any; at least 64 KiB.
    ///
    /// Set it where reads wait for a flash that migrations keep busy. It is exceeded while somebody waits for what they do: a
    /// writer that finds no room (`Stats::stall_ns`), or who has called `flush` or `compact`. *Takes effect on open.*
    #[serde(default, with = "size::optional", skip_serializing_if = "Option::is_none")]
    pub migration_rate: Option<ByteSize>,
    /// Most of the fast tier, in percent, that copies of tables' indexes and filters take. Default 12, 0..=50.
    ///
    /// An open that finds them there reads no table, and what leaves `memory` is read from there again. Where the fast tier is a block
    /// device, or is not there, none are made. *Takes effect on open,* for tables that are written from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_parts_pct: Option<u8>,
    /// Most levels of tables on flash. Default: as many as the capacities call for; 1..=4.
    ///
    /// The first level may become ten times as large as the fast tier, each further one ten times as large as the one before, and what is
    /// more is in the last one. So where flash is no more than ten times as large as the fast tier there is one level, but two at least
    /// on a block fast tier with records in memory, which has the first. With `1` there is one in any case, and no table on such a tier:
    /// a read looks into one table less, and each key that moves to flash rewrites more of it. A store that has tables in a deeper
    /// level keeps that. *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub levels: Option<u8>,
    /// Consecutive tables whose key ranges are migrated as one to make room (`i` of PrismDB §4.4.1). Default 1, 1..=16.
    ///
    /// Raise it where tables are small, or popular keys lie evenly among the others. A migration then rewrites so many tables at once,
    /// and takes that much more room and time; where there is not so much room, one table at a time. *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range_tables: Option<u8>,
    /// How long what a migration brings to flash has to be for the tables of its range to stay as they are, in percent of these. Default 5, 0..=99.
    ///
    /// What is as long waits beside them, twice, and is merged with them together with what comes third: about half as many bytes are
    /// written, a sixth more space was in use in all (at the most flash has nearly three times what it holds), and a read or scan looks into one
    /// or two tables more. Where flash has less than a quarter of its room left, while tables of the first level lie on a block fast tier, and with `0`, all is merged as it comes, as in the paper. *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmerged_pct: Option<u8>,
    /// Bytes of a table, about. Default a sixteenth of what records take of the fast tier, 256 KiB to 8 MiB; 16 KiB to 1 GiB.
    ///
    /// *Takes effect on open,* for tables that are written from then on.
    #[serde(default, with = "size::optional", skip_serializing_if = "Option::is_none")]
    pub table_size: Option<ByteSize>,
    /// Where the records of a fast tier are that is a block device. Default [`Records::Memory`].
    ///
    /// Means nothing for another fast tier. *Creation only.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<Records>,
}

impl Slab {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn validate(&self) -> Result<()> {
        let check = |ok: bool, what: &str| if ok { Ok(()) } else { Err(Error::invalid(what)) };
        let too_much = |of: PinningThreshold| matches!(of, PinningThreshold::Percent(pct) if pct > 100);
        check(
            !self.pinning_threshold.is_some_and(too_much),
            "slab.pinning_threshold: must be \"auto\" or 0 to 100",
        )?;
        check(
            self.tracked_pct.is_none_or(|pct| (1..=4000).contains(&pct)),
            "slab.tracked_pct: must be 1 to 4,000",
        )?;
        check(
            self.migrate_at_pct.is_none_or(|pct| (50..=99).contains(&pct)),
            "slab.migrate_at_pct: must be 50 to 99",
        )?;
        let start = self.migrate_at_pct.unwrap_or(98);
        check(
            self.migrate_to_pct.is_none_or(|pct| (1..start).contains(&pct)),
            "slab.migrate_to_pct: must be at least 1, and below slab.migrate_at_pct, which is 98 if it is not set",
        )?;
        check(
            self.migration_threads.is_none_or(|threads| (1..=64).contains(&threads)),
            "slab.migration_threads: must be 1 to 64",
        )?;
        check(
            self.migration_rate.is_none_or(|rate| rate >= ByteSize::kib(64)),
            "slab.migration_rate: must be at least 64 KiB (a second)",
        )?;
        check(self.table_parts_pct.is_none_or(|pct| pct <= 50), "slab.table_parts_pct: must be 0 to 50")?;
        check(self.levels.is_none_or(|levels| (1..=4).contains(&levels)), "slab.levels: must be 1 to 4")?;
        check(
            self.range_tables.is_none_or(|tables| (1..=16).contains(&tables)),
            "slab.range_tables: must be 1 to 16",
        )?;
        check(self.unmerged_pct.is_none_or(|pct| pct <= 99), "slab.unmerged_pct: must be 0 to 99")?;
        let sizes = ByteSize::kib(16)..=ByteSize::gib(1);
        check(
            self.table_size.is_none_or(|size| sizes.contains(&size)),
            "slab.table_size: must be 16 KiB to 1 GiB",
        )
    }

    /// Sets what is set here.
    pub(crate) fn apply(&self, options: &mut tierdb_slab::Options) {
        if let Some(threshold) = self.pinning_threshold {
            options.pinned_pct = match threshold {
                PinningThreshold::Percent(pct) => Some(pct),
                PinningThreshold::Auto => None,
            };
        }
        if let Some(promotion) = self.promotion {
            options.promotion = match promotion {
                Promotion::OnRead => tierdb_slab::Promotion::OnRead,
                Promotion::ByMigration => tierdb_slab::Promotion::ByMigration,
            };
        }
        options.tracked_pct = self.tracked_pct.unwrap_or(options.tracked_pct);
        if let Some(start) = self.migrate_at_pct {
            (options.high_pct, options.low_pct) = (start, start - 3);
        }
        options.low_pct = self.migrate_to_pct.unwrap_or(options.low_pct);
        options.migration_threads = self.migration_threads.map_or(options.migration_threads, usize::from);
        options.migration_rate = self.migration_rate.map(ByteSize::bytes).or(options.migration_rate);
        options.table_parts_pct = self.table_parts_pct.unwrap_or(options.table_parts_pct);
        options.levels = self.levels.or(options.levels);
        options.range_tables = self.range_tables.unwrap_or(options.range_tables);
        options.unmerged_pct = self.unmerged_pct.unwrap_or(options.unmerged_pct);
        options.table_bytes = self.table_size.map_or(options.table_bytes, ByteSize::bytes);
    }
}

/// What brings keys that are popular, and on flash only, to the fast tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Promotion {
    /// A read: a copy of the value that it has just read is kept there. So do migrations that make room.
    OnRead,
    /// Migrations alone, as in the paper (PrismDB §4.4.4): where hardly anything is written, reads make them begin for an epoch of a
    /// million operations, as long as that helps. Each rewrites a table.
    ByMigration,
}

/// Where the records of a fast tier are that is a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Records {
    /// In `memory`, with an image on the device; so they take a sixth of it at the most, and popular keys that have no room are in tables
    /// there.
    Memory,
    /// In slots on the device (PrismDB §4.1), all of it but a log and some to spare: they are read from there, but for the hottest. Less
    /// is written to flash, and more reads do without it.
    Device,
}

/// How many of the tracked keys stay on the fast tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinningThreshold {
    /// So many in a hundred.
    Percent(u8),
    /// As many as turn out best.
    Auto,
}

impl Serialize for PinningThreshold {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            PinningThreshold::Percent(pct) => to.serialize_u8(*pct),
            PinningThreshold::Auto => to.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for PinningThreshold {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Written;
        impl de::Visitor<'_> for Written {
            type Value = PinningThreshold;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pinning threshold: a whole number from 0 to 100, or \"auto\"")
            }

            fn visit_i64<E: de::Error>(self, pct: i64) -> Result<PinningThreshold, E> {
                let unexpected = de::Unexpected::Signed(pct);
                let pct = u8::try_from(pct).ok().filter(|pct| *pct <= 100);
                pct.map(PinningThreshold::Percent).ok_or_else(|| E::invalid_value(unexpected, &self))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PinningThreshold, E> {
                match text {
                    "auto" => Ok(PinningThreshold::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        from.deserialize_any(Written)
    }
}
