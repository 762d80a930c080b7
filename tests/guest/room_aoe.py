"""Linux's own AoE driver on a disk of ours."""

import time

import stage
from harness import check
from rooms import room

# A file system is made and filled, looked over, and read back from the disk.
WORK = stage.AOE_WAIT + """
mkfs.ext4 -q {device}
mount -t ext4 {device} /mnt
for part in $(seq {parts}); do
    {wait}
    mkdir /mnt/d$part
    helper files make /mnt/d$part {files}
done
umount /mnt
echo "guest: unmounted"
echo 3 > /proc/sys/vm/drop_caches
fsck.ext4 -fn {device}
mount -t ext4 {device} /mnt
for part in $(seq {parts}); do helper files check /mnt/d$part {files}; done
umount /mnt
echo "guest: all is as it was written"
"""


def begin(lab, files, parts=1, wait=":"):
    """A target and a guest that works on its disk, in so many parts, before each of which it may wait."""
    image = stage.sparse(lab, 256)
    target = stage.target(lab, image, stage.AOE)
    work = WORK.format(device=stage.AOE_DEVICE, files=files, parts=parts, wait=wait)
    return image, target, stage.guest(lab, work, ("aoe", *stage.EXT4), (stage.MKFS, stage.FSCK))


def end(image, target, guest, seconds=300):
    guest.finishes(seconds).no_trouble()
    check("guest: all is as it was written" in guest.console, "the guest did not come to its end")
    target.stop()
    stage.clean(image)


# The guest writes on when it is told to, so that it cannot be done before the target is gone.
WAIT = 'echo "guest: waits"; read go'


def kill(target, guest, away):
    """Ends the target without a word and has the guest write; starts it again. Nothing comes to an end meanwhile."""
    guest.says("^guest: waits", 240)
    target.kill()
    before = len(guest.console)
    guest.types("go\n")
    time.sleep(away)
    check("helper:" not in guest.console[before:], f"the guest went on without a target:\n{guest.last}")
    target.start()


@room(300)
def files(lab):
    """2,000 files of Linux's own AoE driver: the file system is clean, every octet as it was written."""
    end(*begin(lab, 2000))


@room(600)
def switch_drops(lab):
    """The same with 2 % of all frames dropped by the switch."""
    image, target, guest = begin(lab, 2000)
    guest.says("guest-init: up", 60)
    lab.drop(2)
    guest.says("guest: all is as it was written", 500)
    seen, dropped = lab.dropped()
    check(dropped > 20 and 0.01 < dropped / seen < 0.04, f"the switch dropped {dropped} of {seen} frames, not 2 %")
    end(image, target, guest)


@room(600)
def target_killed(lab):
    """The same, and before each of three parts the target is killed, so that the guest begins it without one: its kernel sees
    no error."""
    image, target, guest = begin(lab, 500, 4, WAIT)
    guest.says("^guest: waits", 120)
    guest.types("go\n")
    for _ in range(3):
        kill(target, guest, 2)
    end(image, target, guest, 500)


@room(240, quick=True)
def target_killed_once(lab):
    """200 files, begun without a target: it was killed behind mkfs and mount."""
    image, target, guest = begin(lab, 200, 1, WAIT)
    kill(target, guest, 2)
    end(image, target, guest)
