#!/usr/bin/python3
"""Speed, side by side: Thinwire natively (packet, udp) and through its NBD face, nbdkit's memory
plugin over TCP with fio's nbd engine, and a bare echo as the limit of the link. All of them through
the same switch namespace, on the same random bytes, interleaved: each round runs every contender
once on a load before the next load, and starts with another contender than the round before.

    perf.py --built target/release [--rounds 3] [--seconds 3] [--only WORD] [--json FILE] [--dry]

Figures are medians over the rounds; ratios are taken within a round, so that a machine that is busy
for a while slows both sides of a ratio. Writes docs/performance.md between its markers (not with
--dry or --only) and prints each bar as met or missed. Exit status 0 whether or not they are met.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import harness  # noqa: E402  (the path is set above)
import node  # noqa: E402
from harness import Failure, run, until  # noqa: E402
from test_resources import cpu_seconds  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCUMENT = os.path.join(ROOT, "docs", "performance.md")
BEGIN, END = "<!-- bench: begin, written by scripts/bench.sh -->", "<!-- bench: end -->"
MIB = 512  # of each volume; all of it is written before
FRAME_PAYLOAD = 8192  # bytes of data in a frame at MTU 9000: whole pages

# name: (pattern, block, outstanding, loss in percent)
LOADS = {
    "rr4k-1": ("randread", 4096, 1, 0),
    "rr4k-32": ("randread", 4096, 32, 0),
    "r128k-8": ("read", 131072, 8, 0),
    "w128k-8": ("write", 131072, 8, 0),
    "rr4k-32-loss": ("randread", 4096, 32, 2),
}
TITLES = {
    "rr4k-1": "4 KiB random reads, 1 outstanding",
    "rr4k-32": "4 KiB random reads, 32 outstanding",
    "r128k-8": "128 KiB reads in order, 8 outstanding",
    "w128k-8": "128 KiB writes in order, 8 outstanding",
    "rr4k-32-loss": "4 KiB random reads, 32 outstanding, 2 % of the frames dropped by the switch",
}
CONTENDERS = {
    "nbdkit": "nbdkit memory over TCP, fio nbd engine",
    "packet": "Thinwire, packet link, `bench`",
    "udp": "Thinwire, udp link, `bench`",
    "face": "Thinwire, packet link, NBD face, fio nbd engine",
    "echo-packet": "bare echo of such frames, packet link",
    "echo-udp": "bare echo of such frames, udp link",
}
# load, contender, what is compared with what, the bar
BARS = [
    ("4 KiB random reads at depth 32, packet: IOPS over nbdkit's", "rr4k-32", "packet", "iops", 1.5),
    ("4 KiB random reads at depth 32, udp: IOPS over nbdkit's", "rr4k-32", "udp", "iops", 1.5),
    ("4 KiB random reads at depth 1, packet: mean latency over nbdkit's", "rr4k-1", "packet", "latency", 1.0),
    ("4 KiB random reads at depth 1, udp: mean latency over nbdkit's", "rr4k-1", "udp", "latency", 1.0),
    ("128 KiB reads, packet: rate over nbdkit's", "r128k-8", "packet", "iops", 0.7),
    ("128 KiB writes, packet: rate over nbdkit's", "w128k-8", "packet", "iops", 0.7),
    ("128 KiB reads, udp: rate over nbdkit's", "r128k-8", "udp", "iops", 1.2),
    ("128 KiB writes, udp: rate over nbdkit's", "w128k-8", "udp", "iops", 1.2),
    ("4 KiB random reads at depth 32, NBD face: IOPS over nbdkit's", "rr4k-32", "face", "iops", 0.6),
    ("2 % loss, packet: IOPS kept of the lossless rate", "rr4k-32-loss", "packet", "kept", 0.4),
    ("2 % loss, udp: IOPS kept of the lossless rate", "rr4k-32-loss", "udp", "kept", 0.4),
]


class Stand:
    """The laboratory with all contenders' servers up; those that are not measured sleep."""

    def __init__(self, logs, seconds):
        self.seconds = seconds
        # A switch of its own: the target would have to refuse each of the echo's frames.
        self.echo_lab = harness.Lab(os.path.join(logs, "echo"))
        self.lab = lab = harness.Lab(logs)
        self.blob = lab.path("blob")
        with open(self.blob, "wb") as file:
            for _ in range(MIB):
                file.write(os.urandom(1 << 20))
        self.nbdkit = lab.start("target", "nbdkit", "-f", "-p", "10809", "memory", f"{MIB}M")
        self.nbdkit_uri = f"nbd://{lab.address('target')}:10809/"
        self.target = node.Target(lab, f"disk0=memory:{MIB}M", f"disk1=memory:{MIB}M", extra=[
            "--link", f"udp:{lab.address('target')}"])
        until("nbdkit", 10, lambda: lab.run("initiator", "nbdinfo", self.nbdkit_uri, check_exit=False).returncode == 0)
        # Both hold the same random bytes in memory that is there: neither answers from nothing.
        lab.run("initiator", "nbdcopy", self.blob, self.nbdkit_uri)
        node.thinwire(lab, "copy", self.blob, node.uri(lab), timeout=120)
        node.thinwire(lab, "copy", self.blob, node.uri(lab, "disk1"), timeout=120)
        os.remove(self.blob)
        self.face = node.Attachment(lab, node.uri(lab, "disk1"), name="disk1")
        self.face_pid = self.face.pid()

    def measure(self, contender, load):
        """One run: iops, MiB/s, latencies in us, CPU of both sides in us an I/O."""
        pattern, block, depth, loss = LOADS[load]
        if loss:
            self.lab.drop(loss)
        try:
            if contender.startswith("echo"):
                return self.bare_echo(contender.removeprefix("echo-"), pattern, block, depth)
            servers = [self.nbdkit.pid] if contender == "nbdkit" else [self.target.process.pid]
            if contender == "face":
                servers.append(self.face_pid)
            before = [cpu_seconds(pid) for pid in servers]
            if contender in ("nbdkit", "face"):
                found = self.fio(self.nbdkit_uri if contender == "nbdkit" else self.face.nbd, pattern, block, depth)
            else:
                found = self.bench(contender, pattern, block, depth)
            used = sum(cpu_seconds(pid) for pid in servers) - sum(before)
            found["cpu_server"] = used * 1e6 / found["ios"]
            return found
        finally:
            if loss:
                self.lab.drop(0)

    def fio(self, uri, pattern, block, depth):
        process = self.lab.start(
            "initiator", "fio", "--name=perf", "--ioengine=nbd", f"--uri={uri}", f"--rw={pattern}", f"--bs={block}",
            f"--iodepth={depth}", "--time_based", f"--runtime={self.seconds}", f"--size={MIB}m", "--thread",
            "--norandommap", "--randrepeat=0", "--lat_percentiles=1", "--clat_percentiles=0",
            "--output-format=json").wait(self.seconds + 60)
        text = process.stdout
        job = json.loads(text[text.find("{"):])["jobs"][0]
        if job["error"]:
            raise Failure(f"fio: error {job['error']}")
        side = job["write" if "write" in pattern else "read"]
        spread_of = side["lat_ns"]["percentile"]
        return {
            "ios": side["total_ios"], "iops": side["iops"], "mib": side["bw_bytes"] / 1048576,
            "mean": side["lat_ns"]["mean"] / 1000, "p50": spread_of["50.000000"] / 1000, "p99": spread_of["99.000000"] / 1000,
            "cpu_client": (job["usr_cpu"] + job["sys_cpu"]) / 100 * side["runtime"] * 1000 / side["total_ios"],
        }

    def bench(self, over, pattern, block, depth):
        done = node.thinwire(
            self.lab, "bench", node.uri(self.lab, over=over), "--rw", pattern, "--bs", block,
            "--iodepth", depth, "--runtime", self.seconds, "--json", timeout=self.seconds + 60)
        report = json.loads(done.stdout)
        if report["errors"]:
            raise Failure(f"bench: {report['errors']} errors")
        latency = report["latency_us"]
        return {"ios": report["iops"] * report.get("runtime_s", self.seconds), "iops": report["iops"],
                "mib": report["mib_per_s"], "mean": latency["mean"], "p50": latency["p50"], "p99": latency["p99"],
                "cpu_client": report["cpu_us_per_io"]}

    def bare_echo(self, over, pattern, block, depth):
        """The limit: what the link carries with an empty protocol, random blocks of as much memory as the
        volumes have, many requests a frame."""
        link, to = {
            "packet": (("eth1", "eth1"), "02-00-00-00-01-02"),
            "udp": ((f"udp:{self.echo_lab.address('initiator')}", f"udp:{self.echo_lab.address('target')}"),
                    f"{self.echo_lab.address('target')}:34997"),
        }[over]
        shape = ["--rw", "write" if pattern == "write" else "read", "--bs", block,
                 "--frame", block if over == "udp" and block < FRAME_PAYLOAD else FRAME_PAYLOAD]
        server = self.echo_lab.start("target", node.LAB, "echo", "server", "--link", link[1], "--memory", MIB)
        until("the echo's server", 5, lambda: "ready" in server.stdout)
        before = cpu_seconds(server.pid)
        client = self.echo_lab.start(
            "initiator", node.LAB, "echo", "client", "--link", link[0], "--to", to, *shape,
            "--iodepth", depth, "--runtime", self.seconds, "--memory", MIB).wait(self.seconds + 20)
        used = cpu_seconds(server.pid) - before
        server.end()
        report = json.loads(client.stdout)
        latency = report["latency_us"]
        return {"ios": report["ios"], "iops": report["iops"], "mib": report["mib_per_s"], "mean": latency["mean"],
                "p50": latency["p50"], "p99": latency["p99"], "cpu_client": report["cpu_us_per_io"],
                "cpu_server": used * 1e6 / report["ios"]}


def contenders_of(load):
    return [c for c in CONTENDERS
            if not (c.startswith("echo") and LOADS[load][3])]


def measure_all(stand, rounds, only):
    """{(load, contender): [figures of each round]}"""
    results = {}
    for number in range(rounds):
        for load in LOADS:
            names = contenders_of(load)
            shift = number % len(names)
            for contender in names[shift:] + names[:shift]:
                if only and only not in f"{load} {contender}":
                    continue
                figures = stand.measure(contender, load)
                results.setdefault((load, contender), []).append(figures)
                print(f"round {number + 1}: {load:13} {contender:12} {figures['iops']:9.0f} IOPS "
                      f"{figures['mib']:7.0f} MiB/s  p50 {figures['p50']:7.1f} us", flush=True)
                time.sleep(0.3)
    return results


def spread(values, form):
    """Median (least-most)."""
    return f"{form.format(statistics.median(values))} ({form.format(min(values))}–{form.format(max(values))})"


def judge(results):
    """[(text, bar, the ratio of each round or None, met)]"""
    judged = []
    for text, load, contender, what, bar in BARS:
        other = ("rr4k-32", contender) if what == "kept" else (load, "nbdkit")
        if (load, contender) not in results or other not in results:
            continue
        key = "mean" if what == "latency" else "iops"
        ratios = [a[key] / b[key] for a, b in zip(results[load, contender], results[other])]
        middle = statistics.median(ratios)
        judged.append((text, bar, ratios, middle <= bar if what == "latency" else middle >= bar, what))
    return judged


def markdown(results, judged, rounds, seconds):
    commit = run("git", "-C", ROOT, "rev-parse", "--short", "HEAD", check_exit=False).stdout.strip() or "unknown"
    versions = ", ".join(
        run(*command, check_exit=False).stdout.split("\n")[0].strip()
        for command in (("nbdkit", "--version"), ("fio", "--version")))
    cores = os.cpu_count()
    out = [
        f"Commit {commit}, {time.strftime('%Y-%m-%d')}; Linux {platform.release()}, {cores} cores, {processor()}; {versions}.",
        f"Medians of {rounds} rounds of {seconds} s each, in parentheses the least and the most.", "",
    ]
    for load, title in TITLES.items():
        rows = [(c, results[load, c]) for c in CONTENDERS if (load, c) in results]
        if not rows:
            continue
        out += [f"### {title}", "",
                "| | IOPS | MiB/s | mean, us | p50, us | p99, us | CPU, us an I/O: client + server |",
                "|---|---|---|---|---|---|---|"]
        for contender, figures in rows:
            def column(key, form="{:.0f}"):
                return spread([f[key] for f in figures], form)
            client = [f["cpu_client"] for f in figures]
            cpu = "{:.1f} + {:.1f}".format(
                statistics.median(client), statistics.median(f["cpu_server"] for f in figures))
            out.append(f"| {CONTENDERS[contender]} | {column('iops')} | {column('mib')} | {column('mean', '{:.1f}')} | "
                       f"{column('p50', '{:.1f}')} | {column('p99', '{:.1f}')} | {cpu} |")
        out.append("")
    kept = []
    for contender in ("nbdkit", "packet", "udp", "face"):
        if ("rr4k-32", contender) in results and ("rr4k-32-loss", contender) in results:
            ratios = [100 * a["iops"] / b["iops"]
                      for a, b in zip(results["rr4k-32-loss", contender], results["rr4k-32", contender])]
            kept.append(f"{contender} {spread(ratios, '{:.0f}')} %")
    if kept:
        out += ["With 2 % of the frames dropped, of its lossless rate keeps: " + ", ".join(kept) + ".", ""]
    out += ["### The bars", "", "| bar | wanted | measured | |", "|---|---|---|---|"]
    for text, bar, ratios, met, what in judged:
        sign = "at most" if what == "latency" else "at least"
        out.append(f"| {text} | {sign} {bar} | {spread(ratios, '{:.2f}')} | {'met' if met else '**missed**'} |")
    return "\n".join(out) + "\n"


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


FRAME = f"""# Performance

What `make bench` measured, beside what a user would have picked instead, in the same run and through the
same switch: three network namespaces on one machine, a bridge between them, MTU 9000. So client, switch
and server share the processor's cores, and a real network's latency is missing: compare the rows, do not
take the figures for those of two machines.

{BEGIN}
{END}
"""


def write_document(text):
    old = harness.read(DOCUMENT) if os.path.exists(DOCUMENT) else FRAME
    if BEGIN not in old or END not in old:
        raise SystemExit(f"perf.py: {DOCUMENT} has lost its markers; put these lines where the tables go:\n{BEGIN}\n{END}")
    new = old[:old.index(BEGIN) + len(BEGIN)] + "\n" + text + old[old.index(END):]
    with open(DOCUMENT, "w", encoding="utf-8") as file:
        file.write(new)
    print(f"wrote {os.path.relpath(DOCUMENT)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", default=os.path.join(ROOT, "target", "release"), help="where the binaries are")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--only", help="only loads and contenders whose names hold this word")
    parser.add_argument("--json", help="write all figures there")
    parser.add_argument("--dry", action="store_true", help="print the tables, write no document")
    args = parser.parse_args()
    # Nobody else of the peers encrypts.
    node.MODE["security"] = "insecure"
    node.BIN, node.LAB = (os.path.join(os.path.abspath(args.built), name) for name in ("thinwire", "thinwire-lab"))
    harness.install()
    logs = os.path.join(os.path.abspath(args.built), os.pardir, "bench-logs")
    stand = Stand(logs, args.seconds)
    results = measure_all(stand, args.rounds, args.only)
    harness.close_all()
    judged = judge(results)
    text = markdown(results, judged, args.rounds, args.seconds)
    path = args.json or os.path.join(logs, "bench.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"schema": 1, "rounds": args.rounds, "seconds": args.seconds,
                   "results": [{"load": l, "contender": c, "rounds": f} for (l, c), f in results.items()],
                   "bars": [{"bar": t, "wanted": b, "ratios": r, "met": m} for t, b, r, m, _ in judged]}, file, indent=1)
    print(f"wrote {path}\n")
    if args.dry or args.only:
        print(text)
    else:
        write_document(text)
    for name, bar, ratios, met, _ in judged:
        print(f"{'met   ' if met else 'MISSED'}  {name}: {statistics.median(ratios):.2f} (bar {bar})")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"perf.py: {failure}")
