//! The primitives of code that is model-checked: those of every day, or, with `--cfg loom`, loom's.
//!
//! Code that a loom model runs takes its atomics, mutexes and backoff from here and from nowhere else. What
//! is no part of a protocol (statistics, say) keeps the ordinary ones, which a model does not see.
//!
//! With `--cfg loom` there is also `explore`, which runs a model under every `Memory` that counts.

#[cfg(not(loom))]
mod chosen {
    pub use crossbeam_utils::Backoff;
    pub use parking_lot::{Mutex, MutexGuard};
    pub use std::sync::atomic::{AtomicU64, AtomicUsize};
}

#[cfg(loom)]
#[path = "switch/model.rs"]
mod chosen;

pub use chosen::*;
