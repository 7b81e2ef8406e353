//! When operations are to begin.
//!
//! In a closed loop an operation begins when the last one has ended, so a store that stalls is asked less, and
//! what would have waited is not counted ("coordinated omission"). In an open loop operations are due at random
//! times of a fixed rate, and their latency counts from when they were due.

use std::time::{Duration, Instant};

/// Below this, waiting is by looking at the clock: a sleeping thread wakes up too late.
const SPIN: Duration = Duration::from_micros(80);

/// When an operation is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Whenever it begins: its latency counts from then.
    AtOnce,
    /// Since this moment, from which its latency counts.
    Since(Instant),
    /// Not before the end of the phase.
    Never,
}

/// The times at which the operations of one thread begin.
pub struct Pace {
    /// Mean seconds between operations, and when the last one was due; `None` in a closed loop.
    open: Option<(f64, Instant)>,
}

impl Pace {
    /// `rate` operations a second from `begun` on, or without a rate a closed loop.
    pub fn new(rate: Option<f64>, begun: Instant) -> Self {
        Pace { open: rate.map(|rate| (1.0 / rate, begun)) }
    }

    /// Waits until the next operation is due. Intervals are exponentially distributed, so the operations of all
    /// threads are a Poisson process.
    pub fn wait(&mut self, rng: &mut fastrand::Rng, deadline: Option<Instant>) -> Due {
        let Some((mean, due)) = &mut self.open else { return Due::AtOnce };
        *due += Duration::from_secs_f64(-(1.0 - rng.f64()).ln() * *mean);
        if deadline.is_some_and(|deadline| *due >= deadline) {
            return Due::Never;
        }
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Due::Since(*due);
            }
            if left > SPIN {
                std::thread::sleep(left - SPIN);
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_due_at_the_rate_whatever_they_take() {
        let begun = Instant::now();
        let mut pace = Pace::new(Some(10_000.0), begun);
        let mut rng = fastrand::Rng::with_seed(1);
        std::thread::sleep(Duration::from_millis(50));
        // Late: those that were due meanwhile begin at once, and count from when they were due.
        let late = (0..).take_while(|_| {
            matches!(pace.wait(&mut rng, None), Due::Since(due) if due < begun + Duration::from_millis(50))
        });
        let late = late.count();
        assert!((400..600).contains(&late), "{late} operations were due in 50 ms");
        assert_eq!(pace.wait(&mut rng, Some(begun + Duration::from_millis(50))), Due::Never);
        assert_eq!(Pace::new(None, begun).wait(&mut rng, None), Due::AtOnce);
    }
}
