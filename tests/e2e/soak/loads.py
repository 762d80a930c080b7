"""The runner's end of a load: starts it, tells it what to do, and judges a disk at rest from its journal alone."""

import json
import os
import socket

from harness import Failure, check, tail, until

from . import blocks, databases, disks, stamp
from .journal import Reader
from .model import Model

# Nothing that a load is asked for takes as long on a machine that works, however busy it is, beside an outage of 300 s.
ANSWER_S = 600


class Load:
    """A load of any kind."""

    def __init__(self, lab, name, side, script, **arguments):
        self.lab = lab
        self.name = name
        self.stall_s = 0.0
        self.socket = lab.path(f"{name}.load")
        self.journal_path = lab.path(f"{name}.journal")
        arguments |= {"socket": self.socket, "journal_path": self.journal_path}
        self.process = lab.start(side, "/usr/bin/python3", "-B", script, json.dumps(arguments), name=f"load-{name}")
        until(f"the load {name} begins", ANSWER_S, lambda: os.path.exists(self.socket) or not self.process.running)
        check(self.process.running, f"the load {name} ended: {tail(self.process.stderr)}")

    def ask(self, do, timeout=ANSWER_S, **arguments):
        """Has it do one thing, and returns the answer."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(timeout)
            try:
                line.connect(self.socket)
                line.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
                with line.makefile("r") as lines:
                    reply = json.loads(lines.readline() or "{}")
            except TimeoutError:
                raise Failure(f"the load {self.name} does not answer to '{do}' for {timeout} s, {self.doing()}") from None
            except OSError as error:
                raise Failure(f"the load {self.name} is gone: {error}\n{tail(self.process.stderr)}") from None
        if "reply" not in reply:
            raise Failure(f"the load {self.name} failed to do '{do}': {reply.get('failed')}\n{tail(self.process.stderr)}")
        return reply["reply"]

    def doing(self):
        try:
            return str(self.ask("figures", timeout=5))
        except Failure:
            return "and has no figures"

    def figures(self):
        """What it has seen. Its stalls are kept until somebody takes them."""
        figures = self.ask("figures")
        self.stall_s = max(self.stall_s, figures["stall"])
        return figures

    def take_stall(self):
        """The longest since this was asked last, in seconds."""
        self.figures()
        stall, self.stall_s = self.stall_s, 0.0
        return stall

    def until_it_moves(self, things=8):
        """Waits until it has done so many things more, or has no disk: what was held up goes on."""
        start = self.figures()["done"]

        def moves():
            figures = self.figures()
            return figures["gone"] or figures["ended"] or figures["done"] >= start + things
        until(f"the load {self.name} goes on", ANSWER_S, moves)

    def end(self):
        """Lets go of the disk, and ends."""
        self.ask("release")
        self.ask("end")
        self.process.wait(30)


class BlockLoad(Load):
    """Sectors, on an NBD face or in a file."""

    def __init__(self, lab, name, side, kind, disk, sectors, number, seed, **how):
        self.sectors, self.number = sectors, number
        if kind == "file":
            disks.prepare(disk, sectors)
        super().__init__(lab, name, side, blocks.__file__, kind=kind, disk=disk, sectors=sectors, number=number,
                         seed=seed, **how)
        self.reader = Reader(self.journal_path)
        self.model = Model(sectors)

    def at_rest(self, path):
        """What the file at this path, on which nobody works now, shows that it must not."""
        self.model.apply(self.reader.read())
        with open(path, "rb") as file:
            data = file.read(self.sectors * stamp.SECTOR)
        return list(map(str, self.model.at_rest(0, stamp.found(self.number, 0, data))))


class DatabaseLoad(Load):
    """Transactions."""

    def __init__(self, lab, name, side, engine, disk, rate=60.0, **how):
        super().__init__(lab, name, side, databases.__file__, engine=engine, disk=disk, rate=rate, **how)
