//! Which snapshots are open.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use tierdb_base::Seqno;

/// The snapshots that are open.
#[derive(Default)]
pub struct Snapshots {
    /// Each seqno with how many there are.
    open: Mutex<BTreeMap<Seqno, u64>>,
    /// One more than the newest seqno of them; 0 if there are none.
    after_newest: AtomicU64,
}

impl Snapshots {
    /// Counts a snapshot whose seqno `take` gives, and tells first of all: writers with a later one must [see](Snapshots::newest) that.
    pub fn open(&self, take: impl FnOnce(&dyn Fn(Seqno)) -> Seqno) -> Seqno {
        let mut open = self.open.lock();
        let seqno = take(&|seqno| self.after_newest.store(seqno + 1, SeqCst));
        *open.entry(seqno).or_insert(0) += 1;
        seqno
    }

    /// Forgets a snapshot. `true` if it was the last of its seqno.
    pub fn close(&self, seqno: Seqno, release: impl FnOnce()) -> bool {
        let mut open = self.open.lock();
        release();
        let Some(count) = open.get_mut(&seqno) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            open.remove(&seqno);
            let newest = open.last_key_value().map(|(newest, _)| *newest);
            self.after_newest.store(newest.map_or(0, |newest| newest + 1), SeqCst);
        }
        last
    }

    /// The newest of those that a writer which asks after it took its seqno has to leave their versions to. It may have been closed
    /// meanwhile.
    pub fn newest(&self) -> Option<Seqno> {
        self.after_newest.load(SeqCst).checked_sub(1)
    }

    /// The open ones, ascending.
    pub fn list(&self) -> Vec<Seqno> {
        self.open.lock().keys().copied().collect()
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
        assert_eq!(snapshots.newest(), None);
        for seqno in [10, 10, 20] {
            let took = |tell: &dyn Fn(Seqno)| {
                tell(seqno);
                assert_eq!(snapshots.newest(), Some(seqno), "before writers go on");
                seqno
            };
            assert_eq!(snapshots.open(took), seqno);
        }
        let open = snapshots.list();
        assert!(sees(&open, 10, 11) && sees(&open, 5, 15) && sees(&open, 11, 21));
        assert!(!sees(&open, 11, 20) && !sees(&open, 5, 10) && !sees(&open, 21, 99));
        assert!(!snapshots.close(10, || {}) && snapshots.close(20, || {}));
        assert_eq!((snapshots.list(), snapshots.newest()), (vec![10], Some(10)));
        assert!(snapshots.close(10, || {}));
        assert_eq!((snapshots.list(), snapshots.newest()), (vec![], None));
    }
}
