//! Slabs: fixed-size slots of the pool, by size class (PrismDB §4.1), and which of them are in use.
//!
//! ```text
//! slab:  0            8..64      64                        first           first + bytes
//!       ├────────────┼──────────┼──────────────────────┼──────┼──────────┼──────────┼──
//!       │ class word │ zero     │ commit words, 8 each │ zero │ slot 0   │ slot 1   │ …
//!       └────────────┴──────────┴──────────────────────┴──────┴──────────┴──────────┴──
//!
//! class word:   sealed: 0 for a slab that was never used, else 1 + number of the class
//! commit word:  sealed: 0 for a free slot, else  live:1 (bit 40)  hash:20  tag:20 (bit 0)
//! ```
//!
//! * A slot is *live* if its commit word says so: then it holds the head of a record, of which the word carries
//!   20 bits of a hash of the key and the low 20 bits of the seqno, so that a lost write is noticed, and a
//!   damaged record costs no key but its own. A slot that holds a part of a record has a free word: it is in use
//!   because a live record lists it.
//! * A record is never changed in place. It is staged in a free slot, drained, and then its word is published;
//!   the slot of the version before is free only after that. So each moment has a readable version.
//! * Commit words lie at the same places whatever the class, so a slab that nothing uses takes another class by
//!   one published word.
//!
//! Which slots are in use is known in DRAM only, one bit a slot, and is rebuilt on open.

use crate::layout::Layout;
use crate::room::{Supply, largest_for, slabs_for};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use tierdb_base::{Error, Result, Seqno, TierRole, checksum};
use tierdb_pmem::{Pool, Stage, seal, unseal};

/// Bytes before the commit words of a slab.
const WORDS_AT: u64 = 64;
/// Slots begin at multiples of this, and the smallest has as many bytes.
pub const UNIT: u64 = 64;
const LIVE: u64 = 1 << 40;
const TAG_BITS: u32 = 20;
const NO_CLASS: u8 = u8::MAX;

/// Who asks for a slot: the last slabs are [kept](slabs_for) for what makes space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A value of a caller.
    Value,
    /// The deletion of a key or a range.
    Removal,
    /// The list of flash tables, a group of changes.
    Upkeep,
}

/// A size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// Bytes of a slot.
    pub bytes: u64,
    /// Slots of a slab.
    pub slots: u64,
    /// Where in a slab the first slot begins.
    first: u64,
}

/// What a commit word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// The slot holds no record, or a part of one.
    Free,
    /// The slot holds the head of a record.
    Live(Mark),
    /// The word is not one that was written there.
    Damaged,
}

/// What a live commit word knows of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

impl Mark {
    /// The mark of the record of `key` that was written with `seqno`.
    pub fn new(key: &[u8], seqno: Seqno) -> Self {
        let low = |word: u64| word & ((1 << TAG_BITS) - 1);
        Mark(low(checksum(0, key)) << TAG_BITS | low(seqno))
    }

    /// Whether its record may have been written with `seqno`.
    pub fn may_be_from(self, seqno: Seqno) -> bool {
        (self.0 ^ seqno) & ((1 << TAG_BITS) - 1) == 0
    }

    /// The seqnos up to `last` that its record may have been written with.
    pub fn seqnos(self, last: Seqno) -> impl Iterator<Item = Seqno> {
        (self.0 & ((1 << TAG_BITS) - 1)..=last).step_by(1 << TAG_BITS)
    }

    /// As stored.
    pub fn to_word(self) -> u64 {
        self.0
    }

    /// What it knows of the key.
    pub fn hash(self) -> u64 {
        self.0 >> TAG_BITS
    }
}

/// The classes for slabs of `slab_bytes`: eight to each doubling, up to one slot a slab.
fn classes(slab_bytes: u64) -> Vec<Class> {
    let class = |bytes: u64| {
        let mut slots = (slab_bytes - WORDS_AT) / (bytes + 8);
        let first = |slots: u64| (WORDS_AT + slots * 8).next_multiple_of(UNIT);
        while first(slots) + slots * bytes > slab_bytes {
            slots -= 1;
        }
        Class { bytes, slots, first: first(slots) }
    };
    let largest = slab_bytes - (WORDS_AT + 8).next_multiple_of(UNIT);
    let mut all = Vec::new();
    let mut bytes = UNIT;
    while bytes < largest {
        let next = class(bytes);
        // Of two classes with as many slots a slab, the larger one serves both.
        if all.last().is_some_and(|last: &Class| last.slots == next.slots) {
            all.pop();
        }
        all.push(next);
        bytes += (bytes.next_power_of_two() / 16).max(UNIT) / UNIT * UNIT;
    }
    if all.last().is_some_and(|last| last.slots == 1) {
        all.pop();
    }
    all.push(class(largest));
    all
}

/// The slots of one slab that are in use.
struct SlotMap {
    bits: Vec<u64>,
    used: u64,
}

impl SlotMap {
    fn new(slots: u64) -> Self {
        SlotMap { bits: vec![0; slots.div_ceil(64) as usize], used: 0 }
    }

    fn take_first(&mut self, slots: u64) -> Option<u64> {
        let word = self.bits.iter().position(|bits| *bits != u64::MAX)?;
        let slot = word as u64 * 64 + u64::from(self.bits[word].trailing_ones());
        (slot < slots && self.take(slot)).then_some(slot)
    }

    /// Marks `slot` as used. `false` if it was already.
    fn take(&mut self, slot: u64) -> bool {
        let (word, bit) = ((slot / 64) as usize, 1 << (slot % 64));
        let was_free = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        self.used += u64::from(was_free);
        was_free
    }

    fn give(&mut self, slot: u64) {
        let (word, bit) = ((slot / 64) as usize, 1 << (slot % 64));
        assert!(self.bits[word] & bit != 0, "slot {slot} was not in use");
        self.used -= 1;
        self.bits[word] &= !bit;
    }
}

/// The slabs of one class.
#[derive(Default)]
struct ClassState {
    slabs: BTreeMap<u32, SlotMap>,
    /// Those with a free slot, but for the one that is being emptied.
    open: BTreeSet<u32>,
    /// The one that is being emptied.
    shut: Option<u32>,
}

impl ClassState {
    fn open(&mut self, slab: u32) {
        if self.shut != Some(slab) {
            self.open.insert(slab);
        }
    }
}

/// All slabs of a pool.
pub struct Slabs<P: Pool> {
    pool: Arc<P>,
    seed: u64,
    layout: Layout,
    classes: Vec<Class>,
    states: Vec<Mutex<ClassState>>,
    class_of: Box<[AtomicU8]>,
    /// Slabs without a class, or whose slots are all free.
    free: Mutex<Vec<u32>>,
    /// How many they are, for those who only ask that.
    free_count: AtomicUsize,
    used_bytes: AtomicU64,
    /// Free slots in slabs that have a class, in bytes.
    open_bytes: AtomicU64,
}

impl<P: Pool> Slabs<P> {
    /// All slabs of a new pool, none of which has a class; follow with [`Layout::format`].
    pub fn create(pool: Arc<P>, seed: u64, layout: &Layout) -> Self {
        let slabs = Self::new(pool, seed, layout);
        slabs.settle();
        slabs
    }

    /// The class word at byte `at` of a slab that was never used.
    pub fn unused(seed: u64, at: u64) -> u64 {
        seal(seed, at, 0)
    }

    fn new(pool: Arc<P>, seed: u64, layout: &Layout) -> Self {
        let classes = classes(layout.slab_bytes);
        Slabs {
            pool,
            seed,
            states: classes.iter().map(|_| Mutex::default()).collect(),
            classes,
            class_of: (0..layout.slabs()).map(|_| AtomicU8::new(NO_CLASS)).collect(),
            layout: layout.clone(),
            free: Mutex::default(),
            free_count: AtomicUsize::new(0),
            used_bytes: AtomicU64::new(0),
            open_bytes: AtomicU64::new(0),
        }
    }

    /// The slabs of a pool that is opened. Follow with [`Slabs::words`], [`Slabs::claim`] and [`Slabs::settle`].
    /// Returns the slabs whose class is not known, too: what nothing is claimed of is free.
    pub fn open(pool: Arc<P>, seed: u64, layout: &Layout) -> (Self, Vec<u32>) {
        let slabs = Self::new(pool, seed, layout);
        let mut unknown = Vec::new();
        for slab in 0..layout.slabs() as u32 {
            match unseal(&*slabs.pool, seed, layout.slab_at(slab)) {
                Ok(0) => {}
                Ok(number) if number <= slabs.classes.len() as u64 => {
                    let class = number as usize - 1;
                    slabs.class_of[slab as usize].store(class as u8, Ordering::Relaxed);
                    let map = SlotMap::new(slabs.classes[class].slots);
                    slabs.states[class].lock().slabs.insert(slab, map);
                }
                _ => unknown.push(slab),
            }
        }
        (slabs, unknown)
    }

    /// Number of slabs.
    pub fn count(&self) -> u32 {
        self.class_of.len() as u32
    }

    /// The slots of `slab` that are not free, with what their words say.
    pub fn words(&self, slab: u32) -> Vec<(u64, Commit)> {
        let Some(class) = self.class_of_slab(slab) else { return Vec::new() };
        let base = self.layout.slab_at(slab);
        let commit =
            |slot| (base + class.first + slot * class.bytes, self.commit(base + WORDS_AT + slot * 8));
        (0..class.slots).map(commit).filter(|(_, commit)| *commit != Commit::Free).collect()
    }

    /// All slots of `slab` as if it had this class: byte, bytes, and what its word says.
    pub fn words_as(&self, slab: u32, class: usize) -> impl Iterator<Item = (u64, u64, Commit)> {
        let (base, Class { bytes, slots, first }) = (self.layout.slab_at(slab), self.classes[class]);
        (0..slots)
            .map(move |slot| (base + first + slot * bytes, bytes, self.commit(base + WORDS_AT + slot * 8)))
    }

    /// Number of classes.
    pub fn class_count(&self) -> usize {
        self.classes.len()
    }

    /// Bytes of a slab.
    pub fn slab_bytes(&self) -> u64 {
        self.layout.slab_bytes
    }

    /// First byte of `slab`.
    pub fn base_of(&self, slab: u32) -> u64 {
        self.layout.slab_at(slab)
    }

    /// Takes `slab`, whose class is not known, for one of `class`, while the pool is opened. Returns its class word.
    pub fn assume(&self, slab: u32, class: usize) -> (u64, u64) {
        self.class_of[slab as usize].store(class as u8, Ordering::Relaxed);
        self.states[class].lock().slabs.insert(slab, SlotMap::new(self.classes[class].slots));
        let base = self.layout.slab_at(slab);
        (base, seal(self.seed, base, class as u64 + 1))
    }

    fn class_of_slab(&self, slab: u32) -> Option<Class> {
        self.classes.get(usize::from(self.class_of.get(slab as usize)?.load(Ordering::Acquire))).copied()
    }

    fn commit(&self, word_at: u64) -> Commit {
        match unseal(&*self.pool, self.seed, word_at) {
            Ok(0) => Commit::Free,
            Ok(number) if number & LIVE != 0 => Commit::Live(Mark(number & !LIVE)),
            _ => Commit::Damaged,
        }
    }

    /// What the commit word of the slot at byte `at` says.
    pub fn commit_of(&self, at: u64) -> Commit {
        self.find(at).map_or(Commit::Damaged, |(slab, _, slot)| self.commit(self.word_of(slab, slot)))
    }

    fn word_of(&self, slab: u32, slot: u64) -> u64 {
        self.layout.slab_at(slab) + WORDS_AT + slot * 8
    }

    /// Slab, class and number of the slot at byte `at`, if one begins there.
    fn find(&self, at: u64) -> Option<(u32, usize, u64)> {
        // It is a power of two, and a division takes longer.
        let slab = at.checked_sub(self.layout.slab_at(0))? >> self.layout.slab_bytes.trailing_zeros();
        let slab = u32::try_from(slab).ok().filter(|slab| *slab < self.count())?;
        let number = usize::from(self.class_of[slab as usize].load(Ordering::Acquire));
        let class = self.classes.get(number)?;
        let inside = (at - self.layout.slab_at(slab)).checked_sub(class.first)?;
        let slot = inside / class.bytes;
        (inside.is_multiple_of(class.bytes) && slot < class.slots).then_some((slab, number, slot))
    }

    /// Bytes of the slot at byte `at`, if one begins there.
    pub fn slot_bytes(&self, at: u64) -> Option<u64> {
        self.find(at).map(|(_, class, _)| self.classes[class].bytes)
    }

    /// The longest record that has a slot for itself.
    pub fn largest(&self) -> u64 {
        self.classes.last().map_or(0, |class| class.bytes)
    }

    /// Byte of the commit word of the slot at byte `at`.
    ///
    /// # Errors
    /// `Corrupt` if no slot begins there.
    pub fn word_at(&self, at: u64) -> Result<u64> {
        let (slab, _, slot) = self.find(at).ok_or_else(|| self.no_slot(at))?;
        Ok(self.word_of(slab, slot))
    }

    fn no_slot(&self, at: u64) -> Error {
        Error::corrupt(TierRole::Fast, "a record is said to be where no slot begins", self.pool.place(at))
    }

    /// The word at byte `word_at` that says *free*.
    pub fn free_word(&self, word_at: u64) -> u64 {
        seal(self.seed, word_at, 0)
    }

    /// The word at byte `word_at` that says *live*.
    pub fn live_word(&self, word_at: u64, mark: Mark) -> u64 {
        seal(self.seed, word_at, LIVE | mark.0)
    }

    /// Marks the slot at byte `at` as used, while the pool is opened. `false` if it was already, or is none.
    pub fn claim(&self, at: u64) -> bool {
        let Some((slab, class, slot)) = self.find(at) else { return false };
        let mut state = self.states[class].lock();
        state.slabs.get_mut(&slab).is_some_and(|map| map.take(slot))
    }

    /// Ends the opening: what was not claimed is free.
    pub fn settle(&self) {
        let mut free = self.free.lock();
        for slab in (0..self.count()).rev() {
            if self.class_of[slab as usize].load(Ordering::Relaxed) == NO_CLASS {
                free.push(slab);
            }
        }
        let (mut used_bytes, mut open_bytes) = (0, 0);
        for (class, state) in self.classes.iter().zip(&self.states) {
            let state = &mut *state.lock();
            for (slab, map) in &state.slabs {
                used_bytes += map.used * class.bytes;
                if map.used == 0 {
                    free.push(*slab);
                } else {
                    open_bytes += (class.slots - map.used) * class.bytes;
                    if map.used < class.slots {
                        state.open.insert(*slab);
                    }
                }
            }
            state.slabs.retain(|_, map| map.used > 0);
        }
        for slab in free.iter() {
            self.class_of[*slab as usize].store(NO_CLASS, Ordering::Relaxed);
        }
        self.free_count.store(free.len(), Ordering::Relaxed);
        self.used_bytes.store(used_bytes, Ordering::Relaxed);
        self.open_bytes.store(open_bytes, Ordering::Relaxed);
    }

    /// The class for `len` bytes.
    fn fit(&self, len: u64) -> usize {
        self.classes.partition_point(|class| class.bytes < len)
    }

    /// Slabs that are kept for upkeep.
    fn reserve(&self) -> usize {
        (self.class_of.len() / 64).max(4)
    }

    /// A free slot of at least `len` bytes, which is [`Slabs::largest`] at the most. `None` if there is none for
    /// this purpose.
    pub fn take(&self, len: u64, purpose: Purpose) -> Option<u64> {
        slabs_for(purpose, self.free_count.load(Ordering::Relaxed), self.reserve())?;
        let wanted = self.fit(len);
        if let Some(at) = self.take_open(wanted).or_else(|| self.take_fresh(wanted, purpose)) {
            return Some(at);
        }
        // A larger slot than needed, before there is none at all.
        let most = largest_for(len, purpose);
        let larger = (wanted + 1..self.classes.len()).take_while(|class| self.classes[*class].bytes <= most);
        larger.into_iter().find_map(|class| self.take_open(class))
    }

    fn take_open(&self, class: usize) -> Option<u64> {
        let Class { bytes, slots, first } = *self.classes.get(class)?;
        let state = &mut *self.states[class].lock();
        let slab = *state.open.first()?;
        let map = state.slabs.get_mut(&slab)?;
        let slot = map.take_first(slots)?;
        if map.used == slots {
            state.open.remove(&slab);
        }
        self.open_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(self.layout.slab_at(slab) + first + slot * bytes)
    }

    fn take_fresh(&self, class: usize, purpose: Purpose) -> Option<u64> {
        let slab = {
            let mut free = self.free.lock();
            if slabs_for(purpose, free.len(), self.reserve())? == 0 {
                return None;
            }
            let slab = free.pop()?;
            self.free_count.store(free.len(), Ordering::Relaxed);
            slab
        };
        let Class { bytes, slots, first } = *self.classes.get(class)?;
        self.give_class(slab, class);
        let mut map = SlotMap::new(slots);
        let slot = map.take_first(slots)?;
        let state = &mut *self.states[class].lock();
        if map.used < slots {
            state.open.insert(slab);
        }
        state.slabs.insert(slab, map);
        self.open_bytes.fetch_add(bytes * (slots - 1), Ordering::Relaxed);
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(self.layout.slab_at(slab) + first + slot * bytes)
    }

    /// Makes a slab that nothing uses one of `class`: its words first, then the class.
    fn give_class(&self, slab: u32, class: usize) {
        let base = self.layout.slab_at(slab);
        let word_ats: Range<u64> = 0..self.classes[class].slots;
        let mut words: Vec<u8> = word_ats
            .map(|slot| base + WORDS_AT + slot * 8)
            .flat_map(|at| self.free_word(at).to_le_bytes())
            .collect();
        if !self.pool.is_in_memory() {
            // To the end of a unit, as slots begin with one.
            words.resize(words.len().next_multiple_of(UNIT as usize), 0);
        }
        let mut stage = Stage::new(&*self.pool);
        stage.write(base + WORDS_AT, &words);
        stage.drain().publish(base, seal(self.seed, base, class as u64 + 1));
        self.pool.fence();
        self.class_of[slab as usize].store(class as u8, Ordering::Release);
    }

    /// Gives back the slot at byte `at`, whose word says *free*, durably or in the order of the log.
    pub fn give(&self, at: u64) {
        let Some((slab, number, slot)) = self.find(at) else { return };
        let class = self.classes[number];
        let state = &mut *self.states[number].lock();
        let Some(map) = state.slabs.get_mut(&slab) else { return };
        map.give(slot);
        self.used_bytes.fetch_sub(class.bytes, Ordering::Relaxed);
        if map.used == 0 {
            state.slabs.remove(&slab);
            state.open.remove(&slab);
            state.shut = state.shut.filter(|shut| *shut != slab);
            self.open_bytes.fetch_sub((class.slots - 1) * class.bytes, Ordering::Relaxed);
            self.class_of[slab as usize].store(NO_CLASS, Ordering::Release);
            let mut free = self.free.lock();
            free.push(slab);
            self.free_count.store(free.len(), Ordering::Relaxed);
        } else {
            self.open_bytes.fetch_add(class.bytes, Ordering::Relaxed);
            if map.used + 1 == class.slots {
                state.open(slab);
            }
        }
    }

    /// Bytes of slots in use.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that records may still take, whatever their class: free slabs beyond the reserve, and free slots.
    pub fn free_bytes(&self) -> u64 {
        self.spare_slabs() as u64 * self.layout.slab_bytes + self.open_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of all slabs beyond the reserve.
    pub fn capacity(&self) -> u64 {
        (self.class_of.len() - self.reserve()) as u64 * self.layout.slab_bytes
    }

    /// What is free now.
    pub fn supply(&self) -> Supply<'_> {
        let open = |(class, state): (&Class, &Mutex<ClassState>)| {
            let state = state.lock();
            state.open.iter().map(|slab| class.slots - state.slabs[slab].used).sum()
        };
        Supply {
            classes: &self.classes,
            open: self.classes.iter().zip(&self.states).map(open).collect(),
            free: self.free_count.load(Ordering::Relaxed),
            reserve: self.reserve(),
        }
    }

    /// What is free where nothing is used.
    pub fn all(&self) -> Supply<'_> {
        Supply {
            classes: &self.classes,
            open: vec![0; self.classes.len()],
            free: self.class_of.len(),
            reserve: self.reserve(),
        }
    }

    /// The slab to empty so that there is one more free: of a class of which a slab's worth of slots is free in
    /// several slabs, the one with the fewest in use that is not among `but`. With the slots that are in use.
    pub fn sparsest(&self, but: &HashSet<u32>) -> Option<(u32, Vec<u64>)> {
        let in_class = |number: usize| {
            let class = self.classes[number];
            let state = self.states[number].lock();
            let free: u64 = state.open.iter().map(|slab| class.slots - state.slabs[slab].used).sum();
            let others = state.open.iter().filter(|slab| !but.contains(slab));
            let (slab, map) =
                others.map(|slab| (*slab, &state.slabs[slab])).min_by_key(|(_, map)| map.used)?;
            // What is moved has room in the others.
            if state.open.len() < 2 || free - (class.slots - map.used) < map.used {
                return None;
            }
            let base = self.layout.slab_at(slab) + class.first;
            let used = (0..class.slots).filter(|slot| map.bits[(slot / 64) as usize] >> (slot % 64) & 1 == 1);
            Some((map.used * class.bytes, slab, used.map(|slot| base + slot * class.bytes).collect()))
        };
        let best = (0..self.classes.len()).filter_map(in_class).min_by_key(|(bytes, ..)| *bytes)?;
        Some((best.1, best.2))
    }

    /// Takes no more slots of `slab` until [`Slabs::reopen`]. One slab of a class at a time.
    pub fn shut(&self, slab: u32) {
        self.states_of(slab, |state, _| {
            // Somebody may have given back its last slot meanwhile.
            if state.slabs.contains_key(&slab) {
                state.open.remove(&slab);
                state.shut = Some(slab);
            }
        });
    }

    /// Takes slots of `slab` again.
    pub fn reopen(&self, slab: u32) {
        self.states_of(slab, |state, class| {
            state.shut = None;
            if state.slabs.get(&slab).is_some_and(|map| map.used < class.slots) {
                state.open.insert(slab);
            }
        });
    }

    fn states_of(&self, slab: u32, change: impl FnOnce(&mut ClassState, Class)) {
        let number = usize::from(self.class_of[slab as usize].load(Ordering::Acquire));
        if let (Some(class), Some(state)) = (self.classes.get(number), self.states.get(number)) {
            change(&mut state.lock(), *class);
        }
    }

    /// Free slabs beyond the reserve.
    pub fn spare_slabs(&self) -> usize {
        self.free_count.load(Ordering::Relaxed).saturating_sub(self.reserve())
    }

    /// Bytes of DRAM.
    pub fn memory_bytes(&self) -> u64 {
        let maps: usize = self
            .states
            .iter()
            .flat_map(|state| {
                state.lock().slabs.values().map(|map| map.bits.len() * 8 + 64).collect::<Vec<_>>()
            })
            .sum();
        maps as u64 + self.class_of.len() as u64 * 5
    }
}
