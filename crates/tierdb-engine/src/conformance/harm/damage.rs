//! A small store with something of everything in it, damaged; and what it may still say.
//!
//! A damaged store may refuse to open, or fail to read a key and say so. It may never give another value, an older one or
//! none, let a write elsewhere cost a key, panic, or take for ever. A scan ends only because of damage ahead that `verify` knows of.

use super::harms::Harm;
use super::rig::{Rig, Sizes};
use super::watch::Watch;
use crate::{Durability, Engine, KeyRange, VerifyReport, WriteBatch};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::AddAssign;
use std::time::{Duration, Instant};
use tierdb_base::{Error, ErrorKind, Result};
use tierdb_sim::World;

/// A key: most are short, some stand in the leaf with much in common, some do not fit a leaf.
pub fn key(number: usize) -> Vec<u8> {
    match number % 8 {
        3 => format!("long{number:03}-{}", "k".repeat(280)).into_bytes(),
        5 | 6 => format!("{}-{number:03}", "wide".repeat(45)).into_bytes(),
        7 => format!("m{number:03}-{}", "m".repeat(240)).into_bytes(),
        _ => format!("key{number:03}").into_bytes(),
    }
}

/// A value that tells its key and how often the key was written.
pub fn value(number: usize, version: usize) -> Vec<u8> {
    let len = match (number + version) % 6 {
        0 => 0,
        1 => 3000,
        2 => 700,
        _ => 20 + number * 7 % 190,
    };
    filled(number, version, len)
}

fn filled(number: usize, version: usize, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed((number * 1000 + version) as u64);
    let mut value = format!("{number}.{version}.").into_bytes();
    value.extend((0..len).map(|_| rng.u8(..)));
    value
}

/// What a store holds, and held.
#[derive(Clone, Default)]
pub struct Content {
    /// Every key with its value.
    pub entries: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Every value each key ever had.
    pub history: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
}

impl Content {
    /// A key gets a value.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.history.entry(key.clone()).or_default().push(value.clone());
        self.entries.insert(key, value);
    }

    /// A key goes.
    pub fn delete(&mut self, key: &[u8]) {
        self.entries.remove(key);
    }

    /// Keys that are not there: deleted ones, and some that never were.
    pub fn absent(&self) -> Vec<Vec<u8>> {
        let gone = self.history.keys().filter(|key| !self.entries.contains_key(*key)).cloned();
        gone.chain([b"a".to_vec(), b"key0005".to_vec(), b"zz".to_vec()]).collect()
    }
}

/// A store to damage copies of.
pub struct Base<S> {
    /// Its sizes and mode.
    pub rig: Rig<S>,
    /// Its devices.
    pub world: World,
    /// What it holds.
    pub content: Content,
    /// The same store at earlier moments: empty, and twice with something in it.
    pub older: Vec<World>,
    /// Another store with the same content.
    pub foreign: World,
}

struct Writer {
    engine: Box<dyn Engine>,
    content: Content,
}

impl Writer {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.engine.put(&key, &value, Durability::Durable).expect("a whole store takes a put");
        self.content.put(key, value);
    }

    fn delete(&mut self, number: usize) {
        self.engine.delete(&key(number), Durability::Durable).expect("a whole store takes a delete");
        self.content.delete(&key(number));
    }

    fn batch(&mut self, numbers: &[usize], version: usize) {
        let mut batch = WriteBatch::new();
        for number in numbers {
            batch.put(key(*number), value(*number, version)).expect("a small batch");
            self.content.put(key(*number), value(*number, version));
        }
        self.engine.write(&batch, Durability::Durable).expect("a whole store takes a batch");
    }
}

/// A store with keys of all kinds, short and long, values new, moved to flash and in parts, and keys that were
/// overwritten and deleted in each of them; what it holds; and how it was before.
fn filled_world<S: Sizes>(rig: &Rig<S>) -> (World, Content, Vec<World>) {
    fastrand::seed(1);
    let world = rig.empty_world();
    let mut older = vec![world.copy()];
    let engine = rig.open(&world).expect("a whole store opens");
    let mut writer = Writer { engine, content: Content::default() };
    for number in 0..56 {
        writer.put(key(number), value(number, 0));
    }
    writer.put(b"tall".to_vec(), filled(200, 0, 19_000));
    writer.put(b"tower".to_vec(), filled(201, 0, 30_000));
    writer.engine.flush().expect("room on flash");
    older.push(world.copy());
    for number in (0..56).step_by(3) {
        writer.put(key(number), value(number, 1));
    }
    for number in [1, 4, 11, 14, 29, 31, 37, 46, 53] {
        writer.delete(number);
    }
    writer.batch(&[2, 5, 8, 60, 61], 2);
    writer.put(b"tower".to_vec(), filled(201, 1, 29_000));
    writer.engine.flush().expect("room on flash");
    older.push(world.copy());
    writer.batch(&[2, 7, 13, 62], 3);
    for number in [0, 6, 10, 19, 22, 23, 63] {
        writer.put(key(number), value(number, 4));
    }
    for number in [16, 62] {
        writer.delete(number);
    }
    let content = writer.content;
    drop(writer.engine);
    (world, content, older)
}

/// What came of a look at a damaged store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It does not open, and says why.
    Refused,
    /// It opens; some keys, or none, cannot be read, or `verify` has found something.
    Noticed {
        /// How many keys cannot be read.
        lost: usize,
    },
    /// All is as it should be.
    Whole,
}

/// How closely to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Open, read everything in two ways, verify.
    Read,
    /// Then write every key, move everything, and do it again after another open.
    Write,
}

impl<S: Sizes> Base<S> {
    /// A store to damage, whose last writes are not on flash. `foreign` are the sizes of another store.
    pub fn new(rig: Rig<S>, foreign: S) -> Self {
        let foreign = filled_world(&Rig::new(foreign, rig.log)).0;
        let (world, content, older) = filled_world(&rig);
        Base { rig, world, content, older, foreign }
    }

    /// Damages a copy and looks at it.
    ///
    /// # Errors
    /// What must not be: a wrong value, a key that is silently gone, damage that spreads.
    pub fn harmed(&self, harm: &Harm, look: Look) -> Result<Seen, String> {
        self.examine(&harm.apply(self), look)
    }

    /// Looks at the store of `world`, which held this base's content before something happened to it.
    pub fn examine(&self, world: &World, look: Look) -> Result<Seen, String> {
        let engine = match self.rig.open(world) {
            Ok(engine) => engine,
            Err(error) => {
                let says_so = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Refused);
                return if says_so { Ok(Seen::Refused) } else { Err(format!("open: {error}")) };
            }
        };
        let read = read_all(&*engine, &self.content)?;
        let report = engine.verify().map_err(|error| format!("verify: {error}"))?;
        check_report(&report, &read, self.rig.sizes.scans_up_to_damage())?;
        let lost = read.lost;
        let seen = if report.is_clean() { Seen::Whole } else { Seen::Noticed { lost: lost.len() } };
        if look == Look::Write {
            self.write_on(engine, world, &lost)?;
        }
        Ok(seen)
    }

    /// What can be written must stay, and what could be read must stay readable.
    fn write_on(
        &self,
        engine: Box<dyn Engine>,
        world: &World,
        lost: &BTreeSet<Vec<u8>>,
    ) -> Result<(), String> {
        let mut content = self.content.clone();
        let mut lost = lost.clone();
        let keys: Vec<Vec<u8>> = content.history.keys().cloned().collect();
        for (number, key) in keys.iter().enumerate() {
            if number % 3 == 0 {
                // Left as they are: no write to others may cost them anything.
                continue;
            }
            let value = filled(number, 90, if number % 5 == 0 { 900 } else { 60 });
            let written = match number % 4 {
                0 => engine.delete(key, Durability::Durable).map(|()| None),
                _ => engine.put(key, &value, Durability::Durable).map(|()| Some(value)),
            };
            match written {
                Ok(Some(value)) => {
                    content.put(key.clone(), value);
                    lost.remove(key);
                }
                Ok(None) => {
                    content.delete(key);
                    lost.remove(key);
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    lost.insert(key.clone());
                }
                Err(error) => return Err(format!("a write to {}: {error}", show(key))),
            }
        }
        let moved = [engine.flush(), engine.compact(), engine.flush()];
        if let Some(Err(error)) = moved.into_iter().find(std::result::Result::is_err) {
            return Err(format!("flush or compact: {error}"));
        }
        let now = read_all(&*engine, &content)?.lost;
        if let Some(key) = now.difference(&lost).next() {
            return Err(format!("{} could be read before other keys were written", show(key)));
        }
        drop(engine);
        let engine = self.rig.open(world).map_err(|error| format!("a second open: {error}"))?;
        let now = read_all(&*engine, &content).map_err(|wrong| format!("after a second open: {wrong}"))?.lost;
        if let Some(key) = now.difference(&lost).next() {
            return Err(format!("{} could be read before a second open", show(key)));
        }
        Ok(())
    }
}

/// A key in words, cut.
pub fn show(key: &[u8]) -> String {
    tierdb_base::hex::printable(&key[..key.len().min(40)])
}

/// An error of a damaged key says that it is damaged, and which key it is.
fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { key: Some(_), .. })
}

/// What could not be read.
struct Read {
    /// The keys of which it was said.
    lost: BTreeSet<Vec<u8>>,
    /// Where damage ended scans.
    ends: Vec<End>,
}

/// The key that a scan should have come to, and the one before.
struct End {
    key: Vec<u8>,
    before: Option<Vec<u8>>,
    reverse: bool,
}

/// Reads every key and scans, forward and backward.
fn read_all(engine: &dyn Engine, content: &Content) -> Result<Read, String> {
    let mut lost = BTreeSet::new();
    for (key, value) in &content.entries {
        match engine.get(key) {
            Ok(Some(found)) if *found == value[..] => {}
            Ok(Some(found)) => {
                let older = content.history.get(key).is_some_and(|all| all.iter().any(|v| *found == v[..]));
                let what = if older { "an older" } else { "another" };
                return Err(format!("{}: {what} value, of {} bytes", show(key), found.len()));
            }
            Ok(None) => return Err(format!("{}: silently gone", show(key))),
            Err(error) if is_damage(&error) => {
                lost.insert(key.clone());
            }
            Err(error) => return Err(format!("get of {}: {error}", show(key))),
        }
    }
    for key in content.absent() {
        match engine.get(&key) {
            Ok(None) => {}
            Ok(Some(value)) => return Err(format!("{}: {} bytes are back", show(&key), value.len())),
            Err(error) if is_damage(&error) => {}
            Err(error) => return Err(format!("get of {}, which is absent: {error}", show(&key))),
        }
    }
    let mut ends = Vec::new();
    for reverse in [false, true] {
        ends.extend(scan(engine, content, &lost, reverse)?.filter(|end| !lost.contains(&end.key)));
    }
    Ok(Read { lost, ends })
}

/// Returns where damage ends it, if there is a key that it should have come to.
fn scan(
    engine: &dyn Engine,
    content: &Content,
    lost: &BTreeSet<Vec<u8>>,
    reverse: bool,
) -> Result<Option<End>, String> {
    let mut cursor = engine.cursor(KeyRange::all(), None).map_err(|error| format!("cursor: {error}"))?;
    let mut expected: Vec<(&Vec<u8>, &Vec<u8>)> = content.entries.iter().collect();
    if reverse {
        expected.reverse();
    }
    let mut before = None;
    for (key, value) in expected {
        let next = if reverse { cursor.prev() } else { cursor.next() };
        match next {
            Ok(Some((found, bytes))) if found == *key && *bytes == value[..] => before = Some(found),
            Ok(Some((found, _))) if found != *key => {
                return Err(format!(
                    "scan, reverse {reverse}: {} where {} should be",
                    show(&found),
                    show(key)
                ));
            }
            Ok(Some(_)) => return Err(format!("scan: another value of {}", show(key))),
            Ok(None) => return Err(format!("scan, reverse {reverse}: ends before {}", show(key))),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let again = if reverse { cursor.prev() } else { cursor.next() };
                return match again {
                    Err(error) if error.kind() == ErrorKind::Corrupt => {
                        Ok(Some(End { key: key.clone(), before, reverse }))
                    }
                    other => Err(format!("scan: after {error} comes {other:?}")),
                };
            }
            Err(error) => return Err(format!("scan at {}: {error}", show(key))),
        }
    }
    match if reverse { cursor.prev() } else { cursor.next() } {
        Ok(None) if lost.is_empty() => Ok(None),
        Ok(None) => Err(format!("scan: passes {} keys that cannot be read", lost.len())),
        Ok(Some((key, _))) => Err(format!("scan: {} at the end", show(&key))),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
        Err(error) => Err(format!("scan at the end: {error}")),
    }
}

/// Every key that cannot be read is in the report, and so is what ended a scan: `at` the key that it should have come to, or
/// anywhere ahead of the one before.
fn check_report(report: &VerifyReport, read: &Read, at: bool) -> Result<(), String> {
    let is_told = |is_it: &dyn Fn(&KeyRange) -> bool| {
        report.damage.iter().any(|damage| damage.keys.as_ref().is_some_and(is_it))
    };
    if let Some(key) = read.lost.iter().find(|key| !is_told(&|range| range.contains(key))) {
        return Err(format!("verify does not report {}", show(key)));
    }
    let ends_it = |End { key, before, reverse }: &End| {
        let is_passed = |range: &KeyRange| {
            let is_behind = |key: &Vec<u8>| if *reverse { range.is_before(key) } else { range.is_after(key) };
            before.as_ref().is_some_and(is_behind)
        };
        is_told(&|range| if at { range.contains(key) } else { !is_passed(range) })
    };
    match read.ends.iter().find(|end| !ends_it(end)) {
        Some(End { key, reverse, .. }) => {
            Err(format!("a scan, reverse {reverse}, ends at {}, which is not damaged", show(key)))
        }
        None => Ok(()),
    }
}

/// Counts of damaged stores.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Stores that were looked at.
    pub stores: u64,
    /// Those that do not open.
    pub refused: u64,
    /// Those with keys that cannot be read.
    pub with_lost_keys: u64,
    /// Keys that cannot be read.
    pub lost_keys: u64,
    /// Those of which only `verify` knows.
    pub only_verify: u64,
    /// Those that are as before.
    pub harmless: u64,
}

impl Tally {
    /// One more store.
    pub fn count(&mut self, seen: Seen) {
        self.stores += 1;
        match seen {
            Seen::Refused => self.refused += 1,
            Seen::Noticed { lost: 0 } => self.only_verify += 1,
            Seen::Noticed { lost } => {
                self.with_lost_keys += 1;
                self.lost_keys += lost as u64;
            }
            Seen::Whole => self.harmless += 1,
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.stores += other.stores;
        self.refused += other.refused;
        self.with_lost_keys += other.with_lost_keys;
        self.lost_keys += other.lost_keys;
        self.only_verify += other.only_verify;
        self.harmless += other.harmless;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { stores, refused, with_lost_keys, lost_keys, only_verify, harmless } = self;
        write!(
            f,
            "{stores} damaged stores: {refused} refused, {with_lost_keys} with {lost_keys} keys lost, {only_verify} \
             known to verify only, {harmless} as before"
        )
    }
}

/// Looks at a store for each of `harms`, and closely at every `closely`-th.
pub fn survey<S: Sizes>(
    name: &str,
    base: &Base<S>,
    harms: impl IntoIterator<Item = Harm>,
    closely: u64,
) -> Tally {
    let (watch, start) = (Watch::new(), Instant::now());
    let (mut tally, mut wrong, mut slowest) = (Tally::default(), Vec::new(), (Duration::ZERO, None));
    for harm in harms {
        watch.begin(harm.clone());
        let begun = Instant::now();
        let look = if tally.stores % closely == 0 { Look::Write } else { Look::Read };
        match base.harmed(&harm, look) {
            Ok(seen) => tally.count(seen),
            Err(what) => {
                tally.stores += 1;
                wrong.push(format!("{harm:?}: {what}"));
            }
        }
        if begun.elapsed() > slowest.0 {
            slowest = (begun.elapsed(), Some(harm));
        }
    }
    println!("{name}: {tally}, in {:.1?}; slowest {slowest:?}", start.elapsed());
    assert!(wrong.is_empty(), "{} of {}: {:#?}", wrong.len(), tally.stores, &wrong[..wrong.len().min(20)]);
    tally
}
