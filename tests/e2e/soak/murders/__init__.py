"""What can happen to a world, a class each. A murder is over when `strike` returns: all that was taken away is there
again, and from then on everything must go on as if nothing had been."""

from . import machine, processes, wire
from .murder import Murder

KINDS = {kind.name: kind for module in (processes, wire, machine) for kind in vars(module).values()
         if isinstance(kind, type) and issubclass(kind, Murder) and kind.name}
