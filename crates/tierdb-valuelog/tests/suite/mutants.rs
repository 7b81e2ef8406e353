//! Goal: the crash suite would notice if any flush, fence, publish, sync or wait of the engine were left out.

use crate::rig::Sizes;
use tierdb_base::mutant::Site;
use tierdb_engine::conformance::harm::persist::{Beside, leave_out_each};

/// What a test beside it notices, and why no script does; or why it does no harm.
const BESIDE: [Beside; 9] = [
    (
        "valuelog/src/core.rs",
        "fence",
        1,
        "the limit of seqnos is raised half a million writes before it is reached",
    ),
    ("valuelog/src/core.rs", "publish", 1, "as above"),
    (
        "valuelog/src/hsit.rs",
        "fence",
        1,
        "another thread must be given an entry of a new page, and publish it, before who added the page waits for a write of its own",
    ),
    ("valuelog/src/storage/mod.rs", "sync", 1, "the sync of a growth must have failed in an earlier run"),
    (
        "valuelog/src/storage/device/discard.rs",
        "wait",
        1,
        "a test beside them crashes where more is free than is kept, and what replaced it is not durable",
    ),
    ("valuelog/src/layout.rs", "wait", 1, "scripts on a log start with a store that was created and closed"),
    (
        "valuelog/src/recover.rs",
        "publish",
        1,
        "entries with a word that no key names are left where a crash cut short the making of a page of entries, and are seldom given out soon",
    ),
    ("valuelog/src/recover.rs", "fence", 1, "as above"),
    (
        "valuelog/src/storage/device.rs",
        "dir_sync",
        1,
        "does no harm where no sync fails: the one of the file that is made anew is of the same directory",
    ),
];

#[test]
fn every_persist_call_that_is_left_out_is_noticed() {
    // The index has a suite of its own, redo lists in pages, which few scripts come to, a test, and so has what readers wait
    // for. Nothing of an image is needed for a right answer, only for a quick one.
    let elsewhere = |site: &Site| {
        let in_file = |name: &str| site.file.ends_with(name);
        let is_of_readers = in_file("src/hsit.rs") && ["wait", "persist_word"].contains(&site.what);
        site.file.contains("src/index") || in_file("src/image.rs") || in_file("src/redo.rs") || is_of_readers
    };
    let ours = |site: &Site| site.file.contains("valuelog/src") && !elsewhere(site);
    leave_out_each(&[Sizes::tiny()], ours, &BESIDE);
}
