"""The laboratory: that it measures, stores, goes on and draws. Nothing here asserts how fast anything is."""

import json
import os
import signal

import harness
from harness import check, run, until
import node
from registry import test

SHORT = ["--only", "10g-m9000/randread-4k-1x1/", "--only", "/packet", "--rounds", "2", "--seconds", "0.5"]


def namespaces(pid):
    return [name for name in os.listdir("/run/netns") if name.startswith(f"tw-lab-{pid}-")]


def of_a_disk(pid):
    """Loop devices, mounts and control groups of the laboratory with this process id."""
    name = f"tw-lab-{pid}"
    loops = [line for line in run("losetup", "-a").stdout.splitlines() if name in line]
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        found = loops + [line for line in mounts if name in line]
    for root, _, _ in os.walk("/sys/fs/cgroup"):
        if os.path.basename(root).startswith(name):
            found.append(root)
    return found


def is_fio(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip() == "fio"
    except OSError:
        return False


@test(seconds=60, links=0)
def two_short_points():
    """One point of Figure 1, two rounds: figures, JSON, SVG; and a second run measures nothing again."""
    out = os.path.join(harness.WORK_ROOT, f"tw-e2e-{os.getpid()}-lab")
    try:
        first = run(node.LAB, "fig1", *SHORT, "--out", out, "--json")
        section = json.loads(first.stdout)
        chart = next(d for name, d in section["drawings"] if name == "4k")
        spots = chart["lines"][0]["spots"]
        check(len(spots) == 1 and spots[0]["y"]["rounds"] == 2, f"two rounds of one point, not {spots}")
        check(0 < spots[0]["y"]["median"] < 100, f"a share of the line, not {spots}")
        for name in ("fig1.json", "fig1-4k.svg", "samples.jsonl"):
            check(os.path.getsize(os.path.join(out, name)) > 0, f"{name} is empty")
        second = run(node.LAB, "fig1", *SHORT, "--out", out, "--json")
        check("/2 " not in second.stderr, f"it measured again what was stored:\n{second.stderr}")
        check(json.loads(second.stdout)["drawings"] == section["drawings"], "the same samples, another drawing")
        done = run(node.LAB, "report", "--draw", "--quick", "--out", out)
        check("report.html" in done.stdout, done.stdout)
    finally:
        run("rm", "-rf", out)


@test(seconds=60)
def interrupted(lab):
    """An interrupt ends a run within seconds, and leaves no namespace, no process and no folder behind."""
    out = lab.path("out")
    process = lab.start("initiator", node.LAB, "fig1", "--only", "/packet", "--seconds", "20", "--out", out)
    until("the laboratory's namespaces", 10, lambda: len(namespaces(process.pid)) == 3)
    until("its bench", 10, lambda: any(
        harness.processes_in(name) for name in namespaces(process.pid) if name.endswith("-i1")))
    process.kill(signal.SIGINT)
    process.wait(10, expect=1)
    check("interrupted" in process.stderr, process.stderr)
    check(not namespaces(process.pid), f"left: {namespaces(process.pid)}")
    check(not os.path.exists(f"/dev/shm/tw-lab-{process.pid}"), "its folder is left")


@test(seconds=60)
def killed(lab):
    """What a laboratory that was killed outright left, the next one removes."""
    process = lab.start("initiator", node.LAB, "fig1", "--only", "/packet", "--seconds", "20",
                        "--out", lab.path("out"))
    until("the laboratory's namespaces", 10, lambda: len(namespaces(process.pid)) == 3)
    process.kill().wait(10, expect=None)
    check(len(namespaces(process.pid)) == 3, "a killed laboratory cleans up nothing")
    run(node.LAB, "table4", "--only", "randread-4k-1x1/null", "--rounds", "1", "--seconds", "0.1",
        "--out", lab.path("out2"))
    check(not namespaces(process.pid), f"left: {namespaces(process.pid)}")


@test(seconds=90)
def interrupted_in_a_face(lab):
    """An interrupt under the load of a block device leaves no device, no mount and no process behind."""
    process = lab.start("initiator", node.LAB, "faces", "--only", "randread-4k-1x32/block-packet", "--seconds", "30",
                        "--out", lab.path("out"))
    until("the laboratory's device and fio on it", 30, lambda: of_a_disk(process.pid) and any(
        is_fio(pid) for name in namespaces(process.pid) for pid in harness.processes_in(name)))
    process.kill(signal.SIGINT)
    process.wait(20, expect=1)
    check("interrupted" in process.stderr, process.stderr)
    check(not namespaces(process.pid) and not of_a_disk(process.pid),
          f"left: {namespaces(process.pid)} {of_a_disk(process.pid)}")


@test(seconds=90)
def killed_with_a_disk(lab):
    """Loop device, control group and image of a limited disk whose laboratory was killed go with the next one."""
    out = lab.path("out")
    process = lab.start("initiator", node.LAB, "disks", "--only", "read-128k-1x8/limited", "--seconds", "20",
                        "--out", out)
    until("its limited disks", 30, lambda: len(of_a_disk(process.pid)) >= 4)
    process.kill().wait(10, expect=None)
    folder = os.path.join(out, f"tw-lab-{process.pid}")
    check(of_a_disk(process.pid) and os.path.exists(folder), "a killed laboratory cleans up nothing")
    run(node.LAB, "table4", "--only", "randread-4k-1x1/null", "--rounds", "1", "--seconds", "0.1", "--out", out)
    check(not of_a_disk(process.pid) and not os.path.exists(folder), f"left: {of_a_disk(process.pid)} {folder}")
