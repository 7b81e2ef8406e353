//! The Persistent Write Buffer: append-only rings in the pool (PRISM §4.3).
//!
//! A thread appends to a ring of its own, or to the next free one while that is taken, so writers share no append point
//! unless there are more of them than rings. Invariants:
//!
//! 1. Positions only grow; the offset of a position is its remainder by the ring's length.
//! 2. Whoever appends holds the ring until its records are drained. So every record between tail and
//!    head is whole on media after a crash, but for those of the last appender, to which nothing refers.
//! 3. Bytes before `reusable` are referred to by no word, durably, and no reader that saw such a word is left.
//! 4. Where a ring starts and ends is kept in DRAM alone. When the store is opened a ring reaches around the
//!    longest stretch that no word points into: its records lie in that order, and nothing else matters.

use crate::layout::Layout;
use crate::record::{HEADER, Header, Kind, header_bytes};
use crate::word::UNIT;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tierdb_base::Result;
use tierdb_pmem::{Lsn, Pool, seal};
use tierdb_sync::switch::{AtomicU64, Mutex, MutexGuard};
use tierdb_sync::thread_shard;

/// Marks of a ring, at the most: as finely the log is cut off behind what rings no longer need.
const MOST_MARKS: u64 = 64;

/// All rings of a store.
pub struct Rings<P: Pool> {
    pool: Arc<P>,
    seed: u64,
    bytes: u64,
    rings: Box<[Ring]>,
}

/// One ring.
pub struct Ring {
    number: u32,
    at: u64,
    append: Mutex<()>,
    /// Where it ended when the store was opened.
    opened: u64,
    head: AtomicU64,
    tail: AtomicU64,
    reusable: Arc<AtomicU64>,
    /// (position, LSN): whatever was logged for later positions has that LSN or a later one.
    marks: Mutex<VecDeque<(u64, Lsn)>>,
}

/// Exclusive right to append to a ring.
pub struct Appender<'r, P: Pool> {
    rings: &'r Rings<P>,
    ring: &'r Ring,
    head: u64,
    _lock: MutexGuard<'r, ()>,
}

/// How far a ring that had no room for a record could be used again.
#[derive(Clone, Copy, Debug)]
pub struct Full {
    ring: u32,
    reusable: u64,
}

/// A record found in a ring.
pub struct Found {
    /// Position from which on the next one is looked for.
    pub end: u64,
    /// Its offset in the pool.
    pub offset: u64,
    /// Its header.
    pub header: Header,
}

impl<P: Pool> Rings<P> {
    /// The rings of a pool, with the tail and head position of each.
    pub fn new(pool: Arc<P>, seed: u64, layout: &Layout, ends: &[(u64, u64)]) -> Self {
        let rings = (0..layout.rings)
            .zip(ends)
            .map(|(number, (tail, head))| Ring {
                number,
                at: layout.rings_at() + u64::from(number) * layout.ring_bytes,
                append: Mutex::new(()),
                opened: *head,
                head: AtomicU64::new(*head),
                tail: AtomicU64::new(*tail),
                reusable: Arc::new(AtomicU64::new(*tail)),
                marks: Mutex::new(VecDeque::new()),
            })
            .collect();
        let all = layout.rings_at()..layout.first_page() * crate::pages::PAGE;
        pool.set_transient(all);
        Rings { pool, seed, bytes: layout.ring_bytes, rings }
    }

    /// The rings.
    pub fn iter(&self) -> impl Iterator<Item = &Ring> {
        self.rings.iter()
    }

    /// Bytes of one ring.
    pub fn ring_bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes in use in all rings.
    pub fn used(&self) -> u64 {
        self.rings.iter().map(|ring| ring.fill()).sum()
    }

    /// This thread's ring, or the next one that is free, or this thread's when none is.
    pub fn lease(&self) -> Appender<'_, P> {
        let first = thread_shard() % self.rings.len();
        for i in 0..self.rings.len() {
            let ring = &self.rings[(first + i) % self.rings.len()];
            if let Some(lock) = ring.append.try_lock() {
                return self.appender(ring, lock);
            }
        }
        let ring = &self.rings[first];
        self.appender(ring, ring.append.lock())
    }

    fn appender<'r>(&'r self, ring: &'r Ring, lock: MutexGuard<'r, ()>) -> Appender<'r, P> {
        Appender { rings: self, ring, head: ring.head.load(Ordering::Relaxed), _lock: lock }
    }

    /// The ring that holds pool offset `offset`, if one does.
    pub fn ring_of(&self, offset: u64) -> Option<&Ring> {
        let first = self.rings.first()?;
        let number = offset.checked_sub(first.at)? / self.bytes;
        self.rings.get(number as usize)
    }

    /// The records that start from position `from` to before `to`, oldest first; `head` is the end of the last
    /// record of the ring. Returns the position after the last one. A stretch that is no record is skipped
    /// by units until one is found again: damage in one record does not hide those behind it.
    ///
    /// What this process has appended lies end to end. What it found when it opened the store need not: a log is cut off behind
    /// what rings no longer need, and the bytes there are of any time before. So a record may begin in any unit of these, and
    /// what is no record that a word points at may be given as one.
    pub fn walk(
        &self,
        ring: &Ring,
        from: u64,
        to: u64,
        head: u64,
        mut each: impl FnMut(Found) -> Result<()>,
    ) -> Result<u64> {
        let mut at = from;
        while at < to {
            let offset = ring.at + at % self.bytes;
            let room = (self.bytes - at % self.bytes).min(head - at);
            let mut bytes = [0u8; HEADER];
            let read = self.pool.read(offset, &mut bytes).ok();
            match read.and_then(|()| Header::decode(&bytes, self.seed)) {
                Some(header) if header.stored_len() <= room => {
                    let end = at + if at >= ring.opened { header.stored_len() } else { UNIT };
                    if header.kind != Kind::Pad {
                        each(Found { end, offset, header })?;
                    }
                    at = end;
                }
                _ => at += UNIT,
            }
        }
        Ok(at)
    }

    /// Makes everything before `to` free, if it is not: reusable when no reader of this moment is left. Nothing may
    /// refer to records before `to`, durably. Returns whether this made anything free.
    pub fn release(&self, ring: &Ring, to: u64, guard: &crossbeam_epoch::Guard) -> bool {
        if to == ring.tail.load(Ordering::Relaxed) {
            return false;
        }
        ring.tail.store(to, Ordering::Release);
        let reusable = ring.reusable.clone();
        guard.defer(move || reusable.fetch_max(to, Ordering::AcqRel));
        let mut marks = ring.marks.lock();
        while marks.get(1).is_some_and(|(at, _)| *at <= to) {
            marks.pop_front();
        }
        true
    }

    /// Whether more of the ring can be used than when it was `full`.
    pub fn came_back(&self, full: Full) -> bool {
        self.rings[full.ring as usize].reusable.load(Ordering::Acquire) > full.reusable
    }

    /// Whether readers hold some of what the ring that was `full` has given up.
    pub fn is_held(&self, full: Full) -> bool {
        let ring = &self.rings[full.ring as usize];
        ring.tail() > ring.reusable.load(Ordering::Acquire)
    }

    /// Notes, for every ring, the LSN from which on the log holds what is appended from now on, and tells
    /// the pool from where it must keep its log.
    pub fn mark_log(&self) {
        let mut keep = Lsn::MAX;
        for ring in &self.rings {
            let (head, lsn) = {
                // Nobody appends now, or a record behind this head could have been logged before this LSN.
                let _none = ring.append.lock();
                (ring.head.load(Ordering::Acquire), self.pool.lsn())
            };
            let tail = ring.tail.load(Ordering::Acquire);
            let mut marks = ring.marks.lock();
            if head == tail {
                marks.clear();
            }
            if marks.back().is_none_or(|(at, _)| *at + self.bytes / MOST_MARKS <= head) {
                marks.push_back((head, lsn));
            }
            let needed = match marks.front() {
                Some((at, lsn)) if *at <= tail => *lsn,
                Some(_) => 0,
                None => lsn,
            };
            keep = keep.min(needed);
        }
        self.pool.keep_log_from(keep);
    }
}

impl Ring {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Position after the last record.
    pub fn head(&self) -> u64 {
        self.head.load(Ordering::Acquire)
    }

    /// Position of the oldest record that may be referred to.
    pub fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Where it starts and ends, as [`ends`] would say it.
    pub fn ends(&self, bytes: u64) -> (u64, u64) {
        let (tail, head) = (self.tail(), self.head());
        (tail % bytes, tail % bytes + (head - tail))
    }

    /// Byte of the pool where it starts.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Bytes that cannot be appended to now.
    pub fn fill(&self) -> u64 {
        self.head().saturating_sub(self.reusable.load(Ordering::Acquire))
    }
}

/// Tail and head position of a ring of `bytes` bytes in which `spans` (offset in the ring, length) are live: the
/// longest stretch without any lies between head and tail.
pub fn ends(mut spans: Vec<(u64, u64)>, bytes: u64) -> (u64, u64) {
    spans.sort_unstable();
    let Some((first, _)) = spans.first().copied() else { return (0, 0) };
    let (mut longest, mut tail, mut end) = (0, first, first);
    for (start, len) in spans.into_iter().chain([(first + bytes, 0)]) {
        if start.saturating_sub(end) > longest {
            (longest, tail) = (start - end, start % bytes);
        }
        end = end.max(start + len);
    }
    (tail, tail + bytes - longest)
}

impl<P: Pool> Appender<'_, P> {
    /// Appends a stored record and starts its write-back; drained by [`Appender::drain`]. Returns its offset
    /// in the pool.
    ///
    /// # Errors
    /// [`Full`], if there is no room for it.
    pub fn append(&mut self, record: &[u8]) -> Result<u64, Full> {
        let len = record.len() as u64;
        let ring_bytes = self.rings.bytes;
        let rest = ring_bytes - self.head % ring_bytes;
        let pad = if len > rest { rest } else { 0 };
        let reusable = self.ring.reusable.load(Ordering::Acquire);
        if self.head + pad + len - reusable > ring_bytes {
            return Err(Full { ring: self.ring.number, reusable });
        }
        let pool = &self.rings.pool;
        if pad > 0 {
            // Only the header of the filler is written: its body is whatever was there. It saves a walk of this
            // process from looking at every unit, and need not last.
            let filler = header_bytes(self.rings.seed, Kind::Pad, 0, 0, 0, (pad as usize - HEADER) as u32);
            let at = self.ring.at + self.head % ring_bytes;
            pool.write(at, &filler);
            self.head += pad;
        }
        let at = self.ring.at + self.head % ring_bytes;
        pool.write(at, record);
        pool.flush(at, len);
        self.head += len;
        Ok(at)
    }

    /// Waits until what was appended is on media (or ordered before all that follows), and shows it to
    /// reclamation.
    #[track_caller]
    pub fn drain(&mut self) {
        self.rings.pool.fence();
        self.ring.head.store(self.head, Ordering::Release);
    }

    /// Names the redo record at pool offset `at` in the ring's commit slot, or with 0 none.
    #[track_caller]
    pub fn publish_commit(&self, at: u64) {
        let slot = Layout::commit_slot(self.ring.number);
        self.rings.pool.publish(slot, seal(self.rings.seed, slot, at / UNIT));
    }

    /// Fill of the ring, as if drained.
    pub fn fill(&self) -> u64 {
        self.head - self.ring.reusable.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::record::encode;
    use tierdb_pmem::MappedPool;

    fn rings() -> Rings<MappedPool> {
        let pool = Arc::new(MappedPool::in_memory(1 << 20));
        let options = Options { rings: 1, ring_bytes: 16 << 10, ..Options::for_pool(1 << 20, 1 << 20) };
        let layout = Layout::new(1 << 20, 1, &options).expect("layout");
        Rings::new(pool, 3, &layout, &[(0, 0)])
    }

    #[test]
    fn records_are_found_in_order_around_the_end_of_the_ring() {
        let rings = rings();
        let ring = &rings.rings[0];
        let mut next = 0u64;
        let mut expected = VecDeque::new();
        for round in 0..200u64 {
            let mut record = Vec::new();
            encode(&mut record, 3, Kind::Value, round, round, b"key", &vec![7; (round * 37 % 900) as usize]);
            let mut lease = rings.lease();
            let appended = lease.append(&record).is_ok();
            lease.drain();
            drop(lease);
            if appended {
                expected.push_back(round);
            }
            if !appended || round == 199 {
                let (tail, head) = (ring.tail(), ring.head());
                let mut seen = Vec::new();
                rings
                    .walk(ring, tail, head, head, |found| {
                        seen.push(found.header.entry);
                        Ok(())
                    })
                    .expect("walk");
                assert_eq!(seen, expected.drain(..).collect::<Vec<_>>());
                next += 1;
                rings.release(ring, head, &crossbeam_epoch::pin());
                while ring.fill() > 0 {
                    crossbeam_epoch::pin().flush();
                }
            }
        }
        assert!(next > 3, "the ring went around");
    }

    #[test]
    fn the_ends_lie_around_the_longest_free_stretch() {
        assert_eq!(ends(vec![], 1024), (0, 0));
        assert_eq!(ends(vec![(64, 64)], 1024), (64, 128));
        assert_eq!(ends(vec![(512, 64), (64, 64)], 1024), (64, 576));
        // Around the end of the ring.
        assert_eq!(ends(vec![(0, 64), (960, 64)], 1024), (960, 1088));
        // Full, and a length that is a guess.
        assert_eq!(ends(vec![(0, 512), (512, 512)], 1024), (0, 1024));
        assert_eq!(ends(vec![(0, 2000)], 1024), (0, 1024));
    }

    #[test]
    fn a_walk_that_ends_inside_a_record_takes_all_of_it() {
        let rings = rings();
        let ring = &rings.rings[0];
        for entry in 0..2 {
            let mut record = Vec::new();
            encode(&mut record, 3, Kind::Value, entry, 1, b"key", &[1; 1000]);
            let mut lease = rings.lease();
            lease.append(&record).expect("room");
            lease.drain();
        }
        let mut seen = Vec::new();
        let end = rings.walk(ring, 0, 100, ring.head(), |found| {
            seen.push(found.header.entry);
            Ok(())
        });
        assert_eq!((seen, end.expect("walk")), (vec![0], ring.head() / 2));
    }

    #[test]
    fn damage_hides_one_record_only() {
        let rings = rings();
        let ring = &rings.rings[0];
        let mut offsets = Vec::new();
        for entry in 0..3 {
            let mut record = Vec::new();
            encode(&mut record, 3, Kind::Value, entry, 1, b"key", &[1; 100]);
            let mut lease = rings.lease();
            offsets.push(lease.append(&record).expect("room"));
            lease.drain();
        }
        rings.pool.write(offsets[1] + 24, &[0xff]);
        let mut seen = Vec::new();
        rings
            .walk(ring, 0, ring.head(), ring.head(), |found| {
                seen.push(found.header.entry);
                Ok(())
            })
            .expect("walk");
        assert_eq!(seen, [0, 2]);
    }

    /// Goal: what lies in a ring from an earlier time, with a header that checks, hides no record. Method: the body of a long
    /// record is overwritten with others, which are what the store is opened with.
    #[test]
    fn a_header_of_an_earlier_time_hides_nothing_behind_it() {
        let rings = rings();
        let record = |entry: u64, len: usize| {
            let mut record = Vec::new();
            encode(&mut record, 3, Kind::Value, entry, 1, b"key", &vec![entry as u8; len]);
            record
        };
        let (long, short) = (record(1, 3000), record(2, 500));
        let head = long.len() as u64;
        let at = rings.rings[0].at;
        rings.pool.write(at, &long);
        rings.pool.write(at + head - short.len() as u64, &short);
        let found = |opened: u64| {
            let ends = [(0, opened)];
            let options = Options { rings: 1, ring_bytes: 16 << 10, ..Options::for_pool(1 << 20, 1 << 20) };
            let layout = Layout::new(1 << 20, 1, &options).expect("layout");
            let rings = Rings::new(rings.pool.clone(), 3, &layout, &ends);
            let mut seen = Vec::new();
            let walked = rings.walk(&rings.rings[0], 0, head, head, |found| {
                seen.push(found.header.entry);
                Ok(())
            });
            (seen, walked.expect("walk"))
        };
        assert_eq!(found(head), (vec![1, 2], head));
        // What this process has appended lies end to end.
        assert_eq!(found(0), (vec![1], head));
    }
}
