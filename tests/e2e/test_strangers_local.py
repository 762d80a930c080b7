"""A stranger on the same machine: an ordinary user who holds locks, plants links and takes names."""

import os

import node
from harness import check, read, run, until
from node import Attachment, Target, guarded, image, refused, thinwire, uri
from registry import test

STRANGER, VICTIM = 65534, 65533
AS_STRANGER = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"]
AS_VICTIM = ["setpriv", f"--reuid={VICTIM}", f"--regid={VICTIM}", "--clear-groups"]
BIND = """
import socket, sys, time
held = []
for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    held.append(socket.socket(socket.AF_UNIX, kind))
    held[-1].bind("\\0" + sys.argv[1])
    if kind != socket.SOCK_DGRAM:
        held[-1].listen(8)
print("bound", flush=True)
time.sleep(60)
"""


def locks(disk, which):
    """The lock of an attachment's name, or those of initiator identities."""
    if which == "name":
        return [os.path.join(disk.run_dir, f"{disk.name}.lock")]
    folder = os.path.join(disk.run_dir, "ids")
    return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".lock")]


def hold(lab, path, side="initiator"):
    """A stranger waits for a lock, and keeps it once it has it."""
    return lab.start(side, *AS_STRANGER, "flock", path, "sh", "-c", "echo held; exec sleep 60", name="stranger")


def crash(lab, disk):
    """kill -9 of an attachment."""
    pid = disk.pid()
    os.kill(pid, 9)
    until("the attachment is gone", 10, lambda: not os.path.exists(f"/proc/{pid}"))


@test(each={which: {"which": which} for which in ("name", "identity")})
def holds_locks(lab, which):
    """A stranger waits for the locks of an attachment that is killed: attach again, as the same writer."""
    Target(lab, f"disk0={image(lab)}")
    disk = Attachment(lab)
    strangers = [hold(lab, path) for path in locks(disk, which)]
    check(strangers, "there are locks to wait for")
    until("the strangers wait or gave up", 5, lambda: all(
        not s.running or "flock" in read(f"/proc/{s.pid}/comm") for s in strangers))
    crash(lab, disk)
    # Not with --take-over: the target knows this writer.
    Attachment(lab).detach()
    check(all("held" not in s.stdout for s in strangers), "a stranger has got a lock")


@test(each={which: {"which": which} for which in ("name", "identity")})
def holds_locks_of_an_older_version(lab, which):
    """Locks that anybody could open, and that a stranger holds: replaced, whoever holds the old ones."""
    Target(lab, f"disk0={image(lab)}")
    disk = Attachment(lab)
    paths = locks(disk, which)
    crash(lab, disk)
    os.chmod(disk.run_dir, 0o755)
    strangers = []
    for path in paths:
        os.chmod(os.path.dirname(path), 0o755)
        os.chmod(path, 0o644)
        strangers.append(hold(lab, path))
    until("the strangers have the locks", 5, lambda: all("held" in s.stdout for s in strangers))
    if which == "name":
        stale = disk.detach("--force")
        check("left by a process that is gone" in stale.stderr, stale.stderr)
    again = Attachment(lab)
    for path in locks(again, which):
        check(os.stat(path).st_mode & 0o777 == 0o600, f"{path} has mode {os.stat(path).st_mode & 0o777:o}")
    again.detach()


@test()
def looks_at_status(lab):
    """Status as another user: what lives and what is gone is told by the record, and cleaned up by its owner."""
    disk = Attachment(lab, "null:1M")
    program = runnable(lab)

    def seen():
        done = lab.run("initiator", *AS_STRANGER, program, "status", "--json", "--run-dir", disk.run_dir)
        return done.stdout
    check('"alive"' in seen() and "permission" in seen(), f"alive, and not to be asked: {seen()}")
    for force in ([], ["--force"]):
        done = lab.run("initiator", *AS_STRANGER, program, "detach", disk.name, "--run-dir", disk.run_dir, *force,
                       check_exit=False)
        check(done.returncode == 1 and "as root or as the user" in done.stderr and "--force" not in done.stderr,
              f"detached by a stranger {force}: {done.stderr}")
    crash(lab, disk)
    check('"stale"' in seen() and "cannot clean up" in seen(), f"gone, and not to be cleaned up: {seen()}")
    check("left by a process" in thinwire(lab, "status", "--run-dir", disk.run_dir).stdout, "the owner cleans up")


def runnable(lab):
    """The program where any user can run it."""
    copy = lab.path("thinwire")
    run("install", "-m", "755", node.BIN, copy)
    return copy


@test()
def plants_the_default_folder(lab):
    """The folder that a user without XDG_RUNTIME_DIR had in /tmp, planted as a link: never used, and said so."""
    program, planted, precious = runnable(lab), f"/tmp/thinwire-{VICTIM}", lab.path("precious")
    check(not os.path.lexists(planted), f"{planted} is there already")
    os.mkdir(precious, 0o755)
    os.chown(precious, VICTIM, VICTIM)
    try:
        run(*AS_STRANGER, "ln", "-s", precious, planted)
        done = lab.run("initiator", "env", "-u", "XDG_RUNTIME_DIR", *AS_VICTIM, program, "attach", "null:1M",
                       "--as", "mine", "--nbd", "tcp:127.0.0.1:0", check_exit=False)
        left = os.listdir(precious)
        if done.returncode == 0:
            lab.run("initiator", "env", "-u", "XDG_RUNTIME_DIR", *AS_VICTIM, program, "detach", "mine")
    finally:
        os.unlink(planted)
    check(not left, f"the victim made {left} where the stranger's link led")
    check(done.returncode == 1 and "XDG_RUNTIME_DIR" in done.stderr and "--run-dir" in done.stderr, done.stderr)
    # Their own folder, chosen by the environment.
    chosen = ["env", f"XDG_RUNTIME_DIR={precious}", *AS_VICTIM, program]
    lab.run("initiator", *chosen, "attach", "null:1M", "--as", "mine", "--nbd", "tcp:127.0.0.1:0")
    check("mine" in lab.run("initiator", *chosen, "status").stdout, "it is found again")
    lab.run("initiator", *chosen, "detach", "mine")
    check(os.listdir(precious) == ["thinwire"] and not os.listdir(os.path.join(precious, "thinwire")), "nothing is left")


@test()
def plants_a_given_folder(lab):
    """--run-dir in a place that anybody may write: a link, a stranger's folder, one that others may write in."""
    shared, precious = lab.path("shared"), lab.path("precious")
    os.mkdir(precious)
    os.mkdir(shared)
    os.chmod(shared, 0o1777)
    at = lambda name: os.path.join(shared, name)
    run(*AS_STRANGER, "ln", "-s", precious, at("link"))
    run(*AS_STRANGER, "mkdir", at("theirs"))
    os.symlink(precious, at("own-link"))
    os.mkdir(at("open"))
    os.chmod(at("open"), 0o777)
    attach = ("attach", "null:1M", "--as", "mine", "--nbd", "tcp:127.0.0.1:0", "--run-dir")
    for place, says in (("own-link", "symbolic link"), ("link", "another user"), ("link/below", "another user"), ("theirs", "another user"), ("theirs/run", "another user"),
                        ("open", "others"), ("open/run", "others")):
        refused(lab, *attach, at(place), says=[at(place), says])
        refused(lab, "status", "--run-dir", at(place), says=says)
    check(not os.listdir(precious), f"made where the stranger's link led: {os.listdir(precious)}")
    check(not os.listdir(at("theirs")) and not os.listdir(at("open")), "made where others may write")
    # One's own folder there is nobody else's to replace.
    thinwire(lab, *attach, at("own"))
    thinwire(lab, "detach", "mine", "--run-dir", at("own"))


@test()
def takes_the_node_name(lab):
    """A stranger has the name by which targets were told apart before: the target starts all the same."""
    stranger = lab.start("target", *AS_STRANGER, "/usr/bin/python3", "-c", BIND, "thinwire-target node1 eth1",
                         name="stranger")
    until("the stranger has the name", 5, lambda: "bound" in stranger.stdout)
    target = Target(lab, "disk0=memory:1M", over="plain")
    # Another target is still told, and a killed one's claim goes with it.
    refused(lab, "target", "--name", "node1", "--link", "eth1", "--export", "x=memory:1M", says="node1",
            side="target")
    target.kill().start()
    target.kill()
    target.start().stop()
    left = [name for name in os.listdir("/run/thinwire/nodes") if "node1" in name and own_namespace(lab, name)]
    check(not left, f"left: {left}")


def own_namespace(lab, name):
    return str(os.stat(f"/run/netns/{lab.netns('target')}").st_ino) in name


@test()
def two_run_directories(lab):
    """A second target on an interface is told by its name even if it has another run directory."""
    target = Target(lab, "disk0=memory:1M", over="plain")
    second = ("target", "--name", "node1", "--link", "packet:eth1", "--export", "x=memory:1M")
    refused(lab, *second, "--run-dir", lab.path("run"), says=["node1", "of this machine"], side="target",
            timeout=5)
    target.kill()
    Target(lab, "disk0=memory:1M", over="plain", extra=["--run-dir", lab.path("run")]).stop()
    check(not os.listdir(lab.path("run", "nodes")), "the claim is left")


@test()
def target_without_root(lab):
    """A target with CAP_NET_RAW and no root claims its name in its own folder; without one it says what to do."""
    program = runnable(lab)
    os.chmod(lab.dir, 0o1777)
    target = Target(lab, "disk0=memory:1M", over="packet", extra=guarded(lab, owner=VICTIM), start=False)
    capable = [*AS_VICTIM, "--inh-caps=+net_raw", "--ambient-caps=+net_raw", program]
    argv = target.argv[1:]
    done = lab.run("target", "env", "-u", "XDG_RUNTIME_DIR", *capable, *argv, check_exit=False,
                   timeout=5)
    check(done.returncode == 1 and "XDG_RUNTIME_DIR" in done.stderr and "--run-dir" in done.stderr, done.stderr)
    target.argv = [*capable, *argv, "--run-dir", lab.path("run")]
    target.start()
    check(len(os.listdir(lab.path("run", "nodes"))) == 1, "its claim")
    again = lab.run("target", *capable, *argv, "--run-dir", lab.path("other"), check_exit=False, timeout=5)
    check(again.returncode == 1 and "of this machine" in again.stderr, again.stderr)
    thinwire(lab, "bench", uri(lab, over="packet"), "--runtime", "0.2")
    target.stop()
