"""What volumes do for themselves while they are in use: scrubs, copies and pauses, by the attachment or the target that has them."""

import json
import time

import load
from harness import check, until
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test
from test_mirrors import LEG_MIB, data_of, describe, standings


class Works:
    """What is said to a volume, and what is told of it."""

    def __init__(self, lab, volume):
        self.lab, self.volume = lab, volume

    def do(self, *argv, **options):
        return thinwire(self.lab, "volume", *argv, self.volume, "--run-dir", self.lab.path("run"), timeout=60, **options)

    def nodes(self, *argv):
        return json.loads(self.do(*(argv or ("status",)), "--json").stdout)["nodes"]

    def standing(self):
        return [node["standing"] for node in self.nodes() if node["leg"] is not None]


@test(seconds=150)
def a_mirror_in_use_is_paused_scrubbed_and_resumed(lab):
    """A mirror over two targets, attached and written: it is scrubbed beside that, a leg that is back stays behind as long as it is paused, and gets all
    when it is resumed."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "ab"]
    targets = [Target(lab, f"{name}={path}", name=host, over="raw", extra=("--state-dir", lab.path(f"state-{name}")))
               for name, host, path in zip("ab", ("node1", "node2"), images)]
    legs = [uri(lab, name, over="raw", node=host) for name, host in zip("ab", ("node1", "node2"))]
    volume = describe(lab, legs)
    works = Works(lab, volume)
    thinwire(lab, "volume", "create", volume, "--run-dir", lab.path("run"))
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror is copied to all legs")
    refused(lab, "volume", "pause", volume, "--run-dir", lab.path("run"), says=["no attachment or target"])
    disk = Attachment(lab, volume, name="home", timeout=40)
    nodes = works.nodes()
    check([node["kind"] for node in nodes] == ["mirror", "tw", "tw"], nodes)
    check([node["depth"] for node in nodes] == [0, 1, 1] and nodes[1]["bytes"] == LEG_MIB << 20, nodes)
    check([node["state"] for node in nodes] == [None, "attached", "attached"], nodes)
    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB - 2, seconds=18)
    # Each of them is counted for itself, with how long it takes.
    until("all of it is used", 20, lambda: all(node["io"]["write_iops"] and node["io"]["latency_ns"] for node in works.nodes()))
    mirror, *legs = (node["io"] for node in works.nodes())
    check(all(leg["writes"] >= mirror["writes"] // 2 for leg in legs), works.nodes())
    check("leg 1, in sync" in works.do("show").stdout, "it is no pool, and is shown as it stands")
    drawn = thinwire(lab, "status", "home", "--run-dir", lab.path("run")).stdout
    check("LATENCY" in drawn and "leg 1, in sync" in drawn and "/s" in drawn, drawn)
    told = json.loads(thinwire(lab, "status", "home", "--json", "--run-dir", lab.path("run")).stdout)["attachments"][0]["nodes"]
    check([node["depth"] for node in told] == [0, 1, 1] and told[0]["io"]["completed"] > 0, told)
    said = works.do("scrub", "--wait", "--pace", "100").stdout
    check("all as it was written" in said, said)
    check(works.nodes()[0]["work"]["percent"] == 100, "the pace stays")
    # Who decides which leg is the truth does that while nobody has it.
    refused(lab, "volume", "resync", "--degraded", volume, "--run-dir", lab.path("run"), says=["attachment home has", "detach it"])
    fio.still_running("it is paused")
    work = works.nodes("pause")[0]["work"]
    check(work["paused"] and not work["scrub"]["running"], work)
    targets[1].kill()
    until("the leg is dropped", 30, lambda: works.standing() == ["in sync", "behind"])
    fio.finish(90)
    targets[1].start()
    until("the leg is back", 40, lambda: works.standing() == ["in sync", "resyncing"])
    lacked = works.nodes()[2]["lacks"]
    check(lacked > 0, works.nodes())
    before = works.nodes()[2]["io"]["written_bytes"]
    time.sleep(1)
    check(works.nodes()[2]["lacks"] == lacked, "nothing is copied")
    done = works.do("resync", "--wait", expect=None)
    check(done.returncode != 0 and "volume resume" in done.stderr, done.stderr)
    works.do("resume")
    shown = works.do("resync", "--wait").stdout
    check("leg 0, in sync" in shown and "leg 1, in sync" in shown, shown)
    # It is counted on where it was, though it is another attachment now.
    nodes = works.nodes()
    copied = nodes[0]["work"]["copied"]
    # What is zero is written without bytes.
    check(0 < nodes[2]["io"]["written_bytes"] - before and 0 < copied <= lacked, nodes)
    until("nobody uses it", 20, lambda: not any(works.nodes()[0]["io"][rate] for rate in ("read_iops", "write_iops", "latency_ns")))
    disk.detach()
    check(data_of(images[0]) == data_of(images[1]), "it has what it lacked")


@test(seconds=120)
def a_target_scrubs_what_it_exports(lab):
    """A gateway over a mirror of volumes with sums, of two shards: a block that rots while it is exported is mended by the target that has it, and a scrub that is
    paused stands still."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "ab"]
    path = lab.path("pool.toml")
    with open(path, "w", encoding="utf-8") as file:
        for name, leaf in zip(("left", "right"), images):
            file.write(f'[[volume]]\nname = "{name}"\nkind = "integrity"\nchildren = ["{leaf}"]\n')
        file.write('[[volume]]\nname = "home"\nkind = "mirror"\nchildren = ["left", "right"]\n')
    volume = f"{path}#home"
    works = Works(lab, volume)
    works.do("create")
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror is copied to all legs")
    target = Target(lab, f"home={volume}", over="raw", extra=("--shards", "2", "--run-dir", lab.path("run")))
    nodes = works.nodes()
    check([node["kind"] for node in nodes] == ["mirror", "integrity", "file", "integrity", "file"], nodes)
    check([node["leg"] for node in nodes] == [None, 0, None, 1, None], nodes)
    shown = json.loads(thinwire(lab, "status", "--json", "--run-dir", lab.path("run")).stdout)["targets"][0]["exports"][0]["nodes"]
    check([(node["name"], node["kind"], node["bytes"], node["standing"]) for node in shown]
          == [(node["name"], node["kind"], node["bytes"], node["standing"]) for node in nodes], shown)
    check("leg 1, in sync" in thinwire(lab, "status", "--run-dir", lab.path("run")).stdout, "it is drawn")
    works.do("pause")
    scrub = works.nodes("scrub")[0]["work"]["scrub"]
    check(scrub["running"] and scrub["position"] == 0, scrub)
    with open(images[1], "r+b") as file:
        file.seek((LEG_MIB << 20) - (1 << 20))
        file.write(b"rotten" * 100)
    time.sleep(0.5)
    check(works.nodes()[0]["work"]["scrub"]["checked_bytes"] == 0, "it stands still")
    works.do("resume")

    def ended():
        scrub = works.nodes()[0]["work"]["scrub"]
        return scrub if not scrub["running"] else None

    until("the scrub has ended", 40, lambda: ended() is not None)
    scrub = ended()
    check((scrub["repaired"], scrub["bad"]) == (1, 0) and scrub["position"] == scrub["bytes"], scrub)
    check("all as it was written" in works.do("scrub", "--wait").stdout, "it was mended")
    # Of a part alone, which has nobody to ask.
    left = Works(lab, f"{path}#left")
    check([node["kind"] for node in left.nodes()] == ["integrity", "file"], left.nodes())
    check("integrity:" in left.do("scrub", "--wait").stdout, "it is scrubbed by itself")
    refused(lab, "volume", "scrub", f"{path}#home", "--stop", "--run-dir", lab.path("other"), says=["no attachment or target"])
    target.stop()


@test(seconds=90)
def a_leg_may_take_as_long_as_its_mirror_says(lab):
    """A mirror that waits for half a second goes on without a leg long before five; the labels know nothing of that, so another time holds for who opens it next."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "ab"]
    targets = [Target(lab, f"{name}={path}", name=host, over="raw", extra=("--state-dir", lab.path(f"state-{name}")))
               for name, host, path in zip("ab", ("node1", "node2"), images)]
    legs = [uri(lab, name, over="raw", node=host) for name, host in zip("ab", ("node1", "node2"))]
    volume = describe(lab, legs)
    thinwire(lab, "volume", "create", volume, "--run-dir", lab.path("run"))
    check(standings(lab, volume) == ["in sync"] * 2, "a new mirror is copied to all legs")
    path = lab.path("pool.toml")
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace('kind = "mirror"', 'kind = "mirror"\nleg_timeout_ms = 500'))
    works = Works(lab, volume)
    disk = Attachment(lab, volume, name="home", timeout=40)
    fio = load.Fio(lab, disk.nbd, mib=LEG_MIB - 2, seconds=8)
    time.sleep(1)
    targets[1].kill()
    until("the leg is dropped", 3, lambda: works.standing() == ["in sync", "behind"])
    fio.finish(60)
    disk.detach(timeout=40)


@test(seconds=120)
def sums_keep_what_they_were_told(lab):
    """A volume with sums by itself that was paused, or got another pace, is so when it is opened again, by an attachment or a target; and what its label says of anything else stays."""
    part, run_dir = image(lab, "part.img", 24), ("--run-dir", lab.path("run"))
    path = lab.path("sums.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'[[volume]]\nname = "sums"\nkind = "integrity"\nchildren = ["{part}"]\n')
    works = Works(lab, f"{path}#sums")
    works.do("create")

    def stands(*told):
        work = works.nodes(*told)[0]["work"]
        return work["paused"], work["percent"]

    def label():
        return json.loads(thinwire(lab, "volume", "dump", "--json", part, *run_dir).stdout)["parts"][0]["label"]

    check(label()["work"] is None, "nothing was told")
    disk = Attachment(lab, works.volume, name="sums")
    check(stands() == (False, 50), "as usual")
    check(stands("pause") == (True, 50), "it is paused")
    disk.detach(timeout=40)
    check(label()["work"] == {"paused": True, "percent": 50, "scrubbed_to": None}, label())
    check("paused, at 50 % of what users get" in thinwire(lab, "volume", "dump", part, *run_dir).stdout, "people see that, too")
    check(label()["sum_bitmap"] == {"regions": 11, "open": 0, "bad_blocks": 0, "torn_copies": 0}, label())
    target = Target(lab, f"sums={works.volume}", over="raw", extra=run_dir)
    check(stands() == (True, 50), "it is paused for who opens it next")
    refused(lab, "volume", "scrub", "--wait", works.volume, *run_dir, says=["has paused it"])
    check(stands("resume", "--pace", "20") == (False, 20), "it goes on")
    target.kill()
    disk = Attachment(lab, works.volume, name="sums", extra=("--take-over",))
    check(stands() == (False, 20), "at the pace that a target was told which was killed")
    check("all as it was written" in works.do("scrub", "--wait").stdout, "it is scrubbed")
    check(stands("resume", "--pace", "50") == (False, 50), "as usual")
    disk.detach(timeout=40)
    # While nobody uses it, a command that waits has it go on.
    disk = Attachment(lab, works.volume, name="sums")
    check(stands() == (False, 50) and stands("pause") == (True, 50), "and paused again")
    disk.detach(timeout=40)
    check("all as it was written" in works.do("scrub").stdout, "it is scrubbed")
