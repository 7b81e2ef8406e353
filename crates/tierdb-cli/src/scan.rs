//! `scan` and `dump`: entries of a range, in key order.

use crate::args::{Dump, DumpFormat, Scan, ScanFormat};
use crate::exit::Failure;
use crate::jsonl;
use crate::text::escape;
use std::io::{self, Write};
use tierdb_base::{Result, hex};
use tierdb_engine::{Cursor, Engine, Value};

/// Prints the entries that were asked for, or how many there are.
pub fn scan(engine: &dyn Engine, scan: &Scan, out: &mut dyn Write) -> Result<(), Failure> {
    let mut cursor = engine.cursor(scan.range.range(scan.notation.notation())?, None)?;
    if scan.reverse {
        cursor.seek_to_last();
    }
    let mut count = 0;
    while scan.limit.is_none_or(|limit| count < limit) {
        let Some((key, value)) = step(cursor.as_mut(), scan.reverse)? else { break };
        count += 1;
        if !scan.count {
            write_entry(out, scan.format, &key, (!scan.keys_only).then_some(&*value))?;
        }
    }
    if scan.count {
        writeln!(out, "{count}")?;
    }
    Ok(())
}

fn step(cursor: &mut dyn Cursor, reverse: bool) -> Result<Option<(Vec<u8>, Value)>> {
    if reverse { cursor.prev() } else { cursor.next() }
}

/// Prints a range so that `load` reads it back to the same bytes. The cursor is one view of the store.
pub fn dump(engine: &dyn Engine, dump: &Dump, out: &mut dyn Write) -> Result<(), Failure> {
    let mut cursor = engine.cursor(dump.range.range(dump.notation.notation())?, None)?;
    let format = match dump.format {
        DumpFormat::Jsonl => ScanFormat::Jsonl,
        DumpFormat::Tsv => ScanFormat::Text,
    };
    while let Some((key, value)) = cursor.next()? {
        write_entry(out, format, &key, Some(&value))?;
    }
    Ok(())
}

fn write_entry(out: &mut dyn Write, format: ScanFormat, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
    let text: fn(&[u8]) -> String = match format {
        ScanFormat::Jsonl => return jsonl::write_entry(out, key, value),
        ScanFormat::Text => escape,
        ScanFormat::Hex => hex::encode,
    };
    out.write_all(text(key).as_bytes())?;
    if let Some(value) = value {
        out.write_all(b"\t")?;
        out.write_all(text(value).as_bytes())?;
    }
    out.write_all(b"\n")
}
