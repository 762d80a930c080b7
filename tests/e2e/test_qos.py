"""A volume of which only so much is taken in a second: by a command, and of a target."""

import json

from harness import check
from node import Target, image, thinwire, uri
from registry import test


def measured(lab, volume, *more):
    """What a bench of one second and a half has done, by its report."""
    done = thinwire(lab, "bench", volume, "--runtime", "1.5", "--json", "--run-dir", lab.path("run"), *more, timeout=40)
    return json.loads(done.stdout)


def is_near(told, rate, what):
    """What is told is no more than the rate and what is saved up in a tenth of a second, and, on a busy machine, little less."""
    check(0.9 * rate <= told <= 1.01 * rate * (1 + 0.1 / 1.5), f"{what}: {told}, where {rate} are expected")


@test(seconds=60)
def limits_are_kept(lab):
    """I/Os and bytes in a second, of reads and writes together and apart."""
    is_near(measured(lab, "qos:[memory:64M]?iops=2000", "--rw", "randrw")["iops"], 2000, "I/Os")
    # A job goes on when one of its I/Os ends, whichever: the slower direction holds up the other.
    apart = measured(lab, "qos:[memory:64M]?read_iops=3000&write_iops=1000", "--rw", "randrw", "--iodepth", "64")
    is_near(apart["writes"] / apart["runtime_s"], 1000, "writes")
    moved = measured(lab, "qos:[memory:64M]?bandwidth=8M", "--rw", "randwrite", "--bs", "64k")
    is_near(moved["mib_per_s"], 8, "MiB")


@test(seconds=60)
def limits_of_an_export(lab):
    """The same of a target, whose users get what they want in time, and no more."""
    path = image(lab, "a.img", 32)
    target = Target(lab, f"a=qos:[{path}]?iops=1500", over="raw", extra=("--state-dir", lab.path("state")))
    told = measured(lab, uri(lab, "a", over="raw"), "--rw", "randrw", "--verify")
    is_near(told["iops"], 1500, "I/Os")
    target.stop()
