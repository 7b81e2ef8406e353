//! Frames: copies of values on the unused part of a pool.
//!
//! ```text
//!  0          8          16         24           28           32        ..+value   → 8
//!  ├──────────┼──────────┼──────────┼────────────┼────────────┼─────────┼──────────┤
//!  │ checksum │ word     │ seqno    │ filling    │ length u32 │ value   │          │
//!  │ of 8..   │          │          │ u32        │            │         │          │
//!  └──────────┴──────────┴──────────┴────────────┴────────────┴─────────┴──────────┘
//! ```
//!
//! Word and filling name one record, and who asks for it knows its key: so a frame has no key, and a small value takes
//! little more than half of what its record does. The record is made again from value, key and seqno where it is wanted whole.
//! The checksum is seeded with the HSIT entry, too: where a damaged word leads to another key's record, its frame does not check.

use crate::hash::mix;
use tierdb_base::{checksum, matches};

/// Bytes before the value.
pub const HEAD: usize = 32;
/// Frames start at multiples of this.
pub const UNIT: u64 = 8;
/// Bytes of the longest value that is kept.
pub const LONGEST: usize = 32 << 10;

/// Which record a frame is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The HSIT entry that the record belongs to.
    pub entry: u64,
    /// Where it is on flash.
    pub word: u64,
    /// The filling of its chunk.
    pub filling: u32,
}

impl Source {
    /// For a table of them.
    pub fn hash(&self) -> u64 {
        hash(self.word, self.filling)
    }
}

/// What a frame begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    checksum: u64,
    /// Where the record is on flash.
    pub word: u64,
    /// That of the record.
    pub seqno: u64,
    /// The filling of the record's chunk.
    pub filling: u32,
    /// Bytes of the value.
    pub len: u32,
}

impl Head {
    /// The head that `bytes` would be, unchecked.
    pub fn parse(bytes: &[u8; HEAD]) -> Head {
        let (words, _) = bytes.as_chunks::<8>();
        let word = |number: usize| u64::from_le_bytes(words[number]);
        let last = word(3);
        Head {
            checksum: word(0),
            word: word(1),
            seqno: word(2),
            filling: last as u32,
            len: (last >> 32) as u32,
        }
    }

    /// Whether it says that the frame is of `source`, or another entry's.
    pub fn is_of(&self, source: &Source) -> bool {
        self.word == source.word && self.filling == source.filling
    }

    /// As that of its source.
    pub fn hash(&self) -> u64 {
        hash(self.word, self.filling)
    }

    /// Bytes that the frame takes, or `None` if there is none that long.
    pub fn stored_len(&self) -> Option<u64> {
        (self.len as usize <= LONGEST).then(|| stored_len(self.len as usize))
    }

    /// Whether `frame`, which begins with this, is as it was written for `entry`.
    pub fn checks(&self, frame: &[u8], seed: u64, entry: u64) -> bool {
        let end = HEAD + self.len as usize;
        frame.len() >= end && matches(self.checksum, check(seed, entry, &frame[8..end]))
    }
}

/// Bytes that the frame of a value of `len` bytes takes.
pub fn stored_len(len: usize) -> u64 {
    ((HEAD + len) as u64).next_multiple_of(UNIT)
}

/// Makes `out` the frame of a value.
pub fn encode(out: &mut Vec<u8>, seed: u64, source: &Source, seqno: u64, value: &[u8]) {
    out.clear();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&source.word.to_le_bytes());
    out.extend_from_slice(&seqno.to_le_bytes());
    out.extend_from_slice(&source.filling.to_le_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(value);
    let sum = check(seed, source.entry, &out[8..]);
    out[..8].copy_from_slice(&sum.to_le_bytes());
}

fn check(seed: u64, entry: u64, bytes: &[u8]) -> u64 {
    checksum(seed ^ mix(entry ^ 0x0066_7261_6d65), bytes)
}

fn hash(word: u64, filling: u32) -> u64 {
    mix(word ^ u64::from(filling) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_reads_back_and_every_flipped_bit_is_noticed() {
        let mut bytes = Vec::new();
        let source = Source { entry: 5, word: 12_345, filling: 6 };
        encode(&mut bytes, 9, &source, 77, b"the value");
        let head = |bytes: &[u8]| Head::parse(bytes.first_chunk().expect("a head"));
        let read = head(&bytes);
        assert!(read.is_of(&source) && read.hash() == source.hash());
        assert_eq!((read.seqno, read.len, read.stored_len()), (77, 9, Some(48)));
        assert!(read.checks(&bytes, 9, 5) && bytes.ends_with(b"the value"));
        assert!(!read.checks(&bytes, 10, 5) && !read.checks(&bytes, 9, 4), "another store's, another key's");
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!head(&damaged).checks(&damaged, 9, 5), "bit {bit}");
        }
        assert!(!(HEAD..bytes.len()).any(|cut| read.checks(&bytes[..cut], 9, 5)));
        let too_long = Head { len: LONGEST as u32 + 1, ..read };
        assert_eq!(too_long.stored_len(), None);
    }
}
