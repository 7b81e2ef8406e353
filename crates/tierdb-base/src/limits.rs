//! What a store accepts. Every API path calls the same checks, before anything changes.

use crate::error::{Error, Result};

/// Longest key, in bytes. The shortest has one byte.
pub const MAX_KEY_BYTES: usize = 4096;
/// Longest value, in bytes (64 MiB). An empty value is a value.
pub const MAX_VALUE_BYTES: usize = 64 << 20;
/// Most bytes of keys and values together in one batch (64 MiB).
pub const MAX_BATCH_BYTES: usize = 64 << 20;

/// Refuses a key that is empty or longer than [`MAX_KEY_BYTES`].
pub fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() {
        return Err(Error::invalid("a key must have at least one byte"));
    }
    if key.len() > MAX_KEY_BYTES {
        return Err(Error::TooLarge { what: "key", len: key.len() as u64, limit: MAX_KEY_BYTES as u64 });
    }
    Ok(())
}

/// Refuses a value longer than [`MAX_VALUE_BYTES`].
pub fn check_value(value: &[u8]) -> Result<()> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(Error::TooLarge {
            what: "value",
            len: value.len() as u64,
            limit: MAX_VALUE_BYTES as u64,
        });
    }
    Ok(())
}
