"""fio through the NBD face, checksums verified, while the network and the target do their worst."""

import time

import load
from harness import Failure, check, until
from node import Attachment, Target, image, uri
from registry import test


def serve(lab, over="best", wrapper="", target_extra=(), attach_extra=()):
    """A target with a file store of 128 MiB and an attachment of it."""
    target = Target(lab, f"disk0={image(lab)}{wrapper}", over=over, extra=target_extra)
    return target, Attachment(lab, uri(lab, over=over), extra=attach_extra)


def finish(lab, fio, attachment, timeout=90):
    """fio ends well, and so does the attachment: an orderly detach flushes and says nothing."""
    job = fio.finish(timeout)
    attachment.detach()
    return job


ALL = {over: {"over": over} for over in ("packet", "udp", "xdp")}
RAW = {over: {"over": over} for over in ("packet", "xdp")}
# The two ways to keep what was read at the target. The cache is smaller than what is read and written.
KEPT = {
    "packet_buffered": {"over": "packet", "wrapper": ",buffered"},
    "packet_cache": {"over": "packet", "wrapper": ",cache=32M"},
    "udp_cache": {"over": "udp", "wrapper": ",cache=32M"},
}


@test(seconds=60, each=ALL | KEPT)
def plain(lab, over, wrapper=""):
    """An undisturbed wire."""
    _, attachment = serve(lab, over, wrapper)
    finish(lab, load.Fio(lab, attachment.nbd, mib=96), attachment)


@test(seconds=60, mtu=1500, each=RAW)
def small_mtu(lab, over):
    """A wire of MTU 1500: every block is cut into several frames."""
    _, attachment = serve(lab, over)
    finish(lab, load.Fio(lab, attachment.nbd, mib=48), attachment)


@test(seconds=90, each=ALL | KEPT)
def switch_drops(lab, over, wrapper=""):
    """The switch drops 2 % of what it forwards (over udp whole trains of frames)."""
    _, attachment = serve(lab, over, wrapper)
    lab.drop(2)
    fio = load.Fio(lab, attachment.nbd, mib=64)
    fio.process.wait(80, expect=None)
    seen, dropped = lab.dropped()
    load.judge(fio.process)
    check(dropped > 20 and 0.01 < dropped / seen < 0.04, f"the switch dropped {dropped} of {seen} frames, not 2 %")
    attachment.detach()


@test(seconds=90, each=ALL)
def faulty_links(lab, over):
    """1 % loss, duplication and reordering by the wrapper, on both sides."""
    fault = ("--fault", "loss=1%,dup=1%,reorder=1%,seed=7")
    _, attachment = serve(lab, over, target_extra=fault, attach_extra=fault)
    finish(lab, load.Fio(lab, attachment.nbd, mib=64), attachment, timeout=80)


@test(seconds=90, each=RAW)
def corrupting_links(lab, over):
    """1 % of the frames corrupted by the wrapper: each is dropped for its checksum, none believed."""
    fault = ("--fault", "corrupt=1%,seed=9")
    _, attachment = serve(lab, over, target_extra=fault, attach_extra=fault)
    finish(lab, load.Fio(lab, attachment.nbd, mib=32), attachment, timeout=80)


@test(seconds=90, links=2, each=ALL)
def one_of_two_links_cut(lab, over):
    """One of two links is cut and restored, then the other: the session goes on, and uses what returns."""
    _, attachment = serve(lab, over)
    fio = load.Fio(lab, attachment.nbd, mib=64, seconds=14)
    for link in (1, 2):
        time.sleep(1.5)
        used = lab.forwarded(link)
        until(f"frames over link {link} before the cut", 5, lambda: lab.forwarded(link) > used + 20)
        lab.port(link, up=False)
        time.sleep(2)
        fio.still_running(f"link {link} came back")
        lab.port(link, up=True)
        back = lab.forwarded(link)
        until(f"link {link} is used again after its return", 8, lambda: lab.forwarded(link) > back + 20)
        fio.still_running(f"link {link} was used again")
    finish(lab, fio, attachment)


@test(seconds=120, each=RAW)
def all_links_down(lab, over):
    """All links down for 30 s in the middle: I/O waits, nothing fails, nothing is lost."""
    _, attachment = serve(lab, over)
    fio = load.Fio(lab, attachment.nbd, mib=64, seconds=6)
    time.sleep(2)
    fio.still_running("the links went down")
    lab.port(1, up=False)
    time.sleep(5)
    away = attachment.status()
    check(away["state"] != "ready" and away["state"] != "up" and away["timer"],
          f"five seconds into the outage status shows neither a state nor a timer that says so: {away}")
    time.sleep(25)
    fio.still_running("the links came back")
    lab.port(1, up=True)
    finish(lab, fio, attachment)


@test(seconds=60, each=RAW)
def interface_made_anew(lab, over):
    """The interface of an idle target, which sends nothing, is removed and made anew; who attaches then
    is heard."""
    Target(lab, f"disk0={image(lab)}", over=over)
    lab.remake(1)
    attachment = Attachment(lab, uri(lab, over=over))
    finish(lab, load.Fio(lab, attachment.nbd, mib=32, seconds=3), attachment)


@test(seconds=120, links=2)
def both_links_go_silent(lab):
    """Both of two links swallow everything, carrier up, for 30 s; the first to return carries on alone."""
    _, attachment = serve(lab)
    fio = load.Fio(lab, attachment.nbd, mib=64, seconds=6)
    time.sleep(2)
    fio.still_running("the links went silent")
    lab.drop(100)
    time.sleep(30)
    fio.still_running("the links spoke again")
    lab.port(1, up=False)
    lab.drop(0)
    finish(lab, fio, attachment)
    lab.port(1, up=True)


KILLS = KEPT | {
    "packet": {"over": "packet", "wrapper": ""},
    "packet_writeback": {"over": "packet", "wrapper": ",writeback"},
    "udp_writeback": {"over": "udp", "wrapper": ",writeback"},
    "xdp_writeback": {"over": "xdp", "wrapper": ",writeback"},
}


@test(seconds=120, each=KILLS)
def target_killed(lab, over, wrapper):
    """kill -9 of the target three times, restarted each time (writeback: unflushed writes are lost; buffered:
    what was in the page cache is not)."""
    target, attachment = serve(lab, over, wrapper)
    fio = load.Fio(lab, attachment.nbd, mib=64, seconds=10)
    for kill in range(3):
        time.sleep(2)
        fio.still_running(f"kill {kill + 1}")
        target.kill()
        time.sleep(0.5)
        target.start()
    fio.still_running("the third restart")
    finish(lab, fio, attachment)


@test(seconds=60)
def fail_after(lab):
    """With --when-away fail-after=2 I/O fails once the target has been away so long, and not before."""
    target, attachment = serve(lab, attach_extra=("--when-away", "fail-after=2"))
    fio = load.Fio(lab, attachment.nbd, mib=64, seconds=20)
    time.sleep(2)
    fio.still_running("the target was killed")
    target.kill()
    start = time.monotonic()
    try:
        fio.finish(30)
    except Failure as failure:
        waited = time.monotonic() - start
        check("verify:" not in str(failure), f"wrong bytes rather than an error:\n{failure}")
        check(waited > 1.5, f"failed after {waited:.1f} s already")
        return
    raise Failure("the I/O neither waited nor failed")
