"""Volumes made of volumes: attached, exported by a gateway, copied and benched alike."""

import json
import os
import time

import load
from harness import check, run, until
from node import Attachment, Target, below, guarded, image, refused, thinwire, uri
from registry import test

# Each leaf; a tree has eight.
LEAF_MIB = 16


def leaves(lab):
    """Two targets with two exports each."""
    def target(node, names):
        exports = [f"{name}={image(lab, f'{name}.img', LEAF_MIB)}" for name in names]
        return Target(lab, *exports, name=node, over="raw")
    return [target("node1", "ab"), target("node2", "cd")]


def tree(lab):
    """Three levels over eight leaves, four of them of two targets."""
    def remote(node, export):
        return below(lab, export, over="raw", node=node)

    def local(name):
        return image(lab, f"{name}.local.img", LEAF_MIB)
    pairs = [(local("e"), local("f")), (remote("node1", "a"), remote("node2", "c")),
             (local("g"), remote("node2", "d")), (remote("node1", "b"), local("h"))]
    low = [f"linear:[{a},{b}]" for a, b in pairs]
    return f"linear:[linear:[{low[0]},{low[1]}],linear:[{low[2]},{low[3]}]]"


def killed_thrice(target, fio):
    for nth in range(3):
        time.sleep(2)
        fio.still_running(f"kill {nth + 1}")
        target.kill()
        time.sleep(0.5)
        target.start()


@test(seconds=120)
def tree_attached(lab):
    """A tree of three levels, local and remote leaves mixed, while one target is killed three times."""
    _, second = leaves(lab)
    attachment = Attachment(lab, tree(lab), name="big", timeout=40)
    fio = load.Fio(lab, attachment.nbd, mib=8 * LEAF_MIB, seconds=12)
    killed_thrice(second, fio)
    fio.finish(60)
    shown = attachment.status()
    check(len(shown["paths"]) >= 4, f"status shows the paths of four attachments: {shown}")
    uris = [leaf["uri"] for leaf in shown["leaves"] if leaf["paths"][0]["remote"]]
    check(len(uris) == len(set(uris)) == 4, f"status shows whose paths they are: {shown}")
    said = thinwire(lab, "status", "--run-dir", attachment.run_dir).stdout
    check(all(f"({uri}) is up" in said for uri in uris), said)
    attachment.detach()


@test(seconds=150)
def gateway(lab):
    """The same tree exported by a gateway: one target is killed three times, then the gateway itself, and
    its writer is known to the next."""
    _, second = leaves(lab)
    state = ("--state-dir", lab.path("state"), "--run-dir", lab.path("gateway-run"))
    middle = Target(lab, f"big={tree(lab)}", name="middle", over="raw", side="initiator", extra=state)
    volume = uri(lab, "big", over="raw", node="middle")
    attachment = Attachment(lab, volume, name="big", side="target", timeout=40)
    fio = load.Fio(lab, attachment.nbd, mib=8 * LEAF_MIB, seconds=20)
    killed_thrice(second, fio)
    for nth in range(2):
        time.sleep(2)
        fio.still_running(f"kill {nth + 1} of the gateway")
        middle.kill()
        time.sleep(0.5)
        middle.start(timeout=30)
    fio.finish(90)
    # Somebody else is no writer of what the gateway's record says is held.
    refused(lab, "bench", volume, "--rw", "randwrite", "--runtime", "1",
            "--run-dir", lab.path("other"), says=["held"], side="target")
    attachment.detach()
    middle.stop()
    # It let go of all in order: the leaves are free.
    thinwire(lab, "bench", uri(lab, "c", over="raw", node="node2"), "--rw", "randwrite",
             "--runtime", "1", "--run-dir", lab.path("other"))


WRITE = """
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
try:
    h.pwrite(sys.argv[3].encode().ljust(512, b"."), int(sys.argv[2]))
    if "flush" in sys.argv: h.flush()
    print("written")
except nbd.Error as error:
    print("error", error.errnum)
"""


@test(seconds=60)
def a_last_flush_that_fails_for_one_leaf(lab):
    """A target is gone with unflushed writes, and those are given up: the detach says so, and lets go of the
    other target and of the local leaf in order."""
    _, second = leaves(lab)
    local, a = image(lab, "local.img", LEAF_MIB), uri(lab, "a", over="raw", node="node1")
    volume = f"linear:[{a},{uri(lab, 'c', over='raw', node='node2')},{local}]"
    disk = Attachment(lab, volume, name="big", extra=("--when-away", "fail-after=1"), timeout=40)
    for leaf in range(3):
        said = lab.run("initiator", "/usr/bin/python3", "-c", WRITE, disk.nbd, leaf * LEAF_MIB << 20, "mine").stdout
        check(said.strip() == "written", f"leaf {leaf}: {said}")
    second.kill()
    until("the second target is away", 20, lambda: disk.status()["state"] == "away")
    said = disk.detach(expect=1, timeout=30).stderr
    check("may be lost" in said, said)
    # Nobody is on record there any more: strangers need not take over.
    for free in a, local:
        thinwire(lab, "bench", free, "--rw", "randwrite", "--runtime", "0.2",
                 "--run-dir", lab.path("other"))


@test(seconds=120, each={"remote": {"leaf": "a"}, "local": {"leaf": "local"}})
def a_leaf_written_while_its_gateway_was_down(lab, leaf):
    """Somebody writes a leaf while its gateway is down: who comes back to the gateway with an unflushed write is
    fenced, and the gateway names the leaf. Nobody is fenced for starts between which nobody wrote, or which
    could not have all leaves; starts that only read neither fence nor forget."""
    _, second = leaves(lab)
    local, a = image(lab, "local.img", LEAF_MIB), below(lab, "a", over="raw", node="node1")
    tree = f"linear:[{a},{below(lab, 'c', over='raw', node='node2')},{local}]"
    state = ("--state-dir", lab.path("state"), "--run-dir", lab.path("gateway-run"))
    middle = Target(lab, f"big={tree}", name="middle", over="raw", side="initiator", extra=state)
    attachment = Attachment(lab, uri(lab, "big", over="raw", node="middle"), name="big", side="target", timeout=40)
    place, file, leaf_uri = (0, lab.path("a.img"), a) if leaf == "a" else (2 * LEAF_MIB << 20, local, local)

    def write(disk, at, *words, side="target"):
        argv = ("/usr/bin/python3", "-c", WRITE, disk.nbd, str(at), *words)
        return lab.run(side, *argv, timeout=40).stdout.strip()

    def only_reads():
        reader = Target(lab, f"big={tree},ro", name="middle", over="raw", side="initiator", extra=state)
        reader.stop()
        check("somebody else" not in reader.process.stderr, f"a reader is no writer's affair:\n{reader.process.stderr}")

    def begins():
        with open(file, "rb") as image_file:
            return image_file.read(8)

    check(write(attachment, place, "first...") == "written", "an unflushed write")
    second.kill()
    middle.kill()
    refused(lab, *middle.argv[1:], says=["no target answered"], timeout=60)
    second.start()
    middle.start(timeout=30)
    check(write(attachment, place + 4096, "second..", "flush") == "written", "its writer is who it was")
    check(begins() == b"first...", "and what it had not flushed is there")
    middle.stop()
    only_reads()
    middle.start(timeout=30)
    check(write(attachment, place, "ghost...") == "written", "an unflushed write")
    middle.kill()

    if leaf == "a":
        stranger = Attachment(lab, a, name="stranger", run="other", extra=["--take-over"])
        check(write(stranger, 0, "stranger", "flush", side="initiator") == "written", "somebody else writes the leaf")
        stranger.detach()
    else:
        with open(lab.path("backup.img"), "wb") as backup:
            backup.write(b"stranger".ljust(LEAF_MIB << 20, b"."))
        thinwire(lab, "copy", lab.path("backup.img"), local, "--take-over", "--run-dir", lab.path("other"))
    check(begins() == b"stranger", "what somebody else has written is there")
    only_reads()
    middle.start(timeout=30)
    answer = write(attachment, place + 4096, "ghost...", "flush")
    check(answer.startswith("error"), f"the write of who is fenced: {answer}")
    until("the fenced attachment says so", 10, lambda: "fenced" in str(attachment.status()).lower())
    check(begins() == b"stranger", "it has written over what somebody else had flushed")
    for word in ("export big", str(leaf_uri), "fenced", "attach anew"):
        check(word in middle.process.stderr, f"the gateway tells it, '{word}':\n{middle.process.stderr}")
    attachment.detach("--force")
    anew = Attachment(lab, uri(lab, "big", over="raw", node="middle"), name="anew", side="target", timeout=40)
    check(write(anew, place, "anew....", "flush") == "written", "a new writer")
    anew.detach()


@test(seconds=60)
def gateway_without_a_place_for_its_record(lab):
    """A gateway that cannot keep who may write serves readers only."""
    Target(lab, f"a={image(lab, 'a.img', LEAF_MIB)}", name="node1", over="raw")
    export = f"big=linear:[{below(lab, 'a', over='raw')},memory:1M]"
    place = ("--state-dir", "/proc/nonexistent", "--run-dir", lab.path("gateway-run"))
    middle = Target(lab, export, name="middle", over="raw", side="initiator", extra=place)
    for word in ("write big", "/proc/nonexistent", "os error", "--state-dir", "only readers"):
        check(word in middle.process.stderr, f"it says at once that there is no place, '{word}':\n{middle.process.stderr}")
    checked = ("target", "--check", "--link", "eth1")
    refused(lab, *checked, "--export", export, *place, says=["/proc/nonexistent", "--state-dir"])
    thinwire(lab, *checked, "--export", export + ",ro", *place)
    volume = uri(lab, "big", over="raw", node="middle")
    common = ("--runtime", "1", "--run-dir", lab.path("run"))
    refused(lab, "bench", volume, "--rw", "randwrite", *common, says=["could not be stored"], side="target")
    thinwire(lab, "bench", volume, "--rw", "randread", *common, side="target")


@test(seconds=90)
def copied_between_two_targets_over_one_link(lab):
    """A copy from one remote volume to another, and onto a tree, over the same interface."""
    leaves(lab)
    source, whole = image(lab, "source.img", LEAF_MIB), image(lab, "whole.img", 2 * LEAF_MIB)
    with open(source, "r+b") as file:
        file.write(bytes(range(256)) * (LEAF_MIB << 12))
    common = ("--verify", "--run-dir", lab.path("run"))
    thinwire(lab, "copy", source, uri(lab, "a", over="raw", node="node1"), *common)
    thinwire(lab, "copy", uri(lab, "a", over="raw", node="node1"), uri(lab, "c", over="raw", node="node2"), *common)
    both = f"linear:[{uri(lab, 'a', over='raw', node='node1')},{uri(lab, 'c', over='raw', node='node2')}]"
    thinwire(lab, "copy", both, whole, *common)
    with open(source, "rb") as one, open(whole, "rb") as two:
        check(one.read() * 2 == two.read(), "the tree holds both, one behind the other")


@test(seconds=90)
def stripe(lab):
    """A stripe over exports of two targets, attached: what is written is verified, and each chunk lies in the image of
    the target to which it is dealt."""
    leaves(lab)
    legs = "ac"
    uris = [uri(lab, leg, over="raw", node=node) for leg, node in zip(legs, ("node1", "node2"))]
    volume = f"stripe:[{','.join(uris)}]?chunk=128K"
    attachment = Attachment(lab, volume, name="wide", timeout=40)
    shown = attachment.status()
    check(shown["bytes"] == 2 * LEAF_MIB << 20, f"it is as large as both: {shown}")
    check(shown["uri"] == volume.replace("128K", "131072"), f"status shows it as it can be typed: {shown}")
    load.Fio(lab, attachment.nbd, mib=2 * LEAF_MIB, seconds=4).finish(60)
    whole, source = os.urandom(2 * LEAF_MIB << 20), lab.path("source.img")
    with open(source, "wb") as file:
        file.write(whole)
    run("nbdcopy", "--flush", source, attachment.nbd)
    attachment.detach()
    chunk = 128 << 10
    for nth, leg in enumerate(legs):
        with open(lab.path(f"{leg}.img"), "rb") as file:
            there = file.read()
        expected = b"".join(whole[at:at + chunk] for at in range(nth * chunk, len(whole), 2 * chunk))
        check(there == expected, f"{leg}.img does not hold every second chunk, from chunk {nth} on")
    # A part of it, with options of its own within the list.
    part = lab.path("part.img")
    thinwire(lab, "copy", f"slice:[{volume}]?offset=64K&size=1M", part, "--run-dir", lab.path("run"))
    with open(part, "rb") as file:
        check(file.read() == whole[64 << 10:(64 << 10) + (1 << 20)], "the slice of the stripe is another")
    refused(lab, "bench", f"linear:[slice:[{uris[0]}]?size=1M,slice:[{uris[0]}]?offset=1M]", "--runtime", "1",
            says=["a part only once", "slices"])


@test(seconds=90)
def labels(lab):
    """A stripe over two targets whose parts have labels: made once, found in any order and under other names, and refused
    when a part is missing, a copy, another's or was overwritten."""
    leaves(lab)
    uris = [uri(lab, leg, over="raw", node=node) for leg, node in zip("ac", ("node1", "node2"))]
    local, run_dir = image(lab, "local.img", LEAF_MIB), ("--run-dir", lab.path("run"))

    def describe(children, more=""):
        with open(lab.path("pool.toml"), "w", encoding="utf-8") as file:
            children = ", ".join(f'"{child}"' for child in children)
            file.write(f'[[volume]]\nname = "wide"\nkind = "stripe"\nlabels = true\n{more}children = [{children}]\n')
        return lab.path("pool.toml") + "#wide"

    def copied(volume):
        if os.path.exists(lab.path("out.img")):
            os.remove(lab.path("out.img"))
        thinwire(lab, "copy", volume, lab.path("out.img"), *run_dir)
        with open(lab.path("out.img"), "rb") as file:
            return file.read()

    volume = describe([*uris, local])
    refused(lab, "copy", volume, lab.path("out.img"), *run_dir, says=["has no label"])
    made = thinwire(lab, "volume", "create", volume, *run_dir).stdout
    bytes_each = (LEAF_MIB - 1) << 20
    check(f"{3 * bytes_each} bytes" in made and "use it as" in made, made)
    refused(lab, "volume", "create", volume, *run_dir, says=['part 0 (counted from 0) of "wide"', "--force"])
    whole, source = os.urandom(3 * bytes_each), lab.path("source.img")
    with open(source, "wb") as file:
        file.write(whole)
    thinwire(lab, "copy", source, volume, "--verify", *run_dir)
    with open(local, "rb") as file:
        file.seek(1 << 20)
        check(file.read(64 << 10) == whole[128 << 10:192 << 10], "the third chunk is where the third part's data starts")
    # In another order, and under another name.
    moved = lab.path("moved.img")
    os.rename(local, moved)
    volume = describe([moved, uris[1], uris[0]])
    check(copied(volume) == whole, "the order of the description does not matter")
    found = json.loads(thinwire(lab, "volume", "assemble", uris[1], moved, uris[0], "--json", *run_dir).stdout)
    parts = found["volumes"][0]["parts"]
    check([part.rpartition("/")[2].split("?")[0] for part in parts] == ["a", "c", "moved.img"], f"{found}")
    dumped = json.loads(thinwire(lab, "volume", "dump", moved, "--json", *run_dir).stdout)
    check(dumped["parts"][0]["label"]["role"] == 2 and dumped["parts"][0]["label"]["is_content"], f"{dumped}")
    # What makes no whole.
    refused(lab, "copy", describe([moved, uris[0]]), lab.path("out.img"), *run_dir, says=["part 1 (counted from 0)"])
    refused(lab, "copy", describe([moved, *uris], "chunk = 131072\n"), lab.path("out.img"), *run_dir,
            says=["described by", "chunk = 131072"])
    run("cp", "-a", moved, lab.path("twin.img"))
    refused(lab, "copy", describe([moved, lab.path("twin.img"), *uris]), lab.path("out.img"), *run_dir, says=["both say", "one is a copy"])
    run("cp", moved, lab.path("copy.img"))
    refused(lab, "copy", describe([lab.path("copy.img"), *uris]), lab.path("out.img"), *run_dir, says=["another volume than"])
    with open(moved, "r+b") as file:
        file.seek(24 << 10)
        file.write(b"somebody else's")
    refused(lab, "copy", describe([moved, *uris]), lab.path("out.img"), *run_dir, says=["something else has written to this part"])
    run("mkfs.ext4", "-q", "-F", moved)
    refused(lab, "copy", describe([moved, *uris]), lab.path("out.img"), *run_dir, says=["has no label"])
    fresh, small = image(lab, "fresh.img", LEAF_MIB), image(lab, "small.img", 1)
    run("mkfs.ext4", "-q", "-F", fresh)
    with open(fresh, "rb") as file:
        before = file.read()
    refused(lab, "volume", "create", describe([fresh, small]), "--force", *run_dir, says=["small.img", "larger"])
    with open(fresh, "rb") as file:
        check(file.read() == before, "nothing is overwritten for a whole that cannot be made")
    refused(lab, "volume", "create", describe([fresh]), *run_dir, says=["ext2, ext3 or ext4", "--force"])
    # Nor may what stands at the end only: a leg of a RAID of Linux, and a disk whose first sectors were zeroed.
    raid, gpt = (image(lab, name, LEAF_MIB) for name in ("raid.img", "gpt.img"))
    for path, at, magic in [(raid, (LEAF_MIB << 20) - 8192, b"\xfc\x4e\x2b\xa9"), (gpt, (LEAF_MIB << 20) - 512, b"EFI PART")]:
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(magic)
    refused(lab, "volume", "create", describe([raid]), *run_dir, says=["holds Linux software RAID (1.0), at its end", "--force"])
    refused(lab, "volume", "create", describe([gpt]), *run_dir, says=["holds the backup of a GPT partition table, at its end", "--force"])
    told = thinwire(lab, "volume", "create", describe([raid]), "--force", *run_dir).stderr
    check("at its end; that is overwritten" in told, told)
    with open(raid, "rb") as file:
        file.seek(-8192, os.SEEK_END)
        check(not any(file.read()), "nothing takes it for its own any more")
    told = thinwire(lab, "volume", "create", describe([fresh]), "--force", *run_dir).stderr
    check("holds ext2, ext3 or ext4; that is overwritten" in told, told)
    check(len(copied(describe([fresh]))) == bytes_each, "it is one now")


@test(seconds=60)
def old_copies_of_parts(lab):
    """Of a labelled volume whose parts are files one is copied away, the volume is written, and the copy put back: refused, with
    which it is. Copies of all parts of one time are the volume of that time."""
    parts, run_dir = [image(lab, f"{name}.img", LEAF_MIB) for name in "ab"], ("--run-dir", lab.path("run"))
    with open(lab.path("pool.toml"), "w", encoding="utf-8") as file:
        file.write(f'[[volume]]\nname = "both"\nkind = "stripe"\nlabels = true\nchildren = {json.dumps(parts)}\n')
    volume, out = lab.path("pool.toml") + "#both", lab.path("out.img")
    thinwire(lab, "volume", "create", volume, *run_dir)
    sources = []
    for nth in range(2):
        sources.append(os.urandom(2 * (LEAF_MIB - 1) << 20))
        with open(lab.path("source.img"), "wb") as file:
            file.write(sources[nth])
        if nth == 1:
            for part in parts:
                run("cp", "-a", part, part + ".old")
        thinwire(lab, "copy", lab.path("source.img"), volume, *run_dir)

    def whole():
        if os.path.exists(out):
            os.remove(out)
        thinwire(lab, "copy", volume, out, *run_dir)
        with open(out, "rb") as file:
            return file.read()
    check(whole() == sources[1], "the volume has what was written last")
    for nth, part in enumerate(parts):
        os.rename(part, part + ".new")
        run("cp", "-a", part + ".old", part)
        says = [f"{part} (part {nth}, counted from 0, 1 opening behind) is an old copy"]
        refused(lab, "copy", volume, out, *run_dir, says=says)
        refused(lab, "copy", lab.path("source.img"), volume, *run_dir, says=says)
        refused(lab, "volume", "assemble", *parts, *run_dir, says=says)
        check(says[0] in refused(lab, "volume", "check", *parts, *run_dir, says=["that cannot be used: 1 of 1"]).stdout, "check says it, too")
        os.rename(part + ".new", part)
        check(whole() == sources[1], "the right part is taken again")
    for part in parts:
        run("cp", "-a", part + ".old", part)
    check(whole() == sources[0], "all parts of one time are a whole")


@test(seconds=60)
def damage_to_labels_is_told(lab):
    """`volume check` of parts whose labels are sound, of one with a damaged copy, which the next opening for writing puts right,
    and of one with two."""
    parts, run_dir = [image(lab, f"{name}.img", LEAF_MIB) for name in "ab"], ("--run-dir", lab.path("run"))
    with open(lab.path("pool.toml"), "w", encoding="utf-8") as file:
        file.write(f'[[volume]]\nname = "both"\nkind = "linear"\nlabels = true\nchildren = {json.dumps(parts)}\n')
    volume = lab.path("pool.toml") + "#both"
    refused(lab, "volume", "check", *parts, *run_dir, says=["not sound: 2 of 2"])
    thinwire(lab, "volume", "create", volume, *run_dir)

    def found(expect):
        done = thinwire(lab, "volume", "check", *parts, "--json", *run_dir, expect=expect)
        told = json.loads(done.stdout)
        return [part["state"] for part in told["parts"]], [whole["can_be_used"] for whole in told["volumes"]]

    def damage(at):
        with open(parts[1], "r+b") as file:
            file.seek(at + 2000)
            file.write(b"rotten")
    check(found(0) == (["sound"] * 2, [True]), f"{found(0)}")
    said = thinwire(lab, "volume", "check", *parts, *run_dir).stdout
    check('"both" can be used' in said and "part 1 (counted from 0)" in said, said)
    copies = (24 << 10, (512 + 24) << 10)
    # The first three labels end in the second copy, so the older one is the first.
    damage(copies[0])
    check(found(1) == (["sound", "serves"], [True]), f"{found(1)}")
    thinwire(lab, "bench", volume, "--rw", "randwrite", "--runtime", "1", *run_dir)
    check(found(0) == (["sound"] * 2, [True]), f"put right: {found(0)}")
    for at in copies:
        damage(at)
    check(found(1) == (["sound", "unusable"], [False]), f"{found(1)}")
    done = refused(lab, "volume", "check", *parts, *run_dir, says=["not sound: 1 of 2; volumes that cannot be used: 1 of 1"])
    check("has no intact label" in done.stdout and '"both" cannot be used' in done.stdout, done.stdout)


@test(seconds=60)
def all_or_none(lab):
    """A tree of which one leaf is not there is not opened, and leaves nobody on record."""
    Target(lab, f"a={image(lab, 'a.img', LEAF_MIB)}", name="node1", over="raw")
    local = image(lab, "local.img", LEAF_MIB)
    a = uri(lab, "a", over="raw", node="node1")
    missing = uri(lab, "nothing", over="raw", node="node1")
    common = ("--rw", "randwrite", "--runtime", "1", "--run-dir", lab.path("run"))
    refused(lab, "bench", f"linear:[{local},{a},{missing}]", *common, says=["nothing"])
    until("the leaf is free again", 5, lambda: thinwire(
        lab, "bench", f"linear:[{local},{a}]", *common[:-1], lab.path("other"), expect=None).returncode == 0)
    for volume, says in ((f"linear:{local}", "brackets"), ("linear:[]", "give a volume"),
                         (f"linear:[{local},memory:1K,foo:x]", "foo:x")):
        refused(lab, "bench", volume, "--runtime", "1", says=[says], code=2)


@test(seconds=120, each={"one": {"shards": 1}, "two": {"shards": 2}})
def several_exports_of_a_gateway(lab, shards):
    """A gateway with several exports, of which one is another target's as it is, and that target keeps its
    records in the same folder: each is written under its own record, whoever is killed."""
    # An xdp link is one shard's.
    over = "raw" if shards == 1 else "packet"
    state = ("--state-dir", lab.path("state"))
    leaf = Target(lab, *[f"{name}={image(lab, f'{name}.img', LEAF_MIB)}" for name in "ab"], name="node1", over=over,
                  extra=state)
    a, b = (below(lab, name, over=over, node="node1") for name in "ab")
    middle = Target(lab, f"x={a}", f"y=linear:[{b},memory:1M]", f"z={image(lab, 'z.img', LEAF_MIB)}", name="middle",
                    over=over, side="initiator",
                    extra=(*state, "--run-dir", lab.path("gateway-run"), "--shards", str(shards)))
    attachment = Attachment(lab, uri(lab, "x", over=over, node="middle"), name="x", side="target")
    fio = load.Fio(lab, attachment.nbd, mib=LEAF_MIB, seconds=14)

    def others():
        for name in "yz":
            thinwire(lab, "bench", uri(lab, name, over=over, node="middle"), "--rw", "randrw",
                     "--runtime", "1", "--verify", "--run-dir", lab.path("bench-run"), side="target")
    others()
    for killed in (leaf, middle):
        fio.still_running(f"{killed.name} was killed")
        killed.kill()
        time.sleep(0.5)
        killed.start(timeout=30)
    others()
    fio.finish(60)
    attachment.detach()
    middle.stop()


@test(seconds=60)
def a_gateway_is_stopped_while_it_waits(lab):
    """A gateway whose leaf does not answer ends at once when it is told to, and says what it waited for."""
    target = Target(lab, f"big={below(lab, 'nothing', over='raw', node='nobody')}", name="middle", over="raw",
                    side="initiator", extra=("--run-dir", lab.path("gateway-run")), start=False)
    process = lab.start("initiator", *target.argv, name="waiting")
    time.sleep(2)
    check(process.running, "it waits for its leaf")
    began = time.monotonic()
    process.kill(15)
    process.wait(10, expect=1)
    check(time.monotonic() - began < 3, "it waited on after it was told to end")
    check("interrupted" in process.stderr, f"it does not say what happened:\n{process.stderr}")


def described(lab):
    """A folder with a tree of three leaves in TOML: one of a target, and from `conf.d` two more, one of them a
    file beside it."""
    Target(lab, *[f"{name}={image(lab, f'{name}.img', LEAF_MIB)}" for name in "ab"], name="node1", over="raw")
    a, b = (below(lab, name, over="raw", node="node1") for name in "ab")
    os.makedirs(lab.path("conf/conf.d"))
    image(lab, "conf/local.img", LEAF_MIB)

    def volume(name, *children):
        return f'[[volume]]\nname = "{name}"\nkind = "linear"\nchildren = {list(children)}\n'
    with open(lab.path("conf/target.toml"), "w", encoding="utf-8") as file:
        file.write('[[export]]\nname = "whole"\nvolume = "big"\n' + volume("big", a, "low"))
    with open(lab.path("conf/conf.d/low.toml"), "w", encoding="utf-8") as file:
        file.write(volume("low", "../local.img", b))
    return lab.path("conf/target.toml")


@test(seconds=90)
def described_in_a_file(lab):
    """A tree that a file describes is attached, benched and copied by its name there."""
    file = described(lab)
    volume = f"{file}#big"
    source, whole = image(lab, "source.img", 3 * LEAF_MIB), image(lab, "whole.img", 3 * LEAF_MIB)
    with open(source, "r+b") as out:
        out.write(os.urandom(3 * LEAF_MIB << 20))
    common = ("--run-dir", lab.path("run"))
    thinwire(lab, "copy", source, volume, "--verify", *common)
    with open(source, "rb") as out, open(lab.path("conf/local.img"), "rb") as leaf:
        out.seek(LEAF_MIB << 20)
        check(out.read(LEAF_MIB << 20) == leaf.read(), "the file beside it is the second leaf")
    thinwire(lab, "copy", f"linear:[{volume}]", whole, *common)
    with open(source, "rb") as one, open(whole, "rb") as two:
        check(one.read() == two.read(), "the tree holds what was copied onto it")
    attachment = Attachment(lab, volume, name="big", timeout=40)
    load.Fio(lab, attachment.nbd, mib=3 * LEAF_MIB, seconds=3).finish(30)
    check(attachment.status()["uri"] == volume, f"status shows its name: {attachment.status()}")
    attachment.detach()
    thinwire(lab, "bench", volume, "--rw", "randrw", "--runtime", "1", "--verify", *common)
    for wrong, says in (("nothing", "there are: big, low"), ("", "volume name")):
        refused(lab, "bench", f"{file}#{wrong}", says=["target.toml", says], code=2)


@test(seconds=90)
def exported_from_a_file(lab):
    """A gateway exports a tree that its configuration describes; what is wrong there is told with its place."""
    file = described(lab)
    # One that nobody uses is warned of, and checked all the same.
    more = lab.path("conf/conf.d/more.toml")

    def write(children):
        with open(more, "w", encoding="utf-8") as out:
            out.write(f'[[volume]]\nname = "spare"\nkind = "linear"\nchildren = {children}\n')
    check_only = ("target", "--config", file, "--link", "eth1", "--check", *guarded(lab))
    for children, says in ((["spare"], "part of itself"), (["spaer"], "no volume `spaer`"), (["foo:x"], "`foo:x`")):
        write(children)
        refused(lab, *check_only, says=["more.toml:4: ", says], code=2)
    write(["low", "memory:1M"])
    done = thinwire(lab, *check_only)
    check("more.toml:1: no export uses the volume `spare`" in done.stderr, f"no warning:\n{done.stderr}")
    Target(lab, name="middle", over="raw", side="initiator",
           extra=("--config", file, *guarded(lab), "--state-dir", lab.path("state"), "--run-dir", lab.path("gateway-run")))
    attachment = Attachment(lab, uri(lab, "whole", over="raw", node="middle"), name="big", side="target", timeout=40)
    load.Fio(lab, attachment.nbd, mib=3 * LEAF_MIB, seconds=3).finish(30)
    attachment.detach()
    # The same leaf twice in one export, by way of two volumes.
    write(["../local.img", "memory:1M"])
    with open(file, "a", encoding="utf-8") as out:
        out.write('[[export]]\nname = "twice"\nvolume = "linear:[spare,low]"\n')
    refused(lab, *check_only, says=["export `twice`", "local.img are the same file"])


@test(seconds=40)
def what_fails_is_told_with_its_place(lab):
    """An I/O that fails in a tree is told by the place of the part and the range there: by the command that fails by it, once, in the log of a target, and in its status; not each of many."""
    tree, run_dir = "linear:[memory:4M,error:[memory:16M]?reads=20]", ("--run-dir", lab.path("run"))
    told = "linear part 1, error: read of 4096 bytes at "
    done = thinwire(lab, "bench", tree, "--rw", "randread", "--runtime", "0.2", *run_dir, expect=1)
    check(done.stderr.count(told) == 1 and f"I/Os failed; first: {told}" in done.stderr, done.stderr)
    with open(lab.path("pool.toml"), "w", encoding="utf-8") as file:
        file.write('[[volume]]\nname = "data"\nkind = "stripe"\nchildren = ["./a.img", "bad"]\n'
                   '[[volume]]\nname = "bad"\nkind = "error"\nreads = 1\nchildren = ["./b.img"]\n')
    for name in ("a.img", "b.img"):
        with open(lab.path(name), "wb") as file:
            file.write(os.urandom(1 << 20))
    done = thinwire(lab, "copy", lab.path("pool.toml#data"), lab.path("out.img"), *run_dir, expect=1)
    place = 'source: stripe "data" part 1, error "bad": read of 65536 bytes at '
    check(done.stderr.count("read of") == 1 and place in done.stderr and "the medium reported an error." in done.stderr, done.stderr)
    # What goes to a part is in the log, if somebody asks for that.
    seen = ("copy", f"linear:[memory:64K,trace:[{lab.path('a.img')}]]", lab.path("seen.img"), *run_dir)
    done = thinwire(lab, *seen, env={"RUST_LOG": "io=debug"})
    check("linear part 1, trace: read of " in done.stderr and "WARN" not in done.stderr, done.stderr)
    target = Target(lab, f"tree={tree}")
    thinwire(lab, "bench", uri(lab, "tree"), "--rw", "randread", "--runtime", "0.2", *run_dir, expect=1)
    until("the target has told", 10, lambda: told in target.process.stderr)
    target.stop()
    check(target.process.stderr.count(told) == 1, target.process.stderr)
