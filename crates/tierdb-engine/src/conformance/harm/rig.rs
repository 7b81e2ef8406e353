//! Stores on simulated media.

use crate::conformance::{Harness, Limits};
use crate::{Background, Engine, Media, TierDir};
use std::fmt;
use tierdb_base::{FailureLatch, Result};
use tierdb_device::{BLOCK, Meter, Striped};
use tierdb_log::{LoggedOptions, LoggedPool};
use tierdb_pmem::Pool;
use tierdb_sim::{SimDir, SimPool, World};

/// What seeds the checksums of stores here, unless they are to be of another identity.
pub const SEED: u64 = 0x7469_6572;

/// Sizes of the media that a store is given.
#[derive(Clone, Debug)]
pub struct MediaSizes {
    /// Bytes of the pool.
    pub pool: u64,
    /// Bytes that the store may use in each directory of a fast device, beside the pool.
    pub fast_dirs: Vec<u64>,
    /// Bytes that the store may use in each flash directory.
    pub flash: Vec<u64>,
    /// Bytes of the write buffer of a logged pool; its log has 32 times as many.
    pub log_buffer: u64,
    /// Bytes of dirty pages from which on a checkpoint is due, of a logged pool that is longer than what DRAM has of it.
    pub paged: Option<u64>,
    /// The store's identity.
    pub seed: u64,
}

/// Sizes of an engine's stores, and how the engine makes and opens them.
pub trait Sizes: Clone + fmt::Debug + Send + Sync + 'static {
    /// What failures call it.
    fn name(&self) -> String;

    /// What the store lies on.
    fn media(&self) -> MediaSizes;

    /// Who does its background work.
    fn background(&self) -> Background;

    /// Whether a scan gives all whole keys before damage. One that merges does not know which comes first of what is
    /// damaged and what it has.
    fn scans_up_to_damage(&self) -> bool {
        true
    }

    /// Whether `pool` holds a store.
    fn is_created<P: Pool>(&self, pool: &P) -> bool;

    /// Makes an empty store.
    ///
    /// # Errors
    /// The engine's.
    fn create<P: Pool + 'static>(&self, media: Media<P, SimDir>) -> Result<Box<dyn Engine>>;

    /// Opens a store.
    ///
    /// # Errors
    /// The engine's.
    fn open<P: Pool + 'static>(&self, media: Media<P, SimDir>) -> Result<Box<dyn Engine>>;
}

/// Where a logged pool's log is.
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
    /// All of them.
    pub const ALL: [LogPlace; 3] = [LogPlace::FastTier, LogPlace::WithValues, LogPlace::TwoFastTiers];

    /// The directories it is in.
    fn dirs(self) -> &'static [&'static str] {
        match self {
            LogPlace::FastTier => &["fast"],
            LogPlace::WithValues => &["flash0"],
            LogPlace::TwoFastTiers => &["fast", "fast1"],
        }
    }
}

/// A store of these sizes in one of the hardware modes.
#[derive(Clone, Debug)]
pub struct Rig<S> {
    /// The engine's sizes.
    pub sizes: S,
    /// Where the pool's log is; a byte-addressable pool has none.
    pub log: Option<LogPlace>,
}

impl<S: Sizes> Rig<S> {
    /// A store on a byte-addressable fast tier, or with a log.
    pub fn new(sizes: S, log: Option<LogPlace>) -> Self {
        Rig { sizes, log }
    }

    /// Devices with nothing on them that a store would know.
    pub fn bare_world(&self) -> World {
        let (world, sizes) = (World::new(), self.sizes.media());
        world.add_pool("pool", sizes.pool);
        // A new pool may hold anything but the magic of a store.
        let mut rng = fastrand::Rng::with_seed(sizes.pool);
        let noise: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(sizes.pool as usize - 8).collect();
        world.overwrite("pool", 8, &noise);
        (0..sizes.flash.len()).for_each(|number| drop(world.add_dir(&flash_name(number))));
        (0..sizes.fast_dirs.len()).for_each(|number| drop(world.add_dir(&beside_name(number))));
        let log = self.log.filter(|place| *place != LogPlace::WithValues);
        log.into_iter().flat_map(LogPlace::dirs).for_each(|name| drop(world.add_dir(name)));
        world
    }

    /// Devices for [`Rig::open_or_create`]: a logged pool has an empty store, closed, on it.
    pub fn world(&self) -> World {
        if self.log.is_none() {
            return self.bare_world();
        }
        self.empty_world()
    }

    /// Devices with an empty store on them, closed.
    pub fn empty_world(&self) -> World {
        let (world, store) = self.create();
        store.close().expect("it is closed");
        world
    }

    /// A store that has just been created.
    pub fn create(&self) -> (World, Box<dyn Engine>) {
        let world = self.bare_world();
        let latch = FailureLatch::new();
        let store = match self.log {
            None => self.sizes.create(self.media_on(world.pool("pool").opened(), latch, &world)),
            Some(place) => {
                let (dir, options, seed) = self.log_of(&world, place);
                let pool = LoggedPool::create(dir, options, seed, latch.clone(), Meter::new(), None);
                self.sizes.create(self.media_on(pool.expect("a pool is created"), latch, &world))
            }
        };
        let store = store.expect("a store is created");
        (world, store)
    }

    /// Opens the store of a world.
    ///
    /// # Errors
    /// The engine's, and `Corrupt` where there is no store.
    pub fn open(&self, world: &World) -> Result<Box<dyn Engine>> {
        let latch = FailureLatch::new();
        match self.log {
            None => self.sizes.open(self.memory_media(world)),
            Some(place) => {
                let (dir, options, seed) = self.log_of(world, place);
                let pool = LoggedPool::open(dir, options, seed, latch.clone(), Meter::new(), None)?;
                self.sizes.open(self.media_on(pool, latch, world))
            }
        }
    }

    /// Opens the store of a world; on memory it is created if its creation has not ended.
    ///
    /// # Errors
    /// The engine's.
    pub fn open_or_create(&self, world: &World) -> Result<Box<dyn Engine>> {
        if self.log.is_none() && !self.sizes.is_created(&world.pool("pool")) {
            return self.sizes.create(self.memory_media(world));
        }
        self.open(world)
    }

    /// The world's devices, as an engine takes them: a byte-addressable fast tier.
    pub fn memory_media(&self, world: &World) -> Media<SimPool, SimDir> {
        self.media_on(world.pool("pool").opened(), FailureLatch::new(), world)
    }

    fn media_on<P: Pool>(&self, pool: P, latch: FailureLatch, world: &World) -> Media<P, SimDir> {
        let sizes = self.sizes.media();
        let tiers = |capacities: Vec<u64>, name: fn(usize) -> String| {
            let tier = |(number, capacity)| TierDir {
                dir: world.dir(&name(number)),
                capacity,
                meter: Meter::new(),
                emulation: None,
            };
            capacities.into_iter().enumerate().map(tier).collect()
        };
        Media {
            pool: pool.into(),
            fast_meter: Meter::new(),
            fast_dirs: tiers(sizes.fast_dirs, beside_name),
            flash: tiers(sizes.flash, flash_name),
            seed: sizes.seed,
            latch,
            mode: "simulated".into(),
        }
    }

    fn log_of(&self, world: &World, place: LogPlace) -> (Striped<SimDir>, LoggedOptions, u64) {
        let MediaSizes { pool, log_buffer, paged, seed, .. } = self.sizes.media();
        let dirs = place.dirs().iter().map(|name| world.dir(name)).collect();
        // Stripes so short that most writes cross several.
        let dir = Striped::with_stripe(dirs, BLOCK).expect("directories");
        let options = LoggedOptions {
            log_len: 32 * log_buffer,
            buffer_bytes: log_buffer,
            paged,
            ..LoggedOptions::new(pool)
        };
        (dir, options, seed)
    }
}

fn flash_name(number: usize) -> String {
    format!("flash{number}")
}

fn beside_name(number: usize) -> String {
    format!("beside{number}")
}

/// The conformance suite's view of a store on simulated media.
pub struct SimHarness<S> {
    rig: Rig<S>,
    limits: Limits,
    world: World,
}

impl<S: Sizes> SimHarness<S> {
    /// An empty store.
    pub fn new(rig: Rig<S>, limits: Limits) -> Self {
        let world = rig.world();
        SimHarness { rig, limits, world }
    }
}

impl<S: Sizes> Harness for SimHarness<S> {
    fn open(&mut self) -> Result<Box<dyn Engine>> {
        self.rig.open_or_create(&self.world)
    }

    fn reset(&mut self) -> Result<()> {
        self.world = self.rig.world();
        Ok(())
    }

    fn describe(&self) -> String {
        format!("{}, log {:?}, {:?}", self.rig.sizes.name(), self.rig.log, self.rig.sizes)
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}
