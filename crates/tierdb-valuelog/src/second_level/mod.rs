//! The second level of the value cache: what the cache in DRAM has given up, on the part of the fast tier that
//! nothing uses.
//!
//! * A copy is that of the value of a record at one place in one filling of its chunk, and what is there never changes. So no copy is
//!   ever wrong: whoever replaces or moves a record need not know of it, and it is not found any more.
//! * Copies lie in frames (`frame`), which follow each other through the pages that were never used since the pool was opened, round and
//!   round. What was found since the writer came by last stays, as under a clock's hand, and moves close behind the frame before
//!   it where there is a gap; but not more than [`MOST_KEPT`] in a row, but at a lap's end. Where enough copies are of no use, those alone make way.
//! * Where they are tells a hash table at the end of the same pages (`words`). Where a bucket is full the oldest of those found least goes.
//! * When the key index or the HSIT takes a page, it is theirs: a frame in it is overwritten, and its checksum tells. Nothing is
//!   flushed, and nothing refers to frames after an open.
//! * What is found here stays here, instead of in both levels, until it was found often enough for DRAM
//!   ([`Frame::is_for_dram`]).
//! * As long as there is room it takes what nobody has asked for, too ([`SecondLevel::offer`]).
//! * Who gives up a record says so ([`SecondLevel::forget`]), so that it is known how much of the room is of no use; who moves it takes the copy along
//!   ([`SecondLevel::carry`]). Where neither is done, the copy takes room for a lap more.
//! * Reads take no lock, and write nothing to the pool. Frames are written under a lock, and that of the free pages.
//!
//! For pools that are memory themselves (PRISM §4.4 has one level, in DRAM): a logged pool is DRAM already.

mod frame;
#[cfg(test)]
mod tests;
mod words;

use crate::cache::Gone;
use crate::pages::{PAGE, Pages};
use crate::read::read_shared;
use crate::record::Header;
use frame::{HEAD, Head, UNIT, encode, stored_len};
pub use frame::{LONGEST, Source};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tierdb_engine::Value;
use tierdb_pmem::Pool;
use tierdb_sync::Counter;
use words::{Slot, Words};

/// The share of the memory budget that two bits for each word take at most.
const MEMORY_SHARE: u64 = 64;
/// Words that the table has for each frame: of a word's two buckets one has room so. With one and a half 4 % of small values find none, with
/// four thirds 13 %, and in all as many of them fit.
const WORDS_A_FRAME: u64 = 2;
/// Fewer pages than this are left alone.
const LEAST_PAGES: u64 = 4;
/// How often a frame was found since the writer came by before it is for DRAM when it is found again. In a simulation of YCSB C
/// (zipfian over 500,000 keys, DRAM for 81,000, this level for 60,000) the two miss 12.4 % of reads where all that is found goes to
/// DRAM and frames go in turn, and 11.8, 11.5 and 11.4 % with 1, 2 and 3 here; with 39,000 13.4, and 12.9, 12.7 and 12.7 %.
const MAX_HEAT: u8 = 2;
/// Frames that stay in a row: where all were found, what comes has a place all the same.
const MOST_KEPT: usize = 8;
/// Where one frame of so many is of no use, there is room: the others stay, found or not.
const GONE_SHARE: u64 = 8;
/// Frames that stay in a row then.
const MOST_PASSED: usize = 64;
/// Units that are looked at for the frame behind one that was cut off: no two have more, and the next one may have lost its word.
const MOST_TRIED: usize = 2 * (HEAD + LONGEST) / UNIT as usize;

/// See the module's description.
pub struct SecondLevel<P: Pool> {
    pool: Arc<P>,
    pages: Arc<Pages<P>>,
    words: Words<P>,
    /// What frames are summed with, so that none of an earlier open checks.
    seed: u64,
    writer: Mutex<Writer>,
    /// What came last took the place of nothing.
    has_room: AtomicBool,
    /// Words that name something, and those of them that name what nobody needs any more: both about, and as they are at the end of each lap.
    named: AtomicU64,
    gone: AtomicU64,
    kept: Counter,
}

/// Where frames are.
///
/// ```text
/// area.start ── this lap ──► next ── gap ──► old ── the last lap's ── old_end ── area.end
/// ```
#[derive(Default)]
struct Writer {
    /// Byte of the pool at which the first frame of this lap starts, and at which the next one will.
    first: u64,
    next: u64,
    /// At which the oldest frame starts, and before which the last lap's end.
    old: u64,
    old_end: u64,
    /// Some of this lap were offered, and of the last one.
    has_offered: bool,
    had_offered: bool,
    frame: Vec<u8>,
}

/// Why a value is to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// It came by.
    Offered,
    /// It was read.
    Read,
    /// It was read again while it was cached, or known when it came.
    Proven,
}

/// A value that is to be kept.
struct Newcomer<'r> {
    source: Source,
    seqno: u64,
    value: &'r [u8],
    /// How often it was found.
    heat: u8,
}

/// What a frame holds.
#[derive(Debug)]
pub struct Frame {
    /// The record.
    pub source: Source,
    /// Its value.
    pub value: Value,
    /// When it was written.
    pub seqno: u64,
    slot: Slot,
    /// Where the frame was.
    place: u64,
    heat: u8,
}

/// What became of the value in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It was read.
    Read,
    /// It was read, and is in the cache in DRAM now.
    Cached,
}

impl<'r> Newcomer<'r> {
    fn of((header, record): (&Header, &'r [u8]), (word, filling): (u64, u32)) -> Self {
        let source = Source { entry: header.entry, word, filling };
        Newcomer { source, seqno: header.seqno, value: header.body(record), heat: 0 }
    }
}

impl Frame {
    /// It was found so often that the cache in DRAM is the place for it.
    pub fn is_for_dram(&self) -> bool {
        self.heat >= MAX_HEAT
    }
}

impl Writer {
    /// Whether a frame of `len` bytes has room without taking the place of another one.
    fn has_room(&self, len: u64, area: &Range<u64>) -> bool {
        if self.next + len <= area.end {
            return self.old >= self.old_end || self.old >= self.next + len;
        }
        self.old >= self.old_end && self.first >= area.start + len
    }

    /// Begins a lap at `start`.
    fn turn(&mut self, start: u64) {
        (self.old, self.old_end) = (self.first, self.next);
        (self.first, self.next) = (start, start);
        (self.had_offered, self.has_offered) = (self.has_offered, false);
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
        let memory = if is_memory { budget / MEMORY_SHARE } else { 0 };
        let words = Words::new(pool.clone(), pages.clone(), pages.unused().end, memory);
        let seed = RandomState::new().hash_one(pages.seed());
        SecondLevel {
            pool,
            seed,
            pages,
            has_room: AtomicBool::new(!words.is_never()),
            words,
            writer: Mutex::default(),
            named: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            kept: Counter::default(),
        }
    }

    /// Keeps a copy of `gone`, unless it has one. Where there is no room, only what has [proven](Gone::proven) itself takes the place of something else that
    /// was read: the rest is seldom read again, and to write it
    /// would take as much time as to read it (in a simulation of YCSB C as many reads are spared by a tenth of the writes).
    pub fn keep(&self, gone: &Gone) {
        if self.words.is_never() {
            return;
        }
        let Some(header) = Header::parse(&gone.record) else { return };
        let reason = if gone.proven { Reason::Proven } else { Reason::Read };
        let newcomer = Newcomer::of((&header, &gone.record), (gone.word, gone.filling));
        self.take(&mut self.writer.lock(), &newcomer, reason);
    }

    /// Whether it takes what nobody has asked for.
    pub fn is_open(&self) -> bool {
        self.has_room.load(Ordering::Relaxed) || self.has_gone(GONE_SHARE)
    }

    /// Whether it keeps something, and there is room, or so many copies are of no use that there will be as soon as some more are.
    pub fn has_room_for_more(&self) -> bool {
        let has_some = self.named.load(Ordering::Relaxed) > 0;
        has_some && (self.has_room.load(Ordering::Relaxed) || self.has_gone(2 * GONE_SHARE))
    }

    /// Whether one copy of `share` is of no use.
    fn has_gone(&self, share: u64) -> bool {
        let gone = self.gone.load(Ordering::Relaxed);
        gone > 0 && gone * share >= self.named.load(Ordering::Relaxed)
    }

    /// Keeps a copy of the value of a record at a word, in a filling of its chunk, that nobody has asked for, if there is room, and nobody else
    /// keeps one just now.
    pub fn offer(&self, record: (&Header, &[u8]), at: (u64, u32)) {
        if let Some(mut writer) = self.writer.try_lock() {
            self.take(&mut writer, &Newcomer::of(record, at), Reason::Offered);
        }
    }

    fn take(&self, writer: &mut Writer, newcomer: &Newcomer<'_>, reason: Reason) {
        let Newcomer { source, seqno, value, heat } = newcomer;
        if value.len() > LONGEST {
            return;
        }
        let len = stored_len(value.len());
        let area = self.area(writer).filter(|area| area.start + len <= area.end);
        let has_room = area.as_ref().is_some_and(|area| writer.has_room(len, area));
        self.has_room.store(has_room, Ordering::Relaxed);
        let Some(area) = area else { return };
        let has_place = match reason {
            _ if has_room || self.has_gone(GONE_SHARE) => true,
            Reason::Offered => false,
            Reason::Read => writer.had_offered,
            Reason::Proven => true,
        };
        if !has_place {
            return;
        }
        if let Some((slot, ..)) = self.find(source) {
            if reason != Reason::Offered {
                self.words.set_heat(slot, 0, 1);
            }
            return;
        }
        if !self.make_room(writer, &area, len, reason) {
            return;
        }
        let at = writer.next;
        let hash = source.hash();
        let worth = |slot: &Slot| {
            let named = self.words.at(*slot);
            let of_use = named.filter(|(place, heat)| area.contains(place) && !words::is_gone(*heat));
            of_use.map_or((0, 0), |(place, heat)| (1 + heat, u64::MAX - writer.age(place, &area)))
        };
        let free = self.words.free_slot(hash);
        let Some(slot) = free.or_else(|| self.words.slots(hash).min_by_key(worth)) else { return };
        encode(&mut writer.frame, self.seed, source, *seqno, value);
        if !self.pages.write_unused(at, &writer.frame) {
            return;
        }
        writer.next = at + len;
        writer.has_offered |= reason == Reason::Offered;
        match self.words.at(slot) {
            None => add(&self.named, 1),
            Some((_, heat)) => take_away(&self.gone, u64::from(words::is_gone(heat))),
        }
        self.words.put(slot, hash, at, *heat);
        self.kept.add(1);
        if self.named.load(Ordering::Relaxed) * WORDS_A_FRAME > self.words.len() {
            self.words.grow(|place| self.hash_of(place));
        }
    }

    /// Where frames may be now, behind pages that were taken and before the words. None if there are too few pages. Where the words have more than half of
    /// them all begins anew: no frames are so short that they need as many.
    fn area(&self, writer: &mut Writer) -> Option<Range<u64>> {
        let unused = self.pages.unused();
        if self.words.len() == 0 || unused.start.midpoint(unused.end) > self.words.start() {
            *writer = Writer { frame: std::mem::take(&mut writer.frame), ..Writer::default() };
            self.words.give_up();
            let is_enough = unused.end - unused.start >= LEAST_PAGES * PAGE && self.words.begin();
            self.has_room.store(is_enough, Ordering::Relaxed);
            self.named.store(0, Ordering::Relaxed);
            self.gone.store(0, Ordering::Relaxed);
            if !is_enough {
                return None;
            }
            // In a new store the index takes about as much from the front before it has all keys.
            let middle = unused.start.midpoint(self.words.start()).next_multiple_of(UNIT);
            (writer.first, writer.next) = (middle, middle);
        }
        let area = unused.start..self.words.start();
        writer.next = writer.next.min(area.end);
        writer.first = writer.first.min(writer.next);
        writer.old_end = writer.old_end.min(area.end);
        if writer.first < area.start {
            writer.first = self.next_frame(area.start, writer.next);
            writer.next = writer.next.max(writer.first);
        }
        if writer.old < area.start {
            writer.old = self.next_frame(area.start, writer.old_end);
        }
        Some(area)
    }

    /// Where the first frame at `from` or behind it starts, or `end`: the one before was cut off, and what says its length with it.
    fn next_frame(&self, from: u64, end: u64) -> u64 {
        let mut starts = (from..end).step_by(UNIT as usize).take(MOST_TRIED);
        starts.find(|at| self.slot_of(*at).is_some()).unwrap_or(end.max(from))
    }

    /// Makes room for a frame of `len` bytes, that the area is large enough for, at `next`: frames that were found stay, the others go. Where
    /// there are enough that nobody needs, those alone go, and what was offered takes the place of no other. Says whether there is room.
    fn make_room(&self, writer: &mut Writer, area: &Range<u64>, len: u64, reason: Reason) -> bool {
        let keeps_all = self.has_gone(GONE_SHARE);
        let most = if keeps_all { MOST_PASSED } else { MOST_KEPT };
        let mut in_a_row = 0;
        loop {
            if writer.next + len > area.end {
                while self.take_oldest(writer, |heat| keeps_all || heat > 0).is_some() {}
                writer.turn(area.start);
                self.count(area);
            }
            if writer.old >= writer.old_end || writer.old >= writer.next + len {
                return true;
            }
            if reason == Reason::Offered && in_a_row == most {
                return false;
            }
            match self.take_oldest(writer, |heat| in_a_row < most && (keeps_all || heat > 0)) {
                Some(true) => in_a_row += 1,
                Some(false) => in_a_row = 0,
                None => {}
            }
        }
    }

    /// Counts what words name, and frees those that name what is outside the area.
    fn count(&self, area: &Range<u64>) {
        let (mut named, mut gone) = (0, 0);
        for slot in 0..self.words.len() {
            match self.words.at(slot) {
                Some((place, _)) if !area.contains(&place) => self.words.clear(slot),
                Some((_, heat)) => {
                    named += 1;
                    gone += u64::from(words::is_gone(heat));
                }
                None => {}
            }
        }
        self.named.store(named, Ordering::Relaxed);
        self.gone.store(gone, Ordering::Relaxed);
    }

    /// Takes the oldest frame out of the last lap: into this one, if it is so hot that it `may_stay`. Says whether it stays, or `None`
    /// if there is none.
    fn take_oldest(&self, writer: &mut Writer, may_stay: impl Fn(u8) -> bool) -> Option<bool> {
        let from = writer.old;
        if from >= writer.old_end {
            return None;
        }
        let head = self.head_at(from);
        let end = head.and_then(|head| head.stored_len()).map(|len| from + len);
        let end = end.filter(|end| *end <= writer.old_end);
        // Where its end was overwritten, or its length is damaged, nothing says where the next one starts.
        writer.old = end.unwrap_or(writer.old_end);
        let Some((slot, heat)) = self.slot_of(from) else { return Some(false) };
        let to = writer.next;
        let stays = head.zip(end).filter(|(_, end)| {
            let frame = &mut writer.frame;
            !words::is_gone(heat)
                && may_stay(heat)
                && (to == from || self.copy(frame, (from, to), end - from))
        });
        let Some((head, end)) = stays else {
            self.words.clear(slot);
            take_away(&self.named, 1);
            take_away(&self.gone, u64::from(words::is_gone(heat)));
            return Some(false);
        };
        // A reader who finds it just now is not counted.
        self.words.put(slot, head.hash(), to, 0);
        writer.next = to + (end - from);
        Some(true)
    }

    fn copy(&self, frame: &mut Vec<u8>, (from, to): (u64, u64), len: u64) -> bool {
        frame.resize(len as usize, 0);
        self.pool.read(from, frame).is_ok() && self.pages.write_unused(to, frame)
    }

    /// What would be the head of a frame at `at`.
    fn head_at(&self, at: u64) -> Option<Head> {
        let mut head = [0; HEAD];
        let is_inside = at.checked_add(HEAD as u64).is_some_and(|end| end <= self.pool.len());
        (is_inside && self.pool.read(at, &mut head).is_ok()).then(|| Head::parse(&head))
    }

    fn hash_of(&self, at: u64) -> Option<u64> {
        self.head_at(at).map(|head| head.hash())
    }

    /// Which word names the frame at `at`, and how often that was found.
    fn slot_of(&self, at: u64) -> Option<(Slot, u8)> {
        self.words.slots(self.hash_of(at)?).find_map(|slot| {
            let (place, heat) = self.words.at(slot)?;
            (place == at).then_some((slot, heat))
        })
    }

    /// The value of a record. Who has read it says what became of it ([`Self::used`]).
    pub fn get(&self, source: Source) -> Option<Frame> {
        let (slot, place, head) = self.find(&source)?;
        self.read(source, slot, place, head)
    }

    /// As [`Self::get`] for each of `wanted`. Memory is asked for all at once, so it takes less time than one by one.
    pub fn get_many(&self, wanted: impl Iterator<Item = Source> + Clone) -> Vec<Option<Frame>> {
        if self.words.len() == 0 {
            return wanted.map(|_| None).collect();
        }
        let first = |source: Source| self.words.candidates(source.hash()).next();
        let found: Vec<_> = wanted.clone().map(first).collect();
        let head = |found: &Option<_>| found.and_then(|(_, place)| self.head_at(place));
        let heads: Vec<_> = found.iter().map(head).collect();
        let frame = |((source, found), head): ((Source, Option<_>), Option<Head>)| {
            let (slot, place) = found?;
            match head {
                Some(head) if head.is_of(&source) => self.read(source, slot, place, head),
                _ => self.get(source),
            }
        };
        wanted.zip(found).zip(heads).map(frame).collect()
    }

    /// The frame at the place that the word in `slot` names, of which this is the head, as it was a moment ago.
    fn read(&self, source: Source, slot: Slot, place: u64, of: Head) -> Option<Frame> {
        of.stored_len()?;
        let end = HEAD + of.len as usize;
        if place + end as u64 > self.pool.len() {
            return None;
        }
        let (_, heat) = self.words.at(slot).filter(|(_, heat)| !words::is_gone(*heat))?;
        let bytes = read_shared(&*self.pool, place, end).ok()?;
        // It may have been overwritten since it was found: the head is that of the bytes.
        let head = Head::parse(bytes.first_chunk()?);
        if head != of || !head.checks(&bytes, self.seed, source.entry) {
            self.give_up(slot, place);
            return None;
        }
        Some(Frame { source, value: Value::shared(bytes, HEAD..end), seqno: head.seqno, slot, place, heat })
    }

    /// Whether it has the value of a record, most likely.
    pub fn may_have(&self, source: Source) -> bool {
        self.words.candidates(source.hash()).next().is_some()
    }

    /// Nobody reads a record any more.
    pub fn forget(&self, source: Source) {
        if let Some((slot, place)) = self.words.candidates(source.hash()).next() {
            self.give_up(slot, place);
        }
    }

    /// A record was moved to another place.
    pub fn carry(&self, from: Source, to: Source) {
        let Some(frame) = self.get(from) else { return };
        self.give_up(frame.slot, frame.place);
        let newcomer = Newcomer { source: to, seqno: frame.seqno, value: &frame.value, heat: frame.heat };
        self.take(&mut self.writer.lock(), &newcomer, Reason::Proven);
    }

    /// The frame at `place`, which the word in `slot` named, is found no more, unless the word names another one by now.
    fn give_up(&self, slot: Slot, place: u64) {
        if self.words.at(slot).is_some_and(|(at, _)| at == place) && self.words.set_gone(slot) {
            add(&self.gone, 1);
        }
    }

    /// Counts what a frame was found for.
    pub fn used(&self, frame: &Frame, made: Use) {
        match made {
            Use::Read if frame.is_for_dram() => {}
            Use::Read => self.words.set_heat(frame.slot, frame.heat, frame.heat + 1),
            Use::Cached => self.words.set_heat(frame.slot, frame.heat, 0),
        }
    }

    /// Which word it is, where the frame, and what that begins with, if there is a frame that says it is of `source`.
    fn find(&self, source: &Source) -> Option<(Slot, u64, Head)> {
        self.words.candidates(source.hash()).find_map(|(slot, place)| {
            let head = self.head_at(place).filter(|head| head.is_of(source))?;
            Some((slot, place, head))
        })
    }

    /// How many copies were ever kept.
    pub fn kept(&self) -> u64 {
        self.kept.get()
    }

    /// Bytes of the fast tier that it may use now.
    pub fn bytes(&self) -> u64 {
        if self.words.is_never() {
            return 0;
        }
        let area = self.pages.unused();
        area.end - area.start
    }

    /// Bytes of DRAM in use.
    pub fn memory_bytes(&self) -> u64 {
        // About as much, while it is written to.
        let frame = self.writer.try_lock().map_or(LONGEST, |writer| writer.frame.capacity());
        self.words.memory_bytes() + frame as u64
    }
}

fn add(sum: &AtomicU64, count: u64) {
    sum.fetch_add(count, Ordering::Relaxed);
}

/// Takes `count` from a sum that may be less: it is none then.
fn take_away(sum: &AtomicU64, count: u64) {
    let _before =
        sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| Some(sum.saturating_sub(count)));
}
