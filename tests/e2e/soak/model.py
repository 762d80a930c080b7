"""What a disk may show, from the journal of what was asked and promised.

While the initiator lives a sector shows the newest acknowledged write, whatever becomes of the target: what was not
flushed is sent again. If the initiator dies, or nobody has sent anything again yet (the image of a killed target),
what was not flushed may be there or not, each sector by itself; what was flushed must be.

Nobody writes a sector before an earlier write of it has been answered, so that versions come in the order of their
numbers.
"""

from dataclasses import dataclass
from typing import NamedTuple

from . import journal


@dataclass
class Write:
    first: int
    count: int
    is_done: bool = False
    has_failed: bool = False


class Bad(NamedTuple):
    """A sector that shows what it must not."""

    sector: int
    found: object       # a version, or what is wrong with it
    allowed: list       # versions

    def __str__(self):
        return f"sector {self.sector}: found {self.found}, allowed {self.allowed}"


class Model:
    def __init__(self, sectors):
        self.sectors = sectors
        self.known = [0] * sectors      # version of the newest acknowledged write
        self.durable = [0] * sectors    # ... of the newest that was promised to be durable
        self.open = {}                  # version -> Write: those that are not
        self.zeroes = set()             # versions that are zeroes
        self.doubts = {}                # sector -> versions of failed writes since
        self.flushes = {}               # number of a flush -> versions that it covers

    def shown(self, version):
        """What a sector of this version shows."""
        return 0 if version in self.zeroes else version

    def apply(self, records):
        for record in records:
            getattr(self, self.KINDS[record.kind])(record)

    def begun(self, record):
        self.open[record.version] = Write(record.first, record.count)
        if record.flags & journal.ZEROES:
            self.zeroes.add(record.version)

    def done(self, record):
        write = self.open[record.version]
        write.is_done = True
        span = range(write.first, write.first + write.count)
        self.known[span.start:span.stop] = [record.version] * write.count
        for sector in span if self.doubts else ():
            self.doubts.pop(sector, None)
        if record.flags & journal.FUA:
            self.make_durable(record.version)

    def failed(self, record):
        write = self.open[record.version]
        write.has_failed = True
        for sector in range(write.first, write.first + write.count):
            self.doubts.setdefault(sector, []).append(record.version)

    def flush(self, record):
        self.flushes[record.version] = [version for version, write in self.open.items() if write.is_done]

    def flushed(self, record):
        for version in self.flushes.pop(record.version):
            if version in self.open:
                self.make_durable(version)
        for version, write in [(v, w) for v, w in self.open.items() if w.has_failed]:
            if min(self.durable[write.first:write.first + write.count]) > version:
                del self.open[version]

    def make_durable(self, version):
        write = self.open.pop(version)
        span = slice(write.first, write.first + write.count)
        self.durable[span] = [max(version, other) for other in self.durable[span]]

    def found(self, record):
        span = slice(record.first, record.first + record.count)
        self.known[span] = self.durable[span] = [record.version] * record.count

    def settled(self, _record):
        self.open.clear()
        self.doubts.clear()
        self.flushes.clear()
        self.zeroes.clear()

    KINDS = {journal.BEGUN: "begun", journal.DONE: "done", journal.FAILED: "failed", journal.FLUSH: "flush",
             journal.FLUSHED: "flushed", journal.FOUND: "found", journal.SETTLED: "settled"}

    def alive(self, first, versions):
        """Those of these sectors, none of which is being written, that are not what a living initiator shows."""
        bad = []
        for sector, version in enumerate(versions, first):
            known = self.known[sector]
            if version != known and version != self.shown(known):
                allowed = [self.shown(v) for v in (known, *self.doubts.get(sector, ()))]
                if version not in allowed:
                    bad.append(Bad(sector, version, allowed))
        return bad

    def at_rest(self, first, versions):
        """Those of these sectors that are not what is durable, nor anything that was written since."""
        since = {}
        for version, write in self.open.items():
            for sector in range(max(first, write.first), min(first + len(versions), write.first + write.count)):
                since.setdefault(sector, []).append(version)
        bad = []
        for sector, version in enumerate(versions, first):
            durable = self.durable[sector]
            if version != self.shown(durable):
                allowed = [self.shown(v) for v in (durable, *since.get(sector, ())) if v >= durable]
                if version not in allowed:
                    bad.append(Bad(sector, version, allowed))
        return bad
