"""One test, run to its end in the process that asks for it, and one run of tests a machine."""

import fcntl
import os
import signal
import time
import traceback

import harness
import node


# Held by a run of these tests or of guests, and how long the next one waits for it.
RUN_LOCK = "/run/thinwire-e2e.lock"
RUN_WAIT_S = 20 * 60


def one_run_a_machine():
    """Waits until no other run of these tests is under way on this machine: two share loop devices, names and
    processors, and tests that wait fail of it. The lock is the file returned, and goes with the process."""
    lock = open(RUN_LOCK, "w")
    ends = time.monotonic() + RUN_WAIT_S
    told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            pass
        if time.monotonic() >= ends:
            print(f"run.py: another run of these tests has not ended in {RUN_WAIT_S // 60} minutes; going on beside it",
                  flush=True)
            return lock
        if not told:
            print(f"run.py: another run of these tests is under way ({RUN_LOCK} is held); waiting for its end", flush=True)
            told = True
        time.sleep(0.5)


class Late(BaseException):
    """The test's time is over. Not an Exception, so that no test swallows it."""


def one(test, logs, here):
    """Runs one test; returns None or the report of its failure, with the lines of files below `here` that led there."""
    def late(_number, _frame):
        raise Late()
    signal.signal(signal.SIGALRM, late)
    lab, mode = None, dict(node.MODE)
    if test.security:
        node.MODE["security"] = test.security
    try:
        signal.alarm(test.seconds)
        lab = harness.Lab(logs, links=test.links, mtu=test.mtu) if test.links else None
        test.function(*([lab] if lab else []))
        if lab:
            lab.check_nothing_was_refused()
        return None
    except Late:
        where = traceback.format_exc(limit=-4)
        return f"not done after {test.seconds} s\n{where}"
    except harness.Failure as failure:
        frame = traceback.extract_tb(failure.__traceback__)
        lines = [f"{os.path.basename(f.filename)}:{f.lineno}" for f in frame if f.filename.startswith(here)]
        return f"{failure}\n  at {' < '.join(reversed(lines[1:]))}"
    except Exception:
        return traceback.format_exc()
    finally:
        signal.alarm(0)
        if lab:
            lab.close()
        node.MODE.clear()
        node.MODE.update(mode)
