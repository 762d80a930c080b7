"""The journal of a load, outside of the disk under test: what was asked, before it is, and what was promised, as soon
as it is. Whoever reads it can tell what the disk may show, without asking the load."""

import os
import struct
from typing import NamedTuple

# A write is asked for, acknowledged, or has failed; a flush is asked for, or acknowledged. FOUND: what was read back
# where anything that was not durable may be gone; SETTLED: that was all of it.
BEGUN, DONE, FAILED, FLUSH, FLUSHED, FOUND, SETTLED = range(1, 8)
ZEROES, FUA = 1, 2

RECORD = struct.Struct("<BB2xIQQ")


class Record(NamedTuple):
    kind: int
    flags: int = 0
    count: int = 0      # sectors
    first: int = 0      # sector
    version: int = 0    # of the write, or the number of the flush


class Journal:
    """The end that writes. A record is with the kernel when `add` returns, and survives whatever is murdered here;
    `sync` has it survive the machine, too."""

    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)

    def add(self, records):
        os.write(self.file, b"".join(RECORD.pack(*record) for record in records))

    def sync(self):
        os.fdatasync(self.file)


class Reader:
    """The end that reads on from where it stopped."""

    def __init__(self, path):
        self.path = path
        self.at = 0

    def read(self):
        """The whole records that have been added since."""
        with open(self.path, "rb") as file:
            file.seek(self.at)
            data = file.read()
        data = data[:len(data) // RECORD.size * RECORD.size]
        self.at += len(data)
        return [Record(*fields) for fields in RECORD.iter_unpack(data)]
