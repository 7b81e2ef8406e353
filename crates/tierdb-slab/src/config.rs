//! How the engine is set up: sizes and thresholds.

use crate::levels::{FIRST, Level, MOST};
use crate::tune::USUALLY_PINNED;
use std::ops::RangeInclusive;
use tierdb_base::{Error, Result, processors};
use tierdb_engine::Background;

/// Bytes of a slab: powers of two of this range.
pub(crate) const SLAB_BYTES: RangeInclusive<u64> = 8 << 10..=4 << 20;

/// What scores the ranges that may be migrated (PrismDB §4.4, §5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// The migration metric M from counts that are kept up to date, and some of the range's keys.
    SampledM,
    /// M from buckets: a count, a bitmap of what was read, and a moving average of the overlap for the range of each table.
    ApproxM,
    /// M from every key of the range.
    PreciseM,
    /// The number of unpopular keys alone.
    MaxUnpopular,
}

/// What brings keys that are popular, and on flash only, to the fast tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promotion {
    /// A read: the value that was just read is copied. And migrations for space.
    OnRead,
    /// Migrations only, for space and, where hardly anything is written, triggered by reads (PrismDB §4.4.4).
    ByMigration,
}

/// Sizes and thresholds. Those marked *format* are fixed when the store is created and read back on open.
#[derive(Clone, Debug)]
pub struct Options {
    /// Everything the engine holds in DRAM, in bytes; the object cache gets what the rest leaves.
    pub memory: u64,
    /// Bytes of a slab: a power of two, 8 KiB to 4 MiB. *Format.*
    pub slab_bytes: u64,
    /// Number of partitions, 1 to 256. Default: four for each processor, at most 64: who holds the lock of one may lose its processor.
    pub partitions: u32,
    /// Bytes of a flash table, about. Default a sixteenth of the pool, 256 KiB to 8 MiB; 16 KiB to 1 GiB.
    pub table_bytes: u64,
    /// Tables whose files are kept open, at the most: a system has a limit of its own for a process. Default 400, at least 16.
    pub open_tables: u32,
    /// Fill of the fast tier, in percent, at which migration to flash starts. Default 98 (PrismDB §4.2), 50..=99.
    pub high_pct: u8,
    /// Fill at which it stops. Default 95, below `high_pct`.
    pub low_pct: u8,
    /// Share of the tracked keys, in percent, that are popular enough to stay: 0..=100, or `None` to look for the best
    /// by hill climbing on reads from flash and writes to it. Default 7, of six times as many keys as PrismDB (§6: 70).
    pub pinned_pct: Option<u8>,
    /// Share of the tracked keys, in percent, of which the fast tier keeps clean copies, if more than are pinned: 0..=100. Default
    /// `None`: where there are only reads, nearly as many as it has keys, the fewer the more is written.
    pub copied_pct: Option<u8>,
    /// Most bytes a day that are written to each flash directory, in their order; any to one for which there is `None`, or
    /// nothing at all. Default: nothing. When all directories that are not full have spent theirs, nothing is migrated; the fast tier
    /// fills up, from `high_pct` on writers are slowed down, and only writers that find no room at all make it be exceeded.
    pub flash_bytes_per_day: Vec<Option<u64>>,
    /// Keys that are tracked, in percent of those that the fast tier holds, each as long as they are on average when the store is opened (1
    /// KiB where there are fewer than 1,024): 1 to 4,000. Default 300. A tracked key takes 4.1 bytes of DRAM; all of them a tenth of `memory` at
    /// the most.
    pub tracked_pct: u16,
    /// Most of the fast tier, in percent, that copies of tables' indexes and filters take: 0 to 50. Default 12; none are made where
    /// the pool is DRAM itself.
    pub table_parts_pct: u8,
    /// What scores the ranges that may be migrated. Default `ApproxM`, as in the paper.
    pub metric: Metric,
    /// Ranges that are compared for a migration. Default 64, since buckets are compared at hardly any cost (PrismDB §5.3: 8); 0 compares
    /// all.
    pub choices: u32,
    /// Consecutive tables of a range that may be migrated to make room. Default 1 (PrismDB §4.4.1), 1..=16. Where there is no room to
    /// rewrite several at once, ranges of one are.
    pub range_tables: u8,
    /// What brings popular keys to the fast tier. Default `OnRead`.
    pub promotion: Promotion,
    /// How many keys a migration is to bring to flash for each that it rewrites, as long as space can be had by dropping copies: in
    /// percent of what it would bring if the fast tier held nothing else. 0 to 100, default 90.
    pub least_yield_pct: u8,
    /// A migration leaves the tables of its range as they are if what it brings to flash is as long as this share of them, in percent, or
    /// longer, but not as long as they are; the next one merges it with them. 0 to 99, default 5; 0 merges all as it comes, as the paper
    /// does. Not where flash has less than a quarter of its room left.
    pub unmerged_pct: u8,
    /// Most levels of tables, 1 to 4. Default: as many as the capacities call for when the store is opened; one where flash is no larger than
    /// the first level may be (PrismDB §4.1), but two where a fast device has room for tables, which is not used with one. A store that
    /// has tables in a deeper level keeps that.
    pub levels: Option<u8>,
    /// How large the first level that is on flash may become before tables of it are merged into the next one, in percent of the fast tier
    /// (with the tables there, if any): 1 to 10,000. Default 1,000.
    pub first_level_pct: u16,
    /// How many times as large as the one before each further level may become, but for the last: 2 to 100. Default 10.
    pub level_growth: u8,
    /// Partitions that are migrated at once where writers are held back for room, each by a thread of its own, and half as many
    /// otherwise: at least 1. Default: half of the processors, 2 to 8.
    pub migration_threads: usize,
    /// Bytes that migrations read from flash and write to it in a second, all together, unless somebody waits for what they do: a
    /// writer for room, or who has called `flush` or `compact`. Default: any.
    pub migration_rate: Option<u64>,
    /// Threads for recovery. Default: the processors.
    pub recovery_threads: usize,
    /// Who does background work.
    pub background: Background,
}

impl Options {
    /// Defaults for `memory` bytes of DRAM and a pool of `pool_len` bytes.
    pub fn for_pool(memory: u64, pool_len: u64) -> Self {
        let cores = processors();
        let slab_bytes = (pool_len / 512).clamp(16 << 10, 256 << 10).next_power_of_two().min(256 << 10);
        Options {
            memory,
            slab_bytes,
            partitions: (4 * cores).min(64) as u32,
            table_bytes: (pool_len / 16).clamp(256 << 10, 8 << 20),
            open_tables: 400,
            high_pct: 98,
            low_pct: 95,
            pinned_pct: Some(USUALLY_PINNED),
            copied_pct: None,
            flash_bytes_per_day: Vec::new(),
            tracked_pct: 300,
            table_parts_pct: 12,
            metric: Metric::ApproxM,
            choices: 64,
            range_tables: 1,
            promotion: Promotion::OnRead,
            least_yield_pct: 90,
            unmerged_pct: 5,
            levels: None,
            first_level_pct: 1000,
            level_growth: 10,
            migration_threads: (cores / 2).clamp(2, 8),
            migration_rate: None,
            recovery_threads: cores,
            background: Background::Threads,
        }
    }

    /// Bytes that the tables of `level` may take, if it is not the last, where the fast tier holds `fast` bytes of records and is to hold
    /// `tables` bytes of tables. If that is any, these are the first level, and the second is to it what the first is to the records
    /// otherwise.
    pub(crate) fn level_size(&self, level: Level, fast: u64, tables: u64) -> u64 {
        let first_below = if tables > 0 { FIRST + 1 } else { FIRST };
        if level < first_below {
            return tables;
        }
        let growth = u64::from(self.level_growth).saturating_pow((level - first_below).unsigned_abs().into());
        (fast.saturating_add(tables) / 100)
            .saturating_mul(u64::from(self.first_level_pct))
            .saturating_mul(growth)
    }

    /// Refuses values out of range, naming the field and the range.
    pub fn validate(&self) -> Result<()> {
        let check = |ok: bool, what: &str| if ok { Ok(()) } else { Err(Error::invalid(what)) };
        check(
            self.slab_bytes.is_power_of_two() && SLAB_BYTES.contains(&self.slab_bytes),
            "slab_bytes must be a power of two from 8 KiB to 4 MiB",
        )?;
        check((1..=256).contains(&self.partitions), "partitions must be 1 to 256")?;
        check((16 << 10..=1 << 30).contains(&self.table_bytes), "table_bytes must be from 16 KiB to 1 GiB")?;
        check(self.open_tables >= 16, "open_tables must be at least 16")?;
        check((50..=99).contains(&self.high_pct), "high_pct must be 50 to 99")?;
        check((1..self.high_pct).contains(&self.low_pct), "low_pct must be at least 1, and below high_pct")?;
        check(self.pinned_pct.is_none_or(|pct| pct <= 100), "pinned_pct must be 0 to 100")?;
        check(self.copied_pct.is_none_or(|pct| pct <= 100), "copied_pct must be 0 to 100")?;
        check((1..=4000).contains(&self.tracked_pct), "tracked_pct must be 1 to 4,000")?;
        check(self.table_parts_pct <= 50, "table_parts_pct must be 0 to 50")?;
        check((1..=16).contains(&self.range_tables), "range_tables must be 1 to 16")?;
        check(self.least_yield_pct <= 100, "least_yield_pct must be 0 to 100")?;
        check(self.unmerged_pct <= 99, "unmerged_pct must be 0 to 99")?;
        check(
            self.levels.is_none_or(|levels| (1..=MOST.unsigned_abs()).contains(&levels)),
            "levels must be 1 to 4",
        )?;
        check((1..=10_000).contains(&self.first_level_pct), "first_level_pct must be 1 to 10,000")?;
        check((2..=100).contains(&self.level_growth), "level_growth must be 2 to 100")?;
        check(self.migration_threads >= 1, "migration_threads must be at least 1")?;
        check(self.migration_rate != Some(0), "migration_rate must be at least 1")?;
        check(self.recovery_threads >= 1, "recovery_threads must be at least 1")
    }
}
