#!/usr/bin/env bash
# The main job, before your eyes: a disk image served by one machine, used as a disk by another,
# across a switch, straight over Ethernet frames; then one disk of two machines, of which one dies. The machines
# are four network namespaces of this one: initiator, switch (a bridge), target1, target2. Everything is removed
# at the end, also after Ctrl-C.
#
#   scripts/demo.sh            what `make demo` runs
#
# Needs root, installs what is missing, builds the release binary if need be. Takes a minute or two.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
  echo "make demo needs root: it makes network namespaces, a bridge and a loop device, mounts a file" >&2
  echo "system and, where packages are missing, installs them. Run it as root (sudo make demo)." >&2
  exit 1
fi

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'
else
  bold='' dim='' green='' red='' plain=''
fi

# ------------------------------------------------------------------ what is made, and its removal

prefix=tw-demo
demo=/var/tmp/$prefix-$$
declare -A namespace=([initiator]=$prefix-$$-i [switch]=$prefix-$$-s [target1]=$prefix-$$-t [target2]=$prefix-$$-u)
declare -A target_pid=()

# Mount points below a folder, the newest first.
mounts_below() { awk -v at="$1/" 'index($2 "/", at) == 1 { print $2 }' /proc/self/mounts | tac; }

# Removes whatever a demo with this folder and these namespaces has made. Processes are found by the
# namespace they are in, never by name.
remove() {
  local folder=$1 name pid point device disk
  shift
  # A disk in use whose target may be gone: what is written back to it would wait for ever.
  if [ -x "$folder/bin/thinwire" ] && [ -n "$(mounts_below "$folder/mnt")" ]; then
    for disk in disk0 home; do timeout 10 "$folder/bin/thinwire" detach --force $disk; done
  fi
  for point in $(mounts_below "$folder/mnt"); do umount "$point" || umount -l "$point"; done
  for signal in TERM KILL; do
    for name in "$@"; do
      for pid in $(ip netns pids "$name" 2>/dev/null); do kill -$signal "$pid" 2>/dev/null || true; done
    done
    for _ in $(seq 40); do
      [ -n "$(for name in "$@"; do ip netns pids "$name" 2>/dev/null; done)" ] || break 2
      sleep 0.05
    done
  done
  for device in /sys/block/loop*; do
    case "$(cat "$device/loop/backing_file" 2>/dev/null)" in "$folder"/*) losetup -d "/dev/${device##*/}" || true ;; esac
  done
  for point in $(mounts_below "$folder"); do umount "$point" || umount -l "$point"; done
  for name in "$@"; do [ ! -e "/run/netns/$name" ] || ip netns delete "$name"; done
  rm -rf "$folder"
}

at_exit() {
  local code=$?
  # A second interrupt must not leave half of it behind.
  trap - EXIT
  trap '' INT TERM HUP
  set +e
  if [ $code -ne 0 ]; then
    printf '\n%sThe demo did not get through (exit %s); removing what it made.%s\n' "$red" "$code" "$plain"
    for log in "$demo"/target*.log; do
      [ -s "$log" ] && { echo "The end of ${log##*/}:"; tail -n 10 "$log"; }
    done
  fi
  remove "$demo" "${namespace[@]}" >/dev/null 2>&1
  echo "${dim}Everything the demo made has been removed.${plain}"
  exit $code
}
trap at_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# What a demo that was killed outright left behind: our prefix and the id of a process that is gone.
for left in /var/tmp/$prefix-* /run/netns/$prefix-*; do
  [ -e "$left" ] || continue
  pid=${left##*/$prefix-} pid=${pid%%-*}
  [ -d "/proc/$pid" ] || remove "/var/tmp/$prefix-$pid" "$prefix-$pid-"{i,s,t,u} >/dev/null 2>&1
done

# ------------------------------------------------------------------------------- how it is told

step=0
say() { step=$((step + 1)); printf '\n%s%d. %s%s\n' "$bold" "$step" "$*" "$plain"; }
note() { printf '   %s\n' "$*"; }
# The command as a user would type it at that machine.
prompt() {
  local side=$1 text='' word
  shift
  for word in "$@"; do
    case "$word" in
      '&') text+=' &' ;;
      *[\ \&\;\|\>\<\*\?\(\)\$]*) text+=" '$word'" ;;
      *) text+=" $word" ;;
    esac
  done
  printf '%s%9s#%s%s\n' "$green" "$side" "$plain" "$text"
}
indent() { sed 's/^/           /'; }

enter() {
  local side=$1
  shift
  nsenter --net="/run/netns/${namespace[$side]}" "$@" </dev/null
}
# Runs a command at a machine, its output indented. In the background and waited for, so that an
# interrupt is heard at once.
run() {
  (enter "$@" 2>&1 | indent) &
  wait $!
}
at() { prompt "$@"; run "$@"; }
# The same for a line with pipes.
at_line() {
  printf '%s%9s#%s %s\n' "$green" "$1" "$plain" "$2"
  run "$1" bash -c "set -o pipefail; $2"
}

# ---------------------------------------------------------------------------------- preparation

scripts/setup.sh --demo
echo "building thinwire (release; the first time takes a few minutes)"
cargo build --release --locked -p thinwire </dev/null
binary=$(realpath "${CARGO_TARGET_DIR:-target}")/release/thinwire

mkdir -p "$demo/bin" "$demo/mnt" "$demo/tree"
# The demo's attachments keep their state apart from this machine's real ones: the flag that says so
# is added here rather than shown in every command.
cat >"$demo/bin/thinwire" <<WRAPPER
#!/bin/sh
case "\$1" in
  attach | detach | status | bench | volume) exec "$binary" "\$@" --run-dir "$demo/run" ;;
  *) exec "$binary" "\$@" ;;
esac
WRAPPER
chmod +x "$demo/bin/thinwire"
export PATH=$demo/bin:$PATH:/usr/sbin:/sbin

# A real tree of at least 5,000 files: what lies about on this machine, and the sources that this
# build was made from.
wanted=6000
for folder in /usr/include /usr/share "${CARGO_HOME:-$HOME/.cargo}/registry/src" /usr/lib; do
  [ -d "$folder" ] || continue
  have=$(find "$demo/tree" -type f | wc -l)
  [ "$have" -lt $wanted ] || break
  # find dies of SIGPIPE when head has enough: as it should.
  (set +o pipefail; cd "$folder" && find . -xdev -type f -size -200k -print0 | head -z -n $((wanted - have)) |
    xargs -0 -r cp --parents --preserve=mode,timestamps -t "$demo/tree" --)
done
files=$(find "$demo/tree" -type f | wc -l)
if [ "$files" -lt 5000 ]; then
  echo "demo: found only $files files to copy below /usr, want at least 5,000" >&2
  exit 1
fi
(cd "$demo/tree" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$demo/sums"

# ------------------------------------------------------------------------------------- the wire

cat <<PICTURE

${bold}Thinwire: a disk across the switch${plain}

    initiator ------------ switch ------------ target1
      eth1                (bridge)               eth1, $demo/disk0.img
                              +--------------- target2
                                                 eth1, for the second half

Four network namespaces stand for four machines; MTU 9000; no IP address on any of them.
PICTURE

for side in initiator switch target1 target2; do
  ip netns add "${namespace[$side]}"
  enter $side sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
done
enter switch ip link add br1 mtu 9000 type bridge stp_state 0 forward_delay 0 mcast_snooping 0
for side in initiator target1 target2; do
  enter switch ip link add "$side" mtu 9000 type veth peer name eth1 mtu 9000 netns "${namespace[$side]}"
  enter switch ip link set "$side" master br1 up
  enter $side ip link set eth1 up
done
enter switch ip link set br1 up

# ------------------------------------------------------------------------------------ the story

key=$demo/keys/alice
starts=0
# Starts the target NODE on the machine SIDE, with these exports.
serve() {
  local side=$1 node=$2 export
  local words=(target --key "$key" --name "$node" --link eth1)
  shift 2
  for export in "$@"; do words+=(--export "$export"); done
  starts=$((starts + 1))
  prompt "$side" thinwire "${words[@]}" '&'
  # Not left to the redirection below, which comes whenever the background shell gets to it.
  : >"$demo/ready"
  # The binary itself, by exec: the process id is the target's own, so that kill -9 kills it. In a
  # session of its own: an interrupt at the terminal must not take it away before the disk is.
  setsid nsenter --net="/run/netns/${namespace[$side]}" "$binary" "${words[@]}" --run-dir "$demo/$side" \
    </dev/null >"$demo/ready" 2>"$demo/target$starts.log" &
  target_pid[$side]=$!
  for _ in $(seq 200); do
    grep -q "^ready $node\$" "$demo/ready" && break
    kill -0 ${target_pid[$side]} 2>/dev/null || { echo "the target ended before it was ready" >&2; exit 1; }
    sleep 0.1
  done
  grep "^ready $node\$" "$demo/ready" | indent
}
serve_disk() { serve target1 node1 "disk0=$demo/disk0.img" scratch=memory:512M; }
murder() {
  local pid=${target_pid[$1]}
  prompt "$1" kill -9 "$pid"
  kill -9 "$pid"
  wait "$pid" 2>"$demo/killed" || true # bash tells us that it was killed; we know
}
shut_down() {
  local pid=${target_pid[$1]} code
  prompt "$1" kill -TERM "$pid"
  kill -TERM "$pid"
  wait "$pid" && code=0 || code=$?
  [ $code -eq 0 ] || { echo "the target's exit status is $code" >&2; exit 1; }
}
uri='tw://node1/disk0?link=eth1'
attach() {
  prompt initiator thinwire attach --key "$key" "$@"
  enter initiator thinwire attach --key "$key" "$@" >"$demo/attached" &
  wait $!
  indent <"$demo/attached"
  attached=$(cat "$demo/attached")
}

say "A key, which both machines have: nobody else gets in, or reads what passes."
at target1 thinwire key new alice --dir "$demo/keys"

say "The target exports a disk image of 1 GiB in a file, and a piece of memory."
at target1 truncate -s 1G "$demo/disk0.img"
serve_disk

say "The initiator asks who is there: without the key it learns a name, and no more."
at initiator thinwire discover --link eth1
at initiator thinwire discover --link eth1 --key "$key"

say "It attaches the disk as a block device. No kernel module of ours, no TCP/IP in the way."
attach "$uri" --block
disk=$attached
at initiator thinwire status

say "A file system on it, and a real tree of $files files."
at initiator mkfs.ext4 -q "$disk"
at initiator mount "$disk" "$demo/mnt"
at initiator cp -a "$demo/tree" "$demo/mnt/"
at initiator df -h --output=source,size,used,target "$demo/mnt"

say "Unmount and detach: the disk is gone from the initiator."
at initiator umount "$demo/mnt"
at initiator thinwire detach disk0

say "The target dies without a word, and is started again."
murder target1
serve_disk

say "Attach again. The file system is sound, and every file is what it was."
attach "$uri" --block
disk=$attached
at initiator fsck.ext4 -f -n "$disk"
at initiator mount -o ro "$disk" "$demo/mnt"
at_line initiator "cd $demo/mnt/tree && sha256sum --quiet -c $demo/sums && echo every checksum is right"
same=$(cd "$demo/mnt/tree" && find . -type f | wc -l)
[ "$same" -eq "$files" ] || { echo "there are $same files, $files were copied" >&2; exit 1; }
note "$same files compared."
at initiator umount "$demo/mnt"
at initiator thinwire detach disk0

say "Random 4 KiB reads, 32 outstanding, of the memory export: over an NBD socket, with fio ..."
attach 'tw://node1/scratch?link=eth1' --nbd "unix:$demo/scratch.sock"
at_line initiator "fio --name=random --ioengine=nbd --uri='nbd+unix:///?socket=$attached' --rw=randread --bs=4k --iodepth=32 --time_based --runtime=4 --size=512m | grep -E 'IOPS=|clat.*avg='"
at initiator thinwire detach scratch

say "... and natively, by the same protocol without a face in between: 32 outstanding, then one."
for depth in 32 1; do
  at initiator thinwire bench --key "$key" 'tw://node1/scratch?link=eth1' --rw randread --bs 4k --iodepth $depth --runtime 4
done

say "The target shuts down in order."
shut_down target1

# --------------------------------------------------------------- one disk of two machines: a mirror

say "Two targets now, with a disk each, and a disk made of both: a mirror, described in a file."
at target1 truncate -s 256M "$demo/left.img"
serve target1 node1 "left=$demo/left.img"
at target2 truncate -s 256M "$demo/right.img"
serve target2 node2 "right=$demo/right.img"
cat >"$demo/mirror.toml" <<'DESCRIPTION'
[[volume]]
name = "home"
kind = "mirror"
leg_timeout_ms = 1000
children = ["tw://node1/left?link=eth1", "tw://node2/right?link=eth1"]
DESCRIPTION
home=$demo/mirror.toml#home
at initiator cat "$demo/mirror.toml"
at initiator thinwire volume create --key "$key" "$home"

say "Attached as one disk: a file system on it, and the first half of some files."
attach "$home" --block
disk=$attached
halves=("$demo/first" "$demo/second")
mkdir "${halves[@]}"
# Of a size that is written in a moment.
(set +o pipefail; cd "$demo/tree" && find . -type f -print0 | head -z -n 2000 >"$demo/names")
(cd "$demo/tree" && head -z -n 1000 "$demo/names" | xargs -0 cp --parents -t "${halves[0]}" -- &&
  tail -z -n 1000 "$demo/names" | xargs -0 cp --parents -t "${halves[1]}" --)
(cd "$demo" && find first second -type f -print0 | sort -z | xargs -0 sha256sum) >"$demo/half_sums"
at initiator mkfs.ext4 -q -E nodiscard "$disk"
at initiator mount "$disk" "$demo/mnt"
at initiator cp -a "${halves[0]}" "$demo/mnt/"
at initiator sync -f "$demo/mnt"
note "A new mirror copies what is on the first to all others, while it is used:"
at initiator thinwire volume resync --wait "$home"
note "A little later nothing of it is written any more, and both have on record that they have all:"
at initiator sleep 3

say "One of the two dies in the midst of it. Work goes on with the other, after a second at most."
murder target2
at initiator cp -a "${halves[1]}" "$demo/mnt/"
at initiator sync -f "$demo/mnt"
at initiator thinwire volume status "$home"

say "It comes back, and gets what it lacks and no more, while the disk is in use."
serve target2 node2 "right=$demo/right.img"
# The mirror looks for it by itself, a few times a second.
for _ in $(seq 300); do
  ! enter initiator thinwire volume status --json "$home" | grep -q '"standing":"behind"' || { sleep 0.1; continue; }
  break
done
at initiator thinwire volume resync --wait "$home"

say "Every file is there, and both machines have the same, byte by byte."
at_line initiator "cd $demo/mnt && sha256sum --quiet -c $demo/half_sums && echo every checksum is right"
at initiator umount "$demo/mnt"
at initiator thinwire detach home
shut_down target1
shut_down target2
# What stands before that is each one's own: its label, and what it knows of the other.
at_line switch "cmp -i 1572864 $demo/left.img $demo/right.img && echo left.img and right.img are the same"

printf '\n%sDone: %s files survived the journey and the kill, %s more a machine that was lost and came back.%s\n' \
  "$bold" "$files" "$(wc -l <"$demo/half_sums")" "$plain"
