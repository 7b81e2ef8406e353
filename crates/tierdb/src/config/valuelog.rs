//! Settings of the valuelog engine.

use super::text::size;
use serde::{Deserialize, Serialize};
use tierdb_base::{ByteSize, Error, Result};

/// Settings of the valuelog engine. The defaults suit most workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Valuelog {
    /// Bytes of the write buffer, where values stay until they go to flash. Default a fifth of a byte-addressable fast tier, a third of
    /// the pool where there is none (half of memory), at most 8 GiB, and on one SSD at most an eighth of the log; 1 MiB to seven eighths
    /// of the pool.
    ///
    /// Raise it where the same keys are written again and again, or written in bursts; lower it where more keys
    /// must fit. *Fixed when the store is created.*
    #[serde(default, with = "size::optional", skip_serializing_if = "Option::is_none")]
    pub write_buffer: Option<ByteSize>,
    /// Write-buffer fill, in percent, at which values start to move to flash. Default 75, 10..=90.
    ///
    /// Raise it to let more overwrites die in the buffer; lower it if writers stall (`Stats::stall_ns`).
    /// *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_pct: Option<u8>,
    /// Free share of flash, in percent, below which garbage collection starts. Default 10, 1..=50.
    ///
    /// Raise it if writers stall on a nearly full store; lower it to use more of the capacity, at the cost of
    /// more writes to flash. *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gc_free_pct: Option<u8>,
    /// Share of the flash in use, in percent, that may be garbage; beyond it collection starts as values are written, though there is
    /// room, but for the first 16 to 32 chunks (of 512 KiB) in each directory. Default 60, 10..=100: flash
    /// holds about two and a half times the data.
    ///
    /// Lower it to use less flash, at the cost of more writes; with 100 garbage is collected only where flash is nearly full.
    /// *Takes effect on open.*
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gc_garbage_pct: Option<u8>,
}

impl Valuelog {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn validate(&self) -> Result<()> {
        if self.write_buffer.is_some_and(|buffer| buffer < ByteSize::mib(1)) {
            return Err(Error::invalid("valuelog.write_buffer: at least 1 MiB is needed"));
        }
        if self.reclaim_pct.is_some_and(|pct| !(10..=90).contains(&pct)) {
            return Err(Error::invalid("valuelog.reclaim_pct: must be 10 to 90"));
        }
        if self.gc_free_pct.is_some_and(|pct| !(1..=50).contains(&pct)) {
            return Err(Error::invalid("valuelog.gc_free_pct: must be 1 to 50"));
        }
        if self.gc_garbage_pct.is_some_and(|pct| !(10..=100).contains(&pct)) {
            return Err(Error::invalid("valuelog.gc_garbage_pct: must be 10 to 100"));
        }
        Ok(())
    }

    /// Sets what is set here.
    pub(crate) fn apply(&self, mut options: tierdb_valuelog::Options) -> tierdb_valuelog::Options {
        if let Some(buffer) = self.write_buffer {
            options = options.with_write_buffer(buffer.bytes());
        }
        options.reclaim_pct = self.reclaim_pct.unwrap_or(options.reclaim_pct);
        options.gc_free_pct = self.gc_free_pct.unwrap_or(options.gc_free_pct);
        options.gc_garbage_pct = self.gc_garbage_pct.unwrap_or(options.gc_garbage_pct);
        options
    }
}
