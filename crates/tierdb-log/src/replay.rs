//! Reading the log at open: replay up to the first block that does not check, and the search for blocks
//! after it.
//!
//! The first block that does not check is the one that was in flight at a crash, or was never written: nothing
//! after it was acknowledged. Unless a block with a higher sequence number is whole anywhere on the ring: then it
//! had been written before that one, and the device has lost it. Blocks of earlier laps have lower
//! sequence numbers, so they raise no alarm, and neither do the remains of a torn block.

use crate::block::{Cursor, Entries, HEADER, Header};
use crate::dirty::DirtyPages;
use crate::log::{Ring, push_mark};
use std::collections::VecDeque;
use tierdb_base::{Error, Location, Result, TierRole};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Cause, Metered};
use tierdb_pmem::Arena;

/// Bytes read at once, if the largest block is not larger.
const WINDOW: u64 = 1 << 20;

/// The ring's bytes, a window at a time.
struct Reader<'l, F> {
    file: &'l Metered<F>,
    ring: Ring,
    /// Byte of the file where the window starts.
    start: u64,
    window: AlignedBuf,
    filled: u64,
}

impl<'l, F: BlockFile> Reader<'l, F> {
    fn new(file: &'l Metered<F>, ring: Ring) -> Result<Self> {
        Ok(Reader { file, ring, start: 0, window: AlignedBuf::zeroed(0)?, filled: 0 })
    }

    /// At least `len` bytes of the file from `at`, fewer only at the end of the ring.
    fn at(&mut self, at: u64, len: u64) -> Result<&[u8]> {
        let len = len.min(self.ring.len - at);
        if at < self.start || at + len > self.start + self.filled {
            let size = WINDOW.max(len).min(self.ring.len - at);
            self.filled = 0;
            if self.window.len() as u64 != size {
                self.window = AlignedBuf::zeroed(size as usize)?;
            }
            self.file.read(at, &mut self.window, Cause::Recovery)?;
            (self.start, self.filled) = (at, size);
        }
        Ok(&self.window[(at - self.start) as usize..self.filled as usize])
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
        Ok(header.checks(block, seed).then(|| (header, &block[HEADER..HEADER + header.length as usize])))
    }
}

/// The log as it was found.
pub(crate) struct Replayed {
    /// After the last block that was replayed.
    pub(crate) head: Cursor,
    /// Starts of blocks, as the log remembers them.
    pub(crate) marks: VecDeque<Cursor>,
}

/// Puts the entries of all blocks from `from` on `arena`, and marks their pages dirty.
pub(crate) fn replay<F: BlockFile>(
    file: &Metered<F>,
    ring: Ring,
    from: Cursor,
    seed: u64,
    arena: &Arena,
    dirty: &DirtyPages,
) -> Result<Replayed> {
    let mut reader = Reader::new(file, ring)?;
    let mut replayed = Replayed { head: from, marks: VecDeque::new() };
    // A ring cannot hold more than its length; blocks that claim to are damage that happens to check.
    while replayed.head.position - from.position < ring.len {
        let (head, at) = (replayed.head, ring.offset(replayed.head.position));
        let Some((header, payload)) = reader.block(at, seed, |header| header.continues(&head))? else {
            break;
        };
        let mut entries = 0;
        for entry in Entries::new(payload) {
            let inside = entry.ok().filter(|(at, bytes)| at + bytes.len() as u64 <= arena.len());
            let Some((at, bytes)) = inside else { break };
            arena.write(at, bytes);
            dirty.mark(at, bytes.len() as u64);
            entries += 1;
        }
        if entries != header.entries {
            return Err(Error::corrupt(
                TierRole::Fast,
                format!("log block {}: entry {entries} of {} is malformed", header.sequence, header.entries),
                Location::new(file.file().name(), at),
            ));
        }
        push_mark(&mut replayed.marks, head, ring);
        replayed.head = ring.after(&head, header.block_len(), u64::from(header.length), header.checksum);
    }
    Ok(replayed)
}

/// The whole block with the highest sequence number that is not below that of `tail`, if there is one
/// anywhere on the ring.
pub(crate) fn latest_after<F: BlockFile>(
    file: &Metered<F>,
    ring: Ring,
    tail: &Cursor,
    seed: u64,
) -> Result<Option<Header>> {
    let mut reader = Reader::new(file, ring)?;
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
