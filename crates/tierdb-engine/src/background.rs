//! The threads that do an engine's background work, and how they are woken.

use crate::media::Background;
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use tierdb_base::{Error, FailureLatch, Result};
use tierdb_sync::Request;

/// Time between what is asked for and its being done, in which others ask for the same: half of the five milliseconds that
/// a grouped write may stay volatile. The other half is for the commit.
const PAUSE: Duration = Duration::from_micros(2500);

/// Wakes a thread that does one kind of work soon after it was asked for, once for all who asked meanwhile.
///
/// What has to be done in time, as a commit of grouped writes, has a thread and a wake-up of its own: others may take as long as
/// a checkpoint does.
#[derive(Default)]
pub struct Wakeup {
    asked: Request,
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Wakeup {
    /// Asks for the work. Nothing if no thread does it.
    pub fn ask(&self) {
        if self.asked.ask() {
            let _stopped = self.stopped.lock();
            self.changed.notify_one();
        }
    }

    /// What the thread does: `work`, soon after each [`Wakeup::ask`], until it is stopped.
    pub fn run(&self, mut work: impl FnMut()) {
        loop {
            {
                let mut stopped = self.stopped.lock();
                while !*stopped && !self.asked.is_asked() {
                    self.changed.wait(&mut stopped);
                }
                if *stopped {
                    return;
                }
            }
            std::thread::sleep(PAUSE);
            self.asked.take();
            work();
        }
    }

    /// Ends [`Wakeup::run`]. What was asked for and not done yet is the caller's to do.
    pub fn stop(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }
}

/// What one background thread does: its name, and the work on the core of a store.
pub type Job<C> = (&'static str, fn(&C));

/// The background threads of a store.
#[derive(Default)]
pub struct Threads(Mutex<Vec<JoinHandle<()>>>);

impl Threads {
    /// Starts a thread for each of `jobs` on `core`, if its work is done by `background` threads; those that run end when told by `stop`, as
    /// they are here if not all can be started. One that panics sets `latch` and stops the others: nobody waits for what it would have done.
    ///
    /// # Errors
    /// `Io` if the system starts no more threads.
    pub fn start<C: Send + Sync + 'static>(
        core: &Arc<C>,
        background: Background,
        jobs: &[Job<C>],
        latch: &FailureLatch,
        stop: fn(&C),
    ) -> Result<Self> {
        let threads = Self::default();
        if background == Background::Inline {
            return Ok(threads);
        }
        for (name, run) in jobs.iter().copied() {
            let (of_thread, latch) = (core.clone(), latch.clone());
            let work = move || {
                let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&of_thread))) else { return };
                latch.set(Error::invalid(format!("the background thread {name} panicked")));
                stop(&of_thread);
                resume_unwind(panic);
            };
            match Builder::new().name(format!("tierdb-{name}")).spawn(work) {
                Ok(thread) => threads.0.lock().push(thread),
                Err(source) => {
                    stop(core);
                    threads.join();
                    return Err(Error::io("start of a thread", name, 0, source));
                }
            }
        }
        Ok(threads)
    }

    /// Waits for all to end, as they were told to.
    pub fn join(&self) {
        for thread in self.0.lock().drain(..) {
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_stops_the_others_and_the_store() {
        let (wakeup, latch) = (Arc::new(Wakeup::default()), FailureLatch::new());
        let jobs: [Job<Wakeup>; 2] =
            [("waits", |wakeup| wakeup.run(|| ())), ("panics", |_| panic!("on purpose"))];
        let threads =
            Threads::start(&wakeup, Background::Threads, &jobs, &latch, Wakeup::stop).expect("threads");
        threads.join();
        let refused = latch.check().expect_err("it is set").to_string();
        assert!(refused.contains("the background thread panics panicked"), "{refused}");
    }
}
