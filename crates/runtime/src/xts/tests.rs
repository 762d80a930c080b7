//! Against the vectors of IEEE 1619, and against another implementation.

use aes::Aes256;
use aes::cipher::KeyInit;
use xts_mode::{Xts128, get_tweak_default};

use super::*;

/// Vectors 10 to 14 of the standard, of a data unit of 512 bytes: its number, and how what comes of it begins and ends.
const VECTORS: [(u64, &str, &str); 5] = [
    (0xff, "1c3b3a102f770386e4836c99e370cf9b", "c4f36ffda9fcea70b9c6e693e148c151"),
    (0xffff, "77a31251618a15e6b92d1d66dffe7b50", "a4f9e27b42af8100cb9d59cef9645803"),
    (0xffffff, "e387aaa58ba483afa7e8eb469778317e", "2263a1eef52dd6888c309f5a7d712826"),
    (0xffffffff, "bf53d2dade78e822a4d949a9bc6766b0", "4c82f335abb152c4a93411373aaa8220"),
    (0xffffffffff, "64497e5a831e4a932c09be3e5393376d", "d609d273ad5b0d59631c531f6a0a57b9"),
];

fn from_hex<const N: usize>(hex: &str) -> [u8; N] {
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    std::array::from_fn(byte)
}

fn standard_key() -> [u8; XTS_KEY_BYTES] {
    from_hex(
        "2718281828459045235360287471352662497757247093699959574966967627\
         3141592653589793238462643383279502884197169399375105820974944592",
    )
}

#[test]
fn the_vectors_of_the_standard() {
    let plain: Vec<u8> = (0..512).map(|at| at as u8).collect();
    let mut cipher = Aes256Xts::new(&standard_key()).unwrap();
    for (number, begins, ends) in VECTORS {
        let mut block = plain.clone();
        cipher.encrypt(512, number, &mut block);
        assert_eq!(block[..16], from_hex::<16>(begins), "{number:#x}");
        assert_eq!(block[496..], from_hex::<16>(ends), "{number:#x}");
        cipher.decrypt(512, number, &mut block);
        assert_eq!(block, plain, "{number:#x}");
    }
}

#[test]
fn another_implementation_says_the_same() {
    let key: [u8; XTS_KEY_BYTES] = std::array::from_fn(|at| (at * 37 + 11) as u8);
    let half = |at: usize| Aes256::new_from_slice(&key[at..at + 32]).unwrap();
    let other = Xts128::new(half(0), half(32));
    let mut ours = Aes256Xts::new(&key).unwrap();
    for block_bytes in [512, 4096] {
        for first in [0, 1, 255, 1 << 32, u64::MAX - 8] {
            let plain: Vec<u8> = (0..8 * block_bytes).map(|at| (at * 7 % 251) as u8).collect();
            let (mut one, mut two) = (plain.clone(), plain.clone());
            ours.encrypt(block_bytes, first, &mut one);
            other.encrypt_area(&mut two, block_bytes, first.into(), get_tweak_default);
            assert!(one == two && one != plain, "{block_bytes} bytes, from block {first} on");
            ours.decrypt(block_bytes, first, &mut one);
            assert!(one == plain);
        }
    }
}

#[test]
fn halves_that_are_the_same_are_refused() {
    assert!(Aes256Xts::new(&[7; XTS_KEY_BYTES]).is_none());
}
