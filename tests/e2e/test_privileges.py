"""What a target gives up once it serves: its user, capabilities, and the system calls that it does not make."""

import os

import calls
import load
import node
from harness import check, run, until
from node import below, Attachment, Target, image, refused, thinwire, uri
from registry import test
from test_status import Shown, as_nobody

# Users and groups without a name.
USER, STRANGER = 65533, 65534
NONE = "0000000000000000"
MEASURES = ("no_new_privs", "not_dumpable", "seccomp", "io_uring")


def threads(pid):
    """What the kernel shows of each thread of a process. Its own for io_uring have what others had when they were
    made, and take no part in this."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/status", encoding="ascii", errors="replace") as file:
                fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        except FileNotFoundError:
            continue
        if not fields["Name"].startswith("iou-"):
            found.append(fields)
    return found


def confined(target, uid=0, gid=0, capabilities=NONE):
    """Every thread of a target is."""
    all_threads = threads(target.process.pid)
    for thread in all_threads:
        for field, value in (("Uid", [str(uid)] * 4), ("Gid", [str(gid)] * 4)):
            check(thread[field].split() == value, f"{field} of {thread['Name']}: {thread[field]}")
        for field in ("CapPrm", "CapEff"):
            check(thread[field] == capabilities, f"{field} of {thread['Name']}: {thread[field]}")
        for field in ("CapInh", "CapBnd", "CapAmb"):
            check(thread[field] == NONE, f"{field} of {thread['Name']}: {thread[field]}")
        check((thread["NoNewPrivs"], thread["Seccomp"]) == ("1", "2"), f"{thread['Name']}: {thread}")
    return {thread["Name"] for thread in all_threads}


def told(lab, **wanted):
    """What `status` tells of the privileges of the one target, which is to have these."""
    shown = Shown(lab)
    found = shown.target()["privileges"]
    for key, value in wanted.items():
        check(found[key] == value, f"'{key}' should be {value!r}: {found}")
    for measure in MEASURES:
        check(found[measure] == {"taken": True, "why": None}, f"{measure}: {found}")
    said = shown.text()
    for word in (f"runs as user {found['user']} (id {found['uid']})", "no_new_privs: yes", "not dumpable: yes",
                 "seccomp: yes", "io_uring restricted: yes"):
        check(word in said, f"'{word}' is missing:\n{said}")
    return found


def write(lab, over, *exports, beside=0):
    """Whoever attaches them reads what it has written, over its own connection, beside so many others. An interface
    has room for one `xdp`."""
    def link(at):
        return "packet" if over == "xdp" and at else over
    attached = [Attachment(lab, uri(lab, name, over=link(at)), name=name) for at, name in enumerate(exports, beside)]
    runs = [load.Fio(lab, a.nbd, mib=16, seed=n) for n, a in enumerate(attached, 1)]
    for fio in runs:
        fio.finish(60)
    for attachment in attached:
        attachment.detach()


def shards(over):
    """Two, where a link can be that of several."""
    return ["--shards", "1" if over == "xdp" else "2"]


@test(seconds=90, each={over: {"over": over} for over in node.LINKS})
def all_threads_of_a_target(lab, over):
    """Files, direct and buffered, and memory, on two shards with threads of their links: no thread has anything
    left, and all that is written is read."""
    shown = Shown(lab)
    target = Target(lab, f"direct={image(lab, 'direct.img')}", f"cached={image(lab, 'cached.img')},buffered",
                    f"all={image(lab, 'all.img')},spread", "memory=memory:64M", over=over,
                    extra=(*shown.flags, *shards(over), "--receive", "split", "--completion", "workqueue"))
    write(lab, over, "direct", "cached", "all", "memory")
    names = confined(target)
    check({"steward", "network", "disk-jobs"} <= names and ("shard-1" in names) == (over != "xdp"), f"they were all there: {names}")
    found = told(lab, user="root", uid=0, gid=0, capabilities=[], kept_for=None, refused_calls={})
    check(set(found) == {"user", "uid", "gid", "capabilities", "kept_for", "refused_calls", *MEASURES}, f"{found}")
    target.stop()
    check(not shown.files(), f"it left {shown.files()}")


def left(lab):
    """The files of targets in the run directory."""
    places = [lab.path("target-run"), lab.path("target-run", "nodes"), lab.path("target-run", "ids")]
    return [os.path.join(place, name) for place in places if os.path.isdir(place) for name in os.listdir(place)
            if os.path.isfile(os.path.join(place, name)) or name.endswith(".sock")]


@test(seconds=120, each={over: {"over": over} for over in node.LINKS})
def as_another_user(lab, over):
    """`--user`: an image of root's in a folder of root's is served, killed and served again; nothing of it is
    left, and root's next target knows its writer."""
    private = lab.path("private")
    os.mkdir(private, 0o700)
    path = image(lab, "private/disk0.img")
    os.chmod(path, 0o600)
    theirs = image(lab, "theirs.img")
    os.chown(theirs, USER, USER)
    extra = (*Shown(lab).flags, "--state-dir", lab.path("state"))
    as_user = (*extra, "--user", f"{USER}:{USER}", *shards(over), "--receive", "split")
    # The first writer comes to a target of root's.
    target = Target(lab, f"disk0={path}", over=over, extra=extra)
    attachment = Attachment(lab, uri(lab, "disk0", over=over), extra=["--when-away", "wait"])
    check("user.thinwire.writer" in os.listxattr(path), "it is on record beside the image")
    target.stop()
    target = Target(lab, f"disk0={path}", f"theirs={theirs}", "memory=memory:64M", over=over, extra=as_user)
    load.verified(lab, attachment.nbd, mib=16)
    write(lab, over, "theirs", "memory", beside=1)
    confined(target, USER, USER)
    told(lab, user=str(USER), uid=USER, gid=USER, capabilities=[], refused_calls={})
    check(os.stat(f"/proc/{target.process.pid}/mem").st_uid == 0, "not even its own user may look into it")
    check(os.stat(lab.path("state")).st_uid == USER, "its state directory was made for it")
    check("user.thinwire.writer" not in os.listxattr(path), "the record has moved to where it may be written")
    check("user.thinwire.writer" in os.listxattr(theirs), "and is beside what it may write")
    # kill -9 under load, and the same again.
    fio = load.Fio(lab, attachment.nbd, mib=32, seconds=4, seed=7)
    fio.still_running("the target was killed")
    target.kill()
    until("what was killed is cleaned up after", 60, lambda: not left(lab))
    target.start()
    fio.finish(60)
    if over != "udp":
        lab.remake(1)
        load.verified(lab, attachment.nbd, mib=4, seed=8)
    target.stop()
    check(not left(lab), f"it left {left(lab)}")
    target = Target(lab, f"disk0={path}", over=over, extra=extra)
    load.verified(lab, attachment.nbd, mib=4, seed=9)
    refused(lab, "attach", uri(lab, "disk0", over="packet" if over == "xdp" else over), "--nbd",
            f"unix:{lab.path('other')}", "--as", "other", "--run-dir", lab.path("other-run"), says="take-over")
    attachment.detach()
    Attachment(lab, uri(lab, "disk0", over=over)).detach()
    check("user.thinwire.writer" in os.listxattr(path), "the record is beside the image again")


@test(seconds=90)
def gateway_as_another_user(lab):
    """A gateway that has become somebody else goes on with what it had attached, also when that was away, and leaves
    nothing."""
    behind = Target(lab, f"leaf={image(lab, 'leaf.img')}", name="behind", over="raw")
    extra = ("--run-dir", lab.path("target-run"), "--state-dir", lab.path("state"), "--user", f"{USER}:{USER}")
    gateway = Target(lab, f"disk0={below(lab, 'leaf', node='behind', over='raw')}", name="middle", over="raw",
                     side="initiator", extra=extra)
    attachment = Attachment(lab, uri(lab, "disk0", over="raw", node="middle"), side="target")
    fio = load.Fio(lab, attachment.nbd, mib=32, seconds=4)
    behind.kill().start()
    fio.finish(60)
    confined(gateway, USER, USER)
    check([name for name in left(lab) if "/ids/" in name], f"its name at the other target is locked: {left(lab)}")
    check(os.listdir(lab.path("state")) and os.stat(lab.path("state")).st_uid == USER, "its record is where it may be")
    attachment.detach()
    gateway.stop()
    check(not left(lab), f"it left {left(lab)}")


@test()
def files_of_others(lab):
    """An image of another user's is served by root's target, which keeps the one capability that it needs for that."""
    path = image(lab)
    os.chown(path, STRANGER, STRANGER)
    os.chmod(path, 0o600)
    target = Target(lab, f"disk0={path}", extra=Shown(lab).flags)
    write(lab, "best", "disk0")
    confined(target, capabilities="0000000000000002")
    found = told(lab, capabilities=["CAP_DAC_OVERRIDE"], refused_calls={})
    check(found["kept_for"] and path in found["kept_for"], f"{found}")
    check("user.thinwire.writer" in os.listxattr(path), "the record is beside it")


@test()
def a_call_that_is_refused(lab):
    """One that a target does not make does not happen, is told of, and the target serves on."""
    target = Target(lab, f"disk0={image(lab)}", extra=Shown(lab).flags)
    lab.may_be_refused.append(target.process)
    # In place of the next client's acceptance by the steward; it is accepted then.
    tracer = lab.start("target", "strace", "-f", "-p", target.process.pid, "-e",
                       "inject=accept4:error=EAGAIN:syscall=getppid:when=1", "-o", lab.path("trace"))
    until("strace has the target", 20, lambda: "attached" in tracer.stderr)
    found = told(lab)
    check(found["refused_calls"] == {"getppid": 1}, f"{found}")
    check("refused system calls: getppid 1 times" in Shown(lab).text(), "for people, too")
    check("refused by seccomp: the system call getppid (" in target.process.stderr, target.process.stderr)
    write(lab, "best", "disk0")
    target.stop()


@test()
def an_xdp_link_whose_address_changes(lab):
    """It could load no other program, and goes on as a packet link."""
    target = Target(lab, f"disk0={image(lab)}", over="xdp", extra=Shown(lab).flags)
    lab.may_be_refused.append(target.process)
    attachment = Attachment(lab, uri(lab, over="xdp"))
    load.verified(lab, attachment.nbd, mib=4)
    lab.run("target", "ip", "link", "set", "eth1", "address", "02:00:00:00:01:77")
    load.verified(lab, attachment.nbd, mib=8, seed=2)
    # It looks now and then for what has become of its address.
    refused = until("the target has tried to load a program", 20, lambda: told(lab)["refused_calls"])
    check(set(refused) == {"bpf"}, f"{refused}")
    attachment.detach()


@test(each={face: {"face": face} for face in ("nbd", "file", "block")})
def of_attachments(lab, face):
    """They keep what mounts and loop devices need, and no thread gains more."""
    Target(lab, f"disk0={image(lab)}")
    attachment = Attachment(lab, face=face)
    if face == "nbd":
        load.verified(lab, attachment.nbd, mib=4)
    else:
        run("dd", f"if={attachment.path}", "of=/dev/null", "bs=1M", "count=8")
    for thread in threads(attachment.pid()):
        check(thread["NoNewPrivs"] == "1" and thread["CapEff"] != NONE, f"{thread}")
    attachment.detach()


@test()
def not_confined(lab):
    """`--no-confine` keeps everything, and says so wherever it can."""
    target = Target(lab, f"disk0={image(lab)}", extra=(*Shown(lab).flags, "--no-confine"))
    for thread in threads(target.process.pid):
        check(thread["CapEff"] != NONE and thread["Seccomp"] == "0", f"{thread}")
    check("--no-confine: this target keeps all privileges of user root" in target.process.stderr, "the log says so")
    found = Shown(lab).target()["privileges"]
    for measure in MEASURES[:3]:
        check(found[measure] == {"taken": False, "why": "--no-confine"}, f"{found}")
    check(found["io_uring"]["taken"] and "CAP_SYS_ADMIN" in found["capabilities"], f"{found}")
    check("seccomp: no (--no-confine)" in Shown(lab).text(), "status says so")


@test()
def who_cannot_become_whom(lab):
    """Users that are not there, or not to be had, and a record that cannot move, each by name."""
    path = image(lab)
    base = ("target", "--insecure", "--link", "udp:127.0.0.1", "--name", "n", "--run-dir", lab.path("run"),
            "--state-dir", lab.path("state"), "--export", f"disk0={path}")
    for flags, code, says in (
        (["--user", "no-such-user"], 1, ["--user", "no user `no-such-user`"]),
        (["--user", "root:no-such-group"], 1, ["no group `no-such-group`"]),
        (["--user", "4123456"], 1, ["no user `4123456`"]),
        (["--user", "root", "--no-confine"], 2, ["--no-confine"]),
    ):
        refused(lab, *base, *flags, says=says, code=code, side="target")
    config = lab.path("target.toml")
    with open(config, "w", encoding="ascii") as file:
        file.write(f'node = "n"\ninsecure = true\nlink = ["udp:127.0.0.1"]\nuser = "no-such-user"\n'
                   f'[[export]]\nname = "disk0"\nvolume = "{path}"\n')
    refused(lab, "target", "--config", config, "--check", says="no user `no-such-user`", side="target")
    refused(lab, "target", "--config", config, "--no-confine", says="confine", side="target", code=2)
    # A user who is not root becomes nobody else.
    os.chown(path, STRANGER, STRANGER)
    os.chmod(lab.dir, 0o755)
    done = lab.run("target", *as_nobody(lab), *base, "--user", str(USER) + ":1", check_exit=False)
    check(done.returncode == 1 and "only root can become another user" in done.stderr, done.stderr)
    # A writer is on record beside the image; whoever may not write there is to have another place for that.
    os.chown(path, 0, 0)
    os.chmod(path, 0o600)
    target = Target(lab, f"disk0={path}", extra=Shown(lab).flags)
    Attachment(lab).detach()
    target.stop()
    check("user.thinwire.writer" in os.listxattr(path), "it is on record")
    os.mkdir(lab.path("state"), 0o755)
    checked = refused(lab, *base, "--user", f"{USER}:{USER}", "--check", says=["nobody can be let in", "disk0"],
                      side="target")
    check(lab.path("state") in checked.stderr, checked.stderr)
    refused(lab, *base, "--user", f"{USER}:{USER}", says=["disk0.img", "move who may write it"], side="target")
    check("user.thinwire.writer" in os.listxattr(path), "and still is")


@test(seconds=120)
def calls_are_on_the_list(lab):
    """What a target does under load is what its list says that it does (all tests: calls.py)."""
    trace = lab.path("calls")
    target = Target(lab, f"disk0={image(lab)}", f"disk1={image(lab, 'disk1.img')},buffered", extra=Shown(lab).flags,
                    trace=trace)
    for name in ("disk0", "disk1"):
        write(lab, "best", name)
    thinwire(lab, "status", *Shown(lab).flags, side="target")
    target.stop()
    found = until("strace has written it all", 10, lambda: (f := calls.made(trace)) and f["exit_group"] and f)
    check(found["io_uring_enter"] > 10 and found["exit_group"] == 1, f"the trace is one of a target: {found}")
    check(not calls.missing(found), f"missing in calls.rs: {calls.missing(found)}")
    known = calls.listed()
    check(len(known) > 50 and known["pread64"] and not known["futex"], f"calls.py reads the list: {known}")
