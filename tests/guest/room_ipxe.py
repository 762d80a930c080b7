"""From power-on to a root on one and the same disk, which the firmware, the boot loader and Linux each reach in their own way:
iPXE speaks AoE to our target, GRUB asks the BIOS, whose disk that is, and Linux loads its driver."""

import disks
import initramfs
import stage
from harness import check
from machine import Machine
from rooms import room

SANBOOT = "#!ipxe\nifopen net0\nsanboot aoe:e7.1\n"


def login(guest, seconds=120):
    """From the login prompt to a shell that answers."""
    guest.says("login: ", seconds)
    guest.types("root\n")
    guest.says(r"[#$] ", 60)
    guest.types("echo I am $USER on $(uname -n)\n")
    guest.says("^I am root on guest", 60)


def power_off(guest, seconds=120):
    """In order: the root has been given back before the machine goes off."""
    guest.types("poweroff\n")
    guest.says("root-init: shutting down", 60)
    guest.finishes(seconds)


@room(300, quick=True)
def to_root(lab):
    """iPXE `sanboot aoe:e7.1`, from power-on to a login on the same disk, a file written, and a clean power-off."""
    system = stage.SYSTEM
    image = initramfs.build(system, lab.path("initramfs"), stage.AOE_WAIT, ("aoe", *stage.EXT4), root=stage.AOE_DEVICE + "p1")
    disk = disks.bootable(lab, system, stage.HELPER, image)
    target = stage.target(lab, disk, stage.AOE)
    script = lab.path("script.ipxe")
    with open(script, "w", encoding="utf-8") as file:
        file.write(SANBOOT)
    guest = Machine(lab, ["-machine", "graphics=off", "-kernel", stage.kernel_ipxe(), "-initrd", script])
    guest.says("iPXE", 60)
    guest.says("guest-init: switching to", 180)
    login(guest)
    guest.types("helper files make /root 20 && cat /root/f* | md5sum && sync\n")
    guest.says("[0-9a-f]{32}  -", 60)
    power_off(guest)
    guest.no_trouble()
    target.stop()
    stage.clean(disk, disks.PARTITION)
    check("root-init: the root is /dev/etherd/e7.1p1 ext4 rw" in guest.console, f"another root:\n{guest.console[-3000:]}")
