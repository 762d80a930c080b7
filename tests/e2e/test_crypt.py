"""Encrypted volumes: what stands on their parts, whose key opens them, and what they are made of and make."""

import os

from harness import check
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test

MIB = 1 << 20
# Where data starts on a part.
DATA_START = MIB


def key(lab, name):
    """A key file."""
    thinwire(lab, "key", "new", name, "--dir", lab.path("keys"))
    return os.path.join(lab.path("keys"), name)


def describe(lab, part, with_key, name="vault", more=""):
    path = lab.path(f"{name}.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'[[volume]]\nname = "{name}"\nkind = "crypt"\nchildren = ["{part}"]\nkey = "{with_key}"\n{more}')
    return f"{path}#{name}"


def content(path):
    with open(path, "rb") as file:
        return file.read()


def plain(lab, name, mib):
    """A file in which each block says which it is."""
    path = lab.path(name)
    with open(path, "wb") as file:
        for block in range(mib * 256):
            file.write((b"block %010d of plain text, again and again. " % block * 100)[:4096])
    return path


def copied(lab, source, destination):
    thinwire(lab, "copy", source, destination, "--verify", "--run-dir", lab.path("run"), timeout=40)


@test(seconds=120)
def made_used_and_opened_again(lab):
    """What is written is noise on the part, and itself by way of the volume, also when that is opened again; of both sizes of blocks."""
    source = plain(lab, "plain.img", 14)
    for block, name in (512, "small"), (4096, "large"):
        part, own = image(lab, f"{name}.img", 16), key(lab, f"{name}-key")
        volume = describe(lab, part, own, name, f"block = {block}\n")
        made = thinwire(lab, "volume", "create", volume, "--run-dir", lab.path("run")).stdout
        check(f"made {name}: crypt of file:{part}, {15 * MIB} bytes" in made, made)
        copied(lab, source, volume)
        stands = content(part)[DATA_START:]
        check(b"plain text" not in content(part), "the part can be read")
        check(len({stands[at:at + 16] for at in range(0, 14 * MIB, 16)}) > 14 * MIB // 16 - 16, "blocks look alike")
        back = lab.path(f"{name}-back.img")
        copied(lab, volume, back)
        check(content(back)[:14 * MIB] == content(source), "it reads as it was written")
        thinwire(lab, "bench", volume, "--rw", "randrw", "--verify", "--runtime", "0.5", "--run-dir", lab.path("run"))


@test(seconds=120)
def only_its_own_key_opens_it(lab):
    """Another key, one that is missing or that others may read, a volume without one: refused with what to do, before anything is written."""
    part, own, other = image(lab, "part.img", 16), key(lab, "own"), key(lab, "other")
    run_dir = ("--run-dir", lab.path("run"))
    volume = describe(lab, part, own)
    thinwire(lab, "volume", "create", volume, *run_dir)
    copied(lab, plain(lab, "plain.img", 8), volume)
    before = content(part)
    for name, why in (other, "is encrypted with the key"), (lab.path("none"), "no such file"):
        wrong = describe(lab, part, name, "wrong")
        for command in ("bench", wrong, "--rw", "randwrite"), ("copy", wrong, lab.path("out.img")):
            refused(lab, *command, *run_dir, says=why)
            check(content(part) == before, f"{command} has written something")
    os.chmod(own, 0o644)
    refused(lab, "bench", volume, *run_dir, says="chmod 600")
    check(content(part) == before, "it was written")
    os.chmod(own, 0o600)
    # A file of several keys: the one that it was made with is among them.
    with open(other, "a", encoding="utf-8") as file:
        file.write(content(own).decode())
    thinwire(lab, "bench", describe(lab, part, other, "both"), "--rw", "randread", "--runtime", "0.2", *run_dir)
    shown = thinwire(lab, "volume", "assemble", part, *run_dir).stdout
    check('kind = "crypt"' in shown and 'key = "NAME"' in shown, shown)
    dumped = thinwire(lab, "volume", "dump", part, *run_dir).stdout
    check(thinwire(lab, "key", "id", own).stdout.strip() + ", for blocks of 4096 bytes" in dumped, dumped)
    check("can be used" in thinwire(lab, "volume", "check", part, *run_dir).stdout, "its label is sound")
    # What is described in another way.
    path = lab.path("keyless.toml")
    for text, why in (
            (f'kind = "crypt"\nchildren = ["{part}"]\n', "needs a key"),
            (f'kind = "linear"\nchildren = ["{part}"]\nkey = "{own}"\n', "takes no key"),
    ):
        with open(path, "w", encoding="utf-8") as file:
            file.write('[[volume]]\nname = "x"\n' + text)
        refused(lab, "bench", f"{path}#x", *run_dir, says=why, code=2)


@test(seconds=120)
def over_and_under_mirrors(lab):
    """An encrypted volume over a mirror, and a mirror over two of them, of which one is written while it is a target's."""
    own, legs = key(lab, "own"), [image(lab, f"{name}.img", 24) for name in "abcd"]
    run_dir = ("--run-dir", lab.path("run"))
    source = plain(lab, "plain.img", 12)
    path = lab.path("both.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"""
[[volume]]
name = "copies"
kind = "mirror"
children = ["{legs[0]}", "{legs[1]}"]
[[volume]]
name = "vault"
kind = "crypt"
children = ["copies"]
key = "{own}"
[[volume]]
name = "left"
kind = "crypt"
children = ["{legs[2]}"]
key = "{own}"
[[volume]]
name = "right"
kind = "crypt"
children = ["{legs[3]}"]
key = "{own}"
[[volume]]
name = "twice"
kind = "mirror"
children = ["left", "right"]
""")
    for name in "vault", "twice":
        volume = f"{path}#{name}"
        if name == "twice":
            for leg in "left", "right":
                thinwire(lab, "volume", "create", f"{path}#{leg}", *run_dir)
            refused(lab, "volume", "create", volume, *run_dir, says="--force")
        # What is new and encrypted is noise, which nobody takes for blank.
        force = ["--force"] if name == "twice" else []
        thinwire(lab, "volume", "create", volume, *force, *run_dir, timeout=40)
        thinwire(lab, "volume", "resync", volume, *run_dir, timeout=40)
        copied(lab, source, volume)
        back = lab.path(f"{name}.back")
        copied(lab, volume, back)
        check(content(back)[:12 * MIB] == content(source), f"{name} reads as it was written")
    # Another key is found out before the mirror below has written its labels.
    before = [content(leg) for leg in legs[:2]]
    wrong = lab.path("wrong.toml")
    with open(wrong, "w", encoding="utf-8") as file:
        file.write(content(path).decode().replace(own, key(lab, "other")))
    for command in ("bench", f"{wrong}#vault", "--rw", "randwrite"), ("attach", f"{wrong}#vault", "--file", lab.path("vault")):
        refused(lab, *command, *run_dir, says="is encrypted with the key", timeout=40)
        check([content(leg) for leg in legs[:2]] == before, f"{command} has written something")
    check(content(legs[0])[2 * MIB:] == content(legs[1])[2 * MIB:], "legs below are alike")
    check(content(legs[2])[4 * MIB:] != content(legs[3])[4 * MIB:], "each has a key of its own")
    check(not any(b"plain text" in content(leg) for leg in legs), "no leg can be read")
    target = Target(lab, f"vault={path}#vault", over="raw", extra=(*run_dir, "--state-dir", lab.path("state")))
    disk = Attachment(lab, uri(lab, "vault", over="raw"), name="vault", timeout=40, run="other")
    disk.detach(timeout=40)
    target.stop()
