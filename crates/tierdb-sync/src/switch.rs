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
    use std::sync::PoisonError;
    pub use std::sync::atomic::{AtomicU64, AtomicUsize};

    /// The mutex of a [`Condvar`]: the standard library's, which a panic does not poison.
    #[derive(Debug, Default)]
    pub struct CondMutex<T>(std::sync::Mutex<T>);

    #[allow(missing_docs, reason = "they are those of the standard library")]
    impl<T> CondMutex<T> {
        pub fn new(value: T) -> Self {
            CondMutex(std::sync::Mutex::new(value))
        }

        pub fn lock(&self) -> std::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// The standard library's: it wakes all at once, where of those that `parking_lot`'s wakes each wakes the next one. Some may wake
    /// without having been woken.
    #[derive(Debug, Default)]
    pub struct Condvar(std::sync::Condvar);

    #[allow(missing_docs, reason = "they are those of the standard library")]
    impl Condvar {
        pub fn new() -> Self {
            Condvar::default()
        }

        pub fn wait<'l, T>(&self, latched: std::sync::MutexGuard<'l, T>) -> std::sync::MutexGuard<'l, T> {
            self.0.wait(latched).unwrap_or_else(PoisonError::into_inner)
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
