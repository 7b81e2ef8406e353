//! Goal: every comparison of a checksum is needed, and a test would notice if it were left out.
//! Method: that of the suite that engines share, with damage made so that one comparison alone stands between it and a
//! wrong answer. Those of tables are left out in turn in their own suite.

use super::base;
use crate::rig::Sizes;
use tierdb_base::sources::comparisons;
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::conformance::harm::crafted::{self, Outcome, find, is_refused, set_word, word};
use tierdb_engine::conformance::harm::sums::{Row, leave_out_each};
use tierdb_sim::World;

/// Crates whose comparisons the engine's suites answer for.
const CRATES: [&str; 3] = ["tierdb-slab", "tierdb-pmem", "tierdb-device"];

const TESTS: [Row; 5] = [
    ("tierdb-pmem/src/sealed.rs", "unseal", 0, word_of_a_slot),
    ("src/layout.rs", "open", 0, header_of_the_pool),
    ("src/record.rs", "is_from", 0, seqno_of_a_damaged_record),
    ("src/record.rs", "decode", 0, head_of_a_record),
    ("src/record.rs", "verify", 0, value_of_a_record),
];

#[test]
fn every_comparison_of_a_checksum_that_is_left_out_is_noticed() {
    leave_out_each(&comparisons(env!("CARGO_MANIFEST_DIR"), &CRATES, &[]), &TESTS);
}

/// In the pool's header, the number of flash directories.
const FLASH_AT: u64 = 40;
/// Where the first slab begins, and where its commit words do.
const SLABS_AT: u64 = 4096;
const WORDS_AT: u64 = 64;
/// In a record, from its start: its kind, and its key.
const KIND_AT: u64 = 22;
const KEY_AT: u64 = 40;
const TOMBSTONE: u8 = 2;
/// Of a sealed word, what is not its check; of a commit word, what says that a record is live.
const NUMBER: u64 = (1 << 41) - 1;
const LIVE: u64 = 1 << 40;

type Store = crafted::Store<Sizes>;

fn rig() -> Rig<Sizes> {
    Rig::new(base::sizes(1 << 20), None)
}

/// A store that has `key` with "the value" on the fast tier, and nothing else; and where its record is.
fn with_one_key() -> (World, u64) {
    let store = Store::new(rig());
    store.put("key", b"the value");
    let record = find(&store.world, "pool", SLABS_AT, b"keythe value") - KEY_AT;
    (store.world, record)
}

/// The word of a slot with a live record becomes, but for its check, that of a free one.
fn word_of_a_slot() -> Outcome {
    let (world, record) = with_one_key();
    let slab = SLABS_AT + (record - SLABS_AT) / base::sizes(0).slab * base::sizes(0).slab;
    let mut words = (slab + WORDS_AT..record).step_by(8);
    let live = words.find(|at| word(&world, *at) & LIVE != 0).expect("the key's");
    set_word(&world, live, word(&world, live) & !NUMBER);
    Store::open(rig(), world)?.is_damaged("key")
}

/// The pool's header says that there are two flash directories, which is not the caller's mistake.
fn header_of_the_pool() -> Outcome {
    let (world, _) = with_one_key();
    world.overwrite("pool", FLASH_AT, &[2]);
    is_refused(rig(), world, |store| store.has("key", b"the value"))
}

/// The head of a value's record says that it is a tombstone's.
fn head_of_a_record() -> Outcome {
    let (world, record) = with_one_key();
    world.overwrite("pool", record + KIND_AT, &[TOMBSTONE]);
    // One wrong byte is made right again.
    Store::open(rig(), world)?.has("key", b"the value")
}

/// Two bytes of the newer one of two records that say that they are live, with seqnos of more bits than commit words have of them.
fn seqno_of_a_damaged_record() -> Outcome {
    let store = Store::new(rig());
    store.put("other", b"value");
    let store = store.reopened();
    store.put("key", b"older");
    store.put("key", b"newer");
    let record = find(&store.world, "pool", SLABS_AT, b"keynewer") - KEY_AT;
    store.world.overwrite("pool", record, &[0, 0]);
    Store::open(rig(), store.world)?.is_damaged("key")
}

/// A byte of a value on the fast tier.
fn value_of_a_record() -> Outcome {
    let (world, record) = with_one_key();
    world.flip_bit("pool", record + KEY_AT + 5, 1);
    Store::open(rig(), world)?.is_damaged("key")
}
