"""The list of tests, filled by the decorator as the test modules are imported, and how they bear company."""

from dataclasses import dataclass
from typing import Callable

TESTS = []

# Tests that have the machine for themselves, and why. A name stands for all of its rows.
ALONE = {
    "block.forced_detach_of_a_mounted_disk": "a promise of seconds",
    "canary.a_killed_runner_is_swept": "sweeps the whole machine",
    "canary.the_switch_drops_and_cuts": "counts each frame, and a busy processor's backlog drops some",
    "cli.bench_breakdown": "shares of microseconds",
    "cli.busy_image": "a promise of seconds",
    "cli.detach": "a promise of seconds",
    "cli.orderly_shutdown": "a promise of seconds",
    "four_legs.away_and_back_one_after_the_other": "a promise of seconds",
    "exhaustion.peers_that_never_listen": "frames a second, and memory",
    "hostile.flood_of_greetings": "frames a second, latencies, and the kernel's one table of neighbours",
    "hostile.frames_from_hell": "memory",
    "identity.same_initiator_returns": "a promise of seconds",
    "identity.twin_in_a_container": "its mount namespace holds on to what others unmount",
    "lab.interrupted": "the laboratory measures, and sweeps",
    "lab.interrupted_in_a_face": "the laboratory measures, and sweeps",
    "lab.killed": "the laboratory measures, and sweeps",
    "lab.killed_with_a_disk": "the laboratory measures, and sweeps",
    "lab.two_short_points": "the laboratory measures, and sweeps",
    "leftovers.of_targets": "its mount namespace holds on to what others unmount",
    "reload.a_key_is_removed_and_given_back": "a promise of seconds",
    "resources.idle_cpu": "processor time",
    "resources.neighbours_are_left_alone": "processor time",
    "resources.target_memory": "memory",
    "strangers.client_that_stops_reading": "memory",
    "strangers_local.plants_the_default_folder": "one place in /tmp",
    "volumes.a_gateway_is_stopped_while_it_waits": "a promise of seconds",
    "qos.limits_are_kept": "I/Os in a second",
    "qos.limits_of_an_export": "I/Os in a second",
    "qos.several_share_one_budget": "I/Os in a second",
}

# Of these, those in which nothing happens: beside each other they are as alone as one of them is.
IDLE = ("resources.idle_cpu",)

# The longest of the others, ten seconds and more: begun first, so that in the end none is waited for.
LONGEST = (
    "growth_labels.a_growth_that_is_cut_off",
    "mirrors.legs_come_back_while_in_use",
    "volumes_document.recipes",
    "returning.a_leg_of_several_modules_comes_back",
    "two_gateways.they_are_killed_in_turns_under_load",
    "two_gateways.one_stands_still_and_writes_nothing_more",
    "two_gateways.one_dies_and_the_other_knows_its_writer",
    "restart.sigterm_under_load",
    "reload_exports.fifty_come_and_go",
    "fio.all_links_down",
    "fio.both_links_go_silent",
    "soak.short.plain",
    "soak.short.gateway",
    "soak.short.machine",
    "mirrors.a_leg_dies_and_comes_back",
    "cuts.killed_at_each_step_of_three_targets",
    "cuts.the_first_of_three_targets_is_killed_at_each_step",
    "cuts.the_last_of_three_targets_is_killed_at_each_step",
    "works.a_mirror_in_use_is_paused_scrubbed_and_resumed",
    "additions.an_export_is_added_while_its_mirror_is_used",
    "additions.files_and_modules_are_added",
    "additions.additions_are_cut_off",
    "additions.a_gateway_over_exports_gets_another",
    "replacing.a_leg_is_replaced_while_its_mirror_is_used",
    "replacing.a_leg_that_is_away_is_replaced",
    "replacing.replacements_are_cut_off",
    "replacing.a_leg_behind_a_gateway_is_replaced",
    "growth_labels.each_kind_grows_as_far_as_it_can",
    "volumes.gateway",
    "keys_documents.a_key_is_changed",
    "interrupted.a_tree_is_made",
    "interrupted.a_leg_is_replaced",
    "keys.nothing_without_the_right_key",
    "keys.keys_on_the_initiator_only",
    "keys_documents.as_they_are_written",
    "keys.a_gateway_shows_what_its_volumes_say",
    "cli.bad_exports",
    "volumes.several_exports_of_a_gateway",
    "fio.one_of_two_links_cut",
    "volumes.tree_attached",
    "block.outage_under_a_file_system",
    "fio.target_killed",
    "cli.status_of_the_frame_size",
)


@dataclass
class Test:
    """One test: a function of a fresh laboratory (or of nothing, with links=0)."""

    name: str
    function: Callable
    seconds: int  # hard limit
    links: int  # between initiator and target
    mtu: int
    needs_binary: bool
    security: str | None = None  # how frames are protected, whatever the mode says

    def is_of(self, name):
        """Whether it is the test of this name, or a row of it."""
        return self.name == name or self.name.startswith(name + ".")

    @property
    def alone(self):
        return any(map(self.is_of, ALONE))

    @property
    def idle(self):
        return any(map(self.is_of, IDLE))

    @property
    def rank(self):
        """Its place among those that are begun first."""
        return next((place for place, name in enumerate(LONGEST) if self.is_of(name)), len(LONGEST))


def test(seconds=60, links=1, mtu=9000, needs_binary=True, each=None, security=None):
    """Registers a test. With `each`, a dict of name suffix -> keyword arguments, one a row. With `security`, in
    a row or for all, its frames are protected so whatever the mode says, since that is what it is about
    (`node.SECURITIES`)."""
    def register(function):
        module = function.__module__.removeprefix("test_")
        base = f"{module}.{function.__name__}"
        for suffix, arguments in (each or {"": {}}).items():
            arguments = dict(arguments)
            protection = arguments.pop("security", security)

            def call(*lab, function=function, arguments=arguments):
                return function(*lab, **arguments)
            call.__doc__ = function.__doc__
            name = f"{base}.{suffix}" if suffix else base
            TESTS.append(Test(name, call, seconds, links, mtu, needs_binary, protection))
        return function
    return register
