//! What a store has done before it was opened: a small file beside its values, for people.
//!
//! Written when a store is closed in which something was done: a new file, that takes the place of the one before as a whole. A use that
//! ends without a close is not in it. Nothing depends on it: one that is missing, damaged or of another store counts as none.
//!
//! ```text
//! # xxh3 <checksum of the rest, 16 hexadecimal digits>
//! <TOML>
//! <line feeds up to a multiple of 4,096 bytes>
//! ```
//!
//! Since format 1.

use crate::replace::replace;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tierdb_base::{Error, Location, Result, TierRole, Uuid, checksum, matches};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Dir, OpenMode};
use tierdb_engine::{IoStats, Stats};

/// The file, in the first flash tier.
pub(crate) const NAME: &str = "HISTORY";
/// What is to take its place.
pub(crate) const NEW_NAME: &str = "HISTORY.new";
const FORMAT: u32 = 1;
/// Longer ones are not read: these have a few KiB.
const LONGEST: u64 = 1 << 20;
/// Before the checksum.
const MARK: &str = "# xxh3 ";
/// Causes of I/O that is work, though nobody asked for it just then. Every open writes for others.
const WORK: [&str; 3] = ["reclaim", "gc", "migration"];

/// What was counted while a store was open before: sums over all uses that ended with a close.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct History {
    /// Times that it was opened, used and closed.
    pub uses: u64,
    /// Time that it was open in these, in nanoseconds.
    pub open_ns: u64,
    /// When the last one ended, in seconds since 1970.
    pub closed: u64,
    /// Bytes of keys and values that callers have written.
    pub user_bytes_written: u64,
    /// Time that writers were held back, in nanoseconds.
    pub stall_ns: u64,
    /// Gets answered from the write buffer.
    pub write_buffer_hits: u64,
    /// Reads that the value cache served.
    pub cache_hits: u64,
    /// Reads that went on to the tier below.
    pub cache_misses: u64,
    /// Operations by name.
    pub operations: BTreeMap<String, u64>,
    /// Other [counters](Stats::counters) by name.
    pub counters: BTreeMap<String, u64>,
    /// [Gauges](Stats::gauges) by name, as of the last close.
    pub gauges: BTreeMap<String, u64>,
    /// I/O by role, `fast` or `flash`, and cause; what stands under `write_backs` as in [`TierStats`](crate::TierStats).
    pub io: BTreeMap<String, BTreeMap<String, IoSum>>,
}

/// I/O of all uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct IoSum {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read from devices.
    pub read_bytes: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written to devices.
    pub written_bytes: u64,
    /// Syncs and durable writes.
    pub syncs: u64,
}

impl From<IoSum> for IoStats {
    fn from(sum: IoSum) -> Self {
        let IoSum { reads, read_bytes, writes, written_bytes, syncs } = sum;
        IoStats { reads, read_bytes, writes, written_bytes, syncs }
    }
}

/// What a file of any format has.
#[derive(Deserialize)]
pub(crate) struct Head {
    pub format: u32,
}

/// The file.
#[derive(Serialize, Deserialize)]
struct File {
    format: u32,
    store: String,
    history: History,
}

/// Adds numbers of an untrusted file.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

fn add_all(sums: &mut BTreeMap<String, u64>, more: &[(&'static str, u64)]) {
    more.iter().for_each(|(name, count)| add(sums.entry((*name).to_owned()).or_default(), *count));
}

/// Names that are shown to people, and may be of an untrusted file.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

impl IoSum {
    fn add(&mut self, io: &IoStats) {
        add(&mut self.reads, io.reads);
        add(&mut self.read_bytes, io.read_bytes);
        add(&mut self.writes, io.writes);
        add(&mut self.written_bytes, io.written_bytes);
        add(&mut self.syncs, io.syncs);
    }
}

/// Whether something was done of which these are the statistics: more than an open, and a look.
pub(crate) fn is_use(stats: &Stats) -> bool {
    let io = stats.tiers.iter().flat_map(|tier| &tier.io);
    stats.operations.iter().any(|(_, count)| *count > 0)
        || io.filter(|(cause, _)| WORK.contains(cause)).any(|(_, io)| io.written_bytes > 0)
}

impl History {
    /// That of the store `uuid`, in the first of its flash directories, if there is one.
    ///
    /// # Errors
    /// `Io` if the medium refuses; `NewerFormat`. What is there should stay.
    pub(crate) fn read<D: Dir>(dir: &D, uuid: Uuid) -> Result<Option<Self>> {
        let file = match dir.open(NAME, OpenMode::Existing) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let len = file.len()?;
        if !(BLOCK..=LONGEST).contains(&len) || !len.is_multiple_of(BLOCK) {
            return Ok(None);
        }
        let mut bytes = AlignedBuf::zeroed(len as usize)?;
        file.read(0, &mut bytes)?;
        let Some(text) = checked(&bytes) else { return Ok(None) };
        match toml::from_str(text) {
            Ok(Head { format }) if format > FORMAT => {
                let place = Location::new(file.name(), 0);
                Err(Error::NewerFormat { place, found: format, newest: FORMAT })
            }
            Ok(_) => Ok(decode(text).filter(|file| file.store == uuid.to_string()).map(|file| file.history)),
            Err(_) => Ok(None),
        }
    }

    /// Adds a use that ended just now, of which these are the statistics.
    pub(crate) fn add(&mut self, stats: &Stats, open: Duration) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        add(&mut self.uses, 1);
        add(&mut self.open_ns, u64::try_from(open.as_nanos()).unwrap_or(u64::MAX));
        self.closed = now.as_secs();
        add(&mut self.user_bytes_written, stats.user_bytes_written);
        add(&mut self.stall_ns, stats.stall_ns);
        add(&mut self.write_buffer_hits, stats.write_buffer_hits);
        add(&mut self.cache_hits, stats.cache.hits);
        add(&mut self.cache_misses, stats.cache.misses);
        add_all(&mut self.operations, &stats.operations);
        add_all(&mut self.counters, &stats.counters);
        self.gauges = stats.gauges.iter().map(|(name, figure)| ((*name).to_owned(), *figure)).collect();
        for tier in &stats.tiers {
            let of_role = self.io.entry(tier.role.name().to_owned()).or_default();
            tier.io.iter().for_each(|(cause, io)| of_role.entry((*cause).to_owned()).or_default().add(io));
        }
    }

    /// Puts it into `dir`, the first flash directory of the store `uuid`, in place of the one before. Durable on return; a crash leaves
    /// either.
    ///
    /// # Errors
    /// `Io`, or `Invalid` for what TOML cannot hold: the one before is there then, or this one.
    pub(crate) fn write<D: Dir>(self, dir: &D, uuid: Uuid) -> Result<()> {
        let bytes = encode(&File { format: FORMAT, store: uuid.to_string(), history: self })?;
        let fill = |file: &D::File| file.set_len(bytes.len() as u64).and_then(|()| file.write(0, &bytes));
        replace(dir, NAME, NEW_NAME, fill).inspect_err(|_| {
            // Of no use to anybody.
            let _ = dir.remove(NEW_NAME);
        })
    }

    /// The one of [`counters`](History::counters) and [`gauges`](History::gauges) that is named `name`, if there is one.
    pub fn figure(&self, name: &str) -> Option<u64> {
        self.counters.get(name).or_else(|| self.gauges.get(name)).copied()
    }

    /// Bytes written to flash for each byte that callers wrote, or `None` before the first write.
    pub fn write_amplification(&self) -> Option<f64> {
        let flash = self.io.get(TierRole::Flash.name()).into_iter().flat_map(BTreeMap::values);
        let written: f64 = flash.map(|io| io.written_bytes as f64).sum();
        (self.user_bytes_written > 0).then(|| written / self.user_bytes_written as f64)
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        let figures = [&self.operations, &self.counters, &self.gauges];
        let causes = self.io.values().flat_map(BTreeMap::keys);
        figures.into_iter().flat_map(BTreeMap::keys).chain(self.io.keys()).chain(causes)
    }
}

fn encode(file: &File) -> Result<AlignedBuf> {
    sealed(toml::to_string(file).map_err(|error| Error::invalid(format!("{NAME}: {error}")))?)
}

/// The file with this TOML.
fn sealed(mut rest: String) -> Result<AlignedBuf> {
    let first_line = MARK.len() + 16 + 1;
    let len = (first_line + rest.len()).next_multiple_of(BLOCK as usize);
    rest.extend(std::iter::repeat_n('\n', len - first_line - rest.len()));
    AlignedBuf::from_bytes(format!("{MARK}{:016x}\n{rest}", checksum(0, rest.as_bytes())).as_bytes())
}

/// The TOML in the file, if that is what was written.
fn checked(bytes: &[u8]) -> Option<&str> {
    let (first, rest) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
    let sum = u64::from_str_radix(first.strip_prefix(MARK)?, 16).ok()?;
    matches(sum, checksum(0, rest.as_bytes())).then_some(rest)
}

fn decode(text: &str) -> Option<File> {
    let file: File = toml::from_str(text).ok()?;
    let plain = file.history.names().all(|name| is_plain(name));
    plain.then_some(file)
}

#[cfg(test)]
mod tests;
