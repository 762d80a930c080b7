"""Volumes of several parts of which somebody else takes one over."""

import json
import mmap
import os

from harness import check
from node import Attachment, thinwire
from registry import test
from test_returning import Legs

CHUNK = 64 << 10


def write(path, chunk, byte):
    """Writes a block at the beginning of that chunk; what went wrong, if something has."""
    block = mmap.mmap(-1, 4096)
    block[:] = bytes([byte]) * 4096
    try:
        file = os.open(path, os.O_RDWR | os.O_DIRECT)
        try:
            os.pwritev(file, [block], chunk * CHUNK)
            os.fsync(file)
        finally:
            # That fails, too, where something was lost.
            os.close(file)
    except OSError as error:
        return error
    return None


@test(seconds=90)
def a_stripe_is_fenced_at_one_of_its_parts(lab):
    """Rule 18: who is fenced at one part of a volume with labels stops at all, at once, without a last write: of two of its chunks the other one is at a target that knows of
    nothing, and gets nothing more."""
    legs = Legs(lab)
    path = lab.path("wide.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'[[volume]]\nname = "wide"\nkind = "stripe"\nlabels = true\nchildren = {json.dumps(legs.uris)}\n')
    wide = f"{path}#wide"
    thinwire(lab, "volume", "create", wide, *legs.run_dir, timeout=60)
    disk = Attachment(lab, wide, face="file", name="wide", timeout=40)
    check([write(disk.path, chunk, 1) for chunk in range(4)] == [None] * 4, "it is written")
    thief = Attachment(lab, legs.uris[0], name="thief", run="thief", timeout=40, extra=("--take-over",))
    check(write(disk.path, 0, 2) is not None, "the part of another")
    with open(legs.images[1], "rb") as file:
        before = file.read()
    check([write(disk.path, chunk, 3) is not None for chunk in (1, 3)] == [True] * 2, "nothing of it is written any more")
    with open(legs.images[1], "rb") as file:
        check(file.read() == before, "not at the other target either")
    thief.detach()
