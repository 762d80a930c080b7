//! Clients that nobody here wrote: libnbd's tools, qemu's, fio, and nbdsh with its strict mode off.
//!
//! Each test is skipped, loudly, only if its tool is not installed.

mod nbd_common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nbd_common::{Backing, Server, config};
use thinwire_frontend::nbd::Listen;
use thinwire_volume::testing::SplitMix64;

const BYTES: u64 = 64 << 20;

/// Whether the program can be run; if not, says so where it is seen.
fn has(program: &str, check: &[&str]) -> bool {
    let found = Command::new(program)
        .args(check)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        eprintln!("\n*** SKIPPED: {program} is not installed, so it proves nothing here ***\n");
    }
    found
}

/// Runs a command that must succeed. A client that hangs is killed and has failed.
fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new("timeout")
        .args(["--kill-after=5", "120", program])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A folder that is removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("nbd-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// An image with data, zeroes and an odd boundary between them.
    fn image(&self, name: &str) -> String {
        let mut bytes = vec![0; BYTES as usize];
        let mut rng = SplitMix64::new(5);
        for run in bytes.chunks_mut(1_234_567).step_by(3) {
            for word in run.chunks_exact_mut(8) {
                word.copy_from_slice(&rng.next().to_le_bytes());
            }
        }
        let path = self.file(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn same(one: &str, other: &str) -> bool {
    std::fs::read(Path::new(one)).unwrap() == std::fs::read(Path::new(other)).unwrap()
}

fn servers() -> [Server; 3] {
    let mut tcp = config();
    tcp.listen = Listen::Tcp("127.0.0.1:0".into());
    [
        Server::start(config(), Backing::Memory, BYTES),
        Server::start(config(), Backing::SlowFile, BYTES),
        Server::start(tcp, Backing::Memory, BYTES),
    ]
}

#[test]
fn nbdinfo_sees_what_there_is() {
    if !has("nbdinfo", &["--version"]) {
        return;
    }
    for server in servers() {
        let list = text(&run("nbdinfo", &["--list", &server.uri("")]));
        assert!(list.contains("export=\"disk0\"") && list.contains("for tests"), "{list}");
        for name in ["", "disk0"] {
            let uri = server.uri(name);
            assert_eq!(text(&run("nbdinfo", &["--size", &uri])).trim(), BYTES.to_string());
            for can in
                ["structured-reply", "df", "flush", "fua", "multi-conn", "trim", "zero", "write"]
            {
                run("nbdinfo", &["--can", can, &uri]);
            }
            let map = text(&run("nbdinfo", &["--map", &uri]));
            assert!(map.contains("hole,zero"), "{map}");
        }
        let status = Command::new("nbdinfo")
            .args(["--size", &server.uri("nobody")])
            .stderr(Stdio::null())
            .status();
        assert!(!status.unwrap().success(), "an export that does not exist");
    }
}

#[test]
fn nbdcopy_copies_both_ways() {
    if !has("nbdcopy", &["--version"]) {
        return;
    }
    let folder = Folder::new("copy");
    let (image, back) = (folder.image("image"), folder.file("back"));
    for server in servers() {
        run("nbdcopy", &["--flush", &image, &server.uri("disk0")]);
        run("nbdcopy", &[&server.uri(""), &back]);
        assert!(same(&image, &back), "{}", server.path);
        // Between two exports, with several connections each.
        let other = Server::start(config(), Backing::Memory, BYTES);
        run("nbdcopy", &["--connections=4", &server.uri(""), &other.uri("")]);
        run("nbdcopy", &["--synchronous", &other.uri(""), &back]);
        assert!(same(&image, &back), "{}", server.path);
    }
}

#[test]
fn qemu_converts_and_compares() {
    if !has("qemu-img", &["--version"]) || !has("qemu-io", &["--version"]) {
        return;
    }
    let folder = Folder::new("qemu");
    let (image, back) = (folder.image("image"), folder.file("back"));
    for server in servers() {
        let uri = server.uri("disk0");
        run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", &image, &uri]);
        run("qemu-img", &["compare", "-f", "raw", "-F", "raw", &image, &uri]);
        run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, &back]);
        assert!(same(&image, &back), "{}", server.path);
        let mut commands = vec!["-f", "raw"];
        for command in [
            "write -P 7 513 100001",
            "read -P 7 513 100001",
            "write -f -P 8 4095 2",
            "read -P 8 4095 2",
            "write -z 1000 70000",
            "read -P 0 1000 70000",
            "read -P 7 71000 29514",
            "discard 0 1M",
            "write -zu 2000001 3000003",
            "read -P 0 2000001 3000003",
            "flush",
            "aio_write -P 1 0 8k",
            "aio_write -P 2 8k 8k",
            "aio_flush",
            "read -P 1 0 8k",
            "read -P 2 8k 8k",
        ] {
            commands.extend(["-c", command]);
        }
        commands.push(&uri);
        let said = text(&run("qemu-io", &commands));
        // qemu-io may say that a pattern differs and succeed.
        assert!(!said.contains("failed") && !said.contains("error"), "{said}");
    }
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !has("fio", &["--version"]) {
        return;
    }
    for server in servers() {
        let uri = format!("--uri={}", server.uri("disk0"));
        for (name, more) in [
            ("mixed", &["--bsrange=512-1M", "--blockalign=512", "--iodepth=32"][..]),
            ("odd", &["--bsrange=513-70001", "--bs_unaligned=1", "--iodepth=16"]),
            ("small", &["--bs=512", "--iodepth=64", "--io_size=8M"]),
        ] {
            let name = format!("--name={name}");
            let mut arguments = vec![
                &name[..],
                "--ioengine=nbd",
                &uri,
                "--rw=randrw",
                "--size=16M",
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_state_save=0",
                "--do_verify=1",
                "--randseed=3",
                "--output-format=terse",
            ];
            arguments.extend(more);
            run("fio", &arguments);
        }
    }
}

/// Illegal requests of a library that knows the protocol: every one is answered, with the right
/// number, and the connection serves on.
#[test]
fn nbdsh_with_strict_mode_off() {
    if !has("/usr/bin/python3", &["-c", "import nbd"]) {
        return;
    }
    const SCRIPT: &str = r#"
import errno, sys, nbd

def fails(number, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except nbd.Error as error:
        assert error.errnum == number, (call.__name__, arguments, named, error.errnum, str(error))
        return
    raise AssertionError((call.__name__, arguments, named, "succeeded"))

size = 64 << 20
for structured in (True, False):
    h = nbd.NBD()
    h.set_request_structured_replies(structured)
    h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    h.connect_uri(sys.argv[1])
    h.set_strict_mode(0)
    assert h.get_size() == size
    fails(errno.EINVAL, h.pread, 512, size)
    fails(errno.EINVAL, h.pread, 512, size - 511)
    fails(errno.EINVAL, h.pread, 0, 0)
    fails(errno.ENOSPC, h.pwrite, b"x" * 512, size)
    fails(errno.ENOSPC, h.pwrite, b"x" * 512, size - 1)
    fails(errno.EINVAL, h.pwrite, b"", 0)
    fails(errno.EINVAL, h.trim, 512, size)
    fails(errno.EINVAL, h.trim, 0, 0)
    fails(errno.ENOSPC, h.zero, 512, size)
    fails(errno.EINVAL, h.zero, 0, 0)
    fails(errno.EINVAL, h.zero, 512, 0, nbd.CMD_FLAG_FAST_ZERO)
    fails(errno.EINVAL, h.cache, 512, 0)
    fails(errno.EINVAL, h.pread, 512, 0, 0x8000)
    fails(errno.EINVAL, h.pwrite, b"y" * 512, 0, nbd.CMD_FLAG_REQ_ONE)
    fails(errno.EINVAL, h.trim, 512, 0, nbd.CMD_FLAG_NO_HOLE)
    fails(errno.EINVAL, h.flush, nbd.CMD_FLAG_DF)
    if structured:
        fails(errno.EINVAL, h.block_status, 512, size, lambda *a: 0)
        seen = []
        h.block_status(size, 0, lambda context, offset, extents, error: seen.append(context))
        assert seen == ["base:allocation"], seen
        h.pread_structured(512, 0, lambda *a: 0, nbd.CMD_FLAG_DF)
    h.pwrite(b"still here", 12345, nbd.CMD_FLAG_FUA)
    assert h.pread(10, 12345) == b"still here"
    h.zero(5, 12345, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
    assert h.pread(10, 12345) == b"\0" * 5 + b" here"
    h.flush()
    h.shutdown()
print("all refused")
"#;
    for server in servers() {
        let output = run("/usr/bin/python3", &["-c", SCRIPT, &server.uri("disk0")]);
        assert_eq!(text(&output).trim(), "all refused");
    }
}
