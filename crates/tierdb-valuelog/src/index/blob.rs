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
use crate::pages::{KIND_BLOB, PAGE, PageNo, PageUse, Pages, Purpose};
use crossbeam_epoch::Guard;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    /// Apart, so that what waits for an epoch does not keep the pool open.
    back: Arc<Back>,
}

/// Slots on their way back.
#[derive(Default)]
struct Back {
    /// Those that wait for readers, or are in `gone`.
    waiting: AtomicUsize,
    /// Those whose readers have gone.
    gone: Mutex<Vec<BlobRef>>,
}

impl Back {
    fn push(&self, blob: BlobRef) {
        self.gone.lock().push(blob);
    }
}

#[derive(Default)]
struct Slots {
    used: HashMap<PageNo, Page>,
    /// Pages with a free slot, by class.
    open: [Vec<PageNo>; CLASSES.len()],
}

#[derive(Clone, Copy)]
struct Page {
    class: u8,
    /// A bit for each used slot.
    bits: u8,
    /// Whether the page table is certain to say that it is a page of blobs.
    is_named: bool,
}

impl<P: Pool> Blobs<P> {
    pub fn new(pages: Arc<Pages<P>>) -> Self {
        Blobs { pages, state: Mutex::default(), back: Arc::default() }
    }

    /// Takes a slot for `len` bytes with checksum `sum`.
    ///
    /// # Errors
    /// `NoSpace`
    pub fn allocate(&self, len: usize, sum: u32) -> Result<BlobRef> {
        self.collect();
        let class = CLASSES.iter().position(|size| len <= *size).expect("a key is at most the largest class");
        let slots = PAGE as usize / CLASSES[class];
        let mut state = self.state.lock();
        let page = match state.open[class].last() {
            Some(page) => *page,
            None => {
                let page = self.pages.allocate(Purpose::Grow)?;
                state.used.insert(page, Page { class: class as u8, bits: 0, is_named: false });
                state.open[class].push(page);
                page
            }
        };
        let used = state.used.get_mut(&page).expect("an open page has slots");
        let slot = used.bits.trailing_ones();
        used.bits |= 1 << slot;
        if used.bits.count_ones() as usize == slots {
            state.open[class].pop();
        }
        Ok(BlobRef { page, slot: slot as u8, class: class as u8, sum })
    }

    /// Stages `bytes` in a slot that was allocated for them, and the kind of its page unless that is
    /// certain: where a leaf is lost only the page table says that there are blobs. After the drain comes
    /// [`Blobs::drained`].
    pub fn stage(&self, stage: &mut Stage<'_, P>, blob: BlobRef, bytes: &[u8]) {
        if self.state.lock().used.get(&blob.page).is_some_and(|page| !page.is_named) {
            self.pages.stage_kind(stage, blob.page, KIND_BLOB, u64::from(blob.class));
        }
        stage.write(place(blob, bytes.len()).expect("allocated for this length"), bytes);
    }

    /// Notes that what [`Blobs::stage`] staged was drained.
    pub fn drained(&self, blob: BlobRef) {
        if let Some(page) = self.state.lock().used.get_mut(&blob.page) {
            page.is_named = true;
        }
    }

    /// Marks a slot as used that a leaf refers to, on open, and claims its page. `false` if the page is
    /// used for something else, or the slot for another key.
    pub fn claim(&self, blob: BlobRef) -> bool {
        let mut state = self.state.lock();
        let page = match state.used.entry(blob.page) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if !self.pages.claim(blob.page) => return false,
            Entry::Vacant(unknown) => unknown.insert(Page { class: blob.class, bits: 0, is_named: true }),
        };
        if page.class != blob.class {
            return false;
        }
        let bit = 1 << blob.slot;
        let is_free = page.bits & bit == 0;
        page.bits |= bit;
        is_free
    }

    /// The claimed pages that the page table does not name, with kind and info.
    pub fn unnamed(&self) -> Vec<(PageNo, u8, u64)> {
        let is_named = |page| matches!(self.pages.usage(page), PageUse::Used { kind: KIND_BLOB, .. });
        let state = self.state.lock();
        let unnamed = state.used.iter().filter(|(page, _)| !is_named(**page));
        unnamed.map(|(page, of)| (*page, KIND_BLOB, u64::from(of.class))).collect()
    }

    /// Finds the pages with free slots, after all slots in use were claimed.
    pub fn settle(&self) {
        let mut state = self.state.lock();
        let Slots { used, open } = &mut *state;
        let mut pages: Vec<_> = used.iter().collect();
        pages.sort_unstable_by_key(|(number, _)| **number);
        for (number, page) in pages {
            if (page.bits.count_ones() as usize) < PAGE as usize / CLASSES[page.class as usize] {
                open[page.class as usize].push(*number);
            }
        }
    }

    /// Gives back a slot that nothing refers to and nobody has seen.
    pub fn give_back(&self, blob: BlobRef) {
        self.back.waiting.fetch_add(1, Ordering::Relaxed);
        self.back.push(blob);
        self.collect();
    }

    /// Gives back a slot that nothing on media refers to any more, once today's readers have gone.
    pub fn retire(&self, blob: BlobRef, guard: &Guard) {
        let back = self.back.clone();
        back.waiting.fetch_add(1, Ordering::Relaxed);
        guard.defer(move || back.push(blob));
    }

    /// Makes slots whose readers have gone free, and pages without used slots.
    pub fn collect(&self) {
        let back = std::mem::take(&mut *self.back.gone.lock());
        if back.is_empty() {
            return;
        }
        self.back.waiting.fetch_sub(back.len(), Ordering::Relaxed);
        let mut state = self.state.lock();
        for blob in back {
            let Slots { used, open } = &mut *state;
            let Some(page) = used.get_mut(&blob.page) else { continue };
            let open = &mut open[page.class as usize];
            let was_full = page.bits.count_ones() as usize == PAGE as usize / CLASSES[page.class as usize];
            page.bits &= !(1 << blob.slot);
            if page.bits == 0 {
                open.retain(|open| *open != blob.page);
                used.remove(&blob.page);
                self.pages.release(blob.page);
            } else if was_full {
                open.push(blob.page);
            }
        }
    }

    /// Number of slots that are not in use and not free again yet.
    pub fn waiting(&self) -> usize {
        self.back.waiting.load(Ordering::Relaxed)
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
