"""Murder under loads that know each byte (soak/, which `make soak` runs for longer): each kind in its short form, a
writer that is frozen, replaced and woken over each link, and that what judges them finds what somebody has planted."""

import os
import random
import sqlite3

import node
from harness import check
from registry import test
from soak import frozen, stamp
from soak.loads import BlockLoad, DatabaseLoad
from soak.murders import KINDS
from soak.murders.murder import Murder
from soak.session import Session, Settings
from soak.world import START_S, Draw, World

SEED = 20261126


def drawn(**what):
    """A world whose parts are told, not drawn."""
    plain = Draw(over="packet", security="keys", links=2, shards=1, wrapper="", system="", has_gateway=False,
                 postgres=False, rate=150.0)
    return Draw(**vars(plain) | what)


# Each kind of murder is in one of these, and no world is like another.
SHORT = {
    "plain": {"draw": drawn(shards=2, wrapper=",writeback", system="ext4"), "names": (
        "kill-target", "stop-target", "kill-initiator", "stop-initiator", "kill-face", "stop-face", "loss", "replay")},
    "gateway": {"draw": drawn(over="udp", security="authenticate", has_gateway=True, wrapper=",cache=4M", system="xfs"),
                "names": ("kill-gateway", "stop-gateway", "kill-target", "outage", "duplication", "flaps", "interface")},
    "machine": {"draw": drawn(over="xdp", security="insecure"), "names": (
        "full-disk", "descriptors", "memory", "clock", "config", "mtu", "cable", "corruption")},
}


@test(seconds=400, links=2, each=SHORT)
def short(lab, draw, names):
    """Each of these murders once, and every byte compared behind it."""
    session = Session(Settings(seed=SEED, only=names, kills=len(names), is_short=True, world_murders=len(names),
                               seconds_max=5.0))
    session.perform(lab, draw, random.Random(SEED))
    lines = "\n".join(session.table.lines())
    check(session.table.is_clean, lines)
    done = [name for name in names if session.table.rows[name].times or session.table.rows[name].not_here]
    check(done == list(names), f"done are only {done}:\n{lines}")


FROZEN = {f"{security}_{over}{'_gateway' if has_gateway else ''}": {
    "draw": drawn(over=over, security=security, links=1, has_gateway=has_gateway), "security": security}
    for security in ("keys", "insecure") for over in node.LINKS for has_gateway in (False, True)}


@test(seconds=240, each=FROZEN)
def frozen_writer(lab, draw):
    """A writer is frozen in the middle of a write, another takes over, the first is woken: not a byte of it lands."""
    world = World(lab, draw, random.Random(SEED))
    try:
        bad = KINDS["frozen-writer"](world.chance, True).strike(world)
        check(not bad, "\n".join(bad[:20]))
        bad = world.finish()
        check(not bad, "\n".join(bad[:20]))
    finally:
        world.wake()


# -- what judges

SECTORS = 2048


def worked(lab):
    """A load of sectors in a file of this machine, that has done some work, all of it flushed by now."""
    load = BlockLoad(lab, "disk", "initiator", "file", lab.path("disk"), SECTORS, 7, SEED, hands=2, rate=2000.0)
    load.until_it_moves(400)
    load.ask("release")
    load.ask("reconnect", disk=lab.path("disk"))
    load.ask("pause")
    return load


def planted(lab, change):
    """What the load, and the journal alone, say of a disk that somebody has changed, sector by sector."""
    load = worked(lab)
    with open(lab.path("disk"), "r+b") as disk:
        sectors = stamp.found(7, 0, disk.read())
        place = next(at for at in range(SECTORS - 8) if sectors[at] and sectors[at + 7] != sectors[at])
        expected = change(disk, place, sectors)
    said = load.ask("verify"), load.at_rest(lab.path("disk"))
    load.end()
    for by, bad in zip(("load", "journal"), said):
        check([text.split(":")[0] for text in bad] == [f"sector {place}"] and all(word in bad[0] for word in expected.split("|")),
              f"the {by} says {bad}, not that of sector {place}: '{expected}'")


def put(disk, sector, data):
    disk.seek(sector * stamp.SECTOR)
    disk.write(data)


def lost(disk, place, sectors):
    put(disk, place, stamp.made(7, place, 1, 1))
    # And the one before, perhaps, of two that were under way together.
    return f"found 1, allowed [|{sectors[place]}]"


def altered(disk, place, _sectors):
    put(disk, place, b"")
    disk.seek(100, os.SEEK_CUR)
    byte = disk.read(1)[0]
    disk.seek(-1, os.SEEK_CUR)
    disk.write(bytes([byte ^ 4]))
    return "altered"


def misplaced(disk, place, sectors):
    put(disk, place, stamp.made(7, place + 7, 1, sectors[place]))
    return "misplaced"


def of_another_disk(disk, place, sectors):
    put(disk, place, stamp.made(8, place, 1, sectors[place]))
    return "another disk"


def emptied(disk, place, _sectors):
    put(disk, place, stamp.ZEROES)
    return "found 0"


def overwritten(disk, place, _sectors):
    put(disk, place, b"nobody's" * 64)
    return "no sector of ours"


@test(seconds=90, needs_binary=False, each={change.__name__: {"change": change} for change in (
    lost, altered, misplaced, of_another_disk, emptied, overwritten)})
def planted_sector_is_found(lab, change):
    """One sector of a disk is changed by hand: the load finds it, and no other; so does its journal alone."""
    planted(lab, change)


@test(seconds=90, needs_binary=False)
def planted_transaction_is_found(lab):
    """A row of a database is changed by hand, then the last transaction is taken back: both are found."""
    load = DatabaseLoad(lab, "base", "initiator", "sqlite", lab.path("base"), rate=200.0)
    load.until_it_moves(30)
    check(load.ask("verify") == [], "before anything was planted")
    load.ask("pause")
    with sqlite3.connect(lab.path("base"), isolation_level=None) as base:
        base.execute("UPDATE page SET body = 'x' WHERE slot = 5")
        bad = load.ask("verify")
        check(len(bad) == 1 and "row 5 should be of transaction 5" in bad[0], f"the row: {bad}")
        base.execute("UPDATE last SET number = number - 1")
        bad = load.ask("verify")
        check(any("transactions were acknowledged" in text for text in bad), f"the transaction: {bad}")
    load.end()


class ForgetsAFlush(Murder):
    """A target that forgets what was flushed, when it is killed: all of it, since the load writes on, and may put right
    what one sector has lost before anybody looks there."""

    name, what = "forgets-a-flush", "sectors go back to what they were"

    def strike(self, world):
        world.blocks.until_it_moves(100)
        world.target.kill()
        world.blocks.at_rest(world.image)
        durable = world.blocks.model.durable
        with open(world.image, "r+b") as file:
            for sector in range(len(durable)):
                if world.blocks.model.shown(durable[sector]):
                    put(file, sector, stamp.ZEROES)
        world.target.start(timeout=START_S)


class ShowsAnError(Murder):
    """A face that goes away without a word."""

    name, what = "shows-an-error", "an error that nobody has promised"

    def strike(self, world):
        os.kill(world.pid(world.nbd), 9)


@test(seconds=120, each={"loss": {"murder": ForgetsAFlush}, "error": {"murder": ShowsAnError}})
def a_murder_with_a_loss_is_no_zero(lab, murder):
    """A session whose target forgets what was flushed, or whose face breaks, says so in its table."""
    KINDS[murder.name] = murder
    session = Session(Settings(seed=SEED, only=(murder.name,), kills=1, is_short=True), say=lambda text: None)
    session.perform(lab, drawn(links=1), random.Random(SEED))
    row = session.table.rows[murder.name]
    if murder is ForgetsAFlush:
        check(row.lost_bytes >= stamp.SECTOR, f"it is not found: {row}")
    else:
        check(row.errors and not row.lost_bytes, f"it is not found: {row}")
    check(not session.table.is_clean, f"it is clean: {row}")
