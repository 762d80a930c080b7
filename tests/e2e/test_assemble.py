"""What `volume assemble` makes of folders and of trees: one description, by which the whole is opened at once."""

import json
import os
import time

from harness import check, run
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test
from test_crypt import key

MIB = 1 << 20


def folder(lab, name):
    path = lab.path(name)
    os.mkdir(path)
    return path


def written(lab, *volumes, name="made.toml"):
    """A description of volumes: what each is called, its kind, what it is made of, and more."""
    with open(lab.path(name), "w", encoding="utf-8") as file:
        for called, kind, children, *more in volumes:
            file.write(f'[[volume]]\nname = "{called}"\nkind = "{kind}"\nlabels = true\n')
            file.write("".join(f"{line}\n" for line in more) + f"children = {json.dumps(children)}\n")
    return lab.path(name)


def filled(lab, volume):
    """What was written to a volume: as much as it has, or 8 MiB of it."""
    source = lab.path("source.img")
    with open(source, "wb") as file:
        file.write(os.urandom(8 * MIB))
    thinwire(lab, "copy", source, volume, "--verify", "--run-dir", lab.path("run"))
    return source


def has(lab, volume, source):
    """The volume, opened, begins with what was written to it."""
    out = lab.path("out.img")
    if os.path.exists(out):
        os.remove(out)
    thinwire(lab, "copy", volume, out, "--run-dir", lab.path("run"))
    with open(out, "rb") as one, open(source, "rb") as other:
        check(one.read(8 * MIB) == other.read(), f"{volume} has something else")


def content(paths):
    found = []
    for path in paths:
        with open(path, "rb") as file:
            found.append(file.read())
    return found


def assembled(lab, *argv, expect=0):
    return thinwire(lab, "volume", "assemble", *argv, "--run-dir", lab.path("run"), expect=expect)


def described(lab, *argv):
    """What is assembled, as a description in a folder of its own."""
    os.makedirs(lab.path("found"), exist_ok=True)
    done, path = assembled(lab, *argv), lab.path("found/found.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(done.stdout)
    return path, done


@test(seconds=120)
def a_tree_in_a_folder(lab):
    """A stripe of a mirror over sums and of a mirror over files, of which the parts lie in a folder among other files, under other names: one description, which is opened at once. Nothing is
    written to find that out."""
    srv = folder(lab, "srv")
    names = [os.path.join("srv", name) for name in ("a", "b", "c", "d")]
    files = [image(lab, name, 24) for name in names]
    made = written(
        lab, ("left", "integrity", files[:1]), ("right", "integrity", files[1:2]), ("sums", "mirror", ["left", "right"]),
        ("files", "mirror", files[2:]), ("both", "stripe", ["sums", "files"], 'chunk = "128K"'))
    top, run_dir = made + "#both", ("--run-dir", lab.path("run"))
    thinwire(lab, "volume", "create", top, *run_dir)
    for name in "sums", "files":
        thinwire(lab, "volume", "resync", f"{made}#{name}", *run_dir)
    source = filled(lab, top)
    os.remove(made)
    parts = []
    for nth, path in enumerate(files):
        parts.append(os.path.join(srv, f"{9 - nth}.moved"))
        os.rename(path, parts[-1])
    # What is no part, and a part by two names.
    image(lab, "srv/blank", 4)
    run("mkfs.ext4", "-q", "-F", image(lab, "srv/ext4", 8))
    os.symlink(parts[0], os.path.join(srv, "0.also"))
    before = content(parts)
    found, done = described(lab, srv)
    check(content(parts) == before, "something was written to find that out")
    check(done.stderr == "", f"it is passed over silently: {done.stderr}")
    lines = done.stdout.splitlines()
    order = [line.split('"')[1] for line in lines if line.startswith("name = ")]
    check(order.index("left") < order.index("sums") < order.index("both"), order)
    check(order.index("files") < order.index("both") and len(order) == 5, order)
    check('children = ["sums", "files"]' in lines and 'children = ["left", "right"]' in lines, done.stdout)
    has(lab, f"{found}#both", source)
    disk = Attachment(lab, f"{found}#both", name="both", timeout=40)
    check(disk.status()["bytes"] > 8 * MIB, "it is attached")
    # Whoever uses it now is told of.
    begun = time.monotonic()
    used = assembled(lab, srv, expect=1)
    check(used.stderr.count("cannot be opened") == 4, used.stderr)
    check(time.monotonic() - begun < 10, "each of them is waited for")
    disk.detach()
    target = Target(lab, f"both={found}#both", name="middle", over="raw", side="initiator",
                    extra=("--state-dir", lab.path("state"), "--run-dir", lab.path("gateway-run")))
    target.stop()
    # A file that is named besides is that of the folder.
    told = json.loads(assembled(lab, srv, parts[0], "--json").stdout)
    check(told["refused"] == [] and told["notes"] == [], told)
    check({volume["name"]: volume["parts"] for volume in told["volumes"]}["both"] == ["sums", "files"], told)
    # What is no part is told only where it is named.
    refused(lab, "volume", "assemble", *parts, os.path.join(srv, "ext4"), *run_dir, says=["srv/ext4 has no label"])
    run("cp", "-a", parts[2], os.path.join(srv, "twin"))
    twins = refused(lab, "volume", "assemble", srv, *run_dir, says=[parts[2], "srv/twin", "both say that they are part"])
    check('name = "sums"' in twins.stdout and 'name = "both"' not in twins.stdout, twins.stdout)
    refused(lab, "volume", "assemble", folder(lab, "empty"), *run_dir, says=["there is no volume: none of 0 files"])


@test(seconds=120)
def a_mirror_whose_leg_is_lost(lab):
    """A stripe over a mirror of which a leg is gone, and a file: refused as long as that leg may have more; once it is on record that it has not, all is described, with something that is nowhere
    in its place, and what stands on it as well; and when it is found, it is put in."""
    srv, run_dir = folder(lab, "srv"), ("--run-dir", lab.path("run"))
    a, b, c = (image(lab, os.path.join("srv", name), 24) for name in "abc")
    made = written(lab, ("home", "mirror", [a, b]), ("both", "stripe", ["home", c], 'chunk = "128K"'))
    thinwire(lab, "volume", "create", f"{made}#both", *run_dir)
    thinwire(lab, "volume", "resync", f"{made}#home", *run_dir)
    source, lost = filled(lab, f"{made}#both"), lab.path("lost.img")
    os.rename(b, lost)
    without = refused(lab, "volume", "assemble", srv, *run_dir, says=['mirror "home": '])
    check(without.stdout == "", without.stdout)
    thinwire(lab, "volume", "resync", f"{made}#home", "--degraded", *run_dir)
    # What was given up makes the mirror another content, which the stripe has to be told.
    refused(lab, "volume", "assemble", srv, *run_dir, says=["another volume than the one that got it", "not-found"])
    thinwire(lab, "volume", "adopt", f"{made}#both", *run_dir)
    found, done = described(lab, srv)
    check('"file:/not-found/home-leg-1"]' in done.stdout and "# leg 1 (counted from 0) was not found" in done.stdout, done.stdout)
    check("can be used without its leg 1 (counted from 0)" in done.stderr, done.stderr)
    told = json.loads(assembled(lab, srv, "--json").stdout)
    check(told["refused"] == [] and len(told["notes"]) == 1 and len(told["volumes"]) == 2, told)
    has(lab, f"{found}#both", source)
    os.rename(lost, os.path.join(srv, "b.found"))
    found, done = described(lab, srv)
    check("thinwire:" not in done.stderr and "not-found" not in done.stdout and "b.found" in done.stdout, done.stdout + done.stderr)
    has(lab, f"{found}#both", source)


@test(seconds=120)
def what_stands_on_encrypted_volumes(lab):
    """A mirror over two encrypted volumes: without their keys these are described, and what stands on them is not looked for; with them all is. What is torn of a label is told."""
    srv, own, other = folder(lab, "srv"), key(lab, "own"), key(lab, "other")
    parts = [image(lab, os.path.join("srv", name), 16) for name in ("a", "b")]
    keys = [f'key = "{path}"' for path in (own, other)]
    made = written(lab, ("left", "crypt", parts[:1], keys[0]), ("right", "crypt", parts[1:], keys[1]), ("home", "mirror", ["left", "right"]))
    run_dir = ("--run-dir", lab.path("run"))
    for name in "left", "right":
        thinwire(lab, "volume", "create", f"{made}#{name}", *run_dir)
    thinwire(lab, "volume", "create", f"{made}#home", "--force", *run_dir)
    thinwire(lab, "volume", "resync", f"{made}#home", *run_dir)
    source = filled(lab, f"{made}#home")
    os.remove(made)
    done = assembled(lab, srv)
    check(done.stdout.count('key = "NAME"') == 2 and "home" not in done.stdout, done.stdout)
    check(done.stderr.count("it is encrypted; give its key with --volume-key") == 2, done.stderr)
    # Of one key only: what it opens is a leg of what is not all there.
    half = refused(lab, "volume", "assemble", srv, "--volume-key", own, *run_dir, says=["right was not looked for", "none of the keys", 'mirror "home": '])
    check(f'key = "{own}"' in half.stdout and 'key = "NAME"' in half.stdout, half.stdout)
    refused(lab, "volume", "assemble", srv, "--volume-key", lab.path("none"), *run_dir, says=["no such file"])
    found, done = described(lab, srv, "--volume-key", own, "--volume-key", other)
    check(done.stderr == "" and all(f'key = "{path}"' in done.stdout for path in (own, other)), done.stdout + done.stderr)
    has(lab, f"{found}#home", source)
    with open(parts[0], "r+b") as file:
        for at in 24 << 10, (512 + 24) << 10:
            file.seek(at + 100)
            file.write(b"torn")
    refused(lab, "volume", "assemble", srv, *run_dir, says=["srv/a has no intact label"])


@test(seconds=120)
def what_stands_on_pools_and_is_used_elsewhere(lab):
    """A stripe over volumes of two pools, one of which was snapshotted, over exports of a target: found from these, bottom up. While somebody else writes them, what is below is described,
    and who asks is told why no more is."""
    files = [image(lab, f"{name}.img", 24) for name in "abcd"]
    exports = [f"{name}={path}" for name, path in zip("abcd", files)]
    Target(lab, *exports, name="node1", over="raw", extra=("--state-dir", lab.path("state")))
    uris, run_dir = [uri(lab, name, over="raw", node="node1") for name in "abcd"], ("--run-dir", lab.path("run"))
    made = written(lab, ("one", "thin", uris[:2]), ("two", "thin", uris[2:]), ("both", "stripe", ["one@x", "two@x"]))
    for pool in "one", "two":
        thinwire(lab, "volume", "create", f"{made}#{pool}", *run_dir)
        thinwire(lab, "volume", "create", f"{made}#{pool}@x", "--size", "12M", *run_dir)
    thinwire(lab, "volume", "create", f"{made}#both", *run_dir)
    source = filled(lab, f"{made}#both")
    thinwire(lab, "volume", "snapshot", f"{made}#one@x", "kept", *run_dir)
    os.remove(made)
    found, done = described(lab, *reversed(uris))
    check("thinwire:" not in done.stderr and 'children = ["one@x", "two@x"]' in done.stdout, done.stdout + done.stderr)
    has(lab, f"{found}#both", source)
    disk = Attachment(lab, f"{found}#both", name="both", run="other", timeout=40)
    used = assembled(lab, *uris)
    check("what stands on one was not looked for" in used.stderr and "held by a writer" in used.stderr, used.stderr)
    check('name = "one"' in used.stdout and 'name = "both"' not in used.stdout, used.stdout)
    disk.detach()
