//! Damage made so that one comparison of a checksum alone stands between it and a wrong answer. Each test says
//! in its error what is wrong; with every comparison in its place nothing is.

use crate::base::{self, Mode};
use crate::rig;
use crate::sites::sites;
use tierdb_base::{ErrorKind, checksum, mutant};
use tierdb_engine::conformance::harm::Rig;
use tierdb_engine::conformance::harm::crafted::{self, Outcome, find, set_word, shown, value, word};
use tierdb_engine::{Durability, Engine, KeyRange, WriteBatch};
use tierdb_pmem::seal;
use tierdb_sim::World;
use tierdb_valuelog::salvage;

const PAGE: u64 = 4096;
const UNIT: u64 = 32;
/// Bytes of a record's header.
const HEADER: u64 = 32;
/// Where rings start in the pool, and the commit slot of the first.
const RINGS_AT: u64 = 2 * PAGE;
const COMMIT_SLOT: u64 = 128;
/// The kind of a record that lists what a batch installs, and of a page of such a list.
const REDO: u8 = 3;
const REDO_PAGE: u8 = 6;
/// Kinds of pages.
const PAGE_OF_HSIT: u8 = 1;
const PAGE_OF_LEAF: u8 = 2;
/// Where the fingerprints of a leaf's keys start, a byte each.
const FINGERPRINTS_AT: u64 = 64;
const VALUES: &str = "flash0/values";

/// A small store, in use.
type Store = crafted::Store<rig::Sizes>;

fn new_store() -> Store {
    Store::new(rig())
}

fn rig() -> Rig<rig::Sizes> {
    Mode::Memory.rig(base::sizes())
}

fn open_in(world: &World) -> tierdb_base::Result<Box<dyn Engine>> {
    rig().open(world)
}

fn is_refused(world: World, else_: impl FnOnce(&Store) -> Outcome) -> Outcome {
    crafted::is_refused(rig(), world, else_)
}

/// Where a record of `kind` that has no key starts in the pool, from `from` on, by steps of `step` bytes.
fn redo(world: &World, from: u64, step: u64, kind: u8) -> u64 {
    let starts = (from..base::sizes().pool).step_by(step as usize);
    let is_redo = |at: &u64| word(world, at + 8) == u64::from(kind) << 56;
    starts.into_iter().find(is_redo).expect("a record of a batch")
}

/// As a crash leaves a store whose batch is durable, and not installed: its commit slot names the redo record.
fn not_installed(world: &World, redo: u64) {
    set_word(world, COMMIT_SLOT, seal(base::sizes().seed, COMMIT_SLOT, redo / UNIT));
}

/// The words of the page table, of pages of `kind`: byte of the word, and byte of the page.
fn pages(world: &World, kind: u8) -> Vec<(u64, u64)> {
    let first = (RINGS_AT + base::sizes().ring) / PAGE;
    let count = base::sizes().pool / PAGE - first;
    let all = (0..count).map(|page| (PAGE + page * 8, (first + page) * PAGE));
    all.filter(|(at, _)| word(world, *at) & 0xff == u64::from(kind)).collect()
}

/// The first entry of the HSIT that points somewhere.
fn pointing_entry(world: &World) -> u64 {
    let (_, page) = pages(world, PAGE_OF_HSIT)[0];
    let points_somewhere = |at: &u64| matches!(word(world, *at) >> 61 & 3, 1 | 2);
    (page..page + PAGE).step_by(16).find(points_somewhere).expect("a key's")
}

/// The pool's header says that chunks are twice as long as they are.
pub fn header_of_the_pool() -> Outcome {
    let store = new_store();
    store.put("long", &value("long", 40_000));
    store.has("long", &value("long", 40_000))?;
    let world = store.world.copy();
    set_word(&world, 32, 2 * base::sizes().chunk);
    is_refused(world, |store| store.has("long", &value("long", 40_000)))
}

/// A commit slot that was not written names the redo record of a batch that is long done.
pub fn sealed_word() -> Outcome {
    let store = new_store();
    let mut batch = WriteBatch::new();
    batch.put(*b"one", *b"old").and_then(|batch| batch.put(*b"other", *b"old")).expect("a small batch");
    store.write(&batch);
    store.put("one", b"new");
    let world = store.world.copy();
    let redo = redo(&world, RINGS_AT, UNIT, REDO);
    set_word(&world, COMMIT_SLOT, word(&world, COMMIT_SLOT) & !((1 << 41) - 1) | (redo / UNIT));
    is_refused(world, |store| store.has("one", b"new"))
}

/// The word of a key that is there becomes, but for its check, that of one that is not.
pub fn word_without_a_record() -> Outcome {
    let store = new_store();
    store.put("key", b"value");
    set_word(&store.world, pointing_entry(&store.world), 0);
    store.is_damaged("key")
}

/// While the store is closed the word of a key becomes that of another, whose value is not to be given up with it.
pub fn word_of_a_closed_store() -> Outcome {
    let store = new_store();
    store.put("key", b"the value");
    store.flush();
    // In a chunk of its own.
    let store = store.reopened();
    store.put("other", b"another");
    store.flush();
    let world = store.closed();
    let (_, page) = pages(&world, PAGE_OF_HSIT)[0];
    let on_flash = |at: &u64| word(&world, *at) >> 61 & 3 == 2;
    let words: Vec<u64> = (page..page + PAGE).step_by(16).filter(on_flash).collect();
    assert_eq!(words.len(), 2, "the key's and the other's");
    set_word(&world, words[0], word(&world, words[1]));
    let store = Store::open(rig(), world)?;
    store.is_damaged("key")?;
    store.put("key", b"new");
    for number in 0..100 {
        store.put(&format!("more{number}"), &value("more", 400));
    }
    store.flush();
    store.has("key", b"new")?;
    store.has("other", b"another")
}

/// While the store is closed two fingerprints of a leaf change alike, which leaves their sum as it is, and hides the
/// keys from a search.
pub fn leaf_of_a_closed_store() -> Outcome {
    let store = new_store();
    store.put("key", b"the value");
    store.put("other", b"another");
    let world = store.closed();
    let (_, page) = pages(&world, PAGE_OF_LEAF)[0];
    set_word(&world, page + FINGERPRINTS_AT, word(&world, page + FINGERPRINTS_AT) ^ 0x0101);
    Store::open(rig(), world)?.is_damaged("key")
}

/// A leaf is as it was before a key was inserted. What the key has is found without it, at every open.
#[test]
fn a_leaf_of_an_earlier_moment_does_not_hide_a_key() {
    let store = new_store();
    store.put("key", b"the value");
    let (_, page) = pages(&store.world, PAGE_OF_LEAF)[0];
    let earlier = store.world.peek("pool", page, PAGE as usize);
    store.put("other", b"another");
    let mut world = store.world.copy();
    world.overwrite("pool", page, &earlier);
    for round in 0..3 {
        let store = Store::open(rig(), world).unwrap_or_else(|error| panic!("round {round}: {error}"));
        store.is_damaged("other").unwrap_or_else(|what| panic!("round {round}: {what}"));
        store.put("key", format!("value {round}").as_bytes());
        store.has("key", format!("value {round}").as_bytes()).unwrap_or_else(|what| panic!("{what}"));
        let refused =
            store.engine.put(b"more", b"value", Durability::Durable).expect_err("the leaf may have it");
        assert_eq!(refused.kind(), ErrorKind::Corrupt);
        let mut cursor = store.engine.cursor(KeyRange::all(), None).expect("it opens");
        assert!(cursor.next().is_err(), "a scan does not pass it by");
        drop(cursor);
        let found = store.engine.verify().expect("no faults").damage;
        let names =
            |key: &[u8]| found.iter().any(|of| of.keys.as_ref().is_some_and(|keys| keys.contains(key)));
        assert!(names(b"other"), "{found:?}");
        // For a repair, which takes what an entry points at.
        store.flush();
        world = if round == 0 { store.world.copy() } else { store.closed() };
        let mut saved = None;
        let media = rig().memory_media(&world);
        salvage(media, &mut |of| {
            if of.key == b"other" {
                saved = Some((of.value, of.sure));
            }
            Ok(())
        })
        .expect("no faults");
        assert_eq!(saved, Some((b"another".to_vec(), true)), "round {round}");
    }
}

/// The word of an entry without a key is of the time when it had one, which was written again since, under another entry.
#[test]
fn what_an_entry_without_a_key_had_before_does_no_harm() {
    let store = new_store();
    let delete =
        |store: &Store, key: &str| store.engine.delete(key.as_bytes(), Durability::Durable).expect("room");
    store.put("key", b"the value");
    let entry = pointing_entry(&store.world);
    let earlier = word(&store.world, entry);
    delete(&store, "key");
    let store = store.reopened();
    store.put("other", b"another");
    store.put("key", b"newer");
    delete(&store, "other");
    let world = store.world.copy();
    set_word(&world, entry, earlier);
    let store = Store::open(rig(), world).expect("it opens");
    store.has("key", b"newer").unwrap_or_else(|what| panic!("{what}"));
    assert_eq!(store.engine.get(b"other").expect("nothing is damaged"), None);
    store.put("more", b"value");
    // Nor does it come back when the key goes.
    delete(&store, "key");
    let store = Store::open(rig(), store.closed()).expect("it opens");
    assert_eq!(store.engine.get(b"key").expect("nothing is damaged"), None);
    store.put("key", b"newest");
}

/// The `number`th of keys of which a leaf holds a dozen or so.
fn wide_key(number: usize) -> String {
    format!("{number:02}{}", "x".repeat(200))
}

/// A store with the first 40 of these, and no leaf that was replaced and may be taken for one.
fn several_leaves() -> Store {
    let store = new_store();
    (0..40).for_each(|number| store.put(&wide_key(number), b"the value"));
    Store::open(rig(), store.closed()).expect("it opens")
}

/// A leaf is as it was before a key was removed, whose entry has gone to another since.
#[test]
fn an_entry_that_two_keys_name_is_that_of_the_key_in_its_record() {
    let (store, key) = (several_leaves(), wide_key);
    let has_first =
        |(_, page): &(u64, u64)| find(&store.world, "pool", *page, key(0).as_bytes()) < page + PAGE;
    let (_, leaf) = pages(&store.world, PAGE_OF_LEAF).into_iter().find(has_first).expect("the first key's");
    let earlier = store.world.peek("pool", leaf, PAGE as usize);
    store.engine.delete(key(0).as_bytes(), Durability::Durable).expect("room");
    let store = store.reopened();
    store.put(&key(99), b"another");
    let mut world = store.world.copy();
    world.overwrite("pool", leaf, &earlier);
    for round in 0..2 {
        let store = Store::open(rig(), world).unwrap_or_else(|error| panic!("round {round}: {error}"));
        for (number, value) in [(1, "the value"), (39, "the value"), (99, "another")] {
            store.has(&key(number), value.as_bytes()).unwrap_or_else(|what| panic!("round {round}: {what}"));
        }
        // It was deleted: the leaf that says so is not there, so that either answer is right from the second time on.
        if round == 0 {
            store.is_damaged(&key(0)).unwrap_or_else(|what| panic!("{what}"));
        }
        world = store.world.copy();
    }
}

/// Damage of a leaf ends scans that come to it, and no others.
#[test]
fn a_scan_does_not_come_upon_damage_behind_its_range() {
    let store = several_leaves();
    let (mut damaged, whole) = (0, store.world.copy());
    for (_, leaf) in pages(&whole, PAGE_OF_LEAF) {
        let world = whole.copy();
        // Its checksum.
        world.flip_bit("pool", leaf + 48, 1);
        let Ok(store) = Store::open(rig(), world) else { continue };
        let lost = |number: &usize| store.engine.get(wide_key(*number).as_bytes()).is_err();
        let (Some(first), Some(last)) = ((0..40).find(lost), (0..40).rev().find(lost)) else { continue };
        damaged += 1;
        for range in [0..first, last + 1..40].into_iter().filter(|range| !range.is_empty()) {
            // Fences are as short as may be.
            let [from, to] = [range.start, range.end].map(|number| format!("{number:02}"));
            let keys = KeyRange::half_open(from, to);
            let mut cursor = store.engine.cursor(keys, None).expect("open");
            let mut steps = |reverse: bool| {
                let mut step = || if reverse { cursor.prev() } else { cursor.next() };
                let entries =
                    std::iter::from_fn(|| step().transpose()).collect::<tierdb_base::Result<Vec<_>>>();
                entries.unwrap_or_else(|error| panic!("{range:?} of {first} to {last}: {error}")).len()
            };
            // From the end, where the first steps have led.
            assert_eq!([steps(false), steps(true)], [range.len(); 2]);
        }
        let mut cursor = store.engine.cursor(KeyRange::all(), None).expect("open");
        assert!((0..40).any(|_| cursor.next().is_err()), "{first} to {last} are lost");
    }
    assert!(damaged > 2, "{damaged} leaves");
}

/// The page table takes a leaf for a page of the HSIT.
pub fn kind_of_a_page() -> Outcome {
    let store = new_store();
    store.put("key", b"value");
    let (at, _) = pages(&store.world, PAGE_OF_LEAF)[0];
    let world = store.world.copy();
    world.overwrite("pool", at, &[PAGE_OF_HSIT]);
    let store = Store::open(rig(), world).map_err(|what| format!("a hint costs the store: {what}"))?;
    store.has("key", b"value")?;
    match pages(&store.world, PAGE_OF_LEAF).iter().any(|(of, _)| *of == at) {
        true => Ok(()),
        false => Err("the table is not mended".into()),
    }
}

/// A byte of a value in the write buffer.
pub fn record_in_a_ring() -> Outcome {
    let store = new_store();
    store.put("key", b"the value");
    store.world.flip_bit("pool", find(&store.world, "pool", RINGS_AT, b"the value"), 1);
    store.is_damaged("key")
}

/// Two values on flash, and a byte of the first damaged.
fn damaged_on_flash() -> Store {
    damaged_on_flash_of(new_store())
}

fn damaged_on_flash_of(store: Store) -> Store {
    store.put("key", b"the value");
    store.put("other", b"another");
    store.flush();
    store.world.flip_bit(VALUES, find(&store.world, VALUES, 0, b"the value"), 1);
    store
}

/// A byte of a value on flash.
pub fn record_on_flash() -> Outcome {
    damaged_on_flash().is_damaged("key")
}

/// A byte of a value on flash that comes with another one, which a reader asked for.
pub fn record_beside_another() -> Outcome {
    // Others have no memory for a cache.
    let sizes = rig::Sizes { memory: 1 << 20, ..base::sizes() };
    // What was on the fast tier is on flash alone.
    let store = damaged_on_flash_of(Store::new(Mode::Memory.rig(sizes))).reopened();
    store.has("other", b"another")?;
    store.is_damaged("key")
}

/// A byte of a value on flash that is read together with others.
pub fn record_among_others() -> Outcome {
    let store = damaged_on_flash();
    let mut found = store.engine.multi_get(&[b"key", b"other"]).into_iter();
    let (first, second) = (found.next().expect("the first"), found.next().expect("the second"));
    match (first, second) {
        (Err(error), Ok(Some(other))) if error.kind() == ErrorKind::Corrupt && *other == *b"another" => {
            Ok(())
        }
        (Err(error), _) => Err(format!("the other one, or {error}")),
        (Ok(found), _) => Err(format!("key has {}", shown(found.as_deref()))),
    }
}

/// A copy in the second level of the value cache is damaged: then the record is read from flash.
pub fn value_in_the_second_level() -> Outcome {
    // Others have no memory for a cache.
    let sizes = rig::Sizes { memory: 448 << 10, ..base::sizes() };
    let store = Store::new(Mode::Memory.rig(sizes));
    store.put("key", b"the value");
    store.flush();
    assert!(store.figure("second_level_copies") > 0, "it was offered as it left the write buffer");
    let first_page = RINGS_AT + base::sizes().ring;
    store.world.flip_bit("pool", find(&store.world, "pool", first_page, b"the value"), 1);
    store.has("key", b"the value")
}

/// Damage in the write buffer is not brought to flash, where it would cost a chunk.
pub fn record_that_is_reclaimed() -> Outcome {
    let store = new_store();
    store.put("key", b"the value");
    store.put("other", b"another");
    store.world.flip_bit("pool", find(&store.world, "pool", RINGS_AT, b"the value"), 1);
    store.flush();
    let counted = store.figure("damaged_records");
    let store = store.reopened();
    store.engine.compact().expect("room");
    store.is_damaged("key")?;
    store.has("other", b"another")?;
    match (store.figure("quarantined_chunks"), counted) {
        (0, 1) => Ok(()),
        (chunks, _) => Err(format!("{counted} damaged records counted, and {chunks} chunks of flash lost")),
    }
}

/// What was read wrongly once is not written in place of a record that is right.
pub fn record_that_is_collected() -> Outcome {
    let store = damaged_on_flash().reopened();
    let at = find(&store.world, VALUES, 0, b"he value") - 1;
    store.engine.compact().expect("room");
    if store.figure("collected_chunks") == 0 {
        return Err("nothing was collected".into());
    }
    store.world.flip_bit(VALUES, at, 1);
    store.has("key", b"the value")?;
    store.has("other", b"another")
}

/// Values that look like records, of which a collection must not sum every one.
pub fn header_among_values() -> Outcome {
    let store = new_store();
    // A header of a value of 1,000 bytes, but for its check, at every place where one could be.
    let mut header = [0u8; HEADER as usize];
    header[8] = 1;
    header[15] = 1;
    header[24..28].copy_from_slice(&1000u32.to_le_bytes());
    // 1,664 bytes a record: most granules of 1,024 bytes in which one starts begin inside another.
    let lookalike = header.repeat(50);
    for number in 10..16 {
        store.put(&format!("key{:>029}", number), &lookalike);
    }
    store.flush();
    let store = store.reopened();
    let all = sites(false);
    let whole = all.iter().find(|of| of.function == "find_record" && of.nth == 1).expect("the record's");
    let seen = mutant::record(|| store.engine.compact().expect("room"));
    let (summed, moved) = (seen.get(&whole.site).copied().unwrap_or(0), store.figure("collected_records"));
    match (summed, moved) {
        (6, 6) => Ok(()),
        _ => Err(format!("{summed} records summed to move {moved}")),
    }
}

/// A record's length reaches over the next one, which is to be reclaimed all the same.
pub fn header_in_a_ring() -> Outcome {
    let store = new_store();
    for key in ["one", "two", "three"] {
        store.put(key, &value(&format!("={key}"), 100));
    }
    let record = |key: &str| {
        find(&store.world, "pool", RINGS_AT, &value(&format!("={key}"), 100)) - HEADER - key.len() as u64
    };
    let (one, two) = (record("one"), record("two"));
    let longer = 100 + (two - one) as u32;
    store.world.overwrite("pool", one + 24, &longer.to_le_bytes());
    store.flush();
    for number in 0..200 {
        store.put(&format!("other{number}"), &value("other", 100));
    }
    store.is_damaged("one")?;
    store.has("two", &value("=two", 100))?;
    store.has("three", &value("=three", 100))
}

/// A store with a batch that is durable and not installed, and where its redo record is.
fn with_redo_record() -> (World, u64) {
    let store = new_store();
    let mut batch = WriteBatch::new();
    batch.put(*b"one", *b"1").and_then(|batch| batch.put(*b"other", *b"2")).expect("a small batch");
    store.write(&batch);
    let world = store.world.copy();
    let redo = redo(&world, RINGS_AT, UNIT, REDO);
    not_installed(&world, redo);
    drop(open_in(&world.copy()).expect("a whole one"));
    (world, redo)
}

/// The redo record of a batch that is durable and not installed says that a key was deleted.
pub fn redo_record() -> Outcome {
    let (world, redo) = with_redo_record();
    set_word(&world, redo + HEADER + 8, 0);
    is_refused(world, |store| store.has("one", b"1"))
}

/// What is made for it passes checksums.
#[test]
fn a_redo_record_with_a_word_that_is_never_written_is_refused() {
    let (world, redo) = with_redo_record();
    set_word(&world, redo + HEADER + 8, u64::from(u32::MAX) << 29);
    let body = word(&world, redo + 24) & u64::from(u32::MAX);
    let record = world.peek("pool", redo + 8, (HEADER + body - 8) as usize);
    set_word(&world, redo, checksum(base::sizes().seed, &record));
    let refused = open_in(&world).err().expect("it says nothing that can be");
    assert!(refused.to_string().contains("redo record of a batch names"), "{refused}");
}

/// A page of the redo list of a batch of many deletes names the entry of another key.
pub fn redo_page() -> Outcome {
    let store = new_store();
    store.put("kept", b"value");
    let mut batch = WriteBatch::new();
    for number in 0..300 {
        store.put(&format!("{number}"), b"");
        batch.delete(format!("{number}").into_bytes()).expect("a small batch");
    }
    // While it is open the keys stay in the index, whose pages are not given up then, nor the list's taken for others.
    let _snapshot = store.engine.snapshot().expect("open");
    store.write(&batch);
    let world = store.world.copy();
    let redo = redo(&world, RINGS_AT + base::sizes().ring, PAGE, REDO_PAGE);
    not_installed(&world, redo);
    drop(open_in(&world.copy()).map_err(|error| format!("a whole one: {error}"))?);
    let pair = redo + HEADER + 8;
    assert_ne!(word(&world, pair), 0, "the first entry is that of the key that is kept");
    set_word(&world, pair, 0);
    is_refused(world, |store| store.has("kept", b"value"))
}

/// Two values of two parts each on flash.
fn long_values() -> Store {
    let store = new_store();
    for key in ["tall", "tower"] {
        store.put(key, &value(key, 30_000));
    }
    store
}

/// A bit of what the word of a long value says of its length is flipped: that it has parts is known from its record.
#[test]
fn a_long_value_keeps_its_parts_whatever_its_word_says_of_its_length() {
    for bit in 45..49 {
        let store = new_store();
        let tall = value("tall", 30_000);
        store.put("tall", &tall);
        let world = store.world.copy();
        let entry = pointing_entry(&world);
        let whole = word(&world, entry);
        set_word(&world, entry, whole ^ 1 << bit);
        let store = Store::open(rig(), world).expect("it opens");
        assert_eq!(word(&store.world, entry), whole, "bit {bit}: its parts are given up with it");
        // So that what is free is written to.
        for round in 0..40 {
            store.put("other", &value(&format!("{round}"), 30_000));
        }
        store.has("tall", &tall).unwrap_or_else(|what| panic!("bit {bit}: {what}"));
    }
}

/// A byte of a part of a value.
pub fn part_of_a_value() -> Outcome {
    let store = long_values();
    store.world.flip_bit(VALUES, find(&store.world, VALUES, 0, &value("tall", 100)), 1);
    store.has("tower", &value("tower", 30_000))?;
    store.is_damaged("tall")
}

/// A part of another value, whole, in the place of one.
pub fn part_of_another_value() -> Outcome {
    let store = long_values();
    let chunk = base::sizes().chunk;
    let chunk_of = |key: &str| find(&store.world, VALUES, 0, &value(key, 100)) / chunk * chunk;
    let other = store.world.peek(VALUES, chunk_of("tower"), chunk as usize);
    store.world.overwrite(VALUES, chunk_of("tall"), &other);
    store.has("tower", &value("tower", 30_000))?;
    store.is_damaged("tall")
}

/// Keys and values.
type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// Every record that a salvage of `world` finds.
fn salvaged(world: &World, sizes: &rig::Sizes) -> Result<Entries, String> {
    let mut found = Vec::new();
    let each = &mut |salvaged: tierdb_valuelog::Salvaged| {
        found.push((salvaged.key, salvaged.value));
        Ok(())
    };
    salvage(Mode::Memory.rig(sizes.clone()).memory_media(world), each).map_err(|error| error.to_string())?;
    Ok(found)
}

/// Whether `found` is one value of one key.
fn is_only(found: &[(Vec<u8>, Vec<u8>)], key: &[u8], value: &[u8]) -> Outcome {
    match found {
        [(of, bytes)] if of == key && bytes == value => Ok(()),
        _ => {
            let all: Vec<_> = found.iter().map(|(_, value)| shown(Some(value))).collect();
            Err(format!("salvaged: {all:?}"))
        }
    }
}

/// A byte of a value that is salvaged.
pub fn record_that_is_salvaged() -> Outcome {
    let store = new_store();
    store.put("key", b"the value");
    store.put("other", b"another");
    let world = store.world.copy();
    world.flip_bit("pool", find(&world, "pool", RINGS_AT, b"the value"), 1);
    is_only(&salvaged(&world, &base::sizes())?, b"other", b"another")
}

/// A record says that it reaches over the end of what is looked at: others are to be found once all the same.
pub fn header_that_is_salvaged() -> Outcome {
    let sizes = rig::Sizes { pool: 3 << 20, ring: 2 << 20, ..base::sizes() };
    let rig = Mode::Memory.rig(sizes.clone());
    let world = rig.bare_world();
    world.overwrite("pool", 0, &vec![0; 3 << 20]);
    let engine = rig.open_or_create(&world).expect("a store is created");
    for (key, value) in [("first", "damaged"), ("key", "the value"), ("other", "another")] {
        engine.put(key.as_bytes(), value.as_bytes(), Durability::Durable).expect("room");
    }
    world.flip_bit("pool", find(&world, "pool", 0, b"firstdamaged"), 1);
    // As much as is looked at together, and not from where that starts.
    let record = find(&world, "pool", 0, b"keythe value") - HEADER;
    world.overwrite("pool", record + 24, &((1 << 20) - HEADER as u32 - 3).to_le_bytes());
    is_only(&salvaged(&world.copy(), &sizes)?, b"other", b"another")
}
