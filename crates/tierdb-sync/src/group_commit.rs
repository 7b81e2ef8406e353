//! Group commit: of the threads that wait until what they appended is durable, one at a time writes a block for all.
//!
//! Whoever waits first has the turn: it takes the buffer and writes it as one block. Who comes meanwhile waits, and one of
//! them writes the next. So groups form by themselves, without a timer and without a thread.
//!
//! Left to that alone, writers that do nothing else would fall into two halves, each of which waits while the block of the
//! other is written: twice the blocks, and twice the time. So who is to write a block lets those come back first whom the
//! last one has let go ([`Turn::gather`]): for about a quarter of the time that a block takes, or until it comes to run again
//! itself; only as many as came the last time; and seldom where other threads have so much to do that it takes long.
//!
//! Invariants
//! 1. One thread has the turn. What is durable, and who is counted, changes under the latch alone.
//! 2. Nobody goes to sleep whose bytes are durable. So when a turn is over, those asleep for its block are woken, and one of
//!    those for the next one: it has a block to write. (It may be of a take before, whose writer has not come to wake it yet;
//!    then that one wakes them all.)
//! 3. Who was woken for that and is refused wakes the others to be refused too. Who gives the turn back without having taken
//!    the buffer, as there is no room for a block, wakes another one by that; those asleep for a block in flight there are none.

use crate::switch::{AtomicU64, AtomicUsize, CondMutex, Condvar};
use std::mem;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longest that a block waits for those who may be back soon.
const MOST_GATHERING: Duration = Duration::from_micros(100);
/// Where a block is written sooner, nobody is waited for: to wake them takes as long.
const WORTH_GATHERING: Duration = Duration::from_micros(40);
/// A thread that lets others run for longer has met such as do not go to sleep soon.
const LONG_YIELD: Duration = Duration::from_micros(500);

/// What a model leaves out of the protocol, to see what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The look whether a thread's bytes are durable, under the latch, before it sleeps.
    LookBeforeSleep,
    /// That a thread which is refused wakes the others.
    RefusedWakes,
}

/// Who writes the next block, and who waits for which.
pub struct GroupCommit {
    state: CondMutex<State>,
    /// For those whose bytes are in a take with an even number, and with an odd one.
    turned: [Condvar; 2],
    /// Threads that wait for what is in the buffer. Changes under the latch.
    arrived: AtomicUsize,
    /// Everything before this position is durable. Changes under the latch.
    durable: AtomicU64,
    #[cfg(loom)]
    without: Option<Part>,
}

struct State {
    /// Someone has the turn.
    writing: bool,
    crowded: Crowded,
    /// Buffers taken so far, to be written as blocks.
    takes: usize,
    /// Position after the buffer that was taken last.
    taken: u64,
    /// Threads that wait for what was taken last.
    group: usize,
    /// Threads that are to wait for the next block, if they all come back.
    expected: usize,
    /// How long the last block took to write.
    took: Duration,
}

/// How often in a row a thread that let others run did not come to run again soon, since these have other things to do.
#[derive(Default)]
struct Crowded {
    times: u32,
    /// Blocks for which nobody is waited for.
    skip: u32,
}

impl Crowded {
    /// After the n-th time in a row, 2^n blocks do not wait; 64 at the most.
    fn again(&mut self) {
        self.times = (self.times + 1).min(6);
        self.skip = 1 << self.times;
    }

    /// Whether this block does not wait.
    fn skips(&mut self) -> bool {
        let skips = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        skips
    }
}

/// What a wait has come to, where it has not failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Waited<R> {
    /// All before the position is durable.
    Durable,
    /// The caller's own block was not written, and why.
    Unwritten(R),
}

/// The right to write the next block. Given back when dropped, whatever happened meanwhile.
#[must_use]
pub struct Turn<'g> {
    commit: &'g GroupCommit,
}

impl GroupCommit {
    /// Nobody waits, and everything before `durable` is durable.
    pub fn new(durable: u64) -> Self {
        GroupCommit {
            state: CondMutex::new(State {
                writing: false,
                crowded: Crowded::default(),
                takes: 0,
                taken: durable,
                group: 0,
                expected: 0,
                took: Duration::ZERO,
            }),
            turned: [Condvar::new(), Condvar::new()],
            arrived: AtomicUsize::new(0),
            durable: AtomicU64::new(durable),
            #[cfg(loom)]
            without: None,
        }
    }

    /// The same with a part left out, which a model is to notice.
    #[cfg(loom)]
    pub fn without(self, part: Part) -> Self {
        GroupCommit { without: Some(part), ..self }
    }

    #[cfg(loom)]
    fn keeps(&self, part: Part) -> bool {
        self.without != Some(part)
    }

    #[cfg(not(loom))]
    #[inline]
    #[allow(clippy::unused_self, reason = "a model leaves parts out")]
    fn keeps(&self, _: Part) -> bool {
        true
    }

    /// Everything before this position is durable.
    #[inline]
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns when all before `position` is durable, having written a block or slept while another did.
    ///
    /// `refuse` says whether no more blocks are written at all; it must fail from before a block is given up that was taken.
    /// `write` writes the next one: it takes the buffer, tells [`Turn::take`], and when it is durable [`Turn::written`]; or it says why not.
    ///
    /// # Errors
    /// Those of `refuse` and of `write`.
    pub fn wait<R, E>(
        &self,
        position: u64,
        refuse: impl Fn() -> Result<(), E>,
        write: impl Fn(&Turn<'_>) -> Result<Option<R>, E>,
    ) -> Result<Waited<R>, E> {
        let mut counted = false;
        loop {
            if self.durable() >= position {
                return Ok(Waited::Durable);
            }
            if let Err(refused) = refuse() {
                // Of those who wait for the next block one alone was woken to write it, which nobody does any more.
                if self.keeps(Part::RefusedWakes) {
                    self.turned.iter().for_each(Condvar::notify_all);
                }
                return Err(refused);
            }
            let Some(turn) = self.turn(position, &mut counted) else { continue };
            let wrote = write(&turn);
            drop(turn);
            if !matches!(wrote, Ok(None)) {
                self.leave(position);
            }
            if let Some(why) = wrote? {
                return Ok(Waited::Unwritten(why));
            }
        }
    }

    /// The turn to write the next block, for who waits for `position`. `None` if it was another's and is over, or the
    /// block was written meanwhile.
    fn turn(&self, position: u64, counted: &mut bool) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        // Since the caller looked another thread may have had the turn and written the block. Who slept now could be the one
        // that is woken to write the next block, and would not.
        if self.keeps(Part::LookBeforeSleep) && self.durable() >= position {
            return None;
        }
        let taken = position <= state.taken;
        if !mem::replace(counted, true) {
            if taken {
                state.group += 1;
            } else {
                self.arrived.fetch_add(1, Ordering::Relaxed);
            }
        }
        if state.writing {
            drop(self.turned[(state.takes + usize::from(!taken)) % 2].wait(state));
            return None;
        }
        state.writing = true;
        Some(Turn { commit: self })
    }

    /// Who waited for `position` does not any more, though it is not durable.
    fn leave(&self, position: u64) {
        let state = self.state.lock();
        if position > state.taken {
            // None, if it waits for what was never appended and others were taken since.
            let others = self.arrived.load(Ordering::Relaxed).saturating_sub(1);
            self.arrived.store(others, Ordering::Relaxed);
        }
    }
}

impl Turn<'_> {
    /// Lets those run for a moment whom the last block has let go and who may be back soon.
    pub fn gather(&self) {
        let all_here = |expected| self.commit.arrived.load(Ordering::Relaxed) >= expected;
        let (expected, most) = {
            let mut state = self.commit.state.lock();
            if all_here(state.expected) || state.took < WORTH_GATHERING || state.crowded.skips() {
                return;
            }
            (state.expected, (state.took / 4).min(MOST_GATHERING))
        };
        let start = Instant::now();
        let mut before = start;
        while !all_here(expected) && before - start < most {
            // They are not asleep, and this is too short for a timer.
            std::thread::yield_now();
            let now = Instant::now();
            if now - before > LONG_YIELD {
                return self.commit.state.lock().crowded.again();
            }
            before = now;
        }
        self.commit.state.lock().crowded.times = 0;
    }

    /// All before `position` is in blocks now, the last of which is to be written by the caller. Whoever appends more must come
    /// after this.
    pub fn take(&self, position: u64) {
        let mut state = self.commit.state.lock();
        (state.takes, state.taken) = (state.takes + 1, position);
        state.group = self.commit.arrived.swap(0, Ordering::Relaxed);
    }

    /// What was taken is durable, which took so long.
    pub fn written(&self, took: Duration) {
        let mut state = self.commit.state.lock();
        state.expected = state.group + self.commit.arrived.load(Ordering::Relaxed);
        state.took = took;
        self.commit.durable.store(state.taken, Ordering::Release);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let commit = self.commit;
        let mut state = commit.state.lock();
        state.writing = false;
        let [goes, stays] = [state.takes, state.takes + 1].map(|take| &commit.turned[take % 2]);
        drop(state);
        // Who waits for the block goes; one of the others writes the next. Where the block was taken and not written each is refused,
        // and so wakes all.
        goes.notify_all();
        stays.notify_one();
    }
}
