//! Goal: a store with levels below the first is the same store: versions descend with levels, and nothing that was deleted comes back.
//! Method: random operations against the model on stores whose first level has room for a table or two, with snapshots, removed
//! ranges, `verify`, which looks at the order of versions, closes and kills; and the number of levels changed from one open to the next.

use crate::rig::Sizes;
use std::ops::Range;
use tierdb_engine::conformance::harm::{LogPlace, Rig, SimHarness};
use tierdb_engine::conformance::{Limits, random_ops, seeds};
use tierdb_engine::{Durability, Engine, KeyRange};

const KIB: u64 = 1 << 10;
/// Seeds of each store.
const SEEDS: Range<u64> = 500..512;

fn stores() -> [Sizes; 3] {
    [
        Sizes { flash: vec![4 << 20], ..Sizes::stacked() },
        Sizes { name: "three levels", levels: (3, 10), ..Sizes::stacked() },
        Sizes { name: "four levels", pool: 260 * KIB, levels: (4, 4), partitions: 3, ..Sizes::stacked() },
    ]
}

#[test]
fn random_operations_agree_with_the_model() {
    for sizes in stores() {
        for seed in seeds(SEEDS) {
            let log = (seed % 3 == 1).then_some(LogPlace::FastTier);
            let limits = Limits { max_value_bytes: 12_000, may_fill: true, ..crate::rig::limits() };
            fastrand::seed(seed);
            let mut harness = SimHarness::new(Rig::new(sizes.clone(), log), limits);
            random_ops(&mut harness, seed, 600).unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
}

fn figure(engine: &dyn Engine, name: &str) -> u64 {
    engine.stats().figure(name).unwrap_or_else(|| panic!("no figure {name}"))
}

fn key(number: usize) -> Vec<u8> {
    format!("key{number:04}").into_bytes()
}

/// The newest version of each key is found, both ways, by those who look now and by a snapshot.
#[test]
fn tables_go_down_and_come_back_to_one_level() {
    const KEYS: usize = 600;
    fastrand::seed(2);
    let mut rng = fastrand::Rng::with_seed(3);
    let stacked = Sizes { flash: vec![4 << 20], ..Sizes::stacked() };
    let world = Rig::new(stacked.clone(), None).empty_world();
    let mut wanted = vec![None; KEYS];
    for (round, levels) in [(2, 12), (1, 1000), (3, 12), (2, 12)].into_iter().enumerate() {
        let sizes = Sizes { levels, ..stacked.clone() };
        let engine = Rig::new(sizes, None).open(&world).expect("opens");
        let before = wanted.clone();
        let snapshot = engine.snapshot().expect("open");
        for _ in 0..1200 {
            let number = rng.usize(..KEYS);
            if rng.u8(..5) == 0 {
                engine.delete(&key(number), Durability::Durable).expect("room");
                wanted[number] = None;
            } else {
                let value = vec![rng.u8(..); rng.usize(..400)];
                engine.put(&key(number), &value, Durability::Durable).expect("room");
                wanted[number] = Some(value);
            }
        }
        engine.flush().expect("room");
        assert!(figure(&*engine, "tables_below_the_first_level") >= 10, "round {round}");
        // A level that is not too large keeps what it has.
        assert_eq!(figure(&*engine, "tables_merged_down") >= 3, levels.1 == 12, "round {round}");
        let check = |at: Option<&tierdb_engine::Snapshot>, wanted: &[Option<Vec<u8>>]| {
            let mut cursor = engine.cursor(KeyRange::all(), at).expect("open");
            for (number, value) in wanted.iter().enumerate() {
                let found = match at {
                    Some(snapshot) => engine.get_at(&key(number), snapshot),
                    None => engine.get(&key(number)),
                };
                assert_eq!(found.expect("whole").as_deref(), value.as_deref(), "round {round}, key {number}");
                if value.is_some() {
                    assert_eq!(cursor.next().expect("whole").expect("there").0, key(number));
                }
            }
            assert_eq!(cursor.next().expect("whole"), None);
            for (number, _) in wanted.iter().enumerate().rev().filter(|(_, value)| value.is_some()) {
                assert_eq!(cursor.prev().expect("whole").expect("there").0, key(number));
            }
        };
        check(Some(&snapshot), &before);
        check(None, &wanted);
        assert!(engine.verify().expect("open").is_clean());
        engine.compact().expect("room");
        check(None, &wanted);
    }
    // What is removed at last leaves nothing.
    let engine = Rig::new(stacked, None).open(&world).expect("opens");
    engine.delete_range(&KeyRange::all(), Durability::Durable).expect("room");
    engine.compact().expect("room");
    assert_eq!(figure(&*engine, "tables"), 0);
}

/// Keys that come in their order are written to flash once: their tables go down as they are.
#[test]
fn what_has_nothing_below_is_not_written_again() {
    let rig = Rig::new(Sizes { flash: vec![4 << 20], ..Sizes::stacked() }, None);
    let world = rig.empty_world();
    let engine = rig.open(&world).expect("opens");
    for number in 0..600 {
        engine.put(&key(number), &[7; 600], Durability::Durable).expect("room");
    }
    engine.flush().expect("room");
    assert!(figure(&*engine, "tables_moved_down") >= 10);
    assert_eq!(figure(&*engine, "tables_merged_down"), 0);
    let killed = rig.open(&world.capture().nothing()).expect("opens");
    for engine in [engine, killed] {
        for number in 0..600 {
            assert_eq!(engine.get(&key(number)).expect("whole").as_deref(), Some(&[7; 600][..]));
        }
        assert!(engine.verify().expect("open").is_clean());
    }
}
