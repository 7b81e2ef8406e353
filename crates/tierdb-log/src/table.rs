//! The page table: which slot of the image each page is in, and where the log begins that goes on top.
//! Three areas of equal length in one file, written in turn. Little-endian; offsets from the start of an area.
//!
//! ```text
//!  0       8        12      16      24           32         40        48        56
//!  ├───────┼────────┼───────┼───────┼────────────┼──────────┼─────────┼─────────┤
//!  │ magic │ format │ flags │ store │ generation │ pool     │ log     │ largest │
//!  │ u64   │ u32    │ u32   │ u64   │ u64        │ len u64  │ len u64 │ block   │
//!  └───────┴────────┴───────┴───────┴────────────┴──────────┴─────────┴─────────┘
//!  56         64         72    80         88      96            104        112     4096
//!  ├──────────┼──────────┼─────┼──────────┼───────┼─────────────┼──────────┼───────┼──────────┬─────────┬─────────┐
//!  │ log      │ log      │ log │ log      │ pages │ checksum of │ checksum │ zeros │ checksum │ slot    │ padding │
//!  │ position │ sequence │ lsn │ previous │ u64   │ the entries │ of 0..104│       │ u64 each │ u32 each│         │
//!  └──────────┴──────────┴─────┴──────────┴───────┴─────────────┴──────────┴───────┴──────────┴─────────┴─────────┘
//! ```
//!
//! * `pages` counts from page 0 to the last that has a slot. Slot `0xffff_ffff`: the page was never
//!   checkpointed and is zeros. First all checksums of pages, then all slots.
//! * `store` is a word made from the store's identity; it seeds the header's checksum, so that the table of
//!   another store is told from a damaged one. The other checksums are seeded with the identity itself,
//!   that of a page also with its number.
//! * Magic, `format`, `store`, and the header's checksum keep their places in every format, so that a newer one is told
//!   from a damaged one.
//! * Flag bit 0, *clean*: no log block follows. An unknown flag means the table must not be used.
//! * The last bytes of an area, as many as the largest log block has, may hold a copy of a log block, written
//!   before the table. It stands in for the one on the ring if that does not check; see the store.
//!
//! Since format 1.

use crate::block::{COUNTER_END, Cursor};
use crate::layout::{PAGE, get_u32, get_u64, put_u32, put_u64};
use crate::options::{LARGEST_POOL, check_log};
use std::mem::offset_of;
use tierdb_base::{Error, Location, Result, TierRole, checksum, matches};
use tierdb_device::{AlignedBuf, BLOCK};

const MAGIC: u64 = u64::from_le_bytes(*b"TierTabl");
/// The newest format this build reads, and the one it writes.
pub(crate) const FORMAT: u32 = 1;
const CLEAN: u32 = 1;

#[repr(C)]
struct Raw {
    magic: u64,
    format: u32,
    flags: u32,
    store: u64,
    generation: u64,
    pool_len: u64,
    log_len: u64,
    largest_block: u64,
    log: [u64; 4],
    pages: u64,
    entries_checksum: u64,
    checksum: u64,
}

const _: () = {
    assert!(size_of::<Raw>() == 112);
    assert!(offset_of!(Raw, flags) == 12);
    assert!(offset_of!(Raw, store) == 16);
    assert!(offset_of!(Raw, generation) == 24);
    assert!(offset_of!(Raw, pool_len) == 32);
    assert!(offset_of!(Raw, log_len) == 40);
    assert!(offset_of!(Raw, largest_block) == 48);
    assert!(offset_of!(Raw, log) == 56);
    assert!(offset_of!(Raw, pages) == 88);
    assert!(offset_of!(Raw, entries_checksum) == 96);
    assert!(offset_of!(Raw, checksum) == 104);
};

/// Where a page is in the image, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageEntry {
    pub(crate) slot: u32,
    pub(crate) sum: u64,
}

impl PageEntry {
    /// Never checkpointed.
    pub(crate) const NONE: PageEntry = PageEntry { slot: u32::MAX, sum: 0 };
}

/// A table's header, checked: lengths fit each other, and the log position lies in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableHeader {
    pub(crate) clean: bool,
    pub(crate) generation: u64,
    pub(crate) pool_len: u64,
    pub(crate) log_len: u64,
    pub(crate) largest_block: u64,
    pub(crate) log: Cursor,
    pub(crate) pages: u64,
    entries_checksum: u64,
}

/// Areas in the file. Two would do if the newest table were always certain to be on media. After a write that
/// failed or was cut off it can be read and yet be lost in the next power failure, so the next one must
/// spare it and the one before it.
pub(crate) const AREAS: u64 = 3;

/// Bytes of entries for `pages` pages, padded.
pub(crate) fn entries_len(pages: u64) -> u64 {
    (pages * 12).next_multiple_of(BLOCK)
}

/// Bytes of an area for a pool of `pool_len` bytes and log blocks of up to `largest_block`.
pub(crate) fn area_len(pool_len: u64, largest_block: u64) -> u64 {
    BLOCK + entries_len(pool_len / PAGE) + largest_block
}

fn store_word(seed: u64) -> u64 {
    checksum(seed, b"page table")
}

/// Checksum of page `page` with these `bytes`.
pub(crate) fn page_sum(seed: u64, page: u64, bytes: &[u8]) -> u64 {
    checksum(checksum(seed, &page.to_le_bytes()), bytes)
}

/// What stands in an area.
pub(crate) enum Area {
    /// A header that checks; its entries are still to be read.
    Table(TableHeader),
    /// Nothing that checks: never written, torn, or damaged.
    Nothing,
}

impl TableHeader {
    /// Builds the table with this header and `entries`.
    pub(crate) fn encode(
        generation: u64,
        clean: bool,
        lens: (u64, u64, u64),
        log: &Cursor,
        entries: &[PageEntry],
        seed: u64,
    ) -> Result<AlignedBuf> {
        let (pool_len, log_len, largest_block) = lens;
        let stored = entries.len() * 12;
        let mut area = AlignedBuf::zeroed(BLOCK as usize + stored)?;
        let (head, body) = area.split_at_mut(BLOCK as usize);
        let (sums, slots) = body.split_at_mut(entries.len() * 8);
        for (index, entry) in entries.iter().enumerate() {
            put_u64(sums, index * 8, entry.sum);
            put_u32(slots, index * 4, entry.slot);
        }
        put_u64(head, offset_of!(Raw, magic), MAGIC);
        put_u32(head, offset_of!(Raw, format), FORMAT);
        put_u32(head, offset_of!(Raw, flags), if clean { CLEAN } else { 0 });
        put_u64(head, offset_of!(Raw, store), store_word(seed));
        put_u64(head, offset_of!(Raw, generation), generation);
        put_u64(head, offset_of!(Raw, pool_len), pool_len);
        put_u64(head, offset_of!(Raw, log_len), log_len);
        put_u64(head, offset_of!(Raw, largest_block), largest_block);
        for (index, word) in [log.position, log.sequence, log.lsn, log.previous].into_iter().enumerate() {
            put_u64(head, offset_of!(Raw, log) + index * 8, word);
        }
        put_u64(head, offset_of!(Raw, pages), entries.len() as u64);
        put_u64(head, offset_of!(Raw, entries_checksum), checksum(seed, &body[..stored]));
        let sum = checksum(store_word(seed), &head[..offset_of!(Raw, checksum)]);
        put_u64(head, offset_of!(Raw, checksum), sum);
        Ok(area)
    }

    /// Reads the header in the first block of an area of `area` bytes, which stands at `place`.
    ///
    /// # Errors
    /// `NewerFormat` for an intact table in one; `ForeignTier` for an intact one of another store; `Corrupt` for an
    /// intact one that contradicts itself or the file's length.
    pub(crate) fn decode(head: &[u8], area: u64, seed: u64, place: &Location) -> Result<Area> {
        if head.len() < BLOCK as usize || get_u64(head, offset_of!(Raw, magic)) != MAGIC {
            return Ok(Area::Nothing);
        }
        let store = get_u64(head, offset_of!(Raw, store));
        let sum = checksum(store, &head[..offset_of!(Raw, checksum)]);
        if !matches(get_u64(head, offset_of!(Raw, checksum)), sum) {
            return Ok(Area::Nothing);
        }
        let found = get_u32(head, offset_of!(Raw, format));
        if found > FORMAT {
            return Err(Error::NewerFormat { place: place.clone(), found, newest: FORMAT });
        }
        if store != store_word(seed) {
            return Err(Error::ForeignTier {
                path: place.file.as_ref().into(),
                expected: format!("the logged pool {:016x}", store_word(seed)),
                found: format!("the logged pool {store:016x}"),
            });
        }
        let flags = get_u32(head, offset_of!(Raw, flags));
        let log = |index: usize| get_u64(head, offset_of!(Raw, log) + index * 8);
        let header = TableHeader {
            clean: flags & CLEAN != 0,
            generation: get_u64(head, offset_of!(Raw, generation)),
            pool_len: get_u64(head, offset_of!(Raw, pool_len)),
            log_len: get_u64(head, offset_of!(Raw, log_len)),
            largest_block: get_u64(head, offset_of!(Raw, largest_block)),
            log: Cursor { position: log(0), sequence: log(1), lsn: log(2), previous: log(3) },
            pages: get_u64(head, offset_of!(Raw, pages)),
            entries_checksum: get_u64(head, offset_of!(Raw, entries_checksum)),
        };
        let wrong = if found != FORMAT || flags & !CLEAN != 0 {
            Some(format!("format {found} with flags {flags:#x} is not one this version writes"))
        } else {
            header.contradiction(area)
        };
        match wrong {
            None => Ok(Area::Table(header)),
            Some(what) => Err(Error::corrupt(TierRole::Fast, format!("page table: {what}"), place.clone())),
        }
    }

    fn contradiction(&self, area: u64) -> Option<String> {
        let is_length = (1..=LARGEST_POOL).contains(&self.pool_len) && self.pool_len.is_multiple_of(PAGE);
        if !is_length || self.pool_len / PAGE > area / 12 {
            return Some(format!("a pool of {} bytes does not fit an area of {area}", self.pool_len));
        }
        if let Err(what) = check_log(self.log_len, self.largest_block) {
            return Some(what);
        }
        if self.largest_block > area || area_len(self.pool_len, self.largest_block) != area {
            return Some(format!("an area of {area} bytes is not one of its pool and log"));
        }
        if self.pages > self.pool_len / PAGE {
            return Some(format!("{} pages in a pool of {} bytes", self.pages, self.pool_len));
        }
        let room = self.log_len - self.log.position % self.log_len;
        if !self.log.position.is_multiple_of(BLOCK) || room < self.largest_block {
            return Some(format!("log position {} is not one where a block can be", self.log.position));
        }
        if [self.log.position, self.log.sequence, self.log.lsn, self.generation]
            .iter()
            .any(|one| *one >= COUNTER_END)
        {
            return Some("a counter is out of range".into());
        }
        None
    }

    /// The entries in `body`, the bytes after the header's block; `None` if they do not check.
    pub(crate) fn entries(&self, body: &[u8], seed: u64) -> Option<Vec<PageEntry>> {
        let pages = self.pages as usize;
        let stored = body.get(..pages * 12)?;
        if !matches(self.entries_checksum, checksum(seed, stored)) {
            return None;
        }
        let (sums, slots) = stored.split_at(pages * 8);
        Some(
            (0..pages)
                .map(|i| PageEntry { slot: get_u32(slots, i * 4), sum: get_u64(sums, i * 8) })
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENS: (u64, u64, u64) = (10 * PAGE, 64 * BLOCK, BLOCK);
    const LOG: Cursor = Cursor { position: 65 * BLOCK, sequence: 9, lsn: 7, previous: 3 };

    fn table(log: &Cursor, lens: (u64, u64, u64)) -> AlignedBuf {
        let entries = [PageEntry { slot: 4, sum: 44 }, PageEntry::NONE, PageEntry { slot: 0, sum: 1 }];
        TableHeader::encode(5, true, lens, log, &entries, 99).expect("small")
    }

    fn decode(bytes: &[u8], seed: u64) -> Result<Area> {
        TableHeader::decode(&bytes[..BLOCK as usize], area_len(LENS.0, LENS.2), seed, &Location::new("t", 0))
    }

    #[test]
    fn a_table_reads_back() {
        let bytes = table(&LOG, LENS);
        let Ok(Area::Table(header)) = decode(&bytes, 99) else { panic!("a table") };
        assert_eq!((header.generation, header.clean, header.log, header.pages), (5, true, LOG, 3));
        let entries = header.entries(&bytes[BLOCK as usize..], 99).expect("whole");
        assert_eq!(entries[0], PageEntry { slot: 4, sum: 44 });
        assert_eq!(entries[1], PageEntry::NONE);
        assert!(header.entries(&bytes[BLOCK as usize..BLOCK as usize + 35], 99).is_none());
    }

    #[test]
    fn no_flipped_bit_passes() {
        let mut bytes = table(&LOG, LENS);
        for bit in (0..size_of::<Raw>() * 8).chain(BLOCK as usize * 8..(BLOCK as usize + 36) * 8) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let passes = match decode(&bytes, 99).expect("damaged, and nothing else") {
                Area::Table(header) => header.entries(&bytes[BLOCK as usize..], 99).is_some(),
                Area::Nothing => false,
            };
            assert!(!passes, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_pool_that_is_longer_than_any_is_refused() {
        let reads = |len| {
            let bytes = table(&LOG, (len, LENS.1, LENS.2));
            let area = area_len(len, LENS.2);
            TableHeader::decode(&bytes[..BLOCK as usize], area, 99, &Location::new("t", 0)).is_ok()
        };
        assert!(reads(LARGEST_POOL) && !reads(LARGEST_POOL + PAGE));
    }

    #[test]
    fn contradictions_are_refused_by_what_is_wrong() {
        let kind = |bytes: &[u8], seed| decode(bytes, seed).err().map(|e| e.to_string());
        assert!(kind(&table(&LOG, LENS), 98).is_some_and(|e| e.contains("expects")), "another store");
        for (log, lens) in [
            (LOG, (11 * PAGE + (1 << 30), LENS.1, LENS.2)),
            (LOG, (PAGE + 1, LENS.1, LENS.2)),
            (LOG, (LENS.0, BLOCK, LENS.2)),
            (LOG, (LENS.0, LENS.1, 0)),
            (Cursor { position: 1, ..LOG }, LENS),
            (Cursor { lsn: 1 << 62, ..LOG }, LENS),
        ] {
            assert!(kind(&table(&log, lens), 99).is_some_and(|e| e.contains("corrupt")), "{log:?} {lens:?}");
        }
        let mut newer = table(&LOG, LENS);
        put_u32(&mut newer, offset_of!(Raw, format), FORMAT + 1);
        assert!(matches!(decode(&newer, 99), Ok(Area::Nothing)), "damaged, not newer");
        let sum = checksum(store_word(99), &newer[..offset_of!(Raw, checksum)]);
        put_u64(&mut newer, offset_of!(Raw, checksum), sum);
        assert!(matches!(decode(&newer, 99), Err(Error::NewerFormat { found: 2, .. })));
    }
}
