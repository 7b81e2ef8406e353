//! Opportunistic thread combining (PRISM, section 5.3): requests that threads make at the same time go
//! to the device as one batch.
//!
//! A thread queues its requests. If a port to the device is free and nobody leads, it is the leader: it
//! takes what is queued, up to the batch limit, runs it on the port, and wakes each owner as its
//! request completes. While all ports are busy, requests gather in the queue; a leader whose batch is
//! complete hands its port to the first thread in the queue, which leads the next batch. So a lone
//! thread never waits for company, batches grow with the load and without a timer, and as many batches
//! are in flight as there are ports. No thread runs for this alone, and none spins.
//!
//! The queue is a list behind a short latch, where the paper swaps the tail of an MCS queue. With a time
//! window, a leader instead waits that long for its batch to fill: the paper's timeout-based
//! alternative, kept for comparison.
//!
//! Invariants
//! 1. A port is free, or on its way to one leader, or with it.
//! 2. If requests are queued and nobody was named to lead them, no port is free.
//! 3. Who was named leader owns the first request in the queue until it takes its batch.
//! 4. [`Combiner::run`] returns, or unwinds, only when none of its requests is with a port.

use std::collections::VecDeque;
use std::mem;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use sync::{Arc, Mutex, MutexGuard, Thread};

#[cfg(not(loom))]
mod sync {
    pub use std::sync::{Arc, Mutex, MutexGuard};
    pub use std::thread::{Thread, current, park, park_timeout};
}

#[cfg(loom)]
mod sync {
    pub use loom::sync::{Arc, Mutex, MutexGuard};
    pub use loom::thread::{Thread, current, park};

    /// Time has no meaning in a model: a window ends at once, or after any number of yields.
    pub fn park_timeout(_: std::time::Duration) {
        loom::thread::yield_now();
    }
}

/// What carries batches to a device.
pub trait Port: Send {
    /// One request.
    type Request: Send;
    /// What became of one.
    type Outcome: Send;

    /// Starts all of `requests`, and calls `done` with the position of each as it completes. Returns when
    /// all have completed; if it unwinds, none is being worked on any more.
    fn run(&mut self, requests: &[Self::Request], done: &mut dyn FnMut(usize, Self::Outcome));
}

/// How often requests went to the device together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Combined {
    /// Batches that leaders ran.
    pub batches: u64,
    /// Requests in them.
    pub requests: u64,
}

/// The queue in front of a device's ports.
pub struct Combiner<P: Port> {
    queue: Mutex<Queue<P>>,
    limit: usize,
    window: Option<Duration>,
}

struct Queue<P: Port> {
    waiting: VecDeque<Waiting<P>>,
    free: Vec<Seat<P>>,
    /// A leader was named and has not yet taken its batch.
    leading: bool,
    combined: Combined,
}

/// A queued request, and whose it is: position `index` of `call`.
struct Waiting<P: Port> {
    request: P::Request,
    call: Arc<Call<P>>,
    index: usize,
}

/// A port with the batch on it. The lists keep their memory from one batch to the next.
struct Seat<P: Port> {
    port: P,
    requests: Vec<P::Request>,
    owners: Vec<Option<(Arc<Call<P>>, usize)>>,
}

/// One thread's requests, and where it waits for them.
struct Call<P: Port> {
    thread: Thread,
    state: Mutex<CallState<P>>,
}

struct CallState<P: Port> {
    outcomes: Vec<Option<P::Outcome>>,
    left: usize,
    /// Set when this thread is named leader.
    seat: Option<Seat<P>>,
}

// Nothing here panics while a latch is held, so a poisoned one guards a whole state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<P: Port> Combiner<P> {
    /// A queue in front of `ports`, at least one, whose batches hold at most `limit` requests, at least one.
    /// With a `window`, a leader waits that long for its batch to fill.
    pub fn new(ports: Vec<P>, limit: usize, window: Option<Duration>) -> Self {
        assert!(!ports.is_empty() && limit > 0, "a combiner needs a port, and batches of at least one");
        let seat = |port| Seat { port, requests: Vec::new(), owners: Vec::new() };
        Combiner {
            queue: Mutex::new(Queue {
                waiting: VecDeque::new(),
                free: ports.into_iter().map(seat).collect(),
                leading: false,
                combined: Combined::default(),
            }),
            limit,
            window,
        }
    }

    /// What was combined so far.
    pub fn combined(&self) -> Combined {
        lock(&self.queue).combined
    }

    /// Runs `requests` in batches with those of other threads, and returns their outcomes in the same
    /// order. An outcome is `None` if the leader of its batch panicked.
    pub fn run(&self, requests: impl Iterator<Item = P::Request>) -> Vec<Option<P::Outcome>> {
        let call = Arc::new(Call {
            thread: sync::current(),
            state: Mutex::new(CallState { outcomes: Vec::new(), left: 0, seat: None }),
        });
        let waiting: VecDeque<_> = requests
            .enumerate()
            .map(|(index, request)| Waiting { request, call: call.clone(), index })
            .collect();
        {
            let mut state = lock(&call.state);
            state.left = waiting.len();
            state.outcomes.resize_with(waiting.len(), || None);
        }
        if let Some(seat) = self.enqueue(waiting) {
            self.lead(seat);
        }
        loop {
            let mut state = lock(&call.state);
            match state.seat.take() {
                Some(seat) => {
                    drop(state);
                    self.lead(seat);
                }
                None if state.left == 0 => return mem::take(&mut state.outcomes),
                None => {
                    drop(state);
                    sync::park();
                }
            }
        }
    }

    /// Queues one thread's requests. Returns a seat if that thread is to lead them.
    fn enqueue(&self, mut requests: VecDeque<Waiting<P>>) -> Option<Seat<P>> {
        let mut queue = lock(&self.queue);
        let before = queue.waiting.len();
        queue.waiting.append(&mut requests);
        if queue.leading {
            let full = before < self.limit && queue.waiting.len() >= self.limit;
            if let Some(first) = queue.waiting.front().filter(|_| full && self.window.is_some()) {
                first.call.thread.unpark();
            }
        }
        // If it is a leader's turn, the queue was empty until now (invariant 2), so it is the caller's.
        self.name_leader(&mut queue).map(|(_, seat)| seat)
    }

    /// Restores invariant 2. The seat is to be given to the thread of the call.
    fn name_leader(&self, queue: &mut Queue<P>) -> Option<(Arc<Call<P>>, Seat<P>)> {
        if queue.leading {
            return None;
        }
        let first = queue.waiting.front()?.call.clone();
        let seat = queue.free.pop()?;
        queue.leading = true;
        Some((first, seat))
    }

    /// Takes a batch, runs it, and passes the seat on.
    fn lead(&self, seat: Seat<P>) {
        let mut turn = Turn { combiner: self, seat: Some(seat) };
        let Some(seat) = &mut turn.seat else { return };
        if let Some(window) = self.window {
            self.gather(Instant::now().checked_add(window));
        }
        self.take_batch(seat);
        let Seat { port, requests, owners } = seat;
        port.run(requests, &mut |position, outcome| {
            if let Some((owner, index)) = owners.get_mut(position).and_then(Option::take) {
                owner.complete(index, Some(outcome));
            }
        });
    }

    /// Waits until `until`, or where that is never, until a batch is full.
    fn gather(&self, until: Option<Instant>) {
        loop {
            let rest = until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
            if rest.is_zero() || lock(&self.queue).waiting.len() >= self.limit {
                return;
            }
            sync::park_timeout(rest);
        }
    }

    fn take_batch(&self, seat: &mut Seat<P>) {
        let mut queue = lock(&self.queue);
        let count = queue.waiting.len().min(self.limit);
        for Waiting { request, call, index } in queue.waiting.drain(..count) {
            seat.requests.push(request);
            seat.owners.push(Some((call, index)));
        }
        queue.combined.batches += 1;
        queue.combined.requests += count as u64;
        queue.leading = false;
        let next = self.name_leader(&mut queue);
        drop(queue);
        Self::give(next);
    }

    fn give(turn: Option<(Arc<Call<P>>, Seat<P>)>) {
        if let Some((call, seat)) = turn {
            lock(&call.state).seat = Some(seat);
            call.thread.unpark();
        }
    }
}

impl<P: Port> Call<P> {
    /// Records what became of request `index`, and wakes the owner after the last.
    fn complete(&self, index: usize, outcome: Option<P::Outcome>) {
        let mut state = lock(&self.state);
        if let Some(slot) = state.outcomes.get_mut(index) {
            *slot = outcome;
        }
        state.left -= 1;
        let last = state.left == 0;
        drop(state);
        if last {
            self.thread.unpark();
        }
    }
}

/// A leader's time on its seat. Dropping it passes the seat on; what has no outcome by then, because the
/// leader panicked, never will have one.
struct Turn<'a, P: Port> {
    combiner: &'a Combiner<P>,
    seat: Option<Seat<P>>,
}

impl<P: Port> Drop for Turn<'_, P> {
    fn drop(&mut self) {
        let Some(mut seat) = self.seat.take() else { return };
        seat.requests.clear();
        for (call, index) in seat.owners.drain(..).flatten() {
            call.complete(index, None);
        }
        let next = {
            let mut queue = lock(&self.combiner.queue);
            queue.free.push(seat);
            self.combiner.name_leader(&mut queue)
        };
        Combiner::give(next);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    /// Reports each batch, waits until it is let go, and answers each request with its square.
    struct Gate {
        batches: Sender<Vec<u64>>,
        go: Arc<Mutex<Receiver<()>>>,
    }

    impl Port for Gate {
        type Request = u64;
        type Outcome = u64;

        fn run(&mut self, requests: &[u64], done: &mut dyn FnMut(usize, u64)) {
            self.batches.send(requests.to_vec()).expect("the test listens");
            lock(&self.go).recv().expect("the test lets it go");
            for (position, request) in requests.iter().enumerate().rev() {
                assert_ne!(*request, UNLUCKY, "on purpose");
                done(position, request * request);
            }
        }
    }

    const UNLUCKY: u64 = 13;

    /// How long a thread that is to do something may not come to run.
    const PATIENCE: Duration = Duration::from_secs(60);

    struct Rig {
        combiner: Arc<Combiner<Gate>>,
        batches: Receiver<Vec<u64>>,
        go: Sender<()>,
        threads: Vec<thread::JoinHandle<()>>,
    }

    impl Rig {
        fn new(ports: usize, limit: usize, window: Option<Duration>) -> Self {
            let (sender, batches) = channel();
            let (go, receiver) = channel();
            let receiver = Arc::new(Mutex::new(receiver));
            let ports = (0..ports).map(|_| Gate { batches: sender.clone(), go: receiver.clone() }).collect();
            let combiner = Arc::new(Combiner::new(ports, limit, window));
            Rig { combiner, batches, go, threads: Vec::new() }
        }

        /// Has a new thread ask for `requests`.
        fn spawn(&mut self, requests: Vec<u64>, expected: Vec<Option<u64>>) {
            let combiner = self.combiner.clone();
            self.threads.push(thread::spawn(move || {
                let run = std::panic::AssertUnwindSafe(|| combiner.run(requests.into_iter()));
                if let Ok(outcomes) = std::panic::catch_unwind(run) {
                    assert_eq!(outcomes, expected);
                }
            }));
        }

        /// The same, and waits until `queued` are queued, and stay so until the test goes on.
        fn ask(&mut self, requests: Vec<u64>, expected: Vec<Option<u64>>, queued: usize) {
            self.spawn(requests, expected);
            let end = Instant::now() + PATIENCE;
            while lock(&self.combiner.queue).waiting.len() != queued {
                assert!(Instant::now() < end, "{queued} requests were to be queued");
                thread::sleep(Duration::from_micros(100));
            }
        }

        fn batch(&self) -> Vec<u64> {
            self.batches.recv_timeout(PATIENCE).expect("a batch")
        }

        fn go(&self) {
            self.go.send(()).expect("a port waits");
        }

        fn end(self) -> Combined {
            for thread in self.threads {
                thread.join().expect("every thread has its outcomes");
            }
            assert!(self.batches.try_recv().is_err());
            self.combiner.combined()
        }
    }

    #[test]
    fn what_gathers_behind_a_busy_port_goes_together_up_to_the_limit() {
        let mut rig = Rig::new(1, 4, None);
        rig.ask(vec![1], vec![Some(1)], 0);
        assert_eq!(rig.batch(), [1]);
        for i in 2..8 {
            rig.ask(vec![i], vec![Some(i * i)], i as usize - 1);
        }
        rig.go();
        assert_eq!(rig.batch(), [2, 3, 4, 5]);
        rig.go();
        assert_eq!(rig.batch(), [6, 7]);
        rig.go();
        assert_eq!(rig.end(), Combined { batches: 3, requests: 7 });
    }

    #[test]
    fn a_free_port_takes_the_next_batch_while_another_is_in_flight() {
        let mut rig = Rig::new(2, 4, None);
        for i in 1..3 {
            rig.ask(vec![i], vec![Some(i * i)], 0);
            assert_eq!(rig.batch(), [i]);
        }
        rig.ask(vec![3, 4], vec![Some(9), Some(16)], 2);
        rig.go();
        assert_eq!(rig.batch(), [3, 4]);
        rig.go();
        rig.go();
        assert_eq!(rig.end(), Combined { batches: 3, requests: 4 });
    }

    #[test]
    fn one_callers_requests_may_be_parts_of_several_batches() {
        let mut rig = Rig::new(1, 2, None);
        rig.ask(vec![1], vec![Some(1)], 0);
        assert_eq!(rig.batch(), [1]);
        rig.ask(vec![2], vec![Some(4)], 1);
        rig.ask(vec![3, 4, 5, 6], vec![Some(9), Some(16), Some(25), Some(36)], 5);
        for expected in [vec![2, 3], vec![4, 5], vec![6]] {
            rig.go();
            assert_eq!(rig.batch(), expected);
        }
        rig.go();
        assert_eq!(rig.end(), Combined { batches: 4, requests: 6 });
    }

    #[test]
    fn a_window_waits_for_company_and_ends_when_the_batch_is_full() {
        let mut rig = Rig::new(2, 3, Some(Duration::from_secs(3600)));
        rig.ask(vec![1], vec![Some(1)], 1);
        rig.ask(vec![2], vec![Some(4)], 2);
        rig.ask(vec![3], vec![Some(9)], 0);
        assert_eq!(rig.batch(), [1, 2, 3]);
        rig.go();
        // What a full batch leaves behind goes by the other port at once.
        rig.ask(vec![1, 2], vec![Some(1), Some(4)], 2);
        rig.ask(vec![3, 4, 5, 6], vec![Some(9), Some(16), Some(25), Some(36)], 0);
        let mut both = [rig.batch(), rig.batch()];
        both.sort();
        assert_eq!(both, [[1, 2, 3], [4, 5, 6]]);
        rig.go();
        rig.go();
        assert_eq!(rig.end(), Combined { batches: 3, requests: 9 });

        let mut rig = Rig::new(2, 3, Some(Duration::from_millis(20)));
        let start = Instant::now();
        // It is queued for the window's length only: too short to look for it there.
        rig.spawn(vec![1], vec![Some(1)]);
        assert_eq!(rig.batch(), [1]);
        assert!(start.elapsed() >= Duration::from_millis(20));
        rig.go();
        rig.end();
    }

    #[test]
    fn a_leader_that_panics_leaves_no_one_waiting() {
        let mut rig = Rig::new(1, 8, None);
        rig.ask(vec![1], vec![Some(1)], 0);
        assert_eq!(rig.batch(), [1]);
        rig.ask(vec![UNLUCKY], vec![], 1);
        rig.ask(vec![2], vec![Some(4)], 2);
        rig.go();
        assert_eq!(rig.batch(), [UNLUCKY, 2]);
        rig.ask(vec![3], vec![Some(9)], 1);
        rig.go();
        assert_eq!(rig.batch(), [3]);
        rig.go();
        assert_eq!(rig.end(), Combined { batches: 3, requests: 4 });
    }
}
