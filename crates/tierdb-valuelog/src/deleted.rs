//! Keys without a value that are still in the index, since a snapshot sees a value of theirs.

use std::collections::{HashMap, VecDeque};
use tierdb_base::Seqno;

/// Room for so many is kept where there are fewer.
const SPARE: usize = 64;

/// The keys, in the order in which they came. One for each entry: an entry is one key's at a time, so a later one says that
/// the earlier one has gone.
#[derive(Default)]
pub struct DeletedKeys {
    order: VecDeque<Deleted>,
    keys: HashMap<u64, Box<[u8]>>,
    key_bytes: u64,
}

/// A place in the order.
struct Deleted {
    entry: u64,
    since: Seqno,
}

impl DeletedKeys {
    /// Adds the key of `entry`, if it is not there. From `since` on, the seqno of now, no snapshot sees a value of the key that was
    /// there before.
    pub fn add(&mut self, entry: u64, key: &[u8], since: Seqno) {
        let before = self.keys.insert(entry, key.into());
        self.key_bytes += key.len() as u64;
        match before {
            Some(before) => self.key_bytes -= before.len() as u64,
            None => self.order.push_back(Deleted { entry, since }),
        }
    }

    /// The entry of the first one, as [`DeletedKeys::pop`] would take it out.
    pub fn due(&self, oldest: Seqno) -> Option<u64> {
        self.order.front().filter(|first| first.since <= oldest).map(|first| first.entry)
    }

    /// Takes out the first one, with its entry, if it came before `oldest`, the oldest open snapshot.
    pub fn pop(&mut self, oldest: Seqno) -> Option<(u64, Box<[u8]>)> {
        let Deleted { entry, .. } = self.order.pop_front_if(|first| first.since <= oldest)?;
        let key = self.keys.remove(&entry)?;
        self.key_bytes -= key.len() as u64;
        if self.order.capacity() > 4 * self.order.len() + SPARE {
            let most = 2 * self.order.len();
            self.order.shrink_to(most);
            self.keys.shrink_to(most);
        }
        Some((entry, key))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Their entries.
    pub fn entries(&self) -> impl Iterator<Item = u64> {
        self.order.iter().map(|deleted| deleted.entry)
    }

    /// Bytes of DRAM.
    pub fn memory_bytes(&self) -> u64 {
        let of_map = self.keys.capacity() * (size_of::<(u64, Box<[u8]>)>() + 1);
        (self.order.capacity() * size_of::<Deleted>() + of_map) as u64 + self.key_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_there_once_with_its_last_key() {
        let mut deleted = DeletedKeys::default();
        (0..20_000).for_each(|since| deleted.add(7, b"key", since));
        deleted.add(8, b"other", 3);
        deleted.add(7, b"next", 9);
        assert_eq!(deleted.len(), 2);
        assert!(deleted.memory_bytes() < 4096, "{} bytes", deleted.memory_bytes());
        assert_eq!(deleted.pop(0), Some((7, b"next"[..].into())));
        assert_eq!((deleted.due(2), deleted.pop(2)), (None, None), "a snapshot may see it");
        assert_eq!(deleted.due(3), Some(8));
        assert_eq!(deleted.pop(3), Some((8, b"other"[..].into())));
        assert!(deleted.is_empty() && deleted.key_bytes == 0 && deleted.keys.is_empty());
    }
}
