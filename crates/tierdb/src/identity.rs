//! The file `TIER`, by which a directory is known as one tier of one store.
//!
//! Four copies, each in a block of 4 KiB of its own; each copy little-endian, offsets from its start:
//!
//! ```text
//!  0       8        12      16     32           40        48         56         64        72
//!  ├───────┼────────┼───────┼──────┼────────────┼─────────┼──────────┼──────────┼─────────┤
//!  │ magic │ format │ flags │ store│ generation │ created │ capacity │ pool len │ log len │
//!  │ u64   │ u32    │ u32   │ UUID │ u64        │ unix s  │ bytes    │ bytes    │ bytes   │
//!  └───────┴────────┴───────┴──────┴────────────┴─────────┴──────────┴──────────┴─────────┘
//!  72     73      74     75       76           77            78          80       4088       4096
//!  ├──────┼───────┼──────┼────────┼────────────┼─────────────┼───────────┼────────┼──────────┤
//!  │ role │ state │ mode │ number │ fast tiers │ flash tiers │ paths len │ paths  │ checksum │
//!  └──────┴───────┴──────┴────────┴────────────┴─────────────┴───────────┴────────┴──────────┘
//! ```
//!
//! * `checksum` (XXH3-64) covers bytes 0..4088 and is seeded with the number of the copy. Magic, format,
//!   flags, generation and checksum keep their places in every format.
//! * `paths` is UTF-8, one line for each tier (fast, then flash by number): where it last was. Only errors use it.
//! * An unknown format or flag means the tier must not be opened. Flag 1: the engine is slab, not valuelog. Flag 2, of a tier that
//!   says *creating*: it is to hold a copy (a checkpoint, or a restored or repaired store), which only another copy replaces. A
//!   store that is opened there would be an empty one in the place of what somebody expects.
//!
//! Invariants
//! 1. The file appears whole: it is written as `TIER.new`, synced, and renamed.
//! 2. It is changed one copy at a time, each durable before the next, under a higher generation. What counts
//!    is the highest generation that at least two copies agree on: at any crash the old or the new has two.
//! 3. State *creating* on media means that no write was ever acknowledged: nobody gets an open store
//!    before every tier says *ready*.
//!
//! Since format 1. Golden fixture: `tests/golden/tier-v1`.

use crate::config::EngineKind;
use crate::replace::replace;
use std::ops::Range;
use tierdb_base::{Error, Location, Result, TierRole, Uuid, checksum, matches};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Dir, OpenMode};

/// The file's name.
pub(crate) const NAME: &str = "TIER";
/// Its name until it is whole.
pub(crate) const NEW_NAME: &str = "TIER.new";
/// The newest format this version reads, and the one it writes.
pub(crate) const FORMAT: u32 = 1;

const COPIES: usize = 4;
const QUORUM: usize = 2;
const COPY_LEN: usize = BLOCK as usize;
const FILE_LEN: u64 = COPIES as u64 * BLOCK;
const MAGIC: [u8; 8] = *b"TDBTIER\0";
const SLAB: u32 = 1;
const FILLING: u32 = 2;
const KNOWN_FLAGS: u32 = SLAB | FILLING;
/// A pool is in memory, of which no process has so many addresses.
const POOL_LIMIT: u64 = 1 << 57;

/// Where each field lies in a copy.
mod at {
    use std::ops::Range;
    pub const MAGIC: Range<usize> = 0..8;
    pub const FORMAT: Range<usize> = 8..12;
    pub const FLAGS: Range<usize> = 12..16;
    pub const UUID: Range<usize> = 16..32;
    pub const GENERATION: Range<usize> = 32..40;
    pub const CREATED: Range<usize> = 40..48;
    pub const CAPACITY: Range<usize> = 48..56;
    pub const POOL_LEN: Range<usize> = 56..64;
    pub const LOG_LEN: Range<usize> = 64..72;
    pub const ROLE: usize = 72;
    pub const STATE: usize = 73;
    pub const MODE: usize = 74;
    pub const NUMBER: usize = 75;
    pub const FAST_TIERS: usize = 76;
    pub const FLASH_TIERS: usize = 77;
    pub const PATHS_LEN: Range<usize> = 78..80;
    pub const PATHS: Range<usize> = 80..4088;
    pub const CHECKSUM: Range<usize> = 4088..4096;

    const _: () = {
        assert!(FORMAT.start == MAGIC.end && FLAGS.start == FORMAT.end && UUID.start == FLAGS.end);
        assert!(
            GENERATION.start == UUID.end && CREATED.start == GENERATION.end && CAPACITY.start == CREATED.end
        );
        assert!(POOL_LEN.start == CAPACITY.end && LOG_LEN.start == POOL_LEN.end && ROLE == LOG_LEN.end);
        assert!(
            FLASH_TIERS == ROLE + 5 && PATHS_LEN.start == FLASH_TIERS + 1 && PATHS.start == PATHS_LEN.end
        );
        assert!(CHECKSUM.start == PATHS.end && CHECKSUM.end == super::COPY_LEN);
    };
}

/// How far the creation of the store came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Begun; nothing was acknowledged.
    Creating,
    /// The same, of a store that is to hold a copy.
    Filling,
    /// Complete.
    Ready,
}

/// The hardware mode a store was created in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// A mapped pool on byte-addressable NVM.
    Byte,
    /// A logged pool on a fast block device.
    Block,
    /// The same, longer than what DRAM has of it: records are read from the device.
    Paged,
    /// A logged pool in the one flash directory.
    OneDirectory,
    /// A mapped pool in shared memory.
    Emulated,
}

impl Mode {
    const ALL: [(Mode, u8); 5] =
        [(Mode::Byte, 1), (Mode::Block, 2), (Mode::OneDirectory, 3), (Mode::Emulated, 4), (Mode::Paged, 5)];

    fn number(self) -> u8 {
        Self::ALL.into_iter().find(|(mode, _)| *mode == self).map_or(0, |(_, number)| number)
    }

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, own)| *own == number).map(|(mode, _)| mode)
    }

    /// Whether the pool is in DRAM, all of it or a part, with a log.
    pub(crate) fn is_logged(self) -> bool {
        matches!(self, Mode::Block | Mode::Paged | Mode::OneDirectory)
    }
}

/// What was fixed for the whole store when it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The engine.
    pub engine: EngineKind,
    /// Hardware mode.
    pub mode: Mode,
    /// Bytes of the pool.
    pub pool_len: u64,
    /// Bytes of the log ring; 0 where the pool is mapped.
    pub log_len: u64,
}

/// What `TIER` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The store.
    pub uuid: Uuid,
    /// Counts changes of this file.
    pub generation: u64,
    /// When the store was created, in seconds since 1970.
    pub created: u64,
    /// The capacity it was created with; `u64::MAX` is that of the file system.
    pub capacity: u64,
    /// What was fixed for the whole store.
    pub shape: Shape,
    /// What the tier is for.
    pub role: TierRole,
    /// How far creation came.
    pub state: State,
    /// Which of the tiers of its role it is, from 0.
    pub number: u8,
    /// How many fast tiers the store has.
    pub fast_tiers: u8,
    /// How many flash tiers the store has.
    pub flash_tiers: u8,
    /// Where each tier last was: fast, then flash by number. May be cut short.
    pub paths: Vec<String>,
}

impl Identity {
    /// "fast tier 0 of store 0192…", for errors.
    pub(crate) fn describe(&self) -> String {
        format!("{} of store {}", tier_name(self.role, self.number), self.uuid)
    }

    /// Where the tier of this role and number last was.
    pub(crate) fn last_path(&self, role: TierRole, number: u8) -> Option<&str> {
        let first = if role == TierRole::Fast { 0 } else { usize::from(self.fast_tiers) };
        self.paths.get(first + usize::from(number)).map(String::as_str)
    }

    fn encode(&self, copy: usize) -> Result<AlignedBuf> {
        let mut raw = AlignedBuf::zeroed(COPY_LEN)?;
        raw[at::MAGIC].copy_from_slice(&MAGIC);
        raw[at::FORMAT].copy_from_slice(&FORMAT.to_le_bytes());
        let slab = if self.shape.engine == EngineKind::Slab { SLAB } else { 0 };
        let flags = slab | if self.state == State::Filling { FILLING } else { 0 };
        raw[at::FLAGS].copy_from_slice(&flags.to_le_bytes());
        raw[at::UUID].copy_from_slice(self.uuid.as_bytes());
        raw[at::GENERATION].copy_from_slice(&self.generation.to_le_bytes());
        raw[at::CREATED].copy_from_slice(&self.created.to_le_bytes());
        raw[at::CAPACITY].copy_from_slice(&self.capacity.to_le_bytes());
        raw[at::POOL_LEN].copy_from_slice(&self.shape.pool_len.to_le_bytes());
        raw[at::LOG_LEN].copy_from_slice(&self.shape.log_len.to_le_bytes());
        raw[at::ROLE] = if self.role == TierRole::Fast { 1 } else { 2 };
        raw[at::STATE] = if self.state == State::Ready { 2 } else { 1 };
        raw[at::MODE] = self.shape.mode.number();
        raw[at::NUMBER] = self.number;
        raw[at::FAST_TIERS] = self.fast_tiers;
        raw[at::FLASH_TIERS] = self.flash_tiers;
        let paths = self.paths_text();
        raw[at::PATHS_LEN].copy_from_slice(&(paths.len() as u16).to_le_bytes());
        raw[at::PATHS][..paths.len()].copy_from_slice(paths.as_bytes());
        let sum = checksum(copy as u64, &raw[..at::CHECKSUM.start]);
        raw[at::CHECKSUM].copy_from_slice(&sum.to_le_bytes());
        Ok(raw)
    }

    /// Whole lines of paths that fit.
    fn paths_text(&self) -> String {
        let mut text = String::new();
        for path in &self.paths {
            let line = path.replace('\n', " ");
            if text.len() + line.len() + 1 > at::PATHS.len() {
                break;
            }
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

/// "fast tier 0".
pub(crate) fn tier_name(role: TierRole, number: u8) -> String {
    format!("{role} {number}")
}

/// What one copy's bytes are.
enum Copy {
    Good(Identity),
    /// Intact, but in a format or with flags this version does not know.
    Unknown {
        format: u32,
        flags: u32,
        generation: u64,
    },
    Bad,
}

fn u64_at(raw: &[u8], at: Range<usize>) -> u64 {
    raw[at].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Checks all that later code relies on: magic, checksum, format, flags and every enumeration.
fn decode(copy: usize, raw: &[u8]) -> Copy {
    if raw.len() != COPY_LEN || raw[at::MAGIC] != MAGIC {
        return Copy::Bad;
    }
    if !matches(u64_at(raw, at::CHECKSUM), checksum(copy as u64, &raw[..at::CHECKSUM.start])) {
        return Copy::Bad;
    }
    let (format, flags) = (u64_at(raw, at::FORMAT) as u32, u64_at(raw, at::FLAGS) as u32);
    let generation = u64_at(raw, at::GENERATION);
    if format > FORMAT || flags & !KNOWN_FLAGS != 0 {
        return Copy::Unknown { format, flags, generation };
    }
    let fields = || -> Option<Identity> {
        let role = match raw[at::ROLE] {
            1 => TierRole::Fast,
            2 => TierRole::Flash,
            _ => return None,
        };
        let state = match raw[at::STATE] {
            1 if flags & FILLING != 0 => State::Filling,
            1 => State::Creating,
            2 => State::Ready,
            _ => return None,
        };
        let paths = raw[at::PATHS].get(..u64_at(raw, at::PATHS_LEN) as usize)?;
        let identity = Identity {
            uuid: Uuid::from_slice(&raw[at::UUID]).ok()?,
            generation,
            created: u64_at(raw, at::CREATED),
            capacity: u64_at(raw, at::CAPACITY),
            shape: Shape {
                engine: if flags & SLAB == 0 { EngineKind::Valuelog } else { EngineKind::Slab },
                mode: Mode::of(raw[at::MODE])?,
                pool_len: u64_at(raw, at::POOL_LEN),
                log_len: u64_at(raw, at::LOG_LEN),
            },
            role,
            state,
            number: raw[at::NUMBER],
            fast_tiers: raw[at::FAST_TIERS],
            flash_tiers: raw[at::FLASH_TIERS],
            paths: std::str::from_utf8(paths).ok()?.lines().map(str::to_owned).collect(),
        };
        let tiers = if role == TierRole::Fast { identity.fast_tiers } else { identity.flash_tiers };
        let pool_len = identity.shape.pool_len;
        let is_pool = pool_len > 0 && pool_len.is_multiple_of(BLOCK) && pool_len < POOL_LIMIT;
        let is_log = identity.shape.log_len.is_multiple_of(BLOCK) && identity.shape.log_len < POOL_LIMIT;
        (format == FORMAT && identity.number < tiers && is_pool && is_log).then_some(identity)
    };
    fields().map_or(Copy::Bad, Copy::Good)
}

/// What reading `TIER` found.
#[derive(Debug)]
pub(crate) struct Found {
    /// What at least two copies say.
    pub identity: Identity,
    /// The highest generation of any intact copy: the next change must be higher.
    highest: u64,
    /// Copies that are damaged, or say something else.
    stale: Vec<usize>,
}

/// Reads `TIER` in `dir`, which must be there.
///
/// # Errors
/// `NewerFormat`; `Unsupported` for unknown flags; `Corrupt` where no two copies agree; `NotAStore` where no
/// copy looks like one.
pub(crate) fn read<D: Dir>(dir: &D, role: TierRole) -> Result<Found> {
    let (copies, name, unread) = read_copies(dir, role)?;
    agree(&copies, role, name).map_err(|error| unread.unwrap_or(error))
}

/// For salvage: what most says who the tier in `dir` is, be it a single copy, and whether that is too few.
///
/// # Errors
/// As [`read`], but `Corrupt` only where no copy is intact.
pub(crate) fn read_remains<D: Dir>(dir: &D, role: TierRole) -> Result<(Identity, bool)> {
    let (copies, name, _) = read_copies(dir, role)?;
    match agree(&copies, role, name) {
        Ok(found) => Ok((found.identity, false)),
        Err(error) => {
            let intact = copies.into_iter().filter_map(|copy| match copy {
                Copy::Good(identity) => Some(identity),
                _ => None,
            });
            intact.max_by_key(|identity| identity.generation).map(|identity| (identity, true)).ok_or(error)
        }
    }
}

/// The copies in `dir`, the file's name, and why a copy could not be read.
fn read_copies<D: Dir>(dir: &D, role: TierRole) -> Result<(Vec<Copy>, std::sync::Arc<str>, Option<Error>)> {
    let file = dir.open(NAME, OpenMode::Existing)?;
    let (name, len) = (file.name(), file.len()?);
    if len != FILE_LEN {
        return Err(Error::corrupt(
            role,
            format!("the file that identifies the tier has {len} bytes, not {FILE_LEN}"),
            Location::new(name, len.min(FILE_LEN)),
        ));
    }
    let mut copies = Vec::with_capacity(COPIES);
    let mut unread = None;
    for copy in 0..COPIES {
        let mut raw = AlignedBuf::zeroed(COPY_LEN)?;
        // An unreadable copy counts as a damaged one: three others may be whole.
        copies.push(match file.read(copy as u64 * BLOCK, &mut raw) {
            Ok(()) => decode(copy, &raw),
            Err(error) => {
                unread = Some(error);
                Copy::Bad
            }
        });
    }
    Ok((copies, name, unread))
}

/// The highest generation that a quorum of `copies` agrees on.
fn agree(copies: &[Copy], role: TierRole, name: std::sync::Arc<str>) -> Result<Found> {
    let generation = |copy: &Copy| match copy {
        Copy::Good(identity) => Some(identity.generation),
        Copy::Unknown { generation, .. } => Some(*generation),
        Copy::Bad => None,
    };
    let same = |a: &Copy, b: &Copy| match (a, b) {
        (Copy::Good(a), Copy::Good(b)) => a == b,
        (Copy::Unknown { .. }, Copy::Unknown { .. }) => generation(a) == generation(b),
        _ => false,
    };
    let agreeing = |copy: &Copy| copies.iter().filter(|other| same(copy, other)).count();
    let best = copies.iter().filter(|copy| agreeing(copy) >= QUORUM).max_by_key(|copy| generation(copy));
    let highest = copies.iter().filter_map(generation).max().unwrap_or(0);
    match best {
        Some(Copy::Good(identity)) => {
            let is_stale = |copy: &usize| !matches!(&copies[*copy], Copy::Good(other) if other == identity);
            let stale = (0..copies.len()).filter(is_stale).collect();
            Ok(Found { identity: identity.clone(), highest, stale })
        }
        Some(Copy::Unknown { format, .. }) if *format > FORMAT => {
            Err(Error::NewerFormat { place: Location::new(name, 0), found: *format, newest: FORMAT })
        }
        Some(Copy::Unknown { flags, .. }) => Err(Error::Unsupported {
            what: format!("flags {flags:#x} of {name}; this version knows {KNOWN_FLAGS:#x}: upgrade TierDB"),
        }),
        _ => {
            let intact = copies.iter().filter(|copy| generation(copy).is_some()).count();
            Err(Error::corrupt(
                role,
                format!(
                    "of {COPIES} copies of the tier's identity {intact} are intact, and no {QUORUM} agree"
                ),
                Location::new(name, 0),
            ))
        }
    }
}

/// Writes `identity` as a new `TIER` in `dir`, durable on return. A crash leaves the old file, or none, or the new.
///
/// # Errors
/// `Invalid` if there is one that says *ready*: it is never replaced. As [`read`] if there is one at all.
pub(crate) fn create<D: Dir>(dir: &D, identity: &Identity) -> Result<()> {
    if dir.list()?.iter().any(|name| name == NAME) {
        let old = read(dir, identity.role)?.identity;
        if old.state == State::Ready {
            return Err(Error::invalid(format!(
                "{} already is {}; name an absent or empty directory to create a store in it",
                dir.name(),
                old.describe()
            )));
        }
    }
    replace(dir, NAME, NEW_NAME, |file| {
        file.set_len(FILE_LEN)?;
        write_copies(file, identity, 0..COPIES)
    })
}

/// Replaces what `TIER` in `dir` says, durable on return. A crash leaves the old or the new.
pub(crate) fn update<D: Dir>(dir: &D, found: &Found, identity: &Identity) -> Result<Identity> {
    let exhausted = || {
        let place = Location::new(format!("{}/{NAME}", dir.name()), 0);
        Error::corrupt(identity.role, "no generation is above that of a copy", place)
    };
    let generation = found.highest.checked_add(1).ok_or_else(exhausted)?;
    let identity = Identity { generation, ..identity.clone() };
    // Those that agree come last: until the new one has a quorum, they have.
    let agreeing = (0..COPIES).filter(|copy| !found.stale.contains(copy));
    let order = found.stale.iter().copied().chain(agreeing);
    write_copies(&dir.open(NAME, OpenMode::Existing)?, &identity, order)?;
    Ok(identity)
}

/// Rewrites all copies if one is damaged or behind.
pub(crate) fn heal<D: Dir>(dir: &D, found: &Found) -> Result<Identity> {
    if !found.stale.is_empty() { update(dir, found, &found.identity) } else { Ok(found.identity.clone()) }
}

fn write_copies<F: BlockFile>(
    file: &F,
    identity: &Identity,
    copies: impl IntoIterator<Item = usize>,
) -> Result<()> {
    for copy in copies {
        file.write_durable(copy as u64 * BLOCK, &identity.encode(copy)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
