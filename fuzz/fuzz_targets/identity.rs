//! The file `TIER`, harmed or of any bytes, alone in a directory: what follows it when a store is opened finds nothing else.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::LazyLock;
use tierdb::{Config, Db, verify_offline};
use tierdb_base::mutant::Site;
use tierdb_fuzz::{FileInput, checksum_sites, unchecked};

struct Store {
    path: PathBuf,
    tier: Vec<u8>,
    sites: Vec<Site>,
    _dir: tempfile::TempDir,
}

static STORE: LazyLock<Store> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    Db::open(&path).and_then(|db| db.close()).expect("a store is created");
    let tier = std::fs::read(path.join("TIER")).expect("its identity");
    let sites = checksum_sites(|| {
        let _ = verify_offline(&Config::one_directory(&path));
    });
    std::fs::remove_dir_all(&path).expect("it is closed");
    std::fs::create_dir(&path).expect("a directory");
    Store { path, tier, sites, _dir: dir }
});

fuzz_target!(|input: FileInput<'_>| {
    let store = &*STORE;
    let bytes = input.file(&store.tier, <[u8]>::to_vec);
    std::fs::write(store.path.join("TIER"), bytes).expect("room");
    unchecked(&store.sites, input.site, || {
        let _ = verify_offline(&Config::one_directory(&store.path));
    });
});
