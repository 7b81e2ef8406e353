//! The log ring and its group commit.
//!
//! Appends go to a buffer in DRAM under a short latch. Whoever waits for durability first takes the
//! buffer and writes it as one block with one durable write, for all who wait by then ([`GroupCommit`]).
//!
//! Invariants
//! 1. One block is in flight at a time, and blocks are written in the order of their sequence numbers. So
//!    after a crash the first block that does not check is the one that was in flight, or was never begun.
//! 2. A block is written only to bytes of the ring that no table needs: `oldest` is the position that the
//!    newest durable table names.
//! 3. The last [`RESERVED_BLOCKS`] of the largest blocks are for a checkpoint, which must write the log before
//!    its table, and so can always free the rest.
//! 4. `appended` is at least the LSN after every word that any thread can have seen published.

use crate::block::{Cursor, ENTRY, HEADER, LARGEST_ENTRY, block_len, encode, entry_word};
use crate::dirty::DirtyPages;
use crate::memory::Memory;
use crate::options::{RESERVED_BLOCKS, TIGHT_BLOCKS};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tierdb_base::{Error, FailureLatch, Location, Result, TierRole};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Cause, Metered};
use tierdb_pmem::Lsn;
use tierdb_sync::{GroupCommit, Turn, Waited};

/// Most positions remembered to translate LSNs into: a table's position is rounded down to one of them.
const MARKS: u64 = 4096;

/// Lengths of a ring and of its largest block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ring {
    pub(crate) len: u64,
    pub(crate) largest: u64,
}

impl Ring {
    /// Where a block goes that follows one ending at `position`: there, or at the start of the next lap if the
    /// largest block would not fit before the end of this one. So the reader knows it without being told.
    pub(crate) fn place(&self, position: u64) -> u64 {
        let room = self.len - position % self.len;
        if room >= self.largest { position } else { position + room }
    }

    /// The byte of the file where `position` is.
    pub(crate) fn offset(&self, position: u64) -> u64 {
        position % self.len
    }

    /// Most payload of a block.
    pub(crate) fn largest_payload(&self) -> usize {
        self.largest as usize - HEADER
    }

    /// The cursor after the block of `len` bytes at `at`, whose payload has `payload` bytes and which has the
    /// checksum `sum`.
    pub(crate) fn after(&self, at: &Cursor, len: u64, payload: u64, sum: u64) -> Cursor {
        Cursor {
            position: self.place(at.position + len),
            sequence: at.sequence + 1,
            lsn: at.lsn + payload,
            previous: sum,
        }
    }
}

/// Who asks for a block to be written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// Anyone: leaves the reserve alone.
    Ordinary,
    /// A checkpoint, which frees the ring when it is done.
    Checkpoint,
}

/// The ring is full up to the reserve: checkpoint, then wait again.
pub(crate) struct RingFull;

/// The buffer that is being filled.
struct Fill {
    payload: Vec<u8>,
    entries: u32,
    /// LSN of its first byte.
    lsn: Lsn,
    /// Nothing more is accepted.
    closed: bool,
}

struct State {
    /// Where the next block goes.
    head: Cursor,
    /// Position that the newest durable table names.
    oldest: Cursor,
    /// Starts of blocks since `oldest`, some of them, in order.
    marks: VecDeque<Cursor>,
    /// The buffer that is not being filled, while no one is writing it.
    spare: Vec<u8>,
    /// What the last block was written from, likewise: memory that is new to the process costs faults.
    block: AlignedBuf,
}

/// Dropped where a block was taken from the buffer and its thread did not come to say that it is written: no other block is written
/// then, which would lie where this one was to be.
struct Unfinished<'l>(&'l FailureLatch);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.set(Error::invalid("a thread panicked while it wrote a block of the log"));
    }
}

/// The log of a pool.
pub(crate) struct Log<F> {
    file: Metered<F>,
    seed: u64,
    ring: Ring,
    latch: FailureLatch,
    fill: Mutex<Fill>,
    state: Mutex<State>,
    commit: GroupCommit,
    appended: AtomicU64,
    /// LSN of the first byte of the buffer that is being filled.
    taken: AtomicU64,
    used: AtomicU64,
    blocks: AtomicU64,
}

impl<F: BlockFile> Log<F> {
    /// A log whose durable part is the blocks from `oldest` to `head`, of which `marks` are known.
    pub(crate) fn new(
        file: Metered<F>,
        seed: u64,
        ring: Ring,
        latch: FailureLatch,
        oldest: Cursor,
        head: Cursor,
        marks: VecDeque<Cursor>,
    ) -> Self {
        let buffer = || Vec::with_capacity(ring.largest_payload());
        Log {
            file,
            seed,
            ring,
            latch,
            fill: Mutex::new(Fill { payload: buffer(), entries: 0, lsn: head.lsn, closed: false }),
            state: Mutex::new(State { head, oldest, marks, spare: buffer(), block: AlignedBuf::default() }),
            commit: GroupCommit::new(head.lsn),
            appended: AtomicU64::new(head.lsn),
            taken: AtomicU64::new(head.lsn),
            used: AtomicU64::new(head.position - oldest.position),
            blocks: AtomicU64::new(0),
        }
    }

    pub(crate) fn ring(&self) -> Ring {
        self.ring
    }

    /// Bytes of the ring from the oldest block that recovery would need to the head.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Whether a checkpoint should be made before `bytes` more are let in.
    pub(crate) fn is_tight(&self, bytes: u64) -> bool {
        !self.lets_in(self.used() + self.pending(), bytes)
    }

    /// Whether a ring of which `used` are in use takes `bytes` more, with something left for others.
    pub(crate) fn lets_in(&self, used: u64, bytes: u64) -> bool {
        let kept = (RESERVED_BLOCKS + TIGHT_BLOCKS) * self.ring.largest;
        (used + kept).saturating_add(bytes) <= self.ring.len
    }

    /// Bytes in the buffer. Reads two counters without the latch, so it is a guess.
    fn pending(&self) -> u64 {
        self.appended().saturating_sub(self.taken.load(Ordering::Relaxed))
    }

    /// The LSN after all that was appended.
    pub(crate) fn appended(&self) -> Lsn {
        self.appended.load(Ordering::Acquire)
    }

    /// Whether `bytes` more fit the buffer with something left for others, or would not if it were empty: a guess.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let (pending, most) = (self.pending(), self.ring.largest_payload() as u64 * 3 / 4);
        pending == 0 || bytes > most || pending + bytes <= most
    }

    /// Appends `at..at + len` as `memory` has it now and marks its pages dirty. `make_room` is called without
    /// the latch when the buffer is full.
    pub(crate) fn append_range(
        &self,
        memory: &Memory<F>,
        dirty: &DirtyPages,
        at: u64,
        len: u64,
        make_room: impl Fn(),
    ) {
        let (mut at, mut rest) = (at, len);
        let mut fill = self.fill.lock();
        while rest > 0 {
            if fill.closed || self.latch.is_set() {
                self.skip(rest);
                return;
            }
            let room = (self.ring.largest_payload() - fill.payload.len()).saturating_sub(ENTRY) as u64;
            if room < rest.min(64) {
                drop(fill);
                make_room();
                fill = self.fill.lock();
                continue;
            }
            let mut part = rest.min(room).min(LARGEST_ENTRY);
            if part < rest {
                // Cut between words: half a word must never be in one block and half in the next.
                part -= (at + part) % 8;
            }
            let start = fill.payload.len();
            fill.payload.extend(entry_word(at, part));
            fill.payload.resize(start + ENTRY + part as usize, 0);
            // Mostly it was written just now, so it is in DRAM.
            if let Err(error) = memory.read(at, &mut fill.payload[start + ENTRY..]) {
                fill.payload.truncate(start);
                self.latch.set(error);
                self.skip(rest);
                return;
            }
            fill.entries += 1;
            self.advance(&fill);
            dirty.mark(at, part);
            (at, rest) = (at + part, rest - part);
        }
    }

    /// Appends `word` for `at` and stores it there, as one step to every other append.
    pub(crate) fn append_publish(
        &self,
        memory: &Memory<F>,
        dirty: &DirtyPages,
        at: u64,
        word: u64,
        make_room: impl Fn(),
    ) {
        let mut fill = self.fill.lock();
        loop {
            if fill.closed || self.latch.is_set() {
                self.skip(8);
                memory.word(at).store(word, Ordering::Release);
                return;
            }
            if fill.payload.len() + ENTRY + 8 <= self.ring.largest_payload() {
                break;
            }
            drop(fill);
            make_room();
            fill = self.fill.lock();
        }
        fill.payload.extend(entry_word(at, 8));
        fill.payload.extend(word.to_le_bytes());
        fill.entries += 1;
        // The position advances before the word can be seen: who sees it and then asks for the position
        // gets one after it.
        self.advance(&fill);
        memory.word(at).store(word, Ordering::Release);
        dirty.mark(at, 8);
    }

    fn advance(&self, fill: &Fill) {
        self.appended.store(fill.lsn + fill.payload.len() as u64, Ordering::Release);
    }

    /// Counts `bytes` that are not logged any more, so that a wait for them fails. Called under the latch.
    fn skip(&self, bytes: u64) {
        self.appended.fetch_add(bytes, Ordering::Release);
    }

    /// Accepts no appends from now on; a wait for one fails.
    pub(crate) fn close(&self) {
        self.fill.lock().closed = true;
    }

    /// The LSN after all that was appended and will be written.
    pub(crate) fn accepted(&self) -> Lsn {
        let fill = self.fill.lock();
        fill.lsn + fill.payload.len() as u64
    }

    /// Whether all before `lsn` is durable.
    pub(crate) fn is_durable(&self, lsn: Lsn) -> bool {
        self.commit.durable() >= lsn
    }

    /// Returns when all before `lsn` is durable, having written a block or slept while another did.
    pub(crate) fn wait(&self, lsn: Lsn, room: Room) -> Result<Waited<RingFull>> {
        self.commit.wait(
            lsn,
            || self.latch.check(),
            |turn| {
                if self.pending() <= self.ring.largest / 4 {
                    turn.gather();
                }
                self.write_block(turn, lsn, room)
            },
        )
    }

    /// Writes the buffer as one block, for who has the turn and waits for `lsn`.
    fn write_block(&self, turn: &Turn<'_>, lsn: Lsn, room: Room) -> Result<Option<RingFull>> {
        // Since the caller looked the block before may have failed: this one would be written to its place, and pass for it.
        self.latch.check()?;
        let (head, oldest) = {
            let state = self.state.lock();
            (state.head, state.oldest)
        };
        let (payload, mut block, entries, unfinished) = {
            let mut fill = self.fill.lock();
            if fill.payload.is_empty() {
                // Not appended: after a failure, after the close, or an LSN of another pool.
                self.latch.check()?;
                return Err(Error::invalid(format!(
                    "LSN {lsn} was never logged: the pool is closed, or the LSN is of another pool"
                )));
            }
            let reserve = RESERVED_BLOCKS * self.ring.largest;
            let limit = self.ring.len - if room == Room::Ordinary { reserve } else { 0 };
            if head.position + block_len(fill.payload.len()) - oldest.position > limit {
                return match room {
                    Room::Ordinary => Ok(Some(RingFull)),
                    Room::Checkpoint => Err(self.no_space()),
                };
            }
            let unfinished = Unfinished(&self.latch);
            let (spare, block) = {
                let mut state = self.state.lock();
                (std::mem::take(&mut state.spare), std::mem::take(&mut state.block))
            };
            let payload = std::mem::replace(&mut fill.payload, spare);
            fill.lsn += payload.len() as u64;
            self.taken.store(fill.lsn, Ordering::Relaxed);
            turn.take(fill.lsn);
            (payload, block, std::mem::take(&mut fill.entries), unfinished)
        };
        let start = Instant::now();
        let written = encode(&mut block, &head, self.seed, entries, &payload).and_then(|sum| {
            let at = self.ring.offset(head.position);
            with_patience(|| self.file.write_durable(at, &block, Cause::Log))?;
            Ok(self.ring.after(&head, block.len() as u64, payload.len() as u64, sum))
        });
        let next = match written {
            Ok(next) => next,
            Err(error) => {
                // Recorded with its cause: there is nothing left for the guard to say.
                let failed = self.latch.set(error);
                std::mem::forget(unfinished);
                return Err(failed);
            }
        };
        let mut spare = payload;
        spare.clear();
        let mut state = self.state.lock();
        push_mark(&mut state.marks, head, self.ring);
        state.head = next;
        (state.spare, state.block) = (spare, block);
        self.used.store(next.position - state.oldest.position, Ordering::Relaxed);
        drop(state);
        self.blocks.fetch_add(1, Ordering::Relaxed);
        turn.written(start.elapsed());
        std::mem::forget(unfinished);
        Ok(None)
    }

    /// Where the block at `at` is.
    pub(crate) fn place(&self, at: &Cursor) -> Location {
        Location::new(self.file.file().name(), self.ring.offset(at.position))
    }

    pub(crate) fn no_space(&self) -> Error {
        Error::NoSpace {
            tier: TierRole::Fast,
            place: self.file.file().name().to_string(),
            used: self.used(),
            capacity: self.ring.len,
        }
    }

    /// Makes durable what was found on the ring at open, as far as a sync can.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync(Cause::Recovery).map_err(|e| self.latch.set(e))
    }

    /// Where the next block goes: all that was appended and is not in the blocks before it will be logged
    /// from there on.
    pub(crate) fn head(&self) -> Cursor {
        self.state.lock().head
    }

    /// The latest known start of a block from which all entries at or after `lsn` are found.
    pub(crate) fn position_of(&self, lsn: Lsn) -> Cursor {
        let state = self.state.lock();
        if lsn >= state.head.lsn {
            return state.head;
        }
        let after = state.marks.partition_point(|mark| mark.lsn <= lsn);
        after.checked_sub(1).and_then(|i| state.marks.get(i)).copied().unwrap_or(state.oldest)
    }

    /// Lets the ring before `oldest` be overwritten: a durable table names it.
    pub(crate) fn free_to(&self, oldest: Cursor) {
        let mut state = self.state.lock();
        state.oldest = oldest;
        while state.marks.front().is_some_and(|mark| mark.position < oldest.position) {
            state.marks.pop_front();
        }
        self.used.store(state.head.position - oldest.position, Ordering::Relaxed);
    }

    /// Bytes of DRAM it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let marks = self.state.lock().marks.capacity() * size_of::<Cursor>();
        3 * self.ring.largest + marks as u64
    }
}

/// Makes `write` again for a few milliseconds while the device has no room.
///
/// Every byte of the files was allocated before. So only a device that gives room on demand can be short
/// of it, perhaps for a moment; the write has changed nothing that counts, and may be made again.
pub(crate) fn with_patience(write: impl Fn() -> Result<()>) -> Result<()> {
    for pause_ms in [1, 2, 4] {
        match write() {
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::StorageFull => {}
            done => return done,
        }
        std::thread::sleep(Duration::from_millis(pause_ms));
    }
    write()
}

/// Remembers that a block starts at `at`, unless one close before it is remembered.
pub(crate) fn push_mark(marks: &mut VecDeque<Cursor>, at: Cursor, ring: Ring) {
    let spacing = (ring.len / MARKS).max(BLOCK);
    if marks.back().is_none_or(|last| at.position - last.position >= spacing) {
        marks.push_back(at);
    }
}
