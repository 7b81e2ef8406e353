//! Small pieces of concurrency that engines share, each small enough to be model-checked.

#![forbid(unsafe_code)]

pub mod clock;
pub mod counter;
pub mod latch;
pub mod switch;
pub mod table;

pub use clock::{CommitClock, InFlight};
pub use counter::{Counter, thread_shard};
pub use latch::{LATCHED, WordGuard};
pub use table::Table;
