"""Mirrors: legs that die, come back, are old copies, or were served apart; a gateway that is killed."""

import json
import os
import signal
import time

import load
import node
from harness import check, run, until
from node import Attachment, Target, image, refused, security_flags, thinwire, uri
from registry import test

LEG_MIB = 32
# Where data starts on a leg.
DATA_START = 1572864
# And its bitmaps, which end there.
BITMAPS_START = 1048576


def data_of(path):
    with open(path, "rb") as file:
        file.seek(DATA_START)
        return file.read()


# What a leg may take, so that who goes without it need not be waited for; 5 s if nothing is said.
SHORT = 2000


def describe(lab, legs, name="home", leg_timeout_ms=None):
    path = lab.path("pool.toml")
    with open(path, "w", encoding="utf-8") as file:
        children = ", ".join(f'"{leg}"' for leg in legs)
        file.write(f'[[volume]]\nname = "{name}"\nkind = "mirror"\nchildren = [{children}]\n')
        if leg_timeout_ms:
            file.write(f"leg_timeout_ms = {leg_timeout_ms}\n")
    return f"{path}#{name}"


def standings(lab, volume, *more):
    """What a resync leaves."""
    shown = thinwire(lab, "volume", "resync", volume, "--json", "--run-dir", lab.path("run"), *more, timeout=60)
    return [leg["standing"] for leg in json.loads(shown.stdout)["mirrors"][0]["legs"]]


def standing_clean(lab, images):
    """Nothing is left to copy: of an orderly end no region is open. What a leg says of regions stands behind its labels."""
    for path in images:
        with open(path, "rb") as file:
            file.seek(BITMAPS_START)
            for block in range((DATA_START - BITMAPS_START) // 4096):
                image = file.read(4096)
                check(not any(image[64:]), f"{path}: block {block} of its bitmaps says that something is open")


def written(lab, volume, seconds="0.5"):
    thinwire(lab, "bench", volume, "--rw", "randwrite", "--runtime", seconds, "--run-dir", lab.path("run"))


@test(seconds=120)
def a_leg_dies_and_comes_back(lab):
    """A mirror over two targets, attached: one target is gone for longer than a leg may take, while what is written is verified.
    When it is attached again the leg gets what it lacks."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "ab"]
    targets = [Target(lab, f"{name}={path}", name=host, over="raw", extra=("--state-dir", lab.path(f"state-{name}")))
               for name, host, path in zip("ab", ("node1", "node2"), images)]
    legs = [uri(lab, name, over="raw", node=host) for name, host in zip("ab", ("node1", "node2"))]
    volume = describe(lab, legs)
    made = thinwire(lab, "volume", "create", volume, "--run-dir", lab.path("run")).stdout
    check("mirror of" in made and "use it as" in made, made)
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror is copied to all legs")
    check(data_of(images[0]) == data_of(images[1]), "and they are alike")
    disk = Attachment(lab, volume, name="home", timeout=40)
    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB - 2, seconds=12)
    time.sleep(3)
    fio.still_running("its leg dies")
    targets[1].kill()
    fio.finish(90)
    until("the mirror goes on without it", 30, lambda: disk.status()["mirrors"][0]["legs"][1]["standing"] == "behind")
    check(disk.status()["state"] == "attached", disk.status())
    shown = disk.status()["mirrors"]
    check([leg["standing"] for leg in shown[0]["legs"]] == ["in sync", "behind"], shown)
    # In order, although a leg is dead that was dropped: nobody waits for it.
    disk.detach(timeout=40)
    check(data_of(images[0]) != data_of(images[1]), "what was written while it was gone is not there")
    # On record as behind: it may be missing when the mirror is attached, and comes when it is there.
    disk = Attachment(lab, volume, name="home", timeout=40, extra=("--wait",))
    check(disk.status()["state"] == "attached", disk.status())
    targets[1].start()
    until("the leg is in sync again", 40, lambda: [leg["standing"] for leg in disk.status()["mirrors"][0]["legs"]] == ["in sync"] * 2)
    disk.detach()
    check(data_of(images[0]) == data_of(images[1]), "it has what it lacked without being opened again")
    check(standings(lab, volume) == ["in sync"] * 2, "it has come back")
    check(data_of(images[0]) == data_of(images[1]), "and has what it lacked")


@test(seconds=150)
def legs_come_back_while_in_use(lab):
    """A stripe of two mirrors over four targets, attached: one target after the other is killed and started again while what is
    written is verified. Each leg comes back by itself, is copied to, and only then goes the next."""
    hosts = [f"node{n}" for n in range(1, 5)]
    images = [image(lab, f"{host}.img", LEG_MIB) for host in hosts]
    targets = [Target(lab, f"leg={path}", name=host, over="raw", extra=("--state-dir", lab.path(f"state-{host}")))
               for host, path in zip(hosts, images)]
    legs = [uri(lab, "leg", over="raw", node=host) for host in hosts]
    path, run_dir = lab.path("pool.toml"), ("--run-dir", lab.path("run"))
    with open(path, "w", encoding="utf-8") as file:
        for name, pair in ("one", legs[:2]), ("two", legs[2:]):
            children = ", ".join(f'"{leg}"' for leg in pair)
            file.write(f'[[volume]]\nname = "{name}"\nkind = "mirror"\nleg_timeout_ms = {SHORT}\nchildren = [{children}]\n')
        file.write('[[volume]]\nname = "both"\nkind = "stripe"\nlabels = true\nchildren = ["one", "two"]\n')
    volume = f"{path}#both"
    thinwire(lab, "volume", "create", volume, *run_dir)
    thinwire(lab, "volume", "resync", volume, *run_dir, timeout=60)
    disk = Attachment(lab, volume, name="both", timeout=40)
    fio = load.Fio(lab, disk.nbd, mib=2 * LEG_MIB - 8, seconds=35)

    def stand():
        return [leg["standing"] for mirror in disk.status()["mirrors"] for leg in mirror["legs"]]

    time.sleep(1)
    for nth, target in enumerate(targets):
        fio.still_running(f"kill {nth + 1}")
        target.kill()
        until("the leg is dropped", 30, lambda: stand()[nth] == "behind")
        target.start()
        # The next is the last of its mirror that has all data until then.
        until("all legs are in sync again", 60, lambda: stand() == ["in sync"] * 4)
    fio.finish(120)
    disk.detach(timeout=40)
    for pair in images[:2], images[2:]:
        check(data_of(pair[0]) == data_of(pair[1]), f"{pair} differ")
    shown = json.loads(thinwire(lab, "volume", "resync", volume, "--json", *run_dir, timeout=60).stdout)
    check([[leg["standing"] for leg in mirror["legs"]] for mirror in shown["mirrors"]] == [["in sync"] * 2] * 2, shown)


@test(seconds=120)
def a_gateway_over_a_mirror_is_killed(lab):
    """A mirror of local files that a target exports, killed twice while what is written is verified: nothing is lost, and the
    legs are alike in the end."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "abc"]
    volume = describe(lab, images)
    run_dir = ("--run-dir", lab.path("run"))
    thinwire(lab, "volume", "create", volume, *run_dir, side="target")
    target = Target(lab, f"home={volume}", over="raw", extra=run_dir)
    disk = Attachment(lab, uri(lab, "home", over="raw"), name="home", timeout=40, run="other")
    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB - 2, seconds=12)
    for nth in range(2):
        time.sleep(3)
        fio.still_running(f"kill {nth + 1}")
        target.kill()
        time.sleep(0.5)
        target.start(timeout=30)
    fio.finish(90)
    disk.detach()
    target.stop()
    check(data_of(images[0]) == data_of(images[1]) == data_of(images[2]), "they are alike")
    standing_clean(lab, images)
    check(standings(lab, volume) == ["in sync"] * 3, "all legs are there")
    check(data_of(images[0]) == data_of(images[1]) == data_of(images[2]), "they are alike")


@test(seconds=90)
def a_leg_is_missing(lab):
    """Nothing is served without a leg that may have newer data, unless that is said; from then on it is, and the leg gets what it
    lacks when it is back. A mirror none of whose legs can be used is refused with the reason."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "ab"]
    volume, run_dir = describe(lab, images), ("--run-dir", lab.path("run"))
    thinwire(lab, "volume", "create", volume, *run_dir)
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror")
    away = lab.path("away.img")
    os.rename(images[1], away)
    refused(lab, "bench", volume, "--rw", "randread", "--runtime", "0.2", *run_dir,
            says=["missing that may have newer data", "leg 0", "is in sync", "b.img", "--degraded"])
    check(standings(lab, volume, "--degraded") == ["in sync", "behind"], "it goes on with the other")
    written(lab, volume)
    os.rename(away, images[1])
    found = thinwire(lab, "volume", "check", *images, *run_dir).stdout
    check('"home" can be used' in found, found)
    check(standings(lab, volume) == ["in sync"] * 2, "it is back")
    check(data_of(images[0]) == data_of(images[1]), "with what it lacked")
    run("mkfs.ext4", "-q", "-F", images[0])
    os.remove(images[1])
    refused(lab, "bench", volume, "--rw", "randread", "--runtime", "0.2", *run_dir, says=["has no label"])


@test(seconds=90)
def legs_that_were_served_apart(lab):
    """Each of two legs was written without the other: refused, with both, until somebody says which is the truth."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "ab"]
    volume, run_dir = describe(lab, images), ("--run-dir", lab.path("run"))
    thinwire(lab, "volume", "create", volume, *run_dir)
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror")
    for gone in images[1], images[0]:
        os.rename(gone, lab.path("away.img"))
        stands = ["in sync", "behind"] if gone == images[1] else ["behind", "in sync"]
        check(standings(lab, volume, "--degraded") == stands, "one goes on")
        written(lab, volume)
        os.rename(lab.path("away.img"), gone)
    said = ["written apart", "a.img", "b.img", "resync --from"]
    told = refused(lab, "bench", volume, "--rw", "randread", "--runtime", "0.2", *run_dir, says=said).stderr
    dumped = json.loads(thinwire(lab, "volume", "dump", *images, "--json", *run_dir).stdout)["parts"]
    lacks = [part["label"]["bitmap"]["lacking"][1 - leg] << 20 for leg, part in enumerate(dumped)]
    check(all(0 < bytes_each <= LEG_MIB << 20 for bytes_each in lacks), dumped)
    most = (LEG_MIB << 20) - DATA_START
    without = [min(bytes_each, most) for bytes_each in lacks]
    check(f"at most {without[0]} bytes were written to leg 0 without leg 1, and {without[1]} to leg 1 without leg 0" in told, told)
    refused(lab, "volume", "check", *images, *run_dir, says=["cannot be used: 1 of 1"])
    truth = data_of(images[1])
    check(standings(lab, volume, "--from", "1") == ["in sync"] * 2, "somebody has said which")
    check(data_of(images[0]) == data_of(images[1]) == truth, "that is what both have")
    refused(lab, "volume", "resync", volume, "--from", "0", *run_dir, says=["open it without saying"])


@test(seconds=90)
def an_old_copy_of_a_leg(lab):
    """A leg is put back from an earlier copy: it is copied to as a whole, and never read."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "ab"]
    volume, run_dir = describe(lab, images), ("--run-dir", lab.path("run"))
    thinwire(lab, "volume", "create", volume, *run_dir)
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror")
    run("cp", "-a", images[1], lab.path("old.img"))
    written(lab, volume)
    newest = data_of(images[0])
    check(newest == data_of(images[1]) != data_of(lab.path("old.img")), "what was written is on both")
    os.rename(lab.path("old.img"), images[1])
    check(standings(lab, volume) == ["in sync"] * 2, "it is copied to")
    check(data_of(images[0]) == data_of(images[1]) == newest, "from the one that was there")
    run("cp", "-a", images[1], images[0])
    refused(lab, "bench", volume, "--rw", "randread", "--runtime", "0.2", *run_dir, says=["both say", "one is a copy"])


@test(seconds=60)
def a_reader_of_a_mirror(lab):
    """Who only reads writes nothing to any leg."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "ab"]
    volume, run_dir = describe(lab, images), ("--run-dir", lab.path("run"))
    thinwire(lab, "volume", "create", volume, *run_dir)
    whole = []
    for path in images:
        with open(path, "rb") as file:
            whole.append(file.read())
    thinwire(lab, "bench", volume, "--rw", "randread", "--runtime", "0.3", *run_dir)
    target = Target(lab, f"home={volume},ro", over="raw", extra=run_dir)
    thinwire(lab, "bench", uri(lab, "home", over="raw"), "--rw", "randread", "--runtime", "0.3", "--run-dir", lab.path("other"))
    target.stop()
    for path, before in zip(images, whole):
        with open(path, "rb") as file:
            check(file.read() == before, f"{path} was written")


@test(seconds=60)
def what_makes_no_mirror(lab):
    """Legs that do not fit, and descriptions that are none."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "ab"]
    small, run_dir = image(lab, "small.img", 1), ("--run-dir", lab.path("run"))
    refused(lab, "bench", f"mirror:[{images[0]},{images[1]}]", "--rw", "randread", "--runtime", "0.1", *run_dir,
            says=["labels = true"])
    refused(lab, "volume", "create", describe(lab, images[:1]), *run_dir, code=2, says=["takes 2 to 8 volumes, not 1"])
    refused(lab, "volume", "create", describe(lab, [images[0], small]), *run_dir, says=["small.img", "use a larger one"])
    volume = describe(lab, images)
    refused(lab, "bench", volume, "--rw", "randread", "--runtime", "0.1", *run_dir, says=["has no label"])
    thinwire(lab, "volume", "create", volume, *run_dir)
    refused(lab, "volume", "create", volume, *run_dir, says=["--force"])
    third = image(lab, "third.img", LEG_MIB)
    refused(lab, "bench", describe(lab, [*images, third]), "--rw", "randread", "--runtime", "0.1", *run_dir,
            says=["described with 3 legs, and has 2"])
    refused(lab, "volume", "resync", third, *run_dir, says=["no mirror in it"], code=2)


@test(seconds=90)
def a_stripe_of_mirrors(lab):
    """RAID-10 of local files: made at once while its mirrors are still being copied to, killed while what is written is verified, and
    alike in the end."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "abcd"]
    path, run_dir = lab.path("pool.toml"), ("--run-dir", lab.path("run"))
    with open(path, "w", encoding="utf-8") as file:
        for name, legs in ("one", images[:2]), ("two", images[2:]):
            children = ", ".join(f'"{leg}"' for leg in legs)
            file.write(f'[[volume]]\nname = "{name}"\nkind = "mirror"\nchildren = [{children}]\n')
        file.write('[[volume]]\nname = "both"\nkind = "stripe"\nlabels = true\nchildren = ["one", "two"]\n')
    volume = f"{path}#both"
    thinwire(lab, "volume", "create", volume, *run_dir, side="target")
    target = Target(lab, f"both={volume}", over="raw", extra=run_dir)
    disk = Attachment(lab, uri(lab, "both", over="raw"), name="both", timeout=40, run="other")
    fio = load.Fio(lab, disk.nbd, mib=2 * LEG_MIB - 8, seconds=10)
    time.sleep(4)
    fio.still_running("the kill")
    target.kill()
    time.sleep(0.5)
    target.start(timeout=30)
    fio.finish(90)
    disk.detach()
    target.stop()
    shown = json.loads(thinwire(lab, "volume", "resync", volume, "--json", *run_dir, timeout=60).stdout)
    check([[leg["standing"] for leg in mirror["legs"]] for mirror in shown["mirrors"]] == [["in sync"] * 2] * 2, shown)
    check(data_of(images[0]) == data_of(images[1]) and data_of(images[2]) == data_of(images[3]), "legs are alike")


@test(seconds=90)
def a_leg_that_others_use(lab):
    """A leg that is there and held by another writer is not missing: nobody goes on without it, whatever is said. Nor does somebody
    who has interrupted the opening while a leg was waited for."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "ab"]
    targets = [Target(lab, f"{name}={path}", name=host, over="raw", extra=("--state-dir", lab.path(f"state-{name}")))
               for name, host, path in zip("ab", ("node1", "node2"), images)]
    legs = [uri(lab, name, over="raw", node=host) for name, host in zip("ab", ("node1", "node2"))]
    volume, run_dir = describe(lab, legs), ("--run-dir", lab.path("run"))
    thinwire(lab, "volume", "create", volume, *run_dir)
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror")
    holder = Attachment(lab, legs[0], name="other", run="other")
    before = data_of(images[1])
    for more in (), ("--degraded",):
        refused(lab, "volume", "resync", volume, *run_dir, *more, says=["the target refused", "held by"])
    holder.detach()
    targets[1].kill()
    waits = lab.start("initiator", node.BIN, "volume", "resync", volume, "--degraded", *run_dir, *security_flags(lab, ["volume"]))
    time.sleep(2)
    check(waits.running, "it waits for the leg")
    waits.kill(signal.SIGINT)
    waits.wait(10, expect=1)
    check("interrupted" in waits.stderr, waits.stderr)
    targets[1].start()
    check(standings(lab, volume) == ["in sync"] * 2, "neither was dropped")
    check(data_of(images[1]) == before, "nothing was copied")


@test(seconds=60)
def a_volume_of_several_mirrors(lab):
    """What is decided is decided of one mirror, by its name."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "abcd"]
    path, run_dir = lab.path("pool.toml"), ("--run-dir", lab.path("run"))
    with open(path, "w", encoding="utf-8") as file:
        for name, legs in ("one", images[:2]), ("two", images[2:]):
            children = ", ".join(f'"{leg}"' for leg in legs)
            file.write(f'[[volume]]\nname = "{name}"\nkind = "mirror"\nchildren = [{children}]\n')
        file.write('[[volume]]\nname = "both"\nkind = "linear"\nchildren = ["one", "two"]\n')
    for name in "one", "two":
        thinwire(lab, "volume", "create", f"{path}#{name}", *run_dir)
        check(standings(lab, f"{path}#{name}") == ["in sync"] * 2, "a new mirror")
    os.remove(images[1])
    refused(lab, "volume", "resync", f"{path}#both", "--degraded", *run_dir, says=["several mirrors", "pool.toml#one"], code=2)
    check(standings(lab, f"{path}#one", "--degraded") == ["in sync", "behind"], "it goes on")
    found = thinwire(lab, "volume", "check", images[0], *run_dir).stdout
    check('"one" can be used' in found and "leg 1 is behind, missing" in found, found)
    found = thinwire(lab, "volume", "assemble", images[0], *run_dir)
    check("can be used without its leg 1" in found.stderr and "/not-found/one-leg-1" in found.stdout, found.stdout + found.stderr)
    shown = thinwire(lab, "volume", "dump", images[0], *run_dir).stdout
    check("leg 0 in sync; leg 1 behind, at" in shown, shown)
    # It was written since the leg was lost: its label, and where; one bit is turned over in the bitmap.
    thinwire(lab, "bench", f"{path}#one", "--rw", "randwrite", "--bs", "4k", "--runtime", "0.2", *run_dir)
    dumped = json.loads(thinwire(lab, "volume", "dump", images[0], "--json", *run_dir).stdout)["parts"][0]["label"]["bitmap"]
    regions = dumped["regions"]
    check(0 < dumped["lacking"][1] <= regions and dumped["lacking"][0] == dumped["bad_blocks"] == 0, dumped)
    with open(images[0], "r+b") as file:
        file.seek((1 << 20) + 4000)
        byte = file.read(1)
        file.seek((1 << 20) + 4000)
        file.write(bytes([byte[0] ^ 1]))
    shown = thinwire(lab, "volume", "dump", images[0], *run_dir).stdout
    check(f"leg 0 may lack something of {regions}; leg 1 may lack something of {regions}; 1 of its blocks are torn" in shown, shown)


@test(seconds=90)
def a_leg_is_replaced(lab):
    """By another disk, under its own name or another's, smaller than it was; the old one is worth nothing from then on. What holds something, has no room, or may
    have the newest data is refused, and nothing is changed."""
    images, run_dir = [image(lab, "a.img", LEG_MIB), image(lab, "b.img", 2 * LEG_MIB)], ("--run-dir", lab.path("run"))
    volume = describe(lab, images)
    thinwire(lab, "volume", "create", volume, *run_dir)
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror")
    written(lab, volume)
    truth = data_of(images[0])
    new, small = image(lab, "new.img", LEG_MIB), image(lab, "small.img", 8)
    replace = ("volume", "replace", volume)
    refused(lab, *replace, "1", small, *run_dir, says=["small.img", "has room for", "use a larger one"])
    refused(lab, *replace, "1", *run_dir, says=["b.img is leg 1"], code=2)
    refused(lab, *replace, "2", new, *run_dir, says=["has legs 0, 1"], code=2)
    refused(lab, *replace, "1", images[0], *run_dir, says=["are the same file"])
    refused(lab, "volume", "replace", new, "1", *run_dir, says=["is no mirror"], code=2)
    # In use it is not missing, nor to be taken over: who uses it is said, or that somebody does.
    disk = Attachment(lab, volume, name="home")
    said = refused(lab, *replace, "1", new, "--run-dir", lab.path("another"), says=["a.img is in use", "nothing was changed", "thinwire status"]).stderr
    check("--take-over" not in said and "--degraded" not in said and "missing" not in said, said)
    disk.detach()
    run("mkfs.ext4", "-q", "-F", new)
    refused(lab, *replace, "1", new, *run_dir, says=["ext4", "--force"])
    check(standings(lab, volume) == ["in sync"] * 2 and data_of(images[0]) == truth, "nothing has changed")
    # One that is there and sound: nothing is lost with it.
    done = thinwire(lab, *replace, "1", new, "--force", *run_dir, timeout=60)
    check("describe it as" in done.stderr and new in done.stderr, done.stderr)
    check(data_of(new)[:len(truth)] == truth, "it has all")
    both = describe(lab, [images[0], new])
    check(standings(lab, both) == ["in sync"] * 2, "and is a leg")
    written(lab, both)
    truth = data_of(images[0])
    # The old one in its place is copied to, and never read.
    volume = describe(lab, images)
    check(standings(lab, volume) == ["in sync"] * 2, "the old one")
    check(data_of(images[1])[:len(truth)] == truth, "as a whole")
    refused(lab, "volume", "check", images[0], images[1], new, *run_dir, says=["cannot be used"])
    # And one that is gone.
    os.remove(images[1])
    image(lab, "b.img", LEG_MIB)
    refused(lab, *replace, "1", *run_dir, says=["--degraded"])
    thinwire(lab, *replace, "1", "--degraded", *run_dir, timeout=60)
    check(standings(lab, volume) == ["in sync"] * 2, "there is another")
    check(data_of(images[1]) == data_of(images[0]) == truth, "that has all")


@test(seconds=90)
def a_reader_beside_a_writer(lab):
    """Rule 26: who reads beside a writer may read a leg that was dropped, so nobody does; nor after a writer that has ended without order, until the
    mirror was opened for writing."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "ab"]
    hosts = list(zip("ab", ("node1", "node2"), images))
    targets = [Target(lab, f"{name}={path}", name=host, over="raw", extra=("--state-dir", lab.path(f"state-{name}"))) for name, host, path in hosts]
    volume, run_dir = describe(lab, [uri(lab, name, over="raw", node=host) for name, host, _ in hosts]), ("--run-dir", lab.path("run"))
    reads = ("bench", volume, "--rw", "randread", "--runtime", "0.2", "--run-dir", lab.path("reader"))
    thinwire(lab, "volume", "create", volume, *run_dir)
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror")
    thinwire(lab, *reads)
    disk = Attachment(lab, volume, name="home", timeout=40)
    refused(lab, *reads, says=["is held by a writer", "read it where it is used"])
    # A part is no volume of several: it may be looked at.
    check('"home" can be used' in thinwire(lab, "volume", "check", *[uri(lab, name, over="raw", node=host) for name, host, _ in hosts],
                                           "--run-dir", lab.path("reader")).stdout, "it is sound")
    disk.detach()
    thinwire(lab, *reads)
    disk = Attachment(lab, volume, name="home", timeout=40)
    os.kill(disk.pid(), signal.SIGKILL)
    refused(lab, *reads, says=["is held by a writer"])
    check(standings(lab, volume) == ["in sync"] * 2, "it was opened for writing, and has ended in order")
    thinwire(lab, *reads)
    for target in targets:
        target.stop()


@test(seconds=90)
def a_leg_is_removed_while_its_mirror_is_used(lab):
    """Rules 3 and 22: the leg is off the record before the command says so, also if all is killed behind that; its attachment is given up, so another may write its export; and who uses
    the mirror notices nothing."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "abc"]
    Target(lab, *[f"{name}={path}" for name, path in zip("abc", images)], name="node1", over="raw", extra=("--state-dir", lab.path("state-legs")))
    legs, run_dir = [uri(lab, name, over="raw", node="node1") for name in "abc"], ("--run-dir", lab.path("run"))
    volume = describe(lab, legs)
    thinwire(lab, "volume", "create", volume, *run_dir)
    check(standings(lab, volume) == ["in sync"] * 3, "a new mirror")
    disk = Attachment(lab, volume, name="home", timeout=40)
    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB - 4, seconds=6)
    time.sleep(1)
    refused(lab, "volume", "remove", volume, "7", *run_dir, says=["no leg 7"])
    said = thinwire(lab, "volume", "remove", volume, legs[1], *run_dir)
    check("leg 1, removed" in said.stdout and "describe it as" in said.stderr, said.stdout + said.stderr)
    fio.still_running("a leg is removed")
    refused(lab, "volume", "remove", volume, "0", *run_dir, says=["has two legs"])
    # Nobody holds it any more.
    until("another may write it", 15, lambda: thinwire(lab, "bench", legs[1], "--rw", "randwrite", "--runtime", "0.1",
                                                     "--run-dir", lab.path("other"), expect=None).returncode == 0)
    fio.finish(90)
    pid = disk.pid()
    os.kill(pid, signal.SIGKILL)
    until("it is gone", 10, lambda: not os.path.exists(f"/proc/{pid}"))
    rest = describe(lab, [legs[0], legs[2]])
    check(standings(lab, rest, "--take-over") == ["in sync", "removed", "in sync"], "two are left")
    check(data_of(images[0]) == data_of(images[2]), "and are alike")
    refused(lab, "bench", describe(lab, legs), "--rw", "randread", "--runtime", "0.1", *run_dir, says=["has 2 by their labels"])


@test(seconds=150)
def legs_are_added_and_removed(lab):
    """A mirror of two legs gets a third: killed at any moment, the same again goes on, and the mirror is what it was. Then one goes, is never believed again, and another takes its
    number."""
    images, run_dir = [image(lab, f"{name}.img", LEG_MIB) for name in "abc"], ("--run-dir", lab.path("run"))
    volume = describe(lab, images[:2])
    thinwire(lab, "volume", "create", volume, *run_dir)
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror is copied to all legs")
    written(lab, volume)
    before = data_of(images[0])
    # Killed later and later, until the new leg has its label.
    for nth in range(60):
        began = lab.start("initiator", node.BIN, "volume", "add", volume, images[2], "--force", "--take-over", *run_dir, name=f"add{nth}")
        time.sleep(0.01 + nth * 0.02)
        began.kill(signal.SIGKILL).wait(10, expect=None)
        labels = json.loads(thinwire(lab, "volume", "dump", "--json", images[0], *run_dir).stdout)
        legs = [leg[0] for leg in labels["parts"][0]["label"]["mirror"]["legs"]]
        check(legs[:2] == ["in sync"] * 2 and len(legs) <= 3, legs)
        if legs[2:] in (["resyncing"], ["in sync"]):
            break
    else:
        check(False, "it never ends")
    # The same again goes on, and is through where there is nothing left to do: whether the leg is named by then or not.
    for legs in (images[:2], images[:2], images):
        again = thinwire(lab, "volume", "add", describe(lab, legs), images[2], "--take-over", *run_dir, timeout=60)
        check("leg 2 is in sync" in again.stdout and "describe it as" in again.stderr, again.stdout + again.stderr)
        check("is a leg of it already" in again.stderr, again.stderr)
    both = describe(lab, images)
    check(standings(lab, both, "--take-over") == ["in sync"] * 3, "the leg is added")
    check(data_of(images[0]) == before == data_of(images[2]), "it has all data, and nothing else was written")
    refused(lab, "volume", "remove", both, "7", *run_dir, says=["no leg 7"], code=2)
    thinwire(lab, "volume", "remove", both, images[1], *run_dir, timeout=60)
    refused(lab, "bench", both, "--rw", "randread", "--runtime", "0.1", *run_dir, says=["has 2 by their labels", "none that was removed"])
    without = describe(lab, [images[0], images[2]])
    written(lab, without)
    check(data_of(images[0]) == data_of(images[2]) != data_of(images[1]), "the removed leg gets nothing")
    refused(lab, "volume", "remove", without, "0", *run_dir, says=["has two legs"], code=2)
    # One that was removed is no leg, whatever its label says.
    refused(lab, "volume", "add", without, images[1], *run_dir, says=["it would be lost"])
    # In the place of another it is not believed.
    refused(lab, "bench", describe(lab, [images[1], images[2]]), "--rw", "randread", "--runtime", "0.1", *run_dir, says=["leg 0"])
    without = describe(lab, [images[0], images[2]])
    new = image(lab, "new.img", LEG_MIB)
    said = thinwire(lab, "volume", "add", without, new, *run_dir, timeout=60)
    check("leg 1 is in sync" in said.stdout and "describe it as" in said.stderr, said.stdout + said.stderr)
    check(standings(lab, describe(lab, [images[0], new, images[2]])) == ["in sync"] * 3, "one is added in its place")
    check(data_of(new) == data_of(images[0]), "and has all data")


@test(seconds=120)
def what_becomes_of_a_mirror_of_which_a_leg_was_removed(lab):
    """The last of its legs dies, and is replaced; and two of them are served apart, until somebody says which is the truth."""
    images, run_dir = [image(lab, f"{name}.img", LEG_MIB) for name in "abc"], ("--run-dir", lab.path("run"))
    volume = describe(lab, images)
    thinwire(lab, "volume", "create", volume, *run_dir)
    check(standings(lab, volume) == ["in sync"] * 3, "a new mirror")
    thinwire(lab, "volume", "remove", volume, "1", *run_dir, timeout=60)
    volume = describe(lab, [images[0], images[2]])
    written(lab, volume)
    # It is the third by its labels, and the second that is described.
    os.remove(images[2])
    new = image(lab, "new.img", LEG_MIB)
    done = thinwire(lab, "volume", "replace", volume, "2", new, "--degraded", *run_dir, timeout=60)
    check(f'["file:{images[0]}", "file:{new}"]' in done.stderr, done.stderr)
    volume = describe(lab, [images[0], new])
    check(standings(lab, volume) == ["in sync", "removed", "in sync"], "there is another")
    check(data_of(images[0]) == data_of(new), "that has all")
    for gone in new, images[0]:
        os.rename(gone, lab.path("away.img"))
        standings(lab, volume, "--degraded")
        written(lab, volume)
        os.rename(lab.path("away.img"), gone)
    refused(lab, "bench", volume, "--rw", "randread", "--runtime", "0.2", *run_dir, says=["written apart", "resync --from"])
    # Described as before that leg was removed, it says the same.
    refused(lab, "bench", describe(lab, [images[0], images[1], new]), "--rw", "randread", "--runtime", "0.2", *run_dir, says=["written apart", "resync --from"])
    volume = describe(lab, [images[0], new])
    truth = data_of(new)
    check(standings(lab, volume, "--from", "2") == ["in sync", "removed", "in sync"], "somebody has said which")
    check(data_of(images[0]) == data_of(new) == truth, "that is what both have")
