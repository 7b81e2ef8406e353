//! Read-triggered migration (PrismDB §4.4.4): where hardly anything is written, migrations for space are too rare for
//! what is popular to come to the fast tier.
//!
//! *Detection*: nearly all operations are reads, and many of the tracked keys are on flash. Then, for an epoch of 1 M
//! operations, the tables with the most reads of popular keys are migrated. *Monitoring*: if at its end the share of
//! reads that the fast tier serves has risen by 1 % or more, another epoch follows; if not, a *cool-down* of 10 M
//! operations, and detection again.

use crate::config::Promotion;
use crate::core::Core;
use crate::levels::FIRST;
use crate::live::LiveTable;
use crate::partition::Partition;
use crate::plan::{Plan, Victims};
use crate::tune::Progress;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tierdb_base::Result;
use tierdb_device::Dir;
use tierdb_pmem::Pool;

/// Operations of an epoch.
const EPOCH: u64 = 1 << 20;
/// Operations after an epoch that did not help.
const COOL_DOWN: u64 = 10 << 20;
/// Operations after which detection looks.
const LOOK: u64 = 1 << 16;
/// Share of reads above which a workload is one of reads, in percent.
const READS_PCT: u64 = 90;
/// Share of tracked keys on flash above which too many are, in percent.
const ON_FLASH_PCT: u64 = 20;
/// Rise of the share of reads that the fast tier serves for which an epoch is worth it, in percent points.
const WORTH_PCT: f64 = 1.0;

/// What was counted up to a moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Reads that the fast tier answered.
    pub fast: u64,
    /// Reads of keys that are on flash.
    pub flash: u64,
    /// Writes.
    pub writes: u64,
}

impl Counted {
    /// Nothing, if another thread was later and came first.
    fn since(self, before: Counted) -> Counted {
        Counted {
            fast: self.fast.saturating_sub(before.fast),
            flash: self.flash.saturating_sub(before.flash),
            writes: self.writes.saturating_sub(before.writes),
        }
    }

    fn operations(self) -> u64 {
        self.fast + self.flash + self.writes
    }

    fn fast_pct(self) -> f64 {
        100.0 * self.fast as f64 / (self.fast + self.flash).max(1) as f64
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Detection,
    /// An epoch; before it the fast tier served so many percent of the reads.
    Epoch {
        before: f64,
    },
    CoolDown,
}

struct State {
    phase: Phase,
    /// What was counted when the phase began.
    began: Counted,
}

/// Reads of popular keys, and of which table: its partition, itself.
type Candidate<D> = (u64, Arc<Partition<D>>, Arc<LiveTable<D>>);

/// Which phase it is.
pub struct ReadTrigger {
    state: Mutex<State>,
    active: AtomicBool,
}

impl ReadTrigger {
    /// Detection begins.
    pub fn new() -> Self {
        let state = State { phase: Phase::Detection, began: Counted::default() };
        ReadTrigger { state: Mutex::new(state), active: AtomicBool::new(false) }
    }

    /// Whether reads call for migrations now.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Goes on to the next phase if `now` is its time. `on_flash_pct` is the share of tracked keys that are on flash.
    pub fn look(&self, now: Counted, on_flash_pct: u64) {
        let Some(mut state) = self.state.try_lock() else { return };
        let passed = now.since(state.began);
        let next = match state.phase {
            Phase::Detection if passed.operations() >= LOOK => {
                let reads = passed.fast + passed.flash;
                let wanted = reads * 100 >= passed.operations() * READS_PCT && on_flash_pct >= ON_FLASH_PCT;
                if wanted { Phase::Epoch { before: passed.fast_pct() } } else { Phase::Detection }
            }
            Phase::Epoch { before } if passed.operations() >= EPOCH => {
                let now = passed.fast_pct();
                if now >= before + WORTH_PCT { Phase::Epoch { before: now } } else { Phase::CoolDown }
            }
            Phase::CoolDown if passed.operations() >= COOL_DOWN => Phase::Detection,
            _ => return,
        };
        *state = State { phase: next, began: now };
        self.active.store(matches!(next, Phase::Epoch { .. }), Ordering::Relaxed);
    }
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Called once in some reads.
    pub fn look_at_reads(&self) {
        let c = &self.counters;
        let now = Counted {
            fast: c.fast_hits.get() + c.fast_table_hits.get(),
            flash: c.flash_hits.get() + c.cache_hits.get(),
            writes: c.puts.get() + c.deletes.get() + c.batch_keys.get(),
        };
        let progress = Progress {
            operations: now.operations(),
            flash_reads: c.flash_hits.get(),
            user_bytes: c.user_bytes.get(),
            table_bytes: c.table_bytes.get(),
        };
        self.pinned.look(progress, Instant::now());
        if self.flash.is_over_loaded() {
            self.settle_memory();
        }
        let tracked: u64 = self.tracker.distribution().iter().sum();
        if self.flash.fast_bytes() > 0 {
            self.stay_share.look(now.fast + now.flash, now.writes, self.keys_of_first_level(), tracked);
        }
        if self.options.promotion == Promotion::OnRead {
            let fast = self.router.read().parts.iter().map(|part| part.read().index.len() as u64).sum();
            // Of which it has records: the others are for its tables.
            let tracked = (tracked as f64 * self.record_share) as u64;
            self.copied.look(now.fast + now.flash, now.writes, self.pinned_pct(), (fast, tracked));
            return;
        }
        self.read_trigger.look(now, self.tracker.on_flash() * 100 / tracked.max(1));
        if self.read_trigger.is_active() {
            if self.work.is_inline() {
                // What fails here fails for the operation that needs it.
                let _ = self.promote_round();
            } else {
                self.work.want_space();
            }
        }
    }

    /// Keys for which the first level has room on a fast device, as long as those that are there now.
    fn keys_of_first_level(&self) -> u64 {
        let (mut keys, mut bytes) = (0, 0);
        for part in &self.router.read().parts {
            let state = part.read();
            for table in state.tables.first().tables() {
                keys += table.footer().keys;
                bytes += table.file_len();
            }
        }
        let room = self.flash.fast_bytes();
        if bytes > 0 { (room as f64 / bytes as f64 * keys as f64) as u64 } else { room / 1024 }
    }

    /// Migrates the table with the most reads of popular keys, in the partition where it is. `false` if there is none
    /// with so many that it is worth it, or no more may be written to flash.
    pub fn promote_round(&self) -> Result<bool> {
        if self.flash.is_spent(self.levels) {
            return Ok(false);
        }
        let _parts = self.work.dividing.read();
        let parts = self.router.read().parts.clone();
        let mut best: Option<Candidate<D>> = None;
        for part in &parts {
            let state = part.read();
            for table in state.tables.tables().filter(|table| !table.is_damaged()) {
                let reads = table.hot_reads.load(Ordering::Relaxed);
                // A table is rewritten for one read in sixteen keys, not for less.
                let worth = reads * 16 >= table.footer().keys;
                if worth && best.as_ref().is_none_or(|(most, ..)| reads > *most) {
                    best = Some((reads, part.clone(), table.clone()));
                }
            }
        }
        let Some((_, part, table)) = best else { return Ok(false) };
        let _migration = part.migration.lock();
        let tables = part.read().tables.clone();
        let Some(plan) = Plan::of_live(&tables, &table) else { return Ok(true) };
        table.hot_reads.store(0, Ordering::Relaxed);
        // What the fast tier has is merged with the first level only.
        let (plan, victims) = if plan.into == FIRST {
            (plan.with_unmerged(&tables), Victims::Unpopular)
        } else {
            (plan, Victims::None)
        };
        if plan.is_damaged() {
            return Ok(true);
        }
        let done = self.migrate_or_mark(&part, &plan, victims, true)?;
        if done.tables == 0 && victims != Victims::None {
            // Nothing of its range is to leave the fast tier.
            self.migrate_or_mark(&part, &plan, Victims::None, true)?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::rig::{self, Store};
    use tierdb_engine::Engine;

    #[test]
    fn what_is_read_comes_to_the_fast_tier_though_nothing_is_written() {
        const POOL: u64 = 132 << 10;
        let options = Options { promotion: Promotion::ByMigration, ..rig::options(POOL) };
        let store = Store::new(POOL, options);
        (0..60).for_each(|number| store.put(&[b'k', number], 700));
        store.engine.flush().expect("room");
        let counters = &store.core().counters;
        let is_fast = || store.part().read().index.get(&[b'k', 7]).is_some();
        let read = |times: u64| {
            for number in 0..times {
                let key = if number % 2 == 0 { 7 } else { number as u8 % 60 };
                store.engine.get(&[b'k', key]).expect("whole").expect("there");
            }
        };
        read(LOOK / 2);
        assert_eq!((counters.promoted.get(), is_fast()), (0, false), "before it was detected");
        (0..8).take_while(|_| !is_fast()).for_each(|_| read(LOOK / 2));
        assert!(counters.promoted.get() > 0 && is_fast());
    }

    #[test]
    fn epochs_follow_one_another_while_they_help_and_then_it_cools_down() {
        let trigger = ReadTrigger::new();
        let mut now = Counted::default();
        let mut pass = |fast: u64, flash: u64, writes: u64, on_flash: u64| {
            now = Counted { fast: now.fast + fast, flash: now.flash + flash, writes: now.writes + writes };
            trigger.look(now, on_flash);
            trigger.is_active()
        };
        assert!(!pass(LOOK / 2, 0, LOOK / 2, 90), "writes");
        assert!(!pass(LOOK / 2, LOOK / 2, 0, 10), "few on flash");
        assert!(!pass(10, 10, 0, 90), "too early");
        assert!(pass(LOOK / 2, LOOK / 2, 0, 90));
        assert!(pass(EPOCH * 6 / 10, EPOCH * 4 / 10 + 9, 0, 50), "ten percent better");
        assert!(!pass(EPOCH * 6 / 10, EPOCH * 4 / 10 + 9, 0, 50), "no better");
        assert!(!pass(LOOK / 2, LOOK / 2, 0, 90), "cooling down");
        pass(0, COOL_DOWN, 0, 90);
        assert!(pass(0, LOOK, 0, 90), "detected again");
    }
}
