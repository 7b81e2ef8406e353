//! The suite that every engine passes: it checks the contract of [`Engine`] through nothing but its methods.
//!
//! An engine's tests implement [`Harness`] and call the suites, or let [`conformance!`](crate::conformance!)
//! write the tests:
//!
//! * [`random_ops`]: one thread, random operations, reopening; a failure is reduced to few operations.
//! * [`argument_limits`] and [`closed_engine_refuses`]: what must be refused is, and changes nothing.
//! * [`snapshots_and_batches_are_atomic_under_threads`], [`linearizable`], [`threads_come_and_go`]: threads.
//! * [`full_store_recovers`]: a tier fills up and is emptied.
//! * [`Oracle`]: what a store may hold after a crash, for crash tests.
//! * `harm` (feature `harm`): crashes, faults and damage, on simulated media.
//!
//! The suite is itself tested: `tests/model_conforms.rs` runs it on the model, which passes, and on
//! versions of the model that are broken on purpose, each of which it catches.

use crate::engine::Engine;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tierdb_base::{Error, MAX_VALUE_BYTES, Result};

mod arguments;
mod atomic;
mod full;
#[cfg(feature = "harm")]
pub mod harm;
pub mod history;
mod keys;
mod ops;
mod oracle;
mod random;
mod run;
mod threads;
mod values;

pub use arguments::{argument_limits, closed_engine_refuses};
pub use atomic::snapshots_and_batches_are_atomic_under_threads;
pub use full::full_store_recovers;
pub use history::linearizable;
pub use oracle::{Content, Oracle, Ticket};
pub use random::random_ops;
pub use threads::threads_come_and_go;

/// Opens and reopens the store that a suite works on.
pub trait Harness {
    /// Opens the store, and creates it where there is none. At most one engine is open at a time: the
    /// suite drops the old one first, with or without [`Engine::close`].
    fn open(&mut self) -> Result<Box<dyn Engine>>;

    /// Throws the store away, so that the next [`Harness::open`] creates an empty one. No engine is open.
    fn reset(&mut self) -> Result<()>;

    /// What is tested, for failure messages: engine, mode, sizes.
    fn describe(&self) -> String;

    /// What the suite must respect.
    fn limits(&self) -> Limits {
        Limits::default()
    }
}

/// What a suite must respect about a [`Harness`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest value that is written. Default 3 MiB.
    pub max_value_bytes: usize,
    /// Whether the tiers are so small that puts may fail with `NoSpace`. Default no.
    pub may_fill: bool,
    /// Whether [`Stats::keys`](crate::Stats::keys) is exact while nothing is being written. Default yes.
    pub exact_key_count: bool,
    /// How long a store that was full may take, once emptied, until it accepts puts again. Default two minutes.
    pub patience: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_value_bytes: 3 << 20,
            may_fill: false,
            exact_key_count: true,
            patience: Duration::from_secs(120),
        }
    }
}

impl Limits {
    fn value_len(&self, len: usize) -> usize {
        len.min(self.max_value_bytes).min(MAX_VALUE_BYTES)
    }
}

/// The first thing that was found wrong: what was done, what came, and what the contract allows.
#[derive(Clone)]
pub struct Failure(String);

impl Failure {
    /// A failure, in words.
    pub fn new(what: impl Into<String>) -> Self {
        Failure(what.into())
    }

    /// The same failure, with where it happened before it.
    #[must_use]
    pub fn during(self, place: impl fmt::Display) -> Self {
        Failure(format!("{place}: {}", self.0))
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Failure(what)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// As text, with its line breaks: this is what a failed `expect` prints.
impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

/// Result of a suite.
pub type Checked<T = ()> = std::result::Result<T, Failure>;

/// Says what was being done when an engine gave an error that it must not give.
trait Unexpected<T> {
    fn during(self, what: impl FnOnce() -> String) -> Checked<T>;
}

impl<T> Unexpected<T> for Result<T, Error> {
    fn during(self, what: impl FnOnce() -> String) -> Checked<T> {
        self.map_err(|error| Failure(format!("{}: unexpected error: {error}", what())))
    }
}

/// Fails with a formatted message.
macro_rules! fail {
    ($($message:tt)*) => { return Err($crate::conformance::Failure::new(format!($($message)*))) };
}
use fail;

/// Fails with a formatted message unless a condition holds.
macro_rules! ensure {
    ($holds:expr, $($message:tt)*) => { if !$holds { $crate::conformance::fail!($($message)*) } };
}
use ensure;

/// Runs `work`; a panic in it is a failure too.
fn guarded(work: impl FnOnce() -> Checked) -> Checked {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|cause| Err(Failure(format!("panic: {}", words(&*cause)))))
}

/// What a panic said.
fn words(cause: &(dyn std::any::Any + Send)) -> &str {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or(cause.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// Opens an empty store.
fn open_empty(harness: &mut dyn Harness) -> Checked<Box<dyn Engine>> {
    harness.reset().during(|| "reset".into())?;
    harness.open().during(|| "open of a new store".into())
}

/// The numbers that the environment variable asks for: `FIRST..END`, or one.
fn asked(variable: &str) -> Option<Range<u64>> {
    let asked = std::env::var(variable).ok()?;
    let number = |text: &str| {
        text.parse::<u64>()
            .unwrap_or_else(|_| panic!("{variable}={asked}: a number, or FIRST..END, is wanted"))
    };
    let numbers = match asked.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(&asked)..number(&asked) + 1,
    };
    assert!(!numbers.is_empty(), "{variable}={asked} asks for nothing");
    Some(numbers)
}

/// The seeds of a suite: the `usual` ones, or those that the environment variable `TIERDB_SEEDS` asks for, as `FIRST..END` or as one.
pub fn seeds(usual: Range<u64>) -> Range<u64> {
    asked("TIERDB_SEEDS").unwrap_or(usual)
}

/// Writes a test for each suite, over the [`Harness`] that an expression creates.
///
/// ```
/// # use tierdb_engine::conformance::{Harness, Limits};
/// # use tierdb_engine::{Engine, ModelStore};
/// # use tierdb_base::Result;
/// struct Model(ModelStore);
///
/// impl Harness for Model {
///     fn open(&mut self) -> Result<Box<dyn Engine>> {
///         Ok(Box::new(self.0.open()?))
///     }
///     fn reset(&mut self) -> Result<()> {
///         self.0 = ModelStore::new();
///         Ok(())
///     }
///     fn describe(&self) -> String {
///         "the model".into()
///     }
/// }
///
/// mod model {
///     # use super::*;
///     tierdb_engine::conformance!(Model(ModelStore::new()));
/// }
/// ```
#[macro_export]
macro_rules! conformance {
    ($harness:expr) => {
        #[test]
        fn random_operations_agree_with_the_model() {
            for seed in $crate::conformance::seeds(0..8) {
                $crate::conformance::random_ops(&mut $harness, seed, 2000).expect("conforms");
            }
        }

        #[test]
        fn argument_limits_hold() {
            $crate::conformance::argument_limits(&mut $harness).expect("conforms");
        }

        #[test]
        fn a_closed_engine_refuses() {
            $crate::conformance::closed_engine_refuses(&mut $harness).expect("conforms");
        }

        #[test]
        fn snapshots_and_batches_are_atomic() {
            for seed in $crate::conformance::seeds(0..1) {
                $crate::conformance::snapshots_and_batches_are_atomic_under_threads(&mut $harness, seed, 300)
                    .expect("conforms");
            }
        }

        #[test]
        fn histories_are_linearizable() {
            let seeds = $crate::conformance::seeds(0..4);
            $crate::conformance::linearizable(&mut $harness, 4, 500, seeds).expect("conforms");
        }

        #[test]
        fn threads_may_come_and_go() {
            $crate::conformance::threads_come_and_go(&mut $harness, 200).expect("conforms");
        }
    };
}
