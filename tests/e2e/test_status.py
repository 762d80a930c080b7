"""What `status` tells on a target's machine: exports, writers, sessions, paths, what a gateway stands on."""

import json
import os
import stat
import time

import load
import node
from harness import check, run, until
from node import Attachment, Target, below, image, refused, thinwire, uri
from registry import test


class Shown:
    """`status` of a run directory of a target."""

    def __init__(self, lab, name="target-run", side="target"):
        self.lab, self.run_dir, self.side = lab, lab.path(name), side
        self.flags = ("--run-dir", self.run_dir)

    def text(self, *words, expect=0):
        return thinwire(self.lab, "status", *words, *self.flags, side=self.side, expect=expect).stdout

    def targets(self, *words):
        report = json.loads(self.text("--json", *words))
        check(report["schema"] == 2 and report["attachments"] == [], f"{report}")
        return report["targets"]

    def target(self, *words):
        found = self.targets(*words)
        check(len(found) == 1, f"one target: {found}")
        return found[0]

    def files(self):
        return [name for name in os.listdir(self.run_dir) if name.startswith("target-")]


def has(found, **wanted):
    for key, value in wanted.items():
        check(found[key] == value, f"'{key}' should be {value!r}: {found}")


@test()
def target_with_writer_and_reader(lab):
    """Each export with who writes it, each session with what it has open, in text and in JSON."""
    shown = Shown(lab)
    target = Target(lab, f"disk0={image(lab)}", "fixed=memory:1M,ro", f"cached={image(lab, 'cached.img', 1)},buffered",
                    extra=(*shown.flags, "--shards", "1"))
    writer, reader = Attachment(lab), Attachment(lab, name="reader", extra=["--read-only"])
    load.verified(lab, writer.nbd, mib=8)
    found = shown.target()
    has(found, node="node1", state="serving", pid=target.process.pid, insecure=node.security() == "insecure", shards=1, session_count=2,
        detail=None)
    mode = os.stat(os.path.join(shown.run_dir, "target-node1.sock")).st_mode
    check(stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600, f"the socket's mode: {oct(mode)}")
    disk, fixed, cached = found["exports"]
    has(disk, name="disk0", volume=f"file:{lab.path('disk0.img')}", bytes=128 << 20, block_bytes=512, read_only=False,
        generation=1, record="settled", losses=0, leaves=[], shard=0)
    has(fixed, name="fixed", read_only=True, writer=None, generation=0, io=None)
    has(cached, name="cached", io="buffered")
    # `direct`, but where the file system has no direct I/O.
    check(disk["io"] in ("direct", "buffered"), f"{disk}")
    pid = writer.pid()
    check(f"(pid {pid})" in disk["writer"]["name"] and disk["writer"]["attached"], f"{disk}")
    check(0 < disk["writer"]["lease_s"] <= 30 and 0 <= disk["writer"]["silent_s"] < 10, f"{disk}")
    check(0 < disk["writer"]["held_s"] < 60, f"{disk}")
    check([s["exports"] for s in found["sessions"]] == [["disk0"], ["disk0"]], f"{found['sessions']}")
    used = [s for s in found["sessions"] if f"(pid {pid})" in s["initiator"]][0]
    path = used["paths"][0]
    has(path, state="up", link=found["links"][0]["name"])
    check(path["rtt_us"] > 0 and path["frame_bytes"] > 1000 and 0 <= used["idle_s"] < 10, f"{used}")
    check(found["counters"]["requests"] > 16 and found["links"][0]["rx_frames"] > 16, f"{found}")
    said = shown.text()
    protected = {"keys": "key e2e (", "authenticate": "keys, not encrypted", "insecure": "INSECURE"}
    for word in ("serving", protected[node.security()], f"written by {disk['writer']['name']} under generation 1 for ", "128 MiB",
                 "export fixed of memory:1048576, 1 MiB in blocks of 512 bytes, read-only", "frames received",
                 "cached.img, 1 MiB in blocks of 512 bytes, buffered, nobody writes"):
        check(word in said, f"'{word}' is missing:\n{said}")
    # By name, and by none.
    has(shown.target("node1"), pid=target.process.pid)
    has(shown.target("target-node1"), pid=target.process.pid)
    refused(lab, "status", "node2", *shown.flags, says="no attachment and no target `node2`", side="target")
    for name in ("node1", "target-node1"):
        refused(lab, "detach", name, *shown.flags, says=["is a target", str(target.process.pid)], side="target")
    refused(lab, "attach", uri(lab), "--nbd", f"unix:{lab.path('t')}", "--as", "target-x",
            says="those of targets", code=2)
    reader.detach()
    writer.detach()
    found = shown.target()
    has(found["exports"][0], writer=None)
    has(found, sessions=[])
    target.stop()
    check(not shown.files(), f"it left {shown.files()}")
    check("no attachments and no targets" in shown.text(), "nothing is left to show")


def as_nobody(lab):
    """How to run the program as a user who may look and no more."""
    os.chmod(lab.dir, 0o755)
    user = ["setpriv", "--reuid", "65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    if not run(*user, node.BIN, "--version", check_exit=False).returncode:
        return [*user, node.BIN]
    # A checkout below a private home.
    run("install", "-m", "755", node.BIN, lab.path("thinwire"))
    return [*user, lab.path("thinwire")]


@test()
def killed_target(lab):
    """kill -9: reported once and cleaned, by status or by the next target. Another user sees that one lives."""
    shown = Shown(lab)
    target = Target(lab, "disk0=memory:1M", extra=shown.flags)
    stranger = lab.run("target", *as_nobody(lab), "status", "--json", *shown.flags, check_exit=False)
    told = json.loads(stranger.stdout)["targets"]
    check(len(told) == 1, f"{stranger.stdout}{stranger.stderr}")
    has(told[0], state="alive", node="node1", pid=target.process.pid, exports=[], sessions=[])
    check("as root" in told[0]["detail"], f"{told}")
    target.kill()
    check(len(shown.files()) == 3, f"a killed one leaves its files: {shown.files()}")
    found = shown.target()
    has(found, state="stale", pid=0, node="node1", exports=[])
    check("`node1` was left by a process that is gone" in found["detail"], f"{found}")
    check(not shown.targets() and not shown.files(), f"reported once, and cleaned: {shown.files()}")
    target.start().kill()
    target.start()
    has(shown.target(), state="serving", pid=target.process.pid)
    # One that is stopped for a while does not answer, and is not waited for.
    target.process.kill(19)
    began = time.monotonic()
    has(shown.target(), state="unresponsive", pid=target.process.pid)
    check(time.monotonic() - began < 5, "status waited for it")
    target.process.kill(18)
    until("it answers again", 5, lambda: shown.target()["state"] == "serving")


@test(seconds=90)
def gateway_with_a_leaf_away(lab):
    """A gateway tells which leaf is away. Told to end, it says at once what it waits for; told twice, it ends."""
    leaves = {name: Target(lab, f"{export}={image(lab, f'{export}.img', mib=16)}", name=name, over="raw")
              for name, export in (("node1", "a"), ("node2", "b"))}
    uris = [below(lab, "a", over="raw", node="node1"), below(lab, "b", over="raw", node="node2")]
    shown = Shown(lab, "gateway-run", side="initiator")
    middle = Target(lab, f"big=linear:[{','.join(uris)}]", name="middle", over="raw", side="initiator",
                    extra=(*shown.flags, "--state-dir", lab.path("state")))
    client = Attachment(lab, uri(lab, "big", over="raw", node="middle"), name="big", side="target")
    load.verified(lab, client.nbd, mib=16)

    def both():
        found = shown.target()["exports"][0]["leaves"]
        check([leaf["uri"] for leaf in found] == uris, f"both leaves, in order: {found}")
        return found
    check([leaf["state"] for leaf in both()] == ["attached", "attached"], f"{both()}")
    check(all(leaf["paths"][0]["state"] == "up" for leaf in both()), f"{both()}")
    check(all(leaf["batch"]["policy"] == "backlog" for leaf in both()), f"{both()}")

    def nodes():
        return shown.target()["exports"][0]["nodes"]
    tree = nodes()
    check([(node["depth"], node["kind"], node["bytes"] >> 20) for node in tree] == [(0, "linear", 32), (1, "tw", 16), (1, "tw", 16)], tree)
    check([node["state"] for node in tree] == [None, "attached", "attached"] and tree[0]["io"]["writes"] > 0, tree)
    drawn = shown.text().split("middle: export big:\n")[1].split("\n")
    check([line.split()[0] for line in drawn[:4]] == ["VOLUME", "linear", *uris] and "32 MiB" in drawn[1], drawn)
    # No file describes it: it has the name of the export.
    asked = json.loads(thinwire(lab, "volume", "status", "big", "--json", *shown.flags, side="initiator").stdout)
    check(asked["by"] == "target middle" and [node["name"] for node in asked["nodes"]] == ["linear", *uris], asked)
    refused(lab, "volume", "status", "small", *shown.flags, says=["no export", "called small"])
    leaves["node2"].kill()
    until("the second leaf is away", 20, lambda: both()[1]["state"] == "away")
    check([node["state"] for node in nodes()] == [None, "attached", "away"], nodes())
    first, second = both()
    check(first["state"] == "attached" and second["timer"] and second["seconds_left"] is not None, f"{first} {second}")
    said = shown.text()
    check(f"export big stands on {uris[1]}, which is away, {second['timer']} in" in said, said)
    middle.process.kill(15)
    until("it says what it waits for", 2, lambda: uris[1] in middle.process.stderr
          and "a second signal" in middle.process.stderr)
    check(uris[0] not in middle.process.stderr.split("waits for")[1], "it waits for the other only")
    has(shown.target(), state="stopping", exports=[])
    check(middle.process.running, f"it did not wait: {middle.process.stderr}")
    began = time.monotonic()
    middle.process.kill(15)
    middle.process.wait(10, expect=1)
    check(time.monotonic() - began < 3, "it waited on after the second signal")
    check("given up" in middle.process.stderr and "not in order" in middle.process.stderr, middle.process.stderr)
    client.detach("--force")


@test()
def two_shards_answer_as_one(lab):
    """One answer for all shards: each export with its shard, sessions and counts of all."""
    shown = Shown(lab)
    Target(lab, *[f"disk{n}=memory:16M" for n in range(3)], over="packet", extra=(*shown.flags, "--shards", "2"))
    attachments = [Attachment(lab, uri(lab, f"disk{n}", over="packet"), name=f"disk{n}") for n in range(2)]
    for attachment in attachments:
        load.verified(lab, attachment.nbd, mib=8)
    found = shown.target()
    has(found, shards=2, session_count=2, detail=None)
    check([(e["name"], e["shard"]) for e in found["exports"]] == [("disk0", 0), ("disk1", 1), ("disk2", 0)], f"{found}")
    check(sorted((s["shard"], s["exports"]) for s in found["sessions"]) == [(0, ["disk0"]), (1, ["disk1"])], f"{found}")
    check(all(e["writer"] and e["writer"]["attached"] for e in found["exports"][:2]), f"{found['exports']}")
    check(len(found["links"]) == 1 and found["counters"]["sessions"] == 2, f"{found}")
    for attachment in attachments:
        attachment.detach()


@test()
def two_targets_of_one_name(lab):
    """Two targets of one name on different networks share a run directory: both serve, and both are shown."""
    shown = Shown(lab)
    both = [Target(lab, "disk0=memory:1M", over="udp", side=side, extra=shown.flags, start=False)
            for side in ("initiator", "target")]
    for target in both:
        target.argv[target.argv.index("--link") + 1] = "udp:127.0.0.1"
        target.start()
    pids = sorted(target.process.pid for target in both)
    check(sorted(found["pid"] for found in shown.targets("node1")) == pids, f"{shown.targets()}")
    both[1].kill()
    check(sorted(found["state"] for found in shown.targets()) == ["serving", "stale"], "one was killed")
    both[1].start()
    check([found["state"] for found in shown.targets()] == ["serving"] * 2, "it is back")
    for target in both:
        target.stop()
    check(not shown.files(), f"they left {shown.files()}")
