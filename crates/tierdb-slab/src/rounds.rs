//! Rounds of migration: in which partitions, and whether what is popular or flash is spared.

use crate::config::Metric;
use crate::core::Core;
use crate::descend::Down;
use crate::levels::FIRST;
use crate::migrate::Migrated;
use crate::partition::{Entry, Partition};
use crate::plan::{MOST_TABLES, Plan, Victims};
use crate::promote::Copies;
use crate::work::MEMORY_PCT;
use parking_lot::Mutex;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::Builder;
use tierdb_base::{Error, ErrorKind, Result};
use tierdb_device::Dir;
use tierdb_pmem::Pool;

/// Keys that may be rewritten for each that was promoted, to make room for more, whatever a migration yields.
const REWRITTEN: u64 = 4;

impl<P: Pool, D: Dir> Core<P, D> {
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
                Ok(done) if done.progress() > 0 => done,
                Ok(_) => self.migrate_round(Victims::All, 0.0)?,
                // Before tombstones have filled what is kept for them: to move these takes room, too.
                Err(error) if error.kind() == ErrorKind::NoSpace => {
                    match self.migrate_round(Victims::Tombstones, 0.0)? {
                        done if done.progress() > 0 => done,
                        _ => return Err(error),
                    }
                }
                Err(error) => return Err(error),
            };
            if done.progress() == 0 {
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

    /// Migrations of several partitions; then the first level has more, and may be larger than it is to be: one goes to the next level
    /// for each of them, and for each table that they have rewritten. And where flash has little room left, one that waits is merged.
    pub fn migrate_round(&self, victims: Victims, least: f64) -> Result<Migrated> {
        let done = self.migrate_best(victims, least)?;
        if done.progress() > 0 {
            // What fails here is met again by the merges that need it. Of a table of a faster device a part stays there.
            let each = if self.goes_up(FIRST + 1) { 2 * MOST_TABLES } else { 1 };
            (0..done.migrations.max(done.tables) * each)
                .take_while(|_| matches!(self.descend(Down::TooLarge), Ok(Some(_))))
                .for_each(drop);
            // Flash fills up, and what waits where nobody writes any more would do so for good.
            if !self.flash.has_room_apart(0) && !self.flash.is_spent(FIRST) {
                // One that only comes from one level to the next gains nothing.
                while matches!(self.descend(Down::Unmerged), Ok(Some(Migrated { entries: 0, .. }))) {}
            }
        }
        Ok(done)
    }

    /// In the partitions that have the most that is not on flash, and any such victims: `least` for each key that is rewritten, or
    /// more. As many as there are threads for, each in one partition.
    pub fn migrate_best(&self, victims: Victims, least: f64) -> Result<Migrated> {
        let _parts = self.work.dividing.read();
        let mut parts: Vec<(usize, Arc<Partition<D>>)> =
            self.router.read().parts.iter().map(|part| (part.read().dirty(), part.clone())).collect();
        parts.sort_by_key(|(keys, _)| std::cmp::Reverse(*keys));
        let parts: Vec<_> = parts.into_iter().map(|(_, part)| part).collect();
        // Where flash is full, most of them would lock their partitions for nothing.
        let one = self.work.is_inline() || self.work.found_full.load(Ordering::Relaxed);
        // Others than the best one are rewritten earlier than they have to be: with half of the threads while that keeps ahead of writers, and
        // shorter reads.
        let most = self.options.migration_threads;
        let is_hurried = self.held_writers_back();
        self.work.is_hurried.store(is_hurried, Ordering::Relaxed);
        let threads = if is_hurried { most } else { most.div_ceil(2) };
        let threads = if one { 1 } else { threads.min(parts.len()) };
        let mut done = {
            let _others = self.work.alone.read();
            self.migrate_several(threads, &parts, victims, least)
        };
        let is_full = |done: &Result<_>| done.as_ref().is_err_and(|error| error.kind() == ErrorKind::NoSpace);
        if is_full(&done) {
            // Each may have taken what another one needed to end.
            let alone = self.work.alone.try_write();
            if threads > 1 || alone.is_none() {
                let _alone = alone.unwrap_or_else(|| self.work.alone.write());
                done = self.migrate_several(1, &parts, victims, least);
            }
        }
        if is_full(&done) || done.as_ref().is_ok_and(|done| done.progress() > 0) {
            self.work.found_full.store(is_full(&done), Ordering::Relaxed);
        }
        done
    }

    /// As [`Core::migrate_best`], in the first of `parts` that have such victims.
    fn migrate_several(
        &self,
        threads: usize,
        parts: &[Arc<Partition<D>>],
        victims: Victims,
        least: f64,
    ) -> Result<Migrated> {
        let parts = Mutex::new(parts.iter());
        let migrate = || self.migrate_next(&|| parts.lock().next(), victims, least);
        let all: Vec<Result<Migrated>> = std::thread::scope(|scope| {
            // One that cannot be started leaves its part to the others.
            let start = || Builder::new().name("tierdb-migrate".into()).spawn_scoped(scope, migrate).ok();
            let others: Vec<_> = (1..threads).map_while(|_| start()).collect();
            let own = migrate();
            let joined = others.into_iter().map(|other| other.join());
            let joined = joined.map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            std::iter::once(own).chain(joined).collect()
        });
        let (mut sum, mut failed) = (Migrated::default(), None);
        for done in all {
            match done {
                Ok(done) => sum = sum.and(done),
                Err(error) => failed = Some(more_telling(failed, error)),
            }
        }
        match failed {
            Some(error) if sum.progress() == 0 => Err(error),
            _ => Ok(sum),
        }
    }

    /// In the first one of the partitions that `next` gives out that has such victims.
    fn migrate_next<'m>(
        &self,
        next: &dyn Fn() -> Option<&'m Arc<Partition<D>>>,
        victims: Victims,
        least: f64,
    ) -> Result<Migrated> {
        let (mut failed, mut sum) = (None, Migrated::default());
        // Where popular keys have to go, or tombstones alone may, room is what there is too little of.
        let width = if victims == Victims::Unpopular { usize::from(self.options.range_tables) } else { 1 };
        while let Some(part) = next() {
            let _migration = part.migration.lock();
            match self.migrate_in(part, victims, least, width) {
                // What was rewritten for nothing was rewritten, too.
                Ok(done) => sum = sum.and(done),
                // Another partition may have something.
                Err(error) => failed = Some(more_telling(failed, error)),
            }
            if sum.progress() > 0 {
                return Ok(sum);
            }
        }
        failed.map_or(Ok(sum), Err)
    }

    /// The best range of `width` tables of `part`, whose `migration` the caller holds.
    fn migrate_in(
        &self,
        part: &Partition<D>,
        victims: Victims,
        least: f64,
        width: usize,
    ) -> Result<Migrated> {
        let metric = self.options.metric;
        let done = self.migrate_by(metric, part, victims, least, width)?;
        if done.keys > 0 || metric != Metric::ApproxM {
            return Ok(done);
        }
        // What was read before it was written has no bit, so the best range may have nothing that leaves: no key, or some that stay as
        // copies, and to rewrite a table for a few of these again and again would be no way to make room.
        Ok(done.and(self.migrate_by(Metric::SampledM, part, victims, least, width)?))
    }

    fn migrate_by(
        &self,
        metric: Metric,
        part: &Partition<D>,
        victims: Victims,
        least: f64,
        width: usize,
    ) -> Result<Migrated> {
        let choose = || self.choose(part, victims, width, metric);
        let best = self.timed_cpu(choose).filter(|(score, _)| *score >= least);
        let Some((_, plan)) = best else { return Ok(Migrated::default()) };
        match self.migrate_or_mark(part, &plan, victims, victims == Victims::Unpopular) {
            // One takes less room than several.
            Err(error) if error.kind() == ErrorKind::NoSpace && plan.own_tables() > 1 => {
                self.migrate_by(metric, part, victims, least, 1)
            }
            done => done,
        }
    }

    /// Moves everything that is on the fast tier to flash.
    ///
    /// # Errors
    /// `NoSpace`, `Corrupt`, `Io`.
    pub fn demote_all(&self) -> Result<()> {
        self.forget_unreadable();
        while let Err(error) = self.demote_parts(self.work.alone.read()) {
            if error.kind() != ErrorKind::NoSpace {
                return Err(error);
            }
            match self.squeeze() {
                Ok(true) => continue,
                Err(error) if error.kind() != ErrorKind::NoSpace => return Err(error),
                Ok(false) | Err(_) => {}
            }
            // What others have under way may take what there is.
            self.demote_parts(self.work.alone.write())?;
            break;
        }
        self.descend_all()
    }

    /// Moves what was written up to now, and what lies with it.
    fn demote_parts<G>(&self, _beside: G) -> Result<()> {
        let last = self.clock.last();
        let _parts = self.work.dividing.read();
        let parts = self.router.read().parts.clone();
        for part in &parts {
            let _migration = part.migration.lock();
            self.drop_copies_of(part, Copies::All);
            let mut from: Bound<Vec<u8>> = Bound::Unbounded;
            let mut tried = Vec::new();
            loop {
                let (first, plan) = {
                    let state = part.read();
                    let rest = (from.as_ref().map(Vec::as_slice), Bound::Unbounded);
                    let is_due =
                        |entry: &Entry| !entry.is_clean() && !entry.is_stuck() && entry.seqno <= last;
                    let due = state.index.range(rest).find(|(_, entry)| is_due(entry));
                    let Some((first, _)) = due else { break };
                    from = Bound::Included(first.to_vec());
                    let table = state.tables.first().number_of(first);
                    (first.to_vec(), Plan::of_table(&state.tables, FIRST, table).for_room(&state.tables))
                };
                // What the device did not read before may be read now; what was damaged is.
                let is_damaged = plan.tables.iter().any(|table| table.damaged.load(Ordering::Acquire));
                let done = match is_damaged {
                    true => Migrated::default(),
                    false => self.migrate_or_mark(part, &plan, Victims::All, false)?,
                };
                if done.keys > 0 {
                    continue;
                }
                // If all that was moved had been written again by then, it is not due any more: the next key is. Otherwise the table is
                // damaged, or cannot be read.
                let is_stuck = is_damaged || tried == first;
                tried = first;
                if is_stuck {
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

/// Of two failures the first, but that no space can be made comes before what else there is to say.
fn more_telling(first: Option<Error>, next: Error) -> Error {
    first.filter(|_| next.kind() != ErrorKind::NoSpace).unwrap_or(next)
}
