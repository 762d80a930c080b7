#!/usr/bin/python3
"""A client of the Ethernet Block Device protocol, written from docs/ebd.md alone. As a program, inside a namespace, it
writes, reads back with and without loss, and prints its counters as a line of JSON; ends with 1 if anything is wrong."""

import argparse
import collections
import json
import select
import socket
import struct
import time
from types import SimpleNamespace

HANDSHAKE, READ, WRITE, SYNC_WRITE, FLUSH, END, SHUTDOWN, CONGESTION, NAK, WACK = range(1, 11)
IMPLEMENTED, FROM_SERVER, WANTS_WACK = 0x20, 0x40, 0x80
IDEAL_HEADER = struct.Struct("<BBBBBBI")  # type, identifier, major, minor, flow control, length, sector
IMPLEMENTED_HEADER = struct.Struct("<BBBBHIII")  # type, client, index, length, flow control, sector, handle, reserved
Told = collections.namedtuple("Told", "sectors request_sectors block_bytes credit state index", defaults=[0, 0, 0, 1, 0, 0])
REASONS = ["", "range", "media", "unknown", "fenced", "read only", "busy", "no such device", "other form",
           "no space", "too many clients", "changed", "block size"]
# After TRIES timeouts a server is away, after more it is given up, and if it comes back too often for one request.
SECTOR, LATE_SECONDS, TRIES, HANDSHAKE_TRIES, RETURNS, BLOCK_BITS = 512, 2, 4, 10, 8, 17


class Nak(Exception):
    """The server refused a request, for a reason with a number and a name."""
    reason = property(lambda self: self.args[0])


def request_of(code, sector, count, data=b"", block=256, flow=0):
    """`missing` has how many sectors are to come yet, by the first of each answer; `sent` has when it went, by number."""
    missing = {at: min(block, sector + count - at) for at in range(sector, sector + max(count, 1), block)}
    return SimpleNamespace(code=code, sector=sector, count=count, data=data, flow=flow, missing=missing, blocks={}, sent={},
                           tries=0, since=0, patience=4 if code in (SYNC_WRITE, FLUSH) else 1)


class Client:
    """Of one device. `drop` says of a frame whether it counts as lost; `received` has those of `dropped`, too."""

    def __init__(self, interface, server_mac, major, minor, form="implemented", ethertype=0x88b6, client=7, block=4096):
        self.server, self.major, self.minor, self.client, self.block = server_mac, major, minor, client, block
        self.implemented, self.header = form != "ideal", IDEAL_HEADER if form == "ideal" else IMPLEMENTED_HEADER
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.socket.bind((interface, ethertype))
        self.ethernet = server_mac + self.socket.getsockname()[4] + ethertype.to_bytes(2, "big")
        self.drop, self.sent, self.received, self.dropped, self.handshakes = lambda frame: False, 0, 0, 0, 0
        # Numbers not from 0: answers to whoever was here at this address a moment ago may still come.
        self.number, self.used, self.writes, self.timeout, self.credit = time.time_ns(), {}, False, 0.25, 1
        # What the server may lose, by sector; until when copies of a write may land on what is written now.
        self.unflushed, self.late_until, self.told = {}, 0, Told()

    def handshake(self, writes=False, takes_over=False, state=0):
        """Waits for the server. Returns what it told: sectors, request_sectors, block_bytes, credit, state, index."""
        asked = request_of(HANDSHAKE, 0, 0, struct.pack("<II", self.block, state), flow=writes | takes_over << 1)
        self._exchange([asked], HANDSHAKE_TRIES)
        self.writes, self.handshakes = writes, self.handshakes + 1
        return self.told

    def read(self, sector, count):
        (request,) = self._ask(lambda step: [request_of(READ, sector, count, block=step // SECTOR)])
        return b"".join(data for _, data in sorted(request.blocks.items()))

    def write(self, sector, data, sync=False):
        time.sleep(max(0, self.late_until - time.monotonic()))
        self._ask(lambda step: [
            request_of(SYNC_WRITE if sync else WRITE, sector + at // SECTOR, min(step, len(data) - at) // SECTOR,
                       data[at:at + step]) for at in range(0, len(data), step)])
        self.writes = True

    def flush(self):
        self._ask(lambda _: [request_of(FLUSH, self.number, 0)])
        self.unflushed.clear()

    def end(self):
        self._send(request_of(END, 0, 0))

    def _ask(self, make):
        """Has what `make` makes for a block size answered, by a server that may go away or forget us."""
        for attempt in range(RETURNS):
            try:
                self._exchange([request_of(WRITE, at, 1, data) for at, data in self.unflushed.items() if attempt])
                return self._exchange(make(self.told.block_bytes))
            except TimeoutError:
                self.handshake(self.writes, state=self.told.state)
        raise TimeoutError("the server shakes hands, and answers nothing else")

    def _exchange(self, requests, tries=TRIES):
        """Sends as the credit allows, and again what is not answered in time. TimeoutError: hands are to be shaken."""
        new, waiting = list(requests), []
        while new or waiting:
            asked = sum(sum(request.missing.values()) for request in waiting)
            if new and (new[0].code == HANDSHAKE or self.credit >= max(2 * self.told.request_sectors, asked + new[0].count)):
                waiting.append(self._send(new.pop(0), not waiting))
                continue
            if not waiting:
                time.sleep(0.1)
                waiting = [self._send(request_of(READ, 0, 1))]  # To hear of more credit.
            self._receive(min(map(self._deadline, waiting)), waiting)
            waiting = [request for request in waiting if request.missing]
            for request in [request for request in waiting if time.monotonic() >= self._deadline(request)]:
                request.tries += 1
                if request.tries == tries:
                    raise TimeoutError("the server does not answer")
                self._send(request)
        return requests

    def _deadline(self, request):
        scarce = max(self.told.credit / max(self.credit, 1), 1)
        return request.since + min(5, self.timeout * request.patience * scarce * 2 ** request.tries)

    def _send(self, request, first=True):
        """Sends what is missing of it, each time with another number. An answer to any of them counts."""
        writes = request.code in (WRITE, SYNC_WRITE)
        self.late_until = time.monotonic() + LATE_SECONDS if writes and request.sent else self.late_until
        wack = WANTS_WACK * (request.code == READ or first and writes)
        kind, payload = request.code | self.implemented * (IMPLEMENTED | wack), request.data
        for sector, count in list(request.missing.items()) if request.blocks else [(request.sector, request.count)]:
            self.number = number = (self.number + 1) % (1 << 32 if self.implemented else 256)
            # There are but 256 identifiers.
            time.sleep(max(0, self.used.get(number, 0) + LATE_SECONDS - time.monotonic()))
            fields = number, self.major, self.minor, request.flow, count, sector
            if self.implemented and request.code == HANDSHAKE:
                size, state = struct.unpack("<II", request.data)
                number = size | number % (1 << 32 - BLOCK_BITS) << BLOCK_BITS
                fields, payload = (self.client, self.minor, 0, request.flow, self.major, number, state), b""
            elif self.implemented:
                fields = self.client, self.told.index, count, 0, sector, number, 0
            self.socket.send(self.ethernet + self.header.pack(kind, *fields) + payload)
            request.since = request.sent[number] = time.monotonic()
            self.used, self.sent = {} if self.implemented else self.used | {number: request.since}, self.sent + 1
        return request

    def _receive(self, deadline, waiting):
        ready = select.select([self.socket], [], [], max(0, deadline - time.monotonic()))[0]
        frame = self.socket.recv(1 << 16) if ready else b""
        if frame[6:12] != self.server or len(frame) < 14 + self.header.size:
            return
        lost = self.drop(frame)
        self.received, self.dropped = self.received + 1, self.dropped + lost
        kind, *fields = self.header.unpack_from(frame, 14)
        code, payload = kind & 0x1f, frame[14 + self.header.size:]
        if self.implemented:
            client, index, length, credit, sector, number, state = fields
            size, ours = number % (1 << BLOCK_BITS), client == self.client
        else:
            number, major, minor, credit, length, sector = fields
            size, state = struct.unpack_from("<II", payload + bytes(8))
            index, ours = None, (major, minor) == (self.major, self.minor)
        if lost or kind != code | FROM_SERVER | self.implemented * IMPLEMENTED:
            return
        if code == CONGESTION and (ours or frame[:6] == b"\xff" * 6):
            self.credit = credit
        for request in [request for request in waiting if ours and code in (NAK, WACK, request.code)]:
            when = request.sent.get(number)
            if code == HANDSHAKE and self.implemented:
                # The block size in it may be another.
                when = {handle >> BLOCK_BITS: at for handle, at in request.sent.items()}.get(number >> BLOCK_BITS)
            if when is None or code == READ and not request.missing.get(sector) == length <= len(payload) // SECTOR:
                continue
            if code == NAK:
                name = dict(enumerate(REASONS)).get(length)
                raise TimeoutError("the server has forgotten us") if name == "unknown" else Nak(length, name)
            self.credit, now = credit, time.monotonic()
            if code == WACK:
                for other in waiting:
                    other.patience = 4 if other.code == request.code else other.patience
                continue
            self.timeout = min(max((self.timeout + now - when) / 2, 0.05), 2)
            request.since, request.tries, request.blocks[sector] = now, 0, payload[:length * SECTOR]
            del request.missing[sector if code == READ else request.sector]
            if code == HANDSHAKE:
                self.told = Told(sector, length, size, credit, state, index)
            elif code != READ:
                self.unflushed |= {request.sector + at: request.data[at * SECTOR:][:SECTOR] for at in range(request.count)}


def check(client):
    """Raises what is wrong."""
    told, pattern = client.handshake(writes=True), bytes(at * 7 // 3 % 251 for at in range(65536))
    client.write(8, pattern)
    client.flush()
    step, answers = min(told.request_sectors, 128), iter(range(1, 1 << 30))
    for lossy in (False, True):
        client.drop = lambda frame: lossy and frame[14] & 0x5f == FROM_SERVER | READ and next(answers) % 5 == 0
        if b"".join(client.read(8 + at, min(step, 128 - at)) for at in range(0, 128, step)) != pattern:
            raise ValueError("what was read is not what was written")
    try:
        raise ValueError(f"a READ beyond the end got {client.read(told.sectors, 1)}")
    except Nak as nak:
        if nak.reason != REASONS.index("range"):
            raise
    client.end()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("interface", "server_mac", "device"):
        parser.add_argument(name)
    parser.add_argument("--form", choices=("implemented", "ideal"), default="implemented")
    parser.add_argument("--ethertype", type=lambda text: int(text, 0), default=0x88b6)
    args = parser.parse_args()
    mac, (major, minor) = bytes.fromhex(args.server_mac.replace("-", "").replace(":", "")), map(int, args.device.split("."))
    check(client := Client(args.interface, mac, major, minor, args.form, args.ethertype))
    print(json.dumps({name: getattr(client, name) for name in ("sent", "received", "dropped", "handshakes")}))
