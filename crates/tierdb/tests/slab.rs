//! The slab engine through the facade, on real directories, in each mode that every machine has.

use std::path::Path;
use tierdb::{
    ByteSize, Config, Db, Durability, EngineKind, ErrorKind, FastKind, FastTier, FlashTier, PinningThreshold,
    Records, Slab, TierRole,
};

fn config(dir: &Path, fast: Option<FastKind>) -> Config {
    let mut config = Config::new()
        .with_engine(EngineKind::Slab)
        .with_memory(ByteSize::mib(64))
        .with_flash(FlashTier::new(dir.join("flash")).with_capacity(ByteSize::mib(256)));
    if let Some(kind) = fast {
        config = config.with_fast(FastTier::new(dir.join("fast"), ByteSize::mib(128)).with_kind(kind));
    }
    config
}

fn value(number: u32) -> Vec<u8> {
    vec![number as u8; 1 + number as usize % 900]
}

/// Each durable write is a write to the device that waits for it, which takes ten milliseconds where others write to it
/// too: so only some are.
fn durability(number: u32) -> Durability {
    if number.is_multiple_of(40) { Durability::Durable } else { Durability::Grouped }
}

fn check(db: &Db) {
    assert_eq!(db.stats().engine, "slab");
    let found: Vec<_> = db.iter().expect("iter").map(|entry| entry.expect("entry")).collect();
    assert_eq!(found.len(), 1 + (0..2000).filter(|n| n % 3 != 0 && !(500..700).contains(n)).count());
    for number in 0..2000u32 {
        let expected = (number % 3 != 0 && !(500..700).contains(&number)).then(|| value(number + 1));
        let found = db.get(format!("key{number:05}")).expect("get");
        assert_eq!(found.map(|value| value.into_vec()), expected, "key {number}");
    }
    assert_eq!(db.get("large").expect("get").expect("there").len(), 3 << 20);
    assert!(db.verify().expect("verify").is_clean());
}

#[test]
fn a_slab_store_keeps_what_it_was_given_in_every_mode() {
    let modes = [None, Some(FastKind::Block), Some(FastKind::Emulated)].map(|fast| (fast, None));
    for (fast, records) in modes.into_iter().chain([(Some(FastKind::Block), Some(Records::Device))]) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut slab = Slab::default();
        slab.records = records;
        let config = config(dir.path(), fast).with_slab(slab);
        let db = Db::open_config(&config).expect("create");
        for number in 0..2000u32 {
            db.put_with(format!("key{number:05}"), value(number), durability(number)).expect("put");
        }
        db.put("large", vec![7; 3 << 20]).expect("put");
        db.engine().flush().expect("flush");
        for number in 0..2000u32 {
            let key = format!("key{number:05}");
            let written = match number % 3 {
                0 => db.delete_with(key, durability(number)),
                _ => db.put_with(key, value(number + 1), durability(number)),
            };
            written.expect("write");
        }
        let removed = db.delete_range("key00500".."key00700").expect("delete_range");
        assert_eq!(removed, (500..700).filter(|n| n % 3 != 0).count() as u64);
        check(&db);
        drop(db);
        // The engine is known from the store; the configuration need not say it.
        let mut unsaid = config.clone();
        unsaid.engine = EngineKind::default();
        let db = Db::open_existing_config(&unsaid).expect("open");
        check(&db);
        let copied = db.checkpoint(dir.path().join("copy")).expect("checkpoint");
        assert_eq!(copied.entries, db.iter().expect("iter").count() as u64);
        db.close().expect("close");
        assert!(tierdb::verify_offline(&config).expect("verify").is_clean());
        // A checkpoint, and what a repair saves, are the same store in other directories.
        let of = |name: &str| self::config(&dir.path().join(name), fast).with_slab(config.slab.clone());
        for name in ["restored", "saved"] {
            std::fs::create_dir(dir.path().join(name)).expect("create");
        }
        assert_eq!(tierdb::restore(dir.path().join("copy"), &of("restored")).expect("restore"), copied);
        let saved = tierdb::repair(&config, &of("saved")).expect("repair");
        assert!(saved.index_whole && saved.uncertain == 0 && saved.damage.is_empty(), "{saved:?}");
        for name in ["restored", "saved"] {
            check(&Db::open_existing_config(&of(name)).expect("open"));
        }
        if fast == Some(FastKind::Block) {
            let mut other = Slab::default();
            other.records = records.xor(Some(Records::Device)).or(Some(Records::Memory));
            let refused = Db::open_existing_config(&config.with_slab(other)).expect_err("fixed");
            assert!(
                refused.kind() == ErrorKind::Invalid && refused.to_string().contains("records"),
                "{refused}"
            );
        }
    }
}

/// Goal: a read is counted where it was served, once: the hottest records of a device are in DRAM, too.
#[test]
fn reads_of_records_on_a_device_are_counted_once() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut slab = Slab::default();
    slab.records = Some(Records::Device);
    let db = Db::open_config(&config(dir.path(), Some(FastKind::Block)).with_slab(slab)).expect("create");
    db.put("key", value(1)).expect("put");
    for _ in 0..100 {
        db.get("key").expect("get").expect("there");
    }
    let stats = db.stats();
    assert!(stats.figure("reads_fast_cached") > Some(50), "{stats:?}");
    let served = stats.cache.hits + stats.write_buffer_hits;
    assert_eq!((served, stats.cache.misses, stats.figure("reads_fast")), (100, 0, Some(100)));
}

fn figure(db: &Db, name: &str) -> Option<u64> {
    db.stats().figure(name)
}

/// Goal: a block fast tier larger than memory is used, and a store with tables there is checked, saved and reopened like any other.
#[test]
fn tables_lie_on_a_block_fast_tier_beside_the_pool() {
    const KEYS: u32 = 6000;
    let dir = tempfile::tempdir().expect("temporary directory");
    let fast = FastTier::new(dir.path().join("fast"), ByteSize::mib(64)).with_kind(FastKind::Block);
    let flash = FlashTier::new(dir.path().join("flash")).with_capacity(ByteSize::mib(256));
    let config = Config::new().with_engine(EngineKind::Slab).with_memory(ByteSize::mib(16));
    let config = config.with_fast(fast).with_flash(flash);
    let key = |number: u32| format!("key{:06}", number * 7919 % KEYS);
    let value = |number: u32| [number.to_le_bytes().to_vec(), vec![number as u8; 8000]].concat();
    let db = Db::open_config(&config).expect("create");
    for number in 0..KEYS {
        db.put_with(key(number), value(number), Durability::Grouped).expect("put");
    }
    db.engine().flush().expect("room");
    let tables = |place: &str| -> u64 {
        let names = std::fs::read_dir(dir.path().join(place)).expect("there").flatten();
        let tables =
            names.filter(|file| file.path().extension().is_some_and(|extension| extension == "table"));
        tables.map(|file| file.metadata().expect("there").len()).sum()
    };
    // Log, two images, and tables: all of it within the capacity.
    assert!(tables("fast") > 16 << 20, "{} bytes of tables", tables("fast"));
    assert!(tables("flash") > 8 << 20);
    let whole = std::fs::read_dir(dir.path().join("fast")).expect("there").flatten();
    let whole: u64 = whole.map(|file| file.metadata().expect("there").len()).sum();
    assert!(whole <= 64 << 20, "{whole} bytes");
    let on_fast = |db: &Db| -> u64 {
        let stats = db.stats();
        let fast = stats.tiers.iter().filter(|tier| tier.role == TierRole::Fast);
        fast.flat_map(|tier| &tier.parts).filter(|(part, _)| *part == "tables").map(|(_, bytes)| bytes).sum()
    };
    // But for what is being written.
    assert!(on_fast(&db).abs_diff(tables("fast")) < 8 << 20, "{} and {} bytes", on_fast(&db), tables("fast"));
    let check = |db: &Db| {
        for number in 0..KEYS {
            assert_eq!(db.get(key(number)).expect("whole").as_deref(), Some(&value(number)[..]));
        }
    };
    check(&db);
    db.close().expect("close");
    let report = tierdb::verify_offline(&config).expect("there");
    assert!(report.is_clean() && report.keys_checked >= u64::from(KEYS), "{:?}", report.damage);
    check(&Db::open_config(&config).expect("open"));
    // Without the log, which knew what is where, all tables are still looked through.
    std::fs::remove_file(dir.path().join("fast/pool.log")).expect("there");
    let saved = Config::one_directory(dir.path().join("saved"));
    let report = tierdb::repair(&config, &saved).expect("saved");
    // The pool had nothing that tables have not.
    assert_eq!(report.keys, u64::from(KEYS), "{:?}", report.notes);
    check(&Db::open_config(&saved).expect("open"));
}

#[test]
fn a_write_budget_that_is_spent_holds_migration_back() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut slab = Slab::default();
    slab.pinning_threshold = Some(PinningThreshold::Percent(30));
    slab.table_size = Some(ByteSize::kib(256));
    let fast = FastTier::new(dir.path().join("fast"), ByteSize::mib(32)).with_kind(FastKind::Emulated);
    let flash = FlashTier::new(dir.path().join("flash")).with_capacity(ByteSize::mib(64));
    let config = Config::new().with_engine(EngineKind::Slab).with_memory(ByteSize::mib(16)).with_fast(fast);
    let free = config.clone().with_slab(slab.clone()).with_flash(flash.clone());
    let budget = "0.01 DWPD".parse().expect("a budget");
    let config = config.with_slab(slab).with_flash(flash.with_write_budget(budget));
    let db = Db::open_config(&config).expect("create");
    assert_eq!(figure(&db, "pinned_pct"), Some(30));
    assert_eq!(figure(&db, "flash_budget_bytes_per_day"), Some((64 << 20) / 100));
    let mut number = 0_u32;
    while figure(&db, "flash_budget_holds_back_migration") == Some(0) {
        db.put_with(format!("key{number:06}"), [7; 8000], Durability::Grouped).expect("put");
        number += 1;
        assert!(number < 50_000, "{:?}", db.stats().gauges);
    }
    let spent = figure(&db, "flash_budget_spent_bytes");
    assert!(spent > Some((64 << 20) / 100 / 24) && figure(&db, "flash_budget_left_bytes") == Some(0));
    db.close().expect("close");
    // An open gives nothing back.
    let db = Db::open_config(&config).expect("open");
    assert_eq!(figure(&db, "flash_budget_left_bytes"), Some(0));
    db.close().expect("close");
    // The same store without a budget moves on.
    let db = Db::open_config(&free).expect("open");
    assert_eq!(figure(&db, "flash_budget_bytes_per_day"), None);
    for number in number..number + 2000 {
        db.put_with(format!("key{number:06}"), [7; 8000], Durability::Grouped).expect("put");
    }
    assert!(figure(&db, "demoted_keys") > Some(0), "{:?}", db.stats().counters);
}

#[test]
fn an_engine_without_a_write_budget_refuses_one() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let flash = FlashTier::new(dir.path().join("flash")).with_capacity(ByteSize::mib(64));
    let budget = "1 GiB/day".parse().expect("a budget");
    let config = Config::new().with_memory(ByteSize::mib(16)).with_flash(flash.with_write_budget(budget));
    let error = Db::open_config(&config).map(drop).expect_err("valuelog");
    assert!(error.to_string().contains("flash.write_budget"), "{error}");
    assert!(!dir.path().join("flash/TIER").exists(), "nothing was created");

    // The engine that counts is the store's, whether it is said or not.
    let slab = config.clone().with_engine(EngineKind::Slab);
    Db::open_config(&slab).expect("create").close().expect("close");
    Db::open_config(&config).expect("open").close().expect("close");
}

#[test]
fn a_checkpoint_takes_memory_for_its_keys_and_not_for_the_fast_tier() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let fast = FastTier::new(dir.path().join("fast"), ByteSize::mib(512)).with_kind(FastKind::Emulated);
    let flash = FlashTier::new(dir.path().join("flash")).with_capacity(ByteSize::mib(64));
    let config = Config::new().with_engine(EngineKind::Slab).with_memory(ByteSize::mib(32)).with_fast(fast);
    let db = Db::open_config(&config.with_flash(flash)).expect("create");
    db.put("key", "value").expect("put");
    assert_eq!(db.checkpoint(dir.path().join("copy")).expect("checkpoint").entries, 1);
    let copy = Db::open(dir.path().join("copy")).expect("open");
    let pool = copy.stats().tiers.first().map(|tier| tier.capacity).expect("a tier");
    assert!(pool <= 32 << 20, "{pool} bytes for one key");
}

#[test]
fn a_checkpoint_takes_more_memory_where_later_keys_are_longer() {
    const SHORT: u32 = 1000;
    const LONG: u32 = 12_000;
    let dir = tempfile::tempdir().expect("temporary directory");
    let fast = FastTier::new(dir.path().join("fast"), ByteSize::mib(64)).with_kind(FastKind::Emulated);
    let flash = FlashTier::new(dir.path().join("flash")).with_capacity(ByteSize::mib(64));
    let config = Config::new().with_engine(EngineKind::Slab).with_memory(ByteSize::mib(64)).with_fast(fast);
    let db = Db::open_config(&config.with_flash(flash)).expect("create");
    for n in 0..SHORT + LONG {
        let key = if n < SHORT { format!("{n:05}") } else { format!("{n:05}{}", "k".repeat(2500)) };
        db.put_with(key, "value", Durability::Grouped).expect("put");
    }
    let copied = db.checkpoint(dir.path().join("copy")).expect("checkpoint");
    assert_eq!(copied.entries, u64::from(SHORT + LONG));
}

#[test]
fn a_store_is_not_opened_with_another_engine() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut config = config(dir.path(), None);
    config.engine = EngineKind::Valuelog;
    Db::open_config(&config).expect("create").close().expect("close");
    config.engine = EngineKind::Slab;
    let error = Db::open_config(&config).map(drop).expect_err("another engine");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("engine"), "{error}");
}
