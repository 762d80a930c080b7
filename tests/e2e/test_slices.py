"""Slices of one disk: several exports of one target, parts of one volume, and one that is copied to another."""

import os
import time

import load
from harness import check, until
from node import Attachment, Target, guarded, image, refused, thinwire, uri
from registry import test
from test_reload import SHARDS, Disk, Keyed, key_path
from test_reload_exports import exports_of, is_locked, mark

MIB = 1 << 20
BIG_MIB = 48


def slice_of(path, offset, size=None):
    return f"slice:[file:{path}]?offset={offset * MIB}" + (f"&size={size * MIB}" if size else "")


def stamped(lab, attachment, text):
    check(mark(lab, attachment, text, "write") == "same", f"what {attachment.name} has written is read there")


def stamp_at(path, at):
    """What `mark` has written of a slice that begins there, in bytes."""
    with open(path, "rb") as file:
        file.seek(at + 8192)
        return file.read(4096).rstrip(b".").decode()


@test(seconds=120, each=SHARDS)
def three_are_exported_and_their_target_is_killed(lab, shards):
    """Three slices of one file are three disks: each under verified load, while their target is killed and stopped in turns. Each
    has a writer of its own, and bytes of its own."""
    big, extra = image(lab, "big.img", BIG_MIB), ["--shards", str(shards)]
    names = {"left": (0, 16), "middle": (16, 16), "right": (32, None)}
    # Over raw links several shards need one that they can share.
    over = "packet" if shards > 1 else "best"
    target = Target(lab, "beside=memory:8M", *[f"{name}={slice_of(big, *where)}" for name, where in names.items()],
                    over=over, extra=extra)
    disks = {name: Attachment(lab, uri(lab, name, over=over), name=name, timeout=40) for name in names}
    for name, disk in disks.items():
        stamped(lab, disk, name)
    loads = [load.Fio(lab, disk.nbd, mib=16, seconds=14, seed=nth) for nth, disk in enumerate(disks.values())]
    for nth in range(3):
        time.sleep(2)
        loads[0].still_running(f"end {nth + 1} of the target")
        target.kill() if nth != 1 else target.stop()
        time.sleep(0.5)
        target.start(timeout=30)
    for fio in loads:
        fio.finish(60)
    for name, disk in disks.items():
        stamped(lab, disk, f"{name} again")
    # One of them has no writer any more, the others have.
    disks["middle"].detach()
    other = ("--rw", "randwrite", "--runtime", "1", "--run-dir", lab.path("other"))
    refused(lab, "bench", uri(lab, "left", over=over), *other, says=["held"])
    thinwire(lab, "bench", uri(lab, "middle", over=over), *other, "--verify")
    stamped(lab, disks["left"], "last")
    for name in "left", "right":
        disks[name].detach()
    check(is_locked(big), "it is the target's")
    target.stop()
    check(not is_locked(big), "nobody has it")
    found = {name: stamp_at(big, offset * MIB) for name, (offset, _) in names.items() if name != "middle"}
    check(found == {"left": "last", "right": "right again"}, f"the file has {found}")
    # All has ended in order: the file is anybody's.
    thinwire(lab, "bench", big, *other, side="target")


@test(seconds=120)
def one_comes_and_goes_while_another_is_used(lab):
    """By reloads slices of a file that is open come and go, beside one under verified load. One that is to be larger goes first."""
    target, big = Keyed(lab, "alice", start=False), image(lab, "big.img", BIG_MIB)
    target.exports = {"left": slice_of(big, 0, 16), "middle": slice_of(big, 16, 8)}
    target.write(lab, ["alice"])
    target.start()
    left, middle = (Disk(lab, key_path(lab, "alice"), name) for name in ("left", "middle"))
    loads = [load.Fio(lab, left.nbd, mib=16, seconds=16), load.Fio(lab, middle.nbd, mib=8, seconds=60, seed=2)]
    target.at_work()

    def reloaded(*says):
        target.write(lab, ["alice"])
        said = exports_of(target.reload())
        check(len(said) == len(says) and all(wanted in found for wanted, found in zip(says, said)), f"it says {said}")

    target.exports["right"] = slice_of(big, 32)
    reloaded("export `right` is added")
    right = Disk(lab, key_path(lab, "alice"), "right")
    stamped(lab, right, "right")
    # What overlaps is refused as a whole, with both ranges, and so is a disk of which nothing is open.
    target.exports["more"] = slice_of(big, 23, 2)
    target.write(lab, ["alice"])
    target.refuses("`middle` and `more`", "bytes 16777216 to 25165823", "bytes 24117248 to 26214399", "overlap")
    target.exports["more"] = slice_of(image(lab, "other.img"), 0, 2)
    target.write(lab, ["alice"])
    target.refuses("`more`", "made of other volumes")
    del target.exports["more"]
    # What is free behind it is not had in one step, and in two by nobody who has I/O there.
    loads[1].still_running("its slice goes")
    target.exports["middle"] = slice_of(big, 16, 16)
    target.write(lab, ["alice"])
    target.refuses("bytes 16777216 to 33554431", "bytes 16777216 to 25165823 are in use")
    del target.exports["middle"]
    reloaded("export `middle` is removed")
    until("its user to be told", 30, lambda: middle.status()["state"] == "away")
    target.exports["middle"] = slice_of(big, 16, 16)
    reloaded("export `middle` is added")
    wide = Disk(lab, key_path(lab, "alice"), "middle", name="wide")
    check(wide.status()["bytes"] == 16 * MIB, f"it is {wide.status()}")
    stamped(lab, wide, "wide")
    wide.detach()
    middle.detach("--force")
    # The last one stays.
    right.detach()
    del target.exports["middle"], target.exports["right"]
    reloaded("export `right` is removed", "export `middle` is removed")
    loads[0].still_running("the others had gone")
    loads[0].finish(60)
    check(left.status()["state"] == "attached", f"it is {left.status()}")
    left.detach()
    check(stamp_at(big, 32 * MIB) == "right" and stamp_at(big, 16 * MIB) == "wide", "the file has what was written")
    target.stop()


@test(seconds=90)
def what_cannot_be_together(lab):
    """What a file describes is looked at as a whole, before anything is opened: overlaps, all of a disk beside a slice of it, the same
    slice twice, labels, slices of exports. What is only read may overlap."""
    big = image(lab, "big.img", BIG_MIB)

    def checked(*lines, says=()):
        path = lab.path("target.toml")
        with open(path, "w", encoding="utf-8") as out:
            out.write("\n".join(lines) + "\n")
        argv = ("target", "--config", path, "--link", "eth1", "--check", *guarded(lab))
        if says:
            refused(lab, *argv, says=says, side="target")
        else:
            thinwire(lab, *argv, side="target")

    def volume(name, *more):
        return "\n".join(["[[volume]]", f'name = "{name}"', 'kind = "slice"', f'children = ["{big}"]', *more])

    def export(name, of, *more):
        return "\n".join(["[[export]]", f'name = "{name}"', f'volume = "{of}"', *more])
    low, read = volume("low", 'size = "16M"'), "read_only = true"
    both = export("a", "low"), export("b", "high")
    checked(*both, low, volume("high", 'offset = "16M"'))
    for high, says in (('offset = "16776704"', ["#low (bytes 0 to 16777215)", "#high (bytes 16776704 to the end)"]),
                       ('size = "16M"', ["#low", "#high", "overlap"]),
                       ('size = "1M"\nlabels = true', ["are the same file", "slices without labels"])):
        checked(*both, low, volume("high", high), says=["`a` and `b`", *says])
    checked(export("a", "low"), export("b", big), low, says=["`a` and `b`", "are the same file"])
    checked(export("a", "low"), export("b", "low"), low, says=["`a` and `b`", "overlap"])
    checked(export("a", "low"), export("b", "low", read), low, says=["overlap"])
    checked(export("a", "low", read), export("b", "low", read), low)
    checked(export("a", "low", "buffered = true"), both[1], low, volume("high", 'offset = "16M"'), says=["for both or for neither"])
    loop = '[[volume]]\nname = "low"\nkind = "slice"\nchildren = ["high"]', '[[volume]]\nname = "high"\nkind = "slice"\nchildren = ["low"]'
    with open(lab.path("loop.toml"), "w", encoding="utf-8") as out:
        out.write("\n".join((*loop, *both)) + "\n")
    refused(lab, "target", "--config", lab.path("loop.toml"), "--link", "eth1", "--check", *guarded(lab),
            says=["part of itself"], code=2, side="target")
    # Of exports of another target it has to make them.
    Target(lab, f"big={big}", over="raw")
    of = uri(lab, "big", over="raw")
    refused(lab, "bench", f"linear:[slice:[{of}]?size=1M,slice:[{of}]?offset=1M]", "--runtime", "1", "--run-dir", lab.path("run"),
            says=["have its target export slices"])


@test(seconds=90)
def one_volume_has_several(lab):
    """A stripe over two slices of one file is written, read and verified, its bytes lie where they belong, and one slice is copied to
    another."""
    big, common = image(lab, "big.img", BIG_MIB), ("--run-dir", lab.path("run"))
    low, high = slice_of(big, 0, 16), slice_of(big, 32)
    stripe = f"stripe:[{low},{high}]?chunk=64K"
    thinwire(lab, "bench", stripe, "--rw", "randrw", "--verify", "--runtime", "2", *common)
    whole, source = os.urandom(32 * MIB), lab.path("source.img")
    with open(source, "wb") as file:
        file.write(whole)
    thinwire(lab, "copy", source, stripe, "--verify", *common)
    with open(big, "rb") as file:
        there, chunk = file.read(), 64 << 10
    for start, first in (0, 0), (32 * MIB, chunk):
        expected = b"".join(whole[at:at + chunk] for at in range(first, len(whole), 2 * chunk))
        check(there[start:start + 16 * MIB] == expected, f"what is from {start} on is not every second chunk")
    check(there[16 * MIB:32 * MIB] == bytes(16 * MIB), "what lies between them was written")
    # Attached, under load, and ended in order.
    attachment = Attachment(lab, stripe, name="wide", side="target")
    load.Fio(lab, attachment.nbd, mib=32, seconds=3).finish(40)
    attachment.detach()
    thinwire(lab, "copy", low, slice_of(big, 16, 16), "--verify", *common)
    with open(big, "rb") as file:
        there = file.read()
    check(there[:16 * MIB] == there[16 * MIB:32 * MIB], "the one is the other")
    refused(lab, "copy", low, slice_of(big, 8, 16), *common, says=["overlap"])
    thinwire(lab, "bench", big, "--rw", "randwrite", "--runtime", "1", "--run-dir", lab.path("other"))
