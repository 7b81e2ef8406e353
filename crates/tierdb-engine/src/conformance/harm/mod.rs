//! What media do to a store, for any engine: crashes at every event, operations that fail, bytes that change, and
//! calls of the engine's own that are left out on purpose.
//!
//! An engine implements [`Sizes`] for the sizes of its stores; a [`Rig`] is such a store on simulated media, with its pool
//! on memory or logged. The suites:
//!
//! * [`crash`]: [`script`]s of random operations are crashed at their events.
//! * [`persist`]: each flush, fence, publish and wait is left out in turn, and a script must fail.
//! * [`readers`]: what a reader sees of a write that has not returned survives a crash.
//! * [`faults`]: each operation of a device fails in turn, while a store makes the [`steps`] of a script.
//! * [`surveys`]: copies of a store are [harmed](harms) in one place each, and [looked at](damage).
//! * [`sums`]: each comparison of a checksum is left out in turn, in a test with [`crafted`] damage.

pub mod crafted;
pub mod crash;
pub mod damage;
pub mod faults;
pub mod harms;
pub mod persist;
pub mod readers;
pub mod rig;
pub mod script;
pub mod steps;
pub mod sums;
pub mod surveys;
pub mod watch;

pub use rig::{LogPlace, MediaSizes, Rig, SimHarness, Sizes};
