"""`volume check` of volumes of all kinds, down to what they stand on: labels and bitmaps that are torn are named, and written anew by whoever may."""

import json
import shutil

from harness import check, until
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test
from test_mirrors import data_of
from wide_volumes import Wide

COPIES = (24 << 10, (512 + 24) << 10)
# Where the bitmap of a leg begins, and the first copy of that of a part with sums.
BITMAP = SUMS = 1 << 20
MIB = 8


def tear(path, at):
    """Bytes in the middle of a block change."""
    with open(path, "r+b") as file:
        file.seek(at + 2000)
        file.write(b"rotten")


def label_at(path, at):
    """One of the copies of the label of a part, as bytes."""
    with open(path, "rb") as file:
        file.seek(at)
        return file.read(4096)


class Checked:
    """A description of volumes, and what a check finds."""

    def __init__(self, lab, text):
        self.lab, self.file, self.run_dir = lab, lab.path("tree.toml"), ("--run-dir", lab.path("run"))
        with open(self.file, "w", encoding="utf-8") as file:
            file.write(text)

    def of(self, name):
        return f"{self.file}#{name}"

    def do(self, *argv, **options):
        return thinwire(self.lab, "volume", *argv, *self.run_dir, timeout=60, **options)

    def generation(self, path):
        """Of the newest label of a part."""
        return json.loads(self.do("dump", path, "--json").stdout)["parts"][0]["label"]["generation"]

    def found(self, name, expect, *how):
        return json.loads(self.do("check", self.of(name), "--json", *how, expect=expect).stdout)

    def states(self, name, expect, *how):
        return [part["state"] for part in self.found(name, expect, *how)["parts"]]


def volume(name, kind, *children, more=""):
    listed = ", ".join(f'"{child}"' for child in children)
    return f'[[volume]]\nname = "{name}"\nkind = "{kind}"\nlabels = true\n{more}children = [{listed}]\n'


@test(seconds=120)
def of_a_tree_all_parts_are_checked(lab):
    """A stripe over a mirror of parts with sums, and over a mirror: `volume check` of the stripe looks at all parts of all of them. A torn copy of a label, and torn blocks of both kinds of
    bitmaps, are named, with what still serves; --repair writes them anew, and nothing else changes for who reads."""
    legs = [image(lab, f"{name}.img", MIB) for name in "abcd"]
    tree = Checked(lab, "".join((
        volume("sums0", "integrity", legs[0]), volume("sums1", "integrity", legs[1]), volume("left", "mirror", "sums0", "sums1"),
        volume("right", "mirror", *legs[2:]), volume("both", "stripe", "left", "right"))))
    tree.do("create", tree.of("both"))
    tree.do("resync", tree.of("both"))
    thinwire(lab, "bench", tree.of("both"), "--rw", "randwrite", "--runtime", "0.3", *tree.run_dir)
    tree.do("resync", tree.of("both"))
    found = tree.found("both", 0)
    check([part["name"] for part in found["parts"]] == ["sums0", "sums1", "left", "left", "right", "right", "both", "both"], found)
    check([whole["name"] for whole in found["volumes"]] == ["sums0", "sums1", "left", "right", "both"] and found["pools"] == [], found)
    check(all(whole["can_be_used"] for whole in found["volumes"]), found)
    check(all(part["bitmap"] for part in found["parts"][2:6]) and all(part["sums"] for part in found["parts"][:2]), found)
    thinwire(lab, "copy", tree.of("both"), lab.path("before.raw"), *tree.run_dir)
    before = open(lab.path("before.raw"), "rb").read()

    # The older copy of the label of a leg: they are written by turns.
    tear(legs[2], COPIES[(tree.generation(legs[2]) + 1) % 2])
    check(tree.states("both", 1) == ["sound"] * 4 + ["serves"] + ["sound"] * 3, tree.found("both", 1))
    done = refused(lab, "volume", "check", tree.of("both"), *tree.run_dir, says=["not sound: 1 of 8; volumes that cannot be used: 0 of 5"])
    check("the other copy of its label" in done.stdout and '"both" can be used' in done.stdout, done.stdout)
    refused(lab, "volume", "check", "--repair", legs[2], *tree.run_dir, says=["as FILE.toml#NAME"], code=2)
    check(tree.states("both", 0, "--repair") == ["sound"] * 8, "it is written anew")
    written = tree.generation(legs[2])
    check(tree.states("both", 0, "--repair") == ["sound"] * 8 and tree.generation(legs[2]) == written, "there was nothing to do")

    # A block of the bitmap of a leg, and both copies of one of a part with sums.
    tear(legs[3], BITMAP)
    found = tree.found("both", 1)
    check([part["state"] for part in found["parts"]] == ["sound"] * 5 + ["serves"] + ["sound"] * 2, found)
    check(found["parts"][5]["bitmap"]["bad_blocks"] == 1 and "bitmap that are torn: 1" in found["parts"][5]["why"], found)
    check(tree.states("both", 0, "--repair") == ["sound"] * 8, "it is written anew")
    for at in SUMS, SUMS + (512 << 10):
        tear(legs[0], at)
    found = tree.found("both", 1)
    check(found["parts"][0]["state"] == "serves" and found["parts"][0]["sums"]["bad_blocks"] == 1, found)
    found = tree.found("both", 0, "--repair")
    check(found["parts"][0]["state"] == "sound" and found["parts"][0]["sums"]["bad_blocks"] == 0, found)
    check("no copy is whole: 1" in found["parts"][0]["repaired"], found)
    # Of which one copy is torn the other stands: that is told, and no damage.
    tear(legs[1], SUMS)
    found = tree.found("both", 0)
    check(found["parts"][1]["sums"]["torn_copies"] == 1 and found["parts"][1]["state"] == "sound", found)
    check("the next write there writes them anew" in tree.do("check", tree.of("both")).stdout, "it is told")
    check(tree.states("both", 0, "--repair") == ["sound"] * 8, "there is nothing to repair")
    tree.do("resync", tree.of("both"))
    thinwire(lab, "copy", "--verify", tree.of("both"), lab.path("after.raw"), *tree.run_dir)
    check(open(lab.path("after.raw"), "rb").read() == before, "all is as it was")
    check(data_of(legs[2]) == data_of(legs[3]), "the legs are alike")

    # What cannot be known is not made up.
    for at in COPIES:
        tear(legs[2], at)
    found = tree.found("both", 1, "--repair")
    check(found["parts"][4]["state"] == "unusable", found)


@test(seconds=120)
def what_is_in_use_is_not_checked(lab):
    """Who has a volume open is named, and the labels of what is written at a target are said to be of a moment; of a key and of a pool below it is said what its labels say."""
    legs = [image(lab, f"{name}.img", MIB) for name in "ab"]
    Target(lab, f"a={legs[0]}", name="node-a", over="raw", extra=("--run-dir", lab.path("run-a")))
    far = uri(lab, "a", over="raw", node="node-a")
    tree = Checked(lab, volume("home", "stripe", far, legs[1]))
    tree.do("create", tree.of("home"))
    check(tree.states("home", 0) == ["sound"] * 2, "as it was made")
    disk = Attachment(lab, tree.of("home"), name="home", timeout=40)
    for how in (), ("--repair",):
        refused(lab, "volume", "check", tree.of("home"), *how, *tree.run_dir, says=["attachment home has", "changes meanwhile", "detach it"])
    # Elsewhere nobody knows of the attachment, but the target tells of it.
    done = thinwire(lab, "volume", "check", far, "--json", "--run-dir", lab.path("other"), expect=None)
    (part,) = json.loads(done.stdout)["parts"]
    check(part["held"] and part["name"] == "home", part)
    disk.detach()
    check(tree.states("home", 0) == ["sound"] * 2, "nobody has it")
    missing = lab.path("gone.img")
    gone = Checked(lab, volume("home", "linear", legs[1], missing))
    found = gone.found("home", 1)
    check([part["state"] for part in found["parts"]] == ["sound", "unusable"] and not found["volumes"][0]["can_be_used"], found)


@test(seconds=90)
def of_a_tree_over_pools_these_are_checked_too(lab):
    """A mirror over a volume of a pool and a file: the pool's metadata is checked with it, and named where it is damaged."""
    images = [image(lab, f"{name}.img", MIB * 2) for name in ("data", "metadata", "leg")]
    tree = Checked(lab, volume("pool", "thin", *images[:2]) + volume("home", "mirror", "pool@part", images[2]))
    tree.do("create", tree.of("pool"))
    tree.do("create", tree.of("pool@part"), "--size", "8M")
    tree.do("create", tree.of("home"))
    tree.do("resync", tree.of("home"))
    found = tree.found("home", 0)
    check([part["name"] for part in found["parts"]] == ["pool", "pool", "home", "home"], found)
    check([pool["sound"] for pool in found["pools"]] == [True], found)
    said = tree.do("check", tree.of("home")).stdout
    check(f"{tree.of('pool')} is sound" in said, said)


@test(seconds=120)
def what_a_torn_label_may_have_said_is_not_written_over(lab):
    """The newest label of a pool rots while the pool is not at rest: it is named, and nobody who repairs what stands on the pool, or the pool, writes over it unless told to. A pool that is damaged is
    repaired before what stands on it, and what is only read is not repaired."""
    images = [image(lab, f"{name}.img", MIB * 2) for name in ("data", "metadata", "leg")]
    readonly = '[[volume]]\nname = "still"\nkind = "readonly"\nchildren = ["home"]\n'
    tree = Checked(lab, volume("pool", "thin", *images[:2]) + volume("home", "mirror", "pool@part", images[2]) + readonly)
    tree.do("create", tree.of("pool"))
    tree.do("create", tree.of("pool@part"), "--size", "8M")
    tree.do("create", tree.of("home"))
    tree.do("resync", tree.of("home"))
    refused(lab, "volume", "check", "--repair", tree.of("still"), *tree.run_dir, says=["is only read", "name the volume that it stands on"], code=2)
    target = Target(lab, f"home={tree.of('home')}", name="node-a", over="raw", extra=tree.run_dir)
    first = [label_at(images[1], at) for at in COPIES]
    thinwire(lab, "bench", uri(lab, "home", over="raw", node="node-a"), "--rw", "randwrite", "--runtime", "0.3", "--run-dir", lab.path("other"))
    until("two commits", 30, lambda: all(label_at(images[1], at) != before for at, before in zip(COPIES, first)))
    target.kill()
    newest = COPIES[tree.generation(images[1]) % 2]
    tear(images[1], newest)
    before = open(images[1], "rb").read()
    for name in "home", "pool":
        refused(lab, "volume", "check", tree.of(name), *tree.run_dir, says=["sound"])
        refused(lab, "volume", "check", "--repair", tree.of(name), *tree.run_dir, says=["is not repaired", "may be missing", "then say --force"])
        check((tree.found(name, 1) if name == "pool" else tree.found(name, 1)["parts"][1])[{"pool": "labels"}.get(name, "why")], "it is told")
    check(open(images[1], "rb").read() == before, "nothing was written")
    found = tree.found("home", 0, "--repair", "--force", "--take-over")
    check("may be missing" in found["parts"][1]["repaired"] and found["parts"][1]["state"] == "sound", found)
    check("repaired" not in found["parts"][0] and tree.states("home", 0) == ["sound"] * 4, found)

    # A pool that is damaged: nothing is written through it.
    metadata = bytearray(open(images[1], "rb").read())
    for at in range(1 << 20, len(metadata), 4096):
        if any(metadata[at:at + 4096]):
            metadata[at + 2000:at + 2006] = b"rotten"
    tear(images[2], COPIES[(tree.generation(images[2]) + 1) % 2])
    with open(images[1], "r+b") as file:
        file.write(metadata)
    refused(lab, "volume", "check", "--repair", tree.of("home"), *tree.run_dir, says=["see to that one first: thinwire volume check --repair", "#pool"])
    check(open(images[1], "rb").read() == metadata, "nothing was written")


@test(seconds=90)
def what_cannot_be_read_is_named(lab):
    """Of a disk with sectors that cannot be read the part is named, with what that means for its bitmap, and all others are looked at."""
    images = [image(lab, f"{name}.img", MIB) for name in "abcde"]

    def text(*from_bytes):
        sick = "".join(f'[[volume]]\nname = "bad{nth}"\nkind = "error"\n{more}children = ["{images[nth]}"]\n' for nth, more in enumerate(from_bytes))
        sums = volume("sums0", "integrity", "bad1") + volume("sums1", "integrity", "bad2")
        return sick + sums + volume("left", "mirror", "bad0", images[3]) + volume("both", "stripe", "left", "sums0", "sums1", images[4])

    made = Checked(lab, text("", "", ""))
    made.do("create", made.of("both"))
    made.do("resync", made.of("both"))
    check(made.states("both", 0) == ["sound"] * 8, "as it was made")
    fails = [f"reads = 1\nfrom = {at}\n" for at in (BITMAP, SUMS, SUMS + (512 << 10))]
    tree = Checked(lab, text(*fails))
    found = tree.found("both", 1)
    parts = {part["volume"].rsplit("#", 1)[-1].rsplit("/", 1)[-1]: part for part in found["parts"]}
    check("blocks of its bitmap that cannot be read: 1" in parts["bad0"]["why"] and parts["bad0"]["bitmap"]["bad_blocks"] == 1, found)
    check(parts["bad1"]["state"] == "unusable" and "neither copy can be read: 1" in parts["bad1"]["why"], found)
    check(parts["bad2"]["state"] == "serves" and "copy 1 of its bitmap that cannot be read: 1" in parts["bad2"]["why"], found)
    check(parts["bad2"]["sums"]["open"] == parts["bad2"]["sums"]["regions"], found)
    check(parts["d.img"]["state"] == parts["e.img"]["state"] == "sound", found)


@test(seconds=90)
def use_elsewhere_is_no_damage(lab):
    """A pool that somebody uses, and what stands on it, is said to be in use and was not checked; that is not told as damage."""
    images = [image(lab, f"{name}.img", MIB * 2) for name in ("data", "metadata", "leg")]
    tree = Checked(lab, volume("pool", "thin", *images[:2]) + volume("home", "stripe", "pool@part", images[2]))
    tree.do("create", tree.of("pool"))
    for name in "part", "other":
        tree.do("create", tree.of(f"pool@{name}"), "--size", "8M")
    tree.do("create", tree.of("home"))
    disk = Attachment(lab, tree.of("pool@other"), name="other", timeout=40)
    found = tree.found("home", 0)
    check([pool["in_use"] for pool in found["pools"]] == [True], found)
    check([part["state"] for part in found["parts"]][2:] == ["in use", "sound"] and found["parts"][2]["held"], found)
    said = tree.do("check", tree.of("home")).stdout
    check("is in use, and was not checked" in said and "not checked, as somebody uses it: " in said, said)
    busy = [part["volume"] for part in found["parts"] if part["state"] == "in use"] + [pool["pool"] for pool in found["pools"]]
    check(found["not_checked"] == busy and found["volumes"][-1]["in_use"], found)
    disk.detach()
    found = tree.found("home", 0)
    check(found["pools"][0]["sound"] and not found["pools"][0]["in_use"] and [part["state"] for part in found["parts"]] == ["sound"] * 4, found)


@test(seconds=90)
def what_is_in_use_excuses_nothing_else(lab):
    """A volume of which a part is in use, and another is missing, or there twice, is said to be of no use."""
    images = [image(lab, f"{name}.img", MIB) for name in "abc"]
    tree = Checked(lab, volume("home", "stripe", *images))
    tree.do("create", tree.of("home"))
    twin = lab.path("twin.img")
    shutil.copy2(images[0], twin)
    target = Target(lab, f"c={images[2]}", name="node-c", over="raw", extra=("--run-dir", lab.path("run-c")))

    def found(expect, *parts):
        return json.loads(tree.do("check", *parts, "--json", expect=expect).stdout)

    for whole in found(0, *images), tree.found("home", 0):
        check([part["state"] for part in whole["parts"]] == ["sound"] * 2 + ["in use"] and whole["volumes"][0]["in_use"], whole)
        check(len(whole["not_checked"]) == 1 and whole["not_checked"][0].endswith("c.img"), whole)
    # Two are missing, and one is in use; and two are there that are one.
    for wrong in found(1, images[0], images[2]), found(1, *images[:2], twin, images[2]):
        (home,) = wrong["volumes"]
        check(not home["can_be_used"] and not home["in_use"], wrong)
        check({part["state"] for part in wrong["parts"][:-1]} == {"sound"} and wrong["parts"][-1]["state"] == "in use", wrong)
    refused(lab, "volume", "check", images[0], images[2], *tree.run_dir, says=["volumes that cannot be used: 1 of 1"])
    target.stop()
    check(found(0, *images)["not_checked"] == [], "nobody has any of it")


@test(seconds=90)
def a_snapshot_over_pools_is_checked(lab):
    """A snapshot of a stripe over volumes of two pools: the snapshots that it is made of are its parts; it is only read, and not repaired."""
    wide = Wide(lab, False)
    wide.do("snapshot", wide.name, "one")
    found = json.loads(wide.do("check", f"{wide.name}@one", "--json").stdout)
    check([part["state"] for part in found["parts"]] == ["sound"] * 6, found)
    check([whole["can_be_used"] for whole in found["volumes"]] == [True] * 3 and [pool["sound"] for pool in found["pools"]] == [True] * 2, found)
    refused(lab, "volume", "check", "--repair", f"{wide.name}@one", *wide.run_dir, says=["is only read"], code=2)
    refused(lab, "volume", "check", f"{wide.pools[0]}@part", *wide.run_dir, says=["with all of its volumes and snapshots"], code=2)
