"""The table of murders: what was done, how often, what applications saw of it, and what was lost."""

import json
from dataclasses import asdict, dataclass, field


@dataclass
class Row:
    """One kind of murder."""

    name: str
    what: str
    times: int = 0
    errors: int = 0         # seen by applications, or that it did not go on, and not promised
    promised: int = 0       # errors that the product says it gives
    lost_bytes: int = 0     # of what was to be there, or other bytes than those
    stall_s: float = 0.0    # the longest that anything waited
    not_here: str = ""      # why it was not done at all
    said: list = field(default_factory=list)

    @property
    def is_clean(self):
        return not self.errors and not self.lost_bytes


HEAD = ("what", "times", "errors", "promised", "bytes lost", "longest stall")


class Table:
    def __init__(self, head):
        """`head`: what is known of the run before it."""
        self.head = head
        self.rows = {}

    def row(self, name, what):
        return self.rows.setdefault(name, Row(name, what))

    @property
    def is_clean(self):
        return all(row.is_clean for row in self.rows.values())

    def lines(self):
        """As text; those that could not be done last, with why."""
        cells = [HEAD]
        for row in self.rows.values():
            if row.times or not row.is_clean:
                cells.append((row.what, f"{row.times:,}", str(row.errors), str(row.promised), str(row.lost_bytes),
                              f"{row.stall_s:.1f} s"))
        widths = [max(len(line[at]) for line in cells) for at in range(len(HEAD))]
        for line in cells:
            yield "  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))])
        for row in self.rows.values():
            if not row.times and row.is_clean:
                yield f"{row.what.ljust(widths[0])}  " + (f"not here: {row.not_here}" if row.not_here else "not drawn")
        for row in self.rows.values():
            yield from (f"{row.name}: {text}" for text in row.said)

    def write(self, path):
        """Into PATH.txt and PATH.json."""
        with open(f"{path}.txt", "w", encoding="utf-8") as file:
            file.write("\n".join([*(f"{key}: {value}" for key, value in self.head.items()), "", *self.lines()]) + "\n")
        with open(f"{path}.json", "w", encoding="utf-8") as file:
            json.dump({**self.head, "rows": [asdict(row) for row in self.rows.values()]}, file, indent=1)
            file.write("\n")
