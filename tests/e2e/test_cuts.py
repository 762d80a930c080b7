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
from node import Attachment, initiators, refused, thinwire
from registry import test
from wide_volumes import Wide, pool_at, write_file

CHUNK = 64 << 10


# Of its own process: whoever forks while it waits for its disk would wait as well, closing that. Says by a file how far it is.
WRITER = """
import mmap, os, random, sys
path, told, number, parts, beside = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4]), 0
file, block = os.open(path, os.O_RDWR | os.O_DIRECT), mmap.mmap(-1, 4096)
told = os.open(told, os.O_RDWR)
while True:
    number += 1
    block[:] = number.to_bytes(8, "little") * 512
    os.pwritev(file, [block], number % parts * 65536)
    os.pwrite(told, number.to_bytes(8, "little"), 0)
    os.pwritev(file, [block], random.randrange(64, 300) * 32768)
    beside += 1
    os.pwrite(told, beside.to_bytes(8, "little"), 8)
"""


class Writer:
    """Writes one number after the other, each when the last one was acknowledged, to all parts by turns; and a lot beside that."""

    def __init__(self, path, from_number=0, parts=2):
        told = f"{path}.told"
        with open(told, "wb") as file:
            file.write(from_number.to_bytes(8, "little") + bytes(8))
        self.told = os.open(told, os.O_RDONLY)
        self.process = subprocess.Popen([sys.executable, "-c", WRITER, path, told, str(from_number), str(parts)], stderr=subprocess.DEVNULL)

    @property
    def number(self):
        return int.from_bytes(os.pread(self.told, 8, 0), "little")

    @property
    def beside(self):
        return int.from_bytes(os.pread(self.told, 8, 8), "little")

    def end(self):
        self.process.kill()
        self.process.wait(30)


def is_straight(content, least, most, parts=2):
    """Of numbers that were written one after the other a later one is there only with those before."""
    numbers = [int.from_bytes(content[part * CHUNK:part * CHUNK + 8], "little") for part in range(parts)]
    last = max(numbers)
    check(sorted(numbers) == [max(0, number) for number in range(last - parts + 1, last + 1)], f"a crooked cut: {numbers}")
    check(least <= last <= most, f"a cut of another moment: {numbers}, not {least} to {most}")


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
    for name in set(there) - {"last"}:
        is_straight(wide.read(name), 0, 1 << 60)
    # Nobody flushed: of what came behind the last cut each pool may have lost another part when its host was killed. So "last" is what the volume was
    # when it was opened again, which need not be straight.
    check(wide.read("last") == wide.read(), "the last cut is not what the volume is")
    for target in wide.targets:
        target.stop()
    return told


@test(seconds=240)
def killed_over_two_pools_here(lab):
    killed(lab, False, 8)


@test(seconds=300)
def killed_over_two_targets(lab):
    killed(lab, True, 8)


class Killer:
    """Kills a process with the nth bunch of frames that it sends from now on."""

    def __init__(self, lab, side, pid, nth):
        calls = "sendto,sendmsg,sendmmsg"
        self.tracer = lab.start(side, "strace", "-f", "-p", pid, "-e", f"trace={calls}", "-e", f"inject={calls}:signal=SIGKILL:when={nth}", name=f"killer{nth}")
        until("strace has the process", 20, lambda: "attached" in self.tracer.stderr)

    @property
    def has_killed(self):
        """It has come to that: the call does not return."""
        return ") = ?" in self.tracer.stderr

    def end(self):
        """Lets go of a process that lives, or is quite gone."""
        if self.tracer.running and not self.has_killed:
            self.tracer.kill(signal.SIGINT)
        self.tracer.wait(10, expect=None)
        return self.has_killed


# So many bunches of frames are enough for a cut over three targets.
BUNCHES_MAX = 150


@test(seconds=600)
def killed_at_each_step_of_three_targets(lab):
    """Whoever has a volume over three targets is killed with the first bunch of frames that it sends for a cut, then with the second, and so on until a cut is
    through before that: each that was told of is there, none in a part of the targets, and all are straight."""
    wide, number, told, steps = Wide(lab, far=True, count=3), 0, [], 0
    for nth in range(1, BUNCHES_MAX):
        disk = Attachment(lab, wide.name, face="file", name=f"wide{nth}", timeout=60)
        writer = Writer(disk.path, number, parts=3)
        until("something was written", 10, lambda: writer.number > number + 3)
        writer.end()
        number, pid = writer.number + 2, disk.pid()
        killer = Killer(lab, "initiator", pid, nth)
        done = thinwire(lab, "volume", "snapshot", wide.name, f"cut{nth}", *wide.run_dir, expect=None, timeout=60)
        if done.returncode == 0:
            told.append(f"cut{nth}")
        if not killer.has_killed:
            killer.end()
            check(done.returncode == 0, done.stderr)
            disk.detach()
            break
        steps += 1
        run("umount", "-l", disk.path, check_exit=False)
        killer.end()
        until("it is gone", 10, lambda: pid not in initiators(lab))
        # Who was killed may hold its lock for a moment yet.
        until("it is opened", 20, lambda: wide.do("show", wide.name, expect=None).returncode == 0, every=0.3)
        there, in_pools = wide.snapshots(), wide.in_pools()
        check(in_pools == [sorted(f"part.{name}" for name in there)] * 3, f"killed with bunch {nth}: {there}, and {in_pools}")
        check(set(told) <= set(there), f"killed with bunch {nth}: told of {told}, there are {there}")
    check(steps >= 8 and told, f"only {steps} steps, told of {told}")
    there = wide.snapshots()
    check(set(told) <= set(there), f"told of {told}, there are {there}")
    print(f"{steps} steps, {len(there)} cuts, {len(told)} told of")
    is_straight(wide.read(), number - 2, number - 1, parts=3)
    wide.serve(*there)
    for name in there:
        is_straight(wide.read(name), 0, number, parts=3)
    for target in wide.targets:
        target.stop()


def target_killed_at_each_step(lab, which):
    """One of three targets is killed with the first bunch of frames that it sends during a cut, then with the second, and so on, and comes back: the cut is
    there on all of them or on none, and whoever writes meanwhile goes on."""
    wide, told, steps = Wide(lab, far=True, count=3), [], 0
    disk = Attachment(lab, wide.name, face="file", name="wide", timeout=60)
    writer = Writer(disk.path, parts=3)
    until("something was written", 10, lambda: writer.number > 3)
    for nth in list(range(1, 12)) + list(range(12, 60, 10)):
        target, before = wide.targets[which], writer.number
        killer = Killer(lab, "target", target.process.popen.pid, nth)
        done = []

        def cut():
            done.append(thinwire(lab, "volume", "snapshot", wide.name, f"cut{nth}", *wide.run_dir, expect=None, timeout=90))
        cutter = threading.Thread(target=cut)
        cutter.start()
        until("it is killed", 30, lambda: not target.process.running or bool(done))
        steps += killer.end()
        if not target.process.running:
            target.process.wait(10, expect=None)
            target.start(timeout=30)
        cutter.join()
        if done[0].returncode == 0:
            told.append(f"cut{nth}")
        until("it goes on", 30, lambda: writer.number > before + 3)
    wide.do("snapshot", wide.name, "last")
    writer.end()
    there = wide.snapshots()
    check(steps > 10 and set(told) | {"last"} <= set(there), f"{steps} steps, told of {told}, there are {there}")
    disk.detach()
    print(f"{steps} steps, {len(there)} cuts, {len(told)} told of")
    check(wide.in_pools() == [sorted(f"part.{name}" for name in there)] * 3, f"half a cut: {wide.in_pools()}, told of {told}")
    is_straight(wide.read(), writer.number, writer.number + 1, parts=3)
    wide.serve(*there)
    for name in there:
        is_straight(wide.read(name), 0, writer.number + 1, parts=3)
    for target in wide.targets:
        target.stop()


@test(seconds=600)
def the_first_of_three_targets_is_killed_at_each_step(lab):
    target_killed_at_each_step(lab, 0)


@test(seconds=600)
def the_last_of_three_targets_is_killed_at_each_step(lab):
    target_killed_at_each_step(lab, 2)


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


@test(seconds=180)
def mirrors_and_sums_within(lab):
    """A stripe over a mirror of volumes of two pools and a volume of a third one with sums: what is read of a snapshot is what was there, and all of its parts go with it. What
    has no labels on the way to a pool, and a mirror itself, are refused before anything is done."""
    pools, run_dir = [pool_at(lab, number) for number in (1, 2, 3)], ("--run-dir", lab.path("run"))
    path = lab.path("wide.toml")

    def volume(name, kind, children, more=""):
        return f'[[volume]]\nname = "{name}"\nkind = "{kind}"\n{more}children = [{", ".join(f"{chr(34)}{child}{chr(34)}" for child in children)}]\n'
    labels = "labels = true\n"
    write_file(path, volume("twice", "mirror", [f"{pool}@part" for pool in pools[:2]]) + volume("sums", "integrity", [f"{pools[2]}@part"])
               + volume("wide", "stripe", ["twice", "sums"], labels) + volume("plain", "slice", [f"{pools[0]}@part"]) + volume("crooked", "linear", ["plain"], labels))
    wide = f"{path}#wide"
    for name in ("crooked", "twice"):
        refused(lab, "volume", "snapshot", f"{path}#{name}", "monday", *run_dir, code=2, says=["cannot be cut as one", "labels"])
    thinwire(lab, "volume", "create", wide, *run_dir, timeout=60)
    disk = Attachment(lab, wide, face="file", name="wide", timeout=60)
    draw = random.Random(3)
    first, second = draw.randbytes(3 << 20), draw.randbytes(3 << 20)

    def write(data):
        with open(disk.path, "r+b", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())
    write(first)
    # All legs have to be in sync.
    until("it is cut", 60, lambda: thinwire(lab, "volume", "snapshot", wide, "monday", *run_dir, expect=None, timeout=60).returncode == 0, every=0.5)
    write(second)
    disk.detach()

    def content(name):
        out = lab.path("out.raw")
        run("rm", "-f", out)
        thinwire(lab, "copy", name, out, *run_dir, timeout=60)
        with open(out, "rb") as file:
            return file.read(len(first))
    check(content(f"{wide}@monday") == first, "the snapshot is what was there")
    check(content(wide) == second, "the volume went on")
    thinwire(lab, "copy", f"{wide}@monday", wide, *run_dir, timeout=60)
    check(content(wide) == first, "it is again what it was")
    until("it is deleted", 60, lambda: thinwire(lab, "volume", "delete", f"{wide}@monday", *run_dir, expect=None, timeout=60).returncode == 0, every=0.5)
    for pool in pools:
        shown = json.loads(thinwire(lab, "volume", "show", pool, "--json", *run_dir).stdout)
        check([volume["name"] for volume in shown["volumes"]] == ["part"], shown)
