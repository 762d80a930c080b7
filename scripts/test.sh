#!/usr/bin/env bash
# Everything that must hold: set-up, lint, unit tests, simulator, end-to-end tests. Runs all of it
# even if a part fails, and ends with one line, `N passed, N failed`, summed over everything that
# was counted. Exit status 0 only if nothing failed.
#
#   scripts/test.sh              all parts
#   scripts/test.sh NAME...      some of: tidy fmt clippy unit build e2e guest sim canaries instructions
#
# The last three need a processor and no clock. Beside e2e they run in what its tests, which mostly
# wait, leave of the processors, as build does beside unit; what they print is told at the end.
# TW_SEEDS=A..B changes the simulator's seeds; without it 150 fresh ones follow the fixed, and are named.
set -uo pipefail
# Each part is a process group of its own, so that an interrupt reaches all of it and leaves us.
set -m
cd "$(dirname "$0")/.." || exit 1

case "${1:-}" in -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;; esac

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
# Where nothing is built a second time, what would make that faster takes time and room for nothing.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0
passed=0 failed=0 report=() bad=() child= spare=

stopped() {
  local group
  trap - INT TERM HUP
  for group in $child $spare; do
    kill -TERM -- "-$group" 2>/dev/null && wait "$group" 2>/dev/null
  done
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

# Takes into the sums a part that ended with this status after so many seconds. True if it passed.
add() {
  local name=$1 status=$2 seconds=$3 p f
  read -r p f < <(count "$logs/$name.log")
  # A part without counts of its own is one test; a part that failed without counting a failure
  # (a compile error, a crash) failed once.
  [ $((p + f)) -gt 0 ] || [ "$status" -ne 0 ] || grep -q '^skipped: ' "$logs/$name.log" || p=1
  [ "$status" -eq 0 ] || [ "$f" -gt 0 ] || f=1
  passed=$((passed + p)) failed=$((failed + f))
  report+=("$(printf '%-12s %5d passed %3d failed %5d s' "$name" "$p" "$f" "$seconds")")
  # What a machine lacks is said again where everybody looks.
  report+=("$(sed -n "s/^skipped: /$name skipped: /p" "$logs/$name.log")")
  [ "$status" -eq 0 ] && [ "$f" -eq 0 ] && return
  bad+=("$name")
  return 1
}

# What failed in a part, and what was said of it: again at the end, where whoever is shown the end alone sees it.
failures() {
  awk '
    /^FAIL / { told = 14 }
    /^ok / { told = 0 }
    /^test .* FAILED$/ || /^thread .* panicked at/ || /^error/ || /^(seed|failed:)/ { if (!told) told = 4 }
    told > 0 && shown < 60 { print "  " $0; told--; shown++ }' "$logs/$1.log"
}

part() {
  local name=$1 start=$SECONDS status
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  # tee outlives an interrupt, so that a part can still say what it cleans up.
  ("$@" </dev/null 2>&1 | (trap '' INT TERM HUP; exec tee "$logs/$name.log")) &
  child=$!
  wait "$child"
  status=$?
  child=
  add "$name" "$status" $((SECONDS - start))
}

# Begins parts that need no clock, one after the other, for processors that nobody else wants.
begin_spare() {
  local name
  printf '\n== %s: in spare time, told when they have ended\n' "$*"
  for name in "$@"; do : >"$logs/$name.log"; done
  (
    chrt --idle --pid 0 "$BASHPID" || renice -n 19 "$BASHPID"
    for name in "$@"; do
      start=$SECONDS
      "$name" </dev/null >"$logs/$name.log" 2>&1
      echo "$? $((SECONDS - start))" >"$logs/$name.ending"
      mv "$logs/$name.ending" "$logs/$name.ended"
    done
  ) >"$logs/spare.log" 2>&1 &
  spare=$!
}

# Tells what each has said when it has ended, and takes it into the sums. Nobody else is left: from here
# on they have the processors for themselves.
end_spare() {
  local name status seconds
  for name in "$@"; do
    while [ ! -e "$logs/$name.ended" ] && kill -0 "$spare" 2>/dev/null; do sleep 0.2; done
    # Without this file it was killed.
    read -r status seconds 2>/dev/null <"$logs/$name.ended" || { status=1 seconds=0; }
    printf '\n== %s: in spare time, exit %s\n' "$name" "$status"
    cat "$logs/$name.log"
    add "$name" "$status" "$seconds"
  done
  wait "$spare"
  spare=
}

# Simulate for long: one with assertions, by which some of its faults are found, and the others optimised.
asserted=thinwire-sim/seeds
long=(thinwire-sim/stalls thinwire-sim/ebd thinwire-sim/aoe thinwire-sim/volumes)
# One build for all that runs optimised: with other packages at a time, features differ and most is built again.
optimised=(--release --locked -p thinwire -p thinwire-lab -p thinwire-sim --bins --example instructions
  "${long[@]/#thinwire-sim\//--test=}")
release() { cargo build "${optimised[@]}"; }
sim() {
  release && "$target/release/thinwire-sim" --seeds "${TW_SEEDS:-0..2000}" && fresh_seeds &&
    "$target/release/thinwire-sim" --story ebd --seeds 0..300 &&
    "$target/release/thinwire-sim" --story aoe --seeds 0..300 &&
    "$target/release/thinwire-sim" --volumes --seeds 0..500 &&
    "$target/release/thinwire-sim" --volumes --enumerate --seeds 0..6
}
# Some that nobody has seen, too few to say anything of coverage.
fresh_seeds() {
  [ -z "${TW_SEEDS:-}" ] || return 0
  local first=$((10000000 + $(od -An -N4 -tu4 /dev/urandom)))
  local slice="$first..$((first + 150))"
  echo "a fresh slice; again: cargo run --release -p thinwire-sim -- --seeds $slice"
  "$target/release/thinwire-sim" --seeds "$slice"
}
canaries() {
  local status=0
  scripts/unit --only="$asserted" || status=1
  scripts/unit "${long[@]/#/--only=}" -- "${optimised[@]}" || status=1
  return "$status"
}
instructions() { scripts/instructions; }
end_to_end() { /usr/bin/python3 tests/e2e/run.py --bin "$target/release/thinwire" --logs "$logs/$1" "${@:2}"; }

tidy-self() { scripts/tidy --self-test; }
mutants-self() { scripts/mutants --self-test; }

run_tidy() {
  part tidy scripts/tidy
  part mutants scripts/mutants --check
  is_wanted unit || is_wanted e2e || { part tidy-self tidy-self; part mutants-self mutants-self; }
}
run_fmt() { part fmt cargo fmt --all --check; }
run_clippy() { part clippy cargo clippy --workspace --all-targets --locked -- -D warnings; }
# Its own build has the processors for itself; beside its tests, many of which wait, what others need is built.
run_unit() {
  local others=()
  part unit-self scripts/unit --self-test
  part unit-build scripts/unit --build
  ! is_wanted build || others+=(build)
  ! is_wanted tidy || is_wanted e2e || others+=(tidy-self mutants-self)
  [ ${#others[@]} -eq 0 ] || begin_spare "${others[@]}"
  part unit scripts/unit --but="$asserted" "${long[@]/#/--but=}"
  [ ${#others[@]} -eq 0 ] || end_spare "${others[@]}"
}
build() { release; }
run_build() { is_wanted unit || part build build; }
# Guests need QEMU and a kernel, which are not to be had everywhere: what is missing is told, and is no failure.
guests() {
  scripts/setup.sh --guest ||
    { echo "skipped: scripts/setup.sh --guest cannot install what guests need"; return 0; }
  /usr/bin/python3 tests/guest/run.py --quick --bin "$target/release/thinwire" --logs "$logs/guest"
}
run_guest() { part guest guests; }
run_sim() { part sim sim; }
run_canaries() { part canaries canaries; }
run_instructions() { part instructions instructions; }
# Those that measure, and then the others, beside whom there is time to spare.
run_e2e() {
  part e2e-alone end_to_end e2e-alone --only alone
  [ $# -eq 0 ] || begin_spare "$@"
  part e2e end_to_end e2e --only company
  [ $# -eq 0 ] || end_spare "$@"
}

is_wanted() { case " ${wanted[*]} " in *" $1 "*) ;; *) false ;; esac; }

known="tidy fmt clippy unit build e2e guest sim canaries instructions"
wanted=("$@")
[ $# -gt 0 ] || read -ra wanted <<<"$known"
for name in "${wanted[@]}"; do
  case " $known " in
    *" $name "*) ;;
    *) echo "test: no part named '$name'; known: $known" >&2; exit 2 ;;
  esac
done

if ! scripts/setup.sh --test </dev/null; then
  echo "0 passed, 1 failed"
  exit 1
fi
beside=()
for name in sim canaries instructions; do
  if is_wanted e2e && is_wanted "$name"; then beside+=("$name"); fi
done
if is_wanted e2e && is_wanted tidy; then beside+=(tidy-self mutants-self); fi
# What runs beside the end-to-end tests must not build what these run.
is_wanted build || [ ${#beside[@]} -eq 0 ] || wanted=(build "${wanted[@]}")
for name in "${wanted[@]}"; do
  case " ${beside[*]} " in *" $name "*) continue ;; esac
  case "$name" in e2e) run_e2e "${beside[@]}" ;; *) "run_$name" ;; esac
done

printf '\n'
for name in "${bad[@]}"; do
  printf 'failed in %s:\n' "$name"
  failures "$name"
done
printf '%s\n' "${report[@]}" | sed '/^$/d'
[ "$failed" -eq 0 ] || echo "logs: $logs"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
