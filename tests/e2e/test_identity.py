"""Who holds a disk, and whether it is still the same disk: memory that is lost, writers that return."""

import os
import signal
import time

import load
from harness import check, read, run, tail, until
from node import Attachment, Target, guarded, image, refused, thinwire, uri
from registry import test

READ = """
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
try:
    print("bytes", bytes(h.pread(512, 0))[:8].hex())
except nbd.Error as error:
    print("error", error.errnum)
"""
WRITE = """
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
try:
    h.pwrite(sys.argv[2].encode().ljust(512, b"."), 0)
    print("written")
    if "flush" in sys.argv: h.flush()
except nbd.Error as error:
    print("error", error.errnum)
"""


def nbd(lab, script, disk, *argv, timeout=40):
    return lab.run("initiator", "/usr/bin/python3", "-c", script, disk.nbd, *argv, timeout=timeout).stdout.strip()


@test(seconds=90)
def memory_export_restarted(lab):
    """A memory export whose target restarted is another disk: I/O fails, the message says so; no other bytes."""
    target = Target(lab, "disk0=memory:16M")
    disk = Attachment(lab)
    check(nbd(lab, WRITE, disk, "mine", "flush") == "written", "the first write")
    target.kill()
    target.start()
    answer = nbd(lab, READ, disk)
    check(answer.startswith("error"), f"I/O on a disk that was lost gave {answer}, not an error")
    said = str(disk.status()) + "".join(log_texts(lab))
    check(any(word in said.lower() for word in ("changed", "incarnation", "another volume", "not the same", "identity")),
          f"nothing says that the volume is not the one that was attached:\n{said}")
    disk.detach("--force")
    # A new attach is a new start.
    fresh = Attachment(lab, timeout=40)
    check(nbd(lab, READ, fresh) == "bytes " + "00" * 8, "a new attachment sees the new, empty volume")
    fresh.detach()


def log_texts(lab):
    for here, _, names in os.walk(lab.path("run")):
        for name in names:
            try:
                with open(os.path.join(here, name), encoding="utf-8", errors="replace") as file:
                    yield file.read()
            except OSError:
                continue  # sockets


@test(seconds=60)
def image_replaced(lab):
    """The image behind an export is replaced by another file while the target is down: I/O fails."""
    target = Target(lab, f"disk0={image(lab, mib=16)}")
    disk = Attachment(lab)
    check(nbd(lab, WRITE, disk, "mine", "flush") == "written", "the first write")
    target.kill()
    os.rename(lab.path("disk0.img"), lab.path("old.img"))
    image(lab, mib=16)
    target.start()
    answer = nbd(lab, READ, disk)
    check(answer.startswith("error"), f"I/O on another file gave {answer}, not an error")
    disk.detach("--force")


@test(seconds=60)
def one_writer(lab):
    """A second writer is refused with the holder named; readers share; the first is not disturbed."""
    Target(lab, f"disk0={image(lab)}")
    first = Attachment(lab)
    fio = load.Fio(lab, first.nbd, mib=32, seconds=8)
    done = refused(lab, "attach", uri(lab), "--nbd", f"unix:{lab.path('b')}", "--as", "second",
                   "--run-dir", lab.path("run2"), says="disk0")
    check("--take-over" in done.stderr, f"the remedy is not named: {done.stderr}")
    check(any(word in done.stderr.lower() for word in ("in use", "busy", "held", "holds", "attached")), done.stderr)
    fio.finish()
    first.detach()
    a = Attachment(lab, name="a", extra=["--read-only"])
    b = Attachment(lab, name="b", extra=["--read-only"])
    check(nbd(lab, READ, a).startswith("bytes") and nbd(lab, READ, b).startswith("bytes"), "two readers")
    a.detach()
    b.detach()


@test(seconds=60)
def twin_in_a_container(lab):
    """Two containers that share a network have locks of their own, and so one identity: the second attachment
    is refused while the first lives, both sides are told, and a restart is none of that."""
    target = Target(lab, f"disk0={image(lab)}")
    first = Attachment(lab)
    check(nbd(lab, WRITE, first, "first", "flush") == "written", "the first write")
    run_dir = lab.path("run")
    attach = [thinwire_bin(), "attach", *guarded(lab), uri(lab), "--nbd", f"unix:{lab.path('twin.sock')}",
              "--as", "disk0", "--run-dir", run_dir]
    script = f'mount -t tmpfs -o mode=0755 none {run_dir} && exec "$@"'
    done = lab.run("initiator", "unshare", "--mount", "sh", "-c", script, "sh", *attach, check_exit=False,
                   timeout=40)
    check(done.returncode == 1, f"exit {done.returncode}, expected 1\n{done.stdout}{done.stderr}")
    check("same identity" in done.stderr, f"it is not told why: {done.stderr}")
    check("second process with the identity" in target.process.stderr, "the target's log does not say so")
    check(nbd(lab, WRITE, first, "again", "flush") == "written", "the first goes on")
    # The same one after kill -9 is not a twin.
    pid = first.pid()
    os.kill(pid, signal.SIGKILL)
    until("it is gone", 5, lambda: not os.path.exists(f"/proc/{pid}"))
    second = Attachment(lab)
    check(nbd(lab, READ, second) == "bytes " + b"again...".hex(), "its bytes stand")
    second.detach()


def thinwire_bin():
    import node
    return node.BIN


@test(seconds=60)
def take_over_fences(lab):
    """--take-over fences the writer that held it: its I/O fails for good, it never comes back by itself."""
    Target(lab, f"disk0={image(lab)}")
    first = Attachment(lab, name="first")
    check(nbd(lab, WRITE, first, "first", "flush") == "written", "the first write")
    second = Attachment(lab, name="second", extra=["--take-over"])
    check(nbd(lab, WRITE, second, "second", "flush") == "written", "the new holder writes")
    answer = nbd(lab, WRITE, first, "ghost", "flush")
    check(answer.startswith("error"), f"the fenced writer's write: {answer}")
    until("the fenced attachment says so", 10, lambda: "fenced" in str(first.status()).lower())
    time.sleep(2)
    check(nbd(lab, READ, second) == "bytes " + b"second..".hex(), "the new holder's bytes stand")
    second.detach()
    first.detach("--force")


@test(seconds=90)
def frozen_writer_is_fenced(lab):
    """A writer frozen with unflushed writes, taken over, then thawed: nothing of it reaches the disk."""
    Target(lab, f"disk0={image(lab)},writeback")
    first = Attachment(lab, name="first")
    check(nbd(lab, WRITE, first, "first") == "written", "an unflushed write")
    pid = first.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        second = Attachment(lab, name="second", extra=["--take-over"], timeout=40)
        check(nbd(lab, WRITE, second, "second", "flush") == "written", "the new holder writes")
    finally:
        os.kill(pid, signal.SIGCONT)
    time.sleep(3)
    check(nbd(lab, WRITE, first, "ghost").startswith("error"), "the thawed writer must be refused")
    check(nbd(lab, READ, second) == "bytes " + b"second..".hex(), "the new holder's bytes stand")
    first.detach("--force")
    second.detach()


@test(seconds=90)
def stranger_after_restart(lab):
    """After a target's restart only the recorded writer comes back without --take-over."""
    target = Target(lab, f"disk0={image(lab)},writeback")
    first = Attachment(lab, name="first")
    check(nbd(lab, WRITE, first, "first") == "written", "an unflushed write")
    lab.port(1, up=False, side="initiator")
    os.kill(first.pid(), signal.SIGSTOP)
    target.kill()
    target.start()
    lab.port(1, up=True, side="initiator")
    refused(lab, "attach", uri(lab), "--nbd", f"unix:{lab.path('b')}", "--as", "second",
            "--run-dir", lab.path("run2"), says="--take-over")
    os.kill(first.pid(), signal.SIGCONT)
    check(nbd(lab, READ, first) == "bytes " + b"first...".hex(), "the recorded writer is back, its write replayed")
    first.detach()


@test(seconds=60)
def same_initiator_returns(lab):
    """An attachment killed with -9 is attached again at once by the same machine, without --take-over."""
    Target(lab, f"disk0={image(lab)}")
    disk = Attachment(lab)
    check(nbd(lab, WRITE, disk, "before", "flush") == "written", "a write")
    os.kill(disk.pid(), signal.SIGKILL)
    time.sleep(0.3)
    start = time.monotonic()
    again = Attachment(lab)
    took = time.monotonic() - start
    check(took < 5, f"it took {took:.1f} s to come back")
    check(nbd(lab, READ, again) == "bytes " + b"before..".hex(), "the bytes are there")
    again.detach()


@test(seconds=60)
def two_targets_on_one_image(lab):
    """Two targets cannot serve one image at once: the second waits for the lock, or refuses; it names the file."""
    Target(lab, f"disk0={image(lab)}")
    other = Target(lab, f"disk0={lab.path('disk0.img')}", name="node2", side="initiator", start=False)
    other.process = lab.start("initiator", *other.argv, name="target-node2")
    time.sleep(3)
    check("ready" not in other.process.stdout, "two targets serve the same image")
    check("disk0.img" in other.process.stderr, f"it does not say what it waits for: {tail(other.process.stderr)}")


@test(seconds=60)
def two_targets_on_one_interface(lab):
    """Two targets of different names on one interface do not disturb each other; one of a name in use
    there refuses to start."""
    Target(lab, "disk0=memory:64M", over="raw")
    Target(lab, "disk9=memory:64M", name="node9", over="raw")
    done = refused(lab, "target", "--name", "node1", "--link", "eth1", "--export", "a=memory:1M",
                   says=["node1", "eth1", "--name"], side="target")
    check("ready" not in done.stdout, f"it said it was ready:\n{done.stdout}")
    ours = Attachment(lab, uri(lab, over="raw"))
    theirs = Attachment(lab, uri(lab, "disk9", over="raw", node="node9"), name="disk9")
    for disk in (ours, theirs):
        load.verified(lab, disk.nbd, mib=32)
    for name in ("disk0", "disk9"):
        log = read(os.path.join(ours.run_dir, f"{name}.log"))
        check("does not answer" not in log, f"the attachment {name} lost its target:\n{log}")
    ours.detach()
    theirs.detach()


@test(seconds=60)
def writer_returns_beside_a_reader(lab):
    """A writer that was killed comes back at once, whatever was attached before it and has gone since."""
    Target(lab, f"disk0={image(lab)}")
    reader = Attachment(lab, name="reader", extra=["--read-only"])
    writer = Attachment(lab, name="writer")
    os.kill(writer.pid(), signal.SIGKILL)
    reader.detach()
    again = Attachment(lab, name="again")
    load.verified(lab, again.nbd, mib=16)
    again.detach()


@test(seconds=60)
def detach_while_away(lab):
    """A detach with nothing to write back does not wait for ever for a target that is gone."""
    target = Target(lab, "disk0=memory:64M")
    disk = Attachment(lab)
    target.kill()
    disk.detach(timeout=30)


@test(seconds=90)
def detach_a_block_device_while_away(lab):
    """Nor does one through a block device, whose kernel flushes it first, be it used or not."""
    target = Target(lab, "disk0=memory:64M")
    for name in ("idle", "used"):
        disk = Attachment(lab, face="block", name=name)
        if name == "used":
            run("dd", "if=/dev/urandom", f"of={disk.path}", "bs=64k", "count=16", "conv=fsync,notrunc", "status=none")
        target.kill()
        disk.detach(timeout=30)
        target.start()


@test(seconds=90)
def local_writer_fences(lab):
    """An image with a writer on record is restored beside its target: refused with the writer named; with
    --take-over it is the backup to the byte, and the writer, back with unflushed writes, is fenced."""
    disk = image(lab, mib=16)
    backup = lab.path("backup.img")
    with open(backup, "wb") as file:
        file.write(os.urandom(16 << 20))
    target = Target(lab, f"disk0={disk}")
    first = Attachment(lab, name="first")
    check(nbd(lab, WRITE, first, "first") == "written", "an unflushed write")
    target.kill()

    def local(command, *argv, **how):
        # The device of a face lives in the folder of its attachment: one of its own, on the target's side.
        return (refused if "says" in how else thinwire)(
            lab, command, *argv, "--run-dir", lab.path("local"), side="target", **how)

    before = content(disk)
    says = [os.uname().nodename, "(pid ", "on record", "--take-over"]
    local("copy", backup, disk, "--verify", says=says)
    local("bench", disk, "--rw", "randwrite", "--runtime", "0.2", says=says)
    local("attach", disk, "--nbd", f"unix:{lab.path('local.sock')}", "--as", "local", says=says)
    check(content(disk) == before, "who was refused has written")
    local("bench", disk, "--rw", "randread", "--runtime", "0.2")

    done = local("copy", backup, disk, "--verify", "--take-over")
    check("verified" in done.stdout, f"it was not verified: {done.stdout}")
    target.start()
    answer = nbd(lab, WRITE, first, "ghost", "flush")
    check(answer.startswith("error"), f"the fenced writer's write: {answer}")
    until("the fenced attachment says so", 10, lambda: "fenced" in str(first.status()).lower())
    check(content(disk) == content(backup), "the fenced writer has written over the restored image")
    first.detach("--force")
    # The copy has ended, so that anybody may write.
    second = Attachment(lab, name="second", run="run2")
    check(nbd(lab, WRITE, second, "second", "flush") == "written", "a new writer")
    second.detach()


def content(path):
    with open(path, "rb") as file:
        return file.read()
