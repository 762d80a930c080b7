"""Commands that change what volumes are, killed before one after the other of the calls by which they write: what was there is there, what is half made is none, and the way out
that the documents name leads out."""

import json
import os
import re

import node
from harness import check, run
from node import image, thinwire
from registry import test
from test_mirrors import data_of, standings

LEG_MIB = 4
# Each call, in place of some: for whoever has changed one of the commands.
EACH = bool(os.environ.get("TW_EACH_STEP"))
FEW = 5


class Steps:
    """A command that is killed at its nth submission of I/Os, for some n from the first to the last. How many there are differs: each look at what is not done yet is one."""

    def __init__(self, lab, *argv):
        self.lab, self.argv = lab, [*argv, "--run-dir", lab.path("run")]
        self.path = lab.path("calls")
        self.whole = None  # The fewest that a whole run had.
        self.is_through = False  # The last that was to be killed was through before.

    def run(self, *inject):
        done = self.lab.run("initiator", "strace", "-f", "-qq", "-e", "trace=io_uring_enter", *inject, "-o", self.path, node.BIN, *self.argv, check_exit=False, timeout=60)
        if done.returncode == 0:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                calls = sum("io_uring_enter(" in line for line in file)
            self.whole = min(calls, self.whole or calls)
        return done

    def killed(self, nth):
        """Whether it was killed at that one, and not through before."""
        done = self.run("-e", f"inject=io_uring_enter:signal=SIGKILL:when={nth}")
        check(done.returncode in (0, -9, 137), f"exit {done.returncode}\n{done.stdout}{done.stderr}")
        self.is_through = done.returncode == 0
        return not self.is_through

    def points(self):
        """The first and some, and from shortly before the end on each, until it is through before. Those in between are among the fewest that a run had by then."""
        done = self.run()
        check(done.returncode == 0, f"{done.stdout}{done.stderr}")
        if not EACH:
            for part in range(FEW):
                yield 1 + self.whole * part // FEW
        nth = 1 if EACH else max(self.whole - 2, 1)
        self.is_through = False
        while not self.is_through:
            yield nth
            nth += 1


def keep(images):
    """Copies of them all, which are what they were when they are put back."""
    for path in images:
        run("cp", "-a", "--sparse=always", path, f"{path}.kept")


def put_back(images):
    for path in images:
        os.remove(path)
        run("cp", "-a", "--sparse=always", f"{path}.kept", path)


def content(lab, volume, expect=0):
    """What a copy of it holds; none if it is refused, which is `expect`ed then."""
    out = lab.path("out.raw")
    run("rm", "-f", out)
    done = thinwire(lab, "copy", volume, out, "--run-dir", lab.path("run"), expect=expect)
    check(done.returncode in (0, 1) and "panicked" not in done.stderr, done.stderr)
    if done.returncode:
        return None
    with open(out, "rb") as file:
        return file.read()


def fill(lab, volume, seed):
    """Other bytes in it, without a hole."""
    source = lab.path("source.raw")
    bytes_now = len(content(lab, volume))
    with open(source, "wb") as file:
        file.write((b"%08d" % seed) * (bytes_now // 8))
    thinwire(lab, "copy", source, volume, "--run-dir", lab.path("run"))
    return content(lab, volume)


def mirrors(lab, count):
    """A description of a stripe over so many mirrors, and the files that are to be their legs, two by two."""
    images, path = [lab.path(f"leg{nth}.img") for nth in range(2 * count)], lab.path("tree.toml")
    with open(path, "w", encoding="utf-8") as file:
        for nth in range(count):
            file.write(f'[[volume]]\nname = "m{nth}"\nkind = "mirror"\nchildren = ["{images[2 * nth]}", "{images[2 * nth + 1]}"]\n')
        children = ", ".join(f'"m{nth}"' for nth in range(count))
        file.write(f'[[volume]]\nname = "both"\nkind = "stripe"\nlabels = true\nchildren = [{children}]\n')
    return f"{path}#both", images


def blank(lab, images):
    for path in images:
        run("rm", "-f", path)
        image(lab, os.path.basename(path), LEG_MIB)


def made_again(lab, top):
    """What was cut off is made by doing the same again, with --force for what it says has labels already."""
    for _ in range(4):
        done = thinwire(lab, "volume", "create", top, "--run-dir", lab.path("run"), expect=None)
        if done.returncode == 0:
            return
        named = re.search(r"--force[^(]*\((\S+#\w+)\)", done.stderr)
        check(named, done.stderr)
        thinwire(lab, "volume", "create", named[1], "--force", "--run-dir", lab.path("run"))
        if named[1] == top:
            return
    check(False, f"it is never made\n{done.stderr}")


@test(seconds=240 if not EACH else 3600)
def a_tree_is_made(lab):
    """`volume create` of a stripe of two mirrors: killed before its end nothing opens as the whole, nor is it assembled; the same again makes it, with --force of what it
    names as half made."""
    (top, images), run_dir, half, whole = mirrors(lab, 2), ("--run-dir", lab.path("run")), 0, 0
    steps = Steps(lab, "volume", "create", top)
    blank(lab, images)
    for nth in steps.points():
        blank(lab, images)
        if not steps.killed(nth):
            continue
        assembled = thinwire(lab, "volume", "assemble", *images, *run_dir, expect=None)
        check(assembled.returncode in (0, 1) and "panicked" not in assembled.stderr, assembled.stderr)
        opens = content(lab, top, expect=None) is not None
        is_named = assembled.returncode == 0 and 'name = "both"' in assembled.stdout
        check(opens or not is_named, f"killed at {nth}: it is assembled, and does not open\n{assembled.stdout}")
        half, whole = half + (not opens), whole + opens
        if opens:
            # All of its labels were there: it is made, and nothing else is refused.
            again = thinwire(lab, "volume", "create", top, *run_dir, expect=1)
            check("--force" in again.stderr, again.stderr)
        else:
            made_again(lab, top)
        done = thinwire(lab, "bench", top, "--rw", "randrw", "--verify", "--runtime", "0.1", *run_dir)
        check("0 errors" in done.stdout, done.stdout)
        shown = json.loads(thinwire(lab, "volume", "resync", top, "--json", *run_dir).stdout)["mirrors"]
        check([[leg["standing"] for leg in mirror["legs"]] for mirror in shown] == [["in sync"] * 2] * 2, shown)
        check(data_of(images[0]) == data_of(images[1]) and data_of(images[2]) == data_of(images[3]), "legs differ")
    print(f"{half} half made, {whole} made")
    check(half >= FEW // 2, f"{half} of them were half made")


@test(seconds=120)
def what_is_made_already_is_refused(lab):
    """`volume create` of what is there, over mirrors that are still being copied to: it lets go of them all together. One that waited for the first while the second stood still was not told of
    its sync, and never ended."""
    top, images = mirrors(lab, 4)
    for _ in range(4):
        blank(lab, images)
        thinwire(lab, "volume", "create", top, "--run-dir", lab.path("run"))
        for _ in range(2):
            again = thinwire(lab, "volume", "create", top, "--run-dir", lab.path("run"), expect=1)
            check("--force" in again.stderr, again.stderr)


@test(seconds=240 if not EACH else 3600)
def a_leg_is_replaced(lab):
    """`volume replace`: killed at any moment the mirror has what it had, by the old description or by the new; the same again puts the new leg in, with all."""
    images, run_dir = [image(lab, f"{name}.img", LEG_MIB) for name in ("a", "b", "new")], ("--run-dir", lab.path("run"))

    def describe(*legs):
        path = lab.path("pool.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'[[volume]]\nname = "home"\nkind = "mirror"\nchildren = ["{legs[0]}", "{legs[1]}"]\n')
        return f"{path}#home"
    home = describe(*images[:2])
    thinwire(lab, "volume", "create", home, *run_dir)
    check(standings(lab, home) == ["in sync"] * 2, "a new mirror")
    truth = fill(lab, home, 1)
    keep(images)
    steps, killed = Steps(lab, "volume", "replace", home, "1", images[2]), 0
    for nth in steps.points():
        put_back(images)
        describe(*images[:2])
        if not steps.killed(nth):
            continue
        killed += 1
        seen = [content(lab, describe(*legs), expect=None) for legs in (images[:2], images[::2])]
        check(any(seen) and all(what in (None, truth) for what in seen), f"killed at {nth}: {[what == truth for what in seen]} of {[what is not None for what in seen]}")
        home = describe(*(images[:2] if seen[0] else images[::2]))
        again = thinwire(lab, "volume", "replace", home, "1", images[2], "--force", *run_dir, expect=None)
        check(again.returncode == 0, f"killed at {nth}: {again.stderr}")
        home = describe(*images[::2])
        check(standings(lab, home) == ["in sync"] * 2, "it is a leg")
        check(data_of(images[0]) == data_of(images[2])[:len(data_of(images[0]))] and content(lab, home) == truth, f"killed at {nth}: it has other bytes")
    check(killed >= FEW // 2, f"{killed} were killed")


class Pool:
    """A pool with a volume, whose snapshot has other bytes than it has now."""

    def __init__(self, lab):
        self.lab, self.images = lab, [image(lab, "data.img", 8), image(lab, "metadata.img", 16)]
        path = lab.path("pool.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'[[volume]]\nname = "pool"\nkind = "thin"\nchildren = ["{self.images[0]}", "{self.images[1]}"]\n')
        self.name, self.home, self.monday = f"{path}#pool", f"{path}#pool@home", f"{path}#pool@monday"
        self.do("create", self.name)
        self.do("create", self.home, "--size", "2M")
        self.old = fill(lab, self.home, 1)
        self.do("snapshot", self.home, "monday")
        self.new = fill(lab, self.home, 2)
        check(self.old != self.new == content(lab, self.home), "it has changed")
        keep(self.images)

    def do(self, *argv, expect=0):
        return thinwire(self.lab, "volume", *argv, "--run-dir", self.lab.path("run"), expect=expect)

    def volumes(self):
        return sorted(volume["name"] for volume in json.loads(self.do("show", self.name, "--json").stdout)["volumes"])

    def check_sound(self, nth):
        said = self.do("check", self.name, expect=None)
        check(said.returncode == 0 and said.stdout.endswith("is sound\n"), f"killed at {nth}: {said.stdout}{said.stderr}")


@test(seconds=240 if not EACH else 3600)
def a_volume_is_rolled_back(lab):
    """`volume rollback`: killed at any moment the volume is what it was, or what the snapshot is; the same again makes it that."""
    pool, killed, seen = Pool(lab), 0, set()
    steps = Steps(lab, "volume", "rollback", pool.home, "monday")
    for nth in steps.points():
        put_back(pool.images)
        killed += steps.killed(nth)
        pool.check_sound(nth)
        is_now = content(lab, pool.home)
        check(is_now in (pool.old, pool.new), f"killed at {nth}: it is neither")
        seen.add(is_now == pool.old)
        check(content(lab, pool.monday) == pool.old and pool.volumes() == ["home", "monday"], f"killed at {nth}: {pool.volumes()}")
        pool.do("rollback", pool.home, "monday")
        check(content(lab, pool.home) == pool.old, f"killed at {nth}: the same again")
        pool.check_sound(nth)
    check(killed >= FEW // 2 and seen == {True, False}, f"{killed} were killed, {seen}")


@test(seconds=240 if not EACH else 3600)
def a_snapshot_is_deleted(lab):
    """`volume delete`: killed at any moment the volume is whole, and the snapshot is whole or gone; the same again has it gone, and all room comes back."""
    pool, killed, seen = Pool(lab), 0, set()
    steps = Steps(lab, "volume", "delete", pool.monday)
    for nth in steps.points():
        put_back(pool.images)
        killed += steps.killed(nth)
        pool.check_sound(nth)
        there = "monday" in pool.volumes()
        seen.add(there)
        if there:
            check(content(lab, pool.monday) == pool.old, f"killed at {nth}: half of it is gone")
            pool.do("delete", pool.monday)
        check(pool.volumes() == ["home"] and content(lab, pool.home) == pool.new, f"killed at {nth}: {pool.volumes()}")
        pool.do("delete", pool.home)
        used = json.loads(pool.do("show", pool.name, "--json").stdout)["data_used_bytes"]
        check(used == 0, f"killed at {nth}: {used} bytes do not come back")
        pool.check_sound(nth)
    check(killed >= FEW // 2 and seen == {True, False}, f"{killed} were killed, {seen}")
