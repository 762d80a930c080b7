"""Pools of thin volumes: what is written, kept by snapshots, full, and killed."""

import json
import os
import signal
import time

import load
from harness import check, run, until
from node import Attachment, Target, image, initiators, refused, thinwire, uri
from registry import test
from test_mirrors import standing_clean
from test_reload import Disk, Keyed, key_path

DATA_MIB, METADATA_MIB = 96, 16


def describe(lab, children, extra=""):
    path = lab.path("pool.toml")
    with open(path, "w", encoding="utf-8") as file:
        named = ", ".join(f'"{child}"' for child in children)
        file.write(f'[[volume]]\nname = "pool"\nkind = "thin"\n{extra}\nchildren = [{named}]\n')
    return f"{path}#pool"


class Pool:
    """A pool over two images of this machine, with a volume."""

    def __init__(self, lab, size="1G", extra=""):
        self.lab = lab
        self.images = [image(lab, "data.img", DATA_MIB), image(lab, "metadata.img", METADATA_MIB)]
        self.name = describe(lab, self.images, extra)
        self.run_dir = ("--run-dir", lab.path("run"))
        self.do("create", self.name)
        self.do("create", f"{self.name}@home", "--size", size)

    def do(self, *argv, **options):
        return thinwire(self.lab, "volume", *argv, *self.run_dir, timeout=60, **options)

    def show(self, *flags):
        return json.loads(self.do("show", self.name, "--json", *flags).stdout)

    def volumes(self):
        return [volume["name"] for volume in self.show()["volumes"]]

    def read(self, name, path):
        """All of a volume, as a file."""
        run("rm", "-f", path)
        thinwire(self.lab, "copy", f"{self.name}@{name}", path, *self.run_dir, timeout=60)
        with open(path, "rb") as file:
            return file.read()


def lacks(before, after):
    """Blocks that `before` holds something in and `after` something else."""
    blank = bytes(512)
    return [at for at in range(0, len(before), 512) if before[at:at + 512] not in (blank, after[at:at + 512])]


@test(seconds=120)
def snapshots_clones_and_what_comes_back(lab):
    """A snapshot stays what it was while the volume is written, a clone goes its own way, a volume goes back; and all room comes back
    when all are deleted."""
    pool = Pool(lab, size="24M")
    bench = ("--rw", "randwrite", "--bs", "4k", "--runtime", "0.5", *pool.run_dir)
    thinwire(lab, "bench", f"{pool.name}@home", *bench)
    first = pool.read("home", lab.path("home.raw"))
    pool.do("snapshot", f"{pool.name}@home", "one")
    thinwire(lab, "bench", f"{pool.name}@home", *bench, "--seed", "7")
    second = pool.read("home", lab.path("home.raw"))
    check(first != second, "it was written")
    check(pool.read("one", lab.path("one.raw")) == first, "the snapshot is what the volume was")
    pool.do("snapshot", f"{pool.name}@one", "of-one")
    pool.do("clone", f"{pool.name}@one", "two")
    thinwire(lab, "bench", f"{pool.name}@two", *bench, "--seed", "8")
    check(pool.read("of-one", lab.path("one.raw")) == first == pool.read("one", lab.path("one.raw")), "nothing of that is in them")
    check(pool.read("home", lab.path("home.raw")) == second, "nor in the volume")
    dumped, labels = pool.do("dump", *pool.images).stdout, [part["label"] for part in json.loads(pool.do("dump", *pool.images, "--json").stdout)["parts"]]
    said = [label["pool"] for label in labels if label["pool"]]
    check(len(said) == 1 and said[0]["blocks"][1] * said[0]["block_bytes"] == pool.show()["data_used_bytes"], labels)
    check("ended in order" in dumped and f"{said[0]['nodes'][1]} of {said[0]['nodes'][0]} used" in dumped and "volumes at " in dumped, dumped)
    shown = {volume["name"]: volume for volume in pool.show("--space")["volumes"]}
    check([shown[name]["origin"] for name in ("home", "one", "of-one", "two")] == [None, "home", "one", "one"], shown)
    check(all(volume["shared_bytes"] == volume["mapped_bytes"] - volume["own_bytes"] for volume in shown.values()), shown)
    check(shown["of-one"]["shared_bytes"] > 0 and pool.show()["volumes"][0]["shared_bytes"] is None, shown)
    check(shown["of-one"]["own_bytes"] == 0 and shown["home"]["own_bytes"] > 0 and shown["two"]["own_bytes"] > 0, shown)
    check(shown["one"]["is_snapshot"] and not shown["two"]["is_snapshot"], shown)
    pool.do("rollback", f"{pool.name}@home", "one")
    check(pool.read("home", lab.path("home.raw")) == first, "it is what it was")
    pool.do("grow", f"{pool.name}@home", "48M")
    grown = pool.read("home", lab.path("home.raw"))
    check(len(grown) == 48 << 20 and grown[:24 << 20] == first and not any(grown[24 << 20:]), "it is larger, and zero there")
    for name in "home", "one", "two", "of-one":
        pool.do("delete", f"{pool.name}@{name}")
    shown = pool.show()
    check(shown["volumes"] == [] and shown["data_used_bytes"] == 0, shown)


@test(seconds=120)
def a_gateway_over_a_pool_is_killed(lab):
    """A volume of a pool that a target exports, killed twice while what is written is verified: nothing is lost, and a snapshot of before
    stays what it was."""
    pool = Pool(lab, size="64M")
    thinwire(lab, "bench", f"{pool.name}@home", "--rw", "randwrite", "--bs", "64k", "--runtime", "0.3", *pool.run_dir)
    before = pool.read("home", lab.path("home.raw"))
    pool.do("snapshot", f"{pool.name}@home", "before")
    target = Target(lab, f"home={pool.name}@home", over="raw", extra=pool.run_dir)
    disk = Attachment(lab, uri(lab, "home", over="raw"), name="home", timeout=40, run="other")
    fio = load.Fio(lab, disk.nbd, mib=24, seconds=10)
    for nth in range(2):
        time.sleep(2)
        fio.still_running(f"kill {nth + 1}")
        target.kill()
        time.sleep(0.5)
        target.start(timeout=30)
    fio.finish(90)
    disk.detach()
    target.stop()
    check(pool.read("before", lab.path("before.raw")) == before, "the snapshot is what it was")
    check(pool.volumes() == ["home", "before"], pool.volumes())


@test(seconds=120)
def a_pool_over_two_targets(lab):
    """Data on one target and metadata on another, attached: one after the other is killed and started again while what is written is
    verified. Killed itself, it is attached again."""
    images = [image(lab, "data.img", DATA_MIB), image(lab, "metadata.img", METADATA_MIB)]
    targets = [Target(lab, f"part={path}", name=host, over="raw", extra=("--state-dir", lab.path(f"state-{host}")))
               for host, path in zip(("node1", "node2"), images)]
    name, run_dir = describe(lab, [uri(lab, "part", over="raw", node=host) for host in ("node1", "node2")]), ("--run-dir", lab.path("run"))
    thinwire(lab, "volume", "create", name, *run_dir)
    thinwire(lab, "volume", "create", f"{name}@home", "--size", "1G", *run_dir)
    disk = Attachment(lab, f"{name}@home", name="home", timeout=40)
    fio = load.Fio(lab, disk.nbd, mib=40, seconds=12)
    for target in targets:
        time.sleep(2)
        fio.still_running("the kill")
        target.kill()
        time.sleep(0.5)
        target.start()
    fio.finish(90)
    refused(lab, "bench", f"{name}@home", "--rw", "randread", "--runtime", "0.1", "--run-dir", lab.path("other"),
            says=["is held by a writer"])
    pid = disk.pid()
    os.kill(pid, signal.SIGKILL)
    until("it is gone", 10, lambda: pid not in initiators(lab))
    disk = Attachment(lab, f"{name}@home", name="again", timeout=40)
    disk.detach()
    shown = json.loads(thinwire(lab, "volume", "show", name, "--json", *run_dir).stdout)
    check(shown["volumes"][0]["mapped_bytes"] >= 24 << 20, shown)


@test(seconds=60)
def what_a_pool_refuses(lab):
    """Names, sizes, what is in use, what is full; with what to do, and nothing changed."""
    pool = Pool(lab)
    home = f"{pool.name}@home"
    do = ("volume",)
    refused(lab, "bench", pool.name, "--rw", "randread", "--runtime", "0.1", *pool.run_dir, says=["it is a pool", "@"], code=2)
    refused(lab, "bench", f"{pool.name}@none", "--rw", "randread", "--runtime", "0.1", *pool.run_dir, says=["no volume `none`", "home"])
    refused(lab, "bench", f"{pool.name}@", "--rw", "randread", "--runtime", "0.1", *pool.run_dir, says=["follows the @"], code=2)
    refused(lab, *do, "create", f"{pool.name}@home", *pool.run_dir, says=["--size"], code=2)
    refused(lab, *do, "create", f"{pool.name}@home", "--size", "1G", *pool.run_dir, says=["is called that"])
    refused(lab, *do, "create", f"{pool.name}@odd", "--size", "1000", *pool.run_dir, says=["a volume"])
    refused(lab, *do, "snapshot", f"{pool.name}@none", "x", *pool.run_dir, says=["no volume `none`"])
    refused(lab, *do, "snapshot", home, "home", *pool.run_dir, says=["is called that"])
    refused(lab, *do, "rollback", home, "home", *pool.run_dir, says=["no snapshot"])
    refused(lab, *do, "grow", home, "1M", *pool.run_dir, says=["a volume"])
    refused(lab, *do, "delete", pool.name, *pool.run_dir, says=["name a volume of it"], code=2)
    refused(lab, *do, "show", pool.images[0], *pool.run_dir, says=["is no pool"], code=2)
    refused(lab, *do, "create", describe(lab, pool.images, 'block = "5K"'), "--force", *pool.run_dir, says=["block"], code=2)
    small = image(lab, "small.img", 2)
    refused(lab, *do, "create", describe(lab, [pool.images[0], small]), "--force", *pool.run_dir, says=["metadata"])
    describe(lab, pool.images)
    check(pool.volumes() == ["home"], "nothing has changed")
    disk = Attachment(lab, home, name="home")
    refused(lab, *do, "delete", home, *pool.run_dir, says=["is in use"])
    refused(lab, *do, "snapshot", home, "home", *pool.run_dir, says=["is called that"])
    refused(lab, *do, "snapshot", home, "x", "--run-dir", lab.path("other"), says=["in use by"])
    disk.detach()
    # Full: what is written in vain changes nothing, and there is room again when something is deleted.
    pool.do("create", f"{pool.name}@other", "--size", "1G")
    failed = thinwire(lab, "bench", f"{pool.name}@other", "--rw", "randwrite", "--bs", "64k", "--iodepth", "16", "--runtime", "2", *pool.run_dir, expect=1)
    check("no space left" in failed.stderr and "95 % of its data" in failed.stderr, failed.stderr[-600:])
    refused(lab, "bench", home, "--rw", "randwrite", "--bs", "4k", "--runtime", "0.2", *pool.run_dir, says=["no space left"])
    pool.do("delete", f"{pool.name}@other")
    thinwire(lab, "bench", home, "--rw", "randwrite", "--bs", "4k", "--size", "4M", "--runtime", "0.2", *pool.run_dir)


@test(seconds=120)
def a_file_system_and_its_snapshots(lab):
    """ext4 on a thin volume: its snapshot is clean and has all files after they were removed; what is trimmed comes back to the pool when the
    snapshot is deleted."""
    pool = Pool(lab, size="64M")
    mount = lab.path("mnt")
    os.mkdir(mount)
    disk = Attachment(lab, f"{pool.name}@home", face="block", name="home", timeout=40)
    lab.run("initiator", "mkfs.ext4", "-q", "-F", disk.path)
    lab.run("initiator", "mount", disk.path, mount)
    for nth in range(20):
        with open(os.path.join(mount, f"file{nth}"), "wb") as file:
            file.write(bytes([nth]) * (1 << 20))
    lab.run("initiator", "sync", "-f", mount)
    lab.run("initiator", "umount", mount)
    disk.detach(timeout=40)
    pool.do("snapshot", f"{pool.name}@home", "full")
    used = pool.show()["data_used_bytes"]
    disk = Attachment(lab, f"{pool.name}@home", face="block", name="home", timeout=40)
    lab.run("initiator", "mount", disk.path, mount)
    for nth in range(20):
        os.remove(os.path.join(mount, f"file{nth}"))
    lab.run("initiator", "sync", "-f", mount)
    lab.run("initiator", "fstrim", mount)
    lab.run("initiator", "umount", mount)
    disk.detach(timeout=40)
    shown = {volume["name"]: volume for volume in pool.show("--space")["volumes"]}
    check(shown["home"]["mapped_bytes"] < 16 << 20 < shown["full"]["own_bytes"], shown)
    check(pool.show()["data_used_bytes"] < used + (16 << 20), "what is trimmed is not the volume's any more")
    disk = Attachment(lab, f"{pool.name}@full", face="block", name="full", timeout=40, extra=("--read-only",))
    lab.run("initiator", "e2fsck", "-fn", disk.path)
    lab.run("initiator", "mount", "-o", "ro,noload", disk.path, mount)
    with open(os.path.join(mount, "file7"), "rb") as file:
        check(file.read() == bytes([7]) * (1 << 20), "the snapshot has the file")
    lab.run("initiator", "umount", mount)
    disk.detach(timeout=40)
    pool.do("delete", f"{pool.name}@full")
    check(pool.show()["data_used_bytes"] < 16 << 20, "all of it has come back")


@test(seconds=120)
def snapshots_of_what_is_in_use(lab):
    """A volume is attached and written, with what is written verified; snapshots of it are taken, and deleted, and it grows meanwhile. Each snapshot
    is one moment of it."""
    pool = Pool(lab, size="48M")
    disk = Attachment(lab, f"{pool.name}@home", name="home", timeout=40)
    fio = load.Fio(lab, disk.nbd, mib=40, seconds=12)
    for nth in range(8):
        time.sleep(1)
        fio.still_running(f"snapshot {nth}")
        said = pool.do("snapshot", f"{pool.name}@home", f"at{nth}").stdout
        check(said == f"made at{nth}: a snapshot of home\n", said)
    check(pool.volumes() == ["home"] + [f"at{nth}" for nth in range(8)], pool.volumes())
    pool.do("delete", f"{pool.name}@at3")
    pool.do("clone", f"{pool.name}@at4", "clone")
    pool.do("grow", f"{pool.name}@home", "64M")
    refused(lab, "volume", "rollback", f"{pool.name}@home", "at4", *pool.run_dir, says=["is in use"])
    fio.finish(90)
    until("it has grown", 10, lambda: disk.status()["bytes"] == 64 << 20)
    disk.detach(timeout=40)
    check("at3" not in pool.volumes() and "clone" in pool.volumes(), pool.volumes())
    # Later ones have all that earlier ones had, but for what was written over: fio writes each block once.
    before = pool.read("at0", lab.path("at.raw"))
    for nth in 1, 2, 4, 7:
        after = pool.read(f"at{nth}", lab.path("at.raw"))
        lost = lacks(before, after)
        check(lost == [], f"at{nth} lacks {len(lost)} blocks that one before it has: {lost[:4]}")
        check(before != after, "something was written between")
        before = after
    check(pool.read("clone", lab.path("clone.raw")) == pool.read("at4", lab.path("at.raw")), "the clone is what it was cloned of")


@test(seconds=90)
def a_pool_over_a_mirror(lab):
    """The data of a pool on a mirror: both are made at once, and end in order together, so that nothing is left to copy."""
    legs, metadata, run_dir = [image(lab, f"{name}.img", DATA_MIB) for name in "ab"], image(lab, "metadata.img", METADATA_MIB), ("--run-dir", lab.path("run"))
    path = lab.path("pool.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'[[volume]]\nname = "both"\nkind = "mirror"\nchildren = ["{legs[0]}", "{legs[1]}"]\n'
                   f'[[volume]]\nname = "pool"\nkind = "thin"\nchildren = ["both", "{metadata}"]\n')
    thinwire(lab, "volume", "create", f"{path}#pool", *run_dir)
    thinwire(lab, "volume", "create", f"{path}#pool@home", "--size", "64M", *run_dir)
    thinwire(lab, "volume", "resync", f"{path}#pool@home", *run_dir, timeout=60)
    disk = Attachment(lab, f"{path}#pool@home", name="home", timeout=40)
    load.verified(lab, disk.nbd, mib=24)
    thinwire(lab, "volume", "snapshot", f"{path}#pool@home", "one", *run_dir)
    disk.detach(timeout=40)
    standing_clean(lab, legs)
    thinwire(lab, "volume", "delete", f"{path}#pool@one", *run_dir)
    standing_clean(lab, legs)


@test(seconds=150)
def a_target_with_two_volumes_of_a_pool(lab):
    """Two volumes of a pool and a snapshot, exported by one target over two shards: both are written at once, with what is written verified, while
    the target is killed twice; it ends in order, and what a mirror below the pool had is on both legs."""
    legs, metadata = [image(lab, f"{name}.img", DATA_MIB) for name in "ab"], image(lab, "metadata.img", METADATA_MIB)
    path, run_dir = lab.path("pool.toml"), ("--run-dir", lab.path("run"))
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'[[volume]]\nname = "both"\nkind = "mirror"\nchildren = ["{legs[0]}", "{legs[1]}"]\n'
                   f'[[volume]]\nname = "pool"\nkind = "thin"\nchildren = ["both", "{metadata}"]\n')
    pool = f"{path}#pool"
    do = lambda *words: thinwire(lab, "volume", *words, *run_dir, timeout=60)
    do("create", pool)
    for name in "one", "two":
        do("create", f"{pool}@{name}", "--size", "32M")
    thinwire(lab, "bench", f"{pool}@one", "--rw", "randwrite", "--bs", "64k", "--runtime", "0.3", *run_dir)
    do("snapshot", f"{pool}@one", "before")
    exports = [f"one={pool}@one", "other=memory:1M", f"two={pool}@two", f"before={pool}@before,ro"]
    target = Target(lab, *exports, over="raw", extra=("--shards", "2", *run_dir))
    disks = [Attachment(lab, uri(lab, name, over="raw"), name=name, timeout=40, run="other") for name in ("one", "two")]
    seen = Attachment(lab, uri(lab, "before", over="raw"), name="before", timeout=40, run="other", extra=("--read-only",))
    fios = [load.Fio(lab, disk.nbd, mib=24, seconds=10, seed=seed) for seed, disk in enumerate(disks)]
    for nth in range(2):
        time.sleep(2)
        for fio in fios:
            fio.still_running(f"kill {nth + 1}")
        target.kill()
        time.sleep(0.5)
        target.start(timeout=30)
    for fio in fios:
        fio.finish(90)
    shown = json.loads(thinwire(lab, "status", "--json", *run_dir, side="target").stdout)["targets"][0]
    shards = {export["name"]: export["shard"] for export in shown["exports"]}
    check(shards["one"] == shards["two"] == shards["before"] != shards["other"], f"a pool is one shard's: {shards}")
    for disk in disks + [seen]:
        disk.detach(timeout=40)
    target.stop()
    standing_clean(lab, legs)
    check("is sound" in do("check", pool).stdout, "all is counted rightly")
    shown = json.loads(do("show", pool, "--json").stdout)
    check([volume["name"] for volume in shown["volumes"]] == ["one", "two", "before"], shown)
    check(all(volume["mapped_bytes"] > 12 << 20 for volume in shown["volumes"][:2]), shown)


@test(seconds=60)
def from_one_volume_of_a_pool_to_another(lab):
    """A copy between two volumes of a pool, with the pool open once; a snapshot as its source, which is compared; and what is refused."""
    pool = Pool(lab, size="24M")
    thinwire(lab, "bench", f"{pool.name}@home", "--rw", "randwrite", "--bs", "64k", "--runtime", "0.3", *pool.run_dir)
    pool.do("snapshot", f"{pool.name}@home", "one")
    pool.do("create", f"{pool.name}@other", "--size", "24M")
    for source in "home", "one":
        thinwire(lab, "copy", f"{pool.name}@{source}", f"{pool.name}@other", "--verify", *pool.run_dir, timeout=60)
        check(pool.read("other", lab.path("other.raw")) == pool.read("home", lab.path("home.raw")), "both are the same")
    refused(lab, "copy", f"{pool.name}@home", f"{pool.name}@home", *pool.run_dir, says=["are the same volume"])
    refused(lab, "copy", f"{pool.name}@home", f"{pool.name}@one", *pool.run_dir, says=["read-only"])
    refused(lab, "copy", f"{pool.name}@home", f"{pool.name}@none", *pool.run_dir, says=["no volume `none`", "other"])
    refused(lab, "copy", f"{pool.name}@home", pool.images[0], *pool.run_dir, says=["are the same file"])
    serve = ("target", "--name", "n", "--link", "eth1", "--state-dir", lab.path("state"), *pool.run_dir)
    exports = lambda *exports: [word for export in exports for word in ("--export", export)]
    for two, says in ((f"b={pool.name}@home", ["exports `a` and `b`", "are the same volume"]), (f"b={pool.name}@home,ro", ["are the same volume"]),
                      (f"b={pool.images[0]},ro", ["are the same file"]), (f"b={pool.name}@none", ["export b", "no volume `none`"])):
        refused(lab, *serve, *exports(f"a={pool.name}@home", two), side="target", says=says)
    check(pool.volumes() == ["home", "one", "other"], "nothing has changed")
    # Whoever was refused holds nothing.
    thinwire(lab, "bench", f"{pool.name}@home", "--rw", "randwrite", "--bs", "4k", "--runtime", "0.1", *pool.run_dir)


@test(seconds=150)
def snapshots_of_what_a_target_exports(lab):
    """A target exports two volumes of a pool, and both are written, with what is written verified. Snapshots of one are taken through the target, one is
    deleted, a clone is made, the volume grows, which its users see, and all is shown; what is exported is neither deleted nor rolled back. Then the
    target is killed, and the snapshots are exported: each has all that those before it had."""
    pool = Pool(lab, size="48M")
    pool.do("create", f"{pool.name}@other", "--size", "32M")
    home, state = f"{pool.name}@home", ("--shards", "2", *pool.run_dir)
    target = Target(lab, "memory=memory:1M", f"home={home}", f"other={pool.name}@other", over="raw", extra=state)
    disks = [Attachment(lab, uri(lab, name, over="raw"), name=name, timeout=40, run="other") for name in ("home", "other")]
    fios = [load.Fio(lab, disk.nbd, mib=24, seconds=12, seed=seed) for seed, disk in enumerate(disks)]
    # On a slow machine that takes a while, and a snapshot of nothing shares nothing.
    until("something is written", 10, lambda: {volume["name"]: volume for volume in pool.show()["volumes"]}["home"]["mapped_bytes"])
    for nth in range(6):
        time.sleep(1)
        for fio in fios:
            fio.still_running(f"snapshot {nth}")
        said = pool.do("snapshot", home, f"at{nth}").stdout
        check(said == f"made at{nth}: a snapshot of home\n", said)
    pool.do("delete", f"{pool.name}@at3")
    pool.do("clone", f"{pool.name}@at4", "clone")
    pool.do("create", f"{pool.name}@new", "--size", "1M")
    pool.do("grow", home, "64M")
    check(pool.volumes() == ["home", "other", "at0", "at1", "at2", "at4", "at5", "clone", "new"], pool.volumes())
    shown = {volume["name"]: volume for volume in pool.show("--space")["volumes"]}
    # It is written meanwhile: how much it has is counted behind how much of that is its own.
    own, mapped = shown["other"]["own_bytes"], shown["other"]["mapped_bytes"]
    check(shown["home"]["bytes"] == 64 << 20 and own > 0 and mapped - (1 << 20) <= own <= mapped, shown)
    check(shown["at0"]["own_bytes"] < shown["at0"]["mapped_bytes"] and shown["new"]["own_bytes"] == 0, shown)
    for words in ("delete",), ("rollback", "at4"):
        refused(lab, "volume", words[0], home, *words[1:], *pool.run_dir, says=["target node1 has the pool", "`home` is in use", "end the target"])
    refused(lab, "volume", "snapshot", home, "at0", *pool.run_dir, says=["is called that"])
    refused(lab, "volume", "snapshot", f"{pool.name}@none", "x", *pool.run_dir, says=["no volume `none`"])
    until("it has grown", 10, lambda: disks[0].status()["bytes"] == 64 << 20)
    check(disks[1].status()["bytes"] == 32 << 20, "the other has not")
    for fio in fios:
        fio.finish(90)
    load.verified(lab, disks[0].nbd, mib=8, extra=("--offset=50m",))
    for disk in disks:
        disk.detach(timeout=40)
    target.kill()
    target.start()
    target.stop()
    check("is sound" in pool.do("check", pool.name).stdout, "all is counted rightly")
    names = ["at0", "at1", "at2", "at4", "at5", "home"]
    target = Target(lab, *[f"{name}={pool.name}@{name},ro" for name in names], over="raw", extra=pool.run_dir)
    held = []
    for name in names:
        path = lab.path("seen.raw")
        run("rm", "-f", path)
        thinwire(lab, "copy", uri(lab, name, over="raw"), path, timeout=60)
        with open(path, "rb") as file:
            held.append(file.read())
    for before, after, name in zip(held, held[1:], names[1:]):
        lost = lacks(before, after)
        check(lost == [], f"{name} lacks {len(lost)} blocks that the one before it has: {lost[:4]}")
        check(before != after[:len(before)], "something was written between")
    target.stop()
    pool.do("rollback", home, "at4")
    check(pool.read("home", lab.path("home.raw"))[:48 << 20] == pool.read("clone", lab.path("clone.raw")), "both are what that was")


@test(seconds=120)
def a_damaged_pool_is_checked_and_repaired(lab):
    """A node of a volume is damaged: a check says what is lost, of that volume only, and the other one serves. When the volume is deleted, nobody knows what it
    had: a repair finds it, and gives it back. What is in use, or no pool, is refused."""
    pool = Pool(lab, size="24M")
    pool.do("create", f"{pool.name}@other", "--size", "24M")
    for name in "home", "other":
        thinwire(lab, "bench", f"{pool.name}@{name}", "--rw", "randwrite", "--bs", "64k", "--runtime", "0.3", *pool.run_dir)
    home = pool.read("home", lab.path("home.raw"))
    said = pool.do("check", pool.name).stdout
    check("is sound" in said, said)
    own = {volume["name"]: volume["own_bytes"] for volume in pool.show("--space")["volumes"]}

    def flip(node):
        with open(pool.images[1], "r+b") as file:
            file.seek((1 << 20) + node * 4096 + 100)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 4]))

    def checked(*flags):
        done = pool.do("check", pool.name, "--json", *flags, expect=None)
        return json.loads(done.stdout), done

    with open(pool.images[1], "rb") as file:
        file.seek(1 << 20)
        used = [node for node, at in enumerate(range(0, 1 << 20, 4096)) if any(file.read(4096))]
    for node in used:
        flip(node)
        done = pool.do("check", pool.name, "--json", expect=None)
        found = json.loads(done.stdout) if done.stdout else {"findings": []}
        lost = [finding["lost"]["volume"] for finding in found["findings"] if finding["lost"]]
        if lost == ["other"]:
            break
        flip(node)
    else:
        check(False, f"no node of {len(used)} is the other volume's alone")
    said = refused(lab, "volume", "check", pool.name, *pool.run_dir, says=["copy what can be read", "--repair"])
    check('("other") has lost bytes' in said.stdout, said.stdout)
    found, _ = checked("--repair")
    check(found["repaired"] == 0 and not found["sound"], found)
    check(pool.read("home", lab.path("home.raw")) == home, "the other one serves")
    pool.do("delete", f"{pool.name}@other")
    check(pool.show()["data_used_bytes"] > own["home"] + (1 << 20), "nobody knows what it had")
    disk = Attachment(lab, f"{pool.name}@home", name="home")
    refused(lab, "volume", "check", pool.name, *pool.run_dir, says=["attachment `home` uses the pool", "detach"])
    disk.detach()
    found, done = checked("--repair")
    check(found["repaired"] > 10 and found["sound"] and done.returncode == 0, found)
    check(pool.show()["data_used_bytes"] == own["home"], pool.show())
    check("is sound" in pool.do("check", pool.name).stdout, "nothing is left")
    check(pool.read("home", lab.path("home.raw")) == home, "it is as it was")
    refused(lab, "volume", "check", "--repair", pool.images[0], *pool.run_dir, says=["as FILE.toml#NAME"], code=2)
    refused(lab, "volume", "check", f"{pool.name}@home", *pool.run_dir, says=["as a whole"], code=2)


@test(seconds=120)
def volumes_of_a_pool_come_and_go(lab):
    """A target exports a volume of a pool, under verified load. By reloads a snapshot of it is exported, read, and taken away, and can be deleted then; another volume is exported,
    and the first one goes, whose writes are all there. The last one of the pool stays as long as the target."""
    pool = Pool(lab, size="32M")
    pool.do("create", f"{pool.name}@other", "--size", "8M")
    target = Keyed(lab, "alice", start=False, extra=["--shards", "2"], exports=1)
    target.exports["home"] = f"{pool.name}@home"
    target.write(lab, ["alice"])
    target.start()
    pool.run_dir = ("--run-dir", target.run_dir)
    key = ("--key", key_path(lab, "alice"))

    def reload(*says):
        target.write(lab, ["alice"])
        said = target.reload()
        check((said["changes"], said["leaving"]) == (list(says), []), said)

    disk = Disk(lab, key_path(lab, "alice"), "home")
    fio = load.Fio(lab, disk.nbd, mib=24, seconds=8)
    time.sleep(2)
    pool.do("snapshot", f"{pool.name}@home", "one")
    target.exports["one"], target.rights["one"] = f"{pool.name}@one", "read_only = true"
    reload(f"export `one` is added: {pool.name}@one")
    seen = []
    for _ in range(2):
        run("rm", "-f", lab.path("seen.raw"))
        thinwire(lab, "copy", uri(lab, "one"), lab.path("seen.raw"), *key, timeout=60)
        with open(lab.path("seen.raw"), "rb") as file:
            seen.append(file.read())
        fio.still_running("the copy")
        time.sleep(1)
    check(seen[0] == seen[1] and any(seen[0]), "it is one moment")
    refused(lab, "volume", "delete", f"{pool.name}@one", *pool.run_dir, says=["`one` is in use"])
    target.exports.pop("one")
    reload("export `one` is removed")
    pool.do("delete", f"{pool.name}@one")
    fio.finish(60)
    disk.detach()
    del target.exports["home"]
    target.write(lab, ["alice"])
    target.refuses("export `home` (it is gone, and made of other volumes")
    target.exports["none"] = f"{pool.name}@none"
    target.exports["home"] = f"{pool.name}@home"
    target.write(lab, ["alice"])
    target.refuses("no volume `none`", "home, other")
    target.exports.pop("none")
    target.exports["other"] = f"{pool.name}@other"
    reload(f"export `other` is added: {pool.name}@other")
    shards = {export["name"]: export["shard"] for export in target.status()["exports"]}
    check(shards["home"] == shards["other"] != shards["disk0"], f"a pool is one shard's: {shards}")
    del target.exports["home"]
    reload("export `home` is removed")
    other = Disk(lab, key_path(lab, "alice"), "other")
    load.verified(lab, other.nbd, mib=4)
    other.detach()
    target.stop()
    check("is sound" in pool.do("check", pool.name).stdout, "all is counted rightly")
    after = pool.read("home", lab.path("home.raw"))
    check(lacks(seen[0], after) == [], "what the snapshot had is there")


@test(seconds=90)
def a_file_system_grows_with_its_volume(lab):
    """ext4 on the device of an attachment, of a volume of a pool that a target exports: the volume grows while the file system is mounted, and the device does; then the
    file system; what is written behind the old end is there after all of it was let go of."""
    pool = Pool(lab, size="24M")
    mount = lab.path("mnt")
    os.mkdir(mount)
    target = Target(lab, f"home={pool.name}@home", over="raw", extra=pool.run_dir)
    disk = Attachment(lab, uri(lab, "home", over="raw"), face="block", name="home", timeout=40, run="other")
    size = lambda: int(lab.run("initiator", "blockdev", "--getsize64", disk.path).stdout)
    lab.run("initiator", "mkfs.ext4", "-q", "-F", disk.path)
    lab.run("initiator", "mount", disk.path, mount)
    room = os.statvfs(mount).f_blocks
    check(size() == 24 << 20, size())
    pool.do("grow", f"{pool.name}@home", "64M")
    until("the device has grown", 15, lambda: size() == 64 << 20)
    # Mounted, this kernel may refuse it to a container.
    lab.run("initiator", "umount", mount)
    lab.run("initiator", "e2fsck", "-fp", disk.path)
    lab.run("initiator", "resize2fs", disk.path)
    lab.run("initiator", "mount", disk.path, mount)
    check(os.statvfs(mount).f_blocks > 2 * room, "the file system has room")
    with open(os.path.join(mount, "file"), "wb") as file:
        file.write(bytes(range(256)) * (40 << 12))
    lab.run("initiator", "umount", mount)
    disk.detach(timeout=40)
    target.stop()
    disk = Attachment(lab, f"{pool.name}@home", face="block", name="home", timeout=40)
    lab.run("initiator", "e2fsck", "-fn", disk.path)
    lab.run("initiator", "mount", "-o", "ro", disk.path, mount)
    with open(os.path.join(mount, "file"), "rb") as file:
        check(file.read() == bytes(range(256)) * (40 << 12), "it is there")
    lab.run("initiator", "umount", mount)
    disk.detach(timeout=40)


@test(seconds=90)
def a_mirror_over_volumes_of_two_pools(lab):
    """A mirror whose legs are volumes of different pools: one pool is missing, and the mirror goes on without; when that is back, it gets what it lacks. Nobody
    writes, or holds for writing, what is only read."""
    images = {name: image(lab, f"{name}.img", 48 if "data" in name else METADATA_MIB) for name in ("pdata", "pmeta", "qdata", "qmeta")}
    path, run_dir = lab.path("both.toml"), ("--run-dir", lab.path("run"))
    with open(path, "w", encoding="utf-8") as file:
        for name in "pq":
            file.write(f'[[volume]]\nname = "{name}"\nkind = "thin"\nchildren = ["{images[name + "data"]}", "{images[name + "meta"]}"]\n')
        file.write('[[volume]]\nname = "both"\nkind = "mirror"\nchildren = ["p@a", "q@b"]\n')
    do = lambda *words: thinwire(lab, "volume", *words, *run_dir, timeout=60)
    for name in "pq":
        do("create", f"{path}#{name}")
    do("create", f"{path}#p@a", "--size", "16M")
    do("create", f"{path}#q@b", "--size", "16M")
    do("create", f"{path}#both")
    do("resync", f"{path}#both")
    write = lambda: thinwire(lab, "bench", f"{path}#both", "--rw", "randrw", "--bs", "4k", "--verify", "--runtime", "0.3", *run_dir)
    write()
    os.rename(images["qdata"], images["qdata"] + ".away")
    do("resync", "--degraded", f"{path}#both")
    write()
    os.rename(images["qdata"] + ".away", images["qdata"])
    do("resync", f"{path}#both")
    legs = []
    for leg in "p@a", "q@b":
        run("rm", "-f", lab.path("leg.raw"))
        thinwire(lab, "copy", f"{path}#{leg}", lab.path("leg.raw"), *run_dir)
        with open(lab.path("leg.raw"), "rb") as file:
            legs.append(file.read()[1 << 20:])
    check(legs[0] == legs[1] and any(legs[0]), "both legs are the same")
    readers = [Attachment(lab, f"readonly:[{path}#both]", name=name) for name in ("one", "two")]
    for reader in readers:
        reader.detach()
    for name in "pq":
        check("is sound" in do("check", f"{path}#{name}").stdout, "all is counted rightly")
