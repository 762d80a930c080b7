"""Every pipeline, batching policy and protection of frames keeps data: fio with verification, loss on the wire,
and a kill of the target, under each. `run.py --mode` runs any other test under one, or all of them."""

import time

import load
from node import MODE, flags_of
from registry import test
from test_fio import finish, serve

MODES = {
    "split": {"over": "packet", "mode": "receive=split"},
    "workqueue": {"over": "udp", "mode": "completion=workqueue,submission=queue,security=insecure"},
    "all_threads": {"over": "packet", "mode": "receive=split,completion=workqueue,submission=queue,spin=off"},
    "lent_memory": {"over": "xdp", "mode": "receive=split,completion=workqueue,submission=queue,security=insecure"},
    "none": {"over": "udp", "mode": "batch=none"},
    "static": {"over": "packet", "mode": "batch=static:8,data-batch=off,security=insecure"},
    "tyche": {"over": "udp", "mode": "batch=tyche,security=authenticate"},
    "doorbell": {"over": "packet", "mode": "batch=doorbell,security=authenticate"},
}


@test(seconds=90, each=MODES)
def kept(lab, over, mode):
    """1 % loss and reordering, write-back, and kill -9 of the target, under one mode."""
    fault = ["--fault", "loss=1%,reorder=1%,seed=5"]
    before = dict(MODE)
    MODE.update(flags_of(mode))
    try:
        target, attachment = serve(lab, over, ",writeback", target_extra=fault, attach_extra=fault)
        fio = load.Fio(lab, attachment.nbd, mib=48, seconds=5)
        time.sleep(2)
        fio.still_running("the target was killed")
        target.kill()
        target.start()
        finish(lab, fio, attachment)
    finally:
        MODE.clear()
        MODE.update(before)
