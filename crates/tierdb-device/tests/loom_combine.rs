//! The protocol of the combining queue, under every interleaving of a few threads.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tierdb-device --test loom_combine`
#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use tierdb_device::combine::{Combined, Combiner, Port};

/// Answers each request with its square, the last first.
struct Square;

impl Port for Square {
    type Request = u64;
    type Outcome = u64;

    fn run(&mut self, requests: &[u64], done: &mut dyn FnMut(usize, u64)) {
        thread::yield_now();
        for (position, request) in requests.iter().enumerate().rev() {
            done(position, request * request);
        }
    }
}

/// Each of `calls` on a thread of its own: every caller gets its outcomes, whoever led, and the queue is
/// at rest in the end.
fn model(ports: usize, limit: usize, calls: &'static [&'static [u64]]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let combiner = Arc::new(Combiner::new((0..ports).map(|_| Square).collect(), limit, None));
        let run = |combiner: &Combiner<Square>, call: &[u64]| {
            let outcomes = combiner.run(call.iter().copied());
            assert_eq!(outcomes, call.iter().map(|request| Some(request * request)).collect::<Vec<_>>());
        };
        let (own, others) = calls.split_first().expect("at least one call");
        let others: Vec<_> = others
            .iter()
            .map(|call| {
                let combiner = combiner.clone();
                thread::spawn(move || run(&combiner, call))
            })
            .collect();
        run(&combiner, own);
        for other in others {
            other.join().expect("it had its outcomes");
        }
        let Combined { batches, requests } = combiner.combined();
        assert_eq!(requests, calls.iter().map(|call| call.len() as u64).sum::<u64>());
        assert!(batches <= requests && batches * limit as u64 >= requests);
        // All ports are free again: the next one leads at once.
        run(&combiner, &[9]);
        assert_eq!(combiner.combined().batches, batches + 1);
    });
}

#[test]
fn three_threads_share_a_port() {
    model(1, 64, &[&[1], &[2], &[3]]);
}

#[test]
fn three_threads_share_two_ports() {
    model(2, 64, &[&[1], &[2], &[3]]);
}

#[test]
fn batches_at_their_limit_pass_the_lead_on() {
    model(1, 1, &[&[1], &[2], &[3]]);
}

#[test]
fn a_call_is_split_between_batches_of_different_leaders() {
    model(2, 2, &[&[1, 2, 3], &[4, 5]]);
}
