//! What a migration is to merge: which tables, and which keys of the fast tier.

use crate::core::{Core, hash_of};
use crate::flash::{Limit, Limits};
use crate::key::Key;
use crate::levels::{FIRST, Level, Levels};
use crate::live::LiveTable;
use crate::partition::{Entry, State, bounds};
use std::ops::{Bound, Range};
use std::sync::Arc;
use tierdb_device::Dir;
use tierdb_engine::KeyRange;
use tierdb_pmem::Pool;

/// Victims of one migration for each table of its range, in bytes, as a multiple of a table's.
pub const MOST_TABLES: u64 = 4;
/// What was not written during this part of as many writes as the fast tier has keys is written to flash with its neighbours.
const LATELY: u64 = 4;

/// Which keys leave the fast tier, of those of which flash has not the newest version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    /// Those that are not pinned. Pinned ones that were not written lately go to flash too, but stay as clean copies.
    Unpopular,
    /// All.
    All,
    /// Only tombstones, no more than a table of them: flash must not grow.
    Tombstones,
    /// None: tables are rewritten.
    None,
}

/// What becomes of a key in a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes to flash.
    Leaves,
    /// It is written to flash, and stays on the fast tier as a clean copy.
    IsCopied,
    /// Nothing.
    Stays,
}

/// A key that is written to flash.
pub struct Victim {
    pub key: Key,
    pub entry: Entry,
    /// Bytes of its slots.
    pub bytes: u64,
    /// Whether it stays on the fast tier too.
    pub stays: bool,
}

/// What is merged: keys of a range, and the tables in it.
pub struct Plan<D: Dir> {
    /// The keys that come into `into`, from the fast tier or a level above. No table of that level but those below has any of them, nor
    /// one between them and the keys of these.
    pub range: KeyRange,
    /// The level that the new tables belong to.
    pub into: Level,
    /// Tables of that level, behind those of the level above, if any are merged into it; what these have outside the range stays in their
    /// level.
    pub tables: Vec<Arc<LiveTable<D>>>,
    /// The first table, which is on a fast device, is *swept*, for flash must not grow: only tombstones come down that every snapshot sees,
    /// and what it has newer versions of goes.
    pub sweep: bool,
    /// What comes from the fast tier may wait above, and the tables stay as they are ([`crate::unmerged`]).
    pub may_wait: bool,
}

impl<D: Dir> Plan<D> {
    /// Table `number` of `level` alone, if there is one, with its range.
    pub fn of_table(levels: &Levels<D>, level: Level, number: usize) -> Self {
        Self::of_tables(levels, level, number..number + 1)
    }

    /// Tables `numbers` of `level`, if there are so many, with their range.
    pub fn of_tables(levels: &Levels<D>, level: Level, numbers: Range<usize>) -> Self {
        let set = levels.level(level);
        let (first, last) = (set.range_of(numbers.start), set.range_of(numbers.end - 1));
        let tables = set.tables().get(numbers).unwrap_or_default().to_vec();
        let range = KeyRange { start: first.start, end: last.end };
        Plan { range, into: level, tables, sweep: false, may_wait: false }
    }

    /// Its tables of the level that the new ones belong to.
    pub fn own_tables(&self) -> usize {
        self.tables.iter().filter(|table| table.level() == self.into).count()
    }

    /// Victims of the migration, in bytes, as a multiple of a table's.
    pub fn most_victims(&self) -> u64 {
        MOST_TABLES * self.own_tables().max(1) as u64
    }

    /// `upper` and what `into` has between its keys; no level between has any. If it is to `sweep`, or to come down.
    pub fn down(levels: &Levels<D>, upper: &Arc<LiveTable<D>>, into: Level, sweep: bool) -> Self {
        let key = |key: &[u8]| Bound::Included(key.to_vec());
        let range = KeyRange { start: key(upper.smallest()), end: key(upper.largest()) };
        let overlapping = levels.level(into).overlapping(&range).map(|(_, table)| table.clone());
        let tables = std::iter::once(upper.clone()).chain(overlapping).collect();
        Plan { range, into, tables, sweep, may_wait: false }
    }

    /// The part of it that has to do with the one table of its level where `key` is.
    pub fn part(&self, levels: &Levels<D>, key: &[u8]) -> Self {
        let below = levels.level(self.into);
        let number = below.number_of(key);
        let tables = self.tables[..1].iter().chain(below.tables().get(number)).cloned().collect();
        Plan { range: below.range_of(number), tables, ..*self }
    }

    /// How far its merge fills the places of tables of `level`, its own or the one above, with victims that add as much as `adds` says. What
    /// was on a fast device, and is not any more, comes on top of what flash has.
    pub fn limits(&self, level: Level, adds: Limit) -> Limits {
        let on_device = |table: &Arc<LiveTable<D>>| table.is_on_device();
        let mut of_level = self.tables.iter().filter(|table| table.level() == level);
        if !self.tables.iter().any(on_device) || self.sweep && level == self.into {
            Limits { flash: adds, fast: Limit::Growth }
        } else if level == FIRST
            && of_level.all(on_device)
            && self.tables.iter().all(|table| table.level() >= FIRST)
        {
            Limits { flash: Limit::Growth, fast: adds }
        } else {
            Limits::both(Limit::Growth)
        }
    }

    /// Whether all keys of `table` are in its range.
    pub fn is_all_of(&self, table: &LiveTable<D>) -> bool {
        self.range.contains(table.smallest()) && self.range.contains(table.largest())
    }

    /// Whether one of its tables could not be read.
    pub fn is_damaged(&self) -> bool {
        self.tables.iter().any(|table| table.is_damaged())
    }

    /// Bytes of its tables, of those alone that have a place in its level.
    pub fn bytes_there(&self) -> u64 {
        let there = |table: &&Arc<LiveTable<D>>| !self.sweep || table.level() == self.into;
        self.tables.iter().filter(there).map(|table| table.file_len()).sum()
    }

    /// `table` alone, with its range, if it still is one of `levels`.
    pub fn of_live(levels: &Levels<D>, table: &Arc<LiveTable<D>>) -> Option<Self> {
        let level = table.level();
        let number = levels.level(level).tables().iter().position(|now| Arc::ptr_eq(now, table))?;
        Some(Self::of_table(levels, level, number))
    }
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// The keys of the range of `plan` that are to be written to flash, as many as one migration takes.
    pub fn victims(&self, state: &State<D>, plan: &Plan<D>, which: Victims) -> Vec<Victim> {
        let Some(bounds) = bounds(&plan.range) else { return Vec::new() };
        let fate = self.fates(state, which);
        let most = if which == Victims::Tombstones { 1 } else { plan.most_victims() };
        let mut left = most * self.options.table_bytes;
        let mut found = Vec::new();
        for (key, entry) in state.index.range(bounds) {
            let stays = match fate(key, entry) {
                Fate::Leaves => false,
                Fate::IsCopied => true,
                Fate::Stays => continue,
            };
            let bytes = self.bytes_of(entry);
            found.push(Victim { key: key.into(), entry, bytes, stays });
            left = left.saturating_sub(bytes);
            if left == 0 {
                break;
            }
        }
        found
    }

    /// What becomes of keys of the partition in a migration.
    pub fn fates(&self, state: &State<D>, which: Victims) -> impl Fn(&[u8], Entry) -> Fate {
        let (pinned_pct, copied_pct) = (self.pinned_pct(), self.copied_pct());
        let pinned = self.threshold(pinned_pct);
        let copied = (copied_pct > pinned_pct).then(|| self.threshold(copied_pct));
        // As many writes ago as a share of what the fast tier holds: what was not written since, is not written soon.
        let fast_keys = state.index.len() as u64 * state.partitions as u64;
        let lately = self.clock.last().saturating_sub(fast_keys / LATELY);
        move |key, entry| {
            if entry.is_clean() || entry.is_stuck() {
                return Fate::Stays;
            }
            match which {
                Victims::All => Fate::Leaves,
                Victims::Tombstones | Victims::Unpopular if entry.is_tombstone() => Fate::Leaves,
                Victims::Tombstones | Victims::None => Fate::Stays,
                Victims::Unpopular => {
                    let popularity = self.tracker.popularity(hash_of(key));
                    if pinned.pins(popularity) {
                        if entry.seqno < lately { Fate::IsCopied } else { Fate::Stays }
                    } else if copied.is_some_and(|copied| copied.pins(popularity)) {
                        // As if a read of it had brought it back.
                        Fate::IsCopied
                    } else {
                        Fate::Leaves
                    }
                }
            }
        }
    }

    /// Bytes of the slots of `entry`.
    pub fn bytes_of(&self, entry: Entry) -> u64 {
        let head = self.heap.slabs.slot_bytes(entry.at()).unwrap_or(0);
        let parts =
            if entry.is_long() { self.heap.head(entry.at()).map_or(0, |head| head.value_len) } else { 0 };
        head + parts as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::rig::{self, Store};
    use tierdb_engine::Engine;

    #[test]
    fn what_is_popular_is_copied_when_a_quarter_of_the_keys_was_written_since() {
        const POOL: u64 = 260 << 10;
        let store = Store::new(POOL, Options { partitions: 8, pinned_pct: Some(100), ..rig::options(POOL) });
        (0..100).for_each(|key| store.put(&[key], 700));
        for key in [0, 99] {
            store.engine.get(&[key]).expect("whole").expect("there");
        }
        assert_eq!(store.core().router.read().parts.len(), 1, "there are fewer than were asked for");
        let part = store.part();
        let state = part.read();
        let fate = store.core().fates(&state, Victims::Unpopular);
        let of = |key: u8| fate(&[key], state.index.get(&[key]).expect("there"));
        assert_eq!((of(0), of(99), of(1)), (Fate::IsCopied, Fate::Stays, Fate::Leaves));
    }
}
