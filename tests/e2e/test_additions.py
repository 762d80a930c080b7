"""Legs that are added to mirrors in use: of an attachment and of a target, of files and of exports, over modules, refused, cut off and killed."""

import json
import os
import signal
import time

import load
import node
from harness import check, until
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test
from test_mirrors import DATA_START, LEG_MIB, SHORT, data_of, describe, standing_clean, standings, written
from test_returning import Legs, over_sums, stand
from test_volumes import WRITE


def run_dir_of(lab):
    return ("--run-dir", lab.path("run"))


def killed(disk):
    pid = disk.pid()
    os.kill(pid, signal.SIGKILL)
    until("it is gone", 10, lambda: not os.path.exists(f"/proc/{pid}"))


def rows(lab, path):
    """How the legs stand by the label of one."""
    shown = json.loads(thinwire(lab, "volume", "dump", "--json", path, *run_dir_of(lab)).stdout)
    return [leg[0] for leg in shown["parts"][0]["label"]["mirror"]["legs"]]


def check_alike(images):
    first = data_of(images[0])
    check(all(data_of(path) == first for path in images[1:]), "the legs are alike")


@test(seconds=150)
def an_export_is_added_while_its_mirror_is_used(lab):
    """Rules 3, 6 and 18: an attached mirror of two exports gets a third while what is written is verified. It is there at once, comes back by itself when its target was killed, and is as the
    others bit by bit; who opens the mirror has to name it. What is not blank, too small or a leg already is refused, and nothing is written there."""
    legs, run_dir = Legs(lab, "abc"), run_dir_of(lab)
    volume = legs.made(describe(lab, legs.uris[:2], leg_timeout_ms=SHORT))
    small = image(lab, "small.img", LEG_MIB - 8)
    Target(lab, f"d={small}", name="node-d", over="raw", extra=("--state-dir", lab.path("state-d"), "--run-dir", lab.path("run-d")))
    disk = Attachment(lab, volume, name="home", timeout=40)
    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB - 4, seconds=18)
    time.sleep(1)
    with open(legs.images[2], "r+b") as file:
        file.write(b"somebody's bytes")
    refused(lab, "volume", "add", volume, legs.uris[2], *run_dir, says=["it would be lost"])
    refused(lab, "volume", "add", volume, uri(lab, "d", over="raw", node="node-d"), "--force", *run_dir, says=["has room for", "use a larger one"])
    refused(lab, "volume", "add", volume, "stripe:[/srv/x,/srv/y]", *run_dir, says=["while nobody uses the mirror"], code=2)
    check(stand(disk) == ["in sync"] * 2 and len(stand(disk)) == 2, "nothing has changed")
    with open(legs.images[2], "rb") as file:
        check(file.read(16) == b"somebody's bytes", "nothing was written there")
    fio.still_running("a leg is added")
    said = thinwire(lab, "volume", "add", volume, legs.uris[2], "--force", *run_dir, timeout=60)
    check("that is overwritten" in said.stderr and "describe it as" in said.stderr, said.stderr)
    check("leg 2, in sync" in said.stdout, said.stdout)
    fio.still_running("a leg was added")
    check(stand(disk) == ["in sync"] * 3, stand(disk))
    again = thinwire(lab, "volume", "add", volume, legs.uris[2], "--json", *run_dir)
    check([leg["standing"] for leg in json.loads(again.stdout)["nodes"] if leg["leg"] is not None] == ["in sync"] * 3, again.stdout)
    # It is one as any other.
    legs.targets[2].kill()
    until("its leg is dropped", 30, lambda: stand(disk)[2] == "behind")
    legs.targets[2].start()
    until("it is back", 60, lambda: stand(disk) == ["in sync"] * 3)
    fio.finish(120)
    disk.detach(timeout=40)
    check_alike(legs.images)
    standing_clean(lab, legs.images)
    refused(lab, "bench", volume, "--rw", "randread", "--runtime", "0.1", *run_dir, says=["is described with 2 legs, and has 3"])
    check(standings(lab, describe(lab, legs.uris)) == ["in sync"] * 3, "and named from now on")


@test(seconds=120)
def files_and_modules_are_added(lab):
    """A gateway over a mirror of files gets a third, which is described by a path of the folder of whoever says so; and an attached mirror of volumes with sums gets another. Then a leg of
    each goes, and another comes."""
    run_dir = run_dir_of(lab)
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "abcd"]
    volume = describe(lab, images[:2])
    thinwire(lab, "volume", "create", volume, *run_dir, side="target")
    target = Target(lab, f"home={volume}", over="raw", extra=run_dir)
    disk = Attachment(lab, uri(lab, "home", over="raw"), name="home", timeout=40, run="other")
    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB - 4, seconds=12)
    time.sleep(1)
    said = thinwire(lab, "volume", "add", volume, images[2], *run_dir, timeout=60, side="target")
    check("leg 2, in sync" in said.stdout and "describe it as" in said.stderr, said.stdout + said.stderr)
    fio.still_running("a file was added")
    thinwire(lab, "volume", "remove", volume, "0", *run_dir, side="target")
    said = thinwire(lab, "volume", "add", volume, images[3], *run_dir, timeout=60, side="target")
    check("leg 3, in sync" in said.stdout, said.stdout)
    fio.finish(90)
    disk.detach()
    target.stop()
    check_alike(images[1:])
    check(data_of(images[0]) != data_of(images[1]), "the removed leg gets nothing")
    check(standings(lab, describe(lab, images[1:])) == ["removed"] + ["in sync"] * 3, "all are there")

    legs = Legs(lab, "xyz")
    path = over_sums(lab, legs.uris)
    text = open(path.split("#")[0], encoding="utf-8").read()
    with open(path.split("#")[0], "w", encoding="utf-8") as file:
        file.write(text.replace(', "sums2"]', "]"))
    legs.made(path)
    thinwire(lab, "volume", "create", path.replace("#home", "#sums2"), *run_dir)
    disk = Attachment(lab, path, name="sums", timeout=40)
    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB // 2, seconds=8)
    said = thinwire(lab, "volume", "add", path, path.replace("#home", "#sums2"), *run_dir, timeout=60)
    check("leg 2, in sync" in said.stdout, said.stdout)
    fio.finish(90)
    said = thinwire(lab, "volume", "scrub", "--wait", "--pace", "100", path, *run_dir, timeout=60).stdout
    check("all as it was written" in said, said)
    disk.detach()


@test(seconds=90)
def a_file_that_is_removed_again_is_free(lab):
    """A file that was added to a mirror in use and removed again is let go of: others may have it, and so may the mirror."""
    images, run_dir = [image(lab, f"{name}.img", LEG_MIB) for name in "abc"], run_dir_of(lab)
    volume = describe(lab, images[:2])
    thinwire(lab, "volume", "create", volume, *run_dir)
    disk = Attachment(lab, volume, name="home", timeout=40)
    said = thinwire(lab, "volume", "add", volume, images[2], *run_dir, timeout=60)
    check("leg 2, in sync" in said.stdout, said.stdout)

    def is_free():
        done = thinwire(lab, "bench", images[2], "--rw", "randread", "--runtime", "0.1", "--run-dir", lab.path("other"), expect=None)
        return done.returncode == 0

    check(not is_free(), "the mirror has it")
    thinwire(lab, "volume", "remove", volume, "2", *run_dir, timeout=60)
    until("nobody has it", 20, is_free)
    check(stand(disk)[:2] == ["in sync"] * 2, stand(disk))
    said = thinwire(lab, "volume", "add", volume, images[2], "--force", *run_dir, timeout=60)
    check("leg 2, in sync" in said.stdout, said.stdout)
    # By name: what is shown of the one before is called so, too.
    thinwire(lab, "volume", "remove", volume, images[2], *run_dir, timeout=60)
    until("nobody has it again", 20, is_free)
    said = thinwire(lab, "volume", "add", volume, images[2], "--force", *run_dir, timeout=60)
    check("leg 2, in sync" in said.stdout, said.stdout)
    disk.detach(timeout=40)
    check_alike(images)


@test(seconds=240)
def additions_are_cut_off(lab):
    """Rule 6: the command is killed later and later, and whoever has the mirror too. The same again goes on, whether somebody has it by then or not, whether the leg is described or not, and
    nothing that was written is lost."""
    images, run_dir = [image(lab, f"{name}.img", LEG_MIB) for name in "abc"], run_dir_of(lab)
    volume = describe(lab, images[:2])
    thinwire(lab, "volume", "create", volume, *run_dir)
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror")
    written(lab, volume)
    before, met = data_of(images[0]), set()
    disk = Attachment(lab, volume, name="home")
    # The command alone.
    for nth in range(40):
        began = lab.start("initiator", node.BIN, "volume", "add", volume, images[2], "--take-over", *run_dir, name=f"add{nth}")
        time.sleep(0.005 + nth * 0.01)
        began.kill(signal.SIGKILL if nth % 2 else signal.SIGINT).wait(10, expect=None)
        met.add(len(stand(disk)))
        if stand(disk)[2:] in (["resyncing"], ["in sync"]):
            break
    else:
        check(False, "it never ends")
    check(3 in met, met)
    said = thinwire(lab, "volume", "add", volume, images[2], "--take-over", *run_dir, timeout=60)
    check("leg 2, in sync" in said.stdout and stand(disk) == ["in sync"] * 3, said.stdout)
    disk.detach()
    check_alike(images)
    check(data_of(images[2]) == before, "nothing else was written")

    # And who has it.
    rest, three = describe(lab, images[:2]), None
    thinwire(lab, "volume", "remove", describe(lab, images), "2", *run_dir, timeout=60)
    for nth in range(12):
        rest = describe(lab, images[:2])
        disk = Attachment(lab, rest, name="home", extra=("--take-over",))
        began = lab.start("initiator", node.BIN, "volume", "add", rest, images[2], "--force", "--take-over", *run_dir, name=f"both{nth}")
        time.sleep(0.01 + nth * 0.02)
        killed(disk)
        began.wait(30, expect=None)
        legs = rows(lab, images[0])
        check(legs[:2] == ["in sync"] * 2, legs)
        # Not in use: the same again, whatever is described.
        three = describe(lab, images[:2] if nth % 2 else images)
        again = thinwire(lab, "volume", "add", three, images[2], "--force", "--take-over", *run_dir, timeout=60)
        check("leg 2 is in sync" in again.stdout, again.stdout + again.stderr)
        three = describe(lab, images)
        check(standings(lab, three) == ["in sync"] * 3, "it is whole")
        check(data_of(images[0]) == before == data_of(images[2]), "and has what it had")
        thinwire(lab, "volume", "remove", three, "2", *run_dir, timeout=60)


@test(seconds=150)
def a_gateway_over_exports_gets_another(lab):
    """A gateway over a mirror of two exports gets a third under a verified load; the leg comes back by itself when its target was killed, and is described to the next gateway, the first
    having been killed."""
    legs, run_dir = Legs(lab, "abc"), run_dir_of(lab)
    # It shows the keys that its volumes name.
    uris = [node.below(lab, name, over="raw", node=f"node-{name}") for name in "abc"]
    volume = legs.made(describe(lab, uris[:2], leg_timeout_ms=SHORT))
    places = ("--state-dir", lab.path("state"), *run_dir)
    middle = Target(lab, f"home={volume}", name="middle", over="raw", side="initiator", extra=places)
    disk = Attachment(lab, uri(lab, "home", over="raw", node="middle"), name="home", side="target", timeout=40, run="other")
    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB - 4, seconds=16)
    time.sleep(1)
    said = thinwire(lab, "volume", "add", volume, uris[2], *run_dir, timeout=60)
    check("leg 2, in sync" in said.stdout and "describe it as" in said.stderr, said.stdout + said.stderr)
    fio.still_running("an export was added")

    def standing():
        shown = json.loads(thinwire(lab, "volume", "status", volume, "--json", *run_dir).stdout)["nodes"]
        return [node["standing"] for node in shown if node["leg"] is not None]

    legs.targets[2].kill()
    until("its leg is dropped", 30, lambda: standing() == ["in sync", "in sync", "behind"])
    legs.targets[2].start()
    until("it is back", 60, lambda: standing() == ["in sync"] * 3)
    fio.finish(90)
    disk.detach()
    middle.kill()
    describe(lab, uris)
    middle.start(timeout=40)
    disk = Attachment(lab, uri(lab, "home", over="raw", node="middle"), name="home", side="target", timeout=40, run="other")
    load.verified(lab, disk.nbd, mib=8)
    until("all legs are in sync", 60, lambda: standing() == ["in sync"] * 3)
    disk.detach()
    middle.stop()
    check_alike(legs.images)


@test(seconds=150)
def an_addition_at_a_gateway_fences_nobody(lab):
    """A leg is added at a gateway whose client has an unflushed write; the gateway is killed, and described anew: its client is who it was, and sends that again."""
    legs, run_dir = Legs(lab, "abc"), run_dir_of(lab)
    uris = [node.below(lab, name, over="raw", node=f"node-{name}") for name in "abc"]
    volume = legs.made(describe(lab, uris[:2]))
    places = ("--state-dir", lab.path("state"), *run_dir)
    middle = Target(lab, f"home={volume}", name="middle", over="raw", side="initiator", extra=places)
    disk = Attachment(lab, uri(lab, "home", over="raw", node="middle"), name="home", side="target", timeout=40, run="other")

    def write(at, *words):
        return lab.run("target", "/usr/bin/python3", "-c", WRITE, disk.nbd, str(at), *words, timeout=60).stdout.strip()

    check(write(0, "flushed.", "flush") == "written", "a write")
    thinwire(lab, "volume", "add", volume, uris[2], *run_dir, timeout=60)
    check(write(4096, "ghost...") == "written", "an unflushed write")
    middle.kill()
    describe(lab, uris)
    middle.start(timeout=40)
    check(write(8192, "second..", "flush") == "written", "its writer is who it was")
    check("somebody else" not in middle.process.stderr, f"nobody else had a leaf:\n{middle.process.stderr}")
    check(disk.status()["state"] == "attached", disk.status())
    with open(legs.images[2], "rb") as file:
        file.seek(DATA_START + 4096)
        check(file.read(8) == b"ghost...", "and what it had not flushed is there")
    disk.detach()
    middle.stop()
