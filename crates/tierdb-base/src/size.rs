//! Sizes in bytes, as people write them: `64 MiB`, `2 TiB`, `1GB`, `4096`.

use crate::error::Error;
use std::fmt;
use std::str::FromStr;

/// A number of bytes. Parses `KiB`/`MiB`/`GiB`/`TiB` (powers of 1,024), `KB`/`MB`/`GB`/`TB` (powers of
/// 1,000) and plain numbers; prints the largest binary unit that divides it, or two decimals of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl ByteSize {
    /// `n` KiB.
    pub const fn kib(n: u64) -> Self {
        ByteSize(n << 10)
    }
    /// `n` MiB.
    pub const fn mib(n: u64) -> Self {
        ByteSize(n << 20)
    }
    /// `n` GiB.
    pub const fn gib(n: u64) -> Self {
        ByteSize(n << 30)
    }
    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, scale) = UNITS.iter().find(|(_, scale)| self.0 >= *scale).unwrap_or(&UNITS[4]);
        if self.0.is_multiple_of(*scale) {
            write!(f, "{} {unit}", self.0 / scale)
        } else {
            write!(f, "{:.2} {unit}", self.0 as f64 / *scale as f64)
        }
    }
}

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::invalid(format!(
                "{text:?} is not a size: write a number and KiB, MiB, GiB or TiB, as in \"64 MiB\""
            ))
        };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = (trimmed[..split].trim(), trimmed[split..].trim());
        let scale: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kib" | "k" => 1 << 10,
            "mib" | "m" => 1 << 20,
            "gib" | "g" => 1 << 30,
            "tib" | "t" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(wrong()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(ByteSize).ok_or_else(wrong);
        }
        let fraction: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = fraction * scale as f64;
        if !bytes.is_finite() || bytes >= u64::MAX as f64 {
            return Err(wrong());
        }
        Ok(ByteSize(bytes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_print() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64 MiB", 64 << 20),
            ("1GB", 1_000_000_000),
            ("0.5 KiB", 512),
            ("2 TiB", 2 << 40),
        ] {
            assert_eq!(text.parse::<ByteSize>().expect(text).0, bytes);
        }
        assert_eq!(ByteSize(64 << 20).to_string(), "64 MiB");
        assert_eq!(ByteSize(1500).to_string(), "1.46 KiB");
        assert_eq!(ByteSize(0).to_string(), "0 B");
        for text in ["", "MiB", "-1", "1 PB", "1..2", "99999999999 TiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }
}
