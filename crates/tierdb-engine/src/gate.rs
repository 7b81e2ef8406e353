//! Whether a store may be used, and changed.

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, TryLockError};
use tierdb_base::{Error, FailureLatch, Result};

/// What every call passes: a store is used until it is closed, and changed until a write has failed.
///
/// A [close](Gate::close) first shuts the gate, so that nothing begins, and then is [alone](Gate::alone) when what had begun
/// has ended.
pub struct Gate {
    /// Held, shared, while the store changes; by a close alone.
    changing: ShardedLock<()>,
    closed: AtomicBool,
    /// How the first close ended. Held while it is on its way.
    ended: Mutex<Result<()>>,
    latch: FailureLatch,
}

impl Gate {
    /// The open gate of a store whose first failure `latch` keeps.
    pub fn new(latch: FailureLatch) -> Self {
        Gate {
            changing: ShardedLock::new(()),
            closed: AtomicBool::new(false),
            ended: Mutex::new(Ok(())),
            latch,
        }
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

    /// As [`Gate::change`], for what may as well be left undone: by who reads, and waits for no close. `None` from the moment on
    /// when a close is on its way. Who has the right already may ask.
    pub fn try_change(&self) -> Option<ShardedLockReadGuard<'_, ()>> {
        let changing = match self.changing.try_read() {
            Ok(changing) => changing,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.check_open().is_ok().then_some(changing)
    }

    /// As [`Gate::change`], for what is done after a close or a failure too.
    pub fn change_anyway(&self) -> ShardedLockReadGuard<'_, ()> {
        self.changing.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets nothing begin any more, and then does `finish`, once: who closes a second time waits for the first and gets its
    /// result, since what the store is on media is up to that alone.
    ///
    /// # Errors
    /// Those of `finish`; `Poisoned` if that panicked.
    pub fn close(&self, finish: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut ended = self.ended.lock();
        if !self.closed.swap(true, Ordering::AcqRel) {
            // What stays if it panics.
            *ended = Err(Error::Poisoned { cause: "a close that panicked".into() });
            *ended = finish();
        }
        ended.clone()
    }

    /// Waits until what had begun to change the store has ended.
    pub fn alone(&self) -> ShardedLockWriteGuard<'_, ()> {
        self.changing.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_close_that_panicked_has_not_made_anything_durable() {
        let gate = Gate::new(FailureLatch::default());
        let close = std::panic::AssertUnwindSafe(|| gate.close(|| panic!("on purpose")));
        assert!(std::panic::catch_unwind(close).is_err());
        assert!(matches!(gate.close(|| Ok(())), Err(Error::Poisoned { .. })));
    }

    #[test]
    fn who_reads_changes_nothing_from_a_close_on() {
        let gate = Gate::new(FailureLatch::default());
        let changing = gate.change().expect("open");
        assert!(gate.try_change().is_some(), "also who has the right already");
        drop(changing);
        gate.close(|| {
            assert!(gate.try_change().is_none());
            let _closing = gate.alone();
            assert!(gate.try_change().is_none());
            Ok(())
        })
        .expect("nothing to do");
        assert!(gate.try_change().is_none());
    }

    #[test]
    fn a_second_close_waits_for_the_first_and_gets_its_result() {
        let gate = &Gate::new(FailureLatch::default());
        let (begun, begins) = mpsc::channel();
        let (returned, returns) = mpsc::channel();
        std::thread::scope(|scope| {
            let first = scope.spawn(move || {
                gate.close(|| {
                    begun.send(()).expect("the second waits for it");
                    let early = returns.recv_timeout(Duration::from_millis(100));
                    assert!(early.is_err(), "the second returned while the first was on its way");
                    Err(Error::Poisoned { cause: "a write".into() })
                })
            });
            begins.recv().expect("the first begins");
            let second = gate.close(|| panic!("it is done once"));
            // Nobody listens once the first has ended.
            let _ = returned.send(());
            assert!(matches!(second, Err(Error::Poisoned { .. })), "{second:?}");
            assert!(matches!(first.join(), Ok(Err(Error::Poisoned { .. }))));
        });
    }
}
