//! Memory of copies that were evicted, for those that come next.
//!
//! Who reads a record makes the copy, and another thread frees what is evicted for it. Allocators keep what is freed for the
//! threads that it was allocated by. So a cache whose copies come from these threads now, and then from those, would come to
//! take half as much memory again as its copies, and more.
//!
//! Memory is allocated in sizes of sixteen steps to a doubling, so that what was freed fits what comes.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tierdb_engine::Value;

/// Steps to a doubling.
const STEPS: usize = 16;
/// How many are looked at for one that nobody reads any more.
const TRIES: usize = 4;

/// The copy of a record, in memory that may be a little longer.
#[derive(Clone, Debug)]
pub struct Copied {
    memory: Arc<[u8]>,
    len: u32,
}

impl Copied {
    /// Bytes of its memory.
    pub(super) fn memory_len(&self) -> usize {
        self.memory.len()
    }

    /// The part `range` of the record.
    pub(super) fn value(&self, range: Range<usize>) -> Value {
        Value::shared(Arc::clone(&self.memory), range)
    }
}

impl Deref for Copied {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len as usize]
    }
}

impl Copied {
    /// A copy of `record`, in `memory` if that is given: then it is of the [length](memory_for) for that.
    pub(crate) fn new(record: &[u8], memory: Option<Arc<[u8]>>) -> Self {
        let mut memory = memory.unwrap_or_else(|| std::iter::repeat_n(0, memory_for(record.len())).collect());
        Arc::make_mut(&mut memory)[..record.len()].copy_from_slice(record);
        Copied { memory, len: record.len() as u32 }
    }
}

/// Bytes of memory that the copy of a record of `len` takes.
pub(super) fn memory_for(len: usize) -> usize {
    let step = (1 << len.max(1).ilog2()) / STEPS;
    len.next_multiple_of(step.max(16))
}

/// Memory that nobody needs, or only who has still to end a read of it.
#[derive(Default)]
pub(super) struct Spare {
    kept: Mutex<Kept>,
    bytes: AtomicU64,
}

/// By length; the front was kept first.
#[derive(Default)]
struct Kept(HashMap<usize, VecDeque<Arc<[u8]>>>);

impl Spare {
    /// Bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Memory of `len` bytes that nobody else has, if there is some.
    pub fn take(&self, len: usize) -> Option<Arc<[u8]>> {
        let memory = self.kept.lock().take(len)?;
        self.bytes.fetch_sub(len as u64, Relaxed);
        Some(memory)
    }

    /// Keeps the memory of a copy that is evicted, but no more than `most` bytes in all. Returns how many bytes are given back for
    /// that, its own among them if it is not kept.
    pub fn keep(&self, copied: &Copied, most: u64) -> u64 {
        let len = copied.memory.len();
        if len as u64 > most {
            return len as u64 + self.shrink(most);
        }
        self.kept.lock().0.entry(len).or_default().push_back(Arc::clone(&copied.memory));
        self.bytes.fetch_add(len as u64, Relaxed);
        self.shrink(most)
    }

    /// Gives memory back of which there is most, until no more than `most` bytes are left. Returns how many those were.
    pub fn shrink(&self, most: u64) -> u64 {
        if self.bytes() <= most {
            return 0;
        }
        let (mut kept, mut freed) = (self.kept.lock(), 0);
        while self.bytes() > most
            && let Some(len) = kept.give_back()
        {
            self.bytes.fetch_sub(len, Relaxed);
            freed += len;
        }
        freed
    }
}

impl Kept {
    fn take(&mut self, len: usize) -> Option<Arc<[u8]>> {
        let list = self.0.get_mut(&len)?;
        for _ in 0..TRIES.min(list.len()) {
            let mut memory = list.pop_front()?;
            if Arc::get_mut(&mut memory).is_some() {
                return Some(memory);
            }
            list.push_back(memory);
        }
        None
    }

    fn give_back(&mut self) -> Option<u64> {
        let (len, list) = self.0.iter_mut().max_by_key(|(len, list)| **len * list.len())?;
        list.pop_front().map(|_| *len as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_once_nobody_reads_it() {
        let spare = Spare::default();
        let first = Copied::new(&[1; 1000], None);
        let at = first.as_ptr();
        assert_eq!((first.memory_len(), first.len()), (1024, 1000));
        assert_eq!((spare.keep(&first, 10_000), spare.bytes()), (0, 1024));
        assert!(spare.take(1024).is_none() && first[..] == [1; 1000], "it is still read");
        drop(first);
        assert!(spare.take(1008).is_none());
        let second = Copied::new(&[2; 1003], spare.take(1024));
        assert!(second.as_ptr() == at && second[..] == [2; 1003]);
        assert_eq!((spare.bytes(), second.value(2..5).len()), (0, 3));
    }

    #[test]
    fn no_more_is_kept_than_may_be_and_less_of_what_there_is_most_of() {
        let spare = Spare::default();
        let keep = |len: usize| spare.keep(&Copied::new(&vec![0; len], None), 600);
        assert_eq!([100, 200, 100, 100, 100, 5000].map(keep), [0, 0, 0, 0, 112, 5120]);
        let of = |len: usize| spare.kept.lock().0.get(&len).map_or(0, VecDeque::len);
        assert_eq!((of(112), of(208), spare.bytes()), (3, 1, 3 * 112 + 208));
        assert_eq!(spare.shrink(250), 112 + 112 + 208);
        assert_eq!((of(112), of(208), spare.bytes()), (1, 0, 112));
        assert_eq!((spare.shrink(0), spare.shrink(0)), (112, 0));
    }

    #[test]
    fn little_more_is_taken_than_needed() {
        for len in 1..100_000 {
            let memory = memory_for(len);
            assert!(memory >= len && memory < len + 16 + len / STEPS, "{memory} for {len}");
            assert_eq!(memory_for(memory), memory);
        }
    }
}
