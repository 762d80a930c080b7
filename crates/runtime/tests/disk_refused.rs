//! Where the kernel refuses a call: without io_uring, as in many containers, threads do the disk I/O, and what
//! cannot be synced is not taken for durable.

mod common;

use common::{Dir, Store, open_disk};
use thinwire_runtime::disk::{Backend, DiskOpenError, DiskOptions, UnusedGrants};
use thinwire_volume::LeafGrant;

/// Makes the system call of this number fail in the calling thread and those it starts.
fn refuse(number: i64, errno: i32) {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let refusal = libc::SECCOMP_RET_ERRNO | errno as u32;
    let mut filter = [
        // The system call's number is the first word of `seccomp_data`.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, refusal),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its instructions live during the calls; both only bind this thread.
    let results = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        ]
    };
    assert_eq!(results, [0, 0], "{}", std::io::Error::last_os_error());
}

#[test]
fn threads_take_over_and_say_why() {
    refuse(libc::SYS_io_uring_setup, libc::EPERM);
    let dir = Dir::new();
    let path = dir.image("image", 1 << 20);
    let opened = open_disk(&path, &dir.options()).unwrap();
    assert_eq!(opened.disk.backend(), "threads");
    let note = opened.notes.iter().find(|note| note.contains("io_uring is refused")).unwrap();
    assert!(note.contains("kernel.io_uring_disabled"), "{note}");
    drop(opened);
    let options = DiskOptions { backend: Backend::Uring, ..dir.options() };
    let error = open_disk(&path, &options).unwrap_err();
    assert!(matches!(error, DiskOpenError::NoUring { .. }), "{error}");
    // The failed attempt left no lock behind.
    let mut store = Store::open(&path, &dir.options());
    store.write(4096, &[5; 4096]).result.unwrap();
    assert_eq!(store.read(4096, 4096), [5; 4096]);
}

/// A removal that finds nothing may follow one whose sync has failed.
#[test]
fn a_note_of_a_grant_is_not_forgotten_before_that_is_synced() {
    let dir = Dir::new();
    let state = dir.path().join("state");
    let noted = UnusedGrants::new(&state).granted(&[7; 16], "disk1", LeafGrant::alone(4));
    let files = || std::fs::read_dir(&state).unwrap().count();
    assert_eq!(files(), 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            refuse(libc::SYS_fsync, libc::EIO);
            for _ in 0..2 {
                let error = noted.forget().unwrap_err();
                assert_eq!((error.raw_os_error(), files()), (Some(libc::EIO), 0));
            }
        });
    });
    noted.forget().unwrap();
    // Where there is no folder, there was no note.
    std::fs::remove_dir(&state).unwrap();
    noted.forget().unwrap();
}
