//! Records of which damage leaves not even the key: keys with that hash must not seem to be gone, nor an older version to
//! be the newest.
//!
//! The first open that meets one writes over it what is known: the mark of its word, and a *bound* that no seqno had
//! reached then. So versions that are written later are known to be newer, also by the opens to come.

use crate::heap::Heap;
use crate::slabs::Mark;
use tierdb_base::{Result, Seqno};
use tierdb_pmem::Pool;

/// A live slot whose record could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostSlot {
    /// Its place.
    pub at: u64,
    /// What its word says.
    pub mark: Mark,
    /// Versions above are newer.
    pub bound: Seqno,
}

impl LostSlot {
    /// The value of the record that says this.
    pub fn encode(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.mark.to_word().to_le_bytes());
        bytes[8..].copy_from_slice(&self.bound.to_le_bytes());
        bytes
    }

    /// What the record at byte `at` says, whose word has this mark.
    pub fn decode(at: u64, mark: Mark, value: &[u8]) -> Option<Self> {
        let (word, bound) = value.split_first_chunk::<8>()?;
        let bound = u64::from_le_bytes(bound.try_into().ok()?);
        (u64::from_le_bytes(*word) == mark.to_word()).then_some(LostSlot { at, mark, bound })
    }
}

/// Live slots whose records could not be read when the store was opened, by the hashes of their keys.
#[derive(Default)]
pub struct Lost(Vec<LostSlot>);

impl Lost {
    /// These slots.
    pub fn new(mut slots: Vec<LostSlot>) -> Self {
        slots.sort_by_key(|slot| slot.mark.hash());
        Lost(slots)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub fn slots(&self) -> &[LostSlot] {
        &self.0
    }

    /// The slot that may hide a version of `key` newer than `version`, if one does: a live slot never has an older one
    /// than flash.
    pub fn hides(&self, key: &[u8], version: Option<Seqno>) -> Option<u64> {
        if self.0.is_empty() {
            return None;
        }
        let hash = Mark::new(key, 0).hash();
        let of_hash = &self.0[self.0.partition_point(|slot| slot.mark.hash() < hash)..];
        let newer = |slot: &&LostSlot| {
            let known = |version| version > slot.bound || slot.mark.may_be_from(version);
            !version.is_some_and(known)
        };
        of_hash.iter().take_while(|slot| slot.mark.hash() == hash).find(newer).map(|slot| slot.at)
    }

    /// Refuses to say what comes next in the order of keys: it may be one of these.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn check_all<P: Pool>(&self, heap: &Heap<P>) -> Result<()> {
        self.0.first().map_or(Ok(()), |slot| Err(heap.damaged(slot.at)))
    }

    /// Refuses to answer for `key` by `version`, where damage may hide a newer one.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn check<P: Pool>(&self, heap: &Heap<P>, key: &[u8], version: Option<Seqno>) -> Result<()> {
        self.hides(key, version).map_or(Ok(()), |at| Err(heap.damaged(at).with_key(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_record_hides_what_is_not_known_to_be_newer() {
        let slot = LostSlot { at: 640, mark: Mark::new(b"key", 5000), bound: 1 << 20 };
        assert_eq!(LostSlot::decode(640, slot.mark, &slot.encode()), Some(slot));
        assert_eq!(LostSlot::decode(640, Mark::new(b"key", 5001), &slot.encode()), None, "another word");
        let lost = Lost::new(vec![slot]);
        assert_eq!(lost.hides(b"key", None), Some(640));
        assert_eq!(lost.hides(b"key", Some(4000)), Some(640), "older");
        assert_eq!(lost.hides(b"key", Some(900_000)), Some(640), "as far as its word tells, it may be older");
        assert_eq!(lost.hides(b"key", Some(5000)), None, "the same version");
        assert_eq!(lost.hides(b"key", Some((1 << 20) + 3)), None, "written later");
        assert_eq!(lost.hides(b"other", None), None);
    }
}
