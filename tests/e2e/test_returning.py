"""Legs of mirrors that come back while these are in use: of several modules, as something else than they were, of which writes fail, and removed meanwhile."""

import json
import os
import time

import load
from harness import check, run, until
from node import Attachment, Target, below, image, thinwire, uri
from registry import test
from test_mirrors import LEG_MIB, SHORT, describe, standings
from test_works import Works


class Legs:
    """A target for each leg of a mirror, each with an image."""

    def __init__(self, lab, names="ab", folders=None, extra=()):
        self.lab, self.names, self.extra = lab, names, extra
        self.images = [image(lab, os.path.join((folders or {}).get(name, ""), f"{name}.img"), LEG_MIB) for name in names]
        self.targets = [self.target(name, path) for name, path in zip(names, self.images)]
        self.uris = [uri(lab, name, over="raw", node=f"node-{name}") for name in names]
        self.run_dir = ("--run-dir", lab.path("run"))

    def target(self, name, path):
        places = ("--state-dir", self.lab.path(f"state-{name}"), "--run-dir", self.lab.path(f"run-{name}"))
        return Target(self.lab, f"{name}={path}", name=f"node-{name}", over="raw", extra=(*places, *self.extra))

    def generation(self, nth):
        """Under which grant its export is."""
        shown = thinwire(self.lab, "status", "--json", "--run-dir", self.lab.path(f"run-{self.names[nth]}"), side="target")
        (target,) = json.loads(shown.stdout)["targets"]
        return target["exports"][0]["generation"]

    def made(self, volume):
        thinwire(self.lab, "volume", "create", volume, *self.run_dir, timeout=60)
        check(set(standings(self.lab, volume)) == {"in sync"}, "a new mirror")
        return volume


def stand(disk):
    return [leg["standing"] for leg in disk.status()["mirrors"][0]["legs"]]


def over_sums(lab, uris, leg_timeout_ms=5000):
    """A mirror each of whose legs is a volume with sums over one of these."""
    path = lab.path("pool.toml")
    with open(path, "w", encoding="utf-8") as file:
        for nth, leaf in enumerate(uris):
            file.write(f'[[volume]]\nname = "sums{nth}"\nkind = "integrity"\nchildren = ["{leaf}"]\n')
        legs = ", ".join(f'"sums{nth}"' for nth in range(len(uris)))
        file.write(f'[[volume]]\nname = "home"\nkind = "mirror"\nleg_timeout_ms = {leg_timeout_ms}\nchildren = [{legs}]\n')
    return f"{path}#home"


@test(seconds=180)
def a_leg_of_several_modules_comes_back(lab):
    """A mirror of two volumes with sums, each over a target, written and verified: a target is killed, its leg is dropped, comes back and is resynced by itself; then the
    other one is killed, and what is read is right. So does a leg that was not there when the mirror was attached."""
    legs = Legs(lab)
    volume = legs.made(over_sums(lab, legs.uris, SHORT))
    disk, works = Attachment(lab, volume, name="home", timeout=40), Works(lab, volume)
    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB // 2, seconds=24)
    time.sleep(2)
    for nth in 1, 0:
        fio.still_running(f"kill of {nth}")
        legs.targets[nth].kill()
        until("its leg is dropped", 30, lambda: stand(disk)[nth] == "behind")
        # Nobody waits for it.
        check(disk.status()["state"] == "attached", disk.status())
        legs.targets[nth].start()
        until("all legs are in sync again", 60, lambda: stand(disk) == ["in sync"] * 2)
    log = disk.log()
    check(all(f"leg {nth} of mirror {volume} is behind" in log for nth in (0, 1)), log)
    legs.targets[0].kill()
    # The rest is read from the leg that came back first.
    fio.finish(120)
    until("the mirror goes on without the other", 30, lambda: stand(disk) == ["behind", "in sync"])
    disk.detach(timeout=40)
    disk = Attachment(lab, volume, name="home", timeout=40, extra=("--wait",))
    check(stand(disk) == ["behind", "in sync"], stand(disk))
    sums = [node for node in works.nodes() if node["kind"] == "integrity"]
    check([node["bytes"] > 0 for node in sums] == [False, True], sums)
    legs.targets[0].start()
    until("all legs are in sync again", 60, lambda: stand(disk) == ["in sync"] * 2)
    sums = [node for node in works.nodes() if node["kind"] == "integrity"]
    check(sums[0]["bytes"] == sums[1]["bytes"] and all(node["work"] for node in sums), sums)
    said = works.do("scrub", "--wait", "--pace", "100").stdout
    check("all as it was written" in said, said)
    disk.detach()


@test(seconds=120)
def a_leg_that_is_back_with_something_else_is_failed(lab):
    """Rule 16: a target is back with another file. Its leg is failed, which is said once, with what is there and what to do; nothing is written there, it is left alone,
    and it can be had in the place of the leg."""
    legs = Legs(lab)
    volume = legs.made(describe(lab, legs.uris))
    disk = Attachment(lab, volume, name="home", timeout=40)
    legs.targets[1].kill()
    load.verified(lab, disk.nbd, mib=8)
    until("its leg is dropped", 30, lambda: stand(disk)[1] == "behind")
    os.remove(legs.images[1])
    image(lab, "b.img", LEG_MIB)
    legs.targets[1].start()
    until("the leg is failed", 30, lambda: stand(disk)[1] == "failed")
    leg = disk.status()["mirrors"][0]["legs"][1]
    check("has no label" in leg["why"] and f"volume replace {volume} 1" in leg["why"] and leg["retry_s"] is None, leg)
    generation = legs.generation(1)
    time.sleep(6)
    log = disk.log()
    check(log.count("has other content than it had: what is there") == 1, log)
    check(log.count(f"leg 1 of mirror {volume} has other content than it had: it is not used") == 1, log)
    check(legs.generation(1) == generation, "it is left alone")
    with open(legs.images[1], "rb") as file:
        check(not any(file.read()), "nothing was written there")
    disk.detach()
    # Nor by who opens it next.
    check(standings(lab, volume) == ["in sync", "failed"], "it stays failed")
    thinwire(lab, "volume", "replace", volume, "1", *legs.run_dir, timeout=60)
    check(standings(lab, volume) == ["in sync"] * 2, "it is in the place of the leg")


@test(seconds=150)
def a_leg_that_cannot_be_written_is_tried_less_and_less_often(lab):
    """A target's file system is full: its leg can be attached, and not be written. It is taken back after longer and longer, which status says, and is in sync once there is
    room."""
    full = lab.path("full")
    os.mkdir(full)
    run("mount", "-t", "tmpfs", "-o", "size=40m", "none", full)
    try:
        legs = Legs(lab, folders={"b": full})
        volume = legs.made(describe(lab, legs.uris))
        disk = Attachment(lab, volume, name="home", timeout=40)
        # What holds nothing takes no room, and gets none from now on.
        run("fallocate", "--dig-holes", legs.images[1])
        run("sh", "-c", f"cat /dev/zero > {full}/filler || true")
        load.verified(lab, disk.nbd, mib=8)
        until("its leg is dropped", 30, lambda: stand(disk)[1] != "in sync")
        until("it is waited for", 60, lambda: (disk.status()["mirrors"][0]["legs"][1]["retry_s"] or 0) >= 6)
        check("tried again in" in thinwire(lab, "status", "home", *legs.run_dir).stdout, "status says so")
        check("dropped again before it was in sync" in disk.log(), disk.log())
        os.remove(f"{full}/filler")
        until("it is in sync", 60, lambda: stand(disk) == ["in sync"] * 2)
        disk.detach()
        for target in legs.targets:
            target.stop()
    finally:
        run("umount", "-l", full)


@test(seconds=120)
def a_leg_that_is_removed_while_it_is_away_is_left_alone(lab):
    """A target is away when its leg is removed: when it is back, nobody attaches its export."""
    legs = Legs(lab, "abc")
    volume = legs.made(describe(lab, legs.uris))
    disk = Attachment(lab, volume, name="home", timeout=40)
    before = legs.generation(1)
    legs.targets[1].kill()
    load.verified(lab, disk.nbd, mib=8)
    until("its leg is dropped", 30, lambda: stand(disk)[1] == "behind")
    thinwire(lab, "volume", "remove", volume, "1", *legs.run_dir, timeout=40)
    check(stand(disk) == ["in sync", "removed", "in sync"], stand(disk))
    legs.targets[1].start()
    time.sleep(7)
    check(legs.generation(1) == before, f"it was granted to somebody: {legs.generation(1)}, not {before}")
    check("is not taken back" not in disk.log(), disk.log())
    disk.detach()


@test(seconds=120)
def who_was_fenced_takes_no_leg_back(lab):
    """Rule 18: a leg is away, the other is taken over by another writer, and the first one is fenced. The leg that is back is the new writer's: the first one, which goes on
    running, does not attach it any more."""
    legs = Legs(lab)
    volume = legs.made(describe(lab, legs.uris))
    first = Attachment(lab, volume, name="first", run="first", timeout=40)
    legs.targets[1].kill()
    load.verified(lab, first.nbd, mib=8)
    until("its leg is dropped", 30, lambda: stand(first)[1] == "behind")
    second = Attachment(lab, volume, name="second", run="second", timeout=40, extra=("--take-over",))
    until("the first is fenced", 20, lambda: "fenced" in str(first.status()).lower())
    legs.targets[1].start()
    until("the new writer has all legs", 60, lambda: stand(second) == ["in sync"] * 2)
    load.verified(lab, second.nbd, mib=8)
    second.detach(timeout=40)


@test(seconds=120)
def a_leg_of_a_gateway_over_udp(lab):
    """A gateway, which has given up its rights, over a mirror of a file and an export that is named by an address alone: its leg comes back by itself, though no way to an
    address can be looked for any more."""
    run_dir = ("--run-dir", lab.path("run"))
    leaf = Target(lab, f"a={image(lab, 'a.img', LEG_MIB)}", name="node-a", over="udp", extra=("--run-dir", lab.path("run-a"), "--state-dir", lab.path("state-a")))
    volume = describe(lab, [image(lab, "b.img", LEG_MIB), below(lab, "a", over="udp")])
    thinwire(lab, "volume", "create", volume, *run_dir, timeout=60)
    gateway = Target(lab, f"home={volume}", name="gateway", over="raw", side="initiator", extra=("--state-dir", lab.path("state"), *run_dir))
    disk = Attachment(lab, uri(lab, "home", over="raw", node="gateway"), name="home", side="target", timeout=40, run="other")

    def standing():
        shown = json.loads(thinwire(lab, "volume", "status", volume, "--json", *run_dir).stdout)["nodes"]
        return [node["standing"] for node in shown if node["leg"] is not None]

    until("both legs are in sync", 30, lambda: standing() == ["in sync"] * 2)
    leaf.kill()
    load.verified(lab, disk.nbd, mib=8)
    until("its leg is dropped", 60, lambda: standing()[1] == "behind")
    leaf.start()
    until("it is back", 60, lambda: standing() == ["in sync"] * 2)
    check("Operation not permitted" not in gateway.process.stderr, gateway.process.stderr)
    disk.detach()
    gateway.stop()
