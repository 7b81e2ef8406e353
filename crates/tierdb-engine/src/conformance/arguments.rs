//! Calls that must be refused, on every path, before anything changes.

use super::oracle::Content;
use super::values::value;
use super::{Checked, Harness, Unexpected, ensure, fail, open_empty};
use crate::batch::WriteBatch;
use crate::engine::{Durability, Engine, KeyRange};
use std::ops::Bound;
use tierdb_base::{Error, ErrorKind, MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, Result};

/// Checks that empty and over-long keys, and over-long values and batches, are refused as `Invalid` by each
/// method that takes them and change nothing; that what is just within a limit is accepted; and that bounds
/// and seeks take any byte string.
///
/// # Errors
/// The first path that accepts what it must refuse, refuses what it must accept, or has an effect.
pub fn argument_limits(harness: &mut dyn Harness) -> Checked {
    let limits = harness.limits();
    let engine = open_empty(harness)?;
    let engine = &*engine;
    let longest = vec![b'k'; MAX_KEY_BYTES];
    for key in [&b"a"[..], b"\x00", b"\xff", &longest] {
        engine
            .put(key, b"kept", Durability::Durable)
            .during(|| format!("put of a {} byte key", key.len()))?;
    }
    let before = Content::read(engine)?;
    let snapshot = engine.snapshot().during(|| "snapshot".into())?;
    let too_long = vec![b'k'; MAX_KEY_BYTES + 1];
    for (name, key) in [("an empty key", &b""[..]), ("a key over its limit", &too_long)] {
        let too_large = !key.is_empty();
        refused(too_large, engine.get(key), || format!("get of {name}"))?;
        refused(too_large, engine.contains(key), || format!("contains of {name}"))?;
        refused(too_large, engine.get_at(key, &snapshot), || format!("get_at of {name}"))?;
        let mut found = engine.multi_get(&[b"a", key, b"\xff"]).into_iter();
        for good in [true, false, true] {
            let Some(result) = found.next() else { fail!("multi_get gives fewer results than keys") };
            if good {
                let kept = result.during(|| format!("multi_get of a good key beside {name}"))?;
                ensure!(kept.as_deref() == Some(b"kept"), "multi_get loses a good key beside {name}");
            } else {
                refused(too_large, result, || format!("multi_get of {name}"))?;
            }
        }
        for durability in [Durability::Durable, Durability::Grouped] {
            refused(too_large, engine.put(key, b"v", durability), || format!("put of {name}"))?;
            refused(too_large, engine.delete(key, durability), || format!("delete of {name}"))?;
        }
        let mut batch = WriteBatch::new();
        refused(too_large, batch.put(key, "v").map(drop), || format!("put of {name} in a batch"))?;
        refused(too_large, batch.delete(key).map(drop), || format!("delete of {name} in a batch"))?;
        ensure!(batch.is_empty(), "a refused write stays in the batch");
    }
    let big = vec![0; MAX_VALUE_BYTES + 1];
    for durability in [Durability::Durable, Durability::Grouped] {
        refused(true, engine.put(b"a", &big, durability), || "put of a value over its limit".into())?;
    }
    let mut batch = WriteBatch::new();
    refused(true, batch.put("a", big).map(drop), || "put of a value over its limit in a batch".into())?;
    batch.put("a", vec![0; MAX_BATCH_BYTES - 2]).during(|| "fill a batch".into())?;
    batch.delete("b").during(|| "fill a batch".into())?;
    refused(true, batch.delete("c").map(drop), || "a batch over its limit".into())?;
    drop(batch);
    unchanged(engine, &before)?;

    engine.write(&WriteBatch::new(), Durability::Durable).during(|| "write of an empty batch".into())?;
    for bound in [&b""[..], &too_long] {
        let range = KeyRange { start: Bound::Included(bound.into()), end: Bound::Excluded(bound.into()) };
        let mut cursor = engine.cursor(range.clone(), None).during(|| "cursor with odd bounds".into())?;
        cursor.seek(bound);
        let entry = cursor.next().during(|| "next in an empty range".into())?;
        ensure!(entry.is_none(), "an empty range has an entry");
        let deleted = engine
            .delete_range(&range, Durability::Durable)
            .during(|| "delete_range with odd bounds".into())?;
        ensure!(deleted == 0, "delete_range of an empty range deletes {deleted} keys");
    }
    unchanged(engine, &before)?;

    let largest = value(1, limits.value_len(MAX_VALUE_BYTES));
    engine
        .put(&longest, &largest, Durability::Durable)
        .during(|| format!("put of {} bytes", largest.len()))?;
    let found = engine.get(&longest).during(|| "get of the largest value".into())?;
    ensure!(found.as_deref() == Some(&largest), "the largest value under the longest key comes back changed");
    Ok(())
}

/// Checks that a closed engine refuses every call, that closing again does nothing, and that what was
/// written is there on the next open, where snapshots of before are refused.
///
/// # Errors
/// The first call that works on a closed engine, or what was lost.
pub fn closed_engine_refuses(harness: &mut dyn Harness) -> Checked {
    let engine = open_empty(harness)?;
    let durability = Durability::Grouped;
    engine.put(b"k", b"v", durability).during(|| "put".into())?;
    let snapshot = engine.snapshot().during(|| "snapshot".into())?;
    let mut batch = WriteBatch::new();
    batch.put("k", "late").during(|| "batch".into())?;
    engine.close().during(|| "close".into())?;
    let on_closed =
        |name: &str, result: Result<()>| refused(false, result, || format!("{name} of a closed engine"));
    on_closed("get", engine.get(b"k").map(drop))?;
    on_closed("contains", engine.contains(b"k").map(drop))?;
    on_closed("get_at", engine.get_at(b"k", &snapshot).map(drop))?;
    on_closed("multi_get", engine.multi_get(&[b"k"]).into_iter().try_for_each(|found| found.map(drop)))?;
    on_closed("put", engine.put(b"k", b"late", durability))?;
    on_closed("delete", engine.delete(b"k", durability))?;
    on_closed("write", engine.write(&batch, durability))?;
    on_closed("delete_range", engine.delete_range(&KeyRange::all(), durability).map(drop))?;
    on_closed("snapshot", engine.snapshot().map(drop))?;
    on_closed("cursor", engine.cursor(KeyRange::all(), None).map(drop))?;
    on_closed("sync", engine.sync())?;
    on_closed("flush", engine.flush())?;
    on_closed("compact", engine.compact())?;
    on_closed("verify", engine.verify().map(drop))?;
    engine.close().during(|| "second close".into())?;
    drop(engine);
    let engine = harness.open().during(|| "open after close".into())?;
    refused(false, engine.get_at(b"k", &snapshot), || "get_at of a snapshot of before".into())?;
    refused(false, engine.cursor(KeyRange::all(), Some(&snapshot)).map(drop), || {
        "a cursor with a snapshot of before".into()
    })?;
    drop(snapshot);
    let found = engine.get(b"k").during(|| "get after close and open".into())?;
    ensure!(found.as_deref() == Some(b"v"), "a write is lost by closing");
    Ok(())
}

fn refused<T>(too_large: bool, result: Result<T>, what: impl Fn() -> String) -> Checked {
    match result {
        Ok(_) => fail!("{} is accepted", what()),
        Err(error) if error.kind() != ErrorKind::Invalid => {
            fail!("{} gives an error of kind {:?}, not Invalid: {error}", what(), error.kind())
        }
        Err(Error::TooLarge { .. }) if too_large => Ok(()),
        Err(error) if too_large => fail!("{} should give the limit (TooLarge), not: {error}", what()),
        Err(_) => Ok(()),
    }
}

fn unchanged(engine: &dyn Engine, before: &Content) -> Checked {
    ensure!(Content::read(engine)? == *before, "calls that were refused, or empty, have changed the store");
    Ok(())
}
