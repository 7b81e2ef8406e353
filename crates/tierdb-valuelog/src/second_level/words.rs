//! Where frames are: a hash table at the end of the unused part of the pool, that grows with what is in it.
//!
//! ```text
//!  ◄── frames ──►│ bucket n-1 │ … │ bucket 1 │ bucket 0 │ end of the pool's pages
//!                └ eight words, one cache line: tag of 22 bits, place of 42, in units of 8 bytes
//! ```
//!
//! * One bucket more at a time, whose words come out of one other (linear hashing, Litwin 1980): nothing has to be written anew, nor is
//!   a large table cleared at once.
//! * A word is in one of two buckets, the emptier one when it came: some have not been split for long, and would lose a tenth of theirs otherwise.
//! * In DRAM it takes two bits for each word: how often that was found. So readers write nothing to the pool, whose pages may have gone to the
//!   key index a moment before.
//! * Nothing in it is to be trusted: a word may be of a frame that was overwritten, or what somebody else has written to the page. The frame tells.
//! * There is one writer at a time, and its calls say so.

use super::frame::UNIT;
use crate::pages::{PAGE, Pages};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use tierdb_pmem::Pool;
use tierdb_sync::Table;

/// Words of a bucket, and their bytes.
const WAYS: u64 = 8;
const BUCKET: u64 = WAYS * 8;
/// Buckets that it has at first: a page of them.
const FIRST: u64 = PAGE / BUCKET;
const PLACE_BITS: u32 = 42;
const PLACE: u64 = (1 << PLACE_BITS) - 1;
/// A heat is how often a frame was found, up to twice, or that nobody needs it any more.
const HEAT_BITS: u64 = 2;
const GONE: u8 = (1 << HEAT_BITS) - 1;

/// Which word of the table.
pub type Slot = u64;

/// See the module's description.
pub struct Words<P: Pool> {
    pool: Arc<P>,
    pages: Arc<Pages<P>>,
    /// Byte of the pool before which buckets are.
    end: u64,
    /// Most buckets, as the heats may take no more memory.
    most: u64,
    /// Those of a bucket.
    heats: Table<AtomicU16>,
    /// Buckets that there are. None: there is no table.
    buckets: AtomicU64,
}

impl<P: Pool> Words<P> {
    /// None yet, before byte `end` of the pool, and never more than have heats in `memory` bytes.
    pub fn new(pool: Arc<P>, pages: Arc<Pages<P>>, end: u64, memory: u64) -> Self {
        let most = Table::<AtomicU16>::whole_segments(memory / size_of::<AtomicU16>() as u64);
        Words { pool, pages, end, most, heats: Table::new(), buckets: AtomicU64::new(0) }
    }

    /// Whether there can be none.
    pub fn is_never(&self) -> bool {
        self.most < FIRST
    }

    /// The byte of the pool at which they begin.
    pub fn start(&self) -> u64 {
        self.end - self.buckets.load(Ordering::Acquire) * BUCKET
    }

    /// How many there is room for.
    pub fn len(&self) -> u64 {
        self.buckets.load(Ordering::Acquire) * WAYS
    }

    /// Writer: an empty table, if the pages for it are not used. Says whether they were not.
    pub fn begin(&self) -> bool {
        self.buckets.store(0, Ordering::Release);
        if self.is_never() || !self.pages.write_unused(self.end - PAGE, &[0; PAGE as usize]) {
            return false;
        }
        (0..FIRST).for_each(|bucket| self.heats.get(bucket).store(0, Ordering::Relaxed));
        self.buckets.store(FIRST, Ordering::Release);
        true
    }

    /// Writer: no table any more, since its pages are used.
    pub fn give_up(&self) {
        self.buckets.store(0, Ordering::Release);
    }

    /// What may be of `hash`: slots, and the places in the pool that their words name.
    pub fn candidates(&self, hash: u64) -> impl Iterator<Item = (Slot, u64)> + '_ {
        self.slots(hash).filter_map(move |slot| {
            let word = self.load(slot);
            let is_it = word != 0 && word >> PLACE_BITS == hash >> PLACE_BITS;
            (is_it && !is_gone(self.heat(slot))).then_some((slot, place(word)))
        })
    }

    /// Slots in which a word of `hash` may be. None, if there is no table.
    pub fn slots(&self, hash: u64) -> impl Iterator<Item = Slot> + use<P> {
        let [first, second] = buckets_of(hash, self.buckets.load(Ordering::Acquire));
        slots_of(first).chain(slots_of(second))
    }

    /// The one in which a word of `hash` is to be, if one is free.
    pub fn free_slot(&self, hash: u64) -> Option<Slot> {
        let is_free = |slot: &Slot| self.load(*slot) == 0;
        let buckets = buckets_of(hash, self.buckets.load(Ordering::Acquire));
        let emptier = buckets.into_iter().max_by_key(|bucket| slots_of(*bucket).filter(is_free).count())?;
        slots_of(emptier).find(is_free)
    }

    /// The place that the word in `slot` names, and how often it was found, or that it [is gone](is_gone). `None` if the slot is free.
    pub fn at(&self, slot: Slot) -> Option<(u64, u8)> {
        let word = self.load(slot);
        (word != 0).then(|| (place(word), self.heat(slot)))
    }

    fn heat(&self, slot: Slot) -> u8 {
        let heats = self.heats.existing(slot / WAYS).map_or(0, |heats| heats.load(Ordering::Relaxed));
        heat_of(slot, heats)
    }

    /// Makes the heat of what is in `slot` what `change` says of what it is, if that is something. Returns what it was.
    fn change_heat(&self, slot: Slot, change: impl Fn(u8) -> Option<u8>) -> u8 {
        let changed = |heats: u16| {
            let others = heats & !(u16::from(GONE) << shift(slot));
            change(heat_of(slot, heats)).map(|heat| others | u16::from(heat) << shift(slot))
        };
        let updated = self.heats.get(slot / WAYS).fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
        heat_of(slot, updated.unwrap_or_else(|same| same))
    }

    /// It was found so often, unless that is known otherwise than as `seen` meanwhile.
    pub fn set_heat(&self, slot: Slot, seen: u8, heat: u8) {
        self.change_heat(slot, |now| (now == seen).then_some(heat));
    }

    /// The frame is found no more. Says whether it was until now.
    pub fn set_gone(&self, slot: Slot) -> bool {
        self.change_heat(slot, |_| Some(GONE)) != GONE
    }

    /// Writer: the word of `hash` in `slot` names `place`, of a frame that was found so often.
    pub fn put(&self, slot: Slot, hash: u64, place: u64, heat: u8) {
        self.change_heat(slot, |_| Some(heat));
        self.store(slot, (hash & !PLACE) | (place / UNIT));
    }

    /// Writer: nothing is in `slot`.
    pub fn clear(&self, slot: Slot) {
        self.store(slot, 0);
    }

    /// Writer: a bucket more, if there may be one. `hash_of` tells the hash of the frame at a place, if there is one. Words that are of none
    /// are left out.
    pub fn grow(&self, hash_of: impl Fn(u64) -> Option<u64>) {
        let buckets = self.buckets.load(Ordering::Relaxed);
        if buckets == 0 || buckets >= self.most {
            return;
        }
        let parent = buckets - (1 << buckets.ilog2());
        let from = parent * WAYS;
        let (mut moved, mut left_out) = ([0; WAYS as usize], Vec::new());
        for way in 0..WAYS {
            let word = self.load(from + way);
            if word == 0 {
                continue;
            }
            let is_right = |hash: &u64| (hash ^ word) >> PLACE_BITS == 0;
            let after = hash_of(place(word)).filter(is_right).and_then(|hash| {
                let which = buckets_of(hash, buckets).iter().position(|bucket| *bucket == Some(parent))?;
                buckets_of(hash, buckets + 1)[which]
            });
            match after {
                Some(bucket) if bucket == buckets => moved[way as usize] = word,
                Some(_) => continue,
                None => {}
            }
            left_out.push(from + way);
        }
        let heats = self.heats.get(parent).load(Ordering::Relaxed);
        self.heats.get(buckets).store(heats, Ordering::Relaxed);
        let bytes: Vec<u8> = moved.iter().flat_map(|word| word.to_le_bytes()).collect();
        if !self.pages.write_unused(self.end - (buckets + 1) * BUCKET, &bytes) {
            return;
        }
        self.buckets.store(buckets + 1, Ordering::Release);
        left_out.into_iter().for_each(|slot| self.clear(slot));
    }

    fn offset(&self, slot: Slot) -> u64 {
        self.end - (slot / WAYS + 1) * BUCKET + slot % WAYS * 8
    }

    fn load(&self, slot: Slot) -> u64 {
        self.pool.load(self.offset(slot))
    }

    fn store(&self, slot: Slot, word: u64) {
        // Where its page is used there will be no table any more.
        let _is_unused = self.pages.write_unused(self.offset(slot), &word.to_le_bytes());
    }

    /// Bytes of DRAM in use.
    pub fn memory_bytes(&self) -> u64 {
        self.heats.memory_bytes()
    }
}

/// Where the heat of what is in `slot` is among those of its bucket.
fn shift(slot: Slot) -> u64 {
    slot % WAYS * HEAT_BITS
}

/// That heat.
fn heat_of(slot: Slot, heats: u16) -> u8 {
    (heats >> shift(slot)) as u8 & GONE
}

/// Whether a heat says that nobody needs the frame any more.
pub fn is_gone(heat: u8) -> bool {
    heat == GONE
}

/// In which of so many buckets a word of `hash` may be.
fn buckets_of(hash: u64, buckets: u64) -> [Option<u64>; 2] {
    // Of other bits than the first one.
    [hash, hash.rotate_right(PLACE_BITS / 2)].map(|hash| (buckets > 0).then(|| bucket_of(hash, buckets)))
}

fn bucket_of(hash: u64, buckets: u64) -> u64 {
    let mask = buckets.next_power_of_two() - 1;
    match hash & mask {
        bucket if bucket < buckets => bucket,
        bucket => bucket & mask >> 1,
    }
}

fn slots_of(bucket: Option<u64>) -> Range<Slot> {
    bucket.map_or(0..0, |bucket| bucket * WAYS..(bucket + 1) * WAYS)
}

fn place(word: u64) -> u64 {
    (word & PLACE) * UNIT
}
