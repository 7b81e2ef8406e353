//! Small pieces of concurrency that engines share, each small enough to be model-checked.

#![deny(unsafe_code)]

pub mod clock;
pub mod counter;
pub mod epoch_cell;
pub mod group_commit;
pub mod latch;
pub mod request;
pub mod switch;
pub mod table;

pub use clock::{CommitClock, InFlight};
pub use counter::{Counter, thread_shard};
pub use epoch_cell::{EpochCell, EpochSlot};
pub use group_commit::{GroupCommit, Turn, Waited};
pub use latch::{LATCHED, WordGuard};
pub use request::Request;
pub use table::Table;
