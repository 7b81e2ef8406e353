//! Many threads at once: group commit, checkpoints beside it, crashes in the middle, and failures.

use crate::support::{self, TestDir, dir, open, wide};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tierdb_base::{ErrorKind, FailureLatch};
use tierdb_device::{Emulation, Meter};
use tierdb_log::{LoggedOptions, LoggedPool};
use tierdb_pmem::Pool;
use tierdb_sim::crashtest::{Options, Oracle, explore};
use tierdb_sim::{Budget, FaultKind, FaultPlan, Ops, World};

const THREADS: u64 = 4;

/// The words of two threads are in the first page, which a checkpoint copies first, and those of the others in the
/// last.
fn word_at(thread: u64) -> u64 {
    thread % 2 * (support::POOL - 4096) + thread * 8
}

/// An empty pool with its media and its failure latch, and where a write takes so long.
fn store(write_latency: Option<Duration>) -> (World, FailureLatch, LoggedPool<TestDir>) {
    let slow = write_latency.map(|write_latency| Emulation {
        name: "test",
        read_latency: Duration::ZERO,
        write_latency,
        bandwidth: 0,
    });
    let (world, latch) = (World::new(), FailureLatch::new());
    let dir = support::new_dir(&world);
    let pool = LoggedPool::create(dir, wide(), support::SEED, latch.clone(), Meter::new(), slow);
    (world, latch, pool.expect("create"))
}

/// Thread t counts up its word; the count before it is in a body that was flushed first.
fn count_up(
    pool: &LoggedPool<TestDir>,
    thread: u64,
    to: u64,
    acked: impl Fn(u64),
) -> tierdb_base::Result<()> {
    for count in 1..=to {
        let body = 4096 + (thread * 2 + count % 2) * 2048;
        let _admitted = pool.admit(2048)?;
        pool.write(body, &[count as u8; 700]);
        pool.flush(body, 700);
        pool.fence();
        pool.publish(word_at(thread), count);
        if count % 3 == 0 {
            pool.wait(pool.lsn())?;
            acked(count);
        }
    }
    pool.wait(pool.lsn())?;
    acked(to);
    Ok(())
}

/// Each thread's count holds what it was told is durable, with its body.
fn check(acked: &[u64; THREADS as usize], pool: &LoggedPool<TestDir>) -> Result<(), String> {
    for (thread, acked) in (0..).zip(acked) {
        let count = pool.load(word_at(thread));
        if count < *acked {
            return Err(format!("thread {thread}: {count} found, {acked} acknowledged"));
        }
        let mut body = [0; 700];
        pool.read(4096 + (thread * 2 + count % 2) * 2048, &mut body).map_err(|e| e.to_string())?;
        // The next count's body goes to the other place.
        if count > 0 && body != [count as u8; 700] {
            return Err(format!("thread {thread}: the body of {count} is damaged"));
        }
    }
    Ok(())
}

#[test]
fn what_any_thread_was_told_survives_a_crash_at_any_moment() {
    let world = World::new();
    let pool = support::create(support::new_dir(&world), &wide()).expect("create");
    let acked = Oracle::new([0; THREADS as usize]);
    let how = Options { every: 7, budget: Budget { torn: 2, ..Budget::SMALL }, ..Options::default() };
    let run = explore(
        &world,
        &how,
        &acked,
        |_, acked| {
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let workers: Vec<_> = (0..THREADS)
                    .map(|thread| {
                        let (pool, acked) = (&pool, &acked);
                        scope.spawn(move || {
                            count_up(pool, thread, 200, |count| {
                                acked.update(|acked| acked[thread as usize] = count);
                            })
                            .expect("no faults");
                        })
                    })
                    .collect();
                scope.spawn(|| {
                    while !done.load(Ordering::Acquire) {
                        if pool.needs_checkpoint() {
                            pool.checkpoint().expect("no faults");
                        }
                        std::thread::yield_now();
                    }
                });
                for worker in workers {
                    worker.join().expect("no panic");
                }
                done.store(true, Ordering::Release);
            });
        },
        |image| open(dir(image), &wide()).map(|_| ()).map_err(|e| e.to_string()),
        |acked, image| check(acked, &open(dir(image), &wide()).map_err(|e| e.to_string())?),
    );
    let run = run.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(run.images > 50, "{run}");
    assert!(pool.stats().checkpoints > 1, "{:?}", pool.stats());
}

#[test]
fn a_failure_wakes_every_waiter_with_a_refusal() {
    for nth in [1, 2, 5, 20, 60] {
        let (world, latch, pool) = store(None);
        world.inject(FaultPlan::nth(nth, FaultKind::Eio).on(Ops::WRITE | Ops::SYNC));
        let acked: Arc<Vec<AtomicU64>> = Arc::new((0..THREADS).map(|_| AtomicU64::new(0)).collect());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (pool, acked) = (&pool, acked.clone());
                scope.spawn(move || {
                    let failed = count_up(pool, thread, 100_000, |count| {
                        acked[thread as usize].store(count, Ordering::Release);
                    });
                    let kind = failed.expect_err("it fails some time").kind();
                    assert!(matches!(kind, ErrorKind::Poisoned | ErrorKind::Io), "{kind:?}");
                });
            }
        });
        assert!(latch.is_set());
        world.heal();
        let acked = std::array::from_fn(|thread| acked[thread].load(Ordering::Acquire));
        for image in [world.copy(), world.capture().nothing(), world] {
            check(&acked, &open(dir(&image), &wide()).expect("recovers")).expect("nothing lost");
        }
    }
}

/// Appends larger than the buffer, by threads that did not ask for admission, while the ring is nearly full.
#[test]
fn appends_that_find_no_room_make_it_and_go_on() {
    let options = LoggedOptions { pool_len: 64 * 4096, image_capacity: 128 * 4096, ..wide() };
    let (world, pool, _) = support::world(&options);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let pool = &pool;
            scope.spawn(move || {
                let at = (1 + thread * 15) * 4096 + 3;
                for count in 1..=20u8 {
                    pool.write(at, &[count; 14 * 4096]);
                    pool.flush(at, 14 * 4096);
                    pool.publish(thread * 8, u64::from(count));
                }
                pool.wait(pool.lsn()).expect("no faults");
            });
        }
    });
    assert!(pool.stats().stall_ns > 0);
    let pool = open(dir(&world.capture().nothing()), &options).expect("recovers");
    for thread in 0..THREADS {
        let mut bytes = vec![0; 14 * 4096];
        pool.read((1 + thread * 15) * 4096 + 3, &mut bytes).expect("memory");
        assert!(pool.load(thread * 8) == 20 && bytes.iter().all(|byte| *byte == 20));
    }
}

/// A waiter looks whether its LSN is durable, and then for the turn to write: in between another thread may have
/// written the block that it waits for.
#[test]
fn a_wait_for_what_another_thread_has_just_written_succeeds() {
    let (_, _, pool) = store(None);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..7 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    pool.wait(pool.lsn()).expect("what was appended becomes durable");
                }
            });
        }
        for count in 1..=60_000 {
            let _admitted = pool.admit(8).expect("room");
            pool.publish(0, count);
            pool.wait(pool.lsn()).expect("what was appended becomes durable");
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Threads that do nothing but durable writes all wait for the same block, and not half of them for every other one.
#[test]
fn writers_that_come_back_at_once_share_blocks() {
    const WRITES: u64 = 100;
    // What others do on the machine may keep a thread from coming back in time: not each time.
    let given_up = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, _, pool) = store(Some(Duration::from_millis(1)));
        let before = pool.stats().log_blocks;
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let pool = &pool;
                scope.spawn(move || {
                    for count in 1..=WRITES {
                        let _admitted = pool.admit(8).expect("room");
                        pool.publish(word_at(thread), count);
                        pool.wait(pool.lsn()).expect("no faults");
                    }
                });
            }
        });
        let blocks = pool.stats().log_blocks - before;
        assert!(blocks >= WRITES, "{blocks} blocks for {WRITES} writes, one after another, of each thread");
        if blocks < WRITES * 3 / 2 {
            return;
        }
        assert!(Instant::now() < given_up, "never less than {blocks} blocks");
    }
}

/// Of those who sleep until the next block can be written one alone is woken. If it is refused, the others are, too.
#[test]
fn a_store_that_fails_meanwhile_leaves_no_waiter_asleep() {
    let (_, latch, pool) = store(Some(Duration::from_millis(100)));
    let pool = Arc::new(pool);
    let first = pool.clone();
    pool.publish(0, 1);
    let writer = std::thread::spawn(move || first.wait(first.lsn()));
    std::thread::sleep(Duration::from_millis(20));
    let failing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(40));
        latch.set(tierdb_base::Error::invalid("on purpose"));
    });
    let (ended, ends) = std::sync::mpsc::channel();
    for thread in 1..=5 {
        let (pool, ended) = (pool.clone(), ended.clone());
        std::thread::spawn(move || {
            pool.publish(thread * 8, 1);
            // Refused, or if it came so late that it shared the first block, not.
            let _ = pool.wait(pool.lsn());
            ended.send(()).expect("the test listens");
        });
    }
    for left in (1..=5).rev() {
        let end = ends.recv_timeout(Duration::from_secs(60));
        end.unwrap_or_else(|_| panic!("{left} of 5 threads sleep for ever"));
    }
    failing.join().expect("no panic");
    // Its block was on its way, or never was.
    let _ = writer.join().expect("no panic");
}

/// A value that writes when it is dropped, and is dropped by a panic of its owner, has written.
#[test]
fn a_write_of_a_thread_that_unwinds_fails_nothing() {
    struct Writes<'p>(&'p LoggedPool<TestDir>);
    impl Drop for Writes<'_> {
        fn drop(&mut self) {
            self.0.publish(0, 1);
            self.0.wait(self.0.lsn()).expect("no faults");
        }
    }
    let (_, latch, pool) = store(None);
    let unwound = std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let _writes = Writes(&pool);
            panic!("on purpose");
        });
        owner.join()
    });
    assert!(unwound.is_err() && !latch.is_set());
    pool.publish(8, 1);
    pool.wait(pool.lsn()).expect("nothing has failed");
}

/// Whose block was taken from the buffer by a thread that then panicked, nobody is told is durable, and no other block comes to
/// lie where it was to be.
#[test]
fn a_thread_that_panics_with_a_block_fails_the_store() {
    let (world, _, pool) = store(None);
    pool.publish(0, 1);
    pool.wait(pool.lsn()).expect("no faults yet");
    world.inject(FaultPlan::nth(1, FaultKind::Panic).on(Ops::WRITE));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            pool.publish(8, 1);
            pool.wait(pool.lsn())
        });
        assert!(writer.join().is_err(), "the write panics");
    });
    assert_eq!(world.heal().hit, 1);
    pool.publish(16, 1);
    let refused = pool.wait(pool.lsn()).expect_err("what was taken before is not written");
    assert_eq!(refused.kind(), ErrorKind::Poisoned, "{refused}");
    let found = open(support::dir(&world.copy()), &wide()).expect("recovers");
    assert_eq!([0, 8, 16].map(|at| found.load(at)), [1, 0, 0]);
}
