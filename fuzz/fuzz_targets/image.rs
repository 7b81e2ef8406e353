//! The value-log engine opened from the image of a closed store, with any words in it and checksums that fit.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;
use tierdb_fuzz::store::ClosedStore;

static STORE: LazyLock<ClosedStore> = LazyLock::new(ClosedStore::new);

/// What is done to one word.
#[derive(Arbitrary, Debug)]
enum Change {
    Set(u64),
    Flip(u8),
    Add(i8),
    /// Becomes another word of the image.
    Copy(u16),
    Insert(u64),
    Remove,
    /// It and all after it are left out.
    Cut,
}

/// Most words that are changed.
const MOST: usize = 12;

fuzz_target!(|changes: Vec<(u16, Change)>| {
    let mut words = STORE.words.clone();
    for (at, change) in changes.into_iter().take(MOST) {
        if words.is_empty() {
            break;
        }
        let at = usize::from(at) % words.len();
        match change {
            Change::Set(word) => words[at] = word,
            Change::Flip(bit) => words[at] ^= 1 << (bit % 64),
            Change::Add(what) => words[at] = words[at].wrapping_add_signed(what.into()),
            Change::Copy(from) => words[at] = words[usize::from(from) % words.len()],
            Change::Insert(word) => words.insert(at, word),
            Change::Remove => drop(words.remove(at)),
            Change::Cut => words.truncate(at),
        }
    }
    STORE.with(&words).exercise();
});
