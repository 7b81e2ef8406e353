//! Checks and repairs of a closed store, neither of which changes it.
//!
//! A repair writes what can be read into a new store, in the first of two ways that works:
//! 1. The index is whole: every key has its value, but for those whose value is damaged.
//! 2. It is not: records are looked for by themselves, on all tiers. One that a pointer still names is its key's
//!    value. Of a key without such a record the newest one is taken, and the key is listed: it may have been
//!    overwritten or deleted since, in what was lost. In a store of the slab engine the live records of the fast tier are such,
//!    and what is in tables is not.

use crate::config::{Config, EngineKind};
use crate::frozen::{self, Work};
use crate::setup::{self, Prepared};
use crate::tiers::{Intent, Remains};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::Bound;
use std::path::Path;
use tierdb_base::{Error, ErrorKind, Location, Result, Seqno, hex};
use tierdb_device::{Dir, RealDir};
use tierdb_engine::{Damage, Durability, Engine, KeyRange, VerifyReport};
use tierdb_pmem::Pool;
use tierdb_slab::SlabStore;
use tierdb_valuelog::{Background, Media, Options, ValueLog, salvage};

/// The file in a repaired store that says what was saved and what was not.
pub const REPORT_NAME: &str = "REPAIR-REPORT.txt";

/// Checks the closed store that `config` describes: reads everything and compares all checksums and pointers.
///
/// Nothing is changed: where the store was not closed, recovery is done in memory only. A store that cannot be
/// opened for damage gives a report that says so.
///
/// # Errors
/// `NotFound`, `TierMissing`, `Locked` and others of opening, but none for damage.
pub fn verify_offline(config: &Config) -> Result<VerifyReport> {
    let report =
        Prepared::begin(config, Intent::OpenExisting, None).map(Prepared::into_remains).and_then(|remains| {
            let check = Check { config, engine: remains.shape.engine };
            frozen::with_media(&remains, false, check)
        });
    match report {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            Ok(VerifyReport { damage: vec![damage(&error)], ..VerifyReport::default() })
        }
        other => other,
    }
}

struct Check<'a> {
    config: &'a Config,
    engine: EngineKind,
}

impl Work for Check<'_> {
    type Output = VerifyReport;

    fn run<P: Pool, D: Dir>(self, media: Media<P, D>, mut damage: Vec<Damage>) -> Result<VerifyReport> {
        let engine = open(self.config, self.engine, media)?;
        let mut report = engine.verify()?;
        damage.append(&mut report.damage);
        Ok(VerifyReport { damage, ..report })
    }
}

/// An engine without threads of its own.
fn open<P: Pool, D: Dir>(config: &Config, engine: EngineKind, media: Media<P, D>) -> Result<Box<dyn Engine>> {
    let (memory, pool_len) = (config.memory_budget().bytes(), media.pool.len());
    let background = Background::Inline;
    Ok(match engine {
        EngineKind::Valuelog => {
            Box::new(ValueLog::open(media, Options { background, ..Options::for_pool(memory, pool_len) })?)
        }
        EngineKind::Slab => {
            let options = tierdb_slab::Options::for_pool(memory, pool_len);
            Box::new(SlabStore::open(media, tierdb_slab::Options { background, ..options })?)
        }
    })
}

fn damage(error: &Error) -> Damage {
    let place: Option<Location> = match error {
        Error::Corrupt { place, .. } => Some(place.clone()),
        _ => None,
    };
    Damage { what: error.to_string(), place, first_key: None, last_key: None }
}

/// What a repair saved and what it met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepairReport {
    /// Keys in the new store.
    pub keys: u64,
    /// Those of them that may have been overwritten or deleted since, because nothing says any more which
    /// record is the last one. Listed in the report file.
    pub uncertain: u64,
    /// Whether the index could be used. If not, a key all of whose records are damaged is not known to be missing.
    pub index_whole: bool,
    /// What is damaged in the old store, by key where that is known.
    pub damage: Vec<Damage>,
    /// Tiers that are missing or hard to recognise.
    pub notes: Vec<String>,
}

/// Saves what can be read of the store that `source` describes into the new store that `target` describes.
///
/// The old store stays as it is, and some of its tiers may be missing. The new one gets a file
/// [`REPORT_NAME`] that says what was saved, what is damaged, and which keys are uncertain (see
/// [`RepairReport::uncertain`]). Needs DRAM for all keys where the index is lost, and for the whole pool where that is
/// byte-addressable. Returns when the new store survives power loss.
///
/// # Errors
/// `NotFound` or `Corrupt` if nothing says which store the source is; `ForeignTier`; `Locked`; `Invalid` or
/// `NotAStore` if the target is not empty; `NoSpace` of the target.
pub fn repair(source: &Config, target: &Config) -> Result<RepairReport> {
    source.validate()?;
    let remains = Remains::find(setup::places_left(source)?)?;
    // How much of its pool was index is not known; `memory` says what there is, where it is set.
    let from_logged = remains.shape.mode.is_logged() && target.engine == EngineKind::Valuelog;
    let least_pool = (from_logged && target.memory.is_none()).then_some(remains.shape.pool_len);
    let mut prepared = Prepared::begin(target, Intent::CreateNew, least_pool)?;
    let to = prepared.engine()?;
    let mut report = RepairReport { notes: remains.notes.clone(), ..RepairReport::default() };
    let complete = remains.fast.iter().chain(&remains.flash).all(|tier| tier.dir.is_some());
    let engine = remains.shape.engine;
    let by_index = ByIndex { config: source, engine, to: &*to, report: &mut report };
    // Whatever goes wrong with the old store here, the records themselves may still be read.
    let done = complete && frozen::with_media(&remains, false, by_index).unwrap_or(Ok(false))?;
    let mut uncertain = Vec::new();
    if !done {
        report.damage.clear();
        uncertain = frozen::with_media(&remains, true, ByRecord { engine, to: &*to, report: &mut report })?;
    }
    report.index_whole = done;
    report.uncertain = uncertain.len() as u64;
    to.flush()?;
    to.sync()?;
    report.keys = to.stats().keys;
    to.close()?;
    drop(to);
    write_report(prepared.path(), &remains, &report, &uncertain)?;
    prepared.finish()?;
    Ok(report)
}

/// The first way: all that the index names.
struct ByIndex<'a> {
    config: &'a Config,
    engine: EngineKind,
    to: &'a dyn Engine,
    report: &'a mut RepairReport,
}

impl Work for ByIndex<'_> {
    /// Whether it worked; the error is one of the new store.
    type Output = Result<bool>;

    fn run<P: Pool, D: Dir>(self, media: Media<P, D>, damage: Vec<Damage>) -> Result<Result<bool>> {
        let engine = open(self.config, self.engine, media)?;
        let mut found = engine.verify()?.damage;
        // What the slab engine finds without a key is a second copy of something, and costs none.
        let spreads = |damage: &Damage| damage.first_key.is_none() && self.engine == EngineKind::Valuelog;
        if !damage.is_empty() || found.iter().any(spreads) {
            return Ok(Ok(false));
        }
        found.sort_by(|a, b| a.first_key.cmp(&b.first_key));
        let mut from = Bound::Unbounded;
        for gap in found.iter().filter(|damage| damage.first_key.is_some()).map(Some).chain([None]) {
            let end = gap.and_then(|gap| gap.first_key.clone()).map_or(Bound::Unbounded, Bound::Excluded);
            let mut cursor = engine.cursor(KeyRange { start: from, end }, None)?;
            while let Some((key, value)) = cursor.next()? {
                if let Err(error) = self.to.put(&key, &value, Durability::Grouped) {
                    return Ok(Err(error));
                }
            }
            let last = gap.and_then(|gap| gap.last_key.clone().or(gap.first_key.clone()));
            from = last.map_or(Bound::Unbounded, Bound::Excluded);
        }
        self.report.damage = found;
        Ok(Ok(true))
    }
}

/// The second way: all whole records, wherever they are.
struct ByRecord<'a> {
    engine: EngineKind,
    to: &'a dyn Engine,
    report: &'a mut RepairReport,
}

impl Work for ByRecord<'_> {
    /// The uncertain keys, in order.
    type Output = Vec<Vec<u8>>;

    fn run<P: Pool, D: Dir>(self, media: Media<P, D>, damage: Vec<Damage>) -> Result<Vec<Vec<u8>>> {
        self.report.damage = damage;
        let notes = &mut self.report.notes;
        let mut saved = Saved { to: self.to, best: HashMap::new() };
        match self.engine {
            EngineKind::Valuelog => {
                let looked = salvage(media, &mut |r| saved.take(r.key, Some(r.value), (r.sure, r.seqno)))?;
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
                let looked =
                    tierdb_slab::salvage(media, &mut |v| saved.take(v.key, v.value, (v.sure, v.seqno)))?;
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
        Ok(saved.uncertain())
    }
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
        true => writeln!(text, "the index is whole: only the keys named below are lost"),
        false => writeln!(text, "the index could not be used: records were looked for by themselves"),
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
        if let Some(key) = &damage.first_key {
            let _ = write!(text, ", key {}", hex::printable(key));
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
