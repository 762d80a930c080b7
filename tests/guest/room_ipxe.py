"""From power-on to a root on one and the same disk, which the firmware, the boot loader and Linux each reach in their own way:
iPXE speaks AoE to our target, GRUB asks the BIOS, whose disk that is, and Linux loads its driver."""

import console
import disks
import initramfs
import kernel
import stage
from harness import check
from machine import Machine
from rooms import room

SANBOOT = "#!ipxe\nifopen net0\nsanboot aoe:e7.1\n"


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
    # One processor: see `Machine.begins`, which cannot start a kernel again that firmware has loaded.
    guest = Machine(lab, ["-machine", "graphics=off", "-kernel", kernel.IPXE, "-initrd", script], cpus=1)
    guest.says("iPXE", 60)
    guest.says("guest-init: switching to", 180)
    console.login(guest)
    console.enter(guest, "mkdir d; helper files make d 100 && helper files check d 100; echo all: $?", "^all: 0", 120)
    console.power_off(guest)
    guest.no_trouble()
    target.stop()
    stage.clean(disk, disks.PARTITION)
    check("root-init: the root is /dev/etherd/e7.1p1 ext4 rw" in guest.console, f"another root:\n{guest.console[-3000:]}")
