//! Pools in memory: a DAX file mapped with `MAP_SYNC`, or emulated NVM in shared or plain memory.

use crate::arena::Arena;
use crate::pool::{Lsn, PersistenceDomain, Pool};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_base::{Error, Location, Result};

/// A shared mapping of a whole file, unmapped when dropped.
pub(crate) struct Mapping {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: a `Mapping` gives access only to atomic words, which any thread may use.
unsafe impl Send for Mapping {}
// SAFETY: as above; no access through `&Mapping` is other than atomic.
unsafe impl Sync for Mapping {}

impl Mapping {
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `base` is the page-aligned start of a mapping of `words * 8` bytes that lives as long
        // as `self`, and every access to it in this process is through these atomic words.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length by `MappedPool::open`, and nothing borrows from
        // it once its owner is dropped.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.words * 8) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping");
    }
}

/// A pool in memory: a mapped file on a DAX file system, or emulated NVM.
///
/// Emulation keeps the semantics and can charge a named device's write-back latency, and is reported as
/// [`PersistenceDomain::Emulated`] wherever the pool is shown.
pub struct MappedPool {
    arena: Arena,
    name: Arc<str>,
    domain: PersistenceDomain,
    drain_ns: u64,
}

impl MappedPool {
    /// Maps the file at `path`, created with `len` bytes if it is not there.
    ///
    /// On a DAX file system the mapping is made with `MAP_SYNC`, and stores are durable after a drain.
    /// Where that is refused and `emulate` is set, the file is mapped as shared memory (put it on tmpfs)
    /// and reported as emulated; where `emulate` is not set, the call fails.
    ///
    /// # Errors
    /// `Io` from the system; `Unsupported` if the path is not DAX and `emulate` is not set; `Corrupt` if
    /// an existing file is shorter than `len`.
    pub fn open(path: &Path, len: u64, emulate: bool) -> Result<Self> {
        let name: Arc<str> = path.display().to_string().into();
        let io = |op, e: rustix::io::Errno| Error::io(op, name.clone(), 0, e.into());
        let file = rustix::fs::open(
            path,
            OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        )
        .map_err(|e| io("open", e))?;
        let have = rustix::fs::fstat(&file).map_err(|e| io("stat", e))?.st_size as u64;
        if have == 0 {
            rustix::fs::ftruncate(&file, len).map_err(|e| io("resize", e))?;
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len)
                .map_err(|e| io("allocate", e))?;
            rustix::fs::fsync(&file).map_err(|e| io("sync", e))?;
        } else if have != len {
            return Err(Error::corrupt(
                tierdb_base::TierRole::Fast,
                format!("the pool has {have} bytes, but was created with {len}"),
                Location::new(name, have.min(len)),
            ));
        }
        let map = |flags| {
            // SAFETY: a new mapping at an address the kernel chooses aliases nothing in this process.
            unsafe {
                rustix::mm::mmap(
                    std::ptr::null_mut(),
                    len as usize,
                    ProtFlags::READ | ProtFlags::WRITE,
                    flags,
                    &file,
                    0,
                )
            }
        };
        let (base, domain) = match map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
            Ok(base) => {
                // What a process that was killed had stored and not written back is visible to this one: it is
                // made durable before anything is built on it.
                rustix::fs::fsync(&file).map_err(|e| io("sync", e))?;
                (base, flush::domain()?)
            }
            Err(_) if emulate => {
                (map(MapFlags::SHARED).map_err(|e| io("map", e))?, PersistenceDomain::Emulated)
            }
            Err(_) => {
                return Err(Error::Unsupported {
                    what: format!(
                        "{name} is not on a DAX file system, so stores to it are not durable; use a block fast tier, \
                         or ask for emulation"
                    ),
                });
            }
        };
        let base = NonNull::new(base.cast::<AtomicU64>())
            .ok_or_else(|| Error::io("map", name.clone(), 0, std::io::ErrorKind::Other.into()))?;
        let arena = Arena::mapped(Mapping { base, words: (len / 8) as usize });
        Ok(MappedPool { arena, name, domain, drain_ns: 0 })
    }

    /// An emulated pool of `len` bytes in plain memory, which lasts as long as this value.
    pub fn in_memory(len: u64) -> Self {
        MappedPool {
            arena: Arena::zeroed(len),
            name: "memory pool".into(),
            domain: PersistenceDomain::Emulated,
            drain_ns: 0,
        }
    }

    /// Charges every fence `drain_ns` nanoseconds, as a named device would take. For benchmarks.
    #[must_use]
    pub fn with_drain_latency(mut self, drain_ns: u64) -> Self {
        self.drain_ns = drain_ns;
        self
    }
}

impl Pool for MappedPool {
    fn len(&self) -> u64 {
        self.arena.len()
    }

    fn domain(&self) -> PersistenceDomain {
        self.domain
    }

    fn place(&self, at: u64) -> Location {
        Location::new(self.name.clone(), at)
    }

    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.arena.word(at).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, at: u64, word: u64) {
        self.arena.word(at).store(word, Ordering::Release);
    }

    #[inline]
    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.arena.word(at).compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }

    #[inline]
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.arena.read(at, out);
        Ok(())
    }

    #[inline]
    fn write(&self, at: u64, bytes: &[u8]) {
        self.arena.write(at, bytes);
    }

    #[inline]
    fn flush(&self, at: u64, len: u64) {
        if self.domain == PersistenceDomain::Adr && len > 0 {
            let first = &self.arena.words()[(at / 8) as usize..];
            flush::write_back(first, (at % 8 + len) as usize);
        }
    }

    #[inline]
    fn fence(&self) {
        flush::fence();
        if self.drain_ns > 0 {
            let start = std::time::Instant::now();
            while (start.elapsed().as_nanos() as u64) < self.drain_ns {
                std::hint::spin_loop();
            }
        }
    }

    #[inline]
    fn publish(&self, at: u64, word: u64) {
        self.store(at, word);
        self.flush(at, 8);
    }

    #[inline]
    fn lsn(&self) -> Lsn {
        0
    }

    #[inline]
    fn wait(&self, _lsn: Lsn) -> Result<()> {
        Ok(())
    }

    #[inline]
    fn persist_word(&self, at: u64) -> Result<()> {
        self.flush(at, 8);
        self.fence();
        Ok(())
    }

    #[inline]
    fn admit(&self, _bytes: u64) -> Result<()> {
        Ok(())
    }
}

/// The instructions, and nothing else in the project is assembly.
#[cfg(target_arch = "x86_64")]
mod flush {
    use super::PersistenceDomain;
    use std::arch::asm;
    use std::sync::atomic::AtomicU64;
    use tierdb_base::{Error, Result};

    const LINE: usize = 64;

    /// ADR needs `clwb`, without which the pool is refused.
    pub fn domain() -> Result<PersistenceDomain> {
        // Leaf 7, subleaf 0, EBX bit 24: CLWB.
        let leaf = std::arch::x86_64::__cpuid_count(7, 0);
        if leaf.ebx & (1 << 24) == 0 {
            return Err(Error::Unsupported {
                what: "this processor has no clwb instruction; use a block fast tier".into(),
            });
        }
        Ok(PersistenceDomain::Adr)
    }

    /// Starts the write-back of every cache line that `len` bytes from the start of `words` touch.
    pub fn write_back(words: &[AtomicU64], len: usize) {
        let start = words.as_ptr() as usize;
        assert!(len <= size_of_val(words), "the range lies inside the pool");
        let mut line = start & !(LINE - 1);
        while line < start + len {
            // SAFETY: `clwb` of a mapped line changes no architectural state but the cache's; the line
            // holds at least one byte of `words`, so it is mapped.
            unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) };
            line += LINE;
        }
    }

    /// Waits for the write-backs that this thread has started.
    #[inline]
    pub fn fence() {
        // SAFETY: SSE, and so `sfence`, is part of the x86-64 baseline; it has no operands.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
}

#[cfg(target_arch = "aarch64")]
mod flush {
    use super::PersistenceDomain;
    use std::arch::asm;
    use std::sync::atomic::AtomicU64;
    use tierdb_base::Result;

    const LINE: usize = 64;

    pub fn domain() -> Result<PersistenceDomain> {
        Ok(PersistenceDomain::Adr)
    }

    /// Starts the write-back of every cache line that `len` bytes from the start of `words` touch.
    pub fn write_back(words: &[AtomicU64], len: usize) {
        let start = words.as_ptr() as usize;
        assert!(len <= size_of_val(words), "the range lies inside the pool");
        let mut line = start & !(LINE - 1);
        while line < start + len {
            // SAFETY: `dc cvap` cleans a mapped line to the point of persistence and changes no memory;
            // the line holds at least one byte of `words`.
            unsafe { asm!("dc cvap, {}", in(reg) line, options(nostack, preserves_flags)) };
            line += LINE;
        }
    }

    /// Waits for the write-backs that this thread has started.
    #[inline]
    pub fn fence() {
        // SAFETY: a data synchronization barrier has no operands and changes no memory.
        unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_file_pool_keeps_its_words_and_says_that_it_is_emulated() {
        let dir = std::env::temp_dir().join(format!("tierdb-pmem-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("temporary directory");
        let path = dir.join("pool");
        {
            let pool = MappedPool::open(&path, 8192, true).expect("create");
            pool.write(4099, b"hello");
            pool.flush(4099, 5);
            pool.fence();
            pool.publish(8, 42);
        }
        {
            let pool = MappedPool::open(&path, 8192, true).expect("reopen");
            let mut bytes = [0; 5];
            pool.read(4099, &mut bytes).expect("read");
            assert_eq!((&bytes, pool.load(8)), (b"hello", 42));
            assert_eq!(pool.compare_exchange(8, 41, 1), Err(42));
            assert_eq!(pool.compare_exchange(8, 42, 1), Ok(42));
        }
        assert!(MappedPool::open(&path, 4096, true).is_err(), "a wrong length is refused");
        std::fs::remove_dir_all(&dir).expect("clean up");
    }

    #[test]
    #[cfg_attr(miri, ignore = "assembly")]
    fn write_back_runs_on_any_range() {
        let arena = Arena::zeroed(4096);
        for len in [1, 8, 63, 64, 65, 4096] {
            flush::write_back(arena.words(), len);
        }
        flush::fence();
    }
}
