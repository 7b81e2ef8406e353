//! What media do to a store beside crashes: operations that fail, and bytes that change.

mod base;
mod damage;
mod faults;
mod mend;
mod sums;
