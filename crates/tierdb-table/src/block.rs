//! A block: some entries in order, read as one. Little-endian; offsets from the start of the block.
//!
//! ```text
//!  0          8        12       16      20       22       24          32
//!  ├──────────┼────────┼────────┼───────┼────────┼────────┼───────────┼────────┬─────────┬─────────┐
//!  │ checksum │ magic  │ header │ len   │ count  │ prefix │ base      │ prefix │ entries │ starts  │
//!  │ xxh3-64  │ "TBLK" │ sum u32│ u32   │ u16    │ len u16│ seqno u64 │        │         │ u16 each│
//!  └──────────┴────────┴────────┴───────┴────────┴────────┴───────────┴────────┴─────────┴─────────┘
//!
//!  entry:  varint: len of rest of key │ varint: 0, or 1 + len of value │ varint: seqno - base │ rest │ value
//! ```
//!
//! * `len` counts from the checksum to the last start. `prefix` begins every key of the block and is not repeated in
//!   the entries. `base` is the lowest seqno. A value tag of 0 is a tombstone.
//! * `starts` holds where each entry begins. Entries lie in order: keys ascend, seqnos of one key descend.
//! * `checksum` covers all but itself; `header sum` is the low half of a checksum of bytes 16..32. The second
//!   lets a salvage trust the length before it reads so much. Both are seeded with the table's id and the
//!   offset of the block in the file.
//! * Blocks begin at multiples of 64 bytes. A block of several entries never crosses a 4,096-byte boundary of the
//!   file; one entry that does not fit into what is left of 4,096 bytes, or into 4,096 at all, may be a block
//!   that does. What lies between two blocks is zeros.
//!
//! Since format 1 of the footer.

use crate::bytes::{common_prefix, get_u16, get_u32, get_u64, push_varint, put, take_varint, varint_len};
use crate::entry::{EntryRef, Version};
use std::cmp::Ordering;
use std::ops::Range;
use tierdb_base::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Seqno, checksum, matches};

/// Bytes before the prefix.
pub(crate) const HEADER: usize = 32;
/// Blocks begin at multiples of this.
pub(crate) const ALIGN: usize = 64;
/// Fewest bytes of an entry: its three varints, and where it begins.
pub(crate) const LEAST_ENTRY: u64 = 5;
/// Longest block: one entry with the longest key and value, with its varints.
pub(crate) const MAX_BLOCK: usize = HEADER + MAX_KEY_BYTES + MAX_VALUE_BYTES + 20;

const MAGIC: u32 = u32::from_le_bytes(*b"TBLK");
const MAGIC_AT: usize = 8;
const HEADER_SUM: usize = 12;
const LEN: usize = 16;
const COUNT: usize = 20;
const PREFIX_LEN: usize = 22;
const BASE: usize = 24;

fn body_sum(bytes: &[u8], seed: u64) -> u64 {
    checksum(seed, &bytes[MAGIC_AT..])
}

fn header_sum(header: &[u8], seed: u64) -> u32 {
    checksum(seed, &header[LEN..HEADER]) as u32
}

/// The length that the block header at the start of `bytes` gives, if one is there and its header sum holds.
pub(crate) fn header_len(bytes: &[u8], seed: u64) -> Option<usize> {
    if bytes.len() < HEADER || get_u32(bytes, MAGIC_AT)? != MAGIC {
        return None;
    }
    let stored = get_u32(bytes, HEADER_SUM)?;
    if !matches(u64::from(stored), u64::from(header_sum(bytes, seed))) {
        return None;
    }
    let len = get_u32(bytes, LEN)? as usize;
    (HEADER..=MAX_BLOCK).contains(&len).then_some(len)
}

/// Packs entries into a block.
#[derive(Default)]
pub(crate) struct Builder {
    /// Keys and values of the entries, one after another.
    raw: Vec<u8>,
    items: Vec<Item>,
    /// Length of the prefix that all keys have in common.
    prefix: usize,
    key_bytes: usize,
    value_bytes: usize,
    /// Bytes that the value tags take.
    tag_bytes: usize,
    lowest: Seqno,
    highest: Seqno,
    longest_key: usize,
}

struct Item {
    key: Range<usize>,
    /// End of the value in `raw`, where there is one.
    value_end: Option<usize>,
    seqno: Seqno,
}

fn value_tag(value: Option<usize>) -> u64 {
    value.map_or(0, |len| 1 + len as u64)
}

impl Builder {
    /// Whether it holds no entry.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes of the keys and values it holds.
    pub fn raw_len(&self) -> usize {
        self.raw.len()
    }

    /// An upper bound of the block's length with `entry` in it: exact up to the length of seqnos.
    pub fn len_with(&self, entry: &EntryRef<'_>) -> usize {
        let count = self.items.len() + 1;
        let first = self.items.first();
        let prefix = first.map_or(entry.key.len(), |item| {
            common_prefix(&self.raw[item.key.clone()][..self.prefix], entry.key)
        });
        let (lowest, highest) = match first {
            Some(_) => (self.lowest.min(entry.seqno), self.highest.max(entry.seqno)),
            None => (entry.seqno, entry.seqno),
        };
        let rest = self.longest_key.max(entry.key.len()) - prefix;
        let value = entry.value.map(<[u8]>::len);
        let keys = self.key_bytes + entry.key.len() - count * prefix;
        let tags = self.tag_bytes + varint_len(value_tag(value));
        let each = varint_len(rest as u64) + varint_len(highest - lowest) + 2;
        HEADER + prefix + keys + self.value_bytes + value.unwrap_or(0) + tags + count * each
    }

    /// Takes `entry`, which comes after the ones before.
    pub fn push(&mut self, entry: &EntryRef<'_>) {
        match self.items.first() {
            None => {
                self.prefix = entry.key.len();
                (self.lowest, self.highest) = (entry.seqno, entry.seqno);
            }
            Some(first) => {
                self.prefix = common_prefix(&self.raw[first.key.clone()][..self.prefix], entry.key);
                self.lowest = self.lowest.min(entry.seqno);
                self.highest = self.highest.max(entry.seqno);
            }
        }
        let start = self.raw.len();
        self.raw.extend_from_slice(entry.key);
        let key = start..self.raw.len();
        let value_end = entry.value.map(|value| {
            self.raw.extend_from_slice(value);
            self.raw.len()
        });
        let value_len = entry.value.map(<[u8]>::len);
        self.key_bytes += key.len();
        self.longest_key = self.longest_key.max(key.len());
        self.value_bytes += value_len.unwrap_or(0);
        self.tag_bytes += varint_len(value_tag(value_len));
        self.items.push(Item { key, value_end, seqno: entry.seqno });
    }

    /// Appends the block to `out`, where it will stand at the place `seed` belongs to; then holds nothing.
    pub fn finish(&mut self, out: &mut Vec<u8>, seed: u64) {
        let start = out.len();
        out.resize(start + HEADER, 0);
        if let Some(first) = self.items.first() {
            out.extend_from_slice(&self.raw[first.key.clone()][..self.prefix]);
        }
        let mut starts = Vec::with_capacity(self.items.len() * 2);
        for item in &self.items {
            starts.extend_from_slice(&((out.len() - start) as u16).to_le_bytes());
            let rest = &self.raw[item.key.start + self.prefix..item.key.end];
            let value = item.value_end.map(|end| &self.raw[item.key.end..end]);
            push_varint(out, rest.len() as u64);
            push_varint(out, value_tag(value.map(<[u8]>::len)));
            push_varint(out, item.seqno - self.lowest);
            out.extend_from_slice(rest);
            out.extend_from_slice(value.unwrap_or_default());
        }
        out.extend_from_slice(&starts);
        let block = &mut out[start..];
        let len = block.len() as u32;
        put(block, MAGIC_AT, &MAGIC.to_le_bytes());
        put(block, LEN, &len.to_le_bytes());
        put(block, COUNT, &(self.items.len() as u16).to_le_bytes());
        put(block, PREFIX_LEN, &(self.prefix as u16).to_le_bytes());
        put(block, BASE, &self.lowest.to_le_bytes());
        let sum = header_sum(block, seed);
        put(block, HEADER_SUM, &sum.to_le_bytes());
        let sum = body_sum(block, seed);
        put(block, 0, &sum.to_le_bytes());
        self.raw.clear();
        self.items.clear();
        *self = Builder {
            raw: std::mem::take(&mut self.raw),
            items: std::mem::take(&mut self.items),
            ..Self::default()
        };
    }
}

/// Where in its block an entry is. Ranges lie inside of the block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The key without the block's prefix.
    pub rest: Range<usize>,
    pub seqno: Seqno,
    /// `None` is a tombstone.
    pub value: Option<Range<usize>>,
}

/// A block whose checksum holds.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    bytes: &'a [u8],
    count: usize,
    prefix: &'a [u8],
    base: Seqno,
}

/// What the header of a block says, once its checksum holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    pub len: usize,
    pub count: usize,
    prefix_len: usize,
    base: Seqno,
}

/// What is wrong with stored bytes, in words.
pub type Flaw = &'static str;

const CUT: Flaw = "an entry of a block runs past its end";

impl<'a> Block<'a> {
    /// The block at the start of `bytes`, which stand at byte `at` of the table `id`.
    ///
    /// # Errors
    /// What is wrong, where the bytes are not a block that was written there.
    pub fn decode(bytes: &'a [u8], id: &crate::TableId, at: u64) -> Result<Self, Flaw> {
        Self::decode_seeded(bytes, id.seed_at(at))
    }

    pub(crate) fn decode_seeded(bytes: &'a [u8], seed: u64) -> Result<Self, Flaw> {
        if get_u32(bytes, MAGIC_AT) != Some(MAGIC) {
            return Err("no block begins here");
        }
        let len = get_u32(bytes, LEN).ok_or(CUT)? as usize;
        if len < HEADER {
            return Err("a block is shorter than its header");
        }
        let bytes = bytes.get(..len).ok_or("a block is longer than its place")?;
        let stored = get_u64(bytes, 0).ok_or(CUT)?;
        if !matches(stored, body_sum(bytes, seed)) {
            return Err("the checksum of a block does not match");
        }
        let count = usize::from(get_u16(bytes, COUNT).ok_or(CUT)?);
        let prefix_len = usize::from(get_u16(bytes, PREFIX_LEN).ok_or(CUT)?);
        let prefix =
            bytes.get(HEADER..HEADER + prefix_len).ok_or("the prefix of a block runs past its end")?;
        if count == 0 || HEADER + prefix_len + count * 2 > len {
            return Err("a block does not hold as many entries as it says");
        }
        Ok(Block { bytes, count, prefix, base: get_u64(bytes, BASE).ok_or(CUT)? })
    }

    /// What [`Block::with_shape`] needs to stand for this block again.
    pub(crate) fn shape(&self) -> Shape {
        Shape { len: self.bytes.len(), count: self.count, prefix_len: self.prefix.len(), base: self.base }
    }

    /// The block at the start of `bytes`, which was decoded before.
    pub(crate) fn with_shape(bytes: &'a [u8], shape: Shape) -> Self {
        let bytes = &bytes[..shape.len];
        Block {
            bytes,
            count: shape.count,
            prefix: &bytes[HEADER..HEADER + shape.prefix_len],
            base: shape.base,
        }
    }

    /// Number of entries, at least 1.
    pub fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn slot(&self, index: usize) -> Result<Slot, Flaw> {
        let starts = self.bytes.len() - self.count * 2;
        let mut at = usize::from(get_u16(self.bytes, starts + index * 2).ok_or(CUT)?);
        let body = &self.bytes[..starts];
        let rest_len = take_varint(body, &mut at).ok_or(CUT)?;
        let tag = take_varint(body, &mut at).ok_or(CUT)?;
        let delta = take_varint(body, &mut at).ok_or(CUT)?;
        let seqno = self.base.checked_add(delta).ok_or("a seqno of a block is out of range")?;
        let left = (starts - at) as u64;
        let key_len = self.prefix.len() as u64 + rest_len.min(left + 1);
        if rest_len > left || tag > left - rest_len + 1 {
            return Err(CUT);
        }
        if key_len == 0 || key_len > MAX_KEY_BYTES as u64 {
            return Err("a key of a block has no length that a key can have");
        }
        let value_at = at + rest_len as usize;
        let value = (tag > 0).then(|| value_at..value_at + (tag - 1) as usize);
        Ok(Slot { rest: at..value_at, seqno, value })
    }

    /// Entry `index`, with its key in `key`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn entry<'k>(&self, index: usize, key: &'k mut Vec<u8>) -> Result<EntryRef<'k>, Flaw>
    where
        'a: 'k,
    {
        let slot = self.slot(index)?;
        self.key_of(&slot, key);
        Ok(EntryRef { key, seqno: slot.seqno, value: slot.value.map(|range| &self.bytes[range]) })
    }

    pub(crate) fn key_of(&self, slot: &Slot, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix);
        key.extend_from_slice(&self.bytes[slot.rest.clone()]);
    }

    /// The first entry that is not before (`key`, `seqno`) in the order of a table; `count` if there is none.
    ///
    /// # Errors
    /// What is wrong with an entry on the way.
    pub fn lower_bound(&self, key: &[u8], seqno: Seqno) -> Result<usize, Flaw> {
        let Some(rest) = key.strip_prefix(self.prefix) else {
            return Ok(if key < self.prefix { 0 } else { self.count });
        };
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            let slot = self.slot(middle)?;
            let order = self.bytes[slot.rest].cmp(rest).then(seqno.cmp(&slot.seqno));
            if order == Ordering::Less { low = middle + 1 } else { high = middle }
        }
        Ok(low)
    }

    /// The newest version of `key` that is not newer than `seqno`.
    ///
    /// # Errors
    /// What is wrong with an entry on the way.
    pub fn get(&self, key: &[u8], seqno: Seqno) -> Result<Option<Version<'a>>, Flaw> {
        let index = self.lower_bound(key, seqno)?;
        if index == self.count {
            return Ok(None);
        }
        let slot = self.slot(index)?;
        let found = key.strip_prefix(self.prefix) == Some(&self.bytes[slot.rest]);
        let value = slot.value.map(|range| &self.bytes[range]);
        Ok(found.then_some(Version { seqno: slot.seqno, value }))
    }
}
