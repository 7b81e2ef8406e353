//! Which table it is: what seeds its checksums, and its name.

use tierdb_base::checksum;

/// A table of a store: the store's checksum seed, and the number of the file.
///
/// Every checksum in a table is seeded with both, and that of a block also with its offset: bytes of another
/// store, of another table, or from another place fail although they are intact. So a number is never
/// used twice in the life of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableId {
    /// Made from the store's identity.
    pub store: u64,
    /// Number of the file.
    pub number: u64,
}

impl TableId {
    /// Seeds what stands at byte `at` of the file.
    pub(crate) fn seed_at(&self, at: u64) -> u64 {
        self.seed_of(b"block") ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Seeds the part `part`, which may be kept in other places than the file.
    pub(crate) fn seed_of(&self, part: &[u8]) -> u64 {
        checksum(checksum(self.store, &self.number.to_le_bytes()), part)
    }

    /// The word in the footer that tells a table of this id from all others.
    pub(crate) fn word(&self) -> u64 {
        self.seed_of(b"table")
    }
}

const SUFFIX: &str = ".table";

/// Name of the file of table `number`; names sort as numbers do.
pub fn file_name(number: u64) -> String {
    format!("{number:020}{SUFFIX}")
}

/// The number of the table whose file is called `name`, if it is one.
pub fn file_number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let number = digits.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_others_are_not_tables() {
        for number in [0, 7, u64::MAX] {
            assert_eq!(file_number(&file_name(number)), Some(number));
        }
        for name in ["", ".table", "7.table", "+0000000000000000007.table", "00000000000000000007.tabl"] {
            assert_eq!(file_number(name), None, "{name}");
        }
    }

    #[test]
    fn every_place_has_its_seed() {
        let id = TableId { store: 1, number: 2 };
        assert_ne!(id.seed_at(0), id.seed_at(64));
        assert_ne!(id.seed_of(b"index"), id.seed_of(b"filter"));
        assert_ne!(id.seed_at(0), TableId { number: 3, ..id }.seed_at(0));
        assert_ne!(id.word(), TableId { store: 2, ..id }.word());
    }
}
