//! Small stores of the engine on simulated media, with something of everything in them.

use std::sync::{Arc, Mutex};
use tierdb_base::{FailureLatch, Result};
use tierdb_device::Meter;
use tierdb_engine::{Durability, Engine, KeyRange, WriteBatch};
use tierdb_log::{LoggedOptions, LoggedPool};
use tierdb_pmem::Pool;
use tierdb_sim::{SimDir, SimPool, World};
use tierdb_valuelog::{Background, FlashTier, Media, Options, ValueLog, salvage};

const SEED: u64 = 0x7469_6572;
const POOL: u64 = 112 << 10;
const FLASH: u64 = 384 << 10;

fn options() -> Options {
    Options {
        chunk_bytes: 16 << 10,
        rings: 1,
        ring_bytes: 16 << 10,
        recovery_threads: 1,
        background: Background::Inline,
        ..Options::for_pool(64 << 10, POOL)
    }
}

fn media<P: Pool>(pool: P, latch: FailureLatch, world: &World) -> Media<P, SimDir> {
    Media {
        pool: pool.into(),
        fast_meter: Meter::new(),
        flash: vec![FlashTier {
            dir: world.dir("flash"),
            capacity: FLASH,
            meter: Meter::new(),
            emulation: None,
        }],
        seed: SEED,
        latch,
        mode: "simulated".into(),
    }
}

fn in_memory(world: &World) -> Media<SimPool, SimDir> {
    media(world.pool("pool").opened(), FailureLatch::new(), world)
}

/// How a logged pool of these stores is laid out.
pub fn logged_options() -> LoggedOptions {
    LoggedOptions { log_len: 32 * (32 << 10), buffer_bytes: 32 << 10, ..LoggedOptions::new(POOL) }
}

/// Opens the pool in `fast` of a world.
pub fn logged_pool(world: &World, options: LoggedOptions) -> Result<LoggedPool<SimDir>> {
    LoggedPool::open(world.dir("fast"), options, SEED, FailureLatch::new(), Meter::new(), None)
}

fn key(number: usize) -> Vec<u8> {
    match number % 8 {
        3 => format!("long{number:03}-{}", "k".repeat(280)).into_bytes(),
        5 | 6 => format!("{}-{number:03}", "wide".repeat(45)).into_bytes(),
        7 => format!("m{number:03}-{}", "m".repeat(240)).into_bytes(),
        _ => format!("key{number:03}").into_bytes(),
    }
}

fn value(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + number) as u8).collect()
}

/// Fills a store: keys of every sort, values in the write buffer, on flash and in parts, deletes, and batches.
fn fill(engine: &dyn Engine, in_batch: impl FnOnce(&mut dyn FnMut())) {
    let put = |number: usize, len: usize| {
        engine
            .put(&key(number), &value(number, len), Durability::Durable)
            .expect("a whole store takes a put");
    };
    for number in 0..40 {
        put(number, [0, 3000, 700, 40, 120, 200][number % 6]);
    }
    put(100, 19_000);
    engine.flush().expect("room on flash");
    for number in [1, 4, 11, 14, 29] {
        engine.delete(&key(number), Durability::Durable).expect("a whole store takes a delete");
    }
    put(100, 18_000);
    for number in (0..40).step_by(3) {
        put(number, 90);
    }
    let mut batch = WriteBatch::new();
    for number in [2, 7, 13, 62] {
        batch.put(key(number), value(number, 50)).expect("a small batch");
    }
    batch.delete(key(16)).expect("a small batch");
    in_batch(&mut || engine.write(&batch, Durability::Durable).expect("a whole store takes a batch"));
}

/// A store on a byte-addressable pool, closed, and as it was at every event while a batch was written.
pub fn on_memory() -> Vec<World> {
    let world = World::new();
    world.add_pool("pool", POOL);
    world.add_dir("flash");
    let engine = ValueLog::create(in_memory(&world), options()).expect("a store is created");
    let during = Arc::new(Mutex::new(Vec::new()));
    fill(&engine, |write| {
        let seen = during.clone();
        world.on_event(Some(Arc::new(move |world, _| seen.lock().expect("one thread").push(world.copy()))));
        write();
        world.on_event(None);
    });
    drop(engine);
    let mut worlds = std::mem::take(&mut *during.lock().expect("one thread"));
    worlds.push(world);
    worlds
}

/// A store on a logged pool, with pages in the image and blocks in the log.
pub fn on_log() -> World {
    let world = World::new();
    world.add_dir("fast");
    world.add_dir("flash");
    let latch = FailureLatch::new();
    let (dir, meter) = (world.dir("fast"), Meter::new());
    let pool = LoggedPool::create(dir, logged_options(), SEED, latch.clone(), meter, None);
    let media = media(pool.expect("a pool is created"), latch, &world);
    let engine = ValueLog::create(media, options()).expect("a store is created");
    fill(&engine, |write| write());
    drop(engine);
    let pool = logged_pool(&world, logged_options()).expect("a whole pool opens");
    pool.checkpoint().expect("room in the image");
    pool.publish(POOL - 8, 1);
    pool.commit().expect("no faults");
    drop(pool);
    world
}

/// Does to the store of a world all that reads what is stored, and writes to it.
pub fn exercise(world: &World) {
    let _ = salvage(in_memory(world), &mut |_| Ok(()));
    for write in [true, false] {
        let Ok(engine) = ValueLog::open(in_memory(world), options()) else { return };
        read(&engine);
        if write {
            change(&engine);
        }
    }
}

/// The most entries that a store of this size could hold: a scan that gives more does not end.
const MOST: usize = 10_000;

fn read(engine: &dyn Engine) {
    for number in (0..64).chain([100]) {
        let _ = engine.get(&key(number));
    }
    let _ = engine.verify();
    for reverse in [false, true] {
        let Ok(mut cursor) = engine.cursor(KeyRange::all(), None) else { continue };
        let mut count = 0;
        while let Ok(Some(_)) = if reverse { cursor.prev() } else { cursor.next() } {
            count += 1;
            assert!(count < MOST, "the scan does not end");
        }
    }
}

fn change(engine: &dyn Engine) {
    for number in (0..70).step_by(7) {
        let _ = engine.put(&key(number), &value(number, 300), Durability::Durable);
    }
    let _ = engine.delete(&key(100), Durability::Durable);
    let _ = engine.flush();
    let _ = engine.compact();
}
