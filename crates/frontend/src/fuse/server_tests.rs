//! What lseek finds, and that a turn is bounded.

use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt,
};
use thinwire_buffer::Pool;
use thinwire_volume::testing::Puppet;
use thinwire_volume::{Owing, VolumeEvent};
use zerocopy::FromZeros;

use super::*;

#[test]
fn lseek_takes_zeroes_for_holes() {
    let extent = |len, hole, zero| Extent { len, hole, zero };
    let map = [extent(10, false, false), extent(5, true, false), extent(7, false, true)];
    assert_eq!(first_of_kind(false, 100, &map), (true, 100));
    assert_eq!(first_of_kind(true, 100, &map), (true, 115));
    assert_eq!(first_of_kind(false, 115, &map[2..]), (false, 122));
    assert_eq!(first_of_kind(true, 100, &map[..2]), (false, 115));
}

/// A server over a puppet, and the kernel's end: messages, as the device has them.
struct Scene {
    server: FuseServer,
    puppet: Puppet,
    pool: Pool,
    kernel: OwnedFd,
    /// What the last turn has said.
    wants_another: bool,
}

impl Scene {
    fn new() -> Self {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::NONBLOCK);
        let (kernel, ours) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        for end in [&kernel, &ours] {
            sockopt::set_socket_send_buffer_size(end, 1 << 20).unwrap();
        }
        let pool = Pool::new(16 << 20);
        let geometry = Geometry { bytes: 1 << 30, ..Puppet::GEOMETRY };
        let shape =
            Shape { mode: 0, uid: 0, gid: 0, read_only: false, transfer_bytes_max: 1 << 20 };
        let channel = Channel::new(ours, pool.clone(), 1 << 20);
        let server = FuseServer::new(channel, shape, geometry);
        let puppet = Puppet::new(1, geometry);
        Scene { server, puppet, pool, kernel, wants_another: false }
    }

    fn ask(&self, opcode: u32, size: u32, data: &[u8]) {
        self.ask_by(0, opcode, size, data);
    }

    /// By who has this handle.
    fn ask_by(&self, handle: u64, opcode: u32, size: u32, data: &[u8]) {
        let (mut header, mut wish) = (abi::InHeader::new_zeroed(), abi::TransferIn::new_zeroed());
        (wish.fh, wish.size) = (handle, size);
        let heads = header.as_bytes().len() + wish.as_bytes().len();
        (header.opcode, header.nodeid) = (opcode, abi::ROOT_NODE);
        header.len = (heads + data.len()) as u32;
        let message = [header.as_bytes(), wish.as_bytes(), data].concat();
        send(&self.kernel, &message, SendFlags::empty()).unwrap();
    }

    /// A turn, and how many I/Os it submits.
    fn turn(&mut self) -> usize {
        self.wants_another = self.server.turn(&mut self.puppet).unwrap().unwrap();
        self.puppet.take().len()
    }

    /// How many answers have come, and their bytes.
    fn hear(&self) -> (usize, usize) {
        let mut sink = vec![0; 1 << 20];
        let answers = std::iter::from_fn(|| {
            recv(&self.kernel, &mut sink[..], RecvFlags::empty()).ok().map(|(len, _)| len)
        });
        answers.fold((0, 0), |(count, bytes), len| (count + 1, bytes + len))
    }
}

#[test]
fn many_requests_and_their_answers_take_several_turns() {
    let mut scene = Scene::new();
    let (count, len) = (100, 4096);
    (0..count).for_each(|_| scene.ask(opcode::READ, len as u32, &[]));
    let mut taken = 0;
    while taken < count {
        let now = scene.turn();
        assert!((1..=64).contains(&now), "{now} reads");
        taken += now;
        assert_eq!(scene.wants_another, taken < count);
    }
    for token in 0..count as u64 {
        let mut completion = Completion::new(token, Ok(()));
        completion.data = SegList::of(scene.pool.get(len).freeze());
        scene.puppet.complete(completion);
    }
    let mut heard = 0;
    while heard < count {
        scene.turn();
        let (answers, bytes) = scene.hear();
        assert!((1..=64).contains(&answers) && bytes <= 256 << 10, "{answers} of {bytes} bytes");
        heard += answers;
        // What the volume has done is told only once.
        assert_eq!(scene.wants_another, heard < count);
    }
}

#[test]
fn long_requests_take_several_turns() {
    let mut scene = Scene::new();
    let data = vec![7; 60 << 10];
    (0..6).for_each(|_| scene.ask(opcode::WRITE, data.len() as u32, &data));
    assert_eq!((scene.turn(), scene.turn()), (4, 2));
    (0..6).for_each(|_| scene.ask(opcode::READ, 512 << 10, &[]));
    assert_eq!((scene.turn(), scene.turn(), scene.turn()), (2, 2, 2));
}

/// Of what the volume has done some waits for the turns after that, which come at once.
#[test]
fn what_is_lent_is_given_back_turn_by_turn() {
    let mut scene = Scene::new();
    let (count, len) = (16, 256 << 10);
    (0..count).for_each(|_| scene.ask(opcode::READ, len as u32, &[]));
    while scene.turn() > 0 {}
    let links = scene.pool.for_received();
    for token in 0..count {
        let mut completion = Completion::new(token, Ok(()));
        completion.data = SegList::of(links.get(len).freeze());
        scene.puppet.complete(completion);
    }
    for left in (0..count as usize).rev() {
        scene.turn();
        assert_eq!((scene.hear().0, scene.pool.stats().received_bytes), (1, left * len));
        assert!(scene.wants_another || left == 0);
    }
}

/// A server whose volume tells of losses, as a face has it.
struct Telling {
    scene: Scene,
    volume: Owing<Puppet>,
}

impl Telling {
    /// What is answered to this, which the volume does well: a negative errno, or the first word of it.
    fn answer(&mut self, handle: u64, opcode: u32, size: u32, data: &[u8]) -> Result<u64, i32> {
        self.scene.ask_by(handle, opcode, size, data);
        self.turn();
        for io in self.scene.puppet.take() {
            self.scene.puppet.succeed(&io);
            self.turn();
        }
        let mut answer = [0; 200];
        recv(&self.scene.kernel, &mut answer[..], RecvFlags::empty()).expect("an answer");
        let header: abi::OutHeader = FromBytes::read_from_bytes(&answer[..16]).unwrap();
        let word = u64::from_ne_bytes(answer[16..24].try_into().unwrap());
        if header.error == 0 { Ok(word) } else { Err(header.error) }
    }

    fn turn(&mut self) {
        self.scene.server.turn(&mut self.volume).unwrap().unwrap();
    }

    fn open(&mut self) -> u64 {
        self.answer(0, opcode::OPEN, 0, &[]).unwrap()
    }

    fn write(&mut self, handle: u64) {
        self.answer(handle, opcode::WRITE, 512, &[7; 512]).unwrap();
    }

    /// Whether it succeeds: fsync, or else what close does.
    fn syncs(&mut self, handle: u64, is_fsync: bool) -> bool {
        let opcode = if is_fsync { opcode::FSYNC } else { opcode::FLUSH };
        self.answer(handle, opcode, 0, &[]).map_err(|errno| assert_eq!(errno, -libc::EIO)).is_ok()
    }
}

/// As of a file of the kernel's: a program that another one's sync had told for would believe that all is well.
#[test]
fn each_open_of_the_file_is_told_of_a_loss() {
    let scene = Scene::new();
    let volume = Owing::new(scene.puppet.clone(), false);
    let mut file = Telling { scene, volume };
    let [a, b, closed] = [(); 3].map(|()| file.open());
    [a, b].into_iter().for_each(|handle| file.write(handle));
    file.scene.puppet.tell(VolumeEvent::Lost);
    assert_eq!([b, a, b, a].map(|handle| file.syncs(handle, true)), [false, false, true, true]);
    // Close tells, too, of what others have flushed; a reader has nothing to flush.
    [a, b].into_iter().for_each(|handle| file.write(handle));
    file.scene.puppet.tell(VolumeEvent::Lost);
    assert_eq!([a, a].map(|handle| file.syncs(handle, true)), [false, true]);
    assert!(file.syncs(closed, false));
    assert_eq!([b, b].map(|handle| file.syncs(handle, false)), [false, true]);
    // Whoever comes after all that is told nothing.
    [a, b, closed].into_iter().for_each(|handle| {
        file.answer(handle, opcode::RELEASE, 0, &[]).unwrap();
    });
    assert_eq!(file.scene.server.opens(), 0);
    let next = file.open();
    assert!(file.syncs(next, true));
}

/// One that another has the file open for and syncs by, but nobody wrote or read through.
#[test]
fn an_open_that_was_idle_is_told_of_a_loss() {
    let scene = Scene::new();
    let volume = Owing::new(scene.puppet.clone(), false);
    let mut file = Telling { scene, volume };
    let [syncs, writes] = [(); 2].map(|()| file.open());
    file.write(writes);
    file.scene.puppet.tell(VolumeEvent::Lost);
    // Its close tells the writer, which pays for that one only.
    assert!(!file.syncs(writes, false));
    file.answer(writes, opcode::RELEASE, 0, &[]).unwrap();
    assert_eq!([syncs, syncs].map(|handle| file.syncs(handle, true)), [false, true]);
    let next = file.open();
    assert!(file.syncs(next, true));
}

/// With one request at a time a turn more is what the next one waits for, or another processor's time.
#[test]
fn a_turn_after_which_nothing_is_left_wants_no_other() {
    let mut scene = Scene::new();
    scene.ask(opcode::READ, 4096, &[]);
    assert_eq!((scene.turn(), scene.wants_another), (1, false));
    let mut completion = Completion::new(0, Ok(()));
    completion.data = SegList::of(scene.pool.get(4096).freeze());
    scene.puppet.complete(completion);
    assert_eq!((scene.turn(), scene.wants_another), (0, false));
    assert_eq!(scene.hear().0, 1);
}
