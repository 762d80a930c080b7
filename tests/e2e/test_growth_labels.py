"""Volumes with labels that grow by what their parts have grown by: while nobody uses them, and while a file system on them is mounted."""

import hashlib
import json
import os
import signal
import time

import load
import node
from harness import check, run, until
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test
from test_block import fsck, mount

MIB = 1 << 20
# What is promised of a face, and a moment for a machine that tests others at the same time.
SOON = 5


def describe(lab, *volumes, name="grow.toml"):
    """A file with these volumes, each a name, a kind, children, and more lines."""
    path = lab.path(name)
    with open(path, "w", encoding="utf-8") as file:
        for volume, kind, children, *more in volumes:
            children = ", ".join(f'"{child}"' for child in children)
            file.write(f'[[volume]]\nname = "{volume}"\nkind = "{kind}"\nlabels = true\nchildren = [{children}]\n')
            file.writelines(f"{line}\n" for line in more)
    return lambda volume: f"{path}#{volume}"


def enlarge(lab, names, mib):
    for name in names:
        os.truncate(lab.path(name), mib * MIB)


def content(lab, volume, run_dir, limit=None):
    """What a copy of it holds."""
    out = lab.path("out.img")
    if os.path.exists(out):
        os.unlink(out)
    thinwire(lab, "copy", volume, out, *run_dir, timeout=60)
    with open(out, "rb") as file:
        return file.read(limit)


def summed(mib):
    """Bytes of a volume with sums whose part has so many MiB, 2 of them for its label and its bitmaps."""
    blocks = (mib - 2) * 256
    return (blocks - -(-blocks // 513)) * 4096


def sizes(disk):
    """What it is made of, and how large each of these is by now."""
    return [(node["name"], node["bytes"]) for node in disk.status()["nodes"]]


def size(lab, volume, run_dir):
    return len(content(lab, volume, run_dir))


@test(seconds=120)
def each_kind_grows_as_far_as_it_can(lab):
    """Each kind of volume with labels grows by what its parts have grown by, keeps what it holds, and is the same to whoever stands on it; what cannot says why."""
    run_dir = ("--run-dir", lab.path("run"))
    for name in ("a", "b", "c", "d", "e", "f", "g", "h", "i"):
        image(lab, name, 16)
    at = {name: lab.path(name) for name in "abcdefghi"}
    of = describe(
        lab,
        ("one", "linear", [at["a"]]),
        ("two", "slice", [at["b"]]),
        ("wide", "stripe", ["one", "two"]),
        ("left", "integrity", [at["c"]]),
        ("right", "integrity", [at["d"]]),
        ("kept", "mirror", ["left", "right"]),
        ("both", "mirror", [at["e"], at["f"]]),
        ("cut", "slice", [at["g"]], "size = 4194304"),
        ("row", "linear", [at["h"], at["i"]]),
    )
    for volume in ("wide", "kept", "both", "cut", "row"):
        thinwire(lab, "volume", "create", of(volume), *run_dir, timeout=60)
    before = {}
    for volume in ("wide", "kept", "both", "cut", "row"):
        if volume in ("kept", "both"):
            thinwire(lab, "volume", "resync", of(volume), *run_dir, timeout=60)
        thinwire(lab, "bench", of(volume), "--rw", "randwrite", "--runtime", "0.2", *run_dir)
        before[volume] = content(lab, of(volume), run_dir)
        # Nothing has.
        refused(lab, "volume", "grow", of(volume), *run_dir, says=["as before", "room for more"])
    enlarge(lab, "abcdefgh", 32)
    # None of them is larger by itself.
    for volume, was in before.items():
        check(content(lab, of(volume), run_dir) == was, f"{volume} is as it was")
    for volume in ("wide", "both", "kept"):
        grown = json.loads(thinwire(lab, "volume", "grow", of(volume), "--json", *run_dir, timeout=60).stdout)["volumes"]
        check(grown[-1]["name"] == volume and grown[-1]["before"] == len(before[volume]), grown)
        now = content(lab, of(volume), run_dir)
        check(len(now) == grown[-1]["bytes"] > len(before[volume]), grown)
        check(now.startswith(before[volume]), f"{volume} holds what it held")
        check(not any(now[len(before[volume]):]), "and nothing behind it")
        thinwire(lab, "bench", of(volume), "--rw", "randrw", "--verify", "--runtime", "0.3", *run_dir)
    check(size(lab, of("wide"), run_dir) == 60 * MIB, "parts of parts, and then their whole")
    with open(lab.path("e"), "rb") as one, open(lab.path("f"), "rb") as other:
        one.seek(1572864), other.seek(1572864)
        check(one.read() == other.read(), "legs are alike")
    check("all as it was written" in thinwire(lab, "volume", "scrub", of("kept"), *run_dir, timeout=60).stdout, "it fits its sums")
    check(len(content(lab, of("left"), run_dir)) == summed(32), "what comes has sums, too")
    made = [part["label"]["made_bytes"] for part in json.loads(thinwire(lab, "volume", "dump", "--json", at["a"], at["h"], *run_dir).stdout)["parts"]]
    check(made == [15 * MIB, None], f"a label says with how much its part was made, if that has grown: {made}")
    # What cannot says why.
    refused(lab, "volume", "grow", of("cut"), *run_dir, says=["made with a size"])
    refused(lab, "volume", "grow", of("row"), *run_dir, says=["part 0 (counted from 0) has", "last one"])
    enlarge(lab, "i", 24)
    said = thinwire(lab, "volume", "grow", of("row"), *run_dir).stdout
    check(said == f"row has {38 * MIB} bytes\n", said)
    refused(lab, "volume", "grow", of("row"), "1G", *run_dir, says=["leave out the size"], code=2)
    refused(lab, "volume", "grow", f"linear:[{at['h']}]", *run_dir, says=["no labels"], code=2)


# When a growth is cut off: at so many moments from when it has hardly begun to when it is through.
POINTS = 4


@test(seconds=120)
def a_growth_that_is_cut_off(lab):
    """Killed at any moment, a volume has grown or it has not: it opens, holds what it held, and the same again has it grow."""
    run_dir = ("--run-dir", lab.path("run"))
    for name in "abcde":
        image(lab, name, 8)
    of = describe(lab, ("wide", "stripe", [lab.path("a"), lab.path("b")]), ("both", "mirror", [lab.path("c"), lab.path("d")]),
                  ("sums", "integrity", [lab.path("e")]))
    for volume, names in (("wide", "ab"), ("both", "cd"), ("sums", "e")):
        thinwire(lab, "volume", "create", of(volume), *run_dir)
        if volume == "both":
            thinwire(lab, "volume", "resync", of(volume), *run_dir, timeout=60)
        thinwire(lab, "bench", of(volume), "--rw", "randwrite", "--runtime", "0.2", *run_dir)
        first, grown, cut_off = content(lab, of(volume), run_dir), [], 0
        enlarge(lab, names, 12)
        begun = time.monotonic()
        thinwire(lab, "volume", "grow", of(volume), *run_dir, timeout=60)
        took, mib, tries = time.monotonic() - begun, 12, 0
        # From when it has hardly begun to when one that nobody cuts off is through.
        shares = [nth / (POINTS - 1) for nth in range(POINTS)]
        while shares:
            mib += 4
            was = size(lab, of(volume), run_dir)
            enlarge(lab, names, mib)
            began = lab.start("initiator", node.BIN, "volume", "grow", of(volume), "--take-over", *run_dir, name=f"{volume}{mib}")
            time.sleep(took * shares[0])
            if len(shares) == 1:
                began.wait(60)
                shares.pop()
            else:
                is_under_way = began.running
                began.kill(signal.SIGKILL).wait(10, expect=None)
                # One that was through before was faster than the first: the same once more, and those behind it, sooner.
                cut_off, tries = cut_off + is_under_way, tries + (not is_under_way)
                took = took if is_under_way else took / 2
                if is_under_way or tries > 3:
                    shares.pop(0)
            if volume == "both":
                thinwire(lab, "volume", "resync", of(volume), "--take-over", *run_dir, timeout=60)
            now = content(lab, of(volume), run_dir)
            larger = {"wide": was + 8 * MIB, "both": was + 4 * MIB, "sums": summed(mib)}[volume]
            check(len(now) in (was, larger), f"{len(now)} of {was}")
            grown.append(len(now) > was)
            check(now.startswith(first), "it holds what it held")
            if len(now) == was:
                thinwire(lab, "volume", "grow", of(volume), "--take-over", *run_dir, timeout=60)
                check(size(lab, of(volume), run_dir) == larger, "the same again")
            if volume == "sums":
                scrubbed = thinwire(lab, "volume", "scrub", of(volume), "--take-over", *run_dir, timeout=60).stdout
                check("all as it was written" in scrubbed, scrubbed)
        check(cut_off >= 2, f"{cut_off} were killed in the middle")
        check(not grown[0] and grown[-1], f"grown, by when each was killed: {grown}")


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


@test(seconds=150, each={"stripe": {"top": "stripe"}, "mirror": {"top": "mirror"}})
def a_mounted_file_system_grows(lab, top):
    """ext4 on an attached volume with labels grows by resize2fs, with nobody unmounting anything; of a mirror all legs are alike then."""
    run_dir = ("--run-dir", lab.path("run"))
    for name in "abcd":
        image(lab, name, 32)
    at = [lab.path(name) for name in "abcd"]
    volumes = [("home", "mirror", at[:2])] if top == "mirror" else [
        ("left", "mirror", at[:2]), ("right", "mirror", at[2:]), ("home", "stripe", ["left", "right"])]
    of = describe(lab, *volumes)
    thinwire(lab, "volume", "create", of("home"), *run_dir, timeout=60)
    thinwire(lab, "volume", "resync", of("home"), *run_dir, timeout=60)
    disk = Attachment(lab, of("home"), face="block", name="home")
    run("mkfs.ext4", "-q", "-F", disk.path)
    folder = mount(lab, disk.path)
    kept = os.path.join(folder, "kept")
    with open(kept, "wb") as file:
        file.write(os.urandom(12 * MIB))
    before, was = digest(kept), int(run("blockdev", "--getsize64", disk.path).stdout)
    # Not by itself, nor while a part is as it was.
    os.truncate(at[0], 64 * MIB)
    refused(lab, "volume", "grow", of("home"), *run_dir, says=["as before"])
    enlarge(lab, "abcd", 64)
    said = thinwire(lab, "volume", "grow", of("home"), *run_dir, timeout=60).stdout
    check("home has" in said, said)
    more = 64 * MIB if top == "stripe" else 32 * MIB
    until("the disk is larger", SOON, lambda: int(run("blockdev", "--getsize64", disk.path).stdout) == was + more)
    check(disk.status()["bytes"] == was + more, "status shows the size")
    grown = sizes(disk)
    check(grown[0][1] == was + more and [of for name, of in grown if "/" in name and "#" not in name] == [64 * MIB] * len(at if top == "stripe" else at[:2]), grown)
    if run("resize2fs", disk.path, check_exit=False, timeout=60).returncode != 0:
        # Mounted, this kernel may refuse it to a container.
        run("umount", folder)
        run("e2fsck", "-fp", disk.path)
        run("resize2fs", disk.path)
        mount(lab, disk.path)
    with open(os.path.join(folder, "more"), "wb") as file:
        file.write(os.urandom(more * 3 // 4))
        os.fsync(file.fileno())
    later = digest(os.path.join(folder, "more"))
    run("umount", folder)
    fsck("ext4", disk.path)
    # It is the same, in another attachment.
    disk.detach()
    for one, other in ((0, 1), (2, 3)) if top == "stripe" else ((0, 1),):
        with open(at[one], "rb") as first, open(at[other], "rb") as second:
            first.seek(1572864), second.seek(1572864)
            check(first.read() == second.read(), "legs are alike")
    disk = Attachment(lab, of("home"), face="block", name="home")
    check(sizes(disk) == grown, f"what is shown of it is what it was shown as behind the growth, {grown}: {sizes(disk)}")
    folder = mount(lab, disk.path)
    check([digest(kept), digest(os.path.join(folder, "more"))] == [before, later], "all is there")
    run("umount", folder)
    disk.detach()


@test(seconds=90)
def an_export_grows_with_its_labels(lab):
    """A gateway of a stripe with labels over exports of another target: the exports grow, then the stripe, and who has attached it sees that. After a restart it is the same."""
    run_dir = ("--run-dir", lab.path("gateway-run"))
    disks = [image(lab, name, 16) for name in "ab"]
    Target(lab, *[f"{name}={disk}" for name, disk in zip("ab", disks)], name="node1", over="raw")
    of = describe(lab, ("pool", "stripe", [node.below(lab, name, over="raw", node="node1") for name in "ab"]))
    thinwire(lab, "volume", "create", of("pool"), *run_dir)
    middle = Target(lab, f"pool={of('pool')}", name="middle", over="raw", side="initiator",
                    extra=("--state-dir", lab.path("state-middle"), *run_dir))
    file = Attachment(lab, uri(lab, "pool", over="raw", node="middle"), face="file", name="pool", side="target")
    check(os.stat(file.path).st_size == 30 * MIB, "two of 16, but for what their labels take")
    enlarge(lab, "ab", 32)
    time.sleep(2)
    check(os.stat(file.path).st_size == 30 * MIB, "not by itself")
    said = thinwire(lab, "volume", "grow", of("pool"), *run_dir, timeout=60).stdout
    check(said == f"pool has {62 * MIB} bytes\n", said)
    until("who has it attached sees it", SOON, lambda: os.stat(file.path).st_size == 62 * MIB)

    def shown():
        status = json.loads(thinwire(lab, "status", "--json", *run_dir).stdout)["targets"][0]
        return [node["bytes"] >> 20 for node in status["exports"][0]["nodes"]]
    check(shown() == [62, 32, 32], f"the gateway shows all of it as large as it is: {shown()}")
    with open(file.path, "r+b", buffering=0) as out:
        out.seek(60 * MIB)
        out.write(b"behind" * 1000)
        os.fsync(out.fileno())
    middle.kill()
    middle.start(timeout=30)
    with open(file.path, "rb") as back:
        back.seek(60 * MIB)
        check(back.read(6000) == b"behind" * 1000, "what was written behind is there")
    file.detach()


class OverNbd:
    """The file that nbdfuse shows of an NBD export: a client of its own. NBD has no word for a size that changes, so each has that which was there when it connected."""

    def __init__(self, lab, disk):
        self.folder = lab.path("over-nbd")
        os.makedirs(self.folder, exist_ok=True)
        self.path = os.path.join(self.folder, "disk")
        self.process = lab.start("initiator", "nbdfuse", self.path, disk.nbd)
        until("nbdfuse shows it", 10, lambda: os.path.exists(self.path))

    def size(self):
        return os.stat(self.path).st_size

    def leave(self):
        run("umount", self.folder)
        self.process.wait(10)


@test(seconds=120)
def a_file_system_over_nbd_grows(lab):
    """ext4 on a mirror of two exports that somebody has over NBD, mounted, while the exports and then the mirror grow: who is connected goes on with the size that it has found, who connects next
    has the new one, and resize2fs makes use of it. Nobody detaches anything. The legs are alike then."""
    run_dir, images = ("--run-dir", lab.path("run")), [image(lab, f"{name}.img", 32) for name in "ab"]
    targets = [Target(lab, f"{name}={path}", name=f"node-{name}", over="raw", extra=("--state-dir", lab.path(f"state-{name}"))) for name, path in zip("ab", images)]
    of = describe(lab, ("home", "mirror", [uri(lab, name, over="raw", node=f"node-{name}") for name in "ab"]))
    thinwire(lab, "volume", "create", of("home"), *run_dir, timeout=60)
    thinwire(lab, "volume", "resync", of("home"), *run_dir, timeout=60)
    disk = Attachment(lab, of("home"), name="home")
    client = OverNbd(lab, disk)
    was = client.size()
    run("mkfs.ext4", "-q", "-F", client.path)
    folder = lab.path("mnt")
    os.mkdir(folder)
    run("mount", "-o", "loop", client.path, folder)

    def write(name, mib):
        with open(os.path.join(folder, name), "wb") as file:
            file.write(os.urandom(mib * MIB))
            os.fsync(file.fileno())
        return digest(os.path.join(folder, name))

    written = {"before": write("before", 8)}
    enlarge(lab, ("a.img", "b.img"), 64)
    until("the exports have grown", SOON, lambda: "home has" in thinwire(lab, "volume", "grow", of("home"), *run_dir, timeout=60, expect=None).stdout, every=0.5)
    until("the disk has grown", SOON, lambda: disk.status()["bytes"] == was + 32 * MIB)
    # Who is connected notices nothing.
    written["beside"] = write("beside", 8)
    check(client.size() == was, f"{client.size()} bytes, and it was {was}")
    run("umount", folder)
    client.leave()
    client = OverNbd(lab, disk)
    check(client.size() == was + 32 * MIB, f"{client.size()} bytes, and it was {was}")
    run("e2fsck", "-fp", client.path)
    run("resize2fs", client.path)
    run("mount", "-o", "loop", client.path, folder)
    written["behind"] = write("behind", 36)
    run("umount", folder)
    fsck("ext4", client.path)
    client.leave()
    disk.detach(timeout=40)
    # The same by way of another attachment.
    disk = Attachment(lab, of("home"), face="block", name="again")
    run("mount", disk.path, folder)
    check({name: digest(os.path.join(folder, name)) for name in written} == written, "all is there")
    run("umount", folder)
    disk.detach(timeout=40)
    for target in targets:
        target.stop()
    with open(images[0], "rb") as one, open(images[1], "rb") as other:
        one.seek(1572864), other.seek(1572864)
        check(one.read() == other.read(), "legs are alike")


def leave(lab, names, mib):
    """They are longer by that, with something that somebody has left there."""
    for name in names:
        with open(lab.path(name), "ab") as file:
            file.write(os.urandom(mib * MIB))


def add_rot(lab, name, at_mib):
    with open(lab.path(name), "r+b") as file:
        file.seek(at_mib * MIB)
        file.write(os.urandom(4096))


@test(seconds=150, each={"files": {"over": "files"}, "targets": {"over": "targets"}})
def sums_grow_while_they_are_used(lab, over):
    """A mirror of two volumes with sums, over files and over exports of two targets, grows over what somebody has left there while what is written is verified, and once more while nobody has it: what
    comes is zero, a scrub reads that, too, and mends what rots there, and legs are alike."""
    run_dir = ("--run-dir", lab.path("run"))
    for name in "ab":
        image(lab, name, 24)
    at, targets = [lab.path(name) for name in "ab"], []
    if over == "targets":
        targets = [Target(lab, f"{name}={path}", name=f"node-{name}", over="raw", extra=("--state-dir", lab.path(f"state-{name}"))) for name, path in zip("ab", at)]
        at = [uri(lab, name, over="raw", node=f"node-{name}") for name in "ab"]
    of = describe(lab, ("left", "integrity", [at[0]]), ("right", "integrity", [at[1]]), ("kept", "mirror", ["left", "right"]))
    thinwire(lab, "volume", "create", of("kept"), *run_dir, timeout=60)
    thinwire(lab, "volume", "resync", of("kept"), *run_dir, timeout=60)
    own = 3 * MIB // 2
    disk = Attachment(lab, of("kept"), name="kept", timeout=40)
    check(disk.status()["bytes"] == summed(24) - own, disk.status())
    fio = load.Fio(lab, disk.nbd, mib=12, seconds=12)
    leave(lab, "ab", 24)
    if targets:
        time.sleep(3)
    thinwire(lab, "volume", "pause", of("kept"), *run_dir)
    refused(lab, "volume", "grow", of("kept"), *run_dir, says=["volume resume"])
    thinwire(lab, "volume", "resume", of("kept"), *run_dir)
    thinwire(lab, "volume", "scrub", of("kept"), *run_dir)
    said = thinwire(lab, "volume", "grow", of("kept"), *run_dir, timeout=90)
    fio.still_running("it has grown")
    check(f"kept has {summed(48) - own} bytes" in said.stdout, said.stdout)
    check(f"left (integrity) has {summed(48)} bytes, and had {summed(24)}" in said.stderr, said.stderr)
    until("the disk has grown", SOON, lambda: disk.status()["bytes"] == summed(48) - own)
    shown = [of for _, of in sizes(disk)]
    check(shown == [summed(48) - own, *[summed(48), 48 * MIB] * 2], f"all that it is made of is shown so: {shown}")
    check(fio.finish(90)["error"] == 0, "all that was written is there")
    # Over the border, by who comes now, and on to the end.
    source = lab.path("source.img")
    with open(source, "wb") as file:
        file.write(os.urandom(4 * MIB))
    border = summed(24) - own - 2 * MIB
    put = "import nbd, sys; h = nbd.NBD(); h.connect_uri(sys.argv[1]); data = open(sys.argv[2], 'rb').read(); at = int(sys.argv[3]); " \
        "[h.pwrite(data[i:i + 1048576], at + i) for i in range(0, len(data), 1048576)]; h.flush(); " \
        "assert b''.join(h.pread(1048576, at + i) for i in range(0, len(data), 1048576)) == data"
    run("/usr/bin/python3", "-c", put, disk.nbd, source, str(border), timeout=60)
    # Behind the old end of the part.
    if not targets:
        add_rot(lab, "a", 40)
        scrubbed = thinwire(lab, "volume", "scrub", "--wait", of("kept"), *run_dir, timeout=60).stdout
        check("1 mended" in scrubbed, scrubbed)
    scrubbed = thinwire(lab, "volume", "scrub", "--wait", of("kept"), *run_dir, timeout=60).stdout
    check("all as it was written" in scrubbed, scrubbed)
    disk.detach(timeout=40)
    now = content(lab, of("kept"), run_dir)
    with open(source, "rb") as file:
        check(now[border:border + 4 * MIB] == file.read(), "what was written over the border is there")
    check(not any(now[border + 4 * MIB:]), "nothing of what was left there is seen")
    # While nobody has it.
    leave(lab, "ab", 8)
    if targets:
        time.sleep(3)
    said = thinwire(lab, "volume", "grow", of("kept"), *run_dir, timeout=60)
    check(f"kept has {summed(56) - own} bytes" in said.stdout, said.stdout)
    larger = content(lab, of("kept"), run_dir)
    check(larger.startswith(now) and not any(larger[len(now):]), "it holds what it held")
    thinwire(lab, "bench", of("kept"), "--rw", "randrw", "--verify", "--runtime", "0.3", *run_dir)
    scrubbed = thinwire(lab, "volume", "scrub", of("kept"), *run_dir, timeout=60).stdout
    check("all as it was written" in scrubbed, scrubbed)
    for target in targets:
        target.stop()
    if targets:
        # Nobody serves the files any more. Labels and sums of each are its own, so what is read by way of those is compared.
        of = describe(lab, ("left", "integrity", [lab.path("a")]), ("right", "integrity", [lab.path("b")]), name="files.toml")
    legs = [content(lab, of(name), run_dir) for name in ("left", "right")]
    check(len(legs[0]) == len(legs[1]) == summed(56), f"{[len(leg) for leg in legs]} bytes")
    check(legs[0][own:] == legs[1][own:], "legs are alike")


def zeroed(lab, volume, run_dir):
    """How many bytes of what a volume with sums grows by are zeroed, of how many; both 0 while it does not grow."""
    shown = json.loads(thinwire(lab, "volume", "status", volume, "--json", *run_dir).stdout)["nodes"]
    work = next(node["work"] for node in shown if node["work"])
    return work["grown"] or 0, work["grows_by"]


@test(seconds=150)
def sums_whose_growth_is_cut_off_in_use(lab):
    """Who has a volume with sums open is killed while that grows: it has grown or it has not, holds what it held, all fits its sums, and the same again, by the next who has it, has it grow."""
    image(lab, "a", 16)
    of, mib, grown, under_way = describe(lab, ("sums", "integrity", [lab.path("a")])), 16, [], 0
    # So many small reads, one after the other, leave it a hundredth of what they get: some pieces in a second.
    reads = "import nbd, sys; h = nbd.NBD(); h.connect_uri(sys.argv[1]); [h.pread(4096, 0) for _ in iter(int, 1)]"
    thinwire(lab, "volume", "create", of("sums"), "--run-dir", lab.path("run"))
    thinwire(lab, "bench", of("sums"), "--rw", "randwrite", "--runtime", "0.2", "--run-dir", lab.path("run"))
    first = content(lab, of("sums"), ("--run-dir", lab.path("run")))
    for nth in range(7):
        run_dir = ("--run-dir", lab.path(f"run{nth}"))
        disk = Attachment(lab, of("sums"), name=f"sums{nth}", run=f"run{nth}", extra=("--take-over",))
        check(disk.status()["bytes"] == summed(mib), "it is as it was")
        was, mib = mib, mib + 24
        leave(lab, "a", 24)
        reader, is_seen = None, 1 <= nth <= 3
        if is_seen:
            thinwire(lab, "volume", "resume", "--pace", "1", of("sums"), *run_dir)
            reader = lab.start("initiator", "/usr/bin/python3", "-c", reads, disk.nbd, name=f"reads{nth}")
        began = lab.start("initiator", node.BIN, "volume", "grow", of("sums"), *run_dir, name=f"grow{nth}")
        if is_seen:
            # In the midst of it, earlier or later.
            until("some of it is zeroed", 40, lambda: nth * MIB <= (now := zeroed(lab, of("sums"), run_dir))[0] < now[1])
        else:
            # Who uses it has looked for what is larger for a second and a half before anything is written.
            time.sleep(0.2 if nth == 0 else 1.3 + nth * 0.05)
        under_way += began.running
        os.kill(disk.pid(), signal.SIGKILL)
        began.wait(30, expect=None)
        if reader is not None:
            reader.wait(30, expect=None)
        # Nobody has it open that this run folder knows.
        other = ("--run-dir", lab.path(f"other{nth}"))
        now = content(lab, of("sums"), other)
        check(len(now) in (summed(was), summed(mib)), f"{len(now)} bytes, and it had {summed(was)}")
        check(now.startswith(first) and now.count(0, len(first)) == len(now) - len(first), "it holds what it held, and nothing of what was left there")
        grown.append(len(now) > summed(was))
        check(not (is_seen and grown[-1]), "it has not grown of which some was to be zeroed")
        if not grown[-1]:
            again = Attachment(lab, of("sums"), name=f"again{nth}", run=f"again{nth}", extra=("--take-over",))
            said = thinwire(lab, "volume", "grow", of("sums"), "--run-dir", lab.path(f"again{nth}"), timeout=60).stdout
            check(said == f"sums has {summed(mib)} bytes\n", said)
            again.detach(timeout=40)
        scrubbed = thinwire(lab, "volume", "scrub", of("sums"), "--take-over", *other, timeout=60).stdout
        check("all as it was written" in scrubbed, scrubbed)
    check(under_way >= 4 and not grown[0], f"{under_way} were killed before they were through; grown: {grown}")
