//! A live table: what of it is in memory, on the fast tier and on flash.

use crate::bucket::Bucket;
use crate::flash::{Flash, FlashDir, TableFile, TableRecord};
use crate::heap::Slots;
use crate::levels::{FIRST, Level};
use crate::parts::{Home, damaged};
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicBool, AtomicI8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tierdb_base::{Error, ErrorKind, Location, Result, Seqno, TierRole};
use tierdb_device::{Cause, Dir};
use tierdb_engine::KeyRange;
use tierdb_table::{Footer, Parts, Table};

/// What a table has on the fast tier.
pub struct Manifest {
    /// Its record, and the slots that it lists.
    pub slots: Slots,
    /// Its footer, index and filter, if they are there too.
    pub home: Option<Box<dyn Home>>,
}

/// A table that is, or was, live.
///
/// Its footer is always in memory; index and filter are while they are used, read from the fast tier, or from the table's
/// file where that has none or damaged ones.
pub struct LiveTable<D: Dir> {
    flash: Arc<Flash<D>>,
    file: TableFile,
    /// Which level it belongs to: that of the list it is in, but for the moment in which it moves to another one.
    level: AtomicI8,
    footer: Footer,
    manifest: Mutex<Manifest>,
    loaded: RwLock<Option<Arc<Table<D::File>>>>,
    /// Whether it was asked for since this was last looked at.
    asked_for: AtomicBool,
    /// Whether it could not be read whole: it is not merged any more.
    pub damaged: AtomicBool,
    /// The device did not read it when it was last to be migrated.
    pub unreadable: AtomicBool,
    /// There was such a time: what else there is of its keys is kept until it has been rewritten.
    suspect: AtomicBool,
    obsolete: AtomicBool,
    /// It was written when no older snapshot was open than one at this write: it has nothing that was replaced, or removed with a range,
    /// up to that. Not stored.
    cleaned: Seqno,
    /// Keys of its range of which only the fast tier has the newest version; under the partition's lock.
    pub dirty_keys: AtomicU64,
    bucket: Option<Box<Bucket>>,
    /// Of its keys, the share that stayed in its level for being popular when a table was merged into the next one. Not stored.
    pub stayed_share: f64,
    /// The oldest snapshot when all of it was merged with what is below, and it stayed: what was replaced or removed below by then is gone. 0
    /// before. Not stored.
    swept: AtomicU64,
    /// Reads of popular keys that it answered since it was written.
    pub hot_reads: AtomicU64,
    /// Gone with the table: what is kept of its values is of no use then.
    life: Arc<()>,
}

impl<D: Dir> LiveTable<D> {
    /// The table that `record` names, with its index and filter in `table` if they are in memory.
    pub fn new(
        flash: Arc<Flash<D>>,
        record: TableRecord,
        footer: Footer,
        table: Option<Table<D::File>>,
        manifest: Manifest,
        cleaned: Seqno,
    ) -> Self {
        let (damaged, unreadable, suspect, obsolete) = Default::default();
        let (asked_for, dirty_keys, hot_reads) = Default::default();
        let table = table.filter(|_| flash.may_keep_open());
        if let Some(table) = &table {
            flash.note_loaded(table.memory());
        }
        flash.note_parts(manifest.home.as_ref().map_or(0, |home| home.len()));
        let has_bucket = flash.buckets && record.level == FIRST;
        let bucket = has_bucket.then(|| Box::new(Bucket::new(footer.keys)));
        let (manifest, loaded) = (Mutex::new(manifest), RwLock::new(table.map(Arc::new)));
        LiveTable {
            flash,
            file: record.file,
            level: record.level.into(),
            footer,
            manifest,
            loaded,
            asked_for,
            damaged,
            unreadable,
            suspect,
            obsolete,
            cleaned,
            dirty_keys,
            bucket,
            stayed_share: 0.0,
            swept: AtomicU64::new(0),
            hot_reads,
            life: Arc::new(()),
        }
    }

    /// The table with its index and filter, which are read if they are not in memory.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: both copies of its index cannot be read.
    pub fn table(&self, cause: Cause) -> Result<Arc<Table<D::File>>> {
        self.asked_for.store(true, Ordering::Relaxed);
        if let Some(table) = &*self.loaded.read() {
            return Ok(table.clone());
        }
        let mut loaded = self.loaded.write();
        if let Some(table) = &*loaded {
            return Ok(table.clone());
        }
        let table = Arc::new(self.load(cause)?);
        if self.flash.may_keep_open() {
            self.flash.note_loaded(table.memory());
            *loaded = Some(table.clone());
        }
        Ok(table)
    }

    fn load(&self, cause: Cause) -> Result<Table<D::File>> {
        let Some(FlashDir { tables, .. }) = self.flash.dir(self.file.dir) else {
            return Err(self.flash.missing(self.file));
        };
        let parts = self.manifest.lock().home.as_ref().map(|home| home.read());
        self.flash.loads.add(1);
        if let Some(Ok(parts)) = parts
            && let Ok(table) = tables.open_with(self.file.number, &parts)
            && table.filter_damage().is_none()
        {
            return Ok(table);
        }
        self.flash.loads_from_flash.add(1);
        tables.open(self.file.number, cause).map_err(|error| match error.kind() {
            // Of a store that is open, this is damage.
            ErrorKind::Refused => {
                let place = Location::new(tierdb_table::file_name(self.file.number), 0);
                Error::corrupt(TierRole::Flash, format!("the file of a table is not its own: {error}"), place)
            }
            _ => error,
        })
    }

    /// Drops index and filter from memory, if nobody asked for them since the last call. Returns how many bytes they took.
    pub fn shed(&self) -> u64 {
        if self.asked_for.swap(false, Ordering::Relaxed) {
            return 0;
        }
        self.unload()
    }

    fn unload(&self) -> u64 {
        let Some(table) = self.loaded.write().take() else { return 0 };
        self.flash.note_unloaded(table.memory());
        table.memory() as u64
    }

    /// What is wrong with the copy of its footer, index and filter on the fast tier, if there is one. `whole` is the table.
    pub fn damage_on_fast_tier(&self, whole: &Table<D::File>) -> Option<Error> {
        let manifest = self.manifest.lock();
        let home = manifest.home.as_ref()?;
        let same = home.read().is_ok_and(|parts| parts == whole.parts());
        (!same).then(|| damaged(home.place()))
    }

    /// Footer, index and filter, if they are in memory.
    pub fn loaded_parts(&self) -> Option<Parts> {
        self.loaded.read().as_ref().map(|table| table.parts())
    }

    /// What is known of the keys of its range, where the metric of migration needs it. Of the first level only.
    pub fn bucket(&self) -> Option<&Bucket> {
        self.bucket.as_deref()
    }

    /// Bytes of the fast tier that footer, index and filter take.
    pub fn bytes_on_fast_tier(&self) -> u64 {
        self.manifest.lock().home.as_ref().map_or(0, |home| home.len())
    }

    /// Its record, and what that lists, are elsewhere now. Returns the slots that it had.
    pub fn replace_manifest(&self, manifest: Manifest) -> Slots {
        self.flash.note_parts(manifest.home.as_ref().map_or(0, |home| home.len()));
        let before = std::mem::replace(&mut *self.manifest.lock(), manifest);
        self.flash.note_parts_gone(before.home.map_or(0, |home| home.len()));
        before.slots
    }

    /// Byte of its record's slot.
    pub fn record_at(&self) -> u64 {
        self.manifest.lock().slots.at
    }

    /// Whether it may hold a version of `key`. May read the index, and says so if that fails.
    pub fn may_hold(&self, key: &[u8], cause: Cause) -> bool {
        self.footer.covers(key)
            && self.table(cause).map_or(true, |table| table.locate(key, Seqno::MAX).is_some())
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.file.number
    }

    /// What is gone when the table is.
    pub fn life(&self) -> Weak<()> {
        Arc::downgrade(&self.life)
    }

    /// Counts, key and seqno ranges, lengths.
    pub fn footer(&self) -> &Footer {
        &self.footer
    }

    /// Whether it may hold versions of keys of `range` that were removed by write `seqno`.
    pub fn may_hold_removed(&self, range: &KeyRange, seqno: Seqno) -> bool {
        self.cleaned < seqno
            && self.footer.lowest_seqno < seqno
            && !range.is_after(self.smallest())
            && !range.is_before(self.largest())
    }

    /// Whether it may hold versions that nobody needs if no older snapshot is open than one at `oldest`.
    pub fn may_hold_replaced(&self, oldest: Seqno) -> bool {
        self.cleaned < oldest && self.footer.entries > self.footer.keys
    }

    /// Whether to sweep it would gain nothing if no older snapshot is open than one at `oldest`.
    pub fn is_swept(&self, oldest: Seqno) -> bool {
        let swept = self.swept.load(Ordering::Relaxed);
        swept >= oldest || swept > 0 && self.footer.tombstones == 0
    }

    /// To sweep it gains nothing, if no older snapshot is open than one at `oldest`.
    pub fn mark_swept(&self, oldest: Seqno) {
        self.swept.fetch_max(oldest, Ordering::Relaxed);
    }

    /// Whether it could not be read whole, for good or for now.
    pub fn is_damaged(&self) -> bool {
        self.damaged.load(Ordering::Acquire) || self.unreadable.load(Ordering::Acquire)
    }

    /// The device did not read it. If it is `suspect`, it is not trusted any more.
    pub fn mark_unreadable(&self, suspect: bool) {
        self.suspect.fetch_or(suspect, Ordering::AcqRel);
        self.unreadable.store(true, Ordering::Release);
    }

    /// Whether it was never found to be damaged, nor not to be read: nothing is known that it could not give.
    pub fn is_trusted(&self) -> bool {
        !self.damaged.load(Ordering::Acquire) && !self.suspect.load(Ordering::Acquire)
    }

    /// Its smallest key.
    pub fn smallest(&self) -> &[u8] {
        &self.footer.smallest
    }

    /// Its largest key.
    pub fn largest(&self) -> &[u8] {
        &self.footer.largest
    }

    /// Bytes of its file.
    pub fn file_len(&self) -> u64 {
        self.footer.file_len
    }

    /// Its file.
    pub fn file(&self) -> TableFile {
        self.file
    }

    /// Whether it is on a fast block device.
    pub fn is_fast(&self) -> bool {
        self.file.is_fast()
    }

    /// Whether that device is one that tables are written to, and keeps room for rewriting its own.
    pub fn is_on_device(&self) -> bool {
        self.is_fast() && self.flash.dir(self.file.dir).is_some_and(|dir| dir.capacity > 0)
    }

    /// Its level.
    pub fn level(&self) -> Level {
        self.level.load(Ordering::Relaxed)
    }

    /// It belongs to `level` from now on: its record says so. The caller holds the migration of its partition.
    pub fn move_to(&self, level: Level) {
        self.level.store(level, Ordering::Relaxed);
    }

    /// Its file goes when the last reader has let it go: no record names it any more, durably. Returns the slots that it had.
    pub fn retire(&self) -> Slots {
        self.obsolete.store(true, Ordering::Release);
        // Readers that still have it take what they need from its file: the slots get another use.
        let slots = self.manifest.lock().slots.clone();
        self.replace_manifest(Manifest { slots, home: None })
    }
}

impl<D: Dir> Drop for LiveTable<D> {
    fn drop(&mut self) {
        // Before its file goes, which some systems keep as long as it is open.
        self.unload();
        if self.obsolete.load(Ordering::Acquire)
            && let Some(dir) = self.flash.dir(self.file.dir)
        {
            // If it fails, the next open removes the file.
            let _ = dir.tables.remove(self.file.number);
            dir.give(self.footer.file_len);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Options;
    use crate::engine::SlabStore;
    use crate::live::LiveTable;
    use crate::rig;
    use std::ops::Bound;
    use std::sync::Arc;
    use tierdb_device::Cause;
    use tierdb_engine::{Durability, Engine, KeyRange};

    const POOL: u64 = 132 << 10;
    const KEYS: u16 = 600;

    fn options() -> Options {
        Options { open_tables: 16, table_bytes: 16 << 10, ..rig::options(POOL) }
    }

    /// Goal: however many tables there are, few files are open. Method: a store with more tables than may be open, written, read,
    /// verified, and opened again.
    #[test]
    fn more_tables_than_files_may_be_open() {
        let world = rig::world(POOL);
        let media = || rig::media(&world, 4 << 20);
        let engine = SlabStore::create(media(), options()).expect("an empty store");
        for number in 0..KEYS {
            engine.put(&number.to_be_bytes(), &[7; 700], Durability::Grouped).expect("room");
        }
        engine.flush().expect("room");
        let check = |engine: &SlabStore<_, _>| {
            let tables = engine.core().router.read().parts[0].read().tables.clone();
            let count = || tables.tables().filter(|table| table.loaded_parts().is_some()).count();
            assert!(tables.tables().count() >= 24 && count() <= 16, "{} open", count());
            let mut key = u64::from(KEYS / 2);
            for _ in 0..2 * KEYS {
                key = (key * 5 + 1) % u64::from(KEYS);
                assert!(engine.get(&(key as u16).to_be_bytes()).expect("whole").is_some(), "{key}");
                assert!(count() <= 16, "{} open", count());
            }
            assert!(count() > 0);
            assert!(engine.verify().expect("open").is_clean());
            assert!(count() <= 16, "{} open", count());
        };
        check(&engine);
        engine.close().expect("no faults");
        check(&SlabStore::open(media(), options()).expect("whole"));
    }

    /// Scans alone close files that nobody asks for any more: those of the tables that they read stay open.
    #[test]
    fn scans_alone_close_files_too() {
        let world = rig::world(POOL);
        let engine = SlabStore::create(rig::media(&world, 4 << 20), options()).expect("an empty store");
        for number in 0..KEYS {
            engine.put(&number.to_be_bytes(), &[7; 700], Durability::Grouped).expect("room");
        }
        engine.flush().expect("room");
        let tables = engine.core().router.read().parts[0].read().tables.clone();
        let is_open = |table: &&Arc<LiveTable<_>>| table.loaded_parts().is_some();
        tables.tables().for_each(|table| drop(table.table(Cause::Foreground).expect("whole")));
        let last = tables.tables().last().expect("some");
        assert!(!is_open(&last) && !engine.core().flash.may_keep_open());
        let range = KeyRange { start: Bound::Included(last.smallest().to_vec()), end: Bound::Unbounded };
        let scan = || engine.cursor(range.clone(), None).expect("open").next().expect("whole").is_some();
        assert!((0..1000).all(|_| scan()));
        assert!(is_open(&last));
    }
}
