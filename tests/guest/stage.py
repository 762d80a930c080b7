"""What rooms share: targets that offer a disk in every way, guests that use one, and what must be true of the disk afterwards."""

import json

import initramfs
import machine
import node
from harness import check, run, tail
from machine import Machine

# Set by the runner.
SYSTEM = None
HELPER = None
THINWIRE = None

AOE_DEVICE = "/dev/etherd/e7.1"
AOE = "aoe:eth1/7.1=disk0"
# Everything that ext4 needs; its checksums come from a module that it names only at run time.
EXT4 = ("crc32c_generic", "ext4")
# What our initiator needs for a device node, in the two ways to make one.
BLOCK = ("loop",)
UBLK = ("ublk_drv",)
# Waits for the drive of the AoE module, which must not be later than a minute.
AOE_WAIT = f"""
i=0; while ! [ -b {AOE_DEVICE} ]; do echo > /dev/etherd/discover || true; sleep 1; i=$((i+1)); [ $i -lt 60 ]; done
echo "guest: {AOE_DEVICE} has $(cat /sys/class/block/etherd!e7.1/size) sectors"
"""
MKFS, FSCK = "/sbin/mkfs.ext4", "/sbin/fsck.ext4"


def target(lab, export, *offers):
    """A target on the other side of the switch."""
    words = [word for offer in offers for word in ("--offer", f"{offer},insecure")]
    return node.Target(lab, f"disk0={export}", extra=words, over="packet")


def server(lab):
    """The target's station, as URIs write it."""
    # Not from /sys, which shows the namespace that mounted it.
    shown = json.loads(lab.run("target", "ip", "-j", "link", "show", "eth1").stdout)
    return shown[0]["address"].replace(":", "-")


def guest(lab, command, modules=(), add=(), root="", append="", **options):
    """A guest that runs a command, or goes over to a root."""
    image = initramfs.build(SYSTEM, lab.path("initramfs"), command, modules, (HELPER, *add), root)
    return Machine(lab, machine.kernel(SYSTEM, image, append), **options).begins()


def clean(image, offset=0):
    """The file system in the image is in order, as who shut it down left it: nothing is replayed, nothing mended."""
    shown = run("dumpe2fs", "-h", where(image, offset)).stdout
    check("Filesystem state:         clean" in shown and "needs_recovery" not in shown, f"not shut down in order:\n{shown}")
    done = run("fsck.ext4", "-fn", where(image, offset), check_exit=False, timeout=120)
    check(done.returncode == 0, f"fsck.ext4: exit {done.returncode}\n{tail(done.stdout)}{tail(done.stderr)}")


def where(image, offset):
    return f"{image}?offset={offset}" if offset else image


def sparse(lab, mib, name="disk0.img"):
    return node.image(lab, name, mib)


# Our own clients inside a guest: what the target offers beside its own protocol, and the volume's URI.
OURS = {
    "native": {"offers": (), "uri": lambda lab: "tw://node1/disk0?link=packet:eth0"},
    "ebd": {"offers": ("ebd:eth1/3.1=disk0",), "uri": lambda lab: f"ebd://{server(lab)}/3.1?link=eth0"},
    "ebd-ideal": {"offers": ("ebd:eth1/3.1=disk0,form=ideal",),
                  "uri": lambda lab: f"ebd://{server(lab)}/3.1?link=eth0&form=ideal"},
}
