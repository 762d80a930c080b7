#!/usr/bin/python3
"""Greetings without end, put on the wire of a laboratory as somebody who means harm would.

As a program, inside a namespace:

    flood.py forged|own packet|udp RATE COUNT

sends COUNT HELLOs at RATE a second, each another, and prints how many it sent in how many seconds.
`forged` puts others' addresses under them and hears nothing; `own` sends all from one address, and over
`udp` gives back the cookies that it gets. With FLOOD_KEY, the id of a key in hex as everybody can read it on
the wire, they are KEYED_HELLOs of somebody who does not have that key.
"""

import os
import socket
import struct
import sys
import time

import frames

TARGET_MAC, TARGET_IP = bytes([2, 0, 0, 0, 1, 2]), bytes([10, 77, 1, 2])
PORT = 34997
HEADER_BYTES, TAG_AT, VERSION, HELLO, RETRY, KEYED_HELLO = 80, 32, 2, 2, 10, 11
KEY = bytes.fromhex(os.environ.get("FLOOD_KEY", ""))
# Frames that are made beforehand: more than a target keeps sessions.
DISTINCT = 2000

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def hello(number, cookie=0, version=VERSION):
    """A HELLO of an initiator of this number, for any node and the export `disk0`. Version 1 had another header."""
    if KEY:
        # An ephemeral key, and what was sealed with another key than that of the id.
        secret = os.urandom(32 + 100)
        body = struct.pack(">QQ8sQB3xB", number, 1 << 63 | number, KEY, cookie, 0b111, 0)
        return outside(KEYED_HELLO, 0x25, body + struct.pack(">H", len(secret)) + secret)
    body = struct.pack(">QQ16sQHBBII", number, 1 << 63 | number, number.to_bytes(16, "big"), number, 8986, 1, 0, 64, 1 << 20)
    body += cookie.to_bytes(8, "big") if version > 1 else b""
    body += b"\0" + b"\5disk0" + b"\5flood"
    return outside(HELLO, 0x20, body, version)


def outside(kind, number, body, version=VERSION):
    """A frame outside of any session, with one message."""
    body += bytes(-len(body) % 4)
    message = struct.pack(">BBH", number, 0, 4 + len(body)) + body
    header_bytes, end_at, tag_at = (HEADER_BYTES, 28, TAG_AT) if version > 1 else (72, 36, 16)
    end = header_bytes + len(message)
    head = bytearray(header_bytes)
    struct.pack_into(">BBHHH", head, 0, version, kind, 0, end, end)
    struct.pack_into(">H", head, end_at, end)
    struct.pack_into(">I", head, tag_at, crc32c(bytes(head) + message))
    return bytes(head) + message


def datagram(payload, source, port):
    """An IPv4 packet with a UDP datagram without a checksum."""
    udp = struct.pack(">HHHH", port, PORT, 8 + len(payload), 0) + payload
    ip = bytearray(struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, 17, 0, source, TARGET_IP))
    total = sum(struct.unpack(">10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into(">H", ip, 10, ~(total + (total >> 16)) & 0xFFFF)
    return bytes(ip) + udp


def forged(over, version, own):
    """Whole Ethernet frames, of many senders or of one."""
    for number in range(1, DISTINCT + 1):
        payload = hello(number, version=version)
        station = bytes([2, 0, 0, 9]) + (0 if own else number).to_bytes(2, "big")
        if over == "udp":
            source = bytes([10, 77, 1, 128 + number % 127])
            yield frames.ethernet(datagram(payload, source, 1024 + number), station, TARGET_MAC, 0x0800)
        else:
            yield frames.ethernet(payload, station, TARGET_MAC)


def pour(send, batch, rate, count):
    """Sends `count` frames of `batch` in rotation; `batch` may be exchanged by what `send` returns."""
    begin, sent = time.monotonic(), 0
    while sent < count:
        due = min(count, int((time.monotonic() - begin) * rate) + 1)
        while sent < due:
            batch = send(batch[sent % len(batch)]) or batch
            sent += 1
        time.sleep(0.001)
    return sent, time.monotonic() - begin


def main():
    who, over, rate, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    version = int(os.environ.get("FLOOD_VERSION", VERSION))
    lost = 0
    if over == "udp" and who == "own":
        wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        wire.connect((socket.inet_ntoa(TARGET_IP), PORT))
        wire.setblocking(False)
        state = {"at": 0.0, "next": 0}

        def send(frame):
            nonlocal lost
            try:
                wire.send(frame)
            except OSError:
                lost += 1
            state["next"] += 1
            if state["next"] % 64:
                return None
            cookie = 0
            try:
                while answer := wire.recv(2048):
                    if answer[1] == RETRY:
                        cookie = int.from_bytes(answer[HEADER_BYTES + 12:HEADER_BYTES + 20], "big")
            except OSError:
                pass
            # One is good for some seconds.
            if cookie and time.monotonic() > state["at"] + 1:
                state["at"] = time.monotonic()
                first = state["next"] << 16
                return [hello(first + n, cookie, version) for n in range(DISTINCT)]
            return None
        batch = [hello(number, version=version) for number in range(1, DISTINCT + 1)]
    else:
        wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        wire.bind(("eth1", 0))

        def send(frame):
            nonlocal lost
            try:
                wire.send(frame)
            except OSError:
                lost += 1
        batch = list(forged(over, version, who == "own"))
    print("begin", flush=True)
    sent, seconds = pour(send, batch, rate, count)
    print(f"{sent - lost} in {seconds:.2f} s", flush=True)


if __name__ == "__main__":
    main()
