"""Volumes with sums: what a disk loses, misdirects or changes is found, its block named, and mended where a mirror has it."""

import json
import os
import re

from harness import check
from node import image, refused, thinwire
from registry import test

MIB = 1 << 20
BLOCK = 4096
PART = 24 * MIB
# Behind the label: two bitmaps, and the sums of what is left.
SUMS = 2 * MIB
BLOCKS = (PART - SUMS) // BLOCK
SUM_BLOCKS = -(-BLOCKS // 513)
DATA = SUMS + SUM_BLOCKS * BLOCK
SIZE = (BLOCKS - SUM_BLOCKS) * BLOCK
# Of a mirror over it.
MIRRORED = DATA + 3 * MIB // 2


def run_dir(lab):
    return "--run-dir", lab.path("run")


def random_file(lab, name, mib):
    path = lab.path(name)
    with open(path, "wb") as file:
        file.write(os.urandom(mib * MIB))
    return path


def content(path):
    with open(path, "rb") as file:
        return file.read()


def describe(lab, name, parts, lies=""):
    """A mirror `kept` of volumes with sums, each over a volume that may lie, of which the first does."""
    text = ""
    for nth, part in enumerate(parts):
        text += f'[[volume]]\nname = "disk{nth}"\nkind = "lie"\nchildren = ["{part}"]\n{lies if nth == 0 else ""}\n'
        text += f'[[volume]]\nname = "sums{nth}"\nkind = "integrity"\nchildren = ["disk{nth}"]\n'
    if len(parts) > 1:
        children = ", ".join(f'"sums{nth}"' for nth in range(len(parts)))
        text += f'[[volume]]\nname = "kept"\nkind = "mirror"\nchildren = [{children}]\n'
    path = lab.path(name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def lies(begin, seed):
    return f"lost = 9\nmisdirected = 9\nflipped = 9\nseed = {seed}\nfrom = {begin}\n"


def scrubbed(lab, volume, exit_code=0):
    done = lab.run("initiator", *thinwire_argv(lab, "volume", "scrub", volume, "--json"), timeout=60, check_exit=False)
    check(done.returncode == exit_code, f"exit {done.returncode}: {done.stdout}{done.stderr}")
    (report,) = json.loads(done.stdout)["scrubs"]
    return report


def thinwire_argv(lab, *args):
    from node import BIN
    return (BIN, *args, *run_dir(lab))


def wrong_blocks(part, begin, source):
    """Which blocks of what was written stand otherwise on the part."""
    stands = content(part)[begin:begin + len(source)]
    return [at for at in range(0, len(source), BLOCK) if stands[at:at + BLOCK] != source[at:at + BLOCK]]


def stray_in(stray):
    """Where blocks lie that were hit behind what was written."""
    return [12 * MIB + at for at in stray]


@test(seconds=180)
def every_lie_below_a_mirror_is_mended(lab):
    """One leg's disk loses, misdirects and changes writes: a scrub finds all of that, and writes what the other leg has."""
    source = random_file(lab, "source.img", 12)
    for seed in 1, 2:
        parts = [image(lab, f"{seed}-{side}.img", PART // MIB) for side in ("left", "right")]
        honest = describe(lab, f"honest{seed}.toml", parts)
        made = thinwire(lab, "volume", "create", f"{honest}#kept", *run_dir(lab), timeout=40).stdout
        check(f"made sums0: integrity of {honest}#disk0, {SIZE} bytes" in made, made)
        thinwire(lab, "volume", "resync", f"{honest}#kept", *run_dir(lab), timeout=40)
        lying = describe(lab, f"lying{seed}.toml", parts, lies(MIRRORED, seed))
        thinwire(lab, "copy", source, f"{lying}#kept", *run_dir(lab), timeout=40)
        wrong = wrong_blocks(parts[0], MIRRORED, content(source))
        check(len(wrong) > 20, f"{len(wrong)} blocks were lied about")
        check(not wrong_blocks(parts[1], MIRRORED, content(source)), "the other disk does not lie")
        report = scrubbed(lab, f"{honest}#kept")
        check(report["bad"] == report["differing"] == report["unverified"] == 0, f"{report}")
        check(report["repaired"] >= len(wrong), f"{report} of {len(wrong)}")
        check(not wrong_blocks(parts[0], MIRRORED, content(source)), "not all was mended")
        again = scrubbed(lab, f"{honest}#kept")
        check(again["repaired"] == 0 and again["checked_bytes"] == again["bytes"], f"{again}")
        back = lab.path("back.img")
        thinwire(lab, "copy", f"{honest}#kept", back, *run_dir(lab), timeout=40)
        check(content(back)[:12 * MIB] == content(source), "it does not read as it was written")


@test(seconds=120)
def without_a_mirror_the_block_is_named(lab):
    """Of one disk that lies nothing wrong is ever read: each block is found, and named."""
    source = random_file(lab, "source.img", 12)
    part = image(lab, "part.img", PART // MIB)
    honest = describe(lab, "honest.toml", [part])
    thinwire(lab, "volume", "create", f"{honest}#sums0", *run_dir(lab), timeout=40)
    lying = describe(lab, "lying.toml", [part], lies(DATA, 7))
    thinwire(lab, "copy", source, f"{lying}#sums0", *run_dir(lab), timeout=40)
    wrong = wrong_blocks(part, DATA, content(source))
    stray = [at for at in wrong_blocks(part, DATA + 12 * MIB, bytes(SIZE - 12 * MIB))]
    report = scrubbed(lab, f"{honest}#sums0", 1)
    check(report["bad"] == len(wrong) + len(stray) and report["repaired"] == 0, f"{report}: {len(wrong)}, {len(stray)}")
    # Several are read at once: which of them are told is not certain.
    check(len(report["places"]) == 16 and set(report["places"]) <= set(wrong), f"{report['places']} of {wrong}")
    told = refused(lab, "copy", f"{honest}#sums0", lab.path("out.img"), *run_dir(lab), says=": the block does not fit its sum").stderr
    # Several are read at once: any of them may be told first.
    named = re.search(rf"read of {BLOCK} bytes at (\d+): the block", told)
    check(named and int(named[1]) in wrong + stray_in(stray), f"{told}: {wrong}")
    # Written again, it is as it should be.
    thinwire(lab, "copy", source, f"{honest}#sums0", *run_dir(lab), timeout=40)
    check(scrubbed(lab, f"{honest}#sums0", 1 if stray else 0)["bad"] == len(stray), "what was written again")


@test(seconds=120)
def one_byte_of_a_disk(lab):
    """A byte is changed, in a block that was written, in one that never was, in the sums: each is found."""
    source = random_file(lab, "source.img", 8)
    part = image(lab, "part.img", PART // MIB)
    path = describe(lab, "one.toml", [part])
    volume = f"{path}#sums0"
    thinwire(lab, "volume", "create", volume, *run_dir(lab), timeout=40)
    thinwire(lab, "copy", source, volume, "--verify", *run_dir(lab), timeout=40)
    dumped = thinwire(lab, "volume", "dump", f"lie:[{part}]", *run_dir(lab)).stdout
    check(f"of blocks of 4096 bytes, which begin at {DATA}; regions of {2 * MIB} bytes" in dumped, dumped)
    check(scrubbed(lab, volume)["bad"] == 0, "nothing is wrong")
    for place, block in (DATA + 5 * MIB + 77, 5 * MIB), (DATA + 19 * MIB, 19 * MIB), (SUMS + 8 * 300 + 2, 300 * BLOCK):
        with open(part, "r+b") as file:
            file.seek(place)
            before = file.read(1)
            file.seek(place)
            file.write(bytes([before[0] ^ 8]))
        report = scrubbed(lab, volume, 1)
        check((report["bad"], report["places"]) == (1, [block]), f"{place}: {report}")
        with open(part, "r+b") as file:
            file.seek(place)
            file.write(before)
    check(scrubbed(lab, volume)["bad"] == 0, "all is as it was")
    thinwire(lab, "bench", volume, "--rw", "randrw", "--verify", "--runtime", "1", *run_dir(lab))
    # Legs without sums: nobody knows which is right.
    legs = [image(lab, f"{name}.img", 16) for name in "ab"]
    plain = lab.path("plain.toml")
    with open(plain, "w", encoding="utf-8") as file:
        file.write(f'[[volume]]\nname = "two"\nkind = "mirror"\nchildren = ["{legs[0]}", "{legs[1]}"]\n')
    thinwire(lab, "volume", "create", f"{plain}#two", *run_dir(lab))
    thinwire(lab, "volume", "resync", f"{plain}#two", *run_dir(lab), timeout=40)
    with open(legs[1], "r+b") as file:
        file.seek(3 * MIB)
        file.write(b"x")
    before = [content(leg)[2 * MIB:] for leg in legs]
    report = scrubbed(lab, f"{plain}#two", 1)
    check((report["differing"], report["repaired"], report["places"]) == (1, 0, [3 * MIB // 2]), f"{report}")
    check([content(leg)[2 * MIB:] for leg in legs] == before, "nothing was to be written")


@test(seconds=60)
def what_is_killed_is_not_in_doubt(lab):
    """Who writes is killed, again and again: all that is read fits, and a scrub finds nothing wrong."""
    part = image(lab, "part.img", PART // MIB)
    path = describe(lab, "one.toml", [part])
    volume = f"{path}#sums0"
    thinwire(lab, "volume", "create", volume, *run_dir(lab), timeout=40)
    for _ in range(4):
        writer = lab.start("initiator", *thinwire_argv(lab, "bench", volume, "--rw", "randwrite", "--runtime", "20"), name="writer")
        lab.run("initiator", "sleep", "0.7")
        writer.kill(9)
        writer.wait(10, expect=None)
        report = scrubbed(lab, volume)
        check(report["bad"] == report["unverified"] == 0, f"{report}")
