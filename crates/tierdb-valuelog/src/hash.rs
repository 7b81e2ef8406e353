//! A hash of numbers for tables in DRAM.

/// Spreads the bits of `number` over all of the result, the upper ones best.
#[inline]
pub fn mix(number: u64) -> u64 {
    let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash ^ hash >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
}
