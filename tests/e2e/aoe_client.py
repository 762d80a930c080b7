#!/usr/bin/python3
"""A station that speaks AoE, written from AoEr11 and docs/aoe.md, not from the code. As a program, inside a namespace, it asks who
has a device, identifies, writes, reads and flushes it, sets its config string, and reserves and releases it; prints what it was
told as a line of JSON, and ends with 1 if anything is wrong."""

import argparse
import json
import socket
import struct
import sys
import time

ETHER_TYPE, BROADCAST = 0x88A2, b"\xff" * 6
HEADER = struct.Struct(">BBHBBI")  # version and flags, error, major, minor, command, tag
ATA, QUERY, MASK, RESERVE = range(4)
READ_EXT, WRITE_EXT, FLUSH_EXT, IDENTIFY, POWER = 0x24, 0x34, 0xEA, 0xEC, 0xE5


class Refused(Exception):
    """The server says so, with the number of its error."""


class Station:
    def __init__(self, interface, shelf, slot):
        self.shelf, self.slot, self.tag, self.server = shelf, slot, time.time_ns() & 0xFFFFFFF, BROADCAST
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.socket.bind((interface, ETHER_TYPE))
        self.mac = self.socket.getsockname()[4]

    def ask(self, command, body, seconds=5):
        """The answer to a request, behind its header; None if there is none. Asked again each half second."""
        for _ in range(2 * seconds):
            self.tag += 1
            header = HEADER.pack(0x10, 0, self.shelf, self.slot, command, self.tag)
            self.socket.send(self.server + self.mac + struct.pack(">H", ETHER_TYPE) + header + body)
            until = time.monotonic() + 0.5
            while (left := until - time.monotonic()) > 0:
                self.socket.settimeout(left)
                try:
                    frame = self.socket.recv(65536)
                except socket.timeout:
                    break
                flags, error, shelf, slot, told, tag = HEADER.unpack_from(frame, 14)
                if flags & 0xF8 != 0x18 or (shelf, slot, told, tag) != (self.shelf, self.slot, command, self.tag):
                    continue
                self.server = frame[6:12]
                if flags & 4:
                    raise Refused(error)
                return frame[24:]
        return None

    def query(self, command=0, text=b"", seconds=5):
        told = self.ask(QUERY, struct.pack(">HHBBH", 0, 0, 0, command, len(text)) + text, seconds)
        if told is None:
            return None
        buffers, _, sectors, both, length = struct.unpack_from(">HHBBH", told)
        assert both == 0x10 | command, both
        return buffers, sectors, told[8:8 + length]

    def ata(self, command, sector=0, sectors=0, data=b"", flags=0x40):
        flags |= 1 if data else 0
        told = self.ask(ATA, bytes([flags, 0, sectors, command]) + sector.to_bytes(6, "little") + bytes(2) + data)
        assert told is not None, f"command {command:#x} was not answered"
        return told[3], told[1], told[2], told[12:]

    def reserve(self, command, *macs):
        told = self.ask(RESERVE, bytes([command, len(macs)]) + b"".join(macs))
        return [told[2 + 6 * at:8 + 6 * at] for at in range(told[1])]


OTHER = bytes([2, 0, 0, 0, 0, 9])
RESERVED = 6


def set_all(station):
    """A string, and the device for itself."""
    assert station.query(3, b"kept")[2] == b"kept"
    assert station.reserve(1, station.mac) == [station.mac]
    assert station.ata(WRITE_EXT, 8, 2, bytes(1024))[0] == 0x40


def see_all(station):
    """Both are there; passes the device on to somebody else."""
    assert station.query()[2] == b"kept" and station.reserve(0) == [station.mac], (station.query(), station.reserve(0))
    assert station.ata(WRITE_EXT, 8, 2, bytes(1024))[0] == 0x40
    assert station.reserve(1, OTHER) == [OTHER]


def see_refusal(station):
    """It is the other's; takes that back by force."""
    assert station.reserve(0) == [OTHER], station.reserve(0)
    try:
        station.ata(WRITE_EXT, 8, 2, bytes(1024))
        raise AssertionError("what is reserved for another was written")
    except Refused as refused:
        assert refused.args[0] == RESERVED, refused
    assert station.reserve(2) == []


def see_nothing(station):
    """Only the string is left."""
    assert station.query()[2] == b"kept" and station.reserve(0) == []
    assert station.ata(WRITE_EXT, 8, 2, bytes(1024))[0] == 0x40


KEPT = {"set": set_all, "seen": see_all, "refused": see_refusal, "gone": see_nothing}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("interface")
    parser.add_argument("device")
    parser.add_argument("--kept", choices=KEPT, help="one step of what a target has to keep from one life to the next")
    args = parser.parse_args()
    shelf, slot = map(int, args.device.split("."))
    station = Station(args.interface, shelf, slot)
    if args.kept:
        return KEPT[args.kept](station)
    buffers, most, text = station.query()
    assert buffers >= 1 and most >= 2 and text == b"", (buffers, most, text)
    status, _, _, drive = station.ata(IDENTIFY, sectors=1, flags=0)
    assert status == 0x40 and sum(drive[:512]) % 256 == 0, status
    sectors = int.from_bytes(drive[200:208], "little")
    data = bytes(range(256)) * 4
    assert station.ata(WRITE_EXT, 8, 2, data)[0] == 0x40
    status, _, left, read = station.ata(READ_EXT, 8, 2)
    assert (status, left, read[:1024]) == (0x40, 0, data), "what was read is not what was written"
    assert station.ata(FLUSH_EXT)[0] == 0x40
    assert station.ata(POWER)[:3] == (0x40, 0, 0xFF)
    assert station.ata(READ_EXT, sectors, 1)[:2] == (0x41, 0x10), "a sector behind the end"
    assert station.ata(0x25, 0, 1)[:2] == (0x41, 0x04), "DMA"
    for sectors_asked, refusal in ((0xFF, 2), (most + 1, 2)):
        try:
            station.ata(READ_EXT, 0, sectors_asked)
            raise AssertionError("more sectors than a frame holds")
        except Refused as refused:
            assert refused.args[0] == refusal, refused
    try:
        # Where Ethernet pads what is short the registers are zeroes, and no command.
        assert station.ask(ATA, b"")[3] == 0x41
    except Refused as refused:
        assert refused.args[0] == 2, refused
    assert station.query(3, b"a shelf")[2] == b"a shelf"
    assert station.query(2, b"a ")[2] == b"a shelf" and station.query(1, b"a ", seconds=1) is None
    try:
        station.query(3, b"another")
        raise AssertionError("a string that is set is set")
    except Refused as refused:
        assert refused.args[0] == 4, refused
    assert station.reserve(0) == []
    assert station.reserve(1, station.mac) == [station.mac]
    assert station.ata(WRITE_EXT, 8, 2, data)[0] == 0x40
    assert station.reserve(1) == []
    print(json.dumps({"server": station.server.hex("-"), "sectors": sectors, "buffers": buffers, "most": most}))


if __name__ == "__main__":
    sys.exit(main())
