"""Snapshots of volumes over several pools, as one: of one moment, whole or not at all, whoever is killed."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import snapshots
from harness import check, run, until
from node import Attachment, Target, image, initiators, refused, thinwire, uri
from registry import test

CHUNK = 64 << 10


def write_file(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def pool_at(lab, number):
    """A pool with a volume, on this machine."""
    parts = [image(lab, f"data{number}.img", 96), image(lab, f"metadata{number}.img", 16)]
    named = ", ".join(f'"{part}"' for part in parts)
    name = write_file(lab.path(f"pool{number}.toml"), f'[[volume]]\nname = "pool"\nkind = "thin"\nchildren = [{named}]\n') + "#pool"
    run_dir = ("--run-dir", lab.path("run"))
    thinwire(lab, "volume", "create", name, *run_dir)
    thinwire(lab, "volume", "create", f"{name}@part", "--size", "24M", *run_dir)
    return name


class Wide:
    """A stripe over volumes of two pools: both here, or each at a target of its own."""

    def __init__(self, lab, far):
        self.lab, self.far = lab, far
        self.pools = [pool_at(lab, number) for number in (1, 2)]
        self.run_dir = ("--run-dir", lab.path("run"))
        self.targets = []
        self.serve()
        parts = [uri(lab, "part", over="raw", node=f"node{number}") for number in (1, 2)] if far else [f"{pool}@part" for pool in self.pools]
        named = ", ".join(f'"{part}"' for part in parts)
        path = lab.path("wide.toml")
        write_file(path, f'[[volume]]\nname = "wide"\nkind = "stripe"\nlabels = true\nchildren = [{named}]\n')
        self.name = f"{path}#wide"
        self.do("create", self.name)

    def do(self, *argv, **options):
        return thinwire(self.lab, "volume", *argv, *self.run_dir, timeout=60, **options)

    def serve(self, *snapshots):
        """The targets export their volumes, and these snapshots."""
        for target in self.targets:
            target.stop()
        if not self.far:
            return
        self.targets = [
            Target(self.lab, f"part={pool}@part", *(f"part.{name}={pool}@part.{name},ro" for name in snapshots), name=f"node{number}", over="raw",
                   extra=("--run-dir", self.lab.path(f"run{number}"), "--state-dir", self.lab.path(f"state{number}")))
            for number, pool in enumerate(self.pools, 1)]

    def snapshots(self):
        return [cut["name"] for cut in json.loads(self.do("show", self.name, "--json").stdout)["snapshots"]]

    def in_pools(self):
        """What is in each of the pools, beside the volume."""
        found = []
        for number, pool in enumerate(self.pools, 1):
            run_dir = self.lab.path(f"run{number}") if self.far else self.lab.path("run")
            shown = json.loads(thinwire(self.lab, "volume", "show", pool, "--json", "--run-dir", run_dir).stdout)
            found.append(sorted(volume["name"] for volume in shown["volumes"] if volume["name"] != "part"))
        return found

    def read(self, name="wide"):
        path = self.lab.path("out.raw")
        run("rm", "-f", path)
        volume = self.name if name == "wide" else f"{self.name}@{name}"
        thinwire(self.lab, "copy", volume, path, *self.run_dir, timeout=60)
        with open(path, "rb") as file:
            return file.read()


# Of its own process: whoever forks while it waits for its disk would wait as well, closing that. Says by a file how far it is.
WRITER = """
import mmap, os, random, sys
path, told, number, beside = *sys.argv[1:3], int(sys.argv[3]), 0
file, block = os.open(path, os.O_RDWR | os.O_DIRECT), mmap.mmap(-1, 4096)
told = os.open(told, os.O_RDWR)
while True:
    number += 1
    block[:] = number.to_bytes(8, "little") * 512
    os.pwritev(file, [block], number % 2 * 65536)
    os.pwrite(told, number.to_bytes(8, "little"), 0)
    os.pwritev(file, [block], random.randrange(64, 300) * 32768)
    beside += 1
    os.pwrite(told, beside.to_bytes(8, "little"), 8)
"""


class Writer:
    """Writes one number after the other, each when the last one was acknowledged, to both parts by turns; and a lot beside that."""

    def __init__(self, path, from_number=0):
        told = f"{path}.told"
        with open(told, "wb") as file:
            file.write(from_number.to_bytes(8, "little") + bytes(8))
        self.told = os.open(told, os.O_RDONLY)
        self.process = subprocess.Popen([sys.executable, "-c", WRITER, path, told, str(from_number)], stderr=subprocess.DEVNULL)

    @property
    def number(self):
        return int.from_bytes(os.pread(self.told, 8, 0), "little")

    @property
    def beside(self):
        return int.from_bytes(os.pread(self.told, 8, 8), "little")

    def end(self):
        self.process.kill()
        self.process.wait(30)


def is_straight(content, least, most):
    """Of two numbers that were written one after the other the later one is there only with the one before."""
    even, odd = (int.from_bytes(content[at:at + 8], "little") for at in (0, CHUNK))
    check(abs(even - odd) == 1 or even == odd == 0, f"a crooked cut: {even} and {odd}")
    check(least <= max(even, odd) <= most, f"a cut of another moment: {even} and {odd}, not {least} to {most}")


def cut_while_written(lab, far):
    wide = Wide(lab, far)
    disk = Attachment(lab, wide.name, face="file", name="wide")
    writer = Writer(disk.path)
    until("something was written", 10, lambda: writer.number > 20)
    bounds = {}
    for nth in range(6):
        least = writer.number
        said = wide.do("snapshot", wide.name, f"cut{nth}").stdout
        check(said == f"made cut{nth}: a snapshot of all parts as one\n", said)
        bounds[f"cut{nth}"] = (least, writer.number + 2)
        time.sleep(0.1)
    refused(lab, "volume", "snapshot", wide.name, "cut3", *wide.run_dir, says=["something of that name"])
    check(wide.snapshots() == list(bounds), wide.snapshots())
    writer.end()
    disk.detach()
    check(writer.number > 100 and writer.beside > 100, f"{writer.number} numbers")
    check(wide.in_pools() == [[f"part.{name}" for name in bounds]] * 2, wide.in_pools())
    last = wide.read()
    is_straight(last, writer.number, writer.number + 1)
    wide.serve(*bounds)
    for name, (least, most) in bounds.items():
        is_straight(wide.read(name), least, most)
    refused(lab, "bench", f"{wide.name}@cut1", "--rw", "randwrite", "--runtime", "0.1", *wide.run_dir, says=["read-only"])
    refused(lab, "volume", "delete", f"{wide.name}@none", *wide.run_dir, says=["no snapshot `none`", "cut1"])
    if far:
        refused(lab, "volume", "delete", f"{wide.name}@cut1", *wide.run_dir, says=["something else uses"])
        wide.serve()
        # Begun it was: whoever opens the volume next ends it.
        check(wide.snapshots() == [name for name in bounds if name != "cut1"], wide.snapshots())
        del bounds["cut1"]
    for name in bounds:
        wide.do("delete", f"{wide.name}@{name}")
    check(wide.in_pools() == [[], []] and wide.snapshots() == [], wide.in_pools())
    check(wide.read() == last, "the volume is as it was")
    for target in wide.targets:
        target.stop()


@test(seconds=120)
def of_two_pools_here(lab):
    """A stripe over volumes of two pools of this machine is cut while numbers are written to both by turns: no cut has one and not the one
    before. All are listed, read and deleted."""
    cut_while_written(lab, far=False)


@test(seconds=180)
def of_two_targets(lab):
    """The same where each pool is at a target, which is told over the wire."""
    cut_while_written(lab, far=True)


def killed(lab, far, times):
    """Whoever has the volume is killed at some moment of a cut, again and again: each cut that was told of is there, none in half."""
    wide = Wide(lab, far)
    told, number = [], 0
    draw = random.Random(7)
    for nth in range(times):
        disk = Attachment(lab, wide.name, face="file", name=f"wide{nth}", timeout=60)
        pid = disk.pid()
        writer = Writer(disk.path, number)
        until("something was written", 10, lambda: writer.number > number + 2)
        done = []

        def cut():
            done.append(thinwire(lab, "volume", "snapshot", wide.name, f"cut{nth}", *wide.run_dir, expect=None, timeout=60))
        cutter = threading.Thread(target=cut)
        cutter.start()
        time.sleep(draw.uniform(0.02, 0.25))
        os.kill(pid, signal.SIGKILL)
        cutter.join()
        writer.end()
        run("umount", "-l", disk.path, check_exit=False)
        until("it is gone", 10, lambda: pid not in initiators(lab))
        number = writer.number + 2
        if done[0].returncode == 0:
            told.append(f"cut{nth}")
    # The next opening decides. Who was killed last may hold its lock for a moment yet.
    until("it is cut", 20, lambda: wide.do("snapshot", wide.name, "last", expect=None).returncode == 0, every=0.5)
    first, second = wide.in_pools()
    check(first == second, f"half a cut: {first} and {second}")
    there = [name.removeprefix("part.") for name in first]
    check(set(told) | {"last"} <= set(there), f"told of {told}, there are {there}")
    check(sorted(wide.snapshots()) == sorted(there), wide.snapshots())
    wide.serve(*there)
    for name in there:
        is_straight(wide.read(name), 0, 1 << 60)
    for target in wide.targets:
        target.stop()
    return told


@test(seconds=240)
def killed_over_two_pools_here(lab):
    killed(lab, False, 8)


@test(seconds=300)
def killed_over_two_targets(lab):
    killed(lab, True, 8)


@test(seconds=240)
def a_target_is_killed(lab):
    """One of two targets is killed at some moment of a cut, and comes back, again and again: the cut has come about on both of them, or on none, and whoever
    writes goes on."""
    wide = Wide(lab, far=True)
    disk = Attachment(lab, wide.name, face="file", name="wide", timeout=60)
    writer = Writer(disk.path)
    draw, told = random.Random(11), []
    for nth in range(6):
        before, done = writer.number, []
        until("something was written", 20, lambda: writer.number > before + 2)

        def cut():
            done.append(thinwire(lab, "volume", "snapshot", wide.name, f"cut{nth}", *wide.run_dir, expect=None, timeout=90))
        cutter = threading.Thread(target=cut)
        cutter.start()
        time.sleep(draw.uniform(0.02, 0.15))
        wide.targets[nth % 2].kill()
        time.sleep(draw.choice((0.2, 1.5)))
        wide.targets[nth % 2].start(timeout=30)
        cutter.join()
        if done[0].returncode == 0:
            told.append(f"cut{nth}")
    before = writer.number
    until("it goes on", 30, lambda: writer.number > before + 5)
    wide.do("snapshot", wide.name, "last")
    writer.end()
    there = wide.snapshots()
    check(set(told) | {"last"} <= set(there), f"told of {told}, there are {there}")
    disk.detach()
    check(wide.in_pools() == [sorted(f"part.{name}" for name in there)] * 2, f"half a cut: {wide.in_pools()}, told of {told}")
    is_straight(wide.read(), writer.number, writer.number + 1)
    wide.serve(*there)
    for name in there:
        is_straight(wide.read(name), 0, writer.number + 1)
    for target in wide.targets:
        target.stop()


@test(seconds=240)
def fifty_under_load(lab):
    """Fifty snapshots of a volume with an ext4 that is being written, as fast as they go: some are mounted, which replays the journal, and are clean; all are
    deleted, and every block comes back. How long each holds writes is measured by `make soak-volumes`."""
    figures = snapshots.under_load(lab, 50, data_mib=3 << 10, mounts=2)
    check(figures["snapshots"] == 50 and figures["writes_beside"] > 0, figures)
