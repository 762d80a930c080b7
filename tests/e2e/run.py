#!/usr/bin/python3
"""Runs the end-to-end tests: real processes, real frames through a switch, strangers' clients.

    tests/e2e/run.py [--jobs N] [--only alone|company] [--bin PATH] [--logs DIR] [--mode KEY=VALUE,...] [--keep]
                     [NAME ...]
    tests/e2e/run.py --list

NAME is a name or a part of one. Needs root. A failed test's logs are kept and their folder named. Ends with
`N passed, N failed`.
"""

import argparse
import contextlib
import importlib
import os
import shutil
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import crew  # noqa: E402  (the path is set above)
import harness  # noqa: E402
import node  # noqa: E402
import registry  # noqa: E402
import single  # noqa: E402
from registry import TESTS  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def load():
    for file in sorted(os.listdir(HERE)):
        if file.startswith("test_") and file.endswith(".py"):
            importlib.import_module(file[:-3])
    for name in (*registry.ALONE, *registry.IDLE, *registry.LONGEST):
        if not any(test.is_of(name) for test in TESTS):
            raise SystemExit(f"registry.py: there is no test {name}")


def said(folder, what):
    """The lines in the logs of a test that hold `what`: debug builds tell of parts that took too long."""
    for root, _folders, files in os.walk(folder):
        for name in files:
            with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:
                yield from (line.strip() for line in file if what in line)


def perform(tests, jobs, logs):
    """Runs the tests, `jobs` at a time, and yields what became of each when it is done."""
    if min(jobs, len(tests)) == 1:
        for test in tests:
            start = time.monotonic()
            report = single.one(test, os.path.join(logs, test.name), HERE)
            yield crew.Done(test, time.monotonic() - start, "", report)
        return
    # Those that measure come first, while nothing is left of others.
    with crew.Crew(lambda test: single.one(test, os.path.join(logs, test.name), HERE)) as workers:
        yield from workers.run([t for t in tests if t.alone and not t.idle], 1)
        yield from workers.run([t for t in tests if t.idle], jobs)
        yield from workers.run(sorted((t for t in tests if not t.alone), key=lambda t: t.rank), jobs)


def positive(text):
    if int(text) < 1:
        raise ValueError
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true", help="list the tests")
    parser.add_argument("--jobs", type=positive, default=6, metavar="N", help="how many tests run side by side (default "
                        "6), but for those that registry.py keeps alone; 1: one after the other, in the order of --list")
    parser.add_argument("--only", choices=("alone", "company"), help="only the tests that registry.py keeps alone, or "
                        "only the others")
    parser.add_argument("--bin", default=os.environ.get("THINWIRE_BIN") or os.path.join(
        os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "release", "thinwire"))
    parser.add_argument("--logs", help="where logs go (a folder that is emptied first)")
    parser.add_argument("--mode", default="", metavar="KEY=VALUE,...", help="run every test under a pipeline, a "
                        "batching policy, a link or a protection: receive=split,completion=workqueue,"
                        "submission=queue,batch=tyche,link=xdp,security=authenticate")
    parser.add_argument("--keep", action="store_true", help="keep the logs of tests that passed, too")
    args = parser.parse_args()
    load()
    try:
        node.MODE.update(node.flags_of(args.mode))
    except ValueError as error:
        parser.error(str(error))
    if args.list:
        for test in TESTS:
            about = (test.function.__doc__ or "").strip().splitlines()
            print(f"{test.name:44} {about[0] if about else ''}".rstrip())
        return 0
    chosen = [t for t in TESTS if not args.names or any(n in t.name for n in args.names)]
    if args.only:
        chosen = [t for t in chosen if t.alone == (args.only == "alone")]
    for name in args.names:
        if not any(name in t.name for t in TESTS):
            print(f"run.py: no test's name holds '{name}' (--list shows them)", file=sys.stderr)
            return 2
    if os.geteuid() != 0:
        print("The end-to-end tests need root: they make network namespaces, a bridge and mounts.", file=sys.stderr)
        return 1
    node.BIN = os.path.abspath(args.bin)
    node.LAB = os.path.join(os.path.dirname(node.BIN), "thinwire-lab")
    needed = {node.BIN} if any(t.needs_binary for t in chosen) else set()
    needed |= {node.LAB} if any(t.name.startswith("lab.") for t in chosen) else set()
    for missing in sorted(path for path in needed if not os.access(path, os.X_OK)):
        print(f"run.py: no executable {missing}: run 'make build-lab' first, or say --bin PATH, beside which both are",
              file=sys.stderr)
        return 1
    logs = os.path.abspath(args.logs or os.path.join(
        os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "e2e-logs"))
    shutil.rmtree(logs, ignore_errors=True)
    os.makedirs(logs)
    # Debug executables time their steps then; others do not look at it.
    os.environ["TW_STEPS"] = "1"
    harness.install()

    passed, failed, slow, still = 0, [], [], 0
    lock = single.one_run_a_machine()
    started = time.monotonic()
    with lock, contextlib.closing(perform(chosen, args.jobs, logs)) as ended:
        for done in ended:
            name = done.test.name
            folder = os.path.join(logs, name)
            slow += [f"{name}: {line}" for line in said(folder, "a part held its shard")]
            still += sum(1 for _ in said(folder, "a part stood still"))
            if done.report is None:
                passed += 1
                text = f"ok    {name:44} {done.seconds:6.1f} s\n"
                if not args.keep:
                    shutil.rmtree(folder, ignore_errors=True)
            else:
                failed.append(name)
                report = done.report.strip().replace("\n", "\n      ")
                text = f"FAIL  {name:44} {done.seconds:6.1f} s  logs: {folder}\n      {report}\n"
            print(done.said + text, end="", flush=True)
    if failed:
        print("failed: " + " ".join(failed))
    if slow:
        print("\n".join(slow))
        print(f"{len(slow)} times a part held its shard for longer than a millisecond")
    if still:
        print(f"{still} times a part stood still for so long while others had the processor, which does not count")
    print(f"e2e: {time.monotonic() - started:.0f} s", flush=True)
    print(f"{passed} passed, {len(failed)} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
