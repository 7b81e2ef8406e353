//! Heads of records with one wrong byte: made right again when the store is opened.
//!
//! A head has a checksum of 64 bits, and its commit word 40 bits of hash and seqno. So there is one way at the most to change a
//! byte such that all of it agrees: each is tried. That a wrong one passes is as likely as that damage passes the checksum, times the
//! tries: 2^-47 for a head of 512 bytes. What it saves is a key of which else not even the name is known, and the order of all others
//! ([`crate::lost`]).

use crate::heap::Heap;
use crate::record::{HEADER, Head};
use crate::slabs::Mark;
use std::sync::atomic::{AtomicU32, Ordering};
use tierdb_pmem::{Pool, Stage};

/// Longer heads are not tried: 255 tries for each byte, of which each sums all of them.
const MOST_BYTES: usize = 512;
/// Heads of values that lie in their slots for which an open tries at the most: about 5 ms of processor time each.
const MOST_HEADS: u32 = 256;

/// Where a head with one wrong byte is, and the bytes that it should have.
pub struct Mended {
    pub at: u64,
    pub bytes: Vec<u8>,
}

/// The head in the first bytes of `bytes`, if it is that of a record at byte `at` with this `mark`.
fn head_of(seed: u64, at: u64, bytes: &[u8], mark: Mark) -> Option<(Head, usize)> {
    let len = Head::len_of(bytes.first_chunk::<HEADER>()?);
    let head = Head::decode(seed, at, bytes.get(..len)?)?;
    (Mark::new(&head.key, head.seqno) == mark).then_some((head, len))
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
        // As long as it says, but for a wrong byte in a length: then these are tried first.
        let said = Head::len_of(bytes.first_chunk::<HEADER>()?).clamp(HEADER, bytes.len());
        for number in 0..said {
            let was = bytes[number];
            for byte in (0..=u8::MAX).filter(|byte| *byte != was) {
                bytes[number] = byte;
                if let Some((head, len)) = head_of(self.seed, at, &bytes, mark) {
                    bytes.truncate(len);
                    return Some((head, Mended { at, bytes }));
                }
            }
            bytes[number] = was;
        }
        None
    }
}
