"""Attachments of several targets over one interface share its link and its flush: what a turn has for all of them leaves in one system call, by one socket."""

import re
import signal

import nbd

from harness import check, until
from node import Attachment, Target, image, uri
from registry import test

CHUNK = 4096
COUNT = 50


def reads(lab, volume, name, length):
    """By which calls a volume's process has sent when it was read so often, so many bytes at a time: how many frames each took. And how many packet sockets there are."""
    disk = Attachment(lab, volume, name=name)
    client = nbd.NBD()
    client.connect_uri(disk.nbd)
    client.pread(length, 0)
    sockets = len(lab.run("initiator", "cat", "/proc/net/packet").stdout.splitlines()) - 1
    tracer = lab.start("initiator", "strace", "-f", "-s", "0", "-p", disk.pid(), "-e", "trace=sendmmsg", name=f"calls-{name}")
    until("strace has the process", 20, lambda: "attached" in tracer.stderr)
    for nth in range(COUNT):
        client.pread(length, nth * length)
    tracer.kill(signal.SIGINT)
    tracer.wait(10, expect=None)
    client.shutdown()
    disk.detach()
    return [int(frames) for frames in re.findall(r"sendmmsg.* = (\d+)$", tracer.stderr, re.MULTILINE)], sockets


@test(seconds=90)
def reads_of_three_targets(lab):
    """A stripe over three targets by one interface: what each read of a chunk of each asks of them leaves in one call, and the process has no more sockets than that of one target."""
    hosts = [f"node{nth}" for nth in range(1, 4)]
    for host in hosts:
        Target(lab, f"disk={image(lab, f'{host}.img', 16)}", name=host, over="packet", extra=("--state-dir", lab.path(f"state-{host}")))
    leaves = [uri(lab, "disk", over="packet", node=host) for host in hosts]
    one, sockets_of_one = reads(lab, leaves[0], "one", CHUNK)
    check(len(one) >= COUNT > sum(frames >= 3 for frames in one), f"one target, one frame a read: {one}")
    three, sockets = reads(lab, f"stripe:[{','.join(leaves)}]?chunk=4K", "three", 3 * CHUNK)
    # Some of what is acknowledged leaves by itself.
    check(sum(frames >= 3 for frames in three) >= COUNT, f"a read asks three targets in more than a call: {three}")
    check(sockets == sockets_of_one, f"{sockets} packet sockets, and {sockets_of_one} with one target")
