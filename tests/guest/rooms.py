"""The list of rooms, filled by the decorator as their modules are imported."""

from registry import Test

ROOMS = []
# Those that `make test` has.
QUICK = set()


def room(seconds, each=None, mtu=9000, quick=False):
    """Registers a room: a function of a fresh laboratory, and so many seconds it may take at most. With `each`, a dict of
    name suffix -> keyword arguments, one a row. Frames are not protected: the dialects know no keys."""
    def register(function):
        base = f"{function.__module__.removeprefix('room_')}.{function.__name__}"
        for suffix, arguments in (each or {"": {}}).items():
            def call(lab, function=function, arguments=arguments):
                return function(lab, **arguments)
            call.__doc__ = function.__doc__
            name = f"{base}.{suffix}" if suffix else base
            ROOMS.append(Test(name, call, seconds, 1, mtu, True, "insecure"))
            if quick:
                QUICK.add(name)
        return function
    return register
