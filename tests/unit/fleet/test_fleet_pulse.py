"""Who hangs is named and ended, who diverges has failed, and nobody is taken for silent who is not."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import fleet_members as members
import uneven.fleet as fleet
from uneven.errors import ConfigError, TrainingError
from uneven.fleet.engine import fleet_run as engine
from uneven.fleet.engine import fleet_state as engine_state
from uneven.fleet.engine import hosts as engine_hosts
from uneven.fleet.engine.entry import live
from uneven.fleet.engine.fleet_options import Options, RunSnapshot
from uneven.fleet.engine.hosts import Hosts, reader_of
from uneven.fleet.fleet_result import Result
from uneven.fleet.member.member_host import Job
from uneven.fleet.member.train_epoch import nonfinite_in
from uneven.fleet.pure.converge import Epoch
from uneven.runtime.jobs import Ending, Events
from uneven.runtime.jobs.engines import Local
from uneven.runtime.jobs.heartbeat import At, Heartbeat, Watched
from uneven.runtime.jobs.job_events import Awake

OPTIONS = Options(together=True, buffer=256, chunk=32, preprocessors=1)


@pytest.fixture(autouse=True)
def light_processes() -> Iterator[None]:
    """New processes import the script that was started, which is pytest here; they can do without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], "__spec__", None)
        patch.delattr(sys.modules["__main__"], "__file__", raising=False)
        yield


def test_time_in_which_nobody_listened_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 0.3, 500.3, 500.4])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    awake = Awake()
    one = Watched(awake)
    for expected in (0.3, 1.3, 1.4):  # stopped for 500 s in the middle
        awake.tick()
        assert one.quiet_s == pytest.approx(expected)
    assert not one.signals(("epoch", 3))
    assert one.quiet_s == 0.0
    assert one.signals(At("step 3"))
    assert str(one.silence) == "no heartbeat for 0 s, the last one at step 3"


def test_signs_are_given_now_and_then_and_of_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    told: list[Any] = []
    pulse = Heartbeat(told.append)
    for number in range(40):
        pulse.beat("step {} of epoch {}", number, 1)
        now[0] += 0.0625
    pulse.begin("its checkpoint")
    assert told == [At(f"step {number} of epoch 1") for number in range(0, 40, 4)] + [At("its checkpoint")]
    pulse.every_s = 0.0
    assert [pulse.beat("step {}", number) for number in range(3)] == [True] * 3


def test_a_time_out_that_tells_nothing_is_refused() -> None:
    for wrong in (0.0, -1.0, 0.5, math.nan):
        with pytest.raises(ConfigError, match=f"timeout_s={wrong:g}: give at least 1 s"):
            Options(timeout_s=wrong)
    assert Options(timeout_s=math.inf).timeout_s == math.inf
    with pytest.raises(ConfigError, match="nonfinite='ignore': give"):
        Options(nonfinite="ignore")  # type: ignore[arg-type]


class Double(Watched):
    """A process that says what the test lets it say."""

    pid, ending, name = 1, Ending.of(-9), "double"

    def __init__(self, events: Events, heard: Any) -> None:
        super().__init__(events.awake)
        self._heard, self.ended = heard, 0

    def say(self, message: Any) -> None:
        if not self.signals(message):
            self._heard(self, message)

    def send(self, message: Any) -> None:
        self.touched()

    def kill(self) -> Ending:
        self.ended += 1
        return self.ending

    end = kill

    def ask_to_end(self) -> None:
        pass

    def wait(self, within_s: float) -> Ending:
        return self.ending


class World:
    """A place whose processes are doubles, and a stream of which nothing but the book is kept."""

    address, ring, stream = "127.0.0.1", None, None

    def __init__(self) -> None:
        self.events, self.started, self.waiting = Local(), [], set[str]()
        self.ring = self

    def start(self, name: str, target: Any, arguments: Any, *, heard: Any, ended: Any, device: int) -> Double:
        self.started.append(Double(self.events, heard))
        return self.started[-1]

    def seat(self, device: int) -> int:
        return device

    def handle(self, writable: bool) -> None:
        return None

    def waits(self, reader: str) -> bool:
        return reader in self.waiting

    def join(self, reader: str) -> None:
        pass

    leave = join

    def wait(self, timeout_s: float) -> None:
        self.events.awake.now_s += 100.0


def test_a_member_hangs_when_none_of_its_workers_speaks_or_waits_for_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    with world.events, closing(Hosts(world, world, timeout_s=300.0)) as hosts:  # type: ignore[arg-type]
        hosts.load(Job("team", b"", fleet.own_loss, ("cpu", "cpu"), tmp_path, 0, 0, places=(0, 1)))
        hosts.load(Job("one", b"", fleet.own_loss, ("cpu",), tmp_path, 0, 0, places=(2,)))
        first, second, one = world.started
        looks: list[set[str]] = []

        def look() -> None:
            looks.append(set(hosts.quiet))
            if len(looks) < 8:
                first.say(At("step 3 of epoch 1"))  # then it waits for the second one, as long as that hangs
            if len(looks) == 1:
                one.say(("loaded", 1))

        monkeypatch.setattr(engine_hosts, "_LOOK_S", -1.0)  # look every time
        second.say(At("step 2 of epoch 1"))
        answers = hosts.collect(look)
        assert answers["one"] == ("loaded", 1)
        kind, why = answers["team"]
        assert kind == "failed"
        assert why.startswith("it hangs: no heartbeat for 300 s, the last one at step 2 of epoch 1; ")
        assert (first.ended, second.ended, one.ended) == (1, 1, 0)
        assert looks == [{"team", "one"}, *[{"team"}] * 9, set()]  # 300 s after the first worker's last sign

        hosts.epoch("one", 0)
        world.waiting.add(reader_of("one", 0))  # who waits for samples is not silent, however long
        for _ in range(5):
            world.wait(0.25)
            hosts._end_hanging()
        assert hosts.quiet == {}
        world.waiting.clear()
        hosts._end_hanging()
        assert hosts.by_member["one"].answer[0] == "failed"


def test_who_hangs_or_diverges_has_failed_and_the_others_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begun = tmp_path / "begun"
    everybody = {
        "late": partial(members.diverges, 8, hidden=True), "good": partial(members.make, 8, 32),
        "hangs": partial(members.hangs, begun), "early": partial(members.diverges, 3),
        "dies": members.deadly,
    }  # fmt: skip
    place = Local(("cpu", "cpu"))
    monkeypatch.setattr(engine, "place_for", lambda *_: place)
    asked = members.ensemble(2, members=everybody)
    hung: set[int] = set()

    with live("accuracy") as lines:

        def show(moment: RunSnapshot) -> None:
            lines(moment)
            if begun.exists() and set(moment.quiet) == {"hangs"}:
                hung.update(moment.processes["hangs"])
                place.awake.now_s += 301.0

        state = engine.run(asked, 2, tmp_path / "run", replace(OPTIONS, timeout_s=300.0), show)
    assert len(hung) == 1
    assert not psutil.pid_exists(hung.pop())
    result = Result(asked, state, tmp_path / "run")
    assert {row.name: row.status for row in result.table} == {
        "good": "trained", "hangs": "failed", "early": "failed", "late": "failed", "dies": "failed",
    }  # fmt: skip
    why = {row.name: row.why for row in result.table}
    assert "no heartbeat for 300 s, the last one at step 1 of its profile" in why["hangs"]
    assert why["dies"].startswith("its process died 3 times in its profile (SIGKILL); perhaps memory ran out")
    assert why["early"].startswith("diverged: its loss was NaN or infinite in step 3 of epoch 1; ")
    assert why["late"].startswith("diverged: 1.weight holds a NaN or an infinity after epoch 1; ")
    assert (result.table[0].name, result.best.name) == ("good", "good")
    assert {row.name for row in result.failed} == {"hangs", "early", "late", "dies"}
    assert list((tmp_path / "run" / "members").rglob("*.pt")) == [result.best.checkpoint]
    shown = capfd.readouterr().err
    for line in ("good: epoch 2 of 2, accuracy ", "hangs: no heartbeat for ", "hangs: failed: it hangs: "):
        assert line in shown


def ended(*losses: float, metrics: Sequence[float] = ()) -> engine_state.MemberState:
    epochs = [Epoch(train_loss=loss, metric=metric) for loss, metric in zip(losses, metrics or losses, strict=True)]
    return engine_state.MemberState("trained", "largest number of epochs", epochs)


def test_what_is_no_number_is_no_result(tmp_path: Path) -> None:
    """Nothing is started: all are trained already, by a start that did not mind, or an earlier version."""
    asked = members.ensemble(2, members=dict.fromkeys(("lost", "blind", "inf", "good"), members.make))
    known = {"members": list(asked.members), "samples": 400, "validation samples": 100, "seed": 0, "chunk": 32,
             "metric": "accuracy"}  # fmt: skip
    state = engine_state.RunState(known, members={
        "lost": ended(0.5, math.nan, metrics=(0.9, 0.1)), "blind": ended(0.5, 0.4, metrics=(math.nan, math.inf)),
        "inf": ended(0.5, 0.4, metrics=(math.inf, 0.2)), "good": ended(0.5, 0.4, metrics=(0.1, 0.3)),
    })  # fmt: skip
    engine_state.save(tmp_path, state)
    warned = engine.run(asked, 2, tmp_path, replace(OPTIONS, nonfinite="warn"), lambda moment: None)
    assert {one.status for one in warned.members.values()} == {"trained"}
    result = Result(asked, engine.run(asked, 2, tmp_path, OPTIONS, lambda moment: None), tmp_path)
    assert [(row.name, row.metric) for row in result.table[:2]] == [("good", 0.3), ("inf", 0.2)]
    assert {row.name: row.why for row in result.failed} == {
        "lost": "diverged: its loss was NaN or infinite in epoch 2",
        "blind": "diverged: its accuracy was a finite number in none of its 2 epochs",
    }
    for one in state.members.values():
        one.status = "failed"
    with pytest.raises(TrainingError, match="no member was trained; "):
        _ = Result(asked, state, tmp_path).best


def test_masks_may_hold_infinities_and_weights_may_not() -> None:
    model = torch.nn.BatchNorm1d(2)
    model.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    model.register_buffer("count", torch.tensor([1, 2]))
    assert nonfinite_in(model) is None
    model.running_mean = torch.tensor([0.0, math.nan])
    assert nonfinite_in(model) == "running_mean"
    with torch.no_grad():
        model.weight[0] = math.inf
    assert nonfinite_in(model) == "weight"
