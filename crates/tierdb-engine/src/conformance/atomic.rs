//! Batches and snapshots under threads: all of a batch or nothing, and never back in time.
//!
//! Each writer has a group of keys and writes them only by batches; batch `n` gives its keys the tag `n`.
//! Two forms of batch alternate at random: one puts all keys of the group, the other puts the even keys and
//! deletes the odd ones. So at any moment the keys that are there have one tag, and which are there fits
//! the form. One more group is written by all writers.

use super::values::{tag_of, value};
use super::{Checked, Failure, Harness, Limits, Unexpected, ensure, fail, guarded, open_empty};
use crate::batch::WriteBatch;
use crate::engine::{Durability, Engine, KeyRange, Snapshot};
use fastrand::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tierdb_base::ErrorKind;

const WRITERS: usize = 3;
const READERS: usize = 3;
/// Keys of a group.
const KEYS: usize = 6;
/// The group that all writers write.
const SHARED: usize = WRITERS;

/// Runs writers of `batches` batches each and readers beside them, with flush, compact and sync now and then.
///
/// A reader checks with a snapshot, with a cursor and with single gets one after another that no batch is
/// torn, that nothing goes back in time, and that a snapshot always gives the same.
///
/// # Errors
/// What a reader saw that no order of the batches gives.
pub fn snapshots_and_batches_are_atomic_under_threads(
    harness: &mut dyn Harness,
    seed: u64,
    batches: u64,
) -> Checked {
    let limits = harness.limits();
    let engine = open_empty(harness)?;
    let shared = Shared { engine: &*engine, limits, ended: AtomicBool::new(false), tags: AtomicU64::new(0) };
    let shared = &shared;
    for group in 0..=SHARED {
        Writer::new(shared, group, seed).batch(group, true)?;
    }
    let result = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|group| {
                scope.spawn(move || shared.watched(|| Writer::new(shared, group, seed).run(batches)))
            })
            .collect();
        let mut others: Vec<_> = (0..READERS as u64)
            .map(|id| {
                scope.spawn(move || shared.watched(|| Reader::new(shared, seed ^ (id + 1) << 32).run()))
            })
            .collect();
        others.push(scope.spawn(move || shared.watched(|| shared.stir())));
        let mut all: Vec<Checked> = writers.into_iter().map(join).collect();
        shared.ended.store(true, Ordering::Relaxed);
        all.extend(others.into_iter().map(join));
        all.into_iter().collect::<Checked>()
    });
    result.map_err(|failure| failure.during(format!("{}, seed {seed}", harness.describe())))
}

fn join(thread: thread::ScopedJoinHandle<'_, Checked>) -> Checked {
    thread.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked")))
}

struct Shared<'e> {
    engine: &'e dyn Engine,
    limits: Limits,
    /// Set when the writers are done, or one thread has failed.
    ended: AtomicBool,
    /// The last tag that was given out.
    tags: AtomicU64,
}

impl Shared<'_> {
    fn watched(&self, work: impl FnOnce() -> Checked) -> Checked {
        let result = guarded(work);
        if result.is_err() {
            self.ended.store(true, Ordering::Relaxed);
        }
        result
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Keeps the background of the engine busy.
    fn stir(&self) -> Checked {
        let allow = |result: tierdb_base::Result<()>, what: &str| match result {
            Err(error) if !(self.limits.may_fill && error.kind() == ErrorKind::NoSpace) => {
                fail!("{what}: {error}")
            }
            _ => Ok(()),
        };
        while !self.has_ended() {
            allow(self.engine.flush(), "flush")?;
            allow(self.engine.sync(), "sync")?;
            allow(self.engine.compact(), "compact")?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

fn key(group: usize, i: usize) -> Vec<u8> {
    // Apart in key order, so that the keys of a group lie in different places of an index.
    format!("{i}-{}-group{group}", "x".repeat(i * 20)).into_bytes()
}

struct Writer<'s> {
    shared: &'s Shared<'s>,
    group: usize,
    rng: Rng,
}

impl<'s> Writer<'s> {
    fn new(shared: &'s Shared<'s>, group: usize, seed: u64) -> Self {
        Writer { shared, group, rng: Rng::with_seed(seed ^ (group as u64) << 8) }
    }

    fn run(&mut self, batches: u64) -> Checked {
        for _ in 0..batches {
            if self.shared.has_ended() {
                break;
            }
            let group = if self.rng.u8(..4) == 0 { SHARED } else { self.group };
            let all = self.rng.bool();
            self.batch(group, all)?;
        }
        Ok(())
    }

    fn batch(&mut self, group: usize, all: bool) -> Checked {
        let tag = self.shared.tags.fetch_add(1, Ordering::Relaxed) + 1;
        let mut batch = WriteBatch::new();
        let mut order: Vec<usize> = (0..KEYS).collect();
        self.rng.shuffle(&mut order);
        for i in order {
            let len = match self.rng.u8(..16) {
                0 => 5000,
                1 => 150_000,
                _ => self.rng.usize(8..300),
            };
            let len = self.shared.limits.value_len(len).max(8);
            let added = if all || i % 2 == 0 {
                batch.put(key(group, i), value(tag, len)).map(drop)
            } else {
                batch.delete(key(group, i)).map(drop)
            };
            added.during(|| "build the batch".into())?;
        }
        let durability = if self.rng.bool() { Durability::Durable } else { Durability::Grouped };
        match self.shared.engine.write(&batch, durability) {
            Err(error) if !(self.shared.limits.may_fill && error.kind() == ErrorKind::NoSpace) => {
                fail!("batch {tag}: {error}")
            }
            _ => Ok(()),
        }
    }
}

struct Reader<'s> {
    shared: &'s Shared<'s>,
    rng: Rng,
    /// The newest tag seen of each group that one writer writes.
    newest: [u64; WRITERS],
    /// A snapshot kept for a while, with the tags it gave at first.
    kept: Option<(Snapshot, usize, Tags)>,
}

/// The tags of a group's keys, `None` where a key is not there.
type Tags = [Option<u64>; KEYS];

impl<'s> Reader<'s> {
    fn new(shared: &'s Shared<'s>, seed: u64) -> Self {
        Reader { shared, rng: Rng::with_seed(seed), newest: [0; WRITERS], kept: None }
    }

    fn run(&mut self) -> Checked {
        while !self.shared.has_ended() {
            let group = self.rng.usize(..=SHARED);
            match self.rng.u8(..4) {
                0 => self.by_snapshot(group)?,
                1 => self.by_cursor(group)?,
                2 => self.one_by_one(group)?,
                _ => self.kept_stays()?,
            }
        }
        Ok(())
    }

    fn by_snapshot(&mut self, group: usize) -> Checked {
        let snapshot = self.shared.engine.snapshot().during(|| "snapshot".into())?;
        let tags = self.at(&snapshot, group)?;
        let tag = whole(&tags).map_err(|failure| failure.during(format!("snapshot, group {group}")))?;
        self.advance(group, tag, "snapshot")?;
        if self.kept.is_none() || self.rng.u8(..8) == 0 {
            self.kept = Some((snapshot, group, tags));
        }
        Ok(())
    }

    fn at(&mut self, snapshot: &Snapshot, group: usize) -> Checked<Tags> {
        let mut order: Vec<usize> = (0..KEYS).collect();
        self.rng.shuffle(&mut order);
        let mut tags = [None; KEYS];
        for i in order {
            let value = self.shared.engine.get_at(&key(group, i), snapshot).during(|| "get_at".into())?;
            tags[i] = value.map(|value| tag_of(&value)).transpose()?;
        }
        Ok(tags)
    }

    fn kept_stays(&mut self) -> Checked {
        let Some((snapshot, group, first)) = self.kept.take() else { return Ok(()) };
        let now = self.at(&snapshot, group)?;
        ensure!(now == first, "a snapshot of group {group} gave {first:?} and later {now:?}");
        self.kept = Some((snapshot, group, first));
        Ok(())
    }

    /// One scan over everything: all groups are whole, forward and backward.
    fn by_cursor(&mut self, seen: usize) -> Checked {
        let mut cursor = self.shared.engine.cursor(KeyRange::all(), None).during(|| "cursor".into())?;
        let mut found: Vec<Tags> = vec![[None; KEYS]; SHARED + 1];
        let forward = self.rng.bool();
        loop {
            let entry = if forward { cursor.next() } else { cursor.prev() };
            let Some((found_key, value)) = entry.during(|| "scan".into())? else { break };
            let place = (0..=SHARED).flat_map(|group| (0..KEYS).map(move |i| (group, i)));
            let Some((group, i)) = place.into_iter().find(|&(group, i)| key(group, i) == found_key) else {
                fail!("the scan gives a key that was never written")
            };
            ensure!(found[group][i].is_none(), "the scan gives a key twice");
            found[group][i] = Some(tag_of(&value)?);
        }
        for (group, tags) in found.iter().enumerate() {
            let tag = whole(tags).map_err(|failure| failure.during(format!("scan, group {group}")))?;
            if group == seen {
                self.advance(group, tag, "scan")?;
            }
        }
        Ok(())
    }

    /// Gets, one after another: each must be from the batch that the one before saw, or from a later one.
    fn one_by_one(&mut self, group: usize) -> Checked {
        for _ in 0..KEYS {
            let i = self.rng.usize(..KEYS);
            let value = self.shared.engine.get(&key(group, i)).during(|| "get".into())?;
            match value {
                Some(value) => self.advance(group, tag_of(&value)?, "get")?,
                None => ensure!(i % 2 == 1, "key {i} of group {group} is not there, and was never deleted"),
            }
        }
        Ok(())
    }

    /// The group was seen with `tag`, so it may not be seen with an older one from now on. Writers of the
    /// shared group take their tags before they write, so its tags come in no order.
    fn advance(&mut self, group: usize, tag: u64, how: &str) -> Checked {
        if group != SHARED {
            let newest = self.newest[group];
            ensure!(tag >= newest, "{how} sees batch {tag} of group {group} after batch {newest} was seen");
            self.newest[group] = tag;
        }
        Ok(())
    }
}

/// The one tag of a group that was read at one moment.
fn whole(tags: &Tags) -> Checked<u64> {
    let Some(tag) = tags[0] else { fail!("a key is not there, and was never deleted: {tags:?}") };
    let evens = tags.iter().step_by(2).all(|found| *found == Some(tag));
    let mut odds = tags.iter().skip(1).step_by(2);
    let rest = odds.clone().all(|found| *found == Some(tag)) || odds.all(Option::is_none);
    ensure!(evens && rest, "a batch is torn: the keys have the tags {tags:?}");
    Ok(tag)
}
