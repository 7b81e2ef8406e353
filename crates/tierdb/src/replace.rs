//! A small file that takes the place of another as a whole.

use tierdb_base::Result;
use tierdb_device::{BlockFile, Dir, OpenMode};

/// Puts a file into `dir` under `name`, in place of the one there, if there is one: `fill` writes it under `new_name`, it is synced, and
/// renamed. Durable on return; a crash leaves the old file, or none where there was none, or the new one.
///
/// # Errors
/// Those of `dir` and of `fill`. A file of `new_name` may be left, which the next one replaces.
#[track_caller]
pub(crate) fn replace<D: Dir>(
    dir: &D,
    name: &str,
    new_name: &str,
    fill: impl FnOnce(&D::File) -> Result<()>,
) -> Result<()> {
    if dir.list()?.iter().any(|there| there == new_name) {
        dir.remove(new_name)?;
    }
    let file = dir.open(new_name, OpenMode::CreateNew)?;
    fill(&file)?;
    file.sync()?;
    drop(file);
    dir.rename(new_name, name)?;
    dir.sync()
}
