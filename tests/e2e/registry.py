"""The list of tests, filled by the decorator as the test modules are imported."""

from dataclasses import dataclass
from typing import Callable

TESTS = []


@dataclass
class Test:
    """One test: a function of a fresh laboratory (or of nothing, with links=0)."""

    name: str
    function: Callable
    seconds: int  # hard limit
    links: int  # between initiator and target
    mtu: int
    needs_binary: bool


def test(seconds=60, links=1, mtu=9000, needs_binary=True, each=None):
    """Registers a test. With `each`, a dict of name suffix -> keyword arguments, one a row."""
    def register(function):
        module = function.__module__.removeprefix("test_")
        base = f"{module}.{function.__name__}"
        for suffix, arguments in (each or {"": {}}).items():
            def call(*lab, function=function, arguments=arguments):
                return function(*lab, **arguments)
            call.__doc__ = function.__doc__
            TESTS.append(Test(f"{base}.{suffix}" if suffix else base, call, seconds, links, mtu, needs_binary))
        return function
    return register
