//! What is found out while the store runs: how much to pin (PrismDB leaves it to future work), and how much may be
//! written to flash.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tierdb_base::Result;

/// The share of the tracked keys that is pinned where nothing else is asked for, in percent. Six times as many are tracked as the
/// paper tracks, and a higher share was measured to write more to flash for hardly more hits (`docs/papers.md`,
/// Figure 11c).
pub const USUALLY_PINNED: u8 = 7;
/// What is tried, in percent: of three times as many tracked keys as the fast tier holds, the first ones make a difference.
const SETTINGS: [u8; 11] = [0, 3, 7, 12, 20, 30, 40, 50, 60, 80, 100];
/// A period has at least so many operations, takes at least so long, and goes on for up to the other time until so many bytes of
/// tables were written.
const OPERATIONS: u64 = 1 << 16;
const PERIOD: Duration = Duration::from_secs(2);
const LONG_PERIOD: Duration = Duration::from_secs(10);
const TABLE_BYTES: u64 = 64 << 20;
/// What an operation takes without flash. In that unit, what a read from flash adds as long as none was measured, and a byte of
/// tables, which is also read.
const OPERATION: Duration = Duration::from_micros(4);
const FLASH_READ: f64 = 8.0;
const TABLE_BYTE: f64 = 1.0 / 1024.0;
/// Flash writes count against throughput: where as many bytes are written to flash as callers write, the score is two thirds of what it
/// is where none are.
const WEAR_WEIGHT: f64 = 0.5;
/// How much of what a read has taken goes into what is known of reads from flash: one of so many.
const READS: u64 = 64;
/// How much of a new score goes into what is known of a setting.
const NEW: f64 = 0.5;
/// Two scores in a row that differ from what was known by more than this share, in the same way, are of another workload.
const CHANGE: f64 = 0.15;
/// Scores that differ by less than this share are taken for the same: then the lower setting is better, which moves less.
const SAME: f64 = 0.02;
/// Periods after which a setting is tried again.
const STALE: u32 = 8;

/// What was counted up to a moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Operations.
    pub operations: u64,
    /// Reads that flash answered.
    pub flash_reads: u64,
    /// Bytes that callers wrote.
    pub user_bytes: u64,
    /// Bytes of tables written.
    pub table_bytes: u64,
}

impl Progress {
    /// Nothing, if another thread was later and came first.
    fn since(self, start: Progress) -> Progress {
        Progress {
            operations: self.operations.saturating_sub(start.operations),
            flash_reads: self.flash_reads.saturating_sub(start.flash_reads),
            user_bytes: self.user_bytes.saturating_sub(start.user_bytes),
            table_bytes: self.table_bytes.saturating_sub(start.table_bytes),
        }
    }

    /// How good a period was: the throughput that its flash I/O allows, divided for wear. The throughput that was had would tell how
    /// much callers asked for, and what else the machine did.
    /// A read from flash takes `flash_read`, in what an operation takes without.
    fn score(&self, flash_read: f64) -> f64 {
        let (flash_reads, written) = (self.flash_reads as f64, self.table_bytes as f64);
        let time = 1.0 + (flash_reads * flash_read + written * TABLE_BYTE) / self.operations.max(1) as f64;
        let wear = if self.user_bytes > 0 { (written / self.user_bytes as f64).min(10.0) } else { 0.0 };
        1.0 / (time * (1.0 + WEAR_WEIGHT * wear))
    }
}

struct Climb {
    began: Instant,
    start: Progress,
    period: u32,
    /// What is known of each setting: its score, and in which period it was had last.
    known: [Option<(f64, u32)>; SETTINGS.len()],
    /// Whether the last period was better, or worse, than its setting was known to be by more than noise usually is.
    odd: Option<bool>,
}

impl Climb {
    /// Takes the score of a period in setting `at`, and says in which to go on: the best that is known of it and its
    /// neighbours, the lowest if several are; if that is `at`, a neighbour that is not known, or not any more.
    fn next(&mut self, at: usize, score: f64) -> usize {
        self.period += 1;
        let mut now = score;
        let before = self.known[at].map(|(before, _)| before);
        let odd = before.filter(|before| (score / before - 1.0).abs() > CHANGE).map(|before| score > before);
        // Two that are so in the same way are no noise: the work is another.
        if odd.is_some() && odd == self.odd {
            self.known = [None; SETTINGS.len()];
            self.odd = None;
        } else {
            now = before.map_or(score, |before| before + (score - before) * NEW);
            self.odd = odd;
        }
        self.known[at] = Some((now, self.period));
        let near = || at.saturating_sub(1)..=(at + 1).min(SETTINGS.len() - 1);
        let score = |setting: usize| self.known[setting].map_or(0.0, |(score, _)| score);
        let enough = near().map(score).fold(0.0, f64::max) * (1.0 - SAME);
        let best = near().find(|setting| score(*setting) >= enough).unwrap_or(at);
        let is_unknown =
            |setting: &usize| self.known[*setting].is_none_or(|(_, period)| self.period - period > STALE);
        // Only from where it is best: else one unknown setting would lead to the next.
        if best != at {
            return best;
        }
        // The one below first in one period, the one above in the next.
        let from_below = self.period.is_multiple_of(2);
        let unknown = if from_below { near().find(is_unknown) } else { near().rev().find(is_unknown) };
        unknown.unwrap_or(at)
    }
}

/// The share of tracked keys that are pinned: fixed, or found by hill climbing.
pub struct PinnedShare {
    pct: AtomicU8,
    climb: Option<Mutex<Climb>>,
    /// What a read from flash takes on average, in nanoseconds; 0 as long as none was measured.
    flash_read: AtomicU64,
}

impl PinnedShare {
    /// A fixed share in percent, or one that is looked for, from the usual one on.
    pub fn new(fixed: Option<u8>) -> Self {
        let climb = Climb {
            began: Instant::now(),
            start: Progress::default(),
            period: 0,
            known: [None; SETTINGS.len()],
            odd: None,
        };
        let climb = fixed.is_none().then(|| Mutex::new(climb));
        PinnedShare {
            pct: AtomicU8::new(fixed.unwrap_or(USUALLY_PINNED)),
            climb,
            flash_read: AtomicU64::new(0),
        }
    }

    /// In percent.
    pub fn pct(&self) -> u8 {
        self.pct.load(Ordering::Relaxed)
    }

    /// Does `read` of a table on flash, and remembers how long it took if the share is looked for, and it has found something: else it
    /// may have ended with what is known of the table.
    pub fn measure<T>(&self, read: impl FnOnce() -> Result<Option<T>>) -> Result<Option<T>> {
        if self.climb.is_none() {
            return read();
        }
        let begun = Instant::now();
        let found = read()?;
        if found.is_some() {
            self.took(begun.elapsed());
        }
        Ok(found)
    }

    /// A read from flash took so long. Of several at once some may be missed.
    fn took(&self, time: Duration) {
        let (now, known) = (time.as_nanos() as u64, self.flash_read.load(Ordering::Relaxed));
        let known = if known == 0 { now } else { known - known / READS + now / READS };
        self.flash_read.store(known, Ordering::Relaxed);
    }

    /// What a read from flash takes, in what an operation takes without.
    fn flash_read(&self) -> f64 {
        match self.flash_read.load(Ordering::Relaxed) {
            0 => FLASH_READ,
            nanos => nanos as f64 / OPERATION.as_nanos() as f64,
        }
    }

    /// Goes a step up or down, or stays, if a period is over at `now`.
    pub fn look(&self, progress: Progress, now: Instant) {
        let Some(mut climb) = self.climb.as_ref().and_then(Mutex::try_lock) else { return };
        let passed = progress.since(climb.start);
        let time = now.saturating_duration_since(climb.began);
        let few = passed.table_bytes < TABLE_BYTES && passed.user_bytes > 0;
        if passed.operations < OPERATIONS || time < PERIOD || few && time < LONG_PERIOD {
            return;
        }
        let at = SETTINGS.partition_point(|setting| *setting < self.pct());
        let next = climb.next(at, passed.score(self.flash_read()));
        self.pct.store(SETTINGS[next], Ordering::Relaxed);
        (climb.began, climb.start) = (now, progress);
    }
}

/// The share of tracked keys of which the fast tier keeps clean copies: where there are only reads, nearly as many as it has keys, so
/// that they hardly change; the fewer the more is written, which needs the room. Where one of two operations is a write, or more,
/// only what is pinned.
pub struct CopiedShare {
    pct: AtomicU8,
    is_fixed: bool,
    /// Reads and writes up to the last look.
    before: Mutex<(u64, u64)>,
}

/// Of the keys of the fast tier, in percent, that are to be copies where there are only reads.
const MOST_COPIES: u64 = 90;
/// Operations from one look to the next.
const LOOK: u64 = 1 << 14;

impl CopiedShare {
    /// A fixed share in percent, or one that follows what is done.
    pub fn new(fixed: Option<u8>) -> Self {
        let pct = AtomicU8::new(fixed.unwrap_or(0));
        CopiedShare { pct, is_fixed: fixed.is_some(), before: Mutex::default() }
    }

    /// In percent, where so many percent are pinned.
    pub fn pct(&self, pinned: u8) -> u8 {
        self.pct.load(Ordering::Relaxed).max(pinned)
    }

    /// Looks at what was done since the last look, where the fast tier has `fast` keys, and `tracked` keys are tracked, of which so
    /// many percent are pinned.
    pub fn look(&self, reads: u64, writes: u64, pinned: u8, (fast, tracked): (u64, u64)) {
        let Some(mut before) = self.before.try_lock().filter(|_| !self.is_fixed) else { return };
        let (reads_since, writes_since) = (reads.saturating_sub(before.0), writes.saturating_sub(before.1));
        let operations = reads_since + writes_since;
        if operations < LOOK {
            return;
        }
        *before = (reads, writes);
        let fit = (fast * MOST_COPIES / tracked.max(1)).min(100) as f64;
        let rest = (fit - f64::from(pinned)).max(0.0);
        let for_copies = (1.0 - 2.0 * writes_since as f64 / operations as f64).max(0.0);
        self.pct.store(pinned + (rest * for_copies) as u8, Ordering::Relaxed);
    }
}

/// The share of tracked keys that the first level is to have, where that is on a faster device than the next one: nearly as many as there
/// is room for.
pub struct StayShare {
    share: AtomicU32,
    /// Whether hardly anything is written, so that what is popular below does not come up by merges.
    only_reads: AtomicBool,
    /// Reads and writes up to the last look.
    before: Mutex<(u64, u64)>,
}

/// What it is stored in: hundredths of a percent.
const HUNDREDTHS: f64 = 10_000.0;
/// Of the keys for which the first level has room, the share that stays in it for being popular, where there are hardly any writes, and where
/// there are some. The rest is for what comes: the less it is, the fewer keys leave with each merge into the next level.
const STAYS_OF_READS: f64 = 0.8;
const STAYS_OF_WRITES: f64 = 0.4;
/// The share of writes from which on merges into the next level bring up what is popular there, at no cost.
const SOME_WRITES: f64 = 0.02;

impl Default for StayShare {
    /// Before anything is known, as if only what is read often were read.
    fn default() -> Self {
        let share = AtomicU32::new((STAYS_OF_WRITES * HUNDREDTHS) as u32);
        StayShare { share, only_reads: AtomicBool::new(true), before: Mutex::default() }
    }
}

impl StayShare {
    /// Whether hardly anything was written lately.
    pub fn only_reads(&self) -> bool {
        self.only_reads.load(Ordering::Relaxed)
    }

    /// In percent.
    pub fn pct(&self) -> f64 {
        f64::from(self.share.load(Ordering::Relaxed)) / HUNDREDTHS * 100.0
    }

    /// Looks at what was done since the last look, where the first level has room for so many keys, of `tracked` ones.
    pub fn look(&self, reads: u64, writes: u64, room: u64, tracked: u64) {
        let Some(mut before) = self.before.try_lock() else { return };
        let (reads_since, writes_since) = (reads.saturating_sub(before.0), writes.saturating_sub(before.1));
        let operations = reads_since + writes_since;
        if operations < LOOK && before.0 > 0 {
            return;
        }
        *before = (reads, writes);
        let only_reads = (writes_since as f64) < SOME_WRITES * operations as f64;
        self.only_reads.store(only_reads, Ordering::Relaxed);
        let stays = if only_reads { STAYS_OF_READS } else { STAYS_OF_WRITES };
        let share = room as f64 * stays / tracked.max(1) as f64;
        self.share.store((share.min(1.0) * HUNDREDTHS) as u32, Ordering::Relaxed);
    }
}

/// How much may be written to a flash directory: so many bytes a day, of which a day's can be saved up.
///
/// All there is to it is the moment up to which the budget is used. It is in the pool's header, so that neither a crash nor an
/// open gives anything back; of what a crash interrupts, the bytes of the migrations at work are not counted.
pub struct WearBudget {
    per_day: Option<u64>,
    /// The moment, in nanoseconds since 1970.
    used_up_to: AtomicU64,
    /// Bytes written since the store was opened.
    written: AtomicU64,
}

const NANOS: u64 = 1_000_000_000;
const HOUR: u64 = 3600 * NANOS;
const DAY: u64 = 24 * HOUR;
/// The first of January 2024. A clock that says less was not set yet, as on a machine that begins at 1970 until it has heard of the time.
const SET_SINCE: u64 = 19_723 * DAY;
/// Units of the stored moment to a second.
const STORED: u64 = 16;

/// Nanoseconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

impl WearBudget {
    /// So many bytes a day, nothing of them used at `now`; without a number, any.
    pub fn new(per_day: Option<u64>, now: u64) -> Self {
        WearBudget { per_day, used_up_to: AtomicU64::new(now), written: AtomicU64::new(0) }
    }

    /// Goes on at `now` from what was stored, if anything. `false` if that is of a clock that was ahead: it is to be stored anew.
    pub fn restore(&self, stored: u64, now: u64) -> bool {
        let moment = stored.saturating_mul(NANOS / STORED);
        let latest = Self::latest(now);
        if stored > 0 {
            self.used_up_to.store(moment.min(latest), Ordering::Relaxed);
        }
        moment <= latest
    }

    /// Up to which moment a budget may be used at `now`: a day more, but for a clock that was not set yet, which says nothing of what was
    /// spent before.
    fn latest(now: u64) -> u64 {
        if now < SET_SINCE { u64::MAX } else { now.saturating_add(DAY) }
    }

    /// What is to be stored; `None` if there is no limit.
    pub fn to_store(&self) -> Option<u64> {
        self.per_day.map(|_| self.used_up_to.load(Ordering::Relaxed).div_ceil(NANOS / STORED))
    }

    /// Bytes of tables were written.
    pub fn spend(&self, bytes: u64, now: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
        let Some(per_day) = self.per_day else { return };
        let time =
            (u128::from(bytes) * u128::from(DAY) / u128::from(per_day.max(1))).min(u128::from(DAY)) as u64;
        let later = |used| Some(Self::near(used, now) + time);
        let _ = self.used_up_to.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    /// A moment no further than a day from `now`: not more than a day's bytes are saved up, or owed.
    fn near(used_up_to: u64, now: u64) -> u64 {
        used_up_to.clamp(now.saturating_sub(DAY), now.saturating_add(DAY))
    }

    /// Bytes that may be written at `now`, with an hour's worth ahead. `None` if there is no limit.
    pub fn left(&self, now: u64) -> Option<i64> {
        let per_day = self.per_day?;
        // A clock that was ahead costs a day from now, and not one from whenever somebody asks.
        let used_up_to = Self::near(self.used_up_to.fetch_min(Self::latest(now), Ordering::Relaxed), now);
        let time = i128::from(now) + i128::from(HOUR) - i128::from(used_up_to);
        let bytes = time * i128::from(per_day) / i128::from(DAY);
        Some(bytes.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }

    /// The budget of a day, and bytes that were written since the store was opened; `None` if there is no limit.
    pub fn per_day(&self) -> Option<(u64, u64)> {
        self.per_day.map(|per_day| (per_day, self.written()))
    }

    /// Bytes that were written since the store was opened.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Whether as much was written as may be.
    pub fn is_spent(&self) -> bool {
        self.per_day.is_some() && self.left(now()).is_some_and(|left| left <= 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Climbs for a while on a hill whose top is at `top` percent, where every score is wrong by up to `noise`, and returns where it
    /// is most of the time after that.
    fn climb(share: &PinnedShare, progress: &mut Progress, now: &mut Instant, top: f64, noise: f64) -> f64 {
        let mut rng = fastrand::Rng::with_seed(top as u64);
        let mut found = Vec::new();
        for _ in 0..100 {
            *now += LONG_PERIOD;
            let distance = (f64::from(share.pct()) - top) / 100.0;
            let share_of_flash = 0.2 + distance * distance;
            let wrong = 1.0 + (rng.f64() * 2.0 - 1.0) * noise;
            progress.operations += OPERATIONS;
            progress.flash_reads += (OPERATIONS as f64 * share_of_flash * wrong) as u64;
            share.look(*progress, *now);
            found.push(f64::from(share.pct()));
        }
        let late = &mut found[50..];
        late.sort_by(f64::total_cmp);
        late[late.len() / 2]
    }

    #[test]
    fn the_share_climbs_to_the_top_and_follows_it() {
        let share = PinnedShare::new(None);
        let (mut progress, mut now) = (Progress::default(), Instant::now());
        for (top, noise) in [(20.0, 0.0), (90.0, 0.0), (50.0, 0.0), (0.0, 0.05), (80.0, 0.05)] {
            let found = climb(&share, &mut progress, &mut now, top, noise);
            assert!((found - top).abs() <= 10.0, "{found} for {top}");
        }
        // Tables come in lumps, so a period may be much better or worse than the next.
        for noise in [0.2, 0.3] {
            for top in [20.0, 81.0, 50.0, 82.0, 21.0, 83.0, 51.0, 84.0, 22.0, 85.0] {
                let found = climb(&share, &mut progress, &mut now, top, noise);
                assert!((found - top).abs() <= 15.0, "{found} for {top}");
            }
        }
        let fixed = PinnedShare::new(Some(33));
        climb(&fixed, &mut progress, &mut now, 90.0, 0.0);
        assert_eq!(fixed.pct(), 33);
    }

    #[test]
    fn copies_have_the_room_that_writes_leave() {
        let share = CopiedShare::new(None);
        assert_eq!(share.pct(7), 7);
        share.look(LOOK - 1, 0, 7, (1000, 3000));
        assert_eq!(share.pct(7), 7, "too little was done to tell");
        let (mut reads, mut writes) = (0, 0);
        for (read, written, copied) in
            [(LOOK, 0, 30), (LOOK, LOOK, 7), (LOOK * 3, LOOK, 18), (0, LOOK, 7), (LOOK * 99, LOOK, 29)]
        {
            (reads, writes) = (reads + read, writes + written);
            share.look(reads, writes, 7, (1000, 3000));
            assert_eq!(share.pct(7), copied, "{read} and {written}");
        }
        assert_eq!(share.pct(50), 50);
        share.look(reads + LOOK, writes, 7, (1000, 100));
        assert_eq!(share.pct(7), 100, "all that is tracked fits");
        let fixed = CopiedShare::new(Some(12));
        fixed.look(LOOK, 0, 7, (1000, 100));
        assert_eq!((fixed.pct(7), fixed.pct(50)), (12, 50));
    }

    #[test]
    fn writes_to_flash_count_against_a_period() {
        let period = |flash_reads, table_bytes| {
            Progress { operations: 1000, flash_reads, user_bytes: 100_000, table_bytes }.score(FLASH_READ)
        };
        assert!(period(100, 0) > period(110, 0) && period(100, 0) > period(100, 10_000));
        assert!(period(100, 0) > 1.4 * period(100, 100_000), "as much to flash as callers wrote");
        assert_eq!(Progress { operations: 1000, ..Progress::default() }.score(FLASH_READ), 1.0);
    }

    /// Where a read from flash takes long, fewer of them are worth some bytes more.
    #[test]
    fn what_a_read_from_flash_takes_decides_what_it_is_worth() {
        let share = PinnedShare::new(None);
        let pinned =
            Progress { operations: 1000, flash_reads: 80, user_bytes: 500_000, table_bytes: 320_000 };
        let not = Progress { operations: 1000, flash_reads: 95, user_bytes: 500_000, table_bytes: 280_000 };
        let gain = |share: &PinnedShare| pinned.score(share.flash_read()) / not.score(share.flash_read());
        assert_eq!(share.flash_read(), FLASH_READ);
        assert!(gain(&share) < 1.0 + SAME, "{}", gain(&share));
        (0..1000).for_each(|_| share.took(Duration::from_micros(400)));
        assert!((90.0..110.0).contains(&share.flash_read()), "{}", share.flash_read());
        assert!(gain(&share) > 1.0 + SAME, "{}", gain(&share));
        let known = || share.flash_read.load(Ordering::Relaxed);
        let before = known();
        assert!(matches!(share.measure(|| Ok(None::<u8>)), Ok(None)));
        assert_eq!(known(), before, "nothing was found, and perhaps nothing read");
        let slowly = || {
            std::thread::sleep(Duration::from_millis(5));
            Ok(Some(7))
        };
        assert!(matches!(share.measure(slowly), Ok(Some(7))));
        assert!(known() > before);
        let fixed = PinnedShare::new(Some(7));
        assert!(matches!(fixed.measure(slowly), Ok(Some(7))));
        assert_eq!(fixed.flash_read(), FLASH_READ, "nothing is looked for");
    }

    #[test]
    fn a_budget_comes_in_with_time_and_is_spent_by_writes() {
        let now = 20_000 * DAY;
        let budget = WearBudget::new(Some(24_000), now);
        assert_eq!(budget.left(now), Some(1000), "an hour's worth ahead");
        budget.spend(1500, now);
        assert_eq!(budget.left(now), Some(-500));
        assert_eq!(budget.left(now + HOUR), Some(500));
        // What was used stays used.
        let again = WearBudget::new(Some(24_000), now + HOUR);
        assert!(again.restore(budget.to_store().expect("a limit"), now));
        assert_eq!(again.left(now + HOUR), Some(500));
        assert_eq!((again.per_day(), budget.per_day()), (Some((24_000, 0)), Some((24_000, 1500))));
        // No more than a day's worth comes together, and no more is owed.
        assert_eq!(again.left(now + 50 * DAY), Some(25_000));
        again.spend(1_000_000, now);
        assert_eq!(again.left(now - 50 * DAY), Some(-23_000), "a clock that was set back");
        let nothing = WearBudget::new(Some(24_000), now);
        assert!(nothing.restore(0, now));
        assert_eq!(nothing.left(now), Some(1000), "a store that has none yet");
        let none = WearBudget::new(None, now);
        none.spend(1500, now);
        assert_eq!((none.left(now), none.per_day(), none.to_store()), (None, None, None));
        assert!(!none.is_spent());
        let most = WearBudget::new(Some(u64::MAX), now);
        assert_eq!((most.left(now), most.left(now + DAY)), (Some((u64::MAX / 24) as i64), Some(i64::MAX)));
    }

    /// A migration in a year that is not yet, of which the clock knew better afterwards, in the same process or in the next.
    #[test]
    fn a_clock_that_was_ahead_costs_a_day() {
        let (now, budget) = (20_000 * DAY, WearBudget::new(Some(24_000), 20_000 * DAY));
        budget.spend(12_000, now + 365 * DAY);
        let again = WearBudget::new(Some(24_000), now);
        assert!(!again.restore(budget.to_store().expect("a limit"), now), "it is to be stored anew");
        let third = WearBudget::new(Some(24_000), now);
        assert!(third.restore(again.to_store().expect("a limit"), now + HOUR));
        for budget in [budget, again, third] {
            assert_eq!(budget.left(now), Some(-23_000));
            assert_eq!(budget.left(now + DAY / 2), Some(-11_000));
            assert_eq!(budget.left(now + DAY), Some(1000));
        }
    }

    #[test]
    fn a_clock_that_is_not_set_gives_nothing_back() {
        let now = 20_000 * DAY;
        let budget = WearBudget::new(Some(24_000), now);
        budget.spend(12_000, now);
        let again = WearBudget::new(Some(24_000), HOUR);
        assert!(again.restore(budget.to_store().expect("a limit"), HOUR));
        assert_eq!(again.left(2 * HOUR), Some(-23_000), "until it is set, all counts as spent");
        assert_eq!(again.left(now), Some(-11_000));
    }
}
