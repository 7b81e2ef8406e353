//! The writer of a table: entries in, a durable file out.
//!
//! Blocks are packed as [`crate::block`] says: where at most 256 bytes of a page are left, they stay zeros, so
//! that small entries never need two pages; a larger entry may cross. So a lookup reads one page of 4,096
//! bytes for most entries, and a table wastes at most one part in sixteen.
//!
//! Memory: one block, twice 256 KiB of output, the largest value, the index so far (8 bytes and a separator a block), and
//! 8 bytes for each key for the filter (40 while it is made).

use crate::block;
use crate::dir::TableDir;
use crate::entry::EntryRef;
use crate::filter;
use crate::footer::{Footer, MAX_TABLE_BYTES, chain, chain_start};
use crate::id::TableId;
use crate::index;
use crate::table::Table;
use std::cmp::Ordering;
use tierdb_base::{Error, Result, Seqno, check_key, check_value, mutant};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Cause, Dir, Metered, OpenMode};

/// Bytes at the end of a page that are given up rather than let an entry cross it.
const WASTE: u64 = 256;
/// About how long the file of a table without entries is, in bytes.
pub const EMPTY_LEN: u64 = 3 * BLOCK;
/// Output is collected up to this before it is written.
const WRITE: usize = 128 << 10;

/// How a table is written.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Bytes to allocate at first, and then each time they are used up. Default 4 MiB; the length that is
    /// expected is best. What is not needed is given back at the end.
    pub allocate: u64,
    /// Whether the table gets a filter. Default `true`.
    pub filter: bool,
}

impl Default for WriterOptions {
    fn default() -> Self {
        WriterOptions { allocate: 4 << 20, filter: true }
    }
}

/// Writes one table. Dropped before [`Writer::finish`], it leaves a file that is not a table.
pub struct Writer<D: Dir> {
    tables: TableDir<D>,
    file: Metered<D::File>,
    id: TableId,
    cause: Cause,
    allocate: u64,
    /// Length of the file.
    allocated: u64,
    /// What is to be written from `written` on.
    out: Vec<u8>,
    /// Where it is copied to be written.
    pages: AlignedBuf,
    written: u64,
    /// Checksum of what was written.
    sum: u64,
    block: block::Builder,
    index: index::Builder,
    /// Hashes of all keys, where a filter is wanted.
    hashes: Option<Vec<u64>>,
    smallest: Vec<u8>,
    last_key: Vec<u8>,
    last_seqno: Seqno,
    entries: u64,
    tombstones: u64,
    keys: u64,
    data_bytes: u64,
    lowest_seqno: Seqno,
    highest_seqno: Seqno,
    /// The first failure; it stays.
    failed: Option<Error>,
}

impl<D: Dir> Writer<D> {
    pub(crate) fn create(
        tables: &TableDir<D>,
        number: u64,
        cause: Cause,
        options: &WriterOptions,
    ) -> Result<Self> {
        let file = tables.file(number, OpenMode::CreateNew)?;
        let id = tables.id(number);
        Ok(Writer {
            tables: tables.clone(),
            file,
            id,
            cause,
            allocate: options.allocate.clamp(BLOCK, MAX_TABLE_BYTES).next_multiple_of(BLOCK),
            allocated: 0,
            out: Vec::new(),
            pages: AlignedBuf::default(),
            written: 0,
            sum: chain_start(&id),
            block: block::Builder::default(),
            index: index::Builder::default(),
            hashes: options.filter.then(Vec::new),
            smallest: Vec::new(),
            last_key: Vec::new(),
            last_seqno: 0,
            entries: 0,
            tombstones: 0,
            keys: 0,
            data_bytes: 0,
            lowest_seqno: Seqno::MAX,
            highest_seqno: 0,
            failed: None,
        })
    }

    /// Number of the table.
    pub fn number(&self) -> u64 {
        self.id.number
    }

    /// Entries so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// About how long the file would be if it ended here, in bytes.
    pub fn file_len(&self) -> u64 {
        let index = (self.index.blocks() * 8 + self.index.key_bytes()) as u64;
        self.position() + self.block.raw_len() as u64 + index + self.keys * 5 / 4 + EMPTY_LEN
    }

    /// The key added last; empty if there is none.
    pub fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    fn position(&self) -> u64 {
        self.written + self.out.len() as u64
    }

    /// Takes the next entry: its key is above all before, or the same as the last with a lower seqno.
    ///
    /// # Errors
    /// `Invalid` and `TooLarge` (an entry out of order, a key or value over its limit, a file over
    /// [`MAX_TABLE_BYTES`]) change nothing. `Io`: the table is lost, and every later call fails with the same.
    pub fn add(&mut self, entry: &EntryRef<'_>) -> Result<()> {
        self.check(entry)?;
        let new_key = self.entries == 0 || self.last_key != entry.key;
        let room = BLOCK - self.position() % BLOCK;
        if !self.block.is_empty() && self.block.len_with(entry) as u64 > room {
            self.end_block()?;
        }
        if self.block.is_empty() {
            let room = BLOCK - self.position() % BLOCK;
            if room <= WASTE && self.block.len_with(entry) as u64 > room {
                self.pad_to(BLOCK as usize);
            }
            let last = (self.entries > 0).then_some((&self.last_key[..], self.last_seqno));
            self.index.push(self.position(), entry.key, last);
        }
        self.block.push(entry);
        if self.entries == 0 {
            self.smallest = entry.key.to_vec();
        }
        if new_key {
            self.last_key.clear();
            self.last_key.extend_from_slice(entry.key);
            self.keys += 1;
            if let Some(hashes) = &mut self.hashes {
                hashes.push(filter::hash_of(entry.key));
            }
        }
        self.last_seqno = entry.seqno;
        self.entries += 1;
        self.tombstones += u64::from(entry.value.is_none());
        self.data_bytes += (entry.key.len() + entry.value.map_or(0, <[u8]>::len)) as u64;
        self.lowest_seqno = self.lowest_seqno.min(entry.seqno);
        self.highest_seqno = self.highest_seqno.max(entry.seqno);
        Ok(())
    }

    fn check(&self, entry: &EntryRef<'_>) -> Result<()> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        check_key(entry.key)?;
        check_value(entry.value.unwrap_or_default())?;
        if self.entries > 0 {
            let last = EntryRef { key: &self.last_key, seqno: self.last_seqno, value: None };
            if last.order(entry) != Ordering::Less {
                return Err(Error::invalid(format!(
                    "entries of a table come in ascending order of keys, and of one key in descending order of \
                     seqnos; {} (seqno {}) does not come after {} (seqno {})",
                    tierdb_base::hex::printable(entry.key),
                    entry.seqno,
                    tierdb_base::hex::printable(&self.last_key),
                    self.last_seqno,
                )));
            }
        }
        let longest = entry.key.len() * 3 + entry.value.map_or(0, <[u8]>::len) + 4 * BLOCK as usize;
        let len = self.file_len() + longest as u64;
        if len > MAX_TABLE_BYTES {
            return Err(Error::TooLarge { what: "table", len, limit: MAX_TABLE_BYTES });
        }
        Ok(())
    }

    /// Pads the output with zeros to a multiple of `align` bytes of the file.
    fn pad_to(&mut self, align: usize) {
        // What was written are whole pages, so the output is aligned as the file is.
        self.out.resize(self.out.len().next_multiple_of(align), 0);
    }

    fn end_block(&mut self) -> Result<()> {
        let seed = self.id.seed_at(self.position());
        self.block.finish(&mut self.out, seed);
        self.pad_to(block::ALIGN);
        if self.out.len() < WRITE { Ok(()) } else { self.write_pages() }
    }

    /// Writes all whole pages of the output.
    fn write_pages(&mut self) -> Result<()> {
        let done = self.try_write_pages();
        done.map_err(|error| self.failed.insert(error).clone())
    }

    fn try_write_pages(&mut self) -> Result<()> {
        let len = self.out.len() / BLOCK as usize * BLOCK as usize;
        if len == 0 {
            return Ok(());
        }
        let end = self.written + len as u64;
        if end > self.allocated {
            let wanted = end.max(self.allocated + self.allocate);
            self.file.file().set_len(wanted)?;
            self.allocated = wanted;
        }
        self.pages.resize(len)?;
        self.pages.copy_from_slice(&self.out[..len]);
        if mutant::keep("write") {
            self.file.write(self.written, &self.pages, self.cause)?;
        }
        self.sum = chain(self.sum, &self.pages);
        self.written = end;
        self.out.drain(..len);
        Ok(())
    }

    /// Writes what is left, index, filter and footer, and returns when the file and its name are durable: one sync of
    /// the file, then one of the directory. The table can be read at once.
    ///
    /// # Errors
    /// `Invalid` for a table without entries; `Io`: after it, whether the file is whole is unknown, and nothing may
    /// refer to it.
    pub fn finish(mut self) -> Result<Table<D::File>> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if self.entries == 0 {
            return Err(Error::invalid("a table has at least one entry"));
        }
        self.end_block()?;
        let blocks = self.index.blocks() as u32;
        let index = std::mem::take(&mut self.index).encode(self.position(), &self.last_key, &self.id);
        let hashes = self.hashes.take().unwrap_or_default();
        let filter = filter::encode(hashes, &self.id).unwrap_or_default();
        self.pad_to(BLOCK as usize);
        let blocks_len = self.position();
        self.out.extend_from_slice(&index);
        self.out.extend_from_slice(&filter);
        self.pad_to(BLOCK as usize);
        self.write_pages()?;
        let mut footer = Footer {
            number: self.id.number,
            file_len: 0,
            blocks_len,
            index_len: index.len() as u64,
            filter_len: filter.len() as u64,
            blocks,
            entries: self.entries,
            tombstones: self.tombstones,
            keys: self.keys,
            data_bytes: self.data_bytes,
            lowest_seqno: self.lowest_seqno,
            highest_seqno: self.highest_seqno,
            smallest: std::mem::take(&mut self.smallest),
            largest: std::mem::take(&mut self.last_key),
            file_checksum: self.sum,
        };
        footer.file_len = self.position() + footer.stored_len() as u64;
        self.out.extend_from_slice(&footer.encode(&self.id));
        self.write_pages()?;
        if self.allocated != footer.file_len {
            self.file.file().set_len(footer.file_len)?;
        }
        self.file.sync(self.cause)?;
        self.tables.sync()?;
        Table::new(self.file, self.id, footer, &index, &filter)
    }

    /// Gives the table up and removes its file. After a crash the file may be there again.
    pub fn abandon(self) -> Result<()> {
        self.tables.remove(self.id.number)
    }
}
