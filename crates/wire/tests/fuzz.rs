//! The gate under fire: random bytes, damaged frames, lies. Nothing may panic; what is accepted must
//! be consistent in itself and say the same when it is written again. Canaries with a planted fault
//! prove that the fuzzer would find one. `THINWIRE_FUZZ=N` multiplies the effort,
//! `THINWIRE_FUZZ_SEED=S` moves it elsewhere.

mod common;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use common::consistent::{Parsed, consistent, real};
use common::{random::Random, stock::Stock};
use thinwire_wire::*;

/// The parser under test, and those with a planted fault.
type Parser = for<'a> fn(&'a [u8]) -> Result<Parsed<'a>, FrameError>;

/// How often each outcome was seen.
type Outcomes = BTreeMap<&'static str, u64>;

/// Feeds `rounds` frames to `parser`. The error says what is wrong with it.
fn fuzz(parser: Parser, seed: u64, rounds: u64) -> Result<Outcomes, String> {
    let mut random = Random(seed);
    let stock = Stock::new();
    let mut outcomes = Outcomes::new();
    for round in 0..rounds {
        let bytes = stock.next(&mut random);
        let outcome = catch_unwind(AssertUnwindSafe(|| match parser(&bytes) {
            Ok(parsed) => consistent(&bytes, &parsed).map(|()| "accepted"),
            Err(error) => Ok(error.name()),
        }))
        .unwrap_or_else(|_| Err("panic".to_owned()))
        .map_err(|what| format!("seed {seed} round {round}: {what}: {bytes:02x?}"))?;
        *outcomes.entry(outcome).or_default() += 1;
    }
    Ok(outcomes)
}

fn effort() -> u64 {
    std::env::var("THINWIRE_FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

fn first_seed() -> u64 {
    std::env::var("THINWIRE_FUZZ_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1)
}

#[test]
fn the_gate_holds() {
    let mut total = Outcomes::new();
    for seed in first_seed()..first_seed() + 8 * effort() {
        for (name, n) in fuzz(real, seed, 25_000).unwrap_or_else(|what| panic!("{what}")) {
            *total.entry(name).or_default() += n;
        }
    }
    // The fuzzer is worth something only if it gets everywhere.
    for reason in FrameError::ALL.map(FrameError::name).iter().chain(&["accepted"]) {
        let seen = total.get(reason).copied().unwrap_or(0);
        // What only whoever unseals can find.
        let is_of_tags = ["checksum", "forged"].contains(reason);
        assert!(is_of_tags || seen > 100, "{reason} was seen {seen} times: {total:?}");
    }
}

/// What the first stage says of a frame is what the whole gate goes on with, and nothing behind the header
/// has a say in it.
#[test]
fn the_first_stage_looks_at_the_public_part_alone() {
    let (mut random, stock) = (Random(first_seed()), Stock::new());
    let mut seen = 0;
    for _ in 0..50_000 * effort() {
        let bytes = stock.next(&mut random);
        let header = Header::parse(&bytes, bytes.len());
        let mut other = bytes.clone();
        other.iter_mut().skip(TAG_AT).for_each(|byte| *byte = random.next() as u8);
        assert_eq!(Header::parse(&other, other.len()), header);
        if let (Ok(header), Ok(frame)) = (header, Frame::parse(&bytes)) {
            assert_eq!(*frame.header(), header);
            seen += 1;
        }
    }
    assert!(seen > 1000, "{seen} good frames");
}

mod canaries {
    //! Parsers with one planted fault each. The fuzzer must find all of them, or it is blind.

    use super::*;

    /// Parses a repaired copy of the bytes, as if the check for the damage were missing.
    fn after_repair<'a>(
        bytes: &'a [u8],
        repair: impl FnOnce(&mut [u8]),
    ) -> Result<Parsed<'a>, FrameError> {
        let mut copy = bytes.to_vec();
        repair(&mut copy);
        real(copy.leak())
    }

    fn ignores_the_version(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
        after_repair(bytes, |b| b.iter_mut().take(1).for_each(|b| *b = VERSION))
    }

    fn ignores_reserved_fields(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
        after_repair(bytes, |b| b.iter_mut().skip(31).take(1).for_each(|b| *b = 0))
    }

    fn ignores_reserved_flags(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
        after_repair(bytes, |b| b.iter_mut().skip(48).take(1).for_each(|b| *b &= 3))
    }

    fn ignores_the_key_phase(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
        after_repair(bytes, |b| b.iter_mut().skip(3).take(1).for_each(|b| *b = 0))
    }

    fn ignores_the_suite(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
        after_repair(bytes, |b| b.iter_mut().skip(2).take(1).for_each(|b| *b = 0))
    }

    fn trusts_the_length(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
        if let Some(&[high, low]) = bytes.get(4..6) {
            let _ = &bytes[..usize::from(u16::from_be_bytes([high, low]))];
        }
        real(bytes)
    }

    /// Data that runs over the payload by less than a unit is let through.
    fn rounds_payloads_up(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
        let mut longer = bytes.to_vec();
        longer.resize(bytes.len() + 511, 0);
        match real(bytes) {
            Err(FrameError::Truncated) => real(longer.leak()),
            other => other,
        }
    }

    fn drops_the_last_message(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
        let mut parsed = real(bytes)?;
        if parsed.messages.len() > 2 {
            parsed.messages.pop();
        }
        Ok(parsed)
    }

    fn misplaces_the_second_payload(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
        let mut parsed = real(bytes)?;
        let mut data = parsed.messages.iter_mut().filter_map(|m| match m {
            Message::Data(d) => Some(d),
            _ => None,
        });
        if let Some(second) = data.nth(1) {
            second.payload_at += 4;
        }
        Ok(parsed)
    }

    fn reads_a_field_as_little_endian(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
        let mut parsed = real(bytes)?;
        for message in &mut parsed.messages {
            if let Message::Complete(complete) = message {
                complete.status = complete.status.swap_bytes();
            }
        }
        Ok(parsed)
    }

    fn takes_any_message_in_any_frame(bytes: &[u8]) -> Result<Parsed<'_>, FrameError> {
        match real(bytes) {
            Err(FrameError::MessageMisplaced) => {
                let kind = Kind::known(bytes[1]).ok_or(FrameError::Kind)?;
                let mut copy = bytes.to_vec();
                copy[1] = Kind::Session as u8;
                let mut parsed = real(copy.leak())?;
                parsed.header.kind = kind;
                Ok(parsed)
            }
            other => other,
        }
    }

    #[test]
    fn every_planted_fault_is_found() {
        let planted: [(&str, Parser); 11] = [
            ("ignores the version", ignores_the_version),
            ("ignores reserved fields", ignores_reserved_fields),
            ("ignores reserved flags", ignores_reserved_flags),
            ("ignores the key phase", ignores_the_key_phase),
            ("ignores the suite", ignores_the_suite),
            ("trusts the length", trusts_the_length),
            ("rounds payloads up", rounds_payloads_up),
            ("drops the last message", drops_the_last_message),
            ("misplaces the second payload", misplaces_the_second_payload),
            ("reads a field as little endian", reads_a_field_as_little_endian),
            ("takes any message in any frame", takes_any_message_in_any_frame),
        ];
        let missed: Vec<&str> = planted
            .iter()
            .filter(|(_, parser)| fuzz(*parser, 1, 25_000).is_ok())
            .map(|(name, _)| *name)
            .collect();
        assert!(missed.is_empty(), "the fuzzer does not see: {missed:?}");
    }
}
