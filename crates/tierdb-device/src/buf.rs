//! Buffers that direct I/O accepts.

use crate::file::BLOCK;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::num::NonZero;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use tierdb_base::{Error, Result};

/// Bytes whose address and length are multiples of [`BLOCK`]. The default has none, and no allocation.
pub struct AlignedBuf {
    start: NonNull<u8>,
    len: usize,
    /// Bytes allocated at `start`, all of them initialised; at least `len`.
    capacity: usize,
}

const ALIGN: NonZero<usize> = NonZero::new(BLOCK as usize).unwrap();

// SAFETY: an `AlignedBuf` owns its bytes, as a `Box<[u8]>` does.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; `&AlignedBuf` gives only `&[u8]`.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    fn layout(len: usize) -> Option<Layout> {
        Layout::from_size_align(len, ALIGN.get()).ok()
    }

    /// A buffer of `len` zero bytes, rounded up to a multiple of [`BLOCK`], at least one.
    ///
    /// # Errors
    /// `Io` (out of memory) if the allocation is refused: lengths can come from media.
    pub fn zeroed(len: usize) -> Result<Self> {
        let out_of_memory =
            || Error::io("allocation", "memory", len as u64, std::io::ErrorKind::OutOfMemory.into());
        let len = len.max(1).checked_next_multiple_of(BLOCK as usize).ok_or_else(out_of_memory)?;
        let layout = Self::layout(len).ok_or_else(out_of_memory)?;
        // SAFETY: `len` is at least `BLOCK`, so the layout is not of size zero.
        let start = unsafe { alloc_zeroed(layout) };
        Ok(AlignedBuf { start: NonNull::new(start).ok_or_else(out_of_memory)?, len, capacity: len })
    }

    /// A copy of `bytes`, padded with zeros to a multiple of [`BLOCK`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut buf = Self::zeroed(bytes.len())?;
        buf[..bytes.len()].copy_from_slice(bytes);
        Ok(buf)
    }

    /// How many bytes it may be made long without an allocation.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes it `len` bytes long, rounded up as in [`AlignedBuf::zeroed`], for something else to fill: what it
    /// then holds is any of what it held before, or zeros. Allocates only if it was never as long.
    ///
    /// # Errors
    /// As [`AlignedBuf::zeroed`]; it is then as before.
    pub fn resize(&mut self, len: usize) -> Result<()> {
        match len.max(1).checked_next_multiple_of(BLOCK as usize) {
            Some(rounded) if rounded <= self.capacity => self.len = rounded,
            _ => *self = Self::zeroed(len)?,
        }
        Ok(())
    }

    /// As [`AlignedBuf::resize`], but what it held before stays where it is. It doubles at least: to make it longer
    /// step by step copies fewer than two bytes for each that it comes to hold.
    ///
    /// # Errors
    /// As [`AlignedBuf::zeroed`]; it is then as before.
    pub fn grow(&mut self, len: usize) -> Result<()> {
        if len > self.capacity {
            let mut longer = Self::zeroed(len.max(self.capacity.saturating_mul(2)))?;
            longer[..self.len].copy_from_slice(self);
            *self = longer;
        }
        self.resize(len)
    }
}

impl Default for AlignedBuf {
    fn default() -> Self {
        AlignedBuf { start: NonNull::without_provenance(ALIGN), len: 0, capacity: 0 }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.capacity).filter(|layout| layout.size() > 0) {
            // SAFETY: bytes are there, so `zeroed` allocated `start` with this layout; it is freed once.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is aligned, and points to `capacity` initialised bytes that `self` owns, `len` or more.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_padded_and_refuse_the_impossible() {
        let buf = AlignedBuf::from_bytes(&[7; 5000]).expect("small");
        assert_eq!((buf.len(), buf.as_ptr() as usize % BLOCK as usize), (8192, 0));
        assert_eq!((buf[4999], buf[5000]), (7, 0));
        assert!(AlignedBuf::zeroed(usize::MAX).is_err());
        assert!(AlignedBuf::default().is_empty());
    }

    #[test]
    fn a_buffer_is_resized_in_place_where_it_was_as_long_before() {
        let mut buf = AlignedBuf::default();
        buf.resize(10_000).expect("small");
        assert_eq!(buf.len(), 12_288);
        buf.fill(7);
        let start = buf.as_ptr();
        for (len, rounded) in [(1, 4096), (0, 4096), (12_288, 12_288), (4097, 8192)] {
            buf.resize(len).expect("in place");
            assert_eq!((buf.len(), buf.as_ptr()), (rounded, start));
            assert!(buf.iter().all(|byte| *byte == 7));
        }
        assert!(buf.resize(usize::MAX).is_err());
        assert_eq!((buf.len(), buf.capacity()), (8192, 12_288));
        buf.resize(12_289).expect("longer");
        assert_eq!((buf.len(), buf[0]), (16_384, 0));
    }

    #[test]
    fn a_buffer_that_grows_keeps_what_it_holds_and_doubles() {
        let mut buf = AlignedBuf::default();
        for (len, capacity) in [(1, 4096), (4097, 8192), (9000, 16_384), (100_000, 102_400), (5, 102_400)] {
            let before = buf.to_vec();
            buf.grow(len).expect("small");
            assert_eq!((buf.len(), buf.capacity()), (len.next_multiple_of(4096), capacity));
            let kept = before.len().min(buf.len());
            assert_eq!(buf[..kept], before[..kept]);
            let number = buf.len() as u8 | 1;
            buf.fill(number ^ capacity as u8);
        }
        assert!(buf.grow(usize::MAX).is_err());
        assert_eq!(buf.len(), 4096);
    }
}
