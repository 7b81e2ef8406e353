//! A table that is open for reading.

use crate::block::{Block, Flaw};
use crate::dir::{Parts, decode_parts};
use crate::entry::Found;
use crate::filter::Filter;
use crate::footer::Footer;
use crate::id::TableId;
use crate::index::Index;
use std::cell::Cell;
use std::ops::{Bound, Range};
use std::sync::Arc;
use tierdb_base::{Error, Location, Result, Seqno, TierRole, hex};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Cause, FileRead, Metered};

/// A table whose index and filter are in memory. Any number of threads may read it at once.
pub struct Table<F: BlockFile> {
    file: Metered<F>,
    name: Arc<str>,
    id: TableId,
    footer: Footer,
    index: Index,
    filter: Option<Filter>,
    filter_damage: Option<Error>,
}

/// Longest buffer that a thread keeps for its next lookup.
const KEPT: usize = 64 << 10;

thread_local! {
    static PAGES: Cell<AlignedBuf> = Cell::default();
}

/// The pages of the file that hold `place`.
pub(crate) fn pages_of(place: &Range<u64>) -> Range<u64> {
    place.start / BLOCK * BLOCK..place.end.next_multiple_of(BLOCK)
}

impl<F: BlockFile> Table<F> {
    pub(crate) fn new(
        file: Metered<F>,
        id: TableId,
        footer: Footer,
        index: &[u8],
        filter: &[u8],
    ) -> Result<Self> {
        let name = file.file().name();
        let (index, filter, filter_damage) = decode_parts(&id, &footer, &name, index, filter)?;
        Ok(Table { file, name, id, footer, index, filter, filter_damage })
    }

    /// Number of the table.
    pub fn number(&self) -> u64 {
        self.id.number
    }

    /// Which table it is.
    pub fn id(&self) -> &TableId {
        &self.id
    }

    /// Counts, key and seqno ranges, lengths.
    pub fn footer(&self) -> &Footer {
        &self.footer
    }

    /// Where each block is.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The filter, if the table has one that is whole.
    pub fn filter(&self) -> Option<&Filter> {
        self.filter.as_ref()
    }

    /// What is wrong with the filter, where it had to be left out.
    pub fn filter_damage(&self) -> Option<&Error> {
        self.filter_damage.as_ref()
    }

    /// Footer, index and filter as byte strings, to be kept elsewhere.
    pub fn parts(&self) -> Parts {
        Parts {
            footer: self.footer.encode(&self.id),
            index: self.index.bytes().to_vec(),
            filter: self.filter.as_ref().map_or(Vec::new(), |filter| filter.bytes().to_vec()),
        }
    }

    /// Bytes of memory that index and filter take.
    pub fn memory(&self) -> usize {
        self.index.bytes().len() + self.filter.as_ref().map_or(0, |filter| filter.bytes().len())
    }

    pub(crate) fn file(&self) -> &Metered<F> {
        &self.file
    }

    pub(crate) fn place(&self, at: u64) -> Location {
        Location::new(self.name.clone(), at)
    }

    /// The keys that can be in block `block`: from the first bound to the second.
    pub fn keys_of(&self, block: usize) -> (Vec<u8>, Bound<Vec<u8>>) {
        let end = if block + 1 == self.index.blocks() {
            Bound::Included(self.index.largest().to_vec())
        } else if self.index.continues(block + 1).is_some() {
            Bound::Included(self.index.separator(block + 1))
        } else {
            Bound::Excluded(self.index.separator(block + 1))
        };
        (self.index.separator(block), end)
    }

    /// Damage of block `block`, with the keys it concerns.
    pub(crate) fn block_damage(&self, what: Flaw, block: usize) -> Error {
        let (from, end) = self.keys_of(block);
        let from = hex::printable(&from);
        let keys = match end {
            Bound::Included(end) => format!("{from} to {}", hex::printable(&end)),
            Bound::Excluded(end) => format!("{from} to before {}", hex::printable(&end)),
            Bound::Unbounded => from,
        };
        let place = self.place(self.index.place(block).start);
        Error::Corrupt { tier: TierRole::Flash, what: what.into(), place, key: Some(keys) }
    }

    /// The only block in which the newest version of `key` not newer than `seqno` can be, where neither key range nor
    /// filter nor index rule it out. Reads nothing.
    pub fn locate(&self, key: &[u8], seqno: Seqno) -> Option<usize> {
        if !self.footer.covers(key) || self.filter.as_ref().is_some_and(|filter| !filter.may_contain(key)) {
            return None;
        }
        self.index.find(key, seqno)
    }

    /// The pages to read for block `block`: offset and length, multiples of 4,096.
    pub fn extent(&self, block: usize) -> Range<u64> {
        pages_of(&self.index.place(block))
    }

    /// Block `block` in `pages`, the bytes of [`Table::extent`].
    pub(crate) fn block_in<'b>(&self, pages: &'b [u8], block: usize) -> Result<Block<'b>, Flaw> {
        let place = self.index.place(block);
        let skip = (place.start % BLOCK) as usize;
        let bytes = pages.get(skip..skip + (place.end - place.start) as usize).unwrap_or_default();
        Block::decode(bytes, &self.id, place.start)
    }

    /// Looks `key` up in `pages`, the bytes of [`Table::extent`] for the block that [`Table::locate`] gave.
    ///
    /// # Errors
    /// `Corrupt`, with the range of keys that the damage concerns.
    pub fn search(&self, pages: &[u8], block: usize, key: &[u8], seqno: Seqno) -> Result<Option<Found>> {
        let found = self.block_in(pages, block).and_then(|block| block.get(key, seqno));
        let found = found.map_err(|what| self.block_damage(what, block))?;
        Ok(found.map(|version| version.to_found()))
    }

    /// The newest version of `key` that is not newer than `seqno`; a tombstone is a version.
    ///
    /// One read of the device, of one page for most entries; none where the key cannot be in the table. Bytes that
    /// do not check are read once more, for what went wrong on the way.
    ///
    /// # Errors
    /// `Io`; `Corrupt`, with the range of keys that the damage concerns.
    pub fn get(&self, key: &[u8], seqno: Seqno, cause: Cause) -> Result<Option<Found>> {
        let Some(block) = self.locate(key, seqno) else { return Ok(None) };
        let extent = self.extent(block);
        let len = (extent.end - extent.start) as usize;
        // Taken out while in use, so that an error leaves none behind; a long one is not kept.
        let mut pages = PAGES.take();
        pages.resize(len)?;
        self.file.read(extent.start, &mut pages, cause)?;
        let found = self.search(&pages, block, key, seqno).or_else(|_| {
            self.file.read(extent.start, &mut pages, cause)?;
            self.search(&pages, block, key, seqno)
        });
        if len <= KEPT {
            PAGES.set(pages);
        }
        found
    }

    /// As [`Table::get`] for each of `wanted`, with their reads in flight at once. One result for each, in their order.
    pub fn get_many(wanted: &[(&Self, &[u8], Seqno)], cause: Cause) -> Vec<Result<Option<Found>>> {
        let mut results: Vec<Result<Option<Found>>> = wanted.iter().map(|_| Ok(None)).collect();
        let (mut blocks, mut reads) = (Vec::new(), Vec::new());
        for (number, (table, key, seqno)) in wanted.iter().enumerate() {
            let Some(block) = table.locate(key, *seqno) else { continue };
            let extent = table.extent(block);
            match AlignedBuf::zeroed((extent.end - extent.start) as usize) {
                Ok(buf) => {
                    reads.push(FileRead { file: &table.file, at: extent.start, buf });
                    blocks.push((number, block));
                }
                Err(error) => results[number] = Err(error),
            }
        }
        let outcomes = Metered::read_many(&mut reads, cause);
        for (((number, block), read), outcome) in blocks.into_iter().zip(&reads).zip(outcomes) {
            let (table, key, seqno) = wanted[number];
            results[number] = outcome.and_then(|()| {
                let found = table.search(&read.buf, block, key, seqno);
                found.or_else(|_| table.get(key, seqno, cause))
            });
        }
        results
    }
}
