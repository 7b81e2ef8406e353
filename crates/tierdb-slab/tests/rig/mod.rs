//! Stores on simulated media, for the engine's suites.

#[allow(dead_code, reason = "the other engine's suite uses the rest")]
#[path = "../../../tierdb-valuelog/tests/rig/script.rs"]
pub mod script;

use tierdb_base::{FailureLatch, Result};
use tierdb_device::Meter;
use tierdb_engine::Engine;
use tierdb_engine::conformance::{Harness, Limits};
use tierdb_engine::{Background, FlashTier, Media};
use tierdb_log::{LoggedOptions, LoggedPool};
use tierdb_pmem::Pool;
use tierdb_sim::{SimDir, SimPool, World};
use tierdb_slab::{Options, SlabStore};

/// What seeds the checksums of every store here.
pub const SEED: u64 = 0x7469_6572;

/// Sizes of a store on simulated media.
#[derive(Clone, Debug)]
pub struct Sizes {
    pub name: &'static str,
    pub pool: u64,
    pub slab: u64,
    pub table: u64,
    pub partitions: u32,
    pub flash: Vec<u64>,
    pub memory: u64,
    pub background: Background,
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
            flash: vec![1 << 20],
            memory: 256 << 10,
            background: Background::Inline,
        }
    }

    /// Room for the conformance suite's values.
    pub fn roomy() -> Self {
        Sizes {
            name: "roomy",
            pool: 12 << 20,
            slab: 64 << 10,
            table: 256 << 10,
            partitions: 3,
            flash: vec![256 << 20],
            memory: 8 << 20,
            background: Background::Threads,
        }
    }

    pub fn options(&self) -> Options {
        Options {
            slab_bytes: self.slab,
            table_bytes: self.table,
            partitions: self.partitions,
            recovery_threads: if self.background == Background::Inline { 1 } else { 2 },
            background: self.background,
            ..Options::for_pool(self.memory, self.pool)
        }
    }
}

/// An empty world with a pool and flash directories of these sizes.
pub fn world(sizes: &Sizes) -> World {
    let world = World::new();
    world.add_pool("pool", sizes.pool);
    for number in 0..sizes.flash.len() {
        world.add_dir(&flash_name(number));
    }
    world
}

fn flash_name(number: usize) -> String {
    format!("flash{number}")
}

fn flash(world: &World, sizes: &Sizes) -> Vec<FlashTier<SimDir>> {
    let tier = |number: usize, capacity: u64| FlashTier {
        dir: world.dir(&flash_name(number)),
        capacity,
        meter: Meter::new(),
        emulation: None,
    };
    sizes.flash.iter().enumerate().map(|(number, capacity)| tier(number, *capacity)).collect()
}

fn media_on<P: Pool>(pool: P, latch: FailureLatch, world: &World, sizes: &Sizes) -> Media<P, SimDir> {
    Media {
        pool: pool.into(),
        fast_meter: Meter::new(),
        flash: flash(world, sizes),
        seed: SEED,
        latch,
        mode: "simulated".into(),
    }
}

/// The world's devices, as an engine takes them: a byte-addressable fast tier.
pub fn media(world: &World, sizes: &Sizes) -> Media<SimPool, SimDir> {
    media_on(world.pool("pool"), FailureLatch::new(), world, sizes)
}

/// Opens the store of a world, and creates it where there is none.
pub fn open(world: &World, sizes: &Sizes) -> Result<SlabStore<SimPool, SimDir>> {
    let media = media(world, sizes);
    if SlabStore::<SimPool, SimDir>::is_created(&media.pool) {
        SlabStore::open(media, sizes.options())
    } else {
        SlabStore::create(media, sizes.options())
    }
}

/// A store whose pool is logged in a directory.
pub type LoggedStore = SlabStore<LoggedPool<SimDir>, SimDir>;

/// Where the pool's log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPlace {
    /// On a device of its own: a block fast tier.
    FastTier,
    /// Beside the values: one plain SSD.
    WithValues,
}

fn log_dir(world: &World, place: LogPlace) -> SimDir {
    world.dir(match place {
        LogPlace::FastTier => "fast",
        LogPlace::WithValues => "flash0",
    })
}

fn logged_options(sizes: &Sizes) -> LoggedOptions {
    let buffer_bytes = 32 << 10;
    LoggedOptions { log_len: 32 * buffer_bytes, buffer_bytes, ..LoggedOptions::new(sizes.pool) }
}

/// A world with an empty store whose pool is logged at `place`.
pub fn logged_world(sizes: &Sizes, place: LogPlace) -> World {
    let world = world(sizes);
    if place == LogPlace::FastTier {
        world.add_dir("fast");
    }
    let latch = FailureLatch::new();
    let pool = LoggedPool::create(
        log_dir(&world, place),
        logged_options(sizes),
        SEED,
        latch.clone(),
        Meter::new(),
        None,
    )
    .expect("a pool is created");
    let store = LoggedStore::create(media_on(pool, latch, &world, sizes), sizes.options())
        .expect("a store is created");
    store.close().expect("it is closed");
    world
}

/// Opens the store of a world that [`logged_world`] made.
pub fn open_logged(world: &World, sizes: &Sizes, place: LogPlace) -> Result<LoggedStore> {
    let latch = FailureLatch::new();
    let pool = LoggedPool::open(
        log_dir(world, place),
        logged_options(sizes),
        SEED,
        latch.clone(),
        Meter::new(),
        None,
    )?;
    SlabStore::open(media_on(pool, latch, world, sizes), sizes.options())
}

/// The conformance suite's view of a store.
pub struct SimHarness {
    sizes: Sizes,
    limits: Limits,
    logged: Option<LogPlace>,
    world: World,
}

impl SimHarness {
    /// A store on a byte-addressable fast tier, or with a log at `logged`.
    pub fn new(sizes: Sizes, limits: Limits, logged: Option<LogPlace>) -> Self {
        let mut harness = SimHarness { sizes, limits, logged, world: World::new() };
        harness.make_world();
        harness
    }

    fn make_world(&mut self) {
        self.world = match self.logged {
            None => world(&self.sizes),
            Some(place) => logged_world(&self.sizes, place),
        };
    }
}

impl Harness for SimHarness {
    fn open(&mut self) -> Result<Box<dyn Engine>> {
        Ok(match self.logged {
            None => Box::new(open(&self.world, &self.sizes)?),
            Some(place) => Box::new(open_logged(&self.world, &self.sizes, place)?),
        })
    }

    fn reset(&mut self) -> Result<()> {
        self.make_world();
        Ok(())
    }

    fn describe(&self) -> String {
        format!("slab, {}, log {:?}, {:?}", self.sizes.name, self.logged, self.sizes)
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}

/// What the suite must respect: the number of keys is an estimate.
pub fn limits() -> Limits {
    Limits { exact_key_count: false, ..Limits::default() }
}
