//! `put`, `get` and `delete`.

use crate::args::{Delete, Get, Put};
use crate::exit::{Exit, Failure};
use crate::jsonl;
use crate::text::{Notation, counted, escape};
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Bound;
use std::path::Path;
use tierdb_base::{MAX_VALUE_BYTES, check_key, check_value};
use tierdb_engine::{Durability, Engine, KeyRange};

/// The key and value that `put` was given. Read before the store is opened, so that a wrong or slow input
/// does not hold it.
pub fn input(put: &Put, stdin: &mut dyn Read) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let notation = put.notation.notation();
    let key = notation.read("key", &put.key)?;
    check_key(&key)?;
    let value = match (&put.value, &put.file) {
        (Some(value), _) => notation.read("value", value)?,
        (None, Some(path)) => {
            let mut file = File::open(path).map_err(|e| Failure::read(path, &e))?;
            read_value(&mut file, path)?
        }
        (None, None) => read_value(stdin, Path::new("standard input"))?,
    };
    check_value(&value)?;
    Ok((key, value))
}

/// All of `from`, or one byte more than a value may have.
fn read_value(from: &mut dyn Read, name: &Path) -> Result<Vec<u8>, Failure> {
    let mut value = Vec::new();
    let most = MAX_VALUE_BYTES as u64 + 1;
    from.take(most).read_to_end(&mut value).map_err(|e| Failure::read(name, &e))?;
    Ok(value)
}

/// Prints the value of a key.
pub fn get(engine: &dyn Engine, get: &Get, out: &mut dyn Write, on_terminal: bool) -> Result<(), Failure> {
    let notation = get.notation.notation();
    let key = notation.read("key", &get.key)?;
    let Some(value) = engine.get(&key)? else {
        return Err(Failure::Told(Exit::KeyNotFound, format!("key not found: {}", escape(&key))));
    };
    if get.json {
        jsonl::write_entry(out, &key, Some(&value))?;
    } else {
        out.write_all(&notation.write(&value))?;
        if on_terminal || notation != Notation::Raw {
            out.write_all(b"\n")?;
        }
    }
    Ok(())
}

/// Removes a key, or a range and says how many keys it held.
pub fn delete(engine: &dyn Engine, delete: &Delete, out: &mut dyn Write) -> Result<(), Failure> {
    let notation = delete.notation.notation();
    if let Some(key) = &delete.key {
        engine.delete(&notation.read("key", key)?, Durability::Durable)?;
        return Ok(());
    }
    let range = if delete.all { KeyRange::all() } else { delete.range.range(notation)? };
    // What `--prefix "$UNSET"` and `--start "$UNSET"` come to in a script.
    if !delete.all && matches!(&range.start, Bound::Included(start) if start.is_empty()) {
        return Err(Failure::invalid(
            "an empty prefix or start is every key, or every one below the end: say --all, or leave --start out, if that is meant",
        ));
    }
    let count = engine.delete_range(&range, Durability::Durable)?;
    writeln!(out, "deleted {}", counted(count, "key", "keys"))?;
    Ok(())
}
