//! Who caused which I/O, counted at the one place all of it passes; and emulated devices.
//!
//! Write amplification and wear are computed from these counts, so they are of bytes given to the
//! device, not of bytes asked for.

use crate::buf::AlignedBuf;
use crate::file::{BlockFile, FileRead, PIECES, Piece};
use parking_lot::Mutex;
use std::cell::Cell;
use std::mem;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tierdb_base::{Result, mutant};

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
    /// Between the tiers: tables merged and rewritten.
    Migration,
}

impl Cause {
    /// Every cause, in the order of their numbers.
    pub const ALL: [Cause; 9] = [
        Cause::Foreground,
        Cause::Log,
        Cause::Checkpoint,
        Cause::Reclaim,
        Cause::Gc,
        Cause::Recovery,
        Cause::Cache,
        Cause::Verify,
        Cause::Migration,
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
            Cause::Migration => "migration",
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
pub struct Meter(Arc<[Counts; 9]>);

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
    /// Named devices. Latencies of reads are the papers': of Optane and QLC PrismDB's (Table 1), of TLC MyNVM's (Table 1); and
    /// of an SSD on PCIe 4 PRISM's (section 2.1), with its bandwidth of writes. The rest is not the papers'.
    pub const NAMED: [Emulation; 4] = [
        Emulation {
            name: "optane-ssd",
            read_latency: Duration::from_micros(6),
            write_latency: Duration::from_micros(10),
            bandwidth: 2_500_000_000,
        },
        Emulation {
            name: "pcie4-ssd",
            read_latency: Duration::from_micros(50),
            write_latency: Duration::from_micros(50),
            bandwidth: 5_000_000_000,
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

    fn transfer(&self, bytes: usize) -> Duration {
        let nanos = (bytes as u128 * 1_000_000_000).checked_div(u128::from(self.bandwidth)).unwrap_or(0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// An emulated device at work: its transfers follow one another, its latencies overlap. Clones are the same
/// device, so that several files can share its bandwidth.
#[derive(Clone)]
pub struct Pace {
    emulation: Emulation,
    /// When the transfers issued so far are over.
    busy_until: Arc<Mutex<Instant>>,
}

impl Pace {
    /// A device of its own that imitates `emulation`.
    pub fn new(emulation: Emulation) -> Self {
        Pace { emulation, busy_until: Arc::new(Mutex::new(Instant::now())) }
    }

    /// What it imitates.
    #[must_use]
    pub fn emulation(&self) -> Emulation {
        self.emulation
    }

    /// Has `read`, which reads `bytes` from the medium, take as long as on the device.
    pub fn read<T>(&self, bytes: usize, read: impl FnOnce() -> T) -> T {
        take_until(self.issue(self.emulation.read_latency, bytes), read)
    }

    /// Has `write`, which writes `bytes` to the medium, take as long as on the device.
    pub fn write<T>(&self, bytes: usize, write: impl FnOnce() -> T) -> T {
        take_until(self.issue(self.emulation.write_latency, bytes), write)
    }

    /// Takes `bytes` of the bandwidth, and says when an I/O issued now is complete.
    fn issue(&self, latency: Duration, bytes: usize) -> Instant {
        let transfer = self.emulation.transfer(bytes);
        let mut busy_until = self.busy_until.lock();
        *busy_until = Instant::now().max(*busy_until) + transfer;
        *busy_until + latency
    }
}

/// Does `work`, and returns no sooner than `due`.
fn take_until<T>(due: Instant, work: impl FnOnce() -> T) -> T {
    let done = work();
    wait_until(due);
    done
}

fn wait_until(due: Instant) {
    // A timer without slack is about 20 µs late, with the system's own 70: sleep the most of the time, and spin only for the
    // rest, which is processor time.
    const LATE: Duration = Duration::from_micros(20);
    const LONGEST_TURN: Duration = Duration::from_micros(5);
    thread_local! {
        static WITHOUT_SLACK: () = {
            // Where it is refused, waits are longer.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        };
    }
    let mut waited = Duration::ZERO;
    let mut now = Instant::now();
    while now < due {
        if let Some(most) = (due - now).checked_sub(LATE) {
            WITHOUT_SLACK.with(|()| ());
            let begun = thread_cpu();
            std::thread::sleep(most);
            waited += thread_cpu().saturating_sub(begun);
            now = Instant::now();
        } else {
            std::hint::spin_loop();
            let before = std::mem::replace(&mut now, Instant::now());
            // Asking for the thread's own clock takes as long as many a wait. Where a turn takes longer, another thread has run.
            waited += Some(now - before).filter(|turn| *turn < LONGEST_TURN).unwrap_or_default();
        }
    }
    IMITATION_NS.fetch_add(waited.as_nanos() as u64, Ordering::Relaxed);
    OWN_IMITATION.with(|own| own.set(own.get() + waited));
}

thread_local! {
    /// The calling thread's part of it.
    static OWN_IMITATION: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Processor time that waiting for the end of imitated I/O has taken.
static IMITATION_NS: AtomicU64 = AtomicU64::new(0);

/// Processor time that this process has spent on waiting for imitated devices: a benchmark's, not the store's.
#[must_use]
pub fn imitation_cpu() -> Duration {
    Duration::from_nanos(IMITATION_NS.load(Ordering::Relaxed))
}

/// Processor time that the calling thread has used, but for what waiting for imitated devices took of it.
#[must_use]
pub fn own_cpu() -> Duration {
    thread_cpu().saturating_sub(OWN_IMITATION.with(Cell::get))
}

/// Processor time of the calling thread.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A block file whose I/O is counted, and slowed to a device's pace where that is asked for.
///
/// The bandwidth of an emulated device is shared by all that use this `Metered`, and by others made with a
/// clone of its [`Pace`].
pub struct Metered<F> {
    file: F,
    meter: Meter,
    pace: Option<Pace>,
}

impl<F: BlockFile> Metered<F> {
    /// Counts `file`'s I/O in `meter`; a device of its own is imitated.
    pub fn new(file: F, meter: Meter, emulation: Option<Emulation>) -> Self {
        Self::paced(file, meter, emulation.map(Pace::new))
    }

    /// Counts `file`'s I/O in `meter`; `pace` is a device that other files may share.
    pub fn paced(file: F, meter: Meter, pace: Option<Pace>) -> Self {
        Metered { file, meter, pace }
    }

    /// The file itself.
    pub fn file(&self) -> &F {
        &self.file
    }

    fn read_due(&self, bytes: usize) -> Option<Instant> {
        self.pace.as_ref().map(|pace| pace.issue(pace.emulation.read_latency, bytes))
    }

    /// When writes of so many bytes are complete, of which as many as there are rounds wait for each other.
    fn write_due(&self, bytes: usize, rounds: u32) -> Option<Instant> {
        self.pace.as_ref().map(|pace| pace.issue(pace.emulation.write_latency * rounds, bytes))
    }

    /// As [`BlockFile::read`].
    pub fn read(&self, at: u64, buf: &mut AlignedBuf, cause: Cause) -> Result<()> {
        let due = self.read_due(buf.len());
        self.file.read(at, buf)?;
        due.into_iter().for_each(wait_until);
        self.meter.count_read(cause, buf.len() as u64);
        Ok(())
    }

    /// As [`BlockFile::read_many`].
    pub fn read_many(reads: &mut [FileRead<'_, Self>], cause: Cause) -> Vec<Result<()>> {
        let due = reads.iter().filter_map(|read| read.file.read_due(read.buf.len())).max();
        let mut inner: Vec<_> = reads
            .iter_mut()
            .map(|read| FileRead { file: &read.file.file, at: read.at, buf: mem::take(&mut read.buf) })
            .collect();
        let results = F::read_many(&mut inner);
        due.into_iter().for_each(wait_until);
        for ((read, inner), result) in reads.iter_mut().zip(inner).zip(&results) {
            read.buf = inner.buf;
            if result.is_ok() {
                read.file.meter.count_read(cause, read.buf.len() as u64);
            }
        }
        results
    }

    /// As [`BlockFile::write`].
    #[track_caller]
    pub fn write(&self, at: u64, bytes: &AlignedBuf, cause: Cause) -> Result<()> {
        let due = self.write_due(bytes.len(), 1);
        heed(self.file.write(at, bytes))?;
        due.into_iter().for_each(wait_until);
        self.meter.count_write(cause, bytes.len() as u64);
        Ok(())
    }

    /// As [`BlockFile::write_pieces`].
    #[track_caller]
    pub fn write_pieces(&self, bytes: &AlignedBuf, pieces: &[Piece], cause: Cause) -> Result<()> {
        let due = self.write_due(bytes.len(), pieces.len().div_ceil(PIECES) as u32);
        heed(self.file.write_pieces(bytes, pieces))?;
        due.into_iter().for_each(wait_until);
        pieces.iter().for_each(|piece| self.meter.count_write(cause, piece.len as u64));
        Ok(())
    }

    /// As [`BlockFile::write_durable`].
    #[track_caller]
    pub fn write_durable(&self, at: u64, bytes: &AlignedBuf, cause: Cause) -> Result<()> {
        let due = self.write_due(bytes.len(), 1);
        heed(self.file.write_durable(at, bytes))?;
        due.into_iter().for_each(wait_until);
        self.meter.count_write(cause, bytes.len() as u64);
        self.meter.count_sync(cause);
        Ok(())
    }

    /// As [`BlockFile::sync`].
    #[track_caller]
    pub fn sync(&self, cause: Cause) -> Result<()> {
        heed(self.file.sync())?;
        self.meter.count_sync(cause);
        Ok(())
    }
}

/// The result of a write or a sync, unless a test has its failure ignored here.
#[track_caller]
fn heed(result: Result<()>) -> Result<()> {
    if mutant::keep("failure") { result } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use tierdb_base::Error;

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

    /// Memory that answers at once, but for one bad block.
    struct Instantly;

    impl BlockFile for Instantly {
        fn name(&self) -> Arc<str> {
            "instantly".into()
        }
        fn len(&self) -> Result<u64> {
            Ok(1 << 40)
        }
        fn set_len(&self, _: u64) -> Result<()> {
            Ok(())
        }
        fn read(&self, at: u64, _: &mut AlignedBuf) -> Result<()> {
            if at == 4096 { Err(Error::io("read", "instantly", at, ErrorKind::Other.into())) } else { Ok(()) }
        }
        fn write(&self, _: u64, _: &AlignedBuf) -> Result<()> {
            Ok(())
        }
        fn write_durable(&self, _: u64, _: &AlignedBuf) -> Result<()> {
            Ok(())
        }
        fn sync(&self) -> Result<()> {
            Ok(())
        }
    }

    fn reads_of<const N: usize>(
        file: &Metered<Instantly>,
        places: [u64; N],
    ) -> [FileRead<'_, Metered<Instantly>>; N] {
        places.map(|at| FileRead { file, at, buf: AlignedBuf::zeroed(4096).expect("memory") })
    }

    #[test]
    fn only_reads_that_succeeded_are_counted() {
        let meter = Meter::new();
        let file = Metered::new(Instantly, meter.clone(), None);
        let mut reads = reads_of(&file, [0, 4096, 8192]);
        let results = Metered::read_many(&mut reads, Cause::Foreground);
        assert!(reads.iter().all(|read| read.buf.len() == 4096), "each has its buffer again");
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
        let counted = meter.get(Cause::Foreground);
        assert_eq!((counted.reads, counted.read_bytes), (2, 8192));
    }

    #[test]
    fn threads_share_the_bandwidth_and_overlap_their_latencies() {
        let emulation = Emulation {
            name: "test",
            read_latency: Duration::from_millis(90),
            write_latency: Duration::ZERO,
            bandwidth: 4096 * 1000,
        };
        let file = Metered::new(Instantly, Meter::new(), Some(emulation));
        // Eight transfers of 1 ms, one after another, then the last one's latency; not eight latencies.
        takes_at_least_and_sooner_or_later_less_than([98, 600], || {
            std::thread::scope(|threads| {
                for _ in 0..8 {
                    threads.spawn(|| {
                        let mut buf = AlignedBuf::zeroed(4096).expect("memory");
                        file.read(0, &mut buf, Cause::Foreground).expect("read");
                    });
                }
            });
        });
        // Asked for at once, they take as long.
        takes_at_least_and_sooner_or_later_less_than([98, 600], || {
            Metered::read_many(&mut reads_of(&file, [0; 8]), Cause::Foreground);
        });
        // And so do writes.
        let emulation = Emulation { write_latency: emulation.read_latency, ..emulation };
        let file = Metered::new(Instantly, Meter::new(), Some(emulation));
        let write = |count: u64| {
            let bytes = AlignedBuf::zeroed(count as usize * 4096).expect("memory");
            let pieces: Vec<_> = (0..count).map(|number| Piece { at: number * 4096, len: 4096 }).collect();
            file.write_pieces(&bytes, &pieces, Cause::Checkpoint).expect("write");
        };
        takes_at_least_and_sooner_or_later_less_than([98, 600], || write(8));
        let counted = file.meter.get(Cause::Checkpoint);
        assert_eq!(counted.written_bytes, counted.writes * 4096);
        assert!(counted.writes.is_multiple_of(8) && counted.writes > 0);
        // Where more are asked for than are in flight at once, the others wait for these.
        takes_at_least_and_sooner_or_later_less_than([90 * 3 + 40, 900], || write(40));
    }

    /// `work` never takes less than the first number of milliseconds. A machine that does not run its threads for a
    /// while lets it take more than the second: not each time, if the work itself does not.
    fn takes_at_least_and_sooner_or_later_less_than([least, most]: [u64; 2], work: impl Fn()) {
        let given_up = Instant::now() + Duration::from_secs(60);
        loop {
            let start = Instant::now();
            work();
            let spent = start.elapsed();
            assert!(spent >= Duration::from_millis(least), "{spent:?}");
            if spent < Duration::from_millis(most) {
                return;
            }
            assert!(Instant::now() < given_up, "never less than {most} ms: {spent:?}");
        }
    }

    #[test]
    fn what_waiting_for_an_imitated_device_takes_is_known() {
        let (before, own) = (imitation_cpu(), thread_cpu());
        (0..20).for_each(|_| wait_until(Instant::now() + Duration::from_micros(100)));
        let (waiting, own) = (imitation_cpu() - before, thread_cpu() - own);
        assert!(waiting > Duration::ZERO, "it spins for the end of each");
        // Others of this process may have waited too.
        assert!(waiting > own / 2, "{waiting:?} of {own:?}");
    }

    #[test]
    fn files_with_one_pace_share_its_bandwidth() {
        let emulation = Emulation {
            name: "test",
            read_latency: Duration::ZERO,
            write_latency: Duration::ZERO,
            bandwidth: 4096 * 50,
        };
        let pace = Pace::new(emulation);
        let (meter, start) = (Meter::new(), Instant::now());
        for _ in 0..3 {
            let file = Metered::paced(Instantly, meter.clone(), Some(pace.clone()));
            file.read(0, &mut AlignedBuf::zeroed(4096).expect("memory"), Cause::Foreground).expect("read");
        }
        assert!(start.elapsed() >= Duration::from_millis(60));
        // At once from two files: the second waits for the first one's transfer.
        let start = Instant::now();
        std::thread::scope(|threads| {
            for _ in 0..2 {
                let file = Metered::paced(Instantly, meter.clone(), Some(pace.clone()));
                threads.spawn(move || {
                    let mut buf = AlignedBuf::zeroed(4096).expect("memory");
                    file.read(0, &mut buf, Cause::Foreground).expect("read");
                });
            }
        });
        assert!(start.elapsed() >= Duration::from_millis(40), "{:?}", start.elapsed());
    }
}
