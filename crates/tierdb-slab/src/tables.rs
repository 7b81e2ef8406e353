//! The tables of one level of a partition, and what is in them.

use crate::bucket::Bucket;
use crate::live::LiveTable;
use std::ops::Bound;
use std::sync::Arc;
use tierdb_base::{Error, Result};
use tierdb_device::{Cause, Dir};
use tierdb_engine::KeyRange;
use tierdb_table::{Direction, EntryRef, ReadAhead, Source, TableIter};

/// Bytes of DRAM for a table, without its keys, its bucket, index and filter.
const TABLE_BYTES: u64 = 768;

/// The live tables of a level, by key.
pub struct TableSet<D: Dir> {
    tables: Vec<Arc<LiveTable<D>>>,
    /// Sums, so that who asks need not look at each table: there may be many thousands.
    memory: u64,
    keys: u64,
}

impl<D: Dir> TableSet<D> {
    /// Of these tables, whose key ranges are disjoint.
    pub fn new(mut tables: Vec<Arc<LiveTable<D>>>) -> Self {
        tables.sort_by(|a, b| a.smallest().cmp(b.smallest()));
        assert!(tables.windows(2).all(|pair| pair[0].largest() < pair[1].smallest()), "they are disjoint");
        let memory_of = |table: &Arc<LiveTable<D>>| {
            let keys = (table.smallest().len() + table.largest().len()) as u64;
            keys + table.bucket().map_or(0, Bucket::memory_bytes) + TABLE_BYTES
        };
        let memory = tables.iter().map(memory_of).sum();
        let keys = tables.iter().map(|table| table.footer().keys).sum();
        TableSet { tables, memory, keys }
    }

    /// The tables, in the order of their keys.
    pub fn tables(&self) -> &[Arc<LiveTable<D>>] {
        &self.tables
    }

    /// The table whose key range holds `key`.
    pub fn find(&self, key: &[u8]) -> Option<&Arc<LiveTable<D>>> {
        let after = self.tables.partition_point(|table| table.smallest() <= key);
        self.tables[..after].last().filter(|table| key <= table.largest())
    }

    /// Whether a table may hold a version of `key`. Reads the index of one table at the most.
    pub fn may_hold(&self, key: &[u8], cause: Cause) -> bool {
        self.find(key).is_some_and(|table| table.may_hold(key, cause))
    }

    /// Bytes of their files.
    pub fn file_bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.file_len()).sum()
    }

    /// The keys for which table `number` is merged: from its smallest up to the smallest of the next; the first one's
    /// range begins, and the last one's ends, with the partition's.
    pub fn range_of(&self, number: usize) -> KeyRange {
        let bound = |number: usize| self.tables.get(number).map(|table| table.smallest().to_vec());
        let start = if number == 0 { None } else { bound(number) };
        KeyRange {
            start: start.map_or(Bound::Unbounded, Bound::Included),
            end: bound(number + 1).map_or(Bound::Unbounded, Bound::Excluded),
        }
    }

    /// The number of the table in whose range `key` is ([`TableSet::range_of`]). There is a table.
    pub fn number_of(&self, key: &[u8]) -> usize {
        self.tables.partition_point(|table| table.smallest() <= key).saturating_sub(1)
    }

    /// The table in whose range `key` is, if there is any.
    pub fn range_holder(&self, key: &[u8]) -> Option<&Arc<LiveTable<D>>> {
        self.tables.get(self.number_of(key))
    }

    /// The number of `table`, if it is one of them.
    pub fn position(&self, table: &Arc<LiveTable<D>>) -> Option<usize> {
        let number = self.number_of(table.smallest());
        self.tables.get(number).filter(|there| Arc::ptr_eq(there, table)).map(|_| number)
    }

    /// The bucket in whose range `key` is, if there are any.
    pub fn bucket_of(&self, key: &[u8]) -> Option<&Bucket> {
        self.tables.first()?.bucket()?;
        self.range_holder(key)?.bucket()
    }

    /// The tables that have keys in `range`.
    pub fn overlapping(&self, range: &KeyRange) -> impl Iterator<Item = (usize, &Arc<LiveTable<D>>)> {
        // Their keys are disjoint, and in order.
        let from = self.tables.partition_point(|table| range.is_before(table.largest()));
        let tables = self.tables.iter().enumerate().skip(from);
        tables.take_while(|(_, table)| !range.is_after(table.smallest()))
    }

    /// The entries of the tables that have keys in `range`, in this direction; each table is read when it is reached.
    pub fn entries(&self, range: &KeyRange, direction: Direction, ahead: ReadAhead, cause: Cause) -> Walk<D> {
        let mut tables: Vec<_> = self.overlapping(range).map(|(_, table)| table.clone()).collect();
        if direction == Direction::Forward {
            tables.reverse();
        }
        Walk { rest: tables, current: None, failed: None, range: range.clone(), direction, ahead, cause }
    }

    /// Bytes of DRAM for the tables, without those of indexes and filters that are loaded.
    pub fn memory_bytes(&self) -> u64 {
        self.memory
    }

    /// The entries of all tables.
    pub fn keys(&self) -> u64 {
        self.keys
    }
}

/// The entries of tables whose key ranges are disjoint, one table after another.
pub struct Walk<D: Dir> {
    /// Those to come; the next one last.
    rest: Vec<Arc<LiveTable<D>>>,
    current: Option<TableIter<D::File>>,
    failed: Option<Error>,
    range: KeyRange,
    direction: Direction,
    ahead: ReadAhead,
    cause: Cause,
}

impl<D: Dir> Walk<D> {
    /// Reads what each of `walks`, none of them advanced yet, needs for its first entry, with all reads in flight at once.
    pub fn read_first(walks: &mut [Self]) {
        walks.iter_mut().for_each(Self::open_next);
        let mut opened: Vec<_> = walks.iter_mut().filter_map(|walk| walk.current.as_mut()).collect();
        TableIter::read_first(&mut opened);
    }

    /// Goes to the next table, before its first entry; to none behind the last one, and to none where it cannot be opened.
    fn open_next(&mut self) {
        self.current = None;
        let Some(next) = self.rest.pop() else { return };
        let bounds =
            (self.range.start.as_ref().map(Vec::as_slice), self.range.end.as_ref().map(Vec::as_slice));
        match next.table(self.cause) {
            Ok(table) => self.current = Some(table.iter(bounds, self.direction, self.ahead, self.cause)),
            Err(error) => self.failed = Some(error),
        }
    }
}

impl<D: Dir> Source for Walk<D> {
    fn entry(&self) -> Option<EntryRef<'_>> {
        self.current.as_ref().and_then(|current| current.entry())
    }

    fn advance(&mut self) -> Result<()> {
        loop {
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            if let Some(current) = &mut self.current {
                // One that failed stays the current one, and goes on failing.
                current.advance()?;
                if current.entry().is_some() {
                    return Ok(());
                }
            }
            if self.rest.is_empty() {
                self.current = None;
                return Ok(());
            }
            self.open_next();
        }
    }
}
