//! Goal: what a reader holds is waited for, but not as long as that stands still; and what none holds is collected.
//! Method: a thread that stays pinned while another overwrites a key until it is refused; scripts of which nobody else is pinned. Each in a process of
//! its own, since who is pinned holds up every store of a process.

use crate::rig::Sizes;
use std::env;
use std::process::Command;
use tierdb_base::{Error, TierRole};
use tierdb_engine::conformance::Oracle;
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::conformance::harm::script::{self, Known, Script};
use tierdb_engine::{Durability, Engine};
use tierdb_valuelog::Background;

#[test]
fn in_processes_of_their_own() {
    for name in ["puts_are_refused_where_a_reader_stays", "scripts_collect_garbage"] {
        let program = env::current_exe().expect("this program");
        let args = ["--exact", &format!("held::{name}"), "--ignored"];
        let run = Command::new(program).args(args).output().expect("it starts");
        let [said, complained] = [&run.stdout, &run.stderr].map(|output| String::from_utf8_lossy(output));
        assert!(run.status.success() && said.contains("1 passed"), "{}: {said}{complained}", run.status);
    }
}

#[test]
#[ignore = "run by `in_processes_of_their_own`, and not beside other tests"]
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

/// Goal: the scripts meet collection of garbage where there is room. Method: the same steps, with and without it.
#[test]
#[ignore = "run by `in_processes_of_their_own`, and not beside other tests"]
fn scripts_collect_garbage() {
    let collected = |script: &Script, sizes: &Sizes| {
        let rig = Rig::new(sizes.clone(), None);
        fastrand::seed(1);
        let engine = rig.open_or_create(&rig.world()).expect("an empty store opens");
        script::run_on(script, 1, &*engine, &Known::new(Oracle::new()));
        engine.stats().figure("collected_chunks").expect("it is counted")
    };
    let patient = Sizes { garbage: None, ..Sizes::wasteful() };
    let more = |script: &Script| collected(script, &Sizes::wasteful()) > collected(script, &patient);
    assert!(Script::ALL.iter().any(more), "none collects more than it would for want of room");
}
