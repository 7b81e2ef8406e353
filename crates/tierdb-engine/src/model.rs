//! The contract in its simplest form: a sorted map in memory under one lock.
//!
//! It is what the conformance suite is tested with, and a stand-in for a real engine in other tests. It
//! keeps nothing beyond the process: every durability is the same to it.
//!
//! Invariants
//! 1. The versions of a key have rising seqnos, all above zero. The last one is what `get` sees.
//! 2. Of the versions that no open snapshot and no `get` can see, none is kept.

use crate::batch::{Op, WriteBatch};
use crate::engine::{Cursor, Durability, Engine, KeyRange, Snapshot};
use crate::stats::{Stats, TierStats};
use crate::value::Value;
use crate::verify::VerifyReport;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_base::{Error, Result, Seqno, TierRole, check_key, check_value};

/// What a [`ModelEngine`] stores, so that it can be closed and opened again.
#[derive(Clone, Default)]
pub struct ModelStore(Arc<RwLock<State>>);

impl ModelStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens it.
    ///
    /// # Errors
    /// `Locked` while an engine has it open.
    pub fn open(&self) -> Result<ModelEngine> {
        let mut state = self.0.write();
        if state.holder.is_some() {
            return Err(Error::Locked { path: PathBuf::from("model"), holder: "this process".into() });
        }
        state.opened += 1;
        let opening = state.opened;
        state.holder = Some(opening);
        Ok(ModelEngine { state: self.0.clone(), opening, counts: Counts::default() })
    }
}

/// An engine in memory. Dropping it leaves its [`ModelStore`] as it is.
pub struct ModelEngine {
    state: Arc<RwLock<State>>,
    /// Which opening of the store this is.
    opening: u64,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    gets: AtomicU64,
    puts: AtomicU64,
    deletes: AtomicU64,
    batches: AtomicU64,
    written: AtomicU64,
}

struct Version {
    seqno: Seqno,
    /// `None` says that the key was deleted.
    value: Option<Arc<[u8]>>,
}

#[derive(Default)]
struct State {
    /// How often the store was opened.
    opened: u64,
    /// The opening that has it open now.
    holder: Option<u64>,
    keys: BTreeMap<Vec<u8>, Vec<Version>>,
    last: Seqno,
    /// Open snapshots: how many there are of each seqno.
    pins: BTreeMap<Seqno, usize>,
    /// Keys that have versions which only snapshots see.
    history: BTreeSet<Vec<u8>>,
}

impl State {
    fn at(&self, key: &[u8], seqno: Seqno) -> Option<&Arc<[u8]>> {
        let versions = self.keys.get(key)?;
        versions.iter().rev().find(|version| version.seqno <= seqno)?.value.as_ref()
    }

    fn entries(&self, range: &KeyRange, seqno: Seqno) -> Vec<(Vec<u8>, Value)> {
        let lower = match &range.start {
            Bound::Included(key) => Bound::Included(key.as_slice()),
            Bound::Excluded(key) => Bound::Excluded(key.as_slice()),
            Bound::Unbounded => Bound::Unbounded,
        };
        self.keys
            .range::<[u8], _>((lower, Bound::Unbounded))
            .take_while(|(key, _)| !range.is_after(key))
            .filter_map(|(key, _)| Some((key.clone(), share(self.at(key, seqno)?))))
            .collect()
    }

    fn apply(&mut self, key: &[u8], seqno: Seqno, value: Option<Arc<[u8]>>) {
        let versions = self.keys.entry(key.to_vec()).or_default();
        // Of two writes of one key in a batch, the later counts.
        versions.retain(|version| version.seqno != seqno);
        versions.push(Version { seqno, value });
        if self.prune(key) {
            self.history.insert(key.to_vec());
        }
    }

    /// Drops the versions of `key` that nobody can see. Returns whether some are left for snapshots.
    fn prune(&mut self, key: &[u8]) -> bool {
        let Some(versions) = self.keys.get_mut(key) else { return false };
        for i in (0..versions.len().saturating_sub(1)).rev() {
            let replaced = versions[i + 1].seqno;
            if self.pins.range(versions[i].seqno..replaced).next().is_none() {
                versions.remove(i);
            }
        }
        if versions.iter().all(|version| version.value.is_none()) {
            self.keys.remove(key);
            return false;
        }
        versions.len() > 1
    }

    fn forget_history(&mut self) {
        for key in std::mem::take(&mut self.history) {
            if self.prune(&key) {
                self.history.insert(key);
            }
        }
    }

    fn live(&self) -> impl Iterator<Item = (&Vec<u8>, &Arc<[u8]>)> {
        self.keys.iter().filter_map(|(key, versions)| Some((key, versions.last()?.value.as_ref()?)))
    }
}

fn share(bytes: &Arc<[u8]>) -> Value {
    Value::shared(bytes.clone(), 0..bytes.len())
}

/// Gives up a snapshot's seqno when its last clone is dropped.
struct Pin {
    state: Arc<RwLock<State>>,
    /// Of the engine that took it.
    opening: u64,
    seqno: Seqno,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.state.write();
        if let Some(count) = state.pins.get_mut(&self.seqno) {
            *count -= 1;
            if *count == 0 {
                state.pins.remove(&self.seqno);
                state.forget_history();
            }
        }
    }
}

impl ModelEngine {
    fn check_own(&self, snapshot: &Snapshot) -> Result<()> {
        let is_own = |pin: &Pin| Arc::ptr_eq(&pin.state, &self.state) && pin.opening == self.opening;
        snapshot.check_own(is_own)
    }

    /// An empty store, opened.
    pub fn new() -> Self {
        let state = State { opened: 1, holder: Some(1), ..State::default() };
        ModelEngine { state: Arc::new(RwLock::new(state)), opening: 1, counts: Counts::default() }
    }

    fn read(&self) -> Result<RwLockReadGuard<'_, State>> {
        let state = self.state.read();
        if state.holder == Some(self.opening) { Ok(state) } else { Err(closed()) }
    }

    fn release(&self) {
        let mut state = self.state.write();
        if state.holder == Some(self.opening) {
            state.holder = None;
        }
    }

    fn change(&self) -> Result<RwLockWriteGuard<'_, State>> {
        let state = self.state.write();
        if state.holder == Some(self.opening) { Ok(state) } else { Err(closed()) }
    }
}

impl Default for ModelEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ModelEngine {
    fn drop(&mut self) {
        self.release();
    }
}

fn closed() -> Error {
    Error::invalid("the store is closed: open it again")
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

impl Engine for ModelEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        check_key(key)?;
        count(&self.counts.gets, 1);
        let state = self.read()?;
        Ok(state.at(key, state.last).map(share))
    }

    fn get_at(&self, key: &[u8], snapshot: &Snapshot) -> Result<Option<Value>> {
        check_key(key)?;
        count(&self.counts.gets, 1);
        let state = self.read()?;
        self.check_own(snapshot)?;
        Ok(state.at(key, snapshot.seqno()).map(share))
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Vec<Result<Option<Value>>> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    fn put(&self, key: &[u8], value: &[u8], _durability: Durability) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        let mut state = self.change()?;
        state.last += 1;
        let seqno = state.last;
        state.apply(key, seqno, Some(Arc::from(value)));
        count(&self.counts.puts, 1);
        count(&self.counts.written, (key.len() + value.len()) as u64);
        Ok(())
    }

    fn delete(&self, key: &[u8], _durability: Durability) -> Result<()> {
        check_key(key)?;
        let mut state = self.change()?;
        state.last += 1;
        let seqno = state.last;
        state.apply(key, seqno, None);
        count(&self.counts.deletes, 1);
        count(&self.counts.written, key.len() as u64);
        Ok(())
    }

    fn write(&self, batch: &WriteBatch, _durability: Durability) -> Result<()> {
        let mut state = self.change()?;
        state.last += 1;
        let seqno = state.last;
        for op in batch.ops() {
            match op {
                Op::Put { key, value } => state.apply(key, seqno, Some(Arc::from(value.as_slice()))),
                Op::Delete { key } => state.apply(key, seqno, None),
            }
        }
        count(&self.counts.batches, 1);
        count(&self.counts.written, batch.bytes() as u64);
        Ok(())
    }

    fn delete_range(&self, range: &KeyRange, _durability: Durability) -> Result<u64> {
        let mut state = self.change()?;
        let entries = state.entries(range, state.last);
        state.last += 1;
        let seqno = state.last;
        for (key, _) in &entries {
            state.apply(key, seqno, None);
            count(&self.counts.written, key.len() as u64);
        }
        count(&self.counts.deletes, entries.len() as u64);
        Ok(entries.len() as u64)
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let mut state = self.change()?;
        let seqno = state.last;
        *state.pins.entry(seqno).or_insert(0) += 1;
        Ok(Snapshot::new(seqno, Arc::new(Pin { state: self.state.clone(), opening: self.opening, seqno })))
    }

    fn cursor(&self, range: KeyRange, snapshot: Option<&Snapshot>) -> Result<Box<dyn Cursor + '_>> {
        let state = self.read()?;
        snapshot.map_or(Ok(()), |snapshot| self.check_own(snapshot))?;
        let seqno = snapshot.map_or(state.last, Snapshot::seqno);
        Ok(Box::new(ListCursor::new(state.entries(&range, seqno))))
    }

    fn sync(&self) -> Result<()> {
        self.read().map(drop)
    }

    fn flush(&self) -> Result<()> {
        self.read().map(drop)
    }

    fn compact(&self) -> Result<()> {
        self.read().map(drop)
    }

    fn verify(&self) -> Result<VerifyReport> {
        let state = self.read()?;
        let bytes_checked = state.live().map(|(key, value)| (key.len() + value.len()) as u64).sum();
        Ok(VerifyReport { keys_checked: state.live().count() as u64, bytes_checked, damage: Vec::new() })
    }

    fn stats(&self) -> Stats {
        let state = self.state.read();
        let used = state.live().map(|(key, value)| (key.len() + value.len()) as u64).sum();
        let counted = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            engine: "model",
            mode: "in memory".into(),
            keys: state.live().count() as u64,
            keys_estimated: false,
            memory: vec![("entries", used)],
            memory_budget: u64::MAX,
            tiers: vec![TierStats {
                role: TierRole::Fast,
                path: "memory".into(),
                medium: "DRAM, nothing is kept".into(),
                capacity: u64::MAX,
                used,
                parts: vec![("entries", used)],
                io: Vec::new(),
            }],
            user_bytes_written: counted(&self.counts.written),
            operations: vec![
                ("get", counted(&self.counts.gets)),
                ("put", counted(&self.counts.puts)),
                ("delete", counted(&self.counts.deletes)),
                ("batch", counted(&self.counts.batches)),
            ],
            ..Stats::default()
        }
    }

    fn close(&self) -> Result<()> {
        self.release();
        Ok(())
    }
}

/// A cursor over entries that were collected beforehand.
///
/// The simplest cursor that is right: the conformance suite says with it what another should give.
pub struct ListCursor<V> {
    entries: Vec<(Vec<u8>, V)>,
    /// Entries below the cursor; `None` before the first move.
    below: Option<usize>,
}

impl<V> ListCursor<V> {
    /// A new cursor over `entries`, which are in key order.
    pub fn new(entries: Vec<(Vec<u8>, V)>) -> Self {
        ListCursor { entries, below: None }
    }

    /// As [`Cursor::next`].
    #[expect(clippy::should_implement_trait, reason = "it goes both ways, as `Cursor` does")]
    pub fn next(&mut self) -> Option<&(Vec<u8>, V)> {
        let below = self.below.unwrap_or(0);
        let entry = self.entries.get(below);
        self.below = Some(below + usize::from(entry.is_some()));
        entry
    }

    /// As [`Cursor::prev`].
    pub fn prev(&mut self) -> Option<&(Vec<u8>, V)> {
        let below = self.below.unwrap_or(self.entries.len());
        self.below = Some(below.saturating_sub(1));
        self.entries.get(below.checked_sub(1)?)
    }

    /// As [`Cursor::seek`].
    pub fn seek(&mut self, key: &[u8]) {
        self.below = Some(self.entries.partition_point(|(entry, _)| entry.as_slice() < key));
    }

    /// As [`Cursor::seek_to_first`].
    pub fn seek_to_first(&mut self) {
        self.below = Some(0);
    }

    /// As [`Cursor::seek_to_last`].
    pub fn seek_to_last(&mut self) {
        self.below = Some(self.entries.len());
    }
}

impl Cursor for ListCursor<Value> {
    fn next(&mut self) -> Result<Option<(Vec<u8>, Value)>> {
        Ok(self.next().cloned())
    }

    fn prev(&mut self) -> Result<Option<(Vec<u8>, Value)>> {
        Ok(self.prev().cloned())
    }

    fn seek(&mut self, key: &[u8]) {
        self.seek(key);
    }

    fn seek_to_first(&mut self) {
        self.seek_to_first();
    }

    fn seek_to_last(&mut self) {
        self.seek_to_last();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_kept_while_a_snapshot_sees_them() {
        let store = ModelStore::new();
        let engine = store.open().expect("open");
        assert!(store.open().is_err(), "one engine at a time");
        for value in ["1", "2"] {
            engine.put(b"k", value.as_bytes(), Durability::Durable).expect("put");
        }
        let two = engine.snapshot().expect("snapshot");
        engine.delete(b"k", Durability::Durable).expect("delete");
        engine.put(b"k", b"3", Durability::Durable).expect("put");
        engine.delete(b"k", Durability::Durable).expect("delete");
        assert_eq!(engine.get_at(b"k", &two).expect("get").expect("seen"), b"2");
        assert!(engine.get(b"k").expect("get").is_none());
        assert_eq!(engine.stats().keys, 0);
        assert_eq!(store.0.read().keys[b"k".as_slice()].len(), 2, "only what someone can see is kept");
        drop(two);
        assert!(store.0.read().keys.is_empty(), "nothing is kept for nobody");
        engine.close().expect("close");
        let again = store.open().expect("open again");
        drop(engine);
        again.get(b"k").expect("the old engine's end does not close the new one");
    }

    #[test]
    fn a_cursor_stands_between_entries() {
        let mut cursor = ListCursor::new(vec![(b"a".to_vec(), 1), (b"c".to_vec(), 2)]);
        assert_eq!(cursor.prev().map(|e| e.1), Some(2), "a new cursor is after the last for prev");
        assert_eq!(cursor.next().map(|e| e.1), Some(2), "turning gives the same entry again");
        assert!(cursor.next().is_none() && cursor.next().is_none());
        assert_eq!(cursor.prev().map(|e| e.1), Some(2), "at an end it stays there");
        cursor.seek(b"b");
        assert_eq!(cursor.prev().map(|e| e.1), Some(1));
        assert!(cursor.prev().is_none());
        assert_eq!(cursor.next().map(|e| e.1), Some(1));
    }
}
