//! What a write needs of the fast tier, and whether that is there.

use crate::commit::REDO_BYTES;
use crate::record::{self, HEADER};
use crate::slabs::{Class, Purpose, UNIT};

/// The slots that a write takes, in the order in which it does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    slots: Vec<(u64, Purpose)>,
    bytes: u64,
}

impl Need {
    /// The slots of one more record of a key and a value of these lengths, in slots of `largest` bytes at the most.
    pub fn add(&mut self, key_len: usize, value_len: usize, purpose: Purpose, largest: u64) {
        let Some(shape) = record::shape(key_len, value_len, largest as usize) else {
            // Even the list of its parts is too long: no slot is large enough.
            return self.slot((HEADER + key_len + value_len) as u64, purpose);
        };
        self.slot(shape.head_len as u64, purpose);
        for part in 0..shape.parts {
            self.slot(shape.part_len.min(value_len - part * shape.part_len) as u64, purpose);
        }
    }

    /// The slots of the redo record of so many changes, of which one alone needs none.
    pub fn add_redo(&mut self, changes: usize, largest: u64) {
        if changes > 1 {
            self.add(0, REDO_BYTES * changes, Purpose::Upkeep, largest);
        }
    }

    fn slot(&mut self, len: u64, purpose: Purpose) {
        self.slots.push((len, purpose));
        self.bytes += len;
    }

    /// The one of two that takes more.
    #[must_use]
    pub fn or(self, other: Need) -> Need {
        if other.bytes > self.bytes { other } else { self }
    }
}

/// The largest slot that a record of `len` bytes takes where no smaller one is free.
pub fn largest_for(len: u64, purpose: Purpose) -> u64 {
    if purpose == Purpose::Value { len.max(UNIT) * 4 } else { u64::MAX }
}

/// Of `free` slabs how many this purpose may take, where `reserve` are kept for upkeep: all but these for values, all but half of these for
/// removals. `None` if not even an open slot: where less than half of the reserve is left, what is freed is to become empty slabs, not the
/// next writer's slots.
pub fn slabs_for(purpose: Purpose, free: usize, reserve: usize) -> Option<usize> {
    let kept = match purpose {
        Purpose::Value => reserve,
        Purpose::Removal => reserve / 2,
        Purpose::Upkeep => 0,
    };
    (purpose == Purpose::Upkeep || free >= reserve / 2).then(|| free.saturating_sub(kept))
}

/// What is free, as counts.
pub struct Supply<'c> {
    /// The classes, ascending.
    pub classes: &'c [Class],
    /// Free slots of each class, in slabs that have it.
    pub open: Vec<u64>,
    /// Slabs that nothing uses.
    pub free: usize,
    /// Of them, how many are [kept for upkeep](slabs_for).
    pub reserve: usize,
}

impl Supply<'_> {
    /// Whether a write finds all slots that it needs, taken as `Slabs::take` does.
    pub fn covers(mut self, need: &Need) -> bool {
        need.slots.iter().all(|(len, purpose)| self.take(*len, *purpose))
    }

    fn take(&mut self, len: u64, purpose: Purpose) -> bool {
        let wanted = self.classes.partition_point(|class| class.bytes < len);
        let Some(class) = self.classes.get(wanted) else { return false };
        let Some(slabs) = slabs_for(purpose, self.free, self.reserve) else { return false };
        if self.open[wanted] > 0 {
            self.open[wanted] -= 1;
            return true;
        }
        if slabs > 0 {
            self.free -= 1;
            self.open[wanted] = class.slots - 1;
            return true;
        }
        let most = largest_for(len, purpose);
        let larger = (wanted + 1..self.classes.len()).take_while(|class| self.classes[*class].bytes <= most);
        match larger.into_iter().find(|class| self.open[*class] > 0) {
            Some(class) => {
                self.open[class] -= 1;
                true
            }
            None => false,
        }
    }
}
