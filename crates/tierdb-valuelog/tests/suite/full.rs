//! Goal: a put on a full fast tier finds what was given up there, even if a reader that was not run for a while still holds it.
//! Method: keys until there is no room, all deleted, and all put again while another thread is pinned.

use crate::rig::Sizes;
use std::time::Duration;
use tierdb_base::{Error, TierRole};
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::{Durability, Engine, WriteBatch};

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Puts keys until one is refused for want of room, or there are `most`.
fn fill(most: u64, put: impl Fn(u64) -> tierdb_base::Result<()>) -> u64 {
    for number in 0..most {
        if let Err(error) = put(number) {
            assert!(matches!(error, Error::NoSpace { tier: TierRole::Fast, .. }), "{error}");
            return number;
        }
    }
    most
}

fn run(put: impl Fn(&dyn Engine, u64) -> tierdb_base::Result<()> + Sync) {
    let rig = Rig::new(Sizes { flash: vec![8 << 20], ..Sizes::tiny() }, None);
    let engine = &*rig.open(&rig.empty_world()).expect("a new store");
    let full = fill(1 << 20, |number| engine.put(&key(number), b"v", Durability::Durable));
    assert!(full > 1000, "{full} keys fit");
    let reader = crossbeam_epoch::pin();
    for number in 0..full {
        engine.delete(&key(number), Durability::Durable).expect("deletes need no room");
    }
    std::thread::scope(|scope| {
        let again = scope.spawn(|| fill(full, |number| put(engine, number)));
        // As long as a reader stands still on a busy machine.
        std::thread::sleep(Duration::from_millis(60));
        drop(reader);
        let again = again.join().expect("no panic");
        assert!(again > full * 9 / 10, "{again} of {full} fit again");
    });
}

#[test]
fn puts_wait_for_what_readers_hold() {
    run(|engine, number| engine.put(&key(number), b"v", Durability::Durable));
}

#[test]
fn batches_wait_for_what_readers_hold() {
    run(|engine, number| {
        let mut batch = WriteBatch::new();
        batch.put(key(number), *b"v")?;
        engine.write(&batch, Durability::Durable)
    });
}
