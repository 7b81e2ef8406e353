//! Writing leaves whole: how much fits, where to cut, and the bytes of a new page.

use super::format::*;
use super::leaf::{Contents, Fence, Item, Leaves, State};
use super::search::common_prefix;
use crate::pages::{PAGE, PageNo};
use std::ops::Range;
use tierdb_pmem::{Pool, Stage};

/// One of the leaves that are to take the place of others.
pub(super) struct Part {
    pub low: Fence,
    pub high: Option<Fence>,
    /// Which of the sorted items it gets.
    pub items: Range<usize>,
    pub geometry: Geometry,
}

/// The shortest byte string above `a` and at most `b`, where `a < b`.
pub(super) fn separator(a: &[u8], b: &[u8]) -> Vec<u8> {
    b[..b.len().min(common_prefix(a, b) + 1)].to_vec()
}

/// What all keys between two fences start with, as far as a leaf leaves it out.
pub(super) fn prefix(low: &Fence, high: Option<&Fence>) -> usize {
    high.map_or(0, |high| common_prefix(&low.bytes, &high.bytes).min(MAX_INLINE))
}

/// Bytes of a leaf for slots and entries.
pub(super) fn space(low: &Fence, high: Option<&Fence>) -> usize {
    let fences = fence_bytes(low.bytes.len()) + high.map_or(0, |high| fence_bytes(high.bytes.len()));
    PAGE as usize - FINGERPRINTS_AT as usize - fences
}

/// Bytes that `items` take in a leaf with this prefix, their slots included.
pub(super) fn load(contents: &Contents, items: &[Item], prefix: usize) -> usize {
    items.iter().map(|item| entry_bytes(contents.key(item).len(), prefix) + SLOT).sum()
}

impl Part {
    /// A leaf for `items` between the fences with room left for a key of `spare` bytes; `None` if they do
    /// not fit. It gets as many slots as keys of the items' size would fill.
    pub fn plan(
        low: Fence,
        high: Option<Fence>,
        contents: &Contents,
        items: Range<usize>,
        spare: Option<usize>,
    ) -> Option<Self> {
        let prefix = prefix(&low, high.as_ref());
        let space = space(&low, high.as_ref());
        let spare_bytes = spare.map_or(0, |len| entry_bytes(len, prefix));
        let (count, spare_slots) = (items.len(), usize::from(spare.is_some()));
        let load = load(contents, &contents.items[items.clone()], prefix);
        let entries = load - count * SLOT + spare_bytes;
        let fewest = (count + spare_slots).max(1).next_multiple_of(8);
        let each = (load + spare_bytes + spare_slots * SLOT) / (count + spare_slots).max(1);
        let most = space.checked_div(each).map_or(160, |slots| slots.next_multiple_of(8));
        let fits = |slots: usize| slots <= MAX_SLOTS && entries + slots * SLOT <= space;
        let slots = [most.clamp(8, MAX_SLOTS).max(fewest), fewest].into_iter().find(|slots| fits(*slots))?;
        let geometry = Geometry { slots, prefix, last: high.is_none() };
        Some(Part { low, high, items, geometry })
    }
}

/// Where to cut sorted `items` in two of about the same size: near the middle, at the shortest separator.
/// Returns the number of items to the left, and the separator.
pub(super) fn cut(contents: &Contents, prefix: usize) -> (usize, Vec<u8>) {
    let items = &contents.items;
    let total = load(contents, items, prefix);
    let mut left = 0;
    /// How bad a cut is, before which item it is, and the separator.
    type Cut = ((bool, usize, usize), usize, Vec<u8>);
    let mut best: Option<Cut> = None;
    for i in 1..items.len() {
        left += load(contents, &items[i - 1..i], prefix);
        let off_middle = left.abs_diff(total / 2);
        let separator = separator(contents.key(&items[i - 1]), contents.key(&items[i]));
        let near = off_middle * 10 <= total;
        let rank = (!near, if near { separator.len() } else { 0 }, off_middle);
        if best.as_ref().is_none_or(|(best, ..)| rank < *best) {
            best = Some((rank, i, separator));
        }
    }
    best.map_or((0, Vec::new()), |(_, at, separator)| (at, separator))
}

impl<P: Pool> Leaves<P> {
    /// Stages the leaf that `part` describes at `page`, to be followed by `next`, and sets its state. What
    /// its fences refer to is staged by the caller.
    pub fn stage(
        &self,
        stage: &mut Stage<'_, P>,
        page: PageNo,
        generation: u32,
        part: &Part,
        contents: &Contents,
        next: u64,
    ) -> State {
        let geometry = part.geometry;
        let mut bytes = vec![0u8; PAGE as usize];
        let mut put = |at: usize, of: &[u8]| bytes[at..at + of.len()].copy_from_slice(of);
        let low = part.low.stored();
        let high = part.high.as_ref().map_or_else(Vec::new, Fence::stored);
        let fences = [low, high].concat();
        let high_len = part.high.as_ref().map_or(0, |high| high.bytes.len());
        let word = geometry.encode();
        let more = encode_more(part.low.bytes.len(), high_len, generation);
        put(0, &word.to_le_bytes());
        put(NEXT_AT as usize, &next.to_le_bytes());
        put(SUM_AT as usize, &self.identity(page, word, more, &fences).to_le_bytes());
        put(MORE_AT as usize, &more.to_le_bytes());
        put(geometry.fences_at(), &fences);
        let front = geometry.fences_at() + fences.len();
        let mut groups = [0u64; GROUPS];
        let mut bottom = PAGE as usize;
        for (slot, item) in contents.items[part.items.clone()].iter().enumerate() {
            let entry = EntryBytes::encode(
                contents.key(item),
                item.hash,
                item.id,
                geometry.prefix,
                contents.blob(item),
            );
            let entry = entry.as_slice();
            bottom -= entry.len();
            put(bottom, entry);
            put(geometry.offset_at(slot) as usize, &(bottom as u16).to_le_bytes());
            put(FINGERPRINTS_AT as usize + slot, &[fingerprint(item.hash)]);
            groups[slot / GROUP] ^= 1 << (slot % GROUP) | u64::from(fingerprint(item.hash)) << GROUP;
        }
        put(GROUPS_AT as usize, groups.map(u64::to_le_bytes).as_flattened());
        assert!(front <= bottom, "the plan left room for all items");
        let at = page * PAGE;
        stage.write(at, &bytes[..front]);
        if bottom < PAGE as usize {
            stage.write(at + bottom as u64, &bytes[bottom..]);
        }
        State::Alive { used: part.items.len(), bottom }
    }
}
