//! Opening, closing and refusing, on real directories.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tierdb::{
    ByteSize, Config, Db, Durability, EngineKind, Error, ErrorKind, FastKind, FastTier, FlashTier, KeyRange,
    Slab, TierRole, Valuelog, WriteBatch,
};

/// A place for stores on the disk, small enough that creating one takes no time.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().expect("temporary directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn one(&self, name: &str) -> Config {
        small().with_flash(FlashTier::new(self.path(name)).with_capacity(ByteSize::mib(64)))
    }

    fn tiered(&self, kind: FastKind) -> Config {
        small()
            .with_fast(FastTier::new(self.path("fast"), ByteSize::mib(64)).with_kind(kind))
            .with_flash(FlashTier::new(self.path("flash-a")).with_capacity(ByteSize::mib(64)))
            .with_flash(FlashTier::new(self.path("flash-b")).with_capacity(ByteSize::mib(64)))
    }

    /// Two fast tiers, not of one size.
    fn twice(&self, kind: FastKind) -> Config {
        small()
            .with_fast(FastTier::new(self.path("fast-a"), ByteSize::mib(40)).with_kind(kind))
            .with_fast(FastTier::new(self.path("fast-b"), ByteSize::mib(33)).with_kind(kind))
            .with_flash(FlashTier::new(self.path("flash")).with_capacity(ByteSize::mib(64)))
    }
}

fn fill(db: &Db) {
    for n in 0..500u32 {
        db.put_with(n.to_be_bytes(), vec![n as u8; n as usize * 4], Durability::Grouped).expect("put");
    }
}

fn check_filled(db: &Db) {
    let mut entries = db.iter().expect("iter");
    for n in 0..500u32 {
        let (key, value) = entries.next().expect("500 entries").expect("entry");
        assert_eq!((key, &*value), (n.to_be_bytes().to_vec(), &*vec![n as u8; n as usize * 4]));
    }
    assert!(entries.next().is_none());
}

fn small() -> Config {
    Config::new().with_memory(ByteSize::mib(32))
}

fn refused(config: &Config) -> Error {
    Db::open_config(config).expect_err("must be refused")
}

#[test]
fn what_a_store_has_counted_is_known_when_it_is_opened_again() {
    for engine in [EngineKind::Valuelog, EngineKind::Slab] {
        let place = Place::new();
        let config = place.tiered(FastKind::Emulated).with_engine(engine);
        let counted = |db: &Db| {
            let history = db.history().expect("it was used before");
            (history.uses, history.operations["put"], history.operations["get"])
        };
        let db = Db::open_config(&config).expect("create");
        assert!(db.history().is_none());
        db.put(b"key", b"value").expect("put");
        db.get(b"key").expect("get").expect("there");
        db.close().expect("close");
        db.close().expect("close again");
        // To look at a store is no use of it.
        for _ in 0..2 {
            let db = Db::open_config(&config).expect("open");
            assert_eq!(counted(&db), (1, 1, 1));
            assert!(db.history().expect("it was used").user_bytes_written >= 8);
            db.stats();
            db.close().expect("close");
        }
        let db = Db::open_config(&config).expect("open");
        db.put(b"key", b"other").expect("put");
        // Closed by that.
        drop(db);
        let db = Db::open_config(&config).expect("open");
        assert_eq!(counted(&db), (2, 2, 1));
        // What cannot be noted makes no close fail.
        let file = place.path("flash-a").join("HISTORY");
        std::fs::remove_file(&file).expect("it is there");
        std::fs::create_dir(&file).expect("create");
        db.put(b"key", b"another").expect("put");
        db.close().expect("close");
        assert!(!place.path("flash-a").join("HISTORY.new").exists());
        let db = Db::open_config(&config).expect("open");
        assert!(db.history().is_none());
        assert_eq!(db.get(b"key").expect("get").as_deref(), Some(&b"another"[..]));
        // What cannot be read is not replaced.
        db.close().expect("close");
        assert!(file.is_dir());
    }
}

#[test]
fn a_directory_alone_is_enough() {
    let place = Place::new();
    let path = place.path("data");
    let db = Db::open(&path).expect("create");
    db.put("a", "1").expect("put");
    db.put_with("b", "2", Durability::Grouped).expect("put");
    assert!(db.stats().figure("log_blocks") > Some(0), "{:?}", db.stats().counters);
    db.close().expect("close");
    db.close().expect("a second close has the result of the first");
    assert!(db.get("a").is_err(), "closed");
    let uuid = db.uuid();
    let again = Db::open_existing(&path).expect("open, although a closed handle is still held");
    assert_eq!(again.uuid(), uuid);
    assert_eq!(again.get("a").expect("get").as_deref(), Some(&b"1"[..]));
    assert!(again.stats().mode.contains("one plain SSD"), "{}", again.stats().mode);
    drop(again);
    Db::open_existing(&path).expect("dropping closes");
}

/// Goal: calls that do not say how durable they are to be are as durable as is configured. Method: a durable write of a lone thread takes a
/// block of the log for itself; grouped ones share those that a thread writes every 2.5 ms at the most often, unless they come as
/// slowly as that: then they are tried again.
#[test]
fn writes_are_as_durable_as_is_configured() {
    const WRITES: u64 = 200;
    for engine in [EngineKind::Valuelog, EngineKind::Slab] {
        for durability in [Durability::Durable, Durability::Grouped] {
            let place = Place::new();
            let config = place.one("data").with_engine(engine).with_durability(durability);
            let db = Db::open_config(&config).expect("create");
            let blocks = || db.stats().figure("log_blocks").expect("a log");
            let given_up = Instant::now() + Duration::from_secs(60);
            loop {
                let before = blocks();
                for number in 0..WRITES / 2 {
                    db.put(number.to_be_bytes(), "value").expect("room");
                    db.delete(number.to_be_bytes()).expect("it is there");
                }
                let is_each_alone = blocks() - before >= WRITES;
                if is_each_alone == (durability == Durability::Durable) {
                    break;
                }
                let slow = durability == Durability::Grouped && Instant::now() < given_up;
                assert!(slow, "{engine:?}, {durability:?}");
            }
        }
    }
}

#[test]
fn keys_are_asked_for_and_removed_by_their_prefix() {
    for engine in [EngineKind::Valuelog, EngineKind::Slab] {
        let place = Place::new();
        let db = Db::open_config(&place.one("data").with_engine(engine)).expect("create");
        for key in ["a", "user/1", "user/2", "userx"] {
            db.put(key, key).expect("room");
        }
        assert!(db.contains_key("user/1").expect("whole") && !db.contains_key("user/").expect("whole"));
        let range = KeyRange::prefix(b"user/");
        assert_eq!(db.range(range.clone()).expect("iter").count(), 2);
        assert_eq!(db.delete_range_with(range, Durability::Grouped).expect("open"), 2);
        let left: Vec<_> = db.iter().expect("iter").map(|entry| entry.expect("whole").0).collect();
        assert_eq!(left, [b"a".to_vec(), b"userx".to_vec()]);
        assert!(!db.contains_key("user/1").expect("whole"));
        let mut batch = WriteBatch::new();
        let value = db.get("a").expect("whole").expect("it is there");
        batch.put("copy", value).expect("a small batch");
        db.write(&batch).expect("room");
        assert_eq!(db.get("copy").expect("whole").as_deref(), Some(&b"a"[..]));
    }
}

#[test]
fn every_mode_keeps_what_was_written() {
    for kind in [FastKind::Auto, FastKind::Block, FastKind::Emulated] {
        let place = Place::new();
        let config = place.tiered(kind);
        let db = Db::open_config(&config).expect("create");
        let mode = db.stats().mode;
        assert_eq!(mode.contains("EMULATED"), kind == FastKind::Emulated, "{mode}");
        assert!(mode.contains("2 flash tiers"), "{mode}");
        assert_eq!(db.stats().figure("log_blocks").is_none(), kind == FastKind::Emulated, "{mode}");
        for n in 0..500u32 {
            db.put_with(n.to_be_bytes(), vec![n as u8; n as usize], Durability::Grouped).expect("put");
        }
        db.close().expect("close");
        let db = Db::open_config(&config).expect("open");
        assert_eq!(db.iter().expect("iter").count(), 500);
        assert_eq!(db.get(77u32.to_be_bytes()).expect("get").as_deref(), Some(&[77u8; 77][..]));
    }
}

#[test]
fn two_fast_tiers_are_used_as_one_and_told_of() {
    for kind in [FastKind::Auto, FastKind::Block, FastKind::Emulated] {
        let place = Place::new();
        let mut config = place.twice(kind);
        let db = Db::open_config(&config).expect("create");
        fill(&db);
        let stats = db.stats();
        for told in ["fast-a (40 MiB)", "fast-b (33 MiB)"] {
            assert!(stats.mode.contains(told), "{}", stats.mode);
        }
        let fast = &stats.tiers[0];
        assert!(fast.path.contains("fast-a") && fast.path.contains("fast-b"), "{}", fast.path);
        let mapped = kind == FastKind::Emulated;
        // 39 and 32 MiB, of which each gives whole pages of 2 MiB; or half of the memory.
        assert_eq!(fast.capacity, if mapped { (38 + 32) << 20 } else { 16 << 20 });
        db.close().expect("close");
        for name in ["fast-a", "fast-b"] {
            for file in if mapped { &["pool"][..] } else { &["pool.log", "pool.table"] } {
                assert!(place.path(name).join(file).metadata().expect("its part").len() > 0, "{name}/{file}");
            }
        }
        // In whatever order they are listed.
        config.fast.reverse();
        let db = Db::open_config(&config).expect("open");
        check_filled(&db);
        db.put("more", "and again").expect("put");
        db.close().expect("close");
        config.fast.reverse();
        let db = Db::open_config(&config).expect("open");
        assert_eq!(db.delete_range("more"..).expect("delete"), 1);
        check_filled(&db);
    }
}

#[test]
fn one_of_two_fast_tiers_is_not_enough() {
    for kind in [FastKind::Block, FastKind::Emulated] {
        let place = Place::new();
        let config = place.twice(kind);
        let db = Db::open_config(&config).expect("create");
        fill(&db);
        drop(db);
        for name in ["fast-a", "fast-b"] {
            std::fs::rename(place.path(name), place.path("away")).expect("rename");
            let missing = refused(&config);
            assert!(
                matches!(&missing, Error::TierMissing { path, .. } if *path == place.path(name)),
                "{missing}"
            );
            assert!(!place.path(name).exists(), "not created anew");
            let mut less = config.clone();
            less.fast.retain(|tier| tier.path != place.path(name));
            assert!(matches!(refused(&less), Error::TierMissing { .. }));
            std::fs::rename(place.path("away"), place.path(name)).expect("rename");
            // The tier is there, and a file of it is not.
            let file = if kind == FastKind::Block { "pool.log" } else { "pool" };
            let file = place.path(name).join(file);
            std::fs::rename(&file, place.path("kept")).expect("rename");
            let missing = refused(&config).to_string();
            assert!(missing.contains(&*file.display().to_string()), "{missing}");
            std::fs::rename(place.path("kept"), &file).expect("rename");
        }
        let mut more =
            config.clone().with_fast(FastTier::new(place.path("fast-c"), ByteSize::mib(40)).with_kind(kind));
        assert!(refused(&more).to_string().contains("fast-c"));
        assert!(!place.path("fast-c").exists());
        more.fast[1].capacity = ByteSize::mib(34);
        more.fast.truncate(2);
        let other = refused(&more).to_string();
        assert!(other.contains("fast-b") && other.contains("33 MiB"), "{other}");
        check_filled(&Db::open_config(&config).expect("open"));
    }
}

#[test]
fn emulated_devices_are_named_in_the_mode() {
    let place = Place::new();
    let mut config = place.tiered(FastKind::Emulated);
    config.fast[0].emulate = Some("optane-pmem".into());
    config.flash[1].emulate = Some("tlc".into());
    let mode = Db::open_config(&config).expect("create").stats().mode;
    assert!(mode.contains("optane-pmem") && mode.contains("tlc"), "{mode}");
}

#[test]
fn flash_files_may_go_through_the_page_cache() {
    for engine in [EngineKind::Valuelog, EngineKind::Slab] {
        let place = Place::new();
        let direct = place.one("data").with_engine(engine);
        let mut cached = direct.clone();
        cached.flash[0].page_cache = true;
        let mode = |db: &Db| db.stats().mode;
        let is_cached = |db: &Db| mode(db).contains("through the page cache");
        let db = Db::open_config(&direct).expect("create");
        fill(&db);
        let can_be_direct = mode(&db).contains("direct I/O");
        drop(db);
        // What the one way has written the other one reads.
        let db = Db::open_config(&cached).expect("open");
        assert_eq!(is_cached(&db), can_be_direct, "{}", mode(&db));
        check_filled(&db);
        db.put("more", vec![7; 5000]).expect("put");
        db.engine().flush().expect("flush");
        drop(db);
        let db = Db::open_config(&direct).expect("open");
        assert!(!is_cached(&db), "{}", mode(&db));
        assert_eq!(db.get("more").expect("get").as_deref(), Some(&[7; 5000][..]));
    }
}

/// Goal: values stay in the write buffer of a store on one SSD for no longer than its log is kept, and over byte-addressable storage leave
/// room for those that are read; elsewhere, or if it is configured, they stay as long as ever.
#[test]
fn the_write_buffer_goes_by_what_else_would_use_its_room() {
    let place = Place::new();
    let within_a_page_for_each_ring = |bytes: u64, config: &Config| {
        let tiers = Db::open_config(config).expect("create").stats().tiers;
        let mut parts = tiers.iter().flat_map(|tier| &tier.parts);
        let buffer = parts.find(|(name, _)| *name == "write buffer, capacity").expect("it has one").1;
        assert!((bytes - (64 << 10)..=bytes).contains(&buffer), "{buffer} and {bytes}");
    };
    // An eighth of a log of 8 MiB, a third of a pool of 16 MiB, and a fifth of one of 63.
    within_a_page_for_each_ring(1 << 20, &place.one("one"));
    within_a_page_for_each_ring((16 << 20) / 3, &place.tiered(FastKind::Block));
    let mut configured = place.one("configured");
    configured.valuelog.write_buffer = Some(ByteSize::mib(2));
    within_a_page_for_each_ring(2 << 20, &configured);
    within_a_page_for_each_ring((63 << 20) / 5, &Place::new().tiered(FastKind::Emulated));
}

#[test]
fn iterators_go_both_ways_and_meet() {
    let place = Place::new();
    let db = Db::open_config(&place.one("data")).expect("create");
    let mut batch = WriteBatch::new();
    for key in ["a", "b", "ba", "bb", "c"] {
        batch.put(key, key).expect("put");
    }
    db.write(&batch).expect("write");
    let keys = |entries: tierdb::Entries<'_>| -> Vec<String> {
        entries.map(|entry| String::from_utf8(entry.expect("entry").0).expect("text")).collect()
    };
    assert_eq!(keys(db.iter().expect("iter")), ["a", "b", "ba", "bb", "c"]);
    assert_eq!(keys(db.prefix("b").expect("prefix")), ["b", "ba", "bb"]);
    assert_eq!(keys(db.range("b".."bb").expect("range")), ["b", "ba"]);
    assert_eq!(keys(db.range("b"..="bb").expect("range")), ["b", "ba", "bb"]);
    assert_eq!(keys(db.range::<&str>(..).expect("range")).len(), 5);
    assert_eq!(keys(db.range("c".."a").expect("reversed")), [""; 0]);
    let mut entries = db.iter().expect("iter");
    let mut seen = Vec::new();
    for step in 0..7 {
        let entry = if step % 2 == 0 { entries.next() } else { entries.next_back() };
        seen.push(entry.map(|entry| String::from_utf8(entry.expect("entry").0).expect("text")));
    }
    let seen: Vec<_> = seen.iter().map(Option::as_deref).collect();
    assert_eq!(seen, [Some("a"), Some("c"), Some("b"), Some("bb"), Some("ba"), None, None]);
    let reversed: Vec<_> = db.iter().expect("iter").rev().map(|entry| entry.expect("entry").0).collect();
    assert_eq!(reversed.first().map(Vec::as_slice), Some(&b"c"[..]));
    assert_eq!(reversed.len(), 5);
}

#[test]
fn an_iterator_and_a_snapshot_see_one_moment() {
    let place = Place::new();
    let db = Db::open_config(&place.one("data")).expect("create");
    db.put("a", "1").expect("put");
    let snapshot = db.snapshot().expect("snapshot");
    let entries = db.iter().expect("iter");
    db.put("a", "2").expect("put");
    db.put("b", "2").expect("put");
    assert_eq!(entries.count(), 1);
    assert_eq!(db.range_at::<&str>(.., &snapshot).count(), 1);
    assert_eq!(db.get_at("a", &snapshot).expect("get").as_deref(), Some(&b"1"[..]));
    assert_eq!(db.delete_range("a".."c").expect("delete"), 2);
    assert_eq!(db.range_at::<&str>(.., &snapshot).count(), 1);
    let read = db.multi_get(&["a", "b"]);
    assert!(read.into_iter().all(|value| value.expect("get").is_none()));
}

#[test]
fn a_second_open_is_refused() {
    let place = Place::new();
    for config in [place.one("data"), place.tiered(FastKind::Block)] {
        let db = Db::open_config(&config).expect("create");
        assert_eq!(refused(&config).kind(), ErrorKind::Locked);
        let clone = db.clone();
        drop(db);
        assert_eq!(refused(&config).kind(), ErrorKind::Locked);
        drop(clone);
        Db::open_config(&config).expect("open");
    }
}

#[test]
fn what_is_not_there_is_not_found() {
    let place = Place::new();
    assert_eq!(Db::open_existing(place.path("none")).expect_err("absent").kind(), ErrorKind::NotFound);
    assert!(!place.path("none").exists());
    std::fs::create_dir(place.path("empty")).expect("create");
    assert_eq!(Db::open_existing(place.path("empty")).expect_err("empty").kind(), ErrorKind::NotFound);
    assert_eq!(Db::open(place.path("none/deeper")).expect_err("no parent").kind(), ErrorKind::NotFound);
    assert!(!place.path("none").exists());
}

#[test]
fn what_is_not_a_store_is_left_alone() {
    let place = Place::new();
    let listing = |path: &Path| {
        let mut names: Vec<_> =
            std::fs::read_dir(path).expect("list").map(|entry| entry.expect("entry").file_name()).collect();
        names.sort();
        names
    };
    let dir = place.path("photos");
    std::fs::create_dir(&dir).expect("create");
    std::fs::create_dir(dir.join("2024")).expect("create");
    assert!(matches!(Db::open(&dir).expect_err("a directory"), Error::NotAStore { .. }));
    assert_eq!(listing(&dir), ["2024"]);
    std::fs::remove_dir(dir.join("2024")).expect("remove");
    std::fs::write(dir.join("cat.jpg"), "cat").expect("write");
    assert!(matches!(Db::open(&dir).expect_err("a file in it"), Error::NotAStore { .. }));
    assert_eq!(listing(&dir), ["cat.jpg"]);
    let file = dir.join("cat.jpg");
    assert!(matches!(Db::open(&file).expect_err("a file"), Error::NotAStore { .. }));
    std::fs::remove_file(&file).expect("remove");
    std::fs::write(dir.join("TIER"), "not this kind of tier").expect("write");
    assert_eq!(Db::open(&dir).expect_err("another TIER").kind(), ErrorKind::Corrupt);
    assert_eq!(std::fs::read(dir.join("TIER")).expect("read"), b"not this kind of tier");
}

#[test]
fn a_file_systems_own_directory_does_not_matter() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("data/lost+found")).expect("create");
    Db::open_config(&place.one("data")).expect("create");
}

#[test]
fn one_tier_of_several_is_not_a_store() {
    let place = Place::new();
    let config = place.tiered(FastKind::Block);
    Db::open_config(&config).expect("create");
    let refused = Db::open(place.path("flash-a")).expect_err("one of three");
    assert!(
        matches!(&refused, Error::TierMissing { path, .. } if *path == place.path("fast")),
        "names the fast tier by where it was: {refused}"
    );
    std::fs::rename(place.path("flash-b"), place.path("away")).expect("rename");
    assert!(matches!(Db::open_config(&config).expect_err("gone"), Error::TierMissing { .. }));
    assert!(!place.path("flash-b").exists(), "not created anew");
    std::fs::rename(place.path("away"), place.path("flash-b")).expect("rename");
    Db::open_config(&config).expect("open");
}

#[test]
fn flash_tiers_may_be_listed_in_another_order() {
    let place = Place::new();
    let mut config = place.tiered(FastKind::Block);
    Db::open_config(&config).expect("create").put("k", "v").expect("put");
    config.flash.reverse();
    let db = Db::open_config(&config).expect("open");
    assert_eq!(db.get("k").expect("get").as_deref(), Some(&b"v"[..]));
}

#[test]
fn what_was_fixed_at_creation_is_named() {
    let place = Place::new();
    let config = place.tiered(FastKind::Block);
    Db::open_config(&config).expect("create");
    let mut other = config.clone();
    other.fast[0].capacity = ByteSize::mib(128);
    assert!(refused(&other).to_string().contains("fast.capacity"));
    let mut other = config.clone();
    other.fast[0].kind = FastKind::Emulated;
    assert!(refused(&other).to_string().contains("fast.kind"));
    let mut other = config.clone();
    other.memory = Some(ByteSize::mib(16));
    assert!(refused(&other).to_string().contains("memory"));
    let mut other = config.clone();
    other.memory = Some(ByteSize::mib(64));
    other.flash[0].capacity = Some(ByteSize::mib(48));
    Db::open_config(&other).expect("these may change");
}

#[test]
fn the_same_directory_under_two_names_is_refused() {
    let place = Place::new();
    std::fs::create_dir(place.path("a")).expect("create");
    std::os::unix::fs::symlink(place.path("a"), place.path("b")).expect("link");
    let config =
        small().with_flash(FlashTier::new(place.path("a"))).with_flash(FlashTier::new(place.path("b")));
    let error = refused(&config);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("one directory"), "{error}");
    assert!(Db::open_existing(place.path("a")).is_err(), "no store was made of it");
    // So are two names of one that has to be made first.
    let config = small()
        .with_flash(FlashTier::new(place.path("a/new")))
        .with_flash(FlashTier::new(place.path("b/new")));
    let error = refused(&config);
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("one directory"), "{error}");
}

#[test]
fn a_store_opens_from_any_directory() {
    let place = Place::new();
    let file = place.path("store.toml");
    std::fs::write(&file, "memory = \"32 MiB\"\n[[flash]]\npath = \"data\"\ncapacity = \"64 MiB\"\n")
        .expect("write");
    Db::open_config(&Config::at(&file).expect("load")).expect("create");
    assert!(place.path("data/TIER").exists());
}

#[test]
fn settings_of_the_engine_are_accepted_at_their_limits() {
    let place = Place::new();
    let mut valuelog = Valuelog::default();
    valuelog.write_buffer = Some(ByteSize::mib(1));
    valuelog.reclaim_pct = Some(90);
    valuelog.gc_free_pct = Some(1);
    valuelog.gc_garbage_pct = Some(100);
    let db = Db::open_config(&place.one("data").with_valuelog(valuelog)).expect("create");
    for n in 0..2000u32 {
        db.put_with(n.to_be_bytes(), [7; 2000], Durability::Grouped).expect("put");
    }
    assert_eq!(db.iter().expect("iter").count(), 2000);
}

#[test]
fn settings_that_do_not_fit_are_named() {
    let place = Place::new();
    let mut valuelog = Valuelog::default();
    valuelog.write_buffer = Some(ByteSize::mib(15));
    // Half of the memory, but an eighth of the capacity is less.
    let too_large = refused(&place.one("data").with_valuelog(valuelog.clone())).to_string();
    assert!(
        too_large.contains("valuelog.write_buffer: 15 MiB") && too_large.contains("7 MiB of the 8 MiB"),
        "{too_large}"
    );
    let of_slab = place.one("data").with_engine(EngineKind::Slab).with_valuelog(valuelog);
    assert!(refused(&of_slab).to_string().contains("[valuelog]"));
    let mut slab = Slab::default();
    slab.levels = Some(2);
    let of_valuelog = place.one("data").with_slab(slab);
    assert!(refused(&of_valuelog).to_string().contains("[slab]"));
    assert!(!place.path("data/TIER").exists(), "nothing was created");
    Db::open_config(&place.one("data")).expect("create");
    assert!(refused(&of_valuelog).to_string().contains("[slab]"), "of a store that is there, too");
}

/// Goal: the sum over the tiers is what the devices did.
#[test]
fn what_one_device_does_is_counted_once() {
    let place = Place::new();
    let db = Db::open_config(&place.one("data")).expect("create");
    fill(&db);
    db.put("last", "durable").expect("put");
    let stats = db.stats();
    let causes = |role| -> Vec<_> {
        let tiers = stats.tiers.iter().filter(|tier| tier.role == role);
        tiers.flat_map(|tier| &tier.io).map(|(cause, _)| *cause).collect()
    };
    assert_eq!(causes(TierRole::Fast), [""; 0]);
    assert!(causes(TierRole::Flash).contains(&"log"), "{:?}", causes(TierRole::Flash));
}

/// Goal: what is written to byte-addressable media is counted, and remembered.
#[test]
fn what_goes_to_a_fast_tier_in_memory_is_counted_as_what_is_written_back() {
    for engine in [EngineKind::Valuelog, EngineKind::Slab] {
        let place = Place::new();
        let config = place.tiered(FastKind::Emulated).with_engine(engine);
        let db = Db::open_config(&config).expect("create");
        fill(&db);
        let stats = db.stats();
        let fast: Vec<_> = stats.tiers.iter().filter(|tier| tier.role == TierRole::Fast).collect();
        let [(cause, written)] = fast[0].io[..] else { panic!("{:?}", fast[0].io) };
        assert_eq!((cause, written.reads), ("write_backs", 0));
        assert!(written.written_bytes > stats.user_bytes_written && written.syncs >= 500, "{written:?}");
        db.close().expect("close");
        let db = Db::open_config(&config).expect("open");
        let before = &db.history().expect("it was used before").io["fast"]["write_backs"];
        assert!(before.written_bytes >= written.written_bytes, "{before:?} and {written:?}");
    }
}

/// Goal: what is advised helps. The room for the index cannot be raised by a capacity.
#[test]
fn a_full_index_names_what_bounds_it() {
    let place = Place::new();
    let config = Config::new()
        .with_memory(ByteSize::mib(16))
        .with_flash(FlashTier::new(place.path("data")).with_capacity(ByteSize::mib(64)));
    let db = Db::open_config(&config).expect("create");
    let full = (0..u32::MAX).find_map(|n| {
        db.put_with([n.to_be_bytes().repeat(1000).as_slice(), b"key"].concat(), "", Durability::Grouped).err()
    });
    let full = full.expect("an index of a few MiB");
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    assert!(full.to_string().contains("`memory`") && full.to_string().contains("checkpoint"), "{full}");
}

/// The directory that a child process holds open, if this process is that child.
const CHILD_DIR: &str = "TIERDB_TEST_HOLDS";

/// Does nothing in an ordinary run; as a child, holds a store open until its input ends.
#[test]
fn a_child_holds_a_store() {
    if let Some(dir) = std::env::var_os(CHILD_DIR) {
        let _db = Db::open(dir).expect("open");
        println!("\nopen");
        std::io::stdin().lines().for_each(drop);
        std::process::abort();
    }
}

#[test]
fn a_second_process_is_refused_until_the_first_ends_however_it_ends() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let place = Place::new();
    let dir = place.path("data");
    Db::open_config(&place.one("data")).expect("create");
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["a_child_holds_a_store", "--exact", "--nocapture", "--test-threads", "1"])
        .env(CHILD_DIR, &dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("spawn");
    let told = BufReader::new(child.stdout.take().expect("output"));
    assert!(told.lines().map_while(Result::ok).any(|line| line == "open"), "the child opened it");
    let refused = Db::open(&dir).expect_err("held by the child");
    assert!(refused.to_string().contains(&child.id().to_string()), "names the process: {refused}");
    drop(child.stdin.take());
    assert!(!child.wait().expect("wait").success(), "it ended without closing");
    Db::open(&dir).expect("a lock ends with its process");
}

#[test]
fn a_store_can_be_shared_by_threads() {
    fn shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    let place = Place::new();
    let db = Db::open_config(&place.one("data")).expect("create");
    shared(&db);
    let threads: Vec<_> = (0..4u8)
        .map(|thread| {
            let db = db.clone();
            std::thread::spawn(move || {
                for n in 0..200u8 {
                    db.put_with([thread, n], [n; 50], Durability::Grouped).expect("put");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert_eq!(db.iter().expect("iter").count(), 800);
}
