"""What the machines run out of, and what somebody changes on them."""

import contextlib
import os
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from harness import check, run, until

from .. import groups, stamp
from ..disks import Nbd
from ..world import START_S
from .murder import Murder
from .processes import killed

ENOSPC = 28


class FullDisk(Murder):
    name, what = "full-disk", "the disk under a sparse image is full"
    holds = frozenset({"target", "disk"})

    def fits(self, world):
        # What was acknowledged and then fails, when it is flushed, is another promise.
        return world.draw.wrapper != ",writeback"

    def strike(self, world):
        world.blocks.ask("promise", errors=[ENOSPC])
        # A durable write without room counts as a sync that failed: those beside it, and flushes, then fail, too.
        world.blocks.ask("leave_out", kinds=["durable"])
        filler = os.path.join(world.small, "filler")
        with open(filler, "wb") as file:
            for size in (1 << 20, 1 << 16, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
                        file.flush()
        time.sleep(self.some_seconds(1, 4))
        was = world.blocks.figures()["refusals"]
        until("somebody sees that it is full", 60, lambda: world.blocks.figures()["refusals"] > was)
        os.unlink(filler)
        # What is under way is answered, and from then on none of that is promised.
        world.blocks.until_it_moves(30)
        world.blocks.ask("promise", errors=[])
        world.blocks.ask("leave_out", kinds=[])


class Descriptors(Murder):
    name, what = "descriptors", "no descriptor left, anywhere, while clients knock"
    holds = frozenset({"target", "gateway", "initiator", "face", "machine"})

    def strike(self, world):
        pids = [server.process.pid for server in world.servers] + [world.pid(world.nbd)]
        was = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids}
        try:
            for pid, (_, most) in was.items():
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, most))
            ends = time.monotonic() + self.some_seconds(1, 4)
            while time.monotonic() < ends:
                # Refused, or it waits; neither is anybody else's affair.
                done = run("timeout", "1", "nbdinfo", "--size", world.nbd.nbd, check_exit=False)
                check(done.returncode != 0, "there is a descriptor left")
                time.sleep(0.1)
        finally:
            for pid, limits in was.items():
                resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


class Memory(Murder):
    name, what = "memory", "a control group of the target's has no memory left"
    holds = frozenset({"target"})

    def why_not(self, _world):
        return groups.why_not()

    def strike(self, world):
        with groups.Group(f"{world.lab.tag}-memory") as group:
            world.target.kill()
            plain = world.target.argv
            world.target.argv = group.prefix + plain
            world.target.start(timeout=START_S)
            world.target.argv = plain
            world.blocks.until_it_moves()
            group.limit(group.used() + (1 << 20))
            # Somebody else in it takes what is left, and the kernel is to have the target go for it.
            with open(f"/proc/{world.target.process.pid}/oom_score_adj", "w", encoding="ascii") as file:
                file.write("1000")
            eater = subprocess.Popen(group.prefix + [sys.executable, "-c", EATER], start_new_session=True)
            try:
                until("the kernel has the target go", 60, lambda: not world.target.process.running)
            finally:
                eater.kill()
                eater.wait()
            group.limit(None)
            bad = world.blocks.at_rest(world.image)
            world.target.start(timeout=START_S)
        return bad


EATER = """
import time
kept = []
while True:
    kept.append(b"x" * (1 << 18))
    time.sleep(0.02)
"""


class ClockSteps(Murder):
    name, what = "clock", "the wall clock is set, hours, days and years to and fro"
    holds = frozenset({"clock"})

    def why_not(self, world):
        return world.clock.why_not

    def strike(self, world):
        hour = 3600
        for _ in range(self.chance.randrange(2, 6)):
            world.clock.set(self.chance.choice((-1, 1)) * self.chance.choice((1, hour, 24 * hour, 9000 * hour, 80000 * hour)))
            time.sleep(self.some_seconds(0.1, 2))
        if self.chance.random() < 0.5:
            world.clock.set(0)


class Config(Murder):
    name, what = "config", "the target is killed, or told to end, and comes back with another configuration"
    holds = frozenset({"target"})
    WRAPPERS = ("", ",writeback", ",buffered", ",cache=4M")
    FLAGS = (["--batch", "none"], ["--batch", "static:8"], ["--batch", "tyche"], ["--batch", "doorbell"],
             ["--receive", "split"], ["--completion", "workqueue"], ["--spin", "off"], ["--data-batch", "off"])

    def strike(self, world):
        if self.chance.random() < 0.5:
            world.target.kill()
        else:
            world.target.stop()
        bad = world.blocks.at_rest(world.image)
        flags = [word for pair in self.chance.sample(self.FLAGS[4:] + (self.chance.choice(self.FLAGS[:4]),), 2) for word in pair]
        if world.draw.over != "xdp":
            flags += ["--shards", self.chance.choice((1, 2, 3))]
        world.draw.wrapper = self.chance.choice(self.WRAPPERS)
        exports = [export for export in world.exports if not export.startswith("disk0=")]
        self.chance.shuffle(exports)
        world.serve([*exports, f"disk0={world.image}{world.draw.wrapper}"], flags)
        return bad


class Crowd(Murder):
    name, what = "crowd", "200 initiators at once, which read, and are then killed"
    holds = frozenset({"target", "gateway", "wire", "machine"})
    HEADS = 200
    READ = 128

    def strike(self, world):
        first = self.chance.randrange(world.blocks.sectors - self.READ)

        def one(number):
            attached = world.attach("disk0", "nbd", "--read-only", name=f"crowd{number}")
            disk = Nbd(attached.path)
            versions = stamp.found(world.blocks.number, first, disk.read(first * stamp.SECTOR, self.READ * stamp.SECTOR))
            # Beside a writer any version is right, and nothing else is.
            return attached, [f"a reader: sector {first + at}: {version}" for at, version in enumerate(versions)
                              if not isinstance(version, int)]
        with ThreadPoolExecutor(16) as pool:
            crowd = list(pool.map(one, range(self.HEADS)))
        for attached, _ in crowd:
            killed(world.pid(attached))
        return [text for _, bad in crowd for text in bad]
