//! Checkpoints and restored stores, on real directories.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tierdb::{ByteSize, Config, Db, Durability, Error, ErrorKind, FastKind, FastTier, FlashTier};

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().expect("temporary directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn tiered(&self, name: &str) -> Config {
        Config::new()
            .with_memory(ByteSize::mib(32))
            .with_fast(
                FastTier::new(self.path(&format!("{name}-fast")), ByteSize::mib(64))
                    .with_kind(FastKind::Emulated),
            )
            .with_flash(FlashTier::new(self.path(&format!("{name}-a"))).with_capacity(ByteSize::mib(64)))
            .with_flash(FlashTier::new(self.path(&format!("{name}-b"))).with_capacity(ByteSize::mib(64)))
    }

    fn filled(&self, name: &str) -> Db {
        let db = Db::open_config(&self.tiered(name)).expect("create");
        for n in 0..1000u32 {
            db.put_with(format!("key{n:04}"), vec![n as u8; 1 + n as usize], Durability::Grouped)
                .expect("put");
        }
        db.put("large", vec![3; 3 << 20]).expect("put");
        db.put("empty", "").expect("put");
        db
    }
}

fn entries(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
    db.iter()
        .expect("iter")
        .map(|entry| entry.map(|(key, value)| (key, value.into_vec())).expect("entry"))
        .collect()
}

#[test]
fn a_checkpoint_is_a_store_in_one_directory_and_can_be_restored() {
    let place = Place::new();
    let db = place.filled("store");
    let before = entries(&db);
    let copied = db.checkpoint(place.path("backup")).expect("checkpoint");
    assert_eq!(copied.entries, 1002);
    db.put("key0000", "changed later").expect("put");
    assert!(!place.path("backup.partial").exists());

    let restored = place.tiered("restored");
    assert_eq!(tierdb::restore(place.path("backup"), &restored).expect("restore"), copied);
    let restored = Db::open_existing_config(&restored).expect("open");
    assert_eq!(entries(&restored), before);
    assert_ne!(restored.uuid(), db.uuid());

    let copy = Db::open_existing(place.path("backup")).expect("open");
    assert_eq!(entries(&copy), before);
    copy.put("it is", "an ordinary store").expect("put");
}

#[test]
fn a_checkpoint_is_restored_over_more_fast_tiers_or_fewer() {
    let place = Place::new();
    let two = |name: &str, kind| {
        let mut config = place.tiered(name);
        let second = FastTier::new(place.path(&format!("{name}-fast-2")), ByteSize::mib(40));
        config.fast[0].kind = kind;
        config.with_fast(second.with_kind(kind))
    };
    let db = place.filled("one");
    let before = entries(&db);
    let copied = db.checkpoint(place.path("of-one")).expect("checkpoint");
    for (name, kind) in [("mapped", FastKind::Emulated), ("striped", FastKind::Block)] {
        let config = two(name, kind);
        assert_eq!(tierdb::restore(place.path("of-one"), &config).expect("restore"), copied);
        let db = Db::open_existing_config(&config).expect("open");
        assert_eq!(entries(&db), before);
        let of_two = place.path(&format!("of-{name}"));
        assert_eq!(db.checkpoint(&of_two).expect("checkpoint"), copied);
        let config = place.tiered(&format!("{name}-again"));
        assert_eq!(tierdb::restore(&of_two, &config).expect("restore"), copied);
        assert_eq!(entries(&Db::open_existing_config(&config).expect("open")), before);
    }
}

/// Goal: a restore gives the index the room that the checkpoint's needs, or says at once that there is too little memory.
#[test]
fn a_large_index_is_restored_where_a_usual_one_is_smaller() {
    let place = Place::new();
    let roomy = Config::new()
        .with_memory(ByteSize::mib(64))
        .with_flash(FlashTier::new(place.path("store")).with_capacity(ByteSize::mib(512)));
    let db = Db::open_config(&roomy).expect("create");
    for n in 0..50_000u32 {
        db.put_with(format!("{n:0100}"), "", Durability::Grouped).expect("put");
    }
    let copied = db.checkpoint(place.path("backup")).expect("checkpoint");
    // An eighth of it is usual.
    let small =
        Config::new().with_flash(FlashTier::new(place.path("small")).with_capacity(ByteSize::mib(64)));
    let refused = tierdb::restore(place.path("backup"), &small.clone().with_memory(ByteSize::mib(16)));
    let Err(Error::Invalid { what }) = &refused else { panic!("{refused:?}") };
    assert!(what.contains("memory: 16 MiB") && what.contains("is needed"), "{what}");
    assert_eq!(tierdb::restore(place.path("backup"), &small).expect("restore"), copied);
    let restored = Db::open_existing_config(&small).expect("open");
    assert_eq!(restored.stats().keys, 50_000);
}

#[test]
fn an_empty_store_can_be_copied() {
    let place = Place::new();
    let db = Db::open_config(&place.tiered("store")).expect("create");
    assert_eq!(db.checkpoint(place.path("backup")).expect("checkpoint").entries, 0);
    // The least there is: what the store's fast tier has beside its index does not count.
    let copy = Db::open_existing(place.path("backup")).expect("open");
    assert_eq!(copy.stats().tiers[0].capacity, 32 << 20);
    copy.close().expect("close");
    assert_eq!(tierdb::restore(place.path("backup"), &place.tiered("restored")).expect("restore").entries, 0);
}

#[test]
fn a_checkpoint_needs_a_new_name() {
    let place = Place::new();
    let db = Db::open_config(&place.tiered("store")).expect("create");
    std::fs::create_dir(place.path("backup")).expect("create");
    assert_eq!(db.checkpoint(place.path("backup")).expect_err("exists").kind(), ErrorKind::Invalid);
    assert_eq!(std::fs::read_dir(place.path("backup")).expect("list").count(), 0);
    assert!(db.checkpoint(place.path("..")).is_err());
    let missing = db.checkpoint(place.path("no/parent")).expect_err("no parent");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(!missing.to_string().contains("partial"), "the name that was given: {missing}");
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("create");
    for entry in std::fs::read_dir(from).expect("list") {
        let entry = entry.expect("entry");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copy");
    }
}

#[test]
fn what_an_interrupted_checkpoint_left_is_replaced() {
    let place = Place::new();
    let db = place.filled("store");
    db.checkpoint(place.path("backup")).expect("checkpoint");
    // All but the last step done: complete, but under the partial name.
    std::fs::rename(place.path("backup"), place.path("backup.partial")).expect("rename");
    db.checkpoint(place.path("backup")).expect("checkpoint again");
    assert!(!place.path("backup.partial").exists());
    // Begun, and nothing more.
    let begun = place.path("second.partial");
    std::fs::create_dir(&begun).expect("create");
    db.checkpoint(place.path("second")).expect("checkpoint");
    assert!(!begun.exists());
}

#[test]
fn a_partial_directory_that_is_not_ours_is_left_alone() {
    let place = Place::new();
    let db = Db::open_config(&place.tiered("store")).expect("create");
    let partial = place.path("backup.partial");
    std::fs::create_dir(&partial).expect("create");
    std::fs::write(partial.join("thesis.tex"), "years of work").expect("write");
    assert!(matches!(db.checkpoint(place.path("backup")).expect_err("foreign"), Error::NotAStore { .. }));
    assert!(partial.join("thesis.tex").exists());
    // A store of somebody's own under that name, or a checkpoint of another name.
    let own = Db::open(place.path("second.partial")).expect("create");
    own.put("k", "v").expect("put");
    own.close().expect("close");
    assert_eq!(db.checkpoint(place.path("second")).expect_err("a store").kind(), ErrorKind::Invalid);
    assert!(Db::open_existing(place.path("second.partial")).expect("open").get("k").expect("get").is_some());
    db.checkpoint(place.path("third")).expect("checkpoint");
    std::fs::rename(place.path("third"), place.path("fourth.partial")).expect("rename");
    assert_eq!(db.checkpoint(place.path("fourth")).expect_err("another").kind(), ErrorKind::Invalid);
}

#[test]
fn a_store_is_not_restored_over_another() {
    let place = Place::new();
    let db = place.filled("store");
    db.checkpoint(place.path("backup")).expect("checkpoint");
    db.close().expect("close");
    let refused =
        tierdb::restore(place.path("backup"), &place.tiered("store")).expect_err("a store is there");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert_eq!(entries(&Db::open_config(&place.tiered("store")).expect("open")).len(), 1002);
    // A plain store is not a checkpoint.
    Db::open(place.path("plain")).expect("create");
    let refused = tierdb::restore(place.path("plain"), &place.tiered("target")).expect_err("no checkpoint");
    assert!(matches!(refused, Error::NotAStore { .. }));
    assert!(!place.path("target-fast").exists());
}

#[test]
fn a_checkpoint_that_was_changed_is_not_restored() {
    let place = Place::new();
    let db = place.filled("store");
    db.checkpoint(place.path("backup")).expect("checkpoint");
    let changed = Db::open_existing(place.path("backup")).expect("open");
    changed.put("key0500", "something else").expect("put");
    changed.close().expect("close");
    let target = place.tiered("target");
    let refused = tierdb::restore(place.path("backup"), &target).expect_err("changed");
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
    assert!(refused.to_string().contains("if it was opened and written to since"), "{refused}");
    assert_eq!(Db::open_existing_config(&target).expect_err("no store").kind(), ErrorKind::NotFound);
    let refused = Db::open_config(&target).expect_err("somebody expects a copy there");
    assert!(refused.kind() == ErrorKind::NotFound && refused.to_string().contains("again"), "{refused}");
    let saved = tierdb::repair(&target, &place.tiered("saved")).expect("repair");
    let is_told = saved.notes.iter().any(|note| note.contains("did not end"));
    assert!(!saved.index_whole && is_told, "it may lack keys: {saved:?}");
    // The directories of the failed attempt can be used again.
    db.checkpoint(place.path("good")).expect("checkpoint");
    assert_eq!(tierdb::restore(place.path("good"), &target).expect("restore").entries, 1002);
}

/// All files of a directory, with their bytes.
fn contents(dir: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let entries = std::fs::read_dir(dir).expect("list").map(|entry| entry.expect("entry"));
    entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).expect("read"))).collect()
}

#[test]
fn a_restore_changes_nothing_of_its_checkpoint() {
    let place = Place::new();
    let db = place.filled("store");
    let copied = db.checkpoint(place.path("backup")).expect("checkpoint");
    // As a crash leaves it: opening it would recover.
    let left = Db::open_existing(place.path("backup")).expect("open");
    copy_dir(&place.path("backup"), &place.path("copy"));
    left.close().expect("close");
    let before = contents(&place.path("copy"));
    assert_eq!(tierdb::restore(place.path("copy"), &place.tiered("restored")).expect("restore"), copied);
    assert!(contents(&place.path("copy")) == before, "it was changed");
}

/// Does `work` as a user to whom permissions apply.
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let nobody = rustix::process::Uid::from_raw(65534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("this thread alone");
            }
            work()
        });
        thread.join().expect("no panic")
    })
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("mode");
}

/// Goal: a checkpoint is of use where it cannot be written: with its lock's file, and without one.
#[test]
fn a_checkpoint_that_cannot_be_written_is_checked_and_restored() {
    let place = Place::new();
    let db = place.filled("store");
    let copied = db.checkpoint(place.path("backup")).expect("checkpoint");
    let (backup, targets) = (place.path("backup"), place.path("targets"));
    std::fs::create_dir(&targets).expect("create");
    set_mode(&place.path("."), 0o755);
    set_mode(&targets, 0o777);
    for lock in [true, false] {
        if !lock {
            std::fs::remove_file(backup.join("LOCK")).expect("remove");
        }
        for name in contents(&backup).keys() {
            set_mode(&backup.join(name), 0o444);
        }
        set_mode(&backup, 0o555);
        as_nobody(|| {
            let report = tierdb::verify_offline(&Config::one_directory(&backup)).expect("verify");
            assert!(report.is_clean() && report.keys_checked == copied.entries, "{report:?}");
            let target = |name: &str| Config::one_directory(targets.join(format!("{name}-{lock}")));
            assert_eq!(tierdb::restore(&backup, &target("restored")).expect("restore"), copied);
            let saved = tierdb::repair(&Config::one_directory(&backup), &target("saved")).expect("repair");
            assert_eq!(saved.keys, copied.entries);
            let refused = Db::open_existing(&backup).expect_err("an open store writes");
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
            assert!(refused.to_string().contains("cannot be written"), "{refused}");
        });
        set_mode(&backup, 0o755);
    }
}

/// Goal: what this user may not read is not taken for lost.
#[test]
fn a_log_that_may_not_be_read_is_not_lost() {
    let place = Place::new();
    drop(Db::open(place.path("store")).expect("create"));
    let (store, targets) = (place.path("store"), place.path("targets"));
    std::fs::create_dir(&targets).expect("create");
    set_mode(&place.path("."), 0o755);
    set_mode(&targets, 0o777);
    set_mode(&store, 0o755);
    contents(&store).keys().for_each(|name| set_mode(&store.join(name), 0o444));
    set_mode(&store.join("pool.log"), 0);
    as_nobody(|| {
        let target = Config::one_directory(targets.join("saved"));
        let refused = tierdb::repair(&Config::one_directory(&store), &target).expect_err("not read");
        assert_eq!(refused.kind(), ErrorKind::Io);
        assert!(refused.to_string().contains("pool.log"), "{refused}");
    });
}

#[test]
fn a_damaged_record_is_noticed() {
    let place = Place::new();
    let db = place.filled("store");
    db.checkpoint(place.path("backup")).expect("checkpoint");
    let record = place.path("backup/CHECKPOINT");
    let whole = std::fs::read(&record).expect("read");
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        std::fs::write(&record, &damaged).expect("write");
        let refused = tierdb::restore(place.path("backup"), &place.tiered("target")).expect_err("damaged");
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "byte {at}: {refused}");
        assert!(!place.path("target-fast").exists());
    }
    copy_dir(&place.path("backup"), &place.path("copy"));
    std::fs::write(place.path("copy/CHECKPOINT"), &whole).expect("write");
    tierdb::restore(place.path("copy"), &place.tiered("target")).expect("a moved checkpoint is one");
}

/// In a directory from elsewhere, the record may be a link to what never ends, or a file that no memory holds.
#[test]
fn a_record_that_is_none_is_not_read() {
    let place = Place::new();
    place.filled("store").checkpoint(place.path("backup")).expect("checkpoint");
    let record = place.path("backup/CHECKPOINT");
    let refused = || tierdb::restore(place.path("backup"), &place.tiered("target")).expect_err("no record");
    std::fs::File::options()
        .write(true)
        .open(&record)
        .and_then(|file| file.set_len(1 << 40))
        .expect("sparse");
    assert_eq!(refused().kind(), ErrorKind::Corrupt, "{}", refused());
    std::fs::remove_file(&record).expect("remove");
    std::os::unix::fs::symlink("/dev/zero", &record).expect("link");
    assert_eq!(refused().kind(), ErrorKind::Corrupt, "{}", refused());
    assert!(!place.path("target-fast").exists());
}

#[test]
fn a_checkpoint_that_fails_leaves_nothing_behind() {
    let place = Place::new();
    let left = || {
        let names =
            std::fs::read_dir(place.path(".")).expect("list").flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("backup")).collect::<Vec<_>>()
    };
    let db = place.filled("store");
    db.engine().flush().and_then(|()| db.close()).expect("close");
    let refused = db.checkpoint(place.path("backup")).expect_err("it is closed");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(left().is_empty(), "before it begins: {:?}", left());
    for name in ["store-a/values", "store-b/values"] {
        let mut bytes = std::fs::read(place.path(name)).expect("read");
        // The value of a key in the middle, wherever it was put: two have so many of these bytes.
        if let Some(at) = bytes.windows(700).position(|window| window == [700_u32 as u8; 700]) {
            bytes[at] ^= 1;
            std::fs::write(place.path(name), bytes).expect("write");
        }
    }
    let db = Db::open_config(&place.tiered("store")).expect("open");
    let refused = db.checkpoint(place.path("backup")).expect_err("a value is damaged");
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    assert!(left().is_empty(), "in the middle: {:?}", left());
}
