#!/usr/bin/python3
"""Compares the system calls that targets make with those that they may make.

    tests/e2e/calls.py [--bin PATH] [NAME ...]

Runs the end-to-end tests whose names hold one of NAME (all but those of the laboratory, without any) with strace on each
target, and takes what is called once the target has confined itself. What it may call stands in
`crates/runtime/src/confine/calls.rs`. Tells

    missing   what is called, and is not there: it has been refused
    unused    what is there, and was never called; whoever adds it there without need finds it here
    seen      what is there as rare, and was called

and ends with 1 if there is any of the first two.
"""

import argparse
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIST = os.path.join(HERE, "../../crates/runtime/src/confine/calls.rs")
# What the kernel does with a call that was interrupted.
BY_ITSELF = {"restart_syscall"}
# What strace writes when a call begins. The rest of one that others interrupt stands in a line of its own.
BEGINS = re.compile(r"^\d+ +(\w+)\(")
FILTER = "seccomp(SECCOMP_SET_MODE_FILTER"
# As many filters as a target has: from the last one on it is confined.
FILTERS = 3


def listed():
    """By name, whether a call that a target may make is rare."""
    with open(LIST, encoding="utf-8") as file:
        text = file.read().split("pub const GROUPS", 1)[1].split("\n];", 1)[0]
    return {name: kind == "rare" for kind, name in re.findall(r"\b(call|rare)!\(\s*SYS_(\w+)", text)}


def tracer(path):
    """What precedes the command of a target, so that all its calls go to a file. It keeps its process id."""
    return ["strace", "-D", "-f", "-qq", "-s", "0", "-o", path, "--"]


def made(path):
    """How often each call was made in such a file, by a target that has confined itself."""
    found, filters = collections.Counter(), 0
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            filters += FILTER in line
            call = BEGINS.match(line)
            if filters >= FILTERS and call and FILTER not in line:
                found[call.group(1)] += 1
    return found


def missing(found):
    """Those that are not on the list."""
    return sorted(set(found) - set(listed()) - BY_ITSELF)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--bin", help="the executable, as for run.py")
    args = parser.parse_args()
    runner = [sys.executable, os.path.join(HERE, "run.py")]
    names = args.names
    if not names:
        every = subprocess.run([*runner, "--list"], capture_output=True, text=True, check=True).stdout
        names = [line.split()[0] for line in every.splitlines() if not line.startswith("lab.")]
    runner += ["--bin", args.bin] if args.bin else []
    folder = tempfile.mkdtemp(prefix="tw-calls-", dir="/var/tmp")
    try:
        subprocess.run([*runner, *names], env={**os.environ, "TW_CALLS": folder}, check=False)
        found, traces = collections.Counter(), os.listdir(folder)
        for name in traces:
            found += made(os.path.join(folder, name))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    known = listed()
    unused = sorted(name for name, rare in known.items() if not rare and name not in found)
    seen = sorted(name for name, rare in known.items() if rare and name in found)
    print(f"calls: {sum(found.values())} by {len(traces)} targets, {len(found)} different")
    for what, which in (("missing", missing(found)), ("unused", unused), ("seen", seen)):
        print(f"{what:8} {' '.join(which) or '-'}")
    return 1 if missing(found) or unused else 0


if __name__ == "__main__":
    sys.exit(main())
