//! A ring of io_uring as a port for batches of reads, or of writes.

use crate::buf::AlignedBuf;
use crate::combine::Port;
use crate::file::BLOCK;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::{Errno, pread, pwrite};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// Most transfers in one batch, and in one ring: PRISM's coalescing limit.
pub const BATCH: usize = 64;

/// Longest transfer that one entry of a ring asks for; who asked finishes what is left.
const LONGEST: usize = 1 << 30;

/// A read into, or a write of, memory that somebody else owns.
pub struct Transfer {
    fd: RawFd,
    at: u64,
    /// Nothing is written through it if this is a write.
    start: *mut u8,
    len: u32,
    is_write: bool,
}

// SAFETY: `Transfer::read` and `Transfer::write` have the owner of the memory keep it valid and untouched, on whichever
// thread the transfer is started.
unsafe impl Send for Transfer {}

impl Transfer {
    /// A read of `buf.len()` bytes at byte `at` of `file`.
    ///
    /// # Safety
    /// `file` stays open, and `buf` valid and untouched, until the [`Port::run`] that the read was given
    /// to has returned or unwound, or the read was dropped without being given to one.
    pub unsafe fn read(file: BorrowedFd<'_>, at: u64, buf: &mut [u8]) -> Self {
        let len = buf.len().min(LONGEST) as u32;
        Transfer { fd: file.as_raw_fd(), at, start: buf.as_mut_ptr(), len, is_write: false }
    }

    /// A write of `bytes` at byte `at` of `file`.
    ///
    /// # Safety
    /// As of [`Transfer::read`], but that `bytes` may be read meanwhile.
    pub unsafe fn write(file: BorrowedFd<'_>, at: u64, bytes: &[u8]) -> Self {
        let len = bytes.len().min(LONGEST) as u32;
        Transfer { fd: file.as_raw_fd(), at, start: bytes.as_ptr().cast_mut(), len, is_write: true }
    }

    /// Does it without a ring.
    fn alone(&self) -> i32 {
        // SAFETY: the descriptor stays open during `Ring::run`, which calls this (`Transfer::read`).
        let file = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let len = self.len as usize;
        let count = if self.is_write {
            // SAFETY: nothing else writes to these valid bytes during `Ring::run`, which calls this (`Transfer::write`).
            pwrite(file, unsafe { std::slice::from_raw_parts(self.start, len) }, self.at)
        } else {
            // SAFETY: nothing else touches these valid bytes during `Ring::run`, which calls this (`Transfer::read`).
            pread(file, unsafe { std::slice::from_raw_parts_mut(self.start, len) }, self.at)
        };
        count.map_or_else(|errno| -errno.raw_os_error(), |count| count as i32)
    }

    fn entry(&self) -> squeue::Entry {
        let file = types::Fd(self.fd);
        if self.is_write {
            opcode::Write::new(file, self.start, self.len).offset(self.at).build()
        } else {
            opcode::Read::new(file, self.start, self.len).offset(self.at).build()
        }
    }
}

/// A ring that runs one batch at a time. A single transfer is made without it, so that a port which never sees a batch of
/// several takes neither a descriptor nor memory of the kernel.
#[derive(Default)]
pub struct Ring {
    /// `None` until the first batch of several, and after one that unwound.
    ring: Option<IoUring>,
    /// The kernel takes no entries from rings of this process any more.
    is_refused: bool,
}

/// The outcome of a transfer that was not started.
const NOT_STARTED: i32 = -Errno::AGAIN.raw_os_error();

impl Ring {
    /// A ring that has read the first block of `file`.
    pub fn tried_on(file: BorrowedFd<'_>) -> io::Result<Self> {
        let mut ring = Ring { ring: Some(make()?), is_refused: false };
        ring.try_on(file)?;
        Ok(ring)
    }

    /// The ring, or a new one. `None` where there can be none now: nothing is started then.
    fn take(&mut self) -> Option<IoUring> {
        if self.is_refused {
            return None;
        }
        self.ring.take().or_else(|| make().ok())
    }

    /// Reads the first block of `file` twice at once, since one read alone does not go through the ring.
    fn try_on(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        let zeroed = || AlignedBuf::zeroed(BLOCK as usize).map_err(io::Error::other);
        let mut bufs = [zeroed()?, zeroed()?];
        // SAFETY: `file` and `bufs` outlive the call of `run` below, and `bufs` are not touched before it is over.
        let reads = bufs.each_mut().map(|buf| unsafe { Transfer::read(file, 0, buf) });
        let mut result = Ok(());
        self.run(&reads, &mut |_, outcome| {
            if outcome < 0 {
                result = Err(io::Error::from_raw_os_error(-outcome));
            }
        });
        result
    }
}

fn make() -> io::Result<IoUring> {
    IoUring::builder().dontfork().build(BATCH as u32)
}

impl Port for Ring {
    type Request = Transfer;
    /// Bytes read or written, or a negative error number.
    type Outcome = i32;

    fn run(&mut self, transfers: &[Transfer], done: &mut dyn FnMut(usize, i32)) {
        // A single one is one system call either way; this one also spares the kernel a worker where the file
        // system can only do it while the caller waits.
        if let [single] = transfers {
            return done(0, single.alone());
        }
        let mut started = 0;
        if let Some(mut ring) = self.take() {
            // If anything below unwinds, the flight ends first, and then the ring goes: it may hold entries
            // that the kernel has not taken.
            let mut flight = Flight { ring: &mut ring, queued: 0, landed: 0, refused: false };
            flight.queue(transfers);
            flight.land(done);
            started = flight.landed;
            self.is_refused = flight.refused;
            drop(flight);
            self.ring = Some(ring).filter(|_| !self.is_refused);
        }
        for position in started..transfers.len() {
            done(position, NOT_STARTED);
        }
    }
}

/// Transfers that are with the kernel. Dropped only when it has no more of their buffers.
struct Flight<'a> {
    ring: &'a mut IoUring,
    /// Entries put into the ring, and not taken back.
    queued: usize,
    /// Those of them that are complete.
    landed: usize,
    /// The kernel takes no more entries from this ring.
    refused: bool,
}

impl Flight<'_> {
    fn queue(&mut self, transfers: &[Transfer]) {
        let mut entries = self.ring.submission();
        for (position, transfer) in transfers.iter().enumerate() {
            let entry = transfer.entry().user_data(position as u64);
            // SAFETY: the descriptor and the buffer stay valid until `Ring::run`, which called this, has
            // returned or unwound (`Transfer::read`). Before either, `land` has waited for every entry that the
            // kernel took, and those it did not take go unread with their ring.
            if unsafe { entries.push(&entry) }.is_err() {
                return;
            }
            self.queued += 1;
        }
    }

    fn land(&mut self, done: &mut dyn FnMut(usize, i32)) {
        while self.landed < self.queued {
            self.queued -= wait(self.ring, &mut self.refused);
            for completion in self.ring.completion() {
                self.landed += 1;
                done(completion.user_data() as usize, completion.result());
            }
        }
    }
}

/// Submits what was put into `ring`, and waits for a completion, or for a moment: the caller takes the completions and calls again.
/// If the kernel takes no more entries from this ring, that is `refused` from then on. Returns how many of them it has not taken, the
/// last ones that were put in: they go unread with the ring.
pub(super) fn wait(ring: &mut IoUring, refused: &mut bool) -> usize {
    if *refused {
        // Completions of what the kernel took arrive without being asked for.
        std::thread::sleep(Duration::from_millis(1));
        return 0;
    }
    let Err(error) = ring.submit_and_wait(1) else { return 0 };
    match Errno::from_io_error(&error) {
        Some(Errno::INTR) => 0,
        // The kernel is short of memory, or of room for completions, which the caller makes.
        Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
            std::thread::sleep(Duration::from_micros(100));
            0
        }
        // The process may have forbidden itself the call since. Entries are taken in order.
        _ => {
            *refused = true;
            ring.submission().len()
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.land(&mut |_, _| {});
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const BLOCKS: usize = 16;

    /// A file whose block `i` is full of `i + 1`.
    fn file() -> std::fs::File {
        use std::io::Write;
        let path = std::env::temp_dir().join(format!(
            "tierdb-ring-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let mut file = std::fs::File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(&path)
            .expect("file");
        std::fs::remove_file(&path).expect("remove");
        for block in 0..BLOCKS {
            file.write_all(&[block as u8 + 1; 4096]).expect("write");
        }
        file
    }

    /// Reads every block by one `run`, and returns the buffers.
    fn run(ring: &mut Ring, done: &mut dyn FnMut(usize, i32)) -> Vec<AlignedBuf> {
        let file = file();
        let mut bufs: Vec<_> = (0..BLOCKS).map(|_| AlignedBuf::zeroed(4096).expect("memory")).collect();
        let reads: Vec<_> = bufs
            .iter_mut()
            .enumerate()
            // SAFETY: `file` and `bufs` outlive the call of `run`, and are not touched before it is over.
            .map(|(block, buf)| unsafe { Transfer::read(file.as_fd(), block as u64 * 4096, buf) })
            .collect();
        let unwound = catch_unwind(AssertUnwindSafe(|| ring.run(&reads, done)));
        drop((unwound, file));
        bufs
    }

    fn filled(bufs: &[AlignedBuf]) -> usize {
        bufs.iter()
            .enumerate()
            .filter(|(block, buf)| buf.iter().all(|byte| usize::from(*byte) == block + 1))
            .count()
    }

    #[test]
    fn a_batch_completes_and_the_ring_takes_the_next() {
        if make().is_err() {
            return;
        }
        let mut ring = Ring::default();
        for _ in 0..3 {
            let mut outcomes = [0; BLOCKS];
            let bufs = run(&mut ring, &mut |position, outcome| outcomes[position] += outcome);
            assert_eq!((outcomes, filled(&bufs)), ([4096; BLOCKS], BLOCKS));
            assert!(ring.ring.is_some(), "it is kept for the next batch");
        }
    }

    #[test]
    fn writes_go_to_their_places_with_a_ring_and_without() {
        let (file, blocks) = (file(), [[21; 4096], [22; 4096], [23; 4096]]);
        // A ring that was never enabled refuses every submission: nothing is written then.
        let disabled = IoUring::builder().setup_r_disabled().build(BATCH as u32).ok();
        let refused = Ring { ring: disabled, is_refused: false };
        let is_there = [refused.ring.is_none() && make().is_ok(), make().is_ok(), true];
        for ((mut ring, count), is_there) in
            [(refused, 3), (Ring::default(), 2), (Ring::default(), 1)].into_iter().zip(is_there)
        {
            file.write_all_at(&[0; 8 * 4096], 0).expect("zeros");
            let write = |(block, bytes): (usize, &[u8; 4096])| {
                // SAFETY: `file` and `blocks` outlive the call of `run`, and nothing writes to `blocks`.
                unsafe { Transfer::write(file.as_fd(), (7 - 2 * block as u64) * 4096, bytes) }
            };
            let writes: Vec<_> = blocks[..count].iter().enumerate().map(write).collect();
            let mut outcomes = vec![0; count];
            ring.run(&writes, &mut |position, outcome| outcomes[position] = outcome);
            assert_eq!(outcomes, vec![if is_there { 4096 } else { NOT_STARTED }; count]);
            let mut found = [0; 8];
            for (block, found) in found.iter_mut().enumerate() {
                file.read_exact_at(std::slice::from_mut(found), block as u64 * 4096 + 4095).expect("read");
            }
            let mut expected = [0; 8];
            for block in (0..count).filter(|_| is_there) {
                expected[7 - 2 * block] = blocks[block][0];
            }
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn one_read_needs_no_ring() {
        let (mut ring, file) = (Ring::default(), file());
        let mut buf = AlignedBuf::zeroed(4096).expect("memory");
        // SAFETY: `file` and `buf` outlive the call of `run`, and are not touched before it is over.
        let read = unsafe { Transfer::read(file.as_fd(), 4096, &mut buf) };
        let mut outcomes = Vec::new();
        ring.run(&[read], &mut |position, outcome| outcomes.push((position, outcome)));
        assert_eq!((outcomes, buf[0]), (vec![(0, 4096)], 2));
        assert!(ring.ring.is_none());
    }

    #[test]
    fn a_ring_that_may_not_read_is_found_out() {
        use io_uring::register::Restriction;
        // As on a kernel that has rings, and no reads through them.
        let Ok(restricted) = IoUring::builder().setup_r_disabled().build(BATCH as u32) else { return };
        let submitter = restricted.submitter();
        if submitter.register_restrictions(&mut [Restriction::sqe_op(opcode::Nop::CODE)]).is_err() {
            return;
        }
        submitter.register_enable_rings().expect("a ring that is disabled");
        let refused = Ring { ring: Some(restricted), is_refused: false }.try_on(file().as_fd());
        assert_eq!(refused.expect_err("no reads").raw_os_error(), Some(Errno::ACCESS.raw_os_error()));
        Ring::tried_on(file().as_fd()).expect("one that may");
    }

    #[test]
    fn unwinding_waits_for_the_kernel() {
        if make().is_err() {
            return;
        }
        let mut ring = Ring::default();
        let bufs = run(&mut ring, &mut |_, _| panic!("on purpose"));
        assert_eq!(filled(&bufs), BLOCKS);
        assert!(ring.ring.is_none() && !ring.is_refused);
    }

    #[test]
    fn reads_that_the_kernel_refuses_are_said_not_to_have_started() {
        // A ring that was never enabled refuses every submission.
        let Ok(disabled) = IoUring::builder().setup_r_disabled().build(BATCH as u32) else { return };
        let mut ring = Ring { ring: Some(disabled), is_refused: false };
        for _ in 0..2 {
            let mut outcomes = Vec::new();
            let bufs = run(&mut ring, &mut |position, outcome| outcomes.push((position, outcome)));
            assert_eq!(outcomes, (0..BLOCKS).map(|position| (position, NOT_STARTED)).collect::<Vec<_>>());
            assert_eq!(filled(&bufs), 0);
            assert!(ring.ring.is_none() && ring.is_refused);
        }
    }
}
