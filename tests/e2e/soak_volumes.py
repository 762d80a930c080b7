#!/usr/bin/python3
"""What volumes must show and `make test` has no time for: some 40 minutes on two processors that nobody else uses, in parts.

    make soak-volumes                                        all of them
    make soak-volumes PART="legs snapshots"                  some
    make soak-volumes PART=seeds SOAK_SEEDS=0..500           fewer seeds
    make soak-volumes PART=enumerate SOAK_WORKLOADS=0..10    fewer workloads
    make soak-volumes PART=legs SOAK_AWAY=10                 each leg is away for so many seconds
    make soak-volumes PART=snapshots SOAK_SNAPSHOTS=100      so many
    make soak-volumes PART=snapshots SOAK_PAUSE=0            so many seconds between two of them, 0.2 by default; 0: as fast as they go
    make soak-volumes PART=snapshots SOAK_STORE=/dev/shm SOAK_MIB=2048 SOAK_FILE_MIB=4    where the pool lies, its size, and that of the file that is written
    make soak-volumes PART=snapshots SOAK_FILL=1             in files that were written once, not of holes
    make soak-volumes PART=cuts SOAK_CUTS=20                 so many

    seeds       thinwire-sim --volumes: a composed volume in each
    enumerate   thinwire-sim --volumes --enumerate: every crash of each workload
    legs        a stripe of two mirrors over four targets, each away for a minute under a verified load, one cut off again in the middle of its resync (four_legs.py)
    snapshots   a thousand snapshots of a volume under load (snapshots.py)
    cuts        the same of a volume over three targets, under load

Each prints its figures, and `ok` or what did not hold; they stand in target/soak-volumes/figures.json, too. Parts that failed do not keep the others from being run. Ends with `N passed, N failed`,
and 1 if any failed. Needs root, and as much room as what is written takes, 14 GB at most.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import four_legs  # noqa: E402  (the path is set above)
import harness  # noqa: E402
import node  # noqa: E402
import single  # noqa: E402
import snapshots  # noqa: E402
import wide_volumes  # noqa: E402

TARGET = os.environ.get("CARGO_TARGET_DIR") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../target")
LOGS = os.path.join(TARGET, "soak-volumes")
# What the simulator prints that says how it ended; the rest is long.
TOLD = (" passed in ", "failed at commit", "repeat it with", "never exercised", "exercised what", "panic")


def told(name, kind, otherwise):
    return kind(os.environ.get(name) or otherwise)


def simulator():
    return os.path.join(os.path.dirname(node.BIN), "thinwire-sim")


def simulated(name, *argv):
    """The simulator, on all processors. What it said stands in its log."""
    path = os.path.join(LOGS, f"{name}.log")
    command = [simulator(), "--volumes", *argv]
    with open(path, "w", encoding="utf-8") as log:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    said = [line.partition(": ")[0] if " seeds passed in " in line else line for line in harness.read(path).splitlines() if any(word in line for word in TOLD)]
    harness.check(code == 0, f"exit {code}, the whole in {path}\n" + "\n".join(line[:400] for line in said or harness.read(path).splitlines()[-5:]))
    return {"said": " ".join(said)}, []


def seeds(_lab):
    return simulated("seeds", "--seeds", told("SOAK_SEEDS", str, "0..10000"))


def enumerate_(_lab):
    return simulated("enumerate", "--enumerate", "--seeds", told("SOAK_WORKLOADS", str, "0..200"))


def legs(lab):
    figures, pause = four_legs.under_load(lab, away=told("SOAK_AWAY", float, 60), leg_timeout_ms=5000)
    return figures, pause


def thousand(lab):
    count = told("SOAK_SNAPSHOTS", int, 1000)
    figures = snapshots.under_load(
        lab, count, told("SOAK_MIB", int, 14 << 10), told("SOAK_PAUSE", float, 0.2), min(count, 5), os.environ.get("SOAK_STORE"), bool(os.environ.get("SOAK_FILL")),
        rounds=max(1, count // 25), file_mib=told("SOAK_FILE_MIB", int, 12))
    return figures, snapshots.judge(figures)


def cuts(lab):
    figures = wide_volumes.cut_under_load(lab, told("SOAK_CUTS", int, 100), told("SOAK_PAUSE", float, 0.2))
    return figures, snapshots.judge(figures)


# A part's name, and what it does with a laboratory: its figures, and what does not hold of what is promised.
PARTS = {"seeds": seeds, "enumerate": enumerate_, "legs": legs, "snapshots": thousand, "cuts": cuts}


def perform(name):
    """Runs a part. Its figures, and what is wrong."""
    lab = harness.Lab(os.path.join(LOGS, name), links=1)
    try:
        return PARTS[name](lab)
    except harness.Failure as failure:
        return {}, [str(failure)]
    except Exception:
        return {}, [traceback.format_exc()]
    finally:
        lab.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    wanted = parser.parse_args().parts or list(PARTS)
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        parser.error(f"there is no part '{unknown[0]}'; there are {', '.join(PARTS)}")
    if os.geteuid() != 0:
        parser.error("this needs root: it makes network namespaces, a bridge and mounts")
    node.BIN = os.path.abspath(os.environ.get("THINWIRE_BIN") or os.path.join(TARGET, "release", "thinwire"))
    for needed in (node.BIN, simulator()):
        if not os.access(needed, os.X_OK):
            parser.error(f"no executable {needed}: run 'make soak-volumes', which builds it")
    shutil.rmtree(LOGS, ignore_errors=True)
    os.makedirs(LOGS)
    harness.install()
    results, failed = {}, 0
    with single.one_run_a_machine():
        for name in wanted:
            print(f"== {name}", flush=True)
            begun = time.monotonic()
            figures, wrong = perform(name)
            figures["seconds"] = round(time.monotonic() - begun)
            results[name] = {"figures": figures, "wrong": wrong}
            with open(os.path.join(LOGS, "figures.json"), "w", encoding="utf-8") as file:
                json.dump(results, file, indent=1)
            for key, value in figures.items():
                print(f"{key:32} {value}")
            failed += bool(wrong)
            print("\n".join(f"FAIL {name}: {what}" for what in wrong) or f"ok {name}", flush=True)
    print(f"{len(wanted) - failed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


sys.exit(main())
