//! Records: a key, its value, and what makes them self-describing. The same bytes in the write buffer
//! and on flash, so that moving a record copies it and keeps its checksum.
//!
//! ```text
//!  0          8               16       24         28         32      32+key     ..+value   → 32
//!  ├──────────┼───────────────┼────────┼──────────┼──────────┼───────┼──────────┼──────────┤
//!  │ checksum │ entry:40      │ seqno  │ body len │ check of │ key   │ body     │ zeros to │
//!  │ xxh3-64  │ key len:16    │        │ u32      │ 8..28    │       │          │ a unit   │
//!  │ 8..end   │ kind:8        │        │          │ u32      │       │          │          │
//!  └──────────┴───────────────┴────────┴──────────┴──────────┴───────┴──────────┴──────────┘
//! ```
//!
//! * `entry` is the backward pointer to the HSIT (PRISM §4.5); with the word's forward pointer and tag it
//!   makes the two well-coupled.
//! * Both checksums are seeded with the store's identity. The second covers the header alone, for who goes from
//!   one record to the next by its length, or looks for a record among other bytes. A reader who comes from
//!   a word needs the first alone.
//! * Since format 1. An unknown kind means the record must not be used.

use crate::word::{UNIT, tag_of};
use std::ops::Range;
use tierdb_base::{checksum, matches};

/// Bytes of a record's header.
pub const HEADER: usize = 32;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A key and its value.
    Value = 1,
    /// A key, and where the parts of its value are.
    Parts = 2,
    /// The words a batch installs.
    Redo = 3,
    /// Where the parts of a long redo list are.
    RedoParts = 4,
    /// Nothing: fills a ring up to its end.
    Pad = 5,
    /// A page of the words a batch installs, and where the next one is.
    RedoPage = 6,
    /// Where the parts of the image of a closed store are.
    Image = 7,
}

impl Kind {
    fn from_u8(byte: u8) -> Option<Kind> {
        use Kind::*;
        [Value, Parts, Redo, RedoParts, Pad, RedoPage, Image].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// A record's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Checksum of the whole record.
    pub checksum: u64,
    /// The HSIT entry it belongs to.
    pub entry: u64,
    /// What it is.
    pub kind: Kind,
    /// Bytes of the key.
    pub key_len: usize,
    /// Order of the write.
    pub seqno: u64,
    /// Bytes of the body.
    pub body_len: usize,
}

impl Header {
    /// Checks the header at the start of `bytes`; `None` if there is none that this store wrote.
    #[track_caller]
    pub fn decode(bytes: &[u8], seed: u64) -> Option<Header> {
        let header = Header::parse(bytes)?;
        let check = u32::from_le_bytes(*bytes[28..].first_chunk()?);
        matches(u64::from(check), header_check(&bytes[8..28], seed)).then_some(header)
    }

    /// The header that the bytes at the start of `bytes` would be, unchecked: for who bounds its lengths and asks
    /// [`Header::is_whole`] before anything is made of it.
    pub fn parse(bytes: &[u8]) -> Option<Header> {
        let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (checksum, id, seqno, tail) = (word(0)?, word(8)?, word(16)?, word(24)?);
        Some(Header {
            checksum,
            entry: id & ((1 << 40) - 1),
            kind: Kind::from_u8((id >> 56) as u8)?,
            key_len: (id >> 40 & 0xffff) as usize,
            seqno,
            body_len: (tail & 0xffff_ffff) as usize,
        })
    }

    /// Bytes of header, key and body.
    pub fn len(&self) -> usize {
        HEADER + self.key_len + self.body_len
    }

    /// Bytes it takes where it is stored.
    pub fn stored_len(&self) -> u64 {
        stored_len(self.len())
    }

    /// Whether the whole record `bytes`, of which this is the header, is as it was written.
    #[track_caller]
    pub fn is_whole(&self, bytes: &[u8], seed: u64) -> bool {
        bytes.len() >= self.len() && matches(self.checksum, checksum(seed, &bytes[8..self.len()]))
    }

    /// Whether a word with `tag` that names `entry` is coupled with it.
    pub fn is_coupled(&self, entry: u64, tag: u16) -> bool {
        self.entry == entry && tag_of(self.seqno) == tag && matches!(self.kind, Kind::Value | Kind::Parts)
    }

    /// The key in the record `bytes`.
    pub fn key<'r>(&self, bytes: &'r [u8]) -> &'r [u8] {
        &bytes[HEADER..HEADER + self.key_len]
    }

    /// Where the body is in the record.
    pub fn body_range(&self) -> Range<usize> {
        HEADER + self.key_len..self.len()
    }

    /// The body in the record `bytes`.
    pub fn body<'r>(&self, bytes: &'r [u8]) -> &'r [u8] {
        &bytes[HEADER + self.key_len..self.len()]
    }
}

/// Bytes that a record of `len` bytes takes where it is stored.
pub fn stored_len(len: usize) -> u64 {
    (len as u64).next_multiple_of(UNIT)
}

fn header_check(bytes: &[u8], seed: u64) -> u64 {
    checksum(seed ^ 0x6865_6164, bytes) & 0xffff_ffff
}

/// A header with its own check, and 0 for the checksum of the whole record.
pub fn header_bytes(
    seed: u64,
    kind: Kind,
    entry: u64,
    seqno: u64,
    key_len: u16,
    body_len: u32,
) -> [u8; HEADER] {
    assert!(entry < 1 << 40);
    let mut header = [0u8; HEADER];
    let id = entry | (u64::from(key_len) << 40) | ((kind as u64) << 56);
    header[8..16].copy_from_slice(&id.to_le_bytes());
    header[16..24].copy_from_slice(&seqno.to_le_bytes());
    header[24..28].copy_from_slice(&body_len.to_le_bytes());
    let check = header_check(&header[8..28], seed) as u32;
    header[28..32].copy_from_slice(&check.to_le_bytes());
    header
}

/// Appends a record to `out`, padded to a unit. Returns its length without the padding.
pub fn encode(
    out: &mut Vec<u8>,
    seed: u64,
    kind: Kind,
    entry: u64,
    seqno: u64,
    key: &[u8],
    body: &[u8],
) -> usize {
    assert!(key.len() <= 0xffff && body.len() <= u32::MAX as usize);
    let len = HEADER + key.len() + body.len();
    let start = out.len();
    out.extend_from_slice(&header_bytes(seed, kind, entry, seqno, key.len() as u16, body.len() as u32));
    out.extend_from_slice(key);
    out.extend_from_slice(body);
    let sum = checksum(seed, &out[start + 8..]);
    out[start..start + 8].copy_from_slice(&sum.to_le_bytes());
    out.resize(start + stored_len(len) as usize, 0);
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_every_flipped_bit_is_noticed() {
        let mut bytes = Vec::new();
        let len = encode(&mut bytes, 9, Kind::Value, 12345, 77, b"key", b"the value");
        assert_eq!((len, bytes.len() as u64), (HEADER + 12, stored_len(len)));
        let header = Header::decode(&bytes, 9).expect("header");
        assert!(header.is_whole(&bytes, 9) && header.is_coupled(12345, tag_of(77)));
        assert_eq!((header.key(&bytes), header.body(&bytes)), (&b"key"[..], &b"the value"[..]));
        assert!(Header::decode(&bytes, 10).is_none(), "another store's record");
        for bit in 0..len * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let noticed = |header: Option<Header>| header.is_none_or(|h| !h.is_whole(&damaged, 9));
            assert!(noticed(Header::parse(&damaged)), "bit {bit}");
            let in_header = (64..HEADER * 8).contains(&bit);
            assert_eq!(Header::decode(&damaged, 9).is_none(), in_header, "bit {bit}");
        }
        let is_whole = |bytes: &[u8]| Header::parse(bytes).is_some_and(|header| header.is_whole(bytes, 9));
        assert!(is_whole(&bytes) && !(0..len).any(|cut| is_whole(&bytes[..cut])));
    }
}
