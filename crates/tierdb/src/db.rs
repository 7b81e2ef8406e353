//! The store as a user holds it.

use crate::checkpoint;
use crate::config::Config;
use crate::entries::{Entries, key_range};
use crate::history::{self, History};
use crate::setup::Prepared;
use crate::tiers::Intent;
use parking_lot::Mutex;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tierdb_base::{Error, Result, Uuid};
use tierdb_device::{DirLock, RealDir};
use tierdb_engine::{Durability, Engine, KeyRange, Snapshot, Stats, Value, VerifyReport, WriteBatch};

/// An open store: an ordered, durable map of byte strings to byte strings.
///
/// Clones are the same store, cheap, and usable from any thread. The last one to be dropped closes it; call
/// [`Db::close`] to see whether that succeeds. A store is open once: a second open, in this process or
/// another, is refused with [`Error::Locked`].
///
/// A child that is made by `fork` must not use its parent's `Db`, nor what comes of it: the threads are not there. It may drop it, which
/// leaves the store to the parent.
///
/// Single operations are linearizable, and a [`WriteBatch`] is one operation. A write that does not name a
/// [`Durability`] gets that of the configuration, which is to survive power loss when it returns.
#[derive(Clone)]
pub struct Db {
    inner: Arc<Inner>,
}

struct Inner {
    // Dropped in this order: the engine ends its work before another process may open the tiers.
    /// There until it is dropped.
    engine: Option<Box<dyn Engine>>,
    locks: Mutex<Vec<Box<dyn DirLock>>>,
    durability: Durability,
    uuid: Uuid,
    /// The process that opened it.
    owner: u32,
    /// What it had done before.
    history: Option<History>,
    /// There until it is in the history, if it is to be.
    present: Mutex<Option<Use>>,
}

/// A use of a store that has not ended.
struct Use {
    /// The directory of its history.
    home: RealDir,
    opened: Instant,
}

impl Inner {
    /// Closes `engine`, and notes what was done.
    fn end(&self, engine: &dyn Engine) -> Result<()> {
        let closed = engine.close();
        // Whoever closes it at the same time gives the tiers free after that.
        let mut present = self.present.lock();
        if let Some(Use { home, opened }) = present.take() {
            let stats = engine.stats();
            if history::is_use(&stats) {
                let mut history = self.history.clone().unwrap_or_default();
                history.add(&stats, opened.elapsed());
                // The store is none the worse without it.
                let _ = history.write(&home, self.uuid);
            }
        }
        closed
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(engine) = self.engine.take() else { return };
        if self.owner != std::process::id() {
            // A child made by `fork`. The threads are its parent's, and so are the files.
            std::mem::forget(engine);
            return;
        }
        // There is nobody to tell; what was acknowledged is durable, and the next open recovers the rest.
        let _ = self.end(&*engine);
    }
}

impl Db {
    /// Opens the store in the directory `path`, on one plain SSD, and creates it where the directory is absent
    /// or empty (its parent must be there). It may use half the default memory (see [`Config::memory`]),
    /// but an eighth of the capacity at most, for the index and the write buffer, and grow as large as the file system.
    ///
    /// # Errors
    /// `NotAStore` if the directory holds other files; `TierMissing` if it is a flash tier of a store with more, and `ForeignTier` if it is
    /// a fast one; `Locked` if it is open; `NewerFormat`; `NotFound` if its parent is not there, or a restore, repair or checkpoint into
    /// it has not ended; `NoSpace` if there is too little room for a new store; `Unsupported` if it cannot be written, and `Io` if a
    /// file of it cannot; `Corrupt` and `AcknowledgedDataMissing` for damage, after which [`repair`](crate::repair()) salvages what is left.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_config(&directory(path.as_ref())?)
    }

    /// Opens the store in the directory `path`; it must be there.
    ///
    /// # Errors
    /// `NotFound` if there is no store; otherwise as [`Db::open`].
    pub fn open_existing(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_existing_config(&directory(path.as_ref())?)
    }

    /// Opens the store that `config` describes, and creates it where all its directories are absent or empty.
    ///
    /// # Errors
    /// `Invalid` for the configuration, or where it disagrees with what was fixed when the store was created;
    /// `TierMissing` if a tier is absent or was replaced by an empty one; `ForeignTier` if one belongs to
    /// another store, or to another place in this; otherwise as [`Db::open`].
    pub fn open_config(config: &Config) -> Result<Self> {
        Self::start(Prepared::begin(config, Intent::OpenOrCreate, None)?)
    }

    /// Opens the store that `config` describes; it must be there.
    ///
    /// # Errors
    /// `NotFound` if there is no store; otherwise as [`Db::open_config`].
    pub fn open_existing_config(config: &Config) -> Result<Self> {
        Self::start(Prepared::begin(config, Intent::OpenExisting, None)?)
    }

    fn start(mut prepared: Prepared) -> Result<Self> {
        let engine = prepared.engine()?;
        prepared.finish()?;
        let (uuid, durability) = (prepared.uuid(), prepared.durability());
        let home = prepared.home();
        let (history, home) = match home.as_ref().map(|home| History::read(home, uuid)).transpose() {
            Ok(history) => (history.flatten(), home),
            // What cannot be read is not replaced either.
            Err(_) => (None, None),
        };
        let locks = Mutex::new(prepared.into_locks());
        let (engine, owner) = (Some(engine), std::process::id());
        let present = Mutex::new(home.map(|home| Use { home, opened: Instant::now() }));
        Ok(Db { inner: Arc::new(Inner { engine, locks, durability, uuid, owner, history, present }) })
    }

    /// The value of `key`, as of now.
    ///
    /// # Errors
    /// `Invalid` for an empty key, `TooLarge` for one that is too long; `Corrupt` where its stored bytes are damaged, never another
    /// value and never `None`; `Io` if the device did not read them; `Poisoned` if the last write of the key has failed, and nobody knows how it
    /// ended.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.engine().get(key.as_ref())
    }

    /// Whether `key` has a value now. The valuelog engine asks its index alone, in memory or on the fast tier; the slab engine reads
    /// the value.
    ///
    /// # Errors
    /// As [`Db::get`], but that the bytes of a value are damaged shows only if they are read.
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        self.engine().contains(key.as_ref())
    }

    /// The value of `key` as `snapshot` sees it.
    ///
    /// # Errors
    /// As [`Db::get`]; `Invalid` for a snapshot that is not of this open store.
    pub fn get_at(&self, key: impl AsRef<[u8]>, snapshot: &Snapshot) -> Result<Option<Value>> {
        self.engine().get_at(key.as_ref(), snapshot)
    }

    /// The values of `keys`, in their order, each as of some moment during the call. Reads of flash overlap,
    /// so this is faster than one `get` after another.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<Value>>> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.engine().multi_get(&keys)
    }

    /// Stores `value` under `key`, replacing any older value, with the configured durability.
    ///
    /// # Errors
    /// `Invalid` for an empty key, `TooLarge` for what is over a limit; `NoSpace` if a tier is full; `Corrupt` where the index is damaged at
    /// the key; `Io` for the write that fails, and `Poisoned` after it.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_with(key, value, self.inner.durability)
    }

    /// As [`Db::put`], with this durability.
    ///
    /// # Errors
    /// As [`Db::put`].
    pub fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        durability: Durability,
    ) -> Result<()> {
        self.engine().put(key.as_ref(), value.as_ref(), durability)
    }

    /// Removes `key`, if it is there, with the configured durability. Succeeds where a tier is full.
    ///
    /// # Errors
    /// `Invalid`; `NoSpace` where the log is full and its file system has no room for a checkpoint; `Corrupt`, `Io` and `Poisoned` as of
    /// [`Db::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_with(key, self.inner.durability)
    }

    /// As [`Db::delete`], with this durability.
    ///
    /// # Errors
    /// As [`Db::delete`].
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.engine().delete(key.as_ref(), durability)
    }

    /// Applies all writes of `batch`, visible and durable at once, with the configured durability.
    ///
    /// # Errors
    /// As [`Db::put`]. After `Invalid` and `NoSpace` nothing of the batch is applied; after `Io` and `Poisoned` all of it is or nothing,
    /// which is known when the store is opened again.
    pub fn write(&self, batch: &WriteBatch) -> Result<()> {
        self.write_with(batch, self.inner.durability)
    }

    /// As [`Db::write`], with this durability.
    ///
    /// # Errors
    /// As [`Db::write`].
    pub fn write_with(&self, batch: &WriteBatch, durability: Durability) -> Result<()> {
        self.engine().write(batch, durability)
    }

    /// Removes every key of `range` that is there when the call starts, and returns how many there were, with the configured
    /// durability; [`KeyRange::prefix`] is the range of all keys with a prefix. A key that is added meanwhile is removed, and not counted, or
    /// stays.
    ///
    /// With the slab engine the range goes at once: it counts the keys and writes one tombstone for all, which background work cleans
    /// away. The valuelog engine visits and removes each key, so it costs as much as so many deletes in batches: one while they are
    /// at most 1,048,576 and of 64 MiB in all (which 16,384 keys of the greatest length are), otherwise several in key order; smaller
    /// ones where both tiers are full. A crash, or whoever reads in between, may find the keys of the first batches gone and not the
    /// others.
    ///
    /// # Errors
    /// As [`Db::delete`], and `Corrupt` where the index is damaged at any of the keys; what was removed before a failure stays removed.
    pub fn delete_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        self.delete_range_with(range, self.inner.durability)
    }

    /// As [`Db::delete_range`], with this durability.
    ///
    /// # Errors
    /// As [`Db::delete_range`].
    pub fn delete_range_with<K: AsRef<[u8]>>(
        &self,
        range: impl RangeBounds<K>,
        durability: Durability,
    ) -> Result<u64> {
        self.engine().delete_range(&key_range(&range), durability)
    }

    /// All entries in key order, as of now.
    ///
    /// # Errors
    /// As [`Db::snapshot`].
    pub fn iter(&self) -> Result<Entries<'_>> {
        Ok(self.entries(KeyRange::all(), self.snapshot()?))
    }

    /// The entries of a range of keys in key order, as of now. A reversed range is empty.
    ///
    /// ```no_run
    /// # let db = tierdb::Db::open("data")?;
    /// for entry in db.range("user1".."user2")? {
    ///     let (key, value) = entry?;
    ///     println!("{} has {} bytes", String::from_utf8_lossy(&key), value.len());
    /// }
    /// # Ok::<(), tierdb::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Db::snapshot`].
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Entries<'_>> {
        Ok(self.entries(key_range(&range), self.snapshot()?))
    }

    /// The entries of a range of keys in key order, as `snapshot` sees them.
    pub fn range_at<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>, snapshot: &Snapshot) -> Entries<'_> {
        self.entries(key_range(&range), snapshot.clone())
    }

    /// The entries whose keys start with `prefix`, in key order, as of now.
    ///
    /// # Errors
    /// As [`Db::snapshot`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Entries<'_>> {
        Ok(self.entries(KeyRange::prefix(prefix.as_ref()), self.snapshot()?))
    }

    fn entries(&self, range: KeyRange, snapshot: Snapshot) -> Entries<'_> {
        Entries::new(self.engine(), range, snapshot)
    }

    /// A consistent view of the store as of now. While it is held, the values it can see are kept.
    ///
    /// # Errors
    /// `Invalid` after [`Db::close`].
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.engine().snapshot()
    }

    /// Makes all writes that have returned durable, those of [`Durability::Grouped`] too.
    ///
    /// # Errors
    /// `Io` for the write that fails, and `Poisoned` after it; `NoSpace` where the log is full and there is no room for a checkpoint.
    pub fn sync(&self) -> Result<()> {
        self.engine().sync()
    }

    /// Writes a copy of the store, as of now, into the new directory `dir`: one self-contained store of the valuelog engine on one
    /// SSD whatever tiers and engine this one has, which [`Db::open`] opens and [`restore`](crate::restore) turns back. Once it was
    /// written to, it is an ordinary store, and is restored no more.
    ///
    /// Writes go on meanwhile. The copy is read back in full and checked before it gets its name; a crash
    /// leaves only `<dir>.partial`, which the next checkpoint of the same name replaces, and a failure nothing, but for that of the very
    /// last sync: then the copy is there, and a power loss may take it. Returns when the copy survives power loss. Costs a read of all values and a write of as many bytes, and DRAM for the index of the
    /// copy, which is in memory whatever this store's tiers are.
    ///
    /// # Errors
    /// `Invalid` if `dir` exists; `NotFound` if its parent is not there; `Locked` if another checkpoint of that name is being made;
    /// `Corrupt` if damage is met in this store: there is then no checkpoint;
    /// `NoSpace` and `Io` of the target.
    pub fn checkpoint(&self, dir: impl AsRef<Path>) -> Result<checkpoint::Copied> {
        checkpoint::create(self.engine(), self.uuid(), dir.as_ref())
    }

    /// Reads and checks everything that is stored, while the store is in use.
    ///
    /// # Errors
    /// `Poisoned` and others where the check itself cannot run; damage is in the report, and so is what the media do not give back.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.engine().verify()
    }

    /// What the store holds, where, and what it has done since it was opened.
    pub fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// What the store had done before it was opened: sums over the uses that ended with a close, if there were any in which something was
    /// read, written or moved. `None` also where the file that has it is damaged or cannot be read.
    pub fn history(&self) -> Option<&History> {
        self.inner.history.as_ref()
    }

    /// Finishes background work, makes everything durable and releases the tiers, so that the next open is
    /// quick. Later calls, through any clone, fail, but for `stats`, `history` and `uuid`; a second close waits for the first and gets its result.
    ///
    /// Snapshots that are still open keep what the store had in memory until they are dropped.
    ///
    /// # Errors
    /// `Poisoned` or `Io`, now or by an earlier write: what was acknowledged as durable is; grouped writes since the last sync may be
    /// lost. `NoSpace` where there is no room for the last checkpoint: nothing is lost. The store is closed all the same, and the next
    /// open recovers.
    pub fn close(&self) -> Result<()> {
        let closed = self.inner.end(self.engine());
        self.inner.locks.lock().clear();
        closed
    }

    /// The store's UUID, by which its tiers know that they belong together.
    pub fn uuid(&self) -> Uuid {
        self.inner.uuid
    }

    /// Rewrites values until little garbage is left on flash, and gives the space of what was deleted or overwritten back to the file
    /// system. To call it is never needed for correct answers, nor to make room for writes: background work does that. It reads and
    /// writes what garbage is mixed with, in the caller's thread, while others use the store; the values of open snapshots stay.
    ///
    /// # Errors
    /// `NoSpace` where there is no room to rewrite anything; `Corrupt`, `Io`, `Poisoned`. What was not rewritten stays as it was.
    pub fn compact(&self) -> Result<()> {
        self.engine().compact()
    }

    /// The engine, for what has no method here: cursors that seek, `flush`.
    pub fn engine(&self) -> &dyn Engine {
        self.inner.engine.as_deref().expect("it is there until this is dropped")
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db").field("uuid", &self.inner.uuid).finish_non_exhaustive()
    }
}

/// The configuration of a store in one directory.
pub(crate) fn directory(path: &Path) -> Result<Config> {
    if path.is_file() {
        return Err(Error::NotAStore {
            path: path.into(),
            why: "it is a file; to open a store by its configuration, load that first".into(),
        });
    }
    Ok(Config::one_directory(path))
}
