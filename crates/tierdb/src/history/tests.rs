//! The file under damage and crashes, and what is summed up in it.

use super::*;
use tierdb_base::mutant::{self, Site};
use tierdb_engine::TierStats;
use tierdb_sim::crashtest::{CrashFailure, CrashRun, Options, Oracle, explore};
use tierdb_sim::{SimDir, World};

const STORE: Uuid = Uuid::from_u128(7);

fn used() -> Stats {
    let io = IoStats { writes: 2, written_bytes: 3000, ..IoStats::default() };
    let tier = TierStats {
        role: TierRole::Flash,
        path: "/store".into(),
        medium: "file".into(),
        capacity: 1 << 30,
        used: 1 << 20,
        parts: Vec::new(),
        io: vec![("migration", io)],
    };
    Stats {
        tiers: vec![tier],
        user_bytes_written: 1000,
        operations: vec![("put", 7)],
        counters: vec![("migrations", 2)],
        gauges: vec![("keys_fast", 5)],
        ..Stats::default()
    }
}

fn after(uses: u64) -> History {
    let mut history = History::default();
    (0..uses).for_each(|_| history.add(&used(), Duration::from_secs(3)));
    history
}

fn world() -> World {
    let world = World::new();
    world.add_dir("flash");
    world
}

fn dir(world: &World) -> SimDir {
    world.dir("flash")
}

fn read(world: &World) -> Option<History> {
    History::read(&dir(world), STORE).expect("no faults")
}

#[test]
fn what_is_counted_is_summed_up_and_what_is_so_now_is_as_of_the_last_close() {
    assert_eq!(History::default().write_amplification(), None);
    let mut history = after(1);
    history.add(&Stats { gauges: vec![("keys_fast", 1)], ..used() }, Duration::from_secs(4));
    assert_eq!((history.uses, history.open_seconds, history.operations["put"]), (2, 7, 14));
    assert_eq!((history.figure("migrations"), history.figure("keys_fast")), (Some(4), Some(1)));
    assert_eq!((history.figure("tables"), history.write_amplification()), (None, Some(3.0)));
    history.counters.insert("migrations".into(), u64::MAX);
    history.add(&used(), Duration::ZERO);
    assert_eq!(history.figure("migrations"), Some(u64::MAX));
}

#[test]
fn an_open_and_a_look_is_no_use_but_work_without_an_operation_is() {
    assert!(is_use(&used()) && is_use(&Stats { operations: vec![("put", 0)], ..used() }));
    let io = |cause| {
        let mut stats = Stats { operations: vec![("put", 0)], ..used() };
        stats.tiers[0].io[0].0 = cause;
        stats
    };
    assert!(is_use(&io("gc")) && !is_use(&io("recovery")) && !is_use(&io("checkpoint")));
}

/// Goal: what was written is read by its store, and any damage to it counts as none, whatever its numbers are.
#[test]
fn what_was_written_is_read_and_anything_else_counts_as_none() {
    let world = world();
    assert_eq!(read(&world), None);
    let mut history = after(2);
    history.closed = u64::MAX;
    history.write(&dir(&world), STORE).expect("room");
    assert_eq!(read(&world).as_ref(), Some(&history));
    assert_eq!(dir(&world).list().expect("list"), [NAME]);
    assert_eq!(History::read(&dir(&world), Uuid::from_u128(8)).expect("no faults"), None);
    let len = BLOCK as usize;
    let whole = world.peek("flash/HISTORY", 0, len);
    for at in 0..len {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        assert!(decode(&damaged).is_none(), "byte {at}");
        assert!(decode(&whole[..at]).is_none(), "cut at byte {at}");
    }
    for (name, known) in [("get", true), ("", false), ("\u{1b}[2J", false), ("Get", false)] {
        let mut history = after(1);
        history.operations.insert(name.into(), 1);
        let bytes = encode(&File { format: FORMAT, store: STORE.to_string(), history }).expect("memory");
        assert_eq!(decode(&bytes).is_some(), known, "{name:?}");
    }
    let newer = File { format: FORMAT + 1, store: STORE.to_string(), history: after(1) };
    world.overwrite("flash/HISTORY", 0, &encode(&newer).expect("memory"));
    let refused = History::read(&dir(&world), STORE).expect_err("newer");
    assert!(matches!(refused, Error::NewerFormat { .. }), "{refused}");
}

fn write_thrice(world: &World, written: &Oracle<u64>) {
    for uses in 1..=3 {
        after(uses).write(&dir(world), STORE).expect("no faults are injected");
        written.update(|written| *written = uses);
    }
}

fn check(written: &u64, world: &World) -> std::result::Result<(), String> {
    let uses = read(world).map_or(0, |history| history.uses);
    let next = *written..=*written + 1;
    if next.contains(&uses) { Ok(()) } else { Err(format!("{written} uses were noted, {uses} are found")) }
}

fn crash_everywhere() -> std::result::Result<CrashRun, Box<CrashFailure>> {
    explore(&world(), &Options::default(), &Oracle::new(0), write_thrice, |_| Ok(()), check)
}

/// Goal: a crash at any event leaves what was written last, or what is being written.
#[test]
fn a_crash_leaves_one_history_or_the_other() {
    let run = crash_everywhere().unwrap_or_else(|failure| panic!("{failure}"));
    assert!(run.images > 20, "{run}");
}

/// Goal: the test above notices every sync that is left out.
#[test]
fn no_sync_of_the_history_can_be_left_out() {
    let seen = mutant::record(|| write_thrice(&world(), &Oracle::new(0)));
    let own = |site: &Site| site.file.ends_with("src/history.rs") && site.is_persist();
    let own: Vec<Site> = seen.into_keys().filter(own).collect();
    assert!(own.len() >= 2, "{own:?}");
    for site in own {
        let survived = mutant::without(site, crash_everywhere);
        assert!(survived.is_err(), "{site} was left out, and nothing noticed");
    }
}
