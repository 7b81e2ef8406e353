//! A chunk as DRAM knows it: its state, and which of its records are live.

use crate::image::Words;
use crate::word::{UNIT, Word};

/// More than the records of any chunk count for; products with the length of a chunk fit in 64 bits.
const MOST_TOTAL_BYTES: u64 = 1 << 40;

/// What a chunk is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing refers to it.
    #[default]
    Free,
    /// An appender is filling it.
    Open,
    /// Filled; garbage collection may choose it.
    Sealed,
    /// Holds a part of one long value.
    Part,
    /// Holds bytes that something refers to or may refer to, and that did not check: kept as evidence, never
    /// collected or given out, until the store is opened again.
    Quarantined,
}

/// State, validity bitmap and counts of a chunk.
///
/// A bit stands for a granule: a power of two, at most the shortest record's length, so that no two
/// records start in one granule. For records of 1 KiB this makes 64 bytes of bitmap for 512 KiB.
#[derive(Default)]
pub struct Chunk {
    /// What it is used for.
    pub state: State,
    granule_shift: u8,
    bits: Vec<u64>,
    /// Live records.
    pub live: u32,
    /// Live records, and all that were ever written to it, in bytes as their length classes count them.
    live_bytes: u64,
    total_bytes: u64,
    /// Least that the live records can take: for chunks that were filled before the store was opened.
    least_bytes: u64,
    /// Longest that any of its records can be.
    longest: u64,
    /// Whether it was given heads of long values since it was opened: how long these are, their words do not tell.
    has_heads: bool,
    /// Whether a collection has left live records in it, and none was given up since: others are tried before it.
    pub is_stuck: bool,
    /// Whether collection could not read it: it is left out.
    pub is_unreadable: bool,
    /// Bytes that count as written since it was opened: see [`Chunk::count_room`].
    pub filled: u64,
    /// Whether it has given its space back to the file system, and not got it back: what was written to it last, if anything, found
    /// no room.
    pub is_hole: bool,
}

impl Chunk {
    /// Makes a free chunk ready for records of at least `shortest` bytes.
    pub fn open(&mut self, state: State, shortest: u64, chunk_bytes: u64) {
        let shift = shortest.clamp(UNIT, chunk_bytes).ilog2();
        let bits = vec![0; (chunk_bytes >> shift).div_ceil(64) as usize];
        *self = Chunk { state, is_hole: self.is_hole, granule_shift: shift as u8, bits, ..Chunk::default() };
    }

    /// Bytes of a granule.
    pub fn granule(&self) -> u64 {
        1 << self.granule_shift
    }

    fn bit(&self, at: u64) -> (usize, u64) {
        let granule = at >> self.granule_shift;
        ((granule / 64) as usize, 1 << (granule % 64))
    }

    /// What the image of a closed store says of a chunk that is in use; `None` for others, and where an image
    /// would make damage look whole.
    pub fn image(&self) -> Option<Vec<u64>> {
        let state = match self.state {
            State::Sealed => 0,
            State::Part => 1,
            State::Free | State::Open | State::Quarantined => return None,
        };
        let fields = [
            state,
            u64::from(self.granule_shift),
            u64::from(self.live),
            self.live_bytes,
            self.total_bytes,
            self.least_bytes,
            self.longest,
            self.filled,
            self.bits.len() as u64,
        ];
        Some([&fields[..], &self.bits].concat())
    }

    /// A chunk of which an image says this. `None` if nothing that was closed was so.
    pub fn from_image(words: &mut Words<'_>, chunk_bytes: u64) -> Option<Self> {
        let state = [State::Sealed, State::Part].into_iter().nth(words.take()? as usize)?;
        let granule_shift =
            words.take().filter(|shift| (1..=chunk_bytes.ilog2().into()).contains(shift))? as u8;
        let mut chunk =
            Chunk { state, granule_shift, live: words.take()?.try_into().ok()?, ..Chunk::default() };
        chunk.live_bytes = words.take()?;
        chunk.total_bytes = words.take()?;
        chunk.least_bytes = words.take()?;
        chunk.longest = words.take()?;
        chunk.filled = words.take().filter(|filled| *filled <= chunk_bytes)?;
        chunk.bits = words.list()?.to_vec();
        let granules = (chunk_bytes >> granule_shift).div_ceil(64) as usize;
        let set: u32 = chunk.bits.iter().map(|bits| bits.count_ones()).sum();
        let counts = chunk.live_bytes <= chunk.total_bytes && chunk.total_bytes <= MOST_TOTAL_BYTES;
        (chunk.bits.len() == granules && set == chunk.live && counts).then_some(chunk)
    }

    /// Marks the record at byte `at` of the chunk live. `false` if another is marked in its granule.
    pub fn set(&mut self, at: u64, word: Word) -> bool {
        let (index, bit) = self.bit(at);
        let Some(bits) = self.bits.get_mut(index) else { return false };
        if *bits & bit != 0 {
            return false;
        }
        *bits |= bit;
        self.live += 1;
        self.live_bytes += class_bytes(word);
        self.total_bytes += class_bytes(word);
        self.least_bytes += word.min_len();
        self.longest = self.longest.max(class_bytes(word));
        self.has_heads |= word.is_large();
        true
    }

    /// Marks the record at byte `at` of the chunk dead. `false` if it was not live.
    pub fn clear(&mut self, at: u64, word: Word) -> bool {
        let (index, bit) = self.bit(at);
        let Some(bits) = self.bits.get_mut(index) else { return false };
        if *bits & bit == 0 {
            return false;
        }
        *bits &= !bit;
        self.is_stuck = false;
        self.live -= 1;
        self.live_bytes = self.live_bytes.saturating_sub(class_bytes(word));
        true
    }

    /// No more is written to it: what is left of it counts as written, and as garbage, if another record would have fitted
    /// that is as long as its longest. Then its records and those of others like it fit fewer chunks.
    pub fn count_room(&mut self, chunk_bytes: u64) {
        if self.filled > 0 && !self.has_heads && self.filled + self.longest <= chunk_bytes {
            // So that the live share of what was written stays as many bytes.
            self.total_bytes = (self.total_bytes * chunk_bytes).div_ceil(self.filled);
            self.filled = chunk_bytes;
        }
    }

    /// On open, when the live records are known but neither their lengths nor the dead ones.
    pub fn estimate_total(&mut self, chunk_bytes: u64) {
        if let Some(total) = (self.live_bytes * chunk_bytes).checked_div(self.guess_live_bytes()) {
            self.total_bytes = total.max(self.live_bytes);
        }
    }

    /// About how many bytes the live records take, from where they start: most that stand side by side tell
    /// their length by it. The others are taken to be as long, as far as the classes of all allow.
    fn guess_live_bytes(&self) -> u64 {
        let count = u64::from(self.live);
        let starts = self.live_granules();
        let gaps = starts.windows(2).map(|pair| pair[1] - pair[0]);
        let near: Vec<u64> = gaps.filter(|gap| *gap <= self.longest).collect();
        let middle = self.least_bytes.midpoint(self.live_bytes).checked_div(count).unwrap_or(0);
        let mean = near.iter().sum::<u64>().checked_div(near.len() as u64).unwrap_or(middle);
        (mean * count).clamp(self.least_bytes, self.live_bytes)
    }

    /// About how many bytes its live records take. Exact lengths are on flash only; their classes tell the
    /// live share of what was written.
    pub fn live_estimate(&self) -> u64 {
        (self.live_bytes * self.filled).checked_div(self.total_bytes).unwrap_or(0)
    }

    /// About how many bytes of it are not needed, while nothing is written to it.
    pub fn garbage(&self) -> u64 {
        let counts = self.state == State::Sealed && !self.is_unreadable;
        if counts { self.filled.saturating_sub(self.live_estimate()) } else { 0 }
    }

    /// Whether there is anything to gain by moving its live records: it has garbage, or two like it fill no more than one.
    pub fn gains(&self, chunk_bytes: u64) -> bool {
        self.state == State::Sealed
            && !self.is_unreadable
            && (self.garbage() >= chunk_bytes / 16 || self.live_estimate() <= chunk_bytes / 2)
    }

    /// The first byte of every granule in which a live record starts.
    pub fn live_granules(&self) -> Vec<u64> {
        let mut out = Vec::with_capacity(self.live as usize);
        for (index, bits) in self.bits.iter().enumerate() {
            let mut rest = *bits;
            while rest != 0 {
                let granule = index as u64 * 64 + u64::from(rest.trailing_zeros());
                out.push(granule << self.granule_shift);
                rest &= rest - 1;
            }
        }
        out
    }

    /// Bytes of DRAM it takes beyond its own size.
    pub fn memory_bytes(&self) -> u64 {
        self.bits.capacity() as u64 * 8
    }
}

/// What a record counts for: the most its length class allows, the same on setting and clearing.
fn class_bytes(word: Word) -> u64 {
    if word.is_large() { 8 << 10 } else { word.max_len(u64::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::word::Place;

    #[test]
    fn bits_are_set_and_cleared_by_place() {
        let mut chunk = Chunk::default();
        chunk.open(State::Open, 1100, 512 << 10);
        assert_eq!(chunk.granule(), 1024);
        let word = Word::new(Place::Flash(0, 0), 1, 1100, false);
        assert!(chunk.set(64, word) && chunk.set(1184, word));
        assert!(!chunk.set(64, word), "already live");
        assert_eq!((chunk.live, chunk.live_granules()), (2, vec![0, 1024]));
        assert!(chunk.clear(64, word) && !chunk.clear(64, word));
        assert!(!chunk.clear(1 << 30, word), "outside");
        assert_eq!(chunk.live, 1);
    }

    #[test]
    fn room_for_another_record_counts_as_garbage() {
        const BYTES: u64 = 512 << 10;
        let sealed_with = |len: u64, count: u64, heads: bool| {
            let mut chunk = Chunk::default();
            chunk.open(State::Open, len, BYTES);
            for at in (0..count).map(|number| number * len) {
                assert!(chunk.set(at, Word::new(Place::Flash(0, at), 1, len, heads)));
            }
            chunk.filled = count * len;
            chunk.count_room(BYTES);
            let live = chunk.live_estimate();
            // What a head counts for is not its length.
            let right = live <= count * len && live * 100 >= count * len * 99;
            assert!(heads || right, "{live} for {count} of {len}");
            chunk.filled - live
        };
        let sealed = |len: u64, count: u64| sealed_with(len, count, false);
        assert_eq!(sealed_with(106_496, 4, true), 0, "a fifth may be as long");
        let about = |garbage: u64, wanted: u64| garbage.abs_diff(wanted) < 4096;
        assert!(about(sealed(1024, 300), 212 << 10));
        assert_eq!(sealed(1024, 512), 0, "it is full");
        assert_eq!(sealed(260 << 10, 1), 0, "two do not fit a chunk");
        assert!(about(sealed(100 << 10, 3), 212 << 10), "five do");
    }

    /// A chunk as an open finds it, with records of `lens` bytes one behind the other, of which every `nth` is
    /// live: what they take, and what it says they take.
    fn found(lens: &[u64], nth: usize) -> (u64, u64) {
        const BYTES: u64 = 512 << 10;
        let mut chunk = Chunk::default();
        let shortest = lens.iter().map(|len| Word::new(Place::Flash(0, 0), 1, *len, false).min_len()).min();
        chunk.open(State::Sealed, shortest.expect("some"), BYTES);
        chunk.filled = BYTES;
        let (mut at, mut live) = (0, 0);
        for (number, len) in lens.iter().cycle().enumerate() {
            let stored = len.next_multiple_of(UNIT);
            if at + stored > BYTES {
                break;
            }
            if number % nth == 0 {
                assert!(chunk.set(at, Word::new(Place::Flash(0, at), 1, *len, false)));
                live += stored;
            }
            at += stored;
        }
        chunk.estimate_total(BYTES);
        (live, chunk.live_estimate())
    }

    #[test]
    fn live_bytes_are_told_by_where_records_start() {
        for lens in [&[150][..], &[40], &[1100], &[100, 300, 200], &[70, 4000], &[5000, 6000]] {
            let (live, told) = found(lens, 1);
            assert!(told * 10 >= live * 9 && told * 10 <= live * 11, "{lens:?}: {told} for {live}");
            for nth in [2, 5] {
                let (live, told) = found(lens, nth);
                assert!(
                    told * 5 >= live * 2 && told * 2 <= live * 5,
                    "{lens:?}, 1 of {nth}: {told} for {live}"
                );
            }
        }
    }
}
