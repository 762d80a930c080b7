"""Keys as their user meets them: files, a side without, rights, names, what `status` says, a gateway. What is on the
wire is looked at in `test_keys_wire.py`."""

import json
import os
import time

import greedy
import load
import node
from harness import check, read, run
from node import Attachment, Target, image, key, refused, thinwire, uri
from registry import test


def with_key(lab, name):
    return ["--key", key(lab, name)]


def shown(lab, side="target", run_dir="target-run"):
    """The only target or attachment that `status` finds."""
    report = json.loads(thinwire(lab, "status", "--json", "--run-dir", lab.path(run_dir), side=side).stdout)
    (found,) = report["targets" if side == "target" else "attachments"]
    return found


def ids(lab, *name):
    return thinwire(lab, "key", "id", lab.path("keys", *name)).stdout.split()


def nbd(lab, disk, script):
    """What a client of an attachment prints, whose handle is `h`."""
    words = ("-c", f"import nbd, sys\nh = nbd.NBD()\nh.connect_uri(sys.argv[1])\n{script}", disk.nbd)
    return lab.run("initiator", "/usr/bin/python3", *words).stdout.strip()


@test()
def made_and_added(lab):
    """`key new` makes a file that only its owner reads, once; `--add` puts a key behind it; `id` tells them, in
    order."""
    folder = lab.path("etc", "keys")
    made = thinwire(lab, "key", "new", "alice", "--dir", folder)
    path = os.path.join(folder, "alice")
    check(made.stdout == path + "\n" and not made.stderr, f"it prints the path alone: {made.stdout!r} {made.stderr!r}")
    check(os.stat(path).st_mode & 0o7777 == 0o600, f"mode {os.stat(path).st_mode:o}")
    check(os.stat(folder).st_mode & 0o7777 == 0o700, f"mode of the folder {os.stat(folder).st_mode:o}")
    before = read(path)
    refused(lab, "key", "new", "alice", "--dir", folder, says=[path, "exists already", "--add"])
    check(read(path) == before, "a refused one changes nothing")
    told = json.loads(thinwire(lab, "key", "new", "alice", "--dir", folder, "--add", "--json").stdout)
    check(told["path"] == path and len(told["ids"]) == 2, f"{told}")
    check(read(path).startswith(before) and len(read(path).splitlines()) == 2, "the new one is behind the old")
    listed = thinwire(lab, "key", "id", path).stdout.split()
    check(listed == told["ids"] and len(set(listed)) == 2, f"{listed} {told}")
    for word in read(path).split():
        if len(word) == 64:
            check(word[:8] not in made.stdout + json.dumps(told), "a key is told")
    refused(lab, "key", "new", "bob", "--dir", folder, "--add", says=["bob", "no such file"])
    refused(lab, "key", "new", "bob", "--dir", path, says=f"{path}/bob")
    for name in ("", "..", ".alice", "a/b", "a+b", "a,b", "a b", "x" * 65):
        refused(lab, "key", "new", name, "--dir", folder, says="name of a key", code=2)
    check(os.listdir(folder) == ["alice"], f"left over: {os.listdir(folder)}")


@test()
def bad_key_files(lab):
    """A key file that is missing, a folder, a pipe, empty, readable by others, or has something else in it: each
    command names the file and what is wrong with it, tells nothing of the key, and waits for nobody."""
    good = key(lab, "good")
    line = read(good)
    secret = line.split()[1]
    os.mkdir(lab.path("bad"))
    at = lambda name: lab.path("bad", name)

    def write(name, text, mode=0o600):
        with open(at(name), "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(at(name), mode)
    os.mkdir(at("folder"))
    os.mkfifo(at("pipe"), 0o600)
    write("empty", "")
    write("comment", "# nothing\n\n")
    write("group", line, 0o640)
    write("others", line, 0o604)
    write("twice", line * 2)
    write("words", line + "hello\n")
    write("short", "thinwire-key-1 " + secret[:62] + "\n")
    write("zero", "thinwire-key-1 " + "0" * 64 + "\n")
    write("future", "thinwire-key-2 " + secret + "\n")
    write("huge", line + "#\n" * 40000)
    target = ("target", "--link", "eth1", "--export", "a=memory:1M")
    for name, says in (("none", "thinwire key new none"), ("folder", "no plain file"), ("pipe", "no plain file"),
                       ("empty", "no key in it"), ("comment", "no key in it"), ("group", "chmod 600"),
                       ("others", "mode 604"), ("twice", "line 2"), ("words", "line 2"), ("short", "line 1"),
                       ("zero", "line 1"), ("future", "line 1"), ("huge", "too many")):
        for argv in (("bench", "tw://node1/a?link=eth1", "--key", at(name)), (*target, "--key", at(name)),
                     ("key", "id", at(name))):
            done = refused(lab, *argv, says=[at(name), says], timeout=5)
            check(secret[:8] not in done.stderr, f"{argv} tells the key: {done.stderr}")
    for argv in (("attach", "--nbd", f"unix:{lab.path('s')}", "tw://node1/a?link=eth1", "--run-dir", lab.path("run")),
                 ("copy", "tw://node1/a?link=eth1", lab.path("copied.img")), ("discover", "--link", "eth1")):
        refused(lab, *argv, "--key", at("group"), says="chmod 600", timeout=5)
    refused(lab, "bench", f"tw://node1/a?link=eth1&key={at('group')}", "--key", good, says="chmod 600", timeout=5)
    # As a name, it lies in one place.
    refused(lab, "bench", "tw://node1/a?link=eth1", "--key", "nobody-has-this",
            says="/etc/thinwire/keys/nobody-has-this", timeout=5)
    # Of several, each has a name and keys of its own.
    run("cp", "-p", good, at("good"))
    run("cp", "-p", good, at("other"))
    refused(lab, *target, "--key", good, "--key", at("good"), says=["names must differ", "good"], code=2)
    refused(lab, *target, "--key", good, "--key", at("other"), says=["in common", "good", "other"], code=None)
    refused(lab, *target, "--key", good, "--insecure", says="--insecure", code=2)
    refused(lab, *target, "--key", good, "--export", "b=memory:1M,keys=nobody-has-this", says=["b", "nobody-has-this"])
    check(not os.path.exists(lab.path("copied.img")) and not os.path.exists(lab.path("s")), "something was made")


# How each command asks for a volume, by what it would make of it.
ASKED = {
    "nbd": lambda lab, volume: ("attach", volume, "--nbd", f"unix:{lab.path('asked.sock')}", "--as", "nbd"),
    "file": lambda lab, volume: ("attach", volume, "--file", lab.path("asked.file"), "--as", "file", "--read-only"),
    "block": lambda lab, volume: ("attach", volume, "--block", "--as", "block"),
    "read": lambda lab, volume: ("bench", volume, "--rw", "read", "--runtime", "1"),
    "write": lambda lab, volume: ("bench", volume, "--rw", "write", "--runtime", "1"),
    "members": lambda lab, volume: ("bench", volume + "&members=2", "--rw", "randread", "--runtime", "1"),
    "copy_from": lambda lab, volume: ("copy", volume, lab.path("copied.img")),
    "copy_to": lambda lab, volume: ("copy", lab.path("mine.img"), volume),
    "shown_elsewhere": lambda lab, volume: ("bench", f"{volume}&key={key(lab, 'mallory')}", "--runtime", "1"),
}
SECRET = b"nobody else is to read this. "


@test(seconds=90, each={over: {"over": over} for over in ("packet", "udp")})
def nothing_without_the_right_key(lab, over):
    """No key and a wrong one, by each command and face: not a byte is read or written, not a name told; who has none
    is told at once, who has a wrong one after the 10 s of a first attach, and both are told what is the matter."""
    path, mine = image(lab, mib=1), image(lab, "mine.img", mib=1)
    content = (SECRET * (1 << 16))[:1 << 20]
    for name, text in (path, content), (mine, b"written by a stranger"):
        with open(name, "r+b") as file:
            file.write(text)
    target = Target(lab, f"disk0={path}", "payroll=memory:1M", over=over,
                    extra=(*with_key(lab, "alice"), "--run-dir", lab.path("target-run"), "--pcap", lab.path("pcap")))
    volume = uri(lab, over=over, mtu=9000)
    # Each attachment has a folder of its own.
    place = lambda name, who: ("--run-dir", lab.path(f"run-{name}-{who}"))
    (mallory,) = ids(lab, os.path.basename(key(lab, "mallory")))
    begun = time.monotonic()
    waiting = {name: lab.start("initiator", node.BIN, *asked(lab, volume), *place(name, "mallory"),
                               *with_key(lab, "mallory"))
               for name, asked in ASKED.items()}
    # Over `udp` also one who makes its frames itself.
    peer = lab.start("initiator", "/usr/bin/python3", greedy.__file__, "gaps", "1", "1000",
                     lab.address("target")) if over == "udp" else None
    for name, asked in ASKED.items():
        if name != "shown_elsewhere":
            refused(lab, *asked(lab, volume), *place(name, "nobody"), "--insecure", says="demands a key: give",
                    timeout=6)
    check(time.monotonic() - begun < 8, "who has no key is not told at once")
    told = [process.wait(30, expect=1).stderr for process in waiting.values()]
    check(9 < time.monotonic() - begun < 20, "a first attach gives up after about 10 s")
    for name, said in zip(waiting, told):
        for word in ("no target that has the key", f"node1 does not know key {mallory}"):
            check(word in said, f"{name}: '{word}' is missing: {said}")
    for words in (), with_key(lab, "mallory"):
        link = f"udp:{lab.address('initiator')}" if over == "udp" else node.ethernet(lab, "initiator", 1, over)
        for more in (), ("--json",):
            done = lab.run("initiator", node.BIN, "discover", "--link", link, "--timeout", "0.4", *words, *more)
            check("node1" in done.stdout and "disk0" not in done.stdout, f"it tells names: {done.stdout}")
            told.append(done.stdout)
    check(peer is None or "not welcomed" in peer.wait(20, expect=1).stderr, f"it was welcomed: {peer}")
    found = shown(lab)
    check(found["counters"]["requests"] == found["counters"]["sessions"] == found["session_count"] == 0, f"{found}")
    # One that greets as fast as it can is not always answered.
    check(set(found["drops"]) <= {"insecure", "unknown-key", "wrong-shard", "overload"}, f"{found['drops']}")
    for reason in "insecure", "unknown-key":
        check(found["drops"].get(reason, 0) >= len(ASKED) - 1, f"{found['drops']}")
    check(found["exports"][0]["writer"] is None and found["exports"][0]["generation"] == 0, f"{found}")
    with open(path, "rb") as file:
        check(file.read() == content, "somebody has written")
    left = [name for name in ("copied.img", "asked.sock", "asked.file") if os.path.exists(lab.path(name))]
    check(not left, f"made for nothing: {left}")
    check(not any("payroll" in text for text in told), f"a name is told: {told}")
    # And who has the key has all of it, unseen.
    thinwire(lab, "copy", volume, lab.path("copied.img"), *with_key(lab, "alice"))
    with open(lab.path("copied.img"), "rb") as file:
        check(file.read() == content, "with the key it is there")
    target.stop()
    with open(lab.path("pcap"), "rb") as file:
        frames = file.read()
    check(len(frames) > len(content), f"{len(frames)} bytes captured")
    for hidden in SECRET, b"payroll":
        check(hidden not in frames, f"{hidden} is to be seen on the wire")


@test(seconds=60)
def keys_on_the_initiator_only(lab):
    """A target that was started with --insecure: who has a key does not talk to it, and is told why after 10 s; nor
    do those that only authenticate and those that encrypt come to terms, and they are told at once."""
    keyed = with_key(lab, "alice")
    only = [*keyed, "--authenticate-only"]
    Target(lab, "disk0=memory:1M", over="raw", extra=("--insecure", "--run-dir", lab.path("target-run")))
    Target(lab, "disk0=memory:1M", over="raw", name="hides", extra=keyed)
    Target(lab, "disk0=memory:1M", over="raw", name="shows", extra=only)
    begun = time.monotonic()
    waiting = [lab.start("initiator", node.BIN, "bench", uri(lab, over="raw"), *flags) for flags in (keyed, only)]
    for name, flags in ("hides", only), ("shows", keyed):
        refused(lab, "bench", uri(lab, over="raw", node=name), *flags, says="--authenticate-only must be said on both",
                timeout=6)
    for name, flags in ("hides", keyed), ("shows", only):
        thinwire(lab, "bench", uri(lab, over="raw", node=name), *flags, "--runtime", "0.1")
    for process in waiting:
        said = process.wait(30, expect=1).stderr
        for word in ("no target that has the key", "runs without keys", "--insecure"):
            check(word in said, f"'{word}' is missing: {said}")
    check(9 < time.monotonic() - begun < 20, "a first attach gives up after about 10 s")
    found = shown(lab)
    check(found["session_count"] == found["counters"]["sessions"] == 0 and found["drops"]["insecure"] > 1, f"{found}")
    check(found["insecure"] is True, f"{found}")
    refused(lab, "bench", uri(lab, over="raw"), *keyed, "--insecure", says="--insecure", code=2)


@test()
def rights(lab):
    """One key writes, one only reads, for one an export is not there; each is told what it may, and no more."""
    names = ("alice", "bob", "carol")
    flags = [word for name in names for word in with_key(lab, name)]
    Target(lab, f"disk0={image(lab, mib=16)},keys=alice,read-keys=bob", "all=memory:1M", "fixed=memory:1M,ro",
           extra=[*flags, "--run-dir", lab.path("target-run")], over="packet")
    volume = uri(lab, over="packet")
    alice = Attachment(lab, volume, name="alice", run="run-alice", extra=with_key(lab, "alice"))
    load.verified(lab, alice.nbd, mib=8)
    nbd(lab, alice, "h.pwrite(b'alice' * 100 + bytes(12), 0)\nh.flush()")
    bob = Attachment(lab, volume, name="bob", run="run-bob", extra=[*with_key(lab, "bob"), "--read-only"])
    seen = nbd(lab, bob, "print(h.is_read_only(), bytes(h.pread(5, 0)))")
    check(seen == "True b'alice'", f"who may read reads: {seen}")
    writes = "try:\n h.set_strict_mode(0)\n h.pwrite(bytes(512), 0)\nexcept nbd.Error as error:\n print(error.errnum)"
    check(nbd(lab, bob, writes) in ("1", "30"), "who may only read is told EPERM or EROFS")
    check(nbd(lab, alice, "print(bytes(h.pread(5, 0)))") == "b'alice'", "who may only read has written")
    attach = ("attach", "--nbd", f"unix:{lab.path('s')}", "--run-dir", lab.path("run"))
    for more in (), ("--take-over",):
        refused(lab, *attach, volume, *with_key(lab, "bob"), *more, says=["may only read", "disk0", "--read-only"])
    refused(lab, "copy", image(lab, "zeroes.img", mib=16), volume, *with_key(lab, "bob"), says="may only read")
    told = [refused(lab, *attach, uri(lab, name, over="packet"), *with_key(lab, "carol"), *more,
                    says=[f"no export {name} that this key may open", "discover", key(lab, "carol")]).stderr
            for name in ("disk0", "diskx") for more in ((), ("--read-only",))]
    check({text.replace("diskx", "disk0") for text in told} == {told[0]}, f"carol can tell that it is there: {told}")
    for name, exports in ("alice", "disk0 all fixed"), ("bob", "disk0 all fixed"), ("carol", "all fixed"):
        listed = thinwire(lab, "discover", "--link", node.ethernet(lab, "initiator", 1, node.chosen("raw")),
                          *with_key(lab, name), "--timeout", "0.5").stdout
        check(listed.splitlines()[1].split()[2:] == exports.split(), f"{name} is told {listed}")
    thinwire(lab, "bench", uri(lab, "all", over="raw"), "--rw", "randwrite", "--runtime", "0.1", *with_key(lab, "carol"))
    check(shown(lab)["counters"]["fenced"] == 0, "somebody was fenced")
    bob.detach()
    alice.detach()


@test(links=2)
def names_of_exports(lab):
    """`discover` tells that a target is there, and what it exports only with a key that it has, unless --announce."""
    keyed = with_key(lab, "alice")
    for name, flags in {"keyed": keyed, "shows": [*keyed, "--authenticate-only"], "announces": [*keyed, "--announce"],
                        "open": ["--insecure"]}.items():
        Target(lab, f"of-{name}=memory:1M", name=name, extra=flags, over="packet")
    refused(lab, "target", "--insecure", "--announce", "--link", "eth1", "--export", "a=memory:1M", says="--announce",
            code=2)
    for flags, proved in ([], "announces open"), (keyed, "keyed shows announces"), (with_key(lab, "mallory"), ""):
        argv = (node.BIN, "discover", "--link", "packet:eth1", "--timeout", "0.4", *flags)
        report = {found["name"]: found for found in json.loads(lab.run("initiator", *argv, "--json").stdout)["targets"]}
        table = {line.split()[0]: line for line in lab.run("initiator", *argv).stdout.splitlines()[1:]}
        check(set(report) == set(table) == {"keyed", "shows", "announces", "open"}, f"{report} {table}")
        for name in report:
            is_told = name in proved.split()
            check(report[name]["exports"] == ([f"of-{name}"] if is_told else []), f"{flags} {report[name]}")
            check(report[name]["has_key"] == (is_told if flags else None), f"{flags} {report[name]}")
            says = f"of-{name}" if is_told else "does not have this key" if flags else "told only with --key"
            check(says in table[name], f"{flags} {table[name]}")


SUITES = {"keys": ("aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"), "authenticate": ("aes-128-gmac",)}


@test(each={name: {"security": name} for name in node.SECURITIES})
def status(lab):
    """Both sides say who uses which key and suite, or that frames are INSECURE."""
    protection = node.security()
    told = ("--run-dir", lab.path("target-run"))
    target = Target(lab, f"disk0={image(lab, mib=16)}", extra=told)
    disks = [Attachment(lab, name="one"), Attachment(lab, name="two", run="run-two", extra=["--read-only"])]
    load.verified(lab, disks[0].nbd, mib=8)
    text, found = thinwire(lab, "status", *told, side="target").stdout, shown(lab)
    check(found["insecure"] is (protection == "insecure"), f"{found}")
    check(found["authenticate_only"] is (protection == "authenticate"), f"{found}")
    if protection == "insecure":
        check("INSECURE" in text and found["keys"] == [], f"{text} {found}")
        check(all(session["key"] is None for session in found["sessions"]), f"{found['sessions']}")
        check("serving without keys" in target.process.stderr, "the target's log does not say so")
    else:
        own = ids(lab, "e2e")
        suites = SUITES[protection]
        check(found["keys"] == [{"name": "e2e", "ids": own}], f"{found['keys']}")
        check(len(found["sessions"]) == 2, f"{found['sessions']}")
        for session in found["sessions"]:
            use = session["key"]
            check((use["name"], use["id"], use["rekeys"]) == ("e2e", own[0], 0) and use["suite"] in suites, f"{use}")
        for word in (f"takes key e2e ({own[0]}), which 2 of its sessions use", f"key e2e ({own[0]}), {use['suite']}",
                     "keys, not encrypted" if protection == "authenticate" else " keys "):
            check(word in text, f"'{word}' is missing:\n{text}")
        check("INSECURE" not in text and "serving without" not in target.process.stderr, text)
    for disk in disks:
        here, text = disk.status(), thinwire(lab, "status", "--run-dir", disk.run_dir).stdout
        check(here["insecure"] is (protection == "insecure"), f"{here}")
        if protection == "insecure":
            check("INSECURE" in text and here["key"] is None and here["suite"] is None, f"{text} {here}")
        else:
            check(here["key"] == "e2e" and here["suite"] in suites, f"{here}")
            check(f" {here['suite']} " in text and "shows key e2e" in text and "INSECURE" not in text, text)
        disk.detach()


@test(seconds=60)
def a_gateway_shows_what_its_volumes_say(lab):
    """A gateway's volume says which key to show; without, the gateway is refused by name before it asks anybody, also
    by --check; its own clients' keys open nothing behind it."""
    leaf = Target(lab, f"a={image(lab, 'a.img', mib=16)}", name="node1", over="packet", extra=with_key(lab, "back"))
    front, volume = with_key(lab, "front"), uri(lab, "a", over="packet")
    right, wrong = uri(lab, "a", over="packet", key=key(lab, "back")), uri(lab, "a", over="packet", key=key(lab, "front"))
    state = ("--run-dir", lab.path("gateway-run"), "--state-dir", lab.path("state"))
    gateway = ("target", "--name", "refused", "--link", node.ethernet(lab, "initiator", 1, "packet"), *state)
    waiting = lab.start("initiator", node.BIN, *gateway, *front, "--export", f"big=linear:[{wrong},memory:1M]")
    missing = uri(lab, "a", over="packet", key=lab.path("keys", "missing"))
    for bad, says in (volume, "says no key to show there"), (missing, "keys/missing: no such file"):
        for check_only in (), ("--check",):
            refused(lab, *gateway, *check_only, *front, "--export", f"big=linear:[{bad},memory:1M]",
                    says=["export `big`", bad, says], timeout=5)
    thinwire(lab, *gateway, "--check", *front, "--export", f"big=linear:[{right},memory:1M]")
    middle = Target(lab, f"big=linear:[{right},memory:1M]", name="middle", over="packet", side="initiator",
                    extra=[*front, *state])
    client = Attachment(lab, uri(lab, "big", over="packet", node="middle"), name="big", side="target", extra=front)
    load.verified(lab, client.nbd, mib=16)
    leaf.kill()
    leaf.start()
    load.verified(lab, client.nbd, mib=16, seed=2)
    refused(lab, "bench", uri(lab, "big", over="packet", node="middle"), "--insecure", side="target", says="demands a key")
    client.detach()
    middle.stop()
    said = waiting.wait(30, expect=1).stderr
    check("does not know key" in said and "big" in said, said)


@test(seconds=90)
def two_shards_and_members(lab):
    """An export on two shards, and an attachment with a session on each: all are sealed, and counted to their key; a
    second host that has the same key is another writer."""
    keyed = with_key(lab, "alice")
    volume = uri(lab, over="packet", members=2)
    target = Target(lab, f"disk0={image(lab)},spread", over="packet",
                    extra=[*keyed, "--shards", "2", "--run-dir", lab.path("target-run")])
    disk = Attachment(lab, volume, extra=keyed)
    fio = load.Fio(lab, disk.nbd, mib=32, seconds=4)
    refused(lab, "bench", uri(lab, over="packet"), *keyed, "--rw", "randwrite", "--run-dir", lab.path("other"),
            says=["held", "--take-over"])
    time.sleep(1)
    fio.still_running("the target was killed")
    target.kill().start()
    fio.finish()
    sessions = [s for s in shown(lab)["sessions"] if s["exports"]]
    check(sorted(s["shard"] for s in sessions) == [0, 1], f"{sessions}")
    check({(s["key"]["name"], s["key"]["id"]) for s in sessions} == {("alice", *ids(lab, "alice"))}, f"{sessions}")
    check(disk.status()["suite"] in SUITES["keys"], f"{disk.status()}")
    disk.detach()


@test(seconds=60, each={over: {"over": over} for over in ("packet", "udp", "xdp")})
def target_killed(lab, over):
    """kill -9 of a target with keys under a verified load: greeted anew, sealed with others, and nothing is lost."""
    keyed = with_key(lab, "alice")
    target = Target(lab, f"disk0={image(lab)},writeback", over=over,
                    extra=[*keyed, "--run-dir", lab.path("target-run")])
    disk = Attachment(lab, uri(lab, over=over), extra=keyed)
    fio = load.Fio(lab, disk.nbd, mib=32, seconds=4)
    for _ in range(2):
        time.sleep(0.8)
        fio.still_running("the target was killed")
        target.kill().start()
    fio.finish()
    (session,) = shown(lab)["sessions"]
    check(session["key"]["name"] == "alice" and session["key"]["suite"] in SUITES["keys"], f"{session}")
    check(disk.status()["suite"] == session["key"]["suite"], f"{disk.status()}")
    disk.detach()
