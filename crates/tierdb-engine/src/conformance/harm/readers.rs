//! What a reader has seen lasts, also where the writer has not been told yet that it is done.
//!
//! At each event of a durable write the writer is held up, while another thread reads what is being written. If that sees
//! the write, a crash at this moment, of which nothing survives that is not certain, must leave it.

use super::rig::{LogPlace, Rig, Sizes};
use crate::{Durability, Engine, KeyRange, Value, WriteBatch};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tierdb_base::mutant::{self, Site};
use tierdb_sim::World;

/// How long a write is held up at most while a reader makes no progress: it may wait for the writer.
const PATIENCE: Duration = Duration::from_millis(40);
/// The same where it has made none since an earlier event.
const STUCK: Duration = Duration::from_millis(1);

/// New values of keys; `None` where the key is removed.
type Change = Vec<(&'static [u8], Option<Vec<u8>>)>;

/// Whether what was found of each key is what `change` gives it.
fn is_new(found: &[Option<Value>], change: &Change) -> impl Iterator<Item = bool> {
    found.iter().zip(change).map(|(found, (_, new))| found.as_deref() == new.as_deref())
}

/// The writes that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Insert,
    Overwrite,
    Long,
    Delete,
    Batch,
    Range,
}

impl Write {
    const ALL: [Write; 6] =
        [Write::Insert, Write::Overwrite, Write::Long, Write::Delete, Write::Batch, Write::Range];

    /// What it changes.
    fn change(self) -> Change {
        match self {
            Write::Insert => vec![(b"absent", Some(vec![2; 100]))],
            Write::Overwrite => vec![(b"one", Some(vec![2; 100]))],
            Write::Long => vec![(b"one", Some(vec![2; 9000]))],
            Write::Delete => vec![(b"one", None)],
            Write::Batch => {
                vec![(b"absent", Some(vec![2; 100])), (b"one", None), (b"two", Some(vec![2; 300]))]
            }
            Write::Range => vec![(b"one", None), (b"two", None)],
        }
    }

    fn make(self, engine: &dyn Engine) -> tierdb_base::Result<()> {
        let change = self.change();
        match (self, &change[0]) {
            (Write::Batch, _) => {
                let mut batch = WriteBatch::new();
                for (key, value) in change {
                    match value {
                        Some(value) => batch.put(key, value)?,
                        None => batch.delete(key)?,
                    };
                }
                engine.write(&batch, Durability::Durable)
            }
            (Write::Range, _) => {
                engine.delete_range(&KeyRange::half_open("o", "u"), Durability::Durable).map(|_| ())
            }
            (_, (key, Some(value))) => engine.put(key, value, Durability::Durable),
            (_, (key, None)) => engine.delete(key, Durability::Durable),
        }
    }
}

/// How a reader looks at the keys.
#[derive(Clone, Copy, Debug)]
enum Read {
    Get,
    /// After many small writes of its own.
    GetInCrowd,
    MultiGet,
    Scan,
    ScanBack,
    /// In a snapshot, after grouped writes of its own to the same keys.
    Replaced,
}

/// What [`Read::Replaced`] writes in its n-th round.
fn later(round: u64) -> Vec<u8> {
    format!("later {round}").into_bytes()
}

impl Read {
    const ALL: [Read; 6] =
        [Read::Get, Read::GetInCrowd, Read::MultiGet, Read::Scan, Read::ScanBack, Read::Replaced];

    /// The value of each of `keys`, in the n-th round.
    fn of(self, engine: &dyn Engine, keys: &[&[u8]], round: u64) -> Vec<Option<Value>> {
        let scanned = || {
            let mut cursor = engine.cursor(KeyRange::all(), None).expect("a cursor");
            let mut step = || if let Read::ScanBack = self { cursor.prev() } else { cursor.next() };
            let mut found = vec![None; keys.len()];
            while let Some((key, value)) = step().expect("a whole store is read") {
                if let Some(number) = keys.iter().position(|wanted| **wanted == key[..]) {
                    found[number] = Some(value);
                }
            }
            found
        };
        let get = || keys.iter().map(|key| engine.get(key).expect("a whole store is read")).collect();
        match self {
            Read::Get => get(),
            Read::GetInCrowd => {
                for number in 0..150u32 {
                    let key = format!("zz{number:03}");
                    engine.put(key.as_bytes(), b"crowd", Durability::Grouped).expect("room");
                }
                get()
            }
            Read::MultiGet => {
                let found = engine.multi_get(keys).into_iter();
                found.map(|value| value.expect("a whole store is read")).collect()
            }
            Read::Scan | Read::ScanBack => scanned(),
            Read::Replaced => {
                let snapshot = engine.snapshot().expect("a whole store is read");
                let put = |key: &&[u8]| engine.put(key, &later(round), Durability::Grouped).expect("room");
                keys.iter().for_each(put);
                let old = |key: &&[u8]| engine.get_at(key, &snapshot).expect("a whole store is read");
                keys.iter().map(old).collect()
            }
        }
    }
}

/// Where the reader is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// It waits to be asked.
    Idle,
    Asked,
    Reading,
    /// The write has returned.
    Over,
}

/// Where a writer and its reader meet.
struct Meeting {
    at: Mutex<At>,
    turn: Condvar,
}

impl Meeting {
    fn is_read_by(&self, deadline: Instant) -> bool {
        let mut at = self.at.lock();
        while *at != At::Idle && !self.turn.wait_until(&mut at, deadline).timed_out() {}
        *at == At::Idle
    }

    fn set(&self, to: At) {
        *self.at.lock() = to;
        self.turn.notify_all();
    }

    /// Lets the reader read, at an event of the writer, and waits until it has done so or makes no progress.
    fn hold_up(&self) {
        if self.is_read_by(Instant::now() + STUCK) {
            self.set(At::Asked);
            self.is_read_by(Instant::now() + PATIENCE);
        }
    }

    /// Waits until the reader is asked to read: `false` if the write has returned.
    fn is_asked(&self) -> bool {
        let mut at = self.at.lock();
        while *at == At::Idle {
            self.turn.wait(&mut at);
        }
        let asked = *at == At::Asked;
        if asked {
            *at = At::Reading;
        }
        asked
    }

    /// The reader has read.
    fn has_read(&self) {
        let mut at = self.at.lock();
        if *at == At::Reading {
            *at = At::Idle;
            self.turn.notify_all();
        }
    }
}

/// Makes `write` in a small store, which is moved to flash before if `on_flash`, and reads at each of its events.
fn watch<S: Sizes>(rig: &Rig<S>, write: Write, read: Read, on_flash: bool) -> Result<(), String> {
    // What engines do once in so many writes comes at another one each time.
    fastrand::seed(write as u64 * 2 + u64::from(on_flash));
    let world = rig.empty_world();
    let engine = rig.open(&world).expect("a whole store opens");
    let engine = &*engine;
    for (key, len) in [(&b"one"[..], 50), (b"two", 50), (b"zero", 50)] {
        engine.put(key, &vec![1; len], Durability::Durable).expect("room");
    }
    if on_flash {
        engine.flush().expect("room");
    }
    let change = write.change();
    let keys: Vec<&[u8]> = change.iter().map(|(key, _)| *key).collect();
    let meeting = Arc::new(Meeting { at: Mutex::new(At::Idle), turn: Condvar::new() });
    let write_it = mutant::carry(|| {
        let (writer, held_up) = (thread::current().id(), meeting.clone());
        world.on_event(Some(Arc::new(move |_: &World, _| {
            if thread::current().id() == writer {
                held_up.hold_up();
            }
        })));
        let done = write.make(engine);
        world.on_event(None);
        meeting.set(At::Over);
        done
    });
    thread::scope(|scope| {
        let writer = scope.spawn(write_it);
        let (mut outcome, mut round) = (Ok(()), 0);
        while meeting.is_asked() {
            round += 1;
            let found = read.of(engine, &keys, round);
            let point = world.capture();
            meeting.has_read();
            if outcome.is_ok() && is_new(&found, &change).any(|is_new| is_new) {
                let left = rig.open(&point.nothing()).map_err(|error| error.to_string());
                outcome = left.and_then(|left| {
                    let lasting = Read::Get.of(&*left, &keys, round);
                    // Or what replaced it.
                    let is_later = |found: &Option<Value>| found.as_deref() == Some(&later(round)[..]);
                    let lasts = |(found, is_new): (&_, bool)| is_new || is_later(found);
                    lasting
                        .iter()
                        .zip(is_new(&lasting, &change))
                        .all(lasts)
                        .then_some(())
                        .ok_or_else(|| format!("{read:?} sees {write:?}, which a crash then loses"))
                });
            }
        }
        writer.join().expect("it does not panic").expect("room");
        outcome
    })
}

/// Watches all writes, by all reads.
fn watch_all<S: Sizes>(rig: &Rig<S>) -> Result<(), String> {
    for (write, read) in Write::ALL.into_iter().flat_map(|write| Read::ALL.map(|read| (write, read))) {
        for on_flash in [false, true] {
            let lasts = watch(rig, write, read, on_flash);
            lasts.map_err(|lost| {
                format!("{}, {:?}, on flash: {on_flash}: {lost}", rig.sizes.name(), rig.log)
            })?;
        }
    }
    Ok(())
}

/// What a reader has seen of a durable write survives a crash at that moment, in all modes. And each of the calls in `waits`, by
/// which readers wait, is noticed when it is left out: the end of its file's name, and what it is.
///
/// # Panics
/// If something that was seen is lost, or a missing call is not noticed, or not passed.
pub fn what_is_seen_lasts<S: Sizes>(sizes: &S, waits: &[(&str, &str)]) {
    let is = |site: &Site, wait: &(&str, &str)| site.file.ends_with(wait.0) && site.what == wait.1;
    let mut passed = BTreeSet::new();
    for log in [None].into_iter().chain(LogPlace::ALL.map(Some)) {
        let rig = Rig::new(sizes.clone(), log);
        let sites = mutant::record(|| watch_all(&rig).unwrap_or_else(|lost| panic!("{lost}")));
        for site in sites.into_keys().filter(|site| waits.iter().any(|wait| is(site, wait))) {
            // On a busy machine the reader may come too late.
            let noticed = (0..5).any(|_| mutant::without(site, || watch_all(&rig)).is_err());
            assert!(noticed, "{log:?}: not noticed when left out: {site}");
            passed.insert(site);
        }
    }
    let absent = waits.iter().find(|wait| !passed.iter().any(|site| is(site, wait)));
    assert!(absent.is_none(), "no reader passes {absent:?}");
}
