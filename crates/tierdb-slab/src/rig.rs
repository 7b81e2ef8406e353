//! Small stores on simulated media, for tests of what callers do not see.

use crate::config::Options;
use crate::core::Core;
use crate::engine::SlabStore;
use crate::partition::Partition;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tierdb_base::{FailureLatch, mutant};
use tierdb_device::Meter;
use tierdb_engine::{Background, Durability, Engine, Media, TierDir};
use tierdb_sim::{SimDir, SimPool, World};

/// Options of a store in which everything is small, and whoever needs work does it.
pub fn options(pool_len: u64) -> Options {
    Options {
        slab_bytes: 8 << 10,
        table_bytes: 24 << 10,
        partitions: 1,
        levels: Some(1),
        recovery_threads: 1,
        background: Background::Inline,
        ..Options::for_pool(256 << 10, pool_len)
    }
}

/// The media of `world`: a pool, and a flash directory of `flash_len` bytes.
pub fn media(world: &World, flash_len: u64) -> Media<SimPool, SimDir> {
    let tier =
        TierDir { dir: world.dir("flash0"), capacity: flash_len, meter: Meter::new(), emulation: None };
    Media {
        pool: world.pool("pool").opened().into(),
        fast_meter: Meter::new(),
        fast_dirs: Vec::new(),
        flash: vec![tier],
        seed: 7,
        latch: FailureLatch::new(),
        mode: "simulated".into(),
    }
}

/// The same with a fast device of 1 MiB, `beside`, for tables.
pub fn media_beside(world: &World, flash_len: u64) -> Media<SimPool, SimDir> {
    let dir = TierDir { dir: world.dir("beside"), capacity: 1 << 20, meter: Meter::new(), emulation: None };
    Media { fast_dirs: vec![dir], ..media(world, flash_len) }
}

/// A world with such media, empty.
pub fn world(pool_len: u64) -> World {
    fastrand::seed(1);
    let world = World::new();
    world.add_pool("pool", pool_len);
    world.add_dir("flash0");
    world
}

/// A store, open.
pub struct Store {
    pub world: World,
    pub engine: SlabStore<SimPool, SimDir>,
}

impl Store {
    /// An empty store with a pool of `pool_len` bytes and 1 MiB of flash.
    pub fn new(pool_len: u64, options: Options) -> Self {
        let world = world(pool_len);
        let engine = SlabStore::create(media(&world, 1 << 20), options).expect("an empty store");
        Store { world, engine }
    }

    pub fn core(&self) -> &Core<SimPool, SimDir> {
        self.engine.core()
    }

    /// The first partition.
    pub fn part(&self) -> Arc<Partition<SimDir>> {
        self.core().router.read().parts[0].clone()
    }

    /// Writes a value of `len` bytes.
    pub fn put(&self, key: &[u8], len: usize) {
        self.engine.put(key, &vec![7; len], Durability::Grouped).expect("room");
    }
}

/// Leaves out in turn each rule of kind `what` that `tests` pass, of which there are `count`.
///
/// # Panics
/// If a test fails with all of them, or none does without one.
pub fn every_rule_is_needed(what: &str, count: usize, tests: &[(&str, impl Fn())]) {
    let mut rules = BTreeSet::new();
    for (name, test) in tests {
        println!("{name}");
        let seen = mutant::record(test);
        rules.extend(seen.into_keys().filter(|site| site.what == what));
    }
    for rule in &rules {
        let fails =
            |test: &dyn Fn()| mutant::without(*rule, || catch_unwind(AssertUnwindSafe(test))).is_err();
        let noticed = tests.iter().find(|(_, test)| fails(test));
        let (name, _) = noticed.unwrap_or_else(|| panic!("{rule} is not noticed when it is left out"));
        println!("{rule}: {name}");
    }
    assert_eq!(rules.len(), count, "{rules:#?}");
}
