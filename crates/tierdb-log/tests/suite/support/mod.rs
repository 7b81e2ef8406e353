//! A small engine on a pool: values published in an order that can be checked after a crash.
//!
//! Publish number k writes a body, flushes it, and publishes a word that says which body is valid. There are
//! [`WORDS`] words, taken in turn, and two places for the body of each, so that a body is never written where a
//! live one is. A recovered pool must be the state after some prefix of the publishes, one that holds all that
//! were waited for.

mod flight;

pub use flight::{During, InFlight, Unreadable};
use tierdb_base::{FailureLatch, Result};
use tierdb_device::{BLOCK, Dir, Meter, Striped};
use tierdb_log::{LoggedOptions, LoggedPool};
use tierdb_pmem::Pool;
use tierdb_sim::crashtest::Oracle;
use tierdb_sim::{SimDir, World};

/// The store's identity in these tests.
pub const SEED: u64 = 0x7469_6572_6462_0001;
/// Words that are published in turn. More publishes than this are never in flight at once.
pub const WORDS: u64 = 16;
/// The longest body, and the distance between two: words are shared between neighbours.
const BODY: u64 = 2909;
/// Pages of words and bodies.
pub const POOL: u64 = 28 * 4096;

/// A ring of 32 blocks of one page: it wraps often.
pub fn small() -> LoggedOptions {
    LoggedOptions {
        pool_len: POOL,
        log_len: 32 * 4096,
        buffer_bytes: 4096,
        image_capacity: 2 * POOL,
        ..LoggedOptions::new(POOL)
    }
}

/// Blocks of up to two pages, and an image that makes checkpoints take rounds.
pub fn wide() -> LoggedOptions {
    LoggedOptions {
        log_len: 32 * 2 * 4096,
        buffer_bytes: 2 * 4096,
        image_capacity: POOL + 16 * 4096,
        ..small()
    }
}

/// The same, longer than what DRAM has of it: nearly every page that a checkpoint writes leaves DRAM.
pub fn paged(options: LoggedOptions) -> LoggedOptions {
    LoggedOptions { paged: Some(4 * 4096), ..options }
}

pub fn create<D: Dir>(dir: D, options: &LoggedOptions) -> Result<LoggedPool<D>> {
    LoggedPool::create(dir, options.clone(), SEED, FailureLatch::new(), Meter::new(), None)
}

pub fn open<D: Dir>(dir: D, options: &LoggedOptions) -> Result<LoggedPool<D>> {
    LoggedPool::open(dir, options.clone(), SEED, FailureLatch::new(), Meter::new(), None)
}

/// What is known of the publishes so far.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The pool's creation was acknowledged.
    pub created: bool,
    /// The words published, in order. A word is its number, from 1, and the era in which it was published.
    pub published: Vec<u64>,
    /// How many of them were waited for.
    pub acked: usize,
    /// Tells publishes from those with the same number that a crash took back.
    pub era: u64,
}

/// In the first page, which a checkpoint copies before the bodies, or in the last, which it copies after them.
fn word_at(number: u64) -> u64 {
    let slot = number % WORDS;
    slot % 2 * (POOL - 4096) + 64 + slot * 72
}

fn body_at(number: u64) -> u64 {
    4096 + (number % WORDS * 2 + number / WORDS % 2) * BODY
}

fn body(word: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(word);
    let len = 1 + rng.usize(0..BODY as usize) / if rng.bool() { 1 } else { 30 };
    (0..len).map(|_| rng.u8(..)).collect()
}

impl Known {
    /// The word that the next publish will have.
    fn next(&self) -> u64 {
        self.era << 32 | (self.published.len() as u64 + 1)
    }

    /// What is wrong with `pool`, or how many publishes it holds.
    pub fn check<P: Pool>(&self, pool: &P) -> Result<usize, String> {
        let words: Vec<u64> = (0..WORDS).map(|slot| pool.load(word_at(slot))).collect();
        let count = words.iter().map(|word| word & 0xffff_ffff).max().unwrap_or(0) as usize;
        if count > self.published.len() || count < self.acked {
            let range = self.acked..=self.published.len();
            return Err(format!("{count} publishes found, not {range:?}"));
        }
        let mut expected = vec![0; WORDS as usize];
        for word in &self.published[..count] {
            expected[((word & 0xffff_ffff) % WORDS) as usize] = *word;
        }
        if words != expected {
            return Err(format!("after {count} publishes: {words:x?}, not {expected:x?}"));
        }
        for word in words.into_iter().filter(|word| *word != 0) {
            let expected = body(word);
            let mut found = vec![0; expected.len()];
            pool.read(body_at(word & 0xffff_ffff), &mut found).map_err(|e| e.to_string())?;
            if found != expected {
                return Err(format!("the body of {word:x} of {count} publishes is damaged"));
            }
        }
        Ok(count)
    }
}

/// One publish, with its body.
pub fn publish<P: Pool>(pool: &P, known: &Oracle<Known>) {
    let word = known.update(|known| {
        let word = known.next();
        known.published.push(word);
        word
    });
    let number = word & 0xffff_ffff;
    let bytes = body(word);
    pool.write(body_at(number), &bytes);
    pool.flush(body_at(number), bytes.len() as u64);
    pool.fence();
    pool.publish(word_at(number), word);
}

/// Waits for all that was published.
pub fn acknowledge<P: Pool>(pool: &P, known: &Oracle<Known>) -> Result<()> {
    let count = known.get().published.len();
    pool.wait(pool.lsn())?;
    known.update(|known| known.acked = known.acked.max(count));
    Ok(())
}

/// `steps` publishes on `pool`, with waits, commits and checkpoints between.
pub fn work<D: Dir>(pool: &LoggedPool<D>, known: &Oracle<Known>, steps: u64, seed: u64) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..steps {
        let _admitted = pool.admit(BODY + 100)?;
        publish(pool, known);
        let pending = known.get();
        if rng.u8(0..3) == 0 || pending.published.len() - pending.acked >= WORDS as usize / 2 {
            acknowledge(pool, known)?;
        }
        if pool.needs_checkpoint() || rng.u8(0..40) == 0 {
            pool.checkpoint()?;
        }
    }
    acknowledge(pool, known)
}

/// The simulated directory of the pools, with durable writes seen in flight, or several of them as one.
pub type TestDir = Striped<InFlight<SimDir>>;

const DIRS: [&str; 3] = ["fast", "fast1", "fast2"];

/// The directory `fast` of `world`.
pub fn dir(world: &World) -> TestDir {
    dirs(world, 1)
}

/// The first `count` directories of `world` as one, with stripes so short that most writes cross several.
pub fn dirs(world: &World, count: usize) -> TestDir {
    let in_flight = |name: &&str| InFlight {
        dir: world.dir(name),
        during: During::default(),
        unreadable: Unreadable::default(),
    };
    Striped::with_stripe(DIRS[..count].iter().map(in_flight).collect(), BLOCK).expect("directories")
}

/// The directory `fast` of `world`, where the block of `file` at `at` cannot be read.
pub fn dir_without(world: &World, file: &str, at: u64) -> TestDir {
    let unreadable = Some((file.to_owned(), at));
    let dir = InFlight { dir: world.dir("fast"), during: During::default(), unreadable };
    Striped::with_stripe(vec![dir], BLOCK).expect("a directory")
}

/// Adds the directory `fast` to `world`.
pub fn new_dir(world: &World) -> TestDir {
    new_dirs(world, 1)
}

/// Adds `count` directories to `world`.
pub fn new_dirs(world: &World, count: usize) -> TestDir {
    DIRS[..count].iter().for_each(|name| drop(world.add_dir(name)));
    dirs(world, count)
}

/// A world with a created pool in the directory `fast`.
pub fn world(options: &LoggedOptions) -> (World, LoggedPool<TestDir>, Oracle<Known>) {
    let world = World::new();
    let pool = create(new_dir(&world), options).expect("create");
    (world, pool, Oracle::new(Known { created: true, ..Known::default() }))
}

/// Opens the pool in `world`, checks it, and goes on from what it holds.
pub fn reopen(
    world: &World,
    options: &LoggedOptions,
    known: &Known,
) -> Result<(LoggedPool<TestDir>, Oracle<Known>), String> {
    reopen_in(dir(world), options, known)
}

/// As [`reopen`], of the pool in `dir`.
pub fn reopen_in(
    dir: TestDir,
    options: &LoggedOptions,
    known: &Known,
) -> Result<(LoggedPool<TestDir>, Oracle<Known>), String> {
    let pool = open(dir, options).map_err(|e| format!("open: {e}"))?;
    let count = known.check(&pool)?;
    let mut known = known.clone();
    known.published.truncate(count);
    // What was found may have been read, so it must stay.
    known.acked = count;
    known.era += 1;
    Ok((pool, Oracle::new(known)))
}
