#!/usr/bin/env bash
# Measures Thinwire beside nbdkit over TCP, in one run, through the same switch namespace, and writes
# the tables of docs/performance.md. About ten minutes; needs root and an otherwise idle machine.
#
#   scripts/bench.sh [--rounds N] [--seconds N] [--only WORD] [--json FILE] [--dry]
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ] && [ "${1:-}" != --help ]; then
  echo "make bench needs root: it makes network namespaces and a bridge. Run it as root." >&2
  exit 1
fi
scripts/setup.sh --test
cargo build --release --locked --quiet -p thinwire -p thinwire-lab </dev/null
exec /usr/bin/python3 tests/e2e/perf.py --built "$(realpath "${CARGO_TARGET_DIR:-target}")/release" "$@"
