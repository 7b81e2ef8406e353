//! Where things are in the pool, and its header.
//!
//! ```text
//! byte 0        4096
//! ├─────────────┼────────┼────────┼────────┼───
//! │ header page │ slab 0 │ slab 1 │ slab 2 │ …
//! └─────────────┴────────┴────────┴────────┴───
//!
//! header:  0 magic   8 format u32, flags u32   16 store seed   24 pool length   32 slab bytes
//!         40 flash directories u32, reserved u32   48 checksum of 0..48   56 zero
//!         64 seqno limit, sealed
//!        128 + 8 n: commit slot n, sealed
//!        256 + 8 n: moment up to which the write budget of flash directory n is used, in sixteenths of a second since 1970, sealed
//! ```
//!
//! * The words before 64 never change; those after are published one by one.
//! * Magic, format, and the checksum of the bytes before it keep their places in every format, so that a newer one is
//!   told from a damaged one.
//! * *seqno limit*: no seqno at or above it was ever given out, in steps of 2^20. It is raised before that.
//! * *commit slot*: 0, or the byte / 64 of the redo record of a group of changes that is complete and is being
//!   installed.
//! * *write budget*: a word that is not sealed says nothing.
//! * *sealed*: see `tierdb_pmem::sealed`.
//!
//! Since format 1.

use crate::config::Options;
use crate::slabs::Slabs;
use tierdb_base::{Error, Result, TierRole, checksum, matches};
use tierdb_pmem::{Pool, Stage, seal};

const MAGIC: u64 = u64::from_le_bytes(*b"TIERSLAB");
const FORMAT: u32 = 1;
/// Bytes of the page before the first slab.
pub const HEADER_PAGE: u64 = 4096;
/// Byte of the seqno limit.
pub const SEQNO_LIMIT: u64 = 64;
/// Number of groups that can be installed at once.
pub const COMMIT_SLOTS: u64 = 16;
const FIRST_COMMIT_SLOT: u64 = 128;
const FIRST_BUDGET: u64 = FIRST_COMMIT_SLOT + COMMIT_SLOTS * 8;
/// Fewest slabs of a pool.
const LEAST_SLABS: u64 = 8;

/// The parts of a pool, from its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the pool.
    pub pool_len: u64,
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Number of flash directories.
    pub flash: u32,
}

impl Layout {
    /// The layout for a new pool of `pool_len` bytes.
    ///
    /// # Errors
    /// `Invalid` if it has no room for eight slabs.
    pub fn new(pool_len: u64, flash: usize, options: &Options) -> Result<Self> {
        options.validate()?;
        let layout = Layout { pool_len, slab_bytes: options.slab_bytes, flash: flash as u32 };
        if layout.slabs() < LEAST_SLABS {
            return Err(Error::invalid(format!(
                "a fast tier of {pool_len} bytes is too small for slabs of {} bytes: at least {} bytes are needed",
                options.slab_bytes,
                HEADER_PAGE + LEAST_SLABS * options.slab_bytes
            )));
        }
        Ok(layout)
    }

    /// Number of slabs.
    pub fn slabs(&self) -> u64 {
        self.pool_len.saturating_sub(HEADER_PAGE) / self.slab_bytes
    }

    /// First byte of slab `slab`.
    pub fn slab_at(&self, slab: u32) -> u64 {
        HEADER_PAGE + u64::from(slab) * self.slab_bytes
    }

    /// Byte of commit slot `number`.
    pub fn commit_slot(number: u64) -> u64 {
        FIRST_COMMIT_SLOT + number * 8
    }

    /// Byte of the word of flash directory `number`'s budget. There are 16 directories at the most.
    pub fn budget(number: u64) -> u64 {
        FIRST_BUDGET + number * 8
    }

    /// Writes the header of a new pool, and that no slab was used; durable when this returns. Until the last
    /// step a crash leaves a pool without a header, which is created again.
    pub fn format<P: Pool>(&self, pool: &P, seed: u64) -> Result<()> {
        let mut page = [0u8; HEADER_PAGE as usize];
        page[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        page[16..24].copy_from_slice(&seed.to_le_bytes());
        page[24..32].copy_from_slice(&self.pool_len.to_le_bytes());
        page[32..40].copy_from_slice(&self.slab_bytes.to_le_bytes());
        page[40..44].copy_from_slice(&self.flash.to_le_bytes());
        let mut put = |at: u64, word: u64| page[at as usize..][..8].copy_from_slice(&word.to_le_bytes());
        put(SEQNO_LIMIT, seal(seed, SEQNO_LIMIT, 0));
        for slot in (0..COMMIT_SLOTS).map(Self::commit_slot) {
            put(slot, seal(seed, slot, 0));
        }
        put(0, MAGIC);
        let sum = checksum(seed, &page[..48]);
        page[48..56].copy_from_slice(&sum.to_le_bytes());
        let mut stage = Stage::new(pool);
        stage.write(8, &page[8..]);
        for at in (0..self.slabs() as u32).map(|slab| self.slab_at(slab)) {
            stage.word(at, Slabs::<P>::unused(seed, at));
        }
        stage.drain().publish(0, MAGIC);
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
        let mut header = [0u8; 56];
        pool.read(0, &mut header)?;
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
        let half = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap_or_default());
        let corrupt = |what: &str| Error::corrupt(TierRole::Fast, what, pool.place(0));
        if word(0) != MAGIC {
            return Err(corrupt("the pool has no slab header"));
        }
        if !matches(word(48), checksum(seed, &header[..48])) {
            return Err(corrupt("the pool header's checksum is wrong"));
        }
        if half(8) > FORMAT {
            return Err(Error::NewerFormat { place: pool.place(8), found: half(8), newest: FORMAT });
        }
        let layout = Layout { pool_len: word(24), slab_bytes: word(32), flash: half(40) };
        let sane = half(8) == FORMAT
            && half(12) == 0
            && half(44) == 0
            && word(16) == seed
            && layout.pool_len == pool.len()
            && crate::config::SLAB_BYTES.contains(&layout.slab_bytes)
            && layout.slab_bytes.is_power_of_two()
            && layout.slabs() >= LEAST_SLABS;
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
        let options = Options { slab_bytes: 16 << 10, ..Options::for_pool(1 << 20, 1 << 20) };
        let layout = Layout::new(1 << 20, 1, &options).expect("layout");
        assert!(!Layout::is_formatted(&pool));
        layout.format(&pool, 5).expect("format");
        assert_eq!(Layout::open(&pool, 5).expect("open"), layout);
        assert!(Layout::open(&pool, 6).is_err(), "another store's pool");
        for byte in 0..56 {
            let mut old = [0u8];
            pool.read(byte, &mut old).expect("read");
            pool.write(byte, &[old[0] ^ 4]);
            let refused = Layout::open(&pool, 5).expect_err("damaged");
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "byte {byte}: {refused}");
            pool.write(byte, &old);
        }
        assert!(Layout::new(64 << 10, 1, &options).is_err(), "too small");
        let mut newer = [0; 48];
        pool.read(0, &mut newer).expect("read");
        newer[8] = 2;
        pool.write(0, &newer);
        pool.write(48, &checksum(5, &newer).to_le_bytes());
        assert!(matches!(Layout::open(&pool, 5), Err(Error::NewerFormat { found: 2, newest: 1, .. })));
    }
}
