//! Background work: who does it, when, and how writers wait for it.
//!
//! A thread that migrates, with others where several partitions have something to migrate, asleep while there is nothing to do, and one that keeps house; on a log one that writes it. With
//! [`Background::Inline`] there are none, and whoever needs the work does it.

use crate::clean::Cleaned;
use crate::config::Options;
use crate::core::Core;
use crate::levels::FIRST;
use crate::partition::Partition;
use crate::plan::Victims;
use crate::promote::Copies;
use crate::rate::{Rate, sleep_until};
use crate::room::Need;
use parking_lot::{Condvar, Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tierdb_base::{Error, ErrorKind, Result};
use tierdb_device::Dir;
use tierdb_engine::{Background, Job, Threads, Wakeup};
use tierdb_pmem::{Pool, Stage};

/// Memory and balance are looked at once in so many writes.
const LOOK_AGAIN: u32 = 256;
/// What the index may take of the memory budget, in percent; and when no more may be written to flash.
pub const MEMORY_PCT: u64 = 75;
const LAST_MEMORY_PCT: u64 = 100;
/// Longest time for which a writer is held back when no more may be written to flash: for want of room, and of memory.
const SPENT_PACE: Duration = Duration::from_millis(100);
const SPENT_MEMORY_PACE: Duration = Duration::from_millis(10);
/// A large write counts as several of so many bytes there, as so many at the most.
const SMALL_WRITE: f64 = 16_384.0;
const MOST_WRITES: f64 = 20.0;
/// Time after which what range tombstones hide is tried to be removed again; twice as long after each further failure, up to 64 times. So
/// a store that nobody uses does not keep on reading what the device does not give.
const CLEAN_AGAIN: Duration = Duration::from_secs(1);
const MOST_DOUBLED: u32 = 6;
/// Longest time for which a writer is held back when little is free; and that for which each is for each time that another one needs more
/// than so many rounds of migration have left free, up to the longest.
const PACE: Duration = Duration::from_micros(500);
const CROWDED_PACE: Duration = Duration::from_millis(5);
const MOST_CROWDED: u32 = 4;
const MANY_ROUNDS: u32 = 8;

/// Signals between writers and the background threads.
pub struct Work {
    background: Background,
    state: Mutex<State>,
    space_wanted: Condvar,
    space_made: Condvar,
    upkeep: Wakeup,
    commit: Wakeup,
    /// From when on what range tombstones hide is to be removed, if there may be any.
    cleaning_from: Mutex<Option<Instant>>,
    /// How often that has failed since it was asked for.
    failed_cleanings: AtomicU32,
    /// Held by whoever removes what range tombstones hide.
    pub cleaning: Mutex<()>,
    /// Held by whoever empties slabs.
    pub tidying: Mutex<()>,
    /// Written by who migrates once more because others may have had what it needed, read by these; held before any partition's.
    pub alone: RwLock<()>,
    /// Whether migrations have found flash full, and none has moved any key since.
    pub found_full: AtomicBool,
    /// Read by whoever works on whole partitions, written by whoever divides the key space.
    pub dividing: RwLock<()>,
    /// Keys of the store when it was divided last.
    pub divided_at: AtomicU64,
    /// Keys that had been written then, since the store was opened.
    pub divided_after: AtomicU64,
    /// Of all keys, the share that the largest partition had behind that, in percent.
    pub largest_pct: AtomicU64,
    /// Keys that were rewritten to make room for promotions.
    pub rewritten_for_reads: AtomicU64,
    /// Why the device did not read a table that is left out of migrations.
    pub unreadable: Mutex<Option<Error>>,
    /// What the index takes of the memory budget, in percent.
    pub memory_pct: AtomicU64,
    /// For how long writers had been held back when a migration last began.
    pub stall_ns: AtomicU64,
    /// Whether they were held back between the last two beginnings: then merges read more at once.
    pub is_hurried: AtomicBool,
    /// Writers that wait for room.
    pub waiting: AtomicU32,
    /// Calls that wait for what they have asked to be moved.
    pub asked: AtomicU32,
    /// How often what was made free for who waits now was taken by others again and again.
    pub crowded: AtomicU32,
    /// How fast migrations may be where nobody waits, if there is a limit.
    pub rate: Option<Rate>,
}

#[derive(Default)]
struct State {
    stop: bool,
    want_space: bool,
    /// The largest of what writers wait for.
    wanted: Option<Need>,
    /// Counts the rounds that have made the room that was asked for before them, or have not; and what the last one failed with.
    rounds: u64,
    failed: Option<Error>,
}

impl Work {
    /// No work yet.
    pub fn new(options: &Options) -> Self {
        Work {
            background: options.background,
            state: Mutex::default(),
            space_wanted: Condvar::new(),
            space_made: Condvar::new(),
            upkeep: Wakeup::default(),
            commit: Wakeup::default(),
            cleaning_from: Mutex::default(),
            failed_cleanings: AtomicU32::new(0),
            cleaning: Mutex::new(()),
            tidying: Mutex::new(()),
            alone: RwLock::new(()),
            found_full: AtomicBool::new(false),
            dividing: RwLock::new(()),
            divided_at: AtomicU64::new(0),
            divided_after: AtomicU64::new(0),
            largest_pct: AtomicU64::new(0),
            rewritten_for_reads: AtomicU64::new(0),
            unreadable: Mutex::new(None),
            memory_pct: AtomicU64::new(0),
            stall_ns: AtomicU64::new(0),
            is_hurried: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            crowded: AtomicU32::new(0),
            rate: options.migration_rate.map(Rate::new),
        }
    }

    /// Whether whoever needs work does it.
    pub fn is_inline(&self) -> bool {
        self.background == Background::Inline
    }

    /// Asks for a round of migration.
    pub fn want_space(&self) {
        let mut state = self.state.lock();
        if !state.want_space {
            state.want_space = true;
            self.space_wanted.notify_one();
        }
    }

    /// A range was removed, or a snapshot is gone that saw one.
    pub fn want_cleaning(&self) {
        self.failed_cleanings.store(0, Ordering::Relaxed);
        *self.cleaning_from.lock() = Some(Instant::now());
        if !self.is_inline() {
            self.want_space();
        }
    }

    /// A write was acknowledged that is to be durable in a few milliseconds.
    pub fn grouped_write(&self) {
        self.commit.ask();
    }

    /// The pool's log may want a checkpoint.
    pub fn want_upkeep(&self) {
        self.upkeep.ask();
    }

    /// Wakes and ends the background threads.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.upkeep.stop();
        self.commit.stop();
        self.space_wanted.notify_all();
        self.space_made.notify_all();
    }
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Bytes that are free at this fill.
    pub fn free_target(&self, fill_pct: u8) -> u64 {
        self.heap.slabs.capacity() / 100 * u64::from(100 - fill_pct)
    }

    /// Whether the fast tier is filled more than so far, or the index takes too much memory.
    pub fn is_over(&self, fill_pct: u8) -> bool {
        self.heap.slabs.free_bytes() < self.free_target(fill_pct) || self.is_memory_over(MEMORY_PCT)
    }

    pub fn is_memory_over(&self, pct: u64) -> bool {
        self.work.memory_pct.load(Ordering::Relaxed) > pct
    }

    /// Whether there is something to migrate, and no more may be written to flash: as long as there is memory. What a writer needs
    /// that finds no room is written all the same.
    pub fn is_held_back(&self) -> bool {
        self.is_over(self.options.low_pct)
            && self.flash.is_spent(FIRST)
            && !self.is_memory_over(LAST_MEMORY_PCT)
    }

    /// Whether what range tombstones hide is to be removed now. Not while no more may be written to flash: a writer that needs the room
    /// does not ask.
    fn is_cleaning_due(&self) -> bool {
        self.next_cleaning().is_some_and(|at| at <= Instant::now())
    }

    /// When to see whether that is due, if there is anything to be removed: a budget that is spent is looked at again, too.
    fn next_cleaning(&self) -> Option<Instant> {
        let from = (*self.work.cleaning_from.lock())?;
        Some(if self.flash.is_spent(self.levels) { from.max(Instant::now() + CLEAN_AGAIN) } else { from })
    }

    /// Removes it if that is due. If it fails, it is due again, but not at once: what hinders it may last.
    fn clean_if_due(&self) {
        if !self.is_cleaning_due() {
            return;
        }
        let Some(cleaning) = self.work.cleaning.try_lock() else {
            // A caller has begun one, which lets nobody else come first: room is made meanwhile.
            *self.work.cleaning_from.lock() = Some(Instant::now() + CLEAN_AGAIN);
            return;
        };
        *self.work.cleaning_from.lock() = None;
        let goes_on = || {
            !self.is_waited_for() && !self.is_over(self.options.high_pct) && !self.flash.is_spent(self.levels)
        };
        let again = match self.clean_alone(&cleaning, &goes_on) {
            Ok(Cleaned::All) => return,
            Ok(Cleaned::Some) => Instant::now(),
            Ok(Cleaned::Readable) | Err(_) => {
                let failed = self.work.failed_cleanings.fetch_add(1, Ordering::Relaxed);
                Instant::now() + CLEAN_AGAIN * (1 << failed.min(MOST_DOUBLED))
            }
        };
        self.work.cleaning_from.lock().get_or_insert(again);
    }

    /// Whether a writer finds no room, or the store is closed.
    pub fn is_waited_for(&self) -> bool {
        let state = self.work.state.lock();
        state.stop || state.wanted.is_some()
    }

    /// Whether there is something for the background thread that does not wait for the low watermark: a writer that finds no room, the
    /// end; and what range tombstones hide, below the high one.
    pub fn is_called_away(&self) -> bool {
        let cleans = || !self.work.is_inline() && !self.is_over(self.options.high_pct);
        self.is_waited_for() || cleans() && self.is_cleaning_due()
    }

    /// After a write of `bytes` bytes: migration starts at the high watermark, and writers are held back the more the less is free.
    pub fn after_write(&self, bytes: usize) {
        if self.ordered {
            self.work.want_upkeep();
        }
        if fastrand::u32(..LOOK_AGAIN) == 0 {
            self.settle_memory();
            self.divide_if_due();
            if self.is_cleaning_due() {
                self.work.want_space();
            }
        }
        if self.work.is_inline() {
            self.clean_if_due();
            if self.is_over(self.options.high_pct) {
                let _ = self.migrate_to_low();
            }
            return;
        }
        // Who has set it may have done so after the last one that waited had gone.
        let work = &self.work;
        let is_waited_for = work.waiting.load(Ordering::Relaxed) > 0;
        let crowded = if is_waited_for { work.crowded.load(Ordering::Relaxed).min(MOST_CROWDED) } else { 0 };
        if !self.is_over(self.options.high_pct) && crowded == 0 {
            return;
        }
        work.want_space();
        let pace = self.pace(bytes).max(CROWDED_PACE * crowded);
        if !pace.is_zero() {
            // A close does not wait for all of it.
            let slept = sleep_until(Instant::now() + pace, SPENT_PACE, || self.is_stopped());
            self.counters.stall_ns.add(slept.as_nanos() as u64);
        }
    }

    /// How long a writer is held back: the less room there is, and the less memory. What migrations get ahead of costs nothing, so that
    /// begins when half of what they may use is gone; at once where no more may be written to flash, and then so much in the end that
    /// writers settle at a fill where they write what the budget brings in, unless that is less than each at the longest pace writes.
    fn pace(&self, bytes: usize) -> Duration {
        let (free, target) = (self.heap.slabs.free_bytes(), self.free_target(self.options.high_pct));
        let used = |free: f64, of: f64| (1.0 - free / of).clamp(0.0, 1.0);
        let (of_room, longest, from) = if self.flash.is_spent(FIRST) {
            let used = used(free as f64, target as f64);
            let writes = (bytes as f64 / SMALL_WRITE).clamp(1.0, MOST_WRITES);
            (SPENT_PACE.mul_f64(used * used * writes), SPENT_MEMORY_PACE, MEMORY_PCT)
        } else {
            let used = used(free as f64, target as f64 / 2.0);
            (PACE.mul_f64(used), PACE, MEMORY_PCT.midpoint(LAST_MEMORY_PCT))
        };
        let memory = self.work.memory_pct.load(Ordering::Relaxed).saturating_sub(from);
        let of_memory = memory as f64 / (LAST_MEMORY_PCT - from) as f64;
        of_room.max(longest.mul_f64(of_memory.min(1.0)))
    }

    /// Whether writers were held back for room since this was last asked, or wait for it.
    pub fn held_writers_back(&self) -> bool {
        let stall_ns = self.counters.stall_ns.get();
        let held_back = self.work.stall_ns.swap(stall_ns, Ordering::Relaxed) != stall_ns;
        // How long these wait is counted when they have done so.
        held_back || self.work.waiting.load(Ordering::Relaxed) > 0
    }

    fn has_room(&self, need: &Need) -> bool {
        self.heap.slabs.supply().covers(need)
    }

    /// A write did not find what it needs: returns when there may be as much.
    ///
    /// # Errors
    /// `NoSpace` if there is nothing to gain; `Poisoned`.
    pub fn make_space(&self, need: &Need) -> Result<()> {
        if !self.heap.slabs.all().covers(need) {
            return Err(self.fast_full());
        }
        let start = Instant::now();
        self.counters.stalls.add(1);
        let made = if self.work.is_inline() { self.free_up(need) } else { self.wait_for_space(need) };
        self.counters.stall_ns.add(start.elapsed().as_nanos() as u64);
        made
    }

    fn free_up(&self, need: &Need) -> Result<()> {
        let mut freed = self.try_to_free(need);
        if freed.is_err() && self.forget_unreadable() {
            freed = self.try_to_free(need);
        }
        // If there is a reason why there is no space, it is that.
        freed.map_err(|error| match error.kind() {
            ErrorKind::NoSpace => self.work.unreadable.lock().clone().unwrap_or(error),
            _ => error,
        })
    }

    /// Lets tables take part in migrations again that the device did not read when they were to. Says whether there are any.
    pub fn forget_unreadable(&self) -> bool {
        if self.work.unreadable.lock().take().is_none() {
            return false;
        }
        for part in &self.router.read().parts {
            let tables = part.read().tables.clone();
            tables.tables().for_each(|table| table.unreadable.store(false, Ordering::Release));
        }
        true
    }

    /// Whether the threads are to end: whoever waits for room is refused then.
    fn is_stopped(&self) -> bool {
        self.work.state.lock().stop
    }

    fn try_to_free(&self, need: &Need) -> Result<()> {
        self.gate.latch().check()?;
        self.drain_retired();
        if self.has_room(need) {
            return Ok(());
        }
        let mut full = None;
        if self.migrate_for(need, &mut full)? {
            return Ok(());
        }
        let used = self.flash.used();
        match self.clean_ranges(&|| !self.is_stopped()) {
            Err(error) if error.kind() == ErrorKind::NoSpace => full = full.or(Some(error)),
            cleaned => _ = cleaned?,
        }
        // What was removed with a range may have been what there was no room for.
        if self.flash.used() < used && self.migrate_for(need, &mut full)? {
            return Ok(());
        }
        self.tidy_slabs();
        if !self.has_room(need) {
            self.drop_parts();
            self.tidy_slabs();
        }
        if self.has_room(need) { Ok(()) } else { Err(full.unwrap_or_else(|| self.fast_full())) }
    }

    /// Migrates until there is room for `need`, or nothing is left to be migrated; then that is `full` which hindered it, if something did.
    fn migrate_for(&self, need: &Need, full: &mut Option<Error>) -> Result<bool> {
        let mut rounds = 0;
        for victims in [Victims::Unpopular, Victims::All, Victims::Tombstones] {
            loop {
                self.tidy_slabs();
                if self.has_room(need) {
                    return Ok(true);
                }
                if self.is_stopped() {
                    return Err(closed());
                }
                if self.drop_copies(Copies::LeastPopular) > 0 {
                    continue;
                }
                rounds += 1;
                if rounds % MANY_ROUNDS == 0 {
                    self.work.crowded.fetch_add(1, Ordering::Relaxed);
                }
                match self.migrate_round(victims, 0.0) {
                    Ok(done) if done.progress() > 0 => {}
                    Ok(_) => break,
                    Err(error) if error.kind() == ErrorKind::NoSpace => {
                        if self.squeeze().unwrap_or(false) {
                            continue;
                        }
                        *full = Some(error);
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(false)
    }

    /// Frees the slots of versions that were replaced, or leaves that to the next changes if the pool has no room for it.
    pub fn drain_retired(&self) {
        if let Ok(_admitted) = self.heap.admit(0) {
            self.drain_parts(&self.router.read().parts);
        }
    }

    /// As [`Core::drain_retired`], of these partitions, once it is admitted.
    pub fn drain_parts(&self, parts: &[Arc<Partition<D>>]) {
        for part in parts {
            let mut state = part.write();
            if state.has_retired() {
                let mut stage = Stage::new(&*self.heap.pool);
                state.stage_retired(&self.heap, &mut stage);
                let _drained = stage.drain();
                state.release_retired(&self.heap);
            }
        }
    }

    fn wait_for_space(&self, need: &Need) -> Result<()> {
        let mut state = self.work.state.lock();
        let asked_in = state.rounds;
        loop {
            self.gate.latch().check()?;
            if state.stop {
                return Err(closed());
            }
            // However it came, and before others have taken it.
            if self.has_room(need) {
                return Ok(());
            }
            // The round that was running when we asked may not have seen us; the one after it did.
            if state.rounds >= asked_in + 2 {
                return state.failed.clone().map_or(Ok(()), Err);
            }
            state.wanted = Some(state.wanted.take().unwrap_or_default().or(need.clone()));
            state.want_space = true;
            self.work.space_wanted.notify_one();
            self.work.space_made.wait_for(&mut state, Duration::from_millis(20));
        }
    }

    fn space_thread(&self) {
        loop {
            let wanted = {
                let mut state = self.work.state.lock();
                while !state.want_space && !state.stop && !self.is_cleaning_due() {
                    match self.next_cleaning() {
                        Some(at) => _ = self.work.space_wanted.wait_until(&mut state, at),
                        None => self.work.space_wanted.wait(&mut state),
                    }
                }
                if state.stop {
                    return;
                }
                state.want_space = false;
                state.wanted.take()
            };
            let freed = wanted.as_ref().map(|need| self.free_up(need));
            {
                let mut state = self.work.state.lock();
                state.rounds += 1;
                if let Some(freed) = freed {
                    state.failed = freed.err();
                }
                self.work.space_made.notify_all();
            }
            self.clean_if_due();
            // A full flash tier is reported to the writer that needs the room, not here.
            let _ = self.migrate_to_low();
            if self.read_trigger.is_active() {
                let _ = self.promote_round();
            }
            self.settle_memory();
        }
    }

    // A failure of either is in the latch, and every write after it says so.

    fn upkeep_thread(&self) {
        self.work.upkeep.run(|| drop(self.heap.pool.upkeep()));
    }

    fn commit_thread(&self) {
        self.work.commit.run(|| drop(self.heap.pool.wait(self.heap.pool.lsn())));
    }
}

/// The refusal of who waits while the store is closed.
fn closed() -> Error {
    Error::invalid("the store is closed")
}

/// Starts the background threads of `core`, if it has any.
pub fn start<P: Pool, D: Dir>(core: &Arc<Core<P, D>>) -> Result<Threads> {
    let mut jobs: Vec<Job<Core<P, D>>> =
        vec![("migrate", Core::space_thread), ("upkeep", Core::upkeep_thread)];
    if core.ordered {
        jobs.push(("commit", Core::commit_thread));
    }
    Threads::start(core, core.work.background, &jobs, core.gate.latch(), |core| core.work.stop())
}

#[cfg(test)]
mod tests;
