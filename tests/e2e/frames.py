#!/usr/bin/python3
"""Frames made by hand, put on the wire of a laboratory as a stranger would.

As a program, inside a namespace:  frames.py send INTERFACE FILE     each line of FILE a frame in hex
                                   frames.py take INTERFACE SECONDS  frames of our EtherType, in hex
"""

import os
import socket
import sys
import time

ETHERTYPE = 0x88B5
BROADCAST = bytes([0xFF] * 6)


def ethernet(payload, source, destination=BROADCAST, ethertype=ETHERTYPE):
    return destination + source + ethertype.to_bytes(2, "big") + payload


def send(lab, side, payloads, link=1, destination=BROADCAST):
    """Sends each payload as a frame of our EtherType from a side."""
    number = 1 if side == "initiator" else 2
    source = bytes([2, 0, 0, 0, link, number])
    path = lab.path(f"frames-{side}")
    with open(path, "w", encoding="ascii") as file:
        for payload in payloads:
            file.write(ethernet(payload, source, destination).hex() + "\n")
    lab.run(side, "/usr/bin/python3", os.path.abspath(__file__), "send", f"eth{link}", path)


def taker(lab, side, seconds, link=1):
    """Starts to take frames in on a side; its stdout holds them, one a line, when it has ended."""
    return lab.start(side, "/usr/bin/python3", os.path.abspath(__file__), "take", f"eth{link}", seconds, name="taker")


def main():
    what, interface, argument = sys.argv[1:]
    if what == "send":
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        wire.bind((interface, 0))
        with open(argument, encoding="ascii") as file:
            for line in file:
                wire.send(bytes.fromhex(line))
    else:
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
        wire.bind((interface, ETHERTYPE))
        end = time.monotonic() + float(argument)
        while (left := end - time.monotonic()) > 0:
            wire.settimeout(left)
            try:
                print(wire.recv(70000).hex(), flush=True)
            except TimeoutError:
                break


if __name__ == "__main__":
    main()
