//! The directory that tables are in, and what all of them share.

use crate::filter::Filter;
use crate::footer::{Footer, Tail};
use crate::id::{TableId, file_name, file_number};
use crate::index::Index;
use crate::table::Table;
use crate::writer::{Writer, WriterOptions};
use std::sync::{Arc, Mutex, PoisonError};
use tierdb_base::{Error, Location, Result, TierRole};
use tierdb_device::{AlignedBuf, BLOCK, BlockFile, Cause, Dir, Meter, Metered, OpenMode, Pace};

/// The tables of a directory. Cheap to clone.
#[derive(Clone)]
pub struct TableDir<D: Dir> {
    dir: D,
    store: u64,
    meter: Meter,
    pace: Option<Pace>,
    /// What a sync has failed with: a system may tell of names that it has lost only once, to whichever sync comes first. So they take turns,
    /// and all later ones are told the same.
    failed_sync: Arc<Mutex<Option<Error>>>,
}

/// Footer, index and filter of a table, as they may be kept on a faster tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The footer, all of it.
    pub footer: Vec<u8>,
    /// The index.
    pub index: Vec<u8>,
    /// The filter; empty if the table has none.
    pub filter: Vec<u8>,
}

impl<D: Dir> TableDir<D> {
    /// The tables in `dir` of the store with checksum seed `store`. Their I/O is counted in `meter` and paced
    /// together by `pace`.
    pub fn new(dir: D, store: u64, meter: Meter, pace: Option<Pace>) -> Self {
        TableDir { dir, store, meter, pace, failed_sync: Arc::default() }
    }

    /// The directory itself.
    pub fn dir(&self) -> &D {
        &self.dir
    }

    /// What its I/O is counted in.
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// The id of table `number`.
    pub fn id(&self, number: u64) -> TableId {
        TableId { store: self.store, number }
    }

    pub(crate) fn file(&self, number: u64, mode: OpenMode) -> Result<Metered<D::File>> {
        let file = self.dir.open(&file_name(number), mode)?;
        Ok(Metered::paced(file, self.meter.clone(), self.pace.clone()))
    }

    /// Starts table `number`, which must never have been used, also not for a table that was removed.
    ///
    /// # Errors
    /// `Io` if there is a file of its name, or it cannot be made.
    pub fn create(&self, number: u64, cause: Cause, options: &WriterOptions) -> Result<Writer<D>> {
        Writer::create(self, number, cause, options)
    }

    /// Numbers of the tables that have a file, whole or not, in ascending order.
    pub fn list(&self) -> Result<Vec<u64>> {
        Ok(self.dir.list()?.iter().filter_map(|name| file_number(name)).collect())
    }

    /// Removes the file of table `number`. Durable after the directory's sync. Readers that have it open read on
    /// where the system keeps open files.
    pub fn remove(&self, number: u64) -> Result<()> {
        self.dir.remove(&file_name(number))
    }

    /// Makes names and removals durable.
    ///
    /// # Errors
    /// `Io`: which names last is not known then, and every later sync fails as this one did.
    #[track_caller]
    pub fn sync(&self) -> Result<()> {
        let mut failed = self.failed_sync.lock().unwrap_or_else(PoisonError::into_inner);
        match &*failed {
            Some(error) => Err(error.clone()),
            None => self.dir.sync().inspect_err(|error| *failed = Some(error.clone())),
        }
    }

    /// Opens table `number`: reads footer, index and filter, two reads where keys are not very long.
    ///
    /// A damaged filter is left out, and named by [`Table::filter_damage`]: reads are right without it.
    ///
    /// # Errors
    /// `Io`; `NewerFormat`; `ForeignTier` for another table's file; `Corrupt` if footer or index are damaged, or
    /// the file is cut: see [`Parts`] and [`crate::salvage`] for what can be done.
    pub fn open(&self, number: u64, cause: Cause) -> Result<Table<D::File>> {
        let (file, footer) = self.read_footer(number, cause)?;
        let id = self.id(number);
        let parts_len = footer.index_len + footer.filter_len;
        let mut buf = AlignedBuf::zeroed(parts_len as usize)?;
        file.read(footer.blocks_len, &mut buf, cause)?;
        let (index, filter) = buf[..parts_len as usize].split_at(footer.index_len as usize);
        Table::new(file, id, footer, index, filter)
    }

    /// Opens table `number` with `parts` in place of those in the file, of which only the length is looked at.
    ///
    /// # Errors
    /// As [`TableDir::open`], for damage of `parts`.
    pub fn open_with(&self, number: u64, parts: &Parts) -> Result<Table<D::File>> {
        let file = self.file(number, OpenMode::Existing)?;
        let id = self.id(number);
        let place = Location::new(file.file().name(), 0);
        let footer = Footer::decode(&parts.footer, &id, &place)?;
        self.check_len(&footer, file.file().len()?, &place.file)?;
        Table::new(file, id, footer, &parts.index, &parts.filter)
    }

    fn read_footer(&self, number: u64, cause: Cause) -> Result<(Metered<D::File>, Footer)> {
        let file = self.file(number, OpenMode::Existing)?;
        let (name, len) = (file.file().name(), file.file().len()?);
        let at = |at| Location::new(name.clone(), at);
        if len < BLOCK || !len.is_multiple_of(BLOCK) {
            let what = format!("a table of {len} bytes");
            return Err(Error::corrupt(TierRole::Flash, what, at(0)));
        }
        let mut page = AlignedBuf::zeroed(BLOCK as usize)?;
        file.read(len - BLOCK, &mut page, cause)?;
        let tail = Tail::decode(&page, len, &at(len - BLOCK))?;
        if tail.footer_len > BLOCK as usize {
            page = AlignedBuf::zeroed(tail.footer_len)?;
            file.read(len - tail.footer_len as u64, &mut page, cause)?;
        }
        let footer = Footer::decode(&page, &self.id(number), &at(len - tail.footer_len as u64))?;
        self.check_len(&footer, len, &name)?;
        Ok((file, footer))
    }

    fn check_len(&self, footer: &Footer, len: u64, name: &Arc<str>) -> Result<()> {
        if footer.file_len == len {
            return Ok(());
        }
        let what = format!("a table of {} bytes has {len}", footer.file_len);
        Err(Error::corrupt(TierRole::Flash, what, Location::new(name.clone(), len)))
    }
}

/// Decodes index and filter of the table with this `footer`; a damaged filter is an error beside.
pub(crate) fn decode_parts(
    id: &TableId,
    footer: &Footer,
    name: &Arc<str>,
    index: &[u8],
    filter: &[u8],
) -> Result<(Index, Option<Filter>, Option<Error>)> {
    let corrupt = |what, at| Error::corrupt(TierRole::Flash, what, Location::new(name.clone(), at));
    let index = Index::decode(index, id).map_err(|what| corrupt(what, footer.blocks_len))?;
    let end = index.blocks_end();
    let agrees = index.blocks() == footer.blocks as usize && end.next_multiple_of(BLOCK) == footer.blocks_len;
    if !agrees || index.separator(0) != footer.smallest || index.largest() != footer.largest {
        return Err(corrupt("the index is not the one of its footer", footer.blocks_len));
    }
    if footer.filter_len == 0 {
        return Ok((index, None, None));
    }
    Ok(match Filter::decode(filter, id) {
        Ok(filter) => (index, Some(filter), None),
        Err(what) => (index, None, Some(corrupt(what, footer.blocks_len + footer.index_len))),
    })
}
