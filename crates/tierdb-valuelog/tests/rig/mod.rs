//! Stores on simulated media, for the engine's suites.

pub mod script;

use tierdb_base::{FailureLatch, Result};
use tierdb_device::{BLOCK, Meter, Striped};
use tierdb_engine::Engine;
use tierdb_engine::conformance::{Harness, Limits};
use tierdb_log::{LoggedOptions, LoggedPool};
use tierdb_pmem::Pool;
use tierdb_sim::{SimDir, SimPool, World};
use tierdb_valuelog::{Background, FlashTier, Media, Options, ValueLog};

/// What seeds the checksums of stores here, unless they are to be of another identity.
pub const SEED: u64 = 0x7469_6572;

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
            background: Background::Inline,
            seed: SEED,
        }
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
            background: Background::Threads,
            seed: SEED,
        }
    }

    pub fn options(&self) -> Options {
        Options {
            chunk_bytes: self.chunk,
            rings: self.rings,
            ring_bytes: self.ring,
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
    // A new pool may hold anything but the magic of a store.
    let mut rng = fastrand::Rng::with_seed(sizes.pool);
    let noise: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(sizes.pool as usize - 8).collect();
    world.overwrite("pool", 8, &noise);
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
        seed: sizes.seed,
        latch,
        mode: "simulated".into(),
    }
}

/// The world's devices, as an engine takes them: a byte-addressable fast tier.
pub fn media(world: &World, sizes: &Sizes) -> Media<SimPool, SimDir> {
    media_on(world.pool("pool").opened(), FailureLatch::new(), world, sizes)
}

/// Opens the store of a world, and creates it where there is none.
pub fn open(world: &World, sizes: &Sizes) -> Result<ValueLog<SimPool, SimDir>> {
    let media = media(world, sizes);
    if ValueLog::<SimPool, SimDir>::is_created(&media.pool) {
        ValueLog::open(media, sizes.options())
    } else {
        ValueLog::create(media, sizes.options())
    }
}

/// A store whose pool is logged in a directory.
pub type LoggedStore = ValueLog<LoggedPool<Striped<SimDir>>, SimDir>;

/// Where the pool's log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPlace {
    /// On a device of its own: a block fast tier.
    FastTier,
    /// Beside the values: one plain SSD.
    WithValues,
    /// Striped over two devices of its own: two block fast tiers.
    TwoFastTiers,
}

impl LogPlace {
    /// The directories it is in.
    fn dirs(self) -> &'static [&'static str] {
        match self {
            LogPlace::FastTier => &["fast"],
            LogPlace::WithValues => &["flash0"],
            LogPlace::TwoFastTiers => &["fast", "fast1"],
        }
    }
}

/// Stripes so short that most writes cross several.
fn log_dir(world: &World, place: LogPlace) -> Striped<SimDir> {
    let dirs = place.dirs().iter().map(|name| world.dir(name)).collect();
    Striped::with_stripe(dirs, BLOCK).expect("directories")
}

fn logged_options(sizes: &Sizes) -> LoggedOptions {
    let buffer_bytes = sizes.ring.next_multiple_of(4096).max(32 << 10);
    LoggedOptions { log_len: 32 * buffer_bytes, buffer_bytes, ..LoggedOptions::new(sizes.pool) }
}

/// A world with an empty store whose pool is logged at `place`.
pub fn logged_world(sizes: &Sizes, place: LogPlace) -> World {
    let (world, store) = create_logged(sizes, place);
    store.close().expect("it is closed");
    world
}

/// A store that has just been created, with a pool that is logged at `place`.
pub fn create_logged(sizes: &Sizes, place: LogPlace) -> (World, LoggedStore) {
    let world = world(sizes);
    if place != LogPlace::WithValues {
        place.dirs().iter().for_each(|name| drop(world.add_dir(name)));
    }
    let latch = FailureLatch::new();
    let pool = LoggedPool::create(
        log_dir(&world, place),
        logged_options(sizes),
        sizes.seed,
        latch.clone(),
        Meter::new(),
        None,
    )
    .expect("a pool is created");
    let store = LoggedStore::create(media_on(pool, latch, &world, sizes), sizes.options())
        .expect("a store is created");
    (world, store)
}

/// Opens the store of a world that [`logged_world`] made.
pub fn open_logged(world: &World, sizes: &Sizes, place: LogPlace) -> Result<LoggedStore> {
    let latch = FailureLatch::new();
    let pool = LoggedPool::open(
        log_dir(world, place),
        logged_options(sizes),
        sizes.seed,
        latch.clone(),
        Meter::new(),
        None,
    )?;
    ValueLog::open(media_on(pool, latch, world, sizes), sizes.options())
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
        format!("valuelog, {}, log {:?}, {:?}", self.sizes.name, self.logged, self.sizes)
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}
