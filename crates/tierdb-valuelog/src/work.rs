//! Background work: who does it, when, and how writers wait for it.
//!
//! Threads that are asleep while there is nothing to do: one gains space (reclamation, garbage collection), one
//! keeps house (cache lists, structure updates of the index, checkpoints), and where the pool is logged one makes
//! grouped writes durable. With [`Background::Inline`] there are none, and whoever needs the work does it.

use crate::core::Core;
use crate::moving::Reclaim;
use crate::ring::Full;
use crate::word::Word;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tierdb_base::{Error, ErrorKind, Result, TierRole};
use tierdb_device::Dir;
use tierdb_engine::{Background, Job, Threads, Wakeup};
use tierdb_pmem::Pool;

/// Longest time for which a write that finds the fast tier full waits for what readers still hold there.
const READERS_LEAVE: Duration = Duration::from_secs(1);

/// Signals between writers and the background threads.
pub struct Work {
    background: Background,
    state: Mutex<State>,
    space_wanted: Condvar,
    space_made: Condvar,
    upkeep: Wakeup,
    commit: Wakeup,
    upkeeps: AtomicU64,
}

#[derive(Default)]
struct State {
    stop: bool,
    want_space: bool,
    /// The most bytes that a writer did not find in a ring.
    wanted: u64,
    /// Counts completed rounds of the space thread, and what the last one failed with.
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
            upkeeps: AtomicU64::new(0),
        }
    }

    /// Whether whoever needs work does it.
    pub fn is_inline(&self) -> bool {
        self.background == Background::Inline
    }

    /// Asks the space thread for a round.
    pub fn want_space(&self) {
        let mut state = self.state.lock();
        if !state.want_space {
            state.want_space = true;
            self.space_wanted.notify_one();
        }
    }

    /// A ring has more room than before.
    pub fn made_space(&self) {
        if !self.is_inline() {
            let _state = self.state.lock();
            self.space_made.notify_all();
        }
    }

    /// Whether the background threads are to end.
    pub fn is_stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// Whether a writer waits for room in a ring.
    pub fn is_waited_for(&self) -> bool {
        self.state.lock().wanted > 0
    }

    /// Asks for cache and index upkeep.
    pub fn want_upkeep(&self) {
        self.upkeep.ask();
    }

    /// A write was acknowledged that is to be durable in a few milliseconds.
    pub fn grouped_write(&self) {
        self.commit.ask();
    }

    /// Lets deferred releases of this thread take place, as far as running operations allow.
    pub fn settle_epochs(&self) {
        // Two epochs, and one round to collect what they left.
        for _ in 0..4 {
            crossbeam_epoch::pin().flush();
        }
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
    /// Does `insert`, which takes pages, and does it again while it finds none and readers hold some that were given up. The
    /// caller is not pinned: it would be one of those readers.
    ///
    /// # Errors
    /// Those of `insert`.
    pub fn where_pages_are<T>(&self, mut insert: impl FnMut() -> Result<T>) -> Result<T> {
        let (mut given_up, mut is_last) = (None, false);
        loop {
            match insert() {
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    let given_up = *given_up.get_or_insert_with(|| Instant::now() + READERS_LEAVE);
                    if is_last || Instant::now() >= given_up {
                        return Err(error);
                    }
                    // Where nothing is left to wait for, it may have come back since this try.
                    is_last = !self.any_came_back();
                }
                done => return done,
            }
        }
    }

    /// Whether pages or entries that were given up may have come back just now, or may soon.
    fn any_came_back(&self) -> bool {
        self.purge_deleted();
        self.hsit.free_gathered();
        self.index.run_structure_updates();
        let waiting = || self.index.waiting() + self.hsit.waiting();
        let before = waiting();
        if before == 0 {
            return false;
        }
        self.work.settle_epochs();
        if waiting() == before {
            std::thread::sleep(Duration::from_micros(50));
        }
        true
    }

    /// After an append that left a ring `filled` bytes full.
    pub fn after_append(&self, filled: u64) {
        if filled < self.watermark() {
            return;
        }
        if self.work.is_inline() {
            // What fails here is met again, and reported, by the write that needs the space.
            let _ = self.gain_space(Reclaim::Background);
        } else {
            self.work.want_space();
        }
    }

    /// After a write that went to flash at once, of which no ring tells: what it replaced may be too much garbage.
    pub fn after_flash_write(&self) {
        let options = &self.options;
        // In this order: most writes have been given no chunk, and the second look waits while a file grows.
        if !self.storage.devices().iter().any(|device| device.has_given_out() && device.is_wasteful(options))
        {
            return;
        }
        if self.work.is_inline() {
            // As in `after_append`.
            let _ = self.collect_where_wanted();
        } else {
            self.work.want_space();
        }
    }

    /// A ring was too full for records of so many bytes: returns when reclamation has made room. The caller is not pinned: it would
    /// be a reader that holds what was given up.
    ///
    /// # Errors
    /// `NoSpace` if flash is full too, or readers hold what was given up for more than a second; `Poisoned`.
    pub fn stall(&self, bytes: u64, full: Full) -> Result<()> {
        let start = Instant::now();
        self.counters.stalls.add(1);
        // What is left out at the end of the ring is shorter than they are.
        let reclaimed = self.wait_for_reclaim(2 * bytes, full);
        let result = self.wait_for_readers(full, reclaimed);
        self.counters.stall_ns.add(start.elapsed().as_nanos() as u64);
        result
    }

    /// What a ring gave up can be used when the readers of that moment have gone. Waits until some of it can, as long as there is
    /// any, and `reclaimed` is no failure other than that there was no room on flash for the rest.
    ///
    /// # Errors
    /// `reclaimed`; `NoSpace` if readers hold all of it for too long.
    fn wait_for_readers(&self, full: Full, reclaimed: Result<()>) -> Result<()> {
        if reclaimed.as_ref().is_err_and(|error| error.kind() != ErrorKind::NoSpace) {
            return reclaimed;
        }
        let given_up = Instant::now() + READERS_LEAVE;
        loop {
            // In this order: what has come back after the first look is seen by the second.
            let is_held = self.rings.is_held(full);
            if self.rings.came_back(full) {
                return Ok(());
            }
            if !is_held {
                return reclaimed;
            }
            if Instant::now() >= given_up {
                return reclaimed.and(Err(self.no_room_in_rings()));
            }
            self.work.settle_epochs();
            if !self.rings.came_back(full) {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    #[cold]
    fn no_room_in_rings(&self) -> Error {
        Error::NoSpace {
            tier: TierRole::Fast,
            place: self.pool.place(self.layout.rings_at()).file.to_string(),
            used: self.rings.used(),
            capacity: u64::from(self.layout.rings) * self.layout.ring_bytes,
        }
    }

    /// Returns when the ring that was `full` has given up something, or two rounds have ended, with what the last one failed with.
    fn wait_for_reclaim(&self, bytes: u64, full: Full) -> Result<()> {
        self.gate.latch().check()?;
        if self.work.is_inline() {
            return self.gain_space(Reclaim::All).or_else(|_| self.gain_space(Reclaim::All));
        }
        // Readers that are pinned hold back space that was released: take part in moving the epoch.
        self.work.settle_epochs();
        let mut state = self.work.state.lock();
        let asked_in = state.rounds;
        loop {
            // The round that was running when we asked may not have seen us; the one after it did.
            let is_given_up = self.rings.is_held(full) || self.rings.came_back(full);
            if is_given_up {
                return Ok(());
            }
            if state.rounds >= asked_in + 2 {
                return state.failed.clone().map_or(Ok(()), Err);
            }
            if state.stop {
                return Err(Error::invalid("the store is closed"));
            }
            state.wanted = state.wanted.max(bytes);
            state.want_space = true;
            self.work.space_wanted.notify_one();
            self.work.space_made.wait_for(&mut state, Duration::from_millis(20));
        }
    }

    /// Flash has no chunk for a write: gains one.
    ///
    /// # Errors
    /// `full`, if there is nothing to gain.
    pub fn gain_flash(&self, chunks: u64, full: Error) -> Result<()> {
        let start = Instant::now();
        let result = self.try_collect(chunks, &mut None, full);
        self.counters.stall_ns.add(start.elapsed().as_nanos() as u64);
        result
    }

    /// Cache lists, scan ranges to rewrite, structure updates, deleted keys, the pool's upkeep.
    pub fn upkeep(&self) -> Result<()> {
        self.index.run_structure_updates();
        self.purge_deleted();
        self.hsit.free_gathered();
        let maintained = self.maintain_cache();
        // The index grows, and the cache gives way: looked at now and then, since it walks all chunks.
        if self.work.upkeeps.fetch_add(1, Ordering::Relaxed).is_multiple_of(256) {
            self.settle_memory();
        }
        self.rings.mark_log();
        self.pool.upkeep().and(maintained)
    }

    /// Evicts what the cache has too much, to its second level, and rewrites the ranges that it gives up.
    pub fn maintain_cache(&self) -> Result<()> {
        loop {
            let upkept = self.cache.maintain(4096, &|word| self.storage.filling(Word(word).place()));
            upkept.gone.iter().for_each(|gone| self.second_level.keep(gone));
            self.rewrite_ranges(&upkept.rewrite)?;
            if !upkept.more {
                return Ok(());
            }
        }
    }

    fn space_thread(&self) {
        loop {
            let how = {
                let mut state = self.work.state.lock();
                while !state.want_space && !state.stop {
                    self.work.space_wanted.wait(&mut state);
                }
                if state.stop {
                    return;
                }
                state.want_space = false;
                match std::mem::take(&mut state.wanted) {
                    0 => Reclaim::Background,
                    bytes => Reclaim::Room(bytes),
                }
            };
            let done = self.gain_space(how);
            self.work.settle_epochs();
            let mut state = self.work.state.lock();
            state.rounds += 1;
            state.failed = done.err();
            self.work.space_made.notify_all();
        }
    }

    // A failure of either is in the latch, and every write after it says so.

    fn upkeep_thread(&self) {
        self.work.upkeep.run(|| drop(self.upkeep()));
    }

    fn commit_thread(&self) {
        self.work.commit.run(|| drop(self.pool.wait(self.pool.lsn())));
    }
}

/// Starts the background threads of `core`, if it has any.
pub fn start<P: Pool, D: Dir>(core: &Arc<Core<P, D>>) -> Result<Threads> {
    let mut jobs: Vec<Job<Core<P, D>>> = vec![("space", Core::space_thread), ("upkeep", Core::upkeep_thread)];
    if core.ordered {
        jobs.push(("commit", Core::commit_thread));
    }
    Threads::start(core, core.work.background, &jobs, core.gate.latch(), |core| core.work.stop())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::{small_log, store, store_of_two_rings, store_on};
    use crate::record::HEADER;
    use std::sync::mpsc::channel;
    use tierdb_base::{FailureLatch, TierRole};
    use tierdb_device::Meter;
    use tierdb_engine::{Durability, WriteBatch};
    use tierdb_log::LoggedPool;
    use tierdb_sim::World;

    /// Goal: a ring may be below its watermark and yet too full for one record, with what is left out at its end. Method: a
    /// ring of 16 KiB of which 10 KiB are in use, in the middle, is asked for 4 KiB, by a put, and by a batch for its list.
    #[test]
    fn a_write_that_finds_no_room_below_the_watermark_goes_on() {
        let [kib, quarter] = [1024, 4096].map(|stored| vec![7; stored - HEADER - b"key0".len()]);
        for in_batch in [false, true] {
            let world = World::new();
            world.add_pool("pool", 256 << 10);
            let core = Arc::new(store_on(&world, world.pool("pool"), 1 << 20, Background::Threads));
            let threads = start(&core).expect("threads");
            let put =
                |number: u8| core.put(&[b'k', b'e', b'y', number], &kib, Durability::Durable).expect("room");
            (0..3).for_each(put);
            core.reclaim(Reclaim::All).expect("room");
            while core.rings.iter().any(|ring| ring.fill() > ring.head() - ring.tail()) {
                core.work.settle_epochs();
            }
            (0..10).for_each(put);
            let filled = core.rings.iter().map(|ring| ring.head() - ring.tail()).max().expect("a ring");
            assert!(filled < core.watermark(), "{filled} bytes");
            let (done, is_done) = channel();
            let (writer, quarter) = (core.clone(), quarter.clone());
            std::thread::spawn(move || {
                let written = if in_batch {
                    let mut batch = WriteBatch::new();
                    let all = (0..240u32).try_for_each(|n| batch.put(n.to_be_bytes(), b"value").map(drop));
                    all.and_then(|()| writer.write(&batch, Durability::Durable))
                } else {
                    writer.put(b"long", &quarter, Durability::Durable)
                };
                let _ = done.send(written);
            });
            is_done.recv_timeout(Duration::from_secs(30)).expect("it goes on").expect("room");
            core.work.stop();
            threads.join();
        }
    }

    /// Room in another ring is none in the one that was full: who waited for that would try again and again.
    #[test]
    fn a_full_ring_is_refused_though_another_has_given_up_some() {
        let core = store_of_two_rings(&World::new());
        let put = |key: &[u8]| core.put(key, &[7; 1000], Durability::Durable);
        (0..1000u32).find(|number| put(&number.to_be_bytes()).is_err()).expect("all is full some time");
        let full = core.rings.lease().append(&[0; 1024]).expect_err("the ring of this thread");
        let heads = || core.rings.iter().map(|ring| ring.head()).collect::<Vec<_>>();
        let before = heads();
        let is_other = || before.iter().zip(heads()).any(|(before, now)| *before == 0 && now > 0);
        // Threads take the rings in turn.
        while !is_other() {
            std::thread::scope(|scope| {
                scope.spawn(|| (0..3).for_each(|_| drop(core.put(b"hot", b"value", Durability::Durable))));
            });
        }
        assert!(core.stall(1024, full).is_err(), "all that is in it is live");
        assert!(core.rings.iter().any(|ring| ring.tail() > 0 && ring.head() > ring.tail()));
    }

    /// Pages may come back between a try that found none and the look at what is waited for, which then finds nothing.
    #[test]
    fn pages_that_came_back_during_a_try_are_found() {
        let core = store(&World::new());
        let full = || Error::NoSpace { tier: TierRole::Fast, place: "pool".into(), used: 1, capacity: 1 };
        let took = |missed: u32| {
            let mut tries = 0;
            core.where_pages_are(|| {
                tries += 1;
                if tries > missed { Ok(()) } else { Err(full()) }
            })
        };
        took(1).expect("the second try finds them");
        took(2).expect_err("nothing was waited for, and nothing came");
    }

    #[test]
    fn grouped_writes_do_not_wait_for_upkeep() {
        let world = World::new();
        let options = small_log();
        let (dir, latch) = (world.add_dir("fast"), FailureLatch::new());
        let pool = LoggedPool::create(dir, options, 1, latch, Meter::new(), None).expect("a new pool");
        let core = Arc::new(store_on(&world, pool, 256 << 10, Background::Threads));
        let threads = start(&core).expect("threads");
        // Upkeep cannot go on without it.
        let deleted = core.deleted.lock();
        let before = core.pool.stats().log_blocks;
        core.put(b"key", b"value", Durability::Grouped).expect("room");
        let given_up = Instant::now() + Duration::from_secs(30);
        while core.pool.stats().log_blocks == before {
            assert!(Instant::now() < given_up, "nothing was committed");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(deleted);
        core.work.stop();
        threads.join();
    }
}
