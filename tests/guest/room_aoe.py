"""Linux's own AoE driver on a disk of ours."""

import time

import stage
from harness import check
from rooms import room

# A file system is made and filled, looked over, and read back from the disk.
WORK = stage.AOE_WAIT + """
mkfs.ext4 -q {device}
mount -t ext4 {device} /mnt
mkdir /mnt/d
helper files make /mnt/d {files}
umount /mnt
echo "guest: unmounted"
echo 3 > /proc/sys/vm/drop_caches
fsck.ext4 -fn {device}
mount -t ext4 {device} /mnt
helper files check /mnt/d {files}
umount /mnt
echo "guest: all is as it was written"
"""


def begin(lab, files):
    """A target and a guest that works on its disk."""
    image = stage.sparse(lab, 256)
    target = stage.target(lab, image, stage.AOE)
    work = WORK.format(device=stage.AOE_DEVICE, files=files)
    return image, target, stage.guest(lab, work, ("aoe", *stage.EXT4), (stage.MKFS, stage.FSCK))


def end(image, target, guest, seconds=300):
    guest.finishes(seconds).no_trouble()
    check("guest: all is as it was written" in guest.console, "the guest did not come to its end")
    target.stop()
    stage.clean(image)


def kill(target, guest, away):
    """Ends the target without a word, and starts it again. Nothing comes to an end meanwhile."""
    target.kill()
    before = guest.console
    time.sleep(away)
    check("guest: unmounted" not in guest.console, f"the guest went on without a target:\n{guest.console[len(before):]}")
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
    """The same with the target killed three times in the middle: the guest's kernel sees no error."""
    image, target, guest = begin(lab, 2000)
    for files in 500, 900, 1300:
        guest.says(f"helper: {files} files", 120)
        kill(target, guest, 2)
    end(image, target, guest, 500)


@room(240, quick=True)
def target_killed_once(lab):
    """200 files, and the target killed once in the middle."""
    image, target, guest = begin(lab, 200)
    guest.says("helper: 100 files", 120)
    kill(target, guest, 1)
    end(image, target, guest)
