//! Stores on disk.

use crate::exit::Failure;
use crate::store::{Copied, OpenHow, Saved, Show, Stores, Work};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tierdb::{Config, Db};
use tierdb_base::Error;
use tierdb_engine::VerifyReport;

/// Stores where the paths on the command line say they are.
pub struct Disk;

impl Stores for Disk {
    fn with(&self, target: &Path, how: OpenHow, work: &mut Work<'_>) -> Result<(), Failure> {
        with_db(target, how, |db| work(db.engine()))
    }

    fn stat(&self, target: &Path, show: &mut Show<'_>) -> Result<(), Failure> {
        with_db(target, OpenHow::Existing, |db| show(&db.stats(), db.history()))
    }

    fn flash_bytes(&self, target: &Path) -> Result<u64, Failure> {
        const BLOCK: u64 = 512;
        let in_dir = |dir: &Path| -> std::io::Result<u64> {
            let mut bytes = 0;
            for file in std::fs::read_dir(dir)? {
                bytes += file?.metadata()?.blocks() * BLOCK;
            }
            Ok(bytes)
        };
        let mut bytes = 0;
        for tier in &Config::at(target)?.flash {
            bytes += match in_dir(&tier.path) {
                // Whoever opens the store says so better.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => 0,
                found => {
                    found.map_err(|error| Error::io("list", tier.path.display().to_string(), 0, error))?
                }
            };
        }
        Ok(bytes)
    }

    fn verify(&self, target: &Path) -> Result<VerifyReport, Failure> {
        Ok(tierdb::verify_offline(&Config::at(target)?)?)
    }

    fn repair(&self, source: &Path, target: &Path) -> Result<Saved, Failure> {
        let report = tierdb::repair(&Config::at(source)?, &Config::at(target)?)?;
        Ok(Saved {
            keys: report.keys,
            uncertain: report.uncertain,
            index_whole: report.index_whole,
            damage: report.damage,
            notes: report.notes,
            list: tierdb::REPORT_NAME,
        })
    }

    fn checkpoint(&self, target: &Path, dir: &Path) -> Result<Copied, Failure> {
        let copied = with_db(target, OpenHow::Existing, |db| Ok(db.checkpoint(dir)?))?;
        Ok(Copied { entries: copied.entries, bytes: copied.bytes })
    }

    fn restore(&self, dir: &Path, target: &Path) -> Result<Copied, Failure> {
        let copied = tierdb::restore(dir, &Config::at(target)?)?;
        Ok(Copied { entries: copied.entries, bytes: copied.bytes })
    }
}

/// Opens the store at `target`, does `work` with it, which is durable when it is done, and closes it, whatever came of the work.
fn with_db<T>(
    target: &Path,
    how: OpenHow,
    work: impl FnOnce(&Db) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let db = open(target, how)?;
    let done = work(&db);
    let closed = db.close();
    let made = done?;
    match closed {
        // The next open takes longer, and nothing else.
        Err(error) if error.kind() == tierdb_base::ErrorKind::NoSpace => Ok(made),
        closed => closed.map(|()| made).map_err(Failure::from),
    }
}

fn open(target: &Path, how: OpenHow) -> Result<Db, Failure> {
    let config = Config::at(target)?;
    Ok(match how {
        OpenHow::Existing => Db::open_existing_config(&config)?,
        OpenHow::Create => Db::open_config(&config)?,
    })
}
