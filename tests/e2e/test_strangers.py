"""Clients nobody here wrote, on the NBD face: nbdinfo, nbdcopy, qemu-img, nbdsh, raw sockets."""

import json
import os
import re
import socket
import struct

from harness import Failure, check, run, tail, until
from node import Attachment, Target, image, uri
from registry import test

NBDSH_PRELUDE = """
import nbd, sys
h = nbd.NBD()
h.set_strict_mode(0)
h.add_meta_context("base:allocation")
h.connect_uri(sys.argv[1])
size = h.get_size()
def refuses(what, errnos, call):
    import errno
    try:
        call()
    except nbd.Error as error:
        if error.errnum is None or errno.errorcode.get(error.errnum) not in errnos.split():
            raise SystemExit(f"{what}: refused with {error.errno}, expected {errnos}")
    else:
        raise SystemExit(f"{what}: was not refused")
"""


def serve(lab, volume=None, mib=64, extra=()):
    Target(lab, f"disk0={volume or image(lab, mib=mib)}")
    return Attachment(lab, extra=extra)


def nbdsh(lab, nbd, script):
    """Runs a libnbd script with strict mode off on the initiator's side."""
    path = lab.path("script.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(NBDSH_PRELUDE + script)
    done = lab.run("initiator", "/usr/bin/python3", path, nbd, check_exit=False)
    check(done.returncode == 0, f"nbdsh: {tail(done.stdout)}{tail(done.stderr)}")
    return done.stdout


@test()
def nbdinfo(lab):
    """nbdinfo finds size, capabilities, block sizes and both names, and refuses a third."""
    attachment = serve(lab, mib=64)
    info = json.loads(lab.run("initiator", "nbdinfo", "--json", attachment.nbd).stdout)
    export = info["exports"][0]
    check(info["protocol"] == "newstyle-fixed" and export["export-size"] == 64 << 20, f"{info}")
    for capability in ("can_flush", "can_fua", "can_trim", "can_zero", "can_df", "can_multi_conn"):
        check(export[capability] is True, f"{capability} is not offered: {export}")
    check(export["is_read_only"] is False, f"{export}")
    check("base:allocation" in export["contexts"], f"no base:allocation: {export}")
    check(export["block_size_minimum"] == 1 and export["block_size_preferred"] >= 4096, f"{export}")
    named = f"nbd+unix:///disk0?socket={attachment.path}"
    check(lab.run("initiator", "nbdinfo", "--size", named).stdout.strip() == str(64 << 20), "by the export's name")
    listed = json.loads(lab.run("initiator", "nbdinfo", "--list", "--json", attachment.nbd).stdout)
    check("disk0" in [e["export-name"] for e in listed["exports"]], f"--list: {listed}")
    other = lab.run("initiator", "nbdinfo", f"nbd+unix:///other?socket={attachment.path}", check_exit=False)
    check(other.returncode != 0, "an export that does not exist must be refused")
    attachment.detach()


@test()
def nbdinfo_read_only(lab):
    """A read-only attachment says so, and writes through it are refused."""
    Target(lab, f"disk0={image(lab)}")
    attachment = Attachment(lab, extra=["--read-only"])
    lab.run("initiator", "nbdinfo", "--is", "read-only", attachment.nbd)
    nbdsh(lab, attachment.nbd, 'refuses("a write", "EPERM EROFS", lambda: h.pwrite(bytes(512), 0))\n')


@test()
def nbdcopy(lab):
    """nbdcopy there and back; the copy equals the original, holes and all."""
    attachment = serve(lab, mib=64)
    original, back = lab.path("original"), lab.path("back")
    with open(original, "wb") as file:
        file.truncate(64 << 20)
        for mib in range(0, 64, 4):
            file.seek(mib << 20)
            file.write(os.urandom(1 << 20))
        file.seek((64 << 20) - 512)
        file.write(b"end." * 128)
    lab.run("initiator", "nbdcopy", "--flush", original, attachment.nbd)
    lab.run("initiator", "nbdcopy", attachment.nbd, back)
    run("cmp", original, back)
    # The image on the target holds it, and stayed sparse: zeroes and holes arrived as such.
    run("cmp", original, lab.path("disk0.img"))
    used = os.stat(lab.path("disk0.img")).st_blocks * 512
    check(used < 32 << 20, f"17 MiB of data take {used >> 20} MiB on the target's disk")
    attachment.detach()


@test()
def qemu_img(lab):
    """qemu-img convert in both directions and compare, and its map of holes."""
    attachment = serve(lab, mib=64)
    source = lab.path("source.raw")
    with open(source, "wb") as file:
        file.truncate(64 << 20)
        file.write(os.urandom(3 << 20))
        file.seek(40 << 20)
        file.write(os.urandom(2 << 20))
    remote = f"nbd+unix:///?socket={attachment.path}"
    lab.run("initiator", "qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, remote)
    lab.run("initiator", "qemu-img", "compare", "-f", "raw", "-F", "raw", source, remote)
    lab.run("initiator", "qemu-img", "convert", "-f", "raw", "-O", "qcow2", remote, lab.path("back.qcow2"))
    lab.run("initiator", "qemu-img", "compare", source, lab.path("back.qcow2"), "-f", "raw", "-F", "qcow2")
    extents = json.loads(lab.run("initiator", "qemu-img", "map", "--output=json", "-f", "raw", remote).stdout)
    data = sum(e["length"] for e in extents if e["data"])
    check(data < 16 << 20, f"5 MiB of data show as {data >> 20} MiB: block status does not tell holes: {extents}")
    changed = lab.path("changed.raw")
    run("cp", source, changed)
    with open(changed, "r+b") as file:
        file.seek(41 << 20)
        file.write(b"x")
    differs = lab.run("initiator", "qemu-img", "compare", "-f", "raw", "-F", "raw", changed, remote, check_exit=False)
    check(differs.returncode == 1, "compare must see one changed byte (else it proves nothing)")
    attachment.detach()


@test()
def small_requests(lab):
    """Any byte range works: one byte, straddling blocks, the very last; neighbours stay as they are."""
    attachment = serve(lab, mib=16)
    nbdsh(lab, attachment.nbd, """
import random
random.seed(5)
model = bytearray(65536)
for _ in range(400):
    at = random.randrange(len(model)); n = random.randrange(1, min(3000, len(model) - at) + 1)
    what = random.random()
    if what < 0.5:
        data = random.randbytes(n); h.pwrite(data, at); model[at:at+n] = data
    elif what < 0.6:
        h.zero(n, at); model[at:at+n] = bytes(n)
    else:
        got = h.pread(n, at)
        assert got == model[at:at+n], f"read of {n} at {at} differs"
assert h.pread(65536, 0) == model
h.pwrite(b"Z", size - 1)
assert h.pread(3, size - 3) == b"\\0\\0Z"
""")
    attachment.detach()


@test()
def small_requests_race(lab):
    """Neighbouring sub-block writes from four connections at once: no read-modify-write undoes another."""
    attachment = serve(lab, mib=16)
    nbdsh(lab, attachment.nbd, """
handles = [h] + [nbd.NBD() for _ in range(3)]
for other in handles[1:]:
    other.connect_uri(sys.argv[1])
for round in range(60):
    # 64 cells of 32 bytes in four blocks, all of them in flight at once from four hands.
    cells = [(i, i * 37 % 4) for i in range(64)]
    for i, hand in cells:
        handles[hand].aio_pwrite(nbd.Buffer.from_bytearray(bytearray([round + 1] * 32)), i * 32,
                                 lambda error: 1)
    for hand in handles:
        while hand.aio_in_flight() > 0:
            hand.poll(-1)
    got = h.pread(64 * 32, 0)
    assert got == bytes([round + 1]) * (64 * 32), f"round {round}: a cell was lost"
""")
    attachment.detach()


@test()
def commands(lab):
    """Trim, write zeroes, FUA, flush, cache and block status do what they say."""
    attachment = serve(lab, mib=16)
    nbdsh(lab, attachment.nbd, """
def allocation(offset, length):
    found = []
    h.block_status(length, offset, lambda context, at, entries, error: found.extend(entries) or 0)
    return found
h.pwrite(b"a" * 1048576, 0, nbd.CMD_FLAG_FUA)
h.flush()
assert h.pread(4096, 8192) == b"a" * 4096
assert allocation(0, 1048576)[1] == 0, "written blocks are allocated data"
h.trim(65536, 0)
assert h.pread(65536, 0) == bytes(65536), "trimmed blocks of this store read as zeroes"
h.zero(65536, 131072)
assert h.pread(65536, 131072) == bytes(65536)
h.zero(65536, 262144, nbd.CMD_FLAG_NO_HOLE)
assert h.pread(65536, 262144) == bytes(65536)
assert h.pread(512, 327680) == b"a" * 512, "a neighbour was zeroed, too"
hole = allocation(8 << 20, 1048576)
assert hole[1] & 3 == 3, f"an untouched part is a hole of zeroes: {hole}"
""")
    attachment.detach()


@test()
def illegal_requests(lab):
    """nbdsh with strict mode off: out of range, oversized, zero-length, unknown. Errors; the session lives."""
    attachment = serve(lab, mib=16)
    nbdsh(lab, attachment.nbd, """
refuses("a read beyond the end", "EINVAL", lambda: h.pread(512, size))
refuses("a read across the end", "EINVAL", lambda: h.pread(1024, size - 512))
refuses("a write beyond the end", "ENOSPC EINVAL", lambda: h.pwrite(bytes(512), size))
refuses("a write across the end", "ENOSPC EINVAL", lambda: h.pwrite(bytes(1024), size - 512))
refuses("an offset that overflows", "EINVAL", lambda: h.pread(512, (1 << 63) - 512))
refuses("a trim beyond the end", "EINVAL ENOSPC", lambda: h.trim(512, size))
refuses("a zero beyond the end", "EINVAL ENOSPC", lambda: h.zero(512, size))
refuses("a read of nothing", "EINVAL", lambda: h.pread(0, 0))
refuses("an unknown flag", "EINVAL", lambda: h.pread(512, 0, 0x8000))
refuses("a read of 63 MiB", "EINVAL EOVERFLOW ENOMEM", lambda: h.pread(63 << 20, 0))
h.pwrite(b"alive" + bytes(507), 512)
assert h.pread(5, 512) == b"alive"
""")
    attachment.detach()


def greet(attachment, flags=3):
    """A raw client after the handshake flags, before any option."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    client.connect(attachment.path)
    magic = client.recv(18, socket.MSG_WAITALL)
    check(magic[:16] == b"NBDMAGICIHAVEOPT", f"the greeting is {magic!r}")
    client.sendall(struct.pack(">I", flags))
    return client


def go(client, name=b""):
    """Enters transmission with NBD_OPT_GO."""
    data = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
    client.sendall(b"IHAVEOPT" + struct.pack(">II", 7, len(data)) + data)
    while True:
        head = client.recv(20, socket.MSG_WAITALL)
        kind, length = struct.unpack(">II", head[12:])
        if length:
            client.recv(length, socket.MSG_WAITALL)
        if kind == 1:
            return client
        check(kind < 1 << 31, f"NBD_OPT_GO: error reply {kind:#x}")


def read_request(handle, offset, length, kind=0, magic=0x25609513):
    return struct.pack(">IHHQQI", magic, 0, kind, handle, offset, length)


def hung_up(client):
    """Whether the server closes the connection (rather than to wait for more)."""
    try:
        while client.recv(65536):
            pass
        return True
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@test()
def broken_clients(lab):
    """Clients that break the protocol are hung up on or refused; a good one beside them notices nothing."""
    attachment = serve(lab, mib=16)
    good = go(greet(attachment))

    def still_good():
        good.sendall(read_request(7, 0, 512))
        check(good.recv(16 + 512, socket.MSG_WAITALL)[:8] == struct.pack(">II", 0x67446698, 0), "the good client suffers")

    def option(client, number, data, claimed=None, magic=b"IHAVEOPT"):
        client.sendall(magic + struct.pack(">II", number, len(data) if claimed is None else claimed) + data)
        return client

    def error_reply(client):
        head = client.recv(20, socket.MSG_WAITALL)
        check(len(head) == 20 and head[:8] == struct.pack(">Q", 0x3e889045565a9), f"an option got {head!r}")
        kind, length = struct.unpack(">II", head[12:])
        client.recv(length, socket.MSG_WAITALL) if length else None
        return kind

    # Refused, and the connection lives.
    client = greet(attachment)
    check(error_reply(option(client, 99, b"")) == 1 << 31 | 1, "an unknown option: NBD_REP_ERR_UNSUP")
    check(error_reply(option(client, 5, b"")) >= 1 << 31, "STARTTLS without TLS")
    check(error_reply(option(client, 3, b"surplus")) == 1 << 31 | 3, "LIST with data: NBD_REP_ERR_INVALID")
    check(error_reply(option(client, 7, b"\0\0\0\xff")) == 1 << 31 | 3, "GO whose name length lies: NBD_REP_ERR_INVALID")
    check(error_reply(option(client, 7, struct.pack(">I", 5) + b"wrong\0\0")) == 1 << 31 | 6, "GO elsewhere: NBD_REP_ERR_UNKNOWN")
    go(client)
    client.sendall(read_request(1, 0, 512, kind=77))
    check(client.recv(16, socket.MSG_WAITALL)[:8] == struct.pack(">II", 0x67446698, 22), "an unknown command: EINVAL")
    client.sendall(read_request(2, 0, 512))
    check(len(client.recv(16 + 512, socket.MSG_WAITALL)) == 528, "the connection lives")
    still_good()

    # Hung up on.
    check(hung_up(greet(attachment, flags=0xff00)), "unknown client flags")
    check(hung_up(option(greet(attachment), 7, b"", magic=b"WRONGOPT")), "an option with the wrong magic")
    check(hung_up(option(greet(attachment), 3, b"", claimed=0xffffffff)), "an option of 4 GiB")
    client = go(greet(attachment))
    client.sendall(read_request(1, 0, 512, magic=0xdeadbeef))
    check(hung_up(client), "a request with the wrong magic")
    still_good()

    # Those who vanish in the middle of a sentence.
    for half in (b"", b"IHAVE", b"IHAVEOPT" + struct.pack(">II", 7, 100) + b"half"):
        client = greet(attachment)
        client.sendall(half)
        client.close()
    client = go(greet(attachment))
    client.sendall(read_request(1, 4096, 65536, kind=1) + b"x" * 1000)
    client.close()
    for handle in range(64):
        client = go(greet(attachment))
        client.sendall(read_request(handle, 0, 1 << 20))
        client.close()
    still_good()
    good.close()
    until("an orderly detach", 10, lambda: attachment.detach(expect=None).returncode == 0, every=0.3)


@test(seconds=60)
def client_that_stops_reading(lab):
    """A client that asks for much and reads nothing does not disturb another, nor eat memory."""
    attachment = serve(lab, mib=64)
    pid = attachment.pid()
    stuck = go(greet(attachment))
    stuck.settimeout(0.5)
    try:
        for handle in range(4000):
            stuck.sendall(read_request(handle, 0, 1 << 20))
    except TimeoutError:
        pass  # no more is taken from it: as it should be
    good = go(greet(attachment))
    for handle in range(200):
        good.sendall(read_request(handle, handle * 4096, 4096))
        check(len(good.recv(16 + 4096, socket.MSG_WAITALL)) == 4112, "the good client starves")
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        rss = int(re.search(r"VmRSS:\s+(\d+) kB", file.read()).group(1))
    check(rss < 512 << 10, f"the attachment grew to {rss >> 10} MiB")
    good.close()
    refusal = attachment.detach(expect=1)
    check("NBD client" in refusal.stderr, f"detach must say that a client is connected: {refusal.stderr}")
    attachment.detach("--force", timeout=5)
    stuck.close()


@test(links=2)
def over_tcp(lab):
    """The NBD face on TCP: a client on another machine."""
    Target(lab, f"disk0={image(lab)}")
    from node import thinwire
    done = thinwire(lab, "attach", uri(lab, links=[1]), "--nbd", f"tcp:{lab.address('initiator', 2)}:10809",
                    "--tls", "off", "--as", "disk0", "--run-dir", lab.path("run"))
    check(done.stdout.strip(), "attach printed nothing")
    remote = f"nbd://{lab.address('initiator', 2)}:10809/disk0"
    check(lab.run("target", "nbdinfo", "--size", remote).stdout.strip() == str(128 << 20), "the size over TCP")
    with open(lab.path("blob"), "wb") as file:
        file.write(os.urandom(128 << 20))
    lab.run("target", "nbdcopy", "--flush", lab.path("blob"), remote)
    run("cmp", lab.path("blob"), lab.path("disk0.img"))
    thinwire(lab, "detach", "disk0", "--run-dir", lab.path("run"))


@test(seconds=60)
def disk_full(lab):
    """A full disk under a sparse image: that write fails with ENOSPC, the session lives."""
    folder = lab.path("small")
    os.mkdir(folder)
    run("truncate", "-s", "48M", lab.path("small.img"))
    run("mkfs.ext4", "-q", "-F", lab.path("small.img"))
    run("mount", "-o", "loop", lab.path("small.img"), folder)
    Target(lab, f"disk0={image(lab, 'small/disk0.img', mib=256)}")
    attachment = Attachment(lab)
    nbdsh(lab, attachment.nbd, """
h.pwrite(b"first" + bytes(4091), 0)
import os
data = os.urandom(1 << 20)
full = None
for mib in range(1, 250):
    try:
        h.pwrite(data, mib << 20)
    except nbd.Error as error:
        full = error
        break
assert full is not None, "249 MiB fitted onto 48"
import errno
assert full.errnum == errno.ENOSPC, f"not ENOSPC but {full}"
assert h.pread(5, 0) == b"first"
h.pwrite(b"again" + bytes(4091), 0)
assert h.pread(5, 0) == b"again"
h.trim(32 << 20, 1 << 20)
h.flush()
h.pwrite(data, 100 << 20)
assert h.pread(1 << 20, 100 << 20) == data
""")
    attachment.detach()


@test(seconds=60)
def image_shrinks(lab):
    """An image file cut short while it is served: I/O beyond its new end fails, the rest works on."""
    attachment = serve(lab, mib=64)
    nbdsh(lab, attachment.nbd, """
import os
h.pwrite(b"kept" + bytes(508), 0)
h.flush()
""" + f"os.truncate({lab.path('disk0.img')!r}, 1 << 20)" + """
try:
    got = h.pread(4096, 32 << 20)
    raise SystemExit("a read beyond the new end gave bytes instead of an error")
except nbd.Error as error:
    pass
assert h.pread(4, 0) == b"kept"
""")
    attachment.detach("--force")
