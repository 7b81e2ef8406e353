//! Records in slots: written, read, and given up.

use crate::partition::Entry;
use crate::record::{self, HEADER, Head, Kind};
use crate::slabs::{Commit, Mark, Purpose, Slabs, UNIT};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_base::{Error, Result, Seqno, TierRole};
use tierdb_pmem::{Admitted, Pool, Stage};

/// Most seqnos that are tried for a damaged record: those of the first 2^36 writes.
const MOST_SEQNOS: usize = 1 << 16;

/// Bytes of a slot that are read at once, where the pool is not in memory.
const ONE_READ: u64 = 8 << 10;
/// Most bytes of slots of records that are read at once.
pub const MOST_AT_ONCE: u64 = 1 << 20;
/// Bytes of log that a word takes which is staged as free.
pub const FREE_BYTES: u64 = 16;

/// The slots of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Byte of the head slot.
    pub at: u64,
    /// Bytes of the slots of its parts.
    pub parts: Box<[u64]>,
}

/// A record that was staged: not live yet.
pub struct Written {
    /// Where it is.
    pub slots: Slots,
    /// Byte of its commit word, and what makes the record live.
    pub commit: (u64, u64),
}

/// A record that is to be written.
pub struct NewRecord<'r> {
    pub kind: Kind,
    pub seqno: Seqno,
    pub key: &'r [u8],
    pub value: &'r [u8],
}

/// A record that was read: what its head says, and its value.
pub type Record = (Head, Vec<u8>);

/// All records of a pool.
pub struct Heap<P: Pool> {
    pub pool: Arc<P>,
    pub seed: u64,
    pub slabs: Slabs<P>,
    /// Slots whose words the next change of their partition stages as free.
    pub retired: AtomicU64,
}

impl<P: Pool> Heap<P> {
    pub fn new(pool: Arc<P>, seed: u64, slabs: Slabs<P>) -> Self {
        Heap { pool, seed, slabs, retired: AtomicU64::new(0) }
    }

    /// As [`Pool::admit`], for a change that begins with what is retired: by whichever change comes first, so it counts once.
    pub fn admit(&self, bytes: u64) -> Result<Admitted<'_>> {
        let retired = self.retired.load(Ordering::Relaxed) * FREE_BYTES;
        let mut admitted = self.pool.admit(bytes + retired)?;
        admitted.give_back(retired);
        Ok(admitted)
    }

    /// Stages `record` in free slots. `None` if there are none for this purpose; then nothing is taken.
    pub fn write(
        &self,
        stage: &mut Stage<'_, P>,
        record: &NewRecord<'_>,
        purpose: Purpose,
    ) -> Option<Written> {
        let NewRecord { kind, seqno, key, value } = *record;
        let shape = record::shape(key.len(), value.len(), self.slabs.largest() as usize)?;
        let at = self.slabs.take(shape.head_len as u64, purpose)?;
        let mut parts = Vec::with_capacity(shape.parts);
        for part in value.chunks(shape.part_len.max(1)).take(shape.parts) {
            let Some(part_at) = self.slabs.take(part.len() as u64, purpose) else {
                self.give(&Slots { at, parts: parts.into() });
                return None;
            };
            parts.push(part_at);
        }
        let (Ok(word_at), true) = (self.slabs.word_at(at), parts.len() == shape.parts) else {
            self.give(&Slots { at, parts: parts.into() });
            return None;
        };
        for (part, part_at) in value.chunks(shape.part_len.max(1)).zip(&parts) {
            self.stage_slot(stage, *part_at, part.into());
        }
        self.stage_slot(stage, at, record::encode(self.seed, at, kind, seqno, key, value, &parts).into());
        let commit = (word_at, self.slabs.live_word(word_at, Mark::new(key, seqno)));
        Some(Written { slots: Slots { at, parts: parts.into() }, commit })
    }

    /// Stages what a slot is to hold: to the end of a unit, where a part of one would have to be read first.
    fn stage_slot(&self, stage: &mut Stage<'_, P>, at: u64, mut bytes: Cow<'_, [u8]>) {
        if !self.pool.is_in_memory() {
            let whole = bytes.len().next_multiple_of(UNIT as usize);
            bytes.to_mut().resize(whole, 0);
        }
        stage.write(at, &bytes);
    }

    /// Bytes that writing a record of a key and a value of these lengths flushes, at the most.
    pub fn admit_bytes(&self, key_len: usize, value_len: usize) -> u64 {
        let largest = self.slabs.largest();
        // A slab may be given a class for each slot.
        let words = (largest / 8).min(value_len as u64 + 8192);
        self.record_bytes(key_len, value_len) + self.slots(value_len) * words
    }

    /// The same of many records: besides a word for each slot, slabs are given no more words than one of each class has, which
    /// is about half of a slab.
    pub fn admit_all(&self, lens: impl Iterator<Item = (usize, usize)> + Clone) -> u64 {
        let each: u64 = lens.clone().map(|(key, value)| self.admit_bytes(key, value)).sum();
        let all = lens.map(|(key, value)| self.record_bytes(key, value) + self.slots(value) * 8);
        each.min(all.sum::<u64>() + self.slabs.largest())
    }

    fn record_bytes(&self, key_len: usize, value_len: usize) -> u64 {
        (HEADER + key_len + value_len) as u64 + 256
    }

    /// Slots that a record with a value of `value_len` bytes takes.
    fn slots(&self, value_len: usize) -> u64 {
        1 + value_len as u64 / self.slabs.largest().max(1)
    }

    /// The head of the record at byte `at`.
    ///
    /// # Errors
    /// `Corrupt` if it is not a record that was written there, or the medium refuses.
    pub fn head(&self, at: u64) -> Result<Head> {
        self.head_and_inline(at).map(|(head, _)| head)
    }

    /// The head of the record at byte `at`, and what follows it in its slot where that is the value.
    fn head_and_inline(&self, at: u64) -> Result<(Head, Vec<u8>)> {
        let slot = self.slabs.slot_bytes(at).ok_or_else(|| self.damaged(at))?;
        self.head_in(at, slot)
    }

    /// The same, in a slot of `slot` bytes.
    pub fn head_in(&self, at: u64, slot: u64) -> Result<(Head, Vec<u8>)> {
        let mut bytes = self.first_bytes(slot);
        self.pool.read(at, &mut bytes)?;
        self.head_from(at, slot, bytes)
    }

    /// What is read of a slot of `slot` bytes at first: what is not in memory is read once.
    fn first_bytes(&self, slot: u64) -> Vec<u8> {
        let first = slot.min(if self.pool.is_in_memory() { HEADER as u64 } else { ONE_READ }) as usize;
        let mut bytes = Vec::with_capacity(slot as usize);
        bytes.resize(first, 0);
        bytes
    }

    /// The head, and what follows it, in a slot of `slot` bytes at byte `at` that begins with `bytes`.
    fn head_from(&self, at: u64, slot: u64, mut bytes: Vec<u8>) -> Result<(Head, Vec<u8>)> {
        let damaged = || self.damaged(at);
        let first = bytes.len();
        let header: &[u8; HEADER] = bytes.first_chunk().ok_or_else(damaged)?;
        let head_len = Head::len_of(header);
        let value_len = u32::from_le_bytes([header[16], header[17], header[18], header[19]]) as usize;
        let has_parts = header[32..36] != [0; 4];
        let len = if has_parts { head_len } else { head_len.saturating_add(value_len) };
        if len as u64 > slot {
            return Err(damaged());
        }
        bytes.resize(len, 0);
        if len > first {
            self.pool.read(at + first as u64, &mut bytes[first..])?;
        }
        let head =
            bytes.get(..head_len).and_then(|head| Head::decode(self.seed, at, head)).ok_or_else(damaged)?;
        bytes.drain(..head_len);
        Ok((head, bytes))
    }

    /// Key and seqno that a damaged head at byte `at` gives: nothing says that these are what was written.
    pub fn name_of(&self, at: u64) -> Option<(Vec<u8>, Seqno)> {
        let slot = self.slabs.slot_bytes(at)?;
        let mut header = [0u8; HEADER];
        self.pool.read(at, &mut header).ok()?;
        let (seqno, key_len) = record::name_in(&header);
        if (HEADER + key_len) as u64 > slot {
            return None;
        }
        let mut key = vec![0; key_len];
        self.pool.read(at + HEADER as u64, &mut key).ok()?;
        Some((key, seqno))
    }

    /// Whether a head at byte `at` with one wrong byte may be that of a value in parts. Two things say so, of which one is right: that it lists
    /// some, and that key and value are longer than its slot.
    pub fn may_have_parts(&self, at: u64) -> bool {
        let mut header = [0u8; HEADER];
        let Some(slot) = self.slabs.slot_bytes(at) else { return false };
        self.pool.read(at, &mut header).is_ok() && record::may_have_parts(&header, slot as usize)
    }

    /// The seqno, not above `last`, of the record at byte `at`, whose head is damaged but for its key, and whose word has this mark: the
    /// one that its value was written with. `None` where no seqno tells that: more is damaged, the value is kept in parts, or there have been
    /// more writes than can be tried. What the head gives alone is not to be believed: a single wrong bit would bring an older version back.
    pub fn seqno_of(&self, at: u64, mark: Mark, last: Seqno) -> Option<Seqno> {
        let mut slot = vec![0; self.slabs.slot_bytes(at)? as usize];
        self.pool.read(at, &mut slot).ok()?;
        mark.seqnos(last).take(MOST_SEQNOS).find(|seqno| record::is_from(self.seed, *seqno, &slot))
    }

    /// The record at byte `at`, with its value.
    ///
    /// # Errors
    /// As [`Heap::head`], and if the value is not what was written.
    pub fn read(&self, at: u64) -> Result<Record> {
        self.with_parts(at, self.head_and_inline(at)?)
    }

    /// As [`Heap::read`] for the records at each of these bytes. What is not in memory is read at once, but for what goes beyond 8 KiB of a record.
    pub fn read_many(&self, ats: &[u64]) -> Vec<Result<Record>> {
        let slots: Vec<u64> = ats.iter().map(|at| self.slabs.slot_bytes(*at).unwrap_or(0)).collect();
        let mut bytes: Vec<Vec<u8>> = slots.iter().map(|slot| self.first_bytes(*slot)).collect();
        let mut reads: Vec<_> =
            ats.iter().copied().zip(bytes.iter_mut().map(|bytes| &mut bytes[..])).collect();
        let results = self.pool.read_many(&mut reads);
        let of = |(((at, slot), bytes), result): (((&u64, u64), _), Result<()>)| {
            result?;
            self.with_parts(*at, self.head_from(*at, slot, bytes)?)
        };
        ats.iter().zip(slots).zip(bytes).zip(results).map(of).collect()
    }

    /// How many of the first of `entries` may be read at once: `most`, up to a MiB of slots, and what is kept in parts alone. One at the
    /// least, if there is any.
    pub fn first_of(&self, entries: impl Iterator<Item = Entry>, most: usize) -> usize {
        let (mut bytes, mut is_first) = (0, true);
        let fits = |entry: &Entry| {
            bytes += self.bytes_at_once(*entry);
            std::mem::take(&mut is_first) || bytes <= MOST_AT_ONCE && !entry.is_long()
        };
        entries.take(most).take_while(fits).count()
    }

    /// What the record of `entry` counts of what is read at once: what is kept in parts may be as long as all others.
    pub fn bytes_at_once(&self, entry: Entry) -> u64 {
        if entry.is_long() { MOST_AT_ONCE } else { self.slabs.slot_bytes(entry.at()).unwrap_or(0) }
    }

    /// A record with its value, of which `head` and `value` are in the slot at byte `at`.
    fn with_parts(&self, at: u64, (head, mut value): (Head, Vec<u8>)) -> Result<Record> {
        if !head.parts.is_empty() {
            value = self.read_parts(at, &head)?;
        }
        if head.verify(self.seed, &value) {
            Ok((head, value))
        } else {
            Err(self.damaged(at).with_key(&head.key))
        }
    }

    fn read_parts(&self, at: u64, head: &Head) -> Result<Vec<u8>> {
        let part_len = self.slabs.largest() as usize;
        if head.parts.len() != head.value_len.div_ceil(part_len) {
            return Err(self.damaged(at).with_key(&head.key));
        }
        let mut value = vec![0; head.value_len];
        for (part, part_at) in value.chunks_mut(part_len).zip(&head.parts) {
            match self.slabs.slot_bytes(*part_at) {
                Some(slot) if slot as usize >= part.len() => self.pool.read(*part_at, part)?,
                _ => return Err(self.damaged(at).with_key(&head.key)),
            }
        }
        Ok(value)
    }

    /// The mark of the live slot at byte `at`, if it is one.
    pub fn mark(&self, at: u64) -> Option<Mark> {
        match self.slabs.commit_of(at) {
            Commit::Live(mark) => Some(mark),
            Commit::Free | Commit::Damaged => None,
        }
    }

    /// That the record at byte `at` is damaged.
    pub fn damaged(&self, at: u64) -> Error {
        Error::corrupt(TierRole::Fast, "the record in a slot is damaged", self.pool.place(at))
    }

    /// Stages that the slot at byte `at` is free.
    pub fn stage_free(&self, stage: &mut Stage<'_, P>, at: u64) {
        if let Ok(word_at) = self.slabs.word_at(at) {
            stage.word(word_at, self.slabs.free_word(word_at));
        }
    }

    /// Gives back the slots of a record whose word says *free*, or was never live.
    pub fn give(&self, slots: &Slots) {
        self.slabs.give(slots.at);
        for part in &slots.parts {
            self.slabs.give(*part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::layout::Layout;
    use parking_lot::Mutex;
    use tierdb_base::mutant;
    use tierdb_sim::{Budget, CrashModel, CrashPoint, SimPool, World, as_thread};

    const SEED: u64 = 5;

    fn heap(pool: SimPool, layout: &Layout) -> Heap<SimPool> {
        let pool = Arc::new(pool);
        Heap::new(pool.clone(), SEED, Slabs::create(pool, SEED, layout))
    }

    /// What the words of all slabs say after a crash; `None` if the class of one is not known.
    fn words(image: &World, layout: &Layout) -> Option<Vec<Commit>> {
        let (slabs, unknown) = Slabs::open(Arc::new(image.pool("pool")), SEED, layout);
        let words = (0..slabs.count()).flat_map(|slab| slabs.words(slab)).map(|(_, commit)| commit);
        unknown.is_empty().then(|| words.collect())
    }

    /// One thread gives a slab its class, and is about to go on; another one writes a record there. Whether no crash
    /// leaves a word that was never written, and none at the end takes the record.
    fn a_shared_slab_lasts() -> bool {
        let world = World::new();
        let pool = world.add_pool("pool", 80 << 10);
        world.overwrite("pool", 8, &vec![0x5a; (80 << 10) - 8]);
        let options = Options { slab_bytes: 8 << 10, ..Options::for_pool(1 << 20, 80 << 10) };
        let layout = Layout::new(pool.len(), 1, &options).expect("layout");
        let heap = heap(pool, &layout);
        layout.format(&*heap.pool, SEED).expect("format");
        let points: Arc<Mutex<Vec<CrashPoint>>> = Arc::default();
        let sink = points.clone();
        world.on_event(Some(Arc::new(move |world, _| sink.lock().push(world.capture()))));
        as_thread(0, || heap.slabs.take(64, Purpose::Value)).expect("a slot");
        as_thread(1, || {
            let record = NewRecord { kind: Kind::Value, seqno: 1, key: b"key", value: b"value" };
            let mut stage = Stage::new(&*heap.pool);
            let written = heap.write(&mut stage, &record, Purpose::Value).expect("a slot");
            stage.drain().publish(written.commit.0, written.commit.1);
            heap.pool.fence();
        });
        world.on_event(None);
        let all = |point: &CrashPoint, holds: &dyn Fn(Vec<Commit>) -> bool| {
            let mut images = point.images(&CrashModel::BOTH, 1, &Budget::default());
            images.all(|image| words(&image.world, &layout).is_some_and(holds))
        };
        let mark = Mark::new(b"key", 1);
        points.lock().iter().all(|point| all(point, &|words| !words.contains(&Commit::Damaged)))
            && all(&world.capture(), &|words| words == [Commit::Live(mark)])
    }

    #[test]
    fn a_slab_has_its_class_before_another_thread_uses_it() {
        let sites = mutant::record(|| assert!(a_shared_slab_lasts()));
        let ours: Vec<_> = sites.into_keys().filter(|site| site.file.ends_with("src/slabs.rs")).collect();
        let missed: Vec<_> =
            ours.iter().filter(|site| mutant::without(**site, a_shared_slab_lasts)).collect();
        assert!(missed.is_empty(), "not noticed when left out: {missed:?}");
        assert!(ours.len() >= 4, "{ours:?}");
    }
}
