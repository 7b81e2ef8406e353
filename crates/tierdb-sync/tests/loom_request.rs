//! Requests for work, under every interleaving of a few threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tierdb-sync --test loom_request`
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use std::sync::atomic::Ordering;
use tierdb_sync::Request;
use tierdb_sync::switch::{AtomicU64, explore};

/// Somebody has asked already when two more write something and ask, and the work begins.
#[test]
fn work_sees_what_was_written_before_an_ask_that_wakes_nobody() {
    explore(|| {
        let request = Arc::new(Request::default());
        assert!(request.ask() && request.is_asked());
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let (request, written) = (request.clone(), Arc::new(AtomicU64::new(0)));
                let of_thread = written.clone();
                let thread = thread::spawn(move || {
                    of_thread.store(1, Ordering::Relaxed);
                    request.ask()
                });
                (thread, written)
            })
            .collect();
        request.take();
        let seen: Vec<u64> = writers.iter().map(|(_, written)| written.load(Ordering::Relaxed)).collect();
        let mut told = 0;
        for ((thread, _), seen) in writers.into_iter().zip(seen) {
            if thread.join().expect("no thread fails") {
                told += 1;
            } else {
                // Who came after one that was told to wake the worker is served by the next round.
                assert!(seen == 1 || request.is_asked(), "neither this round nor the next sees it");
            }
        }
        assert_eq!(told, usize::from(request.is_asked()), "one wakes the worker for the next round");
    });
}
