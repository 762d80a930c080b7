//! The seccomp filter: from the list in `calls.rs` to the kernel, for all threads and those made later.
//!
//! A call that is not on the list does not happen, and fails with EPERM (or ENOSYS, if it is one that a library asks
//! for to find out whether the kernel has it). The process goes on: the list may lack what a C library of next year
//! begins to do, and all disks of a target would end with it; whoever has broken in gains nothing by a second try.
//! Each is counted and told of once: the kernel sends a signal in place of the call, whose handler does that and
//! sets the result. Only of a process that was not to be made nothing is told: the C library blocks all signals while
//! it makes one, and who blocks this one is killed by it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::calls::{self, Argument, GROUPS, NEWEST_NUMBER, When};

/// Numbers of calls are counted apart below this, and together from there.
const NUMBERS: usize = 512;

static REFUSED: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];

/// A system call that this process has tried in vain since it was confined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedCall {
    /// As the kernel calls it, or its number.
    pub name: String,
    /// How often.
    pub count: u32,
}

/// All of them, by number.
pub fn refused_calls() -> Vec<RefusedCall> {
    let counts = REFUSED.iter().map(|count| count.load(Ordering::Relaxed)).enumerate();
    let name =
        |number: usize| calls::name_of(number as i64).map_or(number.to_string(), String::from);
    counts
        .filter(|(_, count)| *count > 0)
        .map(|(number, count)| RefusedCall { name: name(number), count })
        .collect()
}

/// Puts the filter on all threads.
///
/// # Errors
/// The kernel has none, is told not to take one, or there is none for this architecture.
pub(super) fn install() -> Result<(), String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)
        .map_err(|_| format!("there is no filter for {}", std::env::consts::ARCH))?;
    let programs = programs(arch).map_err(|e| format!("cannot make the filter: {e}"))?;
    answer_refusals().map_err(|e| format!("cannot hear of what it refuses: {e}"))?;
    for program in &programs {
        seccompiler::apply_filter_all_threads(program).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// What refuses by itself, and the list: of several answers the strictest counts.
fn programs(arch: TargetArch) -> Result<[BpfProgram; 3], seccompiler::BackendError> {
    let fails = |errno: i32| SeccompAction::Errno(errno as u32);
    let (refuse, allow) = (SeccompAction::Trap, SeccompAction::Allow);
    let (mut rules, mut processes) = (BTreeMap::new(), BTreeMap::new());
    for call in GROUPS.iter().flat_map(|group| group.calls) {
        rules.insert(call.number, rules_of(call.when)?);
        if matches!(call.when, When::MakesThread) {
            let makes_none = Argument { at: 0, mask: libc::CLONE_THREAD as u32, value: 0 };
            processes.insert(call.number, vec![rule(&[makes_none])?]);
        }
    }
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let missing = SeccompFilter::new(clone3, allow.clone(), fails(libc::ENOSYS), arch)?;
    let processes = SeccompFilter::new(processes, allow.clone(), fails(libc::EPERM), arch)?;
    let listed = SeccompFilter::new(rules, refuse, allow, arch)?;
    Ok([missing.try_into()?, processes.try_into()?, listed.try_into()?])
}

/// All of this has to hold.
fn rule(arguments: &[Argument]) -> Result<SeccompRule, seccompiler::BackendError> {
    let condition = |argument: &Argument| {
        let Argument { at, mask, value } = *argument;
        let compared = SeccompCmpOp::MaskedEq(mask.into());
        SeccompCondition::new(at, SeccompCmpArgLen::Dword, compared, value.into())
    };
    SeccompRule::new(arguments.iter().map(condition).collect::<Result<_, _>>()?)
}

/// Any of these has to hold; none means always.
fn rules_of(when: When) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    match when {
        When::Always | When::MakesThread => Ok(Vec::new()),
        When::OneOf(rules) => rules.iter().map(|arguments| rule(arguments)).collect(),
        When::OfThisProcess => {
            Ok(vec![rule(&[Argument { at: 0, mask: u32::MAX, value: std::process::id() }])?])
        }
    }
}

/// What stands in a `siginfo_t` of a refused call, behind three numbers that all have.
#[repr(C)]
struct Info {
    head: [libc::c_int; 4],
    address: usize,
    number: libc::c_int,
    arch: libc::c_uint,
}

/// Has [`on_refusal`] called in place of each call that the filter refuses.
fn answer_refusals() -> io::Result<()> {
    // SAFETY: all zero is a valid sigaction: no handler, an empty mask, no flags.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = on_refusal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
    // SAFETY: `action` is a live sigaction, and the handler has the type that SA_SIGINFO promises.
    match unsafe { libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// In a signal handler: allocates nothing, takes no lock.
extern "C" fn on_refusal(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: of SIGSYS, which the kernel sends for a refused call, `info` begins like `Info`. Somebody else who
    // sends it makes a number of it that means nothing.
    let number = unsafe { (*info.cast::<Info>()).number };
    let place = usize::try_from(number).unwrap_or(NUMBERS).min(NUMBERS - 1);
    if REFUSED[place].fetch_add(1, Ordering::Relaxed) == 0 {
        tell(number.into());
    }
    let errno = if i64::from(number) > NEWEST_NUMBER { libc::ENOSYS } else { libc::EPERM };
    // SAFETY: SA_SIGINFO has the kernel hand over the context of the interrupted thread, which it takes back when the
    // handler returns.
    unsafe { set_result(context.cast(), -errno) };
}

/// What the refused call returns.
///
/// # Safety
/// `context` is what a signal handler was given.
unsafe fn set_result(context: *mut libc::ucontext_t, result: libc::c_int) {
    // SAFETY: the caller's promise.
    let machine = unsafe { &mut (*context).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    (machine.gregs[libc::REG_RAX as usize] = result.into());
    #[cfg(target_arch = "aarch64")]
    (machine.regs[0] = i64::from(result) as u64);
    #[cfg(target_arch = "riscv64")]
    (machine.__gregs[libc::REG_A0] = i64::from(result) as u64);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
    let _ = (machine, result);
}

/// A line on stderr, without the log, which has locks.
fn tell(number: i64) {
    struct Line {
        bytes: [u8; 160],
        len: usize,
    }
    impl Write for Line {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            let left = &mut self.bytes[self.len..];
            let len = text.len().min(left.len());
            left[..len].copy_from_slice(&text.as_bytes()[..len]);
            self.len += len;
            Ok(())
        }
    }
    let mut line = Line { bytes: [0; 160], len: 0 };
    let name = calls::name_of(number).unwrap_or("of this number");
    let _ = writeln!(
        line,
        "thinwire: refused by seccomp: the system call {name} ({number}), which a target does not make once it serves"
    );
    // SAFETY: the descriptor lives as long as the process.
    let stderr = unsafe { std::os::fd::BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
    let _ = rustix::io::write(stderr, &line.bytes[..line.len]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_makes_a_filter_on_every_architecture_there_is_one_for() {
        for arch in [TargetArch::x86_64, TargetArch::aarch64, TargetArch::riscv64] {
            let programs = programs(arch).unwrap();
            assert!(programs.iter().all(|program| (3..4096).contains(&program.len())));
        }
    }
}
