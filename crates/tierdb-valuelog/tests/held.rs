//! Goal: what a reader holds is waited for, but not as long as that stands still.
//! Method: a thread that stays pinned while another overwrites a key until it is refused; in a program of its own, since that holds
//! up every store of a process.

#[allow(dead_code, reason = "the other suites use the rest")]
#[path = "rig/mod.rs"]
mod rig;

use rig::Sizes;
use tierdb_base::{Error, TierRole};
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::{Durability, Engine};
use tierdb_valuelog::Background;

#[test]
fn puts_are_refused_where_a_reader_stays() {
    let sizes = Sizes { flash: vec![8 << 20], background: Background::Threads, ..Sizes::tiny() };
    let rig = Rig::new(sizes, None);
    let engine: &dyn Engine = &*rig.open(&rig.empty_world()).expect("a new store");
    let put = |number: u64| engine.put(b"key", &[number as u8; 1000], Durability::Durable);
    let reader = crossbeam_epoch::pin();
    let refused = std::thread::scope(|scope| {
        let fill = || (0..1 << 20).find_map(|number| put(number).err());
        scope.spawn(fill).join().expect("no panic")
    });
    let refused = refused.expect("nothing came back, and all was taken");
    assert!(matches!(refused, Error::NoSpace { tier: TierRole::Fast, .. }), "{refused}");
    drop(reader);
    put(0).expect("the reader has gone");
}
