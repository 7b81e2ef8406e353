//! Records and chunks, read from flash.

use super::Device;
use crate::record::Header;
use crate::word::Word;
use tierdb_base::Result;
use tierdb_device::{AlignedBuf, BLOCK, Cause, Dir};

/// Most bytes that are read of a record before its header says how long it is.
const FIRST_READ: u64 = 16 << 10;
/// Records with no more bytes between them are read at once: to read two blocks takes less than another read.
const MOST_GAP: u64 = 2 * BLOCK;
/// Most bytes of such a read.
const MOST_SPAN: u64 = 256 << 10;

/// Whole blocks that are read at once.
struct Span {
    start: u64,
    end: u64,
    /// The numbers of the records in it.
    records: Vec<usize>,
}

/// Spans for `places`: the number, first and last byte of each record.
fn spans(mut places: Vec<(usize, u64, u64)>) -> Vec<Span> {
    places.sort_unstable_by_key(|(_, start, _)| *start);
    let mut spans: Vec<Span> = Vec::new();
    for (number, start, end) in places {
        let (start, end) = (start / BLOCK * BLOCK, end.next_multiple_of(BLOCK));
        match spans.last_mut() {
            Some(last) if start <= last.end + MOST_GAP && end.max(last.end) - last.start <= MOST_SPAN => {
                last.end = end.max(last.end);
                last.records.push(number);
            }
            _ => spans.push(Span { start, end, records: vec![number] }),
        }
    }
    spans
}

impl<D: Dir> Device<D> {
    /// Reads the record that `word` says is at byte `at`, or the bytes where one should be, no more than its chunk
    /// has: the caller checks them.
    pub fn read_record(&self, at: u64, word: Word, cause: Cause) -> Result<Option<(Header, Vec<u8>)>> {
        let (number, offset) = self.chunk_of(at);
        if number >= self.chunks_in_file() {
            return Ok(None);
        }
        let room = self.chunk_bytes - offset;
        let first = word.max_len(self.chunk_bytes).min(room).min(FIRST_READ);
        let (start, buf) = self.read_span(at, first, cause)?;
        let bytes = &buf[(at - start) as usize..];
        let Some(header) = Header::parse(bytes) else { return Ok(None) };
        let len = header.len();
        if len as u64 > room {
            return Ok(None);
        }
        if len <= bytes.len() {
            return Ok(Some((header, bytes[..len].to_vec())));
        }
        let (start, buf) = self.read_span(at, len as u64, cause)?;
        let from = (at - start) as usize;
        Ok(Some((header, buf[from..from + len].to_vec())))
    }

    /// As [`Device::read_record`] for several records; in their order. Those that lie side by side are read at once, and
    /// all reads overlap. `None` too for a record that is longer than a first read, or whose read failed: read it by
    /// itself.
    pub fn read_records(&self, wanted: &[(u64, Word)], cause: Cause) -> Vec<Option<(Header, Vec<u8>)>> {
        let in_file = self.chunks_in_file();
        let place = |(number, (at, word)): (usize, &(u64, Word))| {
            let (chunk, offset) = self.chunk_of(*at);
            let len = word.max_len(self.chunk_bytes).min(self.chunk_bytes - offset).min(FIRST_READ);
            (chunk < in_file).then_some((number, *at, at + len))
        };
        let mut spans = spans(wanted.iter().enumerate().filter_map(place).collect());
        let mut reads = Vec::with_capacity(spans.len());
        spans.retain(|span| {
            let buf = AlignedBuf::zeroed((span.end - span.start) as usize);
            buf.map(|buf| reads.push((span.start, buf))).is_ok()
        });
        let done = self.file.read_many(&mut reads, cause);
        let mut found = vec![None; wanted.len()];
        for ((span, (start, buf)), done) in spans.into_iter().zip(reads).zip(done) {
            if done.is_err() {
                continue;
            }
            for number in span.records {
                let (at, word) = wanted[number];
                let bytes = &buf[(at - start) as usize..];
                let bytes = &bytes[..bytes.len().min(word.max_len(self.chunk_bytes) as usize)];
                if let Some(header) = Header::parse(bytes)
                    && header.len() <= bytes.len()
                {
                    found[number] = Some((header, bytes[..header.len()].to_vec()));
                }
            }
        }
        found
    }

    /// Reads at least `len` bytes from byte `at`: the whole blocks that hold them, and where those start.
    pub fn read_span(&self, at: u64, len: u64, cause: Cause) -> Result<(u64, AlignedBuf)> {
        let start = at / BLOCK * BLOCK;
        let end = (at + len).next_multiple_of(BLOCK);
        let mut buf = AlignedBuf::zeroed((end - start) as usize)?;
        self.file.read(start, &mut buf, cause)?;
        Ok((start, buf))
    }

    /// Reads a whole chunk.
    pub fn read_chunk(&self, number: u32, cause: Cause) -> Result<AlignedBuf> {
        let mut buf = AlignedBuf::zeroed(self.chunk_bytes as usize)?;
        self.file.read(u64::from(number) * self.chunk_bytes, &mut buf, cause)?;
        Ok(buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_side_by_side_is_read_at_once() {
        let spans = |places: &[(u64, u64)]| {
            let places = places.iter().enumerate().map(|(number, (at, end))| (number, *at, *end)).collect();
            let show = |span: Span| (span.start / BLOCK, span.end / BLOCK, span.records);
            super::spans(places).into_iter().map(show).collect::<Vec<_>>()
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
