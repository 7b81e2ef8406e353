//! Checks and repairs of damaged stores, on real directories. What is looked at must not change.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tierdb::{
    ByteSize, Config, Db, Durability, EngineKind, ErrorKind, FastKind, FastTier, FlashTier, KeyRange,
    REPORT_NAME, RepairReport,
};

const KEYS: u32 = 1500;

/// The flash tiers of [`Place::tiered`].
const FLASH: [&str; 2] = ["flash-a", "flash-b"];

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().expect("temporary directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn one(&self, name: &str) -> Config {
        Config::new()
            .with_memory(ByteSize::mib(32))
            .with_flash(FlashTier::new(self.path(name)).with_capacity(ByteSize::mib(64)))
    }

    fn tiered(&self, kind: FastKind) -> Config {
        Config::new()
            .with_memory(ByteSize::mib(32))
            .with_fast(FastTier::new(self.path("fast"), ByteSize::mib(32)).with_kind(kind))
            .with_flash(FlashTier::new(self.path("flash-a")).with_capacity(ByteSize::mib(64)))
            .with_flash(FlashTier::new(self.path("flash-b")).with_capacity(ByteSize::mib(64)))
    }

    /// The same with two fast tiers.
    fn twice(&self, kind: FastKind) -> Config {
        let second = FastTier::new(self.path("fast-2"), ByteSize::mib(33));
        self.tiered(kind).with_fast(second.with_kind(kind))
    }

    /// What `then` gives while the file or directory `lost` is not there.
    fn without<T>(&self, lost: &str, then: impl FnOnce() -> T) -> T {
        std::fs::rename(self.path(lost), self.path("lost")).expect("rename");
        let result = then();
        std::fs::rename(self.path("lost"), self.path(lost)).expect("rename back");
        if self.path("away").exists() {
            std::fs::remove_dir_all(self.path("away")).expect("remove");
        }
        result
    }

    /// Repairs `source` into a new store; what it holds, after a check that `source` is as it was.
    fn repaired(&self, source: &Config) -> (RepairReport, BTreeMap<Vec<u8>, Vec<u8>>) {
        let before = contents(self.0.path());
        let report = tierdb::repair(source, &self.one("repaired")).expect("repair");
        std::fs::rename(self.path("repaired"), self.path("away")).expect("rename");
        assert!(before == contents_but(self.0.path(), "away"), "the damaged store was changed");
        assert!(self.path("away").join(REPORT_NAME).exists());
        let db = Db::open_existing(self.path("away")).expect("open");
        let entries = db.iter().expect("iter").map(|entry| entry.expect("entry"));
        let entries: BTreeMap<_, _> = entries.map(|(key, value)| (key, value.into_vec())).collect();
        assert_eq!(report.keys, entries.len() as u64);
        (report, entries)
    }
}

/// All files with their bytes, but for locks.
fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    contents_but(path, "")
}

fn contents_but(path: &Path, left_out: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(path).expect("list") {
        let entry = entry.expect("entry");
        let (name, path) = (entry.file_name(), entry.path());
        if name == left_out || name == "LOCK" {
            continue;
        }
        if path.is_dir() {
            all.extend(contents_but(&path, left_out));
        } else {
            all.insert(path.clone(), std::fs::read(path).expect("read"));
        }
    }
    all
}

fn value(n: u32) -> Vec<u8> {
    let len = match n % 500 {
        7 => 700_000,
        13 => 400_000,
        _ => 100 + n as usize % 900,
    };
    (0..len).map(|i| (i as u32 * 31 + n) as u8).collect()
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

fn fill(config: &Config) {
    let db = Db::open_config(config).expect("create");
    for n in 0..KEYS {
        db.put_with(key(n), "an older value", Durability::Grouped).expect("put");
    }
    for n in 0..KEYS {
        db.put_with(key(n), value(n), Durability::Grouped).expect("put");
    }
    db.engine().flush().expect("flush");
    db.close().expect("close");
}

fn damage(path: &Path, at: impl Fn(usize) -> usize) {
    let mut bytes = std::fs::read(path).expect("read");
    let at = at(bytes.len());
    for byte in &mut bytes[at..][..64] {
        *byte ^= 0x55;
    }
    std::fs::write(path, bytes).expect("write");
}

/// What two repairs, each without another of two flash tiers, did not save: a value of one part on flash only is lost with the one it is
/// on, one of several parts with either, or with both. Where they lie is left to chance. Of short values the fast tier may have what
/// flash has lost, and has a tenth at least.
fn check_lost_tiers(missing: &[BTreeSet<u32>; 2]) {
    let of =
        |parts: Range<usize>| (0..KEYS).filter(|n| parts.contains(&value(*n).len())).collect::<BTreeSet<_>>();
    let (one, several) = (of(300_000..512 << 10), of(512 << 10..usize::MAX));
    assert!(!one.is_empty() && !several.is_empty());
    let (either, both) = (&missing[0] | &missing[1], &missing[0] & &missing[1]);
    assert!(either.is_superset(&(&one | &several)), "{missing:?}: what was on a lost tier cannot be there");
    assert!(both.is_subset(&several), "{both:?}: what one of the tiers has is saved");
    assert!(missing.iter().all(|missing| missing.len() <= KEYS as usize / 10 * 9), "{missing:?} missing");
}

/// The keys whose last value is not saved.
fn not_saved(report: &RepairReport, entries: &BTreeMap<Vec<u8>, Vec<u8>>) -> BTreeSet<u32> {
    right(report, entries);
    (0..KEYS).filter(|n| entries.get(&key(*n)).is_none_or(|saved| *saved != value(*n))).collect()
}

/// Every saved key has its last value, but for the uncertain.
fn right(report: &RepairReport, entries: &BTreeMap<Vec<u8>, Vec<u8>>) -> usize {
    let wrong = entries.iter().filter(|(found, bytes)| {
        let n: u32 = String::from_utf8_lossy(&found[3..]).parse().expect("number");
        **bytes != value(n)
    });
    let wrong = wrong.count();
    assert!(wrong as u64 <= report.uncertain, "{wrong} values are not the last ones, in {report:?}");
    entries.len() - wrong
}

#[test]
fn a_whole_store_is_clean_and_is_saved_whole() {
    for kind in [FastKind::Block, FastKind::Emulated] {
        for twice in [false, true] {
            let place = Place::new();
            let config = if twice { place.twice(kind) } else { place.tiered(kind) };
            fill(&config);
            let before = contents(place.0.path());
            let report = tierdb::verify_offline(&config).expect("verify");
            assert!(report.is_clean() && report.keys_checked == u64::from(KEYS), "{report:?}");
            assert!(before == contents(place.0.path()), "the check changed something");
            let (report, entries) = place.repaired(&config);
            assert!(report.index_whole && report.damage.is_empty() && report.uncertain == 0, "{report:?}");
            assert_eq!(right(&report, &entries), KEYS as usize);
        }
    }
}

#[test]
fn values_are_found_without_one_of_two_fast_tiers() {
    for kind in [FastKind::Block, FastKind::Emulated] {
        for lost in ["fast", "fast-2"] {
            let place = Place::new();
            let config = place.twice(kind);
            fill(&config);
            std::fs::remove_dir_all(place.path(lost)).expect("remove");
            let refused = tierdb::verify_offline(&config).expect_err("a tier is missing");
            assert!(refused.to_string().contains(&*place.path(lost).display().to_string()), "{refused}");
            let (report, entries) = place.repaired(&config);
            assert!(!report.index_whole && !report.damage.is_empty(), "{report:?}");
            let last = place.path(lost).display().to_string();
            assert!(report.notes.iter().any(|note| note.contains(&last)), "{report:?}");
            assert_eq!(right(&report, &entries), KEYS as usize, "the newest record of every key");
        }
    }
}

/// Goal: a repair gives the new index the room that the old one had.
#[test]
fn a_large_index_is_saved_where_a_usual_one_is_smaller() {
    let place = Place::new();
    let roomy = Config::new()
        .with_memory(ByteSize::mib(32))
        .with_flash(FlashTier::new(place.path("store")).with_capacity(ByteSize::mib(512)));
    let db = Db::open_config(&roomy).expect("create");
    for n in 0..50_000u32 {
        db.put_with(format!("{n:0100}"), "", Durability::Grouped).expect("put");
    }
    db.close().expect("close");
    drop(db);
    // An eighth of it is usual.
    let target =
        Config::new().with_flash(FlashTier::new(place.path("saved")).with_capacity(ByteSize::mib(64)));
    assert_eq!(tierdb::repair(&roomy, &target).expect("repair").keys, 50_000);
}

#[test]
fn a_damaged_value_costs_its_own_key() {
    let place = Place::new();
    let config = place.tiered(FastKind::Block);
    fill(&config);
    // Two values of keys in the middle, wherever they were put.
    let pattern = &value(750)[..64];
    for name in ["flash-a/values", "flash-b/values"] {
        let bytes = std::fs::read(place.path(name)).expect("read");
        if let Some(at) = bytes.windows(64).position(|window| window == pattern) {
            damage(&place.path(name), |_| at);
        }
    }
    let found = tierdb::verify_offline(&config).expect("verify");
    assert!(!found.is_clean() && found.damage.len() < 10, "{found:?}");
    let lost = found.damage.iter().map(|damage| damage.keys.as_ref()?.only_key().map(<[u8]>::to_vec));
    let lost: Vec<_> = lost.map(|key| key.expect("a key")).collect();
    let (report, entries) = place.repaired(&config);
    assert!(report.index_whole, "{report:?}");
    assert_eq!(report.damage.len(), lost.len());
    assert_eq!(right(&report, &entries), KEYS as usize - lost.len());
    assert!(lost.iter().all(|key| !entries.contains_key(key)));
    let text = std::fs::read_to_string(place.path("away").join(REPORT_NAME)).expect("read");
    assert!(lost.iter().all(|key| text.contains(&*String::from_utf8_lossy(key))), "{text}");
    let db = Db::open_config(&config).expect("open");
    let refused = db.checkpoint(place.path("backup")).expect_err("not all of it can be copied");
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    assert!(
        !place.path("backup").exists() && !place.path("backup.partial").exists(),
        "nothing is left behind"
    );
}

#[test]
fn values_are_found_without_the_pool() {
    for kind in [FastKind::Block, FastKind::Emulated] {
        let place = Place::new();
        let config = place.tiered(kind);
        fill(&config);
        for name in ["pool", "pool.table", "pool.image", "pool.log"] {
            let _ = std::fs::remove_file(place.path("fast").join(name));
        }
        let before = contents(place.0.path());
        let found = tierdb::verify_offline(&config);
        assert!(found.is_err() || !found.expect("report").is_clean());
        assert!(before == contents(place.0.path()), "the check changed something");
        let (report, entries) = place.repaired(&config);
        let why = "the store does not open, so records were looked for";
        assert!(report.notes.iter().any(|note| note.starts_with(why)), "{report:?}");
        assert!(!report.index_whole && !report.damage.is_empty(), "{report:?}");
        assert_eq!(report.uncertain, report.keys);
        assert_eq!(right(&report, &entries), KEYS as usize, "the newest record of every key");
    }
}

/// A slab store: every key on flash, but for some that were deleted, and one that is only on the fast tier.
fn fill_slab(config: &Config) {
    let db = Db::open_config(config).expect("create");
    for n in 0..KEYS {
        db.put_with(key(n), "an older value", Durability::Grouped).expect("put");
    }
    db.engine().flush().expect("flush");
    for n in 0..KEYS {
        match n % 10 {
            9 => db.delete_with(key(n), Durability::Grouped).expect("delete"),
            _ => db.put_with(key(n), value(n), Durability::Grouped).expect("put"),
        }
    }
    db.engine().flush().expect("flush");
    db.put_with(key(9), value(9), Durability::Durable).expect("put");
    db.close().expect("close");
}

#[test]
fn tables_are_saved_without_the_records_of_the_fast_tier() {
    for kind in [FastKind::Block, FastKind::Emulated] {
        let place = Place::new();
        let config = place.tiered(kind).with_engine(EngineKind::Slab);
        fill_slab(&config);
        match kind {
            // The tables of the first level are there, too.
            FastKind::Block => {
                for name in ["pool.table", "pool.image", "pool.log"] {
                    std::fs::remove_file(place.path("fast").join(name)).expect("remove");
                }
            }
            _ => std::fs::remove_dir_all(place.path("fast")).expect("remove"),
        }
        let (report, entries) = place.repaired(&config);
        assert!(!report.index_whole, "{report:?}");
        assert_eq!((report.uncertain, entries.len()), (report.keys, KEYS as usize / 10 * 9), "{report:?}");
        assert_eq!(
            right(&report, &entries),
            entries.len(),
            "the newest version of every key, and none that was deleted"
        );
    }
}

#[test]
fn a_slab_store_that_is_damaged_is_saved_but_for_what_is_damaged() {
    let place = Place::new();
    let config = place.tiered(FastKind::Emulated).with_engine(EngineKind::Slab);
    fill_slab(&config);
    let pool = place.path("fast/pool");
    let whole = std::fs::read(&pool).expect("read");
    let (report, entries) = place.repaired(&config);
    assert!(report.index_whole && report.uncertain == 0, "{report:?}");
    assert_eq!(entries.len(), KEYS as usize / 10 * 9 + 1);
    std::fs::remove_dir_all(place.path("away")).expect("remove");
    // All that names the key that is only there: no cursor passes it.
    // Slots that are free again may still hold its older versions.
    let newest = [key(9), value(9)].concat();
    let record = whole.windows(newest.len()).position(|window| window == newest).expect("its record") - 40;
    damage(&pool, |_| record);
    let (report, entries) = place.repaired(&config);
    assert!(!report.index_whole && !entries.contains_key(&key(9)), "{report:?}");
    assert_eq!(report.uncertain, 0, "the engine answers for all other keys");
    assert_eq!(right(&report, &entries), KEYS as usize / 10 * 9);
    std::fs::remove_dir_all(place.path("away")).expect("remove");
    // The header.
    std::fs::write(&pool, &whole).expect("write");
    damage(&pool, |_| 0);
    let (report, entries) = place.repaired(&config);
    assert_eq!((report.uncertain, right(&report, &entries)), (report.keys, KEYS as usize / 10 * 9));
}

/// A value of so few bytes that tens of them are in a block of a table.
fn small(what: &str, n: u32) -> Vec<u8> {
    format!("{what} {n:05} ").repeat(8).into_bytes()
}

/// A slab store of small values, all on flash; of every seventh key the newest is on the fast tier alone, and of every
/// fifth of those it says that the key is gone. What the store holds.
fn fill_slab_with_small_values(config: &Config) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let db = Db::open_config(config).expect("create");
    let mut stored = BTreeMap::new();
    for n in 0..KEYS {
        db.put_with(key(n), small("older", n), Durability::Grouped).expect("put");
        stored.insert(key(n), small("older", n));
    }
    db.engine().flush().expect("flush");
    for n in (0..KEYS).step_by(7) {
        if n % 5 == 0 {
            db.delete_with(key(n), Durability::Grouped).expect("delete");
            stored.remove(&key(n));
        } else {
            db.put_with(key(n), small("newer", n), Durability::Grouped).expect("put");
            stored.insert(key(n), small("newer", n));
        }
    }
    db.close().expect("close");
    stored
}

/// Damages the middle of a table's file.
fn damage_a_table(place: &Place) {
    let files = contents(place.0.path()).into_keys();
    let table = files.filter(|path| path.extension().is_some_and(|name| name == "table")).max();
    damage(&table.expect("a table"), |len| len / 2);
}

/// Keys of `stored` that are not in `entries`. What is there is right.
fn missing(stored: &BTreeMap<Vec<u8>, Vec<u8>>, entries: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<Vec<u8>> {
    assert!(entries.iter().all(|(key, value)| stored.get(key) == Some(value)), "another value");
    stored.keys().filter(|key| !entries.contains_key(*key)).cloned().collect()
}

#[test]
fn a_damaged_block_costs_only_what_is_in_it_alone() {
    let place = Place::new();
    let config = place.tiered(FastKind::Emulated).with_engine(EngineKind::Slab);
    let stored = fill_slab_with_small_values(&config);
    damage_a_table(&place);
    let (report, entries) = place.repaired(&config);
    let lost = missing(&stored, &entries);
    assert_eq!((report.damage.len(), report.uncertain, report.index_whole), (1, 0, false), "{report:?}");
    let keys = report.damage[0].keys.clone().expect("the block's keys");
    let in_block: Vec<_> = stored.keys().filter(|key| keys.contains(key)).collect();
    let newer = |key: &&Vec<u8>| stored[*key].starts_with(b"newer");
    let only_there: Vec<_> = in_block.iter().filter(|key| !newer(key)).map(|key| key.to_vec()).collect();
    assert!(in_block.len() > only_there.len() && lost.len() > 10, "{lost:?} in {keys:?}");
    assert_eq!(lost, only_there);
    assert!(matches!(keys.end, Bound::Excluded(_)), "the first key of the next block is not in this one");
    let text = std::fs::read_to_string(place.path("away").join(REPORT_NAME)).expect("read");
    let named = keys.in_words(|key| String::from_utf8_lossy(key).into_owned());
    assert!(text.contains(&named), "{named} in {text}");
}

#[test]
fn damage_within_damage_costs_no_more_than_both() {
    let place = Place::new();
    let config = place.tiered(FastKind::Emulated).with_engine(EngineKind::Slab);
    let stored = fill_slab_with_small_values(&config);
    damage_a_table(&place);
    let found = tierdb::verify_offline(&config).expect("verify");
    let keys = found.damage[0].keys.clone().expect("the block's keys");
    // One key of the block has its newest value, which is damaged, on the fast tier; and so has one elsewhere.
    let newer = |n: &u32| stored.get(&key(*n)) == Some(&small("newer", *n));
    let inside = (0..KEYS).filter(newer).find(|n| keys.contains(&key(*n))).expect("a key");
    let outside = (0..KEYS).filter(newer).find(|n| !keys.contains(&key(*n))).expect("a key");
    let pool = place.path("fast/pool");
    for n in [inside, outside] {
        let record = [key(n), small("newer", n)].concat();
        let bytes = std::fs::read(&pool).expect("read");
        let at = bytes.windows(record.len()).position(|window| window == record).expect("its record");
        damage(&pool, |_| at + 30);
    }
    let (report, mut entries) = place.repaired(&config);
    assert_eq!((report.damage.len(), report.uncertain), (3, 1), "{report:?}");
    // An older value of that key is whole.
    assert_eq!(entries.remove(&key(outside)), Some(small("older", outside)));
    let lost = missing(&stored, &entries);
    assert!(lost.contains(&key(inside)) && lost.contains(&key(outside)));
    let named = lost.iter().filter(|lost| keys.contains(lost)).count();
    assert_eq!(named + 1, lost.len(), "{lost:?} of {keys:?}");
}

#[test]
fn records_of_a_damaged_leaf_are_found_and_other_leaves_are_as_they_were() {
    let place = Place::new();
    let config = place.tiered(FastKind::Emulated);
    fill(&config);
    let db = Db::open_config(&config).expect("open");
    let gone = |n: &u32| n % 10 == 9;
    for n in (0..KEYS).filter(gone) {
        db.delete_with(key(n), Durability::Grouped).expect("delete");
    }
    db.close().expect("close");
    let pool = place.path("fast/pool");
    let whole = std::fs::read(&pool).expect("read");
    let leaves =
        whole.chunks(4096).enumerate().filter(|(_, page)| page.starts_with(b"TL")).map(|(page, _)| page);
    let mut tried = 0;
    for page in leaves {
        std::fs::write(&pool, &whole).expect("write");
        damage(&pool, |_| page * 4096);
        let found = tierdb::verify_offline(&config).expect("verify").damage;
        let keys: Vec<KeyRange> = found.iter().filter_map(|damage| damage.keys.clone()).collect();
        let [KeyRange { end: Bound::Excluded(_), .. }] = &keys[..] else { continue };
        tried += 1;
        let (report, entries) = place.repaired(&config);
        assert!(!report.index_whole, "{report:?}");
        let there = |n: u32| entries.get(&key(n)) == Some(&value(n));
        assert!((0..KEYS).filter(|n| !gone(n)).all(there), "a value that is whole is missing");
        // Of a key of that leaf nothing says any more whether it was removed.
        let back = (0..KEYS).filter(gone).filter(|n| entries.contains_key(&key(*n)));
        let back: Vec<_> = back.inspect(|n| assert!(keys[0].contains(&key(*n)), "{n} is back")).collect();
        assert_eq!(report.uncertain, back.len() as u64, "{report:?}");
        std::fs::remove_dir_all(place.path("away")).expect("remove");
    }
    assert!(tried > 1, "no leaf but the last");
}

#[test]
fn a_lost_page_of_the_pool_costs_little() {
    let place = Place::new();
    let config = place.one("data");
    fill(&config);
    let image = place.path("data/pool.image");
    let pages = std::fs::metadata(&image).expect("image").len() / 4096;
    let (mut saved, mut told) = (Vec::new(), 0);
    for page in (1..pages).step_by(pages as usize / 40) {
        let whole = std::fs::read(&image).expect("read");
        damage(&image, |_| page as usize * 4096 + 1000);
        let (report, entries) = place.repaired(&config);
        saved.push(right(&report, &entries));
        told += usize::from(!report.notes.is_empty() || !report.damage.is_empty());
        std::fs::write(&image, whole).expect("write");
        std::fs::remove_dir_all(place.path("away")).expect("remove");
    }
    assert!(saved.iter().all(|saved| *saved == KEYS as usize), "{saved:?}");
    assert!(told > 0, "none of the pages is in use");
}

#[test]
fn a_missing_flash_tier_leaves_the_other() {
    let place = Place::new();
    let config = place.tiered(FastKind::Block);
    fill(&config);
    // Its identity lost, and all of it.
    for lost in ["/TIER", ""] {
        let missing = FLASH.map(|tier| {
            let lost = format!("{tier}{lost}");
            place.without(&lost, || {
                let refused = tierdb::verify_offline(&config).expect_err("missing");
                assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
                let (report, entries) = place.repaired(&config);
                assert!(report.notes.iter().any(|note| note.contains(tier)), "{report:?}");
                not_saved(&report, &entries)
            })
        });
        check_lost_tiers(&missing);
    }
}

#[test]
fn a_missing_file_of_values_leaves_the_other() {
    for kind in [FastKind::Block, FastKind::Emulated] {
        let place = Place::new();
        let config = place.tiered(kind);
        fill(&config);
        let missing = FLASH.map(|tier| {
            let lost = format!("{tier}/values");
            place.without(&lost, || {
                assert!(!tierdb::verify_offline(&config).expect("a report").is_clean());
                let (report, entries) = place.repaired(&config);
                let name = place.path(&lost).display().to_string();
                let named = |place: &tierdb::Location| *place.file == *name;
                let is_named = report.damage.iter().any(|damage| damage.place.as_ref().is_some_and(named));
                assert!(is_named, "{report:?}");
                not_saved(&report, &entries)
            })
        });
        check_lost_tiers(&missing);
    }
}

#[test]
fn a_missing_file_of_the_pool_is_damage_that_names_it_once() {
    for kind in [FastKind::Block, FastKind::Emulated] {
        let place = Place::new();
        let config = place.tiered(kind);
        fill(&config);
        let names =
            if kind == FastKind::Block { &["pool.log", "pool.image", "pool.table"][..] } else { &["pool"] };
        for name in names {
            let (file, away) = (place.path("fast").join(name), place.path("away"));
            std::fs::rename(&file, &away).expect("rename");
            let file_name = file.display().to_string();
            let report = tierdb::verify_offline(&config).expect("a report");
            let [damage] = &report.damage[..] else { panic!("{report:?}") };
            assert_eq!(damage.place.as_ref().map(|place| &*place.file), Some(&*file_name));
            assert!(damage.what.contains("repair") && !damage.what.contains(&file_name), "{damage:?}");
            let refused = Db::open_config(&config).expect_err("a file is missing");
            assert!(
                refused.kind() == ErrorKind::Corrupt && refused.to_string().contains(&file_name),
                "{refused}"
            );
            std::fs::rename(&away, &file).expect("rename");
        }
        assert!(tierdb::verify_offline(&config).expect("verify").is_clean());
    }
}

/// Where a child process, if this is one, has its stores.
const CHILD_DIR: &str = "TIERDB_TEST_FEW_FILES";

/// Does nothing in an ordinary run; as a child that may open few files, checks a store of more tables and repairs it.
#[test]
fn a_child_may_open_few_files() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let few = rustix::process::Rlimit { current: Some(256), maximum: Some(256) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).expect("limit");
    let config = of_many_tables(Path::new(&dir));
    let report = tierdb::verify_offline(&config).expect("verify");
    assert!(report.is_clean(), "{report:?}");
    let target = Config::one_directory(Path::new(&dir).join("saved"));
    let report = tierdb::repair(&config, &target.with_engine(EngineKind::Slab)).expect("repair");
    assert!(report.damage.is_empty() && report.index_whole, "{report:?}");
}

fn of_many_tables(dir: &Path) -> Config {
    let mut slab = tierdb::Slab::default();
    slab.table_size = Some(ByteSize::kib(16));
    Config::new()
        .with_engine(EngineKind::Slab)
        .with_slab(slab)
        .with_memory(ByteSize::mib(32))
        .with_fast(FastTier::new(dir.join("fast"), ByteSize::mib(32)).with_kind(FastKind::Emulated))
        .with_flash(FlashTier::new(dir.join("flash")).with_capacity(ByteSize::mib(64)))
}

#[test]
fn tables_are_no_damage_where_few_files_may_be_open() {
    let place = Place::new();
    let db = Db::open_config(&of_many_tables(place.0.path())).expect("create");
    for n in 0..8000 {
        db.put_with(key(n), vec![n as u8; 1000], Durability::Grouped).expect("put");
    }
    db.engine().flush().expect("flush");
    db.close().expect("close");
    let files = std::fs::read_dir(place.path("flash")).expect("list").count();
    assert!(files > 300, "{files} files");
    let child = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["a_child_may_open_few_files", "--exact", "--nocapture", "--test-threads", "1"])
        .env(CHILD_DIR, place.0.path())
        .output()
        .expect("spawn");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

#[test]
fn one_copy_of_the_identity_is_enough() {
    let place = Place::new();
    let config = place.one("data");
    fill(&config);
    let tier = place.path("data/TIER");
    for copy in [0, 1, 3] {
        damage(&tier, |_| copy * 4096 + 100);
    }
    assert_eq!(Db::open_config(&config).expect_err("no quorum").kind(), ErrorKind::Corrupt);
    assert!(!tierdb::verify_offline(&config).expect("a report").is_clean());
    let (report, entries) = place.repaired(&config);
    assert!(report.index_whole && !report.notes.is_empty(), "{report:?}");
    assert_eq!(right(&report, &entries), KEYS as usize);
}

#[test]
fn nothing_is_repaired_over_anything() {
    let place = Place::new();
    let config = place.one("data");
    fill(&config);
    let other = place.one("other");
    Db::open_config(&other).expect("create").put("k", "v").expect("put");
    assert_eq!(tierdb::repair(&config, &other).expect_err("a store is there").kind(), ErrorKind::Invalid);
    assert_eq!(tierdb::repair(&config, &config).expect_err("itself").kind(), ErrorKind::Invalid);
    assert_eq!(
        tierdb::repair(&place.one("none"), &place.one("new")).expect_err("none").kind(),
        ErrorKind::NotFound
    );
    assert!(!place.path("new").exists() && !place.path("none").exists());
    let open = Db::open_config(&config).expect("open");
    assert_eq!(tierdb::verify_offline(&config).expect_err("open").kind(), ErrorKind::Locked);
    assert_eq!(open.get("key00003").expect("get").as_deref(), Some(&value(3)[..]));
}
