//! Checking everything that is stored, while the store is in use; and salvage of one that cannot be opened.

use crate::core::Core;
use crate::hsit::{ENTRY, PER_PAGE};
use crate::layout::Layout;
use crate::long::Parts;
use crate::pages::{KIND_HSIT, PAGE, PageNo, PageUse, Pages};
use crate::record::{HEADER, Header, Kind};
use crate::storage::Storage;
use crate::word::{Place, UNIT, Word};
use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;
use tierdb_base::{Result, Seqno};
use tierdb_device::{AlignedBuf, Cause, Dir, read_blocks};
use tierdb_engine::{Damage, KeyRange, Media, VerifyReport};
use tierdb_pmem::Pool;

/// Keys that are looked at between two looks at the index.
const BATCH: usize = 256;

impl<P: Pool, D: Dir> Core<P, D> {
    /// Checks the index, and for every key its pointer, its record's checksum and that both agree.
    pub fn verify(&self) -> Result<VerifyReport> {
        let mut report = VerifyReport { damage: self.index.verify(), ..VerifyReport::default() };
        for (page, usage) in self.pages.kinds() {
            if usage == PageUse::Damaged {
                report.damage.push(Damage {
                    what: "the page table's word of this page is damaged".into(),
                    place: Some(self.pool.place(page * PAGE)),
                    keys: None,
                });
            }
        }
        let mut from: Bound<Vec<u8>> = Bound::Unbounded;
        loop {
            let start = from.as_ref().map(Vec::as_slice);
            let mut keys = Vec::with_capacity(BATCH);
            let scanned = self.index.scan(start, false, BATCH, |key, entry| keys.push((key.to_vec(), entry)));
            let last = keys.last().map(|(key, _)| key.clone());
            for (key, entry) in keys {
                self.verify_key(&key, entry, &mut report)?;
            }
            from = match (scanned, last, from) {
                (Ok(()), Some(last), _) => Bound::Excluded(last),
                (Ok(()), None, _) => return Ok(report),
                // The index's own damage is in the report already: go on behind it.
                (Err(_), Some(at), _) | (Err(_), None, Bound::Included(at) | Bound::Excluded(at)) => {
                    match self.index.boundary_after(&at) {
                        Some(next) => Bound::Included(next),
                        None => return Ok(report),
                    }
                }
                (Err(_), None, Bound::Unbounded) => match self.index.boundary_after(b"") {
                    Some(next) => Bound::Included(next),
                    None => return Ok(report),
                },
            };
        }
    }

    /// What is wrong with a record, or that it cannot be read, is in the report.
    ///
    /// # Errors
    /// `Invalid` once the store is closed; where the key's last write cannot be made durable, which says nothing of what is stored.
    fn verify_key(&self, key: &[u8], entry: u64, report: &mut VerifyReport) -> Result<()> {
        let damage =
            |what: String, place| Damage { what, place: Some(place), keys: Some(KeyRange::one(key)) };
        loop {
            self.gate.check_open()?;
            let guard = crossbeam_epoch::pin();
            let Some(at) = self.hsit.at(entry) else {
                let what = format!("the index names HSIT entry {entry}, which is not there");
                report.damage.push(damage(what, self.pool.place(0)));
                return Ok(());
            };
            let word = self.hsit.settled(entry)?;
            match word.place() {
                Place::None | Place::Free => return Ok(()),
                Place::Damaged => {
                    report.damage.push(damage(self.damaged_entry(entry).to_string(), self.pool.place(at)));
                    return Ok(());
                }
                Place::Ring(_) | Place::Flash(..) => {}
            }
            let read = match word.place() {
                Place::Ring(_) => {
                    let read = self.read_record(word, entry, Cause::Verify);
                    drop(guard);
                    read
                }
                _ => {
                    drop(guard);
                    self.read_record(word, entry, Cause::Verify)
                }
            };
            let whole = read.and_then(|read| match read {
                Some((header, bytes))
                    if header.key(&bytes) == key && word.suits(bytes.len(), header.kind) =>
                {
                    let len = bytes.len() as u64;
                    if header.kind == Kind::Parts {
                        Ok(self
                            .read_long(&header, &bytes, Cause::Verify)?
                            .map(|value| len + value.len() as u64))
                    } else {
                        Ok(Some(len))
                    }
                }
                _ => Ok(None),
            });
            let (what, place) = match whole {
                Ok(Some(bytes)) => {
                    report.keys_checked += 1;
                    report.bytes_checked += bytes;
                    return Ok(());
                }
                // Written again, or moved, or the entry given to another key, while it was checked.
                Ok(None) if self.hsit.word(entry).clean() != word => continue,
                Ok(None) if self.index.get(key).is_ok_and(|now| now != Some(entry)) => return Ok(()),
                Ok(None) => (
                    "the record is damaged, or is not the one its pointer names".to_owned(),
                    self.place_of(word),
                ),
                Err(error) => (error.to_string(), self.place_of(word)),
            };
            report.damage.push(damage(what, place));
            return Ok(());
        }
    }

    fn place_of(&self, word: Word) -> tierdb_base::Location {
        match word.place() {
            Place::Flash(number, at) => {
                self.storage.device(number).map_or_else(|| self.pool.place(0), |device| device.place(at))
            }
            Place::Ring(at) => self.pool.place(at),
            Place::None | Place::Free | Place::Damaged => self.pool.place(0),
        }
    }
}

/// A record found without the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvaged {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// Order of its write.
    pub seqno: Seqno,
    /// Whether an HSIT entry points at the record: then it is the key's value. If not, it may be one that
    /// was overwritten or deleted.
    pub sure: bool,
}

/// What a salvage has looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// Whole records found.
    pub records: u64,
    /// Those that an HSIT entry points at.
    pub sure: u64,
    /// Long values of which a part is damaged, overwritten or not to be read.
    pub incomplete: u64,
    /// Blocks that could not be read.
    pub unreadable: u64,
}

/// Finds records by themselves, for a store whose index is lost: every whole record of the write buffer and
/// of Value Storage is given to `found`, in no order, with whether an HSIT word points at it. Changes nothing.
///
/// # Errors
/// Those of `found`, and `Io` where there is no memory for a chunk; damage is counted.
pub fn salvage<P: Pool, D: Dir>(
    media: Media<P, D>,
    found: &mut dyn FnMut(Salvaged) -> Result<()>,
) -> Result<SalvageReport> {
    let seed = media.seed;
    let pool = media.pool;
    let layout = Layout::open(&*pool, seed).ok();
    let chunk_bytes = layout.as_ref().map_or(512 << 10, |layout| layout.chunk_bytes);
    let storage = Storage::open(media.flash, chunk_bytes, &media.latch, false)?;
    // Without a header the whole pool is searched: a record is known by its checksums.
    let pointed = HsitWords::read(&pool, layout.as_ref(), seed);
    let mut report = SalvageReport::default();
    let buffer = layout.as_ref().map_or(0..pool.len(), |l| l.rings_at()..l.first_page() * PAGE);
    // No record is as long as a chunk.
    let mut window = vec![0; chunk_bytes.max(1 << 20) as usize];
    let mut at = buffer.start;
    while at < buffer.end {
        let len = (buffer.end - at).min(window.len() as u64) as usize;
        if pool.read(at, &mut window[..len]).is_err() {
            report.unreadable += read_blocks(at, &mut window[..len], |at, block| pool.read(at, block));
        }
        let step = search(&window[..len], seed, |offset, header, record| {
            give(&storage, seed, &pointed, Place::Ring(at + offset), header, record, &mut report, found)
        })?;
        // A record that the window cut is found again from where it starts.
        at += if at + len as u64 == buffer.end { len as u64 } else { (step as u64).max(UNIT) };
    }
    let mut chunk = AlignedBuf::default();
    for device in storage.devices() {
        for number in 0..device.chunks_in_file() {
            if device.read_chunk(number, &mut chunk, Cause::Verify).is_err() {
                report.unreadable += device.read_blocks(number, &mut chunk, Cause::Verify)?;
            }
            let base = u64::from(number) * chunk_bytes;
            search(&chunk, seed, |offset, header, record| {
                let place = Place::Flash(device.number(), base + offset);
                give(&storage, seed, &pointed, place, header, record, &mut report, found)
            })?;
        }
    }
    Ok(report)
}

/// Calls `each` with every whole record in `bytes`. Returns the offset up to which nothing was cut.
fn search(bytes: &[u8], seed: u64, mut each: impl FnMut(u64, Header, &[u8]) -> Result<()>) -> Result<usize> {
    let mut at = 0;
    let mut cut = None;
    while at + HEADER <= bytes.len() {
        let rest = &bytes[at..];
        match Header::decode(rest, seed) {
            Some(header) if header.len() > rest.len() => {
                if header.len() <= bytes.len() {
                    cut = cut.or(Some(at));
                }
                at += UNIT as usize;
            }
            Some(header)
                if matches!(header.kind, Kind::Value | Kind::Parts) && header.is_whole(rest, seed) =>
            {
                each(at as u64, header, &rest[..header.len()])?;
                at += header.stored_len() as usize;
            }
            _ => at += UNIT as usize,
        }
    }
    Ok(cut.unwrap_or(at))
}

#[allow(clippy::too_many_arguments)]
fn give<D: Dir>(
    storage: &Storage<D>,
    seed: u64,
    pointed: &HsitWords,
    place: Place,
    header: Header,
    record: &[u8],
    report: &mut SalvageReport,
    found: &mut dyn FnMut(Salvaged) -> Result<()>,
) -> Result<()> {
    let value = if header.kind == Kind::Parts {
        let parts = Parts::decode(header.body(record), storage.chunk_bytes());
        // Blocks of a part that cannot be read are counted where its chunk is looked at.
        match parts.map(|parts| parts.join(storage, seed, Cause::Verify)) {
            Some(Ok(Some(value))) => value,
            Some(Ok(None) | Err(_)) | None => {
                report.incomplete += 1;
                return Ok(());
            }
        }
    } else {
        header.body(record).to_vec()
    };
    let sure = pointed.point_at(place, &header);
    report.records += 1;
    report.sure += u64::from(sure);
    found(Salvaged { key: header.key(record).to_vec(), value, seqno: header.seqno, sure })
}

/// The words of the HSIT, by where they point: tag, and the entry where it is known.
struct HsitWords(HashMap<Place, (u16, Option<u64>)>);

impl HsitWords {
    /// Reads the pages that the page table names. Those of which it does not say what they are, or all where
    /// there is no header, are taken for the HSIT's too, of entries that are not known.
    fn read<P: Pool>(pool: &Arc<P>, layout: Option<&Layout>, seed: u64) -> Self {
        let mut words = HsitWords(HashMap::new());
        let Some(layout) = layout else {
            (0..pool.len() / PAGE).for_each(|page| words.add(&**pool, page, None));
            return words;
        };
        let (first, count) = (layout.first_page(), layout.pages());
        let pages = Pages::open(pool.clone(), layout.page_table_at(), first, count, seed);
        let usages: Vec<_> = pages.kinds().collect();
        for (page, _) in usages.iter().filter(|(_, usage)| *usage == PageUse::Damaged) {
            words.add(&**pool, *page, None);
        }
        for (page, usage) in &usages {
            if let PageUse::Used { kind: KIND_HSIT, info } = usage {
                words.add(&**pool, *page, Some(*info));
            }
        }
        words
    }

    fn add<P: Pool>(&mut self, pool: &P, page: PageNo, segment: Option<u64>) {
        let mut bytes = [0; PAGE as usize];
        if pool.read(page * PAGE, &mut bytes).is_err() {
            return;
        }
        for (slot, entry) in (0..).zip(bytes.chunks_exact(ENTRY as usize)) {
            let word = Word(u64::from_le_bytes(entry[..8].try_into().unwrap_or_default())).clean();
            if matches!(word.place(), Place::Ring(_) | Place::Flash(..)) {
                let entry = segment.map(|segment| segment * PER_PAGE + slot);
                self.0.insert(word.place(), (word.tag(), entry));
            }
        }
    }

    fn point_at(&self, place: Place, header: &Header) -> bool {
        self.0.get(&place).is_some_and(|(tag, entry)| header.is_coupled(entry.unwrap_or(header.entry), *tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::header_bytes;

    /// Every window that starts at such a header would be searched to its end.
    #[test]
    fn a_header_of_more_than_a_window_is_none_that_a_window_cuts() {
        let mut window = vec![0; 4096];
        let step = |window: &[u8]| search(window, 9, |_, _, _| Ok(())).expect("nothing is found");
        window[64..64 + HEADER].copy_from_slice(&header_bytes(9, Kind::Value, 1, 1, 3, 4000));
        assert_eq!(step(&window), 64, "it fits one");
        window[64..64 + HEADER].copy_from_slice(&header_bytes(9, Kind::Value, 1, 1, 3, 5000));
        assert!(step(&window) > 4096 - HEADER);
    }
}
