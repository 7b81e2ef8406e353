//! Grouped writes, durable in time.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest time a grouped write stays volatile, but for what media take.
const GROUP_DELAY: Duration = Duration::from_millis(5);

/// Wakes the thread that makes grouped writes durable. It does nothing else: whatever takes longer than
/// the five milliseconds that such a write may stay volatile, as a checkpoint does, is another thread's.
#[derive(Default)]
pub struct GroupCommit {
    asked: AtomicBool,
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl GroupCommit {
    /// A grouped write was acknowledged.
    pub fn ask(&self) {
        if !self.asked.swap(true, Ordering::AcqRel) {
            let _stopped = self.stopped.lock();
            self.changed.notify_one();
        }
    }

    /// What the thread does: calls `commit`, which makes durable what was acknowledged before, soon after each
    /// [`GroupCommit::ask`], until it is stopped.
    pub fn run(&self, mut commit: impl FnMut()) {
        loop {
            {
                let mut stopped = self.stopped.lock();
                while !*stopped && !self.asked.load(Ordering::Acquire) {
                    self.changed.wait(&mut stopped);
                }
                if *stopped {
                    return;
                }
            }
            // Others join the group. The other half is for the commit.
            std::thread::sleep(GROUP_DELAY / 2);
            self.asked.store(false, Ordering::Release);
            commit();
        }
    }

    /// Ends [`GroupCommit::run`]. What was asked for and not committed yet is the caller's to commit.
    pub fn stop(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }
}
