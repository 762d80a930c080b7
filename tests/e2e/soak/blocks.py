"""A load of sectors: writes, durable writes, zeroes, flushes and reads of 512 B to 128 KiB, by several hands at once,
each range by one at a time. Each read is compared with what the journal allows, and at a word from the runner all is.

    blocks.py JSON      its arguments, those of `Blocks`
"""

import json
import os
import random
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from soak import disks, journal, stamp  # noqa: E402  (the path is set above)
from soak.disks import Gone, Refused  # noqa: E402
from soak.journal import Record  # noqa: E402
from soak.model import Model  # noqa: E402
from soak.program import Program  # noqa: E402
from soak.stamp import SECTOR  # noqa: E402

# Sectors of a request: most small, as applications have them, and some that are cut into many frames.
SIZES = (1, 1, 2, 8, 8, 8, 8, 16, 24, 64, 128, 256)
WHAT = ("write",) * 11 + ("durable", "durable", "zero") + ("read",) * 6 + ("flush",)
# Where a third of the requests go, so that writes are written over before any flush.
HOT = 256
PIECE = 512


class Blocks(Program):
    def __init__(self, socket, kind, disk, journal_path, sectors, number, seed, hands=6, rate=400.0):
        """`kind` and `disk`: one of `disks.KINDS` and its path; `number` is that of this disk in its sectors."""
        super().__init__(socket, hands, rate)
        self.kind = disks.KINDS[kind]
        self.number = number
        self.chance = random.Random(seed)
        self.model = Model(sectors)
        self.journal = journal.Journal(journal_path)
        self.busy = {}
        self.version = 0
        self.disks = []
        self.kinds = WHAT
        self.open(disk)

    def do_leave_out(self, kinds):
        """From now on it does all but these."""
        self.kinds = [kind for kind in WHAT if kind not in kinds]

    def open(self, disk):
        self.disks = [self.kind(disk) for _ in range(self.hands)]

    def close(self):
        for one in self.disks:
            one.close()
        self.disks = []

    def record(self, *records):
        """Under the lock: what the journal says, the model knows."""
        self.journal.add(records)
        self.model.apply(records)

    # -- one thing

    def step(self, hand):
        with self.changed:
            what = self.chance.choice(self.kinds)
            span = self.free_span()
            if what != "flush" and span is None:
                return
            if what != "flush":
                self.busy[hand] = span
        try:
            getattr(self, what)(hand, *(span if what != "flush" else ()))
        finally:
            with self.changed:
                self.busy.pop(hand, None)

    def free_span(self):
        """A range that nobody works on, or None."""
        for _ in range(20):
            count = self.chance.choice(SIZES)
            end = HOT if self.chance.random() < 0.33 and count < HOT else self.model.sectors
            first = self.chance.randrange(end - count + 1)
            if all(first + count <= other or other + length <= first for other, length in self.busy.values()):
                return first, count
        return None

    def write(self, hand, first, count, flags=0):
        with self.changed:
            self.version += 1
            version = self.version
            self.record(Record(journal.BEGUN, flags, count, first, version))
        disk, at = self.disks[hand], first * SECTOR
        try:
            if flags & journal.ZEROES:
                with self.timed(hand):
                    disk.zero(at, count * SECTOR)
            else:
                data = stamp.made(self.number, first, count, version)
                with self.timed(hand):
                    disk.write(at, data, bool(flags & journal.FUA))
        except (Refused, Gone) as error:
            if self.take(error, f"a write of sectors {first}+{count}"):
                with self.changed:
                    self.record(Record(journal.FAILED, 0, count, first, version))
            return
        with self.changed:
            self.record(Record(journal.DONE, flags, count, first, version))

    def durable(self, hand, first, count):
        self.write(hand, first, count, journal.FUA)

    def zero(self, hand, first, count):
        self.write(hand, first, count, journal.ZEROES)

    def flush(self, hand):
        with self.changed:
            self.version += 1
            number = self.version
            self.record(Record(journal.FLUSH, version=number))
        try:
            with self.timed(hand):
                self.disks[hand].flush()
        except (Refused, Gone) as error:
            self.take(error, "a flush")
            return
        with self.changed:
            self.record(Record(journal.FLUSHED, version=number))
        self.journal.sync()

    def read(self, hand, first, count):
        try:
            with self.timed(hand):
                data = self.disks[hand].read(first * SECTOR, count * SECTOR)
        except (Refused, Gone) as error:
            self.take(error, f"a read of sectors {first}+{count}")
            return
        versions = stamp.found(self.number, first, data)
        with self.changed:
            for bad in self.model.alive(first, versions):
                self.lose(f"a read: {bad}")

    # -- all of it

    def all_versions(self):
        """What each sector is, while nobody works."""
        versions = []
        for first in range(0, self.model.sectors, PIECE):
            count = min(PIECE, self.model.sectors - first)
            with self.timed(0):
                data = self.disks[0].read(first * SECTOR, count * SECTOR)
            versions += stamp.found(self.number, first, data)
        return versions

    def verify(self):
        if self.is_gone:
            raise Gone("there is no disk")
        return list(map(str, self.model.alive(0, self.all_versions())))

    def settle(self):
        """Behind a cut: what was not durable is there or not, and from here on it is what it is."""
        with self.timed(0):
            self.disks[0].flush()
        versions = self.all_versions()
        bad = self.model.at_rest(0, versions)
        runs, start = [], 0
        for end in range(1, len(versions) + 1):
            if end == len(versions) or versions[end] != versions[start]:
                version = versions[start] if isinstance(versions[start], int) else 0
                runs.append(Record(journal.FOUND, 0, end - start, start, version))
                start = end
        with self.changed:
            self.record(*runs, Record(journal.SETTLED))
        self.journal.sync()
        return list(map(str, bad))


if __name__ == "__main__":
    Blocks(**json.loads(sys.argv[1])).run()
