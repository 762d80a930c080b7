"""What a guest is made of: a Debian kernel with its modules, and busybox. Fetched once, unpacked, never installed."""

import os
import shutil
import subprocess

# 6.12 has aoe and loop as modules and FUSE built in.
KERNEL = os.environ.get("GUEST_KERNEL", "linux-image-6.12-amd64")
IPXE = "/usr/lib/ipxe/ipxe.lkrn"
# What runs or makes a guest, and the package that brings it (`scripts/setup.sh --guest`).
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86", "modprobe": "kmod", "depmod": "kmod", "cpio": "cpio", "xz": "xz-utils",
    "zstd": "zstd", "dpkg-deb": "dpkg", "cc": "build-essential", "mkfs.ext4": "e2fsprogs", "grub-mkimage": "grub-common",
    "nft": "nftables", "ldd": "libc-bin", "mkfs.xfs": "xfsprogs",
    "mmdebstrap": "mmdebstrap",
}
GRUB = "/usr/lib/grub/i386-pc"
# Longest time that one step of fetching may take: a network may swallow what is asked.
FETCH_S = 300


class Missing(Exception):
    """Why there can be no guest on this machine."""


class System:
    """A kernel, its modules and busybox, below a folder that keeps them."""

    def __init__(self, folder):
        self.folder = folder
        self.root = os.path.join(folder, "root")
        self.check_tools()
        self.fetch()
        self.version = self.only_version()
        self.image = os.path.join(self.root, "boot", f"vmlinuz-{self.version}")
        self.busybox = os.path.join(self.root, "bin/busybox")

    @staticmethod
    def check_tools():
        path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
        os.environ["PATH"] = path
        lacking = {package for tool, package in TOOLS.items() if not shutil.which(tool)}
        lacking |= {package for file, package in ((IPXE, "ipxe"), (GRUB, "grub-pc-bin")) if not os.path.exists(file)}
        if lacking:
            raise Missing(f"packages are missing ({' '.join(sorted(lacking))}): scripts/setup.sh --guest installs them")
        if not os.path.exists("/dev/net/tun"):
            raise Missing("this kernel offers no /dev/net/tun, which a guest's adapter needs")

    def fetch(self):
        """Unpacks what packages bring, unless they are there. A mark tells that it was done to its end."""
        mark = os.path.join(self.folder, f"unpacked.{KERNEL}")
        if os.path.exists(mark):
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        debs = os.path.join(self.folder, "debs")
        os.makedirs(debs)
        packages = [newest_image(), "busybox-static"]
        print(f"guest: fetching {' and '.join(packages)} (about 110 MB, once)", flush=True)
        command("apt-get", "-q", "download", *packages, cwd=debs, why=f"cannot fetch {' and '.join(packages)}")
        for deb in os.listdir(debs):
            command("dpkg-deb", "-x", os.path.join(debs, deb), self.root, why=f"cannot unpack {deb}")
        shutil.rmtree(debs)
        command("depmod", "-b", self.root, self.only_version(), why="depmod failed")
        with open(mark, "w", encoding="utf-8"):
            pass

    def only_version(self):
        """Of the kernel that was unpacked."""
        modules = os.path.join(self.root, "lib/modules")
        if not os.path.isdir(modules):
            raise Missing(f"the package {KERNEL} has no lib/modules")
        return os.listdir(modules)[0]

    def module_files(self, name):
        """The files of a module and, before it, of what it depends on; none for what is built in."""
        shown = command("modprobe", "-d", self.root, "-S", self.version, "--show-depends", name,
                        why=f"kernel {self.version} has no module {name}")
        return [line.split()[1] for line in shown.splitlines() if line.startswith("insmod ")]


def newest_image():
    """The image that a meta package stands for. The list of packages is fetched if it does not know it."""
    for update in False, True:
        if update:
            command("apt-get", "-q", "update", why="cannot fetch the list of packages")
        try:
            shown = command("apt-cache", "depends", KERNEL, why="apt-cache fails")
        except Missing:
            # It does not know it yet.
            shown = ""
        for line in shown.splitlines():
            words = line.split()
            if words[:1] == ["Depends:"] and words[1].startswith("linux-image-"):
                return words[1]
    raise Missing(f"the kernel package {KERNEL} is not to be had here (apt-cache does not know it)")


def command(*argv, why, cwd=None):
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=cwd, check=False,
                              timeout=FETCH_S)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{why}: {error}") from None
    if done.returncode:
        raise Missing(f"{why}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
