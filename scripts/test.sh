#!/usr/bin/env bash
# Everything that must hold: set-up, lint, unit tests, simulator, end-to-end tests. Runs all of it
# even if a part fails, and ends with one line, `N passed, N failed`, summed over everything that
# was counted. Exit status 0 only if nothing failed.
#
#   scripts/test.sh              all parts
#   scripts/test.sh NAME...      some of: tidy fmt clippy unit build sim instructions e2e
#
# TW_SEEDS=A..B changes the simulator's seeds.
set -uo pipefail
# Each part is a process group of its own, so that an interrupt reaches all of it and leaves us.
set -m
cd "$(dirname "$0")/.." || exit 1

case "${1:-}" in -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

if [ "$(id -u)" != 0 ]; then
  echo "make test needs root: it makes network namespaces, a bridge and loop devices, mounts file" >&2
  echo "systems and, where packages are missing, installs them. Run it as root (sudo make test)." >&2
  exit 1
fi

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
logs=$target/test-logs
rm -rf "$logs"
mkdir -p "$logs"
export CARGO_TERM_PROGRESS_WHEN=never
passed=0 failed=0 report=() child=

stopped() {
  trap - INT TERM HUP
  [ -n "$child" ] && kill -TERM -- "-$child" 2>/dev/null && wait "$child" 2>/dev/null
  echo "interrupted; $passed passed, $failed failed so far"
  exit 130
}
trap stopped INT TERM HUP

# Counts what a part printed: cargo's own lines, or any line that ends in "N passed, N failed".
count() {
  awk '
    /^test result: / { p += $4; f += $6 }
    /^([a-z-]+: )*[0-9]+ passed, [0-9]+ failed$/ {
      n = split($0, w, " "); p += w[n-3]; f += w[n-1]
    }
    END { print p + 0, f + 0 }' "$1"
}

part() {
  local name=$1 start=$SECONDS status p f
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  # tee outlives an interrupt, so that a part can still say what it cleans up.
  ("$@" </dev/null 2>&1 | (trap '' INT TERM HUP; exec tee "$logs/$name.log")) &
  child=$!
  wait "$child"
  status=$?
  child=
  read -r p f < <(count "$logs/$name.log")
  # A part without counts of its own is one test; a part that failed without counting a failure
  # (a compile error, a crash) failed once.
  [ $((p + f)) -gt 0 ] || [ $status -ne 0 ] || p=1
  [ $status -eq 0 ] || [ "$f" -gt 0 ] || f=1
  passed=$((passed + p)) failed=$((failed + f))
  report+=("$(printf '%-10s %5d passed %3d failed %5d s' "$name" "$p" "$f" $((SECONDS - start)))")
  [ $status -eq 0 ] && [ "$f" -eq 0 ]
}

run_tidy() { part tidy scripts/tidy; part tidy-self scripts/tidy --self-test; }
run_fmt() { part fmt cargo fmt --all --check; }
run_clippy() { part clippy cargo clippy --workspace --all-targets --locked -- -D warnings; }
run_unit() { part unit cargo test --workspace --locked --no-fail-fast; }
# One build for all that runs optimised: with other packages at a time, features differ and most is built again.
release() {
  cargo build --release --locked -p thinwire -p thinwire-lab -p thinwire-sim --bins --example instructions
}
sim() { release && "$target/release/thinwire-sim" --seeds "${TW_SEEDS:-0..2000}"; }
run_build() { part build release; }
run_sim() { part sim sim; }
run_instructions() { part instructions scripts/instructions; }
run_e2e() { part e2e /usr/bin/python3 tests/e2e/run.py --bin "$target/release/thinwire" --logs "$logs/e2e"; }

wanted=("$@")
[ $# -gt 0 ] || wanted=(tidy fmt clippy unit build sim instructions e2e)

if ! scripts/setup.sh --test </dev/null; then
  echo "0 passed, 1 failed"
  exit 1
fi
for name in "${wanted[@]}"; do
  case "$name" in
    tidy | fmt | clippy | unit | build | sim | instructions | e2e) "run_$name" ;;
    *) echo "test: no part named '$name'; known: tidy fmt clippy unit build sim instructions e2e" >&2; exit 2 ;;
  esac
done

printf '\n'
printf '%s\n' "${report[@]}"
[ "$failed" -eq 0 ] || echo "logs: $logs"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
