//! Tests of what NBD clients send and get, byte by byte.

use super::*;

fn option(name: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut bytes = (name.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(rest);
    bytes
}

#[test]
fn a_request_as_the_specification_draws_it() {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
    bytes[4..8].copy_from_slice(&[0, 1, 0, 6]);
    bytes[8..16].copy_from_slice(b"cookie!!");
    bytes[16..24].copy_from_slice(&[0, 0, 0, 1, 0, 0, 2, 0]);
    bytes[24..].copy_from_slice(&[0xff, 0xff, 0xff, 0xfe]);
    let request = NbdRequest {
        flags: command_flag::FUA,
        command: command::WRITE_ZEROES,
        cookie: u64::from_be_bytes(*b"cookie!!"),
        offset: (1 << 32) + 512,
        len: 0xffff_fffe,
    };
    assert_eq!(NbdRequest::parse(&bytes), Some(request));
    bytes[3] ^= 1;
    assert_eq!(NbdRequest::parse(&bytes), None);
}

#[test]
fn options_whose_lengths_lie_are_refused() {
    let good = option(b"disk0", &[0, 3, 0, 1, 0, 3, 0, 99]);
    let parsed = InfoOption::parse(&good).unwrap();
    assert_eq!(parsed.name, b"disk0");
    assert!(parsed.wants_name && parsed.wants_block_size && !parsed.wants_description);
    for len in 0..good.len() {
        assert_eq!(InfoOption::parse(&good[..len]), None, "cut at {len}");
    }
    assert_eq!(InfoOption::parse(&[&good[..], &[0]].concat()), None);
    assert_eq!(InfoOption::parse(&[0xff; 64]), None);
    let long = option(&[b'x'; STRING_BYTES_MAX + 1], &[0, 0]);
    assert_eq!(InfoOption::parse(&long), None);

    let queries = [&[0, 0, 0, 2][..], &option(b"base:", b""), &option(CONTEXT_NAME, b"")].concat();
    let good = option(b"", &queries);
    let parsed = ContextOption::parse(&good).unwrap();
    assert!(parsed.wants_allocation && parsed.wants_base && !parsed.is_unspecific);
    for len in 0..good.len() {
        assert_eq!(ContextOption::parse(&good[..len]), None, "cut at {len}");
    }
    assert_eq!(ContextOption::parse(&option(b"", &[0xff; 4])), None);
    assert!(ContextOption::parse(&option(b"", &[0; 4])).unwrap().is_unspecific);
}

#[test]
fn heads_have_the_layout_of_the_specification() {
    assert_eq!(ReplyHead::greeting().as_bytes(), b"NBDMAGICIHAVEOPT\0\x03");
    let reply = ReplyHead::option_reply(option::GO, option_reply::ERR_UNKNOWN, 5);
    assert_eq!(
        reply.as_bytes(),
        [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9, 0, 0, 0, 7, 0x80, 0, 0, 6, 0, 0, 0, 5]
    );
    assert_eq!(
        ReplyHead::simple(2, Some(Errno::NoSpc)).as_bytes(),
        [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 2]
    );
    let chunk = ReplyHead::data_chunk(2, 512, 4096);
    assert_eq!(chunk.as_bytes()[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1]);
    assert_eq!(chunk.as_bytes()[16..], [0, 0, 0x10, 8, 0, 0, 0, 0, 0, 0, 2, 0]);
    let error = ReplyHead::error_chunk(2, Errno::Inval, 7);
    assert_eq!(error.as_bytes()[6..8], [0x80, 1]);
    assert_eq!(error.as_bytes()[16..], [0, 0, 0, 13, 0, 0, 0, 22, 0, 7]);
    for head in [
        ReplyHead::info_block_size(7, 1, 4096, 1 << 25),
        ReplyHead::info_export(7, 1 << 40, 0xffff),
        ReplyHead::info_text(7, info::NAME, 5),
        ReplyHead::server(5, 9),
        ReplyHead::meta_context(10),
        ReplyHead::export(1, 1),
        ReplyHead::status_chunk(1, 3),
    ] {
        assert!(head.as_bytes().len() <= ReplyHead::BYTES_MAX);
    }
}

#[test]
fn extents_are_joined_and_clipped() {
    let extent = |len, hole| Extent { len, hole, zero: hole };
    let all = [extent(10, true), extent(20, true), extent(5, false), extent(1 << 40, true)];
    let mut out = [0; 64];
    let mut read = |len, one, room| {
        let count = put_extents(&all, len, one, &mut out[..room]);
        let word = |at: usize| u32::from_be_bytes(out[at..at + 4].try_into().unwrap());
        (0..count).map(|n| (word(n * 8), word(n * 8 + 4))).collect::<Vec<_>>()
    };
    assert_eq!(read(u32::MAX, false, 64), [(30, 3), (5, 0), (u32::MAX - 35, 3)]);
    assert_eq!(read(33, false, 64), [(30, 3), (3, 0)]);
    assert_eq!(read(100, true, 64), [(30, 3)]);
    assert_eq!(read(15, true, 64), [(15, 3)]);
    assert_eq!(read(100, false, 15), [(30, 3)]);
}
