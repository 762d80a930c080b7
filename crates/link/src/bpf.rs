//! Classic BPF socket filters: the kernel drops what is not for us before it costs a wake-up.
//! Written as a handful of instructions; the kernel compiles them.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;

use crate::sys;

/// Accepts frames in which the number at an offset (counted from the frame's first byte, after the
/// Ethernet header) lies in a range. A list of these accepts what any of them accepts: one for the
/// session ids that this socket's owner receives on, others for what it handles besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeringFilter {
    offset: u16,
    /// The number has four bytes, in network byte order, instead of one.
    is_word: bool,
    first: u32,
    last: u32,
    is_shared: bool,
}

impl SteeringFilter {
    /// No frame: none is so long.
    pub(crate) const NOTHING: Self = SteeringFilter::byte(u16::MAX, 0..=0);

    /// The byte at `offset` lies in `range`.
    pub const fn byte(offset: u16, range: RangeInclusive<u8>) -> Self {
        let (first, last) = (*range.start() as u32, *range.end() as u32);
        SteeringFilter { offset, is_word: false, first, last, is_shared: false }
    }

    /// The four bytes from `offset` on lie in `range`, as a number in network byte order.
    pub const fn word(offset: u16, range: RangeInclusive<u32>) -> Self {
        let (first, last) = (*range.start(), *range.end());
        SteeringFilter { offset, is_word: true, first, last, is_shared: false }
    }

    /// Others on the interface want the frames that this accepts, too: a link that would take them
    /// away from everybody else (`xdp`) leaves them to the kernel, and receives them from there.
    pub const fn shared(self) -> Self {
        SteeringFilter { is_shared: true, ..self }
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    pub(crate) fn offset(&self) -> u16 {
        self.offset
    }

    pub(crate) fn is_word(&self) -> bool {
        self.is_word
    }

    pub(crate) fn range(&self) -> RangeInclusive<u32> {
        self.first..=self.last
    }

    /// The offset of the number's last byte.
    fn end(&self) -> u32 {
        u32::from(self.offset) + if self.is_word { 3 } else { 0 }
    }
}

/// Which of several links on the same interface or address this one is: each shard has its own, and
/// the kernel gives it the frames that carry its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardSteering {
    /// Number of this shard, below `count`.
    pub index: u8,
    /// How many shards there are, at least 1.
    pub count: u8,
    /// Where in a frame the number of its shard stands: by it the kernel chooses among the udp
    /// sockets that share a port. One without a valid number goes to shard 0.
    pub offset: u16,
    /// What this shard receives on packet links.
    pub accepts: Vec<SteeringFilter>,
}

/// At most this many filters in a list: jumps in classic BPF reach 255 instructions.
pub const STEERING_FILTERS_MAX: usize = 64;

const LD_W_ABS: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LD_B_ABS: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const LD_W_LEN: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_LEN) as u16;
const ADD: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const JEQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JGT: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
const JGE: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const RET_A: u16 = (libc::BPF_RET | BPF_A) as u16;
/// "Return what was loaded"; missing in libc.
const BPF_A: u32 = 0x10;
const RET: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const ACCEPT: u32 = u32::MAX;
const PACKET_OTHERHOST: u32 = 3;
const VLAN_ID_MASK: u32 = 0x0fff;

fn instruction(code: u16, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// A load of the kernel's knowledge about the packet instead of its bytes.
fn ancillary(what: libc::c_int) -> libc::sock_filter {
    instruction(LD_W_ABS, (libc::SKF_AD_OFF + what) as u32, 0, 0)
}

/// What a packet socket accepts, as a program for `SO_ATTACH_FILTER`.
///
/// Frames for other stations are refused (an interface in promiscuous mode sees them; and a frame
/// of a VLAN without a device of its own is marked so by the kernel after it took the tag off).
/// With a VLAN, the socket listens to all EtherTypes, because only such a socket sees the tag, and
/// this program picks ours.
pub(crate) fn packet_program(
    vlan: Option<(u16, u16)>,
    steering: &[SteeringFilter],
) -> Vec<libc::sock_filter> {
    assert!(steering.len() <= STEERING_FILTERS_MAX);
    let refuse = instruction(RET, 0, 0, 0);
    let mut program =
        vec![ancillary(libc::SKF_AD_PKTTYPE), instruction(JEQ, PACKET_OTHERHOST, 0, 1), refuse];
    if let Some((id, ethertype)) = vlan {
        program.extend([
            ancillary(libc::SKF_AD_PROTOCOL),
            instruction(JEQ, u32::from(ethertype), 1, 0),
            refuse,
            ancillary(libc::SKF_AD_VLAN_TAG_PRESENT),
            instruction(JEQ, 0, 0, 1),
            refuse,
            ancillary(libc::SKF_AD_VLAN_TAG),
            instruction(AND, VLAN_ID_MASK, 0, 0),
            instruction(JEQ, u32::from(id), 1, 0),
            refuse,
        ]);
    }
    if steering.is_empty() {
        program.push(instruction(RET, ACCEPT, 0, 0));
        return program;
    }
    for filter in steering {
        let load = if filter.is_word { LD_W_ABS } else { LD_B_ABS };
        // A load beyond the end would refuse the frame whatever the filters after it say.
        program.extend([
            instruction(LD_W_LEN, 0, 0, 0),
            instruction(JGT, filter.end(), 0, 4),
            instruction(load, u32::from(filter.offset), 0, 0),
            instruction(JGE, filter.first, 0, 2),
            instruction(JGT, filter.last, 1, 0),
            instruction(RET, ACCEPT, 0, 0),
        ]);
    }
    program.push(refuse);
    program
}

/// Which of the UDP sockets that share a port gets a datagram, in the order in which they were bound: the
/// first shard's, its door, then those of the other shards. Whose number stands at `offset` gets it; the door
/// what has nothing but zeroes there, or is too short; the first shard the rest.
pub(crate) fn choose_program(shard: &ShardSteering) -> Vec<libc::sock_filter> {
    let offset = u32::from(shard.offset);
    vec![
        instruction(LD_W_LEN, 0, 0, 0),
        instruction(JGT, offset + 3, 0, 2),
        instruction(LD_W_ABS, offset, 0, 0),
        instruction(JEQ, 0, 0, 1),
        instruction(RET, 1, 0, 0),
        instruction(LD_B_ABS, offset, 0, 0),
        instruction(JEQ, 0, 3, 0),
        instruction(JGE, u32::from(shard.count), 2, 0),
        instruction(ADD, 1, 0, 0),
        instruction(RET_A, 0, 0, 0),
        instruction(RET, 0, 0, 0),
    ]
}

/// Attaches `program` to a socket, replacing the one before.
pub(crate) fn attach(fd: BorrowedFd<'_>, program: &mut [libc::sock_filter]) -> io::Result<()> {
    attach_as(fd, libc::SO_ATTACH_FILTER, program)
}

/// Attaches `program` to all sockets that share this one's port.
pub(crate) fn attach_choice(
    fd: BorrowedFd<'_>,
    program: &mut [libc::sock_filter],
) -> io::Result<()> {
    attach_as(fd, libc::SO_ATTACH_REUSEPORT_CBPF, program)
}

fn attach_as(
    fd: BorrowedFd<'_>,
    option: libc::c_int,
    program: &mut [libc::sock_filter],
) -> io::Result<()> {
    let described =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    sys::set_option(fd, libc::SOL_SOCKET, option, &described)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    /// Runs the steering part on real packets: a unix datagram socket takes filters, too, and needs
    /// no privilege.
    fn passes(steering: &[SteeringFilter], packet: &[u8]) -> bool {
        let (from, to) = UnixDatagram::pair().unwrap();
        to.set_nonblocking(true).unwrap();
        // Leave out the part about the station: a unix packet has no such type.
        let mut program = packet_program(None, steering).split_off(3);
        attach(to.as_fd(), &mut program).unwrap();
        let _ = from.send(packet);
        to.recv(&mut [0; 64]).is_ok()
    }

    #[test]
    fn steering_accepts_what_any_filter_accepts() {
        let list = [SteeringFilter::byte(3, 7..=7), SteeringFilter::byte(0, b'h'..=b'h')];
        assert!(passes(&list, &[0, 0, 0, 7]));
        assert!(passes(&list, b"h"));
        assert!(passes(&list, b"hello"));
        assert!(!passes(&list, &[7, 7, 7, 8]));
        assert!(!passes(&list, &[0, 0, 0]));
        assert!(passes(&[], &[1]));
    }

    #[test]
    fn the_longest_list_is_a_valid_program() {
        let list = [SteeringFilter::word(65535, 1..=1); STEERING_FILTERS_MAX];
        assert!(!passes(&list, &[1; 64]));
    }

    #[test]
    fn ranges_include_their_ends_and_words_are_read_whole() {
        let bytes = [SteeringFilter::byte(1, 5..=7)];
        for (value, wanted) in [(4, false), (5, true), (6, true), (7, true), (8, false)] {
            assert_eq!(passes(&bytes, &[0, value]), wanted, "{value}");
        }
        let words = [SteeringFilter::word(1, 0x8000_0001..=0x8000_00ff)];
        assert!(passes(&words, &[0, 0x80, 0, 0, 1]));
        assert!(passes(&words, &[0, 0x80, 0, 0, 0xff, 9]));
        assert!(!passes(&words, &[0, 0x80, 0, 1, 0]));
        assert!(!passes(&words, &[0, 0x80, 0, 0]), "cut off");
    }
}
