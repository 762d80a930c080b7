"""Peers that ask and never listen: each makes one list of the target as long as it gets (docs/protocol.md,
"Bounds"). A target's memory stays flat, below the bound that it prints, and a session beside them goes on.

TW_GREEDY_SECONDS is how long all of them take together: 20 unless it says otherwise, 600 for a long look."""

import json
import os
import re
import time

import greedy
import load
from harness import check, until
from node import Attachment, Target, image, uri
from registry import test

SECONDS = float(os.environ.get("TW_GREEDY_SECONDS") or 20)
# Frames a second from each. More would measure the kernel's queues, not the target.
RATE = 20_000
# What a peer may still add in the second half of its time: less than a session's lists at their bounds. Those
# that fill memory which is theirs, up to their credit, may take all of their time for it.
FLAT_MIB = 4
FILLING = ("reads", "data")
# On a busy machine a peer may have found its stride only in that half, or the load beside it. What has an end is
# then there, and does not grow once more under the same peer; what has none grows each time.
ROUNDS = 5


def resident_mib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1)) / 1024


def greed(lab, target, kind, seconds):
    """One peer of this kind for so long: the target's memory in the first half and in all, in MiB, and a line."""
    pid = target.process.pid
    peer = lab.start("initiator", "/usr/bin/python3", greedy.__file__, kind, seconds, RATE, lab.address("target"),
                     name=f"greedy-{kind}")
    began, seen = time.monotonic(), []
    while peer.running:
        check(target.process.running, f"the target died under {kind}\n{target.process.stderr}")
        seen.append((time.monotonic() - began, resident_mib(pid)))
        check(time.monotonic() < began + seconds + 30, f"{kind} does not end")
        time.sleep(0.1)
    peer.wait(5)
    report = json.loads(peer.stdout)
    check(report["sent"] > 500 * seconds, f"{kind} sent only {report['sent']} frames in {seconds} s")
    early = max(mib for at, mib in seen if at <= max(seconds / 2, 1))
    late = max(mib for _, mib in seen)
    return early, late, (f"{kind}: {report['sent']} frames, {report['sessions']} sessions, {early:.1f} MiB in the first "
                         f"half, {late:.1f} in all")


@test(seconds=int(SECONDS * 4) + 120, security="insecure")
def peers_that_never_listen(lab):
    """The peer that asks once and pings with gaps, and nine of its kind, beside a verified load."""
    target = Target(lab, f"disk0={image(lab)}", over="udp", extra=("-v",))
    told = until("the target's bounds in its log", 5, lambda: re.search(
        r"at most (\d+) MiB for each session .* and (\d+) MiB for each shard", target.process.stderr))
    session, shard = map(int, told.groups())
    disk = Attachment(lab, uri(lab, over="udp"))
    load.verified(lab, disk.nbd, mib=16)
    time.sleep(0.5)
    pid = target.process.pid
    start = resident_mib(pid)
    # One of them at a time, and the attachment.
    bound = start + shard + 2 * session
    fio = load.Fio(lab, disk.nbd, mib=max(32, int(SECONDS / 4)), seconds=SECONDS)
    each = SECONDS / len(greedy.KINDS)
    lines, most = [], start
    for kind in greedy.KINDS:
        # A credit that nobody looks at would not show below what all together may take.
        limit = resident_mib(pid) + session + FLAT_MIB if kind == "data" else bound
        before = 0.0
        for turn in range(1, ROUNDS + 1):
            early, late, line = greed(lab, target, kind, each)
            lines.append(line)
            most = max(most, late)
            check(late < limit, f"beyond the bound of {limit:.0f} MiB:\n" + "\n".join(lines))
            if kind in FILLING or late < max(early, before) + FLAT_MIB:
                break
            check(turn < ROUNDS, "it grows:\n" + "\n".join(lines))
            before = late
    fio.finish(timeout=120)
    end = resident_mib(pid)
    print("\n".join(lines))
    print(f"resident: {start:.1f} MiB at the start, {most:.1f} at most, {end:.1f} at the end; the bound is {bound:.0f} "
          f"({shard} for the shard, {session} for each of two sessions)")
    status = disk.status()
    check(status["state"] == "attached", f"{status}")
    check("panicked" not in target.process.stderr, target.process.stderr)
    disk.detach()
    target.stop()
