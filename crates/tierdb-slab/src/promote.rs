//! Copies of what only flash has on the fast tier: popular keys, found by a migration or read just now.
//!
//! A copy has the seqno of the version it copies, and flash keeps that version as long as no newer one replaces it. So a
//! copy is *clean*: its slot can be freed at any time, without any I/O on flash. A crash leaves it or not; after
//! that it is taken for a version like any other. So is one of a deeper level where the first one is on a faster device: it is to
//! come there.

use crate::config::Promotion as When;
use crate::core::{Core, hash_of};
use crate::heap::{FREE_BYTES, NewRecord};
use crate::key::Key;
use crate::levels::{FIRST, Level, Levels};
use crate::live::LiveTable;
use crate::partition::{Entry, Partition};
use crate::plan::Victim;
use crate::record::Kind;
use crate::slabs::Purpose;
use crate::tracker::{Popularity, Tier};
use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tierdb_base::{Seqno, mutant};
use tierdb_device::Dir;
use tierdb_pmem::{Pool, Stage};

/// Longer values are not copied when they are read.
const LONGEST: usize = 64 << 10;
/// Copies that are looked at in one turn.
const AT_ONCE: usize = 512;
/// Keys that are passed over on the way to them, as a part of the partition's.
const TURN: usize = 8;
/// One of so many copies is dropped where all are popular.
const LEAST: usize = 8;
/// A turn in which fewer copies than one of so many were unpopular was hardly worth it.
const FEW: usize = 16;
/// So many turns for unpopular ones are left out then: migrations go on meanwhile.
const PAUSE: u32 = 4;

/// Which clean copies are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// Those that are not pinned, of some that the partition's hand passes.
    Unpopular,
    /// These, and the least popular of the others.
    LeastPopular,
    /// All.
    All,
}

/// Where the copies of a partition are looked at next.
#[derive(Default)]
pub struct Hand {
    /// Behind this key; from the first one on if there is none.
    key: Option<Key>,
    /// Turns for unpopular copies that are left out.
    rest: u32,
}

/// A popular key found in a table, with its newest version there.
pub struct Promotion {
    pub key: Vec<u8>,
    pub seqno: Seqno,
    pub value: Vec<u8>,
    /// The table's level.
    pub level: Level,
}

/// The table that a version was read from, and all tables that there were then.
pub type From<'f, D> = (&'f Levels<D>, &'f Arc<LiveTable<D>>);

impl<P: Pool, D: Dir> Core<P, D> {
    /// Copies a version that only flash has to the fast tier, if it still is the newest and there is room. The caller
    /// holds the partition's migration, or says what it was read from. Says whether it did.
    pub fn promote(&self, part: &Partition<D>, promotion: Promotion, from: Option<From<'_, D>>) -> bool {
        let heap = &self.heap;
        let Promotion { key, seqno, value, level } = promotion;
        let Ok(_admitted) = heap.admit(heap.admit_bytes(key.len(), value.len())) else { return false };
        let state = &mut *part.write();
        let moved = from.is_some_and(|(then, table)| !state.tables.is_as(then, &key, table));
        let removed = state.ranges.iter().any(|range| range.removes(&key, seqno, Seqno::MAX))
            && mutant::keep("tombstone");
        let newer = state.index.get(&key).is_some() && mutant::keep("tombstone")
            || self.lost.hides(&key, Some(seqno)).is_some();
        if moved || removed || newer {
            return false;
        }
        let mut stage = Stage::new(&*heap.pool);
        state.stage_retired(heap, &mut stage);
        let record = NewRecord { kind: Kind::Value, seqno, key: &key, value: &value };
        let Some(written) = heap.write(&mut stage, &record, Purpose::Value) else { return false };
        let drained = stage.drain();
        state.release_retired(heap);
        // No fence: nothing depends on a copy, and what follows on its word follows on media too.
        drained.publish(written.commit.0, written.commit.1);
        let long = !written.slots.parts.is_empty();
        let entry = Entry::new(written.slots.at, seqno, false, long);
        // What is to come to the first level is no copy: a migration takes it there.
        let entry = if self.comes_up(level) { entry } else { entry.clean() };
        state.insert(&key, entry);
        self.tracker.moved(hash_of(&key), Tier::Fast);
        self.counters.promoted.add(1);
        true
    }

    /// Whether what is popular of `level` is to come to the first one by way of the fast tier's records: not where it could not go on.
    fn comes_up(&self, level: Level) -> bool {
        self.goes_up(level)
            && self.stay_share.only_reads()
            && !self.flash.is_spent(FIRST)
            && !self.work.found_full.load(Ordering::Relaxed)
    }

    /// A key of this popularity was just read `from` a table: it is copied if it is to be pinned, or to come to the first level, and there is
    /// room. Says whether it was.
    pub fn promote_read(
        &self,
        from: From<'_, D>,
        key: &[u8],
        seqno: Seqno,
        value: &[u8],
        popularity: Popularity,
    ) -> bool {
        let (room, level) = (self.free_target(self.options.high_pct) / 2, from.1.level());
        let wanted = self.options.promotion == When::OnRead
            && value.len() <= LONGEST
            && self.heap.slabs.free_bytes() > room
            && if self.comes_up(level) {
                self.tracker.threshold(self.stay_share.pct()).pins_same(popularity, hash_of(key))
            } else {
                self.threshold(self.copied_pct()).pins(popularity)
            };
        if !wanted {
            return false;
        }
        let Ok(_changing) = self.gate.change() else { return false };
        let part = self.router.read().part_of(key).clone();
        let promoted = {
            // While the key space is divided, the partition may be one that is given up.
            let Some(_parts) = self.work.dividing.try_read() else { return false };
            if !Arc::ptr_eq(&part, self.router.read().part_of(key)) {
                return false;
            }
            let promotion = Promotion { key: key.to_vec(), seqno, value: value.to_vec(), level };
            self.promote(&part, promotion, Some(from))
        };
        if self.ordered {
            // Or a reader would have to write the log, and make checkpoints.
            self.work.want_upkeep();
        }
        if !self.is_over(self.options.high_pct) {
            return promoted;
        }
        if self.work.is_inline() {
            // What fails here is met again by the writes that need the room.
            let _ = self.migrate_to_low();
        } else {
            self.work.want_space();
        }
        promoted
    }

    /// Frees clean copies. Returns how many.
    pub fn drop_copies(&self, which: Copies) -> u64 {
        let _parts = self.work.dividing.read();
        let parts = self.router.read().parts.clone();
        parts.iter().map(|part| self.drop_copies_of(part, which)).sum()
    }

    /// The same, of one partition.
    pub fn drop_copies_of(&self, part: &Partition<D>, which: Copies) -> u64 {
        let victims = self.pass_copies(part, which);
        let Ok(_admitted) = self.heap.admit(victims.len() as u64 * FREE_BYTES) else { return 0 };
        let dropped = self.free_victims(part, &victims, &HashSet::new()).keys;
        self.counters.dropped_copies.add(dropped);
        dropped
    }

    /// Moves the hand of `part` on, and lists copies that it passes which are to be dropped.
    fn pass_copies(&self, part: &Partition<D>, which: Copies) -> Vec<Victim> {
        let mut hand = part.hand.lock();
        if which == Copies::Unpopular && hand.rest > 0 {
            hand.rest -= 1;
            return Vec::new();
        }
        let state = part.read();
        if state.copies == 0 {
            return Vec::new();
        }
        let (turn, at_once) = match which {
            Copies::All => (state.index.len(), usize::MAX),
            Copies::Unpopular => (state.index.len() / TURN + AT_ONCE, AT_ONCE),
            // That there are none is said only where all keys were passed.
            Copies::LeastPopular => (state.index.len(), AT_ONCE),
        };
        // Mostly so: then only of those that are dropped it is asked, for which the tables are searched.
        let all_whole = state.tables.tables().all(|table| table.is_trusted());
        let mut passed = Vec::new();
        let mut last = None;
        let ahead = (hand.key.as_deref().map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let ahead = state.index.range(ahead).chain(state.index.iter());
        for (key, entry) in ahead.take(turn.min(state.index.len())) {
            last = Some(key);
            if entry.is_clean() && (all_whole || state.is_whole_on_flash(key)) {
                passed.push((self.tracker.popularity(hash_of(key)), key, entry));
                if passed.len() == at_once {
                    break;
                }
            }
        }
        hand.key = last.map(Key::from);
        let threshold = self.threshold(self.copied_pct());
        let least = match which {
            Copies::LeastPopular => {
                passed.sort_by_key(|(popularity, ..)| *popularity);
                passed.len().div_ceil(LEAST)
            }
            Copies::All => passed.len(),
            Copies::Unpopular => 0,
        };
        let count = passed.len();
        let dropped = passed.into_iter().enumerate();
        let dropped =
            dropped.filter(|(number, (popularity, ..))| *number < least || !threshold.pins(*popularity));
        let dropped = dropped.filter(|(_, (_, key, _))| state.is_whole_on_flash(key));
        let dropped: Vec<Victim> = dropped
            .map(|(_, (_, key, entry))| Victim {
                key: key.into(),
                entry,
                bytes: self.bytes_of(entry),
                stays: false,
            })
            .collect();
        if which == Copies::Unpopular {
            hand.rest = if dropped.len() * FEW < count { PAUSE } else { 0 };
        }
        dropped
    }
}
