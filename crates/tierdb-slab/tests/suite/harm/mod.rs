//! What media do to a store beside crashes: operations that fail, and bytes that change.
//!
//! One program, because each would compile the whole engine again.

mod base;
mod damage;
mod faults;
mod mend;
#[allow(dead_code, reason = "the other suites use the rest")]
#[path = "../rig/mod.rs"]
mod rig;
mod sums;
