//! Goal: what is kept for snapshots grows with the snapshots, and not with what is written while they are open.
//! Method: a few keys are overwritten again and again while one snapshot is open, and then two.

use crate::rig::Sizes;
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::{Durability, Engine};

const KEYS: u8 = 20;
const ROUNDS: usize = 200;

fn overwrite(engine: &dyn Engine, value: &[u8]) {
    for key in 0..KEYS {
        engine.put(&[key], value, Durability::Durable).expect("room");
    }
}

/// Bytes of memory for versions that are kept.
fn kept(engine: &dyn Engine) -> u64 {
    let parts = engine.stats().memory;
    parts.iter().find(|(part, _)| *part == "versions kept for snapshots").expect("the part").1
}

#[test]
fn a_snapshot_keeps_one_version_of_each_key() {
    let rig = Rig::new(Sizes::roomy(), None);
    let engine: &dyn Engine = &*rig.open(&rig.empty_world()).expect("opens");
    overwrite(engine, b"first");
    let first = engine.snapshot().expect("open");
    overwrite(engine, b"second");
    let one = kept(engine);
    assert!(one > 0);
    (0..ROUNDS).for_each(|_| overwrite(engine, &[7; 500]));
    assert_eq!(kept(engine), one, "nobody sees the others");
    overwrite(engine, b"third");
    let second = engine.snapshot().expect("open");
    (0..ROUNDS).for_each(|_| overwrite(engine, &[8; 500]));
    assert_eq!(kept(engine), 2 * one);
    for key in 0..KEYS {
        let at = |snapshot| engine.get_at(&[key], snapshot).expect("whole").expect("there");
        assert_eq!((&at(&first)[..], &at(&second)[..]), (&b"first"[..], &b"third"[..]));
    }
    // What the older one sees is kept while only that is open.
    drop(second);
    assert_eq!(kept(engine), one);
    (0..ROUNDS).for_each(|_| overwrite(engine, &[9; 500]));
    assert_eq!(kept(engine), one);
    drop(first);
    assert_eq!(kept(engine), 0);
}
