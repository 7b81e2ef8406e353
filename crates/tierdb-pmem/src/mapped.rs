//! Pools in memory: DAX files mapped with `MAP_SYNC`, or emulated NVM in shared or plain memory.

use crate::arena::Arena;
use crate::mapping::{Reservation, is_dax};
use crate::pool::{Admitted, Lsn, PersistenceDomain, Pool, WriteBacks};
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstat, fsync, ftruncate};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::MapFlags;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tierdb_base::{Error, Location, Result, TierRole};
use tierdb_sync::Counter;

/// Bytes of a cache line, which is what is written back.
const LINE: u64 = 64;

/// A pool in memory: mapped files on DAX file systems, one after another, or emulated NVM.
///
/// Emulation keeps the semantics and can charge a named device's write-back latency, and is reported as
/// [`PersistenceDomain::Emulated`] wherever the pool is shown.
pub struct MappedPool {
    arena: Arena,
    /// Where each file begins, and its name. The first begins at 0.
    parts: Box<[(u64, Arc<str>)]>,
    domain: PersistenceDomain,
    drain_ns: u64,
    flushed_ranges: Counter,
    flushed_lines: Counter,
    fences: Counter,
}

/// A file of a pool, open and of the right length.
struct Part {
    file: OwnedFd,
    name: Arc<str>,
    len: u64,
    is_dax: bool,
    is_new: bool,
}

impl Part {
    /// Opens the file at `path`, or creates it with `len` bytes, durable on return but for its name. Whether stores to it can
    /// be durable, as they must be but for emulation, is asked before anything else, which other file systems may not know.
    fn open(path: &Path, len: u64, emulate: bool) -> Result<Self> {
        let name: Arc<str> = path.display().to_string().into();
        let io = |op, e: Errno| Error::io(op, name.clone(), 0, e.into());
        if len == 0 || !len.is_multiple_of(4096) {
            return Err(Error::invalid(format!(
                "a pool of {len} bytes in {name}: it must be of whole pages"
            )));
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map_err(|e| io("open", e))?;
        let is_dax = is_dax(&file);
        if !is_dax && !emulate {
            return Err(Error::Unsupported {
                what: format!(
                    "{name} is not on a DAX file system, so stores to it are not durable; use a block fast tier, or ask \
                     for emulation"
                ),
            });
        }
        let stat = fstat(&file).map_err(|e| io("stat", e))?;
        let have = stat.st_size as u64;
        // A store to a page that has no space would end the process.
        let allocate = || retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, len));
        if have == 0 {
            ftruncate(&file, len).map_err(|e| io("resize", e))?;
            if let Err(errno) = allocate() {
                let _ = ftruncate(&file, 0);
                return Err(io("allocate", errno));
            }
            fsync(&file).map_err(|e| io("sync", e))?;
        } else if have == len && (stat.st_blocks as u64) < len / 512 {
            // Whoever copied it has left its zeros out.
            allocate().and_then(|()| fsync(&file)).map_err(|e| io("allocate", e))?;
        } else if have != len {
            return Err(Error::corrupt(
                TierRole::Fast,
                format!("the pool has {have} bytes, but was created with {len}"),
                Location::new(name, have.min(len)),
            ));
        }
        Ok(Part { file, name, len, is_dax, is_new: have == 0 })
    }

    fn error(&self, op: &'static str, errno: Errno) -> Error {
        Error::io(op, self.name.clone(), 0, errno.into())
    }
}

impl MappedPool {
    /// Maps the file at `path`, created with `len` bytes if it is not there: as [`MappedPool::open_all`] of one.
    ///
    /// # Errors
    /// As [`MappedPool::open_all`].
    pub fn open(path: &Path, len: u64, emulate: bool) -> Result<Self> {
        Self::open_all(&[(path, len)], emulate)
    }

    /// Maps files, each with its length in bytes, as one pool in their order: one range of addresses. One that is
    /// not there is created.
    ///
    /// On DAX file systems the mappings are made with `MAP_SYNC`, and stores are durable after a drain.
    /// Where that is refused for one of them and `emulate` is set, all are mapped as shared memory (put them on
    /// tmpfs) and reported as emulated; where `emulate` is not set, the call fails. New emulated ones get large pages
    /// where the system has them, which takes a second for 500 MiB.
    ///
    /// # Errors
    /// `Io` from the system; `Unsupported` if a path is not DAX and `emulate` is not set; `Corrupt` if an
    /// existing file is of another length; `Invalid` for no file, or a length that is not of whole pages.
    pub fn open_all(files: &[(&Path, u64)], emulate: bool) -> Result<Self> {
        let files =
            files.iter().map(|(path, len)| Part::open(path, *len, emulate)).collect::<Result<Vec<_>>>()?;
        let Some(first) = files.first() else { return Err(Error::invalid("a pool has at least one file")) };
        let len = files.iter().try_fold(0, |sum: u64, part| sum.checked_add(part.len));
        let mut reserved = len
            .and_then(|len| usize::try_from(len).ok())
            .ok_or(Errno::NOMEM)
            .and_then(Reservation::new)
            .map_err(|e| first.error("map", e))?;
        let dax = files.iter().all(|part| part.is_dax);
        let flags = if dax { MapFlags::SHARED_VALIDATE | MapFlags::SYNC } else { MapFlags::SHARED };
        // DAX file systems map 2 MiB at once, and those of shared memory 4 KiB, unless they are mounted or asked for more.
        let wants_large = !dax && files.iter().any(|part| part.is_new);
        let (mut parts, mut at) = (Vec::with_capacity(files.len()), 0);
        for part in files {
            reserved = reserved
                .map(at as usize, part.len as usize, &part.file, flags)
                .map_err(|e| part.error("map", e))?;
            if dax {
                // What a process that was killed had stored and not written back is visible to this one: it is
                // made durable before anything is built on it.
                fsync(&part.file).map_err(|e| part.error("sync", e))?;
            }
            parts.push((at, part.name));
            at += part.len;
        }
        let domain = if dax { flush::domain()? } else { PersistenceDomain::Emulated };
        let mapping = reserved.into_mapping();
        if wants_large {
            mapping.collapse();
        }
        Ok(Self::new(Arena::mapped(mapping), parts.into(), domain))
    }

    /// An emulated pool of `len` bytes in plain memory, which lasts as long as this value.
    ///
    /// # Panics
    /// If `len` is not a multiple of 8, or there is not so much memory.
    pub fn in_memory(len: u64) -> Self {
        Self::on_arena(Arena::zeroed(len))
    }

    /// As [`MappedPool::in_memory`], for lengths that come from media.
    ///
    /// # Errors
    /// As [`Arena::try_zeroed`].
    pub fn try_in_memory(len: u64) -> Result<Self> {
        Arena::try_zeroed(len).map(Self::on_arena)
    }

    fn on_arena(arena: Arena) -> Self {
        Self::new(arena, [(0, "memory pool".into())].into(), PersistenceDomain::Emulated)
    }

    fn new(arena: Arena, parts: Box<[(u64, Arc<str>)]>, domain: PersistenceDomain) -> Self {
        MappedPool {
            arena,
            parts,
            domain,
            drain_ns: 0,
            flushed_ranges: Counter::default(),
            flushed_lines: Counter::default(),
            fences: Counter::default(),
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

    fn name(&self) -> String {
        self.parts.iter().map(|(_, name)| &**name).collect::<Vec<_>>().join(" + ")
    }

    fn place(&self, at: u64) -> Location {
        let after = self.parts.partition_point(|(start, _)| *start <= at);
        let (start, name) = &self.parts[after.saturating_sub(1)];
        Location::new(name.clone(), at - start)
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

    fn write_backs(&self) -> WriteBacks {
        WriteBacks {
            ranges: self.flushed_ranges.get(),
            bytes: self.flushed_lines.get() * LINE,
            fences: self.fences.get(),
        }
    }

    #[inline]
    fn flush(&self, at: u64, len: u64) {
        if len == 0 {
            return;
        }
        self.flushed_ranges.add(1);
        self.flushed_lines.add((at + len).div_ceil(LINE) - at / LINE);
        if self.domain == PersistenceDomain::Adr {
            let first = &self.arena.words()[(at / 8) as usize..];
            flush::write_back(first, (at % 8 + len) as usize);
        }
    }

    #[inline]
    fn fence(&self) {
        flush::fence();
        self.fences.add(1);
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
    fn admit(&self, _bytes: u64) -> Result<Admitted<'_>> {
        Ok(Admitted::always())
    }
}

/// The instructions, and nothing else in the project is assembly.
#[cfg(target_arch = "x86_64")]
mod flush {
    use super::PersistenceDomain;
    use std::arch::asm;
    use std::sync::atomic::AtomicU64;
    use tierdb_base::{Error, Result};

    const LINE: usize = super::LINE as usize;

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
    use tierdb_base::{Error, Result};

    const LINE: usize = super::LINE as usize;

    /// ADR needs `dc cvap`, without which the pool is refused.
    pub fn domain() -> Result<PersistenceDomain> {
        if !std::arch::is_aarch64_feature_detected!("dpb") {
            return Err(Error::Unsupported {
                what: "this processor has no dc cvap instruction; use a block fast tier".into(),
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
            // `dc cvap`, by its encoding: by its name assemblers take it only where it is among the features that all of the program is built for.
            // SAFETY: it cleans a mapped line to the point of persistence and changes no memory;
            // the line holds at least one byte of `words`.
            unsafe { asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags)) };
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

    /// A store to a page without space ends the process where the file system is full.
    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_pool_that_was_copied_without_its_zeros_gets_its_space_back() {
        let dir = std::env::temp_dir().join(format!("tierdb-pmem-sparse-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("temporary directory");
        let path = dir.join("pool");
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(1 << 20).expect("a sparse file");
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().expect("a file"));
        assert!(blocks() < (1 << 20) / 512);
        let pool = MappedPool::open(&path, 1 << 20, true).expect("a pool");
        assert!(blocks() >= (1 << 20) / 512 && pool.load(4096) == 0);
        drop(pool);
        std::fs::remove_dir_all(&dir).expect("removed");
    }

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
            assert_eq!(pool.write_backs(), WriteBacks { ranges: 2, bytes: 128, fences: 1 });
            pool.flush(126, 68);
            assert_eq!(pool.write_backs().bytes, 128 + 3 * 64, "whole lines");
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
    #[cfg_attr(miri, ignore = "maps a file")]
    fn a_file_that_is_not_on_nvm_is_refused_before_it_takes_space() {
        let path = std::env::temp_dir().join(format!("tierdb-pmem-refused-{}", std::process::id()));
        let refused = MappedPool::open(&path, 8192, false).err().expect("no DAX");
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        // Not all file systems that are no NVM can allocate.
        assert_eq!(std::fs::metadata(&path).expect("it was created").len(), 0);
        std::fs::remove_file(&path).expect("clean up");
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn several_files_are_one_pool() {
        let dir = std::env::temp_dir().join(format!("tierdb-pmem-several-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("temporary directory");
        let lens = [8192, 4096, 3 << 20];
        let paths = ["a", "b", "c"].map(|name| dir.join(name));
        let files: Vec<_> = paths.iter().map(std::path::PathBuf::as_path).zip(lens).collect();
        let text: Vec<u8> = (0..12_288_u32).map(|i| (i / 7) as u8).collect();
        {
            let pool = MappedPool::open_all(&files, true).expect("create");
            assert_eq!(pool.len(), lens.iter().sum::<u64>());
            assert!(paths.iter().all(|path| pool.name().contains(&*path.display().to_string())));
            pool.write(4099, &text);
            pool.flush(4099, text.len() as u64);
            pool.fence();
            pool.publish(8192 - 8, 1);
            pool.publish(8192, 2);
            pool.publish(pool.len() - 8, 3);
            let places = [0, 8191, 8192, 12_287, 12_288, pool.len() - 1].map(|at| pool.place(at));
            let expected = [("a", 0), ("a", 8191), ("b", 0), ("b", 4095), ("c", 0), ("c", (3 << 20) - 1)];
            for (place, (name, at)) in places.iter().zip(expected) {
                assert_eq!((place.file.as_ref(), place.offset), (&*dir.join(name).display().to_string(), at));
            }
        }
        let read = |name| std::fs::read(dir.join(name)).expect("read");
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("a word"));
        assert_eq!((word(&read("a")[8184..]), word(&read("b")[..8])), (1, 2), "each in its own file");
        assert_eq!(read("b")[8..], text[8192 - 4099 + 8..][..4088]);
        {
            let pool = MappedPool::open_all(&files, true).expect("reopen");
            let mut found = vec![0; text.len()];
            pool.read(4099, &mut found).expect("read");
            assert_eq!(found[8200 - 4099..], text[8200 - 4099..]);
            assert_eq!(pool.load(pool.len() - 8), 3);
        }
        let swapped = [files[1], files[0]];
        assert!(MappedPool::open_all(&swapped, true).is_ok(), "lengths are of files, whatever their order");
        let refused =
            MappedPool::open_all(&[files[0], (files[1].0, 8192)], true).err().expect("a wrong length");
        assert!(refused.to_string().contains(&*paths[1].display().to_string()), "{refused}");
        assert!(MappedPool::open_all(&[], true).is_err(), "no file");
        assert!(MappedPool::open_all(&[(&dir.join("d"), 4097)], true).is_err(), "no whole pages");
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
