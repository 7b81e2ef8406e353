//! Checkpoints: pages to the image, so that the log before can be overwritten.
//!
//! 1. Note the head of the log. All that was appended before it is in DRAM, and its pages are dirty.
//! 2. Take the set of dirty pages; from now on an append marks its page anew.
//! 3. Write a copy of each to a free slot, and sync the image.
//! 4. Write the log up to what was appended by now, durably. A copy may hold words that were logged while
//!    it was made; were they to survive without the log before them, recovery would show a
//!    later word and miss an earlier one.
//! 5. Make a table durable that names the copies and the position of step 1.
//!
//! A crash before the end of step 5 leaves the old table, its slots and the log from its position. After it,
//! replay from the new position puts the last logged content on every range that was flushed since; see
//! the header of [`crate::pool`].
//!
//! Where the image has fewer free slots than there are dirty pages, steps 3 to 5 are done in rounds. The table of
//! a round that is not the last names the position of the table before it: newer pages under an older
//! position give the same state.

use crate::block::Cursor;
use crate::layout::PAGE;
use crate::log::{RingFull, Room};
use crate::pool::LoggedPool;
use crate::replay::Block;
use crate::store::{PageStore, Spare};
use std::ops::Range;
use std::sync::atomic::Ordering;
use tierdb_base::{Error, ErrorKind, Result};
use tierdb_device::Dir;
use tierdb_sync::Waited;

/// What a checkpoint is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To free the log for `room` more bytes; may leave transient pages to it.
    Trim { room: u64 },
    /// To leave no log behind. Nothing is appended any more.
    Close,
}

/// The table that ends a checkpoint.
struct Goal {
    position: Cursor,
    clean: bool,
    /// A new spare, if it is to have one.
    spare: Option<Spare>,
}

impl<D: Dir> LoggedPool<D> {
    /// Makes a checkpoint. Holds the checkpoint latch through `store`.
    pub(crate) fn checkpoint_with(&self, store: &mut PageStore<D::File>, purpose: Purpose) -> Result<()> {
        self.latch.check()?;
        let head = self.log.head();
        let transient = self.transient.lock().clone();
        let kept = self.log.position_of(self.keep_from.load(Ordering::Acquire).min(head.lsn));
        // Leaving the transient pages to the log is worth it while the log that must stay for them leaves
        // half of the ring to be filled, and what is asked for.
        let stays = head.position - kept.position;
        let worth = |room| stays <= self.log.ring().len / 2 && self.log.lets_in(stays, room);
        let skip = matches!(purpose, Purpose::Trim { room } if !transient.is_empty() && worth(room));
        let (except, position) = if skip { (transient, kept) } else { (0..0, head) };
        self.checkpoint_to(store, except, Goal { position, clean: purpose == Purpose::Close, spare: None })
    }

    /// Writes the dirty pages outside `except`, and the table that `goal` describes.
    fn checkpoint_to(
        &self,
        store: &mut PageStore<D::File>,
        except: Range<u64>,
        mut goal: Goal,
    ) -> Result<()> {
        let dirty = self.dirty.take(except);
        let mut rest = &dirty[..];
        loop {
            match self.round(store, rest, &mut goal) {
                Ok(done) if done == rest.len() => break,
                Ok(done) => rest = &rest[done..],
                Err(e) => {
                    for page in rest {
                        self.dirty.mark(page * PAGE, PAGE);
                    }
                    return Err(e);
                }
            }
        }
        self.log.free_to(goal.position);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        self.checkpoint_pages.fetch_add(dirty.len() as u64, Ordering::Relaxed);
        self.used_after.store(self.log.used(), Ordering::Relaxed);
        self.store_bytes.store(store.memory_bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// Makes certain what an open has found, and applies the `last` block.
    ///
    /// The newest table and the last block can be read, and yet be lost in the next power failure: the writes of
    /// them may have failed, and no sync tells. So a new table is written, with a copy of the block.
    ///
    /// # Errors
    /// The pool is of no use then: open it again.
    pub(crate) fn settle(&self, last: Option<Block>) -> Result<()> {
        let store = &mut self.store.lock();
        let spare = last.as_ref().map(Block::spare).transpose()?;
        // With another spare in use, or little room on the ring, the log is freed up to the last block. That one
        // is not applied yet: no page may hold what is not certain.
        let free_log = store.has_spare() || self.log.is_tight(0);
        let log = store.log();
        if free_log {
            store.write_table(&[], log, false)?;
            let position = last.as_ref().map_or_else(|| self.log.head(), |block| block.at);
            match self.checkpoint_to(store, 0..0, Goal { position, clean: false, spare }) {
                // On a full device the pool can be read, and written as long as the ring has room. All that can
                // be done for the last block then is a sync.
                Err(e) if e.kind() == ErrorKind::NoSpace && self.salvage.is_empty() => self.log.sync()?,
                freed => freed?,
            }
        } else {
            store.set_spare(spare);
            store.write_table(&[], log, false)?;
        }
        if let Some(block) = last {
            block.apply(&self.memory, &self.dirty, &self.log.place(&block.at))?;
        }
        if self.salvage.is_empty() { Ok(()) } else { self.checkpoint_with(store, Purpose::Trim { room: 0 }) }
    }

    /// Writes as many of `pages` as there is room for and a table that names them: how many.
    fn round(&self, store: &mut PageStore<D::File>, pages: &[u64], goal: &mut Goal) -> Result<usize> {
        let room = store.room_for(pages.len()).map_err(|e| self.failed(e))?;
        self.image_bytes.store(store.image_bytes(), Ordering::Relaxed);
        let written = store.write_pages(&self.memory, &pages[..room]).map_err(|e| self.latch.set(e))??;
        if let Err(e) = self.write_log_for_checkpoint() {
            store.discard(written);
            return Err(e);
        }
        let last = room == pages.len();
        if last && goal.spare.is_some() {
            store.set_spare(goal.spare.take());
        }
        let position = if last { goal.position } else { store.log() };
        store.write_table(&written, position, last && goal.clean).map_err(|e| self.latch.set(e))?;
        self.memory.named(written.iter().map(|written| (written.page, written.entry)), &self.dirty);
        Ok(room)
    }

    /// Writes the log up to what was appended by now.
    pub(crate) fn write_log_for_checkpoint(&self) -> Result<()> {
        match self.log.wait(self.log.accepted(), Room::Checkpoint)? {
            Waited::Durable => Ok(()),
            Waited::Unwritten(RingFull) => Err(self.log.no_space()),
        }
    }

    /// A full device is a state that passes; any other failure latches.
    pub(crate) fn failed(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::NoSpace { error } else { self.latch.set(error) }
    }
}
