"""Members on several devices: the same samples, the same weights, whatever the number and whoever dies."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fleet_members as members
import uneven.fleet as fleet
from uneven.fleet.engine import state as engine_state
from uneven.fleet.engine.hosts import Hosts
from uneven.fleet.engine.options import Options, RunSnapshot
from uneven.fleet.engine.run import run
from uneven.fleet.member.batch_rule import rate_factor
from uneven.fleet.member.host import Job
from uneven.fleet.stream.feed import Feed, look
from uneven.fleet.stream.order import Stream
from uneven.fleet.stream.preprocess import Source
from uneven.jobs.local import Local

ON_ONE, ON_TWO = [1000.0], [0.0, 1000.0]
"""Rates that leave the planner no choice: one device, or two."""


@pytest.fixture(autouse=True, scope="module")
def light_processes() -> Iterator[None]:
    """New processes import the script that was started, which is pytest here; they can do without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], "__spec__", None)
        patch.delattr(sys.modules["__main__"], "__file__", raising=False)
        yield


def train(directory: Path, member: fleet.Member | Any, rates: list[float], epochs: int, **given: Any) -> fleet.Result:
    """One member, with what is given for the ensemble or the options."""
    what = {key: given.pop(key) for key in ("dataset", "metric", "validate", "transform") if key in given}
    options = Options(rates={"it": rates}, buffer=256, chunk=32, preprocessors=1, **given)
    asked = members.ensemble(epochs, members={"it": member}, **what)
    return fleet.train(asked, devices=len(rates), directory=directory, options=options, progress=False)


def newest(result: fleet.Result) -> dict[str, Any]:
    folder = engine_state.folders(result.directory, ["it"])["it"]
    return torch.load(max(folder.glob("*.pt")), weights_only=True)


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.allclose(one[k], other[k], rtol=1e-4, atol=1e-6) for k in one)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> fleet.Result:
    """Three epochs on one device."""
    return train(tmp_path_factory.mktemp("alone"), members.plain, ON_ONE, 3)


def test_two_devices_and_a_change_between_them_learn_what_one_does(alone: fleet.Result, tmp_path: Path) -> None:
    second_late = partial(members.plain, delay_s=0.002)
    two = train(tmp_path / "two", second_late, ON_TWO, 3)
    assert close(newest(two)["model"], newest(alone)["model"])
    for one, other in zip(two.state.members["it"].epochs, alone.state.members["it"].epochs, strict=True):
        assert (one.train_loss, one.metric) == pytest.approx((other.train_loss, other.metric), rel=1e-4)
        assert (one.devices, other.devices, one.samples, other.shares) == (2, 1, 400, (50,))
    first, second = two.state.members["it"].epochs[-1].shares
    assert first + second == 50
    assert first > second  # the late one is given less

    train(tmp_path / "change", members.plain, ON_ONE, 1)
    changed = train(tmp_path / "change", members.plain, ON_TWO, 3)
    assert [epoch.devices for epoch in changed.state.members["it"].epochs] == [1, 2, 2]
    assert close(newest(changed)["model"], newest(alone)["model"])


def test_each_sample_comes_once_to_one_worker_and_the_learning_rate_follows(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    noted.mkdir()
    member = partial(members.plain, batch_size=24, noted=noted)
    given = {"dataset": members.Numbered(205), "validate": None, "metric": fleet.own_loss, "transform": None}
    result = train(tmp_path / "run", member, ON_TWO, 2, batch_rule=fleet.BatchRule.LINEAR, **given)
    seen = [[int(word) // 10 for word in path.read_text().split()] for path in noted.iterdir()]
    assert len(seen) == 2
    assert min(map(len, seen)) > 100
    assert Counter(seen[0] + seen[1]) == dict.fromkeys(range(205), 2)
    # The same by hand: batches of twice 24, the learning rate from one times to two times in the first epoch.
    by_hand = members.plain(24)
    stream = Stream(205, 0, 32, 0)
    for epoch, before in ((0, 1), (1, 2)):
        order = stream.order(epoch).tolist()
        for step, at in enumerate(range(0, 205, 48)):
            by_hand.optimizer.param_groups[0]["lr"] = 0.2 * rate_factor(fleet.BatchRule.LINEAR, before, 2, step, 5)
            batch = [given["dataset"].data[i] for i in order[at : at + 48]]
            x, y = torch.stack([one[0] for one in batch]), torch.stack([one[1] for one in batch])
            by_hand.optimizer.zero_grad()
            F.cross_entropy(by_hand.model(x), y).backward()
            by_hand.optimizer.step()
    assert close(newest(result)["model"], by_hand.model.state_dict())
    assert newest(result)["optimizer"]["param_groups"][0]["lr"] == 0.2  # schedulers see what the user set


def test_on_two_devices_stopped_and_resumed_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    member = partial(members.make, 16, 50, True)  # draws for its dropout in each worker
    whole = train(tmp_path / "whole", member, ON_TWO, 3, balance="even")
    train(tmp_path / "parts", member, ON_TWO, 1, balance="even")
    parts = train(tmp_path / "parts", member, ON_TWO, 3, balance="even")
    one, other = newest(whole), newest(parts)
    assert len(one["others"]) == 1
    assert all(torch.equal(one["model"][key], value) for key, value in other["model"].items())
    assert torch.equal(one["others"][0]["torch"], other["others"][0]["torch"])
    assert not torch.equal(one["others"][0]["torch"], one["random"]["torch"])


def test_a_worker_that_is_killed_or_fails_takes_its_member_along_and_nobody_else(tmp_path: Path) -> None:
    everybody = {"killed": partial(members.plain, delay_s=0.001), "second": members.second_raises,
                 "single": partial(members.plain, batch_size=1)}  # fmt: skip
    rates = dict.fromkeys(everybody, ON_TWO)
    asked = members.ensemble(2, members=everybody)
    struck: list[int] = []

    def strike(moment: RunSnapshot) -> None:
        of_killed = moment.processes.get("killed", ())
        if len(of_killed) == 2 and not struck:
            struck.append(of_killed[1])
            os.kill(of_killed[1], signal.SIGKILL)

    options = Options(rates=rates, buffer=256, chunk=32)
    state = run(asked, 2, tmp_path, options, strike)
    told = {name: (one.status, len(one.epochs)) for name, one in state.members.items()}
    assert told == {"killed": ("trained", 2), "second": ("failed", 0), "single": ("trained", 2)}
    assert len(struck) == 1
    assert "ValueError: not here" in state.members["second"].why
    assert state.members["single"].epochs[0].shares == (1,)  # a batch of one is not divided


def test_one_that_died_between_two_passes_is_not_waited_for(tmp_path: Path) -> None:
    events, data = Local(), members.few()
    source, stream = Source(data, None, None, None), Stream(60, 0, 32, 0)
    feed = Feed(events, source, stream, look(events, source).layout, slots=4, most=1, tell=lambda *_: None)
    hosts = Hosts(events, feed)
    try:
        factory = pickle.dumps(members.plain)
        hosts.load(Job("it", factory, fleet.own_loss, ("cpu", "cpu"), tmp_path, 0, 0))
        assert hosts.collect() == {"it": ("loaded", 2)}
        os.kill(hosts.processes["it"][1], signal.SIGKILL)
        while not hosts.by_member["it"].gone:
            feed.wait(1.0)
        hosts.epoch("it", 0)
        assert hosts.collect() == {"it": ("died", "SIGKILL")}
        assert feed.ledger.readers == {}
        # Two who miss each other, while nobody has failed or died: as if both had died.
        hosts.leave("it")
        hosts.load(Job("it", factory, fleet.own_loss, ("cpu", "cpu"), tmp_path, 0, 0))
        hosts.collect()
        hosts._lost("it", 0, "the line broke")
        assert not hosts.by_member["it"].gone
        hosts._lost("it", 1, "the line broke")
        assert hosts.by_member["it"].answer == ("died", "its workers lost each other: the line broke")
    finally:
        hosts.close()
        feed.close()
        events.close()
