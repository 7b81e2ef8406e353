//! Stores on simulated media, for the engine's suites.

use tierdb_base::Result;
use tierdb_engine::conformance::Limits;
pub use tierdb_engine::conformance::harm::rig::SEED;
use tierdb_engine::conformance::harm::{MediaSizes, Sizes as OfEngine};
use tierdb_engine::{Background, Engine, Media};
use tierdb_pmem::Pool;
use tierdb_sim::SimDir;
use tierdb_slab::{Metric, Options, Promotion, SlabStore};

/// How ranges are chosen by samples, of one table each, and by the paper's buckets, as they are by default, of two.
pub const SAMPLED: (Metric, u8) = (Metric::SampledM, 1);
pub const BUCKETS: (Metric, u8) = (Metric::ApproxM, 2);

/// What brings keys to a tier, and keeps them there.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// As it is by default.
    Usual,
    /// As in the paper: migrations alone, which merge all that they take.
    Paper,
    /// As it is by default, with bounds for what is written to flash, a day and a second.
    Bounded,
}

/// Sizes of a store on simulated media.
#[derive(Clone, Debug)]
pub struct Sizes {
    pub name: &'static str,
    pub pool: u64,
    pub slab: u64,
    pub table: u64,
    pub partitions: u32,
    /// Directories of a fast device, beside the pool.
    pub fast_dirs: Vec<u64>,
    pub flash: Vec<u64>,
    pub memory: u64,
    pub table_parts_pct: u8,
    /// Levels of tables, and the size of the first one in percent of the fast tier.
    pub levels: (u8, u16),
    /// What scores ranges of how many tables.
    pub ranges: (Metric, u8),
    pub way: Way,
    /// Bytes of the write buffer of a log, which has 32 times as many.
    pub log_buffer: u64,
    /// Bytes of dirty pages from which on a checkpoint is due, where the pool of a log is longer than what DRAM has of it.
    pub paged: Option<u64>,
    pub background: Background,
    /// The store's identity.
    pub seed: u64,
}

impl Sizes {
    /// A store small enough for thousands of crash images a second.
    pub fn tiny() -> Self {
        Sizes {
            name: "tiny",
            pool: 132 << 10,
            slab: 8 << 10,
            table: 16 << 10,
            partitions: 2,
            fast_dirs: Vec::new(),
            flash: vec![1 << 20],
            memory: 256 << 10,
            table_parts_pct: 12,
            levels: (1, 1000),
            ranges: SAMPLED,
            way: Way::Usual,
            log_buffer: 32 << 10,
            paged: None,
            background: Background::Inline,
            seed: SEED,
        }
    }

    /// A store so small that every few writes move something, or cut off the log; with buckets.
    pub fn cramped() -> Self {
        Sizes {
            name: "cramped",
            pool: 76 << 10,
            flash: vec![192 << 10],
            table_parts_pct: 0,
            ranges: BUCKETS,
            log_buffer: 4 << 10,
            ..Sizes::tiny()
        }
    }

    /// A store with two levels, of which the first has room for a table or two; on a log, with records that are read from the device.
    pub fn stacked() -> Self {
        Sizes {
            name: "stacked",
            pool: 100 << 10,
            levels: (2, 12),
            log_buffer: 4 << 10,
            paged: Some(16 << 10),
            ..Sizes::tiny()
        }
    }

    /// A store with tables of the first level on a fast device, which has room for a few.
    pub fn beside() -> Self {
        Sizes {
            name: "beside the pool",
            pool: 76 << 10,
            levels: (2, 1000),
            fast_dirs: vec![256 << 10],
            ..Sizes::tiny()
        }
    }

    /// A store in which popular keys come to the fast tier with migrations alone, as in the paper.
    pub fn migrating() -> Self {
        Sizes { name: "migrating", pool: 76 << 10, way: Way::Paper, ranges: BUCKETS, ..Sizes::tiny() }
    }

    /// The stores that crash.
    pub fn small() -> [Self; 5] {
        [Sizes::tiny(), Sizes::cramped(), Sizes::stacked(), Sizes::beside(), Sizes::migrating()]
    }

    /// Room for the conformance suite's values.
    pub fn roomy() -> Self {
        Sizes {
            name: "roomy",
            pool: 12 << 20,
            slab: 64 << 10,
            table: 256 << 10,
            partitions: 3,
            fast_dirs: Vec::new(),
            flash: vec![256 << 20],
            memory: 8 << 20,
            table_parts_pct: 12,
            levels: (1, 1000),
            ranges: SAMPLED,
            way: Way::Usual,
            log_buffer: 32 << 10,
            paged: None,
            background: Background::Threads,
            seed: SEED,
        }
    }

    pub fn options(&self) -> Options {
        let usual = Options::for_pool(self.memory, self.pool);
        let of_this_way = match self.way {
            Way::Usual => usual,
            Way::Paper => Options {
                promotion: Promotion::ByMigration,
                pinned_pct: Some(70),
                least_yield_pct: 0,
                unmerged_pct: 0,
                ..usual
            },
            // More than a test comes to: nobody is to be held back.
            Way::Bounded => Options {
                flash_bytes_per_day: vec![Some(1 << 50); self.flash.len()],
                migration_rate: Some(1 << 40),
                ..usual
            },
        };
        Options {
            slab_bytes: self.slab,
            table_bytes: self.table,
            partitions: self.partitions,
            table_parts_pct: self.table_parts_pct,
            levels: Some(self.levels.0),
            first_level_pct: self.levels.1,
            metric: self.ranges.0,
            range_tables: self.ranges.1,
            level_growth: 2,
            migration_threads: if self.background == Background::Inline { 1 } else { 4 },
            recovery_threads: if self.background == Background::Inline { 1 } else { 2 },
            background: self.background,
            ..of_this_way
        }
    }
}

impl OfEngine for Sizes {
    fn scans_up_to_damage(&self) -> bool {
        false
    }

    fn name(&self) -> String {
        format!("slab, {}", self.name)
    }

    fn media(&self) -> MediaSizes {
        let Sizes { pool, log_buffer, paged, seed, .. } = *self;
        let (fast_dirs, flash) = (self.fast_dirs.clone(), self.flash.clone());
        MediaSizes { pool, fast_dirs, flash, log_buffer, paged, seed }
    }

    fn background(&self) -> Background {
        self.background
    }

    fn is_created<P: Pool>(&self, pool: &P) -> bool {
        SlabStore::<P, SimDir>::is_created(pool)
    }

    fn create<P: Pool + 'static>(&self, media: Media<P, SimDir>) -> Result<Box<dyn Engine>> {
        Ok(Box::new(SlabStore::create(media, self.options())?))
    }

    fn open<P: Pool + 'static>(&self, media: Media<P, SimDir>) -> Result<Box<dyn Engine>> {
        Ok(Box::new(SlabStore::open(media, self.options())?))
    }
}

/// What the suite must respect: the number of keys is an estimate.
pub fn limits() -> Limits {
    Limits { exact_key_count: false, ..Limits::default() }
}
