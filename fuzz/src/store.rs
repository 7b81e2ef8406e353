//! Small stores of the value-log engine on simulated media, with something of everything in them.

use crate::entries::{SEED, create_pool, fill, fill_and_watch, media, open_and_use, open_pool};
use tierdb_base::{FailureLatch, checksum, checksum_parts};
use tierdb_engine::Engine;
use tierdb_log::LoggedOptions;
use tierdb_pmem::Pool;
use tierdb_sim::{SimDir, SimPool, World};
use tierdb_valuelog::{Background, Media, Options, ValueLog, salvage};

const POOL: u64 = 112 << 10;
const FLASH: u64 = 384 << 10;
const CHUNK: u64 = 16 << 10;
const VALUES: &str = "flash/values";
/// Bytes of a part before those of the value.
const PART_HEADER: usize = 24;

fn options() -> Options {
    Options {
        chunk_bytes: CHUNK,
        rings: 1,
        ring_bytes: 16 << 10,
        recovery_threads: 1,
        background: Background::Inline,
        ..Options::for_pool(64 << 10, POOL)
    }
}

fn in_memory(world: &World) -> Media<SimPool, SimDir> {
    media(world.pool("pool").opened(), FailureLatch::new(), world, FLASH)
}

/// How a logged pool of these stores is laid out.
pub fn logged_options() -> LoggedOptions {
    LoggedOptions { log_len: 32 * (32 << 10), buffer_bytes: 32 << 10, ..LoggedOptions::new(POOL) }
}

/// A store on a byte-addressable pool: as it was at the events while several keys changed, as a kill leaves it, and
/// last as a close does.
pub fn on_memory() -> Vec<World> {
    let world = World::new();
    world.add_pool("pool", POOL);
    world.add_dir("flash");
    let engine = ValueLog::create(in_memory(&world), options()).expect("a store is created");
    let mut worlds = fill_and_watch(&world, &engine);
    worlds.push(world.copy());
    engine.close().expect("no faults");
    worlds.push(world);
    worlds
}

/// The image that a close has left, and what finds it: a part in the file of values, and a list of one part in the pool.
#[derive(Clone)]
pub struct ClosedStore {
    world: World,
    /// Byte of the part in `flash/values`.
    part_at: u64,
    /// Byte of the list's length in the pool.
    list_at: u64,
    /// The words of the image.
    pub words: Vec<u64>,
}

impl ClosedStore {
    /// Fills and closes a store.
    pub fn new() -> Self {
        let world = on_memory().pop().expect("the closed one is the last");
        let parts: Vec<_> =
            (0..FLASH / CHUNK).filter_map(|chunk| Self::part(&world, chunk * CHUNK)).collect();
        let found = parts.into_iter().find(|store| !store.with(&[]).opens_from_image());
        let found = found.expect("the close has left an image");
        assert!(found.with(&found.words).opens_from_image(), "it is written as the store does");
        found
    }

    /// The part at byte `part_at`, if it is the only one of something that the pool lists.
    fn part(world: &World, part_at: u64) -> Option<Self> {
        let len = world.areas().iter().find(|area| area.name == VALUES)?.len;
        if part_at + CHUNK > len {
            return None;
        }
        let chunk = world.peek(VALUES, part_at, CHUNK as usize);
        let (header, bytes) = chunk.split_at(PART_HEADER);
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let bytes = bytes.get(..word(0) as usize)?;
        let sum = checksum_parts(SEED, &[&header[..16], bytes]);
        let list = list_of(bytes.len(), sum);
        let pool = world.peek("pool", 0, POOL as usize);
        let list_at = pool.windows(list.len()).position(|found| found == list)? as u64;
        let words = bytes.as_chunks::<8>().0.iter().copied().map(u64::from_le_bytes).collect();
        Some(ClosedStore { world: world.copy(), part_at, list_at, words })
    }

    /// A copy whose image has these words, with checksums that fit.
    #[must_use]
    pub fn with(&self, words: &[u64]) -> Self {
        let most = (CHUNK as usize - PART_HEADER) / 8;
        let words = words[..words.len().min(most)].to_vec();
        let bytes: Vec<u8> = words.iter().copied().flat_map(u64::to_le_bytes).collect();
        let header = [(bytes.len() as u64).to_le_bytes(), [0; 8]].concat();
        let sum = checksum_parts(SEED, &[&header, &bytes]);
        let world = self.world.copy();
        world.overwrite(VALUES, self.part_at, &[&header, &sum.to_le_bytes()[..], &bytes].concat());
        world.overwrite("pool", self.list_at, &list_of(bytes.len(), sum));
        ClosedStore { world, words, ..*self }
    }

    fn opens_from_image(&self) -> bool {
        let engine = ValueLog::open(in_memory(&self.world.copy()), options()).expect("a closed store opens");
        engine.stats().figure("opened_from_image") == Some(1)
    }

    /// Opens it, and uses it.
    pub fn exercise(&self) {
        open_and_use(|| ValueLog::open(in_memory(&self.world), options()));
    }
}

impl Default for ClosedStore {
    fn default() -> Self {
        Self::new()
    }
}

/// How a list of one part begins: the length, and the checksum of the parts' checksums.
fn list_of(len: usize, sum: u64) -> [u8; 16] {
    let mut list = [0; 16];
    list[..8].copy_from_slice(&(len as u64).to_le_bytes());
    list[8..].copy_from_slice(&checksum(SEED, &sum.to_le_bytes()).to_le_bytes());
    list
}

/// A store on a logged pool, with pages in the image and blocks in the log.
pub fn on_log() -> World {
    let world = World::new();
    world.add_dir("fast");
    world.add_dir("flash");
    let latch = FailureLatch::new();
    let pool = create_pool(&world, logged_options(), latch.clone());
    let media = media(pool, latch, &world, FLASH);
    let engine = ValueLog::create(media, options()).expect("a store is created");
    fill(&engine, |write| write());
    drop(engine);
    let pool = open_pool(&world, logged_options(), FailureLatch::new()).expect("a whole pool opens");
    pool.checkpoint().expect("room in the image");
    pool.publish(POOL - 8, 1);
    pool.commit().expect("no faults");
    drop(pool);
    world
}

/// Does to the store of a world all that reads what is stored, and writes to it.
pub fn exercise(world: &World) {
    let _ = salvage(in_memory(world), &mut |_| Ok(()));
    open_and_use(|| ValueLog::open(in_memory(world), options()));
}
