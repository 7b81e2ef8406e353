//! Goal: every step that keeps versions of a key in the order of the levels is needed, and a test would notice if it were left out.
//! Method: for each, the moment in which it tells is made by hand; each step is left out in turn.

use super::{FIRST, Level, Levels, TOP};
use crate::config::Options;
use crate::core::{Core, hash_of};
use crate::descend::Down;
use crate::engine::SlabStore;
use crate::live::LiveTable;
use crate::partition::Partition;
use crate::plan::{Plan, Victims};
use crate::promote::Promotion;
use crate::rig;
use crate::tracker::Tier;
use std::sync::Arc;
use tierdb_engine::{Durability, Engine, KeyRange, Media};
use tierdb_sim::{SimDir, SimPool, World};

const POOL: u64 = 132 << 10;

struct Store {
    world: World,
    engine: SlabStore<SimPool, SimDir>,
}

fn options() -> Options {
    Options { levels: Some(2), ..rig::options(POOL) }
}

fn media(world: &World) -> Media<SimPool, SimDir> {
    rig::media(world, 1 << 20)
}

fn key(number: usize) -> Vec<u8> {
    format!("key{number:03}").into_bytes()
}

fn value(number: usize, version: u8) -> Vec<u8> {
    [format!("{number} ").into_bytes(), vec![version; 700]].concat()
}

impl Store {
    /// Sixty keys, version 1 of each, in three tables or more of the second level.
    fn new() -> Self {
        let world = rig::world(POOL);
        let engine = SlabStore::create(media(&world), options()).expect("an empty store");
        let store = Store { world, engine };
        (0..60).for_each(|number| store.put(number, 1));
        store.to_flash();
        while store.core().descend(Down::Any).expect("room").is_some() {}
        assert_eq!(store.tables(FIRST).len(), 0);
        assert!(store.tables(FIRST + 1).len() >= 3);
        store
    }

    fn core(&self) -> &Core<SimPool, SimDir> {
        self.engine.core()
    }

    fn part(&self) -> Arc<Partition<SimDir>> {
        self.core().router.read().parts[0].clone()
    }

    fn levels(&self) -> Arc<Levels<SimDir>> {
        self.part().read().tables.clone()
    }

    fn tables(&self, level: Level) -> Vec<Arc<LiveTable<SimDir>>> {
        self.levels().level(level).tables().to_vec()
    }

    fn put(&self, number: usize, version: u8) {
        self.engine.put(&key(number), &value(number, version), Durability::Durable).expect("room");
    }

    fn delete(&self, number: usize) {
        self.engine.delete(&key(number), Durability::Durable).expect("room");
    }

    /// Everything leaves the fast tier for the first level.
    fn to_flash(&self) {
        self.engine.flush().expect("room");
    }

    fn reopened(self) -> Result<Self, String> {
        let Store { world, engine } = self;
        drop(engine);
        let engine = SlabStore::open(media(&world), options()).map_err(|error| error.to_string())?;
        Ok(Store { world, engine })
    }

    /// That key `number` has this version, and none if that is 0; and the store is whole.
    fn has(&self, number: usize, version: u8) -> Result<(), String> {
        let found = self.engine.get(&key(number)).map_err(|error| error.to_string())?;
        let wanted = (version > 0).then(|| value(number, version));
        if found.as_deref() != wanted.as_deref() {
            return Err(format!("key {number} has another value than of version {version}"));
        }
        let report = self.engine.verify().map_err(|error| error.to_string())?;
        if report.is_clean() { Ok(()) } else { Err(format!("{:?}", report.damage)) }
    }
}

type Outcome = Result<(), String>;
/// What a test is about, and the test.
type Row = (&'static str, fn() -> Outcome);

/// A delete leaves a tombstone where the second level has the key, and the fast tier a newer version.
fn a_delete_asks_all_levels() -> Outcome {
    let store = Store::new();
    store.put(7, 2);
    store.delete(7);
    store.has(7, 0)
}

/// A merge with the first level keeps the tombstone, one with the second does not; and nothing comes back.
fn a_tombstone_stays_above_what_it_hides() -> Outcome {
    let store = Store::new();
    store.delete(7);
    store.to_flash();
    store.has(7, 0)?;
    let tombstones =
        |store: &Store| -> u64 { store.levels().tables().map(|table| table.footer().tombstones).sum() };
    assert_eq!(tombstones(&store), 1);
    store.core().descend(Down::Any).expect("room");
    assert_eq!(tombstones(&store), 0);
    store.has(7, 0)
}

/// What a merge with one table of the second level does not cover stays in the first.
fn what_is_outside_the_range_stays() -> Outcome {
    let store = Store::new();
    (0..60).step_by(10).for_each(|number| store.put(number, 2));
    store.to_flash();
    let levels = store.levels();
    let (above, below) = (levels.first().tables()[0].clone(), levels.level(2).tables()[0].clone());
    let plan = Plan::down(&levels, &above, 2, false).part(&levels, below.smallest());
    let part = store.part();
    let _migration = part.migration.lock();
    store.core().migrate(&part, &plan, Victims::None, false).expect("room");
    assert_eq!(store.tables(FIRST).len(), 1);
    (0..60).try_for_each(|number| store.has(number, if number % 10 == 0 { 2 } else { 1 }))
}

/// After a merge of two levels no record names a file that is gone.
fn old_tables_of_both_levels_go_together() -> Outcome {
    let store = Store::new();
    store.put(7, 2);
    store.to_flash();
    store.core().descend(Down::Any).expect("room");
    let store = store.reopened()?;
    assert_eq!(store.tables(FIRST).len(), 0);
    store.has(7, 2)
}

/// A removed range is forgotten when no level has anything of it.
fn a_removed_range_asks_all_levels() -> Outcome {
    let store = Store::new();
    let range = KeyRange::half_open(key(5), key(50));
    store.engine.delete_range(&range, Durability::Durable).expect("room");
    store.engine.compact().expect("room");
    assert!(store.part().read().ranges.is_empty());
    store.has(4, 1)?;
    store.has(7, 0)
}

/// A version that was read from the second level is not copied when the first one has got a newer one meanwhile.
fn a_promotion_asks_the_levels_above() -> Outcome {
    let store = Store::new();
    let (then, part) = (store.levels(), store.part());
    let table = then.level(2).find(&key(7)).expect("a table").clone();
    let seqno = table.table(tierdb_device::Cause::Foreground).expect("whole");
    let seqno =
        seqno.get(&key(7), u64::MAX, tierdb_device::Cause::Foreground).expect("whole").expect("there").seqno;
    store.put(7, 2);
    store.to_flash();
    let promotion = Promotion { key: key(7), seqno, value: value(7, 1), level: 2 };
    store.core().promote(&part, promotion, Some((&then, &table)));
    store.has(7, 2)
}

/// Nor is one that a rewrite of its table meets.
fn a_rewrite_of_a_lower_level_promotes_the_newest_only() -> Outcome {
    let store = Store::new();
    store.put(7, 2);
    store.to_flash();
    // Others are known too, and not as popular.
    (0..60)
        .chain([7; 9])
        .for_each(|number| _ = store.core().tracker.touch(hash_of(&key(number)), Tier::Flash));
    let levels = store.levels();
    let plan = Plan::of_table(&levels, 2, levels.level(2).number_of(&key(7)));
    let part = store.part();
    let _migration = part.migration.lock();
    store.core().migrate(&part, &plan, Victims::None, true).expect("room");
    store.has(7, 2)
}

/// What is popular comes to the first level, where that is on a faster device, with the table whose keys it lies among, and not with its
/// neighbour.
fn what_comes_up_is_of_one_tables_keys() -> Outcome {
    // Before there is such a device, all of it goes to the second level.
    let Store { world, engine } = Store::new();
    drop(engine);
    world.add_dir("beside");
    let media = || rig::media_beside(&world, 1 << 20);
    let engine = SlabStore::open(media(), options()).expect("whole");
    let store = Store { world: world.clone(), engine };
    (15..60).for_each(|number| store.put(number, 2));
    store.to_flash();
    (0..60).for_each(|number| _ = store.core().tracker.touch(hash_of(&key(number)), Tier::Flash));
    store.core().stay_share.look(1, 0, 100, 60);
    let levels = store.levels();
    let meets = |one: &LiveTable<SimDir>, other: &LiveTable<SimDir>| {
        one.smallest() <= other.largest() && other.smallest() <= one.largest()
    };
    // A table below two tables.
    let upper = levels.first().tables();
    let below = levels.level(2).tables().iter();
    let mut lower = below.filter(|lower| upper.iter().filter(|upper| meets(upper, lower)).count() > 1);
    let lower = lower.next_back().expect("their ends are not the same").clone();
    let upper = upper.iter().find(|upper| meets(upper, &lower)).expect("two").clone();
    let (plan, part) = (Plan::down(&levels, &upper, 2, false), store.part());
    let migration = part.migration.lock();
    store.core().migrate(&part, &plan, Victims::None, false).expect("room");
    drop(migration);
    assert!(store.core().counters.stayed_bytes.get() > 0);
    (0..60).try_for_each(|number| store.has(number, if number < 15 { 1 } else { 2 }))?;
    drop(store);
    let engine = SlabStore::open(media(), options()).map_err(|error| error.to_string())?;
    Store { world, engine }.has(59, 2)
}

/// What comes to the first level takes with it what was not merged with that: it is newer.
fn what_is_not_merged_goes_with_what_comes_after_it() -> Outcome {
    let store = Store::new();
    (0..60).for_each(|number| store.put(number, 1));
    store.to_flash();
    for (version, waiting) in [(2, [0, 1]), (3, [1, 1]), (4, [0, 0])] {
        (7..14).for_each(|number| store.put(number, version));
        store.to_flash();
        store.has(7, version)?;
        let tables = [TOP, FIRST - 1].map(|level| store.tables(level).len().min(1));
        if tables != waiting {
            return Err(format!("version {version}: {tables:?}"));
        }
    }
    Ok(())
}

/// A table that cannot be read keeps those above it where they are, and no other.
#[test]
fn damage_in_one_table_does_not_end_what_comes_down_beside_it() {
    for damaged in 0..3 {
        let store = Store::new();
        (0..60).for_each(|number| store.put(number, 2));
        store.to_flash();
        let damaged = &store.tables(FIRST + 1)[damaged];
        store.world.flip_bit(&format!("flash0/{}", tierdb_table::file_name(damaged.number())), 100, 3);
        while store.core().descend(Down::Any).expect("room").is_some() {}
        let left = store.tables(FIRST);
        assert!(damaged.is_damaged() && !left.is_empty());
        let is_above = |table: &Arc<LiveTable<SimDir>>| {
            table.smallest() <= damaged.largest() && damaged.smallest() <= table.largest()
        };
        assert!(left.iter().all(is_above), "{} are left", left.len());
    }
}

#[test]
fn every_step_that_keeps_the_order_of_levels_is_needed() {
    let tests: [Row; 9] = [
        ("a delete", a_delete_asks_all_levels),
        ("a tombstone", a_tombstone_stays_above_what_it_hides),
        ("outside of the range", what_is_outside_the_range_stays),
        ("old tables", old_tables_of_both_levels_go_together),
        ("a removed range", a_removed_range_asks_all_levels),
        ("a promotion", a_promotion_asks_the_levels_above),
        ("a rewrite", a_rewrite_of_a_lower_level_promotes_the_newest_only),
        ("what comes up", what_comes_up_is_of_one_tables_keys),
        ("not merged", what_is_not_merged_goes_with_what_comes_after_it),
    ];
    let count = tests.len();
    let tests = tests.map(|(name, test)| (name, move || assert_eq!(test(), Ok(()))));
    rig::every_rule_is_needed("level", count, &tests);
}
