//! Copies of a store: checkpoints, and stores restored from them.
//!
//! A copy is logical: the entries that one snapshot sees, written in key order into a new store, whose tiers
//! say *creating* until all of it was synced, read back and found equal by count and hash. So a crash at any
//! point leaves a directory that says itself that it holds nothing anybody may rely on.
//!
//! A checkpoint is a store on one SSD that is built under `<dir>.partial`. Its last steps are
//! 1. `CHECKPOINT` (count, hash, and the name it will have) is written and synced;
//! 2. `TIER` says *ready*;
//! 3. the directory gets its name, and the parent directory is synced.
//!
//! A crash between 2 and 3 leaves a ready store under the partial name; it is known as a checkpoint that was
//! not acknowledged by the name in its `CHECKPOINT`, and is replaced like any other partial one.

use crate::config::{Config, EngineKind};
use crate::frozen;
use crate::history::Head;
use crate::repair;
use crate::setup::{self, Prepared};
use crate::tiers::Intent;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use tierdb_base::{
    ByteSize, Error, ErrorKind, Location, MAX_KEY_BYTES, Result, TierRole, Uuid, checksum, checksum_parts,
    matches,
};
use tierdb_engine::{Cursor, Durability, Engine, KeyRange, WriteBatch};

/// The file in a checkpoint that says what it holds.
pub(crate) const RECORD_NAME: &str = "CHECKPOINT";
const FORMAT: u32 = 1;
/// Longer ones are not read: these have some hundred bytes.
const LONGEST_RECORD: u64 = 64 << 10;
/// The least pool and memory of a copy.
const LEAST_POOL: u64 = 32 << 20;
/// What a copy needs of the parts of a `valuelog` fast tier: neither its write buffer, nor what else is kept on pages that the index
/// does not need yet.
const INDEX_PARTS: [&str; 2] = ["key index", "hsit"];
/// Bytes that index and HSIT take for a key, beside its own.
const ENTRY_BYTES: u64 = 48;
/// Keys whose length is taken for that of all.
const SAMPLE: u64 = 1000;
/// Writes of a copy go in batches of about so many bytes: few enough for any write buffer.
const BATCH_BYTES: usize = 256 << 10;

/// What was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// Entries.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// A hash of all keys and values in their order.
    pub hash: u64,
}

/// Counts and hashes entries in key order.
struct Tally(Copied);

impl Tally {
    fn new() -> Self {
        Tally(Copied { entries: 0, bytes: 0, hash: 0 })
    }

    /// Lengths are hashed too, so that bytes cannot move from a key to its value unnoticed.
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let lens = [(key.len() as u64).to_le_bytes(), (value.len() as u64).to_le_bytes()];
        self.0.hash = checksum_parts(self.0.hash, &[&lens[0], key, &lens[1], value]);
        self.0.entries += 1;
        self.0.bytes += (key.len() + value.len()) as u64;
    }
}

/// What `CHECKPOINT` says.
#[derive(Serialize, Deserialize)]
struct Record {
    format: u32,
    /// The directory's name when it is complete.
    name: String,
    /// The store it was made of.
    store: String,
    seqno: u64,
    entries: u64,
    bytes: u64,
    hash: String,
}

/// The bytes of the file at `path`; `None` if it is no file, or longer than `most`. In a directory from elsewhere it may be a link to
/// anything, or a pipe that nobody writes to.
fn read_at_most(path: &Path, most: u64) -> std::io::Result<Option<Vec<u8>>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::LOOP) => return Ok(None),
        opened => File::from(opened?),
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// What stands before the checksum, in hexadecimal digits, of all that stands before it. Nothing but a quotation mark follows.
const SUM: &str = "checksum = \"";

impl Record {
    /// Reads the record in `dir`; `None` if there is none.
    fn read(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join(RECORD_NAME);
        let shown = path.display().to_string();
        let corrupt = |what: &str| {
            Error::corrupt(
                TierRole::Flash,
                format!("checkpoint record: {what}"),
                Location::new(shown.clone(), 0),
            )
        };
        let text = match read_at_most(&path, LONGEST_RECORD) {
            Ok(Some(bytes)) => String::from_utf8(bytes).map_err(|_| corrupt("it is not text"))?,
            Ok(None) => return Err(corrupt("it is no file, or too long for one")),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io("read", shown, 0, e)),
        };
        let parts = text.strip_suffix("\"\n").and_then(|text| text.rsplit_once(SUM));
        let (body, sum) = parts.ok_or_else(|| corrupt("it has no checksum"))?;
        let stored = u64::from_str_radix(sum, 16).map_err(|_| corrupt("its checksum is no number"))?;
        if !matches(stored, checksum(0, body.as_bytes())) {
            return Err(corrupt("its checksum does not fit its contents"));
        }
        let Head { format } = toml::from_str(body).map_err(|e| corrupt(e.message()))?;
        if format > FORMAT {
            let place = Location::new(shown, 0);
            return Err(Error::NewerFormat { place, found: format, newest: FORMAT });
        }
        toml::from_str(body).map(Some).map_err(|e| corrupt(e.message()))
    }

    fn write(&self, dir: &Path) -> Result<()> {
        let path = dir.join(RECORD_NAME);
        let io = |op, e| Error::io(op, path.display().to_string(), 0, e);
        let body = toml::to_string(self).map_err(|e| Error::invalid(e.to_string()))?;
        let text = format!("{body}{SUM}{:016x}\"\n", checksum(0, body.as_bytes()));
        let mut file = std::fs::File::create(&path).map_err(|e| io("create", e))?;
        file.write_all(text.as_bytes()).map_err(|e| io("write", e))?;
        file.sync_all().map_err(|e| io("sync", e))?;
        setup::sync_dir(dir)
    }

    fn agrees(&self, copied: &Copied) -> bool {
        let hash = u64::from_str_radix(&self.hash, 16);
        self.entries == copied.entries
            && self.bytes == copied.bytes
            && hash.is_ok_and(|hash| matches(hash, copied.hash))
    }
}

/// Copies all that `from` gives into the empty store `to`, all of it durable on return.
fn copy(from: &mut dyn Cursor, to: &dyn Engine) -> Result<Copied> {
    let mut tally = Tally::new();
    let mut batch = WriteBatch::new();
    while let Some((key, value)) = from.next()? {
        tally.add(&key, &value);
        if value.len() > BATCH_BYTES {
            to.put(&key, &value, Durability::Grouped)?;
            continue;
        }
        batch.put(key, value.into_vec())?;
        if batch.bytes() > BATCH_BYTES {
            to.write(&batch, Durability::Grouped)?;
            batch.clear();
        }
    }
    if !batch.is_empty() {
        to.write(&batch, Durability::Grouped)?;
    }
    to.flush()?;
    to.sync()?;
    Ok(tally.0)
}

/// Reads all of a store.
fn tally(engine: &dyn Engine) -> Result<Copied> {
    let mut tally = Tally::new();
    let mut cursor = engine.cursor(KeyRange::all(), None)?;
    while let Some((key, value)) = cursor.next()? {
        tally.add(&key, &value);
    }
    Ok(tally.0)
}

/// Fills the new store `prepared`, closes it, opens it again and compares. It still says *creating* on return.
fn fill(prepared: &mut Prepared, from: &mut dyn Cursor) -> Result<Copied> {
    let target = prepared.engine()?;
    let copied = copy(from, &*target)?;
    target.close()?;
    drop(target);
    let target = prepared.engine()?;
    let read = tally(&*target)?;
    target.close()?;
    if read.entries != copied.entries || read.bytes != copied.bytes || !matches(read.hash, copied.hash) {
        return Err(Error::corrupt(
            TierRole::Flash,
            format!("{} entries were copied, but {} others were read back", copied.entries, read.entries),
            Location::new(prepared.path().display().to_string(), 0),
        ));
    }
    Ok(copied)
}

/// Bytes of the index of a copy: what `from` has of it on its fast tier, or where that is laid out in another way, what its keys will
/// take, by their number and the length of the first ones.
fn index_bytes(from: &dyn Engine) -> Result<u64> {
    let stats = from.stats();
    if stats.engine != "valuelog" {
        let (mut keys, mut bytes) = (0, 0);
        let mut cursor = from.cursor(KeyRange::all(), None)?;
        while keys < SAMPLE
            && let Some((key, _)) = cursor.next()?
        {
            keys += 1;
            bytes += key.len() as u64;
        }
        return Ok(stats.keys * (ENTRY_BYTES + bytes / keys.max(1)));
    }
    let fast = stats.tiers.iter().filter(|tier| tier.role == TierRole::Fast);
    let parts = fast.flat_map(|tier| &tier.parts).filter(|(name, _)| INDEX_PARTS.contains(name));
    Ok(parts.map(|(_, bytes)| bytes).sum())
}

/// Bytes of a pool for a copy of `from`: up to a third of a pool is write buffer, and an index that was filled in order may be
/// packed less well.
fn pool_bytes(from: &dyn Engine) -> Result<u64> {
    Ok(index_bytes(from)? * 2)
}

fn refuse_taken(dir: &Path) -> Result<()> {
    match std::fs::symlink_metadata(dir) {
        Ok(_) => Err(Error::invalid(format!("{} exists; a checkpoint needs a new name", dir.display()))),
        Err(_) => Ok(()),
    }
}

/// Makes what an interrupted checkpoint `dir` left in the directory of `partial` one that may be created again.
///
/// Who makes a checkpoint keeps it locked until it has its name. So what is locked here may have got that name since it was
/// found under the partial one, and then somebody relies on it; what has not got it by now does not get it any more.
fn give_up(partial: &Config, dir: &Path) -> Result<()> {
    match Prepared::begin(partial, Intent::OpenExisting, None) {
        Ok(left) => {
            refuse_taken(dir)?;
            left.abandon()
        }
        // It does not say *ready*, or has got its name.
        Err(Error::NotFound { .. }) => Ok(()),
        Err(other) => Err(other),
    }
}

/// Whether a copy had no room in its pool, and not on the file system for the pool's log or image.
fn is_small_pool(error: &Error) -> bool {
    matches!(error, Error::NoSpace { tier: TierRole::Fast, place, .. }
        if !["pool.log", "pool.image"].iter().any(|file| place.ends_with(file)))
}

/// As [`Db::checkpoint`](crate::Db::checkpoint), of the store `uuid`.
pub(crate) fn create(from: &dyn Engine, uuid: Uuid, dir: &Path) -> Result<Copied> {
    let name = match dir.file_name().and_then(|name| name.to_str()) {
        Some(name) => name.to_owned(),
        None => return Err(Error::invalid(format!("{} cannot name a checkpoint", dir.display()))),
    };
    refuse_taken(dir)?;
    if !setup::parent(dir).is_dir() {
        let hint = "the directory that it is to be made in is not there; mount or create that first";
        return Err(Error::NotFound { path: dir.into(), hint });
    }
    let partial = dir.with_file_name(format!("{name}.partial"));
    let mut config = Config::one_directory(&partial);
    if let Some(left) = Record::read(&partial).ok().flatten()
        && left.name == name
    {
        give_up(&config, dir)?;
    }
    let mut pool = pool_bytes(from)?.max(LEAST_POOL);
    let snapshot = from.snapshot()?;
    // Keys may be longer than those that were looked at, but no longer than keys are.
    let most = from.stats().keys * (ENTRY_BYTES + MAX_KEY_BYTES as u64) * 2;
    let (mut prepared, copied) = loop {
        config.memory = Some(ByteSize(pool * 2));
        let was_there = partial.exists();
        let mut prepared = Prepared::begin(&config, Intent::CreateNew, Some(pool)).inspect_err(|error| {
            // Nobody else is at work there, who would have refused this one.
            if !was_there && error.kind() == ErrorKind::NoSpace {
                setup::remove_begun(&partial);
            }
        })?;
        let cursor = from.cursor(KeyRange::all(), Some(&snapshot));
        match cursor.and_then(|mut cursor| fill(&mut prepared, &mut *cursor)) {
            Err(error) => {
                // What cannot be removed is taken by the next checkpoint of that name.
                let removed = prepared.remove();
                if !is_small_pool(&error) || pool >= most {
                    return Err(error);
                }
                removed?;
            }
            Ok(copied) => break (prepared, copied),
        }
        pool *= 2;
    };
    let complete = || {
        let record = Record {
            format: FORMAT,
            name,
            store: uuid.to_string(),
            seqno: snapshot.seqno(),
            entries: copied.entries,
            bytes: copied.bytes,
            hash: format!("{:016x}", copied.hash),
        };
        record.write(&partial)?;
        prepared.finish()?;
        std::fs::rename(&partial, dir)
            .map_err(|e| Error::io("rename", partial.display().to_string(), 0, e))?;
        Ok(copied)
    };
    let copied = complete().inspect_err(|_| {
        let _ = prepared.remove();
    })?;
    setup::sync_dir(&setup::parent(dir))?;
    Ok(copied)
}

/// Creates the store that `config` describes, whose directories are absent or empty, with the contents of the
/// checkpoint in `checkpoint_dir`, which is only read: its medium may be one that cannot be written.
///
/// The new store is read back in full and compared with what the checkpoint recorded of itself when it was
/// made. Until then it says that it is being created, so that a crash, or a checkpoint found damaged, leaves
/// nothing that could be taken for the store. Returns when all of it survives power loss.
///
/// Without a fast tier that is byte-addressable the new store's index lives in DRAM. With the valuelog engine it gets room for that of the
/// checkpoint, whatever is usual on this machine: on one SSD, if `memory` is not set, as far as a quarter of the capacity allows.
/// The new store has the engine that `config` names, whatever that of the store was which the checkpoint is of.
///
/// # Errors
/// `Invalid` if the target holds a store, or `memory` is set and too small for the index; `NotFound` if there is nothing in `checkpoint_dir`, or the target's parent
/// is not there; `NotAStore` if it is no checkpoint or the target holds other files; `Locked`; `NewerFormat`; `NoSpace` and `Io` of the target; `Corrupt` if the checkpoint is not what it was when it was made: damaged, or opened and written to since.
pub fn restore(checkpoint_dir: impl AsRef<Path>, config: &Config) -> Result<Copied> {
    let dir = checkpoint_dir.as_ref();
    let source = crate::db::directory(dir)?;
    let record = Record::read(dir)?;
    let remains = Prepared::look(&source)?;
    let Some(record) = record else {
        return Err(Error::NotAStore {
            path: dir.into(),
            why: format!("it is a store, but not a checkpoint: it has no {RECORD_NAME} file"),
        });
    };
    let (media, _) = frozen::media_of(&remains, false)?;
    let from = repair::open(&source, remains.shape.engine, media)?;
    let least_pool = match config.engine {
        EngineKind::Valuelog => Some(pool_bytes(&*from)?),
        EngineKind::Slab => None,
    };
    let mut prepared = Prepared::begin(config, Intent::CreateNew, least_pool)?;
    let copied = fill(&mut prepared, &mut *from.cursor(KeyRange::all(), None)?)?;
    if !record.agrees(&copied) {
        return Err(Error::corrupt(
            TierRole::Flash,
            format!(
                "it recorded {} entries when it was made, and {} were read, or others; if it was opened and written to \
                 since, restore a checkpoint of what it is now",
                record.entries, copied.entries
            ),
            Location::new(dir.display().to_string(), 0),
        ));
    }
    prepared.finish()?;
    Ok(copied)
}

#[cfg(test)]
mod tests;
