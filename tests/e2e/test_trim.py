"""What is discarded at the top of a tree reaches the stores below: their files give back room."""

import os
import time

import nbd

from harness import check, run, until
from node import Attachment, Target, image, thinwire, uri
from registry import test
from test_block import fsck, mount
from test_crypt import key
from test_mirrors import data_of

MIB = 1 << 20
LEAF_MIB = 16
# What is written, and discarded.
AT, LENGTH = 1 * MIB, 6 * MIB
# Blocks that a discard has only a part of, labels, bitmaps and trees.
SLACK = 512 << 10
# A pool discards behind two commits.
SOON = 20

# Each kind: what its volume is described as, beside its children, how many of these it has, and in how many copies each byte stands there.
KINDS = {
    "linear": ("labels = true", 2, 1),
    "slice": ("labels = true\noffset = 1048576", 1, 1),
    "stripe": ("labels = true", 3, 1),
    "qos": ("labels = true\niops = 100000", 1, 1),
    "cache": ("size = 4194304", 1, 1),
    "mirror": ("", 2, 2),
    "crypt": ("", 1, 1),
    "integrity": ("", 1, 1),
    "thin": ("", 2, 1),
}
# Needs no labels.
BARE = ("cache",)


def allocated(paths):
    """What files take of their disk."""
    return sum(os.stat(path).st_blocks * 512 for path in paths)


class Leaves:
    """Images that are parts of trees: files, or exports of a target."""

    def __init__(self, lab, far, count, mib=LEAF_MIB):
        self.images = [image(lab, f"leaf{nth}.img", mib) for nth in range(count)]
        self.names = self.images
        if far:
            Target(lab, *(f"leaf{nth}={path}" for nth, path in enumerate(self.images)), over="raw", extra=("--state-dir", lab.path("state-leaves")))
            self.names = [uri(lab, f"leaf{nth}", over="raw") for nth in range(count)]
        self.taken = 0

    def take(self, count):
        """The names of so many that nobody has, and their images."""
        which = range(self.taken, self.taken + count)
        self.taken += count
        return [self.names[nth] for nth in which], [self.images[nth] for nth in which]


def volume(name, kind, children, more=""):
    children = ", ".join(f'"{child}"' for child in children)
    return f'[[volume]]\nname = "{name}"\nkind = "{kind}"\nchildren = [{children}]\n{more}\n'


def describe(lab, name, text):
    path = lab.path(f"{name}.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return f"{path}#"


@test(seconds=150, each={"files": {"far": False}, "exports": {"far": True}})
def each_kind_gives_back(lab, far):
    """A volume of each kind, over files and over exports of a target: what is written takes room in the files below, what is discarded gives it back, and reads as zeroes, of an
    encrypted volume as noise; the legs of a mirror are alike."""
    leaves, run_dir = Leaves(lab, far, sum(count for _, count, _ in KINDS.values())), ("--run-dir", lab.path("run"))
    secret = key(lab, "secret")
    for kind, (more, count, copies) in KINDS.items():
        names, images = leaves.take(count)
        more += f'\nkey = "{secret}"' if kind == "crypt" else ""
        top = describe(lab, kind, volume(kind, kind, names, more)) + kind
        if kind not in BARE:
            thinwire(lab, "volume", "create", top, *run_dir, timeout=60)
        if kind == "mirror":
            thinwire(lab, "volume", "resync", top, *run_dir, timeout=60)
        if kind == "thin":
            top += "@home"
            thinwire(lab, "volume", "create", top, "--size", f"{LEAF_MIB}M", *run_dir)
        disk = Attachment(lab, top, name=kind)
        client = nbd.NBD()
        client.connect_uri(disk.nbd)
        written = os.urandom(LENGTH)
        # Behind that nothing is taken for the first time but by what is discarded.
        client.pwrite(written, AT)
        client.flush()
        full = allocated(images)
        check(client.pread(LENGTH, AT) == written, "it is there")
        client.trim(LENGTH, AT)
        client.flush()
        left = bytes(client.pread(LENGTH, AT))
        check(any(left) if kind == "crypt" else not any(left), f"{kind}: what was discarded reads as {left[:16]}...")
        wanted = full - LENGTH * copies + SLACK
        until(f"{kind}: {full} bytes were taken, {wanted} are to be", SOON, lambda: allocated(images) <= wanted)
        client.shutdown()
        disk.detach()
        if kind == "mirror":
            check(data_of(images[0]) == data_of(images[1]), "the legs differ")


@test(seconds=60)
def what_keeps_its_room(lab):
    """Where what is discarded must read as zeroes, an encrypted volume has to write these, and takes room: by way of a file (and of a loop device on one), and as a leg of a mirror. These are
    the exceptions, and documented."""
    run_dir, images = ("--run-dir", lab.path("run")), [image(lab, f"{name}.img", LEAF_MIB) for name in "abc"]
    vault = volume("vault", "crypt", images[:1], f'key = "{key(lab, "secret")}"')
    top = describe(lab, "vault", vault) + "vault"
    thinwire(lab, "volume", "create", top, *run_dir)
    disk = Attachment(lab, top, name="vault", face="file")
    before = allocated(images)
    run("fallocate", "--punch-hole", "--offset", AT, "--length", LENGTH, disk.path)
    with open(disk.path, "rb") as file:
        file.seek(AT)
        check(not any(file.read(LENGTH)), "a hole reads as zeroes")
    disk.detach()
    check(allocated(images) >= before + LENGTH, "which are encrypted")
    top = describe(lab, "twice", vault.replace(images[0], images[1]) + volume("twice", "mirror", [images[2], "vault"]))
    thinwire(lab, "volume", "create", f"{top}vault", *run_dir)
    thinwire(lab, "volume", "create", "--force", f"{top}twice", *run_dir)
    thinwire(lab, "volume", "resync", f"{top}twice", *run_dir, timeout=60)
    disk = Attachment(lab, f"{top}twice", name="twice")
    client = nbd.NBD()
    client.connect_uri(disk.nbd)
    client.pwrite(os.urandom(LENGTH), AT)
    client.flush()
    full = [allocated([path]) for path in images]
    client.trim(LENGTH, AT)
    client.flush()
    check(not any(client.pread(LENGTH, AT)), "both legs read as zeroes")
    client.shutdown()
    disk.detach()
    check(allocated(images[1:2]) >= full[1], "which are encrypted on the leg that is")
    check(allocated(images[2:]) <= full[2] - LENGTH + SLACK, "and given back by the other")


@test(seconds=120)
def a_file_system_over_many_gives_back(lab):
    """ext4 over a cache, over limits, over a volume of a pool whose data are encrypted, and mirrored: on a stripe of exports, and on sums over a row of them. What is deleted there and trimmed is given back by the files of the targets' disks. What a snapshot has is not, until it is deleted. The legs are alike."""
    leaves, run_dir, secret = Leaves(lab, True, 5, mib=24), ("--run-dir", lab.path("run")), key(lab, "secret")
    (a, b, c, d, metadata), images = leaves.take(5)
    labels = "labels = true"
    pool = describe(lab, "pool", volume("wide", "stripe", [a, b], labels) + volume("row", "linear", [c, d], labels) + volume("sums", "integrity", ["row"])
                    + volume("twice", "mirror", ["wide", "sums"]) + volume("vault", "crypt", ["twice"], f'key = "{secret}"')
                    + volume("pool", "thin", ["vault", metadata]))
    thinwire(lab, "volume", "create", f"{pool}vault", *run_dir, timeout=60)
    thinwire(lab, "volume", "resync", f"{pool}twice", *run_dir, timeout=60)
    # A new encrypted volume is noise, and so not blank.
    thinwire(lab, "volume", "create", "--force", f"{pool}pool", *run_dir, timeout=60)
    thinwire(lab, "volume", "create", f"{pool}pool@home", "--size", "40M", *run_dir)
    top = describe(lab, "top", volume("limits", "qos", [f"{pool}pool@home"], "iops = 1000000") + volume("top", "cache", ["limits"]))
    disk = Attachment(lab, f"{top}top", face="block", name="top", timeout=60)
    run("mkfs.ext4", "-q", "-F", disk.path)
    folder = mount(lab, disk.path)

    def write(name):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(os.urandom(8 * MIB))
            os.fsync(file.fileno())

    def trimmed(name):
        os.remove(os.path.join(folder, name))
        run("sync", "-f", folder)
        run("fstrim", folder)

    # Two copies of each byte; of what the file system has beside them little changes.
    copies, slack = 2 * 8 * MIB, 3 * MIB
    write("kept")
    run("sync", "-f", folder)
    thinwire(lab, "volume", "snapshot", f"{pool}pool@home", "monday", *run_dir)
    before = allocated(images)
    write("gone")
    full = allocated(images)
    # The leg that was copied to has had all of its room since.
    check(full >= before + copies // 2, f"{full - before} bytes were taken")
    trimmed("gone")
    until("what no snapshot has is given back", SOON, lambda: allocated(images) <= full - copies + slack)
    left = allocated(images)
    trimmed("kept")
    # A pool that gives back something does so within 2 s.
    time.sleep(3)
    check(allocated(images) >= left - slack, f"{left - allocated(images)} bytes were given back that a snapshot has")
    thinwire(lab, "volume", "delete", f"{pool}pool@monday", *run_dir)
    until("what the snapshot had is given back", SOON, lambda: allocated(images) <= left - copies + slack)
    run("umount", folder)
    fsck("ext4", disk.path)
    disk.detach(timeout=60)
    legs = []
    for leg in ("wide", "sums"):
        out = lab.path(f"{leg}.out")
        thinwire(lab, "copy", f"{pool}{leg}", out, *run_dir, timeout=60)
        legs.append(data_of(out))
    length = min(map(len, legs))
    check(length > 40 * MIB and legs[0][:length] == legs[1][:length], "the legs differ")
