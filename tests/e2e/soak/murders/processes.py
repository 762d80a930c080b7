"""Processes that are killed, or stopped and woken."""

import os
import signal
import time

from .. import frozen
from ..world import START_S
from .murder import Murder


def killed(pid):
    """kill -9, and waits until it has let go of all its locks: the last of its threads has ended."""
    os.kill(pid, signal.SIGKILL)
    while True:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                if len(threads) == 1 and file.read().rpartition(") ")[2].startswith("Z"):
                    return
        except OSError:
            return
        time.sleep(0.01)


class Stop(Murder):
    """SIGSTOP, and SIGCONT: long enough for others to believe that it is gone, or not."""

    def victim(self, world):
        raise NotImplementedError

    def strike(self, world):
        pid = self.victim(world)
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(self.some_seconds(0.2, 6 if self.is_short else 15))
        finally:
            os.kill(pid, signal.SIGCONT)


class KillTarget(Murder):
    name, what, holds = "kill-target", "target: kill -9, started again", frozenset({"target"})

    def strike(self, world):
        world.target.kill()
        # What was promised to be durable is there before anybody has sent anything again.
        bad = world.blocks.at_rest(world.image)
        time.sleep(0 if self.is_short else self.chance.choice((0, 0, 0.2, 1.0)))
        world.target.start(timeout=START_S)
        return [f"in the image of the killed target: {text}" for text in bad]


class StopTarget(Stop):
    name, what, holds = "stop-target", "target: SIGSTOP, SIGCONT", frozenset({"target"})

    def victim(self, world):
        return world.target.process.pid


class KillInitiator(Murder):
    name, what, holds, cuts = "kill-initiator", "initiator: kill -9, attached again", frozenset({"initiator"}), True

    def strike(self, world):
        return world.replace_nbd(killed)


class StopInitiator(Stop):
    name, what, holds = "stop-initiator", "initiator: SIGSTOP, SIGCONT", frozenset({"initiator"})

    def victim(self, world):
        return world.pid(world.nbd)


class OfAFace:
    def fits(self, world):
        return world.face is not None


class KillFace(OfAFace, Murder):
    name, what, cuts = "kill-face", "face below a file system: kill -9, attached and mounted again", True
    holds = frozenset({"face"})

    def strike(self, world):
        return world.replace_face(killed)


class StopFace(OfAFace, Stop):
    name, what, holds = "stop-face", "face below a file system: SIGSTOP, SIGCONT", frozenset({"face"})

    def victim(self, world):
        return world.pid(world.face)


class OfAGateway:
    def fits(self, world):
        return world.gateway is not None


class KillGateway(OfAGateway, Murder):
    name, what, holds = "kill-gateway", "gateway: kill -9, started again", frozenset({"gateway"})

    def strike(self, world):
        world.gateway.kill()
        time.sleep(self.chance.choice((0, 0.2, 1.0)))
        world.gateway.start(timeout=START_S)


class StopGateway(OfAGateway, Stop):
    name, what, holds = "stop-gateway", "gateway: SIGSTOP, SIGCONT", frozenset({"gateway"})

    def victim(self, world):
        return world.gateway.process.pid


class FrozenWriter(Murder):
    name, what = "frozen-writer", "writer frozen in the middle of a write, replaced, woken"
    holds = frozenset({"target", "gateway", "wire", "machine"})

    def strike(self, world):
        def attach(name, *flags):
            return world.attach("spare", "nbd", *flags, name=name)
        return frozen.replaced(world.lab, world.side, attach, world.pid, self.chance)
