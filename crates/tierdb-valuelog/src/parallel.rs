//! Work on the parts of a list, on several threads.

use std::thread::{Builder, ScopedJoinHandle};
use tierdb_base::Result;

/// Runs `work` on parts of `items`, on this thread if `threads` is 1, and returns what it returns, in their order.
///
/// # Errors
/// The first error of a part.
pub fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&[T]) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let threads = threads.clamp(1, items.len().max(1));
    if threads == 1 {
        return work(items).map(|done| vec![done]);
    }
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let parts = items.chunks(items.len().div_ceil(threads));
        let work = &work;
        let start = |part| Builder::new().spawn_scoped(scope, move || work(part)).map_err(|_| part);
        let running: Vec<_> = parts.map(start).collect();
        let done = |running| match running {
            Ok(thread) => ScopedJoinHandle::join(thread),
            // There are no more threads to be had.
            Err(part) => Ok(work(part)),
        };
        running.into_iter().map(done).collect()
    });
    outcomes.into_iter().map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}
