//! What a migration is to merge: which tables, and which keys of the fast tier.

use crate::core::{Core, hash_of};
use crate::key::Key;
use crate::levels::{FIRST, Level, Levels};
use crate::live::LiveTable;
use crate::partition::{Entry, State, bounds};
use std::ops::Range;
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
    /// Only tombstones: flash must not grow.
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
    /// Whether it stays on the fast tier too.
    pub stays: bool,
}

/// What is merged: keys of a range, and the tables in it.
pub struct Plan<D: Dir> {
    /// The keys that come into `into`, from the fast tier or the level above. No table of that level but those below has any of them, nor
    /// one between them and the keys of these.
    pub range: KeyRange,
    /// The level that the new tables belong to.
    pub into: Level,
    /// Tables of that level, and of the one above; what of these is outside the range stays in their level.
    pub tables: Vec<Arc<LiveTable<D>>>,
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
        Plan { range: KeyRange { start: first.start, end: last.end }, into: level, tables }
    }

    /// Victims of the migration, in bytes, as a multiple of a table's.
    pub fn most_victims(&self) -> u64 {
        MOST_TABLES * self.tables.len().max(1) as u64
    }

    /// Whether its merge, without victims, is one of those that end with less on flash than before. A table of a fast device comes on top,
    /// unless it says that something was removed.
    pub fn ends_with_less(&self) -> bool {
        let is_less = |table: &Arc<LiveTable<D>>| !table.is_fast() || table.footer().tombstones > 0;
        self.into == FIRST || self.tables.iter().all(is_less)
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
        let mut left = plan.most_victims() * self.options.table_bytes;
        let mut found = Vec::new();
        for (key, entry) in state.index.range::<[u8], _>(bounds) {
            let stays = match fate(key, *entry) {
                Fate::Leaves => false,
                Fate::IsCopied => true,
                Fate::Stays => continue,
            };
            found.push(Victim { key: key.clone(), entry: *entry, stays });
            left = left.saturating_sub(self.bytes_of(*entry));
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
        let parts = u64::from(self.options.partitions);
        let lately = self.clock.last().saturating_sub(state.index.len() as u64 * parts / LATELY);
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
