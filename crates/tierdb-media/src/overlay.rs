//! Directories that are read and never written: changes stay in DRAM, above the files as they are.
//!
//! A check or a repair must not change what it looks at, but opening a store recovers, which writes. Through
//! an overlay it may write what it likes: its reads see it, the medium does not, and it is gone with the last clone.
//!
//! Invariant: no call of a method that changes something reaches the directory below, but [`Dir::lock`].

use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use tierdb_base::{Error, Result};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Dir, DirLock, OpenMode};

/// Files that are looked through, each time that so many more are known, for some that are open below for nobody.
const SOME_FILES: usize = 16;

/// Names that were created, renamed or opened, with their file; `None` where the name is gone.
type Names<F> = BTreeMap<String, Option<Arc<Layers<F>>>>;

/// A directory as it is, under changes in DRAM. Clones share the changes.
pub struct Overlay<D: Dir> {
    /// The directory, or none where one is missing, which is then as good as empty.
    below: Option<D>,
    name: Arc<str>,
    names: Arc<Mutex<Names<D::File>>>,
}

impl<D: Dir> Clone for Overlay<D> {
    fn clone(&self) -> Self {
        Overlay { below: self.below.clone(), name: self.name.clone(), names: self.names.clone() }
    }
}

/// A file as it is, under changes in DRAM.
struct Layers<F> {
    name: Arc<str>,
    /// The file below, unless it was created here.
    below: Option<F>,
    changes: RwLock<Changes>,
}

struct Changes {
    /// Whether there are any, a new name among them.
    any: bool,
    len: u64,
    /// From here on the file below does not show: it is shorter, or was truncated here once.
    shown: u64,
    /// Blocks that were written, by number.
    blocks: BTreeMap<u64, AlignedBuf>,
}

/// An open file of an [`Overlay`].
pub struct OverlayFile<F>(Arc<Layers<F>>);

impl<D: Dir> Overlay<D> {
    /// `below` as it is, without changes.
    pub fn new(below: D) -> Self {
        Overlay { name: below.name(), below: Some(below), names: Arc::default() }
    }

    /// An empty directory in the place of one that is missing.
    pub fn missing(name: impl Into<Arc<str>>) -> Self {
        Overlay { name: name.into(), below: None, names: Arc::default() }
    }

    fn names_below(&self) -> Result<Vec<String>> {
        self.below.as_ref().map_or(Ok(Vec::new()), Dir::list)
    }

    fn file_error(&self, op: &'static str, name: &str, kind: std::io::ErrorKind) -> Error {
        Error::io(op, format!("{}/{name}", self.name), 0, kind.into())
    }

    /// The file `name`, from here or from below.
    fn find(&self, names: &mut Names<D::File>, name: &str) -> Result<Option<Arc<Layers<D::File>>>> {
        if let Some(known) = names.get(name) {
            return Ok(known.clone());
        }
        let Some(below) = &self.below else { return Ok(None) };
        if !below.list()?.iter().any(|below| below == name) {
            return Ok(None);
        }
        if names.len().is_multiple_of(SOME_FILES) {
            names.retain(|_, file| {
                file.as_ref().is_none_or(|file| Arc::strong_count(file) > 1 || file.changes.read().any)
            });
        }
        let file = below.open(name, OpenMode::Existing)?;
        let (len, path) = (file.len()? / BLOCK * BLOCK, file.name());
        let changes = RwLock::new(Changes { any: false, len, shown: len, blocks: BTreeMap::new() });
        let layers = Arc::new(Layers { name: path, below: Some(file), changes });
        names.insert(name.to_owned(), Some(layers.clone()));
        Ok(Some(layers))
    }
}

impl<D: Dir> Dir for Overlay<D> {
    type File = OverlayFile<D::File>;

    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Self::File> {
        let mut names = self.names.lock();
        match (self.find(&mut names, name)?, mode) {
            (Some(layers), OpenMode::Existing) => Ok(OverlayFile(layers)),
            (None, OpenMode::CreateNew) => {
                let path: Arc<str> = format!("{}/{name}", self.name).into();
                let changes = RwLock::new(Changes { any: true, len: 0, shown: 0, blocks: BTreeMap::new() });
                let layers = Arc::new(Layers { name: path, below: None, changes });
                names.insert(name.to_owned(), Some(layers.clone()));
                Ok(OverlayFile(layers))
            }
            (None, OpenMode::Existing) => Err(self.file_error("open", name, std::io::ErrorKind::NotFound)),
            (Some(_), OpenMode::CreateNew) => {
                Err(self.file_error("creation", name, std::io::ErrorKind::AlreadyExists))
            }
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        let names = self.names.lock();
        let mut all = self.names_below()?;
        all.retain(|name| !names.contains_key(name));
        all.extend(names.iter().filter(|(_, file)| file.is_some()).map(|(name, _)| name.clone()));
        all.sort_unstable();
        Ok(all)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let mut names = self.names.lock();
        if self.find(&mut names, name)?.is_none() {
            return Err(self.file_error("removal", name, std::io::ErrorKind::NotFound));
        }
        names.insert(name.to_owned(), None);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut names = self.names.lock();
        let Some(layers) = self.find(&mut names, from)? else {
            return Err(self.file_error("rename", from, std::io::ErrorKind::NotFound));
        };
        layers.changes.write().any = true;
        names.insert(from.to_owned(), None);
        names.insert(to.to_owned(), Some(layers));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn lock(&self) -> Result<Box<dyn DirLock>> {
        match &self.below {
            Some(below) => below.lock(),
            None => Err(Error::invalid(format!("{} is missing, so it cannot be locked", self.name))),
        }
    }
}

impl<F: BlockFile> OverlayFile<F> {
    fn check(&self, op: &'static str, at: u64, len: usize) -> Result<()> {
        let have = self.0.changes.read().len;
        if at.checked_add(len as u64).is_none_or(|end| end > have) {
            let eof = std::io::ErrorKind::UnexpectedEof.into();
            return Err(Error::io(op, self.0.name.clone(), at, eof));
        }
        Ok(())
    }
}

impl<F: BlockFile> BlockFile for OverlayFile<F> {
    fn name(&self) -> Arc<str> {
        self.0.name.clone()
    }

    fn len(&self) -> Result<u64> {
        Ok(self.0.changes.read().len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut changes = self.0.changes.write();
        changes.any = true;
        changes.blocks.split_off(&len.div_ceil(BLOCK));
        changes.shown = changes.shown.min(len);
        changes.len = len;
        Ok(())
    }

    fn read(&self, at: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.check("read", at, buf.len())?;
        let changes = self.0.changes.read();
        let end = at + buf.len() as u64;
        let below = changes.shown.clamp(at, end) - at;
        buf[below as usize..].fill(0);
        if let Some(file) = self.0.below.as_ref().filter(|_| below > 0) {
            if below == buf.len() as u64 {
                file.read(at, buf)?;
            } else {
                let mut part = AlignedBuf::zeroed(below as usize)?;
                file.read(at, &mut part)?;
                buf[..below as usize].copy_from_slice(&part);
            }
        }
        for (number, block) in changes.blocks.range(at / BLOCK..end / BLOCK) {
            let start = (number * BLOCK - at) as usize;
            buf[start..start + BLOCK as usize].copy_from_slice(block);
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        self.check("write", at, bytes.len())?;
        let mut changes = self.0.changes.write();
        changes.any = true;
        for (number, block) in (at / BLOCK..).zip(bytes.chunks(BLOCK as usize)) {
            changes.blocks.insert(number, AlignedBuf::from_bytes(block)?);
        }
        Ok(())
    }

    fn write_durable(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        self.write(at, bytes)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tierdb_sim::World;

    fn filled(byte: u8, blocks: usize) -> AlignedBuf {
        AlignedBuf::from_bytes(&vec![byte; blocks * BLOCK as usize]).expect("buffer")
    }

    /// The first byte of each block.
    fn bytes<F: BlockFile>(file: &F) -> Vec<u8> {
        let mut buf = AlignedBuf::zeroed(file.len().expect("len") as usize).expect("buffer");
        file.read(0, &mut buf).expect("read");
        buf.chunks(BLOCK as usize).map(|block| block[0]).collect()
    }

    #[test]
    fn files_that_nobody_uses_are_not_kept_open() {
        let below = World::new().add_dir("below");
        let names: Vec<String> = (0..500).map(|number| format!("file{number}")).collect();
        for name in &names {
            let file = below.open(name, OpenMode::CreateNew).expect("create");
            file.set_len(BLOCK).expect("length");
            file.write(0, &filled(1, 1)).expect("write");
        }
        let dir = Overlay::new(below);
        let used = dir.open("file0", OpenMode::Existing).expect("open");
        dir.rename("file1", "renamed").expect("rename");
        let changed = dir.open("file2", OpenMode::Existing).expect("open");
        changed.write(0, &filled(2, 1)).expect("write");
        drop(changed);
        for name in names.iter().skip(3) {
            assert_eq!(bytes(&dir.open(name, OpenMode::Existing).expect("open")), [1]);
        }
        let known = dir.names.lock().len();
        assert!(known <= SOME_FILES + 4, "{known} files are open");
        assert_eq!(bytes(&used), [1]);
        assert_eq!(bytes(&dir.open("file2", OpenMode::Existing).expect("open")), [2]);
        assert_eq!(dir.list().expect("list").len(), 500);
        assert!(
            dir.open("file1", OpenMode::Existing).is_err() && dir.open("renamed", OpenMode::Existing).is_ok()
        );
    }

    #[test]
    fn changes_are_seen_above_and_not_below() {
        let below = World::new().add_dir("below");
        let file = below.open("a", OpenMode::CreateNew).expect("create");
        file.set_len(4 * BLOCK).expect("length");
        file.write(0, &filled(1, 4)).expect("write");
        let dir = Overlay::new(below.clone());
        let above = dir.open("a", OpenMode::Existing).expect("open");
        above.write_durable(BLOCK, &filled(2, 2)).expect("write");
        assert_eq!(bytes(&above), [1, 2, 2, 1]);
        above.set_len(2 * BLOCK).expect("shorter");
        above.set_len(5 * BLOCK).expect("longer");
        assert_eq!(bytes(&above), [1, 2, 0, 0, 0], "what was cut off does not come back");
        assert!(above.write(5 * BLOCK, &filled(3, 1)).is_err(), "beyond the end");
        let mut tail = AlignedBuf::zeroed(2 * BLOCK as usize).expect("buffer");
        above.read(BLOCK, &mut tail).expect("read");
        assert_eq!((tail[0], tail[BLOCK as usize]), (2, 0));
        dir.open("b", OpenMode::CreateNew).expect("create");
        assert!(dir.open("a", OpenMode::CreateNew).is_err());
        dir.rename("a", "c").expect("rename");
        dir.remove("b").expect("remove");
        assert!(dir.remove("b").is_err() && dir.open("a", OpenMode::Existing).is_err());
        assert_eq!(dir.list().expect("list"), ["c"]);
        assert_eq!(bytes(&dir.open("c", OpenMode::Existing).expect("open")), [1, 2, 0, 0, 0]);
        assert_eq!(below.list().expect("list"), ["a"]);
        assert_eq!(bytes(&file), [1, 1, 1, 1]);
    }
}
