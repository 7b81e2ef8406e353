//! Goal: whatever bytes media give back, a store says so or gives the right answer: never another value,
//! never *not there* for a key that is there, never a panic, a hang or a huge allocation; and what one
//! damaged place costs is its own keys.
//! Method: one small store with something of everything, on memory, and with a logged pool and two levels of tables; copies of it
//! damaged in every way that `harm` has; each opened, read in three ways, verified, and a part of them
//! written to, emptied into flash, collected and opened again.

use super::base::{self, base};
use crate::rig::{SEED, Sizes};
use tierdb_device::{Dir, OpenMode};
use tierdb_engine::conformance::harm::crafted::{Store, find, set_word, value};
use tierdb_engine::conformance::harm::{Rig, surveys};
use tierdb_engine::{Durability, KeyRange, WriteBatch};
use tierdb_pmem::seal;

/// Damaged stores that each test opens at least: 200,000 in all.
const METADATA: u64 = 37_000;
const DATA: u64 = 48_000;
const LOGGED: u64 = 60_000;
const STRANGE: u64 = 3_000;
/// Of each of the two kinds of fast device.
const DEVICE: u64 = 30_000;
const _: () = assert!(METADATA + DATA + LOGGED + STRANGE + 2 * DEVICE >= 200_000);

#[test]
fn a_whole_store_is_whole() {
    for logged in [false, true] {
        surveys::whole(&base(logged));
    }
}

#[test]
fn a_store_with_a_log_has_two_levels() {
    let base = base(true);
    let stats = base.rig.open(&base.world.copy()).expect("it opens").stats();
    let [tables, below] = ["tables", "tables_below_the_first_level"].map(|name| stats.figure(name));
    assert!(below >= Some(3) && tables > below, "{below:?} of {tables:?} tables");
}

#[test]
fn flipped_metadata() {
    let tally = surveys::metadata(&base(false), 2, 4000);
    assert!(tally.stores >= METADATA, "{tally}");
}

#[test]
fn damaged_data() {
    let tally = surveys::data(&base(false), 15_000, 20_000, 300);
    assert!(tally.stores >= DATA, "{tally}");
}

#[test]
fn damaged_logged_pool() {
    let tally = surveys::logged(&base(true), 9, 7_000, 300);
    assert!(tally.stores >= LOGGED, "{tally}");
}

/// With tables of the first level on the fast device, and with records that are read from it.
#[test]
fn damaged_fast_devices() {
    for sizes in [base::beside(1 << 20), base::paged(1 << 20)] {
        let base = base::base_of(sizes, true);
        surveys::whole(&base);
        let tally = surveys::logged(&base, 54, 5000, 100);
        assert!(tally.stores >= DEVICE, "{tally}");
        surveys::older_fast_tier(&base, true);
    }
}

#[test]
fn strange_media() {
    let mut tally = surveys::noise(&base(false), 3000);
    for logged in [false, true] {
        let seen = surveys::older_flash(&base(logged));
        // Since the last copy nothing has gone to flash.
        assert_eq!((seen.refused, seen.harmless), (2, 1));
        tally += seen;
    }
    assert!(tally.stores >= STRANGE, "{tally}");
}

#[test]
fn a_newer_format_is_refused_as_such() {
    surveys::newer_format(&base(false), "pool", 48);
    surveys::newer_format(&base(true), "fast/pool.table", 104);
}

/// The tables that it names may have been replaced since.
#[test]
fn an_older_fast_tier_gives_nothing_that_never_was() {
    for logged in [false, true] {
        surveys::older_fast_tier(&base(logged), true);
    }
}

/// Bytes of a record before its key.
const HEADER: u64 = 40;

/// Changes these bytes of the record of "key" with this value, counted from its start.
fn damage(store: &Store<Sizes>, value: &str, bytes: &[u64]) {
    let key_at = find(&store.world, "pool", 4096, format!("key{value}").as_bytes());
    bytes.iter().for_each(|byte| store.world.flip_bit("pool", key_at - HEADER + byte, 3));
}

/// A store whose seqnos have more bits than commit words have of them.
fn with_larger_seqnos() -> Store<Sizes> {
    let store = Store::new(Rig::new(base::sizes(1 << 20), None));
    store.put("other", b"value");
    store.reopened()
}

/// After a crash two records of a key may be live. If one of them is damaged, its seqno still tells which one is the newer, whatever of its
/// head is wrong.
#[test]
fn a_damaged_record_costs_nothing_that_was_written_after_it() {
    let with_two = |damaged, bytes: &[u64]| {
        let store = with_larger_seqnos();
        store.put("key", b"older");
        store.put("key", b"newer");
        damage(&store, damaged, bytes);
        store.reopened()
    };
    // Of its checksum, and of its seqno.
    for bytes in [[0, 1], [12, 13]] {
        with_two("older", &bytes).has("key", b"newer").expect("what was acknowledged last");
        with_two("newer", &bytes).is_damaged("key").expect("not what was written before it");
    }
    // Of the checksum of its value, or of the value and its seqno, which is then below that of the older one: nothing tells any more.
    for bytes in [&[24, 25][..], &[0, HEADER + 5]] {
        let store = with_larger_seqnos();
        store.put("key", b"older");
        store.put("key", b"newer");
        store.world.flip_bit("pool", find(&store.world, "pool", 4096, b"keynewer") - HEADER + 10, 4);
        damage(&store, "newer", bytes);
        store.reopened().is_damaged("key").expect("not what was written before it");
    }
    let store = with_larger_seqnos();
    store.put("key", b"older");
    store.engine.delete_range(&KeyRange::prefix(b"k"), Durability::Durable).expect("room");
    damage(&store, "older", &[0, 1]);
    assert_eq!(store.reopened().engine.get(b"key").expect("removed"), None);
}

/// Commit words have some bits of a seqno, and those do not begin anew with each open: what was written first after one is not taken for what
/// was written first before it.
#[test]
fn a_damaged_record_does_not_pass_for_one_of_an_earlier_time() {
    for is_flushed in [true, false] {
        // Of its checksum; and of its value, so that nothing but the word tells of its seqno.
        for bytes in [&[0, 1][..], &[0, 1, HEADER + 5]] {
            let store = Store::new(Rig::new(base::sizes(1 << 20), None));
            store.put("key", b"older");
            if is_flushed {
                store.flush();
            }
            let store = store.reopened();
            store.put("key", b"newer");
            damage(&store, "newer", bytes);
            store.reopened().is_damaged("key").expect("not what was written before it");
        }
    }
}

/// A page that is lost may come back as it was earlier, and its words are whole. With the seqnos of that time, writes would come before what is
/// there, and scans pass it by.
#[test]
fn a_limit_of_seqnos_of_an_earlier_moment_is_refused() {
    type Later = fn(&Store<Sizes>);
    let later: [Later; 3] = [
        |store| store.put("key", b"value"),
        |store| {
            store.put("key", b"value");
            store.flush();
        },
        |store| {
            store.put("key", b"value");
            store.flush();
            store.engine.delete_range(&KeyRange::prefix(b"k"), Durability::Durable).expect("room");
        },
    ];
    for (number, later) in later.into_iter().enumerate() {
        let store = Store::new(Rig::new(base::sizes(1 << 20), None));
        later(&store);
        let store = store.reopened();
        set_word(&store.world, 64, seal(SEED, 64, 0));
        let refused = store.rig.open(&store.world.copy()).err();
        let why = refused.unwrap_or_else(|| panic!("{number}: it is older than what is there")).to_string();
        assert!(why.contains("seqnos"), "{number}: {why}");
    }
}

/// Whatever takes the place of a record that cannot be read lasts, though nothing says any more which one was the newer.
#[test]
fn what_replaces_a_damaged_record_lasts() {
    type Change = fn(&Store<Sizes>);
    let changes: [(Change, Option<&[u8]>); 5] = [
        (|store| store.put("key", b"whole"), Some(b"whole")),
        (|store| store.engine.delete(b"key", Durability::Durable).expect("room"), None),
        (
            |store| {
                let mut batch = WriteBatch::new();
                batch.put("key", "whole").and_then(|batch| batch.put("another", "value")).expect("short");
                store.write(&batch);
            },
            Some(b"whole"),
        ),
        (
            |store| {
                let mut batch = WriteBatch::new();
                batch.delete("key").expect("short");
                store.write(&batch);
            },
            None,
        ),
        (
            |store| {
                let range = KeyRange::half_open("key", "keyz");
                let removed = store.engine.delete_range(&range, Durability::Durable);
                removed.map_or_else(|error| panic!("{error}"), |keys| assert_eq!(keys, 1));
            },
            None,
        ),
    ];
    let short = || {
        let store = with_larger_seqnos();
        store.put("key", b"on flash");
        store.flush();
        store.put("key", b"newer");
        // Its seqno, and its value.
        damage(&store, "newer", &[12, 13, HEADER + 5]);
        store
    };
    let long = || {
        let store = with_larger_seqnos();
        store.put("key", &value("parts", 20_000));
        damage(&store, "", &[0, 1]);
        store
    };
    // Found by an open, by a migration, and by what replaces it.
    type Setup<'s> = (&'s str, &'s dyn Fn() -> Store<Sizes>);
    let migrated = |store: Store<Sizes>| {
        store.flush();
        store
    };
    let setups: [Setup<'_>; 5] = [
        ("short, opened", &|| short().reopened()),
        ("short, migrated", &|| migrated(short())),
        ("long, opened", &|| long().reopened()),
        ("long, migrated", &|| migrated(long())),
        ("long", &long),
    ];
    for (number, (change, wanted)) in changes.into_iter().enumerate() {
        for (setup, damaged) in setups {
            let store = damaged();
            store.is_damaged("key").expect("not what flash has");
            change(&store);
            let store = store.reopened();
            let found =
                store.engine.get(b"key").unwrap_or_else(|error| panic!("{setup}, change {number}: {error}"));
            assert_eq!(found.as_deref(), wanted, "{setup}, change {number}");
        }
    }
}

/// They are what crashes have left of migrations, and each open of a store of which something is lost for good would leave some more.
#[test]
fn files_that_no_record_names_are_removed_though_a_key_is_damaged() {
    let store = with_larger_seqnos();
    store.put("key", b"on flash");
    store.flush();
    store.put("key", b"newer");
    damage(&store, "newer", &[12, 13, HEADER + 5]);
    let store = store.reopened();
    let dir = store.world.dir("flash0");
    dir.open("00000000000000000999.table", OpenMode::CreateNew).and_then(|_| dir.sync()).expect("room");
    let files = || dir.list().expect("files").len();
    let before = files();
    let store = store.reopened();
    store.is_damaged("key").expect("not what flash has");
    assert_eq!(files(), before - 1);
    store.has("other", b"value").expect("what is not damaged");
}

/// What cannot be read stays on the fast tier. No table is rewritten for it more than once, and what lies beside it goes to flash.
#[test]
fn a_damaged_record_is_not_merged_again_and_again() {
    let store = Store::new(Rig::new(base::sizes(1 << 20), None));
    for number in 0..40 {
        store.put(&format!("key{number:02}"), &value("old", 300));
    }
    store.flush();
    store.put("key07", b"newer");
    let key_at = find(&store.world, "pool", 4096, b"key07newer");
    store.world.flip_bit("pool", key_at + 6, 3);
    store.flush();
    let written = store.figure("tables_written");
    for _ in 0..3 {
        store.flush();
    }
    assert_eq!(store.figure("tables_written"), written);
    store.is_damaged("key07").expect("no other value");
    store.put("key08", b"newer");
    store.flush();
    assert_eq!(store.figure("keys_fast"), 1);
    // The same where it is known from the start, because its head is damaged.
    for byte in [24, 25] {
        store.world.flip_bit("pool", key_at - HEADER + byte, 3);
    }
    let store = store.reopened();
    store.flush();
    assert_eq!(store.figure("tables_written"), 0);
    store.is_damaged("key07").expect("no other value");
    store.put("key07", b"whole");
    let store = store.reopened();
    store.has("key07", b"whole").expect("what was acknowledged last");
    store.flush();
    assert_eq!(store.figure("keys_fast"), 0);
    store.has("key07", b"whole").expect("what was written last");
    store.has("key08", b"newer").expect("what lay beside it");
}
