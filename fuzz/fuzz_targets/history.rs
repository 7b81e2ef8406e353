//! The file `HISTORY` of a store, harmed or of any bytes, as it is read by an open and shown to people.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use tierdb::{ByteSize, Config, Db, FlashTier};
use tierdb_base::mutant::Site;
use tierdb_cli::stat;
use tierdb_fuzz::{FileInput, checksum_sites, unchecked};

/// Bytes of the line with the checksum.
const FIRST_LINE: usize = 24;

struct Store {
    path: PathBuf,
    history: Vec<u8>,
    sites: Vec<Site>,
    _dir: tempfile::TempDir,
}

/// A small store, which opens soon.
fn config(path: &Path) -> Config {
    let flash = FlashTier::new(path).with_capacity(ByteSize::mib(32));
    Config::new().with_memory(ByteSize::mib(16)).with_flash(flash)
}

impl Store {
    fn show(&self, history: &[u8]) {
        std::fs::write(self.path.join("HISTORY"), history).expect("room");
        let db = Db::open_existing_config(&config(&self.path)).expect("it does not depend on that");
        stat::write_table(&db.stats(), db.history(), &mut Vec::new()).expect("memory");
        stat::write_json(&db.stats(), db.history(), &mut Vec::new()).expect("memory");
    }
}

static STORE: LazyLock<Store> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    let db = Db::open_config(&config(&path)).expect("a store is created");
    db.put("key", "value").and_then(|()| db.close()).expect("it is used");
    let history = std::fs::read(path.join("HISTORY")).expect("it was used");
    let mut store = Store { path, history, sites: Vec::new(), _dir: dir };
    let sites = checksum_sites(|| store.show(&store.history));
    store.sites = sites.into_iter().filter(|site| site.file.ends_with("src/history.rs")).collect();
    assert!(!store.sites.is_empty(), "the checksum is compared");
    store
});

fuzz_target!(|input: FileInput<'_>| {
    let store = &*STORE;
    let bytes = input.file(&store.history, |toml| {
        let mut whole = [&store.history[..FIRST_LINE], toml].concat();
        whole.resize(whole.len().next_multiple_of(4096), b'\n');
        whole
    });
    unchecked(&store.sites, input.site, || store.show(&bytes));
});
