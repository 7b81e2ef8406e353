//! Sites that a test can break on purpose: a flush, a fence, a sync, a checksum comparison.
//!
//! A crash test that does not fail when a fence is dropped proves nothing. Each such call asks
//! [`keep`] whether to take place. With the feature `mutants` (tests only) a thread can list the
//! sites it passed and switch one off; without it `keep` is `true` at compile time.

/// A site: what it does, and the source line that asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Site {
    /// flush, fence, sync, checksum, ...
    pub what: &'static str,
    /// Source file of the call.
    pub file: &'static str,
    /// Line of the call.
    pub line: u32,
    /// Column of the call.
    pub column: u32,
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

    thread_local! {
        static SEEN: RefCell<Option<BTreeMap<Site, u64>>> = const { RefCell::new(None) };
        static OFF: Cell<Option<Site>> = const { Cell::new(None) };
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
        OFF.get() != Some(site)
    }

    /// The sites that `work` passes on this thread, with how often.
    pub fn record(work: impl FnOnce()) -> BTreeMap<Site, u64> {
        SEEN.set(Some(BTreeMap::new()));
        work();
        SEEN.take().unwrap_or_default()
    }

    /// Runs `work` with the calls at `site` left out on this thread.
    pub fn without<T>(site: Site, work: impl FnOnce() -> T) -> T {
        struct Restore;
        impl Drop for Restore {
            fn drop(&mut self) {
                OFF.set(None);
            }
        }
        OFF.set(Some(site));
        let _restore = Restore;
        work()
    }
}

#[cfg(feature = "mutants")]
pub use on::{keep, record, without};

/// Whether the call at the caller's source line is to take place: always, in this build.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn keep(_what: &'static str) -> bool {
    true
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
        assert!(!without(*site, step));
        assert!(step());
    }
}
