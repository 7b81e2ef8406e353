//! Which snapshots are open.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tierdb_base::Seqno;

/// The snapshots that are open, each seqno with how many there are.
#[derive(Default)]
pub struct Snapshots(Mutex<BTreeMap<Seqno, u64>>);

impl Snapshots {
    /// Counts a snapshot whose seqno `take` gives.
    pub fn open(&self, take: impl FnOnce() -> Seqno) -> Seqno {
        let mut open = self.0.lock();
        let seqno = take();
        *open.entry(seqno).or_insert(0) += 1;
        seqno
    }

    /// Forgets a snapshot. `true` if it was the last of its seqno.
    pub fn close(&self, seqno: Seqno, release: impl FnOnce()) -> bool {
        let mut open = self.0.lock();
        release();
        let Some(count) = open.get_mut(&seqno) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            open.remove(&seqno);
        }
        last
    }

    /// The open ones, ascending.
    pub fn list(&self) -> Vec<Seqno> {
        self.0.lock().keys().copied().collect()
    }
}

/// Whether one of `snapshots`, which ascend, sees a version written with `seqno` and replaced by write `by`.
pub fn sees(snapshots: &[Seqno], seqno: Seqno, by: Seqno) -> bool {
    let first = snapshots.partition_point(|snapshot| *snapshot < seqno);
    snapshots.get(first).is_some_and(|snapshot| *snapshot < by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_sees_what_was_replaced_after_it() {
        let snapshots = Snapshots::default();
        assert_eq!((snapshots.open(|| 10), snapshots.open(|| 10), snapshots.open(|| 20)), (10, 10, 20));
        let open = snapshots.list();
        assert!(sees(&open, 10, 11) && sees(&open, 5, 15) && sees(&open, 11, 21));
        assert!(!sees(&open, 11, 20) && !sees(&open, 5, 10) && !sees(&open, 21, 99));
        assert!(!snapshots.close(10, || {}) && snapshots.close(10, || {}));
        assert_eq!(snapshots.list(), [20]);
    }
}
