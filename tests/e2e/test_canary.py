"""Canaries: the load that proves Thinwire right must prove a lying disk wrong. The disks here are
nbdkit's; no Thinwire is involved, except in the harness's own tests."""

import json
import os
import subprocess
import sys
import time

import frames
import harness
import load
from harness import Failure, check, read, run, until
from registry import test

# The n-th write is acknowledged and forgotten; every byte read is honest otherwise.
LOSES_A_WRITE = """
    n=$(($(cat "$N") + 1)); echo $n > "$N"
    if [ $n -eq 30 ]; then cat > /dev/null; else dd of="$IMAGE" conv=notrunc oflag=seek_bytes seek=$4 bs=1M 2>/dev/null; fi
"""
# Every tenth read has one flipped byte in it. (Not a single read: fio's mix reads blocks, too, that it
# has no checksum of.)
CORRUPTS_A_READ = """
    n=$(($(cat "$N") + 1)); echo $n > "$N"
    dd if="$IMAGE" iflag=skip_bytes,count_bytes,fullblock skip=$4 count=$3 bs=1M 2>/dev/null |
    if [ $((n % 10)) -eq 0 ]; then { head -c 100; head -c 1 | tr '\\000-\\377' '\\001-\\377\\000'; cat; }; else cat; fi
"""
READS = 'dd if="$IMAGE" iflag=skip_bytes,count_bytes,fullblock skip=$4 count=$3 bs=1M 2>/dev/null'
WRITES = 'dd of="$IMAGE" conv=notrunc oflag=seek_bytes seek=$4 bs=1M 2>/dev/null'


def lying_disk(lab, pread=READS, pwrite=WRITES):
    """An nbdkit whose reads and writes are shell scripts."""
    with open(lab.path("image"), "wb") as file:
        file.truncate(8 << 20)
    with open(lab.path("n"), "w", encoding="ascii") as file:
        file.write("0\n")
    socket = lab.path("lying.sock")
    lab.start("initiator", "nbdkit", "-f", "-U", socket, "-t", "1", "eval", "get_size=echo 8388608",
              f"pread={pread}", f"pwrite={pwrite}", "flush=true", "can_write=true", "can_flush=true",
              env={"IMAGE": lab.path("image"), "N": lab.path("n")})
    until("nbdkit's socket", 10, lambda: os.path.exists(socket))
    return f"nbd+unix:///?socket={socket}"


def must_fail(lab, nbd):
    try:
        load.verified(lab, nbd, mib=8, timeout=60)
    except Failure as failure:
        check("verify" in str(failure) or "error 84" in str(failure),
              f"fio failed, but not because of what it read:\n{failure}")
        return
    raise Failure("the load did not notice")


@test(seconds=90, needs_binary=False)
def honest_disk_passes(lab):
    """The same disk made of shell scripts, telling the truth, passes."""
    load.verified(lab, lying_disk(lab), mib=8, timeout=80)


@test(seconds=90, needs_binary=False)
def lost_write_is_caught(lab):
    """A disk that acknowledges one write and forgets it fails the load."""
    must_fail(lab, lying_disk(lab, pwrite=LOSES_A_WRITE))


@test(seconds=90, needs_binary=False)
def corrupt_read_is_caught(lab):
    """A disk that flips one byte in one read fails the load."""
    must_fail(lab, lying_disk(lab, pread=CORRUPTS_A_READ))


@test(seconds=60, links=2, needs_binary=False)
def the_switch_drops_and_cuts(lab):
    """The switch drops about the share it is told, counts it, and a port taken down cuts its link alone."""
    def arrive(link, count):
        before = received(lab, link)
        frames.send(lab, "initiator", [bytes(1000)] * count, link)
        time.sleep(0.1)
        return received(lab, link) - before
    check(arrive(1, 10) == 10 and arrive(2, 10) == 10, "both links carry frames to begin with")
    lab.port(2, up=False)
    check(arrive(1, 10) == 10 and arrive(2, 10) == 0, "the second link is cut, the first is not")
    lab.port(2, up=True)
    until("the second link is back", 5, lambda: arrive(2, 10) == 10)
    lab.drop(20)
    came = arrive(1, 2000)
    seen, dropped = lab.dropped()
    check(seen == 2000 and came == seen - dropped, f"sent 2000, the switch saw {seen}, dropped {dropped}, {came} came")
    check(0.15 < dropped / seen < 0.25, f"asked for 20 %, dropped {dropped} of {seen}")
    lab.drop(0)
    check(arrive(1, 200) == 200, "nothing is dropped any more")


def received(lab, link):
    rows = json.loads(lab.run("target", "ip", "-j", "-s", "link", "show", f"eth{link}").stdout)
    return rows[0]["stats64"]["rx"]["packets"]


@test(seconds=60, links=0, needs_binary=False)
def a_killed_runner_is_swept():
    """What a runner killed with -9 leaves (namespaces, processes, mounts) the next one takes down."""
    here = os.path.dirname(os.path.abspath(__file__))
    script = (
        "import sys, os, time; sys.path.insert(0, %r); import harness\n"
        "lab = harness.Lab(sys.argv[1]); lab.start('target', 'sleep', '1000')\n"
        "os.mkdir(lab.path('m')); harness.run('mount', '-t', 'tmpfs', 'none', lab.path('m'))\n"
        "print(lab.tag, flush=True); time.sleep(1000)\n" % here)
    logs = os.path.join(harness.WORK_ROOT, f"{harness.PREFIX}-{os.getpid()}-logs")
    child = subprocess.Popen([sys.executable, "-c", script, logs], stdout=subprocess.PIPE, text=True)
    try:
        tag = child.stdout.readline().strip()
        check(os.path.exists(f"/run/netns/{tag}-t"), "the doomed runner made its namespaces")
        sleeper = harness.processes_in(f"{tag}-t")
        child.kill()
        child.wait()
        check(sleeper, "the doomed runner started its process")
        harness.sweep()
        for side in "ist":
            check(not os.path.exists(f"/run/netns/{tag}-{side}"), f"{tag}-{side} is still there")
        check(not any(os.path.exists(f"/proc/{pid}") and "Z" not in read(f"/proc/{pid}/stat").split()[2]
                      for pid in sleeper), "its process still runs")
        check(not harness.mounts_below(os.path.join(harness.WORK_ROOT, tag)), "its mount is still there")
        check(not os.path.exists(os.path.join(harness.WORK_ROOT, tag)), "its folder is still there")
    finally:
        child.kill()
        child.wait()
        run("rm", "-rf", logs)
