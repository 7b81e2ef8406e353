//! Which range is migrated (PrismDB §4.4.1, §4.4.2, §5.3): candidates are the key ranges of tables, scored by how
//! many keys would leave the fast tier for each that is rewritten on flash.
//!
//! Of a range with `tn` keys on the fast tier, a share `p` of them popular, and a table of `tf` keys of which a share
//! `o` is also on the fast tier, the metric is `M = (1 - p) tn / (1 - o) tf` (Equation 1, with `F = tf / tn`).

use crate::config::Metric;
use crate::core::Core;
use crate::levels::FIRST;
use crate::migrate::{Fate, Plan, Victims};
use crate::partition::{Bounds, Partition, State, bounds};
use std::ops::Bound;
use std::sync::atomic::Ordering;
use tierdb_base::{Error, Seqno};
use tierdb_device::{Cause, Dir};
use tierdb_pmem::Pool;

/// Keys of a range that are looked at for the approximate metric, in runs of neighbours. How many there are is known
/// exactly, by a count that each table keeps.
const SAMPLE: u64 = 256;
const RUN: usize = 16;

impl<P: Pool, D: Dir> Core<P, D> {
    /// The best range of `part` for such victims, with its score; `None` if no range has any.
    pub fn choose(&self, part: &Partition<D>, victims: Victims) -> Option<(f64, Plan<D>)> {
        let state = part.read();
        let tables = state.tables.first().tables();
        if state.index.is_empty() {
            return None;
        }
        if tables.is_empty() {
            return Some((f64::MAX, Plan::of_table(&state.tables, FIRST, 0)));
        }
        let choices = match self.options.choices as usize {
            0 => tables.len(),
            choices => choices.min(tables.len()),
        };
        // All of them where that is no more work; at random, with repetition, otherwise.
        let exhaustive = choices == tables.len() || victims != Victims::Unpopular;
        let candidates: Vec<usize> = if exhaustive {
            (0..tables.len()).collect()
        } else {
            (0..choices).map(|_| fastrand::usize(..tables.len())).collect()
        };
        let scored = candidates
            .into_iter()
            .filter(|number| !tables[*number].is_damaged())
            .map(|number| (self.score(&state, number, victims), number))
            .filter(|(score, _)| *score > 0.0);
        let (score, number) = scored.max_by(|one, other| one.0.total_cmp(&other.0))?;
        Some((score, Plan::of_table(&state.tables, FIRST, number)))
    }

    fn score(&self, state: &State<D>, number: usize, victims: Victims) -> f64 {
        let range = state.tables.first().range_of(number);
        let table = &state.tables.first().tables()[number];
        let dirty_keys = table.dirty_keys.load(Ordering::Relaxed);
        let Some(all) = bounds(&range).filter(|_| dirty_keys > 0) else { return 0.0 };
        let whole = match table.table(Cause::Migration) {
            Ok(whole) => whole,
            Err(error) => {
                // That there are too many open files, say, is not the table's fault.
                self.leave_out(table, &error, matches!(error, Error::Io { op: "read", .. }));
                return 0.0;
            }
        };
        let fate = self.fates(state, victims);
        let (mut looked_at, mut leaving, mut overlap) = (0_u64, 0_u64, 0_u64);
        let mut look = |bounds: Bounds<'_>, most: usize| {
            // Copies are passed over, but not without end.
            let ahead = state.index.range::<[u8], _>(bounds).take(most.saturating_mul(4));
            for (key, entry) in ahead.filter(|(_, entry)| !entry.is_clean()).take(most) {
                looked_at += 1;
                leaving += u64::from(fate(key, *entry) == Fate::Leaves);
                if self.options.metric != Metric::MaxUnpopular {
                    overlap += u64::from(whole.locate(key, Seqno::MAX).is_some());
                }
            }
        };
        if self.options.metric != Metric::ApproxM || dirty_keys <= SAMPLE || victims == Victims::Tombstones {
            look(all, usize::MAX);
        } else {
            // Some keys behind each of some places in the table; some from the range's start, lest there be none.
            let index = whole.index();
            look(all, RUN);
            for _ in 1..SAMPLE as usize / RUN {
                let from = index.separator(fastrand::usize(..index.blocks()));
                if range.contains(&from) {
                    look((Bound::Included(&from), all.1), RUN);
                }
            }
        }
        if looked_at == 0 {
            return 0.0;
        }
        let of_all = |sampled: u64| sampled as f64 / looked_at as f64 * dirty_keys as f64;
        let rewritten = (table.footer().keys as f64 - of_all(overlap)).max(1.0);
        match self.options.metric {
            Metric::MaxUnpopular => of_all(leaving),
            Metric::ApproxM | Metric::PreciseM => of_all(leaving) / rewritten,
        }
    }
}
