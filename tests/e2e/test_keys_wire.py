"""What is on the wire of those who have keys, and what comes of playing it back."""

import random

import frames
import load
import node
from harness import check, run, until
from node import Attachment, Target, image, thinwire, uri
from registry import test
from test_keys import shown

PLAIN = b"as it stands in the file, and nowhere else. "
# Names that only the two sides are to know.
EXPORT = "payroll-of-june"


def content(mib=1):
    return (PLAIN * (mib << 20))[:mib << 20]


def pair(lab, over):
    """A target that records its frames, and a volume of it that holds what is known."""
    path, source = image(lab, mib=1), lab.path("source")
    with open(source, "wb") as file:
        file.write(content())
    target = Target(lab, f"{EXPORT}={path}", over=over,
                    extra=("--pcap", lab.path("pcap"), "--run-dir", lab.path("target-run")))
    volume = uri(lab, EXPORT, over=over)
    thinwire(lab, "copy", source, volume, "--run-dir", lab.path("run"))
    thinwire(lab, "copy", volume, lab.path("back"), "--run-dir", lab.path("run"))
    run("cmp", source, lab.path("back"))
    run("cmp", source, path)
    return target, volume


SHOWN = {f"{name}_{over}": {"over": over, "security": name} for name in node.SECURITIES for over in ("packet", "udp")}


@test(each=SHOWN)
def what_a_capture_shows(lab, over):
    """With keys neither data nor names are in the frames, in either direction; if they are only authenticated, or
    nothing, both are, so that the search would have found them."""
    target, _ = pair(lab, over)
    target.stop()
    there = {True: b"", False: b""}
    for frame in frames.captured(lab.path("pcap")):
        there[frame[:6] == frames.station("target")] += frame + b"\0"
    # Over `udp` a capture has no addresses of stations.
    both = there[True] + there[False]
    check(len(both) > 2 << 20, f"{len(both)} bytes of frames: it was not all captured")
    is_hidden = node.security() == "keys"
    for direction in there.values() if over == "packet" else (both,):
        check((PLAIN in direction) is not is_hidden, f"data: {'seen' if is_hidden else 'not found'}")
    check((EXPORT.encode() in both) is not is_hidden, f"the name: {'seen' if is_hidden else 'not found'}")


def still(found):
    """What must not change of what a target tells, whatever is played back to it."""
    sessions = [(s["initiator"], s["exports"], s["key"]) for s in found["sessions"]]
    exports = [(e["name"], e["generation"], e["record"], e["losses"], e["fault"], e["writer"] and e["writer"]["name"])
               for e in found["exports"]]
    counters = {name: found["counters"][name] for name in ("requests", "repeated", "fenced", "twins")}
    return found["session_count"], sessions, exports, counters


@test(seconds=90, each={"keys": {"security": "keys"}, "authenticate": {"security": "authenticate"}})
def played_back(lab):
    """All that was captured, of both directions, in order and not, sent to both again: while the session lives, to a
    target that was started anew, and when nobody is attached. Nothing changes but counters of what was dropped."""
    target, volume = pair(lab, "packet")
    disk = Attachment(lab, volume, name="disk")
    lab.run("initiator", "nbdcopy", disk.nbd, lab.path("read"))
    recorded = frames.captured(lab.path("pcap"))
    kinds = {frame[15] for frame in recorded}
    check({1, 11, 12} <= kinds and len(recorded) > 200, f"{len(recorded)} frames, of the kinds {kinds}")
    # As they were sent, and reflected at those who sent them.
    turned = [frame[6:12] + frame[:6] + frame[12:] for frame in recorded]
    everything = recorded + turned
    mixed = random.Random(3).sample(everything, len(everything))

    def play(when):
        # Who is there may be about to come back, or to be forgotten.
        before = until(f"nothing moves {when}", 10, lambda: (one := still(shown(lab))) == still(shown(lab)) and one)
        dropped = sum(shown(lab)["drops"].values())
        for side in "initiator", "target":
            at = frames.station("target" if side == "initiator" else "initiator")
            frames.send_whole(lab, side, [frame for frame in everything + mixed if frame[:6] == at])
        found = shown(lab)
        check(still(found) == before, f"{when} it has changed from\n{before}\nto\n{still(found)}")
        check(sum(found["drops"].values()) > dropped + 100, f"{when} little was dropped: {found['drops']}")
        with open(lab.path("disk0.img"), "rb") as file:
            check(file.read() == content(), f"{when} the image was changed")
        return found["drops"]
    drops = play("beside its session")
    check(drops.get("duplicate", 0) + drops.get("too-old", 0) >= 10, f"{drops}")
    lab.run("initiator", "nbdcopy", disk.nbd, lab.path("read"))
    run("cmp", lab.path("source"), lab.path("read"))
    check(disk.status()["state"] == "attached", f"{disk.status()}")
    target.kill().start()
    lab.run("initiator", "nbdcopy", disk.nbd, lab.path("read"))
    play("to the next target")
    lab.run("initiator", "nbdcopy", disk.nbd, lab.path("read"))
    run("cmp", lab.path("source"), lab.path("read"))
    disk.detach()
    play("with nobody there")
    load.verified(lab, Attachment(lab, volume, name="again").nbd, mib=1)
    check("panicked" not in target.process.stderr, target.process.stderr)
