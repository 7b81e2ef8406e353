//! The model, broken on purpose in one way at a time.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;
use tierdb_base::{Error, Location, MAX_VALUE_BYTES, Result, TierRole, check_key, check_value};
use tierdb_engine::conformance::{Harness, Limits};
use tierdb_engine::model::ListCursor;
use tierdb_engine::{
    Cursor, Damage, Durability, Engine, KeyRange, ModelEngine, ModelStore, Op, Snapshot, Stats, Value,
    VerifyReport, WriteBatch,
};

/// What is wrong with an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Nothing.
    Nothing,
    /// Nothing: a dropped engine may lose its last grouped write.
    LosesTheLastGroupedWrite,
    /// One of the grouped writes is lost on drop, and later ones are kept.
    LosesAnEarlierGroupedWrite,
    /// The last durable write is lost on drop.
    LosesADurableWrite,
    /// The last write is lost on close.
    LosesTheLastWriteOnClose,
    DropsADelete,
    LosesAKeyOfABatch,
    FirstPutOfABatchWins,
    SnapshotSeesLaterWrites,
    TakesAnySnapshot,
    SnapshotLosesDeletedKeys,
    ScanOfASnapshotSeesLaterWrites,
    CursorSeesLaterWrites,
    CursorSkipsAnEntry,
    CursorTurnsOverAnEntry,
    CursorStaysPastTheEnd,
    SeekSkipsTheKey,
    PrevIgnoresTheBound,
    ExcludedStartIsIncluded,
    ReversedRangeIsTurned,
    MultiGetAnswersInKeyOrder,
    RangeDeleteMissesTheLastKey,
    RangeDeleteMiscounts,
    StaleReadSometimes,
    CutsLongValues,
    ConfusesLongKeys,
    EmptyValueIsAbsent,
    MiscountsKeys,
    ReportsDamage,
    Panics,
    AcceptsAnEmptyKey,
    AcceptsALongKeyInGetAt,
    MultiGetFailsAsAWhole,
    RefusesTheLongestKey,
    LongValueChangesTheStore,
    ReadsAfterClose,
    /// A thread sees the values that it has cached, until it writes.
    CachesForEachThread,
    /// A put is visible to others only with the next call of its thread.
    ShowsWritesLate,
    /// The writes of a batch are visible one after another.
    ShowsABatchInParts,
    /// A scan reads one half after the other.
    ScansInParts,
    /// The writes of a thread are lost from the hundredth thread on.
    ForgetsLateThreads,
    /// A put fails for lack of space, and is stored.
    StoresWhatItRefuses,
    /// A full store refuses deletes.
    RefusesDeletesWhenFull,
    /// A store that was full refuses puts for ever.
    StaysFull,
}

pub struct BrokenHarness {
    pub store: ModelStore,
    pub fault: Fault,
    /// Bytes it takes, if it may fill up.
    pub capacity: Option<u64>,
}

impl Harness for BrokenHarness {
    fn open(&mut self) -> Result<Box<dyn Engine>> {
        Ok(Box::new(Broken {
            inner: self.store.open()?,
            fault: self.fault,
            capacity: self.capacity.unwrap_or(u64::MAX),
            calls: AtomicU64::new(0),
            was_full: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            old: Mutex::default(),
            unsynced: Mutex::default(),
            threads: Mutex::default(),
        }))
    }

    fn reset(&mut self) -> Result<()> {
        self.store = ModelStore::new();
        Ok(())
    }

    fn describe(&self) -> String {
        format!("the model with the fault {:?}", self.fault)
    }

    fn limits(&self) -> Limits {
        let max_value_bytes = if self.capacity.is_some() { 20_000 } else { 600_000 };
        let patience = Duration::from_millis(100);
        Limits { max_value_bytes, may_fill: self.capacity.is_some(), patience, ..Limits::default() }
    }
}

/// A key with the value it had before it was written.
type Before = (Vec<u8>, Option<Value>);

struct Broken {
    inner: ModelEngine,
    fault: Fault,
    capacity: u64,
    calls: AtomicU64,
    was_full: AtomicBool,
    closed: AtomicBool,
    /// The value before the last, of each key.
    old: Mutex<HashMap<Vec<u8>, Option<Value>>>,
    /// Writes since the last sync or durable write; the last of these where that is what is lost.
    unsynced: Mutex<Vec<Vec<Before>>>,
    threads: Mutex<HashMap<ThreadId, OfThread>>,
}

/// What an engine keeps for a thread.
#[derive(Default)]
struct OfThread {
    cached: HashMap<Vec<u8>, (Option<Value>, u32)>,
    late: Option<(Vec<u8>, Vec<u8>)>,
}

impl Broken {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// Whether it has the fault, and this is the `n`th, the `2n`th, ... time.
    fn every(&self, n: u64, fault: Fault) -> bool {
        self.is(fault) && (self.calls.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(n)
    }

    fn of_thread<T>(&self, work: impl FnOnce(&mut OfThread) -> T) -> T {
        work(self.threads.lock().expect("not poisoned").entry(thread::current().id()).or_default())
    }

    /// Each call begins with this.
    fn arrive(&self) -> Result<()> {
        if self.is(Fault::ShowsWritesLate)
            && let Some((key, value)) = self.of_thread(|thread| thread.late.take())
        {
            self.inner.put(&key, &value, Durability::Durable)?;
        }
        Ok(())
    }

    /// Notes what writes replace, before they happen.
    fn replace(&self, keys: &[&[u8]], durability: Durability) -> Result<()> {
        self.arrive()?;
        self.of_thread(|thread| thread.cached.clear());
        let mut unsynced = self.unsynced.lock().expect("not poisoned");
        if durability == Durability::Durable {
            unsynced.clear();
        }
        let mut all = Vec::new();
        for key in keys {
            let Ok(before) = self.inner.get(key) else { continue };
            self.old.lock().expect("not poisoned").insert(key.to_vec(), before.clone());
            all.push((key.to_vec(), before));
        }
        let tracked = match self.fault {
            Fault::LosesADurableWrite => durability == Durability::Durable,
            Fault::LosesTheLastWriteOnClose => true,
            _ => durability == Durability::Grouped,
        };
        if tracked {
            unsynced.push(all);
        }
        Ok(())
    }

    fn undo(&self, write: Vec<Before>) {
        for (key, before) in write {
            let undone = match before {
                Some(value) => self.inner.put(&key, &value, Durability::Durable),
                None => self.inner.delete(&key, Durability::Durable),
            };
            undone.expect("the model writes");
        }
    }

    fn make_room(&self, len: usize) -> Result<()> {
        let used = self.inner.stats().tiers[0].used;
        let full = used + len as u64 > self.capacity;
        self.was_full.fetch_or(full, Ordering::Relaxed);
        if full || self.is(Fault::StaysFull) && self.was_full.load(Ordering::Relaxed) {
            return Err(Error::NoSpace {
                tier: TierRole::Flash,
                place: "memory".into(),
                used,
                capacity: self.capacity,
            });
        }
        Ok(())
    }

    fn refuse_delete(&self) -> Result<()> {
        if self.is(Fault::RefusesDeletesWhenFull) { self.make_room(2000) } else { Ok(()) }
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        let mut unsynced = std::mem::take(&mut *self.unsynced.lock().expect("not poisoned"));
        if self.closed.load(Ordering::Relaxed) || thread::panicking() {
            return;
        }
        match self.fault {
            Fault::LosesTheLastGroupedWrite | Fault::LosesADurableWrite => {
                unsynced.pop().map(|last| self.undo(last))
            }
            Fault::LosesAnEarlierGroupedWrite => {
                let last = unsynced.pop().unwrap_or_default();
                let apart = |write: &Vec<Before>| {
                    !write.iter().any(|(key, _)| last.iter().any(|(other, _)| other == key))
                };
                unsynced.pop().filter(apart).map(|earlier| self.undo(earlier))
            }
            _ => None,
        };
    }
}

impl Engine for Broken {
    fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        self.arrive()?;
        if self.is(Fault::ReadsAfterClose) && self.closed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        if self.every(50, Fault::StaleReadSometimes)
            && let Some(old) = self.old.lock().expect("not poisoned").get(key)
        {
            return Ok(old.clone());
        }
        if self.is(Fault::CachesForEachThread) {
            let found = self.inner.get(key)?;
            return Ok(self.of_thread(|thread| {
                let (value, uses) = thread.cached.entry(key.to_vec()).or_insert((found.clone(), 0));
                *uses += 1;
                if *uses > 3 {
                    (*value, *uses) = (found, 0);
                }
                value.clone()
            }));
        }
        let found = self.inner.get(key)?;
        if self.is(Fault::CutsLongValues)
            && let Some(value) = &found
            && value.len() > 4096
        {
            return Ok(Some(Value::from(value[..value.len() - 1].to_vec())));
        }
        if self.is(Fault::Panics) && key.len() > 1000 {
            panic!("a long key");
        }
        Ok(found.filter(|value| !(self.is(Fault::EmptyValueIsAbsent) && value.is_empty())))
    }

    fn get_at(&self, key: &[u8], snapshot: &Snapshot) -> Result<Option<Value>> {
        self.arrive()?;
        match self.fault {
            Fault::AcceptsALongKeyInGetAt if key.len() > 4096 => Ok(None),
            Fault::SnapshotSeesLaterWrites => self.inner.get(key),
            Fault::TakesAnySnapshot if self.inner.get_at(key, snapshot).is_err() => self.inner.get(key),
            Fault::SnapshotLosesDeletedKeys if self.inner.get(key)?.is_none() => Ok(None),
            _ => self.inner.get_at(key, snapshot),
        }
    }

    fn multi_get(&self, keys: &[&[u8]]) -> Vec<Result<Option<Value>>> {
        if self.is(Fault::MultiGetFailsAsAWhole)
            && let Some(error) = keys.iter().find_map(|key| check_key(key).err())
        {
            return keys.iter().map(|_| Err(error.clone())).collect();
        }
        let mut order = keys.to_vec();
        if self.is(Fault::MultiGetAnswersInKeyOrder) {
            order.sort_unstable();
        }
        order.iter().map(|key| self.get(key)).collect()
    }

    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        self.replace(&[key], durability)?;
        if self.is(Fault::LongValueChangesTheStore) && value.len() > MAX_VALUE_BYTES {
            self.inner.delete(key, durability)?;
        }
        check_key(key)?;
        check_value(value)?;
        if self.is(Fault::RefusesTheLongestKey) && key.len() == 4096 {
            return Err(Error::invalid("the longest key"));
        }
        if self.is(Fault::StoresWhatItRefuses) {
            self.inner.put(key, value, durability)?;
        }
        if self.capacity != u64::MAX {
            self.make_room(key.len() + value.len())?;
        }
        if self.is(Fault::ForgetsLateThreads) {
            let threads = self.threads.lock().expect("not poisoned").len();
            if threads >= 100 {
                return Ok(());
            }
        }
        if self.is(Fault::ShowsWritesLate) {
            self.of_thread(|thread| thread.late = Some((key.to_vec(), value.to_vec())));
            return Ok(());
        }
        if self.is(Fault::ConfusesLongKeys) && key.len() == 4096 {
            return self.inner.put(&key[..4095], value, durability);
        }
        self.inner.put(key, value, durability)
    }

    fn delete(&self, key: &[u8], durability: Durability) -> Result<()> {
        self.replace(&[key], durability)?;
        self.refuse_delete()?;
        if self.every(20, Fault::DropsADelete) || self.is(Fault::AcceptsAnEmptyKey) && key.is_empty() {
            return Ok(());
        }
        self.inner.delete(key, durability)
    }

    fn write(&self, batch: &WriteBatch, durability: Durability) -> Result<()> {
        let keys: Vec<&[u8]> = batch.ops().iter().map(Op::key).collect();
        self.replace(&keys, durability)?;
        if self.capacity != u64::MAX && batch.ops().iter().any(|op| matches!(op, Op::Put { .. })) {
            self.make_room(batch.bytes())?;
        }
        let mut ops = batch.ops().to_vec();
        if self.every(5, Fault::LosesAKeyOfABatch) {
            ops.pop();
        }
        if self.is(Fault::FirstPutOfABatchWins) {
            ops.reverse();
        }
        if self.is(Fault::ShowsABatchInParts) {
            for op in &ops {
                match op {
                    Op::Put { key, value } => self.inner.put(key, value, durability)?,
                    Op::Delete { key } => self.inner.delete(key, durability)?,
                }
                thread::yield_now();
            }
            return Ok(());
        }
        let mut changed = WriteBatch::new();
        for op in ops {
            match op {
                Op::Put { key, value } => changed.put(key, value)?,
                Op::Delete { key } => changed.delete(key)?,
            };
        }
        self.inner.write(&changed, durability)
    }

    fn delete_range(&self, range: &KeyRange, durability: Durability) -> Result<u64> {
        let mut inside = Vec::new();
        let mut cursor = self.inner.cursor(range.clone(), None)?;
        while let Some((key, _)) = cursor.next()? {
            inside.push(key);
        }
        self.replace(&inside.iter().map(Vec::as_slice).collect::<Vec<_>>(), durability)?;
        self.refuse_delete()?;
        if self.is(Fault::RangeDeleteMissesTheLastKey)
            && let Some((_, others)) = inside.split_last()
            && !others.is_empty()
        {
            for key in others {
                self.inner.delete(key, durability)?;
            }
            return Ok(inside.len() as u64);
        }
        let deleted = self.inner.delete_range(range, durability)?;
        Ok(deleted + u64::from(self.is(Fault::RangeDeleteMiscounts) && deleted > 2))
    }

    fn snapshot(&self) -> Result<Snapshot> {
        self.arrive()?;
        self.inner.snapshot()
    }

    fn cursor(&self, range: KeyRange, snapshot: Option<&Snapshot>) -> Result<Box<dyn Cursor + '_>> {
        self.arrive()?;
        let snapshot = snapshot.filter(|_| !self.is(Fault::ScanOfASnapshotSeesLaterWrites));
        let mut inner = self.inner.cursor(widened(self.fault, &range), snapshot)?;
        let mut entries = Vec::new();
        while let Some(entry) = inner.next()? {
            entries.push(entry);
        }
        if self.is(Fault::ScansInParts) && snapshot.is_none() {
            thread::yield_now();
            let half = entries.len() / 2;
            for (key, value) in &mut entries[half..] {
                if let Some(now) = self.inner.get(key)? {
                    *value = now;
                }
            }
        }
        let inner = ListCursor::new(entries);
        Ok(Box::new(BrokenCursor { inner, engine: self, range, last: Last::Nothing, steps: 0 }))
    }

    fn sync(&self) -> Result<()> {
        self.unsynced.lock().expect("not poisoned").clear();
        self.inner.sync()
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn compact(&self) -> Result<()> {
        self.inner.compact()
    }

    fn verify(&self) -> Result<VerifyReport> {
        let mut report = self.inner.verify()?;
        if self.is(Fault::ReportsDamage) {
            let place = Some(Location::new("memory", 0));
            report.damage.push(Damage { what: "nothing".into(), place, keys: None });
        }
        Ok(report)
    }

    fn stats(&self) -> Stats {
        let mut stats = self.inner.stats();
        stats.keys += u64::from(self.is(Fault::MiscountsKeys) && stats.keys > 10);
        stats
    }

    fn close(&self) -> Result<()> {
        if self.is(Fault::LosesTheLastWriteOnClose)
            && let Some(last) = self.unsynced.lock().expect("not poisoned").pop()
        {
            self.undo(last);
        }
        self.closed.store(true, Ordering::Relaxed);
        self.inner.close()
    }
}

/// The range that a fault makes of a range.
fn widened(fault: Fault, range: &KeyRange) -> KeyRange {
    use std::ops::Bound::{Excluded, Included};
    let mut range = range.clone();
    if let (Fault::ExcludedStartIsIncluded, Excluded(key)) = (fault, &range.start) {
        range.start = Included(key.clone());
    }
    if let (Fault::ReversedRangeIsTurned, Included(start) | Excluded(start), Included(end) | Excluded(end)) =
        (fault, &range.start, &range.end)
        && start > end
    {
        std::mem::swap(&mut range.start, &mut range.end);
    }
    if fault == Fault::PrevIgnoresTheBound {
        range.start = std::ops::Bound::Unbounded;
    }
    range
}

#[derive(PartialEq)]
enum Last {
    Nothing,
    Next,
    Prev,
}

struct BrokenCursor<'e> {
    inner: ListCursor<Value>,
    engine: &'e Broken,
    range: KeyRange,
    last: Last,
    steps: u64,
}

impl BrokenCursor<'_> {
    fn now(&self, entry: Option<(Vec<u8>, Value)>) -> Result<Option<(Vec<u8>, Value)>> {
        match entry {
            Some((key, _)) if self.engine.is(Fault::CursorSeesLaterWrites) => {
                let now = self.engine.inner.get(&key)?;
                Ok(now.map(|value| (key, value)))
            }
            entry => Ok(entry),
        }
    }
}

impl Cursor for BrokenCursor<'_> {
    fn next(&mut self) -> Result<Option<(Vec<u8>, Value)>> {
        self.steps += 1;
        if self.last == Last::Prev && self.engine.is(Fault::CursorTurnsOverAnEntry)
            || self.engine.is(Fault::CursorSkipsAnEntry) && self.steps.is_multiple_of(12)
        {
            self.inner.next();
        }
        if self.last == Last::Nothing && self.engine.is(Fault::PrevIgnoresTheBound) {
            // Forward it keeps to its range.
            while self.inner.next().is_some_and(|(key, _)| self.range.is_before(key)) {}
            self.inner.prev();
        }
        self.last = Last::Next;
        let entry = self.inner.next().cloned();
        self.now(entry)
    }

    fn prev(&mut self) -> Result<Option<(Vec<u8>, Value)>> {
        if self.last == Last::Next && self.engine.is(Fault::CursorTurnsOverAnEntry) {
            self.inner.prev();
        }
        self.last = Last::Prev;
        let entry = self.inner.prev().cloned();
        if entry.is_none() && self.engine.is(Fault::CursorStaysPastTheEnd) {
            self.inner.seek_to_last();
        }
        self.now(entry)
    }

    fn seek(&mut self, key: &[u8]) {
        self.last = Last::Nothing;
        self.inner.seek(key);
        if self.engine.is(Fault::SeekSkipsTheKey) && self.inner.next().is_some_and(|(found, _)| found != key)
        {
            self.inner.prev();
        }
    }

    fn seek_to_first(&mut self) {
        self.last = Last::Nothing;
        self.inner.seek_to_first();
    }

    fn seek_to_last(&mut self) {
        self.last = Last::Nothing;
        self.inner.seek_to_last();
    }
}
