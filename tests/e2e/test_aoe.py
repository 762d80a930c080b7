"""AoE: an export offered as a drive, to stations that send frames of their own and to our client."""

import json
import os
import time

import load
import node
from harness import check, tail, until
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test

CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "aoe_client.py")


def offer(lab, *options, device="7.1"):
    return ["--offer", ",".join([f"aoe:eth1/{device}=disk0", *options, "insecure"])]


def station(lab, side):
    """Its Ethernet address, as offers and clients write it."""
    shown = json.loads(lab.run(side, "ip", "-j", "link", "show", "eth1").stdout)
    return shown[0]["address"].replace(":", "-")


def device(lab, number="7.1", **parameters):
    """The URI of the device that `offer` offers."""
    return f"aoe://{number}?link=eth1" + "".join(f"&{key}={value}" for key, value in parameters.items())


def serve(lab, *options, wrapper="", target_extra=(), attach_extra=(), **parameters):
    """A target that offers a file store of 128 MiB so, and an attachment of it."""
    target = Target(lab, f"disk0={image(lab)}{wrapper}", extra=[*offer(lab, *options), *target_extra], over="packet")
    return target, Attachment(lab, device(lab, **parameters), extra=attach_extra)


@test(security="insecure")
def frames_of_a_station(lab):
    """What the specification says is asked and answered, octet by octet, by a client of a few lines; the bytes are in the image."""
    path = image(lab, mib=8)
    Target(lab, f"disk0={path}", extra=offer(lab), over="packet")
    done = lab.run("initiator", "/usr/bin/python3", CLIENT, "eth1", "7.1", check_exit=False)
    check(done.returncode == 0, f"exit {done.returncode}\n{tail(done.stdout)}{tail(done.stderr)}")
    told = json.loads(done.stdout)
    check(told["sectors"] == 16384 and told["server"] == station(lab, "target"), f"{told}")
    with open(path, "rb") as file:
        file.seek(8 * 512)
        check(file.read(1024) == bytes(range(256)) * 4, "what was written is not in the image")


@test(security="insecure")
def what_clients_set_outlives_a_kill(lab):
    """The config string and for whom a device is reserved are there in the next life of a target that was killed."""
    state = lab.path("kept")
    target = Target(lab, f"disk0={image(lab, mib=8)}", extra=[*offer(lab), "--state-dir", state], over="packet")
    kept = os.path.join(state, "aoe-node1-eth1-7.1.json")
    for step, now in ("set", station(lab, "initiator")), ("seen", "02-00-00-00-00-09"), ("refused", None), ("gone", None):
        done = lab.run("initiator", "/usr/bin/python3", CLIENT, "eth1", "7.1", "--kept", step, check_exit=False)
        check(done.returncode == 0, f"{step}: exit {done.returncode}\n{tail(done.stdout)}{tail(done.stderr)}")

        # It is answered first.
        until(f"what is set by {step} to be kept", 10, lambda: reserved_in(kept) == ([now] if now else []))
        target.kill()
        target.start()
    with open(kept, "w") as file:
        file.write("nonsense")
    target.kill()
    target.start()
    until("the target to say what it cannot read", 10, lambda: kept in target.process.stderr)


def reserved_in(path):
    try:
        with open(path) as file:
            return json.load(file)["reserved"]
    except FileNotFoundError:
        return None


@test(security="insecure")
def one_writer_for_all_protocols(lab):
    """A native attach beside a writer of AoE is told its name, and takes over; the former writer cannot write any more."""
    Target(lab, f"disk0={image(lab, mib=8)}", extra=offer(lab), over="packet")
    attachment = Attachment(lab, device(lab), extra=["--when-away", "wait"])
    load.verified(lab, attachment.nbd, mib=4)
    volume = uri(lab, over="packet")
    refused(lab, "attach", volume, "--as", "native", "--nbd", f"unix:{lab.path('d.sock')}", "--run-dir", lab.path("run"),
            says=[f"aoe {station(lab, 'initiator')}", "--take-over"])
    native = Attachment(lab, volume, extra=["--take-over"], name="native")
    for command, may in ("write -P 9 0 4k", False), ("read 0 4k", True):
        done = lab.run("initiator", "qemu-io", "-f", "raw", "-c", command, attachment.nbd, check_exit=False)
        check((done.returncode == 0) == may, f"{command}: exit {done.returncode}\n{tail(done.stdout)}{tail(done.stderr)}")
    native.detach()
    attachment.detach()


@test(security="insecure", seconds=90)
def fio(lab):
    """Sizes from 512 bytes to 1 MiB, checksums verified, on an undisturbed wire."""
    _, attachment = serve(lab)
    load.verified(lab, attachment.nbd, mib=64)
    shown = attachment.status()
    check(shown["state"] == "attached" and "AoE" in shown["detail"] and shown["insecure"], f"{shown}")
    attachment.detach()


@test(security="insecure", seconds=120)
def fio_switch_drops(lab):
    """The switch drops 2 % of what it forwards."""
    _, attachment = serve(lab)
    lab.drop(2)
    run = load.Fio(lab, attachment.nbd, mib=32)
    run.process.wait(110, expect=None)
    seen, dropped = lab.dropped()
    load.judge(run.process)
    check(dropped > 20 and 0.01 < dropped / seen < 0.04, f"the switch dropped {dropped} of {seen} frames, not 2 %")
    attachment.detach()


@test(security="insecure", seconds=120)
def fio_faulty_links(lab):
    """1 % loss, duplication and reordering, on both sides."""
    fault = ("--fault", "loss=1%,dup=1%,reorder=1%,seed=7")
    _, attachment = serve(lab, target_extra=fault, attach_extra=fault)
    load.verified(lab, attachment.nbd, mib=32, timeout=110)
    attachment.detach()


@test(security="insecure", seconds=120)
def fio_target_killed(lab):
    """kill -9 of the target three times, which loses what was not flushed: nothing that was answered is lost, though the client
    never flushes."""
    target, attachment = serve(lab, wrapper=",writeback")
    run = load.Fio(lab, attachment.nbd, mib=64, seconds=10)
    for kill in range(3):
        time.sleep(2)
        run.still_running(f"kill {kill + 1}")
        target.kill()
        time.sleep(0.5)
        target.start()
    run.still_running("the third restart")
    run.finish(90)
    attachment.detach()


@test(security="insecure")
def commands_over_a_device(lab):
    """copy, bench and a list of volumes take it as any volume; `cached` is logged, and flushed where that is asked for."""
    target = Target(lab, f"disk0={image(lab, mib=8)}", extra=offer(lab, "cached"), over="packet")
    until("the target to say that it is cached", 10, lambda: "CACHED" in target.process.stderr)
    pattern, there = lab.path("pattern"), device(lab, flush="yes")
    with open(pattern, "wb") as file:
        file.write(os.urandom(8 << 20))
    run_dir = ("--run-dir", lab.path("run"))
    thinwire(lab, "copy", pattern, there, *run_dir)
    thinwire(lab, "copy", there, lab.path("back"), *run_dir)
    with open(pattern, "rb") as one, open(lab.path("back"), "rb") as other:
        check(one.read() == other.read(), "what was copied back is not what was copied")
    done = thinwire(lab, "bench", there, "--rw", "randread", "--bs", "4k", "--iodepth", "8", "--runtime", "1", "--json", *run_dir)
    check(json.loads(done.stdout)["iops"] > 0, done.stdout)
    thinwire(lab, "copy", pattern, f"linear:[{there}]", *run_dir)
    # A flush that asks nobody is done at once: nothing comes that would wake anybody.
    done = thinwire(lab, "bench", device(lab), "--rw", "randwrite", "--bs", "4k", "--runtime", "0.2", "--json", *run_dir)
    check(json.loads(done.stdout)["errors"] == 0, done.stdout)


@test(security="insecure")
def what_cannot_be_is_named(lab):
    """Offers before anything is served, devices in time."""
    path = image(lab, mib=8)
    base = ["target", "--link", "packet:eth1", "--export", f"disk0={path}", "--name", "n"]
    for offered, more, says in (
        ("aoe:eth1/7.1=disk0", ["--insecure"], "no keys"),
        ("aoe:eth1/7.1=disk1,insecure", ["--insecure"], "no export `disk1`"),
        ("aoe:eth1/65535.1=disk0,insecure", ["--insecure"], "0 to 65534"),
        ("aoe:udp:10.0.0.1/7.1=disk0,insecure", ["--insecure"], "packet sockets"),
        ("aoe:eth1/7.1=disk0,insecure", ["--insecure", "--shards", "2", "--export", "b=memory:1M"], "--shards"),
        ("aoe:eth1/7.1=disk0,insecure", ["--key", node.key(lab)], "AoE knows none"),
    ):
        refused(lab, *base, *more, "--offer", offered, says=[says], code=2, side="target")
    Target(lab, f"disk0={path}", extra=offer(lab), over="packet")
    face = ("--nbd", f"unix:{lab.path('d.sock')}", "--run-dir", lab.path("run"))
    refused(lab, "attach", device(lab, "7.2"), *face, says=["no AoE server with 7.2"])
    refused(lab, "attach", device(lab), *face, "--take-over", says=["does not say that it writes"], code=2)
    refused(lab, "attach", device(lab), *face, "--key", node.key(lab), says=["AoE has no keys", "--insecure"])
    first = Attachment(lab, device(lab))
    refused(lab, "attach", device(lab), *face, says=["attached that device already"])
    first.detach()
