"""Murder on real machines: loads that know each byte they were promised, and everything that can happen to
target, initiator, face, gateway, wire and machine meanwhile.

    stamp.py       what stands in a sector
    model.py       what a disk may show, from a journal of what was asked and what was promised
    journal.py     that journal
    program.py     what every load is: hands at work, figures, a socket where it is told what to do
    blocks.py      a load of sectors, on an NBD face or in a file; disks.py has both
    databases.py   loads of transactions: sqlite, PostgreSQL
    loads.py       the runner's end of a load
    world.py       a target, perhaps a gateway, attachments and loads: drawn from a seed
    murders/       what happens to it, a class each
    frozen.py      a writer that is frozen, replaced and woken
    table.py       the rows
    __main__.py    the command: `make soak`
"""
