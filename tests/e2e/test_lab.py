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
