//! Goal: one wrong byte in the head of a record costs nothing, whatever the record is; more cost no more than before.
//! Method: each byte of heads of all kinds is changed, and the store opened, read and scanned.

use super::base;
use crate::rig::Sizes;
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::conformance::harm::crafted::{Outcome, Store, find, value};
use tierdb_engine::{Durability, KeyRange};
use tierdb_sim::World;

const SLABS_AT: u64 = 4096;
const HEADER: u64 = 40;

fn rig() -> Rig<Sizes> {
    Rig::new(base::sizes(1 << 20), None)
}

/// A store with a record of each kind, where their heads are, and how long these are.
fn store() -> (World, Vec<(u64, u64)>) {
    let store = Store::new(rig());
    store.put("gone", b"flash has this");
    store.put("kept", b"and this");
    store.put("removed", b"and this");
    store.flush();
    store.put("short", b"the value");
    store.put("long", &value("long", 20_000));
    store.engine.delete(b"gone", Durability::Durable).expect("room");
    let snapshot = store.engine.snapshot().expect("open");
    store.engine.delete_range(&KeyRange::prefix(b"remo"), Durability::Durable).expect("room");
    let head = |key: &str| find(&store.world, "pool", SLABS_AT, key.as_bytes()) - HEADER;
    let mut heads =
        vec![(head("shortthe"), HEADER + 5), (head("long"), HEADER + 4 + 3 * 8), (head("gone"), HEADER + 4)];
    // Records without a key: a table's, and a range's. Their kinds.
    let words = (SLABS_AT..base::sizes(0).pool).step_by(64);
    for kind in [3_u8, 4] {
        let is_it = |at: &u64| store.world.peek("pool", at + 20, 4) == [0, 0, kind, 0];
        heads.push((words.clone().find(is_it).expect("its record"), HEADER));
    }
    drop(snapshot);
    (store.world, heads)
}

fn is_whole(world: World) -> Outcome {
    let store = Store::open(rig(), world)?;
    store.has("short", b"the value")?;
    store.has("long", &value("long", 20_000))?;
    store.has("kept", b"and this")?;
    let mut cursor = store.engine.cursor(KeyRange::all(), None).map_err(|error| error.to_string())?;
    let mut keys = Vec::new();
    while let Some((key, _)) = cursor.next().map_err(|error| error.to_string())? {
        keys.push(key);
    }
    if keys != [&b"kept"[..], b"long", b"short"] {
        return Err(format!("{keys:?}"));
    }
    let report = store.engine.verify().map_err(|error| error.to_string())?;
    if report.is_clean() { Ok(()) } else { Err(format!("{report:?}")) }
}

#[test]
fn one_wrong_byte_of_a_head_is_made_right_again() {
    let (world, heads) = store();
    is_whole(world.copy()).expect("nothing is changed");
    let mut rng = fastrand::Rng::with_seed(1);
    for (at, len) in heads {
        for byte in at..at + len {
            let changed = world.copy();
            let was = changed.peek("pool", byte, 1)[0];
            changed.overwrite("pool", byte, &[was ^ rng.u8(1..)]);
            is_whole(changed).unwrap_or_else(|what| panic!("byte {} of {len}: {what}", byte - at));
        }
    }
}

/// Long heads are made right, too, but for those that are longer than 512 bytes.
#[test]
fn one_wrong_byte_of_a_head_with_a_long_key() {
    for (len, step) in [(300, 7), (600, 40)] {
        let store = Store::new(rig());
        let key = "k".repeat(len);
        store.put(&key, b"value");
        store.put("kept", b"and this");
        let head = find(&store.world, "pool", SLABS_AT, format!("{key}value").as_bytes()) - HEADER;
        for byte in (0..HEADER + len as u64).step_by(step) {
            let changed = store.world.copy();
            changed.flip_bit("pool", head + byte, 3);
            let store = Store::open(rig(), changed).expect("it opens");
            let found = if len == 300 { store.has(&key, b"value") } else { store.is_damaged(&key) };
            found.unwrap_or_else(|what| panic!("byte {byte} of {len}: {what}"));
            store.has("kept", b"and this").expect("the other");
        }
    }
}

#[test]
fn two_wrong_bytes_are_damage() {
    let (world, heads) = store();
    let (short, _) = heads[0];
    for number in [12, 45] {
        let changed = world.copy();
        for byte in [number - 1, number] {
            changed.flip_bit("pool", short + byte - 2, 5);
        }
        let store = Store::open(rig(), changed).expect("it opens");
        store.is_damaged("short").expect("not its value");
        store.has("kept", b"and this").expect("the others");
    }
}

/// Only so many are tried, but all whose values are in parts: these would be used again, and claimed twice by an open that tries.
#[test]
fn a_value_in_parts_is_right_again_however_many_heads_are_damaged() {
    let store = Store::new(rig());
    let key = |number| format!("key{number:03}");
    (0..300).for_each(|number| store.put(&key(number), b"value"));
    store.put("long", &value("long", 20_000));
    let damage = |key: &str| {
        let head = find(&store.world, "pool", SLABS_AT, key.as_bytes()) - HEADER;
        store.world.flip_bit("pool", head, 3);
    };
    (0..300).for_each(|number| damage(&key(number)));
    damage("long");
    let store = store.reopened();
    let whole = (0..300).filter(|number| store.has(&key(*number), b"value").is_ok()).count();
    assert_eq!(whole, 256);
    store.has("long", &value("long", 20_000)).expect("right again");
}
