//! Moving records: from the write buffer to Value Storage ([`reclaim`], PRISM §5.2), and within Value
//! Storage (garbage [`collect`]ion §5.2, and scan [`ranges`] rewritten in key order §4.4).
//! All three do the same: copy records to a new place, durably; then, under each entry's latch, publish
//! the new word if the old one is still there; then drain; and only then give up the old place. A crash
//! before a word is durable leaves the old record where the old word points.
//!
//! Readers and writers go on meanwhile, and are never waited for while a latch is held.

mod collect;
mod ranges;
mod reclaim;

pub use collect::Collecting;
pub use ranges::LONG_RUN;
pub use reclaim::Reclaim;

use crate::core::{Core, Moving};
use crate::record::Header;
use crate::second_level::Source;
use crate::storage::{Appender, Stored};
use crate::word::{Place, Word};
use std::sync::atomic::{Ordering::SeqCst, fence};
use tierdb_base::Result;
use tierdb_device::Dir;
use tierdb_pmem::Pool;

impl<P: Pool, D: Dir> Core<P, D> {
    /// The word that makes the record at `place` live: its entry's, or one that a snapshot keeps. Its length class is that of the record,
    /// whatever damage has made of it.
    pub fn live_word(&self, header: &Header, place: Place) -> Option<Word> {
        self.hsit.at(header.entry)?;
        let word = self.hsit.word(header.entry).clean();
        let at_place = word.place() == place && header.is_coupled(header.entry, word.tag());
        if at_place {
            return Some(word.of_record(header.stored_len(), header.kind));
        }
        self.versions.kept(header.entry, place)
    }

    /// Has `appender` copy a record, whose old word is `word`. What it holds is committed first where it has no room for more.
    ///
    /// # Errors
    /// `NoSpace` if flash has no chunk for it; those of writing. Then it stays where it is.
    fn copy(
        &self,
        appender: &mut Appender<D, Moving>,
        record: &[u8],
        word: Word,
        mut moving: Moving,
    ) -> Result<()> {
        while let Some(back) =
            appender.add(&self.storage, &*self.pool, record, word, moving).map_err(|(_, error)| error)?
        {
            self.commit_moved(appender)?;
            moving = back;
        }
        Ok(())
    }

    /// Writes what `appender` holds and publishes the new words. Returns them.
    fn commit_moved(&self, appender: &mut Appender<D, Moving>) -> Result<Vec<Stored<Moving>>> {
        if appender.pending() == 0 {
            return Ok(Vec::new());
        }
        let admitted = self.pool.admit(32 * appender.pending() as u64);
        let _admitted = admitted.inspect_err(|_| appender.abandon())?;
        let stored = appender.commit()?;
        self.swing(&stored);
        Ok(stored)
    }

    /// Publishes the new words of records that were copied, where the old ones still stand, and drains
    /// them. What nobody needs any more is released.
    ///
    /// Nobody was pinned while a record was read and written. Meanwhile it may have gone, its chunk been filled anew, and a
    /// newer record of the key come to the same place with the same tag: its word is the same, and the filling is not.
    fn swing(&self, stored: &[Stored<Moving>]) {
        let guard = crossbeam_epoch::pin();
        let (mut left, mut marked, mut carried) = (Vec::with_capacity(stored.len()), Vec::new(), Vec::new());
        for &Stored { with: Moving { entry, from, filling }, word: to } in stored {
            let latched = self.hsit.latch(entry);
            let is_copied = self.storage.filling(from) == filling;
            if let Some(now) = is_copied.then(|| self.hsit.swing(entry, from, to)).flatten() {
                // As in `replace`.
                fence(SeqCst);
                if let Some(slot) = self.hsit.aux(entry).slot() {
                    self.cache.relocate(slot, entry, now.clean().0, to.0);
                }
                if let Place::Flash(..) = from {
                    carried.push((Source { entry, word: now.clean().0, filling }, to));
                }
                if now.is_dirty() {
                    marked.push((entry, to));
                }
                left.push(now.clean());
            } else if is_copied && self.versions.relocate(entry, from, to) {
                left.push(to.moved_to(from));
            } else {
                self.storage.release(to, &guard);
            }
            drop(latched);
        }
        self.pool.fence();
        if !self.ordered {
            // Their writers look for the words that they published, and would leave these marked.
            marked.into_iter().for_each(|(entry, word)| self.hsit.clear_dirty(entry, word));
        }
        for (from, to) in carried {
            // Whoever has replaced the record meanwhile has released its place, which is not filled anew while this thread is pinned.
            let filling = self.storage.filling(to.place());
            self.second_level.carry(from, Source { word: to.0, filling, ..from });
        }
        for word in left {
            self.storage.release(word, &guard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::store;
    use crate::read::Ready;
    use crate::record::Kind;
    use crate::storage::State;
    use tierdb_device::Cause;
    use tierdb_engine::Durability;
    use tierdb_sim::World;

    /// Goal: what was read of a chunk says nothing of what it holds after it was filled anew, even if the word of an entry is
    /// the same again. Method: a new filling begins while a record is moved, and while it is read ahead.
    #[test]
    fn a_record_is_not_taken_for_one_of_the_next_filling() {
        let core = store(&World::new());
        core.put(b"key", &[1; 500], Durability::Durable).expect("room");
        core.reclaim(Reclaim::All).expect("room");
        let entry = core.index.get(b"key").expect("whole").expect("it was put");
        let word = || core.hsit.word(entry).clean();
        let mut appender = Appender::new(Cause::Gc);
        let mut copied = || {
            let (from, filling) = (word().place(), core.storage.filling(word().place()));
            let read = core.read_flash(word(), entry, Cause::Gc).expect("no faults").expect("whole");
            let mut record = read.1.to_vec();
            record.resize(read.0.stored_len() as usize, 0);
            let moving = Moving { entry, from, filling };
            let added = appender.add(&core.storage, &*core.pool, &record, word(), moving);
            assert!(matches!(added, Ok(None)));
            appender.commit().expect("no faults")
        };
        let anew = |word: Word| {
            let Place::Flash(number, at) = word.place() else { panic!("{word:?} is not on flash") };
            let device = core.storage.device(number).expect("one device");
            let (chunk, _) = device.chunk_of(at);
            device.open_chunk(chunk, State::Sealed, 500);
            (device, chunk, device.filling(at))
        };
        let stored = copied();
        core.swing(&stored);
        assert_eq!(word(), stored[0].word, "it was moved");

        let stored = copied();
        let before = word();
        let (device, chunk, filling) = anew(before);
        core.swing(&stored);
        assert_eq!(word(), before, "another record was moved");
        assert!(!device.quarantine(chunk, filling - 1) && device.quarantine(chunk, filling));

        let pointed = [Some(core.pointed(entry, before))];
        let ahead = || {
            core.read_ahead(&pointed, crossbeam_epoch::pin(), &mut core.cache.reader(), |_| b"key").remove(0)
        };
        assert!(matches!(ahead(), Ready::Scattered(_)));
        core.uncache(entry);
        anew(before);
        assert!(matches!(ahead(), Ready::Alone));
    }

    /// The writer of a word that is moved before it has found it durable does not find it any more: whoever moves it looks.
    #[test]
    fn a_word_that_is_moved_before_it_is_acknowledged_is_not_left_marked() {
        let core = store(&World::new());
        core.put(b"key", &[1; 500], Durability::Durable).expect("room");
        let entry = core.index.get(b"key").expect("whole").expect("it was put");
        core.hsit.publish(entry, core.hsit.word(entry).dirty());
        core.reclaim(Reclaim::All).expect("room");
        let word = core.hsit.word(entry);
        assert!(matches!(word.place(), Place::Flash(..)) && !word.is_dirty(), "{word:?}");
    }

    /// Nothing checks the length class of a word that points at a record: a bit of it that flips makes the record pass for a longer one.
    #[test]
    fn a_record_whose_word_has_the_class_of_longer_ones_moves_as_what_it_is() {
        let core = store(&World::new());
        let values = [(&b"short"[..], [1; 100].to_vec()), (b"next", [2; 300].to_vec())];
        for (key, value) in &values {
            core.put(key, value, Durability::Durable).expect("room");
        }
        let entry_of = |key: &[u8]| core.index.get(key).expect("whole").expect("it was put");
        let short = entry_of(b"short");
        core.hsit.publish(short, core.hsit.word(short).of_record(300, Kind::Value));
        core.reclaim(Reclaim::All).expect("room");
        for (key, value) in &values {
            assert_eq!(core.get(key).expect("whole").as_deref(), Some(&value[..]));
        }
        let word = core.hsit.word(short).clean();
        assert_eq!(word, word.of_record(100 + 5 + 32, Kind::Value));
    }
}
