//! What a logged pool is made of, and what it says about itself.

use crate::layout::PAGE;
use crate::table::{AREAS, area_len};
use tierdb_base::{ByteSize, Error, Location, Result};
use tierdb_device::BLOCK;

/// Log blocks that only a checkpoint may fill: it must be able to write the log before its table.
pub(crate) const RESERVED_BLOCKS: u64 = 6;
/// Log blocks that `admit` leaves above the reserve, beside what it lets in: for blocks that are not full, and for what is
/// appended without being admitted.
pub(crate) const TIGHT_BLOCKS: u64 = 4;
/// A ring holds at least this many of the largest blocks.
const LEAST_BLOCKS: u64 = 32;
/// The longest pool: slots of the image have numbers of 32 bits, and it has a quarter more of them than the pool has pages. (Offsets in
/// log entries would have room for 256 TiB.)
pub const LARGEST_POOL: u64 = 12 << 40;

/// How a [`LoggedPool`](crate::LoggedPool) is laid out.
///
/// Lengths are fixed at creation and kept in the files: opening reads them there and ignores the ones here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedOptions {
    /// The files are called `<prefix>.log`, `<prefix>.image` and `<prefix>.table`. Default `pool`.
    pub prefix: String,
    /// Length of the pool in bytes, a multiple of 4,096. *Creation only.*
    pub pool_len: u64,
    /// Length of the log ring in bytes, a multiple of 4,096, at least 32 times `buffer_bytes`. It is written
    /// once with zeros at creation. Default 64 MiB. A longer log makes checkpoints rarer and recovery longer.
    /// *Creation only.*
    pub log_len: u64,
    /// Largest log block in bytes, header included, 4 KiB to 16 MiB: what one group commit can carry.
    /// Two buffers of this size, and a block, are kept in DRAM. Default 1 MiB. *Creation only.*
    pub buffer_bytes: u64,
    /// Most bytes the image file may grow to, at least `pool_len` and a quarter, or a sixteenth of a paged pool. A checkpoint with fewer free
    /// slots than dirty pages is made in several rounds, so less room costs more tables. Default `2 * pool_len`.
    pub image_capacity: u64,
    /// Keep in DRAM only what was written since the last checkpoint, and the pages of which single words are used; the rest is read
    /// from the image whenever it is asked for. So the pool may be longer than there is memory. The value is how many bytes of
    /// pages may wait for a checkpoint before one is due; from twice as many on, whoever is to be admitted makes it. Of pages that have
    /// left, as much memory is kept for those that come. Writes should be
    /// of whole units of 64 bytes: a part of one may have to be read first. Not in a salvage. Default: all of the pool is in DRAM.
    pub paged: Option<u64>,
    /// Open although pages, log blocks or tables are damaged or cannot be read: lost pages read as zeros, and what
    /// was met is listed in [`LoggedPool::salvage`](crate::LoggedPool::salvage). For repair only. Default off.
    pub salvage: bool,
}

impl LoggedOptions {
    /// The defaults for a pool of `pool_len` bytes.
    pub fn new(pool_len: u64) -> Self {
        LoggedOptions {
            prefix: "pool".into(),
            pool_len,
            log_len: 64 << 20,
            buffer_bytes: 1 << 20,
            image_capacity: pool_len.saturating_mul(2),
            paged: None,
            salvage: false,
        }
    }

    /// Names of the log, the image and the table file, so that a store whose creation was cut short can
    /// remove them.
    pub fn file_names(&self) -> [String; 3] {
        ["log", "image", "table"].map(|part| format!("{}.{part}", self.prefix))
    }

    /// Most bytes that its files may take together.
    pub fn most_bytes(&self) -> u64 {
        let tables = AREAS * area_len(self.pool_len, self.largest_block());
        self.log_len.saturating_add(self.image_capacity).saturating_add(tables)
    }

    pub(crate) fn largest_block(&self) -> u64 {
        self.buffer_bytes.next_multiple_of(BLOCK)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.pool_len == 0 || !self.pool_len.is_multiple_of(PAGE) || self.pool_len > LARGEST_POOL {
            return Err(Error::invalid(format!(
                "a logged pool of {} bytes: the length must be a multiple of {PAGE}, up to {}",
                self.pool_len,
                ByteSize(LARGEST_POOL)
            )));
        }
        if !(BLOCK..=16 << 20).contains(&self.buffer_bytes) {
            return Err(Error::invalid(format!(
                "log buffer of {} bytes: it must have {BLOCK} bytes to 16 MiB",
                self.buffer_bytes
            )));
        }
        check_log(self.log_len, self.largest_block()).map_err(Error::invalid)?;
        self.check_capacity(self.pool_len)
    }

    /// The image must take the whole pool, and a round of a checkpoint beside it.
    pub(crate) fn check_capacity(&self, pool_len: u64) -> Result<()> {
        let spare = if self.paged.is_some() { pool_len / 16 } else { pool_len / 4 };
        let least = pool_len + spare.max(16 * PAGE);
        if self.image_capacity < least {
            return Err(Error::invalid(format!(
                "image capacity of {} bytes: a pool of {pool_len} bytes needs at least {least}",
                self.image_capacity
            )));
        }
        Ok(())
    }
}

/// Checks the lengths of a ring and of its largest block; says what is wrong with them.
pub(crate) fn check_log(log_len: u64, largest: u64) -> std::result::Result<(), String> {
    let least = largest.checked_mul(LEAST_BLOCKS);
    if largest == 0
        || !largest.is_multiple_of(BLOCK)
        || !log_len.is_multiple_of(BLOCK)
        || least.is_none_or(|least| log_len < least)
    {
        return Err(format!(
            "a log of {log_len} bytes with blocks of up to {largest}: both must be multiples of {BLOCK}, and the log \
             must hold at least {LEAST_BLOCKS} such blocks"
        ));
    }
    Ok(())
}

/// What a logged pool has done since it was opened, and the space it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoggedStats {
    /// Bytes of the ring that recovery would need.
    pub log_used: u64,
    /// Length of the ring in bytes.
    pub log_capacity: u64,
    /// Log blocks written: one for each group commit.
    pub log_blocks: u64,
    /// Bytes of entries appended to the log.
    pub log_bytes: u64,
    /// Length of the image file in bytes.
    pub image_bytes: u64,
    /// Length of the table file in bytes.
    pub table_bytes: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Pages written by them.
    pub checkpoint_pages: u64,
    /// Time that writers were held back because the buffer or the ring was full, in nanoseconds.
    pub stall_ns: u64,
    /// Bytes of DRAM beside the pool itself: buffers, page table, bitmaps.
    pub memory_bytes: u64,
}

/// A page that salvage could not read. It reads as zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostPage {
    /// Where it is in the pool, in bytes.
    pub at: u64,
    /// Where it was on media.
    pub place: Location,
    /// What was found wrong.
    pub what: String,
}

/// What was lost in a pool opened with [`LoggedOptions::salvage`].
#[derive(Clone, Debug, Default)]
pub struct Salvage {
    /// Pages that read as zeros now.
    pub pages: Vec<LostPage>,
    /// Why the log ends before acknowledged writes, if it does.
    pub log: Option<Error>,
    /// Reads of the log and of the table that failed. What they would have given counts as damaged, so it costs
    /// something only where nothing else says the same: the newest table, or the log since then.
    pub unreadable: Vec<Error>,
}

impl Salvage {
    /// Whether nothing was lost, and all could be read.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.log.is_none() && self.unreadable.is_empty()
    }
}
