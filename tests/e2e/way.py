#!/usr/bin/python3
"""The way of an I/O through each face: what it costs whom, in system calls, wake-ups, waits and copies.

    way.py --built target/release [--bs 131072] [--iodepth 8] [--seconds 2] [--rounds 3] [--only WORD]

A target with a volume in memory, a switch, and an attachment over `packet`, MTU 9000; fio uses each face by
itself. For each way of each face, of the attachment's process and of the target's:

    CPU, waits    /proc/PID/task/*/schedstat before and after a run of fio: time on a processor, time that it was
                  ready to run and did not (medians of the rounds)
    switches      voluntary_ctxt_switches and nonvoluntary_ctxt_switches of /proc/PID/task/*/status: it slept and was
                  woken; it was put off its processor
    calls         strace -c -f -p PID over a whole run of fio, which is slower for it
    layers        perf record -a -g -e cpu-clock over a run of fio, by the function at the top and those below it, in
                  percent of the process's samples

and of both sides what the target counts as copied by its store (`thinwire status --json`). Prints Markdown.
Needs root, fio, strace and perf.
"""

import argparse
import collections
import glob
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import harness  # noqa: E402  (the path is set above)
import node  # noqa: E402
from harness import Failure  # noqa: E402

MIB = 256
FACES = ("nbd", "file", "block")
# A layer by a pattern of the function at the top, or of those below it; the first that fits.
COPIES = re.compile(r"_copy_(from|to)_iter|copy_user|rep_movs|fuse_copy|__pi_memcpy|copy_page|mem(cpy|move)")
LAYERS = (
    ("checksum", re.compile("crc"), None),
    ("copying frames", COPIES, re.compile("packet_|skb_copy_datagram")),
    ("copying, unix socket", COPIES, re.compile("unix_stream")),
    ("copying, FUSE", COPIES, re.compile("fuse")),
    ("copying, ours", re.compile("mem(cpy|move)"), None),
    ("yield", None, re.compile("sched_yield")),
    ("epoll", None, re.compile("epoll|ep_poll")),
    ("FUSE", None, re.compile("fuse")),
    ("unix socket", None, re.compile("unix_")),
    ("frames: socket, switch", None, re.compile("packet_|dev_queue|veth|netif|br_|net_rx|napi|skb|sock")),
)


def counters(pid):
    """CPU and waiting in us, sleeps, and times put off, of all threads there are."""
    cpu = waits = slept = put_off = 0
    for task in glob.glob(f"/proc/{pid}/task/*"):
        ran, waited, _ = harness.read(f"{task}/schedstat").split()
        status = harness.read(f"{task}/status")
        cpu, waits = cpu + int(ran) / 1000, waits + int(waited) / 1000
        slept += int(re.search(r"^voluntary\S+\s+(\d+)", status, re.M).group(1))
        put_off += int(re.search(r"^nonvoluntary\S+\s+(\d+)", status, re.M).group(1))
    return cpu, waits, slept, put_off


class Way:
    """One face, and both processes behind it."""

    def __init__(self, lab, target, face, args):
        self.lab, self.args, self.target = lab, args, target
        self.attachment = node.Attachment(lab, node.uri(lab, over="packet"), face=face, name=f"way-{face}")
        self.pids = {"attachment": self.attachment.pid(), "target": target.process.pid}
        self.aim = ["--ioengine=nbd", f"--uri={self.attachment.nbd}"] if face == "nbd" else [
            "--ioengine=libaio", "--direct=1", f"--filename={self.attachment.path}"]

    def load(self, pattern):
        args = self.args
        return self.lab.start(
            "initiator", "fio", "--name=way", *self.aim, f"--rw={pattern}", f"--bs={args.bs}",
            f"--iodepth={args.iodepth}", "--time_based", f"--runtime={args.seconds}", f"--size={MIB}m", "--thread",
            "--output-format=json")

    def ios(self, process, pattern):
        text = process.wait(self.args.seconds + 60).stdout
        side = json.loads(text[text.find("{"):])["jobs"][0][pattern]
        return side["total_ios"], side["bw_bytes"] / 1048576

    def copied(self):
        done = self.lab.run("target", node.BIN, "status", "--json", "--run-dir", self.lab.path("target-run"))
        exports = [export for target in json.loads(done.stdout)["targets"] for export in target["exports"]]
        return sum(export["copied_bytes"] for export in exports)

    def plain(self, pattern):
        """A run: what it cost each process an I/O, the rate, copies a byte."""
        copied, before = self.copied(), {who: counters(pid) for who, pid in self.pids.items()}
        ios, rate = self.ios(self.load(pattern), pattern)
        found = {who: [(z - a) / ios for a, z in zip(before[who], counters(pid))] for who, pid in self.pids.items()}
        return found, rate, (self.copied() - copied) / (ios * self.args.bs)

    def calls(self, who, pattern):
        out = self.lab.path(f"calls-{who}")
        tracer = subprocess.Popen(["strace", "-c", "-f", "-p", str(self.pids[who]), "-o", out],
                                  stderr=subprocess.DEVNULL)
        time.sleep(0.3)
        ios, _ = self.ios(self.load(pattern), pattern)
        tracer.send_signal(signal.SIGINT)
        tracer.wait(20)
        counts = collections.Counter()
        for line in harness.read(out).splitlines():
            fields = line.split()
            if len(fields) >= 5 and fields[3].isdigit() and fields[-1] != "total":
                counts[fields[-1]] = int(fields[3]) / ios
        return counts

    def layers(self, pattern):
        data = self.lab.path("perf.data")
        process = self.load(pattern)
        time.sleep(0.5)
        subprocess.run(["perf", "record", "-q", "-a", "-g", "-e", "cpu-clock", "-F", "1999", "-o", data, "--",
                        "sleep", str(max(self.args.seconds - 1, 1))], capture_output=True, check=True)
        process.wait(self.args.seconds + 60)
        text = subprocess.run(["perf", "script", "-i", data, "-F", "pid,ip,sym"], capture_output=True, text=True,
                              check=True).stdout
        names = {str(pid): who for who, pid in self.pids.items()}
        found = {who: collections.Counter() for who in self.pids}
        for sample in text.split("\n\n"):
            lines = sample.strip().splitlines()
            if len(lines) > 1 and lines[0].strip() in names:
                found[names[lines[0].strip()]][layer([line.split(None, 1)[-1] for line in lines[1:]])] += 1
        return found


def layer(functions):
    top, below = functions[0], " ".join(functions[1:])
    for name, at_top, somewhere in LAYERS:
        if (at_top is None or at_top.search(top)) and (somewhere is None or somewhere.search(f"{top} {below}")):
            return name
    return "own code" if "thinwire" in top else "all else"


def shares(counter):
    total = sum(counter.values()) or 1
    return ", ".join(f"{name} {100 * count / total:.0f}" for name, count in counter.most_common(6))


def show(way, face, pattern, args):
    rounds = [way.plain(pattern) for _ in range(args.rounds)]
    layers = way.layers(pattern)
    rate = statistics.median(rate for _, rate, _ in rounds)
    copies = statistics.median(copied for _, _, copied in rounds)
    for who in way.pids:
        cpu, waits, slept, put_off = (statistics.median(found[who][n] for found, _, _ in rounds) for n in range(4))
        calls = ", ".join(f"{name} {count:.2f}" for name, count in way.calls(who, pattern).most_common(6))
        own = f"{copies:.2f}" if who == "target" else "–"
        print(f"| {face} {pattern} | {rate:.0f} | {who} | {cpu:.0f} | {waits:.0f} | {slept:.2f} + {put_off:.2f} | "
              f"{calls} | {own} | {shares(layers[who])} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", required=True, help="folder of the release executables")
    parser.add_argument("--bs", type=int, default=131072)
    parser.add_argument("--iodepth", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only ways whose name, such as `file write`, holds this")
    args = parser.parse_args()
    node.MODE["security"] = "insecure"
    node.BIN = os.path.join(os.path.abspath(args.built), "thinwire")
    harness.install()
    lab = harness.Lab(os.path.join(os.path.abspath(args.built), os.pardir, "way-logs"))
    target = node.Target(lab, f"disk0=memory:{MIB}M", over="packet", extra=["--run-dir", lab.path("target-run")])
    blob = lab.path("blob")
    with open(blob, "wb") as file:
        file.write(os.urandom(MIB << 20))
    node.thinwire(lab, "copy", blob, node.uri(lab, over="packet"), timeout=120)
    print("| way | MiB/s | process | CPU, us an I/O | ready and not running, us an I/O | switches an I/O: slept + put off "
          "| calls an I/O | copies a byte by its store | layers, % of its CPU |\n" + "|---" * 9 + "|")
    for face in FACES:
        patterns = [pattern for pattern in ("read", "write") if args.only in f"{face} {pattern}"]
        if patterns:
            way = Way(lab, target, face, args)
            for pattern in patterns:
                show(way, face, pattern, args)
            way.attachment.detach()
    harness.close_all()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"way.py: {failure}")
