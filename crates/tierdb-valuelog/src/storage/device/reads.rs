//! Records and chunks, read from flash.

use super::Device;
use crate::record::Header;
use crate::word::Word;
use parking_lot::Mutex;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use tierdb_base::Result;
use tierdb_device::{AlignedBuf, BLOCK, Cause, Dir, FileRead, Metered, read_blocks};

/// A record that is no longer is read at once, as long as its class may be.
const AT_ONCE: u64 = 64 << 10;
/// Bytes that are read of a longer one before its header says how long it is.
const FIRST_READ: u64 = 16 << 10;
thread_local! {
    /// What a thread reads single records into: no more than is read at once, with a block more.
    static BUFFER: Cell<AlignedBuf> = Cell::default();
}

/// Most bytes of a directory's spare buffers.
const MOST_SPARE: usize = 1 << 20;

/// Buffers that several records were read into at once, for the next ones. To allocate such large ones, and to give them back, for each
/// of many short scans takes the allocator longer than what it does for all else of a scan.
#[derive(Default)]
pub struct Spare(Mutex<Vec<AlignedBuf>>);

impl Spare {
    /// A buffer of `len` bytes, which may hold anything.
    fn take(&self, len: usize) -> Result<AlignedBuf> {
        let spare = {
            let mut spare = self.0.lock();
            let fits = spare.iter().enumerate().filter(|(_, buf)| buf.capacity() >= len);
            let number = fits.min_by_key(|(_, buf)| buf.capacity()).map(|(number, _)| number);
            number.map(|number| spare.swap_remove(number))
        };
        let mut buf = spare.unwrap_or_default();
        buf.resize(len)?;
        Ok(buf)
    }

    fn give(&self, buf: AlignedBuf) {
        let mut spare = self.0.lock();
        if spare.iter().map(AlignedBuf::capacity).sum::<usize>() + buf.capacity() <= MOST_SPARE {
            spare.push(buf);
        }
    }
}

/// A buffer that is spare when nobody needs it any more.
struct Lent {
    bytes: AlignedBuf,
    spare: Arc<Spare>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.spare.give(std::mem::take(&mut self.bytes));
    }
}

/// Records with no more bytes between them are read at once: to read two blocks takes less than another read.
const MOST_GAP: u64 = 2 * BLOCK;
/// Most bytes of such a read.
const MOST_SPAN: u64 = 256 << 10;

/// A record: its header, and its bytes.
pub type Record = (Header, Arc<[u8]>);

/// A record among others that were read at once.
pub struct Found {
    buf: Arc<Lent>,
    from: usize,
    /// How many they were.
    pub at_once: usize,
}

impl Found {
    /// The record, unchecked, if it has no more than `most` bytes and all of them were read.
    pub fn record(&self, most: u64) -> Option<(Header, &[u8])> {
        let bytes = &self.buf.bytes[self.from..];
        let bytes = &bytes[..bytes.len().min(most as usize)];
        let header = Header::parse(bytes)?;
        bytes.get(..header.len()).map(|bytes| (header, bytes))
    }
}

/// Whole blocks that are read at once.
struct Span {
    start: u64,
    end: u64,
    /// Which of the places, in order, are in it.
    places: Range<usize>,
}

/// Whether a record at byte `at` is read at once with one that ends at byte `end`.
pub fn is_beside(end: u64, at: u64) -> bool {
    (end..=end + MOST_GAP).contains(&at)
}

/// Puts `places` (the number, first and last byte of each record) in order, and says which to read at once.
fn spans(places: &mut [(usize, u64, u64)]) -> Vec<Span> {
    places.sort_unstable_by_key(|(_, start, _)| *start);
    let mut spans: Vec<Span> = Vec::with_capacity(places.len().min(16));
    for (at, (_, start, end)) in places.iter().enumerate() {
        let (start, end) = (start / BLOCK * BLOCK, end.next_multiple_of(BLOCK));
        match spans.last_mut() {
            Some(last) if start <= last.end + MOST_GAP && end.max(last.end) - last.start <= MOST_SPAN => {
                last.end = end.max(last.end);
                last.places.end = at + 1;
            }
            _ => spans.push(Span { start, end, places: at..at + 1 }),
        }
    }
    spans
}

/// Records of a device: for each the byte where it is, and the word that says so.
pub type Wanted<'d, D> = (&'d Device<D>, Vec<(u64, Word)>);

/// Reads several records of several devices, which are where [`Device::read_record`] would look for them; in their order, by
/// device. Those that lie side by side are read at once, and all reads overlap. `None` where the read failed, or the record is long: read it
/// by itself.
pub fn read_records<D: Dir>(wanted: &[Wanted<'_, D>], cause: Cause) -> Vec<Vec<Option<Found>>> {
    let (mut of_spans, mut reads) = (Vec::new(), Vec::new());
    let mut all_places = Vec::with_capacity(wanted.len());
    for (of, (device, wanted)) in wanted.iter().enumerate() {
        let in_file = device.chunks_in_file();
        let place = |(number, (at, word)): (usize, &(u64, Word))| {
            let (chunk, offset) = device.chunk_of(*at);
            let len = word.max_len(device.chunk_bytes).min(device.chunk_bytes - offset);
            (chunk < in_file && len <= AT_ONCE).then_some((number, *at, at + len))
        };
        let mut places = Vec::with_capacity(wanted.len());
        places.extend(wanted.iter().enumerate().filter_map(place));
        for span in spans(&mut places) {
            let Ok(buf) = device.spare.take((span.end - span.start) as usize) else { continue };
            reads.push(FileRead { file: &device.file, at: span.start, buf });
            of_spans.push((of, span.places));
        }
        all_places.push(places);
    }
    let done = Metered::read_many(&mut reads, cause);
    let none = |wanted: &(_, Vec<_>)| wanted.1.iter().map(|_| None).collect();
    let mut found: Vec<Vec<Option<Found>>> = wanted.iter().map(none).collect();
    for (((of, places), read), done) in of_spans.into_iter().zip(reads).zip(done) {
        if done.is_err() {
            continue;
        }
        let (device, wanted) = &wanted[of];
        let at_once = places.len();
        let buf = Arc::new(Lent { bytes: read.buf, spare: device.spare.clone() });
        for &(number, ..) in &all_places[of][places] {
            let from = (wanted[number].0 - read.at) as usize;
            found[of][number] = Some(Found { buf: buf.clone(), from, at_once });
        }
    }
    found
}

impl<D: Dir> Device<D> {
    /// Reads the record that `word` says is at byte `at`, or the bytes where one should be, no more than its chunk
    /// has: the caller checks them. Shows the whole blocks that were read for it, and where they begin.
    pub fn read_record(
        &self,
        at: u64,
        word: Word,
        cause: Cause,
        show: impl FnOnce(u64, &[u8]),
    ) -> Result<Option<Record>> {
        let (number, offset) = self.chunk_of(at);
        if number >= self.chunks_in_file() {
            return Ok(None);
        }
        let room = self.chunk_bytes - offset;
        let longest = word.max_len(self.chunk_bytes).min(room);
        let first = if longest <= AT_ONCE { longest } else { FIRST_READ };
        let mut buf = BUFFER.take();
        let record = self.read_into(&mut buf, at, first, cause).map(|bytes| {
            let header = Header::parse(bytes).filter(|header| header.len() as u64 <= room)?;
            Some((header, bytes.get(..header.len()).map(Arc::from)))
        });
        if record.is_ok() {
            show(at / BLOCK * BLOCK, &buf);
        }
        BUFFER.set(buf);
        match record? {
            None => Ok(None),
            Some((header, Some(bytes))) => Ok(Some((header, bytes))),
            Some((header, None)) => {
                let len = header.len();
                let (start, buf) = self.read_span(at, len as u64, cause)?;
                let from = (at - start) as usize;
                Ok(Some((header, buf[from..from + len].into())))
            }
        }
    }

    /// Reads at least `len` bytes from byte `at`: the whole blocks that hold them, and where those start.
    pub fn read_span(&self, at: u64, len: u64, cause: Cause) -> Result<(u64, AlignedBuf)> {
        let mut buf = AlignedBuf::default();
        self.read_into(&mut buf, at, len, cause)?;
        Ok((at / BLOCK * BLOCK, buf))
    }

    /// As [`Device::read_span`], into `buf`. Returns the bytes from byte `at`.
    fn read_into<'b>(&self, buf: &'b mut AlignedBuf, at: u64, len: u64, cause: Cause) -> Result<&'b [u8]> {
        let start = at / BLOCK * BLOCK;
        let end = (at + len).next_multiple_of(BLOCK);
        buf.resize((end - start) as usize)?;
        self.file.read(start, buf, cause)?;
        Ok(&buf[(at - start) as usize..])
    }

    /// Reads a whole chunk into `chunk`, which is then as long as one.
    pub fn read_chunk(&self, number: u32, chunk: &mut AlignedBuf, cause: Cause) -> Result<()> {
        chunk.resize(self.chunk_bytes as usize)?;
        self.file.read(u64::from(number) * self.chunk_bytes, chunk, cause)
    }

    /// As [`Device::read_chunk`], block by block: what cannot be read is zeros. Returns how many blocks that are.
    ///
    /// # Errors
    /// `Io`, if there is no memory for a chunk.
    pub fn read_blocks(&self, number: u32, chunk: &mut AlignedBuf, cause: Cause) -> Result<u64> {
        chunk.resize(self.chunk_bytes as usize)?;
        let mut read = AlignedBuf::zeroed(BLOCK as usize)?;
        let unreadable = read_blocks(u64::from(number) * self.chunk_bytes, chunk, |at, block| {
            self.file.read(at, &mut read, cause).map(|()| block.copy_from_slice(&read))
        });
        Ok(unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_side_by_side_is_read_at_once() {
        let spans = |places: &[(u64, u64)]| {
            let numbered = places.iter().enumerate().map(|(number, (at, end))| (number, *at, *end));
            let mut places: Vec<_> = numbered.collect();
            let spans = super::spans(&mut places);
            let records =
                |span: &Span| places[span.places.clone()].iter().map(|(number, ..)| *number).collect();
            let show = |span: &Span| (span.start / BLOCK, span.end / BLOCK, records(span));
            spans.iter().map(show).collect::<Vec<(u64, u64, Vec<usize>)>>()
        };
        assert_eq!(spans(&[]), []);
        assert_eq!(spans(&[(5000, 5100), (100, 300), (300, 4097)]), [(0, 2, vec![1, 2, 0])]);
        let gap = |blocks: u64| [(0, 100), (BLOCK + blocks * BLOCK, BLOCK + blocks * BLOCK + 7)];
        assert_eq!(spans(&gap(2)), [(0, 4, vec![0, 1])]);
        assert_eq!(spans(&gap(3)), [(0, 1, vec![0]), (4, 5, vec![1])]);
        let blocks: Vec<_> = (0..200).map(|block| (block * BLOCK, block * BLOCK + 1)).collect();
        let found = spans(&blocks);
        assert_eq!(found.iter().map(|span| span.1 - span.0).collect::<Vec<_>>(), [64, 64, 64, 8]);
        assert_eq!(
            found.iter().flat_map(|span| span.2.clone()).collect::<Vec<_>>(),
            (0..200).collect::<Vec<_>>()
        );
    }
}
