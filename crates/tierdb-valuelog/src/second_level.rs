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
//!   round. What was found since the writer came by last stays, as under a clock's hand, and moves close behind the frame before
//!   it where there is a gap; but not more than [`MOST_KEPT`] in a row, but at a lap's end. When the key index or the HSIT takes a
//!   page, it is theirs: a frame in it is overwritten, and the record's own checksum tells. Nothing is flushed, and nothing refers
//!   to frames after an open.
//! * What is found here stays here, instead of in both levels, until it was found often enough for DRAM
//!   ([`Frame::is_for_dram`]).
//! * In DRAM a frame takes a word in a bucket of eight: how often it was found, 22 bits of a hash, and where it is. The oldest of a
//!   bucket goes, of those found least. And two bytes for its length. There are no more frames than three quarters of the
//!   words.
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
use std::collections::VecDeque;
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
/// Bytes of the area for each word in DRAM, what a word and two lengths take there, and the share of the memory budget that they take at
/// most.
const BYTES_A_WORD: u64 = 512;
const WORD_MEMORY: u64 = 12;
const MEMORY_SHARE: u64 = 32;
/// A word: heat (how often the frame was found since the writer came by), tag, and place in units.
const PLACE_BITS: u32 = 40;
const PLACE: u64 = (1 << PLACE_BITS) - 1;
const TAG_BITS: u32 = 22;
const HEAT: u64 = 1 << (PLACE_BITS + TAG_BITS);
/// How often a frame was found since the writer came by before it is for DRAM when it is found again. In a simulation of YCSB C
/// (zipfian over 500,000 keys, DRAM for 81,000, this level for 60,000) the two miss 12.4 % of reads where all that is found goes to
/// DRAM and frames go in turn, and 11.8, 11.5 and 11.4 % with 1, 2 and 3 here; with 39,000 13.4, and 12.9, 12.7 and 12.7 %.
const MAX_HEAT: u64 = 2;
/// Frames that stay in a row: where all were found, what comes has a place all the same.
const MOST_KEPT: usize = 8;

/// See the module's description.
pub struct SecondLevel<P: Pool> {
    pool: Arc<P>,
    pages: Arc<Pages<P>>,
    words: Box<[AtomicU64]>,
    writer: Mutex<Writer>,
    kept: Counter,
}

/// Where frames are.
///
/// ```text
/// area.start ── this lap ──► next ── gap ──► old ── the last lap's ── area.end
/// ```
#[derive(Default)]
struct Writer {
    /// Byte of the pool at which the first frame of this lap starts, and at which the next one will.
    first: u64,
    next: u64,
    /// At which the oldest frame starts.
    old: u64,
    /// Lengths in units of the frames of this lap and of what is left of the last one, in their order.
    this_lap: VecDeque<u16>,
    last_lap: VecDeque<u16>,
    /// Frames have gone round once: they have taken all of the area, or there are as many as there may be.
    full: bool,
    frame: Vec<u8>,
}

/// What a frame holds.
#[derive(Debug)]
pub struct Frame {
    /// The record at the word, or what is in place of it: the caller checks it.
    pub record: Record,
    slot: usize,
    seen: u64,
}

/// What became of the record in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It was read.
    Read,
    /// It was read, and is in the cache in DRAM now.
    Cached,
    /// It was not whole, or another one: damaged, or moved while it was read.
    Broken,
}

impl Frame {
    /// It was found so often that the cache in DRAM is the place for it.
    pub fn is_for_dram(&self) -> bool {
        self.seen / HEAT >= MAX_HEAT
    }
}

impl Writer {
    /// Forgets frames before `area`, whose pages were taken.
    fn begin_at(&mut self, area: &Range<u64>) {
        let pass = |at: &mut u64, lap: &mut VecDeque<u16>| {
            while *at < area.start
                && let Some(units) = lap.pop_front()
            {
                *at += bytes_of(units);
            }
            *at = area.start.max(*at);
        };
        pass(&mut self.first, &mut self.this_lap);
        pass(&mut self.old, &mut self.last_lap);
        self.next = self.next.max(self.first);
    }

    fn frames(&self) -> usize {
        self.this_lap.len() + self.last_lap.len()
    }

    /// How far before `next`, round the area, `at` is.
    fn age(&self, at: u64, area: &Range<u64>) -> u64 {
        let round = || self.next - area.start + area.end.saturating_sub(at);
        self.next.checked_sub(at).unwrap_or_else(round)
    }
}

impl<P: Pool> SecondLevel<P> {
    /// A level for the part of `pages` that is not used, if `pool` is `memory` itself; else one that keeps nothing.
    /// `budget` is that of the store, in bytes of DRAM.
    pub fn new(pool: Arc<P>, pages: Arc<Pages<P>>, is_memory: bool, budget: u64) -> Self {
        let area = if is_memory { pages.unused() } else { 0..0 };
        let most = budget / MEMORY_SHARE / WORD_MEMORY;
        let buckets = ((area.end - area.start) / BYTES_A_WORD).min(most) as usize / WAYS;
        let words: Box<[_]> = (0..buckets * WAYS).map(|_| AtomicU64::new(0)).collect();
        let lap = || VecDeque::with_capacity(words.len());
        let writer = Mutex::new(Writer { this_lap: lap(), last_lap: lap(), ..Writer::default() });
        SecondLevel { pool, pages, words, writer, kept: Counter::default() }
    }

    /// Keeps a copy of `gone`, unless it has one. Once frames have gone round,
    /// only what has [proven](Gone::proven) itself takes the place of something else: the rest is seldom read again, and to write it
    /// would take as much time as to read it (in a simulation of YCSB C as many reads are spared by a tenth of the writes).
    pub fn keep(&self, gone: &Gone) {
        let Gone { word, filling, proven, record } = gone;
        if self.words.is_empty() || record.len() > LONGEST {
            return;
        }
        let writer = &mut *self.writer.lock();
        let area = self.pages.unused();
        let len = ((FRAME + record.len()) as u64).next_multiple_of(UNIT);
        writer.begin_at(&area);
        if area.start + len > area.end {
            return;
        }
        writer.full |= self.is_end(writer, &area, len);
        if writer.full && !proven {
            return;
        }
        let still_there = |slot, seen, _| (place(seen) >= area.start).then_some((slot, seen));
        if let Some((slot, seen)) = self.find(*word, *filling, still_there) {
            if seen < HEAT {
                self.change(slot, seen, seen + HEAT);
            }
            return;
        }
        self.make_room(writer, &area, len);
        let at = writer.next;
        let (bucket, tag) = self.bucket(*word, *filling);
        let slots = &self.words[bucket];
        let taken: Vec<u64> = slots.iter().map(|slot| slot.load(Ordering::Relaxed)).collect();
        let worth = |slot: &usize| match taken[*slot] {
            taken if taken == 0 || place(taken) < area.start => (0, 0),
            taken => (1 + taken / HEAT, u64::MAX - writer.age(place(taken), &area)),
        };
        let Some(slot) = (0..WAYS).min_by_key(worth) else { return };
        let frame = &mut writer.frame;
        frame.clear();
        frame.extend_from_slice(&word.to_le_bytes());
        frame.extend_from_slice(&filling.to_le_bytes());
        frame.extend_from_slice(&(record.len() as u32).to_le_bytes());
        frame.extend_from_slice(record);
        if !self.pages.write_unused(at, frame) {
            return;
        }
        slots[slot].store((tag << PLACE_BITS) | (at / UNIT), Ordering::Release);
        writer.this_lap.push_back((len / UNIT) as u16);
        writer.next = at + len;
        self.kept.add(1);
    }

    /// Whether a frame of `len` bytes does not follow what is there, but begins a lap.
    fn is_end(&self, writer: &Writer, area: &Range<u64>, len: u64) -> bool {
        let is_last = writer.last_lap.is_empty() && writer.frames() >= self.most_frames();
        writer.next + len > area.end || is_last
    }

    fn most_frames(&self) -> usize {
        self.words.len() / 4 * 3
    }

    /// Makes room for a frame of `len` bytes, that the area is large enough for, at `next`: frames that were found stay, the others go.
    fn make_room(&self, writer: &mut Writer, area: &Range<u64>, len: u64) {
        let mut in_a_row = 0;
        loop {
            if self.is_end(writer, area, len) {
                while self.take_oldest(writer, true).is_some() {}
                std::mem::swap(&mut writer.this_lap, &mut writer.last_lap);
                writer.old = writer.first;
                (writer.first, writer.next) = (area.start, area.start);
            }
            let has_place = writer.last_lap.is_empty() || writer.old >= writer.next + len;
            if has_place && writer.frames() < self.most_frames() {
                return;
            }
            match self.take_oldest(writer, in_a_row < MOST_KEPT) {
                Some(true) => in_a_row += 1,
                Some(false) => in_a_row = 0,
                None => {}
            }
        }
    }

    /// Takes the oldest frame out of the last lap: into this one, if it was found and `may_stay`. Says whether it stays, or `None`
    /// if there is none.
    fn take_oldest(&self, writer: &mut Writer, may_stay: bool) -> Option<bool> {
        let units = writer.last_lap.pop_front()?;
        let (from, len) = (writer.old, bytes_of(units));
        writer.old += len;
        let Some((slot, seen)) = self.slot_of(from) else { return Some(false) };
        let to = writer.next;
        let stays = may_stay && seen >= HEAT && (to == from || self.copy(&mut writer.frame, (from, to), len));
        // A reader who finds it just now is not counted.
        self.words[slot]
            .store(if stays { ((seen % HEAT) & !PLACE) | (to / UNIT) } else { 0 }, Ordering::Release);
        if !stays {
            return Some(false);
        }
        writer.this_lap.push_back(units);
        writer.next = to + len;
        Some(true)
    }

    fn copy(&self, frame: &mut Vec<u8>, (from, to): (u64, u64), len: u64) -> bool {
        frame.resize(len as usize, 0);
        self.pool.read(from, frame).is_ok() && self.pages.write_unused(to, frame)
    }

    /// Which word is that of the frame at `at`, and what it is.
    fn slot_of(&self, at: u64) -> Option<(usize, u64)> {
        let mut frame = [0; FRAME];
        self.pool.read(at, &mut frame).ok()?;
        let (word, filling, _) = parse(&frame);
        let mut bucket = self.bucket(word, filling).0;
        bucket.find_map(|slot| {
            let seen = self.words[slot].load(Ordering::Relaxed);
            (seen != 0 && place(seen) == at).then_some((slot, seen))
        })
    }

    /// Changes a word, unless it is another than was seen.
    fn change(&self, slot: usize, seen: u64, to: u64) {
        let _changed = self.words[slot].compare_exchange(seen, to, Ordering::Release, Ordering::Relaxed);
    }

    /// The record at `word` in a `filling` of its chunk. Who has checked it says what became of it ([`Self::used`]).
    pub fn get(&self, word: u64, filling: u32) -> Option<Frame> {
        let (slot, seen, bytes) = self.find(word, filling, |slot, seen, len| {
            let bytes = read_shared(&*self.pool, place(seen) + FRAME as u64, len).ok()?;
            Some((slot, seen, bytes))
        })?;
        let Some(header) = Header::parse(&bytes).filter(|header| header.len() == bytes.len()) else {
            self.change(slot, seen, 0);
            return None;
        };
        Some(Frame { record: (header, bytes), slot, seen })
    }

    /// Counts what a frame was found for.
    pub fn used(&self, frame: &Frame, made: Use) {
        let Frame { slot, seen, .. } = *frame;
        match made {
            Use::Read if frame.is_for_dram() => {}
            Use::Read => self.change(slot, seen, seen + HEAT),
            Use::Cached => self.change(slot, seen, seen % HEAT),
            Use::Broken => self.change(slot, seen, 0),
        }
    }

    /// Gives which word it is, what that was, and the length of the record to `then`, if there is a frame that says it is that.
    fn find<T>(&self, word: u64, filling: u32, then: impl Fn(usize, u64, usize) -> Option<T>) -> Option<T> {
        if self.words.is_empty() {
            return None;
        }
        let (mut bucket, tag) = self.bucket(word, filling);
        bucket.find_map(|slot| {
            let seen = self.words[slot].load(Ordering::Acquire);
            if seen == 0 || (seen % HEAT) >> PLACE_BITS != tag {
                return None;
            }
            let mut frame = [0; FRAME];
            self.pool.read(place(seen), &mut frame).ok()?;
            let (of_word, of_filling, len) = parse(&frame);
            let is_it = of_word == word && of_filling == filling && len <= LONGEST;
            if is_it && place(seen) + (FRAME + len) as u64 <= self.pool.len() {
                then(slot, seen, len)
            } else {
                None
            }
        })
    }

    fn bucket(&self, word: u64, filling: u32) -> (Range<usize>, u64) {
        let hash = mix(word ^ u64::from(filling) << 32);
        let buckets = self.words.len() / WAYS;
        let bucket = (((hash & 0xffff_ffff) * buckets as u64) >> 32) as usize * WAYS;
        (bucket..bucket + WAYS, hash >> (64 - TAG_BITS))
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
        // About as much, while it is written to.
        let frame = self.writer.try_lock().map_or(LONGEST, |writer| writer.frame.capacity());
        self.words.len() as u64 * WORD_MEMORY + frame as u64
    }
}

fn place(slot: u64) -> u64 {
    (slot & PLACE) * UNIT
}

fn bytes_of(units: u16) -> u64 {
    u64::from(units) * UNIT
}

/// The word, the filling, and the length of the record that a frame begins with.
fn parse(frame: &[u8; FRAME]) -> (u64, u32, usize) {
    let whole = u128::from_le_bytes(*frame);
    (whole as u64, (whole >> 64) as u32, (whole >> 96) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Copied;
    use crate::pages::{PAGE, Purpose};
    use crate::record::{Kind, encode};
    use tierdb_pmem::{MappedPool, Stage};

    const SEED: u64 = 3;
    const PAGES: u64 = 64;

    fn new() -> (SecondLevel<MappedPool>, Arc<Pages<MappedPool>>) {
        sized(PAGES, 1 << 20)
    }

    fn sized(count: u64, budget: u64) -> (SecondLevel<MappedPool>, Arc<Pages<MappedPool>>) {
        let pool = Arc::new(MappedPool::in_memory((count + 2) * PAGE));
        let mut stage = Stage::new(&*pool);
        let pages = Arc::new(Pages::format(pool.clone(), &mut stage, PAGE, 2, count, SEED));
        let _drained = stage.drain();
        (SecondLevel::new(pool, pages.clone(), true, budget), pages)
    }

    /// Frames lie in the area, one behind the other, no more than there may be, and words refer to them.
    fn check(level: &SecondLevel<MappedPool>) -> usize {
        let mut writer = level.writer.lock();
        let area = level.pages.unused();
        writer.begin_at(&area);
        let mut starts = std::collections::BTreeSet::new();
        let mut go = |mut at: u64, lap: &VecDeque<u16>| {
            for units in lap {
                assert!(at >= area.start && starts.insert(at));
                at += bytes_of(*units);
            }
            at
        };
        assert_eq!(go(writer.first, &writer.this_lap), writer.next);
        assert!(writer.last_lap.is_empty() || writer.next <= writer.old);
        let end = go(writer.old, &writer.last_lap);
        assert!(end.max(writer.next) <= area.end.max(area.start) && writer.frames() <= level.most_frames());
        let words = level.words.iter().map(|word| word.load(Ordering::Relaxed));
        let places: Vec<u64> =
            words.filter(|word| *word != 0).map(place).filter(|at| *at >= area.start).collect();
        assert!(places.iter().all(|at| starts.remove(at)), "words of frames, each of another");
        let of_frames = 2 * (writer.this_lap.capacity() + writer.last_lap.capacity());
        let counted = (size_of_val(&*level.words) + of_frames + writer.frame.capacity()) as u64;
        drop(writer);
        assert_eq!(level.memory_bytes(), counted, "what is counted is what there is");
        places.len()
    }

    #[test]
    fn frames_of_all_sizes_keep_their_order_whatever_pages_are_taken() {
        // With words for all frames, and with fewer.
        for (budget, longest, least) in [(1 << 20, LONGEST, 20), (1 << 20, 600, 300), (20 << 10, 600, 30)] {
            let (level, pages) = sized(300, budget);
            let mut random = fastrand::Rng::with_seed(budget ^ longest as u64);
            let of =
                |n: u64| record(&n.to_le_bytes(), &vec![n as u8; (n * n % 7919) as usize * longest / 8000]);
            let (mut most, mut found, mut moved_up) = (0, 0, 0);
            for n in 1..12_000u64 {
                level.keep(&Gone {
                    word: n,
                    filling: 0,
                    proven: n % 7 != 0,
                    record: Copied::new(&of(n), 0, None),
                });
                for _ in 0..3 {
                    let n = n - n.min(random.u64(..500) * random.u64(..3));
                    if let Some(for_dram) = read(&level, n, 0, &of(n)) {
                        found += 1;
                        moved_up += u32::from(for_dram);
                    }
                }
                if n % 50 == 0 {
                    most = check(&level).max(most);
                }
                if n > 6000 && n % 40 == 0 {
                    let page = pages.allocate(Purpose::Grow);
                    page.iter().for_each(|page| level.pool.write(page * PAGE, &[n as u8; PAGE as usize]));
                }
            }
            assert!(level.words.len() as u64 * WORD_MEMORY <= budget / MEMORY_SHARE);
            while pages.allocate(Purpose::Shrink).is_ok() {
                keep(&level, random.u64(5000..9000), 0, &of(random.u64(1..4000)));
                check(&level);
            }
            assert!(most >= least && found > 1000 && moved_up > 100, "{most} frames, {found}, {moved_up}");
        }
    }

    fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let len = encode(&mut bytes, SEED, Kind::Value, 7, 9, key, value);
        bytes.truncate(len);
        bytes
    }

    fn keep(level: &SecondLevel<MappedPool>, word: u64, filling: u32, record: &[u8]) {
        level.keep(&Gone { word, filling, proven: true, record: Copied::new(record, 0, None) });
    }

    /// Reads it as an engine does. Says whether it was for DRAM.
    fn read(level: &SecondLevel<MappedPool>, word: u64, filling: u32, record: &[u8]) -> Option<bool> {
        let frame = level.get(word, filling)?;
        let (header, bytes) = &frame.record;
        let made = match header.is_whole(bytes, SEED) && **bytes == *record {
            false => Use::Broken,
            true if frame.is_for_dram() => Use::Cached,
            true => Use::Read,
        };
        level.used(&frame, made);
        (made != Use::Broken).then_some(made == Use::Cached)
    }

    fn has(level: &SecondLevel<MappedPool>, word: u64, filling: u32, record: &[u8]) -> bool {
        read(level, word, filling, record).is_some()
    }

    /// As [`has`], but does not count.
    fn is_there(level: &SecondLevel<MappedPool>, word: u64) -> bool {
        level.find(word, 0, |_, _, _| Some(())).is_some()
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
        let once = |n: u64| {
            level.keep(&Gone { word: n, filling: 0, proven: false, record: Copied::new(&of(n), 0, None) })
        };
        (1..5000).for_each(once);
        let room = level.bytes() / 960;
        let kept = |from: u64, to: u64| (from..to).filter(|n| is_there(&level, *n)).count() as u64;
        assert!(level.kept() <= room && kept(1, room) > room * 9 / 10, "the first ones fill it");
        (5000..5100).for_each(|n| keep(&level, n, 0, &of(n)));
        (6000..6100).for_each(once);
        assert!(kept(5000, 5100) > 90 && kept(6000, 6100) == 0);
    }

    #[test]
    fn what_is_found_stays_and_is_for_dram_when_it_is_found_often() {
        let (level, _) = new();
        let of = |n: u64| record(&n.to_le_bytes(), &vec![n as u8; 900 + 37 * n as usize % 600]);
        let found = |n: u64| read(&level, n, 0, &of(n));
        (1..400).for_each(|n| keep(&level, n, 0, &of(n)));
        let kept: Vec<u64> = (1..400).filter(|n| is_there(&level, *n)).collect();
        let (read, left): (Vec<u64>, Vec<u64>) = kept.into_iter().partition(|n| n % 5 == 0);
        for lap in 0..6 {
            let lost: Vec<_> = read.iter().filter(|n| found(**n).is_none()).collect();
            assert!(lost.is_empty(), "lap {lap}: {lost:?} of {read:?}");
            let from = 1000 + lap * 120;
            (from..from + 120).for_each(|n| keep(&level, n, 0, &of(n)));
        }
        assert_eq!(left.iter().filter(|n| is_there(&level, **n)).count(), 0);

        keep(&level, 5000, 0, &of(5000));
        let answers: Vec<bool> = (0..6).map(|_| found(5000).expect("kept")).collect();
        assert_eq!(answers, [false, false, true, false, false, true]);
        // What DRAM gives up again counts as found.
        found(5000);
        found(5000);
        assert!(found(5000).expect("kept"), "counts from nothing");
        keep(&level, 5000, 0, &of(5000));
        assert!(!found(5000).expect("kept") && found(5000).expect("kept"));
    }

    #[test]
    fn where_all_is_found_what_comes_takes_the_place_of_few() {
        let (level, _) = new();
        // So few that no bucket is full.
        let of = |n: u64| record(&n.to_le_bytes(), &vec![n as u8; 2000]);
        (1..200).for_each(|n| keep(&level, n, 0, &of(n)));
        let kept: Vec<u64> = (1..200).filter(|n| has(&level, *n, 0, &of(*n))).collect();
        keep(&level, 1000, 0, &of(1000));
        assert!(has(&level, 1000, 0, &of(1000)));
        let hot = || level.words.iter().filter(|word| word.load(Ordering::Relaxed) >= HEAT).count();
        let passed = kept.len() - (hot() - 1);
        assert_eq!(passed, MOST_KEPT + 1, "of {}", kept.len());
        let gone = kept.iter().filter(|n| !is_there(&level, **n)).count();
        assert_eq!(gone, 1);
    }

    #[test]
    fn a_damaged_copy_makes_way() {
        let (level, _) = new();
        let of = record(b"key", &[7; 900]);
        keep(&level, 5, 0, &of);
        let (_, seen) = level.find(5, 0, |slot, seen, _| Some((slot, seen))).expect("kept");
        level.pool.write(place(seen) + (FRAME + of.len() / 2) as u64, b"damage");
        assert!(!has(&level, 5, 0, &of) && !is_there(&level, 5));
        keep(&level, 5, 0, &of);
        assert!(has(&level, 5, 0, &of));
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
        let found = |n: &u64| {
            level
                .get(*n, 0)
                .is_some_and(|Frame { record: (header, bytes), .. }| header.is_whole(&bytes, SEED))
        };
        assert!(taken.len() > 40 && (1..3000).filter(found).all(|n| whole(&n)));
        while pages.allocate(Purpose::Shrink).is_ok() {}
        keep(&level, 9999, 0, &of(1));
        assert!(level.get(9999, 0).is_none(), "there is no room at all");
    }
}
