"""What the commands leave behind: nothing that their own --help does not name."""

import json
import os
import re
import signal

import node
from harness import check, run, until
from node import Attachment, Target, guarded, image, uri
from registry import test

# What may stay, and the words of the command's help that say so.
NAMED = [
    (r"run|run/(ids|nodes)", "--run-dir"),
    (r"run/[^/]+\.log", "NAME.log"),
    (r"run/nodes/[^/]+\.lock", "nodes/"),
    (r"run/target-[^/]+\.(json|lock|sock)", "target-NODE.json"),
    (r"run/ids/[^/]+\.lock", "ids/"),
    (r"[^#]+#user\.thinwire\.id", "user.thinwire.id"),
    (r"[^#]+#user\.thinwire\.writer", "user.thinwire.writer"),
    (r"state/thinwire(/writer-[0-9a-f]+)?", "/var/lib/thinwire/"),
    (r"[a-z]+/wire\.pcap", "--pcap"),
    (r"[a-z]+/wire\.pcap\.1", "FILE.1"),
    (r"here/copied\.img", "does not exist is made"),
    (r"here/man(/thinwire[a-z0-9-]*\.1)?", "thinwire-target.1"),
]


def helps(command):
    """What a command's help says, without the breaks of its lines."""
    return re.sub(r"\s+", " ", run(node.BIN, command, "--help").stdout)


class Folder:
    """A laboratory's folder, watched: `here` is where commands run, `tmp` is their TMPDIR and home."""

    def __init__(self, lab):
        self.lab = lab
        for name in ("here", "tmp", "served", "state"):
            os.mkdir(lab.path(name))
        self.seen = self.look()

    def look(self):
        found = set()
        for place, folders, files in os.walk(self.lab.dir):
            for name in folders + files:
                path = os.path.join(place, name)
                rest = os.path.relpath(path, self.lab.dir)
                found.add(rest)
                try:
                    found |= {f"{rest}#{name}" for name in os.listxattr(path, follow_symlinks=False)}
                except OSError:
                    continue  # a file system without them
        return found

    def judge(self, command, side=("here", "tmp", "run")):
        """All that is new on a command's side must be named by its help."""
        now = self.look()
        new = {name for name in now - self.seen if name.split("/")[0].split("#")[0] in side}
        self.seen |= new
        text = helps(command)
        for name in sorted(new):
            check(any(re.fullmatch(pattern, name) and word in text for pattern, word in NAMED),
                  f"`thinwire {command}` leaves {name}, and its help does not say so")
        return new

    def thinwire(self, *argv, code=0, side="initiator"):
        """Runs a command here, and judges what it leaves."""
        done = self.lab.run(side, node.BIN, *argv, cwd=self.lab.path("here"), check_exit=False,
                            env={**os.environ, "TMPDIR": self.lab.path("tmp"), "HOME": self.lab.path("tmp")})
        check(done.returncode == code, f"thinwire {argv}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return self.judge(argv[0])


@test(seconds=90)
def of_initiators(lab):
    """attach, status, detach, bench, copy, discover, man: each in an empty folder, well ended, killed and failed."""
    Target(lab, f"disk0={image(lab, 'served.img', mib=16)}", "disk1=memory:16M", over="plain")
    folder, run_dir = Folder(lab), ("--run-dir", lab.path("run"))
    remote, second = ((*guarded(lab), uri(lab, name, over="plain"), *run_dir) for name in ("disk0", "disk1"))
    local = image(lab, "here/local.img", mib=16)
    folder.seen = folder.look()
    folder.thinwire("bench", *second, "--rw", "randwrite", "--runtime", "0.2", "--pcap", "wire.pcap")
    folder.thinwire("bench", local, "--rw", "randwrite", "--runtime", "0.2", *run_dir)
    folder.thinwire("copy", local, "copied.img", *run_dir)
    folder.thinwire("copy", "missing.img", "never.img", *run_dir, code=1)
    folder.thinwire("discover", "--link", lab_link(lab), *guarded(lab, "discover"))
    folder.thinwire("link", "eth1")
    folder.thinwire("completions", "bash")
    folder.thinwire("man", "man")
    folder.thinwire("status", *run_dir)
    for face in (["--nbd", f"unix:{lab.path('here', 's')}"], ["--file", lab.path("here", "f")]):
        for end in ("detach", "force", "kill"):
            done = lab.run("initiator", node.BIN, "attach", *remote, *face, "--as", "disk0",
                           cwd=lab.path("here"), check_exit=False)
            check(done.returncode == 0, done.stderr)
            if end == "kill":
                pid = pid_of(lab)
                os.kill(pid, signal.SIGKILL)
                until("it is gone", 10, lambda: not os.path.exists(f"/proc/{pid}"))
                folder.thinwire("status", *run_dir)
            else:
                folder.thinwire("detach", "disk0", *run_dir, *(["--force"] if end == "force" else []))
            folder.judge("attach")
            left = set(os.listdir(lab.path("run"))) - {"ids"}
            check(left <= {"disk0.log"}, f"{face} {end}: left {left}")
            check(not {"s", "f"} & set(os.listdir(lab.path("here"))), f"{face} {end}: the face is left")
    folder.thinwire("attach", "missing.img", "--nbd", "unix:t", *run_dir, code=1)
    check(not os.listdir(lab.path("run", "ids")), "locks of identities are left")
    check(not os.listdir(lab.path("tmp")), f"left in TMPDIR: {os.listdir(lab.path('tmp'))}")


def lab_link(lab):
    return node.ethernet(lab, "initiator", 1, "plain")


def pid_of(lab):
    with open(lab.path("run", "disk0.json"), encoding="utf-8") as file:
        return json.load(file)["pid"]


@test(seconds=60)
def of_targets(lab):
    """A target with a file, a block device and a capture for each shard; ended in order, and killed."""
    folder = Folder(lab)
    device = run("losetup", "--find", "--show", image(lab, "served/disk1.img", mib=16)).stdout.strip()
    try:
        target = Target(lab, f"disk0={image(lab, 'served/disk0.img', mib=16)}", f"disk1={device}", over="plain",
                        extra=["--shards", "2", "--pcap", lab.path("served", "wire.pcap"), "--run-dir", lab.path("run")],
                        start=False, default_state=True)
        # Its own /var/lib, so that nothing of this machine's is touched.
        target.argv = ["unshare", "-m", "sh", "-c", f"mount --bind {lab.path('state')} /var/lib && exec \"$@\"", "sh",
                       *target.argv]
        folder.seen = folder.look()
        target.start()
        for export in ("disk0", "disk1"):
            Attachment(lab, uri(lab, export, over="plain"), name=export, run="theirs").detach()
        target.stop()
        sides = ("served", "state", "run")
        left = folder.judge("target", sides)
        check(any("writer-" in name for name in left) and any("#user.thinwire.writer" in name for name in left), f"{left}")
        check(not os.listdir(lab.path("run", "nodes")), "the name's claim is left")
        check(not [name for name in os.listdir(lab.path("run")) if name.startswith("target-")], "its files are left")
        target.start().kill()
        folder.judge("target", sides)
    finally:
        run("losetup", "-d", device)
