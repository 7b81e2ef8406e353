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

#[cfg(test)]
mod tests {
    use super::in_parallel;
    use tierdb_base::Error;

    #[test]
    fn what_is_returned_comes_in_the_order_of_the_parts() {
        let items: Vec<u32> = (0..100).collect();
        for threads in [0, 1, 3, 8, 1000] {
            let parts = in_parallel(&items, threads, |part| Ok(part.to_vec())).expect("no part fails");
            assert_eq!(parts.concat(), items, "{threads} threads");
            assert!(parts.len() <= threads.max(1), "{} parts for {threads} threads", parts.len());
        }
        assert_eq!(in_parallel(&[] as &[u32], 4, |part| Ok(part.len())).expect("no part fails"), [0]);
    }

    #[test]
    fn the_first_error_is_that_of_the_first_part_that_fails() {
        let items: Vec<u32> = (0..100).collect();
        let fail = |part: &[u32]| match part.iter().find(|item| **item % 40 == 39) {
            Some(item) => Err(Error::invalid(format!("{item}"))),
            None => Ok(()),
        };
        for threads in [1, 2, 8] {
            let failed = in_parallel(&items, threads, fail).expect_err("two of them fail");
            assert!(failed.to_string().contains("39"), "{threads} threads: {failed}");
        }
    }
}
