"""A guest that has less memory than its program needs, and swaps to a disk across the switch."""

import re
import time

import stage
from harness import check
from rooms import room

# Memory of the guest, and how much of it the program writes: one and a half times all of it.
GUEST_MB, TOUCHED_MB, ROUNDS = 192, 288, 3
SWAP_MIB = 512
WORK = """
{attach}
mkswap $device > /dev/null
swapon $device
echo "guest: swaps to $device"
free -m
helper touch {touched} {rounds}
{detach}
grep -E 'pswp(in|out) ' /proc/vmstat
grep -E '^(oom_kill|allocstall_normal|pgsteal_direct) ' /proc/vmstat || true
echo "guest: swapped"
"""
# Seconds that a virtio disk of the host took, which all others are compared with.
LOCAL = []


def swap(lab, attach, detach="swapoff $device", modules=(), add=(), seconds=600, touched=TOUCHED_MB, rounds=ROUNDS,
         least=ROUNDS * (TOUCHED_MB - GUEST_MB), **options):
    """Has a guest swap, and returns the seconds that its program took."""
    work = WORK.format(attach=attach, detach=detach, touched=touched, rounds=rounds)
    guest = stage.guest(lab, work, modules, add, memory=GUEST_MB, **options)
    guest.finishes(seconds).no_trouble()
    check("guest: swapped" in guest.console, "the guest did not come to its end")
    swapped = int(re.search(r"^pswpout (\d+)", guest.console, re.M)[1]) * 4096 >> 20
    check(swapped > least, f"only {swapped} MiB were swapped: the room shows nothing")
    return float(re.search(rf"helper: round {rounds} after ([\d.]+) s", guest.console)[1]), swapped


def local(lab):
    """The same on a virtio disk, once in a run."""
    if not LOCAL:
        LOCAL.extend(swap(lab, "device=/dev/vda", disks=[stage.sparse(lab, SWAP_MIB, "swap.img")], name="local"))
    return LOCAL[0]


def compare(lab, what, times, seconds, swapped):
    """Prints the ratio, and fails if it is beyond the bar."""
    base = local(lab)
    print(f"      {what}: {seconds:.1f} s for {ROUNDS} rounds over {TOUCHED_MB} MB in {GUEST_MB} MB, {swapped} MiB swapped "
          f"out; a local virtio disk: {base:.1f} s; ratio {seconds / base:.2f} (bar: {times})", flush=True)
    check(seconds <= times * base, f"{what} takes {seconds / base:.2f} times as long as a local disk, more than {times}")


@room(600)
def aoe(lab):
    """Swap over Linux's own AoE driver, on a target that keeps it in memory (`cached`)."""
    stage.target(lab, f"memory:{SWAP_MIB}M", stage.AOE + ",cached")
    compare(lab, "aoe", 3, *swap(lab, stage.AOE_WAIT + f"device={stage.AOE_DEVICE}", modules=["aoe"]))


ATTACH = """
echo 16384 > /proc/sys/vm/min_free_kbytes
device=$(thinwire attach --insecure '{uri}' --block={way} --as swap {carries})
{more}
"""


def ours(lab, uri, carries="--carries swap", more="", way="loop", modules=stage.BLOCK, **options):
    """The same on a device node of our initiator."""
    attach = ATTACH.format(uri=uri(lab), carries=carries, more=more, way=way)
    detach = "swapoff $device; thinwire detach swap"
    return swap(lab, attach, detach, modules, [stage.THINWIRE], **options)


@room(900, each=stage.OURS)
def carried(lab, offers, uri):
    """Swap over our initiator in the guest, which carries it."""
    stage.target(lab, f"memory:{SWAP_MIB}M", *offers)
    compare(lab, "carried", 8, *ours(lab, uri))


@room(600)
def ublk(lab):
    """The same by ublk, without FUSE and loop device."""
    stage.target(lab, f"memory:{SWAP_MIB}M")
    compare(lab, "ublk", 8, *ours(lab, stage.OURS["native"]["uri"], way="ublk", modules=stage.UBLK))


@room(60, quick=True)
def small(lab):
    """One round over less, in `make test`."""
    stage.target(lab, f"memory:{SWAP_MIB}M")
    seconds, swapped = ours(lab, stage.OURS["native"]["uri"], seconds=55, touched=80, rounds=1, least=25)
    print(f"      one round after {seconds:.1f} s, {swapped} MiB swapped out", flush=True)


def written(lab, name, carries, before, seconds):
    """How many MB of its memory the program of a guest has written in that time, or all of them sooner."""
    uri = stage.OURS["native"]["uri"](lab)
    attach = f"{before}\ndevice=$(thinwire attach --insecure '{uri}' --block --as swap {carries})"
    work = WORK.format(attach=attach, detach="", touched=TOUCHED_MB, rounds=1)
    guest = stage.guest(lab, work, stage.BLOCK, [stage.THINWIRE], memory=GUEST_MB, name=name)
    guest.says("^guest: swaps to", 90)
    end = time.monotonic() + seconds
    while True:
        told = [int(mb) for mb in re.findall(r"^helper: (\d+) MB so far", guest.console, re.M)]
        most = max(told, default=0)
        if most == TOUCHED_MB or time.monotonic() > end:
            guest.process.end()
            return most
        check(guest.process.running, f"it has ended:\n{guest.last}")
        time.sleep(1)


@room(700)
def hangs_unless_carried(lab):
    """With --carries a guest writes half as much again as it has memory; without, it stands still before it has written as
    much as it has: what --carries demands is needed."""
    stage.target(lab, f"memory:{SWAP_MIB}M")
    carried = written(lab, "carried", "--carries swap", "echo 16384 > /proc/sys/vm/min_free_kbytes", 300)
    check(carried > GUEST_MB, f"it stands still with --carries, too: {carried} MB")
    without = written(lab, "without", "", ":", 100)
    check(without < GUEST_MB, f"it went on: {without} MB")
    print(f"in {GUEST_MB} MB: {carried} MB with --carries, {without} without")
