"""Runs tests side by side: each in a process forked for it, so many at a time.

What a test makes bears the id of its process (harness.py), so that no two are in each other's way and
what one leaves can be told from what another still uses. What it prints is kept and handed over whole.
"""

import ctypes
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from typing import IO

import harness
from registry import Test

STOPS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
PR_SET_PDEATHSIG = 1
# For a worker that was told to stop: two seconds for each side of its laboratory, and more to spare.
GRACE_SECONDS = 30


@dataclass
class Work:
    """A test that is being run, and the files that its process writes."""

    test: Test
    start: float
    said: IO
    report: IO


@dataclass
class Done:
    """A test that has ended. `report` says why it failed, and is None if it passed."""

    test: Test
    seconds: float
    said: str
    report: str | None


class Crew:
    """Whoever leaves its `with`, in whatever way, leaves no worker and nothing that one made."""

    def __init__(self, perform):
        """`perform` runs a test and returns None or the report of its failure."""
        self.perform = perform
        self.runner = os.getpid()
        self.working = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.dismiss()

    def run(self, tests, jobs):
        """Runs the tests, begun in this order, and yields each when it is done."""
        waiting = list(tests)[::-1]
        while waiting or self.working:
            while waiting and len(self.working) < jobs:
                self.begin(waiting.pop())
            pid, status = os.wait()
            if pid in self.working:
                yield self.end(pid, status)

    def begin(self, test):
        work = Work(test, time.monotonic(), tempfile.TemporaryFile(), tempfile.TemporaryFile())
        sys.stdout.flush()
        sys.stderr.flush()
        # Between the fork and either side's readiness an interrupt would find a worker that nobody
        # knows, or one that believes to be the runner.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        pid = os.fork()
        if pid == 0:
            self.work(work)
        self.working[pid] = work
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def work(self, work):
        """The worker's life. Never returns: what is on the stack is the runner's."""
        try:
            try:
                # Out of the terminal's reach: the runner alone is interrupted, and ends us in order.
                os.setsid()
                self.follow()
                os.dup2(work.said.fileno(), 1)
                os.dup2(work.said.fileno(), 2)
                for number in STOPS:
                    signal.signal(number, stop)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
                report = self.perform(work.test)
                work.report.write(json.dumps([report]).encode())
                work.report.flush()
            except BaseException:
                traceback.print_exc()
            # A laboratory that was not finished is not the test's to close.
            harness.close_all()
            sys.stdout.flush()
            sys.stderr.flush()
            # From here on nothing may raise.
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        finally:
            os._exit(0)

    def follow(self):
        """Has the kernel stop us when the runner is killed: nobody would wait for us."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != self.runner:
            raise SystemExit("the runner is gone")

    def end(self, pid, status):
        work = self.working.pop(pid)
        said, report = (take(file) for file in (work.said, work.report))
        try:
            report = json.loads(report)[0]
        except ValueError:
            # Not even its cleaning up can have come to an end.
            harness.sweep()
            report = f"its process ended before the test, with status {os.waitstatus_to_exitcode(status)}"
        return Done(work.test, time.monotonic() - work.start, said, report)

    def dismiss(self):
        """Ends all who still work, and takes down what they could not."""
        for pid in self.working:
            os.kill(pid, signal.SIGTERM)
        patience = time.monotonic() + GRACE_SECONDS
        while self.working:
            for pid in list(self.working):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self.working[pid]
                elif time.monotonic() > patience:
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        harness.sweep()


def stop(number, _frame):
    """Ends a worker; once, so that it can clean up in peace."""
    for each in STOPS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def take(file):
    """All that is in a file, which is closed."""
    with file:
        file.seek(0)
        text = file.read().decode(errors="replace")
    return text + "\n" if text and not text.endswith("\n") else text
