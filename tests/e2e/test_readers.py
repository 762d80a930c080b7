"""Who has a volume open only to read it when somebody else opens that for writing."""

import time

from harness import check, until
from node import Attachment, Target, image, thinwire, uri
from registry import test
from test_mirrors import LEG_MIB, describe, standings

READ = """
import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
print(len(h.pread(4096, int(sys.argv[2]))))
"""

READ_UNTIL_REFUSED = """
import nbd, sys, time
h = nbd.NBD()
h.connect_uri(sys.argv[1])
end = time.monotonic() + 20
while time.monotonic() < end:
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
        loop = lab.start("initiator", "/usr/bin/python3", "-c", READ_UNTIL_REFUSED, reader.nbd) if volume == mirror else None
        time.sleep(2)
        writer = Attachment(lab, volume, name="writer", run="writer", timeout=40)
        if loop:
            loop.wait(30)
            check(loop.stdout.startswith("refused"), f"it goes on reading: {loop.stdout}")
        failed = lab.run("initiator", "/usr/bin/python3", "-c", READ, reader.nbd, "0", check_exit=False)
        check(failed.returncode != 0, "it reads what another writes")
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
