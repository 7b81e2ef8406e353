//! Heads of records with one wrong byte: made right again when the store is opened.
//!
//! A head has a checksum of 64 bits, and its commit word 40 bits of hash and seqno. So there is one way at the most to change a
//! byte such that all of it agrees: each is tried; where seqno and key do not agree with the word, only theirs. A byte of the checksum
//! needs no tries. That a wrong one passes is as likely as that damage passes the checksum, times the tries: 2^-47 for a head of 512
//! bytes. What it saves is a key of which else not even the name is known, and the order of all others ([`crate::lost`]).

use crate::heap::Heap;
use crate::record::{self, HEADER, Head};
use crate::slabs::Mark;
use std::sync::atomic::{AtomicU32, Ordering};
use tierdb_pmem::{Pool, Stage};

/// Longer heads are not tried: 255 tries for each byte, of which each hashes the key or sums the head.
const MOST_BYTES: usize = 512;
/// Heads of values that lie in their slots for which an open tries at the most: 0.1 to 0.2 ms of processor time each with a short key,
/// some with the longest.
const MOST_HEADS: u32 = 256;

/// Where a head with one wrong byte is, and the bytes that it should have.
pub struct Mended {
    pub at: u64,
    pub bytes: Vec<u8>,
}

/// The mark of the record whose head begins with `bytes`, if its key is in them.
fn mark_of(bytes: &[u8]) -> Option<Mark> {
    let (seqno, key_len) = record::name_in(bytes.first_chunk()?);
    Some(Mark::new(bytes.get(HEADER..HEADER + key_len)?, seqno))
}

/// A head that does not check.
struct Wrong {
    seed: u64,
    at: u64,
    mark: Mark,
    /// The checksum as it was read.
    sum: [u8; 8],
    /// Where it starts; the bytes of the checksum are those of `at`, which is how heads are summed.
    bytes: Vec<u8>,
}

impl Wrong {
    /// The head, if nothing but `sum` is missing: compared as it is wherever one is decoded.
    fn with_sum(&self, sum: [u8; 8]) -> Option<(Head, Mended)> {
        let mut bytes = self.bytes.get(..Head::len_of(self.bytes.first_chunk()?))?.to_vec();
        bytes[..8].copy_from_slice(&sum);
        let head = Head::decode(self.seed, self.at, &bytes)?;
        (Mark::new(&head.key, head.seqno) == self.mark).then_some((head, Mended { at: self.at, bytes }))
    }

    /// The checksum that the bytes have.
    fn summed(&self) -> Option<[u8; 8]> {
        let head = self.bytes.get(..Head::len_of(self.bytes.first_chunk()?))?;
        Some(record::sum_behind_place(self.seed, head).to_le_bytes())
    }

    /// What it is if one byte is changed.
    fn mended(mut self) -> Option<(Head, Mended)> {
        let is_named = mark_of(&self.bytes) == Some(self.mark);
        if is_named
            && let Some(sum) = self.summed()
            && sum.iter().zip(self.sum).filter(|(byte, read)| **byte != *read).count() == 1
        {
            return self.with_sum(sum);
        }
        let header = self.bytes.first_chunk::<HEADER>()?;
        // As long as it says, but for a wrong byte in a length: then these are tried first.
        let said = Head::len_of(header).clamp(HEADER, self.bytes.len());
        let of_key = record::bytes_of_key(header);
        let names =
            |number| record::SEQNO.contains(&number) || of_key.iter().any(|bytes| bytes.contains(&number));
        for number in (8..said).filter(|number| is_named || names(*number)) {
            let was = self.bytes[number];
            for byte in (0..=u8::MAX).filter(|byte| *byte != was) {
                self.bytes[number] = byte;
                // Most names do not agree with the mark, and a hash takes less than the sum. The other bytes do not change the name.
                if (!names(number) || mark_of(&self.bytes) == Some(self.mark))
                    && self.summed() == Some(self.sum)
                {
                    return self.with_sum(self.sum);
                }
            }
            self.bytes[number] = was;
        }
        None
    }
}

impl<P: Pool> Heap<P> {
    /// The head of the live record at byte `at`, whose word has this `mark`, if one byte of it is wrong. Of those with parts each one is
    /// tried: as long as it is doubtful these are free, and it must not claim them once others have them. Of others so many as `tried`
    /// counts, at the most.
    pub fn mend(&self, tried: &AtomicU32, at: u64, mark: Mark) -> Option<(Head, Mended)> {
        let tries = self.may_have_parts(at) || tried.fetch_add(1, Ordering::Relaxed) < MOST_HEADS;
        tries.then(|| self.try_bytes(at, mark)).flatten()
    }

    /// Writes heads as they should be.
    pub fn write_mended(&self, mended: &[Mended]) {
        if !mended.is_empty() {
            let mut stage = Stage::new(&*self.pool);
            mended.iter().for_each(|mended| stage.write(mended.at, &mended.bytes));
            let _drained = stage.drain();
        }
    }

    fn try_bytes(&self, at: u64, mark: Mark) -> Option<(Head, Mended)> {
        let slot = self.slabs.slot_bytes(at)?;
        let mut bytes = vec![0; MOST_BYTES.min(slot as usize)];
        self.pool.read(at, &mut bytes).ok()?;
        let sum = bytes.first_chunk_mut::<8>()?;
        let sum = std::mem::replace(sum, at.to_le_bytes());
        Wrong { seed: self.seed, at, mark, sum, bytes }.mended()
    }
}
