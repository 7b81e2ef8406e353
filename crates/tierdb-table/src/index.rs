//! The index of a table: for every block, where it begins and from which key on. A byte string of its own, so that
//! it can be kept on a faster tier than the table. Little-endian; offsets from the start of the index.
//!
//! ```text
//!  0          8       16       20      24       28          32       36         38
//!  ├──────────┼───────┼────────┼───────┼────────┼───────────┼────────┼──────────┼──────────┐
//!  │ checksum │ magic │ format │ flags │ blocks │ continued │ keys   │ prefix   │ largest  │
//!  │ xxh3-64  │ u64   │ u32    │ u32   │ u32    │ u32       │ len u32│ len u16  │ len u16  │
//!  └──────────┴───────┴────────┴───────┴────────┴───────────┴────────┴──────────┴──────────┘
//!  40                40 + 4 * (blocks + 1)
//!  ├─────────────────┼─────────────────┼──────────────────┼──────────────────┬────────┬──────┬─────────┐
//!  │ starts          │ key ends        │ continued blocks │ their seqnos     │ prefix │ keys │ largest │
//!  │ u32 × blocks + 1│ u32 × blocks    │ u32 × continued  │ u64 × continued  │        │      │ key     │
//!  └─────────────────┴─────────────────┴──────────────────┴──────────────────┴────────┴──────┴─────────┘
//! ```
//!
//! * A start is in units of 64 bytes; the one behind the last block is where the blocks end. Between two starts is
//!   the block, then zeros.
//! * Key *i* (the prefix, then the bytes up to key end *i*) separates: it is above every key of block *i* - 1 and not
//!   above any of block *i*. That of block 0 is the smallest key of the table.
//! * A continued block begins with older versions of the last key of the block before. Its separator is that key,
//!   and its seqno is that of the last version in the block before.
//! * `checksum` covers all but itself and is seeded with the table's id. Unknown flags are refused.
//!
//! Since format 1 of the footer.

use crate::block::{ALIGN, Flaw};
use crate::bytes::{common_prefix, get_u16, get_u32, get_u64, put};
use crate::id::TableId;
use std::cmp::Ordering;
use std::ops::Range;
use tierdb_base::{MAX_KEY_BYTES, Seqno, checksum, matches};

const MAGIC: u64 = u64::from_le_bytes(*b"TierTIdx");
const FORMAT: u32 = 1;
const MAGIC_AT: usize = 8;
const HEADER: usize = 40;

fn sum_of(bytes: &[u8], id: &TableId) -> u64 {
    checksum(id.seed_of(b"index"), &bytes[MAGIC_AT..])
}

/// Collects what the index of a table holds.
#[derive(Default)]
pub(crate) struct Builder {
    starts: Vec<u32>,
    keys: Vec<u8>,
    key_ends: Vec<u32>,
    continued: Vec<(u32, Seqno)>,
}

impl Builder {
    /// A block begins at byte `at` with an entry of `first`. `last` is the entry before, with its seqno.
    pub fn push(&mut self, at: u64, first: &[u8], last: Option<(&[u8], Seqno)>) {
        let separator = match last {
            None => first,
            Some((last, seqno)) if last == first => {
                self.continued.push((self.starts.len() as u32, seqno));
                first
            }
            Some((last, _)) => &first[..common_prefix(last, first) + 1],
        };
        self.starts.push((at / ALIGN as u64) as u32);
        self.keys.extend_from_slice(separator);
        self.key_ends.push(self.keys.len() as u32);
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.starts.len()
    }

    /// Bytes that the separators take, all of each.
    pub fn key_bytes(&self) -> usize {
        self.keys.len()
    }

    /// The index as stored, of blocks that end at byte `end`, the last key being `largest`.
    pub fn encode(self, end: u64, largest: &[u8], id: &TableId) -> Vec<u8> {
        let key_of = |index: usize| {
            let start = if index == 0 { 0 } else { self.key_ends[index - 1] as usize };
            &self.keys[start..self.key_ends[index] as usize]
        };
        let blocks = self.starts.len();
        // Separators ascend, so what the first and the last have in common all have.
        let prefix =
            if blocks == 0 { &[][..] } else { &key_of(0)[..common_prefix(key_of(0), key_of(blocks - 1))] };
        let mut out = vec![0; HEADER];
        for start in self.starts.iter().chain([&((end / ALIGN as u64) as u32)]) {
            out.extend_from_slice(&start.to_le_bytes());
        }
        for (index, key_end) in self.key_ends.iter().enumerate() {
            let cut = *key_end - ((index + 1) * prefix.len()) as u32;
            out.extend_from_slice(&cut.to_le_bytes());
        }
        for (block, _) in &self.continued {
            out.extend_from_slice(&block.to_le_bytes());
        }
        for (_, seqno) in &self.continued {
            out.extend_from_slice(&seqno.to_le_bytes());
        }
        out.extend_from_slice(prefix);
        let keys_at = out.len();
        for index in 0..blocks {
            out.extend_from_slice(&key_of(index)[prefix.len()..]);
        }
        let keys_len = (out.len() - keys_at) as u32;
        out.extend_from_slice(largest);
        put(&mut out, MAGIC_AT, &MAGIC.to_le_bytes());
        put(&mut out, 16, &FORMAT.to_le_bytes());
        put(&mut out, 24, &(blocks as u32).to_le_bytes());
        put(&mut out, 28, &(self.continued.len() as u32).to_le_bytes());
        put(&mut out, 32, &keys_len.to_le_bytes());
        put(&mut out, 36, &(prefix.len() as u16).to_le_bytes());
        put(&mut out, 38, &(largest.len() as u16).to_le_bytes());
        let sum = sum_of(&out, id);
        put(&mut out, 0, &sum.to_le_bytes());
        out
    }
}

/// The index of a table, checked. Holds the bytes as stored, and searches them there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    bytes: Box<[u8]>,
    blocks: usize,
    continued: usize,
    prefix: Range<usize>,
    keys: Range<usize>,
}

impl Index {
    /// The index in `bytes`, if it is that of the table `id`.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: impl Into<Box<[u8]>>, id: &TableId) -> Result<Self, Flaw> {
        const CUT: Flaw = "an index has not the length it says";
        let bytes = bytes.into();
        if bytes.len() < HEADER || get_u64(&bytes, MAGIC_AT) != Some(MAGIC) {
            return Err("no index begins here");
        }
        if !matches(get_u64(&bytes, 0).ok_or(CUT)?, sum_of(&bytes, id)) {
            return Err("the checksum of an index does not match");
        }
        if get_u32(&bytes, 16) != Some(FORMAT) || get_u32(&bytes, 20) != Some(0) {
            return Err("an index has a format or flags that this version does not read");
        }
        let word = |at: usize| get_u32(&bytes, at).map(|word| word as usize).ok_or(CUT);
        let (blocks, continued, keys_len) = (word(24)?, word(28)?, word(32)?);
        let prefix_len = usize::from(get_u16(&bytes, 36).ok_or(CUT)?);
        let largest_len = usize::from(get_u16(&bytes, 38).ok_or(CUT)?);
        // Each count is a u32, so this cannot overflow.
        let arrays = HEADER + 4 + blocks * 8 + continued * 12;
        let keys_at = arrays + prefix_len;
        if keys_at + keys_len + largest_len != bytes.len() {
            return Err(CUT);
        }
        let keys = keys_at..keys_at + keys_len;
        let index = Index { bytes, blocks, continued, prefix: arrays..keys_at, keys };
        index.check()?;
        Ok(index)
    }

    /// Checks what the accessors below rely on.
    fn check(&self) -> Result<(), Flaw> {
        if self.blocks == 0 || self.start_word(0) != 0 {
            return Err("an index without a first block");
        }
        if self.largest().is_empty()
            || self.largest().len() > MAX_KEY_BYTES
            || self.prefix.len() > MAX_KEY_BYTES
        {
            return Err("an index with keys that are none");
        }
        let mut end = 0;
        for block in 0..self.blocks {
            if self.start_word(block) >= self.start_word(block + 1) {
                return Err("an index whose blocks do not follow one another");
            }
            let key_end = self.key_end(block);
            if key_end < end || key_end > self.keys.len() || key_end - end + self.prefix.len() > MAX_KEY_BYTES
            {
                return Err("an index whose keys do not follow one another");
            }
            end = key_end;
        }
        if end != self.keys.len() {
            return Err("an index with more keys than blocks");
        }
        for number in 0..self.continued {
            let block = self.continued_block(number);
            if block == 0 || block >= self.blocks || (number > 0 && self.continued_block(number - 1) >= block)
            {
                return Err("an index whose continued blocks are out of order");
            }
        }
        Ok(())
    }

    /// The index as stored.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of blocks, at least 1.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    fn word(&self, at: usize) -> usize {
        get_u32(&self.bytes, at).unwrap_or(0) as usize
    }

    fn start_word(&self, block: usize) -> usize {
        self.word(HEADER + block * 4)
    }

    fn key_end(&self, block: usize) -> usize {
        self.word(HEADER + (self.blocks + 1 + block) * 4)
    }

    fn continued_block(&self, number: usize) -> usize {
        self.word(HEADER + (2 * self.blocks + 1 + number) * 4)
    }

    /// The seqno of the last version before block `block`, if the block continues a key.
    pub(crate) fn continues(&self, block: usize) -> Option<Seqno> {
        let (mut low, mut high) = (0, self.continued);
        while low < high {
            let middle = low.midpoint(high);
            match self.continued_block(middle).cmp(&block) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => {
                    let seqnos = HEADER + (2 * self.blocks + 1 + self.continued) * 4;
                    return get_u64(&self.bytes, seqnos + middle * 8);
                }
            }
        }
        None
    }

    /// Bytes of the file from block `block` to the next, or to the end of the blocks.
    pub fn place(&self, block: usize) -> Range<u64> {
        let at = |block| self.start_word(block) as u64 * ALIGN as u64;
        at(block)..at(block + 1)
    }

    /// Where the blocks end.
    pub(crate) fn blocks_end(&self) -> u64 {
        self.start_word(self.blocks) as u64 * ALIGN as u64
    }

    fn rest(&self, block: usize) -> &[u8] {
        let start = if block == 0 { 0 } else { self.key_end(block - 1) };
        &self.bytes[self.keys.clone()][start..self.key_end(block)]
    }

    /// The separator of block `block`: not above any key in it, and above every key before.
    pub fn separator(&self, block: usize) -> Vec<u8> {
        [&self.bytes[self.prefix.clone()], self.rest(block)].concat()
    }

    /// The largest key of the table.
    pub fn largest(&self) -> &[u8] {
        &self.bytes[self.keys.end..]
    }

    /// The only block in which the newest version of `key` that is not newer than `seqno` can be.
    /// `None` if the table does not reach so far.
    pub fn find(&self, key: &[u8], seqno: Seqno) -> Option<usize> {
        if key > self.largest() { None } else { self.floor(key, seqno) }
    }

    /// The last block that does not begin after (`key`, `seqno`); `None` if the first one does.
    pub(crate) fn floor(&self, key: &[u8], seqno: Seqno) -> Option<usize> {
        let prefix = &self.bytes[self.prefix.clone()];
        let Some(rest) = key.strip_prefix(prefix) else {
            return if key < prefix { None } else { Some(self.blocks - 1) };
        };
        let (mut low, mut high) = (0, self.blocks);
        while low < high {
            let middle = low.midpoint(high);
            let begins_after = match self.rest(middle).cmp(rest) {
                Ordering::Less => false,
                Ordering::Greater => true,
                Ordering::Equal => self.continues(middle).is_some_and(|last| seqno >= last),
            };
            if begins_after { high = middle } else { low = middle + 1 }
        }
        low.checked_sub(1)
    }
}
