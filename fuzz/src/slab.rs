//! Small stores of the slab engine on simulated media, with something of everything in them.

use crate::entries::{self, fill_and_watch, open_and_use};
use tierdb_base::FailureLatch;
use tierdb_engine::{Background, Durability, Engine, Media};
use tierdb_sim::{SimDir, SimPool, World};
use tierdb_slab::{Options, SlabStore, salvage};

const POOL: u64 = 132 << 10;
const FLASH: u64 = 1 << 20;

fn options() -> Options {
    Options {
        slab_bytes: 8 << 10,
        table_bytes: 16 << 10,
        partitions: 2,
        recovery_threads: 1,
        background: Background::Inline,
        ..Options::for_pool(256 << 10, POOL)
    }
}

fn media(world: &World) -> Media<SimPool, SimDir> {
    entries::media(world.pool("pool").opened(), FailureLatch::new(), world, FLASH)
}

/// A store as it was at the events while several keys changed, closed, and with a range that was removed while a snapshot
/// was open, as a kill leaves it.
pub fn stores() -> Vec<World> {
    let world = World::new();
    world.add_pool("pool", POOL);
    world.add_dir("flash");
    fastrand::seed(1);
    let engine = SlabStore::create(media(&world), options()).expect("a store is created");
    let mut worlds = fill_and_watch(&world, &engine);
    let snapshot = engine.snapshot().expect("it is open");
    engine.put(b"after", &[7; 9000], Durability::Durable).expect("room");
    engine.delete_range(&tierdb_engine::KeyRange::prefix(b"key"), Durability::Durable).expect("room");
    worlds.push(world.copy());
    drop(snapshot);
    engine.close().expect("no faults");
    worlds.push(world);
    worlds
}

/// Does to the store of a world all that reads what is stored, and writes to it.
pub fn exercise(world: &World) {
    fastrand::seed(2);
    let _ = salvage(media(world), &mut |_| Ok(()));
    open_and_use(|| SlabStore::open(media(world), options()));
}
