#!/usr/bin/python3
"""Runs all end-to-end tests once for each mode below: every pipeline, batching policy, link and protection.

    tests/e2e/matrix.py [--bin PATH] [--logs DIR] [NUMBER ...]    some rows only, counted from 1

Needs root and about five minutes a row. Ends with `N passed, N failed`, rows counted.
"""

import argparse
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
THREADS = "receive=split,completion=workqueue,submission=queue"

# `make test` runs the rest: one thread, backlog with data batching, with keys, and for each test the links that
# its own cases name, else what a plain interface name picks (here packet).
ROWS = (
    f"{THREADS},batch=none",
    f"link=xdp,{THREADS},batch=tyche",
    "completion=workqueue,submission=queue,batch=static:8,data-batch=off,spin=off",
    "link=udp,batch=doorbell,security=insecure",
    "link=xdp,security=authenticate",
    f"link=udp,{THREADS}",
)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=int, choices=range(1, len(ROWS) + 1), metavar="NUMBER")
    parser.add_argument("--bin", help="the program under test")
    parser.add_argument("--logs", default=os.path.join(
        os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "e2e-matrix"))
    args = parser.parse_args()
    os.makedirs(args.logs, exist_ok=True)
    failed = 0
    rows = args.rows or range(1, len(ROWS) + 1)
    for number in rows:
        mode = ROWS[number - 1]
        command = [sys.executable, os.path.join(HERE, "run.py"), "--mode", mode,
                   "--logs", os.path.join(args.logs, str(number))]
        start = time.monotonic()
        log = os.path.join(args.logs, f"{number}.log")
        with open(log, "w") as out:
            code = subprocess.call(command + (["--bin", args.bin] if args.bin else []), stdout=out, stderr=out)
        with open(log) as out:
            lines = out.read().splitlines()
        failed += code != 0
        told = lines[-1] if lines else "said nothing"
        print(f"{'FAIL' if code else 'ok  '}  {number} {mode}: {told} ({time.monotonic() - start:.0f} s)", flush=True)
        for line in lines:
            if code and line.startswith("FAIL"):
                print(f"      {line}")
        if code:
            print(f"      log: {log}", flush=True)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
