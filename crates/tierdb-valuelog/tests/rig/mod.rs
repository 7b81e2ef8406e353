//! Stores on simulated media, for the engine's suites.

pub mod script;

use tierdb_base::{FailureLatch, Result};
use tierdb_device::Meter;
use tierdb_engine::Engine;
use tierdb_engine::conformance::{Harness, Limits};
use tierdb_sim::{SimDir, SimPool, World};
use tierdb_valuelog::{Background, FlashTier, Media, Options, ValueLog};

/// What seeds the checksums of every store here.
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
    for number in 0..sizes.flash.len() {
        world.add_dir(&flash_name(number));
    }
    world
}

fn flash_name(number: usize) -> String {
    format!("flash{number}")
}

/// The world's devices, as an engine takes them.
pub fn media(world: &World, sizes: &Sizes) -> Media<SimPool, SimDir> {
    let flash = sizes
        .flash
        .iter()
        .enumerate()
        .map(|(number, capacity)| FlashTier {
            dir: world.dir(&flash_name(number)),
            capacity: *capacity,
            meter: Meter::new(),
            emulation: None,
        })
        .collect();
    Media {
        pool: world.pool("pool").into(),
        fast_meter: Meter::new(),
        flash,
        seed: SEED,
        latch: FailureLatch::new(),
        mode: "simulated".into(),
    }
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

/// The conformance suite's view of it.
pub struct SimHarness {
    pub sizes: Sizes,
    pub limits: Limits,
    world: World,
}

impl SimHarness {
    pub fn new(sizes: Sizes, limits: Limits) -> Self {
        SimHarness { world: world(&sizes), sizes, limits }
    }
}

impl Harness for SimHarness {
    fn open(&mut self) -> Result<Box<dyn Engine>> {
        Ok(Box::new(open(&self.world, &self.sizes)?))
    }

    fn reset(&mut self) -> Result<()> {
        self.world = world(&self.sizes);
        Ok(())
    }

    fn describe(&self) -> String {
        format!("valuelog, byte-addressable, {:?}", self.sizes)
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}
