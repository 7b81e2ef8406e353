//! A file of a real directory.

use super::device::Device;
use crate::buf::AlignedBuf;
use crate::file::{BLOCK, BlockFile, FileRead, Piece};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, fdatasync, flock, fstat, fsync, ftruncate};
use rustix::io::{Errno, ReadWriteFlags, pread, pwrite, pwritev2, retry_on_intr};
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tierdb_base::{Error, Result};

/// An error of the operating system in its place. A quota that is used up is a full file system, and so is a file that
/// may not grow: what is in it can be freed, and more will not come.
pub fn os_error(op: &'static str, name: impl Into<Arc<str>>, at: u64, errno: Errno) -> Error {
    let source = match errno {
        Errno::DQUOT => io::Error::new(ErrorKind::StorageFull, "the disk quota is used up"),
        Errno::FBIG => {
            let what = "the file is the largest that the file system, or the limit on the process, allows";
            io::Error::new(ErrorKind::StorageFull, what)
        }
        _ => errno.into(),
    };
    Error::io(op, name, at, source)
}

/// An open file, and the calls that every way of reading and writing it ends in.
pub struct Handle {
    fd: OwnedFd,
    name: Arc<str>,
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Handle {
    pub fn new(fd: OwnedFd, name: Arc<str>) -> Self {
        Handle { fd, name }
    }

    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn error(&self, op: &'static str, at: u64, errno: Errno) -> Error {
        os_error(op, self.name.clone(), at, errno)
    }

    fn len(&self) -> Result<u64> {
        let stat = fstat(&self.fd).map_err(|errno| self.error("stat", 0, errno))?;
        Ok(stat.st_size as u64)
    }

    fn check(&self, at: u64, what: &'static str) -> Result<()> {
        if at.is_multiple_of(BLOCK) {
            return Ok(());
        }
        Err(Error::invalid(format!("{what} {at} of {} is not a multiple of {BLOCK}", self.name)))
    }

    /// Reads what is left of `buf` after a first attempt, if there was one: `outcome` is the bytes it read, or a negative
    /// error number. Such a one is not final: a ring may be refused what a plain read is not, and it cancels what a thread that
    /// ends has not started.
    pub fn finish_read(&self, at: u64, buf: &mut [u8], outcome: Option<i32>) -> Result<()> {
        let mut attempt = outcome.and_then(|outcome| usize::try_from(outcome).ok());
        let mut filled = 0;
        loop {
            let place = at.saturating_add(filled as u64);
            let count = match attempt.take().map_or_else(|| pread(&self.fd, &mut buf[filled..], place), Ok) {
                Ok(count) => count,
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(errno) => return Err(self.error("read", place, errno)),
            };
            filled += count;
            if filled >= buf.len() {
                return Ok(());
            }
            // Asking again at the end of a damaged file could be refused for its offset, not for the end.
            if count == 0 || at.saturating_add(buf.len() as u64) > self.len()? {
                return Err(Error::io("read", self.name.clone(), at, ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Writes what is left of `bytes` after a first attempt, if there was one; see [`Handle::finish_read`]. To write what was written before changes
    /// nothing.
    pub fn finish_write(&self, at: u64, bytes: &[u8], outcome: Option<i32>) -> Result<()> {
        let count = outcome.and_then(|outcome| usize::try_from(outcome).ok());
        let mut attempt = count.filter(|count| *count > 0);
        self.write(at, bytes, |rest, at| attempt.take().map_or_else(|| pwrite(&self.fd, rest, at), Ok))
    }

    fn write(
        &self,
        at: u64,
        bytes: &[u8],
        mut put: impl FnMut(&[u8], u64) -> Result<usize, Errno>,
    ) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let place = at.saturating_add(done as u64);
            match put(&bytes[done..], place) {
                Ok(0) => {
                    return Err(Error::io("write", self.name.clone(), place, ErrorKind::WriteZero.into()));
                }
                Ok(count) => done += count,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(self.error("write", place, errno)),
            }
        }
        Ok(())
    }

    fn allocate(&self, from: u64, to: u64) -> Result<()> {
        match retry_on_intr(|| fallocate(&self.fd, FallocateFlags::empty(), from, to - from)) {
            Ok(()) => Ok(()),
            // A file system without allocation: only writing takes the space.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.write_zeros(from, to),
            Err(errno) => Err(self.error("resize", to, errno)),
        }
    }

    fn discard(&self, at: u64, len: u64) -> Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| fallocate(&self.fd, hole, at, len)) {
            // A file system without holes.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(self.error("discard", at, errno)),
        }
    }

    fn write_zeros(&self, from: u64, to: u64) -> Result<()> {
        const STEP: u64 = 1 << 20;
        let zeros = AlignedBuf::zeroed(STEP as usize)?;
        for at in (from..to).step_by(STEP as usize) {
            let bytes = &zeros[..(to - at).min(STEP) as usize];
            self.finish_write(at, bytes, None)?;
        }
        Ok(())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        retry_on_intr(|| ftruncate(&self.fd, len)).map_err(|errno| self.error("resize", len, errno))
    }
}

/// Longest that who writes in pieces waits for those of another open file.
const LONGEST_IN_FLIGHT: Duration = Duration::from_secs(60);

/// A lock on an open file while it is written in pieces. If their process is killed it lasts until the last of them has ended: they keep
/// the file open. The store's own lock is on another file, and ends with the process.
struct Claim<'f>(&'f Handle);

impl<'f> Claim<'f> {
    /// Waits for who has it. `None` where the file system has no locks: then nobody ever had one.
    ///
    /// # Errors
    /// `Locked` after so long; `Io`.
    fn wait(file: &'f Handle, longest: Duration) -> Result<Option<Self>> {
        let begun = Instant::now();
        loop {
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Claim(file))),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if begun.elapsed() < longest => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Errno::WOULDBLOCK) => {
                    let holder = "writes of a process that was killed, or a lock on this file".into();
                    return Err(Error::Locked { path: PathBuf::from(&*file.name), holder });
                }
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(None),
                Err(errno) => return Err(file.error("lock", 0, errno)),
            }
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

/// A file of a [`RealDir`](super::RealDir): direct I/O where the file system has it.
pub struct RealFile {
    handle: Arc<Handle>,
    device: Arc<Device>,
    /// Held by who has the claim: two of one open file would be one.
    claiming: Mutex<()>,
    /// Changes of the length, and how many of them are durable.
    resized: AtomicU64,
    synced: AtomicU64,
    /// What a sync of the page cache has failed with, where writes go through that: the system tells of a write-back that
    /// failed only once, to whichever sync of the open file asks first. So they take turns, and all later ones are told the same.
    cached: Option<Mutex<Option<Errno>>>,
}

impl RealFile {
    /// The file of `handle`, whose writes are `cached` until a sync or not.
    pub(super) fn new(handle: Handle, device: Arc<Device>, cached: bool) -> Self {
        RealFile {
            handle: Arc::new(handle),
            device,
            claiming: Mutex::new(()),
            resized: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            cached: cached.then(Mutex::default),
        }
    }

    /// Does `sync`, in turn where that has to be.
    fn sync_by(&self, sync: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        // An interrupted sync has not said how it ended; any other error has, for good.
        let told = || retry_on_intr(&sync);
        let Some(cached) = &self.cached else { return told() };
        let mut failed = cached.lock();
        match *failed {
            Some(errno) => Err(errno),
            None => told().inspect_err(|errno| *failed = Some(*errno)),
        }
    }

    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }
}

impl BlockFile for RealFile {
    fn name(&self) -> Arc<str> {
        self.handle.name.clone()
    }

    fn len(&self) -> Result<u64> {
        self.handle.len()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.handle.check(len, "length")?;
        let before = self.handle.len()?;
        let done = if len <= before {
            self.handle.truncate(len)
        } else {
            self.handle.allocate(before, len).inspect_err(|_| {
                // What was added before the room ran out goes again.
                let _ = self.handle.truncate(before);
            })
        };
        // Not before: a sync on another thread would take what it has not seen for durable.
        self.resized.fetch_add(1, Ordering::Release);
        done
    }

    fn discard(&self, at: u64, len: u64) -> Result<()> {
        self.handle.check(at, "offset")?;
        self.handle.check(len, "length")?;
        self.handle.discard(at, len)
    }

    fn read(&self, at: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.handle.check(at, "offset")?;
        self.device.read(&self.handle, at, buf)
    }

    /// Through the rings of the directory of one of them, which can read any file: one by one only where all are in memory.
    fn read_many(reads: &mut [FileRead<'_, Self>]) -> Vec<Result<()>> {
        if let Some(wrong) = reads.iter().find_map(|read| read.file.handle.check(read.at, "offset").err()) {
            return reads.iter().map(|_| Err(wrong.clone())).collect();
        }
        let mut devices = reads.iter().map(|read| &read.file.device);
        let first = devices.clone().next();
        let waits = devices.find(|device| !device.is_on_memory());
        let Some(device) = waits.or(first).cloned() else { return Vec::new() };
        device.read_many(reads)
    }

    fn write(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        self.handle.check(at, "offset")?;
        self.handle.finish_write(at, bytes, None)
    }

    /// Through a ring, where it is not memory or the page cache that they go to: these take them at once. A write that the kernel has from a ring goes
    /// on when its process is killed, as one by a system call does not.
    fn write_pieces(&self, bytes: &AlignedBuf, pieces: &[Piece]) -> Result<()> {
        for piece in pieces {
            self.handle.check(piece.at, "offset")?;
            self.handle.check(piece.len as u64, "length")?;
        }
        let _turn = self.claiming.lock();
        let claim = Claim::wait(&self.handle, LONGEST_IN_FLIGHT)?;
        self.device.write_pieces(&self.handle, bytes, pieces, claim.is_some() && self.cached.is_none())
    }

    fn write_durable(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        self.handle.check(at, "offset")?;
        if self.cached.is_some() {
            self.handle.finish_write(at, bytes, None)?;
            // Not as a write that found no room: what has failed is known no more.
            return self
                .sync_by(|| fdatasync(&self.handle))
                .map_err(|errno| self.handle.error("sync", at, errno));
        }
        self.handle.write(at, bytes, |bytes, at| {
            match pwritev2(&self.handle, &[IoSlice::new(bytes)], at, ReadWriteFlags::DSYNC) {
                // A file system that knows no such flag.
                Err(Errno::OPNOTSUPP) => {
                    let count = pwrite(&self.handle, bytes, at)?;
                    fdatasync(&self.handle)?;
                    Ok(count)
                }
                other => other,
            }
        })
    }

    fn sync(&self) -> Result<()> {
        let resized = self.resized.load(Ordering::Acquire);
        let whole = self.synced.load(Ordering::Acquire) < resized;
        self.sync_by(|| if whole { fsync(&self.handle) } else { fdatasync(&self.handle) })
            .map_err(|errno| self.handle.error("sync", 0, errno))?;
        self.synced.fetch_max(resized, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::RealOptions;
    use rustix::fs::{Mode, OFlags, open};

    #[test]
    fn a_full_device_is_a_full_device_to_every_write() {
        let full = open("/dev/full", OFlags::RDWR, Mode::empty()).expect("/dev/full");
        let device = Arc::new(Device::new(&RealOptions::default(), None, false));
        let file = RealFile::new(Handle::new(full, "full".into()), device, true);
        let bytes = AlignedBuf::from_bytes(&[1; 100]).expect("memory");
        for result in [file.write(8192, &bytes), file.write_durable(8192, &bytes)] {
            let Err(Error::Io { op, place, source }) = result else { panic!("{result:?}") };
            assert_eq!((op, place.to_string().as_str()), ("write", "full at byte 8192"));
            assert_eq!(source.kind(), ErrorKind::StorageFull);
        }
        for (errno, what) in [(Errno::DQUOT, "quota"), (Errno::FBIG, "largest")] {
            let Error::Io { source, .. } = os_error("resize", "full", 0, errno) else { panic!("{errno}") };
            assert_eq!(source.kind(), ErrorKind::StorageFull, "{errno}");
            assert!(source.to_string().contains(what), "{source}");
        }
    }

    #[test]
    fn through_the_page_cache_all_are_told_what_one_sync_failed_with() {
        let path = std::env::temp_dir().join(format!("tierdb-cached-{}", std::process::id()));
        let open = || std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path);
        let bytes = AlignedBuf::from_bytes(&[1; 100]).expect("memory");
        for cached in [true, false] {
            let device = Arc::new(Device::new(&RealOptions::default(), None, false));
            let handle = Handle::new(open().expect("file").into(), "cached".into());
            let file = RealFile::new(handle, device, cached);
            file.write_durable(0, &bytes).and_then(|()| file.sync()).expect("nothing has failed");
            assert_eq!(file.sync_by(|| Err(Errno::IO)), Err(Errno::IO));
            // As far as the system goes, the next one is told of nothing.
            for result in [file.write_durable(0, &bytes), file.sync()] {
                let failed = result.err().map(|error| error.to_string());
                let expected = cached.then_some("sync of cached at byte 0 failed: ");
                assert_eq!(failed.is_some(), expected.is_some(), "{failed:?}");
                assert!(failed.unwrap_or_default().starts_with(expected.unwrap_or_default()));
            }
        }
        std::fs::remove_file(&path).expect("remove");
    }

    #[test]
    fn who_writes_in_pieces_waits_for_those_that_another_open_file_has_in_flight() {
        let path = std::env::temp_dir().join(format!("tierdb-claimed-{}", std::process::id()));
        let open = || {
            let file =
                std::fs::File::options().create(true).truncate(false).read(true).write(true).open(&path);
            let device = Arc::new(Device::new(&RealOptions::default(), None, false));
            RealFile::new(Handle::new(file.expect("file").into(), "claimed".into()), device, false)
        };
        let write = |file: &RealFile| {
            let pieces = [Piece { at: BLOCK, len: BLOCK as usize }];
            file.write_pieces(&AlignedBuf::zeroed(BLOCK as usize).expect("memory"), &pieces).expect("room");
        };
        let (first, second) = (open(), open());
        std::fs::remove_file(&path).expect("remove");
        // While both are open, as that of a closed store may be.
        write(&first);
        write(&second);
        // A process is killed, and gives nothing up. As a request in flight does, something keeps the file open.
        let in_flight = first.handle.as_fd().try_clone_to_owned().expect("a descriptor");
        std::mem::forget(Claim::wait(&first.handle, Duration::ZERO).expect("nobody has it").expect("locks"));
        drop(first);
        let refused = Claim::wait(&second.handle, Duration::from_millis(5)).err().expect("it is taken");
        assert!(matches!(refused, Error::Locked { .. }), "{refused}");
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                write(&second);
                done.send(()).expect("somebody waits");
            });
            assert!(wait.recv_timeout(Duration::from_millis(100)).is_err(), "it waits");
            drop(in_flight);
            wait.recv_timeout(Duration::from_secs(60)).expect("it goes on");
        });
    }

    #[test]
    fn what_is_discarded_takes_no_space_and_reads_as_zeros() {
        use std::os::unix::fs::MetadataExt;
        let path = std::env::temp_dir().join(format!("tierdb-discarded-{}", std::process::id()));
        let file = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path);
        let file = file.expect("file");
        std::fs::remove_file(&path).expect("remove");
        let device = Arc::new(Device::new(&RealOptions::default(), None, false));
        let handle = Handle::new(file.try_clone().expect("a descriptor").into(), "discarded".into());
        let real = RealFile::new(handle, device, false);
        real.set_len(64 * BLOCK).expect("room");
        real.write(0, &AlignedBuf::from_bytes(&[7; 64 * BLOCK as usize]).expect("memory")).expect("room");
        real.sync().expect("sync");
        let blocks = || file.metadata().expect("a file").blocks();
        let before = blocks();
        real.discard(16 * BLOCK, 32 * BLOCK).expect("a hole, or nothing");
        assert_eq!(real.len().expect("a length"), 64 * BLOCK);
        let mut all = AlignedBuf::zeroed(64 * BLOCK as usize).expect("memory");
        real.read(0, &mut all).expect("read");
        let (head, rest) = all.split_at(16 * BLOCK as usize);
        let (hole, tail) = rest.split_at(32 * BLOCK as usize);
        assert!(head.iter().chain(tail).all(|byte| *byte == 7));
        // A file system without holes leaves it as it was.
        let is_hole = hole.iter().all(|byte| *byte == 0);
        assert!(is_hole || hole.iter().all(|byte| *byte == 7));
        assert_eq!(blocks() < before, is_hole, "{before} and {}", blocks());
        let wrong = [real.discard(1, BLOCK), real.discard(BLOCK, 1)];
        assert!(wrong.iter().all(|result| result.is_err()), "{wrong:?}");
    }

    #[test]
    fn writes_and_reads_that_stop_short_are_finished() {
        let path = std::env::temp_dir().join(format!("tierdb-short-{}", std::process::id()));
        let fd = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path);
        let handle = Handle::new(fd.expect("file").into(), "short".into());
        std::fs::remove_file(&path).expect("remove");
        let bytes: Vec<u8> = (0..20_000_u32).map(|i| i as u8 ^ (i >> 8) as u8).collect();
        let calls = std::cell::Cell::new(0);
        let put = |bytes: &[u8], at| {
            calls.set(calls.get() + 1);
            match calls.get() % 3 {
                0 => Err(Errno::INTR),
                _ => pwrite(&handle, &bytes[..bytes.len().min(4000)], at),
            }
        };
        handle.write(0, &bytes, put).expect("write");
        assert!(matches!(
            handle.write(0, &bytes, |_, _| Ok(0)),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::WriteZero
        ));
        // A first attempt that read the first 5,000 bytes, ones that a ring cancelled and that it was refused, and none.
        for outcome in
            [Some(5000), Some(-Errno::CANCELED.raw_os_error()), Some(-Errno::INVAL.raw_os_error()), None]
        {
            let mut read = vec![0; bytes.len()];
            let first = outcome.map_or(0, |count| count.max(0) as usize);
            read[..first].copy_from_slice(&bytes[..first]);
            handle.finish_read(0, &mut read, outcome).expect("read");
            assert_eq!(read, bytes, "{outcome:?}");
        }
        for outcome in [Some(5000), Some(0), Some(-Errno::CANCELED.raw_os_error()), None] {
            handle.write(0, &[0; 20_000], |rest, at| pwrite(&handle, rest, at)).expect("zeros");
            let first = outcome.map_or(0, |count| count.max(0) as usize);
            handle.finish_write(0, &bytes, outcome).expect("write");
            let mut written = vec![0; bytes.len()];
            handle.finish_read(0, &mut written, None).expect("read");
            assert!(written[..first].iter().all(|byte| *byte == 0) && written[first..] == bytes[first..]);
        }
        let unreadable = open("/dev/null", OFlags::WRONLY, Mode::empty()).expect("/dev/null");
        let unreadable = Handle::new(unreadable, "short".into());
        for outcome in [Some(-Errno::INVAL.raw_os_error()), None] {
            let failed = unreadable.finish_read(4096, &mut [0; 10], outcome);
            let Err(Error::Io { op, place, source }) = failed else { panic!("{failed:?}") };
            assert_eq!((op, place.to_string().as_str()), ("read", "short at byte 4096"));
            assert_eq!(Errno::from_io_error(&source), Some(Errno::BADF));
        }
    }

    #[test]
    fn space_is_taken_by_writing_where_it_cannot_be_allocated() {
        let path = std::env::temp_dir().join(format!("tierdb-zeros-{}", std::process::id()));
        let fd = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&path);
        let handle = Handle::new(fd.expect("file").into(), "zeros".into());
        std::fs::remove_file(&path).expect("remove");
        handle.write_zeros(0, (1 << 20) + BLOCK).expect("write");
        assert_eq!(handle.len().expect("length"), (1 << 20) + BLOCK);
    }
}
