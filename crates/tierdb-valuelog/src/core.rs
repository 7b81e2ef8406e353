//! What the parts of an engine share, and how a word becomes a value.

use crate::cache::Cache;
use crate::config::Options;
use crate::counters::Counters;
use crate::hsit::Hsit;
use crate::index::Index;
use crate::layout::{Layout, SEQNO_LIMIT};
use crate::long::LongValues;
use crate::pages::Pages;
use crate::record::Header;
use crate::ring::Rings;
use crate::storage::{Appender, Storage};
use crate::versions::Versions;
use crate::victims::Victims;
use crate::word::{Place, Word};
use crate::work::Work;
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use tierdb_base::{Error, FailureLatch, Result, TierRole};
use tierdb_device::{Cause, Dir, Meter};
use tierdb_engine::{Latencies, Value};
use tierdb_pmem::{PersistenceDomain, Pool, seal, unseal};
use tierdb_sync::CommitClock;

/// Seqnos by which the persistent limit is raised.
const SEQNO_STEP: u64 = 1 << STEP_BITS;
const STEP_BITS: u32 = 20;

/// A record that is being moved: its entry, and where it was.
pub type Moving = (u64, Place);

/// A record to read together with others.
#[derive(Clone, Copy)]
struct Ahead {
    number: usize,
    entry: u64,
    word: Word,
    seen: Option<u32>,
}

/// Everything of an open store.
pub struct Core<P: Pool, D: Dir> {
    pub pool: Arc<P>,
    pub layout: Layout,
    pub options: Options,
    pub seed: u64,
    pub mode: String,
    pub latch: FailureLatch,
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
    /// Deleted keys whose index entry is to go when no snapshot can see them.
    pub deleted: Mutex<VecDeque<(Vec<u8>, u64)>>,
    pub reclaim: Mutex<Appender<D, Moving>>,
    /// What garbage collection fills, by device.
    pub collect: Mutex<HashMap<u8, Appender<D, Moving>>>,
    pub rewrite: Mutex<Appender<D, Moving>>,
    pub counters: Counters,
    pub latencies: Latencies,
    pub victims: Victims<P>,
    pub work: Work,
    /// Held, shared, while the store changes; by a close alone.
    pub changing: ShardedLock<()>,
    pub closed: AtomicBool,
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

    /// Refuses after a close or a failed write.
    pub fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        self.latch.check()
    }

    /// The right to change the store, which a close waits for.
    ///
    /// # Errors
    /// As [`Core::check_writable`].
    pub fn change(&self) -> Result<ShardedLockReadGuard<'_, ()>> {
        let changing = self.change_anyway();
        self.check_writable()?;
        Ok(changing)
    }

    /// As [`Core::change`], for what is done after a close or a failure too.
    pub fn change_anyway(&self) -> ShardedLockReadGuard<'_, ()> {
        self.changing.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses after a close.
    pub fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::invalid("the store is closed"));
        }
        Ok(())
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

    /// The value of `key` as of now.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        loop {
            let guard = crossbeam_epoch::pin();
            let Some(entry) = self.index.get(key)? else { return Ok(None) };
            let word = self.hsit.settled(entry)?;
            if let Some(found) =
                self.fetch(entry, word, key, guard, || self.hsit.word(entry).clean() == word)?
            {
                return Ok(found);
            }
        }
    }

    /// The value of `key` as a snapshot at `seqno` sees it.
    pub fn get_at(&self, key: &[u8], seqno: u64) -> Result<Option<Value>> {
        let guard = crossbeam_epoch::pin();
        match self.index.get(key)? {
            None => Ok(None),
            Some(entry) => {
                drop(guard);
                self.entry_at(entry, key, seqno)
            }
        }
    }

    /// The value of `key`, whose entry is `entry`, as a snapshot at `seqno` sees it. The snapshot is open, so
    /// the entry stays the key's.
    pub fn entry_at(&self, entry: u64, key: &[u8], seqno: u64) -> Result<Option<Value>> {
        loop {
            let guard = crossbeam_epoch::pin();
            let word = self.word_at(entry, seqno)?;
            let still = || {
                let now = self.hsit.word(entry).clean();
                self.versions.find(entry, seqno).map_or(now, Word::clean) == word
            };
            if let Some(found) = self.fetch(entry, word, key, guard, still)? {
                return Ok(found);
            }
        }
    }

    /// The word of `entry` that a snapshot at `seqno` sees.
    pub fn word_at(&self, entry: u64, seqno: u64) -> Result<Word> {
        let now = self.hsit.settled(entry)?;
        // A replaced word may not have been durable when it was replaced; what replaced it is now.
        Ok(self.versions.find(entry, seqno).map_or(now, Word::clean))
    }

    /// The value that `word` of `entry` points at, or `None` if it was moved or replaced meanwhile, as
    /// `still` (whether the word is current) tells.
    fn fetch(
        &self,
        entry: u64,
        word: Word,
        key: &[u8],
        guard: crossbeam_epoch::Guard,
        still: impl Fn() -> bool,
    ) -> Result<Option<Option<Value>>> {
        match word.place() {
            Place::None | Place::Free => Ok(Some(None)),
            Place::Damaged => Err(self.damaged_entry(entry).with_key(key)),
            Place::Ring(at) => {
                let read = self.read_ring(at, word, entry)?;
                drop(guard);
                match read {
                    Some((header, bytes)) if header.key(&bytes) == key => {
                        self.counters.ring_hits.add(1);
                        match self.value_of(header, bytes)? {
                            Some(value) => Ok(Some(Some(value))),
                            None if !still() => Ok(None),
                            None => Err(self.corrupt(word, "a part of the value is damaged").with_key(key)),
                        }
                    }
                    _ if !still() => Ok(None),
                    _ => Err(self.corrupt(word, "the record in the write buffer is damaged").with_key(key)),
                }
            }
            Place::Flash(..) => {
                let slot = self.hsit.aux(entry).slot();
                if let Some(value) = self.cache.get(slot, entry, word.0) {
                    return Ok(Some(Some(value)));
                }
                // Nobody is pinned while flash is read, so that a slow read holds nothing back. Meanwhile the record
                // may go, its chunk be filled anew, and a newer record of the key come to the same place with the
                // same tag. Then the word is the same again, and the filling is not.
                let filling = self.storage.filling(word);
                drop(guard);
                if let Some((header, bytes)) = self.read_victim(word, entry, filling, key)
                    && let Some(value) = self.admit_and_share(header, bytes, entry, word, Some(filling))?
                {
                    return Ok(Some(Some(value)));
                }
                self.counters.flash_reads.add(1);
                // Once more before it is called damaged: a flip on the way is not one on the medium.
                for _ in 0..2 {
                    let read = self.read_flash(word, entry, Cause::Foreground)?;
                    if self.storage.filling(word) != filling {
                        return Ok(None);
                    }
                    match read {
                        Some((header, bytes)) if header.key(&bytes) == key => {
                            let seen = Some(filling);
                            if let Some(value) = self.admit_and_share(header, bytes, entry, word, seen)? {
                                return Ok(Some(Some(value)));
                            }
                            if !still() {
                                return Ok(None);
                            }
                        }
                        _ if !still() => return Ok(None),
                        _ => {}
                    }
                }
                Err(self.corrupt(word, "the record is damaged").with_key(key))
            }
        }
    }

    /// The values of `keys` as of some moment each; reads of flash overlap.
    pub fn multi_get(&self, keys: &[&[u8]]) -> Vec<Result<Option<Value>>> {
        let wanted = {
            let _guard = crossbeam_epoch::pin();
            let word_of = |key: &&[u8]| {
                let entry = self.index.get(key).ok()??;
                Some((entry, self.hsit.settled(entry).ok()?))
            };
            keys.iter().map(word_of).collect::<Vec<_>>()
        };
        let ahead = self.read_ahead(&wanted, |number| keys[number]);
        keys.iter()
            .zip(ahead)
            .map(|(key, ahead)| ahead.map_or_else(|| self.get(key), |v| Ok(Some(v))))
            .collect()
    }

    /// The values that are cached, or on flash, whose reads overlap. `None` for all others, and for what did not
    /// check: those are to be read one by one.
    pub fn read_ahead<'k>(
        &self,
        wanted: &[Option<(u64, Word)>],
        key: impl Fn(usize) -> &'k [u8],
    ) -> Vec<Option<Value>> {
        let mut by_device: Vec<Vec<Ahead>> = vec![Vec::new(); self.storage.devices().len()];
        let mut found = vec![None; wanted.len()];
        for (number, wanted) in wanted.iter().enumerate() {
            let Some((entry, word)) = wanted else { continue };
            if let Place::Flash(device, _) = word.place()
                && !word.is_large()
                && let Some(list) = by_device.get_mut(usize::from(device))
            {
                found[number] = self.cache.get(self.hsit.aux(*entry).slot(), *entry, word.0);
                if found[number].is_some() {
                    continue;
                }
                let seen = self.sight(*entry, *word);
                found[number] = seen.and_then(|filling| {
                    let (header, bytes) = self.read_victim(*word, *entry, filling, key(number))?;
                    self.admit_and_share(header, bytes, *entry, *word, seen).ok().flatten()
                });
                if found[number].is_none() {
                    list.push(Ahead { number, entry: *entry, word: *word, seen });
                }
            }
        }
        for (device, list) in self.storage.devices().iter().zip(by_device).filter(|(_, list)| list.len() > 1)
        {
            let places: Vec<(u64, Word)> = list
                .iter()
                .filter_map(|ahead| match ahead.word.place() {
                    Place::Flash(_, at) => Some((at, ahead.word)),
                    _ => None,
                })
                .collect();
            let read = device.read_records(&places, Cause::Foreground);
            for (Ahead { number, entry, word, seen }, record) in list.into_iter().zip(read) {
                let Some((header, bytes)) = record else { continue };
                let right = header.is_coupled(entry, word.tag())
                    && header.is_whole(&bytes, self.seed)
                    && header.key(&bytes) == key(number);
                if right {
                    self.counters.flash_reads.add(1);
                    found[number] = self.admit_and_share(header, bytes, entry, word, seen).ok().flatten();
                }
            }
        }
        found
    }

    /// The record of `key` at `word` in a `filling` of its chunk, from the cache's second level.
    fn read_victim(&self, word: Word, entry: u64, filling: u32, key: &[u8]) -> Option<(Header, Vec<u8>)> {
        let (header, bytes) = self.victims.get(word.0, filling)?;
        let right = header.is_coupled(entry, word.tag())
            && header.is_whole(&bytes, self.seed)
            && header.key(&bytes) == key;
        right.then(|| {
            self.counters.victim_hits.add(1);
            (header, bytes)
        })
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

    /// The record at pool offset `at`, if it is whole and coupled with `word` of `entry`.
    pub fn read_ring(&self, at: u64, word: Word, entry: u64) -> Result<Option<(Header, Vec<u8>)>> {
        let (first, end) = (self.layout.rings_at(), self.layout.first_page() * crate::pages::PAGE);
        if at < first || at + crate::record::HEADER as u64 > end {
            return Ok(None);
        }
        let room = self.layout.ring_bytes - (at - first) % self.layout.ring_bytes;
        let mut head = [0u8; crate::record::HEADER];
        self.pool.read(at, &mut head)?;
        let Some(header) = Header::parse(&head) else { return Ok(None) };
        if header.len() as u64 > room || !header.is_coupled(entry, word.tag()) {
            return Ok(None);
        }
        let mut bytes = vec![0; header.len()];
        self.pool.read(at, &mut bytes)?;
        // The record may have been overwritten between the two reads: the header is that of the bytes.
        let whole = bytes[..head.len()] == head && header.is_whole(&bytes, self.seed);
        Ok(whole.then_some((header, bytes)))
    }

    /// The record in Value Storage where `word` points, if it is whole and coupled with it.
    pub fn read_flash(&self, word: Word, entry: u64, cause: Cause) -> Result<Option<(Header, Vec<u8>)>> {
        let Place::Flash(number, at) = word.place() else { return Ok(None) };
        let Some(device) = self.storage.device(number) else { return Ok(None) };
        let read = device.read_record(at, word, cause)?;
        Ok(read.filter(|(header, bytes)| {
            header.is_coupled(entry, word.tag()) && header.is_whole(bytes, self.seed)
        }))
    }

    /// The record where `word` points, wherever that is.
    pub fn read_record(&self, word: Word, entry: u64, cause: Cause) -> Result<Option<(Header, Vec<u8>)>> {
        match word.place() {
            Place::Ring(at) => self.read_ring(at, word, entry),
            Place::Flash(..) => self.read_flash(word, entry, cause),
            Place::None | Place::Free | Place::Damaged => Ok(None),
        }
    }

    /// The value in a record that was just read, put together from its parts where it is long; `None` if a
    /// part does not check.
    pub fn value_of(&self, header: Header, mut bytes: Vec<u8>) -> Result<Option<Value>> {
        if header.kind == crate::record::Kind::Parts {
            return Ok(self.read_long(&header, &bytes, Cause::Foreground)?.map(Value::from));
        }
        bytes.drain(..crate::record::HEADER + header.key_len);
        Ok(Some(Value::from(bytes)))
    }

    /// Which filling of its chunk `word` points into, if it is the word of `entry` now.
    fn sight(&self, entry: u64, word: Word) -> Option<u32> {
        let filling = self.storage.filling(word);
        (self.hsit.word(entry).clean() == word).then_some(filling)
    }

    /// The value in a record just read from flash. It goes through the cache if that takes it, and if the word has
    /// been that of the entry, in the filling `seen`, since before the read.
    fn admit_and_share(
        &self,
        header: Header,
        bytes: Vec<u8>,
        entry: u64,
        word: Word,
        seen: Option<u32>,
    ) -> Result<Option<Value>> {
        if header.kind == crate::record::Kind::Parts {
            return self.value_of(header, bytes);
        }
        let range = crate::record::HEADER + header.key_len..header.len();
        let record: Arc<[u8]> = bytes.into();
        if let Some(filling) = seen
            && let Some(slot) = self.cache.insert(entry, (word.0, filling), record.clone(), range.clone())
        {
            // A slot that is there already holds a copy that was evicted, or that another reader has just made.
            let before = self.hsit.update_aux(entry, |aux| aux.with_slot(Some(slot)));
            if let Some(other) = before.slot() {
                self.cache.remove(other, entry);
            }
            if self.sight(entry, word) != seen {
                // Whoever replaced the word may have looked before the slot was there.
                self.uncache(entry);
            }
            if self.cache.pressure() {
                self.work.want_upkeep();
            }
        }
        Ok(Some(Value::shared(record, range)))
    }

    /// Takes the entry's value out of the cache.
    pub fn uncache(&self, entry: u64) {
        if let Some(slot) = self.hsit.update_aux(entry, |aux| aux.with_slot(None)).slot() {
            self.cache.remove(slot, entry);
        }
    }

    /// Nothing refers to the record of `entry` at `word` any more.
    pub fn discard(&self, entry: u64, word: Word, guard: &crossbeam_epoch::Guard) {
        if word.is_large() && matches!(word.place(), Place::Ring(_) | Place::Flash(..)) {
            self.long.forget(entry, word.tag(), |number, chunk| {
                if let Some(device) = self.storage.device(number) {
                    crate::storage::Device::release_part(device, chunk, guard);
                }
            });
        }
        self.storage.release(word, guard);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::moving::Reclaim;
    use tierdb_base::mutant;
    use tierdb_engine::{Background, Durability, FlashTier, Media, WriteBatch};
    use tierdb_sim::{Budget, CrashModel, SimDir, SimPool, World};

    /// A small new store.
    pub(crate) fn store(world: &World) -> Core<SimPool, SimDir> {
        store_of(world, 256 << 10)
    }

    /// A store with so many bytes of flash.
    fn store_of(world: &World, capacity: u64) -> Core<SimPool, SimDir> {
        world.add_pool("pool", 256 << 10);
        let flash = FlashTier { dir: world.add_dir("flash"), capacity, meter: Meter::new(), emulation: None };
        let media = Media {
            pool: world.pool("pool").into(),
            fast_meter: Meter::new(),
            flash: vec![flash],
            seed: 1,
            latch: FailureLatch::new(),
            mode: "simulated".into(),
        };
        let small = Options::for_pool(256 << 10, 256 << 10);
        let options = Options {
            rings: 1,
            ring_bytes: 16 << 10,
            chunk_bytes: 16 << 10,
            background: Background::Inline,
            ..small
        };
        crate::recover::create(media, options).expect("a store is created")
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
        let covered = |site: Option<mutant::Site>| {
            let world = World::new();
            let core = store(&world);
            match site {
                Some(site) => mutant::without(site, || limit_covers(&world, &core)),
                None => limit_covers(&world, &core),
            }
        };
        let sites = mutant::record(|| assert!(covered(None)));
        let ours = sites.into_keys().filter(|site| site.file.ends_with("valuelog/src/core.rs"));
        let missed: Vec<_> = ours.filter(|site| covered(Some(*site))).collect();
        assert!(missed.is_empty(), "not noticed when left out: {missed:?}");
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
        let seen = core.sight(entry, word);
        let admit = || {
            let read = core.read_flash(word, entry, Cause::Foreground).expect("no faults");
            let (header, bytes) = read.expect("whole");
            let value = core.admit_and_share(header, bytes, entry, word, seen).expect("no faults");
            assert_eq!(value.as_deref(), Some(&[1; 500][..]));
            core.cache.get(core.hsit.aux(entry).slot(), entry, word.0).is_some()
        };
        assert!(admit());
        core.uncache(entry);
        let device = core.storage.device(number).expect("one device");
        let (chunk, _) = device.chunk_of(at);
        device.with_chunk(chunk, |chunk| chunk.open(chunk.state, 500, core.layout.chunk_bytes));
        assert!(!admit());
    }
}
