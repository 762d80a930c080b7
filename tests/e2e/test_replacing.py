"""Legs of mirrors in use that are replaced: by exports and files, in an attachment and in a gateway, of legs that are there, away, or something else by now; refused, taken back, cut off and killed."""

import json
import os
import signal
import time

import load
import node
from harness import check, until
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test
from test_additions import check_alike, killed, rows, run_dir_of
from test_mirrors import LEG_MIB, SHORT, data_of, describe, standings, written
from test_returning import Legs, stand
from test_two_gateways import READ
from test_volumes import WRITE


def shown_of(lab, volume, side="initiator"):
    """By leg: how it stands, and which one goes for it."""
    shown = json.loads(thinwire(lab, "volume", "status", volume, "--json", *run_dir_of(lab), side=side).stdout)["nodes"]
    return {node["leg"]: (node["standing"], node["replaces"]) for node in shown if node["leg"] is not None}


def holder(legs, nth):
    """Who has its export, by its target."""
    shown = thinwire(legs.lab, "status", "--json", "--run-dir", legs.lab.path(f"run-{legs.names[nth]}"), side="target")
    (target,) = json.loads(shown.stdout)["targets"]
    return target["exports"][0]["writer"]


@test(seconds=180)
def a_leg_is_replaced_while_its_mirror_is_used(lab):
    """Rules 3, 6 and 22: of an attached mirror of two exports one goes for a third while what is written is verified. It is one as any other then: the other target is killed, and comes back. What cannot
    be is refused, and nothing is written there; what is through is said to be."""
    legs, run_dir = Legs(lab, "abc"), run_dir_of(lab)
    volume = legs.made(describe(lab, legs.uris[:2], leg_timeout_ms=SHORT))
    disk = Attachment(lab, volume, name="home", timeout=40)
    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB - 4, seconds=16)
    time.sleep(1)
    with open(legs.images[2], "r+b") as file:
        file.write(b"somebody's bytes")
    refused(lab, "volume", "replace", volume, "0", legs.uris[2], *run_dir, says=["it would be lost"])
    refused(lab, "volume", "replace", volume, "7", legs.uris[2], "--force", *run_dir, says=["has legs 0, 1, counted from 0, and no leg 7"], code=2)
    refused(lab, "volume", "replace", volume, "0", *run_dir, says=["name what comes in its place"], code=2)
    refused(lab, "volume", "replace", volume, "0", legs.uris[1], "--force", *run_dir, says=["is"])
    check(stand(disk) == ["in sync"] * 2, stand(disk))
    with open(legs.images[2], "rb") as file:
        check(file.read(16) == b"somebody's bytes", "nothing was written there")
    fio.still_running("a leg is replaced")
    said = thinwire(lab, "volume", "replace", volume, "0", legs.uris[2], "--force", *run_dir, timeout=90)
    check("until leg 2 has all data" in said.stderr and said.stderr.count("describe it as") == 2, said.stderr)
    check("leg 2, in sync" in said.stdout, said.stdout)
    fio.still_running("a leg was replaced")
    check(stand(disk) == ["removed", "in sync", "in sync"], stand(disk))
    again = thinwire(lab, "volume", "replace", volume, "0", legs.uris[2], *run_dir)
    check("leg 0 is none any more" in again.stderr, again.stderr)
    # Its target is told: others may have it.
    until("the old one is let go of", 20, lambda: holder(legs, 0) is None)
    legs.targets[1].kill()
    until("a leg is dropped", 30, lambda: stand(disk)[1] == "behind")
    legs.targets[1].start()
    until("it is back", 60, lambda: stand(disk) == ["removed", "in sync", "in sync"])
    fio.finish(120)
    disk.detach(timeout=40)
    check_alike(legs.images[1:])
    check(data_of(legs.images[0]) != data_of(legs.images[1]), "the old one gets nothing")
    check(standings(lab, describe(lab, legs.uris[1:])) == ["removed", "in sync", "in sync"], "and the rest is described")


@test(seconds=180)
def a_leg_that_is_away_is_replaced(lab):
    """A leg whose target is dead goes for another; and one that came back as something else (rule 16) for what is there by now, under its own name."""
    legs, run_dir = Legs(lab, "abc"), run_dir_of(lab)
    volume = legs.made(describe(lab, legs.uris[:2], leg_timeout_ms=SHORT))
    disk = Attachment(lab, volume, name="home", timeout=40)
    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB - 4, seconds=22)
    time.sleep(1)
    legs.targets[0].kill()
    until("its leg is dropped", 30, lambda: stand(disk)[0] == "behind")
    said = thinwire(lab, "volume", "replace", volume, "0", legs.uris[2], *run_dir, timeout=90)
    check("leg 2, in sync" in said.stdout, said.stdout)
    check(stand(disk) == ["removed", "in sync", "in sync"], stand(disk))
    # Another disk is in the place of the second.
    legs.targets[1].kill()
    until("its leg is dropped", 30, lambda: stand(disk)[1] == "behind")
    os.remove(legs.images[1])
    image(lab, "b.img", LEG_MIB)
    legs.targets[1].start()
    until("it is something else", 40, lambda: stand(disk)[1] == "failed")
    fio.still_running("it is replaced by what is there")
    volume = describe(lab, [legs.uris[1], legs.uris[2]])
    said = thinwire(lab, "volume", "replace", volume, "1", *run_dir, timeout=90)
    check("in sync" in said.stdout, said.stdout)
    standing = stand(disk)
    check(sorted(standing) == sorted(["removed"] * (len(standing) - 2) + ["in sync"] * 2), standing)
    check(standing[1] in ("removed", "in sync"), standing)
    fio.finish(120)
    disk.detach(timeout=40)
    check_alike(legs.images[1:])


@test(seconds=300)
def replacements_are_cut_off(lab):
    """Rule 6: the command is killed later and later, and whoever has the mirror too. The same again goes on, whether somebody has it by then or not, and nothing that was written is lost."""
    images, run_dir = [image(lab, f"{name}.img", LEG_MIB) for name in "abc"], run_dir_of(lab)
    volume = describe(lab, images[:2])
    thinwire(lab, "volume", "create", volume, *run_dir)
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror")
    written(lab, volume)
    before, met = data_of(images[0]), set()
    disk = Attachment(lab, volume, name="home")
    # The command alone.
    for nth in range(40):
        began = lab.start("initiator", node.BIN, "volume", "replace", volume, "0", images[2], "--take-over", *run_dir, name=f"replace{nth}")
        time.sleep(0.005 + nth * 0.01)
        began.kill(signal.SIGKILL if nth % 2 else signal.SIGINT).wait(10, expect=None)
        standing = stand(disk)
        met.add(len(standing))
        check(standing[1] == "in sync", standing)
        check(standing[0] == "in sync" or standing[2] == "in sync", standing)
        if standing[2:] == ["in sync"] or standing[0] == "removed":
            break
    else:
        check(False, "it never ends")
    check(3 in met, met)
    thinwire(lab, "volume", "replace", volume, "0", images[2], "--take-over", *run_dir, timeout=60)
    check(stand(disk) == ["removed", "in sync", "in sync"], stand(disk))
    disk.detach()
    check_alike(images[1:])
    check(data_of(images[2]) == before, "nothing else was written")

    # And who has it: it goes to and fro between two disks.
    goes, comes, stays = images[2], images[0], images[1]
    for nth in range(10):
        two = describe(lab, [stays, goes])
        old = role_of(lab, goes)
        disk = Attachment(lab, two, name="home", extra=("--take-over",))
        argv = ("volume", "replace", two, str(old), comes, "--force", "--take-over", *run_dir)
        began = lab.start("initiator", node.BIN, *argv, name=f"both{nth}")
        time.sleep(0.01 + nth * 0.03)
        killed(disk)
        began.wait(30, expect=None)
        left = rows(lab, stays)
        good = [state for state in left if state == "in sync"]
        check(len(good) >= 2, left)
        if left[old] == "removed":
            two = describe(lab, [stays, comes])
        else:
            # Not in use: the same again, whatever is described.
            three = nth % 2 and len(left) - left.count("removed") == 3
            describe(lab, [stays, goes, comes] if three else [stays, goes])
            said = thinwire(lab, *argv, timeout=60)
            check("is in sync" in said.stdout, said.stdout + said.stderr)
            two = describe(lab, [stays, comes])
        check(sorted(set(standings(lab, two, "--take-over"))) in (["in sync"], ["in sync", "removed"]), "it is whole")
        check(data_of(stays) == before == data_of(comes), "and has what it had")
        goes, comes = comes, goes


def role_of(lab, path):
    """Which leg it is, by its own label."""
    shown = json.loads(thinwire(lab, "volume", "dump", "--json", path, *run_dir_of(lab)).stdout)
    return shown["parts"][0]["label"]["role"]


@test(seconds=240)
def a_leg_behind_a_gateway_is_replaced(lab):
    """A gateway over a mirror of two exports replaces one under a verified load. While copies are paused it is seen which leg goes for which; taken back by removing the new one, it is as
    before. The gateway is killed in the middle of a load: the next one has all three, its client goes on, and the same again ends it. The one behind that has the two that are left."""
    legs, run_dir = Legs(lab, "abc"), run_dir_of(lab)
    # It shows the keys that its volumes name.
    uris = [node.below(lab, name, over="raw", node=f"node-{name}") for name in "abc"]
    volume = legs.made(describe(lab, uris[:2]))
    places = ("--state-dir", lab.path("state"), *run_dir)
    middle = Target(lab, f"home={volume}", name="middle", over="raw", side="initiator", extra=places)
    disk = Attachment(lab, uri(lab, "home", over="raw", node="middle"), name="home", side="target", timeout=40, run="other")
    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB - 4, seconds=10)
    time.sleep(1)
    thinwire(lab, "volume", "pause", volume, *run_dir)
    refused(lab, "volume", "replace", volume, "0", uris[2], *run_dir, says=["has paused it"], timeout=60)
    check(shown_of(lab, volume) == {0: ("in sync", None), 1: ("in sync", None), 2: ("resyncing", 0)}, shown_of(lab, volume))
    thinwire(lab, "volume", "remove", volume, "2", *run_dir, timeout=40)
    check(shown_of(lab, volume)[0] == ("in sync", None), shown_of(lab, volume))
    check(shown_of(lab, volume)[2] == ("removed", None), shown_of(lab, volume))
    until("it is let go of", 20, lambda: holder(legs, 2) is None)
    refused(lab, "volume", "replace", volume, "0", uris[2], "--force", "--take-over", *run_dir, says=["has paused it"], timeout=60)
    check(shown_of(lab, volume)[2] == ("resyncing", 0), shown_of(lab, volume))
    fio.finish(60)
    # Its client stays, in the middle of a load, and sends again what was not flushed.
    def call(script, at, *words):
        return lab.run("target", "/usr/bin/python3", "-c", script, disk.nbd, str(at), *words, timeout=90).stdout.strip()

    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB - 5, seconds=15)
    check(call(WRITE, (LEG_MIB - 4) << 20, "ghost...") == "written", "an unflushed write")
    middle.kill()
    describe(lab, uris)
    middle.start(timeout=40)
    check(call(READ, (LEG_MIB - 4) << 20) == "ghost...", "it was sent again")
    check("somebody else" not in middle.process.stderr, f"nobody else had a leaf:\n{middle.process.stderr}")
    # What was open at the crash waits, too.
    until("all legs are there", 60, lambda: all(state != "behind" for state, _ in shown_of(lab, volume).values()))
    # It is paused still, and nobody has asked for that of this one.
    check(shown_of(lab, volume)[2] == ("resyncing", None), shown_of(lab, volume))
    thinwire(lab, "volume", "resume", volume, *run_dir)
    said = thinwire(lab, "volume", "replace", volume, "0", uris[2], *run_dir, timeout=90)
    check("leg 2, in sync" in said.stdout, said.stdout)
    check(shown_of(lab, volume)[0] == ("removed", None), shown_of(lab, volume))
    fio.finish(120)
    # Nor does it see which leaves there are, once the old one is no more described.
    check(call(WRITE, (LEG_MIB - 4) << 20, "spirit..") == "written", "an unflushed write")
    middle.kill()
    describe(lab, uris[1:])
    middle.start(timeout=40)
    check(call(READ, (LEG_MIB - 4) << 20) == "spirit..", "it was sent again")
    check("somebody else" not in middle.process.stderr, f"nobody else had a leaf:\n{middle.process.stderr}")
    check(disk.status()["state"] == "attached", disk.status())
    disk.detach()
    middle.stop()
    check_alike(legs.images[1:])
    check(data_of(legs.images[0]) != data_of(legs.images[1]), "the old one gets nothing")
