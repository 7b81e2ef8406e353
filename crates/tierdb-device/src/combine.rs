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
            self.gather(Instant::now() + window);
        }
        self.take_batch(seat);
        let Seat { port, requests, owners } = seat;
        port.run(requests, &mut |position, outcome| {
            if let Some((owner, index)) = owners.get_mut(position).and_then(Option::take) {
                owner.complete(index, Some(outcome));
            }
        });
    }

    fn gather(&self, until: Instant) {
        loop {
            let rest = until.saturating_duration_since(Instant::now());
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
