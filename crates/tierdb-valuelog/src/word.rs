//! HSIT words: where a key's value is, in 8 bytes that change at once.
//!
//! ```text
//! word 0, persistent                                      word 1, meaningless after a crash
//!  63    62..61  60..49  48..45   44..41  40..0            63       62      61..32  31..0
//! ┌─────┬───────┬───────┬────────┬───────┬─────────┐      ┌─────────┬────────┬──────┬──────────┐
//! │dirty│ kind  │ tag   │ length │device │ address │      │ pending │ wanted │ zero │ cache    │
//! │     │       │       │ class  │       │ /32     │      │         │        │      │ slot     │
//! └─────┴───────┴───────┴────────┴───────┴─────────┘      └─────────┴────────┴──────┴──────────┘
//! ```
//!
//! * *kind*: 0 none (the key is not there), 1 write buffer (address in the pool), 2 Value Storage (address
//!   on the device), 3 free (the entry belongs to no key; never relied on after a crash, where it means none).
//! * *none* and *free* point at no record that could be coupled with them, so they are made of 29 low bits of
//!   the seqno of the delete (to tell words apart, and for nothing else; 0 if there was none) and above
//!   them a check of 32 bits, which covers the entry's number too: no damage, and no lost page, looks like a
//!   key that is not there. In DRAM the check is zero; see [`crate::hsit`].
//! * *tag*: 12 bits of a hash of the record's seqno. A device that lost a write may hold an older record of
//!   the same key at the same address, intact and naming the same entry; its tag tells (1 in 4,096 passes).
//! * *dirty*: stored, and perhaps not durable yet. Whoever reads it makes it durable first (PRISM §5.4).
//!
//! Since format 1.

use crate::cache::Slot;
use crate::record::Kind;
use std::fmt;

/// Records start at multiples of this many bytes, in the write buffer and on flash.
pub const UNIT: u64 = 32;
/// Flash directories a word can name.
pub const MAX_DEVICES: usize = 16;
/// Bytes of one pool or device that a word can address: 64 TiB.
pub const MAX_ADDRESS: u64 = UNIT << 41;

const DIRTY: u64 = 1 << 63;
const CLASS_SHIFT: u32 = 45;
/// The bits of the length class.
const CLASS: u64 = 0xf << CLASS_SHIFT;
const PENDING: u64 = 1 << 63;
const WANTED: u64 = 1 << 62;
/// Bits of a seqno in the word of a deleted key.
const NUMBER_BITS: u32 = 29;

/// Longest record, in bytes, of each length class but the last, which is [`LARGE`].
const CLASS_BYTES: [u64; 15] = [
    256,
    512,
    1 << 10,
    1536,
    2 << 10,
    3 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    512 << 10,
    1 << 20,
    4 << 20,
];
/// The length class of a record that heads a value kept in parts.
pub const LARGE: u8 = 15;

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The key is not there.
    None,
    /// In the write buffer, at this byte of the pool.
    Ring(u64),
    /// In Value Storage: device number and byte of its file.
    Flash(u8, u64),
    /// The entry belongs to no key.
    Free,
    /// The word is not one that was written.
    Damaged,
}

/// HSIT word 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Word(pub u64);

impl Word {
    /// The word of a key that is not there.
    pub const NONE: Word = Word(0);
    /// The word of an entry that belongs to no key.
    pub const FREE: Word = Word(3 << 61);
    /// What is read for a word that is not one that was written.
    pub const DAMAGED: Word = Word(Word::CHECK);
    /// The bits of the check of a word that points at no record.
    pub const CHECK: u64 = ((1 << 32) - 1) << NUMBER_BITS;

    /// The word of a record of `len` bytes with `seqno` at `place`; `large` if it heads a value in parts.
    pub fn new(place: Place, seqno: u64, len: u64, large: bool) -> Word {
        let (kind, device, at) = match place {
            Place::None => return Word::NONE,
            Place::Free => return Word::FREE,
            Place::Damaged => return Word::DAMAGED,
            Place::Ring(at) => (1u64, 0u8, at),
            Place::Flash(device, at) => (2, device, at),
        };
        assert!(at.is_multiple_of(UNIT) && at < MAX_ADDRESS && usize::from(device) < MAX_DEVICES);
        let class = if large { LARGE } else { class_of(len) };
        Word(
            (kind << 61)
                | (u64::from(tag_of(seqno)) << 49)
                | (u64::from(class) << CLASS_SHIFT)
                | (u64::from(device) << 41)
                | (at / UNIT),
        )
    }

    /// The word of a key that write `seqno` deletes. It names the write, since a dirty bit is cleared by
    /// comparing words: another delete's word must not be taken for this one.
    pub fn deleted(seqno: u64) -> Word {
        Word(seqno & ((1 << NUMBER_BITS) - 1))
    }

    /// The same record elsewhere.
    #[must_use]
    pub fn moved_to(self, place: Place) -> Word {
        let (kind, device, at) = match place {
            Place::None => return Word::NONE,
            Place::Free => return Word::FREE,
            Place::Damaged => return Word::DAMAGED,
            Place::Ring(at) => (1u64, 0u8, at),
            Place::Flash(device, at) => (2, device, at),
        };
        let kept = self.0 & ((0xfff << 49) | CLASS);
        Word((kind << 61) | kept | (u64::from(device) << 41) | (at / UNIT))
    }

    /// Where the record is.
    #[inline]
    pub fn place(self) -> Place {
        let at = (self.0 & ((1 << 41) - 1)) * UNIT;
        match self.0 >> 61 & 3 {
            1 => Place::Ring(at),
            2 => Place::Flash((self.0 >> 41 & 0xf) as u8, at),
            _ if self.0 & Word::CHECK != 0 => Place::Damaged,
            0 => Place::None,
            _ => Place::Free,
        }
    }

    /// The tag of the record it points at.
    #[inline]
    pub fn tag(self) -> u16 {
        (self.0 >> 49 & 0xfff) as u16
    }

    /// The record's length class.
    pub fn class(self) -> u8 {
        ((self.0 & CLASS) >> CLASS_SHIFT) as u8
    }

    /// Whether the record heads a value kept in parts.
    pub fn is_large(self) -> bool {
        self.class() == LARGE
    }

    /// Most bytes the record may have. A head of parts of a whole value has at most `chunk` bytes.
    pub fn max_len(self, chunk: u64) -> u64 {
        if self.is_large() { chunk } else { CLASS_BYTES[usize::from(self.class())].min(chunk) }
    }

    /// Fewest bytes the record may have.
    pub fn min_len(self) -> u64 {
        match self.class() {
            0 | LARGE => UNIT,
            class => CLASS_BYTES[usize::from(class) - 1] + 1,
        }
    }

    /// Whether its class is that of a record of `len` bytes and of `kind`.
    pub fn suits(self, len: usize, kind: Kind) -> bool {
        self == self.of_record(len as u64, kind)
    }

    /// The same with the class of a record of `len` bytes and of `kind`.
    #[must_use]
    pub fn of_record(self, len: u64, kind: Kind) -> Word {
        let class = if kind == Kind::Parts { LARGE } else { class_of(len) };
        Word(self.0 & !CLASS | u64::from(class) << CLASS_SHIFT)
    }

    /// Whether it may not be durable yet.
    #[inline]
    pub fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// The same, not durable yet.
    #[must_use]
    pub fn dirty(self) -> Word {
        Word(self.0 | DIRTY)
    }

    /// The same, whatever its durability: what is compared.
    #[must_use]
    #[inline]
    pub fn clean(self) -> Word {
        Word(self.0 & !DIRTY)
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} tag {:#x} class {}", self.place(), self.tag(), self.class())?;
        if self.is_dirty() { f.write_str(" dirty") } else { Ok(()) }
    }
}

/// The tag of a record with `seqno`.
#[inline]
pub fn tag_of(seqno: u64) -> u16 {
    // Fibonacci hashing: the top bits of a product with an odd constant.
    (seqno.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as u16
}

/// The length class of a record of `len` bytes.
pub fn class_of(len: u64) -> u8 {
    CLASS_BYTES.iter().position(|most| len <= *most).unwrap_or(usize::from(LARGE) - 1) as u8
}

/// HSIT word 1: the cache slot of the value, whether a batch is being installed, and whether the value is wanted in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Aux(pub u64);

impl Aux {
    /// Whether a batch is being installed: wait for the entry's latch.
    #[inline]
    pub fn is_pending(self) -> bool {
        self.0 & PENDING != 0
    }

    /// The same, with a batch being installed or not.
    #[must_use]
    pub fn pending(self, pending: bool) -> Aux {
        Aux(if pending { self.0 | PENDING } else { self.0 & !PENDING })
    }

    /// Whether the value was read in the write buffer, or took the place of a cached one: then it is to be cached as it leaves
    /// the write buffer.
    #[inline]
    pub fn is_wanted(self) -> bool {
        self.0 & WANTED != 0
    }

    /// The same, with the value wanted in the cache.
    #[must_use]
    pub fn wanted(self) -> Aux {
        Aux(self.0 | WANTED)
    }

    /// The cache slot, if the value is cached.
    #[inline]
    pub fn slot(self) -> Option<Slot> {
        Slot::from_bits(self.0 as u32)
    }

    /// The same with another slot, and not wanted.
    #[must_use]
    pub fn with_slot(self, slot: Option<Slot>) -> Aux {
        Aux((self.0 & PENDING) | u64::from(slot.map_or(0, Slot::bits)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_what_it_is_made_of() {
        for place in [Place::Ring(4096), Place::Flash(15, MAX_ADDRESS - UNIT), Place::Flash(0, 0)] {
            let word = Word::new(place, 77, 1100, false);
            assert_eq!((word.place(), word.tag()), (place, tag_of(77)));
            assert!(word.min_len() <= 1100 && 1100 <= word.max_len(1 << 20));
            assert_eq!(word.dirty().clean(), word);
            assert!(word.dirty().is_dirty() && !word.is_dirty());
            let moved = word.moved_to(Place::Flash(3, 64));
            assert_eq!(
                (moved.place(), moved.tag(), moved.class()),
                (Place::Flash(3, 64), word.tag(), word.class())
            );
        }
        assert!(Word::new(Place::Ring(0), 1, 9000, true).is_large());
        assert_eq!((Word::NONE.place(), Word::FREE.place()), (Place::None, Place::Free));
        assert_eq!(Word::DAMAGED.place(), Place::Damaged);
        assert_eq!(Word::deleted(u64::MAX).place(), Place::None);
        assert_ne!(Word::deleted(7), Word::deleted(8));
    }

    #[test]
    fn classes_cover_every_length() {
        for len in 1..=(4u64 << 20) {
            if len.is_power_of_two() || (len + 1).is_power_of_two() || (len - 1).is_power_of_two() {
                let word = Word::new(Place::Ring(32), 1, len, false);
                assert!(word.min_len() <= len.max(UNIT) && len <= word.max_len(u64::MAX), "{len}");
            }
        }
    }

    #[test]
    fn the_second_word_keeps_slot_and_mark_apart() {
        let slot = Slot::from_bits(7);
        let aux = Aux::default().with_slot(slot).pending(true).wanted();
        assert!(aux.is_pending() && aux.is_wanted() && aux.slot() == slot);
        assert_eq!(aux.with_slot(None).pending(false), Aux::default());
    }
}
