//! A keyed hash for short inputs: SipHash-2-4 (Aumasson, Bernstein, "SipHash: a fast short-input PRF",
//! 2012). Who does not know the key cannot tell its values from random numbers.

/// 128 bits of key.
pub type SipKey = [u64; 2];

/// The hash of `bytes` under `key`.
pub fn siphash(key: SipKey, bytes: &[u8]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        take(&mut v, u64::from_le_bytes(word.try_into().expect("eight bytes")));
    }
    let rest = words.remainder();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8;
    take(&mut v, u64::from_le_bytes(last));
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn take(v: &mut [u64; 4], word: u64) {
    v[3] ^= word;
    (0..2).for_each(|_| round(v));
    v[0] ^= word;
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SipKey = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];

    /// Of the reference implementation, for inputs 0, 1, 2 ... of these lengths.
    #[test]
    fn the_values_are_those_of_the_reference() {
        let input: Vec<u8> = (0..64).collect();
        for (length, value) in [
            (0, 0x726f_db47_dd0e_0e31),
            (1, 0x74f8_39c5_93dc_67fd),
            (7, 0xab02_00f5_8b01_d137),
            (8, 0x93f5_f579_9a93_2462),
            (15, 0xa129_ca61_49be_45e5),
            (63, 0x958a_324c_eb06_4572),
        ] {
            assert_eq!(siphash(KEY, &input[..length]), value, "{length} bytes");
        }
    }
}
