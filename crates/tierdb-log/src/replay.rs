//! Reading the log at open: replay up to the first block that does not check, and the search for blocks
//! after it.
//!
//! The first block that does not check is the one that was in flight at a crash, or was never written: nothing
//! after it was acknowledged. Unless a block with a higher sequence number is whole anywhere on the ring: then it
//! had been written before that one, and the device has lost it. Blocks of earlier laps have lower
//! sequence numbers, so they raise no alarm, and neither do the remains of a torn block.

use crate::block::{Cursor, Entries, HEADER, Header};
use crate::dirty::DirtyPages;
use crate::load::{Unreadable, was_read};
use crate::log::{Ring, push_mark};
use crate::memory::Memory;
use crate::store::Spare;
use std::collections::{BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use tierdb_base::{Error, Location, Result, TierRole};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Cause, Metered};

/// Bytes read at once: a sixteenth of the ring within these bounds, and the largest block at least, all of which are less than a ring. A
/// log that was closed has next to nothing to replay, and to make room for what a small one has would take longer than to read it.
const WINDOW: RangeInclusive<u64> = 64 << 10..=1 << 20;

/// The ring's bytes, a window at a time. In a salvage, blocks that cannot be read are zeros, which no block is.
pub(crate) struct Reader<'l, F> {
    file: &'l Metered<F>,
    ring: Ring,
    unreadable: &'l mut Unreadable,
    /// Where the blocks in it are: none is asked for twice, as a device may take seconds to refuse.
    refused: BTreeSet<u64>,
    /// Byte of the file where the window starts.
    start: u64,
    window: AlignedBuf,
    filled: u64,
}

impl<'l, F: BlockFile> Reader<'l, F> {
    pub(crate) fn new(file: &'l Metered<F>, ring: Ring, unreadable: &'l mut Unreadable) -> Result<Self> {
        // Rounded up to whole blocks by the buffer.
        let window = (ring.len / 16).clamp(*WINDOW.start(), *WINDOW.end());
        let window = AlignedBuf::zeroed(window.max(ring.largest) as usize)?;
        Ok(Reader { file, ring, unreadable, refused: BTreeSet::new(), start: 0, window, filled: 0 })
    }

    /// At least `len` bytes of the file from `at`, fewer only at the end of the ring.
    fn at(&mut self, at: u64, len: u64) -> Result<&[u8]> {
        let len = len.min(self.ring.len - at);
        if at < self.start || at + len > self.start + self.filled {
            let size = self.window.len() as u64;
            let start = at.min(self.ring.len - size);
            self.filled = 0;
            match self.file.read(start, &mut self.window, Cause::Recovery) {
                Err(_) if self.unreadable.is_some() => self.fill_by_blocks(start)?,
                read => read?,
            }
            (self.start, self.filled) = (start, size);
        }
        Ok(&self.window[(at - self.start) as usize..self.filled as usize])
    }

    /// Fills the window from `at` block by block, so that only those are lost that cannot be read.
    fn fill_by_blocks(&mut self, at: u64) -> Result<()> {
        let mut one = AlignedBuf::zeroed(BLOCK as usize)?;
        for (at, block) in (at..).step_by(BLOCK as usize).zip(self.window.chunks_exact_mut(BLOCK as usize)) {
            if !self.refused.contains(&at)
                && was_read(self.file.read(at, &mut one, Cause::Recovery), self.unreadable)?
            {
                block.copy_from_slice(&one);
            } else {
                self.refused.insert(at);
                block.fill(0);
            }
        }
        Ok(())
    }

    /// The whole block at `at`, if there is one that checks and `wanted` accepts its header.
    fn block(
        &mut self,
        at: u64,
        seed: u64,
        wanted: impl Fn(&Header) -> bool,
    ) -> Result<Option<(Header, &[u8])>> {
        let largest = self.ring.largest.min(self.ring.len - at);
        let Some(header) = Header::decode(self.at(at, BLOCK)?, largest) else { return Ok(None) };
        if !wanted(&header) {
            return Ok(None);
        }
        let block = self.at(at, header.block_len())?;
        Ok(header.checks(block, seed).then(|| (header, &block[..header.block_len() as usize])))
    }
}

/// A block that was found whole.
pub(crate) struct Block {
    pub(crate) at: Cursor,
    header: Header,
    bytes: AlignedBuf,
}

impl Block {
    /// Puts its entries on `memory`, and marks their pages dirty.
    ///
    /// # Errors
    /// `Corrupt` for an entry that is malformed or outside of the pool, with `place` as its place.
    pub(crate) fn apply<F: BlockFile>(
        &self,
        memory: &Memory<F>,
        dirty: &DirtyPages,
        place: &Location,
    ) -> Result<()> {
        let mut entries = 0;
        for entry in Entries::new(&self.bytes[HEADER..HEADER + self.header.length as usize]) {
            let inside = entry.ok().filter(|(at, bytes)| at + bytes.len() as u64 <= memory.len());
            let Some((at, bytes)) = inside else { break };
            memory.write(at, bytes)?;
            dirty.mark(at, bytes.len() as u64);
            entries += 1;
        }
        if entries == self.header.entries {
            return Ok(());
        }
        let Header { sequence, entries: all, .. } = self.header;
        let what = format!("log block {sequence}: entry {entries} of {all} is malformed");
        Err(Error::corrupt(TierRole::Fast, what, place.clone()))
    }

    /// A copy of it, to be stored with a table.
    pub(crate) fn spare(&self) -> Result<Spare> {
        Ok(Spare { sequence: self.header.sequence, block: AlignedBuf::from_bytes(&self.bytes)? })
    }
}

/// The log as it was found.
#[derive(Default)]
pub(crate) struct Replayed {
    /// After the last block.
    pub(crate) head: Cursor,
    /// Starts of blocks, as the log remembers them.
    pub(crate) marks: VecDeque<Cursor>,
    /// The last block, which was not applied: it may not be durable, so no page may hold what it says before that
    /// is mended.
    pub(crate) last: Option<Block>,
}

/// Applies all blocks from `from` but the last to `memory`. `spare` stands in for the block that it is a copy of.
pub(crate) fn replay<F: BlockFile>(
    reader: &mut Reader<'_, F>,
    from: Cursor,
    spare: Option<&Spare>,
    seed: u64,
    memory: &Memory<F>,
    dirty: &DirtyPages,
) -> Result<Replayed> {
    let (file, ring) = (reader.file, reader.ring);
    let mut replayed = Replayed { head: from, ..Replayed::default() };
    let place = |at: &Cursor| Location::new(file.file().name(), ring.offset(at.position));
    // A ring cannot hold more than its length; blocks that claim to are damage that happens to check.
    while replayed.head.position - from.position < ring.len {
        let at = replayed.head;
        let wanted = |header: &Header| header.continues(&at);
        let (header, bytes) = match (reader.block(ring.offset(at.position), seed, wanted)?, spare) {
            (Some((header, bytes)), _) => (header, bytes),
            (None, Some(spare)) => match Header::decode(&spare.block, ring.largest).filter(wanted) {
                Some(header) => (header, &spare.block[..]),
                None => break,
            },
            (None, None) => break,
        };
        let block = Block { at, header, bytes: AlignedBuf::from_bytes(bytes)? };
        push_mark(&mut replayed.marks, at, ring);
        replayed.head = ring.after(&at, header.block_len(), u64::from(header.length), header.checksum);
        if let Some(before) = replayed.last.replace(block) {
            before.apply(memory, dirty, &place(&before.at))?;
        }
    }
    Ok(replayed)
}

/// The whole block with the highest sequence number that is not below that of `tail`, if there is one
/// anywhere on the ring.
pub(crate) fn latest_after<F: BlockFile>(
    reader: &mut Reader<'_, F>,
    tail: &Cursor,
    seed: u64,
) -> Result<Option<Header>> {
    let ring = reader.ring;
    let mut latest: Option<Header> = None;
    for at in (0..ring.len).step_by(BLOCK as usize) {
        let least = latest.map_or(tail.sequence, |header| header.sequence + 1);
        let wanted = |h: &Header| h.sequence >= least && ring.offset(h.position) == at;
        if let Some((header, _)) = reader.block(at, seed, wanted)? {
            latest = Some(header);
        }
    }
    Ok(latest)
}
