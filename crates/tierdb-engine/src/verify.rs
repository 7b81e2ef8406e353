//! What a check of the whole store found.

use crate::engine::KeyRange;
use tierdb_base::Location;

/// One damaged place, or one that cannot be read, which costs its keys as much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What was found wrong.
    pub what: String,
    /// Where.
    pub place: Option<Location>,
    /// The keys that it may concern, where that is known. Some of them may be whole all the same.
    pub keys: Option<KeyRange>,
}

/// What a check of the whole store found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Keys whose index entry, pointer and record were read and agree.
    pub keys_checked: u64,
    /// Bytes of records read.
    pub bytes_checked: u64,
    /// What is damaged. Empty means the store is whole.
    pub damage: Vec<Damage>,
}

impl VerifyReport {
    /// Whether nothing is damaged.
    pub fn is_clean(&self) -> bool {
        self.damage.is_empty()
    }
}
