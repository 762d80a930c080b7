"""What happens between the machines: at the switch, at its ports, and to what comes out of them."""

import json
import time

from harness import until

from .. import wiretap
from ..world import START_S
from .murder import Murder



class OfTheWire(Murder):
    holds = frozenset({"wire"})

    def lasts(self):
        return self.some_seconds(0.5, 3 if self.is_short else 8)


class Loss(OfTheWire):
    name, what = "loss", "the switch loses 0.1 to 20 %"

    def strike(self, world):
        world.lab.drop(self.some_seconds(0.1, 20))
        time.sleep(self.lasts())
        world.lab.drop(0)


class Rules(OfTheWire):
    """Rules of the switch, for a while, which count how often they were met."""

    def rules(self, world):
        """Text for `nft`, of the table `soak` of this family, with a counter `met`."""
        raise NotImplementedError

    def strike(self, world):
        family, text = self.rules(world)
        world.lab.run("switch", "nft", "-f", "-", input=f"table {family} soak {{\ncounter met {{ }}\n{text}}}\n")
        try:
            time.sleep(self.lasts())
            until(f"{self.name}: a frame is met", 60, lambda: self.met(world, family))
        finally:
            world.lab.run("switch", "nft", "delete", "table", family, "soak")

    @staticmethod
    def met(world, family):
        """How many frames were."""
        rows = json.loads(world.lab.run("switch", "nft", "-j", "list", "counters", "table", family, "soak").stdout)
        return next(row["counter"]["packets"] for row in rows["nftables"] if "counter" in row)


class Corruption(Rules):
    name, what = "corruption", "the switch corrupts frames"
    # Bytes behind the Ethernet header: headers, messages, data. What is not in a frame is not met.
    PLACES = (16, 30, 47, 60, 93, 130, 210, 700, 4100)

    def rules(self, world):
        often = round(self.some_seconds(1, 50))
        lines = [f"numgen random mod {1000 * len(self.PLACES)} < {often * 10} @ll,{(14 + at) * 8},8 set "
                 f"{self.chance.randrange(256)} counter name met\n" for at in self.PLACES]
        return "bridge", "chain c {\ntype filter hook forward priority 0;\n" + "".join(lines) + "}\n"


class Duplication(Rules):
    name, what = "duplication", "the switch doubles frames"

    def rules(self, world):
        often, text = round(self.some_seconds(5, 300)), ""
        for link in range(1, world.lab.links + 1):
            for port, other in ((f"i{link}", f"t{link}"), (f"t{link}", f"i{link}")):
                text += (f'chain {port} {{\ntype filter hook ingress device "{port}" priority 0;\n'
                         f'numgen random mod 1000 < {often} counter name met dup to "{other}";\n}}\n')
        return "netdev", text


class Replay(OfTheWire):
    name, what = "replay", "all that passed is captured and sent again, in another order"

    def strike(self, world):
        tape = wiretap.record(world.lab, seconds=1.0)
        # Beside its session, and perhaps to the next target.
        if self.chance.random() < 0.5:
            world.target.kill()
            world.target.start(timeout=START_S)
        wiretap.play(world.lab, tape, self.chance.getrandbits(32))
    holds = frozenset({"wire", "target"})


class Flaps(OfTheWire):
    name, what = "flaps", "links down and up, several times a second"

    def strike(self, world):
        for _ in range(self.chance.randrange(3, 10)):
            link, side = self.chance.randrange(world.lab.links) + 1, self.chance.choice(("initiator", "target"))
            world.lab.port(link, False, side)
            time.sleep(self.some_seconds(0.02, 1))
            world.lab.port(link, True, side)
            time.sleep(self.some_seconds(0.02, 1))


class Sizes(OfTheWire):
    name, what = "mtu", "MTU of ports of the switch changes"

    def strike(self, world):
        for size in (*self.chance.choices((1500, 4000, 9000), k=3), world.lab.mtu):
            for link in range(1, world.lab.links + 1):
                ports = self.chance.sample((f"i{link}", f"t{link}"), self.chance.choice((1, 2)))
                for port in ports if size != world.lab.mtu else (f"i{link}", f"t{link}"):
                    world.lab.run("switch", "ip", "link", "set", port, "mtu", str(size))
            time.sleep(self.lasts() / 2)


class Cable(OfTheWire):
    name, what = "cable", "a cable is moved: the target has another address"

    def strike(self, world):
        for link in range(1, world.lab.links + 1):
            mac = f"02:00:00:00:{link:02x}:{self.chance.randrange(16, 256):02x}"
            # As a card that is new somewhere says of itself.
            world.lab.run("target", "sysctl", "-qw", f"net.ipv4.conf.eth{link}.arp_notify=1")
            world.lab.run("target", "ip", "link", "set", f"eth{link}", "address", mac)
            time.sleep(self.lasts())
        # An xdp link asks for a program with the new address, and goes on without (docs/security.md, "Privileges").
        world.lab.may_be_refused += [server.process for server in world.servers]


class NewInterface(OfTheWire):
    name, what = "interface", "the target's interface is removed, and made anew"

    def strike(self, world):
        for link in range(1, world.lab.links + 1):
            world.lab.remake(link)
            time.sleep(self.lasts())


class Outage(Murder):
    name, what = "outage", "target away, or all links: 1 to 300 s"
    holds = frozenset({"wire", "target"})

    def strike(self, world):
        seconds = self.some_seconds(1, self.seconds_max)
        how = self.chance.choice(("killed", "down", "silent"))
        links = range(1, world.lab.links + 1)
        if how == "killed":
            world.target.kill()
        elif how == "down":
            for link in links:
                world.lab.port(link, False)
        else:
            world.lab.drop(100)
        time.sleep(seconds)
        if how == "killed":
            world.target.start(timeout=START_S)
        elif how == "down":
            for link in links:
                world.lab.port(link, True)
        else:
            world.lab.drop(0)
