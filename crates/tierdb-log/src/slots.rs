//! Which slots of the image are in use.

/// One bit a slot. Runs of free slots are handed out from where the last one ended, so that a checkpoint
/// is written in long runs as far as the free space allows.
pub(crate) struct Slots {
    used: Vec<u64>,
    count: u32,
    free: u32,
    next: u32,
}

impl Slots {
    /// `count` slots, all free.
    pub(crate) fn new(count: u32) -> Self {
        let mut slots = Slots { used: Vec::new(), count: 0, free: 0, next: 0 };
        slots.grow(count);
        slots
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Adds free slots up to `count` in all.
    pub(crate) fn grow(&mut self, count: u32) {
        self.free += count - self.count;
        self.count = count;
        self.used.resize(count.div_ceil(64) as usize, 0);
    }

    fn is_used(&self, slot: u32) -> bool {
        self.used[(slot / 64) as usize] & (1 << (slot % 64)) != 0
    }

    /// Takes `slot`; false if it is in use or there is no such slot.
    #[must_use]
    pub(crate) fn take(&mut self, slot: u32) -> bool {
        if slot >= self.count || self.is_used(slot) {
            return false;
        }
        self.used[(slot / 64) as usize] |= 1 << (slot % 64);
        self.free -= 1;
        true
    }

    /// Gives `slot` back.
    pub(crate) fn release(&mut self, slot: u32) {
        assert!(self.is_used(slot), "slot {slot} is released once");
        self.used[(slot / 64) as usize] &= !(1 << (slot % 64));
        self.free += 1;
    }

    /// Takes a run of at most `most` adjacent free slots: its first, and how many. `None` if all are used.
    pub(crate) fn take_run(&mut self, most: u32) -> Option<(u32, u32)> {
        let first = self.first_free(self.next, self.count).or_else(|| self.first_free(0, self.next))?;
        let mut taken = 0;
        while taken < most && self.take(first + taken) {
            taken += 1;
        }
        self.next = first + taken;
        Some((first, taken))
    }

    fn first_free(&self, from: u32, to: u32) -> Option<u32> {
        let mut slot = from;
        while slot < to {
            let ones = (self.used[(slot / 64) as usize] >> (slot % 64)).trailing_ones();
            if ones == 0 {
                return Some(slot);
            }
            // The shift filled the top with zeros, so this stops at the word's end at the latest.
            slot += ones;
        }
        None
    }

    /// Bytes of DRAM it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.used.len() as u64 * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_stop_at_used_slots_and_wrap_around() {
        let mut slots = Slots::new(70);
        assert!(slots.take(3) && !slots.take(3) && !slots.take(70));
        assert_eq!(slots.take_run(10), Some((0, 3)));
        assert_eq!(slots.take_run(100), Some((4, 66)));
        assert_eq!((slots.take_run(1), slots.free()), (None, 0));
        slots.release(65);
        slots.release(2);
        assert_eq!(slots.take_run(9), Some((2, 1)));
        assert_eq!(slots.take_run(9), Some((65, 1)));
        slots.grow(72);
        assert_eq!((slots.take_run(9), slots.free()), (Some((70, 2)), 0));
    }
}
