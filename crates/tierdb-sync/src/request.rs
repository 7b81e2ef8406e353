//! A flag by which any thread asks one other for work.

use crate::switch::AtomicUsize;
use std::sync::atomic::Ordering;

const ASKED: usize = 1;

/// Work that was asked for and has not begun.
pub struct Request(AtomicUsize);

impl Default for Request {
    fn default() -> Self {
        Request(AtomicUsize::new(0))
    }
}

impl Request {
    /// Asks for the work. `true` if nobody had asked before since it last [began](Request::take): then its thread is to be woken.
    #[inline]
    pub fn ask(&self) -> bool {
        self.0.swap(ASKED, Ordering::AcqRel) != ASKED
    }

    /// Whether the work was asked for.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire) == ASKED
    }

    /// Begins the work: it sees all that those did before who were not told to wake its thread.
    pub fn take(&self) {
        // Not a store, which what the work reads could overtake: it would miss what came just before an `ask` that found the
        // flag set, and nobody would ask again.
        self.0.swap(0, Ordering::AcqRel);
    }
}
