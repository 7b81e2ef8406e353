//! Checks of a closed store.

use crate::config::Config;
use crate::db::Db;
use tierdb_base::{Error, ErrorKind, Location, Result};
use tierdb_engine::{Damage, VerifyReport};

/// The file that says what a repaired store was made of.
pub(crate) const REPORT_NAME: &str = "REPAIR-REPORT.txt";

/// Checks the closed store that `config` describes: opens it, reads and checks everything, and closes it.
///
/// Opening recovers after a crash as always. A store that cannot be opened for damage gives a report that says so.
///
/// # Errors
/// As [`Db::open_existing_config`], but for damage.
pub fn verify_offline(config: &Config) -> Result<VerifyReport> {
    let report = Db::open_existing_config(config).and_then(|db| {
        let report = db.verify()?;
        db.close()?;
        Ok(report)
    });
    match report {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            Ok(VerifyReport { damage: vec![damage(&error)], ..VerifyReport::default() })
        }
        other => other,
    }
}

fn damage(error: &Error) -> Damage {
    let place: Option<Location> = match error {
        Error::Corrupt { place, .. } => Some(place.clone()),
        _ => None,
    };
    Damage { what: error.to_string(), place, first_key: None, last_key: None }
}
