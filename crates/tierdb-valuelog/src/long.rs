//! Values that do not fit a chunk: kept in parts, one chunk each, with a record that lists them.
//!
//! ```text
//! body of a `Parts` record, and of `RedoParts`
//!  0        8          16       20       24                    24+8n     ..+tail
//!  ├────────┼──────────┼────────┼────────┼─────────────────────┼─────────┤
//!  │ length │ checksum │ n u32  │ tail   │ n × (device:8 in    │ last    │
//!  │ u64    │ of parts │        │ u32    │ the top, chunk:32)  │ bytes   │
//!  └────────┴──────────┴────────┴────────┴─────────────────────┴─────────┘
//! part: a chunk that starts with {length u64, number u64, checksum u64 of both and the bytes}, then the bytes
//! ```
//!
//! A part's checksum covers its bytes, and that of the list covers the checksums of the parts: so that a part
//! of another value in its place is noticed, and every byte is summed once. The last bytes are the record's.
//!
//! Parts are durable before the record that lists them is written, so a crash in between leaves chunks that
//! nothing refers to, which are free on open. Since format 1.

use crate::core::Core;
use crate::record::{HEADER, Header, stored_len};
use crate::storage::{Device, State, Storage};
use parking_lot::Mutex;
use std::collections::HashMap;
use tierdb_base::{Result, checksum, checksum_parts, matches};
use tierdb_device::{AlignedBuf, BLOCK, Cause, Dir};
use tierdb_pmem::Pool;

const PART_HEADER: usize = 24;
const LIST_HEADER: usize = 24;

/// Device and chunk of each part.
pub type PartList = Vec<(u8, u32)>;

/// Which chunks hold the parts of which values.
#[derive(Default)]
pub struct LongValues {
    parts: Mutex<HashMap<(u64, u16), Vec<PartList>>>,
}

impl LongValues {
    /// Notes the parts of the value of `entry` whose word has `tag`.
    pub fn note(&self, entry: u64, tag: u16, parts: PartList) {
        self.parts.lock().entry((entry, tag)).or_default().push(parts);
    }

    /// The parts of every value.
    pub fn all(&self) -> Vec<((u64, u16), PartList)> {
        let parts = self.parts.lock();
        parts.iter().flat_map(|(value, lists)| lists.iter().map(|list| (*value, list.clone()))).collect()
    }

    /// Takes out the parts of the oldest value of `entry` whose word has `tag`, and gives each to `release`.
    pub fn forget(&self, entry: u64, tag: u16, release: impl Fn(u8, u32)) {
        let found = {
            let mut parts = self.parts.lock();
            let Some(lists) = parts.get_mut(&(entry, tag)) else { return };
            let first = (!lists.is_empty()).then(|| lists.remove(0));
            if lists.is_empty() {
                parts.remove(&(entry, tag));
            }
            first
        };
        for (device, chunk) in found.into_iter().flatten() {
            release(device, chunk);
        }
    }

    /// Bytes of DRAM, about.
    pub fn memory_bytes(&self) -> u64 {
        self.parts.lock().values().flatten().map(|list| 64 + list.capacity() as u64 * 8).sum()
    }
}

/// A list of parts, checked against the length of its record.
pub struct Parts<'r> {
    /// Bytes in all.
    pub len: u64,
    checksum: u64,
    /// Where the parts are.
    pub list: PartList,
    tail: &'r [u8],
}

impl<'r> Parts<'r> {
    /// Reads the body of a record; `None` if its fields do not agree with each other.
    pub fn decode(body: &'r [u8], chunk_bytes: u64) -> Option<Parts<'r>> {
        let word = |at: usize| body.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (len, checksum, counts) = (word(0)?, word(8)?, word(16)?);
        let (count, tail_len) = ((counts & 0xffff_ffff) as usize, (counts >> 32) as usize);
        let tail = body.len().checked_sub(LIST_HEADER + count.checked_mul(8)?)?;
        // All parts but the last are full, and so is the last if bytes follow it in the record.
        let full = count as u64 * part_bytes(chunk_bytes);
        let agrees = match tail_len {
            0 => len <= full && len + part_bytes(chunk_bytes) > full,
            tail => len == full + tail as u64,
        };
        if count == 0 || tail != tail_len || !agrees {
            return None;
        }
        let list = (0..count)
            .map(|i| word(LIST_HEADER + 8 * i).map(|w| ((w >> 56) as u8, (w & 0xffff_ffff) as u32)))
            .collect::<Option<_>>()?;
        Some(Parts { len, checksum, list, tail: &body[LIST_HEADER + 8 * count..] })
    }

    /// The bytes that the parts make, or `None` if one does not check.
    pub fn join<D: Dir>(&self, storage: &Storage<D>, seed: u64, cause: Cause) -> Result<Option<Vec<u8>>> {
        let chunk_bytes = storage.chunk_bytes();
        let (mut value, mut sums) = (Vec::new(), Vec::new());
        for (number, (device, chunk)) in self.list.iter().enumerate() {
            let want = (self.len - value.len() as u64).min(part_bytes(chunk_bytes)) as usize;
            let Some(device) = storage.device(*device).filter(|d| *chunk < d.chunks_in_file()) else {
                return Ok(None);
            };
            let len = ((PART_HEADER + want) as u64).next_multiple_of(BLOCK).min(chunk_bytes);
            let (_, buf) = device.read_span(u64::from(*chunk) * chunk_bytes, len, cause)?;
            let (header, bytes) = buf.split_at(PART_HEADER);
            let sum = checksum_parts(seed, &[&header[..16], &bytes[..want]]);
            let named =
                header[0..8] == (want as u64).to_le_bytes() && header[8..16] == (number as u64).to_le_bytes();
            let stored = u64::from_le_bytes(header[16..24].try_into().unwrap_or_default());
            if !named || !matches(stored, sum) {
                return Ok(None);
            }
            sums.push(stored);
            value.extend_from_slice(&bytes[..want]);
        }
        if !matches(self.checksum, sum_of_parts(seed, &sums)) {
            return Ok(None);
        }
        value.extend_from_slice(self.tail);
        Ok(Some(value))
    }
}

/// Bytes of a value that one part holds.
fn part_bytes(chunk_bytes: u64) -> u64 {
    chunk_bytes - PART_HEADER as u64
}

/// The checksum of a list of parts that have the checksums `sums`.
fn sum_of_parts(seed: u64, sums: &[u64]) -> u64 {
    let words: Vec<[u8; 8]> = sums.iter().map(|sum| sum.to_le_bytes()).collect();
    checksum(seed, words.as_flattened())
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Most bytes of a record's body that goes into a chunk with others.
    pub fn longest_body(&self) -> usize {
        (self.layout.chunk_bytes / 2) as usize
    }

    /// Writes `bytes` as parts, durably, and returns the body of the record that lists them, at the end of which
    /// stand the last bytes, `longest_tail` of them at the most.
    ///
    /// # Errors
    /// `NoSpace`, or the failure of a write; the parts are then free again.
    pub fn write_parts(
        &self,
        bytes: &[u8],
        longest_tail: usize,
        cause: Cause,
    ) -> Result<(Vec<u8>, PartList)> {
        let each = part_bytes(self.layout.chunk_bytes) as usize;
        let (mut list, mut sums) = (PartList::new(), Vec::new());
        let mut rest = bytes;
        let mut number = 0u64;
        let written = loop {
            if rest.is_empty() || (!list.is_empty() && rest.len() <= longest_tail) {
                break Ok(());
            }
            let (part, after) = rest.split_at(rest.len().min(each));
            match self.write_part(part, number, cause) {
                Ok((place, sum)) => {
                    list.push(place);
                    sums.push(sum);
                }
                Err(error) => break Err(error),
            }
            rest = after;
            number += 1;
        };
        if let Err(error) = written {
            self.release_parts(&list);
            return Err(error);
        }
        let mut body = Vec::with_capacity(LIST_HEADER + list.len() * 8 + rest.len());
        body.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        body.extend_from_slice(&sum_of_parts(self.seed, &sums).to_le_bytes());
        body.extend_from_slice(&(list.len() as u32).to_le_bytes());
        body.extend_from_slice(&(rest.len() as u32).to_le_bytes());
        for (device, chunk) in &list {
            body.extend_from_slice(&((u64::from(*device) << 56) | u64::from(*chunk)).to_le_bytes());
        }
        body.extend_from_slice(rest);
        Ok((body, list))
    }

    /// Longest value of a key of `key_len` bytes whose list of parts fits a chunk.
    pub fn longest_value(&self, key_len: usize) -> u64 {
        let beside = stored_len(HEADER + key_len + LIST_HEADER + self.longest_tail());
        self.layout.chunk_bytes.saturating_sub(beside) / 8 * part_bytes(self.layout.chunk_bytes)
    }

    /// Most bytes in parts alone whose list, in a record without a key, takes `bytes` at the most.
    pub fn longest_listed_in(&self, bytes: u64) -> u64 {
        bytes.saturating_sub((HEADER + LIST_HEADER) as u64) / 8 * part_bytes(self.layout.chunk_bytes)
    }

    /// Chunks that [`Core::write_parts`] takes for `len` bytes with a tail of `longest_tail` at the most.
    pub fn chunks_of(&self, len: usize, longest_tail: usize) -> u64 {
        let in_parts = len.saturating_sub(longest_tail) as u64;
        in_parts.div_ceil(part_bytes(self.layout.chunk_bytes)).max(1)
    }

    /// Longest end of a value that is kept with the list of its parts.
    pub fn longest_tail(&self) -> usize {
        self.longest_body() / 2
    }

    /// Writes a part, and returns where it is, and its checksum.
    fn write_part(&self, part: &[u8], number: u64, cause: Cause) -> Result<((u8, u32), u64)> {
        let mut buf = AlignedBuf::zeroed(PART_HEADER + part.len())?;
        let device = self.storage.pick();
        let chunk = device.allocate(&*self.pool, State::Part, self.layout.chunk_bytes, false)?;
        let mut header = [0u8; PART_HEADER];
        header[0..8].copy_from_slice(&(part.len() as u64).to_le_bytes());
        header[8..16].copy_from_slice(&number.to_le_bytes());
        let sum = checksum_parts(self.seed, &[&header[..16], part]);
        header[16..24].copy_from_slice(&sum.to_le_bytes());
        buf[..PART_HEADER].copy_from_slice(&header);
        buf[PART_HEADER..PART_HEADER + part.len()].copy_from_slice(part);
        if let Err(error) = device.write_durable(u64::from(chunk) * self.layout.chunk_bytes, &buf, cause) {
            Device::release_part(device, chunk, &crossbeam_epoch::pin());
            return Err(error);
        }
        Ok(((device.number(), chunk), sum))
    }

    /// Frees parts that no record lists.
    pub fn release_parts(&self, list: &[(u8, u32)]) {
        let guard = crossbeam_epoch::pin();
        for (device, chunk) in list {
            if let Some(device) = self.storage.device(*device) {
                Device::release_part(device, *chunk, &guard);
            }
        }
    }

    /// The value whose parts the record lists, or `None` if something of it does not check: it is damaged,
    /// or was replaced, and its parts overwritten, while they were read.
    pub fn read_long(&self, header: &Header, bytes: &[u8], cause: Cause) -> Result<Option<Vec<u8>>> {
        match Parts::decode(header.body(bytes), self.layout.chunk_bytes) {
            Some(parts) => parts.join(&self.storage, self.seed, cause),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::{store, wait_for_readers};
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;
    use tierdb_base::Error;
    use tierdb_engine::Durability;
    use tierdb_sim::{SimDir, SimPool, World};

    /// A store with one chunk left, and how many values of `len` bytes there are in it.
    fn nearly_full(len: usize) -> (Core<SimPool, SimDir>, u8) {
        let core = store(&World::new());
        let mut count = 0;
        while core.storage.room() > 1 {
            core.put(&[count], &vec![7; len], Durability::Durable).expect("room");
            count += 1;
        }
        (core, count)
    }

    /// Writes two parts, of which the second is short enough for a tail, to no tail.
    fn write_two_parts(core: Core<SimPool, SimDir>) -> Result<PartList> {
        let bytes = vec![7; 17_600];
        assert!(bytes.len() - part_bytes(core.layout.chunk_bytes) as usize <= core.longest_tail());
        wait_for_readers(&core);
        while core.storage.room() > 1 {
            core.write_parts(&[7; 100], 0, Cause::Foreground).expect("room");
        }
        let (done, is_done) = channel();
        let core = Arc::new(core);
        std::thread::spawn(move || {
            let _ = done.send(core.write_parts_or_collect(&bytes, 0).map(|(_, list)| list));
        });
        is_done.recv_timeout(Duration::from_secs(30)).expect("it ends")
    }

    #[test]
    fn parts_for_which_one_chunk_is_missing_are_refused() {
        // Each is a part itself: nothing is to be collected.
        let (core, _) = nearly_full(12_000);
        let refused = write_two_parts(core);
        assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
    }

    #[test]
    fn parts_for_which_one_chunk_is_missing_are_written_if_it_can_be_gained() {
        let (core, count) = nearly_full(3000);
        for number in (0..count).step_by(2) {
            core.delete(&[number], Durability::Durable).expect("deletes need no room");
        }
        assert_eq!(write_two_parts(core).expect("half of each chunk is garbage").len(), 2);
    }
}
