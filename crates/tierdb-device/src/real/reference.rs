//! What a device does by itself: random reads of a file at a constant depth, with nothing of a store in between. What
//! a store reaches is measured against it.

use super::file::{RealFile, os_error};
use super::uring::wait;
use crate::buf::AlignedBuf;
use crate::file::{BLOCK, BlockFile};
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};
use tierdb_base::{Error, Result};

/// Most reads in flight.
const DEEPEST: usize = 4096;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandomReads {
    /// Reads completed.
    pub reads: u64,
    /// Reads a second.
    pub per_second: f64,
    /// Median of what a read took.
    pub median: Duration,
    /// Its 99th percentile.
    pub p99: Duration,
}

/// Reads `len` bytes at random multiples of `len` of `file` for `length`, from this thread, by io_uring, with `depth`
/// reads in flight all the time; `seed` says where. Past the page cache where the file's directory is; the file must
/// have been written, or the device has nothing to read.
///
/// # Errors
/// `Invalid` for a `len` that is not a multiple of 4 KiB, a file shorter than that, or a depth above 4,096; `Io`
/// where the kernel refuses io_uring, or a read fails.
pub fn random_reads(
    file: &RealFile,
    len: usize,
    depth: usize,
    length: Duration,
    seed: u64,
) -> Result<RandomReads> {
    let places = if len == 0 { 0 } else { file.len()? / len as u64 };
    if !(len as u64).is_multiple_of(BLOCK) || places == 0 || !(1..=DEEPEST).contains(&depth) {
        return Err(Error::invalid(format!(
            "{depth} random reads of {len} bytes of {}: 1 to {DEEPEST} reads of a multiple of {BLOCK} bytes that the file \
             holds are possible",
            file.name()
        )));
    }
    let bufs = (0..depth).map(|_| AlignedBuf::zeroed(len)).collect::<Result<Vec<_>>>()?;
    let ring = IoUring::builder().dontfork().build(depth as u32);
    let ring = ring.map_err(|error| Error::io("set up io_uring for", file.name(), 0, error))?;
    let begun = Instant::now();
    let mut reader =
        Reader { file, ring, bufs, begun: vec![begun; depth], in_flight: 0, places, random: seed };
    let mut took = reader.read_until(begun + length)?;
    let spent = begun.elapsed().as_secs_f64().max(1e-9);
    took.sort_unstable();
    let at = |share: f64| took.get((took.len() as f64 * share) as usize).copied().unwrap_or_default();
    Ok(RandomReads {
        reads: took.len() as u64,
        per_second: took.len() as f64 / spent,
        median: at(0.5),
        p99: at(0.99),
    })
}

/// Reads in flight, a buffer each. Dropped only when the kernel has no more of the buffers.
struct Reader<'a> {
    file: &'a RealFile,
    ring: IoUring,
    bufs: Vec<AlignedBuf>,
    begun: Vec<Instant>,
    /// Reads that were put into the ring and are not complete.
    in_flight: usize,
    places: u64,
    random: u64,
}

impl Reader<'_> {
    fn read_until(&mut self, end: Instant) -> Result<Vec<Duration>> {
        let mut took = Vec::new();
        (0..self.bufs.len()).for_each(|slot| self.start(slot));
        while self.in_flight > 0 {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(self.failed(error)),
                _ => {}
            }
            for (slot, outcome) in self.completed() {
                let now = Instant::now();
                match usize::try_from(outcome) {
                    Ok(count) if count == self.bufs[slot].len() => {
                        took.push(now.duration_since(self.begun[slot]));
                    }
                    Ok(_) => return Err(self.failed(io::ErrorKind::UnexpectedEof.into())),
                    Err(_) => {
                        return Err(os_error(
                            "read",
                            self.file.name(),
                            0,
                            Errno::from_raw_os_error(-outcome),
                        ));
                    }
                }
                if now < end {
                    self.start(slot);
                }
            }
        }
        Ok(took)
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::io("read", self.file.name(), 0, error)
    }

    /// Puts a read into the buffer `slot`, which is in no other, into the ring.
    fn start(&mut self, slot: usize) {
        // A 64-bit linear congruence; its upper bits are good enough for places.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = ((u128::from(self.random) * u128::from(self.places)) >> 64) as u64;
        let buf = &mut self.bufs[slot];
        let fd = types::Fd(self.file.handle().as_fd().as_raw_fd());
        let entry = opcode::Read::new(fd, buf.as_mut_ptr(), buf.len() as u32)
            .offset(place * buf.len() as u64)
            .build()
            .user_data(slot as u64);
        self.begun[slot] = Instant::now();
        // SAFETY: the file is borrowed for as long as this reader lives, and its buffers live as long and are not
        // touched while they are in flight; `drop` waits for every read that the kernel has taken.
        if unsafe { self.ring.submission().push(&entry) }.is_ok() {
            self.in_flight += 1;
        }
    }

    fn completed(&mut self) -> Vec<(usize, i32)> {
        let done: Vec<_> =
            self.ring.completion().map(|entry| (entry.user_data() as usize, entry.result())).collect();
        self.in_flight -= done.len();
        done
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut refused = false;
        while self.in_flight > 0 {
            self.in_flight -= wait(&mut self.ring, &mut refused);
            self.completed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{Dir, OpenMode};
    use crate::real::device::Device;
    use crate::real::file::Handle;
    use crate::real::{RealDir, RealOptions};
    use std::io::Write;
    use std::sync::Arc;

    #[test]
    fn reads_go_on_until_their_time_is_over_and_short_files_are_refused() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let dir = RealDir::open(temp.path()).expect("directory");
        if !dir.medium().contains("io_uring") || dir.medium().contains("io_uring refused") {
            return;
        }
        let file = dir.open("reference", OpenMode::CreateNew).expect("file");
        let empty = random_reads(&file, 4096, 1, Duration::from_millis(1), 1);
        assert!(matches!(empty, Err(Error::Invalid { .. })), "{empty:?}");
        file.write(0, &AlignedBuf::from_bytes(&[7; 64 << 10]).expect("memory")).expect("write");
        for depth in [1, 3, 64] {
            let measured = random_reads(&file, 4096, depth, Duration::from_millis(30), 1).expect("reads");
            assert!(measured.reads >= depth as u64, "{measured:?}");
            assert!(
                measured.median <= measured.p99 && measured.p99 < Duration::from_secs(60),
                "{measured:?}"
            );
            // As many as are always in flight take as long as one does, each: Little's law.
            let busy = measured.per_second * measured.median.as_secs_f64();
            assert!(busy < depth as f64 * 3.0 + 1.0, "{measured:?}");
        }
        // A file that was cut while it is read: an error, and no read is left behind.
        file.set_len(4096).expect("cut");
        let places = Reader {
            file: &file,
            ring: IoUring::new(8).expect("ring"),
            bufs: (0..8).map(|_| AlignedBuf::zeroed(4096).expect("memory")).collect(),
            begun: vec![Instant::now(); 8],
            in_flight: 0,
            places: 16,
            random: 1,
        };
        let mut cut = places;
        assert!(cut.read_until(Instant::now() + Duration::from_secs(5)).is_err());
        drop(cut);
    }

    #[test]
    fn a_reader_goes_when_the_last_of_its_reads_is_complete() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let Ok(ring) = IoUring::new(8) else { return };
        let (source, mut sink) = std::io::pipe().expect("pipe");
        let device = Arc::new(Device::new(&RealOptions::default(), None, false));
        let mut reader = Reader {
            file: &RealFile::new(Handle::new(source.into(), "pipe".into()), device, true),
            ring,
            bufs: (0..2).map(|_| AlignedBuf::zeroed(4096).expect("memory")).collect(),
            begun: vec![Instant::now(); 2],
            in_flight: 0,
            places: 1,
            random: 1,
        };
        // One that the kernel has, and one that it has not taken yet.
        reader.start(0);
        reader.ring.submit().expect("submit");
        reader.start(1);
        let last = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                sink.write_all(&[1; 4096]).expect("the first");
                std::thread::sleep(Duration::from_millis(100));
                last.store(true, Ordering::Release);
                sink.write_all(&[2; 4096]).expect("the last");
            });
            drop(reader);
            assert!(last.load(Ordering::Acquire), "a read is still with the kernel");
        });
    }
}
