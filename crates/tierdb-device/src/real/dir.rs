//! A real directory: what its medium is, its files, and its lock.

use super::device::{Device, RealOptions};
use super::file::{Handle, RealFile, os_error};
use super::uring::Ring;
use crate::buf::AlignedBuf;
use crate::combine::Combined;
use crate::file::{BLOCK, Dir, DirLock, OpenMode};
use rustix::fs::{
    Advice, AtFlags, DirEntry, FileType, FlockOperation, Gid, Mode, OFlags, Uid, fadvise, fchmod, fchown,
    flock, fstat, fstatfs, fsync, ftruncate, open, openat, renameat, statat, unlinkat,
};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tierdb_base::{Error, Result};

/// The file in a directory that its lock is on. Not one of the directory's block files.
const LOCK: &str = "LOCK";

/// How a medium's files are read and written, if the file system lets them be.
const DIRECT_IO: &str = "direct I/O";
/// What else is said of btrfs.
const MAY_CACHE: &str = ", btrfs may cache writes";

const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// A directory of a file system.
#[derive(Clone)]
pub struct RealDir(Arc<Inner>);

struct Inner {
    fd: OwnedFd,
    name: Arc<str>,
    path: PathBuf,
    direct_io: bool,
    /// Whether what is written waits in the page cache for a sync.
    cached_writes: bool,
    read_only: bool,
    medium: String,
    device: Arc<Device>,
}

impl RealDir {
    /// Opens the directory at `path` with the default options.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &RealOptions::default())
    }

    /// Opens the directory at `path`, after making it and those above it where they are missing. On return
    /// their names are durable.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        Self::create_with(path, &RealOptions::default())
    }

    /// As [`RealDir::create`], with `options`.
    pub fn create_with(path: impl AsRef<Path>, options: &RealOptions) -> Result<Self> {
        let path = path.as_ref();
        make_durably(path, &sync_dir)
            .map_err(|error| Error::io("create", path.to_string_lossy(), 0, error))?;
        Self::open_with(path, options)
    }

    /// Opens the directory at `path` for who only reads: nothing is tried in it, so it may be on a medium that cannot be
    /// written. Its files are opened for reading, and its lock lets others read too. A lock's file that is missing
    /// is made, where it can be, as one of the directory's owner.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn open_to_read(path: impl AsRef<Path>) -> Result<Self> {
        Self::found(path.as_ref(), &RealOptions::default(), true)
    }

    /// As [`RealDir::open`], with `options`. Finds out by trying what the file system and the kernel allow:
    /// direct I/O and io_uring are used where they work.
    pub fn open_with(path: impl AsRef<Path>, options: &RealOptions) -> Result<Self> {
        Self::found(path.as_ref(), options, false)
    }

    fn found(path: &Path, options: &RealOptions, read_only: bool) -> Result<Self> {
        let name: Arc<str> = path.to_string_lossy().into();
        let fd = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(
            |errno| match errno {
                Errno::NOENT => Error::NotFound {
                    path: path.to_owned(),
                    hint: "create the directory, or correct the path",
                },
                Errno::NOTDIR => {
                    Error::NotAStore { path: path.to_owned(), why: "it is not a directory".into() }
                }
                errno => os_error("open", name.clone(), 0, errno),
            },
        )?;
        let probe = if read_only { Probe::to_read(&fd, options) } else { Probe::new(&fd, options) };
        let probe = probe.map_err(|errno| os_error("probe", name.clone(), 0, errno))?;
        let on_memory = is_on(&fd, TMPFS);
        let cached_writes = !probe.direct_io || is_on(&fd, BTRFS);
        let medium = probe.medium(on_memory, cached_writes, options);
        let device = Arc::new(Device::new(options, probe.ring.ok(), on_memory));
        let direct_io = probe.direct_io;
        let path = path.to_owned();
        let inner = Inner { fd, name, path, direct_io, cached_writes, read_only, medium, device };
        Ok(RealDir(Arc::new(inner)))
    }

    /// The same directory for files that are read and written through the page cache, which keeps what it likes in the machine's memory.
    /// What is asked of syncs is the same.
    ///
    /// # Errors
    /// `Io` if the process may have no more files open.
    pub fn through_page_cache(&self) -> Result<Self> {
        if !self.direct_io() {
            return Ok(self.clone());
        }
        let Inner { fd, name, path, direct_io: _, cached_writes: _, read_only, medium, device } = &*self.0;
        let fd = fd.try_clone().map_err(|error| Error::io("open", name.clone(), 0, error))?;
        Ok(RealDir(Arc::new(Inner {
            fd,
            name: name.clone(),
            path: path.clone(),
            direct_io: false,
            cached_writes: true,
            read_only: *read_only,
            medium: medium.replacen(DIRECT_IO, "through the page cache", 1).replacen(MAY_CACHE, "", 1),
            device: device.clone(),
        })))
    }

    /// Whether its files are read and written past the page cache.
    pub fn direct_io(&self) -> bool {
        self.0.direct_io
    }

    /// How its medium is reached, in words.
    pub fn medium(&self) -> String {
        self.0.medium.clone()
    }

    /// How often reads of its files went to the device together.
    pub fn combined(&self) -> Combined {
        self.0.device.combined()
    }

    fn error(&self, op: &'static str, file: &str, errno: Errno) -> Error {
        os_error(op, self.place(file), 0, errno)
    }

    fn place(&self, file: &str) -> String {
        self.0.path.join(file).to_string_lossy().into_owned()
    }
}

/// Makes `path` and those above it where they are missing, and has `sync` make their names durable: that of the last one that is there
/// already, too, where a creation may have ended before that.
fn make_durably(path: &Path, sync: &dyn Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => return Ok(()),
    };
    if path.is_dir() {
        return match sync(parent) {
            // Others have made the directory, for one who may not read what it is in.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
            done => done,
        };
    }
    make_durably(parent, sync)?;
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        other => other?,
    }
    sync(parent)
}

fn sync_dir(path: &Path) -> io::Result<()> {
    std::fs::File::open(path)?.sync_all()
}

/// One component of a path, and none that means something else here.
fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name == "." || name == ".." || name == LOCK || name.contains(['/', '\0']) {
        return Err(Error::invalid(format!(
            "{name:?} cannot name a file of a store: use one path component other than {LOCK:?}"
        )));
    }
    Ok(())
}

/// What was found out about a directory with a file in it.
struct Probe {
    direct_io: bool,
    ring: std::result::Result<Ring, String>,
}

impl Probe {
    /// With a new file that has no name.
    fn new(dir: &OwnedFd, options: &RealOptions) -> Result<Self, Errno> {
        match Self::with(options, |flags| unnamed_file(dir, flags), try_read) {
            // A store on a file system that is full can be opened, or nothing in it could be deleted.
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Self::of_what_is_there(dir, options)?.ok_or(errno),
            probe => probe,
        }
    }

    /// The same without a new file; without any that can be opened, nothing has to be found out.
    fn to_read(dir: &OwnedFd, options: &RealOptions) -> Result<Self, Errno> {
        let none = || Probe { direct_io: false, ring: Err("no file to try it with".into()) };
        Ok(Self::of_what_is_there(dir, options)?.unwrap_or_else(none))
    }

    fn of_what_is_there(dir: &OwnedFd, options: &RealOptions) -> Result<Option<Self>, Errno> {
        let names = present_files(dir)?;
        Ok(Self::of_any(options, names.iter().map(|name| move |flags| present_file(dir, name, flags))))
    }

    /// With the first one of some files, each opened with some flags, that can be read. One that cannot be is damaged or gone, which
    /// says nothing of the medium; if all are, what the first one was opened with has to do. `None` if none was.
    fn of_any<F: Fn(OFlags) -> Result<OwnedFd, Errno>>(
        options: &RealOptions,
        files: impl Iterator<Item = F>,
    ) -> Option<Self> {
        let mut unread = None;
        for open in files {
            match Self::with(options, &open, try_read) {
                Ok(probe) => return Some(probe),
                Err(_) => unread = unread.or_else(|| Self::with(options, &open, unless_refused).ok()),
            }
        }
        unread
    }

    /// With a file that `open` opens with some flags, and that `read` succeeds with.
    fn with(
        options: &RealOptions,
        open: impl Fn(OFlags) -> Result<OwnedFd, Errno>,
        read: impl Fn(&OwnedFd) -> Result<(), Errno>,
    ) -> Result<Self, Errno> {
        let tried = |flags| open(flags).and_then(|file| read(&file).map(|()| file));
        let (direct_io, file) = match tried(OFlags::DIRECT) {
            Ok(file) => (true, file),
            Err(Errno::INVAL) => (false, tried(OFlags::empty())?),
            Err(errno) => return Err(errno),
        };
        let ring = match options.io_uring {
            true => Ring::tried_on(file.as_fd()).map_err(|error| format!("io_uring refused: {error}")),
            false => Err("io_uring switched off".into()),
        };
        Ok(Probe { direct_io, ring })
    }

    fn medium(&self, on_memory: bool, cached_writes: bool, options: &RealOptions) -> String {
        let mut words = String::from(match self.direct_io {
            true => DIRECT_IO,
            false => "buffered (file system refuses direct I/O)",
        });
        words.push_str(", ");
        words.push_str(match &self.ring {
            Ok(_) => "io_uring",
            Err(_) => "pread",
        });
        if let (Err(why), true) = (&self.ring, options.io_uring) {
            words.push_str(&format!(" ({why})"));
        }
        if on_memory {
            words.push_str(", on memory (tmpfs): nothing outlives the machine");
        }
        if self.direct_io && cached_writes {
            words.push_str(MAY_CACHE);
        }
        words
    }
}

/// The file system whose files are in the machine's memory.
const TMPFS: i128 = 0x0102_1994;
/// The one that, from Linux 6.15 on, writes through the page cache what it keeps sums of, whatever flags a file is opened with.
const BTRFS: i128 = 0x9123_683e;

/// Whether `dir` is in a file system of this type.
fn is_on(dir: &OwnedFd, file_system: i128) -> bool {
    fstatfs(dir).is_ok_and(|stat| i128::from(stat.f_type) == file_system)
}

/// An empty file that goes when it is closed.
fn unnamed_file(dir: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
    let file = match openat(dir, ".", flags | OFlags::TMPFILE, FILE_MODE) {
        // A file system without unnamed files: take the name away at once.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => nameless_file(dir, flags)?,
        other => other?,
    };
    ftruncate(&file, BLOCK)?;
    Ok(file)
}

/// A new file whose name is gone. What was there before is not touched, be it of a probe that was cut short.
fn nameless_file(dir: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let name = format!("PROBE.{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let file = openat(dir, name.as_str(), flags | OFlags::CREATE | OFlags::EXCL, FILE_MODE);
        if matches!(file, Err(Errno::EXIST)) {
            continue;
        }
        // A refusal of the flags may come after the name was made.
        let _ = unlinkat(dir, name.as_str(), AtFlags::empty());
        return file;
    }
}

/// Whether `entry` of `dir` is a file: no link to one, and not one that has gone since. Not every file system says so at once.
fn is_file(dir: &OwnedFd, entry: &DirEntry) -> bool {
    let kind = match entry.file_type() {
        FileType::Unknown => statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            .map_or(FileType::Unknown, |found| FileType::from_raw_mode(found.st_mode)),
        known => known,
    };
    kind == FileType::RegularFile
}

/// The names of the files that are there.
fn present_files(dir: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        if is_file(dir, &entry) {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names)
}

/// A file that was there, for reading.
fn present_file(dir: &OwnedFd, name: &CString, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    openat(dir, name.as_c_str(), flags, Mode::empty())
}

fn try_read(file: &OwnedFd) -> Result<(), Errno> {
    let mut buf = AlignedBuf::zeroed(BLOCK as usize).map_err(|_| Errno::NOMEM)?;
    pread(file, &mut *buf, 0).map(drop)
}

/// The same, where only a refusal of the way that the file was opened in counts.
fn unless_refused(file: &OwnedFd) -> Result<(), Errno> {
    try_read(file).or_else(|errno| if errno == Errno::INVAL { Err(errno) } else { Ok(()) })
}

impl Dir for RealDir {
    type File = RealFile;

    fn name(&self) -> Arc<str> {
        self.0.name.clone()
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<RealFile> {
        check_name(name)?;
        let flags = OFlags::CLOEXEC | if self.0.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let (op, create) = match mode {
            OpenMode::Existing => ("open", OFlags::empty()),
            OpenMode::CreateNew => ("create", OFlags::CREATE | OFlags::EXCL),
        };
        let direct = if self.0.direct_io { OFlags::DIRECT } else { OFlags::empty() };
        let fd = openat(&self.0.fd, name, flags | create | direct, FILE_MODE)
            .map_err(|errno| self.error(op, name, errno))?;
        if !self.0.direct_io {
            // What is worth reading ahead, engines ask for. The system would read what lies beside what it has, and keep that in the place
            // of what is read again. Where it does not take advice it does so.
            let _ = fadvise(&fd, 0, None, Advice::Random);
        }
        let handle = Handle::new(fd, self.place(name).into());
        Ok(RealFile::new(handle, self.0.device.clone(), self.0.cached_writes))
    }

    fn list(&self) -> Result<Vec<String>> {
        let error = |errno| self.error("list", "", errno);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.0.fd).map_err(error)? {
            let entry = entry.map_err(error)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if is_file(&self.0.fd, &entry) && name != LOCK {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<()> {
        check_name(name)?;
        unlinkat(&self.0.fd, name, AtFlags::empty()).map_err(|errno| self.error("remove", name, errno))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        renameat(&self.0.fd, from, &self.0.fd, to).map_err(|errno| self.error("rename", from, errno))
    }

    fn sync(&self) -> Result<()> {
        retry_on_intr(|| fsync(&self.0.fd)).map_err(|errno| self.error("sync", "", errno))
    }

    fn lock(&self) -> Result<Box<dyn DirLock>> {
        let dir = &self.0.fd;
        let error = |errno| self.error("lock", LOCK, errno);
        let held = |file: OwnedFd, taken| match taken {
            Ok(()) => Ok(Held::new(file)),
            Err(Errno::WOULDBLOCK) => {
                Err(Error::Locked { path: self.0.path.join(LOCK), holder: holder(&file) })
            }
            Err(errno) => Err(error(errno)),
        };
        let take = |file: OwnedFd, operation| {
            let taken = flock(&file, operation);
            held(file, taken)
        };
        let take_dir = |operation| {
            let dir = itself(dir).map_err(error)?;
            match flock(&dir, operation) {
                // Not all file systems have locks of directories.
                Err(Errno::BADF | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => Ok(None),
                taken => held(dir, taken).map(Some),
            }
        };
        if self.0.read_only {
            let held = match lock_to_read(dir).map_err(error)? {
                Some(file) => Some(take(file, FlockOperation::NonBlockingLockShared)?),
                None => take_dir(FlockOperation::NonBlockingLockShared)?,
            };
            return Ok(Box::new(Lock { _held: held.into_iter().collect() }));
        }
        // A store that came from elsewhere may have a link to anything in its place.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(dir, LOCK, flags, FILE_MODE).map_err(error)?;
        let of_file = take(file, FlockOperation::NonBlockingLockExclusive)?;
        // Readers who found no file and could not make one have that of the directory.
        let of_dir = take_dir(FlockOperation::NonBlockingLockExclusive)?;
        // For people, and for the error of the next one. The lock itself is what counts, on a full file system too.
        let pid = std::process::id().to_string();
        let _ = ftruncate(&of_file.file, 0).and_then(|()| pwrite(&of_file.file, pid.as_bytes(), 0));
        Ok(Box::new(Lock { _held: [of_file].into_iter().chain(of_dir).collect() }))
    }
}

/// What keeps others out.
struct Lock {
    _held: Vec<Held>,
}

impl DirLock for Lock {}

/// A lock on an open file description: it excludes other processes, and a second open in this one.
struct Held {
    file: OwnedFd,
    /// The process that took it.
    owner: u32,
}

impl Held {
    fn new(file: OwnedFd) -> Self {
        Held { file, owner: std::process::id() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A child that has inherited the descriptor would keep the lock beyond the close. But it does not take the lock from its parent.
        if self.owner == std::process::id() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// The directory itself, opened anew.
fn itself(dir: &OwnedFd) -> Result<OwnedFd, Errno> {
    openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The file of the lock of `dir`, opened for reading; made where it is missing. `None` where it cannot be made.
fn lock_to_read(dir: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    // What has that name in a store from elsewhere may be a link, or a pipe that nobody writes to.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let find = || openat(dir, LOCK, flags, Mode::empty()).map(Some);
    match find() {
        // Nothing but a new file is ever handed over: what has got that name meanwhile may be a link to anything.
        Err(Errno::NOENT) => match openat(dir, LOCK, flags | OFlags::CREATE | OFlags::EXCL, FILE_MODE) {
            Err(Errno::EXIST) => find(),
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM | Errno::NOSPC | Errno::DQUOT) => Ok(None),
            made => made.inspect(|file| hand_over(file, dir)).map(Some),
        },
        found => found,
    }
}

/// Makes a new `file` in `dir` one of the directory's owner, and of all who may write there, as far as this user may: who checks a
/// store need not be who uses it, and must not shut that one out.
fn hand_over(file: &OwnedFd, dir: &OwnedFd) {
    let Ok(found) = fstat(dir) else { return };
    let (owner, group) = (Uid::from_raw(found.st_uid), Gid::from_raw(found.st_gid));
    let mut writers = Mode::from_raw_mode(found.st_mode) & (Mode::WGRP | Mode::WOTH);
    if fchown(file, None, Some(group)).is_err() {
        writers.remove(Mode::WGRP);
    }
    let readers = Mode::from_raw_mode(writers.as_raw_mode() << 1);
    let _ = fchmod(file, FILE_MODE | readers | writers);
    let _ = fchown(file, Some(owner), None);
}

/// Who has the lock that was refused on this file.
fn holder(lock: &OwnedFd) -> String {
    // Who reads does not write its number; what is there is of who had it before.
    if flock(lock, FlockOperation::NonBlockingLockShared).is_ok() {
        let _ = flock(lock, FlockOperation::Unlock);
        return "who checks, repairs or restores it".into();
    }
    let mut text = [0; 20];
    let count = pread(lock, &mut text, 0).unwrap_or(0);
    match std::str::from_utf8(&text[..count]).ok().and_then(|text| text.trim().parse::<u32>().ok()) {
        Some(pid) => format!("process {pid}"),
        None => "another process".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mknodat;

    #[test]
    fn a_probe_by_name_touches_nothing_that_is_there() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let taken = |number| temp.path().join(format!("PROBE.{}.{number}", std::process::id()));
        std::fs::write(taken(0), "not ours").expect("write");
        std::os::unix::fs::symlink("elsewhere", taken(1)).expect("link");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(temp.path(), flags, Mode::empty()).expect("open");
        let file = nameless_file(&dir, OFlags::RDWR | OFlags::CLOEXEC).expect("a file");
        ftruncate(&file, BLOCK).expect("length");
        assert_eq!(std::fs::read(taken(0)).expect("read"), b"not ours");
        assert!(taken(1).is_symlink());
        assert_eq!(std::fs::read_dir(temp.path()).expect("list").count(), 2);
    }

    /// A child that was forked drops what it has of its parent's.
    #[test]
    fn a_lock_is_given_up_by_who_has_taken_it_alone() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let path = temp.path().join(LOCK);
        let file = open(&path, flags, FILE_MODE).expect("open");
        let is_free = || {
            let other = open(&path, flags, FILE_MODE).expect("open");
            flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok()
        };
        flock(&file, FlockOperation::NonBlockingLockExclusive).expect("nobody has it");
        let of_child = file.try_clone().expect("a descriptor");
        drop(Held { file: of_child, owner: std::process::id() + 1 });
        assert!(!is_free());
        drop(Held::new(file.try_clone().expect("a descriptor")));
        assert!(is_free());
    }

    #[test]
    fn what_takes_no_bytes_is_probed_and_locked() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = open(temp.path(), flags, Mode::empty()).expect("open");
        // As on a full file system, nothing can be written at a place of it.
        mknodat(&dir, LOCK, FileType::Fifo, FILE_MODE, 0).expect("a pipe");
        let options = RealOptions::default();
        let present = || Probe::of_what_is_there(&dir, &options).expect("list");
        assert!(present().is_none(), "nothing is there but a pipe");
        std::fs::write(temp.path().join("values"), "abc").expect("write");
        let probe = present().expect("the file that is there");
        let dir = RealDir::open(temp.path()).expect("directory");
        assert_eq!(probe.direct_io, dir.direct_io());
        let lock = dir.lock().expect("nothing can be written into it");
        assert!(matches!(dir.lock(), Err(Error::Locked { .. })), "it is a lock all the same");
        drop(lock);
        RealDir::open_to_read(temp.path()).and_then(|dir| dir.lock()).expect("nor is it waited for");
    }

    #[test]
    fn the_name_of_each_directory_that_is_made_is_synced_and_of_one_that_was_there() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let (made, deepest) = (temp.path().join("a"), temp.path().join("a/b/c"));
        let synced = |path: &Path, fails: Option<io::ErrorKind>| {
            let synced = std::cell::RefCell::new(Vec::new());
            let sync = |path: &Path| {
                synced.borrow_mut().push(path.to_owned());
                fails.map_or(Ok(()), |kind| Err(kind.into()))
            };
            make_durably(path, &sync).map(|()| synced.take())
        };
        std::fs::create_dir(&made).expect("as a creation that was interrupted leaves it");
        let above: Vec<_> = deepest.ancestors().skip(1).take(3).map(Path::to_owned).collect();
        assert_eq!(synced(&deepest, None).expect("made").into_iter().rev().collect::<Vec<_>>(), above);
        assert_eq!(synced(&deepest, None).expect("there"), above[..1]);
        synced(&deepest, Some(io::ErrorKind::PermissionDenied)).expect("somebody else's");
        synced(&deepest, Some(io::ErrorKind::Other)).expect_err("not durable");
    }

    #[test]
    fn a_link_in_the_place_of_the_lock_is_not_followed() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let (dir, other) = (temp.path().join("store"), temp.path().join("other"));
        std::fs::create_dir(&dir).expect("a directory");
        std::fs::write(&other, "of somebody else").expect("write");
        std::os::unix::fs::symlink(&other, dir.join(LOCK)).expect("link");
        for open in [RealDir::open, RealDir::open_to_read] {
            let dir = open(&dir).expect("directory");
            assert!(matches!(dir.lock(), Err(Error::Io { op: "lock", .. })));
        }
        assert_eq!(std::fs::read(&other).expect("it is there"), b"of somebody else");
    }

    /// Goal: a damaged first block, or a file that cannot be opened, costs who reads neither the directory nor direct I/O.
    /// Method: the memory of this process is a file in which the first byte cannot be read, and which may not be opened for
    /// direct I/O.
    #[test]
    fn a_file_that_cannot_be_read_decides_nothing() {
        type Open<'a> = &'a dyn Fn(OFlags) -> Result<OwnedFd, Errno>;
        let temp = tempfile::tempdir().expect("temporary directory");
        let (values, memory) = (temp.path().join("values"), Path::new("/proc/self/mem"));
        std::fs::write(&values, "abc").expect("write");
        let dir = RealDir::open_to_read(temp.path()).expect("directory");
        let opened = |path: &Path, flags| open(path, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let damaged: Open<'_> = &|_| opened(memory, OFlags::empty());
        let damaged_buffered: Open<'_> = &|flags| opened(memory, flags);
        let refused: Open<'_> = &|_| Err(Errno::ACCESS);
        let whole: Open<'_> = &|flags| opened(&values, flags);
        assert_eq!(damaged(OFlags::DIRECT).and_then(|file| try_read(&file)), Err(Errno::IO));
        assert_eq!(damaged_buffered(OFlags::DIRECT).map(drop), Err(Errno::INVAL));
        let options = RealOptions::default();
        let direct_io =
            |files: &[Open<'_>]| Probe::of_any(&options, files.iter()).map(|probe| probe.direct_io);
        for unread in [damaged, damaged_buffered, refused] {
            assert_eq!(direct_io(&[unread, whole]), Some(dir.direct_io()));
        }
        assert_eq!(direct_io(&[damaged, refused]), Some(true), "as it was opened");
        assert_eq!(direct_io(&[refused, damaged_buffered]), Some(false), "as it was opened");
        assert_eq!(direct_io(&[refused]), None);
    }

    #[test]
    fn who_reads_locks_out_who_writes_and_leaves_no_trace() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let writer = RealDir::open(temp.path()).expect("directory");
        drop(writer.lock().expect("lock"));
        let before = std::fs::read(temp.path().join(LOCK)).expect("read");
        std::fs::write(temp.path().join(LOCK), "1").expect("write");
        let reader = RealDir::open_to_read(temp.path()).expect("directory");
        let locks = [reader.lock().expect("lock"), reader.lock().expect("others may read too")];
        let Err(Error::Locked { holder, .. }) = writer.lock() else { panic!("it is read") };
        assert!(holder.contains("restores"), "{holder}");
        assert_eq!(std::fs::read(temp.path().join(LOCK)).expect("read"), b"1");
        drop(locks);
        let _lock = writer.lock().expect("lock");
        let Err(Error::Locked { holder, .. }) = reader.lock() else { panic!("it is written") };
        assert_eq!(holder.as_bytes(), [b"process ", &before[..]].concat());
    }

    /// Goal: who checks a store without a lock's file does not shut out who uses it.
    /// Method: directories of various modes and, where this user may give one away, of another owner.
    #[test]
    fn a_lock_that_who_reads_makes_is_of_who_writes() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        for (mode, of_the_lock) in [(0o700, 0o600), (0o755, 0o600), (0o770, 0o660), (0o777, 0o666)] {
            let temp = tempfile::tempdir().expect("temporary directory");
            let _ = std::os::unix::fs::chown(temp.path(), Some(65533), Some(65534));
            std::fs::set_permissions(temp.path(), PermissionsExt::from_mode(mode)).expect("mode");
            let reader = RealDir::open_to_read(temp.path()).expect("directory");
            let lock = reader.lock().expect("lock");
            let about = |path: PathBuf| std::fs::metadata(path).expect("it is there");
            let (dir, file) = (about(temp.path().into()), about(temp.path().join(LOCK)));
            assert_eq!((file.uid(), file.gid()), (dir.uid(), dir.gid()));
            assert_eq!(file.mode() & 0o777, of_the_lock, "in a directory of mode {mode:o}");
            let writer = RealDir::open(temp.path()).expect("directory");
            assert!(matches!(writer.lock(), Err(Error::Locked { .. })), "it is read");
            drop(lock);
            let _lock = writer.lock().expect("lock");
            assert!(matches!(reader.lock(), Err(Error::Locked { .. })), "it is written");
        }
    }
}
