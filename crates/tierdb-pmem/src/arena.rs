//! A range of memory seen as atomic words.
//!
//! All accesses are atomic by word, so threads that race on an arena read old or new words and never
//! torn ones. This is what lets every engine crate forbid unsafe code.

use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_base::{Error, Result};

/// Memory as 8-byte words: a mapping, or zeroed memory of its own.
pub struct Arena {
    words: Words,
}

enum Words {
    Owned(Box<[AtomicU64]>),
    Mapped(crate::mapping::Mapping),
    Zeros(crate::mapping::Mapping),
}

impl Arena {
    /// As [`Arena::zeroed`], for lengths that come from a configuration or from media.
    ///
    /// # Errors
    /// `Io` (out of memory) if the allocation is refused, or `len` is not a multiple of 8.
    pub fn try_zeroed(len: u64) -> Result<Self> {
        let words = (len.is_multiple_of(8) && len > 0)
            .then(|| bytemuck::allocation::try_zeroed_slice_box(usize::try_from(len / 8).ok()?).ok())
            .flatten();
        let words = words.ok_or_else(|| {
            Error::io("allocation", "memory for the pool", len, std::io::ErrorKind::OutOfMemory.into())
        })?;
        Ok(Arena { words: Words::Owned(words) })
    }

    /// `len` bytes of zeroed memory, which the system hands out page by page on first touch.
    ///
    /// # Panics
    /// If `len` is not a multiple of 8.
    pub fn zeroed(len: u64) -> Self {
        assert!(len.is_multiple_of(8), "an arena is made of words");
        let words = bytemuck::allocation::zeroed_slice_box((len / 8) as usize);
        Arena { words: Words::Owned(words) }
    }

    /// As [`Arena::try_zeroed`], of memory that can be [given back](Arena::discard) in part.
    ///
    /// # Errors
    /// `Io` (out of memory) if it is refused, or `len` is not one of whole pages.
    pub fn try_discardable(len: u64) -> Result<Self> {
        let mapping = (len.is_multiple_of(4096) && len > 0)
            .then(|| crate::mapping::Mapping::of_zeros(usize::try_from(len).ok()?).ok())
            .flatten();
        let mapping = mapping.ok_or_else(|| {
            Error::io("allocation", "memory for the pool", len, std::io::ErrorKind::OutOfMemory.into())
        })?;
        Ok(Arena { words: Words::Zeros(mapping) })
    }

    /// Gives the memory of `at..at + len`, whole pages, back to the system: it reads as zeros from then on. Says whether it did, which
    /// only memory made to be [discardable](Arena::try_discardable) does. Nobody else uses the range meanwhile.
    pub fn discard(&self, at: u64, len: u64) -> bool {
        match &self.words {
            Words::Zeros(mapping) => mapping.discard(at as usize, len as usize).is_ok(),
            _ => false,
        }
    }

    /// The memory of mapped files.
    pub(crate) fn mapped(mapping: crate::mapping::Mapping) -> Self {
        Arena { words: Words::Mapped(mapping) }
    }

    /// The words.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        match &self.words {
            Words::Owned(words) => words,
            Words::Mapped(mapping) | Words::Zeros(mapping) => mapping.words(),
        }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        self.words().len() as u64 * 8
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.words().is_empty()
    }

    /// The word at byte offset `at`.
    #[inline]
    pub fn word(&self, at: u64) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8), "offset {at} is not that of a word");
        &self.words()[(at / 8) as usize]
    }

    /// Copies `out.len()` bytes from `at`; any alignment.
    pub fn read(&self, at: u64, out: &mut [u8]) {
        if out.is_empty() {
            return;
        }
        let skip = (at % 8) as usize;
        let words = &self.words()[(at / 8) as usize..];
        let mut rest = out;
        let mut next = 0;
        if skip != 0 {
            let n = rest.len().min(8 - skip);
            let bytes = words[0].load(Ordering::Relaxed).to_le_bytes();
            let (head, tail) = rest.split_at_mut(n);
            head.copy_from_slice(&bytes[skip..skip + n]);
            rest = tail;
            next = 1;
        }
        let whole = rest.len() / 8;
        let (body, tail) = rest.split_at_mut(whole * 8);
        for (chunk, word) in body.chunks_exact_mut(8).zip(&words[next..next + whole]) {
            chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        if !tail.is_empty() {
            let bytes = words[next + whole].load(Ordering::Relaxed).to_le_bytes();
            tail.copy_from_slice(&bytes[..tail.len()]);
        }
    }

    /// Copies `bytes` to `at`; any alignment. Calls `each` with the offset and new value of every word
    /// it stores, in order. The caller is the only writer of the words that the range touches.
    pub fn write_with(&self, at: u64, bytes: &[u8], mut each: impl FnMut(u64, u64)) {
        if bytes.is_empty() {
            return;
        }
        let skip = (at % 8) as usize;
        let first = at - skip as u64;
        let words = &self.words()[(first / 8) as usize..];
        // Bytes of a word that keeps the others.
        let part = |number: usize, skip: usize, bytes: &[u8]| {
            let mut new = words[number].load(Ordering::Relaxed).to_le_bytes();
            new[skip..skip + bytes.len()].copy_from_slice(bytes);
            let new = u64::from_le_bytes(new);
            words[number].store(new, Ordering::Release);
            (first + number as u64 * 8, new)
        };
        let head = if skip == 0 { 0 } else { bytes.len().min(8 - skip) };
        if head > 0 {
            let (at, new) = part(0, skip, &bytes[..head]);
            each(at, new);
        }
        let from = usize::from(head > 0);
        let (body, tail) = bytes[head..].as_chunks::<8>();
        for (number, (bytes, word)) in (from..).zip(body.iter().zip(&words[from..])) {
            let new = u64::from_le_bytes(*bytes);
            word.store(new, Ordering::Release);
            each(first + number as u64 * 8, new);
        }
        if !tail.is_empty() {
            let (at, new) = part(from + body.len(), 0, tail);
            each(at, new);
        }
    }

    /// Copies `bytes` to `at`; any alignment. The caller is the only writer of the words it touches.
    #[inline]
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.write_with(at, bytes, |_, _| {});
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_range_reads_back_as_written_and_leaves_its_neighbours() {
        // Fewer under Miri; these too begin and end in every byte of a word, with and without whole ones between.
        let (starts, lens) = if cfg!(miri) { (9, 25) } else { (17, 40) };
        for at in 0..starts {
            for len in 0..lens {
                let arena = Arena::zeroed(64);
                arena.write(0, &[0xee; 64]);
                let bytes: Vec<u8> = (1..=len as u8).collect();
                arena.write(at, &bytes);
                let mut all = [0u8; 64];
                arena.read(0, &mut all);
                let end = at as usize + len;
                assert_eq!(&all[at as usize..end], &bytes[..]);
                assert!(
                    all[..at as usize].iter().chain(&all[end..]).all(|b| *b == 0xee),
                    "at {at} len {len}"
                );
                let mut back = vec![0; len];
                arena.read(at, &mut back);
                assert_eq!(back, bytes);
            }
        }
    }
}
