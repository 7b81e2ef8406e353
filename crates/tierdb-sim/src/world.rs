//! A set of simulated devices that lose power together.
//!
//! One lock guards what all of them have on media and on the way there, so a capture sees one moment.
//! Loads from a pool take no lock.

use crate::dir::{DirState, SimDir};
use crate::fault::Faults;
use crate::pool::{PoolState, SimPool};
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a program does that brings bytes nearer to media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Write-back of pool lines was started.
    Flush,
    /// A drain of the write-backs of one thread.
    Fence,
    /// A word was stored in a pool and its write-back started.
    Publish,
    /// A word of a pool was made durable on behalf of its writer.
    PersistWord,
    /// A write to a file that a later sync makes durable.
    Write,
    /// A write to a file that is durable on return.
    WriteDurable,
    /// A file's writes and length were made durable.
    Sync,
    /// A file's length was changed.
    SetLen,
    /// A file was created.
    Create,
    /// A file was removed.
    Remove,
    /// A file was renamed.
    Rename,
    /// A directory's names were made durable.
    DirSync,
}

/// A persist event, reported to the hook before it takes effect.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Its number in the world's order; the first is 1.
    pub number: u64,
    /// What is about to happen.
    pub kind: EventKind,
    /// The source line that asks for it.
    pub at: &'static Location<'static>,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {} ({:?} at {}:{})", self.number, self.kind, self.at.file(), self.at.line())
    }
}

/// Called before every persist event, on the thread that causes it.
pub type Hook = Arc<dyn Fn(&World, &Event) + Send + Sync>;

/// Simulated devices that lose power together. Clones are the same world.
#[derive(Clone, Default)]
pub struct World {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    events: AtomicU64,
    hooked: AtomicBool,
    hook: Mutex<Option<Hook>>,
    pub faults: Faults,
}

/// The media of all devices, and what is on its way to them.
#[derive(Default)]
pub(crate) struct State {
    pub pools: Vec<PoolState>,
    pub dirs: Vec<DirState>,
}

impl World {
    /// A world without devices.
    pub fn new() -> Self {
        Self::default()
    }

    pub(crate) fn from_state(state: State) -> Self {
        World { shared: Arc::new(Shared { state: Mutex::new(state), ..Shared::default() }) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    /// Adds a pool of `len` zero bytes (a multiple of 4,096).
    ///
    /// # Panics
    /// If the world has a device of that name.
    pub fn add_pool(&self, name: &str, len: u64) -> SimPool {
        let mut state = self.state();
        assert!(!state.has(name), "the world has a device {name}");
        state.pools.push(PoolState::new(name, len));
        drop(state);
        self.pool(name)
    }

    /// Adds an empty directory, which is a device of its own.
    ///
    /// # Panics
    /// If the world has a device of that name.
    pub fn add_dir(&self, name: &str) -> SimDir {
        let mut state = self.state();
        assert!(!state.has(name), "the world has a device {name}");
        state.dirs.push(DirState::new(name));
        drop(state);
        self.dir(name)
    }

    /// The pool `name`.
    ///
    /// # Panics
    /// If there is none.
    pub fn pool(&self, name: &str) -> SimPool {
        let state = self.state();
        let index = state.pools.iter().position(|pool| &*pool.name == name);
        let index = index.unwrap_or_else(|| panic!("the world has no pool {name}"));
        SimPool::new(self.clone(), index, &state.pools[index])
    }

    /// The directory `name`.
    ///
    /// # Panics
    /// If there is none.
    pub fn dir(&self, name: &str) -> SimDir {
        let state = self.state();
        let index = state.dirs.iter().position(|dir| &*dir.name == name);
        let index = index.unwrap_or_else(|| panic!("the world has no directory {name}"));
        SimDir::new(self.clone(), index, state.dirs[index].name.clone())
    }

    /// How many persist events there were.
    pub fn events(&self) -> u64 {
        self.shared.events.load(Ordering::Acquire)
    }

    /// Calls `hook` before every persist event from now on; `None` ends that. The hook must not use this
    /// world's devices, except to capture it.
    pub fn on_event(&self, hook: Option<Hook>) {
        let mut slot = self.shared.hook.lock();
        self.shared.hooked.store(hook.is_some(), Ordering::Release);
        *slot = hook;
    }

    #[track_caller]
    pub(crate) fn event(&self, kind: EventKind) {
        let number = self.shared.events.fetch_add(1, Ordering::AcqRel) + 1;
        if self.shared.hooked.load(Ordering::Acquire) {
            let hook = self.shared.hook.lock().clone();
            if let Some(hook) = hook {
                hook(self, &Event { number, kind, at: Location::caller() });
            }
        }
    }
}

impl State {
    fn has(&self, name: &str) -> bool {
        self.pools.iter().any(|pool| &*pool.name == name) || self.dirs.iter().any(|dir| &*dir.name == name)
    }
}
