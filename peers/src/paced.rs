//! Flash and fast tiers at the pace of other devices, for stores that cannot imitate one themselves.
//!
//! RocksDB reads and writes its tables with the C library's `pread` and `pwrite`, and its log with `write`, which it syncs. This program has functions of
//! these names, which the linker takes instead: they make the system call, and for files below the directories that [`imitate`] was given
//! they return no sooner than the device would, by the rules of TierDB's own emulation. TierDB makes system calls without the C library,
//! so it is not slowed a second time; and each case of a benchmark runs in a process of its own, which has one store. What is written
//! with `write` is in the page cache at first: it takes its time when it is synced, all of it as one write.

#![allow(unsafe_code)]

use libc::{c_int, c_void, off64_t, size_t, ssize_t};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_bench::store::{StoreError, TierIo};
use tierdb_device::{Emulation, Pace};

/// Those that are imitated, the first ones first.
static DEVICES: [OnceLock<Device>; 2] = [const { OnceLock::new() }; 2];

/// Descriptors that are remembered; those above are looked up each time.
const REMEMBERED: usize = 1 << 16;

struct Device {
    /// The tier that it stands for.
    tier: &'static str,
    dir: PathBuf,
    pace: Pace,
    /// By descriptor: which file it was when it was looked up, and in the lowest bit whether that is on the device.
    seen: Vec<AtomicU64>,
    reads: Counter,
    writes: Counter,
    /// By descriptor: bytes in the page cache that are not on the device.
    unsynced: Vec<AtomicU64>,
}

/// Calls, and the bytes that they moved.
#[derive(Default)]
struct Counter {
    calls: AtomicU64,
    bytes: AtomicU64,
}

impl Counter {
    /// Counts a call with this result, and returns that.
    fn count(&self, result: ssize_t) -> ssize_t {
        if let Ok(bytes) = u64::try_from(result) {
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        result
    }

    fn get(&self) -> (u64, u64) {
        (self.calls.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// What was read and written on each device that is imitated: where that lies in memory the kernel counts nothing.
pub fn counted() -> Vec<TierIo> {
    let of = |device: &Device| {
        let ((reads, read_bytes), (writes, written_bytes)) = (device.reads.get(), device.writes.get());
        let (tier, cause) = (device.tier.to_owned(), "all causes, as counted beneath the store".to_owned());
        TierIo { tier, cause, reads, read_bytes, writes, written_bytes, syncs: 0 }
    };
    devices().map(of).collect()
}

/// From now on, files below `dir`, which stands for `tier`, are at the pace of the device `name`.
///
/// # Errors
/// If there is no such device, or this process imitates another one for that tier or there, or two others.
pub fn imitate(tier: &'static str, dir: &Path, name: &str) -> Result<(), StoreError> {
    let emulation = Emulation::named(name)
        .ok_or_else(|| format!("{name:?} does not name a device that can be imitated"))?;
    let dir = dir.canonicalize()?;
    for device in &DEVICES {
        let device = device.get_or_init(|| Device {
            tier,
            dir: dir.clone(),
            pace: Pace::new(emulation),
            seen: (0..REMEMBERED).map(|_| AtomicU64::new(0)).collect(),
            reads: Counter::default(),
            writes: Counter::default(),
            unsynced: (0..REMEMBERED).map(|_| AtomicU64::new(0)).collect(),
        });
        let is_there = dir.starts_with(&device.dir) || device.dir.starts_with(&dir);
        if device.tier == tier && device.dir == dir && device.pace.emulation() == emulation {
            return Ok(());
        } else if device.tier == tier || is_there {
            let (own, at) = (device.pace.emulation().name, device.dir.display());
            return Err(format!("this process imitates {own} in {at} as {}", device.tier).into());
        }
    }
    Err("this process imitates two devices".into())
}

/// Those that are imitated.
fn devices() -> impl Iterator<Item = &'static Device> {
    DEVICES.iter().map_while(OnceLock::get)
}

impl Device {
    /// Bytes of the file that is open as `fd` that are not on the device yet.
    fn unsynced(&self, fd: c_int) -> Option<&AtomicU64> {
        self.unsynced.get(usize::try_from(fd).ok()?)
    }

    /// Whether `file`, which is open as `fd`, is on it.
    fn has(&self, fd: c_int, file: u64) -> bool {
        let seen = usize::try_from(fd).ok().and_then(|fd| self.seen.get(fd));
        if let Some(seen) = seen.map(|seen| seen.load(Ordering::Relaxed)).filter(|seen| seen | 1 == file) {
            return seen == file;
        }
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}"));
        let has = path.is_ok_and(|path| path.starts_with(&self.dir));
        if let Some(seen) = seen {
            seen.store(if has { file } else { file & !1 }, Ordering::Relaxed);
        }
        has
    }
}

/// A number for the file that is open as `fd`: odd, and not that of another file that is there at the same time, but by chance.
fn file_of(fd: c_int) -> Option<u64> {
    let mut stat = std::mem::MaybeUninit::<libc::stat64>::uninit();
    // SAFETY: `stat` is valid for writes of a `stat64`, which is all that the call writes to, whatever `fd` is.
    if unsafe { libc::fstat64(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call has succeeded, so it has filled in all of it.
    let stat = unsafe { stat.assume_init() };
    Some((stat.st_dev.rotate_left(40) ^ stat.st_ino).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
}

/// The device that is imitated on which the file is that is open as `fd`.
fn device_of(fd: c_int) -> Option<&'static Device> {
    // Most processes imitate none, and write to other files.
    DEVICES[0].get()?;
    let file = file_of(fd)?;
    devices().find(|device| device.has(fd, file))
}

fn reading(fd: c_int, call: impl FnOnce() -> ssize_t, len: size_t) -> ssize_t {
    match device_of(fd) {
        Some(device) => device.reads.count(device.pace.read(len, call)),
        None => call(),
    }
}

fn writing(fd: c_int, call: impl FnOnce() -> ssize_t, len: size_t) -> ssize_t {
    match device_of(fd) {
        Some(device) => device.writes.count(device.pace.write(len, call)),
        None => call(),
    }
}

/// As the C library's.
///
/// # Safety
/// `buf` is valid for writes of `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(fd: c_int, buf: *mut c_void, len: size_t, at: off64_t) -> ssize_t {
    // SAFETY: the kernel checks all arguments but what is at `buf`, which is the caller's promise. The call sets `errno`, and nothing
    // that follows it makes another that fails.
    reading(fd, || unsafe { libc::syscall(libc::SYS_pread64, fd, buf, len, at) as ssize_t }, len)
}

/// As the C library's.
///
/// # Safety
/// `buf` is valid for reads of `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, buf: *const c_void, len: size_t, at: off64_t) -> ssize_t {
    // SAFETY: as in `pread64`.
    writing(fd, || unsafe { libc::syscall(libc::SYS_pwrite64, fd, buf, len, at) as ssize_t }, len)
}

/// As the C library's; files of any length have offsets of 64 bits here.
///
/// # Safety
/// As [`pread64`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pread(fd: c_int, buf: *mut c_void, len: size_t, at: off64_t) -> ssize_t {
    // SAFETY: the caller promises what `pread64` asks for.
    unsafe { pread64(fd, buf, len, at) }
}

/// As the C library's; files of any length have offsets of 64 bits here.
///
/// # Safety
/// As [`pwrite64`].
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(fd: c_int, buf: *const c_void, len: size_t, at: off64_t) -> ssize_t {
    // SAFETY: the caller promises what `pwrite64` asks for.
    unsafe { pwrite64(fd, buf, len, at) }
}

/// As the C library's.
///
/// # Safety
/// `buf` is valid for reads of `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: as in `pread64`.
    caching(fd, || unsafe { libc::syscall(libc::SYS_write, fd, buf, len) as ssize_t })
}

/// A write to the page cache.
fn caching(fd: c_int, call: impl FnOnce() -> ssize_t) -> ssize_t {
    let Some(device) = device_of(fd) else { return call() };
    let result = call();
    if let (Ok(bytes), Some(unsynced)) = (u64::try_from(result), device.unsynced(fd)) {
        unsynced.fetch_add(bytes, Ordering::Relaxed);
    }
    result
}

/// A sync of what is there of one file.
fn syncing(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let Some(device) = device_of(fd) else { return call() };
    let bytes = device.unsynced(fd).map_or(0, |unsynced| unsynced.swap(0, Ordering::Relaxed));
    if bytes == 0 {
        return call();
    }
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let result = device.pace.write(bytes, call);
    device.writes.count(if result == 0 { bytes as ssize_t } else { -1 });
    result
}

/// As the C library's; the kernel checks the argument.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: the call has no pointer.
    syncing(fd, || unsafe { libc::syscall(libc::SYS_fdatasync, fd) as c_int })
}

/// As [`fdatasync`].
#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    // SAFETY: the call has no pointer.
    syncing(fd, || unsafe { libc::syscall(libc::SYS_fsync, fd) as c_int })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::time::{Duration, Instant};

    #[test]
    fn what_is_below_a_directory_takes_as_long_as_its_device_and_nothing_else_does() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let [flash, fast] = ["flash", "fast"].map(|name| {
            let dir = dir.path().join(name);
            std::fs::create_dir(&dir).expect("directory");
            dir
        });
        imitate("flash", &flash, "qlc").expect("a device");
        imitate("flash", &flash, "qlc").expect("the same");
        assert!(imitate("flash", &flash, "tlc").is_err() && imitate("flash", dir.path(), "qlc").is_err());
        assert!(imitate("fast", &flash, "qlc").is_err() && imitate("fast", dir.path(), "qlc").is_err());
        assert!(imitate("fast", &fast, "tape").is_err());
        imitate("fast", &fast, "tlc").expect("another device");
        imitate("fast", &fast, "tlc").expect("the same");
        assert!(imitate("a third", dir.path(), "tlc").is_err());
        let latency = |name| {
            let device = Emulation::named(name).expect("a device");
            (device.read_latency, device.write_latency)
        };
        // The standard library reads by the C library's function, too.
        let fastest = |path: &Path| {
            let mut file = std::fs::File::create(path).expect("create");
            std::io::Write::write_all(&mut file, &[7; 4096]).expect("write");
            let start = Instant::now();
            file.sync_data().expect("sync");
            let written = start.elapsed();
            file.sync_data().expect("sync of nothing");
            let file = std::fs::File::open(path).expect("open");
            let mut buf = [0; 4096];
            let read = |_| {
                let start = Instant::now();
                file.read_exact_at(&mut buf, 0).expect("read");
                assert_eq!(buf, [7; 4096]);
                start.elapsed()
            };
            ((0..50).map(read).min().expect("a time"), written)
        };
        let counts = || -> Vec<_> {
            counted().into_iter().map(|io| (io.tier, io.reads, io.writes, io.read_bytes)).collect()
        };
        assert_eq!(counts(), [("flash".to_owned(), 0, 0, 0), ("fast".to_owned(), 0, 0, 0)]);
        for _ in 0..3 {
            for (dir, device) in [(&flash, "qlc"), (&fast, "tlc")] {
                let ((read, write), least) = (fastest(&dir.join("table")), latency(device));
                assert!(read >= least.0 && write >= least.1, "{device}: {read:?}, {write:?}");
            }
            let (read, _) = fastest(&dir.path().join("table"));
            assert!(read < Duration::from_micros(80), "{read:?}");
        }
        let each = (150, 3, 150 * 4096);
        let of = |tier: &str| (tier.to_owned(), each.0, each.1, each.2);
        assert_eq!(counts(), [of("flash"), of("fast")], "of each alone");
        let missing = std::fs::File::open(&flash).expect("open").read_at(&mut [0], 0);
        assert_eq!(missing.expect_err("a directory").raw_os_error(), Some(libc::EISDIR));
    }
}
