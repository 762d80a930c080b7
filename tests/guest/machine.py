"""A guest that runs: QEMU in software emulation (or what GUEST_ACCEL says), its adapters taps on the switch's bridges, its
console a file that is kept and a pipe that can be typed at."""

import fcntl
import os
import re
import socket
import threading

import harness
from harness import Failure, check, tail, until

ACCEL = os.environ.get("GUEST_ACCEL", "tcg")
# What a kernel says when a disk has failed it, or memory.
TROUBLE = re.compile(r"I/O error|Remounting filesystem read-only|EXT4-fs error|JBD2: .*error|blocked for more than|"
                     r"[Oo]ut of memory|oom-kill|Kernel panic|\bBUG:|Call Trace|rcu_\w+ detected stalls|Oops")


# So often a kernel is started again that ran into a breakpoint of its own.
BREAKPOINTS_MAX = 3


class Machine:
    """A guest on link 1 of a laboratory. `boot` are QEMU's arguments that say what it starts."""

    def __init__(self, lab, boot, memory=512, cpus=2, disks=(), name="guest"):
        self.lab, self.name = lab, name
        self.console_path = os.path.join(lab.logs, f"{name}.console")
        self.seen = 0  # how much of the console `says` has gone past
        tap = f"tap-{name}"
        lab.run("switch", "ip", "tuntap", "add", "dev", tap, "mode", "tap")
        lab.run("switch", "ip", "link", "set", tap, "mtu", str(lab.mtu), "master", "br1", "up")
        self.pipe = Pipe(lab.path(name + ".console"))
        argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                "-machine", f"q35,accel={ACCEL}", "-cpu", "max" if ACCEL.startswith("tcg") else "host",
                "-smp", cpus, "-m", memory, "-object", "rng-random,id=rng,filename=/dev/urandom",
                "-device", "virtio-rng-pci,rng=rng",
                "-chardev", f"pipe,id=console,path={self.pipe.path},logfile={self.console_path}",
                "-serial", "chardev:console",
                "-netdev", f"tap,id=net0,ifname={tap},script=no,downscript=no",
                "-device", f"virtio-net-pci,netdev=net0,mac=02:00:00:00:01:{0x80 + len(lab.processes) % 0x80:02x},"
                f"host_mtu={lab.mtu},romfile=",
                "-monitor", f"unix:{lab.path(name + '.monitor')},server=on,wait=off"]
        for number, path in enumerate(disks):
            argv += ["-drive", f"if=none,id=disk{number},format=raw,cache=none,file={path}",
                     "-device", f"virtio-blk-pci,drive=disk{number}"]
        self.argv = [*argv, *boot]
        self.process = lab.start("switch", *self.argv, name=f"qemu-{name}")
        self.monitor = lab.path(name + ".monitor")

    def begins(self):
        """Waits until a kernel that was started directly is up. QEMU's software emulation of several processors now and then
        executes the breakpoint with which a kernel patches itself as it begins: that is no fault of what is tried here, so it
        is started again."""
        for _ in range(BREAKPOINTS_MAX):
            until("a kernel that is up, or gone", 120, lambda: "guest-init: up" in self.console or not self.process.running)
            if "guest-init: up" in self.console or "Oops: int3" not in self.console:
                break
            print("      the emulator ran into a breakpoint while the kernel began: started again", flush=True)
            os.rename(self.console_path, self.console_path + ".breakpoint")
            self.process = self.lab.start("switch", *self.argv, name=f"qemu-{self.name}")
        return self

    @property
    def console(self):
        """What it has printed so far."""
        return harness.read(self.console_path).replace("\r", "") if os.path.exists(self.console_path) else ""

    @property
    def last(self):
        """Its last lines, for a failure's report: without the kernel's log, which is told whole at the end."""
        return tail("\n".join(line for line in self.console.splitlines() if not line.startswith("guest-log: ")))

    def says(self, what, seconds):
        """Waits until the console holds this text (a regular expression) behind what was waited for before; returns
        the match."""
        def look():
            found = re.compile(what, re.M).search(self.console, self.seen)
            if not found and not self.process.running:
                raise Failure(f"the guest ended, exit {self.process.popen.returncode}, without '{what}'\n"
                              f"{self.last}{tail(self.process.stderr)}")
            return found
        try:
            found = until(f"'{what}' on the console", seconds, look, every=0.2)
        except Failure as failure:
            self.tell_stacks()
            raise Failure(f"{failure}\n{self.last}") from None
        self.seen = found.end()
        return found

    def types(self, text):
        """As at its keyboard."""
        self.pipe.types(text)

    def ends(self, seconds):
        """Waits until it is off."""
        try:
            self.process.wait(seconds)
        except Failure as failure:
            self.tell_stacks()
            raise Failure(f"{failure}\n{self.last}") from None
        self.pipe.close()
        return self

    def tell_stacks(self):
        """A guest that stands still: its kernel panics and leaves the stacks of all its tasks in the console's log, the
        only place that tells for what they wait."""
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(self.monitor)
                line.sendall(b"nmi\n")
                self.process.wait(30)
        except (OSError, Failure):
            pass  # It has ended already, or is no Linux: there is nothing more to tell.

    def finishes(self, seconds):
        """Waits for the end of a guest that powers off after its command, which must have said 0."""
        self.ends(seconds)
        said = re.findall(r"^guest-exit: (\d+)", self.console, re.M)
        check(said[-1:] == ["0"], f"the guest's command: exit {said[-1] if said else 'never said'}\n{self.last}")
        return self

    def no_trouble(self):
        """Fails if the kernel has complained of a disk, of memory or of a task that stood still."""
        found = [line for line in self.console.splitlines() if TROUBLE.search(line)]
        check(not found, "the guest's kernel complains:\n" + "\n".join(found[:10]))
        return self


class Pipe:
    """A console's two pipes. What comes out of it is in its log as well, and is only taken here: where it is not at once, QEMU
    writes characters to the log twice and drops others, as it does behind 300 that nobody took from a socket."""

    ROOM = 1 << 20  # More than any guest prints in a go.

    def __init__(self, path):
        self.path = path
        for way in (".in", ".out"):
            os.mkfifo(path + way)
        # Of both ends, so that nobody waits for QEMU, which may be started again.
        self.input, self.output = (os.open(path + way, os.O_RDWR) for way in (".in", ".out"))
        fcntl.fcntl(self.output, fcntl.F_SETPIPE_SZ, self.ROOM)
        self.is_over = False
        threading.Thread(target=self.take, daemon=True).start()

    def take(self):
        while not self.is_over:
            os.read(self.output, self.ROOM)
        os.close(self.output)

    def types(self, text):
        os.write(self.input, text.encode())

    def close(self):
        """Nobody is at either end any more."""
        if not self.is_over:
            self.is_over = True
            os.write(self.output, b"\n")
            os.close(self.input)


def kernel(system, initramfs, append=""):
    """Boots a kernel with a first file system."""
    # See `Machine.tell_stacks`.
    append = f"console=ttyS0 panic=-1 unknown_nmi_panic=1 panic_print=3 quiet {append}".strip()
    return ["-kernel", system.image, "-initrd", initramfs, "-append", append]
