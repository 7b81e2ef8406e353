//! How much may be written to a flash tier.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use tierdb_base::{ByteSize, Error};

/// Most that may be written to a flash tier in a day: bytes, or a share of its capacity.
///
/// ```
/// use tierdb::WriteBudget;
/// let rated: WriteBudget = "0.3 DWPD".parse()?;
/// assert_eq!(rated.bytes_per_day(1000), 300);
/// let plain: WriteBudget = "200 GiB/day".parse()?;
/// assert_eq!(plain.bytes_per_day(1000), 200 << 30);
/// # Ok::<(), tierdb::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBudget(Amount);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amount {
    Bytes(u64),
    /// Thousandths of a drive write.
    Drives(u64),
}

/// The most drive writes a day.
const MOST_DRIVES: f64 = 1000.0;

impl WriteBudget {
    /// So many bytes a day.
    pub fn per_day(bytes: ByteSize) -> Self {
        WriteBudget(Amount::Bytes(bytes.bytes()))
    }

    /// Whether it lets nothing be written.
    pub(super) fn is_nothing(self) -> bool {
        self.0 == Amount::Bytes(0)
    }

    /// What a tier of `capacity` bytes may be written with in a day, in bytes.
    pub fn bytes_per_day(self, capacity: u64) -> u64 {
        match self.0 {
            Amount::Bytes(bytes) => bytes,
            Amount::Drives(thousandths) => {
                (u128::from(capacity) * u128::from(thousandths) / 1000).min(u64::MAX.into()) as u64
            }
        }
    }
}

impl fmt::Display for WriteBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Amount::Bytes(bytes) => write!(f, "{}/day", super::text::exact(ByteSize(bytes))),
            Amount::Drives(thousandths) => write!(f, "{} DWPD", thousandths as f64 / 1000.0),
        }
    }
}

impl FromStr for WriteBudget {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::invalid(format!(
                "{text:?} is not a write budget: write drive writes a day (0.001 to 1000), as in \"0.3 DWPD\", or a size a \
                 day, as in \"200 GiB/day\""
            ))
        };
        let lower = text.trim().to_ascii_lowercase();
        if let Some(number) = lower.strip_suffix("dwpd") {
            let drives: f64 = number.trim().parse().map_err(|_| wrong())?;
            let thousandths = (drives * 1000.0).round();
            return if (1.0..=MOST_DRIVES * 1000.0).contains(&thousandths) {
                Ok(WriteBudget(Amount::Drives(thousandths as u64)))
            } else {
                Err(wrong())
            };
        }
        let size = lower.strip_suffix("/day").ok_or_else(wrong)?;
        let bytes = size.parse::<ByteSize>().map_err(|_| wrong())?;
        if bytes.bytes() == 0 { Err(wrong()) } else { Ok(Self::per_day(bytes)) }
    }
}

impl Serialize for WriteBudget {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WriteBudget {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = WriteBudget;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a write budget as a text, as in \"0.3 DWPD\" or \"200 GiB/day\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WriteBudget, E> {
                text.parse().map_err(E::custom)
            }
        }
        from.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_parse_and_print() {
        for (text, capacity, bytes) in [
            ("0.3 DWPD", 10_000, 3_000),
            ("1dwpd", 4096, 4096),
            ("0.001 DWPD", 1 << 40, (1 << 40) / 1000),
            ("200 GiB/day", 1, 200 << 30),
            ("1500 B/day", 1, 1500),
            ("1000 DWPD", u64::MAX, u64::MAX),
        ] {
            let budget: WriteBudget = text.parse().expect(text);
            assert_eq!(budget.bytes_per_day(capacity), bytes, "{text}");
            assert_eq!(budget.to_string().parse::<WriteBudget>().expect("its own text"), budget, "{text}");
        }
        for text in
            ["", "DWPD", "0 DWPD", "-1 DWPD", "NaN DWPD", "1e9 DWPD", "200 GiB", "0 B/day", "200 PB/day"]
        {
            let error = text.parse::<WriteBudget>().expect_err(text).to_string();
            assert!(error.contains("0.3 DWPD") && error.contains("200 GiB/day"), "{error}");
        }
    }
}
