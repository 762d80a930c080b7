//! The program that the kernel runs on every frame the interface receives: frames for this link go
//! to its socket, all others their usual way.

use super::assembler::{Assembler, Instruction, Register::*, When, Width};
use crate::SteeringFilter;

/// What becomes of a frame that no socket takes (the kernel's `XDP_PASS`): it goes its usual way.
pub(super) const PASS: i32 = 2;

/// `bpf_redirect_map(map, key, what to do without an entry)`.
const REDIRECT_MAP: i32 = 51;
/// Fields of the program's argument, `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;

/// What this link takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken<'a> {
    /// Frames to this station.
    pub(super) mac: [u8; 6],
    pub(super) ethertype: u16,
    /// Behind this 802.1Q tag, or behind none.
    pub(super) vlan: Option<u16>,
    /// That any of these accepts and no other socket may want ([`SteeringFilter::shared`]); all if
    /// empty. One at least is not shared: the kernel refuses a program with a dead part.
    pub(super) steering: &'a [SteeringFilter],
}

impl Taken<'_> {
    /// Bytes before the frame: addresses, tag, EtherType.
    pub(super) fn header_bytes(&self) -> usize {
        if self.vlan.is_some() { 18 } else { 14 }
    }

    /// The program. `map` is the descriptor of the map from receive queues to sockets; `missed` says
    /// what becomes of a frame whose queue has none: [`PASS`], but in tests.
    ///
    /// Frames to groups pass: everybody wants them, and there is only one of each. So does everything
    /// too short to tell. A frame whose tag the adapter has taken off looks as if it never had one: a
    /// link with a VLAN lets it pass, one without takes it ([`crate::LinkSpec::may_rob`]).
    pub(super) fn program(&self, map: i32, missed: i32) -> Vec<Instruction> {
        let mut a = Assembler::default();
        let (pass, take) = (a.label(), a.label());
        a.copy(R6, R1);
        a.load(Width::Word, R2, R6, DATA);
        a.load(Width::Word, R3, R6, DATA_END);
        let header = self.header_bytes() as i32;
        a.copy(R4, R2);
        a.add(R4, header);
        a.jump_if(When::Greater, R4, R3, pass);
        let [m0, m1, m2, m3, m4, m5] = self.mac;
        let mut must_be = |width, at, value| {
            a.load(width, R5, R2, at);
            a.jump_if_word(When::NotEqual, R5, value, pass);
        };
        must_be(Width::Word, 0, u32::from_ne_bytes([m0, m1, m2, m3]));
        must_be(Width::Half, 4, u16::from_ne_bytes([m4, m5]).into());
        must_be(Width::Half, header as i16 - 2, self.ethertype.to_be().into());
        if let Some(vlan) = self.vlan {
            must_be(Width::Half, 12, 0x8100u16.to_be().into());
            a.load(Width::Half, R5, R2, 14);
            a.and(R5, 0x0fffu16.to_be().into());
            a.jump_if_word(When::NotEqual, R5, vlan.to_be().into(), pass);
        }
        for filter in self.steering.iter().filter(|filter| !filter.is_shared()) {
            let next = a.label();
            let range = filter.range();
            let at = header + i32::from(filter.offset());
            let (width, bytes) = if filter.is_word() { (Width::Word, 4) } else { (Width::Byte, 1) };
            a.copy(R4, R2);
            a.add(R4, at);
            // The verifier wants the end of what is read compared, in a register of its own.
            a.copy(R5, R4);
            a.add(R5, bytes);
            a.jump_if(When::Greater, R5, R3, next);
            a.load(width, R5, R4, 0);
            if filter.is_word() {
                a.network_to_host(R5, 32);
            }
            a.jump_if_word(When::Less, R5, *range.start(), next);
            a.jump_if_word(When::Greater, R5, *range.end(), next);
            a.jump(take);
            a.here(next);
        }
        if !self.steering.is_empty() {
            a.jump(pass);
        }
        a.here(take);
        a.load_map(R1, map);
        a.load(Width::Word, R2, R6, RX_QUEUE);
        a.set(R3, missed);
        a.call(REDIRECT_MAP);
        a.exit();
        a.here(pass);
        a.set(R0, PASS);
        a.exit();
        a.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use super::super::bpf;
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x81];
    const DROP: i32 = 1;

    fn frame(to: [u8; 6], tag: Option<u16>, ethertype: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = to.to_vec();
        bytes.extend([2, 0, 0, 0, 0, 9]);
        if let Some(tag) = tag {
            bytes.extend([0x81, 0]);
            bytes.extend(tag.to_be_bytes());
        }
        bytes.extend(ethertype.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    /// Whether the kernel, running the program on it, finds that a frame is ours.
    fn takes(taken: &Taken<'_>, frame: &[u8]) -> bool {
        let map = bpf::socket_map(1).unwrap();
        // No socket is in the map, so what is taken gets the answer for that.
        let program = taken.program(map.as_fd().as_raw_fd(), DROP);
        let program = bpf::load(&program).unwrap();
        match bpf::try_on(program.as_fd(), frame).unwrap() {
            PASS => false,
            DROP => true,
            other => panic!("verdict {other}"),
        }
    }

    fn is_root() -> bool {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            eprintln!("skipped: programs need root");
        }
        is_root
    }

    #[test]
    fn only_our_ethertype_to_our_station_is_taken() {
        if !is_root() {
            return;
        }
        let taken = Taken { mac: MAC, ethertype: 0x88b5, vlan: None, steering: &[] };
        assert!(takes(&taken, &frame(MAC, None, 0x88b5, &[0; 46])));
        assert!(takes(&taken, &frame(MAC, None, 0x88b5, &[])));
        assert!(!takes(&taken, &frame(MAC, None, 0x88b6, &[0; 46])));
        assert!(!takes(&taken, &frame(MAC, None, 0xb588, &[0; 46])));
        assert!(!takes(&taken, &frame(MAC, Some(7), 0x88b5, &[0; 46])));
        for at in 0..6 {
            let mut other = MAC;
            other[at] ^= 1;
            assert!(!takes(&taken, &frame(other, None, 0x88b5, &[0; 46])), "byte {at}");
        }
    }

    #[test]
    fn a_vlan_is_told_by_its_id_whatever_the_priority() {
        if !is_root() {
            return;
        }
        let taken = Taken { mac: MAC, ethertype: 0x88b5, vlan: Some(0x123), steering: &[] };
        assert!(takes(&taken, &frame(MAC, Some(0x123), 0x88b5, &[0; 46])));
        assert!(takes(&taken, &frame(MAC, Some(0xe123), 0x88b5, &[0; 46])));
        assert!(!takes(&taken, &frame(MAC, Some(0x124), 0x88b5, &[0; 46])));
        assert!(!takes(&taken, &frame(MAC, Some(0x123), 0x0800, &[0; 46])));
        assert!(!takes(&taken, &frame(MAC, None, 0x88b5, &[0; 46])));
    }

    #[test]
    fn steering_takes_what_is_ours_alone() {
        if !is_root() {
            return;
        }
        let steering = [
            SteeringFilter::word(2, 0x8000_0001..=0x8000_0003),
            SteeringFilter::byte(1, 5..=6),
            SteeringFilter::word(2, 0..=0).shared(),
        ];
        for vlan in [None, Some(9)] {
            let taken = Taken { mac: MAC, ethertype: 0x88b5, vlan, steering: &steering };
            let ours = |payload: &[u8]| takes(&taken, &frame(MAC, vlan, 0x88b5, payload));
            for (id, wanted) in [(0x8000_0000u32, false), (0x8000_0001, true), (0x8000_0003, true)]
            {
                assert_eq!(ours(&[&[0, 0], &id.to_be_bytes()[..]].concat()), wanted, "{id:#x}");
            }
            assert!(!ours(&[0, 0, 0x80, 0, 0, 4]));
            assert!(!ours(&[0; 46]), "shared");
            assert!(!ours(&[0, 0, 0x80, 0, 0]), "cut off");
            assert!(ours(&[0, 5]) && ours(&[0, 6, 1, 1, 1, 1]));
            assert!(!ours(&[0, 7, 1, 1, 1, 1]) && !ours(&[0]));
        }
    }

    #[test]
    fn the_longest_program_is_accepted_and_a_wrong_one_refused_with_the_reason() {
        if !is_root() {
            return;
        }
        let steering = vec![SteeringFilter::word(2, 1..=2); crate::STEERING_FILTERS_MAX];
        let taken = Taken { mac: MAC, ethertype: 0x88b5, vlan: Some(9), steering: &steering };
        assert!(takes(&taken, &frame(MAC, Some(9), 0x88b5, &[0, 0, 0, 0, 0, 2])));
        let mut a = Assembler::default();
        a.load(Width::Word, R0, R5, 0);
        a.exit();
        let refused = bpf::load(&a.finish()).unwrap_err().to_string();
        assert!(refused.contains("R5 !read_ok"), "{refused}");
    }
}
