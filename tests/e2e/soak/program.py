"""What every load is, whatever it writes: a process with hands that each do one thing after the other, figures of what
they saw, and a socket on which the runner tells it what to do, a JSON object a line, answered by one."""

import contextlib
import itertools
import json
import os
import socket
import threading
import time
import traceback

from .disks import Gone

# Errors that are kept in words. All are counted.
TOLD = 10
# What a hand does without a pause between: a murder finds much under way, or nothing.
BURST = 16


class Program:
    """The commands of every load are its methods whose names begin with `do_`."""

    def __init__(self, path, hands, rate):
        """`path` is the socket; all hands together do `rate` things a second."""
        self.path = path
        self.hands = hands
        self.pause_s = BURST * hands / rate
        self.changed = threading.Condition()
        self.parked = 0
        self.is_paused = False
        self.is_gone = False        # there is no disk
        self.is_cut_expected = False
        self.is_ended = False
        self.promised = ()          # numbers of errors that are no breach now
        self.done = 0
        self.errors = 0
        self.lost = 0               # sectors that a read found to be others than they may be
        self.said = []
        self.refusals = 0           # errors that were promised
        self.stall_s = 0.0          # longest of all since somebody asked
        self.waiting = {}           # hand -> since when its call is not answered

    # -- for a load

    def step(self, hand):
        """Does one thing, and takes what the disk has against it."""
        raise NotImplementedError

    @contextlib.contextmanager
    def timed(self, hand):
        """Around each call that can wait for the disk."""
        began = self.waiting[hand] = time.monotonic()
        try:
            yield
        finally:
            self.stall_s = max(self.stall_s, time.monotonic() - began)
            del self.waiting[hand]

    def complain(self, text):
        """An error that nobody has promised."""
        self.errors += 1
        self.tell(text)

    def lose(self, text):
        """A sector is not what it must be: it may be written before anybody else looks at it."""
        self.lost += 1
        self.tell(text)

    def tell(self, text):
        if len(self.said) < TOLD:
            self.said.append(text)

    def take(self, error, doing):
        """What becomes of an error of the disk. True if the disk is there still."""
        with self.changed:
            if self.is_cut_expected:
                self.is_gone = True
            elif isinstance(error, Gone):
                self.complain(f"{doing}: {error}")
                self.is_gone = True
            elif error.number in self.promised:
                self.refusals += 1
            else:
                self.complain(f"{doing}: {error}")
            return not self.is_gone

    # -- hands

    def work(self, hand):
        try:
            for turn in itertools.count():
                if not self.stands(hand):
                    return
                self.step(hand)
                self.done += 1
                if turn % BURST == hand % BURST:
                    time.sleep(self.pause_s)
        except Exception:
            with self.changed:
                self.complain(traceback.format_exc())
                self.is_ended = True
                self.changed.notify_all()

    def stands(self, _hand):
        """Waits while nobody is to work. False at the end."""
        with self.changed:
            self.parked += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.is_ended or not (self.is_paused or self.is_gone))
            self.parked -= 1
            return not self.is_ended

    @contextlib.contextmanager
    def all_parked(self):
        """Nobody works, and all that was asked has been answered."""
        with self.changed:
            was, self.is_paused = self.is_paused, True
            self.changed.wait_for(lambda: self.parked == self.hands or self.is_ended)
        try:
            yield
        finally:
            with self.changed:
                self.is_paused = was
                self.changed.notify_all()

    # -- commands

    def do_figures(self):
        """What was seen. The longest stall begins anew."""
        now = time.monotonic()
        oldest = max((now - since for since in list(self.waiting.values())), default=0.0)
        stall, self.stall_s = max(self.stall_s, oldest), 0.0
        return {"done": self.done, "errors": self.errors, "lost": self.lost, "said": self.said,
                "refusals": self.refusals, "stall": stall, "oldest": oldest, "gone": self.is_gone, "ended": self.is_ended}

    def do_promise(self, errors):
        """Errors with these numbers are what the product says it will give now."""
        self.promised = tuple(errors)

    def do_expect_cut(self):
        """The disk is about to go away, as with the machine."""
        with self.changed:
            self.is_cut_expected = True

    def do_pause(self):
        """Nobody works from now on."""
        with self.changed:
            self.is_paused = True
            self.changed.wait_for(lambda: self.parked == self.hands)

    def do_release(self):
        """Lets go of the disk that has gone, or is to go."""
        self.do_pause()
        self.close()

    def do_reconnect(self, **where):
        """Takes up the disk that is there now. Returns what it shows that it must not."""
        self.open(**where)
        bad = self.settle()
        with self.changed:
            self.is_gone = self.is_cut_expected = self.is_paused = False
            self.changed.notify_all()
        return bad

    def do_verify(self):
        """Looks at all there is. Returns what it shows that it must not."""
        with self.all_parked():
            return self.verify()

    def do_end(self):
        with self.changed:
            self.is_ended = True
            self.changed.notify_all()

    # -- the socket

    def run(self):
        """The process. Returns when it was told to end."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path + ".new")
            listener.listen()
            # There, once it listens.
            os.rename(self.path + ".new", self.path)
            for hand in range(self.hands):
                threading.Thread(target=self.work, args=(hand,), daemon=True).start()
            while self.serve(listener.accept()[0]):
                pass

    def serve(self, client):
        """One command on each connection, beside others that may take long. False at the end."""
        with client.makefile("r") as lines:
            request = json.loads(lines.readline())
        name = request.pop("do")

        def answer():
            with client:
                try:
                    reply = {"reply": getattr(self, f"do_{name}")(**request)}
                except Exception:
                    reply = {"failed": traceback.format_exc()}
                with contextlib.suppress(OSError):
                    client.sendall(json.dumps(reply).encode() + b"\n")
        if name == "end":
            answer()
            return False
        threading.Thread(target=answer, daemon=True).start()
        return True
