"""Two gateways on two machines: one dies, or stands still, and the other one goes on in its place, with nothing but the same description. Its record of who may write is in
the labels of what both export."""

import json
import os
import random
import signal
import threading
import time

import load
from harness import Failure, check, until
from node import Attachment, Target, below, refused, thinwire, uri
from registry import test
from test_mirrors import data_of
from test_returning import Legs
from test_volumes import WRITE

READ = """
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
print(bytes(h.pread(8, int(sys.argv[2]))).decode())
"""

# How long who has a leaf may be silent before another gets it, and what that one is given.
LEASE = 8
PATIENCE = 60 + LEASE


def started(gateway):
    """As whoever supervises it does: again and again, as long as another one has its leaves."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return gateway.start(timeout=60)
        except Failure as failure:
            check("its lease has" in str(failure) and time.monotonic() < end, str(failure))
            gateway.process.wait(10, expect=None)
            time.sleep(1)


class Gateways:
    """Two of one name, each with a link, a state directory and an identity of its own, over the same legs."""

    def __init__(self, lab, kind, names="ab"):
        self.lab, self.kind = lab, kind
        self.legs = Legs(lab, names, extra=("--lease", str(LEASE)))
        run_dir = ("--run-dir", lab.path("run"))
        volume = self.describe("maker", uris=[uri(lab, name, over="raw", node=f"node-{name}") for name in names])
        thinwire(lab, "volume", "create", volume, *run_dir, timeout=60)
        if kind == "thin":
            for size, name in ("16M", "home"), ("4M", "other"):
                thinwire(lab, "volume", "create", f"{volume.split('@')[0]}@{name}", "--size", size, *run_dir, timeout=60)
        self.both = [self.gateway(link) for link in (1, 2)]

    def leg_uris(self, link):
        return [below(self.lab, name, over="raw", node=f"node-{name}", links=[link]) for name in self.legs.names]

    def describe(self, name, uris):
        path = self.lab.path(f"{name}.toml")
        with open(path, "w", encoding="utf-8") as file:
            children = ", ".join(f'"{leaf}"' for leaf in uris)
            labels = "labels = true\n" if self.kind == "stripe" else ""
            file.write(f'[[volume]]\nname = "home"\nkind = "{self.kind}"\n{labels}children = [{children}]\n')
            if self.kind == "stripe":
                # What has no label of its own has that of what it stands on.
                file.write('[[volume]]\nname = "top"\nkind = "qos"\niops = 1000000\nchildren = ["home"]\n')
        if self.kind == "thin":
            return f"{path}#home{'' if name == 'maker' else '@home'}"
        return f"{path}#{'top' if self.kind == 'stripe' and name != 'maker' else 'home'}"

    def gateway(self, link, run=None, others=()):
        volume = self.describe(f"gateway-{link}", self.leg_uris(link))
        places = ("--state-dir", self.lab.path(f"gateway-state-{link}"), "--run-dir", self.lab.path(run or f"gateway-run-{link}"))
        # Two volumes of a pool, each with a record of its own.
        more = [f"other={volume.replace('@home', '@other')}"] if self.kind == "thin" else []
        target = Target(self.lab, f"home={volume}", *more, *others, name="middle", over="raw", side="initiator", extra=places, start=False)
        other = target.argv.index(f"eth{3 - link}")
        del target.argv[other - 1:other + 1]
        return target

    def attach(self, name="home", **how):
        volume = uri(self.lab, "home", over="raw", node="middle")
        return Attachment(self.lab, volume, name=name, side="target", timeout=40, run=f"run-of-{name}", **how)

    def call(self, script, disk, *argv, timeout=90):
        done = self.lab.run("target", "/usr/bin/python3", "-c", script, disk.nbd, *map(str, argv), timeout=timeout)
        return done.stdout.strip()

    def is_attached(self, link):
        """Whether the writer of the export is with that one."""
        shown = thinwire(self.lab, "status", "--json", "--run-dir", self.lab.path(f"gateway-run-{link}"))
        export = json.loads(shown.stdout)["targets"][0]["exports"][0]
        return bool(export["writer"] and export["writer"]["attached"])

    def kept_in_files(self):
        """Files of the record of an export in the state directories of both."""
        folders = [self.lab.path(f"gateway-state-{link}") for link in (1, 2)]
        names = [name for folder in folders if os.path.isdir(folder) for name in os.listdir(folder)]
        return [name for name in names if name.startswith("gateway-")]


@test(links=2, seconds=240, each={kind: {"kind": kind} for kind in ("mirror", "stripe", "thin")})
def one_dies_and_the_other_knows_its_writer(lab, kind):
    """A gateway is killed with a write that was acknowledged and not flushed, and with writes under way. The other one, with a state directory that is empty, gets the leaves when the first has been
    silent for its lease, and lets its initiator go on, which sends again what is missing; a stranger is told who has it. The same back again."""
    gateways = Gateways(lab, kind)
    first, second = gateways.both
    first.start(timeout=40)
    disk = gateways.attach()
    check(gateways.call(WRITE, disk, 0, "flushed.", "flush") == "written", "a write")
    for nth, (dies, goes_on) in enumerate([(first, second), (second, first)]):
        check(gateways.call(WRITE, disk, 4096, f"number {nth}") == "written", "an unflushed write")
        dies.kill()
        late = []
        writer = threading.Thread(target=lambda: late.append(gateways.call(WRITE, disk, 8192, f"late   {nth}", "flush", timeout=PATIENCE + 30)))
        writer.start()
        started(goes_on)
        refused(lab, "bench", uri(lab, "home", over="raw", node="middle"), "--rw", "randwrite", "--runtime", "1",
                "--run-dir", lab.path("stranger"), says=["held"], side="target")
        writer.join(PATIENCE + 30)
        check(late == ["written"], f"what was written while there was no gateway: {late}")
        check(gateways.call(READ, disk, 0) == "flushed.", "what was flushed")
        check(gateways.call(READ, disk, 4096) == f"number {nth}", "what was not, and is sent again")
        check(gateways.call(READ, disk, 8192) == f"late   {nth}", "what came later")
        check("somebody else may have written" not in goes_on.process.stderr, goes_on.process.stderr)
    check(disk.status()["state"] == "attached", disk.status())
    check(gateways.kept_in_files() == [], f"the record is in the labels: {gateways.kept_in_files()}")
    disk.detach(timeout=40)
    first.stop()
    for target in gateways.legs.targets:
        target.stop()
    shown = json.loads(thinwire(lab, "volume", "dump", "--json", *gateways.legs.images, "--run-dir", lab.path("run")).stdout)
    if kind == "thin":
        check(shown["parts"][1]["label"]["writer"] is None, "the pool has none")
        of = dict(shown["parts"][1]["label"]["pool"]["writers"])
        check(of[1]["generation"] and of[1]["name"] is None and len(of[1]["leaves"]) == 2, f"it has let go: {of}")
        check(of[2]["generation"] == 0 and len(of[2]["leaves"]) == 2, f"nobody has written the other one: {of}")
        return
    writers = [part["label"]["writer"] for part in shown["parts"]]
    kept = writers if kind == "mirror" else writers[:1]
    check(all(writer and writer["generation"] and writer["name"] is None and len(writer["leaves"]) == 2 for writer in kept), f"it has let go: {shown}")
    check(kept[0] == kept[-1], f"all legs say the same: {kept}")
    if kind == "mirror":
        check(data_of(gateways.legs.images[0]) == data_of(gateways.legs.images[1]), "the legs are alike")


@test(links=2, seconds=300)
def they_are_killed_in_turns_under_load(lab):
    """What is written is verified while the gateways are killed in turns, at moments that nobody has chosen: no I/O fails, all that was acknowledged is there, and the legs are alike in the end."""
    gateways = Gateways(lab, "mirror", names="abc")
    gateways.both[0].start(timeout=40)
    disk = gateways.attach()
    fio = load.Fio(lab, disk.nbd, mib=16, seconds=40)
    for nth in range(2):
        time.sleep(random.uniform(1, 4))
        fio.still_running(f"kill {nth + 1}")
        gateways.both[nth].kill()
        started(gateways.both[1 - nth])
    fio.finish(180)
    load.verified(lab, disk.nbd, mib=8)
    check(disk.status()["state"] == "attached", disk.status())
    disk.detach(timeout=40)
    gateways.both[0].stop()
    first = data_of(gateways.legs.images[0])
    check(all(data_of(path) == first for path in gateways.legs.images[1:]), "the legs are alike")


@test(links=2, seconds=240)
def one_stands_still_and_writes_nothing_more(lab):
    """A gateway stands still in the middle of a verified load and is replaced: it is fenced at every leaf before the other one serves, and nothing of it reaches a leaf when it goes on."""
    gateways = Gateways(lab, "mirror")
    first, second = gateways.both
    first.start(timeout=40)
    disk = gateways.attach()
    fio = load.Fio(lab, disk.nbd, mib=16, seconds=26)
    time.sleep(2)
    fio.still_running("the gateway stands still")
    held = [gateways.legs.generation(nth) for nth in range(2)]
    first.process.kill(signal.SIGSTOP)
    try:
        started(second)
        now = [gateways.legs.generation(nth) for nth in range(2)]
        check(all(after > before for before, after in zip(held, now)), f"another grant of every leaf: {held}, then {now}")
        until("its initiator is with the other one", 40, lambda: gateways.is_attached(2))
        fio.still_running("the other one goes on")
    finally:
        first.process.kill(signal.SIGCONT)
    first.process.wait(30, expect=1)
    check("another target has taken the place of this one" in first.process.stderr, first.process.stderr)
    fio.finish(120)
    load.verified(lab, disk.nbd, mib=8)
    check(disk.status()["state"] == "attached", disk.status())
    disk.detach(timeout=40)
    second.stop()
    check(data_of(gateways.legs.images[0]) == data_of(gateways.legs.images[1]), "the legs are alike")


@test(links=2, seconds=120, each={"alone": {"others": ()}, "beside_another_export": {"others": ("spare=memory:1M",)}})
def one_that_was_replaced_says_nothing(lab, others):
    """A gateway stands still, and an initiator with it, which has a write on its way there. Another one takes all leaves; then both go on, the first one first. It has been given the write, which
    the leaves refuse, and says nothing of it: the initiator finds the other one, sends again what is not flushed, and nobody is told of an error. Of the first, log and status say what has happened;
    it serves its other exports as before, or ends."""
    gateways = Gateways(lab, "mirror")
    # As of a copy of that machine, which waits for nobody's lease: who it is goes by the place of its run directory.
    first, second = [gateways.gateway(link, run="gateway-run", others=others) for link in (1, 2)]
    first.start(timeout=40)
    disk = gateways.attach()
    pid = disk.status()["pid"]
    check(gateways.call(WRITE, disk, 0, "flushed.", "flush") == "written", "a write")
    check(gateways.call(WRITE, disk, 4096, "ghost...") == "written", "an unflushed write")
    late, failed = [], []

    def write():
        try:
            late.append(gateways.call(WRITE, disk, 8192, "late....", "flush"))
        except Failure as failure:
            failed.append(failure)

    writer = threading.Thread(target=write)
    first.process.kill(signal.SIGSTOP)
    try:
        writer.start()
        # It has gone out.
        time.sleep(0.5)
        os.kill(pid, signal.SIGSTOP)
        os.rename(lab.path("gateway-run"), lab.path("gateway-run-of-the-first"))
        second.start(timeout=60)
    finally:
        first.process.kill(signal.SIGCONT)
    try:
        heard = "another target has taken the place of this one", "another initiator took this volume over"
        until("the first has heard of it", 30, lambda: any(words in first.process.stderr for words in heard))
    finally:
        os.kill(pid, signal.SIGCONT)
    writer.join(60)
    check(late == ["written"] and failed == [], f"what was written meanwhile: {late}, {failed}")
    for offset, expected in (0, "flushed."), (4096, "ghost..."), (8192, "late...."):
        check(gateways.call(READ, disk, offset) == expected, f"what is at {offset}")
    shown = disk.status()
    check(shown["state"] == "attached", shown)
    # The volume may say before the door does that somebody else has it.
    until("the first says which export it was", 30, lambda: heard[0] in first.process.stderr)
    for word in ("export home", "node-", heard[0], "served here again"):
        check(word in first.process.stderr, f"the first one tells it, '{word}':\n{first.process.stderr}")
    if others:
        told = thinwire(lab, "status", "--json", "--run-dir", lab.path("gateway-run-of-the-first")).stdout
        (target,) = json.loads(told)["targets"]
        check(target["fenced"] == ["home"] and [export["name"] for export in target["exports"]] == ["spare"], target)
        check("home is not served" in thinwire(lab, "status", "--run-dir", lab.path("gateway-run-of-the-first")).stdout, told)
        first.stop()
    else:
        first.process.wait(30, expect=1)
        check("in all of its exports" in first.process.stderr, first.process.stderr)
    disk.detach(timeout=40)
    second.stop()
    check(data_of(gateways.legs.images[0]) == data_of(gateways.legs.images[1]), "the legs are alike")


@test(links=2, seconds=180)
def whoever_wrote_a_leaf_in_between_fences_the_writer(lab):
    """Between two gateways somebody else writes a leaf: the second one, which has no file that says so, finds that in the labels, and fences whoever was the writer."""
    gateways = Gateways(lab, "stripe")
    first, second = gateways.both
    first.start(timeout=40)
    disk = gateways.attach()
    check(gateways.call(WRITE, disk, 0, "ghost...") == "written", "an unflushed write")
    first.kill()
    stranger = Attachment(lab, gateways.leg_uris(1)[1], name="stranger", run="other", extra=["--take-over"], timeout=40)
    said = lab.run("initiator", "/usr/bin/python3", "-c", WRITE, stranger.nbd, str(4 << 20), "stranger", "flush").stdout
    check(said.strip() == "written", said)
    stranger.detach()
    started(second)
    until("the fenced attachment says so", 40, lambda: "fenced" in str(disk.status()).lower())
    for word in ("export home", "node-b", "fenced", "attach anew"):
        check(word in second.process.stderr, f"the gateway tells it, '{word}':\n{second.process.stderr}")
    disk.detach("--force")
    anew = gateways.attach("anew")
    check(gateways.call(WRITE, anew, 0, "anew....", "flush") == "written", "a new writer")
    anew.detach()
