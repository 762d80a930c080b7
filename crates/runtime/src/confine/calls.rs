//! The system calls that a target makes once it serves, and why: the one list from which its seccomp filter is made
//! (`filter.rs`). `tests/e2e/calls.py` traces targets under the end-to-end tests and compares what they do with it.
//!
//! What io_uring does for a process no filter sees: `disk/restricted.rs` has the list of that.

/// Calls for one purpose.
pub struct CallGroup {
    /// What they are for, and why nothing less does.
    pub why: &'static str,
    /// Each is in one group.
    pub calls: &'static [SystemCallRule],
}

/// A call that is allowed.
pub struct SystemCallRule {
    /// As the kernel calls it.
    pub name: &'static str,
    /// Of this architecture.
    pub number: i64,
    /// With which arguments.
    pub when: When,
    /// Not seen in a trace of the end-to-end tests: another kernel, C library or architecture asks for it, or something
    /// has gone wrong.
    pub is_rare: bool,
}

/// With which arguments a call is allowed.
#[derive(Clone, Copy)]
pub enum When {
    /// Any.
    Always,
    /// All of these hold for one of the lists.
    OneOf(&'static [&'static [Argument]]),
    /// The first argument is the id of this process.
    OfThisProcess,
    /// What is made is a thread of this process, not another process.
    MakesThread,
}

/// Of the argument of this number, counted from 0, the bits of `mask` are `value`. Its low 32 bits count, as in the kernel.
#[derive(Clone, Copy)]
pub struct Argument {
    /// From 0 to 5.
    pub at: u8,
    /// Bits that are looked at.
    pub mask: u32,
    /// How they are set.
    pub value: u32,
}

const fn is(at: u8, value: u32) -> Argument {
    Argument { at, mask: u32::MAX, value }
}

/// Numbers that all architectures share, and that an older kernel than this one may lack, are all below: who asks for a
/// newer call is to think that the kernel does not have it, and do without.
pub const NEWEST_NUMBER: i64 = 456;

/// Memory that is mapped is never code.
const NO_CODE: When = When::OneOf(&[&[Argument { at: 2, mask: libc::PROT_EXEC as u32, value: 0 }]]);
/// `_IO(0x12, 104)`: libc has it for some of the C libraries only.
const BLKSSZGET: u32 = 0x1268;
const REQUESTS: When = When::OneOf(&[
    // How an interface is.
    &[is(1, libc::SIOCGIFINDEX as u32)],
    &[is(1, libc::SIOCGIFMTU as u32)],
    &[is(1, libc::SIOCGIFFLAGS as u32)],
    &[is(1, libc::SIOCGIFHWADDR as u32)],
    // A connection to the control socket does not block.
    &[is(1, libc::FIONBIO as u32)],
    // The sectors of a device that is opened.
    &[is(1, BLKSSZGET)],
]);
/// Flags of an open file.
const FLAGS: When = When::OneOf(&[&[is(1, libc::F_GETFL as u32)], &[is(1, libc::F_SETFL as u32)]]);
const OPTIONS: When = When::OneOf(&[
    // News of interfaces, as long as one is away; the discovery group on one that came back.
    &[is(1, libc::SOL_NETLINK as u32), is(2, libc::NETLINK_ADD_MEMBERSHIP as u32)],
    &[is(1, libc::SOL_NETLINK as u32), is(2, libc::NETLINK_DROP_MEMBERSHIP as u32)],
    &[is(1, libc::SOL_PACKET as u32), is(2, libc::PACKET_ADD_MEMBERSHIP as u32)],
    // A frame to the group leaves on each interface of a UDP link.
    &[is(1, libc::IPPROTO_IP as u32), is(2, libc::IP_MULTICAST_IF as u32)],
    &[is(1, libc::IPPROTO_IPV6 as u32), is(2, libc::IPV6_MULTICAST_IF as u32)],
]);
const NAMES: When = When::OneOf(&[&[is(0, libc::PR_SET_NAME as u32)]]);

macro_rules! call {
    ($name:ident) => {
        call!($name, When::Always)
    };
    ($name:ident, $when:expr) => {
        call!($name, $when, false)
    };
    ($name:ident, $when:expr, $rare:expr) => {{
        const NAME: &str = stringify!($name).split_at("SYS_".len()).1;
        SystemCallRule { name: NAME, number: libc::$name, when: $when, is_rare: $rare }
    }};
}

macro_rules! rare {
    ($name:ident) => {
        rare!($name, When::Always)
    };
    ($name:ident, $when:expr) => {
        call!($name, $when, true)
    };
}

/// All that is allowed. Everything else is refused: new sockets and rings, programs and processes, mounts, signals
/// to others, the kernel's modules, BPF programs, keys, clocks and namespaces.
pub const GROUPS: &[CallGroup] = &[
    CallGroup {
        why: "frames: received and sent on the sockets that were opened before",
        calls: &[
            call!(SYS_recvmmsg),
            call!(SYS_sendmmsg),
            call!(SYS_recvfrom),
            call!(SYS_sendto),
            call!(SYS_getsockopt),
            call!(SYS_getsockname),
            call!(SYS_setsockopt, OPTIONS),
            call!(SYS_ioctl, REQUESTS),
            // A socket whose interface was removed is bound to the next of its name.
            call!(SYS_bind),
        ],
    },
    CallGroup {
        why: "disks: the rings and files that were opened before, and their sizes",
        calls: &[
            call!(SYS_io_uring_enter),
            call!(SYS_lseek),
            call!(SYS_fstat),
            call!(SYS_fsync),
            call!(SYS_flock),
            // What a thread does where io_uring is refused.
            rare!(SYS_pread64),
            rare!(SYS_preadv),
            rare!(SYS_pwritev2),
            rare!(SYS_fdatasync),
            rare!(SYS_fallocate),
        ],
    },
    CallGroup {
        why: "records of who may write, what lies on what, and the files of the run directory, which go at the end",
        calls: &[
            call!(SYS_fgetxattr),
            call!(SYS_fsetxattr),
            rare!(SYS_fremovexattr),
            call!(SYS_openat),
            call!(SYS_close),
            call!(SYS_read),
            call!(SYS_write),
            rare!(SYS_writev),
            call!(SYS_statx),
            call!(SYS_newfstatat),
            call!(SYS_getdents64),
            call!(SYS_unlinkat),
            #[cfg(target_arch = "x86_64")]
            rare!(SYS_open),
            #[cfg(target_arch = "x86_64")]
            call!(SYS_unlink),
            #[cfg(target_arch = "x86_64")]
            call!(SYS_rename),
            #[cfg(target_arch = "x86_64")]
            call!(SYS_mkdir),
            #[cfg(target_arch = "x86_64")]
            call!(SYS_readlink),
            #[cfg(not(target_arch = "riscv64"))]
            rare!(SYS_renameat),
            rare!(SYS_renameat2),
            rare!(SYS_mkdirat),
            rare!(SYS_readlinkat),
        ],
    },
    CallGroup {
        why: "waiting, for descriptors, for each other and for time",
        calls: &[
            call!(SYS_epoll_pwait),
            #[cfg(target_arch = "x86_64")]
            rare!(SYS_epoll_wait),
            call!(SYS_epoll_ctl),
            call!(SYS_epoll_create1),
            call!(SYS_ppoll),
            #[cfg(target_arch = "x86_64")]
            rare!(SYS_poll),
            call!(SYS_futex),
            call!(SYS_sched_yield),
            call!(SYS_clock_nanosleep),
            // Without a page of the kernel to read it from.
            rare!(SYS_clock_gettime),
            rare!(SYS_gettimeofday),
            rare!(SYS_getcpu),
            // After a stop.
            rare!(SYS_restart_syscall),
        ],
    },
    CallGroup {
        why: "a reload: how much memory the machine has, which `memory` is compared with",
        calls: &[call!(SYS_sysinfo)],
    },
    CallGroup {
        why: "a reload that adds an export: whether its file may be written, direct I/O on it, and the bells of its disk",
        calls: &[call!(SYS_eventfd2), call!(SYS_faccessat2), call!(SYS_fcntl, FLAGS)],
    },
    CallGroup {
        why: "`status`: connections to the control socket, on which nobody is called",
        calls: &[call!(SYS_accept4)],
    },
    CallGroup {
        why: "memory, none of it code",
        calls: &[
            call!(SYS_brk),
            call!(SYS_mmap, NO_CODE),
            call!(SYS_mprotect, NO_CODE),
            call!(SYS_munmap),
            rare!(SYS_mremap),
            call!(SYS_madvise),
            rare!(SYS_mincore),
        ],
    },
    CallGroup {
        why: "threads of the disks, which are made when they are first needed; never a process",
        calls: &[
            // Its arguments are in memory, which a filter does not see: answered as by a kernel that does not have it.
            call!(SYS_clone3),
            call!(SYS_clone, When::MakesThread),
            call!(SYS_rseq),
            call!(SYS_set_robust_list),
            call!(SYS_sigaltstack),
            call!(SYS_rt_sigprocmask),
            call!(SYS_prctl, NAMES),
            call!(SYS_sched_getaffinity),
            call!(SYS_gettid),
            call!(SYS_getrusage),
            call!(SYS_exit),
        ],
    },
    CallGroup {
        why: "the end, in order or by a panic that tells where",
        calls: &[
            call!(SYS_exit_group),
            call!(SYS_getpid),
            // The process that takes the files of the run directory away is waited for.
            call!(SYS_wait4),
            rare!(SYS_rt_sigreturn),
            rare!(SYS_rt_sigaction),
            rare!(SYS_tgkill, When::OfThisProcess),
            rare!(SYS_getcwd),
            rare!(SYS_getrandom),
            rare!(SYS_geteuid),
        ],
    },
];

/// Some of those that are refused, by name, for the message: what an intruder would try first, and what a library
/// might begin to do. Of others the number is told.
macro_rules! named {
    ($($name:ident),* $(,)?) => {
        &[$((stringify!($name).split_at("SYS_".len()).1, libc::$name)),*]
    };
}

const REFUSED: &[(&str, i64)] = named![
    SYS_socket,
    SYS_connect,
    SYS_listen,
    SYS_socketpair,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_execve,
    SYS_execveat,
    SYS_kill,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_setuid,
    SYS_setresuid,
    SYS_capset,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_memfd_create,
    SYS_io_uring_setup,
    SYS_io_uring_register,
    SYS_init_module,
    SYS_finit_module,
    SYS_kexec_load,
    SYS_add_key,
    SYS_keyctl,
    SYS_pipe2,
    SYS_dup,
    SYS_dup3,
    SYS_ftruncate,
    SYS_fchmod,
    SYS_fchown,
    SYS_linkat,
    SYS_symlinkat,
    SYS_mknodat,
    SYS_uname,
    SYS_getppid,
    SYS_prlimit64,
    SYS_timerfd_create,
    SYS_timer_create,
    SYS_sched_setaffinity,
    SYS_sched_setscheduler,
    SYS_membarrier,
];

/// Names that newer architectures have no number for.
#[cfg(target_arch = "x86_64")]
const REFUSED_OF_OLD: &[(&str, i64)] =
    named![SYS_creat, SYS_stat, SYS_access, SYS_fork, SYS_vfork, SYS_pipe, SYS_dup2, SYS_select];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_OF_OLD: &[(&str, i64)] = &[];

/// What the kernel calls the call of this number, if it is among those that this file names.
pub fn name_of(number: i64) -> Option<&'static str> {
    let allowed = GROUPS.iter().flat_map(|group| group.calls).map(|call| (call.name, call.number));
    // With arguments that are not allowed one of these is refused, too.
    let refused = REFUSED.iter().chain(REFUSED_OF_OLD).copied();
    allowed.chain(refused).find(|(_, of)| *of == number).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_call_has_one_place() {
        let mut seen = BTreeSet::new();
        for call in GROUPS.iter().flat_map(|group| group.calls) {
            assert!(seen.insert(call.number), "{} stands twice", call.name);
            assert!(call.number <= NEWEST_NUMBER, "{} is newer than NEWEST_NUMBER", call.name);
            assert_eq!(name_of(call.number), Some(call.name));
        }
        for (name, number) in REFUSED.iter().chain(REFUSED_OF_OLD) {
            assert!(!seen.contains(number), "{name} is allowed");
        }
        assert_eq!(name_of(libc::SYS_socket), Some("socket"));
    }
}
