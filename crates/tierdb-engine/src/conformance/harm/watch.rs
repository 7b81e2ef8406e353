//! Ends the process if a step takes so long that it will not end, and says which one.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time a step may take. They take milliseconds; machines that run tests are busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// A watch over steps that follow one another.
pub struct Watch<T> {
    step: Arc<Mutex<(Instant, Option<T>)>>,
    stop: Arc<AtomicBool>,
}

impl<T: std::fmt::Debug + Send + 'static> Watch<T> {
    /// No step yet.
    #[allow(clippy::new_without_default, reason = "it starts a thread")]
    pub fn new() -> Self {
        let step = Arc::new(Mutex::new((Instant::now(), None::<T>)));
        let stop = Arc::new(AtomicBool::new(false));
        let (watched, stopped) = (step.clone(), stop.clone());
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_secs(1));
                let step = watched.lock();
                if step.0.elapsed() > PATIENCE {
                    eprintln!("this hangs: {:?}", step.1);
                    std::process::abort();
                }
            }
        });
        Watch { step, stop }
    }

    /// A new step begins.
    pub fn begin(&self, what: T) {
        *self.step.lock() = (Instant::now(), Some(what));
    }
}

impl<T> Drop for Watch<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}
