//! The contract between an engine and byte-addressable media.
//!
//! What media guarantee, and nothing more is assumed (Yat, Jaaru, and the x86 and Arm manuals):
//!
//! * An aligned 8-byte store persists whole or not at all; nothing larger does.
//! * A stored word may persist at any moment, by eviction. It is certain to be on media only after
//!   [`Pool::flush`] of its range and then [`Pool::fence`] (a *drain*), for a pool that is memory;
//!   for a pool that is logged, after [`Pool::wait`] for an LSN taken after them.
//! * Words persist in no particular order unless a drain stands between them.
//!
//! So there are two questions, and two calls. *Order*: what was flushed before a fence persists before
//! anything flushed after it. *Durability*: after `wait(lsn())` all that was flushed and fenced before
//! survives power loss. On memory the fence gives both, and `wait` costs nothing; on a log the order of
//! the log gives the first, and group commit the second, so no latch need be held across I/O.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_base::{Location, Result};

/// A position in a pool's order of flushes; later is larger. Always 0 where the fence itself is durable.
pub type Lsn = u64;

/// What makes a store to the pool survive power loss. Printed in stats, so that no figure can forget it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PersistenceDomain {
    /// Caches are lost: `clwb` and `sfence` (x86-64) or `DC CVAP` and `DSB` (aarch64) are needed.
    Adr,
    /// Caches are flushed by stored energy (eADR, CXL GPF): only the fence is needed.
    Eadr,
    /// A redo log on a block device.
    Logged,
    /// Plain or shared memory that stands for NVM: survives a crash of the process at best.
    Emulated,
    /// A simulator of one of the above.
    Simulated,
}

impl fmt::Display for PersistenceDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PersistenceDomain::Adr => "byte-addressable (ADR)",
            PersistenceDomain::Eadr => "byte-addressable (eADR)",
            PersistenceDomain::Logged => "block device (redo log)",
            PersistenceDomain::Emulated => "EMULATED byte-addressable (does not survive power loss)",
            PersistenceDomain::Simulated => "simulated",
        })
    }
}

/// What was written back to a pool in memory since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteBacks {
    /// Ranges that were [flushed](Pool::flush).
    pub ranges: u64,
    /// Bytes of the cache lines that these touch.
    pub bytes: u64,
    /// [Fences](Pool::fence).
    pub fences: u64,
}

/// Room for flushes that [`Pool::admit`] has kept free. It is given back on drop: to be held until all is flushed that it was
/// asked for.
#[must_use = "the room is given back at once"]
#[derive(Debug)]
pub struct Admitted<'p>(Option<(&'p AtomicU64, u64)>);

impl<'p> Admitted<'p> {
    /// Room where there is always room.
    pub fn always() -> Self {
        Admitted(None)
    }

    /// Counts `bytes` in `sum` until it is dropped.
    pub fn counted(sum: &'p AtomicU64, bytes: u64) -> Self {
        sum.fetch_add(bytes, Ordering::Relaxed);
        Admitted(Some((sum, bytes)))
    }
}

impl Admitted<'_> {
    /// Gives back `bytes` of it, which somebody else may flush as well.
    pub fn give_back(&mut self, bytes: u64) {
        if let Some((sum, kept)) = &mut self.0 {
            let bytes = bytes.min(*kept);
            sum.fetch_sub(bytes, Ordering::Release);
            *kept -= bytes;
        }
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if let Some((sum, bytes)) = self.0 {
            // Behind what was flushed, for who finds it gone.
            sum.fetch_sub(bytes, Ordering::Release);
        }
    }
}

/// Byte-addressable storage of a fixed length. Offsets are in bytes from its start; word offsets are
/// multiples of 8. Every access is atomic by word, so a racing read gives old or new words, never
/// undefined behaviour; whoever may race validates what it copied.
///
/// An offset or range outside the pool is a bug in the caller and panics: offsets that come from media
/// are checked against [`Pool::len`] when they are decoded.
pub trait Pool: Send + Sync + 'static {
    /// Length in bytes, a multiple of 4,096.
    fn len(&self) -> u64;

    /// Whether the pool has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What makes its stores durable.
    fn domain(&self) -> PersistenceDomain;

    /// Bytes of DRAM that it takes for its contents. `None` if it is not in DRAM.
    fn dram_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether what is read is in memory. If not, a read may take as long as the device's, and writes should be of whole units of
    /// 64 bytes, of which a part would have to be read first.
    fn is_in_memory(&self) -> bool {
        true
    }

    /// Where all of the pool is, for people: its path, or its paths.
    fn name(&self) -> String {
        self.place(0).file.to_string()
    }

    /// What it counts about its own work since it was opened, by name. Nothing, where there is no such work.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// What was written back, by a pool whose device nobody else counts the writes of. Loads are counted by none.
    fn write_backs(&self) -> WriteBacks {
        WriteBacks::default()
    }

    /// Name of the file that `at` is in (its path, where it has one), and the place in it, for errors.
    fn place(&self, at: u64) -> Location;

    /// The word at `at`, with acquire ordering.
    fn load(&self, at: u64) -> u64;

    /// Stores `word` at `at` with release ordering. It may persist at any time from now on.
    fn store(&self, at: u64, word: u64);

    /// Replaces `current` by `new` at `at` (acquire-release), or returns what is there instead.
    /// What it stores may persist at any time from now on.
    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64>;

    /// Copies `out.len()` bytes from `at`. Words that another thread changes meanwhile may be old or new.
    ///
    /// # Errors
    /// `Corrupt` where the medium reports the range as damaged (a poisoned line).
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()>;

    /// As [`Pool::read`] for each of `reads`: a place, and what is read from there. Where they go to a device they overlap.
    fn read_many(&self, reads: &mut [(u64, &mut [u8])]) -> Vec<Result<()>> {
        reads.iter_mut().map(|(at, out)| self.read(*at, out)).collect()
    }

    /// Brings `at..at + len` to memory, where it is not: for who is about to read all of it in small parts, and then
    /// [releases](Pool::release) it.
    ///
    /// # Errors
    /// As [`Pool::read`], and those of the device.
    fn fetch(&self, _at: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    /// Says that nobody is about to read `at..at + len` again: it may leave memory.
    fn release(&self, _at: u64, _len: u64) {}

    /// Copies `bytes` to `at`. The caller is the only writer of the range; bytes of a word that the range
    /// covers in part keep their value. Any word of it may persist at any time from now on.
    fn write(&self, at: u64, bytes: &[u8]);

    /// Starts the write-back of `at..at + len` as it is now. Certain only after [`Pool::fence`].
    /// The caller keeps other writers out of the range until it returns.
    #[track_caller]
    fn flush(&self, at: u64, len: u64);

    /// Orders: all that was flushed before persists before anything flushed later.
    #[track_caller]
    fn fence(&self);

    /// Stores `word` at `at` and starts its write-back as one step: a thread that has seen the word and
    /// then flushes something of its own cannot have that persist without the word on a logged pool.
    /// On memory it is `store` and `flush`.
    #[track_caller]
    fn publish(&self, at: u64, word: u64);

    /// The position after everything flushed so far.
    fn lsn(&self) -> Lsn;

    /// Returns when everything flushed before `lsn` was taken, and fenced, survives power loss.
    ///
    /// # Errors
    /// `Poisoned` after any earlier write failure of the pool: the outcome is unknown until reopened.
    fn wait(&self, lsn: Lsn) -> Result<()>;

    /// Makes the word at `at`, as the caller has just read it, durable on behalf of its writer
    /// (flush-on-read, PRISM §5.4).
    ///
    /// # Errors
    /// As [`Pool::wait`].
    #[track_caller]
    fn persist_word(&self, at: u64) -> Result<()>;

    /// Waits, before any latch is taken, until the pool can take `bytes` more of flushes, beside those of others that it has
    /// admitted and that may still come: without blocking, as far as they fit its buffer. Only a logged pool ever waits.
    ///
    /// # Errors
    /// `NoSpace` if it has no room for them; `Poisoned` after a write failure.
    fn admit(&self, bytes: u64) -> Result<Admitted<'_>>;

    /// Work that a background thread does for the pool from time to time: makes a checkpoint when one is due.
    /// Nothing to do on memory.
    ///
    /// # Errors
    /// The failure of a write, after which the pool refuses to write.
    fn upkeep(&self) -> Result<()> {
        Ok(())
    }

    /// Says that `range` is a write buffer whose content a log need not carry over into checkpoints
    /// while it still holds it; see [`Pool::keep_log_from`].
    fn set_transient(&self, _range: std::ops::Range<u64>) {}

    /// Says that whatever was flushed into the transient range before `lsn` is no longer needed.
    fn keep_log_from(&self, _lsn: Lsn) {}

    /// Makes everything durable so that the next open has nothing to replay. Called once, last.
    ///
    /// # Errors
    /// The failure of a write; the next open then recovers as after a crash.
    fn close(&self) -> Result<()> {
        Ok(())
    }
}
