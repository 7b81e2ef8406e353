//! Who caused which I/O, counted at the one place all of it passes; and emulated devices.
//!
//! Write amplification and wear are computed from these counts, so they are of bytes given to the
//! device, not of bytes asked for.

use crate::buf::AlignedBuf;
use crate::file::BlockFile;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tierdb_base::Result;

/// What an I/O is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Cause {
    /// A caller waits for it.
    Foreground,
    /// Group commit of the log of a logged pool.
    Log,
    /// Page checkpoint of a logged pool.
    Checkpoint,
    /// Write buffer to Value Storage.
    Reclaim,
    /// Value Storage to Value Storage.
    Gc,
    /// Opening after a close or a crash.
    Recovery,
    /// Values rewritten in key order as the cache evicts them.
    Cache,
    /// Verification and repair.
    Verify,
}

impl Cause {
    /// Every cause, in the order of their numbers.
    pub const ALL: [Cause; 8] = [
        Cause::Foreground,
        Cause::Log,
        Cause::Checkpoint,
        Cause::Reclaim,
        Cause::Gc,
        Cause::Recovery,
        Cause::Cache,
        Cause::Verify,
    ];

    /// Its name in stats.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Foreground => "foreground",
            Cause::Log => "log",
            Cause::Checkpoint => "checkpoint",
            Cause::Reclaim => "reclaim",
            Cause::Gc => "gc",
            Cause::Recovery => "recovery",
            Cause::Cache => "cache",
            Cause::Verify => "verify",
        }
    }
}

#[derive(Default)]
struct Counts {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    syncs: AtomicU64,
}

/// Counts of one tier's I/O by cause. Clones count together.
#[derive(Clone, Default)]
pub struct Meter(Arc<[Counts; 8]>);

/// What a [`Meter`] has counted for one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterSnapshot {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read from the device.
    pub read_bytes: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written to the device.
    pub written_bytes: u64,
    /// Syncs, and durable writes.
    pub syncs: u64,
}

impl Meter {
    /// All zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was counted for `cause`.
    pub fn get(&self, cause: Cause) -> MeterSnapshot {
        let c = &self.0[cause as usize];
        MeterSnapshot {
            reads: c.reads.load(Ordering::Relaxed),
            read_bytes: c.read_bytes.load(Ordering::Relaxed),
            writes: c.writes.load(Ordering::Relaxed),
            written_bytes: c.written_bytes.load(Ordering::Relaxed),
            syncs: c.syncs.load(Ordering::Relaxed),
        }
    }

    /// Counts a completed read of `bytes`.
    pub fn count_read(&self, cause: Cause, bytes: u64) {
        let c = &self.0[cause as usize];
        c.reads.fetch_add(1, Ordering::Relaxed);
        c.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a completed write of `bytes`.
    pub fn count_write(&self, cause: Cause, bytes: u64) {
        let c = &self.0[cause as usize];
        c.writes.fetch_add(1, Ordering::Relaxed);
        c.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a sync.
    pub fn count_sync(&self, cause: Cause) {
        self.0[cause as usize].syncs.fetch_add(1, Ordering::Relaxed);
    }
}

/// A device to imitate: what a real one would take at least, added on top of the medium below.
/// For benchmarks; reported wherever the tier is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulation {
    /// Its name in reports.
    pub name: &'static str,
    /// Shortest time of a read.
    pub read_latency: Duration,
    /// Shortest time of a write.
    pub write_latency: Duration,
    /// Bytes a second, either way; 0 is unlimited.
    pub bandwidth: u64,
}

impl Emulation {
    /// Named devices, with the latencies of the papers' tables (PRISM Figure 1; PrismDB Table 1).
    pub const NAMED: [Emulation; 3] = [
        Emulation {
            name: "optane-ssd",
            read_latency: Duration::from_micros(6),
            write_latency: Duration::from_micros(10),
            bandwidth: 2_500_000_000,
        },
        Emulation {
            name: "tlc",
            read_latency: Duration::from_micros(100),
            write_latency: Duration::from_micros(30),
            bandwidth: 3_000_000_000,
        },
        Emulation {
            name: "qlc",
            read_latency: Duration::from_micros(391),
            write_latency: Duration::from_micros(40),
            bandwidth: 1_800_000_000,
        },
    ];

    /// The named device `name`, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMED.into_iter().find(|e| e.name == name)
    }

    fn hold(&self, start: Instant, latency: Duration, bytes: usize) {
        let transfer = (bytes as u64 * 1_000_000_000).checked_div(self.bandwidth).unwrap_or(0);
        let until = latency + Duration::from_nanos(transfer);
        loop {
            let spent = start.elapsed();
            if spent >= until {
                return;
            }
            // The timer's slack is about 50 µs: sleep the most of it, and spin only for the rest.
            let rest = until - spent;
            if rest > Duration::from_micros(80) {
                std::thread::sleep(rest - Duration::from_micros(60));
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// A block file whose I/O is counted, and slowed to a device's pace where that is asked for.
pub struct Metered<F> {
    file: F,
    meter: Meter,
    emulation: Option<Emulation>,
}

impl<F: BlockFile> Metered<F> {
    /// Counts `file`'s I/O in `meter`.
    pub fn new(file: F, meter: Meter, emulation: Option<Emulation>) -> Self {
        Metered { file, meter, emulation }
    }

    /// The file itself.
    pub fn file(&self) -> &F {
        &self.file
    }

    fn timed(&self, bytes: usize, read: bool, io: impl FnOnce() -> Result<()>) -> Result<()> {
        let Some(emulation) = &self.emulation else { return io() };
        let start = Instant::now();
        io()?;
        let latency = if read { emulation.read_latency } else { emulation.write_latency };
        emulation.hold(start, latency, bytes);
        Ok(())
    }

    /// As [`BlockFile::read`].
    pub fn read(&self, at: u64, buf: &mut AlignedBuf, cause: Cause) -> Result<()> {
        let len = buf.len();
        self.timed(len, true, || self.file.read(at, buf))?;
        self.meter.count_read(cause, len as u64);
        Ok(())
    }

    /// As [`BlockFile::write`].
    #[track_caller]
    pub fn write(&self, at: u64, bytes: &AlignedBuf, cause: Cause) -> Result<()> {
        let start = Instant::now();
        self.file.write(at, bytes)?;
        if let Some(emulation) = &self.emulation {
            emulation.hold(start, emulation.write_latency, bytes.len());
        }
        self.meter.count_write(cause, bytes.len() as u64);
        Ok(())
    }

    /// As [`BlockFile::write_durable`].
    #[track_caller]
    pub fn write_durable(&self, at: u64, bytes: &AlignedBuf, cause: Cause) -> Result<()> {
        let start = Instant::now();
        self.file.write_durable(at, bytes)?;
        if let Some(emulation) = &self.emulation {
            emulation.hold(start, emulation.write_latency, bytes.len());
        }
        self.meter.count_write(cause, bytes.len() as u64);
        self.meter.count_sync(cause);
        Ok(())
    }

    /// As [`BlockFile::sync`].
    #[track_caller]
    pub fn sync(&self, cause: Cause) -> Result<()> {
        self.file.sync()?;
        self.meter.count_sync(cause);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_by_cause_and_names_are_found() {
        let meter = Meter::new();
        meter.clone().count_write(Cause::Gc, 4096);
        meter.count_sync(Cause::Log);
        assert_eq!(meter.get(Cause::Gc).written_bytes, 4096);
        assert_eq!(meter.get(Cause::Log), MeterSnapshot { syncs: 1, ..MeterSnapshot::default() });
        assert!(Cause::ALL.iter().enumerate().all(|(i, c)| *c as usize == i));
        assert!(Emulation::named("qlc").is_some() && Emulation::named("tape").is_none());
    }
}
