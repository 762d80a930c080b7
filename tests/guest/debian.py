"""A Debian with systemd as a root file system: made once from packages, with a login at the console that asks for no password."""

import os
import subprocess

import disks
from harness import run

PACKAGES = "systemd-sysv,udev"
# Longest time that the packages may take.
FETCH_S = 600
MIB = 1024


def archive(system):
    """The system as mmdebstrap makes it, which is kept beside the kernel."""
    suite = run("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME").stdout.strip()
    path = os.path.join(system.folder, f"debian-{suite}-{PACKAGES}.tar")
    if not os.path.exists(path):
        print("guest: making a Debian with systemd (about 70 MB of packages, once)", flush=True)
        run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", suite, path + ".tar", timeout=FETCH_S)
        os.rename(path + ".tar", path)
    return path


def root(lab, system, helper, name="debian.img"):
    """An image that is one file system."""
    folder, image = lab.path(name + ".tree"), lab.path(name)
    os.makedirs(folder)
    subprocess.run(["tar", "-xf", archive(system), "-C", folder], check=True)
    subprocess.run(["cp", helper, os.path.join(folder, "usr/bin/helper")], check=True)
    for at, text in (("etc/hostname", "guest\n"), ("etc/fstab", ""), ("etc/machine-id", "0123456789abcdef0123456789abcdef\n")):
        with open(os.path.join(folder, at), "w", encoding="utf-8") as file:
            file.write(text)
    shadow = os.path.join(folder, "etc/shadow")
    with open(shadow, encoding="utf-8") as file:
        lines = file.readlines()
    with open(shadow, "w", encoding="utf-8") as file:
        file.writelines(line.replace("root:*:", "root::", 1) for line in lines)
    disks.make(image, folder, 0, MIB)
    return image
