//! Where pages of a paged memory are in DRAM.
//!
//! A *frame* is the memory of one page. A page that comes gets the frame that was left last: to take memory from the system and give it
//! back for each costs a call, a fault, and an interrupt of the other processors. Of frames that no page has, only so many keep their memory as pages
//! may wait for a checkpoint; that of others goes back to the system.

use crate::layout::PAGE;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tierdb_base::Result;
use tierdb_pmem::Arena;

/// A page that is not in DRAM.
const NONE: u32 = u32::MAX;

/// Frames for all pages of a pool.
pub(crate) struct Frames {
    arena: Arena,
    /// The frame of each page.
    of: Box<[AtomicU32]>,
    free: Mutex<Free>,
    /// Most free frames whose memory is kept.
    most_kept: usize,
}

/// Frames that no page has.
struct Free {
    /// Those whose memory is kept.
    kept: Vec<u32>,
    /// Those whose memory went back to the system.
    given_back: Vec<u32>,
    /// Those from this one on were never used.
    unused: u32,
}

impl Frames {
    /// Frames for `pages` pages, none of which is in DRAM. Of frames that pages have left, the memory of `most_kept` bytes is kept.
    ///
    /// # Errors
    /// `Io` (out of memory).
    pub(crate) fn new(pages: u64, most_kept: u64) -> Result<Self> {
        Ok(Frames {
            arena: Arena::try_discardable(pages * PAGE)?,
            of: (0..pages).map(|_| AtomicU32::new(NONE)).collect(),
            free: Mutex::new(Free { kept: Vec::new(), given_back: Vec::new(), unused: 0 }),
            most_kept: usize::try_from(most_kept / PAGE).unwrap_or(usize::MAX),
        })
    }

    /// The word at byte `at` of the pool, whose page has a frame.
    #[inline]
    pub(crate) fn word(&self, at: u64) -> &AtomicU64 {
        self.arena.word(self.place(at))
    }

    /// Copies `out.len()` bytes from byte `at` of the pool: of one page, which has a frame.
    #[inline]
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) {
        self.arena.read(self.place(at), out);
    }

    /// Copies `bytes` to byte `at` of the pool: to one page, which has a frame.
    #[inline]
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        self.arena.write(self.place(at), bytes);
    }

    /// Byte of the arena where byte `at` of the pool is.
    #[inline]
    fn place(&self, at: u64) -> u64 {
        let frame = self.of[(at / PAGE) as usize].load(Ordering::Acquire);
        assert!(frame != NONE, "byte {at} of the pool is not in DRAM");
        u64::from(frame) * PAGE + at % PAGE
    }

    /// Gives `page` a frame, of any content, if it has none.
    pub(crate) fn take(&self, page: u64) {
        let of = &self.of[page as usize];
        if of.load(Ordering::Acquire) != NONE {
            return;
        }
        let mut free = self.free.lock();
        // Another writer of the page may have been first.
        if of.load(Ordering::Acquire) == NONE {
            let frame = free.kept.pop().or_else(|| free.given_back.pop()).unwrap_or_else(|| {
                free.unused += 1;
                free.unused - 1
            });
            of.store(frame, Ordering::Release);
        }
    }

    /// Takes the frame of `page`, which nobody uses meanwhile, from it.
    pub(crate) fn leave(&self, page: u64) {
        let frame = self.of[page as usize].swap(NONE, Ordering::AcqRel);
        assert!(frame != NONE, "page {page} has a frame to leave");
        {
            let mut free = self.free.lock();
            if free.kept.len() < self.most_kept {
                free.kept.push(frame);
                return;
            }
        }
        // Others come and go meanwhile. A frame whose memory the system does not take back is kept all the same.
        let given_back = self.arena.discard(u64::from(frame) * PAGE, PAGE);
        let mut free = self.free.lock();
        let list = if given_back { &mut free.given_back } else { &mut free.kept };
        list.push(frame);
    }

    /// Bytes of DRAM beside the frames of pages.
    pub(crate) fn other_bytes(&self) -> u64 {
        // A number for each page, and for each frame one in a list at the most.
        let numbers = 2 * size_of_val(&*self.of) as u64;
        self.free.lock().kept.len() as u64 * PAGE + numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_was_left_is_used_again_and_what_is_not_kept_goes_back() {
        let frames = Frames::new(8, 2 * PAGE).expect("memory");
        for page in 0..4 {
            frames.take(page);
            frames.write(page * PAGE + 8, &[page as u8 + 1; 16]);
        }
        let lists = |frames: &Frames| {
            let free = frames.free.lock();
            (free.kept.clone(), free.given_back.clone(), free.unused)
        };
        (0..3).for_each(|page| frames.leave(page));
        assert_eq!(lists(&frames), (vec![0, 1], vec![2], 4));
        assert!(frames.other_bytes() >= 2 * PAGE);
        let mut bytes = [0; 16];
        frames.read(3 * PAGE + 8, &mut bytes);
        assert_eq!(bytes, [4; 16]);
        // Twice: the second time it has one.
        (0..2).for_each(|_| frames.take(7));
        frames.take(6);
        frames.take(5);
        frames.take(4);
        assert_eq!(lists(&frames), (vec![], vec![], 5));
        frames.write(7 * PAGE + 8, &[9; 16]);
        frames.read(3 * PAGE + 8, &mut bytes);
        assert_eq!(bytes, [4; 16], "each page has a frame of its own");
        assert_eq!(frames.word(7 * PAGE + 8).load(Ordering::Relaxed), u64::from_le_bytes([9; 8]));
    }
}
