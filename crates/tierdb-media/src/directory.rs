//! A store's directory: as it is, or beneath changes in DRAM.
//!
//! One type for stores that are used and for those that are looked at, so that there is one copy of the engines' code for both.

use crate::overlay::{Overlay, OverlayFile};
use std::mem;
use std::sync::Arc;
use tierdb_base::Result;
use tierdb_device::{AlignedBuf, BlockFile, Dir, DirLock, FileRead, OpenMode, Piece};

/// A directory of a store. Clones are the same directory, with the same changes.
#[derive(Clone)]
pub enum StoreDir<D: Dir> {
    /// Itself.
    Plain(D),
    /// Beneath changes that only its clones see.
    Overlaid(Overlay<D>),
}

/// An open file of a [`StoreDir`].
pub enum StoreFile<F> {
    /// Of a directory that is itself.
    Plain(F),
    /// Of one beneath changes.
    Overlaid(OverlayFile<F>),
}

/// Does `$call` with what `$this` has, of either kind.
macro_rules! either {
    ($kind:ident, $this:expr, $inner:ident => $call:expr) => {
        match $this {
            $kind::Plain($inner) => $call,
            $kind::Overlaid($inner) => $call,
        }
    };
}

impl<D: Dir> Dir for StoreDir<D> {
    type File = StoreFile<D::File>;

    fn name(&self) -> Arc<str> {
        either!(StoreDir, self, dir => dir.name())
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Self::File> {
        match self {
            StoreDir::Plain(dir) => dir.open(name, mode).map(StoreFile::Plain),
            StoreDir::Overlaid(dir) => dir.open(name, mode).map(StoreFile::Overlaid),
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        either!(StoreDir, self, dir => dir.list())
    }

    fn remove(&self, name: &str) -> Result<()> {
        either!(StoreDir, self, dir => dir.remove(name))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        either!(StoreDir, self, dir => dir.rename(from, to))
    }

    fn sync(&self) -> Result<()> {
        either!(StoreDir, self, dir => dir.sync())
    }

    fn lock(&self) -> Result<Box<dyn DirLock>> {
        either!(StoreDir, self, dir => dir.lock())
    }
}

impl<F: BlockFile> BlockFile for StoreFile<F> {
    fn name(&self) -> Arc<str> {
        either!(StoreFile, self, file => file.name())
    }

    fn len(&self) -> Result<u64> {
        either!(StoreFile, self, file => file.len())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        either!(StoreFile, self, file => file.set_len(len))
    }

    fn discard(&self, at: u64, len: u64) -> Result<()> {
        either!(StoreFile, self, file => file.discard(at, len))
    }

    fn read(&self, at: u64, buf: &mut AlignedBuf) -> Result<()> {
        either!(StoreFile, self, file => file.read(at, buf))
    }

    /// At once where all are of plain directories, as those of a store are, or are not.
    fn read_many(reads: &mut [FileRead<'_, Self>]) -> Vec<Result<()>> {
        let plain = |read: &FileRead<'_, Self>| matches!(read.file, StoreFile::Plain(_));
        if !reads.iter().all(plain) {
            return reads.iter_mut().map(|read| read.file.read(read.at, &mut read.buf)).collect();
        }
        let mut inner = Vec::with_capacity(reads.len());
        for read in &mut *reads {
            if let StoreFile::Plain(file) = read.file {
                inner.push(FileRead { file, at: read.at, buf: mem::take(&mut read.buf) });
            }
        }
        let results = F::read_many(&mut inner);
        reads.iter_mut().zip(inner).for_each(|(read, inner)| read.buf = inner.buf);
        results
    }

    fn write(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        either!(StoreFile, self, file => file.write(at, bytes))
    }

    fn write_pieces(&self, bytes: &AlignedBuf, pieces: &[Piece]) -> Result<()> {
        either!(StoreFile, self, file => file.write_pieces(bytes, pieces))
    }

    fn write_durable(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        either!(StoreFile, self, file => file.write_durable(at, bytes))
    }

    fn sync(&self) -> Result<()> {
        either!(StoreFile, self, file => file.sync())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tierdb_device::BLOCK;
    use tierdb_sim::World;

    #[test]
    fn several_reads_are_of_what_each_file_shows() {
        let below = World::new().add_dir("below");
        let plain = StoreDir::Plain(below.clone());
        let written = |dir: &StoreDir<_>, mode, byte| {
            let file = dir.open("file", mode).expect("open");
            file.set_len(2 * BLOCK).expect("length");
            file.write(BLOCK, &AlignedBuf::from_bytes(&[byte; BLOCK as usize]).expect("buffer"))
                .expect("write");
            file
        };
        let file = written(&plain, OpenMode::CreateNew, 1);
        let above = written(&StoreDir::Overlaid(Overlay::new(below)), OpenMode::Existing, 2);
        for files in [[&file, &file], [&above, &above], [&file, &above], [&above, &file]] {
            let read = |file| FileRead { file, at: BLOCK, buf: AlignedBuf::zeroed(1).expect("buffer") };
            let mut reads = files.map(read);
            StoreFile::read_many(&mut reads).into_iter().for_each(|read| read.expect("inside"));
            for read in reads {
                let shown = if matches!(read.file, StoreFile::Plain(_)) { 1 } else { 2 };
                assert!(read.buf.iter().all(|byte| *byte == shown) && read.buf.len() as u64 == BLOCK);
            }
        }
        let beyond = FileRead { file: &file, at: 2 * BLOCK, buf: AlignedBuf::zeroed(1).expect("buffer") };
        assert!(StoreFile::read_many(&mut [beyond])[0].is_err());
    }
}
