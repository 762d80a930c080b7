"""A target on several threads: each serves exports of its own, and nobody notices the others."""

import os

import load
from harness import check
from node import Attachment, Target, image, uri
from registry import test


def ticks_by_shard(pid):
    """User and system time of each shard's thread, in clock ticks. Shard 0 is the first thread."""
    found = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat", encoding="ascii", errors="replace") as file:
            name, rest = file.read().rsplit(")", 1)
        name = name.split("(", 1)[1]
        fields = rest.split()
        if int(task) == pid:
            name = "shard-0"
        if name.startswith("shard-"):
            found[name] = int(fields[11]) + int(fields[12])
    return found


@test(seconds=90, links=2)
def two_shards(lab):
    """Two exports on two shards, one used over two raw links, the other over UDP; the target is
    killed and restarted under both. Every thread carries its share."""
    exports = [f"disk{n}={image(lab, f'disk{n}.img')}" for n in range(2)]
    target = Target(lab, *exports, over="packet", extra=["--shards", "2", "--link", f"udp:{lab.address('target')}"])
    attachments = [
        Attachment(lab, uri(lab, "disk0", over="packet"), name="disk0"),
        Attachment(lab, uri(lab, "disk1", over="udp", links=[1]), name="disk1"),
    ]
    runs = [load.Fio(lab, a.nbd, mib=64, seconds=6, seed=n) for n, a in enumerate(attachments, 1)]
    for fio in runs:
        fio.still_running("the target was killed")
    target.kill().start()
    for fio in runs:
        fio.still_running("the target was back")
    for fio in runs:
        fio.finish(60)
    ticks = ticks_by_shard(target.process.pid)
    check(len(ticks) == 2 and min(ticks.values()) >= 5, f"both shards should have worked, in ticks: {ticks}")
    for attachment in attachments:
        attachment.detach()
