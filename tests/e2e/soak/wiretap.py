#!/usr/bin/python3
"""What passes a port of the switch, of whatever protocol, captured and sent again.

    wiretap.py record PORT SECONDS FILE
    wiretap.py play FROM TO FILE SEED      what came from the machine at port FROM leaves at port TO

Frames that the kernel carries as a train come as one, larger than any; those are left out, as no cable has them.
"""

import os
import random
import socket
import struct
import sys
import time

ETH_P_ALL = 3
LENGTH = struct.Struct("<I")
# Frames that are sent again: more would be a flood, which is another murder.
MOST = 4000


def record(lab, seconds, link=1):
    """Captures a link in both directions. Returns the file for each port."""
    tapes, takers = {}, []
    for port in (f"i{link}", f"t{link}"):
        tapes[port] = lab.path(f"{port}.tape")
        takers.append(lab.start("switch", "/usr/bin/python3", os.path.abspath(__file__), "record", port, seconds, tapes[port]))
    for taker in takers:
        taker.wait(seconds + 60)
    return tapes


def play(lab, tapes, seed):
    """Sends all of it again, to where it went and to where it came from."""
    ports = list(tapes)
    for source, target in zip(ports, ports[::-1]):
        for to in (target, source):
            lab.run("switch", "/usr/bin/python3", os.path.abspath(__file__), "play", source, to, tapes[source], str(seed))


def as_on_a_cable(frame):
    """A frame whose UDP checksum nobody has computed yet, since an adapter was to, says that it has none."""
    frame = bytearray(frame)
    if frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_UDP:
        at = 14 + (frame[14] & 15) * 4 + 6
        frame[at:at + 2] = b"\0\0"
    return bytes(frame)


def main():
    what, port, *rest = sys.argv[1:]
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL if what == "record" else 0))
    if what == "record":
        wire.bind((port, ETH_P_ALL))
        ends = time.monotonic() + float(rest[0])
        with open(rest[1], "wb") as tape:
            while (left := ends - time.monotonic()) > 0:
                wire.settimeout(left)
                try:
                    frame, (_, _, kind, _, _) = wire.recvfrom(70000)
                except TimeoutError:
                    break
                if kind != socket.PACKET_OUTGOING:
                    tape.write(LENGTH.pack(len(frame)) + as_on_a_cable(frame))
        return
    to, path, seed = rest
    wire.bind((to, 0))
    with open(path, "rb") as tape:
        data = tape.read()
    at, frames = 0, []
    while at < len(data):
        (length,) = LENGTH.unpack_from(data, at)
        frames.append(data[at + LENGTH.size:at + LENGTH.size + length])
        at += LENGTH.size + length
    chance = random.Random(int(seed))
    frames = frames[:MOST // 2]
    for frame in frames + chance.sample(frames, len(frames)):
        try:
            wire.send(frame)
        except OSError:
            continue


if __name__ == "__main__":
    main()
