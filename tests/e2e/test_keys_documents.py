"""Keys as README.md and docs/security.md tell of them: their command lines, as they stand there, on two sides that have
a /etc/thinwire, a /srv and a /run of their own; and the recipe by which a key is changed."""

import json
import os
import re

import load
import node
from harness import check, read, run, until
from node import image
from registry import test

# The user `thinwire` of the documents.
USER = 64999
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def lines_of(document):
    """The command lines about keys in a document, each as a shell takes it."""
    text = read(os.path.join(ROOT, document)).replace("\\\n", " ")
    found = [re.sub(r"\s+#.*|\s+(?=\s)", "", line[4:]).strip() for line in text.splitlines()
             if re.match(r"    (thinwire|scp) ", line)]
    return {line for line in found if re.search(r"\bkeys?\b", line)}


class House:
    """A side with a file system of its own where the documents name places."""

    def __init__(self, lab, side):
        self.lab, self.side = lab, side
        self.at = lambda *parts: lab.path(f"house-{side}", *parts)
        os.makedirs(self.at("srv"))
        os.makedirs(self.at("here"))
        os.makedirs(self.at("run"))
        os.makedirs(self.at("var", "lib"))
        os.makedirs(self.at("bin"))
        os.symlink(node.BIN, self.at("bin", "thinwire"))
        run("cp", "-a", "/etc", self.at("etc"))
        for file, line in ("passwd", f"thinwire:x:{USER}:{USER}::/nonexistent:/bin/false"), ("group", f"thinwire:x:{USER}:"):
            with open(self.at("etc", file), "a", encoding="utf-8") as known:
                known.write(line + "\n")
        # Slaves: what others unmount is unmounted here, too.
        script = " && ".join(f"mount --bind {self.at(place)} /{place}" for place in ("etc", "srv", "run", "var/lib"))
        self.holder = lab.start(side, "unshare", "--mount", "--propagation", "slave", "sh", "-c",
                                f"{script} && echo up && exec sleep 600", name="house")
        until("a house", 10, lambda: "up" in self.holder.stdout)
        self.target = None

    def argv(self, line):
        return ("nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt", "sh", "-c",
                f"cd {self.at('here')} && PATH={self.at('bin')}:$PATH exec {line}")

    def runs(self, line, timeout=40):
        """What a line prints."""
        return self.lab.run(self.side, *self.argv(line), timeout=timeout).stdout

    def serves(self, line, name="node1"):
        """Starts the target of a line, in place of the one before."""
        self.ends()
        self.target = self.begins(line, name)

    def begins(self, line, name):
        process = self.lab.start(self.side, *self.argv(line), name=f"target-{name}")
        until(f"ready {name}: {line}", 20, lambda: f"ready {name}\n" in process.stdout or not process.running)
        check(process.running, f"{line}: {process.stderr}")
        return process

    def ends(self):
        if self.target:
            self.target.kill(15)
            self.target.wait(10)
            self.target = None

    def image(self, name, mib=16):
        return image(self.lab, os.path.relpath(self.at("srv", name), self.lab.dir), mib)


def keys_copied(one, other):
    """What `scp` does."""
    os.makedirs(other.at("etc/thinwire/keys"), exist_ok=True)
    run("cp", "-p", *[one.at("etc/thinwire/keys", name) for name in os.listdir(one.at("etc/thinwire/keys"))],
        other.at("etc/thinwire/keys"))


def labelled(host, take):
    """The volume whose parts have labels, which are not blank here."""
    text = read(f"{ROOT}/README.md")
    (described,) = re.findall(r"\n\n((?:    .*\n)*    labels = true\n(?:    .*\n)*)", text)
    with open(host.at("here/pool.toml"), "w", encoding="utf-8") as file:
        file.write(re.sub(r"^    ", "", described, flags=re.M))
    create, attach = re.findall(r"^    \$ (thinwire .* pool\.toml#wide.*)$", text, re.M)
    host.runs(f"{create} --force")
    face = host.runs(attach).strip()
    host.runs(f"dd if=/dev/urandom of={face} bs=1M count=4 oflag=direct status=none")
    host.runs("thinwire detach wide")
    found = host.runs(take("thinwire volume assemble --key alice 'tw://node2/disk1?link=eth1' 'tw://node1/disk0?link=eth1'"))
    children = re.search(r"children = .*", described)
    check(children[0].strip() in found, f"{found} does not describe it as {described}")


@test(seconds=120, links=2)
def as_they_are_written(lab):
    """Each command line about keys in README.md works, on the side where it belongs."""
    left = lines_of("README.md")
    disk, host = House(lab, "target"), House(lab, "initiator")
    for house, address in (disk, "10.0.0.2"), (host, "10.0.0.1"):
        lab.run(house.side, "ip", "addr", "add", f"{address}/24", "dev", "eth1")
        for name in "disk0.img", "disk1.img", "disk2.img", "golden.img":
            house.image(name)

    def take(line, shorter=""):
        check(line in left, f"README.md has no such line: {line}")
        left.discard(line)
        return line + shorter

    told = disk.runs(take("thinwire key new alice"))
    check(told == "/etc/thinwire/keys/alice\n", told)
    keys_copied(disk, host)

    def attached(line, name="disk0", by=host):
        """Attaches, uses it, and detaches."""
        face = by.runs(take(line)).strip()
        if face.startswith("/dev/"):
            by.runs(f"dd if=/dev/urandom of={face} bs=1M count=4 oflag=direct status=none")
        else:
            by.runs(f"nbdinfo --size 'nbd+unix:///?socket={face}'")
        by.runs(f"thinwire detach {name}")

    disk.serves(take("thinwire target --key alice --name node1 --link eth1 --export disk0=/srv/disk0.img"))
    found = host.runs(take("thinwire discover --link eth1 --key alice"))
    check(found.splitlines()[1].split() == ["node1", "02-00-00-00-01-02", "disk0"], found)
    attached("thinwire attach --key alice 'tw://node1/disk0?link=eth1' --block")
    attached("thinwire attach --key alice 'tw://node1/disk0?link=eth1' --nbd unix:/run/disk0.sock")
    # Several volumes, of two targets; then a gateway in between, and a volume that a file describes.
    second = disk.begins("thinwire target --key alice --name node2 --link eth1 --export disk1=/srv/disk1.img", "node2")
    attached("thinwire attach --key alice 'linear:[tw://node1/disk0?link=eth1,tw://node2/disk1?link=eth1]' --as both "
             "--block", "both")
    attached("thinwire attach --key alice 'stripe:[tw://node1/disk0?link=eth1,tw://node2/disk1?link=eth1]?chunk=128K' "
             "--as wide --block", "wide")
    labelled(host, take)
    host.serves(take("thinwire target --key alice --name middle --link eth2 --export 'big=linear:["
                     "tw://node1/disk0?link=eth1&key=alice,tw://node2/disk1?link=eth1&key=alice,/srv/disk2.img]'"),
                "middle")
    attached("thinwire attach --key alice 'tw://middle/big?link=eth2' --block", "big", disk)
    host.ends()
    block = r"\n\n((?:    .*\n|\n)*    children = .*key=.*\n(?:    .*\n|\n)*)"
    (described,) = re.findall(block, read(f"{ROOT}/README.md"))
    with open(host.at("etc/thinwire/target.toml"), "w", encoding="utf-8") as file:
        file.write(re.sub(r"^    ", "", described, flags=re.M))
    host.runs("thinwire target --config /etc/thinwire/target.toml --check")
    host.runs(take("thinwire bench --key alice /etc/thinwire/target.toml#big --rw randread", " --runtime 0.2"))
    second.end()
    for more in ",cache=4G", ",buffered":
        disk.serves(take(f"thinwire target --key alice --name node1 --link eth1 --export disk0=/srv/disk0.img{more}"))
    disk.serves(take("thinwire target --key alice --name node1 --link eth1 --shards 2 --export "
                     "golden=/srv/golden.img,spread"))
    host.runs("thinwire bench --key alice 'tw://node1/golden?link=eth1&members=2' --rw randread --runtime 0.2")
    disk.serves(take("thinwire target --key alice --name node1 --link udp:10.0.0.2 --export disk0=/srv/disk0.img"))
    attached("thinwire attach --key alice tw+udp://10.0.0.2/disk0 --nbd unix:/run/disk0.sock")
    disk.serves(take("thinwire target --key alice --name node1 --link eth1 --link eth2 --export disk0=/srv/disk0.img"))
    attached("thinwire attach --key alice 'tw://node1/disk0?link=eth1&link=eth2' --block")
    disk.serves(take("thinwire target --key alice --name node1 --link eth1 --export disk0=/srv/disk0.img --user thinwire"))
    host.runs("thinwire bench --key alice 'tw://node1/disk0?link=eth1' --rw randrw --runtime 0.2")
    disk.serves(take("thinwire target --key alice --name node1 --link eth1 --link udp:10.0.0.2 --export "
                     "disk0=/srv/disk0.img --export scratch=memory:4G"))
    short = " --runtime 0.2"
    host.runs(take("thinwire bench --key alice 'tw://node1/scratch?link=eth1' --rw randread --bs 4k --iodepth 32 "
                   "--runtime 5").removesuffix(" --runtime 5") + short)
    host.runs(take("thinwire bench --key alice tw+udp://10.0.0.2/scratch --rw randrw --verify --json", short))
    host.runs(take("thinwire bench --key alice 'tw://node1/scratch?link=eth1' --breakdown", short))
    with open(host.at("here/disk.img"), "wb") as file:
        file.write(os.urandom(16 << 20))
    host.runs(take("thinwire copy --key alice disk.img 'tw://node1/disk0?link=eth1' --verify"))
    host.runs(take("thinwire copy --key alice tw+udp://10.0.0.2/disk0 backup.img"))
    run("cmp", host.at("here/disk.img"), host.at("here/backup.img"))
    check(not left, "README.md has lines that are not tried: " + "\n".join(sorted(left)))


class Writing(load.Fio):
    """A verified load on an attachment of a house."""

    def __init__(self, lab, socket, **options):
        super().__init__(lab, f"nbd+unix:///?socket={socket}", **options)


CLIENT = "import nbd, sys\nh = nbd.NBD()\nh.connect_uri(sys.argv[1])\n"
WRITE = CLIENT + "h.pwrite(b'not flushed.'.ljust(512, b'.'), 40 << 20)"
READ = CLIENT + "print(bytes(h.pread(12, 40 << 20)).decode())"


@test(seconds=120)
def a_key_is_changed(lab):
    """The recipe of docs/security.md, step by step, while a verified load goes on: nobody is fenced, nothing is lost,
    and in the end the old key opens nothing. Then somebody is locked out, and everybody else goes on."""
    left = lines_of("docs/security.md")
    disk, host = House(lab, "target"), House(lab, "initiator")
    disk.image("disk0.img", 64)
    disk.image("shared.img")

    def take(line):
        check(line in left, f"docs/security.md has no such line: {line}")
        left.discard(line)
        return line

    check(disk.runs(take("thinwire key new alice")) == "/etc/thinwire/keys/alice\n", "it prints the path")
    disk.runs("thinwire key new bob")
    check(take("scp target:/etc/thinwire/keys/alice /etc/thinwire/keys/alice"), "which needs no ssh here")
    keys_copied(disk, host)
    serve = take("thinwire target --key alice --key bob --link eth1 --export disk0=/srv/disk0.img,keys=alice,"
                 "read-keys=bob --export shared=/srv/shared.img").replace("--link eth1", "--name node1 --link eth1")
    checked = take("thinwire attach --key alice 'tw://node1/disk0?link=eth1&integrity=on' --nbd unix:/run/disk0.sock")
    check(not left, f"docs/security.md has lines that are not tried: {left}")
    disk.serves(serve)
    host.runs(checked)
    check("checked end to end" in host.runs("thinwire status disk0"), "its status says so")
    host.runs("thinwire detach disk0")
    attach = "thinwire attach --key {} 'tw://node1/{}?link=eth1' --nbd unix:/run/{}.sock --as {} {}"
    alice = attach.format("alice", "disk0", "alice", "alice", "")
    host.runs(alice)
    host.runs(attach.format("bob", "shared", "bob", "bob", "--run-dir /run/bob"))
    sockets = {name: host.at("run", f"{name}.sock") for name in ("alice", "bob")}
    clients = lambda name: f"nbd+unix:///?socket={sockets[name]}"

    def found():
        return json.loads(disk.runs("thinwire status --json"))["targets"][0]

    def pid_of(name):
        (one,) = json.loads(host.runs(f"thinwire status {name} --json"))["attachments"]
        check(one["pid"] > 1, f"{one}")
        return one["pid"]

    def used():
        """The ids of the key of the sessions that the attachment `alice` has."""
        mine = f"(pid {pid_of('alice')})"
        return [s["key"]["id"] for s in found()["sessions"] if mine in s["initiator"] and s["exports"]]
    (old,) = disk.runs("thinwire key id alice").split()
    check(used() == [old], f"{used()}")

    # 1. Another key, and the target's next start.
    fio = Writing(lab, sockets["alice"], mib=24, seconds=4)
    disk.runs("thinwire key new alice --add")
    one, new = disk.runs("thinwire key id alice").split()
    check(one == old, "they are in the order of the file")
    fio.still_running("the target was started again")
    disk.serves(serve)
    until("the session is back", 10, lambda: used() == [old])
    fio.finish()
    check(found()["keys"][0] == {"name": "alice", "ids": [old, new]}, f"{found()['keys']}")
    # 2. Copied, and attached anew. What was not flushed is the writer's who comes back, also if it was killed.
    lab.run("initiator", "/usr/bin/python3", "-c", WRITE, clients("alice"))
    keys_copied(disk, host)
    stranger = "thinwire bench --key alice 'tw://node1/disk0?link=eth1' --rw randwrite --run-dir /run/other"
    held = lab.run("initiator", *host.argv(stranger), check_exit=False)
    check(held.returncode == 1 and "held" in held.stderr, f"another host with it is another writer: {held.stderr}")
    pid = pid_of("alice")
    os.kill(pid, 9)
    until("it is gone", 10, lambda: not os.path.exists(f"/proc/{pid}"))
    host.runs(alice)
    seen = lab.run("initiator", "/usr/bin/python3", "-c", READ, clients("alice")).stdout
    check(seen == "not flushed.\n", f"what it wrote is there: {seen}")
    check(used() == [new], f"{found()['sessions']}")
    check("shows key alice" in host.runs("thinwire status"), "its status says which")
    # 3. The old one goes.
    fio = Writing(lab, sockets["alice"], mib=24, seconds=4, seed=2)
    run("cp", "-p", disk.at("etc/thinwire/keys/alice"), host.at("here/old"))
    for house in disk, host:
        house.runs("sed -i 1d /etc/thinwire/keys/alice")
    run("sed", "-i", "2d", host.at("here/old"))
    fio.still_running("the target was started again")
    disk.serves(serve)
    refused = lab.start("initiator", *host.argv("thinwire bench --key ./old 'tw://node1/disk0?link=eth1'"))
    fio.finish()
    check(used() == [new] and found()["keys"][0]["ids"] == [new], f"{found()}")
    check(found()["counters"]["fenced"] == 0, f"{found()['counters']}")

    # Locked out: bob's file is not given any more.
    disk.serves(serve.replace("--key bob ", "").replace(",read-keys=bob", ""))
    load.verified(lab, clients("alice"), mib=8, seed=3)
    shown = until("bob is told why", 15, lambda: (one := host.runs("thinwire status bob --run-dir /run/bob"))
                  and "does not know key" in one and one)
    check(" away " in shown, shown)
    check(old in refused.wait(30, expect=1).stderr, f"who shows the old key is told so: {refused.stderr}")
    host.runs("thinwire detach bob --force --run-dir /run/bob")
    host.runs("thinwire detach alice")
