"""Being a disk: what tools of disks ask of one, over each protocol."""

import stage
from harness import check
from rooms import room

MIB = 320
TOOLS = [stage.MKFS, stage.FSCK, "/sbin/tune2fs", "/sbin/resize2fs", "/sbin/dumpe2fs", "/sbin/blkdiscard",
         "/sbin/mkfs.xfs", "/sbin/xfs_repair"]
# Each line that begins with `disk: ` is one thing that a disk must be able to do; without it the command has ended.
WORK = """
{attach}
[ "$(blockdev --getsize64 $d)" = {octets} ]
echo "disk: BLKGETSIZE64"
head -c 512 /dev/urandom > /tmp/a
for sector in 1 7 12345 {last}; do
    dd if=/tmp/a of=$d bs=512 seek=$sector oflag=direct conv=notrunc 2> /dev/null
    dd if=$d bs=512 skip=$sector count=1 iflag=direct 2> /dev/null | cmp - /tmp/a
done
echo "disk: O_DIRECT of 512 octets"
blockdev --flushbufs $d
dd if=$d bs=512 skip=7 count=1 2> /dev/null | cmp - /tmp/a
echo "disk: BLKFLSBUF"
blockdev --setro $d
if dd if=/tmp/a of=$d bs=512 count=1 oflag=direct 2> /dev/null; then false; fi
blockdev --setrw $d
dd if=/tmp/a of=$d bs=512 count=1 oflag=direct 2> /dev/null
echo "disk: BLKROSET"
if blkdiscard -o 1048576 -l 1048576 $d 2> /dev/null; then echo "disk: BLKDISCARD is done"; else echo "disk: BLKDISCARD is refused"; fi
printf 'n\\np\\n1\\n2048\\n206847\\nw\\n' | fdisk -u $d > /dev/null 2>&1 || true
fdisk -u -l $d | grep -q '2048 *206847 *204800'
echo "disk: partitions"
mkfs.ext4 -q -F $d 100M
dumpe2fs -h $d 2> /dev/null | grep -q '^Block count'
tune2fs -L thin $d > /dev/null
dumpe2fs -h $d 2> /dev/null | grep -q 'volume name: *thin'
mount -t ext4 $d /mnt
helper files make /mnt 200 > /dev/null
umount /mnt
fsck.ext4 -fn $d
fsck.ext4 -fp $d
resize2fs $d
fsck.ext4 -fn $d
mount -t ext4 $d /mnt
helper files check /mnt 200 > /dev/null
[ "$(df -m /mnt | awk 'END {{ print $2 }}')" -gt 200 ]
umount /mnt
echo "disk: mkfs, dumpe2fs, tune2fs, resize2fs, fsck"
mkfs.xfs -q -f $d
mount -t xfs $d /mnt
helper files make /mnt 200 > /dev/null
umount /mnt
xfs_repair -n $d
mount -t xfs $d /mnt
helper files check /mnt 200 > /dev/null
umount /mnt
echo "disk: xfs"
helper crypt $d {sectors}
dd if=/tmp/a of=/dev/dm-0 bs=512 seek=7 oflag=direct conv=notrunc 2> /dev/null
dd if=/dev/dm-0 bs=512 skip=7 count=1 iflag=direct 2> /dev/null | cmp - /tmp/a
if dd if=$d bs=512 skip=7 count=1 iflag=direct 2> /dev/null | cmp -s - /tmp/a; then false; fi
mkfs.ext4 -q -F /dev/dm-0
mount -t ext4 /dev/dm-0 /mnt
helper files make /mnt 200 > /dev/null
umount /mnt
fsck.ext4 -fn /dev/dm-0
helper uncrypt
helper crypt $d {sectors}
mount -t ext4 /dev/dm-0 /mnt
helper files check /mnt 200 > /dev/null
umount /mnt
helper uncrypt
echo "disk: dm-crypt"
{detach}
"""
WANTED = ("BLKGETSIZE64", "O_DIRECT of 512 octets", "BLKFLSBUF", "BLKROSET", "partitions",
          "mkfs, dumpe2fs, tune2fs, resize2fs, fsck", "xfs", "dm-crypt")
# The modules of its cipher are named only at run time.
CRYPT = ("aes_generic", "ecb", "xts", "dm-crypt")


@room(400, each={"aoe": {"offers": (stage.AOE,), "uri": None}, **stage.OURS})
def tools(lab, offers, uri):
    """Partitions, ext4 and xfs with their tools, dm-crypt, sectors of 512 octets, and the ioctls of a disk."""
    target = stage.target(lab, stage.sparse(lab, MIB), *offers)
    if uri:
        attach, detach = f"d=$(thinwire attach --insecure '{uri(lab)}' --block --as disk0)", "thinwire detach disk0"
    else:
        attach, detach = stage.AOE_WAIT + f"d={stage.AOE_DEVICE}", ""
    work = WORK.format(attach=attach, detach=detach, octets=MIB << 20, sectors=MIB << 11, last=(MIB << 11) - 1)
    modules = ("xfs", *stage.EXT4, *CRYPT, *(stage.BLOCK if uri else ["aoe"]))
    guest = stage.guest(lab, work, modules, [*TOOLS, *([stage.THINWIRE] if uri else [])])
    guest.finishes(380).no_trouble()
    for wanted in (*WANTED, "BLKDISCARD is " + ("done" if uri else "refused")):
        check(f"disk: {wanted}\n" in guest.console, f"the disk failed at '{wanted}':\n{guest.last}")
    target.stop()
