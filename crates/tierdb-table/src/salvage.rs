//! What is left of a table whose index or footer is lost: the entries of all blocks that are whole.
//!
//! Blocks say how long they are and where they stand, so they are found without an index: at multiples of 64 bytes,
//! by their first bytes, and a block is believed only under its checksum.

use crate::block::{ALIGN, Block, HEADER, Shape, header_len};
use crate::dir::TableDir;
use crate::entry::EntryRef;
use crate::id::TableId;
use crate::merge::Source;
use std::ops::Range;
use tierdb_base::{Result, Seqno};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Cause, Dir, Metered, OpenMode};

/// Bytes read at once, where a block does not need more.
const READ: u64 = 256 << 10;

/// The entries of a file's whole blocks, in order. Damaged and unreadable places are skipped and listed.
pub struct Salvage<F: BlockFile> {
    file: Metered<F>,
    id: TableId,
    cause: Cause,
    /// Bytes of whole pages in the file.
    len: u64,
    window: AlignedBuf,
    window_at: u64,
    /// The block it is in, if any, and the entry of it.
    block: Option<(u64, Shape)>,
    entry: usize,
    /// Where the search goes on.
    at: u64,
    key: Vec<u8>,
    seqno: Seqno,
    value: Option<Range<usize>>,
    is_at: bool,
    blocks: u64,
    lost: Vec<Range<u64>>,
}

impl<D: Dir> TableDir<D> {
    /// What can be read of the file of table `number`, whole or not. Needs neither footer nor index.
    ///
    /// # Errors
    /// `Io` if the file cannot be opened.
    pub fn salvage(&self, number: u64, cause: Cause) -> Result<Salvage<D::File>> {
        let file = self.file(number, OpenMode::Existing)?;
        let len = file.file().len()? / BLOCK * BLOCK;
        Ok(Salvage {
            file,
            id: self.id(number),
            cause,
            len,
            window: AlignedBuf::default(),
            window_at: 0,
            block: None,
            entry: 0,
            at: 0,
            key: Vec::new(),
            seqno: 0,
            value: None,
            is_at: false,
            blocks: 0,
            lost: Vec::new(),
        })
    }
}

impl<F: BlockFile> Salvage<F> {
    /// Blocks found whole so far.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Bytes so far that are neither part of a whole block nor zeros between blocks. At the end of the file index,
    /// filter and footer are among them.
    pub fn lost(&self) -> &[Range<u64>] {
        &self.lost
    }

    /// Notes that `range`, of at least 64 bytes, is lost.
    fn lose(&mut self, range: Range<u64>) {
        match self.lost.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.lost.push(range),
        }
    }

    /// Whether bytes `at..at + len` are in the window, read if need be.
    fn fill(&mut self, at: u64, len: u64) -> bool {
        let end = at + len;
        if at >= self.window_at && end <= self.window_at + self.window.len() as u64 {
            return true;
        }
        let start = at / BLOCK * BLOCK;
        let least = end.next_multiple_of(BLOCK) - start;
        let wanted = least.max(READ).min(self.len - start);
        self.read(start, wanted) || (wanted > least && self.read(start, least))
    }

    fn read(&mut self, start: u64, len: u64) -> bool {
        self.window_at = start;
        let read = AlignedBuf::zeroed(len as usize).and_then(|mut buf| {
            self.file.read(start, &mut buf, self.cause)?;
            Ok(buf)
        });
        self.window = read.unwrap_or_default();
        !self.window.is_empty()
    }

    /// The bytes of the window from `at` on.
    fn bytes(&self, at: u64) -> &[u8] {
        &self.window[(at - self.window_at) as usize..]
    }

    /// The block at `at`, if one is there and whole.
    fn block_at(&mut self, at: u64) -> Option<Shape> {
        let seed = self.id.seed_at(at);
        let len = header_len(self.bytes(at), seed)? as u64;
        if len > self.len - at || !self.fill(at, len) {
            return None;
        }
        Some(Block::decode_seeded(self.bytes(at), seed).ok()?.shape())
    }

    /// Goes to the next whole block. `false` at the end of the file.
    fn next_block(&mut self) -> bool {
        self.block = None;
        while self.at < self.len {
            let at = self.at;
            if !self.fill(at, HEADER as u64) {
                let next = (at / BLOCK + 1) * BLOCK;
                self.lose(at..next);
                self.at = next;
                continue;
            }
            if let Some(shape) = self.block_at(at) {
                self.at = (at + shape.len as u64).next_multiple_of(ALIGN as u64);
                self.block = Some((at, shape));
                self.blocks += 1;
                return true;
            }
            self.at += ALIGN as u64;
            if self.fill(at, ALIGN as u64) && self.bytes(at)[..ALIGN].iter().any(|byte| *byte != 0) {
                self.lose(at..self.at);
            }
        }
        false
    }

    /// Takes the entry it is at from its block. `false` if that has no such entry.
    fn take(&mut self) -> bool {
        let Some((at, shape)) = self.block else { return false };
        if self.entry >= shape.count {
            return false;
        }
        let mut key = std::mem::take(&mut self.key);
        let skip = (at - self.window_at) as usize;
        let block = Block::with_shape(&self.window[skip..], shape);
        let taken = block.slot(self.entry).inspect(|slot| block.key_of(slot, &mut key));
        self.key = key;
        let Ok(slot) = taken else {
            // Its checksum holds and yet it is not a block: nothing in it is believed from here on.
            self.lose(at..at + shape.len as u64);
            return false;
        };
        self.seqno = slot.seqno;
        self.value = slot.value.map(|value| skip + value.start..skip + value.end);
        true
    }
}

impl<F: BlockFile> Source for Salvage<F> {
    fn entry(&self) -> Option<EntryRef<'_>> {
        if !self.is_at {
            // What was taken last may have been in another window.
            return None;
        }
        let value = self.value.clone().map(|range| &self.window[range]);
        Some(EntryRef { key: &self.key, seqno: self.seqno, value })
    }

    fn advance(&mut self) -> Result<()> {
        self.entry = if self.is_at { self.entry + 1 } else { 0 };
        self.is_at = self.take();
        while !self.is_at && self.next_block() {
            self.entry = 0;
            self.is_at = self.take();
        }
        Ok(())
    }
}
