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
//! Word and filling name one record, and its key is known to who asks for it: so a frame has neither, and a small value takes
//! little more than half of what its record does. The record is made again from value, key and seqno where it is wanted whole.

use tierdb_base::{checksum, matches};

/// Bytes before the value.
pub const HEAD: usize = 32;
/// Frames start at multiples of this.
pub const UNIT: u64 = 8;
/// Bytes of the longest value that is kept.
pub const LONGEST: usize = 32 << 10;

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

    /// Whether the frame is that of the record at `word` in a `filling` of its chunk.
    pub fn is(&self, word: u64, filling: u32) -> bool {
        self.word == word && self.filling == filling
    }

    /// Bytes that the frame takes, or `None` if there is none that long.
    pub fn stored_len(&self) -> Option<u64> {
        (self.len as usize <= LONGEST).then(|| stored_len(self.len as usize))
    }

    /// Whether `frame`, which begins with this, is as it was written.
    pub fn checks(&self, frame: &[u8], seed: u64) -> bool {
        let end = HEAD + self.len as usize;
        frame.len() >= end && matches(self.checksum, check(seed, &frame[8..end]))
    }
}

/// Bytes that the frame of a value of `len` bytes takes.
pub fn stored_len(len: usize) -> u64 {
    ((HEAD + len) as u64).next_multiple_of(UNIT)
}

/// Makes `out` the frame of a value.
pub fn encode(out: &mut Vec<u8>, seed: u64, (word, filling): (u64, u32), seqno: u64, value: &[u8]) {
    out.clear();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&word.to_le_bytes());
    out.extend_from_slice(&seqno.to_le_bytes());
    out.extend_from_slice(&filling.to_le_bytes());
    out.extend_from_slice(&(value.len() as u32).to_le_bytes());
    out.extend_from_slice(value);
    let sum = check(seed, &out[8..]);
    out[..8].copy_from_slice(&sum.to_le_bytes());
}

fn check(seed: u64, bytes: &[u8]) -> u64 {
    checksum(seed ^ 0x0066_7261_6d65, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_reads_back_and_every_flipped_bit_is_noticed() {
        let mut bytes = Vec::new();
        encode(&mut bytes, 9, (12_345, 6), 77, b"the value");
        let head = |bytes: &[u8]| Head::parse(bytes.first_chunk().expect("a head"));
        let read = head(&bytes);
        assert_eq!((read.word, read.filling, read.seqno, read.len), (12_345, 6, 77, 9));
        assert_eq!(read.stored_len(), Some(48));
        assert!(read.checks(&bytes, 9) && !read.checks(&bytes, 10) && bytes.ends_with(b"the value"));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!head(&damaged).checks(&damaged, 9), "bit {bit}");
        }
        assert!(!(HEAD..bytes.len()).any(|cut| read.checks(&bytes[..cut], 9)));
        let too_long = Head { len: LONGEST as u32 + 1, ..read };
        assert_eq!(too_long.stored_len(), None);
    }
}
