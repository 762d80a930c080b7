"""A world to murder in: a target, in every second a gateway, an NBD face with a load of sectors, a block device with a
file system and loads in it. What it is made of is drawn from a seed."""

import os
import signal
from dataclasses import asdict, dataclass

import node
from harness import Failure, check, processes_in, run, signal_quietly, until
from node import Attachment, Target, below, image, uri
from test_block import FSCK, MKFS, mount

from . import clock
from .databases import postgres_folder
from .loads import ANSWER_S, BlockLoad, DatabaseLoad

# The disk of the NBD face, and the file in the file system. All of either is compared behind each murder.
SECTORS = 16384
FILE_SECTORS = 8192
SYSTEM_MIB = 512
# Room for the image of the NBD face, and what fills it.
SMALL_MIB = 48
START_S = 120
NODE, MIDDLE = node.NODE, "middle"


@dataclass
class Draw:
    """What a world is made of."""

    over: str
    security: str
    links: int
    shards: int
    wrapper: str            # behind the export of the NBD face
    system: str             # the file system, or nothing
    has_gateway: bool
    postgres: bool
    rate: float             # things a second of each load

    @classmethod
    def by(cls, chance, number, systems=("ext4", "xfs"), is_short=False):
        """The world of this number: links come in turn, and a gateway in every second."""
        over = node.LINKS[number % len(node.LINKS)]
        return cls(
            over=over,
            security=chance.choice(node.SECURITIES),
            # An interface has room for one `xdp`, and two processes here attach.
            links=1 if over == "xdp" else chance.choice((1, 2)),
            # An xdp link is one shard's.
            shards=1 if over == "xdp" else chance.choice((1, 2)),
            wrapper=chance.choice(("", ",writeback", ",buffered", ",cache=4M")),
            system=chance.choice(systems),
            has_gateway=number % 2 == 0,
            postgres=not is_short and chance.random() < 0.5 and postgres_folder() is not None,
            rate=150.0 if is_short else 400.0)

    def __str__(self):
        return " ".join(f"{key}={value}" for key, value in asdict(self).items() if value not in ("", False))


class World:
    def __init__(self, lab, draw, chance):
        self.lab, self.draw, self.chance = lab, draw, chance
        node.MODE.update(security=draw.security, link=draw.over)
        self.side = "target" if draw.has_gateway else "initiator"
        self.loads, self.on_face = [], []
        self.face = self.gateway = self.folder = None
        self.clock = clock.Clock(lab)
        self.seed = chance.getrandbits(32)
        self.small = self.small_system()
        self.image = image(lab, "small/disk0.img", SECTORS // 2048)
        exports = [f"disk0={self.image}{draw.wrapper}", f"spare={image(lab, 'spare.img', 4)}"]
        if draw.system:
            exports.append(f"disk1={image(lab, 'disk1.img', SYSTEM_MIB)},writeback")
        self.serve(exports, ["--shards", draw.shards] if draw.shards > 1 else [])
        if draw.has_gateway:
            self.gateway = self.make(MIDDLE, "initiator", [f"{e.split('=')[0]}={below(lab, e.split('=')[0])}"
                                                           for e in exports])
            self.gateway.start(timeout=START_S)
        self.nbd = self.attach("disk0", "nbd")
        self.blocks = BlockLoad(lab, "disk0", self.side, "nbd", self.nbd.path, SECTORS, 1, self.seed, rate=draw.rate)
        self.loads.append(self.blocks)
        if draw.system:
            self.furnish()

    # -- what it is made of

    def small_system(self):
        """A small file system of its own, so that it can be filled."""
        folder = self.lab.path("small")
        os.mkdir(folder)
        run("mkfs.ext4", "-q", "-F", image(self.lab, "small.img", SMALL_MIB))
        run("mount", "-o", "loop", self.lab.path("small.img"), folder)
        return folder

    def make(self, name, side, exports, flags=()):
        # By itself it lets in no more than half of the machine's memory could be used by.
        own = ("--run-dir", self.lab.path(f"run-{name}"), "--state-dir", self.lab.path(f"state-{name}"), "--limit",
               "memory=100G")
        target = Target(self.lab, *exports, name=name, side=side, extra=(*own, *map(str, flags)), start=False)
        target.argv = self.clock.prefix + target.argv
        return target

    def serve(self, exports, flags):
        """The target, from now on with these."""
        self.exports = exports
        self.target = self.make(NODE, "target", exports, flags)
        self.target.start(timeout=START_S)

    def volume(self, export):
        if not self.gateway:
            return uri(self.lab, export)
        links = range(1, self.lab.links + 1)
        if self.draw.over == "udp":
            more = "&".join(f"link=udp:{self.lab.address('target', link)}" for link in links)
            return f"tw+udp://{self.lab.address('initiator')}/{export}" + (f"?{more}" if self.lab.links > 1 else "")
        # The target has the one `xdp` of its interface.
        return f"tw://{MIDDLE}/{export}?" + "&".join(f"link=packet:eth{link}" for link in links)

    def attach(self, export, face, *extra, name=None):
        """Attaches an export, also while something else keeps its target away."""
        return Attachment(self.lab, self.volume(export), face=face, name=name or export, extra=("--wait", *extra),
                          timeout=ANSWER_S, side=self.side, env=self.clock.environment)

    def furnish(self):
        """A file system on a block device, and those who write in it."""
        lab, draw = self.lab, self.draw
        self.face = self.attach("disk1", "block")
        run(*MKFS[draw.system], self.face.path, timeout=START_S)
        self.folder = mount(lab, self.face.path)
        mode = self.chance.choice(("wal", "delete"))
        self.on_face = [
            BlockLoad(lab, "file", self.side, "file", f"{self.folder}/file", FILE_SECTORS, 2, self.seed + 1, hands=2,
                      rate=draw.rate / 4),
            DatabaseLoad(lab, "sqlite", self.side, "sqlite", f"{self.folder}/sqlite", mode=mode, rate=draw.rate / 8)]
        if draw.postgres:
            self.on_face.append(DatabaseLoad(lab, "postgres", self.side, "postgres", f"{self.folder}/postgres"))
        self.loads += self.on_face

    def pid(self, attachment):
        """The process that carries an attachment."""
        for pid in processes_in(self.lab.netns(self.side)):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().decode(errors="replace").split("\0")
                if os.path.samefile(f"/proc/{pid}/exe", node.BIN) and {attachment.run_dir, attachment.name} <= set(words):
                    return pid
            except OSError:
                continue
        raise Failure(f"no process carries the attachment '{attachment.name}'")

    @property
    def servers(self):
        return [self.target, *([self.gateway] if self.gateway else [])]

    # -- what murders do to it

    def replace_nbd(self, kill):
        """The attachment with the NBD face is killed, and made anew. What it shows that it must not."""
        self.blocks.ask("expect_cut")
        kill(self.pid(self.nbd))
        self.blocks.ask("release")
        self.nbd = self.attach("disk0", "nbd")
        return self.blocks.ask("reconnect", disk=self.nbd.path)

    def replace_face(self, kill):
        """That with the block device is killed under its file system, and made anew."""
        for load in self.on_face:
            load.ask("expect_cut")
        kill(self.pid(self.face))
        for load in self.on_face:
            load.ask("release")
        until("the file system without a disk is let go of", 60,
              lambda: run("umount", self.folder, check_exit=False).returncode == 0, every=0.2)
        self.face = self.attach("disk1", "block")
        run("mount", self.face.path, self.folder, timeout=START_S)
        return [f"{load.name}: {bad}" for load in self.on_face
                for bad in load.ask("reconnect", disk=f"{self.folder}/{load.name}")]

    # -- what must hold

    def check_it_lives(self):
        """Whoever was not murdered is there, and the file system is writable."""
        for server in self.servers:
            check(server.process.running, f"{server.name} ended by itself, {server.process.popen.returncode}\n"
                                          f"{server.process.stderr[-2000:]}")
        if self.folder:
            with open("/proc/self/mounts", encoding="utf-8") as file:
                line = next((line for line in file if line.split()[1] == self.folder), "")
            check("rw" in line.split()[3].split(","), f"the file system is read-only: {line}")

    def finish(self):
        """All ends in order: what the images hold then must be the newest of all."""
        bad = []
        for load in self.loads:
            bad += [f"{load.name}: {text}" for text in load.ask("verify")]
            load.end()
        if self.folder:
            run("umount", self.folder, timeout=START_S)
            # Somebody else on this machine, in a mount namespace that was made meanwhile, may have it mounted still.
            until("the block device is let go of", ANSWER_S, lambda: not self.face.detach(expect=None, timeout=60).returncode,
                  every=1)
        self.nbd.detach(timeout=60)
        for server in self.servers[::-1]:
            server.stop()
        bad += [f"the image of disk0: {text}" for text in self.blocks.at_rest(self.image)]
        if self.folder:
            bad += self.check_file_system()
        self.lab.check_nothing_was_refused()
        for process in self.lab.processes:
            check("panicked" not in process.stderr, f"{process}:\n{process.stderr[-3000:]}")
        return bad

    def check_file_system(self):
        """What is in the image, without any of us."""
        path, kind = self.lab.path("disk1.img"), self.draw.system
        done = run(*FSCK[kind], path, check_exit=False, timeout=START_S)
        bad = [] if done.returncode == 0 else [f"{' '.join(FSCK[kind])}: exit {done.returncode}\n{done.stdout[-2000:]}"]
        run("mount", "-o", "loop,ro", path, self.folder)
        bad += [f"the file in the image of disk1: {text}" for text in self.on_face[0].at_rest(f"{self.folder}/file")]
        run("umount", self.folder)
        return bad

    def wake(self):
        """Whatever state it is in: nobody stays stopped, so that all can be ended."""
        for side in "initiator", "target":
            for pid in processes_in(self.lab.netns(side)):
                signal_quietly(pid, signal.SIGCONT)
