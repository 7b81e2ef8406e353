//! Goal: writers that compete for a small fast tier are made to wait, and none of them is refused, nor left behind.
//! Method: eight threads insert new keys as fast as they can, many times what the fast tier holds, so that what is freed for one of them
//! another has taken before it looks.

use crate::rig::Sizes;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::{Background, Durability, Engine, WriteBatch};

const THREADS: usize = 8;
const EACH: usize = 500;
const KIB: u64 = 1 << 10;

fn key(number: usize) -> Vec<u8> {
    (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec()
}

fn sizes(levels: u8) -> Sizes {
    Sizes {
        name: "crowd",
        pool: 516 * KIB,
        slab: 16 * KIB,
        table: 16 * KIB,
        flash: vec![64 << 20],
        memory: 512 * KIB,
        levels: (levels, 1000),
        background: Background::Threads,
        ..Sizes::tiny()
    }
}

/// How long the small writers go on, if nobody tells them to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells them when it is dropped, in whatever way the test ends.
struct Told<'d>(&'d AtomicBool);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What is made free for a batch that needs half of the tier is not taken by small writes for ever.
#[test]
fn who_needs_much_is_not_left_behind_by_who_need_little() {
    let rig = Rig::new(sizes(1), None);
    let world = rig.empty_world();
    let engine: &dyn Engine = &*rig.open(&world).expect("opens");
    let (done, at_work, begun) = (AtomicBool::new(false), AtomicUsize::new(0), Instant::now());
    std::thread::scope(|scope| {
        let _told = Told(&done);
        for thread in 0..4 {
            let (done, at_work) = (&done, &at_work);
            scope.spawn(move || {
                at_work.fetch_add(1, Ordering::SeqCst);
                let goes_on = || !done.load(Ordering::SeqCst) && begun.elapsed() < PATIENCE;
                (0..).map(|number| number * 4 + thread).take_while(|_| goes_on()).for_each(|number| {
                    engine.put(&key(number % 6_000), &[7; 1024], Durability::Grouped).expect("it waits");
                });
                at_work.fetch_sub(1, Ordering::SeqCst);
            });
        }
        while at_work.load(Ordering::SeqCst) < 4 {
            std::thread::yield_now();
        }
        for round in 0..3 {
            let mut batch = WriteBatch::new();
            for number in 0..200 {
                batch.put(key(10_000 + round * 200 + number), [8; 1024]).expect("a small batch");
            }
            engine.write(&batch, Durability::Grouped).expect("it waits");
            assert_eq!(at_work.load(Ordering::SeqCst), 4, "it was left behind until they gave up");
        }
    });
}

#[test]
fn nobody_is_refused() {
    for levels in [1, 2] {
        let rig = Rig::new(sizes(levels), None);
        let world = rig.empty_world();
        let engine: &dyn Engine = &*rig.open(&world).expect("opens");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for number in (0..EACH).map(|number| number * THREADS + thread) {
                        let put = engine.put(&key(number), &[number as u8; 1024], Durability::Grouped);
                        put.unwrap_or_else(|error| panic!("key {number}, {levels} levels: {error}"));
                    }
                });
            }
        });
        for number in (0..THREADS * EACH).step_by(7) {
            let value = engine.get(&key(number)).expect("whole").expect("there");
            assert_eq!(&value[..], &[number as u8; 1024][..], "key {number}, {levels} levels");
        }
        assert!(engine.verify().expect("open").is_clean());
    }
}
