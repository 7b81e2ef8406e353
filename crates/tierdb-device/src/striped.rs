//! Several directories as one: files cut into stripes that are dealt to them in turn (RAID 0).
//!
//! Stripe n of a file is in the file of the same name in directory `n % count`, after the stripes that are there
//! already; so what a range of the file takes in each directory is one range, too. With one directory
//! every call goes straight to it.
//!
//! Cost: a call within one stripe is one call of one directory. A longer one is one call of each directory that has
//! any of it, one after another, and a copy; so threads use all devices at once, and a single one that of each in turn.
//!
//! What a crash leaves: each directory is on a device with a timeline of its own. Of a write that is not
//! durable yet any subset of the sectors may be there, on any of the devices, whatever was issued first; of
//! a change of length or of names, the part of any subset of the directories. That is what [`file`](crate::file)
//! says of one device, but for two things that one device does as one step:
//! * A file that was being created or removed may be in some of the directories only. It is listed and can be
//!   removed, but not opened.
//! * A file whose length was being changed may be of no whole length. It then has the longest one for which
//!   all bytes are there.
//!
//! [`Dir::rename`] could be half done after a crash, so it is refused where there is more than one directory.

use crate::buf::AlignedBuf;
use crate::file::{BLOCK, BlockFile, Dir, DirLock, FileRead, OpenMode, Piece, cut};
use std::io::ErrorKind;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use tierdb_base::{Error, Result};

/// Bytes of a stripe. Fixed: nothing in a file says how it was cut.
pub const STRIPE: u64 = 64 << 10;

/// Several directories as one. Their order is that of the stripes, and must be the same at every open.
#[derive(Clone)]
pub struct Striped<D> {
    dirs: Arc<[D]>,
    stripe: u64,
    name: Arc<str>,
}

/// A file of a [`Striped`] directory.
pub struct StripedFile<F> {
    /// One in each directory, in their order.
    parts: Box<[F]>,
    stripe: u64,
    name: Arc<str>,
}

fn joined(names: impl Iterator<Item = Arc<str>>) -> Arc<str> {
    names.map(|name| name.to_string()).collect::<Vec<_>>().join(" + ").into()
}

impl<D: Dir> Striped<D> {
    /// `dirs` as one directory.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn new(dirs: Vec<D>) -> Result<Self> {
        Self::with_stripe(dirs, STRIPE)
    }

    /// As [`Striped::new`], with stripes of `stripe` bytes: for tests, in which stripes of a few blocks make small
    /// files cross many of them.
    ///
    /// # Errors
    /// `Invalid` if there is no directory, or `stripe` is not a multiple of [`BLOCK`].
    pub fn with_stripe(dirs: Vec<D>, stripe: u64) -> Result<Self> {
        if dirs.is_empty() || stripe == 0 || !stripe.is_multiple_of(BLOCK) {
            return Err(Error::invalid(format!(
                "stripes of {stripe} bytes over {} directories: at least one directory is needed, and stripes of a \
                 multiple of {BLOCK} bytes",
                dirs.len()
            )));
        }
        let name = joined(dirs.iter().map(Dir::name));
        Ok(Striped { dirs: dirs.into(), stripe, name })
    }

    /// The directories, in the order of the stripes.
    pub fn dirs(&self) -> &[D] {
        &self.dirs
    }
}

impl<D: Dir> Dir for Striped<D> {
    type File = StripedFile<D::File>;

    /// The directories' names, joined.
    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Self::File> {
        let mut parts = Vec::with_capacity(self.dirs.len());
        for dir in &*self.dirs {
            match dir.open(name, mode) {
                Ok(part) => parts.push(part),
                Err(error) => {
                    if mode == OpenMode::CreateNew {
                        // What was created goes again; if that fails too, the first error says more.
                        for created in &self.dirs[..parts.len()] {
                            let _ = created.remove(name);
                        }
                    }
                    return Err(error);
                }
            }
        }
        let name = joined(parts.iter().map(BlockFile::name));
        Ok(StripedFile { parts: parts.into(), stripe: self.stripe, name })
    }

    /// Names that are in any of the directories.
    fn list(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for dir in &*self.dirs {
            names.append(&mut dir.list()?);
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Removes the file from every directory that has it.
    fn remove(&self, name: &str) -> Result<()> {
        let (mut removed, mut absent) = (false, None);
        for dir in &*self.dirs {
            match dir.remove(name) {
                Ok(()) => removed = true,
                Err(Error::Io { op, place, source }) if source.kind() == ErrorKind::NotFound => {
                    absent = Some(Error::Io { op, place, source });
                }
                Err(error) => return Err(error),
            }
        }
        match absent {
            Some(error) if !removed => Err(error),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// `Unsupported` where there is more than one directory: it could not be one step.
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        match &*self.dirs {
            [only] => only.rename(from, to),
            _ => Err(Error::Unsupported {
                what: format!(
                    "a file striped over {} cannot be renamed: it would not be one step; write a new file",
                    self.name
                ),
            }),
        }
    }

    #[track_caller]
    fn sync(&self) -> Result<()> {
        for dir in &*self.dirs {
            dir.sync()?;
        }
        Ok(())
    }

    fn lock(&self) -> Result<Box<dyn DirLock>> {
        let locks = self.dirs.iter().map(Dir::lock).collect::<Result<_>>()?;
        Ok(Box::new(Locks { _each: locks }))
    }
}

/// The locks of all directories.
struct Locks {
    _each: Vec<Box<dyn DirLock>>,
}

impl DirLock for Locks {}

impl<F: BlockFile> StripedFile<F> {
    /// The bytes of part `number` that belong to the first `len` of the file.
    fn part_len(&self, number: usize, len: u64) -> u64 {
        let round = self.stripe * self.parts.len() as u64;
        len / round * self.stripe + (len % round).saturating_sub(number as u64 * self.stripe).min(self.stripe)
    }

    /// Where the range of part `number` ends up, of which `have` bytes are there: the first byte of the file after
    /// them that is this part's.
    fn first_missing(&self, number: usize, have: u64) -> u64 {
        let stripe = have / self.stripe * self.parts.len() as u64 + number as u64;
        stripe.saturating_mul(self.stripe).saturating_add(have % self.stripe)
    }

    /// The part that has all of a range, if one has.
    fn part_of(&self, at: u64, len: usize) -> Option<(&F, u64)> {
        if let [only] = &*self.parts {
            return Some((only, at));
        }
        let number = (at / self.stripe % self.parts.len() as u64) as usize;
        (at % self.stripe + len as u64 <= self.stripe)
            .then(|| (&self.parts[number], self.part_len(number, at)))
    }

    /// The ranges that a range of the file has in each part that has any of it.
    fn spans(&self, op: &'static str, at: u64, len: usize) -> Result<Vec<Span>> {
        let end = at
            .checked_add(len as u64)
            .ok_or_else(|| Error::io(op, self.name.clone(), at, ErrorKind::UnexpectedEof.into()))?;
        let mut spans = Vec::with_capacity(self.parts.len());
        for number in 0..self.parts.len() {
            let (from, to) = (self.part_len(number, at), self.part_len(number, end));
            if from < to {
                spans.push(Span {
                    number,
                    at: from,
                    bytes: AlignedBuf::zeroed((to - from) as usize)?,
                    done: 0,
                });
            }
        }
        Ok(spans)
    }

    /// Calls `each` with the stripes of a range: the part's range of `spans`, and what of its bytes and of the
    /// whole range's belong together.
    fn deal(
        &self,
        spans: &mut [Span],
        at: u64,
        len: usize,
        mut each: impl FnMut(&mut Span, Range<usize>, Range<usize>),
    ) {
        let mut done = 0;
        while done < len {
            let place = at + done as u64;
            let number = (place / self.stripe % self.parts.len() as u64) as usize;
            let count = ((self.stripe - place % self.stripe) as usize).min(len - done);
            if let Some(span) = spans.iter_mut().find(|span| span.number == number) {
                let own = span.done..span.done + count;
                span.done += count;
                each(span, own, done..done + count);
            }
            done += count;
        }
    }

    /// `bytes`, to be written at `at`, by part.
    fn cut(&self, at: u64, bytes: &[u8]) -> Result<Vec<Span>> {
        let mut spans = self.spans("write", at, bytes.len())?;
        self.deal(&mut spans, at, bytes.len(), |span, own, whole| {
            span.bytes[own].copy_from_slice(&bytes[whole]);
        });
        Ok(spans)
    }
}

/// A range of one part, and its bytes.
struct Span {
    number: usize,
    at: u64,
    bytes: AlignedBuf,
    /// How many of them were dealt with.
    done: usize,
}

impl<F: BlockFile> BlockFile for StripedFile<F> {
    /// The names of the parts, joined. Errors of a part name that part, and the place in it.
    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    fn len(&self) -> Result<u64> {
        let mut len = u64::MAX;
        for (number, part) in self.parts.iter().enumerate() {
            let have = part.len()?;
            len = len.min(self.first_missing(number, have));
        }
        Ok(len)
    }

    /// Where a part cannot grow, those that did shrink back.
    #[track_caller]
    fn set_len(&self, len: u64) -> Result<()> {
        if let [only] = &*self.parts {
            return only.set_len(len);
        }
        let before = self.len()?;
        for (number, part) in self.parts.iter().enumerate() {
            // What a change of length that was cut short has left must not come back as part of the file.
            let least = self.part_len(number, before.min(len));
            if part.len()? > least {
                part.set_len(least)?;
            }
        }
        for (number, part) in self.parts.iter().enumerate() {
            let wanted = self.part_len(number, len);
            if part.len()? == wanted {
                continue;
            }
            if let Err(error) = part.set_len(wanted) {
                for (number, grown) in self.parts.iter().enumerate().take(number) {
                    grown.set_len(self.part_len(number, before.min(len)))?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Costs a copy where the range crosses stripes.
    fn read(&self, at: u64, buf: &mut AlignedBuf) -> Result<()> {
        if let Some((part, at)) = self.part_of(at, buf.len()) {
            return part.read(at, buf);
        }
        let mut spans = self.spans("read", at, buf.len())?;
        for span in &mut spans {
            self.parts[span.number].read(span.at, &mut span.bytes)?;
        }
        self.deal(&mut spans, at, buf.len(), |span, own, whole| {
            buf[whole].copy_from_slice(&span.bytes[own]);
        });
        Ok(())
    }

    fn read_many(reads: &mut [FileRead<'_, Self>]) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = Vec::with_capacity(reads.len());
        // Which read a read of a part is for, the number of the part where it is not for the whole of that, and the read.
        let (mut owners, mut of_parts) = (Vec::with_capacity(reads.len()), Vec::with_capacity(reads.len()));
        for (index, read) in reads.iter_mut().enumerate() {
            let parts = &read.file.parts;
            if let Some((file, at)) = read.file.part_of(read.at, read.buf.len()) {
                owners.push((index, None));
                of_parts.push(FileRead { file, at, buf: mem::take(&mut read.buf) });
                results.push(Ok(()));
                continue;
            }
            results.push(read.file.spans("read", read.at, read.buf.len()).map(|spans| {
                for Span { number, at, bytes, .. } in spans {
                    owners.push((index, Some(number)));
                    of_parts.push(FileRead { file: &parts[number], at, buf: bytes });
                }
            }));
        }
        let outcomes = F::read_many(&mut of_parts);
        let mut spans: Vec<Vec<Span>> = reads.iter().map(|_| Vec::new()).collect();
        for (((index, number), FileRead { at, buf: bytes, .. }), outcome) in
            owners.into_iter().zip(of_parts).zip(outcomes)
        {
            match number {
                Some(number) => spans[index].push(Span { number, at, bytes, done: 0 }),
                None => reads[index].buf = bytes,
            }
            if outcome.is_err() {
                results[index] = outcome;
            }
        }
        for (read, spans) in reads.iter_mut().zip(&mut spans).filter(|(_, spans)| !spans.is_empty()) {
            read.file.deal(spans, read.at, read.buf.len(), |span, own, whole| {
                read.buf[whole].copy_from_slice(&span.bytes[own]);
            });
        }
        results
    }

    #[track_caller]
    fn write(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        if let Some((part, at)) = self.part_of(at, bytes.len()) {
            return part.write(at, bytes);
        }
        for span in self.cut(at, bytes)? {
            self.parts[span.number].write(span.at, &span.bytes)?;
        }
        Ok(())
    }

    /// Those of one part at once, and the parts one after another.
    #[track_caller]
    fn write_pieces(&self, bytes: &AlignedBuf, pieces: &[Piece]) -> Result<()> {
        if let [only] = &*self.parts {
            return only.write_pieces(bytes, pieces);
        }
        let mut of_parts: Vec<(Vec<u8>, Vec<Piece>)> =
            self.parts.iter().map(|_| Default::default()).collect();
        for (at, piece) in cut(bytes, pieces) {
            for span in self.cut(at, piece)? {
                let (bytes, pieces) = &mut of_parts[span.number];
                pieces.push(Piece { at: span.at, len: span.bytes.len() });
                bytes.extend_from_slice(&span.bytes);
            }
        }
        for (part, (bytes, pieces)) in
            self.parts.iter().zip(&of_parts).filter(|(_, (bytes, _))| !bytes.is_empty())
        {
            part.write_pieces(&AlignedBuf::from_bytes(bytes)?, pieces)?;
        }
        Ok(())
    }

    #[track_caller]
    fn write_durable(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        if let Some((part, at)) = self.part_of(at, bytes.len()) {
            return part.write_durable(at, bytes);
        }
        for span in self.cut(at, bytes)? {
            self.parts[span.number].write_durable(span.at, &span.bytes)?;
        }
        Ok(())
    }

    #[track_caller]
    fn sync(&self) -> Result<()> {
        for part in &self.parts {
            part.sync()?;
        }
        Ok(())
    }
}
