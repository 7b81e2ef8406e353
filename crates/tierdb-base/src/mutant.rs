//! Sites that a test can break on purpose: a flush, a fence, a sync, a checksum comparison.
//!
//! A crash test that does not fail when a fence is dropped proves nothing. Each such call asks
//! [`keep`] whether to take place. With the feature `mutants` (tests only) a thread can list the
//! sites it passed and switch one off; without it `keep` is `true` at compile time.

/// A site: what it does, and the source line that asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// flush, fence, sync, checksum, level, ...
    pub what: &'static str,
    /// Source file of the call.
    pub file: &'static str,
    /// Line of the call.
    pub line: u32,
    /// Column of the call.
    pub column: u32,
}

impl Site {
    /// Whether it is a step on the way to durability, and not a comparison or what is done about a failure: those
    /// matter where media are damaged or fail. Nor what keeps versions of a key in the order of the levels that they lie in, says what
    /// comes down where flash is full, or keeps what was removed from coming back.
    pub fn is_persist(&self) -> bool {
        !["checksum", "mismatch", "failure", "latch", "level", "sweep", "tombstone"].contains(&self.what)
    }
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}:{}:{}", self.what, self.file, self.line, self.column)
    }
}

#[cfg(feature = "mutants")]
mod on {
    use super::Site;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;
    use std::panic::Location;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    thread_local! {
        static SEEN: RefCell<Option<BTreeMap<Site, u64>>> = const { RefCell::new(None) };
        static OFF: Cell<Option<Site>> = const { Cell::new(None) };
        static LEFT_OUT: RefCell<Arc<AtomicU64>> = RefCell::default();
    }

    /// Whether the call at the caller's source line is to take place.
    #[track_caller]
    pub fn keep(what: &'static str) -> bool {
        let at = Location::caller();
        let site = Site { what, file: at.file(), line: at.line(), column: at.column() };
        SEEN.with_borrow_mut(|seen| {
            if let Some(seen) = seen {
                *seen.entry(site).or_insert(0) += 1;
            }
        });
        let kept = OFF.get() != Some(site);
        if !kept {
            LEFT_OUT.with_borrow(|count| count.fetch_add(1, Ordering::Relaxed));
        }
        kept
    }

    /// How many calls were left out so far on this thread, and on those that it gave work to with [`carry`].
    pub fn left_out() -> u64 {
        LEFT_OUT.with_borrow(|count| count.load(Ordering::Relaxed))
    }

    /// The sites that `work` passes on this thread, with how often.
    pub fn record(work: impl FnOnce()) -> BTreeMap<Site, u64> {
        SEEN.set(Some(BTreeMap::new()));
        work();
        SEEN.take().unwrap_or_default()
    }

    /// Runs `work` with the calls at `site` left out on this thread.
    pub fn without<T>(site: Site, work: impl FnOnce() -> T) -> T {
        with(Some(site), work)
    }

    /// `work`, to be run on another thread with the same site left out as on this one now.
    pub fn carry<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
        let (off, count) = (OFF.get(), LEFT_OUT.with_borrow(Arc::clone));
        move || {
            let before = LEFT_OUT.replace(count);
            let done = with(off, work);
            LEFT_OUT.set(before);
            done
        }
    }

    fn with<T>(off: Option<Site>, work: impl FnOnce() -> T) -> T {
        struct Restore(Option<Site>);
        impl Drop for Restore {
            fn drop(&mut self) {
                OFF.set(self.0);
            }
        }
        let _restore = Restore(OFF.replace(off));
        work()
    }
}

#[cfg(feature = "mutants")]
pub use on::{carry, keep, left_out, record, without};

/// Whether the call at the caller's source line is to take place: always, in this build.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn keep(_what: &'static str) -> bool {
    true
}

/// How many calls were left out: none, in this build.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn left_out() -> u64 {
    0
}

#[cfg(all(test, feature = "mutants"))]
mod tests {
    use super::*;

    fn step() -> bool {
        keep("fence")
    }

    #[test]
    fn a_site_is_recorded_and_can_be_left_out() {
        let seen = record(|| {
            step();
            step();
        });
        let (site, times) = seen.iter().next().expect("one site");
        assert_eq!((*times, site.what), (2, "fence"));
        let before = left_out();
        assert!(!without(*site, step));
        assert!(step());
        assert_eq!(left_out(), before + 1);
    }
}
