#!/usr/bin/env bash
# Runs the laboratory: the tables and figures of the document, peers, limits, scaling, and the bars.
# Leaves target/lab/report.html. Needs root and an otherwise idle machine.
#
#   scripts/lab.sh --quick     a subset of the points, about 9 minutes: `make lab`
#   scripts/lab.sh             all points, about 2.5 hours; goes on where it was interrupted: `make lab-full`
#   scripts/lab.sh --orchestra [--quick]
#                              volumes made of volumes: target/lab/orchestra.html, 15 or 120 minutes
#
# Further arguments go to `thinwire-lab report`, or `thinwire-lab orchestra`.
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
what=report quick=9.5 full=150
if [ "${1:-}" = --orchestra ]; then
  what=orchestra quick=13 full=118
  shift
fi
if [ "$(id -u)" != 0 ]; then
  echo "make lab needs root: it makes network namespaces and a bridge, and installs the peers that are" >&2
  echo "missing. Run it as root (sudo make lab)." >&2
  exit 1
fi
scripts/setup.sh --lab
cargo build --release --locked --quiet -p thinwire -p thinwire-lab </dev/null
built=$(realpath "${CARGO_TARGET_DIR:-target}")
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain 2>/dev/null)" ] || commit="$commit with changes"
# Slower machines measure less, not longer.
case " $* " in
  *" --minutes"*) ;;
  *" --quick "*) set -- --minutes $quick "$@" ;;
  *) set -- --minutes $full "$@" ;;
esac
remarks=docs/laboratory-remarks.md
[ ! -f $remarks ] || set -- --remarks $remarks "$@"
exec "$built/release/thinwire-lab" $what --out "$built/lab" --label "commit $commit" "$@"
