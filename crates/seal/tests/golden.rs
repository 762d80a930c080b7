//! Sealed frames as another implementation makes them: keys from secrets by HKDF (Python's `hmac`),
//! ciphers of OpenSSL. Who changes a label, the nonce or what is covered changes the wire.

use thinwire_seal::{Secrets, Suite};

/// What is sealed, with 32 open bytes 100, 101 ... 131, on path 3 and with this packet number, under
/// the secret 0, 1 ... 31.
const TEXT: &[u8] = b"forty-two bytes of text that is worth hidi";
const PATH: u8 = 3;
const NUMBER: u64 = 0x0102_0304_0506_0708;

/// Suite, phase, what is sealed, tag. Phase 257 is 1 on the wire.
const GOLDEN: [(u8, u32, &str, &str); 12] = [
    (
        1,
        0,
        "de9ffdf2604d59a48f5bd5e209944e72f56f3cc73d46487679ee0f6047cdb113ef2655f3eed9bedfe44f",
        "caeb59c9802ba0f0c026c173482df534",
    ),
    (
        1,
        1,
        "fdc15e770c8626502ca7502da2d4bb9a0970899586c1dd4450268f77d4e6383e79880023b7f83ba18c65",
        "c3df31846ee00100e38a954a80861091",
    ),
    (
        1,
        257,
        "31c0f78225cc5e14b9e146c6934b27108934ee29a521577905f87e0e6598c865090d6eb6e11e61d09222",
        "31078f3739ede31de06286173dffea9f",
    ),
    (
        2,
        0,
        "517fa64fdd1780f74521a5ce6059661e4fad968fe2249c737a140dd63eb7808121d708fa4d7e007419a6",
        "c4952f27669b566996bac08f32da9958",
    ),
    (
        2,
        1,
        "39efb980f19267e1c93c4c6f35505ec27efc9f831ef9d7c15db891ee8756e97b6e0700b2300226cda1d5",
        "822dcaa9ad9d9335604508835ac0ff6c",
    ),
    (
        2,
        257,
        "1e638f377beb6355283f2cb10cdec43c5bcc5ca0afb9df0f06aaf8f7ed67b2cf3340ebc83456cdadf537",
        "58b63834289ccf1e71ccf1882b1c2315",
    ),
    (
        3,
        0,
        "3573a075290b4ddab124922e11f3ccee23fd5273580c006c7f906dd787e2d8fba12da46364932a4f5334",
        "60b90ffb4462288d050663b38f5dfaf9",
    ),
    (
        3,
        1,
        "b2513d1f3d7ac7061f7c32c8cf088fcd299a186df7f81898ff28cb2fac3e4d6449f48819614cd61625cc",
        "649539749ee68f8f79118b741f970c9e",
    ),
    (
        3,
        257,
        "7619e3a912e111c91863afa9970943424ce1b219870cdd5a49837ef9a56e69c5c9b288f4371212b46b34",
        "24689ba722336f8c444cf01bb66a952a",
    ),
    (
        4,
        0,
        "666f7274792d74776f206279746573206f662074657874207468617420697320776f7274682068696469",
        "8ee079f1926424f153f8ba6eeeae2060",
    ),
    (
        4,
        1,
        "666f7274792d74776f206279746573206f662074657874207468617420697320776f7274682068696469",
        "60a03219034d6b712eed0f5cbd884b26",
    ),
    (
        4,
        257,
        "666f7274792d74776f206279746573206f662074657874207468617420697320776f7274682068696469",
        "8c912ff36c7875e7c297ce65223f57b1",
    ),
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn what_is_sealed_is_what_another_implementation_seals() {
    let secret = std::array::from_fn(|i| i as u8);
    let open: [u8; 32] = std::array::from_fn(|i| i as u8 + 100);
    for (number, phase, sealed, tag) in GOLDEN {
        let suite = Suite::from_number(number).unwrap();
        let mut sealer = Secrets::new(secret, [0; 32]).initiator(suite).sealer;
        let mut opener = Secrets::new(secret, [0; 32]).target(suite).opener;
        for _ in 0..phase {
            sealer.advance();
            opener.advance();
        }
        assert_eq!(sealer.phase(), phase as u8);
        let mut bytes = TEXT.to_vec();
        let made = sealer.seal(PATH, NUMBER, &open, &mut bytes);
        assert_eq!((hex(&bytes), hex(&made)), (sealed.into(), tag.into()), "{suite} {phase}");
        opener.open_in_place(phase as u8, PATH, NUMBER, &open, &made, &mut bytes).unwrap();
        assert_eq!(bytes, TEXT, "{suite} {phase}");
    }
}
