"""One test, run to its end in the process that asks for it."""

import os
import signal
import traceback

import harness
import node


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
