"""What every murder is."""


class Murder:
    """`strike` does it, and returns texts about bytes that are not what they must be, if it looked at any."""

    name = ""           # as SOAK_ONLY has it
    what = ""           # its row
    holds = frozenset() # what no other murder may touch meanwhile
    cuts = False        # applications lose their disk, as with their machine

    def __init__(self, chance, is_short=False, seconds_max=60.0):
        """`seconds_max`: the longest outage."""
        self.chance = chance
        self.is_short = is_short
        self.seconds_max = seconds_max

    def why_not(self, _world):
        """What this machine lacks for it, or nothing."""
        return None

    def fits(self, _world):
        """Whether there is anybody in this world to whom it could happen."""
        return True

    def strike(self, world):
        raise NotImplementedError

    def some_seconds(self, least, most):
        """Short times as often as long ones."""
        return least * (most / least) ** self.chance.random()
