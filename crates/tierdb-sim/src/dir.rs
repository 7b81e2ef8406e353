//! A simulated directory of block files: names as seen, names that are durable, and the changes between.

use crate::fault::{Injected, Ops};
use crate::file::{Certainty, FileState, SimFile, settle};
use crate::world::{EventKind, World};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use tierdb_base::{Error, Result, mutant};
use tierdb_device::{Dir, DirLock, OpenMode};

/// A file, whatever its name.
pub(crate) type FileId = u32;

pub(crate) type Names = BTreeMap<Arc<str>, FileId>;

#[derive(Clone)]
pub(crate) enum NameChange {
    Create { name: Arc<str>, id: FileId },
    Remove { name: Arc<str>, id: FileId },
    Rename { to: Arc<str>, id: FileId },
}

impl NameChange {
    /// Makes the change, where `names` allow it: after a crash, changes before it may be missing. A
    /// creation needs its name to be free; a file has one name.
    pub fn apply(&self, names: &mut Names) {
        match self {
            NameChange::Create { name, id } => {
                names.entry(name.clone()).or_insert(*id);
            }
            NameChange::Remove { name, id } => {
                if names.get(name) == Some(id) {
                    names.remove(name);
                }
            }
            NameChange::Rename { to, id } => {
                names.retain(|_, named| named != id);
                names.insert(to.clone(), *id);
            }
        }
    }
}

/// A change of names that no sync of the directory has covered.
#[derive(Clone)]
pub(crate) struct NameOp {
    pub certainty: Certainty,
    pub change: NameChange,
}

/// A directory's medium and what is on its way there.
pub(crate) struct DirState {
    pub name: Arc<str>,
    pub capacity: Option<u64>,
    pub names: Arc<Names>,
    pub durable: Arc<Names>,
    pub ops: Vec<NameOp>,
    pub files: BTreeMap<FileId, FileState>,
    next: FileId,
    locked: bool,
}

impl DirState {
    pub fn new(name: &str) -> Self {
        Self::with_files(name.into(), None, Vec::new())
    }

    /// A directory that has just been opened after a crash: all that is there is certain.
    pub fn with_files(name: Arc<str>, capacity: Option<u64>, files: Vec<(Arc<str>, FileState)>) -> Self {
        let names: Arc<Names> =
            Arc::new(files.iter().zip(0..).map(|((name, _), id)| (name.clone(), id)).collect());
        DirState {
            name,
            capacity,
            durable: names.clone(),
            names,
            ops: Vec::new(),
            next: files.len() as FileId,
            files: files.into_iter().zip(0..).map(|((_, file), id)| (id, file)).collect(),
            locked: false,
        }
    }

    /// The directory after the death of a process: nothing of it is more certain than before.
    pub fn killed(&self) -> Self {
        DirState {
            name: self.name.clone(),
            capacity: self.capacity,
            names: self.names.clone(),
            durable: self.durable.clone(),
            ops: self.ops.clone(),
            files: self.files.iter().map(|(id, file)| (*id, file.killed())).collect(),
            next: self.next,
            locked: false,
        }
    }

    pub fn file(&mut self, id: FileId) -> &mut FileState {
        self.files.get_mut(&id).expect("a file lives as long as a handle to it")
    }

    /// The file of that name, as programs see it.
    pub fn named(&mut self, name: &str) -> Option<&mut FileState> {
        let id = *self.names.get(name)?;
        self.files.get_mut(&id)
    }

    /// Bytes that files may still grow by.
    pub fn free(&self) -> u64 {
        let used = self.files.iter().filter(|(id, file)| self.in_use(**id, file));
        let used: u64 = used.map(|(_, file)| file.len).sum();
        self.capacity.map_or(u64::MAX, |capacity| capacity.saturating_sub(used))
    }

    /// Whether it has a name or an open handle.
    fn in_use(&self, id: FileId, file: &FileState) -> bool {
        Arc::strong_count(&file.open) > 1 || self.names.values().any(|named| *named == id)
    }

    fn change(&mut self, change: NameChange) {
        change.apply(Arc::make_mut(&mut self.names));
        self.ops.push(NameOp { certainty: Certainty::Pending, change });
    }

    fn sync(&mut self) {
        settle(self.ops.iter_mut().map(|op| &mut op.certainty), Certainty::Certain);
        if self.ops.iter().all(|op| op.certainty == Certainty::Certain) {
            self.durable = self.names.clone();
            self.ops.clear();
            let mut files = std::mem::take(&mut self.files);
            files.retain(|id, file| self.in_use(*id, file));
            self.files = files;
        }
    }
}

/// A simulated directory, which is a device of its own. Clones are the same directory.
#[derive(Clone)]
pub struct SimDir {
    world: World,
    index: usize,
    name: Arc<str>,
}

impl SimDir {
    pub(crate) fn new(world: World, index: usize, name: Arc<str>) -> Self {
        SimDir { world, index, name }
    }

    fn with<T>(&self, work: impl FnOnce(&mut DirState) -> T) -> T {
        work(&mut self.world.state().dirs[self.index])
    }

    /// Lets the lengths of all files together be `bytes` at most, or any again.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.with(|dir| dir.capacity = bytes);
    }

    /// The world it is in.
    pub fn world(&self) -> &World {
        &self.world
    }

    fn path(&self, name: &str) -> Arc<str> {
        format!("{}/{name}", self.name).into()
    }

    fn error(&self, op: &'static str, name: &str, error: impl Into<io::Error>) -> Error {
        Error::io(op, self.path(name), 0, error.into())
    }

    fn fault(&self, class: Ops, op: &'static str, name: &str) -> Result<()> {
        match self.world.fault(class, &self.name) {
            Some(fault) => Err(self.error(op, name, fault.error)),
            None => Ok(()),
        }
    }

    /// Makes the change of names that `find` says, or fails. A change that failed may have been made.
    fn change(
        &self,
        (op, name): (&'static str, &str),
        find: impl FnOnce(&mut DirState) -> std::result::Result<NameChange, io::ErrorKind>,
    ) -> Result<()> {
        let fault = self.world.fault(Ops::NAMES, &self.name);
        let is_made = fault.as_ref().is_none_or(Injected::is_made);
        let made = if is_made { self.with(|dir| find(dir).map(|change| dir.change(change))) } else { Ok(()) };
        match fault {
            Some(fault) => Err(self.error(op, name, fault.error)),
            None => made.map_err(|kind| self.error(op, name, kind)),
        }
    }
}

impl Dir for SimDir {
    type File = SimFile;

    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    #[track_caller]
    fn open(&self, name: &str, mode: OpenMode) -> Result<SimFile> {
        if name.is_empty() || name.contains('/') || name == "." || name == ".." {
            return Err(Error::invalid(format!(
                "{name:?} is not the name of a file: use one path component"
            )));
        }
        match mode {
            OpenMode::Existing => self.fault(Ops::LOOKUP, "open", name)?,
            OpenMode::CreateNew => {
                self.world.event(EventKind::Create);
                self.change(("create", name), |dir| {
                    if dir.names.contains_key(name) {
                        return Err(io::ErrorKind::AlreadyExists);
                    }
                    let id = dir.next;
                    dir.next += 1;
                    dir.files.insert(id, FileState::default());
                    Ok(NameChange::Create { name: name.into(), id })
                })?;
            }
        }
        let found = self.with(|dir| {
            let id = *dir.names.get(name)?;
            Some((id, dir.file(id).open.clone()))
        });
        let (id, open) = found.ok_or_else(|| self.error("open", name, io::ErrorKind::NotFound))?;
        Ok(SimFile::new(self.world.clone(), self.index, self.name.clone(), id, self.path(name), open))
    }

    fn list(&self) -> Result<Vec<String>> {
        self.fault(Ops::LOOKUP, "list", "")?;
        Ok(self.with(|dir| dir.names.keys().map(|name| name.to_string()).collect()))
    }

    #[track_caller]
    fn remove(&self, name: &str) -> Result<()> {
        self.world.event(EventKind::Remove);
        self.change(("remove", name), |dir| {
            let id = *dir.names.get(name).ok_or(io::ErrorKind::NotFound)?;
            Ok(NameChange::Remove { name: name.into(), id })
        })
    }

    #[track_caller]
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.world.event(EventKind::Rename);
        self.change(("rename", from), |dir| {
            let id = *dir.names.get(from).ok_or(io::ErrorKind::NotFound)?;
            Ok(NameChange::Rename { to: to.into(), id })
        })
    }

    #[track_caller]
    fn sync(&self) -> Result<()> {
        self.world.event(EventKind::DirSync);
        if let Err(failed) = self.fault(Ops::SYNC, "sync", "") {
            self.with(|dir| settle(dir.ops.iter_mut().map(|op| &mut op.certainty), Certainty::Doubtful));
            return Err(failed);
        }
        if mutant::keep("dir_sync") {
            self.with(DirState::sync);
        }
        Ok(())
    }

    fn lock(&self) -> Result<Box<dyn DirLock>> {
        let taken = self.with(|dir| std::mem::replace(&mut dir.locked, true));
        if taken {
            return Err(Error::Locked {
                path: self.path("lock").to_string().into(),
                holder: "another user of this world".into(),
            });
        }
        Ok(Box::new(Locked(self.clone())))
    }
}

struct Locked(SimDir);

impl DirLock for Locked {}

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.with(|dir| dir.locked = false);
    }
}
