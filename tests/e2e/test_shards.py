"""A target on several threads: each serves exports of its own, and nobody notices the others; or all serve one."""

import json
import os
import time

import load
from harness import Failure, check, tail, until
from node import Attachment, Target, chosen, image, refused, thinwire, uri
from registry import test


def ticks_by_shard(pid):
    """User and system time of each shard's thread, in clock ticks. Shard 0 is the first thread."""
    found = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat", encoding="ascii", errors="replace") as file:
            name, rest = file.read().rsplit(")", 1)
        name = name.split("(", 1)[1]
        fields = rest.split()
        if int(task) == pid:
            name = "shard-0"
        if name.startswith("shard-"):
            found[name] = int(fields[11]) + int(fields[12])
    return found


@test(seconds=90, links=2, each={"direct": {"option": ""}, "cache": {"option": ",cache=32M"}})
def two_shards(lab, option):
    """Two exports on two shards, one used over two raw links, the other over UDP; the target is
    killed and restarted under both. Every thread carries its share."""
    exports = [f"disk{n}={image(lab, f'disk{n}.img')}{option}" for n in range(2)]
    target = Target(lab, *exports, over="packet", extra=["--shards", "2", "--link", f"udp:{lab.address('target')}"])
    attachments = [
        Attachment(lab, uri(lab, "disk0", over="packet"), name="disk0"),
        Attachment(lab, uri(lab, "disk1", over="udp", links=[1]), name="disk1"),
    ]
    runs = [load.Fio(lab, a.nbd, mib=64, seconds=6, seed=n) for n, a in enumerate(attachments, 1)]
    for fio in runs:
        fio.still_running("the target was killed")
    target.kill().start()
    for fio in runs:
        fio.still_running("the target was back")
    for fio in runs:
        fio.finish(60)
    ticks = ticks_by_shard(target.process.pid)
    check(len(ticks) == 2 and min(ticks.values()) >= 5, f"both shards should have worked, in ticks: {ticks}")
    for attachment in attachments:
        attachment.detach()


# What one attachment does with its disk, and what comes of it.
DO = """
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
try:
    for word in sys.argv[2:]:
        what, _, mark = word.partition("=")
        mark, _, at = mark.partition("@")
        data, at = mark.encode().ljust(4096, b"."), int(at or 0)
        if what == "write": h.pwrite(data, at)
        if what == "fua": h.pwrite(data, 0, nbd.CMD_FLAG_FUA)
        if what == "zero": h.zero(4096, 0, nbd.CMD_FLAG_FUA)
        if what == "flush": h.flush()
        if what == "read": print(bytes(h.pread(4096, at)).rstrip(b".").strip(bytes(1)).decode())
    print("done")
except nbd.Error as error:
    print("error", error.errnum)
"""


def do(lab, disk, *words):
    done = lab.run("initiator", "/usr/bin/python3", "-c", DO, disk.nbd, *words, timeout=60)
    return done.stdout.split()


class Spread:
    """A target whose two shards serve one export together. The first owns it, the other has a branch."""

    def __init__(self, lab, *options, mib=128, volume=None, over="best"):
        self.lab = lab
        export = ",".join([f"disk0={volume or image(lab, mib=mib)}", *options, "spread"])
        flags = ["--shards", "2", "--run-dir", lab.path("target-run")]
        # A socket of `xdp` has a whole queue, so shards cannot share one; initiators may use it all the same.
        over = "packet" if chosen(over) == "xdp" else over
        self.target = Target(lab, export, extra=flags, over=over)
        check("left out" not in self.target.process.stderr, "no shard is left out: all serve it")

    def status(self):
        words = ("status", "--json", "--run-dir", self.lab.path("target-run"))
        report = json.loads(thinwire(self.lab, *words, side="target").stdout)
        check(len(report["targets"]) == 1, f"one target: {report}")
        return report["targets"][0]

    def shard_of(self, disk):
        """The shard that has an attachment's session; nothing if it has none."""
        pid = f"(pid {disk.pid()})"
        found = [s["shard"] for s in self.status()["sessions"] if pid in s["initiator"] and s["exports"]]
        return found[-1] if found else None

    def attach(self, shard, name, *flags):
        """An attachment whose sessions are on this shard: who it is decides, and each run folder is another."""
        for number in range(20):
            disk = Attachment(self.lab, name=name, run=f"run-{name}-{number}", extra=flags)
            if self.shard_of(disk) == shard:
                return disk
            disk.detach()
        raise Failure(f"twenty initiators, and none on shard {shard}")

    def has_one_writer(self, disk):
        export = self.status()["exports"]
        check(len(export) == 1, f"one export, though two shards have it: {export}")
        export = export[0]
        check((export["shard"], export["shards"]) == (0, [0, 1]), f"{export}")
        check(export["writer"] and f"(pid {disk.pid()})" in export["writer"]["name"], f"who writes: {export}")
        check((export["record"], export["losses"], export["fault"]) == ("settled", 0, None), f"{export}")


class Reading:
    """A fio that reads blocks of 4 KiB which another has written, and compares them with their sums."""

    def __init__(self, lab, disk, offset, mib, seconds):
        self.process = lab.start("initiator", "fio", "--name=read", "--ioengine=nbd", f"--uri={disk.nbd}", "--thread",
                                 "--output-format=json", "--rw=randread", "--bs=4k", f"--offset={offset}m",
                                 f"--size={mib}m", "--iodepth=8", "--verify=crc32c", "--verify_fatal=1",
                                 "--verify_dump=0", f"--rate_iops={mib * 256 // seconds}")

    def still_running(self, when):
        check(self.process.running, f"fio, reading, ended before {when}\n{tail(self.process.stderr)}")

    def finish(self, timeout):
        self.process.wait(timeout, expect=None)
        job, code = load.job_of(self.process), self.process.popen.returncode
        if code != 0 or job["error"] != 0:
            raise Failure(f"fio, reading: exit {code}, error {job['error']}\n{tail(self.process.stderr)}")
        check(job["read"]["total_ios"] > 1000, f"it read {job['read']['total_ios']} blocks only")


@test(seconds=150, each={"direct": {"options": ()}, "buffered": {"options": ("buffered",)}})
def one_export_of_all(lab, options):
    """One export on two shards: a writer on a branch, a reader on each shard, all of them verifying; frames are
    lost, and the target is killed three times."""
    spread = Spread(lab, *options)
    writer = spread.attach(1, "writer")
    # For the readers: the half that the writer leaves alone.
    lab.run("initiator", "fio", "--name=fill", "--ioengine=nbd", f"--uri={writer.nbd}", "--thread", "--rw=write",
            "--bs=4k", "--offset=64m", "--size=48m", "--iodepth=32", "--verify=crc32c", "--do_verify=0",
            "--verify_state_save=0", "--end_fsync=1", timeout=60)
    readers = [spread.attach(shard, f"reader{shard}", "--read-only") for shard in (0, 1)]
    spread.has_one_writer(writer)
    fio = load.Fio(lab, writer.nbd, mib=64, seconds=12)
    reading = [Reading(lab, reader, offset=64, mib=48, seconds=14) for reader in readers]
    time.sleep(2)
    lab.drop(2)
    time.sleep(3)
    check(lab.dropped()[1] > 0, "no frame was lost")
    lab.drop(0)
    ticks = ticks_by_shard(spread.target.process.pid)
    check(len(ticks) == 2 and min(ticks.values()) >= 2, f"both shards should have worked, in ticks: {ticks}")
    for _ in range(3):
        for one in (fio, *reading):
            one.still_running("the target was killed")
        spread.target.kill().start()
        time.sleep(1)
    fio.finish(90)
    for one in reading:
        one.finish(60)
    spread.has_one_writer(writer)
    where = [spread.shard_of(disk) for disk in (writer, *readers)]
    check(where == [1, 0, 1], f"who comes back is dealt as before: {where}")
    for disk in (writer, *readers):
        disk.detach()
    spread.target.stop()


@test(seconds=90, each={"of_a_branch": {"first": 1, "second": 0}, "of_the_owner": {"first": 0, "second": 1}})
def taken_over_by_another_shard(lab, first, second):
    """A writer on one shard loses its export to one on another in the middle of its writes: it fails for good,
    and nothing of it lands on what the other has written."""
    spread = Spread(lab)
    # Who comes back from there is the same again, and so on the same shard.
    found = spread.attach(second, "new")
    place = os.path.basename(found.run_dir)
    found.detach()
    old = spread.attach(first, "old")
    fio = load.Fio(lab, old.nbd, mib=64, seconds=10)
    time.sleep(2)
    fio.still_running("it was taken over")
    new = Attachment(lab, name="new", run=place, extra=["--take-over"])
    check(spread.shard_of(new) == second, "it is on another shard than before")
    check(do(lab, new, "write=second", "flush") == ["done"], "the new writer writes")
    load.verified(lab, new.nbd, mib=16, seed=2)
    check(do(lab, new, "write=second", "flush") == ["done"], "the new writer writes")
    fio.process.wait(60, expect=None)
    check(fio.process.popen.returncode != 0, "the fenced writer's fio ended well")
    check(do(lab, old, "write=ghost")[:1] == ["error"], "the fenced writer's write")
    until("the fenced attachment says so", 10, lambda: "fenced" in str(old.status()).lower())
    check(do(lab, new, "read") == ["second", "done"], "the new writer's bytes stand")
    spread.has_one_writer(new)
    new.detach()
    old.detach("--force")


@test(seconds=90)
def memory_of_all_shards(lab):
    """Memory that two shards share: what a writer of the one writes, readers of both read; what it zeroes, too."""
    spread = Spread(lab, volume="memory:64M")
    writer = spread.attach(1, "writer")
    readers = [spread.attach(shard, f"reader{shard}", "--read-only") for shard in (0, 1)]
    spread.has_one_writer(writer)
    for word, seen in (("write=one", ["one"]), ("fua=two", ["two"]), ("zero", [])):
        check(do(lab, writer, word) == ["done"], word)
        for reader in readers:
            check(do(lab, reader, "read") == [*seen, "done"], f"after {word}")
    load.verified(lab, writer.nbd, mib=16, seed=1)
    for disk in (writer, *readers):
        disk.detach()
    spread.target.stop()


def sessions_of(spread, disk):
    """The shards that have sessions of an attachment with the export."""
    pid = f"(pid {disk.pid()})"
    return sorted(s["shard"] for s in spread.status()["sessions"] if pid in s["initiator"] and s["exports"])


@test(seconds=120, each={"raw": {"over": "best"}, "udp": {"over": "udp"}})
def members_of_one_attachment(lab, over):
    """One attachment with a session on each of two shards: it looks like one, verifies what it writes while frames
    are lost and the target is killed, and has let go of everything when it is detached."""
    spread = Spread(lab, over=over)
    disk = Attachment(lab, uri(lab, over=over, members=2), name="disk")
    leaves = disk.status()["leaves"]
    check([(leaf["member"], leaf["state"]) for leaf in leaves] == [(0, "attached"), (1, "attached")], f"{leaves}")
    check(sessions_of(spread, disk) == [0, 1], "a session on each shard")
    spread.has_one_writer(disk)
    before = ticks_by_shard(spread.target.process.pid)
    fio = load.Fio(lab, disk.nbd, mib=64, seconds=8)
    time.sleep(1)
    lab.drop(2)
    time.sleep(2)
    check(lab.dropped()[1] > 0, "no frame was lost")
    lab.drop(0)
    after = ticks_by_shard(spread.target.process.pid)
    worked = {name: after[name] - before[name] for name in after}
    check(len(worked) == 2 and min(worked.values()) >= 2, f"both shards should have worked, in ticks: {worked}")
    fio.still_running("the target was killed")
    spread.target.kill().start()
    fio.finish(90)
    check(sessions_of(spread, disk) == [0, 1], "each member is back where it was")
    spread.has_one_writer(disk)
    # Two chunks, one of each member, and one that lies across their border.
    far = 256 << 10
    check(do(lab, disk, f"write=one@{far}", "fua=zero", "flush")[-1] == "done", "both write")
    check(do(lab, disk, f"write=across@{far - 2048}", f"read=@{far - 2048}") == ["across", "done"], "across the border")
    disk.detach()
    # Nobody is on record any more, so another needs no --take-over.
    other = Attachment(lab, uri(lab, over=over), name="other", run="run-other")
    check(do(lab, other, f"read=@{far - 2048}", "read") == ["across", "zero", "done"], "what was written stands")
    other.detach()
    spread.target.stop()


@test(seconds=90)
def members_are_fenced_together(lab):
    """Another takes the export over from an attachment with two members in the middle of its writes: neither writes
    any more."""
    spread = Spread(lab)
    old = Attachment(lab, uri(lab, members=2), name="old", run="run-old")
    fio = load.Fio(lab, old.nbd, mib=64, seconds=10)
    time.sleep(2)
    fio.still_running("it was taken over")
    new = Attachment(lab, uri(lab, members=2), name="new", run="run-new", extra=["--take-over"])
    check(sessions_of(spread, new) == [0, 1], "a session on each shard")
    far = 256 << 10
    check(do(lab, new, "write=second", f"write=third@{far}", "flush") == ["done"], "the new writer writes")
    fio.process.wait(60, expect=None)
    check(fio.process.popen.returncode != 0, "the fenced writer's fio ended well")
    for at in (0, far):
        check(do(lab, old, f"write=ghost@{at}")[:1] == ["error"], f"the fenced writer's write at {at}")
    until("all of the fenced attachment says so", 10,
          lambda: {leaf["state"] for leaf in old.status()["leaves"]} == {"fenced"})
    check(do(lab, new, "read", f"read=@{far}") == ["second", "third", "done"], "the new writer's bytes stand")
    spread.has_one_writer(new)
    new.detach()
    old.detach("--force")


@test(seconds=60)
def members_of_a_target_that_is_away(lab):
    """All is flushed and the target gone: the attachment is let go of in order, and says who has not heard of it."""
    spread = Spread(lab)
    disk = Attachment(lab, uri(lab, members=2), name="disk")
    check(do(lab, disk, "write=one", f"write=two@{256 << 10}", "flush") == ["done"], "both members write")
    spread.target.kill()
    done = disk.detach(timeout=20)
    check("has not heard of it" in done.stderr, f"it says what is left: {done.stderr}")


@test(seconds=30)
def members_without_shards(lab):
    """Members of an export that one thread serves: they work, and a warning says what they lack; numbers that mean
    nothing are refused."""
    for members in ("0", "17", "two"):
        refused(lab, "attach", uri(lab, members=members), "--nbd", f"unix:{lab.path('no.sock')}",
                "--run-dir", lab.path("run-no"), says=["members", "1 to 16"], code=2)
    Target(lab, f"disk0={image(lab)}")
    done = thinwire(lab, "bench", uri(lab, members=3), "--rw", "randread", "--runtime", "1s",
                    "--run-dir", lab.path("run-bench"))
    check("3 members are on only 1 of" in done.stderr and "spread" in done.stderr, f"a warning: {done.stderr}")
    refused(lab, "bench", uri(lab, members=2), "--breakdown", "--run-dir", lab.path("run-bench"),
            says="one session", code=2)


@test(seconds=60)
def flushed_at_a_branch(lab):
    """Flush and FUA of a session that is not on the owner's shard; whoever is on that reads what was written, and
    so does who comes after a kill."""
    spread = Spread(lab, mib=16)
    writer, reader = spread.attach(1, "writer"), spread.attach(0, "reader", "--read-only")
    steps = {("write=one", "flush"): ["one"], ("fua=two",): ["two"], ("zero",): [], ("fua=three",): ["three"]}
    for words, seen in steps.items():
        check(do(lab, writer, *words) == ["done"], f"{words}")
        check(do(lab, reader, "read") == [*seen, "done"], f"after {words}")
    spread.target.kill().start()
    check(do(lab, reader, "read") == ["three", "done"], "after the kill")
    check(do(lab, writer, "fua=four", "flush", "read") == ["four", "done"], "after the kill")
    for disk in (writer, reader):
        disk.detach()
    # All shards end, and nobody holds the image any more.
    spread.target.stop()
    spread.target.start(timeout=5).stop()
