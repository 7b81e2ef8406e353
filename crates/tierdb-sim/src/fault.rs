//! Fault plans: the N-th operation on files fails, once or from then on.

use crate::world::World;
use parking_lot::Mutex;
use std::io;
use std::ops::BitOr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Classes of file operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ops(u8);

impl Ops {
    /// Reads.
    pub const READ: Ops = Ops(1);
    /// Writes, durable or not.
    pub const WRITE: Ops = Ops(2);
    /// Syncs of files and directories.
    pub const SYNC: Ops = Ops(4);
    /// Changes of a file's length.
    pub const RESIZE: Ops = Ops(8);
    /// Creations, removals and renames.
    pub const NAMES: Ops = Ops(16);
    /// Opening a file that is there, its length, and listing a directory.
    pub const LOOKUP: Ops = Ops(32);
    /// Every class.
    pub const ALL: Ops = Ops(63);

    fn has(self, class: Ops) -> bool {
        self.0 & class.0 != 0
    }
}

impl BitOr for Ops {
    type Output = Ops;
    fn bitor(self, other: Ops) -> Ops {
        Ops(self.0 | other.0)
    }
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// EIO. A write leaves any of its sectors changed; a sync leaves it unknown, for good, what is durable; a change of a name or a length
    /// has been made, or not.
    Eio,
    /// ENOSPC, for whatever takes space. Nothing is changed.
    Enospc,
    /// A read or write that ends early and cannot be finished: the first sectors are transferred.
    Short,
    /// EINTR that does not go away. Nothing is changed.
    Interrupted,
    /// A sync that fails, as for [`FaultKind::Eio`]; other operations succeed.
    SyncError,
    /// The operation takes this long, then succeeds.
    Stall(Duration),
    /// The thread panics, as one does that meets a bug. Nothing is changed.
    Panic,
}

impl FaultKind {
    /// The classes it can happen to.
    fn applies_to(self) -> Ops {
        match self {
            FaultKind::Eio | FaultKind::Interrupted | FaultKind::Stall(_) | FaultKind::Panic => Ops::ALL,
            FaultKind::Enospc => Ops::WRITE | Ops::SYNC | Ops::RESIZE | Ops::NAMES,
            FaultKind::Short => Ops::READ | Ops::WRITE,
            FaultKind::SyncError => Ops::SYNC,
        }
    }

    pub(crate) fn error(self, class: Ops) -> io::Error {
        const EIO: i32 = 5;
        const ENOSPC: i32 = 28;
        match self {
            FaultKind::Enospc => io::Error::from_raw_os_error(ENOSPC),
            FaultKind::Interrupted => io::ErrorKind::Interrupted.into(),
            FaultKind::Short if class == Ops::READ => io::ErrorKind::UnexpectedEof.into(),
            FaultKind::Short => io::ErrorKind::WriteZero.into(),
            FaultKind::Eio | FaultKind::SyncError | FaultKind::Stall(_) | FaultKind::Panic => {
                io::Error::from_raw_os_error(EIO)
            }
        }
    }
}

/// Which operation fails, and how.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// The first operation that fails, counted from 1 over the operations that `ops`, `device` and the
    /// kind select.
    pub nth: u64,
    /// How it fails.
    pub kind: FaultKind,
    /// Whether all selected operations after it fail too.
    pub persistent: bool,
    /// Which classes are counted.
    pub ops: Ops,
    /// Count only operations in this directory.
    pub device: Option<String>,
}

impl FaultPlan {
    /// The `nth` operation of any class on any device fails once.
    pub fn nth(nth: u64, kind: FaultKind) -> Self {
        FaultPlan { nth, kind, persistent: false, ops: Ops::ALL, device: None }
    }

    /// From the `nth` operation of any class on any device, all fail.
    pub fn from_nth(nth: u64, kind: FaultKind) -> Self {
        FaultPlan { persistent: true, ..Self::nth(nth, kind) }
    }

    /// The same plan for the operations in `ops` alone.
    #[must_use]
    pub fn on(self, ops: Ops) -> Self {
        FaultPlan { ops, ..self }
    }

    /// The same plan for one directory alone.
    #[must_use]
    pub fn in_dir(self, device: &str) -> Self {
        FaultPlan { device: Some(device.into()), ..self }
    }
}

/// What a plan has met so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCount {
    /// Operations that the plan selects.
    pub seen: u64,
    /// Those that failed or stalled.
    pub hit: u64,
}

#[derive(Default)]
pub(crate) struct Faults {
    armed: AtomicBool,
    plan: Mutex<(Option<FaultPlan>, FaultCount)>,
}

/// A failure to report, and what it does on the way.
pub(crate) struct Injected {
    pub error: io::Error,
    pub kind: FaultKind,
    /// Chooses what a failed change has changed.
    pub seed: u64,
}

impl Injected {
    /// Whether a change that is made whole or not at all has been made.
    pub fn is_made(&self) -> bool {
        self.kind == FaultKind::Eio && self.seed.is_multiple_of(2)
    }
}

impl World {
    /// Installs `plan` in place of any other, and starts to count.
    pub fn inject(&self, plan: FaultPlan) {
        *self.shared.faults.plan.lock() = (Some(plan), FaultCount::default());
        self.shared.faults.armed.store(true, Ordering::Release);
    }

    /// Ends the plan, and says what it met. Devices work again; what was lost stays lost.
    pub fn heal(&self) -> FaultCount {
        self.shared.faults.armed.store(false, Ordering::Release);
        let mut plan = self.shared.faults.plan.lock();
        plan.0 = None;
        plan.1
    }

    /// Whether the next operation that the plan selects fails, because all do from an earlier one on.
    pub fn is_failing(&self) -> bool {
        let plan = self.shared.faults.plan.lock();
        plan.0.as_ref().is_some_and(|installed| installed.persistent && plan.1.hit > 0)
    }

    /// What the plan installed last has met.
    pub fn faults(&self) -> FaultCount {
        self.shared.faults.plan.lock().1
    }

    pub(crate) fn fault(&self, class: Ops, device: &str) -> Option<Injected> {
        let faults = &self.shared.faults;
        if !faults.armed.load(Ordering::Acquire) {
            return None;
        }
        let mut guard = faults.plan.lock();
        let (plan, count) = &mut *guard;
        let plan = plan.as_ref()?;
        let selected = plan.ops.has(class)
            && plan.kind.applies_to().has(class)
            && plan.device.as_deref().is_none_or(|only| only == device);
        if !selected {
            return None;
        }
        count.seen += 1;
        if count.seen != plan.nth && !(plan.persistent && count.seen > plan.nth) {
            return None;
        }
        count.hit += 1;
        // Other than if the same operation is the first of many.
        let (kind, seed) = (plan.kind, count.seen + u64::from(plan.persistent));
        drop(guard);
        if let FaultKind::Stall(time) = kind {
            std::thread::sleep(time);
            return None;
        }
        assert!(kind != FaultKind::Panic, "a panic that a test asked for");
        Some(Injected { error: kind.error(class), kind, seed })
    }
}
