//! Long keys and long fences: slots of a few sizes in pages of their own.
//!
//! A blob is bare bytes; its length, its place and its checksum stand where it is referred to. Which slots
//! are in use is known in DRAM, and from the leaves on open. A blob belongs to one entry, or to the
//! boundary between two leaves, whose high and low fence it is.
//!
//! Invariants
//! 1. A slot is written only while nothing on media refers to it.
//! 2. A slot comes back only after the change that dropped its last reference is certain to be on media,
//!    and after every reader of that time has gone.

use super::format::BlobRef;
use crate::pages::{KIND_BLOB, PAGE, PageNo, Pages, Purpose};
use crossbeam_epoch::Guard;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tierdb_base::Result;
use tierdb_pmem::{Pool, Stage};

/// Bytes of a slot of each class.
const CLASSES: [usize; 4] = [512, 1024, 2048, 4096];

/// The byte at which a blob of `len` bytes stands, if there can be one.
pub(super) fn place(blob: BlobRef, len: usize) -> Option<u64> {
    let class = *CLASSES.get(blob.class as usize)?;
    let fits = len <= class && (blob.slot as usize) < PAGE as usize / class;
    fits.then(|| blob.page * PAGE + (blob.slot as usize * class) as u64)
}

/// The blob slots of a pool.
pub(super) struct Blobs<P: Pool> {
    pages: Arc<Pages<P>>,
    state: Mutex<Slots>,
    /// Slots whose readers have gone. Apart, so that what waits for an epoch does not keep the pool open.
    back: Arc<Mutex<Vec<BlobRef>>>,
}

#[derive(Default)]
struct Slots {
    /// For each page its class and a bit for each used slot.
    used: HashMap<PageNo, (u8, u8)>,
    /// Pages with a free slot, by class.
    open: [Vec<PageNo>; CLASSES.len()],
}

impl<P: Pool> Blobs<P> {
    pub fn new(pages: Arc<Pages<P>>) -> Self {
        Blobs { pages, state: Mutex::default(), back: Arc::default() }
    }

    /// Takes a slot for `len` bytes with checksum `sum`. The page's kind is on its way to media.
    ///
    /// # Errors
    /// `NoSpace`
    pub fn allocate(&self, pool: &P, len: usize, sum: u32) -> Result<BlobRef> {
        self.collect();
        let class = CLASSES.iter().position(|size| len <= *size).expect("a key is at most the largest class");
        let slots = PAGE as usize / CLASSES[class];
        let mut state = self.state.lock();
        let page = match state.open[class].last() {
            Some(page) => *page,
            None => {
                let page = self.pages.allocate(Purpose::Grow)?;
                self.pages.publish_kind(page, KIND_BLOB, class as u64, &Stage::new(pool).drain());
                state.used.insert(page, (class as u8, 0));
                state.open[class].push(page);
                page
            }
        };
        let (_, used) = state.used.get_mut(&page).expect("an open page has slots");
        let slot = used.trailing_ones();
        *used |= 1 << slot;
        if used.count_ones() as usize == slots {
            state.open[class].pop();
        }
        Ok(BlobRef { page, slot: slot as u8, class: class as u8, sum })
    }

    /// Marks a slot as used that a leaf refers to, on open, and claims its page. `false` if the page is
    /// used for something else, or the slot for another key.
    pub fn claim(&self, blob: BlobRef) -> bool {
        let mut state = self.state.lock();
        if !state.used.contains_key(&blob.page) {
            if !self.pages.claim(blob.page) {
                return false;
            }
            state.used.insert(blob.page, (blob.class, 0));
        }
        let Some((class, used)) = state.used.get_mut(&blob.page) else { return false };
        let bit = 1 << blob.slot;
        let fresh = *class == blob.class && *used & bit == 0;
        *used |= if *class == blob.class { bit } else { 0 };
        fresh
    }

    /// Finds the pages with free slots, after all slots in use were claimed.
    pub fn settle(&self) {
        let mut state = self.state.lock();
        let Slots { used, open } = &mut *state;
        let mut pages: Vec<_> = used.iter().map(|(page, (class, bits))| (*page, *class, *bits)).collect();
        pages.sort_unstable();
        for (page, class, bits) in pages {
            if (bits.count_ones() as usize) < PAGE as usize / CLASSES[class as usize] {
                open[class as usize].push(page);
            }
        }
    }

    /// Gives back a slot that nothing refers to and nobody has seen.
    pub fn give_back(&self, blob: BlobRef) {
        self.back.lock().push(blob);
        self.collect();
    }

    /// Gives back a slot that nothing on media refers to any more, once today's readers have gone.
    pub fn retire(&self, blob: BlobRef, guard: &Guard) {
        let back = self.back.clone();
        guard.defer(move || back.lock().push(blob));
    }

    /// Makes slots whose readers have gone free, and pages without used slots.
    pub fn collect(&self) {
        let back = std::mem::take(&mut *self.back.lock());
        if back.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        for blob in back {
            let Slots { used, open } = &mut *state;
            let Some((class, bits)) = used.get_mut(&blob.page) else { continue };
            let open = &mut open[*class as usize];
            let was_full = bits.count_ones() as usize == PAGE as usize / CLASSES[*class as usize];
            *bits &= !(1 << blob.slot);
            if *bits == 0 {
                open.retain(|page| *page != blob.page);
                used.remove(&blob.page);
                self.pages.release(blob.page);
            } else if was_full {
                open.push(blob.page);
            }
        }
    }

    /// Number of pages in use.
    pub fn pages(&self) -> u64 {
        self.state.lock().used.len() as u64
    }

    /// Bytes of DRAM in use.
    pub fn memory_bytes(&self) -> u64 {
        let state = self.state.lock();
        let open: usize = state.open.iter().map(Vec::capacity).sum();
        (state.used.capacity() * 16 + open * 8) as u64
    }
}
