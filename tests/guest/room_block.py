"""Our initiator inside the guest: a device node over Thinwire's own protocol and over EBD."""

import time

import stage
from harness import check
from rooms import room

WORK = """
device=$(thinwire attach --insecure '{uri}' --block={way} --as disk0)
echo "guest: $device has $(blockdev --getsz $device) sectors"
mkfs.ext4 -q $device
mount -t ext4 $device /mnt
mkdir /mnt/d
helper files make /mnt/d {files}
umount /mnt
echo 3 > /proc/sys/vm/drop_caches
fsck.ext4 -fn $device
mount -t ext4 $device /mnt
helper files check /mnt/d {files}
umount /mnt
thinwire detach disk0
echo "guest: all is as it was written"
"""


@room(300, each=stage.OURS)
def files(lab, offers, uri):
    """500 files on a device node of ours: the file system is clean, every octet as it was written."""
    written(lab, offers, uri, "loop", stage.BLOCK)


LIFE = """
attach() {{ thinwire attach --insecure '{uri}' --block=ublk "$@"; }}
left() {{ ls /sys/class/ublk-char | wc -l; }}
fail() {{ echo "guest: $*"; exit 1; }}
device=$(attach --as disk0)
[ "$(attach --as again --read-only)" = /dev/ublkb1 ] || fail "no second device"
[ $(cat /sys/block/ublkb0/queue/fua) = 1 ] || fail "FUA is not offered"
dd if=/dev/zero of=/dev/ublkb1 bs=4k count=1 2> /dev/null && fail "written to what is read-only"
mkfs.ext4 -q $device
blkdiscard -o 128M -l 64M $device
mount -t ext4 $device /mnt
thinwire detach disk0 2> /tmp/said && fail "detached while it was mounted"
grep "mounted on /mnt" /tmp/said
sleep 100 < /dev/ublkb1 &
thinwire detach again 2> /tmp/said && fail "detached while it was open"
grep "open in process $!" /tmp/said
thinwire detach again --force 2> /tmp/said
grep "open in process $!" /tmp/said
umount /mnt
thinwire detach disk0
[ $(left) = 0 ] || fail "not gone"
kill $!
device=$(attach --as disk0)
mount -t ext4 $device /mnt
kill -9 $(pidof thinwire)
i=0; while touch /mnt/file 2> /dev/null && sync; do sleep 0.1; i=$((i+1)); [ $i -lt 100 ] || fail "works on"; done
umount -l /mnt
thinwire status | grep "killed"
i=0; while [ $(left) != 0 ]; do sleep 0.1; i=$((i+1)); [ $i -lt 100 ] || fail "stays"; done
device=$(attach --as disk0)
fsck.ext4 -p $device || [ $? = 1 ]
thinwire detach disk0
big=$(thinwire attach memory:8G --block=ublk --as big)
blkdiscard $big || fail "a long discard fails"
[ "$(cat /sys/block/${{big#/dev/}}/queue/logical_block_size)" = 512 ] || fail "blocks"
thinwire detach big
echo "guest: all is gone"
"""
# As many requests as the device takes are with a target that does not answer.
STUCK = """
device=$(thinwire attach --insecure '{uri}' --block=ublk --as disk0)
echo "guest: takes the target away"
sleep 2
i=0; while [ $i -lt 200 ]; do dd if=$device of=/dev/null bs=4k count=1 skip=$i iflag=direct 2> /dev/null & i=$((i+1)); done
read -r go
out=$(cut -c1-8 /sys/block/ublkb0/inflight)
echo "guest: $out are outstanding"
[ $out -ge 128 ]
before=$(cut -d. -f1 /proc/uptime)
thinwire detach disk0 --force
wait
took=$(($(cut -d. -f1 /proc/uptime) - before))
echo "guest: gone after $took s"
[ $took -lt 8 ]
[ $(ls /sys/class/ublk-char | wc -l) = 0 ]
"""


@room(90, quick=True)
def ublk_life(lab):
    """A device of ublk is refused to go while it is used, goes by force, and is cleaned up behind a process that was killed."""
    stage.target(lab, stage.sparse(lab, 256))
    work = LIFE.format(uri=stage.OURS["native"]["uri"](lab))
    guest = stage.guest(lab, work, (*stage.UBLK, *stage.EXT4), (stage.THINWIRE, stage.MKFS, stage.FSCK))
    guest.finishes(80)
    check("guest: all is gone" in guest.console, "the guest did not come to its end")


@room(120)
def ublk_stuck(lab):
    """Force takes a device away at once, though all that it takes is with a target that does not answer."""
    target = stage.target(lab, stage.sparse(lab, 256))
    work = STUCK.format(uri=stage.OURS["native"]["uri"](lab))
    guest = stage.guest(lab, work, stage.UBLK, [stage.THINWIRE])
    guest.says("^guest: takes the target away", 60)
    target.kill()
    time.sleep(5)
    guest.types("\n")
    guest.finishes(60)


@room(300)
def ublk(lab):
    """The same by ublk, without FUSE and loop device."""
    written(lab, (), stage.OURS["native"]["uri"], "ublk", stage.UBLK)


def written(lab, offers, uri, way, modules):
    image = stage.sparse(lab, 256)
    target = stage.target(lab, image, *offers)
    work = WORK.format(uri=uri(lab), way=way, files=500)
    guest = stage.guest(lab, work, (*modules, *stage.EXT4), (stage.THINWIRE, stage.MKFS, stage.FSCK))
    guest.finishes(280).no_trouble()
    check("guest: all is as it was written" in guest.console, "the guest did not come to its end")
    target.stop()
    stage.clean(image)
