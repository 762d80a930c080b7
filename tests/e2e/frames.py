#!/usr/bin/python3
"""Frames made by hand, put on the wire of a laboratory as a stranger would.

As a program, inside a namespace:  frames.py send INTERFACE FILE     each line of FILE a frame in hex
                                   frames.py take INTERFACE SECONDS  frames of our EtherType, in hex
"""

import os
import socket
import struct
import sys
import time

ETHERTYPE = 0x88B5
ETH_P_ALL = 3
BROADCAST = bytes([0xFF] * 6)


def ethernet(payload, source, destination=BROADCAST, ethertype=ETHERTYPE):
    return destination + source + ethertype.to_bytes(2, "big") + payload


def send(lab, side, payloads, link=1, destination=BROADCAST):
    """Sends each payload as a frame of our EtherType from a side."""
    source = station(side, link)
    send_whole(lab, side, [ethernet(payload, source, destination) for payload in payloads], link)


def station(side, link=1):
    """The address of a side's interface."""
    return bytes([2, 0, 0, 0, link, 1 if side == "initiator" else 2])


def captured(path):
    """The Ethernet frames in a capture of `--pcap`."""
    with open(path, "rb") as file:
        data = file.read()
    magic, _, _, _, _, _, link_type = struct.unpack_from("<IHHiIII", data)
    if magic not in (0xA1B2C3D4, 0xA1B23C4D) or link_type != 1:
        raise ValueError(f"{path}: no capture of Ethernet that was written here")
    at, found = 24, []
    while at + 16 <= len(data):
        (taken,) = struct.unpack_from("<I", data, at + 8)
        found.append(data[at + 16:at + 16 + taken])
        at += 16 + taken
    return found


def send_whole(lab, side, whole, link=1):
    """Sends frames as they are, addresses and all, from a side."""
    path = lab.path(f"frames-{side}")
    with open(path, "w", encoding="ascii") as file:
        file.writelines(frame.hex() + "\n" for frame in whole)
    lab.run(side, "/usr/bin/python3", os.path.abspath(__file__), "send", f"eth{link}", path)


def taker(lab, port, seconds):
    """Starts to take frames in at a port of the switch, where those of an `xdp` link are seen, too; its
    stdout holds them, one a line, when it has ended."""
    return lab.start("switch", "/usr/bin/python3", os.path.abspath(__file__), "take", port, seconds, name="taker")


def main():
    what, interface, argument = sys.argv[1:]
    if what == "send":
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        wire.bind((interface, 0))
        with open(argument, encoding="ascii") as file:
            for line in file:
                wire.send(bytes.fromhex(line))
    else:
        # All of them: a bridge takes frames before who asks for one EtherType sees them.
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        wire.bind((interface, ETH_P_ALL))
        end = time.monotonic() + float(argument)
        while (left := end - time.monotonic()) > 0:
            wire.settimeout(left)
            try:
                frame = wire.recv(70000)
            except TimeoutError:
                break
            if frame[12:14] == ETHERTYPE.to_bytes(2, "big"):
                print(frame.hex(), flush=True)


if __name__ == "__main__":
    main()
