//! Entries of a range of a table, in one direction, with read-ahead.

use crate::block::{Block, Flaw, Shape};
use crate::entry::EntryRef;
use crate::merge::Source;
use crate::table::{Table, pages_of};
use std::cmp::Ordering;
use std::mem;
use std::ops::{Bound, Range};
use std::sync::Arc;
use tierdb_base::{Error, Result, Seqno};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Cause, FileRead, Metered};

/// Which way entries are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Keys ascend; of one key the newest version comes first.
    Forward,
    /// Keys descend; of one key the oldest version comes first.
    Backward,
}

/// How much is read at once, in bytes: `first` to begin with, doubled with each read up to `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAhead {
    /// The first read. Default 16 KiB.
    pub first: u64,
    /// The largest read. Default 256 KiB.
    pub most: u64,
}

impl Default for ReadAhead {
    fn default() -> Self {
        ReadAhead { first: 16 << 10, most: 256 << 10 }
    }
}

/// A range of keys as an iterator holds it.
pub(crate) type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

#[derive(Clone, Debug)]
enum State {
    /// Before its first entry.
    Fresh,
    /// At an entry.
    At,
    /// Behind its last entry.
    Done,
    /// Fails for good.
    Failed(Error),
}

/// Entries of a range of a table. Holds the table; reads several blocks at a time, and none beyond the range.
///
/// A range whose bounds are reversed is empty. After an error it stays, and gives the error again.
pub struct TableIter<F: BlockFile> {
    table: Arc<Table<F>>,
    bounds: Bounds,
    direction: Direction,
    cause: Cause,
    most: u64,
    /// Bytes that the next read is to have.
    next_read: u64,
    state: State,
    /// Pages read last, the offset of the first, and the blocks that lie in them wholly.
    window: AlignedBuf,
    window_at: u64,
    blocks: Range<usize>,
    /// The last block that the range reaches in its direction.
    last_block: usize,
    /// The block it is in, where that begins in the window, and what its header says.
    block: usize,
    block_at: usize,
    shape: Shape,
    /// The entry it is at.
    entry: usize,
    key: Vec<u8>,
    seqno: Seqno,
    value: Option<Range<usize>>,
    /// The key of the entry before.
    before: Vec<u8>,
}

impl<F: BlockFile> Table<F> {
    /// The entries whose keys lie in `bounds`, in this direction. Reads nothing before its first
    /// [`Source::advance`], unless [`TableIter::read_first`] does.
    pub fn iter(
        self: &Arc<Self>,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        ahead: ReadAhead,
        cause: Cause,
    ) -> TableIter<F> {
        TableIter {
            table: self.clone(),
            bounds: (bounds.0.map(<[u8]>::to_vec), bounds.1.map(<[u8]>::to_vec)),
            direction,
            cause,
            most: ahead.most.max(BLOCK),
            next_read: ahead.first.max(BLOCK),
            state: State::Fresh,
            window: AlignedBuf::default(),
            window_at: 0,
            blocks: 0..0,
            last_block: 0,
            block: 0,
            block_at: 0,
            shape: Shape::default(),
            entry: 0,
            key: Vec::new(),
            seqno: 0,
            value: None,
            before: Vec::new(),
        }
    }
}

fn above(start: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match start {
        Bound::Included(start) => key >= start.as_slice(),
        Bound::Excluded(start) => key > start.as_slice(),
        Bound::Unbounded => true,
    }
}

fn below(end: &Bound<Vec<u8>>, key: &[u8]) -> bool {
    match end {
        Bound::Included(end) => key <= end.as_slice(),
        Bound::Excluded(end) => key < end.as_slice(),
        Bound::Unbounded => true,
    }
}

impl<F: BlockFile> TableIter<F> {
    /// The table it reads.
    pub fn table(&self) -> &Arc<Table<F>> {
        &self.table
    }

    fn block(&self) -> Block<'_> {
        Block::with_shape(&self.window[self.block_at..], self.shape)
    }

    /// The blocks that may have entries of the range: the first one in its direction, and the last one.
    fn reach(&self) -> Option<(usize, usize)> {
        let index = self.table.index();
        // The block in which a bound lies; for one that is excluded below, or included above, behind all
        // versions of the key.
        let floor = |bound: &Bound<Vec<u8>>, newest: Seqno| match bound {
            Bound::Included(key) | Bound::Excluded(key) => Some(index.floor(key, newest)),
            Bound::Unbounded => None,
        };
        let newest = |skip: bool| if skip { 0 } else { Seqno::MAX };
        let (start, end) = &self.bounds;
        let first =
            floor(start, newest(matches!(start, Bound::Excluded(_)))).map_or(0, |block| block.unwrap_or(0));
        let last =
            floor(end, newest(matches!(end, Bound::Included(_)))).unwrap_or(Some(index.blocks() - 1))?;
        if first > last {
            return None;
        }
        Some(if self.direction == Direction::Forward { (first, last) } else { (last, first) })
    }

    /// Reads what each of `iters` needs for its first entry, and what it reads ahead with that, with all reads in flight at once.
    /// Those that were advanced before are left as they are. All have the same cause.
    ///
    /// Of one that cannot be read its own first `advance` says so, after it has tried once more.
    pub fn read_first(iters: &mut [&mut Self]) {
        let Some(cause) = iters.first().map(|iter| iter.cause) else { return };
        let tables: Vec<_> = iters.iter().map(|iter| iter.table.clone()).collect();
        let (mut wanted, mut reads) = (Vec::new(), Vec::new());
        for (iter, table) in iters.iter_mut().zip(&tables) {
            assert!(iter.cause == cause, "they have the same cause");
            let State::Fresh = iter.state else { continue };
            let Some((first, last)) = iter.reach() else { continue };
            iter.last_block = last;
            let (blocks, pages) = iter.span(first);
            let Ok(buf) = AlignedBuf::zeroed((pages.end - pages.start) as usize) else { continue };
            reads.push(FileRead { file: table.file(), at: pages.start, buf });
            wanted.push((iter, blocks));
        }
        let outcomes = Metered::read_many(&mut reads, cause);
        for (((iter, blocks), read), outcome) in wanted.into_iter().zip(reads).zip(outcomes) {
            if outcome.is_ok() {
                iter.window = read.buf;
                iter.has_read(blocks, read.at);
            }
        }
    }

    /// Goes to the first entry in its direction.
    fn start(&mut self) -> Result<()> {
        let Some((first, last)) = self.reach() else {
            self.state = State::Done;
            return Ok(());
        };
        self.last_block = last;
        self.load(first)?;
        let forward = self.direction == Direction::Forward;
        // The number of entries of this block that lie before the place where the range begins.
        let bound = if forward { self.bounds.0.clone() } else { self.bounds.1.clone() };
        let before = match &bound {
            Bound::Unbounded if forward => 0,
            Bound::Unbounded => self.shape.count,
            Bound::Included(key) if forward => self.lower_bound(key, Seqno::MAX)?,
            Bound::Excluded(key) if !forward => self.lower_bound(key, Seqno::MAX)?,
            // Behind the last version, which is at 0 at the least.
            Bound::Included(key) | Bound::Excluded(key) => self.behind(key)?,
        };
        if forward { self.forward_to(before) } else { self.backward_from(before) }
    }

    fn damage(&self, what: Flaw) -> Error {
        self.table.block_damage(what, self.block)
    }

    fn lower_bound(&self, key: &[u8], seqno: Seqno) -> Result<usize> {
        self.block().lower_bound(key, seqno).map_err(|what| self.damage(what))
    }

    /// The first entry of the block behind all versions of `key`.
    fn behind(&mut self, key: &[u8]) -> Result<usize> {
        let mut entry = self.lower_bound(key, 0)?;
        while entry < self.shape.count {
            self.take(entry)?;
            if self.key != key {
                break;
            }
            entry += 1;
        }
        Ok(entry)
    }

    /// Goes to entry `entry` of the block, or to the first of the next.
    fn forward_to(&mut self, entry: usize) -> Result<()> {
        let entry = if entry < self.shape.count {
            entry
        } else if self.block < self.last_block {
            self.load(self.block + 1)?;
            0
        } else {
            self.state = State::Done;
            return Ok(());
        };
        self.take(entry)?;
        self.state = if below(&self.bounds.1, &self.key) { State::At } else { State::Done };
        Ok(())
    }

    /// Goes to the entry before entry `entry` of the block, or to the last of the block before.
    fn backward_from(&mut self, entry: usize) -> Result<()> {
        let entry = if entry > 0 {
            entry - 1
        } else if self.block > self.last_block {
            self.load(self.block - 1)?;
            self.shape.count - 1
        } else {
            self.state = State::Done;
            return Ok(());
        };
        self.take(entry)?;
        self.state = if above(&self.bounds.0, &self.key) { State::At } else { State::Done };
        Ok(())
    }

    /// Takes key, seqno and place of the value from entry `entry` of the block.
    fn take(&mut self, entry: usize) -> Result<()> {
        let mut key = mem::take(&mut self.key);
        let block = self.block();
        let slot = block.slot(entry).map_err(|what| self.damage(what))?;
        block.key_of(&slot, &mut key);
        self.key = key;
        self.seqno = slot.seqno;
        self.value = slot.value.map(|value| self.block_at + value.start..self.block_at + value.end);
        self.entry = entry;
        Ok(())
    }

    /// Makes `block` the current one, reading it and others ahead if need be.
    fn load(&mut self, block: usize) -> Result<()> {
        self.block = block;
        if !self.blocks.contains(&block) {
            self.read(block)?;
        }
        if self.decode().is_err() {
            // Read once more, this block alone, for what went wrong on the way.
            self.next_read = BLOCK;
            self.read(block)?;
            self.decode().map_err(|what| self.damage(what))?;
        }
        Ok(())
    }

    fn decode(&mut self) -> Result<(), Flaw> {
        let place = self.table.index().place(self.block);
        self.block_at = (place.start - self.window_at) as usize;
        let bytes = &self.window[self.block_at..self.block_at + (place.end - place.start) as usize];
        let block = Block::decode(bytes, self.table.id(), place.start)?;
        self.shape = block.shape();
        // Footer and index may be on another medium, of which this table is not the latest of its number.
        let mut key = mem::take(&mut self.key);
        let covered = [0, block.count() - 1].iter().try_fold(true, |covered, entry| {
            block.key_of(&block.slot(*entry)?, &mut key);
            Ok(covered && self.table.footer().covers(&key))
        });
        self.key = key;
        if covered? { Ok(()) } else { Err("a block has keys that are none of its table's") }
    }

    /// Goes to the entry behind the one that it is at, in its direction.
    fn next(&mut self) -> Result<()> {
        mem::swap(&mut self.key, &mut self.before);
        let (seqno, forward) = (self.seqno, self.direction == Direction::Forward);
        if forward {
            self.forward_to(self.entry + 1)?
        } else {
            self.backward_from(self.entry)?
        }
        let before = EntryRef { key: &self.before, seqno, value: None };
        let in_order = if forward { Ordering::Less } else { Ordering::Greater };
        match self.entry() {
            Some(now) if before.order(&now) != in_order => Err(self.damage("entries are out of order")),
            _ => Ok(()),
        }
    }

    /// `block`, and those behind it in its direction that the next read has room for, with the pages that they lie in.
    fn span(&self, block: usize) -> (Range<usize>, Range<u64>) {
        let index = self.table.index();
        let (mut blocks, mut pages) = (block..block + 1, pages_of(&index.place(block)));
        loop {
            let next = match self.direction {
                Direction::Forward if blocks.end <= self.last_block => blocks.start..blocks.end + 1,
                Direction::Backward if blocks.start > self.last_block => blocks.start - 1..blocks.end,
                _ => return (blocks, pages),
            };
            let more = pages_of(&(index.place(next.start).start..index.place(next.end - 1).end));
            if more.end - more.start > self.next_read {
                return (blocks, pages);
            }
            (blocks, pages) = (next, more);
        }
    }

    /// Reads `block`, and those behind it in its direction that the next read has room for.
    fn read(&mut self, block: usize) -> Result<()> {
        let (blocks, pages) = self.span(block);
        // What is in the window is of no use from here on, and after a failed read it is not known.
        self.blocks = 0..0;
        self.window.resize((pages.end - pages.start) as usize)?;
        self.table.file().read(pages.start, &mut self.window, self.cause)?;
        self.has_read(blocks, pages.start);
        Ok(())
    }

    /// The window has these blocks, and begins at `at`.
    fn has_read(&mut self, blocks: Range<usize>, at: u64) {
        (self.window_at, self.blocks) = (at, blocks);
        self.next_read = (self.next_read * 2).min(self.most);
    }
}

impl<F: BlockFile> Source for TableIter<F> {
    fn entry(&self) -> Option<EntryRef<'_>> {
        let State::At = self.state else { return None };
        let value = self.value.clone().map(|range| &self.window[range]);
        Some(EntryRef { key: &self.key, seqno: self.seqno, value })
    }

    fn advance(&mut self) -> Result<()> {
        let done = match &self.state {
            State::Fresh => self.start(),
            State::At => self.next(),
            State::Done => Ok(()),
            State::Failed(error) => Err(error.clone()),
        };
        done.inspect_err(|error| self.state = State::Failed(error.clone()))
    }
}
