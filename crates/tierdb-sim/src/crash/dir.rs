//! What a crash may leave of a directory and its files.

use super::{Choice, CrashModel, Fate, density, mix};
use crate::dir::{DirState, FileId, NameOp, Names};
use crate::file::{Certainty, Change, FileOp, FileState, SECTOR, SECTORS, Written};
use crate::space::{PAGE, Page, Space};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A directory at a crash point.
pub(crate) struct DirPoint {
    name: Arc<str>,
    capacity: Option<u64>,
    durable: Arc<Names>,
    ops: Vec<NameOp>,
    files: BTreeMap<FileId, FilePoint>,
}

struct FilePoint {
    durable_len: u64,
    durable: Space,
    ops: Vec<FileOp>,
}

/// Numbers of the uncertain changes, newest first, and which sectors of the writes change anything.
pub(crate) struct DirUnits {
    names: Vec<Option<usize>>,
    files: BTreeMap<FileId, Vec<FileUnit>>,
    count: usize,
}

struct FileUnit {
    number: Option<usize>,
    /// For every sector of a write, whether it differs from what is durable.
    differs: Vec<bool>,
}

impl DirUnits {
    pub fn len(&self) -> usize {
        self.count
    }
}

/// Where a sector's content comes from: what is durable, garbage, or the change of that number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Durable,
    Garbage,
    Change(u32),
}

struct FileOutcome {
    len: u64,
    /// Durable pages from this one on were cut off.
    kept: usize,
    pages: BTreeMap<usize, [Source; SECTORS]>,
}

pub(crate) struct DirOutcome {
    names: Names,
    files: BTreeMap<FileId, FileOutcome>,
}

impl DirPoint {
    pub fn new(dir: &DirState) -> Self {
        let point = |file: &FileState| FilePoint {
            durable_len: file.durable_len,
            durable: file.durable.clone(),
            ops: file.ops.clone(),
        };
        DirPoint {
            name: dir.name.clone(),
            capacity: dir.capacity,
            durable: dir.durable.clone(),
            ops: dir.ops.clone(),
            files: dir.files.iter().map(|(id, file)| (*id, point(file))).collect(),
        }
    }

    pub fn is_settled(&self) -> bool {
        self.ops.is_empty() && self.files.values().all(|file| file.ops.is_empty())
    }

    pub fn units(&self) -> DirUnits {
        let uncertain = |certainty| certainty != Certainty::Certain;
        // Age, then the change: a name's, or a file's.
        let mut order: Vec<(usize, Option<FileId>, usize)> = Vec::new();
        let names = self.ops.iter().enumerate().filter(|(_, op)| uncertain(op.certainty));
        order.extend(names.map(|(i, _)| (self.ops.len() - i, None, i)));
        for (id, file) in &self.files {
            let ops = file.ops.iter().enumerate().filter(|(_, op)| uncertain(op.certainty));
            order.extend(ops.map(|(i, _)| (file.ops.len() - i, Some(*id), i)));
        }
        order.sort_unstable();
        let mut units = DirUnits {
            names: vec![None; self.ops.len()],
            files: self.files.iter().map(|(id, file)| (*id, file.units())).collect(),
            count: order.len(),
        };
        for (number, (_, file, i)) in order.into_iter().enumerate() {
            match file.and_then(|id| units.files.get_mut(&id)) {
                None => units.names[i] = Some(number),
                Some(file) => file[i].number = Some(number),
            }
        }
        units
    }

    pub fn outcome(
        &self,
        units: &DirUnits,
        model: &CrashModel,
        choice: Choice,
        rng: &mut fastrand::Rng,
    ) -> DirOutcome {
        let density = density(rng);
        let mut fate = |unit: Option<usize>, rng: &mut fastrand::Rng| match unit {
            None => Fate::Kept,
            Some(unit) => choice.fate(unit, density, rng),
        };
        let mut names = Names::clone(&self.durable);
        for (op, unit) in self.ops.iter().zip(&units.names) {
            // A change of a name is there or not, never in part.
            let kept = match fate(*unit, rng) {
                Fate::Kept => true,
                Fate::Lost => false,
                Fate::Part => rng.bool(),
            };
            if kept {
                op.change.apply(&mut names);
            }
        }
        let mut files = BTreeMap::new();
        for (id, file) in &self.files {
            if names.values().any(|named| named == id) {
                files.insert(*id, file.outcome(&units.files[id], model, &mut fate, rng));
            }
        }
        DirOutcome { names, files }
    }

    pub fn fingerprint(&self, units: &DirUnits, outcome: &DirOutcome, seed: u64) -> u64 {
        let mut print = 0;
        for (name, id) in &outcome.names {
            print = mix(print, tierdb_base::checksum(u64::from(*id), name.as_bytes()));
        }
        for (id, file) in &outcome.files {
            print = mix(print, self.files[id].fingerprint(&units.files[id], file, seed));
        }
        print
    }

    pub fn image(&self, outcome: DirOutcome, seed: u64) -> DirState {
        let DirOutcome { names, mut files } = outcome;
        let files = names.into_iter().filter_map(|(name, id)| {
            let (file, outcome) = (self.files.get(&id)?, files.remove(&id)?);
            Some((name, file.image(&outcome, seed)))
        });
        DirState::with_files(self.name.clone(), self.capacity, files.collect())
    }
}

impl FilePoint {
    fn units(&self) -> Vec<FileUnit> {
        let differs = |op: &FileOp| match &op.change {
            Change::SetLen(_) => Vec::new(),
            Change::Write(written) => self.differs(written),
        };
        self.ops.iter().map(|op| FileUnit { number: None, differs: differs(op) }).collect()
    }

    fn differs(&self, written: &Written) -> Vec<bool> {
        let zeros = [0; PAGE];
        let pages = written.pages.iter().enumerate();
        pages
            .flat_map(|(i, page)| {
                let durable: &Page = self.durable.page(written.first + i).map_or(&zeros, |page| page);
                let sectors = page.chunks_exact(SECTOR).zip(durable.chunks_exact(SECTOR));
                sectors.map(|(new, old)| new != old).collect::<Vec<_>>()
            })
            .collect()
    }

    fn outcome(
        &self,
        units: &[FileUnit],
        model: &CrashModel,
        fate: &mut impl FnMut(Option<usize>, &mut fastrand::Rng) -> Fate,
        rng: &mut fastrand::Rng,
    ) -> FileOutcome {
        let mut outcome = FileOutcome { len: self.durable_len, kept: usize::MAX, pages: BTreeMap::new() };
        for (number, (op, unit)) in (0..).zip(self.ops.iter().zip(units)) {
            match (&op.change, fate(unit.number, rng)) {
                (_, Fate::Lost) => {}
                (Change::SetLen(len), Fate::Kept) => outcome.set_len(*len),
                // A file grows piece by piece.
                (Change::SetLen(len), Fate::Part) if *len > outcome.len => {
                    let pages = (len - outcome.len).div_ceil(PAGE as u64);
                    outcome.set_len((outcome.len + rng.u64(0..=pages) * PAGE as u64).min(*len));
                }
                (Change::SetLen(len), Fate::Part) => {
                    if rng.bool() {
                        outcome.set_len(*len);
                    }
                }
                (Change::Write(written), Fate::Kept) => {
                    let pages = written.first..written.first + written.pages.len();
                    outcome.pages.extend(pages.map(|page| (page, [Source::Change(number); SECTORS])));
                }
                (Change::Write(written), Fate::Part) => outcome.tear(written, number, model, rng),
            }
        }
        let end = outcome.len as usize / PAGE;
        outcome.pages.retain(|page, _| *page < end);
        outcome
    }

    fn fingerprint(&self, units: &[FileUnit], outcome: &FileOutcome, seed: u64) -> u64 {
        let mut print = mix(outcome.len, outcome.kept as u64);
        for (page, sources) in &outcome.pages {
            for (sector, source) in sources.iter().enumerate() {
                let sum = match source {
                    Source::Durable => continue,
                    Source::Garbage => seed,
                    Source::Change(number) => {
                        let Change::Write(written) = &self.ops[*number as usize].change else { continue };
                        let i = (page - written.first) * SECTORS + sector;
                        if *page < outcome.kept && !units[*number as usize].differs[i] {
                            continue;
                        }
                        written.sums()[i]
                    }
                };
                print = mix(print, sum ^ ((page * SECTORS + sector) as u64).rotate_left(40));
            }
        }
        print
    }

    fn image(&self, outcome: &FileOutcome, seed: u64) -> FileState {
        let mut content = self.durable.clone();
        content.truncate(outcome.kept.min(outcome.len as usize / PAGE));
        let mut rng = fastrand::Rng::with_seed(seed);
        for (number, sources) in &outcome.pages {
            if sources.iter().all(|source| *source == sources[0])
                && let Source::Change(change) = sources[0]
            {
                if let Some(page) = self.page_of(change, *number) {
                    content.set_page(*number, page.clone());
                }
                continue;
            }
            let page = content.page_mut(*number);
            for (sector, source) in sources.iter().enumerate() {
                let range = sector * SECTOR..(sector + 1) * SECTOR;
                match source {
                    Source::Durable => {}
                    Source::Garbage => rng.fill(&mut page[range]),
                    Source::Change(change) => {
                        if let Some(new) = self.page_of(*change, *number) {
                            page[range.clone()].copy_from_slice(&new[range]);
                        }
                    }
                }
            }
        }
        FileState::with_content(outcome.len, content)
    }

    fn page_of(&self, change: u32, page: usize) -> Option<&Arc<Page>> {
        match &self.ops[change as usize].change {
            Change::Write(written) => written.pages.get(page.checked_sub(written.first)?),
            Change::SetLen(_) => None,
        }
    }
}

impl FileOutcome {
    fn set_len(&mut self, len: u64) {
        if len < self.len {
            let pages = len as usize / PAGE;
            self.kept = self.kept.min(pages);
            self.pages.retain(|page, _| *page < pages);
        }
        self.len = len;
    }

    /// Some sectors of a write: the first ones, any, all but one, or with garbage among them.
    fn tear(&mut self, written: &Written, number: u32, model: &CrashModel, rng: &mut fastrand::Rng) {
        let unit = (model.sector / SECTOR).clamp(1, SECTORS);
        let units = written.pages.len() * SECTORS / unit;
        let style = rng.u8(0..if model.garbage { 4 } else { 3 });
        let one = rng.usize(0..units);
        for i in 0..units {
            let source = match style {
                0 if i < one => Source::Change(number),
                1 if rng.bool() => Source::Change(number),
                2 if i != one => Source::Change(number),
                3 => match rng.u8(0..4) {
                    0 => Source::Garbage,
                    1 => continue,
                    _ => Source::Change(number),
                },
                _ => continue,
            };
            let first = i * unit;
            let page =
                self.pages.entry(written.first + first / SECTORS).or_insert([Source::Durable; SECTORS]);
            page[first % SECTORS..first % SECTORS + unit].fill(source);
        }
    }
}
