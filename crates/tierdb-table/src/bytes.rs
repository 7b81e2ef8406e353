//! Little-endian integers in byte strings, read without panics.

/// The `u16` at `at`, or `None` past the end. The same for its neighbours.
#[inline]
pub(crate) fn get_u16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_le_bytes(*b))
}

#[inline]
pub(crate) fn get_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_le_bytes(*b))
}

#[inline]
pub(crate) fn get_u64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_le_bytes(*b))
}

/// Stores `value` at `at`, which lies inside.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Appends `value` in groups of seven bits, the lowest first; the top bit of a byte says that more follow.
pub(crate) fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes that [`push_varint`] takes for `value`.
pub(crate) fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Reads a varint from `at` on, and moves `at` behind it. `None` if it runs past the end, or over 64 bits.
#[inline]
pub(crate) fn take_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        if shift == 63 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// How many bytes `one` and `other` begin with in common.
pub(crate) fn common_prefix(one: &[u8], other: &[u8]) -> usize {
    let len = one.len().min(other.len());
    let mut at = 0;
    while at + 8 <= len {
        if let (Some(a), Some(b)) = (get_u64(one, at), get_u64(other, at))
            && a != b
        {
            return at + ((a ^ b).trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    at + one[at..len].iter().zip(&other[at..len]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_read_back_and_cut_or_long_ones_are_refused() {
        for value in [0, 1, 127, 128, 300, 1 << 20, u64::MAX >> 1, u64::MAX] {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, value);
            assert_eq!(bytes.len(), varint_len(value));
            let mut at = 0;
            assert_eq!((take_varint(&bytes, &mut at), at), (Some(value), bytes.len()));
            assert_eq!(take_varint(&bytes[..bytes.len() - 1], &mut 0), None);
        }
        assert_eq!(take_varint(&[0xff; 11], &mut 0), None);
        assert_eq!(take_varint(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2], &mut 0), None);
    }

    #[test]
    fn common_prefixes_end_at_the_first_difference() {
        let one: Vec<u8> = (0..40).collect();
        for len in 0..=40 {
            assert_eq!((common_prefix(&one, &one[..len]), common_prefix(&one[..len], &one)), (len, len));
            for at in 0..len {
                let mut other = one[..len].to_vec();
                other[at] ^= 0x80;
                assert_eq!(common_prefix(&one, &other), at);
            }
        }
    }

    #[test]
    fn integers_past_the_end_are_none() {
        assert_eq!(get_u16(&[1, 2, 3], 1), Some(0x0302));
        assert_eq!((get_u16(&[1], 0), get_u32(&[0; 4], 1), get_u64(&[0; 8], usize::MAX)), (None, None, None));
    }
}
