"""Root file systems that a guest boots to: busybox as init, a login at the console, and an end that leaves them clean.
Made without mounting anything."""

import os
import shutil
import struct
import subprocess

from harness import run
from kernel import GRUB

SECTOR = 512
# Where the partition of a disk that boots by itself begins: what lies in front is for its boot loader.
PARTITION = 2048 * SECTOR
MIB = 384

INITTAB = """::sysinit:/etc/rc
ttyS0::respawn:/sbin/getty -L ttyS0 115200 vt100
::shutdown:/etc/off
"""

RC = """#!/bin/sh
hostname guest
echo 30 > /proc/sys/kernel/hung_task_timeout_secs
mkdir -p /dev/pts
echo "root-init: the root is $(awk '$2 == "/" { root = $1 " " $3 " " substr($4, 1, 2) } END { print root }' /proc/mounts)"
"""

# Ends everybody but who carries the root: its name begins with @, as for systemd. Then the root is given back, and the
# machine goes off, with nobody there who would still need a disk.
OFF = """#!/bin/sh
echo "root-init: shutting down"
for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    [ "$pid" = 1 ] || [ "$pid" = $$ ] || [ "$pid" = $PPID ] && continue
    case "$(head -c 1 $process/cmdline 2>/dev/null)" in @ | "") ;; *) kill "$pid" 2>/dev/null ;; esac
done
dmesg -r | sed 's/^/guest-log: /'
sync
sleep 1
mount -o remount,ro / && echo "guest-exit: 0"
poweroff -f
"""


def tree(system, at, helper, boot=()):
    """The files of a root: busybox under all of its names, and `boot`, pairs of a file of ours and a name below /boot."""
    for folder in ("bin", "boot", "dev", "etc", "proc", "sys", "run", "tmp", "root", "var/lib", "mnt"):
        os.makedirs(os.path.join(at, folder))
    for link in "sbin", "usr":
        os.symlink("bin" if link == "sbin" else ".", os.path.join(at, link))
    shutil.copy(system.busybox, os.path.join(at, "bin/busybox"))
    for name in run(system.busybox, "--list").stdout.split():
        if name != "busybox":
            os.symlink("busybox", os.path.join(at, "bin", name))
    shutil.copy(helper, os.path.join(at, "bin/helper"))
    for name, text, mode in (
        ("inittab", INITTAB, 0o644), ("rc", RC, 0o755), ("off", OFF, 0o755), ("passwd", "root::0:0:root:/root:/bin/sh\n", 0o644),
        ("group", "root:x:0:\n", 0o644),
    ):
        path = os.path.join(at, "etc", name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
    for file, name in boot:
        shutil.copy(file, os.path.join(at, "boot", name))


def root(lab, system, helper, name="root.img"):
    """An image that is one file system."""
    folder, image = lab.path(name + ".tree"), lab.path(name)
    tree(system, folder, helper)
    make(image, folder, 0)
    return image


def bootable(lab, system, helper, initramfs, name="boot.img"):
    """An image with a partition table and a boot loader, which a BIOS starts: GRUB in front of the partition, kernel and
    initramfs in its file system."""
    folder, image = lab.path(name + ".tree"), lab.path(name)
    tree(system, folder, helper, ((system.image, "vmlinuz"), (initramfs, "initrd")))
    make(image, folder, PARTITION)
    script, core = lab.path("grub.cfg"), lab.path("grub.core")
    with open(script, "w", encoding="utf-8") as file:
        file.write("set root=(hd0,msdos1)\nlinux /boot/vmlinuz console=ttyS0 panic=-1 quiet\ninitrd /boot/initrd\nboot\n")
    run("grub-mkimage", "-O", "i386-pc", "-p", "(hd0,msdos1)/boot/grub", "-c", script, "-o", core,
        "biosdisk", "part_msdos", "ext2", "linux")
    assert os.path.getsize(core) <= PARTITION - SECTOR
    sectors = (MIB << 20) // SECTOR - PARTITION // SECTOR
    entry = struct.pack("<BBBBBBBBII", 0x80, 0, 2, 0, 0x83, 0xFF, 0xFF, 0xFF, PARTITION // SECTOR, sectors)
    with open(os.path.join(GRUB, "boot.img"), "rb") as loader, open(core, "rb") as rest, open(image, "r+b") as disk:
        # The loader takes what follows from the next sector on, as GRUB builds it.
        disk.write(loader.read(440))
        disk.seek(446)
        disk.write(entry)
        disk.seek(510)
        disk.write(b"\x55\xaa" + rest.read())
    return image


def make(image, folder, offset, mib=MIB):
    with open(image, "wb") as file:
        file.truncate(mib << 20)
    kib = ((mib << 20) - offset) // 1024
    at = ["-E", f"offset={offset}"] if offset else []
    run("mkfs.ext4", "-q", "-F", "-d", folder, *at, image, f"{kib}k", timeout=120)
    subprocess.run(["rm", "-rf", folder], check=True)
