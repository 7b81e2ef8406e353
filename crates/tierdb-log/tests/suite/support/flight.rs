//! A directory whose durable writes are seen in flight, where something may happen during the others, and a block may
//! be unreadable.
//!
//! A simulated durable write happens at once, so no crash falls inside it. Here it is first made as a plain write,
//! which a crash may leave in part, and then durably: a crash point between the two has it torn.
//!
//! Before a plain write, which is of some of a checkpoint's pages, the directory calls a function: what it
//! publishes comes between the copies of these and of those that are written next, as another thread's could.

use std::sync::{Arc, Mutex};
use tierdb_base::{Error, Result};
use tierdb_device::{AlignedBuf, BlockFile, Dir, DirLock, OpenMode};

/// Called before a plain write.
pub type During = Arc<Mutex<Option<Box<dyn Fn() + Send>>>>;

/// The file with a block that cannot be read, and where it is.
pub type Unreadable = Option<(String, u64)>;

#[derive(Clone)]
pub struct InFlight<D> {
    pub dir: D,
    pub during: During,
    pub unreadable: Unreadable,
}

pub struct InFlightFile<F> {
    file: F,
    during: During,
    unreadable: Option<u64>,
}

impl<F: BlockFile> BlockFile for InFlightFile<F> {
    fn name(&self) -> Arc<str> {
        self.file.name()
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }

    fn read(&self, at: u64, buf: &mut AlignedBuf) -> Result<()> {
        match self.unreadable {
            Some(bad) if (at..at + buf.len() as u64).contains(&bad) => {
                Err(Error::io("read", self.name(), bad, std::io::Error::from_raw_os_error(5)))
            }
            _ => self.file.read(at, buf),
        }
    }

    #[track_caller]
    fn write(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        if let Some(during) = &*self.during.lock().expect("no panic") {
            during();
        }
        self.file.write(at, bytes)
    }

    #[track_caller]
    fn write_durable(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        self.file.write(at, bytes)?;
        self.file.write_durable(at, bytes)
    }

    #[track_caller]
    fn sync(&self) -> Result<()> {
        self.file.sync()
    }
}

impl<D: Dir> Dir for InFlight<D> {
    type File = InFlightFile<D::File>;

    fn name(&self) -> Arc<str> {
        self.dir.name()
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Self::File> {
        let unreadable = self.unreadable.as_ref().filter(|(file, _)| file == name).map(|(_, at)| *at);
        Ok(InFlightFile { file: self.dir.open(name, mode)?, during: self.during.clone(), unreadable })
    }

    fn list(&self) -> Result<Vec<String>> {
        self.dir.list()
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.dir.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.dir.rename(from, to)
    }

    #[track_caller]
    fn sync(&self) -> Result<()> {
        self.dir.sync()
    }

    fn lock(&self) -> Result<Box<dyn DirLock>> {
        self.dir.lock()
    }
}
