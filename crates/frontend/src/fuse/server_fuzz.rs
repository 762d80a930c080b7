//! Requests of a kernel that is out of its mind: any operation on any node, by handles that are not open, of any
//! length and place, too short for its argument, while the volume answers in any order, badly, or grows. Each
//! request is answered once, with as much as it asked for at most, but for those that nobody answers; the volume
//! is asked for nothing that it cannot do.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};
use thinwire_buffer::{Pool, SegList};
use thinwire_fuzz::{Choices, Reached, fuzz};
use thinwire_volume::testing::Puppet;
use thinwire_volume::{Completion, ErrorKind, Extent, Features, Geometry, Io, Op, VolumeEvent};
use zerocopy::{FromBytes, IntoBytes};

use super::abi::{self, opcode};
use super::channel::Channel;
use super::server::{FuseServer, Shape};

const OPCODES: &[u32] = &[
    opcode::LOOKUP,
    opcode::FORGET,
    opcode::GETATTR,
    opcode::SETATTR,
    opcode::OPEN,
    opcode::READ,
    opcode::READ,
    opcode::WRITE,
    opcode::WRITE,
    opcode::STATFS,
    opcode::RELEASE,
    opcode::FSYNC,
    opcode::FLUSH,
    opcode::INIT,
    opcode::DESTROY,
    opcode::IOCTL,
    opcode::BATCH_FORGET,
    opcode::FALLOCATE,
    opcode::LSEEK,
    opcode::LSEEK,
];

/// The longest transfer, as this kernel was told.
const TRANSFER_MAX: usize = 64 << 10;
/// More turns than anything here needs.
const TURNS_MAX: usize = 2_000;

struct Stage {
    server: FuseServer,
    puppet: Puppet,
    pool: Pool,
    kernel: OwnedFd,
    /// Asked and not answered: how long the answer may be.
    asked: BTreeMap<u64, usize>,
    /// With the volume.
    ios: Vec<Io>,
    /// Writes and the like may be made.
    writable: bool,
    unique: u64,
}

impl Stage {
    fn new(choices: &mut Choices<'_>) -> Self {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::NONBLOCK);
        let (kernel, ours) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("a pair");
        for end in [&kernel, &ours] {
            sockopt::set_socket_send_buffer_size(end, 1 << 20).expect("a socket");
        }
        let writable = choices.below(4) != 0;
        let features = Features { read_only: !writable, ..Puppet::FEATURES };
        let geometry = Geometry { bytes: 1 << 20, block_bytes: 1, features, ..Puppet::GEOMETRY };
        let transfer_bytes_max = TRANSFER_MAX as u32;
        let shape = Shape { mode: 0, uid: 0, gid: 0, read_only: !writable, transfer_bytes_max };
        let pool = Pool::new(4 << 20);
        let channel = Channel::new(ours, pool.clone(), TRANSFER_MAX);
        let server = FuseServer::new(channel, shape, geometry);
        let (puppet, asked, ios) = (Puppet::new(1, geometry), BTreeMap::new(), Vec::new());
        Stage { server, puppet, pool, kernel, asked, ios, writable, unique: 0 }
    }

    fn turn(&mut self) {
        let lives = self.server.turn(&mut self.puppet).expect("it goes on");
        assert!(lives.is_some(), "nobody has unmounted it");
        self.ios.extend(self.puppet.take());
        assert!(self.writable || self.ios.iter().all(|io| !io.op.is_write()));
        self.hear();
    }

    /// Takes in answers, each to one who has asked.
    fn hear(&mut self) {
        let mut sink = vec![0; 2 * TRANSFER_MAX];
        while let Ok((length, _)) = recv(&self.kernel, &mut sink[..], RecvFlags::empty()) {
            let (header, _) =
                abi::OutHeader::read_from_prefix(&sink[..length]).expect("a whole header");
            assert_eq!(header.len as usize, length);
            let most = self.asked.remove(&header.unique).expect("an answer to somebody who asked");
            let body = length - size_of::<abi::OutHeader>();
            assert!(body <= most, "{body} bytes for {most}");
            assert!((-4095..=0).contains(&header.error) && (header.error == 0 || body == 0));
            REACHED.count(if header.error == 0 { "answered" } else { "refused" });
        }
    }

    fn ask(&mut self, choices: &mut Choices<'_>) {
        self.unique += 1;
        let opcode =
            if choices.below(32) == 0 { choices.word() % 64 } else { *choices.of(OPCODES) };
        let nodeid = if choices.below(16) == 0 { choices.number() } else { abi::ROOT_NODE };
        let (handle, offset) = (choices.below(4) as u64, choices.number());
        let size = choices.number() as u32 % (TRANSFER_MAX as u32 + 1);
        let mut body = Vec::new();
        let mut most = size_of::<abi::AttrOut>();
        match opcode {
            opcode::READ | opcode::WRITE => {
                let flags = if choices.flag() { libc::O_DSYNC as u32 } else { 0 };
                let wish = abi::TransferIn {
                    fh: handle,
                    offset,
                    size,
                    transfer_flags: 0,
                    lock_owner: 0,
                    flags,
                    padding: 0,
                };
                body.extend_from_slice(wish.as_bytes());
                if opcode == opcode::WRITE {
                    let length = if choices.below(8) == 0 { size / 2 } else { size };
                    body.resize(body.len() + length as usize, 0x5a);
                } else {
                    most = size as usize;
                }
            }
            opcode::FALLOCATE => {
                let (length, mode) = (choices.number(), choices.word() & 0x7f);
                let wish = abi::FallocateIn { fh: handle, offset, length, mode, padding: 0 };
                body.extend_from_slice(wish.as_bytes());
            }
            opcode::LSEEK => {
                let whence = choices.word() % 6;
                let wish = abi::LseekIn { fh: handle, offset, whence, padding: 0 };
                body.extend_from_slice(wish.as_bytes());
            }
            // One that is too old ends the face, and rightly.
            opcode::INIT => {
                let offer =
                    abi::InitIn { major: 7, minor: 31, max_readahead: size, flags: choices.word() };
                body.extend_from_slice(offer.as_bytes());
            }
            _ => {
                body.extend_from_slice(&handle.to_ne_bytes());
                let length = choices.below(112);
                body.extend_from_slice(choices.bytes(length));
            }
        }
        // Too short for its argument.
        if choices.below(16) == 0 {
            body.truncate(choices.below(body.len().max(1)));
        }
        let header = abi::InHeader {
            len: (size_of::<abi::InHeader>() + body.len()) as u32,
            opcode,
            unique: self.unique,
            nodeid,
            uid: 0,
            gid: 0,
            pid: 0,
            total_extlen: 0,
            padding: 0,
        };
        let message = [header.as_bytes(), &body].concat();
        if send(&self.kernel, &message, SendFlags::empty()).is_ok()
            && !matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET)
        {
            self.asked.insert(self.unique, most);
        }
    }

    /// The volume ends an I/O, well or not.
    fn complete(&mut self, choices: &mut Choices<'_>) {
        let io = self.ios.swap_remove(choices.below(self.ios.len()));
        if choices.below(6) == 0 {
            let kind = *choices.of(&[
                ErrorKind::Io,
                ErrorKind::NoSpace,
                ErrorKind::Away,
                ErrorKind::Fenced,
            ]);
            return self.puppet.complete(Completion::new(io.token, Err(io.error(kind, "puppet"))));
        }
        let mut completion = Completion::new(io.token, Ok(()));
        match io.op {
            Op::Read => completion.data = SegList::of(self.pool.get(io.len as usize).freeze()),
            Op::BlockStatus => {
                let mut left = io.len;
                for _ in 0..1 + choices.below(4) {
                    let len = if choices.flag() { left } else { 1 + choices.number() % left };
                    let (hole, zero) = (choices.flag(), choices.flag());
                    completion.extents.push(Extent { len, hole, zero });
                    left -= len;
                    if left == 0 {
                        break;
                    }
                }
            }
            _ => {}
        }
        self.puppet.complete(completion);
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.below(8) {
            0..=3 if self.asked.len() < 300 => self.ask(choices),
            4 | 5 if !self.ios.is_empty() => self.complete(choices),
            6 if choices.below(8) == 0 => {
                let event = match choices.flag() {
                    true => VolumeEvent::Lost,
                    false => {
                        VolumeEvent::Resized { bytes: (1 << 20) + 4096 * choices.below(64) as u64 }
                    }
                };
                self.puppet.tell(event);
            }
            _ => self.turn(),
        }
    }

    /// Everything that is with the volume ends: nobody waits for ever.
    fn end(mut self) {
        for _ in 0..TURNS_MAX {
            self.turn();
            for io in std::mem::take(&mut self.ios) {
                self.puppet.fail(&io);
            }
            if self.asked.is_empty() {
                return REACHED.count("ended");
            }
        }
        panic!("requests without an answer: {:?}", self.asked);
    }
}

static REACHED: Reached = Reached::new();

fn play(choices: &mut Choices<'_>) {
    let mut stage = Stage::new(choices);
    for _ in 0..200 {
        if choices.is_empty() {
            break;
        }
        stage.step(choices);
    }
    stage.end();
}

#[test]
fn fuzz_fuse() {
    fuzz!("fuse", 800, 400, play);
    REACHED.expect(&["answered", "refused", "ended"]);
}
