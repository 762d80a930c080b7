"""Caches where a volume is used: what is read again, what is written back, and who may not have it any more."""

import os
import signal
import time

import node
from harness import check, until
from node import Attachment, Target, image, mode_flags, refused, security_flags, thinwire, uri
from registry import test

MIB = 1 << 20


def io(lab, disk, *commands, flushes=True):
    """By NBD; what is written is flushed in the end, or not: who leaves in order flushes, whatever it was told."""
    commands += () if flushes else ("abort",)
    words = [word for command in commands for word in ("-c", command)]
    mode = () if flushes else ("-t", "unsafe")
    return lab.run("initiator", "stdbuf", "-oL", "qemu-io", "-f", "raw", *mode, *words, disk.nbd, check_exit=False)


def works(lab, disk, *commands, flushes=True):
    done = io(lab, disk, *commands, flushes=flushes)
    said = done.stdout + done.stderr
    ended = done.returncode == 0 if flushes else abs(done.returncode) in (6, 134)
    check(ended and "failed" not in said and "error" not in said, f"{commands}: {said}")


def stands(path, at, byte, length=4096):
    """Whether that is in the image."""
    with open(path, "rb") as file:
        file.seek(at)
        return file.read(length) == bytes([byte]) * length


@test(seconds=60)
def read_again_without_its_target(lab):
    """What was read is read again from memory, also while the target is not there; status tells."""
    path = image(lab, "a.img", 16)
    target = Target(lab, f"a={path}")
    disk = Attachment(lab, f"cache:[{uri(lab, 'a')}]?size=16M", name="quick")
    works(lab, disk, "write -P 5 0 4M", "read -P 5 0 4M", "read -P 5 0 4M")
    told = disk.status()["cache"]
    check(told["hits"] > 0 and told["used"] >= 4 * MIB and told["bytes"] <= 16 * MIB, f"{told}")
    line = thinwire(lab, "status", "--run-dir", lab.path("run")).stdout
    check("cache of " in line and "answered " in line, line)
    target.kill()
    works(lab, disk, "read -P 5 1M 1M")
    target.start()
    works(lab, disk, "write -P 6 1M 4k", "read -P 6 1M 4k", "read -P 5 2M 1M")
    check(stands(path, MIB, 6), "it was written through")
    disk.detach()
    target.stop()


@test(seconds=90)
def written_back(lab):
    """What is written ends in memory, a flush has it down, an orderly end too; kill -9 loses nothing that was flushed."""
    path = image(lab, "a.img", 16)
    target = Target(lab, f"a={path}")
    volume = f"cache:[{uri(lab, 'a')}]?size=4M&write_back=8M"
    disk = Attachment(lab, volume, name="late")
    works(lab, disk, "write -P 7 0 256k", "read -P 7 0 256k", flushes=False)
    check(disk.status()["cache"]["dirty"] == 256 << 10, "it is in memory")
    disk.detach()
    check(stands(path, 0, 7, 256 << 10), "an orderly end has all of it down")
    disk = Attachment(lab, volume, name="late")
    works(lab, disk, "write -P 8 0 1M", "flush")
    check(stands(path, 0, 8, MIB), "what was flushed is down")
    works(lab, disk, "write -P 9 4M 1M", "write -P 3 512 512", flushes=False)
    works(lab, disk, "read -P 8 0 512", "read -P 3 512 512", "read -P 8 1k 3k", "read -P 9 4M 1M", flushes=False)
    os.kill(disk.pid(), signal.SIGKILL)
    check(stands(path, 4096, 8, MIB - 4096), "what was flushed is there")
    disk = Attachment(lab, volume, name="again", extra=["--take-over"])
    works(lab, disk, "read -P 8 4k 1020k")
    # What is not down goes down by itself.
    works(lab, disk, "write -P 4 8M 64k", flushes=False)
    until("it goes down by itself", 15, lambda: stands(path, 8 * MIB, 4, 64 << 10))
    check(disk.status()["cache"]["dirty"] == 0, f"{disk.status()['cache']}")
    disk.detach()
    target.stop()


@test(seconds=90)
def verified_over_a_target_that_dies(lab):
    """bench --verify by way of a cache that is written back, of a few blocks, beside a target that is killed and comes back."""
    path = image(lab, "a.img", 16)
    target = Target(lab, f"a={path}")
    volume = f"cache:[{uri(lab, 'a')}]?size=1M&write_back=1M"
    argv = ["bench", volume, "--rw", "randrw", "--verify", "--runtime", "6", "--run-dir", lab.path("run")]
    bench = lab.start("initiator", node.BIN, *argv, *mode_flags("bench", argv), *security_flags(lab, argv), name="bench")
    for _ in range(2):
        time.sleep(1.5)
        check(bench.running, f"it runs beside the target: {bench.stdout}{bench.stderr}")
        target.kill()
        time.sleep(0.3)
        target.start()
        check(bench.running, f"it runs when the target is back: {bench.stdout}{bench.stderr}")
    bench.wait(40)
    check(" 0 errors" in bench.stdout, bench.stdout)
    target.stop()


@test(seconds=60)
def what_did_not_come_down_is_named(lab):
    """An end in order does not pass over what was acknowledged from memory, and its target never had."""
    path = image(lab, "a.img", 16)
    target = Target(lab, f"a={path}")
    disk = Attachment(lab, f"cache:[{uri(lab, 'a')}]?size=4M&write_back=8M", name="late")
    works(lab, disk, "write -P 1 0 4k")
    target.kill()
    until("it is away", 20, lambda: disk.status()["state"] == "away")
    works(lab, disk, "write -P 7 0 1M", flushes=False)
    said = disk.detach(expect=1, timeout=40)
    check("1 MiB that were written into a cache" in said.stdout + said.stderr, said.stdout + said.stderr)
    target.start()
    check(stands(path, 0, 1), "as it was flushed")
    target.stop()


@test(seconds=60)
def what_is_never_taken_is_named(lab):
    """An end in order does not wait for ever for a disk that refuses what a cache has taken."""
    path = image(lab, "a.img", 16)
    disk = Attachment(lab, f"cache:[error:[{path}]?writes=1]?size=4M&write_back=8M", name="late")
    works(lab, disk, "write -P 7 0 64k", flushes=False)
    said = disk.detach(expect=1, timeout=40)
    check("64 KiB that were written into a cache" in said.stdout + said.stderr, said.stdout + said.stderr)


@test(seconds=60)
def who_was_fenced_reads_nothing(lab):
    """What is in memory is not read any more once another has the volume (rule 26); nor is what was written there kept."""
    path = image(lab, "a.img", 16)
    target = Target(lab, f"a={path}")
    first = Attachment(lab, f"cache:[{uri(lab, 'a')}]?size=8M&write_back=8M", name="first")
    works(lab, first, "write -P 5 0 1M", "read -P 5 0 1M")
    second = Attachment(lab, uri(lab, "a"), name="second", extra=["--take-over"])
    works(lab, second, "write -P 6 0 1M")
    until("the first is fenced", 10, lambda: "fenced" in str(first.status()).lower())
    for command in "read -P 5 0 4k", "write -P 7 0 4k":
        said = io(lab, first, command)
        check("failed" in said.stdout + said.stderr or said.returncode, f"{command}: {said.stdout}")
    works(lab, second, "read -P 6 0 1M")
    second.detach()
    first.detach("--force")
    target.stop()


@test(seconds=60)
def who_was_fenced_writes_nothing_down(lab):
    """What is in memory when another takes the volume is lost, which a flush says; none of it is written over what that one writes."""
    path = image(lab, "a.img", 16)
    target = Target(lab, f"a={path}")
    first = Attachment(lab, f"cache:[{uri(lab, 'a')}]?size=8M&write_back=8M", name="first")
    works(lab, first, "write -P 5 0 64k")
    works(lab, first, "write -P 7 0 1M", flushes=False)
    check(first.status()["cache"]["dirty"] > 0, "it is in memory")
    second = Attachment(lab, uri(lab, "a"), name="second", extra=["--take-over"])
    works(lab, second, "write -P 6 0 64k")
    until("the first is fenced", 10, lambda: "fenced" in str(first.status()).lower())
    said = io(lab, first, "flush")
    check("failed" in said.stdout + said.stderr or said.returncode, f"the flush says nothing: {said.stdout}")
    said = io(lab, first, "write -P 7 0 4k", flushes=False)
    check("failed" in said.stdout + said.stderr, f"a write ends well: {said.stdout}")
    works(lab, second, "read -P 6 0 64k", "flush")
    second.detach()
    first.detach("--force")
    check(stands(path, 0, 6, 64 << 10), "what the second wrote is there")
    check(stands(path, 64 << 10, 0, 960 << 10), "nothing of what the first had in memory is there")
    target.stop()


@test(seconds=60)
def what_others_write_is_not_kept_for_ever(lab):
    """Over what is only read it must be said how old it may be; then it is no older."""
    path = image(lab, "a.img", 16)
    target = Target(lab, f"a={path}")
    only_read = f"readonly:[{uri(lab, 'a')}]"
    refused(lab, "bench", f"cache:[{only_read}]", "--rw", "randread", "--runtime", "1", says=["only read here", "max_age_ms=1000"],
            code=2)
    refused(lab, "bench", f"cache:[{only_read}]?size=900G&max_age_ms=5", "--rw", "randread", says=["three quarters", "size=SIZE"], code=2)
    reader = Attachment(lab, f"cache:[{only_read}]?size=8M&max_age_ms=500", name="reader")
    writer = Attachment(lab, uri(lab, "a"), name="writer")
    works(lab, writer, "write -P 1 0 4k")
    until("the first is seen", 5, lambda: "failed" not in io(lab, reader, "read -P 1 0 4k").stdout)
    works(lab, writer, "write -P 2 0 4k")
    until("the second is seen", 5, lambda: "failed" not in io(lab, reader, "read -P 2 0 4k").stdout)
    reader.detach()
    writer.detach()
    target.stop()
