//! Goal: the crash suite would notice if any flush, fence, publish, sync or wait of the engine were left out.

use crate::rig::Sizes;
use tierdb_engine::conformance::harm::persist::{Beside, leave_out_each};

/// What a test beside it (`beside`, `crash`) notices, and why no script does, or none soon; or why it does no harm.
const BESIDE: [Beside; 7] = [
    ("slab/src/core.rs", "fence", 1, "every write that follows on the same thread fences too"),
    ("slab/src/layout.rs", "wait", 1, "scripts on a log start with a store that was created and closed"),
    ("slab/src/promote.rs", "publish", 1, "a copy of what flash has may be lost"),
    (
        "slab/src/recover.rs",
        "fence",
        1,
        "a key is seldom deleted right after the open that frees an older version",
    ),
    ("slab/src/tidy.rs", "fence", 1, "a key is seldom deleted right after its record is moved"),
    (
        "slab/src/commit.rs",
        "fence",
        1,
        "does no harm: the same open drains what it frees behind the replay of groups",
    ),
    (
        "slab/src/flash.rs",
        "dir_sync",
        1,
        "does no harm: a file that comes back is removed by the next open, and no number is used twice",
    ),
];

#[test]
fn every_persist_call_that_is_left_out_is_noticed() {
    leave_out_each(&Sizes::small(), |site| site.file.contains("slab/src"), &BESIDE);
}
