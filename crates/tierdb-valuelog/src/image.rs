//! The image of a closed store: what it kept in DRAM, so that the next open need not look for it.
//!
//! A close writes the image to chunks of Value Storage as a value in parts ([`crate::long`]), a record of kind
//! `Image` that lists them to a page of the pool, and names that page in the header ([`crate::layout`]).
//! All words are u64:
//!
//! ```text
//! HSIT entries │ sum of the HSIT │ sum of the leaves
//! rings        │ for each: where it starts │ where it ends
//! long values  │ for each: entry │ tag │ parts │ for each: device:8 in the top, chunk:32
//! devices      │ for each: chunks in use │ for each: number │ fields and bitmap ([`crate::storage`])
//! ```
//!
//! * It is believed only if index and HSIT are, by their sums, bit for bit as they were when it was made. All that
//!   is in it follows from those two, so a store that was changed since, or damaged, has none: the open looks
//!   for everything as after a crash.
//! * The open takes the name away, so that the next one need not compare sums. If a crash brings it back, they do.
//! * Nothing refers to its chunks and its page once the name is gone: they are free.
//! * Best effort: where there is no room for one, or something is not settled (a snapshot is open, a chunk is kept
//!   because of damage), or it had more parts than a page can list, there is none: 505 of them, of 512 KiB, are enough for some
//!   60 GiB of values of 100 bytes, and 900 GiB of 1 KiB, with their garbage.
//!
//! Since format 1.

use crate::core::Core;
use crate::layout::{IMAGE, Layout};
use crate::long::{PartList, Parts};
use crate::pages::{PAGE, Pages, Purpose};
use crate::record::{Header, Kind, encode};
use crate::ring::{Ring, Rings};
use crate::storage::{Chunk, State, Storage};
use crate::word::UNIT;
use tierdb_base::{ErrorKind, Result, matches};
use tierdb_device::{Cause, Dir};
use tierdb_pmem::{Pool, Stage, seal, unseal};

/// What an image says.
pub struct Image {
    entries: u64,
    hsit_sum: u64,
    index_sum: u64,
    rings: Vec<(u64, u64)>,
    long: Vec<((u64, u16), PartList)>,
    /// By device: the chunks in use.
    chunks: Vec<Vec<(u32, Chunk)>>,
}

/// The words of an image that were not looked at yet.
pub struct Words<'i>(&'i [u64]);

impl<'i> Words<'i> {
    /// The next word.
    pub fn take(&mut self) -> Option<u64> {
        self.0.split_off_first().copied()
    }

    /// A word that says how many follow, and those.
    pub fn list(&mut self) -> Option<&'i [u64]> {
        let count = self.take()?.try_into().ok()?;
        self.0.split_off(..count)
    }
}

impl Image {
    fn decode<D: Dir>(bytes: &[u8], layout: &Layout, storage: &Storage<D>) -> Option<Self> {
        let all: Vec<u64> = bytes.as_chunks::<8>().0.iter().copied().map(u64::from_le_bytes).collect();
        let words = &mut Words(&all);
        let (entries, hsit_sum, index_sum) = (words.take()?, words.take()?, words.take()?);
        let ends = (0..words.take()?).map(|_| Some((words.take()?, words.take()?)));
        let ends: Vec<_> = ends.collect::<Option<_>>()?;
        let ring = layout.ring_bytes;
        let possible = |(tail, head): &(u64, u64)| {
            *tail < ring
                && (*tail..=tail + ring).contains(head)
                && tail.is_multiple_of(UNIT)
                && head.is_multiple_of(UNIT)
        };
        let mut long = Vec::new();
        for _ in 0..words.take()? {
            let value = (words.take()?, words.take()? as u16);
            let part = |word: &u64| ((word >> 56) as u8, (word & 0xffff_ffff) as u32);
            long.push((value, words.list()?.iter().map(part).collect()));
        }
        let of_store = ends.len() == layout.rings as usize && ends.iter().all(possible);
        if words.take()? != storage.devices().len() as u64 || !of_store {
            return None;
        }
        let chunks = storage.devices().iter().map(|device| device.chunks_of_image(words));
        let image =
            Image { entries, hsit_sum, index_sum, rings: ends, long, chunks: chunks.collect::<Option<_>>()? };
        let mut listed: PartList = image.long.iter().flat_map(|(_, parts)| parts).copied().collect();
        listed.sort_unstable();
        // A part that no value lists would never be given up.
        (words.0.is_empty() && listed == image.parts()).then_some(image)
    }

    /// The chunks of which it says that they hold parts, in order.
    fn parts(&self) -> PartList {
        let parts = |(device, chunks): (u8, &Vec<(u32, Chunk)>)| {
            let parts = chunks.iter().filter(|(_, chunk)| chunk.state == State::Part);
            parts.map(|(number, _)| (device, *number)).collect::<PartList>()
        };
        (0..).zip(&self.chunks).flat_map(parts).collect()
    }
}

/// Takes the image that a close has left out of the store. `None` if there was none, or it is not whole.
pub fn take<P: Pool, D: Dir>(
    pool: &P,
    pages: &Pages<P>,
    storage: &Storage<D>,
    layout: &Layout,
    seed: u64,
) -> Option<Image> {
    let named = unseal(pool, seed, IMAGE);
    if named.as_ref().is_ok_and(|page| *page == 0) {
        return None;
    }
    let read = |page: u64| {
        if !pages.contains(page) {
            return None;
        }
        let mut head = [0; PAGE as usize];
        pool.read(page * PAGE, &mut head).ok()?;
        // What it lists is checked as a whole.
        let header = Header::parse(&head)
            .filter(|header| header.kind == Kind::Image && header.len() as u64 <= PAGE)?;
        let parts = Parts::decode(header.body(&head), storage.chunk_bytes())?;
        let bytes = parts.join(storage, seed, Cause::Recovery).ok()??;
        Image::decode(&bytes, layout, storage)
    };
    let image = named.ok().and_then(read);
    pool.publish(IMAGE, seal(seed, IMAGE, 0));
    image
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Leaves an image for the next open, if there is room for it. Called when the store is closed, while nothing
    /// uses it.
    ///
    /// # Errors
    /// The failure of a write.
    pub fn leave_image(&self) -> Result<()> {
        self.reclaim.lock().seal();
        self.collect.lock().seal();
        let mut rewrite = self.rewrite.lock();
        rewrite.abandon();
        rewrite.seal();
        drop(rewrite);
        self.work.settle_epochs();
        let most = self.longest_listed_in(PAGE) / 8;
        let Some(words) = self.image(most as usize) else { return Ok(()) };
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        let unless_full = |error: tierdb_base::Error| match error.kind() {
            ErrorKind::NoSpace => Ok(()),
            _ => Err(error),
        };
        let body = match self.write_parts(&bytes, 0, Cause::Recovery) {
            Ok((body, _parts)) => body,
            Err(error) => return unless_full(error),
        };
        let mut head = Vec::new();
        encode(&mut head, self.seed, Kind::Image, 0, self.clock.last(), &[], &body);
        assert!(head.len() as u64 <= PAGE, "so many parts were counted on");
        let page = match self.pages.allocate(Purpose::Shrink) {
            Ok(page) => page,
            Err(error) => return unless_full(error),
        };
        let _admitted = self.pool.admit(2 * PAGE)?;
        let mut stage = Stage::new(&*self.pool);
        stage.write(page * PAGE, &head);
        stage.drain().publish(IMAGE, seal(self.seed, IMAGE, page));
        self.pool.fence();
        Ok(())
    }

    /// What is to be in the image, if there can be one of `most` words.
    pub(crate) fn image(&self, most: usize) -> Option<Vec<u64>> {
        // What is kept for a snapshot is live as long as this process.
        if !self.versions.is_empty() || !self.deleted.lock().is_empty() {
            return None;
        }
        let (hsit_sum, absent) = self.hsit.survey()?;
        let entries = self.hsit.len();
        // Else a key has no value, or an entry with a value no key: an open clears that up.
        if self.index.keys() + absent.len() as u64 != entries {
            return None;
        }
        let mut words = vec![entries, hsit_sum, self.index.sum(self.options.recovery_threads)?];
        words.push(u64::from(self.layout.rings));
        let ends = |ring: &Ring| <[u64; 2]>::from(ring.ends(self.layout.ring_bytes));
        words.extend(self.rings.iter().flat_map(ends));
        let long = self.long.all();
        words.push(long.len() as u64);
        for ((entry, tag), parts) in long {
            words.extend([entry, u64::from(tag), parts.len() as u64]);
            words.extend(parts.iter().map(|(device, chunk)| u64::from(*device) << 56 | u64::from(*chunk)));
        }
        words.push(self.storage.devices().len() as u64);
        for device in self.storage.devices() {
            words.extend(device.image(most.checked_sub(words.len())?)?);
        }
        (words.len() <= most).then_some(words)
    }

    /// Makes the store in DRAM what it was when it was closed; `false` if index or HSIT are not what they were,
    /// and nothing was done.
    pub fn restore(&mut self, image: Image) -> bool {
        let Some((hsit_sum, absent)) = self.hsit.survey().filter(|_| self.hsit.len() == image.entries) else {
            return false;
        };
        if !matches(image.hsit_sum, hsit_sum) {
            return false;
        }
        let index_sum = self.index.sum(self.options.recovery_threads);
        if !index_sum.is_some_and(|sum| matches(image.index_sum, sum)) {
            return false;
        }
        self.hsit.reset_all_aux();
        self.hsit.set_free(absent);
        self.rings = Rings::new(self.pool.clone(), self.seed, &self.layout, &image.rings);
        image.long.into_iter().for_each(|((entry, tag), parts)| self.long.note(entry, tag, parts));
        for (device, chunks) in self.storage.devices().iter().zip(image.chunks) {
            device.restore(chunks);
        }
        self.counters.opened_from_image.add(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::{store, store_of};
    use crate::moving::Reclaim;
    use tierdb_engine::Durability;
    use tierdb_sim::World;

    /// Where in the image of the test's store is what.
    const RINGS: usize = 3;
    const TAIL: usize = 4;
    const HEAD: usize = 5;
    const PART: usize = 10;
    const DEVICES: usize = 11;
    const CHUNK_OF_PART: usize = 13;
    const CHUNK_OF_RECORDS: usize = 24;
    const LIVE: usize = CHUNK_OF_RECORDS + 3;
    const LIVE_BYTES: usize = CHUNK_OF_RECORDS + 4;
    const TOTAL_BYTES: usize = CHUNK_OF_RECORDS + 5;

    #[test]
    fn words_that_no_close_writes_are_no_image() {
        let core = store(&World::new());
        core.put(b"key", &[2; 500], Durability::Durable).expect("room");
        core.put(b"long", &[1; 20_000], Durability::Durable).expect("room");
        core.reclaim(Reclaim::All).expect("room");
        core.reclaim.lock().seal();
        core.work.settle_epochs();
        let words = core.image(usize::MAX).expect("all is settled");
        assert_eq!(core.image(words.len()).as_ref(), Some(&words));
        assert!(core.image(words.len() - 1).is_none(), "the last chunk is one too many");
        let is_image = |words: &[u64]| {
            let bytes: Vec<u8> = words.iter().copied().flat_map(u64::to_le_bytes).collect();
            Image::decode(&bytes, &core.layout, &core.storage).is_some()
        };
        assert!(is_image(&words));
        let ring = core.layout.ring_bytes;
        assert_eq!((words[RINGS], words[DEVICES]), (1, 1), "{words:?}");
        assert_eq!((words[CHUNK_OF_PART], words[LIVE]), (words[PART], 1), "{words:?}");
        let wrong: [(usize, u64); 15] = [
            (RINGS, 0),
            (RINGS, u64::MAX),
            (TAIL, ring),
            (TAIL, words[TAIL] + 8),
            (HEAD, words[HEAD] + 8),
            (HEAD, words[TAIL] + ring + UNIT),
            (HEAD, u64::MAX),
            // No such device, no such chunk, one that holds no part.
            (PART, words[PART] | 1 << 56),
            (PART, u64::from(u32::MAX)),
            (PART, words[CHUNK_OF_RECORDS]),
            (DEVICES, 2),
            (CHUNK_OF_PART, u64::from(u32::MAX)),
            // A part that no value lists.
            (CHUNK_OF_RECORDS + 1, words[CHUNK_OF_PART + 1]),
            (LIVE_BYTES, words[TOTAL_BYTES] + 1),
            (TOTAL_BYTES, u64::MAX),
        ];
        for (at, word) in wrong {
            let mut words = words.clone();
            words[at] = word;
            assert!(!is_image(&words), "{word:#x} at {at}");
        }
        let mut more_live = words.clone();
        more_live[LIVE] += 1;
        assert!(!is_image(&more_live));
        assert!((0..words.len()).all(|end| !is_image(&words[..end])), "an image that is cut");
        assert!(!is_image(&[&words[..], &[0]].concat()), "and one with more behind it");
    }

    #[test]
    fn what_a_page_can_list_fits_a_page() {
        let core = store_of(&World::new(), 32 << 20);
        let most = core.longest_listed_in(PAGE) as usize;
        for (len, fits) in [(most, true), (most + 1, false)] {
            let (body, parts) =
                core.write_parts(&vec![1; len], 0, Cause::Recovery).expect("room for twice as much");
            let mut head = Vec::new();
            encode(&mut head, core.seed, Kind::Image, 0, 1, &[], &body);
            assert_eq!(head.len() as u64 <= PAGE, fits, "{} parts", parts.len());
        }
    }
}
