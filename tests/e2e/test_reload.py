"""A target that reads its keys and rights again while it serves: `thinwire reload` and SIGHUP."""

import json
import os
import pty
import re
import select
import signal
import socket
import time

import load
import node
from harness import check, read, run, until
from node import Attachment, Target, chosen, image, refused, thinwire, uri
from registry import test
from test_strangers_local import AS_STRANGER, STRANGER, runnable


class Keyed(Target):
    """A target of a file whose lines a test changes."""

    def __init__(self, lab, *keys, start=True, extra=(), exports=2):
        self.run_dir, self.toml = lab.path("there"), lab.path("target.toml")
        for name in keys:
            new_key(lab, name)
        self.rights = {}
        self.exports = {f"disk{n}": image(lab, f"disk{n}.img") for n in range(exports)}
        self.write(lab, keys)
        # One xdp socket has each of a card's queues, so several shards cannot share one.
        has_shards = "--shards" in extra and extra[extra.index("--shards") + 1] != "1"
        over = "packet" if has_shards and chosen("best") == "xdp" else "best"
        flags = ["--config", self.toml, "--run-dir", self.run_dir, *extra]
        super().__init__(lab, over=over, extra=flags, start=False)
        self.argv = [word for word in self.argv if word != "--insecure"]
        if start:
            self.start()

    def write(self, lab, keys, **more):
        """The file for these keys, with what `more` says."""
        lines = ["key = " + json.dumps([key_path(lab, name) for name in keys])]
        lines += [f"{word} = {json.dumps(value)}" for word, value in more.items()]
        for name, path in self.exports.items():
            lines += ["[[export]]", f'name = "{name}"', f'volume = "{path}"', self.rights.get(name, "")]
        with open(self.toml + ".new", "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        os.rename(self.toml + ".new", self.toml)

    def reload(self):
        """What `thinwire reload --json` says."""
        done = thinwire(self.lab, "reload", "--json", "--run-dir", self.run_dir, side="target")
        return json.loads(done.stdout)

    def refuses(self, *says):
        """`thinwire reload` fails, and says why; so does the log."""
        before = len(self.process.stderr)
        refused(self.lab, "reload", "--run-dir", self.run_dir, side="target", says=[f"{self.name} goes on as before", *says])
        log = self.process.stderr[before:]
        check(all(word in log for word in ("not reloaded", *says)), f"the log does not say {says}: {log}")

    def hang_up(self, says):
        """SIGHUP, and that in the log."""
        before = len(self.process.stderr)
        self.process.kill(signal.SIGHUP)
        until(f"'{says}' in the log", 20, lambda: says in self.process.stderr[before:])

    def status(self):
        done = thinwire(self.lab, "status", "--json", "--run-dir", self.run_dir, side="target")
        return json.loads(done.stdout)["targets"][0]

    def sessions(self):
        """Whose they are, with which keys, sorted."""
        return sorted((session["key"]["name"], session["key"]["id"]) for session in self.status()["sessions"])

    def at_work(self, requests=400):
        until("I/O", 20, lambda: self.status()["counters"]["requests"] > requests)

    def names(self):
        return [name for name, _ in self.sessions()]


class Disk(Attachment):
    """An attachment that shows this key."""

    def __init__(self, lab, key, export, name=None, extra=()):
        self.lab, self.name, self.side, self.run_dir = lab, name or export, "initiator", lab.path("run")
        done = thinwire(lab, "attach", "--key", key, uri(lab, export), "--nbd", f"unix:{lab.path(self.name)}.sock", "--as",
                        self.name, "--run-dir", self.run_dir, *extra)
        self.path = done.stdout.strip()


def key_path(lab, name):
    return lab.path("keys", name)


def new_key(lab, name, *flags):
    """Makes a key on the target; the ids in its file, in order."""
    run(node.BIN, "key", "new", name, "--dir", lab.path("keys"), *flags)
    return ids(key_path(lab, name))


def ids(path):
    return run(node.BIN, "key", "id", path).stdout.split()


def copied(lab, name, to):
    """The key as an initiator has it, in a folder of its own."""
    folder = lab.path(to)
    os.makedirs(folder, exist_ok=True)
    run("install", "-m", "600", key_path(lab, name), folder)
    return os.path.join(folder, name)


SHARDS = {"": {"shards": 1}, "of_two_shards": {"shards": 2}}


@test(seconds=120, each=SHARDS)
def a_key_is_removed_and_given_back(lab, shards):
    """Its session ends within a second and its I/O waits; another's verified load does not notice. Given back, both
    end without an error."""
    target = Keyed(lab, "alice", "bob", extra=["--shards", str(shards)])
    alice, bob = (Disk(lab, key_path(lab, name), disk) for name, disk in (("alice", "disk0"), ("bob", "disk1")))
    loads = [load.Fio(lab, disk.nbd, mib=48, seconds=12, seed=seed) for seed, disk in enumerate((alice, bob))]
    target.at_work()
    check(target.names() == ["alice", "bob"], f"sessions: {target.names()}")
    target.write(lab, ["alice"])
    began = time.monotonic()
    said = target.reload()
    took = time.monotonic() - began
    (removed,) = ids(key_path(lab, "bob"))
    check(said["changes"] == [f"key {removed} of `bob` is removed"] and (said["ended"], said["late"]) == (1, []),
          f"it says {said}")
    check(target.names() == ["alice"], f"bob has a session: {target.sessions()}")
    check(took < 1.0, f"that took {took:.2f} s")
    check([key["name"] for key in target.status()["keys"]] == ["alice"], "status shows its keys as they are")
    until("bob to be away", 30, lambda: bob.status()["state"] == "away")
    until("bob to be refused", 30, lambda: target.status()["drops"].get("unknown-key"))
    time.sleep(1)
    loads[1].still_running("its key was given back")
    check(target.names() == ["alice"] and alice.status()["state"] == "attached", "bob stays out, alice in")
    target.write(lab, ["alice", "bob"])
    target.hang_up(f"reloaded: key {removed} of `bob` is added")
    for fio in loads:
        fio.finish()
    check(target.names() == ["alice", "bob"], f"sessions: {target.sessions()}")
    alice.detach(), bob.detach()


@test(seconds=120)
def a_key_is_rotated(lab):
    """The recipe of docs/security.md under load: no restart, no writer fenced, nobody else disturbed."""
    target = Keyed(lab, "alice", "bob")
    (old,) = ids(key_path(lab, "alice"))
    first, other = Disk(lab, copied(lab, "alice", "host"), "disk0"), Disk(lab, key_path(lab, "bob"), "disk1")
    beside = load.Fio(lab, other.nbd, mib=48, seconds=15, seed=7)
    under = load.Fio(lab, first.nbd, mib=24, seconds=5, seed=8)
    target.at_work()
    _, new = new_key(lab, "alice", "--add")
    said = target.reload()
    check((said["changes"], said["ended"]) == ([f"key {new} of `alice` is added"], 0), f"it says {said}")
    under.still_running("both keys held")
    under.finish()
    # Nothing is undone for who still shows the old one.
    check(("alice", old) in target.sessions(), f"sessions: {target.sessions()}")
    first.detach()
    again = Disk(lab, copied(lab, "alice", "host"), "disk0", name="again")
    check(("alice", new) in target.sessions() and ("alice", old) not in target.sessions(), f"{target.sessions()}")
    under = load.Fio(lab, again.nbd, mib=24, seconds=4, seed=9)
    lines = read(key_path(lab, "alice")).splitlines(keepends=True)
    with open(key_path(lab, "alice"), "w", encoding="utf-8") as file:
        file.write("".join(lines[1:]))
    said = target.reload()
    check((said["changes"], said["ended"]) == ([f"key {old} of `alice` is removed"], 0), f"it says {said}")
    under.finish()
    beside.finish()
    check(target.sessions() == sorted([("alice", new), ("bob", *ids(key_path(lab, "bob")))]), f"{target.sessions()}")
    check(target.status()["counters"]["fenced"] == 0, "nobody was fenced")
    again.detach(), other.detach()


@test(seconds=90)
def rights_change(lab):
    """Who may no longer write is put out, and may read; another may write instead; who writes something else goes
    on."""
    target = Keyed(lab, "alice", "bob")
    alice, bob = (Disk(lab, key_path(lab, name), disk) for name, disk in (("alice", "disk0"), ("bob", "disk1")))
    fio = load.Fio(lab, alice.nbd, mib=24, seconds=6)
    target.rights["disk1"] = 'read_keys = ["bob"]\nkeys = ["alice"]'
    target.write(lab, ["alice", "bob"])
    said = target.reload()
    check(len(said["changes"]) == 1 and "export `disk1` is for keys=alice, read-keys=bob" in said["changes"][0] and
          said["ended"] == 1, f"it says {said}")
    until("bob to be put out", 30, lambda: bob.status()["state"] == "away")
    bob.detach("--force")
    refused(lab, "attach", "--key", key_path(lab, "bob"), uri(lab, "disk1"), "--nbd", f"unix:{lab.path('no.sock')}",
            "--as", "no", "--run-dir", lab.path("run"), says=["read-only"])
    Disk(lab, key_path(lab, "bob"), "disk1", name="reader", extra=["--read-only"]).detach()
    Disk(lab, key_path(lab, "alice"), "disk1", name="writer", extra=["--take-over"]).detach()
    fio.finish()
    # Names of exports, too.
    ask = ("discover", "--link", "udp:" + lab.address("initiator"), "--json") if node.MODE.get("link") == "udp" else \
        ("discover", "--link", "eth1", "--json")
    shown = lambda: "disk1" in lab.run("initiator", node.BIN, *ask, check_exit=False).stdout
    check(not shown(), "names are told to those with a key only")
    target.write(lab, ["alice", "bob"], announce=True)
    check(target.reload()["changes"] == ["names of exports are told to everybody"], "announce is on")
    check(shown(), "names are told to everybody")
    alice.detach()


@test(seconds=120, each=SHARDS)
def limits_change(lab, shards):
    """Lowered below what is in use, under verified load: nobody is put out, who comes new is refused by name, and comes in
    once the limit is raised. What the machine has not, and no limit, is refused, with all else that was changed."""
    target = Keyed(lab, "alice", "bob", extra=["--shards", str(shards)])
    disks = [Disk(lab, key_path(lab, "alice"), f"disk{n}", name=f"{side}{n}", extra=extra)
             for n in range(2) for side, extra in (("w", ()), ("r", ("--read-only",)))]
    loads = [load.Fio(lab, disk.nbd, mib=32, seconds=7, seed=seed) for seed, disk in enumerate(disks[::2])]
    target.at_work()
    before = target.sessions()

    def limits(keys=("alice", "bob"), **values):
        target.write(lab, keys)
        lines = ["[limits]"] + [f"{name.replace('_', '-')} = {json.dumps(value)}" for name, value in values.items()]
        with open(target.toml, "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def comes_new(says=None):
        words = ("attach", "--key", key_path(lab, "alice"), uri(lab, "disk0"), "--nbd", f"unix:{lab.path('new.sock')}",
                 "--as", "new", "--read-only", "--run-dir", lab.path("run"))
        return refused(lab, *words, says=says) if says else thinwire(lab, *words)

    limits(sessions_per_key=1)
    said = target.reload()
    check((said["changes"], said["ended"]) == (["limit sessions-per-key is 1 sessions; it was 512"], 0), f"it says {said}")
    check(target.status()["limits"]["sessions-per-key"]["value"] == 1, "status shows the limits as they are")
    comes_new(says="limit sessions-per-key is 1 sessions")
    for refusal, values in (("is no limit", {"sesions": 3}), ("from 1 to 1024", {"sessions": 0}),
                            ("the target may take", {"memory": 1 << 50})):
        limits(keys=("alice",), **values)
        target.refuses(refusal)
    limits(sessions_per_key=1)
    check(target.reload()["changes"] == [], "nothing of what was refused holds")
    comes_new(says="limit sessions-per-key is 1 sessions")
    limits(sessions_per_key=100)
    target.hang_up("reloaded: limit sessions-per-key is 100 sessions; it was 1")
    comes_new()
    thinwire(lab, "detach", "new", "--run-dir", lab.path("run"))
    for fio in loads:
        fio.finish()
    check(target.sessions() == before, f"sessions were {before}, and are {target.sessions()}")
    for disk in disks:
        disk.detach()


@test(seconds=120)
def what_cannot_be_applied_changes_nothing(lab):
    """Broken files, keys and what needs a restart, each with a key removed beside it: refused by name by the command
    and in the log; the key still holds, and so do all sessions under load."""
    target = Keyed(lab, "alice", "bob")
    disks = [Disk(lab, key_path(lab, name), disk) for name, disk in (("alice", "disk0"), ("bob", "disk1"))]
    loads = [load.Fio(lab, disk.nbd, mib=32, seconds=5, seed=seed) for seed, disk in enumerate(disks)]
    before = target.sessions()
    good, key = read(target.toml), read(key_path(lab, "alice"))

    def broken(text, *says):
        with open(target.toml, "w", encoding="utf-8") as file:
            file.write(text)
        target.refuses(*says)

    def without_bob(**more):
        target.write(lab, ["alice"], **more)
        return read(target.toml)

    broken(without_bob() + "shards = two\n", "target.toml:")
    broken(without_bob() + "[[export]]\n", "target.toml:", "missing key")
    broken(without_bob() + "colour = 3\n", "target.toml:", "colour")
    broken(without_bob(shards=2), "only a restart can change", "shards (1, now 2)")
    broken(without_bob(authenticate_only=True), "only a restart can change", "authenticate_only (false, now true)")
    broken(without_bob(link=["udp:127.0.0.1:40001"]), "links (")
    more = '[[export]]\nname = "more"\nvolume = "%s"\n'
    broken(without_bob() + more % "linear:[memory:1M,memory:1M]", "export `more` (it is new, and made of other volumes")
    broken(without_bob() + more % "memory:1M" + "spread = true\n", "export `more` (it is new, and spread")
    broken(without_bob() + more % lab.path("missing.img"), "missing.img", "no such file")
    broken(without_bob() + more % lab.path("disk0.img"), "disk0", "two writers would destroy it")
    broken(without_bob().replace("disk1.img", "disk2.img") + more % "memory:1M", "disk2.img", "no such file")
    broken(without_bob() + "block = 4096\n", "export `disk1` (its block;")
    broken(without_bob().split("[[export]]\nname = \"disk1\"")[0] + "shards = two\n", "target.toml:")
    broken(re.sub("^key.*$", "insecure = true", without_bob(), flags=re.M), "insecure (false, now true)")
    broken(re.sub("^key.*$", "", without_bob(), flags=re.M), "the last key is gone")
    broken(without_bob() + 'keys = ["thinwire-test-nobody"]\n', "export `disk1`", "thinwire-test-nobody")
    without_bob()
    for mode, content, *says in ((0o644, key, "chmod 600"), (0o600, "", "no key in it"), (0o600, key + "x", "line 2"),
                                 (0o600, key + key, "twice"), (0o600, None, "no such file")):
        os.remove(key_path(lab, "alice"))
        if content is not None:
            with open(key_path(lab, "alice"), "w", encoding="utf-8") as file:
                file.write(content)
            os.chmod(key_path(lab, "alice"), mode)
        target.refuses("keys/alice", *says)
        with open(key_path(lab, "alice"), "w", encoding="utf-8") as file:
            file.write(key)
        os.chmod(key_path(lab, "alice"), 0o600)
    for make, says in ((os.mkdir, "target.toml"), (os.mkfifo, "plain file"), (lambda path: None, "No such file")):
        os.remove(target.toml) if os.path.isfile(target.toml) else None
        make(target.toml)
        target.refuses(says)
        target.hang_up("not reloaded")
        if os.path.isdir(target.toml):
            os.rmdir(target.toml)
        elif os.path.exists(target.toml):
            os.remove(target.toml)
    # As it was, nothing has changed.
    with open(target.toml, "w", encoding="utf-8") as file:
        file.write(good)
    check(target.reload() == {"schema": 2, "node": target.name, "changes": [], "ended": 0, "late": [], "leaving": []},
          "nothing changed")
    for fio in loads:
        fio.finish()
    check(target.sessions() == before, f"sessions were {before}, and are {target.sessions()}")
    for disk in disks:
        disk.detach()
    # Who may not, and whom.
    refused(lab, "reload", "nobody", "--run-dir", target.run_dir, side="target", says=["`nobody`", target.name])
    refused(lab, "reload", "--run-dir", lab.path("elsewhere"), side="target", says="there is none")
    os.chmod(lab.dir, 0o755)
    done = lab.run("target", *AS_STRANGER, runnable(lab), "reload", "--run-dir", target.run_dir, check_exit=False)
    check(done.returncode == 1 and "no permission" in done.stderr, f"a stranger reloads: {done.stderr}")


@test(seconds=120, each=SHARDS)
def a_storm_of_reloads(lab, shards):
    """A hundred in a row, with a key that comes and goes and SIGHUPs between, under verified load: no session ends,
    nothing is lost, and the last one holds."""
    target = Keyed(lab, "alice", "bob", extra=["--shards", str(shards)])
    new_key(lab, "carol")
    disks = [Disk(lab, key_path(lab, name), disk) for name, disk in (("alice", "disk0"), ("bob", "disk1"))]
    before = target.sessions()
    loads = [load.Fio(lab, disk.nbd, mib=48, seconds=8, seed=seed) for seed, disk in enumerate(disks)]
    for count in range(100):
        target.write(lab, ["alice", "bob", "carol"][:3 if count % 2 == 0 else 2])
        if count % 5 == 0:
            target.process.kill(signal.SIGHUP)
        said = target.reload()
        check((said["ended"], said["late"]) == (0, []), f"reload {count} says {said}")
    for fio in loads:
        fio.still_running("the storm was over")
    for fio in loads:
        fio.finish()
    check(target.sessions() == before, f"sessions were {before}, and are {target.sessions()}")
    counters = target.status()["counters"]
    check((counters["sessions"], counters["fenced"]) == (2, 0), f"sessions were lost: {counters}")
    check([key["name"] for key in target.status()["keys"]] == ["alice", "bob"], "the last one holds")
    for disk in disks:
        disk.detach()


@test()
def systemd_is_told(lab):
    """Type=notify-reload: RELOADING=1 with the time, then READY=1, whether it was refused or not."""
    path = lab.path("notify")
    heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.bind(path)
    heard.settimeout(20)
    os.environ["NOTIFY_SOCKET"] = path
    try:
        target = Keyed(lab, "alice")
    finally:
        del os.environ["NOTIFY_SOCKET"]
    check(heard.recv(999) == b"READY=1", "it is ready")
    for text in (read(target.toml), "broken"):
        with open(target.toml, "w", encoding="utf-8") as file:
            file.write(text)
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        target.process.kill(signal.SIGHUP)
        said = heard.recv(999).decode()
        found = re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=(\d+)", said)
        check(found and before <= int(found[1]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000, f"it says {said}")
        check(heard.recv(999) == b"READY=1", "it is ready again")
    target.stop()


@test()
def the_terminal_goes(lab):
    """SIGHUP because the terminal was closed ends a target in order, as before; another does not."""
    target = Keyed(lab, "alice", start=False)
    pid, terminal = pty.fork()
    if pid == 0:
        argv = lab.enter("target") + target.argv
        os.execvp(argv[0], argv)
    heard = ""

    def says(word):
        nonlocal heard
        while select.select([terminal], [], [], 0)[0]:
            heard += os.read(terminal, 999).decode()
        return word in heard
    try:
        until("ready", 20, lambda: says("ready"))
        with open(target.toml, "w", encoding="utf-8") as file:
            file.write("broken")
        os.kill(pid, signal.SIGHUP)
        until("a refusal", 20, lambda: says("not reloaded"))
        os.close(terminal)
        until("its end", 20, lambda: os.waitpid(pid, os.WNOHANG) == (pid, 0))
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise


@test()
def a_user_who_may_not_read_a_file_any_more(lab):
    """A target of an ordinary user whose key became root's: the refusal names the file and the user."""
    program = runnable(lab)
    run_dir = lab.path("theirs")
    os.chmod(lab.dir, 0o755)
    os.mkdir(run_dir)
    new_key(lab, "alice")
    for path in (lab.path("keys"), key_path(lab, "alice"), run_dir):
        os.chown(path, STRANGER, STRANGER)
    argv = ["target", "--key", key_path(lab, "alice"), "--name", node.NODE, "--link", "udp:" + lab.address("target"),
            "--export", "disk0=memory:1M", "--run-dir", run_dir, "--state-dir", run_dir]
    process = lab.start("target", *AS_STRANGER, program, *argv, name="theirs")
    until("ready", 20, lambda: "ready" in process.stdout)
    again = [*AS_STRANGER, program, "reload", "--run-dir", run_dir]
    says = ["goes on as before", key_path(lab, "alice"), f"the user of this process, {STRANGER}"]
    for path in (key_path(lab, "alice"), lab.path("keys")):
        os.chown(path, 0, 0)
        said = lab.run("target", *again, check_exit=False)
        check(said.returncode == 1 and all(word in said.stderr for word in says), f"it says {said.stderr}")
        check(said.stderr.split("before: ")[1].strip() in process.stderr, f"and in the log: {process.stderr}")
        os.chown(path, STRANGER, STRANGER)
    done = lab.run("target", *again)
    check(done.stdout == f"{node.NODE}: nothing has changed\n", f"it says {done.stdout}")
    process.kill(signal.SIGTERM)
    process.wait(10)
