"""A block device node: file systems nobody here wrote, on a disk across the switch."""

import hashlib
import os
import random
import stat
import time

import harness
import node
from harness import Failure, check, run, tail
from node import Attachment, Target, image, thinwire, uri
from registry import test

MKFS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
FSCK = {"ext4": ["fsck.ext4", "-f", "-n"], "xfs": ["xfs_repair", "-n"]}
KINDS = {"ext4": {"kind": "ext4"}, "xfs": {"kind": "xfs"}}


def make_repository(folder):
    """A git repository of a few hundred files in a few commits, the same bytes every time."""
    chance = random.Random(1)
    env = {**os.environ, "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
           "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    def git(*words):
        run("git", "-C", folder, "-c", "user.name=Thinwire", "-c", "user.email=test@thinwire.invalid", *words, env=env)
    os.mkdir(folder)
    git("init", "-q", "-b", "main")
    for commit in range(4):
        for number in range(150):
            path = os.path.join(folder, f"d{number % 13}", f"f{number}")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "ab") as file:
                file.write(chance.randbytes(chance.randrange(1, 30000)))
        git("add", "-A")
        git("commit", "-q", "-m", f"Commit {commit}")


def checksums(folder):
    """SHA-256 of each file below a folder."""
    found = {}
    for here, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(here, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = hashlib.sha256(file.read()).hexdigest()
    return found


def mount(lab, node, point="mnt"):
    folder = lab.path(point)
    os.makedirs(folder, exist_ok=True)
    run("mount", node, folder)
    return folder


def fsck(kind, node):
    done = run(*FSCK[kind], node, check_exit=False, timeout=120)
    check(done.returncode == 0, f"{' '.join(FSCK[kind])}: exit {done.returncode}\n{tail(done.stdout)}{tail(done.stderr)}")


@test()
def carries_names_what_is_refused(lab):
    """--carries demands what it takes of the machine, and names what is refused. What it is granted is seen in guests."""
    words = [node.BIN, "attach", "--insecure", "memory:8M", "--block", "--as", "d", "--run-dir", lab.path("run")]
    done = lab.run("initiator", "setpriv", "--bounding-set", "-sys_resource", *words, "--carries", "swap", check_exit=False)
    check(done.returncode == 1, f"exit {done.returncode}\n{tail(done.stderr)}")
    for says in "cannot carry swap", "PR_SET_IO_FLUSHER", "CAP_SYS_RESOURCE":
        check(says in done.stderr, f"'{says}' is not named:\n{done.stderr}")
    check(not node.initiators(lab), "a process was left behind")


@test(seconds=120, each={**KINDS, "ext4_xdp": {"kind": "ext4", "over": "xdp"}})
def file_system(lab, kind, over="best"):
    """mkfs, mount, a git clone with git fsck on it; kill -9 of the target; attach again, fsck, compare."""
    target = Target(lab, f"disk0={image(lab, mib=512)}", over=over)
    disk = Attachment(lab, uri(lab, over=over), face="block")
    check(stat.S_ISBLK(os.stat(disk.path).st_mode), f"attach --block printed {disk.path}, no block device")
    check(run("blockdev", "--getsize64", disk.path).stdout.strip() == str(512 << 20), "the node's size")
    run(*MKFS[kind], disk.path, timeout=120)
    folder = mount(lab, disk.path)
    make_repository(lab.path("repository"))
    run("git", "clone", "-q", "--no-local", lab.path("repository"), folder + "/clone", timeout=100)
    run("git", "-C", folder + "/clone", "-c", f"safe.directory={folder}/clone", "fsck", "--full", "--strict", timeout=100)
    before = checksums(folder + "/clone")
    refusal = disk.detach(expect=1)
    check("mount" in refusal.stderr, f"detach of a mounted disk must say why not: {refusal.stderr}")
    target.kill()
    target.start()
    check(checksums(folder + "/clone") == before, "the files differ after the target's restart")
    run("umount", folder)
    disk.detach()
    check(not stands(lab, disk.path), f"{disk.path} still stands after detach")
    target.kill()
    target.start()
    disk = Attachment(lab, uri(lab, over=over), face="block")
    fsck(kind, disk.path)
    mount(lab, disk.path)
    after = checksums(folder + "/clone")
    check(after == before and len(before) > 150, f"{len(before)} files before, {len(after)} after, or they differ")
    run("git", "-C", folder + "/clone", "-c", f"safe.directory={folder}/clone", "status", "--porcelain")
    run("umount", folder)
    disk.detach()


def backing(node):
    """The file behind a loop device, or nothing."""
    try:
        with open(f"/sys/block/{os.path.basename(node)}/loop/backing_file", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def stands(lab, node):
    """Whether a loop device is still bound, and not by a test beside this one that was given its number since."""
    file = backing(node)
    others = file.startswith(os.path.join(harness.WORK_ROOT, harness.PREFIX)) and not file.startswith(lab.dir + "/")
    return bool(file) and not others


# Three seconds' worth of writes, each flushed before the next: whatever comes between shows.
STEADY_WRITER = """
import os, sys, time
with open(sys.argv[1], "wb", buffering=0) as file:
    for _ in range(150):
        file.write(os.urandom(300000))
        os.fsync(file.fileno())
        time.sleep(0.02)
"""


@test(seconds=120, each=KINDS)
def outage_under_a_file_system(lab, kind):
    """The target is killed while files are written, comes back 5 s later; the file system stays writable."""
    target = Target(lab, f"disk0={image(lab, mib=512)},writeback")
    disk = Attachment(lab, face="block")
    run(*MKFS[kind], disk.path, timeout=120)
    folder = mount(lab, disk.path)
    writer = lab.start("initiator", "/usr/bin/python3", "-c", STEADY_WRITER, folder + "/blob", name="writer")
    time.sleep(1)
    check(writer.running, "the writer was done before the target was killed, so the test shows nothing")
    target.kill()
    time.sleep(5)
    check(writer.running, "the writer ended while the target was away: its fsync cannot have been true")
    target.start()
    writer.wait(60)
    with open(folder + "/blob", "rb") as file:
        before = hashlib.sha256(file.read()).hexdigest()
    with open("/proc/self/mounts", encoding="utf-8") as file:
        line = next(l for l in file if l.split()[1] == folder)
    check("rw" in line.split()[3].split(","), f"the file system went read-only: {line}")
    run("umount", folder)
    disk.detach()
    disk = Attachment(lab, face="block")
    fsck(kind, disk.path)
    mount(lab, disk.path)
    with open(folder + "/blob", "rb") as file:
        check(hashlib.sha256(file.read()).hexdigest() == before, "the file differs")
    run("umount", folder)
    disk.detach()


@test(seconds=60)
def fuse_file(lab):
    """--file: the disk as a file, read and written at any byte; detach takes it away."""
    Target(lab, f"disk0={image(lab, mib=64)}")
    disk = Attachment(lab, face="file")
    check(os.path.getsize(disk.path) == 64 << 20, f"its size is {os.path.getsize(disk.path)}")
    data = random.Random(3).randbytes(3 << 20)
    with open(disk.path, "r+b") as file:
        file.seek(1234567)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        file.seek(1234567)
        check(file.read(len(data)) == data, "what was written does not come back")
        refusal = disk.detach(expect=1)
        check("open" in refusal.stderr or "busy" in refusal.stderr, f"detach must say why not: {refusal.stderr}")
    with open(lab.path("disk0.img"), "rb") as file:
        file.seek(1234567)
        check(file.read(len(data)) == data, "it did not reach the image")
    disk.detach()
    check(not os.path.exists(disk.path) or os.path.getsize(disk.path) == 0, "the file still shows the disk")


@test(seconds=60, each={"target_there": {"there": True}, "target_gone": {"there": False}})
def forced_detach_of_a_mounted_disk(lab, there):
    """detach --force of a mounted disk being written to ends within 2 s, with or without its target."""
    target = Target(lab, f"disk0={image(lab, mib=256)}")
    disk = Attachment(lab, face="block")
    run(*MKFS["ext4"], disk.path)
    folder = mount(lab, disk.path)
    writer = lab.start("initiator", "/usr/bin/python3", "-c", STEADY_WRITER, folder + "/blob", name="writer")
    time.sleep(0.7)
    if not there:
        target.kill()
        time.sleep(0.5)
    check(writer.running, "nothing was being written any more, so the test shows nothing")
    start = time.monotonic()
    forced = disk.detach("--force", timeout=10)
    took = time.monotonic() - start
    check(took < 3, f"detach --force took {took:.1f} s")
    check("I/O fails there" in forced.stderr, f"detach --force does not say who uses the device: {forced.stderr}")
    check(os.path.getsize(os.path.join(disk.run_dir, "disk0.log")) > 0, "a forced end leaves no log")
    writer.wait(20, expect=None)
    check(writer.popen.returncode != 0, "what was being written must fail")
    report = thinwire(lab, "status", "--json", "--run-dir", disk.run_dir).stdout
    check('"disk0"' not in report, f"it is still there: {report}")
    run("umount", "-l", folder, check_exit=False)


@test(seconds=60)
def killed_attachment_is_cleaned(lab):
    """What a killed attachment leaves (mount, loop device, state) is reported, and cleaned by the next."""
    Target(lab, f"disk0={image(lab)}")
    disk = Attachment(lab, face="block")
    os.kill(disk.pid(), 9)
    time.sleep(0.5)
    report = thinwire(lab, "status", "--json", "--run-dir", disk.run_dir).stdout
    check("dead" in report.lower() or "stale" in report.lower() or "gone" in report.lower(),
          f"status does not say that the attachment's process is dead: {report}")
    again = Attachment(lab, face="block", timeout=40)
    check(run("blockdev", "--getsize64", again.path).stdout.strip() == str(128 << 20), "the new node's size")
    again.detach()
    if again.path != disk.path:
        check(not stands(lab, disk.path), f"the dead attachment's loop device {disk.path} still stands")
