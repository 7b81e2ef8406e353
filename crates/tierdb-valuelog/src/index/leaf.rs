//! Reading leaves: finding a key, the header with its fences, all entries.
//!
//! Nothing here trusts stored bytes: every offset and length is checked before use, and what does not
//! check is an error or a note, never an absent key.

use super::EntryId;
use super::format::*;
use super::search::head;
use crate::pages::{PAGE, PageNo, Pages};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tierdb_base::{Error, MAX_KEY_BYTES, Result, TierRole, checksum, matches};
use tierdb_pmem::{Arena, Pool};

/// The leaves of an index as bytes, with a state word in DRAM for each page.
pub(super) struct Leaves<P: Pool> {
    pub pool: Arc<P>,
    pub pages: Arc<Pages<P>>,
    seed: u64,
    states: Arena,
    /// Leaves in which a search may miss a key that is there, and why. They are never replaced.
    doubtful: RwLock<BTreeMap<PageNo, &'static str>>,
    any_doubtful: AtomicBool,
}

/// What a leaf's state word says. Bit 0 of the word is the leaf's latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In the chain.
    Alive {
        /// Slots ever used: the first `used` ones.
        used: usize,
        /// Byte of the lowest entry.
        bottom: usize,
    },
    /// Replaced: its keys, and maybe others, are in this leaf and those after it.
    Dead(PageNo),
}

const DEAD: u64 = 2;

/// Bytes of an entry that is compared without clearing much memory first.
const SHORT: usize = 48;

impl State {
    #[inline]
    pub fn decode(word: u64) -> Self {
        if word & DEAD != 0 {
            return State::Dead(word >> 8);
        }
        State::Alive { used: (word >> 8 & 0xff) as usize, bottom: (word >> 16 & 0xffff) as usize }
    }

    pub fn encode(self) -> u64 {
        match self {
            State::Dead(page) => page << 8 | DEAD,
            State::Alive { used, bottom } => (used as u64) << 8 | (bottom as u64) << 16,
        }
    }
}

/// A low or high fence: its bytes, and where they stand if not in the leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fence {
    pub bytes: Vec<u8>,
    pub blob: Option<BlobRef>,
}

impl Fence {
    pub fn new(bytes: Vec<u8>) -> Self {
        Fence { bytes, blob: None }
    }

    /// What stands in the leaf.
    pub fn stored(&self) -> Vec<u8> {
        self.blob.map_or_else(|| self.bytes.clone(), |blob| blob.encode().to_vec())
    }
}

/// What never changes in a leaf.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub page: PageNo,
    pub geometry: Geometry,
    pub generation: u32,
    pub low: Fence,
    pub high: Option<Fence>,
}

impl Header {
    /// Whether `key` is below the high fence.
    pub fn ends_after(&self, key: &[u8]) -> bool {
        self.high.as_ref().is_none_or(|high| key < high.bytes.as_slice())
    }

    /// The first byte that entries may take.
    pub fn heap_from(&self) -> usize {
        let high = self.high.as_ref().map_or(0, |high| fence_bytes(high.bytes.len()));
        self.geometry.fences_at() + fence_bytes(self.low.bytes.len()) + high
    }
}

/// Something damaged in a leaf.
#[derive(Clone, Debug)]
pub(super) struct Note {
    pub what: &'static str,
    pub at: u64,
    /// The key, where it is known.
    pub key: Option<Vec<u8>>,
    /// Whether a search for the key would end without one.
    pub hides_key: bool,
}

impl Note {
    pub fn new(what: &'static str, at: u64, key: Option<Vec<u8>>) -> Self {
        Note { what, at, key, hides_key: false }
    }
}

/// A live entry of a leaf; its key is in [`Contents`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// What the key starts with after what all have in common.
    head: u64,
    pub hash: u64,
    pub id: EntryId,
    start: u32,
    len: u16,
    pub slot: u8,
    is_long: bool,
}

/// The live entries of a leaf. Reused from leaf to leaf.
#[derive(Default)]
pub(super) struct Contents {
    bytes: Vec<u8>,
    /// Length of what all keys have in common.
    skip: usize,
    pub items: Vec<Item>,
    /// Of the long keys, by their byte in `bytes`.
    blobs: Vec<(u32, BlobRef)>,
    pub notes: Vec<Note>,
    pub groups: [u64; GROUPS],
    page: Vec<u8>,
}

impl Contents {
    pub fn key(&self, item: &Item) -> &[u8] {
        &self.bytes[item.start as usize..item.start as usize + item.len as usize]
    }

    /// Where the key stands if it is a long one.
    pub fn blob(&self, item: &Item) -> Option<BlobRef> {
        let at = self.blobs.binary_search_by_key(&item.start, |(start, _)| *start);
        at.ok().filter(|_| item.is_long).map(|at| self.blobs[at].1)
    }

    /// Puts the items in key order.
    pub fn sort(&mut self) {
        let Contents { bytes, items, skip, .. } = self;
        let tail = |item: &Item| &bytes[item.start as usize..][..item.len as usize][*skip..];
        items.sort_by(|a, b| a.head.cmp(&b.head).then_with(|| tail(a).cmp(tail(b))));
    }

    /// Keeps the items whose key is wanted.
    pub fn retain(&mut self, mut wanted: impl FnMut(&[u8]) -> bool) {
        let Contents { bytes, items, .. } = self;
        items.retain(|item| wanted(&bytes[item.start as usize..item.start as usize + item.len as usize]));
    }

    /// The items of a leaf and those of its right neighbour, as one leaf's. All keys have their first `skip`
    /// bytes in common.
    pub fn append(&mut self, right: &Contents, skip: usize) {
        for item in &right.items {
            let start = self.bytes.len() as u32;
            self.bytes.extend_from_slice(right.key(item));
            self.blobs.extend(right.blob(item).map(|blob| (start, blob)));
            self.items.push(Item { start, ..*item });
        }
        let Contents { bytes, items, .. } = self;
        items
            .iter_mut()
            .for_each(|item| item.head = head(&bytes[item.start as usize..][..item.len as usize][skip..]));
        self.skip = skip;
    }

    fn note(&mut self, what: &'static str, at: u64, key: Option<Vec<u8>>) {
        self.notes.push(Note::new(what, at, key));
    }

    fn push(&mut self, start: usize, slot: usize, head: u64, entry: Resolved) {
        self.blobs.extend(entry.blob.map(|blob| (start as u32, blob)));
        self.items.push(Item {
            head,
            hash: entry.hash,
            id: entry.id,
            start: start as u32,
            len: (self.bytes.len() - start) as u16,
            slot: slot as u8,
            is_long: entry.blob.is_some(),
        });
    }
}

/// A leaf's fences, with their heads after the leaf's prefix: those decide for nearly all keys.
struct Fences<'a> {
    header: &'a Header,
    low: u64,
    high: u64,
}

impl<'a> Fences<'a> {
    fn new(header: &'a Header) -> Self {
        let head_of = |fence: &Fence| head(&fence.bytes[header.geometry.prefix..]);
        Fences { header, low: head_of(&header.low), high: header.high.as_ref().map_or(u64::MAX, head_of) }
    }

    #[inline]
    fn surround(&self, key: &[u8], head: u64) -> bool {
        self.low < head && head < self.high
            || key >= self.header.low.bytes.as_slice() && self.header.ends_after(key)
    }
}

/// An entry that agrees with its fingerprint and check.
struct Resolved {
    id: EntryId,
    hash: u64,
    blob: Option<BlobRef>,
}

/// A key found in a leaf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub slot: usize,
    pub id: EntryId,
}

impl<P: Pool> Leaves<P> {
    pub fn new(pool: Arc<P>, pages: Arc<Pages<P>>) -> Self {
        let seed = pages.seed();
        // Handed out by the system page by page on first touch, so a word for each page costs little.
        let states = Arena::zeroed(pages.numbers().end * 8);
        let (doubtful, any_doubtful) = (RwLock::default(), AtomicBool::new(false));
        Leaves { pool, pages, seed, states, doubtful, any_doubtful }
    }

    /// From now on no search in the leaf at `page` ends without a key, because of `what`.
    pub fn doubt(&self, page: PageNo, what: &'static str) {
        self.doubtful.write().entry(page).or_insert(what);
        self.any_doubtful.store(true, Ordering::Release);
    }

    /// Why no search in the leaf at `page` ends without a key.
    #[inline]
    fn doubts(&self, page: PageNo) -> Option<&'static str> {
        let any = self.any_doubtful.load(Ordering::Acquire);
        if any { self.doubtful.read().get(&page).copied() } else { None }
    }

    /// A search in the leaf at `page` found nothing.
    #[inline]
    fn missed(&self, page: PageNo) -> Result<Option<Found>> {
        self.doubts(page).map_or(Ok(None), |what| Err(self.damage(what, page * PAGE)))
    }

    /// The state word of `page`.
    #[inline]
    pub fn state_word(&self, page: PageNo) -> &AtomicU64 {
        self.states.word(page * 8)
    }

    /// The state of `page` now.
    #[inline]
    pub fn state(&self, page: PageNo) -> State {
        State::decode(self.state_word(page).load(Ordering::Acquire))
    }

    /// The hash of a key, from which fingerprint, check and blob checksum come.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        checksum(self.seed, key)
    }

    /// The checksum of what never changes in the leaf at `page`.
    pub fn identity(&self, page: PageNo, word: u64, more: u64, fences: &[u8]) -> u64 {
        identity(self.seed, page, word, more, fences)
    }

    /// An error about byte `at` of the pool.
    #[cold]
    pub fn damage(&self, what: &'static str, at: u64) -> Error {
        Error::corrupt(TierRole::Fast, what, self.pool.place(at))
    }

    /// The error that a note stands for.
    pub fn damage_of(&self, note: &Note) -> Error {
        let error = self.damage(note.what, note.at);
        match &note.key {
            Some(key) => error.with_key(key),
            None => error,
        }
    }

    /// The geometry of the leaf at `page`.
    #[inline]
    pub fn geometry(&self, page: PageNo) -> Result<Geometry> {
        let at = page * PAGE;
        Geometry::decode(self.pool.load(at)).map_err(|what| self.damage(what, at))
    }

    /// The leaf that follows `page`; `Err` if its reference is damaged.
    pub fn next(&self, page: PageNo) -> Result<Option<PageNo>> {
        let at = page * PAGE + NEXT_AT;
        match decode_next(self.pool.load(at)) {
            Ok(Some(next)) if !self.pages.contains(next) => {
                Err(self.damage("a leaf's link leads out of the pool", at))
            }
            Ok(next) => Ok(next),
            Err(()) => Err(self.damage("a leaf's link is damaged", at)),
        }
    }

    /// The entry of `key` in the leaf at `page`. The key lies between the leaf's fences.
    ///
    /// A live bit or a fingerprint that is not as written could hide the key or bring back a removed one, so
    /// each group is checked before it is believed.
    #[inline]
    pub fn find(&self, page: PageNo, key: &[u8], hash: u64) -> Result<Option<Found>> {
        let leaf = self.geometry(page)?;
        let wanted = fingerprint(hash);
        for first in (0..leaf.slots).step_by(GROUP) {
            let Some(mut hits) = self.hits(page, leaf, first, wanted) else {
                return self.find_beside_damage(page, leaf, key, hash);
            };
            while hits != 0 {
                let slot = first + hits.trailing_zeros() as usize;
                hits &= hits - 1;
                match self.id_if_key(page, leaf, slot, key, hash) {
                    Ok(Some(id)) => return Ok(Some(Found { slot, id })),
                    Ok(None) => {}
                    Err(_) => return self.find_beside_damage(page, leaf, key, hash),
                }
            }
        }
        self.missed(page)
    }

    /// As [`Leaves::find`], where something of the leaf is damaged: what is whole of it may have the key. If not, the error is that of
    /// the first that is damaged.
    #[cold]
    fn find_beside_damage(
        &self,
        page: PageNo,
        leaf: Geometry,
        key: &[u8],
        hash: u64,
    ) -> Result<Option<Found>> {
        let mut missed = Ok(None);
        for first in (0..leaf.slots).step_by(GROUP) {
            let Some(hits) = self.hits(page, leaf, first, fingerprint(hash)) else {
                let at = page * PAGE + GROUPS_AT + (first / GROUP) as u64 * 8;
                missed = missed.and(Err(self.damage("live slots and fingerprints of a leaf disagree", at)));
                continue;
            };
            for slot in (0..GROUP).filter(|slot| hits >> slot & 1 == 1).map(|slot| first + slot) {
                match self.id_if_key(page, leaf, slot, key, hash) {
                    Ok(Some(id)) => return Ok(Some(Found { slot, id })),
                    Ok(None) => {}
                    Err(error) => missed = missed.and(Err(error)),
                }
            }
        }
        missed.and_then(|_: Option<Found>| self.missed(page))
    }

    /// The live slots of the group from slot `first` on that have the wanted fingerprint, by their places in it; `None` if it is damaged.
    #[inline]
    fn hits(&self, page: PageNo, leaf: Geometry, first: usize, wanted: u8) -> Option<u64> {
        let word = self.pool.load(page * PAGE + GROUPS_AT + (first / GROUP) as u64 * 8);
        let fingerprints_at = page * PAGE + FINGERPRINTS_AT + first as u64;
        let eight = |i: usize| self.pool.load(fingerprints_at + 8 * i as u64);
        group_hits(word, GROUP.min(leaf.slots - first), wanted, eight)
    }

    /// The id in `slot` if its key is `key`.
    #[inline]
    fn id_if_key(
        &self,
        page: PageNo,
        leaf: Geometry,
        slot: usize,
        key: &[u8],
        hash: u64,
    ) -> Result<Option<EntryId>> {
        let offset = self.offset(page, leaf, slot);
        let at = page * PAGE + offset as u64;
        if offset < leaf.fences_at() || offset + ENTRY > PAGE as usize {
            return Err(
                self.damage("an entry's offset leads out of its leaf", page * PAGE + leaf.offset_at(slot))
            );
        }
        if key.len() <= MAX_INLINE {
            let tail = &key[leaf.prefix.min(key.len())..];
            if offset + ENTRY + tail.len() <= PAGE as usize {
                let id = match ENTRY + tail.len() <= SHORT {
                    true => self.id_if_tail::<SHORT>(at, tail, hash),
                    false => self.id_if_tail::<{ ENTRY + MAX_INLINE }>(at, tail, hash),
                };
                if let Some(id) = id.map_err(|e| e.with_key(key))? {
                    return Ok(Some(id));
                }
            }
        }
        self.id_if_other_key(page, leaf, slot, offset, key)
    }

    /// The id of the entry at byte `at` of the pool if its key ends in `tail`. `N` bytes hold such an entry.
    #[inline]
    fn id_if_tail<const N: usize>(&self, at: u64, tail: &[u8], hash: u64) -> Result<Option<EntryId>> {
        let mut raw = [0u8; N];
        let raw = &mut raw[..ENTRY + tail.len()];
        self.pool.read(at, raw)?;
        if usize::from(raw[LENGTH_AT]) != tail.len() || raw[ENTRY..] != *tail {
            return Ok(None);
        }
        let id = u64::from_le_bytes([raw[0], raw[1], raw[2], raw[3], raw[4], 0, 0, 0]);
        if matches(u64::from(raw[5]), u64::from(check(hash, id))) {
            Ok(Some(id))
        } else {
            Err(self.damage("an entry's id is damaged", at))
        }
    }

    /// A fingerprint matched and the bytes did not, or the key is a long one. Either the entry is whole and
    /// says which key it holds, or it is damaged and may have been this one.
    #[cold]
    fn id_if_other_key(
        &self,
        page: PageNo,
        leaf: Geometry,
        slot: usize,
        offset: usize,
        key: &[u8],
    ) -> Result<Option<EntryId>> {
        let at = page * PAGE + offset as u64;
        let mut raw = [0u8; ENTRY + MAX_INLINE];
        let len = raw.len().min(PAGE as usize - offset);
        self.pool.read(at, &mut raw[..len])?;
        let mut stored = Vec::new();
        let prefix = &key[..leaf.prefix.min(key.len())];
        let fingerprint =
            self.pool.load(page * PAGE + FINGERPRINTS_AT + slot as u64 / 8 * 8) >> (slot % 8 * 8);
        let entry = self
            .resolve(&raw[..len], at, fingerprint as u8, prefix, &mut stored)
            .map_err(|n| self.damage_of(&n))?;
        Ok((stored == key).then_some(entry.id))
    }

    #[inline]
    fn offset(&self, page: PageNo, leaf: Geometry, slot: usize) -> usize {
        let at = page * PAGE + leaf.offset_at(slot);
        (self.pool.load(at & !7) >> (at % 8 * 8)) as usize & 0xffff
    }

    /// Appends the key of the entry at the start of `raw` to `key`, and checks it against its fingerprint
    /// and check. `prefix` is what the leaf stores its keys without.
    fn resolve(
        &self,
        raw: &[u8],
        at: u64,
        finger: u8,
        prefix: &[u8],
        key: &mut Vec<u8>,
    ) -> Result<Resolved, Note> {
        let note = |what| Note::new(what, at, None);
        let entry = RawEntry::decode(raw).ok_or_else(|| note("an entry's length leads out of its leaf"))?;
        let start = key.len();
        let blob = match entry.key {
            RawKey::Inline(tail) => {
                key.extend_from_slice(prefix);
                key.extend_from_slice(tail);
                None
            }
            RawKey::Long(len, blob) => {
                if !(MAX_INLINE + 1..=MAX_KEY_BYTES).contains(&len) {
                    return Err(note("a long key's length is out of range"));
                }
                self.read_blob(blob, len, key).map_err(note)?;
                Some(blob)
            }
        };
        let hash = self.hash(&key[start..]);
        let stored = u16::from_le_bytes([finger, entry.check]);
        let computed = u16::from_le_bytes([fingerprint(hash), check(hash, entry.id)]);
        let whole = matches(u64::from(stored), u64::from(computed));
        if whole {
            return Ok(Resolved { id: entry.id, hash, blob });
        }
        if entry.check == computed.to_le_bytes()[1] {
            // A search by the key's fingerprint does not come here.
            return Err(Note { hides_key: true, ..note("the fingerprint of a key is damaged") });
        }
        Err(note("an entry's key or id is damaged"))
    }

    /// Appends the `len` bytes of a blob to `out`.
    fn read_blob(&self, blob: BlobRef, len: usize, out: &mut Vec<u8>) -> Result<(), &'static str> {
        let at = super::blob::place(blob, len).filter(|_| self.pages.contains(blob.page));
        let at = at.ok_or("a reference to a blob leads nowhere")?;
        let start = out.len();
        out.resize(start + len, 0);
        let read = self.pool.read(at, &mut out[start..]).map_err(|_| "the medium reports a blob as damaged");
        let whole = read.and_then(|()| {
            let sum = blob_sum(self.hash(&out[start..]));
            if matches(u64::from(blob.sum), u64::from(sum)) { Ok(()) } else { Err("a blob is damaged") }
        });
        if whole.is_err() {
            out.truncate(start);
        }
        whole
    }

    /// What never changes in the leaf at `page`, checked.
    pub fn header(&self, page: PageNo) -> Result<Header> {
        let at = page * PAGE;
        let word = self.pool.load(at);
        let geometry = Geometry::decode(word).map_err(|what| self.damage(what, at))?;
        let more = self.pool.load(at + MORE_AT);
        let (low, high, generation) = decode_more(more);
        if low > MAX_KEY_BYTES || high > MAX_KEY_BYTES {
            return Err(self.damage("a fence's length is out of range", at + MORE_AT));
        }
        let (low_bytes, high_bytes) = (fence_bytes(low), fence_bytes(high));
        let mut raw = [0u8; 2 * MAX_INLINE_FENCE];
        let fences = &mut raw[..low_bytes + high_bytes];
        let fences_at = at + geometry.fences_at() as u64;
        self.pool.read(fences_at, fences)?;
        let stored = self.pool.load(at + SUM_AT);
        if !matches(stored, self.identity(page, word, more, fences)) {
            return Err(self.damage("a leaf's checksum is wrong", at + SUM_AT));
        }
        let fence = |raw: &[u8], len: usize| -> Result<Fence> {
            if len <= MAX_INLINE_FENCE {
                return Ok(Fence::new(raw.to_vec()));
            }
            let blob = BlobRef::decode(raw).ok_or_else(|| self.damage("a fence is cut off", fences_at))?;
            let mut bytes = Vec::new();
            self.read_blob(blob, len, &mut bytes).map_err(|what| self.damage(what, fences_at))?;
            Ok(Fence { bytes, blob: Some(blob) })
        };
        let header = Header {
            page,
            geometry,
            generation,
            low: fence(&fences[..low_bytes], low)?,
            high: if geometry.last { None } else { Some(fence(&fences[low_bytes..], high)?) },
        };
        let ordered = match &header.high {
            Some(high) => {
                header.low.bytes < high.bytes
                    && high.bytes[..].starts_with(&header.low.bytes[..geometry.prefix.min(low)])
            }
            None => high == 0 && geometry.prefix == 0,
        };
        if !ordered || geometry.prefix > low {
            return Err(self.damage("a leaf's fences are out of order", fences_at));
        }
        Ok(header)
    }

    /// Reads all live entries of a leaf, in slot order. What is damaged is left out and noted.
    ///
    /// Live slots do not change, so each group is as it was when its word was read; whoever needs all
    /// groups as they were at one moment compares [`Contents::groups`] with the words afterwards.
    ///
    /// # Errors
    /// `Corrupt` if the medium reports the page as damaged.
    pub fn contents(&self, header: &Header, out: &mut Contents) -> Result<()> {
        let (page, leaf) = (header.page, header.geometry);
        let at = page * PAGE;
        out.bytes.clear();
        out.skip = leaf.prefix;
        out.items.clear();
        out.blobs.clear();
        out.notes.clear();
        for (group, word) in out.groups.iter_mut().enumerate() {
            *word = self.pool.load(at + GROUPS_AT + group as u64 * 8);
        }
        let mut raw = std::mem::take(&mut out.page);
        raw.resize(PAGE as usize, 0);
        let read = self.pool.read(at, &mut raw);
        if read.is_ok() {
            self.decode_slots(header, leaf, &raw, out);
            if let Some(what) = self.doubts(page)
                && !out.notes.iter().any(|note| note.hides_key)
            {
                out.notes.push(Note { hides_key: true, ..Note::new(what, at, None) });
            }
        }
        out.page = raw;
        read
    }

    fn decode_slots(&self, header: &Header, leaf: Geometry, raw: &[u8], out: &mut Contents) {
        let at = header.page * PAGE;
        let prefix = &header.low.bytes[..leaf.prefix];
        let heap_from = header.heap_from();
        let live: u32 = out.groups.iter().map(|word| (word & LIVE).count_ones()).sum();
        out.items.reserve(live as usize);
        out.bytes.reserve(PAGE as usize + live as usize * leaf.prefix);
        let fences = Fences::new(header);
        for group in 0..GROUPS {
            let word = out.groups[group];
            let first = FINGERPRINTS_AT as usize + (group * GROUP).min(leaf.slots);
            let here = GROUP.min(leaf.slots.saturating_sub(group * GROUP));
            let fingerprints = raw[first..first + here].as_chunks::<8>().0;
            if group_hits(word, here, 0, |i| u64::from_le_bytes(fingerprints[i])).is_none() {
                out.note(
                    "live slots and fingerprints of a leaf disagree",
                    at + GROUPS_AT + group as u64 * 8,
                    None,
                );
                continue;
            }
            let mut live = word & LIVE;
            while live != 0 {
                let slot = group * GROUP + live.trailing_zeros() as usize;
                live &= live - 1;
                if slot >= leaf.slots {
                    break;
                }
                let offset_at = leaf.offset_at(slot) as usize;
                let offset = u16::from_le_bytes([raw[offset_at], raw[offset_at + 1]]) as usize;
                if offset < heap_from || offset >= PAGE as usize {
                    out.note("an entry's offset leads out of its leaf", at + offset_at as u64, None);
                    continue;
                }
                let finger = raw[FINGERPRINTS_AT as usize + slot];
                let start = out.bytes.len();
                let place = at + offset as u64;
                match self.resolve(&raw[offset..], place, finger, prefix, &mut out.bytes) {
                    Ok(entry) => {
                        let head = head(&out.bytes[start + leaf.prefix..]);
                        if fences.surround(&out.bytes[start..], head) {
                            out.push(start, slot, head, entry);
                            continue;
                        }
                        let key = out.bytes[start..].to_vec();
                        out.note("a key lies outside its leaf's fences", place, Some(key));
                    }
                    Err(note) => out.notes.push(note),
                }
                out.bytes.truncate(start);
            }
        }
    }

    /// Number of live slots.
    pub fn live(&self, page: PageNo) -> usize {
        let words =
            (0..GROUPS as u64).map(|group| self.pool.load(page * PAGE + GROUPS_AT + group * 8) & LIVE);
        words.map(u64::count_ones).sum::<u32>() as usize
    }

    /// Where the long key in `slot` stands.
    pub fn blob_of(&self, page: PageNo, leaf: Geometry, slot: usize) -> Result<BlobRef> {
        let at = page * PAGE + self.offset(page, leaf, slot) as u64;
        let mut raw = [0u8; LONG_ENTRY];
        let len = raw.len().min(((page + 1) * PAGE - at) as usize);
        self.pool.read(at, &mut raw[..len])?;
        match RawEntry::decode(&raw[..len]).map(|entry| entry.key) {
            Some(RawKey::Long(_, blob)) => Ok(blob),
            _ => Err(self.damage("a long key has a short key's entry", at)),
        }
    }

    /// Number of slots ever used and the byte of the lowest entry, from the offsets, and whether a key or a fence stands in a blob.
    /// A live slot is used, even if its offset is lost.
    pub fn fill(&self, page: PageNo, leaf: Geometry) -> (State, bool) {
        let (low, high, _) = decode_more(self.pool.load(page * PAGE + MORE_AT));
        let mut has_blobs = low.max(high) > MAX_INLINE_FENCE;
        let mut used = 0;
        let mut bottom = PAGE as usize;
        for slot in 0..leaf.slots {
            let offset = self.offset(page, leaf, slot);
            let group = self.pool.load(page * PAGE + GROUPS_AT + (slot / GROUP * 8) as u64);
            if offset != 0 {
                bottom = bottom.min(offset);
                has_blobs |= self.is_long(page, offset);
            }
            if offset != 0 || group >> (slot % GROUP) & 1 == 1 {
                used = slot + 1;
            }
        }
        (State::Alive { used, bottom }, has_blobs)
    }

    /// Whether the entry at byte `offset` of a leaf says that its key stands in a blob.
    fn is_long(&self, page: PageNo, offset: usize) -> bool {
        let at = page * PAGE + (offset + LENGTH_AT) as u64;
        offset + ENTRY <= PAGE as usize && (self.pool.load(at & !7) >> (at % 8 * 8)) as u8 == LONG
    }
}

/// The slots of a group that are live in its word and have the wanted fingerprint; `None` if the
/// fingerprints of its live slots are not as written. The group has `slots` of them, and `eight` loads the
/// `i`th eight.
#[inline]
fn group_hits(word: u64, slots: usize, wanted: u8, eight: impl Fn(usize) -> u64) -> Option<u64> {
    let live = word & LIVE;
    let mut hits = 0;
    let mut sum = 0;
    for i in 0..slots / 8 {
        let fingerprints = eight(i);
        let mut equal = equal_bytes(fingerprints, wanted);
        match (live >> (8 * i)) as u8 {
            // Most slots are live.
            0xff => sum ^= fingerprints,
            bits => {
                let mask = spread(bits);
                sum ^= select_bytes(fingerprints, mask);
                equal &= mask;
            }
        }
        if equal != 0 {
            hits |= u64::from(gather(equal)) << (8 * i);
        }
    }
    let whole = live >> slots == 0 && matches(word >> GROUP, u64::from(fold_bytes(sum)));
    whole.then_some(hits)
}
