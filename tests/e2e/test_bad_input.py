"""What bad input gets: labels of later versions, parts that have become shorter, descriptions with words that nobody knows. Each a clear message and an exit code, not a byte changed, and a way
out that is walked."""

import json
import os
import struct
import time

import load
from harness import check, run, until
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test
from test_damage import COPIES, label_at
from test_mirrors import data_of, describe, standings
from test_returning import stand

MIB = 8
# Fields of a label: docs/format.md, "The label".
CHECKSUM, VERSION, INCOMPATIBLE, READ_ONLY_COMPATIBLE = 8, 12, 16, 24


def crc32c(data, table=[]):
    """Castagnoli's, as labels have it."""
    if not table:
        for byte in range(256):
            for _ in range(8):
                byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
            table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def sealed(label):
    """That label with the checksum that it should have."""
    label[CHECKSUM:VERSION] = bytes(4)
    struct.pack_into("<I", label, CHECKSUM, crc32c(label))
    return label


def as_later_programs_write(path, at, field, copies=COPIES):
    """In these copies of the label of a part a field is another, under a checksum that fits."""
    for offset in copies:
        label = bytearray(label_at(path, offset))
        check(sealed(bytearray(label)) == label, f"{path}: the checksum at {offset} is not that of docs/format.md")
        label[at:at + len(field)] = field
        with open(path, "r+b") as file:
            file.seek(offset)
            file.write(sealed(label))


def contents(paths):
    found = []
    for path in paths:
        with open(path, "rb") as file:
            found.append(file.read())
    return found


class Whole:
    """A volume with labels over files of this machine, in which something is written."""

    def __init__(self, lab, kind, parts, name="home"):
        self.lab, self.parts = lab, parts
        self.file, self.run_dir = lab.path(f"{name}.toml"), ("--run-dir", lab.path("run"))
        with open(self.file, "w", encoding="utf-8") as file:
            file.write(f'[[volume]]\nname = "{name}"\nkind = "{kind}"\nlabels = true\nchildren = {json.dumps(parts)}\n')
        self.volume = f"{self.file}#{name}"
        self.do("volume", "create", self.volume)
        if kind == "mirror":
            check(standings(lab, self.volume) == ["in sync"] * 2, "a new mirror")
        self.bench("randwrite")

    def do(self, *argv, **options):
        return thinwire(self.lab, *argv, *self.run_dir, timeout=60, **options)

    def bench(self, how="randrw", *more):
        return self.do("bench", self.volume, "--rw", how, "--runtime", "0.3", *more)

    def refuses(self, *says, name="x"):
        """Nobody opens it, to write or to put it together, each is told that, and no part changes by a byte."""
        before = contents(self.parts)
        target = Target(self.lab, f"home={self.volume}", name="gateway", extra=self.run_dir, start=False)
        for argv in (
                ("attach", self.volume, "--as", name, "--nbd", f"unix:{self.lab.path(f'{name}.sock')}"),
                ("bench", self.volume, "--rw", "randwrite", "--runtime", "0.3"),
                ("volume", "assemble", *self.parts),
        ):
            refused(self.lab, *argv, *self.run_dir, says=says)
        process = self.lab.start("target", *target.argv, name="refusing")
        process.wait(20, expect=1)
        check(all(word.lower() in process.stderr.lower() for word in says), process.stderr)
        check(contents(self.parts) == before, "somebody has written to a part")
        status = json.loads(self.do("status", "--json").stdout)
        check(status["attachments"] == [], f"something is left of it: {status}")

    def checked(self, expect, *says):
        done = self.do("volume", "check", self.volume, expect=expect)
        check(all(word in done.stdout for word in says), done.stdout)


LATER = {
    "version": {"at": VERSION, "field": b"\x02\x00", "says": "is of version 2 of the format, and this program knows 1"},
    "feature": {"at": INCOMPATIBLE, "field": b"\0" * 7 + b"\x80", "says": "incompatible features that this program does not know (bits 0x8000000000000000)"},
}
NEWER = "use the thinwire that wrote it, or a newer one"


@test(seconds=90, each=LATER)
def labels_of_later_versions(lab, at, field, says):
    """A part of a stripe has a label that a later program has written, in both copies or in the newest: nobody uses it or writes to it, and all say by what it is read. Put back it is what it was."""
    whole = Whole(lab, "stripe", [image(lab, f"{name}.img", MIB) for name in "ab"])
    second = whole.parts[1]
    dumped = json.loads(whole.do("volume", "dump", second, "--json").stdout)["parts"][0]["label"]["generation"]
    (before,) = contents([second])
    for copies in COPIES, COPIES[dumped % 2:][:1]:
        as_later_programs_write(second, at, field, copies)
        whole.refuses("b.img has a label at", says, NEWER)
        whole.checked(1, says, NEWER, '"home" cannot be used')
        refused(lab, "volume", "create", whole.volume, *whole.run_dir, says=["it would be lost", "--force"])
        with open(second, "r+b") as file:
            file.write(before)
    whole.checked(0)
    whole.bench("randrw", "--verify")


@test(seconds=90, each=LATER)
def a_leg_with_a_later_label(lab, at, field, says):
    """A leg of a mirror has a label that a later program has written: nothing is served without it unless that is said, and then nothing is written to it."""
    whole = Whole(lab, "mirror", [image(lab, f"{name}.img", MIB) for name in "ab"])
    second = whole.parts[1]
    (labelled,) = contents([second])
    as_later_programs_write(second, at, field)
    whole.refuses("leg 0", "is in sync", "b.img has a label at", says, NEWER, "--degraded")
    (later,) = contents([second])
    check(standings(lab, whole.volume, "--degraded") == ["in sync", "behind"], "it goes on without")
    whole.bench("randrw", "--verify")
    check(contents([second]) == [later], "nothing is written to what nobody here knows")
    with open(second, "r+b") as file:
        file.write(labelled)
    check(standings(lab, whole.volume) == ["in sync"] * 2, "what this program knows comes back")
    check(data_of(whole.parts[0]) == data_of(second), "with what it lacked")


@test(seconds=90, each={"stripe": {"kind": "stripe"}, "mirror": {"kind": "mirror"}})
def what_may_only_be_read(lab, kind):
    """A part has a feature in its label that allows reading to who does not know it: it is read, also of a target, and whoever wants to write is told by what."""
    whole = Whole(lab, kind, [image(lab, f"{name}.img", MIB) for name in "ab"])
    as_later_programs_write(whole.parts[1], READ_ONLY_COMPATIBLE, b"\0" * 7 + b"\x80")
    before = contents(whole.parts)
    says = "features that allow only reading to this program (bits 0x8000000000000000)"
    for argv in (
            ("attach", whole.volume, "--as", "x", "--nbd", f"unix:{lab.path('x.sock')}"),
            ("bench", whole.volume, "--rw", "randwrite", "--runtime", "0.3"),
            ("volume", "check", "--repair", whole.volume),
    ):
        done = thinwire(lab, *argv, *whole.run_dir, expect=1)
        told = done.stdout + done.stderr
        check("b.img" in told and "features that allow only reading to this program" in told and NEWER in told, told)
        check(argv[0] == "volume" or says in told and "open it to be read" in told, told)
    whole.checked(1, "features that allow only reading", NEWER)
    whole.bench("randread")
    disk = Attachment(lab, whole.volume, name="reader", extra=("--read-only",))
    done = lab.run("initiator", "qemu-io", "-r", "-f", "raw", "-c", "read 0 64k", disk.nbd)
    check("read 65536/65536 bytes" in done.stdout, done.stdout)
    done = lab.run("initiator", "qemu-io", "-f", "raw", "-c", "write 0 4k", disk.nbd, check_exit=False)
    check(done.returncode != 0 and "wrote" not in done.stdout, f"{done.stdout}{done.stderr}")
    disk.detach()
    target = Target(lab, f"home={whole.volume},ro", extra=whole.run_dir)
    thinwire(lab, "bench", uri(lab, "home"), "--rw", "randread", "--runtime", "0.3", "--run-dir", lab.path("other"))
    target.stop()
    check(contents(whole.parts) == before, "somebody has written to a part")


TOO_SHORT = ("b.img has 6291456 bytes, and its label says that data ends at 8388608", "make it as large as it was")


@test(seconds=90)
def a_part_that_became_shorter(lab):
    """The file of a part of a stripe is cut: nobody uses the stripe or writes to it. Made as large as it was it is another content, of which its owner says that it is the part all the same."""
    whole = Whole(lab, "stripe", [image(lab, f"{name}.img", MIB) for name in "ab"])
    run("truncate", "-s", "6M", whole.parts[1])
    whole.refuses(*TOO_SHORT)
    whole.checked(1, *TOO_SHORT, '"home" cannot be used')
    refused(lab, "volume", "adopt", whole.volume, *whole.run_dir, says=TOO_SHORT)
    run("truncate", "-s", "8M", whole.parts[1])
    whole.refuses("b.img", "thinwire volume adopt")
    whole.do("volume", "adopt", whole.volume)
    whole.bench("randrw", "--verify")
    whole.checked(0)
    # So short that there is no label.
    run("truncate", "-s", "500K", whole.parts[1])
    whole.refuses("b.img", "has 512000 bytes", "use a larger one")


@test(seconds=90)
def a_leg_that_became_shorter(lab):
    """The file of a leg is cut while nobody uses the mirror: it is named, and nothing is served without it unless that is said. Made as large as it was, and adopted, it gets all data."""
    whole = Whole(lab, "mirror", [image(lab, f"{name}.img", MIB) for name in "ab"])
    run("truncate", "-s", "6M", whole.parts[1])
    whole.refuses("leg 1 is missing", *TOO_SHORT, "--degraded")
    check(standings(lab, whole.volume, "--degraded") == ["in sync", "behind"], "it goes on without")
    check(os.stat(whole.parts[1]).st_size == 6 << 20, "nothing is written to it")
    whole.bench("randrw", "--verify")
    comes_back(lab, whole, whole.parts[1], MIB)


def comes_back(lab, whole, path, mib):
    """What a leg lost that was cut is lost, and who opens the mirror knows; as large as it was it is taken, as a new one, by whoever says so."""
    truth = next(data_of(part) for part in whole.parts if part != path)
    run("truncate", "-s", f"{mib}M", path)
    leg = whole.parts.index(path)
    check(standings(lab, whole.volume)[leg] == "behind", "it is not what it was")
    whole.checked(1, "it holds another content than when it got its label")
    whole.do("volume", "adopt", whole.volume)
    check(standings(lab, whole.volume) == ["in sync"] * 2, "it is taken")
    check([data_of(part) for part in whole.parts] == [truth] * 2, "with all that the other has")
    whole.checked(0)


@test(seconds=120, each={"first": {"leg": 0}, "second": {"leg": 1}})
def a_leg_becomes_shorter_in_use(lab, leg):
    """The file of a leg is cut under an attached mirror, while what is written is verified, and under one that has nothing to do: it is dropped, and the rest goes on and ends in order."""
    whole = Whole(lab, "mirror", [image(lab, f"{name}.img", 4 * MIB) for name in "ab"])
    wanted = ["behind" if nth == leg else "in sync" for nth in range(2)]
    disk = Attachment(lab, whole.volume, name="home")
    fio = load.Fio(lab, disk.nbd, mib=3 * MIB, seconds=6)
    time.sleep(2)
    fio.still_running("a leg is cut")
    run("truncate", "-s", "12M", whole.parts[leg])
    until("the mirror goes on without it", 10, lambda: stand(disk) == wanted)
    # However long it is by then.
    run("truncate", "-s", "32M", whole.parts[leg])
    fio.finish(60)
    load.verified(lab, disk.nbd, mib=3 * MIB, seed=2)
    check("became shorter while it was served" in disk.log() and f"leg {leg} of mirror" in disk.log(), disk.log())
    disk.detach()
    comes_back(lab, whole, whole.parts[leg], 32)
    disk = Attachment(lab, whole.volume, name="home")
    run("truncate", "-s", "12M", whole.parts[leg])
    until("nobody has to write for that", 10, lambda: stand(disk) == wanted)
    disk.detach()
    comes_back(lab, whole, whole.parts[leg], 32)


@test(seconds=150)
def a_leg_of_a_target_becomes_shorter(lab):
    """The image of a leg is cut while its target serves it: the mirror goes on without it, and ends in order. Made as large as it was, at a target that is started again, it is taken as what it is."""
    images = [image(lab, f"{name}.img", 4 * MIB) for name in "ab"]
    targets = [Target(lab, f"{name}={path}", name=f"node-{name}", over="raw", extra=("--state-dir", lab.path(f"state-{name}"), "--run-dir", lab.path(f"run-{name}")))
               for name, path in zip("ab", images)]
    volume, run_dir = describe(lab, [uri(lab, name, over="raw", node=f"node-{name}") for name in "ab"]), ("--run-dir", lab.path("run"))
    thinwire(lab, "volume", "create", volume, *run_dir)
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror")
    disk = Attachment(lab, volume, name="home", timeout=40)
    fio = load.Fio(lab, disk.nbd, mib=3 * MIB, seconds=6)
    time.sleep(2)
    fio.still_running("a leg is cut")
    run("truncate", "-s", "12M", images[1])
    fio.finish(60)
    until("the mirror goes on without it", 20, lambda: stand(disk) == ["in sync", "behind"])
    load.verified(lab, disk.nbd, mib=3 * MIB, seed=2)
    disk.detach(timeout=40)
    shown = json.loads(thinwire(lab, "status", "--json", "--run-dir", lab.path("run-b"), side="target").stdout)
    check("became shorter" in shown["targets"][0]["exports"][0]["fault"], shown)
    targets[1].stop()
    truth = data_of(images[0])
    run("truncate", "-s", "32M", images[1])
    targets[1].start()
    check(standings(lab, volume) == ["in sync", "behind"], "it is not what it was")
    thinwire(lab, "volume", "adopt", volume, *run_dir, timeout=40)
    check(standings(lab, volume) == ["in sync"] * 2, "it is taken")
    check([data_of(path) for path in images] == [truth] * 2, "with all that the other has")


@test(seconds=60)
def words_that_nobody_knows(lab):
    """A description with an unknown kind or key, or without a kind: named by file, line and word, whoever reads it, before anything is opened."""
    parts, file = [image(lab, f"{name}.img", MIB) for name in "ab"], lab.path("home.toml")
    before, run_dir = contents(parts), ("--run-dir", lab.path("run"))
    rows = (
        ('kind = "mirorr"\n', 5, ["`mirorr`: unknown kind; there are: ", "mirror"]),
        ('kind = "stripe"\nchnuk = "64K"\n', 6, ["unknown key `chnuk`, expected one of ", "`chunk`"]),
        ('kind = "stripe"\nchunk = 5000\n', 6, ["`chunk = 5000`", "multiple of 4096"]),
        ('kind = "linear"\nchunk = "64K"\n', 6, ["linear has no `chunk`"]),
        ("", 3, ["missing key `kind`"]),
    )
    for text, line, says in rows:
        with open(file, "w", encoding="utf-8") as out:
            out.write(f'# A disk.\n\n[[volume]]\nname = "home"\n{text}labels = true\nchildren = {json.dumps(parts)}\n')
        for argv in ("volume", "create"), ("volume", "create", "--force"), ("attach", "--as", "x", "--nbd", f"unix:{lab.path('x.sock')}"), ("volume", "check"):
            refused(lab, *argv, f"{file}#home", *run_dir, says=[f"home.toml:{line}: ", *says], code=2)
    check(contents(parts) == before and not os.path.exists(lab.path("x.sock")), "something was done")
    with open(file, "w", encoding="utf-8") as out:
        out.write(f'[[volume]]\nname = "home"\nkind = "stripe"\nchunk = "64K"\nlabels = true\nchildren = {json.dumps(parts)}\n')
    thinwire(lab, "volume", "create", f"{file}#home", *run_dir)
    thinwire(lab, "bench", f"{file}#home", "--rw", "randrw", "--verify", "--runtime", "0.3", *run_dir)
