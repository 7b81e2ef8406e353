//! Space of free chunks that goes back to the file system.

use super::Device;
use std::ops::Range;
use std::sync::atomic::Ordering;
use tierdb_base::Result;
use tierdb_device::{BlockFile, Dir};
use tierdb_pmem::Pool;

/// Most free chunks that are out of reach of writers at once.
const AT_ONCE: usize = 64;

impl<D: Dir> Device<D> {
    /// Gives the space of free chunks back to the file system, but for as many as collection needs and one more. The file keeps its
    /// length. A chunk that is given out again takes its space again; a write that finds none fails as any other does.
    ///
    /// # Errors
    /// The failure of making the pool's words durable, or of the file: then some have given it back.
    pub fn discard_free<P: Pool>(&self, pool: &P) -> Result<()> {
        loop {
            let taken = self.take_whole();
            if taken.is_empty() {
                return Ok(());
            }
            // As before a chunk is given out: what pointed into it must be gone from media.
            let done = pool.wait(pool.lsn()).and_then(|()| self.discard(&taken));
            let mut space = self.space();
            let (holes, others): (Vec<u32>, Vec<u32>) =
                taken.iter().partition(|number| self.is_hole(**number));
            space.put_last(&holes, &others);
            drop(space);
            self.waiting.fetch_sub(taken.len() as u32, Ordering::AcqRel);
            done?;
        }
    }

    /// Takes out free chunks that have their space, in the order of the file, those that would be given out last.
    fn take_whole(&self) -> Vec<u32> {
        let kept = self.reserve() as usize + 1;
        let mut space = self.space();
        let whole = space.free.len() - space.discarded;
        let (from, most) = (space.discarded, whole.saturating_sub(kept).min(AT_ONCE));
        let mut taken: Vec<u32> = space.free.drain(from..from + most).collect();
        // Who finds no chunk meanwhile waits for these.
        self.waiting.fetch_add(taken.len() as u32, Ordering::AcqRel);
        drop(space);
        taken.sort_unstable();
        taken
    }

    fn discard(&self, chunks: &[u32]) -> Result<()> {
        for chunks in runs(chunks) {
            let (at, len) = (u64::from(chunks.start), u64::from(chunks.end - chunks.start));
            self.file.file().discard(at * self.chunk_bytes, len * self.chunk_bytes)?;
            chunks.for_each(|number| self.with_chunk(number, |chunk| chunk.is_hole = true));
        }
        Ok(())
    }
}

/// The stretches of numbers that follow each other in `numbers`, which are in order.
fn runs(numbers: &[u32]) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(last) if last.end == *number => last.end += 1,
            _ => runs.push(*number..number + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::super::space::Space;
    use super::*;
    use crate::core::Core;
    use crate::core::tests::{store_of, wait_for_readers};
    use crate::moving::Reclaim;
    use crate::storage::State;
    use tierdb_base::ErrorKind;
    use tierdb_device::{AlignedBuf, Cause};
    use tierdb_engine::Durability;
    use tierdb_sim::{FaultKind, FaultPlan, Ops, SimDir, SimPool, World};

    const CHUNKS: u32 = 64;
    const CHUNK: u64 = 16 << 10;

    fn put_all(core: &Core<SimPool, SimDir>, keys: std::ops::Range<u32>, byte: u8) {
        for number in keys {
            core.put(&number.to_be_bytes(), &[byte; 400], Durability::Durable).expect("room");
        }
        core.reclaim(Reclaim::All).expect("room");
    }

    /// Chunks of the file that are all zeros.
    fn zeros(core: &Core<SimPool, SimDir>) -> Vec<u32> {
        let device = &core.storage.devices()[0];
        let mut chunk = AlignedBuf::default();
        let mut is_zeros = |number: &u32| {
            device.read_chunk(*number, &mut chunk, Cause::Verify).expect("no faults");
            chunk.iter().all(|byte| *byte == 0)
        };
        (0..device.chunks_in_file()).filter(|number| is_zeros(number)).collect()
    }

    /// Goal: what nobody needs takes no space, and can be used again. Method: three quarters of the keys go, are put again, and
    /// all are read.
    #[test]
    fn free_chunks_give_their_space_back_and_are_used_again() {
        let world = World::new();
        let core = store_of(&world, u64::from(CHUNKS) * CHUNK);
        put_all(&core, 0..1200, 1);
        let before = zeros(&core);
        (300..1200u32)
            .for_each(|n| core.delete(&n.to_be_bytes(), Durability::Durable).expect("no room needed"));
        core.collect_all().expect("no faults");
        wait_for_readers(&core);
        core.discard_free().expect("no faults");
        let (device, after) = (&core.storage.devices()[0], zeros(&core));
        assert!(after.len() > before.len() + 16, "{before:?} before, {after:?} after");
        // Free ones, and those of them without space.
        let space = || {
            let space = device.space();
            (space.free.len(), space.discarded)
        };
        assert_eq!(space().0 - space().1, device.reserve() as usize + 1);
        put_all(&core, 600..1200, 2);
        for number in 0..1200u32 {
            let value = core.get(&number.to_be_bytes()).expect("whole").map(|value| value[0]);
            assert_eq!(value, [Some(1), None, Some(2)][(number / 300).min(2) as usize], "{number}");
        }
        assert!(core.verify().expect("no faults").is_clean());
        assert!(!device.is_waiting(), "nobody waits for what is there");
        // A failure leaves them free, as they are.
        let free = space().0;
        (0..1200u32)
            .for_each(|n| core.delete(&n.to_be_bytes(), Durability::Durable).expect("no room needed"));
        core.collect_all().expect("no faults");
        wait_for_readers(&core);
        let given = space().1;
        world.inject(FaultPlan::from_nth(1, FaultKind::Eio).on(Ops::RESIZE));
        core.discard_free().expect_err("the file system refuses");
        world.heal();
        assert!(space().0 > free && space().1 == given);
        put_all(&core, 0..1200, 3);
        assert!(core.verify().expect("no faults").is_clean());
    }

    /// What collection needs is not given to others while there is anything else.
    #[test]
    fn chunks_that_have_their_space_are_kept_for_collection() {
        let mut space = Space { free: vec![1, 2, 3, 4, 5, 6], discarded: 3, ..Space::default() };
        let taken: Vec<_> = (0..4).map(|_| space.take(2)).collect();
        assert_eq!(taken, [Some(6), Some(3), Some(2), Some(1)]);
        assert_eq!(
            (space.discarded, [space.take(0), space.take(0), space.take(0)]),
            (0, [Some(5), Some(4), None])
        );
        let mut space = Space { free: vec![1, 2, 3, 4], discarded: 2, ..Space::default() };
        space.put_last(&[7, 9], &[8]);
        space.put(6, false);
        space.put(5, true);
        assert_eq!((space.free, space.discarded), (vec![1, 2, 7, 9, 5, 8, 3, 4, 6], 5));
    }

    /// Goal: what collection needs is there when the file system has no room for what gave its space back. Method: a write to such a chunk
    /// fails; what collection is given next is another.
    #[test]
    fn a_chunk_that_gets_no_space_back_is_not_taken_for_one_that_has_it() {
        let world = World::new();
        let core = store_of(&world, u64::from(CHUNKS) * CHUNK);
        put_all(&core, 0..1200, 1);
        (0..1200u32)
            .for_each(|n| core.delete(&n.to_be_bytes(), Durability::Durable).expect("no room needed"));
        core.collect_all().expect("no faults");
        wait_for_readers(&core);
        core.discard_free().expect("no faults");
        let device = &core.storage.devices()[0];
        let discarded = || device.space().discarded;
        let take =
            |reserved| device.allocate(&*core.pool, State::Part, CHUNK, reserved).expect("there are some");
        let before = discarded();
        let hole =
            std::iter::repeat_with(|| take(false)).find(|_| discarded() < before).expect("one of them");
        world.inject(FaultPlan::nth(1, FaultKind::Enospc).on(Ops::WRITE).in_dir("flash"));
        let block = AlignedBuf::zeroed(4096).expect("memory");
        let refused = device.write_durable(u64::from(hole) * CHUNK, &block, Cause::Reclaim);
        assert_eq!(refused.expect_err("no room").kind(), ErrorKind::NoSpace);
        Device::release_part(device, hole, &crossbeam_epoch::pin());
        wait_for_readers(&core);
        assert_eq!(discarded(), before);
        assert_ne!(take(true), hole);
        // So it is where a part of it has space.
        let hole =
            std::iter::repeat_with(|| take(false)).find(|_| discarded() < before).expect("one of them");
        let at = u64::from(hole) * CHUNK;
        device.write_durable(at, &block, Cause::Reclaim).expect("no fault is left");
        world.inject(FaultPlan::nth(1, FaultKind::Enospc).on(Ops::WRITE).in_dir("flash"));
        device.write_durable(at + 4096, &block, Cause::Reclaim).expect_err("no room");
        Device::release_part(device, hole, &crossbeam_epoch::pin());
        wait_for_readers(&core);
        assert_eq!(discarded(), before);
        // Once it was written it is as any other.
        let hole =
            std::iter::repeat_with(|| take(false)).find(|_| discarded() < before).expect("one of them");
        device.write_durable(u64::from(hole) * CHUNK, &block, Cause::Reclaim).expect("no fault is left");
        Device::release_part(device, hole, &crossbeam_epoch::pin());
        wait_for_readers(&core);
        assert_eq!((discarded(), take(true)), (before - 1, hole));
    }

    #[test]
    fn what_lies_side_by_side_goes_at_once() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[0, 1, 2, 5, 7, 8]), [0..3, 5..6, 7..9]);
    }
}
