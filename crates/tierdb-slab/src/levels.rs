//! The tables of a partition, by level (PrismDB §4.1: one level below the fast tier, or more where that is small).
//!
//! Tables of one level have disjoint key ranges, those of two levels need not. Invariant: *a version of a key in a level is not newer
//! than any version of that key in a level above.* So whoever looks for a key asks the levels from the uppermost on ([`crate::unmerged`]),
//! and takes the first version that it may see; whoever says that there is none has asked all of them.

use crate::live::LiveTable;
use crate::tables::{TableSet, Walk};
use std::sync::Arc;
use tierdb_base::{Seqno, mutant};
use tierdb_device::{Cause, Dir};
use tierdb_engine::KeyRange;
use tierdb_table::{Direction, Merge, ReadAhead};

/// The number of a level; the one that the fast tier is merged into is [`FIRST`].
pub type Level = i8;
/// The uppermost. Those above the first one have what came from the fast tier without being merged with that.
pub const TOP: Level = -1;
/// The first level.
pub const FIRST: Level = 1;
/// The deepest that there can be.
pub const MOST: Level = 4;
/// How many there can be.
const COUNT: usize = index(MOST) + 1;

/// The place of a level among all.
const fn index(level: Level) -> usize {
    (level - TOP) as usize
}

/// The live tables of a partition.
pub struct Levels<D: Dir>([TableSet<D>; COUNT]);

impl<D: Dir> Levels<D> {
    /// Of these tables, each in its level.
    pub fn new(tables: Vec<Arc<LiveTable<D>>>) -> Self {
        let mut sorted: [Vec<_>; COUNT] = Default::default();
        for table in tables {
            sorted[index(table.level().clamp(TOP, MOST))].push(table);
        }
        Levels(sorted.map(TableSet::new))
    }

    /// The tables of `level`; of the first one if there is no such level.
    pub fn level(&self, level: Level) -> &TableSet<D> {
        self.0.get(index(level)).unwrap_or(&self.0[index(FIRST)])
    }

    /// The tables that the fast tier is merged with.
    pub fn first(&self) -> &TableSet<D> {
        self.level(FIRST)
    }

    /// The tables above the first level that have keys in `range`, those of a level before those of the next one.
    pub fn unmerged(&self, range: &KeyRange) -> impl Iterator<Item = &Arc<LiveTable<D>>> {
        self.0[..index(FIRST)].iter().flat_map(move |level| level.overlapping(range).map(|(_, table)| table))
    }

    /// All levels, with their numbers.
    pub fn all(&self) -> impl Iterator<Item = (Level, &TableSet<D>)> {
        (TOP..).zip(&self.0)
    }

    /// All tables, those of a level before those of the next one.
    pub fn tables(&self) -> impl Iterator<Item = &Arc<LiveTable<D>>> {
        self.0.iter().flat_map(TableSet::tables)
    }

    /// The tables whose key ranges hold `key`: those with the newer versions first.
    pub fn find(&self, key: &[u8]) -> impl Iterator<Item = &Arc<LiveTable<D>>> {
        self.0.iter().filter_map(move |level| level.find(key))
    }

    /// Whether a table may hold a version of `key`. Reads the index of one table of each level at the most.
    pub fn may_hold(&self, key: &[u8], cause: Cause) -> bool {
        self.first().may_hold(key, cause)
            || (self.may_hold_above(FIRST, key, cause) || self.may_hold_below(FIRST, key, cause))
                && mutant::keep("level")
    }

    /// The same, of tables below `level`.
    pub fn may_hold_below(&self, level: Level, key: &[u8], cause: Cause) -> bool {
        self.0.iter().skip(index(level) + 1).any(|level| level.may_hold(key, cause))
    }

    /// The same, of tables above `level`.
    pub fn may_hold_above(&self, level: Level, key: &[u8], cause: Cause) -> bool {
        self.0.iter().take(index(level)).any(|level| level.may_hold(key, cause))
    }

    /// Whether a lookup of `key` comes to `table` as it did when the tables were `then`: by the same ones.
    ///
    /// That `table` is still live is not enough. A newer version may have come to a level above it meanwhile.
    pub fn is_as(&self, then: &Levels<D>, key: &[u8], table: &Arc<LiveTable<D>>) -> bool {
        for (now, then) in self.0.iter().zip(&then.0) {
            let (now, then) = (now.find(key), then.find(key));
            let same = now.map(Arc::as_ptr) == then.map(Arc::as_ptr);
            if now.is_some_and(|now| Arc::ptr_eq(now, table)) {
                return same;
            }
            if !same && mutant::keep("level") {
                return false;
            }
        }
        false
    }

    /// The entries of the tables that have keys in `range`, in this direction. Where these are in several levels, each level's
    /// first ones are read here, all at once.
    pub fn entries(
        &self,
        range: &KeyRange,
        direction: Direction,
        ahead: ReadAhead,
        cause: Cause,
    ) -> Merge<Walk<D>> {
        let levels = self.0.iter().filter(|level| level.overlapping(range).next().is_some());
        let mut walks: Vec<_> = levels.map(|level| level.entries(range, direction, ahead, cause)).collect();
        if walks.len() > 1 {
            Walk::read_first(&mut walks);
        }
        Merge::new(walks, direction)
    }

    /// The version of `key` not newer than `seqno`, if a table has it with that very seqno and can be read.
    pub fn version(&self, key: &[u8], seqno: Seqno) -> Option<Vec<u8>> {
        for live in self.find(key) {
            let table = live.table(Cause::Foreground).ok()?;
            if let Some(found) = table.get(key, seqno, Cause::Foreground).ok()? {
                return found.value.filter(|_| found.seqno == seqno);
            }
        }
        None
    }

    /// Bytes of DRAM for the tables, without those of indexes and filters that are loaded.
    pub fn memory_bytes(&self) -> u64 {
        self.0.iter().map(TableSet::memory_bytes).sum()
    }

    /// The entries of all tables.
    pub fn keys(&self) -> u64 {
        self.0.iter().map(TableSet::keys).sum()
    }
}

#[cfg(test)]
mod tests;
