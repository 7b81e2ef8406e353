//! Small stores of the slab engine on simulated media, with something of everything in them.

use crate::entries::{self, create_pool, fill_and_watch, open_and_use, open_pool};
use tierdb_base::{FailureLatch, Result};
use tierdb_device::Meter;
use tierdb_engine::{Background, Durability, Engine, KeyRange, Media, TierDir};
use tierdb_log::LoggedOptions;
use tierdb_pmem::Pool;
use tierdb_sim::{SimDir, World};
use tierdb_slab::{Options, SlabStore, salvage};

const POOL: u64 = 132 << 10;
const FLASH: u64 = 1 << 20;
/// Of the directory beside the pool, which has room for a few tables of the first level.
const FAST: u64 = 256 << 10;

/// What the fast tier of a store is.
#[derive(Clone, Copy)]
pub enum Fast {
    /// Byte-addressable memory.
    Memory,
    /// A block device: the pool behind a log, with records that are read from the device, and tables of the first level beside it.
    Device,
}

fn options(fast: Fast) -> Options {
    let usual = Options {
        slab_bytes: 8 << 10,
        table_bytes: 16 << 10,
        partitions: 2,
        recovery_threads: 1,
        background: Background::Inline,
        ..Options::for_pool(256 << 10, POOL)
    };
    match fast {
        Fast::Memory => usual,
        Fast::Device => Options { levels: Some(2), first_level_pct: 1000, level_growth: 2, ..usual },
    }
}

/// Reading what is damaged takes all of the pool into memory.
fn logged_options(salvage: bool) -> LoggedOptions {
    let paged = (!salvage).then_some(16 << 10);
    LoggedOptions {
        log_len: 32 * (4 << 10),
        buffer_bytes: 4 << 10,
        paged,
        salvage,
        ..LoggedOptions::new(POOL)
    }
}

fn media<P: Pool>(pool: P, latch: FailureLatch, world: &World, fast: Fast) -> Media<P, SimDir> {
    let beside = match fast {
        Fast::Memory => Vec::new(),
        Fast::Device => {
            vec![TierDir { dir: world.dir("beside"), capacity: FAST, meter: Meter::new(), emulation: None }]
        }
    };
    Media { fast_dirs: beside, ..entries::media(pool, latch, world, FLASH) }
}

/// A store as it was at the events while several keys changed, closed, and with a range that was removed while a snapshot
/// was open, as a kill leaves it.
pub fn stores(fast: Fast) -> Vec<World> {
    let world = World::new();
    world.add_dir("flash");
    fastrand::seed(1);
    match fast {
        Fast::Memory => {
            world.add_pool("pool", POOL);
            let media = media(world.pool("pool").opened(), FailureLatch::new(), &world, fast);
            filled(&world, SlabStore::create(media, options(fast)))
        }
        Fast::Device => {
            world.add_dir("fast");
            world.add_dir("beside");
            let latch = FailureLatch::new();
            let pool = create_pool(&world, logged_options(false), latch.clone());
            let media = media(pool, latch, &world, fast);
            filled(&world, SlabStore::create(media, options(fast)))
        }
    }
}

fn filled<P: Pool + 'static>(world: &World, store: Result<SlabStore<P, SimDir>>) -> Vec<World> {
    let engine = store.expect("a store is created");
    let mut worlds = fill_and_watch(world, &engine);
    let snapshot = engine.snapshot().expect("it is open");
    engine.put(b"after", &[7; 9000], Durability::Durable).expect("room");
    engine.delete_range(&KeyRange::prefix(b"key"), Durability::Durable).expect("room");
    worlds.push(world.copy());
    drop(snapshot);
    engine.close().expect("no faults");
    worlds.push(world.clone());
    worlds
}

/// Does to the store of a world all that reads what is stored, and writes to it.
pub fn exercise(world: &World, fast: Fast) {
    fastrand::seed(2);
    match fast {
        Fast::Memory => {
            let media = || media(world.pool("pool").opened(), FailureLatch::new(), world, fast);
            let _ = salvage(media(), &mut |_| Ok(()));
            open_and_use(|| SlabStore::open(media(), options(fast)));
        }
        Fast::Device => {
            let media = |salvage| {
                let latch = FailureLatch::new();
                let pool = open_pool(world, logged_options(salvage), latch.clone())?;
                Ok(media(pool, latch, world, fast))
            };
            if let Ok(media) = media(true) {
                let _ = salvage(media, &mut |_| Ok(()));
            }
            open_and_use(|| SlabStore::open(media(false)?, options(fast)));
        }
    }
}
