"""docs/volumes.md: what it says is done, as it stands there."""

import os
import re

from harness import check, read
from registry import test
from test_keys_documents import ROOT, House

DOCUMENT = "docs/volumes.md"


def blocks(text):
    """What a document shows: the language of each fenced block, and its lines."""
    return [(kind, body.splitlines()) for kind, body in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)]


def steps(lines):
    """Of a console: where each command is run, and what is to come of it. One that begins with `! ` is refused."""
    found = []
    for line in lines:
        prompt = re.match(r"(\w+)\$ (.*)", line)
        if prompt:
            found.append((prompt[1], prompt[2], []))
        else:
            found[-1][2].append(line)
    return found


def matches(wanted, printed):
    """Whether that is what was printed, where `...` stands for anything, and alone on a line for any lines."""
    pattern = ""
    for line in wanted:
        if line == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.split("...")) + r"\n"
    return re.fullmatch(pattern, printed) is not None


@test(seconds=120)
def recipes(lab):
    """Every command of docs/volumes.md, in its order, does and prints what stands there."""
    check(matches(["a", "...", "b...d"], "a\nx\ny\nbcd\n") and matches(["..."], ""), "what may be left out")
    check(not matches(["a"], "a\nb\n") and not matches(["a...c"], "a\nc\n"), "what may not")
    houses = {"node": House(lab, "target"), "host": House(lab, "initiator")}
    for machine, name in ("node", "a.img"), ("node", "b.img"), ("host", "c.img"), ("host", "one.img"), ("host", "two.img"), ("host", "three.img"), ("host", "left.img"), ("host", "right.img"), ("host", "data.img"), ("host", "metadata.img"), ("host", "east.img"), ("host", "east-metadata.img"), ("host", "west.img"), ("host", "west-metadata.img"), ("host", "big.img"):
        houses[machine].image(name)
    shown = blocks(read(os.path.join(ROOT, DOCUMENT)))
    # A file may be shown behind the command that takes it.
    for kind, lines in shown:
        if kind == "toml":
            name = re.fullmatch(r"# ([\w.]+)", lines[0])[1]
            with open(houses["host"].at("here", name), "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
    begun = []
    count = 0
    for kind, lines in shown:
        check(kind in ("console", "toml"), f"a block of {kind}")
        for machine, command, wanted in steps(lines) if kind == "console" else ():
            house, count = houses[machine], count + 1
            if command.startswith("thinwire target "):
                name = re.search(r"--name (\w+)", command)[1]
                begun.append(house.begins(command, name))
                printed = begun[-1].stdout
            else:
                refused = bool(wanted) and wanted[0].startswith("! ")
                done = lab.run(house.side, *house.argv(command), timeout=40, check_exit=False)
                check((done.returncode != 0) == refused, f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
                printed = done.stderr if refused else done.stdout
                wanted = [line.removeprefix("! ") for line in wanted]
            check(matches(wanted, printed), f"{command} printed\n{printed}\nwhich is not\n" + "\n".join(wanted))
    check(count > 15, f"{count} commands were found")
    for process in reversed(begun):
        process.kill(15)
        process.wait(10)
