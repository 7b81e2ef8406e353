//! Memory of copies that were evicted, for those that come next.
//!
//! Who reads a record makes the copy, and what is evicted for it is freed by whoever ends its epoch. Allocators keep what is freed
//! for the threads that it was allocated by. So a cache whose copies come from these threads now, and then from those, would come
//! to take half as much memory again as its copies, and more.
//!
//! Memory is allocated in sizes of sixteen steps to a doubling, so that what was freed fits what comes.

use super::shared_bytes;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tierdb_engine::Value;

/// Steps to a doubling.
const STEPS: usize = 16;
/// How many are looked at for one that nobody reads any more.
const TRIES: usize = 4;
/// Most that are given back while nobody else can take or keep any.
const PIECE: usize = 64;

/// The copy of a record, in memory that may be a little longer.
#[derive(Clone, Debug)]
pub struct Copied {
    memory: Arc<[u8]>,
    len: u32,
    /// Where the part begins that readers want: the value, which is the last one.
    value: u32,
}

impl Copied {
    /// A copy of `record`, whose value begins at `value`, in `memory` if that is given: then it is of the [length](memory_for) for that.
    pub(crate) fn new(record: &[u8], value: usize, memory: Option<Arc<[u8]>>) -> Self {
        let mut memory = memory.unwrap_or_else(|| std::iter::repeat_n(0, memory_for(record.len())).collect());
        Arc::make_mut(&mut memory)[..record.len()].copy_from_slice(record);
        Copied { memory, len: record.len() as u32, value: value as u32 }
    }

    /// Bytes of its memory.
    pub(super) fn memory_len(&self) -> usize {
        self.memory.len()
    }

    /// Its value, which has a share of the memory.
    pub(super) fn value(&self) -> Value {
        Value::shared(Arc::clone(&self.memory), self.value as usize..self.len as usize)
    }
}

impl Deref for Copied {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len as usize]
    }
}

/// Bytes of memory that the copy of a record of `len` takes: with the header of an allocation, whole steps.
pub(super) fn memory_for(len: usize) -> usize {
    const HEADER: usize = 8;
    let whole = len + HEADER;
    let step = (1 << whole.ilog2()) / STEPS;
    whole.next_multiple_of(step.max(16)) - HEADER
}

/// What memory of `len` bytes counts while it is kept: as an allocation, and with its place in a list that may be half empty.
pub(super) fn kept_bytes(len: usize) -> u64 {
    shared_bytes(len) + 2 * size_of::<Arc<[u8]>>() as u64
}

/// Memory that nobody needs, or only who has still to end a read of it.
#[derive(Default)]
pub(super) struct Spare {
    kept: Mutex<Kept>,
    /// As [`Kept::bytes`].
    bytes: AtomicU64,
    /// How often memory was taken.
    #[cfg(test)]
    pub taken: AtomicU64,
}

#[derive(Default)]
struct Kept {
    /// By length.
    lists: HashMap<usize, VecDeque<Arc<[u8]>>>,
    /// What all of it [counts](kept_bytes).
    bytes: u64,
}

impl Spare {
    /// Bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Memory of `len` bytes that nobody else has, if there is some among the first.
    pub fn take(&self, len: usize) -> Option<Arc<[u8]>> {
        let mut kept = self.kept.lock();
        let memory = kept.take(len)?;
        self.bytes.store(kept.bytes, Relaxed);
        #[cfg(test)]
        self.taken.fetch_add(1, Relaxed);
        Some(memory)
    }

    /// Keeps the memory of a copy that is evicted, if there are no more than `most` bytes then. Returns how many bytes are given back,
    /// its own among them if it is not kept; there may be more than `most` after that.
    pub fn keep(&self, copied: &Copied, most: u64) -> u64 {
        let (len, bytes) = (copied.memory.len(), kept_bytes(copied.memory.len()));
        let mut kept = self.kept.lock();
        let is_kept = bytes <= most;
        if is_kept {
            kept.lists.entry(len).or_default().push_back(Arc::clone(&copied.memory));
            kept.bytes += bytes;
        }
        let given_back = self.give_back(kept, most);
        if is_kept { given_back } else { given_back + bytes }
    }

    /// Gives memory back of which there is most, until no more than `most` bytes are left. Returns how many those were.
    pub fn shrink(&self, most: u64) -> u64 {
        let mut sum = 0;
        while self.bytes() > most {
            let given_back = self.give_back(self.kept.lock(), most);
            if given_back == 0 {
                break;
            }
            sum += given_back;
        }
        sum
    }

    /// Gives back a piece of what is more than `most` bytes, and says what is kept now. Nobody waits while the memory is freed.
    fn give_back(&self, mut kept: MutexGuard<'_, Kept>, most: u64) -> u64 {
        let (given_back, _gone) = kept.give_back(most);
        self.bytes.store(kept.bytes, Relaxed);
        drop(kept);
        given_back
    }

    /// What is in the lists, counted.
    #[cfg(test)]
    pub fn audit(&self) -> u64 {
        let kept = self.kept.lock();
        let sum: u64 = kept.lists.iter().map(|(len, list)| kept_bytes(*len) * list.len() as u64).sum();
        assert_eq!((sum, sum), (kept.bytes, self.bytes()));
        sum
    }
}

impl Kept {
    fn take(&mut self, len: usize) -> Option<Arc<[u8]>> {
        let list = self.lists.get_mut(&len)?;
        for _ in 0..TRIES.min(list.len()) {
            let mut memory = list.pop_front()?;
            if Arc::get_mut(&mut memory).is_some() {
                self.bytes -= kept_bytes(len);
                return Some(memory);
            }
            list.push_back(memory);
        }
        None
    }

    /// Takes out what is to be given back for `most` bytes to be left, but no more than a piece: how many bytes, and what.
    fn give_back(&mut self, most: u64) -> (u64, Vec<Arc<[u8]>>) {
        let (before, mut gone) = (self.bytes, Vec::new());
        while self.bytes > most && gone.len() < PIECE {
            let largest = self.lists.iter_mut().max_by_key(|(len, list)| **len * list.len());
            let Some((&len, list)) = largest else { break };
            while self.bytes > most
                && gone.len() < PIECE
                && let Some(memory) = list.pop_front()
            {
                self.bytes -= kept_bytes(len);
                gone.push(memory);
            }
            if list.is_empty() {
                self.lists.remove(&len);
            } else if list.len() < list.capacity() / 4 {
                list.shrink_to(list.len() * 2);
            }
        }
        (before - self.bytes, gone)
    }
}

#[cfg(test)]
mod tests {
    use super::super::heap_bytes;
    use super::*;

    #[test]
    fn memory_is_used_again_once_nobody_reads_it() {
        let spare = Spare::default();
        let first = Copied::new(&[1; 1000], 0, None);
        let at = first.as_ptr();
        assert_eq!((first.memory_len(), first.len()), (1016, 1000));
        assert_eq!((spare.keep(&first, 10_000), spare.audit()), (0, kept_bytes(1016)));
        assert!(spare.take(1016).is_none() && first[..] == [1; 1000], "it is still read");
        drop(first);
        assert!(spare.take(1000).is_none());
        let second = Copied::new(&[2; 1003], 1000, spare.take(1016));
        assert!(second.as_ptr() == at && second[..] == [2; 1003]);
        assert_eq!((spare.audit(), &second.value()[..]), (0, &[2; 3][..]));
    }

    #[test]
    fn no_more_is_kept_than_may_be_and_less_of_what_there_is_most_of() {
        let (short, long, most) = (kept_bytes(104), kept_bytes(200), 3 * kept_bytes(104) + kept_bytes(200));
        let spare = Spare::default();
        let keep = |len: usize| spare.keep(&Copied::new(&vec![0; len], 0, None), most);
        assert_eq!([100, 200, 100, 100, 100].map(keep), [0, 0, 0, 0, short]);
        assert_eq!((keep(5000), spare.audit()), (kept_bytes(memory_for(5000)), most));
        let of = |len: usize| spare.kept.lock().lists.get(&len).map_or(0, VecDeque::len);
        assert_eq!((of(104), of(200)), (3, 1));
        assert_eq!(spare.shrink(long + short), 2 * short);
        assert_eq!((of(104), of(200), spare.audit()), (1, 1, short + long));
        assert_eq!((spare.shrink(0), spare.shrink(0)), (short + long, 0));
    }

    /// However much there is, others get at it after a piece.
    #[test]
    fn much_is_given_back_in_pieces() {
        let spare = Spare::default();
        (0..1000).for_each(|_| assert_eq!(spare.keep(&Copied::new(&[0; 100], 0, None), u64::MAX), 0));
        let one = kept_bytes(104);
        assert_eq!(spare.keep(&Copied::new(&[0; 100], 0, None), one), PIECE as u64 * one);
        assert_eq!((spare.shrink(one), spare.audit()), ((1000 - PIECE as u64) * one, one));
    }

    #[test]
    fn little_more_is_taken_than_needed() {
        for len in 0..100_000 {
            let memory = memory_for(len);
            assert!(memory >= len && memory < len + 16 + len / STEPS, "{memory} for {len}");
            assert!(memory_for(memory) == memory && shared_bytes(memory) == heap_bytes(memory + 16));
        }
    }
}
