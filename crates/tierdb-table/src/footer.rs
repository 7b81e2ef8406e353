//! A table as a file, and its footer: what ends the file, and the only part found without a pointer. Little-endian.
//!
//! ```text
//!  0        blocks_len   + index_len   + filter_len    file_len - footer_len                 file_len
//!  ├────────┼────────────┼─────────────┼───────┼───────┼──────────┼─────────┼───────┼────────┤
//!  │ blocks │ index      │ filter      │ zeros │ smallest key     │ largest │ zeros │ tail   │
//!  │        │            │             │       │                  │ key     │       │ 144 B  │
//!  └────────┴────────────┴─────────────┴───────┴──────────────────┴─────────┴───────┴────────┘
//!                                              └ footer: a multiple of 4,096 bytes ──────────┘
//!
//!  tail:
//!  0       8        16      24       32           40          48           56         64        72
//!  ├───────┼────────┼───────┼────────┼────────────┼───────────┼────────────┼──────────┼─────────┤
//!  │ word  │ file   │ blocks│ index  │ filter     │ file      │ entries    │ tomb-    │ keys    │
//!  │       │ number │ len   │ len    │ len        │ len       │            │ stones   │         │
//!  └───────┴────────┴───────┴────────┴────────────┴───────────┴────────────┴──────────┴─────────┘
//!  72       80        88            96         100        102       104        112        120         124
//!  ├────────┼─────────┼─────────────┼──────────┼──────────┼─────────┼──────────┼──────────┼───────────┤
//!  │ lowest │ highest │ key and     │ blocks   │ smallest │ largest │ checksum │ checksum │ footer    │
//!  │ seqno  │ seqno   │ value bytes │ u32      │ len u16  │ len u16 │ of file  │          │ len u32   │
//!  └────────┴─────────┴─────────────┴──────────┴──────────┴─────────┴──────────┴──────────┴───────────┘
//!  124      128      132         136      144
//!  ├────────┼────────┼───────────┼────────┤
//!  │ format │ flags  │ zeros     │ magic  │
//!  │ u32    │ u32    │ u32       │ u64    │
//!  └────────┴────────┴───────────┴────────┘
//! ```
//!
//! What has no other width is a `u64`.
//!
//! * `word` is made from the store's identity and the file's number, and tells another table's footer from a damaged
//!   one. `filter len` is 0 when the table has no filter.
//! * `blocks len`, `file len` and the place of the footer are multiples of 4,096. The index begins where the
//!   blocks end.
//! * `checksum of file` is chained over the pages of 4,096 bytes before the footer: seeded with the table's id for
//!   the first page, and with the sum so far for every other. It covers blocks, index, filter and zeros.
//! * `checksum` covers the whole footer but itself, seeded with `word`. Unknown flags are refused.
//! * `word`, `checksum`, `footer len`, `format` and magic keep their distances from the end in every format, so that a
//!   newer one is told from a damaged one.
//!
//! Format 1.

use crate::block::{Flaw, LEAST_ENTRY};
use crate::bytes::{get_u16, get_u32, get_u64, put};
use crate::id::TableId;
use tierdb_base::{
    Error, Location, MAX_KEY_BYTES, Result, Seqno, TierRole, checksum, checksum_parts, matches,
};
use tierdb_device::BLOCK;

/// The newest format this build reads, and the one it writes.
pub const FORMAT: u32 = 1;
/// Most bytes of a table's file (4 GiB).
pub const MAX_TABLE_BYTES: u64 = 1 << 32;

const MAGIC: u64 = u64::from_le_bytes(*b"TierTSST");
const TAIL: usize = 144;
const CHECKSUM: usize = 112;
/// Longest footer: two of the longest keys and the tail.
const MAX_FOOTER: usize = (2 * MAX_KEY_BYTES + TAIL).next_multiple_of(BLOCK as usize);

/// What a table holds and where, as its footer says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Number of the file.
    pub number: u64,
    /// Bytes of the file, a multiple of 4,096.
    pub file_len: u64,
    /// Bytes of its blocks, a multiple of 4,096; the index follows.
    pub blocks_len: u64,
    /// Bytes of the index; the filter follows.
    pub index_len: u64,
    /// Bytes of the filter; 0 if there is none.
    pub filter_len: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// Number of entries, tombstones included.
    pub entries: u64,
    /// Number of tombstones.
    pub tombstones: u64,
    /// Number of distinct keys.
    pub keys: u64,
    /// Bytes of all keys and values, as given to the writer.
    pub data_bytes: u64,
    /// The lowest seqno of an entry.
    pub lowest_seqno: Seqno,
    /// The highest.
    pub highest_seqno: Seqno,
    /// The smallest key.
    pub smallest: Vec<u8>,
    /// The largest key.
    pub largest: Vec<u8>,
    /// Checksum of all pages before the footer.
    pub file_checksum: u64,
}

/// What is in the last page of a file, as far as can be said without the rest of the footer.
pub(crate) struct Tail {
    pub footer_len: usize,
}

impl Tail {
    /// Reads the tail at the end of `page`, the last of a file of `file_len` bytes.
    pub fn decode(page: &[u8], file_len: u64, place: &Location) -> Result<Self> {
        let corrupt = |what: Flaw| Err(Error::corrupt(TierRole::Flash, what, place.clone()));
        let field = |tail: usize| Some((get_u32(page, tail + 120)?, get_u64(page, tail + 136)?));
        let Some((footer_len, magic)) = page.len().checked_sub(TAIL).and_then(field) else {
            return corrupt("a table is shorter than its footer");
        };
        if magic != MAGIC {
            return corrupt("no footer of a table ends here");
        }
        let footer_len = footer_len as usize;
        let whole =
            footer_len.is_multiple_of(BLOCK as usize) && (BLOCK as usize..=MAX_FOOTER).contains(&footer_len);
        if !whole || footer_len as u64 > file_len {
            return corrupt("a footer has a length that none has");
        }
        Ok(Tail { footer_len })
    }
}

/// The checksum of the footer `bytes` under `word`.
fn sum_of(bytes: &[u8], word: u64) -> u64 {
    let at = bytes.len() - TAIL + CHECKSUM;
    checksum_parts(word, &[&bytes[..at], &bytes[at + 8..]])
}

impl Footer {
    /// Bytes of the footer in the file, a multiple of 4,096.
    pub fn stored_len(&self) -> usize {
        (self.smallest.len() + self.largest.len() + TAIL).next_multiple_of(BLOCK as usize)
    }

    /// Where the footer begins in the file.
    pub fn at(&self) -> u64 {
        self.file_len - self.stored_len() as u64
    }

    /// The footer as stored.
    pub fn encode(&self, id: &TableId) -> Vec<u8> {
        let mut out = vec![0; self.stored_len()];
        put(&mut out, 0, &self.smallest);
        put(&mut out, self.smallest.len(), &self.largest);
        let start = out.len() - TAIL;
        let tail = &mut out[start..];
        let words = [
            id.word(),
            self.number,
            self.blocks_len,
            self.index_len,
            self.filter_len,
            self.file_len,
            self.entries,
            self.tombstones,
            self.keys,
            self.lowest_seqno,
            self.highest_seqno,
            self.data_bytes,
        ];
        for (index, word) in words.into_iter().enumerate() {
            put(tail, index * 8, &word.to_le_bytes());
        }
        put(tail, 96, &self.blocks.to_le_bytes());
        put(tail, 100, &(self.smallest.len() as u16).to_le_bytes());
        put(tail, 102, &(self.largest.len() as u16).to_le_bytes());
        put(tail, 104, &self.file_checksum.to_le_bytes());
        put(tail, 120, &(self.stored_len() as u32).to_le_bytes());
        put(tail, 124, &FORMAT.to_le_bytes());
        put(tail, 136, &MAGIC.to_le_bytes());
        let sum = sum_of(&out, id.word());
        put(&mut out[start..], CHECKSUM, &sum.to_le_bytes());
        out
    }

    /// The footer in `bytes`, all of it, if it is that of the table `id`. `place` is where it begins, for errors.
    ///
    /// # Errors
    /// `NewerFormat` for an intact footer in one; `ForeignTier` for an intact one of another table; `Corrupt`.
    pub fn decode(bytes: &[u8], id: &TableId, place: &Location) -> Result<Self> {
        Tail::decode(bytes, bytes.len() as u64, place)?;
        let corrupt = |what: Flaw| Error::corrupt(TierRole::Flash, what, place.clone());
        let tail = bytes.len().checked_sub(TAIL).map(|at| &bytes[at..]).unwrap_or_default();
        let word = |at: usize| get_u64(tail, at).unwrap_or(0);
        let half = |at: usize| get_u32(tail, at).unwrap_or(0);
        // Under its own word: another table's may be whole.
        if !matches(word(CHECKSUM), sum_of(bytes, word(0))) {
            return Err(corrupt("the checksum of a footer does not match"));
        }
        if half(124) > FORMAT {
            return Err(Error::NewerFormat { place: place.clone(), found: half(124), newest: FORMAT });
        }
        if word(0) != id.word() {
            return Err(Error::ForeignTier {
                path: place.file.as_ref().into(),
                expected: format!("table {} ({:016x})", id.number, id.word()),
                found: format!("table {} ({:016x})", word(8), word(0)),
            });
        }
        if half(124) != FORMAT || half(128) != 0 {
            return Err(corrupt("a footer has a format or flags that this version does not read"));
        }
        let smallest = usize::from(get_u16(tail, 100).unwrap_or(0));
        let keys_len = smallest + usize::from(get_u16(tail, 102).unwrap_or(0));
        let keys = bytes.get(..keys_len).ok_or_else(|| corrupt("the keys of a footer run past its end"))?;
        let footer = Footer {
            number: word(8),
            blocks_len: word(16),
            index_len: word(24),
            filter_len: word(32),
            file_len: word(40),
            entries: word(48),
            tombstones: word(56),
            keys: word(64),
            lowest_seqno: word(72),
            highest_seqno: word(80),
            data_bytes: word(88),
            blocks: half(96),
            file_checksum: word(104),
            smallest: keys[..smallest].to_vec(),
            largest: keys[smallest..].to_vec(),
        };
        match footer.contradiction(bytes.len()) {
            None => Ok(footer),
            Some(what) => Err(corrupt(what)),
        }
    }

    /// What in it cannot be true.
    fn contradiction(&self, len: usize) -> Option<Flaw> {
        let lens = [self.blocks_len, self.index_len, self.filter_len, self.file_len];
        let key = |key: &[u8]| (1..=MAX_KEY_BYTES).contains(&key.len());
        if lens.iter().any(|len| *len > MAX_TABLE_BYTES) || !key(&self.smallest) || !key(&self.largest) {
            return Some("a footer with lengths that no table has");
        }
        let parts = (self.blocks_len + self.index_len + self.filter_len).next_multiple_of(BLOCK);
        if self.stored_len() != len
            || parts + len as u64 != self.file_len
            || !self.blocks_len.is_multiple_of(BLOCK)
        {
            return Some("a footer whose lengths contradict each other");
        }
        // What is allocated for so many keys is no longer than the table.
        let counts = self.keys <= self.entries
            && self.tombstones <= self.entries
            && self.entries <= self.blocks_len / LEAST_ENTRY
            && self.data_bytes <= self.blocks_len + self.entries * MAX_KEY_BYTES as u64;
        if self.entries == 0
            || !counts
            || self.smallest > self.largest
            || self.lowest_seqno > self.highest_seqno
        {
            return Some("a footer whose counts or keys contradict each other");
        }
        None
    }

    /// Whether `key` lies between the smallest and the largest key.
    pub fn covers(&self, key: &[u8]) -> bool {
        *self.smallest <= *key && *key <= *self.largest
    }
}

/// The checksum chained over `pages`, a whole number of them, from `sum`, that of the pages before.
pub(crate) fn chain(sum: u64, pages: &[u8]) -> u64 {
    pages.chunks(BLOCK as usize).fold(sum, checksum)
}

/// What the chain begins with.
pub(crate) fn chain_start(id: &TableId) -> u64 {
    id.seed_of(b"file")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tierdb_base::ErrorKind;

    const ID: TableId = TableId { store: 3, number: 9 };

    fn footer() -> Footer {
        Footer {
            number: 9,
            file_len: 3 * BLOCK,
            blocks_len: BLOCK,
            index_len: 100,
            filter_len: 50,
            blocks: 1,
            entries: 5,
            tombstones: 1,
            keys: 4,
            data_bytes: 77,
            lowest_seqno: 6,
            highest_seqno: 60,
            smallest: b"a".to_vec(),
            largest: b"bcd".to_vec(),
            file_checksum: 1234,
        }
    }

    fn decode(bytes: &[u8]) -> Result<Footer> {
        Footer::decode(bytes, &ID, &Location::new("t", 0))
    }

    #[test]
    fn a_footer_reads_back() {
        let long =
            Footer { smallest: vec![1; 4096], largest: vec![2; 4096], file_len: 5 * BLOCK, ..footer() };
        for footer in [footer(), long] {
            assert_eq!(decode(&footer.encode(&ID)).expect("whole"), footer);
        }
    }

    #[test]
    fn no_flipped_bit_passes() {
        let mut bytes = footer().encode(&ID);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let refused = decode(&bytes).expect_err("damaged");
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "bit {bit}: {refused}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn contradictions_are_refused_by_what_is_wrong() {
        for wrong in [
            Footer { file_len: 4 * BLOCK, ..footer() },
            Footer { blocks_len: BLOCK + 64, ..footer() },
            Footer { filter_len: u64::MAX, ..footer() },
            Footer { entries: 0, ..footer() },
            Footer { keys: 6, ..footer() },
            Footer { tombstones: 6, ..footer() },
            Footer { data_bytes: 1 << 60, ..footer() },
            Footer { entries: 1 << 60, keys: 1 << 60, ..footer() },
            Footer { smallest: b"c".to_vec(), ..footer() },
            Footer { smallest: Vec::new(), ..footer() },
            Footer { lowest_seqno: 61, ..footer() },
        ] {
            assert_eq!(
                decode(&wrong.encode(&ID)).expect_err("wrong").kind(),
                ErrorKind::Corrupt,
                "{wrong:?}"
            );
        }
        let bytes = footer().encode(&TableId { number: 8, ..ID });
        assert!(matches!(decode(&bytes), Err(Error::ForeignTier { .. })));
        let mut newer = footer().encode(&ID);
        let tail = newer.len() - TAIL;
        put(&mut newer, tail + 124, &2u32.to_le_bytes());
        let sum = sum_of(&newer, ID.word());
        put(&mut newer, tail + CHECKSUM, &sum.to_le_bytes());
        assert!(matches!(decode(&newer), Err(Error::NewerFormat { found: 2, newest: 1, .. })));
        for len in [0, 1, TAIL - 1, TAIL] {
            assert!(decode(&bytes[..len]).is_err());
        }
    }
}
