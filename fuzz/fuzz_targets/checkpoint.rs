//! The file `CHECKPOINT` of a checkpoint, of any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use tierdb::{Config, restore};
use tierdb_base::mutant::{self, Site};
use tierdb_fuzz::checksum_sites;

/// As one is written, so that its checksum is compared.
const RECORD: &str = "format = 1\nname = \"copy\"\nstore = \"\"\nseqno = 1\nentries = 1\nbytes = 2\nhash = \"0\"\nchecksum = \"0\"\n";

struct Copy {
    dir: tempfile::TempDir,
    sites: Vec<Site>,
}

static COPY: LazyLock<Copy> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    let mut copy = Copy { dir, sites: Vec::new() };
    copy.sites = checksum_sites(|| read(&copy, RECORD.as_bytes()));
    assert!(!copy.sites.is_empty(), "the checksum is compared");
    copy
});

fn read(copy: &Copy, record: &[u8]) {
    let path = copy.dir.path();
    std::fs::write(path.join("CHECKPOINT"), record).expect("room");
    restore(path, &Config::one_directory(path.join("restored"))).expect_err("there is no store");
}

fuzz_target!(|input: (bool, &[u8])| {
    let (checked, record) = input;
    let copy = &*COPY;
    if checked {
        read(copy, record);
    } else {
        mutant::without(copy.sites[0], || read(copy, record));
    }
});
