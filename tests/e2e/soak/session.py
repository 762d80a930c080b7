"""A session of murders: worlds, one after the other, in each of which it deals some from a deck, and looks behind each
at every byte."""

import os
import random
import shutil
import threading
import time
import traceback
from dataclasses import dataclass

import harness
from harness import Failure

from .murders import KINDS
from .stamp import SECTOR
from .table import Table
from .world import Draw, World

# After so many worlds in a row in which nothing could be done there is none in which it can.
IDLE_WORLDS = 10
END, END_WHAT = "end", "the end of a world: all detached, images and file systems compared"


@dataclass
class Settings:
    """What a session is told."""

    seed: int
    minutes: float = 10.0
    only: tuple = ()            # names of murders; none: all
    kills: int = 0              # so many murders instead of minutes
    is_short: bool = False      # small waits, few things a second, one murder at a time
    together: int = 3           # most murders at once
    world_murders: int = 14     # in each world
    seconds_max: float = 60.0   # the longest outage


class Session:
    def __init__(self, settings, say=print):
        self.settings = settings
        self.say = say
        self.began = time.monotonic()
        self.done = 0
        self.chance = random.Random(settings.seed)
        self.table = Table({"seed": settings.seed})
        self.names = settings.only or tuple(KINDS)
        for name in self.names:
            self.table.row(name, KINDS[name].what)
        self.deck = []

    @property
    def is_over(self):
        if self.settings.kills:
            return self.done >= self.settings.kills
        return time.monotonic() - self.began > self.settings.minutes * 60

    def run(self, folder):
        """Until its time is over, or something was wrong, whose logs are kept in the folder."""
        number = idle = 0
        while not self.is_over and self.table.is_clean and idle < IDLE_WORLDS:
            number += 1
            before = self.done
            logs = os.path.join(folder, f"world-{number}")
            chance = random.Random(f"{self.settings.seed}/{number}")
            systems = ("",) if self.settings.only == ("kill-target",) else ("ext4", "xfs")
            draw = Draw.by(chance, number, systems, self.settings.is_short)
            self.say(f"world {number}: {draw}")
            lab = harness.Lab(logs, links=draw.links)
            try:
                self.perform(lab, draw, chance)
            finally:
                lab.close()
            idle = idle + 1 if self.done == before else 0
            if self.table.is_clean:
                shutil.rmtree(logs, ignore_errors=True)
            else:
                self.say(f"logs: {logs}")
        self.table.head |= {"minutes": round((time.monotonic() - self.began) / 60, 1), "worlds": number}

    def perform(self, lab, draw, chance):
        """One world, from its beginning to its end."""
        end = self.table.row(END, END_WHAT)
        world = None
        try:
            world = World(lab, draw, chance)
            for _ in range(self.settings.world_murders):
                if self.is_over or not self.table.is_clean:
                    break
                murders = self.deal(world)
                if not murders:
                    break
                self.commit(world, murders)
            if self.table.is_clean:
                self.lost(end, world.finish())
                end.times += 1
        except Failure as failure:
            self.wrong(end, str(failure))
        except Exception:
            self.wrong(end, traceback.format_exc())
        finally:
            if world:
                world.wake()

    # -- what is done

    def deal(self, world):
        """Some that can be done here, and at once: the next of the deck, and others that hold nothing of the same."""
        most = 1 if self.settings.is_short or self.settings.only else self.chance.choice(range(1, self.settings.together + 1))
        dealt, held, passed = [], set(), []
        while len(dealt) < most and len(passed) < 2 * len(self.names):
            if not self.deck:
                self.deck = self.chance.sample(self.names, len(self.names))
            kind = KINDS[self.deck.pop()]
            murder = kind(self.chance, self.settings.is_short, self.settings.seconds_max)
            row = self.table.row(kind.name, kind.what)
            row.not_here = murder.why_not(world) or ""
            can_be = murder.fits(world) and not row.not_here
            if not can_be or held & kind.holds or any(kind is type(other) for other in dealt):
                passed.append(kind.name)
            else:
                dealt.append(murder)
                held |= kind.holds
        # Those that were passed over come next, here or in another world.
        self.deck += [name for name in passed[::-1] if not self.table.rows[name].not_here]
        return dealt

    def commit(self, world, murders):
        """Does these, side by side, and looks at everything."""
        rows = [self.table.row(murder.name, murder.what) for murder in murders]
        before = [load.figures() for load in world.loads]
        for load in world.loads:
            load.take_stall()
        began = time.monotonic()
        threads = [threading.Thread(target=self.strike, args=(world, murder, row)) for murder, row in zip(murders, rows)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Nobody waits for a world that is broken already.
        stall = self.look(world, rows, before) if self.table.is_clean else 0.0
        took = time.monotonic() - began
        for row in rows:
            row.times += 1
            row.stall_s = max(row.stall_s, stall)
        self.done += 1
        self.say(f"{self.done:5}  {took:6.1f} s  stall {stall:5.1f} s  {' + '.join(row.name for row in rows)}")

    def strike(self, world, murder, row):
        try:
            self.lost(row, murder.strike(world) or [])
        except Failure as failure:
            self.wrong(row, str(failure))
        except Exception:
            self.wrong(row, traceback.format_exc())

    def look(self, world, rows, before):
        """Behind murders: that all goes on, every byte, and what loads saw meanwhile. Returns the longest stall."""
        stall = 0.0
        try:
            for load in world.loads:
                load.until_it_moves()
            world.check_it_lives()
            for load in world.loads:
                for row in rows:
                    self.lost(row, [f"{load.name}: {text}" for text in load.ask("verify")])
        except Failure as failure:
            for row in rows:
                self.wrong(row, str(failure))
        for load, was in zip(world.loads, before):
            try:
                figures = load.figures()
            except Failure as failure:
                self.wrong(rows[0], str(failure))
                continue
            stall = max(stall, load.take_stall())
            for row in rows:
                row.promised += figures["refusals"] - was["refusals"]
                row.lost_bytes += (figures["lost"] - was["lost"]) * SECTOR
                if figures["lost"] > was["lost"]:
                    self.tell(row, [f"{load.name}: {figures['said']}"])
                if figures["errors"] > was["errors"]:
                    row.errors += figures["errors"] - was["errors"] - 1
                    self.wrong(row, f"{load.name}: {figures['said']}")
        return stall

    def lost(self, row, bad):
        """Takes into a row what was found that must not be."""
        row.lost_bytes += len(bad) * SECTOR
        self.tell(row, bad[:5])

    def wrong(self, row, text):
        row.errors += 1
        self.tell(row, [text])

    def tell(self, row, texts):
        row.said += texts
        for text in texts:
            self.say(f"WRONG  {row.name}: {text}")
