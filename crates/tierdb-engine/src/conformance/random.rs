//! Random operations on one thread, and the reduction of those that fail.

use super::ops::{Step, generate};
use super::run::run;
use super::{Checked, Failure, Harness, guarded};
use fastrand::Rng;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Runs `ops` random operations from `seed` on an empty store, and compares every answer with a sorted map.
///
/// There are puts, deletes, batches, range deletes, reads, scans and cursors in both directions, snapshots
/// held over many writes, sync, flush, compact, verify; the store is closed or just dropped, and opened
/// again. Keys are few, with unusual ones among them, or many. Where [`Limits::may_fill`](super::Limits)
/// says so, a put may fail with `NoSpace`: the old value must then stay, and deletes must succeed.
///
/// # Errors
/// The seed, and a list of operations from which none can be left out without the failure going away.
pub fn random_ops(harness: &mut dyn Harness, seed: u64, ops: usize) -> Checked {
    let steps = generate(&mut Rng::with_seed(seed), ops, &harness.limits());
    match attempt(harness, &steps) {
        Ok(()) => Ok(()),
        Err((at, failure)) => Err(reduced(harness, seed, steps, at, failure)),
    }
}

/// Runs `steps`; a panic counts as a failure of the last one.
fn attempt(harness: &mut dyn Harness, steps: &[Step]) -> Result<(), (usize, Failure)> {
    let mut place = steps.len();
    let ran = guarded(|| {
        run(harness, steps).map_err(|(at, failure)| {
            place = at;
            failure
        })
    });
    ran.map_err(|failure| (place, failure))
}

fn reduced(harness: &mut dyn Harness, seed: u64, steps: Vec<Step>, at: usize, failure: Failure) -> Failure {
    let of = steps.len();
    let mut text = format!("{}, seed {seed}, {of} operations: {failure}", harness.describe());
    let mut best = Reduction { steps, failure: None };
    best.steps.truncate(at + 1);
    let deadline = Instant::now() + Duration::from_secs(60);
    let whole = best.steps.clone();
    if best.accept(harness, whole) {
        let mut chunk = best.steps.len() / 2;
        while chunk > 0 {
            let mut from = 0;
            while from < best.steps.len() && Instant::now() < deadline {
                let mut fewer = best.steps.clone();
                fewer.drain(from..(from + chunk).min(fewer.len()));
                if !best.accept(harness, fewer) {
                    from += chunk;
                }
            }
            chunk /= 2;
        }
    }
    match best.failure {
        Some(failure) => {
            let _ = write!(text, "\nreduced to {} operations: {failure}", best.steps.len());
            for (i, step) in best.steps.iter().enumerate() {
                let _ = write!(text, "\n  {i}: {step}");
            }
        }
        None => {
            text.push_str("\nthe same operations did not fail again: the failure depends on time or threads")
        }
    }
    Failure::new(text)
}

/// The shortest list so far that still fails, and how.
struct Reduction {
    steps: Vec<Step>,
    failure: Option<Failure>,
}

impl Reduction {
    fn accept(&mut self, harness: &mut dyn Harness, steps: Vec<Step>) -> bool {
        let Err((_, failure)) = attempt(harness, &steps) else { return false };
        *self = Reduction { steps, failure: Some(failure) };
        true
    }
}
