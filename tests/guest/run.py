#!/usr/bin/python3
"""Runs the rooms: Linux guests that use disks of ours, through a switch, with drivers that nobody here wrote.

    tests/guest/run.py [--quick] [--bin PATH] [--logs DIR] [--keep] [NAME ...]
    tests/guest/run.py --list

NAME is a name or a part of one; --quick are those that `make test` has. Needs root, QEMU and a Debian kernel, which is
fetched once into target/guest; where that is not to be had, says so in a line that begins with `skipped: `, and ends
with 0 (--must: with 1). A failed room's logs are kept, its guest's console among them, and their folder named. Ends with
`N passed, N failed`.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "e2e")]
sys.dont_write_bytecode = True

import harness  # noqa: E402  (the path is set above)
import kernel  # noqa: E402
import node  # noqa: E402
import single  # noqa: E402
import stage  # noqa: E402
from rooms import QUICK, ROOMS  # noqa: E402


def load():
    for file in sorted(os.listdir(HERE)):
        if file.startswith("room_") and file.endswith(".py"):
            importlib.import_module(file[:-3])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true", help="list the rooms")
    parser.add_argument("--quick", action="store_true", help="only those that `make test` has")
    parser.add_argument("--must", action="store_true", help="fail where there can be no guest")
    parser.add_argument("--bin", default=os.environ.get("THINWIRE_BIN") or os.path.join(target, "release", "thinwire"))
    parser.add_argument("--system", default=os.path.join(target, "guest", "system"), help="where kernel and busybox are kept")
    parser.add_argument("--logs", default=os.path.join(target, "guest", "logs"), help="where logs go (emptied first)")
    parser.add_argument("--keep", action="store_true", help="keep the logs of rooms that passed, too")
    return parser.parse_args()


def prepare(system):
    """Kernel, busybox and the programs that run in guests; ours without what only a debugger reads."""
    stage.SYSTEM = kernel.System(os.path.abspath(system))
    stage.HELPER = os.path.join(stage.SYSTEM.folder, "helper")
    subprocess.run(["cc", "-O2", "-Wall", "-static", "-o", stage.HELPER, os.path.join(HERE, "helper.c")], check=True)
    stage.THINWIRE = os.path.join(stage.SYSTEM.folder, "thinwire")
    subprocess.run(["strip", "-o", stage.THINWIRE, node.BIN], check=True)


def main():
    args = arguments()
    load()
    if args.list:
        for room in ROOMS:
            print(f"{room.name:32} {(room.function.__doc__ or '').strip().splitlines()[0]}")
        return 0
    for name in args.names:
        if not any(name in r.name for r in ROOMS):
            print(f"run.py: no room's name holds '{name}' (--list shows them)", file=sys.stderr)
            return 2
    chosen = [r for r in ROOMS if not args.names or any(n in r.name for n in args.names)]
    chosen = [r for r in chosen if not args.quick or r.name in QUICK]
    if os.geteuid() != 0:
        print("Guests need root: they make network namespaces, a bridge and taps.", file=sys.stderr)
        return 1
    node.BIN = os.path.abspath(args.bin)
    if not os.access(node.BIN, os.X_OK):
        print(f"run.py: no executable {node.BIN}: run 'make build' first, or say --bin PATH", file=sys.stderr)
        return 1
    lock = single.one_run_a_machine()
    try:
        prepare(args.system)
    except kernel.Missing as missing:
        print(f"skipped: {missing}\n0 passed, {int(args.must)} failed", flush=True)
        return int(args.must)
    logs = os.path.abspath(args.logs)
    shutil.rmtree(logs, ignore_errors=True)
    os.makedirs(logs)
    harness.install()
    with lock:
        return perform(chosen, logs, args.keep)


def perform(chosen, logs, keep):
    """One after the other: a guest has the processors for itself, since software emulation takes them all."""
    started, failed = time.monotonic(), []
    for room in chosen:
        start, folder = time.monotonic(), os.path.join(logs, room.name)
        report = single.one(room, folder, HERE)
        seconds = time.monotonic() - start
        if report is None:
            print(f"ok    {room.name:32} {seconds:6.1f} s", flush=True)
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
        else:
            failed.append(room.name)
            report = report.strip().replace("\n", "\n      ")
            print(f"FAIL  {room.name:32} {seconds:6.1f} s  logs: {folder}\n      {report}", flush=True)
    if failed:
        print("failed: " + " ".join(failed))
    print(f"guest: {time.monotonic() - started:.0f} s")
    print(f"{len(chosen) - len(failed)} passed, {len(failed)} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
