//! What `verify`, `repair`, `compact` and the copies print.

use crate::exit::{Exit, Failure};
use crate::jsonl;
use crate::store::{Copied, Saved};
use crate::text::{counted, escape};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::ops::Bound;
use tierdb_base::ByteSize;
use tierdb_engine::{Damage, VerifyReport};

/// Prints what a check found; damage is a failure that has then been reported.
pub fn report(report: &VerifyReport, as_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    ended(print_report(report, as_json, out), report.is_clean())
}

/// Damage decides how the command ends, whatever became of its output.
fn ended(printed: Result<(), Failure>, whole: bool) -> Result<(), Failure> {
    match printed {
        _ if whole => printed,
        Err(Failure::Told(_, what)) => Err(Failure::Told(Exit::Damaged, what)),
        _ => Err(Failure::Reported(Exit::Damaged)),
    }
}

fn print_report(report: &VerifyReport, as_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    if as_json {
        writeln!(out, "{}", as_object(report))?;
    } else {
        for damage in &report.damage {
            writeln!(out, "damage: {}", describe(damage))?;
        }
        let found = match report.damage.len() {
            0 => "no damage".to_owned(),
            n => counted(n as u64, "damaged place", "damaged places"),
        };
        let checked = counted(report.keys_checked, "key", "keys");
        writeln!(out, "checked {checked} and {} of records: {found}", ByteSize(report.bytes_checked))?;
    }
    Ok(())
}

/// Prints what a repair saved, and what it could not; the latter is a failure that has then been reported.
pub fn saved(saved: &Saved, out: &mut dyn Write) -> Result<(), Failure> {
    let whole =
        saved.index_whole && saved.uncertain == 0 && saved.damage.is_empty() && saved.notes.is_empty();
    ended(print_saved(saved, out), whole)
}

fn print_saved(saved: &Saved, out: &mut dyn Write) -> Result<(), Failure> {
    for note in &saved.notes {
        writeln!(out, "note: {note}")?;
    }
    for damage in &saved.damage {
        writeln!(out, "lost: {}", describe(damage))?;
    }
    if !saved.index_whole {
        writeln!(out, "lost: not all keys are known: some may be missing without being named one by one")?;
    }
    if saved.uncertain > 0 {
        let keys = counted(saved.uncertain, "key", "keys");
        writeln!(out, "uncertain: {keys} may have been overwritten or deleted since")?;
    }
    writeln!(out, "saved {}; {} has the details", counted(saved.keys, "key", "keys"), saved.list)?;
    Ok(())
}

/// Prints how many bytes of flash a store took before it was compacted, and takes now.
pub fn compacted(before: u64, now: u64, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "on flash: {} before, {} now", ByteSize(before), ByteSize(now))?;
    Ok(())
}

/// Prints how much a checkpoint, or a restored store, holds.
pub fn copied(done: &str, copied: &Copied, out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "{done} {}, {}", counted(copied.entries, "entry", "entries"), ByteSize(copied.bytes))?;
    Ok(())
}

fn describe(damage: &Damage) -> String {
    let place = damage.place.as_ref().map(|place| format!(", in {place}")).unwrap_or_default();
    let keys = damage.keys.as_ref().map_or_else(|| "keys unknown".to_owned(), |keys| keys.in_words(escape));
    format!("{}{place} ({keys})", damage.what)
}

fn as_object(report: &VerifyReport) -> Value {
    let damage: Vec<Value> = report
        .damage
        .iter()
        .map(|damage| {
            let mut object = Map::new();
            object.insert("what".into(), damage.what.as_str().into());
            if let Some(place) = &damage.place {
                object.insert("file".into(), place.file.as_ref().into());
                object.insert("offset".into(), place.offset.into());
            }
            if let Some(keys) = &damage.keys {
                insert_bound(&mut object, ["first_key", "after_key"], &keys.start);
                insert_bound(&mut object, ["last_key", "before_key"], &keys.end);
            }
            Value::Object(object)
        })
        .collect();
    json!({
        "keys_checked": report.keys_checked,
        "bytes_checked": report.bytes_checked,
        "damage": damage,
    })
}

/// Adds a bound of a range by the first name where its key is in the range, by the second where it is not.
fn insert_bound(object: &mut Map<String, Value>, names: [&str; 2], bound: &Bound<Vec<u8>>) {
    match bound {
        Bound::Included(key) => jsonl::insert(object, names[0], key),
        Bound::Excluded(key) => jsonl::insert(object, names[1], key),
        Bound::Unbounded => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use tierdb_base::Location;
    use tierdb_engine::KeyRange;

    /// An output that fails.
    struct Closed(io::ErrorKind);

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_repair_tells_what_is_missing_and_ends_with_its_code() {
        let mut whole = Saved { keys: 2, index_whole: true, list: "REPORT", ..Saved::default() };
        let mut out = Vec::new();
        saved(&whole, &mut out).expect("nothing was lost");
        assert_eq!(out, b"saved 2 keys; REPORT has the details\n");
        whole.uncertain = 1;
        out.clear();
        assert_eq!(saved(&whole, &mut out).expect_err("uncertain").exit(), Exit::Damaged);
        assert!(out.starts_with(b"uncertain: 1 key may"));
        let noted = Saved { index_whole: true, notes: vec!["an identity".into()], ..Saved::default() };
        assert_eq!(saved(&noted, &mut Vec::new()).expect_err("damaged").exit(), Exit::Damaged);
        let lost = Saved { list: "REPORT", notes: vec!["no tier 2".into()], ..Saved::default() };
        out.clear();
        assert_eq!(saved(&lost, &mut out).expect_err("no index").exit(), Exit::Damaged);
        assert!(out.starts_with(b"note: no tier 2\nlost: not all keys are known: "));
    }

    #[test]
    fn damage_is_printed_with_place_and_keys_and_ends_with_its_code() {
        let mut found = VerifyReport { keys_checked: 1234, bytes_checked: 2048, damage: Vec::new() };
        let mut out = Vec::new();
        report(&found, false, &mut out).expect("clean");
        assert_eq!(out, b"checked 1,234 keys and 2 KiB of records: no damage\n");

        found.damage.push(Damage {
            what: "checksum mismatch".into(),
            place: Some(Location::new("flash-0", 4096)),
            keys: Some(KeyRange::half_open("a\n", b"a\xff")),
        });
        out.clear();
        let failure = report(&found, false, &mut out).expect_err("damaged");
        assert_eq!(failure.exit(), Exit::Damaged);
        let text = String::from_utf8(out).expect("text");
        assert!(text.starts_with(
            "damage: checksum mismatch, in flash-0 at byte 4096 (keys a\\n to before a\\xff)\n"
        ));

        // A reader that goes away takes nothing from that, and a failed write of the output is told.
        for (kind, told) in [(io::ErrorKind::BrokenPipe, false), (io::ErrorKind::StorageFull, true)] {
            let failure = report(&found, false, &mut Closed(kind)).expect_err("damaged");
            assert_eq!((failure.exit(), matches!(failure, Failure::Told(..))), (Exit::Damaged, told));
            let lost = Saved { list: "REPORT", ..Saved::default() };
            assert_eq!(saved(&lost, &mut Closed(kind)).expect_err("no index").exit(), Exit::Damaged);
        }

        let mut out = Vec::new();
        report(&found, true, &mut out).expect_err("damaged");
        let object: Value = serde_json::from_slice(&out).expect("JSON");
        assert_eq!(object["damage"][0]["first_key"], "a\n");
        assert_eq!(object["damage"][0]["before_key_hex"], "61ff");
        assert_eq!(object["damage"][0]["offset"], 4096);
    }
}
