//! Work on the parts of a list, on several threads.

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
        let running: Vec<_> = parts.map(|part| scope.spawn(|| work(part))).collect();
        running.into_iter().map(|thread| thread.join()).collect()
    });
    outcomes.into_iter().map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
}
