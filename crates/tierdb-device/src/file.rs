//! The contract between an engine and block media.
//!
//! What media guarantee, and nothing more is assumed (ALICE, FoundationDB, the NVMe and ATA manuals):
//!
//! * Completion of a write is not durability. A write is durable after it was made with
//!   [`BlockFile::write_durable`], or after a later [`BlockFile::sync`] returned `Ok`.
//! * Until then any subset of its sectors (512 bytes) may be on media, in any order; a sector that was
//!   being written may be old, new or garbage after a crash.
//! * The names in a directory and the lengths of files are durable after [`Dir::sync`] and
//!   [`BlockFile::sync`].
//! * Each device has its own timeline: the only order between two is that a durable write or sync on
//!   one returned before an operation on the other was issued.
//!
//! A failed sync means that the state of every write since the last good one is unknown, for good:
//! calling it again proves nothing (the kernel may have dropped the pages). The caller latches.

use crate::buf::AlignedBuf;
use tierdb_base::Result;

/// Offsets and lengths of reads and writes are multiples of this many bytes. Sectors of 512 bytes may
/// still tear apart within it.
pub const BLOCK: u64 = 4096;

/// What [`Dir::open`] does about a file that is there, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// It must be there.
    Existing,
    /// It must not be there: created empty. Durable after [`Dir::sync`].
    CreateNew,
}

/// One of several reads, which may be of several files.
pub struct FileRead<'f, F> {
    /// Of which file.
    pub file: &'f F,
    /// From which byte on.
    pub at: u64,
    /// What it fills.
    pub buf: AlignedBuf,
}

/// A part of a buffer that has a place of its own in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// From which byte of the file on, a multiple of [`BLOCK`].
    pub at: u64,
    /// How many bytes: a multiple of [`BLOCK`], and not none.
    pub len: usize,
}

/// Most pieces in flight at once: what keeps a device busy, and has the reads and log writes of others wait for little.
pub(crate) const PIECES: usize = 16;

/// The bytes of each of `pieces`, of which the first is at the start of `bytes`, and each further one where the one before ends.
///
/// # Panics
/// If `bytes` has fewer than all of them.
pub(crate) fn cut<'b>(bytes: &'b [u8], pieces: &[Piece]) -> impl Iterator<Item = (u64, &'b [u8])> {
    let mut rest = bytes;
    pieces.iter().map(move |piece| {
        let own;
        (own, rest) = rest.split_at(piece.len);
        (piece.at, own)
    })
}

/// A file on block media. Clones and threads may use it at once; operations on overlapping ranges are
/// the caller's to order.
pub trait BlockFile: Send + Sync + 'static {
    /// Name for errors: the path, where it has one.
    fn name(&self) -> std::sync::Arc<str>;

    /// Length in bytes.
    fn len(&self) -> Result<u64>;

    /// Whether it has no bytes.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Grows or shrinks to `len` bytes (a multiple of [`BLOCK`]) and allocates the space; what is added
    /// reads as zeros. Durable after [`BlockFile::sync`].
    ///
    /// # Errors
    /// `Io` with `StorageFull` if the file system has no room, or has no files so long; the length is then
    /// unchanged.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Lets the file system have the space of the `len` bytes from byte `at` on, both multiples of [`BLOCK`], inside the file:
    /// they read as before or as zeros from then on, and take space again, as it is there, when they are written. The length stays.
    /// A medium that has nothing to gain by it does nothing, as by default.
    ///
    /// # Errors
    /// `Io`; what the bytes read as is as after success.
    fn discard(&self, at: u64, len: u64) -> Result<()> {
        let _ = (at, len);
        Ok(())
    }

    /// Fills `buf` from byte `at`. `at` and `buf.len()` are multiples of [`BLOCK`], and the range lies
    /// inside the file. Short reads and interrupts are the implementation's to finish.
    fn read(&self, at: u64, buf: &mut AlignedBuf) -> Result<()>;

    /// Does each of `reads` as [`BlockFile::read`] does, with all in flight at once where the medium can. One result
    /// for each, in their order: one that fails does not stop the others.
    fn read_many(reads: &mut [FileRead<'_, Self>]) -> Vec<Result<()>>
    where
        Self: Sized,
    {
        reads.iter_mut().map(|read| read.file.read(read.at, &mut read.buf)).collect()
    }

    /// Writes `bytes` at byte `at`; not durable before a [`BlockFile::sync`]. `at` and `bytes.len()` are
    /// multiples of [`BLOCK`], and the range lies inside the file.
    #[track_caller]
    fn write(&self, at: u64, bytes: &AlignedBuf) -> Result<()>;

    /// Writes each of `pieces`, which `bytes` has one after another, as [`BlockFile::write`] does, with several in flight at once where
    /// the medium can. They do not overlap. Those that were in flight when their process was killed may be complete later: before
    /// the first one of a process, all of others have ended.
    ///
    /// # Errors
    /// As of a write; others of them may be complete, and others not begun.
    #[track_caller]
    fn write_pieces(&self, bytes: &AlignedBuf, pieces: &[Piece]) -> Result<()> {
        for (at, piece) in cut(bytes, pieces) {
            self.write(at, &AlignedBuf::from_bytes(piece)?)?;
        }
        Ok(())
    }

    /// Writes `bytes` at byte `at` and returns when they are durable (FUA or `RWF_DSYNC`). Says nothing of
    /// other writes.
    #[track_caller]
    fn write_durable(&self, at: u64, bytes: &AlignedBuf) -> Result<()>;

    /// Makes all completed writes and the length durable.
    #[track_caller]
    fn sync(&self) -> Result<()>;
}

/// Fills `buf` with what there is from byte `at` on, where a read of all of it has failed: block by block, with zeros where `read`
/// fails too. Returns how many blocks these are.
pub fn read_blocks(at: u64, buf: &mut [u8], mut read: impl FnMut(u64, &mut [u8]) -> Result<()>) -> u64 {
    let mut unreadable = 0;
    for (block, at) in buf.chunks_mut(BLOCK as usize).zip((at..).step_by(BLOCK as usize)) {
        if read(at, block).is_err() {
            block.fill(0);
            unreadable += 1;
        }
    }
    unreadable
}

/// Held while a store has a directory open; dropped to release it.
pub trait DirLock: Send + Sync {}

/// A directory of block files on one device.
pub trait Dir: Clone + Send + Sync + 'static {
    /// Its files.
    type File: BlockFile;

    /// Name for errors: the path.
    fn name(&self) -> std::sync::Arc<str>;

    /// Opens or creates the file `name` (one path component).
    fn open(&self, name: &str, mode: OpenMode) -> Result<Self::File>;

    /// Names of the files in it, sorted.
    fn list(&self) -> Result<Vec<String>>;

    /// Removes a file. Durable after [`Dir::sync`].
    fn remove(&self, name: &str) -> Result<()>;

    /// Gives the file `from` the name `to`, replacing a file of that name, as one step. Durable after
    /// [`Dir::sync`].
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Makes creations, removals and renames durable.
    #[track_caller]
    fn sync(&self) -> Result<()>;

    /// Locks the directory against every other opener, in this process and others.
    ///
    /// # Errors
    /// `Locked`, with who holds it as far as is known.
    fn lock(&self) -> Result<Box<dyn DirLock>>;
}
