//! Entries, and their order.

use std::cmp::Ordering;
use tierdb_base::Seqno;

/// An entry as it is read or written: one version of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// The key, of 1 to 4,096 bytes.
    pub key: &'a [u8],
    /// When it was written.
    pub seqno: Seqno,
    /// The value; `None` is a tombstone: the key was deleted.
    pub value: Option<&'a [u8]>,
}

impl EntryRef<'_> {
    /// The order of entries in a table: by key, and of one key the newest first.
    pub fn order(&self, other: &EntryRef<'_>) -> Ordering {
        self.key.cmp(other.key).then(other.seqno.cmp(&self.seqno))
    }

    /// A copy that owns its bytes.
    pub fn to_owned(&self) -> Entry {
        Entry { key: self.key.to_vec(), seqno: self.seqno, value: self.value.map(<[u8]>::to_vec) }
    }
}

/// An entry that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key, of 1 to 4,096 bytes.
    pub key: Vec<u8>,
    /// When it was written.
    pub seqno: Seqno,
    /// The value; `None` is a tombstone.
    pub value: Option<Vec<u8>>,
}

impl Entry {
    /// A view of it.
    pub fn as_ref(&self) -> EntryRef<'_> {
        EntryRef { key: &self.key, seqno: self.seqno, value: self.value.as_deref() }
    }
}

/// What a block holds of a key, without the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version<'a> {
    /// When it was written.
    pub seqno: Seqno,
    /// The value; `None` is a tombstone.
    pub value: Option<&'a [u8]>,
}

impl Version<'_> {
    /// A copy that owns its bytes.
    pub fn to_found(&self) -> Found {
        Found { seqno: self.seqno, value: self.value.map(<[u8]>::to_vec) }
    }
}

/// What a lookup found of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// When it was written.
    pub seqno: Seqno,
    /// The value; `None` is a tombstone, which hides all older versions wherever they are.
    pub value: Option<Vec<u8>>,
}
