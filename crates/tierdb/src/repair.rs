//! Checks and repairs of a closed store, neither of which changes it.
//!
//! A repair writes what can be read into a new store, in the first of two ways that works:
//! 1. The store opens. What its index leads to is copied by cursors, up to the damage that a check has found and on behind
//!    it. For the keys that damage may concern, and those that a cursor did not get to, records are looked for as below;
//!    but where the engine answers for a key that was found, its answer counts.
//! 2. It does not. Records are looked for by themselves, on all tiers. One that a pointer still names is its key's
//!    value. Of a key without such a record the newest one is taken, and the key is listed: it may have been
//!    overwritten or deleted since, in what was lost. In a store of the slab engine the live records of the fast tier are such,
//!    and what is in tables is not.
//!
//! Of one key whose record is damaged, the valuelog engine has no other record that could be the last one: it is lost. In
//! a store of the slab engine the record on the fast tier may be a copy of what a table has.

use crate::config::{Config, EngineKind};
use crate::frozen;
use crate::identity::Mode;
use crate::setup::{self, Prepared};
use crate::tiers::{Intent, Remains};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::Bound;
use std::path::Path;
use tierdb_base::{Error, ErrorKind, Result, Seqno, hex};
use tierdb_device::RealDir;
use tierdb_engine::{Background, Damage, Durability, Engine, KeyRange, Value, VerifyReport};
use tierdb_media::{Options, StoreMedia};

/// The file in a repaired store that says what was saved and what was not.
pub const REPORT_NAME: &str = "REPAIR-REPORT.txt";

/// Checks the closed store that `config` describes: reads everything and compares all checksums and pointers.
///
/// Nothing is changed, but that a directory without a `LOCK` file gets one if it can, so its media may be ones that cannot be written: where the store was not closed, recovery is done in
/// memory only. A store that cannot be opened for damage, or since a medium does not give back what it holds, gives a report that
/// says so. Needs DRAM for the whole pool where that is byte-addressable.
///
/// # Errors
/// `NotFound`, `TierMissing`, `Locked` and others of opening, but none for damage; `Unsupported` if there is not so much DRAM.
pub fn verify_offline(config: &Config) -> Result<VerifyReport> {
    let report = Prepared::look(config).and_then(|remains| {
        let (media, mut damage) = frozen::media_of(&remains, false)?;
        let mut report = open(config, remains.shape.engine, media)?.verify()?;
        damage.append(&mut report.damage);
        Ok(VerifyReport { damage, ..report })
    });
    let is_damage =
        |error: &Error| error.kind() == ErrorKind::Corrupt || matches!(error, Error::Io { op: "read", .. });
    match report {
        Err(error) if is_damage(&error) => {
            Ok(VerifyReport { damage: vec![damage(&error)], ..VerifyReport::default() })
        }
        other => other,
    }
}

/// An engine without threads of its own.
pub(crate) fn open(config: &Config, engine: EngineKind, media: StoreMedia) -> Result<Box<dyn Engine>> {
    let (memory, pool_len) = (config.memory_budget().bytes(), media.pool_len());
    let background = Background::Inline;
    media.open(match engine {
        EngineKind::Valuelog => {
            let options = tierdb_valuelog::Options::for_pool(memory, pool_len);
            Options::Valuelog(tierdb_valuelog::Options { background, ..options })
        }
        EngineKind::Slab => {
            let options = tierdb_slab::Options::for_pool(memory, pool_len);
            // Of as many files as a store may have open: the one that is made of this one has its own, and so has the overlay.
            let open_tables = (setup::open_tables() / 4).max(16);
            Options::Slab(tierdb_slab::Options { background, open_tables, ..options })
        }
    })
}

fn damage(error: &Error) -> Damage {
    match error {
        Error::Corrupt { tier, what, place, key } => {
            let key = key.as_ref().map(|key| format!(" (key {key})")).unwrap_or_default();
            Damage { what: format!("{tier} is corrupt: {what}{key}"), place: Some(place.clone()), keys: None }
        }
        _ => Damage { what: error.to_string(), place: None, keys: None },
    }
}

/// What a repair saved and what it met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// Keys in the new store, as [`Stats::keys`](crate::Stats::keys) counts them.
    pub keys: u64,
    /// Those of them that may have been overwritten or deleted since, because nothing says any more which
    /// record is the last one. Listed in the report file.
    pub uncertain: u64,
    /// Whether all keys are known. If not, a key all of whose records are damaged is not known to be missing: it is in one
    /// of the ranges of keys that `damage` names, or anywhere where that names none.
    pub index_whole: bool,
    /// What is damaged in the old store, by key where that is known.
    pub damage: Vec<Damage>,
    /// What else is damaged, in words: tiers that are missing or hard to recognise, and why records had to be looked for. Empty where
    /// the old store is whole.
    pub notes: Vec<String>,
}

/// Saves what can be read of the store that `source` describes into the new store that `target` describes.
///
/// The old store stays as it is (but for a `LOCK` file in directories that have none), and some of its tiers may be missing. The new one has
/// the engine that `target` names, and gets a file
/// [`REPORT_NAME`] that says what was saved, what is damaged, and which keys are uncertain (see
/// [`RepairReport::uncertain`]). Needs DRAM for the whole pool where that is byte-addressable, or where records of the slab engine are read
/// from a block device and the store does not open; where damage concerns ranges of keys, for these keys, and for all pointers or the values
/// on the fast tier; where the index is lost, for all keys. Returns when the new store survives power loss.
///
/// # Errors
/// `NotFound` or `Corrupt` if nothing says which store the source is; `ForeignTier`; `Locked`; `Invalid` or
/// `NotAStore` if the target is not empty; `NoSpace` of the target; `Io` for a file of the source that is there and may not be read, or cannot
/// be opened because too many are: what others could read is not lost.
pub fn repair(source: &Config, target: &Config) -> Result<RepairReport> {
    source.validate()?;
    let remains = Remains::find(setup::places_left(source)?)?;
    // How much of its pool was index is not known; `memory` says what there is, where it is set. A paged pool is as long as its device, and
    // was not in memory.
    let shape = &remains.shape;
    let was_in_memory = shape.mode.is_logged() && shape.mode != Mode::Paged;
    let from_logged = was_in_memory && target.engine == EngineKind::Valuelog;
    let least_pool = (from_logged && target.memory.is_none()).then_some(shape.pool_len);
    let mut prepared = Prepared::begin(target, Intent::CreateNew, least_pool)?;
    let to = prepared.engine()?;
    let mut report = RepairReport { notes: remains.notes.clone(), ..RepairReport::default() };
    let complete = remains.fast.iter().chain(&remains.flash).all(|tier| tier.dir.is_some());
    let engine = remains.shape.engine;
    let by_index = ByIndex { config: source, engine, to: &*to, report: &mut report };
    let done = if complete {
        frozen::media_of(&remains, false).and_then(|(media, damage)| by_index.run(media, damage))
    } else {
        Ok(Ok(None))
    };
    // Whatever goes wrong with the old store here, the records themselves may still be read.
    let done = match done {
        Err(error) if error.is_of_the_process() => return Err(error),
        Err(error) => {
            report.notes.push(format!("the store does not open, so records were looked for: {error}"));
            None
        }
        Ok(done) => done?,
    };
    let uncertain = match done {
        Some(uncertain) => uncertain,
        None => {
            let (media, damage) = frozen::media_of(&remains, true)?;
            report.damage.extend(damage);
            by_record(engine, media, &*to, &mut report.notes)?
        }
    };
    report.uncertain = uncertain.len() as u64;
    report.index_whole &= !remains.is_unfinished;
    to.flush()?;
    to.sync()?;
    report.keys = to.stats().keys;
    to.close()?;
    drop(to);
    write_report(prepared.path(), &remains, &report, &uncertain)?;
    prepared.finish()?;
    Ok(report)
}

/// The first way: all that the index leads to, and records of what it does not.
struct ByIndex<'a> {
    config: &'a Config,
    engine: EngineKind,
    to: &'a dyn Engine,
    report: &'a mut RepairReport,
}

impl ByIndex<'_> {
    /// The uncertain keys, in order; `None` if it did not work. The inner error is one of the new store.
    fn run(self, media: StoreMedia, damage: Vec<Damage>) -> Result<Result<Option<Vec<Vec<u8>>>>> {
        let engine = open(self.config, self.engine, media.again())?;
        let found = engine.verify()?.damage;
        // What the slab engine finds without a key is a second copy of something, and costs none.
        let spreads = |damage: &Damage| damage.keys.is_none() && self.engine == EngineKind::Valuelog;
        let of_any_key = !damage.is_empty() || found.iter().any(spreads);
        self.report.damage = found;
        if of_any_key {
            return Ok(Ok(None));
        }
        Ok(self.save(&*engine, media).map(Some))
    }

    fn save(self, engine: &dyn Engine, media: StoreMedia) -> Result<Vec<Vec<u8>>> {
        let RepairReport { damage, notes, index_whole, .. } = self.report;
        let ranges: Vec<KeyRange> = damage.iter().filter_map(|damage| damage.keys.clone()).collect();
        let named: BTreeSet<Vec<u8>> =
            ranges.iter().filter_map(|range| range.only_key().map(<[u8]>::to_vec)).collect();
        let mut gaps = joined(ranges);
        for stretch in between(&gaps) {
            if let Some((rest, error)) = copy(engine, &stretch, self.to)? {
                let keys = rest.in_words(hex::printable);
                notes.push(format!("records were looked for, since no cursor passes {keys}: {error}"));
                gaps.push(rest);
            }
        }
        gaps = joined(gaps);
        *index_whole = gaps.iter().all(|range| range.only_key().is_some());
        if self.engine == EngineKind::Valuelog {
            gaps.retain(|range| range.only_key().is_none());
        }
        let mut saved = Saved { to: self.to, best: HashMap::new() };
        // What is read as of a snapshot is not promoted: nothing is moved to where damage is.
        let now = engine.snapshot()?;
        if !gaps.is_empty() {
            look_for_records(self.engine, media, notes, &mut |key, value, rank| {
                let gap = gaps.get(gaps.partition_point(|range| range.is_after(&key)));
                if !gap.is_some_and(|range| range.contains(&key)) {
                    return Ok(());
                }
                if !named.contains(&key)
                    && !saved.best.contains_key(&key)
                    && let Ok(answer) = engine.get_at(&key, &now)
                {
                    return saved.take(key, answer.map(Value::into_vec), (true, Seqno::MAX));
                }
                saved.take(key, value, rank)
            })?;
        }
        for key in named {
            // The engine may answer for it all the same. That is not sure, and counts only where no record was found.
            if let Ok(value) = engine.get_at(&key, &now) {
                saved.take(key, value.map(Value::into_vec), (false, 0))?;
            }
        }
        Ok(saved.uncertain())
    }
}

/// Copies the entries of `range` as far as a cursor passes; what it did not get to, and why. The error is one of `to`.
fn copy(engine: &dyn Engine, range: &KeyRange, to: &dyn Engine) -> Result<Option<(KeyRange, Error)>> {
    let mut rest = range.clone();
    let mut cursor = match engine.cursor(range.clone(), None) {
        Ok(cursor) => cursor,
        Err(error) => return Ok(Some((rest, error))),
    };
    loop {
        match cursor.next() {
            Ok(Some((key, value))) => {
                to.put(&key, &value, Durability::Grouped)?;
                rest.start = Bound::Excluded(key);
            }
            Ok(None) => return Ok(None),
            Err(error) => return Ok(Some((rest, error))),
        }
    }
}

/// A place in the order of keys: below or above all of them, or just before or after one.
type Cut<'a> = (i8, &'a [u8], bool);

fn start_of(range: &KeyRange) -> Cut<'_> {
    match &range.start {
        Bound::Unbounded => (-1, b"", false),
        Bound::Included(key) => (0, key, false),
        Bound::Excluded(key) => (0, key, true),
    }
}

fn end_of(range: &KeyRange) -> Cut<'_> {
    match &range.end {
        Bound::Excluded(key) => (0, key, false),
        Bound::Included(key) => (0, key, true),
        Bound::Unbounded => (1, b"", false),
    }
}

/// The same keys in order, by ranges of which none touches another.
fn joined(mut ranges: Vec<KeyRange>) -> Vec<KeyRange> {
    ranges.sort_by(|a, b| start_of(a).cmp(&start_of(b)));
    let mut joined: Vec<KeyRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if start_of(&range) <= end_of(last) => {
                if end_of(last) < end_of(&range) {
                    last.end = range.end;
                }
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// The keys that are in none of `gaps`, which are in order and do not touch.
fn between(gaps: &[KeyRange]) -> Vec<KeyRange> {
    let mut between = Vec::new();
    let mut from = Some(Bound::Unbounded);
    for gap in gaps {
        if let (Some(start), Some(end)) = (from, other_side(&gap.start)) {
            between.push(KeyRange { start, end });
        }
        from = other_side(&gap.end);
    }
    between.extend(from.map(|start| KeyRange { start, end: Bound::Unbounded }));
    between
}

/// The bound of what lies on the other side of one, if anything does.
fn other_side(bound: &Bound<Vec<u8>>) -> Option<Bound<Vec<u8>>> {
    match bound {
        Bound::Included(key) => Some(Bound::Excluded(key.clone())),
        Bound::Excluded(key) => Some(Bound::Included(key.clone())),
        Bound::Unbounded => None,
    }
}

/// The second way: all whole records, wherever they are. Returns the uncertain keys, in order.
fn by_record(
    engine: EngineKind,
    media: StoreMedia,
    to: &dyn Engine,
    notes: &mut Vec<String>,
) -> Result<Vec<Vec<u8>>> {
    let mut saved = Saved { to, best: HashMap::new() };
    look_for_records(engine, media, notes, &mut |key, value, rank| saved.take(key, value, rank))?;
    Ok(saved.uncertain())
}

/// A version of a key, with whether it is sure to be the last one, and its seqno.
type Take<'a> = dyn FnMut(Vec<u8>, Option<Vec<u8>>, (bool, Seqno)) -> Result<()> + 'a;

/// Gives all whole records on `media` to `take`, and says in `notes` what was looked at.
fn look_for_records(
    engine: EngineKind,
    media: StoreMedia,
    notes: &mut Vec<String>,
    take: &mut Take<'_>,
) -> Result<()> {
    match engine {
        EngineKind::Valuelog => {
            let looked = media.salvage_valuelog(&mut |r| take(r.key, Some(r.value), (r.sure, r.seqno)))?;
            notes.push(format!(
                "{} whole records were found, {} of them named by pointers",
                looked.records, looked.sure
            ));
            if looked.incomplete > 0 {
                notes.push(format!("{} long values lack a part, and were left out", looked.incomplete));
            }
            if looked.unreadable > 0 {
                notes.push(format!("{} blocks could not be read", looked.unreadable));
            }
        }
        EngineKind::Slab => {
            let looked = media.salvage_slab(&mut |v| take(v.key, v.value, (v.sure, v.seqno)))?;
            notes.push(format!(
                "{} live records were found on the fast tier, and {} entries in {} tables on flash",
                looked.records, looked.entries, looked.tables
            ));
            if looked.damaged > 0 {
                notes.push(format!("{} records or slabs of the fast tier are damaged", looked.damaged));
            }
            if looked.unreadable > 0 {
                notes.push(format!("{} tables could not be opened", looked.unreadable));
            }
        }
    }
    Ok(())
}

/// What is known of a key's last version so far: whether it is sure, its seqno, and whether it is a value.
type Rank = ((bool, Seqno), bool);

/// The last version of every key that was found, in the new store.
struct Saved<'a> {
    to: &'a dyn Engine,
    best: HashMap<Vec<u8>, Rank>,
}

impl Saved<'_> {
    /// A version: what is sure says more than an order, and a later write more than an earlier.
    fn take(&mut self, key: Vec<u8>, value: Option<Vec<u8>>, rank: (bool, Seqno)) -> Result<()> {
        let before = self.best.get(&key).copied();
        if before.is_some_and(|(known, _)| known >= rank) {
            return Ok(());
        }
        match &value {
            Some(value) => self.to.put(&key, value, Durability::Grouped)?,
            None if before.is_some_and(|(_, there)| there) => self.to.delete(&key, Durability::Grouped)?,
            None => {}
        }
        self.best.insert(key, (rank, value.is_some()));
        Ok(())
    }

    /// The keys whose value may not be the last one, in order.
    fn uncertain(self) -> Vec<Vec<u8>> {
        let uncertain = self.best.into_iter().filter(|(_, ((sure, _), there))| !sure && *there);
        let mut keys: Vec<Vec<u8>> = uncertain.map(|(key, _)| key).collect();
        keys.sort_unstable();
        keys
    }
}

/// Writes [`REPORT_NAME`] into the new store at `path`, durable on return.
fn write_report(
    path: &Path,
    source: &Remains<RealDir>,
    report: &RepairReport,
    uncertain: &[Vec<u8>],
) -> Result<()> {
    let mut text = format!("TierDB repair\n\nsaved from: store {}\n", source.uuid);
    for tier in source.fast.iter().chain(&source.flash) {
        let state = if tier.dir.is_some() { "" } else { " (missing)" };
        let _ = writeln!(text, "  {}{state}", tier.path.display());
    }
    let _ = writeln!(text, "keys saved: {}", report.keys);
    let _ = match report.index_whole {
        true => writeln!(text, "all keys are known: none is lost but those named below"),
        false => {
            writeln!(text, "not all keys are known: some may be lost, in the ranges named below if any is")
        }
    };
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    let _ = writeln!(text, "\ndamage: {}", report.damage.len());
    for damage in &report.damage {
        let _ = write!(text, "  {}", damage.what);
        if let Some(place) = &damage.place {
            let _ = write!(text, ", in {place}");
        }
        if let Some(keys) = &damage.keys {
            let _ = write!(text, ", {}", keys.in_words(hex::printable));
        }
        text.push('\n');
    }
    let _ = writeln!(
        text,
        "\nuncertain keys, which may have been overwritten or deleted since: {}",
        uncertain.len()
    );
    for key in uncertain {
        let _ = writeln!(text, "  0x{}", hex::encode(key));
    }
    let path = path.join(REPORT_NAME);
    let io = |op, e| Error::io(op, path.display().to_string(), 0, e);
    let mut file = std::fs::File::create(&path).map_err(|e| io("create", e))?;
    file.write_all(text.as_bytes()).map_err(|e| io("write", e))?;
    file.sync_all().map_err(|e| io("sync", e))?;
    setup::sync_dir(&setup::parent(&path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Bound::{Excluded, Included, Unbounded};

    fn range(start: Bound<&str>, end: Bound<&str>) -> KeyRange {
        KeyRange { start: start.map(|key| key.into()), end: end.map(|key| key.into()) }
    }

    #[test]
    fn keys_between_damage_are_those_that_no_damage_names() {
        let damaged = [
            KeyRange::one("m"),
            range(Included("k"), Excluded("p")),
            range(Included("p"), Included("q")),
            KeyRange::one("b"),
            range(Included("k"), Included("l")),
        ];
        let gaps = joined(damaged.to_vec());
        assert_eq!(gaps, [KeyRange::one("b"), range(Included("k"), Included("q"))]);
        let stretches = [
            range(Unbounded, Excluded("b")),
            range(Excluded("b"), Excluded("k")),
            range(Excluded("q"), Unbounded),
        ];
        assert_eq!(between(&gaps), stretches);
        assert_eq!(between(&[]), [KeyRange::all()]);
        assert_eq!(between(&joined(vec![KeyRange::all(), KeyRange::one("b")])), []);
        let ends = [range(Unbounded, Excluded("b")), range(Excluded("q"), Unbounded)];
        assert_eq!(between(&ends), [range(Included("b"), Included("q"))]);
    }
}
