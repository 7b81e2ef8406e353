//! Footer, index and filter of tables on the fast tier (PrismDB §4.1), as raw bytes in slots that the table's record lists.
//!
//! ```text
//! bytes:   0            4            8           12           16
//!          ├────────────┼────────────┼───────────┼────────────┼──────────────┬─────────────┬───────┬────────┐
//!          │ footer len │ head len   │ index len │ filter len │ head         │ last 256    │ index │ filter │
//!          │ u32        │ u32        │ u32       │ u32        │ of the footer│ of the same │       │        │
//!          └────────────┴────────────┴───────────┴────────────┴──────────────┴─────────────┴───────┴────────┘
//! ```
//!
//! * They are cut into pieces as long as the largest slot, the last one shorter. The slots' words say *free*: they are in use because a
//!   live record lists them, like parts of long values.
//! * Between head and last bytes of a footer are zeros, which are not stored.
//! * Footer, index and filter check themselves, under the table's id. They are a copy of what the table's file has: where it is
//!   damaged, or was never made for want of room, the file is read.

use crate::core::Core;
use crate::flash::TableRecord;
use crate::heap::{Heap, NewRecord, Written};
use crate::levels::{Level, Levels};
use crate::live::{LiveTable, Manifest};
use crate::record::Kind;
use crate::slabs::Purpose;
use std::sync::Arc;
use tierdb_base::{Error, Location, Result, TierRole};
use tierdb_device::Dir;
use tierdb_pmem::{Pool, Stage};
use tierdb_table::Parts;

const HEADER: usize = 16;
/// Bytes at the end of a footer that are stored as they are.
const TAIL: usize = 256;
/// The longest footer that is believed: two keys, and the rest.
const MOST_FOOTER: usize = 16 << 10;

/// `parts` as they are stored.
fn pack(parts: &Parts) -> Vec<u8> {
    let (front, tail) = parts.footer.split_at(parts.footer.len().saturating_sub(TAIL));
    let head = &front[..front.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)];
    let mut bytes = Vec::with_capacity(HEADER + head.len() + TAIL + parts.index.len() + parts.filter.len());
    for len in [parts.footer.len(), head.len(), parts.index.len(), parts.filter.len()] {
        bytes.extend_from_slice(&(len as u32).to_le_bytes());
    }
    for part in [head, tail, &parts.index, &parts.filter] {
        bytes.extend_from_slice(part);
    }
    bytes
}

/// The lengths that packed parts begin with: footer, its head, index, filter.
fn lens(bytes: &[u8]) -> Option<[usize; 4]> {
    let header = bytes.first_chunk::<HEADER>()?;
    let (words, _) = header.as_chunks::<4>();
    let lens: [usize; 4] = std::array::from_fn(|number| u32::from_le_bytes(words[number]) as usize);
    let [footer, head, ..] = lens;
    ((TAIL..=MOST_FOOTER).contains(&footer) && head <= footer - TAIL).then_some(lens)
}

/// The parts in `bytes`; nothing is checked but their lengths.
fn unpack(bytes: &[u8]) -> Option<Parts> {
    let [footer_len, head, index, filter] = lens(bytes)?;
    // Each is a u32, so this cannot overflow.
    if bytes.len() != HEADER + head + TAIL + index + filter {
        return None;
    }
    let rest = &bytes[HEADER..];
    let (head, rest) = rest.split_at(head);
    let (tail, rest) = rest.split_at(TAIL);
    let (index, filter) = rest.split_at(index);
    let mut footer = vec![0; footer_len];
    footer[..head.len()].copy_from_slice(head);
    footer[footer_len - TAIL..].copy_from_slice(tail);
    Some(Parts { footer, index: index.to_vec(), filter: filter.to_vec() })
}

/// Where the parts of a table are, as its record says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    len: u32,
    slots: Vec<u64>,
}

impl Places {
    /// As stored, behind what names the table; nothing if there are no parts.
    pub fn encode(&self) -> Vec<u8> {
        if self.slots.is_empty() {
            return Vec::new();
        }
        let mut bytes = self.len.to_le_bytes().to_vec();
        self.slots.iter().for_each(|slot| bytes.extend_from_slice(&slot.to_le_bytes()));
        bytes
    }

    /// From what is stored.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let (len, slots) = bytes.split_first_chunk::<4>()?;
        let (slots, odd) = slots.as_chunks::<8>();
        let slots: Vec<u64> = slots.iter().map(|slot| u64::from_le_bytes(*slot)).collect();
        (odd.is_empty() && !slots.is_empty()).then_some(Places { len: u32::from_le_bytes(*len), slots })
    }

    /// The slots.
    pub fn slots(&self) -> &[u64] {
        &self.slots
    }

    /// Bytes that are in them.
    pub fn bytes(&self) -> usize {
        self.len as usize
    }

    /// Whether the fast tier has no parts of the table.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

/// Reads what the fast tier has of a table.
pub trait Home: Send + Sync {
    /// Its parts; they are checked by whoever decodes them.
    ///
    /// # Errors
    /// `Corrupt` if they are not even as long as they say; `Io`.
    fn read(&self) -> Result<Parts>;

    /// Its footer alone.
    ///
    /// # Errors
    /// As [`Home::read`].
    fn footer(&self) -> Result<Vec<u8>>;

    /// Where they begin.
    fn place(&self) -> Location;

    /// Bytes that they take.
    fn len(&self) -> u64;
}

struct Slotted<P: Pool> {
    pool: Arc<P>,
    places: Places,
    piece: usize,
}

impl<P: Pool> Slotted<P> {
    fn bytes(&self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        for (piece, at) in bytes.chunks_mut(self.piece).zip(&self.places.slots) {
            self.pool.read(*at, piece)?;
        }
        Ok(bytes)
    }

    fn damaged(&self) -> Error {
        damaged(self.place())
    }
}

impl<P: Pool> Home for Slotted<P> {
    fn read(&self) -> Result<Parts> {
        unpack(&self.bytes(self.places.len as usize)?).ok_or_else(|| self.damaged())
    }

    fn footer(&self) -> Result<Vec<u8>> {
        let [_, head, ..] = lens(&self.bytes(HEADER)?).ok_or_else(|| self.damaged())?;
        let len = HEADER + head + TAIL;
        if len > self.places.len as usize {
            return Err(self.damaged());
        }
        let mut bytes = self.bytes(len)?;
        // As if there were neither index nor filter.
        bytes[8..HEADER].fill(0);
        unpack(&bytes).map(|parts| parts.footer).ok_or_else(|| self.damaged())
    }

    fn place(&self) -> Location {
        self.pool.place(self.places.slots.first().copied().unwrap_or(0))
    }

    fn len(&self) -> u64 {
        u64::from(self.places.len)
    }
}

/// That what the fast tier has of a table at `place` is damaged.
pub fn damaged(place: Location) -> Error {
    Error::corrupt(TierRole::Fast, "index and filter of a table are damaged on the fast tier", place)
}

impl<P: Pool> Heap<P> {
    /// Stages a copy of `parts` in free slots. Says that there are none if there is no room for all of it, or they take more than
    /// `most` bytes.
    pub fn write_parts(&self, stage: &mut Stage<'_, P>, parts: &Parts, most: u64) -> Places {
        let bytes = pack(parts);
        let piece = self.slabs.largest() as usize;
        let mut places = Places { len: bytes.len() as u32, slots: Vec::new() };
        if lens(&bytes).is_none() || bytes.len() as u64 > most.min(u32::MAX.into()) {
            return Places::default();
        }
        for piece in bytes.chunks(piece) {
            let Some(at) = self.slabs.take(piece.len() as u64, Purpose::Value) else {
                self.give_parts(&places);
                return Places::default();
            };
            places.slots.push(at);
        }
        for (piece, at) in bytes.chunks(piece).zip(&places.slots) {
            stage.write(*at, piece);
        }
        places
    }

    /// Gives back the slots of parts that no live record lists.
    pub fn give_parts(&self, places: &Places) {
        places.slots.iter().for_each(|at| self.slabs.give(*at));
    }

    /// What reads the parts at `places`, which lie in slots of this heap. `None` if there are none, or these cannot be.
    pub fn home_of(&self, places: &Places) -> Option<Box<dyn Home>> {
        let piece = self.slabs.largest() as usize;
        let len = places.len as usize;
        let fits = |(number, at): (usize, &u64)| {
            let rest = len.checked_sub(number * piece).filter(|rest| *rest > 0);
            rest.zip(self.slabs.slot_bytes(*at)).is_some_and(|(rest, slot)| rest.min(piece) as u64 <= slot)
        };
        let whole = places.slots.len() == len.div_ceil(piece) && places.slots.iter().enumerate().all(fits);
        if places.is_empty() || len < HEADER || !whole {
            return None;
        }
        Some(Box::new(Slotted { pool: self.pool.clone(), places: places.clone(), piece }))
    }
}

impl<P: Pool> Heap<P> {
    /// Stages the record that makes a table live. `None` if there is no room for it; then nothing is taken. The slots are those of
    /// the record, and those of the table's parts.
    pub fn write_table(
        &self,
        stage: &mut Stage<'_, P>,
        table: TableRecord,
        places: &Places,
    ) -> Option<Written> {
        let value = [&table.encode()[..], &places.encode()].concat();
        let record = NewRecord { kind: Kind::Table, seqno: table.file.number, key: &[], value: &value };
        let mut written = self.write(stage, &record, Purpose::Upkeep)?;
        written.slots.parts = written.slots.parts.iter().chain(places.slots()).copied().collect();
        Some(written)
    }
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Stages a copy of `parts`, if there is room for it. Not where the pool is DRAM itself.
    pub fn write_parts(&self, stage: &mut Stage<'_, P>, parts: Option<Parts>) -> Places {
        let most = self.heap.slabs.capacity() / 100 * u64::from(self.options.table_parts_pct);
        let left = most.saturating_sub(self.flash.parts_bytes());
        match parts.filter(|_| !self.ordered) {
            Some(parts) => self.heap.write_parts(stage, &parts, left),
            None => Places::default(),
        }
    }

    /// Copies indexes and filters of those `tables` for which there was no room when they were written, as far as
    /// there is now. The caller holds their partition's migration.
    pub fn add_parts(&self, tables: &Levels<D>) {
        let room = |_: &&Arc<LiveTable<D>>| {
            !self.ordered && self.heap.slabs.free_bytes() > self.free_target(self.options.high_pct)
        };
        let without = tables.tables().filter(|table| table.bytes_on_fast_tier() == 0);
        for table in without.take_while(room) {
            // From memory: they have just been written.
            let Some(parts) = table.loaded_parts() else { continue };
            let mut stage = Stage::new(&*self.heap.pool);
            let places = self.write_parts(&mut stage, Some(parts));
            if places.is_empty() || !self.replace_record(table, table.level(), stage, &places) {
                return;
            }
        }
    }

    /// Gives up the copies of indexes and filters that the fast tier has, so that nothing but what is needed is there.
    pub fn drop_parts(&self) {
        let _parts = self.work.dividing.read();
        let parts = self.router.read().parts.clone();
        for part in &parts {
            let _migration = part.migration.lock();
            let tables = part.read().tables.clone();
            for table in tables.tables().filter(|table| table.bytes_on_fast_tier() > 0) {
                let stage = Stage::new(&*self.heap.pool);
                if !self.replace_record(table, table.level(), stage, &Places::default()) {
                    return;
                }
            }
        }
    }

    /// A record that says that `table` is one of `level`, and its parts are at `places`, staged in `stage`, takes the place of the
    /// one before. `false` if there is no room for it; then `places` are free.
    pub fn replace_record(
        &self,
        table: &LiveTable<D>,
        level: Level,
        mut stage: Stage<'_, P>,
        places: &Places,
    ) -> bool {
        let heap = &self.heap;
        let before = table.record_at();
        let record = TableRecord { file: table.file(), level };
        let word_at = heap.slabs.word_at(before).ok();
        let written = word_at.and_then(|_| heap.write_table(&mut stage, record, places));
        let (Some(word_at), Some(written)) = (word_at, written) else {
            heap.give_parts(places);
            return false;
        };
        let changes = [written.commit, (word_at, heap.slabs.free_word(word_at))];
        let Some(redo) = heap.stage_redo(&mut stage, &changes) else {
            // With what it lists, the places among that.
            heap.give(&written.slots);
            return false;
        };
        heap.install(stage, redo, &changes, &self.commits);
        let manifest = Manifest { slots: written.slots, home: heap.home_of(places) };
        heap.give(&table.replace_manifest(manifest));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_places_read_back() {
        for (front, index) in [(0, 0), (10, 3000)] {
            let mut footer = vec![0; 4096];
            footer[..front].fill(7);
            footer[4096 - 144..].fill(9);
            let parts = Parts { footer, index: vec![1; index], filter: vec![2; 50] };
            let bytes = pack(&parts);
            assert!(bytes.len() <= HEADER + front + TAIL + index + 50, "zeros are not stored");
            assert_eq!(unpack(&bytes), Some(parts));
            assert_eq!(unpack(&bytes[..bytes.len() - 1]), None);
            let mut long = bytes.clone();
            long[7] = 0x7f;
            assert_eq!(unpack(&long), None, "a length that cannot be");
        }
        let places = Places { len: 700, slots: vec![4096, 8192] };
        assert_eq!(Places::decode(&places.encode()), Some(places.clone()));
        assert_eq!(Places::decode(&places.encode()[..9]), None);
        assert_eq!(Places::decode(&Places::default().encode()), Some(Places::default()));
    }
}
