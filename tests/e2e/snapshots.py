"""Many snapshots of a volume while it is written: how long each holds writes, what is left of the rate, and whether all comes back.

The load is one writer that waits for each write, of one block of the pool at a random place in a file of an ext4, so that each pause is seen, and so that no
rate is lost to copying what a write leaves of a block; its file is flushed now and then. What holds writes is what the slowest of them
took while a snapshot was made.

Beside the load as many commands of another kind are run first, which only look: what they take of the rate no snapshot takes.
"""

import json
import mmap
import os
import random
import threading
import time

from harness import check, run
from node import Attachment, thinwire

BLOCK = 64 << 10
FILE_MIB = 48


class Pool:
    """A pool on this machine with a volume, attached as a disk that has an ext4 on it."""

    def __init__(self, lab, data_mib, store=None, metadata_mib=64, volume_mib=256, fills=False):
        self.lab, self.run_dir = lab, ("--run-dir", lab.path("run"))
        parts = []
        for name, mib in ("data.img", data_mib), ("metadata.img", metadata_mib):
            parts.append(os.path.join(store or lab.dir, name))
            with open(parts[-1], "wb") as file:
                # A file of holes makes each first write of a block one that its file system has to find room for.
                for _ in range(mib if fills else 0):
                    file.write(bytes(1 << 20))
                file.truncate(mib << 20)
        with open(lab.path("pool.toml"), "w", encoding="utf-8") as file:
            file.write(f'[[volume]]\nname = "pool"\nkind = "thin"\nchildren = ["{parts[0]}", "{parts[1]}"]\n')
        self.name = lab.path("pool.toml") + "#pool"
        self.do("create", self.name)
        self.do("create", f"{self.name}@home", "--size", f"{volume_mib}M")
        self.disk = Attachment(lab, f"{self.name}@home", face="block", name="home", timeout=40)
        self.mount = lab.path("mnt")
        os.mkdir(self.mount)
        # Files begin where blocks of the pool do.
        lab.run("initiator", "mkfs.ext4", "-q", "-F", "-E", f"stride={BLOCK >> 12},stripe_width={BLOCK >> 12}", "-b", "4096", self.disk.path)
        lab.run("initiator", "mount", self.disk.path, self.mount)

    def do(self, *argv, timeout=120):
        return thinwire(self.lab, "volume", *argv, *self.run_dir, timeout=timeout)

    def show(self):
        return json.loads(self.do("show", self.name, "--json").stdout)

    def leave(self):
        self.lab.run("initiator", "umount", self.mount)
        self.disk.detach(timeout=60)


class Load(threading.Thread):
    """See the head of this file."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        os.posix_fallocate(self.file, 0, FILE_MIB << 20)
        self.block = mmap.mmap(-1, BLOCK)
        # When each write began, and how long it took.
        self.took, self.ends = [], False
        for at in range(0, FILE_MIB << 20, BLOCK):
            os.pwritev(self.file, [self.block], at)
        self.start()

    def run(self):
        draw = random.Random(1)
        while not self.ends:
            self.block[:8] = len(self.took).to_bytes(8, "little")
            begun = time.monotonic()
            os.pwritev(self.file, [self.block], draw.randrange(FILE_MIB << 20) // BLOCK * BLOCK)
            self.took.append((begun, time.monotonic() - begun))
            if len(self.took) % 1000 == 0:
                os.fdatasync(self.file)

    def rate(self, since, until):
        """Writes a second that began between."""
        return sum(since <= begun < until for begun, _ in self.took) / (until - since)

    def slowest(self, since, until):
        """How long the longest of those took that were under way between."""
        return max((took for begun, took in self.took if begun < until and begun + took > since), default=0)

    def end(self):
        self.ends = True
        self.join(30)
        os.close(self.file)


def flush_takes(path):
    """How long one flush of the store takes behind some writes: the longest of a few."""
    worst = 0
    with open(path, "wb") as file:
        for _ in range(20):
            file.write(bytes(1 << 20))
            file.flush()
            begun = time.monotonic()
            os.fdatasync(file.fileno())
            worst = max(worst, time.monotonic() - begun)
    os.remove(path)
    return worst


def at(sorted_values, share):
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * share))]


def under_load(lab, count, data_mib, pause=0.0, mounts=3, store=None, fills=False):
    """Takes so many snapshots, mounts some of them, and deletes all. `store` is where the pool lies, if it is not the folder of the test; it is
    written once before if it `fills`. Returns the figures."""
    pool = Pool(lab, data_mib, store, fills=fills)
    load = Load(os.path.join(pool.mount, "file"))
    time.sleep(1)
    before = time.monotonic()
    time.sleep(4)
    begun = time.monotonic()
    alone = load.rate(before, begun)
    pauses_alone = sorted(took for at, took in load.took if before <= at < begun)
    for _ in range(min(count, 50)):
        pool.show()
        time.sleep(pause)
    beside_looks = load.rate(begun, time.monotonic())
    begun = time.monotonic()
    held = []
    for nth in range(count):
        since = time.monotonic()
        pool.do("snapshot", f"{pool.name}@home", f"s{nth}")
        held.append((since, time.monotonic()))
        time.sleep(pause)
    ended = time.monotonic()
    beside = load.rate(begun, ended)
    time.sleep(0.5)
    load.end()
    held = sorted(load.slowest(*when) for when in held)
    shown = pool.show()
    check(len(shown["volumes"]) == count + 1, f"{len(shown['volumes'])} volumes")
    pool.leave()
    draw = random.Random(5)
    picked = sorted(draw.sample(range(count), mounts))
    for nth in picked:
        copy = lab.path("snapshot.raw")
        thinwire(lab, "copy", f"{pool.name}@s{nth}", copy, *pool.run_dir, timeout=120)
        # The mount replays the journal, as behind a power failure.
        lab.run("initiator", "mount", "-o", "loop", copy, pool.mount)
        size = os.path.getsize(os.path.join(pool.mount, "file"))
        check(size == FILE_MIB << 20, f"the file has {size} bytes in snapshot {nth}")
        lab.run("initiator", "umount", pool.mount)
        lab.run("initiator", "e2fsck", "-fn", copy)
        run("rm", copy)
    full = pool.show()
    deleting = time.monotonic()
    disk = Attachment(lab, f"{pool.name}@home", face="file", name="again", timeout=60)
    for nth in draw.sample(range(count), count):
        pool.do("delete", f"{pool.name}@s{nth}")
    disk.detach(timeout=120)
    pool.do("delete", f"{pool.name}@home", timeout=300)
    empty = pool.show()
    deleted = time.monotonic() - deleting
    check(empty["volumes"] == [] and empty["data_used_bytes"] == 0, f"{empty['data_used_bytes']} bytes of data do not come back")
    sound = pool.do("check", pool.name, timeout=300).stdout
    check(sound.endswith("is sound\n"), sound)
    return {
        "snapshots": count,
        "seconds": round(ended - begun, 1),
        "flush_ms": round(1000 * flush_takes(os.path.join(store or lab.dir, "flush")), 1),
        "slowest_write_alone_ms": round(1000 * pauses_alone[-1], 1),
        "held_ms_median": round(1000 * at(held, 0.5), 1),
        "held_ms_99": round(1000 * at(held, 0.99), 1),
        "held_ms_longest": round(1000 * held[-1], 1),
        "writes_alone": round(alone),
        "writes_beside_looks": round(beside_looks),
        "writes_beside": round(beside),
        "kept_percent": round(100 * beside / alone),
        "kept_of_looks_percent": round(100 * beside / beside_looks),
        "mounted": mounts,
        "data_used_mib": full["data_used_bytes"] >> 20,
        "metadata_used_kib": full["metadata_used_bytes"] >> 10,
        "metadata_left_kib": empty["metadata_used_bytes"] >> 10,
        "deleted_in_seconds": round(deleted, 1),
    }
