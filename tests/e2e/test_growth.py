"""Volumes that grow while they are in use: nobody is restarted, nobody attaches again."""

import json
import os

from harness import check, run, until
from node import Attachment, Target, below, image, uri
from registry import test

MIB = 1 << 20
# What is promised, and a moment for a machine that tests others at the same time.
SOON = 3


def grow(path, mib):
    """Makes an image larger under whoever serves it."""
    check(os.path.getsize(path) < mib * MIB, "it is to become larger")
    os.truncate(path, mib * MIB)


def file_mib(attachment):
    return os.stat(attachment.path).st_size // MIB


def node_mib(attachment):
    return int(run("blockdev", "--getsize64", attachment.path).stdout) // MIB


def nbd_mib(attachment):
    """What a client finds that connects now."""
    return json.loads(run("nbdinfo", "--json", attachment.nbd).stdout)["exports"][0]["export-size"] // MIB


def used(path, mib, at):
    """Writes a pattern at that many MiB, reads it back from what serves it."""
    pattern = os.urandom(MIB) * mib
    with open(path, "r+b", buffering=0) as file:
        file.seek(at * MIB)
        check(file.write(pattern) == len(pattern), "all of it is written")
        os.fsync(file.fileno())
    with open(path, "rb") as file:
        file.seek(at * MIB)
        check(file.read(len(pattern)) == pattern, "what was written behind the old end is there")


@test(seconds=60, each={"one_link": {}, "udp": {"over": "udp"}})
def an_image_grows(lab, over="best"):
    """An image grows twice: a file, a block node and new NBD connections have the size, and use it."""
    disks = [image(lab, f"{name}.img", 16) for name in "abc"]
    target = Target(lab, *[f"{name}={disk}" for name, disk in zip("abc", disks)], over=over)
    file, block, nbd = (Attachment(lab, uri(lab, name, over=over), face=face, name=name)
                        for name, face in zip("abc", ("file", "block", "nbd")))
    seen = ((file_mib, file), (node_mib, block), (nbd_mib, nbd))
    for mib in (24, 64):
        for disk in disks:
            grow(disk, mib)
        for size, attachment in seen:
            until(f"{attachment.name} has {mib} MiB", SOON, lambda: size(attachment) == mib)
            check(attachment.status()["bytes"] == mib * MIB, "status shows the size")
        used(file.path, 2, mib - 4)
        used(block.path, 2, mib - 4)
        run("nbdcopy", f"{lab.path('a.img')}", "null:")
        run("qemu-io", "-f", "raw", "-c", f"write -P 7 {mib - 1}M 1M", "-c", f"read -P 7 {mib - 1}M 1M", nbd.nbd)
    # What was told outlives the target.
    target.kill()
    target.start()
    used(file.path, 2, 60)
    check([size(attachment) for size, attachment in seen] == [64] * 3, "it is as large as before")
    for attachment in (file, block, nbd):
        attachment.detach()


@test(seconds=60)
def an_image_grows_while_its_target_is_away(lab):
    """An initiator that comes back finds the volume larger, and the same."""
    disk = image(lab, "a.img", 16)
    target = Target(lab, f"a={disk}")
    file = Attachment(lab, uri(lab, "a"), face="file", name="a")
    used(file.path, 1, 0)
    target.kill()
    grow(disk, 32)
    target.start()
    used(file.path, 1, 1)
    until("the file has 32 MiB", SOON, lambda: file_mib(file) == 32)
    used(file.path, 1, 31)
    file.detach()


@test(seconds=90)
def the_last_leaf_of_a_gateway_grows(lab):
    """A tree exported by a gateway grows with its last leaf, which is another target's; what grows in the
    middle is told, and changes nothing; after a restart of the gateway the volume is the same."""
    first, last = image(lab, "a.img", 16), image(lab, "b.img", 16)
    Target(lab, f"a={first}", f"b={last}", name="node1", over="raw")
    leaves = [below(lab, name, over="raw", node="node1") for name in "ab"]
    state = ("--state-dir", lab.path("state"), "--run-dir", lab.path("gateway-run"))
    middle = Target(lab, f"big=linear:[{','.join(leaves)}]", name="middle", over="raw", side="initiator", extra=state)
    file = Attachment(lab, uri(lab, "big", over="raw", node="middle"), face="file", name="big", side="target")
    grow(last, 24)
    until("the tree has 40 MiB", SOON, lambda: file_mib(file) == 40)
    used(file.path, 2, 38)
    middle.kill()
    middle.start(timeout=30)
    used(file.path, 2, 37)
    grow(first, 17)
    until("the gateway says what cannot be reached", SOON, lambda: "cannot be reached" in middle.process.stderr)
    check("1048576 bytes" in middle.process.stderr, "it says how much")
    used(file.path, 2, 15)
    check(file_mib(file) == 40, "the tree is as large as before")
    file.detach()


@test(seconds=60)
def a_local_tree_grows(lab):
    """Without any target: a face of files of this machine sees the last of them grow."""
    first, last = image(lab, "a.img", 16), image(lab, "b.img", 16)
    file = Attachment(lab, f"linear:[{first},{last}]", face="file", name="both")
    grow(last, 32)
    until("the file has 48 MiB", SOON, lambda: file_mib(file) == 48)
    used(file.path, 2, 46)
    file.detach()
