"""EBD: an export offered in the document's two forms, to a client that was written from docs/ebd.md alone."""

import json
import os
import time

import load
import node
from harness import check, tail, until
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test
from test_status import Shown

CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ebd_client.py")


def offer(lab, *options, form="implemented"):
    return ["--offer", ",".join([f"ebd:eth1/3.1=disk0,form={form}", *options, "insecure"])]


def station(lab, side):
    """Its Ethernet address, as offers and clients write it."""
    shown = json.loads(lab.run(side, "ip", "-j", "link", "show", "eth1").stdout)
    return shown[0]["address"].replace(":", "-")


def client(lab, form, *words, expect=0):
    """Runs the client's sequence against the target; what it says of it."""
    done = lab.run("initiator", "/usr/bin/python3", CLIENT, "eth1", station(lab, "target"), "3.1", "--form", form, *words,
                   check_exit=False)
    check(done.returncode == expect, f"{form}: exit {done.returncode}\n{tail(done.stdout)}{tail(done.stderr)}")
    return json.loads(done.stdout) if expect == 0 else done.stderr


@test(security="insecure")
def a_client_of_the_document_alone(lab):
    """It writes, flushes, reads as a cluster, loses answers and asks again, in both forms; the bytes are in the image."""
    for form in "implemented", "ideal":
        path = image(lab, f"{form}.img", mib=8)
        target = Target(lab, f"disk0={path}", extra=offer(lab, form=form), over="packet")
        told = client(lab, form)
        check(told["handshakes"] >= 1 and told["dropped"] > 0, f"{form}: {told}")
        target.stop()
        with open(path, "rb") as file:
            file.seek(8 * 512)
            check(any(file.read(64 << 10)), f"{form}: nothing is in the image")


@test(security="insecure")
def a_form_and_a_station_that_are_not_meant(lab):
    """Another form is told so, and a station that is not named finds no device."""
    target = Target(lab, f"disk0={image(lab, mib=8)}", extra=offer(lab, form="ideal"), over="packet")
    check("form" in client(lab, "implemented", expect=1).lower(), "the other form is not named")
    target.stop()
    other = offer(lab, "initiator=02-00-00-00-00-77", form="ideal")
    Target(lab, f"disk0={image(lab, mib=8)}", extra=other, over="packet")
    check("device" in client(lab, "ideal", expect=1).lower(), "a masked device is not told as none")


WRITER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import ebd_client
client = ebd_client.Client("eth1", bytes.fromhex(sys.argv[2].replace("-", "")), 3, 1)
client.handshake(writes=True)
client.write(0, bytes(512))
client.flush()
print("written", flush=True)
while not os.path.exists(sys.argv[3]):
    time.sleep(0.05)
try:
    client.write(0, bytes(512))
    print("again", flush=True)
except ebd_client.Nak as nak:
    print("nak", nak.reason, flush=True)
"""


@test(security="insecure")
def a_native_attach_beside_a_writer_of_ebd(lab):
    """Who may write is one matter for both protocols: the writer is named, and is fenced by a take-over."""
    Target(lab, f"disk0={image(lab, mib=8)}", extra=[*offer(lab), *Shown(lab).flags], over="packet")
    go = lab.path("go")
    writer = lab.start("initiator", "/usr/bin/python3", "-c", WRITER, os.path.dirname(CLIENT), station(lab, "target"), go)
    until("the client to have written", 20, lambda: "written" in writer.stdout)
    volume = uri(lab, over="packet")
    refused(lab, "attach", volume, "--nbd", f"unix:{lab.path('d.sock')}", "--run-dir", lab.path("run"),
            says=[f"ebd {station(lab, 'initiator')}", "--take-over"])
    (told,) = Shown(lab).target()["offers"]
    check(told["export"] == "disk0" and told["insecure"] and told["not_promised"], f"{told}")
    attachment = Attachment(lab, volume, extra=["--take-over"])
    with open(go, "w", encoding="utf-8"):
        pass
    until("the client to be told", 20, lambda: "nak" in writer.stdout or "again" in writer.stdout)
    check("nak 4" in writer.stdout, f"the former writer was not told that it is fenced: {writer.stdout}")
    attachment.detach()


@test(security="insecure")
def offers_that_cannot_be_kept(lab):
    """Each is named before anything is served."""
    path = image(lab, mib=8)
    base = ["target", "--link", "packet:eth1", "--export", f"disk0={path}", "--name", "n"]
    for offered, more, says in (
        ("ebd:eth1/3.1=disk0", ["--insecure"], "no keys"),
        ("ebd:eth1/3.1=disk1,insecure", ["--insecure"], "no export `disk1`"),
        ("ebd:udp:10.0.0.1/3.1=disk0,insecure", ["--insecure"], "packet sockets"),
        ("ebd:eth1/3.1=disk0,insecure", ["--insecure", "--shards", "2", "--export", "b=memory:1M"], "--shards"),
        ("ebd:eth1/3.1=disk0,insecure", ["--key", node.key(lab)], "has keys"),
    ):
        refused(lab, *base, *more, "--offer", offered, says=[says], code=2, side="target")
    refused(lab, *base, "--insecure", "--offer", "ebd:eth9/3.1=disk0,insecure", says=["eth9"], side="target")


FORMS = {form: {"form": form} for form in ("implemented", "ideal")}


def device(lab, form, **parameters):
    """The URI of the device that `offer` offers."""
    pairs = "".join(f"&{key}={value}" for key, value in parameters.items())
    return f"ebd://{station(lab, 'target')}/3.1?link=eth1&form={form}{pairs}"


def serve(lab, form, wrapper="", target_extra=(), attach_extra=()):
    """A target that offers a file store of 128 MiB so, and an attachment of it."""
    target = Target(lab, f"disk0={image(lab)}{wrapper}", extra=[*offer(lab, form=form), *target_extra], over="packet")
    return target, Attachment(lab, device(lab, form), extra=attach_extra)


@test(security="insecure", seconds=90, each=FORMS)
def fio(lab, form):
    """Sizes from 512 bytes to 1 MiB, checksums verified, on an undisturbed wire."""
    _, attachment = serve(lab, form)
    load.verified(lab, attachment.nbd, mib=64)
    shown = attachment.status()
    check(shown["state"] == "attached" and f"{form} form" in shown["detail"] and shown["insecure"], f"{shown}")
    attachment.detach()


@test(security="insecure", seconds=120, each=FORMS)
def fio_switch_drops(lab, form):
    """The switch drops 2 % of what it forwards."""
    _, attachment = serve(lab, form)
    lab.drop(2)
    run = load.Fio(lab, attachment.nbd, mib=32)
    run.process.wait(110, expect=None)
    seen, dropped = lab.dropped()
    load.judge(run.process)
    check(dropped > 20 and 0.01 < dropped / seen < 0.04, f"the switch dropped {dropped} of {seen} frames, not 2 %")
    attachment.detach()


@test(security="insecure", seconds=120, each=FORMS)
def fio_faulty_links(lab, form):
    """1 % loss, duplication and reordering, on both sides."""
    fault = ("--fault", "loss=1%,dup=1%,reorder=1%,seed=7")
    _, attachment = serve(lab, form, target_extra=fault, attach_extra=fault)
    load.verified(lab, attachment.nbd, mib=32, timeout=110)
    attachment.detach()


@test(security="insecure", seconds=120, each=FORMS)
def fio_target_killed(lab, form):
    """kill -9 of the target three times, which loses what was not flushed, restarted each time."""
    target, attachment = serve(lab, form, ",writeback")
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
    """bench, copy and a list of volumes take it as any volume; what cannot be is named."""
    for form in "implemented", "ideal":
        target = Target(lab, f"disk0={image(lab, f'{form}.img', mib=8)}", extra=offer(lab, form=form), over="packet")
        there = device(lab, form)
        pattern = lab.path("pattern")
        with open(pattern, "wb") as file:
            file.write(os.urandom(8 << 20))
        run_dir = ("--run-dir", lab.path("run"))
        thinwire(lab, "copy", pattern, there, *run_dir)
        thinwire(lab, "copy", there, lab.path(f"{form}.back"), *run_dir)
        with open(pattern, "rb") as one, open(lab.path(f"{form}.back"), "rb") as other:
            check(one.read() == other.read(), "what was copied back is not what was copied")
        done = thinwire(lab, "bench", there, "--rw", "randread", "--bs", "4k", "--iodepth", "8", "--runtime", "1", "--json", *run_dir)
        check(json.loads(done.stdout)["iops"] > 0, done.stdout)
        thinwire(lab, "copy", pattern, f"linear:[{there}]", *run_dir)
        target.stop()


@test(security="insecure")
def devices_that_cannot_be_attached(lab):
    """Each is refused by name, and in time."""
    Target(lab, f"disk0={image(lab, mib=8)}", extra=offer(lab), over="packet")
    face = ("--nbd", f"unix:{lab.path('d.sock')}", "--run-dir", lab.path("run"))
    there = device(lab, "implemented")
    for volume, says in (
        (device(lab, "ideal"), ["other form", "form=implemented"]),
        (there.replace("/3.1?", "/3.2?"), ["no such device"]),
        (there.replace("eth1", "eth9"), ["eth9"]),
        (there + "&ethertype=88b7", ["no EBD server at", "within"]),
    ):
        refused(lab, "attach", volume, *face, says=says)
    refused(lab, "attach", there, *face, "--key", node.key(lab), says=["EBD has no keys", "--insecure"])
    first = Attachment(lab, there)
    refused(lab, "attach", there, *face, says=["another writer", "--take-over"])
    reader = Attachment(lab, there, extra=["--read-only"], name="reader")
    reader.detach()
    first.detach()
