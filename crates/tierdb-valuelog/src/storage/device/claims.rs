//! What an open finds of a device: the chunks that words point into, or those of the image that a close has left.

use super::{Device, granule_of};
use crate::image::Words;
use crate::storage::chunk::{Chunk, State};
use crate::word::Word;
use tierdb_device::Dir;

impl<D: Dir> Device<D> {
    /// On open: a word points at the record at byte `at`. `false` if it cannot.
    ///
    /// Every word of a key was [noted](Device::note_class) before. If one was not, its key is lost; if two
    /// share a granule, one of them is damaged. Nothing in the chunk is given up then.
    pub fn claim(&self, at: u64, word: Word) -> bool {
        let (number, offset) = self.chunk_of(at);
        let inside = number < self.chunks_in_file();
        if inside {
            self.with_chunk(number, |chunk| {
                if chunk.state != State::Sealed || !chunk.set(offset, word) {
                    chunk.state = State::Quarantined;
                }
            });
        }
        inside
    }

    /// On open, before any claim: a word points at the record at byte `at`, so the chunk is in use, with
    /// granules that suit the record. If the file ends before it, it is not to be used when the file grows.
    pub fn note_class(&self, at: u64, word: Word) {
        let (number, _) = self.chunk_of(at);
        if !self.keep_if_cut_off(number) {
            self.with_chunk(number, |chunk| {
                if chunk.state == State::Free || chunk.granule() > granule_of(word) {
                    chunk.open(State::Sealed, granule_of(word), self.chunk_bytes);
                    chunk.filled = self.chunk_bytes;
                }
            });
        }
    }

    /// Whether the file ends before chunk `number`, into which a word points: then it is not to be used when the file grows.
    fn keep_if_cut_off(&self, number: u32) -> bool {
        let is_cut_off = number >= self.chunks_in_file();
        if is_cut_off {
            self.cut_off.lock().insert(number);
        }
        is_cut_off
    }

    /// On open: the chunk holds a part of a long value. `false` if it cannot.
    pub fn claim_part(&self, number: u32) -> bool {
        if self.keep_if_cut_off(number) {
            return false;
        }
        self.with_chunk(number, |chunk| match chunk.state {
            State::Free => chunk.open(State::Part, self.chunk_bytes, self.chunk_bytes),
            // A damaged word points into it as well.
            _ => chunk.state = State::Quarantined,
        });
        true
    }

    /// What an image says of the chunks that are in use, by number. `None` if one of them is kept because of
    /// damage: the next open is to look again; or if it is more than `most` words.
    pub fn image(&self, most: usize) -> Option<Vec<u64>> {
        if !self.cut_off.lock().is_empty() {
            return None;
        }
        let mut words = vec![0];
        for number in 0..self.chunks_in_file() {
            let Some(chunk) = self.chunks.existing(u64::from(number)) else { continue };
            let chunk = chunk.lock();
            if chunk.state != State::Free {
                words[0] += 1;
                words.push(u64::from(number));
                words.extend(chunk.image()?);
                if words.len() > most {
                    return None;
                }
            }
        }
        Some(words)
    }

    /// The chunks of an image, if it can be one of this device.
    pub fn chunks_of_image(&self, words: &mut Words<'_>) -> Option<Vec<(u32, Chunk)>> {
        let mut chunks = Vec::<(u32, Chunk)>::new();
        for _ in 0..words.take()? {
            let number = words.take().filter(|number| *number < u64::from(self.chunks_in_file()))? as u32;
            if chunks.last().is_some_and(|(last, _)| *last >= number) {
                return None;
            }
            chunks.push((number, Chunk::from_image(words, self.chunk_bytes)?));
        }
        Some(chunks)
    }

    /// On open: these chunks are in use, as they were when the store was closed, and all others are free.
    pub fn restore(&self, chunks: Vec<(u32, Chunk)>) {
        for (number, chunk) in chunks {
            self.with_chunk(number, |found| *found = chunk);
        }
        self.find_free();
    }

    fn find_free(&self) {
        let mut space = self.space();
        let is_free = |number: &u32| self.with_chunk(*number, |chunk| chunk.state == State::Free);
        space.free = (0..self.chunks_in_file()).rev().filter(is_free).collect();
        space.discarded = 0;
    }

    /// On open, last: every chunk that was not claimed is free, or is kept if `unsure` says that it may hold
    /// a part of a value whose parts are not known.
    pub fn finish_claims(&self, unsure: bool) {
        for number in 0..self.chunks_in_file() {
            self.with_chunk(number, |chunk| {
                chunk.estimate_total(self.chunk_bytes);
                if unsure && chunk.state == State::Free {
                    chunk.state = State::Quarantined;
                }
            });
        }
        self.find_free();
    }
}

#[cfg(test)]
mod tests {
    use crate::core::tests::store_of;
    use crate::storage::State;
    use crate::word::{Place, Word};
    use tierdb_sim::World;

    /// What lies behind the end of the file costs nothing to keep, and stays as it is when the file gets there.
    #[test]
    fn a_word_that_points_far_behind_the_file_has_no_books_kept() {
        const CHUNK: u64 = 16 << 10;
        let core = store_of(&World::new(), 4096 * CHUNK);
        let device = &core.storage.devices()[0];
        let far = device.chunks_in_file() + 3000;
        let before = device.chunks.memory_bytes();
        let word = Word::new(Place::Flash(0, u64::from(far) * CHUNK), 1, 500, false);
        device.note_class(u64::from(far) * CHUNK, word);
        assert!(!device.claim(u64::from(far) * CHUNK, word) && !device.claim_part(far + 1));
        core.storage.release(word, &crossbeam_epoch::pin());
        assert!(device.image(usize::MAX).is_none(), "the next open is to find it, too");
        assert_eq!(device.chunks.memory_bytes(), before);
        let mut given = Vec::new();
        while let Ok(number) = device.allocate(&*core.pool, State::Part, CHUNK, true) {
            given.push(number);
        }
        assert!(given.contains(&(far - 1)) && given.contains(&(far + 2)), "{} chunks", given.len());
        assert!(!given.contains(&far) && !given.contains(&(far + 1)));
        assert_eq!(device.usage().quarantined, 2 * CHUNK);
    }
}
