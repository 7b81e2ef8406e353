//! Pages that the log carries while it can, and checkpoints of a pool that is mostly a write buffer.

use crate::support::{self, dir, open, world};
use tierdb_device::Dir;
use tierdb_log::{LoggedOptions, LoggedPool};
use tierdb_pmem::{Lsn, Pool};
use tierdb_sim::World;
use tierdb_sim::crashtest::{Options, Oracle, explore};

const RING: std::ops::Range<u64> = 4096..9 * 4096;
const RECORD: u64 = 512;

fn options() -> LoggedOptions {
    LoggedOptions {
        pool_len: 12 * 4096,
        log_len: 64 * 4096,
        buffer_bytes: 2 * 4096,
        image_capacity: 28 * 4096,
        ..LoggedOptions::new(0)
    }
}

/// A ring of records, each of which is dead when the word at 0 (the tail) has passed it. The word at 8 says how
/// many were appended.
struct Buffer<'p, D: Dir> {
    pool: &'p LoggedPool<D>,
    tail: u64,
    head: u64,
    /// The LSN before each record since the tail.
    starts: std::collections::VecDeque<Lsn>,
}

fn place(record: u64) -> u64 {
    RING.start + record * RECORD % (RING.end - RING.start)
}

impl<'p, D: Dir> Buffer<'p, D> {
    fn append(&mut self) {
        self.starts.push_back(self.pool.lsn());
        let bytes = [self.head as u8 | 1; RECORD as usize];
        self.pool.write(place(self.head), &bytes);
        self.pool.flush(place(self.head), RECORD);
        self.head += 1;
        self.pool.publish(8, self.head);
    }

    /// Lets the oldest `count` records be overwritten.
    fn reclaim(&mut self, count: u64) {
        self.tail += count;
        self.pool.publish(0, self.tail);
        self.pool.wait(self.pool.lsn()).expect("no faults");
        self.starts.drain(..count as usize);
        self.pool.keep_log_from(self.starts.front().copied().unwrap_or(self.pool.lsn()));
    }
}

fn check(acked: &u64, image: &World) -> Result<(), String> {
    let pool = open(dir(image), &options()).map_err(|e| e.to_string())?;
    let (tail, head) = (pool.load(0), pool.load(8));
    if head < *acked || head < tail {
        return Err(format!("head {head} and tail {tail}, {acked} acknowledged"));
    }
    for record in tail..head {
        let mut bytes = [0; RECORD as usize];
        pool.read(place(record), &mut bytes).map_err(|e| e.to_string())?;
        if bytes != [record as u8 | 1; RECORD as usize] {
            return Err(format!("record {record} of {tail}..{head} is damaged"));
        }
    }
    Ok(())
}

/// Appends and reclaims `rounds` times, keeping at most `live` records, and waits for every
/// `group`, with checkpoints when they are due.
fn churn<D: Dir>(pool: &LoggedPool<D>, rounds: u64, live: u64, group: u64, acked: &Oracle<u64>) {
    pool.set_transient(RING);
    let starts = std::collections::VecDeque::new();
    let mut buffer = Buffer { pool, tail: 0, head: 0, starts };
    for round in 0..rounds {
        let _admitted = pool.admit(2048).expect("no faults");
        buffer.append();
        if round % group == 0 {
            pool.wait(pool.lsn()).expect("no faults");
            acked.update(|acked| *acked = buffer.head);
        }
        if buffer.head - buffer.tail >= live {
            buffer.reclaim(live / 2);
        }
        if pool.needs_checkpoint() {
            pool.checkpoint().expect("no faults");
        }
    }
}

#[test]
fn records_live_in_the_log_alone_and_survive_a_crash_at_any_moment() {
    let world = World::new();
    let pool = support::create(support::new_dir(&world), &options()).expect("create");
    let how = Options { every: 3, depth: 2, ..Options::default() };
    let run = explore(
        &world,
        &how,
        &Oracle::new(0),
        |_, acked| churn(&pool, 400, 16, 3, acked),
        |image| open(dir(image), &options()).map(|_| ()).map_err(|e| e.to_string()),
        check,
    );
    let run = run.unwrap_or_else(|failure| panic!("{failure}"));
    let stats = pool.stats();
    assert!(run.images > 200 && stats.checkpoints >= 4, "{run} {stats:?}");
    // The page of head and tail, and no record.
    assert_eq!(stats.checkpoint_pages, stats.checkpoints, "{stats:?}");
}

#[test]
fn records_that_live_too_long_are_checkpointed_and_survive_too() {
    let world = World::new();
    let pool = support::create(support::new_dir(&world), &options()).expect("create");
    let run = explore(
        &world,
        &Options { every: 3, ..Options::default() },
        &Oracle::new(0),
        // All of the buffer, in a block each: what is kept fills over half of the log.
        |_, acked| churn(&pool, 400, 64, 1, acked),
        |image| open(dir(image), &options()).map(|_| ()).map_err(|e| e.to_string()),
        check,
    );
    run.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(pool.stats().checkpoint_pages > 2 * pool.stats().checkpoints, "{:?}", pool.stats());
}

#[test]
fn pages_that_the_log_carries_make_way_for_what_is_admitted() {
    let (_world, pool, _) = world(&options());
    pool.set_transient(RING);
    for _ in 0..3 {
        pool.flush(RING.start, RING.end - RING.start);
        pool.commit().expect("no faults");
    }
    pool.checkpoint().expect("no faults");
    assert!(pool.log_used() > 24 * 4096, "the log carries them");
    let _admitted = pool.admit(24 * 4096).expect("no faults");
    assert_eq!(pool.log_used(), 0);
}

#[test]
fn a_log_kept_too_short_loses_records() {
    // The test above can fail: an engine that declares live records dead loses them.
    let (world, pool, acked) = world(&options());
    drop(acked);
    pool.set_transient(RING);
    let mut buffer = Buffer { pool: &pool, tail: 0, head: 0, starts: std::collections::VecDeque::new() };
    buffer.append();
    pool.commit().expect("no faults");
    pool.keep_log_from(pool.lsn());
    pool.checkpoint().expect("no faults");
    assert!(check(&1, &world.copy()).is_err());
}
