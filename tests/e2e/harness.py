"""A laboratory: an initiator, a switch and a target, each a network namespace of its own, and the
processes that run in them.

    initiator eth1 --- i1 [br1] t1 --- eth1 target        10.77.1.1   10.77.1.2
    initiator eth2 --- i2 [br2] t2 --- eth2 target        10.77.2.1   10.77.2.2

The switch namespace holds one bridge a link, so that frames between the sides are *forwarded*, can
be dropped there (nftables) and each link can be cut by taking a port down.

Everything a laboratory makes carries the process id of its maker in its name. It is taken down when
the laboratory is closed, when the maker exits or is interrupted, and, should the maker have been
killed outright, by the next one that starts (`sweep`). Processes are found by the namespace they are
in and ended by process id; nothing is ever looked for by the name of its command.
"""

import atexit
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

PREFIX = "tw-e2e"
WORK_ROOT = "/var/tmp"
SIDES = ("initiator", "switch", "target")


class Failure(Exception):
    """A test's expectation that did not hold; its text is the report."""


def check(condition, message):
    """Fails the test with `message` unless `condition` holds."""
    if not condition:
        raise Failure(message)


def until(what, seconds, probe, every=0.05):
    """Waits until `probe()` is truthy and returns it; fails with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > end:
            raise Failure(f"waited {seconds} s in vain: {what}")
        time.sleep(every)


def run(*argv, check_exit=True, timeout=60, **options):
    """Runs a plain command to its end and returns it with its output captured."""
    if "input" not in options:
        options["stdin"] = subprocess.DEVNULL
    try:
        done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, errors="replace",
                              timeout=timeout, check=False, **options)
    except subprocess.TimeoutExpired as late:
        said = "".join(tail((text or b"").decode(errors="replace")) for text in (late.stdout, late.stderr))
        raise Failure(f"{' '.join(map(str, argv))}\nstill running after {timeout} s\n{said}") from None
    if check_exit and done.returncode != 0:
        raise Failure(f"{' '.join(map(str, argv))}\nexit {done.returncode}\n{tail(done.stdout)}{tail(done.stderr)}")
    return done


def tail(text, lines=30):
    """The last lines of an output, for a failure's report."""
    return "\n".join(text.rstrip().split("\n")[-lines:]) + "\n" if text.strip() else ""


class Process:
    """A process in one side of a laboratory, in a process group of its own, with its output in files."""

    def __init__(self, lab, side, argv, name=None, env=None, cwd=None):
        lab.count += 1
        self.lab = lab
        self.argv = [str(a) for a in argv]
        self.name = name or os.path.basename(self.argv[0])
        base = os.path.join(lab.logs, f"{lab.count:02}-{self.name}")
        self.stdout_path, self.stderr_path = base + ".out", base + ".err"
        with open(self.stdout_path, "wb") as out, open(self.stderr_path, "wb") as err:
            # start_new_session: an interrupt at the terminal reaches the runner alone, which then
            # ends its processes in the right order.
            self.popen = subprocess.Popen(
                lab.enter(side) + self.argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True, cwd=cwd or lab.dir, env={**os.environ, **(env or {})})
        self.usage = None
        lab.processes.append(self)

    @property
    def pid(self):
        return self.popen.pid

    @property
    def running(self):
        return self.popen.poll() is None

    @property
    def stdout(self):
        return read(self.stdout_path)

    @property
    def stderr(self):
        return read(self.stderr_path)

    def wait(self, timeout=60, expect=0):
        """Waits for the end; fails unless it exits with `expect` (None: any)."""
        try:
            code = self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self}: still running after {timeout} s\n{tail(self.stderr)}") from None
        if expect is not None and code != expect:
            raise Failure(f"{self}: exit {code}, expected {expect}\n{tail(self.stdout)}{tail(self.stderr)}")
        return self

    def kill(self, sig=signal.SIGKILL):
        """Sends a signal to this process alone (nsenter has become it by exec)."""
        if self.running:
            os.kill(self.pid, sig)
        return self

    def end(self, timeout=5):
        """Ends the process group: asks, then kills."""
        if self.popen.returncode is not None:
            return
        for sig, seconds in ((signal.SIGTERM, timeout), (signal.SIGKILL, timeout)):
            try:
                os.killpg(self.pid, sig)
            except ProcessLookupError:
                pass
            try:
                self.popen.wait(seconds)
                return
            except subprocess.TimeoutExpired:
                continue

    def __str__(self):
        return " ".join(self.argv)


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


class Lab:
    """Three namespaces, `links` links between them, a work folder and a log folder."""

    made = 0

    def __init__(self, logs, links=1, mtu=9000):
        Lab.made += 1
        self.tag = f"{PREFIX}-{os.getpid()}-{Lab.made}"
        self.dir = os.path.join(WORK_ROOT, self.tag)
        self.logs = logs
        self.links = links
        self.mtu = mtu
        self.count = 0
        self.processes = []
        # Those that a test has do what is refused.
        self.may_be_refused = []
        self.closed = False
        os.makedirs(self.logs, exist_ok=True)
        LABS.append(self)
        os.makedirs(self.dir)
        for side in SIDES:
            run("ip", "netns", "add", self.netns(side))
            # No addresses of their own making and no chatter: an idle wire is really idle.
            self.run(side, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1",
                     "net.ipv6.conf.default.disable_ipv6=1")
            self.run(side, "ip", "link", "set", "lo", "up")
        for link in range(1, links + 1):
            self._wire(link)

    def _wire(self, link):
        bridge = f"link add br{link} mtu {self.mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
        self._cable(link, ("initiator", "target"), bridge, f"link set br{link} up")

    def _cable(self, link, sides, *before):
        """Joins sides to the switch by a link, after these commands there."""
        batch, numbered = list(before), [(side, 1 + ("initiator", "target").index(side)) for side in sides]
        for side, number in numbered:
            port, mac = f"{side[0]}{link}", f"02:00:00:00:{link:02x}:{number:02x}"
            batch += [
                f"link add {port} mtu {self.mtu} type veth peer name eth{link} mtu {self.mtu} "
                f"address {mac} netns {self.netns(side)}",
                f"link set {port} master br{link} up",
            ]
        self.run("switch", "ip", "-batch", "-", input="\n".join(batch) + "\n")
        for side, number in numbered:
            self.run(side, "ip", "-batch", "-", input=f"""
                addr add 10.77.{link}.{number}/24 dev eth{link}
                link set eth{link} up
            """)

    # -- names

    def netns(self, side):
        return f"{self.tag}-{side[0]}"

    def enter(self, side):
        """What precedes a command so that it runs on a side. Not `ip netns exec`, which makes a
        private mount namespace, in which mounts are invisible to everybody else."""
        return ["nsenter", f"--net=/run/netns/{self.netns(side)}"]

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def address(self, side, link=1):
        return f"10.77.{link}.{1 if side == 'initiator' else 2}"

    # -- commands

    def run(self, side, *argv, **options):
        """Runs a command on a side to its end."""
        return run(*self.enter(side), *argv, **options)

    def start(self, side, *argv, **options):
        """Starts a command on a side."""
        return Process(self, side, argv, **options)

    # -- the wire

    def drop(self, percent):
        """From now on the switch drops this share of the frames it forwards (0: none)."""
        chosen = "" if percent >= 100 else f"numgen random mod 1000 < {int(percent * 10)}"
        self.run("switch", "nft", "-f", "-", input="table bridge tw {}\ndelete table bridge tw\n" + (f"""
            table bridge tw {{
                counter seen {{}}
                counter dropped {{}}
                chain forward {{
                    type filter hook forward priority 0; policy accept;
                    counter name seen
                    {chosen} counter name dropped drop
                }}
            }}""" if percent else ""))

    def dropped(self):
        """(frames forwarded or dropped, frames dropped) since `drop` was last called."""
        rows = json.loads(self.run("switch", "nft", "-j", "list", "counters", "table", "bridge", "tw").stdout)
        packets = {r["counter"]["name"]: r["counter"]["packets"] for r in rows["nftables"] if "counter" in r}
        return packets["seen"], packets["dropped"]

    def port(self, link, up, side="target"):
        """Takes a port of the switch down (the cable is out: the other end loses its carrier) or up."""
        self.run("switch", "ip", "link", "set", f"{side[0]}{link}", "up" if up else "down")

    def remake(self, link, side="target"):
        """Removes the interface of a side, and makes another of its name and address."""
        self.run("switch", "ip", "link", "del", f"{side[0]}{link}")
        self._cable(link, (side,))

    def forwarded(self, link):
        """Frames that came in from the initiator on a link, from the port's counter."""
        rows = json.loads(self.run("switch", "ip", "-j", "-s", "link", "show", f"i{link}").stdout)
        return rows[0]["stats64"]["rx"]["packets"]

    # -- the end

    def check_nothing_was_refused(self):
        """A call that a target makes, and that is missing in its list (`crates/runtime/src/confine/calls.rs`)."""
        for process in self.processes:
            if process not in self.may_be_refused:
                said = [line for line in process.stderr.split("\n") if "refused by seccomp" in line]
                check(not said, f"{process}:\n" + "\n".join(said))

    def close(self):
        """Takes everything down. Safe to call at any time, and again."""
        if self.closed:
            return
        self.closed = True
        teardown(self.tag)
        for process in self.processes:
            process.end(timeout=1)  # what is left to do is to reap them
        if self in LABS:
            LABS.remove(self)


LABS = []


def processes_in(netns):
    done = run("ip", "netns", "pids", netns, check_exit=False)
    return [int(pid) for pid in done.stdout.split()]


def teardown(tag):
    """Removes what a laboratory of this tag made, however much of it is there."""
    names = [f"{tag}-{side[0]}" for side in SIDES]
    work = os.path.join(WORK_ROOT, tag)
    # File systems first, so that a disk is not pulled from under them while its server still lives.
    unmount(work, keep_fuse=True)
    # The initiator's first: an attachment leaves in order while its target still answers.
    for name in names:
        for pid in processes_in(name):
            signal_quietly(pid, signal.SIGTERM)
        end = time.monotonic() + 2
        while time.monotonic() < end and processes_in(name):
            time.sleep(0.02)
        for pid in processes_in(name):
            signal_quietly(pid, signal.SIGKILL)
    unmount(work, keep_fuse=False)
    for name in names:
        if os.path.exists(f"/run/netns/{name}"):
            run("ip", "netns", "delete", name, check_exit=False)
    shutil.rmtree(work, ignore_errors=True)


def signal_quietly(pid, sig):
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def mounts_below(folder):
    """(mount point, type) below a folder, the newest first."""
    found = []
    with open("/proc/self/mounts", encoding="utf-8") as file:
        for line in file:
            _, point, kind = line.split(" ")[:3]
            point = re.sub(r"\\(\d{3})", lambda m: chr(int(m.group(1), 8)), point)
            if point == folder or point.startswith(folder + "/"):
                found.append((point, kind))
    return found[::-1]


def loops_below(folder):
    """Loop devices whose file is below a folder."""
    found = []
    for name in os.listdir("/sys/block"):
        try:
            if read(f"/sys/block/{name}/loop/backing_file").startswith(folder + "/"):
                found.append("/dev/" + name)
        except OSError:
            continue
    return found


def unmount(folder, keep_fuse):
    for point, kind in mounts_below(folder):
        if not (keep_fuse and kind.startswith("fuse")):
            if run("umount", point, check_exit=False).returncode:
                run("umount", "-l", point, check_exit=False)
    if not keep_fuse:
        for device in loops_below(folder):
            run("losetup", "-d", device, check_exit=False)


def sweep():
    """Takes down what a killed runner left: what carries our prefix and a dead process's id."""
    tags = set()
    for place in ("/run/netns", WORK_ROOT):
        for name in os.listdir(place) if os.path.isdir(place) else []:
            match = re.match(rf"({PREFIX}-(\d+)-\d+)(-[ist])?$", name)
            if match and not os.path.exists(f"/proc/{match.group(2)}"):
                tags.add(match.group(1))
    for tag in sorted(tags):
        print(f"harness: taking down {tag}, left by a runner that was killed", file=sys.stderr)
        teardown(tag)


def close_all():
    for lab in list(LABS):
        try:
            lab.close()
        except Exception as error:  # one lab's trouble must not keep the others standing
            print(f"harness: {lab.tag}: {error}", file=sys.stderr)


def install():
    """Makes sure that laboratories come down whatever ends this process, short of SIGKILL."""
    def stop(number, _frame):
        raise SystemExit(128 + number)
    # Set explicitly: started in the background by a shell, SIGINT would be ignored.
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, stop)
    atexit.register(close_all)
    sweep()
