//! A directory whose durable writes are seen in flight.
//!
//! A simulated durable write happens at once, so no crash falls inside it. Here it is first made as a plain write,
//! which a crash may leave in part, and then durably: a crash point between the two has it torn.

use std::sync::Arc;
use tierdb_base::Result;
use tierdb_device::{AlignedBuf, BlockFile, Dir, DirLock, OpenMode};

#[derive(Clone)]
pub struct InFlight<D>(pub D);

pub struct InFlightFile<F>(F);

impl<F: BlockFile> BlockFile for InFlightFile<F> {
    fn name(&self) -> Arc<str> {
        self.0.name()
    }

    fn len(&self) -> Result<u64> {
        self.0.len()
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.set_len(len)
    }

    fn read(&self, at: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.0.read(at, buf)
    }

    #[track_caller]
    fn write(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        self.0.write(at, bytes)
    }

    #[track_caller]
    fn write_durable(&self, at: u64, bytes: &AlignedBuf) -> Result<()> {
        self.0.write(at, bytes)?;
        self.0.write_durable(at, bytes)
    }

    #[track_caller]
    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
}

impl<D: Dir> Dir for InFlight<D> {
    type File = InFlightFile<D::File>;

    fn name(&self) -> Arc<str> {
        self.0.name()
    }

    fn open(&self, name: &str, mode: OpenMode) -> Result<Self::File> {
        Ok(InFlightFile(self.0.open(name, mode)?))
    }

    fn list(&self) -> Result<Vec<String>> {
        self.0.list()
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.0.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.0.rename(from, to)
    }

    #[track_caller]
    fn sync(&self) -> Result<()> {
        self.0.sync()
    }

    fn lock(&self) -> Result<Box<dyn DirLock>> {
        self.0.lock()
    }
}
