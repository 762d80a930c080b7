"""Full pools below what has labels: it is opened, closed, and its snapshots are deleted all the same (rule 14)."""

import errno
import json
import mmap
import os

from harness import Failure, check, run, until
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test

STEP = 64 << 10
VOLUME = 24 << 20
# Of it, where the data of the mirror is, and of what is over that.
DATA = VOLUME - (1536 << 10) - (1 << 20)


class Full:
    """A mirror over volumes of two pools, which have room for it and a third of a copy, here or each at a target; what is cut is a `linear` over it."""

    def __init__(self, lab, far):
        self.lab, self.run_dir, self.targets = lab, ("--run-dir", lab.path("run")), []
        self.pools = []
        for number in (1, 2):
            parts = [image(lab, f"data{number}.img", 32), image(lab, f"metadata{number}.img", 16)]
            named = ", ".join(f'"{part}"' for part in parts)
            path = lab.path(f"pool{number}.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f'[[volume]]\nname = "pool"\nkind = "thin"\nchildren = [{named}]\n')
            self.pools.append(f"{path}#pool")
            self.do("create", self.pools[-1])
            self.do("create", f"{self.pools[-1]}@part", "--size", str(VOLUME))
        if far:
            self.targets = [Target(lab, f"part={pool}@part", name=f"node{number}", over="raw",
                                   extra=("--run-dir", lab.path(f"run{number}"), "--state-dir", lab.path(f"state{number}")))
                            for number, pool in enumerate(self.pools, 1)]
        legs = [uri(lab, "part", over="raw", node=f"node{number}") for number in (1, 2)] if far else [f"{pool}@part" for pool in self.pools]
        named = ", ".join(f'"{leg}"' for leg in legs)
        path = lab.path("home.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'[[volume]]\nname = "twice"\nkind = "mirror"\nchildren = [{named}]\n\n'
                       '[[volume]]\nname = "home"\nkind = "linear"\nlabels = true\nchildren = ["twice"]\n')
        self.block = mmap.mmap(-1, STEP)
        self.content = {}
        # All of it is written once, so that both pools have given the same: what a new leg is copied to takes room there for zeroes, too.
        self.name = f"{path}#twice"
        self.do("create", self.name)
        self.do("resync", self.name)
        self.attach()
        for at in range(0, DATA + (1 << 20), STEP):
            check(self.write(at, 9), "there is room")
        self.settle()
        self.disk.detach()
        self.name = f"{path}#home"
        self.do("create", self.name, "--force")
        self.content = {}

    def do(self, *argv, **options):
        return thinwire(self.lab, "volume", *argv, *self.run_dir, timeout=90, **options)

    def attach(self):
        self.disk = Attachment(self.lab, self.name, face="file", name="home", timeout=60)

    def write(self, at, byte):
        """Whether there was room."""
        self.block[:] = bytes([byte]) * STEP
        file = os.open(self.disk.path, os.O_RDWR | os.O_DIRECT)
        try:
            os.pwritev(file, [self.block], at)
        except OSError as error:
            check(error.errno == errno.ENOSPC, f"not ENOSPC but {error}")
            return False
        finally:
            os.close(file)
        self.content[at] = byte
        return True

    def fill(self, byte):
        """Writes from the first byte on until there is no room, and what a third of the disk further on has none, either."""
        for at in range(0, DATA, STEP):
            if not self.write(at, byte):
                check(not self.write(at + (8 << 20), byte) and not self.write(at, byte), "there is no room anywhere")
                return at
        raise AssertionError("it is never full")

    def read(self):
        with open(self.disk.path, "rb") as file:
            for at, byte in self.content.items():
                file.seek(at)
                check(file.read(STEP) == bytes([byte]) * STEP, f"at {at}")

    def settle(self):
        """Until both legs are in sync."""
        said = ""

        def is_in_sync():
            nonlocal said
            said = self.do("status", self.name).stdout
            return "leg 0, in sync" in said and "leg 1, in sync" in said
        try:
            until("both legs are in sync", 30, is_in_sync)
        except Failure as failure:
            raise Failure(f"{failure}\n{said}\n{self.disk.log()}") from failure

    def snapshot(self, name):
        """Once both legs are in sync."""
        until(f"{name} is taken", 60, lambda: self.do("snapshot", self.name, name, expect=None).returncode == 0, every=0.5)

    def free(self):
        """Bytes that the pools say are left."""
        found = []
        for number, pool in enumerate(self.pools, 1):
            run_dir = self.lab.path(f"run{number}") if self.targets else self.run_dir[1]
            shown = json.loads(thinwire(self.lab, "volume", "show", pool, "--json", "--run-dir", run_dir).stdout)
            found.append(shown["data_bytes"] - shown["data_used_bytes"])
        return found


def full_below_a_mirror(lab, far):
    full = Full(lab, far)
    full.attach()
    for at in range(0, DATA, STEP):
        check(full.write(at, 1), "there is room")
    full.snapshot("monday")
    check(full.free()[0] == full.free()[1] > 4 << 20, f"{full.free()} left")
    end = full.fill(2)
    check(end > 4 << 20, f"full at {end}")
    full.settle()
    full.read()
    check(full.free() == [0, 0], f"{full.free()} left")
    full.disk.detach()
    # Each opening writes labels; what it takes for the first one is what was kept.
    for _ in range(2):
        full.attach()
        full.read()
        check(not full.write(end, 3), "there is no room")
        full.settle()
        full.disk.detach()
    full.attach()
    # Behind another one labels would have no room.
    refused(lab, "volume", "snapshot", full.name, "tuesday", *full.run_dir, says=["space"], timeout=60)
    full.do("delete", f"{full.name}@monday")
    until("what it had is there again", 20, lambda: full.write(end, 4), every=0.2)
    full.snapshot("tuesday")
    full.fill(5)
    full.settle()
    full.disk.detach()
    # The same with nobody using it.
    full.do("delete", f"{full.name}@tuesday")
    full.attach()
    until("what it had is there again", 20, lambda: full.write(end + (1 << 20), 6), every=0.2)
    full.read()
    full.disk.detach()
    for target in full.targets:
        target.stop()
    legs = []
    for number, pool in enumerate(full.pools):
        out = lab.path(f"leg{number}.raw")
        thinwire(lab, "copy", f"{pool}@part", out, *full.run_dir, timeout=60)
        with open(out, "rb") as file:
            file.seek(1536 << 10)
            legs.append(file.read())
        run("rm", "-f", out)
    check(legs[0] == legs[1], "the legs differ")


@test(seconds=180)
def below_a_mirror_here(lab):
    """A mirror over volumes of two pools is written behind a snapshot until both are full. It stays in sync, is detached and attached again, refuses a snapshot
    behind which it could not be opened, has the one that it has deleted, in use and not, and is written again."""
    full_below_a_mirror(lab, far=False)


@test(seconds=240)
def below_a_mirror_at_targets(lab):
    """The same where each pool is at a target, which learns by the requests what is a label."""
    full_below_a_mirror(lab, far=True)
