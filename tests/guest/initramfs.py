"""The first file system of a guest: busybox, modules in the order in which they are loaded, programs with their
libraries, and what to do."""

import os
import re
import shutil
import subprocess

# Always there: what a guest needs to see its adapter and disks.
MODULES_ALWAYS = ("virtio_pci", "virtio_net", "virtio_blk")

# An adapter begins with the tap's MTU. `guest-exit` ends what the runner waits for; the kernel's log stands before it,
# whole, since the console shows errors only.
INIT = r"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs tmp /tmp
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/mounts /etc/mtab
while read -r module; do insmod "$module" || echo "guest-init: cannot load $module"; done < /etc/modules
echo 30 > /proc/sys/kernel/hung_task_timeout_secs
for nic in /sys/class/net/*; do ip link set "${nic##*/}" up; done
echo "guest-init: up after $(cut -d' ' -f1 /proc/uptime) s, Linux $(uname -r)"
# The end of a session hangs its terminal up, and what that has not printed yet is lost: `stty` waits for it.
setsid cttyhack sh -c 'sh -e /etc/command; rc=$?; stty echo; exit $rc'
rc=$?
root=$(cat /etc/root)
if [ -n "$root" ] && [ $rc = 0 ]; then
    mount -t ext4 -o rw "$root" /newroot && {
        for at in proc sys dev run; do mount --move /$at /newroot/$at; done
        umount /tmp
        echo "guest-init: switching to $root"
        exec switch_root /newroot /sbin/init
    }
    rc=126
fi
dmesg -r | sed 's/^/guest-log: /'
echo "guest-exit: $rc"
stty echo < /dev/console
sync
poweroff -f
"""


def build(system, out, command, modules=(), add=(), root="", init=INIT):
    """Writes one to `out`. `add` are files of this machine, `FILE` (to /bin) or `FILE:AT`. After `command` the guest
    powers off, or goes over to the file system on the device `root`."""
    tree = out + ".tree"
    shutil.rmtree(tree, ignore_errors=True)
    for folder in ("bin", "dev", "etc", "proc", "sys", "run", "tmp", "mnt", "newroot", "lib/modules", "var/lib"):
        os.makedirs(os.path.join(tree, folder))
    os.symlink("bin", os.path.join(tree, "sbin"))
    shutil.copy(system.busybox, os.path.join(tree, "bin/busybox"))
    put_modules(system, tree, (*MODULES_ALWAYS, *modules))
    for name in add:
        file, _, at = name.partition(":")
        put_program(file, at or "/bin/" + os.path.basename(file), tree)
    for name, text in (("etc/command", command + "\n"), ("etc/root", root + "\n"), ("init", init)):
        with open(os.path.join(tree, name), "w", encoding="utf-8") as file:
            file.write(text)
    os.chmod(os.path.join(tree, "init"), 0o755)
    with open(out, "wb") as file:
        subprocess.run("find . | cpio --quiet -o -H newc -R 0:0 | gzip -1", shell=True, cwd=tree, check=True, stdout=file)
    shutil.rmtree(tree)
    return out


def put_modules(system, tree, names):
    """Unpacked, since busybox loads no others; each once."""
    listed = []
    for name in names:
        for file in system.module_files(name):
            at = "/lib/modules/" + re.sub(r"\.(xz|zst)$", "", os.path.basename(file))
            if at in listed:
                continue
            listed.append(at)
            unpack = {".xz": ["xz", "-dc"], ".zst": ["zstd", "-qdc"]}.get(os.path.splitext(file)[1], ["cat"])
            with open(tree + at, "wb") as out:
                subprocess.run([*unpack, file], check=True, stdout=out)
    with open(os.path.join(tree, "etc/modules"), "w", encoding="utf-8") as file:
        file.writelines(at + "\n" for at in listed)


def put_program(file, at, tree):
    """Copies a program and its shared libraries."""
    os.makedirs(os.path.dirname(tree + at), exist_ok=True)
    shutil.copy(file, tree + at)
    shown = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
    for library in re.findall(r"/[^ )\n]*", shown):
        if not os.path.exists(tree + library):
            os.makedirs(os.path.dirname(tree + library), exist_ok=True)
            shutil.copy(library, tree + library)
