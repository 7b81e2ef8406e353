//! How settings are written.

use tierdb_base::ByteSize;

/// Sizes as strings.
pub mod size {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};
    use tierdb_base::ByteSize;

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Number(i64),
    }

    fn parse<E: serde::de::Error>(written: Written) -> Result<ByteSize, E> {
        match written {
            Written::Text(text) => text.parse().map_err(E::custom),
            Written::Number(n) => {
                Err(E::custom(format!("{n} is not a size: write it with its unit, as in \"64 MiB\"")))
            }
        }
    }

    pub fn serialize<S: Serializer>(size: &ByteSize, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::exact(*size))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ByteSize, D::Error> {
        let written = Written::deserialize(from)
            .map_err(|_| D::Error::custom("a size is a text with its unit, as in \"64 MiB\""))?;
        parse(written)
    }

    pub mod optional {
        use super::{ByteSize, Deserializer, Serializer};

        pub fn serialize<S: Serializer>(size: &Option<ByteSize>, to: S) -> Result<S::Ok, S::Error> {
            match size {
                Some(size) => super::serialize(size, to),
                None => to.serialize_none(),
            }
        }

        pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ByteSize>, D::Error> {
            super::deserialize(from).map(Some)
        }
    }
}

/// A size as text that parses back to the same number of bytes.
pub fn exact(size: ByteSize) -> String {
    let text = size.to_string();
    match text.parse::<ByteSize>() {
        Ok(parsed) if parsed == size => text,
        _ => format!("{} B", size.bytes()),
    }
}

/// Durability as a word.
pub mod durability {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tierdb_engine::Durability;

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Written {
        Durable,
        Grouped,
    }

    pub fn serialize<S: Serializer>(durability: &Durability, to: S) -> Result<S::Ok, S::Error> {
        match durability {
            Durability::Durable => Written::Durable,
            Durability::Grouped => Written::Grouped,
        }
        .serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Durability, D::Error> {
        Written::deserialize(from).map(|written| match written {
            Written::Durable => Durability::Durable,
            Written::Grouped => Durability::Grouped,
        })
    }
}
