#!/usr/bin/python3
"""A peer that asks and never listens, over UDP: it opens a session, answers probes, and acknowledges nothing,
while it makes the target's lists as long as they get (docs/protocol.md, "Bounds").

    greedy.py KIND SECONDS RATE ADDRESS     in a namespace; at most RATE frames a second
                                            prints at its end what it sent, and how often it was thrown out

KIND is one of KINDS. When its session ends it opens the next; at its end it says BYE.
"""

import json
import random
import select
import socket
import struct
import sys
import time

PORT = 34997
HEADER, TAG = 80, 32
VERSION = 2
SESSION, HELLO, WELCOME, PROBE, PROBE_REPLY, UNKNOWN_SESSION, RETRY = 1, 2, 3, 7, 8, 9, 10
SLOTS, SLOT_BYTES = 128, 1 << 20
# Two seconds of these come to more than any credit.
PIECE = 4096
EXPORT = b"disk0"


def crc_table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


TABLE = list(crc_table())


def crc32c(data, crc=0xFFFFFFFF):
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc


def message(kind, body):
    body += bytes(-len(body) % 4)
    return struct.pack(">BBH", kind, 0, 4 + len(body)) + body


def text(value):
    return bytes([len(value)]) + value


def frame(kind, messages, session=0, epoch=0, number=0, path=0, payload=b"", pad=0, acks=None):
    end = HEADER + len(messages)
    flags, ack = (1, acks) if acks else (0, (0, 0, 0))
    public = struct.pack(">BBBBHHQQIHBx16x", VERSION, kind, 0, 0, end + len(payload) + pad, end, session, number, epoch,
                         end, path)
    whole = bytearray(public + struct.pack(">BBHIQQQ", flags, ack[0], 0, 0, ack[1], ack[2], 0))
    whole += messages + payload + bytes(pad)
    return whole


def sealed(whole):
    struct.pack_into(">I", whole, TAG, 0)
    struct.pack_into(">I", whole, TAG, crc32c(whole) ^ 0xFFFFFFFF)
    return whole


class Template:
    """A frame of which a few bytes change. A checksum of a changed frame is that of the whole exclusive-or
    what each changed byte contributes, so that nothing is summed anew."""

    tables = {}

    def __init__(self, whole, places):
        self.whole = sealed(whole)
        (self.crc,) = struct.unpack_from(">I", whole, TAG)
        self.places = [(at, self.table(len(whole) - at), whole[at]) for at in places]

    @classmethod
    def table(cls, left):
        if left not in cls.tables:
            zeroes = bytes(left - 1)
            ones = [crc32c(zeroes, TABLE[1 << bit]) for bit in range(8)]
            cls.tables[left] = [
                ones[0] * (n & 1) ^ ones[1] * (n >> 1 & 1) ^ ones[2] * (n >> 2 & 1) ^ ones[3] * (n >> 3 & 1)
                ^ ones[4] * (n >> 4 & 1) ^ ones[5] * (n >> 5 & 1) ^ ones[6] * (n >> 6 & 1) ^ ones[7] * (n >> 7 & 1)
                for n in range(256)]
        return cls.tables[left]

    def filled(self, values):
        crc = self.crc
        for (at, table, was), value in zip(self.places, values):
            self.whole[at] = value
            crc ^= table[was ^ value]
        struct.pack_into(">I", self.whole, TAG, crc)
        return self.whole


# Frames that are sent at once. Each gap is to be a turn of the target's of its own, and an acknowledgement.
BURSTS = {"gaps": 1}
NUMBER = [20, 21, 22, 23]       # the lower half of the packet number


class Peer:
    def __init__(self, address):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.socket.connect((address, PORT))
        self.chance = random.Random(7)
        self.sent = self.sessions = self.number = 0
        self.handle = None
        self.session = None
        self.cookie = 0

    def greet(self):
        """Opens a session."""
        self.sessions += 1
        self.number, self.handle, self.session = 0, None, None
        nonce = self.chance.getrandbits(64)
        end = time.monotonic() + 5
        while self.session is None:
            if time.monotonic() > end:
                raise SystemExit("greedy: not welcomed")
            hello = message(0x20, struct.pack(">QQ16sQHBBIIQ", nonce, 1 << 63 | self.sessions, b"greedy-greedy-gr",
                                              nonce, 8000, 1, 0, 1 << 20, 1 << 30, self.cookie)
                            + text(b"") + text(EXPORT) + text(b"greedy"))
            self.socket.send(sealed(frame(HELLO, hello)))
            self.listen(0.2)

    def listen(self, wait=0.0):
        """Takes in what came; answers probes."""
        while select.select([self.socket], [], [], wait)[0]:
            wait = 0
            try:
                got = self.socket.recv(70000)
            except ConnectionRefusedError:
                raise SystemExit("greedy: nobody is there") from None
            kind = got[1]
            if kind == RETRY:
                (self.cookie,) = struct.unpack_from(">Q", got, HEADER + 12)
            elif kind == WELCOME:
                (self.session,) = struct.unpack_from(">Q", got, HEADER + 12)
                (self.epoch,) = struct.unpack_from(">I", got, HEADER + 28)
            elif kind == PROBE and self.session:
                (token,) = struct.unpack_from(">Q", got, HEADER + 4)
                reply = message(0x31, struct.pack(">QII", token, 1 << 20, 1 << 30))
                self.number += 1
                self.socket.send(sealed(frame(PROBE_REPLY, reply, self.session, self.epoch, self.number, got[30])))
            elif kind == UNKNOWN_SESSION:
                self.session = None
            elif kind == SESSION:
                at, (end,) = HEADER, struct.unpack_from(">H", got, 28)
                while at < end:
                    if got[at] == 0x0B:
                        self.handle = struct.unpack_from(">II", got, at + 8)
                    at += struct.unpack_from(">H", got, at + 2)[0]

    def say(self, messages, payload=b"", gap=0, **options):
        """One frame with these messages, after a gap in the numbers."""
        self.number += 1 + gap
        self.give(sealed(frame(SESSION, messages, self.session, self.epoch, self.number, payload=payload, **options)))

    def give(self, whole):
        try:
            self.socket.send(whole)
        except BlockingIOError:
            pass
        self.sent += 1

    def next_number(self, gap=0):
        self.number += 1 + gap
        return self.number.to_bytes(4, "big")

    def template(self, messages, places=(), payload=b""):
        return Template(frame(SESSION, messages, self.session, self.epoch, payload=payload), NUMBER + list(places))


# Each kind is a generator for one session: it sends a frame between two yields.

def ask_clocks(transaction):
    return message(0x10, struct.pack(">IB3x", transaction, 1))


def attach(transaction):
    return message(0x0A, struct.pack(">IB3xQ", transaction, 1, 0) + text(EXPORT))


def gaps(peer):
    """One question that stays open, and one acknowledgement after the other behind it."""
    peer.say(ask_clocks(1))
    yield
    ping = peer.template(message(0x09, b""))
    while True:
        peer.give(ping.filled(peer.next_number(gap=1)))
        yield


def clocks(peer):
    many = peer.template(b"".join(ask_clocks(n) for n in range(1, 21)), [HEADER + 19 * 12 + 4 + n for n in range(4)])
    for transaction in range(1000, 1 << 31):
        peer.give(many.filled(peer.next_number() + transaction.to_bytes(4, "big")))
        yield


def attaches(peer):
    for transaction in range(1, 1 << 31):
        peer.say(attach(transaction))
        yield


def detaches(peer):
    detach = message(0x0D, struct.pack(">III", 1, 1, 1))
    many = peer.template(detach * 40)
    while True:
        peer.give(many.filled(peer.next_number()))
        yield


def request(slot, sequence, op, address, length, handle=(1, 1)):
    return message(0x01, struct.pack(">HBBIIIQI", slot, op, 0, sequence, *handle, address, length))


def repeats(peer):
    """One request, answered from its slot for ever."""
    many = peer.template(request(0, 1, 3, 0, 0) * 20)
    while True:
        peer.give(many.filled(peer.next_number()))
        yield


def attached(peer):
    """Attaches, unless the session ends meanwhile."""
    while peer.handle is None and peer.session is not None:
        peer.say(attach(1))
        peer.listen(0.05)
        yield


def reads(peer):
    """Reads whose data is never acknowledged, in every slot."""
    yield from attached(peer)
    if peer.session is None:
        return
    sequence = 1
    while True:
        for slot in range(SLOTS):
            peer.say(request(slot, sequence, 1, slot * 65536, 65536, peer.handle))
            yield
        sequence += 1


def data(peer):
    """Data without a request, a piece at a time, in every slot. Nothing is kept before an attach."""
    yield from attached(peer)
    if peer.session is None:
        return
    at = HEADER
    piece = peer.template(message(0x02, struct.pack(">HHIII", 0, 0, 1, 0, PIECE)),
                          [at + 4, at + 5, at + 12, at + 13, at + 14, at + 15], payload=bytes(PIECE))
    while True:
        for slot in range(SLOTS):
            for number in range(SLOT_BYTES // PIECE):
                place = slot.to_bytes(2, "big") + (number * PIECE).to_bytes(4, "big")
                peer.give(piece.filled(peer.next_number() + place))
                yield


def resets(peer):
    reset = message(0x06, struct.pack(">HHII", 0, 0, 1, 0))
    many = peer.template(reset * 40)
    while True:
        peer.give(many.filled(peer.next_number()))
        yield


def probes(peer):
    """Questions on every path number there is, most of which are no paths."""
    while True:
        for path in range(256):
            size = peer.chance.choice((100, 600, 1232))
            probe = message(0x30, struct.pack(">QII", peer.chance.getrandbits(64), 1 << 20, 1 << 30))
            peer.number += 1
            peer.give(sealed(frame(PROBE, probe, peer.session, peer.epoch, peer.number, path, pad=size - HEADER - 20)))
            yield


def nonsense(peer):
    """Well-formed room and acknowledgements that mean nothing."""
    bits = peer.chance.getrandbits
    while True:
        credit = message(0x05, struct.pack(">B3xII", bits(8), bits(32), bits(32)))
        last = bits(bits(6) or 1) + 70
        ranges = message(0x04, struct.pack(">BBHQQQQ", bits(3), 2, bits(16), last - 3, last, last - 60, last - 50))
        peer.say(credit * 4 + ranges + ask_clocks(bits(31)), gap=bits(3), acks=(bits(3), last, bits(60)))
        yield


KINDS = {kind.__name__: kind
         for kind in (gaps, clocks, attaches, detaches, repeats, reads, data, resets, probes, nonsense)}


def main():
    kind, seconds, rate, address = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    peer = Peer(address)
    start = time.monotonic()
    end = start + seconds
    while time.monotonic() < end:
        peer.greet()
        for _ in KINDS[kind](peer):
            if peer.sent % BURSTS.get(kind, 16) == 0:
                peer.listen()
                ahead = start + peer.sent / rate - time.monotonic()
                if ahead > 0:
                    time.sleep(min(ahead, 0.1))
            if peer.session is None or time.monotonic() > end:
                break
    if peer.session:
        # The next of its kind is to be measured alone.
        peer.say(message(0x0F, struct.pack(">HH", 0, 0)))
    print(json.dumps({"sent": peer.sent, "sessions": peer.sessions}))


if __name__ == "__main__":
    main()
