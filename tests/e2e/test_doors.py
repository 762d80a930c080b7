"""The doors on this machine: who is answered at a control socket, what lies in the run directory, who may use an
NBD socket, where one may listen. Beside `test_strangers_local.py`, whose stranger holds locks and takes names."""

import json
import os
import resource
import socket
import stat
import subprocess

import load
import node
from harness import check, read, run, until
from node import Attachment, Target, image, refused, thinwire, uri
from registry import test
from test_strangers_local import AS_STRANGER, AS_VICTIM, STRANGER, runnable

# Connects, says what it is given, and prints what comes back, or why it could not.
ASK = """
import socket, sys
asking = socket.socket(socket.AF_UNIX)
asking.settimeout(10)
try:
    asking.connect(sys.argv[1])
    try:
        asking.sendall(sys.argv[2].encode().decode("unicode_escape").encode("latin-1"))
    except (BrokenPipeError, ConnectionResetError):
        pass  # it has been answered already
    answer = b""
    while not answer.endswith(b"\\n") and (more := asking.recv(65536)):
        answer += more
    print(answer.decode())
except OSError as error:
    print(type(error).__name__)
"""
# Keeps connecting to a control socket and says what no control client would, all at once, until it is ended.
PESTER = """
import os, random, socket, sys
draw = random.Random(int(sys.argv[2]))
held = []
for count in range(int(sys.argv[3])):
    asking = socket.socket(socket.AF_UNIX)
    asking.setblocking(False)
    try:
        asking.connect(sys.argv[1])
        asking.send(draw.choice([
            draw.randbytes(draw.randrange(1, 6000)), b"[" * 4000 + b"\\n", b"\\n" * 100, b"{\\"op\\":\\"detach\\"}\\n",
            b"{\\"op\\":\\"detach\\",\\"force\\":1}\\n", b"{\\"op\\":\\"status\\"}{\\"op\\":\\"detach\\",\\"force\\":true}\\n",
            b"{\\"op\\":\\"status\\",\\"op\\":\\"detach\\"}\\n", b"{\\"op\\":\\"sta", b"", b"{\\"op\\":\\"status\\"}\\n",
        ]))
    except OSError:
        pass  # full, or closed already
    held.append(asking)
    if len(held) > 60:
        held.pop(draw.randrange(len(held))).close()
    if count == 100:
        print("pestering", flush=True)
print("done", flush=True)
"""


def ask(lab, path, what, *, by=()):
    """What a client of this user hears who says `what` to a control socket."""
    return lab.run("initiator", *by, "/usr/bin/python3", "-c", ASK, path, what).stdout.strip()


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def target_sock(lab, run_dir="run"):
    return os.path.join(lab.path(run_dir), f"target-{node.NODE}.sock")


def target_status(lab, run_dir):
    """The one target of a run directory."""
    return json.loads(thinwire(lab, "status", "--json", "--run-dir", run_dir).stdout)["targets"][0]


@test()
def control_sockets_answer_their_owner_and_root(lab):
    """Another user at the control sockets of an attachment and of a target: shut out; let in by a chmod: told so,
    counted, not heard."""
    program = runnable(lab)
    target = Target(lab, f"disk0={image(lab)}", extra=["--run-dir", lab.path("there")])
    disk = Attachment(lab)
    doors = (os.path.join(disk.run_dir, "disk0.sock"), target_sock(lab, "there"))
    requests = ('{"op":"status"}\\n', '{"op":"detach","force":true}\\n', "format c:\\n", "\\x00\\xff", "x" * 9000)
    for door in doors:
        check(mode(door) == 0o600, f"{door} has mode {mode(door):o}")
        heard = ask(lab, door, requests[0], by=AS_STRANGER)
        check(heard == "PermissionError", f"{door} let a stranger in: {heard}")
        # By mistake.
        os.chmod(door, 0o666)
        for request in requests:
            heard = ask(lab, door, request, by=AS_STRANGER)
            told = json.loads(heard)
            check(told["answer"] == "forbidden" and "only root" in told["why"] and str(STRANGER) in told["why"],
                  f"{door} said to a stranger who said {request[:40]!r}: {heard}")
        heard = ask(lab, door, requests[0])
        check('"sock' not in heard and f'"strangers":{len(requests)}' in heard, f"{door} counts them: {heard}")
    for run_dir in (disk.run_dir, lab.path("there")):
        said = thinwire(lab, "status", "--run-dir", run_dir).stdout
        check(f"refused {len(requests)} connections of other users" in said, f"status tells of them: {said}")
    # The command says to strangers what it says where they cannot connect at all.
    theirs = lab.run("initiator", *AS_STRANGER, program, "status", "--json", "--run-dir", disk.run_dir).stdout
    check('"alive"' in theirs and "permission" in theirs, f"a stranger's status: {theirs}")
    for force in ([], ["--force"]):
        done = lab.run("initiator", *AS_STRANGER, program, "detach", disk.name, "--run-dir", disk.run_dir, *force,
                       check_exit=False)
        check(done.returncode == 1 and "as root or as the user" in done.stderr, f"detached by a stranger: {done.stderr}")
    check(disk.status()["state"] == "attached" and target.process.running, "nobody was ended")
    disk.detach()


@test()
def control_sockets_of_users_answer_root(lab):
    """An attachment of an ordinary user: that user and root are answered, a third is not."""
    program, home = runnable(lab), lab.path("home")
    os.chmod(lab.dir, 0o755)
    os.mkdir(home, 0o755)
    os.chown(home, 65533, 65533)
    by_victim = ["env", f"XDG_RUNTIME_DIR={home}", *AS_VICTIM, program]
    lab.run("initiator", *by_victim, "attach", "null:1M", "--as", "mine", "--nbd", f"unix:{home}/nbd")
    door = os.path.join(home, "thinwire", "mine.sock")
    os.chmod(door, 0o666)
    status = '{"op":"status"}\\n'
    for by, wanted in ((AS_VICTIM, "status"), ((), "status"), (AS_STRANGER, "forbidden")):
        heard = json.loads(ask(lab, door, status, by=by))
        check(heard["answer"] == wanted, f"{by} was answered {heard}")
    check("65533 and root" in heard["why"], f"whom it answers: {heard}")
    lab.run("initiator", *by_victim, "detach", "mine")


@test(seconds=120)
def control_sockets_fed_with_garbage(lab):
    """Thousands of connections with nonsense, half a request or nothing, at an attachment and its target, under
    verified load: counted by reason, and nobody else notices."""
    Target(lab, f"disk0={image(lab)}", extra=["--run-dir", lab.path("there")])
    disk = Attachment(lab)
    doors = (os.path.join(disk.run_dir, "disk0.sock"), target_sock(lab, "there"))
    fio = load.Fio(lab, disk.nbd, mib=64, seconds=8)
    pests = [lab.start("initiator", "/usr/bin/python3", "-c", PESTER, door, str(seed), "4000", name="pest")
             for seed, door in enumerate(doors)]
    until("they have begun", 30, lambda: all("pestering" in pest.stdout for pest in pests))
    fio.still_running("all of it was said")
    fio.finish()
    for pest in pests:
        pest.wait(60)
        check("done" in pest.stdout, pest.stderr)
    status = disk.status()
    check(status["state"] == "attached" and not status["control"]["strangers"], f"the attachment: {status}")
    there = target_status(lab, lab.path("there"))
    check(there["state"] == "serving", f"the target: {there}")
    for name, control in (("attachment", status["control"]), ("target", there["control"])):
        # How many get in that far is up to the processors that there are; together they are most that come.
        refused_in_all = control["garbled"] + control["crowded"]
        check(min(control["garbled"], control["crowded"]) > 0 and refused_in_all > 1000,
              f"the {name} counts what it refuses: {control}")
    heard = json.loads(ask(lab, doors[0], "x" * 5000))
    check(heard == {"answer": "refused", "why": "the request is longer than 4096 bytes"}, f"a long line: {heard}")
    disk.detach()


@test()
def control_sockets_without_descriptors(lab):
    """No descriptor is left for a connection: it is turned away and counted, and nobody spins over it."""
    disk = Attachment(lab, "null:1M")
    pid, door = disk.pid(), os.path.join(disk.run_dir, "disk0.sock")
    used = {int(number) for number in os.listdir(f"/proc/{pid}/fd")}
    first_free = next(number for number in range(len(used) + 1) if number not in used)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (first_free, before[1]))
    for _ in range(3):
        heard = ask(lab, door, '{"op":"status"}\\n')
        check(heard in ("", "ConnectionResetError"), f"turned away: {heard}")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    control = disk.status()["control"]
    check(control == {"strangers": 0, "garbled": 0, "crowded": 3}, f"counted: {control}")
    disk.detach()


@test()
def a_stranger_listens(lab):
    """A control socket of ours at which a process of another user listens: nobody believes what it says."""
    run_dir = lab.path("run")
    os.mkdir(run_dir, 0o755)
    at = lambda name: os.path.join(run_dir, name)
    door = socket.socket(socket.AF_UNIX)
    door.bind(at("x.sock"))
    os.chmod(at("x.sock"), 0o600)
    lie = """
import socket
door = socket.socket(fileno=0)
door.listen()
print("listens", flush=True)
while True:
    asking = door.accept()[0]
    asking.sendall(b'{"answer":"detached"}\\n')
"""
    with open(lab.path("lie.out"), "wb") as out:

        liar = subprocess.Popen([*AS_STRANGER, "/usr/bin/python3", "-c", lie], stdin=door, stdout=out)
    try:
        until("it listens", 10, lambda: "listens" in read(lab.path("lie.out")))
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rsplit(")", 1)[1].split()[19])
        record = {"schema": 2, "name": "x", "uri": "null:1M", "frontend": "nbd", "path": None, "insecure": False,
                  "pid": os.getpid(), "start_ticks": ticks, "leftovers": []}
        with open(at("x.json"), "w", encoding="ascii") as file:
            json.dump(record, file)
        holder = lab.start("initiator", "flock", at("x.lock"), "sh", "-c", "echo held; exec sleep 60", name="holder")
        until("the lock is held", 10, lambda: "held" in holder.stdout)
        os.chmod(at("x.lock"), 0o600)
        said = thinwire(lab, "status", "--run-dir", run_dir).stdout
        check("unresponsive" in said and f"another user (id {STRANGER}) has its control socket" in said, said)
        refused(lab, "detach", "x", "--run-dir", run_dir, says=f"another user (id {STRANGER})")
    finally:
        liar.kill()
        liar.wait()
        door.close()


PLANTED = ("lock", "json", "new", "sock", "log")


@test(each={what: {"what": what} for what in (*PLANTED, "disk", "ids", "nodes", "guard")})
def links_planted_in_the_run_directory(lab, what):
    """A symbolic link in the place of each thing that attachments and targets keep: refused by name, not followed,
    and in the way of that name only."""
    run_dir, precious = lab.path("run"), lab.path("precious")
    os.mkdir(run_dir, 0o755)
    is_folder = what in ("ids", "nodes")
    if is_folder:
        os.mkdir(precious)
    else:
        with open(precious, "w", encoding="ascii") as file:
            file.write("precious")
    kept = {"ids": "ids", "nodes": "nodes", "guard": ".claim.lock"}.get(what, f"disk0.{what}")
    planted = os.path.join(run_dir, kept)
    os.symlink(precious, planted)
    Target(lab, f"disk0={image(lab)}", over="plain", extra=["--run-dir", lab.path("there")])
    said = thinwire(lab, "status", "--run-dir", run_dir).stderr
    check(f"{planted}: it is a symbolic link" in said, f"status names it: {said!r}")
    attach = ["attach", uri(lab, over="plain"), "--as", "disk0", "--run-dir", run_dir]
    attach += ["--block"] if what == "disk" else ["--nbd", f"unix:{lab.path('s.nbd')}"]
    if what == "nodes":
        second = ("target", "--name", "node2", "--link", "eth1", "--export", "x=memory:1M")
        refused(lab, *second, "--run-dir", run_dir, says=[planted, "symbolic link"], side="target")
    else:
        refused(lab, *attach, says=[planted, "symbolic link"])
        if what in PLANTED:
            refused(lab, "detach", "disk0", "--run-dir", run_dir, says="disk0")
    check(os.path.islink(planted), "whoever put it there can take it away")
    check(os.listdir(precious) == [] if is_folder else read(precious) == "precious", "it was followed")
    # Others are not in its way; where it is everybody's, all is well once it is gone.
    if kept.startswith("disk0"):
        attach[attach.index("disk0")] = "other"
    else:
        os.unlink(planted)
    thinwire(lab, *attach)
    shown = json.loads(thinwire(lab, "status", "--json", "--run-dir", run_dir).stdout)["attachments"]
    check([(a["name"], a["state"]) for a in shown] == [(attach[attach.index("--as") + 1], "attached")], f"{shown}")
    thinwire(lab, "detach", shown[0]["name"], "--run-dir", run_dir)


@test(each={what: {"what": what} for what in ("lock", "json", "sock")})
def links_planted_for_a_target(lab, what):
    """The same in the place of a target's: it serves, says so, and only `status` does not find it."""
    run_dir, precious = lab.path("run"), lab.path("precious")
    os.mkdir(run_dir, 0o755)
    with open(precious, "w", encoding="ascii") as file:
        file.write("precious")
    planted = os.path.join(run_dir, f"target-{node.NODE}.{what}")
    os.symlink(precious, planted)
    target = Target(lab, "disk0=memory:1M", over="plain", extra=["--run-dir", run_dir])
    check(f"{planted}: it is a symbolic link" in target.process.stderr, f"it says so: {target.process.stderr}")
    thinwire(lab, "bench", uri(lab, over="plain"), "--runtime", "0.1", "--run-dir", lab.path("other"))
    target.stop()
    check(os.path.islink(planted) and read(precious) == "precious", "it was followed")


@test()
def files_that_others_may_write_or_own(lab):
    """Records, locks and logs of a stranger, or open to all: not read, not written, named."""
    run_dir = lab.path("run")
    os.mkdir(run_dir, 0o755)
    attach = ("attach", "null:1M", "--as", "a", "--nbd", f"unix:{lab.path('s.nbd')}", "--run-dir", run_dir)
    for kept in ("a.json", "a.log", "a.lock"):
        path = os.path.join(run_dir, kept)
        for change, says in ((lambda: os.chmod(path, 0o666), "others may write it"),
                             (lambda: os.chown(path, STRANGER, STRANGER), f"another user (id {STRANGER})")):
            with open(path, "w", encoding="ascii") as file:
                file.write("{}")
            os.chmod(path, 0o644)
            change()
            refused(lab, *attach, says=[path, says])
            said = thinwire(lab, "status", "--run-dir", run_dir).stderr
            check(f"{path}: " in said and says in said, f"status names it: {said!r}")
            check(read(path) == "{}", f"{path} was written")
            os.unlink(path)
    thinwire(lab, *attach)
    thinwire(lab, "detach", "a", "--run-dir", run_dir)


@test(each={f"umask_{mask:03o}": {"mask": mask} for mask in (0o000, 0o022, 0o077)})
def modes(lab, mask):
    """Who may do what with what lies in the run directory, and with an NBD socket, whatever the umask is."""
    run_dir = lab.path("run")
    under = ("sh", "-c", f'umask {mask:03o} && exec "$@"', "sh", node.BIN)
    target = Target(lab, f"disk0={image(lab)}", over="plain", extra=["--run-dir", run_dir], start=False)
    target.argv = [*under, *target.argv[1:]]
    target.start()
    lab.run("initiator", *under, "attach", *node.guarded(lab), uri(lab, over="plain"), "--as", "disk0", "--run-dir", run_dir,
            "--nbd", f"unix:{lab.path('s.nbd')}")
    seen = {}
    for place, folders, files in os.walk(run_dir):
        for name in folders + files:
            path = os.path.join(place, name)
            seen[os.path.relpath(path, run_dir)] = mode(path)
    check(not mode(run_dir) & 0o022, f"{run_dir} has mode {mode(run_dir):o}")
    wanted = {"disk0.sock": 0o600, "disk0.lock": 0o600, f"target-{node.NODE}.sock": 0o600,
              f"target-{node.NODE}.lock": 0o600, "ids": 0o700, "nodes": 0o700}
    for name, right in wanted.items():
        check(seen.get(name) == right, f"{name} has mode {seen.get(name, 0):o}, not {right:o}: {seen}")
    for name, found in seen.items():
        most = 0o600 if name.endswith((".lock", ".sock")) else 0o755 if name in ("ids", "nodes") else 0o644
        check(not found & ~most, f"{name} has mode {found:o}")
    check(mode(lab.path("s.nbd")) == 0o600, f"the NBD socket has mode {mode(lab.path('s.nbd')):o}")
    thinwire(lab, "detach", "disk0", "--run-dir", run_dir)
    lab.run("initiator", *under, "attach", *node.guarded(lab), uri(lab, over="plain"), "--as", "disk0", "--run-dir", run_dir,
            "--nbd", f"unix:{lab.path('s.nbd')}", "--socket-mode", "0662")
    check(mode(lab.path("s.nbd")) == 0o662, f"the NBD socket has mode {mode(lab.path('s.nbd')):o}")
    thinwire(lab, "detach", "disk0", "--run-dir", run_dir)


@test()
def nbd_sockets_are_their_owner_s(lab):
    """Another user's NBD client: shut out, until a mode lets it in."""
    os.chmod(lab.dir, 0o755)
    client = [*AS_STRANGER, "nbdinfo", "--size", f"nbd+unix:///?socket={lab.path('disk0.sock')}"]
    disk = Attachment(lab, "memory:1M")
    done = lab.run("initiator", *client, check_exit=False)
    check(done.returncode and "Permission denied" in done.stderr, f"a stranger was let in: {done.stdout}{done.stderr}")
    disk.detach()
    disk = Attachment(lab, "memory:1M", extra=["--socket-mode", "666"])
    check(lab.run("initiator", *client).stdout.strip() == str(1 << 20), "a stranger whom the mode lets in")
    disk.detach()


@test()
def nbd_ports_beyond_loopback(lab):
    """An address that others reach, and TLS: refused before anything is attached. There is no target at all."""
    attach = ("attach", uri(lab), "--run-dir", lab.path("run"), "--nbd")
    elsewhere = f"tcp:{lab.address('initiator')}:0"
    refused(lab, *attach, elsewhere, says=["other machines reach", "--tls off"], timeout=5)
    for tls in (["--tls=require"], ["--tls-psk", "/k"], ["--tls", "off", "--tls-certificates", "/c"]):
        refused(lab, *attach, elsewhere, *tls, says=["TLS for NBD", "there is none here"], timeout=5)
    # Loopback is what a plain port means, and a client that wants TLS is told that there is none.
    here = Attachment(lab, "memory:1M")
    here.detach()
    port = thinwire(lab, "attach", "memory:1M", "--as", "m", "--run-dir", lab.path("run"), "--nbd", "tcp:0").stdout.strip()
    check(port.startswith("127.0.0.1:"), f"a plain port is {port}")
    done = lab.run("initiator", "nbdinfo", "--size", f"nbds://{port}/", check_exit=False)
    check(done.returncode, f"a client that insists on TLS was served: {done.stdout}")
    check(lab.run("initiator", "nbdinfo", "--size", f"nbd://{port}/").stdout.strip() == str(1 << 20), "the size over TCP")
    thinwire(lab, "detach", "m", "--run-dir", lab.path("run"))
