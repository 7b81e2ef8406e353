//! Changes that take effect together: commit words that are published as one.
//!
//! A group of one word is one publish. A larger one is written as a redo record first: records staged, redo
//! record staged, drained; its place published in a commit slot of the pool's header, fenced: from here on the
//! group is complete; its words published, fenced; the commit slot cleared, fenced.
//!
//! | crash after | on open |
//! |---|---|
//! | records and redo record drained | no commit slot names it: nothing of the group is there |
//! | commit slot | the words are published again, the slot is cleared: all of it is there |
//! | some words | as above |
//! | commit slot cleared | all of it is there |
//!
//! The caller holds the locks of all partitions that the words belong to until the slot is cleared, so no later
//! change is undone when the words are published again.

use crate::heap::{Heap, NewRecord, Written};
use crate::layout::{COMMIT_SLOTS, Layout};
use crate::partition::Entry;
use crate::record::Kind;
use crate::slabs::{Purpose, UNIT};
use parking_lot::{Condvar, Mutex};
use tierdb_base::{Error, ErrorKind, Result, TierRole};
use tierdb_pmem::{Pool, Stage, seal, unseal};

/// A commit word's place, and its new value.
pub type Change = (u64, u64);

/// Bytes of a change in a redo record.
pub const REDO_BYTES: usize = 16;

/// The commit slots that are free.
pub struct CommitSlots {
    free: Mutex<Vec<u64>>,
    freed: Condvar,
}

impl CommitSlots {
    /// All of them are.
    pub fn new() -> Self {
        CommitSlots { free: Mutex::new((0..COMMIT_SLOTS).collect()), freed: Condvar::new() }
    }

    fn take(&self) -> u64 {
        let mut free = self.free.lock();
        loop {
            match free.pop() {
                Some(slot) => return slot,
                None => self.freed.wait(&mut free),
            }
        }
    }

    fn give(&self, slot: u64) {
        self.free.lock().push(slot);
        self.freed.notify_one();
    }
}

impl<P: Pool> Heap<P> {
    /// What has to be published with the word of the version that replaces `entry`, if that cannot be read: its slot is free. That is
    /// what an open or a migration found; and of a long value the head is looked at, which is needed for its parts anyway.
    pub fn free_if_unreadable(&self, entry: Entry) -> Option<Change> {
        let unreadable = entry.is_stuck() || entry.is_long() && self.head(entry.at()).is_err();
        let word_at = unreadable.then(|| self.slabs.word_at(entry.at()).ok())??;
        Some((word_at, self.slabs.free_word(word_at)))
    }

    /// Stages the redo record of a group, if it needs one. `None` if there is no room for it.
    pub fn stage_redo(&self, stage: &mut Stage<'_, P>, changes: &[Change]) -> Option<Option<Written>> {
        if changes.len() < 2 {
            return Some(None);
        }
        let value: Vec<u8> =
            changes.iter().flat_map(|(at, word)| [at.to_le_bytes(), word.to_le_bytes()]).flatten().collect();
        let redo = NewRecord { kind: Kind::Redo, seqno: 0, key: &[], value: &value };
        self.write(stage, &redo, Purpose::Upkeep).map(Some)
    }

    /// Publishes `changes` as one, once all that is staged is drained: on return they are durable, or in the order
    /// of the log.
    pub fn install(
        &self,
        stage: Stage<'_, P>,
        redo: Option<Written>,
        changes: &[Change],
        slots: &CommitSlots,
    ) {
        let drained = stage.drain();
        let Some(redo) = redo else {
            for (at, word) in changes {
                drained.publish(*at, *word);
            }
            self.pool.fence();
            return;
        };
        let number = slots.take();
        let slot = Layout::commit_slot(number);
        drained.publish(slot, seal(self.seed, slot, redo.slots.at / UNIT));
        self.pool.fence();
        for (at, word) in changes {
            self.pool.publish(*at, *word);
        }
        self.pool.fence();
        self.pool.publish(slot, seal(self.seed, slot, 0));
        self.pool.fence();
        slots.give(number);
        self.give(&redo.slots);
    }

    /// Publishes again the words of groups that were complete when the store went down.
    ///
    /// # Errors
    /// `Corrupt` if a commit slot or a redo record is damaged.
    pub fn replay_groups(&self) -> Result<()> {
        for number in 0..COMMIT_SLOTS {
            let slot = Layout::commit_slot(number);
            let at = unseal(&*self.pool, self.seed, slot)? * UNIT;
            if at == 0 {
                continue;
            }
            let corrupt = || {
                Error::corrupt(TierRole::Fast, "the redo record of a group is damaged", self.pool.place(at))
            };
            let (head, value) = self.read(at).map_err(|error| match error.kind() {
                ErrorKind::Corrupt => corrupt(),
                _ => error,
            })?;
            let (pairs, odd) = value.as_chunks::<REDO_BYTES>();
            if head.kind != Kind::Redo || !odd.is_empty() {
                return Err(corrupt());
            }
            let mut words = Vec::with_capacity(pairs.len());
            for pair in pairs {
                let (word_at, word) = pair.split_at(8);
                let [word_at, word] =
                    [word_at, word].map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()));
                if !word_at.is_multiple_of(8) || word_at >= self.pool.len() {
                    return Err(corrupt());
                }
                // Before any is published, which cannot be refused.
                self.pool.fetch(word_at, 8)?;
                words.push((word_at, word));
            }
            words.into_iter().for_each(|(word_at, word)| self.pool.publish(word_at, word));
            self.pool.fence();
            self.pool.publish(slot, seal(self.seed, slot, 0));
            self.pool.fence();
        }
        Ok(())
    }
}
