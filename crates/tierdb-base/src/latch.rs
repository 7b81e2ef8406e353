//! The failure latch: after a write to media failed, nothing more is written.

use crate::error::{Error, Result};
use crate::mutant;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once by the first failed write or sync; every later write is refused with its cause.
///
/// A failed sync leaves it unknown what is on media, and retrying it may report success for pages
/// the kernel has dropped. So the store reads on, refuses to write, and learns the truth on reopen.
#[derive(Clone, Debug, Default)]
pub struct FailureLatch(Arc<State>);

#[derive(Debug, Default)]
struct State {
    set: AtomicBool,
    cause: Mutex<Option<String>>,
}

impl FailureLatch {
    /// A latch that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records `cause` if it is the first, and returns it unchanged.
    #[track_caller]
    pub fn set(&self, cause: Error) -> Error {
        if !mutant::keep("latch") {
            return cause;
        }
        let mut first = self.0.cause.lock();
        if first.is_none() {
            *first = Some(cause.to_string());
            self.0.set.store(true, Ordering::Release);
        }
        cause
    }

    /// Whether a failure was recorded.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.set.load(Ordering::Acquire)
    }

    /// Refuses with [`Error::Poisoned`] once a failure was recorded.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_set() { Err(self.refusal()) } else { Ok(()) }
    }

    #[cold]
    fn refusal(&self) -> Error {
        Error::Poisoned { cause: self.0.cause.lock().clone().unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn the_first_cause_stays() {
        let latch = FailureLatch::new();
        assert!(latch.check().is_ok());
        latch.set(Error::invalid("first"));
        latch.set(Error::invalid("second"));
        let refused = latch.check().expect_err("set");
        assert_eq!(refused.kind(), ErrorKind::Poisoned);
        assert!(refused.to_string().contains("first"));
    }
}
