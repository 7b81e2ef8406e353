//! Ends the process if a step takes so long that it will not end, and says which one.

use parking_lot::Mutex;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Seconds that a step may take at most. They take milliseconds; machines that run tests are busy.
const PATIENCE: u32 = 120;

/// A watch over steps that follow one another.
pub struct Watch<T> {
    /// How often the watch has looked at it, once a second, and what it is. While the process is stopped nobody looks, so that time
    /// does not count.
    step: Arc<Mutex<(u32, Option<T>)>>,
    stop: Arc<AtomicBool>,
}

impl<T: std::fmt::Debug + Send + 'static> Watch<T> {
    /// No step yet.
    #[allow(clippy::new_without_default, reason = "it starts a thread")]
    pub fn new() -> Self {
        let step = Arc::new(Mutex::new((0, None::<T>)));
        let stop = Arc::new(AtomicBool::new(false));
        let (watched, stopped) = (step.clone(), stop.clone());
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_secs(1));
                let mut step = watched.lock();
                step.0 += 1;
                if step.0 > PATIENCE {
                    // Not by the macro, whose output a test keeps to itself until it ends.
                    let _ = writeln!(std::io::stderr(), "this hangs: {:?}", step.1);
                    std::process::abort();
                }
            }
        });
        Watch { step, stop }
    }

    /// A new step begins.
    pub fn begin(&self, what: T) {
        *self.step.lock() = (0, Some(what));
    }
}

impl<T> Drop for Watch<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}
