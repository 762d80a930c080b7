//! The handshake, byte by byte.

mod nbd_common;

use nbd_common::client::{Client, context_data, info_data, option_bytes, string};
use nbd_common::{Backing, Server, config};
use thinwire_frontend::nbd::NbdConfig;
use thinwire_frontend::nbd::proto::{export_flag, info, option, option_reply};

const BYTES: u64 = 1 << 20;

fn server() -> Server {
    Server::start(config(), Backing::Memory, BYTES)
}

fn kinds(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
    replies.iter().map(|(kind, _)| *kind).collect()
}

#[test]
fn the_export_is_listed_and_described() {
    let server = server();
    let mut client = Client::haggle(&server.path);
    let replies = client.option(option::LIST, b"");
    assert_eq!(kinds(&replies), [option_reply::SERVER, option_reply::ACK]);
    assert_eq!(replies[0].1, [&string(b"disk0")[..], b"for tests"].concat());

    for name in ["disk0", ""] {
        let wants = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 77];
        let replies = client.option(option::INFO, &info_data(name, &wants));
        let texts: Vec<_> = replies.iter().map(|(_, data)| &data[..]).collect();
        assert_eq!(kinds(&replies), [3, 3, 3, 3, 1]);
        assert_eq!(texts[1], b"\0\x01disk0");
        assert_eq!(texts[2], b"\0\x02for tests");
        assert_eq!(texts[3], [0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
    }
    let replies = client.option(option::INFO, &info_data("disk1", &[]));
    assert_eq!(kinds(&replies), [option_reply::ERR_UNKNOWN]);
    let text = String::from_utf8(replies[0].1.clone()).unwrap();
    assert!(text.contains("disk1") && text.contains("disk0"), "{text}");
    client.option(option::ABORT, b"");
    assert!(client.is_closed());
}

#[test]
fn an_alias_answers_and_is_not_listed() {
    let server =
        Server::start(NbdConfig { alias: "other".into(), ..config() }, Backing::Memory, BYTES);
    let mut client = Client::haggle(&server.path);
    let replies = client.option(option::LIST, b"");
    assert_eq!(kinds(&replies), [option_reply::SERVER, option_reply::ACK]);
    let replies = client.option(option::INFO, &info_data("other", &[info::NAME]));
    assert_eq!(kinds(&replies), [option_reply::INFO, option_reply::INFO, option_reply::ACK]);
    assert!(replies.iter().any(|(_, data)| data == b"\0\x01disk0"), "{replies:?}");
    let replies = client.option(option::INFO, &info_data("others", &[]));
    assert_eq!(kinds(&replies), [option_reply::ERR_UNKNOWN]);
}

#[test]
fn options_are_refused_and_the_client_may_go_on() {
    let server = server();
    let mut client = Client::haggle(&server.path);
    let long = vec![0; 20_000];
    let invalid = option_reply::ERR_INVALID;
    for (option, data, error) in [
        (option::STARTTLS, &b""[..], option_reply::ERR_UNSUP),
        (option::EXTENDED_HEADERS, b"", option_reply::ERR_UNSUP),
        (4, b"", option_reply::ERR_UNSUP),
        (0xdead_beef, b"whatever", option_reply::ERR_UNSUP),
        (option::LIST, b"x", invalid),
        (option::STRUCTURED_REPLY, b"x", invalid),
        (option::GO, b"\0\0", invalid),
        (option::INFO, b"\xff\xff\xff\xff\0\0", invalid),
        (option::SET_META_CONTEXT, &context_data("", &["base:allocation"]), invalid),
        (option::INFO, &long, option_reply::ERR_TOO_BIG),
        (99, &long, option_reply::ERR_TOO_BIG),
    ] {
        assert_eq!(kinds(&client.option(option, data)), [error], "option {option}");
    }
    assert_eq!(kinds(&client.option(option::STRUCTURED_REPLY, b"")), [option_reply::ACK]);
    let replies = client.option(option::GO, &info_data("", &[]));
    assert_eq!(kinds(&replies), [option_reply::INFO, option_reply::ACK]);
}

#[test]
fn contexts_hold_for_the_name_they_were_chosen_under() {
    let server = server();
    let mut client = Client::haggle(&server.path);
    client.option(option::STRUCTURED_REPLY, b"");
    let listed: [(&[&str], usize); 4] =
        [(&[], 1), (&["base:"], 1), (&["base:allocation", "x:y"], 1), (&["qemu:"], 0)];
    for (queries, count) in listed {
        let replies = client.option(option::LIST_META_CONTEXT, &context_data("disk0", queries));
        assert_eq!(replies.len(), count + 1, "{queries:?}");
    }
    let set = |client: &mut Client, queries: &[&str]| {
        client.option(option::SET_META_CONTEXT, &context_data("disk0", queries)).len() - 1
    };
    assert_eq!(set(&mut client, &["base:"]), 0, "only a listing takes wildcards");
    assert_eq!(set(&mut client, &["base:allocation"]), 1);
    let replies = client.option(option::SET_META_CONTEXT, &context_data("disk1", &[]));
    assert_eq!(kinds(&replies), [option_reply::ERR_UNKNOWN]);
    assert_eq!(set(&mut client, &["base:allocation"]), 1);
    client.option(option::GO, &info_data("", &[]));
    client.structured = true;
    // Chosen for `disk0`, opened as the empty name: not negotiated.
    client.request(0, 7, 1, 0, 512);
    assert_eq!(client.answer(0).error, 22);
}

#[test]
fn the_old_way_in_works_too() {
    let server = server();
    for (flags, zeroes) in [(0u32, 124), (1, 124), (3, 0)] {
        let mut client = Client::connect(&server.path);
        client.say(&flags.to_be_bytes());
        client.say(&option_bytes(option::EXPORT_NAME, b"disk0"));
        assert_eq!(client.take(), BYTES.to_be_bytes());
        let flags = u16::from_be_bytes(client.take());
        assert_eq!(flags & export_flag::SEND_DF, 0, "no chunks were negotiated");
        assert_ne!(flags & export_flag::CAN_MULTI_CONN, 0);
        assert_eq!(client.take_vec(zeroes), vec![0; zeroes]);
        client.request(0, 0, 5, 0, 4);
        assert_eq!(client.answer(4).data, [0; 4]);
    }
}

#[test]
fn who_breaks_the_handshake_is_shown_out() {
    let server = server();
    let fixed = 3u32.to_be_bytes().to_vec();
    let absurd = [&fixed[..], b"IHAVEOPT", &[0, 0, 0, 99, 0xff, 0xff, 0xff, 0xff]].concat();
    for bytes in [
        4u32.to_be_bytes().to_vec(),
        [&fixed[..], b"IHAVENOT", &[0; 8]].concat(),
        [&fixed[..], &option_bytes(option::EXPORT_NAME, b"other")].concat(),
        [&0u32.to_be_bytes()[..], &option_bytes(option::LIST, b"")].concat(),
        absurd,
    ] {
        let mut client = Client::connect(&server.path);
        client.say(&bytes);
        assert!(client.is_closed(), "{bytes:x?}");
    }
    assert_eq!(server.stats().connections_broken, 5);
    Client::open(&server.path, true);
}

#[test]
fn a_read_only_export_says_so() {
    let mut config = config();
    config.read_only = true;
    let server = Server::start(config, Backing::Memory, BYTES);
    let mut client = Client::open(&server.path, true);
    assert_ne!(client.flags & export_flag::READ_ONLY, 0);
    assert_eq!(client.flags & (export_flag::SEND_TRIM | export_flag::SEND_WRITE_ZEROES), 0);
    client.request(0, 1, 1, 0, 3);
    client.say(b"abc");
    for (cookie, command) in [(2, 4), (3, 6)] {
        client.request(0, command, cookie, 0, 512);
    }
    for cookie in 1..=3 {
        let answer = client.answer(0);
        assert_eq!((answer.cookie, answer.error), (cookie, 1));
    }
    client.request(0, 0, 4, 0, 3);
    assert_eq!(client.answer(3).data, [0; 3]);
}
