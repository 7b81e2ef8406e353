//! Scripts for the fault suite, and a runner that knows what a store may answer when its devices fail.

use super::damage::{key, show};
use super::rig::{Rig, Sizes};
use crate::conformance::{Oracle, Ticket};
use crate::{Background, Durability, Engine, KeyRange, Snapshot, Value, WriteBatch};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use tierdb_base::{Error, ErrorKind, Result};
use tierdb_sim::World;

/// One call, or a few that belong together. Numbers are those of keys.
#[derive(Clone, Debug)]
pub enum Step {
    /// A value of so many bytes more than eight.
    Put(usize, usize, Durability),
    /// A delete, durable.
    Delete(usize),
    /// Keys with the length of their values, or none for a delete.
    Batch(Vec<(usize, Option<usize>)>, Durability),
    /// Keys from one up to another.
    DeleteRange(usize, usize),
    /// One key.
    Get(usize),
    /// Several keys in one call.
    MultiGet(Vec<usize>),
    /// All entries, forward and backward.
    Scan,
    /// A snapshot, kept until it is looked at.
    Snapshot,
    /// What the snapshot sees, by a cursor and key by key.
    LookBack,
    /// [`Engine::flush`].
    Flush,
    /// [`Engine::compact`].
    Compact,
    /// [`Engine::sync`].
    Sync,
    /// Drops the store and opens it again, after a close or without.
    Reopen {
        /// Whether it is closed before.
        close: bool,
    },
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store that a script runs on, and what is known of it.
#[derive(Clone)]
pub struct Known {
    oracle: Oracle,
    /// What readers must see.
    content: Map,
    /// Every key ever written.
    keys: BTreeSet<Vec<u8>>,
    /// Keys of writes that failed and may have taken place all the same.
    unsure: BTreeSet<Vec<u8>>,
    /// Ranges of such deletions: also keys that never were may not be read there.
    unsure_ranges: Vec<KeyRange>,
    written: u64,
}

impl Default for Known {
    fn default() -> Self {
        Known::new()
    }
}

impl Known {
    /// An empty store.
    pub fn new() -> Self {
        Known {
            oracle: Oracle::new(),
            content: Map::new(),
            keys: BTreeSet::new(),
            unsure: BTreeSet::new(),
            unsure_ranges: Vec::new(),
            written: 0,
        }
    }

    /// Whether the store of `world` opens, and holds what it may. Returns it.
    pub fn check<S: Sizes>(&self, world: &World, rig: &Rig<S>) -> Result<Box<dyn Engine>, String> {
        let engine = rig.open(world).map_err(|error| format!("open: {error}"))?;
        self.oracle.check(&*engine).map_err(|wrong| wrong.to_string())?;
        Ok(engine)
    }

    /// Goes on from what the store holds.
    fn adopt(&mut self, engine: &dyn Engine) -> Result<(), String> {
        let content = self.oracle.check(engine).map_err(|wrong| wrong.to_string())?;
        self.content = content.entries().iter().map(|(k, v)| (k.clone(), v.to_vec())).collect();
        self.oracle.adopt(&content);
        self.unsure.clear();
        self.unsure_ranges.clear();
        Ok(())
    }
}

/// Runs steps while devices fail.
pub struct Runner<'w, S> {
    world: &'w World,
    rig: &'w Rig<S>,
    engine: Option<Box<dyn Engine>>,
    /// What is known of it.
    pub known: Known,
    snapshot: Option<(Snapshot, Map, BTreeSet<Vec<u8>>)>,
    /// Faults met before the store was last opened.
    before: u64,
    /// Faults met before this step, or used as an excuse.
    excused: Cell<u64>,
}

/// What became of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All steps were made.
    Done,
    /// A fault was met before a step that opens the store again: what follows needs devices that work.
    Cut,
}

impl<'w, S: Sizes> Runner<'w, S> {
    /// Opens the store of `world`, of which `known` is known.
    pub fn new(world: &'w World, rig: &'w Rig<S>, known: Known) -> Self {
        let engine = rig.open(world).expect("a whole store opens");
        Runner { world, rig, engine: Some(engine), known, snapshot: None, before: 0, excused: Cell::new(0) }
    }

    fn engine(&self) -> &dyn Engine {
        self.engine.as_deref().expect("a store is open")
    }

    /// Whether it is read-only.
    pub fn is_latched(&self) -> bool {
        self.engine().stats().poisoned.is_some()
    }

    /// Faults that the store which is open now has met.
    pub fn hit(&self) -> u64 {
        self.world.faults().hit - self.before
    }

    /// Ends the use of the store, as a process that dies.
    pub fn into_known(self) -> Known {
        self.known
    }

    /// Makes `steps`.
    ///
    /// # Errors
    /// A wrong answer, or an error that the faults met so far do not excuse.
    pub fn run(&mut self, steps: &[Step]) -> Result<Ended, String> {
        for (number, step) in steps.iter().enumerate() {
            if matches!(step, Step::Reopen { .. }) && self.hit() > 0 {
                return Ok(Ended::Cut);
            }
            self.step(step).map_err(|wrong| format!("step {number}, {step:?}: {wrong}"))?;
        }
        Ok(Ended::Done)
    }

    /// Whether it is read-only, or becomes so in a moment: a thread of its own may be about to say so.
    pub fn is_latched_soon(&self, expected: bool) -> bool {
        let start = Instant::now();
        let by_threads = self.rig.sizes.background() == Background::Threads;
        while by_threads && expected && !self.is_latched() && start.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        self.is_latched()
    }

    /// Counters of what the store has done since it was opened.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.engine().stats().counters
    }

    /// Whether an operation of a device has failed just now. Threads of the store's own report it later.
    fn has_failed(&self) -> bool {
        let hit = self.world.faults().hit;
        if self.rig.sizes.background() == Background::Threads {
            return hit > 0;
        }
        self.excused.replace(hit) < hit || self.world.is_failing()
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        self.excused.set(self.world.faults().hit);
        match step {
            Step::Put(number, len, durability) => {
                let (key, value) = (key(*number), self.value(*len));
                let ticket = |oracle: &mut Oracle| oracle.put(&key, &value, *durability);
                let write = |engine: &dyn Engine| engine.put(&key, &value, *durability);
                self.write(vec![(key.clone(), Some(value.clone()))], ticket, write).map(|_| ())
            }
            Step::Delete(number) => {
                let key = key(*number);
                let ticket = |oracle: &mut Oracle| oracle.delete(&key, Durability::Durable);
                let write = |engine: &dyn Engine| engine.delete(&key, Durability::Durable);
                self.write(vec![(key.clone(), None)], ticket, write).map(|_| ())
            }
            Step::Batch(writes, durability) => {
                let (mut batch, mut changes) = (WriteBatch::new(), Vec::new());
                for (number, len) in writes {
                    let value = len.map(|len| self.value(len));
                    match &value {
                        Some(value) => batch.put(key(*number), value.clone()),
                        None => batch.delete(key(*number)),
                    }
                    .expect("a small batch");
                    changes.push((key(*number), value));
                }
                let ticket = |oracle: &mut Oracle| oracle.write(&batch, *durability);
                let write = |engine: &dyn Engine| engine.write(&batch, *durability);
                self.write(changes, ticket, write).map(|_| ())
            }
            Step::DeleteRange(from, to) => {
                let range = KeyRange::half_open(key(*from), key(*to));
                let doomed = self.known.content.keys().filter(|key| range.contains(key));
                let changes = doomed.map(|key| (key.clone(), None)).collect();
                let unsure = self.known.unsure.iter().any(|key| range.contains(key));
                let ticket = |oracle: &mut Oracle| oracle.delete_range(&range, Durability::Durable);
                let write =
                    |engine: &dyn Engine| engine.delete_range(&range, Durability::Durable).map(|_| ());
                if !unsure && !self.write(changes, ticket, write)? {
                    self.known.unsure_ranges.push(range);
                }
                Ok(())
            }
            Step::Get(number) => self.check_get(&key(*number)),
            Step::MultiGet(numbers) => self.check_multi_get(numbers),
            Step::Scan => self.check_scan(),
            Step::Snapshot => {
                let snapshot = self.engine().snapshot().map_err(|error| error.to_string())?;
                self.snapshot = Some((snapshot, self.known.content.clone(), self.known.unsure.clone()));
                Ok(())
            }
            Step::LookBack => self.look_back(),
            Step::Flush => self.settle(|engine| engine.flush()),
            Step::Compact => self.settle(|engine| engine.compact()),
            Step::Sync => self.settle(|engine| engine.sync()),
            Step::Reopen { close } => self.reopen(*close),
        }
    }

    fn value(&mut self, len: usize) -> Vec<u8> {
        self.known.written += 1;
        let mut rng = fastrand::Rng::with_seed(self.known.written);
        let mut value = vec![0; 8 + len];
        rng.fill(&mut value);
        value
    }

    /// A call that changes `changes`. Not made while it is open what an earlier one has done to these keys. `false` if
    /// it failed, and is open itself now.
    fn write(
        &mut self,
        changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
        ticket: impl FnOnce(&mut Oracle) -> Ticket,
        write: impl FnOnce(&dyn Engine) -> Result<()>,
    ) -> Result<bool, String> {
        if changes.iter().any(|(key, _)| self.known.unsure.contains(key)) {
            return Ok(true);
        }
        let latched = self.hit() > 0 && self.is_latched();
        self.known.keys.extend(changes.iter().map(|(key, _)| key.clone()));
        let ticket = ticket(&mut self.known.oracle);
        match write(self.engine()) {
            Ok(()) if latched => return Err("made by a store that is read-only".into()),
            Ok(()) => {
                self.known.oracle.returned(ticket);
                for (key, value) in changes {
                    match value {
                        Some(value) => self.known.content.insert(key, value),
                        None => self.known.content.remove(&key),
                    };
                }
            }
            Err(error) => {
                self.excuse(&error, latched)?;
                if error.kind() == ErrorKind::NoSpace || latched {
                    self.known.oracle.refused(ticket);
                } else {
                    self.known.unsure.extend(changes.into_iter().map(|(key, _)| key));
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// A call that makes what is there durable, or moves it.
    fn settle(&mut self, call: impl FnOnce(&dyn Engine) -> Result<()>) -> Result<(), String> {
        let latched = self.hit() > 0 && self.is_latched();
        let ticket = self.known.oracle.sync();
        match call(self.engine()) {
            Ok(()) if latched => Err("made by a store that is read-only".into()),
            Ok(()) => {
                self.known.oracle.returned(ticket);
                Ok(())
            }
            Err(error) => {
                self.known.oracle.refused(ticket);
                self.excuse(&error, latched)
            }
        }
    }

    /// Whether the faults met so far excuse a write's failure with `error`.
    fn excuse(&self, error: &Error, latched: bool) -> Result<(), String> {
        let excused = match error.kind() {
            ErrorKind::Poisoned => latched || self.is_latched(),
            ErrorKind::Io | ErrorKind::NoSpace => !latched && self.has_failed(),
            _ => false,
        };
        if excused { Ok(()) } else { Err(format!("latched {latched}, {} faults, but: {error}", self.hit())) }
    }

    /// Whether a read of `key` may fail with `error`: its device has `failed` just now, or it is not known whether
    /// the value that is there will last.
    fn excuse_read(&self, error: &Error, key: Option<&[u8]>, failed: bool) -> Result<(), String> {
        let Known { unsure, unsure_ranges, .. } = &self.known;
        let unsure = match key {
            Some(key) => unsure.contains(key) || unsure_ranges.iter().any(|range| range.contains(key)),
            None => !unsure.is_empty() || !unsure_ranges.is_empty(),
        };
        let excused = match error.kind() {
            ErrorKind::Io => failed || unsure,
            ErrorKind::Poisoned => unsure,
            _ => false,
        };
        if excused { Ok(()) } else { Err(format!("a read failed: {error}")) }
    }

    /// Reads one key.
    fn check_get(&self, key: &[u8]) -> Result<(), String> {
        let found = self.engine().get(key);
        self.check_found(key, found, self.has_failed())
    }

    /// Reads keys in one call, each of which fails for itself.
    fn check_multi_get(&self, numbers: &[usize]) -> Result<(), String> {
        let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
        let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let found = self.engine().multi_get(&asked);
        if found.len() != keys.len() {
            return Err(format!("{} answers for {} keys", found.len(), keys.len()));
        }
        // What failed may have been the read of several.
        let failed = self.has_failed();
        keys.iter().zip(found).try_for_each(|(key, found)| self.check_found(key, found, failed))
    }

    /// Whether a read of `key` may have `found` this, when its device has `failed` or has not.
    fn check_found(&self, key: &[u8], found: Result<Option<Value>>, failed: bool) -> Result<(), String> {
        match found {
            Ok(_) if self.known.unsure.contains(key) => Ok(()),
            Ok(found) if found.as_deref() == self.known.content.get(key).map(|value| &value[..]) => Ok(()),
            Ok(found) => Err(format!("{}: found {:?} bytes", show(key), found.map(|value| value.len()))),
            Err(error) => {
                self.excuse_read(&error, Some(key), failed).map_err(|wrong| format!("{}: {wrong}", show(key)))
            }
        }
    }

    /// Reads all entries in both directions, as far as that goes.
    fn check_scan(&self) -> Result<(), String> {
        let unsure = &self.known.unsure;
        let mut cursor = self.engine().cursor(KeyRange::all(), None).map_err(|e| e.to_string())?;
        self.compare(self.known.content.iter(), unsure, || cursor.next())?;
        cursor.seek_to_last();
        self.compare(self.known.content.iter().rev(), unsure, || cursor.prev())
    }

    /// Whether `next` gives `expected`, but for keys that are `unsure`, to the end or up to a failure that is
    /// excused.
    fn compare<'m>(
        &self,
        expected: impl Iterator<Item = (&'m Vec<u8>, &'m Vec<u8>)>,
        unsure: &BTreeSet<Vec<u8>>,
        mut next: impl FnMut() -> Result<Option<(Vec<u8>, Value)>>,
    ) -> Result<(), String> {
        let mut expected = expected.filter(|(key, _)| !unsure.contains(*key));
        loop {
            match next() {
                Ok(Some((key, _))) if unsure.contains(&key) => {}
                Ok(Some((key, value))) => match expected.next() {
                    Some((right, bytes)) if *right == key && *value == bytes[..] => {}
                    other => {
                        let right = other.map_or("the end".into(), |(key, _)| show(key));
                        return Err(format!("a scan gives {} where {right} should be", show(&key)));
                    }
                },
                Ok(None) => {
                    return match expected.next() {
                        None => Ok(()),
                        Some((key, _)) => Err(format!("a scan ends before {}", show(key))),
                    };
                }
                Err(error) => return self.excuse_read(&error, None, self.has_failed()),
            }
        }
    }

    fn look_back(&mut self) -> Result<(), String> {
        let Some((snapshot, content, unsure)) = self.snapshot.take() else { return Ok(()) };
        let mut cursor = self.engine().cursor(KeyRange::all(), Some(&snapshot)).map_err(|e| e.to_string())?;
        self.compare(content.iter(), &unsure, || cursor.next())
            .map_err(|wrong| format!("snapshot: {wrong}"))?;
        drop(cursor);
        for key in self.known.keys.iter().filter(|key| !unsure.contains(*key)) {
            match self.engine().get_at(key, &snapshot) {
                Ok(found) if found.as_deref() == content.get(key).map(|value| &value[..]) => {}
                Ok(_) => return Err(format!("snapshot: another value of {}", show(key))),
                Err(error) => self.excuse_read(&error, Some(key), self.has_failed())?,
            }
        }
        Ok(())
    }

    fn reopen(&mut self, close: bool) -> Result<(), String> {
        self.snapshot = None;
        if close {
            let ticket = self.known.oracle.sync();
            match self.engine().close() {
                Ok(()) => self.known.oracle.returned(ticket),
                Err(error) => {
                    self.known.oracle.refused(ticket);
                    self.excuse(&error, false).map_err(|wrong| format!("close: {wrong}"))?;
                }
            }
        }
        self.engine = None;
        let engine = loop {
            match self.rig.open(self.world) {
                Ok(engine) => break engine,
                Err(error) => {
                    let excused =
                        matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Poisoned);
                    if !excused || !self.has_failed() {
                        return Err(format!("open: {error}"));
                    }
                    // One that fails leaves a store behind that survives a crash.
                    self.known.check(&self.world.capture().nothing(), self.rig)?;
                    self.world.heal();
                }
            }
        };
        self.engine = Some(engine);
        self.before = self.world.faults().hit;
        Ok(())
    }

    /// With devices that work again: everything can be read, and a store that has met a failure it cannot
    /// undo refuses every write, while any other takes them.
    pub fn check_healed(&mut self) -> Result<(), String> {
        self.look_back()?;
        for key in &self.known.keys {
            self.check_get(key)?;
        }
        if self.known.unsure.is_empty() {
            self.check_scan()?;
        }
        if self.is_latched() {
            return self.check_read_only();
        }
        for number in 900..904 {
            let hit = (self.world.faults().hit, self.known.unsure.len());
            self.step(&Step::Put(number, 700, Durability::Durable))?;
            if !self.known.content.contains_key(&key(number)) {
                return Err(format!("a write fails after {hit:?} faults, with devices that work"));
            }
        }
        let engine = self.engine();
        engine.flush().and_then(|()| engine.compact()).map_err(|error| format!("flush: {error}"))?;
        self.step(&Step::Sync)
    }

    fn check_read_only(&self) -> Result<(), String> {
        let engine = self.engine();
        let mut batch = WriteBatch::new();
        batch.put(key(1), b"refused".to_vec()).expect("a small batch").delete(key(2)).expect("a small batch");
        let calls = [
            ("put", engine.put(&key(0), b"refused", Durability::Grouped)),
            ("delete", engine.delete(&key(1), Durability::Durable)),
            ("write", engine.write(&batch, Durability::Durable)),
            ("delete_range", engine.delete_range(&KeyRange::all(), Durability::Durable).map(|_| ())),
            ("sync", engine.sync()),
            ("flush", engine.flush()),
            ("compact", engine.compact()),
        ];
        match calls.into_iter().find(|(_, result)| !matches!(result, Err(Error::Poisoned { .. }))) {
            None => Ok(()),
            Some((call, result)) => Err(format!("{call} of a store that is read-only: {result:?}")),
        }
    }

    /// Opens the store as another process does, with the devices as they are, writes, and loses power.
    pub fn check_reopened(mut self) -> Result<(), String> {
        self.snapshot = None;
        self.engine = None;
        let engine = self.known.check(self.world, self.rig)?;
        self.known.adopt(&*engine)?;
        self.engine = Some(engine);
        self.before = self.world.faults().hit;
        for number in [900, 1, 2] {
            self.step(&Step::Put(number, 300, Durability::Durable))?;
        }
        self.step(&Step::Delete(3))?;
        self.known.check(&self.world.capture().nothing(), self.rig).map(|_| ())
    }
}
