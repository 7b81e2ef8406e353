//! Where things are in the pool, and its header.
//!
//! ```text
//! byte 0        4096                                              
//! ├─────────────┼────────────┼──────────────┼───────────────────────────────┤
//! │ header page │ page table │ ring 0 … n-1 │ pages: HSIT, leaves, blobs    │
//! └─────────────┴────────────┴──────────────┴───────────────────────────────┘
//!
//! header:  0 magic   8 format u32, flags u32   16 store seed   24 pool length   32 chunk bytes
//!         40 rings u32, flash directories u32  48 ring bytes   56 checksum of 0..56
//!         64 head of the leaf chain            72 seqno limit, sealed
//!        128 + 8 n: commit slot of ring n, sealed
//!       1024 page that holds the head of the image that a close has left, or 0, sealed
//! ```
//!
//! * The words before 64 never change; those after are published one by one.
//! * Magic, format, and the checksum of the bytes before it keep their places in every format, so that a newer one is
//!   told from a damaged one.
//! * *seqno limit*: no seqno at or above it was ever given out, in steps of 2^20. It is raised before that.
//! * *commit slot*: 0, or the offset / 32 of the redo record of a batch that is durable and being installed.
//! * *sealed*: a number of 41 bits, and above it 23 bits of a checksum of the number and the word's place, so
//!   that no damage replays an old batch or gives out old seqnos again.
//!
//! Since format 1.

use crate::config::Options;
use crate::pages::PAGE;
use tierdb_base::{Error, Result, TierRole, checksum, matches};
use tierdb_pmem::{Pool, Stage, seal};

const MAGIC: u64 = u64::from_le_bytes(*b"TIERVLOG");
const FORMAT: u32 = 1;
/// Byte of the head word of the leaf chain.
pub const INDEX_HEAD: u64 = 64;
/// Byte of the seqno limit.
pub const SEQNO_LIMIT: u64 = 72;
/// Byte of the word that names the image of a closed store.
pub const IMAGE: u64 = 1024;
const COMMIT_SLOTS: u64 = 128;

/// The parts of a pool, from its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the pool.
    pub pool_len: u64,
    /// Bytes of a Value Storage chunk.
    pub chunk_bytes: u64,
    /// Number of rings.
    pub rings: u32,
    /// Bytes of a ring.
    pub ring_bytes: u64,
    /// Number of flash directories.
    pub flash: u32,
}

impl Layout {
    /// The layout for a new pool of `pool_len` bytes.
    ///
    /// # Errors
    /// `Invalid` if the rings leave less than 16 pages for the index.
    pub fn new(pool_len: u64, flash: usize, options: &Options) -> Result<Self> {
        options.validate()?;
        let layout = Layout {
            pool_len,
            chunk_bytes: options.chunk_bytes,
            rings: options.rings,
            ring_bytes: options.ring_bytes,
            flash: flash as u32,
        };
        if layout.first_page() + 16 > pool_len / PAGE {
            return Err(Error::invalid(format!(
                "a fast tier of {pool_len} bytes is too small for {} write-buffer rings of {} bytes and an index: at \
                 least {} bytes are needed",
                options.rings,
                options.ring_bytes,
                (layout.first_page() + 16) * PAGE
            )));
        }
        Ok(layout)
    }

    /// Byte of the page table.
    pub fn page_table_at(&self) -> u64 {
        PAGE
    }

    /// Byte of the first ring.
    pub fn rings_at(&self) -> u64 {
        // A word for each page of the pool is a little more than the managed pages need.
        PAGE + (self.pool_len / PAGE * 8).next_multiple_of(PAGE)
    }

    /// Number of the first page that is handed out.
    pub fn first_page(&self) -> u64 {
        (self.rings_at() + u64::from(self.rings) * self.ring_bytes) / PAGE
    }

    /// Number of pages that are handed out.
    pub fn pages(&self) -> u64 {
        self.pool_len / PAGE - self.first_page()
    }

    /// Byte of the commit slot of ring `ring`.
    pub fn commit_slot(ring: u32) -> u64 {
        COMMIT_SLOTS + u64::from(ring) * 8
    }

    /// Stages what stands after the header and the index's head in a new pool.
    pub fn stage_words<P: Pool>(&self, stage: &mut Stage<'_, P>, seed: u64) {
        let mut page = [0; PAGE as usize];
        let slots = (0..self.rings).map(Self::commit_slot);
        for at in slots.chain([SEQNO_LIMIT, IMAGE]) {
            page[at as usize..at as usize + 8].copy_from_slice(&seal(seed, at, 0).to_le_bytes());
        }
        stage.write(SEQNO_LIMIT, &page[SEQNO_LIMIT as usize..]);
    }

    /// Writes the header of a new pool, after what is staged; all of it is durable when this returns. Until the
    /// last step a crash leaves a pool without a header, which is created again.
    pub fn format<P: Pool>(&self, pool: &P, mut stage: Stage<'_, P>, seed: u64) -> Result<()> {
        let mut header = [0u8; 64];
        header[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        header[16..24].copy_from_slice(&seed.to_le_bytes());
        header[24..32].copy_from_slice(&self.pool_len.to_le_bytes());
        header[32..40].copy_from_slice(&self.chunk_bytes.to_le_bytes());
        header[40..44].copy_from_slice(&self.rings.to_le_bytes());
        header[44..48].copy_from_slice(&self.flash.to_le_bytes());
        header[48..56].copy_from_slice(&self.ring_bytes.to_le_bytes());
        let sum = checksum(seed, &header[..56]);
        header[56..64].copy_from_slice(&sum.to_le_bytes());
        stage.write(8, &header[8..]);
        let drained = stage.drain();
        drained.publish(0, MAGIC);
        pool.fence();
        pool.wait(pool.lsn())
    }

    /// Whether the pool has a header: if not, its creation did not finish.
    pub fn is_formatted<P: Pool>(pool: &P) -> bool {
        pool.load(0) == MAGIC
    }

    /// Reads and checks the header.
    ///
    /// # Errors
    /// `NewerFormat` for an intact header in one; `Corrupt` if any byte of it is not as written, or of another store.
    pub fn open<P: Pool>(pool: &P, seed: u64) -> Result<Self> {
        let mut header = [0u8; 64];
        pool.read(0, &mut header)?;
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
        let half = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap_or_default());
        let corrupt = |what: &str| Error::corrupt(TierRole::Fast, what, pool.place(0));
        if word(0) != MAGIC {
            return Err(corrupt("the pool has no valuelog header"));
        }
        if !matches(word(56), checksum(seed, &header[..56])) {
            return Err(corrupt("the pool header's checksum is wrong"));
        }
        if half(8) > FORMAT {
            return Err(Error::NewerFormat { place: pool.place(8), found: half(8), newest: FORMAT });
        }
        let layout = Layout {
            pool_len: word(24),
            chunk_bytes: word(32),
            rings: half(40),
            ring_bytes: word(48),
            flash: half(44),
        };
        let sane = half(8) == FORMAT
            && half(12) == 0
            && word(16) == seed
            && layout.pool_len == pool.len()
            && layout.chunk_bytes.is_power_of_two()
            && (16 << 10..=4 << 20).contains(&layout.chunk_bytes)
            && (1..=64).contains(&layout.rings)
            && layout.ring_bytes.is_multiple_of(PAGE)
            && layout.ring_bytes >= 16 << 10
            && layout.ring_bytes < layout.pool_len
            && layout.first_page() < layout.pool_len / PAGE;
        if sane { Ok(layout) } else { Err(corrupt("the pool header's fields are out of range")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tierdb_base::ErrorKind;
    use tierdb_pmem::MappedPool;

    #[test]
    fn a_header_reads_back_and_damage_is_noticed() {
        let pool = MappedPool::in_memory(1 << 20);
        let options = Options { rings: 2, ring_bytes: 16 << 10, ..Options::for_pool(1 << 20, 1 << 20) };
        let layout = Layout::new(1 << 20, 1, &options).expect("layout");
        assert!(!Layout::is_formatted(&pool));
        layout.format(&pool, Stage::new(&pool), 5).expect("format");
        assert_eq!(Layout::open(&pool, 5).expect("open"), layout);
        assert!(Layout::open(&pool, 6).is_err(), "another store's pool");
        for byte in 0..64 {
            let mut old = [0u8];
            pool.read(byte, &mut old).expect("read");
            pool.write(byte, &[old[0] ^ 4]);
            let refused = Layout::open(&pool, 5).expect_err("damaged");
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "byte {byte}: {refused}");
            pool.write(byte, &old);
        }
        assert!(Layout::new(64 << 10, 1, &options).is_err(), "too small");
        let mut newer = [0; 56];
        pool.read(0, &mut newer).expect("read");
        newer[8] = 2;
        pool.write(0, &newer);
        pool.write(56, &checksum(5, &newer).to_le_bytes());
        assert!(matches!(Layout::open(&pool, 5), Err(Error::NewerFormat { found: 2, newest: 1, .. })));
    }
}
