"""A volume of which only so much is taken in a second: by a command, and of a target."""

import json
import time

import load
import node
from harness import check, until
from node import Attachment, Target, image, refused, thinwire, uri
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


def slow(lab, path, limits, name="slow", file="qos.toml", mode="w"):
    """A volume of which so much is taken in a second."""
    with open(lab.path(file), mode, encoding="utf-8") as described:
        described.write(f'[[volume]]\nname = "{name}"\nkind = "qos"\nchildren = ["{path}"]\n{limits}\n')
    return f"{lab.path(file)}#{name}"


def node_of(lab, volume, side="initiator"):
    shown = thinwire(lab, "volume", "status", volume, "--json", "--run-dir", lab.path("run"), side=side)
    return json.loads(shown.stdout)["nodes"][0]


@test(seconds=120)
def limits_change_while_in_use(lab):
    """A disk that is so slow that nothing would end gets other limits while what is written is verified, here and at a target: what waits goes by those, status tells, nothing is lost, and they hold
    until it is opened again. What cannot be is refused, and changes nothing."""
    run_dir = ("--run-dir", lab.path("run"))
    volume = slow(lab, image(lab, "a.img", 32), "iops = 5")
    refused(lab, "volume", "limits", volume, "iops=7", *run_dir, says=["no attachment or target"])
    for side in ("initiator", "target"):
        if side == "initiator":
            disk = Attachment(lab, volume, name="slow")
        else:
            target = Target(lab, f"slow={volume}", over="raw", extra=run_dir)
            disk = Attachment(lab, uri(lab, "slow", over="raw"), name="far", run="other")
        fio = load.Fio(lab, disk.nbd, mib=8)
        until("something waits", 20, lambda: node_of(lab, volume, side)["limits"]["waiting"] > 0)
        for limit, says in (("iops=0", "iops is 1 to"), ("bandwidth=100", "bandwidth is 512"), ("share=2", "as long as it is open"), ("iops", "NAME=VALUE"), ("chunk=4K", "chunk")):
            refused(lab, "volume", "limits", volume, limit, *run_dir, says=[says], code=2, side=side)
        check(node_of(lab, volume, side)["limits"]["iops"] == 5, "nothing has changed")
        fio.still_running("its disk is slow")
        before = node_of(lab, volume, side)["io"]["completed"]
        said = thinwire(lab, "volume", "limits", volume, "iops=none", "write_bandwidth=64M", *run_dir, side=side)
        check("write_bandwidth 64 MiB holds until it is opened again" in said.stderr, said.stderr)
        check("until it is opened again" in said.stdout, said.stdout)
        # As it was, that would take minutes.
        until("much more is done", 20, lambda: node_of(lab, volume, side)["io"]["completed"] > before + 300)
        limits = node_of(lab, volume, side)["limits"]
        check((limits["iops"], limits["write_bandwidth"], limits["changed"]) == (None, 64 << 20, True), limits)
        fio.finish(60)
        disk.detach()
    target.stop()
    target.start()
    limits = node_of(lab, volume, "target")["limits"]
    check((limits["iops"], limits["changed"], limits["volumes"]) == (5, False, 1), limits)
    target.stop()


@test(seconds=90)
def several_share_one_budget(lab):
    """Two exports of a target with two shards that share their limits: both together get what one would, and both get some, whoever asks for more. Other limits of one share are refused, and both
    are named."""
    run_dir, limits = ("--run-dir", lab.path("run")), "iops = 1500\nshare = 7"
    one = slow(lab, image(lab, "a.img", 32), limits, name="one")
    two = slow(lab, image(lab, "b.img", 32), limits, name="two", mode="a")
    target = Target(lab, f"one={one}", f"two={two}", over="raw", extra=("--shards", "2", *run_dir))
    check(node_of(lab, one, "target")["limits"]["volumes"] == 2, "they are two")
    begin = time.monotonic()
    argv = ("--rw", "randread", "--runtime", "3", "--json", *run_dir, *node.security_flags(lab, ["bench"]))
    busy = lab.start("initiator", node.BIN, "bench", uri(lab, "one", over="raw"), "--iodepth", "64", *argv, name="busy")
    modest = thinwire(lab, "bench", uri(lab, "two", over="raw"), "--rw", "randread", "--runtime", "3", "--iodepth", "8", "--json", *run_dir, timeout=40)
    busy.wait(30)
    passed = time.monotonic() - begin
    ios = [json.loads(text)["reads"] for text in ("".join(busy.stdout), modest.stdout)]
    check(sum(ios) <= 1500 * passed + 150 + 2, f"{ios} in {passed} s")
    check(min(ios) >= sum(ios) / 4, ios)
    said = thinwire(lab, "volume", "limits", two, "iops=40", *run_dir, side="target")
    check("iops 40 holds for all 2 volumes that share them" in said.stderr, said.stderr)
    check(node_of(lab, one, "target")["limits"]["iops"] == 40, "it holds for the other")
    target.stop()
    other = slow(lab, lab.path("b.img"), "iops = 1000\nshare = 7", name="other", file="other.toml")
    ended = Target(lab, f"one={one}", f"other={other}", over="raw", extra=run_dir, start=False)
    process = lab.start("target", *ended.argv, name="refused")
    process.wait(20, expect=None)
    check(process.popen.returncode != 0, "it does not serve")
    told = "".join(process.stderr)
    check(all(says in told for says in ("one", "other", "share = 7", "iops 1500", "iops 1000")), told)
