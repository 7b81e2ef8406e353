//! How reads get to the medium: through a ring together with those of other threads, or one by one. Writes of many pieces have a ring
//! of their own: who reads does not wait for them.

use super::file::{Handle, RealFile};
use super::pool::Pool;
use super::uring::{BATCH, Ring, Transfer};
use crate::buf::AlignedBuf;
use crate::combine::{Combined, Combiner, Port};
use crate::file::{FileRead, PIECES, Piece, cut};
use parking_lot::Mutex;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;
use tierdb_base::Result;

/// How reads of different threads go to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBatching {
    /// Those that are asked for while the rings are busy go together (PRISM, section 5.3). The default.
    Combining,
    /// A batch waits this long to fill (PRISM's timeout-based alternative: 100 µs). For comparison.
    Timeout(Duration),
    /// Each thread reads for itself.
    Direct,
}

/// How a [`RealDir`](super::RealDir) reaches its medium. Affects speed only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealOptions {
    /// How reads of different threads go to the device.
    pub batching: ReadBatching,
    /// Use io_uring where the kernel allows it. Default true. Without it each read is a system call,
    /// [`BlockFile::read_many`](crate::BlockFile::read_many) uses a few threads, and
    /// [`BlockFile::write_pieces`](crate::BlockFile::write_pieces) writes one piece after another. Where the medium is memory (tmpfs),
    /// these two read and write one by one with it, too.
    pub io_uring: bool,
    /// Batches in flight at once. Default 32, at least 1. As many threads read each for itself; reads of
    /// more are combined. Fewer rings make larger batches and more waiting. A ring takes a descriptor from its first batch of
    /// several reads on, and so does the one more that writes in pieces have.
    pub rings: usize,
    /// Most reads of a batch. Default 64, as PRISM's coalescing limit; 1 to 64. Fewer for comparison.
    pub batch: usize,
}

impl Default for RealOptions {
    fn default() -> Self {
        RealOptions { batching: ReadBatching::Combining, io_uring: true, rings: 32, batch: BATCH }
    }
}

/// What the files of a directory share.
pub struct Device {
    batching: ReadBatching,
    rings: Option<Combiner<Ring>>,
    /// Whether the medium is the machine's memory. The kernel gives each transfer of a ring to a thread there, as none of them may wait,
    /// though all of them only copy.
    on_memory: bool,
    pool: OnceLock<Pool>,
    writes: Mutex<Ring>,
}

impl Device {
    /// `ring` is one that works, if there is one.
    pub fn new(options: &RealOptions, ring: Option<Ring>, on_memory: bool) -> Self {
        let rings = ring.map(|first| {
            let more = (1..options.rings).map(|_| Ring::default());
            let window = match options.batching {
                ReadBatching::Timeout(window) => Some(window),
                ReadBatching::Combining | ReadBatching::Direct => None,
            };
            Combiner::new(std::iter::once(first).chain(more).collect(), options.batch.clamp(1, BATCH), window)
        });
        let (pool, writes) = (OnceLock::new(), Mutex::default());
        Device { batching: options.batching, rings, on_memory, pool, writes }
    }

    /// Whether transfers wait for nothing there.
    pub fn is_on_memory(&self) -> bool {
        self.on_memory
    }

    pub fn combined(&self) -> Combined {
        self.rings.as_ref().map(Combiner::combined).unwrap_or_default()
    }

    pub fn read(&self, file: &Handle, at: u64, buf: &mut AlignedBuf) -> Result<()> {
        match &self.rings {
            Some(rings) if self.batching != ReadBatching::Direct => {
                // SAFETY: `file` and `buf` are borrowed until this function returns or unwinds, and `buf` is
                // not touched before `run` has; by then no port has the read (invariant 4 of `combine`).
                let read = unsafe { Transfer::read(file.as_fd(), at, buf) };
                let outcome = rings.run(std::iter::once(read)).pop().flatten();
                file.finish_read(at, buf, outcome)
            }
            _ => file.finish_read(at, buf, None),
        }
    }

    pub fn read_many(&self, reads: &mut [FileRead<'_, RealFile>]) -> Vec<Result<()>> {
        if let [read] = reads {
            return vec![self.read(read.file.handle(), read.at, &mut read.buf)];
        }
        if self.on_memory {
            let read = |read: &mut FileRead<'_, RealFile>| {
                read.file.handle().finish_read(read.at, &mut read.buf, None)
            };
            return reads.iter_mut().map(read).collect();
        }
        let Some(rings) = &self.rings else {
            return self.pool.get_or_init(Pool::new).read_many(reads);
        };
        let mut results = Vec::with_capacity(reads.len());
        for reads in reads.chunks_mut(BATCH) {
            let outcomes = rings.run(reads.iter_mut().map(|read| {
                // SAFETY: as in `read`: all of `reads` is borrowed, and not touched before `run` has returned.
                unsafe { Transfer::read(read.file.handle().as_fd(), read.at, &mut read.buf) }
            }));
            results.extend(
                reads
                    .iter_mut()
                    .zip(outcomes)
                    .map(|(read, outcome)| read.file.handle().finish_read(read.at, &mut read.buf, outcome)),
            );
        }
        results
    }

    /// Writes `pieces` of `bytes`: `at_once`, or one by one.
    pub fn write_pieces(&self, file: &Handle, bytes: &[u8], pieces: &[Piece], at_once: bool) -> Result<()> {
        if !at_once || self.on_memory || self.rings.is_none() {
            return cut(bytes, pieces).try_for_each(|(at, piece)| file.finish_write(at, piece, None));
        }
        let pieces: Vec<_> = cut(bytes, pieces).collect();
        for pieces in pieces.chunks(PIECES) {
            // SAFETY: `file` and `bytes` are borrowed until this function returns or unwinds, and `run` below has ended by then.
            let write = |(at, piece): &(u64, &[u8])| unsafe { Transfer::write(file.as_fd(), *at, piece) };
            let writes: Vec<_> = pieces.iter().map(write).collect();
            let mut outcomes = vec![None; writes.len()];
            self.writes.lock().run(&writes, &mut |position, outcome| outcomes[position] = Some(outcome));
            for ((at, piece), outcome) in pieces.iter().zip(outcomes) {
                file.finish_write(*at, piece, outcome)?;
            }
        }
        Ok(())
    }
}
