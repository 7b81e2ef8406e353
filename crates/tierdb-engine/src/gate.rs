//! Whether a store may be used, and changed.

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use tierdb_base::{Error, FailureLatch, Result};

/// What every call passes: a store is used until it is closed, and changed until a write has failed.
///
/// A close first [shuts](Gate::shut) the gate, so that nothing begins, and then is [alone](Gate::alone) when what had begun
/// has ended.
pub struct Gate {
    /// Held, shared, while the store changes; by a close alone.
    changing: ShardedLock<()>,
    closed: AtomicBool,
    latch: FailureLatch,
}

impl Gate {
    /// The open gate of a store whose first failure `latch` keeps.
    pub fn new(latch: FailureLatch) -> Self {
        Gate { changing: ShardedLock::new(()), closed: AtomicBool::new(false), latch }
    }

    /// The first failure.
    pub fn latch(&self) -> &FailureLatch {
        &self.latch
    }

    /// Refuses after a close.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::invalid("the store is closed"));
        }
        Ok(())
    }

    /// Refuses after a close or a failed write.
    ///
    /// # Errors
    /// `Invalid`, `Poisoned`.
    pub fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        self.latch.check()
    }

    /// The right to change the store, which a close waits for. Not to be asked for by who has it: a close in between would
    /// wait for the first, and the second for the close.
    ///
    /// # Errors
    /// As [`Gate::check_writable`].
    pub fn change(&self) -> Result<ShardedLockReadGuard<'_, ()>> {
        let changing = self.change_anyway();
        self.check_writable()?;
        Ok(changing)
    }

    /// As [`Gate::change`], for what is done after a close or a failure too.
    pub fn change_anyway(&self) -> ShardedLockReadGuard<'_, ()> {
        self.changing.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets nothing begin any more. `false` if it was shut before.
    pub fn shut(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Waits until what had begun to change the store has ended.
    pub fn alone(&self) -> ShardedLockWriteGuard<'_, ()> {
        self.changing.write().unwrap_or_else(PoisonError::into_inner)
    }
}
