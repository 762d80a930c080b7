"""A gateway on another machine that tries in vain to have all leaves of an export, and what the first one finds behind it."""

from harness import Failure, check
from registry import test
from test_two_gateways import READ, Gateways
from test_volumes import WRITE


@test(seconds=90, links=2)
def who_only_had_a_leaf_fences_nobody(lab):
    """The second gateway starts while one of two leaves is down: it is granted the other, waits, and gives up. The first one starts again: its writer goes on with what it had not flushed."""
    gateways = Gateways(lab, "stripe")
    first, second = gateways.both
    first.start(timeout=40)
    disk = gateways.attach()
    check(gateways.call(WRITE, disk, 4096, "unflushd") == "written", "an unflushed write")
    first.stop()
    _, absent = gateways.legs.targets
    absent.stop()
    for nth in (1, 2):
        try:
            second.start(timeout=60)
        except Failure as failure:
            check("node-b" in str(failure), f"try {nth}: {failure}")
            second.process.wait(10, expect=None)
        else:
            raise Failure("a gateway serves without a leaf")
    absent.start(timeout=20)
    first.start(timeout=40)
    check(gateways.call(READ, disk, 4096) == "unflushd", "what it had not flushed")
    check(gateways.call(WRITE, disk, 8192, "goes on.", "flush") == "written", "it goes on")
    check("somebody else may have written" not in first.process.stderr, first.process.stderr)
    check(disk.status()["state"] == "attached", disk.status())
    disk.detach(timeout=40)
    first.stop()
