//! Writes that take effect together.

use tierdb_base::{Error, MAX_BATCH_BYTES, Result, check_key, check_value};

/// One write of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Stores a value.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its new value.
        value: Vec<u8>,
    },
    /// Removes a key, if it is there.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
}

impl Op {
    /// The key it writes.
    pub fn key(&self) -> &[u8] {
        match self {
            Op::Put { key, .. } | Op::Delete { key } => key,
        }
    }
}

/// Writes that become visible and durable at once, whatever the number of keys and tiers.
///
/// Of two writes of one key in a batch, the later counts.
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    ops: Vec<Op>,
    bytes: usize,
}

impl WriteBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a put.
    ///
    /// # Errors
    /// `Invalid` for an empty key; `TooLarge` for a key, a value or a batch over its limit. The batch is
    /// then as it was.
    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Result<&mut Self> {
        let (key, value) = (key.into(), value.into());
        check_key(&key)?;
        check_value(&value)?;
        self.grow(key.len() + value.len())?;
        self.ops.push(Op::Put { key, value });
        Ok(self)
    }

    /// Adds a delete.
    ///
    /// # Errors
    /// As [`WriteBatch::put`].
    pub fn delete(&mut self, key: impl Into<Vec<u8>>) -> Result<&mut Self> {
        let key = key.into();
        check_key(&key)?;
        self.grow(key.len())?;
        self.ops.push(Op::Delete { key });
        Ok(self)
    }

    fn grow(&mut self, by: usize) -> Result<()> {
        let bytes = self.bytes + by;
        if bytes > MAX_BATCH_BYTES {
            return Err(Error::TooLarge { what: "batch", len: bytes as u64, limit: MAX_BATCH_BYTES as u64 });
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Number of writes in it.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Bytes of keys and values in it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The writes, in the order they were added.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Removes all writes, keeping the memory.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tierdb_base::ErrorKind;

    #[test]
    fn limits_hold_and_a_refused_write_changes_nothing() {
        let mut batch = WriteBatch::new();
        batch.put("a", "1").expect("put").delete("b").expect("delete");
        assert_eq!((batch.len(), batch.bytes()), (2, 3));
        assert_eq!(batch.put("", "x").expect_err("empty key").kind(), ErrorKind::Invalid);
        assert!(batch.put(vec![1; 4097], "x").is_err());
        assert!(batch.put("k", vec![0; MAX_BATCH_BYTES]).is_err());
        assert_eq!((batch.len(), batch.bytes()), (2, 3));
    }
}
