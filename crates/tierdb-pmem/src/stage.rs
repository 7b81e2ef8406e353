//! Persisted before reachable, as types: stage, drain, publish.
//!
//! A [`Stage`] takes bytes and starts their write-back; [`Stage::drain`] turns it into a [`Drained`],
//! and only with a `Drained` of the same pool can a word be published that makes the bytes reachable.
//! To publish before the drain does not compile.

use crate::pool::Pool;

/// Bytes on their way to media: written and flushed, not yet certain.
///
/// A crash before [`Stage::drain`] leaves any subset of their words on media, where nothing refers to
/// them yet.
#[must_use = "staged bytes are not durable before `drain`"]
pub struct Stage<'p, P: Pool> {
    pool: &'p P,
}

impl<'p, P: Pool> Stage<'p, P> {
    /// Nothing staged yet.
    pub fn new(pool: &'p P) -> Self {
        Stage { pool }
    }

    /// Copies `bytes` to `at` and starts their write-back. The caller owns the range: nothing that is
    /// reachable on media refers to it.
    #[track_caller]
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        self.pool.write(at, bytes);
        self.pool.flush(at, bytes.len() as u64);
    }

    /// Stores `word` at `at` and starts its write-back.
    #[track_caller]
    pub fn word(&mut self, at: u64, word: u64) {
        self.pool.store(at, word);
        self.pool.flush(at, 8);
    }

    /// Waits until all that was staged persists before anything flushed from now on.
    #[track_caller]
    pub fn drain(self) -> Drained<'p, P> {
        self.pool.fence();
        Drained { pool: self.pool }
    }
}

/// Proof that what was staged persists before anything that is published with it.
#[must_use = "a drain is for a publish, or for nothing"]
pub struct Drained<'p, P: Pool> {
    pool: &'p P,
}

impl<P: Pool> Drained<'_, P> {
    /// Makes the drained bytes reachable: one 8-byte store, whole or absent after a crash, durable
    /// after the next fence.
    #[track_caller]
    pub fn publish(&self, at: u64, word: u64) {
        self.pool.publish(at, word);
    }
}
