"""Thinwire's two sides in a laboratory: a target that serves, attachments of its exports."""

import json
import os
import signal
import tempfile

import calls
from harness import Failure, check, read, run, until, tail

# The program under test, and the laboratory beside it; the runner sets them.
BIN = "thinwire"
LAB = "thinwire-lab"
NODE = "node1"
# Where the system calls of targets go, if they are traced (calls.py).
CALLS = os.environ.get("TW_CALLS")


# What every target and every attachment and bench of a remote volume gets besides its own (`run.py
# --mode`): flags, for a pipeline or a policy, `link`, which a test uses that names none, and `security`: how
# frames are protected, with a key on both sides if nothing is said.
MODE = {}
LINKS = ("packet", "xdp", "udp")
SECURITIES = ("keys", "authenticate", "insecure")
# Commands that refuse without a word about that.
SECURED = ("target", "attach", "bench", "copy", "discover", "volume")
FLAGS_OF = {
    "target": ("receive", "completion", "spin", "batch", "data-batch", "shards"),
    "attach": ("receive", "submission", "spin", "batch", "data-batch"),
    "bench": ("receive", "submission", "spin", "batch", "data-batch"),
}


def flags_of(text):
    """`batch=tyche,spin=off` as a dictionary."""
    words = [word for word in text.split(",") if word]
    for word in words:
        if not all(word.partition("=")):
            raise ValueError(f"--mode {word}: say KEY=VALUE, for example batch=tyche")
    pairs = dict(word.split("=", 1) for word in words)
    for key, known in ("link", LINKS), ("security", SECURITIES):
        if pairs.get(key, known[0]) not in known:
            raise ValueError(f"--mode {key}={pairs[key]}: there are {', '.join(known)}")
    for key in set(pairs) - {"link", "security"}:
        if not any(key in known for known in FLAGS_OF.values()):
            raise ValueError(f"'{key}' is not a mode; there are link, security, {', '.join(FLAGS_OF['target'])}, "
                             "submission")
    return pairs


def mode_flags(command, argv=()):
    """The mode's flags for a command, without those that it has already."""
    chosen = [(f"--{key}", MODE[key]) for key in FLAGS_OF.get(command, ()) if key in MODE]
    return [word for flag, value in chosen if flag not in argv for word in (flag, value)]


def security():
    """How frames are protected in this test."""
    return MODE.get("security", SECURITIES[0])


def key(lab, name="e2e", owner=0):
    """The path of a key of this name, which is made when it is asked for first. Both sides read the same file;
    a user who is not root needs one of its own, which is the same key."""
    path = lab.path("keys", name)
    if not os.path.exists(path):
        run(BIN, "key", "new", name, "--dir", lab.path("keys"))
    if not owner:
        return path
    own = lab.path(f"keys-of-{owner}", name)
    if not os.path.exists(own):
        os.mkdir(os.path.dirname(own), 0o700)
        run("install", "-m", "600", "-o", owner, path, own)
        os.chown(os.path.dirname(own), owner, -1)
    return own


def guarded(lab, command="attach", owner=0):
    """The flags that say how frames are protected. They are the same on both sides."""
    if security() == "insecure":
        # Who discovers asks everybody, and says nothing that is worth protection.
        return [] if command == "discover" else ["--insecure"]
    own = ["--key", key(lab, owner=owner)]
    return own + ["--authenticate-only"] if security() == "authenticate" and command != "discover" else own


def security_flags(lab, argv):
    """Those for a command, unless it has some, or a file that says it."""
    words = set(map(str, argv))
    is_told = argv[0] not in SECURED or words & {"--insecure", "--key", "--config"}
    return () if is_told else tuple(guarded(lab, argv[0]))


def uri(lab, export="disk0", over="best", links=None, node=NODE, **parameters):
    """The URI of an export: over raw Ethernet (`packet`, `xdp`, or `best`: a plain interface name) by
    node name, or over UDP by address."""
    links = links or list(range(1, lab.links + 1))
    over = chosen(over)
    if over == "udp":
        # One address in the name; the session learns of the others as further links.
        base = f"tw+udp://{lab.address('target')}/{export}"
        pairs = [] if len(links) == 1 else [f"link=udp:{lab.address('initiator', l)}" for l in links]
    else:
        base = f"tw://{node}/{export}"
        pairs = [f"link={ethernet(lab, 'initiator', l, over)}" for l in links]
    pairs += [f"{key}={value}" for key, value in parameters.items()]
    return base + ("?" + "&".join(pairs) if pairs else "")


def below(lab, *export, **how):
    """The URI of an export that a gateway is to stand on: the volume itself says which key to show there."""
    return uri(lab, *export, **how, **({} if security() == "insecure" else {"key": key(lab)}))


def chosen(over):
    """The mode's link, unless the test says which. `raw` is for what is about Ethernet or its addresses,
    and keeps a plain name where the mode says `udp`; `plain` is a plain name whatever the mode."""
    link = MODE.get("link", "plain")
    return {"best": link, "raw": "plain" if link == "udp" else link}.get(over, over)


def ethernet(lab, side, link, over):
    """A link over raw Ethernet. An interface has room for one `xdp`: under a mode the next gets what works
    beside it."""
    if over == "xdp" and MODE.get("link") == "xdp":
        shown = lab.run(side, "ip", "-j", "link", "show", f"eth{link}", check_exit=False).stdout
        over = "packet" if shown and "xdp" in json.loads(shown)[0] else "xdp"
    return ("" if over == "plain" else f"{over}:") + f"eth{link}"


class Target:
    """`thinwire target` on the target's side. May be killed and started again at will."""

    def __init__(self, lab, *exports, name=NODE, over="best", extra=(), side="target", start=True, trace=None,
                 default_state=False):
        self.lab = lab
        self.name = name
        over = chosen(over)
        links = [f"udp:{lab.address(side, l)}" if over == "udp" else ethernet(lab, side, l, over)
                 for l in range(1, lab.links + 1)]
        self.argv = [BIN, "target", "--name", name]
        for link in links:
            self.argv += ["--link", link]
        for export in exports:
            self.argv += ["--export", export]
        self.argv += list(extra)
        if "--state-dir" not in self.argv and not default_state:
            # What one test leaves there is another's no more than the machine's.
            self.argv += ["--state-dir", lab.path("state")]
        self.argv += mode_flags("target", self.argv)
        self.argv += security_flags(lab, self.argv[1:])
        self.side = side
        self.trace = trace
        self.process = None
        if start:
            self.start()

    def start(self, timeout=20):
        """Starts it and waits for `ready NODE`."""
        path = tempfile.mktemp(dir=CALLS) if CALLS else self.trace
        trace = calls.tracer(path) if path else []
        self.process = self.lab.start(self.side, *trace, *self.argv, name=f"target-{self.name}")

        def ready():
            if f"ready {self.name}\n" in self.process.stdout:
                return True
            if not self.process.running:
                raise Failure(f"{self.process}: exit {self.process.popen.returncode} before it was ready\n"
                              f"{tail(self.process.stderr)}")
            return False
        until(f"'ready {self.name}' from the target\n{tail(self.process.stderr)}", timeout, ready)
        return self

    def kill(self):
        """kill -9."""
        check(self.process.running, f"the target ended by itself, exit {self.process.popen.returncode}\n"
                                    f"{tail(self.process.stderr)}")
        self.process.kill(signal.SIGKILL)
        self.process.wait(10, expect=None)
        return self

    def stop(self):
        """SIGTERM, and an orderly end."""
        self.process.kill(signal.SIGTERM)
        self.process.wait(10)
        return self


def thinwire(lab, *argv, expect=0, side="initiator", timeout=30, env=None):
    """Runs a thinwire command to its end and returns it; fails unless it exits with `expect`. `env` is added to what
    it finds in its environment."""
    argv += tuple(mode_flags(argv[0], argv)) if any(str(word).startswith("tw") for word in argv) else ()
    argv += security_flags(lab, argv)
    done = lab.run(side, BIN, *argv, check_exit=False, timeout=timeout, env={**os.environ, **(env or {})})
    if expect is not None and done.returncode != expect:
        raise Failure(f"thinwire {' '.join(map(str, argv))}\nexit {done.returncode}, expected {expect}\n"
                      f"{tail(done.stdout)}{tail(done.stderr)}")
    return done


def refused(lab, *argv, says, code=1, side="initiator", timeout=30):
    """Runs a thinwire command that must fail with `code` and name every word of `says` on stderr."""
    done = thinwire(lab, *argv, expect=code, side=side, timeout=timeout)
    check("panicked" not in done.stderr, f"thinwire {' '.join(map(str, argv))} panicked:\n{done.stderr}")
    for word in [says] if isinstance(says, str) else says:
        check(word.lower() in done.stderr.lower(),
              f"thinwire {' '.join(map(str, argv))}: the message does not name '{word}':\n{done.stderr}")
    return done


class Attachment:
    """`thinwire attach` on the initiator's side, in the background as a user has it."""

    def __init__(self, lab, volume=None, face="nbd", name="disk0", extra=(), timeout=30, run="run",
                 side="initiator", env=None):
        self.lab = lab
        self.name = name
        self.side = side
        self.run_dir = lab.path(run)
        self.face = {
            "nbd": ["--nbd", f"unix:{lab.path(name + '.sock')}"],
            "block": ["--block=loop"],
            "file": ["--file", lab.path(name + ".file")],
        }[face]
        done = thinwire(lab, "attach", volume or uri(lab), *self.face, "--as", name, "--run-dir", self.run_dir, *extra,
                        timeout=timeout, side=side, env=env)
        lines = done.stdout.split("\n")
        check(len(lines) == 2 and lines[1] == "" and lines[0],
              f"attach must print the path alone on stdout, printed {done.stdout!r}")
        self.path = lines[0]

    @property
    def nbd(self):
        """The NBD URI of the empty export name."""
        return f"nbd+unix:///?socket={self.path}"

    def status(self):
        """This attachment's object in `status --json`."""
        report = json.loads(thinwire(self.lab, "status", "--json", "--run-dir", self.run_dir, side=self.side).stdout)
        check(report.get("schema"), f"status --json has no schema: {report}")
        found = [a for a in report["attachments"] if a["name"] == self.name]
        check(len(found) == 1, f"status --json does not show '{self.name}' once: {report}")
        return found[0]

    def log(self):
        """What it has told so far."""
        return read(os.path.join(self.run_dir, f"{self.name}.log"))

    def detach(self, *flags, expect=0, timeout=15):
        return thinwire(self.lab, "detach", self.name, *flags, "--run-dir", self.run_dir,
                        expect=expect, timeout=timeout, side=self.side)

    def pid(self):
        """The process that carries the attachment: the one on the initiator's side that holds our
        run folder in its command line."""
        for pid in initiators(self.lab):
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
            if self.run_dir in words and self.name in words:
                return pid
        raise Failure(f"no process carries the attachment '{self.name}'")


def initiators(lab):
    """Process ids of thinwire on the initiator's side."""
    from harness import processes_in
    found = []
    for pid in processes_in(lab.netns("initiator")):
        try:
            if os.path.samefile(f"/proc/{pid}/exe", BIN):
                found.append(pid)
        except OSError:
            continue
    return found


def image(lab, name="disk0.img", mib=128):
    """A sparse image file."""
    path = lab.path(name)
    with open(path, "wb") as file:
        file.truncate(mib << 20)
    return path
