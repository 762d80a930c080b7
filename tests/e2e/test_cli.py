"""The command line: what it prints, and what bad input gets: a clear error that names the thing, the
right exit code, and nobody else disturbed."""

import json
import os
import time

import load
from harness import check, read, run, until
from node import Attachment, Target, guarded, image, key, refused, thinwire, uri
import node
from registry import test

DISSECTOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/wireshark/thinwire.lua")


@test()
def bad_uris(lab):
    """Malformed URIs, unknown parameters and flags: exit 2, and the offending part is named."""
    for text, says in [
        ("tw://", "tw://"),
        ("tw://node1/disk0?link=eth1&jumbo=1", "jumbo"),
        ("tw://node1/disk0?link=eth1&mtu=99", "mtu"),
        ("tw://node1", "export"),
        ("tw://node1/disk0", "link"),
        ("nbd://node1/disk0", "nbd"),
        ("tw+udp://10.77.1.2:99999/disk0", "99999"),
        ("memory:12Q", "12Q"),
    ]:
        refused(lab, "attach", text, "--nbd", f"unix:{lab.path('s')}", says=says, code=2)
        refused(lab, "bench", text, says=says, code=2)
    volume = uri(lab)
    refused(lab, "attach", volume, says="--nbd", code=2)
    refused(lab, "attach", volume, "--nbd", f"unix:{lab.path('s')}", "--block", says="--block", code=2)
    refused(lab, "attach", volume, "--block", "--when-away", "perhaps", says="perhaps", code=2)
    refused(lab, "bench", "memory:1M", "--rw", "sideways", says="sideways", code=2)
    refused(lab, "bench", "memory:1M", "--fault", "loss=200%", says="200%", code=2)
    refused(lab, "target", "--link", "eth1", "--export", "disk0", says="disk0", code=2)
    refused(lab, "target", "--link", "eth1", "--export", "a=memory:1M,blocks=512", says="blocks", code=2)
    refused(lab, "target", "--link", "eth1", "--export", "a=memory:1M", "--export", "a=memory:2M",
            says="a", code=2)


@test()
def neither_a_key_nor_insecure(lab):
    """Without a word about keys each command refuses before it asks anybody, and says what to do."""
    for side, argv in (
        ("initiator", ("attach", uri(lab), "--nbd", f"unix:{lab.path('s')}", "--run-dir", lab.path("run"))),
        ("initiator", ("bench", uri(lab))),
        ("initiator", ("copy", uri(lab), lab.path("copied.img"))),
        ("target", ("target", "--link", "eth1", "--export", "a=memory:1M")),
        ("target", ("target", "--check", "--link", "eth1", "--export", "a=memory:1M")),
    ):
        # Not by way of `thinwire`, which says it for those who say nothing.
        done = lab.run(side, node.BIN, *argv, check_exit=False, timeout=5)
        check(done.returncode == 1, f"{argv}: exit {done.returncode}\n{done.stderr}")
        for word in ("--key", "--insecure", "thinwire key new"):
            check(word in done.stderr, f"{argv}: '{word}' is not named: {done.stderr}")
    check(not os.path.exists(lab.path("copied.img")), "copy has made its file")


@test(seconds=90, links=2)
def bad_links(lab):
    """A missing interface, one that is down, no privilege, an address not ours: each named, with the remedy."""
    attach = ["attach", "--nbd", f"unix:{lab.path('s')}", "--run-dir", lab.path("run")]
    refused(lab, *attach, "tw://node1/disk0?link=eth7", says="eth7")
    lab.run("initiator", "ip", "link", "set", "eth2", "down")
    refused(lab, *attach, "tw://node1/disk0?link=eth2", says=["eth2", "down"])
    refused(lab, "target", "--link", "eth7", "--export", "a=memory:1M", says="eth7", side="target")
    refused(lab, "target", "--link", "udp:10.99.0.1", "--export", "a=memory:1M", says="10.99.0.1",
            side="target")
    refused(lab, "discover", "--link", "eth7", says="eth7")
    plain = run(*lab.enter("initiator"), "setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw",
                node.BIN, *attach, *guarded(lab), "tw://node1/disk0?link=eth1", check_exit=False)
    check(plain.returncode == 1, f"without CAP_NET_RAW: exit {plain.returncode}\n{plain.stderr}")
    check("CAP_NET_RAW" in plain.stderr, f"without CAP_NET_RAW the message must name it: {plain.stderr}")
    check("udp" in plain.stderr.lower(), f"... and the way without it, UDP: {plain.stderr}")


@test()
def bad_images(lab):
    """An image missing, unreadable, a folder, or of odd size: the target refuses to start and names it."""
    target = ["target", "--link", "eth1"]
    refused(lab, *target, "--export", f"a={lab.path('missing.img')}", says="missing.img", side="target")
    refused(lab, *target, "--export", f"a={lab.dir}", says=lab.dir, side="target")
    with open(lab.path("odd.img"), "wb") as file:
        file.truncate(1000003)
    refused(lab, *target, "--export", f"a={lab.path('odd.img')}", says=["odd.img", "1000003", "512"], side="target")
    with open(lab.path("half.img"), "wb") as file:
        file.truncate(4096 * 3 + 512)
    refused(lab, *target, "--export", f"a={lab.path('half.img')},block=4096", says=["half.img", "12800", "4096"],
            side="target")
    secret = image(lab, "secret.img", mib=1)
    os.chmod(secret, 0)
    os.chmod(lab.dir, 0o1777)
    done = run(*lab.enter("target"), "setpriv", "--reuid", "65534", "--inh-caps", "+net_raw", "--ambient-caps",
               "+net_raw", node.BIN, *target, *guarded(lab, owner=65534), "--export", f"a={secret}", "--run-dir",
               lab.path("run"), check_exit=False)
    if "ermission denied" in done.stderr and "secret.img" not in done.stderr and node.BIN in done.stderr:
        return  # this checkout cannot be read by nobody: nothing to show here
    check(done.returncode == 1 and "secret.img" in done.stderr, f"exit {done.returncode}: {done.stderr}")


@test()
def bad_exports(lab):
    """An export that does not exist or is read-only: refused with its name; nothing is left behind."""
    Target(lab, "disk0=memory:1M", "fixed=memory:1M,ro", over="raw")
    attach = ["attach", "--nbd", f"unix:{lab.path('s')}", "--run-dir", lab.path("run")]
    refused(lab, *attach, uri(lab, "nowhere", over="raw"), says="nowhere")
    refused(lab, *attach, uri(lab, over="raw", node="ghost"), says="ghost")
    fixed = refused(lab, *attach, uri(lab, "fixed", over="raw"), says=["fixed", "read-only"])
    check("--read-only" in fixed.stderr, f"the remedy is not named: {fixed.stderr}")
    thinwire(lab, *attach, uri(lab, "fixed", over="raw"), "--read-only", "--as", "fixed")
    thinwire(lab, "detach", "fixed", "--run-dir", lab.path("run"))
    report = json.loads(thinwire(lab, "status", "--json", "--run-dir", lab.path("run")).stdout)
    check(report["attachments"] == [], f"a refused attach left something: {report}")
    check(not os.path.exists(lab.path("s")), "a refused attach left its socket")
    start = time.monotonic()
    refused(lab, *attach, "tw+udp://10.77.1.99/disk0", says="10.77.1.99")
    check(8 < time.monotonic() - start < 15, "a first attach gives up after about 10 s")


@test()
def busy_image(lab):
    """A target that waits for an image in use says for whom, ends at once on SIGTERM, and serves once it is free."""
    path = image(lab, mib=1)
    first = Target(lab, f"disk0={path}", over="raw")
    second = Target(lab, f"disk0={path}", name="node2", over="raw", start=False)
    waiting = lab.start("target", *second.argv, name="waiting")
    until("it says that it waits", 5, lambda: f"in use by process {first.process.pid}" in waiting.stderr)
    start = time.monotonic()
    waiting.kill(15)
    waiting.wait(10, expect=1)
    check(time.monotonic() - start < 2, "a target that waits for an image is deaf to SIGTERM")
    check("interrupted" in waiting.stderr, f"the end is not explained: {waiting.stderr}")
    waiting = lab.start("target", *second.argv, name="waiting2")
    until("it says that it waits", 5, lambda: "in use by" in waiting.stderr)
    first.kill()
    until("it serves", 5, lambda: "ready node2" in waiting.stdout)


@test()
def disk_that_hangs(lab):
    """A target whose disks do not answer waits for them after SIGTERM, ends some seconds after a second one, names all."""
    # The disks are some that other processes serve. Reads do not keep a thread in the kernel, as a sync would.
    below = [Attachment(lab, "memory:64M", face="block", name=f"below{number}") for number in range(2)]
    # Two processes read, and one interface carries the xdp link of one.
    target = Target(lab, *(f"disk{number}={one.path}" for number, one in enumerate(below)), over="packet",
                    extra=("--state-dir", lab.path("state")))
    readers = [lab.start("initiator", node.BIN, "bench", *guarded(lab), uri(lab, f"disk{number}", over="packet"),
                         "--rw", "randread", "--runtime", "60", name=f"reader{number}") for number in range(2)]
    time.sleep(1)
    for reader in readers:
        check(reader.running, f"nothing is read: {reader.stderr}")
    pids = [one.pid() for one in below]
    for pid in pids:
        os.kill(pid, 19)
    try:
        time.sleep(0.5)
        target.process.kill(15)
        time.sleep(4)
        check(target.process.running, f"it did not wait for its disk: {target.process.stderr}")
        target.process.kill(15)
        began = time.monotonic()
        target.process.wait(12, expect=1)
        took = time.monotonic() - began
        check(4 < took < 9, f"it ended {took:.1f} s after the second signal")
        check(all(one.path in target.process.stderr.partition("no answer from ")[2] for one in below),
              f"the end is not explained: {target.process.stderr}")
    finally:
        for pid in pids:
            os.kill(pid, 18)


@test()
def commands_over_a_disk_that_hangs(lab):
    """bench, copy and attach over a disk that does not answer end by force within 3 s, and say which disk it is."""
    below = Attachment(lab, "memory:4G", face="block", name="below")
    over = Attachment(lab, below.path, name="over", extra=("--read-only",))
    signalled = Attachment(lab, below.path, name="signalled", extra=("--read-only",))
    bench = lab.start("initiator", node.BIN, "bench", below.path, "--rw", "randread", "--runtime", "60", name="bench")
    copy = lab.start("initiator", node.BIN, "copy", below.path, lab.path("copy.raw"), name="copy")
    reading = []
    pid = below.pid()
    try:
        time.sleep(0.5)
        os.kill(pid, 19)
        check(bench.running and copy.running, f"they ended early: {bench.stderr} {copy.stderr}")
        for attached in (over, signalled):
            reading.append(lab.start("initiator", "qemu-io", "-f", "raw", "-r", "-c", "read 32M 4k", attached.nbd,
                                     name=f"reads-{attached.name}"))
        time.sleep(1)
        for command in (bench, copy):
            command.kill(15)
        time.sleep(4)
        for command in (bench, copy):
            check(command.running, f"it did not wait for its disk: {command.stderr}")
            command.kill(15)
        began = time.monotonic()
        for command in (bench, copy):
            command.wait(6, expect=1)
            took = time.monotonic() - began
            check(2 < took < 3.5, f"it ended {took:.1f} s after the second signal")
            check(f"no answer from {below.path}" in command.stderr, f"the end is not explained: {command.stderr}")
        check("copy.raw, which this copy had made, is removed again" in copy.stderr
              and not os.path.exists(lab.path("copy.raw")), f"what it leaves is not said: {copy.stderr}")
        began = time.monotonic()
        forced = over.detach("--force")
        took = time.monotonic() - began
        check(took < 3, f"detach --force took {took:.1f} s")
        check(below.path in forced.stderr and "no answer" in forced.stderr, f"it is not explained: {forced.stderr}")
        last = signalled.pid()
        for _ in range(3):
            os.kill(last, 15)
            time.sleep(0.5)
        until("the third signal ends it", 3, lambda: last not in node.initiators(lab))
        check(f"no answer from {below.path}" in read(os.path.join(signalled.run_dir, "signalled.log")),
              "the log does not explain the end")
    finally:
        os.kill(pid, 18)
    for one in reading:
        one.wait(10, expect=None)


@test()
def socket_exists(lab):
    """A socket path that exists: a live one and a stranger's file are refused, a dead one is taken over."""
    Target(lab, "disk0=memory:1M", "disk1=memory:1M")
    attach = ["attach", "--run-dir", lab.path("run")]
    first = Attachment(lab)
    refused(lab, *attach, uri(lab, "disk1"), "--nbd", f"unix:{first.path}", says=first.path)
    refused(lab, *attach, uri(lab, "disk1"), "--nbd", f"unix:{lab.path('other')}", "--as", "disk0", says="disk0")
    with open(lab.path("precious"), "w", encoding="ascii") as file:
        file.write("precious")
    refused(lab, *attach, uri(lab, "disk1"), "--nbd", f"unix:{lab.path('precious')}", says="precious")
    check(read(lab.path("precious")) == "precious", "a stranger's file was overwritten")
    os.kill(first.pid(), 9)
    time.sleep(0.2)
    check(os.path.exists(first.path), "the dead attachment's socket is there for the next to find")
    Attachment(lab).detach()


@test()
def config(lab):
    """TOML: serves from it with conf.d beside it; an unknown key is an error with line and key; --check."""
    os.mkdir(lab.path("conf.d"))
    image(lab, "disk0.img", mib=1)
    def write(name, text):
        with open(lab.path(name), "w", encoding="utf-8") as file:
            file.write(text)
    protected = {"keys": f'key = ["{key(lab)}"]', "insecure": "insecure = true",
                 "authenticate": f'key = ["{key(lab)}"]\nauthenticate_only = true'}[node.security()]
    write("target.toml", f'node = "node1"\n{protected}\nlink = ["eth1"]\n\n'
                         '[[export]]\nname = "disk0"\nvolume = "disk0.img"\n')
    write("conf.d/more.toml", '[[export]]\nname = "scratch"\nvolume = "memory:1M"\nread_only = true\nblock = 4096\n')
    argv = ["target", "--config", lab.path("target.toml")]
    thinwire(lab, *argv, "--check", side="target")
    target = Target(lab, start=False)
    target.argv = [node.BIN, *argv]
    target.start()
    found = json.loads(thinwire(lab, "discover", "--link", "eth1", "--json").stdout)
    check(sorted(found["targets"][0]["exports"], key=str) and "scratch" in str(found), f"{found}")
    target.stop()
    write("conf.d/bad.toml", '[[export]]\nname = "x"\nvolume = "memory:1M"\nblocksize = 512\n')
    for extra in ([], ["--check"]):
        refused(lab, *argv, *extra, says=["bad.toml", "blocksize", "4"], code=2, side="target")
    write("conf.d/bad.toml", "[[export]\n")
    refused(lab, *argv, "--check", says=["bad.toml", "1"], code=2, side="target")
    write("conf.d/bad.toml", '[[export]]\nname = "disk0"\nvolume = "memory:1M"\n')
    done = refused(lab, *argv, "--check", says="disk0", code=None, side="target")
    check(done.returncode in (1, 2), f"an export given twice: exit {done.returncode}")
    write("conf.d/bad.toml", '[[export]]\nname = "y"\nvolume = "missing.img"\n')
    done = refused(lab, *argv, "--check", says="missing.img", code=None, side="target")
    check(done.returncode in (1, 2), f"--check of a missing image: exit {done.returncode}")


@test()
def link(lab):
    """link explains which link a plain name gets, who holds XDP on it, and what an xdp link would be like."""
    def look(*words):
        report = json.loads(thinwire(lab, "link", "eth1", "--json", *words, side="target").stdout)
        check(report["schema"] and len(report["interfaces"]) == 1, f"link --json: {report}")
        return report["interfaces"][0]
    found = look("--try")
    check(found["link"] == "packet:eth1" and found["driver"] == "veth" and found["mtu"] == 9000
          and found["xdp"] == "native" and found["zero_copy"] is False and "copies" in found["against_xdp"]
          and found["attached"] is None and found["tried"] == {"opened": True, "text": "native, copy, 1 queue"},
          f"link of a veth: {found}")
    target = Target(lab, "disk0=memory:1M", over="xdp")
    holder = f"process {target.process.popen.pid} (thinwire)"
    found = look("--try")
    check(found["attached"] == holder and not found["tried"]["opened"] and holder in found["tried"]["text"], f"{found}")
    check("xdp not chosen" in thinwire(lab, "link", "eth1", side="target").stdout, "the text says why")
    # A second one is told so, too; a plain name and packet work beside it.
    argv = ("target", "--export", "x=memory:1M")
    refused(lab, *argv, "--name", "node2", "--link", "xdp:eth1", says=[holder, "use packet:eth1"], side="target")
    Target(lab, "disk0=memory:1M", name="node2", over="plain")
    for name, over in (("node1", "plain"), ("node2", "xdp"), ("node2", "packet")):
        thinwire(lab, "bench", uri(lab, node=name, over=over), "--runtime", "0.2")
    refused(lab, *argv, "--name", "node3", "--link", "xdp:eth1", "--shards", "2", "--export", "y=memory:1M",
            says="2 shards", side="target")
    refused(lab, "link", "eth7", says="eth7")


@test()
def vlan_beside_xdp(lab):
    """Who has an xdp link beside one on a VLAN of its interface is warned, since veth takes tags off."""
    for over, is_warned in (("xdp", True), ("packet", False)):
        target = Target(lab, "disk0=memory:1M", over=over, extra=["--link", "packet:eth1,vlan=7"])
        said = target.process.stderr
        check(("packet:eth1,vlan=7" in said and "rxvlan off" in said) == is_warned, f"{over}: {said}")
        target.stop()


@test(links=2, each={"": {}, "xdp": {"over": "xdp"}})
def discover(lab, over="raw"):
    """discover finds targets by multicast over each link, in a table and in JSON; exit 1 if there is none."""
    links = [node.ethernet(lab, "initiator", number, node.chosen(over)) for number in (1, 2)]
    done = thinwire(lab, "discover", "--link", links[0], "--json", expect=1)
    check(json.loads(done.stdout)["targets"] == [], f"JSON of nothing: {done.stdout}")
    thinwire(lab, "discover", "--link", links[0], expect=1)
    Target(lab, "disk0=memory:1M", "disk1=memory:2M,ro", over=over)
    for link in links:
        report = json.loads(thinwire(lab, "discover", "--link", link, "--json").stdout)
        check(report.get("schema"), f"no schema: {report}")
        check(len(report["targets"]) == 1, f"one target, once: {report}")
        found = report["targets"][0]
        check(found["name"] == "node1" and "disk0" in str(found["exports"]) and "disk1" in str(found["exports"]), f"{found}")
        check(found["address"].replace(":", "-").lower().startswith("02-00-00-00-0"), f"its address: {found}")
    table = thinwire(lab, "discover", "--link", links[0]).stdout
    check("node1" in table and "disk0" in table, table)
    # The address found is one that attach takes.
    address = found["address"].replace(":", "-")
    thinwire(lab, "bench", f"tw://{address}/disk0?link={links[1]}", "--runtime", "0.2")


@test()
def node_name_in_use(lab):
    """A second target with a node name in use refuses to start; the first is not disturbed."""
    Target(lab, "disk0=memory:1M", over="raw")
    refused(lab, "target", "--name", "node1", "--link", "eth1", "--export", "x=memory:1M", says="node1")
    thinwire(lab, "bench", uri(lab, over="raw"), "--runtime", "0.2")


@test()
def pair_by_udp_without_privilege(lab):
    """Both ends over UDP as an ordinary user, without CAP_NET_RAW."""
    probe = run("setpriv", "--reuid", "65534", "--clear-groups", node.BIN, "--version", check_exit=False)
    if probe.returncode:
        # A checkout below a private home: give nobody a copy they can run.
        run("install", "-m", "755", node.BIN, lab.path("thinwire"))
        program = lab.path("thinwire")
    else:
        program = node.BIN
    # As /tmp is: a folder in which anybody may rename what others made would be refused.
    os.chmod(lab.dir, 0o1777)
    as_nobody = ["setpriv", "--reuid", "65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    own = guarded(lab, owner=65534)
    target = Target(lab, "disk0=memory:16M", over="udp", extra=own, start=False)
    target.argv = [*as_nobody, program, *target.argv[1:]]
    target.start()
    done = lab.run("initiator", *as_nobody, program, "bench", *own, uri(lab, over="udp"), "--rw", "randrw",
                   "--verify", "--runtime", "1", "--json", "--run-dir", lab.path("run"))
    report = json.loads(done.stdout)
    check(report["errors"] == 0 and report["iops"] > 0, f"{report}")


@test()
def bench(lab):
    """bench of a remote and of local volumes: every pattern, verified; one JSON object, alone on stdout."""
    Target(lab, "disk0=memory:64M")
    image(lab, "local.img", mib=64)
    for volume in (uri(lab), f"file:{lab.path('local.img')}", "memory:64M", "null:64M"):
        for pattern in ("randread", "randwrite", "read", "write", "randrw"):
            verify = [] if volume.startswith("null") else ["--verify"]
            done = thinwire(lab, "bench", volume, "--rw", pattern, "--bs", "16k", "--iodepth", "4",
                            "--runtime", "0.3s", "--json", *verify)
            report = json.loads(done.stdout)
            check(report["schema"] and report["errors"] == 0 and report["iops"] > 0 and report["mib_per_s"] > 0
                  and report["cpu_us_per_io"] > 0, f"{volume} {pattern}: {report}")
            latency = report["latency_us"]
            check(latency["p50"] <= latency["p99"] <= latency["p999"] <= latency["max"] and latency["mean"] > 0,
                  f"{volume} {pattern}: {latency}")
    two = json.loads(thinwire(lab, "bench", uri(lab), "--jobs", "2", "--iodepth", "8", "--runtime", "0.5",
                              "--json").stdout)
    check(two["errors"] == 0 and two["iops"] > 0, f"--jobs 2: {two}")
    plain = thinwire(lab, "bench", "memory:64M", "--runtime", "0.2").stdout
    check("iops" in plain.lower(), f"the report for people: {plain}")


THREADS = {
    "none": {"target": ["--receive", "single", "--completion", "inline"],
             "initiator": ["--receive", "single", "--submission", "inline"], "rows": []},
    "all": {"target": ["--receive", "split", "--completion", "workqueue"],
            "initiator": ["--receive", "split", "--submission", "queue"], "rows": ["CS-Rec", "CS-WQ"]},
}


@test(each=THREADS)
def bench_breakdown(lab, target, initiator, rows):
    """bench --breakdown: every stage of every size, hand-overs exactly where there are threads, nothing unexplained."""
    # Over packet: xdp cannot tell the wake-up from the network.
    Target(lab, "disk0=memory:64M", extra=target, over="packet")
    volume = uri(lab, over="packet")
    report = json.loads(thinwire(lab, "bench", volume, "--breakdown", "--runtime", "3", "--json",
                                 *initiator).stdout)
    sizes = [(cell["rw"], cell["bs"]) for cell in report["cells"]]
    check(sizes == [(rw, kib << 10) for rw in ("randread", "randwrite") for kib in (4, 8, 64, 128)], f"cells: {sizes}")
    for cell in report["cells"]:
        times = {row["row"]: row["physical_us"]["mean"] for row in cell["breakdown"]}
        check(set(times) == {"In/Out", "Ty-IS", "Ty-TR", "Ty-TS", "Ty-IR", "CS-WQ", "CS-Rec", "CS-IRQ", "CS-Out",
                             "store", "network", "remainder", "total", "network there", "network back", "clocks"},
              f"rows: {sorted(times)}")
        # A row is never below nothing, so stamps of the two sides that disagree would be in the remainder.
        check(cell["ios"] > 0 and abs(times["remainder"]) < 0.05 * times["total"], f"unexplained: {cell}")
        for row in ("In/Out", "Ty-IS", "Ty-TR", "Ty-TS", "Ty-IR", "CS-IRQ", "CS-Out", "store", "network there",
                    "network back", *rows):
            check(times[row] > 0, f"{row} took no time: {cell}")
        for row in {"CS-Rec", "CS-WQ"} - set(rows):
            check(times[row] == 0, f"{row} without a thread to hand over to: {cell}")
        owned = [row["virtual_us"]["mean"] for row in cell["breakdown"] if row["virtual_us"]]
        check(len(owned) == 7 and min(owned) > 0, f"processor time: {cell}")
    one = json.loads(thinwire(lab, "bench", volume, "--breakdown", "--rw", "randread", "--bs", "16k",
                              "--runtime", "0.5", "--json", *initiator).stdout)
    check(one["bs"] == 16384 and one["iops"] > 0 and one["breakdown"], f"one cell is a report: {one}")
    refused(lab, "bench", "memory:64M", "--breakdown", says="needs a remote volume", code=2)
    refused(lab, "bench", volume, "--breakdown", "--iodepth", "2", says="--iodepth", code=2)


@test(each={"": {}, "xdp": {"over": "xdp"}})
def copy(lab, over="best"):
    """copy both ways, sparse-aware, verified; a destination too small is refused."""
    Target(lab, f"disk0={image(lab, mib=64)}", f"small={image(lab, 'small.img', mib=1)}", over=over)
    there, small = uri(lab, over=over), uri(lab, "small", over=over)
    source, back = lab.path("source"), lab.path("back")
    with open(source, "wb") as file:
        file.truncate(64 << 20)
        for mib in range(0, 64, 8):
            file.seek(mib << 20)
            file.write(os.urandom(1 << 20))
    thinwire(lab, "copy", source, there, "--verify")
    run("cmp", source, lab.path("disk0.img"))
    thinwire(lab, "copy", there, back)
    run("cmp", source, back)
    for path in (lab.path("disk0.img"), back):
        used = os.stat(path).st_blocks * 512
        check(used < 24 << 20, f"8 MiB of data take {used >> 20} MiB in {os.path.basename(path)}")
    refused(lab, "copy", source, small, says="small")
    refused(lab, "copy", lab.path("missing"), there, says="missing")


def connected(lab, path):
    """Whether a client is connected to the socket of that path."""
    sockets = lab.run("initiator", "cat", "/proc/net/unix").stdout.splitlines()
    # Number, references, protocol, flags, type, state, inode, path; 03 is connected.
    return any(line.split()[5] == "03" for line in sockets if line.endswith(" " + path))


@test(seconds=90)
def detach(lab):
    """detach refuses while a client is connected; --force ends within 2 s, even if the target is gone."""
    target = Target(lab, f"disk0={image(lab)}")
    disk = Attachment(lab)
    refused(lab, "detach", "nothing", "--run-dir", disk.run_dir, says="nothing")
    fio = load.Fio(lab, disk.nbd, mib=64, seconds=30)
    until("fio to connect", 20, lambda: connected(lab, disk.path))
    refusal = disk.detach(expect=1)
    check("NBD client" in refusal.stderr and "--force" in refusal.stderr, refusal.stderr)
    fio.still_running("the forced detach")
    target.kill()
    time.sleep(0.5)
    start = time.monotonic()
    disk.detach("--force", timeout=10)
    took = time.monotonic() - start
    check(took < 2.5, f"--force took {took:.1f} s with the target gone")
    fio.process.wait(20, expect=None)
    check(fio.process.popen.returncode != 0, "what was outstanding must fail")
    check(not os.path.exists(disk.path), "the socket is still there")
    report = json.loads(thinwire(lab, "status", "--json", "--run-dir", disk.run_dir).stdout)
    check(report["attachments"] == [], f"status still shows it: {report}")


@test()
def status(lab):
    """status: JSON with all that is promised, a table with the name; timers run while the target is away."""
    target = Target(lab, f"disk0={image(lab)}")
    disk = Attachment(lab, extra=["--when-away", "fail-after=60"])
    here = disk.status()
    for key in ("name", "uri", "frontend", "path", "state", "insecure", "paths", "timer", "seconds_left"):
        check(key in here, f"status --json lacks '{key}': {here}")
    check(here["insecure"] is (node.security() == "insecure") and here["path"] == disk.path and len(here["paths"]) == 1, f"{here}")
    check("disk0" in thinwire(lab, "status", "--run-dir", disk.run_dir).stdout, "the table shows it")
    target.kill()
    away = until("status shows that the target is away", 15,
                 lambda: (s := disk.status())["state"] != here["state"] and s["timer"] and s)
    check(0 < away["seconds_left"] <= 60, f"{away}")
    target.start()
    until("status shows that it is back", 15, lambda: disk.status()["state"] == here["state"])
    disk.detach()


@test(seconds=90)
def status_of_the_frame_size(lab):
    """A switch port falls to MTU 1500 and rises again: status says when the full size is tried, and then it is."""
    Target(lab, f"disk0={image(lab)}", over="raw")
    disk = Attachment(lab, uri(lab, over="raw"), face="file")
    path = lambda: disk.status()["paths"][0]
    until("frames of full size", 10, lambda: path()["frame_bytes"] == path()["frame_bytes_limit"])
    check(path()["full_size_retry_s"] is None, f"{path()}")
    lab.run("switch", "ip", "link", "set", "t1", "mtu", "1500")
    lab.run("initiator", "dd", "if=/dev/urandom", f"of={disk.path}", "bs=1M", "count=4", "conv=notrunc,fsync")
    low = path()
    check(low["frame_bytes"] <= 1514 and 0 < low["full_size_retry_s"] <= 60, f"{low}")
    said = thinwire(lab, "status", "--run-dir", disk.run_dir).stdout
    check("the full size is tried again in" in said, said)
    lab.run("switch", "ip", "link", "set", "t1", "mtu", str(lab.mtu))
    until("the full size again", low["full_size_retry_s"] + 5,
          lambda: path()["frame_bytes"] == path()["frame_bytes_limit"])
    check(path()["full_size_retry_s"] is None, f"{path()}")
    disk.detach()


@test()
def foreground(lab):
    """attach --foreground stays, prints the path, and leaves in order on SIGTERM."""
    Target(lab, f"disk0={image(lab)}")
    socket = lab.path("fore.sock")
    process = lab.start("initiator", node.BIN, "attach", *guarded(lab), uri(lab), "--nbd", f"unix:{socket}",
                        "--foreground", "--run-dir", lab.path("run"), name="attach")
    until("the path on stdout", 15, lambda: process.stdout == socket + "\n")
    lab.run("initiator", "nbdinfo", "--size", f"nbd+unix:///?socket={socket}")
    process.kill(15)
    process.wait(10)
    check(not os.path.exists(socket), "the socket is still there")


@test()
def attach_waits_for_a_target(lab):
    """attach --wait is there before its target; the target starts later and it succeeds."""
    socket = lab.path("w.sock")
    process = lab.start("initiator", node.BIN, "attach", *guarded(lab), uri(lab), "--nbd", f"unix:{socket}",
                        "--wait", "--run-dir", lab.path("run"), name="attach")
    time.sleep(2)
    check(process.running, f"it gave up: {process.stderr}")
    Target(lab, "disk0=memory:1M")
    process.wait(20)
    check(process.stdout == socket + "\n", process.stdout)


@test()
def orderly_shutdown(lab):
    """SIGTERM ends the target in order; the attachment notices at once, waits, and goes on with the next one."""
    target = Target(lab, f"disk0={image(lab)}")
    disk = Attachment(lab)
    ready = disk.status()["state"]
    target.stop()
    until("the attachment notices the shutdown", 3, lambda: disk.status()["state"] != ready)
    target.start()
    load.verified(lab, disk.nbd, mib=8)
    disk.detach()


@test()
def pcap(lab):
    """--pcap: a capture that tshark opens; our dissector understands each frame of it and refuses none."""
    path = lab.path("wire.pcap")
    Target(lab, "disk0=memory:1M", over="raw")
    volume = uri(lab, over="raw")
    for pattern in ("randread", "randwrite"):
        thinwire(lab, "bench", volume, "--rw", pattern, "--iodepth", "8", "--runtime", "0.1", "--pcap", path)
        done = run("tshark", "-X", f"lua_script:{DISSECTOR}", "-r", path, "-c", 300, "-T", "fields", "-E", "separator=|",
                   "-e", "eth.type", "-e", "frame.protocols", "-e", "thinwire.expert.refused", "-e", "_ws.malformed",
                   env={**os.environ, "HOME": lab.dir})
        frames = [line.split("|") for line in done.stdout.splitlines()]
        check(len(frames) > 50, f"{len(frames)} frames in the capture\n{done.stderr}")
        for number, (ethertype, protocols, refusal, malformed) in enumerate(frames, 1):
            check(int(ethertype, 16) == 0x88B5 and "thinwire" in protocols and not refusal and not malformed,
                  f"frame {number} of {pattern}: {ethertype} {protocols} {refusal} {malformed}")


@test(links=0)
def help_and_man():
    """Every command has --help with examples; man pages and completions come out."""
    for command in ("target", "discover", "attach", "detach", "status", "link", "bench", "copy"):
        text = run(node.BIN, command, "--help").stdout
        check("Example" in text and f"thinwire {command}" in text, f"thinwire {command} --help has no example")
    check("thinwire" in run(node.BIN, "--version").stdout, "--version")
    for page in ("thinwire", "attach", "volumes", "mirror"):
        check(".TH" in run(node.BIN, "man", page).stdout, f"the man page {page} is no man page")
    check("complete" in run(node.BIN, "completions", "bash").stdout, "the completion for bash")
