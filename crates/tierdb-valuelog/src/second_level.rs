//! The second level of the value cache: what the cache in DRAM has given up, on the part of the fast tier that
//! nothing uses.
//!
//! ```text
//! frame:  word u64 │ filling u32 │ length u32 │ the record, as on flash │ up to 32 bytes
//! ```
//!
//! * A copy is that of a record at one place in one filling of its chunk, and what is there never changes. So no copy is
//!   ever wrong: whoever replaces or moves a record need not know of it, and it is not found any more.
//! * Frames follow each other through the pages that were never used since the pool was opened, round and
//!   round. When the key index or the HSIT takes a page, it is theirs: a frame in it is overwritten, and the record's own
//!   checksum tells. Nothing is flushed, and nothing refers to frames after an open.
//! * In DRAM a frame takes a word in a bucket of eight: 24 bits of a hash, and where it is. The oldest of a bucket goes.
//! * Reads take no lock. Frames are written by the cache's upkeep, under that of the free pages.
//!
//! For pools that are memory themselves (PRISM §4.4 has one level, in DRAM): a logged pool is DRAM already.

use crate::cache::Gone;
use crate::hash::mix;
use crate::pages::Pages;
use crate::read::read_shared;
use crate::record::Header;
use crate::storage::Record;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_pmem::Pool;
use tierdb_sync::Counter;

/// Bytes before the record.
const FRAME: usize = 16;
/// Frames start at multiples of this.
const UNIT: u64 = 32;
/// The longest record that is kept.
pub const LONGEST: usize = 32 << 10;
/// Words of a bucket.
const WAYS: usize = 8;
/// Bytes of the area for each word in DRAM, and the share of the memory budget that the words take at most.
const BYTES_A_WORD: u64 = 512;
const MEMORY_SHARE: u64 = 32;
const PLACE_BITS: u32 = 40;

/// See the module's description.
pub struct SecondLevel<P: Pool> {
    pool: Arc<P>,
    pages: Arc<Pages<P>>,
    words: Box<[AtomicU64]>,
    writer: Mutex<Writer>,
    kept: Counter,
}

#[derive(Default)]
struct Writer {
    /// Byte of the pool at which the next frame starts.
    next: u64,
    /// Frames have taken all of the area once.
    full: bool,
    frame: Vec<u8>,
}

impl<P: Pool> SecondLevel<P> {
    /// A level for the part of `pages` that is not used, if `pool` is `memory` itself; else one that keeps nothing.
    /// `budget` is that of the store, in bytes of DRAM.
    pub fn new(pool: Arc<P>, pages: Arc<Pages<P>>, is_memory: bool, budget: u64) -> Self {
        let area = if is_memory { pages.unused() } else { 0..0 };
        let most = budget / MEMORY_SHARE / 8;
        let buckets = ((area.end - area.start) / BYTES_A_WORD).min(most) as usize / WAYS;
        let words = (0..buckets * WAYS).map(|_| AtomicU64::new(0)).collect();
        SecondLevel { pool, pages, words, writer: Mutex::default(), kept: Counter::default() }
    }

    /// Keeps a copy of `gone`, if it has none that will last for a while. Once there is no room left that was never used,
    /// only what has [proven](Gone::proven) itself takes the place of something else: the rest is seldom read again, and to write it
    /// would take as much time as to read it (in a simulation of YCSB C as many reads are spared by a tenth of the writes).
    pub fn keep(&self, gone: &Gone) {
        let Gone { word, filling, proven, record } = gone;
        if self.words.is_empty() || record.len() > LONGEST {
            return;
        }
        let writer = &mut *self.writer.lock();
        let area = self.pages.unused();
        let Writer { next, full, frame } = writer;
        let len = ((FRAME + record.len()) as u64).next_multiple_of(UNIT);
        let fits = |at: u64| area.contains(&at) && at + len <= area.end;
        let at = if fits(*next) { *next } else { area.start };
        *full |= *next > at;
        if !fits(at) || *full && !proven {
            return;
        }
        let age = |at: u64| match next.checked_sub(at) {
            Some(age) => age,
            None => *next + (area.end - at.min(area.end)),
        };
        if self.find(*word, *filling, |at, _| age(at)).is_some_and(|age| age < (area.end - area.start) / 2) {
            return;
        }
        frame.clear();
        frame.extend_from_slice(&word.to_le_bytes());
        frame.extend_from_slice(&filling.to_le_bytes());
        frame.extend_from_slice(&(record.len() as u32).to_le_bytes());
        frame.extend_from_slice(record);
        let (bucket, tag) = self.bucket(*word, *filling);
        let slots = &self.words[bucket];
        let taken: Vec<u64> = slots.iter().map(|slot| slot.load(Ordering::Relaxed)).collect();
        let oldest = |slot: &usize| match taken[*slot] {
            0 => u64::MAX,
            taken => age(place(taken)),
        };
        let Some(slot) = (0..WAYS).max_by_key(oldest) else { return };
        if !self.pages.write_unused(at, frame) {
            return;
        }
        slots[slot].store((tag << PLACE_BITS) | (at / UNIT), Ordering::Release);
        *next = at + len;
        self.kept.add(1);
    }

    /// The record at `word` in a `filling` of its chunk, or what is in place of it: the caller checks it.
    pub fn get(&self, word: u64, filling: u32) -> Option<Record> {
        let bytes =
            self.find(word, filling, |at, len| read_shared(&*self.pool, at + FRAME as u64, len).ok())??;
        let header = Header::parse(&bytes).filter(|header| header.len() == bytes.len())?;
        Some((header, bytes))
    }

    /// Gives place and length of the record to `then`, if there is a frame that says it is that.
    fn find<T>(&self, word: u64, filling: u32, then: impl Fn(u64, usize) -> T) -> Option<T> {
        if self.words.is_empty() {
            return None;
        }
        let (bucket, tag) = self.bucket(word, filling);
        self.words[bucket].iter().map(|slot| slot.load(Ordering::Acquire)).find_map(|slot| {
            if slot == 0 || slot >> PLACE_BITS != tag {
                return None;
            }
            let (at, mut frame) = (place(slot), [0; FRAME]);
            self.pool.read(at, &mut frame).ok()?;
            let [found, sizes] = [0, 8].map(|at| frame[at..].first_chunk().copied().map(u64::from_le_bytes));
            let (of_filling, len) = (sizes? as u32, (sizes? >> 32) as usize);
            let is_it = found? == word && of_filling == filling && len <= LONGEST;
            (is_it && at + (FRAME + len) as u64 <= self.pool.len()).then(|| then(at, len))
        })
    }

    fn bucket(&self, word: u64, filling: u32) -> (Range<usize>, u64) {
        let hash = mix(word ^ u64::from(filling) << 32);
        let buckets = self.words.len() / WAYS;
        let bucket = (((hash & 0xffff_ffff) * buckets as u64) >> 32) as usize * WAYS;
        (bucket..bucket + WAYS, hash >> PLACE_BITS)
    }

    /// How many copies were ever kept.
    pub fn kept(&self) -> u64 {
        self.kept.get()
    }

    /// Bytes of the fast tier that it may use now.
    pub fn bytes(&self) -> u64 {
        if self.words.is_empty() {
            return 0;
        }
        let area = self.pages.unused();
        area.end - area.start
    }

    /// Bytes of DRAM in use.
    pub fn memory_bytes(&self) -> u64 {
        let frame = self.writer.try_lock().map_or(LONGEST, |writer| writer.frame.capacity());
        (size_of_val(&*self.words) + frame) as u64
    }
}

fn place(slot: u64) -> u64 {
    (slot & ((1 << PLACE_BITS) - 1)) * UNIT
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::{PAGE, Purpose};
    use crate::record::{Kind, encode};
    use tierdb_pmem::{MappedPool, Stage};

    const SEED: u64 = 3;
    const PAGES: u64 = 64;

    fn new() -> (SecondLevel<MappedPool>, Arc<Pages<MappedPool>>) {
        let pool = Arc::new(MappedPool::in_memory((PAGES + 2) * PAGE));
        let mut stage = Stage::new(&*pool);
        let pages = Arc::new(Pages::format(pool.clone(), &mut stage, PAGE, 2, PAGES, SEED));
        let _drained = stage.drain();
        (SecondLevel::new(pool, pages.clone(), true, 1 << 20), pages)
    }

    fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let len = encode(&mut bytes, SEED, Kind::Value, 7, 9, key, value);
        bytes.truncate(len);
        bytes
    }

    fn keep(level: &SecondLevel<MappedPool>, word: u64, filling: u32, record: &[u8]) {
        level.keep(&Gone { word, filling, proven: true, record: record.into() });
    }

    fn has(level: &SecondLevel<MappedPool>, word: u64, filling: u32, record: &[u8]) -> bool {
        let found = level.get(word, filling).filter(|(header, bytes)| header.is_whole(bytes, SEED));
        found.is_some_and(|(_, bytes)| *bytes == *record)
    }

    #[test]
    fn a_copy_is_found_by_its_place_and_filling_alone() {
        let (level, _) = new();
        let records: Vec<_> = (0..50u8).map(|n| record(&[n], &vec![n; 20 * usize::from(n)])).collect();
        for (word, record) in (1..).zip(&records) {
            keep(&level, word, 4, record);
            keep(&level, word, 4, record);
        }
        assert_eq!(level.kept(), 50, "none is kept twice");
        for (word, record) in (1..).zip(&records) {
            assert!(has(&level, word, 4, record), "{word}");
            assert!(level.get(word, 5).is_none() && level.get(word + 100, 4).is_none());
        }
        keep(&level, 1, 5, &records[9]);
        assert!(has(&level, 1, 5, &records[9]) && has(&level, 1, 4, &records[0]));
        keep(&level, 2000, 1, &vec![0; LONGEST + 1]);
        assert!(level.get(2000, 1).is_none());
    }

    #[test]
    fn the_newest_are_kept_and_the_kept_are_whole() {
        let (level, _) = new();
        let of = |n: u64| record(&n.to_le_bytes(), &vec![n as u8; 900]);
        for n in 1..5000 {
            keep(&level, n, 0, &of(n));
        }
        let room = level.bytes() / 960;
        let kept: Vec<u64> = (1..5000).filter(|n| has(&level, *n, 0, &of(*n))).collect();
        assert!(kept.len() as u64 > room / 2 && kept.len() as u64 <= room, "{} of {room}", kept.len());
        assert!(kept[0] >= 5000 - room && kept.contains(&4999), "the last ones, from {}", kept[0]);
    }

    #[test]
    fn what_was_read_once_takes_the_place_of_nothing() {
        let (level, _) = new();
        let of = |n: u64| record(&n.to_le_bytes(), &vec![n as u8; 900]);
        let once = |n: u64| level.keep(&Gone { word: n, filling: 0, proven: false, record: of(n).into() });
        (1..5000).for_each(once);
        let room = level.bytes() / 960;
        let kept = |from: u64, to: u64| (from..to).filter(|n| has(&level, *n, 0, &of(*n))).count() as u64;
        assert!(level.kept() <= room && kept(1, room) > room * 9 / 10, "the first ones fill it");
        (5000..5100).for_each(|n| keep(&level, n, 0, &of(n)));
        (6000..6100).for_each(once);
        assert!(kept(5000, 5100) > 90 && kept(6000, 6100) == 0);
    }

    #[test]
    fn pages_that_are_taken_cost_their_copies_and_are_not_written() {
        let (level, pages) = new();
        let of = |n: u64| record(&n.to_le_bytes(), &vec![n as u8; 900]);
        let mut taken = Vec::new();
        for n in 1..3000 {
            keep(&level, n, 0, &of(n));
            if n % 60 == 0 {
                let page = pages.allocate(Purpose::Grow).expect("room");
                level.pool.write(page * PAGE, &[n as u8; PAGE as usize]);
                taken.push((page, n as u8));
            }
        }
        for (page, filler) in &taken {
            let mut bytes = vec![0; PAGE as usize];
            level.pool.read(page * PAGE, &mut bytes).expect("read");
            assert!(bytes.iter().all(|byte| byte == filler), "page {page}");
        }
        let whole = |n: &u64| has(&level, *n, 0, &of(*n));
        let found = |n: &u64| level.get(*n, 0).is_some_and(|(header, bytes)| header.is_whole(&bytes, SEED));
        assert!(taken.len() > 40 && (1..3000).filter(found).all(|n| whole(&n)));
        while pages.allocate(Purpose::Shrink).is_ok() {}
        keep(&level, 9999, 0, &of(1));
        assert!(level.get(9999, 0).is_none(), "there is no room at all");
    }
}
