//! How many threads can run at once.

use std::sync::OnceLock;

/// Processors that this process may use, 2 if the system does not say. Asked once: that reads files of control groups.
pub fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(2, usize::from))
}
