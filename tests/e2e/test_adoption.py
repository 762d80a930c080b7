"""Parts that are not what they were when they got their labels: refused, and taken when their owner says so."""

import json
import os
import shutil
import time

import node
from harness import check, run, until
from node import Attachment, Target, image, refused, security_flags, thinwire, uri
from registry import test
from test_crypt import content, key, plain

MIB = 1 << 20


def describe(lab, legs, own):
    """Encrypted, over a mirror, which has a name of its own."""
    path = lab.path("pool.toml")
    with open(path, "w", encoding="utf-8") as file:
        children = ", ".join(f'"{leg}"' for leg in legs)
        file.write(f'[[volume]]\nname = "both"\nkind = "mirror"\nchildren = [{children}]\n'
                   f'[[volume]]\nname = "vault"\nkind = "crypt"\nkey = "{own}"\nchildren = ["both"]\n')
    return f"{path}#both", f"{path}#vault"


def copied(lab, source, destination):
    thinwire(lab, "copy", source, destination, "--verify", "--run-dir", lab.path("run"), timeout=40)


@test(seconds=90)
def a_mirror_is_decided_on_below_a_label(lab):
    """Who decides that a mirror goes on without a leg decides it for what stands on it: by its own name that has to be said there, too;
    by the name of the volume on top it is said at once. Nothing is lost by either."""
    images, run_dir = [image(lab, f"{name}.img", 24) for name in "ab"], ("--run-dir", lab.path("run"))
    mirror, vault = describe(lab, images, key(lab, "own"))
    thinwire(lab, "volume", "create", vault, *run_dir)
    source, back = plain(lab, "plain.img", 14), lab.path("back.img")
    thinwire(lab, "volume", "resync", vault, *run_dir, timeout=60)
    copied(lab, source, vault)
    held = lab.path("held.img")
    for named, adopted in (mirror, True), (vault, False):
        os.rename(images[1], held)
        refused(lab, "copy", vault, back, *run_dir, says=["--degraded"])
        thinwire(lab, "volume", "resync", named, "--degraded", *run_dir, timeout=60)
        if adopted:
            refused(lab, "copy", vault, back, *run_dir, says=["thinwire volume adopt"])
            refused(lab, "volume", "adopt", images[0], *run_dir, says=["FILE.toml#NAME"], code=2)
            said = json.loads(thinwire(lab, "volume", "adopt", vault, "--json", *run_dir).stdout)
            check([(part["whole"], part["kind"], part["role"], part["is_renamed"]) for part in said["parts"]]
                  == [("vault", "crypt", 0, False)], said)
        copied(lab, vault, back)
        check(content(back)[:14 * MIB] == content(source), "nothing is lost")
        os.rename(held, images[1])
        thinwire(lab, "volume", "resync", mirror, *run_dir, timeout=60)
        said = thinwire(lab, "volume", "adopt", vault, *run_dir).stdout
        check("nothing is changed" in said, said)


@test(seconds=60)
def a_part_is_restored_without_its_name(lab):
    """A file that was copied without its attributes is refused, and taken when that is said; a twin is refused all the same."""
    images, run_dir = [image(lab, f"{name}.img", 16) for name in "ab"], ("--run-dir", lab.path("run"))
    path = lab.path("wide.toml")

    def volume(parts):
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'[[volume]]\nname = "wide"\nkind = "stripe"\nlabels = true\nchildren = {json.dumps(parts)}\n')
        return f"{path}#wide"

    wide = volume(images)
    thinwire(lab, "volume", "create", wide, *run_dir)
    source, back = plain(lab, "plain.img", 14), lab.path("back.img")
    copied(lab, source, wide)
    restored = lab.path("restored.img")
    shutil.copyfile(images[1], restored)
    wide = volume([images[0], restored])
    refused(lab, "copy", wide, back, *run_dir, says=["another volume than the one that got it", "thinwire volume adopt"])
    said = thinwire(lab, "volume", "adopt", wide, *run_dir).stdout
    check("restored.img is known by another identity" in said and 'part 1 (counted from 0) of "wide" (stripe)' in said, said)
    copied(lab, wide, back)
    check(content(back)[:14 * MIB] == content(source), "it reads as it was written")
    # What it was made of is an old copy by now, whatever is said.
    for parts in [images[0], images[1]], [images[1], restored]:
        refused(lab, "volume", "adopt", volume(parts), *run_dir, says=[path])


@test(seconds=60)
def the_last_good_leg_under_another_name(lab):
    """What is leg 0 by another name does not become leg 1, whatever is said."""
    images, run_dir = [image(lab, f"{name}.img", 24) for name in "ab"], ("--run-dir", lab.path("run"))
    Target(lab, f"a={images[0]}", name="node1", over="raw")
    legs, path = [uri(lab, "a", over="raw", node="node1"), images[1]], lab.path("pool.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'[[volume]]\nname = "home"\nkind = "mirror"\nchildren = {json.dumps(legs)}\n')
    home = f"{path}#home"
    thinwire(lab, "volume", "create", home, *run_dir)
    thinwire(lab, "volume", "resync", home, *run_dir)
    os.remove(images[1])
    mac = json.loads(lab.run("target", "ip", "-j", "link", "show", "eth1").stdout)[0]["address"].replace(":", "-")
    again = uri(lab, "a", over="raw", node=mac)
    refused(lab, "volume", "replace", home, "1", again, "--force", "--degraded", *run_dir, says=["is leg 0 of this mirror, by another name"])
    check('leg 0 in sync' in thinwire(lab, "volume", "dump", legs[0], *run_dir).stdout, "its label is there")


@test(seconds=90)
def two_wait_for_one_stripe(lab):
    """Two that wait for the same leaves do not end with half of them each."""
    images = [image(lab, f"{name}.img", 16) for name in "ab"]
    for name, host, path in zip("ab", ("node1", "node2"), images):
        Target(lab, f"{name}={path}", name=host, over="raw", extra=("--state-dir", lab.path(f"state-{name}")))
    legs = [uri(lab, name, over="raw", node=host) for name, host in zip("ab", ("node1", "node2"))]
    path = lab.path("wide.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'[[volume]]\nname = "wide"\nkind = "stripe"\nchildren = {json.dumps(legs)}\n')
    holders = [Attachment(lab, leg, name=f"holder{nth}", run=f"holder{nth}") for nth, leg in enumerate(legs)]
    waiting = [lab.start("initiator", node.BIN, "attach", f"{path}#wide", "--as", f"wide{nth}", "--foreground", "--wait", "--nbd", f"unix:{lab.path(f'face{nth}')}",
                         "--run-dir", lab.path(f"run{nth}"), *security_flags(lab, ["attach"])) for nth in range(2)]
    time.sleep(3)
    check(all(one.running for one in waiting), "both wait")
    for holder in holders:
        holder.detach()
    for _ in range(2):
        has = lambda: [one for one in waiting if one.running and one.stdout.strip()]
        until("one of them has all", 40, lambda: len(has()) >= 1)
        one = has()[0]
        waiting.remove(one)
        one.kill(2)
        one.wait(20)


@test(seconds=90)
def a_leg_that_was_rolled_back(lab):
    """A leg that a pool has rolled back says by its label that it is in sync, and lacks what was written since: adopted, it gets all of that."""
    run_dir = ("--run-dir", lab.path("run"))
    parts, path = [image(lab, "data.img", 96), image(lab, "metadata.img", 16)], lab.path("pool.toml")
    other = image(lab, "other.img", 24)
    for first in False, True:
        leg, name = f"leg{int(first)}", f"home{int(first)}"
        legs = [f"pool@{leg}", other] if first else [other, f"pool@{leg}"]
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'[[volume]]\nname = "pool"\nkind = "thin"\nchildren = {json.dumps(parts)}\n'
                       f'[[volume]]\nname = "{name}"\nkind = "mirror"\nchildren = {json.dumps(legs)}\n')
        pool, home = f"{path}#pool", f"{path}#{name}"
        if not first:
            thinwire(lab, "volume", "create", pool, *run_dir)
        thinwire(lab, "volume", "create", f"{pool}@{leg}", "--size", "24M", *run_dir)
        thinwire(lab, "volume", "create", home, "--force", *run_dir)
        thinwire(lab, "volume", "resync", home, *run_dir, timeout=60)
        source, back = plain(lab, f"plain{leg}.img", 14), lab.path("back.img")
        disk = Attachment(lab, home, face="file", name=name)
        thinwire(lab, "volume", "snapshot", f"{pool}@{leg}", f"before{leg}", *run_dir)
        run("dd", f"if={source}", f"of={disk.path}", "bs=1M", "conv=notrunc,fsync")
        disk.detach()
        thinwire(lab, "volume", "rollback", f"{pool}@{leg}", f"before{leg}", *run_dir)
        refused(lab, "copy", home, back, *run_dir, says=["thinwire volume adopt"])
        said = json.loads(thinwire(lab, "volume", "adopt", home, "--json", *run_dir).stdout)
        check([(part["kind"], part["role"]) for part in said["parts"]] == [("mirror", 1 - int(first))], said)
        thinwire(lab, "volume", "resync", home, *run_dir, timeout=60)
        copied(lab, home, back)
        check(content(back)[:14 * MIB] == content(source), "what was written since is there")
        for nth, place in enumerate((f"{pool}@{leg}", other)):
            copied(lab, place, lab.path(f"leg{nth}.img"))
        one, two = (content(lab.path(f"leg{nth}.img"))[-22 * MIB:] for nth in range(2))
        check(one == two, "the legs are the same")


@test(seconds=60)
def a_part_of_a_pool(lab):
    """What a pool stands on is adopted by the pool's name, and not by that of its volumes."""
    run_dir, path = ("--run-dir", lab.path("run")), lab.path("pool.toml")
    parts = [image(lab, "data.img", 48), image(lab, "metadata.img", 16)]

    def pool(data):
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'[[volume]]\nname = "pool"\nkind = "thin"\nchildren = {json.dumps([data, parts[1]])}\n')
        return f"{path}#pool"

    thinwire(lab, "volume", "create", pool(parts[0]), *run_dir)
    thinwire(lab, "volume", "create", f"{pool(parts[0])}@home", "--size", "16M", *run_dir)
    source, back, restored = plain(lab, "plain.img", 14), lab.path("back.img"), lab.path("restored.img")
    copied(lab, source, f"{pool(parts[0])}@home")
    shutil.copyfile(parts[0], restored)
    home = f"{pool(restored)}@home"
    refused(lab, "copy", home, back, *run_dir, says=["thinwire volume adopt"])
    refused(lab, "volume", "adopt", home, *run_dir, says=["name", "#pool"], code=2)
    said = thinwire(lab, "volume", "adopt", pool(restored), *run_dir).stdout
    check("restored.img is known by another identity" in said and 'part 0 (counted from 0) of "pool" (thin)' in said, said)
    copied(lab, home, back)
    check(content(back)[:14 * MIB] == content(source), "it reads as it was written")
