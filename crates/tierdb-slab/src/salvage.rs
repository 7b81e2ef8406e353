//! What can be saved of a store that does not open: every version that a live record on the fast tier or a block of a
//! table holds, found without what names it.

use crate::batch::decode_range;
use crate::config::Options;
use crate::core::STEP_BITS;
use crate::flash::{Flash, TableFile, TableRecord};
use crate::heap::Heap;
use crate::layout::{Layout, SEQNO_LIMIT};
use crate::lost::{Lost, LostSlot};
use crate::record::Kind;
use crate::scan::find_classes;
use crate::slabs::{Commit, Mark, Slabs};
use std::collections::HashSet;
use std::sync::atomic::AtomicU32;
use tierdb_base::{Result, Seqno, mutant};
use tierdb_device::{Cause, Dir};
use tierdb_engine::{KeyRange, Media};
use tierdb_pmem::{Pool, unseal};
use tierdb_table::Source;

/// A version that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Salvaged {
    /// The key.
    pub key: Vec<u8>,
    /// Its value; `None` if this version says that the key was removed.
    pub value: Option<Vec<u8>>,
    /// Order of its write: of the versions of a key the highest counts.
    pub seqno: Seqno,
    /// Whether it is known to be the key's last: it is live on the fast tier. One on flash may have been replaced or
    /// removed there, in what was lost.
    pub sure: bool,
}

/// What a salvage has looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// Whole live records on the fast tier.
    pub records: u64,
    /// Records and slabs of the fast tier that are damaged.
    pub damaged: u64,
    /// Tables that were looked at.
    pub tables: u64,
    /// Entries in them.
    pub entries: u64,
    /// Bytes of tables that are no whole block.
    pub lost_bytes: u64,
    /// Tables whose file cannot be opened.
    pub unreadable: u64,
}

/// What the fast tier knows of flash.
#[derive(Default)]
struct Known {
    /// Ranges that were removed by a write.
    removed: Vec<(KeyRange, Seqno)>,
    /// The live tables, if they are all known.
    live: Option<HashSet<TableFile>>,
}

impl Known {
    /// Whether a removed range takes the version of `key` that was written with `seqno`.
    #[track_caller]
    fn removes(&self, key: &[u8], seqno: Seqno) -> bool {
        self.removed.iter().any(|(range, by)| seqno < *by && range.contains(key)) && mutant::keep("tombstone")
    }
}

/// Gives every version that can be read to `found`, in no order; of a fast tier without a header, nothing. Flash is not changed; on
/// the fast tier, groups that were complete are installed, as an open does.
///
/// # Errors
/// Those of `found`, and `Io` if a directory cannot be listed, or this process may not open a table; damage is counted.
pub fn salvage<P: Pool, D: Dir>(
    media: Media<P, D>,
    found: &mut dyn FnMut(Salvaged) -> Result<()>,
) -> Result<SalvageReport> {
    let mut report = SalvageReport::default();
    let options = Options::for_pool(0, media.pool.len());
    let flash = Flash::new(media.flash, media.fast_dirs, media.seed, &options, media.latch);
    let mut files: Vec<TableFile> = flash.files()?.into_iter().collect();
    files.sort_unstable_by_key(|file| (file.number, file.dir));
    let known = match Layout::open(&*media.pool, media.seed) {
        Ok(layout) => {
            let (slabs, unknown) = Slabs::open(media.pool.clone(), media.seed, &layout);
            let heap = Heap::new(media.pool.clone(), media.seed, slabs);
            // One that is damaged says nothing of when the fast tier is of.
            let limit = unseal(&*media.pool, media.seed, SEQNO_LIMIT).map_or(Seqno::MAX, |n| n << STEP_BITS);
            let newest = files.last().map_or(0, |last| last.number);
            fast_tier(&heap, &unknown, (limit, newest), found, &mut report)?
        }
        Err(_) => Known::default(),
    };
    files.retain(|file| known.live.as_ref().is_none_or(|live| live.contains(file)));
    for file in files {
        let dir = flash.dir(file.dir);
        let mut entries = match dir.map(|dir| dir.tables.salvage(file.number, Cause::Verify)) {
            Some(Ok(entries)) => entries,
            Some(Err(error)) if error.is_of_the_process() => return Err(error),
            Some(Err(_)) | None => {
                report.unreadable += 1;
                continue;
            }
        };
        report.tables += 1;
        loop {
            entries.advance()?;
            let Some(entry) = entries.entry() else { break };
            report.entries += 1;
            if !known.removes(entry.key, entry.seqno) {
                let (key, value) = (entry.key.to_vec(), entry.value.map(<[u8]>::to_vec));
                found(Salvaged { key, value, seqno: entry.seqno, sure: false })?;
            }
        }
        report.lost_bytes += entries.lost().iter().map(|lost| lost.end - lost.start).sum::<u64>();
    }
    Ok(report)
}

/// The live records. Groups that were complete and not installed are installed first, as an open does. Where a table has a number above the
/// limit of seqnos, which is that of the newest, or a record has such a seqno, the fast tier is of an earlier moment, and nothing on it is sure.
fn fast_tier<P: Pool>(
    heap: &Heap<P>,
    unknown: &[u32],
    (limit, newest): (Seqno, u64),
    found: &mut dyn FnMut(Salvaged) -> Result<()>,
    report: &mut SalvageReport,
) -> Result<Known> {
    let mut known = Known { removed: Vec::new(), live: Some(HashSet::new()) };
    let mut all = heap.replay_groups().is_ok();
    let without_class = find_classes(heap, unknown).map_or(unknown.len(), |classes| classes.without.len());
    report.damaged += without_class as u64;
    all &= without_class == 0;
    let mut versions = Vec::new();
    // Damaged words without a head, and parts of values, which have none.
    let (mut headless, mut parts) = (Vec::new(), HashSet::new());
    // Live records that cannot be read: an older version is not sure to be the last one.
    let mut unread = Vec::new();
    let mends = AtomicU32::new(0);
    for (at, commit) in (0..heap.slabs.count()).flat_map(|slab| heap.slabs.words(slab)) {
        let mut read = heap.read(at);
        if let (Commit::Live(mark), Err(_)) = (commit, &read)
            && heap.head(at).is_err()
            && let Some((_, mended)) = heap.mend(&mends, at, mark)
        {
            heap.write_mended(&[mended]);
            read = heap.read(at);
        }
        let (head, value) = match (commit, read) {
            (Commit::Live(mark), Ok((head, value))) if mark == Mark::new(&head.key, head.seqno) => {
                (head, value)
            }
            // Its word may have said that it is free: another version may be newer.
            (Commit::Damaged, Ok((head, value))) if matches!(head.kind, Kind::Value | Kind::Tombstone) => {
                report.damaged += 1;
                let value = (head.kind == Kind::Value).then_some(value);
                versions.push(Salvaged { key: head.key, value, seqno: head.seqno, sure: false });
                continue;
            }
            (Commit::Damaged, Err(_)) => {
                headless.push(at);
                continue;
            }
            (commit, _) => {
                report.damaged += 1;
                all = false;
                if let Commit::Live(mark) = commit {
                    unread.push(LostSlot { at, mark, bound: Seqno::MAX });
                }
                continue;
            }
        };
        report.records += 1;
        parts.extend(head.parts);
        let (key, seqno) = (head.key, head.seqno);
        match head.kind {
            Kind::Value => versions.push(Salvaged { key, value: Some(value), seqno, sure: true }),
            Kind::Tombstone if mutant::keep("tombstone") => {
                versions.push(Salvaged { key, value: None, seqno, sure: true });
            }
            Kind::Tombstone => {}
            Kind::RangeTombstone => {
                known.removed.extend(decode_range(&value).map(|range| (range, seqno)));
            }
            Kind::Table => {
                if let (Some((record, _)), Some(live)) = (TableRecord::decode(&value), &mut known.live) {
                    live.insert(record.file);
                }
            }
            Kind::Redo | Kind::Lost => all = false,
        }
    }
    let lost = headless.iter().filter(|at| !parts.contains(at)).count() as u64;
    report.damaged += lost;
    let is_of_now = newest <= limit && versions.iter().all(|version| version.seqno <= limit);
    if !all || lost > 0 || !is_of_now {
        // A record that cannot be read may be that of a table.
        known.live = None;
    }
    let unread = Lost::new(unread);
    for version in versions {
        if !known.removes(&version.key, version.seqno) {
            let is_last = is_of_now && unread.hides(&version.key, Some(version.seqno)).is_none();
            found(Salvaged { sure: version.sure && is_last, ..version })?;
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{self, Store};
    use tierdb_engine::Engine;

    const POOL: u64 = 132 << 10;

    /// Whether `key` is among what is salvaged, surely, after a bit was flipped in each of the bytes that `damaged` tells from where the
    /// record and its word are.
    fn found(damaged: impl Fn(u64, u64) -> Vec<u64>) -> Option<bool> {
        let store = Store::new(POOL, rig::options(POOL));
        store.put(b"key", 20);
        store.put(b"other", 20);
        let record_at = store.part().read().index.get(&b"key"[..]).expect("on the fast tier").at();
        let word_at = store.core().heap.slabs.word_at(record_at).expect("it is in a slab");
        damaged(record_at, word_at).into_iter().for_each(|at| store.world.flip_bit("pool", at, 3));
        let Store { world, engine } = store;
        drop(engine);
        let mut versions = Vec::new();
        let report = salvage(rig::media(&world, 1 << 20), &mut |version| {
            versions.push(version);
            Ok(())
        });
        report.expect("no faults");
        let sure = |key: &[u8]| {
            let version = versions.iter().find(|version| version.key == key)?;
            assert_eq!(version.value.as_deref(), Some(&[7; 20][..]));
            Some(version.sure)
        };
        assert_eq!(sure(b"other"), Some(true));
        sure(b"key")
    }

    #[test]
    fn what_one_byte_of_damage_leaves_is_found() {
        assert_eq!(found(|_, _| vec![]), Some(true));
        assert_eq!(found(|record, _| vec![record + 3]), Some(true), "a head with one wrong byte");
        assert_eq!(found(|record, _| vec![record, record + 1]), None, "a head with two");
        assert_eq!(found(|_, word| vec![word]), Some(false), "its word");
    }

    /// A table of which neither head nor word can be read is looked through all the same, since it may have been live.
    #[test]
    fn a_table_whose_record_and_word_are_damaged_is_found() {
        let store = Store::new(POOL, rig::options(POOL));
        store.put(b"key", 20);
        store.engine.flush().expect("room on flash");
        let levels = store.part().read().tables.clone();
        let record_at = levels.tables().next().expect("a table").record_at();
        let word_at = store.core().heap.slabs.word_at(record_at).expect("it is in a slab");
        [record_at, word_at].into_iter().for_each(|at| store.world.flip_bit("pool", at, 3));
        let Store { world, engine } = store;
        drop(engine);
        let mut keys = Vec::new();
        let report = salvage(rig::media(&world, 1 << 20), &mut |version| {
            keys.push(version.key);
            Ok(())
        });
        assert_eq!((keys, report.expect("no faults").damaged), (vec![b"key".to_vec()], 1));
    }
}
