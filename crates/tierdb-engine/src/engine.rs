//! What every engine can do, and what it promises.

use crate::batch::WriteBatch;
use crate::stats::Stats;
use crate::value::Value;
use crate::verify::VerifyReport;
use std::any::Any;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use tierdb_base::{Error, Result, Seqno};

/// What a write survives when its call returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Power loss. The write, and everything any reader has seen, is in every state after a crash.
    #[default]
    Durable,
    /// Power loss after the next [`Engine::sync`], the next durable write, or about 5 ms. After a crash
    /// the store holds a prefix of the writes, never one with a hole.
    Grouped,
}

/// A range of keys, by any bounds. A reversed range is empty.
///
/// A bound is a byte string, not a key: it may be empty, or longer than a key may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// Lower bound.
    pub start: Bound<Vec<u8>>,
    /// Upper bound.
    pub end: Bound<Vec<u8>>,
}

impl RangeBounds<Vec<u8>> for KeyRange {
    fn start_bound(&self) -> Bound<&Vec<u8>> {
        self.start.as_ref()
    }

    fn end_bound(&self) -> Bound<&Vec<u8>> {
        self.end.as_ref()
    }
}

impl KeyRange {
    /// All keys.
    pub fn all() -> Self {
        KeyRange { start: Bound::Unbounded, end: Bound::Unbounded }
    }

    /// The keys from `start` to before `end`.
    pub fn half_open(start: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Self {
        KeyRange { start: Bound::Included(start.into()), end: Bound::Excluded(end.into()) }
    }

    /// Whether the bounds of `other` lie within its own, so that it has all keys that that has.
    pub fn covers(&self, other: &KeyRange) -> bool {
        use Bound::{Excluded, Included, Unbounded};
        let starts = match (&self.start, &other.start) {
            (Unbounded, _) => true,
            (_, Unbounded) => false,
            (Included(own), Included(start) | Excluded(start)) | (Excluded(own), Excluded(start)) => {
                own <= start
            }
            (Excluded(own), Included(start)) => own < start,
        };
        starts
            && match (&self.end, &other.end) {
                (Unbounded, _) => true,
                (_, Unbounded) => false,
                (Included(own), Included(end) | Excluded(end)) | (Excluded(own), Excluded(end)) => own >= end,
                (Excluded(own), Included(end)) => own > end,
            }
    }

    /// The keys that start with `prefix`.
    pub fn prefix(prefix: &[u8]) -> Self {
        let mut end = prefix.to_vec();
        while end.last() == Some(&0xff) {
            end.pop();
        }
        let end = match end.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(end)
            }
            None => Bound::Unbounded,
        };
        KeyRange { start: Bound::Included(prefix.to_vec()), end }
    }

    /// This key alone.
    pub fn one(key: impl Into<Vec<u8>>) -> Self {
        let key = key.into();
        KeyRange { start: Bound::Included(key.clone()), end: Bound::Included(key) }
    }

    /// Its only key, if it is made of one.
    pub fn only_key(&self) -> Option<&[u8]> {
        match (&self.start, &self.end) {
            (Bound::Included(first), Bound::Included(last)) if first == last => Some(first),
            _ => None,
        }
    }

    /// The range in words, as of what is damaged, with each bound as `show` shows it.
    pub fn in_words(&self, show: impl Fn(&[u8]) -> String) -> String {
        let end = |included: &str, excluded: &str, unbounded: &str| match &self.end {
            Bound::Included(key) => format!("{included}{}", show(key)),
            Bound::Excluded(key) => format!("{excluded}{}", show(key)),
            Bound::Unbounded => unbounded.to_owned(),
        };
        match &self.start {
            Bound::Included(key) if self.only_key().is_some() => format!("key {}", show(key)),
            Bound::Included(key) => format!("keys {}{}", show(key), end(" to ", " to before ", " and above")),
            Bound::Excluded(key) => format!("keys after {}{}", show(key), end(" to ", " to before ", "")),
            Bound::Unbounded => end("keys up to ", "keys before ", "any key"),
        }
    }

    /// Whether `key` lies in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        let above = match &self.start {
            Bound::Included(start) => key >= start.as_slice(),
            Bound::Excluded(start) => key > start.as_slice(),
            Bound::Unbounded => true,
        };
        above && !self.is_after(key)
    }

    /// Whether `key` lies above its upper bound.
    pub fn is_after(&self, key: &[u8]) -> bool {
        match &self.end {
            Bound::Included(end) => key > end.as_slice(),
            Bound::Excluded(end) => key >= end.as_slice(),
            Bound::Unbounded => false,
        }
    }

    /// Whether `key` lies below its lower bound.
    pub fn is_before(&self, key: &[u8]) -> bool {
        match &self.start {
            Bound::Included(start) => key < start.as_slice(),
            Bound::Excluded(start) => key <= start.as_slice(),
            Bound::Unbounded => false,
        }
    }
}

/// A consistent view of the store: the writes up to one seqno, all of each batch or nothing of it.
///
/// Holding it keeps the values it can see; drop it when done. It does not outlive the process.
#[derive(Clone)]
pub struct Snapshot {
    seqno: Seqno,
    pin: Arc<dyn Any + Send + Sync>,
}

impl Snapshot {
    /// A snapshot of the writes up to `seqno`. `pin` releases it when the last clone is dropped.
    pub fn new(seqno: Seqno, pin: Arc<dyn Any + Send + Sync>) -> Self {
        Snapshot { seqno, pin }
    }

    /// For an engine: refuses a snapshot unless `is_own` says of its pin that this open store has taken it.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check_own<T: Any>(&self, is_own: impl FnOnce(&T) -> bool) -> Result<()> {
        if self.pin.downcast_ref().is_some_and(is_own) {
            return Ok(());
        }
        Err(Error::invalid("the snapshot is of another store, or was taken before this one was opened"))
    }

    /// The last write it sees.
    pub fn seqno(&self) -> Seqno {
        self.seqno
    }
}

/// Entries of a range in key order, both ways, as one snapshot sees them.
///
/// A cursor stands between two entries of its range. `next` moves over the entry above and gives it,
/// `prev` moves over the entry below and gives it, so `prev` after `next` gives the same entry again. At
/// an end it stays there: after `next` gave `None`, `prev` gives the last entry. A new cursor is before
/// the first entry for `next`, and after the last for `prev`.
///
/// Writes after it was opened do not change what it gives. After an error it stays where it is, and the
/// same call gives the error again: damage is never skipped.
pub trait Cursor: Send {
    /// The next entry in key order, or `None` at the end of the range.
    fn next(&mut self) -> Result<Option<(Vec<u8>, Value)>>;

    /// The previous entry in key order, or `None` at the start of the range.
    fn prev(&mut self) -> Result<Option<(Vec<u8>, Value)>>;

    /// Moves to just before the first entry of the range whose key is at least `key` (so `next` gives it,
    /// and `prev` the one below it). Like a bound, `key` may be any byte string.
    fn seek(&mut self, key: &[u8]);

    /// Moves to before the first entry of the range.
    fn seek_to_first(&mut self);

    /// Moves to after the last entry of the range.
    fn seek_to_last(&mut self);
}

/// An ordered, durable map of byte strings to byte strings, spread over tiers.
///
/// Single operations are linearizable; a batch is one operation. Any thread may call any method.
/// All methods check their arguments before anything changes.
pub trait Engine: Send + Sync {
    /// The value of `key`, as of now.
    ///
    /// # Errors
    /// `Corrupt` where its stored bytes are damaged: never another value, never `None`.
    fn get(&self, key: &[u8]) -> Result<Option<Value>>;

    /// Whether `key` has a value now. Where an engine does not know better, it reads that.
    ///
    /// # Errors
    /// As [`Engine::get`], but that the bytes of a value are damaged shows only if they are read.
    fn contains(&self, key: &[u8]) -> Result<bool> {
        Ok(self.get(key)?.is_some())
    }

    /// The value of `key` as `snapshot` sees it.
    ///
    /// # Errors
    /// As [`Engine::get`]; `Invalid` for a snapshot that is not of this open store.
    fn get_at(&self, key: &[u8], snapshot: &Snapshot) -> Result<Option<Value>>;

    /// The values of `keys`, in their order, each as of some moment during the call; reads of flash
    /// overlap. A key that is refused or damaged fails by itself.
    fn multi_get(&self, keys: &[&[u8]]) -> Vec<Result<Option<Value>>>;

    /// Stores `value` under `key`, replacing any older value.
    ///
    /// # Errors
    /// `Invalid` for arguments over a limit; `NoSpace` if a tier is full; `Corrupt` where the index is damaged at the key; `Io` for the
    /// write that fails, and `Poisoned` after it.
    fn put(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()>;

    /// Removes `key`. Whether it was there is not said. Succeeds where a tier is full.
    ///
    /// # Errors
    /// `Invalid`; `NoSpace` where the log is full and its file system has no room for a checkpoint; `Corrupt`, `Io` and `Poisoned` as of
    /// [`Engine::put`].
    fn delete(&self, key: &[u8], durability: Durability) -> Result<()>;

    /// Applies all writes of `batch`, visible and durable at once. An empty batch changes nothing.
    ///
    /// # Errors
    /// As [`Engine::put`]. After `Invalid` and `NoSpace` nothing of the batch is applied; after `Io` and `Poisoned` all of it is or nothing,
    /// which is known when the store is opened again.
    fn write(&self, batch: &WriteBatch, durability: Durability) -> Result<()>;

    /// Removes every key of `range` that is there when the call starts: at once, or as one batch while they are at
    /// most 1,048,576 keys of 64 MiB in all, and otherwise as several in key order: a crash, or whoever reads in between,
    /// may then find the first ones gone and not the others. Returns how many there were.
    ///
    /// A key that another thread adds to the range during the call may stay. Succeeds on a full store, in smaller batches
    /// where there is no room to list all keys.
    ///
    /// # Errors
    /// As [`Engine::delete`].
    fn delete_range(&self, range: &KeyRange, durability: Durability) -> Result<u64>;

    /// A view of the store as of one moment during the call: it sees every write that had returned before.
    fn snapshot(&self) -> Result<Snapshot>;

    /// A cursor over `range`, as `snapshot` sees it, or as of one moment during this call.
    ///
    /// # Errors
    /// `Invalid` for a snapshot that is not of this open store.
    fn cursor(&self, range: KeyRange, snapshot: Option<&Snapshot>) -> Result<Box<dyn Cursor + '_>>;

    /// Makes all writes that have returned durable.
    fn sync(&self) -> Result<()>;

    /// Moves what is in the write buffer to flash, or to tables on a fast block device, and returns when it is there.
    fn flush(&self) -> Result<()>;

    /// Rewrites values until little garbage is left on flash, and gives the space that is free then back to the file system.
    fn compact(&self) -> Result<()>;

    /// Reads and checks everything that is stored, while the store is in use.
    ///
    /// # Errors
    /// Only where the check itself cannot run, as where the store is read-only since a write failed; damage is in the report, and so
    /// is what the media do not give back.
    fn verify(&self) -> Result<VerifyReport>;

    /// What the store holds, where, and what it has done since it was opened.
    fn stats(&self) -> Stats;

    /// Finishes background work, makes everything durable and marks the store as closed, so that the
    /// next open is quick. Later calls of other methods fail (all but [`Engine::stats`], which cannot); a
    /// second close waits for the first and gets its result. Dropping an engine without it is allowed, and loses nothing that is durable.
    fn close(&self) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_what_their_bounds_say() {
        assert!(KeyRange::all().contains(b""));
        let range = KeyRange::half_open("b", "d");
        assert!(
            !range.contains(b"a") && range.contains(b"b") && range.contains(b"cz") && !range.contains(b"d")
        );
        let prefix = KeyRange::prefix(b"a\xff");
        assert!(prefix.contains(b"a\xff\xff") && !prefix.contains(b"b") && !prefix.contains(b"a\xfe"));
        assert_eq!(KeyRange::prefix(b"\xff\xff").end, Bound::Unbounded);
        assert!(!KeyRange::half_open("d", "b").contains(b"c"));
        assert!(KeyRange::one("b").contains(b"b") && !KeyRange::one("b").contains(b"b\0"));
        assert_eq!((KeyRange::one("b").only_key(), range.only_key()), (Some(&b"b"[..]), None));
    }

    #[test]
    fn a_range_covers_what_has_no_other_keys() {
        use Bound::{Excluded, Included, Unbounded};
        let starts = [Unbounded, Included("b"), Excluded("b"), Included("c")];
        let ends = [Unbounded, Included("y"), Excluded("y"), Included("x")];
        let range = |start: usize, end: usize| KeyRange {
            start: starts[start].map(|key| key.into()),
            end: ends[end].map(|key| key.into()),
        };
        // From the widest on, each bound has all keys that the next one has, and more.
        for (own_start, own_end) in (0..16).map(|i| (i / 4, i % 4)) {
            for (start, end) in (0..16).map(|i| (i / 4, i % 4)) {
                let covers = range(own_start, own_end).covers(&range(start, end));
                assert_eq!(
                    covers,
                    own_start <= start && own_end <= end,
                    "{own_start}, {own_end}: {start}, {end}"
                );
            }
        }
    }

    #[test]
    fn ranges_say_in_words_which_keys_they_hold() {
        use Bound::{Excluded, Included, Unbounded};
        let words = |start: Bound<&str>, end: Bound<&str>| {
            let range = KeyRange { start: start.map(|key| key.into()), end: end.map(|key| key.into()) };
            range.in_words(|key| String::from_utf8_lossy(key).into_owned())
        };
        assert_eq!(words(Included("a"), Included("a")), "key a");
        assert_eq!(words(Included("a"), Included("b")), "keys a to b");
        assert_eq!(words(Included("a"), Excluded("b")), "keys a to before b");
        assert_eq!(words(Included("a"), Unbounded), "keys a and above");
        assert_eq!(words(Excluded("a"), Excluded("b")), "keys after a to before b");
        assert_eq!(words(Excluded("a"), Unbounded), "keys after a");
        assert_eq!(words(Unbounded, Included("b")), "keys up to b");
        assert_eq!(words(Unbounded, Excluded("b")), "keys before b");
        assert_eq!(words(Unbounded, Unbounded), "any key");
    }
}
