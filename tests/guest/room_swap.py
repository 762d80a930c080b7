"""A guest that has less memory than its program needs, and swaps to a disk across the switch."""

import re

import stage
from harness import Failure, check
from rooms import room

# Memory of the guest, and how much of it the program writes: one and a half times all of it.
GUEST_MB, TOUCHED_MB, ROUNDS = 160, 240, 3
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
DISKS = {
    "local": ("device=/dev/vda", "swapoff $device", ()),
    "aoe": (stage.AOE_WAIT + f"device={stage.AOE_DEVICE}", "swapoff $device", ("aoe",)),
}


def swap(lab, attach, detach, modules, add=(), offers=(), disks=(), seconds=600, touched=TOUCHED_MB, rounds=ROUNDS,
         memory=GUEST_MB):
    """Swaps to a disk; returns the seconds that the program took."""
    target = stage.target(lab, f"memory:{SWAP_MIB}M", *offers)
    work = WORK.format(attach=attach, detach=detach, touched=touched, rounds=rounds)
    guest = stage.guest(lab, work, modules, add, memory=memory, disks=disks)
    guest.finishes(seconds).no_trouble()
    swapped = int(re.search(r"^pswpout (\d+)", guest.console, re.M)[1])
    check(swapped << 12 > (touched - memory) << 20, f"only {swapped} pages were swapped: the room shows nothing")
    return float(re.search(rf"helper: round {rounds} after ([\d.]+) s", guest.console)[1]), swapped
