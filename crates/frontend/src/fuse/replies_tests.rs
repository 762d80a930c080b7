//! Replies in one call and one by one, and a device that does not take them at once.

use std::io::Read;

use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::pipe::{fcntl_setpipe_size, pipe};
use thinwire_buffer::Segment;

use super::*;

/// Replies, our end of the device, and the kernel's: messages, as the device has them.
fn scene() -> (Replies, OwnedFd, OwnedFd) {
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::NONBLOCK);
    let (kernel, ours) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    (Replies::new(Pool::new(1 << 20)), ours, kernel)
}

/// What has come: of whom, with which error, and what.
fn hear(kernel: &OwnedFd) -> Vec<(u64, i32, Vec<u8>)> {
    let mut sink = [0; 1 << 16];
    let mut heard = Vec::new();
    while let Ok((len, _)) = recv(kernel, &mut sink[..], RecvFlags::empty()) {
        let header: OutHeader = zerocopy::FromBytes::read_from_bytes(&sink[..16]).unwrap();
        assert_eq!(header.len as usize, len);
        heard.push((header.unique, header.error, sink[16..len].to_vec()));
    }
    heard
}

fn segment(bytes: &[u8]) -> Segment {
    Pool::new(1 << 20).copy_of(bytes).freeze()
}

/// One of each kind, twice; what is heard of it.
fn say(replies: &mut Replies, device: &OwnedFd, kernel: &OwnedFd) -> Vec<(u64, i32, Vec<u8>)> {
    for unique in [10, 20] {
        let mut data = SegList::of(segment(&[1; 4096]));
        data.push(segment(&[2; 4096]));
        replies.push(device, unique, 0, &[7; BODY_BYTES_MAX], SegList::new());
        replies.push(device, unique + 1, -libc::EIO, &[], SegList::new());
        replies.push(device, unique + 2, 0, &[], data);
    }
    assert_eq!(hear(kernel), [], "they are kept");
    assert!(replies.send(device));
    hear(kernel)
}

/// A thread in which the system call of this number fails where its third argument is so large, as the filter of a
/// container has it, or a kernel without memory.
fn refusing(number: i64, third_min: u32, errno: i32, work: impl FnOnce() + Send) {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, is) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_K);
    let refusal = libc::SECCOMP_RET_ERRNO | errno as u32;
    let mut filter = [
        // Of `seccomp_data` the first word is the call's number, and 32 bytes lie before its third argument.
        instruction(load, 0, 0, 0),
        instruction(is | libc::BPF_JEQ, 0, 3, number as u32),
        instruction(load, 0, 0, 32),
        instruction(is | libc::BPF_JGE, 0, 1, third_min),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, refusal),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let refused = move || {
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the program and its instructions live during the calls; both only bind this thread.
        let results = unsafe {
            [
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
            ]
        };
        assert_eq!(results, [0, 0], "{}", std::io::Error::last_os_error());
        work();
    };
    std::thread::scope(|scope| _ = scope.spawn(refused));
}

#[test]
fn what_is_kept_leaves_in_one_call_or_else_one_by_one() {
    let (mut replies, device, kernel) = scene();
    assert!(replies.ring.is_some(), "this machine has io_uring");
    let data = [[1; 4096], [2; 4096]].concat();
    let of = |unique| {
        let body = vec![7; BODY_BYTES_MAX];
        [(unique, 0, body), (unique + 1, -libc::EIO, vec![]), (unique + 2, 0, data.clone())]
    };
    let expected = [of(10), of(20)].concat();
    assert_eq!(say(&mut replies, &device, &kernel), expected);
    assert_eq!((replies.calls, replies.sent, replies.free.len()), (1, 0, SLOTS));
    replies.ring = None;
    assert_eq!(say(&mut replies, &device, &kernel), expected);
    assert_eq!((replies.calls, replies.free.len()), (1, SLOTS));
}

#[test]
fn a_single_one_is_written_without_the_ring() {
    let (mut replies, device, kernel) = scene();
    replies.push(&device, 1, 0, &[5; 8], SegList::new());
    assert!(replies.send(&device) && replies.send(&device));
    assert_eq!((hear(&kernel), replies.calls), (vec![(1, 0, vec![5; 8])], 0));
}

#[test]
fn more_than_is_kept_leaves_before() {
    let (mut replies, device, kernel) = scene();
    let count = SLOTS as u64 + 5;
    (0..count).for_each(|unique| replies.push(&device, unique, 0, &[], SegList::new()));
    assert_eq!(hear(&kernel).len(), SLOTS);
    assert!(replies.send(&device));
    let last: Vec<_> = hear(&kernel).iter().map(|(unique, ..)| *unique).collect();
    assert_eq!(last, [64, 65, 66, 67, 68]);
}

#[test]
fn data_in_many_pieces_is_copied_into_one() {
    let (mut replies, device, kernel) = scene();
    let mut data = SegList::new();
    (0..=DATA_PIECES_MAX).for_each(|n| data.push(segment(&[n as u8; 100])));
    let expected = data.to_vec();
    replies.push(&device, 1, 0, &[], data);
    assert_eq!(replies.slots[replies.queued[0]].data.as_slice().len(), 1);
    assert!(replies.send(&device));
    assert_eq!(hear(&kernel), [(1, 0, expected)]);
}

/// Two replies to a pipe that is full, and would have them wait.
fn stuck() -> (Replies, OwnedFd, OwnedFd, [Segment; 2]) {
    let (reader, writer) = pipe().unwrap();
    let room = fcntl_setpipe_size(&writer, 4096).unwrap();
    assert_eq!(rustix::io::write(&writer, &vec![0; room]), Ok(room));
    let mut replies = Replies::new(Pool::new(1 << 20));
    let segments = [1, 2].map(|byte| segment(&[byte; 512]));
    for (unique, one) in segments.iter().enumerate() {
        replies.push(&writer, unique as u64, 0, &[], SegList::of(one.clone()));
    }
    assert!(replies.send(&writer), "the kernel has them");
    assert_eq!((replies.sent, replies.free.len()), (2, SLOTS - 2));
    (replies, reader, writer, segments)
}

#[test]
fn what_the_kernel_has_not_done_with_stays_as_it_is() {
    let (mut replies, reader, writer, segments) = stuck();
    assert!(segments.iter().all(|one| !one.is_unique()));
    let mut heard = vec![0; 4096 + 2 * (16 + 512)];
    let mut reader = std::fs::File::from(reader);
    reader.read_exact(&mut heard).unwrap();
    // The first data of either is behind its header.
    let mut firsts = [heard[4096 + 16], heard[4096 + 16 + 512 + 16]];
    firsts.sort();
    assert_eq!(firsts, [1, 2]);
    while replies.sent > 0 {
        replies.take_in(&writer);
        std::thread::yield_now();
    }
    assert!(segments.iter().all(Segment::is_unique));
}

#[test]
fn what_the_kernel_still_reads_is_left_to_it_when_all_is_dropped() {
    let (replies, _reader, writer, segments) = stuck();
    drop(replies);
    drop(writer);
    assert!(segments.iter().all(|one| !one.is_unique()));
}

/// As a container has it, whether it forbids to make a ring or to enter one.
#[test]
fn without_io_uring_replies_go_one_by_one() {
    for call in [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter] {
        for errno in [libc::EPERM, libc::ENOSYS] {
            refusing(call, 0, errno, || {
                let (mut replies, device, kernel) = scene();
                assert!(replies.ring.is_none());
                assert_eq!(say(&mut replies, &device, &kernel).len(), 6);
                assert_eq!((replies.calls, replies.free.len()), (0, SLOTS));
            });
        }
    }
}

/// It has had none for the list of its pieces.
#[test]
fn a_reply_for_which_the_kernel_had_no_memory_is_sent_in_one_piece() {
    refusing(libc::SYS_writev, 9, libc::ENOMEM, || {
        let (mut replies, device, kernel) = scene();
        let mut data = SegList::new();
        (0..20).for_each(|n| data.push(segment(&[n; 100])));
        let expected = data.to_vec();
        replies.push(&device, 1, 0, &[9; 8], data);
        assert!(replies.send(&device));
        assert!(hear(&kernel) == [(1, 0, [vec![9; 8], expected].concat())]);
    });
}

/// Here it is longer than the device takes.
#[test]
fn the_request_of_a_reply_that_is_refused_fails() {
    let (mut replies, device, kernel) = scene();
    rustix::net::sockopt::set_socket_send_buffer_size(&device, 16 << 10).unwrap();
    for _ in 0..2 {
        for (unique, len) in [(1, 100), (2, 100_000), (3, 200)] {
            replies.push(&device, unique, 0, &[], SegList::of(segment(&vec![1; len])));
        }
        assert!(replies.send(&device));
        let heard = hear(&kernel);
        let of = |unique| heard.iter().find(|one| one.0 == unique).map(|one| (one.1, one.2.len()));
        assert_eq!([1, 2, 3].map(of), [Some((0, 100)), Some((-libc::EIO, 0)), Some((0, 200))]);
        assert_eq!((heard.len(), replies.free.len()), (3, SLOTS));
        replies.ring = None;
    }
}
