//! Background work: who does it, when, and how writers wait for it.
//!
//! A thread that migrates, asleep while there is nothing to do, and one that keeps house; on a log one that writes it. With
//! [`Background::Inline`] there are none, and whoever needs the work does it.

use crate::clean::Cleaned;
use crate::core::Core;
use crate::descend::Down;
use crate::levels::FIRST;
use crate::migrate::{Migrated, Plan, Victims};
use crate::partition::{Entry, Partition};
use crate::promote::Copies;
use crate::room::Need;
use parking_lot::{Condvar, Mutex, RwLock};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tierdb_base::{Error, ErrorKind, Result};
use tierdb_device::Dir;
use tierdb_engine::{Background, Job, Threads, Wakeup};
use tierdb_pmem::{Pool, Stage};

/// Memory and balance are looked at once in so many writes.
const LOOK_AGAIN: u32 = 256;
/// Fill up to which the fast tier is used when no more may be written to flash.
const LAST_PCT: u8 = 99;
/// What the index may take of the memory budget, in percent; and when no more may be written to flash.
const MEMORY_PCT: u64 = 75;
const LAST_MEMORY_PCT: u64 = 100;
/// Longest time for which a writer is held back when no more may be written to flash.
const SPENT_PACE: Duration = Duration::from_millis(10);
/// Keys that may be rewritten for each that was promoted, to make room for more, whatever a migration yields.
const REWRITTEN: u64 = 4;
/// Time after which what range tombstones hide is tried to be removed again; twice as long after each further failure, up to 64 times. So
/// a store that nobody uses does not keep on reading what the device does not give.
const CLEAN_AGAIN: Duration = Duration::from_secs(1);
const MOST_DOUBLED: u32 = 6;
/// Longest time for which a writer is held back when little is free.
const PACE: Duration = Duration::from_micros(500);

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
    /// Read by whoever works on whole partitions, written by whoever divides the key space.
    pub dividing: RwLock<()>,
    /// Keys of the store when it was divided last.
    pub divided_at: AtomicU64,
    /// Keys that were rewritten to make room for promotions.
    pub rewritten_for_reads: AtomicU64,
    /// Why the device did not read a table that is left out of migrations.
    pub unreadable: Mutex<Option<Error>>,
    /// What the index takes of the memory budget, in percent.
    pub memory_pct: AtomicU64,
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
    pub fn new(background: Background) -> Self {
        Work {
            background,
            state: Mutex::default(),
            space_wanted: Condvar::new(),
            space_made: Condvar::new(),
            upkeep: Wakeup::default(),
            commit: Wakeup::default(),
            cleaning_from: Mutex::default(),
            failed_cleanings: AtomicU32::new(0),
            cleaning: Mutex::new(()),
            tidying: Mutex::new(()),
            dividing: RwLock::new(()),
            divided_at: AtomicU64::new(0),
            rewritten_for_reads: AtomicU64::new(0),
            unreadable: Mutex::new(None),
            memory_pct: AtomicU64::new(0),
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
    fn want_upkeep(&self) {
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
        self.is_filled(fill_pct) || self.is_memory_over(MEMORY_PCT)
    }

    fn is_filled(&self, fill_pct: u8) -> bool {
        self.heap.slabs.free_bytes() < self.free_target(fill_pct)
    }

    fn is_memory_over(&self, pct: u64) -> bool {
        self.work.memory_pct.load(Ordering::Relaxed) > pct
    }

    /// Whether there is something to migrate, and no more may be written to flash: as long as there is some room yet, and memory.
    pub fn is_held_back(&self) -> bool {
        let none_left = self.is_filled(LAST_PCT) || self.is_memory_over(LAST_MEMORY_PCT);
        self.is_over(self.options.low_pct) && self.flash.is_spent() && !none_left
    }

    /// Whether what range tombstones hide is to be removed now. Not while no more may be written to flash: a writer that needs the room
    /// does not ask.
    fn is_cleaning_due(&self) -> bool {
        self.next_cleaning().is_some_and(|at| at <= Instant::now())
    }

    /// When to see whether that is due, if there is anything to be removed: a budget that is spent is looked at again, too.
    fn next_cleaning(&self) -> Option<Instant> {
        let from = (*self.work.cleaning_from.lock())?;
        Some(if self.flash.is_spent() { from.max(Instant::now() + CLEAN_AGAIN) } else { from })
    }

    /// Removes it if that is due. If it fails, it is due again, but not at once: what hinders it may last.
    fn clean_if_due(&self) {
        if !self.is_cleaning_due() {
            return;
        }
        *self.work.cleaning_from.lock() = None;
        let again = match self.clean_ranges(&|| !self.is_waited_for()) {
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
    fn is_waited_for(&self) -> bool {
        let state = self.work.state.lock();
        state.stop || state.wanted.is_some()
    }

    /// Whether there is something for the background thread that does not wait for the low watermark: a writer that finds no room, what
    /// range tombstones hide, the end.
    fn is_called_away(&self) -> bool {
        self.is_waited_for() || !self.work.is_inline() && self.is_cleaning_due()
    }

    /// After a write: migration starts at the high watermark, and writers are held back the more the less is free.
    pub fn after_write(&self) {
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
        if !self.is_over(self.options.high_pct) {
            return;
        }
        self.work.want_space();
        let pace = self.pace();
        if !pace.is_zero() {
            self.counters.stall_ns.add(pace.as_nanos() as u64);
            std::thread::sleep(pace);
        }
    }

    /// How long a writer is held back: the less room there is, and the less memory. What migrations get ahead of costs nothing, so that
    /// begins when half of what they may use is gone; with memory at once where no more may be written to flash.
    fn pace(&self) -> Duration {
        let (free, target) = (self.heap.slabs.free_bytes(), self.free_target(self.options.high_pct));
        let of_room = if free < target / 2 { 1.0 - free as f64 / (target as f64 / 2.0) } else { 0.0 };
        let (longest, from) = if self.flash.is_spent() {
            (SPENT_PACE, MEMORY_PCT)
        } else {
            (PACE, MEMORY_PCT.midpoint(LAST_MEMORY_PCT))
        };
        let memory = self.work.memory_pct.load(Ordering::Relaxed).saturating_sub(from);
        let of_memory = memory as f64 / (LAST_MEMORY_PCT - from) as f64;
        longest.mul_f64(of_room.max(of_memory).min(1.0))
    }

    /// Makes room until the fill is below the low watermark, or nothing that is unpopular is left, or something else is more urgent.
    ///
    /// Copies cost nothing to drop, and a migration costs the less for each key the more dirty ones there are in a range. So a
    /// table is rewritten if that is worth it, and before that copies go. But what is dirty and unpopular must not keep
    /// popular keys out for good where hardly anything is written: for each key that was promoted some may be rewritten.
    ///
    /// # Errors
    /// As [`Core::migrate`].
    pub fn migrate_to_low(&self) -> Result<()> {
        let work = &self.work;
        while self.is_over(self.options.low_pct) && !self.is_called_away() {
            if self.is_memory_over(MEMORY_PCT) {
                self.settle_memory();
            }
            let held_back = self.is_held_back();
            let for_reads = work.rewritten_for_reads.load(Ordering::Relaxed);
            if !held_back && for_reads < self.counters.promoted.get() * REWRITTEN {
                // What fails here is met again below, when there are no copies left.
                let done = self.migrate_round(Victims::Unpopular, 0.0).unwrap_or_default();
                work.rewritten_for_reads.fetch_add(done.entries, Ordering::Relaxed);
                if done.keys > 0 {
                    continue;
                }
            }
            let migrate = || self.migrate_round(Victims::Unpopular, self.least_yield()).unwrap_or_default();
            if self.drop_copies(Copies::Unpopular) > 0
                || !held_back && migrate().keys > 0
                || self.drop_copies(Copies::LeastPopular) > 0
            {
                continue;
            }
            if held_back {
                self.counters.held_back.add(1);
                return Ok(());
            }
            let done = match self.migrate_round(Victims::Unpopular, 0.0) {
                Ok(done) if done.keys > 0 => done,
                Ok(_) => self.migrate_round(Victims::All, 0.0)?,
                // Before tombstones have filled what is kept for them: to move these takes room, too.
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    match self.migrate_round(Victims::Tombstones, 0.0)? {
                        done if done.keys > 0 => done,
                        _ => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            };
            if done.keys == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The score from which on a range is migrated although there are copies: of what it would be if the fast tier held nothing
    /// but dirty unpopular keys, evenly spread, the configured share. Where there are no copies, any.
    fn least_yield(&self) -> f64 {
        let (mut fast, mut flash, mut copies) = (0, 0, 0);
        for part in &self.router.read().parts {
            let state = part.read();
            fast += state.index.len() as u64;
            copies += state.copies;
            flash += state.tables.first().tables().iter().map(|table| table.footer().keys).sum::<u64>();
        }
        let share = if copies > 0 { f64::from(self.options.least_yield_pct) / 100.0 } else { 0.0 };
        share * fast as f64 / flash.max(1) as f64
    }

    /// One migration; then the first level has more, and may be larger than it is to be: a table of it goes to the next one.
    fn migrate_round(&self, victims: Victims, least: f64) -> Result<Migrated> {
        let done = self.migrate_best(victims, least)?;
        if done.keys > 0 {
            // What fails here is met again by the merges that need it.
            let _ = self.descend(Down::TooLarge);
        }
        Ok(done)
    }

    /// In the partition that has the most that is not on flash, and any such victims: `least` for each key that is rewritten, or
    /// more.
    fn migrate_best(&self, victims: Victims, least: f64) -> Result<Migrated> {
        let _parts = self.work.dividing.read();
        let mut parts: Vec<(usize, Arc<Partition<D>>)> =
            self.router.read().parts.iter().map(|part| (part.read().dirty(), part.clone())).collect();
        parts.sort_by_key(|(keys, _)| std::cmp::Reverse(*keys));
        let (mut failed, mut entries) = (None::<Error>, 0);
        for (_, part) in parts {
            let _migration = part.migration.lock();
            let Some((_, plan)) = self.choose(&part, victims).filter(|(score, _)| *score >= least) else {
                continue;
            };
            match self.migrate_or_mark(&part, &plan, victims, victims == Victims::Unpopular) {
                Ok(done) if done.keys > 0 => return Ok(Migrated { entries: entries + done.entries, ..done }),
                // What was rewritten for nothing was rewritten, too.
                Ok(done) => entries += done.entries,
                // Another partition may have something. That space can be made comes before what else there is to say.
                Err(error) if failed.is_none() || error.kind() == ErrorKind::NoSpace => failed = Some(error),
                Err(_) => {}
            }
        }
        failed.map_or(Ok(Migrated { entries, ..Migrated::default() }), Err)
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

    fn try_to_free(&self, need: &Need) -> Result<()> {
        self.gate.latch().check()?;
        self.drain_retired();
        if self.has_room(need) {
            return Ok(());
        }
        let mut full = None;
        for victims in [Victims::Unpopular, Victims::All, Victims::Tombstones] {
            loop {
                self.tidy_slabs();
                if self.has_room(need) {
                    return Ok(());
                }
                if self.drop_copies(Copies::LeastPopular) > 0 {
                    continue;
                }
                match self.migrate_round(victims, 0.0) {
                    Ok(done) if done.keys > 0 => {}
                    Ok(_) => break,
                    Err(error) if error.kind() == ErrorKind::NoSpace => {
                        if self.squeeze().unwrap_or(false) {
                            continue;
                        }
                        full = Some(error);
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        match self.clean_ranges(&|| true) {
            Err(error) if error.kind() == ErrorKind::NoSpace => full = full.or(Some(error)),
            cleaned => _ = cleaned?,
        }
        self.tidy_slabs();
        if !self.has_room(need) {
            self.drop_parts();
            self.tidy_slabs();
        }
        if self.has_room(need) { Ok(()) } else { Err(full.unwrap_or_else(|| self.fast_full())) }
    }

    /// Frees the slots of versions that were replaced, or leaves that to the next changes if the pool has no room for it.
    pub fn drain_retired(&self) {
        if self.heap.admit(0).is_ok() {
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
                return Err(Error::invalid("the store is closed"));
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

    /// Moves everything that is on the fast tier to flash.
    ///
    /// # Errors
    /// `NoSpace`, `Corrupt`, `Io`.
    pub fn demote_all(&self) -> Result<()> {
        self.forget_unreadable();
        while let Err(error) = self.demote_parts() {
            if error.kind() != ErrorKind::NoSpace || !self.squeeze()? {
                return Err(error);
            }
        }
        self.descend_all()
    }

    /// Moves what was written up to now, and what lies with it.
    fn demote_parts(&self) -> Result<()> {
        let last = self.clock.last();
        let _parts = self.work.dividing.read();
        let parts = self.router.read().parts.clone();
        for part in &parts {
            let _migration = part.migration.lock();
            self.drop_copies_of(part, Copies::All);
            let mut from: Bound<Vec<u8>> = Bound::Unbounded;
            loop {
                let plan = {
                    let state = part.read();
                    let rest = (from.as_ref().map(Vec::as_slice), Bound::Unbounded);
                    let mut rest = state.index.range::<[u8], _>(rest);
                    let is_due =
                        |entry: &Entry| !entry.is_clean() && !entry.is_stuck() && entry.seqno <= last;
                    let Some((first, _)) = rest.find(|(_, entry)| is_due(entry)) else { break };
                    from = Bound::Included(first.to_vec());
                    Plan::of_table(&state.tables, FIRST, state.tables.first().number_of(first))
                };
                let done = self.migrate_or_mark(part, &plan, Victims::All, false)?;
                if done.keys == 0 {
                    // Its table is damaged, or it cannot be read, or all of it was written again meanwhile.
                    from = match plan.range.end {
                        Bound::Excluded(end) => Bound::Included(end),
                        Bound::Included(end) => Bound::Excluded(end),
                        Bound::Unbounded => break,
                    };
                }
            }
        }
        Ok(())
    }
}

/// Starts the background threads of `core`, if it has any.
pub fn start<P: Pool, D: Dir>(core: &Arc<Core<P, D>>) -> Result<Threads> {
    let mut jobs: Vec<Job<Core<P, D>>> =
        vec![("migrate", Core::space_thread), ("upkeep", Core::upkeep_thread)];
    if core.ordered {
        jobs.push(("commit", Core::commit_thread));
    }
    Threads::start(core, core.work.background, &jobs, |core| core.work.stop())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::live::LiveTable;
    use crate::rig::{self, Store};
    use crate::slabs::Purpose;
    use std::sync::atomic::AtomicU8;
    use tierdb_engine::{Durability, Engine, KeyRange};
    use tierdb_sim::{EventKind, FaultKind, FaultPlan, Ops};

    const POOL: u64 = 132 << 10;

    /// A store with `keys` keys on the fast tier, a few of which are more than it is to be filled with.
    fn filled(keys: u8) -> Store {
        let store = Store::new(POOL, Options { high_pct: 99, low_pct: 5, ..rig::options(POOL) });
        (0..keys).for_each(|number| store.put(&[b'k', number], 700));
        assert!(store.core().is_over(5) && !store.core().is_over(80));
        store
    }

    fn need(store: &Store, len: usize) -> Need {
        let mut need = Need::default();
        need.add(8, len, Purpose::Value, store.core().heap.slabs.largest());
        need
    }

    /// A store with sixty keys on flash, of which some are removed with a range, and not from their table yet.
    fn with_removed_range(options: Options) -> Store {
        let store = Store::new(POOL, options);
        (0..60).for_each(|number| store.put(&[b'k', number], 700));
        store.engine.flush().expect("room");
        let range = KeyRange::half_open([b'k', 3], [b'k', 9]);
        store.engine.delete_range(&range, Durability::Durable).expect("room");
        assert_eq!(store.part().read().ranges.len(), 1);
        store
    }

    #[test]
    fn a_cleaning_that_failed_is_tried_again() {
        let store = with_removed_range(rig::options(POOL));
        let is_cleaned = || store.part().read().ranges.is_empty();
        store.world.dir("flash0").set_capacity(Some(0));
        store.put(b"other", 10);
        assert!(!is_cleaned(), "flash is full");
        store.world.dir("flash0").set_capacity(None);
        let given_up = Instant::now() + Duration::from_secs(60);
        while !is_cleaned() {
            assert!(Instant::now() < given_up, "nothing tries again");
            store.put(b"other", 10);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(store.engine.get(&[b'k', 9]).expect("whole").is_some());
    }

    #[test]
    fn a_cleaning_that_left_a_table_out_is_done_again() {
        let store = with_removed_range(rig::options(POOL));
        let is_cleaned = || store.part().read().ranges.is_empty();
        store.world.inject(FaultPlan::from_nth(0, FaultKind::Eio).on(Ops::READ).in_dir("flash0"));
        store.put(b"other", 10);
        assert!(!is_cleaned(), "its table is not read");
        store.world.heal();
        let given_up = Instant::now() + Duration::from_secs(60);
        while !is_cleaned() {
            assert!(Instant::now() < given_up, "nothing tries again");
            store.put(b"other", 10);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_compaction_tries_what_was_not_read() {
        let store = with_removed_range(rig::options(POOL));
        let core = store.core();
        let tables = store.part().read().tables.clone();
        tables.tables().for_each(|table| table.mark_unreadable(true));
        *core.work.unreadable.lock() = Some(Error::invalid("the device did not read them"));
        store.engine.compact().expect("room");
        let tables = store.part().read().tables.clone();
        assert!(store.part().read().ranges.is_empty());
        assert!(!tables.tables().any(|table| table.is_damaged()));
    }

    #[test]
    fn a_snapshot_that_kept_no_range_asks_for_no_cleaning() {
        let store = with_removed_range(rig::options(POOL));
        let core = store.core();
        store.put(b"other", 10);
        let backup = store.engine.snapshot().expect("open");
        let range = KeyRange::half_open([b'k', 20], [b'k', 25]);
        store.engine.delete_range(&range, Durability::Durable).expect("room");
        store.put(b"other", 10);
        assert!(!store.part().read().ranges.is_empty() && !core.is_cleaning_due());
        drop(store.engine.snapshot().expect("open"));
        assert!(!core.is_cleaning_due());
        drop(backup);
        assert!(core.is_cleaning_due());
    }

    #[test]
    fn what_can_wait_does_not_exceed_the_write_budget() {
        let store = with_removed_range(Options { flash_bytes_per_day: vec![Some(1)], ..rig::options(POOL) });
        let core = store.core();
        let written = core.counters.table_bytes.get();
        assert!(core.flash.is_spent() && written > 0);
        store.put(b"other", 10);
        let levels = store.part().read().tables.clone();
        levels.tables().for_each(|table| table.hot_reads.store(1000, Ordering::Relaxed));
        assert!(!core.promote_round().expect("nothing to do"));
        core.migrate_to_low().expect("nothing to do");
        assert_eq!(core.counters.table_bytes.get(), written);
        // The same where the index takes more memory than it is to, but not where it takes all there is.
        for (pct, exceeds) in [(80, false), (101, true)] {
            core.work.memory_pct.store(pct, Ordering::Relaxed);
            assert_eq!((core.is_over(99), core.is_held_back()), (true, !exceeds), "{pct} %");
            assert!(core.pace() > SPENT_PACE / 10, "{pct} %");
        }
        core.work.memory_pct.store(0, Ordering::Relaxed);
        assert_eq!(core.pace(), Duration::ZERO);
        // A caller that asks for it is heard.
        store.engine.compact().expect("room");
        assert!(store.part().read().ranges.is_empty() && core.counters.table_bytes.get() > written);
    }

    #[test]
    fn a_flush_passes_by_what_cannot_be_read_however_much_is_written_beside_it() {
        let store = Arc::new(filled(8));
        let first = store.part().read().index[&b"k\0"[..]].at();
        store.world.flip_bit("pool", first + 100, 3);
        store.engine.flush().expect("room");
        store.engine.get(b"k\0").expect_err("damaged");
        store.put(b"k\x07", 700);
        let (left, writer) = (AtomicU8::new(5), store.clone());
        store.world.on_event(Some(Arc::new(move |_, event| {
            let number = left.load(Ordering::Relaxed);
            if event.kind == EventKind::Create && number > 0 {
                left.store(number - 1, Ordering::Relaxed);
                writer.put(&[b'k', number], 700);
            }
        })));
        let before = store.core().counters.migrations.get();
        store.engine.flush().expect("room");
        store.world.on_event(None);
        assert_eq!(store.core().counters.migrations.get(), before + 1);
    }

    #[test]
    fn memory_holds_writers_back_without_a_write_budget() {
        let store = Store::new(POOL, rig::options(POOL));
        let core = store.core();
        let pace_at = |pct| {
            core.work.memory_pct.store(pct, Ordering::Relaxed);
            core.pace()
        };
        assert!(!core.flash.is_spent());
        assert_eq!(
            (pace_at(0), pace_at(80)),
            (Duration::ZERO, Duration::ZERO),
            "migrations get ahead of that"
        );
        assert!(Duration::ZERO < pace_at(90) && pace_at(90) < pace_at(99));
        assert_eq!((pace_at(100), pace_at(1000)), (PACE, PACE));
    }

    /// Nothing would make less of it: writers are slowed, and go on.
    #[test]
    fn a_writer_does_not_wait_for_memory() {
        let options = Options { memory: 1 << 10, background: Background::Threads, ..rig::options(POOL) };
        let store = Store::new(POOL, options);
        store.world.dir("flash0").set_capacity(Some(0));
        let core = store.core();
        (0..60).for_each(|number| store.put(&[b'k', number], 100));
        core.settle_memory();
        assert_eq!((core.is_memory_over(LAST_MEMORY_PCT), core.pace()), (true, PACE));
        store.put(b"another", 100);
        assert!(core.counters.stall_ns.get() > 0);
    }

    #[test]
    fn a_cleaning_that_failed_is_tried_again_though_nobody_writes() {
        let store = Store::new(POOL, Options { background: Background::Threads, ..rig::options(POOL) });
        (0..60).for_each(|number| store.put(&[b'k', number], 700));
        store.engine.flush().expect("room");
        store.world.dir("flash0").set_capacity(Some(0));
        let range = KeyRange::half_open([b'k', 3], [b'k', 9]);
        store.engine.delete_range(&range, Durability::Durable).expect("room");
        let given_up = Instant::now() + Duration::from_secs(20);
        let until = |holds: &dyn Fn() -> bool| {
            while !holds() {
                assert!(Instant::now() < given_up, "nothing tries again");
                assert!(store.engine.get(&[b'k', 9]).expect("whole").is_some());
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        until(&|| store.core().next_cleaning().is_some_and(|at| at > Instant::now()));
        assert!(!store.part().read().ranges.is_empty(), "flash is full");
        store.world.dir("flash0").set_capacity(None);
        until(&|| store.part().read().ranges.is_empty());
    }

    /// A page that the device cannot read costs its keys, and not those who need room.
    #[test]
    fn a_table_that_cannot_be_read_is_left_out() {
        let options = || Options { partitions: 2, ..rig::options(POOL) };
        let store = Store::new(POOL, options());
        for number in (0..=255).step_by(3) {
            store.put(&[number, 1], 700);
        }
        store.engine.flush().expect("room");
        let lost = store.part().read().tables.tables().next().expect("a table").file();
        let name = format!("flash0/{}", tierdb_table::file_name(lost.number));
        store.world.lose_page(&name, 4096);
        for round in 2..5 {
            for number in (0..=255).step_by(3) {
                store.put(&[number, round], 700);
            }
        }
        store.engine.flush().expect("room");
        let engine = &store.engine;
        let unread = (0..=255).step_by(3).filter(|number| engine.get(&[*number, 1]).is_err()).count();
        assert!((1..20).contains(&unread), "{unread} keys cannot be read");
        assert!(engine.get(&[255, 2]).expect("whole").is_some());
    }

    /// That a table may be merged again does not make it as good as a copy of what it has.
    #[test]
    fn a_table_that_was_not_read_replaces_no_copy() {
        // Without an object cache, which would answer.
        let options = Options { memory: 1 << 10, pinned_pct: Some(100), ..rig::options(POOL) };
        let store = Store::new(POOL, options);
        (0..20).for_each(|number| store.put(&[b'k', number], 700));
        store.engine.flush().expect("room");
        let popular = [b'k', 3];
        let is_there = || store.engine.get(&popular).is_ok_and(|value| value.is_some());
        assert!((0..20).all(|_| is_there()));
        store.put(&[b'k', 4], 700);
        let (core, part) = (store.core(), store.part());
        let levels = part.read().tables.clone();
        let table = levels.find(&popular).next().expect("its table");
        let name = format!("flash0/{}", tierdb_table::file_name(table.number()));
        (0..3).for_each(|page| store.world.lose_page(&name, page * 4096));
        let plan = Plan::of_live(&levels, table).expect("it is live");
        core.migrate_or_mark(&part, &plan, Victims::All, false).expect("it is left out");
        assert!(table.is_damaged() && part.read().copies == 1 && is_there());
        assert!(core.forget_unreadable() && !table.is_damaged());
        assert_eq!(core.drop_copies(Copies::All), 0);
        store.engine.flush().expect("the rest has room");
        assert!(is_there());
    }

    #[test]
    fn tables_that_are_read_at_the_second_try_replace_copies() {
        let options =
            Options { memory: 1 << 10, table_bytes: 16 << 10, pinned_pct: Some(100), ..rig::options(POOL) };
        let store = Store::new(POOL, options);
        (0..60).for_each(|number| store.put(&[b'k', number], 700));
        store.engine.flush().expect("room");
        let popular = [b'k', 3];
        assert!((0..20).all(|_| store.engine.get(&popular).is_ok_and(|value| value.is_some())));
        let (core, part) = (store.core(), store.part());
        let levels = part.read().tables.clone();
        let tables: Vec<_> = levels.tables().cloned().collect();
        assert_eq!((tables.len() > 1, part.read().copies), (true, 1));
        store.put(&[b'k', 4], 700);
        store.world.inject(FaultPlan::nth(1, FaultKind::Eio).on(Ops::READ).in_dir("flash0"));
        let plan = Plan { range: KeyRange::all(), into: FIRST, tables: tables.clone() };
        core.migrate_or_mark(&part, &plan, Victims::All, false).expect("they are left out");
        assert!(store.world.heal().hit == 1 && tables.iter().all(|table| table.is_damaged()));
        assert!(core.forget_unreadable());
        assert_eq!(core.drop_copies(Copies::All), 1);
    }

    #[test]
    fn a_table_that_was_not_read_once_is_not_taken_for_the_damaged_one_beside_it() {
        let mut left_out = 0;
        for read in 0..6 {
            let store = Store::new(POOL, Options { table_bytes: 16 << 10, ..rig::options(POOL) });
            (0..30).for_each(|number| store.put(&[b'k', number], 700));
            store.engine.flush().expect("room");
            let tables: Vec<_> = store.part().read().tables.tables().cloned().collect();
            let [damaged, other, ..] = &*tables else { panic!("{} tables", tables.len()) };
            store.world.flip_bit(&format!("flash0/{}", tierdb_table::file_name(damaged.number())), 100, 3);
            store.put(&[b'k', 4], 700);
            store.world.inject(FaultPlan::nth(read, FaultKind::Eio).on(Ops::READ).in_dir("flash0"));
            let plan =
                Plan { range: KeyRange::all(), into: FIRST, tables: vec![damaged.clone(), other.clone()] };
            store.core().migrate_or_mark(&store.part(), &plan, Victims::All, false).expect("left out");
            assert!(damaged.is_damaged(), "read {read}");
            assert!(!other.damaged.load(Ordering::Acquire), "read {read}");
            left_out += u32::from(other.is_damaged());
        }
        assert!(left_out > 0, "no read of it has failed");
    }

    /// That there is no room has a reason, and that is what the writer is told.
    #[test]
    fn a_table_whose_index_cannot_be_read_is_the_reason_that_there_is_no_room() {
        let store = Store::new(POOL, Options { table_parts_pct: 0, ..rig::options(POOL) });
        (0..20).for_each(|number| store.put(&[b'k', number], 700));
        store.engine.flush().expect("room");
        let tables = store.part().read().tables.clone();
        let name = |table: &LiveTable<_>| tierdb_table::file_name(table.number());
        let names: Vec<String> = tables.tables().map(|table| name(table)).collect();
        for table in tables.tables() {
            while table.loaded_parts().is_some() {
                table.shed();
            }
            let index_at = table.footer().blocks_len / 4096 * 4096;
            store.world.lose_page(&format!("flash0/{}", name(table)), index_at);
        }
        let put = |number: u16| {
            let key = [&b"k"[..], &number.to_be_bytes()].concat();
            store.engine.put(&key, &[7; 700], Durability::Grouped)
        };
        let refused = (0..1000).find_map(|number| put(number).err()).expect("nothing can be moved");
        assert_eq!(refused.kind(), ErrorKind::Io, "{refused}");
        assert!(names.iter().any(|name| refused.to_string().contains(name)), "{refused}");
    }

    #[test]
    fn a_writer_goes_on_as_soon_as_there_is_room() {
        let store = filled(30);
        let (core, need) = (store.core(), need(&store, 700));
        let waited = std::thread::scope(|scope| {
            let writer = scope.spawn(|| core.wait_for_space(&need));
            let given_up = Instant::now() + Duration::from_secs(60);
            while !writer.is_finished() && Instant::now() < given_up {
                std::thread::sleep(Duration::from_millis(1));
            }
            core.work.stop();
            writer.join().expect("no panic")
        });
        waited.expect("there is room, though no round ends");
    }

    #[test]
    fn who_waits_comes_before_a_cleaning() {
        let store = with_removed_range(rig::options(POOL));
        let core = store.core();
        core.work.state.lock().wanted = Some(need(&store, 700));
        core.clean_if_due();
        assert!(!store.part().read().ranges.is_empty() && core.is_cleaning_due(), "one table is enough");
        core.work.state.lock().wanted = None;
        core.clean_if_due();
        assert!(store.part().read().ranges.is_empty() && !core.is_cleaning_due());
    }

    #[test]
    fn who_waits_comes_before_the_low_watermark() {
        let store = filled(30);
        let core = store.core();
        core.work.state.lock().wanted = Some(need(&store, 700));
        core.migrate_to_low().expect("nothing to do");
        assert_eq!(core.counters.migrations.get(), 0);
        core.work.state.lock().wanted = None;
        core.migrate_to_low().expect("room on flash");
        assert!(core.counters.migrations.get() > 0);
    }
}
