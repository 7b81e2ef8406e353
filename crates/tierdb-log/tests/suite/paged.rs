//! Pools that are longer than what DRAM has of them.

use crate::support::{self, POOL, TestDir, create, dir, open, paged, wide};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tierdb_base::mutant;
use tierdb_base::{ErrorKind, FailureLatch};
use tierdb_device::Meter;
use tierdb_log::{LoggedOptions, LoggedPool};
use tierdb_pmem::Pool;
use tierdb_sim::World;

const PAGE: u64 = 4096;

fn options() -> LoggedOptions {
    paged(wide())
}

/// A pool of which every page but the first has been written, and left DRAM.
fn absent() -> (World, LoggedPool<TestDir>) {
    absent_with(&options())
}

fn absent_with(options: &LoggedOptions) -> (World, LoggedPool<TestDir>) {
    let world = World::new();
    let pool = create(support::new_dir(&world), options).expect("create");
    for page in 1..POOL / PAGE {
        put(&pool, page * PAGE, &[page as u8; PAGE as usize]);
    }
    pool.checkpoint().expect("no faults");
    (world, pool)
}

fn put(pool: &impl Pool, at: u64, bytes: &[u8]) {
    let _admitted = pool.admit(bytes.len() as u64 + 64).expect("no faults");
    pool.write(at, bytes);
    pool.flush(at, bytes.len() as u64);
}

fn all(pool: &impl Pool) -> Vec<u8> {
    let mut bytes = vec![0; POOL as usize];
    pool.read(0, &mut bytes).expect("whole");
    bytes
}

fn resident(pool: &impl Pool) -> u64 {
    pool.dram_bytes().expect("it is in DRAM")
}

#[test]
fn what_a_checkpoint_has_written_leaves_dram_and_words_stay() {
    // The memory of no page that has left is kept for the next.
    let (world, pool) = absent_with(&LoggedOptions { paged: Some(0), ..options() });
    let least = resident(&pool);
    assert!(least < 2 * PAGE && !pool.is_in_memory(), "{least}");
    assert_eq!(pool.load(5 * PAGE + 8), 0x0505_0505_0505_0505);
    pool.publish(5 * PAGE, 7);
    pool.checkpoint().expect("no faults");
    assert_eq!(resident(&pool), least + PAGE, "the page of a word");
    pool.fetch(3 * PAGE, 4 * PAGE).expect("no faults");
    assert_eq!(resident(&pool), least + 4 * PAGE);
    pool.release(3 * PAGE, 4 * PAGE);
    assert_eq!(resident(&pool), least + PAGE, "and still");
    put(&pool, 7 * PAGE, &[1; 64]);
    pool.release(7 * PAGE, PAGE);
    assert_eq!(resident(&pool), least + 2 * PAGE, "what was written stays until a checkpoint");
    let now = all(&pool);
    assert!(now[7 * PAGE as usize..][..64] == [1; 64] && now[7 * PAGE as usize + 64..][..4000] == [7; 4000]);
    pool.close().expect("no faults");
    assert!(all(&open(dir(&world), &options()).expect("opens")) == now);
}

/// Any ranges, written, flushed and read, beside checkpoints, fetches, releases and opens: as a pool that is all in DRAM.
#[test]
fn it_reads_as_it_was_written() {
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (world, mut pool) = absent();
        let mut model = all(&pool);
        for step in 0..400 {
            let at = rng.u64(0..POOL);
            let len = if rng.bool() { rng.u64(1..200) } else { rng.u64(1..9000) }.min(POOL - at);
            match rng.u8(0..17) {
                0 => pool.checkpoint().expect("no faults"),
                1 => pool.release(at, len),
                2 => pool.fetch(at, len).expect("no faults"),
                3 => {
                    pool.commit().expect("no faults");
                    drop(pool);
                    pool = open(dir(&world), &options()).expect("opens");
                }
                4 => {
                    pool.publish(at / 8 * 8, step);
                    model[at as usize / 8 * 8..][..8].copy_from_slice(&step.to_le_bytes());
                }
                5..9 => {
                    let mut bytes = vec![0; len as usize];
                    pool.read(at, &mut bytes).expect("whole");
                    assert!(bytes == model[at as usize..][..len as usize], "seed {seed}, step {step}");
                }
                16 => {
                    let ats: Vec<u64> = (0..rng.u64(1..100)).map(|_| rng.u64(0..POOL - 3000)).collect();
                    let mut read: Vec<Vec<u8>> = ats.iter().map(|_| vec![0; rng.usize(0..3000)]).collect();
                    let mut reads: Vec<_> =
                        ats.iter().copied().zip(read.iter_mut().map(|bytes| &mut bytes[..])).collect();
                    assert!(pool.read_many(&mut reads).iter().all(Result::is_ok));
                    for (at, read) in ats.iter().zip(read) {
                        assert!(read == model[*at as usize..][..read.len()], "seed {seed}, step {step}");
                    }
                }
                _ => {
                    let bytes: Vec<u8> = (0..len).map(|_| rng.u8(..)).collect();
                    put(&pool, at, &bytes);
                    model[at as usize..][..len as usize].copy_from_slice(&bytes);
                }
            }
            if pool.needs_checkpoint() {
                pool.checkpoint().expect("no faults");
            }
        }
        assert!(all(&pool) == model, "seed {seed}");
    }
}

/// Writes to a page while a checkpoint is at work, after it was copied, and flushes that only when the checkpoint has ended. Says
/// whether nothing was lost.
fn what_is_written_during_a_checkpoint_stays() -> bool {
    let (world, pool) = absent();
    let pool = Arc::new(pool);
    let dir = support::dir(&world);
    let during = dir.dirs()[0].during.clone();
    drop(pool);
    let pool = Arc::new(open(dir, &options()).expect("opens"));
    put(&*pool, 9 * PAGE, &[1; 64]);
    let (inner, done) = (pool.clone(), AtomicBool::new(false));
    *during.lock().expect("no panic") = Some(Box::new(move || {
        if !done.swap(true, Ordering::Relaxed) {
            inner.write(9 * PAGE, &[2; 64]);
        }
    }));
    pool.checkpoint().expect("no faults");
    *during.lock().expect("no panic") = None;
    let mut now = [0; 64];
    pool.read(9 * PAGE, &mut now).expect("whole");
    pool.flush(9 * PAGE, 64);
    pool.commit().expect("no faults");
    drop(pool);
    let mut later = [0; 64];
    open(support::dir(&world), &options()).expect("opens").read(9 * PAGE, &mut later).expect("whole");
    now == [2; 64] && later == [2; 64]
}

#[test]
fn a_page_that_was_written_since_it_was_copied_stays() {
    let sites = mutant::record(|| assert!(what_is_written_during_a_checkpoint_stays()));
    let sites: Vec<_> = sites.into_keys().filter(|site| site.what == "resident").collect();
    assert_eq!(sites.len(), 1, "{sites:?}");
    let missed =
        sites.iter().filter(|site| mutant::without(**site, what_is_written_during_a_checkpoint_stays));
    assert_eq!(missed.count(), 0, "not noticed");
}

/// Each thread writes pages of its own, and others read them, while checkpoints drop them.
#[test]
fn readers_see_whole_pages_whatever_leaves_dram() {
    const ROUNDS: u8 = 200;
    let (_world, pool) = absent();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3u64)
            .map(|thread| {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        let page = 1 + thread * 4 + u64::from(round) % 4;
                        put(pool, page * PAGE + 64, &[round; 1024]);
                        let mut own = [0; 1024];
                        pool.read(page * PAGE + 64, &mut own).expect("whole");
                        assert!(own == [round; 1024], "page {page}, round {round}: {own:?}");
                        pool.commit().expect("no faults");
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                pool.checkpoint().expect("no faults");
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                for page in 13..POOL / PAGE {
                    let mut bytes = [0; PAGE as usize];
                    pool.read(page * PAGE, &mut bytes).expect("whole");
                    assert!(bytes == [page as u8; PAGE as usize], "page {page}");
                    pool.fetch(page * PAGE, PAGE).expect("no faults");
                    pool.release(page * PAGE, PAGE);
                }
            }
        });
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Release);
        assert!(ended.iter().all(Result::is_ok));
    });
}

/// Nobody makes checkpoints but writers themselves, who would fill memory else.
#[test]
fn writers_do_not_get_ahead_of_checkpoints_by_more_than_memory_has_room_for() {
    let options = LoggedOptions { paged: Some(2 * PAGE), ..options() };
    let world = World::new();
    let pool = create(support::new_dir(&world), &options).expect("create");
    let most = (1..200).map(|number| {
        put(&pool, (1 + number % 27) * PAGE, &[number as u8; 64]);
        resident(&pool)
    });
    let most = most.max().expect("writes");
    assert!(most <= 6 * PAGE, "{most}");
}

/// Of what cannot be read, readers are told; who uses a word of it cannot be, so nothing more is written.
#[test]
fn damage_is_told_to_readers_and_ends_writing_where_it_has_a_word() {
    let (world, pool) = absent();
    drop(pool);
    let len = world.areas().iter().find(|area| area.name == "fast/pool.image").expect("the image").len;
    for at in (0..len).step_by(PAGE as usize) {
        world.flip_bit("fast/pool.image", at + 77, 3);
    }
    let latch = FailureLatch::new();
    let pool = LoggedPool::open(dir(&world), options(), support::SEED, latch.clone(), Meter::new(), None);
    let pool = pool.expect("nothing is read before it is asked for");
    let refused = pool.read(4 * PAGE + 100, &mut [0; 8]).expect_err("damaged");
    assert!(refused.kind() == ErrorKind::Corrupt && refused.to_string().contains("pool.image"), "{refused}");
    assert_eq!(pool.fetch(4 * PAGE, PAGE).expect_err("damaged").kind(), ErrorKind::Corrupt);
    // Of whole grains nothing has to be read.
    put(&pool, 4 * PAGE, &[9; 128]);
    let mut bytes = [0; 128];
    pool.read(4 * PAGE, &mut bytes).expect("written just now");
    assert!(bytes == [9; 128] && !latch.is_set());
    let (mut damaged, mut whole, mut beside) = ([0; 64], [0; 64], [0; 64]);
    let mut reads =
        [(5 * PAGE, &mut damaged[..]), (4 * PAGE + 32, &mut whole), (4 * PAGE + 100, &mut beside)];
    let results = pool.read_many(&mut reads);
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(whole, [9; 64]);
    // A checkpoint has to.
    assert_eq!(pool.checkpoint().expect_err("damaged").kind(), ErrorKind::Corrupt);
    pool.commit().expect("the log goes on");
    pool.read(4 * PAGE, &mut bytes).expect("it is still there");
    assert!(bytes == [9; 128] && !latch.is_set());
    assert_eq!(pool.load(6 * PAGE), 0);
    assert!(latch.is_set());
    pool.store(6 * PAGE, 7);
    assert_eq!(pool.load(6 * PAGE), 7, "a word is what was stored last, though it will never be durable");
    pool.publish(0, 1);
    pool.wait(pool.lsn()).expect_err("nothing is written any more");
}
