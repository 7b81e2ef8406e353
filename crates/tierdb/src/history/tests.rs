//! The file under damage and crashes, and what is summed up in it.

use super::*;
use tierdb_base::mutant::{self, Site};
use tierdb_engine::TierStats;
use tierdb_sim::crashtest::{CrashFailure, CrashRun, Options, Oracle, explore};
use tierdb_sim::{FaultKind, FaultPlan, SimDir, World};

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
    assert_eq!((history.uses, history.open_ns, history.operations["put"]), (2, 7_000_000_000, 14));
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
    history.clone().write(&dir(&world), STORE).expect("room");
    assert_eq!(read(&world).as_ref(), Some(&history));
    assert_eq!(dir(&world).list().expect("list"), [NAME]);
    assert_eq!(History::read(&dir(&world), Uuid::from_u128(8)).expect("no faults"), None);
    let len = BLOCK as usize;
    let whole = world.peek("flash/HISTORY", 0, len);
    for at in 0..len {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        assert!(checked(&damaged).is_none(), "byte {at}");
        assert!(checked(&whole[..at]).is_none(), "cut at byte {at}");
    }
    for (name, known) in [("get", true), ("", false), ("\u{1b}[2J", false), ("Get", false)] {
        let mut history = after(1);
        history.operations.insert(name.into(), 1);
        history.write(&dir(&world), STORE).expect("room");
        assert_eq!(read(&world).is_some(), known, "{name:?}");
    }
}

/// Goal: what a newer build has written is refused whatever else it is, so that it is not replaced.
#[test]
fn a_newer_format_is_refused_by_its_number_alone() {
    let world = world();
    after(1).write(&dir(&world), STORE).expect("room");
    for (text, newer) in
        [("format = 2\nstore = []\n", true), ("format = 1\nstore = []\n", false), ("other = 2\n", false)]
    {
        world.overwrite("flash/HISTORY", 0, &sealed(text.into()).expect("memory"));
        match History::read(&dir(&world), STORE) {
            Err(Error::NewerFormat { found: 2, newest: FORMAT, .. }) => assert!(newer, "{text}"),
            read => assert!(!newer && read.expect("no faults").is_none(), "{text}"),
        }
    }
}

fn write_thrice(world: &World, written: &Oracle<u64>) {
    for uses in 1..=3 {
        after(uses).write(&dir(world), STORE).expect("no faults are injected");
        written.update(|written| *written = uses);
    }
}

fn check(written: &u64, world: &World) -> std::result::Result<(), String> {
    let uses = read(world).map_or(0, |history| history.uses);
    if !(*written..=*written + 1).contains(&uses) {
        return Err(format!("{written} uses were noted, {uses} are found"));
    }
    // What a crash has left of another one is in nobody's way.
    after(uses + 1).write(&dir(world), STORE).map_err(|error| error.to_string())?;
    let (again, names) = (read(world), dir(world).list().expect("no faults"));
    match again.map(|history| history.uses) {
        Some(found) if found == uses + 1 && names == [NAME] => Ok(()),
        found => Err(format!("{uses} and one use were noted, {found:?} are found in {names:?}")),
    }
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

/// Goal: whichever operation fails, the history before it is there, or the new one, and the next one can be written.
#[test]
fn the_failure_of_any_operation_leaves_one_history_or_the_other() {
    for kind in [FaultKind::Eio, FaultKind::Enospc, FaultKind::Short, FaultKind::SyncError] {
        let mut met = 0;
        for nth in 1.. {
            let world = world();
            after(1).write(&dir(&world), STORE).expect("no fault yet");
            world.inject(FaultPlan::nth(nth, kind));
            let wrote = after(2).write(&dir(&world), STORE);
            if world.heal().hit == 0 {
                wrote.expect("no fault was met");
                break;
            }
            met = nth;
            let uses = read(&world).expect("one of them").uses;
            assert!(
                if wrote.is_ok() { uses == 2 } else { (1..=2).contains(&uses) },
                "{kind:?} at {nth}: {uses}"
            );
            check(&uses, &world).unwrap_or_else(|wrong| panic!("{kind:?} at {nth}: {wrong}"));
        }
        assert!(met > 0, "{kind:?}");
    }
}
