"""Loads of transactions: sqlite, or PostgreSQL, on whatever is mounted there. Transaction n writes a row of its own in
place of an older one, and that it was the last. So what a database holds tells how far it has come, and must be
exactly what the first n have made; n is the last that was acknowledged, or one more that nobody has heard of.

    databases.py JSON      its arguments, those of `Sqlite`, and `engine`
"""

import json
import os
import pwd
import random
import sqlite3
import struct
import subprocess
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from soak.disks import Gone  # noqa: E402  (the path is set above)
from soak.program import Program  # noqa: E402

ROWS = 300
SCHEMA = ("CREATE TABLE page (slot INTEGER PRIMARY KEY, number INTEGER NOT NULL, body TEXT NOT NULL)",
          "CREATE TABLE last (number INTEGER NOT NULL)", "INSERT INTO last VALUES (0)")
NUMBER = struct.Struct("<Q")
POSTGRES = "/usr/lib/postgresql"


def body(number):
    """What transaction `number` writes, 20 to 4000 characters."""
    chance = random.Random(number)
    return chance.randbytes(chance.choice((10, 100, 400, 2000))).hex()


class Database(Program):
    """One hand: a database has its own ideas of what several may do at once."""

    def __init__(self, socket, disk, journal_path, rate):
        super().__init__(socket, 1, rate)
        # Numbers of acknowledged transactions.
        self.journal = os.open(journal_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self.acknowledged = 0
        self.open(disk, new=True)

    def step(self, hand):
        number = self.acknowledged + 1
        try:
            with self.timed(hand):
                self.commit(number, number % ROWS, body(number))
        except Exception as error:  # whatever its engine has for it
            self.take(Gone(f"{type(error).__name__}: {error}"), f"transaction {number}")
            return
        os.write(self.journal, NUMBER.pack(number))
        os.fdatasync(self.journal)
        self.acknowledged = number

    def verify(self, in_doubt=0):
        """What is wrong with it, if up to so many transactions more may be there."""
        last, rows = self.content()
        bad = [] if self.acknowledged <= last <= self.acknowledged + in_doubt else [
            f"{self.acknowledged} transactions were acknowledged, {last} are there"]
        due = {number % ROWS: number for number in range(max(1, last - ROWS + 1), last + 1)}
        found = {slot: (number, text) for slot, number, text in rows}
        for slot in sorted(due.keys() | found.keys()):
            number = due.get(slot)
            if found.get(slot) != (number, number and body(number)):
                bad.append(f"row {slot} should be of transaction {number}, is {str(found.get(slot))[:60]}")
        self.found = last
        return bad + self.complaints()

    def settle(self):
        bad = self.verify(in_doubt=1)
        self.acknowledged = self.found
        return bad


class Sqlite(Database):
    def __init__(self, mode="delete", **others):
        """`mode`: `wal` or `delete`, what it calls its journal mode."""
        self.mode = mode
        super().__init__(**others)

    def open(self, disk, new=False):
        self.base = sqlite3.connect(disk, isolation_level=None, check_same_thread=False, timeout=3600)
        if new:
            self.base.execute(f"PRAGMA journal_mode={self.mode}")
        self.base.execute("PRAGMA synchronous=extra")
        for statement in SCHEMA if new else ():
            self.base.execute(statement)

    def close(self):
        self.base.close()

    def commit(self, number, slot, text):
        base = self.base
        if base.in_transaction:
            base.execute("ROLLBACK")
        base.execute("BEGIN IMMEDIATE")
        base.execute("REPLACE INTO page VALUES (?, ?, ?)", (slot, number, text))
        base.execute("UPDATE last SET number = ?", (number,))
        base.execute("COMMIT")

    def content(self):
        (last,) = self.base.execute("SELECT number FROM last").fetchone()
        return last, self.base.execute("SELECT slot, number, body FROM page").fetchall()

    def complaints(self):
        said = [text for (text,) in self.base.execute("PRAGMA integrity_check")]
        return [] if said == ["ok"] else said


def postgres_folder():
    """Where its server is, or None."""
    versions = sorted(os.listdir(POSTGRES), key=float) if os.path.isdir(POSTGRES) else []
    folders = [os.path.join(POSTGRES, version, "bin") for version in versions]
    return next((folder for folder in folders[::-1] if os.path.exists(os.path.join(folder, "initdb"))), None)


class Postgres(Database):
    """A server of its own, under the user that its package brings, and a psql."""

    def as_user(self, *argv):
        return ["setpriv", "--reuid", "postgres", "--regid", str(pwd.getpwnam("postgres").pw_gid), "--clear-groups", *argv]

    def open(self, disk, new=False):
        folder = postgres_folder()
        if new:
            os.mkdir(disk, 0o700)
            os.chown(disk, pwd.getpwnam("postgres").pw_uid, -1)
            subprocess.run(self.as_user(f"{folder}/initdb", "-D", disk, "--data-checksums", "--auth=trust", "-E", "UTF8",
                                        "--no-locale"), stdout=subprocess.DEVNULL, check=True)
        self.server = subprocess.Popen(self.as_user(
            f"{folder}/postgres", "-D", disk, "-c", "listen_addresses=", "-c", f"unix_socket_directories={disk}",
            "-c", "shared_buffers=16MB", "-c", "checkpoint_timeout=30s", "-c", "max_wal_size=64MB"))
        self.client = subprocess.Popen(
            ["sh", "-c", f"until {folder}/pg_isready -q -h {disk}; do sleep 0.1; done; "
             f"exec psql -X -q -A -t -F '|' -h {disk} -U postgres -d postgres -v ON_ERROR_STOP=1"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for statement in SCHEMA if new else ():
            self.ask(statement)

    def close(self):
        self.client.kill()
        self.client.wait()
        # No orderly end: it is to come back by itself.
        self.server.send_signal(3)
        self.server.wait()

    def ask(self, statements):
        """Rows that it gives, as text."""
        try:
            self.client.stdin.write(f"{statements};\nSELECT 'end of it';\n")
            self.client.stdin.flush()
        except BrokenPipeError:
            raise Gone("psql has ended") from None
        rows = []
        while (line := self.client.stdout.readline()) != "end of it\n":
            if not line:
                raise Gone("psql has ended")
            rows.append(line.rstrip("\n"))
        return rows

    def commit(self, number, slot, text):
        self.ask(f"BEGIN; INSERT INTO page VALUES ({slot}, {number}, '{text}') ON CONFLICT (slot) DO UPDATE SET "
                 f"number = {number}, body = '{text}'; UPDATE last SET number = {number}; COMMIT")

    def content(self):
        rows = [row.split("|") for row in self.ask("SELECT slot, number, body FROM page")]
        return int(self.ask("SELECT number FROM last")[0]), [(int(slot), int(n), text) for slot, n, text in rows]

    def complaints(self):
        # With checksums the server itself refuses what is not what it wrote.
        return []


ENGINES = {"sqlite": Sqlite, "postgres": Postgres}


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    ENGINES[arguments.pop("engine")](**arguments).run()
