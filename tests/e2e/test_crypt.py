"""Encrypted volumes: what stands on their parts, whose key opens them, and what they are made of and make."""

import json
import os
import signal
import time

import load
import node
from harness import check, until
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test
from test_returning import Legs, stand

MIB = 1 << 20
# Where data starts on a part.
DATA_START = MIB
# The two copies of its label.
LABELS = [(at, at + 4096) for at in (24 << 10, (512 + 24) << 10)]


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


def ids(lab, path):
    return thinwire(lab, "key", "id", path).stdout.split()


def named_in_labels(part, key_id):
    """Which copies of the label say that the key of this id opens it."""
    stands = content(part)
    return [bytes.fromhex(key_id) in stands[begin:end] for begin, end in LABELS]


@test(seconds=180)
def another_key(lab):
    """Another key opens a volume, and the one before nothing any more, in neither copy of its label; whatever is wrong is said before a byte is changed."""
    part, own, other = image(lab, "part.img", 16), key(lab, "own"), key(lab, "other")
    run_dir = ("--run-dir", lab.path("run"))
    volume, source = describe(lab, part, own), plain(lab, "plain.img", 8)
    thinwire(lab, "volume", "create", volume, *run_dir)
    copied(lab, source, volume)
    before, made = content(part), lab.path("keys/made")
    rekey = ("volume", "rekey", volume, *run_dir)
    for flags, says, code in (
            (("--new-key", made, "--old-key", other), "is encrypted with the key", 1),
            (("--to", lab.path("keys/none")), "no such file", 1),
            (("--to", own), "already, the newest of", 1),
            ((), "already, the newest of", 1),
            (("--new-key", other), "exists already", 1),
            (("--to", other, "--new-key", made), "cannot be used with", 2),
    ):
        refused(lab, *rekey, *flags, says=says, code=code)
        check(content(part) == before and not os.path.exists(made), f"{flags} has changed something")
    for readable, flags in (own, ("--new-key", made)), (other, ("--to", other)):
        os.chmod(readable, 0o644)
        refused(lab, *rekey, *flags, says="chmod 600")
        os.chmod(readable, 0o600)
        check(content(part) == before and not os.path.exists(made), "a key that others may read is taken")
    refused(lab, "volume", "rekey", part, "--to", other, *run_dir, says="has no key", code=2)
    told = json.loads(thinwire(lab, *rekey, "--new-key", made, "--json").stdout)["volume"]
    check(told == {"name": "vault", "before": ids(lab, own)[0], "key": ids(lab, made)[0], "file": made, "snapshots_of": []}, told)
    check(os.stat(made).st_mode & 0o777 == 0o600, "others may read the new key")
    check(named_in_labels(part, told["before"]) == [False] * 2, "a copy of the label has the key of before")
    check(named_in_labels(part, told["key"]) == [True] * 2, "both copies have the new key")
    check(content(part)[DATA_START:] == before[DATA_START:], "no block is written anew")
    refused(lab, "bench", volume, "--rw", "randread", *run_dir, says="is encrypted with the key")
    back, by_made = lab.path("back.img"), describe(lab, part, made, "made")
    copied(lab, by_made, back)
    check(content(back)[:8 * MIB] == content(source), "it reads as it was written")
    # Behind another in the same file, as a description stays as it is.
    thinwire(lab, "key", "new", "made", "--add", "--dir", lab.path("keys"))
    said = thinwire(lab, "volume", "rekey", by_made, *run_dir).stdout
    check(f"is opened by the key {ids(lab, made)[1]} of {made}, and no more by {told['key']}" in said, said)
    copied(lab, by_made, back)
    check(content(back)[:8 * MIB] == content(source), "it reads as it was written, still")
    # What lay on the disk before is opened by the key from before, as docs/volumes.md says.
    with open(part, "r+b") as file:
        file.write(before[:DATA_START])
    thinwire(lab, "bench", volume, "--rw", "randread", "--runtime", "0.2", *run_dir)


@test(seconds=120)
def another_key_while_it_is_used(lab):
    """Whoever has it open writes its labels, beside its users: an attachment, and a target whose exports go on under another key."""
    part, own, other = image(lab, "part.img", 16), key(lab, "own"), key(lab, "other")
    third, run_dir = key(lab, "third"), ("--run-dir", lab.path("run"))
    volume, source = describe(lab, part, own), plain(lab, "plain.img", 8)
    thinwire(lab, "volume", "create", volume, *run_dir)
    disk = Attachment(lab, volume, name="vault")
    before = content(part)[:DATA_START]
    refused(lab, "volume", "rekey", volume, "--to", third, "--old-key", other, *run_dir, says="is encrypted with the key")
    refused(lab, "volume", "rekey", volume, "--to", own, *run_dir, says="already, the newest of")
    check(content(part)[:DATA_START] == before, "something was written")
    lab.run("initiator", "nbdcopy", "--flush", source, disk.nbd)
    thinwire(lab, "volume", "rekey", volume, "--to", other, *run_dir)
    check(named_in_labels(part, ids(lab, own)[0]) == [False] * 2, "a copy of the label has the key of before")
    back = lab.path("back.img")
    lab.run("initiator", "nbdcopy", disk.nbd, back)
    check(content(back)[:8 * MIB] == content(source), "it reads as it was written")
    lab.run("initiator", "nbdcopy", "--flush", source, disk.nbd)
    disk.detach()
    refused(lab, "bench", volume, *run_dir, says="is encrypted with the key")
    volume = describe(lab, part, other)
    target = Target(lab, f"vault={volume}", over="raw", extra=(*run_dir, "--state-dir", lab.path("state")))
    remote = Attachment(lab, uri(lab, "vault", over="raw"), name="remote", timeout=40, run="other")
    thinwire(lab, "volume", "rekey", volume, "--to", third, *run_dir)
    lab.run("initiator", "nbdcopy", remote.nbd, back)
    check(content(back)[:8 * MIB] == content(source), "it reads as it was written")
    remote.detach(timeout=40)
    target.stop()
    refused(lab, "bench", volume, *run_dir, says="is encrypted with the key")
    copied(lab, describe(lab, part, third), back)
    check(content(back)[:8 * MIB] == content(source), "and behind that")


@test(seconds=150)
def a_leg_comes_back_behind_another_key(lab):
    """A mirror of two encrypted volumes at targets: one of them gets another key while it is used, which no file has that the mirror was opened by. Its leg is dropped then, and comes back all the same: whoever
    has the mirror knows what the label keeps by now. Opened anew it takes the other file."""
    legs, own, other = Legs(lab), key(lab, "own"), key(lab, "other")
    run_dir = legs.run_dir

    def described(*keys):
        path = lab.path("legs.toml")
        with open(path, "w", encoding="utf-8") as file:
            for name, leaf, of in zip(("left", "right"), legs.uris, keys):
                file.write(f'[[volume]]\nname = "{name}"\nkind = "crypt"\nchildren = ["{leaf}"]\nkey = "{of}"\n')
            file.write('[[volume]]\nname = "home"\nkind = "mirror"\nchildren = ["left", "right"]\n')
        return f"{path}#home"

    volume = described(own, own)
    for leg in "left", "right":
        thinwire(lab, "volume", "create", volume.replace("#home", f"#{leg}"), *run_dir)
    thinwire(lab, "volume", "create", volume, "--force", *run_dir, timeout=60)
    thinwire(lab, "volume", "resync", volume, *run_dir, timeout=60)
    disk = Attachment(lab, volume, name="home", timeout=40)
    until("all legs are in sync", 30, lambda: stand(disk) == ["in sync"] * 2)
    thinwire(lab, "volume", "rekey", volume.replace("#home", "#right"), "--to", other, *run_dir)
    fio = load.Fio(lab, disk.nbd, mib=8, seconds=8)
    legs.targets[1].kill()
    until("its leg is dropped", 30, lambda: stand(disk)[1] == "behind")
    legs.targets[1].start()
    until("it is back", 60, lambda: stand(disk) == ["in sync"] * 2)
    fio.finish(60)
    load.verified(lab, disk.nbd, mib=8)
    disk.detach(timeout=40)
    refused(lab, "bench", volume, *run_dir, says="is encrypted with the key", timeout=40)
    thinwire(lab, "bench", described(own, other), "--rw", "randread", "--runtime", "0.2", *run_dir, timeout=40)


@test(seconds=150)
def another_key_over_a_pool(lab):
    """Snapshots from before are opened by the key from before, and so is a volume that is rolled back to one; whoever changes the key is told, also while it is used."""
    own, other, third = (key(lab, name) for name in ("own", "other", "third"))
    run_dir, source = ("--run-dir", lab.path("run")), plain(lab, "plain.img", 8)
    pool = f'[[volume]]\nname = "pool"\nkind = "thin"\nchildren = ["{image(lab, "data.img", 64)}", "{image(lab, "metadata.img", 8)}"]\n'

    def by(path):
        """The same volume, by that key."""
        file = lab.path(f"by-{os.path.basename(path)}.toml")
        with open(file, "w", encoding="utf-8") as into:
            into.write(f'{pool}[[volume]]\nname = "vault"\nkind = "crypt"\nchildren = ["pool@home"]\nkey = "{path}"\n')
        return f"{file}#vault"

    volume, by_other, by_third = by(own), by(other), by(third)
    volumes = volume.replace("#vault", "#pool")

    def do(*argv, **options):
        return thinwire(lab, "volume", *argv, *run_dir, timeout=60, **options)

    do("create", volumes)
    do("create", f"{volumes}@home", "--size", "24M")
    do("create", volume)
    copied(lab, source, volume)
    do("snapshot", volume, "kept")
    told = do("rekey", volume, "--to", other)
    says = f"snapshots from before, of {volumes}@home, are opened by the key {ids(lab, own)[0]}, or by one still older: keep it as long as you keep them"
    check(says in told.stderr, told.stderr)
    disk = Attachment(lab, by_other, name="vault")
    told = json.loads(do("rekey", by_other, "--to", third, "--json").stdout)["volume"]
    check(told["snapshots_of"] == [f"{by_other.replace('#vault', '#pool')}@home"] and told["before"] == ids(lab, other)[0], told)
    disk.detach(timeout=40)
    back = lab.path("back.img")
    refused(lab, "copy", f"{by_third}@kept", back, *run_dir, says="is encrypted with the key")
    copied(lab, f"{volume}@kept", back)
    check(content(back)[:8 * MIB] == content(source), "the snapshot is as it was, by the key of its day")
    copied(lab, by_third, back)
    refused(lab, "copy", volume, back, *run_dir, says="is encrypted with the key")
    do("rollback", f"{volumes}@home", "home.kept")
    do("adopt", volume)
    refused(lab, "copy", by_third, back, *run_dir, says="is encrypted with the key")
    copied(lab, volume, back)
    check(content(back)[:8 * MIB] == content(source), "rolled back it is opened by that, too")


@test(seconds=180)
def another_key_that_is_cut_off(lab):
    """Killed at any moment, the one key opens it or the other does, and the same again leaves only the new one."""
    part, run_dir = image(lab, "part.img", 16), ("--run-dir", lab.path("run"))
    source, old = plain(lab, "plain.img", 4), key(lab, "key0")
    thinwire(lab, "volume", "create", describe(lab, part, old), *run_dir)
    copied(lab, source, describe(lab, part, old))
    took, met = 0.3, set()

    def by(path):
        return describe(lab, part, path, name=os.path.basename(path))

    for nth in range(1, 9):
        new = key(lab, f"key{nth}")
        volume = by(old)
        began = lab.start("initiator", node.BIN, "volume", "rekey", volume, "--to", new, *run_dir, name=f"rekey{nth}")
        if nth == 8:
            began.wait(30)
        else:
            time.sleep(took * nth / 8)
            took = took if began.running else took / 2
            began.kill(signal.SIGKILL).wait(10, expect=None)
        opens = []
        for path in old, new:
            opens.append(thinwire(lab, "copy", by(path), lab.path("read.img"), *run_dir, expect=None).returncode == 0)
        check(sorted(opens) == [False, True], f"by the old, and the new key: {opens}")
        met.add(opens[1])
        again = thinwire(lab, "volume", "rekey", volume, "--to", new, *run_dir, expect=None)
        check(again.returncode == 0 or opens[1] and "already, the newest of" in again.stderr, again.stderr)
        check(named_in_labels(part, ids(lab, old)[0]) == [False] * 2, "a copy of the label has the key of before")
        back, old = lab.path("back.img"), new
        copied(lab, by(new), back)
        check(content(back)[:4 * MIB] == content(source), "it reads as it was written")
    check(True in met, "it was never through")
