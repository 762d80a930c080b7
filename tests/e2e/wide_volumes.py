"""Volumes over several pools, here or each at a target of its own; and snapshots of them under load."""

import json

import snapshots
from harness import check, run
from node import Attachment, Target, image, thinwire, uri


def write_file(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def pool_at(lab, number, data_mib=96):
    """A pool with a volume, on this machine."""
    parts = [image(lab, f"data{number}.img", data_mib), image(lab, f"metadata{number}.img", 16)]
    named = ", ".join(f'"{part}"' for part in parts)
    name = write_file(lab.path(f"pool{number}.toml"), f'[[volume]]\nname = "pool"\nkind = "thin"\nchildren = [{named}]\n') + "#pool"
    run_dir = ("--run-dir", lab.path("run"))
    thinwire(lab, "volume", "create", name, *run_dir)
    thinwire(lab, "volume", "create", f"{name}@part", "--size", "24M", *run_dir)
    return name


class Wide:
    """A stripe over volumes of two pools, or more: all here, or each at a target of its own."""

    def __init__(self, lab, far, count=2, data_mib=96):
        self.lab, self.far = lab, far
        self.pools = [pool_at(lab, number, data_mib) for number in range(1, count + 1)]
        self.run_dir = ("--run-dir", lab.path("run"))
        self.targets = []
        self.serve()
        parts = [uri(lab, "part", over="raw", node=f"node{number}") for number in range(1, count + 1)] if far else [f"{pool}@part" for pool in self.pools]
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


def cut_under_load(lab, count, pause):
    """So many snapshots of a volume over three targets that is written: how long each holds writes, and what is left of the rate."""
    wide = Wide(lab, far=True, count=3, data_mib=1024)
    disk = Attachment(lab, wide.name, face="file", name="wide", timeout=60)
    load = snapshots.Load(lab, disk.path, mib=6)
    windows = snapshots.Windows(lambda nth: wide.do("snapshot", wide.name, f"cut{nth}"), wide.snapshots, [lab.path(f"data{number}.img") for number in (1, 2, 3)])
    rounds = max(1, count // 25)
    firsts = [count * nth // rounds for nth in range(rounds + 1)]
    for first, behind in zip(firsts, firsts[1:]):
        windows.round(first, behind - first, pause)
    load.end()
    names = wide.snapshots()
    check(sorted(names) == sorted(f"cut{nth}" for nth in range(count)), names)
    for name in names:
        wide.do("delete", f"{wide.name}@{name}")
    disk.detach(timeout=60)
    check(wide.in_pools() == [[]] * 3 and wide.snapshots() == [], wide.in_pools())
    return windows.figures(load)
