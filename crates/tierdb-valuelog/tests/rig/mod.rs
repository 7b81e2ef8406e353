//! Stores on simulated media, for the engine's suites.

use tierdb_base::Result;
use tierdb_engine::Engine;
pub use tierdb_engine::conformance::harm::rig::SEED;
use tierdb_engine::conformance::harm::{MediaSizes, Sizes as OfEngine};
use tierdb_pmem::Pool;
use tierdb_sim::SimDir;
use tierdb_valuelog::{Background, Media, Options, ValueLog};

/// Sizes of a store on simulated media.
#[derive(Clone, Debug)]
pub struct Sizes {
    pub name: &'static str,
    pub pool: u64,
    pub rings: u32,
    pub ring: u64,
    pub chunk: u64,
    pub flash: Vec<u64>,
    pub memory: u64,
    /// Percent of a ring that are full when its values begin to go to flash.
    pub reclaim_pct: u8,
    /// Percent of what is in use that may be garbage, and chunks' worth that may be in any case; otherwise the engine's defaults, which a
    /// store of few chunks never comes to.
    pub garbage: Option<(u8, u64)>,
    /// Bytes of the write buffer of a log, which has 32 times as many.
    pub log_buffer: u64,
    pub background: Background,
    /// The store's identity.
    pub seed: u64,
}

impl Sizes {
    /// A store small enough for thousands of crash images a second.
    pub fn tiny() -> Self {
        Sizes {
            name: "tiny",
            pool: 256 << 10,
            rings: 2,
            ring: 16 << 10,
            chunk: 16 << 10,
            flash: vec![256 << 10],
            memory: 256 << 10,
            // Of the few writes of a test, some are to go to flash.
            reclaim_pct: 50,
            garbage: None,
            log_buffer: 16 << 10,
            background: Background::Inline,
            seed: SEED,
        }
    }

    /// The same, whose rings are full of what is not needed any more before anything goes to flash, and whose log is cut off every
    /// few writes.
    pub fn late() -> Self {
        Sizes { name: "late", rings: 1, reclaim_pct: 90, log_buffer: 4 << 10, ..Sizes::tiny() }
    }

    /// The same, in which garbage is collected though there is room.
    pub fn wasteful() -> Self {
        Sizes { name: "wasteful", rings: 1, flash: vec![384 << 10], garbage: Some((10, 0)), ..Sizes::tiny() }
    }

    /// Room for the conformance suite's values.
    pub fn roomy() -> Self {
        Sizes {
            name: "roomy",
            pool: 8 << 20,
            rings: 4,
            ring: 256 << 10,
            chunk: 512 << 10,
            flash: vec![256 << 20],
            memory: 8 << 20,
            reclaim_pct: 50,
            garbage: None,
            log_buffer: 256 << 10,
            background: Background::Threads,
            seed: SEED,
        }
    }

    pub fn options(&self) -> Options {
        let default = Options::for_pool(self.memory, self.pool);
        Options {
            chunk_bytes: self.chunk,
            rings: self.rings,
            ring_bytes: self.ring,
            recovery_threads: if self.background == Background::Inline { 1 } else { 2 },
            background: self.background,
            reclaim_pct: self.reclaim_pct,
            gc_garbage_pct: self.garbage.map_or(default.gc_garbage_pct, |(pct, _)| pct),
            gc_garbage_chunks: self.garbage.map(|(_, chunks)| chunks),
            ..default
        }
    }
}

impl OfEngine for Sizes {
    fn name(&self) -> String {
        format!("valuelog, {}", self.name)
    }

    fn media(&self) -> MediaSizes {
        let Sizes { pool, log_buffer, seed, .. } = *self;
        MediaSizes { pool, fast_dirs: Vec::new(), flash: self.flash.clone(), log_buffer, paged: None, seed }
    }

    fn background(&self) -> Background {
        self.background
    }

    fn is_created<P: Pool>(&self, pool: &P) -> bool {
        ValueLog::<P, SimDir>::is_created(pool)
    }

    fn create<P: Pool + 'static>(&self, media: Media<P, SimDir>) -> Result<Box<dyn Engine>> {
        Ok(Box::new(ValueLog::create(media, self.options())?))
    }

    fn open<P: Pool + 'static>(&self, media: Media<P, SimDir>) -> Result<Box<dyn Engine>> {
        Ok(Box::new(ValueLog::open(media, self.options())?))
    }
}
