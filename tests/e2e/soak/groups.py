"""A control group whose memory can be limited, whichever version of them the kernel has mounted."""

import contextlib
import os
import re
import time

import harness

ROOT = "/sys/fs/cgroup"


class One:
    """Version 1."""

    folder, limit, used, none = f"{ROOT}/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "-1"
    swap = "memory.swappiness"


class Two:
    """Version 2."""

    folder, limit, used, none = ROOT, "memory.max", "memory.current", "max"
    swap = "memory.swap.max"


def version():
    """Which of them has a memory controller that groups can use, or None."""
    if os.path.exists(f"{One.folder}/{One.limit}"):
        return One
    try:
        with open(f"{ROOT}/cgroup.subtree_control", encoding="ascii") as file:
            return Two if "memory" in file.read().split() else None
    except OSError:
        return None


def why_not():
    """Why there can be none here, or nothing."""
    if version() is None:
        return "no memory controller for control groups"
    return None if os.access(version().folder, os.W_OK) else "control groups cannot be made"


def sweep(folder):
    """Removes what a runner left that was itself killed: nobody is in it any more."""
    for name in os.listdir(folder):
        match = re.match(rf"{harness.PREFIX}-(\d+)-", name)
        if match and not os.path.exists(f"/proc/{match.group(1)}"):
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(folder, name))


class Group:
    def __init__(self, name):
        self.files = version()
        self.folder = os.path.join(self.files.folder, name)

    def __enter__(self):
        sweep(self.files.folder)
        os.mkdir(self.folder)
        # Not at the price of a disk instead. Without swap there is no such file.
        with contextlib.suppress(OSError):
            self.write(os.path.join(self.folder, self.files.swap), "0")
        return self

    def __exit__(self, *_):
        """Whoever is in it still goes on outside of it."""
        self.limit(None)
        with open(os.path.join(self.folder, "cgroup.procs"), encoding="ascii") as file:
            for pid in file.read().split():
                self.write(os.path.join(self.files.folder, "cgroup.procs"), pid)
        for _ in range(50):
            try:
                return os.rmdir(self.folder)
            except OSError:
                time.sleep(0.1)
        return None

    @staticmethod
    def write(path, text):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)

    @property
    def prefix(self):
        """What precedes a command that is to run in it."""
        return ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs; exec "$@"', "sh"]

    def used(self):
        with open(os.path.join(self.folder, self.files.used), encoding="ascii") as file:
            return int(file.read())

    def limit(self, most):
        """From now on so many bytes; None: as many as they like."""
        self.write(os.path.join(self.folder, self.files.limit), self.files.none if most is None else str(most))
