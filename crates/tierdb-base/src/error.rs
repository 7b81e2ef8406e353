//! Errors: a few kinds that say what the caller can do, each with where it happened.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Result of every fallible TierDB call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a tier is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TierRole {
    /// Byte-addressable NVM or a fast block device: index, write buffer, log.
    Fast,
    /// Dense flash: values.
    Flash,
}

impl TierRole {
    /// Its name among programs: `fast` or `flash`.
    pub const fn name(self) -> &'static str {
        match self {
            TierRole::Fast => "fast",
            TierRole::Flash => "flash",
        }
    }
}

impl fmt::Display for TierRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tier", self.name())
    }
}

/// A place on media: which file (or pool), and the byte offset in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file's path, or the name of a simulated or anonymous pool.
    pub file: Arc<str>,
    /// Byte offset in it.
    pub offset: u64,
}

impl Location {
    /// A place in `file` at byte `offset`.
    pub fn new(file: impl Into<Arc<str>>, offset: u64) -> Self {
        Location { file: file.into(), offset }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.file, self.offset)
    }
}

/// What a caller can do about an error, whatever its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The arguments or the configuration are wrong. Nothing was changed. Correct the call.
    Invalid,
    /// There is no store at the path. Create one, or correct the path.
    NotFound,
    /// The path holds something that must not be opened as this store: another file, another store's
    /// tier, a newer format. Nothing was changed.
    Refused,
    /// Another process, or this one, has the store open.
    Locked,
    /// Stored bytes are not what was written. Of a read or write of an open store: other keys are unaffected, and `verify` names the
    /// damage. Of an open: `repair` saves what is left.
    Corrupt,
    /// A tier is full. Reads and deletes go on; delete or add space, and writes resume by themselves.
    NoSpace,
    /// A write to media failed and its outcome is unknown. Reads of other keys go on; reopen to write again.
    Poisoned,
    /// The operating system refused an operation; nothing was acknowledged. After a read, retrying may help. A write of an open store
    /// that fails makes it read-only ([`ErrorKind::Poisoned`] from then on): its outcome is known when the store is opened again.
    Io,
    /// The machine or the mode cannot do this.
    Unsupported,
}

/// Everything that can go wrong in a TierDB store. [`Error::kind`] says what the caller can do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A wrong argument, option or call order.
    #[error("invalid argument: {what}")]
    Invalid {
        /// What is wrong, and what would be right.
        what: String,
    },
    /// A key, value or batch over its limit.
    #[error("{what} of {len} bytes is too large: the limit is {limit} bytes")]
    TooLarge {
        /// Key, value or batch.
        what: &'static str,
        /// Its length in bytes.
        len: u64,
        /// The most that is accepted, in bytes.
        limit: u64,
    },
    /// No store at this path.
    #[error("nothing to open at {path}: {hint}")]
    NotFound {
        /// The path that was opened.
        path: PathBuf,
        /// What to do about it.
        hint: &'static str,
    },
    /// Files are there, but they are not a TierDB tier.
    #[error("{path} cannot be used: {why}")]
    NotAStore {
        /// The path that was opened.
        path: PathBuf,
        /// What was found instead.
        why: String,
    },
    /// A tier of another store, or another tier of this one.
    #[error("{path} holds tier {found}, but this store expects {expected} there: check the configured paths")]
    ForeignTier {
        /// Where it was found.
        path: PathBuf,
        /// Store UUID, role and number that were expected.
        expected: String,
        /// Store UUID, role and number that were found.
        found: String,
    },
    /// A tier the store needs is not there.
    #[error("{role} {uuid} is missing at {path}: mount it, or correct the configuration")]
    TierMissing {
        /// Fast or flash.
        role: TierRole,
        /// The store's UUID and the tier's number.
        uuid: String,
        /// Where it was last, or where the configuration says it is.
        path: PathBuf,
    },
    /// Written by a newer TierDB.
    #[error("{place}: format {found} is newer than {newest}, the newest this version reads: upgrade TierDB")]
    NewerFormat {
        /// What is in the newer format.
        place: Location,
        /// Its format number.
        found: u32,
        /// The newest this build reads.
        newest: u32,
    },
    /// The store is open elsewhere.
    #[error("{path} is locked by {holder}: close the store there first")]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// Who holds it, as far as is known.
        holder: String,
    },
    /// Damage: the stored bytes are not what was written.
    #[error("{tier} is corrupt: {what} in {place}{}", key.as_ref().map(|k| format!(" (key {k})")).unwrap_or_default())]
    Corrupt {
        /// Which tier.
        tier: TierRole,
        /// What was found wrong.
        what: String,
        /// Where.
        place: Location,
        /// The affected key or key range, printable, where it is known.
        key: Option<String>,
    },
    /// The tiers disagree: a tier has lost writes that it had acknowledged as durable.
    #[error(
        "acknowledged data is missing: {what}. A device has lost writes that it reported as durable; `repair` salvages what is left"
    )]
    AcknowledgedDataMissing {
        /// Which tier is behind which, with both positions.
        what: String,
    },
    /// A tier is full.
    #[error("no space on {tier} {place}: {used} of {capacity} bytes used; {}", more_room(*tier))]
    NoSpace {
        /// Which tier.
        tier: TierRole,
        /// The directory or file.
        place: String,
        /// Bytes in use.
        used: u64,
        /// Capacity in bytes.
        capacity: u64,
    },
    /// An earlier write to media failed; the store is read-only until it is reopened.
    #[error("the store is read-only since a write failed ({cause}): reopen it to write again")]
    Poisoned {
        /// The first failure.
        cause: String,
    },
    /// An I/O call failed.
    #[error("{op} of {place} failed: {source}")]
    Io {
        /// read, write, sync, open, ...
        op: &'static str,
        /// Where.
        place: Location,
        /// The operating system's word.
        source: Arc<io::Error>,
    },
    /// The machine cannot do what was asked.
    #[error("not supported here: {what}")]
    Unsupported {
        /// What, and what to do instead.
        what: String,
    },
}

/// What helps where a tier is full.
fn more_room(tier: TierRole) -> &'static str {
    match tier {
        TierRole::Fast => {
            "delete keys, make room in its file system if that is full, or restore a checkpoint into a store that is created with \
             more room for its index and write buffer (more `memory`, or a larger fast tier where that is the limit)"
        }
        TierRole::Flash => "delete data or raise the capacity",
    }
}

impl Error {
    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Invalid { .. } | Error::TooLarge { .. } => ErrorKind::Invalid,
            Error::NotFound { .. } => ErrorKind::NotFound,
            Error::NotAStore { .. }
            | Error::ForeignTier { .. }
            | Error::TierMissing { .. }
            | Error::NewerFormat { .. } => ErrorKind::Refused,
            Error::Locked { .. } => ErrorKind::Locked,
            Error::Corrupt { .. } | Error::AcknowledgedDataMissing { .. } => ErrorKind::Corrupt,
            Error::NoSpace { .. } => ErrorKind::NoSpace,
            Error::Poisoned { .. } => ErrorKind::Poisoned,
            Error::Io { .. } => ErrorKind::Io,
            Error::Unsupported { .. } => ErrorKind::Unsupported,
        }
    }

    /// A wrong argument: `what` says what is wrong and what would be right.
    pub fn invalid(what: impl Into<String>) -> Self {
        Error::Invalid { what: what.into() }
    }

    /// Damage found at `place`.
    pub fn corrupt(tier: TierRole, what: impl Into<String>, place: Location) -> Self {
        Error::Corrupt { tier, what: what.into(), place, key: None }
    }

    /// A failed I/O call.
    pub fn io(op: &'static str, file: impl Into<Arc<str>>, offset: u64, source: io::Error) -> Self {
        Error::Io { op, place: Location::new(file, offset), source: Arc::new(source) }
    }

    /// Whether it says nothing of what is on media: this process may not read it, may not open so many files, or has no memory for it.
    pub fn is_of_the_process(&self) -> bool {
        // EMFILE and ENFILE of Linux, which the standard library has no kind for.
        const TOO_MANY_FILES: [i32; 2] = [24, 23];
        let Error::Io { source, .. } = self else { return false };
        matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::OutOfMemory)
            || source.raw_os_error().is_some_and(|errno| TOO_MANY_FILES.contains(&errno))
    }

    /// The same error with the key it concerns, where the error can carry one.
    #[must_use]
    pub fn with_key(self, key: &[u8]) -> Self {
        match self {
            Error::Corrupt { tier, what, place, key: None } => {
                Error::Corrupt { tier, what, place, key: Some(crate::hex::printable(key)) }
            }
            other => other,
        }
    }
}
