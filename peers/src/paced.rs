//! Flash at the pace of another device, for stores that cannot imitate one themselves.
//!
//! RocksDB reads and writes its tables with the C library's `pread` and `pwrite`. This program has functions of these names, which
//! the linker takes instead: they make the system call, and for files below the directory that [`imitate`] was given they return no
//! sooner than the device would, by the rules of TierDB's own emulation. TierDB makes system calls without the C library, so it is not
//! slowed a second time; and each case of a benchmark runs in a process of its own, which has one store.

#![allow(unsafe_code)]

use libc::{c_int, c_void, off64_t, size_t, ssize_t};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_bench::store::{FLASH as TIER, StoreError, TierIo};
use tierdb_device::{Emulation, Pace};

static FLASH: OnceLock<Flash> = OnceLock::new();

/// Descriptors that are remembered; those above are looked up each time.
const REMEMBERED: usize = 1 << 16;

struct Flash {
    dir: PathBuf,
    pace: Pace,
    /// By descriptor: which file it was when it was looked up, and in the lowest bit whether that is on flash.
    seen: Vec<AtomicU64>,
    reads: Counter,
    writes: Counter,
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

/// What was read and written on the flash that is imitated, if there is any: where that lies in memory the kernel counts nothing.
pub fn counted() -> Option<TierIo> {
    let flash = FLASH.get()?;
    let ((reads, read_bytes), (writes, written_bytes)) = (flash.reads.get(), flash.writes.get());
    let (tier, cause) = (TIER.to_owned(), "all causes, as counted beneath the store".to_owned());
    Some(TierIo { tier, cause, reads, read_bytes, writes, written_bytes, syncs: 0 })
}

/// From now on, files below `dir` are at the pace of the device `name`.
///
/// # Errors
/// If there is no such device, or this process imitates another one or elsewhere.
pub fn imitate(dir: &Path, name: &str) -> Result<(), StoreError> {
    let emulation = Emulation::named(name)
        .ok_or_else(|| format!("{name:?} does not name a device that can be imitated"))?;
    let dir = dir.canonicalize()?;
    let flash = FLASH.get_or_init(|| Flash {
        dir: dir.clone(),
        pace: Pace::new(emulation),
        seen: (0..REMEMBERED).map(|_| AtomicU64::new(0)).collect(),
        reads: Counter::default(),
        writes: Counter::default(),
    });
    if flash.dir == dir && flash.pace.emulation() == emulation {
        return Ok(());
    }
    Err(format!("this process imitates {} in {}", flash.pace.emulation().name, flash.dir.display()).into())
}

impl Flash {
    /// Whether the file that is open as `fd` is on flash.
    fn has(&self, fd: c_int) -> bool {
        let Some(file) = file_of(fd) else { return false };
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

/// The flash that is imitated, if the file that is open as `fd` is on it.
fn flash_of(fd: c_int) -> Option<&'static Flash> {
    FLASH.get().filter(|flash| flash.has(fd))
}

fn read(fd: c_int, call: impl FnOnce() -> ssize_t, len: size_t) -> ssize_t {
    match flash_of(fd) {
        Some(flash) => flash.reads.count(flash.pace.read(len, call)),
        None => call(),
    }
}

fn write(fd: c_int, call: impl FnOnce() -> ssize_t, len: size_t) -> ssize_t {
    match flash_of(fd) {
        Some(flash) => flash.writes.count(flash.pace.write(len, call)),
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
    read(fd, || unsafe { libc::syscall(libc::SYS_pread64, fd, buf, len, at) as ssize_t }, len)
}

/// As the C library's.
///
/// # Safety
/// `buf` is valid for reads of `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, buf: *const c_void, len: size_t, at: off64_t) -> ssize_t {
    // SAFETY: as in `pread64`.
    write(fd, || unsafe { libc::syscall(libc::SYS_pwrite64, fd, buf, len, at) as ssize_t }, len)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::time::{Duration, Instant};

    #[test]
    fn what_is_below_the_directory_takes_as_long_as_the_device_and_nothing_else_does() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let flash = dir.path().join("flash");
        std::fs::create_dir(&flash).expect("directory");
        imitate(&flash, "qlc").expect("a device");
        imitate(&flash, "qlc").expect("the same");
        assert!(imitate(&flash, "tlc").is_err() && imitate(dir.path(), "qlc").is_err());
        assert!(imitate(&flash, "tape").is_err());
        let qlc = Emulation::named("qlc").expect("a device").read_latency;
        // The standard library reads by the C library's function, too.
        let fastest = |path: &Path| {
            std::fs::write(path, [7; 4096]).expect("write");
            let file = std::fs::File::open(path).expect("open");
            let mut buf = [0; 4096];
            let read = |_| {
                let start = Instant::now();
                file.read_exact_at(&mut buf, 0).expect("read");
                assert_eq!(buf, [7; 4096]);
                start.elapsed()
            };
            (0..50).map(read).min().expect("a time")
        };
        let counts = || counted().map_or((0, 0), |io| (io.reads, io.read_bytes));
        assert_eq!(counts(), (0, 0));
        for _ in 0..3 {
            assert!(fastest(&flash.join("table")) >= qlc);
            let fast = fastest(&dir.path().join("table"));
            assert!(fast < Duration::from_micros(200), "{fast:?}");
        }
        assert_eq!(counts(), (150, 150 * 4096), "of the flash alone");
        let missing = std::fs::File::open(&flash).expect("open").read_at(&mut [0], 0);
        assert_eq!(missing.expect_err("a directory").raw_os_error(), Some(libc::EISDIR));
    }
}
