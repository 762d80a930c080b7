"""Frames that nobody meant: truncated, oversized, corrupted, replayed, random. A session beside them
goes on, verified; the target neither dies nor grows."""

import random
import re
import time

import frames
import load
from harness import check
from node import Attachment, Target, image, uri
from registry import test


@test(seconds=90)
def frames_from_hell(lab):
    """Recorded frames, mangled in every way, and noise, thrown at both sides during a verified run."""
    target = Target(lab, f"disk0={image(lab)}", over="raw")
    disk = Attachment(lab, uri(lab, over="raw"))
    pid = disk.pid()
    takers = [frames.taker(lab, port, 4) for port in ("i1", "t1")]
    time.sleep(0.5)
    load.verified(lab, disk.nbd, mib=8)
    recorded = []
    for taker in takers:
        taker.wait(20)
        recorded += [bytes.fromhex(line)[14:] for line in taker.stdout.split()]
    check(len(recorded) > 200, f"only {len(recorded)} frames recorded")

    chance = random.Random(11)
    sample = [chance.choice(recorded) for _ in range(400)]
    # Those with little in them are the handshakes, probes and acknowledgements: rarer, and worth more.
    sample += sorted(recorded, key=len)[:100]
    mangled = list(sample)                                                  # replayed as they are
    for frame in sample:
        mangled.append(frame[:chance.randrange(0, len(frame))])             # truncated
        mangled.append((frame + chance.randbytes(2000))[:8986])             # something behind it
        flipped = bytearray(frame)
        for _ in range(chance.choice((1, 1, 2, 8))):
            flipped[chance.randrange(min(len(flipped), chance.choice((16, 64, 9000))))] ^= 1 << chance.randrange(8)
        mangled.append(bytes(flipped))                                      # lying lengths, versions, bits
    mangled += [chance.randbytes(chance.randrange(0, 1500)) for _ in range(300)]
    mangled += [b"", b"\0", bytes(8986), b"\xff" * 8986]
    chance.shuffle(mangled)

    fio = load.Fio(lab, disk.nbd, mib=48, seconds=6)
    for side, mac in (("initiator", 2), ("target", 1)):
        # At the station itself, and at everybody.
        frames.send(lab, side, mangled, destination=bytes([2, 0, 0, 0, 1, mac]))
        frames.send(lab, side, mangled[::4])
    fio.still_running("the hostile frames were sent")
    fio.finish()
    check(target.process.running, "the target died")
    for name, process in (("target", target.process.pid), ("attachment", pid)):
        with open(f"/proc/{process}/status", encoding="ascii") as file:
            rss = int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1)) >> 10
        check(rss < 300, f"the {name} grew to {rss} MiB")
    check("panicked" not in target.process.stderr, target.process.stderr)
    disk.detach()
