"""Streams on unequal machines."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from uneven.errors import ConfigError, TrainingError
from uneven.focus import place
from uneven.focus.supervise import Cameras, _Taken
from uneven.runtime.jobs import Ending, How


def test_a_fast_machine_takes_more_and_nobody_waits_longer_than_needed():
    placed = place({"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}, {"fast": 3.0, "slow": 1.0})
    assert placed.load == {"fast": pytest.approx(8 / 3), "slow": 2.0}
    assert set(placed.behind) == {"fast", "slow"}


def test_only_the_streams_of_a_machine_that_died_move():
    cost = dict.fromkeys("abcdef", 0.3)
    before = place(cost, {"x": 1.0, "y": 1.0, "z": 1.0})
    after = place(cost, {"x": 1.0, "y": 1.0}, stay=before.machine)
    for stream, machine in before.machine.items():
        assert after.machine[stream] == machine or machine == "z"
    assert not after.behind


def test_no_machine_and_numbers_that_are_none_are_refused():
    with pytest.raises(ConfigError, match="no machine is left"):
        place({"a": 1.0}, {})
    with pytest.raises(ConfigError, match="speed of machine 'x' is 0"):
        place({"a": 1.0}, {"x": 0.0})


@dataclass
class Told:
    """A process of :class:`Machines`; it ends when the test says so."""

    name: str
    device: int
    ended: object
    ending: Ending | None = None

    def end(self, how):
        self.ending = Ending(how, "the test")
        self.ended(self)


@dataclass
class Machines:
    """A place with two machines: one with two cores, and one with a core of half their speed."""

    devices: tuple[str, ...] = ("cpu",) * 3
    rates: tuple[float, ...] = (100.0, 100.0, 50.0)
    lost: frozenset[int] = frozenset()
    started: list[Told] = field(default_factory=list)
    probed: How = How.ENDED  # the machine with one core

    def nodes(self, devices):
        return [[0, 1], [2]]

    def gone(self):
        return self.lost

    def start(self, name, target, arguments, *, heard, ended, device=None):
        made = Told(name.removeprefix("ingest of "), device, ended)
        if name == "probe":
            how = self.probed if device == 2 else How.ENDED
            if how is How.ENDED:
                heard(made, self.rates[device])
            made.end(how)
        else:
            self.started.append(made)
        return made

    def now(self):
        """Which stream is where."""
        return {one.name: one.device for one in self.started if one.ending is None}


@dataclass(frozen=True)
class Camera:
    """Not read here."""

    live: bool = False


def taken(machines, live, **cost):
    folders = {name: Path(name) for name in cost}
    cameras = Cameras(sources={name: Camera(live) for name in cost}, folders=folders, cost=cost)
    made = _Taken(cameras, machines, lambda name, counts: None, lambda name, reason: None)
    made.deal()
    return made


def test_files_come_one_at_a_time_and_the_fastest_that_is_free_takes_the_next():
    machines = Machines()
    streams = taken(machines, False, a=3.0, b=3.0, c=1.0, d=1.0)
    assert machines.now() == {"a": 0, "b": 1, "c": 2}
    machines.started[1].end(How.ENDED)
    streams.deal()
    assert machines.now() == {"a": 0, "c": 2, "d": 1}
    for one in list(machines.started):
        if one.ending is None:
            one.end(How.ENDED)
    assert not streams.left


def test_live_streams_all_begin_at_once_and_those_of_a_lost_machine_move():
    machines = Machines()
    streams = taken(machines, True, a=0.6, b=0.6, c=0.4, d=0.2, e=0.2)
    before = machines.now()
    assert len(before) == 5
    assert sum({"a": 0.6, "b": 0.6, "c": 0.4, "d": 0.2, "e": 0.2}[one] for one in before if before[one] == 2) <= 0.4
    machines.lost = frozenset({0, 1})
    for one in machines.started:
        if one.device in machines.lost:
            one.end(How.KILLED)
    streams.deal()
    assert machines.now() == dict.fromkeys("abcde", 2)
    machines.lost = frozenset({0, 1, 2})
    with pytest.raises(ConfigError, match="no machine is left"):
        streams.deal()


def test_one_that_is_killed_is_begun_again_where_it_was_and_an_error_is_the_streams_own():
    machines = Machines()
    streams = taken(machines, False, a=1.0, b=1.0)
    machines.started[0].end(How.KILLED)
    assert machines.now() == {"b": 1, "a": 0}
    machines.started[-1].end(How.FAILED)
    streams.deal()
    assert streams.failed == {"a": "the ingest of a ended with the test"}
    assert machines.now() == {"b": 1}
    assert list(streams.left) == ["b"]


@pytest.mark.parametrize("how", [How.FAILED, How.KILLED])
def test_a_machine_whose_speed_could_not_be_measured_is_not_left_out_in_silence(how):
    with pytest.raises(TrainingError, match=r"the speed of a machine could not be measured.*the test"):
        taken(Machines(probed=how), False, a=1.0)


@pytest.mark.parametrize("how", [How.LOST, How.KILLED])
def test_a_machine_that_is_lost_while_it_is_measured_takes_nothing(how):
    machines = Machines(probed=how, lost=frozenset({2}))
    taken(machines, False, a=3.0, b=3.0, c=1.0)
    assert machines.now() == {"a": 0, "b": 1}
