#!/usr/bin/python3
"""A thousand snapshots of a volume under load: prints how long each holds writes, what is left of the rate, and that all comes back.

    make soak-volumes
    make soak-volumes SOAK_SNAPSHOTS=100 SOAK_PAUSE=0.5       so many seconds between two of them; none by default
    make soak-volumes SOAK_STORE=/dev/shm SOAK_MIB=2048       where the pool lies, and how large it is
    make soak-volumes SOAK_FILL=1                             in files that were written once, not of holes

Needs root, and as much room as what is written takes, 14 GB at most. Exit 1 if a snapshot that is mounted is not sound, or room does not come back.
"""

import json
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

import harness  # noqa: E402  (the path is set above)
import node  # noqa: E402
import snapshots  # noqa: E402

TARGET = os.environ.get("CARGO_TARGET_DIR") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../target")


def main():
    count = int(os.environ.get("SOAK_SNAPSHOTS") or 1000)
    pause = float(os.environ.get("SOAK_PAUSE") or 0)
    mib, store = int(os.environ.get("SOAK_MIB") or 14 << 10), os.environ.get("SOAK_STORE")
    node.BIN = os.path.abspath(os.environ.get("THINWIRE_BIN") or os.path.join(TARGET, "release", "thinwire"))
    harness.install()
    logs = os.path.join(TARGET, "soak-volumes")
    shutil.rmtree(logs, ignore_errors=True)
    lab = harness.Lab(logs, links=1)
    try:
        figures = snapshots.under_load(lab, count, mib, pause, min(count, 5), store, bool(os.environ.get("SOAK_FILL")))
    finally:
        lab.close()
    for name, value in figures.items():
        print(f"{name:24}{value:>12}")
    with open(os.path.join(logs, "figures.json"), "w", encoding="utf-8") as file:
        json.dump(figures, file, indent=1)


main()
