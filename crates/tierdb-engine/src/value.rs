//! A value as it is read: owned bytes, or a share of the cache's.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// The bytes of a value. Cheap to clone where they are shared with the cache.
#[derive(Clone)]
pub struct Value(Bytes);

#[derive(Clone)]
enum Bytes {
    Owned(Vec<u8>),
    Shared(Arc<[u8]>, Range<usize>),
}

impl Value {
    /// A value that is `range` of `bytes`, without a copy.
    ///
    /// # Panics
    /// If the range lies outside.
    pub fn shared(bytes: Arc<[u8]>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= bytes.len(), "the range lies inside the bytes");
        Value(Bytes::Shared(bytes, range))
    }

    /// The bytes as a vector, copied only where they are shared.
    pub fn into_vec(self) -> Vec<u8> {
        match self.0 {
            Bytes::Owned(bytes) => bytes,
            Bytes::Shared(bytes, range) => bytes[range].to_vec(),
        }
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Value(Bytes::Owned(bytes))
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Self {
        value.into_vec()
    }
}

impl Deref for Value {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Owned(bytes) => bytes,
            Bytes::Shared(bytes, range) => &bytes[range.clone()],
        }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Value {}

impl PartialEq<[u8]> for Value {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Value {
    fn eq(&self, other: &&[u8; N]) -> bool {
        **self == other[..]
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&tierdb_base::hex::printable(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_and_owned_values_are_the_same_value() {
        let shared = Value::shared(Arc::from(&b"..value.."[..]), 2..7);
        assert_eq!(shared, Value::from(b"value".to_vec()));
        assert_eq!(shared.into_vec(), b"value");
    }
}
