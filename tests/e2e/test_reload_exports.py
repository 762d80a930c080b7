"""Exports that come and go by a reload, while others are served."""

import fcntl
import os
import time

import load
from harness import Failure, check, until
from node import image, refused, uri
from registry import test
from test_reload import SHARDS, Disk, Keyed, copied, key_path

# Writes a page that says which one it is, and reads it.
MARK = """
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
page = sys.argv[2].encode().ljust(4096, b".")
if sys.argv[3] == "write":
    h.pwrite(page, 8192)
    h.flush()
print("same" if bytes(h.pread(4096, 8192)) == page else "other")
"""


def mark(lab, disk, text, what):
    done = lab.run("initiator", "/usr/bin/python3", "-c", MARK, disk.nbd, text, what, timeout=40)
    return done.stdout.strip()


def exports_of(said):
    """What a reload says of exports: with one in memory the rest of the machine's is another limit, too."""
    return [change for change in said["changes"] if not change.startswith("limit memory ")]


def is_locked(path):
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True


@test(seconds=240, each=SHARDS)
def fifty_come_and_go(lab, shards):
    """Beside an export under verified load others come and go fifty times, and are used meanwhile: nobody else notices,
    and each file is closed and has what was written to it."""
    target = Keyed(lab, "alice", extra=["--shards", str(shards)], exports=2 * shards)
    disk = Disk(lab, key_path(lab, "alice"), "disk0")
    fio = load.Fio(lab, disk.nbd, mib=128, seconds=32)
    target.at_work()
    paths = [image(lab, f"more{n}.img", mib=8) for n in range(3)]
    for nth in range(50):
        name, path = f"more{nth % 5}", paths[nth % 3]
        target.exports[name] = f"file:{path}" if nth % 7 else f"memory:{8 << 20}"
        target.write(lab, ["alice"])
        said = target.reload()
        check((exports_of(said), said["ended"], said["late"]) ==
              ([f"export `{name}` is added: {target.exports[name]}"], 0, []), f"turn {nth}: it says {said}")
        if nth % 5 == 0:
            more = Disk(lab, key_path(lab, "alice"), name, name="more")
            check(mark(lab, more, f"turn {nth}", "write") == "same", f"turn {nth}: what was written is read")
            more.detach()
        is_marked = nth % 5 == 0 and nth % 7 != 0
        del target.exports[name]
        target.write(lab, ["alice"])
        said = target.reload()
        check((exports_of(said), said["ended"], said["leaving"]) == ([f"export `{name}` is removed"], 0, []),
              f"turn {nth}: it says {said}")
        check(not is_locked(path), f"turn {nth}: {path} is still locked")
        with open(path, "rb") as file:
            file.seek(8192)
            found = file.read(4096)
        check(not is_marked or found == f"turn {nth}".encode().ljust(4096, b"."), f"turn {nth}: {path} has {found[:20]}")
    fio.still_running("the last export had gone")
    status = target.status()
    check(len(status["exports"]) == 2 * shards, f"status shows {[export['name'] for export in status['exports']]}")
    fio.finish(120)
    check(disk.status()["state"] == "attached" and target.names() == ["alice"], f"sessions: {target.sessions()}")
    # The first and those after it, one session each.
    check(target.status()["counters"]["sessions"] == 1 + 10, f"sessions: {target.status()['counters']['sessions']}")
    disk.detach()


@test(seconds=120)
def one_that_is_in_use_goes(lab):
    """Those who use it are told by name; they wait, or fail, as they were told to. Its file is closed. When it is back
    the writer goes on; another file under its name is another disk."""
    target = Keyed(lab, "alice")
    waits = Disk(lab, key_path(lab, "alice"), "disk1", name="waits")
    reader = Disk(lab, key_path(lab, "alice"), "disk1", name="reader", extra=["--read-only", "--when-away", "fail-after=2"])
    beside = Disk(lab, key_path(lab, "alice"), "disk0")
    loads = [load.Fio(lab, disk.nbd, mib=32, seconds=12, seed=seed) for seed, disk in enumerate((waits, beside))]
    target.at_work()
    path = target.exports.pop("disk1")
    target.write(lab, ["alice"])
    said = target.reload()
    check((said["changes"], said["ended"], said["leaving"]) == (["export `disk1` is removed"], 2, []), f"it says {said}")
    check(not is_locked(path), "its file is still locked")
    until("the writer to be told", 30, lambda: "has no export disk1" in str(waits.status()))
    check(waits.status()["state"] == "away", f"it is {waits.status()}")
    refused(lab, "attach", "--key", key_path(lab, "alice"), uri(lab, "disk1"), "--nbd", f"unix:{lab.path('no.sock')}",
            "--as", "no", "--run-dir", lab.path("run"), says=["has no export disk1"])
    try:
        mark(lab, reader, "x", "read")
        raise Failure("a read of an export that is gone neither waits nor fails")
    except Failure as failure:
        check("neither" not in str(failure), str(failure))
    time.sleep(1)
    loads[0].still_running("its export was back")
    target.exports["disk1"] = path
    target.write(lab, ["alice"])
    target.reload()
    for fio in loads:
        fio.finish()
    check(mark(lab, waits, "first", "write") == "same", "it goes on")
    waits.detach()
    reader.detach("--force")
    # Another file, in one reload.
    stale = Disk(lab, key_path(lab, "alice"), "disk1", name="stale")
    target.exports["disk1"] = image(lab, "other.img")
    target.write(lab, ["alice"])
    said = target.reload()
    check(said["changes"] == [f"export `disk1` is another volume now: file:{target.exports['disk1']}"], f"it says {said}")
    until("the other disk to be noticed", 30, lambda: stale.status()["state"] not in ("attached", "away"))
    stale.detach("--force")
    fresh = Disk(lab, key_path(lab, "alice"), "disk1", name="fresh")
    check(mark(lab, fresh, "first", "read") == "other", "it is the other file")
    fresh.detach(), beside.detach()


@test(seconds=90)
def what_cannot_be_opened_changes_nothing(lab):
    """A file that somebody else has locked, one that the target's user may not open, beside one that it may: all is
    refused by name, nothing stays open, and the rest goes on."""
    target = Keyed(lab, "alice", extra=["--user", "nobody", "--state-dir", lab.path("state")])
    disk = Disk(lab, key_path(lab, "alice"), "disk0")
    fio = load.Fio(lab, disk.nbd, mib=24, seconds=6)
    os.chmod(lab.dir, 0o755)
    for path in (lab.path("keys"), key_path(lab, "alice")):
        os.chown(path, 65534, -1)
    good, bad = image(lab, "good.img", mib=8), image(lab, "bad.img", mib=8)
    os.chown(good, 65534, -1)
    os.chmod(bad, 0o600)
    target.exports |= {"good": good, "bad": bad}
    target.write(lab, ["alice"])
    target.refuses("export bad", "permission denied", "a restart")
    check(not is_locked(good), "what was opened for nothing stays open")
    os.chown(bad, 65534, -1)
    with open(bad, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        target.refuses("export bad", "in use by")
    check(not is_locked(good), "what was opened for nothing stays open")
    said = target.reload()
    check(len(said["changes"]) == 2, f"it says {said}")
    more = Disk(lab, copied(lab, "alice", "ours"), "bad", name="more")
    check(mark(lab, more, "x", "write") == "same", "it is used")
    more.detach()
    fio.finish()
    disk.detach()
