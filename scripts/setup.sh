#!/usr/bin/env bash
# Installs what the demo or the tests need and the machine lacks. Idempotent: with everything in
# place it prints one line, touches nothing and needs no network.
#
#   scripts/setup.sh --demo     what `make demo` needs
#   scripts/setup.sh --test     what `make test` and `make bench` need (more)
#   scripts/setup.sh --soak     the same, and what `make soak` murders besides (PostgreSQL)
#   scripts/setup.sh --guest    what `make guest` needs: QEMU, and what makes disks that boot
#   scripts/setup.sh --lab      what `make lab` needs: the tools, and the peers that it measures
#   scripts/setup.sh --check    with one of the above: install nothing, exit 1 if something is missing
set -euo pipefail

want=test check=no soak=no
for arg in "$@"; do
  case "$arg" in
    --demo) want=demo ;;
    --test) want=test ;;
    --soak) want=test soak=yes ;;
    --guest) want=guest ;;
    --lab) want=lab ;;
    --check) check=yes ;;
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup: unknown argument '$arg' (known: --demo, --test, --soak, --guest, --lab, --check)" >&2; exit 2 ;;
  esac
done

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
PYTHON=${PYTHON:-/usr/bin/python3}

# Each need: the test that shows it is there, the Debian package that brings it, what it is for.
# Packages are asked for only when the test fails, so a machine that has the tools from elsewhere
# (another distribution, built by hand) is as welcome as a Debian one.
missing=() reasons=()
need() {
  local package=$1 reason=$2
  shift 2
  if ! "$@" >/dev/null 2>&1; then
    missing+=("$package")
    reasons+=("$package ($reason)")
  fi
}
have() { command -v "$1"; }
# A file system the kernel can mount now or load a module for. Tells a missing kernel feature,
# which no package mends, from a missing tool.
kernel_fs() { grep -qw "$1" /proc/filesystems || modprobe -n "$1"; }

need build-essential "the linker 'cc' that cargo calls" have cc
need iproute2 "network namespaces, veth, bridge: 'ip'" have ip
need util-linux "'nsenter', 'losetup'" have nsenter
need mount "'mount', 'losetup'" have losetup
need procps "'ps', 'sysctl'" have sysctl
need fuse3 "'fusermount3', for attach --file and --block" have fusermount3
need e2fsprogs "'mkfs.ext4', 'fsck.ext4'" have mkfs.ext4
[ "$want" = guest ] || need fio "random I/O over NBD, with its nbd engine" fio --enghelp=nbd
if [ "$want" = guest ]; then
  need qemu-system-x86 "the machine that guests run on" have qemu-system-x86_64
  need kmod "'modprobe', 'depmod', on the guest's modules" have depmod
  need cpio "a guest's first file system" have cpio
  need xz-utils "its modules are packed" have xz
  need zstd "its modules are packed" have zstd
  need xfsprogs "'mkfs.xfs', 'xfs_repair', in a guest" have mkfs.xfs
  need mmdebstrap "a root with systemd" have mmdebstrap
  need ipxe "a boot over AoE" test -e /usr/lib/ipxe/ipxe.lkrn
  need grub-common "disks that boot: 'grub-mkimage'" have grub-mkimage
  need grub-pc-bin "disks that boot" test -e /usr/lib/grub/i386-pc/boot.img
  need nftables "frames dropped at the switch: 'nft'" have nft
  need python3 "the runner: $PYTHON" test -x "$PYTHON"
elif [ "$want" != demo ]; then
  need libnbd-bin "'nbdinfo', 'nbdcopy'" have nbdcopy
  need nbdkit "the peer we measure against" have nbdkit
  need qemu-utils "'qemu-img', 'qemu-nbd'" have qemu-nbd
fi
if [ "$want" = lab ]; then
  # Where systemd runs, its package starts a daemon; the laboratory runs one of its own.
  need tgt "a peer: iSCSI" have tgtd
  need vblade "a peer: AoE" have vblade
  need libiscsi-bin "'iscsi-perf', which drives it" have iscsi-perf
  need postmark "small files, on ext4 over storage nodes" have postmark
  need sqlite3 "queries over storage nodes" have sqlite3
  need linux-perf "the kernel's time by layer: 'perf'" have perf
fi
if [ "$want" = test ]; then
  need git "a clone onto an attached disk" have git
  need python3 "the end-to-end tests: $PYTHON" test -x "$PYTHON"
  need python3-libnbd "nbdsh, which sends illegal requests on demand" "$PYTHON" -c 'import nbd'
  need nftables "frames dropped at the switch: 'nft'" have nft
  need xfsprogs "'mkfs.xfs', 'xfs_repair'" have mkfs.xfs
  need btrfs-progs "'mkfs.btrfs'" have mkfs.btrfs
  need tshark "the dissector's test" have tshark
  need ethtool "offload settings" have ethtool
  need valgrind "instructions an I/O takes" have valgrind
  need strace "the system calls of a target" have strace
fi
if [ "$soak" = yes ]; then
  need postgresql "a database on an attached disk" ls /usr/lib/postgresql/*/bin/initdb
fi

if [ ${#missing[@]} -gt 0 ]; then
  install="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
  if [ "$check" = yes ]; then
    printf 'setup: missing: %s\n' "${reasons[@]}" >&2
    exit 1
  fi
  if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: this machine has no apt-get, and these are missing:" >&2
    printf '  %s\n' "${reasons[@]}" >&2
    echo "Install them with your package manager (the names above are Debian's), then run this again." >&2
    exit 1
  fi
  if [ "$(id -u)" != 0 ]; then
    echo "setup: installing packages needs root. As root: $install" >&2
    exit 1
  fi
  echo "setup: installing with apt-get, because they are missing:"
  printf '  %s\n' "${reasons[@]}"
  export DEBIAN_FRONTEND=noninteractive
  log=$(mktemp)
  if ! { apt-get -q update && apt-get -q install -y --no-install-recommends "${missing[@]}"; } \
    </dev/null >"$log" 2>&1; then
    tail -n 25 "$log" >&2
    echo "setup: apt-get failed, its last lines are above and all of them in $log. To try by hand: $install" >&2
    exit 1
  fi
  rm -f "$log"
fi

if ! command -v cargo >/dev/null 2>&1; then
  echo "setup: no cargo. Thinwire is built with stable Rust: https://rustup.rs has the one command to install it." >&2
  exit 1
fi
# The least Rust, from the one place that says so.
least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
found=$(cargo --version | sed 's/^cargo \([0-9.]*\).*/\1/')
if [ "$(printf '%s\n%s\n' "$least" "$found" | sort -V | head -n 1)" != "$least" ]; then
  echo "setup: cargo $found is too old, Thinwire needs Rust $least: run 'rustup update stable'." >&2
  exit 1
fi
if [ "$want" = test ]; then
  for part in fmt clippy; do
    cargo "$part" --version >/dev/null 2>&1 && continue
    component=$([ $part = fmt ] && echo rustfmt || echo clippy)
    if [ "$check" = no ] && command -v rustup >/dev/null 2>&1; then
      echo "setup: adding the Rust component $component"
      rustup component add "$component"
    else
      echo "setup: 'cargo $part' is missing: 'rustup component add $component'." >&2
      exit 1
    fi
  done
fi

# What no package brings. Said here, in one place, rather than by a test half an hour later.
[ "$want" = lab ] || [ "$want" = guest ] || [ -e /dev/fuse ] || { modprobe fuse 2>/dev/null && [ -e /dev/fuse ]; } || {
  echo "setup: the kernel offers no /dev/fuse, which attach --file and --block need (modprobe fuse, or a container started with --device /dev/fuse)." >&2
  exit 1
}
[ "$want" = lab ] || [ "$want" = guest ] || [ -e /dev/loop-control ] || { modprobe loop 2>/dev/null && [ -e /dev/loop-control ]; } || {
  echo "setup: the kernel offers no /dev/loop-control, which attach --block needs where there is no ublk (modprobe loop)." >&2
  exit 1
}
if [ "$want" = test ] && ! kernel_fs xfs; then
  echo "setup: this kernel cannot mount xfs (modprobe xfs, or a kernel built with it)." >&2
  exit 1
fi
echo "setup: everything that 'make $want' needs is here."
