//! Records that damage hides: their keys must not seem to be gone, nor an older version to be the newest.

use crate::heap::Heap;
use crate::slabs::Mark;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tierdb_base::{Result, Seqno};
use tierdb_pmem::Pool;

/// Live slots whose records could not be read when the store was opened.
#[derive(Default)]
pub struct Lost {
    any: AtomicBool,
    slots: RwLock<Vec<(u64, Mark)>>,
}

impl Lost {
    /// These slots: places, and what their words say.
    pub fn new(slots: Vec<(u64, Mark)>) -> Self {
        Lost { any: AtomicBool::new(!slots.is_empty()), slots: RwLock::new(slots) }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Their places.
    pub fn places(&self) -> Vec<u64> {
        self.slots.read().iter().map(|(at, _)| *at).collect()
    }

    /// The slot that may hide a version of `key` newer than `version`, if one does.
    pub fn hides(&self, key: &[u8], version: Option<Seqno>) -> Option<u64> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let slots = self.slots.read();
        let newer = |mark: Mark| mark.may_be_of(key) && version.is_none_or(|version| mark.is_newer(version));
        slots.iter().find(|(_, mark)| newer(*mark)).map(|(at, _)| *at)
    }

    /// Refuses to answer for `key` by `version`, where damage may hide a newer one.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn check<P: Pool>(&self, heap: &Heap<P>, key: &[u8], version: Option<Seqno>) -> Result<()> {
        self.hides(key, version).map_or(Ok(()), |at| Err(heap.damaged(at).with_key(key)))
    }
}
