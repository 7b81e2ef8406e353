//! What is done for the cache off the path of reads: lists brought up to date, copies evicted, chains handed
//! out.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crossbeam_epoch::{self as epoch, Guard};
use tierdb_sync::thread_shard;

use super::lists::{Lists, Node, Which};
use super::policy::{Fate, Ghost};
use super::table::Table;
use super::{Cache, Cached, Copied, ScanRange, Slot};
use crate::second_level::LONGEST;

/// Which filling of its chunk a word points into.
type Fillings<'f> = &'f dyn Fn(u64) -> u32;

/// A cached record of a scan range.
#[derive(Clone, Debug)]
pub struct Member {
    /// The entry it belongs to.
    pub entry: u64,
    /// The location it is a copy of.
    pub word: u64,
    /// The filling of its chunk.
    pub filling: u32,
    /// The whole record.
    pub record: Copied,
}

/// A record that was evicted.
#[derive(Debug)]
pub struct Gone {
    /// Where it is on flash.
    pub word: u64,
    /// The filling of its chunk.
    pub filling: u32,
    /// It was in the active list: read again while it was cached, or known when it came.
    pub proven: bool,
    /// The whole record.
    pub record: Copied,
}

/// What a round of [`Cache::maintain`] did.
#[derive(Debug, Default)]
pub struct Upkeep {
    /// In key order, to be written together, for the next scan to find together: scan ranges that were found scattered,
    /// and chains of which a member was evicted. Each is given once; its members are chained again by the next scan.
    /// The evicted member is among them, unless it was evicted by a reader in need of room. What already lies together on
    /// flash need not be written again: the words tell. The records are in memory until the caller drops
    /// them.
    pub rewrite: Vec<Vec<Member>>,
    /// Records evicted that the second level may keep: not those that moved since they were read, nor long ones.
    pub gone: Vec<Gone>,
    /// Copies evicted.
    pub evicted: usize,
    /// There is more to do now.
    pub more: bool,
}

/// Work done while the lists' latch is held.
const PIECE: usize = 64;
/// Pieces that a reader works off, at most, before it goes without caching.
const INLINE_PIECES: usize = 8;
/// Chains and evicted records that one round hands out before it returns, since the caller then holds their records.
const ROUND_CHAINS: usize = 4;
const ROUND_GONE: usize = 4 * PIECE;

/// How many queued slots were settled, and how many of them are free now.
#[derive(Default)]
struct Settled {
    count: usize,
    freed: usize,
}

/// What a decision of the policy led to.
enum Step<'g> {
    /// Something is in another place of the lists, or has left them without being evicted.
    Moved,
    /// This was evicted; and whether it is [proven](Gone::proven).
    Evicted(&'g Cached, bool),
}

impl Gone {
    fn of(cached: &Cached, proven: bool) -> Option<Self> {
        let is_there = cached.word.load(Relaxed) == cached.origin;
        (is_there && cached.record.len() <= LONGEST).then(|| Gone {
            word: cached.origin,
            filling: cached.filling,
            proven,
            record: cached.record.clone(),
        })
    }
}

impl Cache {
    /// Brings the lists up to date and evicts until there is headroom for readers to insert into, in about
    /// `max_work` steps.
    ///
    /// For a background thread: now and then, and whenever [`Cache::pressure`] says so. `filling` tells which filling a word
    /// points into.
    pub fn maintain(&self, max_work: usize, filling: Fillings<'_>) -> Upkeep {
        self.give_spare_back(self.memory_bytes().saturating_sub(self.capacity()));
        let mut upkeep = Upkeep { more: true, ..Upkeep::default() };
        let mut ranges = Vec::new();
        let mut scattered = Vec::new();
        let mut work = 0;
        while upkeep.more && work < max_work {
            // Taken before the queue is: what was inserted before it was chained is settled once the queue is
            // empty.
            let before = ranges.len();
            ranges.extend(self.ranges.lock().drain(..));
            let at_once = ranges[before..].iter().filter(|range| range.scattered);
            scattered.extend(at_once.map(|range| self.members(&range.members, filling)));
            let mut lists = self.lists.lock();
            let settled = self.settle_queued(&mut lists).count;
            if settled < PIECE {
                work += self.chain_ranges(&mut lists, &mut ranges);
            }
            while upkeep.rewrite.len() < ROUND_CHAINS
                && let Some(index) = lists.next_broken()
            {
                self.hand_out(&mut lists, index, &mut upkeep.rewrite, filling);
            }
            let mut steps = 0;
            let guard = epoch::pin();
            while steps < PIECE && upkeep.rewrite.len() < ROUND_CHAINS && self.pressure() {
                match self.step(&mut lists, Some((&mut upkeep.rewrite, filling)), &guard) {
                    Some(Step::Evicted(cached, proven)) => {
                        upkeep.evicted += 1;
                        upkeep.gone.extend(Gone::of(cached, proven));
                    }
                    Some(Step::Moved) => {}
                    None => break,
                }
                steps += 1;
            }
            work += settled + steps + 1;
            let full = upkeep.rewrite.len() >= ROUND_CHAINS || upkeep.gone.len() >= ROUND_GONE;
            upkeep.more = settled == PIECE || steps == PIECE || full;
            if full {
                break;
            }
        }
        if !ranges.is_empty() {
            self.chain_ranges(&mut self.lists.lock(), &mut ranges);
        }
        upkeep.rewrite.append(&mut scattered);
        if upkeep.evicted > 0 {
            // Their memory is for copies to come once this thread has told others of them.
            epoch::pin().flush();
        }
        upkeep
    }

    /// Makes room and reserves it, or says that it would take too long.
    pub(super) fn make_room(&self, bytes: u64) -> bool {
        for _ in 0..INLINE_PIECES {
            let mut lists = self.lists.lock();
            self.settle_queued(&mut lists);
            let guard = epoch::pin();
            for _ in 0..PIECE {
                if self.reserve(bytes) {
                    return true;
                }
                if self.step(&mut lists, None, &guard).is_none() {
                    break;
                }
            }
        }
        self.reserve(bytes)
    }

    /// Puts a copy into a slot: a free one, a new one, or one that is made free.
    pub(super) fn place(&self, mut cached: Box<Cached>) -> Option<Slot> {
        let guard = epoch::pin();
        for _ in 0..INLINE_PIECES {
            cached = match self.table.place(thread_shard(), cached, &guard) {
                Ok(slot) => return Some(slot),
                Err(cached) => cached,
            };
            // Slots that were emptied are free again once they are settled; only if there are none is the
            // table too small.
            let settle = |_| Some(self.settle_queued(&mut self.lists.lock())).filter(|of| of.count > 0);
            let freed = (0..INLINE_PIECES).map_while(settle).any(|of| of.freed > 0);
            if !freed && !self.table.grow(size_of::<Node>(), |bytes| self.reserve(bytes)) {
                let mut lists = self.lists.lock();
                let mut steps = (0..PIECE).map(|_| self.step(&mut lists, None, &guard));
                if let Some(None) = steps.find(|step| !matches!(step, Some(Step::Moved))) {
                    // Nothing is cached that could make way.
                    break;
                }
            }
        }
        None
    }

    /// Tells the lists of a piece of the slots that were filled or emptied.
    fn settle_queued(&self, lists: &mut Lists) -> Settled {
        let mut queued = [0; PIECE];
        let mut settled = Settled::default();
        let guard = epoch::pin();
        let first = thread_shard();
        for shard in 0..Table::shards() {
            let room = PIECE - settled.count;
            let taken = self.table.dequeue(first + shard, &mut queued[..room]);
            settled.count += taken;
            settled.freed +=
                queued[..taken].iter().filter(|&&index| self.settle(lists, index, &guard)).count();
        }
        settled
    }

    /// Whether the slot was found empty, and freed.
    fn settle(&self, lists: &mut Lists, index: u32, guard: &Guard) -> bool {
        match self.table.cell(index).cached.get(guard) {
            Some(cached) if !lists.is_linked(index) => {
                let memory = self.policy.memory(lists.count());
                if let Some(marks) = lists.ghost.wants(memory)
                    && self.reserve(Ghost::bytes_of(marks))
                {
                    self.release(lists.ghost.resize(marks));
                }
                let remembered = lists.ghost.recall(cached.entry, memory);
                lists.link(self.policy.entrance(remembered || cached.known), index, cached.cost() as u32);
                false
            }
            Some(_) => false,
            None => {
                lists.forget(index, false);
                self.table.free(index);
                true
            }
        }
    }

    /// One decision of the policy, or `None` if nothing is cached. With `rewrite`, the chain of what is evicted is handed
    /// out, with the fillings of its words; else it is left for the next round.
    fn step<'g>(
        &'g self,
        lists: &mut Lists,
        rewrite: Option<(&mut Vec<Vec<Member>>, Fillings<'_>)>,
        guard: &'g Guard,
    ) -> Option<Step<'g>> {
        let which = self.policy.next(lists.bytes(Which::Inactive), lists.bytes(Which::Active));
        let index = lists.oldest(which)?;
        let cell = self.table.cell(index);
        match self.policy.fate(which, cell.heat.load(Relaxed)) {
            Fate::Move(to, heat) => {
                cell.heat.store(heat, Relaxed);
                lists.relink(to, index);
                Some(Step::Moved)
            }
            Fate::Evict { remember } => {
                if let Some((rewrite, filling)) = rewrite {
                    self.hand_out(lists, index, rewrite, filling);
                }
                let evicted = self.empty(cell, |_| true, guard);
                if let Some(cached) = evicted {
                    self.evictions.fetch_add(1, Relaxed);
                    if remember {
                        lists.ghost.remember(cached.entry);
                    }
                }
                let proven = lists.is_proven(index);
                lists.forget(index, evicted.is_some());
                self.table.free(index);
                Some(evicted.map_or(Step::Moved, |cached| Step::Evicted(cached, proven)))
            }
        }
    }

    /// Hands out the chain around a slot, unless it holds nothing or has no neighbours that are still cached.
    fn hand_out(&self, lists: &mut Lists, index: u32, rewrite: &mut Vec<Vec<Member>>, filling: Fillings<'_>) {
        if self.table.cell(index).cached.get(&epoch::pin()).is_none() {
            return;
        }
        let chained = lists.unchain(index).into_iter();
        let members: Vec<_> = chained.filter_map(|index| self.member(index, |_| true, filling)).collect();
        if members.len() > 1 {
            rewrite.push(members);
        }
    }

    /// What is still cached of a scan range.
    fn members(&self, range: &[(Slot, u64)], filling: Fillings<'_>) -> Vec<Member> {
        let member =
            |(slot, entry): &(Slot, u64)| self.member(slot.index(), |found| found == *entry, filling);
        range.iter().filter_map(member).collect()
    }

    /// What a slot holds, if that is of an entry that is `meant`.
    fn member(&self, index: u32, meant: impl FnOnce(u64) -> bool, filling: Fillings<'_>) -> Option<Member> {
        let guard = epoch::pin();
        let cached = self.table.get(index)?.cached.get(&guard).filter(|cached| meant(cached.entry))?;
        let word = cached.word.load(Acquire);
        // A copy is dropped, or gets another word, before the place that its word points at is released; and what is released
        // from now on is not filled anew while this thread is pinned.
        let filling = if word == cached.origin { cached.filling } else { filling(word) };
        Some(Member { entry: cached.entry, word, filling, record: cached.record.clone() })
    }

    /// Links the members of scan ranges that are still cached, and returns how many there were.
    fn chain_ranges(&self, lists: &mut Lists, ranges: &mut Vec<ScanRange>) -> usize {
        let guard = epoch::pin();
        let mut members = 0;
        for ScanRange { members: range, .. } in ranges.drain(..) {
            let is_there =
                |lists: &Lists, index, entry| lists.is_linked(index) && self.holds(index, entry, &guard);
            // The last slot, with its entry, and whether it was looked at.
            let mut before: Option<(u32, u64, bool)> = None;
            for &(slot, entry) in &range {
                let index = slot.index();
                // Most ranges were scanned before: what is chained is not looked at, until something else is to be chained to it. It may be
                // another entry's by now, which was chained there since.
                if before.is_some_and(|(before, ..)| lists.are_joined(before, index)) {
                    before = Some((index, entry, false));
                    continue;
                }
                if !is_there(lists, index, entry) {
                    continue;
                }
                if let Some((before, its, was_seen)) = before.replace((index, entry, true))
                    && (was_seen || is_there(lists, before, its))
                {
                    lists.join(before, index);
                }
            }
            members += range.len();
            self.release(super::range_bytes(range.len()));
        }
        members
    }

    fn holds(&self, index: u32, entry: u64, guard: &Guard) -> bool {
        self.table.cell(index).cached.get(guard).is_some_and(|cached| cached.entry == entry)
    }
}
