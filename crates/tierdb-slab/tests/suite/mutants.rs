//! Goal: the crash suite would notice if any flush, fence, publish, sync or wait of the engine were left out.

use crate::rig::Sizes;
use tierdb_engine::conformance::harm::persist::{Beside, leave_out_each};

/// What a test beside it (`beside`, `crash`) notices, and why no script does, or none soon.
const BESIDE: [Beside; 5] = [
    ("slab/src/core.rs", "fence", "every write that follows on the same thread fences too"),
    ("slab/src/engine.rs", "wait", "scripts seldom crash between a sync and the next durable write"),
    ("slab/src/layout.rs", "wait", "scripts on a log start with a store that was created and closed"),
    ("slab/src/promote.rs", "publish", "a copy of what flash has may be lost"),
    (
        "slab/src/recover.rs",
        "fence",
        "a key is seldom deleted right after the open that frees an older version",
    ),
];

#[test]
fn every_persist_call_that_is_left_out_is_noticed() {
    leave_out_each(&Sizes::small(), |site| site.file.contains("slab/src"), &BESIDE);
}
