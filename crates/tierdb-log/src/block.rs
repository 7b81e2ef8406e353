//! One log block: what one group commit writes. Little-endian; offsets from the start of the block.
//!
//! ```text
//!  0       8        12        16         24         32      40       44         48         56         64
//!  ├───────┼────────┼─────────┼──────────┼──────────┼───────┼────────┼──────────┼──────────┼──────────┤
//!  │ magic │ format │ entries │ sequence │ position │ lsn   │ length │ reserved │ previous │ checksum │ payload
//!  │ u64   │ u32    │ u32     │ u64      │ u64      │ u64   │ u32    │ u32      │ u64      │ xxh3-64  │ `length` bytes
//!  └───────┴────────┴─────────┴──────────┴──────────┴───────┴────────┴──────────┴──────────┴──────────┘
//!
//!  entry: at:48 length:16 (one word: at << 16 | length), then `length` bytes
//! ```
//!
//! * A block is padded to a multiple of 4,096 bytes. The padding is not checked.
//! * `sequence` counts blocks and never repeats among blocks that were written whole; `position` is where the
//!   block is, counted from the first byte ever written (the ring is `position % ring length`); `lsn` counts
//!   payload bytes.
//! * `checksum` is seeded with the store's identity and covers bytes 0..56 and the payload; `previous` is the
//!   checksum of the block before. So the blocks form a chain, and a block of another store, of another
//!   place or of an earlier lap does not continue it.
//!
//! Since format 1.

use crate::layout::{get_u32, get_u64, put_u32, put_u64};
use std::mem::offset_of;
use tierdb_base::{Result, checksum_parts, matches};
use tierdb_device::{AlignedBuf, BLOCK};

const MAGIC: u64 = u64::from_le_bytes(*b"TierLogB");
const FORMAT: u32 = 1;

/// Bytes of a block before its payload.
pub(crate) const HEADER: usize = size_of::<Header>();
/// Bytes of an entry before its content.
pub(crate) const ENTRY: usize = 8;
/// Most content of an entry: a multiple of 8, so that a longer range is cut between words.
pub(crate) const LARGEST_ENTRY: u64 = 0xfff8;

/// Positions, sequence numbers and LSNs grow by at most what was ever written, so a real one is far below this, and sums of what is below it with
/// lengths cannot overflow.
pub(crate) const COUNTER_END: u64 = 1 << 62;

/// The header, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Header {
    magic: u64,
    format: u32,
    pub(crate) entries: u32,
    pub(crate) sequence: u64,
    pub(crate) position: u64,
    pub(crate) lsn: u64,
    pub(crate) length: u32,
    reserved: u32,
    pub(crate) previous: u64,
    pub(crate) checksum: u64,
}

const _: () = {
    assert!(HEADER == 64);
    assert!(offset_of!(Header, entries) == 12);
    assert!(offset_of!(Header, sequence) == 16);
    assert!(offset_of!(Header, position) == 24);
    assert!(offset_of!(Header, lsn) == 32);
    assert!(offset_of!(Header, length) == 40);
    assert!(offset_of!(Header, previous) == 48);
    assert!(offset_of!(Header, checksum) == CHECKED);
};
/// Bytes of the header that the checksum covers.
const CHECKED: usize = 56;

/// Where the next block goes and what it continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Its position.
    pub(crate) position: u64,
    /// Its sequence number.
    pub(crate) sequence: u64,
    /// LSN of its first payload byte.
    pub(crate) lsn: u64,
    /// Checksum of the block before it.
    pub(crate) previous: u64,
}

/// Bytes on media of a block with `payload` bytes.
pub(crate) fn block_len(payload: usize) -> u64 {
    ((HEADER + payload) as u64).next_multiple_of(BLOCK)
}

/// Makes `block` the block at `at`, whatever it was before; returns its checksum.
pub(crate) fn encode(
    block: &mut AlignedBuf,
    at: &Cursor,
    seed: u64,
    entries: u32,
    payload: &[u8],
) -> Result<u64> {
    block.resize(HEADER + payload.len())?;
    let (header, rest) = block.split_at_mut(HEADER);
    header.fill(0);
    put_u64(header, offset_of!(Header, magic), MAGIC);
    put_u32(header, offset_of!(Header, format), FORMAT);
    put_u32(header, offset_of!(Header, entries), entries);
    put_u64(header, offset_of!(Header, sequence), at.sequence);
    put_u64(header, offset_of!(Header, position), at.position);
    put_u64(header, offset_of!(Header, lsn), at.lsn);
    put_u32(header, offset_of!(Header, length), payload.len() as u32);
    put_u64(header, offset_of!(Header, previous), at.previous);
    let sum = checksum_parts(seed, &[&header[..CHECKED], payload]);
    put_u64(header, offset_of!(Header, checksum), sum);
    let (body, padding) = rest.split_at_mut(payload.len());
    body.copy_from_slice(payload);
    padding.fill(0);
    Ok(sum)
}

impl Header {
    /// The header at the start of `bytes`, if it looks like one and its block is no longer than `largest`.
    /// Says nothing of the payload: see [`Header::checks`].
    pub(crate) fn decode(bytes: &[u8], largest: u64) -> Option<Header> {
        let bytes = bytes.get(..HEADER)?;
        let header = Header {
            magic: get_u64(bytes, offset_of!(Header, magic)),
            format: get_u32(bytes, offset_of!(Header, format)),
            entries: get_u32(bytes, offset_of!(Header, entries)),
            sequence: get_u64(bytes, offset_of!(Header, sequence)),
            position: get_u64(bytes, offset_of!(Header, position)),
            lsn: get_u64(bytes, offset_of!(Header, lsn)),
            length: get_u32(bytes, offset_of!(Header, length)),
            reserved: get_u32(bytes, offset_of!(Header, reserved)),
            previous: get_u64(bytes, offset_of!(Header, previous)),
            checksum: get_u64(bytes, offset_of!(Header, checksum)),
        };
        let plausible = header.magic == MAGIC
            && header.format == FORMAT
            && header.reserved == 0
            && header.length > 0
            && [header.sequence, header.position, header.lsn].iter().all(|count| *count < COUNTER_END)
            && block_len(header.length as usize) <= largest;
        plausible.then_some(header)
    }

    /// Bytes of its block on media.
    pub(crate) fn block_len(&self) -> u64 {
        block_len(self.length as usize)
    }

    /// Whether `block`, which starts with this header, is what was written by the store of `seed`.
    pub(crate) fn checks(&self, block: &[u8], seed: u64) -> bool {
        let payload = block.get(HEADER..HEADER + self.length as usize);
        payload.is_some_and(|payload| {
            matches(self.checksum, checksum_parts(seed, &[&block[..CHECKED], payload]))
        })
    }

    /// Whether it is the header of the block that `at` expects.
    pub(crate) fn continues(&self, at: &Cursor) -> bool {
        self.sequence == at.sequence
            && self.position == at.position
            && self.lsn == at.lsn
            && matches(self.previous, at.previous)
    }
}

/// The entries of a payload: where in the pool, and what. Ends with `Err` at one that runs over the end.
pub(crate) struct Entries<'a> {
    rest: &'a [u8],
}

impl<'a> Entries<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Entries { rest: payload }
    }
}

/// An entry runs over the end of its block, or is empty.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl<'a> Iterator for Entries<'a> {
    type Item = std::result::Result<(u64, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.rest);
        if rest.len() < ENTRY {
            return Some(Err(Malformed));
        }
        let (word, content) = rest.split_at(ENTRY);
        let word = get_u64(word, 0);
        let len = (word & 0xffff) as usize;
        if len == 0 || len > content.len() {
            return Some(Err(Malformed));
        }
        let (content, rest) = content.split_at(len);
        self.rest = rest;
        Some(Ok((word >> 16, content)))
    }
}

/// The word before the content of an entry.
pub(crate) fn entry_word(at: u64, len: u64) -> [u8; ENTRY] {
    assert!(at < 1 << 48 && len > 0 && len <= LARGEST_ENTRY);
    (at << 16 | len).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Cursor = Cursor { position: 8192, sequence: 7, lsn: 1000, previous: 55 };

    fn payload() -> Vec<u8> {
        let mut payload = Vec::new();
        payload.extend(entry_word(4096, 3));
        payload.extend(b"abc");
        payload.extend(entry_word((1 << 44) - 8, 8));
        payload.extend(b"12345678");
        payload
    }

    /// A block, and its checksum, in memory that something longer was in.
    fn encoded() -> (AlignedBuf, u64) {
        let mut block = AlignedBuf::zeroed(3 * BLOCK as usize).expect("memory");
        block.fill(0xff);
        let sum = encode(&mut block, &AT, 9, 2, &payload()).expect("small");
        assert!(block[HEADER + payload().len()..].iter().all(|byte| *byte == 0));
        (block, sum)
    }

    #[test]
    fn a_block_reads_back_and_its_entries_too() {
        let (block, sum) = encoded();
        let header = Header::decode(&block, BLOCK).expect("a header");
        assert!(header.checks(&block, 9) && header.continues(&AT));
        assert_eq!((header.checksum, header.entries, header.block_len()), (sum, 2, BLOCK));
        let content = &block[HEADER..HEADER + header.length as usize];
        let entries: Vec<_> = Entries::new(content).map(|e| e.expect("well-formed")).collect();
        assert_eq!(entries, vec![(4096, &b"abc"[..]), ((1 << 44) - 8, &b"12345678"[..])]);
    }

    #[test]
    fn counts_that_no_log_comes_to_are_no_header() {
        for field in [offset_of!(Header, sequence), offset_of!(Header, position), offset_of!(Header, lsn)] {
            let (mut block, _) = encoded();
            block[field..field + 8].copy_from_slice(&(COUNTER_END - 1).to_le_bytes());
            assert!(Header::decode(&block, BLOCK).is_some());
            block[field..field + 8].copy_from_slice(&COUNTER_END.to_le_bytes());
            assert!(Header::decode(&block, BLOCK).is_none());
        }
    }

    #[test]
    fn no_flipped_bit_passes() {
        let (mut block, _) = encoded();
        for bit in 0..(HEADER + payload().len()) * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            let passes = Header::decode(&block, BLOCK).is_some_and(|h| h.checks(&block, 9));
            assert!(!passes, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn another_store_place_lap_or_chain_does_not_continue() {
        let (block, _) = encoded();
        let header = Header::decode(&block, BLOCK).expect("a header");
        assert!(!header.checks(&block, 10));
        for other in [
            Cursor { position: 4096, ..AT },
            Cursor { sequence: 8, ..AT },
            Cursor { lsn: 1001, ..AT },
            Cursor { previous: 54, ..AT },
        ] {
            assert!(!header.continues(&other), "{other:?}");
        }
        assert!(Header::decode(&block, 0).is_none(), "longer than the largest block");
        assert!(Header::decode(&block[..63], BLOCK).is_none());
    }

    #[test]
    fn malformed_entries_end_the_walk() {
        let runs_over = entry_word(0, 9);
        for bytes in [&[1, 2, 3][..], &runs_over[..], &[0; 8][..]] {
            let all: Vec<_> = Entries::new(bytes).collect();
            assert_eq!(all, vec![Err(Malformed)]);
        }
    }
}
