//! One put, one delete.
//!
//! Under the partition's lock: the record is staged in a free slot and drained, its commit word is published and
//! fenced, the index names it. The slot of the version before is free on media before the partition's next word
//! is published ([`crate::partition`], invariant 3). What is waited for is waited for without the lock.
//!
//! A version that damage has made unreadable cannot wait for that: an open could not tell which of two live ones is the newer. Its
//! slot is freed with the new word, as a group of two ([`crate::commit`]).
//!
//! A delete of a key that flash does not hold frees the slot; any other leaves a tombstone, which goes when it
//! is merged with the tables of its range. A delete of a key that has a tombstone changes nothing.

use crate::commit::REDO_BYTES;
use crate::core::{Core, hash_of};
use crate::heap::NewRecord;
use crate::partition::{Entry, Partition, State};
use crate::rate::Waiting;
use crate::record::Kind;
use crate::room::Need;
use crate::slabs::Purpose;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tierdb_base::{Result, check_key, check_value, mutant};
use tierdb_device::Dir;
use tierdb_engine::Durability;
use tierdb_pmem::{Admitted, Lsn, Pool, Stage};

/// Whether a write found the slots it needs.
pub enum Tried {
    /// It is done.
    Done,
    /// There were not all of these: nothing is changed.
    NoRoom(Need),
}

/// What a write does to its key.
#[derive(Clone, Copy)]
pub enum Verdict {
    /// Nothing: it is a delete, and the key is not there.
    Nothing,
    /// The slot of the one version is freed, and the key leaves the index.
    Forget(Entry),
    /// Another version takes the place of the newest one on the fast tier, if there is one: a tombstone, or a value.
    Replace(Option<Entry>),
}

impl Verdict {
    /// The version whose place another one takes.
    pub fn replaced(self) -> Option<Entry> {
        match self {
            Verdict::Replace(before) => before,
            Verdict::Nothing | Verdict::Forget(_) => None,
        }
    }
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Stores `value` under `key`.
    pub fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        let _changing = self.gate.change()?;
        self.counters.puts.add(1);
        self.write_one(key, Some(value), durability)?;
        self.counters.user_bytes.add((key.len() + value.len()) as u64);
        Ok(())
    }

    /// Removes `key`.
    pub fn delete(&self, key: &[u8], durability: Durability) -> Result<()> {
        check_key(key)?;
        let _changing = self.gate.change()?;
        self.counters.deletes.add(1);
        self.write_one(key, None, durability)?;
        self.counters.user_bytes.add(key.len() as u64);
        Ok(())
    }

    fn write_one(&self, key: &[u8], value: Option<&[u8]>, durability: Durability) -> Result<()> {
        self.reserve_seqnos();
        let len = value.map_or(0, <[u8]>::len);
        self.until_done(|| {
            let bytes = self.heap.admit_bytes(key.len(), len) + self.admit_doubt_bytes();
            let admitted = self.heap.admit(bytes)?;
            self.try_write_one(key, value, durability, admitted)
        })?;
        self.after_write(key.len() + len);
        Ok(())
    }

    /// Bytes by which a write may flush more for each key whose version damage has made unreadable, where that is known of any.
    pub fn admit_doubt_bytes(&self) -> u64 {
        if self.doubtful.load(Ordering::Relaxed) { self.heap.admit_bytes(0, 2 * REDO_BYTES) } else { 0 }
    }

    /// Makes space until `attempt` finds the slots it needs.
    pub fn until_done(&self, attempt: impl Fn() -> Result<Tried>) -> Result<()> {
        let work = &self.work;
        let mut waiting = None;
        let made = loop {
            let need = match attempt() {
                Ok(Tried::NoRoom(need)) => need,
                done => break done.map(drop),
            };
            waiting.get_or_insert_with(|| Waiting::new(&work.waiting));
            if let Err(error) = self.make_space(&need) {
                break Err(error);
            }
        };
        if waiting.take().is_some() && work.waiting.load(Ordering::Relaxed) == 0 {
            work.crowded.store(0, Ordering::Relaxed);
        }
        made
    }

    fn try_write_one(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        durability: Durability,
        admitted: Admitted<'_>,
    ) -> Result<Tried> {
        let (part, lsn) = {
            let router = self.router.read();
            let part = router.part_of(key).clone();
            let mut state = part.write();
            if let Tried::NoRoom(need) = self.change_one(&mut state, key, value)? {
                return Ok(Tried::NoRoom(need));
            }
            let lsn = self.heap.pool.lsn();
            if self.ordered && durability == Durability::Durable {
                part.note_unsettled(hash_of(key), lsn);
            }
            drop(state);
            (part, lsn)
        };
        self.end_write(&[part], lsn, durability, admitted)
    }

    /// Returns when what was written to `parts` is as durable as asked, and they know it. What was admitted for it is given back first:
    /// others need not wait for a sync.
    pub fn end_write(
        &self,
        parts: &[Arc<Partition<D>>],
        lsn: Lsn,
        durability: Durability,
        admitted: Admitted<'_>,
    ) -> Result<Tried> {
        drop(admitted);
        self.acknowledge(lsn, durability)?;
        if self.ordered && durability == Durability::Durable {
            self.settle(parts, lsn);
        }
        Ok(Tried::Done)
    }

    /// Returns when what was written is as durable as asked.
    pub fn acknowledge(&self, lsn: Lsn, durability: Durability) -> Result<()> {
        match durability {
            Durability::Durable => self.heap.pool.wait(lsn)?,
            Durability::Grouped if self.ordered => self.work.grouped_write(),
            // On memory it is durable by now.
            Durability::Grouped => {}
        }
        Ok(())
    }

    /// Durable writes up to this one, which concern `parts`, are on media.
    pub fn settle(&self, parts: &[Arc<Partition<D>>], lsn: Lsn) {
        let divided = parts.iter().filter(|part| part.settle(lsn)).count();
        if divided > 0 {
            self.router.read().parts.iter().for_each(|part| _ = part.settle(lsn));
        }
    }

    fn change_one(&self, state: &mut State<D>, key: &[u8], value: Option<&[u8]>) -> Result<Tried> {
        let heap = &self.heap;
        let verdict = self.verdict(state, key, value.is_none());
        if let Verdict::Nothing = verdict {
            return Ok(Tried::Done);
        }
        let in_flight = self.clock.begin();
        let seqno = in_flight.seqno();
        // Asked after the seqno was taken: a snapshot that is not seen here sees this write.
        let newest = self.snapshots.newest();
        let mut stage = Stage::new(&*heap.pool);
        state.stage_retired(heap, &mut stage);
        if let Verdict::Forget(entry) = verdict {
            let drained = stage.drain();
            state.release_retired(heap);
            let word_at = heap.slabs.word_at(entry.at())?;
            drained.publish(word_at, heap.slabs.free_word(word_at));
            heap.pool.fence();
            state.remove(key);
            state.retire_freed(heap, key, entry, seqno, newest);
            return Ok(Tried::Done);
        }
        let before = verdict.replaced();
        let (kind, purpose) = match value {
            Some(_) => (Kind::Value, Purpose::Value),
            None => (Kind::Tombstone, Purpose::Removal),
        };
        let record = NewRecord { kind, seqno, key, value: value.unwrap_or_default() };
        let no_room = |changes: usize| {
            let mut need = Need::default();
            need.add(key.len(), record.value.len(), purpose, heap.slabs.largest());
            need.add_redo(changes, heap.slabs.largest());
            Ok(Tried::NoRoom(need))
        };
        let Some(written) = heap.write(&mut stage, &record, purpose) else { return no_room(1) };
        let freed = before.and_then(|entry| heap.free_if_unreadable(entry));
        let changes = [written.commit, freed.unwrap_or_default()];
        let changes = &changes[..1 + usize::from(freed.is_some())];
        let Some(redo) = heap.stage_redo(&mut stage, changes) else {
            heap.give(&written.slots);
            return no_room(changes.len());
        };
        heap.install(stage, redo, changes, &self.commits);
        state.release_retired(heap);
        let long = !written.slots.parts.is_empty();
        state.insert(key, Entry::new(written.slots.at, seqno, value.is_none(), long));
        if let Some(entry) = before {
            state.retire(heap, key, entry, seqno, newest);
        }
        Ok(Tried::Done)
    }

    /// What a write of `key` does. It may read from flash, so it is asked before the write is in flight; under the partition's lock
    /// the answer stays what it is.
    pub fn verdict(&self, state: &State<D>, key: &[u8], is_delete: bool) -> Verdict {
        match state.index.get(key) {
            before if !is_delete => Verdict::Replace(before),
            Some(entry) if entry.is_tombstone() && mutant::keep("tombstone") => Verdict::Nothing,
            before if self.may_be_elsewhere(state, key) => Verdict::Replace(before),
            Some(entry) => Verdict::Forget(entry),
            None => Verdict::Nothing,
        }
    }

    /// Whether `key` may have a version that the index does not name: a deletion must be kept then.
    fn may_be_elsewhere(&self, state: &State<D>, key: &[u8]) -> bool {
        state.flash_may_hold(key) || self.lost.hides(key, None).is_some() && mutant::keep("tombstone")
    }
}
