"""Our initiator inside the guest: a device node over Thinwire's own protocol and over EBD."""

import stage
from harness import check
from rooms import room

WORK = """
device=$(thinwire attach --insecure '{uri}' --block --as disk0)
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
    image = stage.sparse(lab, 256)
    target = stage.target(lab, image, *offers)
    work = WORK.format(uri=uri(lab), files=500)
    guest = stage.guest(lab, work, (*stage.BLOCK, *stage.EXT4), (stage.THINWIRE, stage.MKFS, stage.FSCK))
    guest.finishes(280).no_trouble()
    check("guest: all is as it was written" in guest.console, "the guest did not come to its end")
    target.stop()
    stage.clean(image)
