//! How fast migrations may go.

use crate::core::Core;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tierdb_device::{Dir, own_cpu};
use tierdb_pmem::Pool;

/// Bytes after which a merge looks whether it is too fast.
const LOOK: f64 = 65_536.0;
/// Longest time that a merge sleeps before it looks whether anyone waits for it.
const NAP: Duration = Duration::from_millis(5);

/// The rate of all merges together.
pub struct Rate {
    per_second: u64,
    /// When what was moved up to now would be moved at that rate.
    free_at: Mutex<Instant>,
}

impl Rate {
    pub fn new(per_second: u64) -> Self {
        Rate { per_second, free_at: Mutex::new(Instant::now()) }
    }

    /// Until when who has moved `bytes` more since `from` is to wait. Time in which nothing was moved is not saved up.
    fn take(&self, bytes: u64, from: Instant) -> Instant {
        let time = Duration::from_secs_f64(bytes as f64 / self.per_second as f64);
        let mut free_at = self.free_at.lock();
        *free_at = (*free_at).max(from) + time;
        *free_at
    }
}

/// What one merge has moved since it last looked whether that was too fast.
pub struct Moved {
    bytes: f64,
    since: Instant,
}

impl Moved {
    /// Nothing yet.
    pub fn new() -> Self {
        Moved { bytes: 0.0, since: Instant::now() }
    }
}

/// One that waits for what migrations do, until it is dropped.
pub struct Waiting<'w>(&'w AtomicU32);

impl<'w> Waiting<'w> {
    pub fn new(waiting: &'w AtomicU32) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sleeps until `due`, a `nap` at a time, or until `ends` before one of them. Returns for how long.
pub fn sleep_until(due: Instant, nap: Duration, ends: impl Fn() -> bool) -> Duration {
    let begun = Instant::now();
    while let Some(rest) = due.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
        if ends() {
            break;
        }
        std::thread::sleep(rest.min(nap));
    }
    begun.elapsed()
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Does `work` of a migration, whose processor time is counted, but for what imitating a device takes of it.
    pub fn timed_cpu<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = own_cpu();
        let done = work();
        self.counters.migration_cpu_ns.add(own_cpu().saturating_sub(begun).as_nanos() as u64);
        done
    }

    /// After `bytes` more were read from flash or written to it: in steps, sleeps where that was faster than it may be, and nobody waits for
    /// it.
    pub fn keep_rate(&self, moved: &mut Moved, bytes: f64) {
        let Some(rate) = &self.work.rate else { return };
        moved.bytes += bytes;
        if moved.bytes < LOOK {
            return;
        }
        let moved = std::mem::replace(moved, Moved::new());
        let work = &self.work;
        let waits = || work.waiting.load(Ordering::Relaxed) + work.asked.load(Ordering::Relaxed) > 0;
        let hurried = || waits() || self.is_waited_for();
        if hurried() {
            return;
        }
        let slept = sleep_until(rate.take(moved.bytes as u64, moved.since), NAP, hurried);
        self.counters.paced_ns.add(slept.as_nanos() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Options;
    use crate::plan::Victims;
    use crate::rig::{self, Store};
    use tierdb_engine::Engine;

    #[test]
    fn what_was_not_used_is_not_saved_up() {
        let (rate, now) = (Rate::new(1000), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(rate.take(500, now), now + second / 2);
        assert_eq!(rate.take(500, now), now + second);
        assert_eq!(rate.take(1000, now + 10 * second), now + 11 * second);
    }

    /// 256 keys of 700 bytes take 0.4 s at that rate, unless somebody waits for them.
    #[test]
    fn migrations_keep_the_rate_unless_somebody_waits_for_them() {
        const POOL: u64 = 512 << 10;
        let options = Options { table_bytes: 1 << 20, migration_rate: Some(400 << 10), ..rig::options(POOL) };
        let store = Store::new(POOL, options);
        let fill = || (0..=255).for_each(|number| store.put(&[b'k', number], 700));
        let paced = || Duration::from_nanos(store.core().counters.paced_ns.get());
        fill();
        let begun = Instant::now();
        store.core().migrate_best(Victims::All, 0.0).expect("room");
        // Of the time that it is to take, it slept what the work left.
        let (took, slept) = (begun.elapsed(), paced());
        assert!(took >= Duration::from_millis(300) && !slept.is_zero(), "{slept:?} of {took:?}");
        let before = paced();
        fill();
        store.engine.flush().expect("room");
        assert_eq!(paced(), before);
    }
}
