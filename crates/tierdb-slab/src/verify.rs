//! A check of everything that is stored, while the store is in use.

use crate::core::Core;
use crate::heap::Record;
use crate::levels::{Level, Levels};
use crate::partition::Entry;
use std::ops::Bound;
use tierdb_base::{Error, Location, Result, TierRole};
use tierdb_device::{Cause, Dir};
use tierdb_engine::{Damage, KeyRange, VerifyReport};
use tierdb_pmem::Pool;
use tierdb_table::{Direction, ReadAhead, Source};

/// Keys of a partition that are checked under its lock at once.
const AT_ONCE: usize = 64;

fn damage(error: &Error, keys: Option<KeyRange>) -> Damage {
    let place = match error {
        Error::Corrupt { place, .. } | Error::Io { place, .. } => Some(place.clone()),
        _ => None,
    };
    Damage { what: error.to_string(), place, keys }
}

/// The first key of which a version lies below an older one: deeper levels have older versions. What cannot be read is reported
/// elsewhere.
fn check_order<D: Dir>(levels: &Levels<D>) -> Option<Damage> {
    let used: Vec<Level> =
        levels.all().filter(|(_, set)| !set.tables().is_empty()).map(|(level, _)| level).collect();
    if used.len() < 2 {
        return None;
    }
    let ahead = ReadAhead { first: 256 << 10, most: 256 << 10 };
    let mut versions = levels.entries(&KeyRange::all(), Direction::Forward, ahead, Cause::Verify);
    let (mut key, mut deepest) = (Vec::new(), 0);
    while versions.advance().is_ok() {
        // Of a key, the newest first; the sources are the levels that are used.
        let (entry, level) = (versions.entry()?, versions.current()?);
        if entry.key != key {
            key.clear();
            key.extend_from_slice(entry.key);
            deepest = level;
        }
        if level < deepest {
            let what = "a version of a key lies in a deeper level than an older one";
            let at = levels.level(used[deepest]).find(&key).map(|table| table.file().number);
            let place = Location::new(at.map_or_else(String::new, tierdb_table::file_name), 0);
            let error = Error::corrupt(TierRole::Flash, what, place);
            return Some(damage(&error.with_key(&key), Some(KeyRange::one(key))));
        }
        deepest = level;
    }
    None
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// Checks what was `read` as the record of `entry`, and returns how many bytes that were.
    fn check_record(&self, key: &[u8], entry: Entry, read: Result<Record>) -> Result<u64> {
        let (head, value) = read.map_err(|error| error.with_key(key))?;
        if !entry.is_in(&head, key) || self.heap.mark(entry.at()).is_none() {
            return Err(self.heap.damaged(entry.at()).with_key(key));
        }
        Ok((head.key.len() + value.len()) as u64)
    }

    /// Reads every record on the fast tier and every table.
    ///
    /// # Errors
    /// That a table may not be opened, which says nothing of it.
    pub fn verify(&self) -> Result<VerifyReport> {
        let _parts = self.work.dividing.read();
        let mut report = VerifyReport::default();
        for slot in self.lost.slots() {
            report.damage.push(damage(&self.heap.damaged(slot.at), Some(KeyRange::all())));
        }
        let parts = self.router.read().parts.clone();
        for part in parts {
            let mut from: Vec<u8> = Vec::new();
            loop {
                let state = part.read();
                let mut last = None;
                let next = state.index.range((Bound::Included(&*from), Bound::Unbounded));
                let count = self.heap.first_of(next.clone().map(|(_, entry)| entry), AT_ONCE);
                let next: Vec<_> = next.take(count).collect();
                let places: Vec<u64> = next.iter().map(|(_, entry)| entry.at()).collect();
                for ((key, entry), read) in next.into_iter().zip(self.heap.read_many(&places)) {
                    match self.check_record(key, entry, read) {
                        Ok(len) => {
                            report.keys_checked += 1;
                            report.bytes_checked += len;
                        }
                        Err(error) => report.damage.push(damage(&error, Some(KeyRange::one(key)))),
                    }
                    last = Some(key.to_vec());
                }
                drop(state);
                let Some(last) = last else { break };
                from = last;
                from.push(0);
            }
            let tables = part.read().tables.clone();
            report.damage.extend(check_order(&tables));
            for table in tables.tables() {
                let whole = match table.table(Cause::Verify) {
                    Ok(whole) => whole,
                    Err(error) if error.is_of_the_process() => return Err(error),
                    Err(error) => {
                        let keys = KeyRange {
                            start: Bound::Included(table.smallest().to_vec()),
                            end: Bound::Included(table.largest().to_vec()),
                        };
                        report.damage.push(damage(&error, Some(keys)));
                        continue;
                    }
                };
                if let Some(error) = table.damage_on_fast_tier(&whole) {
                    report.damage.push(damage(&error, None));
                }
                let checked = whole.verify(Cause::Verify)?;
                report.keys_checked += checked.keys;
                report.bytes_checked += checked.bytes;
                for found in checked.damage {
                    let keys = found.keys.map(|(start, end)| KeyRange { start, end });
                    report.damage.push(Damage { what: found.what, place: Some(found.place), keys });
                }
            }
        }
        Ok(report)
    }
}
