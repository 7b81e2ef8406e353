//! The bytes of a leaf.
//!
//! A leaf is a page. Its identity, fences and geometry never change while it is in the chain; its slots
//! are filled one after the other, each at most once.
//!
//! ```text
//!   0      8      16                48         56     64      64+n      64+3n
//!   ├──────┼──────┼─────────────────┼──────────┼──────┼───────┼─────────┼────────┬─ ─ ─ ─ ─┬─────────┐ 4096
//!   │ word │ next │ 4 group words   │ checksum │ more │ finger│ offsets │ fences │  unused │ entries │
//!   └──────┴──────┴─────────────────┴──────────┴──────┴───────┴─────────┴────────┴─ ─ ─ ─ ─┴─────────┘
//! word:   magic u16 | format u8 | slots n u8 | prefix u8 | flags u8 | fold u16
//! next:   0 in the last leaf, else page number (40 bits) | fold of a hash of it (24 bits)
//! group:  live slots (56 bits) | exclusive or of their fingerprints (8 bits)
//! more:   low fence's length u16 | high fence's length u16 | generation u32
//! fence:  its bytes up to 128, else a blob reference
//! entry:  id (5 bytes) | check u8 | length u8 | key without the leaf's prefix       key of 1..=250 bytes
//!         id (5 bytes) | check u8 | 255       | length u16 | blob reference         key of 251..=4096 bytes
//! blob:   page number (40 bits) | slot (4 bits) | class (4 bits) | checksum u32
//! ```
//!
//! * *low* and *high* fence: every key is at least the first and less than the second. The first leaf's low
//!   fence is empty; the last leaf has no high fence (flag 1). A leaf's high fence is the next one's low.
//! * *prefix*: length of what the fences have in common, and so every key; it is not stored again.
//! * *checksum*: of `word`, `more` and the fences, seeded with the store and the page number.
//! * *fold*: exclusive or of the other 16-bit parts of the word, so that any flipped bit is noticed before
//!   the geometry is used.
//! * *fingerprint*: 1..=255 from the key's hash, so that adding or losing a live bit always changes the
//!   group's sum; one aligned store changes both. A reader believes a group only if its sum agrees.
//! * *check*: the key's hash, and a CRC-8 of the id. An entry whose fingerprint matches but whose key differs is
//!   checked against its own hash, so a damaged key is noticed where it would be missed.
//! * Entries fill the page from its end; the offset of a slot that was never used is 0.
//!
//! Cost: a key of 16 bytes takes 23 bytes of entry less the prefix, 3 of slot, and its share of the header.
//!
//! Since format 1.

use super::EntryId;
use crate::pages::{PAGE, PageNo};
use tierdb_base::{checksum, matches};

/// Byte of the `next` word.
pub(super) const NEXT_AT: u64 = 8;
/// Byte of the first group word.
pub(super) const GROUPS_AT: u64 = 16;
/// Byte of the checksum.
pub(super) const SUM_AT: u64 = 48;
/// Byte of the word with lengths and generation.
pub(super) const MORE_AT: u64 = 56;
/// Byte of the fingerprints.
pub(super) const FINGERPRINTS_AT: u64 = 64;
/// Slots of a group.
pub(super) const GROUP: usize = 56;
/// Groups of a leaf.
pub(super) const GROUPS: usize = 4;
/// Most slots of a leaf.
pub(super) const MAX_SLOTS: usize = GROUP * GROUPS;
/// Longest key that stands in the leaf.
pub(super) const MAX_INLINE: usize = 250;
/// Longest fence that stands in the leaf.
pub(super) const MAX_INLINE_FENCE: usize = 128;
/// Bytes of an entry before its key.
pub(super) const ENTRY: usize = 7;
/// Byte of an entry's length.
pub(super) const LENGTH_AT: usize = 6;
/// Bytes of an entry whose key is in a blob.
pub(super) const LONG_ENTRY: usize = ENTRY + 2 + BLOB_REF;
/// Bytes of a slot besides its entry: fingerprint and offset.
pub(super) const SLOT: usize = 3;
/// The live bits of a group word.
pub(super) const LIVE: u64 = (1 << GROUP) - 1;

const BLOB_REF: usize = 10;
/// The length that an entry gives of a key in a blob.
pub(super) const LONG: u8 = 255;
const MAGIC: u64 = 0x4c54;
const FORMAT: u64 = 1;
const LAST: u64 = 1;
const PAGE_BITS: u32 = 40;
const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// Fingerprint of a key with this hash.
#[inline]
pub(super) fn fingerprint(hash: u64) -> u8 {
    (hash as u8).max(1)
}

/// Check of an entry that maps a key with this hash to `id`. Up to three flipped bits of both change what they say of each other.
#[inline]
pub(super) fn check(hash: u64, id: EntryId) -> u8 {
    (hash >> 8) as u8 ^ crc8(id)
}

/// What is left of `id`, of 40 bits, modulo x^8 + x^2 + x + 1 (CRC-8). Squaring that gives what x^16 and x^32 are modulo it.
#[inline]
fn crc8(id: EntryId) -> u8 {
    let low = |word: u64, bits: u32| (word & ((1 << bits) - 1), word >> bits);
    let (rest, high) = low(id, 32);
    let (rest, high) = low(rest ^ high ^ high << 4 ^ high << 8, 16);
    let (rest, high) = low(rest ^ high ^ high << 2 ^ high << 4, 16);
    let (rest, high) = low(rest ^ high ^ high << 2 ^ high << 4, 8);
    let (rest, high) = low(rest ^ high ^ high << 1 ^ high << 2, 8);
    (rest ^ high ^ high << 1 ^ high << 2) as u8
}

/// Checksum of bytes with this hash that stand in a blob.
pub(super) fn blob_sum(hash: u64) -> u32 {
    (hash >> 16) as u32
}

/// The stored form of a reference to a leaf; 0 is none.
pub(super) fn encode_next(page: Option<PageNo>) -> u64 {
    page.map_or(0, |page| page | link_check(page) << PAGE_BITS)
}

/// The leaf that a stored reference names; `Err` if it is not one that was written.
pub(super) fn decode_next(word: u64) -> Result<Option<PageNo>, ()> {
    if word == 0 {
        return Ok(None);
    }
    let page = word & ((1 << PAGE_BITS) - 1);
    if matches(word >> PAGE_BITS, link_check(page)) { Ok(Some(page)) } else { Err(()) }
}

fn link_check(page: PageNo) -> u64 {
    // Never 0, so no reference looks like the end of the chain.
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> PAGE_BITS | 1
}

/// Where things are in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Number of slots: a multiple of 8.
    pub slots: usize,
    /// Length of the prefix that keys are stored without.
    pub prefix: usize,
    /// Whether there is no leaf after it.
    pub last: bool,
}

impl Geometry {
    /// The first word of a leaf.
    pub fn encode(self) -> u64 {
        let word = MAGIC
            | FORMAT << 16
            | (self.slots as u64) << 24
            | (self.prefix as u64) << 32
            | u64::from(self.last) << 40;
        word | fold(word) << 48
    }

    /// The geometry that the first word of a leaf says, if it is one.
    #[inline]
    pub fn decode(word: u64) -> Result<Self, &'static str> {
        if !matches(word >> 48, fold(word)) {
            return Err("the first word of a leaf is damaged");
        }
        let slots = (word >> 24 & 0xff) as usize;
        let prefix = (word >> 32 & 0xff) as usize;
        let sane = word & 0xffff == MAGIC
            && word >> 16 & 0xff == FORMAT
            && word >> 40 & 0xff & !LAST == 0
            && slots.is_multiple_of(8)
            && (8..=MAX_SLOTS).contains(&slots)
            && prefix <= MAX_INLINE;
        if !sane {
            return Err("the page is not a leaf of a known format");
        }
        Ok(Geometry { slots, prefix, last: word >> 40 & LAST == LAST })
    }

    /// Byte of the fences.
    #[inline]
    pub fn fences_at(self) -> usize {
        FINGERPRINTS_AT as usize + SLOT * self.slots
    }

    /// Byte of the offset of `slot`.
    #[inline]
    pub fn offset_at(self, slot: usize) -> u64 {
        FINGERPRINTS_AT + self.slots as u64 + 2 * slot as u64
    }
}

#[inline]
fn fold(word: u64) -> u64 {
    (word ^ word >> 16 ^ word >> 32) & 0xffff
}

/// Bytes that a fence of `len` bytes takes in the leaf.
pub(super) fn fence_bytes(len: usize) -> usize {
    if len <= MAX_INLINE_FENCE { len } else { BLOB_REF }
}

/// Bytes of the entry of a key of `len` bytes in a leaf with this prefix.
#[inline]
pub(super) fn entry_bytes(len: usize, prefix: usize) -> usize {
    if len <= MAX_INLINE { ENTRY + len.saturating_sub(prefix) } else { LONG_ENTRY }
}

/// The lengths of the fences and the generation, as one word.
pub(super) fn encode_more(low: usize, high: usize, generation: u32) -> u64 {
    low as u64 | (high as u64) << 16 | u64::from(generation) << 32
}

/// Lengths of the fences, and generation.
pub(super) fn decode_more(word: u64) -> (usize, usize, u32) {
    ((word & 0xffff) as usize, (word >> 16 & 0xffff) as usize, (word >> 32) as u32)
}

/// The checksum of what never changes in a leaf.
///
/// # Panics
/// If the fences are longer than two that stand in the leaf.
pub(super) fn identity(seed: u64, page: PageNo, word: u64, more: u64, fences: &[u8]) -> u64 {
    let mut bytes = [0; 24 + 2 * MAX_INLINE_FENCE];
    bytes[..24].copy_from_slice([page, word, more].map(u64::to_le_bytes).as_flattened());
    bytes[24..24 + fences.len()].copy_from_slice(fences);
    checksum(seed, &bytes[..24 + fences.len()])
}

/// Where bytes that are too long for a leaf stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlobRef {
    pub page: PageNo,
    pub slot: u8,
    pub class: u8,
    pub sum: u32,
}

impl BlobRef {
    pub fn encode(self) -> [u8; BLOB_REF] {
        let mut out = [0; BLOB_REF];
        let place = self.page | u64::from(self.slot) << 40 | u64::from(self.class) << 44;
        out[..6].copy_from_slice(&place.to_le_bytes()[..6]);
        out[6..].copy_from_slice(&self.sum.to_le_bytes());
        out
    }

    /// The reference that `raw` holds; `None` if it is too short. Page, slot and class are whatever is there.
    pub fn decode(raw: &[u8]) -> Option<Self> {
        let raw: &[u8; BLOB_REF] = raw.first_chunk()?;
        let place = u64::from_le_bytes([raw[0], raw[1], raw[2], raw[3], raw[4], raw[5], 0, 0]);
        Some(BlobRef {
            page: place & ((1 << PAGE_BITS) - 1),
            slot: (place >> 40 & 0xf) as u8,
            class: (place >> 44 & 0xf) as u8,
            sum: u32::from_le_bytes([raw[6], raw[7], raw[8], raw[9]]),
        })
    }
}

/// An entry as it stands in a leaf, its lengths checked and nothing else.
pub(super) struct RawEntry<'a> {
    pub id: EntryId,
    pub check: u8,
    pub key: RawKey<'a>,
}

/// Where an entry's key is.
pub(super) enum RawKey<'a> {
    /// What follows the leaf's prefix.
    Inline(&'a [u8]),
    /// The whole key of this length, in a blob.
    Long(usize, BlobRef),
}

impl<'a> RawEntry<'a> {
    /// The entry at the start of `raw`, which ends where the page does; `None` if it does not fit.
    #[inline]
    pub fn decode(raw: &'a [u8]) -> Option<Self> {
        let start: &[u8; ENTRY] = raw.first_chunk()?;
        let id = u64::from_le_bytes([start[0], start[1], start[2], start[3], start[4], 0, 0, 0]);
        let body = &raw[ENTRY..];
        let key = if start[LENGTH_AT] == LONG {
            let len: &[u8; 2] = body.first_chunk()?;
            RawKey::Long(u16::from_le_bytes(*len) as usize, BlobRef::decode(&body[2..])?)
        } else {
            RawKey::Inline(body.get(..start[LENGTH_AT] as usize)?)
        };
        Some(RawEntry { id, check: start[5], key })
    }
}

/// An entry's bytes.
pub(super) struct EntryBytes {
    bytes: [u8; ENTRY + MAX_INLINE],
    len: usize,
}

impl EntryBytes {
    /// The entry of `key` in a leaf with this prefix. `blob` is where the key stands if it is a long one.
    pub fn encode(key: &[u8], hash: u64, id: EntryId, prefix: usize, blob: Option<BlobRef>) -> Self {
        let mut bytes = [0; ENTRY + MAX_INLINE];
        bytes[..5].copy_from_slice(&id.to_le_bytes()[..5]);
        bytes[5] = check(hash, id);
        let len = match blob {
            Some(blob) => {
                bytes[LENGTH_AT] = LONG;
                bytes[ENTRY..ENTRY + 2].copy_from_slice(&(key.len() as u16).to_le_bytes());
                bytes[ENTRY + 2..LONG_ENTRY].copy_from_slice(&blob.encode());
                LONG_ENTRY
            }
            None => {
                let tail = &key[prefix..];
                bytes[LENGTH_AT] = tail.len() as u8;
                bytes[ENTRY..ENTRY + tail.len()].copy_from_slice(tail);
                ENTRY + tail.len()
            }
        };
        EntryBytes { bytes, len }
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A word with the high bit of each byte set where `bits` has a bit.
#[inline]
pub(super) fn spread(bits: u8) -> u64 {
    let one_each = u64::from(bits).wrapping_mul(ONES) & 0x8040_2010_0804_0201;
    (one_each + !HIGHS) & HIGHS | one_each & HIGHS
}

/// A bit for each byte of `word` whose high bit is set; the others of its bits are not.
#[inline]
pub(super) fn gather(word: u64) -> u8 {
    ((word >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// A word with the high bit of each byte set where `word` has the byte `wanted`.
#[inline]
pub(super) fn equal_bytes(word: u64, wanted: u8) -> u64 {
    let zero_where_equal = word ^ u64::from(wanted).wrapping_mul(ONES);
    !(((zero_where_equal & !HIGHS) + !HIGHS) | zero_where_equal) & HIGHS
}

/// Exclusive or of the bytes of `word` whose high bit is set in `mask`, spread over the result's bytes.
#[inline]
pub(super) fn select_bytes(word: u64, mask: u64) -> u64 {
    word & (mask >> 7).wrapping_mul(0xff)
}

/// Exclusive or of the bytes of `word`.
#[inline]
pub(super) fn fold_bytes(word: u64) -> u8 {
    let half = word ^ word >> 32;
    let quarter = half ^ half >> 16;
    (quarter ^ quarter >> 8) as u8
}

const _: () = {
    assert!(MAX_SLOTS < 256 && ENTRY + MAX_INLINE < 4096);
    // Whatever the fences, a leaf has room for the largest entry and its slot.
    assert!(
        FINGERPRINTS_AT as usize + SLOT * MAX_SLOTS + 2 * MAX_INLINE_FENCE + ENTRY + MAX_INLINE
            < PAGE as usize
    );
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_tricks_agree_with_loops() {
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..20_000 {
            let bytes: [u8; 8] = std::array::from_fn(|_| rng.u8(..3));
            let (word, bits, wanted) = (u64::from_le_bytes(bytes), rng.u8(..), rng.u8(..3));
            let expected = |mark: &dyn Fn(usize) -> bool| {
                u64::from_le_bytes(std::array::from_fn(|i| if mark(i) { 0x80 } else { 0 }))
            };
            assert_eq!(spread(bits), expected(&|i| bits >> i & 1 == 1));
            assert_eq!(gather(spread(bits)), bits);
            assert_eq!(equal_bytes(word, wanted), expected(&|i| bytes[i] == wanted));
            let sum = (0..8).filter(|i| bits >> i & 1 == 1).fold(0, |sum, i| sum ^ bytes[i]);
            assert_eq!(fold_bytes(select_bytes(word, spread(bits))), sum);
        }
    }

    #[test]
    fn any_flipped_bit_of_a_first_word_or_a_link_is_noticed() {
        let geometry = Geometry { slots: 160, prefix: 7, last: true };
        assert_eq!(Geometry::decode(geometry.encode()), Ok(geometry));
        assert_eq!(decode_next(encode_next(Some(77))), Ok(Some(77)));
        for bit in 0..64 {
            assert!(Geometry::decode(geometry.encode() ^ 1 << bit).is_err(), "bit {bit}");
            assert!(decode_next(encode_next(Some(77)) ^ 1 << bit).is_err(), "bit {bit}");
        }
        assert_eq!(decode_next(0), Ok(None));
        assert!(Geometry::decode(0).is_err());
    }

    #[test]
    fn entries_and_references_read_back() {
        let blob = BlobRef { page: (1 << 40) - 2, slot: 7, class: 3, sum: 0xdead_beef };
        assert_eq!(BlobRef::decode(&blob.encode()), Some(blob));
        let long = EntryBytes::encode(&[7; 4096], 99, (1 << 40) - 1, 0, Some(blob));
        let raw = RawEntry::decode(long.as_slice()).expect("whole");
        assert!(matches!(raw.key, RawKey::Long(4096, found) if found == blob));
        assert_eq!((raw.id, raw.check), ((1 << 40) - 1, check(99, (1 << 40) - 1)));
        let short = EntryBytes::encode(b"prefixkey", 99, 5, 6, None);
        let raw = RawEntry::decode(short.as_slice()).expect("whole");
        assert!(matches!(raw.key, RawKey::Inline(b"key")));
        for len in 0..short.as_slice().len() {
            assert!(RawEntry::decode(&short.as_slice()[..len]).is_none());
        }
    }

    #[test]
    fn three_flipped_bits_of_an_id_and_its_check_are_noticed() {
        // The bits of the check are those from 40 on.
        let holds = |word: u64| check(1, word & ((1 << 40) - 1)) == (word >> 40) as u8;
        let id = 0x12_3456_789a;
        let whole = id | u64::from(check(1, id)) << 40;
        assert!(holds(whole));
        for (a, b, c) in (0..48).flat_map(|a| (0..=a).flat_map(move |b| (0..=b).map(move |c| (a, b, c)))) {
            let flips = 1u64 << a ^ 1 << b ^ 1 << c;
            assert!(!holds(whole ^ flips), "bits {a}, {b}, {c}");
        }
    }
}
