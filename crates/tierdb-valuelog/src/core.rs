//! What the parts of an engine share, and how a word becomes a value.

use crate::cache::Cache;
use crate::config::Options;
use crate::counters::Counters;
use crate::deleted::DeletedKeys;
use crate::hsit::Hsit;
use crate::index::Index;
use crate::layout::{Layout, SEQNO_LIMIT};
use crate::long::LongValues;
use crate::moving::Collecting;
use crate::pages::Pages;
use crate::ring::Rings;
use crate::second_level::{SecondLevel, Source};
use crate::storage::{Appender, Storage};
use crate::versions::Versions;
use crate::word::{Place, Word};
use crate::work::Work;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_base::{Error, Result, TierRole};
use tierdb_device::{Dir, Meter};
use tierdb_engine::{Gate, Latencies};
use tierdb_pmem::{PersistenceDomain, Pool, seal, unseal};
use tierdb_sync::CommitClock;

/// Seqnos by which the persistent limit is raised.
const SEQNO_STEP: u64 = 1 << STEP_BITS;
const STEP_BITS: u32 = 20;

/// A record that is being moved.
#[derive(Clone, Copy, Debug)]
pub struct Moving {
    pub entry: u64,
    /// Where it was read.
    pub from: Place,
    /// In which filling of its chunk; 0 in a ring.
    pub filling: u32,
}

/// Everything of an open store.
pub struct Core<P: Pool, D: Dir> {
    pub pool: Arc<P>,
    pub layout: Layout,
    pub options: Options,
    pub seed: u64,
    pub mode: String,
    pub gate: Gate,
    pub fast_meter: Meter,
    pub pages: Arc<Pages<P>>,
    pub hsit: Hsit<P>,
    pub index: Index<P>,
    pub rings: Rings<P>,
    pub storage: Storage<D>,
    pub cache: Cache,
    pub clock: CommitClock,
    pub versions: Versions,
    pub long: LongValues,
    /// Deleted keys whose index entry is to go when no snapshot sees a value of them, in the order in which they came here.
    pub deleted: Mutex<DeletedKeys>,
    pub reclaim: Mutex<Appender<D, Moving>>,
    pub collect: Mutex<Collecting<D>>,
    pub rewrite: Mutex<Appender<D, Moving>>,
    /// Apart, since they are tens of KiB, and the rest moves as a store opens.
    pub counters: Box<Counters>,
    pub latencies: Latencies,
    pub second_level: SecondLevel<P>,
    pub work: Work,
    pub seqno_limit: AtomicU64,
    pub raising: Mutex<()>,
    /// Whether flushes reach media in the order they were made.
    pub ordered: bool,
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Whether the pool's flushes reach media in their order.
    pub fn is_ordered(pool: &P) -> bool {
        pool.domain() == PersistenceDomain::Logged
    }

    /// The persistent limit of seqnos.
    pub fn seqno_limit(pool: &P, seed: u64) -> Result<u64> {
        unseal(pool, seed, SEQNO_LIMIT).map(|steps| steps << STEP_BITS)
    }

    /// Makes sure that the next seqnos lie below the persistent limit.
    pub fn reserve_seqnos(&self) {
        if self.clock.last() + SEQNO_STEP / 2 < self.seqno_limit.load(Ordering::Acquire) {
            return;
        }
        let _raising = self.raising.lock();
        let limit = self.seqno_limit.load(Ordering::Acquire);
        if self.clock.last() + SEQNO_STEP / 2 >= limit {
            let raised = limit + SEQNO_STEP;
            self.pool.publish(SEQNO_LIMIT, seal(self.seed, SEQNO_LIMIT, raised >> STEP_BITS));
            self.pool.fence();
            self.seqno_limit.store(raised, Ordering::Release);
        }
    }

    /// The error of damage where `word` points.
    pub fn corrupt(&self, word: Word, what: &str) -> Error {
        match word.place() {
            Place::Flash(number, at) => match self.storage.device(number) {
                Some(device) => Error::corrupt(TierRole::Flash, what, device.place(at)),
                None => Error::corrupt(
                    TierRole::Fast,
                    format!("a pointer names flash directory {number}, which is not there"),
                    self.pool.place(0),
                ),
            },
            Place::Ring(at) => Error::corrupt(TierRole::Fast, what, self.pool.place(at)),
            Place::None | Place::Free | Place::Damaged => {
                Error::corrupt(TierRole::Fast, what, self.pool.place(0))
            }
        }
    }

    /// The error of an entry whose word is not one that was written.
    pub fn damaged_entry(&self, entry: u64) -> Error {
        let at = self.hsit.at(entry).unwrap_or(0);
        Error::corrupt(TierRole::Fast, "the pointer to the key's value is damaged", self.pool.place(at))
    }

    /// Opens a snapshot and returns its seqno. What it sees is kept until [`Core::close_snapshot`].
    pub fn open_snapshot(&self) -> u64 {
        self.versions.open(|note| self.clock.take_snapshot_and(note))
    }

    /// Closes a snapshot at `seqno`, and gives up what it alone has seen.
    pub fn close_snapshot(&self, seqno: u64) {
        let unneeded = self.versions.close(seqno, || self.clock.release_snapshot());
        let guard = crossbeam_epoch::pin();
        for (entry, word) in unneeded {
            self.discard(entry, word.clean(), &guard);
        }
    }

    /// Nothing refers to the record of `entry` at `word` any more. Of those that have the same tag, and values in parts, the
    /// oldest is the first to go.
    pub fn discard(&self, entry: u64, word: Word, guard: &crossbeam_epoch::Guard) {
        if word.is_large() && matches!(word.place(), Place::Ring(_) | Place::Flash(..)) {
            self.long.forget(entry, word.tag(), |number, chunk| {
                if let Some(device) = self.storage.device(number) {
                    crate::storage::Device::release_part(device, chunk, guard);
                }
            });
        }
        if let Place::Flash(..) = word.place() {
            let filling = self.storage.filling(word.place());
            self.second_level.forget(Source { entry, word: word.0, filling });
        }
        self.storage.release(word, guard);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::index::ADMIT_BYTES;
    use crate::moving::Reclaim;
    use crate::pages::{KIND_LEAF, PAGE, PageUse};
    use crate::storage::State;
    use crate::word::tag_of;
    use std::time::{Duration, Instant};
    use tierdb_base::{FailureLatch, mutant};
    use tierdb_device::{BlockFile, Cause, OpenMode};
    use tierdb_engine::{Background, Durability, Media, TierDir, Value, WriteBatch};
    use tierdb_log::{LoggedOptions, LoggedPool};
    use tierdb_sim::{Budget, CrashModel, SimDir, SimPool, World};

    /// Returns when nobody may read what `core` has emptied: tests beside this one are readers, too.
    pub(crate) fn wait_for_readers(core: &Core<SimPool, SimDir>) {
        let until = Instant::now() + Duration::from_secs(60);
        while core.storage.devices().iter().any(|device| device.is_waiting()) {
            assert!(Instant::now() < until, "somebody reads what was emptied, for a minute");
            core.work.settle_epochs();
            std::thread::yield_now();
        }
    }

    /// A small new store.
    pub(crate) fn store(world: &World) -> Core<SimPool, SimDir> {
        store_of(world, 256 << 10)
    }

    /// A store with so many bytes of flash.
    pub(crate) fn store_of(world: &World, capacity: u64) -> Core<SimPool, SimDir> {
        world.add_pool("pool", 256 << 10);
        store_on(world, world.pool("pool"), capacity, Background::Inline)
    }

    /// A store on a pool of 256 KiB.
    pub(crate) fn store_on<P: Pool>(
        world: &World,
        pool: P,
        capacity: u64,
        background: Background,
    ) -> Core<P, SimDir> {
        let (media, options) = setup(pool, world.add_dir("flash"), capacity, background);
        crate::recover::create(media, options).expect("a store is created")
    }

    /// A small store with two rings.
    pub(crate) fn store_of_two_rings(world: &World) -> Core<SimPool, SimDir> {
        world.add_pool("pool", 256 << 10);
        let (media, options) =
            setup(world.pool("pool"), world.add_dir("flash"), 256 << 10, Background::Inline);
        crate::recover::create(media, Options { rings: 2, ..options }).expect("a store is created")
    }

    /// The store that [`store_on`] has made, opened again.
    pub(crate) fn open_on<P: Pool>(world: &World, pool: P, capacity: u64) -> Core<P, SimDir> {
        let (media, options) = setup(pool, world.dir("flash"), capacity, Background::Inline);
        crate::recover::open(media, options).expect("the store is opened")
    }

    fn setup<P: Pool>(
        pool: P,
        dir: SimDir,
        capacity: u64,
        background: Background,
    ) -> (Media<P, SimDir>, Options) {
        let flash = TierDir { dir, capacity, meter: Meter::new(), emulation: None };
        let media = Media {
            pool: pool.into(),
            fast_meter: Meter::new(),
            fast_dirs: Vec::new(),
            flash: vec![flash],
            seed: 1,
            latch: FailureLatch::new(),
            mode: "simulated".into(),
        };
        let small = Options::for_pool(256 << 10, 256 << 10);
        (media, Options { rings: 1, ring_bytes: 16 << 10, chunk_bytes: 16 << 10, background, ..small })
    }

    /// A store with such a log, which is filled while `goes_on`, on a file system without room for a checkpoint.
    pub(crate) fn store_without_checkpoints(
        world: &World,
        log: LoggedOptions,
        goes_on: impl Fn(&Core<LoggedPool<SimDir>, SimDir>) -> bool,
    ) -> Core<LoggedPool<SimDir>, SimDir> {
        let dir = world.add_dir("fast");
        let pool = LoggedPool::create(dir.clone(), log, 1, FailureLatch::new(), Meter::new(), None);
        let core = store_on(world, pool.expect("a new pool"), 256 << 10, Background::Inline);
        let files = dir.list().expect("no faults");
        let open = |name: &String| dir.open(name, OpenMode::Existing).and_then(|file| file.len());
        dir.set_capacity(Some(files.iter().map(|name| open(name).expect("no faults")).sum()));
        while goes_on(&core) {}
        core
    }

    /// A log of 2 MiB for a pool of 256 KiB.
    pub(crate) fn small_log() -> LoggedOptions {
        LoggedOptions { log_len: 2 << 20, buffer_bytes: 64 << 10, ..LoggedOptions::new(256 << 10) }
    }

    fn is_no_space<T>(result: &Result<T>) -> bool {
        matches!(result, Err(Error::NoSpace { tier: TierRole::Fast, .. }))
    }

    /// A bit that flips while the store is open says that a batch is being installed, which never ends.
    #[test]
    fn a_mark_that_no_batch_has_set_holds_up_nobody() {
        let core = store(&World::new());
        core.put(b"key", b"value", Durability::Durable).expect("room");
        let entry = core.index.get(b"key").expect("whole").expect("it was put");
        core.hsit.update_aux(entry, |aux| aux.pending(true));
        assert_eq!(core.get(b"key").expect("whole").as_deref(), Some(&b"value"[..]));
        assert!(!core.hsit.aux(entry).is_pending());
    }

    /// What a write has taken before it is refused is given back.
    #[test]
    fn a_write_that_the_log_has_no_room_for_keeps_nothing() {
        // So many that a batch of them asks for more than the put that found no room.
        const KEYS: u32 = 1200;
        let world = World::new();
        let key = |number: u32| number.to_be_bytes();
        let core = store_without_checkpoints(&world, small_log(), |core| {
            let puts = (0..KEYS).map(|number| core.put(&key(number), b"value", Durability::Grouped));
            puts.last().is_some_and(|last| !is_no_space(&last))
        });
        let device = &core.storage.devices()[0];
        let (parts, pages) = (device.usage().parts, core.pages.free());
        for _ in 0..10 {
            assert!(is_no_space(&core.put(b"long", &[7; 40_000], Durability::Durable)));
            assert_eq!(device.usage().parts, parts);
            let mut batch = WriteBatch::new();
            for number in 0..KEYS {
                batch.delete(key(number)).expect("a small batch");
            }
            assert!(is_no_space(&core.write(&batch, Durability::Durable)));
            assert!(core.pages.free() >= pages, "{} of {pages} pages", core.pages.free());
        }
    }

    /// Keys that were deleted under a snapshot leave the index when it is closed, or when there is room to log that.
    #[test]
    fn what_the_log_has_no_room_for_does_not_fail_the_store() {
        const KEYS: u32 = 2000;
        let world = World::new();
        let log = LoggedOptions { buffer_bytes: 4 << 10, ..small_log() };
        let core = store_without_checkpoints(&world, log, |_| false);
        let key = |number: u32| number.to_be_bytes();
        let each = |write: &dyn Fn(u32) -> Result<()>| (0..KEYS).try_for_each(write).expect("room");
        each(&|number| core.put(&key(number), b"value", Durability::Grouped));
        let snapshot = core.open_snapshot();
        each(&|number| core.delete(&key(number), Durability::Grouped));
        let fill = || core.put(b"key", &[7; 1000], Durability::Grouped);
        let refused = std::iter::repeat_with(fill).find(Result::is_err).expect("it is full some time");
        assert!(is_no_space(&refused), "{refused:?}");
        core.close_snapshot(snapshot);
        for _ in 0..3 {
            core.purge_deleted();
            let refused = core.put(b"key", b"value", Durability::Grouped);
            assert!(is_no_space(&refused), "{refused:?}");
        }
        assert!(!core.deleted.lock().is_empty(), "the rest stays for later");
        world.dir("fast").set_capacity(None);
        core.put(b"key", b"value", Durability::Durable).expect("room for a checkpoint");
        core.purge_deleted();
        assert!(core.deleted.lock().is_empty() && core.index.get(&key(KEYS - 1)).expect("whole").is_none());
    }

    /// The keys of a batch come to the index before the batch itself is admitted. Those of one that is refused leave it again.
    #[test]
    fn a_batch_of_new_keys_that_the_log_has_no_room_for_neither_fails_the_store_nor_leaves_anything() {
        let world = World::new();
        let log = LoggedOptions { buffer_bytes: 4 << 10, ..small_log() };
        // Not filled up to the last byte: the first keys of the batch are to find room.
        let core = store_without_checkpoints(&world, log, |core| {
            core.put(b"key", &[7; 1000], Durability::Grouped).expect("room");
            core.pool.log_used() < core.pool.log_capacity() - 24 * 4096
        });
        let mut batch = WriteBatch::new();
        for number in 0..1200u32 {
            batch.put(number.to_be_bytes(), b"value").expect("a small batch");
        }
        let before = (core.index.inserted(), core.index.keys());
        for _ in 0..2 {
            let refused = core.write(&batch, Durability::Grouped);
            assert!(is_no_space(&refused), "{refused:?}");
        }
        assert!(core.index.inserted() > before.0, "some came as far as the index");
        world.dir("fast").set_capacity(None);
        core.put(b"key", b"value", Durability::Durable).expect("room for a checkpoint");
        core.purge_deleted();
        assert_eq!(core.index.keys(), before.1);
        core.write(&batch, Durability::Durable).expect("room for a checkpoint");
    }

    /// A grouped delete behind a durable put that is still on its way is made durable by nobody else.
    #[test]
    fn a_grouped_delete_leaves_the_index_whatever_it_replaces() {
        for is_seen in [false, true] {
            let core = store_without_checkpoints(&World::new(), small_log(), |_| false);
            core.put(b"key", b"value", Durability::Durable).expect("room");
            let entry = core.index.get(b"key").expect("whole").expect("it was put");
            core.hsit.publish(entry, core.hsit.word(entry).dirty());
            let snapshot = is_seen.then(|| core.open_snapshot());
            core.delete(b"key", Durability::Grouped).expect("it is there");
            assert_eq!(core.hsit.word(entry).is_dirty(), is_seen);
            snapshot.into_iter().for_each(|snapshot| core.close_snapshot(snapshot));
            core.purge_deleted();
            assert!(core.deleted.lock().is_empty() && core.index.get(b"key").expect("whole").is_none());
        }
    }

    /// What a snapshot sees of a durable put that is on its way is durable before it is read, whatever came over it.
    #[test]
    fn a_mark_that_a_snapshot_may_need_is_handed_on() {
        let core = store_without_checkpoints(&World::new(), small_log(), |_| false);
        core.put(b"key", b"first", Durability::Durable).expect("room");
        let entry = core.index.get(b"key").expect("whole").expect("it was put");
        core.hsit.publish(entry, core.hsit.word(entry).dirty());
        let snapshot = core.open_snapshot();
        for _ in 0..3 {
            core.put(b"key", b"later", Durability::Grouped).expect("room");
            assert!(core.hsit.word(entry).is_dirty());
        }
        core.close_snapshot(snapshot);
        core.put(b"key", b"last", Durability::Grouped).expect("room");
        assert!(!core.hsit.word(entry).is_dirty(), "nobody is left who would read it");
    }

    /// A purge that comes late, and finds no room in the log, takes nothing from the key that has the entry now.
    #[test]
    fn who_has_lost_an_entry_does_not_claim_it_for_want_of_room() {
        let world = World::new();
        let log = LoggedOptions { buffer_bytes: 4 << 10, ..small_log() };
        let core = store_without_checkpoints(&world, log, |_| false);
        core.put(b"key", b"value", Durability::Grouped).expect("room");
        let snapshot = core.open_snapshot();
        core.delete(b"key", Durability::Grouped).expect("room");
        let entry = core.index.get(b"key").expect("whole").expect("a snapshot sees it");
        // A put asks for more than a purge does.
        while core.pool.admit(ADMIT_BYTES).is_ok() {
            core.pool.flush(0, 8);
            core.pool.commit().expect("what was admitted has room");
        }
        core.purge(b"gone", entry);
        core.close_snapshot(snapshot);
        world.dir("fast").set_capacity(None);
        core.put(b"other", b"value", Durability::Durable).expect("room for a checkpoint");
        core.purge_deleted();
        assert!(core.deleted.lock().is_empty() && core.index.get(b"key").expect("whole").is_none());
    }

    /// Does `run`, without what `site` persists.
    pub(crate) fn leaving_out<T>(site: Option<mutant::Site>, run: impl FnOnce() -> T) -> T {
        match site {
            Some(site) => mutant::without(site, run),
            None => run(),
        }
    }

    /// That `holds` does as it is, and with none of the calls in `file` that persist something and that it passes left out, of
    /// which there are `count`.
    pub(crate) fn each_is_noticed(file: &str, count: usize, holds: impl Fn(Option<mutant::Site>) -> bool) {
        let sites = mutant::record(|| assert!(holds(None)));
        let ours = sites.into_keys().filter(|site| site.file.ends_with(file) && site.is_persist());
        let ours: Vec<_> = ours.collect();
        assert_eq!(ours.len(), count, "{ours:?}");
        let missed: Vec<_> = ours.into_iter().filter(|site| holds(Some(*site))).collect();
        assert!(missed.is_empty(), "not noticed when left out: {missed:?}");
    }

    /// The lowest limit of seqnos that a crash may leave once [`Core::reserve_seqnos`] has returned, and whether
    /// the seqnos of now lie below it.
    fn limit_covers(world: &World, core: &Core<SimPool, SimDir>) -> bool {
        core.reserve_seqnos();
        let point = world.capture();
        let mut images = point.images(&CrashModel::BOTH, 1, &Budget::default());
        images.all(|image| {
            let pool = image.world.pool("pool");
            let limit = Core::<SimPool, SimDir>::seqno_limit(&pool, 1).expect("a whole word");
            core.clock.last() < limit
        })
    }

    /// The limit is raised half a step before it is reached, so a crash shows only after half a million
    /// writes that it was not published, or not fenced.
    #[test]
    fn the_limit_of_seqnos_is_durable_before_they_are_used() {
        each_is_noticed("valuelog/src/core.rs", 2, |site| {
            let world = World::new();
            let core = store(&world);
            leaving_out(site, || limit_covers(&world, &core))
        });
    }

    #[test]
    fn a_batch_of_deletes_is_taken_when_the_index_is_full() {
        let core = store_of(&World::new(), 8 << 20);
        let key = |n: u32| format!("{n:0>200}").into_bytes();
        let put = |n| core.put(&key(n), b"value", Durability::Durable);
        // Space that readers held back may come while it fills.
        let (mut count, mut refused) = (0, 0);
        while refused < 10 {
            match put(count) {
                Ok(()) => (count, refused) = (count + 1, 0),
                Err(Error::NoSpace { tier: TierRole::Fast, .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
        }
        let mut batch = WriteBatch::new();
        for n in (count..count + 300).chain([3]) {
            batch.delete(key(n)).expect("a small batch");
        }
        batch.put(key(5), "newer").expect("a small batch");
        core.write(&batch, Durability::Durable).expect("no key is new");
        assert!(
            core.get(&key(3)).expect("whole").is_none() && core.get(&key(count)).expect("whole").is_none()
        );
        assert_eq!(core.get(&key(5)).expect("whole").as_deref(), Some(&b"newer"[..]));
    }

    /// The list of a value's parts goes into one chunk.
    #[test]
    fn a_value_whose_parts_cannot_be_listed_is_refused() {
        let core = store_of(&World::new(), 40 << 20);
        let limit = core.longest_value(3);
        let put = |len: u64| core.put(b"key", &vec![7; len as usize], Durability::Durable);
        match put(limit + 1) {
            Err(Error::TooLarge { what: "value", len, limit: named }) => {
                assert_eq!((len, named), (limit + 1, limit));
            }
            other => panic!("{other:?}"),
        }
        put(limit).expect("room");
        core.reclaim(Reclaim::All).expect("room");
        let value = core.get(b"key").expect("whole").expect("it was put");
        assert!(value.len() as u64 == limit && value.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn an_image_says_nothing_of_what_was_kept_for_a_snapshot() {
        let core = store(&World::new());
        core.put(b"key", b"value", Durability::Durable).expect("room");
        assert!(core.image(usize::MAX).is_some());
        let snapshot = core.open_snapshot();
        core.put(b"key", b"newer", Durability::Durable).expect("room");
        assert!(core.image(usize::MAX).is_none());
        core.close_snapshot(snapshot);
        assert!(core.image(usize::MAX).is_some());
    }

    /// Parts are noted by entry and tag, so two values of a key may have the same name: the snapshot's must not be given up
    /// for the other.
    #[test]
    fn parts_that_a_snapshot_sees_outlive_newer_ones_of_the_same_name() {
        let core = store_of(&World::new(), 1 << 20);
        let put = |byte: u8| core.put(b"key", &[byte; 40_000], Durability::Durable).expect("room");
        let none = core.long.memory_bytes();
        put(0);
        let one = core.long.memory_bytes();
        let entry = core.index.get(b"key").expect("whole").expect("it was put");
        let tag = core.hsit.word(entry).tag();
        let snapshot = core.open_snapshot();
        // The one replaced after the snapshot is kept, the next is not, and the third has the tag of the first.
        put(1);
        assert_ne!(core.hsit.word(entry).tag(), tag);
        while tag_of(core.clock.last() + 1) != tag {
            drop(core.clock.begin());
        }
        put(2);
        assert_eq!(core.hsit.word(entry).tag(), tag);
        for byte in 3..40 {
            put(byte);
            core.work.settle_epochs();
        }
        let value = |found: Result<Option<Value>>| found.expect("whole").expect("it was put").to_vec();
        assert!(
            value(core.get_at(b"key", snapshot)) == [0; 40_000],
            "what the snapshot sees is another value"
        );
        assert!(value(core.get(b"key")) == [39; 40_000]);
        assert_eq!(core.long.memory_bytes() - none, 3 * (one - none), "two of the same name, and the newest");
        core.close_snapshot(snapshot);
        assert_eq!(core.long.memory_bytes(), one);
        assert!(core.versions.is_empty() && value(core.get(b"key")) == [39; 40_000]);
    }

    /// Damages the only leaf so that `key` cannot be looked up. Returns the word that is wrong.
    fn damage_leaf(core: &Core<SimPool, SimDir>, key: &[u8]) -> u64 {
        let is_leaf = |(page, usage)| matches!(usage, PageUse::Used { kind: KIND_LEAF, .. }).then_some(page);
        let leaf = core.pages.kinds().find_map(is_leaf).expect("the index has a leaf");
        let damaged = (leaf * PAGE..(leaf + 1) * PAGE).step_by(8).find(|at| {
            core.pool.store(*at, !core.pool.load(*at));
            let is_damaged = core.index.get(key).is_err();
            if !is_damaged {
                core.pool.store(*at, !core.pool.load(*at));
            }
            is_damaged
        });
        damaged.expect("some word of the leaf matters")
    }

    /// A batch that fails because of damage knows no entries of some of its keys, and the first entry of all is another key's.
    #[test]
    fn a_batch_that_fails_takes_no_place_of_a_deleted_key() {
        let core = store(&World::new());
        core.put(b"key", b"value", Durability::Durable).expect("room");
        let entry = core.index.get(b"key").expect("whole").expect("it was put");
        assert_eq!(entry, 0);
        let snapshot = core.open_snapshot();
        core.delete(b"key", Durability::Durable).expect("deletes need no room");
        let damaged = damage_leaf(&core, b"other");
        let mut batch = WriteBatch::new();
        batch.put("other", "value").and_then(|batch| batch.delete("third")).expect("a small batch");
        core.write(&batch, Durability::Durable).expect_err("the leaf is damaged");
        core.pool.store(damaged, !core.pool.load(damaged));
        core.close_snapshot(snapshot);
        core.purge_deleted();
        assert!(core.index.get(b"key").expect("whole").is_none());
        assert_eq!(core.hsit.word(entry).place(), Place::Free);
    }

    /// A key whose leaf cannot be read stays in the index, and so its entry must not be given to another key.
    #[test]
    fn a_deleted_key_that_damage_keeps_in_the_index_is_tried_again() {
        let core = store(&World::new());
        core.put(b"key", b"value", Durability::Durable).expect("room");
        let entry = core.index.get(b"key").expect("whole").expect("it was put");
        let snapshot = core.open_snapshot();
        core.delete(b"key", Durability::Durable).expect("deletes need no room");
        let damaged = damage_leaf(&core, b"key");
        core.close_snapshot(snapshot);
        for _ in 0..3 {
            core.purge_deleted();
            assert_eq!(core.deleted.lock().len(), 1, "it is still to be done");
        }
        assert!(core.image(usize::MAX).is_none());
        core.pool.store(damaged, !core.pool.load(damaged));
        core.purge_deleted();
        assert!(core.deleted.lock().is_empty() && core.index.get(b"key").expect("whole").is_none());
        assert_eq!(core.hsit.word(entry).place(), Place::Free);
    }

    #[test]
    fn memory_of_deleted_keys_is_counted_and_given_back() {
        let core = store_of(&World::new(), 8 << 20);
        let bytes = || {
            let parts = core.memory_parts();
            parts.into_iter().find(|(name, _)| *name == "deleted keys").expect("it is counted").1
        };
        let key = |n: u32| format!("{n:0>100}").into_bytes();
        (0..500).for_each(|n| core.put(&key(n), b"value", Durability::Grouped).expect("room"));
        let (before, snapshot) = (bytes(), core.open_snapshot());
        (0..500).for_each(|n| core.delete(&key(n), Durability::Grouped).expect("deletes need no room"));
        assert!(bytes() >= before + 500 * 100, "{} bytes, {before} before", bytes());
        core.close_snapshot(snapshot);
        core.purge_deleted();
        assert!(bytes() <= before + 4096, "{} bytes, {before} before", bytes());
    }

    #[test]
    fn a_key_that_comes_and_goes_beneath_a_snapshot_is_kept_once() {
        let core = store(&World::new());
        core.put(b"key", b"value", Durability::Durable).expect("room");
        let snapshot = core.open_snapshot();
        for _ in 0..100 {
            core.delete(b"key", Durability::Durable).expect("deletes need no room");
            core.put(b"key", b"value", Durability::Durable).expect("room");
        }
        assert_eq!(core.deleted.lock().len(), 1);
        core.delete(b"key", Durability::Durable).expect("deletes need no room");
        core.close_snapshot(snapshot);
        core.purge_deleted();
        assert!(core.index.get(b"key").expect("whole").is_none());
    }

    #[test]
    fn a_copy_that_is_given_the_slot_of_an_evicted_one_stays() {
        let core = store(&World::new());
        core.cache.set_capacity(64 << 10);
        core.put(b"key", &[1; 500], Durability::Durable).expect("room");
        core.reclaim(Reclaim::All).expect("room");
        let entry = core.index.get(b"key").expect("whole").expect("it was put");
        let read = || {
            // Until its second level gives it to the cache.
            for _ in 0..3 {
                core.get(b"key").expect("whole").expect("it was put");
            }
            core.hsit.aux(entry).slot().expect("it is cached")
        };
        let slot = read();
        core.cache.remove(slot, entry);
        core.maintain_cache().expect("no faults");
        assert_eq!(read(), slot, "the slot was free");
        assert!(core.cache.get(Some(slot), entry, core.hsit.word(entry).clean().0).is_some());
    }

    /// A reader has read a value, and not cached it yet, when its chunk is filled anew and a word that is the
    /// same stands for a newer value.
    #[test]
    fn what_was_read_before_a_chunk_was_filled_anew_is_not_cached() {
        let core = store(&World::new());
        core.cache.set_capacity(64 << 10);
        core.put(b"key", &[1; 500], Durability::Durable).expect("room");
        core.reclaim(Reclaim::All).expect("room");
        let entry = core.index.get(b"key").expect("whole").expect("it was put");
        let word = core.hsit.word(entry).clean();
        let Place::Flash(number, at) = word.place() else { panic!("{word:?} is not on flash") };
        let filling = core.storage.filling(word.place());
        let admit = || {
            let read = core.read_flash(word, entry, Cause::Foreground).expect("no faults");
            let (header, bytes) = read.expect("whole");
            let value = core.admit_and_share((header, bytes), entry, (word, filling)).expect("no faults");
            assert_eq!(value.as_deref(), Some(&[1; 500][..]));
            core.cache.get(core.hsit.aux(entry).slot(), entry, word.0).is_some()
        };
        assert!(admit());
        core.uncache(entry);
        let device = core.storage.device(number).expect("one device");
        let (chunk, _) = device.chunk_of(at);
        device.open_chunk(chunk, State::Open, 500);
        assert!(!admit());
    }
}
