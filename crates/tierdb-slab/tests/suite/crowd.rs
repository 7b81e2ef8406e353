//! Goal: writers that compete for a small fast tier are made to wait, and none of them is refused.
//! Method: eight threads insert new keys as fast as they can, many times what the fast tier holds, so that what is freed for one of them
//! another has taken before it looks.

use crate::rig::Sizes;
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::{Background, Durability, Engine};

const THREADS: usize = 8;
const EACH: usize = 500;
const KIB: u64 = 1 << 10;

fn key(number: usize) -> Vec<u8> {
    (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec()
}

#[test]
fn nobody_is_refused() {
    for levels in [1, 2] {
        let sizes = Sizes {
            name: "crowd",
            pool: 516 * KIB,
            slab: 16 * KIB,
            table: 16 * KIB,
            flash: vec![64 << 20],
            memory: 512 * KIB,
            levels: (levels, 1000),
            background: Background::Threads,
            ..Sizes::tiny()
        };
        let rig = Rig::new(sizes, None);
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
