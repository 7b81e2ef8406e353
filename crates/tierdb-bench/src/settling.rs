//! When a warm-up is over: caches hold what they will hold.
//!
//! Not every store counts hits, so what counts are the bytes read from flash for each operation: by the store's own count, or where
//! it has none by the kernel's, of all that the process has had read from devices. They are compared over windows long enough to say
//! something. With two fifths of the reads missing, as is usual here, [`NEAR`] is about one point of the share of hits.

/// Windows in the least length.
const WINDOWS: f64 = 2.0;
/// Two windows that differ by no more than this share are the same.
const NEAR: f64 = 0.02;

/// Looks at the reads of a warm-up while it runs.
#[derive(Debug)]
pub struct Settling {
    window: f64,
    /// Operations before which it is not over.
    ops: u64,
    /// When the window that is running began, in seconds, and the operations and bytes that had been counted by then.
    began: (f64, u64, u64),
    /// Bytes read for an operation in the window before.
    before: Option<f64>,
}

impl Settling {
    /// Of a warm-up that begins now, lasts at least so many seconds and has so many operations. The process has had so many bytes
    /// read before.
    pub fn new(least: f64, ops: u64, read_bytes: u64) -> Self {
        Settling { window: least / WINDOWS, ops, began: (0.0, 0, read_bytes), before: None }
    }

    /// Whether it is over, `seconds` after it began, with so many operations done and bytes read.
    pub fn look(&mut self, seconds: f64, ops: u64, read_bytes: impl FnOnce() -> u64) -> bool {
        let (since, ops_then, bytes_then) = self.began;
        if seconds - since < self.window || ops == ops_then {
            return false;
        }
        let read_bytes = read_bytes();
        let now = (read_bytes - bytes_then) as f64 / (ops - ops_then) as f64;
        let settled = self.before.is_some_and(|before| (now - before).abs() <= NEAR * now.max(before));
        (self.began, self.before) = ((seconds, ops, read_bytes), Some(now));
        settled && ops >= self.ops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a warm-up of 10 s at the least is over whose reads of 1000 operations a second take these bytes each, second by
    /// second.
    fn over(bytes: impl Fn(u64) -> u64) -> Option<u64> {
        over_after(0, bytes)
    }

    /// The same with so many operations at the least.
    fn over_after(ops: u64, bytes: impl Fn(u64) -> u64) -> Option<u64> {
        let mut read = 1 << 30;
        let mut settling = Settling::new(10.0, ops, read);
        (0..200).find(|second| {
            if *second > 0 {
                read += 1000 * bytes(*second);
            }
            settling.look(*second as f64, 1000 * second, || read)
        })
    }

    #[test]
    fn it_is_over_when_reads_take_as_much_as_before() {
        assert_eq!(over(|_| 1600), Some(10), "from the start");
        assert_eq!(over(|_| 0), Some(10), "all is in memory");
        assert_eq!(over(|second| 1600 + second % 5 * 10), Some(10), "each window has the same unrest");
        assert_eq!(
            over(|second| 4000_u64.saturating_sub(100 * second).max(1600)),
            Some(35),
            "24 s until it is full"
        );
        assert_eq!(over(|second| 1 << second.min(30)), Some(40), "never twice the same until it stays");
        assert_eq!(over_after(10_000, |_| 1600), Some(10), "as many as there are in the least time");
        assert_eq!(over_after(12_000, |_| 1600), Some(15), "at the end of the window in which it has them");
        assert_eq!(over_after(1_000_000, |_| 1600), None, "never as many");
        let mut stalled = Settling::new(1.0, 0, 0);
        assert!(
            (0..100).all(|second| !stalled.look(f64::from(second), 0, || 0)),
            "no operation says nothing"
        );
    }
}
