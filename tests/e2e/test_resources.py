"""What an idle pair costs."""

import json
import os
import re
import signal
import time

import load
from harness import check, until
from node import Attachment, Target, image, uri, thinwire
from registry import test


def cpu_seconds(pid):
    """utime + stime of a process with all its threads."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wakeups(pid):
    """How often its threads have begun to wait."""
    counted = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        counted += int(fields["voluntary_ctxt_switches"])
    return counted


@test(seconds=90, each={over: {"over": over} for over in ("packet", "udp", "xdp")})
def idle_cpu(lab, over):
    """An idle attached pair uses less than 1 % of one core in all, and wakes ten times a second at most.

    What the host of a virtual machine takes from it counts as used by whoever ran: a window in which that was much is
    followed by another one, in which whoever is not idle is not, either. How often they wake nobody adds to.
    """
    target = Target(lab, f"disk0={image(lab)}", over=over)
    disk = Attachment(lab, uri(lab, over=over))
    lab.run("initiator", "nbdinfo", "--size", disk.nbd)
    time.sleep(1)
    pids = (target.process.pid, disk.pid())
    used = []
    while not used or (used[-1] >= 0.10 and len(used) < 3):
        before, woken = sum(map(cpu_seconds, pids)), sum(map(wakeups, pids))
        time.sleep(10)
        used.append(sum(map(cpu_seconds, pids)) - before)
        woken = sum(map(wakeups, pids)) - woken
        check(woken < 100, f"an idle pair woke {woken} times in 10 s, and used {used[-1]:.2f} s of CPU")
    check(used[-1] < 0.10, f"an idle pair used {used} s of CPU in 10 s each")
    disk.detach()


@test(seconds=60)
def spin_always(lab):
    """`--spin always`: both sides say so and never sleep; I/O, SIGTERM and detach are heard as ever."""
    always, run_dir = ("--spin", "always"), lab.path("target-run")
    target = Target(lab, f"disk0={image(lab)}", extra=[*always, "--run-dir", run_dir])
    disk = Attachment(lab, extra=always)
    other = Attachment(lab, "memory:1M", name="other", extra=always)
    load.verified(lab, disk.nbd, mib=8)
    told = thinwire(lab, "status", "--json", "--run-dir", run_dir, side="target").stdout
    check(json.loads(told)["targets"][0]["spin"] == "always" and disk.status()["spin"] == "always", told)
    for argv, side in (("--run-dir", run_dir), "target"), (("--run-dir", disk.run_dir), "initiator"):
        said = thinwire(lab, "status", *argv, side=side).stdout
        check("never sleeps (--spin always)" in said, said)
    pids = (target.process.pid, disk.pid())
    before = list(map(cpu_seconds, pids))
    time.sleep(3)
    # An idle one that sleeps uses a hundredth of that; how much it gets beside others is theirs to say.
    used = [after - earlier for after, earlier in zip(map(cpu_seconds, pids), before)]
    check(min(used) > 0.3, f"they slept: {used} s of CPU in 3 s")
    os.kill(other.pid(), signal.SIGTERM)
    until("the end of an attachment after SIGTERM", 5, lambda: not os.path.exists(other.path))
    disk.detach(timeout=5)
    target.process.kill(signal.SIGTERM)
    target.process.wait(5)


@test(seconds=60)
def target_memory(lab):
    """The target with a null export and one attachment stays under 64 MiB of resident memory, after load too."""
    target = Target(lab, "disk0=null:1T")
    disk = Attachment(lab)

    def resident():
        with open(f"/proc/{target.process.pid}/status", encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1)) / 1024
    idle = resident()
    disk.detach()
    for pattern, size in (("randread", "128k"), ("randwrite", "128k"), ("randread", "4k")):
        thinwire(lab, "bench", uri(lab), "--rw", pattern, "--bs", size, "--iodepth", "64", "--runtime", "1")
    loaded = resident()
    check(idle < 64 and loaded < 64, f"{idle:.0f} MiB idle, {loaded:.0f} MiB after load")


@test(seconds=60)
def neighbours_are_left_alone(lab):
    """On an interface that several attachments share, and a target, one's traffic costs the others nothing."""
    Target(lab, "disk0=memory:64M", "disk1=memory:64M")
    local = Target(lab, "disk2=memory:1M", name="node2", side="initiator")
    idle = Attachment(lab, uri(lab, "disk1"), name="disk1")
    pids = (idle.pid(), local.process.pid)
    before = list(map(cpu_seconds, pids))
    done = thinwire(lab, "bench", uri(lab), "--rw", "randread", "--iodepth", "32", "--runtime", "4", "--json")
    used = [after - earlier for after, earlier in zip(map(cpu_seconds, pids), before)]
    ios = json.loads(done.stdout)["iops"] * 4
    check(ios > 10000, f"only {ios:.0f} I/Os: that would not be noticed")
    check(max(used) < 0.08, f"an idle attachment and a target beside {ios:.0f} I/Os of another used {used} s of CPU")
    idle.detach()
