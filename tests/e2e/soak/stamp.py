"""What stands in a sector of a disk under test: whose it is, where it belongs, which write made it, and a checksum
over all of it. So a sector that is lost, old, altered, or of elsewhere, says so itself."""

import struct
import zlib

SECTOR = 512
MAGIC = b"soak"
# Magic, checksum of all behind it, disk, nothing, sector, version; then the last two again and again.
HEAD = struct.Struct("<4sIIIQQ")
SUMMED = struct.Struct("<IIQQ")
FILL = struct.Struct("<QQ")
FILLS = (SECTOR - HEAD.size) // FILL.size
ZEROES = bytes(SECTOR)
# What an untouched sector, and one that was zeroed, is.
ZERO = 0


def made(disk, first, count, version):
    """The bytes of `count` sectors from sector `first` on, as write `version` has them."""
    parts = []
    for sector in range(first, first + count):
        body = SUMMED.pack(disk, 0, sector, version) + FILL.pack(sector, version) * FILLS
        parts += (MAGIC, zlib.crc32(body).to_bytes(4, "little"), body)
    return b"".join(parts)


def found(disk, first, data):
    """What each sector of `data`, which was read from sector `first` on, is: its version, `ZERO`, or, of one that no
    write has made, a text that says what is wrong with it."""
    view, versions = memoryview(data), []
    for at in range(0, len(data), SECTOR):
        magic, summed, whose, _, sector, version = HEAD.unpack_from(view, at)
        right = magic == MAGIC and whose == disk and sector == first + at // SECTOR
        if right and zlib.crc32(view[at + 8:at + SECTOR]) == summed:
            versions.append(version)
        else:
            versions.append(what_it_is(disk, first + at // SECTOR, bytes(view[at:at + SECTOR])))
    return versions


def what_it_is(disk, place, data):
    """`ZERO`, or what is wrong with a sector."""
    if data == ZEROES:
        return ZERO
    magic, summed, whose, _, sector, version = HEAD.unpack_from(data)
    if magic != MAGIC:
        return "no sector of ours"
    if zlib.crc32(data[8:]) != summed:
        return f"altered, it says sector {sector}, version {version}"
    if whose != disk:
        return f"sector {sector}, version {version} of another disk, {whose}"
    return f"misplaced, it is sector {sector}, version {version}" if sector != place else "sound"
