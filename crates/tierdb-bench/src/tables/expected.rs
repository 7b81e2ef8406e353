//! How long a run will take, roughly: from what earlier ones took on two cores and an ordinary virtual disk.

use crate::case::Case;
use crate::phase::{Limit, Warmup};
use crate::plan::Plan;
use crate::reference::{BESIDE, DEPTHS};
use crate::store::Durability;
use std::time::Duration;

/// Writes a second by how the system's name begins: grouped, and durable by one thread. A system whose writes go to
/// memory that stands for a fast tier has no need to wait for either.
const WRITES: [(&str, f64, f64); 9] = [
    ("tierdb-ssd", 80e3, 13e3),
    ("tierdb-", 150e3, 150e3),
    ("slab-ssd", 80e3, 13e3),
    ("slab-", 80e3, 80e3),
    ("rocksdb-", 60e3, 60e3),
    ("rocksdb", 60e3, 8e3),
    ("fjall", 60e3, 4e3),
    ("redb", 12e3, 500.0),
    ("lmdb", 20e3, 2e3),
];
/// Those of any other.
const OTHERS: (&str, f64, f64) = ("", 30e3, 3e3);
/// Entries a second of a store that is read whole after it was killed.
const READ_BACK: f64 = 50e3;
/// To start a process, to open and to close a store, to kill it and open it again.
const AROUND: f64 = 1.5;
/// To write the file that is read for the reference.
const REFERENCE_FILE: f64 = 2.0;

/// How long `case` of `plan` takes.
pub(super) fn case(plan: &Plan, case: &Case) -> Duration {
    let found = WRITES.iter().find(|(name, ..)| case.system.starts_with(name));
    let (_, grouped, durable) = found.unwrap_or(&OTHERS);
    let writes = |durability: Durability, threads: usize| match durability {
        Durability::Grouped => *grouped,
        // Threads share syncs, but not all of them.
        Durability::Durable => (durable * (threads as f64).sqrt()).min(*grouped),
    };
    let mut seconds = AROUND + 2.0 * case.idle;
    seconds += case.setup.keys as f64 / writes(case.load_durability, case.threads);
    for phase in &case.phases {
        let time = |limit: Limit| match limit {
            Limit::Seconds(seconds) => seconds,
            Limit::Ops(ops) => ops as f64 / writes(phase.durability, phase.threads),
        };
        seconds += time(phase.limit);
        seconds += match phase.warmup {
            None => 0.0,
            Some(Warmup::For(limit)) => time(limit),
            Some(Warmup::Settled { least, most, .. }) => (least + most) / 2.0,
        };
    }
    let read = case.phases.iter().filter(|phase| phase.reads_single_keys()).count();
    seconds +=
        plan.reference.as_ref().map_or(0.0, |(_, each, _)| 2.0 * BESIDE * each.as_secs_f64() * read as f64);
    if case.recovery {
        seconds += AROUND + case.setup.keys as f64 / READ_BACK;
    }
    Duration::from_secs_f64(seconds)
}

/// How long the reference of `plan` takes once.
pub(super) fn reference(plan: &Plan) -> Duration {
    plan.reference.as_ref().map_or(Duration::ZERO, |(_, each, _)| {
        *each * DEPTHS.len() as u32 + Duration::from_secs_f64(REFERENCE_FILE)
    })
}

/// `time` for people.
pub(super) fn text(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.0} min", seconds / 60.0) }
}
