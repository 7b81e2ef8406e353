//! A check of a whole table: every byte of the file is read and compared with something.

use crate::entry::EntryRef;
use crate::footer::{Footer, chain, chain_start};
use crate::iter::Bounds;
use crate::table::{Table, pages_of};
use std::cmp::Ordering;
use std::ops::{Bound, Range};
use tierdb_base::{Location, Result, Seqno, matches};
use tierdb_device::{AlignedBuf, BlockFile, Cause};

/// Bytes read at once.
const READ: u64 = 256 << 10;

/// One damaged place of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What was found wrong.
    pub what: String,
    /// Where.
    pub place: Location,
    /// The keys that it concerns. `None` where no key does: the table answers as before.
    pub keys: Option<Bounds>,
}

/// What a check of a table found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Entries in blocks that are whole.
    pub entries: u64,
    /// Distinct keys among them.
    pub keys: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What is damaged, in the order of the file. Empty means the table is whole.
    pub damage: Vec<Damage>,
}

struct Check<'t, F: BlockFile> {
    table: &'t Table<F>,
    cause: Cause,
    report: VerifyReport,
    /// The checksum chained over the file up to this byte; `None` once bytes could not be read.
    sum: Option<u64>,
    summed: u64,
    /// The entry before, once there is one.
    last: Option<Seqno>,
    last_key: Vec<u8>,
    tombstones: u64,
    pages: AlignedBuf,
}

impl<F: BlockFile> Table<F> {
    /// Reads and checks all of the file: blocks, the order of their entries, that index and filter lead to each of
    /// them, the copies of index, filter and footer in the file, what lies between, and the counts.
    ///
    /// Damage is in the report, also of places that cannot be read. Reads the file once, in turns of 256 KiB.
    ///
    /// # Errors
    /// Only where there is no memory for the check.
    pub fn verify(&self, cause: Cause) -> Result<VerifyReport> {
        let mut check = Check {
            table: self,
            cause,
            report: VerifyReport::default(),
            sum: Some(chain_start(self.id())),
            summed: 0,
            last: None,
            last_key: Vec::new(),
            tombstones: 0,
            pages: AlignedBuf::default(),
        };
        check.blocks()?;
        check.parts()?;
        check.footer()?;
        check.counts();
        Ok(check.report)
    }
}

impl<F: BlockFile> Check<'_, F> {
    fn damage(&mut self, what: impl Into<String>, at: u64, keys: Option<Bounds>) {
        let place = self.table.place(at);
        self.report.damage.push(Damage { what: what.into(), place, keys });
    }

    fn damaged_block(&mut self, what: impl Into<String>, block: usize) {
        let (from, end) = self.table.keys_of(block);
        self.damage(what, self.table.index().place(block).start, Some((Bound::Included(from), end)));
    }

    /// Reads `pages`, and chains those of them that are new. What went wrong in words, where they cannot be read.
    /// The buffer is to be given back.
    fn read(&mut self, pages: &Range<u64>) -> Result<Result<AlignedBuf, String>> {
        let mut buf = std::mem::take(&mut self.pages);
        buf.resize((pages.end - pages.start) as usize)?;
        let read = self.table.file().read(pages.start, &mut buf, self.cause);
        if let Err(error) = read {
            return Ok(Err(error.to_string()));
        }
        // Neighbours may share a page: it is counted and chained once.
        let known = self.summed.clamp(pages.start, pages.end) - pages.start;
        if self.summed < pages.start {
            self.sum = None;
        }
        self.sum = self.sum.map(|sum| chain(sum, &buf[known as usize..]));
        self.summed = pages.end;
        self.report.bytes += buf.len() as u64 - known;
        Ok(Ok(buf))
    }

    fn blocks(&mut self) -> Result<()> {
        let index = self.table.index();
        let mut first = 0;
        let mut alone = false;
        while first < index.blocks() {
            let start = index.place(first).start;
            let mut end = first + 1;
            while !alone && end < index.blocks() && index.place(end).end - start <= READ {
                end += 1;
            }
            let pages = pages_of(&(start..index.place(end - 1).end));
            match self.read(&pages)? {
                Ok(buf) => {
                    for block in first..end {
                        let skip = (self.table.extent(block).start - pages.start) as usize;
                        self.block(&buf[skip..], block);
                    }
                    self.pages = buf;
                }
                // Some of these blocks may be readable by themselves.
                Err(_) if !alone && end > first + 1 => {
                    alone = true;
                    continue;
                }
                Err(what) => self.damaged_block(what, first),
            }
            first = end;
        }
        Ok(())
    }

    fn block(&mut self, pages: &[u8], number: usize) {
        let table = self.table;
        let block = match table.block_in(pages, number) {
            Ok(block) => block,
            Err(what) => return self.damaged_block(what, number),
        };
        let index = table.index();
        let (from, end) = table.keys_of(number);
        let mut key = Vec::new();
        for slot in 0..block.count() {
            let entry = match block.entry(slot, &mut key) {
                Ok(entry) => entry,
                Err(what) => return self.damaged_block(what, number),
            };
            let last = self.last.map(|seqno| EntryRef { key: &self.last_key, seqno, value: None });
            let inside = entry.key >= from.as_slice()
                && match &end {
                    Bound::Included(end) => entry.key <= end.as_slice(),
                    Bound::Excluded(end) => entry.key < end.as_slice(),
                    Bound::Unbounded => true,
                };
            let what = if last.is_some_and(|last| last.order(&entry) != Ordering::Less) {
                "entries are out of order"
            } else if !inside || index.find(entry.key, entry.seqno) != Some(number) {
                "the index does not lead to an entry"
            } else if table.filter().is_some_and(|filter| !filter.may_contain(entry.key)) {
                "the filter rules out a key that is there"
            } else {
                ""
            };
            self.report.entries += 1;
            self.report.keys += u64::from(last.is_none_or(|last| last.key != entry.key));
            self.tombstones += u64::from(entry.value.is_none());
            self.last = Some(entry.seqno);
            self.last_key.clear();
            self.last_key.extend_from_slice(entry.key);
            if !what.is_empty() {
                return self.damaged_block(what, number);
            }
        }
    }

    /// The copies of index and filter in the file, and what lies around them.
    fn parts(&mut self) -> Result<()> {
        let footer = self.table.footer();
        if let Some(error) = self.table.filter_damage() {
            self.damage(error.to_string(), footer.blocks_len + footer.index_len, None);
        }
        // A page between the last block and the index that none of them shares was never read.
        let (mut start, end) = (self.summed.min(footer.blocks_len), footer.at());
        let (at, index) = (footer.blocks_len, self.table.index().bytes());
        let mut read = self.read(&(start..end))?;
        if read.is_err() && start < at && !self.report.damage.is_empty() {
            // Of a block that could not be read either.
            start = at;
            read = self.read(&(start..end))?;
        }
        match read {
            Err(what) => self.damage(what, at, None),
            Ok(buf) => {
                let parts = &buf[(at - start) as usize..];
                let (stored, rest) = parts.split_at(footer.index_len as usize);
                if stored != index {
                    self.damage("the index in the file is not the one in use", at, None);
                }
                let filter = self.table.filter().map(|filter| filter.bytes());
                if filter.is_some_and(|filter| !rest.starts_with(filter)) {
                    let at = at + footer.index_len;
                    self.damage("the filter in the file is not the one in use", at, None);
                }
            }
        }
        Ok(())
    }

    fn footer(&mut self) -> Result<()> {
        let footer = self.table.footer();
        let sum = self.sum;
        let at = footer.at();
        match self.read(&(at..footer.file_len))? {
            Err(what) => self.damage(what, at, None),
            Ok(buf) => {
                if Footer::decode(&buf, self.table.id(), &self.table.place(at)).ok().as_ref() != Some(footer)
                {
                    self.damage("the footer in the file is not the one in use", at, None);
                }
            }
        }
        // Where damage was found before, the sum says nothing new.
        let differs = sum.is_none_or(|sum| !matches(footer.file_checksum, sum));
        if differs && self.report.damage.is_empty() {
            self.damage("bytes that belong to no block have changed", 0, None);
        }
        Ok(())
    }

    fn counts(&mut self) {
        let footer = self.table.footer();
        let found = (self.report.entries, self.report.keys, self.tombstones);
        if self.report.damage.is_empty() && found != (footer.entries, footer.keys, footer.tombstones) {
            let what =
                format!("{found:?} entries, keys and tombstones are there, but not those of the footer");
            self.damage(what, footer.at(), None);
        }
    }
}
