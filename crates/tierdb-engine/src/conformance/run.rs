//! Runs operations on an engine and on the oracle's state, and compares.

use super::ops::{Move, SLOTS, Spec, Step};
use super::oracle::{Bytes, Content, Map, Oracle, Ticket};
use super::values::{show, value};
use super::{Checked, Failure, Harness, Limits, Unexpected, ensure, fail, open_empty};
use crate::batch::WriteBatch;
use crate::engine::{Cursor, Engine, KeyRange, Snapshot};
use crate::model::ListCursor;
use crate::value::Value;
use std::sync::Arc;
use tierdb_base::hex::printable;
use tierdb_base::{Error, ErrorKind, Result};

/// Runs `steps` on an empty store. Says at which step it failed.
pub(super) fn run(harness: &mut dyn Harness, steps: &[Step]) -> std::result::Result<(), (usize, Failure)> {
    let mut at = 0;
    run_counting(harness, steps, &mut at).map_err(|failure| {
        let step = steps.get(at).map_or("the final check".into(), |step| format!("operation {at} ({step})"));
        (at, failure.during(step))
    })
}

fn run_counting(harness: &mut dyn Harness, steps: &[Step], at: &mut usize) -> Checked {
    let limits = harness.limits();
    let mut oracle = Oracle::new();
    let mut engine = open_empty(harness)?;
    loop {
        let mut session = Session {
            engine: &*engine,
            limits,
            oracle: &mut oracle,
            snapshots: [const { None }; SLOTS],
            cursors: [const { None }; SLOTS],
        };
        while let Some(step) = steps.get(*at)
            && !matches!(step, Step::Close | Step::Drop)
        {
            session.step(step)?;
            *at += 1;
        }
        session.everything()?;
        drop(session);
        if !matches!(steps.get(*at), Some(Step::Drop)) {
            let ticket = oracle.sync();
            engine.close().during(|| "close".into())?;
            oracle.returned(ticket);
        }
        drop(engine);
        engine = harness.open().during(|| "open again".into())?;
        let content = oracle.check(&*engine).map_err(|failure| failure.during("after opening again"))?;
        oracle.adopt(&content);
        if *at >= steps.len() {
            return Ok(());
        }
        *at += 1;
    }
}

/// The engine's cursor, and one that is right.
type Cursors<'e> = (Box<dyn Cursor + 'e>, ListCursor<Bytes>);

/// The operations between one open and the next.
struct Session<'e, 'o> {
    engine: &'e dyn Engine,
    limits: Limits,
    oracle: &'o mut Oracle,
    snapshots: [Option<(Snapshot, Arc<Map>)>; SLOTS],
    cursors: [Option<Cursors<'e>>; SLOTS],
}

impl Session<'_, '_> {
    fn step(&mut self, step: &Step) -> Checked {
        let engine = self.engine;
        match step {
            Step::Put(key, spec, durability) => {
                let value = value(spec.tag, spec.len);
                let ticket = self.oracle.put(key, &value, *durability);
                self.ended(ticket, engine.put(key, &value, *durability), true)
            }
            Step::Delete(key, durability) => {
                let ticket = self.oracle.delete(key, *durability);
                self.ended(ticket, engine.delete(key, *durability), false)
            }
            Step::Batch(ops, durability) => {
                let batch = batch(ops).during(|| "build the batch".into())?;
                let ticket = self.oracle.write(&batch, *durability);
                let has_put = ops.iter().any(|(_, value)| value.is_some());
                self.ended(ticket, engine.write(&batch, *durability), has_put)
            }
            Step::DeleteRange(range, durability) => {
                let expected = self.oracle.visible_in(range).count() as u64;
                let ticket = self.oracle.delete_range(range, *durability);
                let result = engine.delete_range(range, *durability);
                if let Ok(deleted) = result {
                    ensure!(deleted == expected, "it says {deleted} keys were there, not {expected}");
                }
                self.ended(ticket, result.map(drop), false)
            }
            Step::Get(key) => {
                let view = self.oracle.view();
                let is_there = engine.contains(key).during(|| "contains".into())?;
                let found = engine.get(key).during(|| "get".into())?;
                ensure!(is_there == found.is_some(), "contains of {} is {is_there}", printable(key));
                same(key, found.as_deref(), &view)
            }
            Step::MultiGet(keys) => {
                let view = self.oracle.view();
                let borrowed: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let found = engine.multi_get(&borrowed);
                ensure!(found.len() == keys.len(), "{} results for {} keys", found.len(), keys.len());
                for (key, found) in keys.iter().zip(found) {
                    same(key, found.during(|| format!("key {}", printable(key)))?.as_deref(), &view)?;
                }
                Ok(())
            }
            Step::Scan(range) => self.scan(range, None),
            Step::Snapshot(slot) => {
                let snapshot = engine.snapshot().during(|| "snapshot".into())?;
                self.snapshots[*slot] = Some((snapshot, self.oracle.view()));
                Ok(())
            }
            Step::Release(slot) => {
                self.snapshots[*slot] = None;
                Ok(())
            }
            Step::GetAt(slot, key) => {
                let Some((snapshot, view)) = &self.snapshots[*slot] else { return Ok(()) };
                same(key, engine.get_at(key, snapshot).during(|| "get_at".into())?.as_deref(), view)
            }
            Step::ScanAt(slot, range) => self.scan(range, Some(*slot)),
            Step::Open(slot, range, on) => {
                if let Some((snapshot, view)) = self.seen(*on) {
                    let cursor = engine.cursor(range.clone(), snapshot).during(|| "cursor".into())?;
                    self.cursors[*slot] = Some((cursor, ListCursor::new(entries(&view, range))));
                }
                Ok(())
            }
            Step::Move(slot, moves) => {
                let Some((cursor, expected)) = &mut self.cursors[*slot] else { return Ok(()) };
                for (i, step) in moves.iter().enumerate() {
                    go(step, &mut **cursor, expected)
                        .map_err(|failure| failure.during(format!("move {i}, {step}")))?;
                }
                Ok(())
            }
            Step::Shut(slot) => {
                self.cursors[*slot] = None;
                Ok(())
            }
            Step::Sync => {
                let ticket = self.oracle.sync();
                self.ended(ticket, engine.sync(), false)
            }
            Step::Flush => self.allow_full(engine.flush()).during(|| "flush".into()),
            Step::Compact => self.allow_full(engine.compact()).during(|| "compact".into()),
            Step::Verify => {
                let report = engine.verify().during(|| "verify".into())?;
                ensure!(report.is_clean(), "damage where nothing was damaged: {:?}", report.damage);
                let keys = self.oracle.visible().count() as u64;
                ensure!(report.keys_checked >= keys, "{} of {keys} keys were checked", report.keys_checked);
                Ok(())
            }
            Step::Everything => self.everything(),
            Step::Close | Step::Drop => Ok(()),
        }
    }

    /// A call of the engine has ended: the oracle learns how.
    fn ended(&mut self, ticket: Ticket, result: Result<()>, may_lack_space: bool) -> Checked {
        match result {
            Ok(()) => self.oracle.returned(ticket),
            Err(error) if may_lack_space && self.limits.may_fill && error.kind() == ErrorKind::NoSpace => {
                self.oracle.refused(ticket);
            }
            Err(error) => fail!("unexpected error: {error}"),
        }
        Ok(())
    }

    fn allow_full(&self, result: Result<()>) -> Result<()> {
        result.or_else(|error: Error| {
            if self.limits.may_fill && error.kind() == ErrorKind::NoSpace { Ok(()) } else { Err(error) }
        })
    }

    /// A snapshot and what it sees; without a slot what is visible now. `None` if the slot is empty.
    fn seen(&self, slot: Option<usize>) -> Option<(Option<&Snapshot>, Arc<Map>)> {
        match slot {
            None => Some((None, self.oracle.view())),
            Some(slot) => {
                self.snapshots[slot].as_ref().map(|(snapshot, view)| (Some(snapshot), view.clone()))
            }
        }
    }

    /// Scans a range forward and then backward.
    fn scan(&self, range: &KeyRange, slot: Option<usize>) -> Checked {
        let Some((snapshot, view)) = self.seen(slot) else { return Ok(()) };
        let mut expected = ListCursor::new(entries(&view, range));
        let mut cursor = self.engine.cursor(range.clone(), snapshot).during(|| "cursor".into())?;
        for step in [Move::Next, Move::Prev] {
            while go(&step, &mut *cursor, &mut expected).map_err(|failure| failure.during(&step))? {}
        }
        Ok(())
    }

    fn everything(&self) -> Checked {
        let content = Content::read(self.engine)?;
        let mut found = content.entries().iter();
        for (key, _) in self.oracle.visible() {
            let entry = found.next();
            ensure!(
                entry.is_some_and(|(found, _)| found == key),
                "a scan gives key {}, where {} comes next",
                entry.map_or("none".into(), |(found, _)| printable(found)),
                printable(key)
            );
        }
        if let Some((key, _)) = found.next() {
            fail!("a scan gives key {}, which is not there", printable(key));
        }
        let view = self.oracle.view();
        for (key, value) in content.entries() {
            same(key, Some(value), &view)?;
        }
        let keys = self.engine.stats().keys;
        ensure!(
            !self.limits.exact_key_count || keys == view.len() as u64,
            "the statistics count {keys} keys, not {}",
            view.len()
        );
        Ok(())
    }
}

fn batch(ops: &[(Vec<u8>, Option<Spec>)]) -> Result<WriteBatch> {
    let mut batch = WriteBatch::new();
    for (key, spec) in ops {
        match spec {
            Some(spec) => batch.put(key.as_slice(), value(spec.tag, spec.len))?,
            None => batch.delete(key.as_slice())?,
        };
    }
    Ok(batch)
}

fn entries(view: &Map, range: &KeyRange) -> Vec<(Vec<u8>, Bytes)> {
    let inside = view.iter().filter(|(key, _)| range.contains(key));
    inside.map(|(key, value)| (key.to_vec(), value.clone())).collect()
}

fn same(key: &[u8], found: Option<&[u8]>, view: &Map) -> Checked {
    let expected = view.get(key).map(|value| &**value);
    ensure!(found == expected, "key {}: found {}, expected {}", printable(key), show(found), show(expected));
    Ok(())
}

/// Moves both cursors and compares. Returns whether they moved over an entry.
fn go(step: &Move, cursor: &mut dyn Cursor, expected: &mut ListCursor<Bytes>) -> Checked<bool> {
    let (found, expected): (Option<(Vec<u8>, Value)>, _) = match step {
        Move::Next => (cursor.next().during(|| "next".into())?, expected.next()),
        Move::Prev => (cursor.prev().during(|| "prev".into())?, expected.prev()),
        Move::Seek(key) => {
            cursor.seek(key);
            expected.seek(key);
            return Ok(false);
        }
        Move::First => {
            cursor.seek_to_first();
            expected.seek_to_first();
            return Ok(false);
        }
        Move::Last => {
            cursor.seek_to_last();
            expected.seek_to_last();
            return Ok(false);
        }
    };
    match (&found, expected) {
        (None, None) => Ok(false),
        (Some((key, value)), Some((expected_key, expected)))
            if key == expected_key && value[..] == expected[..] =>
        {
            Ok(true)
        }
        _ => {
            let found = found.map(|(key, value)| format!("{} with {}", printable(&key), show(Some(&value))));
            let expected =
                expected.map(|(key, value)| format!("{} with {}", printable(key), show(Some(value))));
            let end = || "the end".to_string();
            fail!("the cursor gives {}, expected {}", found.unwrap_or_else(end), expected.unwrap_or_else(end))
        }
    }
}
