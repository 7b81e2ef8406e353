//! Threads that live only for a few writes.

use super::values::{tag_of, value};
use super::{Checked, Harness, Unexpected, ensure, fail, guarded, open_empty};
use crate::engine::{Durability, Engine, KeyRange};
use std::thread;
use tierdb_base::ErrorKind;

/// Threads that run at once.
const AT_ONCE: usize = 8;
/// Keys that each thread writes.
const KEYS: usize = 6;

/// Lets `threads` short-lived threads write keys of their own, a few at a time, and checks that all that
/// they wrote is there, also after opening again. State that an engine keeps for each thread must not
/// run out, and must not be lost when its thread ends.
///
/// # Errors
/// What is missing, or the error of a call.
pub fn threads_come_and_go(harness: &mut dyn Harness, threads: usize) -> Checked {
    let may_fill = harness.limits().may_fill;
    let len = harness.limits().value_len(200).max(8);
    let engine = open_empty(harness)?;
    let mut written = 0;
    for first in (0..threads).step_by(AT_ONCE) {
        let counts = thread::scope(|scope| {
            let engine = &*engine;
            let running: Vec<_> = (first..threads.min(first + AT_ONCE))
                .map(|id| scope.spawn(move || live(engine, id, len, may_fill)))
                .collect();
            running
                .into_iter()
                .map(|thread| {
                    thread.join().unwrap_or(Err(crate::conformance::Failure::new("a thread panicked")))
                })
                .collect::<Checked<Vec<u64>>>()
        })?;
        written += counts.iter().sum::<u64>();
    }
    count(&*engine, written)?;
    engine.close().during(|| "close".into())?;
    drop(engine);
    let engine = harness.open().during(|| "open again".into())?;
    count(&*engine, written).map_err(|failure| failure.during("after opening again"))
}

/// Writes some keys, deletes one of them, reads all. Returns how many are left.
fn live(engine: &dyn Engine, id: usize, len: usize, may_fill: bool) -> Checked<u64> {
    let key = |i: usize| format!("thread{id:06}-{i}").into_bytes();
    let mut left = 0;
    guarded(|| {
        for i in 0..KEYS {
            match engine.put(&key(i), &value(id as u64, len), Durability::Durable) {
                Ok(()) => left += 1,
                Err(error) if may_fill && error.kind() == ErrorKind::NoSpace => {}
                Err(error) => fail!("thread {id}: put: {error}"),
            }
        }
        if engine.get(&key(0)).during(|| "get".into())?.is_some() {
            engine.delete(&key(0), Durability::Durable).during(|| "delete".into())?;
            left -= 1;
        }
        ensure!(
            engine.get(&key(0)).during(|| "get".into())?.is_none(),
            "thread {id}: a deleted key is there"
        );
        Ok(())
    })?;
    Ok(left)
}

fn count(engine: &dyn Engine, written: u64) -> Checked {
    let mut cursor = engine.cursor(KeyRange::all(), None).during(|| "cursor".into())?;
    let mut found = 0;
    while let Some((key, value)) = cursor.next().during(|| "next".into())? {
        let tag = tag_of(&value)?;
        let owner = format!("thread{tag:06}-");
        ensure!(key.starts_with(owner.as_bytes()), "a key has the value of another thread's key");
        found += 1;
    }
    ensure!(
        found == written,
        "{found} keys are there, and {written} were written by threads that have ended"
    );
    Ok(())
}
