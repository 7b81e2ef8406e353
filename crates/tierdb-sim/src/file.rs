//! A simulated block file: what reads see, what is durable, and the changes in between.
//!
//! Changes that no sync has covered are kept in order. After a crash each may be there or not, sector by
//! sector, whatever became of the others. A failed sync leaves the changes it should have covered
//! *doubtful* for good: a later sync that succeeds says nothing of them, as the kernel may have dropped
//! the pages.

use crate::dir::{DirState, FileId};
use crate::fault::{FaultKind, Injected, Ops};
use crate::space::{PAGE, Page, Space};
use crate::world::{EventKind, World};
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, OnceLock};
use tierdb_base::{Error, Result, mutant};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile};

/// Bytes of the smallest unit that is written whole.
pub(crate) const SECTOR: usize = 512;
/// Sectors of a page.
pub(crate) const SECTORS: usize = PAGE / SECTOR;

/// How sure it is that a change is on media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// The next good sync makes it certain.
    Pending,
    /// It survives.
    Certain,
    /// A sync that should have covered it has failed.
    Doubtful,
}

/// A write of whole pages.
pub(crate) struct Written {
    pub first: usize,
    pub pages: Vec<Arc<Page>>,
    sums: OnceLock<Vec<u64>>,
}

impl Written {
    fn new(first: usize, pages: Vec<Arc<Page>>) -> Self {
        Written { first, pages, sums: OnceLock::new() }
    }

    /// A sum of each sector, computed once for all crash points that have this write.
    pub fn sums(&self) -> &[u64] {
        self.sums.get_or_init(|| {
            let sectors = self.pages.iter().flat_map(|page| page.chunks_exact(SECTOR));
            sectors.map(|sector| tierdb_base::checksum(0, sector)).collect()
        })
    }

    fn covers(&self, other: &Written) -> bool {
        self.first <= other.first && other.end() <= self.end()
    }

    fn overlaps(&self, other: &Written) -> bool {
        self.first < other.end() && other.first < self.end()
    }

    fn end(&self) -> usize {
        self.first + self.pages.len()
    }
}

#[derive(Clone)]
pub(crate) enum Change {
    Write(Arc<Written>),
    SetLen(u64),
}

/// A change that is not yet part of [`FileState::durable`].
#[derive(Clone)]
pub(crate) struct FileOp {
    pub certainty: Certainty,
    pub change: Change,
}

/// A file: its content as read, its medium, and the changes since.
#[derive(Default)]
pub(crate) struct FileState {
    pub len: u64,
    pub content: Space,
    pub durable_len: u64,
    pub durable: Space,
    pub ops: Vec<FileOp>,
    /// Pages that cannot be read.
    pub unreadable: BTreeSet<usize>,
    /// Held by every open handle: a removed file lives until the last is dropped.
    pub open: Arc<()>,
}

impl FileState {
    /// A file that is on media as it is.
    pub fn with_content(len: u64, content: Space) -> Self {
        FileState {
            len,
            content: content.clone(),
            durable_len: len,
            durable: content,
            ops: Vec::new(),
            unreadable: BTreeSet::new(),
            open: Arc::default(),
        }
    }

    /// The file after the death of a process, without handles.
    pub fn killed(&self) -> Self {
        FileState {
            len: self.len,
            content: self.content.clone(),
            durable_len: self.durable_len,
            durable: self.durable.clone(),
            ops: self.ops.clone(),
            unreadable: self.unreadable.clone(),
            open: Arc::default(),
        }
    }

    fn change(&mut self, change: Change, certainty: Certainty) {
        match &change {
            Change::Write(written) => {
                for (i, page) in written.pages.iter().enumerate() {
                    self.content.set_page(written.first + i, page.clone());
                    self.unreadable.remove(&(written.first + i));
                }
            }
            Change::SetLen(len) => {
                if *len < self.len {
                    self.content.truncate(*len as usize / PAGE);
                }
                self.len = *len;
            }
        }
        self.ops.push(FileOp { certainty, change });
    }

    /// A write that survives from now on, straight to `durable` where no other change is in its way.
    fn write_certain(&mut self, written: Arc<Written>) {
        // What it covers cannot show again, whatever became of it.
        self.ops.retain(|op| !matches!(&op.change, Change::Write(old) if written.covers(old)));
        let in_the_way = |op: &FileOp| match &op.change {
            Change::Write(old) => written.overlaps(old),
            Change::SetLen(_) => true,
        };
        let direct = !self.ops.iter().any(in_the_way);
        self.change(Change::Write(written), Certainty::Certain);
        if direct && let Some(FileOp { change: Change::Write(written), .. }) = self.ops.pop() {
            for (i, page) in written.pages.iter().enumerate() {
                self.durable.set_page(written.first + i, page.clone());
            }
        }
    }

    fn sync(&mut self) {
        settle(self.ops.iter_mut().map(|op| &mut op.certainty), Certainty::Certain);
        if self.ops.iter().all(|op| op.certainty == Certainty::Certain) {
            self.settle();
        }
    }

    /// Makes the content as it is that of the medium.
    pub fn settle(&mut self) {
        self.durable = self.content.clone();
        self.durable_len = self.len;
        self.ops.clear();
    }

    fn sync_failed(&mut self) {
        settle(self.ops.iter_mut().map(|op| &mut op.certainty), Certainty::Doubtful);
    }

    /// A write that fails may have changed some of its sectors.
    fn write_failed(&mut self, written: &Written, fault: &Injected) {
        let mut rng = fastrand::Rng::with_seed(fault.seed);
        let cut = rng.usize(0..written.pages.len() * SECTORS);
        let torn = match fault.kind {
            FaultKind::Short => self.torn(written, |sector| sector < cut),
            FaultKind::Eio => self.torn(written, |_| rng.bool()),
            _ => return,
        };
        self.change(Change::Write(Arc::new(torn)), Certainty::Pending);
    }

    /// The pages of a write that changed only the sectors that `changed` names.
    fn torn(&self, written: &Written, mut changed: impl FnMut(usize) -> bool) -> Written {
        let mut pages = written.pages.clone();
        for (i, page) in pages.iter_mut().enumerate() {
            let mut old = [0; PAGE];
            self.content.read(((written.first + i) * PAGE) as u64, &mut old);
            for sector in 0..SECTORS {
                if changed(i * SECTORS + sector) {
                    let range = sector * SECTOR..(sector + 1) * SECTOR;
                    old[range.clone()].copy_from_slice(&page[range]);
                }
            }
            *page = Arc::new(old);
        }
        Written::new(written.first, pages)
    }
}

/// Pending changes become what a sync makes of them.
pub(crate) fn settle<'a>(ops: impl Iterator<Item = &'a mut Certainty>, to: Certainty) {
    ops.filter(|certainty| **certainty == Certainty::Pending).for_each(|certainty| *certainty = to);
}

/// A simulated block file. Clones are the same file.
#[derive(Clone)]
pub struct SimFile {
    world: World,
    dir: usize,
    device: Arc<str>,
    id: FileId,
    name: Arc<str>,
    _open: Arc<()>,
}

impl SimFile {
    pub(crate) fn new(
        world: World,
        dir: usize,
        device: Arc<str>,
        id: FileId,
        name: Arc<str>,
        open: Arc<()>,
    ) -> Self {
        SimFile { world, dir, device, id, name, _open: open }
    }

    fn with<T>(&self, work: impl FnOnce(&mut FileState) -> T) -> T {
        self.with_dir(|dir| work(dir.file(self.id)))
    }

    fn with_dir<T>(&self, work: impl FnOnce(&mut DirState) -> T) -> T {
        work(&mut self.world.state().dirs[self.dir])
    }

    fn error(&self, op: &'static str, at: u64, error: impl Into<io::Error>) -> Error {
        Error::io(op, self.name.clone(), at, error.into())
    }

    fn fault(&self, class: Ops) -> Option<Injected> {
        self.world.fault(class, &self.device)
    }

    fn check(&self, op: &'static str, at: u64, len: u64) -> Result<()> {
        if !at.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) {
            return Err(self.error(op, at, io::ErrorKind::InvalidInput));
        }
        let have = self.with(|file| file.len);
        if at.checked_add(len).is_none_or(|end| end > have) {
            return Err(self.error(op, at, io::ErrorKind::UnexpectedEof));
        }
        Ok(())
    }

    #[track_caller]
    fn put(&self, op: &'static str, at: u64, bytes: &[u8], durable: bool) -> Result<()> {
        self.check(op, at, bytes.len() as u64)?;
        let pages = bytes.chunks_exact(PAGE).map(|chunk| {
            let mut page = Arc::new([0; PAGE]);
            Arc::make_mut(&mut page).copy_from_slice(chunk);
            page
        });
        let written = Written::new(at as usize / PAGE, pages.collect());
        let Some(fault) = self.fault(Ops::WRITE) else {
            let written = Arc::new(written);
            self.with(|file| file.change(Change::Write(written.clone()), Certainty::Pending));
            if durable {
                // While it is on its way a crash may leave any of its sectors.
                self.world.event(EventKind::WriteDurable);
                self.with(|file| file.write_certain(written));
            }
            return Ok(());
        };
        self.with(|file| file.write_failed(&written, &fault));
        Err(self.error(op, at, fault.error))
    }
}

impl BlockFile for SimFile {
    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    fn len(&self) -> Result<u64> {
        match self.fault(Ops::LOOKUP) {
            Some(fault) => Err(self.error("stat", 0, fault.error)),
            None => Ok(self.with(|file| file.len)),
        }
    }

    #[track_caller]
    fn set_len(&self, len: u64) -> Result<()> {
        if !len.is_multiple_of(BLOCK) {
            return Err(self.error("resize", len, io::ErrorKind::InvalidInput));
        }
        self.world.event(EventKind::SetLen);
        let fault = self.fault(Ops::RESIZE);
        let is_made = fault.as_ref().is_none_or(Injected::is_made);
        let fits = self.with_dir(|dir| {
            let own = dir.file(self.id).len;
            let fits = len <= own || dir.free() >= len - own;
            if fits && is_made {
                dir.file(self.id).change(Change::SetLen(len), Certainty::Pending);
            }
            fits
        });
        match fault {
            Some(fault) => Err(self.error("resize", len, fault.error)),
            None if fits => Ok(()),
            None => Err(self.error("resize", len, io::ErrorKind::StorageFull)),
        }
    }

    /// They read as zeros; a crash may leave any of the sectors as they were until a sync.
    fn discard(&self, at: u64, len: u64) -> Result<()> {
        self.check("discard", at, len)?;
        self.world.event(EventKind::Write);
        let zeros = (0..len as usize / PAGE).map(|_| Arc::new([0; PAGE])).collect();
        let written = Written::new(at as usize / PAGE, zeros);
        let Some(fault) = self.fault(Ops::RESIZE) else {
            self.with(|file| file.change(Change::Write(Arc::new(written)), Certainty::Pending));
            return Ok(());
        };
        self.with(|file| file.write_failed(&written, &fault));
        Err(self.error("discard", at, fault.error))
    }

    fn read(&self, at: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.check("read", at, buf.len() as u64)?;
        let fault = self.fault(Ops::READ);
        let wanted = match &fault {
            None => buf.len(),
            Some(Injected { kind: FaultKind::Short, .. }) => buf.len() / 2,
            Some(_) => 0,
        };
        // The pages are taken under the lock and copied without it.
        let pages = at as usize / PAGE..(at as usize + buf.len()).div_ceil(PAGE);
        let (content, lost) =
            self.with(|file| (file.content.clone(), file.unreadable.range(pages).next().is_some()));
        content.read(at, &mut buf[..wanted]);
        match fault {
            None if lost => Err(self.error("read", at, FaultKind::Eio.error(Ops::READ))),
            None => Ok(()),
            Some(fault) => Err(self.error("read", at, fault.error)),
        }
    }

    #[track_caller]
    fn write(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        self.world.event(EventKind::Write);
        self.put("write", at, bytes, false)
    }

    #[track_caller]
    fn write_durable(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        self.world.event(EventKind::WriteDurable);
        let durable = mutant::keep("write_durable");
        self.put("durable write", at, bytes, durable)
    }

    #[track_caller]
    fn sync(&self) -> Result<()> {
        self.world.event(EventKind::Sync);
        if let Some(fault) = self.fault(Ops::SYNC) {
            self.with(FileState::sync_failed);
            return Err(self.error("sync", 0, fault.error));
        }
        if mutant::keep("sync") {
            self.with(FileState::sync);
        }
        Ok(())
    }
}
