"""Pools that grow by what their parts have grown by: while nobody uses them, while their volumes are written, and when whoever does it is killed."""

import json
import os
import signal
import time

import node
from harness import check, run, until
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test
from test_block import fsck, mount

MIB = 1 << 20


def describe(lab, data, more=""):
    path = lab.path("pool.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'[[volume]]\nname = "pool"\nkind = "thin"\nchildren = ["{data}", "{lab.path("metadata.img")}"]\n{more}')
    return f"{path}#pool"


def made(lab, data_mib, size, data="data.img", more=""):
    """A pool over two images, whose volume `home` has that size; what does something to it, and how it stands."""
    if not more:
        image(lab, "data.img", data_mib)
    image(lab, "metadata.img", 8)
    pool, run_dir = describe(lab, data if more else lab.path(data), more), ("--run-dir", lab.path("run"))

    def do(*argv, **options):
        return thinwire(lab, "volume", *argv, *run_dir, timeout=60, **options)

    do("create", pool)
    do("create", f"{pool}@home", "--size", size)
    return pool, do, lambda: json.loads(do("show", pool, "--json").stdout), run_dir


def enlarge(lab, **mib):
    for name, to in mib.items():
        os.truncate(lab.path(f"{name}.img"), to * MIB)


def written(lab, name, mib, seed=1):
    """A file with nothing in it twice."""
    path = lab.path(name)
    with open(path, "wb") as file:
        for at in range(mib * 256):
            file.write((seed * 1_000_003 + at).to_bytes(8, "little") * 512)
    return path


def content(path, limit=None):
    with open(path, "rb") as file:
        return file.read(limit)


@test(seconds=120)
def a_full_pool_has_room_when_its_parts_have(lab):
    """A pool that is full takes what was refused when its parts are larger and it was told so; each of both by itself; nothing else does that, and its volumes keep their sizes."""
    pool, do, stands, run_dir = made(lab, 16, "40M")
    source = written(lab, "source.img", 32)
    fill = ("copy", source, f"{pool}@home", "--verify", *run_dir)
    check("no space" in thinwire(lab, *fill, expect=1, timeout=60).stderr.lower(), "it is full")
    before = stands()
    refused(lab, "volume", "grow", pool, *run_dir, says=["as before", "none of its parts has room for more"])
    os.truncate(lab.path("data.img"), 16 * MIB + 60 * 1024)
    refused(lab, "volume", "grow", pool, *run_dir, says=["as before", "less than a block more, which has 65536 bytes"])
    enlarge(lab, data=44)
    check(stands() == before, "not by itself")
    refused(lab, "volume", "grow", pool, "44M", *run_dir, says=["leave out the size"], code=2)
    said = do("grow", pool).stdout
    check(said == f"pool (thin) has {43 * MIB} bytes of data and {7 * MIB} of metadata, and had {15 * MIB} and {7 * MIB}\n", said)
    now = stands()
    check(now["data_bytes"] == before["data_bytes"] + 28 * MIB and now["metadata_bytes"] == before["metadata_bytes"], now)
    check(now["volumes"][0]["bytes"] == 40 * MIB, "its volumes keep their sizes")
    thinwire(lab, *fill, timeout=60)
    enlarge(lab, metadata=12)
    grown = json.loads(do("grow", pool, "--json").stdout)["volumes"]
    check(grown == [{"name": "pool", "kind": "thin", "before": 43 * MIB, "bytes": 43 * MIB, "metadata": [7 * MIB, 11 * MIB], "why": None}], grown)
    # Less what is kept for commits.
    later = stands()
    check(later["metadata_bytes"] > now["metadata_bytes"] + 3 * MIB and later["data_bytes"] == now["data_bytes"], (now, later))
    check("is sound" in do("check", pool).stdout, "all is counted rightly")
    back = lab.path("back.img")
    thinwire(lab, "copy", f"{pool}@home", back, *run_dir, timeout=60)
    check(content(back, 32 * MIB) == content(source), "it holds what was written")


@test(seconds=150)
def a_pool_over_a_mirror_grows_under_a_file_system(lab):
    """While ext4 on one of its volumes is mounted, first the mirror that its data is on grows, then the pool, then the volume, then the file system; and what is written behind the
    old end of each is there when all was let go of."""
    legs = [image(lab, f"{name}.img", 24) for name in ("one", "two")]
    both = f'[[volume]]\nname = "both"\nkind = "mirror"\nchildren = ["{legs[0]}", "{legs[1]}"]\n'
    pool, do, stands, run_dir = made(lab, 0, "20M", "both", both)
    disk = Attachment(lab, f"{pool}@home", face="block", name="home")
    run("mkfs.ext4", "-q", "-F", disk.path)
    folder = mount(lab, disk.path)
    with open(os.path.join(folder, "kept"), "wb") as file:
        file.write(content(written(lab, "kept.img", 8)))
        os.fsync(file.fileno())
    before = stands()
    refused(lab, "volume", "grow", pool, *run_dir, says=["as before", "make those larger first"])
    for leg in legs:
        os.truncate(leg, 24 * MIB + 60 * 1024)
    refused(lab, "volume", "grow", pool, *run_dir, says=["as before", "less than a block more, which has 65536 bytes"])
    enlarge(lab, one=96, two=96, metadata=10)
    told = do("grow", pool)
    check("pool (thin) has" in told.stdout and "both (mirror) has" in told.stderr, (told.stdout, told.stderr))
    check("thin" in do("status", pool).stdout, "it is shown by its own name, too")
    now = stands()
    shown = [node["bytes"] for node in json.loads(do("status", pool, "--json").stdout)["nodes"]]
    check(shown[0] == now["data_bytes"] and shown[2:4] == [96 * MIB] * 2 and shown[-1] == 10 * MIB, f"all that it is made of is shown as large as it is: {shown}")
    check(now["data_bytes"] == before["data_bytes"] + 72 * MIB, (before, now))
    check(now["metadata_bytes"] > before["metadata_bytes"] + MIB, (before, now))
    do("grow", f"{pool}@home", "80M")
    until("the device has grown", 15, lambda: int(run("blockdev", "--getsize64", disk.path).stdout) == 80 * MIB)
    if run("resize2fs", disk.path, check_exit=False, timeout=60).returncode != 0:
        # Mounted, this kernel may refuse it to a container.
        run("umount", folder)
        run("e2fsck", "-fp", disk.path)
        run("resize2fs", disk.path)
        mount(lab, disk.path)
    with open(os.path.join(folder, "more"), "wb") as file:
        file.write(content(written(lab, "more.img", 48, seed=2)))
        os.fsync(file.fileno())
    run("umount", folder)
    fsck("ext4", disk.path)
    disk.detach(timeout=40)
    check("is sound" in do("check", pool).stdout, "all is counted rightly")
    with open(legs[0], "rb") as one, open(legs[1], "rb") as other:
        one.seek(1572864), other.seek(1572864)
        check(one.read() == other.read(), "legs are alike")
    target = Target(lab, f"home={pool}@home", over="raw", extra=run_dir)
    disk = Attachment(lab, uri(lab, "home", over="raw"), face="block", name="home", timeout=40, run="other")
    folder = mount(lab, disk.path)
    for name in ("kept", "more"):
        check(content(os.path.join(folder, name)) == content(lab.path(f"{name}.img")), f"{name} is there")
    # And while a target has it.
    was = stands()["data_bytes"]
    enlarge(lab, one=104, two=104)
    check("pool (thin) has" in do("grow", pool).stdout and stands()["data_bytes"] == was + 8 * MIB, "a target does it, too")
    run("umount", folder)
    disk.detach(timeout=40)
    target.stop()


@test(seconds=150, each={"unused": {"used": False}, "used": {"used": True}})
def a_growth_that_is_cut_off(lab, used):
    """Killed at any moment, a command, or who has it open, leaves a pool that is as large as before or as behind, sound, with what was written; the same again has it grow."""
    pool, do, stands, run_dir = made(lab, 16, "64M")
    source, mib, sizes = written(lab, "source.img", 6), 16, set()
    thinwire(lab, "copy", source, f"{pool}@home", *run_dir, timeout=60)
    for nth in range(7):
        before = stands()["data_bytes"]
        mib += 8
        disk = Attachment(lab, f"{pool}@home", name=f"home{nth}", extra=("--take-over",)) if used else None
        enlarge(lab, data=mib, metadata=8 + nth)
        flags = () if used else ("--take-over",)
        began = lab.start("initiator", node.BIN, "volume", "grow", pool, *flags, *run_dir, name=f"grow{nth}")
        if nth == 6:
            began.wait(60)
        else:
            # Who uses it has looked for what is larger for a second and a half before anything is written.
            time.sleep((1.35 if used and nth else 0.0) + nth * 0.05)
            if used:
                os.kill(disk.pid(), signal.SIGKILL)
                began.wait(30, expect=None)
            else:
                began.kill(signal.SIGKILL).wait(10, expect=None)
        if used and nth == 6:
            disk.detach(timeout=40)
        # Nobody has it open that this run folder knows.
        other = ("--run-dir", lab.path(f"run{nth}"))

        def shown():
            return json.loads(thinwire(lab, "volume", "show", pool, "--json", *other, timeout=60).stdout)["data_bytes"]

        back = lab.path("back.img")
        thinwire(lab, "copy", f"{pool}@home", back, *other, timeout=60)
        check(content(back, 6 * MIB) == content(source), "it holds what was written")
        now = shown()
        check(now in (before, before + 8 * MIB), f"{now} of {before}")
        sizes.add(now > before)
        if now == before:
            again = thinwire(lab, "volume", "grow", pool, "--take-over", *other, timeout=60).stdout
            # Also where its labels said so already, and no commit did.
            check(f"pool (thin) has {(mib - 1) * MIB} bytes of data" in again and f"and had {(mib - 9) * MIB} and" in again, again)
            check(shown() == before + 8 * MIB, "it has grown")
        check("is sound" in thinwire(lab, "volume", "check", pool, *other, timeout=60).stdout, "all is counted rightly")
    check(sizes == {False, True}, f"grown, by when it was killed: {sizes}")
