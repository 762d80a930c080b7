"""A stripe of two mirrors over four targets, one after the other killed under a verified load, and back: what is copied to a leg that was away, and how long
an I/O waits at most.

The load goes to a tenth of the regions. What a leg lacks is what its mirror says of it, until it is in sync again; what is copied to it must be no more than that and
5 %, and that no more than the load can have touched.
"""

import json
import threading
import time

import load
from harness import check, until
from node import Attachment, Target, image, thinwire, uri

MIB = 1 << 20
LEG_MIB = 84
# A region has 1 MiB. Mirrors have some 82 MiB, of which the load goes to so much, and the labels of the stripe to another region.
TOUCHED_MIB = 7
LABELS_MIB = 1
# So much more than it lacks may be copied to a leg; and so much longer than a leg may take, an I/O.
MORE = 1.05
SLACK_S = 1.0


class Load(threading.Thread):
    """fio, one run behind the other until it is told to end, each of which verifies what it has written."""

    def __init__(self, lab, nbd, mib, seconds):
        super().__init__(daemon=True)
        self.lab, self.options = lab, {"mib": mib, "seconds": seconds}
        self.nbd, self.pauses, self.flushes, self.ends, self.error = nbd, [], 0, False, None
        self.start()

    def run(self):
        try:
            while not self.ends:
                job = load.verified(self.lab, self.nbd, seed=1 + len(self.pauses), timeout=120, **self.options)
                self.pauses.append(longest_of(job))
                self.flushes += job["sync"]["total_ios"]
        except Exception as error:  # whoever ends it is told
            self.error = error

    def check_goes_on(self):
        check(self.is_alive(), f"the load has ended: {self.error}")

    def end(self):
        """The longest that an I/O of it took, in seconds."""
        self.ends = True
        self.join(150)
        if self.error:
            raise self.error
        check(not self.is_alive() and self.pauses, "the load does not end")
        # Each time 64 things were written, which not every run comes to.
        check(self.flushes > 0, "fio has flushed nothing")
        return max(self.pauses)


def longest_of(job):
    """The longest that an I/O took in a run of fio, in seconds, flushes included."""
    taken = [job[what][kind]["max"] for what in ("read", "write", "sync") for kind in ("lat_ns", "clat_ns") if kind in job.get(what, {})]
    return max(taken) / 1e9


class FourLegs:
    def __init__(self, lab, leg_timeout_ms):
        self.lab, self.leg_timeout_s = lab, leg_timeout_ms / 1000
        hosts = [f"node{nth}" for nth in range(1, 5)]
        self.images = [image(lab, f"{host}.img", LEG_MIB) for host in hosts]
        self.targets = [Target(lab, f"leg={path}", name=host, over="raw", extra=("--state-dir", lab.path(f"state-{host}")))
                        for host, path in zip(hosts, self.images)]
        legs = [uri(lab, "leg", over="raw", node=host) for host in hosts]
        path = lab.path("pool.toml")
        with open(path, "w", encoding="utf-8") as file:
            for name, pair in ("one", legs[:2]), ("two", legs[2:]):
                children = ", ".join(f'"{leg}"' for leg in pair)
                file.write(f'[[volume]]\nname = "{name}"\nkind = "mirror"\nleg_timeout_ms = {leg_timeout_ms}\nchildren = [{children}]\n')
            file.write('[[volume]]\nname = "both"\nkind = "stripe"\nlabels = true\nchildren = ["one", "two"]\n')
        self.volume = f"{path}#both"
        self.do("create", self.volume)
        self.do("resync", self.volume)
        self.disk = Attachment(lab, self.volume, name="both", timeout=60)
        # What each leg lacked that was back, and what was copied to it, in bytes.
        self.returns = []

    def do(self, *argv):
        return thinwire(self.lab, "volume", *argv, "--run-dir", self.lab.path("run"), timeout=120).stdout

    def look(self, nth):
        """How a leg stands, what it lacks, and what its mirror has copied to legs."""
        nodes = json.loads(self.do("status", self.volume, "--json"))["nodes"]
        mirror = [node for node in nodes if node["kind"] == "mirror"][nth // 2]
        leg = [node for node in nodes if node["leg"] is not None][nth]
        return leg["standing"], leg["lacks"], mirror["work"]["copied"]

    def is_away(self, nth, seconds):
        """Its target is killed, and its leg dropped, and away for so long."""
        self.targets[nth].kill()
        begun = time.monotonic()
        until("the leg is dropped", self.leg_timeout_s + 30, lambda: self.look(nth)[0] == "behind")
        time.sleep(max(0.0, begun + seconds - time.monotonic()))

    def comes_back(self, nth, cut=False):
        """Its target is started again: until the leg is in sync, or until some of what it lacks was copied, if it is to be cut off again then."""
        _, lacked, before = self.look(nth)
        self.targets[nth].start()
        end = time.monotonic() + 120
        while True:
            standing, lacks, copied = self.look(nth)
            lacked = max(lacked, lacks)
            if standing == "in sync" or cut and copied > before:
                break
            check(time.monotonic() < end, f"it is not in sync: {standing}, lacks {lacks}, of {lacked}, {copied - before} copied")
            time.sleep(0.02)
        if cut:
            check(standing == "resyncing", f"it is {standing} too early to be cut off")
            self.targets[nth].kill()
            copied = self.look(nth)[2]
            check(copied - before < lacked, f"{copied - before} of {lacked} bytes were copied before it was cut off")
        self.returns.append((lacked, copied - before))

    def end(self, load):
        """The figures, and that all legs are alike."""
        pause = load.end()
        self.disk.detach(timeout=60)
        data = [data_of(path) for path in self.images]
        check(data[0] == data[1] and data[2] == data[3], "legs differ")
        shown = json.loads(self.do("resync", self.volume, "--json"))["mirrors"]
        check([[leg["standing"] for leg in mirror["legs"]] for mirror in shown] == [["in sync"] * 2] * 2, shown)
        for target in self.targets:
            target.stop()
        lacked, copied = sum(lacked for lacked, _ in self.returns), sum(copied for _, copied in self.returns)
        return {
            "returns": len(self.returns),
            "lacked_mib": lacked / MIB,
            "copied_mib": copied / MIB,
            "copied_of_lacked_percent_most": round(100 * max(copied / lacked for lacked, copied in self.returns), 1),
            "touched_mib_a_leg": TOUCHED_MIB + LABELS_MIB,
            "runs_of_fio": len(load.pauses),
            "leg_timeout_s": self.leg_timeout_s,
            "longest_io_s": round(pause, 3),
        }

    def judge(self, pause):
        """What does not hold of what is promised."""
        wrong, most = [], (TOUCHED_MIB + LABELS_MIB) * MIB
        for nth, (lacked, copied) in enumerate(self.returns):
            is_right = 0 < copied <= MORE * lacked and lacked <= most
            wrong += [] if is_right else [f"return {nth}: {copied} bytes were copied to a leg that lacked {lacked}, where at most {most} were written"]
        if pause > self.leg_timeout_s + SLACK_S:
            wrong.append(f"an I/O took {pause} s, where a leg may take {self.leg_timeout_s}, and {SLACK_S} more is promised")
        return wrong


def data_of(path):
    with open(path, "rb") as file:
        # Where data starts on a leg.
        file.seek(1572864)
        return file.read()


def under_load(lab, away, leg_timeout_ms):
    """Each leg in turn is away for so many seconds under load, and one of them is cut off again in the middle of its resync. The figures, and what does not hold."""
    four = FourLegs(lab, leg_timeout_ms)
    writes = Load(lab, four.disk.nbd, mib=2 * TOUCHED_MIB, seconds=3)
    time.sleep(1)
    for nth in range(4):
        writes.check_goes_on()
        four.is_away(nth, away)
        if nth == 1:
            four.comes_back(nth, cut=True)
            until("the leg is dropped again", four.leg_timeout_s + 30, lambda: four.look(nth)[0] == "behind")
        writes.check_goes_on()
        four.comes_back(nth)
    figures = four.end(writes)
    return figures, four.judge(figures["longest_io_s"])
