//! A tier fills up, and is emptied again.

use super::oracle::{Content, Oracle};
use super::values::value;
use super::{Checked, Harness, Unexpected, ensure, fail, open_empty};
use crate::engine::{Durability, Engine, KeyRange};
use std::time::{Duration, Instant};
use tierdb_base::{Error, ErrorKind, Result};

/// Bytes of values after which a store that was said to fill up should have.
const ENOUGH: usize = 4 << 30;

/// Fills the store until puts fail with `NoSpace`, and checks that then everything is still readable, that
/// deletes succeed, and that puts succeed again by themselves after deletes; several times, and after
/// opening again. For stores that are small: of [`Limits::may_fill`](super::Limits).
///
/// # Errors
/// What is lost, what a full store refuses, or that it stays full.
pub fn full_store_recovers(harness: &mut dyn Harness) -> Checked {
    let limits = harness.limits();
    ensure!(limits.may_fill, "the store is not one that may fill up");
    let lens = [limits.value_len(100), limits.value_len(5000), limits.value_len(100_000)];
    let mut engine = open_empty(harness)?;
    let mut oracle = Oracle::new();
    for round in 0..3 {
        let len = lens[round % lens.len()];
        let mut count = 0;
        let refusal = loop {
            ensure!(
                count * len.max(1) < ENOUGH,
                "round {round}: {count} values of {len} bytes do not fill it"
            );
            let key = format!("round{round}-{count:08}").into_bytes();
            match put(&*engine, &mut oracle, &key, &value(count as u64, len)) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        ensure!(refusal.kind() == ErrorKind::NoSpace, "round {round}: a full store gives: {refusal}");
        ensure!(count > 0, "round {round}: there is no space for a single value");
        check(&oracle, &*engine, &format!("round {round}: full with {count} values of {len} bytes"))?;

        let half = KeyRange::half_open(format!("round{round}-"), format!("round{round}-{:08}", count / 2));
        let ticket = oracle.delete_range(&half, Durability::Durable);
        let deleted = engine
            .delete_range(&half, Durability::Durable)
            .during(|| "delete_range on a full store".into())?;
        oracle.returned(ticket);
        ensure!(deleted == count as u64 / 2, "delete_range deletes {deleted} keys, not {}", count / 2);
        for i in count / 2..count {
            let key = format!("round{round}-{i:08}").into_bytes();
            let ticket = oracle.delete(&key, Durability::Durable);
            engine.delete(&key, Durability::Durable).during(|| "delete on a full store".into())?;
            oracle.returned(ticket);
        }
        let deadline = Instant::now() + limits.patience;
        while let Err(error) = put(&*engine, &mut oracle, b"again", &value(0, len)) {
            ensure!(error.kind() == ErrorKind::NoSpace, "round {round}: an emptied store gives: {error}");
            ensure!(
                Instant::now() < deadline,
                "round {round}: emptied, and still full after {:?}: {error}",
                limits.patience
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        check(&oracle, &*engine, "after it was emptied")?;
        engine.close().during(|| "close".into())?;
        drop(engine);
        engine = harness.open().during(|| "open again".into())?;
        check(&oracle, &*engine, "after opening again")?;
    }
    Ok(())
}

fn put(engine: &dyn Engine, oracle: &mut Oracle, key: &[u8], value: &[u8]) -> Result<(), Error> {
    let ticket = oracle.put(key, value, Durability::Durable);
    let result = engine.put(key, value, Durability::Durable);
    match result {
        Ok(()) => oracle.returned(ticket),
        Err(_) => oracle.refused(ticket),
    }
    result
}

fn check(oracle: &Oracle, engine: &dyn Engine, when: &str) -> Checked<Content> {
    match oracle.check(engine) {
        Ok(content) => Ok(content),
        Err(failure) => fail!("{when}: {failure}"),
    }
}
