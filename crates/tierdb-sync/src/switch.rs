//! The primitives of code that is model-checked: those of every day, or, with `--cfg loom`, loom's.
//!
//! Code that a loom model runs takes its atomics, mutexes, condition variables and backoff from here and from nowhere else. What
//! is no part of a protocol (statistics, say) keeps the ordinary ones, which a model does not see.
//!
//! With `--cfg loom` there is also `explore`, which runs a model under every `Memory` that counts.

#[cfg(not(loom))]
mod chosen {
    pub use crossbeam_utils::Backoff;
    pub use parking_lot::{Mutex, MutexGuard};
    pub use std::sync::atomic::{AtomicU64, AtomicUsize};

    /// As `parking_lot`'s, but for `wait`, which takes the latch and gives it back.
    #[derive(Debug, Default)]
    pub struct Condvar(parking_lot::Condvar);

    #[allow(missing_docs, reason = "they are those of parking_lot")]
    impl Condvar {
        pub fn new() -> Self {
            Condvar::default()
        }

        pub fn wait<'l, T>(&self, mut latched: MutexGuard<'l, T>) -> MutexGuard<'l, T> {
            self.0.wait(&mut latched);
            latched
        }

        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(loom)]
#[path = "switch/model.rs"]
mod chosen;

pub use chosen::*;
