//! Who does work when, and who waits for it.

use super::*;
use crate::config::Options;
use crate::engine::SlabStore;
use crate::flash::Limit;
use crate::levels::FIRST;
use crate::live::LiveTable;
use crate::plan::{MOST_TABLES, Plan};
use crate::rig::{self, Store};
use crate::slabs::Purpose;
use crate::tune::now;
use std::sync::atomic::{AtomicBool, AtomicU8};
use tierdb_engine::{Durability, Engine, KeyRange};
use tierdb_sim::{EventKind, FaultKind, FaultPlan, Ops};

const POOL: u64 = 132 << 10;

/// A store with `keys` keys on the fast tier, a few of which are more than it is to be filled with.
fn filled(keys: u8) -> Store {
    let store = Store::new(POOL, Options { high_pct: 99, low_pct: 5, ..rig::options(POOL) });
    (0..keys).for_each(|number| store.put(&[b'k', number], 700));
    assert!(store.core().is_over(5) && !store.core().is_over(80));
    store
}

fn need(store: &Store, len: usize) -> Need {
    let mut need = Need::default();
    need.add(8, len, Purpose::Value, store.core().heap.slabs.largest());
    need
}

/// A store with sixty keys on flash, of which some are removed with a range, and not from their table yet.
fn with_removed_range(options: Options) -> Store {
    let store = Store::new(POOL, options);
    (0..60).for_each(|number| store.put(&[b'k', number], 700));
    store.engine.flush().expect("room");
    let range = KeyRange::half_open([b'k', 3], [b'k', 9]);
    store.engine.delete_range(&range, Durability::Durable).expect("room");
    assert_eq!(store.part().read().ranges.len(), 1);
    store
}

#[test]
fn a_cleaning_that_failed_is_tried_again() {
    let store = with_removed_range(rig::options(POOL));
    let is_cleaned = || store.part().read().ranges.is_empty();
    store.world.dir("flash0").set_capacity(Some(0));
    store.put(b"other", 10);
    assert!(!is_cleaned(), "flash is full");
    store.world.dir("flash0").set_capacity(None);
    let given_up = Instant::now() + Duration::from_secs(60);
    while !is_cleaned() {
        assert!(Instant::now() < given_up, "nothing tries again");
        store.put(b"other", 10);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(store.engine.get(&[b'k', 9]).expect("whole").is_some());
}

#[test]
fn a_cleaning_that_left_a_table_out_is_done_again() {
    let store = with_removed_range(rig::options(POOL));
    let is_cleaned = || store.part().read().ranges.is_empty();
    store.world.inject(FaultPlan::from_nth(0, FaultKind::Eio).on(Ops::READ).in_dir("flash0"));
    store.put(b"other", 10);
    assert!(!is_cleaned(), "its table is not read");
    store.world.heal();
    let given_up = Instant::now() + Duration::from_secs(60);
    while !is_cleaned() {
        assert!(Instant::now() < given_up, "nothing tries again");
        store.put(b"other", 10);
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_compaction_tries_what_was_not_read() {
    let store = with_removed_range(rig::options(POOL));
    let core = store.core();
    let tables = store.part().read().tables.clone();
    tables.tables().for_each(|table| table.mark_unreadable(true));
    *core.work.unreadable.lock() = Some(Error::invalid("the device did not read them"));
    store.engine.compact().expect("room");
    let tables = store.part().read().tables.clone();
    assert!(store.part().read().ranges.is_empty());
    assert!(!tables.tables().any(|table| table.is_damaged()));
}

#[test]
fn a_snapshot_that_kept_no_range_asks_for_no_cleaning() {
    let store = with_removed_range(rig::options(POOL));
    let core = store.core();
    store.put(b"other", 10);
    let backup = store.engine.snapshot().expect("open");
    let range = KeyRange::half_open([b'k', 20], [b'k', 25]);
    store.engine.delete_range(&range, Durability::Durable).expect("room");
    store.put(b"other", 10);
    assert!(!store.part().read().ranges.is_empty() && !core.is_cleaning_due());
    drop(store.engine.snapshot().expect("open"));
    assert!(!core.is_cleaning_due());
    drop(backup);
    assert!(core.is_cleaning_due());
}

#[test]
fn what_can_wait_does_not_exceed_the_write_budget() {
    let store = with_removed_range(Options { flash_bytes_per_day: vec![Some(1)], ..rig::options(POOL) });
    let core = store.core();
    let written = core.counters.table_bytes.get();
    assert!(core.flash.is_spent(FIRST) && written > 0);
    store.put(b"other", 10);
    let levels = store.part().read().tables.clone();
    levels.tables().for_each(|table| table.hot_reads.store(1000, Ordering::Relaxed));
    assert!(!core.promote_round().expect("nothing to do"));
    core.migrate_to_low().expect("nothing to do");
    assert_eq!(core.counters.table_bytes.get(), written);
    // The same where the index takes more memory than it is to, but not where it takes all there is.
    for (pct, exceeds) in [(80, false), (101, true)] {
        core.work.memory_pct.store(pct, Ordering::Relaxed);
        assert_eq!((core.is_over(99), core.is_held_back()), (true, !exceeds), "{pct} %");
        assert!(core.pace(1) > SPENT_MEMORY_PACE / 10, "{pct} %");
    }
    core.work.memory_pct.store(0, Ordering::Relaxed);
    assert_eq!(core.pace(1), Duration::ZERO);
    // A caller that asks for it is heard.
    store.engine.compact().expect("room");
    assert!(store.part().read().ranges.is_empty() && core.counters.table_bytes.get() > written);
}

/// Goal: a cleaning that begins while there is some of the budget left ends with it, and not with the last table.
#[test]
fn a_cleaning_ends_with_the_write_budget() {
    let store = Store::new(POOL, Options { flash_bytes_per_day: vec![Some(1 << 30)], ..rig::options(POOL) });
    let core = store.core();
    (0..60).for_each(|number| store.put(&[b'k', number], 700));
    store.engine.flush().expect("room");
    let tables = store.part().read().tables.tables().count();
    assert!(tables >= 4, "{tables}");
    let snapshot = store.engine.snapshot().expect("open");
    for number in (0..58).step_by(4) {
        let range = KeyRange::half_open([b'k', number], [b'k', number + 1]);
        store.engine.delete_range(&range, Durability::Durable).expect("room");
    }
    let budget = &core.flash.dirs()[0].budget;
    let left = budget.left(now()).expect("a limit");
    budget.spend(left as u64 - 1, now());
    // It refills by twelve bytes in a millisecond.
    drop(snapshot);
    assert!(core.is_cleaning_due());
    let written = core.counters.table_bytes.get();
    core.clean_if_due();
    let most = core.flash.table_bytes;
    let cleaned = core.counters.table_bytes.get() - written;
    assert!((1..=2 * most).contains(&cleaned), "{cleaned} bytes, where a table has {most}");
    assert!(!store.part().read().ranges.is_empty() && !core.is_cleaning_due());
    // Who asks for it gets all of it.
    store.engine.compact().expect("room");
    assert!(store.part().read().ranges.is_empty());
}

/// Goal: while a caller cleans, the thread that makes room for writers does not wait for that.
#[test]
fn who_makes_room_does_not_wait_for_a_cleaning() {
    let store = with_removed_range(rig::options(POOL));
    let core = store.core();
    core.work.want_cleaning();
    let is_back = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let cleaning = core.work.cleaning.lock();
        scope.spawn(|| {
            core.clean_if_due();
            is_back.store(true, Ordering::Release);
        });
        let given_up = Instant::now() + Duration::from_secs(20);
        while !is_back.load(Ordering::Acquire) && Instant::now() < given_up {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(is_back.load(Ordering::Acquire), "it waits");
        drop(cleaning);
    });
    assert!(core.next_cleaning().is_some(), "it is done later");
}

/// Goal: however much is to be written, what goes to flash stays within the budget. Method: the hour's
/// worth ahead is gone, and a writer writes as fast as it may.
#[test]
fn writers_settle_at_what_the_write_budget_brings_in() {
    const POOL: u64 = 2 << 20;
    const PER_SECOND: u64 = 200_000;
    let per_day = vec![Some(PER_SECOND * 86_400)];
    let options =
        Options { flash_bytes_per_day: per_day, background: Background::Threads, ..rig::options(POOL) };
    let world = rig::world(POOL);
    let engine = SlabStore::create(rig::media(&world, 64 << 20), options).expect("an empty store");
    let store = Store { world, engine };
    let (core, budget) = (store.core(), &store.core().flash.dirs()[0].budget);
    budget.spend(PER_SECOND * 3600, now());
    let begun = Instant::now();
    for number in 0..u32::MAX {
        store.put(&number.wrapping_mul(0x9e37_79b1).to_be_bytes(), 700);
        if begun.elapsed() > Duration::from_secs(3) {
            break;
        }
    }
    let left = budget.left(now()).expect("a limit");
    // What was begun when some was left is ended: a merge of victims with a table, and with those before them that were not merged. Tables
    // so small are half footers and indexes.
    let most = 2 * (2 * MOST_TABLES + 1) * core.flash.table_bytes;
    assert!(left > -(most as i64), "{left} bytes are left");
    assert!(core.counters.demoted.get() > 0 && core.counters.stall_ns.get() > 0);
}

#[test]
fn a_flush_passes_by_what_cannot_be_read_however_much_is_written_beside_it() {
    let store = Arc::new(filled(8));
    let first = store.part().read().index.get(b"k\0").expect("there").at();
    store.world.flip_bit("pool", first + 100, 3);
    store.engine.flush().expect("room");
    store.engine.get(b"k\0").expect_err("damaged");
    store.put(b"k\x07", 700);
    let (left, writer) = (AtomicU8::new(5), store.clone());
    store.world.on_event(Some(Arc::new(move |_, event| {
        let number = left.load(Ordering::Relaxed);
        if event.kind == EventKind::Create && number > 0 {
            left.store(number - 1, Ordering::Relaxed);
            writer.put(&[b'k', number], 700);
        }
    })));
    let before = store.core().counters.migrations.get();
    store.engine.flush().expect("room");
    store.world.on_event(None);
    assert_eq!(store.core().counters.migrations.get(), before + 1);
}

#[test]
fn memory_holds_writers_back_without_a_write_budget() {
    let store = Store::new(POOL, rig::options(POOL));
    let core = store.core();
    let pace_at = |pct| {
        core.work.memory_pct.store(pct, Ordering::Relaxed);
        core.pace(1)
    };
    assert!(!core.flash.is_spent(FIRST));
    assert_eq!((pace_at(0), pace_at(80)), (Duration::ZERO, Duration::ZERO), "migrations get ahead of that");
    assert!(Duration::ZERO < pace_at(90) && pace_at(90) < pace_at(99));
    assert_eq!((pace_at(100), pace_at(1000)), (PACE, PACE));
}

/// Nothing would make less of it: writers are slowed, and go on.
#[test]
fn a_writer_does_not_wait_for_memory() {
    let options = Options { memory: 1 << 10, background: Background::Threads, ..rig::options(POOL) };
    let store = Store::new(POOL, options);
    store.world.dir("flash0").set_capacity(Some(0));
    let core = store.core();
    (0..60).for_each(|number| store.put(&[b'k', number], 100));
    core.settle_memory();
    assert_eq!((core.is_memory_over(LAST_MEMORY_PCT), core.pace(1)), (true, PACE));
    store.put(b"another", 100);
    assert!(core.counters.stall_ns.get() > 0);
}

#[test]
fn a_cleaning_that_failed_is_tried_again_though_nobody_writes() {
    let store = Store::new(POOL, Options { background: Background::Threads, ..rig::options(POOL) });
    (0..60).for_each(|number| store.put(&[b'k', number], 700));
    store.engine.flush().expect("room");
    store.world.dir("flash0").set_capacity(Some(0));
    let range = KeyRange::half_open([b'k', 3], [b'k', 9]);
    store.engine.delete_range(&range, Durability::Durable).expect("room");
    let given_up = Instant::now() + Duration::from_secs(20);
    let until = |holds: &dyn Fn() -> bool| {
        while !holds() {
            assert!(Instant::now() < given_up, "nothing tries again");
            assert!(store.engine.get(&[b'k', 9]).expect("whole").is_some());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    until(&|| store.core().next_cleaning().is_some_and(|at| at > Instant::now()));
    assert!(!store.part().read().ranges.is_empty(), "flash is full");
    store.world.dir("flash0").set_capacity(None);
    until(&|| store.part().read().ranges.is_empty());
}

/// A page that the device cannot read costs its keys, and not those who need room.
#[test]
fn a_table_that_cannot_be_read_is_left_out() {
    let options = || Options { partitions: 2, ..rig::options(POOL) };
    let store = Store::new(POOL, options());
    for number in (0..=255).step_by(3) {
        store.put(&[number, 1], 700);
    }
    store.engine.flush().expect("room");
    let lost = store.part().read().tables.tables().next().expect("a table").file();
    let name = format!("flash0/{}", tierdb_table::file_name(lost.number));
    store.world.lose_page(&name, 4096);
    for round in 2..5 {
        for number in (0..=255).step_by(3) {
            store.put(&[number, round], 700);
        }
    }
    store.engine.flush().expect("room");
    let engine = &store.engine;
    let unread = (0..=255).step_by(3).filter(|number| engine.get(&[*number, 1]).is_err()).count();
    assert!((1..20).contains(&unread), "{unread} keys cannot be read");
    assert!(engine.get(&[255, 2]).expect("whole").is_some());
}

/// That a table may be merged again does not make it as good as a copy of what it has.
#[test]
fn a_table_that_was_not_read_replaces_no_copy() {
    // Without an object cache, which would answer.
    let options = Options { memory: 1 << 10, pinned_pct: Some(100), ..rig::options(POOL) };
    let store = Store::new(POOL, options);
    (0..20).for_each(|number| store.put(&[b'k', number], 700));
    store.engine.flush().expect("room");
    let popular = [b'k', 3];
    let is_there = || store.engine.get(&popular).is_ok_and(|value| value.is_some());
    assert!((0..20).all(|_| is_there()));
    store.put(&[b'k', 4], 700);
    let (core, part) = (store.core(), store.part());
    let levels = part.read().tables.clone();
    let table = levels.find(&popular).next().expect("its table");
    let name = format!("flash0/{}", tierdb_table::file_name(table.number()));
    (0..3).for_each(|page| store.world.lose_page(&name, page * 4096));
    let plan = Plan::of_live(&levels, table).expect("it is live");
    core.migrate_or_mark(&part, &plan, Victims::All, false).expect("it is left out");
    assert!(table.is_damaged() && part.read().copies == 1 && is_there());
    assert!(core.forget_unreadable() && !table.is_damaged());
    assert_eq!(core.drop_copies(Copies::All), 0);
    store.engine.flush().expect("the rest has room");
    assert!(is_there());
}

#[test]
fn tables_that_are_read_at_the_second_try_replace_copies() {
    let options =
        Options { memory: 1 << 10, table_bytes: 16 << 10, pinned_pct: Some(100), ..rig::options(POOL) };
    let store = Store::new(POOL, options);
    (0..60).for_each(|number| store.put(&[b'k', number], 700));
    store.engine.flush().expect("room");
    let popular = [b'k', 3];
    assert!((0..20).all(|_| store.engine.get(&popular).is_ok_and(|value| value.is_some())));
    let (core, part) = (store.core(), store.part());
    let levels = part.read().tables.clone();
    let tables: Vec<_> = levels.tables().cloned().collect();
    assert_eq!((tables.len() > 1, part.read().copies), (true, 1));
    store.put(&[b'k', 4], 700);
    store.world.inject(FaultPlan::nth(1, FaultKind::Eio).on(Ops::READ).in_dir("flash0"));
    let plan =
        Plan { range: KeyRange::all(), into: FIRST, tables: tables.clone(), sweep: false, may_wait: false };
    core.migrate_or_mark(&part, &plan, Victims::All, false).expect("they are left out");
    assert!(store.world.heal().hit == 1 && tables.iter().all(|table| table.is_damaged()));
    assert!(core.forget_unreadable());
    assert_eq!(core.drop_copies(Copies::All), 1);
}

#[test]
fn a_table_that_was_not_read_once_is_not_taken_for_the_damaged_one_beside_it() {
    let mut left_out = 0;
    for read in 0..6 {
        let store = Store::new(POOL, Options { table_bytes: 16 << 10, ..rig::options(POOL) });
        (0..30).for_each(|number| store.put(&[b'k', number], 700));
        store.engine.flush().expect("room");
        let tables: Vec<_> = store.part().read().tables.tables().cloned().collect();
        let [damaged, other, ..] = &*tables else { panic!("{} tables", tables.len()) };
        store.world.flip_bit(&format!("flash0/{}", tierdb_table::file_name(damaged.number())), 100, 3);
        store.put(&[b'k', 4], 700);
        store.world.inject(FaultPlan::nth(read, FaultKind::Eio).on(Ops::READ).in_dir("flash0"));
        let plan = Plan {
            range: KeyRange::all(),
            into: FIRST,
            tables: vec![damaged.clone(), other.clone()],
            sweep: false,
            may_wait: false,
        };
        store.core().migrate_or_mark(&store.part(), &plan, Victims::All, false).expect("left out");
        assert!(damaged.is_damaged(), "read {read}");
        assert!(!other.damaged.load(Ordering::Acquire), "read {read}");
        left_out += u32::from(other.is_damaged());
    }
    assert!(left_out > 0, "no read of it has failed");
}

/// That there is no room has a reason, and that is what the writer is told.
#[test]
fn a_table_whose_index_cannot_be_read_is_the_reason_that_there_is_no_room() {
    let store = Store::new(POOL, Options { table_parts_pct: 0, ..rig::options(POOL) });
    (0..20).for_each(|number| store.put(&[b'k', number], 700));
    store.engine.flush().expect("room");
    let tables = store.part().read().tables.clone();
    let name = |table: &LiveTable<_>| tierdb_table::file_name(table.number());
    let names: Vec<String> = tables.tables().map(|table| name(table)).collect();
    for table in tables.tables() {
        while table.loaded_parts().is_some() {
            table.shed();
        }
        let index_at = table.footer().blocks_len / 4096 * 4096;
        store.world.lose_page(&format!("flash0/{}", name(table)), index_at);
    }
    let put = |number: u16| {
        let key = [&b"k"[..], &number.to_be_bytes()].concat();
        store.engine.put(&key, &[7; 700], Durability::Grouped)
    };
    let refused = (0..1000).find_map(|number| put(number).err()).expect("nothing can be moved");
    assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
    assert!(names.iter().any(|name| refused.to_string().contains(name)), "{refused}");
}

/// With all threads where writers are held back or wait, which is told once of those before, and with half of them else.
#[test]
fn migrations_know_whether_writers_were_held_back() {
    let store = Store::new(POOL, rig::options(POOL));
    let core = store.core();
    assert!(!core.held_writers_back());
    core.counters.stall_ns.add(1);
    assert!(core.held_writers_back() && !core.held_writers_back());
    core.work.waiting.fetch_add(1, Ordering::Relaxed);
    assert!(core.held_writers_back() && core.held_writers_back());
}

#[test]
fn partitions_are_migrated_at_once() {
    let options = Options {
        partitions: 2,
        migration_threads: 4,
        background: Background::Threads,
        ..rig::options(POOL)
    };
    let store = Store::new(POOL, options);
    (0..=255).step_by(4).for_each(|number| store.put(&[number], 700));
    store.core().divide_if_due();
    assert_eq!(store.core().router.read().parts.len(), 2);
    let seen = Arc::new((Mutex::new(0), Condvar::new(), AtomicBool::new(false)));
    let hook = seen.clone();
    store.world.on_event(Some(Arc::new(move |_, event| {
        let (begun, more, alone) = &*hook;
        if event.kind == EventKind::Create {
            let mut begun = begun.lock();
            *begun += 1;
            more.notify_all();
            let waited = more.wait_while_for(&mut begun, |begun| *begun < 2, Duration::from_secs(20));
            alone.fetch_or(waited.timed_out(), Ordering::Relaxed);
        }
    })));
    let done = store.core().migrate_best(Victims::All, 0.0).expect("room");
    store.world.on_event(None);
    assert_eq!((done.keys, done.migrations), (64, 2));
    assert!(!seen.2.load(Ordering::Relaxed), "each waits for the other");
    assert!((0..=255).step_by(4).all(|number| store.engine.get(&[number]).expect("whole").is_some()));
}

#[test]
fn where_several_tables_have_no_room_one_is_migrated() {
    let options = Options { table_bytes: 16 << 10, range_tables: 2, ..rig::options(POOL) };
    for room in [200 << 10, 40 << 10] {
        let store = Store::new(POOL, options.clone());
        (0..60).for_each(|number| store.put(&[b'k', number], 700));
        store.engine.flush().expect("room");
        (0..60).for_each(|number| store.put(&[b'k', number], 700));
        let (core, dir) = (store.core(), &store.core().flash.dirs()[0]);
        dir.add(dir.limit(Limit::Growth, core.flash.table_bytes) - dir.used() - room);
        let before = core.counters.tables_replaced.get();
        assert!(core.migrate_best(Victims::Unpopular, 0.0).expect("there is room").keys > 0);
        let replaced = core.counters.tables_replaced.get() - before;
        assert_eq!(replaced, if room > 100 << 10 { 2 } else { 1 });
    }
}

/// Who finds no room beside others waits for these, and tries again.
#[test]
fn who_finds_no_room_beside_others_tries_again() {
    let by_flush = |store: &Store| store.engine.flush();
    let by_round = |store: &Store| store.core().migrate_best(Victims::All, 0.0).map(drop);
    for migrate in [&by_flush as &(dyn Fn(&Store) -> Result<()> + Sync), &by_round] {
        let store = Store::new(POOL, Options { background: Background::Threads, ..rig::options(POOL) });
        (0..20).for_each(|number| store.put(&[b'k', number], 700));
        let core = store.core();
        let (others, dir) = (core.work.alone.read(), &core.flash.dirs()[0]);
        let theirs = dir.capacity - dir.used();
        dir.add(theirs);
        std::thread::scope(|scope| {
            let migrates = scope.spawn(|| migrate(&store));
            let given_up = Instant::now() + Duration::from_secs(20);
            while core.work.alone.try_read().is_some() && Instant::now() < given_up {
                std::thread::sleep(Duration::from_millis(1));
            }
            dir.give(theirs);
            drop(others);
            migrates.join().expect("no panic").expect("there is room");
        });
        assert_eq!(store.part().read().dirty(), 0);
    }
}

#[test]
fn a_writer_goes_on_as_soon_as_there_is_room() {
    let store = filled(30);
    let (core, need) = (store.core(), need(&store, 700));
    let waited = std::thread::scope(|scope| {
        let writer = scope.spawn(|| core.wait_for_space(&need));
        let given_up = Instant::now() + Duration::from_secs(60);
        while !writer.is_finished() && Instant::now() < given_up {
            std::thread::sleep(Duration::from_millis(1));
        }
        core.work.stop();
        writer.join().expect("no panic")
    });
    waited.expect("there is room, though no round ends");
}

#[test]
fn who_waits_comes_before_a_cleaning() {
    let store = with_removed_range(rig::options(POOL));
    let core = store.core();
    core.work.state.lock().wanted = Some(need(&store, 700));
    core.clean_if_due();
    assert!(!store.part().read().ranges.is_empty() && core.is_cleaning_due(), "one table is enough");
    core.work.state.lock().wanted = None;
    core.clean_if_due();
    assert!(store.part().read().ranges.is_empty() && !core.is_cleaning_due());
}

#[test]
fn who_waits_comes_before_the_low_watermark() {
    let store = filled(30);
    let core = store.core();
    core.work.state.lock().wanted = Some(need(&store, 700));
    core.migrate_to_low().expect("nothing to do");
    assert_eq!(core.counters.migrations.get(), 0);
    core.work.state.lock().wanted = None;
    core.migrate_to_low().expect("room on flash");
    assert!(core.counters.migrations.get() > 0);
}
