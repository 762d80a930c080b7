//! The ciphers under given keys, against the vectors of those who published them.

use super::*;

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

struct Published {
    suite: Suite,
    key: &'static str,
    nonce: &'static str,
    open: &'static str,
    text: &'static str,
    sealed: &'static str,
    tag: &'static str,
}

const PUBLISHED: [Published; 4] = [
    // McGrew, Viega, "The Galois/Counter Mode of Operation", test case 4.
    Published {
        suite: Suite::Aes128Gcm,
        key: "feffe9928665731c6d6a8f9467308308",
        nonce: "cafebabefacedbaddecaf888",
        open: "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        text: "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
               1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
        sealed: "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e\
                 21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091",
        tag: "5bc94fbc3221a5db94fae95ae7121a47",
    },
    // The same, test case 16.
    Published {
        suite: Suite::Aes256Gcm,
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
        nonce: "cafebabefacedbaddecaf888",
        open: "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        text: "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
               1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
        sealed: "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
                 8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
        tag: "76fc6ece0f4e1768cddf8853bb2d551b",
    },
    // RFC 8439, section 2.8.2.
    Published {
        suite: Suite::ChaCha20Poly1305,
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        nonce: "070000004041424344454647",
        open: "50515253c0c1c2c3c4c5c6c7",
        text: "4c616469657320616e642047656e746c656d656e206f662074686520636c617373\
               206f66202739393a204966204920636f756c64206f6666657220796f75206f6e6c\
               79206f6e652074697020666f7220746865206675747572652c2073756e73637265\
               656e20776f756c642062652069742e",
        sealed: "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6\
                 3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36\
                 92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc\
                 3ff4def08e4b7a9de576d26586cec64b6116",
        tag: "1ae10b594f09e26a7e902ecbd0600691",
    },
    // Computed with OpenSSL: AES-128-GCM of nothing, with all of it open.
    Published {
        suite: Suite::Aes128Gmac,
        key: "feffe9928665731c6d6a8f9467308308",
        nonce: "cafebabefacedbaddecaf888",
        open: "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        text: "d9313225f88406e5a55909c5aff5269a",
        sealed: "d9313225f88406e5a55909c5aff5269a",
        tag: "6ce96c171401e2cae0168f00bb75ce5e",
    },
];

#[test]
fn the_ciphers_are_those_that_were_published() {
    for vector in PUBLISHED {
        let key = UnboundKey::new(vector.suite.algorithm(), &unhex(vector.key)).unwrap();
        let keys = Keys {
            suite: vector.suite,
            cipher: LessSafeKey::new(key),
            // Path 0 and packet number 0 leave the IV as it is.
            iv: unhex(vector.nonce).try_into().unwrap(),
        };
        let (open, scratch) = (unhex(vector.open), Scratch::default());
        let mut bytes = unhex(vector.text);
        let tag = keys.seal((0, 0), &open, &mut bytes, &scratch);
        assert_eq!(bytes, unhex(vector.sealed), "{}", vector.suite);
        assert_eq!(tag.to_vec(), unhex(vector.tag), "{}", vector.suite);

        let mut text = vec![0; bytes.len()];
        keys.open((0, 0), &open, &tag, &bytes, &mut text, &scratch).unwrap();
        assert_eq!(text, unhex(vector.text), "{}", vector.suite);
        keys.open_in_place((0, 0), &open, &tag, &mut bytes, &scratch).unwrap();
        assert_eq!(bytes, unhex(vector.text), "{}", vector.suite);
    }
}

/// RFC 5869, test case 1, from its PRK on.
#[test]
fn expansion_is_that_of_the_rfc() {
    let prk = unhex("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5");
    let mut out = [0; 42];
    expand(&prk.try_into().unwrap(), &[&unhex("f0f1f2f3f4"), &unhex("f5f6f7f8f9")], &mut out);
    let expected =
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865";
    assert_eq!(out.to_vec(), unhex(expected));
}

#[test]
fn no_two_frames_of_a_direction_share_a_nonce() {
    let keys = Chain::new(Suite::Aes128Gcm, &[7; 32]).keys();
    let mut seen = std::collections::BTreeSet::new();
    for path in [0, 1, 2, 128, 255] {
        for shift in 0..64 {
            for number in [0, 1 << shift, u64::MAX >> shift] {
                seen.insert((keys.nonce(path, number).as_ref().to_vec(), path, number));
            }
        }
    }
    let nonces: std::collections::BTreeSet<_> = seen.iter().map(|(nonce, ..)| nonce).collect();
    assert_eq!(nonces.len(), seen.len());
}
