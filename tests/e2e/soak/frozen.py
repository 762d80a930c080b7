#!/usr/bin/python3
"""A writer that is frozen in the middle of a write, replaced by another with --take-over, and woken: from the grant on
not one byte of it may land.

    frozen.py SOCKET      writes all of the disk again and again, until it gets an error, and says which
"""

import os
import signal
import sys
import time

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from soak import stamp  # noqa: E402  (the path is set above)
from soak.stamp import SECTOR  # noqa: E402

# Sectors of a write: many frames, so that a freeze finds some of one sent and others not.
WRITE = 512
OUTSTANDING = 8
DISK = 3
SECTORS = 8192
OLD, NEW = 0, 1 << 40


def write_on(path):
    """Writes with many outstanding. Returns the number of the first error."""
    import nbd
    handle = nbd.NBD()
    handle.connect_uri(f"nbd+unix:///?socket={path}")
    version, failed = OLD, []

    def answered(error):
        if error.value:
            failed.append(error.value)
        return 1
    while not failed:
        for first in range(0, SECTORS, WRITE):
            version += 1
            data = nbd.Buffer.from_bytearray(bytearray(stamp.made(DISK, first, WRITE, version)))
            try:
                handle.aio_pwrite(data, first * SECTOR, completion=answered)
                while handle.aio_in_flight() >= OUTSTANDING and not failed:
                    handle.poll(-1)
            except nbd.Error as error:
                failed.append(error.errnum)
            if failed:
                break
    return failed[0]


def replaced(lab, side, attach, pid, chance):
    """Does all of it with a disk of `SECTORS`; `attach(name, *flags)` attaches it to an NBD face, and `pid(attachment)`
    is the process that carries one. Returns texts about what landed."""
    from harness import check, until

    from . import disks
    names = [f"{name}{lab.count}" for name in ("frozen", "heir")]
    first = attach(names[0])
    writer = lab.start(side, "/usr/bin/python3", "-B", os.path.abspath(__file__), first.path, name="frozen")
    until("it writes", 60, lambda: first.status()["outstanding"] > 0 or not writer.running)
    time.sleep(0.2 + chance.random() * 0.3)
    check(writer.running, f"it ended before it was frozen: {writer.stdout}{writer.stderr}")
    frozen = pid(first)
    os.kill(frozen, signal.SIGSTOP)
    try:
        second = attach(names[1], "--take-over")
        heir = disks.Nbd(second.path)
        before = content(heir)
        # Half of it: in the rest what the old one has left must stay as it is.
        for place in range(0, SECTORS, 2 * WRITE):
            heir.write(place * SECTOR, stamp.made(DISK, place, WRITE, NEW))
            before[place:place + WRITE] = [NEW] * WRITE
        heir.flush()
    finally:
        os.kill(frozen, signal.SIGCONT)
    check(any(0 < version < NEW for version in before if isinstance(version, int)), "the old one has written nothing")
    writer.wait(60)
    check(writer.stdout.startswith("error "), f"the woken one was not refused: {writer.stdout}{writer.stderr}")
    until("the fenced attachment says so", 60, lambda: first.status()["state"] == "fenced")
    time.sleep(0.5)
    heir.flush()
    bad = [f"sector {sector}: {now}, was {was}" for sector, (now, was) in enumerate(zip(content(heir), before)) if now != was]
    heir.close()
    first.detach("--force")
    second.detach(timeout=60)
    return bad


def content(disk):
    """What each sector is."""
    versions = []
    for first in range(0, SECTORS, WRITE):
        versions += stamp.found(DISK, first, disk.read(first * SECTOR, WRITE * SECTOR))
    return versions


if __name__ == "__main__":
    print("error", write_on(sys.argv[1]))
