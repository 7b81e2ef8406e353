//! Files mapped side by side into one range of addresses.
//!
//! A range is first reserved: mapped without access, so that nothing else is mapped there. Then each file is
//! mapped over its part of it, and the whole is unmapped as one.

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Where a range starts is a multiple of this, so that the system can use its largest pages.
const ALIGN: usize = 2 << 20;

/// Whether stores to `file` can be made durable: whether it can be mapped with `MAP_SYNC`. Asked with a mapping of
/// its own, as a refusal could leave a hole in a reservation.
pub(crate) fn is_dax(file: impl AsFd) -> bool {
    const PROBE: usize = 4096;
    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
    // SAFETY: a new mapping at an address the kernel chooses aliases nothing in this process.
    let mapped = unsafe { mmap(std::ptr::null_mut(), PROBE, ProtFlags::READ, flags, file, 0) };
    mapped.is_ok_and(|start| {
        // SAFETY: this very mapping, which nothing refers to.
        unsafe { munmap(start, PROBE) }.is_ok()
    })
}

/// A range of addresses of this process that is this value's alone.
struct Range {
    /// What was reserved, from its start.
    start: *mut c_void,
    reserved: usize,
    /// The first aligned address in it, and the bytes asked for.
    base: NonNull<AtomicU64>,
    len: usize,
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: `start` and `reserved` are a range that `Reservation::new` mapped, all of which is still this
        // value's, whatever was mapped over parts of it; nothing borrows from it once its owner is dropped.
        let unmapped = unsafe { munmap(self.start, self.reserved) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole range");
    }
}

/// Addresses set aside, and the files mapped over them so far.
pub(crate) struct Reservation {
    range: Range,
    /// Bytes from the base over which files are mapped.
    mapped: usize,
}

impl Reservation {
    /// Sets `len` bytes of addresses aside.
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        let reserved = len.checked_add(ALIGN).ok_or(Errno::NOMEM)?;
        // SAFETY: a new mapping at an address the kernel chooses aliases nothing in this process.
        let start = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(std::ptr::null_mut(), reserved, ProtFlags::empty(), flags)
        }?;
        let pad = start.addr().next_multiple_of(ALIGN) - start.addr();
        let base = NonNull::new(start.wrapping_byte_add(pad).cast()).ok_or(Errno::NOMEM)?;
        Ok(Reservation { range: Range { start, reserved, base, len }, mapped: 0 })
    }

    /// Maps the first `len` bytes of `file` over the `len` bytes from `at`, where the file before it ends.
    ///
    /// # Errors
    /// Those of the system. The reservation is then given up, and its addresses stay taken for as long as the
    /// process lives: a call that failed may have left a hole in them, in which another thread has mapped
    /// something since.
    pub(crate) fn map(self, at: usize, len: usize, file: impl AsFd, flags: MapFlags) -> Result<Self, Errno> {
        assert!(at == self.mapped && len <= self.range.len - at, "files are mapped in turn and fit");
        let mut held = ManuallyDrop::new(self);
        let target = held.range.base.as_ptr().wrapping_byte_add(at);
        // SAFETY: `at..at + len` lies inside the range, as asserted, and after all that is mapped; so this replaces
        // nothing but reserved addresses without access, which are this value's and to which nothing refers.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(target.cast(), len, access, flags | MapFlags::FIXED, file, 0)
        }?;
        held.mapped = at + len;
        Ok(ManuallyDrop::into_inner(held))
    }

    /// The files, which take all of the range.
    pub(crate) fn into_mapping(self) -> Mapping {
        assert!(self.mapped == self.range.len, "files are mapped over all that was reserved");
        Mapping { range: self.range }
    }
}

/// Files mapped side by side, or memory of no file, unmapped when dropped.
///
/// Invariant: all `range.len` bytes from `range.base` are mapped for reading and writing.
pub(crate) struct Mapping {
    range: Range,
}

// SAFETY: a `Mapping` gives access only to atomic words, which any thread may use.
unsafe impl Send for Mapping {}
// SAFETY: as above; no access through `&Mapping` is other than atomic.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes of zeros, of which the system hands out page by page what is touched.
    pub(crate) fn of_zeros(len: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address the kernel chooses aliases nothing in this process.
        let start = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        let base = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Mapping { range: Range { start, reserved: len, base, len } };
        // SAFETY: the range that was just mapped; the advice changes no byte of it. What is small would take 2 MiB otherwise.
        // A kernel without large pages knows no such advice, and needs none.
        let _ = unsafe { madvise(start, len, Advice::LinuxNoHugepage) };
        Ok(mapping)
    }

    /// Asks for large pages in the place of those that the files have: a hint, which takes a second for 500 MiB.
    pub(crate) fn collapse(&self) {
        let Range { base, len, .. } = self.range;
        // SAFETY: the range of this mapping; the advice changes no byte of it. Kernels and file systems that cannot do it refuse.
        unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_COLLAPSE) };
    }

    /// Gives the memory of `at..at + len`, whole pages of a mapping of zeros, back to the system: it is zeros again. Refused
    /// unless they are whole pages of the system's, too, which may be larger than 4 KiB: it would take all that it touches.
    pub(crate) fn discard(&self, at: usize, len: usize) -> Result<(), Errno> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.range.len), "inside of the mapping");
        let page = rustix::param::page_size();
        if !at.is_multiple_of(page) || !len.is_multiple_of(page) {
            return Err(Errno::INVAL);
        }
        let start = self.range.base.as_ptr().wrapping_byte_add(at).cast();
        // SAFETY: the range lies inside this mapping, as asserted. To others it is as if zeros were stored to its words, which are atomic.
        unsafe { madvise(start, len, Advice::LinuxDontNeed) }
    }

    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: by the invariant `range.len` bytes from `base`, which is aligned, are mapped as long as `self`
        // lives, and every access to them in this process is through these atomic words.
        unsafe { std::slice::from_raw_parts(self.range.base.as_ptr(), self.range.len / 8) }
    }
}
