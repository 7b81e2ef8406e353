//! What can be saved of a store that does not open: every version that a live record on the fast tier or a block of a
//! table holds, found without what names it.

use crate::batch::decode_range;
use crate::config::Options;
use crate::flash::{Flash, TableFile, TableRecord};
use crate::heap::Heap;
use crate::layout::Layout;
use crate::record::Kind;
use crate::scan::find_classes;
use crate::slabs::{Commit, Mark, Slabs};
use std::collections::HashSet;
use tierdb_base::{Result, Seqno};
use tierdb_device::{Cause, Dir};
use tierdb_engine::{KeyRange, Media};
use tierdb_pmem::Pool;
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
    fn removes(&self, key: &[u8], seqno: Seqno) -> bool {
        self.removed.iter().any(|(range, by)| seqno < *by && range.contains(key))
    }
}

/// Gives every version that can be read to `found`, in no order; of a fast tier without a header, nothing. Flash is not changed; on
/// the fast tier, groups that were complete are installed, as an open does.
///
/// # Errors
/// Those of `found`, and `Io` if a directory cannot be listed; damage is counted.
pub fn salvage<P: Pool, D: Dir>(
    media: Media<P, D>,
    found: &mut dyn FnMut(Salvaged) -> Result<()>,
) -> Result<SalvageReport> {
    let mut report = SalvageReport::default();
    let known = match Layout::open(&*media.pool, media.seed) {
        Ok(layout) => {
            let (slabs, unknown) = Slabs::open(media.pool.clone(), media.seed, &layout);
            let heap = Heap::new(media.pool.clone(), media.seed, slabs);
            fast_tier(&heap, &unknown, found, &mut report)?
        }
        Err(_) => Known::default(),
    };
    let options = Options::for_pool(0, media.pool.len());
    let flash = Flash::new(media.flash, media.seed, &options, media.latch);
    let mut files: Vec<TableFile> = flash.files()?.into_iter().collect();
    files.sort_unstable_by_key(|file| (file.number, file.dir));
    files.retain(|file| known.live.as_ref().is_none_or(|live| live.contains(file)));
    for file in files {
        let Ok(mut entries) = flash.dirs[file.dir as usize].tables.salvage(file.number, Cause::Verify) else {
            report.unreadable += 1;
            continue;
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

/// The live records. Groups that were complete and not installed are installed first, as an open does.
fn fast_tier<P: Pool>(
    heap: &Heap<P>,
    unknown: &[u32],
    found: &mut dyn FnMut(Salvaged) -> Result<()>,
    report: &mut SalvageReport,
) -> Result<Known> {
    let mut known = Known { removed: Vec::new(), live: Some(HashSet::new()) };
    let mut all = heap.replay_groups().is_ok();
    for slab in unknown {
        if find_classes(heap, &[*slab]).is_err() {
            report.damaged += 1;
            all = false;
        }
    }
    let mut versions = Vec::new();
    for (at, commit) in (0..heap.slabs.count()).flat_map(|slab| heap.slabs.words(slab)) {
        let read = heap.read(at);
        let (head, value) = match (commit, read) {
            (Commit::Live(mark), Ok((head, value))) if mark == Mark::new(&head.key, head.seqno) => {
                (head, value)
            }
            // A part of a value has no head.
            (Commit::Damaged, Err(_)) => continue,
            _ => {
                report.damaged += 1;
                all = false;
                continue;
            }
        };
        report.records += 1;
        match head.kind {
            Kind::Value => versions.push((head.key, Some(value), head.seqno)),
            Kind::Tombstone => versions.push((head.key, None, head.seqno)),
            Kind::RangeTombstone => {
                known.removed.extend(decode_range(&value).map(|range| (range, head.seqno)));
            }
            Kind::Table => {
                if let (Some((record, _)), Some(live)) = (TableRecord::decode(&value), &mut known.live) {
                    live.insert(record.file);
                }
            }
            Kind::Redo | Kind::Lost => all = false,
        }
    }
    if !all {
        // A record that cannot be read may be that of a table.
        known.live = None;
    }
    for (key, value, seqno) in versions {
        if !known.removes(&key, seqno) {
            found(Salvaged { key, value, seqno, sure: true })?;
        }
    }
    Ok(known)
}
