//! Goal: the crash suite would notice if any flush, fence, publish, sync or wait of the engine were left out.

use crate::rig::Sizes;
use tierdb_base::mutant::Site;
use tierdb_engine::conformance::harm::persist::{Beside, leave_out_each};

/// What a test beside it notices, and why no script does.
const BESIDE: [Beside; 4] = [
    (
        "valuelog/src/core.rs",
        "fence",
        "the limit of seqnos is raised half a million writes before it is reached",
    ),
    ("valuelog/src/core.rs", "publish", "as above"),
    ("valuelog/src/storage/mod.rs", "sync", "the sync of a growth must have failed in an earlier run"),
    ("valuelog/src/layout.rs", "wait", "scripts on a log start with a store that was created and closed"),
];

#[test]
fn every_persist_call_that_is_left_out_is_noticed() {
    // The index has a suite of its own, and redo lists in pages, which few scripts come to, a test. Nothing of an image
    // is needed for a right answer, only for a quick one.
    let elsewhere = |file: &str| {
        file.contains("src/index") || ["src/image.rs", "src/redo.rs"].iter().any(|name| file.ends_with(name))
    };
    let ours = |site: &Site| site.file.contains("valuelog/src") && !elsewhere(site.file);
    leave_out_each(&[Sizes::tiny()], ours, &BESIDE);
}
