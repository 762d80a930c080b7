"""Data that is checked end to end (`integrity=on`). What is found by it the simulator shows, which can alter memory."""

import json

import load
from harness import check
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test
from test_keys import shown


@test(seconds=60, each={over: {"over": over} for over in ("packet", "udp")})
def checked_end_to_end(lab, over):
    """fio through the NBD face with integrity=on, under a bad wire: nothing is altered, and status says that it was
    looked at."""
    fault = ("--fault", "loss=1%,dup=1%,reorder=1%,corrupt=1%,seed=3")
    Target(lab, f"disk0={image(lab)}", over=over, extra=(*fault, "--run-dir", lab.path("target-run")))
    attachment = Attachment(lab, uri(lab, over=over, integrity="on"), extra=fault)
    fio = load.Fio(lab, attachment.nbd, mib=48)
    job = fio.finish(50)
    none = {"writes": 0, "here": 0, "reads": 0, "failed": 0}
    found = attachment.status()
    check(found["integrity"] == none, f"status has {found['integrity']}")
    told = thinwire(lab, "status", "disk0", "--run-dir", attachment.run_dir).stdout
    check("checked end to end" in told, told)
    check(shown(lab)["counters"]["altered"] == 0, "the target has refused something")
    attachment.detach()
    return job


@test(seconds=60)
def bench_with_integrity(lab):
    """`bench` measures a volume with integrity as any other; without it status tells of none; nonsense is refused."""
    Target(lab, f"disk0={image(lab)}")
    words = ("--rw", "randrw", "--bs", "4k", "--iodepth", "8", "--runtime", "0.5", "--json")
    done = thinwire(lab, "bench", uri(lab, integrity="on"), *words, timeout=30)
    check(json.loads(done.stdout), done.stdout)
    attachment = Attachment(lab, uri(lab, integrity="off"))
    check(attachment.status()["integrity"] is None, "integrity=off has counts")
    attachment.detach()
    refused(lab, "bench", uri(lab, integrity="maybe"), says="integrity must be on or off", code=2)
