//! Goal: indexes and filters of tables are read from the fast tier, stay within the memory budget, and are nothing that a
//! store depends on.
//! Method: a store with little memory is read after another open; then with damage to what the fast tier has, and without the
//! tables' own; then the room is wanted for something else.

use crate::rig::Sizes;
use tierdb_base::TierRole;
use tierdb_engine::Durability;
use tierdb_engine::conformance::harm::crafted::{Store, find};
use tierdb_engine::conformance::harm::{LogPlace, Rig};

const KEYS: u32 = 300;

fn key(number: u32) -> String {
    format!("key{number:04}")
}

/// A store whose keys are all on flash, opened again.
fn store(log: Option<LogPlace>) -> Store<Sizes> {
    let store = Store::new(Rig::new(Sizes { pool: 260 << 10, memory: 5 << 10, ..Sizes::tiny() }, log));
    for number in 0..KEYS {
        store.put(&key(number), &[number as u8; 300]);
    }
    store.flush();
    let store = store.reopened();
    assert!(store.figure("tables") >= 4);
    store
}

fn has_all(store: &Store<Sizes>) {
    for number in 0..KEYS {
        store.has(&key(number), &[number as u8; 300]).expect("the value");
    }
}

/// Bytes that the fast tier has of tables.
fn bytes_on_fast_tier(store: &Store<Sizes>) -> u64 {
    let tiers = store.engine.stats().tiers;
    let fast = tiers.iter().find(|tier| tier.role == TierRole::Fast).expect("a fast tier");
    fast.parts.iter().find(|(part, _)| *part == "table indexes and filters").expect("a part").1
}

#[test]
fn indexes_come_from_the_fast_tier_and_go_when_memory_is_short() {
    let store = store(None);
    assert!(bytes_on_fast_tier(&store) > 0);
    assert_eq!(store.figure("table_indexes_loaded"), 0, "an open reads footers only");
    let mut rounds = 0;
    while store.figure("table_indexes_loaded") <= 2 * store.figure("tables") {
        has_all(&store);
        rounds += 1;
        assert!(rounds < 1000, "they never go");
    }
    assert_eq!(store.figure("table_indexes_loaded_from_flash"), 0);
    // What is DRAM anyway has no copy of them.
    let logged = self::store(Some(LogPlace::FastTier));
    has_all(&logged);
    assert_eq!(bytes_on_fast_tier(&logged), 0);
}

#[test]
fn a_damaged_copy_costs_nothing() {
    let store = store(None);
    let index = find(&store.world, "pool", 4096, b"TierTIdx");
    store.world.flip_bit("pool", index + 20, 3);
    has_all(&store);
    assert_eq!(store.figure("table_indexes_loaded_from_flash"), 1);
    let report = store.engine.verify().expect("a report");
    assert_eq!(report.damage.len(), 1, "{:?}", report.damage);
    assert!(report.damage[0].place.as_ref().is_some_and(|place| &*place.file == "pool"));
}

#[test]
fn a_copy_outlives_the_index_of_its_file() {
    let store = store(None);
    let tables: Vec<String> =
        store.world.areas().into_iter().map(|area| area.name).filter(|name| name.contains("flash")).collect();
    for table in &tables {
        store.world.flip_bit(table, find(&store.world, table, 0, b"TierTIdx") + 20, 3);
    }
    has_all(&store);
    assert_eq!(store.engine.verify().expect("a report").damage.len(), tables.len());
}

#[test]
fn a_large_value_gets_the_room() {
    // The largest that a store takes which has no copies, in parts of a slab each.
    let largest = (1..32).rev().find(|slabs| {
        let without = store(Some(LogPlace::FastTier));
        without.engine.put(b"large", &vec![7; slabs * 8064], Durability::Durable).is_ok()
    });
    let large = vec![7; largest.expect("one of a slab") * 8064];
    let store = store(None);
    assert!(bytes_on_fast_tier(&store) > 0);
    store.put("large", &large);
    store.has("large", &large).expect("the value");
    assert_eq!(bytes_on_fast_tier(&store), 0);
    has_all(&store);
    has_all(&store.reopened());
}
