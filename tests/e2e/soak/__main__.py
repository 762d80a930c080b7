#!/usr/bin/python3
"""Murders target, initiator, face, gateway, wire and machine under loads that know each byte, and prints a table.

    make soak                       ten minutes
    make soak SOAK_MINUTES=300      or any other time
    make soak SOAK_SEED=17          the same worlds and murders again
    make soak SOAK_ONLY=kill-target,loss      of these only (--list has them)
    make soak SOAK_ONLY=kill-target SOAK_KILLS=1000     so many of them instead of a time

Needs root. Writes table.txt and table.json into target/soak. Exit 1 if an application saw an error that nobody had
promised, or a byte is not what it must be; the logs of that world are kept.
"""

import argparse
import os
import random
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[0] = os.path.dirname(HERE)
sys.dont_write_bytecode = True

import harness  # noqa: E402  (the path is set above)
import node  # noqa: E402
from soak.murders import KINDS  # noqa: E402
from soak.session import Session, Settings  # noqa: E402

TARGET = os.environ.get("CARGO_TARGET_DIR") or os.path.join(HERE, "../../../target")


def main():
    env = os.environ.get
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the murders")
    parser.add_argument("--seed", type=int, default=env("SOAK_SEED") or random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--minutes", type=float, default=env("SOAK_MINUTES") or 10)
    parser.add_argument("--only", default=env("SOAK_ONLY") or "", metavar="NAME,...")
    parser.add_argument("--kills", type=int, default=env("SOAK_KILLS") or 0, help="so many murders instead of minutes")
    parser.add_argument("--bin", default=env("THINWIRE_BIN") or os.path.join(TARGET, "release", "thinwire"))
    parser.add_argument("--out", default=os.path.join(TARGET, "soak"), help="a folder, whose old logs go")
    args = parser.parse_args()
    if args.list:
        for kind in KINDS.values():
            print(f"{kind.name:16} {kind.what}")
        return 0
    only = tuple(name for name in args.only.split(",") if name)
    for name in only:
        if name not in KINDS:
            parser.error(f"there is no murder '{name}' (--list shows them)")
    if os.geteuid() != 0:
        print("make soak needs root: it makes network namespaces, a bridge and mounts.", file=sys.stderr)
        return 1
    node.BIN = os.path.abspath(args.bin)
    if not os.access(node.BIN, os.X_OK):
        print(f"soak: no executable {node.BIN}: run 'make build' first, or say --bin PATH", file=sys.stderr)
        return 1
    out = os.path.abspath(args.out)
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(out):
        if name.startswith("world-"):
            shutil.rmtree(os.path.join(out, name))
    harness.install()
    # An outage takes a part of the time at most, and is as long as a table promises where there is time.
    session = Session(Settings(seed=args.seed, minutes=args.minutes, only=only, kills=args.kills,
                               is_short=bool(args.kills), world_murders=100 if args.kills else 14,
                               seconds_max=max(5.0, min(300.0, args.minutes * 6))),
                      say=lambda text: print(text, flush=True))
    print(f"soak: seed {args.seed}; again: make soak SOAK_SEED={args.seed}", flush=True)
    try:
        session.run(out)
    finally:
        session.table.write(os.path.join(out, "table"))
        print("\n" + "\n".join(session.table.lines()), flush=True)
        print(f"soak: {os.path.join(out, 'table.txt')}", flush=True)
    return 0 if session.table.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
