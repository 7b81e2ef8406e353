//! Redo lists: the (entry, new word) pairs of a batch, in a record of a ring or of flash, or in pages of the pool.

use crate::core::Core;
use crate::pages::{PAGE, PageNo, Purpose};
use crate::record::{HEADER, Kind, encode};
use crate::word::Word;
use tierdb_device::Dir;
use tierdb_pmem::{Pool, Stage};

/// Bytes of a redo list's element.
pub const REDO: usize = 16;
/// Elements of a redo list in a page of it.
const REDOS_IN_PAGE: usize = (PAGE as usize - HEADER - 8) / REDO;

/// The redo list of (entry, word) pairs.
pub fn redo_list(pairs: impl Iterator<Item = (u64, Word)>) -> Vec<u8> {
    pairs.flat_map(|(entry, word)| [entry, word.0]).flat_map(u64::to_le_bytes).collect()
}

/// The (entry, word) pairs of a redo list.
pub fn decode_redo(body: &[u8]) -> Option<Vec<(u64, Word)>> {
    if !body.len().is_multiple_of(REDO) {
        return None;
    }
    let word = |b: &[u8]| b.try_into().ok().map(u64::from_le_bytes);
    body.chunks_exact(REDO).map(|pair| Some((word(&pair[..8])?, Word(word(&pair[8..])?)))).collect()
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Pages of the pool for the redo list of `writes` writes, if there are so many.
    pub fn redo_pages(&self, writes: usize) -> Option<Vec<PageNo>> {
        let mut pages = Vec::new();
        while pages.len() < writes.div_ceil(REDOS_IN_PAGE) {
            match self.pages.allocate(Purpose::Shrink) {
                Ok(page) => pages.push(page),
                Err(_) => {
                    pages.into_iter().for_each(|page| self.pages.give_back(page));
                    return None;
                }
            }
        }
        Some(pages)
    }

    /// Writes a redo list to pages, each naming the next, durably. No kind word names them, so they are free after a
    /// crash; until the list is replayed nothing allocates pages. Returns where the first is.
    pub fn fill_redo_pages(&self, pages: &[PageNo], redo: &[u8], seqno: u64) -> u64 {
        let mut stage = Stage::new(&*self.pool);
        let mut record = Vec::new();
        for (number, (page, part)) in pages.iter().zip(redo.chunks(REDOS_IN_PAGE * REDO)).enumerate() {
            let next = pages.get(number + 1).map_or(0, |next| next * PAGE);
            let body = [&next.to_le_bytes(), part].concat();
            record.clear();
            encode(&mut record, self.seed, Kind::RedoPage, 0, seqno, &[], &body);
            stage.write(page * PAGE, &record);
        }
        let _drained = stage.drain();
        pages[0] * PAGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::{each_is_noticed, leaving_out, store};
    use tierdb_sim::{Budget, CrashModel, World};

    /// A list goes to pages only where both the rings and flash are full, which scripts seldom bring about.
    #[test]
    fn a_list_in_pages_is_durable_before_it_is_named() {
        let list = redo_list((0..REDOS_IN_PAGE as u64 + 9).map(|entry| (entry, Word::deleted(entry))));
        each_is_noticed("src/redo.rs", 2, |site| {
            let world = World::new();
            let core = store(&world);
            let pages = core.redo_pages(list.len() / REDO).expect("a new store has free pages");
            leaving_out(site, || core.fill_redo_pages(&pages, &list, 7));
            let read = |pool: &dyn Fn(u64, &mut [u8])| -> Vec<[u8; PAGE as usize]> {
                let page = |page: &PageNo| {
                    let mut bytes = [0; PAGE as usize];
                    pool(page * PAGE, &mut bytes);
                    bytes
                };
                pages.iter().map(page).collect()
            };
            let written = read(&|at, bytes| core.pool.read(at, bytes).expect("no faults"));
            let point = world.capture();
            point.images(&CrashModel::BOTH, 1, &Budget::default()).all(|image| {
                let pool = image.world.pool("pool");
                read(&|at, bytes| pool.read(at, bytes).expect("no faults")) == written
            })
        });
    }
}
