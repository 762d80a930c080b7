"""A root file system on a disk across the switch: to a login and a clean power-off, with busybox and with systemd, and with the
target away meanwhile."""

import re
import time

import console
import debian
import disks
import stage
from harness import check
from rooms import room

ATTACH = """
echo 16384 > /proc/sys/vm/min_free_kbytes
thinwire attach --insecure '{uri}' --block={way} --as root --carries root > /run/device
echo "guest: the root is on $(cat /run/device)"
[ "$(cat /run/device)" = {device} ]
for process in /proc/[0-9]*; do
    [ "$(head -c 1 $process/cmdline)" != @ ] || echo "guest: carried at $(cut -d ' ' -f 40,41 $process/stat) $(cat $process/oom_score_adj)"
done
"""
# How each protocol brings the root to the guest.
AOE = {"offers": (stage.AOE,), "uri": None}
# Longest end of a Debian.
SHUTDOWN_S = 30
ROOTS = {"aoe": AOE, **stage.OURS, "ublk": {**stage.OURS["native"], "way": "ublk"}}
# Where the root is, by the way in which our device is made, and what it takes.
WAYS = {"loop": ("/dev/loop0", stage.BLOCK), "ublk": ("/dev/ublkb0", stage.UBLK)}


def start(lab, image, offers, uri, way, append=""):
    """A target, and a guest that goes over to the root there."""
    target = stage.target(lab, image, *offers)
    if uri:
        device, modules = WAYS[way]
        command = ATTACH.format(uri=uri(lab), way=way, device=device)
        guest = stage.guest(lab, command, (*modules, *stage.EXT4), [stage.THINWIRE], root=device, append=append)
    else:
        guest = stage.guest(lab, stage.AOE_WAIT, ("aoe", *stage.EXT4), root=stage.AOE_DEVICE, append=append)
    guest.says("guest-init: switching to", 120)
    # Of a process that systemd would spare: priority 1, SCHED_FIFO, and not to be killed for its memory.
    carried = re.findall(r"^guest: carried at (.*)$", guest.console, re.M)
    check(carried == (["1 1 -1000"] if uri else []), f"who carries the root is not prepared for it: {carried}")
    return target, guest


def boot(lab, offers, uri, way):
    """The same, of busybox, with somebody logged in."""
    image = disks.root(lab, stage.SYSTEM, stage.HELPER)
    target, guest = start(lab, image, offers, uri, way)
    guest.says("^root-init: the root is .* ext4 rw", 60)
    console.login(guest)
    return image, target, guest


def shut_down(image, target, guest):
    """Power-off, and nothing is left to mend."""
    console.power_off(guest)
    guest.no_trouble()
    target.stop()
    stage.clean(image)


@room(300, each=ROOTS)
def login(lab, offers, uri, way="loop"):
    """Root over each protocol: to a login, files written and read back, and a clean power-off."""
    image, target, guest = boot(lab, offers, uri, way)
    console.enter(guest, "mkdir d; helper files make d 300 && helper files check d 300; echo all: $?", "^all: 0", 120)
    shut_down(image, target, guest)


@room(400, each=ROOTS)
def away(lab, offers, uri, way="loop"):
    """The target is out of reach for 30 s under a running root, and later killed and started again: the guest goes on, no
    error, nothing read-only."""
    image, target, guest = boot(lab, offers, uri, way)
    # Who waits for the disk then is blocked for longer than what a guest complains of otherwise.
    guest.types("echo 120 > /proc/sys/kernel/hung_task_timeout_secs\n")
    guest.types("mkdir d; helper files make d 1000; echo made: $?\n")
    guest.says("^helper: 100 files", 120)
    lab.port(1, up=False)
    time.sleep(3)
    before = guest.console.count("helper: ")
    time.sleep(27)
    check(guest.console.count("helper: ") == before, "the guest went on without a target")
    lab.port(1, up=True)
    guest.says("^helper: 500 files", 120)
    target.kill()
    time.sleep(3)
    target.start()
    guest.says("^made: 0", 200)
    console.enter(guest, "echo 3 > /proc/sys/vm/drop_caches; helper files check d 1000; echo all: $?", "^all: 0", 200)
    console.enter(guest, "touch d/last && echo the root can be written", "^the root can be written", 60)
    shut_down(image, target, guest)


@room(600, each=ROOTS)
def systemd(lab, offers, uri, way="loop"):
    """A Debian with systemd: to a login, files written and read back, and `systemctl poweroff`, within 30 s and to the end."""
    image = debian.root(lab, stage.SYSTEM, stage.HELPER)
    target, guest = start(lab, image, offers, uri, way, "systemd.show_status=1 fsck.mode=skip")
    console.login(guest, 300)
    console.enter(guest, "systemctl is-system-running --wait; echo it is up", "^it is up", 120)
    console.enter(guest, "mkdir d; helper files make d 300 && helper files check d 300; echo all: $?", "^all: 0", 120)
    guest.types("systemctl poweroff\n")
    begun = time.monotonic()
    guest.ends(120).no_trouble()
    seconds = time.monotonic() - begun
    print(f"      systemd ended after {seconds:.1f} s", flush=True)
    check(seconds < SHUTDOWN_S, f"the guest took {seconds:.1f} s to shut down:\n{guest.last}")
    target.stop()
    stage.clean(image)
