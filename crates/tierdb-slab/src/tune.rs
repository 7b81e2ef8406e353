//! What is found out while the store runs: how much to pin (PrismDB leaves it to future work), and how much may be
//! written to flash.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Percent points by which the threshold is moved.
const STEP: i16 = 5;
/// A period has at least so many operations, and takes at least so long.
const OPERATIONS: u64 = 1 << 16;
const PERIOD: Duration = Duration::from_secs(2);
/// Scores that differ by less than this share are taken for the same.
const NOISE: f64 = 0.01;
/// Flash writes count against throughput: a period in which as many bytes are written to flash as callers write
/// has its score halved.
const WEAR_WEIGHT: f64 = 1.0;

/// What was counted up to a moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Operations.
    pub operations: u64,
    /// Bytes that callers wrote.
    pub user_bytes: u64,
    /// Bytes of tables written.
    pub table_bytes: u64,
}

struct Climb {
    began: Instant,
    start: Progress,
    before: Option<f64>,
    direction: i16,
}

/// The share of tracked keys that are pinned: fixed, or found by hill climbing.
pub struct PinnedShare {
    pct: AtomicU8,
    climb: Option<Mutex<Climb>>,
}

impl PinnedShare {
    /// A fixed share in percent, or one that is looked for, from 50 on.
    pub fn new(fixed: Option<u8>) -> Self {
        let climb =
            Climb { began: Instant::now(), start: Progress::default(), before: None, direction: STEP };
        let climb = fixed.is_none().then(|| Mutex::new(climb));
        PinnedShare { pct: AtomicU8::new(fixed.unwrap_or(50)), climb }
    }

    /// In percent.
    pub fn pct(&self) -> u8 {
        self.pct.load(Ordering::Relaxed)
    }

    /// Goes a step up or down, if a period is over at `now`: on in the same direction if the last step did good, back
    /// if it did harm.
    pub fn look(&self, progress: Progress, now: Instant) {
        let Some(mut climb) = self.climb.as_ref().and_then(Mutex::try_lock) else { return };
        let operations = progress.operations - climb.start.operations;
        let time = now.saturating_duration_since(climb.began);
        if operations < OPERATIONS || time < PERIOD {
            return;
        }
        let written = (progress.table_bytes - climb.start.table_bytes) as f64;
        let user = (progress.user_bytes - climb.start.user_bytes) as f64;
        let wear = if user > 0.0 { (written / user).min(10.0) } else { 0.0 };
        let score = operations as f64 / time.as_secs_f64() / (1.0 + WEAR_WEIGHT * wear);
        if climb.before.is_some_and(|before| score < before * (1.0 - NOISE)) {
            climb.direction = -climb.direction;
        }
        let pct = i16::from(self.pct()) + climb.direction;
        if !(0..=100).contains(&pct) {
            climb.direction = -climb.direction;
        }
        self.pct.store(pct.clamp(0, 100) as u8, Ordering::Relaxed);
        *climb = Climb { began: now, start: progress, before: Some(score), direction: climb.direction };
    }
}

/// How much may be written to flash.
pub struct WearBudget {
    per_day: Option<u64>,
    began: Instant,
    written: AtomicU64,
}

const DAY: f64 = 86_400.0;

impl WearBudget {
    /// So many bytes a day; without a number, any.
    pub fn new(per_day: Option<u64>) -> Self {
        WearBudget { per_day, began: Instant::now(), written: AtomicU64::new(0) }
    }

    /// Bytes of tables were written.
    pub fn spend(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that may be written at `now`: what has come in since the store was opened, with an hour's worth ahead,
    /// less what was written. `None` if there is no limit.
    pub fn left(&self, now: Instant) -> Option<i64> {
        let per_day = self.per_day? as f64;
        let seconds = now.saturating_duration_since(self.began).as_secs_f64();
        let come = per_day * (seconds / DAY + 1.0 / 24.0);
        Some(come as i64 - self.written.load(Ordering::Relaxed) as i64)
    }

    /// The budget of a day, and bytes that were written; `None` if there is no limit.
    pub fn per_day(&self) -> Option<(u64, u64)> {
        self.per_day.map(|per_day| (per_day, self.written.load(Ordering::Relaxed)))
    }

    /// Whether more was written than may be.
    pub fn is_spent(&self) -> bool {
        self.left(Instant::now()).is_some_and(|left| left <= 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Climbs for a while on a hill whose top is at `top` percent, and returns where it is.
    fn climb(share: &PinnedShare, progress: &mut Progress, now: &mut Instant, top: f64) -> f64 {
        for _ in 0..60 {
            *now += PERIOD;
            let distance = (f64::from(share.pct()) - top) / 100.0;
            progress.operations += (OPERATIONS as f64 * 4.0 * (1.0 - distance * distance)) as u64;
            share.look(*progress, *now);
        }
        f64::from(share.pct())
    }

    #[test]
    fn the_share_climbs_to_the_top_and_follows_it() {
        let share = PinnedShare::new(None);
        let (mut progress, mut now) = (Progress::default(), Instant::now());
        for top in [20.0, 90.0, 50.0] {
            let found = climb(&share, &mut progress, &mut now, top);
            assert!((found - top).abs() <= 20.0, "{found} for {top}");
        }
        let fixed = PinnedShare::new(Some(33));
        climb(&fixed, &mut progress, &mut now, 90.0);
        assert_eq!(fixed.pct(), 33);
    }

    #[test]
    fn a_budget_comes_in_with_time_and_is_spent_by_writes() {
        let budget = WearBudget::new(Some(24_000));
        let now = budget.began;
        assert_eq!(budget.left(now), Some(1000));
        budget.spend(1500);
        assert_eq!(budget.left(now), Some(-500));
        assert!(budget.is_spent());
        assert_eq!(budget.left(now + Duration::from_secs(3600)), Some(500));
        assert_eq!(budget.per_day(), Some((24_000, 1500)));
        let none = WearBudget::new(None);
        none.spend(1500);
        assert_eq!((none.left(now), none.per_day(), none.is_spent()), (None, None, false));
    }
}
