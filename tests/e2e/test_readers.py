"""Who has a volume open only to read it when somebody else opens that for writing."""

import time

from harness import check, until
from node import Attachment, Target, below as leaf, image, thinwire, uri
from registry import test
from test_mirrors import LEG_MIB, describe, standings

READ = """
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
try:
    print(len(h.pread(4096, int(sys.argv[2]))))
except nbd.Error as error:
    print("refused", error.errno)
    sys.exit(1)
"""

# Until its second argument has been there for 20 s.
READ_UNTIL_REFUSED = """
import nbd, os, sys, time
h = nbd.NBD()
h.connect_uri(sys.argv[1])
end = None
while end is None or time.monotonic() < end:
    if end is None and os.path.exists(sys.argv[2]):
        end = time.monotonic() + 20
    try:
        h.pread(4096, 0)
    except nbd.Error as error:
        print("refused", error.errno)
        break
    time.sleep(0.05)
"""


@test(seconds=120)
def a_reader_before_a_writer(lab):
    """Rule 26: who has a mirror open to read it, and a stripe of which a part is named by a `linear`, reads nothing more once somebody else has opened that for writing: in use within
    seconds, after a rest with the first read; and says so. Whatever reads where nobody writes goes on."""
    images = [image(lab, f"{name}.img", LEG_MIB) for name in "abcd"]
    hosts = list(zip("abcd", ("node1", "node2", "node3", "node4"), images))
    targets = [Target(lab, f"{name}={path}", name=host, over="raw", extra=("--state-dir", lab.path(f"state-{name}"))) for name, host, path in hosts]
    legs, run_dir = [uri(lab, name, over="raw", node=host) for name, host, _ in hosts], ("--run-dir", lab.path("run"))
    mirror = describe(lab, legs[:2])
    path = lab.path("row.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'[[volume]]\nname = "row"\nkind = "stripe"\nlabels = true\nchildren = ["{legs[2]}", "{legs[3]}"]\n')
    row = f"{path}#row"
    for volume in mirror, row:
        thinwire(lab, "volume", "create", volume, *run_dir)
    check(standings(lab, mirror) == ["in sync"] * 2, "a new mirror")
    readers = {volume: Attachment(lab, volume, name=name, run="reader", extra=("--read-only",), timeout=40)
               for volume, name in ((mirror, "home"), (row, "row"))}
    for reader in readers.values():
        check(lab.run("initiator", "/usr/bin/python3", "-c", READ, reader.nbd, "0").stdout, "it is read")
    for volume, reader in readers.items():
        others = [other for other in readers.values() if other is not reader]
        loop = lab.start("initiator", "/usr/bin/python3", "-c", READ_UNTIL_REFUSED, reader.nbd, lab.path("written")) if volume == mirror else None
        time.sleep(2)
        writer = Attachment(lab, volume, name="writer", run="writer", timeout=40)
        if loop:
            with open(lab.path("written"), "x", encoding="utf-8"):
                pass
            loop.wait(40)
            check(loop.stdout == "refused EIO\n", f"it goes on reading: {loop.stdout}")
        failed = lab.run("initiator", "/usr/bin/python3", "-c", READ, reader.nbd, "0", check_exit=False)
        check(failed.stdout == "refused EIO\n", f"it reads what another writes: {failed.stdout}{failed.stderr}")
        until("it says why", 10, lambda: "somebody else has opened it for writing" in reader.log())
        for other in others if volume == mirror else ():
            check(lab.run("initiator", "/usr/bin/python3", "-c", READ, other.nbd, "0").stdout, "nobody writes that one")
        writer.detach()
        reader.detach()
    again = Attachment(lab, mirror, name="again", run="reader", extra=("--read-only",), timeout=40)
    check(lab.run("initiator", "/usr/bin/python3", "-c", READ, again.nbd, "0").stdout, "anew it is read")
    again.detach()
    for target in targets:
        target.stop()


@test(seconds=60)
def a_gateway_before_a_writer(lab):
    """A gateway that exports a stripe only to be read answers its clients with errors once somebody else has opened that for writing, says why, and serves on: nobody has taken its place."""
    run_dir = ("--run-dir", lab.path("gateway-run"))
    disks = [image(lab, f"{name}.img", LEG_MIB) for name in "ab"]
    below = Target(lab, *[f"{name}={disk}" for name, disk in zip("ab", disks)], name="node1", over="raw")
    path = lab.path("row.toml")
    with open(path, "w", encoding="utf-8") as file:
        children = ", ".join(f'"{leaf(lab, name, over="raw", node="node1")}"' for name in "ab")
        file.write(f'[[volume]]\nname = "row"\nkind = "stripe"\nlabels = true\nchildren = [{children}]\n')
    row = f"{path}#row"
    thinwire(lab, "volume", "create", row, *run_dir)
    middle = Target(lab, f"row={row},ro", name="middle", over="raw", side="initiator", extra=("--state-dir", lab.path("state-middle"), *run_dir))
    reader = Attachment(lab, uri(lab, "row", over="raw", node="middle"), name="reader", run="reader", side="target", extra=("--read-only",))
    check(lab.run("target", "/usr/bin/python3", "-c", READ, reader.nbd, "0").stdout, "it is read")
    writer = Attachment(lab, row, name="writer", run="writer", timeout=40)
    with open(lab.path("written"), "x", encoding="utf-8"):
        pass
    said = lab.run("target", "/usr/bin/python3", "-c", READ_UNTIL_REFUSED, reader.nbd, lab.path("written"), timeout=40).stdout
    check(said == "refused EIO\n", f"its client is answered: {said}")
    until("the gateway says why", 10, lambda: "somebody else has opened it for writing" in middle.process.stderr)
    check(middle.process.running and "the place of" not in middle.process.stderr, f"nobody has taken its place: {middle.process.stderr}")
    reader.detach()
    writer.detach()
    middle.stop()
    below.stop()
