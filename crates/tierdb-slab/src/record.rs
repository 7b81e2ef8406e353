//! Records: what slots hold. Little-endian; offsets from the start of the head slot.
//!
//! ```text
//!  0          8        16      20      22     23     24         32      36       40
//!  ├──────────┼────────┼───────┼───────┼──────┼──────┼──────────┼───────┼────────┼─────┬───────┬───────┐
//!  │ checksum │ seqno  │ value │ key   │ kind │ zero │ value    │ parts │ zero   │ key │ parts │ value │
//!  │ xxh3-64  │ u64    │ len   │ len   │ u8   │ u8   │ checksum │ u32   │ u32    │     │ 8 each│       │
//!  └──────────┴────────┴───────┴───────┴──────┴──────┴──────────┴───────┴────────┴─────┴───────┴───────┘
//! ```
//!
//! * `checksum` covers bytes 8.. up to the end of the parts, and is seeded with the store and the record's place.
//! * A value that does not fit in the largest slot with its key is kept in parts: slots that hold nothing but the
//!   next bytes of it, each the largest slot but the last. `parts` lists their places; the value is then not here.
//! * `value checksum` covers the whole value, and is seeded with the store and the seqno.
//!
//! Since format 1.

use crate::commit::REDO_BYTES;
use std::ops::Range;
use tierdb_base::{
    MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, Seqno, checksum, checksum_parts, matches,
};

/// Bytes before the key.
pub const HEADER: usize = 40;
/// Where among them the seqno is.
pub const SEQNO: Range<usize> = 8..16;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A key and its value.
    Value = 1,
    /// The key was removed; there may be an older version of it on flash.
    Tombstone = 2,
    /// Every key of a range was removed: the value holds the range.
    RangeTombstone = 3,
    /// A table on flash: the value describes it.
    Table = 4,
    /// Commit words to be published together: the value lists them.
    Redo = 5,
    /// What is known of a record that damage took ([`crate::lost`]); its commit word is that record's.
    Lost = 6,
}

impl Kind {
    fn decode(byte: u8) -> Option<Self> {
        [Kind::Value, Kind::Tombstone, Kind::RangeTombstone, Kind::Table, Kind::Redo, Kind::Lost]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }

    /// Longest value of such a record, in bytes.
    fn longest(self) -> usize {
        match self {
            // Each key of a batch has a byte at least, and two changes at the most.
            Kind::Redo => MAX_BATCH_BYTES * 2 * REDO_BYTES,
            _ => 2 * MAX_VALUE_BYTES,
        }
    }
}

/// The head of a record that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it is.
    pub kind: Kind,
    /// The write that made it.
    pub seqno: Seqno,
    /// Its key; empty where the kind has none.
    pub key: Vec<u8>,
    /// Bytes of its value.
    pub value_len: usize,
    /// Places of the parts of its value; empty where the value follows the key.
    pub parts: Vec<u64>,
    value_sum: u64,
}

/// What of a record lies in its head slot.
pub struct Shape {
    /// Bytes of the record in its head slot.
    pub head_len: usize,
    /// Bytes of each part; the last may have less.
    pub part_len: usize,
    /// Number of parts.
    pub parts: usize,
}

/// How a record of a key and a value of these lengths is laid out in slots of `largest` bytes at the most. `None`
/// if even the list of its parts is too long.
pub fn shape(key_len: usize, value_len: usize, largest: usize) -> Option<Shape> {
    let whole = HEADER + key_len + value_len;
    if whole <= largest {
        return Some(Shape { head_len: whole, part_len: 0, parts: 0 });
    }
    let parts = value_len.div_ceil(largest);
    let head_len = HEADER + key_len + parts * 8;
    (head_len <= largest).then_some(Shape { head_len, part_len: largest, parts })
}

fn value_sum(seed: u64, seqno: Seqno, value: &[u8]) -> u64 {
    checksum(seed ^ seqno.rotate_left(32), value)
}

fn head_sum(seed: u64, at: u64, bytes: &[u8]) -> u64 {
    checksum_parts(seed, &[&at.to_le_bytes(), bytes])
}

/// The checksum of the head in `bytes`, whose own bytes of it hold the head's place: for many tries, since place and head need not be laid
/// side by side for each.
pub fn sum_behind_place(seed: u64, bytes: &[u8]) -> u64 {
    checksum(seed, bytes)
}

/// The bytes of the head slot at byte `at` of the pool. `parts` are the places of the parts, if it has any.
pub fn encode(
    seed: u64,
    at: u64,
    kind: Kind,
    seqno: Seqno,
    key: &[u8],
    value: &[u8],
    parts: &[u64],
) -> Vec<u8> {
    let inline = if parts.is_empty() { value.len() } else { 0 };
    let mut bytes = Vec::with_capacity(HEADER + key.len() + parts.len() * 8 + inline);
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&seqno.to_le_bytes());
    bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&[kind as u8, 0]);
    bytes.extend_from_slice(&value_sum(seed, seqno, value).to_le_bytes());
    bytes.extend_from_slice(&(parts.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(key);
    for part in parts {
        bytes.extend_from_slice(&part.to_le_bytes());
    }
    let sum = head_sum(seed, at, &bytes[8..]);
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    if parts.is_empty() {
        bytes.extend_from_slice(value);
    }
    bytes
}

/// Seqno and length of the key, by the first bytes of a record that is not checked.
pub fn name_in(header: &[u8; HEADER]) -> (Seqno, usize) {
    let (seqno, _) = header[8..].split_first_chunk().unwrap_or((&[0; 8], &[]));
    (Seqno::from_le_bytes(*seqno), usize::from(u16::from_le_bytes([header[20], header[21]])))
}

/// Where the record with this header has its key, and the length of that.
pub fn bytes_of_key(header: &[u8; HEADER]) -> [Range<usize>; 2] {
    [20..22, HEADER..HEADER + name_in(header).1]
}

/// Whether a record with this header, one byte of which may be wrong, may have its value in parts, if its head is in a slot of `slot` bytes.
pub fn may_have_parts(header: &[u8; HEADER], slot: usize) -> bool {
    let value_len = u32::from_le_bytes([header[16], header[17], header[18], header[19]]) as usize;
    let (_, key_len) = name_in(header);
    header[32..36] != [0; 4] || HEADER + key_len + value_len > slot
}

/// Whether a record with this header, which is not checked, and the value in `slot` was written with `seqno`: that its value tells so.
pub fn is_from(seed: u64, seqno: Seqno, slot: &[u8]) -> bool {
    let Some((header, _)) = slot.split_first_chunk::<HEADER>() else { return false };
    let value_len = u32::from_le_bytes([header[16], header[17], header[18], header[19]]) as usize;
    let start = HEADER + name_in(header).1;
    let sum = u64::from_le_bytes(header[24..32].try_into().unwrap_or_default());
    let value = slot.get(start..start.saturating_add(value_len));
    value.is_some_and(|value| matches(sum, value_sum(seed, seqno, value)))
}

impl Head {
    /// Bytes of the head but for an inline value, by the first bytes of the record; nothing is checked yet.
    pub fn len_of(header: &[u8; HEADER]) -> usize {
        let key = usize::from(u16::from_le_bytes([header[20], header[21]]));
        let parts = u32::from_le_bytes([header[32], header[33], header[34], header[35]]) as usize;
        HEADER + key + parts.saturating_mul(8)
    }

    /// The head in `bytes`, which are [`Head::len_of`] long and stand at byte `at` of the pool.
    pub fn decode(seed: u64, at: u64, bytes: &[u8]) -> Option<Head> {
        let (header, rest) = bytes.split_first_chunk::<HEADER>()?;
        let word = |from: usize| u64::from_le_bytes(header[from..from + 8].try_into().unwrap_or_default());
        if !matches(word(0), head_sum(seed, at, &bytes[8..])) {
            return None;
        }
        let value_len = u32::from_le_bytes(header[16..20].try_into().ok()?) as usize;
        let key_len = usize::from(u16::from_le_bytes([header[20], header[21]]));
        let kind = Kind::decode(header[22])?;
        if key_len > MAX_KEY_BYTES || value_len > kind.longest() || header[23] != 0 {
            return None;
        }
        let (key, parts) = rest.split_at_checked(key_len)?;
        let (parts, odd) = parts.as_chunks::<8>();
        if !odd.is_empty() {
            return None;
        }
        Some(Head {
            kind,
            seqno: word(8),
            key: key.to_vec(),
            value_len,
            parts: parts.iter().map(|part| u64::from_le_bytes(*part)).collect(),
            value_sum: word(24),
        })
    }

    /// Whether `value` is what was written.
    pub fn verify(&self, seed: u64, value: &[u8]) -> bool {
        value.len() == self.value_len && matches(self.value_sum, value_sum(seed, self.seqno, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_in_its_place_alone_and_every_byte_is_checked() {
        for parts in [&[][..], &[4096, 8192]] {
            let value = b"some value";
            let bytes = encode(7, 640, Kind::Value, 99, b"key", value, parts);
            let len = Head::len_of(bytes[..HEADER].try_into().expect("header"));
            let head = Head::decode(7, 640, &bytes[..len]).expect("whole");
            assert_eq!(
                (head.kind, head.seqno, &head.key[..], &head.parts[..]),
                (Kind::Value, 99, &b"key"[..], parts)
            );
            assert!(head.verify(7, value) && !head.verify(7, b"some valuf") && !head.verify(8, value));
            assert!(Head::decode(7, 704, &bytes[..len]).is_none(), "another place");
            assert!(Head::decode(8, 640, &bytes[..len]).is_none(), "another store");
            for byte in 0..len {
                let mut damaged = bytes[..len].to_vec();
                damaged[byte] ^= 1;
                assert!(Head::decode(7, 640, &damaged).is_none(), "byte {byte}");
            }
        }
    }

    /// A batch may have more changes than fit in the longest value of a caller.
    #[test]
    fn the_longest_redo_record_reads_back() {
        let with_len = |kind: Kind, len: usize| {
            let mut bytes = encode(7, 640, kind, 0, b"", b"", &[4096]);
            bytes[16..20].copy_from_slice(&u32::try_from(len).expect("it has a place").to_le_bytes());
            let sum = head_sum(7, 640, &bytes[8..]);
            bytes[..8].copy_from_slice(&sum.to_le_bytes());
            Head::decode(7, 640, &bytes).map(|head| head.value_len)
        };
        // One change for each key, of which most have three bytes: there are no more shorter ones.
        let longest = MAX_BATCH_BYTES / 3 * REDO_BYTES;
        assert_eq!(with_len(Kind::Redo, longest), Some(longest));
        assert_eq!(with_len(Kind::Redo, Kind::Redo.longest()), Some(Kind::Redo.longest()));
        assert_eq!(with_len(Kind::Value, longest), None);
    }

    #[test]
    fn shapes_fill_slots() {
        let shape_of = |key, value| shape(key, value, 1000).map(|s| (s.head_len, s.parts));
        assert_eq!(shape_of(10, 950), Some((1000, 0)));
        assert_eq!(shape_of(10, 951), Some((58, 1)));
        assert_eq!(shape_of(10, 2001), Some((74, 3)));
        assert_eq!(shape_of(990, 200), None);
    }
}
