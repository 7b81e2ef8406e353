//! Reclamation (PRISM §5.2): live records leave the write buffer for Value Storage.

use crate::core::{Core, Moving};
use crate::ring::Ring;
use crate::storage::{Appender, Stored};
use crate::word::Place;
use std::collections::VecDeque;
use tierdb_base::Result;
use tierdb_device::Dir;
use tierdb_pmem::Pool;

/// How much reclamation is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Whole groups, until the rings are a quarter below the watermark.
    Background,
    /// The same, and until each ring has room for so many bytes: a writer did not find it, however full the ring is.
    Room(u64),
    /// Everything that is in the rings now.
    All,
}

/// What is to be moved out of a ring, as of one moment: what is appended later waits for the next time, however long this one takes.
struct Goal<'r> {
    ring: &'r Ring,
    /// Where the ring ended.
    head: u64,
    /// Up to where it is moved.
    target: u64,
}

/// Records of a ring that have passed since it was released last, and are not moved.
#[derive(Default)]
struct Unmoved {
    absorbed: u64,
    damaged: u64,
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Bytes of a ring at which reclamation starts.
    pub fn watermark(&self) -> u64 {
        self.layout.ring_bytes * u64::from(self.options.reclaim_pct) / 100
    }

    /// Moves live records out of the rings of which that is asked.
    ///
    /// # Errors
    /// `NoSpace` if flash has no chunk for them: they stay where they are.
    pub fn reclaim(&self, how: Reclaim) -> Result<()> {
        let mut appender = self.reclaim.lock();
        let mut given_up = None;
        self.rings.mark_log();
        let mut all = Ok(());
        let due = self.rings.iter().filter(|ring| self.is_due(ring, how));
        let mut goals: VecDeque<_> = due.map(|ring| self.goal(ring, how)).collect();
        while let Some(goal) = goals.pop_front() {
            let done = self.reclaim_ring(&goal, how, &mut appender);
            appender.abandon();
            let Err(error) = done else { continue };
            // Where flash has no room it goes on with what collection gains, or readers let go.
            match self.try_collect(1, &mut given_up, error) {
                Ok(()) => {
                    // What was waited for came: the next time counts anew.
                    given_up = None;
                    // Those whose writers wait, too, come first: these must not wait for as long as this one's go on.
                    goals.push_back(goal);
                }
                // Another ring may have room to give where this one has none.
                Err(error) => all = all.and(Err(error)),
            }
        }
        self.rings.mark_log();
        all
    }

    /// Whether there is something to move out of the ring.
    fn is_due(&self, ring: &Ring, how: Reclaim) -> bool {
        let filled = ring.head() - ring.tail();
        match how {
            Reclaim::All => true,
            Reclaim::Background => filled >= self.watermark(),
            Reclaim::Room(bytes) => filled >= self.watermark() || filled + bytes > self.layout.ring_bytes,
        }
    }

    fn goal<'r>(&self, ring: &'r Ring, how: Reclaim) -> Goal<'r> {
        let head = ring.head();
        // Whoever appended a record before `head` has published its word after this.
        self.clock.settled();
        let in_background = self.watermark().saturating_sub(self.layout.ring_bytes / 4);
        let kept = match how {
            Reclaim::All => 0,
            Reclaim::Background => in_background,
            Reclaim::Room(bytes) => in_background.min(self.layout.ring_bytes.saturating_sub(bytes)),
        };
        Goal { ring, head, target: head.saturating_sub(kept) }
    }

    /// What it has not stored when it fails is still in the ring.
    fn reclaim_ring(&self, goal: &Goal<'_>, how: Reclaim, appender: &mut Appender<D, Moving>) -> Result<()> {
        let Goal { ring, head, target } = *goal;
        let mut end = ring.tail();
        let mut unmoved = Unmoved::default();
        let mut bytes = Vec::new();
        let walked = self.rings.walk(ring, end, target.max(end), head, |found| {
            let place = Place::Ring(found.offset);
            let Some(word) = self.live_word(&found.header, place) else {
                unmoved.absorbed += 1;
                end = found.end;
                return Ok(());
            };
            bytes.resize(found.header.stored_len() as usize, 0);
            let read = self.pool.read(found.offset, &mut bytes);
            let fits = bytes.len() as u64 <= self.storage.chunk_bytes();
            if read.is_err() || !fits || !found.header.is_whole(&bytes, self.seed) {
                // Its word stays: reading the key says that it is damaged.
                unmoved.damaged += 1;
                end = found.end;
                return Ok(());
            }
            let mut moving = Moving { entry: found.header.entry, from: place, filling: 0 };
            loop {
                match appender.add(&self.storage, &*self.pool, &bytes, word, moving) {
                    Ok(None) => break,
                    Ok(Some(back)) => {
                        self.commit_reclaimed(appender)?;
                        self.release_ring(ring, end, &mut unmoved);
                        moving = back;
                    }
                    Err((_, error)) => {
                        // Nothing is pending: what lies before this record is committed, or nobody needs it.
                        self.release_ring(ring, end, &mut unmoved);
                        return Err(error);
                    }
                }
            }
            end = found.end;
            Ok(())
        })?;
        // In the background a group that is not full waits for more, unless the ring is short of room.
        if self.is_due(ring, how) {
            self.commit_reclaimed(appender)?;
            self.release_ring(ring, walked, &mut unmoved);
        }
        Ok(())
    }

    /// Releases the ring up to `to`, and counts what is `unmoved` before that: what stays may be walked again.
    fn release_ring(&self, ring: &Ring, to: u64, unmoved: &mut Unmoved) {
        let Unmoved { absorbed, damaged } = std::mem::take(unmoved);
        self.counters.absorbed_records.add(absorbed);
        self.counters.damaged_records.add(damaged);
        if self.rings.release(ring, to, &crossbeam_epoch::pin()) {
            self.work.settle_epochs();
            self.work.made_space();
        }
    }

    /// As [`Core::commit_moved`]; values that are read are cached, and others kept on the fast tier while it has room.
    fn commit_reclaimed(&self, appender: &mut Appender<D, Moving>) -> Result<()> {
        let stored = self.commit_moved(appender)?;
        self.counters.reclaimed_records.add(stored.len() as u64);
        for Stored { with: Moving { entry, from, .. }, word } in stored {
            if self.admit_moved(entry, from, word, self.hsit.aux(entry).is_wanted()) {
                self.counters.cached_by_reclaim.add(1);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Reclaim;
    use crate::core::Core;
    use crate::core::tests::{open_on, small_log, store, store_on};
    use crate::record::HEADER;
    use tierdb_base::FailureLatch;
    use tierdb_device::Meter;
    use tierdb_engine::{Background, Durability};
    use tierdb_log::LoggedPool;
    use tierdb_pmem::Pool;
    use tierdb_sim::{FaultKind, FaultPlan, Ops, SimDir, World};

    /// Goal: what passes a ring without being moved is counted once, though the ring is walked again as long as flash has no room.
    #[test]
    fn what_is_walked_again_is_counted_once() {
        let world = World::new();
        let core = store(&world);
        (0..10).for_each(|_| core.put(b"key", &[7; 500], Durability::Durable).expect("room"));
        world.inject(FaultPlan::from_nth(1, FaultKind::Enospc).on(Ops::WRITE).in_dir("flash"));
        for _ in 0..3 {
            assert!(core.reclaim(Reclaim::All).is_err(), "flash is full");
            assert_eq!(core.counters.absorbed_records.get(), 0, "nothing has left the ring");
        }
        world.heal();
        core.reclaim(Reclaim::All).expect("room");
        let counters = &core.counters;
        assert_eq!((counters.absorbed_records.get(), counters.reclaimed_records.get()), (9, 1));
    }

    /// Goal: a log is cut off behind what the rings no longer need, and a checkpoint leaves their pages out. So after a crash
    /// a ring holds what the last close has written where nothing was logged since: records that lie between its ends, if most
    /// of what was live is gone, and whose headers check. None of them may hide one that is needed.
    /// Method: three long records of an earlier time, of which the last begins before two short ones that overwrite its end.
    #[test]
    fn what_a_log_leaves_in_a_ring_hides_no_record() {
        const FLASH: u64 = 1 << 20;
        let world = World::new();
        let dir = world.add_dir("fast");
        let options = small_log();
        let latch = FailureLatch::new;
        let pool = LoggedPool::create(dir.clone(), options.clone(), 1, latch(), Meter::new(), None);
        let core = store_on(&world, pool.expect("a new pool"), FLASH, Background::Inline);
        let put = |core: &Core<LoggedPool<SimDir>, SimDir>, key: &[u8], stored: usize| {
            let value = vec![key[0]; stored - HEADER - key.len()];
            core.put(key, &value, Durability::Durable).expect("room");
        };
        let open = || {
            let pool = LoggedPool::open(dir.clone(), options.clone(), 1, latch(), Meter::new(), None);
            open_on(&world, pool.expect("a pool"), FLASH)
        };
        (0..5).for_each(|number| put(&core, &[b'l', number], 3072));
        core.reclaim(Reclaim::All).expect("room");
        core.work.settle_epochs();
        core.leave_image().expect("no faults");
        core.pool.close().expect("no faults");
        drop(core);

        let core = open();
        (0..5).for_each(|number| put(&core, &[b's', number], 1024));
        core.reclaim(Reclaim::All).expect("room");
        core.pool.checkpoint().expect("no faults");
        put(&core, b"cold1", 1024);
        put(&core, b"cold2", 1024);
        (0..9).for_each(|_| put(&core, b"hot", 1024));
        drop(core);

        let core = open();
        core.reclaim(Reclaim::All).expect("room");
        core.work.settle_epochs();
        (0..32).for_each(|number| put(&core, &[b'n', number], 1024));
        for key in [b"cold1", b"cold2"] {
            assert!(core.get(key).expect("whole").is_some());
        }
    }
}
