//! Emptying slabs: when slots are free but no slab is, records of a sparse slab move to others of its class, so that
//! another class can have it.
//!
//! A record is copied, with its seqno, to another slot; its word is published, and then the old one's says *free*.
//! A crash between the two leaves two copies of one version, of which either will do.

use crate::core::Core;
use crate::heap::NewRecord;
use crate::partition::{Entry, State};
use crate::record::Kind;
use crate::slabs::Purpose;
use std::collections::HashSet;
use tierdb_base::mutant;
use tierdb_device::Dir;
use tierdb_pmem::{Pool, Stage};

/// Fewer free slabs than this many more than the reserve are too few.
const WANTED: usize = 2;

impl<P: Pool, D: Dir> Core<P, D> {
    /// Empties sparse slabs until some slabs are free, or none is left that can be emptied: parts of long values, and what
    /// there is of tables, stay where they are.
    pub fn tidy_slabs(&self) {
        let _tidying = self.work.tidying.lock();
        let mut fixed = HashSet::new();
        for _ in 0..self.heap.slabs.count() {
            if self.heap.slabs.spare_slabs() >= WANTED {
                return;
            }
            let Some((slab, slots)) = self.heap.slabs.sparsest(&fixed) else { return };
            self.heap.slabs.shut(slab);
            let moved = slots.into_iter().all(|at| self.move_record(at));
            self.heap.slabs.reopen(slab);
            if !moved {
                fixed.insert(slab);
            }
        }
    }

    /// Moves the record at byte `at` to another slot. `false` if what is there cannot be moved.
    pub fn move_record(&self, at: u64) -> bool {
        let heap = &self.heap;
        let Ok((head, value)) = heap.read(at) else { return false };
        if !matches!(head.kind, Kind::Value | Kind::Tombstone) || !head.parts.is_empty() {
            return false;
        }
        let Ok(_admitted) = heap.admit(heap.admit_bytes(head.key.len(), value.len())) else { return false };
        let router = self.router.read();
        let part = router.part_of(&head.key);
        let state = &mut *part.write();
        let Some(entry) = state.index.get(&head.key).filter(|entry| entry.at() == at) else {
            return false;
        };
        // A migration may be reading it.
        if state.migrating.is_some() || entry.is_stuck() || entry.seqno != head.seqno {
            return false;
        }
        let mut stage = Stage::new(&*heap.pool);
        state.stage_retired(heap, &mut stage);
        let record = NewRecord { kind: head.kind, seqno: head.seqno, key: &head.key, value: &value };
        let Some(written) = heap.write(&mut stage, &record, Purpose::Upkeep) else { return false };
        let drained = stage.drain();
        state.release_retired(heap);
        drained.publish(written.commit.0, written.commit.1);
        heap.pool.fence();
        let is_tombstone = entry.is_tombstone() && mutant::keep("tombstone");
        let mut copy = Entry::new(written.slots.at, head.seqno, is_tombstone, false);
        if entry.is_clean() {
            copy = copy.clean();
        }
        state.insert(&head.key, copy);
        let mut stage = Stage::new(&*heap.pool);
        heap.stage_free(&mut stage, at);
        let _drained = stage.drain();
        state.release(heap, State::<D>::slots_of(heap, &head.key, entry));
        self.counters.moved_records.add(1);
        true
    }
}
